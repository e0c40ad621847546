//! Flows that were reset, remembered with the reason for a peer that missed it.

use std::collections::{BTreeMap, VecDeque};

use vocab::FlowId;

use crate::ResetReason;
use crate::limits::RESETS_REMEMBERED;

#[derive(Debug, Default)]
pub(super) struct RecentResets {
    reasons: BTreeMap<FlowId, ResetReason>,
    order: VecDeque<FlowId>,
}

impl RecentResets {
    pub(super) fn remember(&mut self, flow: FlowId, reason: ResetReason) {
        if self.reasons.insert(flow, reason).is_some() {
            return;
        }
        self.order.push_back(flow);
        if self.order.len() > RESETS_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.reasons.remove(&oldest);
        }
    }

    pub(super) fn reason(&self, flow: FlowId) -> Option<ResetReason> {
        self.reasons.get(&flow).copied()
    }
}
