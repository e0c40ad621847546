//! The kernel's side of a packet socket: a ring of received frames, and batches to send.
//!
//! ```text
//!   kernel writes slot n ──► status USER ──► read in place ──► status KERNEL ──► … slot n + 1
//!        longer than a slot: the slot says so, and the whole frame waits in the socket's queue
//! ```
//! The ring is version 2 of packet(7): every frame is visible at once, while version 3 shows a
//! block of frames only when it is full or a millisecond or more has passed. Its slots have one
//! size, for an ordinary frame; a big offloaded one comes through the socket's queue
//! (PACKET_COPY_THRESH), without copying in between.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::system::checked;

/// `struct virtio_net_hdr` of linux/virtio_net.h, as PACKET_VNET_HDR puts it before each frame.
const OFFLOAD_HEADER: usize = super::offload::HEADER_LENGTH;

/// A block of the ring: contiguous memory that the kernel has to find in one piece.
const BLOCK_BYTES: usize = 64 * 1_024;

/// Size of the ring, in bytes of memory that is never paged out. At 2 KiB a slot it holds 16,384
/// frames: 55 ms at 300,000 frames per second, for times when other threads have the processor.
const RING_BYTES: usize = 32 * 1_024 * 1_024;

/// Limit for big frames that wait beside the ring, in bytes: 64 ms at 1 Gbit/s.
const BIG_FRAMES_BYTES: libc::c_int = 16 * 1_024 * 1_024;

/// Limit for frames that the kernel takes before it has sent them, in bytes.
const SEND_BYTES: usize = 4 * 1_024 * 1_024;

/// The longest frame that the kernel makes of many: 64 KiB of IP, and room for its tags.
pub const FRAME_MAX: usize = 65_536 + 64;

/// Frames handed over in one system call.
pub const BATCH_FRAMES: usize = 64;

/// A raw socket that carries nothing yet.
fn raw_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; a new descriptor is ours alone.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        Ok(OwnedFd::from_raw_fd(checked(libc::socket(
            libc::AF_PACKET,
            kind,
            0,
        ))?))
    }
}

/// Sets an option of a socket to a plain value.
pub fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value lives through the call, and its size is told.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    })
    .map(|_| ())
}

/// Selects the ring's version, with a virtio_net_hdr before each frame.
fn set_version(socket: &OwnedFd) -> io::Result<()> {
    set_option(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_VERSION,
        &(libc::tpacket_versions::TPACKET_V2 as libc::c_int),
    )?;
    set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32)
}

/// Passes only frames that leave, and of each the first `kept_bytes`.
fn show_sent_frames_only(socket: &OwnedFd, kept_bytes: usize) -> io::Result<()> {
    /// `SKF_AD_OFF + SKF_AD_PKTTYPE` of linux/filter.h: the packet's type.
    const PACKET_TYPE: u32 = (-0x1000_i32 + 4) as u32;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let filter = [
        step(
            libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
            0,
            0,
            PACKET_TYPE,
        ),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            u32::from(libc::PACKET_OUTGOING),
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, kept_bytes as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Lets the kernel stamp frames where they enter or leave, instead of where they reach the socket.
fn stamp_early(socket: &OwnedFd) -> io::Result<()> {
    let flags = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &flags)
}

/// Binds a socket to a device; frames of `protocol` are received from then on.
fn bind(socket: &OwnedFd, index: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: the address is plain data, for which all zeros is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    // SAFETY: the address lives through the call, and its size is told.
    checked(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            ptr::from_ref(&address).cast(),
            mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })
    .map(|_| ())
}

/// Sets the device to promiscuous mode as long as the socket is open.
fn set_promiscuous(socket: &OwnedFd, index: i32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &request,
    )
}

/// The error that a socket has been given, if any; it is taken away by asking.
fn pending_error(socket: &OwnedFd) -> io::Result<Option<io::Error>> {
    let mut error: libc::c_int = 0;
    let mut length = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both live through the call, and the length is the value's.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            ptr::from_mut(&mut error).cast(),
            &raw mut length,
        )
    })?;
    Ok((error != 0).then(|| io::Error::from_raw_os_error(error)))
}

/// A socket that keeps a device promiscuous, receives nothing, and is in error once the device
/// goes down or away.
#[derive(Debug)]
pub struct PromiscuousGuard(OwnedFd);

impl PromiscuousGuard {
    /// Opens the socket for the interface with this index.
    ///
    /// # Errors
    /// When the process may not open packet sockets, or the interface is gone.
    pub fn of(index: i32) -> io::Result<Self> {
        let socket = raw_socket()?;
        // The kernel tells only sockets that receive something; this filter keeps it all away.
        let nothing = [libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        }];
        let program = libc::sock_fprog {
            len: 1,
            filter: nothing.as_ptr().cast_mut(),
        };
        set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        set_option(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            &1_i32,
        )?;
        bind(&socket, index, libc::ETH_P_LOOPBACK as u16)?;
        set_promiscuous(&socket, index)?;
        Ok(Self(socket))
    }

    /// Returns the device's error since the last call.
    pub fn error(&self) -> io::Result<Option<io::Error>> {
        pending_error(&self.0)
    }
}

impl AsFd for PromiscuousGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Frames that a ring shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingDirection {
    /// Frames that come into the device.
    Received,
    /// Frames that leave through the device, by way of its queueing discipline.
    Sent,
}

/// Shape of a ring whose frames are measured, and may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Frames to show.
    pub direction: RingDirection,
    /// Bytes of a frame that are kept; the rest of a longer frame is cut off.
    pub kept_bytes: usize,
    /// Memory of the ring, in bytes; it is never paged out.
    pub ring_bytes: usize,
}

/// A frame as the kernel hands it over.
#[derive(Debug)]
pub struct ReceivedFrame<'a> {
    /// The virtio_net_hdr.
    pub offload: [u8; OFFLOAD_HEADER],
    /// Bytes from the destination address on.
    pub bytes: &'a [u8],
    /// The tag that the kernel has taken out: protocol and control information.
    pub tag: Option<(u16, u16)>,
    /// Arrival time by CLOCK_REALTIME.
    pub stamp: Duration,
    /// Length of the whole frame, of which `bytes` may hold only the first part.
    pub whole_bytes: usize,
}

/// Received frames of one device.
#[derive(Debug)]
pub struct FrameRing {
    socket: OwnedFd,
    memory: *mut u8,
    length: usize,
    slot_bytes: usize,
    slots: usize,
    /// The slot that the kernel fills, or has filled, next.
    next: usize,
    /// Buffer for assembling big frames.
    big: Box<[u8]>,
    /// Shows frames that do not fit into a slot without their ends, instead of dropping them.
    shows_cut_frames: bool,
    dropped: u64,
}

// SAFETY: the memory belongs to this value alone, on our side; the kernel's side is kept apart by
// the status words, whichever thread reads them.
unsafe impl Send for FrameRing {}

impl FrameRing {
    /// Starts to receive all frames of a device; an ordinary frame has up to `frame_bytes` bytes.
    pub fn open(index: i32, frame_bytes: usize) -> io::Result<Self> {
        let socket = raw_socket()?;
        let packet = libc::SOL_PACKET;
        set_version(&socket)?;
        set_option(&socket, packet, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
        set_option(&socket, packet, libc::PACKET_COPY_THRESH, &1_i32)?;
        set_buffer(
            &socket,
            libc::SO_RCVBUFFORCE,
            libc::SO_RCVBUF,
            BIG_FRAMES_BYTES,
        )?;
        let ring = Self::map(socket, frame_bytes, RING_BYTES)?;
        set_promiscuous(&ring.socket, index)?;
        bind(&ring.socket, index, libc::ETH_P_ALL as u16)?;
        Ok(ring)
    }

    /// Starts to record frames of a device with the kernel's stamps, for a measurement.
    ///
    /// A received frame is stamped when the kernel takes it from the device, before it waits for a
    /// processor. A sent frame is stamped when the kernel hands it to the device.
    ///
    /// # Errors
    /// When the process may not open packet sockets, the memory is not there, or the device is gone.
    pub fn open_measuring(index: i32, shape: RingShape) -> io::Result<Self> {
        let socket = raw_socket()?;
        set_version(&socket)?;
        match shape.direction {
            RingDirection::Received => {
                set_option(
                    &socket,
                    libc::SOL_PACKET,
                    libc::PACKET_IGNORE_OUTGOING,
                    &1_i32,
                )?;
            }
            RingDirection::Sent => show_sent_frames_only(&socket, shape.kept_bytes)?,
        }
        stamp_early(&socket)?;
        let mut ring = Self::map(socket, shape.kept_bytes, shape.ring_bytes)?;
        ring.shows_cut_frames = true;
        if shape.direction == RingDirection::Received {
            set_promiscuous(&ring.socket, index)?;
        }
        bind(&ring.socket, index, libc::ETH_P_ALL as u16)?;
        Ok(ring)
    }

    /// Asks for a ring of slots for frames of `frame_bytes`, and maps it.
    fn map(socket: OwnedFd, frame_bytes: usize, ring_bytes: usize) -> io::Result<Self> {
        // The kernel's own header, its alignment and the virtio_net_hdr come before the frame.
        let slot_bytes = (libc::TPACKET2_HDRLEN + 64 + frame_bytes).next_power_of_two();
        let block_bytes = BLOCK_BYTES.max(slot_bytes);
        let blocks = ring_bytes / block_bytes;
        let slots = blocks * (block_bytes / slot_bytes);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as libc::c_uint,
            tp_block_nr: blocks as libc::c_uint,
            tp_frame_size: slot_bytes as libc::c_uint,
            tp_frame_nr: slots as libc::c_uint,
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let length = blocks * block_bytes;
        // SAFETY: a new mapping of the ring that was just asked for, in its whole length.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            socket,
            memory: memory.cast(),
            length,
            slot_bytes,
            slots,
            next: 0,
            big: vec![0; OFFLOAD_HEADER + FRAME_MAX].into_boxed_slice(),
            shows_cut_frames: false,
            dropped: 0,
        })
    }

    /// Takes the next frame if there is one; says whether there was. A frame that the kernel could
    /// not keep whole is counted as dropped and not shown.
    pub fn take(&mut self, take: impl FnOnce(ReceivedFrame<'_>)) -> bool {
        // SAFETY: `next` is below the number of slots, so the header lies inside the mapping. Its
        // first field is the status word, which the kernel and we write by turns.
        let (slot, status_word) = unsafe {
            let slot = self.memory.add(self.next * self.slot_bytes);
            (slot, AtomicU32::from_ptr(slot.cast()))
        };
        let status = status_word.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return false;
        }
        self.next = (self.next + 1) % self.slots;
        // SAFETY: with status USER the kernel has written the header and leaves the slot alone.
        let header = unsafe { ptr::read(slot.cast::<libc::tpacket2_hdr>()) };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let protocol = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
                header.tp_vlan_tpid
            } else {
                libc::ETH_P_8021Q as u16
            };
            (protocol, header.tp_vlan_tci)
        });
        let stamp = Duration::new(u64::from(header.tp_sec), header.tp_nsec.min(999_999_999));
        let start = usize::from(header.tp_mac);
        let held = header.tp_snaplen as usize;
        if status & libc::TP_STATUS_COPY != 0 {
            if let Some(length) = receive(&self.socket, &mut self.big) {
                let (offload, bytes) = self.big[..length].split_at(OFFLOAD_HEADER);
                take(ReceivedFrame {
                    offload: offload.try_into().expect("it was split there"),
                    bytes,
                    tag,
                    stamp,
                    whole_bytes: bytes.len(),
                });
            } else {
                self.dropped += 1;
            }
        } else if (held < header.tp_len as usize && !self.shows_cut_frames)
            || start < OFFLOAD_HEADER
            || start + held > self.slot_bytes
        {
            self.dropped += 1;
        } else {
            // SAFETY: header and frame lie inside the slot, as was just checked, and the kernel
            // does not write there until the status is given back below.
            let (offload, bytes) = unsafe {
                (
                    ptr::read(slot.add(start - OFFLOAD_HEADER).cast()),
                    slice::from_raw_parts(slot.add(start), held),
                )
            };
            take(ReceivedFrame {
                offload,
                bytes,
                tag,
                stamp,
                whole_bytes: header.tp_len as usize,
            });
        }
        status_word.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        true
    }

    /// Frames that found no room, from the start on.
    pub fn dropped(&mut self) -> u64 {
        let mut statistics = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = mem::size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: both live through the call, and the length is the structure's.
        let answered = checked(unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                ptr::from_mut(&mut statistics).cast(),
                &raw mut length,
            )
        });
        // The kernel starts from zero after each answer.
        if answered.is_ok() {
            self.dropped += u64::from(statistics.tp_drops);
        }
        self.dropped
    }

    /// Returns the device's error since the last call.
    pub fn error(&self) -> io::Result<Option<io::Error>> {
        pending_error(&self.socket)
    }
}

impl AsFd for FrameRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for FrameRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from it outlives this value.
        unsafe {
            libc::munmap(self.memory.cast(), self.length);
        }
    }
}

/// Reads the next frame of a socket's queue; `None` if there is none or it is no frame.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    // SAFETY: the buffer lives through the call, and its length is told.
    let length = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
        )
    };
    let length = usize::try_from(length).ok()?;
    (OFFLOAD_HEADER..=buffer.len())
        .contains(&length)
        .then_some(length)
}

/// Returns `true` if the kernel may take the same frame a moment later.
#[must_use]
pub fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOBUFS | libc::EAGAIN | libc::EBUSY)
    )
}

/// Asks for a buffer, beyond the host's limit where that is allowed.
fn set_buffer(
    socket: &OwnedFd,
    forced: libc::c_int,
    asked: libc::c_int,
    bytes: libc::c_int,
) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, forced, &bytes)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, asked, &bytes))
}

/// Sets the limit for bytes of a socket that the kernel has not sent yet.
pub fn allow_to_send(socket: &OwnedFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_buffer(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)
}

/// Sends frames out of one device, around its queueing discipline.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
}

impl FrameSender {
    /// Opens a socket that sends out of the interface with this index.
    ///
    /// # Errors
    /// When the process may not open packet sockets, or the interface is gone.
    pub fn open(index: i32) -> io::Result<Self> {
        let socket = raw_socket()?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1_i32)?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32)?;
        allow_to_send(&socket, SEND_BYTES)?;
        // Protocol 0: this one receives nothing.
        bind(&socket, index, 0)?;
        Ok(Self { socket })
    }

    /// Opens a sender whose frames pass the queueing discipline, so that a ring of sent frames
    /// shows them.
    ///
    /// # Errors
    /// When the process may not open packet sockets, or the interface is gone.
    pub fn open_observable(index: i32) -> io::Result<Self> {
        let socket = raw_socket()?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32)?;
        allow_to_send(&socket, SEND_BYTES)?;
        bind(&socket, index, 0)?;
        Ok(Self { socket })
    }

    /// Hands over up to [`BATCH_FRAMES`] frames that need nothing done; says how many were taken
    /// before the first that was not.
    ///
    /// # Errors
    /// When the first one is not taken.
    pub fn send<F: AsRef<[u8]>>(&self, frames: &[F]) -> io::Result<usize> {
        static NO_OFFLOAD: [u8; OFFLOAD_HEADER] = [0; OFFLOAD_HEADER];
        const EMPTY: libc::iovec = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let count = frames.len().min(BATCH_FRAMES);
        let mut pieces = [[EMPTY; 2]; BATCH_FRAMES];
        // SAFETY: mmsghdr is plain data, for which all zeros is a value.
        let mut messages: [libc::mmsghdr; BATCH_FRAMES] = unsafe { mem::zeroed() };
        for ((message, pieces), frame) in messages.iter_mut().zip(&mut pieces).zip(frames) {
            let frame = frame.as_ref();
            pieces[0].iov_base = NO_OFFLOAD.as_ptr().cast_mut().cast();
            pieces[0].iov_len = NO_OFFLOAD.len();
            pieces[1].iov_base = frame.as_ptr().cast_mut().cast();
            pieces[1].iov_len = frame.len();
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            message.msg_hdr.msg_iovlen = pieces.len() as _;
        }
        // SAFETY: messages, pieces, and the borrowed bytes that they point at live through the
        // call; the kernel only reads the bytes.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        checked(sent).map(|sent| sent as usize)
    }

    /// Sends one frame in pieces, the first of which is its virtio_net_hdr.
    pub fn send_pieces(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        // SAFETY: msghdr is plain data, for which all zeros is a value.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = pieces.as_ptr().cast_mut().cast();
        message.msg_iovlen = pieces.len() as _;
        // SAFETY: an IoSlice is an iovec to the kernel; all that they point at lives through the
        // call and is only read.
        let sent = unsafe {
            libc::sendmsg(
                self.socket.as_raw_fd(),
                &raw const message,
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
