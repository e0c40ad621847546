//! A faster line behind the dropping hop: a burst from a bucket waits again there.
//!
//! ```text
//!  sent ──► bucket or queue: some are dropped ──► line: what comes faster than it waits, all of it passes
//! ```
//! That a packet leaves the line right behind another tells how long it waited in all, and not for what: all that shows
//! is that it was in time for its turn. One that leaves later than that has waited for what drops, and for nothing else.
//! So the former waits are taken out, and the latter are left as they are.

use super::super::bucket::split;
use super::super::line::line_waits;
use super::super::passage::{HostStream, PacketFate, PacketPassage};
use super::tokens::departures;
use super::{FASTER_LINE, FULL_EXPLAINS, PassageObservation, noise};

impl PassageObservation {
    /// Observations before a line that carries all passages. `None` where no slower limit is
    /// visible there, so that the line itself may drop.
    pub(super) fn before_further(stream: &HostStream, line: f64) -> Option<Self> {
        let passages = before_further(&stream.passages, line, noise(stream.place));
        let mut seen = Self {
            behind_further: Some(stream.passages.clone()),
            ..Self::with(stream, None, passages)
        };
        let is_slower = |rate: f64| rate * FASTER_LINE < line;
        let bucket = seen.bucket();
        // No bucket lets more through than the line behind it, or that would drop as well.
        let edge = bucket.and_then(|bucket| seen.distinct_edge(bucket.rate));
        if bucket.is_some_and(|bucket| !is_slower(bucket.rate))
            || edge.is_some_and(|edge| !is_slower(edge.rate))
        {
            return None;
        }
        if seen.waiting_rate.is_some_and(is_slower) {
            return Some(seen);
        }
        // Losses that a bucket tells, and the line's own queue does not.
        let (of_line, _) = split(&stream.passages, &own_waits(&stream.passages, line));
        let is_told = bucket?.explained > f64::max(FULL_EXPLAINS, of_line);
        is_told.then_some(seen)
    }
}

/// Passages without the waits of packets that leave right behind others at the rate of a line
/// behind the dropping hop.
fn before_further(passages: &[PacketPassage], line: f64, noise: f64) -> Vec<PacketPassage> {
    /// Greatest delay of a packet that still leaves right behind another, in packets' time.
    const RIGHT_BEHIND: f64 = 0.25;
    let mut free = 0.0_f64;
    let hidden = |(passage, left): (&PacketPassage, Option<f64>)| {
        if passage.fate == PacketFate::Lost {
            return *passage;
        }
        let reached = passage.sent.max(free);
        let waits = free - passage.sent > 2.0 * noise;
        let served = passage.bytes / line;
        let latest = reached + 2.0 * noise + RIGHT_BEHIND * served;
        // What is seen to leave sets right when the line is free again.
        free = left.unwrap_or(reached) + served;
        let is_hidden = waits && left.is_some_and(|left| left < latest);
        PacketPassage {
            fate: match is_hidden {
                true => PacketFate::Passed(None),
                false => passage.fate,
            },
            ..*passage
        }
    };
    let departures = departures(passages, false);
    passages.iter().zip(departures).map(hidden).collect()
}

/// Wait of each packet for a line that drops packets it has no room for; no packet waits for a
/// dropped one.
fn own_waits(passages: &[PacketPassage], line: f64) -> Vec<f64> {
    let taking_turns = passages.iter().map(|passage| PacketPassage {
        bytes: match passage.fate {
            PacketFate::Lost => 0.0,
            PacketFate::Passed(_) => passage.bytes,
        },
        ..*passage
    });
    line_waits(&taking_turns.collect::<Vec<_>>(), Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flights of a hundred packets at 40 Mbit/s to a shaper of 8 Mbit/s and 30 kB with room for five to wait, or to
    /// a policer of that; behind it a line of 32 Mbit/s.
    fn passages(room: f64) -> Vec<(PacketPassage, f64)> {
        const PACKET: f64 = 1_500.0;
        let (rate, line) = (1e6, 4e6);
        let (mut tokens, mut last, mut free) = (30_000.0_f64, 0.0, 0.0_f64);
        let passage = |place: u32| {
            let at = 0.3 * f64::from(place / 100) + 0.000_3 * f64::from(place % 100);
            tokens = f64::min(tokens + rate * (at - last), 30_000.0);
            last = at;
            let waits = f64::max(0.0, PACKET - tokens) / rate;
            let is_lost = waits * rate > room * PACKET;
            let reached = (at + waits).max(free);
            if !is_lost {
                tokens -= PACKET;
                free = reached + PACKET / line;
            }
            let passage = PacketPassage {
                sent: at,
                seen: at,
                bytes: PACKET,
                fate: match is_lost {
                    true => PacketFate::Lost,
                    false => PacketFate::Passed(Some(reached - at)),
                },
            };
            (passage, waits)
        };
        (0..2_000).map(passage).collect()
    }

    #[test]
    fn remaining_wait_is_before_the_line() {
        for room in [0.0, 5.0] {
            let all = passages(room);
            let seen: Vec<PacketPassage> = all.iter().map(|(passage, _)| *passage).collect();
            let (mut shown, mut long) = (0, 0);
            let left = before_further(&seen, 4e6, 0.000_05);
            for (passage, (_, waits)) in left.iter().zip(&all) {
                if let PacketFate::Passed(Some(wait)) = passage.fate {
                    assert!((wait - waits).abs() < 0.000_2, "{room}: {wait} {waits}");
                    shown += 1;
                    long += usize::from(wait > 0.001);
                }
            }
            assert!(shown >= 20, "{room}: {shown}");
            assert_eq!(long > 0, room > 0.0, "{room}: {long}");
        }
    }

    #[test]
    fn packets_do_not_wait_for_dropped_ones() {
        let at_once = |fate: PacketFate| PacketPassage {
            sent: 0.0,
            seen: 0.0,
            bytes: 1_000.0,
            fate,
        };
        let passages = [
            PacketFate::Passed(None),
            PacketFate::Lost,
            PacketFate::Passed(None),
        ]
        .map(at_once);
        assert_eq!(own_waits(&passages, 1e6), [0.0, 0.001, 0.001]);
    }
}
