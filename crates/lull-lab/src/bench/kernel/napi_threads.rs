//! The threads of a device's NAPIs, which a measurement moves to the cores that it chooses.

use std::time::{Duration, Instant};

use lull_core::Threaded;
use lull_linux::Roots;
use lull_linux::device::is_napi_thread;
use lull_linux::netdev::Netdev;
use lull_linux::sched::set_cpus;

use crate::bench::BenchError;
use crate::bench::kernel::pair::linux;

/// How long a NAPI thread may take to appear.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until each NAPI of the device is threaded and has its thread, and restricts these threads to `cores`.
///
/// # Errors
///
/// This fails if a thread never appears, or is not visible in this PID namespace. Then no thread was moved.
pub fn pin(netdev: &mut Netdev, ifindex: u32, cores: &[usize]) -> Result<Vec<i32>, BenchError> {
    let until = Instant::now() + TIMEOUT;
    let threads = loop {
        let napis = netdev.napis(ifindex).map_err(linux)?;
        let threads: Vec<i32> = napis.iter().filter_map(|napi| napi.thread_pid).collect();
        let all = napis.iter().all(|napi| napi.settings.threaded != Threaded::Off);
        if all && !threads.is_empty() && threads.len() == napis.len() {
            break threads;
        }
        if Instant::now() > until {
            return Err(BenchError::Invalid("the kernel started no NAPI thread".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if let Some(thread) = threads.iter().find(|thread| !is_napi_thread(**thread, &Roots::default())) {
        return Err(BenchError::Invalid(format!(
            "the NAPI thread {thread} of the device with index {ifindex} cannot be seen here: its number is that of the \
             initial PID namespace, and this is another; run lull there (in a container: with the host's PID namespace)"
        )));
    }
    threads.iter().try_for_each(|thread| set_cpus(*thread, cores))?;
    Ok(threads)
}
