//! A child of `fork` beside an engine that runs.

mod world;

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

use libc::c_int;
use lull_net::UdpSocket;
use lull_net::lull_nic::own;
use lull_posix::poll::lulls_fds;
use lull_posix::socket::{Receive, Room, Send};
use lull_posix::{Errno, address, files, fork, is_engaged, is_lull, socket, takes_data};
use world::*;

/// A child has what every test of the process has open: with two at once each would wait for the other's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As a server's child that saves its data: it closes what it does not need, and ends.
#[test]
fn a_child_that_closes_its_sockets_says_nothing_to_the_peers() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let (listening, at) = listener();
    // SAFETY: the child makes calls that need no lock, and ends without running anything of its parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_husk = fork::is_husk() && !is_engaged();
        let closed = files::close(fd).is_ok() && files::close(listening).is_ok();
        // SAFETY: as above.
        unsafe { libc::_exit(if is_husk && closed { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    peer.write_all(b"still").unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"still");
    send(fd, b"here", 0).unwrap();
    let mut got = [0; 4];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"here");
    drop(lull_net::TcpStream::connect(peers(), at).unwrap());
    close(fd);
    close(listening);
}

/// What the kernel's call says of a number that the child has asked about, as a program's would.
fn kernels_read(fd: c_int, wanted: usize) -> Option<Vec<u8>> {
    if is_lull(fd) {
        return None;
    }
    let (mut got, mut count) = (vec![0_u8; wanted], 0);
    while count < wanted {
        // SAFETY: room for what is left.
        let more = unsafe { libc::read(fd, got.as_mut_ptr().add(count).cast(), wanted - count) };
        if more <= 0 {
            break;
        }
        count += more as usize;
    }
    got.truncate(count);
    Some(got)
}

fn kernels_write(fd: c_int, mut data: &[u8]) -> bool {
    while !is_lull(fd) && !data.is_empty() {
        // SAFETY: bytes that outlive the call.
        let count = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
        if count <= 0 {
            return false;
        }
        data = &data[count as usize..];
    }
    data.is_empty()
}

/// As a server that forks a child for each connection: the parent closes its number at once.
#[test]
fn a_child_serves_a_connection_that_its_parent_has_closed() {
    let _alone = alone();
    const BYTES: usize = 3_000_000;
    let (fd, mut peer) = connected();
    let at = |name: Option<lull_posix::Result<address::Bytes>>| address::parse(&name?.ok()?);
    let (local, remote) = (at(socket::getsockname(fd)), at(socket::getpeername(fd)));
    let child = in_a_child(|| {
        let names = (socket::is_named(fd), at(socket::getsockname(fd)), at(socket::getpeername(fd)));
        let mut tcp = [0; 4];
        let domain = socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut tcp);
        let set = socket::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1_i32.to_ne_bytes());
        let is_tcp = domain == Some(Ok(4)) && i32::from_ne_bytes(tcp) == libc::IPPROTO_TCP && set.is_ok();
        let heard = kernels_read(fd, 4) == Some(b"ping".to_vec());
        let told = kernels_write(fd, &vec![7; BYTES]);
        names == (true, local, remote) && is_tcp && heard && told && kernels_read(fd, 1) == Some(Vec::new())
    });
    close(fd);
    peer.write_all(b"ping").unwrap();
    let mut got = vec![0; BYTES];
    peer.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 7));
    peer.shutdown(lull_net::Shutdown::Write).unwrap();
    assert_eq!(peer.read(&mut got).unwrap(), 0, "the child's end is the connection's");
    ended_well(child);
}

/// By it a server tells whether anybody waits for its answer (puma).
#[test]
fn a_child_is_told_the_state_of_a_connection_that_is_passed_on_to_it() {
    const ESTABLISHED: u8 = 1;
    const CLOSE_WAIT: u8 = 8;
    let _alone = alone();
    let (fd, mut peer) = connected();
    let child = in_a_child(|| {
        let is_in = |state: u8| {
            let mut info = [0; 1];
            let told = socket::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info);
            told == Some(Ok(1)) && info == [state]
        };
        let is_open = !is_lull(fd) && is_in(ESTABLISHED) && kernels_write(fd, b"open");
        is_open && kernels_read(fd, 1) == Some(Vec::new()) && is_in(CLOSE_WAIT) && kernels_write(fd, b"late")
    });
    close(fd);
    let mut got = [0; 4];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"open");
    peer.shutdown(lull_net::Shutdown::Write).unwrap();
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"late");
    ended_well(child);
}

/// A child that has used a connection closes it, and ends; its parent goes on with it.
#[test]
fn a_connection_goes_on_in_the_parent_after_a_child_has_used_and_closed_it() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let child = in_a_child(|| kernels_write(fd, b"child") && files::close(fd).is_ok());
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"child");
    ended_well(child);
    peer.set_nonblocking(true).unwrap();
    // What the relay has to say of the child's end it says before its threads end.
    until_no_thread_is_called(&["lull-relay"]);
    assert_eq!(peer.read(&mut got).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it is the parent's still");
    peer.set_nonblocking(false).unwrap();
    send(fd, b"stays", 0).unwrap();
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"stays");
    close(fd);
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}

/// Returns when this process has no thread any more whose name begins so.
fn until_no_thread_is_called(names: &[&str]) {
    let is_called = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default();
        names.iter().any(|called| name.starts_with(called))
    };
    while std::fs::read_dir("/proc/self/task").unwrap().any(is_called) {
        std::thread::yield_now();
    }
}

/// As `inetd`: the child puts the connection under a number of its choice, and what uses it there knows nothing of lull.
#[test]
fn a_connection_is_duplicated_in_a_child_and_outlives_its_first_number() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let to = files::duplicate(0, 100, true).unwrap();
    let child = in_a_child(|| {
        let moved = files::duplicate_to(fd, to, 0) == Ok(to) && files::close(fd).is_ok();
        // The numbers of a grandchild are the child's, the relay's among them.
        // SAFETY: as `in_a_child`.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            let echoed = kernels_read(to, 5).is_some_and(|got| kernels_write(to, &got));
            // SAFETY: as above.
            unsafe { libc::_exit(if echoed { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: the child's number, and room for its status.
        moved && unsafe { libc::waitpid(grandchild, &raw mut status, 0) } == grandchild && status == 0
    });
    close(fd);
    close(to);
    peer.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    assert_eq!(peer.read(&mut got).unwrap(), 0);
    ended_well(child);
}

/// The grandchild has the channel, too, and the child's silence about what it never used ends nothing.
#[test]
fn a_grandchild_uses_what_its_parent_closed_unused() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let (closed, closes) = std::io::pipe().unwrap();
    let child = in_a_child(|| {
        // SAFETY: as `in_a_child`.
        let grandchild = unsafe { libc::fork() };
        if grandchild == 0 {
            let is_closed = kernels_read(closed.as_raw_fd(), 1).is_some();
            let answered = is_closed && kernels_read(fd, 5).is_some_and(|got| kernels_write(fd, &got));
            // SAFETY: as above.
            unsafe { libc::_exit(if answered { 0 } else { 1 }) };
        }
        grandchild > 0 && files::close(fd).is_ok() && kernels_write(closes.as_raw_fd(), b"x")
    });
    close(fd);
    ended_well(child);
    peer.write_all(b"there").unwrap();
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"there");
    assert_eq!(peer.read(&mut got).unwrap(), 0);
}

/// The end of a child that never used a connection ends its hold on it, and so does closing the number.
#[test]
fn a_connection_ends_when_neither_parent_nor_child_has_it() {
    let _alone = alone();
    for closes in [false, true] {
        let (fd, mut peer) = connected();
        let mut ends = [0; 2];
        // SAFETY: room for two numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let child = in_a_child(|| {
            // SAFETY: the child's copy of a number; reading ends when the parent has closed its own.
            unsafe { libc::close(ends[1]) };
            let closed = !closes || files::close(fd).is_ok();
            let mut byte = 0_u8;
            // SAFETY: room for a byte.
            closed && unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) } == 0
        });
        close(fd);
        // SAFETY: numbers of this test's.
        let let_go = || unsafe { libc::close(ends[1]) };
        if closes {
            // The child lives on, and does not have it any more.
            assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
            let_go();
        } else {
            peer.set_nonblocking(true).unwrap();
            let error = peer.read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the child has it");
            peer.set_nonblocking(false).unwrap();
            let_go();
            assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
        }
        ended_well(child);
        // SAFETY: as above.
        unsafe { libc::close(ends[0]) };
    }
}

/// A thread of its parent's was in a call on the connection as the child was made, and the connection has two numbers.
#[test]
fn a_child_that_has_closed_every_number_of_a_connection_does_not_have_it_any_more() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let other = files::duplicate(fd, 0, true).unwrap();
    let reader = asleep(move || recv(fd, 0));
    let (mut has_closed, closes) = std::io::pipe().unwrap();
    let (go_on, mut ends) = std::io::pipe().unwrap();
    let child = in_a_child(|| {
        let one = files::close(fd).is_ok() && kernels_write(closes.as_raw_fd(), b"x");
        let both = one && kernels_read(go_on.as_raw_fd(), 1).is_some() && files::close(other).is_ok();
        both && kernels_read(go_on.as_raw_fd(), 1) == Some(vec![2])
    });
    peer.write_all(b"last").unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), b"last");
    has_closed.read_exact(&mut [0]).unwrap();
    close(fd);
    close(other);
    peer.set_nonblocking(true).unwrap();
    assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the child has it still");
    ends.write_all(&[1]).unwrap();
    until("the end of the connection", || matches!(peer.read(&mut [0; 1]), Ok(0)));
    ends.write_all(&[2]).unwrap();
    ended_well(child);
}

/// A number that the child closed past the library, and that stands for a file of its own by now, is not the connection's.
#[test]
fn a_number_that_was_closed_unseen_is_left_alone() {
    let _alone = alone();
    let (fd, mut peer) = connected();
    let child = in_a_child(|| {
        // SAFETY: the number is the child's copy, which this closes; the path ends with a null.
        let again = unsafe { libc::dup3(libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY), fd, 0) == fd };
        again && kernels_read(fd, 3) == Some(vec![0; 3])
    });
    peer.write_all(b"mine").unwrap();
    assert_eq!(recv(fd, 0).unwrap(), b"mine");
    close(fd);
    ended_well(child);
}

/// A UDP socket of the program's on lull's address or a wildcard, and a peer of it.
fn datagrams(ip: &str) -> (c_int, SocketAddr, UdpSocket) {
    let fd = udp();
    socket::bind(fd, &bytes(&format!("{ip}:0"))).unwrap();
    let peer = UdpSocket::bind(peers(), SocketAddr::new(PEER.parse().unwrap(), 0)).unwrap();
    peer.set_read_timeout(Some(LOST)).unwrap();
    (fd, SocketAddr::new(OWN.parse().unwrap(), name(fd).port()), peer)
}

/// As the preload library sends it.
fn send_to(fd: c_int, data: &[u8], to: SocketAddr) -> Result<usize, Errno> {
    let to = bytes(&to.to_string());
    // SAFETY: an address, and its length.
    assert!(unsafe { socket::goes_by_lull(fd, to.as_ptr().cast(), to.len() as u32, 0) }?);
    socket::send_message(fd, &[IoSlice::new(data)], &to, &[], Send::default())
}

/// As the preload library receives it.
fn receive(fd: c_int, flags: c_int) -> Result<(Vec<u8>, Option<SocketAddr>), Errno> {
    assert!(takes_data(fd));
    let mut buffer = vec![0; 64];
    let room = Room { buffers: &mut [IoSliceMut::new(&mut buffer)], control: &mut [] };
    let message = socket::recv_message(fd, room, Receive { flags })?;
    buffer.truncate(message.bytes);
    Ok((buffer, address::parse(message.from.as_bytes())))
}

/// Waits as a program does that polls: the preload library asks whether that is lull's, and here it is the kernel's.
fn polled(fd: c_int, timeout: c_int) -> Option<i16> {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    let is_kernels = unsafe { lulls_fds(&raw mut polled, 1).is_none() };
    // SAFETY: as above.
    (is_kernels && unsafe { libc::poll(&raw mut polled, 1, timeout) } >= 0).then_some(polled.revents)
}

const LOST_MS: c_int = 120_000;

/// As Python's `ForkingUDPServer`: the parent reads, and the child answers by its parent's socket.
#[test]
fn a_child_answers_by_its_parents_datagram_socket_and_leaves_what_comes_to_it() {
    /// So often that whoever waits for a datagram for the child has taken one by the end.
    const ANSWERS: usize = 8;
    let _alone = alone();
    let (fd, at, peer) = datagrams(OWN);
    peer.send_to(b"question", at).unwrap();
    let (question, from) = receive(fd, 0).unwrap();
    assert_eq!((question, from), (b"question".to_vec(), Some(peer.local_addr().unwrap())));
    let (mut reads, tells) = std::io::pipe().unwrap();
    let mut tells = Some(tells);
    let child = in_a_child(|| {
        // If its parent fails, it hears the pipe's end.
        drop(tells.take());
        let mut told = || reads.read(&mut [0]).is_ok_and(|count| count == 1);
        // Names and options are no reason to be given what comes.
        let mut size = [0; 4];
        let is_named = socket::is_named(fd) && socket::getsockname(fd).is_some_and(|name| name.is_ok());
        let has_options = socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &mut size).is_some();
        let answered =
            is_named && has_options && (0..ANSWERS).all(|_| send_to(fd, b"answer", from.unwrap()) == Ok(6) && told());
        let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor. The kernel's call alone does not ask for a datagram.
        let was_given = unsafe { libc::poll(&raw mut asked, 1, 0) } != 0;
        let verdict = if was_given { "was given" } else { "nothing" };
        // It lives on until its parent has read what came meanwhile.
        let said = send_to(fd, verdict.as_bytes(), from.unwrap()) == Ok(verdict.len()) && told();
        answered && said && send_to(fd, b"again", from.unwrap()) == Ok(5)
    });
    let tells = tells.as_mut().unwrap();
    let mut buffer = [0; 64];
    for _ in 0..ANSWERS {
        assert_eq!(peer.recv_from(&mut buffer).unwrap(), (6, at));
        peer.send_to(b"more", at).unwrap();
        tells.write_all(b"!").unwrap();
    }
    let (bytes, _) = peer.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"nothing", "the child has not asked for it");
    for _ in 0..ANSWERS {
        assert_eq!(receive(fd, 0).unwrap().0, b"more");
    }
    tells.write_all(b"!").unwrap();
    assert_eq!(peer.recv_from(&mut buffer).unwrap(), (5, at));
    ended_well(child);
    close(fd);
}

/// As `socat UDP-LISTEN,fork`: the parent leaves the socket to its child, which waits for what comes.
#[test]
fn a_child_waits_for_and_answers_what_comes_to_a_socket_that_its_parent_has_closed() {
    let _alone = alone();
    for (ip, is_connected) in [(OWN, false), (OWN, true), ("0.0.0.0", false)] {
        let (fd, at, peer) = datagrams(ip);
        let peer_at = peer.local_addr().unwrap();
        if is_connected {
            socket::connect(fd, &bytes(&peer_at.to_string())).unwrap();
        }
        let child = in_a_child(|| {
            let own = socket::getsockname(fd).map(|name| name.is_ok_and(|name| address::parse(&name).is_some()));
            let mut kind = [0; 4];
            let told = polled(fd, 0) == Some(0) && {
                let told = socket::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, &mut kind);
                told == Some(Ok(4)) && i32::from_ne_bytes(kind) == libc::SOCK_DGRAM
            };
            let has_peer = socket::getpeername(fd).is_some_and(|name| name.is_ok());
            let mut well = told && has_peer == is_connected && own != Some(false);
            well &= send_to(fd, b"ready", peer_at) == Ok(5);
            for _ in 0..3 {
                well &= polled(fd, LOST_MS) == Some(libc::POLLIN);
                let peeked = receive(fd, libc::MSG_PEEK);
                let got = receive(fd, 0);
                well &= peeked == got && got.as_ref().is_ok_and(|(_, from)| *from == Some(peer_at));
                let Ok((data, Some(from))) = got else { return false };
                well &= send_to(fd, &data, from) == Ok(data.len());
            }
            well && receive(fd, libc::MSG_DONTWAIT) == Err(WOULD_BLOCK)
        });
        close(fd);
        let mut buffer = [0; 64];
        assert_eq!(peer.recv_from(&mut buffer).unwrap(), (5, at));
        // Two at once: the second waits in the parent.
        for batch in [&[&b"one"[..]][..], &[b"two", b"four"]] {
            batch.iter().for_each(|data| assert_eq!(peer.send_to(data, at).unwrap(), data.len()));
            for data in batch {
                let (count, from) = peer.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..count], from), (*data, at));
            }
        }
        ended_well(child);
    }
}

fn peer_of(fd: c_int) -> Option<SocketAddr> {
    socket::getpeername(fd)?.ok().and_then(|name| address::parse(&name))
}

/// As `connect` of the preload library, with room for any address.
fn connect_to(fd: c_int, to: SocketAddr) -> Result<(), Errno> {
    let mut to = bytes(&to.to_string());
    to.resize(size_of::<libc::sockaddr_storage>(), 0);
    assert!(socket::connects(fd, &to));
    socket::connect(fd, &to)
}

/// As `socat UDP-LISTEN,fork`: the child gives the socket that it inherits a peer, which its parent has as well.
#[test]
fn a_child_connects_its_parents_datagram_socket_and_takes_the_peer_away_again() {
    let _alone = alone();
    for ip in [OWN, "0.0.0.0"] {
        let (fd, at, peer) = datagrams(ip);
        let (_, _, stranger) = datagrams(ip);
        let peer_at = peer.local_addr().unwrap();
        let (mut reads, mut tells) = std::io::pipe().unwrap();
        let child = in_a_child(|| {
            let connected = connect_to(fd, peer_at);
            let names = (socket::getsockname(fd).and_then(|name| address::parse(&name.ok()?)), peer_of(fd));
            let sent = socket::send(fd, &[IoSlice::new(b"hello")], Send::default());
            let heard = receive(fd, 0);
            let told = reads.read(&mut [0]).is_ok_and(|count| count == 1);
            let nobody = bytes("0.0.0.0:0").iter().map(|_| 0).collect::<Vec<u8>>();
            let taken_away = (socket::connect(fd, &nobody), peer_of(fd));
            let without = socket::send(fd, &[IoSlice::new(b"x")], Send::default());
            let well = (connected, names, sent) == (Ok(()), (Some(at), Some(peer_at)), Ok(5))
                && heard == Ok((b"heard".to_vec(), Some(peer_at)))
                && told
                && taken_away == (Ok(()), None)
                && without == Err(Errno::new(libc::EDESTADDRREQ));
            if !well {
                eprintln!("{ip}: {connected:?} {names:?} {sent:?} {heard:?} {told} {taken_away:?} {without:?}");
            }
            well
        });
        let mut buffer = [0; 64];
        assert_eq!(peer.recv_from(&mut buffer).unwrap(), (5, at));
        stranger.send_to(b"other", at).unwrap();
        peer.send_to(b"heard", at).unwrap();
        assert_eq!(peer_of(fd), Some(peer_at));
        tells.write_all(b"!").unwrap();
        ended_well(child);
        close(fd);
    }
}

/// By which programs ask for their own address.
#[test]
fn a_child_sends_to_port_0_of_its_parents_peer_as_the_parent_does() {
    let _alone = alone();
    for ip in [OWN, "0.0.0.0"] {
        let (fd, _, peer) = datagrams(ip);
        connect_to(fd, SocketAddr::new(peer.local_addr().unwrap().ip(), 0)).unwrap();
        let child = in_a_child(|| {
            let sent = socket::send(fd, &[IoSlice::new(b"x")], Send::default());
            if (sent, peer_of(fd)) != (Ok(1), None) {
                eprintln!("{ip}: {sent:?} to {:?}", peer_of(fd));
            }
            (sent, peer_of(fd)) == (Ok(1), None)
        });
        ended_well(child);
        close(fd);
    }
}

/// A socket in both worlds is the kernel's alone once the child has given it a peer there.
#[test]
fn a_child_connects_its_parents_datagram_socket_to_a_peer_of_the_kernels() {
    let _alone = alone();
    let (fd, at, _peer) = datagrams("0.0.0.0");
    let kernels = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    kernels.set_read_timeout(Some(LOST)).unwrap();
    let kernels_at = kernels.local_addr().unwrap();
    let child = in_a_child(|| {
        let connected = connect_to(fd, kernels_at);
        let names = (socket::getsockname(fd).and_then(|name| address::parse(&name.ok()?)), peer_of(fd));
        let sent = socket::send(fd, &[IoSlice::new(b"hello")], Send::default());
        let heard = receive(fd, 0);
        let local = SocketAddr::new(kernels_at.ip(), at.port());
        let well = (connected, names, sent) == (Ok(()), (Some(local), Some(kernels_at)), Ok(5))
            && heard == Ok((b"heard".to_vec(), Some(kernels_at)));
        if !well {
            eprintln!("{connected:?} {names:?} {sent:?} {heard:?}");
        }
        well
    });
    close(fd);
    let mut buffer = [0; 64];
    let (count, from) = kernels.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..count], from.port()), (&b"hello"[..], at.port()));
    kernels.send_to(b"heard", from).unwrap();
    ended_well(child);
}

/// Who waits in the child is told that nothing is to come any more, which the kernel's socket would be asked for without end.
#[test]
fn a_child_that_waits_for_a_peer_of_the_kernels_is_told_of_the_end_of_reading() {
    let _alone = alone();
    let (fd, at, _peer) = datagrams("0.0.0.0");
    let kernels = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    kernels.set_read_timeout(Some(LOST)).unwrap();
    let kernels_at = kernels.local_addr().unwrap();
    let child = in_a_child(|| {
        let connected = connect_to(fd, kernels_at);
        let sent = socket::send(fd, &[IoSlice::new(b"hello")], Send::default());
        // What has come is read first.
        let heard = [(); 2].map(|()| (polled(fd, LOST_MS), receive(fd, 0)));
        let [first, end] = &heard;
        let well = (connected, sent) == (Ok(()), Ok(5))
            && *first == (Some(libc::POLLIN), Ok((b"heard".to_vec(), Some(kernels_at))))
            && *end == (Some(libc::POLLIN), Ok((Vec::new(), None)));
        if !well {
            eprintln!("{connected:?} {sent:?} {heard:?}");
        }
        well
    });
    let mut buffer = [0; 64];
    let (count, from) = kernels.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..count], from.port()), (&b"hello"[..], at.port()));
    kernels.send_to(b"heard", from).unwrap();
    socket::shutdown(fd, libc::SHUT_RD).unwrap();
    ended_well(child);
    close(fd);
}

/// No number from this one on is given out in this process. Returns the one before.
fn limit_numbers(first_above: u64) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the limits.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) }, 0);
    let changed = libc::rlimit { rlim_cur: first_above, ..limits };
    // SAFETY: limits that outlive the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const changed) }, 0);
    limits.rlim_cur
}

fn is_open(number: RawFd) -> bool {
    // SAFETY: numbers only.
    unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

/// Two descriptors come along where a child claims a UDP socket. A process without a number for the second one cannot pass it on, and
/// serves its child all the same.
#[test]
fn a_child_reads_a_socket_once_its_parent_has_numbers_for_it() {
    let _alone = alone();
    // What another test's child had is closed by threads that hear of its end later; each would be a number for it.
    until_no_thread_is_called(&["lull-heirs", "lull-relay"]);
    let (fd, at, peer) = datagrams(OWN);
    peer.send_to(b"question", at).unwrap();
    let (go_on, mut goes_on) = std::io::pipe().unwrap();
    let (mut has_tried, tries) = std::io::pipe().unwrap();
    let child = in_a_child(|| {
        let may_go_on = || kernels_read(go_on.as_raw_fd(), 1).is_some_and(|got| got.len() == 1);
        let tried = may_go_on() && !takes_data(fd) && kernels_write(tries.as_raw_fd(), b"x");
        tried && may_go_on() && takes_data(fd) && receive(fd, 0).is_ok_and(|(data, _)| data == b"question")
    });
    // Its end is heard, too.
    drop(tries);
    let last = std::fs::File::open("/dev/null").unwrap();
    let last_number = last.as_raw_fd();
    let former = limit_numbers(last_number as u64 + 1);
    drop(last);
    goes_on.write_all(b"x").unwrap();
    let tried = has_tried.read(&mut [0]);
    // What lull had above the limit is closed by now. Where `close` is the C library's own it tells nobody, and a child would close what
    // the program has there next.
    (last_number + 1..last_number + 9).filter(|number| !is_open(*number)).for_each(own::unmark);
    limit_numbers(former);
    assert_eq!(tried.unwrap(), 1, "there was a number for it");
    goes_on.write_all(b"x").unwrap();
    ended_well(child);
    close(fd);
}

/// What a child could not send it is told by its next read, and a socket that nobody has is closed.
#[test]
fn a_child_is_told_what_could_not_be_sent_and_its_end_closes_the_socket() {
    let _alone = alone();
    let (fd, at, peer) = datagrams(OWN);
    let how = libc::IP_PMTUDISC_DO.to_ne_bytes();
    socket::setsockopt(fd, libc::SOL_IP, libc::IP_MTU_DISCOVER, &how).unwrap();
    let (to, error) = (peer.local_addr().unwrap(), |number| Err(Errno::new(number)));
    let child = in_a_child(|| {
        let sent = [send_to(fd, &[0; 3000], to), send_to(fd, &[0; 65_528], to)];
        let nobody = socket::send(fd, &[IoSlice::new(b"x")], Send::default());
        let told = (receive(fd, 0), receive(fd, libc::MSG_DONTWAIT));
        let well = sent == [Ok(3000), error(libc::EMSGSIZE)]
            && nobody == error(libc::EDESTADDRREQ)
            && told == (Err(Errno::new(libc::EMSGSIZE)), Err(WOULD_BLOCK));
        if !well {
            eprintln!("{sent:?} {nobody:?} {told:?}");
        }
        well
    });
    close(fd);
    ended_well(child);
    // As soon as the relay has heard of it the port is free.
    let begin = std::time::Instant::now();
    while let Err(error) = UdpSocket::bind(own(), at) {
        assert!(begin.elapsed() < LOST, "{error}");
        std::thread::yield_now();
    }
}

/// Whether this process has a socket open under any number.
fn has_open(inode: u64) -> bool {
    let is_it = |number: RawFd| {
        // SAFETY: plain data, for which zeroes are a value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: room for what the kernel writes.
        unsafe { libc::fstat(number, &raw mut stat) == 0 && stat.st_ino == inode }
    };
    (0..1 << 17).any(is_it)
}

fn inode(of: &impl AsRawFd) -> u64 {
    // SAFETY: plain data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for what the kernel writes.
    assert_eq!(unsafe { libc::fstat(of.as_raw_fd(), &raw mut stat) }, 0);
    stat.st_ino
}

fn others_turn() {
    (0..1000).for_each(|_| std::thread::yield_now());
}

/// Who has the other end hears of the end of the process that made it, or closed it, and not only of its child's.
#[test]
fn a_child_has_no_socket_that_another_thread_is_just_making_for_lull_or_closing() {
    let _alone = alone();
    let (fd, _peer) = connected();
    let begun = Barrier::new(2);
    let making = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            own::made_for_no_child(|| {
                let pair = UnixStream::pair().unwrap();
                let pair: (OwnedFd, OwnedFd) = (pair.0.into(), pair.1.into());
                making.lock().unwrap().extend([inode(&pair.0), inode(&pair.1)]);
                begun.wait();
                // A fork that does not wait is over by now.
                others_turn();
                std::io::Result::Ok(pair)
            })
            .unwrap()
        });
        begun.wait();
        let inodes = making.lock().unwrap().clone();
        let child = in_a_child(|| !inodes.iter().any(|inode| has_open(*inode)));
        ended_well(child);
        let (one, other) = made.join().unwrap();
        let (inodes, number) = ([inode(&one), inode(&other)], one.into_raw_fd());
        let begun = &begun;
        scope.spawn(move || {
            own::closed(number, || {
                begun.wait();
                others_turn();
                // SAFETY: the number has no other owner.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            });
        });
        begun.wait();
        let child = in_a_child(|| !inodes.iter().any(|inode| has_open(*inode)));
        ended_well(child);
        drop(other);
    });
    close(fd);
}

/// As a program that forks a worker just while another of its threads starts a program: the start does not wait for the worker's end.
#[test]
fn who_waits_for_its_child_as_vfork_does_waits_for_no_other_threads() {
    /// In seconds: the worker ends before that, unless the other thread waits for it.
    const LOST: u32 = 60;
    static MEET: [Barrier; 2] = [const { Barrier::new(2) }; 2];
    thread_local! {
        static MEETS: Cell<bool> = const { Cell::new(false) };
    }
    extern "C" fn before() {
        if MEETS.get() {
            for meet in &MEET {
                meet.wait();
            }
        }
    }
    let _alone = alone();
    let (fd, _peer) = connected();
    // SAFETY: the handler stays for as long as the process.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), None, None) }, 0);
    let (mut go, mut goes) = UnixStream::pair().unwrap();
    let (worker, child) = std::thread::scope(|scope| {
        let starts = scope.spawn(|| {
            MEETS.set(true);
            let child = fork::that_waits();
            if child == 0 {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            child
        });
        MEET[0].wait();
        // The C library's own `fork` may wait for the other one.
        // SAFETY: numbers only.
        let forks = || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        let worker = fork::by_number(false, forks) as libc::pid_t;
        if worker == 0 {
            // SAFETY: numbers, and the end of the child.
            unsafe {
                libc::alarm(LOST);
                let heard = goes.read_exact(&mut [0; 1]).is_ok();
                libc::_exit(i32::from(!heard));
            }
        }
        MEET[1].wait();
        (worker, starts.join().unwrap())
    });
    go.write_all(&[1]).unwrap();
    ended_well(child);
    ended_well(worker);
    close(fd);
}

#[test]
fn a_thread_that_forks_makes_descriptors_again_and_has_its_signals_in_parent_and_child() {
    let _alone = alone();
    let (fd, _peer) = connected();
    let mask = || {
        let mut mask = [0_u64; 16];
        // SAFETY: room for a set; none is set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr().cast()) };
        mask[0]
    };
    let makes = || own::made(|| UnixStream::pair().map(|(one, other)| (one.into(), OwnedFd::from(other)))).is_ok();
    let before = mask();
    let child = in_a_child(|| mask() == before && makes() && std::thread::spawn(makes).join().unwrap());
    assert_eq!(mask(), before);
    assert!(makes() && std::thread::spawn(makes).join().unwrap());
    ended_well(child);
    close(fd);
}
