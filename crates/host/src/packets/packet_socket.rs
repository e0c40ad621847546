//! Bridge end over packet sockets, which every kernel and every driver has.
//!
//! ```text
//!   interface ──► ring of received frames ──► real frames ──► driver
//!             ◄── batches, runs put together ◄── real frames ◄──┘
//! ```
//! Received frames carry the kernel's timestamp, so that their time in the ring does not count as
//! delay. Frames that are sent at the same moment go in one system call, and a run of one TCP or
//! UDP flow goes as one big packet where the interface accepts it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bytes::Bytes;
use emulate::{LinkFraming, PacketDelivery};

use super::device::{LinkDevice, ReceivedPacket, beside};
use super::frame;
use super::interface::{ClaimedInterface, in_namespace};
use super::namespace::NetworkNamespace;
use super::offload::{MergeOptions, PacketGroup, RunRefusals};
use super::packet_system::{BATCH_FRAMES, FrameRing, FrameSender, is_transient};

/// A stamp that is further from now was made by a clock that has been set since.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Number of reads of an empty ring after which the interface is checked for an error: an error
/// shows as waits that repeatedly end at once without a frame.
const EMPTY_TURNS: u32 = 64;

/// Pauses, and how many of them a batch may have, while the other end's kernel has no room: time
/// for its soft interrupts to run on the processor that this thread keeps from them.
const PAUSE: Duration = Duration::from_micros(20);
const PAUSES_MAX: u32 = 25;

/// A pair of sockets on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    ring: FrameRing,
    sender: FrameSender,
    waiting: Vec<Bytes>,
    run: FrameRun,
    merging: MergeOptions,
    /// Refusals of an interface that does not split this kind, although it claims to split TCP, or
    /// whose other end has a full queue.
    refusals: RunRefusals,
    /// Malformed frames from the kernel that could not be split.
    unsplittable: u64,
    failed: u64,
    empty_turns: u32,
    // Last, so that it is put back once the sockets are closed.
    interface: ClaimedInterface,
}

/// Readings of the timestamp clock and of the link's clock at the same moment.
#[derive(Clone, Copy, Debug)]
struct ClockPair {
    /// Time since 1970, by CLOCK_REALTIME.
    stamp: Duration,
    instant: Instant,
}

/// Frames that may go as one.
#[derive(Debug, Default)]
struct FrameRun {
    /// The frames, whole.
    frames: Vec<Bytes>,
    /// Packets in the frames; each continues the one before.
    packets: PacketGroup,
    /// Offset of the packet in a frame.
    start: usize,
}

impl PacketSocket {
    /// Begins to receive what comes into an interface that has been taken.
    ///
    /// # Errors
    /// When the user may not.
    pub fn open(interface: ClaimedInterface, namespace: Option<&NetworkNamespace>) -> Result<Self> {
        let frame_bytes = interface.mtu() + frame::HEADER + frame::TAG;
        let index = interface.index();
        let (ring, sender) = in_namespace(namespace, || {
            Ok((
                FrameRing::open(index, frame_bytes)?,
                FrameSender::open(index)?,
            ))
        })
        .with_context(|| {
            format!(
                "cannot open packet sockets on {}; it takes CAP_NET_RAW: run as root",
                interface.name()
            )
        })?;
        let splits = interface.splits_large_packets();
        Ok(Self {
            ring,
            sender,
            waiting: Vec::with_capacity(BATCH_FRAMES),
            run: FrameRun::default(),
            merging: MergeOptions {
                tcp: splits,
                udp: splits,
            },
            refusals: RunRefusals::default(),
            unsplittable: 0,
            failed: 0,
            empty_turns: 0,
            interface,
        })
    }

    /// Sends every frame alone, so that a receiver without the kernel's help sees single packets.
    #[must_use]
    pub fn with_single_frames(mut self) -> Self {
        self.merging = MergeOptions::NONE;
        self
    }

    /// Sends `waiting`, in order, as the frames they are.
    fn send_waiting(&mut self) {
        let mut sent = 0;
        let mut pauses = 0;
        while sent < self.waiting.len() {
            match self.sender.send(&self.waiting[sent..]) {
                Ok(count) => sent += count,
                Err(error) if is_transient(&error) && pauses < PAUSES_MAX => {
                    pauses += 1;
                    thread::sleep(PAUSE);
                }
                Err(error) => {
                    self.count_failure(&error);
                    sent += 1;
                }
            }
        }
        self.waiting.clear();
    }

    /// Ends the run: sends it as one if it is more than one frame.
    fn end_run(&mut self) {
        if self.run.frames.len() > 1 {
            self.send_waiting();
            match self.run.send(&self.sender) {
                Ok(()) => {
                    self.refusals.taken();
                    self.run.frames.clear();
                }
                Err(error) => {
                    tracing::trace!(interface = self.interface.name(), %error, "a run goes frame by frame");
                    self.refusals.refused();
                }
            }
        }
        self.waiting.append(&mut self.run.frames);
        self.run.packets.clear();
    }

    fn count_failure(&mut self, error: &io::Error) {
        if self.failed == 0 {
            tracing::warn!(interface = self.interface.name(), %error, "the kernel does not take frames");
        }
        self.failed += 1;
    }

    /// Checks for an error when waits find nothing.
    fn look_for_error(&mut self) -> Result<()> {
        self.empty_turns += 1;
        if self.empty_turns < EMPTY_TURNS {
            return Ok(());
        }
        self.empty_turns = 0;
        match self.ring.error()? {
            Some(error) => self.interface.check_socket_error(&error),
            None => Ok(()),
        }
    }
}

impl LinkDevice for PacketSocket {
    fn name(&self) -> &str {
        self.interface.name()
    }

    fn framing(&self) -> LinkFraming {
        LinkFraming::Ethernet
    }

    fn prefers_many(&self) -> bool {
        true
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    fn receive(&mut self, max: usize, into: &mut Vec<ReceivedPacket>) -> Result<()> {
        let clocks = ClockPair::read();
        let before = into.len();
        let unsplittable = &mut self.unsplittable;
        let mut found = false;
        while into.len() - before < max
            && self.ring.take(|shown| {
                let came = clocks.instant(shown.stamp);
                let each = |packet| into.push(ReceivedPacket { packet, came });
                if !frame::make_real(shown.offload, shown.tag, shown.bytes, each) {
                    *unsplittable += 1;
                }
            })
        {
            found = true;
        }
        if found {
            self.empty_turns = 0;
            return Ok(());
        }
        self.look_for_error()
    }

    fn send(&mut self, delivery: PacketDelivery) {
        let (frame, intact) = (delivery.packet, !delivery.corrupted);
        if self.refusals.keep_alone() {
            self.end_run();
            self.waiting.push(frame);
            return;
        }
        let Some(start) = frame::packet_offset(&frame) else {
            self.end_run();
            self.waiting.push(frame);
            return;
        };
        if !self.run.takes(&frame, start, intact) {
            self.end_run();
            self.run.begin(frame, start, intact, self.merging);
        }
    }

    fn flush(&mut self) -> u64 {
        self.end_run();
        self.send_waiting();
        std::mem::take(&mut self.failed)
    }

    /// Returns the dropped packets as the kernel counts them: a large packet counts once, because
    /// the number of its parts is unknown.
    fn unread_packets(&mut self) -> u64 {
        self.ring.dropped() + self.unsplittable
    }
}

impl ClockPair {
    /// Reads both clocks again: CLOCK_REALTIME may be set at any time.
    fn read() -> Self {
        let (stamp, instant) = beside(SystemTime::now);
        let stamp = stamp.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { stamp, instant }
    }

    /// Converts a timestamp to the link's clock, before this pair was read or since.
    fn instant(self, stamp: Duration) -> Option<Instant> {
        if stamp.abs_diff(self.stamp) > AGE_MAX {
            return None;
        }
        match stamp.checked_sub(self.stamp) {
            Some(since) => self.instant.checked_add(since),
            None => self.instant.checked_sub(self.stamp - stamp),
        }
    }
}

impl FrameRun {
    fn begin(&mut self, frame: Bytes, start: usize, intact: bool, merging: MergeOptions) {
        self.packets.begin(frame.slice(start..), intact, merging);
        self.start = start;
        self.frames.push(frame);
    }

    /// Takes a frame that continues the run, behind the same addresses and tags.
    fn takes(&mut self, frame: &Bytes, start: usize, intact: bool) -> bool {
        let continues = start == self.start
            && self
                .frames
                .first()
                .is_some_and(|first| first[..start] == frame[..start])
            && self.packets.extend(frame.slice(start..), intact).is_ok();
        if continues {
            self.frames.push(frame.clone());
        }
        continues
    }

    fn send(&self, sender: &FrameSender) -> io::Result<()> {
        self.packets.write(|pieces| {
            let too_long = || io::Error::from_raw_os_error(libc::EMSGSIZE);
            let [offload, rest @ ..] = pieces else {
                return Err(too_long());
            };
            let offload = <[u8; _]>::try_from(&offload[..]).map_err(|_| too_long())?;
            let offload = frame::moved(offload, self.start as i32).ok_or_else(too_long)?;
            let header = &self.frames[0][..self.start];
            let mut pieces = Vec::with_capacity(rest.len() + 2);
            pieces.push(IoSlice::new(&offload));
            pieces.push(IoSlice::new(header));
            pieces.extend_from_slice(rest);
            sender.send_pieces(&pieces)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_conversion_is_independent_of_reading_time() {
        let clocks = ClockPair {
            stamp: Duration::from_secs(1_000_000),
            instant: Instant::now() + AGE_MAX,
        };
        for micros in [-900_000, -70, -1, 0, 1, 70, 900_000_i64] {
            let by = Duration::from_micros(micros.unsigned_abs());
            let (stamp, instant) = if micros < 0 {
                (clocks.stamp - by, clocks.instant - by)
            } else {
                (clocks.stamp + by, clocks.instant + by)
            };
            assert_eq!(clocks.instant(stamp), Some(instant), "{micros} us");
        }
        for stamp in [clocks.stamp - 2 * AGE_MAX, clocks.stamp + 2 * AGE_MAX] {
            assert_eq!(clocks.instant(stamp), None);
        }
        assert_eq!(clocks.instant(Duration::ZERO), None);
    }
}
