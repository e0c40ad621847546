//! Every limit that is not configuration: sizes in bytes, spans of time, and why.

use std::time::Duration;

use vocab::ByteCount;

/// Data in one frame, at most. With its header a full frame fits one TLS record (16 KiB), and
/// flows take turns at this grain: at 1 Mbit/s a small flow waits 0.13 s for one frame.
pub const DATA_LIMIT: usize = (16 << 10) - 64;

/// An engine message, at most; longer ones travel in pieces of [`MESSAGE_PIECE`].
pub const MESSAGE_LIMIT: usize = 1 << 20;

/// A piece of a message, at most: with its header, and an acknowledgement beside it, it fits the
/// least packet that every path carries (1,200 bytes, RFC 8899 §5.1.2, BASE_PLPMTU), seal and all.
pub const MESSAGE_PIECE: usize = 1_024;

/// Pieces waiting for the peer's acknowledgement, at most: the backlog in full pieces, and as
/// many short ones.
pub const MESSAGE_PIECES_LIMIT: usize = 2 * MESSAGE_BACKLOG_LIMIT / MESSAGE_PIECE;

/// A frame on the wire after its length, at most: four times what this version sends, so that
/// a later version has room.
pub const FRAME_LIMIT: usize = 64 << 10;

/// Flows opened by one side and not yet closed, at most: the ports one client address has.
pub const FLOW_LIMIT: usize = 65_536;

/// Flows whose reset is remembered for a peer that missed it; the oldest are forgotten first
/// and then answered as gone. As many as can be open, so that giving all up forgets none.
pub const RESETS_REMEMBERED: usize = FLOW_LIMIT;

/// Limit for resets that wait for room on the link: as many as flows of both sides can be open, so
/// that resetting all flows stays within it. A peer beyond it opens flows and never reads their
/// results; it loses the link and the waiting resets.
pub const RESETS_WAITING: usize = 2 * FLOW_LIMIT;

/// Pieces of flows that wait behind gaps, over all flows, at most. What a piece costs beside its bytes
/// is some 128 bytes, so all of them cost no more than what they hold may. An honest peer has one for
/// each packet that was lost and not yet sent again: half a million, by default, are never that many.
#[must_use]
pub fn held_pieces_limit(total_window: ByteCount) -> usize {
    const LEAST: u64 = 1_024;
    const PIECE_BYTES: u64 = 128;
    let pieces = LEAST + total_window.bytes() / PIECE_BYTES;
    usize::try_from(pieces).unwrap_or(usize::MAX)
}

/// Engine messages waiting for the peer's acknowledgement, at most, in bytes: 64 repairs of
/// the largest size. Beyond it the flow that wants to send one more is reset.
pub const MESSAGE_BACKLOG_LIMIT: usize = 16 << 20;

/// Limit for the engine's data in a hello, in bytes: a dictionary generation and room for more.
pub const HELLO_BLOB_LIMIT: usize = 1024;

/// Delay of an acknowledgement, so that a burst of data costs one packet back: the upper end of
/// what TCP stacks use for delayed acknowledgements (RFC 1122 §4.2.3.2 allows 500 ms; 25 ms is
/// below one round trip of the intended links).
pub const ACKNOWLEDGE_DELAY: Duration = Duration::from_millis(25);

/// Minimum interval at which outgoing data carries waiting acknowledgements.
pub const ACKNOWLEDGE_SPACING: Duration = Duration::from_millis(5);

/// Received bytes of one flow that are acknowledged without waiting: 90 full packets, so
/// the answer costs less than a thousandth of the data.
pub const ACKNOWLEDGE_BYTES: u64 = 128 << 10;

/// A link without a hello from the peer after this long is given back.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for which packets continue after their link has broken. The keys belong to that link, and a
/// peer that is revoked meanwhile may not be told. It is long enough for a few attempts to dial.
pub const PACKETS_OUTLIVE_LINK: Duration = Duration::from_secs(60);

/// Time after the peer's host closed the link in which packets may still arrive. It is longer than
/// packets stay in any queue that TCP shares.
pub const LATE_PACKETS: Duration = Duration::from_secs(1);

/// While the attached link is younger than this, a link dialled by the other side counts as
/// dialled at the same time and the lower node id decides; later the newer link wins.
pub const SIMULTANEOUS_DIAL: Duration = Duration::from_secs(3);

/// A busy session measures its round-trip time this often, with a ping that rides along.
pub const ROUND_TRIP_REFRESH: Duration = Duration::from_secs(5);
