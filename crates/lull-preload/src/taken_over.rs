//! The macro by which a function of the C library is taken over.

/// Declares functions of the C library that are taken over, with its names, arguments and results. With `if`, a call
/// for which that condition holds is answered by what follows `=>`, and every other call goes to the C library's
/// function, unchanged.
macro_rules! taken_over {
    () => {};
    (
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty, if $lulls:expr => $call:expr;
        $($rest:tt)*
    ) => {
        taken_over! {
            $(#[$doc])*
            fn $name($($arg: $type),*) -> $result {
                if $lulls { $call } else { crate::real::$name($($arg),*) }
            }
            $($rest)*
        }
    };
    (
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block
        $($rest:tt)*
    ) => {
        /// As the C library's function.
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            // SAFETY: the program vouches for its arguments as it does to the C library. They are passed on as they
            // are, or read and written as the kernel would do it.
            unsafe { $body }
        }
        taken_over! { $($rest)* }
    };
}
pub(crate) use taken_over;
