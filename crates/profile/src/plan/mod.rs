//! Measurement plan: experiments as data, read from TOML.
//!
//! A plan has experiments; an experiment has one or more traffic patterns, which run at the same
//! time, and is repeated. [`MeasurementPlan::runs`] lists every run in order: by experiment, by
//! size if the experiment sweeps sizes, by subject, by repetition. Sizes are lengths of IP packets.

pub(crate) mod check;
mod error;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use vocab::ByteCount;

pub use check::{
    EXPERIMENTS_MAX, FLOWS_MAX, IPV6_PACKET_SIZE_MIN, PACKET_SIZE_MAX, PACKET_SIZE_MIN,
    PACKETS_MAX, PLAN_PORTS_MAX, RUNS_MAX,
};
pub use error::PlanError;

/// A plan: what is sent through a device, and what it is measured for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasurementPlan {
    /// Name of the plan, for reports.
    pub name: String,
    /// Number of ports of the device that the plan uses, numbered from 0.
    pub ports: u16,
    /// Family of the addresses of all emulated hosts.
    #[serde(default)]
    pub family: AddressFamily,
    /// Seed of all random numbers of the traffic.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Time after which a packet that did not arrive is lost. It exceeds the time that the fullest
    /// queue needs to drain.
    #[serde(default = "default_loss_after", with = "vocab::duration_text")]
    pub loss_after: Duration,
    /// The experiments, in order.
    #[serde(rename = "experiment")]
    pub experiments: Vec<ExperimentPlan>,
}

/// Family of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressFamily {
    /// IPv4.
    #[default]
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Several traffic patterns at the same time, for one purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentPlan {
    /// Name of the experiment, unique in its plan.
    pub name: String,
    /// Purpose of its records.
    pub purpose: ExperimentPurpose,
    /// Subjects of the runs: the cable, the device, or both.
    #[serde(default = "default_subjects")]
    pub subjects: Vec<MeasurementSubject>,
    /// Number of runs with the same settings.
    #[serde(default = "one")]
    pub repetitions: u32,
    /// Pause after each run, in addition to the time until its last packet counts as lost.
    #[serde(default, with = "vocab::duration_text")]
    pub pause: Duration,
    /// Sizes of which each has its own runs, instead of the sizes of the traffic.
    #[serde(default)]
    pub for_each_size: Vec<ByteCount>,
    /// Traffic patterns.
    pub traffic: Vec<TrafficPlan>,
}

/// Purpose of an experiment: the part of the fit that reads its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExperimentPurpose {
    /// Lone packets: minimum transit by size.
    Transit,
    /// Packets from several inputs to one output each, at the same moment: shared servers.
    Contention,
    /// More packets to one output than it carries: rate, overhead, output queue, policer.
    Overload,
    /// More packets on one input than the servers take: input queue.
    InputOverload,
    /// Traffic that the fit does not see: validation.
    HeldOut,
    /// Traffic for a report alone.
    Report,
}

/// Subject of an experiment: what the packets go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasurementSubject {
    /// The device.
    Device,
    /// A cable between the ports: noise of the measurement itself.
    Cable,
}

/// One traffic pattern.
///
/// Packet number n enters port `from[n % from.len()]` and leaves port `to[n % to.len()]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficPlan {
    /// Ports that the packets enter.
    pub from: Vec<u16>,
    /// Ports that the packets leave.
    pub to: Vec<u16>,
    /// Pattern in time.
    pub pattern: TrafficPattern,
    /// Packet sizes with their shares; drawn at random for each packet. TCP ignores it.
    #[serde(default)]
    pub sizes: Vec<SizeShare>,
    /// Number of flows; packet number n belongs to flow n modulo this.
    #[serde(default = "one")]
    pub flows: u32,
    /// Start after the beginning of the run.
    #[serde(default, with = "vocab::duration_text")]
    pub start: Duration,
    /// Number of packets after which the pattern ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Time after which the pattern ends.
    #[serde(
        default,
        with = "optional_duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub duration: Option<Duration>,
}

/// Times at which the packets of a pattern are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TrafficPattern {
    /// UDP at a constant rate.
    Constant {
        /// Rate of the packets.
        packets_per_second: f64,
    },
    /// UDP with exponential gaps.
    Poisson {
        /// Mean rate of the packets.
        packets_per_second: f64,
    },
    /// UDP in bursts.
    Bursts {
        /// Packets of a burst.
        packets_per_burst: u32,
        /// Time between the packets of a burst; zero for as fast as the ports send.
        #[serde(default, with = "vocab::duration_text")]
        gap: Duration,
        /// Time from the start of a burst to the start of the next.
        #[serde(with = "vocab::duration_text")]
        period: Duration,
    },
    /// Closed-loop TCP: `flows` connections that send as fast as the device lets them.
    Tcp {
        /// Largest segment.
        segment: ByteCount,
        /// Bytes that each connection sends; without end if it is left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<ByteCount>,
    },
}

/// A packet size and its share of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeShare {
    /// Length of the IP packet.
    pub size: ByteCount,
    /// Share relative to those of the other sizes.
    #[serde(default = "whole")]
    pub share: f64,
}

/// One run of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPlan {
    /// Number of the run in its plan, from 0.
    pub number: u32,
    /// Name of its experiment.
    pub experiment: String,
    /// Purpose of its experiment.
    pub purpose: ExperimentPurpose,
    /// Subject of the run: the cable or the device.
    pub subject: MeasurementSubject,
    /// Number of the repetition, from 0.
    pub repetition: u32,
    /// The size of all its UDP packets, if the experiment sweeps sizes.
    pub size: Option<ByteCount>,
    /// Traffic patterns, with their sizes.
    pub traffic: Vec<TrafficPlan>,
    /// Family of the addresses of its hosts.
    pub family: AddressFamily,
    /// Time after which a packet is lost.
    pub loss_after: Duration,
    /// Pause after the run.
    pub pause: Duration,
    /// Seed of the random numbers of this run.
    pub seed: u64,
}

impl MeasurementPlan {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// When the text is not TOML, has an unknown or missing key, or a value that no plan can have.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|error| PlanError::Syntax {
            message: error.to_string(),
        })?;
        plan.check()?;
        Ok(plan)
    }

    /// Lists the runs in their order.
    #[must_use]
    pub fn runs(&self) -> Vec<RunPlan> {
        let mut runs = Vec::new();
        for experiment in &self.experiments {
            let sizes: Vec<Option<ByteCount>> = if experiment.for_each_size.is_empty() {
                vec![None]
            } else {
                experiment.for_each_size.iter().copied().map(Some).collect()
            };
            for size in sizes {
                for subject in &experiment.subjects {
                    for repetition in 0..experiment.repetitions {
                        let number = u32::try_from(runs.len()).unwrap_or(u32::MAX);
                        runs.push(self.run(experiment, number, size, *subject, repetition));
                    }
                }
            }
        }
        runs
    }

    fn run(
        &self,
        experiment: &ExperimentPlan,
        number: u32,
        size: Option<ByteCount>,
        subject: MeasurementSubject,
        repetition: u32,
    ) -> RunPlan {
        let mut traffic = experiment.traffic.clone();
        if let Some(size) = size {
            for pattern in &mut traffic {
                pattern.sizes = vec![SizeShare { size, share: 1.0 }];
            }
        }
        RunPlan {
            number,
            experiment: experiment.name.clone(),
            purpose: experiment.purpose,
            subject,
            repetition,
            size,
            traffic,
            family: self.family,
            loss_after: self.loss_after,
            pause: experiment.pause,
            seed: vocab::SeededRandom::for_stream(self.seed, u64::from(number)).next_u64(),
        }
    }
}

impl RunPlan {
    /// Time from the start of the run until its last packet is sent; `None` if only the traffic
    /// itself can tell.
    #[must_use]
    pub fn sending_time(&self) -> Option<Duration> {
        self.traffic
            .iter()
            .map(TrafficPlan::end)
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .max()
    }
}

impl TrafficPlan {
    fn end(&self) -> Option<Duration> {
        let by_packets = self.packets.and_then(|packets| {
            let last = packets.saturating_sub(1);
            match self.pattern {
                TrafficPattern::Constant { packets_per_second }
                | TrafficPattern::Poisson { packets_per_second } => {
                    Duration::try_from_secs_f64(last as f64 / packets_per_second).ok()
                }
                TrafficPattern::Bursts {
                    packets_per_burst,
                    gap,
                    period,
                } => {
                    let burst = u64::from(packets_per_burst.max(1));
                    let whole = u32::try_from(last / burst).ok()?;
                    let rest = u32::try_from(last % burst).ok()?;
                    period
                        .checked_mul(whole)?
                        .checked_add(gap.checked_mul(rest)?)
                }
                TrafficPattern::Tcp { .. } => None,
            }
        });
        let sending = match (by_packets, self.duration) {
            (Some(packets), Some(duration)) => packets.min(duration),
            (one, other) => one.or(other)?,
        };
        self.start.checked_add(sending)
    }
}

fn default_seed() -> u64 {
    1
}

fn default_loss_after() -> Duration {
    Duration::from_secs(1)
}

fn default_subjects() -> Vec<MeasurementSubject> {
    vec![MeasurementSubject::Device]
}

fn one() -> u32 {
    1
}

fn whole() -> f64 {
    1.0
}

/// For `#[serde(with)]` on an optional time written as text.
mod optional_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => serializer.serialize_str(&vocab::format_duration(*span)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(deserializer)?;
        vocab::parse_duration(&text)
            .map(Some)
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        name = "small"
        ports = 4

        [[experiment]]
        name = "transit"
        purpose = "transit"
        subjects = ["cable", "device"]
        repetitions = 2
        for_each_size = ["64B", "1500B"]
        [[experiment.traffic]]
        from = [0]
        to = [1]
        pattern = { kind = "constant", packets_per_second = 100.0 }
        packets = 11

        [[experiment]]
        name = "bursts"
        purpose = "held-out"
        [[experiment.traffic]]
        from = [0, 1]
        to = [2, 3]
        pattern = { kind = "bursts", packets_per_burst = 10, period = "20ms" }
        sizes = [{ size = "64B", share = 3.0 }, { size = "1500B" }]
        duration = "2s"
    "#;

    #[test]
    fn plan_expands_to_runs_in_order() {
        let plan = MeasurementPlan::from_toml(PLAN).unwrap();
        let runs = plan.runs();
        assert_eq!(runs.len(), 2 * 2 * 2 + 1);
        assert_eq!(runs[0].subject, MeasurementSubject::Cable);
        assert_eq!(runs[2].subject, MeasurementSubject::Device);
        assert_eq!(runs[3].repetition, 1);
        assert_eq!(runs[4].size, Some(ByteCount::new(1500)));
        assert_eq!(runs[0].sending_time(), Some(Duration::from_millis(100)));
        assert_eq!(runs[8].sending_time(), Some(Duration::from_secs(2)));
        assert_ne!(runs[0].seed, runs[1].seed);
    }

    #[test]
    fn plan_reads_back_what_it_writes() {
        let plan = MeasurementPlan::from_toml(PLAN).unwrap();
        let text = toml::to_string(&plan).unwrap();
        assert_eq!(MeasurementPlan::from_toml(&text), Ok(plan));
    }

    #[test]
    fn full_plan_has_runs_for_every_part_of_the_fit() {
        let plan = MeasurementPlan::from_toml(include_str!("../../../../plans/full.toml")).unwrap();
        let runs = plan.runs();
        for purpose in [
            ExperimentPurpose::Transit,
            ExperimentPurpose::Contention,
            ExperimentPurpose::InputOverload,
            ExperimentPurpose::Overload,
            ExperimentPurpose::HeldOut,
        ] {
            assert!(runs.iter().any(|run| run.purpose == purpose), "{purpose:?}");
        }
    }

    #[test]
    fn errors_name_the_experiment_and_the_key() {
        for (from, to, part) in [
            ("to = [1]", "to = [4]", "experiment \"transit\": to = 4"),
            ("\"64B\", \"1500B\"", "\"20B\"", "for_each_size"),
            ("packets = 11", "", "packets or duration"),
            ("name = \"bursts\"", "name = \"transit\"", "twice"),
            (
                "packets_per_second = 100.0",
                "packets_per_second = 0.0",
                "packets_per_second",
            ),
            ("repetitions = 2", "repetition = 2", "repetition"),
            ("repetitions = 2", "repetitions = 99999", "399997 runs"),
            (
                "ports = 4",
                "ports = 4\nfamily = \"ipv6\"",
                "IP packets of 72B to 9kB",
            ),
            ("ports = 4", "ports = 4\nfamily = \"ipv5\"", "ipv5"),
        ] {
            let error = MeasurementPlan::from_toml(&PLAN.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn more_flows_than_source_ports_are_refused() {
        let mut plan = MeasurementPlan::from_toml(PLAN).unwrap();
        let pattern = TrafficPlan {
            flows: FLOWS_MAX,
            ..plan.experiments[1].traffic[0].clone()
        };
        plan.experiments[1].traffic = vec![pattern.clone(); 211];
        assert_eq!(plan.check(), Ok(()));
        plan.experiments[1].traffic = vec![pattern; 212];
        let error = plan.check().unwrap_err();
        assert!(
            error.to_string().contains("flows in all patterns"),
            "{error}"
        );
    }
}
