//! Server's part in TCP runs.

use std::collections::BTreeSet;
use std::time::Duration;

use vocab::Time;

use super::{OrderState, ServerConversation, ServerOutput};
use crate::session::client::ShellResult;
use crate::session::error::{JoinError, OrderError};
use crate::wire::{ControlMessage, JoinMessage, RunOrder, RunSample, SessionNonce, TestDirection};

/// Time limit for the connections of a run to arrive.
const JOINING_MAX: Duration = Duration::from_secs(15);
/// Samples in one message: 200 bytes each at most.
const SAMPLES_EACH: usize = 250;

/// Run whose connections arrive.
#[derive(Debug)]
pub(super) struct RunJoining {
    order: RunOrder,
    /// Numbers of the connections that came.
    numbers: BTreeSet<u16>,
    until: Time,
}

impl RunJoining {
    pub(super) fn order(&self) -> &RunOrder {
        &self.order
    }

    pub(super) fn until(&self) -> Time {
        self.until
    }

    fn wanted(&self) -> usize {
        let [up, down] = self.order.connections;
        usize::from(up) + usize::from(down)
    }
}

impl ServerConversation {
    pub(super) fn begin_run(&mut self, now: Time, order: RunOrder) -> Result<(), OrderError> {
        let limits = self.settings.limits;
        let [up, down] = order.connections;
        if up.max(down) > limits.connections || order.duration > limits.order {
            return Err(OrderError::RunLimit {
                connections: up.max(down),
                duration: order.duration,
                limits,
            });
        }
        let window = order.windows[TestDirection::Up as usize];
        if up > 0 && window.bytes() > 0 {
            self.outputs
                .push_back(ServerOutput::BoundWindow(Some(window)));
        }
        self.send(&ControlMessage::Ready { order: order.order });
        self.order = OrderState::Joining(RunJoining {
            order,
            numbers: BTreeSet::new(),
            until: now + JOINING_MAX,
        });
        self.check_joining(now);
        Ok(())
    }

    /// Judges a connection that was greeted with `nonce`; tells whether to keep it.
    ///
    /// # Errors
    /// Fails when the connection does not belong to the run that waits for connections.
    pub fn join(
        &mut self,
        now: Time,
        joining: &JoinMessage,
        nonce: &SessionNonce,
    ) -> Result<bool, JoinError> {
        if joining.session != self.settings.session || self.ended.is_some() {
            return Err(JoinError::OtherSession);
        }
        let JoinMessage {
            order, connection, ..
        } = *joining;
        if !self
            .key
            .verify_join(&joining.proof, nonce, order, connection)
        {
            return Err(JoinError::WrongKey);
        }
        let OrderState::Joining(run) = &mut self.order else {
            return Err(JoinError::NotRequested);
        };
        if run.order.order != order {
            return Err(JoinError::NotRequested);
        }
        let is_kept = usize::from(connection) < run.wanted() && run.numbers.insert(connection);
        self.check_joining(now);
        Ok(is_kept)
    }

    /// Ends the wait for connections when all have come, or the time is up.
    pub(super) fn check_joining(&mut self, now: Time) {
        let OrderState::Joining(run) = &self.order else {
            return;
        };
        let (came, wanted) = (run.numbers.len(), run.wanted());
        if came == wanted {
            let order = run.order.clone();
            self.outputs.push_back(ServerOutput::BoundWindow(None));
            self.outputs.push_back(ServerOutput::Prepare(order.clone()));
            self.order = OrderState::Preparing(order);
        } else if now >= run.until {
            let error = OrderError::ConnectionsMissing {
                came,
                wanted,
                within: JOINING_MAX,
            };
            self.fail_run(run.order.order, &error);
        }
    }

    /// Fails the run that waits for connections.
    pub(super) fn fail_run(&mut self, order: u32, why: &OrderError) {
        self.order = OrderState::Free;
        self.outputs.push_back(ServerOutput::BoundWindow(None));
        self.outputs.push_back(ServerOutput::Abandon);
        self.fail(order, why);
    }

    /// Hands in that this host could not bound the window of new connections.
    pub fn window_not_bounded(&mut self, why: String) {
        if let OrderState::Joining(run) = &self.order {
            self.fail_run(run.order.order, &OrderError::Host(why));
        }
    }

    /// Hands in that the connections are prepared, with the congestion control of those that send.
    pub fn prepared(&mut self, prepared: ShellResult<String>) {
        let OrderState::Preparing(run) = &self.order else {
            return;
        };
        let (order, run) = (run.order, run.clone());
        match prepared {
            Ok(congestion_control) => {
                self.send(&ControlMessage::Ready { order });
                self.outputs.push_back(ServerOutput::Transfer(run));
                self.order = OrderState::Transferring {
                    order,
                    congestion_control,
                };
            }
            Err(why) => {
                self.order = OrderState::Free;
                self.outputs.push_back(ServerOutput::Abandon);
                self.fail(order, &OrderError::Host(why));
            }
        }
    }

    /// Hands in the samples of the connections that sent, and this host's load in thousandths.
    pub fn transferred(&mut self, samples: &[RunSample], busy_permille: u16) {
        let state = std::mem::replace(&mut self.order, OrderState::Free);
        let OrderState::Transferring {
            order,
            congestion_control,
        } = state
        else {
            self.order = state;
            return;
        };
        for some in samples.chunks(SAMPLES_EACH) {
            self.send(&ControlMessage::Samples {
                order,
                samples: some.to_vec(),
            });
        }
        self.send(&ControlMessage::RunEnded {
            order,
            congestion_control,
            busy_permille,
        });
    }
}
