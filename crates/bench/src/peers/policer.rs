//! A burst and then three times the rate, through `nft limit` and through `--police`.
//!
//! All packets have one length, so that the peer's bucket in packets and the emulator's in bytes
//! are equal. The packets of the burst that pass are the bucket's depth; the packets that pass in
//! the long run are the depth and the tokens gained from the first packet to the last.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};

use super::room::{LimiterOwner, MeasuringNamespaces};
use super::traffic::{self, PacketLoad, TrafficOutcome};
use super::{ComparisonRow, RawSamples};
use host::ProgramEnvironment;

const PEER: &str = "nft limit";

/// Short, so that a socket with the kernel's usual buffer holds a whole burst of them.
const IP_LENGTH: u64 = 200;

/// Number of packets in the burst beyond the bucket's depth.
const SURPLUS: u64 = 20;

/// Ratio of the load after it to the rate.
const OVERLOAD: u64 = 3;

/// Number of attempts for a burst that was held up, or a receiver that had no room.
const ATTEMPTS: u32 = 5;

/// Silence after which no packet is in flight any more.
const PATIENCE: Duration = Duration::from_millis(500);

/// Duration of the overload.
const OVERLOAD_S: u64 = 10;

pub(super) const SETTINGS: [PolicerSettings; 2] = [
    PolicerSettings {
        packets: 100,
        per: RateUnit::Second,
        burst: 20,
    },
    PolicerSettings {
        packets: 200,
        per: RateUnit::Second,
        burst: 200,
    },
];

/// Settings of a policer, in packets of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicerSettings {
    packets: u64,
    per: RateUnit,
    burst: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateUnit {
    Second,
    Hour,
}

impl fmt::Display for PolicerSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = self.per.name();
        let Self { packets, burst, .. } = self;
        write!(
            out,
            "{packets} packets/{per}, burst {burst} packets of {IP_LENGTH} B"
        )
    }
}

impl RateUnit {
    fn name(self) -> &'static str {
        match self {
            RateUnit::Second => "second",
            RateUnit::Hour => "hour",
        }
    }

    fn seconds(self) -> u64 {
        match self {
            RateUnit::Second => 1,
            RateUnit::Hour => 3_600,
        }
    }
}

impl PolicerSettings {
    /// A policer so slow that only the burst passes.
    #[must_use]
    pub fn burst_only(burst: u64) -> Self {
        Self {
            packets: 5,
            per: RateUnit::Hour,
            burst,
        }
    }

    /// Packets a second.
    fn rate(&self) -> f64 {
        self.packets as f64 / self.per.seconds() as f64
    }

    /// Rule in nft's syntax.
    fn rule(&self) -> String {
        let Self {
            packets,
            per,
            burst,
        } = self;
        let per = per.name();
        format!("limit rate over {packets}/{per} burst {burst} packets drop")
    }

    /// The same in bits and bytes of IP packets, as `--police` takes it.
    fn words(&self) -> String {
        let bits = self.packets * IP_LENGTH * 8 / self.per.seconds();
        format!("rate={bits}bit,burst={}B", self.burst * IP_LENGTH)
    }

    fn load(&self, paced: u64) -> PacketLoad {
        PacketLoad {
            ip_length: IP_LENGTH as usize,
            burst: self.burst + SURPLUS,
            paced,
            per_second: self.rate() * OVERLOAD as f64,
            patience: PATIENCE,
        }
    }

    /// Number of packets of the burst that passed; `None` when it took so long that one more may
    /// have.
    fn passed(&self, outcome: &TrafficOutcome) -> Option<u64> {
        let gained = self.rate() * outcome.burst_took.as_secs_f64();
        let sent = self.burst + SURPLUS;
        let passed = outcome.arrived.iter().filter(|number| **number < sent);
        (gained < 0.5).then(|| passed.count() as u64)
    }

    /// Packets that pass a bucket that is full as the first packet arrives.
    fn expected(&self, outcome: &TrafficOutcome) -> f64 {
        self.burst as f64 + self.rate() * outcome.sending_took.as_secs_f64()
    }
}

/// Sends a burst, larger than fits, through a policer and nothing after it; returns the numbers of
/// those that passed, from 0.
///
/// # Errors
/// When the side cannot be set up, or the receiver lost packets each time.
pub fn burst_passed(
    environment: &ProgramEnvironment,
    side: LimiterOwner,
    policing: &PolicerSettings,
) -> Result<Vec<u64>> {
    for _ in 0..ATTEMPTS {
        let (outcome, receiver_dropped) = send_through(environment, side, policing, 0)?;
        if receiver_dropped == 0 {
            return Ok(outcome.arrived);
        }
    }
    bail!("the receiving socket had no room in {ATTEMPTS} attempts; this host is too busy")
}

pub(super) fn compare(
    environment: &ProgramEnvironment,
    policing: &PolicerSettings,
    raw: &RawSamples,
) -> Result<[ComparisonRow; 3]> {
    let kernel = measure(environment, LimiterOwner::Kernel, policing, raw)?;
    let trunkline = measure(environment, LimiterOwner::Trunkline, policing, raw)?;
    let setting = policing.to_string();
    let row = |quantity, unit| ComparisonRow::new(PEER, quantity, &setting, unit);
    let packets = (kernel.sent + trunkline.sent) as usize;
    Ok([
        row("burst_passed", "packets")
            .figures(kernel.burst as f64, trunkline.burst as f64, packets)
            .against(policing.burst as f64),
        row("passed_in_all", "packets").figures(
            kernel.passed as f64,
            trunkline.passed as f64,
            packets,
        ),
        // The two sides were sent to for not quite the same time.
        row("passed_beyond_the_bucket", "packets").figures(
            kernel.passed as f64 - kernel.expected,
            trunkline.passed as f64 - trunkline.expected,
            packets,
        ),
    ])
}

struct PolicerMeasurement {
    sent: u64,
    burst: u64,
    passed: u64,
    expected: f64,
}

fn measure(
    environment: &ProgramEnvironment,
    side: LimiterOwner,
    policing: &PolicerSettings,
    raw: &RawSamples,
) -> Result<PolicerMeasurement> {
    let paced = policing.packets * OVERLOAD * OVERLOAD_S;
    for _ in 0..ATTEMPTS {
        let (outcome, receiver_dropped) = send_through(environment, side, policing, paced)?;
        let Some(burst) = policing.passed(&outcome).filter(|_| receiver_dropped == 0) else {
            continue;
        };
        let name = format!("nft-limit-{}-{}", policing.packets, policing.burst);
        let rows: Vec<String> = outcome.arrived.iter().map(u64::to_string).collect();
        raw.keep(&name, side, "number", &rows)?;
        return Ok(PolicerMeasurement {
            sent: policing.burst + SURPLUS + paced,
            burst,
            passed: outcome.arrived.len() as u64,
            expected: policing.expected(&outcome),
        });
    }
    bail!(
        "no burst for {policing} left quickly enough and arrived whole in {ATTEMPTS} attempts; this host is too busy"
    )
}

/// Sends a burst and so many paced packets; returns the outcome and the number of packets that the
/// receiver had no room for.
fn send_through(
    environment: &ProgramEnvironment,
    side: LimiterOwner,
    policing: &PolicerSettings,
    paced: u64,
) -> Result<(TrafficOutcome, u64)> {
    let mut room = MeasuringNamespaces::create(environment, side)?;
    match side {
        LimiterOwner::Kernel => room.filter(&policing.rule())?,
        LimiterOwner::Trunkline => room.emulate(&["--police", &policing.words()])?,
    }
    let (sender, receiver) = room.sockets()?;
    let outcome = traffic::run(&sender, &receiver, &policing.load(paced))?;
    room.check()?;
    Ok((outcome, room.receiver_dropped()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(burst_ms: u64, arrived: Vec<u64>) -> TrafficOutcome {
        TrafficOutcome {
            burst_took: Duration::from_millis(burst_ms),
            sending_took: Duration::from_secs(10),
            slowest_pace: Duration::ZERO,
            arrived,
        }
    }

    #[test]
    fn both_sides_are_set_to_the_same_bucket() {
        let policing = SETTINGS[0];
        assert_eq!(
            policing.rule(),
            "limit rate over 100/second burst 20 packets drop"
        );
        assert_eq!(policing.words(), "rate=160000bit,burst=4000B");
        let slow = PolicerSettings::burst_only(50);
        assert_eq!(slow.rule(), "limit rate over 5/hour burst 50 packets drop");
        assert_eq!(slow.words(), "rate=2bit,burst=10000B");
    }

    #[test]
    fn passed_burst_is_counted_unless_sent_slowly() {
        let policing = SETTINGS[0];
        let arrived: Vec<u64> = (0..20).chain([41, 44]).collect();
        assert_eq!(policing.passed(&outcome(4, arrived.clone())), Some(20));
        // 6 ms at 100/s is more than half a packet.
        assert_eq!(policing.passed(&outcome(6, arrived.clone())), None);
        assert_eq!(policing.expected(&outcome(4, arrived)), 1_020.0);
    }
}
