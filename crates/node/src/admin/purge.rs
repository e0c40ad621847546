//! Empties the dictionary under a new key, so that no crash and no copy of the disk brings its
//! content back.

use std::path::PathBuf;

use std::sync::{Mutex, PoisonError};

use engine::EngineInput;
use serde_json::{Value, json};

use crate::config::DictionaryStorage;
use crate::dictionary_key;
use crate::mailbox::{LoopMailbox, LoopMessage};

/// The handler that purges the dictionary.
pub(crate) struct DictionaryPurge {
    /// `None` where nothing is kept on disk.
    key_file: Option<PathBuf>,
    /// Allows one purge at a time: the key in the file must be the last one of the dictionary, or
    /// the next start would find none of the content stored since.
    turn: Mutex<()>,
}

impl DictionaryPurge {
    pub(crate) fn new(dictionary: &DictionaryStorage) -> Self {
        let is_kept = dictionary.disk.bytes() > 0;
        Self {
            key_file: is_kept.then(|| dictionary.key_file.clone()),
            turn: Mutex::new(()),
        }
    }

    /// Purges. If there can be no new key the dictionary is emptied all the same. `None` when the
    /// engine's loop has ended.
    pub(super) async fn run(&self, mailbox: &LoopMailbox) -> Option<Value> {
        // Who asked may be gone before there is room; then nothing has happened yet. From here on there is
        // nothing to wait for between the key and what makes it count.
        let room = mailbox.room().await.ok()?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let made = self.key_file.as_deref().map(dictionary_key::make);
        let (key, failure) = match made.transpose() {
            Ok(key) => (key, None),
            Err(error) => (None, Some(error)),
        };
        room.send(LoopMessage::Input(EngineInput::ClearDictionary { key }));
        Some(match failure {
            None => json!({}),
            Some(error) => json!({ "error": format!(
                "the dictionary was emptied, but its key could not be replaced; its old content can be read \
                 from a copy of the disk, and a crash within the next seconds can restore it: {error}"
            ) }),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::path::Path;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// A purge of this key file.
    fn purge(key_file: &Path) -> DictionaryPurge {
        DictionaryPurge {
            key_file: Some(key_file.to_owned()),
            turn: Mutex::new(()),
        }
    }

    #[tokio::test]
    async fn abandoned_purge_makes_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let key_file = directory.path().join("dictionary.key");
        let purge = purge(&key_file);
        let (mailbox, mut receiver) = LoopMailbox::new();
        while receiver.capacity() > 0 {
            mailbox.send(LoopMessage::Stop).await.unwrap();
        }
        // The runtime interrupts who has sent so many; what is polled below is to wait for room alone.
        tokio::task::yield_now().await;
        {
            let mut given_up = pin!(purge.run(&mailbox));
            let mut context = Context::from_waker(Waker::noop());
            assert_eq!(given_up.as_mut().poll(&mut context), Poll::Pending);
        }
        while let Ok(message) = receiver.try_recv() {
            assert!(matches!(message, LoopMessage::Stop));
        }
        assert!(!key_file.exists());
        assert_eq!(purge.run(&mailbox).await, Some(json!({})));
        let key = std::fs::read(&key_file).unwrap();
        assert!(matches!(
            receiver.try_recv(),
            Ok(LoopMessage::Input(EngineInput::ClearDictionary {
                key: Some(_)
            }))
        ));
        assert_eq!(purge.run(&mailbox).await, Some(json!({})));
        assert_ne!(std::fs::read(&key_file).unwrap(), key);
    }

    #[tokio::test]
    async fn purge_fails_after_the_loop_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let key_file = directory.path().join("dictionary.key");
        let (mailbox, receiver) = LoopMailbox::new();
        drop(receiver);
        assert_eq!(purge(&key_file).run(&mailbox).await, None);
        assert!(!key_file.exists());
    }
}
