//! A fitted parameter with its interval, or with the reason why it is not identified.

use std::fmt;

/// Kind of a parameter of a device model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParameterKind {
    /// Minimum transit of packets of this size, in ns.
    Transit {
        /// Size of the packets.
        size: u32,
    },
    /// Number of shared servers.
    ServerCount,
    /// Service time of packets of this size, in ns.
    ServiceTime {
        /// Size of the packets.
        size: u32,
    },
    /// Rate of the output, in bit/s.
    OutputRate,
    /// Overhead per packet at the output, in bytes.
    OutputOverhead,
    /// Limit of the output queue in its own unit.
    OutputQueue,
    /// Bytes of a slot of the output queue.
    OutputSlot,
    /// Share of the output's drops that met a queue far below its fullest: active queue management,
    /// or another cause that the model does not have.
    EarlyDrops,
    /// Target of CoDel, in ns.
    CodelTarget,
    /// Interval of CoDel, in ns.
    CodelInterval,
    /// Wait at which a queue with early drops stands under overload, in ns; the interval has 90 % of the
    /// waits.
    StandingDelay,
    /// Limit of an input queue.
    InputQueue,
    /// Rate of the policer, in bit/s.
    PolicerRate,
    /// Burst of the policer, in bytes.
    PolicerBurst,
    /// Bytes that a shaper sends at once after it was idle.
    ShaperBurst,
}

impl fmt::Display for ParameterKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterKind::Transit { size } => write!(out, "transit_{size}_ns"),
            ParameterKind::ServerCount => out.write_str("servers"),
            ParameterKind::ServiceTime { size } => write!(out, "service_{size}_ns"),
            ParameterKind::OutputRate => out.write_str("output_rate_bps"),
            ParameterKind::OutputOverhead => out.write_str("output_overhead_bytes"),
            ParameterKind::OutputQueue => out.write_str("output_queue"),
            ParameterKind::OutputSlot => out.write_str("output_slot_bytes"),
            ParameterKind::EarlyDrops => out.write_str("early_drop_share"),
            ParameterKind::CodelTarget => out.write_str("codel_target_ns"),
            ParameterKind::CodelInterval => out.write_str("codel_interval_ns"),
            ParameterKind::StandingDelay => out.write_str("standing_delay_ns"),
            ParameterKind::InputQueue => out.write_str("input_queue"),
            ParameterKind::PolicerRate => out.write_str("policer_rate_bps"),
            ParameterKind::PolicerBurst => out.write_str("policer_burst_bytes"),
            ParameterKind::ShaperBurst => out.write_str("shaper_burst_bytes"),
        }
    }
}

/// A parameter as the records determine it.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedParameter {
    /// Kind, with its unit.
    pub kind: ParameterKind,
    /// Estimate; not a number if it is not identified.
    pub value: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end of its interval; infinite if nothing bounds it.
    pub high: f64,
    /// Reason why the records do not determine it, for people.
    pub unidentified: Option<String>,
    /// Change of the plan that would determine it, if a plan can.
    pub remedy: Option<&'static str>,
}

impl FittedParameter {
    pub(super) fn identified(kind: ParameterKind, value: f64, (low, high): (f64, f64)) -> Self {
        Self {
            kind,
            value,
            low,
            high,
            unidentified: None,
            remedy: None,
        }
    }

    pub(super) fn unidentified(
        kind: ParameterKind,
        (low, high): (f64, f64),
        reason: &str,
        remedy: Option<&'static str>,
    ) -> Self {
        Self {
            kind,
            value: f64::NAN,
            low,
            high,
            unidentified: Some(reason.to_owned()),
            remedy,
        }
    }
}
