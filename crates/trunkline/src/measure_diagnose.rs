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

/// Finds the limits of the TCP transfers in a capture.
///
/// It takes a capture (pcap or pcapng) from the sender, the receiver or a point in between, with
/// one or many connections, complete or truncated. It names the limits of each transfer: policer,
/// shaper, queue, queue management, random loss, the host's window; each with evidence, numbers and
/// advice. All connections from one host to another are judged together, because they share a path.
/// The best capture is taken at the sender, from the first SYN on, for ten seconds or more; the
/// first 96 bytes of each packet are enough.
///
/// A capture does not show everything: the tester's own limits, a black hole and the other
/// direction's rate need two ends (trunkline measure run).
///
/// Exit code: 0 there was a result; 1 the capture could not be read to its end (the part that was
/// read is judged) or held no transfer; 2 there is no such file, or it is not a capture.
#[derive(Debug, Args)]
pub(crate) struct DiagnoseArguments {
    /// Capture file; - is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Shows every transfer, including short ones, even if there are many.
    #[arg(long)]
    all: bool,
    /// Prints one JSON object.
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
            bail!("{name}: {cut}; what comes before it was judged");
        }
        if held.segments.is_empty() {
            bail!(
                "{name} holds no TCP ({} packets of other kinds); capture the transfer itself, and with \
                 tcpdump at least 96 bytes of each packet (-s 96)",
                held.frames
            );
        }
        if transfers.is_empty() {
            bail!("{name} holds TCP without any data; capture while the transfer runs");
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
            "{name} is no capture: {what}"
        )));
    }
    let whole = Cursor::new(first).chain(input);
    let mut frames = CaptureReader::open(whole)
        .with_context(|| format!("{name} is no capture"))
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
            held.cut = Some(format!("it has more than {MOST_SEGMENTS} segments"));
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
        return Some("it is empty".to_owned());
    }
    let (_, format, command) = COMPRESSED
        .into_iter()
        .find(|(magic, _, _)| first.starts_with(magic))?;
    let file = if name == "-" { "FILE" } else { name };
    Some(format!(
        "it is compressed by {format}; use: {command} {file} | trunkline measure diagnose -"
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
