//! The keytab of the services beside this node whose signed and encrypted Kerberos sessions it may
//! work on (`[credentials] keytab`).
//!
//! A person who has the file can impersonate those services. It is read again when it changes, so
//! that a service's new key is known before its old tickets expire. Existing flows keep the keys
//! that they began with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use accelerate::credentials::{Keytab, KeytabError};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::private_file::{self, FileStamp, PrivateFileError};
use crate::sys;

/// A longer file is taken for another one: 10,000 keys with long names fit.
const BYTES_MAX: u64 = 8 << 20;

/// The interval between checks of the file. Clients get tickets for a new key as soon as the domain
/// has it, while an administrator who renews a key writes the keytab first or at once.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The longest wait for a check. A network disk without its server can block a reader for any time,
/// and may hold another file afterwards.
const PATIENCE: Duration = Duration::from_secs(30);

/// The limit of simultaneous checks of one file, each in a thread of its own: the number that time
/// out within two minutes. Beyond it no check begins before one has ended.
pub(crate) const LOOKS_MAX: usize = 4;

/// The reason why the keytab cannot be used.
#[derive(Debug, Error)]
pub enum KeytabFileError {
    /// The file cannot be read, or others can.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The content is invalid.
    #[error("{}: {cause}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: KeytabError,
    },
}

/// Reads a keytab for this node.
///
/// # Errors
/// When the file cannot be read, is open to others, or holds no key that can be used.
pub(crate) fn load(path: &Path) -> Result<Keytab, KeytabFileError> {
    load_for(path, sys::user())
}

/// Reads a keytab for a node that runs as this user.
///
/// # Errors
/// When the file cannot be read, is open to others, or holds no key that can be used.
pub(crate) fn load_for(path: &Path, node: u32) -> Result<Keytab, KeytabFileError> {
    let bytes = private_file::read(path, "keytab under [credentials]", BYTES_MAX, node)?;
    Keytab::parse(&bytes).map_err(|cause| KeytabFileError::Content {
        path: path.to_owned(),
        cause,
    })
}

/// Looks whether the keytab is another one than it was.
#[derive(Clone, Debug)]
pub(crate) struct KeytabWatch {
    path: Option<PathBuf>,
    /// The stamp of the last file that was read and usable. It is `None` at first, because the file
    /// may have changed since the start.
    seen: Option<FileStamp>,
    /// The error of the last read.
    fault: Option<String>,
}

/// The keys of the file, if they are others than before, or why they cannot be used.
pub(crate) type KeytabChange = Option<Result<Arc<Keytab>, KeytabFileError>>;

impl KeytabWatch {
    /// Creates the watch of this file, if there is one.
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            seen: None,
            fault: None,
        }
    }

    /// Returns true if there is a file to watch.
    pub(crate) fn is_on(&self) -> bool {
        self.path.is_some()
    }

    /// Returns true if the two watch the same file.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.path == other.path
    }

    /// Checks the file, which may take as long as its disk does. An unusable file is reported once
    /// for each error, and read again at every check, because the error may be temporary.
    pub(crate) fn changed(&mut self, current: Option<&Keytab>) -> KeytabChange {
        self.changed_by(load, current)
    }

    fn changed_by(
        &mut self,
        load: impl FnOnce(&Path) -> Result<Keytab, KeytabFileError>,
        current: Option<&Keytab>,
    ) -> KeytabChange {
        let path = self.path.as_ref()?;
        let stamp = FileStamp::of(path);
        if stamp == self.seen && self.fault.is_none() {
            return None;
        }
        match load(path) {
            Ok(keytab) => {
                // Taken before the file was read: what changed meanwhile is read once more.
                self.seen = stamp;
                self.fault = None;
                (Some(&keytab) != current).then(|| Ok(Arc::new(keytab)))
            }
            Err(error) => {
                let text = error.to_string();
                let is_told = self.fault.replace(text.clone()) == Some(text);
                (!is_told).then_some(Err(error))
            }
        }
    }
}

/// The result of one check of the keytab.
#[derive(Debug)]
pub(crate) struct KeytabPollResult {
    pub(crate) watch: KeytabWatch,
    pub(crate) changed: KeytabChange,
}

/// The checks of one keytab in progress; only the last one's result counts.
#[derive(Debug, Default)]
pub(crate) struct KeytabPolls {
    last: Option<(Instant, oneshot::Receiver<KeytabPollResult>)>,
    /// A marker that each check in progress holds.
    running: Arc<()>,
}

impl KeytabPolls {
    /// Returns true if a new check may begin: the last check has ended, or its time has passed.
    pub(crate) fn may_begin(&self, now: Instant) -> bool {
        let is_awaited = self
            .last
            .as_ref()
            .is_some_and(|(since, _)| now.duration_since(*since) < PATIENCE);
        !is_awaited && Arc::strong_count(&self.running) <= LOOKS_MAX
    }

    /// Begins a check in a thread of its own, because a runtime that ends waits for its own
    /// threads.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        look: impl FnOnce() -> KeytabPollResult + Send + 'static,
    ) {
        let (tell, told) = oneshot::channel();
        let running = Arc::clone(&self.running);
        let look = move || {
            let looked = look();
            drop(running);
            let _ = tell.send(looked);
        };
        // Without a thread there is no answer, and the next look is as good.
        let _ = std::thread::Builder::new()
            .name("keytab".to_owned())
            .spawn(look);
        if self.last.replace((now, told)).is_some() {
            tracing::warn!(
                patience_s = PATIENCE.as_secs(),
                "the disk with the keytab does not answer; the node continues with the old keys"
            );
        }
    }

    /// Returns the same checks as outdated: their results are ignored. They still count, for those
    /// that hang.
    pub(crate) fn outdated(self) -> Self {
        Self { last: None, ..self }
    }

    /// Waits for the last check to end, for ever if there is none; `None` if it could not be made.
    pub(crate) async fn ended(&mut self) -> Option<KeytabPollResult> {
        let looked = match &mut self.last {
            Some((_, looked)) => looked.await.ok(),
            None => std::future::pending().await,
        };
        self.last = None;
        looked
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    use super::*;

    /// A keytab of MIT Kerberos's `ktutil` with one key for `cifs/a@B`, of 32 times this byte.
    fn bytes(version: u8, byte: u8) -> Vec<u8> {
        let mut entry = vec![0, 2, 0, 1, b'B', 0, 4];
        entry.extend(b"cifs\0\x01a\0\0\0\x01\0\0\0\0");
        entry.extend([version, 0, 18, 0, 32]);
        entry.extend([byte; 32]);
        let mut bytes = vec![5, 2, 0, 0, 0, entry.len() as u8];
        bytes.extend(entry);
        bytes
    }

    fn write(path: &Path, bytes: &[u8]) {
        let new = path.with_extension("new");
        fs::write(&new, bytes).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn keytab_is_read_again_only_after_replacement() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keytab");
        write(&path, &bytes(1, 0xaa));
        let first = load(&path).unwrap();
        assert_eq!(first.principals(), ["cifs/a@B"]);
        assert!(KeytabWatch::new(None).changed(Some(&first)).is_none());
        let mut watch = KeytabWatch::new(Some(path.clone()));
        assert!(watch.changed(Some(&first)).is_none());
        write(&path, &bytes(2, 0xbb));
        let second = watch.changed(Some(&first)).unwrap().unwrap();
        assert!(*second != first);
        assert!(watch.changed(Some(&second)).is_none());
        // A file that cannot be used is told of once, and the next one is read.
        fs::remove_file(&path).unwrap();
        assert!(watch.changed(Some(&second)).unwrap().is_err());
        assert!(watch.changed(Some(&second)).is_none());
        write(&path, &bytes(3, 0xcc));
        assert!(watch.changed(Some(&second)).unwrap().is_ok());
        // So is one that could not be read for a reason which is not the file's.
        let refused = |_: &Path| {
            Err(KeytabFileError::Content {
                path: PathBuf::from("keytab"),
                cause: Keytab::parse(b"").unwrap_err(),
            })
        };
        write(&path, &bytes(5, 0xee));
        let faulty = watch.changed_by(refused, Some(&second));
        assert!(faulty.unwrap().is_err());
        assert!(watch.changed_by(refused, Some(&second)).is_none());
        assert!(watch.changed(Some(&second)).unwrap().is_ok());
        // What changed between the start and the first look is seen.
        write(&path, &bytes(4, 0xdd));
        let mut late = KeytabWatch::new(Some(path));
        assert!(late.changed(Some(&second)).unwrap().is_ok());
    }

    #[test]
    fn invalid_keytab_is_refused_without_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keytab");
        for (bytes, wanted) in [
            (b"secret".to_vec(), "does not begin"),
            (bytes(1, b'#')[..20].to_vec(), "entry 1 is truncated"),
        ] {
            write(&path, &bytes);
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
            assert!(error.contains("/keytab: "), "{error}");
            assert!(!error.contains("secret") && !error.contains('#'), "{error}");
        }
        write(&path, &bytes(1, 1));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    fn looked(path: &str) -> KeytabPollResult {
        KeytabPollResult {
            watch: KeytabWatch::new(Some(PathBuf::from(path))),
            changed: None,
        }
    }

    /// Begins a look that ends when the sender is dropped.
    fn hanging(looks: &mut KeytabPolls, now: Instant) -> mpsc::Sender<()> {
        let (end, ends) = mpsc::channel::<()>();
        looks.begin(now, move || {
            let _ = ends.recv();
            looked("/hangs")
        });
        end
    }

    #[tokio::test]
    async fn hanging_check_does_not_block_the_next() {
        let start = Instant::now();
        let mut looks = KeytabPolls::default();
        assert!(looks.may_begin(start));
        let hangs = hanging(&mut looks, start);
        assert!(!looks.may_begin(start + LOOK_EVERY));
        let later = start + PATIENCE;
        assert!(looks.may_begin(later));
        looks.begin(later, || looked("/answers"));
        // The word that comes late is nobody's.
        drop(hangs);
        let looked = looks.ended().await.expect("the look ends");
        assert!(
            looked
                .watch
                .is_of(&KeytabWatch::new(Some("/answers".into())))
        );
        assert!(looks.may_begin(later));
    }

    #[tokio::test]
    async fn hanging_checks_are_limited_in_number() {
        let mut now = Instant::now();
        let mut looks = KeytabPolls::default();
        let mut hang = Vec::new();
        for _ in 0..LOOKS_MAX {
            assert!(looks.may_begin(now));
            hang.push(hanging(&mut looks, now));
            now += PATIENCE;
        }
        assert!(!looks.may_begin(now));
        // The last one's word is taken, though it was not waited for.
        hang.pop();
        assert!(looks.ended().await.is_some());
        assert!(looks.may_begin(now));
    }
}
