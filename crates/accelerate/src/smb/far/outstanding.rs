//! Requests under way at the server, by its ids and by the client's.

use std::collections::HashMap;

use super::RequestPurpose;
use crate::smb::wire::header::MessageProtection;

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutstandingRequest {
    /// The client's id; `None` for our own.
    pub(super) client_id: Option<u64>,
    pub(super) purpose: RequestPurpose,
    pub(super) charge: u16,
    pub(super) session: u64,
    /// The protection of the request, which its answer must have as well.
    pub(super) guard: MessageProtection,
    /// It is part of a compound that servers refuse, see [`GatheredMessage::relates_to_nothing`](super::message::GatheredMessage::relates_to_nothing).
    pub(super) is_refused: bool,
    /// A WRITE or CLOSE that the client may believe complete.
    pub(super) is_early: bool,
    /// A WRITE behind which an oplock is given back, see [`TrackedOpen::writing`](super::open::TrackedOpen::writing).
    pub(super) is_awaited: bool,
    /// The start of such a WRITE, if it is in
    /// [`TrackedOpen::written`](super::open::TrackedOpen::written).
    pub(super) written_at: Option<u64>,
    /// The client's id of the CREATE in the same compound whose open it works on.
    pub(super) opens_with: Option<u64>,
    /// It may change the entries of a directory.
    pub(super) changes_names: bool,
    /// It may make a name that was not there.
    pub(super) makes_names: bool,
    /// A CREATE alone in its frame that deletes what it opens as it is closed.
    pub(super) deletes: bool,
    /// The server has told that the answer will come later.
    pub(super) is_pending: bool,
    /// The number of breaks of unknown opens at the time of the last interim answer to it.
    pub(super) heard_breaks: u64,
}

impl OutstandingRequest {
    /// A request without further known properties.
    pub(super) fn new(
        client_id: Option<u64>,
        purpose: RequestPurpose,
        charge: u16,
        (session, guard): (u64, MessageProtection),
    ) -> Self {
        Self {
            client_id,
            purpose,
            charge,
            session,
            guard,
            is_refused: false,
            is_early: false,
            is_awaited: false,
            written_at: None,
            opens_with: None,
            changes_names: false,
            makes_names: false,
            deletes: false,
            is_pending: false,
            heard_breaks: 0,
        }
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct RequestTable {
    /// By the id that the server knows.
    requests: HashMap<u64, OutstandingRequest>,
    /// The server's id for each id of the client, which may be equal.
    of_client: HashMap<u64, u64>,
}

impl RequestTable {
    pub(super) fn insert(&mut self, id: u64, request: OutstandingRequest) {
        if let Some(client_id) = request.client_id {
            self.of_client.insert(client_id, id);
        }
        self.requests.insert(id, request);
    }

    pub(super) fn get(&self, id: &u64) -> Option<&OutstandingRequest> {
        self.requests.get(id)
    }

    /// The request that the client knows by this id, and the server's id of it.
    pub(super) fn of_client(&self, client_id: u64) -> Option<(u64, &OutstandingRequest)> {
        let id = *self.of_client.get(&client_id)?;
        Some((id, self.requests.get(&id)?))
    }

    pub(super) fn remove(&mut self, id: &u64) {
        let client_id = self.requests.remove(id).and_then(|of| of.client_id);
        // A client that gives an id twice means the later one by it.
        if let Some(client_id) = client_id
            && self.of_client.get(&client_id) == Some(id)
        {
            self.of_client.remove(&client_id);
        }
    }

    /// Records the server's interim answer to a request.
    pub(super) fn mark_pending(&mut self, id: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.is_pending = true;
        }
    }

    /// Records such an answer, and the number of breaks kept by then.
    pub(super) fn is_pending(&mut self, id: u64, kept_breaks: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.heard_breaks = kept_breaks;
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &OutstandingRequest> {
        self.requests.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut OutstandingRequest> {
        self.requests.values_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(client_id: Option<u64>) -> OutstandingRequest {
        OutstandingRequest::new(
            client_id,
            RequestPurpose::Plain,
            1,
            (0, MessageProtection::Nothing),
        )
    }

    #[test]
    fn request_is_found_until_its_answer() {
        let mut requests = RequestTable::default();
        requests.insert(10, request(Some(3)));
        requests.insert(11, request(None));
        requests.insert(12, request(Some(4)));
        let found = |requests: &RequestTable, id| requests.of_client(id).map(|(id, _)| id);
        assert_eq!(found(&requests, 3), Some(10));
        assert_eq!(found(&requests, 4), Some(12));
        assert_eq!(found(&requests, 11), None);
        requests.remove(&10);
        assert_eq!(found(&requests, 3), None);
        assert_eq!(requests.len(), 2);
        // One that gives an id twice.
        requests.insert(13, request(Some(4)));
        requests.remove(&12);
        assert_eq!(found(&requests, 4), Some(13));
        requests.remove(&13);
        assert!(requests.of_client.is_empty());
    }
}
