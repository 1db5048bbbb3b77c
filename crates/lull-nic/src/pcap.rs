//! A decorator that records every frame of a device, both ways, for Wireshark and tcpdump.
//!
//! ```
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::pcap::Pcap;
//! use lull_nic::{Device, Frame};
//! use std::sync::Arc;
//!
//! let (port, _peer) = mem::pair(MemConfig::default());
//! let port = Pcap::new(Arc::new(port), std::io::sink());
//! let mut queue = port.take_queue(0)?;
//! queue.tx.transmit(Frame::copy_from(&[0; 60])).expect("an empty ring");
//! assert_eq!((port.written(), port.lost()), (1, 0));
//! # Ok::<(), lull_nic::DeviceError>(())
//! ```

mod whole;

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::device::{Device, DeviceError, Queue};
use crate::frame::Frame;
use crate::observe::{self, Direction, Observer};

pub use whole::WholeWrites;

/// First word of a pcap file whose timestamps count nanoseconds.
pub const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// `LINKTYPE_ETHERNET`.
pub const LINKTYPE_ETHERNET: u32 = 1;
/// Bytes of a frame that are recorded at most (tcpdump's default).
pub const SNAP_BYTES: usize = 262_144;
/// What is gathered before it is written.
const BUFFER_BYTES: usize = 1 << 16;
/// What is gathered while it cannot be written.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// What stands before each frame.
const RECORD_HEADER_BYTES: usize = 16;

/// Records a device's frames in the pcap format: little-endian, nanoseconds, Ethernet.
///
/// A frame is recorded when it is handed to the poller, or taken for transmission. A checksum that is left to the
/// device looks wrong in the record, as it does in any capture taken above an offloading NIC. Queues share one writer
/// behind a lock, so a recording device is slower.
///
/// A write error never disturbs traffic: it is said once on the standard error, kept for [`Pcap::error`], and the
/// frames from then on are counted in [`Pcap::lost`]. A writer that is busy (`WouldBlock`) is tried again later; what has no room
/// until then is lost. The record is flushed when the device is dropped.
///
/// Only whole records are written, as many at once as have been gathered: several processes may write one file
/// ([`Pcap::appending`]), and with [`WholeWrites`] each of them has whole records there whatever becomes of the others.
pub struct Pcap<W: Write + Send + 'static> {
    inner: Arc<dyn Device>,
    recorder: Arc<Recorder<W>>,
}

impl<W: Write + Send + 'static> std::fmt::Debug for Pcap<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pcap").field("inner", &self.inner.info()).finish_non_exhaustive()
    }
}

struct Recorder<W: Write + Send> {
    device: String,
    file: Mutex<RecordFile<W>>,
    written: AtomicU64,
    lost: AtomicU64,
    told: fn(&str),
}

struct RecordFile<W: Write + Send> {
    writer: W,
    /// Whole records, and at first the file's header.
    buffer: Vec<u8>,
    error: Option<(io::ErrorKind, String)>,
}

impl<W: Write + Send + 'static> Pcap<W> {
    /// Wraps `inner` and records into `writer`, which this buffers.
    pub fn new(inner: Arc<dyn Device>, writer: W) -> Pcap<W> {
        let told = |line: &str| {
            // If the line cannot be written, the error is kept for whoever asks.
            let _ = writeln!(io::stderr(), "{line}");
        };
        Pcap::after(file_header().to_vec(), inner, writer, told)
    }

    /// As [`Pcap::new`], behind what others have written of a file that begins with [`file_header`]. `told` is told of a write error.
    pub fn appending(inner: Arc<dyn Device>, writer: W, told: fn(&str)) -> Pcap<W> {
        Pcap::after(Vec::new(), inner, writer, told)
    }

    fn after(buffer: Vec<u8>, inner: Arc<dyn Device>, writer: W, told: fn(&str)) -> Pcap<W> {
        let recorder = Recorder {
            device: inner.info().name,
            file: Mutex::new(RecordFile { writer, buffer, error: None }),
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            told,
        };
        Pcap { inner, recorder: Arc::new(recorder) }
    }

    /// Frames recorded (some perhaps still in the buffer).
    pub fn written(&self) -> u64 {
        self.recorder.written.load(Ordering::Relaxed)
    }

    /// Frames that passed unrecorded after a write error.
    pub fn lost(&self) -> u64 {
        self.recorder.lost.load(Ordering::Relaxed)
    }

    /// The first write error, if there was one.
    pub fn error(&self) -> Option<io::Error> {
        self.recorder.lock().error.as_ref().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }

    /// Writes out what is buffered; whether all writes have succeeded until now, and nothing waits.
    pub fn flush(&self) -> bool {
        self.recorder.attempt(RecordFile::flush)
    }
}

impl<W: Write + Send> Recorder<W> {
    fn lock(&self) -> MutexGuard<'_, RecordFile<W>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `write` unless an earlier write failed: the record has no hole.
    fn attempt(&self, write: impl FnOnce(&mut RecordFile<W>) -> io::Result<()>) -> bool {
        let mut file = self.lock();
        if file.error.is_some() {
            return false;
        }
        let Err(error) = write(&mut file) else { return true };
        if error.kind() == io::ErrorKind::WouldBlock {
            return false;
        }
        file.error = Some((error.kind(), error.to_string()));
        drop(file);
        (self.told)(&format!(
            "the packet record of {} ends here: {error}; make room, and start the program again",
            self.device
        ));
        false
    }
}

impl<W: Write + Send> RecordFile<W> {
    /// What was not taken stays.
    fn flush(&mut self) -> io::Result<()> {
        while !self.buffer.is_empty() {
            match self.writer.write(&self.buffer) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => drop(self.buffer.drain(..taken)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.writer.flush()
    }

    fn add(&mut self, now: Duration, frame: &Frame) -> io::Result<()> {
        let length = frame.chain_len();
        let recorded = length.min(SNAP_BYTES);
        let with_it = self.buffer.len() + RECORD_HEADER_BYTES + recorded;
        if with_it > BUFFER_BYTES {
            match self.flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && with_it <= KEPT_BYTES_MAX => {}
                flushed => flushed?,
            }
        }
        // The format's seconds are 32 bits, unsigned: good until 2106.
        for word in [now.as_secs() as u32, now.subsec_nanos(), recorded as u32, length as u32] {
            self.buffer.extend(word.to_le_bytes());
        }
        let mut room = SNAP_BYTES;
        for segment in frame.segments() {
            let data = &segment.data()[..segment.len().min(room)];
            room -= data.len();
            self.buffer.extend(data);
        }
        Ok(())
    }
}

impl<W: Write + Send> Observer for Recorder<W> {
    fn see(&self, _direction: Direction, _queue: usize, frame: &Frame) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let written = self.attempt(|file| file.add(now, frame));
        let counter = if written { &self.written } else { &self.lost };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a file begins with, before its first record.
pub fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    // Version 2.4; time zone and accuracy stay 0.
    header[4] = 2;
    header[6] = 4;
    header[16..20].copy_from_slice(&(SNAP_BYTES as u32).to_le_bytes());
    header[20..].copy_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
    header
}

impl<W: Write + Send + 'static> Device for Pcap<W> {
    observe::pass_on!();

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        Ok(observe::wrap(self.inner.take_queue(index)?, self.recorder.clone()))
    }
}

impl<W: Write + Send + 'static> Drop for Pcap<W> {
    fn drop(&mut self) {
        self.flush();
    }
}
