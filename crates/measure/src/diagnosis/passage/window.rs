//! Limits that release packets: room in the receiver's window, or the amount that the sender keeps
//! in flight.
//!
//! ```text
//!   under way ▲   ┌─┐ ┌─┐ ┌─┐   a turn: what is under way before an acknowledgement makes room
//!             │  ┌┘ └─┘ └─┘ └─
//!             └──┴────────────► time
//! ```
//! A window that holds a transfer back is full at nearly every turn, whatever it is just then. A sender's own buffer is
//! in no packet; it shows by turns that are all alike while the next packets leave as soon as an acknowledgement
//! comes. A sender that offers no more than some rate leaves packets that no acknowledgement lets go.
//!
//! Away from the sender an acknowledgement counts from when it reached the sender: the least response later.

use super::super::statistics::quantile;
use super::{ConnectionDirection, EventContent, payload_bytes};

/// Share of the payload below which a connection is left out, for example a control connection.
const LEAST_SHARE: f64 = 0.05;
/// Room that a sender may leave in a window: two segments for acknowledgements of pairs, and the
/// room for filling a super-segment.
const ROOM_SEGMENTS: i64 = 2;
const ROOM_SHARE: f64 = 0.125;
/// Least number of turns for a diagnosis.
const LEAST_TURNS: usize = 30;
/// Greatest ratio of the bytes in flight at the fullest turns to those at the emptiest tenth.
const ALIKE: f64 = 1.25;
/// Greatest growth of turns in segments per round trip, and the number of round trips that show it:
/// a congestion window grows by half a segment (RFC 9438 §4.3) or more.
const GROWTH_SEGMENTS: f64 = 0.1;
const LEAST_ROUND_TRIPS: f64 = 20.0;
/// Share of the time between turns within which released packets leave.
const AT_ONCE: f64 = 0.05;
/// The share of turns behind which it does.
const RELEASED: f64 = 0.9;
/// Share of the payload that belongs to connections that are held back.
const NEARLY_ALL: f64 = 0.8;

/// Limit of the bytes in flight, of all connections together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in super::super) struct WindowLimit {
    /// Usual windows of the receivers; `None` where the capture lacks a window scale.
    pub(in super::super) offered: Option<f64>,
    /// The share of turns at which they are full.
    pub(in super::super) full: f64,
    /// Bytes that the senders keep in flight and never exceed, while each acknowledgement releases
    /// the next packets.
    pub(in super::super) kept: Option<f64>,
}

impl WindowLimit {
    /// `sizes` are those of each half's segments; the least RTT is in seconds.
    pub(super) fn of(halves: &[ConnectionDirection], sizes: &[i64], rtt: Option<f64>) -> Self {
        let payload = payload_bytes(halves) as f64;
        let is_main =
            |half: &ConnectionDirection| half.payload_bytes as f64 >= LEAST_SHARE * payload;
        let main = || halves.iter().zip(sizes).filter(|(half, _)| is_main(half));
        let (mut full, mut kept, mut kept_payload) = (0.0, 0.0, 0.0);
        for (half, segment) in main() {
            let share = half.payload_bytes as f64 / payload;
            let turns = WindowTurns::of(half);
            full += share * turns.full_share(*segment);
            if let Some(bytes) = rtt.and_then(|rtt| turns.kept(*segment as f64, rtt)) {
                kept += bytes;
                kept_payload += share;
            }
        }
        Self {
            offered: main().map(|(half, _)| half.usual_window()).sum(),
            full,
            kept: (kept_payload > NEARLY_ALL).then_some(kept),
        }
    }
}

/// Bytes in flight before acknowledgements made room.
#[derive(Default)]
struct WindowTurns {
    /// Bytes under way, and room in the window where its scale is known, at each.
    turns: Vec<(i64, Option<i64>)>,
    /// Times from an acknowledgement to the next data.
    releases: Vec<f64>,
    lasted: f64,
}

impl WindowTurns {
    fn of(half: &ConnectionDirection) -> Self {
        let response = half.least_response().unwrap_or_default();
        let mut acks = half
            .events
            .iter()
            .filter_map(|event| match &event.what {
                EventContent::Ack { next, window, .. } => {
                    Some((event.at + response, *next, *window))
                }
                EventContent::Data { .. } => None,
            })
            .peekable();
        let mut found = Self::default();
        let (mut acked, mut limit) = (None::<i64>, None::<i64>);
        let mut highest: Option<i64> = None;
        let (mut first, mut last) = (None, 0.0);
        for event in &half.events {
            let EventContent::Data { end, .. } = &event.what else {
                continue;
            };
            let mut released = None;
            while let Some((at, next, window)) = acks.next_if(|(at, _, _)| *at <= event.at) {
                if let (None, Some(highest), Some(acked)) = (released, highest, acked) {
                    let room = limit.map(|limit| limit - highest);
                    if highest > acked {
                        found.turns.push((highest - acked, room));
                    }
                }
                released = Some(at);
                acked = Some(acked.map_or(next, |acked| acked.max(next)));
                if let Some(scale) = half.window_scale {
                    let edge = next + (i64::from(window) << scale.min(14));
                    limit = Some(limit.map_or(edge, |limit| limit.max(edge)));
                }
            }
            found.releases.extend(released.map(|at| event.at - at));
            highest = Some(highest.map_or(*end, |highest| highest.max(*end)));
            last = event.at;
            first.get_or_insert(last);
        }
        found.lasted = last - first.unwrap_or(last);
        found
    }

    /// The share of turns that leave no room in the window.
    fn full_share(&self, segment: i64) -> f64 {
        if self.turns.len() < LEAST_TURNS {
            return 0.0;
        }
        let is_full = |(flight, room): &&(i64, Option<i64>)| {
            room.is_some_and(|room| {
                let spare = ROOM_SHARE * (flight + room) as f64;
                room as f64 <= spare.max((ROOM_SEGMENTS * segment) as f64)
            })
        };
        let full = self.turns.iter().filter(is_full).count();
        full as f64 / self.turns.len() as f64
    }

    /// Bytes in flight before equal turns, if acknowledgements release all packets.
    fn kept(&self, segment: f64, rtt: f64) -> Option<f64> {
        let round_trips = self.lasted / rtt;
        if self.turns.len() < LEAST_TURNS || round_trips < LEAST_ROUND_TRIPS {
            return None;
        }
        let mut flights: Vec<f64> = self.turns.iter().map(|turn| turn.0 as f64).collect();
        let (early, late) = flights.split_at_mut(self.turns.len() / 2);
        let growth = quantile(late, 0.5)? - quantile(early, 0.5)?;
        let is_level = growth.abs() <= GROWTH_SEGMENTS * round_trips * segment;
        let (low, most) = (quantile(&mut flights, 0.1)?, quantile(&mut flights, 0.98)?);
        let between = self.lasted / self.turns.len() as f64;
        let at_once = self
            .releases
            .iter()
            .filter(|after| **after <= AT_ONCE * between)
            .count();
        let is_released = at_once as f64 >= RELEASED * self.releases.len() as f64;
        let is_alike = most <= f64::max(ALIKE * low, low + ROOM_SEGMENTS as f64 * segment);
        (is_level && is_alike && is_released).then_some(most)
    }
}

impl ConnectionDirection {
    /// The receiver's usual window.
    fn usual_window(&self) -> Option<f64> {
        let scale = self.window_scale?.min(14);
        let mut windows: Vec<f64> = self
            .events
            .iter()
            .filter_map(|event| match &event.what {
                EventContent::Ack { window, .. } => Some(f64::from(u32::from(*window) << scale)),
                EventContent::Data { .. } => None,
            })
            .collect();
        quantile(&mut windows, 0.5)
    }
}
