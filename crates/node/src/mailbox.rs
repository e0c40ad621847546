//! The messages from tasks to the engine's loop, through one bounded queue.
//!
//! A full queue makes readers wait, and through them the hosts and peers: this is the only back
//! pressure on the way in. On the way out the loop never waits: the engine bounds its outputs by
//! counting the bytes that were taken ([`engine::EngineInput::Written`],
//! [`LoopMessage::LinkRoom`]).

use std::net::SocketAddr;

use engine::{ArrivalMethod, ConnectionId, EngineInput, LinkId};
use tokio::sync::{mpsc, oneshot};
use vocab::NodeId;

use crate::config::NodeConfig;
use crate::descriptors::TakenDescriptors;
use crate::lan;
use crate::rereading::{self, ConfirmedRemovals};
use crate::wan::{KeyExporter, LinkAddresses, LinkCommand, PacketTrain};

/// Messages that may wait for the engine; with at most 64 KiB in each, 8 MiB.
const WAITING_MESSAGES: usize = 128;

/// Something for the engine's loop.
#[derive(Debug)]
pub(crate) enum LoopMessage {
    /// For the engine itself.
    Input(EngineInput),
    /// A client has connected; its task takes `commands`.
    Accepted {
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: ArrivalMethod,
        commands: mpsc::UnboundedSender<lan::ConnectionCommand>,
        descriptors: TakenDescriptors,
    },
    /// A client waits for the outcome of its server's connection; its task takes `commands`.
    Asked {
        connection: ConnectionId,
        client: SocketAddr,
        server: SocketAddr,
        via: ArrivalMethod,
        commands: mpsc::UnboundedSender<lan::ConnectionCommand>,
        descriptors: TakenDescriptors,
    },
    /// A link's handshake is done; its writer takes `commands`.
    LinkUp {
        link: LinkId,
        peer: NodeId,
        dialed_by_us: bool,
        addresses: LinkAddresses,
        exporter: KeyExporter,
        commands: mpsc::UnboundedSender<LinkCommand>,
    },
    /// Packets arrived by UDP; at most some 64 KiB.
    Datagrams(Vec<PacketTrain>),
    /// The UDP socket beside this link accepts packets again.
    DatagramRoom { link: LinkId },
    /// A link's socket has taken so many bytes and can take as many again.
    LinkRoom { link: LinkId, bytes: usize },
    /// An operator sends a question.
    Ask {
        question: OperatorQuestion,
        answer: oneshot::Sender<serde_json::Value>,
    },
    /// An operator removes the content of an accelerator.
    PurgeAccelerator {
        name: String,
        prefix: String,
        /// The channel for the result.
        answer: oneshot::Sender<serde_json::Value>,
    },
    /// The configuration was read again, and the pins are to be.
    Reload {
        config: Box<NodeConfig>,
        confirmed: ConfirmedRemovals,
        /// The channel for the result.
        answer: oneshot::Sender<Result<rereading::ConfigChanges, String>>,
    },
    /// Stop in good order.
    Stop,
}

/// An operator's question to a running engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorQuestion {
    Status,
    Flows,
    Why(u64),
}

/// The way into the loop.
#[derive(Clone, Debug)]
pub(crate) struct LoopMailbox {
    sender: mpsc::Sender<LoopMessage>,
}

/// The error for senders after the loop has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopEnded;

impl LoopMailbox {
    pub(crate) fn new() -> (Self, mpsc::Receiver<LoopMessage>) {
        let (sender, receiver) = mpsc::channel(WAITING_MESSAGES);
        (Self { sender }, receiver)
    }

    /// Waits for room and hands the message over.
    pub(crate) async fn send(&self, message: LoopMessage) -> Result<(), LoopEnded> {
        self.sender.send(message).await.map_err(|_| LoopEnded)
    }

    /// Waits for room in the queue; the message is created afterwards.
    pub(crate) async fn room(&self) -> Result<mpsc::Permit<'_, LoopMessage>, LoopEnded> {
        self.sender.reserve().await.map_err(|_| LoopEnded)
    }

    /// The same for an engine's input.
    pub(crate) async fn input(&self, input: EngineInput) -> Result<(), LoopEnded> {
        self.send(LoopMessage::Input(input)).await
    }

    /// For threads outside the runtime.
    pub(crate) fn blocking_input(&self, input: EngineInput) -> Result<(), LoopEnded> {
        self.sender
            .blocking_send(LoopMessage::Input(input))
            .map_err(|_| LoopEnded)
    }

    /// Checks that the loop still receives messages.
    pub(crate) fn still_open(&self) -> Result<(), LoopEnded> {
        match self.sender.is_closed() {
            true => Err(LoopEnded),
            false => Ok(()),
        }
    }

    /// Activates this configuration and the present pins, or returns the reason for refusing it.
    pub(crate) async fn reload(
        &self,
        config: NodeConfig,
        confirmed: ConfirmedRemovals,
    ) -> Result<rereading::ConfigChanges, String> {
        let stopping = |_| "the node is stopping".to_owned();
        let (answer, answered) = oneshot::channel();
        let config = Box::new(config);
        let reload = LoopMessage::Reload {
            config,
            confirmed,
            answer,
        };
        self.send(reload).await.map_err(|LoopEnded| stopping(()))?;
        answered.await.map_err(|_| stopping(()))?
    }

    /// Makes an accelerator remove the content under names that begin with `prefix`; `None` when
    /// the loop has ended.
    pub(crate) async fn purge_accelerator(
        &self,
        name: String,
        prefix: String,
    ) -> Option<serde_json::Value> {
        let (answer, answered) = oneshot::channel();
        let purge = LoopMessage::PurgeAccelerator {
            name,
            prefix,
            answer,
        };
        self.send(purge).await.ok()?;
        answered.await.ok()
    }

    /// Sends a question to the engine; `None` when the loop has ended.
    pub(crate) async fn ask(&self, question: OperatorQuestion) -> Option<serde_json::Value> {
        let (answer, answered) = oneshot::channel();
        self.send(LoopMessage::Ask { question, answer })
            .await
            .ok()?;
        answered.await.ok()
    }
}
