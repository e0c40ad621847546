//! Benchmark of data reduction with the same data on every machine: bytes on the wire, processor
//! time, memory, restarts.
//!
//! ```text
//!  in this process: Pairs over files ─► repeat, edits, text, their speed; a lone write
//!  processes of their own: send ◄─► receive (1 GiB cold, then warm after a restart),
//!                          fill ─ kill -9 ─► reopen
//! ```
//! Everything has one configuration: dictionaries in memory and in real files, sealed and synced, with the
//! settings that nodes have when nobody changes them. Speed is of processor time of the end that
//! encodes or decodes, its disk's work included, so that one core is one core; figures named `gbit_s`
//! are of the slower end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use reduce::FlowEncoder;
use serde::Serialize;
use vocab::{ByteCount, FlowSegment, Time};

use super::data::{RandomBytes, edited, source};
use super::ends::{EndResult, EndTask, ProcessRole};
use crate::sessions::captured_bytes;
use estimate::pair::{DictionaryDisk, NodeEnd, NodePair, PairConfig, PairSide, TrafficTally};
use host::kernel::{self, ProcessSignal};
use host::median::median;
use host::progress::ProgressReporter;
use host::wait;

/// Bytes of the small data.
const SMALL: usize = 16 << 20;
const PIECE: usize = 64 * 1024;
/// Bytes of the large warm transfer.
const LARGE: u64 = 1 << 30;
/// Bytes in the dictionary that is reopened.
const STORED: u64 = 10 << 30;
/// Room beyond them, so that nothing is dropped.
const SPARE: u64 = 2 << 30;
/// Lone writes that are measured.
const WRITES: usize = 1_000;
/// Bytes of one, as of a keystroke or a small request.
const WRITE: usize = 100;
/// Virtual time between them.
const WRITE_GAP: Duration = Duration::from_secs(1);
/// Time limit for writing 10 GiB.
const FILL_LIMIT: Duration = Duration::from_secs(3_600);

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReductionPart {
    /// 16 MiB of random bytes: cold, repeated, and with a byte inserted about every 64 KiB.
    Repeat,
    /// ... with 8 bytes inserted about every 4 KiB.
    Edit,
    /// 16 MiB of source text.
    Text,
    /// 1 GiB that both ends have, after a restart with nothing of the files in memory.
    Warm,
    /// A dictionary of 10 GiB: opened after kill -9; memory of its index.
    Reopen,
    /// Small writes with nothing else to send.
    Idle,
}

impl ReductionPart {
    /// The parts by name, in the order in which they are measured.
    pub const ALL: [(&'static str, Self); 6] = [
        ("repeat", Self::Repeat),
        ("edit", Self::Edit),
        ("text", Self::Text),
        ("idle", Self::Idle),
        ("warm", Self::Warm),
        ("reopen", Self::Reopen),
    ];

    /// About how long it takes, in seconds.
    fn weight(self) -> f64 {
        match self {
            Self::Repeat | Self::Edit | Self::Text => 3.0,
            Self::Idle => 1.0,
            Self::Warm => 40.0,
            Self::Reopen => 60.0,
        }
    }
}

/// Makes the command of a process for one end, from its task and its dictionary's directory.
pub type ProcessStarter = Box<dyn Fn(&EndTask, &Path) -> Command>;

/// Factory of the disk for a dictionary in a directory.
pub type DictionaryOpener = Box<dyn Fn(&Path) -> Result<DictionaryDisk>>;

/// Plan of a benchmark.
pub struct ReductionPlan {
    /// Parts to measure.
    pub parts: Vec<ReductionPart>,
    /// Number of repetitions; figures are medians.
    pub repeat: usize,
    /// Directory of the dictionaries during the measurement; files created there are removed.
    pub directory: PathBuf,
    /// Memory of each dictionary.
    pub memory: ByteCount,
    /// Text to be taken instead of that of the bench.
    pub text: Option<Bytes>,
    /// Starts ends that are processes of their own.
    pub process: ProcessStarter,
    /// Keeps the dictionaries of this process.
    pub disk: DictionaryOpener,
}

/// Figures by their public names; `None` was not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReductionFigures {
    /// 16 MiB of random bytes that both ends have.
    pub repeat_16mib_wire_bytes: Option<u64>,
    /// The same with a byte inserted about every 64 KiB.
    pub edit64k_wire_bytes: Option<u64>,
    /// The same with 8 bytes inserted about every 4 KiB.
    pub edit4k_wire_bytes: Option<u64>,
    /// 16 MiB of source text that neither end has.
    pub text_cold_wire_bytes: Option<u64>,
    /// The same text by zstd at level 3, as one frame.
    pub text_zstd3_bytes: Option<u64>,
    /// 1 GiB of random bytes that both ends have on disk.
    pub warm_1gib_wire_bytes: Option<u64>,
    /// Greatest resident memory of either end's process during that time.
    pub warm_1gib_resident_bytes: Option<u64>,
    /// Random bytes that neither end has: the slower end.
    pub cold_random_gbit_s: Option<f64>,
    /// Source text that neither end has: the slower end.
    pub cold_text_gbit_s: Option<f64>,
    /// Random bytes that both ends have in memory: the slower end.
    pub warm_gbit_s: Option<f64>,
    /// 1 GiB that both ends have on disk, read from there: the slower end.
    pub warm_1gib_gbit_s: Option<f64>,
    /// Resident memory that an opened dictionary adds, for each GiB in its files.
    pub index_bytes_per_stored_gib: Option<u64>,
    /// Time from a process's start to a ready dictionary of 10 GiB, after kill -9 and with none of
    /// its files cached.
    pub reopen_10gib_s: Option<f64>,
    /// Time from a small write to its encoded bytes, on an otherwise idle encoder.
    pub idle_write_delay_us: Option<f64>,
}

/// Results of the benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReductionReport {
    /// Medians.
    pub figures: ReductionFigures,
    /// Bytes of all packets, IP headers included, of a session that carries as many encoded bytes.
    pub captured: CapturedBytes,
    /// Both ends' speeds, medians.
    pub speeds: SpeedTable,
    /// All runs.
    pub runs: ReductionRuns,
}

/// Captured bytes by kind of data; see [`captured_bytes`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the figures")]
pub struct CapturedBytes {
    pub repeat_16mib_captured_bytes: Option<u64>,
    pub edit64k_captured_bytes: Option<u64>,
    pub edit4k_captured_bytes: Option<u64>,
    pub text_cold_captured_bytes: Option<u64>,
    pub warm_1gib_captured_bytes: Option<u64>,
}

/// Bits of data for each second of processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CodecSpeed {
    /// At the sending end.
    pub encode_gbit_s: f64,
    /// At the receiving end.
    pub decode_gbit_s: f64,
}

impl CodecSpeed {
    fn least(self) -> f64 {
        self.encode_gbit_s.min(self.decode_gbit_s)
    }
}

/// Speeds by kind of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the figures")]
pub struct SpeedTable {
    pub cold_random: Option<CodecSpeed>,
    pub cold_text: Option<CodecSpeed>,
    pub warm: Option<CodecSpeed>,
    pub warm_1gib: Option<CodecSpeed>,
}

/// Runs whose medians are the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReductionRuns {
    /// Transfers of 16 MiB.
    pub small: Vec<SmallTransfer>,
    /// Sender and receiver of 1 GiB that neither had.
    pub large_cold: Vec<[EndResult; 2]>,
    /// ... and of the same after a restart.
    pub large_warm: Vec<[EndResult; 2]>,
    /// The one that filled a dictionary.
    pub fill: Vec<EndResult>,
    /// Results of the processes that opened it.
    pub reopen: Vec<EndResult>,
    /// Medians of lone writes, in microseconds.
    pub idle_us: Vec<f64>,
}

/// A transfer of 16 MiB.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallTransfer {
    /// Data that was sent.
    pub what: &'static str,
    /// Bytes of it.
    pub bytes: u64,
    /// Bytes of frames in both directions.
    pub wire_bytes: u64,
    /// Bytes that the encoder gave.
    pub encoded_bytes: u64,
    /// Repairs asked for.
    pub repairs: u64,
    /// Its speed.
    pub speed: CodecSpeed,
}

/// A bench under way.
struct ReductionBench<'a> {
    plan: &'a ReductionPlan,
    progress: &'a dyn ProgressReporter,
    report: ReductionReport,
    done: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// Fails when an end fails, the disk is full, or on Ctrl-C. Files created in the plan's directory
/// are removed then, too.
pub fn bench(plan: &ReductionPlan, progress: &dyn ProgressReporter) -> Result<ReductionReport> {
    let mut bench = ReductionBench {
        plan,
        progress,
        report: ReductionReport::default(),
        done: 0.0,
    };
    for (name, part) in ReductionPart::ALL {
        if plan.parts.contains(&part) {
            bench.measure(name, part)?;
        }
    }
    bench.report.conclude();
    Ok(bench.report)
}

impl ReductionBench<'_> {
    fn measure(&mut self, name: &str, part: ReductionPart) -> Result<()> {
        let whole: f64 = self.plan.parts.iter().map(|part| part.weight()).sum();
        let times = match part {
            // One dictionary is filled, and opened as often.
            ReductionPart::Reopen => 1,
            _ => self.plan.repeat,
        };
        for _ in 0..times {
            if kernel::interrupted() {
                bail!("interrupted");
            }
            self.progress.step(self.done / whole, name);
            let place = WorkDirectory::new(&self.plan.directory)?;
            match part {
                ReductionPart::Repeat => self.repeat(&place)?,
                ReductionPart::Edit => self.edit(&place)?,
                ReductionPart::Text => self.text(&place)?,
                ReductionPart::Idle => self.idle(&place)?,
                ReductionPart::Warm => self.warm(&place)?,
                ReductionPart::Reopen => self.reopen(&place)?,
            }
            self.done += part.weight() / times as f64;
        }
        Ok(())
    }

    fn pair(&self, place: &WorkDirectory) -> Result<NodePair> {
        let [near, far] =
            [PairSide::Near, PairSide::Far].map(|side| (self.plan.disk)(&place.end(side)));
        let config = PairConfig::shipped(self.plan.memory, ByteCount::new(SPARE), 1);
        NodePair::open(&config, Some([near?, far?]))
    }

    fn transfer(&mut self, pair: &mut NodePair, what: &'static str, data: &Bytes) -> Result<()> {
        let mut stream = pair.start(PairSide::Near);
        for start in (0..data.len()).step_by(PIECE) {
            let end = data.len().min(start + PIECE);
            pair.send(&mut stream, data.slice(start..end))?;
        }
        let tally: TrafficTally = pair.finish(stream)?;
        self.report.runs.small.push(SmallTransfer {
            what,
            bytes: tally.bytes,
            wire_bytes: tally.wire_bytes(),
            encoded_bytes: tally.encoded_bytes,
            repairs: tally.repairs,
            speed: CodecSpeed {
                encode_gbit_s: tally.encode_gbit_s(),
                decode_gbit_s: tally.decode_gbit_s(),
            },
        });
        Ok(())
    }

    fn repeat(&mut self, place: &WorkDirectory) -> Result<()> {
        let data = RandomBytes::new(1).next(SMALL);
        let mut pair = self.pair(place)?;
        self.transfer(&mut pair, COLD_RANDOM, &data)?;
        self.transfer(&mut pair, REPEAT, &data)?;
        self.transfer(&mut pair, EDIT_64K, &edited(&data, 65_536, 1))
    }

    fn edit(&mut self, place: &WorkDirectory) -> Result<()> {
        let data = RandomBytes::new(1).next(SMALL);
        let mut pair = self.pair(place)?;
        self.transfer(&mut pair, COLD_RANDOM, &data)?;
        self.transfer(&mut pair, EDIT_4K, &edited(&data, 4_096, 8))
    }

    fn text(&mut self, place: &WorkDirectory) -> Result<()> {
        let made;
        let text = match &self.plan.text {
            Some(text) => text,
            None => {
                made = source(2, SMALL);
                &made
            }
        };
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(text.len()));
        let length = zstd_safe::compress(&mut frame, text, 3)
            .map_err(|code| anyhow::anyhow!("zstd: {}", zstd_safe::get_error_name(code)))?;
        self.report.figures.text_zstd3_bytes = Some(length as u64);
        let text = text.clone();
        let mut pair = self.pair(place)?;
        self.transfer(&mut pair, COLD_TEXT, &text)
    }

    /// Measures the time until a small write's bytes come out, including the time that it is held
    /// back.
    fn idle(&mut self, place: &WorkDirectory) -> Result<()> {
        let config = PairConfig::shipped(self.plan.memory, ByteCount::new(SPARE), 1);
        let disk = (self.plan.disk)(&place.end(PairSide::Near))?;
        let mut end = NodeEnd::open(&config, PairSide::Near, Some(disk))?;
        let mut encoder = FlowEncoder::new(config.encoder, end.peer);
        let mut noise = RandomBytes::new(3);
        let mut now = Time::ZERO;
        let mut encoded = 0;
        let mut delays = Vec::with_capacity(WRITES);
        for _ in 0..WRITES {
            now += WRITE_GAP;
            let written_at = now;
            let bytes = noise.next(WRITE);
            let began = Instant::now();
            encoder.push(now, FlowSegment::payload(bytes));
            let mut first = encoder.poll_encoded(now, &mut end.dictionary, PIECE);
            while first.is_none() {
                now = encoder
                    .poll_timeout()
                    .context("a small write stays in the encoder")?;
                first = encoder.poll_encoded(now, &mut end.dictionary, PIECE);
            }
            delays.push((began.elapsed() + now.since(written_at)).as_secs_f64() * 1e6);
            while let Some(more) = first {
                encoded += more.len() as u64;
                first = encoder.poll_encoded(now, &mut end.dictionary, PIECE);
            }
            encoder.acknowledged(encoded, &mut end.dictionary);
            end.serve();
        }
        self.report.runs.idle_us.extend(median(delays));
        Ok(())
    }

    fn warm(&mut self, place: &WorkDirectory) -> Result<()> {
        let cold = self.send_large(place)?;
        self.report.runs.large_cold.push(cold);
        place.forget_cached()?;
        let warm = self.send_large(place)?;
        self.report.runs.large_warm.push(warm);
        Ok(())
    }

    /// Sends 1 GiB from one process to another.
    fn send_large(&self, place: &WorkDirectory) -> Result<[EndResult; 2]> {
        let task = |role: ProcessRole| EndTask {
            role,
            bytes: LARGE,
            seed: 4,
            memory: self.plan.memory,
            disk: ByteCount::new(LARGE + SPARE),
            result: place.result(role),
        };
        let [send, receive] = [ProcessRole::Send, ProcessRole::Receive].map(task);
        let mut receiver = self.start(&receive, &place.end(PairSide::Far), |command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped())
        })?;
        let to = receiver.0.stdin.take().context("the receiver's input")?;
        let from = receiver.0.stdout.take().context("the receiver's output")?;
        let mut sender = self.start(&send, &place.end(PairSide::Near), |command| {
            command.stdin(Stdio::from(from)).stdout(Stdio::from(to))
        })?;
        let results = [sender.result(&send)?, receiver.result(&receive)?];
        for result in &results {
            ensure!(
                result.unwritten_chunks == 0,
                "{} chunks did not get to the disk in {}",
                result.unwritten_chunks,
                self.plan.directory.display()
            );
        }
        Ok(results)
    }

    fn reopen(&mut self, place: &WorkDirectory) -> Result<()> {
        let directory = place.end(PairSide::Near);
        let task = |role: ProcessRole| EndTask {
            role,
            bytes: STORED,
            seed: 5,
            memory: self.plan.memory,
            disk: ByteCount::new(STORED + SPARE),
            result: place.result(role),
        };
        let fill = task(ProcessRole::Fill);
        let mut filling = self.start(&fill, &directory, |command| command)?;
        wait::until(FILL_LIMIT, "a dictionary to hold 10 GiB", || {
            if let Some(status) = filling.0.try_wait()? {
                bail!("the process that filled a dictionary ended: {status}");
            }
            Ok(fill.result.exists().then_some(()))
        })?;
        // It goes on writing: this is kill -9 in the middle of it.
        kernel::send_signal(filling.0.id(), ProcessSignal::Kill)?;
        filling.0.wait()?;
        self.report.runs.fill.push(read_result(&fill)?);
        for _ in 0..self.plan.repeat {
            place.forget_cached()?;
            let reopen = task(ProcessRole::Reopen);
            let mut process = self.start(&reopen, &directory, |command| command)?;
            let result = process.result(&reopen)?;
            ensure!(
                result.disk_bytes >= STORED,
                "of 10 GiB only {} bytes are there again",
                result.disk_bytes
            );
            self.report.runs.reopen.push(result);
        }
        Ok(())
    }

    fn start(
        &self,
        task: &EndTask,
        directory: &Path,
        prepare: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Result<RunningProcess> {
        let _ = fs::remove_file(&task.result);
        let mut command = (self.plan.process)(task, directory);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        kernel::prepare_child(&mut command, None)?;
        let child = prepare(&mut command).spawn();
        Ok(RunningProcess(
            child.context("starting an end of a transfer")?,
        ))
    }
}

/// A process that does not outlive its measurement.
struct RunningProcess(Child);

impl RunningProcess {
    fn result(&mut self, task: &EndTask) -> Result<EndResult> {
        let status = self.0.wait()?;
        ensure!(
            status.success(),
            "the process that was to {} ended: {status}",
            task.role.name()
        );
        read_result(task)
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_result(task: &EndTask) -> Result<EndResult> {
    let file = File::open(&task.result).context("an end of a transfer left no result")?;
    Ok(serde_json::from_reader(file)?)
}

/// A directory of our own for one measurement.
struct WorkDirectory(PathBuf);

impl WorkDirectory {
    fn new(within: &Path) -> Result<Self> {
        let path = within.join(format!("trunkline-bench-{}", std::process::id()));
        let failed = || format!("cannot use {}", path.display());
        fs::create_dir(&path).with_context(failed)?;
        Ok(Self(path))
    }

    fn end(&self, side: PairSide) -> PathBuf {
        self.0.join(match side {
            PairSide::Near => "near",
            PairSide::Far => "far",
        })
    }

    fn result(&self, role: ProcessRole) -> PathBuf {
        self.0.join(format!("{}.json", role.name()))
    }

    /// Drops the dictionaries' files from the page cache, as after a restart of the machine.
    fn forget_cached(&self) -> Result<()> {
        for side in [PairSide::Near, PairSide::Far] {
            let Ok(entries) = fs::read_dir(self.end(side)) else {
                continue;
            };
            for entry in entries {
                let file = File::open(entry?.path())?;
                // What is not on the disk yet cannot be dropped.
                file.sync_all()?;
                kernel::forget_cached(&file)?;
            }
        }
        Ok(())
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const COLD_RANDOM: &str = "cold_random";
const REPEAT: &str = "repeat_16mib";
const EDIT_64K: &str = "edit64k";
const EDIT_4K: &str = "edit4k";
const COLD_TEXT: &str = "text_cold";

impl ReductionReport {
    fn conclude(&mut self) {
        let runs = &self.runs;
        let bytes = |what| of_small(runs, what, |run| run.wire_bytes as f64).map(whole);
        let captured = |what| {
            let encoded = of_small(runs, what, |run| run.encoded_bytes as f64)?;
            captured_bytes(encoded as u64)
        };
        let speed = |what| {
            Some(CodecSpeed {
                encode_gbit_s: of_small(runs, what, |run| run.speed.encode_gbit_s)?,
                decode_gbit_s: of_small(runs, what, |run| run.speed.decode_gbit_s)?,
            })
        };
        let large =
            |figure: &dyn Fn(&[EndResult; 2]) -> f64| median(runs.large_warm.iter().map(figure));
        let opened = |figure: &dyn Fn(&EndResult) -> f64| median(runs.reopen.iter().map(figure));
        self.speeds = SpeedTable {
            cold_random: speed(COLD_RANDOM),
            cold_text: speed(COLD_TEXT),
            warm: speed(REPEAT),
            warm_1gib: large(&|ends| gbit_s(&ends[0]))
                .zip(large(&|ends| gbit_s(&ends[1])))
                .map(|(encode_gbit_s, decode_gbit_s)| CodecSpeed {
                    encode_gbit_s,
                    decode_gbit_s,
                }),
        };
        self.captured = CapturedBytes {
            repeat_16mib_captured_bytes: captured(REPEAT),
            edit64k_captured_bytes: captured(EDIT_64K),
            edit4k_captured_bytes: captured(EDIT_4K),
            text_cold_captured_bytes: captured(COLD_TEXT),
            warm_1gib_captured_bytes: large(&|ends| ends[0].encoded_bytes as f64)
                .and_then(|encoded| captured_bytes(encoded as u64)),
        };
        let resident = |ends: &[EndResult; 2]| {
            let peaks = ends.map(|end| end.resident_peak_bytes);
            peaks[0].max(peaks[1]) as f64
        };
        let per_gib = |end: &EndResult| {
            let index = end
                .resident_open_bytes
                .saturating_sub(end.resident_before_bytes);
            index as f64 / (end.disk_bytes as f64 / (1 << 30) as f64)
        };
        let least = |speed: Option<CodecSpeed>| speed.map(CodecSpeed::least);
        self.figures = ReductionFigures {
            repeat_16mib_wire_bytes: bytes(REPEAT),
            edit64k_wire_bytes: bytes(EDIT_64K),
            edit4k_wire_bytes: bytes(EDIT_4K),
            text_cold_wire_bytes: bytes(COLD_TEXT),
            text_zstd3_bytes: self.figures.text_zstd3_bytes,
            warm_1gib_wire_bytes: large(&|ends| ends[0].wire_bytes as f64).map(whole),
            warm_1gib_resident_bytes: large(&resident).map(whole),
            cold_random_gbit_s: least(self.speeds.cold_random),
            cold_text_gbit_s: least(self.speeds.cold_text),
            warm_gbit_s: least(self.speeds.warm),
            warm_1gib_gbit_s: least(self.speeds.warm_1gib),
            index_bytes_per_stored_gib: opened(&per_gib).map(whole),
            reopen_10gib_s: opened(&|end| end.open_s),
            idle_write_delay_us: median(runs.idle_us.iter().copied()),
        };
    }
}

/// The median over the transfers of this kind.
fn of_small(
    runs: &ReductionRuns,
    what: &str,
    figure: impl Fn(&SmallTransfer) -> f64,
) -> Option<f64> {
    let of_kind = runs.small.iter().filter(|run| run.what == what);
    median(of_kind.map(figure))
}

fn gbit_s(end: &EndResult) -> f64 {
    end.bytes as f64 * 8.0 / end.processor_s.max(1e-9) / 1e9
}

fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(what: &'static str, wire_bytes: u64, encode_gbit_s: f64) -> SmallTransfer {
        SmallTransfer {
            what,
            bytes: SMALL as u64,
            wire_bytes,
            encoded_bytes: wire_bytes,
            repairs: 0,
            speed: CodecSpeed {
                encode_gbit_s,
                decode_gbit_s: 5.0,
            },
        }
    }

    #[test]
    fn figures_are_medians_and_of_the_slower_end() {
        let mut report = ReductionReport::default();
        report.runs.small = vec![
            small(REPEAT, 30, 9.0),
            small(REPEAT, 10, 4.0),
            small(REPEAT, 20, 3.0),
            small(COLD_RANDOM, 99, 7.0),
        ];
        report.conclude();
        assert_eq!(report.figures.repeat_16mib_wire_bytes, Some(20));
        assert_eq!(report.figures.warm_gbit_s, Some(4.0));
        assert_eq!(report.figures.cold_random_gbit_s, Some(5.0));
        assert_eq!(report.figures.edit4k_wire_bytes, None);
        assert_eq!(report.figures.reopen_10gib_s, None);
        let captured = report.captured.repeat_16mib_captured_bytes.unwrap();
        assert!(captured > 20 && captured < 5_000, "{captured}");
    }

    #[test]
    fn an_index_is_counted_for_each_gibibyte_stored() {
        let mut report = ReductionReport::default();
        report.runs.reopen = vec![EndResult {
            resident_before_bytes: 10 << 20,
            resident_open_bytes: 50 << 20,
            disk_bytes: 10 << 30,
            open_s: 1.5,
            ..EndResult::default()
        }];
        report.conclude();
        assert_eq!(report.figures.index_bytes_per_stored_gib, Some(4 << 20));
        assert_eq!(report.figures.reopen_10gib_s, Some(1.5));
    }
}
