//! HTTP between two engines: stored content costs no byte of the WAN, and passing content is
//! unchanged.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use accelerate::http;
use accelerate::shared::PurgeCount;
use bytes::{Bytes, BytesMut};
use engine::{ConnectionId, EngineInput, FlowPolicy};

use super::world::{NEAR, ServerScript, TwoNodeWorld, WorldSettings};
use super::{PATIENCE, random_bytes};

const PORT: u16 = 80;

/// A server with a response for each path, and a record of its requests.
#[derive(Default)]
pub(crate) struct WebServer {
    /// Path to (fields, content).
    pages: BTreeMap<String, (String, Bytes)>,
    /// The heads of all requests.
    asked: Vec<String>,
}

impl WebServer {
    /// Answers and removes the complete requests.
    pub(crate) fn hear(&mut self, received: &mut BytesMut) -> Vec<u8> {
        let mut answers = Vec::new();
        while let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8(received.split_to(end + 4).to_vec()).unwrap();
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let (fields, content) = self.pages.get(&path).cloned().unwrap_or_default();
            let etag = fields
                .split("\r\n")
                .find_map(|line| line.strip_prefix("ETag: "));
            let confirms =
                etag.is_some_and(|etag| head.contains(&format!("If-None-Match: {etag}\r\n")));
            let answer = match confirms {
                true => format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n"),
                false => {
                    let length = content.len();
                    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n")
                }
            };
            answers.extend_from_slice(answer.as_bytes());
            if !confirms {
                answers.extend_from_slice(&content);
            }
            self.asked.push(head);
        }
        answers
    }
}

/// Two sites and a web server at one of them.
struct WebWorld {
    world: TwoNodeWorld,
    server: Rc<RefCell<WebServer>>,
}

impl WebWorld {
    fn new(settings: http::Settings) -> Self {
        let mut policy = FlowPolicy::default();
        policy.accelerators.set(&http::ENTRY, Arc::new(settings));
        let setting = WorldSettings {
            policy: policy.clone(),
            far_policy: policy,
            ..WorldSettings::default()
        };
        let mut world = TwoNodeWorld::new(setting);
        let server = Rc::new(RefCell::new(WebServer::default()));
        world
            .servers
            .insert(PORT, ServerScript::Web(Rc::clone(&server)));
        Self { world, server }
    }

    fn page(&self, path: &str, fields: &str, content: &Bytes) {
        let page = (fields.to_owned(), content.clone());
        self.server.borrow_mut().pages.insert(path.to_owned(), page);
    }

    fn asked(&self) -> usize {
        self.server.borrow().asked.len()
    }

    /// Sends requests and waits until so many bytes of content have arrived behind the last head.
    fn get(&mut self, connection: ConnectionId, path: &str, content: &Bytes) -> String {
        let before = self.world.client_host(connection).received.len();
        let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\n\r\n");
        self.world.send(connection, request.as_bytes(), false);
        let is_whole = |world: &TwoNodeWorld| {
            let received = &world.client_host(connection).received[before..];
            let end = received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            end.is_some_and(|end| received.len() >= end + 4 + content.len())
        };
        self.world.run_until(is_whole, PATIENCE);
        let received = &self.world.client_host(connection).received[before..];
        let (head, got) = received.split_at(received.len() - content.len());
        assert!(got == content, "the client got other content");
        String::from_utf8(head.to_vec()).unwrap()
    }

    fn wan_bytes(&self) -> u64 {
        self.world.wan_bytes.iter().sum()
    }
}

const ON: http::Settings = http::Settings {
    is_on: true,
    caches: true,
    tls: None,
};

#[test]
fn stored_page_is_answered_without_the_server() {
    let mut web = WebWorld::new(ON);
    let content = random_bytes(1, 40_000);
    web.page("/a", "Cache-Control: max-age=60\r\n", &content);
    let first = web.world.accept(PORT);
    web.get(first, "/a", &content);
    web.world.run_for(Duration::from_secs(2));
    let (now, wan_bytes) = (web.world.now, web.wan_bytes());
    let second = web.world.accept(PORT);
    let head = web.get(second, "/a", &content);
    assert!(head.contains("Age: "), "{head}");
    assert_eq!(web.asked(), 1);
    assert_eq!(web.world.now, now);
    web.world.send(second, &[], true);
    web.world
        .run_until(|world| world.client_host(second).was_closed, PATIENCE);
    // Neither the open nor the end of its flow, nor a request, crossed the WAN.
    assert_eq!(web.wan_bytes(), wan_bytes);
}

#[test]
fn stale_page_costs_only_a_conditional_request() {
    let mut web = WebWorld::new(ON);
    let content = random_bytes(2, 40_000);
    web.page(
        "/a",
        "Cache-Control: max-age=5\r\nETag: \"1\"\r\n",
        &content,
    );
    let client = web.world.accept(PORT);
    web.get(client, "/a", &content);
    web.world.run_for(Duration::from_secs(10));
    let wan_bytes = web.wan_bytes();
    web.get(client, "/a", &content);
    assert_eq!(web.asked(), 2);
    assert!(web.server.borrow().asked[1].contains("If-None-Match: \"1\""));
    let wan_bytes = web.wan_bytes() - wan_bytes;
    assert!(wan_bytes < 1_000, "{wan_bytes}");
}

#[test]
fn an_operator_purges_stored_pages_by_url() {
    let mut web = WebWorld::new(ON);
    let content = random_bytes(4, 40_000);
    for path in ["/a", "/b"] {
        web.page(path, "Cache-Control: max-age=60\r\n", &content);
        let client = web.world.accept(PORT);
        web.get(client, path, &content);
    }
    web.world.run_for(Duration::from_secs(2));
    let purge = EngineInput::PurgeAccelerator {
        id: 1,
        name: "http".to_owned(),
        prefix: "http://web/a".to_owned(),
    };
    web.world.input(NEAR, purge);
    let (entries, bytes) = (1, 40_000);
    let purged = vec![(1, Ok(PurgeCount { entries, bytes }))];
    assert_eq!(web.world.nodes[NEAR].purged, purged);
    for path in ["/a", "/b"] {
        let client = web.world.accept(PORT);
        web.get(client, path, &content);
    }
    // Only the page that was purged is asked for again.
    assert_eq!(web.asked(), 3);
    assert!(web.server.borrow().asked[2].starts_with("GET /a "));
}

/// Without a cache nothing is answered here, and the same content is a reference in spite of other heads.
#[test]
fn changing_heads_do_not_prevent_content_matches() {
    let mut web = WebWorld::new(http::Settings {
        is_on: true,
        caches: false,
        tls: None,
    });
    let content = random_bytes(3, 100_000);
    let mut wan_bytes = Vec::new();
    for number in 0..3 {
        let cookie = format!("Cache-Control: max-age=60\r\nSet-Cookie: session={number:040}\r\n");
        web.page("/a", &cookie, &content);
        let before = web.wan_bytes();
        let client = web.world.accept(PORT);
        web.get(client, "/a", &content);
        web.world.run_for(Duration::from_secs(2));
        wan_bytes.push(web.wan_bytes() - before);
    }
    assert_eq!(web.asked(), 3);
    assert!(wan_bytes[0] > 100_000, "{wan_bytes:?}");
    assert!(
        wan_bytes[1] < 3_000 && wan_bytes[2] < 3_000,
        "{wan_bytes:?}"
    );
}
