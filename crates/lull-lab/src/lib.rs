//! lab

pub mod cell;
pub mod csv;
pub mod html;
pub mod json;
pub mod machine;
pub mod plan;
pub mod progress;
pub mod stats;
pub mod table;
