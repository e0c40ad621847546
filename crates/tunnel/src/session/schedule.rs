//! Selection of the flow that sends next: deficit round robin (Shreedhar and Varghese, 1996), and
//! before it the first bytes of flows that are new or were idle.
//!
//! ```text
//!  active ──► early (64 KiB each, frame by frame) ──► turns (one full frame a round) ──► idle
//! ```
//!
//! fq_codel (RFC 8290 §4.1) has the same two lists. It puts a flow in the first list whenever its
//! queue ran empty. Here queues run empty often, because little may wait in them, so the place is
//! kept for flows that had nothing to send for a second. One of five frames comes from the second
//! list, so that many short flows do not starve the long ones.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::{FlowId, Time};

use crate::limits::DATA_LIMIT;

/// Bytes that a new flow sends before it takes turns: a page, or a directory listing.
const EARLY_BYTES: u64 = 64 << 10;

/// A flow with nothing to send for this long is new again: a person's next click.
const NEW_AGAIN: Duration = Duration::from_secs(1);

/// Interval, in frames, at which flows that take turns send while early ones wait.
const TURN_EVERY: u32 = 5;

/// Position of a flow in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchedulePosition {
    Idle,
    Early,
    Turns,
}

/// Scheduling state of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledFlow {
    place: SchedulePosition,
    early_left: u64,
    deficit: u64,
    last_sent: Time,
}

impl ScheduledFlow {
    pub(super) fn new(now: Time) -> Self {
        Self {
            place: SchedulePosition::Idle,
            early_left: EARLY_BYTES,
            deficit: 0,
            last_sent: now,
        }
    }
}

/// Backlog of a flow after one of its frames was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowBacklog {
    More,
    Nothing,
}

/// The lists; a flow is in at most one, once.
#[derive(Debug, Default)]
pub(super) struct FlowScheduler {
    early: VecDeque<FlowId>,
    turns: VecDeque<FlowId>,
    since_turn: u32,
}

impl FlowScheduler {
    pub(super) fn is_empty(&self) -> bool {
        self.early.is_empty() && self.turns.is_empty()
    }

    /// Flows in the lists; some may have gone since.
    pub(super) fn len(&self) -> usize {
        self.early.len() + self.turns.len()
    }

    /// Drops flows that are no more once they could be most of the lists.
    pub(super) fn forget_removed(&mut self, exists: impl Fn(FlowId) -> bool, flows: usize) {
        if self.len() > 2 * flows + 64 {
            self.early.retain(|flow| exists(*flow));
            self.turns.retain(|flow| exists(*flow));
        }
    }

    pub(super) fn activate(&mut self, now: Time, flow: FlowId, turn: &mut ScheduledFlow) {
        if turn.place != SchedulePosition::Idle {
            return;
        }
        if now.since(turn.last_sent) >= NEW_AGAIN {
            turn.early_left = EARLY_BYTES;
        }
        if turn.early_left > 0 {
            turn.place = SchedulePosition::Early;
            self.early.push_back(flow);
        } else {
            turn.place = SchedulePosition::Turns;
            self.turns.push_back(flow);
        }
    }

    /// The flow whose turn it is. The caller sends a frame of it and calls [`Self::served`],
    /// or [`Self::gone`] when the flow is no more.
    pub(super) fn next(&mut self) -> Option<FlowId> {
        if self.early.is_empty() || (self.since_turn >= TURN_EVERY - 1 && !self.turns.is_empty()) {
            return self.turns.front().copied();
        }
        self.early.front().copied()
    }

    /// Returns the bytes that the flow may send now, in one frame.
    pub(super) fn allowance(&self, turn: &mut ScheduledFlow) -> usize {
        match turn.place {
            SchedulePosition::Early => DATA_LIMIT,
            SchedulePosition::Turns | SchedulePosition::Idle => {
                if turn.deficit == 0 {
                    turn.deficit = DATA_LIMIT as u64;
                }
                DATA_LIMIT.min(turn.deficit as usize)
            }
        }
    }

    /// A frame with `bytes` of the flow at the front of its list was sent.
    pub(super) fn served(
        &mut self,
        now: Time,
        turn: &mut ScheduledFlow,
        bytes: usize,
        after: FlowBacklog,
    ) {
        let bytes = bytes as u64;
        if bytes > 0 {
            turn.last_sent = now;
        }
        match turn.place {
            SchedulePosition::Early => {
                self.since_turn += 1;
                turn.early_left = turn.early_left.saturating_sub(bytes);
                let Some(flow) = self.early.pop_front() else {
                    return;
                };
                match after {
                    FlowBacklog::Nothing => turn.place = SchedulePosition::Idle,
                    FlowBacklog::More if turn.early_left > 0 => self.early.push_back(flow),
                    FlowBacklog::More => {
                        turn.place = SchedulePosition::Turns;
                        self.turns.push_back(flow);
                    }
                }
            }
            SchedulePosition::Turns => {
                self.since_turn = 0;
                turn.deficit = turn.deficit.saturating_sub(bytes);
                match after {
                    FlowBacklog::Nothing => {
                        turn.deficit = 0;
                        turn.place = SchedulePosition::Idle;
                        self.turns.pop_front();
                    }
                    FlowBacklog::More if turn.deficit == 0 => self.turns.rotate_left(1),
                    FlowBacklog::More => {}
                }
            }
            SchedulePosition::Idle => {}
        }
    }

    /// The flow that `next` named does not exist any longer.
    pub(super) fn gone(&mut self, flow: FlowId) {
        if self.early.front() == Some(&flow) {
            self.early.pop_front();
        } else if self.turns.front() == Some(&flow) {
            self.turns.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the flows of the next `frames` full frames, when all flows always have more.
    fn order(schedule: &mut FlowScheduler, turns: &mut [ScheduledFlow], frames: usize) -> Vec<u64> {
        let mut order = Vec::new();
        for _ in 0..frames {
            let flow = schedule.next().unwrap();
            let turn = &mut turns[flow.0 as usize];
            let allowance = schedule.allowance(turn);
            schedule.served(Time::ZERO, turn, allowance, FlowBacklog::More);
            order.push(flow.0);
        }
        order
    }

    #[test]
    fn new_flow_precedes_alternating_bulk_flows() {
        let mut schedule = FlowScheduler::default();
        let mut turns = [ScheduledFlow::new(Time::ZERO); 3];
        for (index, turn) in turns.iter_mut().take(2).enumerate() {
            schedule.activate(Time::ZERO, FlowId(index as u64), turn);
        }
        order(&mut schedule, &mut turns, 20);
        let bulk = order(&mut schedule, &mut turns, 10);
        assert_eq!(bulk.iter().filter(|flow| **flow == 0).count(), 5);
        schedule.activate(Time::ZERO, FlowId(2), &mut turns[2]);
        let mixed = order(&mut schedule, &mut turns, 6);
        assert!(mixed.iter().filter(|flow| **flow == 2).count() >= 4);
        assert!(mixed.iter().any(|flow| *flow != 2), "bulk is not starved");
    }

    #[test]
    fn short_pause_does_not_make_a_flow_new() {
        let mut schedule = FlowScheduler::default();
        let mut turn = ScheduledFlow::new(Time::ZERO);
        schedule.activate(Time::ZERO, FlowId(0), &mut turn);
        schedule.served(Time::ZERO, &mut turn, 70_000, FlowBacklog::Nothing);
        let soon = Time::ZERO + Duration::from_millis(999);
        schedule.activate(soon, FlowId(0), &mut turn);
        assert_eq!(turn.place, SchedulePosition::Turns);
        schedule.served(soon, &mut turn, 0, FlowBacklog::Nothing);
        let later = soon + Duration::from_secs(1);
        schedule.activate(later, FlowId(0), &mut turn);
        assert_eq!(turn.place, SchedulePosition::Early);
    }
}
