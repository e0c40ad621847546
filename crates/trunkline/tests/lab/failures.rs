//! Failures in mid-transfer: nodes killed or hung, the WAN gone, a dictionary damaged.

use std::path::Path;
use std::time::{Duration, Instant};

use host::kernel::{self, ProcessSignal};
use lab::servers::ServerKind;
use lab::site::{Lab, WithNodes};
use lab::topology::LabSite;
use vocab::SeededRandom;

use crate::setting::{
    FAST, FetchFailure, HttpClient, SLOW, ask, publish, receive, shared_turn, standing,
    wait_for_moment, web,
};

const PATIENCE: Duration = Duration::from_secs(10);
const BOTH: [LabSite; 2] = [LabSite::Near, LabSite::Far];

/// Starts to fetch "big", does `harm` when a megabyte of it is there, and says how it ended.
fn interrupted_fetch(
    client: &HttpClient,
    limit: Duration,
    harm: impl FnOnce(),
) -> Result<Vec<u8>, FetchFailure> {
    let mut stream = client
        .connect(web(LabSite::Far), limit)
        .map_err(FetchFailure::Broken)?;
    ask(&mut stream, "big").map_err(FetchFailure::Broken)?;
    let mut harm = Some(harm);
    receive(stream, |seen| {
        if seen > 1_000_000
            && let Some(harm) = harm.take()
        {
            harm();
        }
    })
}

fn pid_of(lab: &mut Lab, site: LabSite) -> u32 {
    let nodes = lab.nodes().expect("they run");
    nodes.process(site).expect("it runs").pid()
}

/// Kills a node with -9 in mid-transfer; new connections must work `limit` later, and the node
/// must come back by itself with its dictionary.
fn kill_in_mid_transfer(site: LabSite, limit: Duration) {
    let mut lab = standing(SLOW, WithNodes::Yes, &BOTH);
    let content = publish(&mut lab, "big", 5_000_000, 1);
    let small = publish(&mut lab, "small", 100_000, 2);
    let client = HttpClient::of(&lab);
    let body = client.fetch(web(LabSite::Far), "small", PATIENCE);
    assert!(body.expect("it arrives") == small);
    let pid = pid_of(&mut lab, site);
    let mut killed = Instant::now();
    let ended = interrupted_fetch(&client, PATIENCE, || {
        kernel::send_signal(pid, ProcessSignal::Kill).expect("the node runs");
        killed = Instant::now();
    });
    match ended {
        Ok(body) => assert!(body == content),
        Err(FetchFailure::Broken(_)) => {}
        Err(early) => panic!("a clean end in the middle: {early}"),
    }
    wait_for_moment(killed + limit);
    let body = client.fetch(web(LabSite::Far), "small", Duration::from_secs(5));
    assert!(body.expect("new connections work") == small);
    let nodes = lab.nodes().expect("they run");
    nodes.forget_if_ended(site);
    nodes.wait_sessions().expect("the node comes back");
    let status = nodes.status(site).expect("it answers");
    let chunks = status["dictionary"]["chunks"].as_u64();
    assert!(chunks.is_some_and(|chunks| chunks > 0), "{status}");
    let body = client.fetch(web(LabSite::Far), "big", PATIENCE);
    assert!(body.expect("it arrives") == content);
}

#[test]
fn killed_near_node_is_bypassed_and_recovers() {
    if let Some(_turn) = shared_turn("killed near node", &[ServerKind::Http]) {
        kill_in_mid_transfer(LabSite::Near, Duration::from_secs(1));
    }
}

#[test]
fn killed_far_node_is_bypassed_and_recovers() {
    if let Some(_turn) = shared_turn("killed far node", &[ServerKind::Http]) {
        kill_in_mid_transfer(LabSite::Far, Duration::from_secs(5));
    }
}

#[test]
fn hung_near_node_is_bypassed_within_two_seconds() {
    let Some(_turn) = shared_turn("hung node", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(FAST, WithNodes::Yes, &BOTH);
    let content = publish(&mut lab, "file", 100_000, 1);
    let client = HttpClient::of(&lab);
    let pid = pid_of(&mut lab, LabSite::Near);
    kernel::send_signal(pid, ProcessSignal::Freeze).expect("the node runs");
    wait_for_moment(Instant::now() + Duration::from_secs(2));
    let body = client.fetch(web(LabSite::Far), "file", Duration::from_secs(5));
    assert!(body.expect("new connections work") == content);
    // Whether the watchdog has replaced it or not.
    let _ = kernel::send_signal(pid, ProcessSignal::Thaw);
    let nodes = lab.nodes().expect("they run");
    nodes.forget_if_ended(LabSite::Near);
    nodes.wait_sessions().expect("the node comes back");
}

#[test]
fn a_transfer_outlives_twenty_seconds_without_the_wan() {
    let Some(_turn) = shared_turn("WAN outage", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(SLOW, WithNodes::Yes, &BOTH);
    let content = publish(&mut lab, "big", 4_000_000, 1);
    let client = HttpClient::of(&lab);
    let emulator = lab.emulator().pid();
    let body = interrupted_fetch(&client, Duration::from_secs(90), || {
        kernel::send_signal(emulator, ProcessSignal::Freeze).expect("the emulator runs");
        std::thread::spawn(move || {
            wait_for_moment(Instant::now() + Duration::from_secs(20));
            let _ = kernel::send_signal(emulator, ProcessSignal::Thaw);
        });
    });
    assert!(body.expect("it arrives in the end") == content);
    let nodes = lab.nodes().expect("they run");
    nodes.wait_sessions().expect("the session is up again");
}

#[test]
fn a_damaged_dictionary_costs_no_byte() {
    let Some(_turn) = shared_turn("damaged dictionary", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(FAST, WithNodes::Yes, &BOTH);
    let content = publish(&mut lab, "file", 3_000_000, 1);
    let client = HttpClient::of(&lab);
    for _ in 0..2 {
        let body = client.fetch(web(LabSite::Far), "file", PATIENCE);
        assert!(body.expect("it arrives") == content);
    }
    let mut random = SeededRandom::from_seed(7);
    for site in BOTH {
        lab.nodes()
            .expect("they run")
            .stop_node(site)
            .expect("it stops");
        let directory = lab
            .nodes()
            .expect("they run")
            .state(site)
            .expect("it has one");
        let damaged = damage(&directory.join("dictionary"), &mut random);
        assert!(damaged > 0, "{} keeps nothing on disk", site.node());
    }
    for site in BOTH {
        lab.start_node(site)
            .expect("it starts with a damaged dictionary");
    }
    lab.nodes()
        .expect("they run")
        .wait_sessions()
        .expect("the session is up");
    for _ in 0..2 {
        let body = client.fetch(web(LabSite::Far), "file", PATIENCE);
        assert!(body.expect("it arrives") == content);
    }
    lab.nodes()
        .expect("they run")
        .check()
        .expect("both nodes live");
}

/// Overwrites places in every file below `directory` with noise and cuts every other file short;
/// returns how many files there were.
fn damage(directory: &Path, random: &mut SeededRandom) -> usize {
    let mut count = 0;
    for path in std::fs::read_dir(directory)
        .expect("the directory is there")
        .flatten()
        .map(|entry| entry.path())
    {
        if path.is_dir() {
            count += damage(&path, random);
            continue;
        }
        let mut bytes = std::fs::read(&path).expect("it can be read");
        if bytes.is_empty() {
            continue;
        }
        for _ in 0..20 {
            let start = random.below(bytes.len() as u64) as usize;
            let end = (start + 64).min(bytes.len());
            random.fill(&mut bytes[start..end]);
        }
        if count % 2 == 1 {
            bytes.truncate(bytes.len() / 2);
        }
        std::fs::write(&path, bytes).expect("it can be written");
        count += 1;
    }
    count
}

#[test]
fn dead_server_looks_dead_on_the_next_try() {
    let Some(_turn) = shared_turn("dead server", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(FAST, WithNodes::Yes, &BOTH);
    let content = publish(&mut lab, "file", 50_000, 1);
    let client = HttpClient::of(&lab);
    let body = client.fetch(web(LabSite::Far), "file", PATIENCE);
    assert!(body.expect("it arrives") == content);
    lab.servers().stop().expect("nginx stops");
    let first = client.fetch(web(LabSite::Far), "file", PATIENCE);
    assert!(matches!(first, Err(FetchFailure::Broken(_))));
    let again = client.connect(web(LabSite::Far), PATIENCE);
    assert_eq!(
        again.expect_err("nginx is gone").kind(),
        std::io::ErrorKind::ConnectionRefused
    );
}
