//! A record on its way to delivery: where its bytes come from, and whether they are right.
//!
//! ```text
//! run ─► keys by the peer's links ─► digest agrees? ─► chunks: memory, or read from disk
//!                      │ no                                     │ not there
//!                      └──────► asked of the encoder: keys, bytes; then, if need be, all
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;

use super::Decoded;
use crate::check::{Span, check_of};
use crate::config::{MAX_CHUNK, MAX_REPAIR_RANGES, MAX_SOURCE_BYTES, PARTIAL_REPAIRS};
use crate::dictionary::{Fetch, NO_KEY, PeerView, Ticket};
use crate::error::Error;
use crate::fingerprint::Key;
use crate::literals::join_bases;
use crate::record::{End, Extent, Group, Literals, Operation, Record, digest_of};
use crate::repair::{RepairRequest, RepairScope};
use crate::windows::WindowId;

/// A record that is not delivered yet.
pub(super) struct Pending {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) record: Record,
    /// Bytes that it takes: its raw ones, or of the chunks that it is made from if they are more.
    pub(super) weight: usize,
    /// What its description takes beside that.
    fixed: usize,
    /// The record's sources, in order.
    sources: Vec<Source>,
    /// The sources of runs whose keys the encoder has told, until they are linked here as well.
    named: Vec<Range<usize>>,
    /// The bytes of references, by their number, from the encoder.
    repaired: BTreeMap<usize, Bytes>,
    /// The literals if they are in the flow's window, decoded once, in the records' order; `None`
    /// inside when they could not be.
    windowed: Option<Option<Bytes>>,
    repair: Repair,
    partial_repairs: usize,
    /// It was looked through while another record waited, and nothing new is known since.
    is_looked_through: bool,
}

/// What a flow's last records say of the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    Good,
    /// What is lost is most of what is referred to, and not a chunk here and there.
    Bleak,
}

/// When a record is looked through for what it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// All records before it are delivered.
    Now,
    /// Some are not, and may bring what is missing here.
    Ahead,
}

/// One of the chunks that a record takes bytes from.
#[derive(Clone, Debug)]
struct Source {
    /// [`NO_KEY`] while the run that it is in has not been followed to its end.
    key: Key,
    state: State,
}

/// Where a source's bytes are to come from.
#[derive(Clone, Debug)]
enum State {
    /// Not looked for yet, or not found when looked for early.
    Unknown,
    Reading(Ticket),
    /// The chunk.
    Chunk(Bytes),
    Missing,
}

/// How far a record's repair has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Repair {
    None,
    AskedSome {
        references: Vec<usize>,
        runs: Vec<usize>,
    },
    AskedAll,
    AnsweredAll(Vec<Bytes>),
}

/// What came of trying to deliver the front record.
pub(super) enum Attempt {
    Verified(Verified),
    Waits(Decoded),
}

/// A record's raw bytes, found right by its check: only [`Pending::verify`] makes one.
pub(super) struct Verified {
    pub(super) raw: Bytes,
    /// How many of them each operation gave.
    pub(super) lengths: Vec<usize>,
    /// For each operation that took a whole chunk from the dictionary, the chunk.
    pub(super) chunks: Vec<Key>,
    /// The spans in which chunks end, in order.
    pub(super) chunk_ends: Vec<Span>,
}

impl Pending {
    pub(super) fn new(start: u64, end: u64, record: Record) -> Self {
        let unnamed = Source {
            key: NO_KEY,
            state: State::Unknown,
        };
        let mut sources = Vec::new();
        for group in &record.groups {
            match group {
                Group::Listed(keys) => sources.extend(keys.iter().map(|key| Source {
                    key: *key,
                    state: State::Unknown,
                })),
                Group::Run { count, .. } => {
                    sources.resize(sources.len() + count, unnamed.clone());
                }
            }
        }
        let fixed = record.coded.len()
            + record.operations.capacity() * size_of::<Operation>()
            + sources.capacity() * size_of::<Source>();
        Self {
            start,
            end,
            fixed,
            weight: record.raw_length,
            record,
            sources,
            named: Vec::new(),
            repaired: BTreeMap::new(),
            windowed: None,
            repair: Repair::None,
            partial_repairs: 0,
            is_looked_through: false,
        }
    }

    /// Looks early for what is there already. What is not may still come with a record before
    /// this one. What is beyond [`MAX_SOURCE_BYTES`] is left for a repair.
    pub(super) fn start_reads(&mut self, view: &mut PeerView<'_>) {
        self.follow_runs(view);
        let (mut counted, mut total) = (BTreeSet::new(), 0);
        for source in &mut self.sources {
            let Some(chunk) = view.find(source.key) else {
                continue;
            };
            if counted.insert(source.key) {
                total += chunk.length();
            }
            if total > MAX_SOURCE_BYTES {
                return;
            }
            self.weight = self.weight.max(total);
            if let State::Unknown = &source.state {
                match view.fetch(&chunk) {
                    Fetch::Ready(bytes) => source.state = State::Chunk(bytes),
                    Fetch::Reading(ticket) => source.state = State::Reading(ticket),
                    Fetch::Missing => {}
                }
            }
        }
    }

    /// Bytes that it takes beside [`Self::weight`], about: its description, and the heads of the pieces
    /// that came from repairs. The bytes of these are among its raw ones.
    pub(super) fn extra(&self) -> usize {
        let all = match &self.repair {
            Repair::AnsweredAll(pieces) => pieces.len(),
            Repair::None | Repair::AskedSome { .. } | Repair::AskedAll => 0,
        };
        self.fixed + (self.repaired.len() + all) * size_of::<Bytes>()
    }

    /// Tries to make the raw bytes, now that all records before this one are delivered.
    pub(super) fn attempt(
        &mut self,
        view: &mut PeerView<'_>,
        window: &mut Option<WindowId>,
        outlook: Outlook,
    ) -> Result<Attempt, Error> {
        self.decode_in_window(view, window);
        match &self.repair {
            Repair::AskedSome { .. } | Repair::AskedAll => {
                return Ok(Attempt::Waits(Decoded::WaitForRepair));
            }
            Repair::AnsweredAll(pieces) => {
                let verified = self.join_pieces(pieces);
                return verified.map(Attempt::Verified).ok_or(Error::PeerMisbehaved(
                    "a record does not verify, even sent again as a whole",
                ));
            }
            Repair::None => {}
        }
        if self.windowed == Some(None) {
            return Ok(Attempt::Waits(self.ask_for_all(view)));
        }
        // From now on both sides' links agree there.
        for sources in self.named.drain(..) {
            for pair in self.sources[sources].windows(2) {
                view.link(pair[0].key, pair[1].key);
            }
        }
        self.start_reads(view);
        let mut waits = false;
        for source in &mut self.sources {
            match &source.state {
                State::Reading(ticket) => match ticket.outcome() {
                    None => waits = true,
                    Some(Some(bytes)) => source.state = State::Chunk(bytes),
                    Some(None) => source.state = State::Missing,
                },
                State::Unknown if source.key != NO_KEY => source.state = State::Missing,
                State::Unknown | State::Chunk(_) | State::Missing => {}
            }
        }
        if waits {
            return Ok(Attempt::Waits(Decoded::WaitForDisk));
        }
        if let Some(request) = self.ask_for_missing(view, Asking::Now, outlook) {
            return Ok(Attempt::Waits(request));
        }
        if let Some(verified) = self.assemble(view) {
            return Ok(Attempt::Verified(verified));
        }
        Ok(Attempt::Waits(self.ask_for_all(view)))
    }

    /// Asks for what is known to be missing although records before this one are not delivered, unless
    /// the disk has yet to say; to be called of one record after the other. A chunk that one of those
    /// brings may so be sent twice.
    pub(super) fn ask_ahead(
        &mut self,
        view: &mut PeerView<'_>,
        window: &mut Option<WindowId>,
        outlook: Outlook,
    ) -> Option<Decoded> {
        self.decode_in_window(view, window);
        if self.is_looked_through || self.repair != Repair::None {
            return None;
        }
        if self.is_reading() {
            return Some(Decoded::WaitForDisk);
        }
        self.is_looked_through = true;
        if self.windowed == Some(None) {
            return Some(self.ask_for_all(view));
        }
        self.follow_runs(view);
        self.ask_for_missing(view, Asking::Ahead, outlook)
    }

    fn is_reading(&self) -> bool {
        let reading = |source: &Source| match &source.state {
            State::Reading(ticket) => ticket.outcome().is_none(),
            State::Unknown | State::Chunk(_) | State::Missing => false,
        };
        self.sources.iter().any(reading)
    }

    /// What its repair tells of the records to come, of which `before` was expected.
    pub(super) fn outlook(&self, before: Outlook) -> Outlook {
        match (&self.repair, self.partial_repairs) {
            (_, PARTIAL_REPAIRS..) => Outlook::Bleak,
            (Repair::None, 0) => Outlook::Good,
            _ => before,
        }
    }

    /// Takes in an answer; says whether it answers what was asked.
    pub(super) fn answered_all(&mut self, pieces: Vec<Bytes>) -> bool {
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let asked = self.repair == Repair::AskedAll && length == self.record.raw_length;
        if asked {
            self.repair = Repair::AnsweredAll(pieces);
        }
        asked
    }

    /// Takes in an answer; says whether it answers what was asked.
    pub(super) fn answered_some(&mut self, pieces: Vec<Bytes>, keys: &[Key]) -> bool {
        let Repair::AskedSome { references, runs } = &self.repair else {
            return false;
        };
        let named: usize = runs.iter().map(|run| self.record.groups[*run].len()).sum();
        let length: usize = pieces.iter().map(Bytes::len).sum();
        if references.len() != pieces.len()
            || named != keys.len()
            || length > self.record.raw_length
        {
            return false;
        }
        self.repaired.extend(references.iter().copied().zip(pieces));
        let mut keys = keys.iter().copied();
        let mut first = 0;
        for (number, group) in self.record.groups.iter().enumerate() {
            let sources = first..first + group.len();
            first = sources.end;
            if !runs.contains(&number) {
                continue;
            }
            self.named.push(sources.clone());
            for (source, key) in self.sources[sources].iter_mut().zip(&mut keys) {
                source.key = key;
            }
        }
        self.repair = Repair::None;
        self.is_looked_through = false;
        true
    }

    /// Finds the keys of runs, where the links lead to those that the encoder meant.
    fn follow_runs(&mut self, view: &PeerView<'_>) {
        let mut at = 0;
        for group in &self.record.groups {
            let sources = at..at + group.len();
            at = sources.end;
            if let Group::Run { first, digest, .. } = group {
                let sources = &mut self.sources[sources];
                let known = sources.first().is_none_or(|source| source.key != NO_KEY);
                if known || digest_of(walk(view, *first, sources.len())) != *digest {
                    continue;
                }
                let keys = walk(view, *first, sources.len());
                for (source, key) in sources.iter_mut().zip(keys) {
                    source.key = key;
                }
            }
        }
    }

    /// The request for what is not here, if anything is.
    fn ask_for_missing(
        &mut self,
        view: &mut PeerView<'_>,
        asking: Asking,
        outlook: Outlook,
    ) -> Option<Decoded> {
        let mut missing = BTreeSet::new();
        let (mut runs, mut first) = (Vec::new(), 0);
        let mut is_hopeless = false;
        for (number, group) in self.record.groups.iter().enumerate() {
            let sources = first..first + group.len();
            first = sources.end;
            let unnamed = |index: &usize| self.sources[*index].key == NO_KEY;
            match group {
                Group::Run { first, count, .. } if sources.clone().any(|index| unnamed(&index)) => {
                    let begins_here = !view.lacks(*first);
                    is_hopeless |= outlook == Outlook::Bleak && !begins_here;
                    if asking == Asking::Ahead && begins_here {
                        // The links that lead on may come with a record before this one.
                        continue;
                    }
                    runs.push(number);
                    // The links to a chunk go with it, so where they end one is most likely lost:
                    // its bytes are asked for together with the keys, which saves a round trip.
                    let mut keys = walk(view, *first, *count);
                    let lost = keys.position(|key| view.lacks(key));
                    missing.extend(lost.map(|index| sources.start + index));
                }
                Group::Run { .. } | Group::Listed(_) => {
                    let lost = |index: &usize| self.sources[*index].is_missing(view);
                    missing.extend(sources.filter(lost));
                }
            }
        }
        let bases = match self.record.literals {
            Literals::ZstdWithBases(count) => self.sources.len() - count..self.sources.len(),
            Literals::Stored | Literals::Zstd | Literals::WindowBegins | Literals::WindowGoesOn => {
                0..0
            }
        };
        let baseless = missing.range(bases).next().is_some();
        let mut references = Vec::new();
        let taking = self.record.operations.iter().filter_map(Operation::source);
        for (number, source) in taking.enumerate() {
            if missing.contains(&source) && !self.repaired.contains_key(&number) {
                references.push(number);
            }
        }
        if references.is_empty() && runs.is_empty() && !baseless {
            return None;
        }
        let many = references.len().max(runs.len()) > MAX_REPAIR_RANGES;
        if many || baseless || is_hopeless || self.partial_repairs == PARTIAL_REPAIRS {
            return Some(self.ask_for_all(view));
        }
        self.partial_repairs += 1;
        self.repair = Repair::AskedSome {
            references: references.clone(),
            runs: runs.clone(),
        };
        Some(self.request(view, RepairScope::Some { references, runs }))
    }

    /// Takes the flow's window one record further, whatever becomes of the rest of the record.
    fn decode_in_window(&mut self, view: &mut PeerView<'_>, window: &mut Option<WindowId>) {
        if self.windowed.is_some() {
            return;
        }
        let record = &self.record;
        let codec = view.codec();
        match record.literals {
            Literals::WindowBegins => codec.begin_decoding(window),
            Literals::WindowGoesOn => {}
            Literals::Stored | Literals::Zstd | Literals::ZstdWithBases(_) => return,
        }
        let decoded = codec.decode_in_window(&record.coded, window, record.literal_length);
        self.windowed = Some(decoded.map(Bytes::from));
    }

    fn ask_for_all(&mut self, view: &mut PeerView<'_>) -> Decoded {
        self.repair = Repair::AskedAll;
        self.request(view, RepairScope::All)
    }

    fn request(&self, view: &mut PeerView<'_>, scope: RepairScope) -> Decoded {
        view.count_request(&scope);
        let record_start = self.start;
        Decoded::NeedRepair(
            RepairRequest {
                record_start,
                scope,
            }
            .emit(),
        )
    }

    /// The raw bytes from the sources, if they come out right.
    fn assemble(&self, view: &mut PeerView<'_>) -> Option<Verified> {
        let record = &self.record;
        let literals: Bytes = match record.literals {
            Literals::Stored => record.coded.clone(),
            Literals::Zstd => {
                let length = record.literal_length;
                let decoded = view.codec().decode(&record.coded, &[], length)?;
                decoded.into()
            }
            Literals::ZstdWithBases(count) => {
                let bases = &self.sources[self.sources.len() - count..];
                let joined = join_bases(bases.iter().map(|base| base.bytes().unwrap_or_default()));
                let length = record.literal_length;
                let decoded = view.codec().decode(&record.coded, &joined, length)?;
                decoded.into()
            }
            Literals::WindowBegins | Literals::WindowGoesOn => {
                self.windowed.as_ref().and_then(Option::as_ref)?.clone()
            }
        };
        let only_literals = record.operations.iter().map(Operation::literal_length);
        if let Some(lengths) = only_literals.collect() {
            return self.verify(literals, lengths, Vec::new());
        }
        let mut literals = &literals[..];
        let mut raw = Vec::with_capacity(record.raw_length);
        let mut lengths = Vec::with_capacity(record.operations.len());
        let mut chunks = Vec::new();
        let mut reference = 0;
        for operation in &record.operations {
            let piece = match *operation {
                Operation::Literal { length, .. } | Operation::Aside { length, .. } => {
                    let (piece, rest) = literals.split_at_checked(length)?;
                    literals = rest;
                    piece
                }
                Operation::Chunk { source } => {
                    let repaired = self.repaired.get(&reference);
                    reference += 1;
                    chunks.push(match repaired {
                        Some(_) => NO_KEY,
                        None => self.sources[source].key,
                    });
                    match repaired {
                        Some(bytes) => bytes,
                        None => self.sources[source].bytes()?,
                    }
                }
                Operation::Copy {
                    source,
                    offset,
                    extent,
                    ..
                } => {
                    let repaired = self.repaired.get(&reference);
                    reference += 1;
                    match (repaired, extent) {
                        (Some(bytes), _) => bytes,
                        (None, Extent::Rest) => self.sources[source].bytes()?.get(offset..)?,
                        (None, Extent::Bytes(length)) => {
                            let bytes = self.sources[source].bytes()?;
                            bytes.get(offset..offset + length)?
                        }
                    }
                }
            };
            if raw.len() + piece.len() > record.raw_length {
                return None;
            }
            raw.extend_from_slice(piece);
            lengths.push(piece.len());
        }
        self.verify(raw.into(), lengths, chunks)
    }

    /// The raw bytes from a whole repair, one piece for each operation, if they come out right.
    fn join_pieces(&self, pieces: &[Bytes]) -> Option<Verified> {
        let lengths = pieces.iter().map(Bytes::len).collect();
        self.verify(pieces.concat().into(), lengths, Vec::new())
    }

    fn verify(&self, raw: Bytes, lengths: Vec<usize>, chunks: Vec<Key>) -> Option<Verified> {
        let record = &self.record;
        let mut fits = raw.len() == record.raw_length && lengths.len() == record.operations.len();
        for (operation, have) in record.operations.iter().zip(&lengths) {
            match operation {
                Operation::Literal { length, .. }
                | Operation::Copy {
                    extent: Extent::Bytes(length),
                    ..
                }
                | Operation::Aside { length, .. } => fits &= length == have,
                Operation::Chunk { .. } => fits &= (1..=MAX_CHUNK).contains(have),
                Operation::Copy {
                    extent: Extent::Rest,
                    ..
                } => fits &= *have <= MAX_CHUNK,
            }
        }
        if !fits {
            return None;
        }
        let (mut spans, mut chunk_ends) = (Vec::new(), Vec::new());
        let (mut at, mut start) = (0, 0);
        let mut end_span = |end: usize| {
            spans.push(&raw[std::mem::replace(&mut start, end)..end]);
            spans.len() - 1
        };
        for (operation, length) in record.operations.iter().zip(&lengths) {
            let before = at;
            at += length;
            match operation {
                Operation::Literal { end, .. } | Operation::Copy { end, .. } => match end {
                    End::Continues => {}
                    End::Ends => chunk_ends.push(end_span(at)),
                },
                Operation::Chunk { .. } => {
                    end_span(before);
                    chunk_ends.push(end_span(at));
                }
                Operation::Aside { .. } => {
                    end_span(before);
                    end_span(at);
                }
            }
        }
        end_span(at);
        let spans = Span::of_each(&spans);
        let chunk_ends = chunk_ends.iter().map(|number| spans[*number]).collect();
        (check_of(&spans) == record.check).then(|| Verified {
            raw,
            lengths,
            chunks,
            chunk_ends,
        })
    }
}

impl Source {
    fn bytes(&self) -> Option<&[u8]> {
        match &self.state {
            State::Chunk(bytes) => Some(bytes),
            State::Unknown | State::Reading(_) | State::Missing => None,
        }
    }

    /// Whether the peer has no such chunk here. What is unnamed is not said to be missing.
    fn is_missing(&self, view: &PeerView<'_>) -> bool {
        match &self.state {
            State::Missing => true,
            State::Unknown => self.key != NO_KEY && view.lacks(self.key),
            State::Reading(ticket) => ticket.outcome() == Some(None),
            State::Chunk(_) => false,
        }
    }
}

/// So many chunks from `first` on, each the one that was last seen after the one before.
fn walk(view: &PeerView<'_>, first: Key, count: usize) -> impl Iterator<Item = Key> {
    std::iter::successors(Some(first), |key| Some(view.next(*key))).take(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        DECODE_AHEAD_BYTES, DecoderConfig, DictionaryConfig, MAX_RECORD_SOURCES, REPAIR_AHEAD_BYTES,
    };
    use crate::decoder::Decoder;
    use crate::dictionary::{Dictionary, FlowChunks};
    use crate::fingerprint::Fingerprint;
    use vocab::{NodeId, Random};

    const PEER: NodeId = NodeId([7; 32]);

    /// Chunks of the peer in a dictionary, each linked to the one before.
    fn chain(dictionary: &mut Dictionary, count: usize, length: usize) -> Vec<Key> {
        let peer = dictionary.peer(PEER);
        let mut keys = vec![NO_KEY];
        for number in 0..count {
            let mut chunk = vec![0; length];
            Random::from_seed(number as u64).fill(&mut chunk);
            let fingerprint = Fingerprint::of(&chunk);
            dictionary.insert(&fingerprint, &chunk, keys[number], peer);
            dictionary.mark_held(fingerprint.key(), fingerprint.check(), peer);
            keys.push(fingerprint.key());
        }
        keys.split_off(1)
    }

    fn record(groups: Vec<Group>, operations: Vec<Operation>) -> Record {
        Record {
            raw_length: MAX_CHUNK,
            check: [0; 16],
            literal_length: 0,
            literals: Literals::Stored,
            coded: Bytes::new(),
            groups,
            operations,
        }
    }

    fn dictionary() -> Dictionary {
        Dictionary::new(DictionaryConfig::default(), Random::from_seed(1))
    }

    fn start_reads(pending: &mut Pending, dictionary: &mut Dictionary) {
        let peer = dictionary.peer(PEER);
        pending.start_reads(&mut PeerView::new(dictionary, peer, &FlowChunks::default()));
    }

    fn attempt(pending: &mut Pending, dictionary: &mut Dictionary) -> Result<Attempt, Error> {
        let peer = dictionary.peer(PEER);
        let chunks = FlowChunks::default();
        let mut view = PeerView::new(dictionary, peer, &chunks);
        pending.attempt(&mut view, &mut None, Outlook::Good)
    }

    #[test]
    fn a_record_of_many_references_takes_no_more_than_a_sound_one_could() {
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 100, MAX_CHUNK);
        let twice: Vec<Key> = keys.iter().flat_map(|key| [*key; 2]).collect();
        let mut pending = Pending::new(0, 1, record(vec![Group::Listed(twice)], Vec::new()));
        start_reads(&mut pending, &mut dictionary);
        let taken = pending.sources.iter().filter_map(Source::bytes).count();
        assert_eq!(taken, 2 * (MAX_SOURCE_BYTES / MAX_CHUNK));
    }

    /// Eight records of a byte from each of many chunks: 18 MiB, if all were looked up at once.
    #[test]
    fn records_that_are_made_to_cost_memory_count_and_are_looked_up_a_few_at_a_time() {
        const CHUNKS: usize = MAX_SOURCE_BYTES / MAX_CHUNK;
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 8 * CHUNKS, MAX_CHUNK);
        let peer = dictionary.peer(PEER);
        let mut decoder = Decoder::new(DecoderConfig::default(), peer);
        for keys in keys.chunks(CHUNKS) {
            let bytes = (0..CHUNKS).map(|source| Operation::Copy {
                source,
                offset: 0,
                extent: Extent::Bytes(1),
                end: End::Continues,
            });
            let mut costly = record(vec![Group::Listed(keys.to_vec())], bytes.collect());
            costly.raw_length = CHUNKS;
            decoder.push(costly.emit_with(&[]).0);
        }
        // The first does not verify and is asked for; then the others are looked through.
        for most in [DECODE_AHEAD_BYTES, REPAIR_AHEAD_BYTES] {
            let polled = decoder.poll(&mut dictionary);
            assert!(matches!(
                polled,
                Ok(Decoded::NeedRepair(_) | Decoded::WaitForRepair)
            ));
            let records = decoder.records.iter();
            let sources = records.flat_map(|pending| &pending.sources);
            let held: usize = sources.filter_map(Source::bytes).map(<[u8]>::len).sum();
            assert!(held >= MAX_SOURCE_BYTES, "{held}");
            assert!(held <= most + MAX_SOURCE_BYTES, "{held}");
            assert!(decoder.buffered() >= held);
        }
    }

    #[test]
    fn a_run_is_followed_only_where_the_links_agree() {
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 20, 100);
        let run = |digest| Group::Run {
            first: keys[3],
            count: 10,
            digest,
        };
        let right = digest_of(keys[3..13].iter().copied());
        let mut pending = Pending::new(0, 1, record(vec![run(right)], Vec::new()));
        start_reads(&mut pending, &mut dictionary);
        let found: Vec<Key> = pending.sources.iter().map(|source| source.key).collect();
        assert_eq!(found, keys[3..13]);
        // A link that is another, an end of the links, and a loop in them: asked for.
        let peer = dictionary.peer(PEER);
        dictionary.link(keys[7], keys[2], peer);
        for digest in [right, right ^ 1] {
            let mut pending = Pending::new(0, 1, record(vec![run(digest)], Vec::new()));
            start_reads(&mut pending, &mut dictionary);
            assert!(pending.sources.iter().all(|source| source.key == NO_KEY));
            let asked = attempt(&mut pending, &mut dictionary);
            assert!(matches!(asked, Ok(Attempt::Waits(Decoded::NeedRepair(_)))));
        }
    }

    #[test]
    fn where_a_run_ends_early_the_chunk_is_asked_for_with_the_keys() {
        let mut dictionary = dictionary();
        let keys = chain(&mut dictionary, 20, 100);
        let beyond = Group::Run {
            first: keys[15],
            count: MAX_RECORD_SOURCES,
            digest: 0,
        };
        let chunks = (0..8).map(|source| Operation::Chunk { source });
        let mut pending = Pending::new(0, 1, record(vec![beyond], chunks.collect()));
        start_reads(&mut pending, &mut dictionary);
        let asked = attempt(&mut pending, &mut dictionary);
        let Ok(Attempt::Waits(Decoded::NeedRepair(request))) = asked else {
            panic!("it asks");
        };
        let scope = RepairRequest::parse(&request).unwrap().scope;
        let (references, runs) = (vec![5], vec![0]);
        assert_eq!(scope, RepairScope::Some { references, runs });
    }
}
