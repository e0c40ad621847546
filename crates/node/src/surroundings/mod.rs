//! The machine's routes and own addresses, for the engine, which decides from them which servers
//! peers may reach.
//!
//! ```text
//!   kernel ──notes──► thread ──► list all ──► different? ──► engine
//!                       ▲
//!            every 30 s ┘
//! ```
//!
//! A note says only that something has changed; the routes are then listed again. When they cannot
//! be read, the engine gets an empty list, and serves peers only the networks that the operator has
//! listed.

mod rtnetlink;

use std::io::{self, ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::{EngineInput, IpPrefix, NetworkSurroundings};

use crate::mailbox::LoopMailbox;

/// The interval at which the routes are read without a note.
const READ_EVERY: Duration = Duration::from_secs(30);
/// The wait for further notes, because a change often causes several.
const SETTLE: Duration = Duration::from_millis(100);
/// Reading takes at most one part in so many of the time, however often routes change.
const READING_SHARE: u32 = 20;

/// The networks that are on the LAN side now.
///
/// # Errors
/// When the routes cannot be read.
pub(crate) fn lan_networks(lan_interfaces: &[String]) -> io::Result<Vec<IpPrefix>> {
    Ok(rtnetlink::list(lan_interfaces)?.lan_networks())
}

/// Follows the surroundings; clones follow the same.
#[derive(Clone, Debug)]
pub(crate) struct SurroundingsWatch {
    shared: Arc<SharedSurroundings>,
}

#[derive(Debug)]
struct SharedSurroundings {
    lan_interfaces: Mutex<Vec<String>>,
    /// The last report to the engine.
    reported: Mutex<ReportedSurroundings>,
    mailbox: LoopMailbox,
}

#[derive(Debug, Default)]
struct ReportedSurroundings {
    surroundings: NetworkSurroundings,
    has_failed: bool,
}

impl SurroundingsWatch {
    pub(crate) fn new(lan_interfaces: Vec<String>, mailbox: LoopMailbox) -> Self {
        let shared = SharedSurroundings {
            lan_interfaces: Mutex::new(lan_interfaces),
            reported: Mutex::default(),
            mailbox,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The surroundings at the start.
    pub(crate) fn first(&self) -> NetworkSurroundings {
        let mut told = self
            .shared
            .reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        told.surroundings = self.shared.read(&mut told.has_failed);
        told.surroundings.clone()
    }

    /// Follows the changes on a thread of its own until the engine's loop has ended.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(&self) -> io::Result<()> {
        let this = self.clone();
        std::thread::Builder::new()
            .name("routes".to_owned())
            .spawn(move || this.follow())
            .map(drop)
    }

    /// The configuration names other interfaces, perhaps. To be called where waiting does no harm.
    pub(crate) fn set_lan_interfaces(&self, lan_interfaces: Vec<String>) {
        let names = self.shared.lan_interfaces.lock();
        *names.unwrap_or_else(PoisonError::into_inner) = lan_interfaces;
        let _ = self.refresh();
    }

    fn follow(&self) {
        let notes = rtnetlink::subscribe().inspect_err(|error| {
            tracing::warn!(%error, every_s = READ_EVERY.as_secs(), "the kernel does not report changes of \
                routes; the node looks for changes itself");
        });
        let notes = notes.ok();
        loop {
            if let Some(notes) = &notes {
                wait(notes);
            } else {
                std::thread::sleep(READ_EVERY);
            }
            let begun = Instant::now();
            if self.refresh().is_err() {
                return;
            }
            std::thread::sleep(begun.elapsed() * READING_SHARE);
        }
    }

    /// Reads the routes and reports changes to the engine.
    fn refresh(&self) -> Result<(), crate::mailbox::LoopEnded> {
        let mut told = self
            .shared
            .reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = self.shared.read(&mut told.has_failed);
        if now == told.surroundings {
            return self.shared.mailbox.still_open();
        }
        tracing::debug!(
            routes = now.routes.len(),
            "routes or addresses have changed"
        );
        told.surroundings = now.clone();
        let input = EngineInput::Surroundings(now);
        self.shared.mailbox.blocking_input(input)
    }
}

impl SharedSurroundings {
    fn read(&self, has_failed: &mut bool) -> NetworkSurroundings {
        let names = self.lan_interfaces.lock();
        let names = names.unwrap_or_else(PoisonError::into_inner).clone();
        match rtnetlink::list(&names) {
            Ok(surroundings) => {
                *has_failed = false;
                surroundings
            }
            Err(error) => {
                if !std::mem::replace(has_failed, true) {
                    tracing::warn!(
                        %error,
                        "the routes cannot be read; the node serves its peers only the networks that serve \
                         under [policy] lists"
                    );
                }
                NetworkSurroundings::default()
            }
        }
    }
}

/// Waits for a note, and for those that arrive with it.
fn wait(notes: &socket2::Socket) {
    let mut buffer = [0; 4096];
    let _ = notes.set_read_timeout(Some(READ_EVERY));
    let mut notes = notes;
    match notes.read(&mut buffer) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
        // Also that notes were lost: the routes are to be read either way.
        Ok(_) | Err(_) => {}
    }
    std::thread::sleep(SETTLE);
    let _ = notes.set_nonblocking(true);
    while !matches!(notes.read(&mut buffer), Err(error) if error.kind() == ErrorKind::WouldBlock) {}
    let _ = notes.set_nonblocking(false);
}
