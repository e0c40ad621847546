//! Clients that ask for the same cold URL at once: the server is asked once, and nobody gets what is not theirs.

use super::caching::{CachingSite, ok};
use super::*;

const REQUEST: &str = "GET /big HTTP/1.1\r\nHost: a\r\n\r\n";

/// Clients on connections of their own.
struct ClientCrowd {
    site: CachingSite,
    pairs: Vec<HttpHalfPair>,
}

impl ClientCrowd {
    /// So many clients ask at once.
    fn asking(count: u64) -> Self {
        let site = CachingSite::new();
        let pairs = (0..count).map(|flow| site.connect_as(flow));
        let mut crowd = Self {
            pairs: pairs.collect(),
            site,
        };
        for pair in &mut crowd.pairs {
            pair.say(WanEnd::Near, REQUEST.as_bytes());
        }
        crowd
    }

    /// Wakes those that are to be woken.
    fn wake(&mut self) {
        let poll = |site: &CachingSite| site.cache.with(|shared| shared.collapse.poll_wake());
        while let Some(flow) = poll(&self.site) {
            let mut pairs = self.pairs.iter_mut();
            let pair = pairs.find(|pair| pair.flow == flow);
            if let Some(pair) = pair {
                pair.tell(WanEnd::Near, AcceleratorInput::Woken);
            }
        }
    }

    fn answer(&mut self, client: usize, response: &str) {
        self.pairs[client].say(WanEnd::Far, response.as_bytes());
        self.wake();
    }

    /// How many of them have asked the server.
    fn asked(&self) -> usize {
        let asked = |pair: &&HttpHalfPair| !pair.to_server.is_empty();
        self.pairs.iter().filter(asked).count()
    }

    fn got(&self, client: usize) -> String {
        String::from_utf8(self.pairs[client].to_client.clone()).unwrap()
    }

    fn wait(&mut self, seconds: u64) {
        for pair in &mut self.pairs {
            pair.now += Duration::from_secs(seconds);
            pair.tell(WanEnd::Near, AcceleratorInput::Timeout);
        }
        self.wake();
    }
}

#[test]
fn thousand_clients_ask_the_server_once() {
    let mut crowd = ClientCrowd::asking(1_000);
    assert_eq!(crowd.asked(), 1);
    crowd.answer(0, &ok("Cache-Control: max-age=60\r\n", "content"));
    assert_eq!(crowd.asked(), 1);
    for client in 0..1_000 {
        assert!(crowd.got(client).ends_with("\r\n\r\ncontent"), "{client}");
    }
}

#[test]
fn private_response_goes_to_its_client_alone() {
    for fields in [
        "Cache-Control: private\r\n",
        "Cache-Control: no-store\r\n",
        "Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n",
        "Cache-Control: max-age=60\r\nVary: *\r\n",
    ] {
        let mut crowd = ClientCrowd::asking(5);
        crowd.answer(0, &ok(fields, "secret"));
        // The others ask themselves, all at once.
        assert_eq!(crowd.asked(), 5, "{fields}");
        for client in 1..5 {
            assert_eq!(crowd.got(client), "");
            crowd.answer(client, &ok(fields, &format!("for {client}")));
            assert!(crowd.got(client).ends_with(&format!("for {client}")));
        }
        // Nobody waits for the next one.
        let mut late = [crowd.site.connect_as(8), crowd.site.connect_as(9)];
        for pair in &mut late {
            pair.say(WanEnd::Near, REQUEST.as_bytes());
            assert_eq!(pair.to_server, REQUEST.as_bytes());
        }
    }
}

#[test]
fn variant_of_another_client_is_not_shared() {
    let mut crowd = ClientCrowd::asking(1);
    let mut other = crowd.site.connect_as(7);
    let request = REQUEST.replace("\r\n\r\n", "\r\nAccept-Language: de\r\n\r\n");
    other.say(WanEnd::Near, request.as_bytes());
    crowd.pairs.push(other);
    assert_eq!(crowd.asked(), 1);
    let fields = "Cache-Control: max-age=60\r\nVary: Accept-Language\r\n";
    crowd.answer(0, &ok(fields, "english"));
    assert_eq!((crowd.asked(), crowd.got(1)), (2, String::new()));
}

#[test]
fn next_client_leads_when_the_first_leaves() {
    let mut crowd = ClientCrowd::asking(3);
    // Its flow is reset, before and in the middle of the response.
    crowd.pairs.remove(0);
    crowd.wake();
    assert_eq!(crowd.asked(), 1);
    let lead = crowd
        .pairs
        .iter()
        .position(|pair| !pair.to_server.is_empty());
    let response = ok("Cache-Control: max-age=60\r\n", "content");
    crowd.answer(lead.unwrap(), &response[..response.len() - 2]);
    crowd.pairs.remove(lead.unwrap());
    crowd.wake();
    assert_eq!(crowd.asked(), 1);
    crowd.answer(0, &response);
    assert!(crowd.got(0).ends_with("content"));
}

#[test]
fn clients_wait_a_bounded_time() {
    let mut crowd = ClientCrowd::asking(3);
    crowd.wait(4);
    assert_eq!(crowd.asked(), 1);
    crowd.wait(2);
    assert_eq!(crowd.asked(), 3);
    // Once the head has come they wait longer, for all of it.
    let mut crowd = ClientCrowd::asking(3);
    let response = ok("Cache-Control: max-age=60\r\n", "content");
    crowd.answer(0, &response[..response.len() - 2]);
    crowd.wait(29);
    assert_eq!(crowd.asked(), 1);
    crowd.wait(2);
    assert_eq!(crowd.asked(), 3);
}

/// Another client asks; true if its request goes to the server at once.
fn asks_at_once(crowd: &ClientCrowd, flow: u64) -> bool {
    let mut late = crowd.site.connect_as(flow);
    late.now = crowd.pairs[0].now;
    late.say(WanEnd::Near, REQUEST.as_bytes());
    !late.to_server.is_empty()
}

#[test]
fn slow_responses_are_not_waited_for_again() {
    let slow = ok("Cache-Control: no-store\r\n", "event");
    // Others wait for a long poll, or it is alone.
    for count in [2, 1] {
        let mut crowd = ClientCrowd::asking(count);
        crowd.wait(5);
        assert_eq!(crowd.asked() as u64, count);
        assert_eq!(asks_at_once(&crowd, 8), count > 1);
        crowd.answer(0, &slow);
        for flow in 10..12 {
            crowd.wait(100);
            assert!(asks_at_once(&crowd, flow), "{count} {flow}");
        }
        // That is forgotten in time: one asks, and the next one waits for it.
        crowd.wait(600);
        let mut lead = crowd.site.connect_as(20);
        lead.now = crowd.pairs[0].now;
        lead.say(WanEnd::Near, REQUEST.as_bytes());
        assert!(!asks_at_once(&crowd, 21));
    }
}

#[test]
fn late_head_releases_all_that_wait() {
    let mut crowd = ClientCrowd::asking(1);
    crowd.wait(3);
    let mut second = crowd.site.connect_as(1);
    second.now = crowd.pairs[0].now;
    second.say(WanEnd::Near, REQUEST.as_bytes());
    crowd.pairs.push(second);
    crowd.wait(3);
    let mut third = crowd.site.connect_as(2);
    third.now = crowd.pairs[0].now;
    third.say(WanEnd::Near, REQUEST.as_bytes());
    crowd.pairs.push(third);
    assert_eq!(crowd.asked(), 1);
    // The second has waited long enough, and the third need not.
    crowd.wait(2);
    assert_eq!(crowd.asked(), 3);
}

#[test]
fn client_that_leaves_while_it_waits_is_forgotten() {
    let mut crowd = ClientCrowd::asking(3);
    crowd.pairs.remove(1);
    crowd.answer(0, &ok("Cache-Control: max-age=60\r\n", "content"));
    assert!(crowd.got(1).ends_with("content"));
    assert_eq!(crowd.asked(), 1);
}

#[test]
fn requests_with_credentials_or_conditions_do_not_wait() {
    let mut crowd = ClientCrowd::asking(1);
    let fields = [
        "Authorization: Basic eDp5",
        "If-None-Match: \"1\"",
        "Cache-Control: no-cache",
        "Range: bytes=0-1",
    ];
    for (at, field) in fields.iter().enumerate() {
        let mut other = crowd.site.connect_as(10 + at as u64);
        let request = REQUEST.replace("\r\n\r\n", &format!("\r\n{field}\r\n\r\n"));
        other.say(WanEnd::Near, request.as_bytes());
        crowd.pairs.push(other);
    }
    assert_eq!(crowd.asked(), 1 + fields.len());
}
