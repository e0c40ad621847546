//! The contract between an accelerator and the engine that runs it.
//!
//! The engine calls [`AcceleratorHalf::handle`] and then drains [`AcceleratorHalf::poll_output`] to
//! `None` before it calls `handle` again. Order is kept: the outputs of a half are delivered to the
//! other half, or to its host, in that order and exactly once.
//!
//! `content.rs` describes how halves store bodies in the node's dictionary, `opening.rs` when a
//! flow is opened at the far node, `server_connection.rs` further connections to its server,
//! `letting_go.rs` how an accelerator stops, `reason.rs` the codes of reasons, and `carried.rs` protocols
//! that an accelerator carries for another one.

mod carried;
mod content;
mod letting_go;
mod opening;
mod reason;
mod server_connection;

pub use carried::{CarriedFlow, CarriedProtocol};
pub use content::{
    ContentAbsence, ContentHandle, ContentId, ContentRefusal, ContentReport, ContentRequest,
    MAX_CONTENT_READS, MAX_CONTENT_STORES,
};
pub use letting_go::LettingGo;
pub use opening::FlowOpening;
pub use reason::{ReasonCode, ReasonExplanation, ReasonSource};
pub use server_connection::{ServerCommand, ServerConnection, ServerEvent, ServerFailure};

use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, Time};

use crate::claims::ClaimKey;

/// The end of the WAN at which one half of an accelerator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WanEnd {
    /// Beside the client, in the role of the server.
    Near,
    /// Beside the server, in the role of the client.
    Far,
}

/// An event that the engine reports to a half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceleratorInput {
    /// The flow begins. The first input of every half; for a far half the server's connection is
    /// not open yet.
    Start,
    /// The host on this half's LAN side sent bytes.
    Lan(Bytes),
    /// The host will send no more bytes.
    LanFinished,
    /// The other half sent a segment.
    Wan(FlowSegment),
    /// The other half will send no more.
    WanFinished,
    /// The WAN has been silent for this long: promises that depend on the other half (such as a
    /// lease that it holds) may no longer be relied on.
    WanSilent(Duration),
    /// The time of [`AcceleratorHalf::poll_timeout`] has come.
    Timeout,
    /// Something happened to a further connection to the server. Far halves only.
    Server(ServerConnection, ServerEvent),
    /// The flow holds the claim that it made by [`AcceleratorOutput::Claim`].
    ClaimGranted,
    /// Another flow claims the same key. The half stops its work under the claim, and then sends
    /// [`AcceleratorOutput::ClaimReleased`].
    ClaimRevoked,
    /// The flow's claim is not granted, because another flow claims the same key.
    ClaimDenied,
    /// The result of storing a body, or the next piece of a body that the half reads.
    Content(ContentReport),
    /// The state that the accelerator's flows share has woken this flow
    /// ([`SharedOutput::Wake`](crate::shared::SharedOutput::Wake)).
    Woken,
}

/// An action that a half requests from the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceleratorOutput {
    /// Open the connection to the server. Far halves only, once.
    OpenServer,
    /// Do something with a further connection to the server. Far halves only.
    Server(ServerConnection, ServerCommand),
    /// Open the flow at the far node now, if it is not open yet. Near halves only ([`FlowOpening::ByNearHalf`]).
    OpenFlow,
    /// The half has answered so many bytes of its client itself, the first ones that it has not
    /// reported before, and has put out the whole answer. Near halves only
    /// ([`FlowOpening::ByNearHalf`]): if the flow goes directly later, the server gets the bytes
    /// after these.
    AnsweredHere(usize),
    /// Write to the host on this half's LAN side.
    ToLan(Bytes),
    /// End the stream towards that host cleanly, after all that was put out before.
    FinishLan,
    /// Send a segment to the other half, at any time before [`AcceleratorOutput::FinishWan`]: it need not be an answer.
    ToWan(FlowSegment),
    /// The payload for the other half so far ends a body. Content is then cut at its end, so that
    /// the body is found again in any surroundings, and the other node can store it without a
    /// second copy ([`ContentRequest::Store`]). Useful for bodies that are likely to repeat.
    EndBody,
    /// End the stream towards the other half, after all that was put out before.
    FinishWan,
    /// Claim this key for the flow alone; [`AcceleratorInput::ClaimGranted`] or [`AcceleratorInput::ClaimDenied`] follows.
    /// At most once.
    Claim(ClaimKey),
    /// After [`AcceleratorInput::ClaimRevoked`]: the half no longer relies on its claim.
    ClaimReleased,
    /// Store a body in the node's dictionary, or read one back; [`AcceleratorInput::Content`] follows.
    Content(ContentRequest),
    /// Stop helping.
    LettingGo(LettingGo),
}

/// The first byte of a frame segment.
///
/// The kind of a frame. Zero belongs to the contract itself; an accelerator numbers its own from
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The sending half has let go; the receiver's engine drops the other half.
    Released,
    /// A frame of the accelerator's own.
    Own(u8),
}

impl FrameKind {
    /// The kind of a frame segment, or `None` when it is empty.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Self> {
        match frame.first()? {
            0 => Some(Self::Released),
            own => Some(Self::Own(*own)),
        }
    }

    /// The byte that stands for it.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Released => 0,
            Self::Own(own) => own,
        }
    }
}

/// One half of an accelerator, for one flow.
pub trait AcceleratorHalf: Send {
    /// Handles an event. Never fails: it lets go of input that it does not understand.
    fn handle(&mut self, now: Time, input: AcceleratorInput);

    /// Returns the next action, or `None` when there is none until the next input.
    fn poll_output(&mut self) -> Option<AcceleratorOutput>;

    /// The time at which the half wants [`AcceleratorInput::Timeout`]; not later than `now` while
    /// output waits.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Bytes that the half holds in memory, for the node's account.
    fn buffered(&self) -> usize {
        0
    }

    /// Bytes that the host on the half's LAN side has sent and that the half cannot pass on yet. The node reads so much
    /// less of the host.
    fn waiting_host_bytes(&self) -> usize {
        0
    }

    /// Takes the number of bytes that the half has put out for the other half and that still wait in this
    /// node, because the WAN takes no more of them now. The half may have new output after it.
    fn set_backlog(&mut self, now: Time, bytes: u64) {
        let _ = (now, bytes);
    }

    /// False while the half can pass on no more of the content that it reads.
    fn takes_content(&self) -> bool {
        true
    }

    /// Requests of its host that the half has answered itself, for the operator.
    fn answered(&self) -> u64 {
        0
    }

    /// A clause for the operator beside the reason: the account that the half works for, or, after
    /// it has let go, the account that it could not work for.
    fn note(&self) -> Option<String> {
        None
    }
}
