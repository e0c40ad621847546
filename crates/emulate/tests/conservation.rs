//! What must hold for any traffic over any setting: no packet is lost from the account, none
//! overtakes another, the line keeps its rate, and how often the caller polls changes nothing.

use std::time::Duration;

use bytes::Bytes;
use emulate::{Counters, Delivery, Direction, DirectionConfig, Fate, Tally};
use proptest::prelude::*;
use vocab::{Bitrate, ByteCount, Probability, Random, Time};

/// What a caller does, in order.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Send(usize),
    Poll,
    Configure(DirectionConfig),
}

fn config() -> impl Strategy<Value = DirectionConfig> {
    (
        prop_oneof![
            Just(None),
            (0_u64..2_000_000_000).prop_map(|rate| Some(Bitrate::from_bits_per_second(rate)))
        ],
        0_u64..50_000_000,
        prop_oneof![Just(0.0), 0.0..0.5],
        0_u64..20_000,
        0_u64..40,
    )
        .prop_map(|(rate, delay, loss, queue, overhead)| DirectionConfig {
            rate,
            delay: Duration::from_nanos(delay),
            loss: Probability::from_fraction(loss).unwrap_or(Probability::ZERO),
            queue: ByteCount::new(queue),
            overhead: ByteCount::new(overhead),
        })
}

fn steps(with_configure: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u64..3_000_000).prop_map(Step::Wait),
        6 => (8_usize..1_500).prop_map(Step::Send),
        2 => Just(Step::Poll),
        u32::from(with_configure) => config().prop_map(Step::Configure),
    ];
    prop::collection::vec(step, 1..300)
}

/// A packet that carries its number, so that order can be seen.
fn numbered(number: u64, length: usize) -> Bytes {
    let mut packet = vec![0; length.max(8)];
    packet[..8].copy_from_slice(&number.to_be_bytes());
    Bytes::from(packet)
}

fn number_of(delivery: &Delivery) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&delivery.packet[..8]);
    u64::from_be_bytes(number)
}

fn is_balanced(counters: &Counters) -> bool {
    let mut sum = Tally::default();
    for part in [
        counters.delivered,
        counters.dropped_by_queue,
        counters.dropped_by_loss,
        counters.dropped_by_limit,
        counters.queued,
        counters.in_flight,
    ] {
        sum += part;
    }
    sum == counters.offered
}

proptest! {
    #[test]
    fn every_packet_stays_in_the_account_and_in_order(
        first in config(),
        steps in steps(true),
    ) {
        let mut direction = Direction::new(first, Random::from_seed(1));
        let mut now = Time::ZERO;
        let mut sent = 0;
        let mut last: Option<(Time, u64)> = None;
        for step in steps {
            match step {
                Step::Wait(nanoseconds) => now += Duration::from_nanos(nanoseconds),
                Step::Send(length) => {
                    direction.handle(now, numbered(sent, length));
                    sent += 1;
                }
                Step::Poll => {
                    while let Some(delivery) = direction.poll_output(now) {
                        prop_assert!(delivery.due <= now);
                        let this = (delivery.due, number_of(&delivery));
                        if let Some(last) = last {
                            prop_assert!(last.0 <= this.0 && last.1 < this.1);
                        }
                        last = Some(this);
                    }
                    if let Some(timeout) = direction.poll_timeout() {
                        prop_assert!(timeout > now, "output waits after a drain");
                    }
                }
                Step::Configure(config) => direction.set_config(now, config),
            }
            prop_assert!(is_balanced(&direction.counters()));
        }
    }

    #[test]
    fn how_often_the_caller_polls_changes_nothing(
        config in config(),
        steps in steps(false),
    ) {
        let run = |polls: bool| {
            let mut direction = Direction::new(config, Random::from_seed(2));
            let (mut now, mut sent, mut fates) = (Time::ZERO, 0, Vec::new());
            let mut deliveries = Vec::new();
            for step in &steps {
                match step {
                    Step::Wait(nanoseconds) => now += Duration::from_nanos(*nanoseconds),
                    Step::Send(length) => {
                        fates.push(direction.handle(now, numbered(sent, *length)));
                        sent += 1;
                    }
                    Step::Poll if polls => {
                        deliveries.extend(std::iter::from_fn(|| direction.poll_output(now)));
                    }
                    Step::Poll | Step::Configure(_) => {}
                }
            }
            let end = now + Duration::from_secs(1_000);
            deliveries.extend(std::iter::from_fn(|| direction.poll_output(end)));
            (fates, deliveries)
        };
        prop_assert_eq!(run(true), run(false));
    }

    #[test]
    fn a_full_queue_leaves_at_the_rate_exactly(
        rate in 64_000_u64..10_000_000_000,
        lengths in prop::collection::vec(40_usize..1_500, 1..200),
        overhead in 0_u64..40,
    ) {
        let config = DirectionConfig {
            rate: Some(Bitrate::from_bits_per_second(rate)),
            overhead: ByteCount::new(overhead),
            ..DirectionConfig::default()
        };
        let mut direction = Direction::new(config, Random::from_seed(3));
        let mut bits = 0_u128;
        let start = Time::from_nanos(123_456_789);
        let mut expected = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            let fate = direction.handle(start, numbered(number as u64, *length));
            prop_assert_eq!(fate, Fate::Queued);
            bits += 8 * (*length as u128 + u128::from(overhead));
            let nanoseconds = (bits * 1_000_000_000).div_ceil(u128::from(rate));
            expected.push(start + Duration::from_nanos(nanoseconds as u64));
        }
        let due: Vec<Time> =
            std::iter::from_fn(|| direction.poll_output(Time::NEVER).map(|d| d.due)).collect();
        prop_assert_eq!(due, expected);
    }
}
