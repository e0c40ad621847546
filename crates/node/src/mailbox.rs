//! What tasks say to the engine's loop, through one bounded queue.
//!
//! A full queue makes readers wait, and through them the hosts and peers: that is all the back
//! pressure there is on the way in. On the way out the loop never waits: the engine bounds what
//! it hands out by counting what was taken ([`engine::Input::Written`], [`Message::LinkRoom`]).

use std::net::SocketAddr;

use engine::{ConnectionId, Input, LinkId, Via};
use tokio::sync::{mpsc, oneshot};
use vocab::NodeId;

use crate::config::NodeConfig;
use crate::descriptors::Taken;
use crate::lan;
use crate::rereading::{self, Confirmed};
use crate::wan::{Exporter, LinkAddresses, LinkCommand, Train};

/// Messages that may wait for the engine; with at most 64 KiB in each, 8 MiB.
const WAITING_MESSAGES: usize = 128;

/// Something for the engine's loop.
#[derive(Debug)]
pub(crate) enum Message {
    /// For the engine itself.
    Input(Input),
    /// A client came; its task takes `commands`.
    Accepted {
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: Via,
        commands: mpsc::UnboundedSender<lan::Command>,
        descriptors: Taken,
    },
    /// A client waits to hear whether its server can be reached; its task takes `commands`.
    Asked {
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: Via,
        commands: mpsc::UnboundedSender<lan::Command>,
        descriptors: Taken,
    },
    /// A link's handshake is done; its writer takes `commands`.
    LinkUp {
        link: LinkId,
        peer: NodeId,
        dialed_by_us: bool,
        addresses: LinkAddresses,
        exporter: Exporter,
        commands: mpsc::UnboundedSender<LinkCommand>,
    },
    /// Packets came by UDP; some 64 KiB at most.
    Datagrams(Vec<Train>),
    /// The UDP socket beside this link takes packets again.
    DatagramRoom { link: LinkId },
    /// A link's socket has taken so many bytes and can take as many again.
    LinkRoom { link: LinkId, bytes: usize },
    /// An operator asks.
    Ask {
        question: Question,
        answer: oneshot::Sender<serde_json::Value>,
    },
    /// An operator removes what an accelerator keeps.
    PurgeAccelerator {
        name: String,
        prefix: String,
        /// What became of it.
        answer: oneshot::Sender<serde_json::Value>,
    },
    /// The configuration was read again, and the pins are to be.
    Reload {
        config: Box<NodeConfig>,
        confirmed: Confirmed,
        /// What became of it.
        answer: oneshot::Sender<Result<rereading::Taken, String>>,
    },
    /// Stop in good order.
    Stop,
}

/// What an operator can ask of a running engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Status,
    Flows,
    Why(u64),
}

/// The way into the loop.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    sender: mpsc::Sender<Message>,
}

/// The loop has ended, and with it the need for whoever sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopEnded;

impl Mailbox {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Message>) {
        let (sender, receiver) = mpsc::channel(WAITING_MESSAGES);
        (Self { sender }, receiver)
    }

    /// Waits for room and hands the message over.
    pub(crate) async fn send(&self, message: Message) -> Result<(), LoopEnded> {
        self.sender.send(message).await.map_err(|_| LoopEnded)
    }

    /// Waits for room alone; what is then sent is there at once.
    pub(crate) async fn room(&self) -> Result<mpsc::Permit<'_, Message>, LoopEnded> {
        self.sender.reserve().await.map_err(|_| LoopEnded)
    }

    /// The same for an engine's input.
    pub(crate) async fn input(&self, input: Input) -> Result<(), LoopEnded> {
        self.send(Message::Input(input)).await
    }

    /// For threads outside the runtime.
    pub(crate) fn blocking_input(&self, input: Input) -> Result<(), LoopEnded> {
        self.sender
            .blocking_send(Message::Input(input))
            .map_err(|_| LoopEnded)
    }

    /// Whether anybody still takes messages.
    pub(crate) fn still_open(&self) -> Result<(), LoopEnded> {
        match self.sender.is_closed() {
            true => Err(LoopEnded),
            false => Ok(()),
        }
    }

    /// Has this configuration, and the pins as they are now, hold; or says why not.
    pub(crate) async fn reload(
        &self,
        config: NodeConfig,
        confirmed: Confirmed,
    ) -> Result<rereading::Taken, String> {
        let stopping = |_| "the node is stopping".to_owned();
        let (answer, answered) = oneshot::channel();
        let config = Box::new(config);
        let reload = Message::Reload {
            config,
            confirmed,
            answer,
        };
        self.send(reload).await.map_err(|LoopEnded| stopping(()))?;
        answered.await.map_err(|_| stopping(()))?
    }

    /// Has an accelerator remove what it keeps under names that begin with `prefix`; `None` when the loop has
    /// ended.
    pub(crate) async fn purge_accelerator(
        &self,
        name: String,
        prefix: String,
    ) -> Option<serde_json::Value> {
        let (answer, answered) = oneshot::channel();
        let purge = Message::PurgeAccelerator {
            name,
            prefix,
            answer,
        };
        self.send(purge).await.ok()?;
        answered.await.ok()
    }

    /// Asks the engine; `None` when the loop has ended.
    pub(crate) async fn ask(&self, question: Question) -> Option<serde_json::Value> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Ask { question, answer }).await.ok()?;
        answered.await.ok()
    }
}
