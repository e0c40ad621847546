//! The configuration as it is read again, with the secrets in the files that it names.
//!
//! The disk of these files may be slow, or a network disk without its server, and can block a
//! reader for any time. So they are read beside the other work, one reading at a time. A request
//! that arrives during a reading may concern a later version, so the files are read once more.

use std::path::{Path, PathBuf};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::NodeConfig;
use crate::credentials;
use crate::run_error::RunError;

/// A requester that waits for the result of a reload: the configuration is active, or the reason
/// why it was refused.
#[derive(Debug)]
pub(crate) struct ReloadRequester {
    pub(crate) reply: oneshot::Sender<Result<ConfigChanges, String>>,
    pub(crate) confirmed: ConfirmedRemovals,
}

/// The removals that an operator has confirmed. Any other removal may come from a truncated file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConfirmedRemovals {
    /// Peers that have flows.
    pub(crate) peers: bool,
    /// Settings without which more is intercepted, served or stored.
    pub(crate) restrictions: bool,
}

impl ConfirmedRemovals {
    pub(crate) const NOTHING: Self = Self {
        peers: false,
        restrictions: false,
    };
    pub(crate) const EVERYTHING: Self = Self {
        peers: true,
        restrictions: true,
    };

    fn and(self, other: Self) -> Self {
        Self {
            peers: self.peers || other.peers,
            restrictions: self.restrictions || other.restrictions,
        }
    }
}

/// The changes of a newly active configuration that must be reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigChanges {
    /// Paired nodes that it names no more.
    pub(crate) removed_peers: Vec<String>,
    /// Settings without which more is intercepted, served or stored, and which it has no more.
    pub(crate) removed_restrictions: Vec<String>,
    /// It is the beginning of the one before, without its end.
    pub(crate) is_beginning: bool,
}

/// See the module documentation.
pub(crate) struct ConfigRereader {
    file: PathBuf,
    under_way: Option<JoinHandle<Result<NodeConfig, RunError>>>,
    /// The requesters that wait for the reading in progress.
    askers: Vec<ReloadRequester>,
    /// True if another reading was requested since that began.
    is_asked_again: bool,
    /// By these.
    next_askers: Vec<ReloadRequester>,
}

/// The configuration that was read, and the requesters that wait for its result.
pub(crate) struct ConfigReread {
    pub(crate) read: Result<NodeConfig, RunError>,
    pub(crate) askers: Vec<ReloadRequester>,
}

impl ConfigRereader {
    /// Creates the reader of this file.
    pub(crate) fn new(file: PathBuf) -> Self {
        Self {
            file,
            under_way: None,
            askers: Vec::new(),
            is_asked_again: false,
            next_askers: Vec::new(),
        }
    }

    /// Begins to read, or does so once the reading in progress is complete. The requester may wait
    /// for the result.
    pub(crate) fn ask(&mut self, asker: Option<ReloadRequester>) {
        // However long the disk takes: those that wait no longer are not kept.
        self.next_askers.retain(|asker| !asker.reply.is_closed());
        self.next_askers.extend(asker);
        if self.under_way.is_some() {
            self.is_asked_again = true;
            return;
        }
        self.askers = std::mem::take(&mut self.next_askers);
        let file = self.file.clone();
        let reads = move || read(&file);
        self.under_way = Some(tokio::task::spawn_blocking(reads));
    }

    /// Waits for the reading in progress, for ever if there is none.
    pub(crate) async fn ended(&mut self) -> ConfigReread {
        let Some(under_way) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let read = under_way.await.expect("what reads files does not panic");
        self.under_way = None;
        let askers = std::mem::take(&mut self.askers);
        if std::mem::take(&mut self.is_asked_again) {
            self.ask(None);
        }
        ConfigReread { read, askers }
    }
}

impl ConfigReread {
    /// The removals that the requesters have confirmed.
    pub(crate) fn confirmed(&self) -> ConfirmedRemovals {
        let all = self.askers.iter().map(|asker| asker.confirmed);
        all.fold(ConfirmedRemovals::NOTHING, ConfirmedRemovals::and)
    }
}

fn read(file: &Path) -> Result<NodeConfig, RunError> {
    let mut config = NodeConfig::load(file)?;
    credentials::load(&mut config)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::process::Command;

    use super::*;

    /// A named pipe, whose reader waits for the writer of the test.
    fn pipe(directory: &Path) -> PathBuf {
        let file = directory.join("node.toml");
        let made = Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        file
    }

    /// Waits until the file is being read.
    async fn writer(file: &Path) -> File {
        let file = file.to_owned();
        let opens = move || File::options().write(true).open(file);
        tokio::task::spawn_blocking(opens).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn request_during_reading_causes_another_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = pipe(directory.path());
        let mut rereading = ConfigRereader::new(file.clone());
        let asker = |reply| {
            Some(ReloadRequester {
                reply,
                confirmed: ConfirmedRemovals::NOTHING,
            })
        };
        let (of_first, _) = oneshot::channel();
        rereading.ask(asker(of_first));
        let mut first = writer(&file).await;
        let (of_second, mut told_second) = oneshot::channel();
        rereading.ask(asker(oneshot::channel().0));
        rereading.ask(asker(of_second));
        rereading.ask(None);
        first.write_all(b"[first]").unwrap();
        drop(first);
        let ConfigReread { read, askers } = rereading.ended().await;
        let error = read.unwrap_err().to_string();
        assert!(error.contains("first"), "{error}");
        // What was asked for later may not be in it.
        assert_eq!(askers.len(), 1);
        drop(askers);
        assert_eq!(
            told_second.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        );
        let mut second = writer(&file).await;
        second.write_all(b"[second]").unwrap();
        drop(second);
        let ConfigReread { read, askers } = rereading.ended().await;
        let error = read.unwrap_err().to_string();
        assert!(error.contains("second"), "{error}");
        // The other waits no longer.
        assert_eq!(askers.len(), 1);
        assert!(rereading.under_way.is_none());
    }

    #[tokio::test]
    async fn a_secret_that_cannot_be_read_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let text = format!(
            "[node]\nname = \"far\"\nstate_directory = \"{path}\"\n\
             [wan]\nlisten = \"127.0.0.1:4433\"\n\
             [[peer]]\nname = \"near\"\n\
             [credentials]\nkeytab = \"{path}/keytab\"\n"
        );
        let file = directory.path().join("node.toml");
        fs::write(&file, text).unwrap();
        let mut rereading = ConfigRereader::new(file);
        rereading.ask(None);
        let error = rereading.ended().await.read.unwrap_err().to_string();
        let wanted = format!("cannot read {path}/keytab: ");
        assert!(error.starts_with(&wanted), "{error}");
    }
}
