//! Estimate of Trunkline's savings on given data: all data goes through a [`NodePair`], in order.
//!
//! A file is a flow from the near end to the far one. A capture is one flow for each TCP connection
//! in it, in both directions, as the hosts sent them; the client is at the near end. Within a
//! connection the capture's order and time group the data: a direction's bytes are sent when the
//! other host speaks, after [`PAUSE`] without data, or when an engine's limit is reached. The
//! hosts' sending rate otherwise depends on the captured line and is ignored.

use std::collections::BTreeMap;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;

use super::files::{self, InputSource, SkippedInput};
use super::pair::{NodePair, PairSide, PairStream, TrafficTally};
use capture::{
    self, CaptureReader, CapturedConnection, CapturedPacket, StreamCounts, StreamDirection,
    StreamEvent, StreamReassembler,
};
use host::kernel::{self, InterruptibleFile};
use host::progress::ProgressReporter;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;
/// Silence in a capture after which a direction's bytes have been sent on: longer than a sender's
/// gaps within one message, shorter than a person's.
const PAUSE: Duration = Duration::from_millis(100);
/// Captured frames between two looks at the clock and at the keyboard.
const FRAMES_AT_ONCE: u64 = 4_096;

/// Treatment of files that begin like captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureRecognition {
    /// As captures.
    Captures,
    /// As any other file.
    FilesOnly,
}

/// Direction of one flow, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstimateItem {
    /// The file; of a capture's stream also from which host to which.
    pub path: String,
    /// Its figures.
    pub tally: TrafficTally,
}

/// Contents of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureNotes {
    /// The file.
    pub path: String,
    /// Counters of the capture.
    pub counts: StreamCounts,
}

/// Estimate over all inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReductionEstimate {
    /// Items in the order in which they were sent; those of captures in the order in which
    /// connections ended.
    pub items: Vec<EstimateItem>,
    /// Inputs that were not sent, or not completely.
    pub skipped: Vec<SkippedInput>,
    /// Notes on each capture.
    pub captures: Vec<CaptureNotes>,
}

impl ReductionEstimate {
    /// All items together.
    #[must_use]
    pub fn total(&self) -> TrafficTally {
        let mut total = TrafficTally::default();
        for item in &self.items {
            total.add(&item.tally);
        }
        total
    }

    /// Names of files whose bytes were not all sent though they should have been.
    pub fn losses(&self) -> impl Iterator<Item = &SkippedInput> {
        self.skipped.iter().filter(|skipped| skipped.is_loss)
    }
}

/// Sends everything under `inputs` through `pair`; `excluded` is a directory to skip.
///
/// # Errors
/// When an input does not exist ([`host::invalid_request::InvalidRequest`]; nothing was started),
/// when the output at the other end differs, or on Ctrl-C. Unreadable inputs are no error; the
/// result lists them.
pub fn estimate(
    pair: &mut NodePair,
    inputs: &[InputSource],
    recognition: CaptureRecognition,
    excluded: Option<&Path>,
    progress: &dyn ProgressReporter,
) -> Result<ReductionEstimate> {
    let found = files::find(inputs, excluded)?;
    let mut work = EstimateRun {
        pair,
        recognition,
        progress,
        total: found.files.iter().map(|(_, bytes)| bytes).sum(),
        read: 0,
        estimate: ReductionEstimate {
            skipped: found.skipped,
            ..ReductionEstimate::default()
        },
    };
    for (input, _) in found.files {
        work.take(&input)?;
    }
    let estimate = work.estimate;
    pair.settle();
    Ok(estimate)
}

struct EstimateRun<'a> {
    pair: &'a mut NodePair,
    recognition: CaptureRecognition,
    progress: &'a dyn ProgressReporter,
    total: u64,
    read: u64,
    estimate: ReductionEstimate,
}

impl EstimateRun<'_> {
    fn take(&mut self, input: &InputSource) -> Result<()> {
        let (name, opened) = match input {
            InputSource::Standard => ("-".to_owned(), InterruptibleFile::standard_input()),
            InputSource::Path(path) => (path.display().to_string(), InterruptibleFile::open(path)),
        };
        self.step(&name)?;
        let mut first = Vec::new();
        let begun = opened.and_then(|mut file| {
            file.by_ref().take(4).read_to_end(&mut first)?;
            Ok(file)
        });
        let file = match begun {
            Ok(file) => file,
            Err(error) => {
                self.step(&name)?;
                self.lose(&name, format!("cannot be read: {error}"));
                return Ok(());
            }
        };
        let is_capture =
            self.recognition == CaptureRecognition::Captures && capture::is_capture(&first);
        let whole = Cursor::new(first).chain(file);
        match is_capture {
            true => self.take_capture(&name, whole),
            false => self.take_file(&name, whole),
        }
    }

    fn take_file(&mut self, name: &str, mut file: impl Read) -> Result<()> {
        let mut stream = self.pair.start(PairSide::Near);
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = file.by_ref().take(PIECE as u64).read_to_end(&mut piece);
            let length = piece.len() as u64;
            self.read += length;
            self.pair.send(&mut stream, Bytes::from(piece))?;
            match read {
                Ok(0) => break,
                Ok(_) => self.step(name)?,
                Err(error) => {
                    self.step(name)?;
                    let reason = format!("could not be read to its end: {error}");
                    self.lose(name, reason);
                    break;
                }
            }
        }
        let tally = self.pair.finish(stream)?;
        self.estimate.items.push(EstimateItem {
            path: name.to_owned(),
            tally,
        });
        Ok(())
    }

    fn take_capture(&mut self, name: &str, file: impl Read) -> Result<()> {
        let mut streams = StreamReassembler::default();
        let mut flows = OpenFlows::default();
        let mut frames = match CaptureReader::open(BufReader::with_capacity(PIECE, file)) {
            Ok(frames) => frames,
            Err(damage) => {
                self.step(name)?;
                self.lose(name, damage.to_string());
                return Ok(());
            }
        };
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    // The record's own head included, so that progress comes to its end.
                    self.read += frame.bytes.len() as u64 + 16;
                    streams.handle(CapturedPacket::of(&frame));
                }
                Ok(None) => break,
                Err(damage) => {
                    self.step(name)?;
                    self.lose(name, damage.to_string());
                    break;
                }
            }
            self.follow(name, &mut streams, &mut flows)?;
            if frames.packets().is_multiple_of(FRAMES_AT_ONCE) {
                self.step(name)?;
            }
        }
        streams.finish();
        self.follow(name, &mut streams, &mut flows)?;
        self.estimate.captures.push(CaptureNotes {
            path: name.to_owned(),
            counts: streams.counts(),
        });
        Ok(())
    }

    fn follow(
        &mut self,
        name: &str,
        streams: &mut StreamReassembler,
        flows: &mut OpenFlows,
    ) -> Result<()> {
        while let Some(event) = streams.poll_event() {
            match event {
                StreamEvent::Data {
                    connection,
                    direction,
                    at,
                    bytes,
                } => flows.send(self.pair, connection, direction, at, bytes)?,
                StreamEvent::Ended { number } => {
                    for (way, tally) in flows.finish(self.pair, number)? {
                        let path = format!("{name} {way}");
                        self.estimate.items.push(EstimateItem { path, tally });
                    }
                }
            }
        }
        Ok(())
    }

    fn step(&self, name: &str) -> Result<()> {
        if kernel::interrupted() {
            bail!("interrupted");
        }
        let done = match self.total {
            0 => 0.0,
            total => self.read as f64 / total as f64,
        };
        self.progress.step(done.min(1.0), name);
        Ok(())
    }

    fn lose(&mut self, name: &str, reason: String) {
        self.estimate.skipped.push(SkippedInput {
            path: name.to_owned(),
            reason,
            is_loss: true,
        });
    }
}

/// The flows of a capture that are open, by their connection's number.
#[derive(Default)]
struct OpenFlows {
    open: BTreeMap<u64, CapturedFlow>,
}

struct CapturedFlow {
    connection: CapturedConnection,
    streams: [Option<PairStream>; 2],
    last_at: Duration,
}

impl OpenFlows {
    fn send(
        &mut self,
        pair: &mut NodePair,
        connection: CapturedConnection,
        direction: StreamDirection,
        at: Duration,
        bytes: Bytes,
    ) -> Result<()> {
        let flow = self.open.entry(connection.number).or_insert(CapturedFlow {
            connection,
            streams: [None, None],
            last_at: at,
        });
        let (this, other) = match direction {
            StreamDirection::FromClient => (0, 1),
            StreamDirection::FromServer => (1, 0),
        };
        if let Some(stream) = &mut flow.streams[other]
            && stream.pending() > 0
        {
            pair.pause(stream)?;
        }
        if let Some(stream) = &mut flow.streams[this]
            && at.saturating_sub(flow.last_at) >= PAUSE
        {
            pair.pause(stream)?;
        }
        flow.last_at = at;
        if flow.streams[this].is_none() {
            let from = [PairSide::Near, PairSide::Far][this];
            flow.streams[this] = Some(match &flow.streams[other] {
                Some(stream) => pair.start_against(stream),
                None => pair.start(from),
            });
        }
        match &mut flow.streams[this] {
            Some(stream) => pair.send(stream, bytes),
            None => Ok(()),
        }
    }

    /// The streams of a connection that has ended, by from where to where.
    fn finish(&mut self, pair: &mut NodePair, number: u64) -> Result<Vec<(String, TrafficTally)>> {
        let Some(flow) = self.open.remove(&number) else {
            return Ok(Vec::new());
        };
        let CapturedConnection { client, server, .. } = flow.connection;
        let ways = [
            format!("{client} > {server}"),
            format!("{server} > {client}"),
        ];
        let mut ended = Vec::new();
        for (way, stream) in ways.into_iter().zip(flow.streams) {
            if let Some(stream) = stream {
                ended.push((way, pair.finish(stream)?));
            }
        }
        Ok(ended)
    }
}
