//! `trunkline measure diagnose`: finds the limits of the transfers in a user's capture.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use ::measure::diagnosis::{DiagnosisFinding, TcpSegment, TransferDiagnosis, diagnose_capture};
use anyhow::{Context, Result, anyhow, bail};
use capture::{CaptureError, CaptureReader};
use clap::Args;
use emulator::link::InvalidRequest;
use serde_json::{Value, json};
use vocab::Time;

use crate::output::StandardOutput;

/// Segments kept in memory at once, with up to a kilobyte of derived data each. Later segments are
/// not read, which is reported.
const MOST_SEGMENTS: usize = 2_000_000;
/// Compressed files: their first bytes, the program that makes them, and the program that unpacks
/// them (RFC 1952 §2.3.1, RFC 8878 §3.1.1, the formats of xz and bzip2).
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (&[0x1f, 0x8b], "gzip", "zcat"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstdcat"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xzcat"),
    (b"BZh", "bzip2", "bzcat"),
];
/// Length of the longest of those byte sequences.
const LONGEST_MAGIC: u64 = 6;

/// Finds out what limits the rates of the TCP transfers in a capture.
///
/// The command reads a capture (pcap or pcapng) from the sender, from the receiver or from a point
/// between them. The capture may contain one or many connections, and it may be truncated. The
/// command names the limits of each transfer: policer, shaper, queue, queue management, random loss
/// or the host's window. For each limit, it prints evidence, numbers and advice. It diagnoses all
/// connections from one host to another host together, because they share a path. For the best
/// results, capture at the sender, start before the first SYN, and capture ten seconds or more; the
/// first 96 bytes of each packet are enough.
///
/// A capture does not show the tester's own limits, a black hole, or the rate of the opposite
/// direction. To find these, test from both ends with `trunkline measure run`.
///
/// The exit code is 0 if there is a result. It is 1 if the capture contains no transfer, or if only
/// its beginning could be read; then the command diagnoses this beginning. It is 2 if the file does
/// not exist or is not a capture.
#[derive(Debug, Args)]
pub(crate) struct DiagnoseArguments {
    /// Names the packet capture file to diagnose. If FILE is -, the command reads the packet capture
    /// from standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Shows every transfer in the packet capture, including short transfers, even if there are
    /// many transfers.
    #[arg(long)]
    all: bool,
    /// Prints the diagnosis as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Content of a capture file.
struct CaptureContent {
    segments: Vec<TcpSegment>,
    frames: u64,
    /// Reason why it was not read to its end.
    cut: Option<String>,
}

impl DiagnoseArguments {
    /// Reads, judges and prints.
    ///
    /// # Errors
    /// Fails when the file is not a capture, is damaged, or holds no transfer.
    pub(crate) fn run(self) -> Result<()> {
        let name = self.file.display().to_string();
        let held = read(&self.file)?;
        let transfers = diagnose_capture(&held.segments);
        let mut output = StandardOutput::new();
        if self.json {
            writeln!(output, "{}", document(&name, &held, &transfers))?;
        } else {
            write!(output, "{}", tester::transfers_text(&transfers, self.all))?;
        }
        output.flush()?;
        if let Some(cut) = &held.cut {
            bail!("{name}: {cut}; only the data before this point was diagnosed");
        }
        if held.segments.is_empty() {
            bail!(
                "{name} contains no TCP ({} packets of other kinds); capture the transfer itself, with at \
                 least 96 bytes of each packet (tcpdump -s 96)",
                held.frames
            );
        }
        if transfers.is_empty() {
            bail!("{name} contains TCP packets without data; capture while the transfer runs");
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<CaptureContent> {
    let name = path.display();
    let input: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => {
            let file = File::open(path)
                .with_context(|| format!("cannot read {name}"))
                .map_err(InvalidRequest::because)?;
            Box::new(file)
        }
    };
    let mut input = BufReader::with_capacity(1 << 16, input);
    let mut first = Vec::new();
    input
        .by_ref()
        .take(LONGEST_MAGIC)
        .read_to_end(&mut first)
        .with_context(|| format!("cannot read {name}"))
        .map_err(InvalidRequest::because)?;
    if let Some(what) = what_instead(&first, &name.to_string()) {
        return Err(InvalidRequest::because(anyhow!(
            "{name} is not a capture: {what}"
        )));
    }
    let whole = Cursor::new(first).chain(input);
    let mut frames = CaptureReader::open(whole)
        .with_context(|| format!("{name} is not a capture"))
        .map_err(InvalidRequest::because)?;
    let mut held = CaptureContent {
        segments: Vec::new(),
        frames: 0,
        cut: None,
    };
    loop {
        match frames.next_frame() {
            Ok(Some(frame)) => {
                held.frames += 1;
                let segment = frame.network().and_then(|(packet, wire_bytes)| {
                    TcpSegment::parse(Time::from_epoch(frame.at), packet, wire_bytes)
                });
                held.segments.extend(segment);
            }
            Ok(None) => break,
            Err(
                damage @ (CaptureError::NoCapture
                | CaptureError::Cut { .. }
                | CaptureError::Nonsense { .. }
                | CaptureError::Io(_)),
            ) => {
                held.cut = Some(damage.to_string());
                break;
            }
        }
        if held.segments.len() >= MOST_SEGMENTS {
            held.cut = Some(format!("the file has more than {MOST_SEGMENTS} segments"));
            break;
        }
    }
    // Captures of several interfaces are not always in order.
    held.segments.sort_by_key(|segment| segment.at);
    Ok(held)
}

/// Description of a file that is not a capture, recognised by its first bytes, with a remedy.
fn what_instead(first: &[u8], name: &str) -> Option<String> {
    if first.is_empty() {
        return Some("the file is empty".to_owned());
    }
    let (_, format, command) = COMPRESSED
        .into_iter()
        .find(|(magic, _, _)| first.starts_with(magic))?;
    let file = if name == "-" { "FILE" } else { name };
    Some(format!(
        "the file is compressed by {format}; run: {command} {file} | trunkline measure diagnose -"
    ))
}

fn document(name: &str, held: &CaptureContent, transfers: &[TransferDiagnosis]) -> Value {
    let transfers: Vec<Value> = transfers
        .iter()
        .map(|transfer| {
            json!({
                "source": transfer.source,
                "destination": transfer.destination,
                "connections": transfer.connections,
                "connections_begun_before": transfer.begun_before,
                "payload_bytes": transfer.payload.bytes(),
                "payload_bytes_left_out": transfer.left_out.bytes(),
                "duration_s": transfer.duration.as_secs_f64(),
                "captured_at": transfer.place.name(),
                "least_rtt_ms": transfer.least_rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
                "diagnosis": transfer.findings.iter().map(finding).collect::<Vec<Value>>(),
            })
        })
        .collect();
    json!({
        "file": name,
        "packets": held.frames,
        "segments": held.segments.len(),
        "cut": held.cut,
        "transfers": transfers,
    })
}

/// A finding in the form of `--json`, here and in a turn-up test.
pub(crate) fn finding(finding: &DiagnosisFinding) -> Value {
    let parameters: serde_json::Map<String, Value> = finding
        .parameters
        .named()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    json!({
        "cause": finding.cause.name(),
        "confidence": finding.confidence,
        "evidence": finding.evidence,
        "parameters": parameters,
        "advice": finding.advice(),
    })
}
