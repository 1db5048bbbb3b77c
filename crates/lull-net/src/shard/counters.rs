//! What became of frames, by reason.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one shard since it was made.
        ///
        /// Every received frame and every looped one is counted once: in `tcp_syns`, `syncookies_sent`, `tcp_segments`,
        /// `fragments_kept`, `udp_datagrams`, `icmp_echo_replies`, `icmp_errors_taken`, `neighbour_messages` or `passed_on` if it was of use,
        /// else in one of those whose names begin with
        /// `drop_` (only `drop_unreachable` counts packets of ours).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct StackCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl StackCounters {
            /// Name and value of each, in the order of the fields.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Frames given to the stack.
    rx_frames,
    /// Frames handed to the transmit ring.
    tx_frames,
    /// Frames lost because the transmit ring was full (replies of the moment only; sockets wait instead).
    tx_dropped,
    /// Frames to own addresses, which came back in without the device.
    looped_frames,
    /// SYNs that began a handshake.
    tcp_syns,
    /// SYNs answered by a cookie (Linux: SyncookiesSent).
    syncookies_sent,
    /// Cookies that came back and opened a connection, or found the accept queue full (SyncookiesRecv).
    syncookies_recv,
    /// Acknowledgements that were no cookie of ours while cookies were out (SyncookiesFailed).
    syncookies_failed,
    /// SYNs that found the queue of half-open connections full and got a cookie (TCPReqQFullDoCookies).
    tcp_req_q_full_do_cookies,
    /// SYNs that found it full and got none (TCPReqQFullDrop).
    tcp_req_q_full_drop,
    /// SYNs and last acknowledgements of handshakes that found the accept queue full (ListenOverflows).
    listen_overflows,
    /// Half-open connections that a reset or a SYN inside the window ended (EmbryonicRsts).
    embryonic_rsts,
    /// TCP segments given to a connection.
    tcp_segments,
    /// IP fragments kept for the others of their packet. What the last one makes whole is counted as that packet.
    fragments_kept,
    /// Packets of several fragments that became whole (IpReasmOKs).
    packets_reassembled,
    /// Packets of which fragments came and that did not become whole: not in time, for want of memory, or because the fragments
    /// contradict each other (IpReasmFails).
    reassembly_failures,
    /// UDP datagrams queued for a socket.
    udp_datagrams,
    /// Connections accepted by an application.
    tcp_accepted,
    /// Connections that became established.
    tcp_established,
    /// RST segments sent for segments that no connection claims.
    tcp_resets_sent,
    /// Echo requests answered.
    icmp_echo_replies,
    /// ICMP errors sent.
    icmp_errors_sent,
    /// ICMP errors that were passed to a socket.
    icmp_errors_taken,
    /// ICMP errors about segments that are not in flight (OutOfWindowIcmps).
    out_of_window_icmps,
    /// Times that a connection's segments shrank to what its path carries.
    path_mtu_reduced,
    /// ARP and neighbour discovery messages taken or answered.
    neighbour_messages,
    /// ARP and neighbour discovery requests sent.
    neighbour_requests,
    /// Connections in TIME-WAIT forgotten early to make room for another.
    time_wait_recycled,
    /// Connections in TIME-WAIT that a new SYN replaced.
    time_wait_reused,
    /// Connections given up: SYN-ACK unanswered.
    timeout_syn_received,
    /// Connections given up: SYN unanswered.
    timeout_syn_sent,
    /// Connections given up: data unacknowledged.
    timeout_user,
    /// Connections given up: keepalive probes unanswered.
    timeout_keepalive,
    /// Connections given up: closed here, peer's FIN never came.
    timeout_fin_wait_2,
    /// Segments whose older acknowledgement was brought up to date so that their data counts.
    tcp_stale_acks,
    /// Segments (SYN, reset inside the window, impossible acknowledgement) that want a challenge ACK (RFC 5961;
    /// TCPChallengeACK, TCPSYNChallenge).
    tcp_challenges,
    /// Those of them that were not answered, because one was less than half a second ago (TCPACKSkippedChallenge).
    tcp_challenges_skipped,
    /// Writes that were held back for others to leave in the same segment (compare TCPAutoCorking).
    tcp_held_back,
    /// Times a connection wanted to send, was polled and had nothing: 0 unless smoltcp errs.
    tcp_stalls,
    /// Times that a connection moved to larger buffers.
    tcp_buffers_grown,
    /// Times that it did not, because the shard's buffers are as large as they may be.
    tcp_buffers_kept_small,
    /// Bytes on their way that smoltcp was made to send once more, to nobody, for a copy: something of them may have been lost.
    tcp_copied_bytes,
    /// Frames that another shard or another process's stack was given, because nobody here had a use for them.
    passed_on,
    /// Frames cut short, or with lengths or fields that contradict each other.
    drop_malformed,
    /// Frames for another station.
    drop_not_ours,
    /// IP packets from sources that may not send here.
    drop_not_allowed,
    /// Frames of a VLAN.
    drop_vlan,
    /// Ethernet types other than IPv4, IPv6 and ARP.
    drop_ethertype,
    /// IP, TCP, UDP or ICMP checksum wrong.
    drop_checksum,
    /// Source addresses that no packet from the wire can have.
    drop_martian,
    /// IP fragments that no packet can have, that came twice, or that contradict what came before.
    drop_fragment,
    /// IPv4 source routes and IPv6 headers that ask to be refused.
    drop_ip_option,
    /// IP protocols other than TCP, UDP and ICMP.
    drop_protocol,
    /// TCP flags that no connection sends together.
    drop_tcp_flags,
    /// Resets outside the window of their connection.
    drop_tcp_reset,
    /// TCP segments that belong to no connection and no listener.
    drop_no_connection,
    /// SYNs, and last acknowledgements of handshakes, dropped: the accept queue was full.
    drop_backlog_full,
    /// SYNs dropped: too many connections in SYN-RECEIVED.
    drop_syn_backlog_full,
    /// Segments older than what came before them, by their timestamps (PAWSEstab).
    drop_paws,
    /// Segments that a half-open connection refused.
    drop_request,
    /// SYNs dropped: the connection table was full.
    drop_table_full,
    /// TCP segments that TIME-WAIT swallowed.
    drop_time_wait,
    /// UDP datagrams for a port that nobody has.
    drop_no_socket,
    /// UDP datagrams for a socket that holds as much as it may.
    drop_socket_full,
    /// ICMP messages of no use here.
    drop_icmp,
    /// ARP and neighbour discovery messages of no use here.
    drop_neighbour,
    /// Packets dropped because no neighbour answered for their next hop, or too many waited for one.
    drop_unreachable,
}
