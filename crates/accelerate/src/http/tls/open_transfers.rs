//! Content that a half stores in the dictionary or reads from it, so that it can be ended when the half goes first.
//!
//! The engine keeps a transfer until the half ends it or the flow ends. A lane that a client gives up goes long before
//! its flow, and so may the half inside TLS.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use crate::{ContentId, ContentReport, ContentRequest};

/// Transfers that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct OpenTransfers {
    transfers: BTreeMap<ContentId, TransferKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferKind {
    Store,
    Read,
}

impl OpenTransfers {
    /// Takes a request that goes to the engine.
    pub(super) fn note_request(&mut self, request: &ContentRequest) {
        match request {
            ContentRequest::Store { id } => {
                self.transfers.insert(*id, TransferKind::Store);
            }
            ContentRequest::Read { id, .. } => {
                self.transfers.insert(*id, TransferKind::Read);
            }
            ContentRequest::Finish { id }
            | ContentRequest::Abandon { id }
            | ContentRequest::StopReading { id } => {
                self.transfers.remove(id);
            }
            ContentRequest::Append { .. }
            | ContentRequest::Keep { .. }
            | ContentRequest::Release { .. } => {}
        }
    }

    /// Takes a report of the engine.
    pub(super) fn note_report(&mut self, report: &ContentReport) {
        match report {
            ContentReport::Stored { id, .. }
            | ContentReport::Refused { id, .. }
            | ContentReport::Ended { id }
            | ContentReport::Gone { id, .. } => {
                self.transfers.remove(id);
            }
            ContentReport::Piece { .. } => {}
        }
    }

    /// Forgets the transfers with these numbers. Returns the requests that end them.
    pub(super) fn end(&mut self, ids: impl RangeBounds<ContentId>) -> Vec<ContentRequest> {
        let open = self.transfers.range(ids);
        let open: Vec<(ContentId, TransferKind)> = open.map(|(id, kind)| (*id, *kind)).collect();
        let requests = open.into_iter().map(|(id, kind)| {
            self.transfers.remove(&id);
            match kind {
                TransferKind::Store => ContentRequest::Abandon { id },
                TransferKind::Read => ContentRequest::StopReading { id },
            }
        });
        requests.collect()
    }

    /// The same for all.
    pub(super) fn end_all(&mut self) -> Vec<ContentRequest> {
        self.end(..)
    }
}
