//! Collapsed forwarding: of several clients that ask for the same URL at once, one asks the server.
//!
//! ```text
//!  first GET of a URL ──► Lead ──► server        not shareable ──► the others ask the server, each by itself
//!  further ones       ──► Follower, waits ◄───── stored ─────────► the others are answered from the cache
//!                                                broken off ─────► one of the others leads
//! ```
//! The others wait for the head of the first response, and then until its content is stored: content can be read from the
//! dictionary only as a whole. The wait is bounded by time ([`HEAD_WAIT`], [`BODY_WAIT`]) and by number
//! ([`FOLLOWERS_MAX`]). A URL whose response was not shareable is not collapsed for a while ([`UNSHARED_FOR`]), and one whose
//! response was slow for longer ([`SLOW_FOR`]): long polls are slow each time.

use std::collections::BTreeMap;
use std::time::Duration;

use vocab::Time;

use super::cache::CacheKey;
use super::shared::SharedCache;
use super::wire::{RequestHead, has_option};

/// The time for which clients wait for the head of another client's response. A server that takes longer works on each
/// request, or hangs.
pub(super) const HEAD_WAIT: Duration = Duration::from_secs(5);
/// The time for which they wait for all of it: 10 MB at 5 Mbit/s take 16 s. A client that reads slowly holds the others up
/// so long at most.
pub(super) const BODY_WAIT: Duration = Duration::from_secs(30);
/// Clients that wait for one response. More are rare, and ask the server.
const FOLLOWERS_MAX: usize = 4_096;
/// The time for which the requests of a URL are not collapsed after its response was not shareable.
const UNSHARED_FOR: Duration = Duration::from_secs(30);
/// The time for which they are not collapsed after the head of the response came later than [`HEAD_WAIT`]. Long polls hold a
/// response back for up to some minutes.
const SLOW_FOR: Duration = Duration::from_secs(600);
/// URLs of which that is remembered: some 300 kB.
const UNSHARED_MAX: usize = 2_048;

/// The requests that the server was asked and that others wait for.
#[derive(Debug, Default)]
pub(super) struct CollapseTable {
    pending: BTreeMap<CacheKey, PendingResponse>,
    /// Outcomes of these flows' waits.
    released: BTreeMap<u64, CollapseOutcome>,
    /// The flows that are to be woken.
    wakes: Vec<u64>,
    unshared: BTreeMap<CacheKey, Time>,
}

#[derive(Debug, Default)]
struct PendingResponse {
    followers: Vec<u64>,
    /// Its head has come, and it is being stored.
    is_coming: bool,
}

/// The end of a response that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollapseOutcome {
    /// It is in the cache.
    Stored,
    /// It is for its own client alone, or cannot be stored.
    NotShared,
    /// It did not come to its end, and says nothing about the next one.
    BrokenOff,
}

/// The part of a request in collapsed forwarding.
#[derive(Debug)]
pub(super) enum CollapseRole {
    /// It goes to the server, and others wait for its response.
    Lead(CollapseLead),
    /// It waits.
    Follow(CollapseFollower),
    /// It goes to the server by itself.
    Alone,
}

/// Tests if the response to a GET that is not in the cache may answer other clients, as far as its request says.
pub(super) fn is_collapsible(head: &RequestHead) -> bool {
    let fields = &head.fields;
    let own = ["authorization", "if-none-match", "if-modified-since"];
    let is_plain = !own.iter().any(|name| fields.has(name));
    let forbids = ["no-store", "no-cache"];
    let forbids = |name| {
        forbids
            .iter()
            .any(|option| has_option(fields, name, option))
    };
    head.method() == b"GET" && is_plain && !forbids("cache-control") && !forbids("pragma")
}

impl CollapseTable {
    fn release(&mut self, key: &CacheKey, outcome: CollapseOutcome) {
        let Some(pending) = self.pending.remove(key) else {
            return;
        };
        for flow in pending.followers {
            self.released.insert(flow, outcome);
            self.wakes.push(flow);
        }
    }

    /// Requests of this URL go to the server by themselves for a while.
    fn note_unshared(&mut self, now: Time, key: &CacheKey, lasts: Duration) {
        if self.unshared.len() >= UNSHARED_MAX {
            self.unshared.retain(|_, until| *until > now);
        }
        if self.unshared.len() < UNSHARED_MAX {
            self.unshared.insert(key.clone(), now + lasts);
        }
    }

    /// The next flow to wake.
    pub(super) fn poll_wake(&mut self) -> Option<u64> {
        self.wakes.pop()
    }
}

/// Has a request take part.
pub(super) fn join(now: Time, cache: &SharedCache, key: &CacheKey) -> CollapseRole {
    let Some(flow) = cache.flow() else {
        return CollapseRole::Alone;
    };
    let is_lead = cache.with(|shared| {
        let table = &mut shared.collapse;
        if let Some(until) = table.unshared.get(key) {
            if *until > now {
                return None;
            }
            table.unshared.remove(key);
        }
        match table.pending.get_mut(key) {
            Some(pending) if pending.followers.len() >= FOLLOWERS_MAX => None,
            Some(pending) => {
                pending.followers.push(flow);
                Some(false)
            }
            None => {
                let pending = PendingResponse::default();
                table.pending.insert(key.clone(), pending);
                Some(true)
            }
        }
    });
    let (cache, key) = (cache.clone(), key.clone());
    match is_lead {
        Some(true) => CollapseRole::Lead(CollapseLead {
            cache,
            key,
            since: now,
            is_slow: false,
            outcome: CollapseOutcome::BrokenOff,
        }),
        Some(false) => CollapseRole::Follow(CollapseFollower {
            cache,
            flow,
            key,
            since: now,
        }),
        None => CollapseRole::Alone,
    }
}

/// The duty of the request that others wait for. When it is dropped, they learn what it says then.
#[derive(Debug)]
pub(super) struct CollapseLead {
    cache: SharedCache,
    key: CacheKey,
    since: Time,
    /// The head came later than others wait for it.
    is_slow: bool,
    outcome: CollapseOutcome,
}

impl CollapseLead {
    /// The head of the final response has come. Unless it is stored, those that wait for it ask the server themselves.
    pub(super) fn note_answer(&mut self, now: Time) {
        self.outcome = CollapseOutcome::NotShared;
        self.is_slow = now.since(self.since) >= HEAD_WAIT;
        if self.is_slow {
            let key = &self.key;
            self.cache
                .with(|shared| shared.collapse.note_unshared(now, key, SLOW_FOR));
        }
    }

    /// The response is being stored; it is broken off unless something else is said.
    pub(super) fn note_head(&mut self) {
        self.outcome = CollapseOutcome::BrokenOff;
        self.cache.with(|shared| {
            if let Some(pending) = shared.collapse.pending.get_mut(&self.key) {
                pending.is_coming = true;
            }
        });
    }

    /// The response is there, or will never be of use to others.
    pub(super) fn end(mut self, now: Time, outcome: CollapseOutcome) {
        self.outcome = outcome;
        if outcome == CollapseOutcome::NotShared && !self.is_slow {
            let key = &self.key;
            self.cache
                .with(|shared| shared.collapse.note_unshared(now, key, UNSHARED_FOR));
        }
    }
}

impl Drop for CollapseLead {
    fn drop(&mut self) {
        let (key, outcome) = (&self.key, self.outcome);
        self.cache
            .with(|shared| shared.collapse.release(key, outcome));
    }
}

/// The place of a request that waits.
#[derive(Debug)]
pub(super) struct CollapseFollower {
    cache: SharedCache,
    flow: u64,
    key: CacheKey,
    since: Time,
}

impl CollapseFollower {
    /// Outcome of the response; `None` until it has come.
    pub(super) fn outcome(&self) -> Option<CollapseOutcome> {
        let flow = self.flow;
        self.cache
            .with(|shared| shared.collapse.released.remove(&flow))
    }

    /// The wait has ended and nothing has come. If even the head is late, nobody else waits for it either.
    pub(super) fn note_late(&self, now: Time) {
        self.cache.with(|shared| {
            let table = &mut shared.collapse;
            let pending = table.pending.get(&self.key);
            if pending.is_some_and(|pending| !pending.is_coming) {
                table.note_unshared(now, &self.key, SLOW_FOR);
                table.release(&self.key, CollapseOutcome::NotShared);
            }
        });
    }

    /// When the wait ends if nothing comes.
    pub(super) fn until(&self) -> Time {
        let wait = self.cache.with(|shared| {
            let pending = shared.collapse.pending.get(&self.key);
            match pending.is_some_and(|pending| pending.is_coming) {
                true => BODY_WAIT,
                false => HEAD_WAIT,
            }
        });
        self.since + wait
    }
}

impl Drop for CollapseFollower {
    fn drop(&mut self) {
        let flow = self.flow;
        self.cache.with(|shared| {
            let table = &mut shared.collapse;
            table.released.remove(&flow);
            if let Some(pending) = table.pending.get_mut(&self.key) {
                pending.followers.retain(|follower| *follower != flow);
            }
        });
    }
}
