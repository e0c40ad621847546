//! Table that a node's near halves share: responses that are promised or came ahead of their requests.
//!
//! ```text
//!   promised ──► OnItsWay ──whole──► Held: for this client, once, HELD_FOR     (private, or not to be stored)
//!      flows wait ──┘ │       └────► InCache: the shared cache has it           (by its ordinary rules)
//!                     └─ cancelled, or its flow ended ─► forgotten; who waits asks the server
//! ```
//! A response that is held answers a request of the same client's address to the same server, for the same URL and
//! with the same fields ([`is_alike`](super::request::is_alike)), and no other.
//!
//! What was never asked for counts against its host, and of a host with a low share of hits less is taken ahead.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use vocab::Time;

use super::frames::PrefetchId;
use super::request::is_alike;
use super::{HELD_FOR, HELD_MAX, HOSTS_MAX, JUDGED_MAX, JUDGED_MIN, OBJECTS_MIN, OBJECTS_PER_PAGE};
use crate::http::cache::{CacheKey, StoredResponse};
use crate::http::shared::SharedContent;
use crate::http::wire::RequestHead;

/// The responses ahead of their requests of one node.
#[derive(Debug)]
pub(in crate::http) struct AheadTable {
    /// The run of this node, for far nodes.
    site: u64,
    responses: BTreeMap<CacheKey, Vec<AheadResponse>>,
    /// When what has come is judged, in the order of that.
    judged: VecDeque<(Time, CacheKey, u64)>,
    /// The streams that responses come on.
    pushers: BTreeMap<FlowLane, PushingFlow>,
    hosts: HashMap<(SocketAddr, Bytes), HitCount>,
    /// Flows to be woken.
    wakes: VecDeque<u64>,
    /// Numbers of responses that were given out.
    responses_total: u64,
    held: usize,
}

/// A response ahead of its request.
#[derive(Debug)]
struct AheadResponse {
    number: u64,
    client: IpAddr,
    /// Lane of the flow on which the response comes.
    lane: FlowLane,
    /// The request that fetched it.
    request: RequestHead,
    state: AheadState,
    /// Bytes of memory.
    memory: usize,
}

#[derive(Debug)]
enum AheadState {
    /// Requests wait for it here.
    OnItsWay {
        id: PrefetchId,
        waiting: Vec<FlowLane>,
    },
    /// For its client, once.
    Held(Box<StoredResponse<SharedContent>>),
    /// The shared cache has it.
    InCache,
}

/// A flow that responses come on.
#[derive(Debug)]
struct PushingFlow {
    /// Pending report to the far half: a client waits, or none does.
    wanted: Vec<PrefetchId>,
    declined: Vec<PrefetchId>,
    /// When something last came.
    progress: Time,
    count: AheadCount,
}

/// Counts of prefetched responses, for the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AheadCount {
    /// Responses that came.
    pub(super) responses: u64,
    /// Bytes of their content.
    pub(super) bytes: u64,
    /// Those that were asked for.
    pub(super) used: u64,
    /// Those that were not, in time.
    pub(super) unused: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct HitCount {
    used: u32,
    judged: u32,
}

/// Table's answer to a request.
#[derive(Debug)]
pub(super) enum AheadMatch {
    /// Nothing.
    Nothing,
    /// A response that answers it.
    Held(Box<StoredResponse<SharedContent>>),
    /// One is on its way; the flow is woken when it has come, or does not come. Something last came then.
    OnItsWay(Time),
}

/// A stream of requests and their responses: a flow, or one of several in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::http) struct FlowLane {
    /// The engine's number of the flow.
    pub(in crate::http) flow: u64,
    /// The lane, where a flow has several.
    pub(in crate::http) number: u32,
}

/// The client of a request, and the stream that the request comes on.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct AskingClient {
    /// The stream.
    pub(in crate::http) lane: FlowLane,
    /// The client's address.
    pub(in crate::http) client: IpAddr,
}

impl AheadTable {
    /// An empty one; `site` is a random number.
    pub(in crate::http) fn new(site: u64) -> Self {
        Self {
            site,
            responses: BTreeMap::new(),
            judged: VecDeque::new(),
            pushers: BTreeMap::new(),
            hosts: HashMap::new(),
            wakes: VecDeque::new(),
            responses_total: 0,
            held: 0,
        }
    }

    /// The run of this node.
    pub(in crate::http) fn site(&self) -> u64 {
        self.site
    }

    /// A flow that is to be woken.
    pub(in crate::http) fn poll_wake(&mut self) -> Option<u64> {
        self.wakes.pop_front()
    }

    /// When something is to be judged.
    pub(in crate::http) fn poll_timeout(&self) -> Option<Time> {
        self.judged.front().map(|(at, _, _)| *at)
    }

    /// Bytes of memory.
    pub(in crate::http) fn held(&self) -> usize {
        self.held
    }

    /// Takes a promise. `false` if there is no room for it.
    pub(super) fn promise(
        &mut self,
        now: Time,
        asker: AskingClient,
        id: PrefetchId,
        key: &CacheKey,
        request: RequestHead,
    ) -> bool {
        let memory = memory_of(key, &request);
        if self.held + memory > HELD_MAX {
            return false;
        }
        self.held += memory;
        self.pusher(now, asker.lane);
        self.responses_total += 1;
        let responses = self.responses.entry(key.clone()).or_default();
        responses.push(AheadResponse {
            number: self.responses_total,
            client: asker.client,
            lane: asker.lane,
            request,
            state: AheadState::OnItsWay {
                id,
                waiting: Vec::new(),
            },
            memory,
        });
        true
    }

    fn pusher(&mut self, now: Time, lane: FlowLane) -> &mut PushingFlow {
        self.pushers.entry(lane).or_insert_with(|| PushingFlow {
            wanted: Vec::new(),
            declined: Vec::new(),
            progress: now,
            count: AheadCount::default(),
        })
    }

    /// Something has come.
    pub(super) fn note_progress(&mut self, now: Time, lane: FlowLane) {
        self.pusher(now, lane).progress = now;
    }

    /// A response is whole. `stored` is `None` if the shared cache has it.
    pub(super) fn complete(
        &mut self,
        now: Time,
        lane: FlowLane,
        (id, key): (PrefetchId, &CacheKey),
        length: u64,
        stored: Option<StoredResponse<SharedContent>>,
    ) {
        let count = &mut self.pusher(now, lane).count;
        count.responses += 1;
        count.bytes += length;
        let memory = stored.as_ref().map_or(0, StoredResponse::held);
        if self.held + memory > HELD_MAX {
            return self.fail(lane, id, key);
        }
        let Some(response) = self.on_its_way(lane, id, key) else {
            return;
        };
        response.memory += memory;
        let state = match stored {
            Some(stored) => AheadState::Held(Box::new(stored)),
            None => AheadState::InCache,
        };
        let number = response.number;
        let before = std::mem::replace(&mut response.state, state);
        self.held += memory;
        self.wake_waiting(before);
        self.judged.push_back((now + HELD_FOR, key.clone(), number));
        if self.judged.len() > JUDGED_MAX
            && let Some((_, key, number)) = self.judged.pop_front()
        {
            self.judge(&key, number, false);
        }
    }

    /// A response does not come.
    pub(super) fn fail(&mut self, lane: FlowLane, id: PrefetchId, key: &CacheKey) {
        if let Some(number) = self.on_its_way(lane, id, key).map(|found| found.number)
            && let Some(response) = self.remove(key, number)
        {
            self.wake_waiting(response.state);
        }
    }

    /// True if a response is still on its way, and nothing has made it useless.
    pub(super) fn is_expected(&mut self, lane: FlowLane, id: PrefetchId, key: &CacheKey) -> bool {
        self.on_its_way(lane, id, key).is_some()
    }

    fn on_its_way(
        &mut self,
        lane: FlowLane,
        id: PrefetchId,
        key: &CacheKey,
    ) -> Option<&mut AheadResponse> {
        let responses = self.responses.get_mut(key)?;
        let is_it = |response: &&mut AheadResponse| {
            let state = &response.state;
            response.lane == lane
                && matches!(state, AheadState::OnItsWay { id: of, .. } if *of == id)
        };
        responses.iter_mut().find(is_it)
    }

    fn wake_waiting(&mut self, state: AheadState) {
        if let AheadState::OnItsWay { waiting, .. } = state {
            let flows = waiting.into_iter().map(|lane| lane.flow);
            self.wakes.extend(flows);
        }
    }

    fn remove(&mut self, key: &CacheKey, number: u64) -> Option<AheadResponse> {
        let responses = self.responses.get_mut(key)?;
        let at = responses
            .iter()
            .position(|response| response.number == number)?;
        let response = responses.remove(at);
        if responses.is_empty() {
            self.responses.remove(key);
        }
        self.held -= response.memory;
        Some(response)
    }

    /// Looks for a response to a request.
    pub(super) fn meet(
        &mut self,
        asker: AskingClient,
        key: &CacheKey,
        request: &RequestHead,
    ) -> AheadMatch {
        let Some(responses) = self.responses.get_mut(key) else {
            return AheadMatch::Nothing;
        };
        // The newest first: it was fetched for the latest page.
        for response in responses.iter_mut().rev() {
            if response.client != asker.client || !is_alike(&response.request, request) {
                continue;
            }
            match &mut response.state {
                AheadState::Held(stored) if stored.is_selected_by(request) => {
                    return AheadMatch::Held(stored.clone());
                }
                AheadState::OnItsWay { id, waiting } => {
                    let (lane, id) = (response.lane, *id);
                    let is_first = waiting.is_empty();
                    if !waiting.contains(&asker.lane) {
                        waiting.push(asker.lane);
                    }
                    let pusher = self.pushers.get_mut(&lane);
                    let Some(pusher) = pusher else {
                        return AheadMatch::Nothing;
                    };
                    if is_first {
                        pusher.wanted.push(id);
                        self.wakes.push_back(lane.flow);
                    }
                    return AheadMatch::OnItsWay(pusher.progress);
                }
                AheadState::Held(_) | AheadState::InCache => {}
            }
        }
        AheadMatch::Nothing
    }

    /// A client is answered with what is held for it, which nobody gets again.
    pub(super) fn take_held(&mut self, asker: AskingClient, key: &CacheKey, request: &RequestHead) {
        let responses = self.responses.get(key).into_iter().flatten();
        let fits = |response: &&AheadResponse| {
            response.client == asker.client
                && matches!(response.state, AheadState::Held(_))
                && is_alike(&response.request, request)
        };
        if let Some(number) = responses.rev().find(fits).map(|response| response.number) {
            self.judge(key, number, true);
        }
    }

    /// A client is answered from the cache.
    pub(super) fn note_cache_hit(&mut self, key: &CacheKey) {
        let responses = self.responses.get(key).into_iter().flatten();
        let is_in_cache = |response: &&AheadResponse| matches!(response.state, AheadState::InCache);
        let numbers: Vec<u64> = responses
            .filter(is_in_cache)
            .map(|response| response.number)
            .collect();
        for number in numbers {
            self.judge(key, number, true);
        }
    }

    /// Nobody waits for a response any more.
    pub(super) fn give_up(&mut self, asker: AskingClient, key: &CacheKey, request: &RequestHead) {
        let responses = self.responses.get_mut(key).into_iter().flatten();
        let mut declined = Vec::new();
        for response in responses {
            if let AheadState::OnItsWay { id, .. } = &response.state
                && response.client == asker.client
                && is_alike(&response.request, request)
            {
                declined.push((response.lane, *id));
            }
        }
        for (lane, id) in declined {
            self.fail(lane, id, key);
            if let Some(pusher) = self.pushers.get_mut(&lane) {
                pusher.declined.push(id);
                self.wakes.push_back(lane.flow);
            }
        }
    }

    /// A client may have changed what its server has: what came before that, or was asked for before, is of no use to
    /// it. What has this URL is of no use to anybody.
    pub(super) fn forget_changed(&mut self, client: IpAddr, changed: &CacheKey) {
        self.forget_if(|key, response| {
            response.client == client && key.server == changed.server || key == changed
        });
    }

    /// An operator removes the responses whose URLs begin so.
    pub(in crate::http) fn purge(&mut self, prefix: &[u8]) {
        self.forget_if(|key, _| key.url.starts_with(prefix));
    }

    /// Begins a new site after the node's stored objects are gone, so that the far halves forget them.
    pub(in crate::http) fn begin_site(&mut self, site: u64) {
        self.site = site;
    }

    /// Memory is short: nothing is held any more.
    pub(in crate::http) fn forget_all(&mut self) {
        self.forget_if(|_, _| true);
    }

    fn forget_if(&mut self, is_of_no_use: impl Fn(&CacheKey, &AheadResponse) -> bool) {
        let mut forgotten = Vec::new();
        for (key, responses) in &self.responses {
            let of_no_use = responses
                .iter()
                .filter(|response| is_of_no_use(key, response));
            forgotten.extend(of_no_use.map(|response| (key.clone(), response.number)));
        }
        forgotten.sort_unstable();
        for (key, number) in forgotten {
            if let Some(response) = self.remove(&key, number) {
                self.wake_waiting(response.state);
            }
        }
    }

    /// A flow has ended: what it promised does not come.
    pub(in crate::http) fn flow_ended(&mut self, ended: u64) {
        let (first, last) = (0, u32::MAX);
        let ends = [first, last].map(|number| FlowLane {
            flow: ended,
            number,
        });
        let lanes = self.pushers.range(ends[0]..=ends[1]);
        for lane in lanes.map(|(lane, _)| *lane).collect::<Vec<_>>() {
            self.lane_ended(lane);
        }
    }

    /// Nothing comes on a stream any more.
    pub(super) fn lane_ended(&mut self, ended: FlowLane) {
        if self.pushers.remove(&ended).is_some() {
            self.forget_if(|_, response| {
                let is_on_its_way = matches!(response.state, AheadState::OnItsWay { .. });
                response.lane == ended && is_on_its_way
            });
        }
    }

    /// Judges what was not asked for in time, and forgets it.
    pub(in crate::http) fn timeout(&mut self, now: Time) {
        let is_due = |(at, _, _): &mut (Time, CacheKey, u64)| *at <= now;
        while let Some((_, key, number)) = self.judged.pop_front_if(is_due) {
            self.judge(&key, number, false);
        }
    }

    /// A response was asked for, or was not in time.
    fn judge(&mut self, key: &CacheKey, number: u64, is_used: bool) {
        let Some(response) = self.remove(key, number) else {
            return;
        };
        if let Some(pusher) = self.pushers.get_mut(&response.lane) {
            pusher.count.used += u64::from(is_used);
            pusher.count.unused += u64::from(!is_used);
        }
        let name = (key.server, origin(key));
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&name) {
            self.hosts.clear();
        }
        let count = self.hosts.entry(name).or_default();
        count.judged += 1;
        count.used += u32::from(is_used);
        // What was long ago counts less.
        if count.judged >= 16 * JUDGED_MIN {
            count.judged /= 2;
            count.used /= 2;
        }
    }

    /// Responses that are taken ahead for one page of a host.
    pub(super) fn objects(&self, key: &CacheKey) -> u16 {
        let count = self.hosts.get(&(key.server, origin(key)));
        let Some(count) = count.filter(|count| count.judged >= JUDGED_MIN) else {
            return OBJECTS_PER_PAGE;
        };
        if count.used * 2 >= count.judged {
            return OBJECTS_PER_PAGE;
        }
        let share = u64::from(count.used) * 2 * u64::from(OBJECTS_PER_PAGE);
        let share = share / u64::from(count.judged);
        (share as u16).max(OBJECTS_MIN)
    }

    /// Pending reports to the far half: responses that clients wait for, and those that none waits for.
    pub(super) fn take_words(&mut self, lane: FlowLane) -> (Vec<PrefetchId>, Vec<PrefetchId>) {
        match self.pushers.get_mut(&lane) {
            Some(pusher) => (
                std::mem::take(&mut pusher.wanted),
                std::mem::take(&mut pusher.declined),
            ),
            None => (Vec::new(), Vec::new()),
        }
    }

    /// Responses that came on a stream.
    pub(super) fn count(&self, lane: FlowLane) -> AheadCount {
        let pusher = self.pushers.get(&lane);
        pusher.map(|pusher| pusher.count).unwrap_or_default()
    }
}

/// `http://host` of a URL.
fn origin(key: &CacheKey) -> Bytes {
    let url = &key.url;
    let authority = url.windows(3).position(|part| part == b"://");
    let authority = authority.map_or(0, |at| at + 3);
    let end = url[authority..].iter().position(|byte| *byte == b'/');
    url.slice(..end.map_or(url.len(), |end| authority + end))
}

fn memory_of(key: &CacheKey, request: &RequestHead) -> usize {
    2 * key.url.len() + request.bytes.len() + 2_048
}
