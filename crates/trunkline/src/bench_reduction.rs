//! `trunkline bench reduction`: measures data reduction on the same data on every machine.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use ::estimate::{DictionaryDisk, FRAMING};
use anyhow::{Context, Result, ensure};
use bench::reduction::{self, EndTask, ProcessRole, ReductionPart, ReductionPlan, ReductionReport};
use clap::Args;
use host::kernel;
use host::machine::MachineInfo;
use serde_json::{Value, json};
use vocab::ByteCount;

use crate::estimate;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Greatest length of text that replaces the benchmark's own: more than the source tree of any one
/// project.
const MOST_TEXT: u64 = 1 << 30;

/// Measures data reduction on data from fixed seeds: bytes on the wire, speed, memory, restarts.
///
/// All figures belong to one configuration: dictionaries in memory and in encrypted, synced files,
/// with the default settings of a node. The part `warm` writes 2 GB to --directory, and the part
/// `reopen` writes 12 GB.
#[derive(Debug, Args)]
pub(crate) struct BenchReduction {
    /// Runs only these parts of the benchmark: repeat, edit, text, idle, warm, reopen.
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = part)]
    parts: Vec<ReductionPart>,
    /// Repeats every measurement this many times. The benchmark prints the medians of all
    /// repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    repeat: u64,
    /// Creates the dictionaries in this directory, and removes the dictionaries at the end. The
    /// benchmark measures the disk that contains this directory.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Sets the size of each dictionary in memory.
    #[arg(long, value_name = "SIZE", default_value_t = ByteCount::mebibytes(256))]
    memory: ByteCount,
    /// Uses the text in this file as test data instead of the text that the benchmark generates.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
}

fn part(text: &str) -> Result<ReductionPart, String> {
    let found = ReductionPart::ALL.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, part)| *part)
        .ok_or_else(|| ReductionPart::ALL.map(|(name, _)| name).join(", "))
}

impl BenchReduction {
    /// Measures and prints.
    ///
    /// # Errors
    /// Fails when it cannot be measured; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        kernel::catch_interruptions();
        let plan = self.plan()?;
        let display = progress();
        let began = Instant::now();
        let report = reduction::bench(&plan, &display);
        display.finish();
        let report = report?;
        let mut out = StandardOutput::new();
        if self.json {
            let mut document = document(&report);
            document["text"] = match &self.text {
                Some(path) => json!(path.display().to_string()),
                None => json!("made from a seed, the same everywhere"),
            };
            document["memory_bytes"] = json!(self.memory.bytes());
            document["repeat"] = json!(self.repeat);
            document["took_s"] = json!(began.elapsed().as_secs_f64());
            document["machine"] = json!(MachineInfo::describe(&[]));
            writeln!(out, "{document}")?;
        } else {
            write!(out, "{}", table(&report))?;
            writeln!(
                out,
                "\nMedians of {}, {:.0} s.",
                self.repeat,
                began.elapsed().as_secs_f64()
            )?;
        }
        Ok(())
    }

    fn plan(&self) -> Result<ReductionPlan> {
        let program = std::env::current_exe().context("finding this program")?;
        Ok(ReductionPlan {
            parts: match self.parts.is_empty() {
                true => ReductionPart::ALL.map(|(_, part)| part).to_vec(),
                false => self.parts.clone(),
            },
            repeat: self.repeat as usize,
            directory: self.directory.clone(),
            memory: self.memory,
            text: self.text.as_deref().map(read_text).transpose()?,
            process: Box::new(move |task, directory| process(&program, task, directory)),
            disk: Box::new(disk),
        })
    }
}

fn read_text(path: &Path) -> Result<bytes::Bytes> {
    let failed = || format!("reading {}", path.display());
    let file = std::fs::File::open(path).with_context(failed)?;
    let mut text = Vec::new();
    let read = file.take(MOST_TEXT + 1).read_to_end(&mut text);
    let length = read.with_context(failed)? as u64;
    ensure!(
        length <= MOST_TEXT,
        "{} is longer than 1 GiB",
        path.display()
    );
    Ok(text.into())
}

fn disk(directory: &Path) -> Result<DictionaryDisk> {
    estimate::disk(directory, &directory.with_extension("key"))
}

/// The command of a process that is an end of a transfer.
pub(crate) fn process(program: &Path, task: &EndTask, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["bench", "reduction-end", task.role.name()])
        .arg("--directory")
        .arg(directory)
        .args(["--bytes", &task.bytes.to_string()])
        .args(["--seed", &task.seed.to_string()])
        .args(["--memory", &task.memory.bytes().to_string()])
        .args(["--disk", &task.disk.bytes().to_string()])
        .arg("--result")
        .arg(&task.result);
    command
}

/// Runs one end of a transfer. The benchmark starts this command itself.
#[derive(Debug, Args)]
pub(crate) struct ReductionEnd {
    #[arg(value_parser = role)]
    role: ProcessRole,
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    bytes: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    memory: u64,
    #[arg(long)]
    disk: u64,
    #[arg(long)]
    result: PathBuf,
}

fn role(text: &str) -> Result<ProcessRole, String> {
    let found = ProcessRole::ALL.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, role)| *role)
        .ok_or_else(|| ProcessRole::ALL.map(|(name, _)| name).join(", "))
}

impl ReductionEnd {
    /// Carries out the task of the process.
    ///
    /// # Errors
    /// Fails when the transfer fails.
    pub(crate) fn run(self) -> Result<()> {
        let task = EndTask {
            role: self.role,
            bytes: self.bytes,
            seed: self.seed,
            memory: ByteCount::new(self.memory),
            disk: ByteCount::new(self.disk),
            result: self.result,
        };
        reduction::run_end(&task, disk(&self.directory)?)
    }
}

fn document(report: &ReductionReport) -> Value {
    json!({
        "bench": "reduction",
        "figures": report.figures,
        "captured": report.captured,
        "speeds": report.speeds,
        "runs": report.runs,
        "wire_bytes_are": FRAMING,
        "captured_bytes_are": "all packets with their IP headers of a session in virtual time, over UDP \
            on 20 Mbit/s and 100 ms, that carries a flow of as many encoded bytes; without repairs",
        "gbit_s_are": "bits of data for each second of one end's processor time, disk work included; \
            of the slower end",
    })
}

/// A figure in the table: its name, its meaning for the reader, and its format.
struct ReductionRow {
    title: &'static str,
    value: fn(&ReductionReport) -> Option<String>,
}

fn bytes(value: Option<u64>) -> Option<String> {
    value.map(|bytes| bytes.to_string())
}

fn number(value: Option<f64>) -> Option<String> {
    value.map(|number| format!("{number:.2}"))
}

const ROWS: [ReductionRow; 14] = [
    ReductionRow {
        title: "16 MiB repeated, bytes on the wire",
        value: |report| bytes(report.figures.repeat_16mib_wire_bytes),
    },
    ReductionRow {
        title: "... a byte inserted about every 64 KiB",
        value: |report| bytes(report.figures.edit64k_wire_bytes),
    },
    ReductionRow {
        title: "... 8 bytes inserted about every 4 KiB",
        value: |report| bytes(report.figures.edit4k_wire_bytes),
    },
    ReductionRow {
        title: "16 MiB of source text, cold",
        value: |report| bytes(report.figures.text_cold_wire_bytes),
    },
    ReductionRow {
        title: "... by zstd -3",
        value: |report| bytes(report.figures.text_zstd3_bytes),
    },
    ReductionRow {
        title: "1 GiB repeated after a restart",
        value: |report| bytes(report.figures.warm_1gib_wire_bytes),
    },
    ReductionRow {
        title: "... resident memory of an end, bytes",
        value: |report| bytes(report.figures.warm_1gib_resident_bytes),
    },
    ReductionRow {
        title: "... Gbit/s, read from disk",
        value: |report| number(report.figures.warm_1gib_gbit_s),
    },
    ReductionRow {
        title: "Random bytes, cold, Gbit/s",
        value: |report| number(report.figures.cold_random_gbit_s),
    },
    ReductionRow {
        title: "Source text, cold, Gbit/s",
        value: |report| number(report.figures.cold_text_gbit_s),
    },
    ReductionRow {
        title: "Random bytes, warm, Gbit/s",
        value: |report| number(report.figures.warm_gbit_s),
    },
    ReductionRow {
        title: "Index in memory, bytes for each GiB on disk",
        value: |report| bytes(report.figures.index_bytes_per_stored_gib),
    },
    ReductionRow {
        title: "Opening 10 GiB after kill -9, s",
        value: |report| number(report.figures.reopen_10gib_s),
    },
    ReductionRow {
        title: "A lone small write is held for, us",
        value: |report| number(report.figures.idle_write_delay_us),
    },
];

fn table(report: &ReductionReport) -> String {
    let mut text = String::new();
    for row in &ROWS {
        let value = (row.value)(report).unwrap_or("-".to_owned());
        let _ = writeln!(text, "{:<46}{value:>14}", row.title);
    }
    let captured = [
        ("repeated", report.captured.repeat_16mib_captured_bytes),
        ("edited, 64 KiB", report.captured.edit64k_captured_bytes),
        ("edited, 4 KiB", report.captured.edit4k_captured_bytes),
        ("text", report.captured.text_cold_captured_bytes),
        ("1 GiB", report.captured.warm_1gib_captured_bytes),
    ];
    let _ = writeln!(
        text,
        "\nThe same as packets of a session in virtual time, bytes"
    );
    for (title, value) in captured {
        let value = bytes(value).unwrap_or("-".to_owned());
        let _ = writeln!(text, "{:<46}{value:>14}", format!("  {title}"));
    }
    let _ = writeln!(text, "\n{:<46}{:>14}{:>14}", "Gbit/s", "encode", "decode");
    for (title, speed) in [
        ("random, cold", report.speeds.cold_random),
        ("text, cold", report.speeds.cold_text),
        ("random, warm", report.speeds.warm),
        ("1 GiB, warm, from disk", report.speeds.warm_1gib),
    ] {
        let [encode, decode] = [
            number(speed.map(|speed| speed.encode_gbit_s)),
            number(speed.map(|speed| speed.decode_gbit_s)),
        ]
        .map(|value| value.unwrap_or("-".to_owned()));
        let _ = writeln!(text, "{:<46}{encode:>14}{decode:>14}", format!("  {title}"));
    }
    let _ = writeln!(
        text,
        "\nOn the wire: the session's frames in both directions, acknowledgements and\n\
         repairs included. Gbit/s: of one core, disk work included; above, of the slower\n\
         end."
    );
    text
}

#[cfg(test)]
mod tests {
    use bench::reduction::ReductionFigures;

    use super::*;

    #[test]
    fn the_figures_have_the_promised_names() {
        let document = document(&ReductionReport::default());
        let figures = document["figures"].as_object().unwrap();
        for key in [
            "repeat_16mib_wire_bytes",
            "edit64k_wire_bytes",
            "edit4k_wire_bytes",
            "text_cold_wire_bytes",
            "text_zstd3_bytes",
            "warm_1gib_wire_bytes",
            "cold_random_gbit_s",
            "cold_text_gbit_s",
            "warm_gbit_s",
            "index_bytes_per_stored_gib",
            "reopen_10gib_s",
            "idle_write_delay_us",
        ] {
            assert!(figures.contains_key(key), "{key}");
        }
    }

    #[test]
    fn the_table_fits_eighty_columns() {
        let report = ReductionReport {
            figures: ReductionFigures {
                warm_1gib_resident_bytes: Some(1 << 40),
                idle_write_delay_us: Some(1e9),
                ..ReductionFigures::default()
            },
            ..ReductionReport::default()
        };
        for line in table(&report).lines() {
            assert!(line.len() <= 80, "{line}");
        }
    }
}
