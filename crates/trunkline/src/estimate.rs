//! `trunkline estimate`: estimates Trunkline's savings on a user's own data.

use std::fmt::Write as _;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use estimate::{
    self, CaptureNotes, CaptureRecognition, DictionaryDisk, EstimateItem, FRAMING, InputSource,
    NodePair, PairConfig, PairSide, ReductionEstimate as Outcome, SkippedInput, TrafficTally,
};
use host::kernel;
use node::{SegmentFiles, StateLock, dictionary_key};
use serde_json::{Value, json};
use vocab::ByteCount;

use crate::output::StandardOutput;
use crate::progress::progress;

/// Greatest number of table rows; beyond it only the largest are shown.
const ROWS: usize = 40;
/// Greatest number of remarks about skipped files in a table.
const COMPLAINTS: usize = 20;
/// Width for names in a table of 80 columns.
const NAME: usize = 80 - 50;
/// Seed of both dictionaries, so that the same data give the same bytes.
const SEED: u64 = 1;

/// Estimates how much Trunkline would save on your data.
///
/// The command sends files, directories and captures through the real encoder and decoder, and
/// prints how many bytes cross the wire. Each file is one flow. The dictionaries keep the data of
/// earlier files, so later files can refer to this data. The files of a directory are sent in the
/// order of their names. A capture (pcap or pcapng; link type Ethernet, cooked, loopback or raw IP;
/// VLANs, IPv4 and IPv6) is split into its TCP connections, and each direction of a connection is
/// sent as the host sent it. The command compares the decoded output with the input. No data leaves
/// this machine, and the command stores data only in the directory that --dictionary names.
///
/// The exit code is 0 if everything was sent. It is 1 if an input could not be read completely (a
/// message names this input), or if the program failed. It is 2 if an argument was invalid; then
/// the command has done nothing.
#[derive(Debug, Args)]
pub(crate) struct EstimateArguments {
    /// Names the files, directories or packet captures to read. If a name is -, the command reads
    /// data from standard input.
    #[arg(value_name = "FILE|DIR|PCAP", required = true)]
    inputs: Vec<PathBuf>,
    /// Stores the dictionaries of both ends in this directory for the next call, and creates the
    /// directory if it does not exist. Without --dictionary, the dictionaries are in memory and are
    /// lost at the end.
    #[arg(long, value_name = "DIR")]
    dictionary: Option<PathBuf>,
    /// Sets how much memory the dictionary of each simulated node may use.
    #[arg(long, value_name = "SIZE", default_value_t = ByteCount::mebibytes(256))]
    memory: ByteCount,
    /// Sets how much disk space the dictionary of each simulated node may use, in the directory of
    /// --dictionary.
    #[arg(long, value_name = "SIZE", default_value_t = ByteCount::mebibytes(4096), requires = "dictionary")]
    disk: ByteCount,
    /// Sends packet captures as plain files, without splitting them into connections.
    #[arg(long)]
    as_files: bool,
    /// Shows a row for every file and TCP stream, even if there are many files or streams.
    #[arg(long)]
    all: bool,
    /// Prints the results of the estimate as one JSON object.
    #[arg(long)]
    json: bool,
}

impl EstimateArguments {
    /// Sends everything and prints.
    ///
    /// # Errors
    /// Fails when an input could not be read, or the estimate is not possible at all.
    pub(crate) fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let inputs: Vec<InputSource> = self
            .inputs
            .iter()
            .map(|path| InputSource::named(path))
            .collect();
        estimate::check(&inputs)?;
        let (disks, _lock) = match &self.dictionary {
            Some(directory) => {
                let (disks, lock) = disks(directory)?;
                (Some(disks), Some(lock))
            }
            None => (None, None),
        };
        let disk = match disks {
            Some(_) => self.disk,
            None => ByteCount::new(0),
        };
        let config = PairConfig::shipped(self.memory, disk, SEED);
        let mut pair = NodePair::open(&config, disks)?;
        let recognition = match self.as_files {
            true => CaptureRecognition::FilesOnly,
            false => CaptureRecognition::Captures,
        };
        let display = progress();
        let excluded = self.dictionary.as_deref();
        let outcome = estimate::estimate(&mut pair, &inputs, recognition, excluded, &display);
        display.finish();
        let outcome = outcome?;
        let unwritten: u64 = [PairSide::Near, PairSide::Far]
            .map(|side| pair.statistics(side).unwritten_chunks)
            .iter()
            .sum();
        let mut out = StandardOutput::new();
        match self.json {
            true => {
                let mut document = document(&outcome);
                document["unwritten_chunks"] = json!(unwritten);
                writeln!(out, "{document}")?;
            }
            false => write!(out, "{}", table(&outcome, self.all))?,
        }
        if let (Some(directory), true) = (&self.dictionary, unwritten > 0) {
            remark!(
                "{unwritten} chunks could not be written into {}, so the next call does not know all of \
                 this data; check if the disk is full",
                directory.display()
            );
        }
        match outcome.losses().count() {
            0 => Ok(()),
            1 => bail!("one input could not be read completely; its name is above"),
            several => {
                bail!("{several} inputs could not be read completely; their names are above")
            }
        }
    }
}

/// Both ends' disks in `directory`, and the lock that keeps other processes out.
fn disks(directory: &Path) -> Result<([DictionaryDisk; 2], StateLock)> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let lock = StateLock::take(directory)?;
    let key = directory.join("dictionary.key");
    let [near, far] = ["near", "far"].map(|end| disk(&directory.join(end), &key));
    Ok(([near?, far?], lock))
}

/// Opens a dictionary's files in `directory`, sealed with the key in a file of its own, which is
/// created if it does not exist.
pub(crate) fn disk(directory: &Path, key_file: &Path) -> Result<DictionaryDisk> {
    let mut files = SegmentFiles::new(directory.to_owned());
    let (key, _) = dictionary_key::load_or_make(key_file)?;
    Ok(DictionaryDisk {
        execute: Box::new(move |request| files.complete(request)),
        key,
        seed: dictionary_key::fresh_seed().context("cannot get random numbers")?,
    })
}

fn document(outcome: &Outcome) -> Value {
    let total = outcome.total();
    let items: Vec<Value> = outcome.items.iter().map(item).collect();
    let skipped: Vec<Value> = outcome.skipped.iter().map(skipped).collect();
    let captures: Vec<Value> = outcome.captures.iter().map(capture).collect();
    json!({
        "items": items,
        "bytes": total.bytes,
        "wire_bytes": total.wire_bytes(),
        "forward_wire_bytes": total.forward_wire_bytes,
        "backward_wire_bytes": total.backward_wire_bytes,
        "ratio": total.ratio(),
        "repairs": total.repairs,
        "encode_gbit_s": total.encode_gbit_s(),
        "decode_gbit_s": total.decode_gbit_s(),
        "captures": captures,
        "skipped": skipped,
        "wire_bytes_are": FRAMING,
        "gbit_s_are": "bits that hosts sent for each second of one end's processor time",
    })
}

fn item(item: &EstimateItem) -> Value {
    json!({
        "path": item.path,
        "bytes": item.tally.bytes,
        "wire_bytes": item.tally.wire_bytes(),
        "forward_wire_bytes": item.tally.forward_wire_bytes,
        "backward_wire_bytes": item.tally.backward_wire_bytes,
        "ratio": item.tally.ratio(),
        "repairs": item.tally.repairs,
        "encode_gbit_s": item.tally.encode_gbit_s(),
        "decode_gbit_s": item.tally.decode_gbit_s(),
    })
}

fn skipped(skipped: &SkippedInput) -> Value {
    json!({ "path": skipped.path, "reason": skipped.reason, "is_loss": skipped.is_loss })
}

fn capture(notes: &CaptureNotes) -> Value {
    let counts = &notes.counts;
    json!({
        "path": notes.path,
        "segments": counts.segments,
        "other_packets": counts.other_packets,
        "fragments": counts.fragments,
        "connections": counts.connections,
        "begun_before": counts.begun_before,
        "bytes": counts.bytes,
        "retransmitted_bytes": counts.retransmitted_bytes,
        "reordered_segments": counts.reordered_segments,
        "gaps": counts.gaps,
        "missing_bytes": counts.missing_bytes,
        "cut_bytes": counts.cut_bytes,
    })
}

fn table(outcome: &Outcome, all: bool) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:>13}{:>13}{:>8}{:>8}{:>7}",
        "bytes", "on the wire", "of it", "encode", "decode"
    );
    let _ = writeln!(
        text,
        "{:>13}{:>13}{:>8}{:>8}{:>7}",
        "", "", "%", "Gbit/s", "Gbit/s"
    );
    let shown = match all {
        true => usize::MAX,
        false => ROWS,
    };
    let mut by_size: Vec<usize> = (0..outcome.items.len()).collect();
    by_size.sort_by_key(|index| std::cmp::Reverse(outcome.items[*index].tally.bytes));
    let least = by_size.len().min(shown);
    let (mut largest, rest) = (by_size[..least].to_vec(), &by_size[least..]);
    largest.sort_unstable();
    for index in largest {
        let item = &outcome.items[index];
        row(&mut text, &item.path, &item.tally);
    }
    if !rest.is_empty() {
        let mut smaller = TrafficTally::default();
        for index in rest {
            smaller.add(&outcome.items[*index].tally);
        }
        let name = format!("{} smaller (--all)", rest.len());
        row(&mut text, &name, &smaller);
    }
    row(&mut text, "in all", &outcome.total());
    for notes in &outcome.captures {
        describe(&mut text, notes);
    }
    for skipped in outcome.skipped.iter().take(COMPLAINTS) {
        let word = match skipped.is_loss {
            true => "NOT WHOLE",
            false => "skipped",
        };
        let _ = writeln!(text, "{word}: {} {}", skipped.path, skipped.reason);
    }
    let more = outcome.skipped.len().saturating_sub(COMPLAINTS);
    if more > 0 {
        let _ = writeln!(text, "... and {more} more (--json names them)");
    }
    let _ = writeln!(
        text,
        "\nOn the wire: the session's frames in both directions, acknowledgements and\n\
         repairs included; without TLS and packet headers. Gbit/s: of one core here."
    );
    text
}

fn row(text: &mut String, name: &str, tally: &TrafficTally) {
    let percent = match tally.bytes {
        0 => "-".to_owned(),
        _ => format!("{:.2}", tally.ratio() * 100.0),
    };
    let speed = |gbit_s: f64| match gbit_s {
        0.0 => "-".to_owned(),
        speed => format!("{speed:.2}"),
    };
    let _ = writeln!(
        text,
        "{:>13}{:>13}{:>8}{:>8}{:>7} {}",
        tally.bytes,
        tally.wire_bytes(),
        percent,
        speed(tally.encode_gbit_s()),
        speed(tally.decode_gbit_s()),
        shortened(name, NAME)
    );
}

/// Shortens a name that is too long in its middle, because the ends distinguish files.
fn shortened(name: &str, most: usize) -> String {
    let letters: Vec<char> = vocab::printable(name).chars().collect();
    if letters.len() <= most {
        return letters.into_iter().collect();
    }
    let front = (most - 1) / 3;
    let back = most - 1 - front;
    let ends = [&letters[..front], &['…'], &letters[letters.len() - back..]];
    ends.concat().into_iter().collect()
}

fn describe(text: &mut String, notes: &CaptureNotes) {
    let counts = &notes.counts;
    let _ = writeln!(
        text,
        "{}:\n  {} TCP connections ({} began before), {} segments, {} other packets",
        notes.path, counts.connections, counts.begun_before, counts.segments, counts.other_packets
    );
    let _ = writeln!(
        text,
        "  {} bytes retransmitted, {} segments out of order, {} fragments",
        counts.retransmitted_bytes, counts.reordered_segments, counts.fragments
    );
    if counts.gaps > 0 {
        let _ = writeln!(
            text,
            "  {} gaps: {} bytes not captured, {} cut off packets",
            counts.gaps, counts.missing_bytes, counts.cut_bytes
        );
    }
    if counts.bytes == 0 {
        let _ = writeln!(text, "  no TCP payload, so nothing was sent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_fits_eighty_columns_and_shows_the_largest() {
        let item = |number: u64| EstimateItem {
            path: format!("/a/long/way/{}/to/the/file-{number}\n", "x".repeat(60)),
            tally: TrafficTally {
                bytes: 10_000_000_000 + number,
                forward_wire_bytes: 10_000_000_000,
                encoding: std::time::Duration::from_secs(10),
                ..TrafficTally::default()
            },
        };
        let mut outcome = Outcome {
            items: (0..100).map(item).collect(),
            ..Outcome::default()
        };
        outcome.captures.push(CaptureNotes {
            path: "a.pcap".to_owned(),
            counts: capture::StreamCounts {
                gaps: 1_000_000,
                missing_bytes: 1_000_000_000,
                cut_bytes: 1_000_000_000,
                ..capture::StreamCounts::default()
            },
        });
        let text = table(&outcome, false);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert_eq!(text.matches("file-").count(), ROWS);
        assert!(text.contains("file-99?") && !text.contains("file-59?"));
        assert!(text.contains("60 smaller"));
        assert!(text.contains("no TCP payload"));
        assert_eq!(table(&outcome, true).matches("file-").count(), 100);
    }

    #[test]
    fn a_long_name_keeps_its_ends() {
        assert_eq!(shortened("short", 30), "short");
        assert_eq!(shortened("abcdefghijkl", 7), "ab…ijkl");
    }

    #[test]
    fn the_document_has_the_promised_keys() {
        let outcome = Outcome {
            items: vec![EstimateItem {
                path: "x".to_owned(),
                tally: TrafficTally {
                    bytes: 10,
                    forward_wire_bytes: 4,
                    backward_wire_bytes: 2,
                    ..TrafficTally::default()
                },
            }],
            ..Outcome::default()
        };
        let document = document(&outcome);
        assert_eq!(document["items"][0]["path"], "x");
        assert_eq!(document["items"][0]["bytes"], 10);
        assert_eq!(document["items"][0]["wire_bytes"], 6);
        assert!(document["encode_gbit_s"].is_number());
        assert!(document["decode_gbit_s"].is_number());
    }
}
