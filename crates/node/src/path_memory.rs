//! The measured properties of the paths to the peers, kept over restarts in `paths.json` in the
//! state directory.
//!
//! ```text
//!  start: file ─► known ─► engine (starts from it)      measured ─► known ─► file, a moment later
//! ```
//!
//! It saves a start-up phase on each path. Without it, or when it cannot be read, a session finds
//! its rate by itself. So no error here stops the node; errors are logged once. The format is
//! described in docs/formats/path-memory.md.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tunnel::congestion::RememberedPath;
use vocab::{Bitrate, NodeId};

use crate::private_directory::write_durably;

/// The format version of this node. A file of another version is not read.
const VERSION: u32 = 1;

/// The greatest age of a measurement. After that time contracts, routes and competing traffic may
/// have changed. The congestion control checks the round trip before it trusts the rate, whatever
/// its age.
const AGE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The least change that causes a new write, in per cent ...
const CHANGE_PERCENT: u64 = 5;
/// ... but for its time, now and then.
const STAMP_EVERY: Duration = Duration::from_secs(3_600);

/// Peers in the file, and bytes of it that are read, at most: some 150 for each peer.
const PATHS_MAX: usize = 10_000;
const FILE_MAX: u64 = 4 << 20;

/// The limits of a plausible path: the rate of the fastest interfaces, and the round trip to the
/// moon and back.
const RATE_MAX_BIT_S: u64 = 400_000_000_000;
const RTT_MAX: Duration = Duration::from_secs(3);

/// The reason why the file cannot be used.
#[derive(Debug, Error)]
enum MemoryError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is {0} bytes long, and the limit is {FILE_MAX}")]
    TooLong(u64),
    #[error("it is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error("it has version {0}, and this node reads version {VERSION}")]
    Version(u32),
    #[error("it names {0} paths, and the limit is {PATHS_MAX}")]
    TooMany(usize),
    #[error("it contains impossible values for a path: {rate_bit_s} bit/s and {rtt_us} µs")]
    Impossible { rate_bit_s: u64, rtt_us: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredPath {
    peer: NodeId,
    rate_bit_s: u64,
    rtt_us: u64,
    measured_unix_s: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct PathFile {
    version: u32,
    paths: Vec<MeasuredPath>,
}

/// The version, which is read first, so that other content of another version is ignored.
#[derive(Debug, Deserialize)]
struct FileVersion {
    version: u32,
}

/// The known properties of the paths to the peers.
#[derive(Debug)]
pub(crate) struct PathMemory {
    file: PathBuf,
    paths: BTreeMap<NodeId, MeasuredPath>,
    has_news: bool,
}

impl PathMemory {
    /// Loads the properties from the last run that are recent enough at `now`.
    pub(crate) fn load(state_directory: &Path, now: SystemTime) -> Self {
        let file = state_directory.join("paths.json");
        let paths = read(&file).unwrap_or_else(|error| {
            tracing::warn!(
                path = %file.display(),
                %error,
                "the file with the measured paths cannot be used; the node measures the paths to its peers \
                 again and replaces the file"
            );
            Vec::new()
        });
        let now = unix_seconds(now);
        // A clock that was set back makes a time to come, of which nothing can be told.
        let is_fresh = |measured: &MeasuredPath| {
            now.checked_sub(measured.measured_unix_s)
                .is_some_and(|age| age <= AGE_MAX.as_secs())
        };
        let fresh = paths.into_iter().filter(is_fresh);
        Self {
            file,
            paths: fresh.map(|measured| (measured.peer, measured)).collect(),
            has_news: false,
        }
    }

    /// The properties that a session with this peer may start from.
    pub(crate) fn of(&self, peer: NodeId) -> Option<RememberedPath> {
        let measured = self.paths.get(&peer)?;
        Some(RememberedPath {
            rate: Bitrate::from_bits_per_second(measured.rate_bit_s),
            rtt: Duration::from_micros(measured.rtt_us),
        })
    }

    /// The path to a peer is like this at `now`.
    pub(crate) fn note(&mut self, now: SystemTime, peer: NodeId, path: RememberedPath) {
        let measured = MeasuredPath {
            peer,
            rate_bit_s: path.rate.bits_per_second(),
            rtt_us: u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX),
            measured_unix_s: unix_seconds(now),
        };
        let known = self.paths.get(&peer);
        let is_new = known.map_or(self.paths.len() < PATHS_MAX, |known| {
            is_change(known.rate_bit_s, measured.rate_bit_s)
                || is_change(known.rtt_us, measured.rtt_us)
                || measured.measured_unix_s.abs_diff(known.measured_unix_s) >= STAMP_EVERY.as_secs()
        });
        if is_new && is_possible(&measured) {
            self.paths.insert(peer, measured);
            self.has_news = true;
        }
    }

    /// Forgets the nodes that are no longer peers.
    pub(crate) fn retain(&mut self, is_peer: impl Fn(&NodeId) -> bool) {
        let before = self.paths.len();
        self.paths.retain(|peer, _| is_peer(peer));
        self.has_news |= self.paths.len() != before;
    }

    /// Returns the content to write now, if it has changed. The caller writes it where waiting for
    /// a disk blocks nothing else.
    pub(crate) fn take_news(&mut self) -> Option<PathFileUpdate> {
        if !std::mem::take(&mut self.has_news) {
            return None;
        }
        let file = PathFile {
            version: VERSION,
            paths: self.paths.values().copied().collect(),
        };
        let text = serde_json::to_string_pretty(&file).expect("it is plain data");
        Some(PathFileUpdate {
            file: self.file.clone(),
            text,
        })
    }
}

/// A content for the file.
#[derive(Debug)]
pub(crate) struct PathFileUpdate {
    file: PathBuf,
    text: String,
}

impl PathFileUpdate {
    /// Replaces the file, as a whole or not at all.
    pub(crate) fn write(&self) {
        if let Err(error) = write_durably(&self.file, self.text.as_bytes()) {
            tracing::warn!(
                path = %self.file.display(),
                %error,
                "the measured paths to the peers could not be saved; after a restart the node measures them again"
            );
        }
    }
}

fn read(file: &Path) -> Result<Vec<MeasuredPath>, MemoryError> {
    let length = match fs::metadata(file) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if length > FILE_MAX {
        return Err(MemoryError::TooLong(length));
    }
    let text = fs::read(file)?;
    let FileVersion { version } = serde_json::from_slice(&text)?;
    if version != VERSION {
        return Err(MemoryError::Version(version));
    }
    let PathFile { paths, .. } = serde_json::from_slice(&text)?;
    if paths.len() > PATHS_MAX {
        return Err(MemoryError::TooMany(paths.len()));
    }
    if let Some(wrong) = paths.iter().find(|measured| !is_possible(measured)) {
        return Err(MemoryError::Impossible {
            rate_bit_s: wrong.rate_bit_s,
            rtt_us: wrong.rtt_us,
        });
    }
    Ok(paths)
}

fn is_change(known: u64, measured: u64) -> bool {
    u128::from(known.abs_diff(measured)) * 100 > u128::from(known) * u128::from(CHANGE_PERCENT)
}

fn is_possible(measured: &MeasuredPath) -> bool {
    (1..=RATE_MAX_BIT_S).contains(&measured.rate_bit_s)
        && (1..=RTT_MAX.as_micros()).contains(&measured.rtt_us.into())
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId([7; 32]);

    fn path() -> RememberedPath {
        RememberedPath {
            rate: Bitrate::from_bits_per_second(20_000_000),
            rtt: Duration::from_millis(100),
        }
    }

    fn at(unix_s: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s)
    }

    /// A state directory with a path that was measured at this time.
    fn measured(unix_s: u64) -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        let mut memory = PathMemory::load(state.path(), at(unix_s));
        assert_eq!(memory.of(PEER), None);
        memory.note(at(unix_s), PEER, path());
        memory.take_news().unwrap().write();
        state
    }

    #[test]
    fn a_restarted_node_knows_the_path() {
        let state = measured(1_000_000);
        let mut memory = PathMemory::load(state.path(), at(1_000_060));
        assert_eq!(memory.of(PEER), Some(path()));
        assert!(memory.take_news().is_none(), "nothing is new");
        memory.retain(|_| false);
        memory.take_news().unwrap().write();
        assert_eq!(PathMemory::load(state.path(), at(1_000_061)).of(PEER), None);
        let left: Vec<_> = fs::read_dir(state.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "no temporary file: {left:?}");
    }

    #[test]
    fn too_old_and_future_paths_are_forgotten() {
        let state = measured(1_000_000);
        let of = |unix_s| PathMemory::load(state.path(), at(unix_s)).of(PEER);
        assert!(of(1_000_000 + AGE_MAX.as_secs()).is_some());
        assert!(of(1_000_001 + AGE_MAX.as_secs()).is_none());
        assert!(of(999_999).is_none());
    }

    /// Kept for ever, as version 1 was first written.
    #[test]
    fn the_first_version_is_read() {
        let state = tempfile::tempdir().unwrap();
        let text = include_bytes!("../testdata/paths-1.json");
        fs::write(state.path().join("paths.json"), text).unwrap();
        let memory = PathMemory::load(state.path(), at(1_790_000_000));
        assert_eq!(memory.of(PEER), Some(path()));
    }

    #[test]
    fn invalid_path_file_is_ignored_and_replaced() {
        let good = fs::read_to_string(measured(1_000_000).path().join("paths.json")).unwrap();
        let nobody = r#"{"version":1,"paths":[{"peer":"x"}]}"#.to_owned();
        let wrong = [
            String::new(),
            good[..good.len() / 2].to_owned(),
            good.replace("\"version\": 1", "\"version\": 2"),
            good.replace("20000000", "0"),
            good.replace("20000000", "20000000000000"),
            good.replace("100000", "3000001"),
            good.replace("100000", "-1"),
            nobody,
            "[]".to_owned(),
        ];
        for text in wrong {
            assert_ne!(text, good);
            let state = tempfile::tempdir().unwrap();
            let file = state.path().join("paths.json");
            fs::write(&file, &text).unwrap();
            assert!(read(&file).is_err(), "{text}");
            let mut memory = PathMemory::load(state.path(), at(1_000_001));
            assert_eq!(memory.of(PEER), None, "{text}");
            memory.note(at(1_000_001), PEER, path());
            memory.take_news().unwrap().write();
            let again = PathMemory::load(state.path(), at(1_000_002));
            assert_eq!(again.of(PEER), Some(path()));
        }
    }

    #[test]
    fn unchanged_path_is_written_once_an_hour() {
        let state = measured(1_000_000);
        let mut memory = PathMemory::load(state.path(), at(1_000_000));
        let mut note = |unix_s, rate| {
            let rate = Bitrate::from_bits_per_second(rate);
            memory.note(at(unix_s), PEER, RememberedPath { rate, ..path() });
            memory.take_news().is_some()
        };
        assert!(!note(1_000_060, 20_900_000));
        assert!(note(1_000_120, 21_100_000));
        assert!(!note(1_003_719, 21_100_000));
        assert!(note(1_003_720, 21_100_000));
    }

    #[test]
    fn impossible_values_are_not_recorded() {
        let state = tempfile::tempdir().unwrap();
        let mut memory = PathMemory::load(state.path(), at(1_000_000));
        for (rate, rtt) in [(0, 100), (20_000_000, 0), (20_000_000, 4_000)] {
            let rate = Bitrate::from_bits_per_second(rate);
            let rtt = Duration::from_millis(rtt);
            memory.note(at(1_000_000), PEER, RememberedPath { rate, rtt });
        }
        assert!(memory.take_news().is_none());
    }
}
