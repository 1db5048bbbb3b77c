//! The options that lull acts upon.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use libc::c_int;
use lull_net::{Keepalive, TcpStream};

use crate::{Errno, Result, kernel};

/// SO_RCVTIMEO and SO_SNDTIMEO with 64-bit times everywhere (`SO_RCVTIMEO_NEW`, `SO_SNDTIMEO_NEW`).
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
/// Limits of `do_tcp_setsockopt`: `MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`, `MAX_TCP_KEEPCNT`.
const KEEPIDLE_S_MAX: c_int = 32_767;
const KEEPINTVL_S_MAX: c_int = 32_767;
const KEEPCNT_MAX: c_int = 127;
const NS_PER_S: u64 = 1_000_000_000;

/// A timeout of a call that blocks, in microseconds; 0 is none.
#[derive(Debug, Default)]
pub(super) struct Timeout(AtomicI64);

impl Timeout {
    pub(super) fn get(&self) -> Option<Duration> {
        let us = self.0.load(Relaxed);
        (us != 0).then(|| Duration::from_micros(us.unsigned_abs()))
    }

    /// `sock_set_timeout`.
    fn set(&self, value: &[u8]) -> Result<()> {
        let (seconds, us) = two_longs(value)?;
        if !(0..1_000_000).contains(&us) {
            return Err(Errno::new(libc::EDOM));
        }
        // A negative time is one that is over already.
        let us = if seconds < 0 { 1 } else { seconds.saturating_mul(1_000_000).saturating_add(us) };
        self.0.store(us, Relaxed);
        Ok(())
    }

    fn bytes(&self) -> Vec<u8> {
        let us = self.0.load(Relaxed);
        [(us / 1_000_000).to_ne_bytes(), (us % 1_000_000).to_ne_bytes()].concat()
    }
}

fn two_longs(value: &[u8]) -> Result<(i64, i64)> {
    let short = Errno::new(libc::EINVAL);
    let (first, rest) = value.split_first_chunk::<8>().ok_or(short)?;
    let second = rest.first_chunk::<8>().ok_or(short)?;
    Ok((i64::from_ne_bytes(*first), i64::from_ne_bytes(*second)))
}

pub(in crate::socket) fn int(value: &[u8]) -> Result<c_int> {
    let bytes = value.first_chunk::<4>().ok_or(Errno::new(libc::EINVAL))?;
    Ok(c_int::from_ne_bytes(*bytes))
}

/// The values of these options.
#[derive(Debug, Default)]
pub(in crate::socket) struct Acted {
    nodelay: AtomicBool,
    corked: AtomicBool,
    keepalive: AtomicBool,
    idle_s: AtomicU32,
    interval_s: AtomicU32,
    probes: AtomicU32,
    lingers: AtomicBool,
    linger_s: AtomicU32,
    user_timeout_ms: AtomicU32,
    pub(super) receive_timeout: Timeout,
    pub(super) send_timeout: Timeout,
}

impl Clone for Acted {
    fn clone(&self) -> Acted {
        let flag = |flag: &AtomicBool| AtomicBool::new(flag.load(Relaxed));
        let word = |word: &AtomicU32| AtomicU32::new(word.load(Relaxed));
        let timeout = |timeout: &Timeout| Timeout(AtomicI64::new(timeout.0.load(Relaxed)));
        Acted {
            nodelay: flag(&self.nodelay),
            corked: flag(&self.corked),
            keepalive: flag(&self.keepalive),
            idle_s: word(&self.idle_s),
            interval_s: word(&self.interval_s),
            probes: word(&self.probes),
            lingers: flag(&self.lingers),
            linger_s: word(&self.linger_s),
            user_timeout_ms: word(&self.user_timeout_ms),
            receive_timeout: timeout(&self.receive_timeout),
            send_timeout: timeout(&self.send_timeout),
        }
    }
}

/// Every option of [`Acted`] by its usual name.
const ALL: [(c_int, c_int); 10] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
];

impl Acted {
    /// Whether an option is one of these.
    pub(super) fn contains((level, name): (c_int, c_int)) -> bool {
        ALL.contains(&(level, name)) || level == libc::SOL_SOCKET && [SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW].contains(&name)
    }

    pub(super) fn of_placeholder(fd: c_int) -> Acted {
        let acted = Acted::default();
        for (level, name) in ALL {
            let mut value = [0; 16];
            if let Ok(length) = kernel::getsockopt(fd, level, name, &mut value) {
                // Whatever value the kernel gives out for it, it also accepts.
                let _ = acted.set(level, name, &value[..length], None);
            }
        }
        acted
    }

    /// Sets an option, on a connection if there is one. Returns nothing if the option is none of these.
    pub(in crate::socket) fn set(
        &self,
        level: c_int,
        name: c_int,
        value: &[u8],
        stream: Option<&TcpStream>,
    ) -> Option<Result<()>> {
        let limited = |word: &AtomicU32, max: c_int| {
            let value = int(value).ok().filter(|value| (1..=max).contains(value)).ok_or(Errno::new(libc::EINVAL))?;
            word.store(value as u32, Relaxed);
            self.renew_keepalive(stream)
        };
        let flag = |flag: &AtomicBool| int(value).map(|value| flag.store(value != 0, Relaxed));
        Some(match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                flag(&self.nodelay).and_then(|()| on(stream, |stream| stream.set_nodelay(self.nodelay.load(Relaxed))))
            }
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                flag(&self.corked).and_then(|()| on(stream, |stream| stream.set_cork(self.corked.load(Relaxed))))
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => limited(&self.idle_s, KEEPIDLE_S_MAX),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => limited(&self.interval_s, KEEPINTVL_S_MAX),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => limited(&self.probes, KEEPCNT_MAX),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => flag(&self.keepalive).and_then(|()| self.renew_keepalive(stream)),
            (libc::SOL_SOCKET, libc::SO_LINGER) => self.set_linger(value, stream),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => self.set_user_timeout(value, stream),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => self.receive_timeout.set(value),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => self.send_timeout.set(value),
            _ => return None,
        })
    }

    /// The value of an option, or nothing if it is none of these.
    pub(super) fn answer(&self, level: c_int, name: c_int, stream: &TcpStream) -> Option<Result<Vec<u8>>> {
        let number = |value: c_int| Some(Ok(value.to_ne_bytes().to_vec()));
        let word = |word: &AtomicU32| number(word.load(Relaxed) as c_int);
        let flag = |flag: &AtomicBool| number(c_int::from(flag.load(Relaxed)));
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => flag(&self.nodelay),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => flag(&self.corked),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => word(&self.idle_s),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => word(&self.interval_s),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => word(&self.probes),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => word(&self.user_timeout_ms),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => flag(&self.keepalive),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let linger = [c_int::from(self.lingers.load(Relaxed)), self.linger_s.load(Relaxed) as c_int];
                Some(Ok(linger.map(c_int::to_ne_bytes).concat()))
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => Some(Ok(self.receive_timeout.bytes())),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => Some(Ok(self.send_timeout.bytes())),
            (libc::SOL_SOCKET, libc::SO_ERROR) => match stream.take_error() {
                Ok(error) => number(error.map_or(0, |error| Errno::from(error).number())),
                Err(error) => Some(Err(error.into())),
            },
            (libc::SOL_SOCKET, libc::SO_BUSY_POLL) => number(stream.busy_poll() as c_int),
            (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL) => number(c_int::from(stream.prefer_busy_poll())),
            (libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET) => number(stream.busy_poll_budget() as c_int),
            (libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID) => number(stream.incoming_napi_id() as c_int),
            _ => None,
        }
    }

    /// Puts in force what was set before there was a connection.
    pub(super) fn apply(&self, stream: &TcpStream) {
        // Errors were told when the options were set. A connection that is over takes no options.
        if self.nodelay.load(Relaxed) {
            let _ = stream.set_nodelay(true);
        }
        if self.corked.load(Relaxed) {
            let _ = stream.set_cork(true);
        }
        if self.keepalive.load(Relaxed) {
            let _ = self.renew_keepalive(Some(stream));
        }
        if self.lingers.load(Relaxed) && self.linger_s.load(Relaxed) == 0 {
            let _ = stream.set_reset_on_close(true);
        }
        if self.user_timeout_ms.load(Relaxed) != 0 {
            let _ = self.put_user_timeout(stream);
        }
    }

    fn renew_keepalive(&self, stream: Option<&TcpStream>) -> Result<()> {
        let seconds = |word: &AtomicU32| u64::from(word.load(Relaxed)) * NS_PER_S;
        let keepalive = Keepalive {
            idle_ns: seconds(&self.idle_s),
            interval_ns: seconds(&self.interval_s),
            probes: self.probes.load(Relaxed),
        };
        let wanted = self.keepalive.load(Relaxed).then_some(keepalive);
        on(stream, |stream| stream.set_keepalive(wanted))
    }

    /// For how long closing the socket waits.
    pub(super) fn linger(&self) -> Option<Duration> {
        let seconds = self.linger_s.load(Relaxed);
        (self.lingers.load(Relaxed) && seconds != 0).then(|| Duration::from_secs(u64::from(seconds)))
    }

    /// SO_LINGER. With a time of zero, closing resets; with a longer one it waits.
    fn set_linger(&self, value: &[u8], stream: Option<&TcpStream>) -> Result<()> {
        let (lingers, seconds) = value.split_at_checked(4).ok_or(Errno::new(libc::EINVAL))?;
        let (lingers, seconds) = (int(lingers)? != 0, int(seconds)?);
        self.lingers.store(lingers, Relaxed);
        self.linger_s.store(seconds as u32, Relaxed);
        on(stream, |stream| stream.set_reset_on_close(lingers && seconds == 0))
    }

    fn set_user_timeout(&self, value: &[u8], stream: Option<&TcpStream>) -> Result<()> {
        let ms = int(value)?;
        self.user_timeout_ms.store(u32::try_from(ms).map_err(|_| Errno::new(libc::EINVAL))?, Relaxed);
        on(stream, |stream| self.put_user_timeout(stream))
    }

    fn put_user_timeout(&self, stream: &TcpStream) -> std::io::Result<()> {
        let ms = self.user_timeout_ms.load(Relaxed);
        stream.set_user_timeout((ms != 0).then(|| Duration::from_millis(u64::from(ms))))
    }
}

fn on(stream: Option<&TcpStream>, set: impl FnOnce(&TcpStream) -> std::io::Result<()>) -> Result<()> {
    stream.map_or(Ok(()), |stream| set(stream).map_err(Errno::from))
}
