//! The machine that is measured on: what it is, how late its timers are by themselves, how much
//! of its time its own host took away, and how its clock was steered.
//!
//! These stand beside every cell, because no emulator in user space is more punctual than the
//! timers of the kernel below it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::statistics::quantile;
use super::system::{self, Clock};
use crate::host::Machine;

/// The machine and its manners.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
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
    /// How the privileges were got.
    pub privileges: String,
    /// How late a thread that sleeps 1 ms wakes up, before anything else runs.
    pub bare_timer_lateness_us: Lateness,
    /// The share of processor time that the host below this one took while measuring.
    pub stolen_percent: f64,
    /// The share of processor time in use just before measuring: above a few, the machine was
    /// not idle.
    pub busy_before_percent: f64,
    /// How much faster the stamps' clock went than the raw hardware clock, parts per million.
    pub clock_drift_ppm: f64,
}

/// How late something was, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Half was no later.
    pub p50: f64,
    /// 99 of 100 were no later.
    pub p99: f64,
    /// 999 of 1000 were no later.
    pub p99_9: f64,
    /// The latest.
    pub max: f64,
    /// How many were looked at.
    pub samples: usize,
}

impl Lateness {
    /// Of lateness values in any order.
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
pub(super) struct Watch {
    host: Host,
    ticks: Ticks,
    real_ns: i128,
    raw_ns: i128,
}

impl Watch {
    /// Describes the machine, listens to its timers for `timer_samples` milliseconds, and begins.
    pub(super) fn begin(privileges: &str, timer_samples: usize) -> Self {
        let machine = Machine::describe(&[]);
        let before = Ticks::now();
        let lateness = bare_timer_lateness(timer_samples);
        let after = Ticks::now();
        Self {
            host: Host {
                kernel: machine.kernel,
                system: machine.system,
                processor_model: machine.processor_model,
                processors: machine.processors,
                trunkline: machine.trunkline,
                privileges: privileges.to_owned(),
                bare_timer_lateness_us: lateness,
                stolen_percent: 0.0,
                busy_before_percent: after.share_since(&before, |ticks| ticks.busy),
                clock_drift_ppm: 0.0,
            },
            ticks: after,
            real_ns: system::clock_ns(Clock::Real),
            raw_ns: system::clock_ns(Clock::Raw),
        }
    }

    /// The machine as it was meanwhile.
    pub(super) fn end(mut self) -> Host {
        let raw = (system::clock_ns(Clock::Raw) - self.raw_ns).max(1);
        let real = system::clock_ns(Clock::Real) - self.real_ns;
        self.host.clock_drift_ppm = (real - raw) as f64 / raw as f64 * 1e6;
        self.host.stolen_percent = Ticks::now().share_since(&self.ticks, |ticks| ticks.stolen);
        self.host
    }
}

/// Sleeps 1 ms again and again on a thread with sharp timers.
fn bare_timer_lateness(samples: usize) -> Lateness {
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
    Lateness::of(thread::spawn(listen).join().unwrap_or_default())
}

/// Processor time so far, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    stolen: u64,
    total: u64,
}

impl Ticks {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        // proc_stat(5): user nice system idle iowait irq softirq steal, then what user and nice
        // hold already.
        let fields: Vec<u64> = text
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))
            .unwrap_or_default()
            .split_whitespace()
            .take(8)
            .map(|field| field.parse().unwrap_or_default())
            .collect();
        let total: u64 = fields.iter().sum();
        let idle: u64 = fields.iter().skip(3).take(2).sum();
        Self {
            busy: total - idle,
            stolen: fields.get(7).copied().unwrap_or_default(),
            total,
        }
    }

    /// In percent.
    fn share_since(&self, earlier: &Self, part: impl Fn(&Self) -> u64) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        let part = part(self).saturating_sub(part(earlier));
        if total == 0 {
            0.0
        } else {
            part as f64 / total as f64 * 100.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_told_from_busy_time() {
        let before = Ticks::parse("cpu  10 0 10 60 20 0 0 0 5 0\n");
        let after = Ticks::parse("cpu  20 0 20 120 20 0 0 20 5 0\n");
        let share = after.share_since(&before, |ticks| ticks.stolen);
        assert!((share - 20.0).abs() < 1e-9, "{share}");
        let share = after.share_since(&before, |ticks| ticks.busy);
        assert!((share - 40.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn lateness_is_sorted_first() {
        let lateness = Lateness::of(vec![5.0, 1.0, 3.0]);
        assert_eq!((lateness.p50, lateness.max), (3.0, 5.0));
        assert_eq!(lateness.samples, 3);
    }
}
