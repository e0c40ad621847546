//! Control of a running link over a Unix socket: its status, and changes of its settings.
//!
//! ```text
//!   trunkline emulate set ──{"ask":"set","settings":{…}}──► socket ──► ControlledLink ──► link
//! ```
//! One request a connection: a line of JSON, answered by a line of JSON, with the key `error` when
//! it failed, and `refused` beside it when what was asked for is not to be had. A link is set as
//! if it had been started with the words laid over one another ([`LinkSettings::change`]), and keeps
//! every packet. The socket itself is `socket.rs`.

mod socket;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow};
use emulate::{LinkConfig, LinkFraming};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::packet_log::{LogFiles, LogHead, LogReports, PacketLog};
use super::report::LinkReport;
use super::settings::{LinkSettings, SettingDirection};
use super::{LinkDevices, LinkHandle};
use crate::calibrate::holds::SettingRefusal;
use host::invalid_request::InvalidRequest;
pub use socket::{ControlSocket, FoundLinks, ask, look_for_links, name_at, socket_in};

/// Request to a running link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Query of the status.
    Status,
    /// Change of settings.
    Set {
        /// Settings that replace those of the same name; a preset replaces all of them.
        settings: LinkSettings,
        /// Treatment of a rate that this host was not seen to carry.
        #[serde(default, skip_serializing_if = "UnprovenRate::is_refused")]
        unheld: UnprovenRate,
    },
}

/// Treatment of a rate that this host was not seen to carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnprovenRate {
    /// Refuse the rate.
    #[default]
    Refuse,
    /// Set the rate, and mark the link as forced in every report.
    Force,
}

impl UnprovenRate {
    fn is_refused(&self) -> bool {
        *self == UnprovenRate::Refuse
    }

    /// Text that marks the link if it is set so all the same.
    fn judge(self, verdict: Result<()>) -> Result<Option<String>> {
        let Err(error) = verdict else {
            return Ok(None);
        };
        let refusal = error.downcast_ref::<SettingRefusal>();
        match refusal.and_then(SettingRefusal::forced) {
            Some(forced) if self == UnprovenRate::Force => Ok(Some(forced)),
            Some(_) | None => Err(InvalidRequest::because(error)),
        }
    }
}

/// Check whether this host holds a link configured as the second argument, where one already runs
/// as the first. Beside a running link it must not probe, because the link might not keep up with
/// the probe.
pub type HostCheck = Box<dyn Fn(Option<&LinkConfig>, &LinkConfig) -> Result<()> + Send + Sync>;

/// A running emulation that is controlled over its socket.
pub trait ControlTarget: Send + Sync {
    /// Answers a request, which is one line of JSON, with a JSON object.
    fn answer(&self, line: &str) -> Value;

    /// Records the path of its control socket for its status; the first call counts.
    fn is_asked_at(&self, socket: &Path);
}

/// Parameters with which a controlled link is started.
pub struct LinkStart {
    /// Devices of the link.
    pub devices: LinkDevices,
    /// Names of the ends.
    pub ends: [String; 2],
    /// The settings.
    pub settings: LinkSettings,
    /// Files for the packet log.
    pub log: LogFiles,
    /// Judges each configuration before it is used.
    pub host_check: HostCheck,
    /// Treatment of a rate that does not pass that check.
    pub unheld: UnprovenRate,
}

/// A running link with its settings, which several threads can query and change.
pub struct ControlledLink {
    /// The link; `None` after it was stopped.
    link: Mutex<Option<LinkHandle>>,
    applied: Mutex<AppliedSettings>,
    log: Mutex<Option<PacketLog>>,
    ends: [String; 2],
    started: Instant,
    host_check: HostCheck,
    /// Path of its control socket, once it has one.
    control: OnceLock<PathBuf>,
}

/// Settings that the link has applied.
struct AppliedSettings {
    settings: LinkSettings,
    config: LinkConfig,
    /// All resulting settings, in words.
    in_force: Value,
    /// Rates that were forced at any time, although the host was not seen to carry them.
    forced: Option<String>,
}

impl ControlledLink {
    /// Starts the link, and its log if one is asked for.
    ///
    /// # Errors
    /// When the settings contradict themselves or the host does not hold them ([`InvalidRequest`]), when
    /// a device or a file cannot be made.
    pub fn start(start: LinkStart) -> Result<Self> {
        let resolved = start.settings.resolve().map_err(InvalidRequest::because)?;
        resolved.config.check().map_err(InvalidRequest::because)?;
        let verdict = (start.host_check)(None, &resolved.config);
        let forced = start.unheld.judge(verdict)?;
        let framing = start.devices.framing();
        let config = resolved.config.clone();
        let in_force = in_words(&start.settings, &config)?;
        let is_logged = start.log != LogFiles::default();
        let (log, sink) = match is_logged.then(|| PacketLog::create(&start.log)) {
            Some(created) => created.map(|(log, sink)| (Some(log), Some(sink)))?,
            None => (None, None),
        };
        let link = LinkHandle::start_recorded(&start.devices, resolved.config, sink)?;
        if let Some(log) = &log {
            log.begin(LogHead {
                started: link.started_at(),
                ends: start.ends.clone(),
                framing,
                settings: start.settings.clone(),
                files: resolved.files,
                forced: forced.clone(),
            });
        }
        Ok(Self {
            link: Mutex::new(Some(link)),
            applied: Mutex::new(AppliedSettings {
                settings: start.settings,
                config,
                in_force,
                forced,
            }),
            log: Mutex::new(log),
            ends: start.ends,
            started: Instant::now(),
            host_check: start.host_check,
            control: OnceLock::new(),
        })
    }

    /// Names of the ends.
    #[must_use]
    pub fn ends(&self) -> [&str; 2] {
        [&self.ends[0], &self.ends[1]]
    }

    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> LinkSettings {
        lock(&self.applied).settings.clone()
    }

    /// Forced rates that this host was not seen to carry, as text.
    #[must_use]
    pub fn forced(&self) -> Option<String> {
        lock(&self.applied).forced.clone()
    }

    /// Tells whether it still relays.
    #[must_use]
    pub fn is_running(&self) -> bool {
        lock(&self.link)
            .as_ref()
            .is_some_and(LinkHandle::is_running)
    }

    /// Lays other settings over the present ones. No packet is lost by it.
    ///
    /// # Errors
    /// When they contradict each other or the host does not hold them ([`InvalidRequest`]), or the link
    /// has ended; then nothing changes.
    pub fn set(&self, changes: LinkSettings, unheld: UnprovenRate) -> Result<()> {
        let mut told = lock(&self.applied);
        let mut next = told.settings.clone();
        next.change(changes);
        if next.seed() != told.settings.seed() {
            return Err(InvalidRequest::because(anyhow!(
                "the seed {} cannot change while the link runs, because all random decisions so far depend \
                 on it; start another link with another seed",
                told.settings.seed()
            )));
        }
        let resolved = next.resolve().map_err(InvalidRequest::because)?;
        resolved.config.check().map_err(InvalidRequest::because)?;
        let verdict = (self.host_check)(Some(&told.config), &resolved.config);
        let forced = unheld.judge(verdict)?.or_else(|| told.forced.clone());
        let link = lock(&self.link);
        let link = link.as_ref().ok_or_else(stopping)?;
        let config = resolved.config.clone();
        let in_force = in_words(&next, &config)?;
        // Last, because the log takes what is announced for what comes into force next.
        if let Some(log) = lock(&self.log).as_ref() {
            log.announce(&next, &resolved, forced.as_deref())?;
        }
        link.set_config(resolved.config)?;
        *told = AppliedSettings {
            settings: next,
            config,
            in_force,
            forced,
        };
        Ok(())
    }

    /// All there is to know of it, as `trunkline emulate status --json` prints it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn status(&self) -> Result<Value> {
        let (settings, in_force, forced) = {
            let told = lock(&self.applied);
            let AppliedSettings {
                settings, in_force, ..
            } = &*told;
            (settings.clone(), in_force.clone(), told.forced.clone())
        };
        let report = lock(&self.link).as_ref().ok_or_else(stopping)?.report()?;
        let log = lock(&self.log).as_ref().map(PacketLog::report);
        let LogReports { log, capture } = log.unwrap_or_default();
        let not_held = [&report.forward, &report.back]
            .into_iter()
            .find_map(|way| way.not_held.clone());
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "process": std::process::id(),
            "ends": self.ends,
            "control": self.control.get(),
            "uptime_s": self.started.elapsed().as_secs(),
            "seed": settings.seed(),
            "settings": settings,
            "in_force": in_force,
            "forced": forced,
            "held": not_held.is_none(),
            "not_held": not_held,
            "lost_outside_the_model_packets": report.lost_outside_the_model(),
            "forward": report.forward,
            "back": report.back,
            "log": log,
            "capture": capture,
        }))
    }

    /// Stops the link, then its log.
    ///
    /// # Errors
    /// When the link had ended by itself: the reason.
    pub fn stop(&self) -> Result<(LinkReport, LogReports)> {
        let link = lock(&self.link).take().ok_or_else(stopping)?;
        let report = link.stop();
        let log = lock(&self.log).take().map(PacketLog::finish);
        let report = LinkReport {
            forced: lock(&self.applied).forced.clone(),
            ..report?
        };
        Ok((report, log.unwrap_or_default()))
    }
}

impl ControlTarget for ControlledLink {
    fn answer(&self, line: &str) -> Value {
        let answered = match serde_json::from_str::<ControlRequest>(line) {
            Err(error) => Err(InvalidRequest::because(anyhow!(
                "the request cannot be read: {error}"
            ))),
            Ok(ControlRequest::Status) => self.status(),
            Ok(ControlRequest::Set { settings, .. }) if settings.is_empty() => {
                Err(InvalidRequest::because(anyhow!(
                    "the request names no setting to change; name a setting, as in `--rate 5Mbit`"
                )))
            }
            Ok(ControlRequest::Set { settings, unheld }) => {
                self.set(settings, unheld).and_then(|()| self.status())
            }
        };
        answered.unwrap_or_else(
            |error| json!({ "error": format!("{error:#}"), "refused": InvalidRequest::is_cause_of(&error) }),
        )
    }

    fn is_asked_at(&self, socket: &Path) {
        self.control.get_or_init(|| socket.to_owned());
    }
}

fn in_words(settings: &LinkSettings, config: &LinkConfig) -> Result<Value> {
    let words = |way, direction| -> Result<Map<String, Value>> {
        let words = settings.in_force(way, direction)?.into_iter();
        Ok(words
            .map(|(name, word)| (name.to_owned(), word.into()))
            .collect())
    };
    Ok(json!({
        "forward": words(SettingDirection::Forward, &config.forward)?,
        "back": words(SettingDirection::Back, &config.back)?,
    }))
}

impl LinkDevices {
    /// Kind of packets on these devices.
    #[must_use]
    pub fn framing(&self) -> LinkFraming {
        match self {
            LinkDevices::Tun { .. } => LinkFraming::Ip,
            LinkDevices::Bridge { .. } => LinkFraming::Ethernet,
        }
    }
}

fn stopping() -> anyhow::Error {
    anyhow!("the link is stopping")
}

/// Locks a mutex, even one that a panicking thread held: that thread leaves the data as it was
/// before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
