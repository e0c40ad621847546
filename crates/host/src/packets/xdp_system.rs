//! Kernel interface of an AF_XDP socket: frames in memory shared with the kernel, and four rings
//! that define their owner.
//!
//! ```text
//!   fill ring ──► kernel writes a frame ──► receive ring ──► copied out, back to the fill ring
//!   free list ──► frame is written ──► send ring ──► kernel sends it ──► completion ring ──┐
//!       ▲──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! Each socket has its own memory. A frame belongs to the kernel while its address is in the fill
//! or the send ring, and to this program from the moment it comes out of the other two.
//! Documentation/networking/af_xdp.rst describes the kernel's side.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use super::bpf::STAMP_BYTES;
use super::packet_system;
use super::system::checked;

/// Frames that wait in the receive ring while other threads have the processor: 27 ms at 300,000
/// frames a second.
const RECEIVE_FRAMES: u32 = 8_192;

/// Frames that the kernel has been handed and has not sent.
const SEND_FRAMES: u32 = 2_048;

/// Bytes that the kernel keeps free in front of each frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

/// The least that the kernel takes for a frame (`XDP_UMEM_MIN_CHUNK_SIZE`), and the most: a page.
const SLOT_BYTES: [usize; 2] = [2_048, 4_096];

/// `XDP_MAX_TX_SKB_BUDGET` of linux/if_xdp.h, since Linux 6.17: frames that one call may send.
const SEND_BUDGET_OPTION: libc::c_int = 9;
const SEND_BUDGET: u32 = 256;

/// The longest frame that such a socket takes.
pub const FRAME_MAX: usize = SLOT_BYTES[1] - HEADROOM;

/// Copy mode of a socket's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// The device reads and writes the frames' memory itself.
    None,
    /// The kernel copies between it and its own packets.
    ByKernel,
}

/// Returns the frames that a socket has lost on arrival, as `struct xdp_statistics` counts them.
fn lost(statistics: &libc::xdp_statistics) -> u64 {
    statistics.rx_dropped + statistics.rx_ring_full
}

/// A socket on one queue of one device.
#[derive(Debug)]
pub struct QueueSocket {
    // The rings and the memory must not outlive the socket's mappings; all go together.
    received: XdpRing<libc::xdp_desc>,
    fill: XdpRing<u64>,
    sending: XdpRing<libc::xdp_desc>,
    completed: XdpRing<u64>,
    free: Vec<u64>,
    memory: MemoryMapping,
    slot_bytes: usize,
    socket: OwnedFd,
}

impl QueueSocket {
    /// Makes a socket with its memory and rings and gives the kernel all frames to receive into.
    /// It belongs to the namespace of the calling thread.
    pub fn new(frame_bytes: usize) -> io::Result<Self> {
        // SAFETY: no pointers are passed; a new descriptor is ours alone.
        let socket = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
            OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_XDP, kind, 0))?)
        };
        let slot_bytes = SLOT_BYTES
            .into_iter()
            .find(|bytes| HEADROOM + frame_bytes <= *bytes)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let frames = RECEIVE_FRAMES + SEND_FRAMES;
        let memory = MemoryMapping::anonymous(frames as usize * slot_bytes)?;
        let registration = libc::xdp_umem_reg {
            addr: memory.start as u64,
            len: memory.length as u64,
            chunk_size: slot_bytes as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_option(&socket, libc::XDP_UMEM_REG, &registration)?;
        set_option(&socket, libc::XDP_UMEM_FILL_RING, &RECEIVE_FRAMES)?;
        set_option(&socket, libc::XDP_UMEM_COMPLETION_RING, &SEND_FRAMES)?;
        set_option(&socket, libc::XDP_RX_RING, &RECEIVE_FRAMES)?;
        set_option(&socket, libc::XDP_TX_RING, &SEND_FRAMES)?;
        let _ = set_option(&socket, SEND_BUDGET_OPTION, &SEND_BUDGET);
        // Where the kernel copies, its packets count against this until the device has sent them.
        packet_system::allow_to_send(&socket, SEND_FRAMES as usize * slot_bytes)?;
        let offsets: libc::xdp_mmap_offsets = option(&socket, libc::XDP_MMAP_OFFSETS)?;
        let descriptor = socket.as_raw_fd();
        let mut result = Self {
            received: XdpRing::map(
                descriptor,
                &offsets.rx,
                RECEIVE_FRAMES,
                libc::XDP_PGOFF_RX_RING,
            )?,
            fill: XdpRing::map(
                descriptor,
                &offsets.fr,
                RECEIVE_FRAMES,
                libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t,
            )?,
            sending: XdpRing::map(
                descriptor,
                &offsets.tx,
                SEND_FRAMES,
                libc::XDP_PGOFF_TX_RING,
            )?,
            completed: XdpRing::map(
                descriptor,
                &offsets.cr,
                SEND_FRAMES,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t,
            )?,
            free: (RECEIVE_FRAMES..frames)
                .map(|frame| u64::from(frame) * slot_bytes as u64)
                .collect(),
            memory,
            slot_bytes,
            socket,
        };
        for frame in 0..RECEIVE_FRAMES {
            result.fill.put(u64::from(frame) * slot_bytes as u64);
        }
        result.fill.publish();
        Ok(result)
    }

    /// Joins it to a queue of a device; frames come once a program leads them here.
    pub fn bind(&self, index: i32, queue: u32, copying: CopyMode) -> io::Result<()> {
        let copying = match copying {
            CopyMode::None => libc::XDP_ZEROCOPY,
            CopyMode::ByKernel => libc::XDP_COPY,
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: copying | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: index as u32,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the address lives through the call, and its size is told.
        checked(unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                ptr::from_ref(&address).cast(),
                mem::size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
            )
        })
        .map(|_| ())
    }

    /// Shows up to `max` received frames, each with the stamp that the program left in front of
    /// it, or zero; says how many there were.
    pub fn receive(&mut self, max: usize, mut show: impl FnMut(&mut [u8], u64)) -> usize {
        let mut count = 0;
        while count < max
            && let Some(frame) = self.received.take()
        {
            count += 1;
            let (start, length) = (frame.addr as usize, frame.len as usize);
            if start >= STAMP_BYTES && start + length <= self.memory.length {
                // SAFETY: both ranges lie inside the memory, as was just checked, and the kernel
                // leaves the frame alone until it is given back below. A stamp is not aligned.
                unsafe {
                    let at = self.memory.start.add(start);
                    let stamp = at.sub(STAMP_BYTES).cast::<u64>();
                    let arrived = ptr::read_unaligned(stamp);
                    // A driver that leaves no room for stamps must not show this one again.
                    ptr::write_unaligned(stamp, 0);
                    show(slice::from_raw_parts_mut(at, length), arrived);
                }
            }
            // A slot is a power of two long and begins at a multiple of that.
            self.fill.put(frame.addr & !(self.slot_bytes as u64 - 1));
        }
        if count > 0 {
            self.received.release();
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            self.wake_receiver();
        }
        count
    }

    /// Writes a frame to be sent by the next [`QueueSocket::push`]; says whether there was room.
    pub fn put(&mut self, frame: &[u8]) -> bool {
        if self.free.is_empty() {
            self.take_completed();
        }
        if frame.len() > self.slot_bytes {
            return false;
        }
        let Some(address) = self.free.pop() else {
            return false;
        };
        // SAFETY: an address of the free list is the start of a slot, which is ours until its
        // descriptor is published, and long enough as was just checked.
        unsafe {
            ptr::copy_nonoverlapping(
                frame.as_ptr(),
                self.memory.start.add(address as usize),
                frame.len(),
            );
        }
        // There are no more addresses than the ring has room for.
        self.sending.put(libc::xdp_desc {
            addr: address,
            len: frame.len() as u32,
            options: 0,
        });
        true
    }

    /// Sends the queued frames; the kernel sends at least some of them.
    ///
    /// # Errors
    /// EAGAIN, EBUSY or ENOBUFS when the device does not take more now (with EBUSY, one frame is
    /// lost); anything else when it is down or gone.
    pub fn push(&mut self) -> io::Result<()> {
        self.sending.publish();
        let result = if self.unsent() > 0 && self.sending.needs_wakeup() {
            // SAFETY: nothing is passed; this call only tells the kernel to look at the ring.
            let result = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    ptr::null(),
                    0,
                )
            };
            checked(result as libc::c_int).map(|_| ())
        } else {
            Ok(())
        };
        self.take_completed();
        result
    }

    /// Frames that were pushed and that the kernel has not looked at.
    pub fn unsent(&self) -> u32 {
        self.sending.waiting()
    }

    /// Frames that came and found no room, from the start on.
    pub fn lost(&self) -> u64 {
        option(&self.socket, libc::XDP_STATISTICS).map_or(0, |statistics| lost(&statistics))
    }

    fn take_completed(&mut self) {
        let before = self.free.len();
        while let Some(address) = self.completed.take() {
            self.free.push(address);
        }
        if self.free.len() > before {
            self.completed.release();
        }
    }

    fn wake_receiver(&self) {
        // SAFETY: no buffer is passed; this call only tells the kernel to look at the fill ring.
        unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
                ptr::null_mut(),
            );
        }
    }
}

impl AsFd for QueueSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for QueueSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Waits for any of several files as if they were one: readable when one of them is.
#[derive(Debug)]
pub struct EpollSet(OwnedFd);

impl EpollSet {
    /// Gathers these files in a new epoll instance.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn of<'a>(files: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        // SAFETY: no pointers are passed; a new descriptor is ours alone.
        let gathering =
            unsafe { OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        for file in files {
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 0,
            };
            // SAFETY: the event lives through the call, and both descriptors are open.
            checked(unsafe {
                libc::epoll_ctl(
                    gathering.as_raw_fd(),
                    libc::EPOLL_CTL_ADD,
                    file.as_raw_fd(),
                    &raw mut event,
                )
            })?;
        }
        Ok(Self(gathering))
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// CLOCK_MONOTONIC, by which the program in the kernel stamps frames.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure lives through the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Ring of an AF_XDP socket. The producer owns all entries except those between `consumer` and
/// `producer`.
#[derive(Debug)]
struct XdpRing<T> {
    _memory: MemoryMapping,
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    mask: u32,
    /// This side's position, which `publish` or `release` tells the other side.
    ours: u32,
    /// Last known position of the other side.
    theirs: u32,
}

// SAFETY: the pointers lead into a mapping that belongs to this value, and the words in it that
// the kernel writes too are atomic.
unsafe impl<T: Send> Send for XdpRing<T> {}

impl<T: Copy> XdpRing<T> {
    fn map(
        socket: RawFd,
        offsets: &libc::xdp_ring_offset,
        entries: u32,
        at: libc::off_t,
    ) -> io::Result<Self> {
        let length = offsets.desc as usize + entries as usize * mem::size_of::<T>();
        let memory = MemoryMapping::of_socket(socket, length, at)?;
        // SAFETY: the kernel has told these offsets of the mapping that was just made, whose
        // length covers them; the ring's words and entries are aligned there.
        unsafe {
            let start = memory.start;
            Ok(Self {
                producer: start.add(offsets.producer as usize).cast(),
                consumer: start.add(offsets.consumer as usize).cast(),
                flags: start.add(offsets.flags as usize).cast(),
                entries: start.add(offsets.desc as usize).cast(),
                mask: entries - 1,
                ours: 0,
                theirs: 0,
                _memory: memory,
            })
        }
    }

    fn word(&self, word: *const AtomicU32) -> &AtomicU32 {
        // SAFETY: the words lie in the mapping, which lives as long as this value, and are only
        // ever touched as atomics.
        unsafe { &*word }
    }

    /// As the consumer: the next entry.
    fn take(&mut self) -> Option<T> {
        if self.ours == self.theirs {
            self.theirs = self.word(self.producer).load(Ordering::Acquire);
            if self.ours == self.theirs {
                return None;
            }
        }
        // SAFETY: the index is within the ring, and the producer has published this entry.
        let entry = unsafe { ptr::read(self.entries.add((self.ours & self.mask) as usize)) };
        self.ours = self.ours.wrapping_add(1);
        Some(entry)
    }

    /// As the consumer: gives back the room of all entries taken.
    fn release(&self) {
        self.word(self.consumer).store(self.ours, Ordering::Release);
    }

    /// As the producer: writes an entry. The caller never has more entries than there is room.
    fn put(&mut self, entry: T) {
        // SAFETY: the index is within the ring, and there are no more frames than entries, so the
        // consumer is done with this one.
        unsafe { ptr::write(self.entries.add((self.ours & self.mask) as usize), entry) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// As the producer: lets the consumer see all entries written.
    fn publish(&self) {
        self.word(self.producer).store(self.ours, Ordering::Release);
    }

    /// As the producer: entries that the consumer has not taken.
    fn waiting(&self) -> u32 {
        let taken = self.word(self.consumer).load(Ordering::Acquire);
        self.ours.wrapping_sub(taken)
    }

    /// Returns `true` if the kernel sleeps until it is woken up.
    fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Mapped memory, unmapped when it is dropped.
#[derive(Debug)]
struct MemoryMapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to this value alone, on our side.
unsafe impl Send for MemoryMapping {}

impl MemoryMapping {
    fn anonymous(length: usize) -> io::Result<Self> {
        Self::map(-1, length, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    fn of_socket(socket: RawFd, length: usize, at: libc::off_t) -> io::Result<Self> {
        Self::map(socket, length, at, libc::MAP_SHARED)
    }

    fn map(file: RawFd, length: usize, at: libc::off_t, kind: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; it touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                kind | libc::MAP_POPULATE,
                file,
                at,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: start.cast(),
            length,
        })
    }
}

impl Drop for MemoryMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from it outlives this value.
        unsafe {
            libc::munmap(self.start.cast(), self.length);
        }
    }
}

fn set_option<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    packet_system::set_option(socket, libc::SOL_XDP, option, value)
}

/// Reads one of the kernel's plain structures.
fn option<T>(socket: &OwnedFd, option: libc::c_int) -> io::Result<T> {
    // SAFETY: used for two structures of numbers, for which all zeros is a value.
    let mut value: T = unsafe { mem::zeroed() };
    let mut length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: both live through the call, and the length is the value's.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            ptr::from_mut(&mut value).cast(),
            &raw mut length,
        )
    })?;
    Ok(value)
}
