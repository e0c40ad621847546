//! Detection of a shaper's bucket by packets that leave faster than its rate.
//!
//! ```text
//!  bytes left ▲            ╱ at the rate, from there on
//!             │      ╭────╱   ┐
//!             │     ╱         │ tokens: what left sooner than a plain line of that rate lets it
//!             │    ╱ ╱        ┘
//!             └───┴─┴──────────► time
//! ```
//! A plain line never lets two packets leave closer upon each other than its rate allows, whoever sent them,
//! whatever was dropped before it and whatever else it carries. What leaves faster has spent tokens, at the
//! beginning or whenever the line was not all used, so that a capture need not show the beginning.

use std::borrow::Cow;

use super::super::finding::{CauseParameters, DiagnosisCause, DiagnosisFinding};
use super::super::passage::{PacketFate, PacketPassage};
use super::super::statistics::confidence;
use super::super::two_ended::{bitrate, bytes, seconds};
use super::PassageObservation;

/// Relative error of a known rate: packets that leave so little faster have used no tokens.
const RATE_KNOWN: f64 = 0.005;
/// ... and the ratio from which on it is another line.
const RATE_STRAYS: f64 = 1.1;
/// Tokens, in packets, that are no bucket.
const TOKEN_PACKETS: f64 = 4.0;
/// ... and beyond the wait of the packet with the least wait.
const BEYOND_PACKETS: f64 = 3.0;
/// Time resolution of a capture: a network card delivers, and acknowledges, packets that close
/// together as one.
const TOLD_APART: f64 = 60e-6;

impl PassageObservation {
    /// Greatest number of bytes that left sooner than a plain line of a rate allows.
    ///
    /// Between any two packets a line carries at most its rate times that time. The result is the
    /// least that may have left sooner: up to a known departure, from a known departure, or from
    /// the sending of the packet.
    fn tokens_spent(&self, rate: f64) -> f64 {
        let rate = rate * (1.0 + RATE_KNOWN);
        let passages = match self.is_behind {
            true => Cow::Owned(self.arrivals()),
            false => Cow::Borrowed(self.leaving()),
        };
        // Bytes that have left less those that the rate allows; where that was lowest, and when something last left.
        let (mut passed, mut lowest, mut most) = (0.0_f64, f64::INFINITY, 0.0_f64);
        let (mut last, mut ahead, mut lost) = (f64::NEG_INFINITY, f64::NEG_INFINITY, false);
        for (passage, left) in passages.iter().zip(self.departures(&passages)) {
            if passage.fate == PacketFate::Lost {
                lost = true;
                continue;
            }
            let earliest = left.unwrap_or(passage.sent).max(last);
            if let (true, Some(at)) = (lost, left) {
                // While losses are mended, what left is known less well than what did not.
                let gained = (passed - rate * at - ahead).max(0.0);
                (passed, lowest) = match gained.is_finite() {
                    true => (passed - gained, lowest),
                    false => (passed, f64::INFINITY),
                };
            }
            lowest = lowest.min(passed - rate * earliest);
            passed += passage.bytes;
            if let Some(at) = left {
                most = most.max(passed - rate * at - lowest);
                (last, ahead, lost) = (at, passed - rate * at, false);
            }
        }
        most
    }

    /// Bytes that were sent right before the packet of the least wait and whose own waits are not known: that one may
    /// have waited for all of them.
    fn unanswered_before_least(&self) -> f64 {
        let mut least = f64::INFINITY;
        let (mut pending, mut flight) = (0.0, f64::NEG_INFINITY);
        for passage in self.leaving() {
            if passage.sent - flight > self.noise {
                (pending, flight) = (0.0, passage.sent);
            }
            match passage.fate {
                PacketFate::Passed(None) => pending += passage.bytes,
                PacketFate::Passed(Some(wait)) => {
                    if wait < TOLD_APART {
                        least = f64::min(least, pending);
                    }
                    pending = 0.0;
                }
                PacketFate::Lost => {}
            }
        }
        if least.is_finite() { least } else { 0.0 }
    }

    /// Passages with their departures from the last line: packets that a bucket passed at once have
    /// passed behind a further line as well, once that has caught up.
    fn leaving(&self) -> &[PacketPassage] {
        self.behind_further.as_deref().unwrap_or(&self.passages)
    }

    /// Departure time of each packet, where it is known.
    pub(super) fn departures(&self, passages: &[PacketPassage]) -> Vec<Option<f64>> {
        departures(passages, self.is_behind)
    }

    /// A bucket before the queue.
    pub(super) fn shaper(&self, rate: f64) -> Option<DiagnosisFinding> {
        let burst = self.tokens_spent(rate);
        let least = f64::max(
            TOKEN_PACKETS * self.packet,
            self.unanswered_before_least() + BEYOND_PACKETS * self.packet,
        );
        let least = least + 2.0 * TOLD_APART * rate;
        // What a line's rate is taken for too low by, adds up to tokens: a bucket has some at the highest as well at
        // which packets were seen to leave.
        let fastest = self
            .fastest_rate
            .filter(|fastest| *fastest < RATE_STRAYS * rate);
        let at_fastest = fastest.map_or(burst, |fastest| self.tokens_spent(fastest.max(rate)));
        (burst.min(at_fastest) > least).then(|| {
            let evidence = format!(
                "{} bytes beyond {} pass without waiting, then packets wait up to {:.1} ms",
                burst.round(),
                bitrate(rate),
                self.long_wait * 1e3
            );
            DiagnosisFinding::new(DiagnosisCause::Shaper, confidence(burst / least), evidence).with(
                CauseParameters {
                    rate: Some(bitrate(rate)),
                    burst: Some(bytes(burst)),
                    queue_delay: Some(seconds(self.long_wait)),
                    ..CauseParameters::default()
                },
            )
        })
    }
}

/// Departure time of each packet, where it is known. A late acknowledgement does not mean a late
/// departure: no packet leaves after one that came behind it.
pub(super) fn departures(passages: &[PacketPassage], is_behind: bool) -> Vec<Option<f64>> {
    let left = |passage: &PacketPassage| match passage.fate {
        PacketFate::Lost => None,
        PacketFate::Passed(_) if is_behind => Some(passage.seen),
        PacketFate::Passed(wait) => wait.map(|wait| passage.sent + wait),
    };
    let mut departures: Vec<Option<f64>> = passages.iter().map(left).collect();
    let mut earliest = f64::INFINITY;
    for at in departures.iter_mut().rev().flatten() {
        earliest = earliest.min(*at);
        *at = earliest;
    }
    departures
}

#[cfg(test)]
mod tests {
    use super::super::super::passage::{CapturePlace, CapturedDirections, HostStream, WindowLimit};
    use super::*;

    /// Flights of sixty packets, ten times as fast as the 8 Mbit/s at which they leave once a bucket's tokens are
    /// spent; some of the acknowledgements are late.
    fn seen(burst: f64) -> PassageObservation {
        let (rate, mut room, mut at) = (1e6, burst, 0.0);
        let mut passages = Vec::new();
        for place in 0..600 {
            let last = at;
            at += match place % 60 {
                0 => 0.06,
                _ => 0.000_15,
            };
            room = f64::min(room + rate * (at - last), burst);
            room -= 1_500.0;
            let free = f64::max(at, at - room / rate);
            let late = if place % 50 == 7 { 0.004 } else { 0.0 };
            passages.push(PacketPassage {
                sent: at,
                seen: at,
                bytes: 1_500.0,
                fate: match place % 2 {
                    0 => PacketFate::Passed(None),
                    _ => PacketFate::Passed(Some(free - at + late)),
                },
            });
        }
        PassageObservation::of(&HostStream {
            source: "192.0.2.1".parse().expect("an address"),
            destination: "192.0.2.2".parse().expect("an address"),
            connections: 1,
            begun_before: 0,
            payload_bytes: 0,
            ways: CapturedDirections::Both,
            left_out: 0,
            place: CapturePlace::Sender,
            passages,
            least_rtt: Some(0.05),
            window: WindowLimit::default(),
        })
    }

    #[test]
    fn burst_is_the_data_above_the_rate() {
        let found = seen(30_000.0).tokens_spent(1e6);
        assert!((found - 30_000.0).abs() < 2_000.0, "{found}");
    }

    #[test]
    fn unknown_departure_counts_from_the_sending_time() {
        let found = seen(8_000.0).tokens_spent(1e6);
        assert!((found - 8_000.0).abs() < 1_500.0, "{found}");
    }

    #[test]
    fn plain_line_has_spent_no_tokens() {
        let found = seen(1_500.0).tokens_spent(1e6);
        assert!(found <= 3.0 * 1_500.0, "{found}");
        assert_eq!(seen(1_500.0).shaper(1e6), None);
    }
}
