//! The far half: the server's client.
//!
//! It gathers each frame of the client's, learns from what passes, and asks the server for an
//! exclusive oplock with every open that it may serve. Under such an oplock it reads ahead, tells
//! the near half what it may answer, and sees to it that nothing is given back to the server
//! before the near half has stopped.
//!
//! ```text
//!              SIGNED, SEALED, SMB1, limit ──► LetGo: bytes pass for ever
//!   Watching ─┤
//!              an open may be served ──► Engaged ── the same ──► Close
//! ```
//! While Watching every byte passes as it came, message ids included. Engaged, requests get ids of
//! the server's window here; answers are given the client's id back. Letting go is not safe then,
//! and translating would not help a client whose signed messages name ids that the server has
//! seen, so what cannot go on ends the flow.
//!
//! Of a session whose key is delegated, every signed message is gathered whole and verified before
//! it is looked at, and signed again if it was altered (`sessions`, [`crate::smb::keys`]). "SIGNED"
//! in the drawing is a signed request of another session; a signature that is not valid is the
//! same. "SEALED" is an encrypted message that no key here opens. Those that are opened pass as they came
//! while Watching; Engaged, the near half opens the client's, and both seal what goes to their hosts
//! (`sealing`).
//!
//! Requests reach the server in the client's order. One waits, with all behind it, while the server
//! has given no credit, while questions wait for names that are under way and it closes their
//! directory, or while WRITEs and CLOSEs are under way that the client may hold for done (only
//! further WRITEs pass then): no request of the client's overtakes what it was told is done.

mod answers;
mod connection;
mod file_system;
mod ids;
mod leases;
mod list_ahead;
mod listing;
pub(crate) mod message;
pub(crate) mod open;
mod open_ahead;
mod opening;
mod oplocks;
mod outstanding;
pub(crate) mod pace;
pub(crate) mod read_ahead;
mod requests;
mod sealing;
mod sessions;

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use vocab::{Random, Segment, SegmentKind, Time};

use super::config::{Consistency, Settings};
use super::frames::{Frame, TAKES_KEYS, TAKES_LEASES, TAKES_OFFERS, TAKES_SEALING};
use super::keys::SetUps;
use super::wire::FileId;
use super::wire::split::{Foreign, Head, Splitter, is_sealed};
use crate::{Accelerator, Input, LettingGo, Output, ReasonCode};
use connection::Connection;
use ids::Ids;
use leases::{LeaseAsked, Leases};
use message::Message;
use open::Open;
use outstanding::{Outstanding, Requests};
use pace::Pace;
use sessions::Sessions;

/// Where the half stands; see the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Watching,
    Engaged,
    /// It has let go or closed; the engine drops it.
    Gone,
}

/// Where the end of the client's stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Open,
    Wanted,
    Done,
}

/// What a request under way was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Nothing is to be learned from the answer but what [`Connection`] does.
    Plain,
    /// To open a file.
    Create {
        is_ours: bool,
        /// For a directory, to list it.
        may_read: bool,
        may_write: bool,
        /// A directory, or for attributes alone: no oplock is wanted.
        is_bare: bool,
        /// The request's; an answer that was pending does not say it.
        tree: u32,
        /// The client asks for this lease.
        lease: Option<LeaseAsked>,
        /// The open may outlive its connection.
        is_durable: bool,
    },
    /// It may change this open's file.
    Changes { file: FileId, is_write: bool },
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
    /// Our own CREATE, by its number.
    OpensAhead(u64),
    /// Our own CLOSE of an open that is nobody's.
    ClosesAhead(FileId),
    /// Another request of our own: to give an oplock back, to set a position.
    Own,
}

/// What is done with the rest of the server's message that is coming in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
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
struct Held {
    head: Head,
    rest: Vec<(SegmentKind, Bytes)>,
    /// Bytes that are still to come.
    left: usize,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Far {
    settings: Settings,
    state: State,
    outputs: VecDeque<Output>,
    connection: Connection,

    requests: Splitter,
    gathering: Message,
    /// Frames of the client's, up to the last one gathered.
    position: u64,
    queue: VecDeque<Message>,
    queue_bytes: usize,

    answers: Splitter,
    rest: Rest,
    /// A message of the server's that is gathered whole.
    held: Option<Held>,
    /// Answers from here that wait for the end of one that is coming in, and for which session they
    /// are to be encrypted.
    ready: Vec<(Option<u64>, Bytes)>,

    set_ups: SetUps,
    sessions: Sessions,
    chance: Random,
    /// The near half takes keys, and those for encryption.
    near_takes_keys: bool,
    near_takes_sealing: bool,
    /// The next frame of the client's came encrypted for this session.
    next_sealed: Option<u64>,
    /// What is being looked at has passed as it came.
    is_muted: bool,
    /// The session that the server's message in hand came encrypted for.
    answer_sealed: Option<u64>,
    /// Whose session made the half let go.
    no_key_for: Option<String>,

    ids: Ids,
    outstanding: Requests,
    early_breaks: oplocks::EarlyBreaks,
    opens: HashMap<FileId, Open>,
    leases: Leases,
    /// The opens whose oplocks the server wants back.
    breaking: Vec<FileId>,
    /// The opens that are read ahead for, the one that was read last at the end.
    reading: VecDeque<FileId>,
    pace: Pace,
    ahead_credits: u32,
    /// WRITEs and CLOSEs under way that the client may hold for done.
    early: usize,
    /// What is asked of a directory as it is opened.
    usual_listing: listing::Usual,
    usual_file_system: file_system::Usual,
    /// The answer to a request of our own for names, as far as it has come.
    gathered: Vec<u8>,
    /// Requests for names that wait for what is read ahead.
    lists_waiting: usize,
    opens_ahead: open_ahead::OpensAhead,
    /// The near half takes opens that were made ahead, and leases.
    near_takes_offers: bool,
    near_takes_leases: bool,

    client_finish: Finish,
}

impl Held {
    fn bytes(&self) -> usize {
        let rest: usize = self.rest.iter().map(|(_, bytes)| bytes.len()).sum();
        self.head.bytes.len() + rest
    }
}

impl Far {
    /// A half that has not started.
    pub(crate) fn new(settings: Settings, chance: Random) -> Self {
        // Without secrets nothing encrypted is ever opened.
        let splitter = match settings.accounts.is_some() || settings.keytab.is_some() {
            true => Splitter::taking_sealed,
            false => Splitter::new,
        };
        Self {
            set_ups: SetUps::new(&settings),
            sessions: Sessions::default(),
            chance,
            near_takes_keys: false,
            near_takes_sealing: false,
            next_sealed: None,
            is_muted: false,
            answer_sealed: None,
            no_key_for: None,
            settings,
            state: State::Watching,
            outputs: VecDeque::new(),
            connection: Connection::default(),
            requests: splitter(),
            gathering: Message::default(),
            position: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            answers: splitter(),
            rest: Rest::Pass,
            held: None,
            ready: Vec::new(),
            ids: Ids::new(),
            outstanding: Requests::default(),
            early_breaks: oplocks::EarlyBreaks::default(),
            opens: HashMap::new(),
            leases: Leases::default(),
            breaking: Vec::new(),
            reading: VecDeque::new(),
            pace: Pace::new(),
            ahead_credits: 0,
            early: 0,
            usual_listing: listing::Usual::default(),
            usual_file_system: file_system::Usual::default(),
            gathered: Vec::new(),
            lists_waiting: 0,
            opens_ahead: open_ahead::OpensAhead::default(),
            near_takes_offers: false,
            near_takes_leases: false,
            client_finish: Finish::Open,
        }
    }

    fn tell_near(&mut self, frame: Frame) {
        self.outputs.push_back(Output::ToWan(frame.emit()));
    }

    fn send_server(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outputs.push_back(Output::ToLan(bytes));
        }
    }

    fn send_client(&mut self, kind: SegmentKind, bytes: Bytes) {
        if !bytes.is_empty() {
            let segment = Segment { kind, bytes };
            self.outputs.push_back(Output::ToWan(segment));
        }
    }

    /// Stops, in the form that is safe where the half stands.
    fn stop(&mut self, reason: ReasonCode) {
        let letting_go = match self.state {
            State::Watching => {
                self.give_gathered();
                self.give_held();
                let held = self.answers.give_back();
                self.send_client(SegmentKind::Payload, held);
                LettingGo::LetGo { reason }
            }
            State::Engaged => LettingGo::Close { reason },
            State::Gone => return,
        };
        self.state = State::Gone;
        self.outputs.push_back(Output::LettingGo(letting_go));
    }

    /// Passes on what came of the client's, as it came.
    fn give_gathered(&mut self) {
        let waiting = std::mem::take(&mut self.queue).into_iter();
        let gathered = std::mem::take(&mut self.gathering);
        for bytes in waiting.chain([gathered]).flat_map(Message::into_bytes) {
            self.send_server(bytes);
        }
        self.queue_bytes = 0;
        let held = self.requests.give_back();
        self.send_server(held);
    }

    /// Passes on what was gathered of the server's message, as it came.
    fn give_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.send_client(SegmentKind::Control, held.head.bytes.freeze());
            for (kind, bytes) in held.rest {
                self.send_client(kind, bytes);
            }
        }
    }

    fn stop_for(&mut self, foreign: Foreign) {
        self.stop(match foreign {
            Foreign::Encrypted => ReasonCode::ENCRYPTED,
            Foreign::Smb1 | Foreign::Compressed => ReasonCode::UNSUPPORTED,
            Foreign::TooLong => ReasonCode::LIMIT,
            Foreign::Unknown => ReasonCode::VIOLATION,
        });
    }

    /// From here on hosts' messages are altered.
    fn engage(&mut self) {
        if self.state == State::Watching {
            self.state = State::Engaged;
            self.tell_near(Frame::Engaged {
                version: super::frames::VERSION,
            });
            self.tell_sealing();
        }
    }

    fn frame(&mut self, now: Time, bytes: &[u8]) {
        match Frame::parse(bytes) {
            Ok(Some(Frame::Beat { number })) => self.tell_near(Frame::Heard { number }),
            Ok(Some(Frame::Received { bytes })) => self.pace.received(now, bytes),
            Ok(Some(Frame::Again { header, request })) => self.read_again(&header, &request),
            Ok(Some(Frame::Revoked { file })) => self.confirmed(file),
            Ok(Some(Frame::Forgot { file })) => self.forget_fresh(file),
            Ok(Some(Frame::Speaks { version })) => {
                self.near_takes_keys = version >= TAKES_KEYS;
                self.near_takes_sealing = version >= TAKES_SEALING;
                self.near_takes_offers = version >= TAKES_OFFERS;
                self.near_takes_leases = version >= TAKES_LEASES;
            }
            Ok(Some(Frame::Sealed { session })) => self.request_sealed(session),
            Ok(Some(Frame::Took { file })) => self.took(now, file),
            // A later release's; or one that only this half sends.
            Ok(_) => {}
            Err(_) => self.stop(ReasonCode::VIOLATION),
        }
    }

    /// The client's stream has ended: nothing is served any more. What waits still goes to the
    /// server, and then the stream towards it ends (see [`Self::pump`]).
    fn client_finished(&mut self, now: Time) {
        self.client_finish = Finish::Wanted;
        self.forgo_company(now);
        self.stop_serving_all();
        if self.state == State::Watching {
            // With the beginning of a message that never came whole.
            self.give_gathered();
        }
    }
}

impl Accelerator for Far {
    fn handle(&mut self, now: Time, input: Input) {
        if self.state == State::Gone {
            return;
        }
        match input {
            Input::Start => {
                self.outputs.push_back(Output::OpenServer);
                match self.settings.consistency {
                    Consistency::Off => self.stop(ReasonCode::POLICY),
                    Consistency::Strict | Consistency::Relaxed { .. } => {}
                }
            }
            Input::Lan(bytes) => self.answer_bytes(now, bytes),
            Input::LanFinished => {
                // What was to be verified and never came whole is nobody's business, once ids differ.
                match self.state {
                    State::Watching => self.give_held(),
                    State::Engaged | State::Gone => self.held = None,
                }
                let held = self.answers.give_back();
                // Nor is the beginning of what is encrypted, where everything else goes in the clear.
                if self.state == State::Watching || !is_sealed(&held) {
                    self.send_client(SegmentKind::Control, held);
                }
                self.outputs.push_back(Output::FinishWan);
            }
            Input::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => {
                    self.request_bytes(now, segment.bytes);
                }
                SegmentKind::Frame => self.frame(now, &segment.bytes),
            },
            Input::WanFinished => self.client_finished(now),
            Input::WanSilent(_) | Input::Woken => {}
            Input::ClaimGranted => self.is_alone(),
            Input::ClaimRevoked | Input::ClaimDenied => self.is_beside_others(now),
            Input::Content(_) | Input::Server(..) => {}
            Input::Timeout => {
                self.give_back_overdue(now);
                self.retire_overdue(now);
                self.end_overdue(now);
            }
        }
        self.pump(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let offers = self
            .staleness()
            .and_then(|staleness| self.opens_ahead.next_overdue(staleness));
        let times = [self.next_overdue(), self.stops_by(), offers];
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
            .map(listing::Listing::waiting_bytes)
            .sum();
        self.queue_bytes
            + self.gathering.bytes()
            + self.requests.held()
            + self.answers.held()
            + self.held.as_ref().map_or(0, Held::bytes)
            + waiting
            + lists
            + self.gathered.len()
            + self.opens_ahead.bytes()
            + self.early_breaks.bytes()
    }

    fn note(&self) -> Option<String> {
        self.no_key_for.clone().or_else(|| self.sessions.text())
    }
}
