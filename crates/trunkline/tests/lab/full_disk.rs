//! Tests of a full disk under a packet log and under a certificate: unwritten data is reported, and
//! no file looks complete when it is not.
//!
//! The disk is a memory file system of some kilobytes that only the program under test sees, in a
//! mount namespace of its own.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use host::kernel;
use serde_json::Value;

use crate::setting::turn;

/// A wait that is longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Script that mounts the disk ($1, of $2 bytes), fills it up to $3 bytes, and executes the
/// following command.
const ON_SMALL_DISK: &str = "mount -t tmpfs -o size=$2 tmpfs \"$1\" && \
     head -c $3 /dev/zero >\"$1/filler\" && shift 3 && exec \"$@\"";

/// Script that does the same and lists the disk's files at the end.
const AND_LIST: &str = "mount -t tmpfs -o size=$2 tmpfs \"$1\" && disk=$1 && \
     head -c $3 /dev/zero >\"$1/filler\" && shift 3 && { \"$@\"; code=$?; \
     cd \"$disk\" && find . -type f; exit $code; }";

/// The program under test with a disk of that many bytes at `disk`, of which `taken` are used.
fn trunkline_on(disk: &Path, script: &str, bytes: u32, taken: u32) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .args([script, "sh"])
        .arg(disk)
        .args([bytes.to_string(), taken.to_string()])
        .arg(env!("CARGO_BIN_EXE_trunkline"));
    command
}

#[test]
fn certificate_without_room_for_samples_is_not_made() {
    let Some(_turn) = turn("certificate_without_room_for_samples_is_not_made", &[]) else {
        return;
    };
    // One page is free, which the first cell's samples take; or none, and no samples are kept.
    for (taken, options, hint) in [
        (4_096, &[][..], "--no-raw"),
        (8_192, &["--no-raw"][..], "certificate.json"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let output = trunkline_on(&disk, AND_LIST, 8_192, taken)
            .args(["emulate", "calibrate", "--quick", "--only", "queue"])
            .args(["--seed", "7", "--output"])
            .arg(disk.join("certificate.json"))
            .args(options)
            .env("XDG_STATE_HOME", folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("No space left on device"), "{said}");
        assert!(said.contains(hint), "{said}");
        let left = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(left.contains("./filler"), "{left}");
        assert!(!left.contains("certificate.json"), "{left}");
    }
}

/// A link between two namespaces that logs to a disk of 64 KiB.
struct LoggedLink {
    process: Child,
    folder: tempfile::TempDir,
    namespaces: [String; 2],
}

impl LoggedLink {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let namespaces = ["a", "b"].map(|end| format!("Dfull{end}{}", std::process::id()));
        for namespace in &namespaces {
            ip(&["netns", "add", namespace]);
        }
        let mut process = trunkline_on(&disk, ON_SMALL_DISK, 65_536, 0)
            .args(["emulate", "run", "--json", "--namespace-a"])
            .args([&namespaces[0], "--namespace-b", &namespaces[1]])
            .args(["--device-a", "D-a", "--device-b", "D-b"])
            .arg("--log")
            .arg(disk.join("log.csv"))
            .arg("--control")
            .arg(folder.path().join("control.sock"))
            .env("XDG_STATE_HOME", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let out = process.stdout.as_mut().unwrap();
        BufReader::with_capacity(6, out)
            .read_line(&mut ready)
            .unwrap();
        let link = Self {
            process,
            folder,
            namespaces,
        };
        assert_eq!(ready, "ready\n");
        for (index, device) in ["D-a", "D-b"].into_iter().enumerate() {
            let address = format!("10.98.0.{}/24", index + 1);
            let namespace = &link.namespaces[index];
            ip(&["-n", namespace, "addr", "add", &address, "dev", device]);
        }
        link
    }

    fn socket_in(&self, end: usize) -> UdpSocket {
        let file: PathBuf = Path::new("/run/netns").join(&self.namespaces[end]);
        let address = SocketAddr::from(([10, 98, 0, end as u8 + 1], 9));
        let socket = kernel::in_network_namespace(&file, || UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn log(&self) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_trunkline"))
            .args(["emulate", "status", "--json", "--control"])
            .arg(self.folder.path().join("control.sock"))
            .output()
            .unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status["log"].clone()
    }
}

impl Drop for LoggedLink {
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

#[test]
fn a_link_outlives_the_disk_of_its_log() {
    let Some(_turn) = turn("a_link_outlives_the_disk_of_its_log", &[]) else {
        return;
    };
    let mut link = LoggedLink::start();
    let (sender, receiver) = (link.socket_in(0), link.socket_in(1));
    let mut payload = [0; 64];
    let limit = Instant::now() + PATIENCE;
    let mut sent = 0_u64;
    let log = loop {
        // One at a time, so that none is lost and the link is seen to go on.
        for _ in 0..500 {
            sender.send_to(&sent.to_be_bytes(), "10.98.0.2:9").unwrap();
            let length = receiver.recv(&mut payload).unwrap();
            assert_eq!(payload[..length], sent.to_be_bytes());
            sent += 1;
        }
        let log = link.log();
        if log["error"].is_string() && log["lost_records"].as_u64() > Some(500) {
            break log;
        }
        assert!(Instant::now() < limit, "the disk never fills: {log}");
    };
    let error = log["error"].as_str().unwrap();
    assert!(error.contains("No space left on device"), "{log}");

    // What the log's disk has, which only the link sees, is what the status says.
    let process = link.process.id().to_string();
    let disk = link.folder.path().join("disk/log.csv");
    let seen = Path::new("/proc").join(&process).join("root");
    let file = seen.join(disk.strip_prefix("/").unwrap());
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("forward"));
    assert_eq!(log["records"].as_u64(), Some(rows.count() as u64), "{log}");
    assert!(text.ends_with('\n'), "{}", &text[text.len() - 60..]);

    let killed = Command::new("kill").arg(process).status().unwrap();
    assert!(killed.success());
    let (mut account, mut said) = (String::new(), String::new());
    let out = link.process.stdout.as_mut().unwrap();
    out.read_to_string(&mut account).unwrap();
    let errors = link.process.stderr.as_mut().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert!(link.process.wait().unwrap().success(), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("records"), "{said}");
    let account: Value = serde_json::from_str(&account).unwrap();
    let delivered = account["forward"]["delivered_packets"].as_u64();
    assert!(delivered >= Some(sent), "{account}");
}
