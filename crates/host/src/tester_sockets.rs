//! Socket functions for the tester that std lacks: TCP counters, windows, packets that are never
//! fragmented, and datagrams with their arrival time and source address.
//!
//! See tcp(7), ip(7), ipv6(7), recvmmsg(2).
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::{Duration, Instant};

use measure::tcp_info::{LENGTH_MAX, TcpInfo};
use vocab::Time;

use crate::kernel::udp_counter;
use crate::packets::device::beside;
use crate::stamped_sockets::{self as system, set_option};

/// Datagrams in one system call.
const BATCH: usize = 32;
/// Room for a datagram: a jumbo frame.
const ROOM: usize = 9_300;
/// Room for what the kernel says beside it: three stamps.
const CONTROL_BYTES: usize = 128;
/// IP_PMTUDISC_PROBE and IPV6_PMTUDISC_PROBE of linux/in.h: packets are never fragmented, and path
/// MTU messages are ignored.
const PROBE: libc::c_int = 3;
/// Age above which a timestamp comes from a clock that was set meanwhile. A stream that can fill
/// [`RECEIVE_BUFFER`] leaves nothing in it for longer, and a tester ends its test with a silent
/// period of this length.
const STAMP_AGE_MAX: Duration = Duration::from_secs(5);

/// Size of the receive buffer, in bytes: on a busy host, half a second at 500 Mbit/s. The kernel
/// allocates memory only for datagrams that wait.
const RECEIVE_BUFFER: i32 = 32 << 20;
/// ... and for what waits to be sent: more of it would only move where packets are lost in this host.
const SEND_BUFFER: i32 = 8 << 20;

/// Gives the socket of probes and streams as much room as the kernel lets us.
pub fn make_room(socket: &UdpSocket) -> io::Result<()> {
    system::enlarge_buffers(socket, SEND_BUFFER)?;
    system::enlarge_receive_buffer(socket, RECEIVE_BUFFER)
}

/// Counter of the datagrams that a socket dropped for lack of room since some moment.
#[derive(Clone, Copy, Debug)]
pub struct SocketDropCounter {
    /// The kernel's counts at that moment; [`None`] where it does not tell (before Linux 4.12).
    before: Option<KernelDrops>,
}

impl SocketDropCounter {
    /// Counts from now on.
    pub fn begin(socket: &UdpSocket) -> Self {
        Self {
            before: KernelDrops::now(socket),
        }
    }

    /// Datagrams until now.
    pub fn until_now(self, socket: &UdpSocket) -> u64 {
        let both = self.before.zip(KernelDrops::now(socket));
        both.map_or(0, |(before, now)| {
            let dropped = u64::from(now.by_socket.wrapping_sub(before.by_socket));
            dropped.saturating_sub(now.damaged.saturating_sub(before.damaged))
        })
    }
}

/// Kernel counters of received datagrams that were not handed on.
#[derive(Clone, Copy, Debug)]
struct KernelDrops {
    /// Datagrams dropped by this socket, modulo 2^32: for lack of room, and those with a wrong
    /// checksum.
    by_socket: u32,
    /// Datagrams with a wrong checksum, of all sockets of the network namespace. The path damaged
    /// them, and they count as its losses; those of other sockets are included, which can only
    /// increase the path's losses.
    damaged: u64,
}

impl KernelDrops {
    fn now(socket: &UdpSocket) -> Option<Self> {
        let by_socket = system::receive_drops(socket).ok()?;
        let of_four = fs::read_to_string("/proc/thread-self/net/snmp").ok()?;
        let of_four = udp_counter(&of_four, "InCsumErrors")?;
        // A host without IPv6 has no such file.
        let of_six = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
        let mut of_six = of_six.lines().map(str::split_whitespace);
        let of_six = of_six.find_map(|mut words| match words.next() {
            Some("Udp6InCsumErrors") => words.next()?.parse::<u64>().ok(),
            _ => None,
        });
        Some(Self {
            by_socket,
            damaged: of_four + of_six.unwrap_or(0),
        })
    }
}

/// The clock of one end of a test.
#[derive(Clone, Copy, Debug)]
pub struct TesterClock {
    began: Instant,
}

impl TesterClock {
    /// A clock that begins now.
    #[expect(
        clippy::new_without_default,
        reason = "a default value must not depend on when it is made"
    )]
    #[must_use]
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
        }
    }

    /// Returns the present time.
    pub fn now(self) -> Time {
        Time::from_epoch(self.began.elapsed())
    }

    /// Reads this clock and the kernel's timestamp clock at one moment, with no pause between the
    /// readings: a pause of the host there would make a timestamp too early and every other delay
    /// too long.
    fn stamps(self) -> ClockReading {
        let (real, moment) = beside(|| system::clock_ns(system::SystemClock::Real));
        ClockReading {
            real_ns: real,
            own: Time::from_epoch(moment.saturating_duration_since(self.began)),
        }
    }
}

/// Readings of the timestamp clock and of one end's clock at the same moment.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    /// Time since 1970, by CLOCK_REALTIME.
    real_ns: i128,
    own: Time,
}

impl ClockReading {
    /// Converts a timestamp from before this pair was read. Without one, or after the clock was
    /// set, it returns the pair's own time.
    fn at(self, stamp: Option<Duration>) -> Time {
        let age = stamp
            .map(|stamp| self.real_ns - stamp.as_nanos() as i128)
            .and_then(|age| u64::try_from(age).ok())
            .map(Duration::from_nanos)
            .filter(|age| *age < STAMP_AGE_MAX);
        self.own - age.unwrap_or_default()
    }
}

/// Reads the kernel's counters of a connection.
///
/// # Errors
/// When the kernel refuses, or is older than Linux 4.19.
pub fn tcp_info(connection: &TcpStream) -> io::Result<TcpInfo> {
    let (bytes, length) = raw_tcp_info(connection)?;
    TcpInfo::parse(&bytes[..length]).ok_or_else(|| {
        io::Error::other("this kernel does not count retransmitted bytes; Linux 4.19 does")
    })
}

/// Bytes of the full IP packets that a connection sends, as its two ends and the routes at both allow.
pub fn full_packet(connection: &TcpStream, headers: u64) -> io::Result<u16> {
    /// Offsets in `struct tcp_info` of linux/tcp.h: the options with TCPI_OPT_TIMESTAMPS, and the
    /// segment size.
    const OPTIONS: usize = 5;
    const TIMESTAMPS: u8 = 1;
    const SEND_MSS: usize = 16;
    /// RFC 7323 §3.2, with the two bytes that fill it up.
    const TIMESTAMP_BYTES: u64 = 12;
    let (bytes, _) = raw_tcp_info(connection)?;
    let segment = bytes[SEND_MSS..].first_chunk().copied();
    let segment = u64::from(u32::from_ne_bytes(segment.unwrap_or_default()));
    let stamps = match bytes[OPTIONS] & TIMESTAMPS {
        0 => 0,
        _ => TIMESTAMP_BYTES,
    };
    Ok(u16::try_from(segment + stamps + headers).unwrap_or(u16::MAX))
}

fn raw_tcp_info(connection: &TcpStream) -> io::Result<([u8; LENGTH_MAX], usize)> {
    let mut bytes = [0_u8; LENGTH_MAX];
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most the length it is given, and says how much it wrote.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok((bytes, length as usize)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bounds the window that a socket offers.
pub fn clamp_window(socket: &impl AsFd, bytes: u64) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(
        socket.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_WINDOW_CLAMP,
        bytes,
    )
}

/// Makes room for `bytes` in the buffer that `name` says, beyond the system's limit where we may.
pub fn set_buffer(socket: &impl AsFd, side: SocketBuffer, bytes: u64) -> io::Result<()> {
    let (forced, ordinary) = match side {
        SocketBuffer::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        SocketBuffer::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    };
    // The kernel doubles what it is given.
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2);
    if set_option(socket.as_fd(), libc::SOL_SOCKET, forced, bytes).is_err() {
        set_option(socket.as_fd(), libc::SOL_SOCKET, ordinary, bytes)?;
    }
    Ok(())
}

/// A socket's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketBuffer {
    /// For what came in.
    Receive,
    /// Buffer for sending.
    Send,
}

/// Sends datagrams whole or not at all, whatever ICMP says of the path.
pub fn never_cut_up(socket: &UdpSocket) -> io::Result<()> {
    let descriptor = socket.as_fd();
    let six = set_option(
        descriptor,
        libc::IPPROTO_IPV6,
        libc::IPV6_MTU_DISCOVER,
        PROBE,
    );
    // A socket of one family does not know the other's option.
    set_option(descriptor, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PROBE).or(six)
}

/// Marks what a socket sends with a DSCP; zero takes an earlier mark away.
pub fn mark(socket: &impl AsFd, dscp: u8) -> io::Result<()> {
    let class = libc::c_int::from(dscp) << 2;
    let descriptor = socket.as_fd();
    let six = set_option(descriptor, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
    set_option(descriptor, libc::IPPROTO_IP, libc::IP_TOS, class).or(six)
}

/// The MTU of the route that a connected socket sends by.
pub fn route_mtu(socket: &UdpSocket) -> io::Result<u16> {
    let (level, name) = match socket.peer_addr()? {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mut mtu: libc::c_int = 0;
    let mut length = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes one integer, whose size is passed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut mtu).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(u16::try_from(mtu).unwrap_or(u16::MAX)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Control data aligned for `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct TesterControlBuffer([u8; CONTROL_BYTES]);

/// Room for datagrams that come in.
pub struct IncomingDatagrams {
    payload: Vec<u8>,
    controls: Vec<TesterControlBuffer>,
    names: Vec<libc::sockaddr_storage>,
}

impl Default for IncomingDatagrams {
    fn default() -> Self {
        Self::new()
    }
}

impl IncomingDatagrams {
    /// Room for a batch.
    pub fn new() -> Self {
        // SAFETY: all zeros is an address of no family.
        let name: libc::sockaddr_storage = unsafe { mem::zeroed() };
        Self {
            payload: vec![0; BATCH * ROOM],
            controls: vec![TesterControlBuffer([0; CONTROL_BYTES]); BATCH],
            names: vec![name; BATCH],
        }
    }

    /// Waits for a datagram up to the socket's read timeout, takes those that are there, and hands each
    /// to `each` with the moment and the address it came at; says how many there were.
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        clock: TesterClock,
        mut each: impl FnMut(Time, SocketAddr, &[u8]),
    ) -> io::Result<usize> {
        // SAFETY: both are plain data for which all zeros is a value.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let rooms = self.payload.chunks_exact_mut(ROOM);
        let beside = self.controls.iter_mut().zip(&mut self.names);
        for (((part, message), bytes), (control, name)) in
            parts.iter_mut().zip(&mut messages).zip(rooms).zip(beside)
        {
            part.iov_base = bytes.as_mut_ptr().cast();
            part.iov_len = bytes.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_name = ptr::from_mut(name).cast();
            message.msg_hdr.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as _;
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: the messages point to parts, payload, names and controls, which all live through the
        // call with the lengths they say.
        let taken = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_WAITFORONE,
                ptr::null_mut(),
            )
        };
        let Ok(taken) = usize::try_from(taken) else {
            let error = io::Error::last_os_error();
            return match is_no_datagram(&error) {
                true => Ok(0),
                false => Err(error),
            };
        };
        let stamps = clock.stamps();
        for (at, message) in messages.iter().enumerate().take(taken) {
            let Some(from) = address(&self.names[at]) else {
                continue;
            };
            let length = (message.msg_len as usize).min(ROOM);
            let bytes = &self.payload[at * ROOM..][..length];
            each(stamps.at(stamp_of(&message.msg_hdr)), from, bytes);
        }
        Ok(taken)
    }
}

/// Returns `true` if no datagram arrived, or the error is an ICMP answer to an earlier datagram.
fn is_no_datagram(error: &io::Error) -> bool {
    let is_none = matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    );
    is_none || is_icmp_error(error)
}

/// Returns `true` if the error comes from an ICMP message about an earlier datagram
/// (icmp_err_convert, icmpv6_err_convert): the port is closed, there is no route, or a firewall
/// forbids it. The datagram counts as lost; the socket is still usable.
pub fn is_icmp_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EACCES
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EPROTO
        )
    )
}

/// Returns the timestamp since the epoch of CLOCK_REALTIME.
fn stamp_of(header: &libc::msghdr) -> Option<Duration> {
    // SAFETY: the header is as recvmmsg left it, and its control data is still there; the macros stay
    // within its length, and the stamp is read with the type that the kernel documents, unaligned.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING)
            {
                let time: libc::timespec = ptr::read_unaligned(libc::CMSG_DATA(control).cast());
                return Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32));
            }
            next = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let name = ptr::from_ref(name);
    match libc::c_int::from(
        // SAFETY: the kernel filled the address in, and its family stands in every kind.
        unsafe { (*name).ss_family },
    ) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this form, and the storage holds any.
            let four = unsafe { &*name.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(four.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(four.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let six = unsafe { &*name.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(six.sin6_addr.s6_addr);
            let port = u16::from_be(six.sin6_port);
            let (flow, scope) = (six.sin6_flowinfo, six.sin6_scope_id);
            Some(std::net::SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use socket2::SockRef;

    use super::*;

    #[test]
    fn the_kernel_counts_what_was_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(&[7; 10_000]).unwrap();
        let mut all = [0; 10_000];
        receiver.read_exact(&mut all).unwrap();
        let info = tcp_info(&sender).unwrap();
        assert_eq!(info.bytes_sent.bytes(), 10_000);
        assert_eq!(tcp_info(&receiver).unwrap().bytes_received.bytes(), 10_000);
        // The loopback's packets are those of its interface.
        let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
        probe.connect(sender.peer_addr().unwrap()).unwrap();
        let full = full_packet(&sender, 40).unwrap();
        assert!(full >= 536 && full <= route_mtu(&probe).unwrap(), "{full}");
    }

    #[test]
    fn window_is_bounded_before_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        clamp_window(&listener, 20_000).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        clamp_window(&receiver, 20_000).unwrap();
        let seen = tcp_info(&sender).unwrap().peer_window.unwrap().bytes();
        // In the handshake the kernel makes whole segments of it.
        assert!(seen <= 2 * 20_000, "{seen}");
    }

    #[test]
    fn datagrams_come_with_their_moment_and_their_sender() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let clock = TesterClock::new();
        let before = clock.now();
        sender
            .send_to(b"hello", receiver.local_addr().unwrap())
            .unwrap();
        let mut seen = Vec::new();
        IncomingDatagrams::new()
            .receive(&receiver, clock, |at, from, bytes| {
                seen.push((at, from, bytes.to_vec()));
            })
            .unwrap();
        assert_eq!(seen.len(), 1);
        let (at, from, bytes) = &seen[0];
        assert!(before <= *at && *at <= clock.now());
        assert_eq!(*from, sender.local_addr().unwrap());
        assert_eq!(bytes, b"hello");
    }

    #[test]
    fn late_read_keeps_arrival_time_despite_clock_steps() {
        let second = |seconds| Time::from_epoch(Duration::from_secs(seconds));
        let stamps = ClockReading {
            real_ns: 1_000_000_000_000,
            own: second(100),
        };
        let at = |seconds| stamps.at(Some(Duration::from_secs(seconds)));
        // A full buffer at 100 Mbit/s.
        assert_eq!(at(1_000 - 4), second(96));
        assert_eq!(at(1_000 - 360), second(100));
        assert_eq!(at(1_000 + 360), second(100));
        assert_eq!(stamps.at(None), second(100));
    }

    #[test]
    fn drops_are_counted_from_the_given_moment() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        SockRef::from(&receiver)
            .set_recv_buffer_size(2_048)
            .unwrap();
        // The first few find room, and nobody takes them out.
        let send = || {
            for _ in 0..50 {
                sender.send_to(&[0; 1_000], to).unwrap();
            }
        };
        let first = SocketDropCounter::begin(&receiver);
        assert_eq!(first.until_now(&receiver), 0);
        send();
        let dropped = first.until_now(&receiver);
        assert!((1..50).contains(&dropped), "{dropped}");
        let second = SocketDropCounter::begin(&receiver);
        send();
        assert_eq!(second.until_now(&receiver), 50);
        assert_eq!(first.until_now(&receiver), 50 + dropped);
        // The kernel's count begins anew behind 2^32.
        let late = SocketDropCounter {
            before: first.before.map(|before| KernelDrops {
                by_socket: u32::MAX - 9,
                ..before
            }),
        };
        assert_eq!(late.until_now(&receiver), 60 + dropped);
    }

    /// Runs in its own network namespace, whose counters no other process raises.
    #[test]
    fn damaged_datagrams_are_not_counted_as_drops() {
        let alone = std::thread::spawn(|| {
            // SAFETY: unshare(2) takes an integer; this thread alone changes its namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let mut out = io::stdout();
                let _ = std::io::Write::write_all(&mut out, b"skipped: no network namespaces\n");
                return;
            }
            let up = std::process::Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status();
            assert!(up.unwrap().success());
            for (own, kind) in [
                ("127.0.0.1:0", socket2::Domain::IPV4),
                ("[::1]:0", socket2::Domain::IPV6),
            ] {
                let receiver = UdpSocket::bind(own).unwrap();
                let to = receiver.local_addr().unwrap();
                let udp = Some(socket2::Protocol::UDP);
                let raw = socket2::Socket::new(kind, socket2::Type::RAW, udp).unwrap();
                let before = SocketDropCounter::begin(&receiver);
                let drops = system::receive_drops(&receiver).unwrap();
                // From port 9, with a checksum that is not theirs. That of a short one is looked at before it has a
                // socket, that of others when somebody reads.
                let [high, low] = to.port().to_be_bytes();
                let [long, short] = 1_000_u16.to_be_bytes();
                let mut datagram = [0; 1_000];
                datagram[..8].copy_from_slice(&[0, 9, high, low, long, short, 0x12, 0x34]);
                let mut place = to;
                place.set_port(0);
                for _ in 0..20 {
                    raw.send_to(&datagram, &place.into()).unwrap();
                }
                receiver.set_nonblocking(true).unwrap();
                assert!(receiver.recv(&mut [0; 8]).is_err());
                assert_eq!(system::receive_drops(&receiver).unwrap() - drops, 20);
                assert_eq!(before.until_now(&receiver), 0, "{own}");
            }
        });
        alone.join().unwrap();
    }

    #[test]
    fn receive_buffer_grows_as_far_as_allowed() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        make_room(&socket).unwrap();
        let given = SockRef::from(&socket).recv_buffer_size().unwrap();
        let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
        let ordinary: usize = most.trim().parse().unwrap();
        // The kernel doubles it, for what it keeps beside the packets.
        assert!(
            given >= 2 * ordinary.min(RECEIVE_BUFFER as usize),
            "{given}"
        );
    }

    #[test]
    fn icmpv6_prohibition_is_no_socket_error() {
        // Administratively prohibited (RFC 4443 §3.1, code 1) comes as EACCES, and over IPv4 as EHOSTUNREACH.
        for code in [libc::EACCES, libc::EHOSTUNREACH, libc::ECONNREFUSED] {
            assert!(
                is_no_datagram(&io::Error::from_raw_os_error(code)),
                "{code}"
            );
        }
        assert!(!is_no_datagram(&io::Error::from_raw_os_error(libc::EBADF)));
    }

    #[test]
    fn oversized_datagram_is_refused_and_not_fragmented() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        never_cut_up(&sender).unwrap();
        let mtu = route_mtu(&sender).unwrap();
        assert!(mtu >= 1_500, "{mtu}");
    }
}
