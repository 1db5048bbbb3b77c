//! Known bugs of the core, switched on in random worlds: each must be caught within the default run.
