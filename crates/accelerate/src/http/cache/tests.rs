//! A model: random requests and responses go to the index and to a simple reference, and both must agree.
//!
//! The reference is written from the text of RFC 9111 over plain values; the index reads the same values from
//! the heads that [`ModelResponse::text`] and [`ModelRequest::text`] write. It also knows which client each response was for, and
//! sees that no private one is given to another.

use std::net::SocketAddr;

use bytes::Bytes;
use vocab::SeededRandom;

use super::date;
use super::log::{self, REMOVED, STORED, parse_removed};
use super::*;
use crate::http::wire::{MessagePart, RequestHead, Requests, ResponseHead};

impl Content for u64 {
    fn held(&self) -> usize {
        0
    }

    fn to_bytes(&self) -> Bytes {
        self.to_be_bytes().to_vec().into()
    }

    fn from_bytes(bytes: Bytes) -> Self {
        parse_removed(&bytes).unwrap_or_default()
    }
}

/// 1 January 2026, 00:00:00 GMT.
const START_S: u64 = 1_767_225_600;
/// The memory of the index; nothing is displaced here.
const MEMORY: usize = 1 << 30;

#[derive(Clone, Debug)]
struct ModelRequest {
    path: u64,
    language: Option<u64>,
    authorized: bool,
    no_store: bool,
    no_cache: bool,
    only_if_cached: bool,
    max_age: Option<u64>,
    min_fresh: Option<u64>,
    max_stale: Option<u64>,
}

#[derive(Clone, Debug)]
struct ModelResponse {
    status: u16,
    /// Seconds of clock that the server's date is behind.
    behind: Option<u64>,
    age: Option<u64>,
    max_age: Option<u64>,
    s_maxage: Option<u64>,
    /// Seconds after the date.
    expires: Option<i64>,
    /// Seconds before the date.
    modified: Option<u64>,
    etag: Option<u64>,
    no_store: bool,
    no_cache: bool,
    is_private: bool,
    is_public: bool,
    must_revalidate: bool,
    sets_cookie: bool,
    while_revalidate: Option<u64>,
    varies: bool,
}

fn maybe(random: &mut SeededRandom, one_in: u64, bound: u64) -> Option<u64> {
    (random.below(one_in) == 0).then(|| random.below(bound))
}

impl ModelRequest {
    fn random(random: &mut SeededRandom) -> Self {
        let mut rare = || random.below(12) == 0;
        let [authorized, no_store, no_cache, only_if_cached] = [rare(), rare(), rare(), rare()];
        Self {
            path: random.below(4),
            language: maybe(random, 2, 2),
            authorized,
            no_store,
            no_cache,
            only_if_cached,
            max_age: maybe(random, 8, 40),
            min_fresh: maybe(random, 12, 40),
            max_stale: maybe(random, 8, 40),
        }
    }

    fn text(&self) -> RequestHead {
        let mut text = format!("GET /{} HTTP/1.1\r\nHost: a\r\n", self.path);
        if let Some(language) = self.language {
            text += &format!("Accept-Language: l{language}\r\n");
        }
        if self.authorized {
            text += "Authorization: Basic eDp5\r\n";
        }
        let spans = [
            ("max-age", self.max_age),
            ("min-fresh", self.min_fresh),
            ("max-stale", self.max_stale),
        ];
        let words = [
            ("no-store", self.no_store),
            ("no-cache", self.no_cache),
            ("only-if-cached", self.only_if_cached),
        ];
        text += &directives(&spans, &words);
        text += "\r\n";
        match Requests::new().step(text.as_bytes()).unwrap().what {
            MessagePart::Head(head, _) => *head,
            other => panic!("{other:?}"),
        }
    }
}

fn directives(spans: &[(&str, Option<u64>)], words: &[(&str, bool)]) -> String {
    let spans = spans
        .iter()
        .filter_map(|(name, span)| span.map(|span| format!("{name}={span}")));
    let words = words
        .iter()
        .filter(|(_, is_set)| *is_set)
        .map(|(name, _)| (*name).to_owned());
    let members: Vec<String> = spans.chain(words).collect();
    match members.is_empty() {
        true => String::new(),
        false => format!("Cache-Control: {}\r\n", members.join(", ")),
    }
}

impl ModelResponse {
    fn random(random: &mut SeededRandom) -> Self {
        let mut rare = || random.below(10) == 0;
        let [no_store, no_cache, is_private, is_public] = [rare(), rare(), rare(), rare()];
        let [must_revalidate, sets_cookie] = [rare(), rare()];
        Self {
            status: [200, 200, 200, 404, 201, 500][random.below(6) as usize],
            behind: maybe(random, 2, 20),
            age: maybe(random, 5, 30),
            max_age: maybe(random, 2, 60),
            s_maxage: maybe(random, 6, 60),
            expires: maybe(random, 4, 60).map(|span| span as i64 - 10),
            modified: maybe(random, 2, 1_000),
            etag: maybe(random, 2, 3),
            no_store,
            no_cache,
            is_private,
            is_public,
            must_revalidate,
            sets_cookie,
            while_revalidate: maybe(random, 4, 40),
            varies: random.below(2) == 0,
        }
    }

    fn date(&self, now: u64) -> u64 {
        now - self.behind.unwrap_or(0)
    }

    fn text(&self, now: u64) -> ResponseHead {
        let mut text = format!("HTTP/1.1 {} x\r\n", self.status);
        let mut at = |name: &str, seconds: u64| {
            text += &format!("{name}: {}\r\n", date::format(seconds as i64));
        };
        if self.behind.is_some() {
            at("Date", self.date(now));
        }
        if let Some(expires) = self.expires {
            at("Expires", self.date(now).saturating_add_signed(expires));
        }
        if let Some(modified) = self.modified {
            at("Last-Modified", self.date(now) - modified);
        }
        let mut field = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                text += &format!("{name}: {value}\r\n");
            }
        };
        field("Age", self.age);
        field("Set-Cookie", self.sets_cookie.then_some(1));
        if let Some(etag) = self.etag {
            text += &format!("ETag: \"{etag}\"\r\n");
        }
        if self.varies {
            text += "Vary: accept-language\r\n";
        }
        let spans = [
            ("max-age", self.max_age),
            ("s-maxage", self.s_maxage),
            ("stale-while-revalidate", self.while_revalidate),
        ];
        let words = [
            ("no-store", self.no_store),
            ("no-cache", self.no_cache),
            ("private", self.is_private),
            ("public", self.is_public),
            ("must-revalidate", self.must_revalidate),
        ];
        text += &directives(&spans, &words);
        text += "\r\n";
        ResponseHead::parse(Bytes::from(text)).unwrap()
    }
}

/// The reference: a list of what was stored.
#[derive(Default)]
struct ReferenceCache {
    stored: Vec<ReferenceEntry>,
}

struct ReferenceEntry {
    request: ModelRequest,
    response: ModelResponse,
    at: u64,
    number: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum ReferenceVerdict {
    Miss,
    Fresh(u64),
    WhileRevalidating(u64),
    Stale(u64),
    NotCached,
}

impl ReferenceEntry {
    /// RFC 9111 §4.2.1, with §4.2.2 for what has no explicit time.
    fn lifetime(&self) -> u64 {
        let response = &self.response;
        let guess = match (response.modified, response.status) {
            (Some(modified), 200 | 404) => (modified / 10).min(86_400),
            (Some(modified), _) if response.is_public => (modified / 10).min(86_400),
            _ => 0,
        };
        let expires = response.expires.map(|span| span.max(0) as u64);
        response
            .s_maxage
            .or(response.max_age)
            .or(expires)
            .unwrap_or(guess)
    }

    /// RFC 9111 §4.2.3; a response arrives in the second in which it was asked for.
    fn age(&self, now: u64) -> u64 {
        let on_arrival = self
            .response
            .behind
            .unwrap_or(0)
            .max(self.response.age.unwrap_or(0));
        on_arrival + (now - self.at)
    }

    /// RFC 9111 §3, and the stricter choices of this cache.
    fn may_be_stored(&self) -> bool {
        let (request, response) = (&self.request, &self.response);
        let is_for_all = response.is_public || response.s_maxage.is_some();
        let is_explicit =
            response.max_age.is_some() || response.s_maxage.is_some() || response.expires.is_some();
        let is_fresh = self.age(self.at) < self.lifetime();
        let has_validator = response.etag.is_some() || response.modified.is_some();
        let can_be_used = is_fresh || response.while_revalidate.is_some_and(|span| span > 0);
        !(request.no_store || response.no_store || response.is_private)
            && (!request.authorized || is_for_all)
            && (!response.sets_cookie || is_for_all)
            && (is_explicit || response.is_public || matches!(response.status, 200 | 404))
            && (has_validator || can_be_used && !response.no_cache)
    }

    fn fits(&self, request: &ModelRequest) -> bool {
        let is_same = self.request.language == request.language;
        self.request.path == request.path && (!self.response.varies || is_same)
    }
}

impl ReferenceCache {
    fn look_up(&self, now: u64, request: &ModelRequest) -> ReferenceVerdict {
        let Some(known) = self.stored.iter().rev().find(|known| known.fits(request)) else {
            return if request.only_if_cached {
                ReferenceVerdict::NotCached
            } else {
                ReferenceVerdict::Miss
            };
        };
        let (age, lifetime) = (known.age(now), known.lifetime());
        let stale_for = age.checked_sub(lifetime);
        let is_forbidden = known.response.no_cache
            || request.no_cache
            || request.max_age.is_some_and(|most| age > most)
            || request
                .min_fresh
                .is_some_and(|least| age + least > lifetime);
        let must_ask = known.response.must_revalidate || known.response.s_maxage.is_some();
        let may_be_stale = |stale: u64| request.max_stale.is_some_and(|most| stale <= most);
        let meanwhile = |stale: u64| {
            known
                .response
                .while_revalidate
                .is_some_and(|span| stale < span)
        };
        match stale_for {
            _ if is_forbidden => {}
            None => return ReferenceVerdict::Fresh(known.number),
            Some(_) if must_ask || request.min_fresh.is_some() => {}
            Some(stale) if may_be_stale(stale) => return ReferenceVerdict::Fresh(known.number),
            Some(stale) if meanwhile(stale) => {
                return match request.only_if_cached {
                    true => ReferenceVerdict::Fresh(known.number),
                    false => ReferenceVerdict::WhileRevalidating(known.number),
                };
            }
            Some(_) => {}
        }
        match request.only_if_cached {
            true => ReferenceVerdict::NotCached,
            false => ReferenceVerdict::Stale(known.number),
        }
    }

    /// Stores, or forgets what the newer response replaces.
    fn answered(&mut self, known: ReferenceEntry) -> bool {
        let is_stored = known.may_be_stored();
        self.stored.retain(|other| !other.fits(&known.request));
        if is_stored {
            self.stored.push(known);
        }
        is_stored
    }
}

/// The index that a later run has of its log, whose records come in any order of keys.
fn read_back(index: &CacheIndex<u64>, now: WallTime) -> CacheIndex<u64> {
    let mut records = Vec::new();
    let mut last = None;
    while let Some(id) = index.after(last) {
        records.push(index.record(id).unwrap());
        last = Some(id);
    }
    let mut again = CacheIndex::new(MEMORY, 1 << 20);
    again.begin_recovery();
    for record in records.iter().rev() {
        again.recover(now, STORED, record);
    }
    again.end_recovery(false);
    assert_eq!(again.held(), index.held());
    again
}

#[test]
fn the_index_agrees_with_a_reference_from_the_text_of_the_rfc() {
    let mut counts = [0; 5];
    for seed in 0..60 {
        let mut random = SeededRandom::from_seed(seed);
        let mut index: CacheIndex<u64> = CacheIndex::new(MEMORY, 1);
        let mut reference = ReferenceCache::default();
        let mut now = START_S;
        let mut private = std::collections::BTreeSet::new();
        for number in 0..400 {
            now += random.below(12);
            if random.below(30) == 0 {
                index = read_back(&index, WallTime(now * 1_000));
            }
            let wall = WallTime(now * 1_000);
            let request = ModelRequest::random(&mut random);
            let head = request.text();
            let server = SocketAddr::from(([198, 18, 2, 2], 80));
            let key = CacheKey::of(server, UrlScheme::Http, &head).unwrap();
            let found = match index.look_up(wall, &key, &head) {
                LookUp::Miss => ReferenceVerdict::Miss,
                LookUp::NotCached => ReferenceVerdict::NotCached,
                LookUp::Fresh(stored) => ReferenceVerdict::Fresh(stored.content),
                LookUp::StaleWhileRevalidate(stored) => {
                    ReferenceVerdict::WhileRevalidating(stored.content)
                }
                LookUp::Stale(stored) => ReferenceVerdict::Stale(stored.content),
            };
            let expected = reference.look_up(now, &request);
            assert_eq!(
                found, expected,
                "seed {seed}, request {number}: {request:?}"
            );
            counts[match &found {
                ReferenceVerdict::Miss => 0,
                ReferenceVerdict::Fresh(_) => 1,
                ReferenceVerdict::WhileRevalidating(_) => 2,
                ReferenceVerdict::Stale(_) => 3,
                ReferenceVerdict::NotCached => 4,
            }] += 1;
            if let ReferenceVerdict::Fresh(given)
            | ReferenceVerdict::WhileRevalidating(given)
            | ReferenceVerdict::Stale(given) = found
            {
                assert!(
                    !private.contains(&given),
                    "seed {seed}: a private response was shared"
                );
            }
            if matches!(
                expected,
                ReferenceVerdict::Fresh(_) | ReferenceVerdict::NotCached
            ) {
                continue;
            }
            let response = ModelResponse::random(&mut random);
            if response.is_private || response.no_store {
                private.insert(number);
            }
            let answer = response.text(now);
            let known = ReferenceEntry {
                request,
                response,
                at: now,
                number,
            };
            let is_stored = reference.answered(known);
            let outcome = index.store(wall, wall, &key, (&head, &answer), (number, 1));
            assert_eq!(
                outcome.is_ok(),
                is_stored,
                "seed {seed}, response {number}: {outcome:?} {answer:?}"
            );
            if outcome.is_err() {
                index.remove_selected(&key, &head);
            }
        }
        assert_eq!(index.len(), reference.stored.len());
        let purged = [index.purge(b"http://a/0"), index.purge(b"http://a/")];
        let (first, rest) = (purged[0], purged[1]);
        assert_eq!(first.entries + rest.entries, reference.stored.len() as u64);
        assert_eq!(first.bytes + rest.bytes, reference.stored.len() as u64);
        assert_eq!((index.len(), index.held()), (0, 0));
    }
    assert!(counts.iter().all(|count| *count > 200), "{counts:?}");
}

/// An index in which `/0` to `/9` are stored, fresh for an hour.
fn ten_pages() -> (CacheIndex<u64>, Vec<(CacheKey, RequestHead)>) {
    let mut index = CacheIndex::new(MEMORY, 1);
    let server = SocketAddr::from(([198, 18, 2, 2], 80));
    let wall = WallTime(START_S * 1_000);
    let mut pages = Vec::new();
    for number in 0..10 {
        let head = request_head(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let key = CacheKey::of(server, UrlScheme::Http, &head).unwrap();
        let text =
            "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nCache-Control: max-age=3600\r\nVary: accept\r\n\r\n";
        let response = ResponseHead::parse(Bytes::from(text)).unwrap();
        let stored = index.store(wall, wall, &key, (&head, &response), (number, 1));
        stored.unwrap();
        pages.push((key, head));
    }
    (index, pages)
}

fn request_head(text: String) -> RequestHead {
    let mut requests = Requests::new();
    match requests.step(text.as_bytes()).unwrap().what {
        MessagePart::Head(head, _) => *head,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_are_refused_or_read_as_written() {
    let (index, _) = ten_pages();
    let record = index.record(3).unwrap();
    let (id, key, stored) = log::parse_stored::<u64>(&record).unwrap();
    assert_eq!(log::emit_stored(id, &key, &stored), record);
    for length in 0..record.len() {
        let cut = record.slice(..length);
        assert!(log::parse_stored::<u64>(&cut).is_none(), "{length}");
    }
    let mut random = SeededRandom::from_seed(3);
    for _ in 0..20_000 {
        let mut bent = record.to_vec();
        let at = random.below(bent.len() as u64) as usize;
        bent[at] = random.below(256) as u8;
        if let Some((id, key, stored)) = log::parse_stored::<u64>(&Bytes::from(bent)) {
            let again = log::emit_stored(id, &key, &stored);
            let (_, other, _) = log::parse_stored::<u64>(&again).unwrap();
            assert_eq!(other, key);
        }
    }
}

#[test]
fn what_this_run_learned_counts_before_the_log() {
    let (earlier, pages) = ten_pages();
    let now = WallTime((START_S + 10) * 1_000);
    let mut index = CacheIndex::new(MEMORY, 1 << 20);
    index.begin_recovery();
    let answer = |text: &'static str| ResponseHead::parse(Bytes::from(text)).unwrap();
    // A newer response is not stored, one is, and one is invalidated by a POST.
    index.remove_selected(&pages[1].0, &pages[1].1);
    let newer = answer("HTTP/1.1 200 OK\r\nCache-Control: max-age=9\r\n\r\n");
    let stored = index.store(now, now, &pages[2].0, (&pages[2].1, &newer), (42, 1));
    stored.unwrap();
    let post = request_head("POST /3 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned());
    let done = answer("HTTP/1.1 200 OK\r\nLocation: /4\r\n\r\n");
    index.invalidate(&pages[3].0, &post, &done);
    for id in 1..=10 {
        index.recover(now, STORED, &earlier.record(id).unwrap());
    }
    // The log says in its turn that one is gone.
    index.recover(now, REMOVED, &Bytes::copy_from_slice(&log::emit_removed(6)));
    index.end_recovery(false);
    let mut found = Vec::new();
    for (key, head) in &pages {
        found.push(match index.look_up(now, key, head) {
            LookUp::Fresh(stored) => Some(stored.content),
            LookUp::Miss => None,
            other => panic!("{other:?}"),
        });
    }
    let (gone, there) = (None, Some);
    let expected = [
        there(0),
        gone,
        there(42),
        gone,
        gone,
        gone,
        there(6),
        there(7),
        there(8),
        there(9),
    ];
    assert_eq!(found, expected);
}

#[test]
fn recovered_responses_are_confirmed_until_recovery_ends() {
    let (earlier, pages) = ten_pages();
    let now = WallTime((START_S + 10) * 1_000);
    let mut index = CacheIndex::new(MEMORY, 1 << 20);
    index.begin_recovery();
    let text = "HTTP/1.1 200 OK\r\nCache-Control: max-age=9\r\n\r\n";
    let newer = ResponseHead::parse(Bytes::from(text)).unwrap();
    let stored = index.store(now, now, &pages[2].0, (&pages[2].1, &newer), (42, 1));
    stored.unwrap();
    index.recover(now, STORED, &earlier.record(1).unwrap());
    let is_fresh = |index: &mut CacheIndex<u64>, page: usize| {
        let found = index.look_up(now, &pages[page].0, &pages[page].1);
        assert!(
            matches!(found, LookUp::Fresh(_) | LookUp::Stale(_)),
            "{found:?}"
        );
        matches!(found, LookUp::Fresh(_))
    };
    assert!(!is_fresh(&mut index, 0));
    assert!(is_fresh(&mut index, 2));
    index.end_recovery(false);
    assert!(is_fresh(&mut index, 0));
}

#[test]
fn after_damage_and_clocks_set_back_servers_are_asked() {
    let (earlier, pages) = ten_pages();
    for (is_damaged, seconds, is_fresh) in [
        (false, 10, true),
        (true, 10, false),
        // An age that cannot be told, since the clock was set back by more than a minute.
        (false, -100, false),
        (false, -10, true),
    ] {
        let now = WallTime((START_S as i64 + seconds) as u64 * 1_000);
        let mut index: CacheIndex<u64> = CacheIndex::new(MEMORY, 1 << 20);
        index.begin_recovery();
        index.recover(now, STORED, &earlier.record(1).unwrap());
        index.end_recovery(is_damaged);
        let (key, head) = &pages[0];
        let found = index.look_up(now, key, head);
        assert_eq!(matches!(found, LookUp::Fresh(_)), is_fresh, "{found:?}");
        assert_eq!(matches!(found, LookUp::Stale(_)), !is_fresh, "{found:?}");
    }
}
