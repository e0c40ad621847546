//! kill -9 of a node at random points of its work, again and again, with files going through the pair.
//!
//! ```text
//!  client ── near node (decoder, dictionary on disk) ══ far node (encoder) ── server
//!                 kill -9                                  kill -9
//! ```
//! What a client receives is right up to where its connection breaks. Files that the near node has said
//! to be on its disk are fetched again in later lives, by reference: it must ask for nothing of them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vocab::SeededRandom;

use crate::sites::{self, PATIENCE, TestSites};

/// Bytes of a file, at most, and the least.
const LARGEST: u64 = 1 << 20;
const SMALLEST: u64 = 64 << 10;
/// Share of kills after a complete file: one in this many; the others come after a part of it. Kill
/// points are counted in bytes, because the time for a file depends on the host. A delay of at most
/// this time follows, also for a kill during the start.
const WHOLE: u64 = 4;
const BEYOND: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(150);
/// One kill in this many is repeated while the node starts.
const STARTING: u64 = 6;
/// Number of the newest files that are fetched again; older ones may have been dropped.
const NEWEST: usize = 3;

/// Statistics of a test run.
#[derive(Debug, Default)]
pub(super) struct KillStatistics {
    /// Files that were cut off, and how much of them had come.
    pub(super) cut_off: u32,
    pub(super) cut_off_bytes: u64,
    /// Files that came whole, for the first time and again.
    pub(super) whole: u32,
    pub(super) again: u32,
    /// WAN cost of the files that were fetched again where only the near node had been killed.
    pub(super) again_bytes: u64,
    pub(super) again_wan_bytes: u64,
    /// Nodes that were killed while they started.
    pub(super) starting: u32,
}

/// A file is its number.
struct FileNumber(u64);

impl FileNumber {
    fn content(&self) -> Vec<u8> {
        let mut random = SeededRandom::from_seed(self.0);
        let mut content = vec![0; (SMALLEST + random.below(LARGEST - SMALLEST)) as usize];
        random.fill(&mut content);
        content
    }
}

/// Kills nodes of this pair so often, every other time the far one.
pub(super) fn kill(sites: &mut TestSites, points: u32, seed: u64) -> KillStatistics {
    let mut random = SeededRandom::from_seed(seed);
    let mut seen = KillStatistics::default();
    // Files that the near node has on its disk, and one that it may have had in memory alone.
    let mut kept: Vec<FileNumber> = Vec::new();
    let mut delivered: Option<FileNumber> = None;
    for point in 0..points {
        // Until its log is read a node asks for what it does not know yet to have.
        sites.wait_for_status("near", |status| status["dictionary"]["ready"] == true);
        let asked = content_requests(sites);
        let newest = kept.len().saturating_sub(NEWEST);
        for file in &kept[newest..] {
            let before = wan_bytes(sites);
            let content = file.content();
            fetch_whole(sites, &content);
            seen.again += 1;
            // The far node had been killed before an even point, and knows of nothing then.
            if point % 2 == 1 {
                seen.again_bytes += content.len() as u64;
                seen.again_wan_bytes += wan_bytes(sites) - before;
            }
        }
        assert_eq!(
            content_requests(sites),
            asked,
            "point {point}: {}\n{}",
            sites.status("near")["dictionary"],
            sites.log("near")
        );
        if let Some(file) = delivered.take() {
            fetch_whole(sites, &file.content());
            let status = sites.wait_for_status("near", |status| {
                status["dictionary"]["disk_waiting_bytes"] == 0
            });
            let dictionary = &status["dictionary"];
            assert_eq!(dictionary["unwritten_chunks_total"], 0, "{dictionary}");
            kept.push(file);
        }

        let victim = if point % 2 == 0 { "near" } else { "far" };
        let file = FileNumber(seed << 32 | u64::from(point));
        let content = file.content();
        let goal = match random.below(WHOLE) {
            0 => content.len(),
            _ => random.below(content.len() as u64) as usize,
        };
        let fetching = fetch(sites, &content);
        fetching.wait_for(goal);
        thread::sleep(random_part(&mut random, BEYOND));
        sites.kill(victim);
        if random.below(STARTING) == 0 {
            sites.spawn(victim);
            thread::sleep(random_part(&mut random, LONGEST));
            sites.kill(victim);
            seen.starting += 1;
        }
        sites.start(victim);
        // A client beside a near node hears of the far one's death when that is back.
        let came = fetching.end();
        if came == content.len() {
            seen.whole += 1;
            delivered = Some(file);
        } else {
            seen.cut_off += 1;
            seen.cut_off_bytes += came as u64;
        }
        sites.wait_for("near", |path| path["carries"] == "udp");
    }
    seen
}

fn random_part(random: &mut SeededRandom, longest: Duration) -> Duration {
    Duration::from_nanos(random.below(longest.as_nanos() as u64))
}

/// The bytes of the near node's flows that have crossed the WAN since it started.
fn wan_bytes(sites: &TestSites) -> u64 {
    sites.status("near")["wan_bytes"].as_u64().unwrap()
}

/// Number of times that the near node has requested content that it should have had, since it
/// started.
fn content_requests(sites: &TestSites) -> u64 {
    let dictionary = sites.status("near")["dictionary"].clone();
    assert_eq!(dictionary["disk_faults_total"], 0, "{dictionary}");
    dictionary["content_requests_total"].as_u64().unwrap()
}

/// Fetches a file until it arrives completely: a request to a peer whose death is not known yet
/// fails.
fn fetch_whole(sites: &TestSites, content: &[u8]) {
    let began = Instant::now();
    while fetch(sites, content).end() != content.len() {
        assert!(began.elapsed() < PATIENCE, "{}", sites.log("near"));
    }
}

/// A file on its way.
struct FileFetch {
    /// Bytes that have come.
    came: Arc<AtomicUsize>,
    client: JoinHandle<()>,
}

impl FileFetch {
    /// Waits until so many bytes have arrived, or no more will.
    fn wait_for(&self, goal: usize) {
        while self.came.load(Ordering::Relaxed) < goal && !self.client.is_finished() {
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Number of bytes that arrived in the end.
    fn end(self) -> usize {
        self.client.join().unwrap();
        self.came.load(Ordering::Relaxed)
    }
}

/// Fetches a file; all received bytes are compared.
fn fetch(sites: &TestSites, content: &[u8]) -> FileFetch {
    let far = sites.far();
    let listener = TcpListener::bind((far, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let socks = sites.socks();
    let content = content.to_vec();
    let came = Arc::new(AtomicUsize::new(0));
    let so_far = Arc::clone(&came);
    let client = thread::spawn(move || {
        let (ended, end) = mpsc::channel::<()>();
        let served = content.clone();
        let server = thread::spawn(move || serve(&listener, &served, &end));
        // Whatever breaks breaks because a node was killed; who kills none looks at the length.
        let mut received = Vec::new();
        let _ = sites::connect(socks, far, port).and_then(|mut client| {
            client.set_read_timeout(Some(PATIENCE))?;
            let mut piece = [0; 16 << 10];
            loop {
                let count = client.read(&mut piece)?;
                received.extend_from_slice(&piece[..count]);
                so_far.store(received.len(), Ordering::Relaxed);
                if count == 0 {
                    return Ok(());
                }
            }
        });
        drop(ended);
        server.join().unwrap();
        assert!(
            content.starts_with(&received),
            "wrong bytes in {}",
            received.len()
        );
    });
    FileFetch { came, client }
}

/// Sends this to each client, until the client has ended.
fn serve(listener: &TcpListener, content: &[u8], end: &Receiver<()>) {
    listener.set_nonblocking(true).unwrap();
    while end.try_recv() != Err(TryRecvError::Disconnected) {
        if let Ok((mut client, _)) = listener.accept() {
            client.set_nonblocking(false).unwrap();
            client.set_write_timeout(Some(PATIENCE)).unwrap();
            let _ = client.write_all(content);
            return;
        }
        thread::sleep(Duration::from_micros(200));
    }
}
