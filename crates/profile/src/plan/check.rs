//! Checks of a plan.

use std::time::Duration;

use vocab::{ByteCount, format_duration};

use super::{
    AddressFamily, ExperimentPlan, MeasurementPlan, PlanError, TrafficPattern, TrafficPlan,
};
use crate::traffic::RUN_FLOWS_MAX;

/// Greatest number of ports; one host has no more.
pub const PLAN_PORTS_MAX: u16 = 64;
/// Greatest number of experiments of a plan.
pub const EXPERIMENTS_MAX: usize = 1000;
/// Greatest number of runs of a plan: a day of runs of a second.
pub const RUNS_MAX: usize = 100_000;
/// Greatest number of ports that a traffic pattern lists in a direction; a port may stand there
/// several times.
const LISTED_PORTS_MAX: usize = 1024;
/// Greatest number of TCP flows of a pattern: both ends are connections of one host.
const TCP_FLOWS_MAX: u32 = (tcp::CONNECTIONS_MOST / 2) as u32;
/// Greatest number of flows of a traffic pattern; the emulated hosts of a port have as many ports.
pub const FLOWS_MAX: u32 = 65_536;
/// Greatest number of packets of a traffic pattern: a day at 1000 packets/s.
pub const PACKETS_MAX: u64 = 100_000_000;
/// Smallest IP packet: the headers of IPv4 and UDP, and 24 bytes of number and stamp.
pub const PACKET_SIZE_MIN: ByteCount = ByteCount::new(52);
/// The same of IPv6, whose header is longer.
pub const IPV6_PACKET_SIZE_MIN: ByteCount = ByteCount::new(72);
/// Largest IP packet: a jumbo frame's.
pub const PACKET_SIZE_MAX: ByteCount = ByteCount::new(9000);
/// Greatest rate of a pattern; 10 Gbit/s carry fewer packets.
const RATE_MAX: f64 = 20_000_000.0;
/// Greatest number of repetitions of an experiment.
const REPETITIONS_MAX: u32 = 10_000;
/// Greatest number of sizes of an experiment.
const SIZES_MAX: usize = 256;
/// Greatest number of traffic patterns of an experiment.
pub(crate) const PATTERNS_MAX: usize = 256;
/// Greatest time of a plan.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

impl MeasurementPlan {
    /// Checks a plan that was put together in code; one that was read from text has been checked.
    ///
    /// # Errors
    /// The first setting that no plan can have.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.ports == 0 || self.ports > PLAN_PORTS_MAX {
            return Err(PlanError::Ports { ports: self.ports });
        }
        if self.experiments.is_empty() || self.experiments.len() > EXPERIMENTS_MAX {
            return Err(PlanError::Experiments {
                count: self.experiments.len(),
            });
        }
        let runs = self
            .experiments
            .iter()
            .map(ExperimentPlan::run_count)
            .fold(0, usize::saturating_add);
        if runs > RUNS_MAX {
            return Err(PlanError::Runs { runs });
        }
        for (index, experiment) in self.experiments.iter().enumerate() {
            let earlier = &self.experiments[..index];
            if earlier.iter().any(|other| other.name == experiment.name) {
                return Err(PlanError::SameName {
                    experiment: experiment.name.clone(),
                });
            }
            ExperimentCheck {
                experiment,
                ports: self.ports,
                least_size: match self.family {
                    AddressFamily::Ipv4 => PACKET_SIZE_MIN,
                    AddressFamily::Ipv6 => IPV6_PACKET_SIZE_MIN,
                },
            }
            .check()?;
        }
        Ok(())
    }
}

impl ExperimentPlan {
    fn run_count(&self) -> usize {
        let repetitions = usize::try_from(self.repetitions).unwrap_or(usize::MAX);
        self.for_each_size
            .len()
            .max(1)
            .saturating_mul(self.subjects.len())
            .saturating_mul(repetitions)
    }
}

/// Numbers of flows that a pattern takes: acknowledgements have one of their own.
fn flow_numbers(traffic: &TrafficPlan) -> u64 {
    match traffic.pattern {
        TrafficPattern::Tcp { .. } => 2 * u64::from(traffic.flows),
        TrafficPattern::Constant { .. }
        | TrafficPattern::Poisson { .. }
        | TrafficPattern::Bursts { .. } => u64::from(traffic.flows),
    }
}

struct ExperimentCheck<'a> {
    experiment: &'a ExperimentPlan,
    ports: u16,
    least_size: ByteCount,
}

impl ExperimentCheck<'_> {
    fn check(&self) -> Result<(), PlanError> {
        let experiment = self.experiment;
        self.require(!experiment.subjects.is_empty(), "subjects = []", || {
            "write \"device\", \"cable\" or both".to_owned()
        })?;
        let repetitions = experiment.repetitions;
        self.require(
            (1..=REPETITIONS_MAX).contains(&repetitions),
            &format!("repetitions = {repetitions}"),
            || format!("1 to {REPETITIONS_MAX}"),
        )?;
        self.check_time("pause", experiment.pause)?;
        self.require(
            experiment.for_each_size.len() <= SIZES_MAX,
            "for_each_size",
            || format!("at most {SIZES_MAX} sizes"),
        )?;
        for size in &experiment.for_each_size {
            self.check_size("for_each_size", *size)?;
        }
        self.require(
            (1..=PATTERNS_MAX).contains(&experiment.traffic.len()),
            "traffic",
            || format!("1 to {PATTERNS_MAX} patterns"),
        )?;
        experiment
            .traffic
            .iter()
            .try_for_each(|traffic| self.check_traffic(traffic))?;
        let flows: u64 = experiment.traffic.iter().map(flow_numbers).sum();
        self.require(
            flows <= u64::from(RUN_FLOWS_MAX),
            &format!("{flows} flows in all patterns"),
            || format!("at most {RUN_FLOWS_MAX}; a TCP flow counts twice"),
        )
    }

    fn check_traffic(&self, traffic: &TrafficPlan) -> Result<(), PlanError> {
        for (key, ports) in [("from", &traffic.from), ("to", &traffic.to)] {
            self.require(
                (1..=LISTED_PORTS_MAX).contains(&ports.len()),
                &format!("{key} with {} ports", ports.len()),
                || format!("list 1 to {LISTED_PORTS_MAX} ports"),
            )?;
            for port in ports {
                self.require(*port < self.ports, &format!("{key} = {port}"), || {
                    format!("the plan has {} ports, numbered from 0", self.ports)
                })?;
            }
        }
        let flows = traffic.flows;
        self.require(
            (1..=FLOWS_MAX).contains(&flows),
            &format!("flows = {flows}"),
            || format!("1 to {FLOWS_MAX}"),
        )?;
        self.check_time("start", traffic.start)?;
        if let Some(duration) = traffic.duration {
            self.check_time("duration", duration)?;
        }
        if let Some(packets) = traffic.packets {
            self.require(
                (1..=PACKETS_MAX).contains(&packets),
                &format!("packets = {packets}"),
                || format!("1 to {PACKETS_MAX}"),
            )?;
        }
        let is_tcp = matches!(traffic.pattern, TrafficPattern::Tcp { .. });
        self.require(
            traffic.duration.is_some() || (traffic.packets.is_some() && !is_tcp),
            "traffic",
            || "write packets or duration, so that it ends; TCP needs duration".to_owned(),
        )?;
        self.require(
            !is_tcp || flows <= TCP_FLOWS_MAX,
            &format!("flows = {flows}"),
            || format!("at most {TCP_FLOWS_MAX} TCP flows"),
        )?;
        self.check_pattern(&traffic.pattern)?;
        let has_sizes = !traffic.sizes.is_empty() || !self.experiment.for_each_size.is_empty();
        self.require(has_sizes || is_tcp, "sizes", || {
            "write sizes = [{ size = \"1500B\" }], or for_each_size".to_owned()
        })?;
        for entry in &traffic.sizes {
            self.check_size("sizes", entry.size)?;
            self.require(
                entry.share.is_finite() && entry.share > 0.0,
                &format!("share = {}", entry.share),
                || "above zero".to_owned(),
            )?;
        }
        Ok(())
    }

    fn check_pattern(&self, pattern: &TrafficPattern) -> Result<(), PlanError> {
        match pattern {
            TrafficPattern::Constant { packets_per_second }
            | TrafficPattern::Poisson { packets_per_second } => self.require(
                *packets_per_second > 0.0 && *packets_per_second <= RATE_MAX,
                &format!("packets_per_second = {packets_per_second}"),
                || format!("above zero, at most {RATE_MAX}"),
            ),
            TrafficPattern::Bursts {
                packets_per_burst,
                gap,
                period,
            } => {
                self.require(*packets_per_burst > 0, "packets_per_burst = 0", || {
                    "at least 1".to_owned()
                })?;
                self.check_time("gap", *gap)?;
                self.require(
                    *period > Duration::ZERO && *period <= TIME_MAX,
                    &format!("period = \"{}\"", format_duration(*period)),
                    || "above zero, at most 24h".to_owned(),
                )?;
                let burst = gap.saturating_mul(packets_per_burst - 1);
                self.require(
                    burst <= *period,
                    &format!("period = \"{}\"", format_duration(*period)),
                    || format!("a burst takes {}", format_duration(burst)),
                )
            }
            TrafficPattern::Tcp { segment, .. } => self.require(
                (100..=8960).contains(&segment.bytes()),
                &format!("segment = \"{segment}\""),
                || "100 to 8960 bytes".to_owned(),
            ),
        }
    }

    fn check_size(&self, key: &str, size: ByteCount) -> Result<(), PlanError> {
        self.require(
            (self.least_size..=PACKET_SIZE_MAX).contains(&size),
            &format!("{key} = \"{size}\""),
            || format!("IP packets of {} to {PACKET_SIZE_MAX}", self.least_size),
        )
    }

    fn check_time(&self, key: &str, time: Duration) -> Result<(), PlanError> {
        self.require(
            time <= TIME_MAX,
            &format!("{key} = \"{}\"", format_duration(time)),
            || "at most 24h".to_owned(),
        )
    }

    fn require(
        &self,
        holds: bool,
        setting: &str,
        rule: impl Fn() -> String,
    ) -> Result<(), PlanError> {
        if holds {
            return Ok(());
        }
        Err(PlanError::Setting {
            experiment: self.experiment.name.clone(),
            setting: setting.to_owned(),
            rule: rule(),
        })
    }
}
