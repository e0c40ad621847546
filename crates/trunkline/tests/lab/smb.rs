//! Tests of SMB through a pair of nodes: smbtorture compared with a direct run, and the benchmark's
//! clients.

use std::collections::BTreeMap;
use std::process::Command;

use bench::smb::kerberos::{self, KerberosTestBed};
use bench::smb::torture::{self, SuiteComparison, TortureSession};
use bench::smb::{ClientPython, SmbProtection, nt1, protected};
use host::command;
use lab::servers::ServerKind;
use serde_json::Value;

use crate::setting::{environment, shared_turn, smb_python};

/// Tells whether this machine has a program; if not, prints what is left out.
fn has(program: &str, package: &str) -> bool {
    let found = command::find(program).is_some();
    if !found {
        eprintln!("not run: {program} is missing (apt-get install {package})");
    }
    found
}

fn gate(name: &str, suites: &[&str], session: TortureSession, limit: std::time::Duration) {
    let Some(_turn) = shared_turn(name, &[ServerKind::Smb]) else {
        return;
    };
    if !has("smbtorture", "samba-testsuite") {
        return;
    }
    let comparison =
        torture::compare(&environment(), suites, session, limit).expect("both labs stand");
    for suite in suites {
        let prefix = format!("{suite}.");
        let ran = comparison.direct.keys();
        assert!(
            ran.filter(|name| name.starts_with(&prefix)).count() > 0,
            "{} ran no test",
            session.suite(suite)
        );
    }
    assert!(comparison.passed_direct() > suites.len());
    for tally in comparison.tallies(suites) {
        eprintln!(
            "{session:?} {}: {} direct, {} through, {} requests answered",
            session.suite(&tally.suite),
            tally.direct,
            tally.through,
            tally.answered
        );
    }
    for test in &comparison.at_second_try {
        let test = session.suite(test);
        eprintln!("{session:?} {test}: passed at a second try");
    }
    went_through_the_nodes(&comparison, session);
    let broken = comparison.broken();
    assert!(broken.is_empty(), "these pass direct alone: {broken:?}");
}

/// The near node must have carried the flows with its accelerator for SMB, and have answered
/// requests of sessions that go unsigned, or whose key it has. Those of an account sign, and are let go
/// without its key.
fn went_through_the_nodes(comparison: &SuiteComparison, session: TortureSession) {
    let flows = &comparison.accelerate;
    assert!(flows.iter().any(|why| why.did == "smb"), "{flows:?}");
    let answered: u64 = flows.iter().map(|why| why.answered).sum();
    assert!(answered > 0 || !session.is_accelerated(), "{flows:?}");
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in flows.iter().filter_map(|why| why.why_not.as_deref()) {
        *reasons.entry(reason).or_default() += 1;
    }
    eprintln!(
        "smbtorture: {} flows, {answered} requests answered, {reasons:?}",
        flows.len()
    );
}

#[test]
fn smbtorture_results_match_direct_ones() {
    for session in [
        TortureSession::PlainOfNobody,
        TortureSession::Delegated(SmbProtection::Gmac),
    ] {
        quick_gate(session);
    }
}

#[test]
fn smbtorture_smb1_results_match_direct_ones() {
    gate(
        "smbtorture by SMB 1",
        &torture::NT1_QUICK,
        TortureSession::Nt1,
        torture::QUICK_LIMIT,
    );
}

/// The same in every other kind of session.
mod quick_gate_of_smbtorture {
    use super::{SmbProtection, TortureSession, quick_gate};

    #[test]
    #[ignore = "takes a minute"]
    fn of_nobody() {
        quick_gate(TortureSession::Nobody);
    }

    #[test]
    #[ignore = "takes a minute"]
    fn of_an_account() {
        quick_gate(TortureSession::Account);
    }

    #[test]
    #[ignore = "takes a minute"]
    fn delegated() {
        quick_gate(TortureSession::Delegated(SmbProtection::Off));
    }

    #[test]
    #[ignore = "takes a minute"]
    fn by_hmac() {
        quick_gate(TortureSession::Delegated(SmbProtection::Hmac));
    }

    #[test]
    #[ignore = "takes a minute"]
    fn by_cmac() {
        quick_gate(TortureSession::Delegated(SmbProtection::Cmac));
    }

    #[test]
    #[ignore = "takes a minute"]
    fn encrypted() {
        quick_gate(TortureSession::Delegated(SmbProtection::Encrypted));
    }
}

fn quick_gate(session: TortureSession) {
    let suites = torture::possible(&torture::QUICK, session);
    gate(
        "smbtorture, quick gate",
        &suites,
        session,
        torture::QUICK_LIMIT,
    );
}

/// Suites of leases, oplocks and other client caching, which wait for breaks that are not
/// acknowledged. `cargo test -p trunkline --test lab -- --ignored --nocapture long_profile` lists
/// the result of each.
mod long_profile_of_smbtorture {
    use super::{SmbProtection, TortureSession, gate, long_profile, torture};

    fn pass_through(session: TortureSession) {
        long_profile(&torture::LONG, session);
    }

    #[test]
    #[ignore = "takes five minutes"]
    fn unsigned() {
        pass_through(TortureSession::PlainOfNobody);
    }

    #[test]
    #[ignore = "takes five minutes"]
    fn by_hmac() {
        pass_through(TortureSession::Delegated(SmbProtection::Hmac));
    }

    #[test]
    #[ignore = "takes five minutes"]
    fn by_cmac() {
        pass_through(TortureSession::Delegated(SmbProtection::Cmac));
    }

    #[test]
    #[ignore = "takes five minutes"]
    fn by_gmac() {
        pass_through(TortureSession::Delegated(SmbProtection::Gmac));
    }

    #[test]
    #[ignore = "takes some minutes"]
    fn by_smb1() {
        let name = "smbtorture, long profile";
        gate(
            name,
            &torture::NT1,
            TortureSession::Nt1,
            torture::LONG_LIMIT,
        );
    }

    #[test]
    #[ignore = "takes five minutes"]
    fn encrypted() {
        pass_through(TortureSession::Delegated(SmbProtection::Encrypted));
    }
}

/// The same of large directories.
mod long_profile_of_directories {
    use super::{SmbProtection, TortureSession, long_profile, torture};

    fn pass_through(session: TortureSession) {
        long_profile(&torture::DIRECTORIES, session);
    }

    #[test]
    #[ignore = "takes ten minutes"]
    fn unsigned() {
        pass_through(TortureSession::PlainOfNobody);
    }

    #[test]
    #[ignore = "takes ten minutes"]
    fn by_hmac() {
        pass_through(TortureSession::Delegated(SmbProtection::Hmac));
    }

    #[test]
    #[ignore = "takes ten minutes"]
    fn by_cmac() {
        pass_through(TortureSession::Delegated(SmbProtection::Cmac));
    }

    #[test]
    #[ignore = "takes ten minutes"]
    fn by_gmac() {
        pass_through(TortureSession::Delegated(SmbProtection::Gmac));
    }

    #[test]
    #[ignore = "takes ten minutes"]
    fn encrypted() {
        pass_through(TortureSession::Delegated(SmbProtection::Encrypted));
    }
}

fn long_profile(suites: &[&'static str], session: TortureSession) {
    let suites = torture::possible(suites, session);
    let name = "smbtorture, long profile";
    gate(name, &suites, session, torture::LONG_LIMIT);
}

#[test]
fn stock_clients_are_answered_for_every_algorithm() {
    let Some(_turn) = shared_turn("protected sessions", &[ServerKind::Smb]) else {
        return;
    };
    let exchanges = protected::exchange(&environment()).expect("every session does its work");
    assert_eq!(exchanges.len(), 9);
    for exchange in exchanges {
        assert!(exchange.is_identical, "{exchange:?}");
        assert_eq!(exchange.accelerate.did, "smb", "{exchange:?}");
        assert!(exchange.accelerate.answered > 0, "{exchange:?}");
    }
}

#[test]
fn smb1_client_is_answered_and_file_stays_readable() {
    let Some(_turn) = shared_turn("smb by NT1", &[ServerKind::Smb]) else {
        return;
    };
    if !has("smbclient", "smbclient") {
        return;
    }
    // By IPv4 and by IPv6.
    for exchange in nt1::exchange(&environment()).expect("the clients do their work") {
        assert!(exchange.is_identical, "{exchange:?}");
        assert_eq!(exchange.accelerate.did, "smb", "{exchange:?}");
        assert!(exchange.accelerate.answered > 0, "{exchange:?}");
        assert_eq!(exchange.accelerate.why_not, None, "{exchange:?}");
    }
}

#[test]
fn own_client_accepts_signed_encrypted_and_leased_answers() {
    let Some(_turn) = shared_turn("protected sessions, smbprotocol", &[ServerKind::Smb]) else {
        return;
    };
    let Some(python) = smb_python() else {
        eprintln!("not run: no Python with smbprotocol (scripts/install.sh test)");
        return;
    };
    let clients = ClientPython::find(&python).expect("the installed Python has smbprotocol");
    let results = protected::exchange_serially(&environment(), &clients)
        .expect("every session does its work");
    assert_eq!(results.len(), 14);
    for result in results {
        let name = result.cell.name();
        assert_eq!(result.faults, Vec::<String>::new(), "{name}");
        assert!(result.bytes > 0, "{name}");
        let answered = result.accelerate.map_or(0, |why| why.answered);
        assert!(answered > 0, "{name}");
    }
}

#[test]
fn kerberos_sessions_are_accelerated_with_the_service_keytab() {
    let Some(_turn) = shared_turn("smb by Kerberos", &[ServerKind::Smb]) else {
        return;
    };
    let programs = [("krb5kdc", "krb5-kdc"), ("smbclient", "smbclient")];
    if !programs
        .iter()
        .all(|(program, package)| has(program, package))
    {
        return;
    }
    let mut stand = KerberosTestBed::create(&environment()).expect("the realm and the lab stand");
    let [by_hmac, by_cmac, long_key, short_key] = kerberos::PROTECTIONS;
    for protection in [by_hmac, by_cmac, long_key] {
        let transfer = stand.transfer(protection).expect("smbclient transfers");
        let why = &transfer.accelerate;
        assert!(transfer.is_identical, "{}", protection.name);
        assert_eq!(why.did, "smb", "{}: {why:?}", protection.name);
        assert!(why.answered > 0, "{}: {why:?}", protection.name);
        assert_eq!(why.why_not, None, "{}", protection.name);
    }
    // A key that the node does not have yet, and then has.
    stand.renew_keys().expect("the service gets new keys");
    let transfer = stand.transfer(by_cmac).expect("smbclient transfers");
    assert!(transfer.is_identical);
    let why = &transfer.accelerate;
    assert_eq!(why.answered, 0, "{why:?}");
    let why_not = why.why_not.as_deref().expect("nothing was accelerated");
    assert!(
        why_not.contains("no key in the far node's keytab decrypts"),
        "{why_not}"
    );
    let remedy = why.remedy.as_deref().expect("something would help");
    assert!(remedy.contains("[credentials]"), "{remedy}");
    stand.delegate_again().expect("the node reads its keytab");
    let transfer = stand.transfer(short_key).expect("smbclient transfers");
    assert!(transfer.is_identical);
    let why = &transfer.accelerate;
    assert!(why.answered > 0, "{why:?}");
    // Names are for `why`, which asks for leave, and not for logs.
    let logs = stand.node_logs().expect("the nodes have logs");
    assert!(logs.contains("read the keytab again") && !logs.contains("LAB.TEST"));
}

/// Results of the cells with these names, which must all be measured; `None` without the Python
/// that their clients need.
fn bench(names: &str) -> Option<Vec<Value>> {
    let Some(python) = smb_python() else {
        eprintln!("not run: no Python with smbprotocol (scripts/install.sh test)");
        return None;
    };
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["bench", "smb", "--json", "--cells", names])
        .env("TRUNKLINE_SMB_PYTHON", python)
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("it writes JSON");
    assert_eq!(document["not_measured"], Value::Array(vec![]), "{errors}");
    document["figures"]["cells"].as_array().cloned()
}

#[test]
fn bench_counts_round_trips_and_the_clients_operations() {
    let Some(_turn) = shared_turn("bench smb", &[ServerKind::Smb]) else {
        return;
    };
    let Some(cells) = bench("listing/OC-1/30ms/off/baseline,listing/OC-1/30ms/off/application")
    else {
        return;
    };
    let [baseline, application] = &cells[..] else {
        panic!("{} cells", cells.len());
    };
    for cell in [baseline, application] {
        assert_eq!(cell["files"], 1_000);
        assert_eq!(cell["faults"], Value::Array(vec![]), "{cell}");
        assert_eq!(cell["signing"], "off");
        assert!(cell["server_saw_closes"].as_u64() > Some(0), "{cell}");
        assert!(cell["wan_round_trips"].is_f64(), "{cell}");
    }
    // CREATE, two QUERY_DIRECTORY, CLOSE, and the same again for the free space: never fewer than
    // four without an accelerator. How many it says is a difference of two times, which a busy
    // machine makes anything; that they cannot be waited for in less it does not alter.
    assert!(
        baseline["seconds"].as_f64() > Some(4.0 * 0.060),
        "{baseline}"
    );
    assert!(baseline["accelerate"].is_null());
    assert!(application["accelerate"]["did"].is_string());
}

#[test]
fn small_files_open_ahead_despite_another_clients_changes() {
    let Some(_turn) = shared_turn("bench smb, relaxed", &[ServerKind::Smb]) else {
        return;
    };
    // On a busy machine the second client may change too little while the first one reads.
    let mut attempts = 3;
    let cell = loop {
        let Some(mut cells) = bench("small-files-read/OC-1/30ms/off/relaxed") else {
            return;
        };
        let cell = cells.remove(0);
        // No content is out of date, however busy the machine is.
        assert_eq!(cell["freshness"]["outdated_contents"], 0, "{cell}");
        let faults = cell["faults"].as_array().expect("a list");
        let is_too_quiet = |fault: &Value| {
            fault
                .as_str()
                .is_some_and(|fault| fault.starts_with("the second client changed no"))
        };
        if faults.is_empty() {
            break cell;
        }
        attempts -= 1;
        assert!(
            faults.iter().all(is_too_quiet) && attempts > 0,
            "{faults:?} {cell}"
        );
    };
    assert_eq!(cell["mode"], "application");
    assert_eq!(cell["consistency"], "relaxed");
    assert_eq!(cell["freshness"]["bound_ms"], 1_000.0);
    // A file takes CREATE, READ and CLOSE; what was answered here has cost no round trip. The longer a
    // busy machine takes, the more files change meanwhile, and each of them costs round trips.
    let files = cell["files"].as_u64().expect("a count");
    let answered = cell["accelerate"]["answered"].as_u64().expect("a count");
    let crossed = 3.0 - answered as f64 / files as f64;
    assert!(crossed <= 1.0, "{crossed} round trips each: {cell}");
}
