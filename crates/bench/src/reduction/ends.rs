//! One end of a transfer as a process of its own, so that memory, processor time and restart are
//! measured for one node and not for a pair.
//!
//! ```text
//!  sender ── Data ─► receiver       The sender makes the data from its seed, the receiver makes them
//!         ◄─ Ack, Repair, Done ──   again and compares. One message at a time: each Data is answered
//!         ── Answer ─►              with all that it gives rise to, and then with Done.
//! ```
//! What is counted as bytes on the wire are the same frames as in a [`estimate::NodePair`].

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use reduce::{DecoderConfig, DecoderOutput, FlowDecoder, FlowEncoder};
use serde::{Deserialize, Serialize};
use tunnel::wire::{DataFrame, MessageAck, SessionFrame};
use vocab::{ByteCount, FlowId, FlowSegment, Time};

use super::data::{RandomBytes, SeededBlocks};
use estimate::pair::{
    ACKNOWLEDGED_AT_ONCE, BYTE_TIME, DictionaryDisk, NodeEnd, PairConfig, PairSide, READ_AHEAD,
    acknowledgement, length_of, message,
};
use host::kernel;

/// Bytes made and pushed at once.
const PIECE: usize = 64 * 1024;
const FLOW: FlowId = FlowId(1);

/// Task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// Encodes; its standard output is the receiver's input, and the other way round.
    Send,
    /// Decodes and compares.
    Receive,
    /// Decodes and compares until it is killed; acknowledges data that it has stored.
    Survive,
    /// Fills a dictionary by encoding for a peer that accepts everything, reports it in its result,
    /// and continues until it is killed.
    Fill,
    /// Opens a dictionary.
    Reopen,
}

impl ProcessRole {
    /// The roles by name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("send", Self::Send),
        ("receive", Self::Receive),
        ("survive", Self::Survive),
        ("fill", Self::Fill),
        ("reopen", Self::Reopen),
    ];

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, role)| *role == self);
        found.map_or("", |(name, _)| name)
    }
}

/// Parameters of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndTask {
    /// The task.
    pub role: ProcessRole,
    /// Length of the data.
    pub bytes: u64,
    /// Seed of the data.
    pub seed: u64,
    /// Memory of the dictionary.
    pub memory: ByteCount,
    /// Disk of the dictionary.
    pub disk: ByteCount,
    /// File for the result.
    pub result: PathBuf,
}

/// Result of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndResult {
    /// Bytes that went through.
    pub bytes: u64,
    /// Bytes that the encoder gave; of a sender.
    pub encoded_bytes: u64,
    /// Bytes of frames in both directions; of a sender.
    pub wire_bytes: u64,
    /// Repairs; of a sender.
    pub repairs: u64,
    /// Processor time of encoding or decoding and of the disk's work for it.
    pub processor_s: f64,
    /// Time from the first byte to the last.
    pub elapsed_s: f64,
    /// Time from the start to a ready dictionary.
    pub open_s: f64,
    /// Resident memory before the dictionary was opened.
    pub resident_before_bytes: u64,
    /// ... and when it was ready.
    pub resident_open_bytes: u64,
    /// The most that was resident in the process's life.
    pub resident_peak_bytes: u64,
    /// Chunks in the dictionary at the end.
    pub chunks: u64,
    /// Bytes in its files.
    pub disk_bytes: u64,
    /// Chunks that did not get to the disk.
    pub unwritten_chunks: u64,
}

/// Carries out the task of a process, on its standard input and output.
///
/// # Errors
/// Fails when the output differs from the data that was sent, or the other end is gone.
pub fn run_end(task: &EndTask, disk: DictionaryDisk) -> Result<()> {
    let config = PairConfig::shipped(task.memory, task.disk, 1);
    let side = match task.role {
        ProcessRole::Receive | ProcessRole::Survive => PairSide::Far,
        ProcessRole::Send | ProcessRole::Fill | ProcessRole::Reopen => PairSide::Near,
    };
    let resident_before_bytes = resident("VmRSS:")?;
    let began = Instant::now();
    let end = NodeEnd::open(&config, side, Some(disk))?;
    let mut process = EndProcess {
        result: EndResult {
            open_s: began.elapsed().as_secs_f64(),
            resident_before_bytes,
            resident_open_bytes: resident("VmRSS:")?,
            ..EndResult::default()
        },
        end,
        config,
        now: Time::ZERO,
        input: BufReader::new(io::stdin()),
        output: BufWriter::new(io::stdout()),
    };
    let began = Instant::now();
    match task.role {
        ProcessRole::Send => process.send(task)?,
        ProcessRole::Receive => process.receive(
            task,
            &mut ExpectedContent::Noise(RandomBytes::new(task.seed)),
        )?,
        ProcessRole::Survive => process.receive(
            task,
            &mut ExpectedContent::Blocks(SeededBlocks::new(task.seed)),
        )?,
        ProcessRole::Fill => process.fill(task)?,
        ProcessRole::Reopen => {}
    }
    process.result.elapsed_s = began.elapsed().as_secs_f64();
    process.conclude(&task.result)
}

struct EndProcess {
    end: NodeEnd,
    config: PairConfig,
    now: Time,
    input: BufReader<io::Stdin>,
    output: BufWriter<io::Stdout>,
    result: EndResult,
}

/// Message kinds between the processes.
pub(super) mod kind {
    pub(in super::super) const DATA: u8 = 1;
    pub(in super::super) const ACKNOWLEDGE: u8 = 2;
    pub(in super::super) const REPAIR: u8 = 3;
    pub(in super::super) const ANSWER: u8 = 4;
    pub(in super::super) const DONE: u8 = 5;
    pub(in super::super) const END: u8 = 6;
}

impl EndProcess {
    fn send(&mut self, task: &EndTask) -> Result<()> {
        let mut sender = EncodingSender {
            encoder: FlowEncoder::new(self.config.encoder, self.end.peer),
            encoded: 0,
            messages: 0,
        };
        let mut noise = RandomBytes::new(task.seed);
        let mut left = task.bytes;
        while left > 0 {
            let length = left.min(PIECE as u64);
            left -= length;
            self.push(&mut sender.encoder, noise.next(length as usize));
            if sender.encoder.pending() >= READ_AHEAD {
                self.pump(&mut sender)?;
            }
        }
        self.counting(|_| sender.encoder.finish());
        self.pump(&mut sender)?;
        self.exchange(&mut sender, kind::END, &[])?;
        ensure!(sender.encoder.pending() == 0, "not all was sent");
        self.result.bytes = task.bytes;
        self.result.encoded_bytes = sender.encoded;
        Ok(())
    }

    /// Does something in counted time.
    fn counting<T>(&mut self, work: impl FnOnce(&mut NodeEnd) -> T) -> T {
        let began = kernel::thread_time();
        let done = work(&mut self.end);
        self.end.serve();
        self.result.processor_s += (kernel::thread_time() - began).as_secs_f64();
        done
    }

    fn push(&mut self, encoder: &mut FlowEncoder, bytes: Bytes) {
        self.now += BYTE_TIME * bytes.len() as u32;
        let now = self.now;
        self.counting(|_| encoder.push(now, FlowSegment::payload(bytes)));
    }

    fn poll(&mut self, encoder: &mut FlowEncoder) -> Option<Bytes> {
        let now = self.now;
        self.counting(|end| end.encode(now, encoder))
    }

    fn pump(&mut self, sender: &mut EncodingSender) -> Result<()> {
        loop {
            match self.poll(&mut sender.encoder) {
                Some(encoded) => {
                    self.result.wire_bytes += length_of(&SessionFrame::Data(DataFrame {
                        flow: FLOW,
                        offset: sender.encoded,
                        bytes: encoded.clone(),
                    }));
                    sender.encoded += encoded.len() as u64;
                    self.exchange(sender, kind::DATA, &encoded)?;
                }
                None if self.is_stalled(&sender.encoder) => {
                    self.exchange(sender, kind::ACKNOWLEDGE, &[])?;
                    ensure!(!self.is_stalled(&sender.encoder), "nothing is acknowledged");
                }
                None => return Ok(()),
            }
        }
    }

    fn is_stalled(&self, encoder: &FlowEncoder) -> bool {
        encoder.retained() >= self.config.encoder.retained.as_usize()
    }

    /// Sends a message to the receiver and handles its answers.
    fn exchange(&mut self, sender: &mut EncodingSender, kind: u8, bytes: &[u8]) -> Result<()> {
        self.say(kind, bytes)?;
        loop {
            let (kind, bytes) = self.hear()?;
            match kind {
                kind::DONE => return Ok(()),
                kind::ACKNOWLEDGE => {
                    let offset = u64::from_le_bytes(bytes[..].try_into().context("an offset")?);
                    let frame = acknowledgement(FLOW, sender.encoded, offset);
                    self.result.wire_bytes += length_of(&frame);
                    self.counting(|end| {
                        sender.encoder.acknowledged(offset, &mut end.dictionary);
                    });
                }
                kind::REPAIR => {
                    let answer = self.counting(|_| sender.encoder.repair(&bytes))?;
                    let next = sender.messages + 1;
                    for frame in [
                        message(FLOW, sender.messages, &bytes),
                        message(FLOW, sender.messages, &answer),
                        SessionFrame::MessageAck(MessageAck { next }),
                        SessionFrame::MessageAck(MessageAck { next }),
                    ] {
                        self.result.wire_bytes += length_of(&frame);
                    }
                    sender.messages = next;
                    self.result.repairs += 1;
                    self.say(kind::ANSWER, &answer)?;
                }
                other => bail!("the receiver says {other}"),
            }
        }
    }

    fn receive(&mut self, task: &EndTask, data: &mut ExpectedContent) -> Result<()> {
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), self.end.peer);
        let mut expected = Bytes::new();
        let mut left = task.bytes;
        let mut acknowledged = 0;
        loop {
            let (kind, bytes) = self.hear()?;
            match kind {
                kind::DATA => {
                    self.counting(|_| decoder.push(bytes));
                    while let Some(segment) = self.restore(&mut decoder)? {
                        let mut rest = &segment[..];
                        while !rest.is_empty() {
                            if expected.is_empty() {
                                expected = data.next(left.min(PIECE as u64) as usize);
                                left -= expected.len() as u64;
                                ensure!(!expected.is_empty(), "more came out than was sent");
                            }
                            let length = rest.len().min(expected.len());
                            ensure!(
                                rest[..length] == expected.split_to(length)[..],
                                "other bytes came out than were sent"
                            );
                            rest = &rest[length..];
                        }
                        self.result.bytes += segment.len() as u64;
                    }
                }
                kind::ACKNOWLEDGE | kind::END => {}
                other => bail!("the sender says {other}"),
            }
            let consumed = decoder.consumed();
            if consumed - acknowledged >= ACKNOWLEDGED_AT_ONCE
                || kind != kind::DATA && consumed > acknowledged
            {
                acknowledged = consumed;
                if task.role == ProcessRole::Survive {
                    self.end.write_down(&mut self.now);
                }
                self.say(kind::ACKNOWLEDGE, &consumed.to_le_bytes())?;
            }
            self.say(kind::DONE, &[])?;
            if kind == kind::END {
                let is_whole = decoder.is_at_boundary() && self.result.bytes == task.bytes;
                ensure!(is_whole, "not all came out that was sent");
                return Ok(());
            }
        }
    }

    /// Next bytes from the decoder; `None` when it needs more input.
    fn restore(&mut self, decoder: &mut FlowDecoder) -> Result<Option<Bytes>> {
        loop {
            let decoded = self.counting(|end| decoder.poll(&mut end.dictionary))?;
            match decoded {
                DecoderOutput::Segment(segment) => return Ok(Some(segment.bytes)),
                DecoderOutput::NeedMore => return Ok(None),
                // Its disk work is done by the time that it is asked again.
                DecoderOutput::WaitForDisk => {}
                DecoderOutput::NeedRepair(request) => {
                    self.say(kind::REPAIR, &request)?;
                    let (kind, answer) = self.hear()?;
                    ensure!(kind == kind::ANSWER, "the sender says {kind}");
                    self.counting(|_| decoder.handle_repair(&answer))?;
                }
                DecoderOutput::WaitForRepair => {
                    bail!("a decoder waits for a repair that it was given")
                }
            }
        }
    }

    fn fill(&mut self, task: &EndTask) -> Result<()> {
        let mut encoder = FlowEncoder::new(self.config.encoder, self.end.peer);
        let mut noise = RandomBytes::new(task.seed);
        let mut encoded = 0;
        let mut is_told = false;
        loop {
            self.push(&mut encoder, noise.next(PIECE));
            self.result.bytes += PIECE as u64;
            while let Some(bytes) = self.poll(&mut encoder) {
                encoded += bytes.len() as u64;
                self.counting(|end| encoder.acknowledged(encoded, &mut end.dictionary));
            }
            let statistics = self.end.dictionary.statistics();
            // On a full disk it would go on for ever.
            ensure!(
                statistics.disk_faults == 0,
                "a write of the dictionary's failed with {} of {} bytes on disk; free the rest and half \
                 as much again there, or give --directory another disk",
                statistics.disk_bytes,
                task.bytes,
            );
            if !is_told && statistics.disk_bytes >= task.bytes {
                is_told = true;
                self.result.encoded_bytes = encoded;
                self.conclude(&task.result)?;
            }
        }
    }

    /// Stores the rest, and then writes the result.
    fn conclude(&mut self, path: &Path) -> Result<()> {
        self.end.settle(&mut self.now);
        let statistics = self.end.dictionary.statistics();
        self.result.chunks = statistics.chunks;
        self.result.disk_bytes = statistics.disk_bytes;
        self.result.unwritten_chunks = statistics.unwritten_chunks;
        self.result.resident_peak_bytes = resident("VmHWM:")?;
        // Whoever waits for the file finds it whole.
        let unfinished = path.with_extension("unfinished");
        serde_json::to_writer(File::create(&unfinished)?, &self.result)?;
        std::fs::rename(&unfinished, path)?;
        Ok(())
    }

    fn say(&mut self, kind: u8, bytes: &[u8]) -> Result<()> {
        self.output.write_all(&[kind])?;
        self.output.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.output.write_all(bytes)?;
        // Nothing is heard before the other end has this.
        self.output.flush().context("the other end is gone")
    }

    fn hear(&mut self) -> Result<(u8, Bytes)> {
        let mut head = [0; 5];
        let heard = self.input.read_exact(&mut head);
        heard.context("the other end is gone")?;
        let [kind, length @ ..] = head;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        self.input.read_exact(&mut bytes)?;
        Ok((kind, bytes.into()))
    }
}

/// Content that a receiver expects.
enum ExpectedContent {
    Noise(RandomBytes),
    Blocks(SeededBlocks),
}

impl ExpectedContent {
    fn next(&mut self, length: usize) -> Bytes {
        match self {
            Self::Noise(noise) => noise.next(length),
            Self::Blocks(blocks) => blocks.next(length),
        }
    }
}

/// An encoder and where its stream is.
struct EncodingSender {
    encoder: FlowEncoder,
    encoded: u64,
    messages: u64,
}

/// A line of proc_pid_status(5), in bytes.
fn resident(line: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    let kibibytes = found.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kibibytes.context("proc_pid_status(5) has no such line")? * 1024)
}
