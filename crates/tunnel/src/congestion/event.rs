//! Events between a transport and a congestion controller: packets sent, acknowledged and lost.

use std::time::Duration;

use vocab::Time;

/// Controller state when a packet was sent, kept until the packet is acknowledged or lost
/// (draft-ietf-ccwg-bbr, "Per-packet (P) state").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendState {
    /// Bytes delivered when it went out.
    pub(super) delivered: u64,
    /// Time at which the last of them was known to be delivered.
    pub(super) delivered_at: Time,
    /// Sending time of the packet at which that delivery's sending interval starts.
    pub(super) first_sent_at: Time,
    /// Bytes sent when it had gone out.
    pub(super) sent: u64,
    /// Bytes sent when the packet had gone out that was then the newest known to be delivered.
    pub(super) sent_of_newest_acked: u64,
    /// Bytes lost when it went out.
    pub(super) lost: u64,
    /// Bursts of loss begun when it went out.
    pub(super) loss_runs: u64,
    /// Bytes in flight with it.
    pub(super) in_flight: u64,
    /// The part of a probing cycle in which it went out, counted up.
    pub(super) epoch: u32,
    /// True if the sender lacked data when the packet was sent.
    pub(super) is_application_limited: bool,
}

/// A packet that the peer has, or whose contents it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckedPacket {
    /// The packet's number.
    pub number: u64,
    /// Its bytes, headers included.
    pub bytes: u64,
    /// Time at which it was sent.
    pub sent_at: Time,
    /// State that the controller attached when the packet was sent.
    pub state: SendState,
    /// True if the packet was lost and recovered from repair packets. It counts as a loss, since
    /// the path dropped it, and as delivered, since nothing has to be sent again.
    pub recovered: bool,
}

/// A packet that was declared lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostPacket {
    /// The packet's number.
    pub number: u64,
    /// Its bytes, headers included.
    pub bytes: u64,
    /// Time at which it was sent.
    pub sent_at: Time,
    /// State that the controller attached when the packet was sent.
    pub state: SendState,
}

/// One acknowledgement or one loss timer, as a controller sees it. A packet is in one of the three
/// lists, once; one that was declared lost may come again, in `spurious`.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryEvent<'a> {
    /// Time at which it is handled.
    pub now: Time,
    /// Newly acknowledged packets, in any order.
    pub acked: &'a [AckedPacket],
    /// Newly lost packets, in any order.
    pub lost: &'a [LostPacket],
    /// Packets once declared lost and now acknowledged, late; they are not in `acked` as well.
    pub spurious: &'a [LostPacket],
    /// Round-trip time of the newest acknowledged packet, if it is known.
    pub rtt: Option<Duration>,
    /// Additional packets that the peer reports as marked "congestion experienced".
    pub ce_marked: u64,
    /// Bytes in flight after all this.
    pub in_flight: u64,
    /// Spread of round-trip times on a path that reorders packets: the distance of a high quantile
    /// from the minimum. `None` while packets arrive in order.
    pub reordering: Option<Duration>,
}
