//! Shared parts of the tests: a lab of their own, and a client that distinguishes a clean end from
//! a reset.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use host::ProgramEnvironment;
use host::kernel;
use host::progress::SilentProgress;
use host::rootless::{PrivilegeSource, UserNamespaceMembership};
use host::run::LabRun;
use lab::campaign::LabLink;
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use lab::servers::{HTTP_PORT, ServerKind};
use lab::site::{Lab, WithNodes};
use lab::topology::LabSite;
use vocab::SeededRandom;

/// A link on which a megabyte takes a tenth of a second.
pub(crate) const FAST: &str = "rate=100Mbit,delay=5ms,queue=250kB";
/// A link on which a megabyte takes most of a second, so that there is a middle to break off in.
pub(crate) const SLOW: &str = "rate=10Mbit,delay=10ms,queue=125kB";

/// The number of tests that may run at the same time, where none of them needs a quiet machine.
const PLACES: usize = 2;

static QUEUE: Mutex<TestQueue> = Mutex::new(TestQueue {
    places_taken: 0,
    waiting_alone: 0,
});
static PLACE_LEFT: Condvar = Condvar::new();

/// The tests that run, and those that wait to run alone.
struct TestQueue {
    places_taken: usize,
    waiting_alone: usize,
}

impl TestQueue {
    fn must_wait(&self, places: usize) -> bool {
        // Tests that share would otherwise follow each other for ever.
        let is_behind_another = places < PLACES && self.waiting_alone > 0;
        is_behind_another || self.places_taken + places > PLACES
    }
}

/// A test's permission to use the machine, which ends when it is dropped.
pub(crate) struct TestTurn {
    places: usize,
}

impl TestTurn {
    fn wait_for(places: usize) -> Self {
        let is_alone = usize::from(places == PLACES);
        let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting_alone += is_alone;
        let mut queue = PLACE_LEFT
            .wait_while(queue, |queue| queue.must_wait(places))
            .unwrap_or_else(PoisonError::into_inner);
        queue.waiting_alone -= is_alone;
        queue.places_taken += places;
        Self { places }
    }
}

impl Drop for TestTurn {
    fn drop(&mut self) {
        let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        queue.places_taken -= self.places;
        PLACE_LEFT.notify_all();
    }
}

/// Waits until no other test runs; `None` where the lab cannot run, with a remark on standard error.
pub(crate) fn turn(test: &str, kinds: &[ServerKind]) -> Option<TestTurn> {
    take(test, kinds, PLACES)
}

/// Waits until at most one other test runs, for tests whose results do not depend on time. `None`
/// where the lab cannot run, with a remark on standard error.
pub(crate) fn shared_turn(test: &str, kinds: &[ServerKind]) -> Option<TestTurn> {
    take(test, kinds, 1)
}

fn take(test: &str, kinds: &[ServerKind], places: usize) -> Option<TestTurn> {
    let turn = TestTurn::wait_for(places);
    let reason = if kernel::effective_user() != 0 {
        "it needs root".to_owned()
    } else {
        let needs = LabRequirements {
            servers: kinds.to_vec(),
            clients: vec!["curl"],
            interception: InterceptionMode::Transparent,
            captures: CaptureMode::Taken,
        };
        match preflight::check(&needs, PrivilegeSource::Root) {
            Ok(()) => return Some(turn),
            Err(error) => format!("{error:#}"),
        }
    };
    // Past the test harness, which hides what passing tests print.
    let _ = writeln!(io::stderr(), "skipped {test}: {reason}");
    None
}

/// The Python with impacket that scripts/install.sh makes, if it is there.
pub(crate) fn mailbox_python() -> Option<PathBuf> {
    installed_python("TRUNKLINE_MAILBOX_PYTHON", "mailbox")
}

/// The Python with smbprotocol that scripts/install.sh makes, if it is there.
pub(crate) fn smb_python() -> Option<PathBuf> {
    installed_python("TRUNKLINE_SMB_PYTHON", "smb-clients")
}

fn installed_python(variable: &str, directory: &str) -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = path("TRUNKLINE_CACHE").or_else(|| Some(path("HOME")?.join(".cache/trunkline")));
    let python = path(variable).or_else(|| Some(cache?.join(directory).join("bin/python3")))?;
    python.exists().then_some(python)
}

/// The program under test and where it may write.
pub(crate) fn environment() -> ProgramEnvironment {
    ProgramEnvironment {
        program: PathBuf::from(env!("CARGO_BIN_EXE_trunkline")),
        arguments: Vec::new(),
        user_namespace: UserNamespaceMembership::No,
    }
}

/// A standing lab with nginx at the far site.
pub(crate) fn standing(link: &str, with: WithNodes, sites: &[LabSite]) -> Lab {
    let run = LabRun::create(&environment()).expect("the run directory can be made");
    let link: LabLink = link.parse().expect("the test's link is well written");
    Lab::build(
        run,
        &link,
        with,
        &[ServerKind::Http],
        sites,
        &SilentProgress,
    )
    .expect("the lab stands")
}

/// Puts a file of random bytes where the far site's servers find it, and returns its content.
pub(crate) fn publish(lab: &mut Lab, name: &str, bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    SeededRandom::from_seed(seed).fill(&mut content);
    let path = lab.servers().files().join(name);
    std::fs::write(path, &content).expect("the server's directory can be written");
    content
}

/// nginx at a site, over IPv4.
pub(crate) fn web(site: LabSite) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(site.host_address()), HTTP_PORT)
}

/// Failure of a fetch.
#[derive(Debug)]
pub(crate) enum FetchFailure {
    /// The connection was refused, reset, or timed out.
    Broken(io::Error),
    /// The server's side ended cleanly before all data was there, which must never happen.
    CleanEndTooEarly { got: usize, of: usize },
}

impl fmt::Display for FetchFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchFailure::Broken(error) => write!(out, "the connection broke: {error}"),
            FetchFailure::CleanEndTooEarly { got, of } => {
                write!(out, "a clean end after {got} of {of} bytes")
            }
        }
    }
}

/// An HTTP client in the client's namespace.
pub(crate) struct HttpClient {
    namespace: PathBuf,
}

impl HttpClient {
    pub(crate) fn of(lab: &Lab) -> Self {
        Self {
            namespace: lab.topology().namespace_file("client"),
        }
    }

    /// Connects from the client's namespace.
    pub(crate) fn connect(&self, server: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        kernel::in_network_namespace(&self.namespace, || {
            let stream = TcpStream::connect_timeout(&server, limit)?;
            stream.set_read_timeout(Some(limit))?;
            Ok(stream)
        })
    }

    /// Fetches a file; no single wait may be longer than `limit`.
    pub(crate) fn fetch(
        &self,
        server: SocketAddr,
        name: &str,
        limit: Duration,
    ) -> Result<Vec<u8>, FetchFailure> {
        let mut stream = self.connect(server, limit).map_err(FetchFailure::Broken)?;
        ask(&mut stream, name).map_err(FetchFailure::Broken)?;
        receive(stream, |_| ())
    }
}

/// Sends a request for a file.
pub(crate) fn ask(stream: &mut TcpStream, name: &str) -> io::Result<()> {
    let request = format!("GET /{name} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())
}

/// Reads an answer to its end and returns its body; `seen` receives the length so far.
pub(crate) fn receive(
    mut stream: TcpStream,
    mut seen: impl FnMut(usize),
) -> Result<Vec<u8>, FetchFailure> {
    let mut answer = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) => return Err(FetchFailure::Broken(error)),
        }
        seen(answer.len());
    }
    let too_early = |got, of| FetchFailure::CleanEndTooEarly { got, of };
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Err(too_early(answer.len(), usize::MAX));
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse().ok())
        .expect("nginx says how long a file is");
    let body = answer.split_off(end + 4);
    if body.len() < length {
        return Err(too_early(body.len(), length));
    }
    Ok(body)
}

/// Waits until `moment`, which a requirement names ("within 1 s"): the one wait for a time.
pub(crate) fn wait_for_moment(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}
