//! Check of whether this host can hold a setting, made before a link is set to it.
//!
//! ```text
//!   rate ──► seen before, by a certificate or a probe of this host? ──yes──► may
//!                    │ no                                                   ▲
//!                    └──► probe, again if it does not carry it ──carried────┘
//!                                   └─ not ──► nearest line that is carried ──► may not
//! ```
//! Rates up to [`UNASKED`] are not asked about. A permission may rest on what was seen before; a
//! refusal always rests on probes made for it, several where they come near, because each is only
//! an instant of a host that may be busy. What was refused is probed afresh whenever it is asked
//! for. For an hour after a refusal (`notes.rs`) it takes `LOOKS_AFTER_REFUSAL` probes in a row that
//! carry the rate, so that a host at its limit does not change its answer with each probe. A link
//! that runs is never disturbed by a probe ([`check_live`]). Whoever wants a refused rate all the same
//! can force it ([`SettingRefusal::forced`]).
//!
//! The memory that a direction would hold follows from the setting alone (`memory.rs`). The setting
//! that is advised in place of a refused one passes the same checks (`nearest.rs`).

mod memory;
mod nearest;
mod notes;

use std::cell::OnceCell;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use emulate::{DirectionConfig, HELD_BYTES_MAX, LineConfig, LinkConfig, LinkDirection};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Bitrate, ByteCount, Time};

use super::stand::{DeviceKind, IpVersion, TestBed};
use super::{capacity, now};
use crate::link::settings::SettingDirection;
use host::ProgramEnvironment;
pub use memory::{HeldBytes, OverfullDirection};
use nearest::RefusedConfig;
use notes::{KnownCapacity, NoteFiles, RefusedRate};

/// Rates up to this are held by whatever runs this program, so that no slow link waits for a
/// probe.
pub const UNASKED: Bitrate = Bitrate::from_bits_per_second(100_000_000);

/// Consecutive probes that must carry a rate that was refused within the hour: on a host whose
/// figures vary from one probe to the next, all of them seldom succeed by chance.
const LOOKS_AFTER_REFUSAL: u32 = 3;

/// Probes of the rate that is asked for before it is refused, and where one of them came near it.
const LOOKS: u32 = 2;
const LOOKS_NEAR: u32 = 4;

/// Share of the requested rate, in percent, that counts as near it.
const NEAR_PERCENT: u64 = 75;

/// Probes for the nearest rate that is carried.
const LOOKS_BELOW: u32 = 4;

/// Duration of a measurement of the models alone, where no device can be made.
const MODEL_SPAN: Duration = Duration::from_millis(100);

/// A running link is judged second by second.
const JUDGED_BY: Duration = Duration::from_secs(1);

/// An IP packet of Ethernet's usual size.
const FULL_PACKET: u64 = 1_500;

/// Why a setting is refused, with the nearest that would work.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingRefusal {
    /// Faster than this host is.
    Rate {
        /// The requested rate.
        asked: Bitrate,
        /// The most that this host has been seen to carry.
        seen: ObservedCapacity,
        /// Attachment of the link.
        device: DeviceKind,
        /// Time of an earlier refusal within the hour.
        since: Option<String>,
        /// Nearest setting that works.
        nearest: String,
    },
    /// Faster than this host has been seen to be, and it cannot be looked at now.
    Unseen {
        /// The requested rate.
        asked: Bitrate,
        /// The most that this host has been seen to carry.
        seen: Option<ObservedCapacity>,
        /// Attachment of the link.
        device: DeviceKind,
        /// Nearest setting that works.
        nearest: String,
    },
    /// More under way, or waiting, than a direction holds.
    Memory {
        /// Directions with the number of bytes that they would hold.
        full: Vec<OverfullDirection>,
        /// Nearest setting that works.
        nearest: String,
    },
}

impl std::error::Error for SettingRefusal {}

impl SettingRefusal {
    /// Text that marks a link that is started anyway: the requested rate and the observed capacity.
    /// `None` for a setting that cannot be forced: the model drops packets that exceed its memory.
    #[must_use]
    pub fn forced(&self) -> Option<String> {
        match self {
            SettingRefusal::Rate {
                asked,
                seen,
                device,
                ..
            } => Some(format!(
                "{asked} forced; this host carried {} ({})",
                rounded_down(seen.rate),
                seen.origin(*device)
            )),
            SettingRefusal::Unseen {
                asked,
                seen,
                device,
                ..
            } => Some(match seen {
                Some(seen) => format!(
                    "{asked} forced; this host was seen to carry {} ({})",
                    rounded_down(seen.rate),
                    seen.origin(*device)
                ),
                None => {
                    format!("{asked} forced; what this host carries over {device} was not known")
                }
            }),
            SettingRefusal::Memory { .. } => None,
        }
    }

    /// Sets the advice for a setting that works.
    fn advising(mut self, words: String) -> Self {
        let (SettingRefusal::Rate { nearest, .. }
        | SettingRefusal::Unseen { nearest, .. }
        | SettingRefusal::Memory { nearest, .. }) = &mut self;
        *nearest = words;
        self
    }
}

/// Advice on how to set a refused rate anyway.
const FORCE: &str = "; --force sets it all the same and marks the link as forced";

impl fmt::Display for SettingRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingRefusal::Rate {
                asked,
                seen,
                device,
                since,
                nearest,
            } => {
                write!(
                    out,
                    "{asked} asked; this host carries {} ({}); {nearest}, or leave the rate out for as fast as the host goes",
                    rounded_down(seen.rate),
                    seen.origin(*device)
                )?;
                if let Some(since) = since {
                    write!(
                        out,
                        "; it was refused at {since}, and for an hour from then on {LOOKS_AFTER_REFUSAL} probes in a row must carry it"
                    )?;
                }
                out.write_str(FORCE)
            }
            SettingRefusal::Unseen {
                asked,
                seen,
                device,
                nearest,
            } => {
                write!(out, "{asked} asked of a link that runs, ")?;
                match seen {
                    Some(seen) => write!(
                        out,
                        "and this host has been seen to carry {} ({})",
                        rounded_down(seen.rate),
                        seen.origin(*device)
                    )?,
                    None => write!(out, "and what this host carries over {device} is not known")?,
                }
                write!(
                    out,
                    "; {nearest}, or stop the link and either start it with that rate or measure with `trunkline emulate calibrate --device {}`",
                    device.name()
                )?;
                out.write_str(FORCE)
            }
            SettingRefusal::Memory { full, nearest } => {
                let alike = full.len() == 2 && full[0].held == full[1].held;
                for (place, OverfullDirection { way, held }) in full.iter().enumerate() {
                    let way = match way {
                        SettingDirection::Forward if alike => "each way",
                        SettingDirection::Back if alike => break,
                        SettingDirection::Forward => "forward",
                        SettingDirection::Back => "back",
                    };
                    write!(
                        out,
                        "{}{way}, {} would be under way at the worst moment and up to {} in the queue",
                        if place > 0 { "; " } else { "" },
                        ByteCount::new(held.under_way as u64),
                        ByteCount::new(held.queue as u64),
                    )?;
                }
                write!(out, ", and a direction holds {HELD_BYTES_MAX}; {nearest}")
            }
        }
    }
}

/// Capacity that was observed on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedCapacity {
    /// Observed rate.
    pub rate: Bitrate,
    /// Time (RFC 3339).
    pub date: String,
    /// Source of the observation.
    pub by: CapacitySource,
    /// Number of probes that were made for it.
    pub probes: u32,
}

impl ObservedCapacity {
    fn origin(&self, device: DeviceKind) -> String {
        let probes = match self.probes {
            1 => "a probe".to_owned(),
            count => format!("{count} probes"),
        };
        match self.by {
            CapacitySource::Certificate => {
                format!("over {device}, by its certificate of {}", self.date)
            }
            CapacitySource::Probe => format!("over {device}, by {probes}, {}", self.date),
            CapacitySource::Models => {
                format!("in the link's models alone, by {probes}, {}", self.date)
            }
        }
    }
}

/// Source of an observed capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CapacitySource {
    /// A calibration.
    Certificate,
    /// A probe over the same devices.
    Probe,
    /// The models alone, because no device could be made.
    Models,
}

/// Checks before a link is started whether this host can hold it; `state` is the directory of
/// certificates and probes. It may take some seconds and the whole host.
///
/// # Errors
/// Names the setting that cannot be held, the measured capacity, and the nearest setting that
/// works.
pub fn check(
    config: &LinkConfig,
    device: DeviceKind,
    environment: &ProgramEnvironment,
    state: &Path,
) -> Result<(), SettingRefusal> {
    let notes = NoteFiles::at(state, device);
    let mut prober = CapacityProber {
        environment,
        device,
        stand: None,
        models: OnceCell::new(),
    };
    let known = || notes.read(Timestamp::now());
    let (learnt, verdict) = check_by(config, device, known, |line| prober.look(line));
    if let Some(learnt) = learnt {
        notes.write(&learnt);
    }
    verdict
}

/// Checks with known results and a probe, neither of which a slow link needs; returns the updated
/// knowledge if it probed.
fn check_by(
    config: &LinkConfig,
    device: DeviceKind,
    known: impl FnOnce() -> KnownCapacity,
    look: impl FnMut(Bitrate) -> ProbeResult,
) -> (Option<KnownCapacity>, Result<(), SettingRefusal>) {
    let full = memory::overfull(None, config);
    let asked = fastest_of(config);
    if full.is_empty() && asked <= UNASKED {
        return (None, Ok(()));
    }
    let link = RefusedConfig::new(None, config);
    // What is refused in any case is looked at for what to advise.
    let wanted = if full.is_empty() {
        asked
    } else {
        link.fastest_that_fits()
    };
    let known = known();
    let mut most = known.most().max(UNASKED);
    let (mut learnt, mut verdict) = (None, Ok(()));
    if wanted > most {
        let now_known;
        (now_known, verdict) = judge(wanted, device, known, look);
        most = match &verdict {
            Ok(()) => wanted,
            Err(_) => now_known.most(),
        };
        learnt = Some(now_known);
    }
    let advice = || link.advice(to_type(most, asked));
    let verdict = if full.is_empty() {
        verdict.map_err(|refusal| refusal.advising(advice()))
    } else {
        let nearest = advice();
        Err(SettingRefusal::Memory { full, nearest })
    };
    (learnt, verdict)
}

/// Checks with known results alone whether this host can hold a change of a link that runs as
/// `present`: a probe would disturb the link, and the link the probe. A rate that is not higher
/// than at present is accepted.
///
/// # Errors
/// Names the setting that cannot be held or whose capacity is not known, and the nearest setting
/// that works.
pub fn check_live(
    present: &LinkConfig,
    next: &LinkConfig,
    device: DeviceKind,
    state: &Path,
) -> Result<(), SettingRefusal> {
    let full = memory::overfull(Some(present), next);
    let asked = fastest_of(next);
    let unasked = UNASKED.max(fastest_of(present));
    if full.is_empty() && asked <= unasked {
        return Ok(());
    }
    let known = NoteFiles::at(state, device).read(Timestamp::now());
    if full.is_empty() && asked <= known.most() {
        return Ok(());
    }
    let most = to_type(known.most().max(unasked), asked);
    let nearest = RefusedConfig::new(Some(present), next).advice(most);
    Err(if full.is_empty() {
        SettingRefusal::Unseen {
            asked,
            seen: known.seen.into_iter().max_by_key(|seen| seen.rate),
            device,
            nearest,
        }
    } else {
        SettingRefusal::Memory { full, nearest }
    })
}

/// Rate that a line let through.
#[derive(Clone, Copy, Debug)]
struct ProbeResult {
    came: Bitrate,
    is_kept: bool,
    by: CapacitySource,
}

/// Probes before it refuses a rate that is not known to be held; returns the updated knowledge.
fn judge(
    asked: Bitrate,
    device: DeviceKind,
    mut known: KnownCapacity,
    mut look: impl FnMut(Bitrate) -> ProbeResult,
) -> (KnownCapacity, Result<(), SettingRefusal>) {
    let mut probes = 0;
    let mut look = |line: Bitrate| {
        probes += 1;
        let found = look(line);
        (found, probes)
    };
    let seen = |rate, by, probes| ObservedCapacity {
        rate,
        date: now(),
        by,
        probes,
    };
    let refused = known.refused.take();
    let since = refused
        .as_ref()
        .filter(|refused| refused.rate <= asked)
        .map(|refused| refused.date.clone());
    // A busy instant is no reason to refuse, nor a lucky one to let through what was refused.
    let needed = if since.is_some() {
        LOOKS_AFTER_REFUSAL
    } else {
        1
    };
    let (mut carried_in_a_row, mut failed) = (0, 0);
    let mut most = Bitrate::default();
    loop {
        let (found, probes) = look(asked);
        if found.is_kept {
            carried_in_a_row += 1;
            if carried_in_a_row < needed {
                continue;
            }
            known.seen.push(seen(asked, found.by, probes));
            // A refusal of more than that stands.
            known.refused = refused.filter(|refused| refused.rate > asked);
            return (known, Ok(()));
        }
        (carried_in_a_row, failed) = (0, failed + 1);
        most = most.max(found.came);
        let is_near = since.is_none() && most >= of_percent(asked, NEAR_PERCENT);
        if failed >= if is_near { LOOKS_NEAR } else { LOOKS } {
            break;
        }
    }
    // What came through a line that was too fast is only where the search begins: packets that are
    // due in crowds go on together for less than they cost one by one.
    let refused = refused
        .filter(|refused| refused.rate <= asked)
        .unwrap_or_else(|| RefusedRate {
            rate: asked,
            date: now(),
        });
    let mut below = of_percent(most.min(refused.rate), 95);
    let mut by = CapacitySource::Probe;
    let mut probes = 0;
    for _ in 0..LOOKS_BELOW {
        let found;
        (found, probes) = look(below);
        by = found.by;
        if found.is_kept {
            break;
        }
        below = of_percent(found.came.min(below), 95);
    }
    known.seen.push(seen(below, by, probes));
    known.refused = Some(refused);
    let best = known.seen.iter().max_by_key(|seen| seen.rate).cloned();
    let seen = best.expect("one was pushed");
    let verdict = Err(SettingRefusal::Rate {
        asked,
        nearest: format!("use --rate {}", rounded_down(seen.rate)),
        seen,
        device,
        since,
    });
    (known, verdict)
}

fn of_percent(rate: Bitrate, percent: u64) -> Bitrate {
    let bits = u128::from(rate.bits_per_second()) * u128::from(percent) / 100;
    Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX))
}

/// The fastest that a link will ever be.
fn fastest_of(config: &LinkConfig) -> Bitrate {
    [&config.forward, &config.back]
        .into_iter()
        .filter_map(fastest)
        .max()
        .unwrap_or_default()
}

/// Highest rate that a direction will ever have, from its line or its schedule. A recorded line
/// counts with its best rate over the time by which a link is judged.
fn fastest(direction: &DirectionConfig) -> Option<Bitrate> {
    let line = match &direction.line {
        LineConfig::Trace(trace) => {
            let bits = u128::from(trace.most_within(JUDGED_BY)) * 8 * 1_000 / JUDGED_BY.as_millis();
            let bits = u64::try_from(bits).unwrap_or(u64::MAX);
            Some(Bitrate::from_bits_per_second(bits))
        }
        line => line.rate(),
    };
    let scheduled = direction
        .schedule
        .iter()
        .flat_map(|schedule| schedule.steps().iter().filter_map(|step| step.change.rate));
    line.into_iter().chain(scheduled).max()
}

/// Rate to advise on a host that carries `most`; a rate that it carries needs no change.
fn to_type(most: Bitrate, asked: Bitrate) -> Bitrate {
    if asked <= most {
        asked
    } else {
        rounded_down(most)
    }
}

/// Rounds down to two digits, so that the rate can be typed and does not exceed the observed one.
fn rounded_down(rate: Bitrate) -> Bitrate {
    let bits = rate.bits_per_second();
    let digits = bits.checked_ilog10().unwrap_or_default();
    let step = 10_u64.pow(digits.saturating_sub(1));
    Bitrate::from_bits_per_second(bits / step * step)
}

/// Measures the rate that comes through a line, over devices of the same kind or, where none can be
/// made, through the models.
struct CapacityProber<'a> {
    environment: &'a ProgramEnvironment,
    device: DeviceKind,
    stand: Option<TestBed>,
    /// Capacity of the models; empty until it was measured.
    models: OnceCell<f64>,
}

impl CapacityProber<'_> {
    fn look(&mut self, line: Bitrate) -> ProbeResult {
        let (came, by) = match self.over_devices(line) {
            Ok(came) => (came, CapacitySource::Probe),
            Err(error) => {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "no devices to probe with; looking at the models alone"
                );
                (*self.models.get_or_init(models), CapacitySource::Models)
            }
        };
        ProbeResult {
            came: Bitrate::from_bits_per_second(came as u64),
            is_kept: capacity::is_kept(line, came),
            by,
        }
    }

    fn over_devices(&mut self, line: Bitrate) -> Result<f64> {
        if self.models.get().is_some() {
            // What cannot be made once is not tried again.
            anyhow::bail!("the devices could not be used before");
        }
        let stand = match &mut self.stand {
            Some(stand) => stand,
            None => self.stand.insert(TestBed::create(
                self.environment,
                self.device,
                IpVersion::V4,
            )?),
        };
        capacity::through_a_line(stand, line)
    }
}

/// Bits per second of full-size packets through a direction that does nothing to them: more than
/// any device will bring.
fn models() -> f64 {
    const ROUND: u64 = 1_000;
    let mut direction = LinkDirection::new(DirectionConfig::default(), 1);
    let packet = Bytes::from(vec![0x45; FULL_PACKET as usize]);
    let start = Instant::now();
    let mut packets = 0;
    while start.elapsed() < MODEL_SPAN {
        for _ in 0..ROUND {
            let now = Time::from_epoch(start.elapsed());
            direction.handle(now, packet.clone());
            while direction.poll_output(now).is_some() {}
        }
        packets += ROUND;
    }
    (packets * FULL_PACKET * 8) as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests;
