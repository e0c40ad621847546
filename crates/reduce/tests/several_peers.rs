//! A node with two peers that exchange the same content with it, both ways and edited differently:
//! whatever one of them may refer to, nothing has to be asked for again in ordinary operation.

mod sides;

use bytes::Bytes;
use reduce::{
    DecoderConfig, DecoderOutput, DictionaryConfig, EncoderConfig, FlowDecoder, FlowEncoder,
};
use vocab::{ByteCount, FlowSegment, NodeId, Time};

use sides::{TestSide, noise};

/// The node in the middle, and its two peers.
const HUB: usize = 0;
const NODES: [NodeId; 3] = [NodeId([1; 32]), NodeId([2; 32]), NodeId([3; 32])];

struct SiteNetwork {
    nodes: Vec<TestSide>,
    now: Time,
    starts: u64,
    /// True if senders are told what was received.
    acknowledges: bool,
}

/// Cost of one transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TransferCost {
    wire: usize,
    repairs: usize,
}

impl SiteNetwork {
    fn new() -> Self {
        let config = DictionaryConfig {
            memory: ByteCount::mebibytes(64),
            disk: ByteCount::mebibytes(256),
            ..DictionaryConfig::default()
        };
        let nodes = (1..=3).map(|seed| TestSide::with(seed, config, Default::default()));
        let mut sites = Self {
            nodes: nodes.collect(),
            now: Time::ZERO,
            starts: 3,
            acknowledges: true,
        };
        sites.tell();
        sites
    }

    /// Announces each node's dictionary generation to its peers.
    fn tell(&mut self) {
        for (one, other) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
            let generation = self.nodes[one].dictionary.generation();
            let slot = self.nodes[other].dictionary.peer(NODES[one]);
            self.nodes[other]
                .dictionary
                .peer_generation(slot, generation);
        }
    }

    /// The node ends in an orderly way and starts again.
    fn restart(&mut self, node: usize) {
        let side = &mut self.nodes[node];
        for _ in 0..3 {
            side.dictionary.request_flush();
            side.disk.serve(&mut side.dictionary);
        }
        self.starts += 1;
        let disk = std::mem::take(&mut side.disk);
        self.nodes[node] = TestSide::with(self.starts, side.config, disk);
        self.tell();
    }

    /// Transfers one flow, in which the receiver acknowledges only what it was told to.
    fn transfer(&mut self, from: usize, to: usize, file: &Bytes) -> TransferCost {
        let near = self.nodes[from].dictionary.peer(NODES[to]);
        let far = self.nodes[to].dictionary.peer(NODES[from]);
        let mut encoder = FlowEncoder::new(EncoderConfig::default(), near);
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), far);
        let mut cost = TransferCost::default();
        let mut received = Vec::new();
        for piece in file.chunks(60_000) {
            encoder.push(self.now, FlowSegment::payload(file.slice_ref(piece)));
        }
        encoder.finish();
        loop {
            let side = &mut self.nodes[from];
            let Some(bytes) = encoder.poll_encoded(self.now, &mut side.dictionary, 1 << 16) else {
                side.disk.serve(&mut side.dictionary);
                if encoder.pending() == 0 {
                    break;
                }
                continue;
            };
            cost.wire += bytes.len();
            decoder.push(bytes);
            let side = &mut self.nodes[to];
            loop {
                match decoder.poll(&mut side.dictionary).expect("a sound stream") {
                    DecoderOutput::Segment(segment) => received.extend_from_slice(&segment.bytes),
                    DecoderOutput::NeedMore => break,
                    DecoderOutput::WaitForDisk => side.disk.serve(&mut side.dictionary),
                    DecoderOutput::NeedRepair(request) => {
                        cost.repairs += 1;
                        let answer = encoder.repair(&request).expect("a repair");
                        cost.wire += answer.len();
                        decoder.handle_repair(&answer).expect("an answer");
                    }
                    DecoderOutput::WaitForRepair => panic!("it was repaired at once"),
                }
            }
            side.disk.serve(&mut side.dictionary);
            if self.acknowledges {
                let side = &mut self.nodes[from];
                encoder.acknowledged(decoder.consumed(), &mut side.dictionary);
            }
        }
        assert!(received == file[..], "the file arrived changed");
        for side in &mut self.nodes {
            side.disk.serve(&mut side.dictionary);
        }
        cost
    }
}

/// Makes the file with eight bytes changed at each interval, as one peer's users would.
fn edited(file: &Bytes, every: usize, seed: u8) -> Bytes {
    let mut edited = file.to_vec();
    for place in edited.chunks_mut(every) {
        let at = place.len() / 2;
        let end = place.len().min(at + 8);
        place[at..end].fill(seed);
    }
    edited.into()
}

/// Sends every version to the node from either peer and back to the other, in any order; restarts a
/// node now and then, or not. The repairs that it took.
fn exchange_versions(restarts: bool) -> usize {
    let mut sites = SiteNetwork::new();
    let original = noise(1, 700_000);
    let versions = [
        original.clone(),
        edited(&original, 32 * 1024, 1),
        edited(&original, 128 * 1024, 2),
        original.slice(250_000..650_000),
    ];
    let mut repairs = 0;
    for (round, version) in versions.iter().cycle().take(12).enumerate() {
        let (one, other) = (1 + round % 2, 2 - round % 2);
        for (from, to) in [(one, HUB), (HUB, other), (other, HUB), (HUB, one)] {
            let cost = sites.transfer(from, to, version);
            repairs += cost.repairs;
            if round >= 2 * versions.len() && !restarts {
                let most = version.len() / 200;
                assert!(cost.wire < most, "round {round}, {from} to {to}: {cost:?}");
            }
        }
        if restarts && round % 3 == 2 {
            sites.restart(round % NODES.len());
        }
    }
    repairs
}

#[test]
fn peers_sharing_a_dictionary_need_no_repairs() {
    assert_eq!(exchange_versions(false), 0);
}

/// A restart loses which of several links from a chunk was the last; that costs keys.
#[test]
fn after_restarts_little_is_asked_for_again() {
    let repairs = exchange_versions(true);
    assert!(repairs <= 6, "{repairs} in 48 transfers");
}

/// A node that was killed has lost what its peer was sent and had not acknowledged: that costs
/// repairs, once.
#[test]
fn knowledge_lost_by_kill_is_repaired_once() {
    let mut sites = SiteNetwork::new();
    let file = noise(2, 1_000_000);
    sites.acknowledges = false;
    sites.transfer(HUB, 1, &file);
    sites.acknowledges = true;
    let config = sites.nodes[HUB].config;
    let disk = std::mem::take(&mut sites.nodes[HUB].disk);
    sites.nodes[HUB] = TestSide::with(9, config, disk);
    sites.tell();
    let first = sites.transfer(1, HUB, &file);
    assert!(first.repairs > 0, "{first:?}");
    assert!(first.wire < file.len() + file.len() / 20, "{first:?}");
    let again = sites.transfer(1, HUB, &file);
    assert_eq!(again.repairs, 0, "{again:?}");
    assert!(again.wire < 2_000, "{again:?}");
}
