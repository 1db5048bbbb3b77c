//! The table of NAPIs that `lull show` prints, for devices of the kernel and for processes.

use lull_linux::plan::cpu_list;
use lull_linux::sched::Scheduling;

use crate::output::{WriteError, outln};

/// The cells of a NAPI's row.
pub type Row = [String; 10];

/// The names of the columns.
pub const ROW_HEAD: [&str; 10] =
    ["queue", "napi", "irq", "irq cpus", "thread", "defer", "gro flush", "suspend", "threaded", "mode"];

/// Prints rows, with columns as wide as their cells need.
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

/// The cell of a NAPI's thread: its number, the CPUs on which it may run, and its policy.
pub fn thread_cell(pid: i32, scheduling: Option<&Scheduling>) -> String {
    match scheduling {
        Some(scheduling) => format!("{pid} cpu {} {}", cpu_list(&scheduling.cpus), scheduling.policy),
        None => pid.to_string(),
    }
}
