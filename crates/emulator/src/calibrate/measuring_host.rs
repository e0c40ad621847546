//! The measuring machine: its properties, the lateness of its timers, the processor time that its
//! own host took away, and the steering of its clock.
//!
//! These stand beside every cell, because no emulator in user space is more punctual than the
//! kernel's timers below it.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::statistics::quantile;
use host::machine::{MachineInfo, ProcessorTime};
use host::stamped_sockets::{self as system, SystemClock};

/// Properties of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuringHost {
    /// The kernel's release.
    pub kernel: String,
    /// The system's name and version.
    pub system: String,
    /// The processors' model.
    pub processor_model: String,
    /// Processors.
    pub processors: usize,
    /// Trunkline's own version.
    pub trunkline: String,
    /// Source of the privileges.
    pub privileges: String,
    /// Wake-up lateness of a thread that sleeps 1 ms, before anything else runs.
    pub bare_timer_lateness_us: LatenessStatistics,
    /// The share of processor time that the host below this one took while measuring.
    pub stolen_percent: f64,
    /// The share of processor time in use just before measuring: above a few, the machine was
    /// not idle.
    pub busy_before_percent: f64,
    /// Frequency of the stamps' clock relative to the raw hardware clock, in parts per million.
    pub clock_drift_ppm: f64,
}

/// Statistics of lateness, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatenessStatistics {
    /// Half was no later.
    pub p50: f64,
    /// 99 of 100 were no later.
    pub p99: f64,
    /// 999 of 1000 were no later.
    pub p99_9: f64,
    /// The latest.
    pub max: f64,
    /// Number of samples.
    pub samples: usize,
}

impl LatenessStatistics {
    /// Statistics of lateness values in any order.
    pub(super) fn of(mut values_us: Vec<f64>) -> Self {
        values_us.sort_by(f64::total_cmp);
        Self {
            p50: quantile(&values_us, 0.5),
            p99: quantile(&values_us, 0.99),
            p99_9: quantile(&values_us, 0.999),
            max: quantile(&values_us, 1.0),
            samples: values_us.len(),
        }
    }
}

/// Watches the machine while something is measured.
pub(super) struct HostWatch {
    host: MeasuringHost,
    processors: ProcessorTime,
    real_ns: i128,
    raw_ns: i128,
}

impl HostWatch {
    /// Describes the machine, listens to its timers for `timer_samples` milliseconds, and begins.
    pub(super) fn begin(privileges: &str, timer_samples: usize) -> Self {
        let machine = MachineInfo::describe(&[]);
        let before = processor_time();
        let lateness = bare_timer_lateness(timer_samples);
        let after = processor_time();
        Self {
            host: MeasuringHost {
                kernel: machine.kernel,
                system: machine.system,
                processor_model: machine.processor_model,
                processors: machine.processors,
                trunkline: machine.trunkline,
                privileges: privileges.to_owned(),
                bare_timer_lateness_us: lateness,
                stolen_percent: 0.0,
                busy_before_percent: after.busy_since(before) * 100.0,
                clock_drift_ppm: 0.0,
            },
            processors: after,
            real_ns: system::clock_ns(SystemClock::Real),
            raw_ns: system::clock_ns(SystemClock::Raw),
        }
    }

    /// Properties of the machine, with its state since the start.
    pub(super) fn end(mut self) -> MeasuringHost {
        let raw = (system::clock_ns(SystemClock::Raw) - self.raw_ns).max(1);
        let real = system::clock_ns(SystemClock::Real) - self.real_ns;
        self.host.clock_drift_ppm = (real - raw) as f64 / raw as f64 * 1e6;
        self.host.stolen_percent = processor_time().stolen_since(self.processors) * 100.0;
        self.host
    }
}

/// Processor times of the host. They are empty where the kernel does not report them; the shares
/// are zero then.
pub(super) fn processor_time() -> ProcessorTime {
    ProcessorTime::now().unwrap_or_default()
}

/// Sleeps 1 ms again and again on a thread with sharp timers.
fn bare_timer_lateness(samples: usize) -> LatenessStatistics {
    const SLEEP: Duration = Duration::from_millis(1);
    let listen = move || {
        system::sharpen_timers();
        (0..samples)
            .map(|_| {
                let start = Instant::now();
                thread::sleep(SLEEP);
                (start.elapsed().saturating_sub(SLEEP)).as_secs_f64() * 1e6
            })
            .collect()
    };
    LatenessStatistics::of(thread::spawn(listen).join().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_sorted_first() {
        let lateness = LatenessStatistics::of(vec![5.0, 1.0, 3.0]);
        assert_eq!((lateness.p50, lateness.max), (3.0, 5.0));
        assert_eq!(lateness.samples, 3);
    }
}
