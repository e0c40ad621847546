//! kill -9 at random points of a process's life, and a check of its dictionary afterwards.
//!
//! ```text
//!  this process: encoder, dictionary in memory         a life: decoder, dictionary in files
//!       references to what was acknowledged  ══════►   opens, finds all of it on disk, compares
//!       then new data                        ══════►   writes it down, acknowledges
//!                                            kill -9   anywhere in between, and again
//! ```
//! A life acknowledges data when its write to the file has returned. Every reference here is to
//! acknowledged data, so a life that asks for a reference's bytes has lost some. What comes out is
//! compared in each life with what went in. Some dictionaries have room for everything; the others
//! drop their oldest segments all the time, and of them only the newest part is asked.
//!
//! kill -9 keeps the kernel's page cache. `reduce`'s own tests cover the loss of power, on a disk
//! that forgets unsynced data.

use std::fs;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use reduce::{FlowEncoder, RepairRequest, RepairScope};
use serde::Serialize;
use vocab::{ByteCount, FlowSegment, SeededRandom, Time};

use super::bench::ProcessStarter;
use super::data::{BLOCK, SeededBlocks};
use super::ends::{EndTask, ProcessRole, kind};
use estimate::pair::{BYTE_TIME, NodeEnd, PairConfig, PairSide, READ_AHEAD};
use host::kernel;
use host::median::median;
use host::progress::ProgressReporter;

/// Bytes pushed at once.
const PIECE: usize = 64 * 1024;
/// Data after which a dictionary has seen enough, in blocks; the next life begins another.
const MOST_BLOCKS: u64 = 12;
/// Pieces that a life may take from where it begins to write, at most.
const MOST_PIECES: u64 = 40;
/// One life in this many is killed while it opens its dictionary ...
const OPENING: u64 = 4;
/// ... at most this long after its start.
const LONGEST_OPENING: Duration = Duration::from_millis(15);
/// The others are killed at most this long after they received a piece.
const LONGEST_PIECE: Duration = Duration::from_micros(1_500);
/// Number of the newest blocks to ask for from a dictionary without room.
const NEWEST_BLOCKS: u64 = 1;
/// Room for everything.
const ROOMY: ByteCount = ByteCount::mebibytes(64);
/// Room for so little that something is dropped in most lives.
const TIGHT: ByteCount = ByteCount::mebibytes(5);
/// Memory of a life's dictionary.
const MEMORY: ByteCount = ByteCount::mebibytes(16);

/// Plan of a kill test.
pub struct KillPlan {
    /// Number of kills.
    pub points: u32,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Directory of the dictionaries during the test; files created in it are removed.
    pub directory: PathBuf,
    /// Starts a life.
    pub process: ProcessStarter,
}

/// Results of a kill test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KillReport {
    /// Lives that were ended.
    pub points: u32,
    /// ... while they opened their dictionary.
    pub while_opening: u32,
    /// ... while they read existing data.
    pub while_reading: u32,
    /// ... while they wrote.
    pub while_writing: u32,
    /// Dictionaries that were begun.
    pub dictionaries: u32,
    /// Bytes that lives acknowledged for the first time.
    pub acknowledged_bytes: u64,
    /// Bytes that lives found on their disk, from references alone, and compared.
    pub found_bytes: u64,
    /// Requests for the keys of runs: links that were lost, which costs a question and no data.
    pub lost_links: u64,
    /// References whose bytes were asked for: acknowledged data that was lost. Anything but zero is
    /// an error, after which nothing more is tried.
    pub lost_references: u64,
    /// Time from a process's start until its dictionary was ready.
    pub open_median_s: f64,
    /// The longest of them.
    pub open_longest_s: f64,
}

/// Kills a process at many random points.
///
/// # Errors
/// Fails when acknowledged data is lost, when a life finds other bytes than were sent or ends by
/// itself, or on Ctrl-C.
pub fn kill(plan: &KillPlan, progress: &dyn ProgressReporter) -> Result<KillReport> {
    let place = plan
        .directory
        .join(format!("trunkline-kill-{}", std::process::id()));
    fs::create_dir(&place).with_context(|| format!("cannot use {}", place.display()))?;
    let killed = KillTest::new(plan, &place).run(progress);
    let removed = fs::remove_dir_all(&place);
    let report = killed?;
    removed.with_context(|| format!("cannot remove {}", place.display()))?;
    Ok(report)
}

struct KillTest<'a> {
    plan: &'a KillPlan,
    place: &'a Path,
    random: SeededRandom,
    report: KillReport,
    opened_s: Vec<f64>,
}

/// A dictionary through its lives.
struct DictionaryEpoch {
    directory: PathBuf,
    seed: u64,
    disk: ByteCount,
    /// The other end, which knows the acknowledged data.
    end: NodeEnd,
    config: PairConfig,
    now: Time,
    /// Bytes from the beginning that were acknowledged in some life.
    acknowledged: u64,
}

/// Point at which a life ends.
enum KillPoint {
    Opening(Duration),
    /// This long after a piece was handed over, after so many others have been processed.
    Piece(u64, Duration),
}

impl<'a> KillTest<'a> {
    fn new(plan: &'a KillPlan, place: &'a Path) -> Self {
        Self {
            plan,
            place,
            random: SeededRandom::from_seed(plan.seed),
            report: KillReport::default(),
            opened_s: Vec::new(),
        }
    }

    fn run(mut self, progress: &dyn ProgressReporter) -> Result<KillReport> {
        let mut epoch = self.epoch()?;
        while self.report.points < self.plan.points {
            if kernel::interrupted() {
                bail!("interrupted");
            }
            let done = f64::from(self.report.points) / f64::from(self.plan.points.max(1));
            progress.step(done, &format!("killed {} times", self.report.points));
            if epoch.acknowledged >= MOST_BLOCKS * BLOCK {
                fs::remove_dir_all(&epoch.directory)?;
                epoch = self.epoch()?;
            }
            self.live(&mut epoch).with_context(|| {
                let point = self.report.points + 1;
                format!("at point {point} of seed {}", self.plan.seed)
            })?;
            self.report.points += 1;
        }
        self.report.open_median_s = median(self.opened_s.iter().copied()).unwrap_or(0.0);
        self.report.open_longest_s = self.opened_s.iter().copied().fold(0.0, f64::max);
        Ok(self.report)
    }

    /// Makes an unused dictionary.
    fn epoch(&mut self) -> Result<DictionaryEpoch> {
        let config = PairConfig::shipped(ByteCount::mebibytes(256), ByteCount::new(0), 1);
        self.report.dictionaries += 1;
        let number = self.report.dictionaries;
        Ok(DictionaryEpoch {
            directory: self.place.join(number.to_string()),
            seed: self.random.next_u64() >> 1,
            disk: if number % 2 == 1 { ROOMY } else { TIGHT },
            end: NodeEnd::open(&config, PairSide::Near, None)?,
            config,
            now: Time::ZERO,
            acknowledged: 0,
        })
    }

    fn point(&mut self, known: u64) -> KillPoint {
        if self.random.below(OPENING) == 0 {
            return KillPoint::Opening(self.below(LONGEST_OPENING));
        }
        // Some half a MiB of references is a piece.
        let pieces = self.random.below(MOST_PIECES + known / (BLOCK / 2));
        KillPoint::Piece(pieces, self.below(LONGEST_PIECE))
    }

    fn below(&mut self, longest: Duration) -> Duration {
        Duration::from_nanos(self.random.below(longest.as_nanos() as u64))
    }

    /// One life, up to its end.
    fn live(&mut self, epoch: &mut DictionaryEpoch) -> Result<()> {
        let first_block = match epoch.disk {
            ROOMY => 0,
            _ => (epoch.acknowledged / BLOCK).saturating_sub(NEWEST_BLOCKS),
        };
        let point = self.point(epoch.acknowledged - first_block * BLOCK);
        let task = EndTask {
            role: ProcessRole::Survive,
            bytes: u64::MAX,
            seed: epoch.seed + first_block,
            memory: MEMORY,
            disk: epoch.disk,
            result: self.place.join("result"),
        };
        let mut command = (self.plan.process)(&task, &epoch.directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        kernel::prepare_child(&mut command, None)?;
        let began = Instant::now();
        let child = command.spawn().context("starting a life")?;
        let mut life = KilledProcess::new(child)?;
        match point {
            KillPoint::Opening(after) => {
                thread::sleep(after);
                life.kill()?;
                self.report.while_opening += 1;
                Ok(())
            }
            KillPoint::Piece(pieces, after) => {
                // Answered when the dictionary is ready.
                life.say(kind::ACKNOWLEDGE, &[])?;
                ensure!(life.hear()?.0 == kind::DONE, "a life speaks out of turn");
                self.opened_s.push(began.elapsed().as_secs_f64());
                self.write(epoch, life, first_block, pieces, after)
            }
        }
    }

    /// Sends everything again and then more, and kills the life after so many pieces.
    fn write(
        &mut self,
        epoch: &mut DictionaryEpoch,
        mut life: KilledProcess,
        first_block: u64,
        pieces: u64,
        after: Duration,
    ) -> Result<()> {
        let mut encoder = FlowEncoder::new(epoch.config.encoder, epoch.end.peer);
        let mut blocks = SeededBlocks::new(epoch.seed + first_block);
        let (mut done, mut found) = (0, 0);
        loop {
            while encoder.pending() < READ_AHEAD {
                epoch.now += BYTE_TIME * PIECE as u32;
                encoder.push(epoch.now, FlowSegment::payload(blocks.next(PIECE)));
            }
            while let Some(encoded) = epoch.end.encode(epoch.now, &mut encoder) {
                life.say(kind::DATA, &encoded)?;
                if done == pieces {
                    thread::sleep(after);
                    life.kill()?;
                    let statistics = encoder.statistics();
                    let is_new = statistics.literal_bytes > 0;
                    self.report.found_bytes += found;
                    self.report.while_writing += u32::from(is_new);
                    self.report.while_reading += u32::from(!is_new);
                    return Ok(());
                }
                self.listen(epoch, &mut life, &mut encoder)?;
                life.say(kind::ACKNOWLEDGE, &[])?;
                self.listen(epoch, &mut life, &mut encoder)?;
                self.count(epoch, &encoder, first_block);
                found = encoder.statistics().referenced_bytes;
                done += 1;
            }
        }
    }

    /// Takes note of acknowledged data.
    fn count(&mut self, epoch: &mut DictionaryEpoch, encoder: &FlowEncoder, first_block: u64) {
        let statistics = encoder.statistics();
        let encoded = statistics.referenced_bytes + statistics.literal_bytes;
        let there = first_block * BLOCK + encoded - encoder.retained() as u64;
        self.report.acknowledged_bytes += there.saturating_sub(epoch.acknowledged);
        epoch.acknowledged = epoch.acknowledged.max(there);
    }

    /// Handles the life's messages, until it has finished its order.
    fn listen(
        &mut self,
        epoch: &mut DictionaryEpoch,
        life: &mut KilledProcess,
        encoder: &mut FlowEncoder,
    ) -> Result<()> {
        loop {
            let (kind, bytes) = life.hear()?;
            match kind {
                kind::DONE => return Ok(()),
                kind::ACKNOWLEDGE => {
                    let offset = u64::from_le_bytes(bytes[..].try_into().context("an offset")?);
                    encoder.acknowledged(offset, &mut epoch.end.dictionary);
                }
                kind::REPAIR => {
                    let asked = RepairRequest::parse(&bytes)?;
                    let (links, lost) = match &asked.scope {
                        RepairScope::All => (0, 1),
                        // Where links end one chunk is asked for on suspicion. Chunks that were written
                        // again when their segment went leave links behind.
                        RepairScope::Some { references, runs } if epoch.disk != ROOMY => {
                            (runs.len(), references.len().saturating_sub(runs.len()))
                        }
                        RepairScope::Some { references, runs } => (runs.len(), references.len()),
                    };
                    self.report.lost_links += links as u64;
                    self.report.lost_references += lost as u64;
                    ensure!(
                        lost == 0,
                        "acknowledged data is lost: {asked:?} of a dictionary of {} in {}, {} bytes \
                         of it acknowledged",
                        epoch.disk,
                        epoch.directory.display(),
                        epoch.acknowledged
                    );
                    let answer = encoder.repair(&bytes)?;
                    life.say(kind::ANSWER, &answer)?;
                }
                other => bail!("a life says {other}"),
            }
        }
    }
}

/// A process that is going to be killed.
struct KilledProcess {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl KilledProcess {
    fn new(mut child: Child) -> Result<Self> {
        let input = child.stdin.take().context("a life's input")?;
        let output = child.stdout.take().context("a life's output")?;
        Ok(Self {
            child,
            input: BufWriter::new(input),
            output: BufReader::new(output),
        })
    }

    /// kill -9, if it has not ended by itself: that would be an error.
    fn kill(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        if let Some(status) = ended {
            bail!("it ended by itself: {status}");
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn say(&mut self, kind: u8, bytes: &[u8]) -> Result<()> {
        let said = self
            .input
            .write_all(&[kind])
            .and_then(|()| self.input.write_all(&(bytes.len() as u32).to_le_bytes()))
            .and_then(|()| self.input.write_all(bytes))
            .and_then(|()| self.input.flush());
        self.unless_ended(said)
    }

    fn hear(&mut self) -> Result<(u8, Bytes)> {
        let mut head = [0; 5];
        let heard = self.output.read_exact(&mut head);
        self.unless_ended(heard)?;
        let [kind, length @ ..] = head;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        let heard = self.output.read_exact(&mut bytes);
        self.unless_ended(heard)?;
        Ok((kind, bytes.into()))
    }

    /// Replaces the error of a process that ended by itself with its text on standard error.
    fn unless_ended<T>(&mut self, result: std::io::Result<T>) -> Result<T> {
        if let Err(error) = &result
            && matches!(
                error.kind(),
                std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::UnexpectedEof
            )
        {
            let status = self.child.wait()?;
            bail!("it ended by itself: {status}");
        }
        Ok(result?)
    }
}

impl Drop for KilledProcess {
    fn drop(&mut self) {
        // Most have been killed by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
