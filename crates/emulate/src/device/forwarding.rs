//! The way of a packet from its input to its output queue: input queue, shared server, fixed delay.
//!
//! ```text
//!  push ─► waiting ─► a free server ─► on its way ─► advance: at its output
//!          oldest     service time     fixed delay,
//!          first                       in order by output
//! ```
//!
//! Without servers a packet is on its way at once. A packet in service has left its input queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use vocab::{DeviceModel, Time};

use super::ForwardedPacket;

#[derive(Debug)]
pub(super) struct ForwardingEngine {
    model: Arc<DeviceModel>,
    /// Packets that wait for a server, of all inputs, oldest first.
    waiting: VecDeque<ForwardedPacket>,
    /// Content of each input queue in its own unit.
    queued: Vec<u64>,
    busy_servers: u16,
    in_progress: BinaryHeap<Reverse<StepInProgress>>,
    /// Number of the next step, by which steps of one time keep their order.
    next_step: u64,
    /// Time of the last arrival at each output queue.
    last_arrival: Vec<Time>,
}

/// Result of an event.
#[derive(Debug)]
pub(super) enum ForwardingStep {
    /// A server has finished a packet, which is on its way.
    Served,
    /// A packet comes to the queue of its output.
    AtOutput(ForwardedPacket),
}

#[derive(Debug)]
struct StepInProgress {
    due: Time,
    number: u64,
    is_service: bool,
    packet: ForwardedPacket,
}

impl ForwardingEngine {
    pub(super) fn new(model: Arc<DeviceModel>) -> Self {
        let ports = usize::from(model.ports);
        Self {
            model,
            waiting: VecDeque::new(),
            queued: vec![0; ports],
            busy_servers: 0,
            in_progress: BinaryHeap::new(),
            next_step: 0,
            last_arrival: vec![Time::ZERO; ports],
        }
    }

    /// Takes a packet in at `now`; gives it back if its input queue is full.
    pub(super) fn push(
        &mut self,
        now: Time,
        packet: ForwardedPacket,
    ) -> Result<(), Box<ForwardedPacket>> {
        let Some(servers) = &self.model.servers else {
            self.send_on(now, packet);
            return Ok(());
        };
        if self.busy_servers < servers.count {
            self.serve(now, packet);
            return Ok(());
        }
        if let Some(limit) = self.model.input_queue {
            let queued = &mut self.queued[usize::from(packet.input)];
            let cost = limit.cost(packet.packet.counted);
            if *queued + cost > limit.limit() {
                return Err(Box::new(packet));
            }
            *queued += cost;
        }
        self.waiting.push_back(packet);
        Ok(())
    }

    /// Time of the next event.
    pub(super) fn next_event(&self) -> Option<Time> {
        self.in_progress.peek().map(|Reverse(step)| step.due)
    }

    /// Processes the next event, if it is due by `at`.
    pub(super) fn advance(&mut self, at: Time) -> Option<ForwardingStep> {
        if self.next_event()? > at {
            return None;
        }
        let Reverse(step) = self.in_progress.pop()?;
        if !step.is_service {
            return Some(ForwardingStep::AtOutput(step.packet));
        }
        self.busy_servers -= 1;
        if let Some(next) = self.waiting.pop_front() {
            if let Some(limit) = self.model.input_queue {
                self.queued[usize::from(next.input)] -= limit.cost(next.packet.counted);
            }
            self.serve(step.due, next);
        }
        self.send_on(step.due, step.packet);
        Some(ForwardingStep::Served)
    }

    fn serve(&mut self, now: Time, packet: ForwardedPacket) {
        self.busy_servers += 1;
        let due = now + self.model.service_time(packet.packet.counted);
        self.begin(due, true, packet);
    }

    fn send_on(&mut self, now: Time, packet: ForwardedPacket) {
        let delay = self.model.fixed_delay(packet.output, packet.packet.counted);
        let last = &mut self.last_arrival[usize::from(packet.output)];
        *last = (*last).max(now + delay);
        let due = *last;
        self.begin(due, false, packet);
    }

    fn begin(&mut self, due: Time, is_service: bool, packet: ForwardedPacket) {
        let number = self.next_step;
        self.next_step += 1;
        self.in_progress.push(Reverse(StepInProgress {
            due,
            number,
            is_service,
            packet,
        }));
    }
}

impl PartialEq for StepInProgress {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for StepInProgress {}

impl PartialOrd for StepInProgress {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StepInProgress {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}
