//! Known devices on a busy machine, in virtual time: the sender and the emulated device lose their
//! processor now and then, so packets are sent and delivered in batches, and stamps have noise.
//!
//! ```text
//!   due ─► sender runs ─► model ─► emulator runs ─► stamp with noise ─► record
//! ```

use std::time::Duration;

use profile::{
    DeviceSimulator, MeasuredRun, MeasurementPlan, MeasurementSubject, ModelFamily,
    PacketIntegrity, ParameterKind, ReceivedPacket, SimulatedPacket, TrafficMachine,
};
use profiler::known_devices::{self, draw, judge};
use profiler::{CalibratedRuns, EmulatorSimulator};
use vocab::{DeviceModel, SeededRandom, Time};

/// Time that handing one frame to the kernel takes.
const FRAME: Duration = Duration::from_nanos(1_200);
/// Time without work after which a thread sleeps.
const ASLEEP: Duration = Duration::from_micros(20);
/// Time after the last packet at which every packet has its fate.
const LATER: Duration = Duration::from_secs(10_000);

/// Load of a machine.
#[derive(Clone, Copy, Debug)]
struct MachineLoad {
    /// Mean time that a thread runs before it loses its processor.
    runs: Duration,
    /// Mean time until it runs again.
    pauses: Duration,
    /// Mean time by which a thread wakes late.
    late: Duration,
    /// Mean noise of a stamp.
    noise: Duration,
}

/// Hardly any other program runs.
const QUIET: MachineLoad = MachineLoad {
    runs: Duration::from_millis(50),
    pauses: Duration::from_micros(60),
    late: Duration::from_micros(8),
    noise: Duration::from_nanos(400),
};
/// Other programs use both cores.
const BUSY: MachineLoad = MachineLoad {
    runs: Duration::from_millis(3),
    pauses: Duration::from_micros(700),
    late: Duration::from_micros(12),
    noise: Duration::from_micros(4),
};

/// A thread that loses its processor at random.
struct PausedThread {
    random: SeededRandom,
    load: MachineLoad,
    /// Start and end of the pause that is next or present.
    pause: (Time, Time),
    /// End of its last piece of work.
    busy_until: Time,
}

impl PausedThread {
    fn new(load: MachineLoad, seed: u64, stream: u64) -> Self {
        let mut thread = Self {
            random: SeededRandom::for_stream(seed, stream),
            load,
            pause: (Time::ZERO, Time::ZERO),
            busy_until: Time::ZERO,
        };
        thread.plan_pause();
        thread
    }

    fn plan_pause(&mut self) {
        let start = self.pause.1 + exponential(&mut self.random, self.load.runs);
        self.pause = (
            start,
            start + exponential(&mut self.random, self.load.pauses),
        );
    }

    /// Time at which it has handled a frame that is due at `due`; times rise. A thread that slept wakes
    /// late, and then handles all that is due.
    fn handles(&mut self, due: Time) -> Time {
        let mut at = due.max(self.busy_until);
        if due > self.busy_until + ASLEEP {
            at = due + exponential(&mut self.random, self.load.late);
        }
        while self.pause.1 <= at {
            self.plan_pause();
        }
        if self.pause.0 <= at {
            at = self.pause.1;
        }
        self.busy_until = at + FRAME;
        self.busy_until
    }
}

fn exponential(random: &mut SeededRandom, mean: Duration) -> Duration {
    mean.mul_f64(-(1.0 - random.next_f64()).ln())
}

/// The times by which a busy machine delivered packets too late.
#[derive(Default)]
struct DeliveryDelays(Vec<Duration>);

impl DeliveryDelays {
    fn quantile(&mut self, share: f64) -> Duration {
        self.0.sort_unstable();
        let rank = (self.0.len() as f64 * share) as usize;
        self.0.get(rank).copied().unwrap_or_default()
    }
}

/// Runs the plan on a machine with this load.
fn measure(
    plan: &MeasurementPlan,
    device: &DeviceModel,
    (load, seed): (MachineLoad, u64),
    late: &mut [DeliveryDelays; 2],
) -> Vec<MeasuredRun> {
    let mut runs = Vec::new();
    for run in plan.runs() {
        let mut machine = TrafficMachine::new(Time::ZERO, &run);
        let mut random = SeededRandom::for_stream(seed, 1_000 + u64::from(run.number));
        let mut sender = PausedThread::new(load, seed, 2_000 + u64::from(run.number));
        let mut emulator = PausedThread::new(load, seed, 3_000 + u64::from(run.number));
        let end = Time::ZERO + LATER;
        let mut packets = Vec::new();
        while let Some(packet) = machine.poll_output(end) {
            let sent = sender.handles(packet.due);
            machine.handle_sent(packet.sequence, sent);
            packets.push((
                packet.sequence,
                SimulatedPacket {
                    sent,
                    size: packet.size,
                    input: packet.input,
                    output: packet.output,
                },
            ));
        }
        let simulated: Vec<SimulatedPacket> = packets.iter().map(|(_, packet)| *packet).collect();
        let left = match run.subject {
            MeasurementSubject::Device => EmulatorSimulator.replay(device, &simulated),
            MeasurementSubject::Cable => simulated.iter().map(|one| Some(one.sent)).collect(),
        };
        let mut left: Vec<_> = packets
            .iter()
            .zip(left)
            .filter_map(|(packet, left)| Some((left?, packet)))
            .collect();
        left.sort_by_key(|(left, _)| *left);
        let is_overload = run.purpose == profile::ExperimentPurpose::Overload;
        for (due, (sequence, packet)) in left {
            let mut at = due;
            if run.subject == MeasurementSubject::Device {
                at = emulator.handles(due);
                late[usize::from(is_overload)].0.push(at.since(due));
            }
            machine.handle_received(
                end,
                &ReceivedPacket {
                    sequence: *sequence,
                    at: at + exponential(&mut random, load.noise),
                    size: packet.size,
                    output: packet.output,
                    integrity: PacketIntegrity::Intact,
                    content: None,
                },
            );
        }
        let later = end + LATER;
        let records = std::iter::from_fn(|| machine.poll_record(later)).collect();
        runs.push(MeasuredRun { plan: run, records });
    }
    runs
}

/// Counts of parts that are right and that are judged.
#[derive(Debug, Default)]
struct RightParts {
    rates: (usize, usize),
    units: (usize, usize),
    sizes: (usize, usize),
    servers: (usize, usize),
    /// Units that were claimed and are wrong.
    wrong_units: usize,
    /// Rates that were claimed, are not hidden by the machine, and are wrong by more than 1 %.
    wrong_rates: usize,
}

fn count(entry: &mut (usize, usize), is_right: Option<bool>) {
    entry.0 += usize::from(is_right == Some(true));
    entry.1 += usize::from(is_right.is_some());
}

fn judge_all(seeds: std::ops::Range<u64>, load: MachineLoad) -> RightParts {
    let mut right = RightParts::default();
    for seed in seeds {
        let device = draw::device(seed);
        let mut late = <[DeliveryDelays; 2]>::default();
        let runs = measure(&draw::real_plan(&device), &device, (load, seed), &mut late);
        let runs = CalibratedRuns::new(runs, device.ports);
        let quality = judge::MeasurementQuality {
            overload_gap: Duration::from_micros(8),
            burst_gap: FRAME,
            resolution: runs.resolution(),
            probe_lateness: late[0].quantile(0.5),
            overload_lateness: late[1].quantile(0.99),
        };
        let fit = runs.fit("fitted", ModelFamily::Full).unwrap();
        let errors = judge::judge(
            &device,
            &fit,
            known_devices::dropped_sizes(&runs.runs),
            quality,
        );
        println!(
            "seed {seed}: {errors:?}, {quality:?}\n  {:?}, fitted {:?}\n  {:?} fitted {:?}, late {}\n  {:?} fitted {:?}, late {}",
            device.output.rate,
            fit.parameter(ParameterKind::OutputRate),
            device.output.queue,
            fit.parameter(ParameterKind::OutputQueue),
            quality.is_late_for_unit(&device),
            device.servers.as_ref().map(|one| (
                one.count,
                device.service_time(64),
                device.service_time(1_500)
            )),
            fit.model.servers.as_ref().map(|one| (
                one.count,
                fit.model.service_time(64),
                fit.model.service_time(1_500)
            )),
            quality.is_late_for_servers(&device),
        );
        count(
            &mut right.rates,
            errors.rate_percent.map(|error| error <= 1.0),
        );
        count(&mut right.units, errors.unit_is_right);
        right.wrong_units += usize::from(
            errors.unit_is_right == Some(false) && fit.is_identified(ParameterKind::OutputQueue),
        );
        right.wrong_rates += usize::from(
            errors.rate_percent.is_some_and(|error| error > 1.0)
                && fit.is_identified(ParameterKind::OutputRate),
        );
        count(
            &mut right.sizes,
            errors.queue_percent.map(|error| error <= 5.0),
        );
        count(&mut right.servers, errors.servers_are_right);
    }
    right
}

/// Checks that most devices are judged, that no part is claimed wrongly, and that at least this share of
/// the units is found.
fn check(right: &RightParts, least: f64, draws: usize) {
    println!("{right:?}");
    assert!(right.wrong_units * 20 <= draws, "{right:?}");
    for (is_right, judged) in [right.units, right.sizes] {
        assert!(is_right as f64 >= least * judged as f64, "{right:?}");
    }
    let (is_right, judged) = right.servers;
    assert!(is_right * 20 >= judged * 19, "{right:?}");
    // Those that the machine hides are not judged.
    assert_eq!(right.wrong_rates, 0, "{right:?}");
    let (is_right, judged) = right.rates;
    assert!(is_right * 20 >= judged * 19, "{right:?}");
    assert!(judged * 10 >= draws * 6, "{right:?}");
    assert!(right.units.1 * 10 >= draws * 5, "{right:?}");
}

#[test]
fn devices_are_found_on_a_quiet_machine() {
    check(&judge_all(1..3, QUIET), 1.0, 2);
}

#[test]
fn devices_are_found_on_a_busy_machine() {
    check(&judge_all(4..6, BUSY), 1.0, 2);
}

#[test]
#[ignore = "long: 40 draws, a minute without other programs"]
fn many_devices_are_found_on_a_quiet_machine() {
    check(&judge_all(0..40, QUIET), 0.98, 40);
}

#[test]
#[ignore = "long: 40 draws, a minute without other programs"]
fn many_devices_are_found_on_a_busy_machine() {
    check(&judge_all(0..40, BUSY), 0.6, 40);
}
