//! Stream that arrives at the server, and the report about it.

use std::time::Duration;

use vocab::Time;

use super::{ServerConversation, ServerOutput};
use crate::procedure::ArrivalLog;
use crate::session::channel::ALIVE_EVERY;
use crate::wire::{ControlMessage, DatagramArrival, DatagramHeader};

/// Time without arrivals after which a stream that was sent is over.
const QUIET: Duration = Duration::from_millis(150);
/// Time limit for the rest of a stream: the deepest queue.
const REST_MAX: Duration = Duration::from_secs(5);
/// Arrivals in one message: 27 bytes each at most.
const ARRIVALS_EACH: usize = 2_000;

/// Stream that arrives.
#[derive(Debug)]
pub(super) struct StreamListener {
    order: u32,
    log: ArrivalLog,
    last: Time,
    /// Time at which the client was last told that its packets arrive.
    reported_at: Time,
}

impl StreamListener {
    pub(super) fn new(now: Time, order: u32) -> Self {
        Self {
            order,
            log: ArrivalLog::new(now),
            last: now,
            reported_at: now,
        }
    }

    /// Takes note of a packet; returns the order if its sender is to be told that packets arrive.
    pub(super) fn arrived(
        &mut self,
        now: Time,
        arrived: Time,
        data: &DatagramHeader,
    ) -> Option<u32> {
        if data.order != self.order {
            return None;
        }
        self.log.arrived(arrived, data.number, data.stamp);
        self.last = now;
        if now < self.reported_at + ALIVE_EVERY {
            return None;
        }
        self.reported_at = now;
        Some(self.order)
    }

    /// Time until which nothing is sent over TCP, unless more packets arrive.
    pub(super) fn quiet_until(&self) -> Time {
        self.last + ALIVE_EVERY
    }
}

/// Report about a stream whose sender has said that it is over.
#[derive(Debug)]
pub(super) struct ArrivalReport {
    order: u32,
    /// Datagrams that the client says it sent.
    sent: u64,
    /// Time by which the rest has arrived.
    until: Time,
    stage: ReportStage,
}

#[derive(Debug)]
enum ReportStage {
    /// Packets may still arrive.
    Waiting,
    /// The number of dropped datagrams is asked for.
    Counting(Vec<DatagramArrival>),
    /// Arrivals from `next` on, the packets without room, and the end are reported.
    Telling {
        arrivals: Vec<DatagramArrival>,
        next: usize,
        no_room: u64,
    },
    Done,
}

impl ArrivalReport {
    pub(super) fn new(now: Time, order: u32, sent: u64) -> Self {
        Self {
            order,
            sent,
            until: now + REST_MAX,
            stage: ReportStage::Waiting,
        }
    }

    pub(super) fn is_known(&self) -> bool {
        matches!(self.stage, ReportStage::Telling { .. })
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, ReportStage::Done)
    }

    /// The next message; [`None`] while the report is not known.
    pub(super) fn next_message(&mut self) -> Option<ControlMessage> {
        let ReportStage::Telling {
            arrivals,
            next,
            no_room,
        } = &mut self.stage
        else {
            return None;
        };
        let order = self.order;
        if *next < arrivals.len() {
            let end = arrivals.len().min(*next + ARRIVALS_EACH);
            let some = arrivals[*next..end].to_vec();
            *next = end;
            return Some(ControlMessage::Arrivals {
                order,
                arrivals: some,
            });
        }
        if *no_room > 0 {
            let datagrams = std::mem::take(no_room);
            return Some(ControlMessage::NoRoom { order, datagrams });
        }
        self.stage = ReportStage::Done;
        Some(ControlMessage::Arrivals {
            order,
            arrivals: Vec::new(),
        })
    }
}

impl ServerConversation {
    /// Time at which the rest of a stream has arrived.
    pub(super) fn report_at(&self) -> Option<Time> {
        let report = self.reporting.as_ref()?;
        match report.stage {
            ReportStage::Waiting => {
                let listening = self.listening.as_ref();
                let last = listening.map_or(Time::ZERO, |listening| listening.last);
                Some(report.until.min(last + QUIET))
            }
            ReportStage::Counting(_) | ReportStage::Telling { .. } | ReportStage::Done => None,
        }
    }

    /// Asks for the dropped datagrams once no more packets arrive.
    pub(super) fn advance_report(&mut self, now: Time) {
        if self.report_at().is_none_or(|at| at > now) {
            return;
        }
        let Some(report) = &mut self.reporting else {
            return;
        };
        let order = report.order;
        match self.listening.take_if(|one| one.order == order) {
            Some(listening) => {
                report.stage = ReportStage::Counting(listening.log.into_arrivals());
                self.outputs.push_back(ServerOutput::EndDropCount);
            }
            // Of no stream that arrived here.
            None => self.reporting = None,
        }
    }

    /// Hands in the number of datagrams that the socket dropped.
    pub fn drops_counted(&mut self, datagrams: u64) {
        let Some(report) = &mut self.reporting else {
            return;
        };
        let ReportStage::Counting(arrivals) = &mut report.stage else {
            return;
        };
        let arrivals = std::mem::take(arrivals);
        // Strangers' datagrams, and what a path brings twice, find no room either.
        let missing = report.sent.saturating_sub(arrivals.len() as u64);
        report.stage = ReportStage::Telling {
            arrivals,
            next: 0,
            no_room: datagrams.min(missing),
        };
    }
}
