//! A running link that can be asked how it is and told to be otherwise, over a Unix socket.
//!
//! ```text
//!   trunkline emulate set ──{"ask":"set","settings":{…}}──► socket ──► ControlledLink ──► link
//! ```
//! One request a connection: a line of JSON, answered by a line of JSON, with the key `error` when
//! it was refused. The socket is its owner's alone (mode 0600). A link is set as if it had been
//! started with the words laid over one another ([`Settings::overlay`]), and keeps every packet.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use emulate::{Framing, LinkConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::packet_log::{LogFiles, LogHead, LogReport, PacketLog};
use super::report::LinkReport;
use super::settings::{Settings, described};
use super::{Devices, LinkHandle};

/// A request is one line; the longest names a few files.
const LONGEST_REQUEST: u64 = 64 << 10;
/// A status has some kilobytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// For a whole exchange.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Those who ask at a time.
const CLIENTS_MAX: usize = 16;

/// What can be asked of a running link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// How it is.
    Status,
    /// To be otherwise.
    Set {
        /// What is named here replaces what was set.
        settings: Settings,
    },
}

/// Says whether this host holds a link that is set so.
pub type HostCheck = Box<dyn Fn(&LinkConfig) -> Result<()> + Send + Sync>;

/// What a controlled link is started with.
pub struct LinkStart {
    /// Between what.
    pub devices: Devices,
    /// What the ends are called.
    pub ends: [String; 2],
    /// What is set.
    pub settings: Settings,
    /// Where to log packets.
    pub log: LogFiles,
    /// Judges each configuration before it is used.
    pub host_check: HostCheck,
}

/// A link with what it was told, which can be asked and told from several threads.
pub struct ControlledLink {
    /// `None` once it was stopped.
    link: Mutex<Option<LinkHandle>>,
    told: Mutex<Told>,
    log: Mutex<Option<PacketLog>>,
    ends: [String; 2],
    started: Instant,
    host_check: HostCheck,
}

/// What the link was told.
struct Told {
    settings: Settings,
    /// All that it is set to thereby, in words.
    in_force: Value,
}

impl ControlledLink {
    /// Starts the link, and its log if one is asked for.
    ///
    /// # Errors
    /// When the settings contradict themselves, when the host does not hold them, when a device
    /// or a file cannot be made.
    pub fn start(start: LinkStart) -> Result<Self> {
        let resolved = start.settings.resolve()?;
        resolved.config.check()?;
        (start.host_check)(&resolved.config)?;
        let framing = start.devices.framing();
        let in_force = in_words(&resolved.config);
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
            });
        }
        Ok(Self {
            link: Mutex::new(Some(link)),
            told: Mutex::new(Told {
                settings: start.settings,
                in_force,
            }),
            log: Mutex::new(log),
            ends: start.ends,
            started: Instant::now(),
            host_check: start.host_check,
        })
    }

    /// What the ends are called.
    #[must_use]
    pub fn ends(&self) -> [&str; 2] {
        [&self.ends[0], &self.ends[1]]
    }

    /// What is set.
    #[must_use]
    pub fn settings(&self) -> Settings {
        lock(&self.told).settings.clone()
    }

    /// Whether it still relays.
    #[must_use]
    pub fn is_running(&self) -> bool {
        lock(&self.link)
            .as_ref()
            .is_some_and(LinkHandle::is_running)
    }

    /// Lays other settings over the present ones. No packet is lost by it.
    ///
    /// # Errors
    /// When they contradict each other or the host does not hold them; then nothing changes.
    pub fn set(&self, changes: Settings) -> Result<()> {
        let mut told = lock(&self.told);
        let mut next = told.settings.clone();
        next.overlay(changes);
        if next.seed() != told.settings.seed() {
            bail!(
                "the seed is {} for as long as the link runs, because all that chance has done so far follows from it; start another link for another seed",
                told.settings.seed()
            );
        }
        let resolved = next.resolve()?;
        (self.host_check)(&resolved.config)?;
        let link = lock(&self.link);
        let link = link.as_ref().ok_or_else(stopping)?;
        if let Some(log) = lock(&self.log).as_ref() {
            log.announce(&next, &resolved);
        }
        let in_force = in_words(&resolved.config);
        link.set_config(resolved.config)?;
        *told = Told {
            settings: next,
            in_force,
        };
        Ok(())
    }

    /// All there is to know of it, as `trunkline emulate status --json` prints it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn status(&self) -> Result<Value> {
        let (settings, in_force) = {
            let told = lock(&self.told);
            (told.settings.clone(), told.in_force.clone())
        };
        let report = lock(&self.link).as_ref().ok_or_else(stopping)?.report()?;
        let log = lock(&self.log).as_ref().map(PacketLog::report);
        let not_held = [&report.forward, &report.back]
            .into_iter()
            .find_map(|way| way.not_held.clone());
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "process": std::process::id(),
            "ends": self.ends,
            "uptime_s": self.started.elapsed().as_secs(),
            "seed": settings.seed(),
            "settings": settings,
            "in_force": in_force,
            "held": not_held.is_none(),
            "not_held": not_held,
            "lost_outside_the_model_packets": report.lost_outside_the_model(),
            "forward": report.forward,
            "back": report.back,
            "log": log,
        }))
    }

    /// Stops the link, then its log.
    ///
    /// # Errors
    /// When the link had ended by itself: the reason.
    pub fn stop(&self) -> Result<(LinkReport, Option<LogReport>)> {
        let link = lock(&self.link).take().ok_or_else(stopping)?;
        let report = link.stop();
        let log = lock(&self.log).take().map(PacketLog::finish);
        Ok((report?, log))
    }

    fn answer(&self, line: &str) -> Value {
        let answered = match serde_json::from_str::<Request>(line) {
            Err(error) => Err(anyhow!("this is not a request: {error}")),
            Ok(Request::Status) => self.status(),
            Ok(Request::Set { settings }) if settings.is_empty() => Err(anyhow!(
                "nothing is named that should be otherwise; name a setting, as in `--rate 5Mbit`"
            )),
            Ok(Request::Set { settings }) => self.set(settings).and_then(|()| self.status()),
        };
        answered.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
    }
}

fn in_words(config: &LinkConfig) -> Value {
    let words = |direction| -> Map<String, Value> {
        described(direction)
            .into_iter()
            .map(|(name, word)| (name.to_owned(), word.into()))
            .collect()
    };
    json!({ "forward": words(&config.forward), "back": words(&config.back) })
}

impl Devices {
    /// What packets begin with.
    #[must_use]
    pub fn framing(&self) -> Framing {
        match self {
            Devices::Tun { .. } => Framing::Ip,
            Devices::Bridge { .. } => Framing::Ethernet,
        }
    }
}

fn stopping() -> anyhow::Error {
    anyhow!("the link is stopping")
}

/// A panicking thread leaves what is under these locks as it was before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket of a link; dropping it removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// The directory, if it was made for this socket.
    made: Option<PathBuf>,
    listener: Option<thread::JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl ControlSocket {
    /// Listens at this path for its owner alone.
    ///
    /// # Errors
    /// When another link listens there, or the socket cannot be made.
    pub fn listen(path: &Path, link: Arc<ControlledLink>) -> Result<Self> {
        let made = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty() && !parent.exists())
            .map(Path::to_owned);
        let listener = bind(path)
            .with_context(|| format!("cannot listen at the control socket {}", path.display()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let listener = thread::Builder::new()
            .name("control".to_owned())
            .spawn({
                let is_over = Arc::clone(&is_over);
                move || serve(&listener, &link, &is_over)
            })
            .context("cannot start the control socket's thread")?;
        Ok(Self {
            path: path.to_owned(),
            made,
            listener: Some(listener),
            is_over,
        })
    }

    /// Listens in the first of these directories that takes a socket, under the link's name, or
    /// its name and number of process where another link has the name; `None` if none does.
    #[must_use]
    pub fn listen_in(
        directories: &[PathBuf],
        name: &str,
        link: &Arc<ControlledLink>,
    ) -> Option<Self> {
        let with_process = format!("{name}-{}", std::process::id());
        for directory in directories {
            for name in [name, &with_process] {
                match Self::listen(&socket_in(directory, name), Arc::clone(link)) {
                    Ok(socket) => return Some(socket),
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::debug!(error, "no control socket here");
                    }
                }
            }
        }
        None
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the listener out of its wait; if nobody listens there is nobody to wake.
        let woken = UnixStream::connect(&self.path);
        // It can be gone only because somebody removed it.
        let _ = fs::remove_file(&self.path);
        if let Some(made) = &self.made {
            // It stays where another link has its socket in it by now.
            let _ = fs::remove_dir(made);
        }
        if woken.is_ok()
            && let Some(listener) = self.listener.take()
        {
            // A panic in there has been printed; the link goes on without it.
            let _ = listener.join();
        }
    }
}

fn bind(path: &Path) -> Result<UnixListener> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.exists()) {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
    }
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            bail!("there is a file that is no socket; choose another path with --control");
        }
        match UnixStream::connect(path) {
            // What a killed link left.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            _ => bail!("another link listens there; choose another path with --control"),
        }
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve(listener: &UnixListener, link: &Arc<ControlledLink>, is_over: &AtomicBool) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, for instance; it may pass.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (link, served) = (Arc::clone(link), Arc::clone(&clients));
        let started = thread::Builder::new().spawn(move || {
            if let Err(error) = exchange(&stream, &link) {
                tracing::debug!(%error, "a control request was given up");
            }
            served.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn exchange(stream: &UnixStream, link: &ControlledLink) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_REQUEST)).read_until(b'\n', &mut line)?;
    let answer = if line.len() as u64 == LONGEST_REQUEST {
        json!({ "error": format!("a request is one line of less than {LONGEST_REQUEST} bytes") })
    } else {
        link.answer(&String::from_utf8_lossy(&line))
    };
    let mut writer = stream;
    writer.write_all(format!("{answer}\n").as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    // What is left of too long a request is read, because closing before would take the answer
    // back from the asker.
    io::copy(&mut stream.take(LONGEST_ANSWER), &mut io::sink()).map(drop)
}

/// Asks the link that listens at this path.
///
/// # Errors
/// When none does, when it does not answer, or what it refuses and why.
pub fn ask(path: &Path, request: &Request) -> Result<Value> {
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!(
            "no link listens at {}; `trunkline emulate status` lists those that run",
            path.display()
        )
    })?;
    let about = || format!("the link at {} does not answer", path.display());
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let line = serde_json::to_string(request)?;
    stream
        .write_all(format!("{line}\n").as_bytes())
        .with_context(about)?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER))
        .read_line(&mut answer)
        .with_context(about)?;
    let answer: Value = serde_json::from_str(&answer).with_context(about)?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}

/// What begins the names of sockets in their directories.
const PREFIX: &str = "emulate-";
const SUFFIX: &str = ".sock";

/// The socket of the link of this name.
#[must_use]
pub fn socket_in(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{PREFIX}{name}{SUFFIX}"))
}

/// The names of the links that listen in these directories, with their sockets. What a killed
/// link has left is passed over.
#[must_use]
pub fn running_links(directories: &[PathBuf]) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = directories
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            let name = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.to_owned();
            Some((name, path))
        })
        .filter(|(_, path)| UnixStream::connect(path).is_ok())
        .collect();
    found.sort();
    found
}
