//! HyStart: the end of slow start before it overflows the queue (Ha and Rhee, "Taming the elephants:
//! New TCP slow start", 2011), as Linux's CUBIC has it. RFC 9406 (HyStart++) is a later design.
//!
//! Two signs are looked for in each round trip: a train of acknowledgements that is longer than half
//! the least delay, and an RTT that has grown by an eighth (at least 4 ms, at most 16 ms).

use std::time::Duration;

use vocab::Time;

/// Least window at which slow start may end, in segments (hystart_low_window).
const WINDOW_LEAST: u32 = 16;
/// Longest gap inside a train (hystart_ack_delta_us).
const TRAIN_GAP: Duration = Duration::from_millis(2);
/// Addition to the least delay for a train that the sender's own bursts stretch.
const TRAIN_SLACK: Duration = Duration::from_millis(1);
/// Samples of a round trip before its least RTT counts.
const SAMPLES_LEAST: u32 = 8;
const GROWTH_LEAST: Duration = Duration::from_millis(4);
const GROWTH_MOST: Duration = Duration::from_millis(16);

/// Detector of the end of slow start.
#[derive(Clone, Debug, Default)]
pub(crate) struct HystartDetector {
    found: bool,
    round: Option<DetectorRound>,
}

#[derive(Clone, Copy, Debug)]
struct DetectorRound {
    start: Time,
    train_end: Time,
    /// Stream position whose acknowledgement ends the round.
    end: u64,
    least: Duration,
    samples: u32,
}

impl HystartDetector {
    /// Takes a sample of slow start; `true` once, when slow start should end.
    pub(crate) fn ends_slow_start(
        &mut self,
        now: Time,
        rtt: Duration,
        least: Duration,
        window: u32,
        (acknowledged, next): (u64, u64),
    ) -> bool {
        if self.found {
            return false;
        }
        // A round begins whatever the window is, so that a round is a whole flight.
        if self.round.is_none_or(|round| acknowledged > round.end) {
            self.round = Some(DetectorRound {
                start: now,
                train_end: now,
                end: next,
                least: Duration::MAX,
                samples: 0,
            });
        }
        let Some(round) = &mut self.round else {
            return false;
        };
        if window < WINDOW_LEAST {
            return false;
        }
        if now.since(round.train_end) <= TRAIN_GAP {
            round.train_end = now;
            self.found |= now.since(round.start) > (least + TRAIN_SLACK) / 2;
        }
        round.least = round.least.min(rtt);
        if round.samples < SAMPLES_LEAST {
            round.samples += 1;
        } else {
            let growth = (least / 8).clamp(GROWTH_LEAST, GROWTH_MOST);
            self.found |= round.least > least + growth;
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    #[test]
    fn round_begins_with_the_flight_of_a_small_window() {
        let mut detector = HystartDetector::default();
        let at = |milliseconds: u64| Time::from_nanos(milliseconds * 1_000_000);
        // The window grows from 10 to 20 in the first flight.
        for index in 0..10 {
            let window = 10 + index as u32;
            let numbers = (2 + index, 12 + 2 * index);
            assert!(!detector.ends_slow_start(at(index), RTT, RTT, window, numbers));
        }
        // The train of the second flight is longer than (100 ms + 1 ms) / 2 after 51 ms.
        let found = (0..80).find(|index| {
            let numbers = (13 + index, 101);
            detector.ends_slow_start(at(100 + index), RTT, RTT, 20, numbers)
        });
        assert_eq!(found, Some(51));
    }
}
