//! The bodies that a flow's half stores in the dictionary, and those that it reads back.
//!
//! ```text
//!  half ──Store, Append──► ContentWriter ─┐
//!                                         Dictionary        (policy of both nodes; limits)
//!  half ◄──Piece, Ended─── ContentReader ─┘
//!             └ only while little waits for the host and for the encoder
//! ```
//! Stored bytes enter the dictionary at once. Reads take turns, one piece each. A read stops where
//! its bytes would pile up, and continues when the host, the peer or the disk has moved. A half
//! that consumes pieces without passing them on would receive a whole body in one turn; after
//! [`TURN_BYTES`] the flow therefore yields to others.

use std::collections::{BTreeMap, VecDeque};

use accelerate::{
    AcceleratorInput, ContentAbsence, ContentHandle, ContentId, ContentRefusal, ContentReport,
    ContentRequest, MAX_CONTENT_READS, MAX_CONTENT_STORES,
};
use reduce::{
    ContentRead, ContentReader, ContentUnavailable, ContentWriter, Dictionary, StoreError,
};
use vocab::Time;

use super::lan::{HostState, READ_AHEAD, WRITE_AHEAD};
use super::stage::FlowStage;
use super::{Flow, FlowFailure, FlowTurn};

/// Bytes that are read of bodies in one turn at most: some milliseconds of hashing.
const TURN_BYTES: usize = 1024 * 1024;
/// The memory of a store or a read beside its own count, about: its place in a map or a list.
const OVERHEAD: usize = 256;

/// All content transfers of one half.
#[derive(Default)]
pub(super) struct ContentTransfers {
    storing: BTreeMap<ContentId, ContentWriter>,
    /// The one whose turn it is is in front.
    reading: VecDeque<(ContentId, ContentReader)>,
    /// The reports that the half receives before any other content event.
    reports: VecDeque<ContentReport>,
    /// The time at which reads that have had their turn continue.
    resumes: Option<Time>,
    /// The last piece went on to the peer.
    feeds_peer: bool,
}

impl ContentTransfers {
    /// Bytes of memory that they hold.
    pub(super) fn held(&self) -> usize {
        let storing: usize = self.storing.values().map(ContentWriter::held).sum();
        let reading: usize = self.reading.iter().map(|(_, reader)| reader.held()).sum();
        let reports: usize = self.reports.iter().map(held_by_report).sum();
        let count = self.storing.len() + self.reading.len() + self.reports.len();
        storing + reading + reports + count * OVERHEAD
    }

    /// The time at which the flow wants a turn for them.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.resumes
    }

    fn handle(&mut self, dictionary: &mut Dictionary, may_store: bool, request: ContentRequest) {
        match request {
            ContentRequest::Store { id } => {
                let has_room = self.storing.len() < MAX_CONTENT_STORES;
                match (may_store, has_room) {
                    (false, _) => self.refuse(id, ContentRefusal::Policy),
                    (true, false) => self.refuse(id, ContentRefusal::Limit),
                    (true, true) => {
                        self.storing.insert(id, ContentWriter::new());
                    }
                }
            }
            ContentRequest::Append { id, bytes } => {
                let Some(writer) = self.storing.get_mut(&id) else {
                    return;
                };
                if !may_store {
                    self.refuse(id, ContentRefusal::Policy);
                } else if let Err(error) = writer.append(dictionary, &bytes) {
                    self.refuse(id, refusal(error));
                }
            }
            ContentRequest::Finish { id } => {
                let Some(writer) = self.storing.remove(&id) else {
                    return;
                };
                if !may_store {
                    return self.refuse(id, ContentRefusal::Policy);
                }
                match writer.finish(dictionary) {
                    Ok(handle) => self.reports.push_back(ContentReport::Stored {
                        id,
                        length: handle.length(),
                        handle: ContentHandle::from_bytes(handle.to_bytes()),
                    }),
                    Err(error) => self.refuse(id, refusal(error)),
                }
            }
            ContentRequest::Abandon { id } => {
                self.storing.remove(&id);
            }
            ContentRequest::Read { id, handle, range } => {
                if self.reading.len() >= MAX_CONTENT_READS {
                    return self.gone(id, ContentAbsence::Limit);
                }
                match reduce::ContentHandle::parse(handle.to_bytes()) {
                    Ok(handle) => {
                        let reader = ContentReader::new(handle, range);
                        self.reading.push_back((id, reader));
                    }
                    Err(_) => self.gone(id, ContentAbsence::Gone),
                }
            }
            ContentRequest::StopReading { id } => {
                self.reading.retain(|(reading, _)| *reading != id);
            }
            // They are the node's and not the flow's.
            ContentRequest::Keep { .. } | ContentRequest::Release { .. } => {}
        }
    }

    fn refuse(&mut self, id: ContentId, refusal: ContentRefusal) {
        self.storing.remove(&id);
        let report = ContentReport::Refused { id, refusal };
        self.reports.push_back(report);
    }

    fn gone(&mut self, id: ContentId, absence: ContentAbsence) {
        let report = ContentReport::Gone { id, absence };
        self.reports.push_back(report);
    }

    /// Returns the next report of one of the reads, in turn; `None` if all of them wait for the
    /// disk.
    fn read(&mut self, dictionary: &mut Dictionary, ahead: usize) -> Option<ContentReport> {
        for _ in 0..self.reading.len() {
            let (id, mut reader) = self.reading.pop_front()?;
            reader.limit_ahead(ahead);
            let report = match reader.poll(dictionary) {
                ContentRead::Piece(bytes) => {
                    self.reading.push_back((id, reader));
                    ContentReport::Piece { id, bytes }
                }
                ContentRead::WaitForDisk => {
                    self.reading.push_back((id, reader));
                    continue;
                }
                ContentRead::Done => ContentReport::Ended { id },
                ContentRead::Gone(ContentUnavailable::Gone) => ContentReport::Gone {
                    id,
                    absence: ContentAbsence::Gone,
                },
                ContentRead::Gone(ContentUnavailable::NotYet) => ContentReport::Gone {
                    id,
                    absence: ContentAbsence::NotYet,
                },
            };
            return Some(report);
        }
        None
    }
}

impl Flow {
    /// Returns true if both nodes' policies allow storing the payload of the flow.
    fn may_store_contents(&self) -> bool {
        self.may_store && !self.carry_only && !self.decoder.has_received_unstorable()
    }

    /// Executes a content request of the half.
    pub(super) fn handle_content(&mut self, turn: &mut FlowTurn<'_>, request: ContentRequest) {
        let number = self.accelerator.number;
        let parse = |handle: &ContentHandle| reduce::ContentHandle::parse(handle.to_bytes());
        if let ContentRequest::Keep { handle } = &request
            && let Ok(handle) = parse(handle)
        {
            let memory = turn.budget.limit;
            turn.kept.keep(turn.dictionary, number, &handle, memory);
        }
        if let ContentRequest::Release { handle } = &request
            && let Ok(handle) = parse(handle)
        {
            turn.kept.release(number, &handle);
        }
        let may_store = self.may_store_contents();
        self.contents.handle(turn.dictionary, may_store, request);
    }

    /// Reports the results of its bodies to the half, and gives it pieces while there is room for
    /// them.
    pub(super) fn read_contents(&mut self, turn: &mut FlowTurn<'_>) -> Result<(), FlowFailure> {
        self.contents.resumes = None;
        let mut read = 0;
        while matches!(self.stage, FlowStage::Running(_)) {
            if let Some(report) = self.contents.reports.pop_front() {
                self.accelerate(turn, AcceleratorInput::Content(report))?;
                continue;
            }
            if self.lan.host != HostState::Standing && !self.contents.feeds_peer {
                // Nobody is left to take anything.
                self.contents.reading.clear();
            }
            if self.contents.reading.is_empty() || !self.takes_pieces(turn) {
                return Ok(());
            }
            if read >= TURN_BYTES {
                self.contents.resumes = Some(turn.now);
                return Ok(());
            }
            let share = turn.budget.share();
            let Some(report) = self.contents.read(turn.dictionary, share) else {
                self.waits_for_disk = true;
                return Ok(());
            };
            let ContentReport::Piece { bytes, .. } = &report else {
                self.contents.reports.push_front(report);
                continue;
            };
            read += bytes.len();
            let before = self.encoder.pending();
            self.accelerate(turn, AcceleratorInput::Content(report))?;
            self.contents.feeds_peer = self.encoder.pending() > before;
        }
        // A half that was let go asks for nothing any more.
        self.contents = ContentTransfers::default();
        Ok(())
    }

    /// Returns true if the queue to the host, and the queue to the peer if the last piece went
    /// there, are short enough for another piece.
    fn takes_pieces(&self, turn: &FlowTurn<'_>) -> bool {
        let share = turn.budget.share();
        let for_peer = self.encoder.pending() + self.encoder.pending_overhead();
        let peer_takes = !self.contents.feeds_peer || for_peer < READ_AHEAD.min(share);
        let half_takes = match &self.stage {
            FlowStage::Running(accelerator) => accelerator.takes_content(),
            FlowStage::Released => true,
        };
        self.lan.held() < WRITE_AHEAD.min(share) && peer_takes && half_takes
    }
}

fn refusal(error: StoreError) -> ContentRefusal {
    match error {
        StoreError::TooLong => ContentRefusal::Limit,
        StoreError::Collides => ContentRefusal::Collides,
    }
}

fn held_by_report(report: &ContentReport) -> usize {
    match report {
        ContentReport::Stored { handle, .. } => handle.to_bytes().len(),
        ContentReport::Piece { bytes, .. } => bytes.len(),
        ContentReport::Refused { .. }
        | ContentReport::Ended { .. }
        | ContentReport::Gone { .. } => 0,
    }
}
