//! Findings of a diagnosis: a cause by its documented name, its confidence, its evidence, and the
//! next action.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, Probability};

/// The causes by the names that reports and `--json` use; the list is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiagnosisCause {
    /// A token bucket drops packets above its rate.
    Policer,
    /// A token bucket delays packets above its rate, once its burst is spent.
    Shaper,
    /// The bottleneck's queue holds less than half a BDP.
    ShallowBuffer,
    /// A queue drops packets when it is full.
    DropTailQueue,
    /// A queue that drops before it is full.
    Aqm,
    /// Packets are lost whatever the rate and the queue.
    RandomLoss,
    /// The receiver's window, or the sender's buffer, is smaller than the path needs.
    HostWindow,
    /// The two directions differ in rate.
    AsymmetricPath,
    /// Packets above some size are dropped silently.
    MtuBlackHole,
    /// The testing host could not send as fast as it was asked to.
    TestHostLimited,
    /// Other traffic shares the bottleneck.
    CrossTraffic,
    /// A device between the ends answers TCP in their place.
    Middlebox,
    /// Nothing limited the transfer.
    None,
    /// The measurement does not determine the cause.
    Unknown,
}

impl DiagnosisCause {
    /// Every cause, in the order of the documentation.
    pub const ALL: [DiagnosisCause; 14] = [
        DiagnosisCause::Policer,
        DiagnosisCause::Shaper,
        DiagnosisCause::ShallowBuffer,
        DiagnosisCause::DropTailQueue,
        DiagnosisCause::Aqm,
        DiagnosisCause::RandomLoss,
        DiagnosisCause::HostWindow,
        DiagnosisCause::AsymmetricPath,
        DiagnosisCause::MtuBlackHole,
        DiagnosisCause::TestHostLimited,
        DiagnosisCause::CrossTraffic,
        DiagnosisCause::Middlebox,
        DiagnosisCause::None,
        DiagnosisCause::Unknown,
    ];

    /// Its name in reports and in `--json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DiagnosisCause::Policer => "policer",
            DiagnosisCause::Shaper => "shaper",
            DiagnosisCause::ShallowBuffer => "shallow-buffer",
            DiagnosisCause::DropTailQueue => "drop-tail-queue",
            DiagnosisCause::Aqm => "aqm",
            DiagnosisCause::RandomLoss => "random-loss",
            DiagnosisCause::HostWindow => "host-window",
            DiagnosisCause::AsymmetricPath => "asymmetric-path",
            DiagnosisCause::MtuBlackHole => "mtu-black-hole",
            DiagnosisCause::TestHostLimited => "test-host-limited",
            DiagnosisCause::CrossTraffic => "cross-traffic",
            DiagnosisCause::Middlebox => "middlebox",
            DiagnosisCause::None => "none",
            DiagnosisCause::Unknown => "unknown",
        }
    }

    /// The cause of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }

    /// Recommended next action.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            DiagnosisCause::Policer => {
                "Shape to the policed rate before the policer (its burst and a queue of one BDP), or \
                 ask the provider to shape instead of policing or to allow a burst of one BDP."
            }
            DiagnosisCause::Shaper => {
                "Compare the rate with the contract, at the layer the contract counts at. If it is \
                 what was bought, nothing is wrong; a short test sees the burst and not the rate."
            }
            DiagnosisCause::ShallowBuffer => {
                "Give the bottleneck's queue one BDP of this path, or use a congestion control that \
                 paces; more connections hide it only in part."
            }
            DiagnosisCause::DropTailQueue => {
                "If the queue is longer than the delay that users bear, limit it to about one BDP or \
                 use active queue management; if it is about one BDP, leave it."
            }
            DiagnosisCause::Aqm => {
                "Active queue management keeps the delay short on purpose; check that its target \
                 suits this RTT before calling its drops a fault."
            }
            DiagnosisCause::RandomLoss => {
                "Look for the errors on the way: duplex mismatch, optics, cabling, radio. Error \
                 counters of the interfaces tell where; forward error correction hides it."
            }
            DiagnosisCause::HostWindow => {
                "Raise the receive and send buffers (on Linux the third value of net.ipv4.tcp_rmem \
                 and tcp_wmem) to at least the BDP, and check that window scaling gets through."
            }
            DiagnosisCause::AsymmetricPath => {
                "Judge each direction against its own contract and size its window by its own BDP; a \
                 slow way back also holds acknowledgements up."
            }
            DiagnosisCause::MtuBlackHole => {
                "Let ICMP \"fragmentation needed\" and \"packet too big\" through, or clamp the MSS to \
                 the path MTU found; net.ipv4.tcp_mtu_probing=1 lets Linux hosts find it themselves."
            }
            DiagnosisCause::TestHostLimited => {
                "Use a faster host, or fewer tests at once: what was measured is the tester and not \
                 the path."
            }
            DiagnosisCause::CrossTraffic => {
                "Measure again off-peak or with the circuit taken out of service; what is missing is \
                 in use by others."
            }
            DiagnosisCause::Middlebox => {
                "Find the device that answers TCP (accelerator, firewall proxy, PEP) and measure on \
                 either side of it; figures of TCP across it describe two connections."
            }
            DiagnosisCause::None => "Nothing to do. To learn more, offer more than was offered.",
            DiagnosisCause::Unknown => {
                "Measure again, longer, from an idle path and above the expected rate; a capture at \
                 the sender with SACK and timestamps tells most."
            }
        }
    }
}

/// Numbers of a cause; those that do not apply are [`None`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CauseParameters {
    /// The IP-layer rate of a bucket or a bottleneck.
    pub rate: Option<Bitrate>,
    /// The bucket of a policer or shaper.
    pub burst: Option<ByteCount>,
    /// Size of the queue, the packet on the line included.
    pub queue: Option<ByteCount>,
    /// The longest delay in the queue.
    pub queue_delay: Option<Duration>,
    /// The loss that does not depend on rate or queue.
    pub loss: Option<Probability>,
    /// The window that held the transfer back, and the one that the path needs.
    pub window: Option<ByteCount>,
    /// The BDP.
    pub window_needed: Option<ByteCount>,
    /// The rate of the other direction.
    pub reverse_rate: Option<Bitrate>,
    /// The largest IP packet that gets through.
    pub path_mtu: Option<ByteCount>,
    /// Round trip to the device that answers TCP.
    pub answered_after: Option<Duration>,
}

impl CauseParameters {
    /// Numbers that apply, by the name in `--json`; the name ends in the unit.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let rate = |rate: Option<Bitrate>| rate.map(|rate| rate.bits_per_second() as f64);
        let bytes = |bytes: Option<ByteCount>| bytes.map(|bytes| bytes.bytes() as f64);
        let milliseconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64() * 1e3);
        let all = [
            ("rate_bit_s", rate(self.rate)),
            ("burst_bytes", bytes(self.burst)),
            ("queue_bytes", bytes(self.queue)),
            ("queue_delay_ms", milliseconds(self.queue_delay)),
            (
                "loss_percent",
                self.loss.map(|loss| loss.as_fraction() * 100.0),
            ),
            ("window_bytes", bytes(self.window)),
            ("window_needed_bytes", bytes(self.window_needed)),
            ("reverse_rate_bit_s", rate(self.reverse_rate)),
            ("path_mtu_bytes", bytes(self.path_mtu)),
            ("answered_after_ms", milliseconds(self.answered_after)),
        ];
        all.into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// One cause, found.
#[derive(Clone, Debug, PartialEq)]
pub struct DiagnosisFinding {
    /// The cause.
    pub cause: DiagnosisCause,
    /// Confidence from 0 to 1: the distance of the evidence from the threshold, not a frequency.
    pub confidence: f64,
    /// Evidence: the observations, with their numbers.
    pub evidence: Vec<String>,
    /// Its numbers.
    pub parameters: CauseParameters,
    /// Recommended next action where the cause's own advice would not help.
    pub instead: Option<&'static str>,
}

impl DiagnosisFinding {
    /// Recommended next action.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        self.instead.unwrap_or(self.cause.advice())
    }

    pub(super) fn new(cause: DiagnosisCause, confidence: f64, evidence: String) -> Self {
        Self {
            cause,
            confidence: confidence.clamp(0.05, 0.99),
            evidence: vec![evidence],
            parameters: CauseParameters::default(),
            instead: None,
        }
    }

    /// The same with other advice than its cause's.
    pub(super) fn advising(mut self, advice: &'static str) -> Self {
        self.instead = Some(advice);
        self
    }

    pub(super) fn with(mut self, parameters: CauseParameters) -> Self {
        self.parameters = parameters;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_cause_names_have_advice() {
        let names: Vec<&str> = DiagnosisCause::ALL
            .into_iter()
            .map(DiagnosisCause::name)
            .collect();
        assert_eq!(
            names.join(" "),
            "policer shaper shallow-buffer drop-tail-queue aqm random-loss host-window \
             asymmetric-path mtu-black-hole test-host-limited cross-traffic middlebox none unknown"
        );
        assert!(
            DiagnosisCause::ALL
                .into_iter()
                .all(|cause| cause.advice().len() > 40)
        );
    }
}
