//! Notes about a host between runs: the capacity that was observed, and the rate that was refused.
//!
//! A note counts for the very host that it was made on, as far as the kernel's release, the
//! processors, the host's name and the program's version tell. A permission may rest on a note,
//! a refusal never does; but a rate that was refused a while ago is let through only by several
//! probes in a row, so that a host at its limit does not answer differently each time it is asked
//! (docs/formats/certificate.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::Bitrate;

use super::super::certificate::{CalibrationCertificate, FILE_NAME};
use super::super::measuring_host::MeasuringHost;
use super::super::stand::DeviceKind;
use super::{CapacitySource, ObservedCapacity};
use host::machine::MachineInfo;

/// The version of a note.
const FORMAT_VERSION: u32 = 2;

/// Validity of a probe that carried a rate: a host seldom changes within weeks, and a link that it
/// does not hold after all reports that.
const SEEN_LASTS: Duration = Duration::from_secs(30 * 86_400);

/// Validity of a refusal.
const REFUSED_LASTS: Duration = Duration::from_secs(3_600);

/// A rate that was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RefusedRate {
    /// The lowest.
    pub(super) rate: Bitrate,
    /// Time of the first refusal (RFC 3339).
    pub(super) date: String,
}

/// Knowledge about this host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KnownCapacity {
    /// Observed capacities.
    pub(super) seen: Vec<ObservedCapacity>,
    /// Rate that was refused within the hour.
    pub(super) refused: Option<RefusedRate>,
}

impl KnownCapacity {
    /// The most that was seen to be carried.
    pub(super) fn most(&self) -> Bitrate {
        let rates = self.seen.iter().map(|seen| seen.rate);
        rates.max().unwrap_or_default()
    }
}

/// Files of the notes.
pub(super) struct NoteFiles {
    certificate: PathBuf,
    probe: PathBuf,
    device: DeviceKind,
    host: HostIdentity,
}

/// Properties that distinguish one host from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HostIdentity {
    name: String,
    kernel: String,
    processor_model: String,
    processors: usize,
    trunkline: String,
}

/// A note as it is written.
#[derive(Serialize, Deserialize)]
struct CapacityNote {
    format_version: u32,
    host: HostIdentity,
    seen: Option<ObservedCapacity>,
    refused: Option<RefusedRate>,
}

impl HostIdentity {
    fn of_this() -> Self {
        let machine = MachineInfo::describe(&[]);
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            name: name.trim().to_owned(),
            kernel: machine.kernel,
            processor_model: machine.processor_model,
            processors: machine.processors,
            trunkline: machine.trunkline,
        }
    }

    /// A certificate does not name its host.
    fn certified(&self, host: &MeasuringHost) -> bool {
        host.kernel == self.kernel
            && host.processor_model == self.processor_model
            && host.processors == self.processors
            && host.trunkline == self.trunkline
    }
}

impl NoteFiles {
    pub(super) fn at(state: &Path, device: DeviceKind) -> Self {
        Self {
            certificate: state.join(FILE_NAME),
            probe: state.join(format!("emulator-probe-{}.json", device.name())),
            device,
            host: HostIdentity::of_this(),
        }
    }

    /// Reads the notes about this host. A note that cannot be read is ignored: the next probe makes
    /// a new one.
    pub(super) fn read(&self, now: Timestamp) -> KnownCapacity {
        let certified = CalibrationCertificate::read(&self.certificate)
            .ok()
            .filter(|certificate| {
                certificate.device == self.device && self.host.certified(&certificate.host)
            })
            .and_then(|certificate| {
                Some(ObservedCapacity {
                    rate: Bitrate::from_bits_per_second(
                        (certificate.capacity?.line_gbit_s * 1e9) as u64,
                    ),
                    date: certificate.date,
                    by: CapacitySource::Certificate,
                    probes: 1,
                })
            });
        let note = fs::read_to_string(&self.probe)
            .ok()
            .and_then(|text| serde_json::from_str::<CapacityNote>(&text).ok())
            .filter(|note| note.format_version == FORMAT_VERSION && note.host == self.host);
        let (seen, refused) = note.map_or((None, None), |note| (note.seen, note.refused));
        let seen = seen.filter(|seen| is_within(SEEN_LASTS, &seen.date, now));
        KnownCapacity {
            seen: certified.into_iter().chain(seen).collect(),
            refused: refused.filter(|refused| is_within(REFUSED_LASTS, &refused.date, now)),
        }
    }

    /// Writes the notes. A disk that refuses them costs one probe at the next start and nothing
    /// else.
    pub(super) fn write(&self, known: &KnownCapacity) {
        let probed = known
            .seen
            .iter()
            .filter(|seen| seen.by != CapacitySource::Certificate);
        let note = CapacityNote {
            format_version: FORMAT_VERSION,
            host: self.host.clone(),
            seen: probed.max_by_key(|seen| seen.rate).cloned(),
            refused: known.refused.clone(),
        };
        let write = || -> Result<()> {
            let folder = self.probe.parent().context("a note has a folder")?;
            fs::create_dir_all(folder)?;
            // Two links may start at once: whoever reads sees one note or the other, whole.
            let beside = self
                .probe
                .with_extension(format!("json.{}", std::process::id()));
            fs::write(&beside, serde_json::to_string(&note)? + "\n")?;
            fs::rename(&beside, &self.probe).inspect_err(|_| drop(fs::remove_file(&beside)))?;
            Ok(())
        };
        if let Err(error) = write() {
            tracing::debug!(error = format!("{error:#}"), "the probe is not remembered");
        }
    }
}

/// Tells whether a date is at most this far from now; a date in the future comes from a clock that
/// was set back.
fn is_within(span: Duration, date: &str, now: Timestamp) -> bool {
    date.parse::<Timestamp>()
        .is_ok_and(|date| date.duration_until(now).unsigned_abs() <= span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn known(gigabits: u64) -> KnownCapacity {
        KnownCapacity {
            seen: vec![ObservedCapacity {
                rate: Bitrate::from_bits_per_second(gigabits * 1_000_000_000),
                date: "2026-11-21T12:00:00Z".to_owned(),
                by: CapacitySource::Probe,
                probes: 3,
            }],
            refused: Some(RefusedRate {
                rate: Bitrate::from_bits_per_second(gigabits * 2_000_000_000),
                date: "2026-11-21T12:00:00Z".to_owned(),
            }),
        }
    }

    #[test]
    fn note_counts_for_its_host_device_and_period() {
        let folder = tempfile::tempdir().unwrap();
        let notes = NoteFiles::at(folder.path(), DeviceKind::Tun);
        let soon = time("2026-11-21T12:59:00Z");
        assert_eq!(notes.read(soon), KnownCapacity::default());
        notes.write(&known(2));
        assert_eq!(notes.read(soon), known(2));
        let read = notes.read(time("2026-11-21T13:01:00Z"));
        assert_eq!((read.seen, read.refused), (known(2).seen, None));
        assert_eq!(
            notes.read(time("2026-12-22T12:00:00Z")),
            KnownCapacity::default()
        );
        assert_eq!(
            NoteFiles::at(folder.path(), DeviceKind::Xdp).read(soon),
            KnownCapacity::default()
        );
        for change in [
            |host: &mut HostIdentity| host.kernel.push('x'),
            |host: &mut HostIdentity| host.name.push('x'),
            |host: &mut HostIdentity| host.processors += 1,
        ] {
            let mut other = NoteFiles::at(folder.path(), DeviceKind::Tun);
            change(&mut other.host);
            assert_eq!(other.read(soon), KnownCapacity::default());
        }
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        fs::write(&notes.probe, "nonsense").unwrap();
        assert_eq!(notes.read(soon), KnownCapacity::default());
    }

    #[test]
    fn certificate_counts_only_on_its_own_host() {
        let folder = tempfile::tempdir().unwrap();
        let notes = NoteFiles::at(folder.path(), DeviceKind::Tun);
        let now = Timestamp::now();
        let mut certificate = super::super::super::certificate::tests::sample();
        certificate.write(&notes.certificate).unwrap();
        assert_eq!(notes.read(now), KnownCapacity::default());
        let machine = MachineInfo::describe(&[]);
        certificate.host.kernel = machine.kernel;
        certificate.host.processor_model = machine.processor_model;
        certificate.host.processors = machine.processors;
        certificate.host.trunkline = machine.trunkline;
        certificate.write(&notes.certificate).unwrap();
        let seen = notes.read(now).seen;
        assert_eq!(seen[0].by, CapacitySource::Certificate);
        assert_eq!(seen[0].rate, Bitrate::from_bits_per_second(3_500_000_000));
    }
}
