//! The loop that owns the engine: one thread, one queue, and no waits but those for the queue and
//! the clock.
//!
//! ```text
//!   tasks ──► mailbox ──► handle ──► outputs ──► tasks' own queues, disk thread, interception
//!                           ▲           │
//!                     clock ┘           └► transmit: while the link's socket has room
//! ```
//!
//! Tasks on this same thread serve hosts' connections and UDP sockets between two rounds of the
//! loop. Passing a piece of data between threads costs more for the wake-ups than all other work on
//! it, and while the loop is busy the next data grows into one larger piece. Links (TLS), listeners
//! and administration have threads of their own.
//!
//! It decides nothing about protocols. The watchdog monitors its heartbeat, because a node whose
//! loop hangs must not keep traffic.

mod broken_links;
mod datagrams;
#[cfg(test)]
mod far_tests;
mod purges;
mod reloading;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, mpsc as thread_mpsc};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use engine::{
    ConnectFailure, ConnectionId, ConnectionOwner, Engine, EngineEvent, EngineInput, EngineOutput,
    LinkId,
};
use reduce::{DictionaryKey, DiskRequest};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use vocab::{NodeId, SeededRandom, Time};

use crate::accelerator_files::FilesThread;
use crate::clock::{EngineClock, PreciseAlarm};
use crate::config::NodeConfig;
use crate::descriptors::{DescriptorPool, TakenDescriptors};
use crate::identity::NodeIdentity;
use crate::intercept;
use crate::lan;
use crate::mailbox::{LoopMailbox, LoopMessage, OperatorQuestion};
use crate::pairing::{IdentityPin, LoadedPins, PinDirectory, PinError};
use crate::path_memory::PathMemory;
use crate::repeats;
use crate::surroundings;
use crate::tls::{self, TrustedIdentities};
use crate::wan::{
    self, DialerContext, KeyExporter, KnownSources, LinkAddresses, LinkCommand, LinkNumbers,
    LinkPaths, PeerLinks,
};
use crate::watchdog::WatchdogHeartbeat;
use datagrams::{LinkDatagrams, ReadSocket};
use purges::PendingPurges;

/// The interval of heartbeats from the loop to the watchdog.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(250);
/// The interval at which changed properties of the paths to the peers are written.
const NOTE_PATHS_EVERY: Duration = Duration::from_secs(60);
/// Messages taken before links are served again.
const BATCH: usize = 64;
/// Handed to a link at once: four TLS records.
const PIECE_BYTES: usize = 64 * 1024;

/// Addresses of one peer that are never intercepted: a peer behind a changing address has a new one
/// each day, and a node is restarted within a few weeks.
const PEER_ADDRESSES_MAX: usize = 64;

/// Resets of the last moment are given this long to leave before the links are closed on them.
const FAREWELL: Duration = Duration::from_millis(500);

/// The longest wait for the disk at the end, for the accelerators' last writes: well below the time
/// after which service managers kill.
const LAST_WRITES: Duration = Duration::from_secs(3);

/// The parts that the event loop is built from.
pub(crate) struct EventLoopParts {
    /// For connections to peers' servers.
    pub(crate) descriptors: DescriptorPool,
    pub(crate) config: NodeConfig,
    pub(crate) identity: Arc<NodeIdentity>,
    pub(crate) pins: PinDirectory,
    pub(crate) trust: TrustedIdentities,
    pub(crate) numbers: LinkNumbers,
    pub(crate) known: KnownSources,
    pub(crate) mailbox: LoopMailbox,
    pub(crate) path_memory: PathMemory,
    pub(crate) disk: thread_mpsc::Sender<DiskRequest>,
    pub(crate) files: FilesThread,
    pub(crate) intercept: Option<mpsc::UnboundedSender<intercept::InterceptChange>>,
    pub(crate) surroundings: surroundings::SurroundingsWatch,
    /// Until when connections with a client's address are known not to get out of here.
    pub(crate) spoofed_blocked: watch::Receiver<intercept::SpoofedBlocked>,
    /// At the WAN address, for the links that are accepted there.
    pub(crate) udp: Option<std::net::UdpSocket>,
    /// The runtime for work outside the loop's thread.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) heart: WatchdogHeartbeat,
    /// The key that seals the dictionary on disk, if it is kept there.
    pub(crate) dictionary_key: Option<DictionaryKey>,
    pub(crate) seed: u64,
}

struct ConnectionSlot {
    commands: mpsc::UnboundedSender<lan::ConnectionCommand>,
    /// A client's, for the connection to its server if it goes directly.
    descriptors: Option<TakenDescriptors>,
}

struct LinkSlot {
    peer: NodeId,
    commands: mpsc::UnboundedSender<LinkCommand>,
    /// Bytes that its writer can take.
    room: usize,
    /// The session may have frames for it.
    wants: bool,
    addresses: LinkAddresses,
    exporter: KeyExporter,
    datagrams: Option<LinkDatagrams>,
    /// True if its TLS connection is gone while its datagram path still has work.
    is_broken: bool,
}

struct PeerSlot {
    name: String,
    /// The node's own addresses: the dialled one, and those of its links.
    own_addresses: BTreeSet<IpAddr>,
    links: watch::Sender<PeerLinks>,
    /// The dialler and the address it dials.
    dialer: Option<(String, AbortHandle)>,
}

/// Owns the engine.
pub(crate) struct EventLoop {
    clock: EngineClock,
    engine: Engine,
    parts: EventLoopParts,
    connections: HashMap<ConnectionId, ConnectionSlot>,
    links: HashMap<LinkId, LinkSlot>,
    peers: BTreeMap<NodeId, PeerSlot>,
    unpaired: Vec<String>,
    /// As they were read last.
    pins: BTreeMap<String, IdentityPin>,
    /// The errors of the pins that cannot be read, by peer.
    damaged_pins: BTreeMap<String, String>,
    paths: LinkPaths,
    /// The socket at the WAN address.
    udp: Option<ReadSocket>,
    /// Links that are gone and still used for their datagram paths.
    broken: Vec<LinkId>,
    /// Room for the packets of one system call.
    packets: BytesMut,
    /// The last note about the paths, perhaps still on its way to the disk.
    saving: Option<JoinHandle<()>>,
    /// The purges that operators have requested of accelerators.
    purges: PendingPurges,
    stopped: bool,
}

impl EventLoop {
    /// A loop around a new engine, to be made inside the runtime that it will run in. Peers that are
    /// paired and configured are dialled at once.
    ///
    /// # Errors
    /// When the runtime cannot wait for the UDP socket.
    pub(crate) fn new(mut parts: EventLoopParts) -> io::Result<Self> {
        let clock = EngineClock::start();
        let paths = LinkPaths::default();
        let udp = parts.udp.take();
        let udp = udp
            .map(|socket| ReadSocket::new(socket, &paths, &parts.mailbox))
            .transpose()?;
        let LoadedPins { pins, damaged } = parts.pins.load_all().unwrap_or_else(|error| {
            tracing::error!(%error, "the node trusts no peer until this problem is corrected");
            LoadedPins::default()
        });
        let damaged_pins = log_damaged_pins(damaged);
        let (mut config, peers, unpaired) = engine_config(&parts.config, &parts.identity, &pins);
        for peer in &unpaired {
            warn_of_unpaired(peer);
        }
        config.dictionary_key = parts.dictionary_key.clone();
        let random = SeededRandom::from_seed(parts.seed);
        let mut engine = Engine::new(config, clock.now(), random);
        let surroundings = EngineInput::Surroundings(parts.surroundings.first());
        engine.handle(clock.now(), surroundings);
        engine.handle(clock.now(), calendar());
        parts.surroundings.start()?;
        let mut this = Self {
            clock,
            engine,
            parts,
            connections: HashMap::new(),
            links: HashMap::new(),
            peers: BTreeMap::new(),
            unpaired,
            pins,
            damaged_pins,
            paths,
            udp,
            broken: Vec::new(),
            packets: BytesMut::new(),
            saving: None,
            purges: PendingPurges::default(),
            stopped: false,
        };
        for peer in peers.keys() {
            if let Some(path) = this.parts.path_memory.of(*peer) {
                this.engine.remember_path(*peer, path);
            }
        }
        this.set_peers(peers);
        Ok(this)
    }

    /// Runs until the engine has stopped or no sender is left.
    pub(crate) async fn run(
        mut self,
        mut messages: mpsc::Receiver<LoopMessage>,
        mut alarm: PreciseAlarm,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut next_beat = Instant::now();
        let mut next_note = next_beat + NOTE_PATHS_EVERY;
        self.drain();
        self.serve_links();
        let mut has_more = false;
        while !self.stopped {
            let due = self
                .engine
                .poll_timeout()
                .and_then(|time| self.clock.instant(time));
            let wake = match due {
                _ if has_more => Instant::now(),
                Some(due) => due.min(next_beat),
                None => next_beat,
            };
            tokio::select! {
                biased;
                received = messages.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        return;
                    }
                }
                () = alarm.at(wake) => {}
            }
            let is_full = batch.len() == BATCH;
            for message in batch.drain(..) {
                self.take(message);
                self.drain();
            }
            let now = self.clock.now();
            if self.engine.poll_timeout().is_some_and(|due| due <= now) {
                self.engine.handle_timeout(now);
                self.drain();
            }
            self.serve_links();
            has_more = self.serve_datagrams();
            self.forget_broken_links();
            if Instant::now() >= next_beat {
                self.parts.heart.beat();
                self.engine.handle(self.clock.now(), calendar());
                self.drain();
                next_beat = Instant::now() + HEARTBEAT;
            }
            if Instant::now() >= next_note {
                self.save_paths();
                next_note = Instant::now() + NOTE_PATHS_EVERY;
            }
            if has_more || is_full {
                // The other tasks of this thread have their turn.
                tokio::task::yield_now().await;
            }
        }
        self.note_paths();
        self.say_goodbye(&mut messages).await;
        if let Some(saving) = self.saving.take() {
            let _ = saving.await;
        }
        if !self.parts.files.finish(LAST_WRITES) {
            tracing::warn!(
                "the disk was too slow to write all data of the accelerators before the end; data synced \
                 earlier is safe"
            );
        }
        if let Some(news) = self.parts.path_memory.take_news() {
            news.write();
        }
    }

    /// Writes the properties of the paths to the peers, on a thread that may wait for the disk.
    fn save_paths(&mut self) {
        self.note_paths();
        let is_saving = (self.saving.as_ref()).is_some_and(|saving| !saving.is_finished());
        if !is_saving && let Some(news) = self.parts.path_memory.take_news() {
            let saving = self.parts.runtime.spawn_blocking(move || news.write());
            self.saving = Some(saving);
        }
    }

    fn note_paths(&mut self) {
        let now = SystemTime::now();
        for (peer, path) in self.engine.measured_paths() {
            self.parts.path_memory.note(now, peer, path);
        }
    }

    /// Closes the links after the last messages, so that the peers learn of the reset flows without
    /// waiting.
    async fn say_goodbye(&mut self, messages: &mut mpsc::Receiver<LoopMessage>) {
        for link in std::mem::take(&mut self.broken) {
            drop(self.forget_link(link));
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            self.close_link(link);
        }
        let deadline = Instant::now() + FAREWELL;
        while !self.links.is_empty() {
            match tokio::time::timeout_at(deadline, messages.recv()).await {
                Ok(Some(LoopMessage::Input(EngineInput::LinkDown { link, .. }))) => {
                    drop(self.forget_link(link));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn take(&mut self, message: LoopMessage) {
        let now = self.clock.now();
        match message {
            LoopMessage::Input(input) => self.take_input(now, input),
            LoopMessage::Accepted {
                connection,
                client,
                server,
                via,
                commands,
                descriptors,
            } => {
                tracing::debug!(%client, %server, %via, "accepted");
                let descriptors = Some(descriptors);
                let slot = ConnectionSlot {
                    commands,
                    descriptors,
                };
                self.connections.insert(connection, slot);
                let accepted = EngineInput::Accepted {
                    connection,
                    client,
                    server,
                    via,
                };
                self.engine.handle(now, accepted);
            }
            LoopMessage::Asked {
                connection,
                client,
                server,
                via,
                commands,
                descriptors,
            } => {
                tracing::debug!(%client, %server, %via, "a client asks for a connection");
                let descriptors = Some(descriptors);
                let slot = ConnectionSlot {
                    commands,
                    descriptors,
                };
                self.connections.insert(connection, slot);
                let asked = EngineInput::Asked {
                    connection,
                    client,
                    server,
                    via,
                };
                self.engine.handle(now, asked);
            }
            LoopMessage::LinkUp {
                link,
                peer,
                dialed_by_us,
                addresses,
                exporter,
                commands,
            } => {
                let slot = LinkSlot {
                    peer,
                    commands,
                    room: 0,
                    wants: false,
                    addresses,
                    exporter,
                    datagrams: None,
                    is_broken: false,
                };
                self.link_up(now, link, slot, dialed_by_us);
            }
            LoopMessage::Datagrams(trains) => {
                for train in trains {
                    self.take_train(now, train);
                }
            }
            LoopMessage::DatagramRoom { link } => self.send_waiting(link),
            LoopMessage::LinkRoom { link, bytes } => {
                if let Some(slot) = self.links.get_mut(&link) {
                    slot.room += bytes;
                }
            }
            LoopMessage::Ask { question, answer } => {
                // Whoever asked may have gone; that is no concern of the loop's.
                let _ = answer.send(self.answer(now, question));
            }
            LoopMessage::PurgeAccelerator {
                name,
                prefix,
                answer,
            } => {
                let id = self.purges.begin(answer);
                let purge = EngineInput::PurgeAccelerator { id, name, prefix };
                self.engine.handle(now, purge);
            }
            LoopMessage::Reload {
                config,
                confirmed,
                answer,
            } => {
                let _ = answer.send(self.reload(now, *config, confirmed));
            }
            LoopMessage::Stop => {
                let grace = self.parts.config.grace;
                self.engine.handle(now, EngineInput::Stop { grace });
            }
        }
    }

    fn take_input(&mut self, now: Time, input: EngineInput) {
        match &input {
            EngineInput::LinkDown { link, end } => return self.link_down(now, *link, *end),
            EngineInput::Aborted { connection }
            | EngineInput::Connected {
                connection,
                result: Err(_),
            } => {
                self.connections.remove(connection);
            }
            EngineInput::Accepted { .. }
            | EngineInput::Asked { .. }
            | EngineInput::Received { .. }
            | EngineInput::Finished { .. }
            | EngineInput::Failed { .. }
            | EngineInput::Written { .. }
            | EngineInput::Connected { result: Ok(()), .. }
            | EngineInput::LinkUp { .. }
            | EngineInput::LinkReceived { .. }
            | EngineInput::RefusedByPeer { .. }
            | EngineInput::DatagramsReady { .. }
            | EngineInput::Datagrams { .. }
            | EngineInput::Disk(_)
            | EngineInput::AcceleratorFile { .. }
            | EngineInput::PurgeAccelerator { .. }
            | EngineInput::Avoided { .. }
            | EngineInput::BypassedServerAnswered { .. }
            | EngineInput::Surroundings(_)
            | EngineInput::Calendar { .. }
            | EngineInput::Configure(_)
            | EngineInput::ClearDictionary { .. }
            | EngineInput::Stop { .. } => {}
        }
        self.engine.handle(now, input);
    }

    fn link_up(&mut self, now: Time, link: LinkId, mut slot: LinkSlot, dialed_by_us: bool) {
        let peer = slot.peer;
        // The pin may have been removed since the handshake.
        if !self.peers.contains_key(&peer) {
            repeats::NO_SECTION.tell(None, || {
                tracing::info!(
                    node = peer.short(),
                    "closed a link: the other node is paired, but the configuration has no [[peer]] section for it"
                );
            });
            return;
        }
        let offer = match self.open_datagrams(&slot.addresses, dialed_by_us) {
            Ok(Some((datagrams, offer))) => {
                self.paths.insert(datagrams.connection_id(), link);
                slot.datagrams = Some(datagrams);
                Some(offer)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "a link has no UDP path; its flows travel by TLS only");
                None
            }
        };
        let remote = slot.addresses.remote.ip().to_canonical();
        self.links.insert(link, slot);
        self.count_link(peer, |links| links.up += 1);
        if let Some(peer) = self.peers.get_mut(&peer)
            && peer.own_addresses.len() < PEER_ADDRESSES_MAX
            && peer.own_addresses.insert(remote)
        {
            self.exclude_peer_addresses();
        }
        let up = EngineInput::LinkUp {
            link,
            peer,
            dialed_by_us,
            offer,
        };
        self.engine.handle(now, up);
    }

    /// Does everything that the engine wants done by now.
    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            self.perform(output);
        }
    }

    fn perform(&mut self, output: EngineOutput) {
        match output {
            EngineOutput::Write { connection, bytes } => {
                self.command(connection, lan::ConnectionCommand::Write(bytes));
            }
            EngineOutput::FinishWrite { connection } => {
                self.command(connection, lan::ConnectionCommand::FinishWrite);
            }
            EngineOutput::ReadCredit { connection, bytes } => {
                self.command(connection, lan::ConnectionCommand::ReadCredit(bytes));
            }
            EngineOutput::Reset { connection } => {
                self.command(connection, lan::ConnectionCommand::Reset);
                self.connections.remove(&connection);
            }
            EngineOutput::ResetWhenDelivered { connection } => {
                self.command(connection, lan::ConnectionCommand::ResetWhenDelivered);
            }
            EngineOutput::Close { connection } => {
                self.command(connection, lan::ConnectionCommand::Close);
                self.connections.remove(&connection);
            }
            EngineOutput::Connect {
                connection,
                client,
                server,
                on_behalf,
            } => self.connect(connection, client, server, on_behalf),
            EngineOutput::Transmit { link } => {
                if let Some(slot) = self.links.get_mut(&link) {
                    slot.wants = true;
                }
            }
            EngineOutput::StartDatagrams { link, agreement } => {
                self.start_datagrams(link, *agreement)
            }
            EngineOutput::TransmitDatagrams { link } => {
                let slot = self.links.get_mut(&link);
                if let Some(datagrams) = slot.and_then(|slot| slot.datagrams.as_mut()) {
                    datagrams.wants_transmit();
                }
            }
            EngineOutput::SendLast { link, bytes } => {
                if let Some(slot) = self.links.get(&link) {
                    let _ = slot.commands.send(LinkCommand::Send(bytes));
                }
            }
            EngineOutput::CloseLink { link, reason } => {
                tracing::debug!(link = link.0, reason, "closing a link");
                self.close_link(link);
            }
            EngineOutput::Disk(request) => {
                if self.parts.disk.send(request).is_err() {
                    tracing::error!("the disk thread has ended");
                }
            }
            EngineOutput::AcceleratorFile {
                accelerator,
                request,
            } => {
                if let Err(completion) = self.parts.files.send(accelerator, request) {
                    let now = self.clock.now();
                    let failed = EngineInput::AcceleratorFile {
                        accelerator,
                        completion,
                    };
                    self.engine.handle(now, failed);
                }
            }
            EngineOutput::AcceleratorPurged { id, result } => self.purges.ended(id, result),
            EngineOutput::Avoid { server, lasting } => {
                tracing::debug!(%server, ?lasting, "a connection to this server failed; the node bypasses \
                    the server for a while");
                let avoid = intercept::InterceptChange::Avoid { server, lasting };
                if !self.intercept(avoid) {
                    let now = self.clock.now();
                    self.engine.handle(now, EngineInput::Avoided { server });
                }
            }
            EngineOutput::Readmit { server } => {
                self.intercept(intercept::InterceptChange::Readmit { server });
            }
            EngineOutput::AcceptAtOnce { server, lasting } => {
                self.intercept(intercept::InterceptChange::AcceptAtOnce { server, lasting });
            }
            EngineOutput::AcceptAfterServer { server } => {
                self.intercept(intercept::InterceptChange::AcceptAfterServer { server });
            }
            EngineOutput::BypassRoutes { routes } => {
                self.intercept(intercept::InterceptChange::BypassRoutes(routes));
            }
            EngineOutput::Admit { connection } => {
                self.command(connection, lan::ConnectionCommand::Admit)
            }
            EngineOutput::Decline {
                connection,
                failure,
            } => {
                self.command(connection, lan::ConnectionCommand::Decline(failure));
                self.connections.remove(&connection);
            }
            EngineOutput::PassBy { clients, lasting } => {
                tracing::debug!(%clients, ?lasting, "the node bypasses these clients for a while");
                self.intercept(intercept::InterceptChange::PassBy { clients, lasting });
            }
            EngineOutput::Intercept { peers } => {
                let prefixes = self
                    .parts
                    .config
                    .peers
                    .iter()
                    .filter(|peer| {
                        self.peers
                            .iter()
                            .any(|(node, slot)| slot.name == peer.name && peers.contains(node))
                    })
                    .flat_map(|peer| peer.prefixes.iter().copied())
                    .collect();
                self.intercept(intercept::InterceptChange::Destinations(prefixes));
            }
            EngineOutput::Event(event) => self.log(&event),
            EngineOutput::Stopped => self.stopped = true,
        }
    }

    fn command(&self, connection: ConnectionId, command: lan::ConnectionCommand) {
        // A task that has just ended has its Aborted under way to us.
        if let Some(slot) = self.connections.get(&connection) {
            let _ = slot.commands.send(command);
        }
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        client: Option<SocketAddr>,
        server: SocketAddr,
        on_behalf: ConnectionOwner,
    ) {
        let (commands, mut orders) = mpsc::unbounded_channel();
        let slot = ConnectionSlot {
            commands,
            descriptors: None,
        };
        self.connections.insert(connection, slot);
        let mailbox = self.parts.mailbox.clone();
        // What goes directly has the one that was taken with its client's, as long as either lives.
        let (serve, taken_before) = match on_behalf {
            ConnectionOwner::Peer => (self.parts.config.serve.clone().unwrap_or_default(), None),
            ConnectionOwner::Client { accepted } => {
                let client = self.connections.get(&accepted);
                let taken = client.and_then(|client| client.descriptors.clone());
                (Vec::new(), taken)
            }
        };
        let descriptors = self.parts.descriptors.clone();
        let spoofed_blocked = self.parts.spoofed_blocked.clone();
        tokio::spawn(async move {
            let filtered = async {
                match client {
                    Some(client) => intercept::until_blocked(spoofed_blocked.clone(), client).await,
                    None => std::future::pending().await,
                }
            };
            let taken = async {
                match taken_before {
                    Some(taken) => Some(taken),
                    None => descriptors.for_server().await,
                }
            };
            let opening = async {
                let taken = taken.await.ok_or(ConnectFailure::Exhausted)?;
                let opened = lan::open(client, server, &serve, &descriptors).await;
                // Answers that the packet filter here drops look like answers that go elsewhere.
                if let (Some(client), Err(ConnectFailure::AnswersElsewhere)) = (client, &opened) {
                    intercept::until_judged(spoofed_blocked.clone(), client).await;
                }
                Ok((opened?, taken))
            };
            // The only order before the connection stands is to give it up.
            let opened = tokio::select! {
                biased;
                () = filtered => Err(ConnectFailure::Filtered),
                opened = opening => opened,
                _ = orders.recv() => return,
            };
            let result = opened.as_ref().map(drop).map_err(|failure| *failure);
            let told = mailbox
                .input(EngineInput::Connected { connection, result })
                .await;
            if let (Ok((opened, taken)), Ok(())) = (opened, told) {
                let (stream, failed) = (opened.stream, opened.failed);
                lan::serve(connection, stream, Bytes::new(), failed, orders, mailbox).await;
                drop(taken);
            }
        });
    }

    /// Passes a change to the task that makes it; false when there is none.
    fn intercept(&self, change: intercept::InterceptChange) -> bool {
        let task = self.parts.intercept.as_ref();
        task.is_some_and(|task| task.send(change).is_ok())
    }

    fn close_link(&mut self, link: LinkId) {
        if let Some(slot) = self.links.get(&link) {
            let _ = slot.commands.send(LinkCommand::Close);
        }
    }

    /// Hands frames to every link that has room for them.
    fn serve_links(&mut self) {
        loop {
            let ready = self
                .links
                .iter()
                .find(|(_, slot)| slot.wants && slot.room > 0)
                .map(|(link, slot)| (*link, slot.room));
            let Some((link, room)) = ready else { return };
            let now = self.clock.now();
            let bytes = self.engine.transmit(now, link, room.min(PIECE_BYTES));
            if let Some(slot) = self.links.get_mut(&link) {
                match bytes {
                    Some(bytes) => {
                        slot.room = slot.room.saturating_sub(bytes.len());
                        let _ = slot.commands.send(LinkCommand::Send(bytes));
                    }
                    None => slot.wants = false,
                }
            }
            self.drain();
        }
    }

    fn count_link(&mut self, peer: NodeId, change: impl FnOnce(&mut PeerLinks)) {
        if let Some(slot) = self.peers.get(&peer) {
            slot.links.send_modify(change);
        }
    }

    /// Updates the peers, their trust and their diallers to the configuration.
    fn set_peers(&mut self, peers: BTreeMap<NodeId, String>) {
        self.parts.trust.replace(peers.clone());
        self.peers.retain(|node, slot| {
            let kept = peers.contains_key(node);
            if !kept && let Some((_, dialer)) = &slot.dialer {
                dialer.abort();
            }
            kept
        });
        let peers_now = &peers;
        (self.parts.path_memory).retain(|peer| peers_now.contains_key(peer));
        for (node, name) in peers {
            let slot = self.peers.entry(node).or_insert_with(|| PeerSlot {
                name: name.clone(),
                own_addresses: BTreeSet::new(),
                links: watch::channel(PeerLinks::default()).0,
                dialer: None,
            });
            slot.name.clone_from(&name);
            let configured = self
                .parts
                .config
                .peers
                .iter()
                .find(|peer| peer.name == name);
            let address = configured.and_then(|peer| peer.address.clone());
            // A name's address is known when a link is up.
            let literal = address.as_ref().and_then(|text| text.parse().ok());
            if let Some(literal) = literal.map(|address: SocketAddr| address.ip()) {
                slot.own_addresses.insert(literal.to_canonical());
            }
            let dialed = slot.dialer.as_ref().map(|(address, _)| address.clone());
            if address == dialed {
                continue;
            }
            if let Some((_, dialer)) = slot.dialer.take() {
                dialer.abort();
            }
            let Some(address) = address else { continue };
            if let Ok(address) = address.parse::<SocketAddr>() {
                self.parts.known.note(address.ip());
            }
            match tls::client(&self.parts.identity, node, tls::SESSION) {
                Ok(tls) => {
                    let dialing = DialerContext {
                        peer: node,
                        name,
                        address: address.clone(),
                        wan: self.parts.config.wan.clone(),
                        tls,
                        numbers: self.parts.numbers.clone(),
                        known: self.parts.known.clone(),
                        mailbox: self.parts.mailbox.clone(),
                        links: slot.links.subscribe(),
                    };
                    let task = self.parts.runtime.spawn(wan::dial_while_needed(dialing));
                    slot.dialer = Some((address, task.abort_handle()));
                }
                Err(error) => tracing::error!(%error, "cannot set TLS up"),
            }
        }
        self.exclude_peer_addresses();
    }

    /// Excludes the peers' own addresses from interception: no host behind a peer has them.
    fn exclude_peer_addresses(&self) {
        let slots = self.peers.values();
        let addresses = slots.flat_map(|slot| slot.own_addresses.iter().copied());
        self.intercept(intercept::InterceptChange::PeerAddresses(
            addresses.collect(),
        ));
    }

    fn answer(&self, now: Time, question: OperatorQuestion) -> serde_json::Value {
        let value = match question {
            OperatorQuestion::Status => serde_json::to_value(self.engine.status()),
            OperatorQuestion::Flows => serde_json::to_value(self.engine.flows(now)),
            OperatorQuestion::Why(flow) => serde_json::to_value(self.engine.why(now, flow)),
        };
        let mut value = value.unwrap_or_default();
        if let (OperatorQuestion::Status, Some(fields)) = (question, value.as_object_mut()) {
            fields.insert("unpaired_peers".to_owned(), self.unpaired.clone().into());
            let damaged = self.damaged_pins.iter();
            let damaged = damaged.map(|(peer, error)| json!({ "peer": peer, "error": error }));
            fields.insert("damaged_pins".to_owned(), damaged.collect());
            let links = self.links.len() - self.broken.len();
            fields.insert("links".to_owned(), links.into());
            fields.insert("connections".to_owned(), self.connections.len().into());
        }
        value
    }

    fn log(&mut self, event: &EngineEvent) {
        let name = |node: &NodeId| {
            self.peers
                .get(node)
                .map_or_else(|| node.short(), |slot| slot.name.clone())
        };
        match event {
            EngineEvent::PeerUp { peer, link } => {
                tracing::info!(peer = name(peer), link = link.0, "peer is up");
                self.count_link(*peer, |links| links.silent = false);
            }
            EngineEvent::PeerDown { peer } => {
                tracing::info!(
                    peer = name(peer),
                    "no link to the peer; the node bypasses the traffic to it"
                );
            }
            EngineEvent::DictionaryFault { faults_total } => {
                tracing::warn!(
                    faults_total,
                    "the dictionary's disk fails or is full; the dictionary continues in memory"
                );
            }
            EngineEvent::AcceleratorDisk {
                accelerator,
                trouble: accelerate::shared::DiskTrouble::Failed(fault),
            } => {
                tracing::warn!(
                    accelerator,
                    %fault,
                    "the disk fails or is full; the accelerator continues in memory and tries the disk \
                     again in a minute"
                );
            }
            EngineEvent::AcceleratorDisk {
                accelerator,
                trouble: accelerate::shared::DiskTrouble::Damaged { files, records },
            } => {
                tracing::warn!(
                    accelerator,
                    files,
                    records,
                    "a part of the accelerator's files is truncated, damaged, or encrypted with another \
                     key; the accelerator does not use this part"
                );
            }
            EngineEvent::DictionaryRejected {
                segments,
                outdated,
                sealed,
            } => {
                tracing::warn!(
                    segments,
                    outdated,
                    sealed,
                    "deleted segments of the dictionary on disk that this node cannot read: `outdated` \
                     counts the segments of an older release, `sealed` those encrypted with another key"
                );
            }
            EngineEvent::PeerSilent { peer } => {
                tracing::warn!(
                    peer = name(peer),
                    "the peer is silent; the node bypasses the traffic to it"
                );
                self.count_link(*peer, |links| links.silent = true);
            }
            EngineEvent::UnansweredFlowsEnded {
                peer,
                direct,
                reset,
            } => {
                tracing::warn!(
                    peer = name(peer),
                    direct,
                    reset,
                    "connections that the silent peer had not confirmed continue without the peer, or were reset"
                );
            }
            EngineEvent::PeerLost { peer, flows } => {
                tracing::warn!(
                    peer = name(peer),
                    flows,
                    "the session with the peer ended, because the peer's process ended or nothing was heard \
                     from it for too long; its flows are reset"
                );
            }
            EngineEvent::RefusedByPeer { peer, flows } => {
                tracing::warn!(
                    peer = name(peer),
                    flows,
                    "the peer has removed this node; its flows are reset"
                );
            }
            EngineEvent::PeerFiltered { peer } => {
                tracing::warn!(
                    peer = name(peer),
                    "the packet filter of the peer's machine drops the connections that the peer opens for \
                     clients; this node bypasses such connections. `trunkline node check` on that machine \
                     prints the commands that allow them"
                );
            }
            EngineEvent::PeerHeard { peer } => {
                tracing::info!(peer = name(peer), "the peer is not silent any more");
                self.count_link(*peer, |links| links.silent = false);
            }
            EngineEvent::PeerRestarted { peer } => {
                tracing::warn!(peer = name(peer), "peer was restarted; its flows are reset");
            }
            EngineEvent::LinkBroken { peer } => {
                tracing::info!(
                    peer = name(peer),
                    "the link to the peer broke; flows continue by UDP while the peer answers there"
                );
            }
            EngineEvent::DatagramsUp { peer } => {
                tracing::info!(peer = name(peer), "flows to the peer travel by UDP");
            }
            EngineEvent::DatagramsDown { peer, reason } => {
                tracing::warn!(
                    peer = name(peer),
                    ?reason,
                    "flows to the peer travel by TLS over TCP again"
                );
            }
            EngineEvent::PeerMisbehaved {
                peer,
                what,
                unlogged: untold,
            } => {
                tracing::warn!(
                    peer = name(peer),
                    what,
                    left_out = untold,
                    "the peer sent a message that breaks the rules of the protocol; left_out counts such \
                     messages that were not logged"
                );
            }
            EngineEvent::AsymmetricRoute {
                peer,
                clients,
                servers,
                lasting,
            } => {
                tracing::warn!(
                    peer = name(peer),
                    %clients,
                    %servers,
                    bypassed_s = lasting.as_secs(),
                    "asymmetric route: the servers' answers to these clients do not come back through the \
                     peer, so this node bypasses their connections; route the answers through the peer, or \
                     let the clients use this node's proxy ([proxy]), for which the peer connects from its \
                     own address"
                );
            }
            EngineEvent::LimitReached { limit } => {
                repeats::LIMIT_REACHED.tell(None, || {
                    tracing::warn!(
                        limit,
                        "the node reached a limit; it bypasses new connections"
                    );
                });
            }
            EngineEvent::LimitCleared { limit } => {
                repeats::LIMIT_CLEARED.tell(None, || {
                    tracing::info!(limit, "the node is below the limit again");
                });
            }
            EngineEvent::SourceAtShare { clients, open } => {
                repeats::SOURCE_AT_SHARE.tell(Some(clients.address()), || {
                    tracing::warn!(
                        %clients,
                        open,
                        "a client has as many flows as its share allows; the node bypasses its new connections"
                    );
                });
            }
            EngineEvent::PeerAtShare { peer, flows } => {
                repeats::LIMIT_REACHED.tell(None, || {
                    tracing::warn!(
                        peer = name(peer),
                        flows,
                        "the peer has as many flows as its share allows; the node bypasses new connections to it"
                    );
                });
            }
            EngineEvent::PeerBelowShare { peer } => {
                repeats::LIMIT_CLEARED.tell(None, || {
                    tracing::info!(peer = name(peer), "the peer is below its share again");
                });
            }
            EngineEvent::OpensRefused {
                peer,
                opens,
                reason,
                client,
                server,
            } => {
                tracing::warn!(
                    peer = name(peer),
                    opens,
                    reason,
                    "refused to open connections for the peer"
                );
                tracing::debug!(peer = name(peer), %client, %server, "the last connection that was refused");
            }
            EngineEvent::FlowFailed { flow, reason } => {
                tracing::debug!(flow, reason, "a flow failed");
            }
        }
    }
}

/// The time on the calendar, for the engine. A clock that is set before 1970 counts as 1970.
fn calendar() -> EngineInput {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since_1970 = since_1970.unwrap_or_default();
    EngineInput::Calendar { since_1970 }
}

/// Logs the peers that cannot be trusted because their pins are damaged. Returns the errors, by
/// peer.
fn log_damaged_pins(damaged: BTreeMap<String, PinError>) -> BTreeMap<String, String> {
    let logged = damaged.into_iter().map(|(peer, error)| {
        tracing::error!(
            peer,
            %error,
            "the pin of this peer cannot be read, so the node does not trust this peer; other peers are not affected"
        );
        (peer, error.to_string())
    });
    logged.collect()
}

fn warn_of_unpaired(peer: &str) {
    tracing::warn!(
        peer,
        "this peer is not paired yet; run `trunkline peer invite` on one node and `trunkline peer join` on \
         the other node"
    );
}

/// Peers by identity, with the names of their sections.
type PairedPeers = BTreeMap<NodeId, String>;

/// Builds the engine's configuration from the peers that are both configured and paired. Returns
/// these also by identity, and the names of the peers that are configured and not paired.
fn engine_config(
    config: &NodeConfig,
    identity: &NodeIdentity,
    pins: &BTreeMap<String, IdentityPin>,
) -> (engine::EngineConfig, PairedPeers, Vec<String>) {
    let mut peers = Vec::new();
    let mut paired = PairedPeers::new();
    let mut unpaired = Vec::new();
    for peer in &config.peers {
        let Some(pin) = pins.get(&peer.name) else {
            unpaired.push(peer.name.clone());
            continue;
        };
        paired.insert(pin.node, peer.name.clone());
        peers.push(engine::PeerConfig {
            node: pin.node,
            name: peer.name.clone(),
            prefixes: peer.prefixes.clone(),
        });
    }
    let engine_config = engine::EngineConfig {
        local: identity.node(),
        peers,
        serve: config.serve.clone(),
        serve_peers_without_prefixes: config.serve_peers_without_prefixes,
        limits: config.limits,
        policy: config.policy.clone(),
        dictionary: reduce::DictionaryConfig {
            memory: config.dictionary.memory,
            disk: config.dictionary.disk,
            ..reduce::DictionaryConfig::default()
        },
        dictionary_key: None,
        tunnel: tunnel::SessionConfig::default(),
        datagrams: config.wan.datagrams,
    };
    (engine_config, paired, unpaired)
}
