//! The time in the stacks of several processes. They tell it by the kernel's clock, which is the same for all of them.

/// When a clock began, on the kernel's clock that all processes share. Of a few readings this takes the fastest one, as
/// the thread may be interrupted in between.
pub(crate) fn epoch_ns(now_ns: impl Fn() -> u64) -> u64 {
    let look = || {
        let (before, common, after) = (now_ns(), monotonic_ns(), now_ns());
        (after.saturating_sub(before), common.saturating_sub(before))
    };
    let looks: [_; 4] = std::array::from_fn(|_| look());
    looks.into_iter().min().map_or(0, |(_, epoch_ns)| epoch_ns)
}

/// The kernel's clock that all processes share.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
