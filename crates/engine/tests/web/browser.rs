//! A browser that loads a page: six connections, and each asks for the next thing that the page names.
//!
//! It reads what has come of pages and style sheets by a search for quoted names, so it does not share the scanner that
//! it tests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use engine::{ArrivalMethod, ConnectionId};

use super::super::PATIENCE;
use super::super::world::{TwoNodeWorld, client, server};
use super::PORT;

/// Connections of a browser to one server.
const CONNECTIONS: usize = 6;

/// A browser on one client.
pub(super) struct Browser {
    client: SocketAddr,
    /// Further fields of its requests.
    fields: String,
    connections: Vec<BrowserConnection>,
    wanted: VecDeque<String>,
    seen: BTreeSet<String>,
    /// Bodies that have come, by path.
    pub(super) loaded: BTreeMap<String, Bytes>,
}

struct BrowserConnection {
    id: ConnectionId,
    /// Bytes that belong to earlier responses.
    passed: usize,
    asked: Option<String>,
}

impl Browser {
    /// A browser on the usual client, with a cookie.
    pub(super) fn new(cookie: &str) -> Self {
        Self {
            client: client(),
            fields: format!(
                "User-Agent: browser\r\nAccept-Encoding: gzip, deflate\r\nCookie: {cookie}\r\n"
            ),
            connections: Vec::new(),
            wanted: VecDeque::new(),
            seen: BTreeSet::new(),
            loaded: BTreeMap::new(),
        }
    }

    /// The same on another client.
    pub(super) fn on(mut self, client: SocketAddr) -> Self {
        self.client = client;
        self
    }

    /// Loads a page with everything that it names; the time that this took.
    pub(super) fn load(&mut self, world: &mut TwoNodeWorld, path: &str) -> Duration {
        let begun = world.now;
        self.loaded.clear();
        self.seen.clear();
        self.want(path);
        self.ask(world);
        while !self.is_done() {
            self.step(world);
        }
        world.now.since(begun)
    }

    /// Begins to load a page, until its own content has come.
    pub(super) fn begin(&mut self, world: &mut TwoNodeWorld, path: &str) {
        self.want(path);
        self.ask(world);
        while !self.loaded.contains_key(path) {
            self.step(world);
        }
    }

    /// Closes all connections.
    pub(super) fn leave(&mut self, world: &mut TwoNodeWorld) {
        for connection in std::mem::take(&mut self.connections) {
            world.send(connection.id, &[], true);
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }

    fn is_done(&self) -> bool {
        self.wanted.is_empty()
            && self
                .connections
                .iter()
                .all(|connection| connection.asked.is_none())
    }

    fn step(&mut self, world: &mut TwoNodeWorld) {
        let received = |world: &TwoNodeWorld, connections: &[BrowserConnection]| -> usize {
            let hosts = connections
                .iter()
                .map(|connection| world.client_host(connection.id));
            hosts.map(|host| host.received.len()).sum()
        };
        let before = received(world, &self.connections);
        if !self.read(world) {
            let connections = &self.connections;
            world.run_until(|world| received(world, connections) > before, PATIENCE);
            self.read(world);
        }
        self.ask(world);
    }

    fn want(&mut self, path: &str) {
        if self.seen.insert(path.to_owned()) {
            self.wanted.push_back(path.to_owned());
        }
    }

    /// Reads what has come; whether a response has ended.
    fn read(&mut self, world: &TwoNodeWorld) -> bool {
        let mut has_ended = false;
        let mut named = Vec::new();
        for connection in &mut self.connections {
            let Some(path) = connection.asked.clone() else {
                continue;
            };
            let received = &world.client_host(connection.id).received[connection.passed..];
            let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
                continue;
            };
            let head = std::str::from_utf8(&received[..end + 4]).unwrap();
            assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            let length: usize = length.unwrap().parse().unwrap();
            let content = &received[end + 4..];
            let content = &content[..content.len().min(length)];
            if path.ends_with('/') || path.ends_with(".css") {
                named.extend(names(content));
            }
            if content.len() == length {
                has_ended = true;
                let content = Bytes::copy_from_slice(content);
                self.loaded.insert(path, content);
                connection.asked = None;
                connection.passed += end + 4 + length;
            }
        }
        for name in named {
            self.want(&name);
        }
        has_ended
    }

    /// Asks for what is wanted, on connections that are free.
    fn ask(&mut self, world: &mut TwoNodeWorld) {
        while !self.wanted.is_empty() {
            let mut connections = self.connections.iter();
            let free = connections.position(|connection| connection.asked.is_none());
            let at = match free {
                Some(at) => at,
                None if self.connections.len() < CONNECTIONS => {
                    let id =
                        world.accept_between(self.client, server(PORT), ArrivalMethod::Transparent);
                    self.connections.push(BrowserConnection {
                        id,
                        passed: 0,
                        asked: None,
                    });
                    self.connections.len() - 1
                }
                None => return,
            };
            let Some(path) = self.wanted.pop_front() else {
                return;
            };
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: web\r\n{}Referer: http://web/\r\n\r\n",
                self.fields
            );
            self.connections[at].asked = Some(path);
            world.send(self.connections[at].id, request.as_bytes(), false);
        }
    }
}

/// Names in quotes that begin with a slash.
fn names(content: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(content);
    let mut parts: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
    // The last quote may not be closed yet.
    if text.matches('"').count() % 2 == 1 {
        parts.pop();
    }
    let paths = parts.into_iter().filter(|part| part.starts_with('/'));
    paths.map(str::to_owned).collect()
}

/// Round trips that a load took beside the time that its bytes take on the line.
pub(super) fn round_trips(took: Duration, round_trip: Duration, line: Duration) -> f64 {
    took.saturating_sub(line).as_secs_f64() / round_trip.as_secs_f64()
}
