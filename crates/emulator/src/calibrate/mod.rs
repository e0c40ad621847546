//! The emulator's certificate and capacity, measured from outside its process.
//!
//! ```text
//!   plan ─► for each task: start the emulator (stand.rs) ─► send and receive (traffic.rs)
//!           ─► judge (cells/) ─► raw samples (raw.rs)            ─► Certificate ─► table, JSON
//! ```
//! The measuring side has sockets with kernel stamps at both ends of the link and nothing else;
//! the emulator runs as a process of its own, as its users run it. What it says of itself stands
//! beside a cell and is never a figure of it. All chance follows from one seed, which is printed.
//!
//! [`calibrate()`] makes a [`CalibrationCertificate`], [`bench()`] measures the emulator's
//! capacity, and [`holds`] decides from both whether this host can hold a setting.

mod capacity;
mod cells;
mod certificate;
mod family;
pub mod holds;
mod measuring_host;
mod published;
mod raw;
mod stand;
mod statistics;
mod table;
mod tcp;
mod traffic;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use vocab::{Bitrate, Probability, SeededRandom};

pub use capacity::{CapacitySearch, LimitedBy, LoadTrial};
pub use cells::lost_by_the_host;
pub use certificate::{
    CalibrationCertificate, CertificateCell, CertificateVerdict, FILE_NAME, FORMAT_VERSION,
    HostCapacity, MeasuredQuantity, PassCriterion,
};
pub use measuring_host::{LatenessStatistics, MeasuringHost};
pub use stand::{DeviceKind, IpVersion};
pub use table::table;

use cells::{
    CellTask, CompetingTraffic, DelayCell, JitterCell, JitterShape, LossCell, LossPattern,
    MeasurementBench, QueueCell, QueueUnit, RateCell, SeedsCell,
};
use host::progress::ProgressReporter;
use host::rootless::PrivilegeSource;
use host::stamped_sockets as system;
use host::{ProgramEnvironment, wait};
use measuring_host::HostWatch;
use raw::RawSampleWriter;
use stand::TestBed;
use traffic::SendMode;

/// Options of a calibration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationOptions {
    /// Attachment of the emulator to the measuring ends.
    pub device: DeviceKind,
    /// IP version of the packets that measure.
    pub protocol: IpVersion,
    /// Fewer and shorter cells, in about a minute.
    pub quick: bool,
    /// Quantities to measure; all when empty.
    pub only: Vec<MeasuredQuantity>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of seeds in the last cells; `None` is the form's own number.
    pub seeds: Option<u32>,
    /// Measures rates that this host was not seen to carry all the same.
    pub force: bool,
    /// Directory for the raw samples; `None` keeps none.
    pub raw: Option<PathBuf>,
}

/// A new seed of at most 53 bits, so that any JSON reader keeps it exactly.
#[must_use]
pub fn fresh_seed() -> u64 {
    // The standard library seeds its hashers from the system's chance.
    RandomState::new().build_hasher().finish() >> 11
}

/// Seconds that [`calibrate`] takes, about.
#[must_use]
pub fn expected_s(options: &CalibrationOptions) -> f64 {
    let tasks: f64 = plan(options).iter().map(CellTask::expected_s).sum();
    tasks + STARTING_S
}

/// Estimated time for the host's timers and its capacity.
const STARTING_S: f64 = 10.0;

/// Number of sleeps of 1 ms by which the host's timers are judged.
const TIMER_SAMPLES: usize = 3_000;
const QUICK_TIMER_SAMPLES: usize = 1_000;

/// Duration of each measurement of the host's capacity.
const CARRIED_SPAN: Duration = Duration::from_millis(800);

/// Measures as `options` ask. A cell that cannot be measured is named in the certificate; the
/// others are measured all the same.
///
/// # Errors
/// Fails when the namespaces cannot be made, no cell can be measured, or the run is interrupted.
pub fn calibrate(
    environment: &ProgramEnvironment,
    privileges: PrivilegeSource,
    options: &CalibrationOptions,
    progress: &dyn ProgressReporter,
) -> Result<CalibrationCertificate> {
    let began = Instant::now();
    let tasks = plan(options);
    let whole: f64 = tasks.iter().map(CellTask::expected_s).sum::<f64>() + STARTING_S;
    progress.step(0.0, "listening to this host's timers");
    let samples = if options.quick {
        QUICK_TIMER_SAMPLES
    } else {
        TIMER_SAMPLES
    };
    let watch = HostWatch::begin(privileges.explain(), samples);
    let mut certificate = CalibrationCertificate {
        format_version: FORMAT_VERSION,
        date: now(),
        took_s: 0.0,
        quick: options.quick,
        device: options.device,
        protocol: options.protocol,
        seed: options.seed,
        host: MeasuringHost::default(),
        capacity: None,
        cells: Vec::new(),
        within_bars: false,
        chance: None,
        failures: Vec::new(),
        forced: Vec::new(),
        raw: options.raw.as_ref().map(|path| path.display().to_string()),
    };
    let mut raw = options
        .raw
        .as_deref()
        .map(RawSampleWriter::into)
        .transpose()?;
    let mut stand = TestBed::create(environment, options.device, options.protocol)?;
    stand.force = options.force;
    // An emulator that cannot be started at all is one error, and not one for each cell.
    stand.start(&[])?;
    stand.stop()?;
    let mut done = STARTING_S;
    if options.only.is_empty() {
        progress.step(done / 2.0 / whole, "what this host carries");
        match capacity::carried(&mut stand, CARRIED_SPAN) {
            Ok(capacity) => certificate.capacity = Some(capacity),
            Err(error) => certificate.failures.push(format!("capacity: {error:#}")),
        }
    }
    for (index, task) in tasks.iter().enumerate() {
        wait::not_interrupted()?;
        progress.step(done / whole, &task.title());
        let mut bench = MeasurementBench {
            stand: &mut stand,
            raw: raw.as_mut(),
            random: SeededRandom::for_stream(options.seed, index as u64),
        };
        match task.measure(&mut bench) {
            Ok(cells) => certificate.cells.extend(
                cells
                    .into_iter()
                    .filter(|cell| wanted(options, &[cell.quantity])),
            ),
            Err(error) => {
                wait::not_interrupted()?;
                if raw.as_ref().is_some_and(RawSampleWriter::has_failed) {
                    // A disk that is full stays so, and the rest would be measured for nothing.
                    return Err(error.context("no certificate is made"));
                }
                progress.note(&format!("{}: {error:#}", task.title()));
                certificate
                    .failures
                    .push(format!("{}: {error:#}", task.title()));
            }
        }
        done += task.expected_s();
    }
    if certificate.cells.is_empty() {
        bail!(
            "nothing could be measured: {}",
            certificate.failures.join("; ")
        );
    }
    certificate.forced = stand.forced.iter().cloned().collect();
    certificate.host = watch.end();
    certificate.took_s = began.elapsed().as_secs_f64();
    let verdict = CertificateVerdict::of(&certificate.cells);
    certificate.within_bars =
        certificate.failures.is_empty() && verdict.all_within(&certificate.cells);
    certificate.chance = Some(verdict);
    Ok(certificate)
}

fn wanted(options: &CalibrationOptions, quantities: &[MeasuredQuantity]) -> bool {
    options.only.is_empty() || quantities.iter().any(|one| options.only.contains(one))
}

/// The date and time as certificates have it.
fn now() -> String {
    jiff::Timestamp::now()
        .round(jiff::Unit::Second)
        .map_or_else(|_| String::new(), |now| now.to_string())
}

fn plan(options: &CalibrationOptions) -> Vec<CellTask> {
    let mut tasks = match options.quick {
        true => quick_plan(),
        false => full_plan(),
    };
    let seeds = options
        .seeds
        .unwrap_or(if options.quick { 0 } else { SEEDS });
    if seeds > 0 {
        for pattern in [LossPattern::Random, LossPattern::Bursts(BURST)] {
            tasks.push(CellTask::Seeds(SeedsCell { seeds, pattern }));
        }
    }
    tasks.retain(|task| wanted(options, task.quantities()));
    tasks
}

/// The mean length of bursts, packets.
const BURST: f64 = 5.0;

/// Number of seeds of the full form.
const SEEDS: u32 = 200;

const KILOBIT: u64 = 1_000;
const MEGABIT: u64 = 1_000_000;

fn rate(bits_per_second: u64, seconds: u64) -> CellTask {
    CellTask::Rate(RateCell {
        rate: Bitrate::from_bits_per_second(bits_per_second),
        span: Duration::from_secs(seconds),
    })
}

fn delay(
    milliseconds: u64,
    packets_per_second: f64,
    seconds: u64,
    beside: CompetingTraffic,
) -> CellTask {
    CellTask::Delay(DelayCell {
        delay: Duration::from_millis(milliseconds),
        packets_per_second,
        span: Duration::from_secs(seconds),
        beside,
    })
}

fn loss(percent: f64, pattern: LossPattern) -> CellTask {
    CellTask::Loss(LossCell {
        loss: Probability::from_fraction(percent / 100.0).expect("the plans stay below 100 %"),
        pattern,
    })
}

fn queue(limit: u64, unit: QueueUnit, ip_length: u16) -> CellTask {
    CellTask::Queue(QueueCell {
        limit,
        unit,
        ip_length,
    })
}

/// All settings of the published calibration, those that a WAN has beside, and each of the
/// emulator's promises.
fn full_plan() -> Vec<CellTask> {
    let mut tasks: Vec<CellTask> = [
        64 * KILOBIT,
        256 * KILOBIT,
        1_024 * KILOBIT,
        4_096 * KILOBIT,
        10 * MEGABIT,
        51_840 * KILOBIT,
        100 * MEGABIT,
        155_520 * KILOBIT,
        1_000 * MEGABIT,
    ]
    .into_iter()
    .map(|bits| rate(bits, 21))
    .collect();
    for milliseconds in [0, 2, 10, 40, 100, 200, 2_000] {
        for packets_per_second in [100.0, 10_000.0] {
            tasks.push(delay(
                milliseconds,
                packets_per_second,
                10,
                CompetingTraffic::Nothing,
            ));
        }
    }
    tasks.push(delay(10, 1_000.0, 20, CompetingTraffic::Tcp));
    for shape in [JitterShape::Normal, JitterShape::Uniform] {
        tasks.push(CellTask::Jitter(JitterCell {
            shape,
            packets: 10_000,
        }));
    }
    for pattern in [LossPattern::Random, LossPattern::Bursts(BURST)] {
        for percent in [0.05, 0.1, 0.5, 1.0, 5.0, 10.0] {
            tasks.push(loss(percent, pattern));
        }
    }
    for (limit, unit, ip_length) in [
        (15_000, QueueUnit::Bytes, 1_500),
        (30_000, QueueUnit::Bytes, 750),
        (125_000, QueueUnit::Bytes, 1_250),
        (1, QueueUnit::Packets, 1_500),
        (10, QueueUnit::Packets, 100),
        (100, QueueUnit::Packets, 1_500),
    ] {
        tasks.push(queue(limit, unit, ip_length));
    }
    tasks
}

/// A minute's worth of the same.
fn quick_plan() -> Vec<CellTask> {
    vec![
        rate(256 * KILOBIT, 3),
        rate(10 * MEGABIT, 3),
        rate(51_840 * KILOBIT, 3),
        rate(155_520 * KILOBIT, 3),
        rate(1_000 * MEGABIT, 3),
        delay(0, 10_000.0, 2, CompetingTraffic::Nothing),
        delay(10, 10_000.0, 2, CompetingTraffic::Nothing),
        delay(200, 100.0, 3, CompetingTraffic::Nothing),
        delay(10, 1_000.0, 3, CompetingTraffic::Tcp),
        CellTask::Jitter(JitterCell {
            shape: JitterShape::Normal,
            packets: 2_000,
        }),
        CellTask::Jitter(JitterCell {
            shape: JitterShape::Uniform,
            packets: 2_000,
        }),
        loss(1.0, LossPattern::Random),
        loss(5.0, LossPattern::Random),
        loss(10.0, LossPattern::Random),
        loss(5.0, LossPattern::Bursts(BURST)),
        loss(10.0, LossPattern::Bursts(BURST)),
        queue(30_000, QueueUnit::Bytes, 750),
        queue(10, QueueUnit::Packets, 1_500),
    ]
}

/// Result of [`bench()`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// Start time (RFC 3339).
    pub date: String,
    /// Attachment of the emulator to the measuring ends.
    pub device: DeviceKind,
    /// The machine, and its state during the measurement.
    pub host: MeasuringHost,
    /// With every processor of this machine.
    pub all_cores: BenchFigures,
    /// With one processor for emulator, sender and receiver together.
    pub one_core: BenchFigures,
}

/// The figures of one arrangement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BenchFigures {
    /// The highest loads, each datagram handed over as one.
    pub full: CapacitySearch,
    /// The same of short packets.
    pub small: CapacitySearch,
    /// The highest loads, handed over by segmentation offload.
    pub full_offloaded: CapacitySearch,
    /// The same of short packets.
    pub small_offloaded: CapacitySearch,
    /// One TCP connection's payload.
    pub tcp_gbit_s: f64,
    /// Delay that the emulator adds at 10,000 packets per second.
    pub added_delay_us: LatenessStatistics,
}

/// Duration of the measurements of TCP and of the added delay.
const BENCH_SPAN: Duration = Duration::from_secs(5);

/// Measures the emulator's capacity over `device`, on all processors and on one.
///
/// # Errors
/// Fails when the namespaces cannot be made, the emulator does not start, or the host is too busy.
pub fn bench(
    environment: &ProgramEnvironment,
    privileges: PrivilegeSource,
    device: DeviceKind,
    progress: &dyn ProgressReporter,
) -> Result<BenchReport> {
    let date = now();
    let watch = HostWatch::begin(privileges.explain(), QUICK_TIMER_SAMPLES);
    let mut stand = TestBed::create(environment, device, IpVersion::V4)?;
    let processors = system::processors().context("asking for this process's processors")?;
    let all_cores = figures(&mut stand, progress, 0.0, "all cores")?;
    // What is started from here on stays on one; threads and processes inherit it.
    let one = processors.get(..1).unwrap_or_default();
    let one_core = system::bound_to(one, || figures(&mut stand, progress, 0.5, "one core"))
        .context("binding to one processor")?;
    Ok(BenchReport {
        date,
        device,
        all_cores,
        one_core: one_core?,
        host: watch.end(),
    })
}

fn figures(
    stand: &mut TestBed,
    progress: &dyn ProgressReporter,
    done: f64,
    cores: &str,
) -> Result<BenchFigures> {
    let device = stand.device();
    let step = |part: f64, what: &str| {
        progress.step(done + part / 2.0, &format!("{device}, {cores}: {what}"));
    };
    stand.start(&[])?;
    step(0.0, "full-size packets");
    let full = capacity::highest_load(stand, capacity::FULL, SendMode::Plain)?;
    step(0.22, "short packets");
    let small = capacity::highest_load(stand, capacity::SMALL, SendMode::Plain)?;
    step(0.44, "full-size packets by offload");
    let full_offloaded = capacity::highest_load(stand, capacity::FULL, SendMode::Offloaded)?;
    step(0.66, "short packets by offload");
    let small_offloaded = capacity::highest_load(stand, capacity::SMALL, SendMode::Offloaded)?;
    step(0.88, "TCP");
    let tcp_gbit_s = tcp::rate(stand, BENCH_SPAN)? / 1e9;
    step(0.95, "added delay");
    let added_delay_us = LatenessStatistics::of(cells::added_delay(stand, BENCH_SPAN)?);
    Ok(BenchFigures {
        full,
        small,
        full_offloaded,
        small_offloaded,
        tcp_gbit_s,
        added_delay_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(quick: bool, only: &[MeasuredQuantity]) -> CalibrationOptions {
        CalibrationOptions {
            device: DeviceKind::Tun,
            protocol: IpVersion::V4,
            quick,
            only: only.to_vec(),
            seed: 1,
            seeds: None,
            force: false,
            raw: None,
        }
    }

    #[test]
    fn the_short_form_takes_about_a_minute() {
        let expected = expected_s(&options(true, &[]));
        assert!((30.0..90.0).contains(&expected), "{expected}");
        assert!(expected_s(&options(false, &[])) > 10.0 * expected);
    }

    #[test]
    fn the_full_form_measures_all_that_was_published() {
        let tasks = plan(&options(false, &[]));
        for quantity in MeasuredQuantity::ALL {
            assert!(
                tasks
                    .iter()
                    .any(|task| task.quantities().contains(&quantity))
            );
        }
        let titles: Vec<String> = tasks.iter().map(CellTask::title).collect();
        for title in ["rate 51.84Mbit", "loss 0.05%, random", "rate 1Gbit"] {
            assert!(titles.iter().any(|found| found == title), "{titles:?}");
        }
    }

    #[test]
    fn a_choice_of_quantities_is_kept_to() {
        let tasks = plan(&options(true, &[MeasuredQuantity::Burst]));
        assert!(!tasks.is_empty());
        assert!(
            tasks
                .iter()
                .all(|task| task.quantities().contains(&MeasuredQuantity::Burst))
        );
    }

    #[test]
    fn fresh_seeds_differ() {
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
