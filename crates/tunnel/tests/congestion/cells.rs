//! Performance of each controller on each kind of path: a bound for every scenario, medians over
//! seeds.
//!
//! Ideal is the line's rate less the path's own loss. Seconds 5 to 35 count unless a scenario says
//! otherwise. `table` (ignored by default) prints all scenarios with more seeds: `SEEDS=10 cargo
//! test --release -p tunnel --test congestion -- --ignored --nocapture table`.

use std::time::Duration;

use emulate::{
    DirectionConfig, GilbertElliott, JitterConfig, JitterDistribution, LineConfig, LinkSchedule,
    LossModel, PacketOrder, QueueConfig, ScheduleStep, SettingsChange, TokenBucket,
};
use tunnel::congestion::{CongestionAlgorithm, RememberedPath};
use vocab::{Bitrate, ByteCount, Probability, SeededRandom};

use crate::simulation::{FlowOutcome, PACKET, SimulatedFlow, SimulationSetup, run};

/// Path and the required performance of a flow on it.
pub struct CongestionScenario {
    name: &'static str,
    path: BottleneckPath,
    /// Least share of ideal.
    share: f64,
    /// Largest allowed share of lost packets beyond the path's own loss.
    lost: f64,
    /// Longest queueing delay at the 95th percentile, as a share of the round-trip time.
    queueing: f64,
}

/// A line with one queue before it.
#[derive(Clone, Copy)]
pub struct BottleneckPath {
    pub rate: Bitrate,
    pub one_way: Duration,
    pub loss: f64,
    pub burst: f64,
    pub jitter: Duration,
    /// The queue, in BDP.
    pub queue: f64,
    /// A policer of this rate before it, and its bucket in bytes.
    pub policer: Option<(Bitrate, u64)>,
    /// The rate changes this often, to anything from a quarter of it to all of it.
    pub changes_each: Option<Duration>,
    pub from: Duration,
    pub to: Duration,
}

pub const WAN: BottleneckPath = BottleneckPath {
    rate: mbit(20),
    one_way: ms(50),
    loss: 0.0,
    burst: 1.0,
    jitter: Duration::ZERO,
    queue: 1.0,
    policer: None,
    changes_each: None,
    from: ms(5_000),
    to: ms(35_000),
};

const fn mbit(count: u64) -> Bitrate {
    Bitrate::from_bits_per_second(count * 1_000_000)
}

const OC_1: Bitrate = Bitrate::from_bits_per_second(51_840_000);

pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl BottleneckPath {
    /// The rate in each span of time, where it changes.
    fn rates(&self, seed: u64) -> Vec<(Duration, Bitrate)> {
        let Some(each) = self.changes_each else {
            return vec![(Duration::ZERO, self.rate)];
        };
        let mut random = SeededRandom::from_seed(seed);
        let (mut rates, mut at) = (Vec::new(), Duration::ZERO);
        while at < self.to {
            let share = 0.25 + 0.75 * random.next_f64();
            let rate = (self.rate.bits_per_second() as f64 * share) as u64;
            rates.push((at, Bitrate::from_bits_per_second(rate)));
            at += each;
        }
        rates
    }

    /// Bits that the path carries in the time that counts.
    fn ideal_bits(&self, seed: u64) -> f64 {
        let rates = self.rates(seed);
        let ends = rates.iter().skip(1).map(|(at, _)| *at).chain([self.to]);
        let bits: f64 = rates
            .iter()
            .zip(ends)
            .map(|((at, rate), end)| {
                let span = end.min(self.to).saturating_sub((*at).max(self.from));
                let rate = self
                    .policer
                    .map_or(*rate, |(policed, _)| policed.min(*rate));
                span.as_secs_f64() * rate.bits_per_second() as f64
            })
            .sum();
        bits * (1.0 - self.loss)
    }

    fn forward(&self, seed: u64) -> DirectionConfig {
        let bdp = self.rate.bytes_in(self.one_way * 2).bytes() as f64;
        // A queue of a few packets is the least that routers have.
        let queue = ((bdp * self.queue) as u64).max(16 * PACKET);
        let steps: Vec<ScheduleStep> = self
            .rates(seed)
            .into_iter()
            .map(|(at, rate)| ScheduleStep {
                at,
                change: SettingsChange {
                    rate: Some(rate),
                    ..SettingsChange::default()
                },
            })
            .collect();
        let schedule = LinkSchedule::new(steps, None).unwrap();
        DirectionConfig {
            queue: QueueConfig::from(ByteCount::new(queue)),
            line: LineConfig::Rate(self.rate),
            policer: self.policer.map(|(rate, burst)| TokenBucket {
                rate,
                burst: ByteCount::new(burst),
                peak: None,
            }),
            schedule: self.changes_each.map(|_| schedule.into()),
            ..self.back()
        }
    }

    fn back(&self) -> DirectionConfig {
        let share = Probability::from_fraction(self.loss).unwrap();
        let loss = if self.burst > 1.0 {
            let bursts = GilbertElliott::from_rate_and_burst(share, self.burst).unwrap();
            LossModel::GilbertElliott(bursts)
        } else {
            LossModel::from(share)
        };
        let jitter = JitterConfig {
            distribution: JitterDistribution::Uniform {
                spread: self.jitter,
            },
            order: PacketOrder::Free,
        };
        DirectionConfig {
            queue: QueueConfig::from(ByteCount::mebibytes(64)),
            loss,
            delay: self.one_way,
            jitter: (!self.jitter.is_zero()).then_some(jitter),
            ..DirectionConfig::default()
        }
    }

    pub fn setup(&self, flows: Vec<SimulatedFlow>, seed: u64) -> SimulationSetup {
        SimulationSetup {
            forward: self.forward(seed),
            back: self.back(),
            flows,
            seed,
            length: self.to,
            steady_from: self.from,
        }
    }
}

const NO_BOUND: f64 = f64::INFINITY;

const fn cell(
    name: &'static str,
    path: BottleneckPath,
    share: f64,
    lost: f64,
    queueing: f64,
) -> CongestionScenario {
    CongestionScenario {
        name,
        path,
        share,
        lost,
        queueing,
    }
}

const fn with_loss(loss: f64, burst: f64) -> BottleneckPath {
    BottleneckPath { loss, burst, ..WAN }
}

const fn with_jitter(loss: f64) -> BottleneckPath {
    BottleneckPath {
        loss,
        jitter: ms(50),
        ..WAN
    }
}

const fn oc_1(one_way: u64) -> BottleneckPath {
    BottleneckPath {
        rate: OC_1,
        one_way: ms(one_way),
        ..WAN
    }
}

const fn policed(burst: u64) -> BottleneckPath {
    BottleneckPath {
        rate: mbit(100),
        policer: Some((mbit(10), burst)),
        ..WAN
    }
}

/// Every cell. The bars leave the transport's own overhead (about 1 %) room below the product's.
const CELLS: [CongestionScenario; 22] = [
    cell("20M 100ms", WAN, 0.98, 0.001, 0.25),
    cell("20M 100ms 1%", with_loss(0.01, 1.0), 0.97, 0.005, 0.30),
    cell("20M 100ms 5%", with_loss(0.05, 1.0), 0.96, 0.01, 0.30),
    cell("20M 100ms 10%", with_loss(0.10, 1.0), 0.95, 0.01, 0.30),
    cell("20M 100ms 1% in 8s", with_loss(0.01, 8.0), 0.96, 0.01, 0.30),
    cell("20M 100ms 5% in 8s", with_loss(0.05, 8.0), 0.94, 0.02, 0.35),
    cell(
        "20M 100ms 10% in 8s",
        with_loss(0.10, 8.0),
        0.94,
        0.02,
        0.35,
    ),
    cell("20M 100ms jitter", with_jitter(0.0), 0.95, 0.01, NO_BOUND),
    cell(
        "20M 100ms jitter 1%",
        with_jitter(0.01),
        0.94,
        0.01,
        NO_BOUND,
    ),
    cell(
        "20M 100ms jitter 5%",
        with_jitter(0.05),
        0.94,
        0.01,
        NO_BOUND,
    ),
    cell(
        "20M 100ms jitter 10%",
        with_jitter(0.1),
        0.94,
        0.01,
        NO_BOUND,
    ),
    cell("OC-1 0ms", oc_1(0), 0.97, 0.01, NO_BOUND),
    cell("OC-1 30ms", oc_1(30), 0.97, 0.001, 0.25),
    cell("OC-1 100ms", oc_1(100), 0.97, 0.001, 0.25),
    cell(
        "OC-1 250ms",
        BottleneckPath {
            from: ms(20_000),
            to: ms(80_000),
            ..oc_1(250)
        },
        0.97,
        0.001,
        0.25,
    ),
    cell(
        "500M 100ms",
        BottleneckPath {
            rate: mbit(500),
            to: ms(12_000),
            ..WAN
        },
        0.97,
        0.001,
        0.25,
    ),
    cell(
        "500M 100ms 1%",
        BottleneckPath {
            rate: mbit(500),
            to: ms(12_000),
            ..with_loss(0.01, 1.0)
        },
        0.97,
        0.005,
        0.30,
    ),
    cell(
        "0.1 BDP",
        BottleneckPath { queue: 0.1, ..WAN },
        0.98,
        0.02,
        0.25,
    ),
    cell("policer 10M, 62.5 kB", policed(62_500), 0.97, 0.05, 0.05),
    cell("policer 10M, 250 kB", policed(250_000), 0.97, 0.06, 0.05),
    cell(
        "20M each 500ms",
        BottleneckPath {
            changes_each: Some(ms(500)),
            ..WAN
        },
        0.87,
        0.06,
        NO_BOUND,
    ),
    cell(
        "20M each 3s",
        BottleneckPath {
            changes_each: Some(ms(3_000)),
            ..WAN
        },
        0.87,
        0.06,
        NO_BOUND,
    ),
];

struct FlowMeasurement {
    share: f64,
    lost: f64,
    queueing: f64,
    spurious: f64,
}

fn measure(path: &BottleneckPath, algorithm: CongestionAlgorithm, seed: u64) -> FlowMeasurement {
    let outcome = run(&path.setup(vec![SimulatedFlow::of(algorithm)], seed)).remove(0);
    let rtt = (path.one_way * 2).as_secs_f64().max(1e-3);
    FlowMeasurement {
        share: outcome.steady_bytes as f64 * 8.0 / path.ideal_bits(seed),
        lost: outcome.loss() - path.loss,
        queueing: outcome.queueing_quantile(0.95).as_secs_f64() / rtt,
        spurious: outcome.spurious as f64 / outcome.sent as f64,
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn check(chosen: impl Fn(&str) -> bool, seeds: u64) {
    for cell in CELLS.iter().filter(|cell| chosen(cell.name)) {
        let runs: Vec<FlowMeasurement> = (1..=seeds)
            .map(|seed| measure(&cell.path, CongestionAlgorithm::Bbr, seed))
            .collect();
        let share = median(runs.iter().map(|run| run.share));
        let lost = median(runs.iter().map(|run| run.lost));
        let queueing = median(runs.iter().map(|run| run.queueing));
        let name = cell.name;
        assert!(share >= cell.share, "{name}: {share:.3} of ideal");
        assert!(lost <= cell.lost, "{name}: {lost:.4} lost on top");
        assert!(queueing <= cell.queueing, "{name}: queue {queueing:.3} RTT");
    }
}

#[test]
fn bbr_fills_clean_path_with_short_queue() {
    check(|name| name == "20M 100ms" || name.starts_with("OC-1"), 1);
}

#[test]
fn bbr_fills_a_path_with_random_loss() {
    check(
        |name| name.starts_with("20M 100ms") && name.ends_with('%') && !name.contains("jitter"),
        1,
    );
}

#[test]
fn bbr_fills_a_path_that_loses_in_bursts() {
    check(|name| name.ends_with("in 8s"), 3);
}

#[test]
fn bbr_fills_a_path_that_reorders() {
    check(|name| name.contains("jitter"), 3);
}

#[test]
fn early_losses_from_reordering_do_not_end_startup() {
    // Each of these starts once left half of the path empty until the end.
    for (loss, seed, least) in [(0.1, 4, 0.75), (0.1, 7, 0.9), (0.01, 22, 0.9)] {
        let share = measure(&with_jitter(loss), CongestionAlgorithm::Bbr, seed).share;
        assert!(share > least, "loss {loss}, seed {seed}: {share:.3}");
    }
}

#[test]
fn bbr_backs_off_from_policer_and_short_queue() {
    check(|name| name.starts_with("policer") || name == "0.1 BDP", 1);
}

#[test]
fn bbr_follows_a_rate_that_changes() {
    check(|name| name.contains("each"), 3);
}

/// Rate of a transfer of 16 MiB in packets of 1448 bytes, as a share of ideal, from the first
/// packet to the last arrival.
fn whole_transfer(flow: SimulatedFlow, path: BottleneckPath) -> f64 {
    let mut setup = path.setup(vec![flow], 1);
    setup.length = Duration::from_secs(20);
    let outcome = run(&setup).remove(0);
    let bytes = (16 << 20) * PACKET / 1448;
    let taken = outcome.time_of(bytes).unwrap_or(setup.length);
    path.rate.time_for(ByteCount::new(bytes)).as_secs_f64() / taken.as_secs_f64()
}

fn remembering(rate: Bitrate) -> SimulatedFlow {
    SimulatedFlow {
        remembered: Some(RememberedPath { rate, rtt: ms(100) }),
        ..SimulatedFlow::of(CongestionAlgorithm::Bbr)
    }
}

#[test]
fn a_whole_transfer_wastes_little_on_its_start() {
    let new = whole_transfer(SimulatedFlow::of(CongestionAlgorithm::Bbr), WAN);
    assert!(new >= 0.94, "new path: {new:.3}");
    let remembered = whole_transfer(remembering(WAN.rate), WAN);
    assert!(remembered >= 0.97, "remembered path: {remembered:.3}");
}

#[test]
fn a_wrong_memory_does_little_harm() {
    // The path has become four times slower, and four times faster.
    let slower = BottleneckPath {
        rate: mbit(5),
        ..WAN
    };
    let outcome = run(&slower.setup(vec![remembering(mbit(20))], 1)).remove(0);
    let share = outcome.steady_bytes as f64 * 8.0 / slower.ideal_bits(1);
    assert!(share > 0.95, "{share:.3}");
    assert!(outcome.loss() < 0.02, "{:.4}", outcome.loss());
    let faster = whole_transfer(remembering(mbit(5)), WAN);
    assert!(faster >= 0.80, "{faster:.3}");
}

/// Each flow's share of what all got in seconds 20 to 80 of a path with a queue of `queue` BDP.
fn shares(algorithms: &[CongestionAlgorithm], queue: f64, seed: u64) -> Vec<f64> {
    let path = BottleneckPath {
        queue,
        from: ms(20_000),
        to: ms(80_000),
        ..WAN
    };
    let flows = algorithms
        .iter()
        .zip(0..)
        .map(|(algorithm, index)| SimulatedFlow {
            start: ms(100) * index,
            ..SimulatedFlow::of(*algorithm)
        });
    let outcomes = run(&path.setup(flows.collect(), seed));
    let bytes: Vec<f64> = outcomes
        .iter()
        .map(|outcome: &FlowOutcome| outcome.steady_bytes as f64)
        .collect();
    let sum: f64 = bytes.iter().sum();
    assert!(sum * 8.0 > 0.95 * path.ideal_bits(seed), "{sum}");
    bytes.iter().map(|bytes| bytes / sum).collect()
}

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn two_bbr_flows_share_a_queue_fairly() {
    for queue in [1.0, 4.0] {
        let fairness = jain(&shares(&[CongestionAlgorithm::Bbr; 2], queue, 1));
        assert!(fairness >= 0.95, "{queue} BDP: {fairness:.3}");
    }
}

#[test]
fn sixteen_bbr_flows_leave_nobody_behind() {
    for queue in [1.0, 4.0] {
        let fairness = jain(&shares(&[CongestionAlgorithm::Bbr; 16], queue, 1));
        assert!(fairness >= 0.88, "{queue} BDP: {fairness:.3}");
    }
}

#[test]
fn bbr_and_cubic_leave_each_other_a_third() {
    for queue in [1.0, 4.0] {
        let both = shares(
            &[CongestionAlgorithm::Bbr, CongestionAlgorithm::Cubic],
            queue,
            1,
        );
        assert!((0.35..=0.65).contains(&both[0]), "{queue} BDP: {both:.3?}");
    }
}

#[test]
fn bbr_gets_its_share_from_unresponsive_flow() {
    // With 1 BDP such a rival leaves CUBIC a tenth too; with 4 its own window ends the queue.
    let began = shares(
        &[CongestionAlgorithm::Bbr, CongestionAlgorithm::BbrV1],
        4.0,
        1,
    )[0];
    let came_later = shares(
        &[CongestionAlgorithm::BbrV1, CongestionAlgorithm::Bbr],
        4.0,
        2,
    )[1];
    for ours in [began, came_later] {
        assert!((0.43..=0.57).contains(&ours), "{ours:.3}");
    }
}

#[test]
fn cubic_fills_a_clean_path_and_shares_it() {
    let measured = measure(&WAN, CongestionAlgorithm::Cubic, 1);
    assert!(measured.share > 0.95, "{:.3}", measured.share);
    let fairness = jain(&shares(&[CongestionAlgorithm::Cubic; 2], 1.0, 1));
    assert!(fairness >= 0.95, "{fairness:.3}");
}

#[test]
fn cubic_takes_every_loss_for_congestion() {
    // RFC 9438 §5.4: at 1 % of loss a flow of 100 ms keeps some 13 packets in flight, of 167.
    let measured = measure(&with_loss(0.01, 1.0), CongestionAlgorithm::Cubic, 1);
    assert!(measured.share < 0.2, "{:.3}", measured.share);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "for a person"
)]
#[ignore = "prints the table of all cells; takes minutes without optimisation"]
fn table() {
    let seeds = std::env::var("SEEDS").ok();
    let seeds: u64 = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(5);
    let only = std::env::var("ONLY").unwrap_or_default();
    for cell in CELLS.iter().filter(|cell| cell.name.contains(&only)) {
        let runs: Vec<FlowMeasurement> = (1..=seeds)
            .map(|seed| measure(&cell.path, CongestionAlgorithm::Bbr, seed))
            .collect();
        let mut sorted: Vec<f64> = runs.iter().map(|run| run.share).collect();
        sorted.sort_by(f64::total_cmp);
        println!(
            "{:22} of ideal {:.3} (least {:.3}, tenth {:.3}), lost on top {:.2} %, queue p95 {:.3} RTT, \
             spurious {:.2} %",
            cell.name,
            median(runs.iter().map(|run| run.share)),
            sorted[0],
            sorted[sorted.len() / 10],
            median(runs.iter().map(|run| run.lost)) * 100.0,
            median(runs.iter().map(|run| run.queueing)),
            median(runs.iter().map(|run| run.spurious)) * 100.0,
        );
    }
    for queue in [1.0, 4.0].into_iter().filter(|_| only.is_empty()) {
        for (name, flows) in [
            ("2 BBR", vec![CongestionAlgorithm::Bbr; 2]),
            ("16 BBR", vec![CongestionAlgorithm::Bbr; 16]),
            (
                "BBR, CUBIC",
                vec![CongestionAlgorithm::Bbr, CongestionAlgorithm::Cubic],
            ),
            ("2 CUBIC", vec![CongestionAlgorithm::Cubic; 2]),
            (
                "BBR, v1",
                vec![CongestionAlgorithm::Bbr, CongestionAlgorithm::BbrV1],
            ),
            (
                "v1, BBR",
                vec![CongestionAlgorithm::BbrV1, CongestionAlgorithm::Bbr],
            ),
            ("2 v1", vec![CongestionAlgorithm::BbrV1; 2]),
            (
                "CUBIC, v1",
                vec![CongestionAlgorithm::Cubic, CongestionAlgorithm::BbrV1],
            ),
        ] {
            let all: Vec<Vec<f64>> = (1..=seeds)
                .map(|seed| shares(&flows, queue, seed))
                .collect();
            println!(
                "{queue} BDP, {name:10}: Jain {:.3}, first's share {:.3}",
                median(all.iter().map(|shares| jain(shares))),
                median(all.iter().map(|shares| shares[0])),
            );
        }
    }
}
