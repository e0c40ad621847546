//! Sockets that stamp packets in the kernel and move them in batches; the only unsafe code here.
//!
//! A [`SendBatch`] hands up to [`BATCH`] numbered datagrams to the kernel in one call, a
//! [`ReceiveBatch`] takes as many with the moment at which the kernel received each; the moments
//! at which sent ones left come back through the socket's error queue. The kernel's side is
//! described in sendmmsg(2), recvmmsg(2), udp(7) and the kernel's networking/timestamping.rst.
//! Stamps are nanoseconds of CLOCK_REALTIME.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::wait;

/// Datagrams in one system call.
pub const BATCH: usize = 64;

/// Room for the ancillary data of one datagram: three stamps, an error description, a length.
const CONTROL_BYTES: usize = 256;

/// `SO_MEMINFO` of asm-generic/socket.h, and the place of the drops in what it gives
/// (`SK_MEMINFO_DROPS` of linux/sock_diag.h).
const SO_MEMINFO: libc::c_int = 55;
const MEMINFO_DROPS: usize = 8;
const MEMINFO_WORDS: usize = 9;

/// The sequence number of a datagram stands at the head of its payload.
const NUMBER_BYTES: usize = 8;

/// Control data aligned for `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct StampedControlBuffer([u8; CONTROL_BYTES]);

fn checked(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sets an option of a socket that nothing safer knows.
pub fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: the value lives through the call and its own size is passed.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Direction of the packets that the kernel stamps for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampedDirection {
    /// Received packets.
    Received,
    /// Packets handed to the device; their timestamps come back through
    /// [`ReceiveBatch::sent_stamps`].
    Sent,
}

/// Asks for stamps.
pub fn stamp(socket: &UdpSocket, stamps: StampedDirection) -> io::Result<()> {
    let flags = match stamps {
        StampedDirection::Received => libc::SOF_TIMESTAMPING_RX_SOFTWARE,
        // Numbered, and without the packet itself.
        StampedDirection::Sent => {
            libc::SOF_TIMESTAMPING_TX_SOFTWARE
                | libc::SOF_TIMESTAMPING_OPT_ID
                | libc::SOF_TIMESTAMPING_OPT_TSONLY
        }
    };
    let flags = flags | libc::SOF_TIMESTAMPING_SOFTWARE;
    set_option(
        socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMPING,
        flags,
    )
}

/// Makes room for what waits to be read and written: `bytes` where the kernel lets us, else the
/// most that it gives an ordinary user.
pub fn enlarge_buffers(socket: &UdpSocket, bytes: i32) -> io::Result<()> {
    enlarge_receive_buffer(socket, bytes)?;
    enlarge(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)
}

/// Enlarges only the receive buffer.
pub fn enlarge_receive_buffer(socket: &UdpSocket, bytes: i32) -> io::Result<()> {
    enlarge(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)
}

fn enlarge(
    socket: &UdpSocket,
    forced: libc::c_int,
    ordinary: libc::c_int,
    bytes: i32,
) -> io::Result<()> {
    let descriptor = socket.as_fd();
    if set_option(descriptor, libc::SOL_SOCKET, forced, bytes).is_err() {
        set_option(descriptor, libc::SOL_SOCKET, ordinary, bytes)?;
    }
    Ok(())
}

/// Makes the kernel split each send into datagrams of `bytes` (generic segmentation offload).
pub fn segment(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set_option(
        socket.as_fd(),
        libc::SOL_UDP,
        libc::UDP_SEGMENT,
        libc::c_int::from(bytes),
    )
}

/// Lets the kernel hand over datagrams that follow each other as one (generic receive offload).
pub fn coalesce(socket: &UdpSocket) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1_i32)
}

/// Makes closing a connection discard unsent data and send a reset at once (SO_LINGER of zero).
pub fn reset_on_close(connection: &TcpStream) -> io::Result<()> {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set_option(
        connection.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        at_once,
    )
}

/// Datagrams that the socket had no room for, since it was opened and modulo 2^32.
pub fn receive_drops(socket: &UdpSocket) -> io::Result<u32> {
    let mut words = [0_u32; MEMINFO_WORDS];
    let mut length = mem::size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most the length it is given.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok(words[MEMINFO_DROPS])
}

/// Lets the kernel wake the calling thread at the nanosecond it asks for (prctl(2),
/// PR_SET_TIMERSLACK).
pub fn sharpen_timers() {
    // SAFETY: integers only; it cannot fail for the calling thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64);
    }
}

/// Returns the processors that the calling thread, and its children from now on, may run on.
pub fn processors() -> io::Result<Vec<usize>> {
    // SAFETY: the set is plain data; the kernel writes no more than its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        checked(libc::sched_getaffinity(
            0,
            mem::size_of::<libc::cpu_set_t>(),
            &raw mut set,
        ))?;
        set
    };
    // SAFETY: the number is below the set's size, and the set is initialised.
    let has = |number: &usize| unsafe { libc::CPU_ISSET(*number, &set) };
    Ok((0..libc::CPU_SETSIZE as usize).filter(has).collect())
}

/// Binds the calling thread, and its children from now on, to these processors.
fn bind_to(processors: &[usize]) -> io::Result<()> {
    // SAFETY: the set is plain data and lives through the call; every number is below its size,
    // because it came from `processors`.
    checked(unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        for processor in processors {
            libc::CPU_SET(*processor, &mut set);
        }
        libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &raw const set)
    })
    .map(drop)
}

/// Does something on these processors only; threads and processes that it starts stay on them.
pub fn bound_to<T>(processors: &[usize], what: impl FnOnce() -> T) -> io::Result<T> {
    let before = self::processors()?;
    bind_to(processors)?;
    let done = what();
    bind_to(&before)?;
    Ok(done)
}

/// A clock of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemClock {
    /// The one that stamps are of.
    Real,
    /// Raw hardware time, which is not adjusted.
    Raw,
    /// Processor time of the calling thread.
    Thread,
}

/// Nanoseconds on a clock.
pub fn clock_ns(clock: SystemClock) -> i128 {
    let number = match clock {
        SystemClock::Real => libc::CLOCK_REALTIME,
        SystemClock::Raw => libc::CLOCK_MONOTONIC_RAW,
        SystemClock::Thread => libc::CLOCK_THREAD_CPUTIME_ID,
    };
    // SAFETY: timespec is plain data that the kernel fills; these clocks exist on every Linux.
    let time = unsafe {
        let mut time: libc::timespec = mem::zeroed();
        libc::clock_gettime(number, &raw mut time);
        time
    };
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Numbered datagrams of one length, ready to be sent.
pub struct SendBatch {
    /// [`BATCH`] messages of `segments` datagrams of `length` bytes.
    payload: Vec<u8>,
    length: usize,
    segments: usize,
}

impl SendBatch {
    /// Datagrams with `length` bytes of payload; with `segments` above one the socket must be set
    /// to [`segment`] by `length`.
    pub fn new(length: usize, segments: usize) -> Self {
        let length = length.max(NUMBER_BYTES);
        Self {
            payload: vec![0; BATCH * segments * length],
            length,
            segments,
        }
    }

    /// The most datagrams of one call.
    pub fn datagrams_max(&self) -> u64 {
        (BATCH * self.segments) as u64
    }

    /// Sends `count` datagrams numbered from `first`; says how many the kernel took.
    ///
    /// A socket's buffer that is full makes it wait.
    pub fn send(&mut self, socket: &UdpSocket, first: u64, count: u64) -> io::Result<u64> {
        let count = count.min(self.datagrams_max()) as usize;
        for (at, datagram) in self
            .payload
            .chunks_exact_mut(self.length)
            .take(count)
            .enumerate()
        {
            datagram[..NUMBER_BYTES].copy_from_slice(&(first + at as u64).to_le_bytes());
        }
        // SAFETY: both are plain data for which all zeros is a value.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let whole = self.segments * self.length;
        let used = count.div_ceil(self.segments);
        let mut left = count * self.length;
        for ((part, message), bytes) in parts
            .iter_mut()
            .zip(&mut messages)
            .zip(self.payload.chunks_exact_mut(whole))
            .take(used)
        {
            part.iov_base = bytes.as_mut_ptr().cast();
            part.iov_len = left.min(whole);
            left -= part.iov_len;
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the messages point to parts, and these to the payload; all live through the
        // call, and `used` of them are filled in.
        let sent = checked(unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                used as libc::c_uint,
                0,
            )
        })?;
        Ok((sent * self.segments).min(count) as u64)
    }
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// The number that its sender gave it.
    pub number: u64,
    /// Bytes of payload.
    pub length: u32,
    /// Time at which the kernel received it; zero when unknown.
    pub stamp_ns: u64,
}

/// Room for datagrams that come in.
pub struct ReceiveBatch {
    payload: Vec<u8>,
    room: usize,
    controls: Vec<StampedControlBuffer>,
}

impl ReceiveBatch {
    /// For datagrams of up to `room` bytes; coalesced ones take 64 KiB.
    pub fn new(room: usize) -> Self {
        Self {
            payload: vec![0; BATCH * room],
            room,
            controls: vec![StampedControlBuffer([0; CONTROL_BYTES]); BATCH],
        }
    }

    /// Waits for a datagram up to the socket's read timeout, takes those that are there, and
    /// hands each to `each`; says how many there were.
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        mut each: impl FnMut(ReceivedDatagram),
    ) -> io::Result<usize> {
        let (messages, taken) = self.take(socket, libc::MSG_WAITFORONE)?;
        let mut count = 0;
        for (at, message) in messages.iter().enumerate().take(taken) {
            let length = message.msg_len as usize;
            let bytes = &self.payload[at * self.room..][..length.min(self.room)];
            let ancillary = AncillaryData::read(&message.msg_hdr);
            let datagram = ancillary.segment.unwrap_or(length).max(1);
            for piece in bytes.chunks(datagram) {
                let Some(number) = piece.first_chunk::<NUMBER_BYTES>() else {
                    continue;
                };
                count += 1;
                each(ReceivedDatagram {
                    number: u64::from_le_bytes(*number),
                    length: piece.len() as u32,
                    stamp_ns: ancillary.stamp_ns.unwrap_or_default(),
                });
            }
        }
        Ok(count)
    }

    /// Takes the stamps of sent datagrams that have come back so far: each one's place in the
    /// order of sending on this socket (modulo 2^32) and its moment.
    pub fn sent_stamps(
        &mut self,
        socket: &UdpSocket,
        mut each: impl FnMut(u32, u64),
    ) -> io::Result<()> {
        loop {
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            let (messages, taken) = self.take(socket, flags)?;
            for message in messages.iter().take(taken) {
                let ancillary = AncillaryData::read(&message.msg_hdr);
                if let (Some(place), Some(stamp)) = (ancillary.sent_place, ancillary.stamp_ns) {
                    each(place, stamp);
                }
            }
            if taken < BATCH {
                return Ok(());
            }
        }
    }

    fn take(
        &mut self,
        socket: &UdpSocket,
        flags: libc::c_int,
    ) -> io::Result<([libc::mmsghdr; BATCH], usize)> {
        // SAFETY: both are plain data for which all zeros is a value.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let rooms = self.payload.chunks_exact_mut(self.room);
        for (((part, message), bytes), control) in parts
            .iter_mut()
            .zip(&mut messages)
            .zip(rooms)
            .zip(&mut self.controls)
        {
            part.iov_base = bytes.as_mut_ptr().cast();
            part.iov_len = bytes.len();
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: the messages point to parts, payload and controls, which all live through the
        // call with the lengths they say. What is returned keeps pointers to the controls, which
        // stay as long as `self`, and to `parts`, which nobody follows.
        let result = checked(unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                flags,
                ptr::null_mut(),
            )
        });
        match result {
            Ok(taken) => Ok((messages, taken)),
            Err(error) if nothing_there(&error) => Ok((messages, 0)),
            Err(error) => Err(error),
        }
    }
}

fn nothing_there(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::TimedOut
    )
}

/// Ancillary data of a datagram from the kernel.
#[derive(Default)]
struct AncillaryData {
    stamp_ns: Option<u64>,
    /// The length of each datagram in a coalesced one.
    segment: Option<usize>,
    sent_place: Option<u32>,
}

impl AncillaryData {
    fn read(header: &libc::msghdr) -> Self {
        let mut found = Self::default();
        // SAFETY: the header is as recvmmsg left it, and its control data is still there; the
        // macros stay within its length. Each payload is read with the type that the kernel
        // documents for its kind, unaligned.
        unsafe {
            let mut next = libc::CMSG_FIRSTHDR(header);
            while let Some(control) = next.as_ref() {
                let data = libc::CMSG_DATA(control);
                match (control.cmsg_level, control.cmsg_type) {
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
                        let time: libc::timespec = ptr::read_unaligned(data.cast());
                        let span = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
                        found.stamp_ns = u64::try_from(span.as_nanos()).ok();
                    }
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        let bytes: libc::c_int = ptr::read_unaligned(data.cast());
                        found.segment = usize::try_from(bytes).ok();
                    }
                    (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => {
                        let error: libc::sock_extended_err = ptr::read_unaligned(data.cast());
                        if error.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING {
                            found.sent_place = Some(error.ee_data);
                        }
                    }
                    _ => {}
                }
                next = libc::CMSG_NXTHDR(header, control);
            }
        }
        found
    }
}

/// Returns a socket that asks for stamps, once the kernel gives them: it stamps what arrives only
/// while some socket wants it, and takes its time to begin.
///
/// # Errors
/// When it does not begin.
pub fn begin_stamping() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    socket.set_read_timeout(Some(STAMP_WAIT))?;
    stamp(&socket, StampedDirection::Received).context("asking for stamps of received packets")?;
    let mut sending = SendBatch::new(8, 1);
    let mut receiving = ReceiveBatch::new(64);
    wait::until(STAMPING_LIMIT, "the kernel to stamp packets", || {
        sending.send(&socket, 0, 1)?;
        let mut stamped = None;
        receiving.receive(&socket, |one| {
            stamped = (one.stamp_ns > 0).then_some(());
        })?;
        Ok(stamped)
    })?;
    Ok(socket)
}

/// A socket that gets no packet is asked again after this.
const STAMP_WAIT: Duration = Duration::from_millis(20);
/// The kernel begins within milliseconds.
const STAMPING_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UdpSocket, UdpSocket) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        (sender, receiver)
    }

    #[test]
    fn numbered_datagrams_arrive_with_stamps_of_both_ends() {
        let _stamping = begin_stamping().unwrap();
        let (sender, receiver) = pair();
        stamp(&sender, StampedDirection::Sent).unwrap();
        stamp(&receiver, StampedDirection::Received).unwrap();
        let before = clock_ns(SystemClock::Real) as u64;
        assert_eq!(SendBatch::new(100, 1).send(&sender, 7, 10).unwrap(), 10);
        let mut batch = ReceiveBatch::new(2_048);
        let mut received = Vec::new();
        while received.len() < 10 {
            assert!(batch.receive(&receiver, |one| received.push(one)).unwrap() > 0);
        }
        let after = clock_ns(SystemClock::Real) as u64;
        let mut sent = Vec::new();
        batch
            .sent_stamps(&sender, |place, stamp| sent.push((place, stamp)))
            .unwrap();
        assert_eq!(sent.len(), 10);
        for (at, (one, (place, left))) in received.iter().zip(&sent).enumerate() {
            assert_eq!((one.number, one.length), (7 + at as u64, 100));
            assert_eq!(*place, at as u32);
            assert!(before <= *left && *left <= one.stamp_ns && one.stamp_ns <= after);
        }
        assert_eq!(receive_drops(&receiver).unwrap(), 0);
    }

    #[test]
    fn segments_are_datagrams_of_their_own() {
        let (sender, receiver) = pair();
        segment(&sender, 50).unwrap();
        coalesce(&receiver).unwrap();
        assert_eq!(SendBatch::new(50, 16).send(&sender, 0, 21).unwrap(), 21);
        let mut batch = ReceiveBatch::new(65_536);
        let mut numbers = Vec::new();
        while numbers.len() < 21 {
            let count = batch.receive(&receiver, |one| {
                assert_eq!(one.length, 50);
                numbers.push(one.number);
            });
            assert!(count.unwrap() > 0);
        }
        assert_eq!(numbers, (0..21).collect::<Vec<_>>());
    }

    #[test]
    fn dropped_datagrams_are_counted() {
        let (sender, receiver) = pair();
        set_option(
            receiver.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            2_048_i32,
        )
        .unwrap();
        for first in 0..20 {
            SendBatch::new(1_000, 1).send(&sender, first, 10).unwrap();
        }
        let drops = receive_drops(&receiver).unwrap();
        assert!((1..200).contains(&drops), "{drops}");
    }

    #[test]
    fn a_thread_can_be_bound_and_set_free() {
        let all = processors().unwrap();
        let bound = bound_to(&all[..1], || processors().unwrap()).unwrap();
        assert_eq!(bound, all[..1]);
        assert_eq!(processors().unwrap(), all);
    }
}
