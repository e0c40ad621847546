//! The common memory of all far halves of a node: URLs that near nodes hold, URLs that clients have asked for, hosts that do not
//! answer prefetches, and how many connections are used for them.
//!
//! Only hashes of URLs are kept, and the oldest go first. A mistake costs a prefetch that is of no use, or leaves one
//! out; it decides about nobody's data.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use vocab::Time;

use crate::http::cache::WallTime;
use crate::http::shared::HttpCalendar;

use super::{
    ACCEPT_MAX, ACCEPTS_MAX, FAILURES_MAX, HOSTS_MAX, NAMES_MAX, SERVER_CONNECTIONS_MAX,
    STOPPED_FOR,
};

/// Accept field of Chromium 131 for images, until the client's own is known.
const USUAL_IMAGE_ACCEPT: &[u8] =
    b"image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8";

/// Receiver of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CopyHolder {
    /// The near node with this run, for all of its clients.
    Site(u64),
    /// One client of it.
    Client(u64, IpAddr),
}

/// How a fetch fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchFailure {
    /// The server wants a login, or less requests: more of the same may lock an account, or get the node blocked.
    Refused,
    /// The response does not come, or is not fit to be sent ahead.
    Failed,
}

/// The memory of the far halves of one node.
#[derive(Debug)]
pub(in crate::http) struct FarMemory {
    /// Mixed into hashes, so that nobody can choose two URLs that are taken for one.
    secret: u64,
    /// `None` until it is known; without it no age can be computed.
    calendar: Option<HttpCalendar>,
    /// Until when a holder needs no copy of a URL.
    carried: RecentNames,
    /// When a client asked for a URL itself.
    asked: RecentNames,
    /// Failed fetches in a row, by a hash of the host, and until when the host is left alone.
    failures: HashMap<u64, (u32, Option<Time>)>,
    /// Accept fields for images, by a hash of the browser's User-Agent.
    accepts: HashMap<u64, Bytes>,
    accepts_order: VecDeque<u64>,
    /// Connections for prefetches, by server.
    connections: BTreeMap<SocketAddr, usize>,
}

/// Moments by the hash of a name, bounded.
#[derive(Debug, Default)]
struct RecentNames {
    moments: HashMap<u64, Time>,
    order: VecDeque<u64>,
}

impl RecentNames {
    fn note(&mut self, name: u64, moment: Time) {
        if self.moments.insert(name, moment).is_none() {
            self.order.push_back(name);
        }
        while self.order.len() > NAMES_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.moments.remove(&oldest);
            }
        }
    }

    fn get(&self, name: u64) -> Option<Time> {
        self.moments.get(&name).copied()
    }
}

impl FarMemory {
    /// An empty one.
    pub(in crate::http) fn new(secret: u64) -> Self {
        Self {
            secret,
            calendar: None,
            carried: RecentNames::default(),
            asked: RecentNames::default(),
            failures: HashMap::new(),
            accepts: HashMap::new(),
            accepts_order: VecDeque::new(),
            connections: BTreeMap::new(),
        }
    }

    /// Takes the time on the calendar.
    pub(in crate::http) fn set_calendar(&mut self, calendar: HttpCalendar) {
        self.calendar = Some(calendar);
    }

    /// The moment on the calendar.
    pub(super) fn wall(&self, now: Time) -> Option<WallTime> {
        self.calendar.map(|calendar| calendar.wall(now))
    }

    /// Bytes of memory, about.
    pub(in crate::http) fn held(&self) -> usize {
        let names = self.carried.order.len() + self.asked.order.len();
        (names + self.failures.len()) * 40 + self.accepts_order.len() * ACCEPT_MAX
    }

    /// Forgets everything that is remembered of URLs.
    pub(in crate::http) fn forget(&mut self) {
        self.carried = RecentNames::default();
        self.asked = RecentNames::default();
    }

    /// A client has asked for this URL itself.
    pub(super) fn note_asked(
        &mut self,
        now: Time,
        client: CopyHolder,
        server: SocketAddr,
        url: &[u8],
    ) {
        let asked = self.hash(&(client, server, url));
        self.asked.note(asked, now);
    }

    /// When the client last asked for this URL itself. What other clients have asked for decides nothing: it would show
    /// one client what another one does.
    pub(super) fn asked_at(
        &self,
        client: CopyHolder,
        server: SocketAddr,
        url: &[u8],
    ) -> Option<Time> {
        self.asked.get(self.hash(&(client, server, url)))
    }

    /// The holder needs no copy of this URL for so long.
    pub(super) fn note_carried(
        &mut self,
        until: Time,
        holder: CopyHolder,
        server: SocketAddr,
        url: &[u8],
    ) {
        let name = self.hash(&(holder, server, url));
        self.carried.note(name, until);
    }

    /// Tests if the holder needs no copy of this URL.
    pub(super) fn is_carried(
        &self,
        now: Time,
        holder: CopyHolder,
        server: SocketAddr,
        url: &[u8],
    ) -> bool {
        let until = self.carried.get(self.hash(&(holder, server, url)));
        until.is_some_and(|until| until > now)
    }

    /// A browser has asked for an image with this Accept.
    pub(super) fn note_image_accept(&mut self, browser: &[u8], accept: &[u8]) {
        if accept.len() > ACCEPT_MAX || !accept.starts_with(b"image/") {
            return;
        }
        let name = self.hash(&browser);
        let accept = Bytes::copy_from_slice(accept);
        if self.accepts.insert(name, accept).is_none() {
            self.accepts_order.push_back(name);
        }
        while self.accepts_order.len() > ACCEPTS_MAX {
            if let Some(oldest) = self.accepts_order.pop_front() {
                self.accepts.remove(&oldest);
            }
        }
    }

    /// The Accept field that a browser sends for images.
    pub(super) fn image_accept(&self, browser: &[u8]) -> Bytes {
        let known = self.accepts.get(&self.hash(&browser));
        let usual = || Bytes::from_static(USUAL_IMAGE_ACCEPT);
        known.cloned().unwrap_or_else(usual)
    }

    /// A fetch of this host has brought nothing.
    pub(super) fn note_failure(
        &mut self,
        now: Time,
        server: SocketAddr,
        origin: &[u8],
        failure: FetchFailure,
    ) {
        let host = self.hash(&(server, origin));
        if self.failures.len() >= HOSTS_MAX && !self.failures.contains_key(&host) {
            self.failures.clear();
        }
        let (count, until) = self.failures.entry(host).or_default();
        *count += 1;
        if failure == FetchFailure::Refused || *count >= FAILURES_MAX {
            (*count, *until) = (0, Some(now + STOPPED_FOR));
        }
    }

    /// A fetch of this host has brought a response.
    pub(super) fn note_success(&mut self, server: SocketAddr, origin: &[u8]) {
        let host = self.hash(&(server, origin));
        if let Some((count, _)) = self.failures.get_mut(&host) {
            *count = 0;
        }
    }

    /// True if nothing is fetched of this host, because that failed lately.
    pub(super) fn is_stopped(&self, now: Time, server: SocketAddr, origin: &[u8]) -> bool {
        let failures = self.failures.get(&self.hash(&(server, origin)));
        let until = failures.and_then(|(_, until)| *until);
        until.is_some_and(|until| now < until)
    }

    /// Takes a place among the connections for prefetches to a server, if there is one.
    pub(super) fn take_connection(&mut self, server: SocketAddr) -> bool {
        let count = self.connections.entry(server).or_default();
        let has_room = *count < SERVER_CONNECTIONS_MAX;
        *count += usize::from(has_room);
        has_room
    }

    /// Gives places back.
    pub(super) fn give_connections(&mut self, server: SocketAddr, count: usize) {
        if let Some(taken) = self.connections.get_mut(&server) {
            *taken = taken.saturating_sub(count);
            if *taken == 0 {
                self.connections.remove(&server);
            }
        }
    }

    fn hash(&self, name: &impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.secret.hash(&mut hasher);
        name.hash(&mut hasher);
        hasher.finish()
    }
}

/// The longest time for which a far node believes that a holder has a fresh copy.
pub(super) const CARRIED_MAX: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> SocketAddr {
        SocketAddr::from(([198, 18, 2, 2], 80))
    }

    #[test]
    fn holders_are_told_apart() {
        let mut memory = FarMemory::new(1);
        let client = IpAddr::from([198, 18, 1, 2]);
        let (site, client) = (CopyHolder::Site(1), CopyHolder::Client(1, client));
        let later = Time::ZERO + Duration::from_secs(5);
        memory.note_carried(later, client, server(), b"u");
        assert!(memory.is_carried(Time::ZERO, client, server(), b"u"));
        assert!(!memory.is_carried(Time::ZERO, site, server(), b"u"));
        assert!(!memory.is_carried(Time::ZERO, client, server(), b"v"));
        assert!(!memory.is_carried(later, client, server(), b"u"));
    }

    #[test]
    fn oldest_names_are_forgotten() {
        let mut memory = FarMemory::new(1);
        let site = CopyHolder::Site(1);
        for number in 0..=NAMES_MAX {
            memory.note_asked(Time::ZERO, site, server(), number.to_string().as_bytes());
        }
        assert_eq!(memory.asked_at(site, server(), b"0"), None);
        assert_eq!(memory.asked_at(site, server(), b"1"), Some(Time::ZERO));
        assert_eq!(memory.asked.order.len(), NAMES_MAX);
        assert_eq!(memory.asked.moments.len(), NAMES_MAX);
    }

    #[test]
    fn failing_hosts_are_stopped_for_a_while() {
        let mut memory = FarMemory::new(1);
        let now = Time::ZERO;
        for round in 0..2 {
            for _ in 1..FAILURES_MAX {
                memory.note_failure(now, server(), b"http://a", FetchFailure::Failed);
            }
            assert!(!memory.is_stopped(now, server(), b"http://a"), "{round}");
            memory.note_success(server(), b"http://a");
        }
        memory.note_failure(now, server(), b"http://b", FetchFailure::Refused);
        assert!(memory.is_stopped(now, server(), b"http://b"));
        assert!(!memory.is_stopped(now, server(), b"http://a"));
        assert!(!memory.is_stopped(now + STOPPED_FOR, server(), b"http://b"));
        for number in 0..2 * HOSTS_MAX {
            let name = number.to_string();
            memory.note_failure(now, server(), name.as_bytes(), FetchFailure::Failed);
        }
        assert!(memory.failures.len() <= HOSTS_MAX);
    }

    #[test]
    fn connections_of_a_server_are_bounded() {
        let mut memory = FarMemory::new(1);
        for _ in 0..SERVER_CONNECTIONS_MAX {
            assert!(memory.take_connection(server()));
        }
        assert!(!memory.take_connection(server()));
        memory.give_connections(server(), 1);
        assert!(memory.take_connection(server()));
        memory.give_connections(server(), SERVER_CONNECTIONS_MAX);
        assert!(memory.connections.is_empty());
    }
}
