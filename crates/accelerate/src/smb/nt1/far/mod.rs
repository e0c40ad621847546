//! The far half for SMB 1: the server's client.
//!
//! It gathers each message of both hosts, learns from passing messages, and requests an exclusive
//! oplock with every open that it may serve. Under such an oplock it reads ahead and tells the near
//! half which requests it may answer. It gives nothing back to the server before the near half has
//! stopped. The rules are those of SMB 2 (docs/decisions/0029); only the differences are listed
//! here.
//!
//! ```text
//!              signed, raw, limit ──► LetGo: bytes pass for ever
//!   Watching ─┤
//!              an open may be served ──► Engaged ── the same ──► Close
//! ```
//! - **Multiplex ids.** A client that is answered early uses its id again while the server still works on
//!   the request that had it, so once Engaged requests get ids of ours, of those that are free, and answers
//!   are given the client's back. Which of the client's requests an answer belongs to is said to the near
//!   half by its position.
//! - **MaxMpxCount** bounds what is under way to the server, ours and the client's together; a client that
//!   is answered early may ask for more, and that waits here.
//! - **Signatures** are numbered through the connection and leave no room for a request of ours. What is
//!   signed passes.
//! - **File ids** are used again, and an open may end with a chain, a process or a CLOSE that fails. A file id that a
//!   server gives out anew ends what was known by it; an oplock whose open may be gone is given back only while no
//!   request is under way that may have been given the same id.
//! - A message that holds a chain of commands, or one that is not known, ends all licences of the flow.
//!
//! Requests reach the server in the client's order. A request, and all behind it, waits while the
//! server accepts no more, while WRITEs are outstanding that the client may believe complete (only
//! further WRITEs pass then), or while a position must be set to the value that the client's own
//! requests would have left.

mod ahead;
mod answers;
mod open;
mod oplocks;
mod requests;

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::{Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind, Time};

use super::frames::{Smb1HalfFrame, VERSION};
use super::wire::header::Smb1Header;
use super::wire::negotiate::Smb1NegotiateResponse;
use super::wire::position::SeekRequest;
use super::wire::set_up::ClientCapabilities;
use super::wire::split::{self, Smb1Splitter, UnreadableFrame};
use super::wire::transaction::TransactionProgress;
use super::wire::transfer::{ReadAndxRequest, WriteAndxRequest};
use crate::pace::ReadAheadPace;
use crate::smb::config::SmbSettings;
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};
use open::{FilePosition, Smb1TrackedOpen};

/// The state of the half; see the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Smb1FarState {
    Watching,
    Engaged,
    /// It has let go or closed; the engine drops it.
    Gone,
}

/// The progress of the end of the client's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Smb1StreamFinish {
    Open,
    Wanted,
    Done,
}

/// A message of the client's, in its frame.
#[derive(Clone, Debug)]
pub(crate) struct Smb1ClientMessage {
    position: u64,
    header: Smb1Header,
    frame: BytesMut,
}

impl Smb1ClientMessage {
    fn message(&self) -> &[u8] {
        split::message(&self.frame)
    }
}

/// The purpose of an outstanding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Smb1RequestPurpose {
    Plain,
    /// The client's READ of an open that is served.
    Reads {
        read: ReadAndxRequest,
        serial: u64,
        /// The end of the file when the request was sent, if it is certain. Later requests may have
        /// changed it at the server.
        end: Option<u64>,
    },
    /// To open a file that may be served.
    Create {
        is_ours: bool,
        may_read: bool,
        may_write: bool,
        /// By the Unix extensions.
        is_unix: bool,
    },
    /// It may change this open's file.
    Changes {
        file: u16,
        serial: u64,
        is_write: bool,
    },
    /// It tells a position of this open's.
    Tells {
        file: u16,
        serial: u64,
    },
    /// The same, and moves it.
    Seeks {
        seek: SeekRequest,
        serial: u64,
    },
    /// It sets FilePositionInformation.
    SetsPosition {
        file: u16,
        serial: u64,
        to: u64,
    },
    /// It may change any file.
    Anything,
    /// It ends this open.
    Closes {
        file: u16,
        serial: u64,
    },
    /// It ends the opens of a tree, or of a user.
    Ends {
        tree: Option<u16>,
        user: Option<u16>,
    },
    /// Our own READ.
    Ahead {
        file: u16,
        serial: u64,
        offset: u64,
        length: u32,
        position: u64,
        at: Time,
    },
    /// Our own request that puts an open's position where the client's would be.
    Moves {
        file: u16,
        serial: u64,
    },
}

impl Smb1RequestPurpose {
    /// Returns the open, and its serial, that no READ ahead may use until this is answered: the
    /// request may change the open's file, or concerns a position.
    fn bars_reads_ahead(self) -> Option<(u16, u64)> {
        match self {
            Self::Changes { file, serial, .. }
            | Self::Tells { file, serial }
            | Self::Seeks {
                seek: SeekRequest { file, .. },
                serial,
            }
            | Self::SetsPosition { file, serial, .. } => Some((file, serial)),
            Self::Plain
            | Self::Reads { .. }
            | Self::Create { .. }
            | Self::Anything
            | Self::Closes { .. }
            | Self::Ends { .. }
            | Self::Ahead { .. }
            | Self::Moves { .. } => None,
        }
    }
}

/// An outstanding request, by its multiplex id at the server.
#[derive(Clone, Copy, Debug)]
struct Smb1OutstandingRequest {
    /// The client's header, and its place among the client's messages; `None` for our own.
    client: Option<(Smb1Header, u64)>,
    purpose: Smb1RequestPurpose,
    /// The server may give out a file id with its answer.
    may_open: bool,
    /// The number of outstanding answers.
    answers: u16,
    progress: TransactionProgress,
    /// A WRITE that the client may believe complete.
    is_early: bool,
    /// A WRITE behind which an oplock is given back, see [`Smb1TrackedOpen::writing`].
    is_awaited: bool,
    /// The start of such a WRITE, if it is in [`Smb1TrackedOpen::written`].
    written_at: Option<u64>,
    /// A WRITE, and where its open's position was before.
    moved: Option<(WriteAndxRequest, FilePosition)>,
}

/// A request that is not answered unless it fails: an oplock given back, above all.
#[derive(Clone, Copy, Debug)]
struct SilentRequest {
    /// Its multiplex id at the server.
    mid: u16,
    /// As in [`Smb1OutstandingRequest`].
    client: Option<(Smb1Header, u64)>,
}

/// Opens that are not served, by the reason.
#[derive(Clone, Copy, Debug, Default)]
struct Smb1UnservedOpens {
    /// The client has asked for what an oplock would change: a directory, for example.
    by_request: u64,
    /// The server has granted no exclusive oplock.
    without_oplock: u64,
}

/// The number of those that are remembered, the last ones. An error comes as soon as any answer
/// would, so this is far more than may be in flight.
const SILENT_MAX: usize = 256;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Smb1FarHalf {
    settings: SmbSettings,
    state: Smb1FarState,
    outputs: VecDeque<AcceleratorOutput>,
    agreed: Option<Smb1NegotiateResponse>,
    near_speaks: bool,
    /// The client's capabilities, in all of its sessions.
    client: ClientCapabilities,

    requests: Smb1Splitter,
    /// The present message, so that letting go passes it on.
    in_hand: BytesMut,
    /// Messages of the client's, up to the last one gathered.
    position: u64,
    queue: VecDeque<Smb1ClientMessage>,
    queue_bytes: usize,

    answers: Smb1Splitter,
    outstanding: HashMap<u16, Smb1OutstandingRequest>,
    silent: VecDeque<SilentRequest>,
    next_mid: u16,
    /// The trees that hold files, and not pipes or printers.
    disks: HashSet<u16>,
    opens: HashMap<u16, Smb1TrackedOpen>,
    next_serial: u64,
    /// The opens whose oplocks the server wants back.
    breaking: Vec<u16>,
    /// The number of Revokes of each file id that the near half has not confirmed. The id may be
    /// reused meanwhile, and be broken again: only the last word is about that open.
    revoking: HashMap<u16, usize>,
    /// The same for file ids that the server has not returned yet: the answer to a request that
    /// opens a file may arrive behind the break of its oplock.
    early_breaks: Vec<u16>,
    /// True if the client may have an oplock of its own that is unknown here.
    has_other_oplocks: bool,
    /// The opens that are read ahead for, the one that was read last at the end.
    reading: VecDeque<u16>,
    pace: ReadAheadPace,
    /// The number of our outstanding READs.
    own: usize,
    /// The number of outstanding WRITEs that the client may believe complete.
    early: usize,
    /// The number of outstanding requests that may change any file.
    changing: usize,
    /// Requests up to this message may have run in parallel with a request that can change any
    /// file.
    changed_at: u64,
    /// The last message that may have ended any open.
    unread_at: u64,
    /// The number of opens that got a licence.
    served_opens: u64,
    /// The number of requests to open a file by the Unix extensions that are not served.
    unix_opens: u64,
    /// The number of other opens of which the server alone answers everything.
    unserved: Smb1UnservedOpens,
    /// The number of requests for attributes and names by a name.
    name_requests: u64,
    client_finish: Smb1StreamFinish,
}

impl Smb1FarHalf {
    /// A half for a flow on which the client's first message, and nothing more, has passed.
    pub(crate) fn new(settings: SmbSettings) -> Self {
        let pace = ReadAheadPace::default();
        Self {
            settings,
            state: Smb1FarState::Watching,
            outputs: VecDeque::new(),
            agreed: None,
            near_speaks: false,
            client: ClientCapabilities::ALL,
            requests: Smb1Splitter::default(),
            in_hand: BytesMut::new(),
            position: 1,
            queue: VecDeque::new(),
            queue_bytes: 0,
            answers: Smb1Splitter::default(),
            outstanding: HashMap::new(),
            silent: VecDeque::new(),
            next_mid: 1,
            disks: HashSet::new(),
            opens: HashMap::new(),
            next_serial: 0,
            breaking: Vec::new(),
            revoking: HashMap::new(),
            early_breaks: Vec::new(),
            has_other_oplocks: false,
            reading: VecDeque::new(),
            pace,
            own: 0,
            early: 0,
            changing: 0,
            changed_at: 0,
            unread_at: 0,
            served_opens: 0,
            unix_opens: 0,
            unserved: Smb1UnservedOpens::default(),
            name_requests: 0,
            client_finish: Smb1StreamFinish::Open,
        }
    }

    fn tell_near(&mut self, frame: &Smb1HalfFrame) {
        self.outputs
            .push_back(AcceleratorOutput::ToWan(frame.emit()));
    }

    fn send_server(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
        }
    }

    fn send_client(&mut self, kind: SegmentKind, bytes: Bytes) {
        if !bytes.is_empty() {
            let segment = FlowSegment { kind, bytes };
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
        }
    }

    /// Stops in the form that is safe in the present state.
    fn stop(&mut self, reason: ReasonCode) {
        let letting_go = match self.state {
            Smb1FarState::Watching => {
                let in_hand = std::mem::take(&mut self.in_hand);
                self.send_server(in_hand.freeze());
                let held = self.requests.give_back();
                self.send_server(held);
                let held = self.answers.give_back();
                self.send_client(SegmentKind::Payload, held);
                LettingGo::LetGo { reason }
            }
            Smb1FarState::Engaged => LettingGo::Close { reason },
            Smb1FarState::Gone => return,
        };
        self.state = Smb1FarState::Gone;
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(letting_go));
    }

    fn stop_unread(&mut self, unread: UnreadableFrame) {
        self.stop(match unread {
            UnreadableFrame::Foreign => ReasonCode::UNSUPPORTED,
            UnreadableFrame::TooLong => ReasonCode::LIMIT,
        });
    }

    /// From here on hosts' messages are altered.
    fn engage(&mut self) {
        if self.state == Smb1FarState::Watching {
            self.state = Smb1FarState::Engaged;
            self.tell_near(&Smb1HalfFrame::Engaged { version: VERSION });
        }
    }

    fn frame(&mut self, bytes: &[u8]) {
        match Smb1HalfFrame::parse(bytes) {
            // One of the first version may answer longer READs than the server would.
            Ok(Some(Smb1HalfFrame::Speaks { version })) => self.near_speaks = version >= VERSION,
            Ok(Some(Smb1HalfFrame::Beat { number })) => {
                self.tell_near(&Smb1HalfFrame::Heard { number })
            }
            Ok(Some(Smb1HalfFrame::Again { position, message })) => {
                self.read_again(position, &message)
            }
            Ok(Some(Smb1HalfFrame::Dropped { file, from, to })) => self.dropped(file, &(from..to)),
            Ok(Some(Smb1HalfFrame::Revoked { file })) => self.revoked(file),
            // Of another release, of SMB 2; or one that only this half sends.
            Ok(_) => {}
            Err(_) => self.stop(ReasonCode::VIOLATION),
        }
    }

    /// Handles the end of the client's stream: nothing is served any more. Waiting requests still
    /// go to the server, and then the stream towards it ends (see [`Self::pump`]).
    fn client_finished(&mut self) {
        self.client_finish = Smb1StreamFinish::Wanted;
        for file in self.files() {
            self.forget_ahead(file);
            self.confirmed(file);
        }
        self.reading.clear();
        if self.state == Smb1FarState::Watching {
            // The beginning of a message that never came whole.
            let held = self.requests.give_back();
            self.send_server(held);
        }
    }

    fn files(&self) -> Vec<u16> {
        self.opens.keys().copied().collect()
    }
}

impl AcceleratorHalf for Smb1FarHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        if self.state == Smb1FarState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Start
            | AcceleratorInput::WanSilent(_)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
            AcceleratorInput::Lan(bytes) => self.answer_bytes(now, &bytes),
            AcceleratorInput::LanFinished => {
                let held = self.answers.give_back();
                self.send_client(SegmentKind::Control, held);
                self.outputs.push_back(AcceleratorOutput::FinishWan);
            }
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => {
                    self.request_bytes(now, &segment.bytes);
                }
                SegmentKind::Frame => self.frame(&segment.bytes),
            },
            AcceleratorInput::WanFinished => self.client_finished(),
            AcceleratorInput::Server(..) => {}
            AcceleratorInput::Timeout => self.give_back_overdue(now),
        }
        self.pump(now);
    }

    fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.pace.set_backlog(now, bytes);
        if self.state != Smb1FarState::Gone {
            self.pump(now);
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_overdue()
    }

    fn buffered(&self) -> usize {
        let waiting = self.opens.values().flat_map(|open| &open.waiting);
        let waiting: usize = waiting.map(|(_, request)| request.frame.len()).sum();
        self.queue_bytes + self.requests.held() + self.answers.held() + waiting
    }

    fn note(&self) -> Option<String> {
        let texts = [
            (self.served_opens, "opens served"),
            (
                self.unix_opens,
                "opens for writing by the Unix extensions of SMB 1, which only the server answers (the mount \
                 option nounix changes this)",
            ),
            (
                self.unserved.without_oplock,
                "opens for which the server granted no exclusive oplock: others have the file open, or the \
                 share has none",
            ),
            (
                self.unserved.by_request,
                "opens of directories or pipes, for attributes alone, or with options that only the server can \
                 follow",
            ),
            (
                self.name_requests,
                "requests for attributes or names by a name, which only the server answers (SMB 2 or 3 changes \
                 this)",
            ),
        ];
        let texts = texts.into_iter().filter(|(count, _)| *count > 0);
        let texts: Vec<String> = texts.map(|(count, of)| format!("{count} {of}")).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}
