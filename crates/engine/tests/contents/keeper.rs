//! An accelerator for these tests that stores the servers' answers, and answers from them.
//!
//! ```text
//!  request   key:u64 start:u64 end:u64, from the client; the server answers with a body and ends its stream
//!  near half  knows the key ─ yes ─► Read{handle, range} ─► client     nothing of it crosses the WAN
//!                │ no                     └ Gone ─► the server is asked, what the client has is skipped
//!                └────► the server is asked; its body is stored on its way to the client
//! ```
//! Its index maps keys to serialised handles, as one on disk would, and outlives the engine.
#![allow(
    clippy::disallowed_types,
    reason = "the test looks at the index that the halves share"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use accelerate::registry::AcceleratorEntry;
use accelerate::settings::AcceleratorSettings;
use accelerate::shared::{SharedState, StartContext, UnsharedState};
use accelerate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ContentAbsence, ContentHandle, ContentId,
    ContentRefusal, ContentReport, ContentRequest, WanEnd,
};
use bytes::{Bytes, BytesMut};
use engine::FlowPolicy;
use vocab::{FlowSegment, SegmentKind, Time};

/// Bytes of a request.
pub(crate) const REQUEST: usize = 24;
/// The server ports that it serves.
pub(crate) const PORTS: [u16; 3] = [7_000, 7_001, 7_002];

static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: 250,
    name: "keeper",
    ports: &PORTS,
    detection: None,
    parse: |_| Ok(Arc::new(KeeperSettings::default())),
    moved_keys: &[],
    uses_delegated: false,
    switch_on: None,
    explain: |_, _| None,
};

/// The near node's index of bodies, and the results of its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyIndex {
    /// The serialised handle of each body.
    pub(crate) handles: BTreeMap<u64, Bytes>,
    pub(crate) stored: usize,
    pub(crate) refused: Vec<ContentRefusal>,
    /// Reads that were answered to their end.
    pub(crate) hits: usize,
    pub(crate) absences: Vec<ContentAbsence>,
    /// The bodies that the node is asked to keep.
    pub(crate) wanted: BTreeSet<u64>,
}

/// The accelerator's settings: its index, which the test looks at.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeeperSettings {
    pub(crate) index: Arc<Mutex<BodyIndex>>,
}

impl KeeperSettings {
    pub(crate) fn index(&self) -> BodyIndex {
        self.index.lock().unwrap().clone()
    }

    /// A policy with this accelerator.
    pub(crate) fn policy(&self) -> FlowPolicy {
        let mut policy = FlowPolicy::default();
        policy.accelerators.set(&ENTRY, Arc::new(self.clone()));
        policy
    }
}

/// A client's request.
pub(crate) fn request(key: u64, range: Range<u64>) -> Vec<u8> {
    [key, range.start, range.end]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect()
}

impl AcceleratorSettings for KeeperSettings {
    fn is_on(&self) -> bool {
        true
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(UnsharedState::new(
            self.clone(),
            |keeper, half, _| match half {
                WanEnd::Near => Box::new(KeeperNearHalf::new(Arc::clone(&keeper.index))),
                WanEnd::Far => Box::new(KeeperFarHalf::default()),
            },
        ))
    }
}

/// The id of the only store or read of a flow.
const ID: ContentId = ContentId(1);

struct KeeperNearHalf {
    index: Arc<Mutex<BodyIndex>>,
    outputs: VecDeque<AcceleratorOutput>,
    request: BytesMut,
    key: u64,
    range: Range<u64>,
    /// The bytes of the server's body that have arrived.
    came: u64,
    is_storing: bool,
    has_ended: bool,
}

impl KeeperNearHalf {
    fn new(index: Arc<Mutex<BodyIndex>>) -> Self {
        Self {
            index,
            outputs: VecDeque::new(),
            request: BytesMut::new(),
            key: 0,
            range: 0..0,
            came: 0,
            is_storing: false,
            has_ended: false,
        }
    }

    fn asked(&mut self) {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.request[at..at + 8]);
            u64::from_be_bytes(word)
        };
        self.key = word(0);
        self.range = word(8)..word(16);
        let known = self.index.lock().unwrap().handles.get(&self.key).cloned();
        match known {
            Some(handle) => self.content(ContentRequest::Read {
                id: ID,
                handle: ContentHandle::from_bytes(handle),
                range: self.range.clone(),
            }),
            None => self.ask_server(),
        }
    }

    fn ask_server(&mut self) {
        let request = self.request.clone().freeze();
        let segment = FlowSegment::control(request);
        self.outputs.push_back(AcceleratorOutput::ToWan(segment));
        self.is_storing = true;
        self.content(ContentRequest::Store { id: ID });
    }

    fn content(&mut self, request: ContentRequest) {
        self.outputs.push_back(AcceleratorOutput::Content(request));
    }

    /// Bytes of the server's body: all are stored, and those of the range go to the client.
    fn body(&mut self, bytes: Bytes) {
        let at = self.came;
        self.came += bytes.len() as u64;
        let within = |place: u64| place.clamp(at, self.came) - at;
        let piece = within(self.range.start) as usize..within(self.range.end) as usize;
        if piece.start < piece.end {
            let piece = bytes.slice(piece);
            self.outputs.push_back(AcceleratorOutput::ToLan(piece));
        }
        if self.is_storing {
            self.content(ContentRequest::Append { id: ID, bytes });
        }
    }

    fn report(&mut self, report: ContentReport) {
        let index = Arc::clone(&self.index);
        let mut index = index.lock().unwrap();
        match report {
            ContentReport::Stored { handle, length, .. } => {
                assert_eq!(length, self.came);
                index.stored += 1;
                index.handles.insert(self.key, handle.to_bytes());
                if index.wanted.contains(&self.key) {
                    self.content(ContentRequest::Keep { handle });
                }
                self.end();
            }
            ContentReport::Refused { refusal, .. } => {
                index.refused.push(refusal);
                self.is_storing = false;
            }
            ContentReport::Piece { bytes, .. } => {
                self.range.start += bytes.len() as u64;
                self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
            }
            ContentReport::Ended { .. } => {
                index.hits += 1;
                self.end();
            }
            ContentReport::Gone { absence, .. } => {
                index.absences.push(absence);
                if absence == ContentAbsence::Gone {
                    index.handles.remove(&self.key);
                }
                self.ask_server();
            }
        }
    }

    fn end(&mut self) {
        self.has_ended = true;
        self.outputs.push_back(AcceleratorOutput::FinishLan);
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }
}

impl AcceleratorHalf for KeeperNearHalf {
    fn handle(&mut self, _: Time, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Lan(bytes) => {
                self.request.extend_from_slice(&bytes);
                if self.request.len() == REQUEST {
                    self.asked();
                }
            }
            AcceleratorInput::Wan(segment) if segment.kind == SegmentKind::Payload => {
                self.body(segment.bytes)
            }
            AcceleratorInput::WanFinished if self.is_storing => {
                self.content(ContentRequest::Finish { id: ID });
            }
            // It was refused, and nothing reports the end.
            AcceleratorInput::WanFinished if self.came > 0 => self.end(),
            // The client leaves before it has everything.
            AcceleratorInput::LanFinished if !self.has_ended => {
                self.content(ContentRequest::StopReading { id: ID });
                self.content(ContentRequest::Abandon { id: ID });
                self.end();
            }
            AcceleratorInput::Content(report) => self.report(report),
            _ => {}
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }
}

/// Passes requests on, and marks the server's answers as payload.
#[derive(Default)]
struct KeeperFarHalf {
    outputs: VecDeque<AcceleratorOutput>,
}

impl AcceleratorHalf for KeeperFarHalf {
    fn handle(&mut self, _: Time, input: AcceleratorInput) {
        let output = match input {
            AcceleratorInput::Start => AcceleratorOutput::OpenServer,
            AcceleratorInput::Wan(segment) => AcceleratorOutput::ToLan(segment.bytes),
            AcceleratorInput::WanFinished => AcceleratorOutput::FinishLan,
            AcceleratorInput::Lan(bytes) => AcceleratorOutput::ToWan(FlowSegment::payload(bytes)),
            AcceleratorInput::LanFinished => {
                self.outputs.push_back(AcceleratorOutput::EndBody);
                AcceleratorOutput::FinishWan
            }
            _ => return,
        };
        self.outputs.push_back(output);
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }
}
