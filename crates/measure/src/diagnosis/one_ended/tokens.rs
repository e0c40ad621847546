//! A shaper's bucket by what leaves faster than its rate.
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

use super::super::finding::{Cause, Finding, Parameters};
use super::super::passage::{Fate, Passage};
use super::super::statistics::confidence;
use super::super::two_ended::{bitrate, bytes, seconds};
use super::Seen;

/// How well a rate is known: what leaves so little faster has spent nothing.
const RATE_KNOWN: f64 = 0.005;
/// Tokens, in packets, that are no bucket.
const TOKEN_PACKETS: f64 = 4.0;
/// Times that a capture cannot tell apart: a card hands up, and acknowledges, what comes that close together
/// as one.
const TOLD_APART: f64 = 60e-6;

impl Seen {
    /// The most bytes that left sooner than a plain line of a rate lets them.
    fn tokens_spent(&self, rate: f64) -> f64 {
        let rate = rate * (1.0 + RATE_KNOWN);
        let (mut tokens, mut most, mut last) = (0.0_f64, 0.0, f64::NEG_INFINITY);
        // What has passed since the last known departure, and whether something was lost.
        let (mut pending, mut lost) = (0.0, false);
        let passages = match self.is_behind {
            true => Cow::Owned(self.arrivals()),
            false => Cow::Borrowed(&self.passages),
        };
        for (passage, left) in passages.iter().zip(self.departures(&passages)) {
            if passage.fate == Fate::Lost {
                lost = true;
                continue;
            }
            // What is not known has left before the next one that is.
            let Some(at) = left else {
                pending += passage.bytes;
                continue;
            };
            let gain = pending - rate * (at - last);
            // While losses are mended, what left is known less well than what did not.
            let gain = if lost { gain.min(0.0) } else { gain };
            tokens = (tokens + gain).max(0.0) + passage.bytes;
            (last, pending, lost) = (at, 0.0, false);
            most = f64::max(most, tokens);
        }
        most
    }

    /// When each packet has left, where that is known.
    pub(super) fn departures(&self, passages: &[Passage]) -> Vec<Option<f64>> {
        departures(passages, self.is_behind)
    }

    /// A bucket before the queue.
    pub(super) fn shaper(&self, rate: f64) -> Option<Finding> {
        let burst = self.tokens_spent(rate);
        let least = TOKEN_PACKETS * self.packet + 2.0 * TOLD_APART * rate;
        (burst > least).then(|| {
            let evidence = format!(
                "{} bytes beyond {} pass without waiting, then packets wait up to {:.1} ms",
                burst.round(),
                bitrate(rate),
                self.long_wait * 1e3
            );
            Finding::new(Cause::Shaper, confidence(burst / least), evidence).with(Parameters {
                rate: Some(bitrate(rate)),
                burst: Some(bytes(burst)),
                queue_delay: Some(seconds(self.long_wait)),
                ..Parameters::default()
            })
        })
    }
}

/// When each packet has left, where that is known. A late acknowledgement is no late departure: nothing leaves after
/// what came behind it.
pub(super) fn departures(passages: &[Passage], is_behind: bool) -> Vec<Option<f64>> {
    let left = |passage: &Passage| match passage.fate {
        Fate::Lost => None,
        Fate::Passed(_) if is_behind => Some(passage.seen),
        Fate::Passed(wait) => wait.map(|wait| passage.sent + wait),
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
    use super::super::super::passage::{Place, Stream, Ways, Window};
    use super::*;

    /// Flights of sixty packets, ten times as fast as the 8 Mbit/s at which they leave once a bucket's tokens are
    /// spent; some of the acknowledgements are late.
    fn seen(burst: f64) -> Seen {
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
            passages.push(Passage {
                sent: at,
                seen: at,
                bytes: 1_500.0,
                fate: match place % 2 {
                    0 => Fate::Passed(None),
                    _ => Fate::Passed(Some(free - at + late)),
                },
            });
        }
        Seen::of(&Stream {
            source: "192.0.2.1".parse().expect("an address"),
            destination: "192.0.2.2".parse().expect("an address"),
            connections: 1,
            begun_before: 0,
            payload_bytes: 0,
            ways: Ways::Both,
            left_out: 0,
            place: Place::Sender,
            passages,
            least_rtt: Some(0.05),
            window: Window::default(),
        })
    }

    #[test]
    fn the_burst_is_what_left_faster_than_the_rate() {
        let found = seen(30_000.0).tokens_spent(1e6);
        assert!((found - 30_000.0).abs() < 2_000.0, "{found}");
    }

    #[test]
    fn a_plain_line_has_spent_none_however_late_it_is_acknowledged() {
        let found = seen(1_500.0).tokens_spent(1e6);
        assert!(found <= 3.0 * 1_500.0, "{found}");
        assert_eq!(seen(1_500.0).shaper(1e6), None);
    }
}
