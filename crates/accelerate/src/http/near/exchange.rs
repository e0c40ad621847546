//! Requests whose response has not ended: what the client is due, and what the server owes.
//!
//! ```text
//!   client asks 1 2 3 4      due to the client:  Server  Answer  Server  Answer
//!   2 and 4 are stored       owed by the server: 1  (asked anew for 2)  3
//! ```
//! Responses to the client keep the order of its requests (RFC 9112 §9.3.2, Pipelining). What the half asks for
//! itself is owed by the server and due to nobody.

use bytes::{Bytes, BytesMut};

use crate::http::cache::{Key, Stored, WallTime};
use crate::http::wire::{RequestHead, ResponseHead};

/// What the client gets next, in the order of its requests.
#[derive(Debug)]
pub(super) enum Due {
    /// The next response of the server that is for the client.
    Server,
    /// What stands ready here.
    Answer {
        /// Head and content.
        pieces: Vec<Bytes>,
        /// The connection ends behind it.
        closes: bool,
    },
}

/// A request that the server has not answered to the end.
#[derive(Debug)]
pub(super) struct Owed {
    /// It asks to switch to another protocol, so what the client sends behind it has no known meaning.
    pub(super) asks_upgrade: bool,
    /// The response is due to the client. Otherwise this half asked by itself.
    pub(super) is_for_client: bool,
    /// What makes it of use for the cache, if anything does.
    pub(super) cached: Option<Box<Cached>>,
    /// The response's head has come, and says what becomes of the rest.
    pub(super) rest: Rest,
}

/// A request that takes part in caching.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) key: Key,
    /// As the client sent it.
    pub(super) request: RequestHead,
    pub(super) asked: WallTime,
    /// What was stored when it was asked.
    pub(super) stored: Option<Stored<Bytes>>,
    /// The request that was sent has the stored response's validators as its conditions.
    pub(super) is_validating: bool,
}

/// What becomes of the content of a response.
#[derive(Debug)]
pub(super) enum Rest {
    /// It goes to the client, if it is for it.
    Pass,
    /// It goes to the client, and is stored at its end.
    Keep(Box<Keeping>),
    /// Nobody gets it: something else was sent in its place.
    Drop,
}

/// A response that is to be stored.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) head: ResponseHead,
    pub(super) answered: WallTime,
    pub(super) content: BytesMut,
}

impl Owed {
    /// Bytes of memory beside those of the struct.
    pub(super) fn held(&self) -> usize {
        let cached = self
            .cached
            .as_ref()
            .map_or(0, |cached| cached.request.bytes.len() + 512);
        let kept = match &self.rest {
            Rest::Keep(keeping) => keeping.content.capacity() + keeping.head.bytes.len() + 256,
            Rest::Pass | Rest::Drop => 0,
        };
        cached + kept
    }

    /// The request passed as the client sent it, and its response passes as the server sends it.
    pub(super) fn is_untouched(&self) -> bool {
        let validates = self
            .cached
            .as_ref()
            .is_some_and(|cached| cached.is_validating);
        self.is_for_client && !validates && !matches!(self.rest, Rest::Drop)
    }
}
