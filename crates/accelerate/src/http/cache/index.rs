//! The index of stored responses by key. It is bounded; the least recently used response goes first.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use bytes::Bytes;

use super::directives::CacheDirectives;
use super::invalidation::{CacheGeneration, InvalidationTable};
use super::key::CacheKey;
use super::policy::{self, NotStored, ResponseFreshness};
use super::stored::{RequestConditions, ResponseValidators, StoredResponse, head_to_store};
use super::{Content, WallTime, log};
use crate::http::recall::RecallTag;
use crate::http::wire::{RequestHead, ResponseHead};
use crate::shared::PurgeCount;

/// Responses of one URL. Two or three languages times codings are common; a URL with more variants is one
/// that varies by something like User-Agent, and each further one displaces the oldest.
const VARIANTS_MAX: usize = 16;

/// URLs of which something is learned while the index of an earlier run is read back, at most: some 2 MB. Reading takes a
/// second or so; if more is learned in that time, the rest is not read.
const LEARNED_MAX: usize = 16_384;
/// The clock may have been set back by so much before a stored response counts as one from the future.
const CLOCK_STEP_MS: u64 = 60_000;

/// The stored responses of one node.
#[derive(Debug)]
pub(crate) struct CacheIndex<H> {
    urls: HashMap<CacheKey, Vec<StoredVariant<H>>>,
    /// By the number that each has in the log.
    ids: BTreeMap<u64, CacheKey>,
    /// The number of the next response that is stored, unless a higher one is there.
    next_id: u64,
    /// Changes that are not in the log yet.
    changes: VecDeque<IndexChange>,
    /// Invalidations that responses under way may have missed.
    invalidations: InvalidationTable,
    /// While the index of an earlier run is read back: the keys of which this run knows better.
    learned: Option<HashSet<CacheKey>>,
    /// By when they were last used: key and number of the variant.
    order: BTreeMap<u64, CacheKey>,
    uses: u64,
    held: usize,
    /// Bytes of memory for keys, heads and handles at most.
    memory_max: usize,
}

#[derive(Debug)]
struct StoredVariant<H> {
    id: u64,
    stored: StoredResponse<H>,
    /// Its place in the order.
    used: u64,
}

/// A change that a log of the index has to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexChange {
    /// The response of this number is new, or another than before.
    Stored(u64),
    /// The response of this number is gone.
    Removed(u64),
}

/// The result of looking for a stored response to a request.
#[derive(Clone, Debug)]
pub(crate) enum LookUp<H> {
    /// Nothing that could be used.
    Miss,
    /// It answers the request.
    Fresh(StoredResponse<H>),
    /// It answers the request, and is to be asked for anew meanwhile (RFC 5861 §3).
    StaleWhileRevalidate(StoredResponse<H>),
    /// It answers the request if the server says that it still holds.
    Stale(StoredResponse<H>),
    /// The client wants nothing that has to be asked for (RFC 9111 §5.2.1.7): 504.
    NotCached,
}

impl<H> LookUp<H> {
    /// The same for a client that may be answered only after the server has confirmed what is stored.
    pub(crate) fn until_confirmed(self, request: &RequestHead) -> Self {
        match self {
            Self::Fresh(stored) | Self::StaleWhileRevalidate(stored) => {
                match CacheDirectives::of_request(&request.fields).only_if_cached {
                    true => Self::NotCached,
                    false => Self::Stale(stored),
                }
            }
            Self::Miss | Self::Stale(_) | Self::NotCached => self,
        }
    }
}

impl<H: Content> CacheIndex<H> {
    /// An empty one. Numbers of responses begin at `first_id`, which is higher than in any earlier run.
    pub(crate) fn new(memory_max: usize, first_id: u64) -> Self {
        Self {
            urls: HashMap::new(),
            ids: BTreeMap::new(),
            next_id: first_id,
            changes: VecDeque::new(),
            invalidations: InvalidationTable::new(),
            learned: None,
            order: BTreeMap::new(),
            uses: 0,
            held: 0,
            memory_max,
        }
    }

    /// Looks for a stored response to a GET or a HEAD (RFC 9111 §4, Constructing Responses from Caches).
    pub(crate) fn look_up(
        &mut self,
        now: WallTime,
        key: &CacheKey,
        request: &RequestHead,
    ) -> LookUp<H> {
        let asked = CacheDirectives::of_request(&request.fields);
        let missing = match asked.only_if_cached {
            true => LookUp::NotCached,
            false => LookUp::Miss,
        };
        // A later record of the log may remove it, or be damaged.
        let is_unproven = (self.learned.as_ref()).is_some_and(|learned| !learned.contains(key));
        let Some(variant) = self.select(key, request) else {
            return missing;
        };
        let stored = variant.stored.clone();
        let variant_use = match is_unproven {
            true => VariantUse::AfterValidation,
            false => usable(now, &stored.freshness, &asked),
        };
        match variant_use {
            VariantUse::Now => LookUp::Fresh(stored),
            VariantUse::WhileRevalidating if !asked.only_if_cached => {
                LookUp::StaleWhileRevalidate(stored)
            }
            VariantUse::WhileRevalidating => LookUp::Fresh(stored),
            VariantUse::AfterValidation if asked.only_if_cached => LookUp::NotCached,
            VariantUse::AfterValidation => LookUp::Stale(stored),
        }
    }

    /// Stores a response; what its key and selection had before is gone, whether it is stored or not.
    pub(crate) fn store(
        &mut self,
        asked: WallTime,
        answered: WallTime,
        key: &CacheKey,
        exchange: (&RequestHead, &ResponseHead),
        content: (H, u64),
    ) -> Result<(), NotStored> {
        let (request, response) = exchange;
        let freshness = ResponseFreshness::of(response, key, asked, answered);
        let selection = policy::storing(request, response, &freshness)?;
        self.remove_selected(key, request);
        self.learn(key);
        let stored = StoredResponse {
            head: head_to_store(response),
            selection,
            freshness,
            content: content.0,
            length: content.1,
            asked,
            recall: None,
        };
        let above = self.ids.last_key_value().map_or(0, |(last, _)| last + 1);
        let id = self.next_id.max(above);
        self.next_id = id + 1;
        self.insert(key, id, stored);
        Ok(())
    }

    /// The generation of a response that is asked for now.
    pub(crate) fn generation(&self) -> CacheGeneration {
        self.invalidations.current()
    }

    /// True if a response that was asked for in `asked` may show what was there before an unsafe request or a purge. It must
    /// not be stored.
    pub(crate) fn is_outdated(&self, asked: CacheGeneration, key: &CacheKey) -> bool {
        self.invalidations.is_missed(asked, key)
    }

    /// An unsafe request for this URL is sent or answered: what is under way for it may show the state before.
    pub(crate) fn note_unsafe(&mut self, key: &CacheKey) {
        self.invalidations.note(key);
    }

    /// Tests if [`Self::store`] would take this response, before its content has come.
    pub(crate) fn would_store(
        &self,
        asked: WallTime,
        answered: WallTime,
        key: &CacheKey,
        exchange: (&RequestHead, &ResponseHead),
    ) -> Result<(), NotStored> {
        let freshness = ResponseFreshness::of(exchange.1, key, asked, answered);
        policy::storing(exchange.0, exchange.1, &freshness).map(|_| ())
    }

    /// Takes a 304 to a request (RFC 9111 §4.3.4); the response that it speaks of, if that is stored. One
    /// without validators speaks of the selected response, if it was that one's validators that were sent.
    pub(crate) fn freshen(
        &mut self,
        asked: WallTime,
        answered: WallTime,
        key: &CacheKey,
        exchange: (&RequestHead, &ResponseHead),
        conditions: &RequestConditions,
    ) -> Option<StoredResponse<H>> {
        let (request, update) = exchange;
        self.learn(key);
        let found = ResponseValidators::of(&update.fields);
        let variants = self.urls.get_mut(key)?;
        let speaks_of = |variant: &&mut StoredVariant<H>| {
            variant.stored.selection.selects(&request.fields)
                && variant.stored.validators().match_304(&found, conditions)
        };
        let variant = variants.iter_mut().rev().find(speaks_of)?;
        let before = variant.stored.held();
        if !variant.stored.update(update, key, asked, answered) {
            self.remove_selected(key, request);
            return None;
        }
        self.held = self.held + variant.stored.held() - before;
        self.changes.push_back(IndexChange::Stored(variant.id));
        let stored = variant.stored.clone();
        // What may no longer be stored goes, after this use.
        if policy::storing(request, &stored.head, &stored.freshness).is_err() {
            self.remove_selected(key, request);
        }
        Some(stored)
    }

    /// Keeps the far node's tag for the response with these validators, until its head changes.
    pub(crate) fn note_recall(
        &mut self,
        key: &CacheKey,
        request: &RequestHead,
        validators: &ResponseValidators,
        tag: RecallTag,
    ) {
        let variants = self.urls.get_mut(key).into_iter().flatten();
        let mut selected =
            variants.filter(|variant| variant.stored.selection.selects(&request.fields));
        if let Some(variant) = selected.find(|variant| variant.stored.validators() == *validators) {
            variant.stored.recall = Some(tag);
        }
    }

    /// Forgets what a request would be answered with, because a newer response to it is not stored or its
    /// content is gone.
    pub(crate) fn remove_selected(&mut self, key: &CacheKey, request: &RequestHead) {
        self.learn(key);
        let Some(variants) = self.urls.get_mut(key) else {
            return;
        };
        let mut at = 0;
        while at < variants.len() {
            match variants[at].stored.selection.selects(&request.fields) {
                true => {
                    let variant = variants.remove(at);
                    self.order.remove(&variant.used);
                    self.ids.remove(&variant.id);
                    self.changes.push_back(IndexChange::Removed(variant.id));
                    self.held -= variant.stored.held();
                }
                false => at += 1,
            }
        }
        self.drop_if_empty(key);
    }

    /// RFC 9111 §4.4 (Invalidating Stored Responses): after an unsafe request that did not fail, for its
    /// URL and those of the same origin that the response names.
    pub(crate) fn invalidate(
        &mut self,
        key: &CacheKey,
        request: &RequestHead,
        response: &ResponseHead,
    ) {
        if request.is_safe() {
            return;
        }
        self.invalidations.note(key);
        if !(200..400).contains(&response.status) {
            return;
        }
        self.learn(key);
        self.remove(key);
        for name in ["location", "content-location"] {
            let named = response.fields.single(name);
            if let Some(other) = named.and_then(|reference| key.of_same_origin(reference)) {
                self.invalidations.note(&other);
                self.learn(&other);
                self.remove(&other);
            }
        }
    }

    /// Removes the stored responses of all servers whose URLs begin with `prefix`. No response that is under way is stored,
    /// whatever its URL.
    pub(crate) fn purge(&mut self, prefix: &[u8]) -> PurgeCount {
        self.invalidations.note_all();
        let keys = self.urls.keys().filter(|key| key.url.starts_with(prefix));
        let mut keys: Vec<CacheKey> = keys.cloned().collect();
        keys.sort_unstable();
        let mut purged = PurgeCount::default();
        for key in &keys {
            let variants = self.urls.get(key).into_iter().flatten();
            purged.bytes += variants.map(|variant| variant.stored.length).sum::<u64>();
            purged.entries += self.remove(key) as u64;
        }
        purged
    }

    /// Removes the least recently used responses until the index holds no more than `memory_max` bytes.
    pub(crate) fn shrink(&mut self, memory_max: usize) {
        while self.held > memory_max {
            let Some((used, key)) = self.order.first_key_value() else {
                break;
            };
            let (used, key) = (*used, key.clone());
            self.remove_used(&key, used);
        }
    }

    /// The next change that a log has to follow.
    pub(crate) fn poll_change(&mut self) -> Option<IndexChange> {
        let change = self.changes.pop_front();
        if change.is_none() && self.changes.capacity() > 1_024 {
            self.changes = VecDeque::new();
        }
        change
    }

    /// The first stored response whose number is above this one, and its number.
    pub(crate) fn after(&self, id: Option<u64>) -> Option<u64> {
        let from = match id {
            Some(id) => id.checked_add(1)?,
            None => 0,
        };
        self.ids.range(from..).next().map(|(id, _)| *id)
    }

    /// The record of the stored response with this number.
    pub(crate) fn record(&self, id: u64) -> Option<Bytes> {
        let key = self.ids.get(&id)?;
        let mut variants = self.urls.get(key)?.iter();
        let variant = variants.find(|variant| variant.id == id)?;
        Some(log::emit_stored(id, key, &variant.stored))
    }

    /// Begins to take the records of an earlier run. What this run learns meanwhile counts before them.
    pub(crate) fn begin_recovery(&mut self) {
        self.learned = Some(HashSet::new());
    }

    /// Takes a record of an earlier run.
    pub(crate) fn recover(&mut self, now: WallTime, kind: u8, body: &Bytes) {
        let Some(learned) = &self.learned else {
            return;
        };
        match kind {
            log::STORED => {
                let Some((id, key, mut stored)) = log::parse_stored::<H>(body) else {
                    return;
                };
                let is_known = learned.contains(&key);
                self.remove_id(id);
                if is_known {
                    return;
                }
                // Its age cannot be told: the clock was set back since.
                if stored.freshness.response_time.since_ms(now) > CLOCK_STEP_MS {
                    stored.freshness.no_cache = true;
                }
                self.insert(&key, id, stored);
            }
            log::REMOVED => {
                if let Some(id) = log::parse_removed(body) {
                    self.remove_id(id);
                }
            }
            // Of a later release.
            _ => {}
        }
        self.changes.clear();
    }

    /// All records of an earlier run were taken. If some were lost, what is stored may be out of date, and is used only
    /// after its server has confirmed it.
    pub(crate) fn end_recovery(&mut self, is_damaged: bool) {
        let Some(learned) = self.learned.take() else {
            return;
        };
        if !is_damaged {
            return;
        }
        let keys: BTreeSet<&CacheKey> = self.ids.values().collect();
        for key in keys {
            if !learned.contains(key) {
                for variant in self.urls.get_mut(key).into_iter().flatten() {
                    variant.stored.freshness.no_cache = true;
                }
            }
        }
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.invalidations.note_all();
        self.urls.clear();
        self.order.clear();
        self.ids.clear();
        self.changes.clear();
        self.held = 0;
    }

    /// This run knows better than the log of an earlier one what is stored under this key.
    fn learn(&mut self, key: &CacheKey) {
        let Some(learned) = &mut self.learned else {
            return;
        };
        if learned.insert(key.clone()) && learned.len() > LEARNED_MAX {
            self.learned = None;
            self.clear();
        }
    }

    fn remove_id(&mut self, id: u64) {
        let Some(key) = self.ids.get(&id).cloned() else {
            return;
        };
        let mut variants = self.urls.get(&key).into_iter().flatten();
        if let Some(used) = variants
            .find(|variant| variant.id == id)
            .map(|variant| variant.used)
        {
            self.remove_used(&key, used);
        }
    }

    /// Responses that are stored.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Bytes of memory for keys, heads and handles.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// The variant for a request: the newest that fits (RFC 9111 §4.1).
    fn select(&mut self, key: &CacheKey, request: &RequestHead) -> Option<&mut StoredVariant<H>> {
        let variants = self.urls.get_mut(key)?;
        let fits =
            |variant: &&mut StoredVariant<H>| variant.stored.selection.selects(&request.fields);
        let variant = variants.iter_mut().rev().find(fits)?;
        self.order.remove(&variant.used);
        self.uses += 1;
        variant.used = self.uses;
        self.order.insert(self.uses, key.clone());
        Some(variant)
    }

    fn insert(&mut self, key: &CacheKey, id: u64, stored: StoredResponse<H>) {
        self.uses += 1;
        self.ids.insert(id, key.clone());
        self.changes.push_back(IndexChange::Stored(id));
        self.order.insert(self.uses, key.clone());
        self.held += stored.held();
        let used = self.uses;
        let variants = match self.urls.get_mut(key) {
            Some(variants) => variants,
            None => {
                self.held += key_memory(key);
                self.urls.entry(key.clone()).or_default()
            }
        };
        // Those of earlier runs are not read back in their order.
        let place = variants.partition_point(|variant| variant.id < id);
        variants.insert(place, StoredVariant { id, stored, used });
        if variants.len() > VARIANTS_MAX {
            let oldest = variants.iter().map(|variant| variant.used).min();
            oldest
                .into_iter()
                .for_each(|used| self.remove_used(key, used));
        }
        self.shrink(self.memory_max);
    }

    fn remove(&mut self, key: &CacheKey) -> usize {
        let Some(variants) = self.urls.remove(key) else {
            return 0;
        };
        self.held -= key_memory(key);
        for variant in &variants {
            self.order.remove(&variant.used);
            self.ids.remove(&variant.id);
            self.changes.push_back(IndexChange::Removed(variant.id));
            self.held -= variant.stored.held();
        }
        variants.len()
    }

    fn remove_used(&mut self, key: &CacheKey, used: u64) {
        self.order.remove(&used);
        let Some(variants) = self.urls.get_mut(key) else {
            return;
        };
        if let Some(at) = variants.iter().position(|variant| variant.used == used) {
            let variant = variants.remove(at);
            self.ids.remove(&variant.id);
            self.changes.push_back(IndexChange::Removed(variant.id));
            self.held -= variant.stored.held();
        }
        self.drop_if_empty(key);
    }

    fn drop_if_empty(&mut self, key: &CacheKey) {
        if self.urls.get(key).is_some_and(Vec::is_empty) {
            self.urls.remove(key);
            self.held -= key_memory(key);
        }
    }
}

/// A key stands in the table of URLs, in the order and among the numbers, which share its bytes.
fn key_memory(key: &CacheKey) -> usize {
    key.url.len() + 2 * size_of::<CacheKey>() + 64
}

enum VariantUse {
    Now,
    WhileRevalidating,
    AfterValidation,
}

/// Decides if a stored response may be used (RFC 9111 §4.2, §4.2.4, §5.2.1).
fn usable(now: WallTime, freshness: &ResponseFreshness, asked: &CacheDirectives) -> VariantUse {
    let is_from_future = freshness.response_time.since_ms(now) > CLOCK_STEP_MS;
    if freshness.no_cache || asked.no_cache || is_from_future {
        return VariantUse::AfterValidation;
    }
    let age_ms = freshness.age_ms(now);
    let seconds = |span: u64| span * 1_000;
    if asked.max_age.is_some_and(|most| age_ms > seconds(most)) {
        return VariantUse::AfterValidation;
    }
    let Some(stale_ms) = freshness.stale_for_ms(now) else {
        let left_ms = freshness.lifetime_ms - age_ms;
        return match asked
            .min_fresh
            .is_none_or(|least| left_ms >= seconds(least))
        {
            true => VariantUse::Now,
            false => VariantUse::AfterValidation,
        };
    };
    if freshness.must_revalidate || asked.min_fresh.is_some() {
        return VariantUse::AfterValidation;
    }
    if asked
        .max_stale
        .is_some_and(|most| stale_ms <= seconds(most))
    {
        return VariantUse::Now;
    }
    match stale_ms < freshness.stale_while_revalidate_ms {
        true => VariantUse::WhileRevalidating,
        false => VariantUse::AfterValidation,
    }
}
