//! Tests of captures as users have them: taken at the sender, in the middle or at the receiver,
//! begun late, truncated, without a transfer, or of another format; each with its output and exit
//! code.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Round trip in microseconds, without delay at the receiver.
const RTT_US: u64 = 40_000;
const SEGMENTS: u32 = 400;
const SEGMENT_BYTES: u32 = 1_448;
/// Segments on their way at most: the receiver's window.
const WINDOW: usize = 10;
/// Gap between two segments of the first window.
const GAP_US: u64 = 1_200;
/// Length of the headers with timestamps, which is the part of each packet that the captures keep.
const HEADERS: usize = 52;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const FIRST: u32 = 1_000;

/// A TCP packet between 192.0.2.1 and 192.0.2.2.
struct TcpPacket {
    at_us: u64,
    is_from_sender: bool,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    /// The sender's timestamp and its echo of the other's, in milliseconds.
    stamps: [u32; 2],
    payload: u32,
}

impl TcpPacket {
    /// Record of a pcap file of raw IP packets.
    fn record(&self) -> Vec<u8> {
        let wire = HEADERS as u32 + self.payload;
        let (from, to) = match self.is_from_sender {
            true => ((1, 40_000_u16), (2, 80_u16)),
            false => ((2, 80), (1, 40_000)),
        };
        let mut bytes = Vec::new();
        for word in [
            (self.at_us / 1_000_000) as u32,
            (self.at_us % 1_000_000) as u32,
            HEADERS as u32,
            wire,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([0x45, 0]);
        bytes.extend((wire as u16).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([192, 0, 2, from.0, 192, 0, 2, to.0]);
        bytes.extend(from.1.to_be_bytes());
        bytes.extend(to.1.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledged.to_be_bytes());
        bytes.extend([0x80, self.flags, 0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10]);
        bytes.extend(self.stamps.map(u32::to_be_bytes).concat());
        bytes
    }
}

/// A transfer that its window limits, seen this share of the way from the sender, in percent.
fn transfer(way_percent: u64) -> Vec<TcpPacket> {
    let before = RTT_US / 2 * way_percent / 100;
    let milliseconds = |at: u64| (at / 1_000) as u32;
    let packet = |sent_us: u64, is_from_sender, sequence, acknowledged, flags, payload| {
        let (seen, heard) = match is_from_sender {
            true => (before, RTT_US / 2),
            false => (RTT_US / 2 - before, RTT_US / 2),
        };
        TcpPacket {
            at_us: sent_us + seen,
            is_from_sender,
            sequence,
            acknowledged,
            flags,
            // Both hosts' clocks began at 1 s; what is echoed was sent half a round trip ago.
            stamps: [
                1_000 + milliseconds(sent_us),
                1_000 + milliseconds(sent_us.saturating_sub(heard)),
            ],
            payload,
        }
    };
    let mut packets = vec![
        packet(0, true, FIRST - 1, 0, SYN, 0),
        packet(RTT_US / 2, false, FIRST - 1, FIRST, SYN | ACK, 0),
        packet(RTT_US, true, FIRST, FIRST, ACK, 0),
    ];
    let mut sent: Vec<u64> = Vec::new();
    for number in 0..SEGMENTS {
        let at = match sent.len().checked_sub(WINDOW) {
            Some(place) => sent[place] + RTT_US,
            None => RTT_US + GAP_US * u64::from(number + 1),
        };
        sent.push(at);
        let sequence = FIRST + number * SEGMENT_BYTES;
        packets.push(packet(at, true, sequence, FIRST, ACK, SEGMENT_BYTES));
        let answered = at + RTT_US / 2;
        packets.push(packet(
            answered,
            false,
            FIRST,
            sequence + SEGMENT_BYTES,
            ACK,
            0,
        ));
    }
    packets.sort_by_key(|packet| packet.at_us);
    packets
}

fn file(packets: &[TcpPacket]) -> Vec<u8> {
    let mut bytes = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
    bytes.extend([2, 0, 4, 0]);
    bytes.extend([0; 8]);
    bytes.extend([96_u32, 101].map(u32::to_le_bytes).concat());
    bytes.extend(packets.iter().flat_map(TcpPacket::record));
    bytes
}

fn diagnose(path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(["measure", "diagnose", "--json"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Output for a file with these bytes: the document, the text for a person, the exit code.
fn said(bytes: &[u8]) -> (Value, String, Option<i32>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("transfer.pcap");
    std::fs::write(&path, bytes).unwrap();
    let output = diagnose(&path);
    let document = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (document, errors, output.status.code())
}

#[test]
fn capture_may_be_taken_anywhere_on_the_path() {
    for (way_percent, place) in [(0, "sender"), (50, "middle"), (100, "receiver")] {
        let (document, errors, code) = said(&file(&transfer(way_percent)));
        assert_eq!(code, Some(0), "{place}: {errors}");
        let found = &document["transfers"][0];
        assert_eq!(found["captured_at"], place, "{found}");
        let rtt = found["least_rtt_ms"].as_f64().unwrap();
        assert!((rtt - 40.0).abs() < 2.0, "{place}: {rtt}");
        let payload = u64::from(SEGMENTS * SEGMENT_BYTES);
        assert_eq!(found["payload_bytes"], payload, "{place}");
        assert_eq!(found["connections_begun_before"], 0, "{place}");
        assert!(!found["diagnosis"].as_array().unwrap().is_empty());
    }
}

#[test]
fn late_or_truncated_capture_is_judged_partly() {
    let packets = transfer(0);
    let (document, errors, code) = said(&file(&packets[100..]));
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(document["transfers"][0]["connections_begun_before"], 1);
    let whole = file(&packets);
    let (document, errors, code) = said(&whole[..whole.len() - 30]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.contains("only the data before this point was diagnosed"),
        "{errors}"
    );
    assert!(document["cut"].is_string(), "{document}");
    let payload = document["transfers"][0]["payload_bytes"].as_u64().unwrap();
    assert!(
        payload > u64::from((SEGMENTS - 2) * SEGMENT_BYTES),
        "{payload}"
    );
}

#[test]
fn captures_without_transfers_and_other_files_are_named() {
    let (_, errors, code) = said(&file(&[]));
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("contains no TCP"), "{errors}");
    let (_, errors, code) = said(&file(&transfer(0)[..3]));
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("packets without data"), "{errors}");
    for bytes in [&b"time,packets\n1,2\n"[..], b"", b"\xd4"] {
        let (_, errors, code) = said(bytes);
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains("is not a capture"), "{errors}");
    }
    let (_, errors, _) = said(b"");
    assert!(errors.contains("the file is empty"), "{errors}");
    for (bytes, command) in [
        (&b"\x1f\x8b\x08\0\0\0\0\0"[..], "zcat"),
        (b"\x28\xb5\x2f\xfd\0\0\0\0", "zstdcat"),
        (b"\xfd7zXZ\0\0\0", "xzcat"),
    ] {
        let (_, errors, code) = said(bytes);
        assert_eq!(code, Some(2), "{errors}");
        let help = format!("run: {command} /");
        assert!(errors.contains(&help), "{errors}");
        assert!(
            errors.contains("transfer.pcap | trunkline measure diagnose -"),
            "{errors}"
        );
    }
    let output = diagnose(tempfile::tempdir().unwrap().path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("cannot read"), "{errors}");
}
