//! The node's side: starting the watchdog, beating, and starting another when it is gone.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use super::{BEAT, GOODBYE, REINSTALL};
use crate::intercept::InterceptChange;
use crate::sys;

/// Before another watchdog is started.
const NEXT_WATCHDOG_AFTER: Duration = Duration::from_secs(1);

/// The settings that start a watchdog.
#[derive(Clone, Debug)]
pub(crate) struct WatchdogSupervision {
    /// The arguments of `trunkline` that make it one.
    pub(crate) arguments: Vec<OsString>,
}

/// A running watchdog.
#[derive(Debug)]
pub(crate) struct RunningWatchdog {
    child: Child,
    stream: UnixStream,
}

/// Beats for the watchdog of the moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchdogHeartbeat {
    stream: Arc<Mutex<Option<UnixStream>>>,
}

impl WatchdogHeartbeat {
    /// Reports that the loop is alive. Never waits.
    pub(crate) fn beat(&self) {
        self.say(BEAT);
    }

    /// Reports that the node ends in good order.
    pub(crate) fn say_goodbye(&self) {
        self.say(GOODBYE);
    }

    fn say(&self, word: u8) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut stream) = stream.as_ref() {
            // A full pipe is as good as a beat; a broken one is noticed by `attend`.
            let _ = stream.write(&[word]);
        }
    }

    fn replace(&self, next: Option<UnixStream>) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

impl WatchdogSupervision {
    /// Starts a watchdog.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start(&self, heart: &WatchdogHeartbeat) -> io::Result<RunningWatchdog> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = Command::new(sys::own_program()?)
            .args(&self.arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        heart.replace(Some(ours.try_clone()?));
        heart.beat();
        Ok(RunningWatchdog {
            child,
            stream: ours,
        })
    }

    /// Attends to the watchdog, and to its successors, as long as the node runs.
    pub(crate) async fn attend(
        self,
        first: RunningWatchdog,
        heart: WatchdogHeartbeat,
        intercept: Option<mpsc::UnboundedSender<InterceptChange>>,
    ) {
        let mut watched = first;
        loop {
            let (stream, mut child) = (watched.stream, watched.child);
            if let Err(error) = listen(stream, intercept.as_ref()).await {
                tracing::debug!(%error, "the watchdog's stream broke");
            }
            heart.replace(None);
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
            watched = loop {
                tracing::warn!("the watchdog ended; the node starts a new one");
                tokio::time::sleep(NEXT_WATCHDOG_AFTER).await;
                match self.start(&heart) {
                    Ok(watched) => break watched,
                    Err(error) => tracing::error!(%error, "the node cannot start a watchdog"),
                }
            };
        }
    }
}

/// Passes the watchdog's messages on until it is gone.
async fn listen(
    stream: UnixStream,
    intercept: Option<&mpsc::UnboundedSender<InterceptChange>>,
) -> io::Result<()> {
    let mut stream = tokio::net::UnixStream::from_std(stream)?;
    let mut buffer = [0; 16];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        if buffer[..length].contains(&REINSTALL)
            && let Some(intercept) = intercept
        {
            tracing::warn!("this node hung for a while; it installs its interception rules again");
            let _ = intercept.send(InterceptChange::Reinstall);
        }
    }
}
