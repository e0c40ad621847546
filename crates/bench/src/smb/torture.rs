//! smbtorture direct and through a pair of nodes: every test that passes direct must pass through.
//!
//! ```text
//!  smbtorture ── near ══ link ══ far ── smbd          through, and at the same time
//!  smbtorture ─────────── link ──────── smbd          direct, in a lab of its own
//! ```
//! Each suite is a run of its own, because the whole of `smb2` hangs at suites that hold a handle for
//! ever, and a few run at a time, each in shares of its own. A suite that exceeds its time is ended, and
//! what it had not reported by then counts as not run. Tests that pass direct and fail through are run once more
//! by themselves, because some wait for so long and no longer; which did so is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::cells::{AccelerationMode, SmbProtection};
use super::server::{PASSWORD, TORTURE_LANES, USER};
use super::stand::SmbLane;
use crate::reasons::AccelerationReason;
use anyhow::{Context, Result};
use host::{ProgramEnvironment, wait};

/// The suites of `smb2` that take half a minute together on a LAN.
pub const QUICK: [&str; 15] = [
    "read",
    "lock",
    "compound",
    "compound_async",
    "durable-open",
    "durable-v2-open",
    "rw",
    "deny",
    "fileid",
    "sharemode",
    "session",
    "streams",
    "ioctl",
    "rename",
    "credits",
];

/// The tests of `compound` in which smbtorture 4.17 neither crashes nor hangs in sessions without a
/// key.
const COMPOUND_WITHOUT_KEY: [&str; 14] = [
    "compound.related3",
    "compound.related4",
    "compound.related5",
    "compound.related6",
    "compound.related7",
    "compound.related8",
    "compound.related9",
    "compound.unrelated1",
    "compound.invalid1",
    "compound.invalid3",
    "compound.invalid4",
    "compound.compound-break",
    "compound.compound-padding",
    "compound.create-write-close",
];

/// Suites, without those that smbtorture itself does not support in such a session.
#[must_use]
pub fn possible(suites: &[&'static str], session: TortureSession) -> Vec<&'static str> {
    let compound: &[&str] = match session {
        TortureSession::PlainOfNobody | TortureSession::Nobody => &COMPOUND_WITHOUT_KEY,
        TortureSession::Account | TortureSession::Delegated(_) | TortureSession::Nt1 => {
            &["compound"]
        }
    };
    let parts = |suite: &&'static str| match *suite {
        "compound" => compound.to_vec(),
        other => vec![other],
    };
    suites.iter().flat_map(parts).collect()
}

/// Suites of leases, oplocks and other client caching, the longest first: many wait for breaks that
/// are not acknowledged.
pub const LONG: [&str; 10] = [
    "lease",
    "replay",
    "oplock",
    "durable-open",
    "durable-v2-open",
    "durable-v2-delay",
    "durable-open-disconnect",
    "kernel-oplocks",
    "create",
    "getinfo",
];

/// Suites that make directories of thousands of files, and wait for changes in them: with little
/// processor time each takes minutes, and a repeat as many.
pub const DIRECTORIES: [&str; 3] = ["notify", "compound_find", "dir"];

/// Suites of SMB 1, by their full names: those that read, write, open, lock and seek, and those
/// that move, rename and remove open files. `raw.mux` depends on timing, and is left out.
pub const NT1: [&str; 16] = [
    "raw.read",
    "raw.write",
    "raw.open",
    "raw.rename",
    "raw.unlink",
    "raw.seek",
    "raw.close",
    "raw.sfileinfo",
    "base.rw1",
    "base.lock",
    "base.fdpass",
    "base.unlink",
    "base.attr",
    "base.trans2",
    "base.rename",
    "base.open",
];

/// Suites among them that exercise the SMB 1 accelerator in some seconds: `base.lock`, `raw.rename`
/// and `raw.open` take more than twenty each.
pub const NT1_QUICK: [&str; 7] = [
    "raw.read",
    "raw.write",
    "raw.seek",
    "raw.unlink",
    "base.rw1",
    "base.open",
    "base.trans2",
];

/// Test that compares a file's last access time with that at its open for reading, and reads
/// nothing: the first block, read with the open, changes it (docs/decisions/0048).
const TELLS_LAST_ACCESS: &str = "raw.open.ntcreatex_supersede";

/// At every how many looks whether a suite has ended its connections are looked at: some 70 ms, in which few that
/// opens a file over the link comes and goes.
const PORTS_EVERY: u32 = 32;

/// A LAN's worth of a link: suites that wait for timeouts of their own need no other.
pub(super) const LINK: [&str; 6] = ["--rate", "300Mbit", "--delay", "500us", "--queue", "1MB"];

/// Time limit of a suite of [`QUICK`], some thirty times its duration on a LAN.
pub const QUICK_LIMIT: Duration = Duration::from_secs(120);

/// Time limit of a suite of [`LONG`] or [`DIRECTORIES`].
pub const LONG_LIMIT: Duration = Duration::from_secs(600);

/// Identity and dialect of smbtorture.
///
/// Samba's clients sign each TREE_CONNECT of a session that has a key, and their check of the
/// negotiation, whatever signing was configured; anonymous sessions have no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TortureSession {
    /// Anonymous, by SMB 2.1: nothing is signed, which a node accelerates without a key.
    PlainOfNobody,
    /// Anonymous, by the newest dialect that both sides know; nothing is signed either.
    Nobody,
    /// The benchmark's account, by the newest dialect, with the default signing of both sides.
    Account,
    /// The bench's account, whose key the nodes have.
    Delegated(SmbProtection),
    /// Anonymous, by SMB 1: the suites of [`NT1`].
    Nt1,
}

impl TortureSession {
    fn options(self) -> Vec<String> {
        let account = format!("{USER}%{PASSWORD}");
        let words: &[&str] = match self {
            Self::PlainOfNobody => &["-U", "%", "--max-protocol=SMB2_10"],
            Self::Nobody => &["-U", "%"],
            Self::Account | Self::Delegated(_) => &["-U", &account],
            Self::Nt1 => &[
                "-U",
                "%",
                "--option=clientminprotocol=NT1",
                "--option=clientmaxprotocol=NT1",
            ],
        };
        let of_protection: &[&str] = match self {
            Self::PlainOfNobody | Self::Nobody | Self::Account | Self::Nt1 => &[],
            Self::Delegated(protection) => protection.stock_options(),
        };
        let words = words.iter().chain(of_protection);
        words.map(|word| (*word).to_owned()).collect()
    }

    /// A suite's whole name.
    #[must_use]
    pub fn suite(self, name: &str) -> String {
        match self {
            Self::Nt1 => name.to_owned(),
            Self::PlainOfNobody | Self::Nobody | Self::Account | Self::Delegated(_) => {
                format!("smb2.{name}")
            }
        }
    }

    /// Tells whether requests of such a session can be answered on the client's side of the WAN.
    #[must_use]
    pub fn is_accelerated(self) -> bool {
        match self {
            Self::PlainOfNobody | Self::Nobody | Self::Delegated(_) | Self::Nt1 => true,
            Self::Account => false,
        }
    }
}

/// Result of one smbtorture test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestVerdict {
    /// The test passed.
    Success,
    /// The test failed, or could not be carried out.
    Failure,
    /// smbtorture left it out.
    Skip,
}

/// Verdict on each test of the suites, by `suite.test`.
pub type TestVerdicts = BTreeMap<String, TestVerdict>;

/// Both runs.
#[derive(Clone, Debug, Default)]
pub struct SuiteComparison {
    /// Verdicts without nodes.
    pub direct: TestVerdicts,
    /// Through a pair of nodes.
    pub through: TestVerdicts,
    /// Accelerate stages of the near node, one for each of its flows.
    pub accelerate: Vec<AccelerationReason>,
    /// Number of requests of each suite that the near node answered: a lower bound, because short
    /// connections between two looks are not counted.
    pub answered: BTreeMap<String, u64>,
    /// Tests that passed through only as they were run once more.
    pub at_second_try: Vec<String>,
}

/// Result of one suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuiteTally {
    /// The suite.
    pub suite: String,
    /// Tests that passed direct.
    pub direct: usize,
    /// Number of those that also passed through.
    pub through: usize,
    /// See [`SuiteComparison::answered`].
    pub answered: u64,
}

impl SuiteComparison {
    /// Tests that passed direct and did not pass through, except for those about the last access.
    #[must_use]
    pub fn broken(&self) -> Vec<&str> {
        let passed = |verdicts: &TestVerdicts, name: &str| {
            verdicts.get(name).copied() == Some(TestVerdict::Success)
        };
        self.direct
            .keys()
            .filter(|name| passed(&self.direct, name) && !passed(&self.through, name))
            .filter(|name| *name != TELLS_LAST_ACCESS)
            .map(String::as_str)
            .collect()
    }

    /// Results of each suite.
    #[must_use]
    pub fn tallies(&self, suites: &[&str]) -> Vec<SuiteTally> {
        let passed = |verdicts: &TestVerdicts, name: &str| {
            verdicts.get(name).copied() == Some(TestVerdict::Success)
        };
        let of = |suite: &&str| {
            let prefix = format!("{suite}.");
            let names = self.direct.keys();
            let names: Vec<_> = names
                .filter(|name| name.starts_with(&prefix) && passed(&self.direct, name))
                .collect();
            SuiteTally {
                suite: (*suite).to_owned(),
                direct: names.len(),
                through: names
                    .iter()
                    .filter(|name| passed(&self.through, name))
                    .count(),
                answered: self.answered.get(*suite).copied().unwrap_or_default(),
            }
        };
        suites.iter().map(of).collect()
    }

    /// Number of tests that passed direct.
    #[must_use]
    pub fn passed_direct(&self) -> usize {
        let verdicts = self.direct.values();
        verdicts
            .filter(|verdict| **verdict == TestVerdict::Success)
            .count()
    }
}

/// Runs `suites`, of `smb2` but in a session by SMB 1, direct and through a pair of nodes, both at once.
///
/// # Errors
/// When a lab does not come up, or smbtorture cannot be started.
pub fn compare(
    environment: &ProgramEnvironment,
    suites: &[&str],
    session: TortureSession,
    limit: Duration,
) -> Result<SuiteComparison> {
    thread::scope(|scope| {
        let direct = scope.spawn(|| {
            let mut lane = stand(environment)?;
            Ok::<_, anyhow::Error>(run_all(&mut lane, suites, session, limit)?.0)
        });
        let mut lane = stand(environment)?;
        lane.delegate_key(matches!(session, TortureSession::Delegated(_)));
        // Its suites of durable handles test that the server grants them.
        lane.keep_durable();
        lane.start_nodes_alone(AccelerationMode::Application)?;
        let (through, answered) = run_all(&mut lane, suites, session, limit)?;
        let accelerate = lane.all_whys()?;
        let direct = direct
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let mut comparison = SuiteComparison {
            direct,
            through,
            accelerate,
            answered,
            at_second_try: Vec::new(),
        };
        let broken: Vec<String> = comparison.broken().into_iter().map(str::to_owned).collect();
        for test in broken {
            let (verdicts, _) = run(&lane, 0, &test, session, limit)?;
            if verdicts
                .values()
                .any(|verdict| *verdict == TestVerdict::Success)
            {
                comparison
                    .through
                    .insert(test.clone(), TestVerdict::Success);
                comparison.at_second_try.push(test);
            }
        }
        Ok(comparison)
    })
}

fn stand(environment: &ProgramEnvironment) -> Result<SmbLane> {
    let mut lane = SmbLane::create(environment, None)?;
    lane.set_words(LINK.map(str::to_owned).to_vec())?;
    Ok(lane)
}

/// Runs suites, as many at a time as there are shares for them.
fn run_all(
    lane: &mut SmbLane,
    suites: &[&str],
    session: TortureSession,
    limit: Duration,
) -> Result<(TestVerdicts, BTreeMap<String, u64>)> {
    let left = Mutex::new(suites.iter());
    let next = || left.lock().unwrap_or_else(|lock| lock.into_inner()).next();
    let work = |share: usize, lane: &SmbLane| -> Result<_> {
        let (mut verdicts, mut answered) = (TestVerdicts::new(), BTreeMap::new());
        while let Some(suite) = next() {
            let (of_suite, ports) = run(lane, share, suite, session, limit)?;
            verdicts.extend(of_suite);
            answered.insert((*suite).to_owned(), lane.answered_for(&ports)?);
        }
        Ok((verdicts, answered))
    };
    let (mut verdicts, mut answered) = (TestVerdicts::new(), BTreeMap::new());
    thread::scope(|scope| -> Result<()> {
        let shared: &SmbLane = lane;
        let work = &work;
        let threads: Vec<_> = (0..TORTURE_LANES)
            .map(|share| scope.spawn(move || work(share, shared)))
            .collect();
        for thread in threads {
            let joined = thread.join();
            let joined = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            verdicts.extend(joined.0);
            answered.extend(joined.1);
        }
        Ok(())
    })?;
    lane.check()?;
    Ok((verdicts, answered))
}

/// Runs a suite, or a test of one; how its tests ended, and the ports that it connected from.
fn run(
    lane: &SmbLane,
    share: usize,
    suite: &str,
    session: TortureSession,
    limit: Duration,
) -> Result<(TestVerdicts, BTreeSet<u16>)> {
    let log = lane.logs().join(format!("smbtorture-{suite}.log"));
    let mut smbtorture = lane.at_the_client("smbtorture")?;
    smbtorture
        .args(SmbLane::torture_arguments(share))
        .args(session.options())
        .arg(session.suite(suite))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log)?)
        .stderr(Stdio::null());
    let mut child = smbtorture.spawn().context("starting smbtorture")?;
    let mut ports = BTreeSet::new();
    let process = child.id();
    let mut looks = 0;
    let ended = wait::until(limit, suite, || {
        if looks % PORTS_EVERY == 0 {
            ports.extend(ports_of(process));
        }
        looks += 1;
        Ok(child.try_wait()?)
    });
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
        wait::not_interrupted()?;
    }
    let text = fs::read(&log)?;
    Ok((verdicts(suite, &String::from_utf8_lossy(&text)), ports))
}

/// Local ports of a process's connections at this moment: those of its sockets that proc_net(5)
/// lists.
fn ports_of(process: u32) -> BTreeSet<u16> {
    let files = fs::read_dir(format!("/proc/{process}/fd"));
    let sockets: BTreeSet<String> = files
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| {
            let link = fs::read_link(file.path()).ok()?;
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.trim_end_matches(']').to_owned())
        })
        .collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    local_ports(&table, &sockets)
}

/// The local ports of these sockets in a table of them: the second field is the local address, in
/// hexadecimal, and the tenth the socket.
fn local_ports(table: &str, sockets: &BTreeSet<String>) -> BTreeSet<u16> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (address, socket) = (fields.get(1)?, fields.get(9)?);
            let port = address.rsplit_once(':')?.1;
            let port = u16::from_str_radix(port, 16).ok()?;
            sockets.contains(*socket).then_some(port)
        })
        .collect()
}

/// Parses smbtorture's result lines (the subunit protocol, version 1).
fn verdicts(suite: &str, text: &str) -> TestVerdicts {
    text.lines()
        .filter_map(|line| {
            let (word, rest) = line.split_once(": ")?;
            let verdict = match word {
                "success" => TestVerdict::Success,
                "failure" | "error" => TestVerdict::Failure,
                "skip" => TestVerdict::Skip,
                _ => return None,
            };
            let test = rest.trim_end_matches('[').trim();
            Some((format!("{suite}.{test}"), verdict))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_from_what_smbtorture_prints() {
        let text = "\
using seed 1700000000
time: 2026-11-22 15:00:00.000000
test: eof
success: eof
test: position
failure: position [
../../source4/torture/smb2/read.c:142: (x) was 1, expected 2
]
skip: dir [
success of another kind
]
error: access [
";
        let found = verdicts("read", text);
        assert_eq!(found.len(), 4);
        assert_eq!(found["read.eof"], TestVerdict::Success);
        assert_eq!(found["read.position"], TestVerdict::Failure);
        assert_eq!(found["read.dir"], TestVerdict::Skip);
        assert_eq!(found["read.access"], TestVerdict::Failure);
    }

    #[test]
    fn suite_counts_tests_that_pass_direct() {
        let success = |names: &[&str]| -> TestVerdicts {
            let names = names.iter().map(|name| (*name).to_owned());
            names.map(|name| (name, TestVerdict::Success)).collect()
        };
        let comparison = SuiteComparison {
            direct: success(&["dir.a", "dir.b", "dirlease.a"]),
            through: success(&["dir.b", "dir.c", "dirlease.a"]),
            answered: BTreeMap::from([("dir".to_owned(), 7)]),
            ..SuiteComparison::default()
        };
        let tally = |suite: &str, direct, through, answered| SuiteTally {
            suite: suite.to_owned(),
            direct,
            through,
            answered,
        };
        assert_eq!(
            comparison.tallies(&["dir", "dirlease"]),
            [tally("dir", 2, 1, 7), tally("dirlease", 1, 1, 0)]
        );
    }

    #[test]
    fn ports_are_those_of_the_processes_sockets() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0A00000A:B2C4 0B00000A:01BD 01 00000000:00000000 02:000A7214 00000000     0        0 12345 2 0 20 4 30 10 -1
   1: 0A00000A:B2C6 0B00000A:01BD 01 00000000:00000000 02:000A7214 00000000     0        0 12346 2 0 20 4 30 10 -1
";
        let sockets = BTreeSet::from(["12346".to_owned()]);
        assert_eq!(local_ports(table, &sockets), BTreeSet::from([0xb2c6]));
    }

    #[test]
    fn test_that_passes_only_direct_is_broken() {
        let verdicts = |list: &[(&str, TestVerdict)]| -> TestVerdicts {
            list.iter()
                .map(|(name, verdict)| ((*name).to_owned(), *verdict))
                .collect()
        };
        let comparison = SuiteComparison {
            direct: verdicts(&[
                ("a", TestVerdict::Success),
                ("b", TestVerdict::Success),
                ("c", TestVerdict::Failure),
                ("d", TestVerdict::Success),
            ]),
            through: verdicts(&[("a", TestVerdict::Success), ("b", TestVerdict::Failure)]),
            ..SuiteComparison::default()
        };
        assert_eq!(comparison.broken(), ["b", "d"]);
        assert_eq!(comparison.passed_direct(), 3);
    }
}
