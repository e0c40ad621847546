//! Client's part in streams.

use std::time::Duration;

use vocab::Time;

use super::state::{ConversationState, UdpStep};
use super::{
    ClientConversation, ClientOutput, MAPPING_KEPT, ORDER_MAX, QUIET, ShellResult, StepOutcome,
};
use crate::procedure::{ArrivalLog, StreamPlan, StreamRecord, UdpOpening};
use crate::session::channel::{ALIVE_EVERY, stream_keep_alive};
use crate::session::error::ConversationError;
use crate::session::plausible;
use crate::session::stream::{OutgoingStream, SentDatagrams};
use crate::wire::{
    ControlMessage, DATAGRAM_HEADER, DatagramArrival, DatagramHeader, DatagramKind, SessionRole,
    StreamOrder, TestDirection,
};

/// Stream that was ordered.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamOrdering {
    order: u32,
    direction: TestDirection,
    plan: StreamPlan,
    pub(super) answer_by: Time,
}

/// Stream that was sent here, and what the server reports of it.
#[derive(Debug)]
pub(super) struct StreamReport {
    order: u32,
    plan: StreamPlan,
    sent: SentDatagrams,
    arrivals: Vec<DatagramArrival>,
    no_room: Option<u64>,
    pub(super) answer_by: Time,
}

/// Stream that the server sends.
#[derive(Debug)]
pub(super) struct IncomingStream {
    order: u32,
    plan: StreamPlan,
    log: ArrivalLog,
    last: Time,
    said: Time,
    ends_by: Time,
    /// Datagrams that the server says it sent.
    sent: Option<u64>,
}

/// Stream that the server sent, once no more packets arrive.
#[derive(Debug)]
pub(super) struct CountedArrivals {
    plan: StreamPlan,
    sent: u64,
    arrivals: Vec<DatagramArrival>,
}

impl IncomingStream {
    pub(super) fn order(&self) -> u32 {
        self.order
    }

    pub(super) fn duration(&self) -> Duration {
        self.plan.duration
    }

    pub(super) fn has_ended(&self) -> bool {
        self.sent.is_some()
    }

    pub(super) fn is_endless(&self, now: Time) -> bool {
        now >= self.ends_by
    }

    /// Takes note of a packet; tells whether it belongs to the stream.
    pub(super) fn arrived(&mut self, now: Time, arrived: Time, datagram: &DatagramHeader) -> bool {
        let is_own = datagram.kind == DatagramKind::Data && datagram.order == self.order;
        if is_own {
            self.log.arrived(arrived, datagram.number, datagram.stamp);
            self.last = now;
        }
        is_own
    }

    /// Tells whether a keep-alive is due, and takes note that it is sent.
    pub(super) fn takes_keep_alive(&mut self, now: Time) -> bool {
        let is_due = now >= self.said + ALIVE_EVERY;
        if is_due {
            self.said = now;
        }
        is_due
    }

    pub(super) fn due(&self) -> Time {
        let quiet = self.sent.map(|_| self.last + QUIET);
        let next = (self.said + ALIVE_EVERY).min(self.ends_by);
        quiet.map_or(next, |quiet| quiet.min(next))
    }
}

impl ClientConversation {
    /// Orders a stream, and shows the server our UDP address before it where a NAT may have
    /// forgotten it.
    pub(super) fn begin_stream(&mut self, now: Time, direction: TestDirection, plan: StreamPlan) {
        let plan = StreamPlan {
            duration: plan.duration.min(self.settings.limits.order),
            ..plan
        };
        let is_open = |at: Time| now.since(at) < MAPPING_KEPT;
        if self.udp_open_at.is_some_and(is_open) {
            return self.order_stream(now, direction, plan);
        }
        let opening = UdpOpening::new(now, self.settings.session);
        self.state =
            ConversationState::Exchange(UdpStep::Opening(opening, Some((direction, plan))));
        self.advance_exchange(now);
    }

    pub(super) fn order_stream(&mut self, now: Time, direction: TestDirection, plan: StreamPlan) {
        let order = self.number_order();
        self.outputs.push_back(ClientOutput::BeginDropCount);
        self.send(&ControlMessage::Stream(StreamOrder {
            order,
            direction,
            rate: plan.rate,
            duration: plan.duration,
            payload_bytes: plan.ip_bytes.saturating_sub(self.settings.udp_headers),
        }));
        self.state = ConversationState::StreamOrdered(StreamOrdering {
            order,
            direction,
            plan,
            answer_by: now + ORDER_MAX,
        });
    }

    pub(super) fn handle_stream_message(
        &mut self,
        now: Time,
        state: ConversationState,
        message: ControlMessage,
    ) -> Result<(), ConversationError> {
        match (state, message) {
            (ConversationState::StreamOrdered(ordered), ControlMessage::Ready { order })
                if order == ordered.order =>
            {
                self.stream_is_ready(now, ordered);
            }
            (
                ConversationState::StreamReported(mut report),
                ControlMessage::Arrivals { order, arrivals },
            ) if order == report.order => {
                if arrivals.is_empty() {
                    return self.end_stream_up(now, *report);
                }
                plausible::arrivals(report.plan, report.arrivals.len(), &arrivals)?;
                report.arrivals.extend(arrivals);
                report.answer_by = now + ORDER_MAX;
                self.state = ConversationState::StreamReported(report);
            }
            (
                ConversationState::StreamReported(mut report),
                ControlMessage::NoRoom { order, datagrams },
            ) if order == report.order && report.no_room.is_none() => {
                report.no_room = Some(datagrams);
                report.answer_by = now + ORDER_MAX;
                self.state = ConversationState::StreamReported(report);
            }
            (
                ConversationState::StreamDown(mut stream),
                ControlMessage::StreamSent { order, datagrams },
            ) if order == stream.order && stream.sent.is_none() => {
                stream.sent = Some(plausible::sent(stream.plan, datagrams)?);
                self.state = ConversationState::StreamDown(stream);
            }
            (_, message) => return Err(ConversationError::unexpected(&message)),
        }
        Ok(())
    }

    fn stream_is_ready(&mut self, now: Time, ordered: StreamOrdering) {
        let StreamOrdering { order, plan, .. } = ordered;
        match ordered.direction {
            TestDirection::Up => {
                let stream = OutgoingStream {
                    role: SessionRole::Client,
                    key: self.settings.key.clone(),
                    session: self.settings.session,
                    order,
                    plan,
                    headers: self.settings.udp_headers,
                    left_ns: Vec::new(),
                };
                self.outputs.push_back(ClientOutput::SendStream(stream));
                self.state = ConversationState::StreamUp(ordered);
            }
            TestDirection::Down => {
                self.state = ConversationState::StreamDown(Box::new(IncomingStream {
                    order,
                    plan,
                    log: ArrivalLog::new(now),
                    last: now,
                    said: now,
                    ends_by: now + plan.duration + ORDER_MAX,
                    sent: None,
                }));
            }
        }
    }

    pub(super) fn handle_stream_sent(&mut self, now: Time, sent: ShellResult<SentDatagrams>) {
        let ConversationState::StreamUp(ordered) = self.state else {
            return;
        };
        match sent {
            Err(why) => self.fail(ConversationError::Host(why)),
            Ok(sent) => {
                let (order, datagrams) = (ordered.order, sent.datagrams);
                self.send(&ControlMessage::StreamSent { order, datagrams });
                self.state = ConversationState::StreamReported(Box::new(StreamReport {
                    order,
                    plan: ordered.plan,
                    sent,
                    arrivals: Vec::new(),
                    no_room: None,
                    answer_by: now + ORDER_MAX,
                }));
            }
        }
    }

    fn end_stream_up(&mut self, now: Time, report: StreamReport) -> Result<(), ConversationError> {
        let (datagrams, came) = (report.sent.datagrams, report.arrivals.len());
        let no_room = plausible::no_room(datagrams, came, report.no_room.unwrap_or(0))?;
        self.end_stream(
            now,
            StreamRecord {
                plan: report.plan,
                sent: datagrams,
                arrivals: report.arrivals,
                left_ns: report.sent.left_ns,
                no_room,
            },
        );
        Ok(())
    }

    fn end_stream(&mut self, now: Time, record: StreamRecord) {
        self.udp_open_at = (!record.arrivals.is_empty()).then_some(now);
        self.complete(StepOutcome::Stream(record));
    }

    /// Ends a stream of the server's once no more packets arrive.
    pub(super) fn end_stream_down(&mut self, now: Time) {
        let ConversationState::StreamDown(stream) = &mut self.state else {
            return;
        };
        let Some(sent) = stream.sent.filter(|_| now >= stream.last + QUIET) else {
            return;
        };
        let log = std::mem::replace(&mut stream.log, ArrivalLog::new(now));
        let counted = CountedArrivals {
            plan: stream.plan,
            sent,
            arrivals: log.into_arrivals(),
        };
        self.state = ConversationState::StreamCounted(Box::new(counted));
        self.outputs.push_back(ClientOutput::EndDropCount);
    }

    pub(super) fn handle_drops(&mut self, now: Time, datagrams: u64) {
        let state = std::mem::replace(&mut self.state, ConversationState::Idle);
        let ConversationState::StreamCounted(counted) = state else {
            self.state = state;
            return;
        };
        // What a path brings twice finds no room either.
        let missing = counted.sent.saturating_sub(counted.arrivals.len() as u64);
        self.end_stream(
            now,
            StreamRecord {
                plan: counted.plan,
                sent: counted.sent,
                no_room: datagrams.min(missing),
                arrivals: counted.arrivals,
                left_ns: Vec::new(),
            },
        );
    }

    pub(super) fn send_stream_keep_alive(&mut self, order: u32) {
        let head = stream_keep_alive(self.settings.session, order);
        let mut bytes = Vec::new();
        let key = &self.settings.key;
        head.emit(key, SessionRole::Client, DATAGRAM_HEADER, &mut bytes);
        self.outputs.push_back(ClientOutput::Datagram(bytes));
    }
}
