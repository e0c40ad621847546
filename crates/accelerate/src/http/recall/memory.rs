//! Exchanges that a far node keeps for its near nodes, bounded; the oldest go first.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use vocab::SeededRandom;

use super::{EXCHANGE_OVERHEAD, EXCHANGES_BYTES_MAX};
use crate::http::cache::ResponseValidators;
use crate::http::wire::ResponseHead;

/// A request, and the head of its response.
#[derive(Debug)]
pub(in crate::http) struct RecalledExchange {
    site: u64,
    server: SocketAddr,
    /// The request's head, without conditions.
    pub(super) request: Bytes,
    pub(super) response: ResponseHead,
}

impl RecalledExchange {
    /// The request, with the validators of the response as conditions.
    pub(in crate::http) fn request_to_send(&self) -> Bytes {
        let conditions = ResponseValidators::of(&self.response.fields).conditions();
        let end = self.request.len().saturating_sub(2);
        [&self.request[..end], &conditions, b"\r\n"].concat().into()
    }

    fn held(&self) -> usize {
        self.request.len() + self.response.bytes.len() + EXCHANGE_OVERHEAD
    }
}

/// The exchanges of all flows of a far node.
#[derive(Debug)]
pub(in crate::http) struct RecallMemory {
    exchanges: HashMap<u64, Arc<RecalledExchange>>,
    order: VecDeque<u64>,
    held: usize,
    held_max: usize,
    random: SeededRandom,
}

impl RecallMemory {
    /// An empty one that takes at most `memory_max` bytes.
    pub(in crate::http) fn new(memory_max: usize, random: SeededRandom) -> Self {
        Self {
            exchanges: HashMap::new(),
            order: VecDeque::new(),
            held: 0,
            held_max: memory_max.min(EXCHANGES_BYTES_MAX),
            random,
        }
    }

    /// Keeps an exchange; its tag.
    pub(super) fn keep(
        &mut self,
        (site, server): (u64, SocketAddr),
        request: Bytes,
        response: ResponseHead,
    ) -> u64 {
        let exchange = RecalledExchange {
            site,
            server,
            request,
            response,
        };
        let tag = self.random.next_u64();
        self.held += exchange.held();
        if let Some(former) = self.exchanges.insert(tag, Arc::new(exchange)) {
            self.held -= former.held();
        } else {
            self.order.push_back(tag);
        }
        while self.held > self.held_max
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(gone) = self.exchanges.remove(&oldest) {
                self.held -= gone.held();
            }
        }
        tag
    }

    /// The exchange with this tag, of this near node with this server.
    pub(super) fn find(
        &self,
        (site, server): (u64, SocketAddr),
        tag: u64,
    ) -> Option<Arc<RecalledExchange>> {
        let exchange = self.exchanges.get(&tag)?;
        let is_theirs = exchange.site == site && exchange.server == server;
        is_theirs.then(|| Arc::clone(exchange))
    }

    /// Forgets all.
    pub(in crate::http) fn forget(&mut self) {
        self.exchanges.clear();
        self.order.clear();
        self.held = 0;
    }

    /// Bytes of memory, about.
    pub(in crate::http) fn held(&self) -> usize {
        self.held
    }
}
