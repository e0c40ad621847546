//! A node from its start to its end: the order in which its parts are opened and closed.
//!
//! ```text
//!   configuration → identity, lock → listeners → watchdog → capabilities dropped
//!     → runtime: interception, links, proxies, administration
//!     │ thread: engine's loop, LAN connections, UDP
//!     → READY … TERM → no new flows → grace → rules removed → goodbye
//! ```
//!
//! Listeners come first, because only they may need more privileges than the node keeps.
//! Capabilities are dropped before a second thread exists that could still have them.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use reduce::DictionaryKey;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::accelerator_files::FilesThread;
use crate::admin;
use crate::clock::PreciseAlarm;
use crate::config::{InterceptConfig, InterceptMode, NodeConfig};
use crate::connections::ConnectionNumbers;
use crate::credentials;
use crate::credentials::keytab_file::{self, KeytabPollResult, KeytabPolls, KeytabWatch};
use crate::descriptors::{DescriptorBudget, DescriptorPool, fit_flows_to_descriptors};
use crate::dictionary_key::{self, KeyOrigin};
use crate::disk::{self, StateLock};
use crate::event_loop::{EventLoop, EventLoopParts};
use crate::identity::NodeIdentity;
use crate::intercept::{self, InterceptChange};
use crate::mailbox::{LoopMailbox, LoopMessage};
use crate::metrics;
use crate::pairing::{InvitationDirectory, PinDirectory};
use crate::path_memory::PathMemory;
use crate::private_directory::check_state_directory;
use crate::proxy::{self, ProxyProtocol};
use crate::rereading::{
    ConfigChanges, ConfigReread, ConfigRereader, ConfirmedRemovals, ReloadRequester,
};
use crate::run_error::RunError;
use crate::service_manager;
use crate::surroundings;
use crate::sys;
use crate::tls::TrustedIdentities;
use crate::wan::{self, KnownSources, LinkNumbers, ListenerContext};
use crate::watchdog::{RunningWatchdog, WatchdogHeartbeat, WatchdogSupervision};

/// The time that a node waits, beyond its grace, for the engine to reset the remaining flows.
const AFTER_GRACE: Duration = Duration::from_secs(2);
/// Tasks that still hold connections are given this long to end before they are dropped.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Makes a watchdog's arguments from the name of the node that intercepts, if it does.
pub type WatchdogArguments = Box<dyn Fn(Option<&str>) -> Vec<OsString>>;

/// The options of `trunkline node run`.
pub struct RunOptions {
    /// The configuration's file.
    pub config: PathBuf,
    /// Makes the arguments that start a watchdog for this node, from its name if it intercepts.
    pub watchdog_arguments: WatchdogArguments,
}

/// The configuration that holds, with the secrets that it names.
struct ActiveConfig {
    config: NodeConfig,
    /// The limit of flows as it was written.
    flows_wanted: usize,
    watch: KeytabWatch,
    looks: KeytabPolls,
}

impl ActiveConfig {
    fn new(config: NodeConfig) -> Self {
        Self {
            watch: KeytabWatch::new(config.credentials.keytab.clone()),
            looks: KeytabPolls::default(),
            flows_wanted: config.limits.flows,
            config,
        }
    }

    /// Replaces the configuration. Checks of a keytab that it no longer names are ignored; the
    /// results of others were read before the configuration itself.
    fn replace(&mut self, config: NodeConfig) {
        let before = std::mem::replace(self, Self::new(config));
        if before.watch.is_of(&self.watch) {
            self.looks = before.looks.outdated();
        }
    }

    /// Checks the keytab, whose disk may be slow, or a network's, unless a check is in progress.
    fn look_at_keytab(&mut self) {
        let now = Instant::now();
        if !self.watch.is_on() || !self.looks.may_begin(now) {
            return;
        }
        let mut watch = self.watch.clone();
        let current = self.config.policy.accelerators.delegated.keytab.clone();
        self.looks.begin(now, move || {
            let changed = watch.changed(current.as_deref());
            KeytabPollResult { watch, changed }
        });
    }

    /// Takes the keytab's keys if they are others; a file that cannot be used changes nothing.
    async fn take_keytab(&mut self, looked: KeytabPollResult, mailbox: &LoopMailbox) {
        // Meanwhile the configuration may have come to name another one.
        if !looked.watch.is_of(&self.watch) {
            return;
        }
        self.watch = looked.watch;
        match looked.changed {
            None => {}
            Some(Err(error)) => {
                tracing::error!(%error, "the node could not read the keytab again; it continues with the old keys");
            }
            Some(Ok(new)) => {
                tracing::info!(keys = new.keys(), "the node read the keytab again");
                self.config.policy.accelerators.delegated.keytab = Some(new);
                // It is the configuration that holds, with other keys.
                let config = self.config.clone();
                let _ = mailbox.reload(config, ConfirmedRemovals::EVERYTHING).await;
            }
        }
    }
}

/// The sockets that were opened while the process had all its privileges.
struct OpenedSockets {
    wan: Option<std::net::TcpListener>,
    udp: Option<std::net::UdpSocket>,
    intercept: Vec<std::net::TcpListener>,
    hold: Option<intercept::HoldSockets>,
    proxies: Vec<(std::net::TcpListener, ProxyProtocol)>,
    metrics: Option<std::net::TcpListener>,
    admin: std::os::unix::net::UnixListener,
}

/// Runs a node until it is stopped.
///
/// # Errors
/// When it cannot start, with what to do about it.
pub fn run(options: &RunOptions) -> Result<(), RunError> {
    let mut config = NodeConfig::load(&options.config)?;
    // Before there is a secret in memory.
    sys::forbid_core_dumps().map_err(step("forbid core dumps"))?;
    check_state_directory(&config.state_directory)?;
    let identity = Arc::new(NodeIdentity::load_or_create(&config.state_directory)?);
    let _lock = StateLock::take(&config.state_directory)?;
    let dictionary_key = dictionary_key(&config)?;
    credentials::load(&mut config)?;
    let pins = PinDirectory::new(&config.state_directory);
    let flows_wanted = config.limits.flows;
    let budget = fit_flows_to_descriptors(&mut config, None);

    let intercepts = config.intercept.mode == InterceptMode::Transparent;
    if intercepts {
        if !sys::has_capability(sys::CAP_NET_ADMIN) {
            return Err(RunError::Privileges);
        }
        // What a node of this name left behind when it was killed together with its watchdog.
        intercept::remove_table(&config.name).map_err(step("remove old interception rules"))?;
    }
    let opened = open(&config)?;
    let heart = WatchdogHeartbeat::default();
    let supervision = WatchdogSupervision {
        arguments: (options.watchdog_arguments)(intercepts.then_some(config.name.as_str())),
    };
    let watched = supervision
        .start(&heart)
        .map_err(step("start the watchdog"))?;
    drop_capabilities(intercepts).map_err(step("drop capabilities"))?;

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("node")
        .enable_all()
        .build()
        .map_err(step("start the runtime"))?;
    let node = Node {
        config,
        identity,
        dictionary_key,
        pins,
        heart,
        budget,
        flows_wanted,
        handle: runtime.handle().clone(),
    };
    let ended = runtime.block_on(node.live(opened, supervision, watched));
    // Tasks that still hold connections are dropped here, and their sockets reset or closed.
    runtime.shutdown_timeout(LAST_WORDS);
    ended
}

struct Node {
    config: NodeConfig,
    identity: Arc<NodeIdentity>,
    dictionary_key: Option<DictionaryKey>,
    pins: PinDirectory,
    heart: WatchdogHeartbeat,
    budget: DescriptorBudget,
    /// The limit in the configuration; the descriptors may allow fewer.
    flows_wanted: usize,
    handle: Handle,
}

impl Node {
    async fn live(
        self,
        opened: OpenedSockets,
        supervision: WatchdogSupervision,
        watched: RunningWatchdog,
    ) -> Result<(), RunError> {
        let (mailbox, messages) = LoopMailbox::new();
        let (report, reported) = watch::channel(intercept::InterceptReport::off());
        let held = intercept::HeldSyns::default();
        let hold = (opened.hold.as_ref().map(|hold| hold.ports), held.clone());
        let (spoofed_blocked, blocked) = watch::channel(intercept::SpoofedBlocked::default());
        let changes = self.start_interception(hold, report, spoofed_blocked, mailbox.clone());
        tokio::spawn(supervision.attend(watched, self.heart.clone(), changes.clone()));

        let trust = TrustedIdentities::default();
        let numbers = LinkNumbers::default();
        let known = KnownSources::default();
        let paired = Arc::new(Notify::new());
        let files = self.budget.disk_files;
        let disk = disk::start(&self.config.state_directory, files, mailbox.clone())
            .map_err(step("start the disk thread"))?;
        let descriptors = DescriptorPool::new(self.budget);
        let parts = EventLoopParts {
            descriptors: descriptors.clone(),
            config: self.config.clone(),
            identity: Arc::clone(&self.identity),
            pins: self.pins.clone(),
            trust: trust.clone(),
            numbers: numbers.clone(),
            known: known.clone(),
            mailbox: mailbox.clone(),
            path_memory: PathMemory::load(&self.config.state_directory, SystemTime::now()),
            disk,
            files: FilesThread::start(&self.config.state_directory, mailbox.clone())
                .map_err(step("start the thread of the accelerators' files"))?,
            intercept: changes.clone(),
            surroundings: surroundings::SurroundingsWatch::new(
                self.config.lan_interfaces.clone(),
                mailbox.clone(),
            ),
            spoofed_blocked: blocked,
            udp: opened.udp,
            runtime: self.handle.clone(),
            heart: self.heart.clone(),
            dictionary_key: self.dictionary_key.clone(),
            seed: random_seed().map_err(step("get random numbers"))?,
        };
        let (engine, mut loop_ended) =
            start_loop(parts, messages).map_err(step("start the engine"))?;
        if let Some(listener) = opened.wan {
            let listening = ListenerContext {
                identity: Arc::clone(&self.identity),
                trust,
                wan: self.config.wan.clone(),
                own_name: self.config.name.clone(),
                invitations: InvitationDirectory::new(&self.config.state_directory),
                pins: self.pins.clone(),
                numbers,
                known,
                mailbox: mailbox.clone(),
                handshakes: self.budget.handshakes,
                paired: Arc::clone(&paired),
            };
            tokio::spawn(wan::listen(into_tokio(listener)?, listening));
        }
        let connections = ConnectionNumbers::new(engine, descriptors);
        if let Some(hold) = opened.hold {
            let (connections, mailbox) = (connections.clone(), mailbox.clone());
            tokio::spawn(intercept::attend(hold, held.clone(), connections, mailbox));
        }
        for listener in opened.intercept {
            tokio::spawn(intercept::accept_intercepted(
                into_tokio(listener)?,
                held.clone(),
                connections.clone(),
                mailbox.clone(),
            ));
        }
        let places = proxy::places();
        for (listener, protocol) in opened.proxies {
            tokio::spawn(proxy::listen(
                into_tokio(listener)?,
                protocol,
                places.clone(),
                connections.clone(),
                mailbox.clone(),
            ));
        }
        let (reload, mut reloads) = mpsc::unbounded_channel();
        let asked = admin::AdminContext {
            config: self.config.clone(),
            identity: self.identity.node(),
            mailbox: mailbox.clone(),
            interception: reported,
            purge: admin::DictionaryPurge::new(&self.config.dictionary),
            reload,
            started: tokio::time::Instant::now(),
        };
        let asked = Arc::new(asked);
        let admin = tokio::net::UnixListener::from_std(opened.admin)
            .map_err(step("open the administration socket"))?;
        tokio::spawn(admin::listen(admin, Arc::clone(&asked)));
        if let Some(listener) = opened.metrics {
            tokio::spawn(metrics::listen(into_tokio(listener)?, asked));
        }

        tracing::info!(
            node = self.config.name,
            id = self.identity.node().short(),
            "the node is running"
        );
        service_manager::notify("READY=1");
        let watchdog_ping = service_manager::watchdog_interval();
        let ended = self
            .attend(
                &mailbox,
                &paired,
                &mut reloads,
                changes.as_ref(),
                &mut loop_ended,
                watchdog_ping,
            )
            .await;
        service_manager::notify("STOPPING=1");
        if let Some(changes) = changes {
            let (done, removed) = oneshot::channel();
            let _ = changes.send(InterceptChange::Remove(done));
            let _ = removed.await;
        }
        let _ = std::fs::remove_file(&self.config.admin_socket);
        if ended.is_ok() {
            self.heart.say_goodbye();
        }
        tracing::info!(node = self.config.name, "the node has stopped");
        ended
    }

    /// Waits for signals and news until the engine has stopped.
    async fn attend(
        &self,
        mailbox: &LoopMailbox,
        paired: &Notify,
        reloads: &mut mpsc::UnboundedReceiver<ReloadRequester>,
        changes: Option<&mpsc::UnboundedSender<InterceptChange>>,
        loop_ended: &mut oneshot::Receiver<()>,
        watchdog_ping: Option<Duration>,
    ) -> Result<(), RunError> {
        let listen = |kind| signal(kind).map_err(step("listen to signals"));
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut hangup = listen(SignalKind::hangup())?;
        let mut stopping = false;
        let mut ping = tokio::time::interval(watchdog_ping.unwrap_or(Duration::from_secs(3600)));
        let mut look = tokio::time::interval(keytab_file::LOOK_EVERY);
        let mut held = ActiveConfig::new(self.config.clone());
        held.flows_wanted = self.flows_wanted;
        let mut rereading = ConfigRereader::new(self.config.file.clone());
        let give_up = tokio::time::sleep(Duration::MAX);
        tokio::pin!(give_up);
        loop {
            tokio::select! {
                _ = &mut *loop_ended => {
                    return if stopping { Ok(()) } else { Err(RunError::LoopEnded) };
                }
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {
                    rereading.ask(None);
                    continue;
                }
                Some(asker) = reloads.recv() => {
                    rereading.ask(Some(asker));
                    continue;
                }
                () = paired.notified() => {
                    rereading.ask(None);
                    continue;
                }
                reread = rereading.ended() => {
                    let confirmed = reread.confirmed();
                    let ConfigReread { read, askers } = reread;
                    let outcome = self.reload(read, confirmed, mailbox, changes, &mut held).await;
                    for asker in askers {
                        // Who waits no longer has been told that it was still being read.
                        let _ = asker.reply.send(outcome.clone());
                    }
                    continue;
                }
                _ = ping.tick() => {
                    // Asking the loop is what shows that it is alive.
                    if watchdog_ping.is_some() && mailbox.ask(crate::mailbox::OperatorQuestion::Status).await.is_some() {
                        service_manager::notify("WATCHDOG=1");
                    }
                    continue;
                }
                _ = look.tick() => {
                    held.look_at_keytab();
                    continue;
                }
                looked = held.looks.ended() => {
                    if let Some(looked) = looked {
                        held.take_keytab(looked, mailbox).await;
                    }
                    continue;
                }
                () = &mut give_up => {
                    tracing::warn!("flows were still open after the time that `grace` allows; the node resets them");
                    return Ok(());
                }
            }
            if stopping {
                tracing::warn!("the node received a second stop signal; it resets all flows");
                return Ok(());
            }
            stopping = true;
            tracing::info!(grace_s = self.config.grace.as_secs_f64(), "stopping");
            let _ = mailbox.send(LoopMessage::Stop).await;
            give_up
                .as_mut()
                .reset(tokio::time::Instant::now() + self.config.grace + AFTER_GRACE);
        }
    }

    /// Applies the configuration that was read again; a wrong one changes nothing, and is reported.
    /// Pins apply in any case.
    async fn reload(
        &self,
        read: Result<NodeConfig, RunError>,
        confirmed: ConfirmedRemovals,
        mailbox: &LoopMailbox,
        changes: Option<&mpsc::UnboundedSender<InterceptChange>>,
        held: &mut ActiveConfig,
    ) -> Result<ConfigChanges, String> {
        let mut config = match read {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "the node could not reload the configuration; it continues with the old one");
                // Whom `peer remove` has removed is removed all the same.
                let old = held.config.clone();
                let pins = mailbox.reload(old, ConfirmedRemovals::EVERYTHING).await;
                return pins.and(Err(error.to_string()));
            }
        };
        let flows_wanted = config.limits.flows;
        fit_flows_to_descriptors(&mut config, Some(held.flows_wanted));
        let taken = mailbox.reload(config.clone(), confirmed).await?;
        held.flows_wanted = flows_wanted;
        for what in self.needs_restart(&config) {
            tracing::warn!(what, "this change needs a restart of the node");
        }
        if let Some(changes) = changes {
            let rules = self.rules_of(&config);
            let _ = changes.send(InterceptChange::Configure(Box::new(rules)));
        }
        held.replace(config);
        service_manager::notify("READY=1");
        Ok(taken)
    }

    /// Returns the configuration that interception may follow now. Its listener and its mark are
    /// those of the start: rules for others would hand connections to no listener.
    fn rules_of(&self, config: &NodeConfig) -> NodeConfig {
        let mut rules = config.clone();
        rules.intercept = InterceptConfig {
            only_marked: config.intercept.only_marked,
            rules: config.intercept.rules.clone(),
            reset_surviving: config.intercept.reset_surviving.clone(),
            ..self.config.intercept.clone()
        };
        // Only a configuration that switches interception off, which takes a restart, may have no LAN side.
        if rules.lan_interfaces.is_empty() {
            rules.lan_interfaces.clone_from(&self.config.lan_interfaces);
        }
        rules
    }

    fn needs_restart(&self, new: &NodeConfig) -> Vec<&'static str> {
        let old = &self.config;
        let pairs = [
            ("name", old.name != new.name),
            (
                "state_directory",
                old.state_directory != new.state_directory,
            ),
            ("admin_socket", old.admin_socket != new.admin_socket),
            ("metrics", old.metrics != new.metrics),
            ("[wan] listen", old.wan.listen != new.wan.listen),
            ("[wan] udp", old.wan.udp != new.wan.udp),
            ("[intercept] mode", old.intercept.mode != new.intercept.mode),
            ("[intercept] port", old.intercept.port != new.intercept.port),
            ("[intercept] mark", old.intercept.mark != new.intercept.mark),
            (
                "[intercept] route_table",
                old.intercept.route_table != new.intercept.route_table,
            ),
            ("[proxy] socks5", old.proxy.socks5 != new.proxy.socks5),
            (
                "[proxy] http_connect",
                old.proxy.http_connect != new.proxy.http_connect,
            ),
            ("[dictionary]", old.dictionary != new.dictionary),
        ];
        let changed = pairs.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(what, _)| what).collect()
    }

    fn start_interception(
        &self,
        hold: (Option<intercept::HoldPorts>, intercept::HeldSyns),
        report: watch::Sender<intercept::InterceptReport>,
        spoofed_blocked: watch::Sender<intercept::SpoofedBlocked>,
        mailbox: LoopMailbox,
    ) -> Option<mpsc::UnboundedSender<InterceptChange>> {
        if self.config.intercept.mode == InterceptMode::Off {
            return None;
        }
        let (changes, wanted) = mpsc::unbounded_channel();
        tokio::spawn(intercept::manage(
            self.config.clone(),
            hold,
            wanted,
            report,
            spoofed_blocked,
            mailbox,
        ));
        Some(changes)
    }
}

/// Starts the thread that owns the engine, with a runtime of its own for the busiest sockets of the
/// loop.
fn start_loop(
    parts: EventLoopParts,
    messages: mpsc::Receiver<LoopMessage>,
) -> io::Result<(Handle, oneshot::Receiver<()>)> {
    let (ended, loop_ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    let (alarm, event_loop) = {
        let _inside = runtime.enter();
        (PreciseAlarm::new()?, EventLoop::new(parts)?)
    };
    std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || {
            runtime.block_on(event_loop.run(messages, alarm));
            runtime.block_on(end_tasks());
            // Also sent by the drop of `ended` when the loop panics.
            let _ = ended.send(());
        })?;
    Ok((handle, loop_ended))
}

/// Lets connections execute the loop's last commands: their queues have ended with it, and they end
/// with those.
async fn end_tasks() {
    let deadline = tokio::time::Instant::now() + LAST_WORDS;
    let tasks = Handle::current().metrics();
    while tasks.num_alive_tasks() > 0 && tokio::time::Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
}

fn open(config: &NodeConfig) -> Result<OpenedSockets, RunError> {
    let intercepts = config.intercept.mode == InterceptMode::Transparent;
    let intercept = if intercepts {
        intercept::bind(config.intercept.port).map_err(|cause| RunError::Listen {
            what: "the interception port",
            address: config.intercept.port.to_string(),
            cause,
        })?
    } else {
        Vec::new()
    };
    let hold = intercepts.then(|| intercept::HoldSockets::open_or_warn(&config.intercept));
    let mut proxies = Vec::new();
    for (address, protocol, what) in [
        (config.proxy.socks5, ProxyProtocol::Socks5, "SOCKS5 at"),
        (
            config.proxy.http_connect,
            ProxyProtocol::HttpConnect,
            "HTTP CONNECT at",
        ),
    ] {
        if let Some(address) = address {
            proxies.push((listener(what, address)?, protocol));
        }
    }
    Ok(OpenedSockets {
        wan: config
            .wan
            .listen
            .map(|address| listener("the WAN address", address))
            .transpose()?,
        udp: config
            .wan
            .listen
            .filter(|_| config.wan.udp)
            .map(|address| {
                wan::bind(address).map_err(|cause| RunError::Listen {
                    what: "the WAN address for UDP",
                    address: address.to_string(),
                    cause,
                })
            })
            .transpose()?,
        intercept,
        hold: hold.flatten(),
        proxies,
        metrics: config
            .metrics
            .map(|address| listener("the metrics address", address))
            .transpose()?,
        admin: admin::bind(&config.admin_socket).map_err(|cause| RunError::Listen {
            what: "the administration socket",
            address: config.admin_socket.display().to_string(),
            cause,
        })?,
    })
}

fn listener(what: &'static str, address: SocketAddr) -> Result<std::net::TcpListener, RunError> {
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|cause| RunError::Listen {
        what,
        address: address.to_string(),
        cause,
    })
}

fn into_tokio(listener: std::net::TcpListener) -> Result<TcpListener, RunError> {
    TcpListener::from_std(listener).map_err(step("register a listener with the runtime"))
}

fn drop_capabilities(intercepts: bool) -> io::Result<()> {
    let keep: &[u32] = if intercepts {
        &[sys::CAP_NET_ADMIN, sys::CAP_NET_RAW]
    } else {
        &[]
    };
    sys::keep_only_capabilities(keep)
}

/// Loads the key of the dictionary on disk, if there is one.
fn dictionary_key(config: &NodeConfig) -> Result<Option<DictionaryKey>, RunError> {
    if config.dictionary.disk.bytes() == 0 {
        return Ok(None);
    }
    let path = &config.dictionary.key_file;
    let (key, origin) = dictionary_key::load_or_make(path)?;
    if origin == KeyOrigin::Made {
        let key_file = path.display();
        let mut stored = std::fs::read_dir(config.state_directory.join("dictionary"));
        match stored.as_mut().is_ok_and(|stored| stored.next().is_some()) {
            true => tracing::info!(
                %key_file,
                "created a new key for the dictionary; the dictionary's old content on disk cannot be read any more"
            ),
            false => tracing::info!(%key_file, "created a key for the dictionary"),
        }
    }
    Ok(Some(key))
}

fn random_seed() -> io::Result<u64> {
    let mut seed = [0; 8];
    sys::fill_random(&mut seed)?;
    Ok(u64::from_le_bytes(seed))
}

fn step(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |cause| RunError::Step { what, cause }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;

    const NODE: &str = r#"
        [node]
        name = "far"
        state_directory = "/var/lib/far"
        lan_interfaces = ["lan0"]

        [wan]
        listen = "0.0.0.0:4433"

        [[peer]]
        name = "near"
        address = "198.18.12.1:4433"
        prefixes = ["198.18.1.0/24"]

        [credentials]
        keytab = "/etc/far/keytab"
    "#;

    /// Its keys would replace those that were read with the configuration.
    #[test]
    fn keytab_check_from_before_reload_is_discarded() {
        let config = NodeConfig::parse(Path::new("far.toml"), NODE).unwrap();
        let mut held = ActiveConfig::new(config.clone());
        let watch = held.watch.clone();
        let now = Instant::now();
        let mut ends = Vec::new();
        let mut looks = 0;
        while held.looks.may_begin(now) {
            let (end, hangs) = mpsc::channel::<()>();
            let watch = watch.clone();
            held.looks.begin(now, move || {
                let _ = hangs.recv();
                let changed = None;
                KeytabPollResult { watch, changed }
            });
            ends.push(end);
            looks += 1;
            held.replace(config.clone());
        }
        assert_eq!(looks, keytab_file::LOOKS_MAX);
    }

    /// A limit that only a wait for a disk exceeds.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "multi_thread")]
    async fn unresponsive_disk_does_not_block_reload() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("far.toml");
        let made = std::process::Command::new("mkfifo").arg(&file).status();
        assert!(made.unwrap().success());
        let node = Node {
            config: NodeConfig::parse(&file, NODE).unwrap(),
            identity: Arc::new(NodeIdentity::load_or_create(directory.path()).unwrap()),
            dictionary_key: None,
            pins: PinDirectory::new(directory.path()),
            heart: WatchdogHeartbeat::default(),
            budget: DescriptorBudget {
                pool: 64,
                flows: 32,
                disk_files: 4,
                handshakes: 4,
                probes: 4,
            },
            flows_wanted: 32,
            handle: Handle::current(),
        };
        let (mailbox, _messages) = LoopMailbox::new();
        let (ends, mut loop_ended) = oneshot::channel();
        let attending = tokio::spawn(async move {
            let paired = Notify::new();
            let (reload, mut reloads) = tokio::sync::mpsc::unbounded_channel();
            let asker = ReloadRequester {
                reply: oneshot::channel().0,
                confirmed: ConfirmedRemovals::NOTHING,
            };
            reload.send(asker).unwrap();
            node.attend(&mailbox, &paired, &mut reloads, None, &mut loop_ended, None)
                .await
        });
        // It is being read.
        let opens = move || std::fs::File::options().write(true).open(file);
        let writer = tokio::task::spawn_blocking(opens).await.unwrap().unwrap();
        ends.send(()).unwrap();
        let attended = tokio::time::timeout(PATIENCE, attending).await;
        drop(writer);
        let ended = attended.expect("it waits for the disk").unwrap();
        assert!(matches!(ended, Err(RunError::LoopEnded)));
    }
}
