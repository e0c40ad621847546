//! Whether this host can hold a setting, asked before a link is started with it.
//!
//! A rate above [`UNASKED`] is compared with what this host has been seen to carry: by a
//! certificate of this very host (same kernel, processors and program), or, without one, by a
//! probe of less than a second, which is remembered. A probe is only an instant of a host that may
//! have been busy, so nothing is refused before a second probe has failed to carry it too, and the
//! best that was ever seen counts. What a direction would hold in memory follows from the setting
//! alone.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use emulate::{Direction, DirectionConfig, HELD_BYTES_MAX, LinkConfig};
use serde::{Deserialize, Serialize};
use vocab::{Bitrate, ByteCount, Time, format_duration};

use super::certificate::{Certificate, FILE_NAME};
use super::host::Host;
use super::stand::{Device, Stand};
use super::{capacity, now};
use crate::Environment;
use crate::host::Machine;

/// Rates up to this are held by whatever runs this program, so that no slow link waits for a
/// probe.
pub const UNASKED: Bitrate = Bitrate::from_bits_per_second(100_000_000);

/// How long the models alone are looked at where no device can be made.
const MODEL_SPAN: Duration = Duration::from_millis(100);

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
    },
    /// More under way, or waiting, than a direction holds.
    Memory {
        /// Which direction.
        way: &'static str,
        /// Under way at once at this rate and delay.
        under_way: ByteCount,
        /// What the queue may hold.
        queue: ByteCount,
        /// The setting to change and what would work.
        nearest: String,
    },
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Rate {
                asked,
                seen,
                device,
            } => write!(
                out,
                "{asked} asked; this host carries {} ({} {}, {}); use --rate {}, or leave the rate out for as fast as the host goes",
                rounded_down(seen.rate),
                match seen.by {
                    By::Certificate | By::Probe => format!("over {device}, measured"),
                    By::Models => "in the link's models alone, measured".to_owned(),
                },
                seen.date,
                match seen.by {
                    By::Certificate => "by its certificate",
                    By::Probe | By::Models => "by a probe",
                },
                rounded_down(seen.rate)
            ),
            Refusal::Memory {
                way,
                under_way,
                queue,
                nearest,
            } => write!(
                out,
                "{way}, {under_way} would be under way and up to {queue} in the queue, and a direction holds {HELD_BYTES_MAX}; {nearest}"
            ),
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

/// Says whether this host can hold the link; `state` is where certificates and probes are kept.
///
/// # Errors
/// What cannot be held, what was measured, and the nearest that would work.
pub fn check(
    config: &LinkConfig,
    device: Device,
    environment: &Environment,
    state: &Path,
) -> Result<(), Refusal> {
    check_memory("forward", &config.forward)?;
    check_memory("back", &config.back)?;
    let asked = [&config.forward, &config.back]
        .into_iter()
        .filter_map(fastest)
        .max()
        .unwrap_or_default();
    if asked <= UNASKED {
        return Ok(());
    }
    let notes = Notes::at(state, device);
    judge(asked, device, notes.read(), || {
        let seen = probe(environment, device, asked);
        notes.write(&seen);
        seen
    })
}

/// Compares with what is known, and looks again before it refuses.
fn judge(
    asked: Bitrate,
    device: Device,
    known: Vec<Seen>,
    mut probe: impl FnMut() -> Seen,
) -> Result<(), Refusal> {
    let mut best: Option<Seen> = None;
    let mut holds = |seen: Seen| {
        let enough = seen.rate >= asked;
        if best.as_ref().is_none_or(|best| seen.rate > best.rate) {
            best = Some(seen);
        }
        enough
    };
    for seen in known {
        if holds(seen) {
            return Ok(());
        }
    }
    for _ in 0..2 {
        if holds(probe()) {
            return Ok(());
        }
    }
    match best {
        Some(seen) => Err(Refusal::Rate {
            asked,
            seen,
            device,
        }),
        None => Ok(()),
    }
}

/// The fastest that a direction will ever be: its line, or what its schedule makes of it.
fn fastest(direction: &DirectionConfig) -> Option<Bitrate> {
    let scheduled = direction
        .schedule
        .iter()
        .flat_map(|schedule| schedule.steps().iter().filter_map(|step| step.change.rate));
    direction.line.rate().into_iter().chain(scheduled).max()
}

fn check_memory(way: &'static str, direction: &DirectionConfig) -> Result<(), Refusal> {
    let Some(rate) = direction.line.rate() else {
        // Without a rate nothing waits, and what is under way is the sender's choice.
        return Ok(());
    };
    let most = HELD_BYTES_MAX.bytes();
    let under_way = rate.bytes_in(direction.delay).bytes();
    let limit = direction.queue.limit;
    let in_bytes = [
        limit.bytes.map(ByteCount::bytes),
        limit
            .packets
            .map(|packets| packets.saturating_mul(FULL_PACKET)),
        limit.time.map(|time| rate.bytes_in(time).bytes()),
    ];
    // Each limit that is set holds, so the smallest is the queue's.
    let queue = in_bytes.into_iter().flatten().min().unwrap_or_default();
    if under_way.saturating_add(queue) <= most {
        return Ok(());
    }
    let nearest = match most.checked_sub(under_way) {
        Some(room) if room >= FULL_PACKET => format!("use --queue {}B", room),
        _ => {
            let (most, under_way, queue) = (most as f64, under_way as f64, queue as f64);
            // A queue that nobody named grows with rate and delay, one that was named does not;
            // what is advised works with either.
            let grows = most / (under_way + queue);
            let stays = (most - queue) / under_way;
            let factor = if stays > 0.0 { grows.min(stays) } else { grows };
            let milliseconds = direction.delay.as_secs_f64() * factor * 1e3;
            let bits = rate.bits_per_second() as f64 * factor;
            format!(
                "use --delay {} or --rate {}",
                format_duration(Duration::from_millis(milliseconds as u64)),
                rounded_down(Bitrate::from_bits_per_second(bits as u64))
            )
        }
    };
    Err(Refusal::Memory {
        way,
        under_way: ByteCount::new(under_way),
        queue: ByteCount::new(queue),
        nearest,
    })
}

/// To two digits, so that it can be typed and is not above what was seen.
fn rounded_down(rate: Bitrate) -> Bitrate {
    let bits = rate.bits_per_second();
    let digits = bits.checked_ilog10().unwrap_or_default();
    let step = 10_u64.pow(digits.saturating_sub(1));
    Bitrate::from_bits_per_second(bits / step * step)
}

/// Looks at what comes through a line of the rate that is asked for, over devices of the same kind,
/// or, where none can be made, through the models.
fn probe(environment: &Environment, device: Device, asked: Bitrate) -> Seen {
    let over_devices = || -> Result<f64> {
        let mut stand = Stand::create(environment, device)?;
        let came = capacity::through_a_line(&mut stand, asked)?;
        // A line that was kept is kept, though its ends were not stamped to the bit.
        if capacity::is_kept(asked, came) {
            return Ok(came.max(asked.bits_per_second() as f64));
        }
        Ok(came)
    };
    let (bits, by) = match over_devices() {
        Ok(bits) => (bits, By::Probe),
        Err(error) => {
            tracing::debug!(
                error = format!("{error:#}"),
                "no devices to probe with; looking at the models alone"
            );
            (models(), By::Models)
        }
    };
    Seen {
        rate: Bitrate::from_bits_per_second(bits as u64),
        date: now(),
        by,
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

/// What is remembered between runs.
struct Notes {
    certificate: PathBuf,
    probe: PathBuf,
    device: Device,
    machine: Machine,
}

/// A probe as it is remembered.
#[derive(Serialize, Deserialize)]
struct Remembered {
    kernel: String,
    processor_model: String,
    processors: usize,
    trunkline: String,
    seen: Seen,
}

impl Notes {
    fn at(state: &Path, device: Device) -> Self {
        Self {
            certificate: state.join(FILE_NAME),
            probe: state.join(format!("emulator-probe-{}.json", device.name())),
            device,
            machine: Machine::describe(&[]),
        }
    }

    /// What is known of this very host. A note that cannot be read is as good as none: the probe
    /// makes a new one.
    fn read(&self) -> Vec<Seen> {
        let certified = Certificate::read(&self.certificate)
            .ok()
            .filter(|certificate| {
                certificate.device == self.device && self.is_of_this(&certificate.host)
            })
            .and_then(|certificate| {
                Some(Seen {
                    rate: Bitrate::from_bits_per_second(
                        (certificate.capacity?.line_gbit_s * 1e9) as u64,
                    ),
                    date: certificate.date,
                    by: By::Certificate,
                })
            });
        let probed = fs::read_to_string(&self.probe)
            .ok()
            .and_then(|text| serde_json::from_str::<Remembered>(&text).ok())
            .filter(|note| {
                note.kernel == self.machine.kernel
                    && note.processor_model == self.machine.processor_model
                    && note.processors == self.machine.processors
                    && note.trunkline == self.machine.trunkline
            })
            .map(|note| note.seen);
        certified.into_iter().chain(probed).collect()
    }

    fn is_of_this(&self, host: &Host) -> bool {
        host.kernel == self.machine.kernel
            && host.processor_model == self.machine.processor_model
            && host.processors == self.machine.processors
            && host.trunkline == self.machine.trunkline
    }

    /// Remembers the better of two probes. A disk that takes no note costs a probe at the next
    /// start and nothing else.
    fn write(&self, seen: &Seen) {
        let better = self
            .read()
            .iter()
            .any(|known| known.by != By::Certificate && known.rate >= seen.rate);
        if better {
            return;
        }
        let note = Remembered {
            kernel: self.machine.kernel.clone(),
            processor_model: self.machine.processor_model.clone(),
            processors: self.machine.processors,
            trunkline: self.machine.trunkline.clone(),
            seen: seen.clone(),
        };
        let write = || -> Result<()> {
            let folder = self.probe.parent().context("a note has a folder")?;
            fs::create_dir_all(folder)?;
            fs::write(&self.probe, serde_json::to_string(&note)? + "\n")?;
            Ok(())
        };
        if let Err(error) = write() {
            tracing::debug!(error = format!("{error:#}"), "the probe is not remembered");
        }
    }
}

#[cfg(test)]
mod tests {
    use emulate::{Line, Queue, QueueLimit};

    use super::*;

    fn seen(gigabits: f64) -> Seen {
        Seen {
            rate: Bitrate::from_bits_per_second((gigabits * 1e9) as u64),
            date: "2026-11-21T12:00:00Z".to_owned(),
            by: By::Probe,
        }
    }

    fn rate(text: &str) -> Bitrate {
        text.parse().unwrap()
    }

    fn direction(rate: &str, delay: Duration, queue: Queue) -> DirectionConfig {
        DirectionConfig {
            line: Line::Rate(rate.parse().unwrap()),
            delay,
            queue,
            ..DirectionConfig::default()
        }
    }

    #[test]
    fn what_is_known_to_be_held_is_not_probed() {
        let known = vec![seen(1.0), seen(3.0)];
        let judged = judge(rate("2Gbit"), Device::Tun, known, || panic!("probed"));
        assert_eq!(judged, Ok(()));
    }

    #[test]
    fn a_refusal_names_the_best_that_was_seen_and_what_would_work() {
        let mut probes = vec![seen(2.0), seen(3.16)];
        let judged = judge(rate("10Gbit"), Device::Tun, vec![seen(1.0)], || {
            probes.pop().unwrap()
        });
        let text = judged.unwrap_err().to_string();
        assert!(text.contains("10Gbit asked"), "{text}");
        assert!(text.contains("--rate 3.1Gbit"), "{text}");
        assert!(probes.is_empty());
    }

    #[test]
    fn one_busy_instant_refuses_nothing() {
        let mut probes = vec![seen(3.0), seen(0.5)];
        let judged = judge(rate("2Gbit"), Device::Tun, vec![seen(1.0)], || {
            probes.pop().unwrap()
        });
        assert_eq!(judged, Ok(()));
    }

    #[test]
    fn more_than_a_direction_holds_is_refused_with_the_nearest() {
        let queue = |bytes| Queue::from(ByteCount::new(bytes));
        let second = Duration::from_secs(1);
        let fits = direction("1Gbit", second, queue(125_000_000));
        assert_eq!(check_memory("forward", &fits), Ok(()));
        let queue_too_long = direction("1Gbit", second, queue(500_000_000));
        let text = check_memory("forward", &queue_too_long)
            .unwrap_err()
            .to_string();
        assert!(text.contains("--queue 411870912B"), "{text}");
        let too_long = direction("10Gbit", second, queue(15_000));
        let text = check_memory("back", &too_long).unwrap_err().to_string();
        assert!(text.contains("--delay 429ms"), "{text}");
        assert!(text.contains("--rate 4.2Gbit"), "{text}");
        // What the text advises is accepted.
        let nearest = direction("4.2Gbit", second, queue(15_000));
        assert_eq!(check_memory("back", &nearest), Ok(()));
        let nearest = direction("10Gbit", Duration::from_millis(429), queue(15_000));
        assert_eq!(check_memory("back", &nearest), Ok(()));
        // So it is where the queue is the default, a round trip of the line.
        let text = check_memory(
            "back",
            &direction("1Gbit", 10 * second, queue(2_500_000_000)),
        )
        .unwrap_err()
        .to_string();
        assert!(text.contains("--rate 140Mbit"), "{text}");
        let nearest = direction("140Mbit", 10 * second, queue(350_000_000));
        assert_eq!(check_memory("back", &nearest), Ok(()));
    }

    #[test]
    fn queues_in_packets_and_in_time_count_as_bytes() {
        let second = Duration::from_secs(1);
        let packets = Queue::from(QueueLimit::packets(400_000));
        assert!(check_memory("forward", &direction("1Gbit", second, packets)).is_err());
        let time = Queue::from(QueueLimit::time(Duration::from_secs(4)));
        assert!(check_memory("forward", &direction("1Gbit", second, time)).is_err());
        let both = Queue::from(QueueLimit {
            bytes: Some(ByteCount::new(15_000)),
            packets: Some(400_000),
            time: None,
        });
        assert_eq!(
            check_memory("forward", &direction("1Gbit", second, both)),
            Ok(())
        );
    }

    #[test]
    fn a_probe_is_remembered_for_this_host_only_and_the_best_stays() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::at(folder.path(), Device::Tun);
        assert_eq!(notes.read(), []);
        notes.write(&seen(2.0));
        notes.write(&seen(1.0));
        assert_eq!(notes.read(), [seen(2.0)]);
        let mut other = Notes::at(folder.path(), Device::Tun);
        other.machine.kernel.push('x');
        assert_eq!(other.read(), []);
        assert_eq!(Notes::at(folder.path(), Device::Xdp).read(), []);
        fs::write(&notes.probe, "nonsense").unwrap();
        assert_eq!(notes.read(), []);
    }

    #[test]
    fn a_certificate_of_this_host_counts_and_one_of_another_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::at(folder.path(), Device::Tun);
        let mut certificate = super::super::certificate::tests::sample();
        certificate.write(&notes.certificate).unwrap();
        assert_eq!(notes.read(), []);
        let machine = Machine::describe(&[]);
        certificate.host.kernel = machine.kernel;
        certificate.host.processor_model = machine.processor_model;
        certificate.host.processors = machine.processors;
        certificate.host.trunkline = machine.trunkline;
        certificate.write(&notes.certificate).unwrap();
        let known = notes.read();
        assert_eq!(known[0].by, By::Certificate);
        assert_eq!(known[0].rate, rate("3.5Gbit"));
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
        let config = LinkConfig::symmetric(
            direction(
                "100Mbit",
                Duration::from_millis(20),
                Queue::from(ByteCount::new(500_000)),
            ),
            1,
        );
        let environment = Environment {
            program: PathBuf::from("/nonexistent"),
            arguments: Vec::new(),
            user_namespace: crate::rootless::Inside::No,
        };
        let nowhere = Path::new("/nonexistent");
        assert_eq!(check(&config, Device::Tun, &environment, nowhere), Ok(()));
    }
}
