//! Emptying the dictionary under a new key, so that no crash and no copy of the disk brings back what was
//! in it.

use std::path::PathBuf;

use engine::Input;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::config::Dictionary;
use crate::dictionary_key;
use crate::mailbox::Mailbox;

/// What purges the dictionary.
pub(crate) struct Purge {
    /// `None` where nothing is kept on disk.
    key_file: Option<PathBuf>,
    /// One purge at a time: the key in the file has to be the one that the dictionary was given last,
    /// or the next start would find nothing of what was stored since.
    turn: Mutex<()>,
}

impl Purge {
    pub(crate) fn new(dictionary: &Dictionary) -> Self {
        let is_kept = dictionary.disk.bytes() > 0;
        Self {
            key_file: is_kept.then(|| dictionary.key_file.clone()),
            turn: Mutex::new(()),
        }
    }

    /// Purges. If there can be no new key the dictionary is emptied all the same. `None` when the
    /// engine's loop has ended.
    pub(super) async fn run(&self, mailbox: &Mailbox) -> Option<Value> {
        let _turn = self.turn.lock().await;
        let made = self.key_file.as_deref().map(dictionary_key::make);
        let (key, failure) = match made.transpose() {
            Ok(key) => (key, None),
            Err(error) => (None, Some(error)),
        };
        let cleared = mailbox.input(Input::ClearDictionary { key }).await;
        cleared.is_ok().then(|| match failure {
            None => json!({}),
            Some(error) => json!({ "error": format!(
                "the dictionary was emptied, but its key stays, so a copy of the disk or a crash \
                 within the next seconds can bring it back: {error}"
            ) }),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::mailbox::Message;

    #[tokio::test]
    async fn of_two_purges_at_once_the_second_makes_its_key_when_the_first_is_through() {
        let directory = tempfile::tempdir().unwrap();
        let key_file = directory.path().join("dictionary.key");
        let purge = Purge {
            key_file: Some(key_file.clone()),
            turn: Mutex::new(()),
        };
        let (mailbox, mut receiver) = Mailbox::new();
        // Until the mailbox has no room, and the first purge waits for some.
        while receiver.capacity() > 0 {
            mailbox.send(Message::Stop).await.unwrap();
        }
        // The runtime interrupts who has sent so many; what is polled below is to wait for room alone.
        tokio::task::yield_now().await;
        let (mut first, mut second) = (pin!(purge.run(&mailbox)), pin!(purge.run(&mailbox)));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(first.as_mut().poll(&mut context), Poll::Pending);
        let key = fs::read(&key_file).unwrap();
        assert_eq!(second.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(fs::read(&key_file).unwrap(), key);
        while let Ok(message) = receiver.try_recv() {
            assert!(matches!(message, Message::Stop));
        }
        assert_eq!(first.await, Some(json!({})));
        assert_eq!(fs::read(&key_file).unwrap(), key);
        assert_eq!(second.await, Some(json!({})));
        assert_ne!(fs::read(&key_file).unwrap(), key);
    }
}
