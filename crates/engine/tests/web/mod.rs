//! HTTP between two engines: stored content costs no byte of the WAN, and passing content is
//! unchanged.

mod browser;
mod prefetch;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use accelerate::http;
use accelerate::shared::{DiskTrouble, FileFault, PurgeCount};
use bytes::{Bytes, BytesMut};
use engine::{ConnectionId, EngineEvent, EngineInput, FlowPolicy};
use reduce::DictionaryKey;

use super::world::{NEAR, ServerScript, TestPath, TwoNodeWorld, WorldSettings};
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
    setting: WorldSettings,
    server: Rc<RefCell<WebServer>>,
}

impl WebWorld {
    fn new(settings: http::HttpSettings) -> Self {
        Self::over(TestPath::default(), settings)
    }

    fn over(path: TestPath, settings: http::HttpSettings) -> Self {
        let mut policy = FlowPolicy::default();
        policy.accelerators.set(&http::ENTRY, Arc::new(settings));
        let setting = WorldSettings {
            path,
            policy: policy.clone(),
            far_policy: policy,
            ..WorldSettings::default()
        };
        let mut world = TwoNodeWorld::new(setting.clone());
        let server = Rc::new(RefCell::new(WebServer::default()));
        world
            .servers
            .insert(PORT, ServerScript::Web(Rc::clone(&server)));
        Self {
            world,
            setting,
            server,
        }
    }

    /// The near node is killed, and started again with what is on its disks.
    fn restart(&mut self) {
        let node = &mut self.world.nodes[NEAR];
        node.files.crash(0);
        self.world.restart(NEAR, &self.setting);
        self.world.connect();
        self.world.run_for(Duration::from_secs(1));
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

const ON: http::HttpSettings = http::HttpSettings {
    is_on: true,
    caches: true,
    tls: None,
    prefetch: http::PrefetchSettings::OFF,
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
fn requests_wait_behind_a_revalidation_whatever_their_length() {
    let mut web = WebWorld::new(ON);
    let content = random_bytes(9, 1_000);
    web.page("/a", "Cache-Control: no-cache\r\nETag: \"1\"\r\n", &content);
    web.page("/b", "Cache-Control: no-store\r\n", &content);
    let client = web.world.accept(PORT);
    web.get(client, "/a", &content);
    let padding = "x".repeat(15_000);
    let mut requests = "GET /a HTTP/1.1\r\nHost: web\r\n\r\n".to_owned();
    for _ in 0..100 {
        requests += &format!("GET /b HTTP/1.1\r\nHost: web\r\nX: {padding}\r\n\r\n");
    }
    web.world.send(client, requests.as_bytes(), false);
    let answers = |world: &TwoNodeWorld| {
        let received = &world.client_host(client).received;
        let heads = received.windows(9).filter(|bytes| *bytes == b"HTTP/1.1 ");
        heads.count()
    };
    web.world.run_until(|world| answers(world) == 102, PATIENCE);
    assert_eq!(web.asked(), 102);
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

#[test]
fn stored_page_is_answered_after_the_node_was_killed() {
    let mut web = WebWorld::new(ON);
    let content = random_bytes(5, 200_000);
    for path in ["/a", "/gone"] {
        web.page(path, "Cache-Control: max-age=600\r\n", &content);
        let client = web.world.accept(PORT);
        web.get(client, path, &content);
    }
    let client = web.world.accept(PORT);
    let changed = b"POST /gone HTTP/1.1\r\nHost: web\r\nContent-Length: 0\r\n\r\n";
    web.world.send(client, changed, false);
    web.world.run_for(Duration::from_secs(5));
    for round in 0..3 {
        web.restart();
        let (asked, wan_bytes) = (web.asked(), web.wan_bytes());
        let client = web.world.accept(PORT);
        let head = web.get(client, "/a", &content);
        assert!(head.contains("Age: "), "{head}");
        assert_eq!(
            (web.asked(), web.wan_bytes()),
            (asked, wan_bytes),
            "{round}"
        );
    }
    let (asked, client) = (web.asked(), web.world.accept(PORT));
    web.get(client, "/gone", &content);
    assert_eq!(web.asked(), asked + 1);
}

#[test]
fn purged_pages_stay_purged_after_the_node_was_killed() {
    let mut web = WebWorld::new(ON);
    let content = random_bytes(6, 20_000);
    web.page("/a", "Cache-Control: max-age=600\r\n", &content);
    let client = web.world.accept(PORT);
    web.get(client, "/a", &content);
    web.world.run_for(Duration::from_secs(5));
    web.world.hold_files(NEAR, true);
    let purge = EngineInput::PurgeAccelerator {
        id: 1,
        name: "http".to_owned(),
        prefix: String::new(),
    };
    web.world.input(NEAR, purge);
    // It is not answered before the disk has it.
    assert!(web.world.nodes[NEAR].purged.is_empty());
    web.world.hold_files(NEAR, false);
    let (entries, bytes) = (1, 20_000);
    let purged = vec![(1, Ok(PurgeCount { entries, bytes }))];
    assert_eq!(web.world.nodes[NEAR].purged, purged);
    web.restart();
    let client = web.world.accept(PORT);
    web.get(client, "/a", &content);
    assert_eq!(web.asked(), 2);
}

#[test]
fn full_disk_leaves_the_cache_in_memory_and_is_told() {
    let mut web = WebWorld::new(ON);
    web.world.nodes[NEAR].files.is_full = true;
    let content = random_bytes(7, 20_000);
    web.page("/a", "Cache-Control: max-age=600\r\n", &content);
    for _ in 0..2 {
        let client = web.world.accept(PORT);
        web.get(client, "/a", &content);
    }
    assert_eq!(web.asked(), 1);
    let events = &web.world.nodes[NEAR].events;
    let accelerator = "http";
    let trouble = DiskTrouble::Failed(FileFault::Full);
    let told = EngineEvent::AcceleratorDisk {
        accelerator,
        trouble,
    };
    assert!(events.contains(&told), "{events:?}");
    // There is room again: a minute later the index is on disk.
    web.world.nodes[NEAR].files.is_full = false;
    web.world.run_for(Duration::from_secs(70));
    web.restart();
    let client = web.world.accept(PORT);
    web.get(client, "/a", &content);
    assert_eq!(web.asked(), 1);
}

#[test]
fn emptied_dictionary_takes_the_index_with_it() {
    let mut web = WebWorld::new(ON);
    let content = random_bytes(8, 20_000);
    web.page("/a", "Cache-Control: max-age=600\r\n", &content);
    let client = web.world.accept(PORT);
    web.get(client, "/a", &content);
    web.world.run_for(Duration::from_secs(5));
    let files = |web: &WebWorld| web.world.nodes[NEAR].files.names();
    assert_eq!(files(&web), ["index-00000001"]);
    let key = Some(DictionaryKey::new([7; 32]));
    web.world.input(NEAR, EngineInput::ClearDictionary { key });
    assert_eq!(files(&web), [""; 0]);
    let client = web.world.accept(PORT);
    web.get(client, "/a", &content);
    assert_eq!(web.asked(), 2);
    // Where nothing is stored any more, nothing stays on disk.
    web.world.run_for(Duration::from_secs(5));
    assert_eq!(files(&web), ["index-00000002"]);
    let off = http::HttpSettings {
        caches: false,
        ..ON
    };
    web.setting
        .policy
        .accelerators
        .set(&http::ENTRY, Arc::new(off));
    web.restart();
    assert_eq!(files(&web), [""; 0]);
}

/// Without a cache nothing is answered here, and the same content is a reference in spite of other heads.
#[test]
fn changing_heads_do_not_prevent_content_matches() {
    let mut web = WebWorld::new(http::HttpSettings {
        is_on: true,
        caches: false,
        ..ON
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
