//! Conversion of a capture's segments to packets that passed a bottleneck or did not, with their
//! waits for it.
//!
//! ```text
//!            at or before the bottleneck                     behind it
//!  sent      when the segment was captured                   arrival less its wait
//!  passed    it was acknowledged (SACK counts)               it arrived
//!  lost      it was sent again, and not too early            a hole that is filled a round trip later
//!  waited    until the acknowledgement, above the least      arrival against the sender's time stamps
//! ```
//! All connections of a pair of hosts in one direction are one stream of packets: what they share is
//! one bottleneck. Super-segments are cut into segments. Sequence numbers wrap, and a capture may begin
//! and end anywhere. A header of some bytes may stand for hundreds of packets, or for tens of thousands that
//! are missing before it, so that streams are cut off where they come to more packets than [`PacketLimits`].

mod captured_directions;
mod clock;
mod packet_limits;
#[cfg(test)]
mod tests;
mod window;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use vocab::Time;

pub(super) use self::captured_directions::CapturedDirections;
use self::clock::TimestampClock;
pub(super) use self::packet_limits::PacketLimits;
use self::packet_limits::cut_off;
pub(super) use self::window::WindowLimit;
use super::segment::{MOST_PAYLOAD, TcpSegment};
#[cfg(test)]
use super::statistics::looks;

/// Assumed segment size of a super-segment whose segment size is unknown: Ethernet's, with
/// timestamps.
const USUAL_PAYLOAD: u32 = 1_448;
/// A resent segment that is acknowledged within this share of the least RTT was not lost at first.
const TOO_EARLY: f64 = 0.5;
/// Segments that come behind one that is lost, and not only late (RFC 6675 §2, DupThresh).
const OVERTAKEN_BY: i64 = 3;
/// Time without acknowledgement after which data counts as lost: so many times the least RTT, and
/// so many seconds (RFC 6298 §2).
const LONG_RTTS: f64 = 3.0;
const LONG_S: f64 = 1.0;
/// A hole filled sooner than this share of the least RTT after it showed was reordering.
const REORDERED: f64 = 0.5;
/// The place is at an end when the way to it takes less than this share of the RTT.
const AT_AN_END: f64 = 0.2;
/// Bytes that a hole misses at most: the largest window (RFC 7323 §2.3).
const MOST_MISSING: i64 = 1 << 26;
/// A segment's payload at least; smaller ones only make the account longer.
const LEAST_PAYLOAD: i64 = 256;
/// Greatest number of connections of a capture; later ones are left out.
const MOST_CONNECTIONS: usize = 65_536;

/// Place of a capture, relative to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePlace {
    /// At the sender or near it.
    Sender,
    /// Between the two ends.
    Middle,
    /// At the receiver or near it.
    Receiver,
}

impl CapturePlace {
    /// Its name in reports and in `--json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CapturePlace::Sender => "sender",
            CapturePlace::Middle => "middle",
            CapturePlace::Receiver => "receiver",
        }
    }
}

/// Fate of a packet at the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PacketFate {
    Lost,
    /// The wait in seconds, where it is known.
    Passed(Option<f64>),
}

/// A packet at the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PacketPassage {
    /// Seconds since the capture's first packet.
    pub(super) sent: f64,
    /// Time of its capture, or the time at which its hole appeared.
    pub(super) seen: f64,
    /// Length of the IP packet.
    pub(super) bytes: f64,
    pub(super) fate: PacketFate,
}

/// All packets from one host to another.
#[derive(Clone, Debug)]
pub(super) struct HostStream {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) connections: usize,
    /// Connections whose beginning is not in the capture.
    pub(super) begun_before: usize,
    pub(super) payload_bytes: u64,
    /// Directions of the transfer that were captured: data, acknowledgements, or both.
    pub(super) ways: CapturedDirections,
    /// Payload that came after as many packets as are looked at.
    pub(super) left_out: u64,
    pub(super) place: CapturePlace,
    /// Passages in order of `sent`.
    pub(super) passages: Vec<PacketPassage>,
    /// The least RTT between the ends, in seconds, as far as it shows from here.
    pub(super) least_rtt: Option<f64>,
    /// Limit of the bytes in flight.
    pub(super) window: WindowLimit,
}

/// A direction of a connection.
#[derive(Debug, Default)]
struct ConnectionDirection {
    events: Vec<CaptureEvent>,
    base: Option<i64>,
    highest: i64,
    payload_bytes: u64,
    most_payload: u32,
    segment_bytes: Option<u16>,
    /// Window scale of this direction's receiver.
    window_scale: Option<u8>,
    opened: bool,
}

#[derive(Clone, Debug)]
struct CaptureEvent {
    /// The place of its segment in the capture.
    order: usize,
    at: f64,
    what: EventContent,
}

#[derive(Clone, Debug)]
enum EventContent {
    Data {
        start: i64,
        end: i64,
        header: u32,
        stamps: Option<(u32, u32)>,
    },
    Ack {
        next: i64,
        blocks: [Option<(i64, i64)>; 4],
        window: u16,
        stamps: Option<(u32, u32)>,
    },
}

type ConnectionKey = (SocketAddr, SocketAddr, u32);

/// Puts a capture's segments together to streams, the one with most payload first.
pub(super) fn streams(segments: &[TcpSegment], most: PacketLimits) -> Vec<HostStream> {
    let halves = halves(segments);
    let mut pairs: BTreeMap<(IpAddr, IpAddr), Vec<ConnectionDirection>> = BTreeMap::new();
    for ((source, destination, _), half) in halves {
        if half.payload_bytes > 0 || half.unseen() > 0 {
            let pair = (source.ip(), destination.ip());
            pairs.entry(pair).or_default().push(half);
        }
    }
    let mut pairs: Vec<((IpAddr, IpAddr), Vec<ConnectionDirection>)> = pairs.into_iter().collect();
    let most_sent = |halves: &[ConnectionDirection]| -> u64 {
        let sent = halves.iter().map(|half| half.payload_bytes + half.unseen());
        sent.sum()
    };
    pairs.sort_by_key(|(_, halves)| Reverse(most_sent(halves)));
    let mut left = most.of_all;
    let stream = |((source, destination), mut halves): (_, Vec<ConnectionDirection>)| {
        let ways = CapturedDirections::of(&halves);
        if ways == CapturedDirections::Both {
            halves.retain(|half| half.payload_bytes > 0);
        }
        let payload = payload_bytes(&halves);
        let sizes: Vec<i64> = halves.iter().map(ConnectionDirection::segment).collect();
        left -= cut_off(&mut halves, &sizes, left.min(most.of_stream));
        let left_out = payload - payload_bytes(&halves);
        HostStream {
            ways,
            left_out,
            ..HostStream::of(source, destination, &halves, &sizes)
        }
    };
    pairs.into_iter().map(stream).collect()
}

fn payload_bytes(halves: &[ConnectionDirection]) -> u64 {
    halves.iter().map(|half| half.payload_bytes).sum()
}

/// Sorts segments into directions of connections; a port that is used again is another connection.
fn halves(segments: &[TcpSegment]) -> BTreeMap<ConnectionKey, ConnectionDirection> {
    let Some(first) = segments.first().map(|segment| segment.at) else {
        return BTreeMap::new();
    };
    let mut halves: BTreeMap<ConnectionKey, ConnectionDirection> = BTreeMap::new();
    let mut generations: HashMap<(SocketAddr, SocketAddr), u32> = HashMap::new();
    for (order, segment) in segments.iter().enumerate() {
        let (here, there) = (segment.source, segment.destination);
        let pair = (here.min(there), here.max(there));
        let is_first = segment.opens && segment.acknowledgement.is_none();
        let known = generations.get(&pair).copied();
        let mut generation = known.unwrap_or_default();
        if is_first
            && halves
                .get(&(here, there, generation))
                .is_some_and(ConnectionDirection::has_begun)
        {
            generation += 1;
        }
        let is_left_out = halves.len() >= 2 * MOST_CONNECTIONS
            && !halves.contains_key(&(here, there, generation));
        if known.is_some() || !is_left_out {
            generations.insert(pair, generation);
        }
        if is_left_out {
            continue;
        }
        let at = seconds(first, segment.at);
        halves
            .entry((here, there, generation))
            .or_default()
            .sent(order, at, segment);
        halves
            .entry((there, here, generation))
            .or_default()
            .answered(order, at, segment);
    }
    halves
}

fn seconds(first: Time, at: Time) -> f64 {
    (at.as_nanos() as i128 - first.as_nanos() as i128) as f64 / 1e9
}

impl ConnectionDirection {
    fn has_begun(&self) -> bool {
        self.payload_bytes > 0
    }

    /// A number's place in the direction, counted on where 32 bits wrap.
    fn unwrap(&mut self, number: u32) -> i64 {
        if self.base.is_none() {
            self.base = Some(i64::from(number));
            self.highest = i64::from(number);
        }
        let step = number.wrapping_sub(self.highest as u32) as i32;
        let place = self.highest + i64::from(step);
        self.highest = self.highest.max(place);
        place
    }

    fn sent(&mut self, order: usize, at: f64, segment: &TcpSegment) {
        if segment.opens {
            self.opened = true;
            self.segment_bytes = segment.options.segment_bytes;
        }
        if segment.payload_bytes == 0 || segment.payload_bytes > MOST_PAYLOAD {
            return;
        }
        let start = self.unwrap(segment.sequence) + i64::from(segment.opens);
        let end = start + i64::from(segment.payload_bytes);
        self.highest = self.highest.max(end);
        self.payload_bytes += u64::from(segment.payload_bytes);
        self.most_payload = self.most_payload.max(segment.payload_bytes);
        self.events.push(CaptureEvent {
            order,
            at,
            what: EventContent::Data {
                start,
                end,
                header: segment.header_bytes,
                stamps: segment.options.stamps,
            },
        });
    }

    /// Takes in a segment of the other direction, for its acknowledgements of this one.
    fn answered(&mut self, order: usize, at: f64, segment: &TcpSegment) {
        if segment.opens {
            self.window_scale = Some(segment.options.window_scale.unwrap_or(0));
        }
        let Some(acknowledgement) = segment.acknowledgement else {
            return;
        };
        let next = self.unwrap(acknowledgement);
        let place = |number: u32| next + i64::from(number.wrapping_sub(next as u32) as i32);
        let blocks = segment
            .options
            .blocks
            .map(|block| block.map(|(start, end)| (place(start), place(end))));
        self.events.push(CaptureEvent {
            order,
            at,
            what: EventContent::Ack {
                next,
                blocks,
                // That of a SYN is not scaled (RFC 7323 §2.2).
                window: match self.window_scale {
                    Some(scale) if segment.opens => segment.window >> scale.min(14),
                    _ => segment.window,
                },
                stamps: segment.options.stamps,
            },
        });
    }

    /// The payload of one segment on the wire.
    fn segment(&self) -> i64 {
        let stamps = self.events.iter().any(|event| match &event.what {
            EventContent::Data { stamps, .. } => stamps.is_some(),
            EventContent::Ack { .. } => false,
        });
        let agreed = self
            .segment_bytes
            .map(|bytes| u32::from(bytes).saturating_sub(if stamps { 12 } else { 0 }));
        // More than a jumbo frame was never one packet.
        let usual = if self.most_payload <= 8_960 {
            self.most_payload
        } else {
            USUAL_PAYLOAD
        };
        let agreed = agreed.or_else(|| self.common_payload());
        i64::from(agreed.unwrap_or(usual).min(usual.max(536))).max(LEAST_PAYLOAD)
    }

    /// Payload size of which nearly all payloads are multiples, where no handshake gives it and
    /// several segments may have been captured as one.
    fn common_payload(&self) -> Option<u32> {
        /// Payloads that may be something else: the last one of a message, say.
        const MOST_OTHERS: f64 = 0.1;
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for event in &self.events {
            if let EventContent::Data { start, end, .. } = &event.what {
                *counts.entry((end - start) as u32).or_default() += 1;
            }
        }
        let most_others = MOST_OTHERS * counts.values().sum::<usize>() as f64;
        let is_common = |size: &u32| {
            let others = counts.iter().filter(|(payload, _)| *payload % size != 0);
            let mut sums = others.scan(0, |sum, (_, count)| {
                *sum += count;
                Some(*sum)
            });
            sums.all(|sum: usize| sum as f64 <= most_others)
        };
        let found = likely_payloads(&counts).into_iter().find(is_common)?;
        // Two of the usual size are no larger one.
        Some(match found % USUAL_PAYLOAD {
            0 => USUAL_PAYLOAD,
            _ => found,
        })
    }

    /// Tells whether the receiver answers every second segment (RFC 9293 §3.8.6.3), so that an
    /// answer to a single one is a delayed acknowledgement.
    fn answers_pairs(&self, segment: i64) -> bool {
        let (mut highest, mut to_one, mut to_more) = (None, 0, 0);
        for event in &self.events {
            let EventContent::Ack { next, blocks, .. } = &event.what else {
                continue;
            };
            let before = *highest.get_or_insert(*next);
            if *next > before && blocks[0].is_none() {
                match next - before > segment {
                    true => to_more += 1,
                    false => to_one += 1,
                }
            }
            highest = Some(before.max(*next));
        }
        to_more > to_one
    }

    /// The least time from data to its acknowledgement, seen from here.
    fn least_answer(&self) -> Option<f64> {
        let mut waiting: Vec<(i64, i64, f64)> = Vec::new();
        let (mut least, mut highest, mut head): (Option<f64>, i64, usize) = (None, i64::MIN, 0);
        for event in &self.events {
            match &event.what {
                EventContent::Data { start, end, .. } => {
                    if *end > highest {
                        waiting.push(((*start).max(highest), *end, event.at));
                        highest = *end;
                    } else {
                        // Sent again: whose acknowledgement comes next is not known.
                        head = waiting.len();
                    }
                }
                EventContent::Ack { next, blocks, .. } => {
                    let farthest = farthest(*next, blocks);
                    if farthest > highest {
                        // Of what was sent before the capture began: what waits here may have been sent again.
                        (highest, head) = (farthest, waiting.len());
                    }
                    let mut latest = None;
                    // Of what was captured as one the first segment is answered before the others.
                    while let Some((_, end, at)) =
                        waiting.get(head).filter(|(start, _, _)| start < next)
                    {
                        latest = Some(*at);
                        if end > next {
                            break;
                        }
                        head += 1;
                    }
                    if let Some(at) = latest {
                        let took = event.at - at;
                        least = Some(least.map_or(took, |least: f64| least.min(took)));
                    }
                }
            }
        }
        least
    }

    /// The least time from an acknowledgement to the data that echoes its stamp, seen from here.
    fn least_response(&self) -> Option<f64> {
        let mut answered: HashMap<u32, f64> = HashMap::new();
        let mut least: Option<f64> = None;
        for event in &self.events {
            match &event.what {
                EventContent::Ack {
                    stamps: Some((stamp, _)),
                    ..
                } => {
                    // The last one with this stamp: earlier ones would make it look longer.
                    answered.insert(*stamp, event.at);
                }
                EventContent::Data {
                    stamps: Some((_, echo)),
                    ..
                } => {
                    if let Some(at) = answered.get(echo) {
                        let took = event.at - at;
                        least = Some(least.map_or(took, |least: f64| least.min(took)));
                    }
                }
                EventContent::Ack { .. } | EventContent::Data { .. } => {}
            }
        }
        least
    }
}

/// End of the data that an answer acknowledges. Data up to there was sent before the answer, even
/// if it is not in the capture; data sent after it is a retransmission.
fn farthest(next: i64, blocks: &[Option<(i64, i64)>; 4]) -> i64 {
    let ends = blocks.iter().flatten().map(|(_, end)| *end);
    ends.fold(next, i64::max)
}

/// Sizes that the payload of one segment may have, the likely ones first: the most frequent
/// captured ones, in order of size, then halves and thirds of them.
fn likely_payloads(counts: &BTreeMap<u32, usize>) -> Vec<u32> {
    /// Segment size that every host accepts (RFC 9293 §3.7.1).
    const LEAST: u32 = 536;
    /// Each is held against all sizes, and a capture may have any number of those.
    const MOST_WHOLE: usize = 32;
    let mut whole: Vec<(u32, usize)> = counts
        .range(LEAST..)
        .map(|(size, count)| (*size, *count))
        .collect();
    // Of equally many the smaller: a larger one may be several of it.
    whole.sort_by_key(|(size, count)| (Reverse(*count), *size));
    whole.truncate(MOST_WHOLE);
    let mut likely: Vec<u32> = whole.into_iter().map(|(size, _)| size).collect();
    likely.sort_unstable();
    let parts: Vec<u32> = likely
        .iter()
        .flat_map(|size| [2, 3].map(|parts| (size % parts, size / parts)))
        .filter(|(rest, part)| *rest == 0 && *part >= LEAST)
        .map(|(_, part)| part)
        .collect();
    likely.extend(parts);
    likely
}

impl HostStream {
    /// `sizes` are those of each half's segments.
    fn of(
        source: IpAddr,
        destination: IpAddr,
        halves: &[ConnectionDirection],
        sizes: &[i64],
    ) -> Self {
        let least =
            |values: &mut dyn Iterator<Item = Option<f64>>| values.flatten().min_by(f64::total_cmp);
        let answer = least(&mut halves.iter().map(ConnectionDirection::least_answer));
        let response = least(&mut halves.iter().map(ConnectionDirection::least_response));
        let rtt = match (answer, response) {
            (Some(answer), Some(response)) => Some(answer + response),
            (answer, _) => answer,
        };
        let place = match (answer, response) {
            (Some(answer), Some(response)) if answer < AT_AN_END * (answer + response) => {
                CapturePlace::Receiver
            }
            (Some(answer), Some(response)) if response > AT_AN_END * (answer + response) => {
                CapturePlace::Middle
            }
            // Without stamps a receiver's own answers, within a millisecond, tell it.
            (Some(answer), None) if answer < 0.001 => CapturePlace::Receiver,
            _ => CapturePlace::Sender,
        };
        let sized = || halves.iter().zip(sizes);
        let before: Vec<PacketPassage> = sized()
            .flat_map(|(half, segment)| sent_on(half, *segment, answer))
            .collect();
        let behind: Vec<PacketPassage> = sized()
            .flat_map(|(half, segment)| arrived(half, *segment, rtt))
            .collect();
        let lost = |passages: &[PacketPassage]| {
            passages
                .iter()
                .filter(|passage| passage.fate == PacketFate::Lost)
                .count()
        };
        let is_behind = match place {
            CapturePlace::Sender => false,
            CapturePlace::Receiver => true,
            CapturePlace::Middle => lost(&behind) > lost(&before),
        };
        let mut passages = if is_behind { behind } else { before };
        passages.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        Self {
            source,
            destination,
            connections: halves.len(),
            begun_before: halves.iter().filter(|half| !half.opened).count(),
            payload_bytes: payload_bytes(halves),
            ways: CapturedDirections::Both,
            left_out: 0,
            place,
            passages,
            least_rtt: rtt,
            window: WindowLimit::of(halves, sizes, rtt),
        }
    }
}

/// A piece of a direction that was sent, of a segment's size.
struct SentPiece {
    end: i64,
    /// Its latest transmission's passage.
    passage: usize,
    sent: f64,
    times: u32,
    /// The transmission before, should this one turn out to have been too early.
    before: Option<usize>,
}

/// Passages for a capture before the bottleneck: acknowledgements show the packets' fates.
fn sent_on(half: &ConnectionDirection, segment: i64, least: Option<f64>) -> Vec<PacketPassage> {
    let least = least.unwrap_or_default();
    let mut passages: Vec<PacketPassage> = Vec::new();
    let mut known: Vec<bool> = Vec::new();
    let mut waiting: BTreeMap<i64, SentPiece> = BTreeMap::new();
    let mut highest = i64::MIN;
    let mut had_blocks = false;
    // The end of the last one that is known to have come, and when the last answer did.
    let (mut highest_came, mut last_answer) = (i64::MIN, f64::NEG_INFINITY);
    let answers_pairs = half.answers_pairs(segment);
    for event in &half.events {
        match &event.what {
            EventContent::Data {
                start, end, header, ..
            } => {
                let mut from = *start;
                while from < *end {
                    let to = (from + segment).min(*end);
                    let bytes = (to - from) as f64 + f64::from(*header);
                    let index = passages.len();
                    if to > highest {
                        waiting.insert(
                            from,
                            SentPiece {
                                end: to,
                                passage: index,
                                sent: event.at,
                                times: 1,
                                before: None,
                            },
                        );
                        highest = to;
                    } else if let Some((_, piece)) = waiting
                        .range_mut(..=from)
                        .next_back()
                        .filter(|(_, piece)| piece.end > from)
                    {
                        passages[piece.passage].fate = PacketFate::Lost;
                        known[piece.passage] = true;
                        piece.before = Some(piece.passage);
                        piece.passage = index;
                        piece.sent = event.at;
                        piece.times += 1;
                    } else {
                        // Sent again though it was acknowledged: it takes its place at the bottleneck.
                    }
                    passages.push(PacketPassage {
                        sent: event.at,
                        seen: event.at,
                        bytes,
                        fate: PacketFate::Passed(None),
                    });
                    known.push(false);
                    from = to;
                }
            }
            EventContent::Ack { next, blocks, .. } => {
                let farthest = farthest(*next, blocks);
                // An answer to what was sent before the capture began: what waits here may have been sent again.
                let is_before = farthest > highest;
                highest = highest.max(farthest);
                last_answer = event.at;
                let mut newest: Option<(f64, usize)> = None;
                let mut settled = 0;
                // Only what has just come tells a wait: the end of the first block, or what is
                // acknowledged while nothing is missing. Other news may be old (RFC 2018 §4).
                let first = blocks[0].map(|(_, end)| end);
                let is_new = |end: i64| match first {
                    Some(first) => end == first,
                    None => !had_blocks,
                };
                let mut settle = |piece: SentPiece| {
                    settled += 1;
                    highest_came = highest_came.max(piece.end);
                    known[piece.passage] = true;
                    if piece.times == 1 {
                        if is_before || !is_new(piece.end) {
                            return;
                        }
                        if newest.is_none_or(|(sent, _)| piece.sent >= sent) {
                            newest = Some((piece.sent, piece.passage));
                        }
                    } else if event.at - piece.sent < TOO_EARLY * least
                        && let Some(before) = piece.before
                    {
                        passages[before].fate = PacketFate::Passed(None);
                    }
                };
                while let Some(entry) = waiting.first_entry() {
                    if entry.get().end > *next {
                        break;
                    }
                    settle(entry.remove());
                }
                let blocks = blocks.iter().flatten().filter(|(start, end)| start < end);
                for (start, end) in blocks {
                    // The latest block grows at its end; what is below was taken out before.
                    while let Some((key, piece)) = waiting.range(start..end).next_back() {
                        if piece.end > *end {
                            break;
                        }
                        let key = *key;
                        if let Some(piece) = waiting.remove(&key) {
                            settle(piece);
                        }
                    }
                }
                // One that waited for a second segment tells of that and not of the path.
                let is_delayed = answers_pairs && settled == 1 && first.is_none() && !had_blocks;
                had_blocks = first.is_some();
                if let Some((sent, passage)) = newest.filter(|_| !is_delayed) {
                    passages[passage].fate =
                        PacketFate::Passed(Some((event.at - sent - least).max(0.0)));
                }
            }
        }
    }
    #[cfg(test)]
    looks::add(passages.len());
    // What is missing though as many as that came behind it (RFC 6675 §4, IsLost), or for long, is lost, though it was
    // not sent again before the capture ended. What else was under way then is not known to have passed.
    let long_ago = last_answer - f64::max(LONG_S, LONG_RTTS * least);
    for piece in waiting.into_values() {
        let is_overtaken = piece.times == 1 && piece.end + OVERTAKEN_BY * segment <= highest_came;
        if is_overtaken || piece.sent < long_ago {
            passages[piece.passage].fate = PacketFate::Lost;
            known[piece.passage] = true;
        }
    }
    let mut known = known.into_iter();
    passages.retain(|_| known.next().unwrap_or_default());
    passages
}

/// Packets behind the bottleneck: those that are missing show as holes.
fn arrived(half: &ConnectionDirection, segment: i64, rtt: Option<f64>) -> Vec<PacketPassage> {
    let clock = TimestampClock::of(half);
    let mut passages: Vec<PacketPassage> = Vec::new();
    // By its first byte: where a hole ends, and which passages stand for it.
    let mut holes: BTreeMap<i64, (i64, usize, f64)> = BTreeMap::new();
    let mut reordered: Vec<usize> = Vec::new();
    let mut highest: Option<i64> = None;
    // When the one came that is in order before a hole: what is missing was sent right behind it.
    let mut before: Option<(f64, f64)> = None;
    for event in &half.events {
        let EventContent::Data {
            start,
            end,
            header,
            stamps,
        } = &event.what
        else {
            continue;
        };
        let wait = clock
            .as_ref()
            .zip(*stamps)
            .map(|(clock, (stamp, _))| clock.wait(event.at, stamp));
        let sent = event.at - wait.unwrap_or_default();
        let top = highest.unwrap_or(*start);
        // A jump further than that is no hole but a gap in the capture.
        let is_hole = *start - top <= MOST_MISSING;
        let mut from = if is_hole { top } else { *start };
        while from < *start {
            let to = (from + segment).min(*start);
            holes.insert(from, (to, passages.len(), event.at));
            passages.push(PacketPassage {
                sent: before.map_or(sent, |(sent, _)| sent),
                seen: before.map_or(event.at, |(_, seen)| seen),
                bytes: (to - from) as f64 + f64::from(*header),
                fate: PacketFate::Lost,
            });
            from = to;
        }
        if *start < top {
            let filled: Vec<i64> = holes
                .range(..*end)
                .rev()
                .take_while(|(_, hole)| hole.0 > *start)
                .map(|(key, _)| *key)
                .collect();
            for key in filled {
                if let Some((_, passage, at)) = holes.remove(&key)
                    && event.at - at < REORDERED * rtt.unwrap_or_default()
                {
                    reordered.push(passage);
                }
            }
        }
        let mut from = *start;
        while from < *end {
            let to = (from + segment).min(*end);
            passages.push(PacketPassage {
                sent,
                seen: event.at,
                bytes: (to - from) as f64 + f64::from(*header),
                fate: PacketFate::Passed(wait),
            });
            from = to;
        }
        if *end > top || before.is_none() {
            before = Some((sent, event.at));
        }
        highest = Some(top.max(*end));
    }
    #[cfg(test)]
    looks::add(passages.len());
    // A packet that came late has a passage of its own.
    let mut late = vec![false; passages.len()];
    for index in reordered {
        late[index] = true;
    }
    let mut late = late.into_iter();
    passages.retain(|_| !late.next().unwrap_or_default());
    passages
}

/// Around each passage the longer of the nearest known waits before and behind it.
pub(super) fn waits(passages: &[PacketPassage]) -> Vec<Option<f64>> {
    let known = |passage: &PacketPassage| match passage.fate {
        PacketFate::Passed(wait) => wait,
        PacketFate::Lost => None,
    };
    let mut waits: Vec<Option<f64>> = Vec::with_capacity(passages.len());
    let mut before = None;
    for passage in passages {
        before = known(passage).or(before);
        waits.push(before);
    }
    let mut behind = None;
    for (passage, wait) in passages.iter().zip(&mut waits).rev() {
        behind = known(passage).or(behind);
        *wait = match (known(passage), *wait, behind) {
            (Some(own), _, _) => Some(own),
            (None, Some(before), Some(behind)) => Some(f64::max(before, behind)),
            (None, before, behind) => before.or(behind),
        };
    }
    waits
}
