//! Recorded opportunities to deliver, in the format of mahimahi's traces.
//!
//! A trace is a text of whole milliseconds, one per line, in non-decreasing order. Each line is one
//! opportunity to carry [`OPPORTUNITY`] bytes at that time; a repeated time counts twice. After the
//! last line the trace repeats; its last time is its length. A long packet takes several
//! opportunities and leaves at the last of them; several short ones share one; an unused
//! opportunity is lost (docs/formats/delivery-trace.md).

use std::time::Duration;

use vocab::{Bitrate, Time};

use thiserror::Error;

/// Bytes that one opportunity carries: a full-size Ethernet packet. (Mahimahi counts 1504, because
/// it includes the four bytes of its TUN header.)
pub const OPPORTUNITY: u64 = 1_500;

/// The most opportunities in one trace: 600 s at 1 Gbit/s.
pub const OPPORTUNITIES_MAX: usize = 50_000_000;

const MILLISECOND: u64 = 1_000_000;

/// A line of a trace or a schedule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {what}")]
pub struct TraceError {
    /// Counted from 1.
    pub line: usize,
    /// The error and the form that is expected.
    pub what: String,
}

/// Times at which a line can carry bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryTrace {
    /// Milliseconds from the start of a round; not empty, not falling, the last above zero.
    opportunities: Vec<u32>,
}

impl DeliveryTrace {
    /// Reads mahimahi's format.
    ///
    /// # Errors
    /// The first line that cannot be read, and why.
    pub fn parse_mahimahi(text: &str) -> Result<Self, TraceError> {
        let mut opportunities: Vec<u32> = Vec::new();
        let mut line = 0;
        for row in text.lines() {
            line += 1;
            let refuse = |what: String| Err(TraceError { line, what });
            let row = row.trim();
            if row.is_empty() || row.starts_with('#') {
                continue;
            }
            let Ok(at) = row.parse::<u32>() else {
                return refuse(format!(
                    "`{row}` is no whole number of milliseconds; a trace has one time a line, each an opportunity to carry {OPPORTUNITY} bytes"
                ));
            };
            if let Some(last) = opportunities.last()
                && at < *last
            {
                return refuse(format!("{at} comes after {last}; times must not go back"));
            }
            if opportunities.len() == OPPORTUNITIES_MAX {
                return refuse(format!("a trace has at most {OPPORTUNITIES_MAX} lines"));
            }
            opportunities.push(at);
        }
        match opportunities.last() {
            None => Err(TraceError {
                line: line.max(1),
                what: "the trace is empty; it has one time in milliseconds a line".to_owned(),
            }),
            Some(0) => Err(TraceError {
                line,
                what: "the trace is 0 ms long; its last time is when it starts over".to_owned(),
            }),
            Some(_) => Ok(Self { opportunities }),
        }
    }

    /// Duration of one round.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_millis(u64::from(self.last()))
    }

    /// Mean rate of the whole trace.
    #[must_use]
    pub fn mean_rate(&self) -> Bitrate {
        let bits = self.opportunities.len() as u128 * u128::from(OPPORTUNITY) * 8;
        let rate = bits * 1_000 / u128::from(self.last());
        Bitrate::from_bits_per_second(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// The most that it carries within any span of this length, in bytes, over all rounds.
    #[must_use]
    pub fn most_within(&self, span: Duration) -> u64 {
        let period = u64::from(self.last());
        let milliseconds = span.as_nanos().div_ceil(u128::from(MILLISECOND));
        let milliseconds = u64::try_from(milliseconds).unwrap_or(u64::MAX);
        let (rounds, rest) = (milliseconds / period, milliseconds % period);
        let count = self.opportunities.len();
        // Rounds follow each other, so that what begins late in one ends early in the next.
        let at = |place: usize| {
            u64::from(self.opportunities[place % count]) + period * u64::from(place >= count)
        };
        let (mut most, mut end) = (0, 0);
        for begin in 0..count {
            end = end.max(begin);
            while end < begin + count && at(end) < at(begin) + rest {
                end += 1;
            }
            most = most.max(end - begin);
        }
        let opportunities = rounds
            .saturating_mul(count as u64)
            .saturating_add(most as u64);
        opportunities.saturating_mul(OPPORTUNITY)
    }

    fn last(&self) -> u32 {
        self.opportunities.last().copied().unwrap_or(1)
    }
}

/// Position of a line in a trace: the opportunity that it uses or would use next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceCursor {
    /// Start of the trace.
    start: Time,
    round: u64,
    position: usize,
    /// Bytes left of this opportunity.
    left: u64,
}

impl TraceCursor {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            start: now,
            round: 0,
            position: 0,
            left: OPPORTUNITY,
        }
    }

    /// Carries `length` bytes that wait since `from`; says when the last of them leaves.
    pub(crate) fn carry(&mut self, trace: &DeliveryTrace, from: Time, length: u64) -> Time {
        self.skip_to(trace, from);
        let mut remaining = length;
        while remaining > self.left {
            remaining -= self.left;
            self.step(trace);
        }
        self.left -= remaining;
        let at = self.at(trace);
        if self.left == 0 {
            self.step(trace);
        }
        at
    }

    /// Skips the opportunities before `from`, when no packet was waiting.
    fn skip_to(&mut self, trace: &DeliveryTrace, from: Time) {
        if self.at(trace) >= from {
            return;
        }
        let since = from.since(self.start).as_nanos();
        let period = u64::from(trace.last()) * MILLISECOND;
        // A time of 0 in one round and the last of the round before are the same moment, so the
        // search begins a round early.
        let round = u64::try_from(since / u128::from(period))
            .unwrap_or(u64::MAX)
            .saturating_sub(1)
            .max(self.round);
        if round > self.round {
            (self.round, self.position) = (round, 0);
        }
        self.left = OPPORTUNITY;
        loop {
            let begin = self
                .start
                .as_nanos()
                .saturating_add(self.round.saturating_mul(period));
            let offset = from.as_nanos().saturating_sub(begin).div_ceil(MILLISECOND);
            let rest = &trace.opportunities[self.position..];
            self.position += rest.partition_point(|at| u64::from(*at) < offset);
            if self.position < trace.opportunities.len() {
                return;
            }
            (self.round, self.position) = (self.round + 1, 0);
        }
    }

    fn step(&mut self, trace: &DeliveryTrace) {
        self.left = OPPORTUNITY;
        self.position += 1;
        if self.position == trace.opportunities.len() {
            (self.round, self.position) = (self.round + 1, 0);
        }
    }

    fn at(&self, trace: &DeliveryTrace) -> Time {
        let period = u64::from(trace.last()) * MILLISECOND;
        let begin = self.round.saturating_mul(period);
        let within = u64::from(trace.opportunities[self.position]) * MILLISECOND;
        Time::from_nanos(
            self.start
                .as_nanos()
                .saturating_add(begin)
                .saturating_add(within),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> DeliveryTrace {
        DeliveryTrace::parse_mahimahi(text).unwrap()
    }

    fn milliseconds(time: Time) -> u64 {
        assert_eq!(time.as_nanos() % MILLISECOND, 0);
        time.as_nanos() / MILLISECOND
    }

    #[test]
    fn full_packets_leave_at_the_trace_times() {
        let trace = trace("2\n2\n5\n");
        let mut cursor = TraceCursor::new(Time::ZERO);
        let ends: Vec<u64> = (0..7)
            .map(|_| milliseconds(cursor.carry(&trace, Time::ZERO, 1_500)))
            .collect();
        assert_eq!(ends, [2, 2, 5, 7, 7, 10, 12]);
        assert_eq!(trace.period(), Duration::from_millis(5));
        assert_eq!(trace.mean_rate().bits_per_second(), 7_200_000);
    }

    #[test]
    fn opportunities_fit_short_packets_and_split_long_ones() {
        let trace = trace("1\n2\n3\n4\n");
        let mut cursor = TraceCursor::new(Time::ZERO);
        let ends: Vec<u64> = [500, 500, 1_000, 3_000, 500]
            .into_iter()
            .map(|length| milliseconds(cursor.carry(&trace, Time::ZERO, length)))
            .collect();
        // 1,500 − 500 − 500 = 500 of the third packet fit into the first millisecond.
        assert_eq!(ends, [1, 1, 2, 4, 4]);
    }

    #[test]
    fn unused_opportunities_are_lost() {
        let trace = trace("1\n2\n3\n");
        let mut cursor = TraceCursor::new(Time::ZERO);
        assert_eq!(milliseconds(cursor.carry(&trace, Time::ZERO, 100)), 1);
        let later = Time::from_nanos(100 * MILLISECOND + 1);
        assert_eq!(milliseconds(cursor.carry(&trace, later, 1_500)), 101);
        assert_eq!(milliseconds(cursor.carry(&trace, later, 1_500)), 102);
        // An opportunity at the very moment counts.
        let exact = Time::from_nanos(200 * MILLISECOND);
        assert_eq!(milliseconds(cursor.carry(&trace, exact, 1_500)), 200);
    }

    #[test]
    fn greatest_content_of_a_span_is_never_exceeded() {
        for text in [
            "5\n",
            "1\n2\n2\n2\n9\n",
            "0\n0\n3\n7\n8\n8\n",
            "1\n1\n1\n40\n",
        ] {
            let trace = trace(text);
            let period = trace.period().as_millis() as u64;
            // Every opportunity of four rounds, and every span that begins at one of the first.
            let rounds = (0..4).flat_map(|round| {
                let times = trace.opportunities.iter();
                times.map(move |at| u64::from(*at) + round * period)
            });
            let all: Vec<u64> = rounds.collect();
            for span in 0..3 * period {
                let within = |from: u64| {
                    all.iter()
                        .filter(move |at| (from..from + span).contains(at))
                };
                let most = (0..=period).map(|from| within(from).count()).max().unwrap();
                let computed = trace.most_within(Duration::from_millis(span));
                assert_eq!(computed, most as u64 * OPPORTUNITY, "{text:?} in {span} ms");
            }
        }
        // A part of a millisecond may hold an opportunity as well as a whole one.
        let trace = trace("1\n1\n40\n");
        assert_eq!(trace.most_within(Duration::from_micros(1)), 3_000);
        assert_eq!(trace.most_within(Duration::MAX), u64::MAX);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, line) in [
            ("", 1),
            ("0\n0\n", 2),
            ("1\n2.5\n", 2),
            ("5\n4\n", 2),
            ("1\n\n-3\n", 3),
            ("1\n99999999999\n", 2),
        ] {
            let error = DeliveryTrace::parse_mahimahi(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
        }
    }
}
