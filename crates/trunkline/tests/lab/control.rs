//! Tests of a running link's status and settings over its socket, and of the replay of its log.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use emulator::link::packet_log::{LogFiles, PacketLog};
use host::kernel;
use serde_json::{Value, json};

use crate::setting::turn;

/// A wait that is longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn trunkline() -> Command {
    Command::new(env!("CARGO_BIN_EXE_trunkline"))
}

/// A link between two namespaces of its own, with the addresses 10.99.0.1 and 10.99.0.2.
struct TestLink {
    process: Child,
    directory: tempfile::TempDir,
    namespaces: [String; 2],
    socket: PathBuf,
}

impl TestLink {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let process = std::process::id();
        let namespaces = ["a", "b"].map(|end| format!("E{name}{end}{process}"));
        for namespace in &namespaces {
            ip(&["netns", "add", namespace]);
        }
        let mut process = trunkline()
            .args(["emulate", "run", "--json", "--namespace-a"])
            .args([&namespaces[0], "--namespace-b", &namespaces[1]])
            .args(["--device-a", "E-a", "--device-b", "E-b", "--control"])
            .arg(&socket)
            .args(arguments)
            // What is known of this host is what this link finds out.
            .env("XDG_STATE_HOME", directory.path().join("state"))
            .current_dir(directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let out = process.stdout.as_mut().unwrap();
        BufReader::with_capacity(6, out)
            .read_line(&mut ready)
            .unwrap();
        assert_eq!(ready, "ready\n");
        let link = Self {
            process,
            directory,
            namespaces,
            socket,
        };
        for (index, device) in ["E-a", "E-b"].into_iter().enumerate() {
            let address = format!("10.99.0.{}/24", index + 1);
            let namespace = &link.namespaces[index];
            ip(&["-n", namespace, "addr", "add", &address, "dev", device]);
        }
        link
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket_in(&self, end: usize) -> UdpSocket {
        let file = Path::new("/run/netns").join(&self.namespaces[end]);
        let address = SocketAddr::from(([10, 99, 0, end as u8 + 1], 9));
        let socket = kernel::in_network_namespace(&file, || UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn command(&self, action: &str, arguments: &[&str]) -> Output {
        trunkline()
            .args(["emulate", action, "--control"])
            .arg(&self.socket)
            .args(arguments)
            .output()
            .unwrap()
    }

    fn status(&self) -> Value {
        let output = self.command("status", &["--json"]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Sends a line of one's own, and returns the answer.
    fn say(&self, line: &[u8]) -> Value {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    /// Stops the link and returns its account.
    fn stop(&mut self) -> Value {
        let process = self.process.id().to_string();
        let killed = Command::new("kill").arg(&process).status().unwrap();
        assert!(killed.success());
        let mut account = String::new();
        let out = self.process.stdout.as_mut().unwrap();
        out.read_to_string(&mut account).unwrap();
        assert!(self.process.wait().unwrap().success());
        serde_json::from_str(&account).unwrap()
    }
}

impl Drop for TestLink {
    fn drop(&mut self) {
        // Where the test has stopped it, there is nothing left to end.
        let _ = self.process.kill();
        let _ = self.process.wait();
        for namespace in &self.namespaces {
            ip(&["netns", "delete", namespace]);
        }
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments:?}: {said}");
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < limit, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

#[test]
fn settings_change_at_runtime_without_loss() {
    let Some(_turn) = turn("settings_change_at_runtime_without_loss", &[]) else {
        return;
    };
    // So slow that all packets wait in the queue while the settings change.
    let mut link = TestLink::start("set", &["--rate", "8kbit", "--queue", "1000packets"]);
    let (sender, receiver) = (link.socket_in(0), link.socket_in(1));
    // Few enough that the receiver's buffer holds all of them.
    const PACKETS: u32 = 100;
    for number in 0..PACKETS {
        let mut payload = [0; 500];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        sender.send_to(&payload, "10.99.0.2:9").unwrap();
    }
    wait_until("all packets are in the link", || {
        link.status()["forward"]["offered_packets"].as_u64() >= Some(PACKETS.into())
    });
    let before = link.status();
    assert!(
        before["forward"]["held_packets"].as_u64() > Some(50),
        "{before}"
    );
    assert_eq!(before["in_force"]["forward"]["rate"], "8kbit");

    let set = link.command("set", &["--rate", "100Mbit", "--delay", "1ms", "--json"]);
    assert!(set.status.success(), "{set:?}");
    let after: Value = serde_json::from_slice(&set.stdout).unwrap();
    assert_eq!(after["in_force"]["forward"]["rate"], "100Mbit");
    assert_eq!(after["in_force"]["back"]["delay"], "1ms");
    assert_eq!(after["in_force"]["forward"]["queue"], "1000packets");

    for number in 0..PACKETS {
        let mut payload = [0; 600];
        let length = receiver.recv(&mut payload).unwrap();
        assert_eq!((length, &payload[..4]), (500, &number.to_be_bytes()[..]));
    }
    // A preset is a whole link: of what was set before nothing is left.
    let set = link.command("set", &["--preset", "t1", "--loss", "1%", "--json"]);
    let after: Value = serde_json::from_slice(&set.stdout).unwrap();
    let back = &after["in_force"]["back"];
    assert_eq!(
        (&back["rate"], &back["delay"], &back["loss"]),
        (&"1.544Mbit".into(), &"10ms".into(), &"1%".into())
    );
    assert_eq!(back["queue"], "15kB");
    let account = link.stop();
    assert_eq!(account["forward"]["dropped_by_queue_packets"], 0);
    assert!(!link.socket.exists(), "the socket goes with the link");
}

#[test]
fn run_shorter_than_a_second_is_judged() {
    let Some(_turn) = turn("run_shorter_than_a_second_is_judged", &[]) else {
        return;
    };
    let mut link = TestLink::start("short", &[]);
    let sender = link.socket_in(0);
    // What is written to a device that is down is lost outside the model.
    ip(&["-n", &link.namespaces[1], "link", "set", "E-b", "down"]);
    sender.send_to(b"lost", "10.99.0.2:9").unwrap();
    wait_until("the far device has refused the packet", || {
        link.status()["forward"]["failed_writes_packets"].as_u64() > Some(0)
    });
    let account = link.stop();
    let reason = account["forward"]["not_held"].as_str().unwrap();
    assert!(reason.contains("not taken by the kernel"), "{reason}");
    assert_eq!(account["back"]["not_held"], Value::Null);
}

#[test]
fn invalid_request_is_refused_and_changes_nothing() {
    let Some(_turn) = turn("invalid_request_is_refused_and_changes_nothing", &[]) else {
        return;
    };
    let mut link = TestLink::start("bad", &["--rate", "10Mbit", "--seed", "7"]);
    let mode = fs::metadata(&link.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for (arguments, hint) in [
        (&["--rate", "0"][..], "no limit"),
        (&["--shaper", "rate=1Mbit,burst=100B"], "or more"),
        (
            &["--rate", "1Mbit", "--shaper", "rate=1Mbit,burst=2kB"],
            "contradict",
        ),
        (&["--seed", "8"], "the seed 7 cannot change"),
        (&["--trace", "/nowhere/trace"], "/nowhere/trace"),
        (&[], "name a setting to change"),
        // Nobody has looked what this host carries, and beside a link nobody may.
        (&["--rate", "1Gbit"], "trunkline emulate calibrate"),
    ] {
        let output = link.command("set", arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(hint), "{arguments:?}: {said}");
    }
    assert!(
        !link.path("state").exists(),
        "nothing was tried out beside the link"
    );
    let long = [b" ".repeat(70_000), b"\n".to_vec()].concat();
    for (line, hint) in [
        (&b"nonsense\n"[..], "request cannot be read"),
        (b"\xff\xfe\n", "request cannot be read"),
        (b"{\"ask\":\"stop\"}\n", "request cannot be read"),
        (
            b"{\"ask\":\"set\",\"settings\":{\"speed\":\"1\"}}\n",
            "it has rate",
        ),
        (
            b"{\"ask\":\"set\",\"settings\":{}}\n",
            "names no setting to change",
        ),
        (&long, "one line of less than"),
    ] {
        let answer = link.say(line);
        let said = answer["error"].as_str().unwrap_or_default();
        assert!(said.contains(hint), "{answer}");
        assert_eq!(answer["refused"], true, "{answer}");
    }
    assert_eq!(
        link.status()["settings"],
        json!({ "rate": "10Mbit", "seed": "7" })
    );
    link.stop();
}

#[test]
fn leftovers_of_a_killed_link_are_removed() {
    let Some(_turn) = turn("leftovers_of_a_killed_link_are_removed", &[]) else {
        return;
    };
    let mut link = TestLink::start("kill", &[]);
    link.process.kill().unwrap();
    link.process.wait().unwrap();
    assert!(link.socket.exists());
    let status = link.command("status", &[]);
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    assert_eq!(status.status.code(), Some(1), "{said}");
    assert!(said.contains("was killed"), "{said}");
    assert!(!link.socket.exists());
}

/// Ends its process, and removes its namespace.
struct NamesakeProcess {
    process: Child,
    namespace: String,
}

impl Drop for NamesakeProcess {
    fn drop(&mut self) {
        let process = self.process.id().to_string();
        // It removes its control socket, as one that is killed would not.
        let _ = Command::new("kill").arg(process).status();
        let _ = self.process.wait();
        ip(&["netns", "delete", &self.namespace]);
    }
}

#[test]
fn second_link_of_same_name_gets_another_socket() {
    let Some(_turn) = turn("second_link_of_same_name_gets_another_socket", &[]) else {
        return;
    };
    let device = format!("E{}", std::process::id());
    let start = |end: &str| {
        let namespace = format!("Esame{end}{}", std::process::id());
        ip(&["netns", "add", &namespace]);
        let process = trunkline()
            .args(["emulate", "run", "--device-a", &device])
            .args(["--namespace-a", &namespace, "--namespace-b", &namespace])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut link = NamesakeProcess { process, namespace };
        let mut ready = String::new();
        let out = link.process.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        link
    };
    let _first = start("a");
    let mut second = start("b");
    let name = format!("{device}-{}", second.process.id());
    let status = |name: &str, form: &[&str]| {
        let output = trunkline()
            .args(["emulate", "status", "--name", name])
            .args(form)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&status(&name, &["--json"])).unwrap();
    assert_eq!(json["process"], second.process.id());
    let socket = json["control"].as_str().unwrap();
    assert!(socket.ends_with(&format!("emulate-{name}.sock")), "{json}");
    assert!(status(&name, &[]).contains(&format!("name: {name}")));
    assert!(!status(&device, &[]).contains("name: "));

    let process = second.process.id().to_string();
    let killed = Command::new("kill").arg(process).status().unwrap();
    assert!(killed.success());
    let mut said = String::new();
    let errors = second.process.stderr.as_mut().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert!(said.contains(&format!("has the name {name}")), "{said}");
}

#[test]
fn outage_loss_is_not_reported_as_random() {
    let Some(_turn) = turn("outage_loss_is_not_reported_as_random", &[]) else {
        return;
    };
    let mut link = TestLink::start("out", &["--outage", "at=0s,for=1h"]);
    link.socket_in(0).send_to(b"lost", "10.99.0.2:9").unwrap();
    wait_until("the packet is lost", || {
        link.status()["forward"]["dropped_by_outage_packets"].as_u64() > Some(0)
    });
    let status = link.command("status", &[]);
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(said.contains("outage at=0s,for=1h"), "{said}");
    assert!(said.contains("lost in an outage, packets"), "{said}");
    let account = link.stop();
    assert_eq!(account["forward"]["dropped_by_loss_packets"], 0);
}

#[test]
fn closed_output_does_not_end_the_link() {
    let Some(_turn) = turn("closed_output_does_not_end_the_link", &[]) else {
        return;
    };
    let mut link = TestLink::start("pipe", &[]);
    for arguments in [
        &["status"][..],
        &["status", "--watch"],
        &["status", "--json"],
        &["status", "--prometheus"],
        &["set", "--delay", "1ms"],
        &["set", "--delay", "2ms", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = trunkline()
            .arg("emulate")
            .args(arguments)
            .arg("--control")
            .arg(&link.socket)
            .stdout(writer)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert_eq!(said, "", "{arguments:?}");
    }
    link.stop();
}

#[test]
fn rows_are_flushed_while_packets_keep_coming() {
    let Some(_turn) = turn("rows_are_flushed_while_packets_keep_coming", &[]) else {
        return;
    };
    let mut link = TestLink::start("rows", &["--log", "log.csv"]);
    let sender = link.socket_in(0);
    // Each question comes with a packet, so that there is no pause in which all could be written.
    wait_until("a row is written", || {
        sender.send_to(b"one more", "10.99.0.2:9").unwrap();
        link.status()["log"]["records"].as_u64() > Some(0)
    });
    let log = fs::read_to_string(link.path("log.csv")).unwrap();
    assert!(log.contains(",delivered,"), "{log}");
    link.stop();
}

#[test]
fn log_of_a_live_link_replays_completely() {
    let Some(_turn) = turn("log_of_a_live_link_replays_completely", &[]) else {
        return;
    };
    let mut link = TestLink::start(
        "log",
        &[
            "--rate",
            "20Mbit",
            "--delay",
            "2ms",
            "--jitter",
            "1ms,exponential,reorder",
            "--loss",
            "5%,burst=2",
            "--duplicate",
            "2%",
            "--corrupt",
            "2%",
            "--queue",
            "20packets",
            "--aqm-back",
            "codel",
            "--log",
            "log.csv",
            "--pcapng",
            "log.pcapng",
        ],
    );
    let (a, b) = (link.socket_in(0), link.socket_in(1));
    let send = |count: usize| {
        for number in 0..count {
            let payload = vec![0; 20 + number * 7 % 1_400];
            a.send_to(&payload, "10.99.0.2:9").unwrap();
            b.send_to(&payload, "10.99.0.1:9").unwrap();
        }
    };
    send(400);
    let set = link.command("set", &["--rate", "5Mbit", "--loss-back", "none"]);
    assert!(set.status.success(), "{set:?}");
    send(400);
    let metrics = link.command("status", &["--prometheus"]);
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    assert!(
        metrics.contains("trunkline_link_offered_packets_total{link=\"E-a\""),
        "{metrics}"
    );
    let account = link.stop();

    let replay = |log: &Path| {
        let output = trunkline()
            .args(["emulate", "replay", "--json"])
            .arg(log)
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let (code, report) = replay(&link.path("log.csv"));
    assert_eq!(code, Some(0), "{report:#}");
    for way in ["forward", "back"] {
        assert_eq!(report[way]["differing"], 0, "{report:#}");
        assert_eq!(report[way]["not_compared"], 0, "{report:#}");
        assert_eq!(
            report[way]["packets"], account[way]["offered_packets"],
            "{way}"
        );
    }
    // One nanosecond is a difference.
    let log = fs::read_to_string(link.path("log.csv")).unwrap();
    let row = log
        .lines()
        .find(|line| line.contains(",delivered,"))
        .unwrap();
    let fields: Vec<&str> = row.split(',').collect();
    let at: u64 = fields[6].parse().unwrap();
    let mut other = fields.clone();
    let later = (at + 1).to_string();
    other[6] = &later;
    fs::write(
        link.path("other.csv"),
        log.replacen(row, &other.join(","), 1),
    )
    .unwrap();
    let (code, report) = replay(&link.path("other.csv"));
    assert_eq!(code, Some(1), "{report:#}");

    if let Ok(tshark) = Command::new("tshark")
        .args(["-T", "fields", "-e", "frame.comment", "-r"])
        .arg(link.path("log.pcapng"))
        .output()
    {
        let said = String::from_utf8_lossy(&tshark.stderr).into_owned();
        assert!(tshark.status.success(), "{said}");
        let comments = String::from_utf8(tshark.stdout).unwrap();
        let rows = log.lines().filter(|line| !line.starts_with('#')).count() - 1;
        let dropped = comments
            .lines()
            .filter(|line| line.contains(": lost "))
            .count();
        let lost = log.lines().filter(|line| line.contains(",lost,")).count();
        assert_eq!(dropped, lost);
        assert!(
            comments.lines().count() > rows,
            "deliveries stand there twice"
        );
    }
}

#[test]
fn unwritable_log_is_refused_before_the_start() {
    let files = LogFiles {
        csv: Some("/nowhere/log.csv".into()),
        pcapng: None,
    };
    let error = PacketLog::create(&files)
        .err()
        .expect("there is no such directory");
    assert!(
        format!("{error:#}").contains("/nowhere/log.csv"),
        "{error:#}"
    );
}

#[test]
fn presets_are_listed_with_their_sources() {
    let output = trunkline()
        .args(["emulate", "presets", "--json"])
        .output()
        .unwrap();
    let presets: Value = serde_json::from_slice(&output.stdout).unwrap();
    let presets = presets["presets"].as_array().unwrap();
    let t1 = presets
        .iter()
        .find(|preset| preset["name"] == "t1")
        .unwrap();
    assert_eq!(t1["back"]["rate"], "1.544Mbit");
    assert!(t1["sources"]["rate"].as_str().unwrap().contains("G.704"));
    let unknown = trunkline()
        .args(["emulate", "presets", "4g"])
        .output()
        .unwrap();
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("lte"));
}
