//! Client's part in TCP runs.

use vocab::{ByteCount, Time};

use super::state::ConversationState;
use super::{ClientConversation, ClientOutput, ORDER_MAX, ShellResult, StepOutcome};
use crate::session::error::ConversationError;
use crate::session::plausible;
use crate::turn_up::RunPlan;
use crate::wire::{ControlMessage, JoinMessage, RunOrder, RunSample, SessionKey, TestDirection};

/// Run that was ordered.
#[derive(Debug)]
pub(super) struct RunOrdering {
    pub(super) order: u32,
    plan: RunPlan,
    segments_max: [Option<u16>; 2],
    pub(super) answer_by: Time,
}

/// Run whose connections are opened; the server says when all have come, which may be before this
/// end knows.
#[derive(Debug)]
pub(super) struct RunConnecting {
    pub(super) order: u32,
    plan: RunPlan,
    is_ready: bool,
    /// Congestion control of this end's senders, once all are open.
    connected: Option<String>,
    pub(super) answer_by: Option<Time>,
}

/// Run that transfers; the server may be ready before this end.
#[derive(Debug)]
pub(super) struct RunTransferring {
    pub(super) order: u32,
    plan: RunPlan,
    congestion_control: String,
    /// Samples and load of this end, once it is ready.
    own: Option<(Vec<RunSample>, u16)>,
    samples: Vec<RunSample>,
    /// Congestion control and load of the server.
    ended: Option<(String, u16)>,
    pub(super) answer_by: Option<Time>,
}

/// Run with the counters of its connections.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedRun {
    /// Plan of the run.
    pub plan: RunPlan,
    /// Samples of the senders, up and down.
    pub samples: [Vec<RunSample>; 2],
    /// Congestion control of the senders, up and down.
    pub congestion_control: [String; 2],
    /// Processor load of the client's host and of the server's, in thousandths.
    pub busy_permille: [u16; 2],
}

/// Connection of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPlan {
    /// Its number; those up come first.
    pub number: u16,
    /// Direction of its data.
    pub direction: TestDirection,
    /// The window of its receiver; zero leaves it to the host.
    pub window: ByteCount,
    /// Greatest segment; [`None`] leaves it to the hosts.
    pub segment_max: Option<u16>,
}

/// Connections of a run that the client opens.
#[derive(Clone, Debug)]
pub struct RunConnections {
    /// Number of the run.
    pub order: u32,
    /// Plan of the run.
    pub plan: RunPlan,
    /// Congestion control of those that send up; empty for the system's own.
    pub congestion_control: String,
    segments_max: [Option<u16>; 2],
    session: u64,
    key: SessionKey,
}

impl RunConnections {
    /// The connections in the order of their numbers.
    pub fn plans(&self) -> impl Iterator<Item = ConnectionPlan> + '_ {
        let [up, down] = self.plan.connections;
        (0..up.saturating_add(down)).map(move |number| {
            let direction = match number < up {
                true => TestDirection::Up,
                false => TestDirection::Down,
            };
            ConnectionPlan {
                number,
                direction,
                window: self.plan.windows[direction as usize],
                segment_max: self.segments_max[direction as usize],
            }
        })
    }

    /// The answer to the server's greeting on a connection.
    ///
    /// # Errors
    /// Fails when the message is no greeting.
    pub fn join(
        &self,
        greeting: &ControlMessage,
        connection: u16,
    ) -> Result<ControlMessage, ConversationError> {
        let ControlMessage::Hello { nonce, .. } = greeting else {
            let why = "the server did not greet a connection of the run";
            return Err(ConversationError::Host(why.to_owned()));
        };
        Ok(ControlMessage::Join(JoinMessage {
            session: self.session,
            order: self.order,
            connection,
            proof: self.key.join(nonce, self.order, connection),
        }))
    }
}

impl ClientConversation {
    pub(super) fn order_run(&mut self, now: Time, plan: RunPlan, segments_max: [Option<u16>; 2]) {
        let order = self.number_order();
        let message = ControlMessage::Run(RunOrder {
            order,
            connections: plan.connections,
            windows: plan.windows,
            duration: plan.duration,
            congestion_control: self.settings.congestion_control.clone(),
        });
        self.send(&message);
        self.state = ConversationState::RunOrdered(RunOrdering {
            order,
            plan,
            segments_max,
            answer_by: now + ORDER_MAX,
        });
    }

    pub(super) fn handle_run_message(
        &mut self,
        now: Time,
        state: ConversationState,
        message: ControlMessage,
    ) -> Result<(), ConversationError> {
        match (state, message) {
            (ConversationState::RunOrdered(run), ControlMessage::Ready { order })
                if order == run.order =>
            {
                self.outputs
                    .push_back(ClientOutput::Connect(RunConnections {
                        order,
                        plan: run.plan,
                        congestion_control: self.settings.congestion_control.clone(),
                        segments_max: run.segments_max,
                        session: self.settings.session,
                        key: self.settings.key.clone(),
                    }));
                self.state = ConversationState::RunConnecting(RunConnecting {
                    order,
                    plan: run.plan,
                    is_ready: false,
                    connected: None,
                    answer_by: None,
                });
            }
            (ConversationState::RunConnecting(mut run), ControlMessage::Ready { order })
                if order == run.order && !run.is_ready =>
            {
                run.is_ready = true;
                self.begin_transfer(run);
            }
            (
                ConversationState::RunTransfer(mut run),
                ControlMessage::Samples { order, samples },
            ) if order == run.order && run.ended.is_none() => {
                plausible::samples(&run.plan, run.samples.len(), &samples)?;
                run.samples.extend(samples);
                run.answer_by = run.answer_by.map(|_| now + ORDER_MAX);
                self.state = ConversationState::RunTransfer(run);
            }
            (
                ConversationState::RunTransfer(mut run),
                ControlMessage::RunEnded {
                    order,
                    congestion_control,
                    busy_permille,
                },
            ) if order == run.order && run.ended.is_none() => {
                run.ended = Some((congestion_control, busy_permille));
                self.end_run(run);
            }
            (_, message) => return Err(ConversationError::unexpected(&message)),
        }
        Ok(())
    }

    pub(super) fn handle_connected(&mut self, now: Time, connected: ShellResult<String>) {
        let state = std::mem::replace(&mut self.state, ConversationState::Idle);
        let ConversationState::RunConnecting(mut run) = state else {
            self.state = state;
            return;
        };
        match connected {
            Err(why) => self.fail(ConversationError::Host(why)),
            Ok(congestion_control) => {
                run.connected = Some(congestion_control);
                run.answer_by = Some(now + ORDER_MAX);
                self.begin_transfer(run);
            }
        }
    }

    /// Begins the transfer once both ends have all connections.
    fn begin_transfer(&mut self, run: RunConnecting) {
        let Some(congestion_control) = run.connected.clone().filter(|_| run.is_ready) else {
            self.state = ConversationState::RunConnecting(run);
            return;
        };
        self.outputs.push_back(ClientOutput::Transfer(run.plan));
        self.state = ConversationState::RunTransfer(Box::new(RunTransferring {
            order: run.order,
            plan: run.plan,
            congestion_control,
            own: None,
            samples: Vec::new(),
            ended: None,
            answer_by: None,
        }));
    }

    pub(super) fn handle_transferred(&mut self, now: Time, samples: Vec<RunSample>, busy: u16) {
        let state = std::mem::replace(&mut self.state, ConversationState::Idle);
        let ConversationState::RunTransfer(mut run) = state else {
            self.state = state;
            return;
        };
        run.own = Some((samples, busy));
        run.answer_by = Some(now + ORDER_MAX);
        self.end_run(run);
    }

    /// Ends the run once both ends are ready.
    fn end_run(&mut self, run: Box<RunTransferring>) {
        if run.own.is_none() || run.ended.is_none() {
            self.state = ConversationState::RunTransfer(run);
            return;
        }
        let (up, own_busy) = run.own.unwrap_or_default();
        let (server_control, server_busy) = run.ended.unwrap_or_default();
        self.complete(StepOutcome::Run(CompletedRun {
            plan: run.plan,
            samples: [up, run.samples],
            congestion_control: [run.congestion_control, server_control],
            busy_permille: [own_busy, server_busy],
        }));
    }
}
