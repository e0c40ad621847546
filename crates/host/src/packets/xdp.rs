//! Bridge end over AF_XDP, which takes frames out of the driver before the kernel processes them.
//!
//! A program of a few instructions (`bpf.rs`) redirects every frame of every receive queue to the
//! socket of that queue; frames are sent through the first queue's socket. Where the driver
//! supports it, it runs the program and shares its memory with the sockets; otherwise the kernel
//! does both. The sockets end with the process, and the program with them: from then on the
//! interface works as before.
//!
//! The kernel behind the other end of a veth pair is this machine's own, and it leaves work to
//! hardware that does not exist. The checksums of TCP and UDP are completed here, and the kernel
//! disables large packets while a program is attached natively. XDP programs cannot see VLAN tags
//! beside the frame, or the checksums of SCTP and of packets inside tunnels; only the owner of that
//! end can disable these offloads (ethtool -K DEVICE txvlan off tx off). Packet sockets see the
//! tags, but not which of two checksums SCTP uses.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use emulate::{LinkFraming, PacketDelivery};

use super::bpf::{self, AttachedProgram, SocketMap, XdpMode};
use super::device::{LinkDevice, ReceivedPacket, beside};
use super::frame;
use super::interface::{ClaimedInterface, in_namespace};
use super::namespace::NetworkNamespace;
use super::packet_system::{PromiscuousGuard, is_transient};
use super::xdp_system::{self as system, CopyMode, EpollSet, FRAME_MAX, QueueSocket};

/// Pauses, and how many of them a batch may have, while the device takes nothing.
const PAUSE: Duration = Duration::from_micros(20);
const PAUSES_MAX: u32 = 25;

/// Number of reads of empty rings after which the interface is checked for an error.
const EMPTY_TURNS: u32 = 64;

/// A stamp that is further from now is none.
const AGE_MAX: Duration = Duration::from_secs(1);

/// The sockets of one interface.
#[derive(Debug)]
pub struct XdpSocket {
    /// Files to wait for: all sockets and the guardian.
    gathering: EpollSet,
    guardian: PromiscuousGuard,
    // The program goes before the sockets that it leads to.
    _program: AttachedProgram,
    _map: SocketMap,
    queues: Vec<QueueSocket>,
    /// The queue to look at first, so that each has its turn.
    first: usize,
    /// Epoch of the timestamp clock.
    boot: Option<Instant>,
    failed: u64,
    empty_turns: u32,
    // Last, so that it is put back once the sockets are closed.
    interface: ClaimedInterface,
}

impl XdpSocket {
    /// Leads what comes into an interface that has been taken to sockets of its own.
    ///
    /// # Errors
    /// When the user may not, the kernel has no AF_XDP, or the interface's frames are too long.
    pub fn open(interface: ClaimedInterface, namespace: Option<&NetworkNamespace>) -> Result<Self> {
        let frame_bytes = interface.mtu() + frame::HEADER + frame::TAG;
        if frame_bytes > FRAME_MAX {
            bail!(
                "{} has an MTU of {}, and AF_XDP takes frames of one memory page: set it to {} or less, or use --io packet",
                interface.name(),
                interface.mtu(),
                FRAME_MAX - frame::HEADER - frame::TAG
            );
        }
        if interface.is_veth() {
            tracing::info!(
                interface = interface.name(),
                "with AF_XDP, tags of a VLAN interface on the other end of this veth pair are lost, and SCTP and tunnels from there arrive damaged, unless offloads are off there (ethtool -K DEVICE txvlan off tx off)"
            );
        }
        let (nanoseconds, instant) = beside(system::monotonic_ns);
        let boot = instant.checked_sub(Duration::from_nanos(nanoseconds));
        in_namespace(namespace, || Self::open_here(&interface, frame_bytes)).map(|parts| Self {
            gathering: parts.gathering,
            guardian: parts.guardian,
            _program: parts.program,
            _map: parts.map,
            queues: parts.queues,
            first: 0,
            boot,
            failed: 0,
            empty_turns: 0,
            interface,
        })
    }

    fn open_here(interface: &ClaimedInterface, frame_bytes: usize) -> Result<XdpParts> {
        let index = interface.index();
        let name = interface.name();
        let guardian =
            PromiscuousGuard::of(index).context("cannot make the interface hear all frames")?;
        let count = interface.receive_queues();
        let map = SocketMap::new(count).map_err(explain)?;
        let (program, mode) = match bpf::attach_redirect(&map, index, XdpMode::Native) {
            Ok(program) => (program, XdpMode::Native),
            Err(error) => {
                tracing::debug!(interface = name, %error, "the driver runs no XDP program; the kernel does in its stead");
                let program =
                    bpf::attach_redirect(&map, index, XdpMode::Generic).map_err(explain)?;
                if interface.is_veth() {
                    tracing::warn!(
                        interface = name,
                        "large packets from the other end of this veth pair are lost unless they are off there (ethtool -K DEVICE tso off gso off), or use --io packet"
                    );
                }
                (program, XdpMode::Generic)
            }
        };
        let mut queues = Vec::new();
        for queue in 0..count {
            let socket = QueueSocket::new(frame_bytes).map_err(explain)?;
            let copying = bind(&socket, index, queue, mode).map_err(explain)?;
            map.insert(queue, &socket).map_err(explain)?;
            tracing::debug!(
                interface = name,
                queue,
                ?mode,
                ?copying,
                "AF_XDP socket bound"
            );
            queues.push(socket);
        }
        let files = queues.iter().map(AsFd::as_fd);
        let gathering = EpollSet::of(files.chain([guardian.as_fd()]))
            .context("cannot wait for several sockets")?;
        Ok(XdpParts {
            gathering,
            guardian,
            program,
            map,
            queues,
        })
    }

    fn count_failures(&mut self, count: u64, error: &io::Error) {
        if self.failed == 0 {
            tracing::warn!(interface = self.interface.name(), %error, "the kernel does not take frames");
        }
        self.failed += count;
    }

    fn look_for_error(&mut self) -> Result<()> {
        self.empty_turns += 1;
        if self.empty_turns < EMPTY_TURNS {
            return Ok(());
        }
        self.empty_turns = 0;
        match self.guardian.error()? {
            Some(error) => self.interface.check_socket_error(&error),
            None => Ok(()),
        }
    }

    /// Tells the kernel to send, again until it has taken all.
    fn push(&mut self) {
        let mut pauses = 0;
        loop {
            let queue = &mut self.queues[0];
            let before = queue.unsent();
            let Err(error) = queue.push() else {
                return;
            };
            let gets_on = queue.unsent() < before;
            if error.raw_os_error() == Some(libc::EBUSY) {
                // The frame that it was at is lost.
                self.count_failures(1, &error);
            } else if !is_transient(&error) {
                // What is in the ring is sent once the interface is up again.
                self.count_failures(0, &error);
                return;
            }
            if !gets_on {
                if pauses == PAUSES_MAX {
                    return;
                }
                pauses += 1;
                thread::sleep(PAUSE);
            }
        }
    }

    /// Notifies the kernel again of the frames left in the ring.
    fn push_remaining(&mut self) {
        if self.queues[0].unsent() > 0 {
            self.push();
        }
    }
}

/// Objects that are made in the interface's namespace.
struct XdpParts {
    gathering: EpollSet,
    guardian: PromiscuousGuard,
    program: AttachedProgram,
    map: SocketMap,
    queues: Vec<QueueSocket>,
}

fn bind(socket: &QueueSocket, index: i32, queue: u32, mode: XdpMode) -> io::Result<CopyMode> {
    if mode == XdpMode::Native && socket.bind(index, queue, CopyMode::None).is_ok() {
        return Ok(CopyMode::None);
    }
    socket.bind(index, queue, CopyMode::ByKernel)?;
    Ok(CopyMode::ByKernel)
}

fn explain(error: io::Error) -> anyhow::Error {
    let advice = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF: run as root, or use --io packet"
        }
        Some(libc::EAFNOSUPPORT | libc::ENOSYS) => {
            "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS): use --io packet"
        }
        Some(libc::EBUSY | libc::EEXIST) => {
            "another program has this interface's XDP hook; `ip link` shows it as prog/xdp: stop it, or use --io packet"
        }
        _ => "use --io packet, which works with every interface",
    };
    anyhow::anyhow!("cannot set up AF_XDP: {error}; {advice}")
}

impl LinkDevice for XdpSocket {
    fn name(&self) -> &str {
        self.interface.name()
    }

    fn framing(&self) -> LinkFraming {
        LinkFraming::Ethernet
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.gathering.as_fd()
    }

    fn receive(&mut self, max: usize, into: &mut Vec<ReceivedPacket>) -> Result<()> {
        self.push_remaining();
        let before = into.len();
        let (boot, now) = (self.boot, system::monotonic_ns());
        let count = self.queues.len();
        for turn in 0..count {
            let left = max.saturating_sub(into.len() - before);
            let queue = &mut self.queues[(self.first + turn) % count];
            queue.receive(left, |frame, arrived| {
                frame::complete_checksum(frame);
                let is_stamped = Duration::from_nanos(now.abs_diff(arrived)) <= AGE_MAX;
                let came = boot
                    .filter(|_| is_stamped)
                    .and_then(|boot| boot.checked_add(Duration::from_nanos(arrived)));
                into.push(ReceivedPacket {
                    packet: Bytes::copy_from_slice(frame),
                    came,
                });
            });
        }
        self.first = (self.first + 1) % count;
        if into.len() > before {
            self.empty_turns = 0;
            return Ok(());
        }
        self.look_for_error()
    }

    fn send(&mut self, delivery: PacketDelivery) {
        let mut pauses = 0;
        while !self.queues[0].put(&delivery.packet) {
            // All frames are with the kernel: it has to send some first.
            if pauses == PAUSES_MAX {
                self.count_failures(1, &io::Error::from_raw_os_error(libc::ENOBUFS));
                return;
            }
            self.push();
            if pauses > 0 {
                thread::sleep(PAUSE);
            }
            pauses += 1;
        }
    }

    fn flush(&mut self) -> u64 {
        self.push();
        std::mem::take(&mut self.failed)
    }

    fn unread_packets(&mut self) -> u64 {
        self.push_remaining();
        self.queues.iter().map(QueueSocket::lost).sum()
    }
}
