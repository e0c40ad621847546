//! A page with everything that it names, loaded over 100 ms: what prefetches save, and what they leave alone.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use vocab::Bitrate;

use super::super::random_bytes;
use super::super::world::{FAR, NEAR, TestPath};
use super::browser::{Browser, round_trips};
use super::{PORT, WebWorld, http};

const ROUND_TRIP: Duration = Duration::from_millis(100);
const RATE_BPS: u64 = 20_000_000;
const SHEETS: usize = 10;
const IMAGES: usize = 60;
/// Images and fonts that only style sheets name.
const IMAGES_OF_SHEETS: usize = 29;
const FRESH: &str = "Cache-Control: max-age=3600\r\n";

fn path() -> TestPath {
    TestPath {
        rate: Bitrate::from_bits_per_second(RATE_BPS),
        delay: ROUND_TRIP / 2,
    }
}

fn on() -> http::HttpSettings {
    http::HttpSettings {
        is_on: true,
        ..http::HttpSettings::default()
    }
}

fn without_prefetch() -> http::HttpSettings {
    http::HttpSettings {
        prefetch: http::PrefetchSettings::OFF,
        ..on()
    }
}

/// Text that is as long and that shrinks as much as a style sheet that was compressed.
fn text(seed: u64) -> String {
    let bytes = random_bytes(seed, 4_000);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts a page of 100 things on the server: HTML, 10 style sheets and scripts, 60 images, and 29 images and fonts that
/// only the style sheets name.
fn put_page(web: &WebWorld, fields: &str) {
    let mut page = String::from("<!DOCTYPE html><html><head>");
    for number in 0..SHEETS {
        let is_sheet = number % 2 == 0;
        let name = match is_sheet {
            true => format!("/{number}.css"),
            false => format!("/{number}.js"),
        };
        page += &match is_sheet {
            true => format!("<link rel=stylesheet href=\"{name}\">"),
            false => format!("<script src=\"{name}\"></script>"),
        };
        let mut content = format!("/* {} */", text(number as u64));
        let of_sheet = (0..IMAGES_OF_SHEETS).filter(|image| image % SHEETS == number / 2 * 2);
        let of_sheet = of_sheet
            .chain((0..IMAGES_OF_SHEETS).filter(|image| image % SHEETS == number / 2 * 2 + 1));
        for image in of_sheet.filter(|_| is_sheet) {
            let ending = if image % 3 == 0 { "woff2" } else { "png" };
            let name = format!("/sheet-{image}.{ending}");
            content += &format!("\n.a{image} {{ background: url(\"{name}\") }}");
            web.page(&name, fields, &random_bytes(1_000 + image as u64, 12_000));
        }
        let media_type = if is_sheet {
            "text/css"
        } else {
            "text/javascript"
        };
        let fields = format!("Content-Type: {media_type}\r\n{fields}");
        web.page(&name, &fields, &Bytes::from(content));
    }
    page += "</head><body>";
    for number in 0..IMAGES {
        let name = format!("/{number}.png");
        page += &format!(
            "<p>{}</p><img src=\"{name}\">",
            &text(100 + number as u64)[..200]
        );
        web.page(&name, fields, &random_bytes(number as u64, 12_000));
    }
    let page = Bytes::from(page);
    web.page(
        "/",
        "Content-Type: text/html\r\nCache-Control: no-cache\r\n",
        &page,
    );
}

fn objects() -> usize {
    1 + SHEETS + IMAGES + IMAGES_OF_SHEETS
}

fn world(settings: http::HttpSettings) -> WebWorld {
    let web = WebWorld::over(path(), settings);
    put_page(&web, FRESH);
    web
}

/// Returns the near node's explanation of its latest flow.
fn why(web: &WebWorld) -> String {
    let (engine, now) = (&web.world.nodes[NEAR].engine, web.world.now);
    let flows = engine.flows(now);
    let latest = flows.iter().map(|flow| flow.flow).max();
    format!("{:?}", engine.why(now, latest.unwrap()).unwrap())
}

/// Loads the page and compares all that came; the time, and the time that its bytes take on the line.
fn load(web: &mut WebWorld, browser: &mut Browser) -> (Duration, Duration) {
    let before = web.world.wan_bytes[FAR];
    let took = browser.load(&mut web.world, "/");
    let bytes = web.world.wan_bytes[FAR] - before;
    let line = Duration::from_secs_f64(bytes as f64 * 8.0 / RATE_BPS as f64);
    assert_eq!(browser.loaded.len(), objects());
    for (path, content) in &browser.loaded {
        let server = web.server.borrow();
        assert!(
            server.pages[path].1 == *content,
            "{path} came with other content"
        );
    }
    (took, line)
}

/// How often the server was asked for what it was asked for most.
fn asked_at_most(web: &WebWorld) -> usize {
    let server = web.server.borrow();
    let of = |head: &String| head.lines().next().unwrap().to_owned();
    let mut counts = std::collections::BTreeMap::new();
    for line in server.asked.iter().map(of) {
        *counts.entry(line).or_insert(0) += 1;
    }
    counts.values().copied().max().unwrap_or(0)
}

#[test]
fn page_is_loaded_in_few_round_trips() {
    let mut off = world(http::HttpSettings::default());
    let (took_off, line_off) = load(&mut off, &mut Browser::new("c=1"));
    let mut cached = world(without_prefetch());
    let (took_cached, line_cached) = load(&mut cached, &mut Browser::new("c=1"));
    let mut ahead = world(on());
    let (took_ahead, line_ahead) = load(&mut ahead, &mut Browser::new("c=1"));
    let trips = |took, line| round_trips(took, ROUND_TRIP, line);
    let (off_trips, cached_trips) = (trips(took_off, line_off), trips(took_cached, line_cached));
    let ahead_trips = trips(took_ahead, line_ahead);
    // Six connections, 99 things behind the page.
    assert!(off_trips > 12.0, "{off_trips}");
    assert!(cached_trips > 12.0, "{cached_trips}");
    assert!(ahead_trips < 2.5, "{ahead_trips}");
    // The servers of this world answer at once, so a LAN takes no time.
    assert!(took_ahead * 2 < took_off, "{took_ahead:?} of {took_off:?}");
    assert_eq!(ahead.asked(), objects());
    assert_eq!(asked_at_most(&ahead), 1);
}

/// A page with private images, loaded by two clients with the same cookie and by two with others.
#[test]
fn private_responses_answer_only_the_client_that_they_came_for() {
    let mut web = WebWorld::over(path(), on());
    put_page(&web, "Cache-Control: private, max-age=3600\r\n");
    let mut first = Browser::new("c=1");
    load(&mut web, &mut first);
    assert_eq!(web.asked(), objects());
    // Each of them is asked for again for every other client, and never given to it from what the first one had.
    let other: SocketAddr = "198.18.1.3:40000".parse().unwrap();
    for (number, mut browser) in [Browser::new("c=2"), Browser::new("c=1").on(other)]
        .into_iter()
        .enumerate()
    {
        load(&mut web, &mut browser);
        assert_eq!(web.asked(), objects() * (number + 2));
    }
}

#[test]
fn response_that_may_not_be_stored_is_used_once() {
    let mut web = WebWorld::over(path(), on());
    put_page(&web, "Cache-Control: no-store\r\n");
    let mut browser = Browser::new("c=1");
    let (took, line) = load(&mut web, &mut browser);
    let trips = round_trips(took, ROUND_TRIP, line);
    assert!(trips < 2.5, "{trips}");
    assert_eq!(asked_at_most(&web), 1);
    web.world.run_for(Duration::from_secs(11));
    load(&mut web, &mut browser);
    assert_eq!(asked_at_most(&web), 2);
}

#[test]
fn second_client_costs_one_round_trip() {
    let mut web = world(on());
    load(&mut web, &mut Browser::new("c=1"));
    web.world.run_for(Duration::from_secs(2));
    let asked = web.asked();
    let other: SocketAddr = "198.18.1.3:40000".parse().unwrap();
    let (took, line) = load(&mut web, &mut Browser::new("c=2").on(other));
    let trips = round_trips(took, ROUND_TRIP, line);
    assert!(trips < 1.2, "{trips}");
    // The page alone: the far half knows what the near half holds.
    assert_eq!(web.asked(), asked + 1);
}

#[test]
fn client_that_leaves_ends_the_prefetches() {
    let mut web = world(on());
    let mut browser = Browser::new("c=1");
    browser.begin(&mut web.world, "/");
    assert_eq!(browser.connections(), 6);
    browser.leave(&mut web.world);
    web.world.run_for(Duration::from_secs(1));
    let asked = web.asked();
    assert!(asked < objects(), "{asked}");
    web.world.run_for(Duration::from_secs(10));
    assert_eq!(web.asked(), asked);
    let standing = web.world.nodes[FAR]
        .hosts
        .values()
        .filter(|host| !host.was_closed && !host.was_reset);
    assert_eq!(standing.count(), 0);
}

/// A page whose images nobody asks for: they are counted, and fewer are fetched from then on.
#[test]
fn what_nobody_asks_for_is_counted_and_fetched_less() {
    let mut web = WebWorld::over(path(), on());
    put_page(&web, "Cache-Control: no-store\r\n");
    let mut fetched = Vec::new();
    for number in 0..3 {
        let before = web.asked();
        let client = web.world.accept(PORT);
        let request = format!("GET / HTTP/1.1\r\nHost: web\r\nCookie: c={number}\r\n\r\n");
        web.world.send(client, request.as_bytes(), false);
        // What came is judged after ten seconds.
        web.world.run_for(Duration::from_secs(12));
        fetched.push(web.asked() - before - 1);
        let note = why(&web);
        let count = format!("{} responses", fetched[number]);
        assert!(note.contains(&count), "{note}");
        let count = format!(
            "; clients requested 0 of them, and {} expired unused",
            fetched[number]
        );
        assert!(note.contains(&count), "{note}");
        web.world.send(client, &[], true);
        web.world.run_for(Duration::from_secs(1));
    }
    assert_eq!(fetched, [objects() - 1, 2, 2]);
}
