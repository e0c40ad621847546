//! What the driver asks of a device, whatever packets come from and go to.
//!
//! ```text
//!   kernel ──► receive ──► driver ──► send … send, flush ──► kernel
//! ```
//! A device deals in real packets only: what the kernel hands over as one big offloaded packet is
//! split before the driver sees it, and what is handed to the kernel may be put together again
//! only from packets that are written at the same moment. A device decides nothing about a
//! packet's fate, and counts what it could not carry.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use emulate::{LinkFraming, PacketDelivery};

/// One end of the link.
pub trait LinkDevice: Send {
    /// The name to call it by in messages.
    fn name(&self) -> &str;

    /// What its packets begin with.
    fn framing(&self) -> LinkFraming;

    /// What can be waited for: readable when packets wait.
    fn file(&self) -> BorrowedFd<'_>;

    /// Whether looking at the device costs so much that, where packets are dense, it is worth
    /// waiting for several. A packet socket is: with the wait it carried 405,000 short packets per
    /// second and 2.8 Gbit/s, without it 217,000 and 1.8. A TUN device carried 439,000 without it.
    fn prefers_many(&self) -> bool {
        false
    }

    /// Appends what has come without waiting for more: at most about `max` packets, as a big
    /// packet is never split in two turns.
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

/// How long two readings of the link's clock are apart at most where nothing else ran between
/// them, and how often to try for that.
const READING: Duration = Duration::from_micros(2);
const READINGS_MAX: u32 = 4;

/// What another clock shows, and the same moment on the link's.
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
    /// When it came; `None` where the kernel does not say.
    pub came: Option<Instant>,
}
