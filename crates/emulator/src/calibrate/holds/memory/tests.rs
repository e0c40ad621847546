//! Tests of worst moments: some computed by hand, and one played through the model itself.

use std::sync::Arc;

use bytes::Bytes;
use emulate::{
    LinkDirection, LinkSchedule, QueueConfig, QueueLimit, RATE_MAX, ReorderingConfig, ScheduleStep,
    SettingsChange,
};
use vocab::{ByteCount, Probability, Time};

use super::super::nearest::RefusedConfig;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn queue_of(bytes: u64) -> QueueConfig {
    QueueConfig::from(ByteCount::new(bytes))
}

fn direction(rate: &str, delay: Duration, queue: QueueConfig) -> DirectionConfig {
    DirectionConfig {
        line: LineConfig::Rate(rate.parse().unwrap()),
        delay,
        queue,
        ..DirectionConfig::default()
    }
}

fn link(direction: &DirectionConfig) -> LinkConfig {
    LinkConfig::symmetric(direction.clone(), 1)
}

/// Judgement of a link that is the same both ways.
fn judged(direction: &DirectionConfig) -> Result<(), String> {
    judged_after(None, direction)
}

fn judged_after(
    before: Option<&DirectionConfig>,
    direction: &DirectionConfig,
) -> Result<(), String> {
    let (before, link) = (before.map(link), link(direction));
    if overfull(before.as_ref(), &link).is_empty() {
        return Ok(());
    }
    Err(RefusedConfig::new(before.as_ref(), &link).advice(RATE_MAX))
}

fn refusal(direction: &DirectionConfig) -> String {
    judged(direction).unwrap_err()
}

fn step(at: Duration, rate: &str, delay: Option<Duration>) -> ScheduleStep {
    ScheduleStep {
        at,
        change: SettingsChange {
            rate: Some(rate.parse().unwrap()),
            delay,
            loss: None,
        },
    }
}

fn scheduled(steps: Vec<ScheduleStep>, repeat: Option<Duration>) -> DirectionConfig {
    DirectionConfig {
        schedule: Some(Arc::new(LinkSchedule::new(steps, repeat).unwrap())),
        ..direction("1Mbit", Duration::from_millis(10), queue_of(15_000))
    }
}

fn jittered(distribution: JitterDistribution, order: PacketOrder) -> DirectionConfig {
    DirectionConfig {
        jitter: Some(JitterConfig {
            distribution,
            order,
        }),
        ..direction("1Gbit", Duration::from_millis(20), queue_of(15_000))
    }
}

#[test]
fn overfull_direction_is_refused_with_the_nearest_setting() {
    let fits = direction("1Gbit", SECOND, queue_of(125_000_000));
    assert_eq!(judged(&fits), Ok(()));
    let text = refusal(&direction("1Gbit", SECOND, queue_of(500_000_000)));
    assert!(text.contains("--queue 411870912B"), "{text}");
    let text = refusal(&direction("10Gbit", SECOND, queue_of(15_000)));
    assert!(text.contains("--delay 429ms"), "{text}");
    assert!(text.contains("--rate 4.2Gbit"), "{text}");
    // What the text advises is accepted.
    assert_eq!(
        judged(&direction("4.2Gbit", SECOND, queue_of(15_000))),
        Ok(())
    );
    let nearest = direction("10Gbit", Duration::from_millis(429), queue_of(15_000));
    assert_eq!(judged(&nearest), Ok(()));
    // So it is where the queue is the default, a round trip of the line.
    let text = refusal(&direction("1Gbit", 10 * SECOND, queue_of(2_500_000_000)));
    assert!(text.contains("--rate 140Mbit"), "{text}");
    let nearest = direction("140Mbit", 10 * SECOND, queue_of(350_000_000));
    assert_eq!(judged(&nearest), Ok(()));
}

#[test]
fn queue_limits_in_packets_and_time_become_bytes() {
    let packets = QueueConfig::from(QueueLimit::packets(400_000));
    assert!(judged(&direction("1Gbit", SECOND, packets)).is_err());
    let time = QueueConfig::from(QueueLimit::time(4 * SECOND));
    assert!(judged(&direction("1Gbit", SECOND, time)).is_err());
    let both = QueueConfig::from(QueueLimit {
        bytes: Some(ByteCount::new(15_000)),
        packets: Some(400_000),
        time: None,
    });
    assert_eq!(judged(&direction("1Gbit", SECOND, both)), Ok(()));
}

#[test]
fn a_schedule_is_judged_at_its_worst_moment() {
    let ms = Duration::from_millis;
    let high = scheduled(vec![step(5 * SECOND, "10Gbit", Some(SECOND))], None);
    let text = refusal(&high);
    // 1,250,000,000 bytes would be under way, and the queue is 15,000.
    assert!(text.contains("to 42 %"), "{text}");
    // High rates and long delays do no harm apart from each other…
    let apart = [
        step(SECOND, "10Gbit", Some(ms(20))),
        step(9 * SECOND, "1Mbit", Some(60 * SECOND)),
    ];
    assert_eq!(judged(&scheduled(apart.to_vec(), None)), Ok(()));
    // …but one behind the other they do: what keeps its order waits for the delay that was.
    let behind = [
        step(SECOND, "1Mbit", Some(60 * SECOND)),
        step(9 * SECOND, "10Gbit", Some(ms(20))),
    ];
    assert!(judged(&scheduled(behind.to_vec(), None)).is_err());
    // So they are where the first comes around again.
    assert!(judged(&scheduled(apart.to_vec(), Some(20 * SECOND))).is_err());
    // A line that is fast for a moment only brings no more than that moment's worth.
    let moment = [
        step(SECOND, "10Gbit", Some(SECOND)),
        step(SECOND + ms(100), "1Mbit", None),
    ];
    assert_eq!(judged(&scheduled(moment.to_vec(), None)), Ok(()));
    // Moments that come back within the delay add up: 125 MB in each of ten.
    let often = [
        step(ms(0), "10Gbit", Some(10 * SECOND)),
        step(ms(100), "1Mbit", None),
    ];
    assert!(judged(&scheduled(often.to_vec(), Some(SECOND))).is_err());
}

#[test]
fn too_many_changes_are_judged_by_their_extremes() {
    let ms = Duration::from_millis;
    let often = |delay| {
        let steps = vec![
            step(ms(0), "1Gbit", Some(delay)),
            step(ms(1), "1kbit", Some(ms(0))),
        ];
        scheduled(steps, Some(ms(2)))
    };
    assert!(judged(&often(600 * SECOND)).is_err());
    assert_eq!(judged(&often(ms(10))), Ok(()));
    let many = (0..800_000).map(|at| step(Duration::from_micros(at), "1Mbit", None));
    let many = scheduled(many.collect(), Some(SECOND));
    assert_eq!(judged(&many), Ok(()));
}

#[test]
fn jitter_tail_counts_where_order_is_kept() {
    let heavy = JitterDistribution::Pareto {
        mean: Duration::from_millis(50),
        shape: 3.0,
    };
    let text = refusal(&jittered(heavy, PacketOrder::Kept));
    assert!(text.contains("a jitter of 4 % of that"), "{text}");
    assert!(text.contains("--rate 42Mbit"), "{text}");
    assert_eq!(judged(&jittered(heavy, PacketOrder::Free)), Ok(()));
    let calm = JitterDistribution::Pareto {
        mean: Duration::from_millis(2),
        shape: 3.0,
    };
    assert_eq!(judged(&jittered(calm, PacketOrder::Kept)), Ok(()));
    // One in a billion is later than 6 deviations, 20.7 means, and so on.
    for (distribution, tail_s) in [
        (JitterDistribution::Uniform { spread: SECOND }, 1.0),
        (JitterDistribution::Normal { deviation: SECOND }, 5.998),
        (JitterDistribution::Exponential { mean: SECOND }, 20.723),
        (
            JitterDistribution::LogNormal {
                median: SECOND,
                sigma: 1.0,
            },
            402.6,
        ),
        (
            JitterDistribution::LogNormal {
                median: SECOND,
                sigma: 4.0,
            },
            3_600.0,
        ),
    ] {
        let jitter = jittered(distribution, PacketOrder::Kept).jitter;
        let extra = extra_s(jitter, PacketOrder::Kept);
        assert!(
            (extra / tail_s - 1.0).abs() < 1e-3,
            "{distribution:?}: {extra}"
        );
        assert!(extra_s(jitter, PacketOrder::Free) <= extra);
    }
}

#[test]
fn late_packets_and_copies_count() {
    let plain = direction("4Gbit", SECOND, queue_of(15_000));
    assert_eq!(judged(&plain), Ok(()));
    let doubled = DirectionConfig {
        duplication: Probability::from_fraction(0.1).unwrap(),
        ..plain.clone()
    };
    assert!(refusal(&doubled).contains("--rate 3.9Gbit"));
    let late = |share, late_by| DirectionConfig {
        reordering: Some(ReorderingConfig {
            probability: Probability::from_fraction(share).unwrap(),
            late_by,
        }),
        ..plain.clone()
    };
    // One of a hundred, ten seconds late: 50 MB more than 500 MB.
    let text = refusal(&late(0.01, 10 * SECOND));
    assert!(text.contains("late by 7.371s"), "{text}");
    assert_eq!(judged(&late(0.01, Duration::from_millis(7_371))), Ok(()));
    assert_eq!(judged(&late(0.001, 10 * SECOND)), Ok(()));
}

#[test]
fn bucket_adds_its_burst_and_policer_limits_it() {
    let bucket = |rate: &str, burst| TokenBucket {
        rate: rate.parse().unwrap(),
        burst: ByteCount::new(burst),
        peak: None,
    };
    let shaped = |burst| DirectionConfig {
        line: LineConfig::Shaper(bucket("4Gbit", burst)),
        ..direction("4Gbit", SECOND, queue_of(15_000))
    };
    assert_eq!(judged(&shaped(32_000)), Ok(()));
    assert!(judged(&shaped(50_000_000)).is_err());
    let policed = |line: LineConfig| DirectionConfig {
        line,
        policer: Some(bucket("10Mbit", 32_000)),
        ..direction("10Gbit", SECOND, queue_of(500_000_000))
    };
    assert_eq!(
        judged(&policed(LineConfig::Rate("10Gbit".parse().unwrap()))),
        Ok(())
    );
    assert_eq!(judged(&policed(LineConfig::Unlimited)), Ok(()));
    let mut fast = policed(LineConfig::Unlimited);
    fast.policer = Some(bucket("10Gbit", 32_000));
    assert!(judged(&fast).is_err());
    // A line that stands still fills its queue all the same.
    let mut stopping = policed(LineConfig::Rate("10Gbit".parse().unwrap()));
    stopping.queue = queue_of(600_000_000);
    stopping.schedule = scheduled(vec![step(SECOND, "0bit", None)], None).schedule;
    assert!(judged(&stopping).is_err());
}

#[test]
fn earlier_packets_in_flight_delay_later_ones() {
    let before = direction("10Mbit", 60 * SECOND, queue_of(15_000));
    let next = direction("1Gbit", Duration::from_millis(10), queue_of(15_000));
    assert_eq!(judged(&next), Ok(()));
    assert!(judged_after(Some(&before), &next).is_err());
    assert_eq!(judged_after(Some(&next), &before), Ok(()));
}

/// A line that carries nothing for nine tenths of a second and then 1 Gbit/s.
fn burst_line() -> LineConfig {
    let times = (901..=1_000).flat_map(|at| (0..83).map(move |_| format!("{at}\n")));
    let trace = DeliveryTrace::parse_mahimahi(&times.collect::<String>()).unwrap();
    LineConfig::Trace(Arc::new(trace))
}

#[test]
fn recorded_line_counts_by_its_best_rate() {
    // On average 100 Mbit/s, of which 512 MiB hold 43 s; at best 12.5 MB come at once.
    let recorded = |delay| DirectionConfig {
        line: burst_line(),
        ..direction("1Mbit", delay, queue_of(15_000))
    };
    assert_eq!(judged(&recorded(42 * SECOND)), Ok(()));
    let ms = Duration::from_millis;
    let held = |delay| HeldBytes::of(None, &recorded(delay)).under_way;
    assert_eq!(held(ms(100)).round(), 83.0 * 100.0 * 1_500.0);
    assert_eq!(held(ms(900)).round(), 83.0 * 100.0 * 1_500.0);
    assert_eq!(held(ms(1_050)).round(), 83.0 * 150.0 * 1_500.0);
    // One burst more than there is room for on average.
    let text = refusal(&recorded(43 * SECOND + ms(90)));
    assert!(text.contains("use --delay 43.0"), "{text}");
}

/// A model that is kept full holds the computed number of bytes, within a packet or two.
#[test]
fn model_matches_the_computed_recorded_line() {
    let config = DirectionConfig {
        line: burst_line(),
        ..direction("1Mbit", Duration::from_millis(1_250), queue_of(15_000_000))
    };
    let computed = HeldBytes::of(None, &config);
    let mut direction = LinkDirection::new(config, 1);
    let packet = Bytes::from(vec![0x45; 1_500]);
    let mut most = 0;
    for millisecond in 0..4_000_u64 {
        // At the end of each, when what its opportunities carry has left.
        let now = Time::from_epoch(Duration::from_millis(millisecond));
        while direction.poll_output(now).is_some() {}
        most = most.max(direction.counters().in_flight.bytes);
        for _ in 0..100 {
            direction.handle(now, packet.clone());
        }
    }
    let difference = computed.under_way - most as f64;
    assert!(
        (0.0..=3_000.0).contains(&difference),
        "{computed:?}, {most}"
    );
}

/// A model that is kept full holds the computed number of bytes, within a packet or two.
#[test]
fn the_model_holds_what_is_computed() {
    let ms = Duration::from_millis;
    let steps = vec![
        step(ms(300), "4Mbit", Some(ms(400))),
        step(ms(900), "16Mbit", Some(ms(50))),
        step(ms(1_500), "1Mbit", None),
    ];
    let config = DirectionConfig {
        queue: queue_of(30_000),
        ..scheduled(steps, Some(ms(2_000)))
    };
    let computed = HeldBytes::of(None, &config);
    let mut direction = LinkDirection::new(config, 1);
    let packet = Bytes::from(vec![0x45; 1_000]);
    let mut most = 0;
    for tick in 0..80_000_u64 {
        let now = Time::from_epoch(Duration::from_micros(100 * tick));
        while direction.poll_output(now).is_some() {}
        direction.handle(now, packet.clone());
        direction.handle(now, packet.clone());
        most = most.max(direction.counters().in_flight.bytes);
    }
    let difference = computed.under_way - most as f64;
    assert!(
        (-1_000.0..=3_000.0).contains(&difference),
        "{computed:?}, {most}"
    );
}
