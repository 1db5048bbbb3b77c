//! The memory behind a frame: the heap's, or a device's that wants it back.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Buffer, Frame, HEADROOM_BYTES};

/// Bytes that one buffer has to itself.
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// Allocated by [`Memory::allocate`], and freed with this.
    heap: bool,
}

// SAFETY: a `Memory` is the only way to its bytes (`Chunk::new` demands it), like a box of them.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared one only reads.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn allocate(bytes: usize) -> Memory {
        let start = NonNull::from(Box::leak(vec![0u8; bytes].into_boxed_slice())).cast();
        Memory { start, bytes, heap: true }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.heap {
            let slice = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.bytes);
            // SAFETY: `allocate` leaked a box of this slice, and nobody else frees it.
            drop(unsafe { Box::from_raw(slice) });
        }
    }
}

impl Deref for Memory {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: valid for `bytes` bytes while this lives (`allocate`, `Chunk::new`), and only reachable through it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Memory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("bytes", &self.bytes).field("heap", &self.heap).finish()
    }
}

/// Where the chunks of a device are at home. Its frames go back to it when they are recycled or dropped, wherever that
/// happens and on whichever thread.
///
/// ```
/// use lull_nic::frame::{Chunk, Origin};
/// use std::sync::{Arc, Mutex};
///
/// let free = Arc::new(Mutex::new(vec![Chunk::allocate(9216)]));
/// let home = free.clone();
/// let origin = Origin::new(move |chunk| home.lock().unwrap().push(chunk));
///
/// let frame = free.lock().unwrap().pop().expect("a chunk").into_frame(&origin);
/// std::thread::spawn(move || drop(frame)).join().unwrap();
/// assert_eq!(free.lock().unwrap().len(), 1);
/// ```
pub struct Origin {
    take_back: Box<dyn Fn(Chunk) + Send + Sync>,
    bounded: bool,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Origin")
    }
}

impl Origin {
    /// A home. `take_back` is called with every chunk that comes back, by the thread that let go of the frame: it must
    /// not block, and must not wait for a lock under which frames are dropped.
    pub fn new(take_back: impl Fn(Chunk) + Send + Sync + 'static) -> Arc<Origin> {
        Arc::new(Origin { take_back: Box::new(take_back), bounded: false })
    }

    /// The home of a fixed number of chunks, without which its device receives nothing ([`Frame::is_bounded`]).
    pub fn bounded(take_back: impl Fn(Chunk) + Send + Sync + 'static) -> Arc<Origin> {
        Arc::new(Origin { take_back: Box::new(take_back), bounded: true })
    }
}

/// A frame's memory (and its handle) while no frame is in it: what a device keeps on its free list. To make a frame of
/// it, or to take it back, allocates nothing.
pub struct Chunk(Box<Buffer>);

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Chunk").field(&self.0.memory).finish()
    }
}

impl Chunk {
    /// A chunk of a device's own memory: part of a UMEM, of a guest's memory.
    ///
    /// # Safety
    /// `memory` is initialised, valid for reads and writes by any thread, and used by nobody else, until the chunk and
    /// every frame made of it are gone. A device that shares it with a kernel or a guest lets that touch it only
    /// between [`Origin`]'s taking it back, or the frame's transmission, and [`Chunk::into_frame`].
    pub unsafe fn new(memory: NonNull<[u8]>) -> Chunk {
        Chunk::of(Memory { start: memory.cast(), bytes: memory.len(), heap: false })
    }

    /// A chunk of `bytes` bytes on the heap, for a device that wants buffers of its own size back.
    pub fn allocate(bytes: usize) -> Chunk {
        Chunk::of(Memory::allocate(bytes))
    }

    fn of(memory: Memory) -> Chunk {
        Chunk(Box::new(Buffer::new(memory, false)))
    }

    /// The whole memory: by its address a device knows which of its chunks this is.
    pub fn memory(&self) -> &[u8] {
        &self.0.memory
    }

    /// An empty frame over the chunk, with the standard headroom as far as the chunk has it. Dropped or recycled, it
    /// goes back to `origin`.
    pub fn into_frame(self, origin: &Arc<Origin>) -> Frame {
        let mut buffer = self.0;
        buffer.reset();
        buffer.head = HEADROOM_BYTES.min(buffer.memory.len()) as u32;
        buffer.origin = Some(origin.clone());
        Frame(ManuallyDrop::new(buffer))
    }
}

impl Frame {
    /// Whether its memory is one of a fixed number of chunks of a device. Whoever keeps such a frame for long copies
    /// it, so that the device goes on receiving.
    #[inline]
    pub fn is_bounded(&self) -> bool {
        self.0.origin.as_ref().is_some_and(|origin| origin.bounded)
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a frame that is being dropped is not used any more.
        let mut buffer = unsafe { ManuallyDrop::take(&mut self.0) };
        // One segment after the other, each of which has a home of its own: a chain may be longer than a stack is deep.
        let mut rest = buffer.next.take();
        while let Some(mut segment) = rest {
            rest = segment.set_next(None);
        }
        if buffer.origin.is_some() {
            go_home(buffer);
        }
    }
}

#[cold]
fn go_home(mut buffer: Box<Buffer>) {
    if let Some(origin) = buffer.origin.take() {
        (origin.take_back)(Chunk(buffer));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::frame::FramePool;

    type Home = Arc<Mutex<Vec<Chunk>>>;

    fn home() -> (Home, Arc<Origin>) {
        let home = Home::default();
        let kept = home.clone();
        (home, Origin::new(move |chunk| kept.lock().unwrap().push(chunk)))
    }

    #[test]
    fn recycled_and_dropped_frames_go_home_from_any_thread() {
        let (home, origin) = home();
        let mut memory = vec![0u8; 3 * 256].into_boxed_slice();
        for part in memory.chunks_exact_mut(256) {
            // SAFETY: a part of its own of a vector that outlives what is made of it.
            let mut frame = unsafe { Chunk::new(NonNull::from(part)) }.into_frame(&origin);
            frame.set_len(3);
            frame.data_mut().copy_from_slice(b"abc");
            home.lock().unwrap().push(Chunk::allocate(0));
            let other = std::thread::spawn(move || {
                // Recycling and dropping are the same to a pool of ordinary frames.
                let mut pool = FramePool::new(8);
                pool.recycle(frame);
                pool.alloc().capacity()
            });
            assert_eq!(other.join().unwrap(), crate::frame::FRAME_BYTES, "the pool did not keep it");
            let chunk = home.lock().unwrap().pop().expect("it came back");
            assert_eq!(chunk.memory()[HEADROOM_BYTES..HEADROOM_BYTES + 3], *b"abc");
            assert_eq!(home.lock().unwrap().drain(..).count(), 1);
        }
        drop(memory);
    }

    #[test]
    fn each_segment_of_a_chain_goes_to_its_own_home() {
        let (first, second) = (home(), home());
        let mut chain = Chunk::allocate(512).into_frame(&first.1);
        let mut middle = Frame::copy_from(b"of the heap");
        middle.set_next(Some(Chunk::allocate(512).into_frame(&second.1)));
        chain.set_next(Some(middle));
        drop(chain);
        assert_eq!((first.0.lock().unwrap().len(), second.0.lock().unwrap().len()), (1, 1));
        let again = first.0.lock().unwrap().pop().unwrap().into_frame(&first.1);
        assert!(again.next().is_none() && again.is_empty() && again.headroom() == HEADROOM_BYTES);
    }

    #[test]
    fn an_origin_lives_as_long_as_its_frames() {
        let (home, origin) = home();
        let frame = Chunk::allocate(64).into_frame(&origin);
        let copy = frame.clone();
        drop(origin);
        drop(copy);
        assert!(home.lock().unwrap().is_empty(), "a copy is on the heap");
        drop(frame);
        assert_eq!(home.lock().unwrap().len(), 1);
    }
}
