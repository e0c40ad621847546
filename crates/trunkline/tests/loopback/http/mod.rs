//! Two nodes with `[http] mode = "on"`: what a client gets, what its server is asked, and what crosses
//! between the nodes.
//!
//! ```text
//!  client ── SOCKS ── near node (stores, answers) ══ far node ── server at port 80
//! ```

mod origin;

use std::io::Read;
use std::time::Instant;

use serde_json::Value;

use crate::sites::{PATIENCE, TestSites};
use origin::{BIG, WebClient, WebOrigin, content, read_chunk};

/// Both nodes follow HTTP.
const HTTP: &str = "\n[http]\nmode = \"on\"\n";

/// TestSites with a server; `None` where its port cannot be had.
fn sites(test: u8) -> Option<(TestSites, WebOrigin)> {
    let sites = TestSites::new(test, "400Mbit");
    for node in ["near", "far"] {
        sites.configure(node, HTTP);
        sites.ask(node, &["node", "reload"], "");
    }
    let origin = WebOrigin::start(&sites)?;
    sites.wait_for("near", |path| path["carries"] == "udp");
    // The server has been reached from here on.
    origin.client(&sites).get("/first");
    origin.take_asked();
    Some((sites, origin))
}

/// Near node's `why` output for the flow of a client that has ended its connection.
fn why(sites: &TestSites, client: WebClient) -> Value {
    let address = client.address().to_string();
    drop(client);
    let started = Instant::now();
    loop {
        let flows = sites.ask("near", &["node", "flows", "--json"], "");
        let flows: Value = serde_json::from_str(&flows).unwrap();
        let flows = flows["flows"].as_array().unwrap();
        let flow = flows
            .iter()
            .find(|flow| flow["client"] == address && flow["state"] != "open");
        if let Some(flow) = flow {
            let number = flow["flow"].to_string();
            let why = sites.ask("near", &["node", "why", &number, "--json"], "");
            return serde_json::from_str(&why).unwrap();
        }
        assert!(started.elapsed() < PATIENCE, "{flows:?}");
    }
}

/// Action of a stage, and the reason why it did no more.
fn stage(why: &Value, name: &str) -> String {
    let stages = why["stages"].as_array().unwrap();
    let stage = stages.iter().find(|stage| stage["stage"] == name).unwrap();
    format!("{} / {}", stage["did"], stage["why_not"])
}

/// Flows that the far node has heard of.
fn flows_at_far(sites: &TestSites) -> u64 {
    sites.status("far")["flows_total"].as_u64().unwrap()
}

#[test]
fn fresh_page_opens_no_flow() {
    let Some((sites, origin)) = sites(16) else {
        return;
    };
    let first = origin.client(&sites).get("/page");
    assert_eq!(first.body, content("/page", 30_000));
    assert_eq!(origin.take_asked(), ["GET /page"]);
    let before = flows_at_far(&sites);
    let mut client = origin.client(&sites);
    for _ in 0..3 {
        let hit = client.get("/page");
        assert_eq!((hit.status(), hit.body), (200, first.body.clone()));
        assert!(hit.fields.contains_key("age"), "{:?}", hit.fields);
    }
    assert_eq!(origin.take_asked(), [""; 0]);
    let why = why(&sites, client);
    let intercept = stage(&why, "intercept");
    assert!(intercept.contains("no server saw the flow"), "{intercept}");
    let accelerate = stage(&why, "accelerate");
    assert!(accelerate.contains("3 requests answered"), "{accelerate}");
    assert_eq!(why["flow"]["sent_wan_bytes"], 0, "{why}");
    assert_eq!(flows_at_far(&sites), before);
}

#[test]
fn a_stale_page_costs_one_conditional_request() {
    let Some((sites, origin)) = sites(17) else {
        return;
    };
    let first = origin.client(&sites).get("/checked");
    origin.take_asked();
    let mut client = origin.client(&sites);
    let second = client.get("/checked");
    assert_eq!(second.status(), 200);
    assert_eq!(second.body, first.body);
    assert_eq!(origin.take_asked(), ["GET /checked if-none-match \"one\""]);
    let accelerate = stage(&why(&sites, client), "accelerate");
    assert!(accelerate.contains("the server confirmed"), "{accelerate}");
    // A client that has it is told so.
    let mut client = origin.client(&sites);
    let known = client.get_with("/checked", "If-None-Match: \"one\"\r\n");
    assert_eq!(known.status(), 304);
}

/// What an operator sees: `node status --http`, `node flows` and `node why`.
#[test]
fn an_operator_sees_what_became_of_requests() {
    let Some((sites, origin)) = sites(24) else {
        return;
    };
    let mut client = origin.client(&sites);
    // Fetched and then answered, fetched and then confirmed, passed through.
    for target in ["/page", "/page", "/checked", "/checked"] {
        assert_eq!(client.get(target).status(), 200);
    }
    client.send_body("POST", "/form", "x");
    let status = sites.ask("near", &["node", "status", "--http", "--json"], "");
    let status: Value = serde_json::from_str(&status).unwrap();
    let count = |name: &str| status["counts"][name].as_u64().unwrap();
    // The request that made the server known was fetched, too.
    assert_eq!(
        [
            count("hits_total"),
            count("confirmed_total"),
            count("fetched_total"),
            count("passed_total")
        ],
        [1, 1, 3, 1],
        "{status}"
    );
    assert_eq!(status["requests_total"], 6);
    assert_eq!(count("answered_bytes_total"), 60_000);
    assert_eq!(count("fetched_bytes_total"), 90_000);
    assert_eq!(status["byte_hit_ratio"], 0.4);
    let origin = &status["slowest_origins"][0];
    assert_eq!(origin["name"], "http://origin.example");
    assert_eq!(origin["answers"], 5, "{status}");
    let shown = sites.ask("near", &["node", "status", "--http"], "");
    assert!(shown.contains("answered here 1 (16.7 %)"), "{shown}");
    let why = why(&sites, client);
    for said in [
        "1 request answered",
        "2 requests answered by the server",
        "neither GET nor HEAD",
    ] {
        let accelerated = why["flow"]["accelerated"].to_string();
        assert!(accelerated.contains(said), "{accelerated}");
        assert!(stage(&why, "accelerate").contains(said), "{why}");
    }
}

/// RFC 9111 §4.4 (Invalidating Stored Responses).
#[test]
fn a_post_invalidates_what_was_stored() {
    let Some((sites, origin)) = sites(18) else {
        return;
    };
    let mut client = origin.client(&sites);
    client.get("/page");
    client.get("/page");
    let posted = client.send_body("POST", "/page", "new");
    assert_eq!(posted.status(), 204);
    client.get("/page");
    assert_eq!(
        origin.take_asked(),
        ["GET /page", "POST /page", "GET /page"]
    );
}

#[test]
fn a_large_body_arrives_identical_twice() {
    let Some((sites, origin)) = sites(19) else {
        return;
    };
    let expected = content("/big", BIG);
    for _ in 0..2 {
        let mut client = origin.client(&sites);
        let message = client.get("/big");
        assert_eq!(message.status(), 200);
        assert!(message.body == expected, "{} bytes", message.body.len());
    }
    assert_eq!(origin.take_asked(), ["GET /big"]);
}

/// WebSocket (RFC 6455 §4, Opening Handshake): the following bytes are not HTTP, and `why` says so.
#[test]
fn an_upgraded_connection_passes_byte_for_byte() {
    let Some((sites, origin)) = sites(20) else {
        return;
    };
    let mut client = origin.client(&sites);
    client.ask(
        "GET",
        "/socket",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    );
    assert_eq!(client.head().unwrap().status(), 101);
    let noise = content("/noise", 100_000);
    for part in noise.chunks(7_000) {
        client.send(part);
        let mut echo = vec![0; part.len()];
        client.reader.read_exact(&mut echo).unwrap();
        assert_eq!(echo, part);
    }
    let accelerate = stage(&why(&sites, client), "accelerate");
    assert!(accelerate.contains("upgrade"), "{accelerate}");
}

/// The server sends more only when the client has received the first part: nothing may wait for the
/// rest.
#[test]
fn events_and_long_polls_are_never_held_back() {
    let Some((sites, origin)) = sites(21) else {
        return;
    };
    let mut client = origin.client(&sites);
    client.ask("GET", "/events", "Accept: text/event-stream\r\n");
    let head = client.head().unwrap();
    assert_eq!(head.fields["content-type"], "text/event-stream");
    for event in ["data: one\n\n", "data: two\n\n"] {
        let chunk = read_chunk(&mut client.reader).unwrap();
        assert_eq!(chunk, event.as_bytes());
        origin.open_gate();
    }
    assert_eq!(read_chunk(&mut client.reader).unwrap(), b"");
    origin.open_gate();

    client.ask("GET", "/poll", "");
    // Another client gets an answer meanwhile.
    assert_eq!(origin.client(&sites).get("/page").status(), 200);
    origin.open_gate();
    assert_eq!(client.response().unwrap().body, b"news");

    client.ask("POST", "/mapi", "Content-Length: 0\r\n");
    assert_eq!(client.head().unwrap().fields["x-responsecode"], "0");
    let processing = read_chunk(&mut client.reader).unwrap();
    assert_eq!(processing, b"PROCESSING\r\n");
    origin.open_gate();
    assert_eq!(read_chunk(&mut client.reader).unwrap(), b"DONE\r\n");
    assert_eq!(read_chunk(&mut client.reader).unwrap(), b"");
}

/// RFC 4918 §9.1 (PROPFIND Method): a body is asked with, and nothing of the answer is stored.
#[test]
fn webdav_passes_and_is_not_stored() {
    let Some((sites, origin)) = sites(22) else {
        return;
    };
    let mut client = origin.client(&sites);
    let body = "<propfind xmlns=\"DAV:\"><allprop/></propfind>";
    for _ in 0..2 {
        let listing = client.send_body("PROPFIND", "/files", body);
        assert_eq!(listing.status(), 207);
        assert_eq!(listing.body, body.as_bytes());
    }
    assert_eq!(origin.take_asked(), ["PROPFIND /files", "PROPFIND /files"]);
}

/// The node's guide, "When a peer hangs or dies". That intercepted clients pass by meanwhile is shown in the
/// laboratory: a proxy connects nobody to its own machine.
#[test]
fn page_loads_again_after_a_node_is_killed() {
    let Some((mut sites, origin)) = sites(23) else {
        return;
    };
    let page = content("/page", 30_000);
    assert!(origin.client(&sites).get("/page").body == page);
    for victim in ["far", "near"] {
        origin.take_asked();
        let mut client = origin.client(&sites);
        client.ask("GET", &format!("/big?{victim}"), "");
        assert_eq!(client.head().unwrap().status(), 200);
        let mut part = vec![0; BIG / 10];
        client.reader.read_exact(&mut part).unwrap();
        assert!(part == content("/big", BIG)[..part.len()]);
        sites.kill(victim);
        if victim == "far" {
            // What is fresh needs no far node.
            assert!(origin.client(&sites).get("/page").body == page);
            assert_eq!(origin.take_asked(), ["GET /big?far"]);
        }
        sites.start(victim);
        load_until_whole(&sites, &origin);
        sites.wait_for("near", |path| path["carries"] == "udp");
        load_until_whole(&sites, &origin);
    }
}

/// Loads a large resource until it is complete. A partial response must be correct as far as it
/// goes.
fn load_until_whole(sites: &TestSites, origin: &WebOrigin) {
    let expected = content("/big", BIG);
    let started = Instant::now();
    loop {
        let message = origin.connect(sites).and_then(|mut client| {
            client.ask("GET", "/big?again", "");
            client.response()
        });
        match message {
            Ok(message) => {
                assert!(message.status() == 200 && message.body == expected);
                return;
            }
            Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
        }
    }
}
