//! Tests of `trunkline estimate` on files, directories, standard input and captures; they need no
//! privileges.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use host::kernel::{self, ProcessSignal};
use vocab::SeededRandom;

const MEBIBYTE: u64 = 1 << 20;

fn estimate(arguments: &[&str]) -> (Option<i32>, serde_json::Value, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["estimate", "--json"])
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    let document = serde_json::from_slice(&stdout).unwrap_or_default();
    (status.code(), document, said)
}

fn number(value: &serde_json::Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn noise(length: u64, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn files_go_in_order_and_repeats_cost_little() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let data = noise(MEBIBYTE, 1);
    fs::create_dir(root.join("tree")).unwrap();
    fs::write(root.join("tree/a"), &data).unwrap();
    fs::write(root.join("tree/b"), &data).unwrap();
    std::os::unix::fs::symlink("a", root.join("tree/link")).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    let tree = root.join("tree").display().to_string();
    let (code, document, said) = estimate(&[&tree, &root.join("empty").display().to_string()]);
    assert_eq!(code, Some(0), "{said}");
    let items = document["items"].as_array().unwrap();
    let name = |index: usize| items[index]["path"].as_str().unwrap();
    assert_eq!(name(0), format!("{tree}/a"));
    assert_eq!(name(1), format!("{tree}/b"));
    assert_eq!(items.len(), 3);
    assert_eq!(number(&items[0]["bytes"]), MEBIBYTE);
    assert!(number(&items[0]["wire_bytes"]) >= MEBIBYTE);
    assert!(number(&items[1]["wire_bytes"]) < MEBIBYTE / 50);
    assert_eq!(number(&items[2]["bytes"]), 0);
    assert!(document["encode_gbit_s"].as_f64().unwrap() > 0.0);
    assert!(document["decode_gbit_s"].as_f64().unwrap() > 0.0);
    let skipped = document["skipped"][0]["path"].as_str().unwrap();
    assert_eq!(skipped, format!("{tree}/link"));
    // The same data, the same bytes.
    let (_, again, _) = estimate(&[&tree]);
    assert_eq!(again["items"][1]["wire_bytes"], items[1]["wire_bytes"]);
}

#[test]
fn dictionary_survives_between_calls_and_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, noise(2 * MEBIBYTE, 2)).unwrap();
    let kept = directory.path().join("kept").display().to_string();
    let file = file.display().to_string();
    let (code, cold, said) = estimate(&["--dictionary", &kept, &file]);
    assert_eq!(code, Some(0), "{said}");
    assert!(number(&cold["wire_bytes"]) >= 2 * MEBIBYTE);
    // Killed in the middle of another: it waits for more when the signal comes.
    let mut killed = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["estimate", "--dictionary", &kept, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = killed.stdin.take().unwrap();
    input.write_all(&noise(4 * MEBIBYTE, 3)).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (code, warm, said) = estimate(&["--dictionary", &kept, &file]);
    assert_eq!(code, Some(0), "{said}");
    assert!(number(&warm["wire_bytes"]) < MEBIBYTE / 20, "{warm}");
    // Without a directory nothing is known.
    let (_, other, _) = estimate(&[&file]);
    assert!(number(&other["wire_bytes"]) >= 2 * MEBIBYTE);
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// A disk that is full, as far as a process can be made to believe it: files may have a MiB.
#[test]
fn unwritable_dictionary_is_named_and_loses_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, noise(4 * MEBIBYTE, 6)).unwrap();
    let output = Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_trunkline"))
        .args(["estimate", "--json", "--dictionary"])
        .arg(directory.path().join("kept"))
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("check if the disk is full"), "{said}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(number(&document["bytes"]), 4 * MEBIBYTE);
    assert!(number(&document["unwritten_chunks"]) > 100);
}

#[test]
fn link_to_itself_and_empty_capture_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::os::unix::fs::symlink("itself", path("itself")).unwrap();
    let (code, _, said) = estimate(&[&path("itself")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("itself"), "{said}");
    // A directory that holds links to itself and above is walked once.
    fs::create_dir(path("tree")).unwrap();
    fs::write(path("tree/file"), "x").unwrap();
    std::os::unix::fs::symlink("..", path("tree/up")).unwrap();
    let (code, document, said) = estimate(&[&path("tree")]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(number(&document["bytes"]), 1);
    // The head of a capture and nothing else; its first bytes only.
    fs::write(path("none.pcap"), TcpdumpCapture::new().0).unwrap();
    let (code, document, said) = estimate(&[&path("none.pcap")]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(number(&document["captures"][0]["connections"]), 0);
    fs::write(path("cut.pcap"), &TcpdumpCapture::new().0[..10]).unwrap();
    let (code, document, said) = estimate(&[&path("cut.pcap")]);
    assert_eq!(code, Some(1), "{said}");
    assert!(document["skipped"][0]["reason"].is_string(), "{document}");
}

#[test]
fn standard_input_is_an_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["estimate", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&[b'x'; 100_000]).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["items"][0]["path"], "-");
    assert_eq!(number(&document["bytes"]), 100_000);
    assert!(number(&document["wire_bytes"]) < 2_000);
}

/// A pipe without a writer, alone and after other input.
#[test]
fn waiting_for_a_pipe_ends_with_an_interruption() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe").display().to_string();
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for arguments in [&[&pipe[..]][..], &["-"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_trunkline"))
            .arg("estimate")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        // The signal would end a process that does not catch it yet.
        let caught = |id: u32| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
            mask >> 1 & 1 == 1
        };
        while !caught(child.id()) {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::yield_now();
        }
        kernel::send_signal(child.id(), ProcessSignal::Interrupt).unwrap();
        let output = child.wait_with_output().unwrap();
        drop(input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("interrupted"), "{arguments:?}: {said}");
    }
}

#[test]
fn missing_or_endless_input_is_refused_first() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept").display().to_string();
    for (arguments, hint) in [
        (&["/nowhere/at/all"][..], "/nowhere/at/all"),
        (&["--dictionary", &kept, "/dev/zero"], "/dev/zero"),
        (&[], "FILE|DIR|PCAP"),
        (&["--disk", "1GiB", "/etc/hostname"], "--dictionary"),
    ] {
        let (code, _, said) = estimate(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains(hint), "{arguments:?}: {said}");
    }
    assert!(!Path::new(&kept).exists());
}

/// A capture as tcpdump writes one.
struct TcpdumpCapture(Vec<u8>);

impl TcpdumpCapture {
    fn new() -> Self {
        let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1];
        Self(header.map(u32::to_le_bytes).concat())
    }

    /// An Ethernet frame with a VLAN tag and IPv4, or without one and IPv6.
    fn segment(&mut self, at_ms: u32, way: (u16, u16), sequence: u32, flags: u8, payload: &[u8]) {
        let (from, to) = way;
        let is_v6 = from.max(to) >= 50_000;
        let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
        let tcp = [
            &ports[..],
            &sequence.to_be_bytes(),
            &[0; 4],
            &[0x50, flags, 255, 255, 0, 0, 0, 0],
            payload,
        ]
        .concat();
        let host = |port: u16| if port == 80 { 2 } else { 1 };
        let mut frame = vec![0; 12];
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((tcp.len() as u16).to_be_bytes());
            frame.extend([6, 64]);
            for port in [from, to] {
                frame.extend([
                    0x20,
                    1,
                    0xd,
                    0xb8,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    host(port),
                ]);
            }
        } else {
            frame.extend([0x81, 0, 0, 7, 8, 0, 0x45, 0]);
            frame.extend((20 + tcp.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
            for port in [from, to] {
                frame.extend([192, 0, 2, host(port)]);
            }
        }
        frame.extend(tcp);
        let length = frame.len() as u32;
        let head = [at_ms / 1_000, at_ms % 1_000 * 1_000, length, length];
        self.0.extend(head.map(u32::to_le_bytes).concat());
        self.0.extend(frame);
    }

    /// A request and an answer, the answer's segments out of order and one of them twice.
    fn exchange(&mut self, at_ms: u32, client: u16, answer: &[u8]) {
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        const FIN_ACK: u8 = 17;
        let (out, back) = ((client, 80), (80, client));
        self.segment(at_ms, out, 99, SYN, b"");
        self.segment(at_ms + 1, back, u32::MAX - 500, SYN | ACK, b"");
        self.segment(at_ms + 2, out, 100, ACK, b"GET / HTTP/1.1\r\n\r\n");
        let mut segments: Vec<(usize, &[u8])> = (0..answer.len())
            .step_by(1_400)
            .zip(answer.chunks(1_400))
            .collect();
        segments.swap(3, 5);
        segments.insert(20, segments[10]);
        for (offset, payload) in segments {
            let sequence = (u32::MAX - 499).wrapping_add(offset as u32);
            self.segment(at_ms + 3, back, sequence, ACK, payload);
        }
        let end = (u32::MAX - 499).wrapping_add(answer.len() as u32);
        self.segment(at_ms + 4, back, end, FIN_ACK, b"");
        self.segment(at_ms + 5, out, 118, FIN_ACK, b"");
    }
}

#[test]
fn capture_is_split_into_the_hosts_data() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("two.pcap").display().to_string();
    let answer = noise(300_000, 4);
    let mut capture = TcpdumpCapture::new();
    capture.exchange(1_000, 40_000, &answer);
    capture.exchange(2_000, 50_000, &answer);
    fs::write(&path, &capture.0).unwrap();
    let (code, document, said) = estimate(&[&path]);
    assert_eq!(code, Some(0), "{said}");
    let items: Vec<(&str, u64, u64)> = document["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            let path = item["path"].as_str().unwrap();
            (path, number(&item["bytes"]), number(&item["wire_bytes"]))
        })
        .collect();
    assert_eq!(items.len(), 4, "{items:?}");
    assert_eq!(items[0].0, format!("{path} 192.0.2.1:40000 > 192.0.2.2:80"));
    assert_eq!(items[0].1, 18);
    assert_eq!(items[1].1, 300_000);
    assert_eq!(
        items[3].0,
        format!("{path} [2001:db8::2]:80 > [2001:db8::1]:50000")
    );
    assert_eq!(items[3].1, 300_000);
    assert!(items[1].2 >= 300_000 && items[3].2 < 10_000, "{items:?}");
    let notes = &document["captures"][0];
    assert_eq!(number(&notes["connections"]), 2);
    assert_eq!(number(&notes["retransmitted_bytes"]), 2_800);
    assert!(number(&notes["reordered_segments"]) >= 2);
    assert_eq!(number(&notes["gaps"]), 0);
    // As a file it is one.
    let (_, document, _) = estimate(&["--as-files", &path]);
    assert_eq!(number(&document["bytes"]), capture.0.len() as u64);
}

#[test]
fn damaged_capture_is_sent_partly_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut.pcap").display().to_string();
    let mut capture = TcpdumpCapture::new();
    capture.exchange(1_000, 40_000, &noise(300_000, 5));
    let whole = capture.0.len();
    fs::write(&path, &capture.0[..whole / 2]).unwrap();
    let (code, document, said) = estimate(&[&path]);
    assert_eq!(code, Some(1), "{said}");
    let reason = document["skipped"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("in the middle of a packet"), "{reason}");
    assert!(number(&document["bytes"]) > 100_000);
    // A length that cannot be, in the middle.
    capture.0[whole / 2..whole / 2 + 4_000].fill(0xff);
    fs::write(&path, &capture.0).unwrap();
    let (code, document, said) = estimate(&[&path]);
    assert_eq!(code, Some(1), "{said}");
    let reason = document["skipped"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("damaged behind"), "{reason}");
}
