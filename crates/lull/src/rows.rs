//! The table that `lull show` prints of NAPIs, of the kernel's as of a process's.

use lull_linux::plan::cpu_list;
use lull_linux::sched::Scheduling;

use crate::output::{WriteError, outln};

/// The columns of a NAPI, of the kernel's as of a process's.
pub type Row = [String; 10];

/// Their names.
pub const ROW_HEAD: [&str; 10] =
    ["queue", "napi", "irq", "irq cpus", "thread", "defer", "gro flush", "suspend", "threaded", "mode"];

/// Prints rows in columns as wide as they need.
pub fn print_rows(rows: &[Row]) -> Result<(), WriteError> {
    let mut widths = [0; 10];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        outln!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// A NAPI's thread: its number, where it may run and how.
pub fn thread_cell(pid: i32, scheduling: Option<&Scheduling>) -> String {
    match scheduling {
        Some(scheduling) => format!("{pid} cpu {} {}", cpu_list(&scheduling.cpus), scheduling.policy),
        None => pid.to_string(),
    }
}
