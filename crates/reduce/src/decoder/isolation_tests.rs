//! A paired peer that was taken over tries to read chunks of another peer through a decoder.
//!
//! ```text
//! owner ──► chunks "shared", "secret", "after" ──► dictionary ◄── records that name them ── attacker
//! ```
//! The attacker knows the chunks' keys and even their bytes, so that every record would verify if it
//! could be resolved: that is a guess that is right. Each record is tried once with a chunk that is
//! there and once with one that is not, and nothing may differ.

use bytes::Bytes;
use vocab::{ByteCount, NodeId, SeededRandom, Time};

use super::{DecoderOutput, FlowDecoder};
use crate::check::{CheckSpan, check_of};
use crate::config::{
    DecoderConfig, DictionaryConfig, EncoderConfig, MAX_TRACKED_PEERS, SYNC_INTERVAL,
};
use crate::content::{ContentRead, ContentReader, ContentWriter};
use crate::dictionary::{Dictionary, DictionaryKey, FetchResult, InsertOutcome, PeerSlot};
use crate::encoder::FlowEncoder;
use crate::fingerprint::{ChunkKey, Fingerprint};
use crate::literals::join_bases;
use crate::record::{
    CopyExtent, LiteralEncoding, OperationEnd, ParsedRecord, RecordOperation, SourceGroup,
    digest_of,
};
use crate::repair::{AnswerScope, RepairAnswer};
use crate::testing::MemoryDisk;

const OWNER: NodeId = NodeId([1; 32]);
const ATTACKER: NodeId = NodeId([2; 32]);
const CHUNK: usize = 20_000;

/// A node that both peers are paired with.
struct SharedNode {
    dictionary: Dictionary,
    disk: MemoryDisk,
    config: DictionaryConfig,
    starts: u64,
    now: Time,
}

/// Result of one peer's record.
#[derive(Debug, PartialEq, Eq)]
struct RecordOutcome {
    decoded: DecoderOutput,
    /// Requests to the disk that it caused.
    disk_requests: u64,
    /// Bytes that the decoder came to hold.
    buffered: usize,
}

/// The chunks that an attack is about.
#[derive(Clone, Debug)]
struct AttackTarget {
    /// A chunk of the attacker's own; the owner sent it too, followed by the secret.
    shared: Bytes,
    secret: Bytes,
    /// Bytes that the owner sent after the secret.
    after: Bytes,
}

fn noise(seed: u64) -> Bytes {
    let mut bytes = vec![0; CHUNK];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes.into()
}

fn key_of(chunk: &[u8]) -> ChunkKey {
    Fingerprint::of(chunk).key()
}

impl AttackTarget {
    fn there() -> Self {
        Self {
            shared: noise(1),
            secret: noise(2),
            after: noise(3),
        }
    }

    /// Makes the same target with chunks that no peer has sent.
    fn absent() -> Self {
        Self {
            secret: noise(12),
            after: noise(13),
            ..Self::there()
        }
    }
}

impl SharedNode {
    fn new() -> Self {
        let config = DictionaryConfig {
            memory: ByteCount::mebibytes(1),
            disk: ByteCount::mebibytes(2),
            segment: ByteCount::kibibytes(64),
        };
        let mut node = Self {
            dictionary: Dictionary::new(config, SeededRandom::from_seed(0)),
            disk: MemoryDisk::new(),
            config,
            starts: 0,
            now: Time::ZERO,
        };
        node.start();
        node
    }

    fn start(&mut self) {
        self.starts += 1;
        let key = DictionaryKey::new([5; 32]);
        let random = SeededRandom::from_seed(self.starts);
        self.dictionary = Dictionary::with_key(self.config, key, random);
        self.dictionary.open();
        self.disk.serve(&mut self.dictionary);
        assert!(self.dictionary.is_ready());
    }

    /// Ends in an orderly way and starts again: all chunks are on disk only.
    fn restart(&mut self) {
        self.settle();
        self.start();
    }

    /// Writes down everything that is to be written.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.now += 2 * SYNC_INTERVAL;
            self.dictionary.handle_timeout(self.now);
            self.dictionary.request_flush();
            self.disk.serve(&mut self.dictionary);
        }
    }

    /// The owner has sent the three chunks one after the other, the attacker the first of them.
    fn with_secret() -> Self {
        let mut node = Self::new();
        let AttackTarget {
            shared,
            secret,
            after,
        } = AttackTarget::there();
        node.receive(OWNER, &[&shared, &secret, &after]);
        node.receive(ATTACKER, &[&shared]);
        node
    }

    /// The peer sends these chunks, whole, in one flow.
    fn receive(&mut self, peer: NodeId, chunks: &[&Bytes]) {
        let slot = self.dictionary.peer(peer);
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), slot);
        for chunk in chunks {
            decoder.push(sending(chunk).emit());
            while let DecoderOutput::Segment(segment) = self.poll(&mut decoder) {
                assert_eq!(segment.bytes, **chunk);
            }
        }
        assert!(decoder.is_at_boundary());
        self.disk.serve(&mut self.dictionary);
    }

    fn poll(&mut self, decoder: &mut FlowDecoder) -> DecoderOutput {
        loop {
            let decoded = decoder.poll(&mut self.dictionary);
            match decoded.expect("the stream is well-formed") {
                DecoderOutput::WaitForDisk => self.disk.serve(&mut self.dictionary),
                other => return other,
            }
        }
    }

    /// Returns the result of a record that is the first one in a flow of the peer.
    fn outcome(&mut self, peer: NodeId, record: &ParsedRecord) -> RecordOutcome {
        let slot = self.dictionary.peer(peer);
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), slot);
        let executed = self.disk.executed;
        decoder.push(record.emit());
        let decoded = self.poll(&mut decoder);
        RecordOutcome {
            decoded,
            disk_requests: self.disk.executed - executed,
            buffered: decoder.buffered(),
        }
    }

    /// The attacker gets nothing out of any record: each leads to the same request, whether the chunk
    /// is there or not, and costs the same.
    fn assert_attacker_learns_nothing(&mut self, when: &str) {
        let absent = attacks(&AttackTarget::absent());
        for ((name, record), (_, absent)) in attacks(&AttackTarget::there()).iter().zip(&absent) {
            let there = self.outcome(ATTACKER, record);
            let not_there = self.outcome(ATTACKER, absent);
            assert!(
                matches!(there.decoded, DecoderOutput::NeedRepair(_)),
                "{when}, {name}: {there:?}"
            );
            assert_eq!(there, not_there, "{when}, {name}");
        }
        self.keys_named_by_the_attacker_tell_nothing(when);
    }

    /// The attacker answers a request for the keys of a run with the secret's key.
    fn keys_named_by_the_attacker_tell_nothing(&mut self, when: &str) {
        let outcomes = [AttackTarget::there(), AttackTarget::absent()].map(|target| {
            let mut run = run_to_secret(&target);
            if let SourceGroup::Run { digest, .. } = &mut run.groups[0] {
                *digest ^= 1;
            }
            let slot = self.dictionary.peer(ATTACKER);
            let mut decoder = FlowDecoder::new(DecoderConfig::default(), slot);
            decoder.push(run.emit());
            let first = self.poll(&mut decoder);
            let answer = RepairAnswer {
                record_start: 0,
                scope: AnswerScope::Some,
                pieces: vec![Bytes::from(vec![0; CHUNK])],
                keys: vec![key_of(&target.shared), key_of(&target.secret)],
            };
            decoder
                .handle_repair(&answer.emit(1))
                .expect("it was asked for");
            let second = self.poll(&mut decoder);
            assert!(matches!(second, DecoderOutput::NeedRepair(_)), "{when}");
            (first, second)
        });
        assert_eq!(outcomes[0], outcomes[1], "{when}");
    }

    /// Checks that the same records resolve for the peer whose chunks they name.
    fn assert_owner_reads_chunks(&mut self, when: &str) {
        for (name, record) in attacks(&AttackTarget::there()) {
            let outcome = self.outcome(OWNER, &record);
            let is_delivered = matches!(outcome.decoded, DecoderOutput::Segment(_));
            assert!(is_delivered, "{when}, {name}: {outcome:?}");
        }
    }
}

fn record(
    raw: &[&[u8]],
    groups: Vec<SourceGroup>,
    operations: Vec<RecordOperation>,
) -> ParsedRecord {
    ParsedRecord {
        raw_length: raw.iter().map(|piece| piece.len()).sum(),
        check: check_of(&CheckSpan::of_each(raw)),
        literal_length: 0,
        literals: LiteralEncoding::Stored,
        coded: Bytes::new(),
        groups,
        operations,
    }
}

/// A record that brings a whole chunk.
fn sending(chunk: &Bytes) -> ParsedRecord {
    let literal = RecordOperation::Literal {
        length: chunk.len(),
        end: OperationEnd::Ends,
    };
    ParsedRecord {
        literal_length: chunk.len(),
        coded: chunk.clone(),
        ..record(&[&chunk[..]], Vec::new(), vec![literal])
    }
}

fn run_to_secret(target: &AttackTarget) -> ParsedRecord {
    let keys = [key_of(&target.shared), key_of(&target.secret)];
    let run = SourceGroup::Run {
        first: keys[0],
        count: 2,
        digest: digest_of(keys.into_iter()),
    };
    let chunks = (0..2).map(|source| RecordOperation::Chunk { source });
    record(
        &[&target.shared, &target.secret],
        vec![run],
        chunks.collect(),
    )
}

/// Records that deliver bytes of the secret if it can be resolved.
fn attacks(target: &AttackTarget) -> Vec<(&'static str, ParsedRecord)> {
    let AttackTarget { secret, after, .. } = target;
    let key = key_of(secret);
    let listed = || vec![SourceGroup::Listed(vec![key])];
    let copy = |offset, extent| {
        vec![RecordOperation::Copy {
            source: 0,
            offset,
            extent,
            end: OperationEnd::Continues,
        }]
    };
    let keys = [key, key_of(after)];
    let run_from = SourceGroup::Run {
        first: key,
        count: 2,
        digest: digest_of(keys.into_iter()),
    };
    let chunks = (0..2).map(|source| RecordOperation::Chunk { source });
    vec![
        (
            "the whole chunk by its key",
            record(
                &[secret],
                listed(),
                vec![RecordOperation::Chunk { source: 0 }],
            ),
        ),
        (
            "a guessed byte of it",
            record(
                &[&secret[100..101]],
                listed(),
                copy(100, CopyExtent::Bytes(1)),
            ),
        ),
        (
            "the rest of it",
            record(&[&secret[5000..]], listed(), copy(5000, CopyExtent::Rest)),
        ),
        ("literals against it", delta(secret, listed())),
        (
            "a run from it",
            record(&[secret, after], vec![run_from], chunks.collect()),
        ),
        ("a run to it", run_to_secret(target)),
    ]
}

/// A record whose literals are coded against the secret.
fn delta(secret: &Bytes, groups: Vec<SourceGroup>) -> ParsedRecord {
    let literals = &secret[1000..9000];
    let joined = join_bases(std::iter::once(&secret[..]));
    let mut coded = Vec::with_capacity(zstd_safe::compress_bound(literals.len()));
    let mut context = zstd_safe::CCtx::create();
    context
        .compress_using_dict(&mut coded, literals, &joined, 3)
        .expect("it compresses");
    assert!(coded.len() < 100, "it was found in the base");
    let literal = RecordOperation::Literal {
        length: literals.len(),
        end: OperationEnd::Continues,
    };
    ParsedRecord {
        literal_length: literals.len(),
        literals: LiteralEncoding::ZstdWithBases(1),
        coded: coded.into(),
        ..record(&[literals], groups, vec![literal])
    }
}

/// No peer can refer to content that this node stores for itself under content handles: not while
/// it is read and pinned, not from disk, and not beside the same chunk of a peer.
#[test]
fn own_content_is_not_readable_by_peers() {
    let mut node = SharedNode::new();
    let AttackTarget {
        shared,
        secret,
        after,
    } = AttackTarget::there();
    node.receive(ATTACKER, &[&shared]);
    for chunk in [&shared, &secret, &after] {
        node.dictionary.keep(&Fingerprint::of(chunk), chunk);
    }
    let body: Vec<u8> = [&secret[..], &after[..]].concat();
    let mut writer = ContentWriter::new();
    writer.append(&mut node.dictionary, &body).expect("it fits");
    let handle = writer.finish(&mut node.dictionary).expect("it fits");
    node.settle();
    node.assert_attacker_learns_nothing("stored");
    let mut reader = ContentReader::new(handle.clone(), 0..handle.length());
    assert!(matches!(
        reader.poll(&mut node.dictionary),
        ContentRead::Piece(_)
    ));
    node.assert_attacker_learns_nothing("while it is read");
    node.restart();
    node.assert_attacker_learns_nothing("on disk");
    for chunk in [&secret, &after] {
        let fetch = node.dictionary.fetch_exact(&Fingerprint::of(chunk), CHUNK);
        assert!(matches!(fetch, FetchResult::Reading(_)), "it is there");
    }
    node.disk.serve(&mut node.dictionary);
    node.assert_attacker_learns_nothing("in memory again");
    // The owner sends it: now it is his, and nobody else's.
    node.receive(OWNER, &[&shared, &secret, &after]);
    node.assert_owner_reads_chunks("sent by the owner");
    node.assert_attacker_learns_nothing("sent by the owner");
    let kept = node.dictionary.keep(&Fingerprint::of(&secret), &secret);
    assert_eq!(kept, InsertOutcome::Here);
    node.assert_owner_reads_chunks("stored again");
    node.assert_attacker_learns_nothing("stored again");
}

#[test]
fn a_peer_cannot_read_chunks_of_another() {
    let mut node = SharedNode::with_secret();
    node.assert_attacker_learns_nothing("in memory");
    node.assert_owner_reads_chunks("in memory");
    node.assert_attacker_learns_nothing("after the owner referred to it");
    node.restart();
    node.assert_attacker_learns_nothing("on disk");
    node.assert_owner_reads_chunks("on disk");
    node.assert_attacker_learns_nothing("read from disk into memory");
}

/// Segments are dropped, and used chunks are written again.
#[test]
fn peer_isolation_holds_after_eviction() {
    let mut node = SharedNode::with_secret();
    let AttackTarget {
        shared,
        secret,
        after,
    } = AttackTarget::there();
    for round in 0..6 {
        for number in 0..40 {
            node.receive(OWNER, &[&noise(100 + 40 * round + number)]);
        }
        node.receive(OWNER, &[&shared, &secret, &after]);
        node.assert_owner_reads_chunks("evicted and rescued");
        node.assert_attacker_learns_nothing("evicted and rescued");
    }
    node.restart();
    node.assert_attacker_learns_nothing("rescued and restarted");
    node.assert_owner_reads_chunks("rescued and restarted");
    // And now all of it goes.
    for number in 0..300 {
        node.receive(OWNER, &[&noise(1000 + number)]);
    }
    node.assert_attacker_learns_nothing("gone");
}

#[test]
fn new_dictionary_gives_a_peer_nothing() {
    let mut node = SharedNode::with_secret();
    for generation in [[1; 16], [2; 16]] {
        let peers = [OWNER, ATTACKER].map(|peer| node.dictionary.peer(peer));
        for peer in peers {
            node.dictionary.peer_generation(peer, generation);
        }
        node.assert_attacker_learns_nothing("a peer lost its dictionary");
        node.restart();
        node.assert_attacker_learns_nothing("a peer lost its dictionary before the restart");
    }
    // What is brought back from before the node emptied its own is of another generation.
    let before = node.disk.clone();
    node.dictionary.clear(Some(DictionaryKey::new([6; 32])));
    node.assert_attacker_learns_nothing("emptied");
    node.disk = before;
    node.start();
    node.assert_attacker_learns_nothing("brought back");
}

/// The owner is taken out of the configuration, and another peer comes in.
#[test]
fn new_peer_gets_nothing_of_removed_peer() {
    let mut node = SharedNode::new();
    let AttackTarget {
        shared,
        secret,
        after,
    } = AttackTarget::there();
    node.receive(OWNER, &[&shared, &secret, &after]);
    node.settle();
    // After this start only the new peer is mentioned, before and after the disk was read.
    node.starts += 1;
    let key = DictionaryKey::new([5; 32]);
    let random = SeededRandom::from_seed(node.starts);
    node.dictionary = Dictionary::with_key(node.config, key, random);
    node.dictionary.peer(ATTACKER);
    node.dictionary.open();
    node.disk.serve(&mut node.dictionary);
    node.receive(ATTACKER, &[&shared]);
    node.assert_attacker_learns_nothing("in the place of a removed peer");
    node.restart();
    node.assert_attacker_learns_nothing("in the place of a removed peer, restarted");
}

/// A peer for which there is no slot has its own flow and nothing else.
#[test]
fn peer_without_slot_refers_only_to_own_flow() {
    let mut node = SharedNode::new();
    let AttackTarget {
        shared,
        secret,
        after,
    } = AttackTarget::there();
    for number in 0..MAX_TRACKED_PEERS {
        let peer = NodeId([100 + number as u8; 32]);
        assert_ne!(node.dictionary.peer(peer), PeerSlot::UNTRACKED);
    }
    for peer in [OWNER, ATTACKER] {
        assert_eq!(node.dictionary.peer(peer), PeerSlot::UNTRACKED);
    }
    node.receive(OWNER, &[&shared, &secret, &after]);
    let tracked = NodeId([100; 32]);
    node.receive(tracked, &[&shared, &secret, &after]);
    for (name, record) in attacks(&AttackTarget::there()) {
        // In a flow of its own it resolves, in another one not.
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), PeerSlot::UNTRACKED);
        for chunk in [&shared, &secret, &after] {
            decoder.push(sending(chunk).emit());
            while node.poll(&mut decoder) != DecoderOutput::NeedMore {}
        }
        decoder.push(record.emit());
        let decoded = node.poll(&mut decoder);
        assert!(matches!(decoded, DecoderOutput::Segment(_)), "{name}");
    }
    node.receive(ATTACKER, &[&shared]);
    let absent = attacks(&AttackTarget::absent());
    for ((name, record), (_, absent)) in attacks(&AttackTarget::there()).iter().zip(&absent) {
        let there = node.outcome(ATTACKER, record);
        assert!(
            matches!(there.decoded, DecoderOutput::NeedRepair(_)),
            "{name}"
        );
        // Even what the peer sent in another flow is not its own in this one.
        assert_eq!(there, node.outcome(ATTACKER, absent), "{name}");
    }
}

/// Bytes that a host sends to the attacker through this node belong to the attacker as well from
/// then on.
#[test]
fn forwarded_chunks_become_the_receivers_own() {
    let mut node = SharedNode::with_secret();
    let slot = node.dictionary.peer(ATTACKER);
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), slot);
    let AttackTarget {
        shared,
        secret,
        after,
    } = AttackTarget::there();
    let stream = [&shared[..], &secret, &after].concat();
    encoder.push(
        Time::ZERO,
        vocab::FlowSegment::payload(stream.clone().into()),
    );
    encoder.finish();
    let mut sent = Vec::new();
    while let Some(bytes) = encoder.poll_encoded(Time::ZERO, &mut node.dictionary, 1 << 20) {
        sent.extend_from_slice(&bytes);
        node.disk.serve(&mut node.dictionary);
    }
    // All but the attacker's own chunk travels in full, although the node had it.
    assert!(sent.len() > 2 * CHUNK, "{}", sent.len());
    // The attacker's own node cuts as this one does, and refers to what it got before it says so.
    let mut far = SharedNode::new();
    let near_slot = far.dictionary.peer(OWNER);
    far.receive(OWNER, &[&shared]);
    let mut decoder = FlowDecoder::new(DecoderConfig::default(), near_slot);
    decoder.push(sent.into());
    while let DecoderOutput::Segment(_) = far.poll(&mut decoder) {}
    let mut back = FlowEncoder::new(EncoderConfig::default(), near_slot);
    back.push(
        Time::ZERO,
        vocab::FlowSegment::payload(stream.clone().into()),
    );
    back.finish();
    let mut wire = Vec::new();
    while let Some(bytes) = back.poll_encoded(Time::ZERO, &mut far.dictionary, 1 << 20) {
        wire.extend_from_slice(&bytes);
        far.disk.serve(&mut far.dictionary);
    }
    assert!(wire.len() < 500, "{}", wire.len());
    let mut decoder = FlowDecoder::new(DecoderConfig::default(), slot);
    decoder.push(wire.into());
    let mut received = Vec::new();
    loop {
        match node.poll(&mut decoder) {
            DecoderOutput::Segment(segment) => received.extend_from_slice(&segment.bytes),
            DecoderOutput::NeedMore => break,
            other => panic!("it is asked for again: {other:?}"),
        }
    }
    assert_eq!(received, stream);
}

/// Links of its own tell a peer nothing of what others do with the same chunks.
#[test]
fn runs_follow_the_peers_own_links() {
    let mut node = SharedNode::new();
    let (shared, mine, theirs) = (noise(1), noise(2), noise(3));
    let own = |next: &Bytes| {
        run_to_secret(&AttackTarget {
            shared: shared.clone(),
            secret: next.clone(),
            after: Bytes::new(),
        })
    };
    node.receive(ATTACKER, &[&shared, &mine]);
    node.receive(OWNER, &[&shared, &theirs]);
    for when in ["in memory", "after a restart"] {
        for (peer, record) in [(ATTACKER, own(&mine)), (OWNER, own(&theirs))] {
            let outcome = node.outcome(peer, &record);
            let is_delivered = matches!(outcome.decoded, DecoderOutput::Segment(_));
            assert!(is_delivered, "{when}: {outcome:?}");
        }
        for (peer, record) in [(ATTACKER, own(&theirs)), (OWNER, own(&mine))] {
            let outcome = node.outcome(peer, &record);
            assert!(
                matches!(outcome.decoded, DecoderOutput::NeedRepair(_)),
                "{when}"
            );
        }
        node.restart();
    }
}

/// Another chunk with the same key, by accident or by a trick, is not the peer's.
#[test]
fn key_alone_gives_no_access_to_chunk() {
    let mut node = SharedNode::with_secret();
    let slot = node.dictionary.peer(ATTACKER);
    let fingerprint = Fingerprint::of(&AttackTarget::there().secret);
    node.dictionary
        .mark_held(fingerprint.key(), fingerprint.check() ^ 1, slot);
    node.dictionary
        .mark_sent(fingerprint.key(), fingerprint.check() ^ 1, slot);
    node.assert_attacker_learns_nothing("another check");
}

/// Bytes that a host sends to a peer are compressed against that peer's own chunks, and as well as before
/// whatever another peer has sent meanwhile.
#[test]
fn moved_pieces_are_found_despite_other_peers() {
    let sizes = [false, true].map(|others_send| {
        let mut node = SharedNode::new();
        node.receive(ATTACKER, &[&noise(1)]);
        if others_send {
            // The same bytes, between others, so that they are in another chunk.
            let other = [&noise(7)[..1000], &noise(1)[..], &noise(8)[..1000]].concat();
            node.receive(OWNER, &[&other.into()]);
        }
        let slot = node.dictionary.peer(ATTACKER);
        let mut encoder = FlowEncoder::new(EncoderConfig::default(), slot);
        let moved = [&noise(5)[..700], &noise(1)[3000..9000], &noise(6)[..700]].concat();
        encoder.push(Time::ZERO, vocab::FlowSegment::payload(moved.into()));
        encoder.finish();
        let mut sent = 0;
        while let Some(bytes) = encoder.poll_encoded(Time::ZERO, &mut node.dictionary, 1 << 20) {
            sent += bytes.len();
        }
        sent
    });
    assert_eq!(sizes[0], sizes[1]);
    assert!(sizes[0] < 2_000, "{sizes:?}");
}
