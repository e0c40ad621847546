//! The clients' requests and answers, checked against the events at the server.
//!
//! The history's length is the clock. A WRITE of the client behind the halves counts from its
//! answer or its execution, whichever came first. So a file's *logical* contents at a moment are
//! the server's, overlaid with the answered WRITEs that are executed later. Every answer to that
//! client must hold at some moment between its request and the answer (linearizability). No other
//! client may see, or open, a file with an answered WRITE that is executed later, and no later
//! request of the client is executed before such a WRITE. A client that opens a file for its
//! attributes alone never waits, and sees the server's state (docs/decisions/0029): length, time of
//! the last change and name of one moment between the request and the answer. Two such requests
//! without a change between them therefore agree, and one after another client's change shows it.
//!
//! No request is refused because of an open that no client has.
//!
//! A name that was deleted is gone once the CLOSE of the open that deleted it is answered. While a
//! client is slow to give a lease back, only opens of its file wait for it; and the nodes break no
//! lease of their own client, and others' only for files that their client looks at and opens.
//!
//! The time limits are those that the documents state, not the constants of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use vocab::Time;

use super::super::super::testing::server::{
    ACCESS_DENIED, COLLISION, DELETE_PENDING, HistoryEvent, NO_SUCH_FILE, SHARING_VIOLATION, utf16,
};
use super::super::super::testing::world::Smb2Response;
use super::super::super::wire::FileId;
use super::super::super::wire::create::CreateResponse;
use super::super::super::wire::directory::entries;
use super::super::super::wire::header::status;
use super::super::DELAY;

/// The time for which the near half answers without news, and after it knows that its peer is
/// silent; the wait of a breaker on a cut path; the time for which names may wait for their query
/// (docs/decisions/0029 and 0037).
const FRESH_FOR: Duration = Duration::from_secs(10);
const SILENT_FOR: Duration = Duration::from_secs(5);
const BREAKER_WAITS: Duration = Duration::from_secs(12);
const LISTING_WAITS: Duration = Duration::from_millis(20);
/// For how long one waits for the client whose oplock it is, or for the server, which takes it after 35 s.
const HOLDER_WAITS: Duration = Duration::from_secs(37);
/// The delay that a server adds when it works on several WRITEs at a time, or takes its time for
/// each answer.
const SLOW: Duration = Duration::from_secs(1);

/// For how long a request that is no open may take longer than the path: WRITEs that the server has not
/// done yet, and the turn for its credits.
const TURN_WAITS: Duration = Duration::from_secs(2);
/// The opens ahead that a client may leave unused until it opens one again (docs/decisions/0086).
const UNUSED_OPENS_MAX: usize = 4;
/// The time between a client's request for attributes and an open ahead of it, and between that open and the
/// client's own.
const OPENED_WITHIN: Duration = Duration::from_secs(3);

/// The second part of a request for attributes, by its class of information ([MS-FSCC] §2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatQuestion {
    Version = 4,
    Length = 5,
    Position = 14,
}

/// The start of a listing by a query for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListingStart {
    AtFirst,
    Anew,
}

/// A client's request.
#[derive(Clone, Debug)]
pub(super) enum TraceRequest {
    Open {
        name: String,
        disposition: u32,
        has_oplock: bool,
    },
    /// The open of a request for attributes.
    Stat {
        name: String,
    },
    /// Its question, in the same frame.
    StatDetail {
        asks: StatQuestion,
    },
    Read {
        file: FileId,
        offset: u64,
        length: u32,
    },
    Write {
        file: FileId,
        offset: u64,
        data: Vec<u8>,
    },
    /// SET_INFO of the file's end, with this mark.
    Cut {
        file: FileId,
        end: u64,
        mark: u16,
    },
    /// SET_INFO that renames or deletes it.
    Names,
    /// SET_INFO that renames a directory.
    Moves,
    Length {
        file: FileId,
    },
    /// The end of the last READ; only the time that it takes is checked.
    Position,
    Flush {
        file: FileId,
    },
    Close {
        file: FileId,
    },
    /// Names.
    List {
        file: FileId,
        begins: Option<ListingStart>,
    },
}

/// A moment: by the history, and by the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceMoment {
    pub(super) happened: usize,
    pub(super) at: Time,
}

/// A question, and its answer.
#[derive(Clone, Debug)]
pub(super) struct TraceOperation {
    pub(super) who: usize,
    pub(super) id: u64,
    pub(super) asked: TraceRequest,
    pub(super) sent: TraceMoment,
    pub(super) answered: Option<(TraceMoment, Smb2Response)>,
}

/// The faults during the run.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceFaults {
    /// The far node died; the near half's prefetched data may be out of date until it notices.
    pub(super) far_died: Option<Time>,
    /// The server ended the connection; the same until the near half notices.
    pub(super) disconnected: Option<Time>,
    /// The flow has ended.
    pub(super) has_ended: bool,
    /// The times of the path's cuts.
    pub(super) cuts: Vec<Range<Time>>,
    /// True if the near half is informed when the path falls silent.
    pub(super) is_silence_told: bool,
    /// The server takes its time.
    pub(super) is_slow: bool,
    /// It works on several WRITEs at a time, at times.
    pub(super) holds_writes: bool,
    /// Files are opened in the order of their names, too.
    pub(super) is_relaxed: bool,
    /// The client asks for attributes before it opens files, which may be opened ahead of it.
    pub(super) has_leased_offers: bool,
    /// The statuses that the server was set to return.
    pub(super) injected: BTreeSet<u32>,
}

/// The counts of a run, which show that the run did something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TraceCounts {
    pub(super) reads: usize,
    /// The READs and WRITEs that took no time.
    pub(super) at_once: usize,
    /// Opens that did.
    pub(super) opened_at_once: usize,
    /// Listings that began so.
    pub(super) listed_at_once: usize,
    pub(super) lost: usize,
    /// The opens beside the server that waited.
    pub(super) waits: usize,
    pub(super) longest_wait: Duration,
    /// The READs with outdated data between a node's failure and its detection.
    pub(super) stale: usize,
}

impl TraceCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.at_once += other.at_once;
        self.opened_at_once += other.opened_at_once;
        self.listed_at_once += other.listed_at_once;
        self.lost += other.lost;
        self.waits += other.waits;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.stale += other.stale;
    }
}

/// A WRITE behind the halves, or a SET_INFO of the length.
struct TraceWrite {
    file: FileId,
    /// The start, or the new length.
    offset: usize,
    data: Vec<u8>,
    /// It sets the length, and everything from there on.
    is_cut: bool,
    /// Its place among all requests.
    place: usize,
    answered: Option<usize>,
    done: Option<usize>,
}

pub(super) struct ModelTrace<'a> {
    pub(super) history: &'a [HistoryEvent],
    pub(super) times: &'a [Time],
    pub(super) ops: &'a [TraceOperation],
    pub(super) trouble: &'a TraceFaults,
}

/// The same, indexed for lookups.
struct TraceIndex<'a> {
    trace: &'a ModelTrace<'a>,
    objects: BTreeMap<FileId, u64>,
    /// The opens whose clients have requested an oplock.
    own_oplocks: BTreeSet<FileId>,
    /// Contents by object, each from a moment on.
    contents: BTreeMap<u64, Vec<(usize, &'a [u8])>>,
    /// The WRITEs in the order of their execution; those that were never executed are at the end.
    written: Vec<TraceWrite>,
}

impl TraceWrite {
    /// The end of the range that it changes.
    fn end(&self) -> usize {
        match self.is_cut {
            true => usize::MAX,
            false => self.offset + self.data.len(),
        }
    }
}

impl TraceOperation {
    /// The number of events at the server as it was answered with success.
    fn succeeded(&self) -> Option<usize> {
        let (moment, answer) = self.answered.as_ref()?;
        answer.is(status::SUCCESS).then_some(moment.happened)
    }
}

impl Smb2Response {
    fn is(&self, status: u32) -> bool {
        self.header.status == status
    }
}

impl ModelTrace<'_> {
    /// Checks everything.
    pub(super) fn check(&self) -> Result<TraceCounts, String> {
        let index = TraceIndex::of(self);
        let mut count = TraceCounts::default();
        for (place, op) in self.ops.iter().enumerate() {
            let Some((answered, answer)) = &op.answered else {
                if op.who > 0 || !self.trouble.has_ended {
                    return Err(format!("never answered: {op:?}"));
                }
                continue;
            };
            index
                .check(place, op, *answered, answer, &mut count)
                .map_err(|what| format!("{what}: {op:?}"))?;
        }
        index.check_others()?;
        self.check_deletions()?;
        self.check_refusals()?;
        self.check_breaks()?;
        index.check_order()?;
        index.check_losses(&mut count)?;
        self.check_listings()?;
        Ok(count)
    }

    /// Checks that a name is gone once the CLOSE of the open that deleted it is answered.
    fn check_deletions(&self) -> Result<(), String> {
        let deleted = self.history.iter().enumerate();
        let deleted: BTreeMap<FileId, usize> = deleted
            .filter_map(|(at, happened)| match happened {
                HistoryEvent::Deleted(file) => Some((*file, at)),
                _ => None,
            })
            .collect();
        for op in self.ops {
            let (TraceRequest::Close { file }, Some(told)) = (&op.asked, op.succeeded()) else {
                continue;
            };
            if deleted.get(file).is_some_and(|at| *at >= told) {
                return Err(format!("the name is there after the CLOSE: {op:?}"));
            }
        }
        Ok(())
    }

    /// Checks that nothing is refused because of opens that no client was given: no rename of a directory, and no
    /// open of a name that is deleted with its last open.
    fn check_refusals(&self) -> Result<(), String> {
        let given = self.ops.iter().filter_map(|op| {
            let (_, answer) = op.answered.as_ref()?;
            let is_open = matches!(
                op.asked,
                TraceRequest::Open { .. } | TraceRequest::Stat { .. }
            );
            let opened = CreateResponse::parse(&answer.body).ok();
            opened.filter(|_| is_open && answer.is(status::SUCCESS))
        });
        let given: BTreeSet<FileId> = given.map(|opened| opened.file).collect();
        for op in self.ops {
            let Some((answered, answer)) = &op.answered else {
                continue;
            };
            let is_refused = match op.asked {
                TraceRequest::Moves => answer.is(ACCESS_DENIED),
                TraceRequest::Open { .. } | TraceRequest::Stat { .. } => answer.is(DELETE_PENDING),
                _ => false,
            };
            // As long as the path is cut, the far half cannot know whether the client has been given the open.
            let (from, to) = (op.sent.at, answered.at);
            let mut cuts = self.trouble.cuts.iter();
            let is_cut = cuts.any(|cut| cut.start <= to && from <= cut.end + DELAY * 2);
            if !is_refused || op.who > 0 && is_cut {
                continue;
            }
            let mut because = self.history[op.sent.happened..answered.happened].iter();
            let is_right = because.any(|happened| match happened {
                HistoryEvent::Conflicted { connection, with } => {
                    *connection == op.who && with.iter().any(|file| given.contains(file))
                }
                _ => false,
            });
            if !is_right {
                return Err(format!(
                    "refused because of what no client has open: {op:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the nodes break no oplock or lease of their own client, and those of others only for
    /// files that their client has looked at, and no more once it leaves such files unopened.
    fn check_breaks(&self) -> Result<(), String> {
        let opens = |name: &str| {
            let name = name.to_owned();
            self.ops.iter().filter(move |op| {
                op.who == 0
                    && matches!(&op.asked, TraceRequest::Open { name: of, .. } if *of == name)
            })
        };
        let mut unused = 0;
        let mut last = Time::ZERO;
        for (at, happened) in self.history.iter().enumerate() {
            let HistoryEvent::Broke {
                holder,
                by: 0,
                name,
                file,
            } = happened
            else {
                continue;
            };
            let when = self.times[at];
            let is_asked = opens(name).any(|op| {
                let told = op.answered.as_ref().map(|(moment, _)| moment.happened);
                op.sent.happened <= at && told.is_none_or(|told| told > at)
            });
            if *holder == 0 && !is_asked {
                return Err(format!(
                    "at {at} the client's own {file:?} of {name} is broken"
                ));
            }
            let slack = OPENED_WITHIN + self.way_of(when, when + OPENED_WITHIN);
            let is_used =
                opens(name).any(|op| op.sent.at <= when + slack && when <= op.sent.at + slack);
            if is_asked || is_used || self.trouble.is_relaxed {
                continue;
            }
            // The open may have waited at the server for another client's lease.
            let latest = |op: &TraceOperation| op.sent.at + slack + HOLDER_WAITS;
            let is_looked_at = self.ops.iter().any(|op| {
                let is_stat = matches!(&op.asked, TraceRequest::Stat { name: of } if of == name);
                is_stat && op.who == 0 && op.sent.at <= when && when <= latest(op)
            });
            let has_opened = self.ops.iter().any(|op| {
                let is_open = matches!(
                    op.asked,
                    TraceRequest::Open {
                        has_oplock: true,
                        ..
                    }
                );
                is_open && op.who == 0 && last <= op.sent.at && op.sent.at <= when
            });
            unused = if has_opened { 1 } else { unused + 1 };
            last = when;
            if !is_looked_at || unused > UNUSED_OPENS_MAX {
                return Err(format!("at {at} {file:?} of {name} is broken without need"));
            }
        }
        Ok(())
    }

    /// Checks that the names in each listing of a client were those of one moment, which is not too
    /// long ago.
    fn check_listings(&self) -> Result<(), String> {
        for (index, first) in self.ops.iter().enumerate() {
            let TraceRequest::List {
                file,
                begins: Some(begins),
            } = first.asked
            else {
                continue;
            };
            let mut told = Vec::new();
            let mut is_whole = false;
            let of_this = |op: &&TraceOperation| matches!(op.asked, TraceRequest::List { file: of, .. } if of == file);
            let goes_on =
                |op: &&TraceOperation| matches!(op.asked, TraceRequest::List { begins: None, .. });
            let following = self.ops[index + 1..].iter().filter(of_this);
            let following = following.take_while(goes_on);
            for op in std::iter::once(first).chain(following) {
                match &op.answered {
                    Some((_, answer)) if answer.is(status::SUCCESS) => told.extend(names(answer)),
                    Some((_, answer)) => is_whole |= answer.is(status::NO_MORE_FILES),
                    None => {}
                }
            }
            if !is_whole {
                continue;
            }
            let Some((answered, _)) = &first.answered else {
                continue;
            };
            let taken = |(at, happened): (usize, &HistoryEvent)| match happened {
                HistoryEvent::Listed(of) if *of == file => Some(at),
                _ => None,
            };
            let history = self.history[..answered.happened].iter().enumerate();
            let is_right = history.filter_map(taken).any(|taken| {
                let earliest = first.sent.at.since(Time::ZERO);
                let is_in_time = match (first.who, begins) {
                    (0, ListingStart::AtFirst) => {
                        let way = self.way_of(self.times[taken], first.sent.at);
                        self.times[taken].since(Time::ZERO) + LISTING_WAITS + way >= earliest
                    }
                    _ => taken >= first.sent.happened,
                };
                self.names_at(taken) == Some(&told[..])
                    && is_in_time
                    && !self.misses_own(first, taken)
            });
            if !is_right {
                return Err(format!("names of no moment: {first:?}, {told:?}"));
            }
        }
        Ok(())
    }

    /// Returns the longest transit time from the server to the client between these times.
    fn way_of(&self, from: Time, to: Time) -> Duration {
        let cuts = self.trouble.cuts.iter();
        let cuts = cuts.filter(|cut| from <= cut.end && cut.start <= to);
        let cut: Duration = cuts.map(|cut| cut.end.since(cut.start)).sum();
        let slow = u32::from(self.trouble.is_slow) * SLOW;
        DELAY + slow + cut
    }

    fn names_at(&self, moment: usize) -> Option<&[String]> {
        let names = |happened: &'_ HistoryEvent| matches!(happened, HistoryEvent::Names { .. });
        let at = self.history[..moment].iter().rposition(names)?;
        match &self.history[at] {
            HistoryEvent::Names { names, .. } => Some(names),
            _ => None,
        }
    }

    /// Returns true if names taken at this moment lack a change that the client made before its
    /// request.
    fn misses_own(&self, first: &TraceOperation, taken: usize) -> bool {
        let behind = self.history.iter().enumerate().skip(taken);
        let own = behind.filter(|(_, happened)| {
            matches!(happened, HistoryEvent::Names { connection, .. } if *connection == first.who)
        });
        let mut changes = own.map(|(at, _)| at);
        changes.any(|at| {
            self.ops.iter().any(|op| {
                let may_change = matches!(
                    op.asked,
                    TraceRequest::Open { .. }
                        | TraceRequest::Names
                        | TraceRequest::Moves
                        | TraceRequest::Close { .. }
                );
                let (Some((answered, _)), true) = (&op.answered, may_change) else {
                    return false;
                };
                op.who == first.who
                    && op.sent.happened <= at
                    && at < answered.happened
                    && answered.happened <= first.sent.happened
            })
        })
    }
}

impl<'a> TraceIndex<'a> {
    fn of(trace: &'a ModelTrace<'a>) -> Self {
        let mut objects = BTreeMap::new();
        let mut contents: BTreeMap<u64, Vec<(usize, &[u8])>> = BTreeMap::new();
        let mut done: BTreeMap<(FileId, u64, &[u8]), usize> = BTreeMap::new();
        let mut cut: BTreeMap<u16, usize> = BTreeMap::new();
        for (at, happened) in trace.history.iter().enumerate() {
            match happened {
                HistoryEvent::Opened { file, object, .. } => {
                    objects.insert(*file, *object);
                }
                HistoryEvent::Contents {
                    object,
                    contents: of,
                } => {
                    contents
                        .entry(*object)
                        .or_default()
                        .push((at + 1, of.as_slice()));
                }
                HistoryEvent::Wrote {
                    connection: 0,
                    file,
                    offset,
                    data,
                    is_done: true,
                } => {
                    // Its contents follow.
                    done.insert((*file, *offset, data.as_slice()), at + 2);
                }
                HistoryEvent::Cut {
                    connection: 0,
                    mark,
                } => {
                    cut.insert(*mark, at + 2);
                }
                _ => {}
            }
        }
        let mut written: Vec<TraceWrite> = trace
            .ops
            .iter()
            .enumerate()
            .filter(|(_, op)| op.who == 0)
            .filter_map(|(place, op)| match &op.asked {
                TraceRequest::Write { file, offset, data } => Some(TraceWrite {
                    file: *file,
                    offset: *offset as usize,
                    data: data.clone(),
                    is_cut: false,
                    place,
                    answered: op.succeeded(),
                    done: done.get(&(*file, *offset, &data[..])).copied(),
                }),
                TraceRequest::Cut { file, end, mark } => Some(TraceWrite {
                    file: *file,
                    offset: *end as usize,
                    data: Vec::new(),
                    is_cut: true,
                    place,
                    answered: op.succeeded(),
                    done: cut.get(mark).copied(),
                }),
                _ => None,
            })
            .collect();
        written.sort_by_key(|write| write.done.unwrap_or(usize::MAX));
        let own_oplocks = trace.ops.iter().filter_map(|op| {
            let TraceRequest::Open {
                has_oplock: true, ..
            } = op.asked
            else {
                return None;
            };
            let (_, answer) = op.answered.as_ref()?;
            let opened = CreateResponse::parse(&answer.body).ok();
            opened.filter(|_| answer.is(status::SUCCESS))
        });
        let own_oplocks = own_oplocks.map(|opened| opened.file).collect();
        Self {
            trace,
            objects,
            own_oplocks,
            contents,
            written,
        }
    }

    /// WRITEs to this file that were answered at this moment and done later.
    fn ahead(&self, object: u64, moment: usize) -> impl Iterator<Item = &TraceWrite> {
        self.written.iter().filter(move |write| {
            self.objects.get(&write.file) == Some(&object)
                && write.answered.is_some_and(|answered| answered <= moment)
                && write.done.is_some_and(|done| moment < done)
        })
    }

    /// Returns a file's logical contents for a request with this place: a WRITE sent after it is
    /// not in them before its execution, even if it was answered. For a client beside the server
    /// they are the server's; [`Self::check_others`] checks that no answered WRITE is missing.
    fn logical(&self, who: usize, place: usize, object: u64, moment: usize) -> Vec<u8> {
        let versions = self.contents.get(&object).map_or(&[][..], |all| all);
        let last = versions.iter().rfind(|(from, _)| *from <= moment);
        let mut contents = last.map_or(Vec::new(), |(_, contents)| contents.to_vec());
        if who > 0 {
            return contents;
        }
        let ahead = self.ahead(object, moment);
        for write in ahead.filter(|write| write.place < place) {
            let end = write.offset + write.data.len();
            if contents.len() < end || write.is_cut {
                contents.resize(end, 0);
            }
            contents[write.offset..end].copy_from_slice(&write.data);
        }
        contents
    }

    /// Returns the first of these moments, and those at which a file's logical contents may be others than before.
    fn changes_of(&self, object: u64, moments: Range<usize>) -> Vec<usize> {
        let versions = self.contents.get(&object).map_or(&[][..], |all| all);
        let versions = versions.iter().map(|(from, _)| *from);
        let written = self.written.iter();
        let written = written.filter(|write| self.objects.get(&write.file) == Some(&object));
        let written = written.flat_map(|write| [write.answered, write.done]);
        let mut changes: Vec<usize> = versions
            .chain(written.flatten())
            .filter(|at| moments.start < *at && *at <= moments.end)
            .chain([moments.start])
            .collect();
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    /// Returns true if a condition holds for a file's logical contents at one of these moments.
    fn ever(
        &self,
        (place, who): (usize, usize),
        file: FileId,
        moments: Range<usize>,
        holds: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let Some(object) = self.objects.get(&file) else {
            return false;
        };
        let mut changes = self.changes_of(*object, moments).into_iter().rev();
        changes.any(|moment| holds(&self.logical(who, place, *object, moment)))
    }

    /// Checks that the result of an open agrees with the names at one moment.
    fn check_name(
        &self,
        op: &TraceOperation,
        (name, disposition): (&str, u32),
        answered: TraceMoment,
        answer: &Smb2Response,
    ) -> Result<(), String> {
        let wanted = match (answer.header.status, disposition) {
            // Directories stay.
            _ if name.is_empty() || name.starts_with("tree") => return Ok(()),
            (status::SUCCESS, 1 | 4) | (COLLISION, _) => true,
            (status::SUCCESS, 2) | (NO_SUCH_FILE, _) => false,
            _ => return Ok(()),
        };
        let mut moments = op.sent.happened..answered.happened;
        if op.who == 0 && !wanted && name.contains(':') {
            moments.start = self.looked_at(op);
        }
        let changed = self.trace.history[moments.clone()]
            .iter()
            .zip(moments.start + 1..);
        let changed = changed
            .filter(|(happened, _)| matches!(happened, HistoryEvent::Names { .. }))
            .map(|(_, behind)| behind);
        let mut moments = std::iter::once(moments.start).chain(changed);
        let is_right = moments.any(|moment| {
            let names = self.trace.names_at(moment).unwrap_or_default();
            names.iter().any(|other| other == name) == wanted
        });
        match is_right || op.who == 0 && self.may_be_stale(answered.at) {
            true => Ok(()),
            false => Err(format!("the name was never so: {wanted}")),
        }
    }

    /// Returns the first moment at which the nodes may have looked for a name that a client looks for: shortly
    /// before, and behind the client's own changes.
    fn looked_at(&self, op: &TraceOperation) -> usize {
        let mut moments = 0..op.sent.happened;
        let first = moments.find(|moment| {
            let when = self.trace.times[*moment];
            when + LISTING_WAITS + self.trace.way_of(when, op.sent.at) >= op.sent.at
                && !self.trace.misses_own(op, *moment)
        });
        first.unwrap_or(op.sent.happened)
    }

    /// Checks that the attributes that a client was told are those of one moment.
    fn check_stat(
        &self,
        place: usize,
        op: &TraceOperation,
        answered: TraceMoment,
        detail: Option<(StatQuestion, u64)>,
    ) -> Result<(), String> {
        let stat = &self.trace.ops[place];
        let Some((_, answer)) = &stat.answered else {
            return Ok(());
        };
        let Ok(opened) = CreateResponse::parse(&answer.body) else {
            return Ok(());
        };
        let object = self.objects.get(&opened.file);
        let versions = object.and_then(|object| self.contents.get(object));
        let versions = versions.map_or(&[][..], |all| all);
        let version = u64::from_le_bytes(answer.body[24..32].try_into().unwrap());
        let moments = op.sent.happened..answered.happened;
        let moments = object.map_or(Vec::new(), |object| self.changes_of(*object, moments));
        let is_right = moments.into_iter().any(|moment| {
            let count = versions.partition_point(|(from, _)| *from <= moment);
            let length = count.checked_sub(1).map_or(0, |at| versions[at].1.len()) as u64;
            let mut early = object.into_iter().flat_map(|of| self.ahead(*of, moment));
            let lacks_own = op.who == 0 && early.any(|write| write.place < place);
            let is_detail = match detail {
                Some((StatQuestion::Version, told)) => told == count as u64,
                Some((StatQuestion::Length, told)) => told == length,
                Some((StatQuestion::Position, _)) | None => true,
            };
            version == count as u64 && opened.end_of_file == length && is_detail && !lacks_own
        });
        match is_right {
            true => Ok(()),
            false => Err(format!(
                "attributes of no moment: version {version}, {} bytes, {detail:?}",
                opened.end_of_file
            )),
        }
    }

    /// Checks that no request but an open waits for other clients.
    fn check_turn(&self, op: &TraceOperation, answered: TraceMoment) -> Result<(), String> {
        let trouble = self.trace.trouble;
        let waits = matches!(op.asked, TraceRequest::Open { .. }) || op.who > 0;
        if waits || trouble.has_ended {
            return Ok(());
        }
        let took = answered.at.since(op.sent.at);
        let slow = u32::from(trouble.holds_writes) * SLOW;
        let most = 2 * self.trace.way_of(op.sent.at, answered.at) + slow + TURN_WAITS;
        match took <= most {
            true => Ok(()),
            false => Err(format!("it took {took:?}, of at most {most:?}")),
        }
    }

    fn check(
        &self,
        place: usize,
        op: &TraceOperation,
        answered: TraceMoment,
        answer: &Smb2Response,
        count: &mut TraceCounts,
    ) -> Result<(), String> {
        self.check_turn(op, answered)?;
        let moments = op.sent.happened..answered.happened;
        let took = answered.at.since(op.sent.at);
        let is_injected = self.trace.trouble.injected.contains(&answer.header.status);
        match &op.asked {
            TraceRequest::Read {
                file,
                offset,
                length,
            } => {
                let got = match answer.header.status {
                    status::SUCCESS => answer.data(),
                    status::END_OF_FILE => &[],
                    _ if is_injected => return Ok(()),
                    other => return Err(format!("{other:#x}")),
                };
                count.reads += 1;
                count.at_once += usize::from(op.who == 0 && took == Duration::ZERO);
                let is_right = self.ever((place, op.who), *file, moments, |contents| {
                    let start = (*offset as usize).min(contents.len());
                    let end = (start + *length as usize).min(contents.len());
                    &contents[start..end] == got
                });
                match is_right {
                    true => Ok(()),
                    false if op.who == 0 && self.may_be_stale(answered.at) => {
                        count.stale += 1;
                        Ok(())
                    }
                    false => Err("never so".to_owned()),
                }
            }
            TraceRequest::Length { file } => {
                if is_injected {
                    return Ok(());
                }
                let told = u64::from_le_bytes(answer.body[8..16].try_into().unwrap());
                match self.ever((place, op.who), *file, moments, |contents| {
                    contents.len() as u64 == told
                }) {
                    true => Ok(()),
                    false => Err(format!("never {told} bytes long")),
                }
            }
            TraceRequest::Stat { name } => {
                self.check_name(op, (name, 1), answered, answer)?;
                match answer.is(status::SUCCESS) {
                    true => self.check_stat(place, op, answered, None),
                    false => Ok(()),
                }
            }
            TraceRequest::StatDetail { asks } => match answer.is(status::SUCCESS) {
                true => {
                    let told = u64::from_le_bytes(answer.body[8..16].try_into().unwrap());
                    self.check_stat(place - 1, op, answered, Some((*asks, told)))
                }
                false => Ok(()),
            },
            TraceRequest::Open {
                name,
                disposition,
                has_oplock,
            } => {
                self.check_name(op, (name, *disposition), answered, answer)?;
                count.opened_at_once += usize::from(op.who == 0 && took == Duration::ZERO);
                if op.who > 0 {
                    self.check_wait(op, answered, count)?;
                }
                if let (true, Ok(opened)) = (
                    answer.is(status::SUCCESS),
                    CreateResponse::parse(&answer.body),
                ) {
                    let told = opened.end_of_file;
                    let is_right = opened.is_directory()
                        || self.ever((place, op.who), opened.file, moments.clone(), |contents| {
                            contents.len() as u64 == told
                        });
                    if !is_right {
                        return Err(format!("never {told} bytes long"));
                    }
                    if op.who == 0 && !has_oplock && opened.oplock_level != 0 {
                        return Err("an oplock that was not asked for".to_owned());
                    }
                }
                match answer.is(SHARING_VIOLATION) && op.who == 0 {
                    true => self.check_conflict(op, moments),
                    false => Ok(()),
                }
            }
            TraceRequest::Flush { file } | TraceRequest::Close { file }
                if answer.is(status::SUCCESS) =>
            {
                let is_missing = |write: &&TraceWrite| {
                    let is_early = match (write.answered, write.done) {
                        (Some(_), None) => true,
                        (Some(told), Some(done)) => told < done && done > answered.happened,
                        (None, _) => false,
                    };
                    write.file == *file && write.place < place && is_early
                };
                match self.written.iter().find(is_missing) {
                    None => Ok(()),
                    Some(write) => Err(format!(
                        "{} bytes at {} were said to be kept",
                        write.data.len(),
                        write.offset
                    )),
                }
            }
            TraceRequest::Write { .. } => {
                count.at_once += usize::from(op.who == 0 && took == Duration::ZERO);
                Ok(())
            }
            TraceRequest::Flush { .. }
            | TraceRequest::Close { .. }
            | TraceRequest::Cut { .. }
            | TraceRequest::Names
            | TraceRequest::Moves
            | TraceRequest::Position
            | TraceRequest::List { begins: None, .. } => Ok(()),
            TraceRequest::List {
                begins: Some(_), ..
            } => {
                count.listed_at_once += usize::from(op.who == 0 && took == Duration::ZERO);
                Ok(())
            }
        }
    }

    /// Returns true between a node's failure, or the end of the server's connection, and its
    /// detection.
    fn may_be_stale(&self, at: Time) -> bool {
        let within = |since: Option<Time>, span: Duration| {
            since.is_some_and(|since| since <= at && at.since(since) <= span)
        };
        let trouble = self.trace.trouble;
        let stops_after = match trouble.is_silence_told {
            true => SILENT_FOR,
            false => FRESH_FOR,
        };
        let slow = u32::from(trouble.is_slow) * SLOW;
        within(trouble.far_died, stops_after) || within(trouble.disconnected, DELAY + slow)
    }

    /// Checks that a client that opens a file beside the server waits no longer than the limit.
    fn check_wait(
        &self,
        op: &TraceOperation,
        answered: TraceMoment,
        count: &mut TraceCounts,
    ) -> Result<(), String> {
        let waited = answered.at.since(op.sent.at);
        count.waits += usize::from(waited > Duration::ZERO);
        count.longest_wait = count.longest_wait.max(waited);
        let mut on = BTreeSet::new();
        for happened in &self.trace.history[op.sent.happened..answered.happened] {
            if let HistoryEvent::Waits {
                connection,
                message_id,
                on: files,
            } = happened
                && (*connection, *message_id) == (op.who, op.id)
            {
                on.extend(files);
            }
        }
        let most = on
            .iter()
            .map(|file| self.comes_back_within(file, op.sent.at..answered.at));
        let most: Duration = most.sum();
        match waited <= most + Duration::from_millis(1) {
            true => Ok(()),
            false => Err(format!("waited for {waited:?}, of at most {most:?}")),
        }
    }

    /// Returns the time until an oplock is given back that is broken within this time.
    fn comes_back_within(&self, file: &FileId, when: Range<Time>) -> Duration {
        if self.own_oplocks.contains(file) {
            return HOLDER_WAITS;
        }
        let trouble = self.trace.trouble;
        let slow = u32::from(trouble.is_slow) + u32::from(trouble.holds_writes);
        let mut cuts = trouble.cuts.iter();
        let path = match cuts.any(|cut| cut.start <= when.end && when.start <= cut.end) {
            // An open that was made ahead is held as if its client had it.
            true if trouble.has_leased_offers => HOLDER_WAITS,
            true => BREAKER_WAITS,
            false => 2 * DELAY,
        };
        path + slow * SLOW
    }

    /// Checks that a request sent after the answer to a WRITE takes effect after that WRITE.
    fn check_order(&self) -> Result<(), String> {
        for first in &self.written {
            let (Some(told), Some(done)) = (first.answered, first.done) else {
                continue;
            };
            if done <= told {
                continue;
            }
            let object = self.objects.get(&first.file);
            for other in &self.written {
                // One that sets the length is never done before a WRITE that it follows.
                let overlaps = other.offset < first.end() && first.offset < other.end()
                    || other.is_cut && !first.is_cut;
                if overlaps
                    && self.objects.get(&other.file) == object
                    && told <= self.trace.ops[other.place].sent.happened
                    && other.done.is_some_and(|other| other < done)
                {
                    return Err(format!(
                        "done before one that it follows: {:?}",
                        self.trace.ops[other.place]
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that no open is refused because of one whose CLOSE was answered.
    fn check_conflict(&self, op: &TraceOperation, moments: Range<usize>) -> Result<(), String> {
        let conflicts = self.trace.history[moments].iter();
        let mut with = conflicts.filter_map(|happened| match happened {
            HistoryEvent::Conflicted {
                connection: 0,
                with,
                ..
            } => Some(with),
            _ => None,
        });
        let is_closed = |file: &FileId| {
            self.trace.ops.iter().any(|other| {
                let told = other.answered.as_ref();
                matches!(other.asked, TraceRequest::Close { file: of } if of == *file)
                    && told.is_some_and(|(moment, answer)| {
                        answer.is(status::SUCCESS) && moment.happened <= op.sent.happened
                    })
            })
        };
        // Of several that were asked at a time, another may have been refused so.
        match with.any(|with| !with.iter().any(is_closed)) {
            true => Ok(()),
            false => Err("refused because of what is closed".to_owned()),
        }
    }

    /// Checks that no other client sees a file with an answered WRITE that is executed later.
    fn check_others(&self) -> Result<(), String> {
        for (at, happened) in self.trace.history.iter().enumerate() {
            if let HistoryEvent::Used { connection, object } = happened
                && *connection > 0
                && let Some(write) = self.ahead(*object, at).next()
            {
                return Err(format!(
                    "at {at} {connection} is shown what lacks {} bytes at {} of {:?}",
                    write.data.len(),
                    write.offset,
                    write.file
                ));
            }
        }
        Ok(())
    }

    /// Checks that every FLUSH and CLOSE after a lost WRITE reports the loss.
    fn check_losses(&self, count: &mut TraceCounts) -> Result<(), String> {
        let is_lost = |write: &&TraceWrite| write.answered.is_some() && write.done.is_none();
        for write in self.written.iter().filter(is_lost) {
            count.lost += 1;
            let mut is_reported = self.trace.trouble.has_ended;
            for op in &self.trace.ops[write.place..] {
                let (TraceRequest::Flush { file } | TraceRequest::Close { file }) = op.asked else {
                    continue;
                };
                let Some((_, answer)) = &op.answered else {
                    continue;
                };
                if file != write.file {
                    continue;
                }
                if answer.is(status::SUCCESS) {
                    return Err(format!("a loss is not reported: {op:?}"));
                }
                is_reported = true;
            }
            if !is_reported {
                let place = (write.file, write.offset);
                return Err(format!("nothing tells of a loss: {place:?}"));
            }
        }
        Ok(())
    }
}

fn names(answer: &Smb2Response) -> Vec<String> {
    let mut rest = entries(&answer.body).unwrap();
    let mut names = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        // The one class of entries that is as it should be has no length there.
        let name = match number(4) {
            0 => utf16(&rest[80..80 + number(60)]),
            length => String::from_utf8(rest[8..8 + length].to_vec()).unwrap(),
        };
        // Directories stay.
        if !name.starts_with("twig-") {
            names.push(name);
        }
        rest = &rest[number(0)..];
    }
    names
}
