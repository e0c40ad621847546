//! The far half: the server's client.
//!
//! It gathers each frame of the client's, learns from passing messages, and requests an exclusive
//! oplock with every open that it may serve. Under such an oplock it reads ahead and tells the near
//! half which requests it may answer. It gives nothing back to the server before the near half has
//! stopped.
//!
//! ```text
//!              SIGNED, SEALED, SMB1, limit ──► LetGo: bytes pass for ever
//!   Watching ─┤
//!              an open may be served ──► Engaged ── the same ──► Close
//! ```
//! While Watching, every byte passes unchanged, message ids included. While Engaged, requests get
//! ids of the server's window here, and answers get the client's id back. Letting go is then no
//! longer safe: a translation would not help a client whose signed messages contain ids that the
//! server has seen. So an unsupported message ends the flow.
//!
//! In a session whose key is delegated, every signed message is gathered whole and verified before
//! it is used, and signed again if it was altered (`sessions`, [`crate::smb::keys`]). "SIGNED" in
//! the drawing is a signed request of another session, or an invalid signature. "SEALED" is an
//! encrypted message that no key here decrypts. Decrypted messages pass unchanged while Watching;
//! while Engaged, the near half decrypts the client's, and both halves encrypt the messages to
//! their hosts (`sealing`).
//!
//! Requests reach the server in the client's order. A request, and all behind it, waits while the
//! server has granted no credit, while it closes a directory with unanswered queries, or while
//! WRITEs and CLOSEs are outstanding that the client may believe complete (only further WRITEs pass
//! then). So no request overtakes one that the client believes complete. A request that the server may
//! refuse because of opens that no client has waits until those are closed (`give_way`).

mod answers;
mod connection;
mod file_system;
mod give_way;
mod ids;
mod leases;
mod list_ahead;
mod list_children;
mod listing;
mod look_ahead;
pub(crate) mod message;
pub(crate) mod open;
mod open_after_change;
mod open_after_stat;
mod open_ahead;
mod opening;
mod oplocks;
mod outstanding;
mod query_ahead;
pub(crate) mod read_ahead;
mod read_habits;
mod requests;
mod room;
mod sealing;
mod sessions;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use vocab::{FlowSegment, SeededRandom, SegmentKind, Time};

use super::config::{ConsistencyMode, SmbSettings};
use super::frames::{
    COMPOUNDS, HalfFrame, LATE_WRITES, LEASED_OFFERS, LISTING_OFFERS, LOOKS, OFFICE_REQUESTS,
    TAKES_KEYS, TAKES_LEASES, TAKES_OFFERS, TAKES_SEALING,
};
use super::keys::PendingSetUps;
use super::listing::DirectoryQuery;
use super::wire::FileId;
use super::wire::query_info::InformationQuestion;
use super::wire::set_info::PlainChange;
use super::wire::split::{ForeignFrame, Smb2MessageHead, Smb2Splitter, is_sealed};
use crate::pace::ReadAheadPace;
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};
use connection::Smb2Connection;
use ids::MessageIds;
use leases::{LeaseTable, RequestedLease};
use message::GatheredMessage;
use open::TrackedOpen;
use outstanding::{OutstandingRequest, RequestTable};
use query_ahead::QuestionTrigger;
use sessions::SessionTable;

/// The state of the half; see the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarState {
    Watching,
    Engaged,
    /// It has let go or closed; the engine drops it.
    Gone,
}

/// The progress of the end of the client's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamFinish {
    Open,
    Wanted,
    Done,
}

/// The purpose of an outstanding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPurpose {
    /// The answer is needed only for [`Smb2Connection`].
    Plain,
    /// To open a file.
    Create {
        is_ours: bool,
        /// For a directory, to list it.
        may_read: bool,
        may_write: bool,
        may_set: bool,
        /// A directory, or for attributes alone: no oplock is wanted.
        is_bare: bool,
        /// The tree of the request; the answer of a pending one does not contain it.
        tree: u32,
        /// The client requests this lease.
        lease: Option<RequestedLease>,
        /// It requests one for an open for attributes alone.
        is_leased: bool,
        /// The form of the request, after which its client asks questions.
        form: QuestionTrigger,
        /// The open may outlive its connection.
        is_durable: bool,
    },
    /// To open a directory in a compound with its first requests for names, of this form and
    /// length; without a form they do not go through the whole directory.
    OpensListing {
        tree: u32,
        query: Option<DirectoryQuery>,
        length: u32,
    },
    /// It may change this open's file.
    Changes { file: FileId, change: FileChange },
    /// It ends this open.
    Closes(FileId),
    /// It ends the opens of a tree, or of a session.
    Ends { session: u64, tree: Option<u32> },
    /// Our own READ.
    Ahead {
        file: FileId,
        offset: u64,
        length: u32,
        position: u64,
        at: Time,
    },
    /// Names of this open's directory.
    Lists(FileId),
    /// Our own request for such.
    ListsAhead(FileId),
    /// Our own question about the file system that this open lies in.
    AsksFileSystem {
        file: FileId,
        class: u8,
        position: u64,
    },
    /// Our own question for the room in this tree.
    AsksRoom { session: u64, tree: u32, at: Time },
    /// A question about this open.
    Asks {
        file: FileId,
        question: InformationQuestion,
    },
    /// Our own question about this open.
    AsksAhead {
        file: FileId,
        question: InformationQuestion,
        position: u64,
    },
    /// Our own CREATE, by its number.
    OpensAhead(u64),
    /// Our own CREATE for a name that is probably not there, by its number.
    LooksAhead(u64),
    /// Our own CREATE of a directory that is to be listed, by its number.
    OpensChild(u64),
    /// Our own acknowledgement of a break.
    GivesBack(FileId),
    /// Our own CLOSE of a speculative open.
    ClosesAhead(FileId),
    /// Another request of our own: to set a position.
    Own,
}

/// The kind of a request that may change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileChange {
    Write,
    /// A change by SET_INFO that the near half may answer.
    Plain(PlainChange),
    Other,
}

/// The handling of the rest of the server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseRemainder {
    Pass,
    Swallow,
    /// Its payload is sent ahead.
    Ahead {
        file: FileId,
        offset: u64,
        length: u32,
        count: u32,
    },
    /// It is gathered: entries of this directory, with this status.
    Listed(FileId, u32),
    /// Entries of this directory, which pass to the client and are gathered as well.
    Told(FileId),
}

/// A message of the server's that must be whole before anything is done with it.
#[derive(Debug)]
struct HeldMessage {
    head: Smb2MessageHead,
    rest: Vec<(SegmentKind, Bytes)>,
    /// The number of outstanding bytes.
    left: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Smb2FarHalf {
    settings: SmbSettings,
    state: FarState,
    outputs: VecDeque<AcceleratorOutput>,
    connection: Smb2Connection,

    requests: Smb2Splitter,
    gathering: GatheredMessage,
    /// Frames of the client's, up to the last one gathered.
    position: u64,
    queue: VecDeque<GatheredMessage>,
    queue_bytes: usize,

    answers: Smb2Splitter,
    rest: ResponseRemainder,
    /// A message of the server's that is gathered whole.
    held: Option<HeldMessage>,
    /// Answers from here that wait for the end of one that is coming in, and for which session they
    /// are to be encrypted.
    ready: Vec<(Option<u64>, Bytes)>,

    set_ups: PendingSetUps,
    sessions: SessionTable,
    random: SeededRandom,
    /// The near half takes keys, and those for encryption.
    near_takes_keys: bool,
    near_takes_sealing: bool,
    /// The session of the client's next frame, if it arrived encrypted.
    next_sealed: Option<u64>,
    /// The message under inspection has already passed unchanged.
    is_muted: bool,
    /// The session of the server's present message, if it arrived encrypted.
    answer_sealed: Option<u64>,
    /// The account of the session that made the half let go.
    no_key_for: Option<String>,

    ids: MessageIds,
    outstanding: RequestTable,
    early_breaks: oplocks::EarlyBreaks,
    opens: BTreeMap<FileId, TrackedOpen>,
    leases: LeaseTable,
    /// The opens whose oplocks the server wants back.
    breaking: Vec<FileId>,
    /// The opens that are read ahead for, the one that was read last at the end.
    reading: VecDeque<FileId>,
    pace: ReadAheadPace,
    ahead_credits: u32,
    /// The number of outstanding WRITEs and CLOSEs that the client may believe complete.
    early: usize,
    /// The same of SET_INFOs.
    early_sets: usize,
    /// The number of opens that the server has made durable.
    durable_opens: u64,
    /// The query that is predicted for a directory as it is opened.
    usual_listing: listing::ListingGuess,
    usual_file_system: file_system::FileSystemGuess,
    question_habits: query_ahead::QuestionHabits,
    flush_habit: query_ahead::FlushHabit,
    read_habits: read_habits::ReadHabits,
    /// The received part of the answer to our own request for names.
    gathered: Vec<u8>,
    /// The number of requests for names that wait for prefetched entries.
    lists_waiting: usize,
    opens_ahead: open_ahead::SpeculativeOpens,
    /// The near half takes opens that were made ahead, and leases.
    near_takes_offers: bool,
    near_takes_leases: bool,
    /// The near half knows the rules of [`COMPOUNDS`].
    near_takes_compounds: bool,
    near_takes_leased_offers: bool,
    stats: open_after_stat::StatHistory,
    aliases: open_after_stat::LeaseAliases,
    changes: open_after_change::NameChanges,
    /// The same of [`OFFICE_REQUESTS`] and [`LISTING_OFFERS`].
    near_takes_office_requests: bool,
    /// The same of [`LOOKS`].
    near_takes_looks: bool,
    looks: look_ahead::LookHabits,
    near_takes_listing_offers: bool,
    /// The same of [`LATE_WRITES`].
    near_takes_late_writes: bool,
    room: room::RoomTable,
    children: list_children::ChildListings,
    deleting: give_way::DeletingOpens,

    client_finish: StreamFinish,
}

impl HeldMessage {
    fn bytes(&self) -> usize {
        let rest: usize = self.rest.iter().map(|(_, bytes)| bytes.len()).sum();
        self.head.bytes.len() + rest
    }
}

impl Smb2FarHalf {
    /// A half that has not started.
    pub(crate) fn new(settings: SmbSettings, chance: SeededRandom) -> Self {
        // Without secrets nothing encrypted is ever opened.
        let splitter = match settings.accounts.is_some() || settings.keytab.is_some() {
            true => Smb2Splitter::taking_sealed,
            false => Smb2Splitter::new,
        };
        let pace = ReadAheadPace::default();
        Self {
            set_ups: PendingSetUps::new(&settings),
            sessions: SessionTable::default(),
            random: chance,
            near_takes_keys: false,
            near_takes_sealing: false,
            next_sealed: None,
            is_muted: false,
            answer_sealed: None,
            no_key_for: None,
            settings,
            state: FarState::Watching,
            outputs: VecDeque::new(),
            connection: Smb2Connection::default(),
            requests: splitter(),
            gathering: GatheredMessage::default(),
            position: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            answers: splitter(),
            rest: ResponseRemainder::Pass,
            held: None,
            ready: Vec::new(),
            ids: MessageIds::new(),
            outstanding: RequestTable::default(),
            early_breaks: oplocks::EarlyBreaks::default(),
            opens: BTreeMap::new(),
            leases: LeaseTable::default(),
            breaking: Vec::new(),
            reading: VecDeque::new(),
            pace,
            ahead_credits: 0,
            early: 0,
            early_sets: 0,
            durable_opens: 0,
            usual_listing: listing::ListingGuess::default(),
            usual_file_system: file_system::FileSystemGuess::default(),
            question_habits: query_ahead::QuestionHabits::default(),
            flush_habit: query_ahead::FlushHabit::default(),
            read_habits: read_habits::ReadHabits::default(),
            gathered: Vec::new(),
            lists_waiting: 0,
            opens_ahead: open_ahead::SpeculativeOpens::default(),
            near_takes_offers: false,
            near_takes_leases: false,
            near_takes_compounds: false,
            near_takes_leased_offers: false,
            stats: open_after_stat::StatHistory::default(),
            aliases: open_after_stat::LeaseAliases::default(),
            changes: open_after_change::NameChanges::default(),
            near_takes_office_requests: false,
            near_takes_looks: false,
            looks: look_ahead::LookHabits::default(),
            near_takes_listing_offers: false,
            near_takes_late_writes: false,
            room: room::RoomTable::default(),
            children: list_children::ChildListings::default(),
            deleting: give_way::DeletingOpens::default(),
            client_finish: StreamFinish::Open,
        }
    }

    fn tell_near(&mut self, frame: HalfFrame) {
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
            FarState::Watching => {
                self.give_gathered();
                self.give_held();
                let held = self.answers.give_back();
                self.send_client(SegmentKind::Payload, held);
                LettingGo::LetGo { reason }
            }
            FarState::Engaged => LettingGo::Close { reason },
            FarState::Gone => return,
        };
        self.state = FarState::Gone;
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(letting_go));
    }

    /// Passes the client's gathered message on unchanged.
    fn give_gathered(&mut self) {
        let waiting = std::mem::take(&mut self.queue).into_iter();
        let gathered = std::mem::take(&mut self.gathering);
        for bytes in waiting
            .chain([gathered])
            .flat_map(GatheredMessage::into_bytes)
        {
            self.send_server(bytes);
        }
        self.queue_bytes = 0;
        let held = self.requests.give_back();
        self.send_server(held);
    }

    /// Passes the gathered part of the server's message on unchanged.
    fn give_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.send_client(SegmentKind::Control, held.head.bytes.freeze());
            for (kind, bytes) in held.rest {
                self.send_client(kind, bytes);
            }
        }
    }

    fn stop_for(&mut self, foreign: ForeignFrame) {
        self.stop(match foreign {
            ForeignFrame::Encrypted => ReasonCode::ENCRYPTED,
            ForeignFrame::Smb1 | ForeignFrame::Compressed => ReasonCode::UNSUPPORTED,
            ForeignFrame::TooLong => ReasonCode::LIMIT,
            ForeignFrame::Unknown => ReasonCode::VIOLATION,
        });
    }

    /// From here on hosts' messages are altered.
    fn engage(&mut self) {
        if self.state == FarState::Watching {
            self.state = FarState::Engaged;
            if self.near_takes_compounds {
                let known = [
                    (self.near_takes_late_writes, LATE_WRITES),
                    (self.near_takes_listing_offers, LISTING_OFFERS),
                    (self.near_takes_looks, LOOKS),
                    (self.near_takes_office_requests, OFFICE_REQUESTS),
                    (self.near_takes_leased_offers, LEASED_OFFERS),
                ];
                let known = known.into_iter().find(|(is_known, _)| *is_known);
                let version = known.map_or(COMPOUNDS, |(_, version)| version);
                self.tell_near(HalfFrame::Speaks { version });
            }
            self.tell_near(HalfFrame::Engaged {
                version: super::frames::VERSION,
            });
            self.tell_sealing();
        }
    }

    fn frame(&mut self, now: Time, bytes: &[u8]) {
        match HalfFrame::parse(bytes) {
            Ok(Some(HalfFrame::Beat { number })) => self.tell_near(HalfFrame::Heard { number }),
            Ok(Some(HalfFrame::Again { header, request })) => self.read_again(&header, &request),
            Ok(Some(HalfFrame::Dropped { file, from, to })) => self.dropped(file, &(from..to)),
            Ok(Some(HalfFrame::Revoked { file })) => self.confirmed(file),
            Ok(Some(HalfFrame::Forgot { file })) => self.forget_fresh(file),
            Ok(Some(HalfFrame::Speaks { version })) => {
                self.near_takes_keys = version >= TAKES_KEYS;
                self.near_takes_sealing = version >= TAKES_SEALING;
                self.near_takes_offers = version >= TAKES_OFFERS;
                self.near_takes_leases = version >= TAKES_LEASES;
                self.near_takes_compounds = version >= COMPOUNDS;
                self.near_takes_leased_offers = version >= LEASED_OFFERS;
                self.near_takes_office_requests = version >= OFFICE_REQUESTS;
                self.near_takes_looks = version >= LOOKS;
                self.near_takes_listing_offers = version >= LISTING_OFFERS;
                self.near_takes_late_writes = version >= LATE_WRITES;
            }
            Ok(Some(HalfFrame::Sealed { session })) => self.request_sealed(session),
            Ok(Some(HalfFrame::Took { file })) => {
                self.took_child(file);
                self.took(now, file);
            }
            Ok(Some(HalfFrame::Unwanted {
                file,
                session,
                tree,
                guard,
            })) => self.unwanted(file, (session, tree), guard),
            // A later release's; or one that only this half sends.
            Ok(_) => {}
            Err(_) => self.stop(ReasonCode::VIOLATION),
        }
    }

    /// Handles the end of the client's stream: nothing is served any more. Waiting requests still
    /// go to the server, and then the stream towards it ends (see [`Self::pump`]).
    fn client_finished(&mut self, now: Time) {
        self.client_finish = StreamFinish::Wanted;
        self.forgo_company(now);
        self.stop_serving_all();
        self.forgo_children();
        if self.state == FarState::Watching {
            // With the beginning of a message that never came whole.
            self.give_gathered();
        }
    }
}

impl AcceleratorHalf for Smb2FarHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        if self.state == FarState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Start => {
                self.outputs.push_back(AcceleratorOutput::OpenServer);
                match self.settings.consistency {
                    ConsistencyMode::Off => self.stop(ReasonCode::POLICY),
                    ConsistencyMode::Strict | ConsistencyMode::Relaxed { .. } => {}
                }
            }
            AcceleratorInput::Lan(bytes) => self.answer_bytes(now, bytes),
            AcceleratorInput::LanFinished => {
                // What was to be verified and never came whole is nobody's business, once ids differ.
                match self.state {
                    FarState::Watching => self.give_held(),
                    FarState::Engaged | FarState::Gone => self.held = None,
                }
                let held = self.answers.give_back();
                // Nor is the beginning of what is encrypted, where everything else goes in the clear.
                if self.state == FarState::Watching || !is_sealed(&held) {
                    self.send_client(SegmentKind::Control, held);
                }
                self.outputs.push_back(AcceleratorOutput::FinishWan);
            }
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => {
                    self.request_bytes(now, segment.bytes);
                }
                SegmentKind::Frame => self.frame(now, &segment.bytes),
            },
            AcceleratorInput::WanFinished => self.client_finished(now),
            AcceleratorInput::WanSilent(_) | AcceleratorInput::Woken => {}
            AcceleratorInput::ClaimGranted => self.is_alone(),
            AcceleratorInput::ClaimRevoked | AcceleratorInput::ClaimDenied => {
                self.is_beside_others(now)
            }
            AcceleratorInput::Content(_) | AcceleratorInput::Server(..) => {}
            AcceleratorInput::Timeout => {
                self.give_back_overdue(now);
                self.retire_overdue(now);
                self.retire_old_children(now);
                self.end_overdue(now);
                self.give_back_for_ending_sessions(now);
            }
        }
        self.pump(now);
    }

    fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.pace.set_backlog(now, bytes);
        if self.state == FarState::Engaged {
            self.pump(now);
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let offers = self.opens_ahead.next_overdue(self.staleness());
        let children = self.next_child_overdue();
        let ending = self.sessions.next_ending();
        let times = [
            self.next_overdue(),
            self.stops_by(),
            offers,
            children,
            ending,
        ];
        times.into_iter().flatten().min()
    }

    fn buffered(&self) -> usize {
        let waiting: usize = self
            .opens
            .values()
            .flat_map(|open| &open.waiting)
            .map(|waiting| waiting.message.bytes())
            .sum();
        let lists: usize = self
            .opens
            .values()
            .filter_map(|open| open.listing.as_ref())
            .map(listing::OpenListing::waiting_bytes)
            .sum();
        self.queue_bytes
            + self.gathering.bytes()
            + self.requests.held()
            + self.answers.held()
            + self.held.as_ref().map_or(0, HeldMessage::bytes)
            + waiting
            + lists
            + self.gathered.len()
            + self.opens_ahead.bytes()
            + self.children.bytes()
            + self.early_breaks.bytes()
            + self.leases.bytes()
    }

    fn note(&self) -> Option<String> {
        let durable = (self.durable_opens > 0).then(|| {
            format!(
                "{} durable opens, whose WRITEs and CLOSEs only the server answers (durable = \"decline\" in \
                 [smb] of the far node, or the mount option nolease, changes this)",
                self.durable_opens
            )
        });
        let texts = self.sessions.text().into_iter().chain(durable);
        let texts = texts.chain(self.leases.text());
        let texts: Vec<String> = texts.collect();
        let known = (!texts.is_empty()).then(|| texts.join("; "));
        self.no_key_for.clone().or(known)
    }
}
