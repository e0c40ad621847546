//! Whether this host can hold a setting, asked before a link is set so.
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
//! can force it ([`Refusal::forced`]).
//!
//! What a direction would hold in memory follows from the setting alone (`memory.rs`). What is
//! advised in place of what is refused passes the same checks (`nearest.rs`).

mod memory;
mod nearest;
mod notes;

use std::cell::OnceCell;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use emulate::{Direction, DirectionConfig, HELD_BYTES_MAX, Line, LinkConfig};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Bitrate, ByteCount, Time};

use super::stand::{Device, Protocol, Stand};
use super::{capacity, now};
use crate::Environment;
use crate::link::settings::Way;
pub use memory::{Held, Overfull};
use nearest::Asked;
use notes::{Known, Notes, Refused};

/// Rates up to this are held by whatever runs this program, so that no slow link waits for a
/// probe.
pub const UNASKED: Bitrate = Bitrate::from_bits_per_second(100_000_000);

/// Probes in a row that must carry a rate that was refused within the hour: a host whose figures
/// differ from one probe to the next seldom carries all of them by chance.
const LOOKS_AFTER_REFUSAL: u32 = 3;

/// Probes of the rate that is asked for before it is refused, and where one of them came near it.
const LOOKS: u32 = 2;
const LOOKS_NEAR: u32 = 4;

/// This much of what is asked for is near it.
const NEAR_PERCENT: u64 = 75;

/// Probes for the nearest rate that is carried.
const LOOKS_BELOW: u32 = 4;

/// How long the models alone are looked at where no device can be made.
const MODEL_SPAN: Duration = Duration::from_millis(100);

/// A running link is judged second by second.
const JUDGED_BY: Duration = Duration::from_secs(1);

/// An IP packet of Ethernet's usual size.
const FULL_PACKET: u64 = 1_500;

/// Why a setting is refused, with the nearest that would work.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// Faster than this host is.
    Rate {
        /// What was asked for.
        asked: Bitrate,
        /// The most that this host has been seen to carry.
        seen: Seen,
        /// How the link is joined.
        device: Device,
        /// When it was refused before, within the hour.
        since: Option<String>,
        /// What would work.
        nearest: String,
    },
    /// Faster than this host has been seen to be, and it cannot be looked at now.
    Unseen {
        /// What was asked for.
        asked: Bitrate,
        /// The most that this host has been seen to carry.
        seen: Option<Seen>,
        /// How the link is joined.
        device: Device,
        /// What would work.
        nearest: String,
    },
    /// More under way, or waiting, than a direction holds.
    Memory {
        /// The ways, with what they would hold.
        full: Vec<Overfull>,
        /// What would work.
        nearest: String,
    },
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// What a link that is started all the same is marked with: what was asked for and what the host
    /// was seen to carry. `None` for what cannot be forced: the model drops what it cannot hold in
    /// memory.
    #[must_use]
    pub fn forced(&self) -> Option<String> {
        match self {
            Refusal::Rate {
                asked,
                seen,
                device,
                ..
            } => Some(format!(
                "{asked} forced; this host carried {} ({})",
                rounded_down(seen.rate),
                seen.origin(*device)
            )),
            Refusal::Unseen {
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
            Refusal::Memory { .. } => None,
        }
    }

    /// With this as what would work.
    fn advising(mut self, words: String) -> Self {
        let (Refusal::Rate { nearest, .. }
        | Refusal::Unseen { nearest, .. }
        | Refusal::Memory { nearest, .. }) = &mut self;
        *nearest = words;
        self
    }
}

/// How a refused rate is set all the same.
const FORCE: &str = "; --force sets it all the same and marks the link as forced";

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Rate {
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
            Refusal::Unseen {
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
            Refusal::Memory { full, nearest } => {
                let alike = full.len() == 2 && full[0].held == full[1].held;
                for (place, Overfull { way, held }) in full.iter().enumerate() {
                    let way = match way {
                        Way::Forward if alike => "each way",
                        Way::Back if alike => break,
                        Way::Forward => "forward",
                        Way::Back => "back",
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

/// What a host has been seen to carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// How much.
    pub rate: Bitrate,
    /// When (RFC 3339).
    pub date: String,
    /// How.
    pub by: By,
    /// How many probes were made for it.
    pub probes: u32,
}

impl Seen {
    fn origin(&self, device: Device) -> String {
        let probes = match self.probes {
            1 => "a probe".to_owned(),
            count => format!("{count} probes"),
        };
        match self.by {
            By::Certificate => format!("over {device}, by its certificate of {}", self.date),
            By::Probe => format!("over {device}, by {probes}, {}", self.date),
            By::Models => format!("in the link's models alone, by {probes}, {}", self.date),
        }
    }
}

/// How a capacity was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// By a calibration.
    Certificate,
    /// By a probe over the same devices.
    Probe,
    /// By the models alone, because no device could be made.
    Models,
}

/// Says, before a link is started, whether this host can hold it; `state` is where certificates
/// and probes are kept. It may take some seconds and the whole host.
///
/// # Errors
/// What cannot be held, what was measured, and the nearest that would work.
pub fn check(
    config: &LinkConfig,
    device: Device,
    environment: &Environment,
    state: &Path,
) -> Result<(), Refusal> {
    let notes = Notes::at(state, device);
    let mut prober = Prober {
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

/// The same by what is known and what a look shows, neither of which a slow link asks for; says what
/// is known then, if it looked.
fn check_by(
    config: &LinkConfig,
    device: Device,
    known: impl FnOnce() -> Known,
    look: impl FnMut(Bitrate) -> Look,
) -> (Option<Known>, Result<(), Refusal>) {
    let full = memory::overfull(None, config);
    let asked = fastest_of(config);
    if full.is_empty() && asked <= UNASKED {
        return (None, Ok(()));
    }
    let link = Asked::new(None, config);
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
        Err(Refusal::Memory { full, nearest })
    };
    (learnt, verdict)
}

/// Says whether this host can hold what a link that runs as `present` is to be from now on, by what
/// is known alone: a probe would disturb the link, and the link the probe. What is no faster than
/// at present is let through.
///
/// # Errors
/// What cannot be held or is not known to be, and the nearest that would work.
pub fn check_live(
    present: &LinkConfig,
    next: &LinkConfig,
    device: Device,
    state: &Path,
) -> Result<(), Refusal> {
    let full = memory::overfull(Some(present), next);
    let asked = fastest_of(next);
    let unasked = UNASKED.max(fastest_of(present));
    if full.is_empty() && asked <= unasked {
        return Ok(());
    }
    let known = Notes::at(state, device).read(Timestamp::now());
    if full.is_empty() && asked <= known.most() {
        return Ok(());
    }
    let most = to_type(known.most().max(unasked), asked);
    let nearest = Asked::new(Some(present), next).advice(most);
    Err(if full.is_empty() {
        Refusal::Unseen {
            asked,
            seen: known.seen.into_iter().max_by_key(|seen| seen.rate),
            device,
            nearest,
        }
    } else {
        Refusal::Memory { full, nearest }
    })
}

/// What a line let through.
#[derive(Clone, Copy, Debug)]
struct Look {
    came: Bitrate,
    is_kept: bool,
    by: By,
}

/// Looks before it refuses what is not known to be held; says what is known then.
fn judge(
    asked: Bitrate,
    device: Device,
    mut known: Known,
    mut look: impl FnMut(Bitrate) -> Look,
) -> (Known, Result<(), Refusal>) {
    let mut probes = 0;
    let mut look = |line: Bitrate| {
        probes += 1;
        let found = look(line);
        (found, probes)
    };
    let seen = |rate, by, probes| Seen {
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
        .unwrap_or_else(|| Refused {
            rate: asked,
            date: now(),
        });
    let mut below = of_percent(most.min(refused.rate), 95);
    let mut by = By::Probe;
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
    let verdict = Err(Refusal::Rate {
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

/// The fastest that a direction will ever be: its line, or what its schedule makes of it. A recorded
/// line is as fast as it is at best for the time by which a link is judged.
fn fastest(direction: &DirectionConfig) -> Option<Bitrate> {
    let line = match &direction.line {
        Line::Trace(trace) => {
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

/// What to advise of a host that carries `most`: no need to change what it carries.
fn to_type(most: Bitrate, asked: Bitrate) -> Bitrate {
    if asked <= most {
        asked
    } else {
        rounded_down(most)
    }
}

/// To two digits, so that it can be typed and is not above what was seen.
fn rounded_down(rate: Bitrate) -> Bitrate {
    let bits = rate.bits_per_second();
    let digits = bits.checked_ilog10().unwrap_or_default();
    let step = 10_u64.pow(digits.saturating_sub(1));
    Bitrate::from_bits_per_second(bits / step * step)
}

/// Looks at what comes through a line, over devices of the same kind, or, where none can be made,
/// through the models.
struct Prober<'a> {
    environment: &'a Environment,
    device: Device,
    stand: Option<Stand>,
    /// What the models carry, once they had to be asked.
    models: OnceCell<f64>,
}

impl Prober<'_> {
    fn look(&mut self, line: Bitrate) -> Look {
        let (came, by) = match self.over_devices(line) {
            Ok(came) => (came, By::Probe),
            Err(error) => {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "no devices to probe with; looking at the models alone"
                );
                (*self.models.get_or_init(models), By::Models)
            }
        };
        Look {
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
            None => self
                .stand
                .insert(Stand::create(self.environment, self.device, Protocol::V4)?),
        };
        capacity::through_a_line(stand, line)
    }
}

/// Bits per second of full-size packets through a direction that does nothing to them: more than
/// any device will bring.
fn models() -> f64 {
    const ROUND: u64 = 1_000;
    let mut direction = Direction::new(DirectionConfig::default(), 1);
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
mod tests {
    use std::path::PathBuf;

    use emulate::Queue;

    use super::*;
    use crate::link::settings::Settings;

    fn rate(text: &str) -> Bitrate {
        text.parse().unwrap()
    }

    fn gigabits(number: f64) -> Bitrate {
        Bitrate::from_bits_per_second((number * 1e9) as u64)
    }

    fn seen(number: f64) -> Seen {
        Seen {
            rate: gigabits(number),
            date: now(),
            by: By::Probe,
            probes: 1,
        }
    }

    fn link(rate: &str) -> LinkConfig {
        let direction = DirectionConfig {
            line: Line::Rate(rate.parse().unwrap()),
            delay: Duration::from_millis(20),
            queue: Queue::from(ByteCount::new(500_000)),
            ..DirectionConfig::default()
        };
        LinkConfig::symmetric(direction, 1)
    }

    /// A host that carries these rates, one probe after the other, the last one for ever; a line
    /// above them lets a little more through than can be kept.
    fn host(carries: &[f64]) -> impl FnMut(Bitrate) -> Look {
        let carries: Vec<Bitrate> = carries.iter().copied().map(gigabits).collect();
        let mut probe = 0;
        move |line| {
            let carried = carries[probe.min(carries.len() - 1)];
            probe += 1;
            Look {
                came: line.min(of_percent(carried, 110)),
                is_kept: line <= carried,
                by: By::Probe,
            }
        }
    }

    fn ask(known: &mut Known, asked: &str, carries: &[f64]) -> Result<(), Refusal> {
        let asked = rate(asked);
        if known.seen.iter().any(|seen| seen.rate >= asked) {
            return Ok(());
        }
        let (learnt, verdict) = judge(asked, Device::Tun, known.clone(), host(carries));
        *known = learnt;
        verdict
    }

    #[test]
    fn a_refusal_names_what_is_kept_and_what_it_names_is_allowed() {
        let mut known = Known {
            seen: vec![seen(1.0)],
            refused: None,
        };
        let text = ask(&mut known, "10Gbit", &[3.0]).unwrap_err().to_string();
        assert!(text.contains("10Gbit asked"), "{text}");
        // 3.3 came through, of which 95 % twice is kept; two probes for it, two for these.
        assert!(text.contains("--rate 2.9Gbit"), "{text}");
        assert!(text.contains("by 4 probes"), "{text}");
        assert_eq!(ask(&mut known, "2.9Gbit", &[0.1]), Ok(()));
    }

    #[test]
    fn one_busy_instant_refuses_nothing() {
        let mut known = Known::default();
        assert_eq!(ask(&mut known, "2Gbit", &[0.5, 3.0]), Ok(()));
        assert_eq!(known.seen[0].probes, 2);
        // Nor do three where they come near.
        let mut known = Known::default();
        assert_eq!(ask(&mut known, "2Gbit", &[1.6, 1.9, 1.8, 2.1]), Ok(()));
    }

    #[test]
    fn the_same_question_has_the_same_answer_near_the_limit() {
        // This host carries 8.8 at one time and 10.5 at another.
        let mut known = Known::default();
        assert!(ask(&mut known, "10Gbit", &[8.8]).is_err());
        let at_its_limit = [10.5, 8.8, 10.5, 10.5, 8.8];
        let text = ask(&mut known, "10Gbit", &at_its_limit)
            .unwrap_err()
            .to_string();
        assert!(text.contains("it was refused at"), "{text}");
        assert!(text.contains("--force"), "{text}");
        assert!(ask(&mut known, "11Gbit", &[11.5, 10.5]).is_err());
        // What was not refused is looked at anew, and the refusal stands.
        assert_eq!(ask(&mut known, "9.8Gbit", &[10.5]), Ok(()));
        assert!(ask(&mut known, "10Gbit", &[10.5, 8.8]).is_err());
        assert_eq!(ask(&mut known, "10Gbit", &[10.5]), Ok(()));
        // What was allowed once stays allowed.
        assert_eq!(ask(&mut known, "10Gbit", &[1.0]), Ok(()));
    }

    /// A host that was busy when it was asked first carries the rate as soon as it is idle again,
    /// though not 125 % of it; nobody has to wait for an hour.
    #[test]
    fn what_a_busy_host_refused_is_probed_afresh() {
        let mut known = Known::default();
        assert!(ask(&mut known, "10Gbit", &[2.0]).is_err());
        assert!(known.refused.is_some());
        assert_eq!(ask(&mut known, "10Gbit", &[10.5]), Ok(()));
        assert_eq!(known.refused, None);
        assert_eq!(known.most(), rate("10Gbit"));
        // One busy instant among the probes does not matter either.
        let mut known = Known::default();
        assert!(ask(&mut known, "10Gbit", &[2.0]).is_err());
        assert_eq!(
            ask(&mut known, "10Gbit", &[10.5, 2.0, 10.5, 10.5, 10.5]),
            Ok(())
        );
    }

    #[test]
    fn a_refused_rate_can_be_forced_and_too_much_memory_cannot() {
        let mut known = Known::default();
        let refusal = ask(&mut known, "10Gbit", &[2.0]).unwrap_err();
        let forced = refusal.forced().unwrap();
        assert!(
            forced.starts_with("10Gbit forced; this host carried 1.9Gbit"),
            "{forced}"
        );
        let folder = tempfile::tempdir().unwrap();
        let live = |to: &str| {
            let next = said(to);
            check_live(&link("1Mbit"), &next, Device::Tun, folder.path()).unwrap_err()
        };
        let forced = live("--rate 10Gbit").forced().unwrap();
        assert!(forced.contains("was not known"), "{forced}");
        assert_eq!(live("--rate 10Gbit --delay 600s").forced(), None);
    }

    #[test]
    fn a_running_link_is_judged_by_what_is_known_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        let live = |from: &str, to: &str| check_live(&link(from), &link(to), Device::Tun, state);
        assert_eq!(live("1Mbit", "100Mbit"), Ok(()));
        assert_eq!(live("2Gbit", "1Gbit"), Ok(()));
        let text = live("1Mbit", "1Gbit").unwrap_err().to_string();
        assert!(text.contains("use --rate 100Mbit"), "{text}");
        assert!(text.contains("emulate calibrate --device tun"), "{text}");
        Notes::at(state, Device::Tun).write(&Known {
            seen: vec![seen(1.5)],
            refused: None,
        });
        assert_eq!(live("1Mbit", "1Gbit"), Ok(()));
        let text = live("1Mbit", "2Gbit").unwrap_err().to_string();
        assert!(text.contains("use --rate 1.5Gbit"), "{text}");
    }

    /// A link as its words make it.
    fn said(words: &str) -> LinkConfig {
        let mut settings = Settings::default();
        for pair in words.split_whitespace().collect::<Vec<_>>().chunks(2) {
            let name = pair[0].strip_prefix("--").unwrap();
            settings.set_by_name(name, pair[1]).unwrap();
        }
        settings.resolve().unwrap().config
    }

    /// What is advised in place of some words, each with those that it does not replace.
    fn advised(words: &str, refusal: &str) -> Vec<String> {
        let (_, advice) = refusal
            .split_once("; use ")
            .unwrap_or_else(|| panic!("{words}: {refusal}"));
        // Behind the last setting comes what is to be done without one.
        let settings = advice.split(", or ").filter(|one| one.starts_with("--"));
        let words: Vec<&str> = words.split_whitespace().collect();
        let each = settings.map(|one| {
            let new: Vec<&str> = one
                .split_whitespace()
                .filter(|word| *word != "with")
                .collect();
            let is_kept = |pair: &&[&str]| !new.contains(&pair[0]);
            let kept = words.chunks(2).filter(is_kept).flatten().copied();
            kept.chain(new.iter().copied())
                .collect::<Vec<_>>()
                .join(" ")
        });
        each.collect()
    }

    #[test]
    fn what_is_advised_is_not_refused_next() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        Notes::at(state, Device::Tun).write(&Known {
            seen: vec![seen(3.15)],
            refused: None,
        });
        let start = |words: &str| {
            let known = || Notes::at(state, Device::Tun).read(Timestamp::now());
            check_by(&said(words), Device::Tun, known, host(&[3.0])).1
        };
        let live = |words: &str| check_live(&link("1Mbit"), &said(words), Device::Tun, state);
        for (words, hints) in [
            // Memory would hold 7 Mbit/s, and no host 1 Tbit/s.
            ("--delay 600s --rate 1Tbit", &["--rate 2.3Mbit"][..]),
            ("--delay 100ms --rate 1Tbit", &["--rate 3.1Gbit"]),
            // A queue that was named stays as long as it is.
            (
                "--delay 1s --rate 1Tbit --queue 500MB",
                &["B with --rate 3.1Gbit"],
            ),
            (
                "--delay 2s --rate 3Gbit --queue 15kB",
                &["--delay 1.431s", "--rate 2.1Gbit"],
            ),
            (
                "--delay 2s --rate 1Tbit --queue 15kB",
                &["--delay 1.385s with --rate 3.1Gbit", "--rate 2.1Gbit"],
            ),
            (
                "--rate 1Mbit --rate-back 1Tbit",
                &["use --rate-back 3.1Gbit"],
            ),
            ("--rate 1Tbit --rate-back 1Mbit", &["use --rate 3.1Gbit"]),
            (
                "--rate 500Gbit --rate-back 1Tbit --delay 3s",
                &["--rate 470Mbit --rate-back 470Mbit"],
            ),
            (
                "--rate 1Gbit --delay 1s --jitter 10s,exponential",
                &["--rate 20Mbit"],
            ),
        ] {
            for check in [&start as &dyn Fn(&str) -> _, &live] {
                let refusal: Result<(), Refusal> = check(words);
                let text = refusal.unwrap_err().to_string();
                for hint in hints {
                    assert!(text.contains(hint), "{words}: {text}");
                }
                let advised = advised(words, &text);
                assert!(advised.len() >= hints.len(), "{words}: {text}");
                for other in advised {
                    assert_eq!(check(&other), Ok(()), "{words}: {other}: {text}");
                }
            }
        }
    }

    #[test]
    fn a_recorded_line_is_as_fast_as_it_is_for_a_second() {
        // 200 Mbit/s in one second of ten; the last opportunity and the next first are at once.
        let times = (0..10_000).filter(|at| *at < 1_000 || *at == 9_999);
        let times = times.flat_map(|at| (0..17).map(move |_| format!("{at}\n")));
        let trace = emulate::DeliveryTrace::parse_mahimahi(&times.collect::<String>()).unwrap();
        assert!(trace.mean_rate() < UNASKED);
        let recorded = DirectionConfig {
            line: Line::Trace(trace.into()),
            ..DirectionConfig::default()
        };
        assert_eq!(fastest(&recorded), Some(rate("204204kbit")));
    }

    #[test]
    fn rates_are_rounded_down_to_two_digits() {
        for (from, to) in [(3_199_999_999, 3_100_000_000), (7, 7), (0, 0), (99, 99)] {
            let rounded = rounded_down(Bitrate::from_bits_per_second(from));
            assert_eq!(rounded.bits_per_second(), to);
        }
    }

    #[test]
    fn slow_links_are_never_asked_about() {
        let environment = Environment {
            program: PathBuf::from("/nonexistent"),
            arguments: Vec::new(),
            user_namespace: crate::rootless::Inside::No,
        };
        let nowhere = Path::new("/nonexistent");
        let checked = check(&link("100Mbit"), Device::Tun, &environment, nowhere);
        assert_eq!(checked, Ok(()));
    }

    #[test]
    fn where_no_device_can_be_made_the_models_are_asked_once() {
        let environment = Environment {
            program: PathBuf::from("/nonexistent"),
            arguments: Vec::new(),
            user_namespace: crate::rootless::Inside::No,
        };
        let mut prober = Prober {
            environment: &environment,
            device: Device::Tun,
            stand: None,
            models: OnceCell::from(5e9),
        };
        assert!(!prober.look(rate("6Gbit")).is_kept);
        let look = prober.look(rate("5Gbit"));
        assert!(look.is_kept);
        assert_eq!(look.by, By::Models);
    }
}
