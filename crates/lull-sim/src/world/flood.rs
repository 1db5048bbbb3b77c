//! A flood of datagrams, and a hypervisor between it and a guest.

/// The machine that a flood comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SenderSpec {
    /// What a send call of one frame costs without its bytes, in nanoseconds.
    pub datagram_ns: u32,
    /// What each further frame of a datagram costs, in nanoseconds.
    pub fragment_ns: u32,
    /// What each byte costs, in picoseconds.
    pub byte_ps: u32,
    /// How many senders make progress at once at the most: its cores, less what they take from each other.
    pub cores: f64,
}

/// A flood of datagrams, and a sink for each of its flows.
#[derive(Clone, Debug, PartialEq)]
pub struct FloodSpec {
    /// Flows, each with a sender and a sink.
    pub flows: u32,
    /// Payload of a datagram, in bytes.
    pub bytes: u32,
    /// The wire's MTU, in bytes.
    pub mtu: u32,
    /// The wire, in bits per second.
    pub wire_bits_per_s: u64,
    /// The queues that the flows arrive on, in turn. Fragments carry no ports: their flows have one queue.
    pub queues: Vec<u32>,
    /// The machine that sends.
    pub sender: SenderSpec,
    /// The CPU of the sinks.
    pub sink_cpu: u16,
    /// SO_RCVBUF as the kernel counts it, in bytes.
    pub receive_buffer_bytes: u32,
    /// Memory that a packet takes in it (`truesize`), in bytes.
    pub buffer_small_bytes: u32,
    /// The additional memory of a packet that is not copied into its head, in bytes.
    pub buffer_large_bytes: u32,
    /// Packets up to this size are copied into their head, in bytes.
    pub copied_bytes: u32,
}

impl Default for FloodSpec {
    /// The defaults are 10 Gbit/s, and the buffers of Linux's virtio_net.
    fn default() -> FloodSpec {
        FloodSpec {
            flows: 1,
            bytes: 64,
            mtu: 1_500,
            wire_bits_per_s: 10_000_000_000,
            queues: vec![0],
            sender: SenderSpec::default(),
            sink_cpu: 0,
            receive_buffer_bytes: 212_992,
            buffer_small_bytes: 768,
            buffer_large_bytes: 1_536,
            copied_bytes: 114,
        }
    }
}

/// The parts of a hypervisor between its NIC and its guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelaySpec {
    /// The CPU of the thread that copies frames to the guest (vhost).
    pub cpu: u16,
    /// The guest's queue; all others are the hypervisor's.
    pub guest_queue: u32,
    /// Frames that the guest's device holds in the hypervisor (tun).
    pub queue_frames: u32,
    /// What it costs to receive a frame and hand it to that device, in nanoseconds.
    pub forward_ns: u32,
    /// What it costs to copy a frame to the guest, without its bytes, in nanoseconds.
    pub copy_ns: u32,
    /// How long a CPU holds the lock of the device's queue, with the lock's way between caches, in nanoseconds.
    pub lock_ns: u32,
    /// What it costs the thread to interrupt the guest, in nanoseconds.
    pub signal_ns: u32,
}

/// A CPU that is a thread of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuSpec {
    /// The guest's CPU.
    pub guest_cpu: u16,
    /// The hypervisor's CPU that its thread runs on.
    pub host_cpu: u16,
    /// The hypervisor's CPU that interrupts it, and wakes its thread.
    pub interrupted_by: u16,
    /// What it costs to leave the guest and come back, in nanoseconds.
    pub exit_ns: u32,
}
