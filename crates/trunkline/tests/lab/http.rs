//! Intercepted HTTP with `[http] mode = "on"`: a page whose nodes are killed while it loads, and the bench.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use host::kernel::{self, ProcessSignal};
use lab::nodes::{ExtraConfiguration, LabNodes};
use lab::servers::ServerKind;
use lab::site::{Lab, WithNodes};
use lab::topology::LabSite;
use serde_json::Value;

use crate::setting::{
    FetchFailure, HttpClient, SLOW, ask, publish, receive, shared_turn, standing, wait_for_moment,
    web,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// Objects of a page, and their bytes.
const OBJECTS: usize = 8;
const OBJECT_BYTES: usize = 200_000;

/// A page's objects, where nginx finds them.
fn page(lab: &mut Lab) -> Vec<(String, Vec<u8>)> {
    let object = |number: usize| {
        let name = format!("object-{number}");
        let content = publish(lab, &name, OBJECT_BYTES, number as u64);
        (name, content)
    };
    (0..OBJECTS).map(object).collect()
}

/// Nodes that follow HTTP; dropping them stops them.
fn nodes(lab: &Lab) -> LabNodes {
    let mut nodes =
        LabNodes::prepare(lab.run(), lab.topology(), lab.logs()).expect("they are configured");
    let extras = ExtraConfiguration {
        accelerators: ["[http]", "mode = \"on\""].map(str::to_owned).to_vec(),
        ..ExtraConfiguration::default()
    };
    nodes
        .configure(lab.topology(), &extras)
        .expect("their files can be written");
    nodes.start(lab.run()).expect("they start");
    nodes
}

fn load(client: &HttpClient, page: &[(String, Vec<u8>)]) {
    for (name, content) in page {
        let body = client.fetch(web(LabSite::Far), name, PATIENCE);
        assert!(body.expect("it arrives") == *content, "{name}");
    }
}

/// Kills a node while the middle object of a page comes; `limit` later the page must load, without the nodes.
fn kill_in_mid_page(site: LabSite, limit: Duration) {
    let mut lab = standing(SLOW, WithNodes::No, &[LabSite::Near, LabSite::Far]);
    let page = page(&mut lab);
    let client = HttpClient::of(&lab);
    let mut nodes = nodes(&lab);
    load(&client, &page[..OBJECTS / 2]);
    let pid = nodes.process(site).expect("it runs").pid();
    let (name, content) = &page[OBJECTS / 2];
    let mut stream = client
        .connect(web(LabSite::Far), PATIENCE)
        .expect("the node takes it");
    ask(&mut stream, name).expect("it is connected");
    let mut killed = None;
    let ended = receive(stream, |seen| {
        if seen > OBJECT_BYTES / 4 && killed.is_none() {
            kernel::send_signal(pid, ProcessSignal::Kill).expect("the node runs");
            killed = Some(Instant::now());
        }
    });
    match ended {
        Ok(body) => assert!(body == *content),
        Err(FetchFailure::Broken(_)) => {}
        Err(early) => panic!("a clean end in the middle: {early}"),
    }
    wait_for_moment(killed.expect("the object came that far") + limit);
    load(&client, &page);
    nodes.forget_if_ended(site);
    nodes.wait_sessions().expect("the node comes back");
    load(&client, &page);
}

#[test]
fn a_page_loads_past_a_killed_near_node() {
    if let Some(_turn) = shared_turn("page past a near node", &[ServerKind::Http]) {
        kill_in_mid_page(LabSite::Near, Duration::from_secs(1));
    }
}

#[test]
fn a_page_loads_past_a_killed_far_node() {
    if let Some(_turn) = shared_turn("page past a far node", &[ServerKind::Http]) {
        kill_in_mid_page(LabSite::Far, Duration::from_secs(5));
    }
}

/// Runs the bench with these words, and gives its JSON.
fn bench(words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["bench", "http", "--json"])
        .args(words)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}

/// A fresh object costs nothing beside the session's signs of life, a stale one a conditional request.
#[test]
fn stored_objects_cost_next_to_nothing_on_the_wan() {
    let Some(_turn) = shared_turn("bench http objects", &[ServerKind::Http]) else {
        return;
    };
    let report = bench(&["--cells", "objects", "--objects", "40"]);
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    let bytes = |name: &str| report["figures"][name].as_f64().expect("it was measured");
    // Signs of life are some hundred bytes in seconds.
    assert!(bytes("fresh_object_wan_bytes") < 50.0, "{report}");
    assert!(bytes("revalidated_object_wan_bytes") < 900.0, "{report}");
    assert!(report["figures"]["throughput_ratio"].is_null());
}

/// `cargo test -p trunkline --test lab -- --ignored --nocapture a_browser`
#[test]
#[ignore = "long: takes minutes, and needs Chromium"]
fn a_browser_loads_the_same_page_through_the_nodes() {
    let Some(_turn) = shared_turn("bench http page", &[ServerKind::Http]) else {
        return;
    };
    if lab::browser::find().is_none() {
        eprintln!("not run: chromium is missing (apt-get install chromium)");
        return;
    }
    let report = bench(&["--cells", "page", "--repeats", "2"]);
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    let figure = |name: &str| report["figures"][name].as_f64().expect("it was measured");
    assert!(figure("http1_warm_round_trips") <= 1.0, "{report}");
    assert!(figure("http1_warm_wan_bytes") < 20_000.0, "{report}");
    assert!(figure("http1_cold_wan_bytes") > 1_000_000.0, "{report}");
    // The objects come ahead of their requests, also after the first time.
    assert!(figure("http1_cold_round_trips") <= 5.0, "{report}");
}

/// `TRUNKLINE_CACHE_TESTS=DIR cargo test -p trunkline --test lab -- --ignored --nocapture public_cache_suite`, where DIR is
/// a checkout of the suite (`scripts/cache-tests.sh`).
#[test]
#[ignore = "long: two minutes, and needs a checkout of cache-tests"]
fn public_cache_suite_gives_the_kept_result() {
    let Some(_turn) = shared_turn("cache-tests", &[]) else {
        return;
    };
    let Some(suite) = std::env::var_os("TRUNKLINE_CACHE_TESTS") else {
        eprintln!("not run: TRUNKLINE_CACHE_TESTS names no checkout of cache-tests");
        return;
    };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let output = Command::new(scripts.join("cache-tests.sh"))
        .arg(suite)
        .env("TRUNKLINE", env!("CARGO_BIN_EXE_trunkline"))
        .output()
        .expect("the script starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8_lossy(&output.stdout);
    let failed = lines
        .lines()
        .filter(|line| line.starts_with("required ") || line.starts_with("optimal "))
        .filter_map(|line| line.split(':').next());
    let kept = std::fs::read_to_string(scripts.join("cache-tests.expected"));
    let kept = kept.expect("the result is kept beside the script");
    let kept = kept.lines().filter(|line| !line.starts_with('#'));
    let (failed, kept): (BTreeSet<&str>, BTreeSet<&str>) = (failed.collect(), kept.collect());
    let newly: Vec<_> = failed.difference(&kept).collect();
    let no_longer: Vec<_> = kept.difference(&failed).collect();
    assert!(
        newly.is_empty() && no_longer.is_empty(),
        "these did not pass: {newly:?}; these pass now and can go from the file: {no_longer:?}; {errors}"
    );
}
