//! States of a client's conversation.

use vocab::Time;

use super::run::{RunConnecting, RunOrdering, RunTransferring};
use super::stream::{CountedArrivals, IncomingStream, StreamOrdering, StreamReport};
use super::{ClientStep, ORDER_MAX, StreamPlan};
use crate::procedure::{BaselineRtt, PathMtuTest, UdpExchange, UdpOpening};
use crate::session::error::ConversationError;
use crate::wire::TestDirection;

/// State of a conversation; the diagram is in `client.rs`.
#[derive(Debug)]
pub(super) enum ConversationState {
    Idle,
    Resting {
        until: Time,
        step: ClientStep,
    },
    Exchange(UdpStep),
    StreamOrdered(StreamOrdering),
    /// The stream is sent here.
    StreamUp(StreamOrdering),
    StreamReported(Box<StreamReport>),
    StreamDown(Box<IncomingStream>),
    /// The stream is over, and the number of dropped datagrams is asked for.
    StreamCounted(Box<CountedArrivals>),
    RunOrdered(RunOrdering),
    RunConnecting(RunConnecting),
    RunTransfer(Box<RunTransferring>),
    Over,
}

/// Step that asks over UDP and waits for answers.
#[derive(Debug)]
pub(super) enum UdpStep {
    /// The opening, and a stream that waits for it.
    Opening(UdpOpening, Option<(TestDirection, StreamPlan)>),
    PathMtu(PathMtuTest),
    BaselineRtt(BaselineRtt),
}

impl UdpStep {
    pub(super) fn exchange(&mut self) -> &mut dyn UdpExchange {
        match self {
            UdpStep::Opening(opening, _) => opening,
            UdpStep::PathMtu(test) => test,
            UdpStep::BaselineRtt(probing) => probing,
        }
    }

    fn due(&self) -> Option<Time> {
        match self {
            UdpStep::Opening(opening, _) => opening.poll_timeout(),
            UdpStep::PathMtu(test) => test.poll_timeout(),
            UdpStep::BaselineRtt(probing) => probing.poll_timeout(),
        }
    }
}

impl ConversationState {
    /// Tells whether a stream is measured: nothing is sent over TCP then.
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            ConversationState::StreamUp(_) => true,
            ConversationState::StreamDown(stream) => !stream.has_ended(),
            ConversationState::Idle
            | ConversationState::Resting { .. }
            | ConversationState::Exchange(_)
            | ConversationState::StreamOrdered(_)
            | ConversationState::StreamReported(_)
            | ConversationState::StreamCounted(_)
            | ConversationState::RunOrdered(_)
            | ConversationState::RunConnecting(_)
            | ConversationState::RunTransfer(_)
            | ConversationState::Over => false,
        }
    }

    /// Number of the run that is under way.
    pub(super) fn run_order(&self) -> Option<u32> {
        match self {
            ConversationState::RunOrdered(run) => Some(run.order),
            ConversationState::RunConnecting(run) => Some(run.order),
            ConversationState::RunTransfer(run) => Some(run.order),
            ConversationState::Idle
            | ConversationState::Resting { .. }
            | ConversationState::Exchange(_)
            | ConversationState::StreamOrdered(_)
            | ConversationState::StreamUp(_)
            | ConversationState::StreamReported(_)
            | ConversationState::StreamDown(_)
            | ConversationState::StreamCounted(_)
            | ConversationState::Over => None,
        }
    }

    /// Time at which this state has something to do.
    pub(super) fn due(&self) -> Option<Time> {
        match self {
            ConversationState::Resting { until, .. } => Some(*until),
            ConversationState::Exchange(step) => step.due(),
            ConversationState::StreamDown(stream) => Some(stream.due()),
            ConversationState::StreamOrdered(_)
            | ConversationState::StreamReported(_)
            | ConversationState::RunOrdered(_)
            | ConversationState::RunConnecting(_)
            | ConversationState::RunTransfer(_) => self.answer_by(),
            ConversationState::Idle
            | ConversationState::StreamUp(_)
            | ConversationState::StreamCounted(_)
            | ConversationState::Over => None,
        }
    }

    /// Time limit for the server's next message.
    fn answer_by(&self) -> Option<Time> {
        match self {
            ConversationState::StreamOrdered(order) => Some(order.answer_by),
            ConversationState::StreamReported(report) => Some(report.answer_by),
            ConversationState::RunOrdered(run) => Some(run.answer_by),
            ConversationState::RunConnecting(run) => run.answer_by,
            ConversationState::RunTransfer(run) => run.answer_by,
            ConversationState::Idle
            | ConversationState::Resting { .. }
            | ConversationState::Exchange(_)
            | ConversationState::StreamUp(_)
            | ConversationState::StreamDown(_)
            | ConversationState::StreamCounted(_)
            | ConversationState::Over => None,
        }
    }

    /// Checks the time limits.
    pub(super) fn check_deadline(&self, now: Time) -> Result<(), ConversationError> {
        if let ConversationState::StreamDown(stream) = self
            && stream.is_endless(now)
        {
            return Err(ConversationError::EndlessStream(stream.duration()));
        }
        match self.answer_by().is_some_and(|by| by <= now) {
            true => Err(ConversationError::NoAnswer(ORDER_MAX)),
            false => Ok(()),
        }
    }
}
