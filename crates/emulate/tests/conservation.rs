//! Invariants for any traffic over any setting: every packet is accounted for, no packet overtakes
//! another where the order is kept, the line keeps its rate, every packet has a record, and polling
//! more often or less often changes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use emulate::{
    CoDelConfig, DirectionConfig, DirectionCounters, EcnMode, EnqueueOutcome, GilbertElliott,
    JitterConfig, JitterDistribution, LineConfig, LinkDirection, LinkSchedule, LossList, LossModel,
    MemoryLimits, PacketDelivery, PacketOrder, PacketOutcome, PacketRecord, PeakBucket, PieConfig,
    QueueConfig, QueueDiscipline, QueueLimit, RedConfig, ReorderingConfig, ScheduleStep,
    SettingsChange, TokenBucket, TrafficCount,
};
use proptest::prelude::*;
use vocab::{Bitrate, ByteCount, Probability, Time};

/// An action of the caller.
#[derive(Clone, Debug)]
enum CallerStep {
    Wait(u64),
    Send(usize),
    Poll,
    Configure(Box<DirectionConfig>),
}

fn bitrate(bits_per_second: u64) -> Bitrate {
    Bitrate::from_bits_per_second(bits_per_second)
}

fn probability(fraction: f64) -> Probability {
    Probability::from_fraction(fraction).unwrap_or(Probability::ZERO)
}

fn duration(nanoseconds: u64) -> Duration {
    Duration::from_nanos(nanoseconds)
}

fn bucket() -> impl Strategy<Value = TokenBucket> {
    (1_u64..100_000_000, 500_u64..20_000, any::<bool>()).prop_map(|(rate, burst, peak)| {
        TokenBucket {
            rate: bitrate(rate),
            burst: ByteCount::new(burst),
            peak: peak.then(|| PeakBucket {
                rate: bitrate(rate * 2),
                burst: ByteCount::new(burst / 2),
            }),
        }
    })
}

fn line() -> impl Strategy<Value = LineConfig> {
    prop_oneof![
        Just(LineConfig::Unlimited),
        (0_u64..2_000_000_000).prop_map(|rate| LineConfig::Rate(bitrate(rate))),
        bucket().prop_map(LineConfig::Shaper),
        prop::collection::vec(0_u32..20, 1..20).prop_map(|mut times| {
            times.sort_unstable();
            times.push(21);
            let text: String = times.iter().map(|time| format!("{time}\n")).collect();
            let trace = emulate::DeliveryTrace::parse_mahimahi(&text);
            LineConfig::Trace(Arc::new(trace.expect("rising times")))
        }),
    ]
}

fn discipline() -> impl Strategy<Value = QueueDiscipline> {
    prop_oneof![
        Just(QueueDiscipline::DropTail),
        Just(QueueDiscipline::DropHead),
        any::<bool>().prop_map(|mark| QueueDiscipline::CoDel(CoDelConfig {
            target: duration(500_000),
            interval: duration(3_000_000),
            ecn: if mark { EcnMode::Mark } else { EcnMode::Drop },
        })),
        Just(QueueDiscipline::Pie(PieConfig {
            target: duration(500_000),
            update: duration(1_000_000),
            burst: Duration::ZERO,
            ecn: EcnMode::Mark,
        })),
        Just(QueueDiscipline::Red(RedConfig {
            minimum: ByteCount::new(2_000),
            maximum: ByteCount::new(6_000),
            probability: probability(0.5),
            weight: 0.2,
            packet_time: duration(1_000_000),
            gentle: true,
            ecn: EcnMode::Drop,
        })),
    ]
}

fn limit() -> impl Strategy<Value = QueueLimit> {
    (
        prop::option::of(0_u64..20_000),
        prop::option::of(0_u64..20),
        prop::option::of(0_u64..20_000_000),
    )
        .prop_map(|(bytes, packets, time)| QueueLimit {
            bytes: bytes.map(ByteCount::new),
            packets,
            time: time.map(duration),
        })
}

fn loss() -> impl Strategy<Value = LossModel> {
    prop_oneof![
        Just(LossModel::None),
        (0.0..0.5).prop_map(|fraction| LossModel::Random(probability(fraction))),
        (0.01..0.5, 1.5..8.0).prop_map(|(rate, burst)| {
            let model = GilbertElliott::from_rate_and_burst(probability(rate), burst);
            LossModel::GilbertElliott(model.expect("half of all in bursts is possible"))
        }),
        prop::collection::vec(0_u64..10, 0..4).prop_map(|packets| {
            let list = LossList::new(packets, Some(10)).expect("below the period");
            LossModel::List(Arc::new(list))
        }),
    ]
}

fn jitter() -> impl Strategy<Value = Option<JitterConfig>> {
    let order = prop_oneof![Just(PacketOrder::Kept), Just(PacketOrder::Free)];
    let span = (0_u64..10_000_000).prop_map(duration);
    let distribution = (span, 0_u8..5).prop_map(|(span, kind)| match kind {
        0 => JitterDistribution::Uniform { spread: span },
        1 => JitterDistribution::Normal { deviation: span },
        2 => JitterDistribution::Exponential { mean: span },
        3 => JitterDistribution::Pareto {
            mean: span,
            shape: 3.0,
        },
        _ => JitterDistribution::LogNormal {
            median: span,
            sigma: 1.0,
        },
    });
    prop::option::of(
        (distribution, order).prop_map(|(distribution, order)| JitterConfig {
            distribution,
            order,
        }),
    )
}

fn schedule() -> impl Strategy<Value = Option<Arc<LinkSchedule>>> {
    let step = (
        1_u64..5_000_000,
        prop::option::of(0_u64..100_000_000),
        prop::option::of(0_u64..5_000_000),
        prop::option::of(loss()),
    );
    prop::option::of((prop::collection::vec(step, 1..6), any::<bool>()).prop_map(
        |(steps, repeats)| {
            let mut at = Duration::ZERO;
            let steps = steps
                .into_iter()
                .map(|(after, rate, delay, loss)| {
                    at += duration(after);
                    ScheduleStep {
                        at,
                        change: SettingsChange {
                            rate: rate.map(bitrate),
                            delay: delay.map(duration),
                            loss,
                        },
                    }
                })
                .collect();
            let repeat = repeats.then(|| at + Duration::from_millis(2));
            Arc::new(LinkSchedule::new(steps, repeat).expect("times rise"))
        },
    ))
}

fn config() -> impl Strategy<Value = DirectionConfig> {
    let chances = (
        prop_oneof![Just(0.0), 0.0..0.3],
        prop_oneof![Just(0.0), 0.0..0.3],
        prop_oneof![Just(None), (0.0..0.3).prop_map(Some)],
    );
    (
        (prop::option::of(bucket()), limit(), discipline(), line()),
        (loss(), chances),
        (0_u64..50_000_000, jitter(), 0_u64..40, schedule()),
    )
        .prop_map(|(bottleneck, (loss, chances), way)| {
            let (policer, limit, discipline, line) = bottleneck;
            let (corruption, duplication, late) = chances;
            let (delay, jitter, overhead, schedule) = way;
            DirectionConfig {
                policer,
                queue: QueueConfig { limit, discipline },
                line,
                loss,
                corruption: probability(corruption),
                duplication: probability(duplication),
                delay: duration(delay),
                jitter,
                reordering: late.map(|late| ReorderingConfig {
                    probability: probability(late),
                    late_by: duration(2_000_000),
                }),
                overhead: ByteCount::new(overhead),
                schedule,
                ..DirectionConfig::default()
            }
        })
}

fn steps(with_configure: bool) -> impl Strategy<Value = Vec<CallerStep>> {
    let step = prop_oneof![
        4 => (0_u64..3_000_000).prop_map(CallerStep::Wait),
        6 => (20_usize..1_500).prop_map(CallerStep::Send),
        2 => Just(CallerStep::Poll),
        u32::from(with_configure) => config().prop_map(|config| CallerStep::Configure(Box::new(config))),
    ];
    prop::collection::vec(step, 1..300)
}

/// The usual limits, or some that these steps reach. They leave room for all packets that are not
/// taken out: only the packets that are dropped there depend on the caller.
fn limits() -> impl Strategy<Value = MemoryLimits> {
    prop_oneof![
        Just(MemoryLimits::default()),
        (1_u64..40, 1_000_u64..40_000).prop_map(|(packets, bytes)| MemoryLimits {
            held_packets: packets,
            held_bytes: ByteCount::new(bytes),
            ..MemoryLimits::default()
        }),
    ]
}

/// An IPv4 header that allows marks, as far as a link looks.
fn packet(length: usize) -> Bytes {
    let mut packet = vec![0; length.max(20)];
    (packet[0], packet[1]) = (0x45, 0x02);
    Bytes::from(packet)
}

fn is_balanced(counters: &DirectionCounters) -> bool {
    let sum = |parts: &[TrafficCount]| {
        let mut sum = TrafficCount::default();
        for part in parts {
            sum += *part;
        }
        sum
    };
    sum(&[counters.offered, counters.duplicated])
        == sum(&[
            counters.delivered,
            counters.dropped_by_policer,
            counters.dropped_by_queue,
            counters.dropped_by_aqm,
            counters.dropped_by_loss,
            counters.dropped_by_outage,
            counters.dropped_by_limit,
            counters.dropped_untaken,
            counters.queued,
            counters.in_flight,
        ])
}

/// Tells whether packets keep their order under this setting.
fn keeps_order(config: &DirectionConfig) -> bool {
    config.reordering.is_none()
        && config
            .jitter
            .is_none_or(|jitter| jitter.order == PacketOrder::Kept)
}

proptest! {
    #[test]
    fn every_packet_is_accounted_for_and_in_order(
        first in config(),
        steps in steps(true),
        limits in limits(),
        untaken in prop_oneof![Just(u64::MAX), 0_u64..10],
    ) {
        let mut is_ordered = keeps_order(&first);
        let limits = MemoryLimits { untaken_packets: untaken, ..limits };
        let mut direction = LinkDirection::within(limits, first, 1);
        direction.keep_records(true);
        let mut now = Time::ZERO;
        let mut sent = 0;
        let mut ended = 0;
        let mut last: Option<(Time, u64)> = None;
        for step in steps {
            match step {
                CallerStep::Wait(nanoseconds) => now += Duration::from_nanos(nanoseconds),
                CallerStep::Send(length) => {
                    direction.handle(now, packet(length));
                    sent += 1;
                }
                CallerStep::Poll => {
                    while let Some(delivery) = direction.poll_output(now) {
                        prop_assert!(delivery.due <= now);
                        let this = (delivery.due, delivery.index);
                        if let Some(last) = last.filter(|_| is_ordered) {
                            prop_assert!(last.0 <= this.0 && last.1 <= this.1);
                            prop_assert!(last.1 < this.1 || delivery.is_copy);
                        }
                        last = Some(this);
                    }
                    if let Some(timeout) = direction.poll_timeout() {
                        prop_assert!(timeout > now, "output waits after a drain");
                    }
                }
                CallerStep::Configure(config) => {
                    is_ordered &= keeps_order(&config);
                    direction.set_config(now, *config);
                }
            }
            prop_assert!(is_balanced(&direction.counters()));
            while let Some(record) = direction.poll_record() {
                prop_assert!(record.index < sent);
                ended += 1;
            }
        }
        let counters = direction.counters();
        let held = counters.queued.packets + counters.in_flight.packets;
        prop_assert_eq!(sent + counters.duplicated.packets, ended + held);
        direction.record_held(now);
        while direction.poll_record().is_some() {
            ended += 1;
        }
        prop_assert_eq!(sent + direction.counters().duplicated.packets, ended);
    }

    #[test]
    fn how_often_one_polls_changes_nothing(
        config in config(),
        steps in steps(true),
        limits in limits(),
    ) {
        let eager = run(limits, &config, &steps, true);
        let lazy = run(limits, &config, &steps, false);
        prop_assert_eq!(eager, lazy);
    }

    #[test]
    fn packet_taken_out_late_affects_no_other(
        config in config(),
        steps in steps(true),
        limits in limits(),
        untaken in 0_u64..10,
    ) {
        let impatient = MemoryLimits { untaken_packets: untaken, ..limits };
        let (_, eager) = run(limits, &config, &steps, true);
        let (deliveries, lazy) = run(impatient, &config, &steps, false);
        let thrown_away = lazy.iter().filter(|record| is_untaken(record)).count();
        prop_assert_eq!(deliveries.len() + thrown_away, eager.iter().filter(|record| {
            matches!(record.ending, PacketOutcome::Delivered { .. })
        }).count());
        let spared = |records: &[PacketRecord]| -> Vec<PacketRecord> {
            let of_thrown_away = |record: &PacketRecord| {
                lazy.iter().any(|other| is_untaken(other) && other.index == record.index)
            };
            records.iter().filter(|record| !of_thrown_away(record)).cloned().collect()
        };
        prop_assert_eq!(spared(&eager), spared(&lazy));
    }

    #[test]
    fn log_of_arrivals_and_settings_reproduces_every_record(
        config in config(),
        steps in steps(true),
        limits in limits(),
    ) {
        let (log, end, records) = run_live(limits, &config, &steps);
        let again = replay(limits, &config, &log, end);
        prop_assert_eq!(records, again);
    }

    #[test]
    fn caller_that_waits_for_timeout_finds_the_packet(
        config in config(),
        steps in steps(true),
    ) {
        let mut direction = LinkDirection::new(config, 3);
        let mut now = Time::ZERO;
        for step in steps {
            let until = match step {
                CallerStep::Wait(nanoseconds) => now + Duration::from_nanos(nanoseconds),
                CallerStep::Send(length) => {
                    direction.handle(now, packet(length));
                    now
                }
                CallerStep::Poll => now,
                CallerStep::Configure(config) => {
                    direction.set_config(now, *config);
                    now
                }
            };
            loop {
                while let Some(delivery) = direction.poll_output(now) {
                    prop_assert_eq!(delivery.due, now);
                }
                match direction.poll_timeout() {
                    Some(timeout) if timeout <= until => now = timeout,
                    _ => break,
                }
            }
            now = until;
        }
    }

    #[test]
    fn losses_are_independent_of_queue_drops(
        config in config(),
        steps in steps(false),
    ) {
        let roomy = DirectionConfig {
            policer: None,
            queue: QueueConfig::from(ByteCount::mebibytes(64)),
            line: LineConfig::Unlimited,
            schedule: None,
            ..config.clone()
        };
        let tight = DirectionConfig { schedule: None, ..config };
        let lost_in = |config: &DirectionConfig| -> Vec<u64> {
            let (_, records) = run(MemoryLimits::default(), config, &steps, true);
            records.iter().filter(|record| is_lost(record)).map(|record| record.index).collect()
        };
        let all = lost_in(&roomy);
        prop_assert!(lost_in(&tight).iter().all(|index| all.contains(index)));
    }
}

fn is_lost(record: &PacketRecord) -> bool {
    matches!(
        record.ending,
        PacketOutcome::Dropped {
            reason: emulate::DropReason::Lost,
            ..
        }
    )
}

fn is_untaken(record: &PacketRecord) -> bool {
    matches!(
        record.ending,
        PacketOutcome::Dropped {
            reason: emulate::DropReason::Untaken,
            ..
        }
    )
}

/// All deliveries and all records by number; `eager` polls at each step.
fn run(
    limits: MemoryLimits,
    config: &DirectionConfig,
    steps: &[CallerStep],
    eager: bool,
) -> (Vec<PacketDelivery>, Vec<PacketRecord>) {
    let mut direction = LinkDirection::within(limits, config.clone(), 7);
    direction.keep_records(true);
    let mut deliveries = Vec::new();
    let mut now = Time::ZERO;
    for step in steps {
        match step {
            CallerStep::Wait(nanoseconds) => now += Duration::from_nanos(*nanoseconds),
            CallerStep::Send(length) => {
                direction.handle(now, packet(*length));
            }
            CallerStep::Poll => {}
            CallerStep::Configure(config) => direction.set_config(now, (**config).clone()),
        }
        if eager {
            direction.queued(now);
            deliveries.extend(std::iter::from_fn(|| direction.poll_output(now)));
        }
    }
    // Until everything has come that comes within a minute.
    now += Duration::from_secs(60);
    deliveries.extend(std::iter::from_fn(|| direction.poll_output(now)));
    let mut records: Vec<PacketRecord> = std::iter::from_fn(|| direction.poll_record()).collect();
    records.sort_by_key(|record| (record.index, is_copy(record)));
    (deliveries, records)
}

/// Log entry of a link that runs in real time: an arrival, or a change of settings, with its time.
#[derive(Clone, Debug)]
enum LinkLogEntry {
    Arrival(Time, Bytes),
    Settings(Time, Box<DirectionConfig>),
}

/// Runs as a driver does: it wakes up late, polls at its own times, and learns an arrival's time
/// from the record, as a reader of its log does.
fn run_live(
    limits: MemoryLimits,
    config: &DirectionConfig,
    steps: &[CallerStep],
) -> (Vec<LinkLogEntry>, Time, Vec<PacketRecord>) {
    let mut direction = LinkDirection::within(limits, config.clone(), 7);
    direction.keep_records(true);
    let mut log = Vec::new();
    let mut records = Vec::new();
    let mut now = Time::ZERO;
    for step in steps {
        match step {
            CallerStep::Wait(nanoseconds) => {
                let until = now + Duration::from_nanos(*nanoseconds);
                while let Some(timeout) = direction.poll_timeout().filter(|at| *at < until) {
                    // Woken 7 µs late, but never after the next thing happens.
                    now = until.min(timeout.max(now) + Duration::from_micros(7));
                    while direction.poll_output(now).is_some() {}
                }
                now = until;
            }
            CallerStep::Send(length) => {
                log.push(LinkLogEntry::Arrival(now, packet(*length)));
                direction.handle(now, packet(*length));
            }
            CallerStep::Poll => while direction.poll_output(now).is_some() {},
            CallerStep::Configure(config) => {
                log.push(LinkLogEntry::Settings(now, config.clone()));
                direction.set_config(now, (**config).clone());
            }
        }
        records.extend(std::iter::from_fn(|| direction.poll_record()));
    }
    now += Duration::from_secs(60);
    while direction.poll_output(now).is_some() {}
    direction.record_held(now);
    records.extend(std::iter::from_fn(|| direction.poll_record()));
    records.sort_by_key(|record| (record.index, is_copy(record)));
    let arrivals = log.iter_mut().filter_map(|logged| match logged {
        LinkLogEntry::Arrival(at, _) => Some(at),
        LinkLogEntry::Settings(..) => None,
    });
    for (index, at) in arrivals.enumerate() {
        let record = records.iter().find(|record| record.index == index as u64);
        if let Some(record) = record {
            *at = record.arrived;
        }
    }
    (log, now, records)
}

/// Virtual time: nothing is polled before everything has been handed in.
fn replay(
    limits: MemoryLimits,
    config: &DirectionConfig,
    log: &[LinkLogEntry],
    end: Time,
) -> Vec<PacketRecord> {
    let mut direction = LinkDirection::within(limits, config.clone(), 7);
    direction.keep_records(true);
    for logged in log {
        match logged {
            LinkLogEntry::Arrival(at, packet) => {
                direction.handle(*at, packet.clone());
            }
            LinkLogEntry::Settings(at, config) => direction.set_config(*at, (**config).clone()),
        }
    }
    while direction.poll_output(end).is_some() {}
    direction.record_held(end);
    let mut records: Vec<PacketRecord> = std::iter::from_fn(|| direction.poll_record()).collect();
    records.sort_by_key(|record| (record.index, is_copy(record)));
    records
}

fn is_copy(record: &PacketRecord) -> bool {
    matches!(
        record.ending,
        PacketOutcome::Delivered { is_copy: true, .. } | PacketOutcome::Held { is_copy: true, .. }
    )
}

#[test]
fn a_full_line_carries_exactly_its_rate() {
    let config = DirectionConfig {
        line: LineConfig::Rate(bitrate(51_840_000)),
        delay: Duration::from_millis(125),
        queue: ByteCount::mebibytes(1).into(),
        ..DirectionConfig::default()
    };
    let mut direction = LinkDirection::new(config, 1);
    let mut now = Time::ZERO;
    let mut arrivals = Vec::new();
    // Twice as much as fits, for ten seconds.
    for _ in 0..86_400 {
        direction.handle(now, packet(1_500));
        now += Duration::from_nanos(115_740);
        while let Some(delivery) = direction.poll_output(now) {
            arrivals.push(delivery.due);
        }
    }
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
        panic!("nothing arrived");
    };
    let packets = arrivals.len() as u64 - 1;
    let expected = packets * 12_000 * 1_000_000_000 / 51_840_000;
    let measured = last.since(*first).as_nanos() as u64;
    // Each end is rounded up to a nanosecond.
    assert!(
        measured.abs_diff(expected) <= 1,
        "{measured} for {expected}"
    );
}

#[test]
fn a_limit_in_packets_is_exact() {
    for limit in [1, 2, 10, 1_000] {
        let config = DirectionConfig {
            line: LineConfig::Rate(bitrate(1_000)),
            queue: QueueLimit::packets(limit).into(),
            ..DirectionConfig::default()
        };
        let mut direction = LinkDirection::new(config, 1);
        let taken = (0..2_000)
            .filter(|_| direction.handle(Time::ZERO, packet(100)) == EnqueueOutcome::Queued)
            .count();
        assert_eq!(taken as u64, limit);
    }
}

#[test]
fn time_limit_equals_the_lines_serialisation_time() {
    // 1,500 bytes take 12 ms at 1 Mbit/s: eight fit into 100 ms, the one on the line among them.
    let config = DirectionConfig {
        line: LineConfig::Rate(bitrate(1_000_000)),
        queue: QueueLimit::time(Duration::from_millis(100)).into(),
        ..DirectionConfig::default()
    };
    let mut direction = LinkDirection::new(config, 1);
    let taken = (0..20)
        .filter(|_| direction.handle(Time::ZERO, packet(1_500)) == EnqueueOutcome::Queued)
        .count();
    assert_eq!(taken, 8);
}

#[test]
fn drop_head_keeps_the_newest() {
    let config = DirectionConfig {
        line: LineConfig::Rate(bitrate(12_000)),
        queue: QueueConfig {
            limit: QueueLimit::packets(3),
            discipline: QueueDiscipline::DropHead,
        },
        ..DirectionConfig::default()
    };
    let mut direction = LinkDirection::new(config, 1);
    for _ in 0..6 {
        assert_eq!(
            direction.handle(Time::ZERO, packet(1_500)),
            EnqueueOutcome::Queued
        );
    }
    let arrived: Vec<u64> = std::iter::from_fn(|| direction.poll_output(Time::NEVER))
        .map(|delivery| delivery.index)
        .collect();
    // The first was on the line already.
    assert_eq!(arrived, [0, 4, 5]);
}

#[test]
fn an_outage_holds_or_loses_what_it_meets() {
    let second = Duration::from_secs(1);
    let step = |at: u32, change: SettingsChange| ScheduleStep {
        at: second * at,
        change,
    };
    let rate = |rate| SettingsChange {
        rate: Some(bitrate(rate)),
        ..SettingsChange::default()
    };
    let holding = LinkSchedule::new(vec![step(1, rate(0)), step(3, rate(12_000_000))], None);
    let config = DirectionConfig {
        line: LineConfig::Rate(bitrate(12_000_000)),
        schedule: Some(Arc::new(holding.expect("in order"))),
        ..DirectionConfig::default()
    };
    let mut direction = LinkDirection::new(config, 1);
    let during = Time::ZERO + Duration::from_millis(1_500);
    direction.handle(during, packet(1_500));
    assert_eq!(direction.poll_timeout(), Some(Time::ZERO + second * 3));
    let delivery = direction.poll_output(Time::ZERO + second * 4);
    let due = delivery.map(|delivery| delivery.due);
    assert_eq!(
        due,
        Some(Time::ZERO + second * 3 + Duration::from_millis(1))
    );
}

#[test]
fn setting_changed_during_outage_does_not_end_it() {
    let step = |at: u64, rate: u64| ScheduleStep {
        at: Duration::from_secs(at),
        change: SettingsChange {
            rate: Some(bitrate(rate)),
            ..SettingsChange::default()
        },
    };
    let outage = LinkSchedule::new(vec![step(1, 0), step(3, 12_000_000)], None);
    let config = DirectionConfig {
        line: LineConfig::Rate(bitrate(12_000_000)),
        schedule: Some(Arc::new(outage.expect("in order"))),
        ..DirectionConfig::default()
    };
    let mut direction = LinkDirection::new(config.clone(), 1);
    let two = Time::ZERO + Duration::from_secs(2);
    direction.handle(two, packet(1_500));
    let slower = DirectionConfig {
        delay: Duration::from_millis(7),
        ..config.clone()
    };
    direction.set_config(two, slower.clone());
    assert_eq!(direction.config().line, LineConfig::Rate(bitrate(0)));
    // A rate that is named ends it.
    let named = DirectionConfig {
        line: LineConfig::Rate(bitrate(6_000_000)),
        ..slower
    };
    direction.set_config(two, named);
    let delivery = direction.poll_output(two + Duration::from_millis(9));
    let due = delivery.map(|delivery| delivery.due);
    assert_eq!(due, Some(two + Duration::from_millis(9)));
}

#[test]
fn late_packet_is_awaited_after_reordering_is_disabled() {
    let millis = Duration::from_millis;
    // 1,000 bytes take half a second.
    let near = DirectionConfig {
        line: LineConfig::Rate(bitrate(16_000)),
        ..DirectionConfig::default()
    };
    let far = DirectionConfig {
        delay: Duration::from_secs(10),
        ..near.clone()
    };
    let far_or_late = DirectionConfig {
        reordering: Some(ReorderingConfig {
            probability: probability(1.0),
            late_by: millis(1),
        }),
        ..far.clone()
    };
    let mut direction = LinkDirection::new(far, 1);
    direction.handle(Time::ZERO, packet(1_000));
    direction.set_config(Time::ZERO, far_or_late);
    direction.handle(Time::ZERO, packet(1_000));
    // The first is under way until 10.5 s; the second is on the line until 1 s, and overtakes it.
    direction.set_config(Time::ZERO + millis(600), near);
    let second = Time::ZERO + millis(1_000);
    assert_eq!(direction.poll_timeout(), Some(second));
    let delivery = direction.poll_output(second);
    assert_eq!(delivery.map(|delivery| delivery.index), Some(1));
}
