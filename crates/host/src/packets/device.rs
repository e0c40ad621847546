//! Device interface of the driver: where packets come from and go to.
//!
//! ```text
//!   kernel ──► receive ──► driver ──► send … send, flush ──► kernel
//! ```
//! A device handles real packets only. A big offloaded packet from the kernel is split before the
//! driver sees it. Packets for the kernel may be merged again only if they are written at the same
//! moment. A device decides nothing about a packet's fate, and counts the packets that it could not
//! carry.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use emulate::{LinkFraming, PacketDelivery};

/// One end of the link.
pub trait LinkDevice: Send {
    /// The name to call it by in messages.
    fn name(&self) -> &str;

    /// Returns the framing at the start of its packets.
    fn framing(&self) -> LinkFraming;

    /// Returns the file to wait for. It is readable when packets wait.
    fn file(&self) -> BorrowedFd<'_>;

    /// Returns `true` if a read is so expensive that it is worth waiting for several packets where
    /// they are dense.
    ///
    /// A packet socket is such a device: with the wait it carried 405,000 short packets per second
    /// and 2.8 Gbit/s, without it 217,000 and 1.8. A TUN device carried 439,000 without the wait.
    fn prefers_many(&self) -> bool {
        false
    }

    /// Appends received packets without waiting for more: at most about `max`, as a big packet is
    /// never split over two calls.
    ///
    /// # Errors
    /// When the device is gone.
    fn receive(&mut self, max: usize, into: &mut Vec<ReceivedPacket>) -> Result<()>;

    /// Takes a packet to hand to the kernel; it may be kept back until the next
    /// [`LinkDevice::flush`].
    fn send(&mut self, delivery: PacketDelivery);

    /// Hands all that was kept back to the kernel; returns how many packets were not taken since
    /// the last flush.
    fn flush(&mut self) -> u64;

    /// Packets that were lost before they could be received, from the start on. It is called
    /// about once in a second, by the thread that carries the packets.
    fn unread_packets(&mut self) -> u64;
}

/// Longest time between two readings of the link's clock when nothing else ran between them, and
/// the number of attempts.
const READING: Duration = Duration::from_micros(2);
const READINGS_MAX: u32 = 4;

/// Reads another clock, and the link's clock at the same moment.
pub fn beside<T>(read: impl Fn() -> T) -> (T, Instant) {
    let mut before = Instant::now();
    for _ in 0..READINGS_MAX {
        let shown = read();
        let after = Instant::now();
        let took = after - before;
        if took <= READING {
            return (shown, before + took / 2);
        }
        before = after;
    }
    (read(), before)
}

/// A packet from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedPacket {
    /// The packet as it would be on a wire, its check sums completed.
    pub packet: Bytes,
    /// Arrival time; `None` where the kernel does not provide it.
    pub came: Option<Instant>,
}
