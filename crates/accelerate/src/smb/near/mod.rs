//! The near half: the client's server, for requests that it has a licence to answer.
//!
//! All messages of the client pass to the far half at once and unaltered, including READs and
//! WRITEs that are answered here. So the far half sees everything in order, and this half holds no
//! byte back in that direction. The server's messages pass as well, except answers to requests that
//! were answered here.
//!
//! ```text
//!             Engaged, from the far half
//!   Passing ─────────────────────────────► Serving ── bytes that cannot be ──► Close
//! ```
//! While Passing, the server's bytes pass unchanged, so that the far half may still let go.
//!
//! A READ is answered when all of its data has been prefetched (`contents`), a WRITE as soon as it
//! has passed, both only for opens with a licence, while licences are fresh (`freshness`), and as
//! the server would; so is a SET_INFO of its length or its times. In a signed session only messages with a valid signature are answered, with
//! one, under the key that the far half has handed over; encrypted messages are decrypted and
//! encrypted (`sealing`). The CLOSE of an open through which nothing was changed, or nothing since a
//! FLUSH, is answered as well, and under a lease of the client's that of an open whose changes the
//! server has confirmed. A WRITE that then fails is reported with every further WRITE, FLUSH and CLOSE of its open:
//! the data is lost, and no client may believe it stored.

mod children;
pub(crate) mod contents;
mod crossed;
mod file_system;
pub(crate) mod freshness;
mod listing;
mod missing;
mod offers;
mod questions;
mod replies;
mod requests;
mod sealing;

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::config::{OPENS_MAX, OUTSTANDING_MAX, TREES_MAX};
use super::frames::{HalfFrame, LATE_WRITES, OpenLicence, VERSION};
use super::keys::{MessageSealer, SealingKey, SignatureMac, SigningKey};
use super::wire::directory::QueryDirectoryRequest;
use super::wire::header::{MessageProtection, Smb2Header, flag};
use super::wire::lease::LeaseKey;
use super::wire::query_info::FileSystemQuestion;
use super::wire::set_info::{PlainChange, plain_change};
use super::wire::split::{Smb2MessageHead, Smb2Splitter};
use super::wire::target::{CompoundChain, touch};
use super::wire::transfer::{ReadRequest, WriteRequest};
use super::wire::{FileId, u16_at};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode};
use children::ListingOffers;
use contents::{BYTES_MAX, FileContents};
use crossed::CrossedRequests;
use file_system::FileSystemReply;
use freshness::LicenceFreshness;
use listing::{IncomingListing, PrefetchedListing};
use missing::{LookingFrame, MissingName, MissingNames};
use offers::OpenOffers;
use questions::{InformationReply, QuestionFrame};

/// The state of the half; see the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NearState {
    Passing,
    Serving,
    /// Closed; the engine drops it.
    Gone,
}

/// An open with a licence.
#[derive(Debug)]
struct LicensedOpen {
    licence: OpenLicence,
    /// Revoked.
    is_over: bool,
    /// Closed by the client: its later requests are the server's to answer.
    is_closed: bool,
    contents: FileContents,
    /// As long as READs of that time are not answered.
    earlier: Vec<EarlierContents>,
    /// Data that was read before this frame of the client's is out of date.
    changed_at: u64,
    /// READs that are not answered, by message id.
    waiting: Vec<u64>,
    /// The lease that it shares with others, whose changes are its own.
    lease: Option<LeaseKey>,
    /// A LOCK keeps its WRITEs from being answered here.
    is_locked: bool,
    /// The status of an answered WRITE that failed later.
    lost: Option<u32>,
    /// The file is not longer, as far as it is known.
    longest: Option<u64>,
    /// The status of times or attributes that the server has refused after they were answered here. Data that
    /// is written later is not affected.
    refused: Option<u32>,
    /// The server has refused a change that was answered here: it answers all changes from then on.
    is_refused: bool,
    /// A change was made through it that no FLUSH has confirmed: its CLOSE reports the result.
    is_changed: bool,
    /// Its CLOSE does more than that: it ends locks, for example.
    is_bound: bool,
    /// A FLUSH behind all changes, by its message id.
    flushing: Option<u64>,
    listing: PrefetchedListing,
    /// The client's frame that opened it to list it, if it is known.
    opened_at: Option<u64>,
    file_system: Option<FileSystemReply>,
    /// Answers to questions that were asked ahead.
    information: Vec<InformationReply>,
}

impl LicensedOpen {
    /// Its file changes with this frame of the client's.
    fn change(&mut self, at: u64, pending: &HashMap<u64, PendingRequest>) {
        self.earlier.push(EarlierContents {
            contents: self.contents.take(),
            from: self.changed_at,
            until: at,
        });
        self.changed_at = at;
        self.drop_earlier(pending);
    }

    /// Drops the contents that no READ waits for.
    fn drop_earlier(&mut self, pending: &HashMap<u64, PendingRequest>) {
        if self.earlier.is_empty() {
            return;
        }
        let position = |id: &u64| match pending.get(id) {
            Some(PendingRequest::Read {
                position,
                is_answered: false,
                ..
            }) => Some(*position),
            _ => None,
        };
        self.waiting.retain(|id| position(id).is_some());
        // In the order in which they were asked.
        let waiting: Vec<u64> = self.waiting.iter().filter_map(position).collect();
        self.earlier.retain(|earlier| {
            let first = waiting.partition_point(|position| *position < earlier.from);
            let first = waiting.get(first);
            first.is_some_and(|position| earlier.is_of(*position))
        });
    }

    /// Returns the file contents that were valid at the time of this frame of the client's.
    fn contents_of(&mut self, position: u64) -> Option<&mut FileContents> {
        if position >= self.changed_at {
            return Some(&mut self.contents);
        }
        let earlier = self.earlier.iter_mut();
        let mut earlier = earlier.filter(|earlier| earlier.is_of(position));
        earlier.next().map(|earlier| &mut earlier.contents)
    }
}

/// The contents of a file before a change, for READs that were sent before it. The server would
/// answer them after the change, and perhaps after a CLOSE.
#[derive(Debug)]
struct EarlierContents {
    contents: FileContents,
    /// The range of the client's frames that the contents are valid for: data read behind this
    /// frame, and READs before the other.
    from: u64,
    until: u64,
}

impl EarlierContents {
    fn is_of(&self, position: u64) -> bool {
        (self.from..self.until).contains(&position)
    }
}

/// The loss of a client if the server refuses a SET_INFO that this half has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetLoss {
    /// Nothing: it asks for no less room than the file has.
    Nothing,
    /// Times or attributes.
    Attributes,
    /// The length, and with it data.
    Data,
}

/// A client's request on a licensed open, outstanding at the server.
#[derive(Clone, Debug)]
enum PendingRequest {
    Read {
        header: Smb2Header,
        request: ReadRequest,
        /// Its frame.
        position: u64,
        /// The client has its answer from here.
        is_answered: bool,
        /// The server answers it: the client received an interim response.
        is_servers: bool,
    },
    Write {
        file: FileId,
        length: u32,
        is_answered: bool,
    },
    /// A SET_INFO of the length, or of times and attributes.
    Sets {
        file: FileId,
        /// The client's loss if the server refuses it.
        loses: SetLoss,
        /// The client has its answer from here.
        is_answered: bool,
    },
    /// A FLUSH, or another request with whose answer a loss is reported.
    Reports { file: FileId },
    Close {
        file: FileId,
        /// The client has its answer from here.
        is_answered: bool,
    },
    /// A request for names.
    Lists {
        header: Smb2Header,
        request: QueryDirectoryRequest,
        is_answered: bool,
        /// The server answers it: the client received an interim response.
        is_servers: bool,
    },
    /// Another request.
    Asks {
        file: FileId,
        /// A query that the prefetched answer may fit.
        file_system: Option<(Smb2Header, FileSystemQuestion)>,
        /// The client has its answer from here.
        is_answered: bool,
    },
    /// A CREATE whose answer the client has from here.
    Opens,
    /// A request of a frame that looks for a name; the client was told that it is not there. Its frame closes what
    /// it opens.
    Missed {
        closes: bool,
        session: u64,
        tree: u32,
        guard: MessageProtection,
    },
    /// A TREE_DISCONNECT or LOGOFF, with which the opens of a tree or session end.
    Ends { session: u64, tree: Option<u32> },
}

impl PendingRequest {
    /// The client has its answer from here.
    fn is_answered(&self) -> bool {
        match self {
            Self::Read { is_answered, .. }
            | Self::Write { is_answered, .. }
            | Self::Sets { is_answered, .. }
            | Self::Close { is_answered, .. }
            | Self::Lists { is_answered, .. }
            | Self::Asks { is_answered, .. } => *is_answered,
            Self::Opens | Self::Missed { .. } => true,
            Self::Reports { .. } | Self::Ends { .. } => false,
        }
    }
}

/// A block that is coming in.
#[derive(Debug)]
struct IncomingBlock {
    of: BlockKind,
    left: usize,
    pieces: Vec<Bytes>,
}

/// The kind of data in the block.
#[derive(Clone, Copy, Debug)]
enum BlockKind {
    Contents {
        file: FileId,
        position: u64,
        offset: u64,
    },
    Names(IncomingListing),
}

/// The handling of the rest of the message that the far half is passing on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestRemainder {
    Pass,
    Swallow,
}

/// A message among others of a frame that was altered, and is signed when it is whole.
#[derive(Debug)]
struct AlteredMessage {
    key: SigningKey,
    head: Smb2MessageHead,
    rest: Vec<Bytes>,
    /// The number of outstanding bytes.
    left: usize,
}

/// The encryption of a session.
#[derive(Debug)]
struct ClientSealing {
    client: SealingKey,
    may_store: bool,
    /// The sealer of messages to the client in the server's place.
    sealer: MessageSealer,
}

/// An answer that is gathered to be encrypted.
#[derive(Debug)]
struct GatheredAnswer {
    session: u64,
    parts: Vec<Bytes>,
}

/// The client's message that is passing.
#[derive(Debug)]
enum PassingRequest {
    Read(Smb2Header, ReadRequest),
    Write(Smb2Header, WriteRequest, usize),
    /// A SET_INFO of this open.
    Sets(Smb2Header, FileId, PlainChange),
    /// A CLOSE, and true if it may be answered here.
    Close(Smb2Header, bool),
    Lists(Smb2Header, QueryDirectoryRequest),
    FileSystem(Smb2Header, FileSystemQuestion),
    /// A CREATE, and its body.
    Opens(Smb2Header, Vec<u8>),
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Smb2NearHalf {
    state: NearState,
    outputs: VecDeque<AcceleratorOutput>,

    requests: Smb2Splitter,
    /// The client's bytes are not SMB2 (any more) and are not looked at.
    is_blind: bool,
    /// Frames of the client's that have passed.
    position: u64,
    /// The chain of the frame in progress.
    chain: CompoundChain,
    passing: Option<PassingRequest>,
    /// Its signature, as far as it has passed.
    mac: Option<SignatureMac>,
    /// The questions of the frame that is passing, and the last frame of questions.
    asking: Option<QuestionFrame>,
    questions: Option<QuestionFrame>,

    /// Keys of sessions that sign, from the far half.
    keys: HashMap<u64, SigningKey>,
    /// The same for sessions that encrypt.
    sealing: HashMap<u64, ClientSealing>,
    /// The bytes in the splitter that have passed already.
    passed: usize,

    answers: Smb2Splitter,
    rest: RequestRemainder,
    /// The answer that is passing is to be encrypted.
    sealed: Option<GatheredAnswer>,
    altered: Option<AlteredMessage>,
    /// The answers in the server's present frame are discarded.
    discards_frame: bool,
    /// Answers from here that wait for the end of one that is passing.
    ready: VecDeque<Bytes>,

    opens: BTreeMap<FileId, LicensedOpen>,
    pending: HashMap<u64, PendingRequest>,
    incoming: Option<IncomingBlock>,
    /// The client's last frame that could not be read.
    unread_at: u64,
    /// The client's last frame that may have changed the entries of directories.
    names_changed_at: u64,
    /// The same of answers to questions about opens.
    answers_changed_at: u64,
    /// The far half's version; 0 until it has sent one.
    far_version: u8,
    /// The opens whose first names came with them and may be unrequested.
    fresh_listings: Vec<FileId>,
    offers: OpenOffers,
    missing: MissingNames,
    /// The frame that is passing, if it may look for a missing name.
    looking: Option<LookingFrame>,
    children: ListingOffers,
    /// Bytes of WRITEs that were answered and not confirmed.
    behind: u64,
    fresh: LicenceFreshness,
    /// Requests answered here.
    answered: u64,
    /// The opens with READs that were answered since the last drop.
    answered_files: Vec<FileId>,
    /// Those that only the server answered.
    crossed: CrossedRequests,
    client_finished: bool,
    /// The stream towards the client has ended.
    server_finished: bool,
}

impl Smb2NearHalf {
    /// A half that has not started.
    pub(crate) fn new() -> Self {
        Self {
            state: NearState::Passing,
            outputs: VecDeque::new(),
            requests: Smb2Splitter::taking_sealed(),
            is_blind: false,
            position: 0,
            chain: CompoundChain::default(),
            passing: None,
            mac: None,
            asking: None,
            questions: None,
            discards_frame: false,
            keys: HashMap::new(),
            sealing: HashMap::new(),
            passed: 0,
            answers: Smb2Splitter::new(),
            rest: RequestRemainder::Pass,
            sealed: None,
            altered: None,
            ready: VecDeque::new(),
            opens: BTreeMap::new(),
            pending: HashMap::new(),
            incoming: None,
            unread_at: 0,
            names_changed_at: 0,
            answers_changed_at: 0,
            far_version: 0,
            fresh_listings: Vec::new(),
            offers: OpenOffers::default(),
            missing: MissingNames::default(),
            looking: None,
            children: ListingOffers::default(),
            behind: 0,
            fresh: LicenceFreshness::default(),
            answered: 0,
            answered_files: Vec::new(),
            crossed: CrossedRequests::default(),
            client_finished: false,
            server_finished: false,
        }
    }

    fn tell_far(&mut self, frame: HalfFrame) {
        if !self.client_finished {
            self.outputs
                .push_back(AcceleratorOutput::ToWan(frame.emit()));
        }
    }

    fn send_client(&mut self, bytes: Bytes) {
        if !bytes.is_empty() && !self.server_finished {
            self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
        }
    }

    fn close(&mut self, reason: ReasonCode) {
        if self.state == NearState::Gone {
            return;
        }
        self.state = NearState::Gone;
        let closing = LettingGo::Close { reason };
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(closing));
    }

    fn frame(&mut self, now: Time, bytes: &[u8]) {
        let Ok(frame) = HalfFrame::parse(bytes) else {
            return self.close(ReasonCode::VIOLATION);
        };
        match frame {
            Some(HalfFrame::Engaged { version: VERSION }) if self.state == NearState::Passing => {
                self.state = NearState::Serving;
            }
            Some(HalfFrame::Engaged { .. }) => self.close(ReasonCode::UNSUPPORTED),
            Some(HalfFrame::Licence(licence)) => self.licensed(licence),
            Some(HalfFrame::Ahead {
                file,
                position,
                offset,
                length,
            }) => {
                let of = BlockKind::Contents {
                    file,
                    position,
                    offset,
                };
                self.ahead(of, length as usize);
            }
            Some(HalfFrame::Listed {
                file,
                position,
                query,
                is_fresh,
                length,
            }) => {
                let coming = IncomingListing {
                    file,
                    position,
                    query,
                    is_fresh,
                };
                match length {
                    0 => self.listed(now, coming, Vec::new()),
                    _ => self.ahead(BlockKind::Names(coming), length as usize),
                }
            }
            Some(HalfFrame::EndOfFile {
                file,
                position,
                offset,
            }) => {
                if let Some(contents) = self.contents_at(file, position) {
                    contents.set_end(offset);
                    self.knows_end(file, position, offset);
                    self.answer_waiting(now, file);
                }
            }
            Some(HalfFrame::Settled { message_id }) => self.settled(message_id),
            Some(HalfFrame::Offer {
                file,
                position,
                staleness,
                request,
                answer,
            }) => self.offered(file, position, staleness, request, answer),
            Some(HalfFrame::LeasedOffer {
                file,
                position,
                request,
                answer,
            }) => self.offered_under_lease(now, file, position, request, answer),
            Some(HalfFrame::ListingOffer {
                file,
                position,
                request,
                answer,
            }) => self.listing_offered(file, position, request, answer),
            Some(HalfFrame::Lease { file, key }) => self.is_of_lease(file, key),
            Some(HalfFrame::MayWrite { file, may_set }) => self.may_write(file, may_set),
            Some(HalfFrame::Revoke { file }) => {
                if self.offers.remove(file) || self.children.remove(file) {
                    self.opens.remove(&file);
                }
                if let Some(open) = self.opens.get_mut(&file) {
                    open.is_over = true;
                    open.contents.clear();
                    open.earlier.clear();
                }
                self.tell_far(HalfFrame::Revoked { file });
            }
            Some(HalfFrame::FileSystem {
                file,
                position,
                class,
                answer,
            }) => {
                let told = FileSystemReply {
                    class,
                    position,
                    answer,
                    at: now,
                };
                self.store_file_system_reply(now, file, told);
            }
            Some(HalfFrame::Information {
                file,
                position,
                question,
                answer,
            }) => self.store_information(now, file, position, question, answer),
            Some(HalfFrame::Missing {
                session,
                tree,
                guard,
                position,
                form,
                name,
                rest,
            }) => self.store_missing(MissingName {
                session,
                tree,
                guard,
                position,
                form,
                name,
                rest,
                at: now,
            }),
            Some(HalfFrame::Heard { number }) => self.fresh.heard(number),
            Some(HalfFrame::Speaks { version }) => self.far_version = version,
            Some(HalfFrame::Key { session, key }) => {
                if self.keys.len() >= TREES_MAX {
                    return self.close(ReasonCode::LIMIT);
                }
                self.keys.insert(session, key);
            }
            Some(HalfFrame::Sealing {
                session,
                keys,
                nonce_seed: chance,
                may_store,
            }) => self.take_sealing(session, keys, chance, may_store),
            Some(HalfFrame::Sealed { session }) => self.answer_sealed(session),
            Some(HalfFrame::Forget { session }) => {
                self.keys.remove(&session);
                self.sealing.remove(&session);
            }
            // What only this half sends, or a later release.
            Some(
                HalfFrame::Beat { .. }
                | HalfFrame::Again { .. }
                | HalfFrame::Dropped { .. }
                | HalfFrame::Revoked { .. }
                | HalfFrame::Forgot { .. }
                | HalfFrame::Unwanted { .. }
                | HalfFrame::Took { .. },
            )
            | None => {}
        }
    }

    fn licensed(&mut self, licence: OpenLicence) {
        // What the far half grants it also counts on: a READ that it holds for answered would never
        // be. It keeps to its limit but for opens that are under way as it is reached.
        if self.opens.len() >= OPENS_MAX + OUTSTANDING_MAX || self.state != NearState::Serving {
            return self.close(ReasonCode::LIMIT);
        }
        let open = LicensedOpen {
            licence,
            is_over: false,
            is_closed: false,
            contents: FileContents::default(),
            earlier: Vec::new(),
            changed_at: 0,
            waiting: Vec::new(),
            lease: None,
            is_locked: false,
            lost: None,
            longest: None,
            refused: None,
            is_refused: false,
            is_changed: false,
            is_bound: false,
            flushing: None,
            listing: PrefetchedListing::default(),
            opened_at: None,
            file_system: None,
            information: Vec::new(),
        };
        self.opens.insert(licence.file, open);
    }

    /// Handles a licence that now includes WRITEs.
    fn may_write(&mut self, file: FileId, may_set: bool) {
        if let Some(open) = self.opens.get_mut(&file) {
            open.licence.may_write = true;
            open.licence.may_set = may_set;
        }
    }

    /// Handles a licensed open that shares a lease. The client may have changed the file through
    /// another open of the lease while this one was outstanding; a change through any other open
    /// would have broken the lease.
    fn is_of_lease(&mut self, file: FileId, key: LeaseKey) {
        let kin = self.opens.values().filter(|open| open.lease == Some(key));
        let changed_at = kin.map(|open| open.changed_at).max();
        let changed_at = changed_at.unwrap_or_default().max(self.unread_at);
        if let Some(open) = self.opens.get_mut(&file) {
            open.lease = Some(key);
            open.changed_at = changed_at;
        }
    }

    fn ahead(&mut self, of: BlockKind, length: usize) {
        if self.incoming.is_some() || length == 0 || self.state != NearState::Serving {
            return self.close(ReasonCode::VIOLATION);
        }
        self.incoming = Some(IncomingBlock {
            of,
            left: length,
            pieces: Vec::new(),
        });
    }

    /// Takes payload of a block. Returns the rest when the block is complete.
    fn incoming(&mut self, now: Time, mut bytes: Bytes) -> Bytes {
        let Some(incoming) = &mut self.incoming else {
            return bytes;
        };
        let piece = bytes.split_to(incoming.left.min(bytes.len()));
        incoming.left -= piece.len();
        incoming.pieces.push(piece);
        if incoming.left > 0 {
            return bytes;
        }
        let block = self.incoming.take().expect("it was there just now");
        let (file, position, offset) = match block.of {
            BlockKind::Names(coming) => {
                self.listed(now, coming, block.pieces);
                return bytes;
            }
            BlockKind::Contents {
                file,
                position,
                offset,
            } => (file, position, offset),
        };
        if let Some(contents) = self.contents_at(file, position) {
            contents.insert(offset, block.pieces);
            self.answer_waiting(now, file);
            self.limit_contents();
        }
        bytes
    }

    /// Drops the contents of all opens if they have become too many: first of those for which no READ waits.
    fn limit_contents(&mut self) {
        for is_last in [false, true] {
            if self.kept() <= BYTES_MAX {
                return;
            }
            let files: Vec<FileId> = self.opens.keys().copied().collect();
            for file in files {
                let least = self.least_waiting(file);
                let Some(open) = self.opens.get_mut(&file) else {
                    continue;
                };
                if open.contents.bytes() == 0 && open.earlier.is_empty()
                    || least.is_some() && !is_last
                {
                    continue;
                }
                open.contents.drop_blocks();
                open.earlier.clear();
                let (from, to) = (0, u64::MAX);
                self.tell_far(HalfFrame::Dropped { file, from, to });
            }
        }
    }

    /// The offset of the first READ of an open that waits.
    fn least_waiting(&self, file: FileId) -> Option<u64> {
        let offset = |id: &u64| match self.pending.get(id) {
            Some(PendingRequest::Read {
                request,
                is_answered: false,
                ..
            }) => Some(request.offset),
            _ => None,
        };
        self.opens
            .get(&file)?
            .waiting
            .iter()
            .filter_map(offset)
            .min()
    }

    /// Drops what lies before the answered READs. All that the client has sent is known by now, so what none of it
    /// waits for is told to the far half before it hears of the next.
    fn drop_answered(&mut self) {
        for file in std::mem::take(&mut self.answered_files) {
            let waiting = self.least_waiting(file);
            let open = self.opens.get_mut(&file);
            let dropped = open.map(|open| open.contents.drop_answered(waiting));
            for range in dropped.unwrap_or_default() {
                let (from, to) = (range.start, range.end);
                self.tell_far(HalfFrame::Dropped { file, from, to });
            }
        }
    }

    /// The server has told the end of a file behind this frame of the client's.
    fn knows_end(&mut self, file: FileId, position: u64, end: u64) {
        if let Some(open) = self.opens.get_mut(&file)
            && position >= open.changed_at
        {
            open.longest = Some(end);
        }
    }

    /// Returns the contents that data belongs to if it was read of a file behind this frame of the
    /// client's.
    fn contents_at(&mut self, file: FileId, position: u64) -> Option<&mut FileContents> {
        let open = self.opens.get_mut(&file).filter(|open| !open.is_over)?;
        open.contents_of(position)
    }

    /// Bytes of all opens that were read ahead.
    fn kept(&self) -> u64 {
        let contents = self.opens.values().flat_map(|open| {
            let earlier = open.earlier.iter().map(|earlier| &earlier.contents);
            std::iter::once(&open.contents).chain(earlier)
        });
        contents.map(FileContents::bytes).sum()
    }

    /// Returns the open if answers may be given for it to the request's own session and tree.
    fn serves(&self, now: Time, file: FileId, header: &Smb2Header) -> Option<&LicensedOpen> {
        let open = self.opens.get(&file)?;
        // What was signed or encrypted when the open was made and is not now is for the server to judge;
        // what is signed has been verified (see `passed`).
        let is_its = (open.licence.session, open.licence.tree) == (header.session, header.tree)
            && header.guard() >= open.licence.guard
            && header.is_of_first_channel();
        (is_its && !open.is_over && !open.is_closed && self.fresh.is_fresh(now)).then_some(open)
    }
}

impl AcceleratorHalf for Smb2NearHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        if self.state == NearState::Gone {
            return;
        }
        match input {
            AcceleratorInput::Start => self.tell_far(HalfFrame::Speaks {
                version: LATE_WRITES,
            }),
            // The far half's affair.
            AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
            AcceleratorInput::Timeout => self.refuse_old_listings(now),
            AcceleratorInput::Server(..) => {}
            AcceleratorInput::Lan(bytes) => self.request_bytes(now, bytes),
            AcceleratorInput::LanFinished => {
                self.outputs.push_back(AcceleratorOutput::FinishWan);
                self.client_finished = true;
            }
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Frame => self.frame(now, &segment.bytes),
                SegmentKind::Payload => {
                    let rest = self.incoming(now, segment.bytes);
                    self.answer_bytes(rest);
                }
                // Blocks of what is encrypted, and kept by no dictionary, come so.
                SegmentKind::Control if !self.sealing.is_empty() => {
                    let rest = self.incoming(now, segment.bytes);
                    self.answer_bytes(rest);
                }
                SegmentKind::Control if self.incoming.is_some() => {
                    self.close(ReasonCode::VIOLATION);
                }
                SegmentKind::Control => self.answer_bytes(segment.bytes),
            },
            AcceleratorInput::WanFinished => {
                let held = self.answers.give_back();
                self.send_client(held);
                self.outputs.push_back(AcceleratorOutput::FinishLan);
                // The server's opens have ended with its stream, and what they allowed.
                self.server_finished = true;
                self.fresh.expire();
            }
            AcceleratorInput::WanSilent(_) => self.fresh.expire(),
        }
        self.drop_answered();
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let is_serving = self.state == NearState::Serving;
        self.children.next_overdue().filter(|_| is_serving)
    }

    fn buffered(&self) -> usize {
        let incoming = self
            .incoming
            .iter()
            .flat_map(|incoming| &incoming.pieces)
            .map(Bytes::len)
            .sum::<usize>();
        let names = self.opens.values().map(|open| open.listing.bytes());
        let information = self.opens.values().flat_map(|open| &open.information);
        let sealed = self.sealed.iter().flat_map(|sealed| &sealed.parts);
        self.kept() as usize
            + names.sum::<usize>()
            + information.map(InformationReply::bytes).sum::<usize>()
            + self.missing.bytes()
            + incoming
            + self.requests.held()
            + self.answers.held()
            + sealed.map(Bytes::len).sum::<usize>()
    }

    fn answered(&self) -> u64 {
        self.answered
    }

    fn note(&self) -> Option<String> {
        let seals = |session: &u64| self.sealing.get(session)?.sealer.used();
        let signed = self
            .keys
            .iter()
            .filter(|(session, _)| seals(session).is_none())
            .map(|(_, key)| key.algorithm().name());
        let sealed = self.sealing.keys().filter_map(seals);
        let mut texts = Vec::new();
        for (what, mut names) in [
            ("signed", signed.collect::<Vec<_>>()),
            ("encrypted", sealed.collect()),
        ] {
            names.sort_unstable();
            names.dedup();
            if !names.is_empty() {
                texts.push(format!("{what} by {}", names.join(", ")));
            }
        }
        texts.extend(self.crossed.text());
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// SMB2_CLOSE_FLAG_POSTQUERY_ATTRIB ([MS-SMB2] §2.2.15, CLOSE Request).
const CLOSE_ASKS_ATTRIBUTES: u16 = 1;

/// Classifies a message alone in its frame that may be answered here.
fn passing(head: &Smb2MessageHead) -> Option<PassingRequest> {
    use super::wire::header::command;
    // A server refuses a message that is related to none before it.
    if !head.is_single() || head.header.has(flag::RELATED) {
        return None;
    }
    match head.header.command {
        command::READ => {
            let request = ReadRequest::parse(head.body()).ok()?;
            request
                .is_plain()
                .then_some(PassingRequest::Read(head.header, request))
        }
        command::WRITE => {
            let request = WriteRequest::parse(head.body()).ok()?;
            Some(PassingRequest::Write(head.header, request, head.length))
        }
        // With SMB2_CLOSE_FLAG_POSTQUERY_ATTRIB at most ([MS-SMB2] §2.2.15, CLOSE Request).
        command::CLOSE if matches!(u16_at(head.body(), 2), Ok(0 | CLOSE_ASKS_ATTRIBUTES)) => {
            Some(PassingRequest::Close(head.header, false))
        }
        command::QUERY_DIRECTORY => {
            let request = QueryDirectoryRequest::parse(head.body()).ok()?;
            Some(PassingRequest::Lists(head.header, request))
        }
        command::SET_INFO => {
            let change = plain_change(head.body())?;
            let file = touch(&head.header, head.body()).file()?;
            Some(PassingRequest::Sets(head.header, file, change))
        }
        command::QUERY_INFO => {
            let question = FileSystemQuestion::parse(head.body()).ok()??;
            Some(PassingRequest::FileSystem(head.header, question))
        }
        _ => None,
    }
}
