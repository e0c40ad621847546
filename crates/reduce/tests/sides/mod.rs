//! Two sides with dictionaries of their own, and flows between them.
#![allow(dead_code, reason = "each test file uses its part of this")]

use bytes::Bytes;
use reduce::testing::MemoryDisk;
use reduce::{
    DecoderConfig, DecoderOutput, Dictionary, DictionaryConfig, DictionaryKey, EncoderConfig,
    FlowDecoder, FlowEncoder, PeerSlot,
};
use vocab::{ByteCount, FlowSegment, NodeId, SeededRandom, Time};

/// The key of every dictionary here: what a restart finds again.
pub(crate) fn key() -> DictionaryKey {
    DictionaryKey::new([0x5a; 32])
}

/// A node's half: its dictionary, its disk, and its name for the other side.
pub(crate) struct TestSide {
    pub(crate) dictionary: Dictionary,
    pub(crate) disk: MemoryDisk,
    pub(crate) config: DictionaryConfig,
}

impl TestSide {
    /// A side without a disk tier.
    pub(crate) fn new(seed: u64) -> Self {
        let config = DictionaryConfig {
            memory: ByteCount::mebibytes(64),
            ..DictionaryConfig::default()
        };
        Self::with(seed, config, MemoryDisk::new())
    }

    /// Makes a side that starts with this disk.
    pub(crate) fn with(seed: u64, config: DictionaryConfig, mut disk: MemoryDisk) -> Self {
        let mut dictionary = Dictionary::with_key(config, key(), SeededRandom::from_seed(seed));
        dictionary.open();
        disk.serve(&mut dictionary);
        assert!(dictionary.is_ready());
        Self {
            dictionary,
            disk,
            config,
        }
    }

    /// The only peer there is.
    pub(crate) fn peer(&mut self) -> PeerSlot {
        self.dictionary.peer(NodeId([7; 32]))
    }
}

/// One direction of a flow from one side to another.
pub(crate) struct TestFlow {
    pub(crate) config: EncoderConfig,
    pub(crate) encoder: FlowEncoder,
    pub(crate) decoder: FlowDecoder,
    pub(crate) received: Vec<FlowSegment>,
    pub(crate) repairs: usize,
    pub(crate) repair_bytes: usize,
    started: bool,
}

impl TestFlow {
    pub(crate) fn new() -> Self {
        Self::with(EncoderConfig::default())
    }

    pub(crate) fn with(config: EncoderConfig) -> Self {
        // The peer slot is the first of each dictionary, which has one peer only.
        let mut scratch = TestSide::new(0);
        let slot = scratch.peer();
        Self {
            config,
            encoder: FlowEncoder::new(config, slot),
            decoder: FlowDecoder::new(DecoderConfig::default(), slot),
            received: Vec::new(),
            repairs: 0,
            repair_bytes: 0,
            started: false,
        }
    }

    /// Sends a file in pieces, to the end; checks that it arrived; returns the bytes on the wire.
    pub(crate) fn transfer(
        mut self,
        from: &mut TestSide,
        to: &mut TestSide,
        file: &Bytes,
    ) -> usize {
        let mut wire = 0;
        for piece in 0..file.len().div_ceil(60_000) {
            let piece = file.slice(piece * 60_000..file.len().min((piece + 1) * 60_000));
            self.encoder.push(Time::ZERO, FlowSegment::payload(piece));
            wire += self.exchange(Time::ZERO, from, to, 1 << 16);
        }
        self.encoder.finish();
        wire += self.exchange(Time::ZERO, from, to, 1 << 16);
        assert!(self.payload() == *file, "the file arrived changed");
        assert!(self.decoder.is_at_boundary());
        wire + self.repair_bytes
    }

    /// Carries everything that may go, answers repairs, acknowledges.
    pub(crate) fn exchange(
        &mut self,
        now: Time,
        from: &mut TestSide,
        to: &mut TestSide,
        max: usize,
    ) -> usize {
        if !self.started {
            from.peer();
            to.peer();
            self.started = true;
        }
        let mut wire = 0;
        loop {
            let bytes = self.encoder.poll_encoded(now, &mut from.dictionary, max);
            let Some(bytes) = bytes else {
                if !self.encoder.waits_for_disk() {
                    break;
                }
                let before = from.disk.executed;
                from.disk.serve(&mut from.dictionary);
                assert!(from.disk.executed > before, "it waits for nothing");
                continue;
            };
            assert!(bytes.len() <= max);
            wire += bytes.len();
            self.decoder.push(bytes);
            self.receive(to);
            self.encoder
                .acknowledged(self.decoder.consumed(), &mut from.dictionary);
            from.disk.serve(&mut from.dictionary);
        }
        wire
    }

    /// Takes everything out of the decoder.
    pub(crate) fn receive(&mut self, to: &mut TestSide) {
        loop {
            match self
                .decoder
                .poll(&mut to.dictionary)
                .expect("a sound stream")
            {
                DecoderOutput::Segment(segment) => self.received.push(segment),
                DecoderOutput::NeedMore => break,
                DecoderOutput::WaitForDisk => {
                    let before = to.disk.executed;
                    to.disk.serve(&mut to.dictionary);
                    assert!(to.disk.executed > before, "it waits for nothing");
                }
                DecoderOutput::NeedRepair(request) => {
                    let answer = self.encoder.repair(&request).expect("a repair");
                    self.repairs += 1;
                    self.repair_bytes += request.len() + answer.len();
                    self.decoder.handle_repair(&answer).expect("an answer");
                }
                DecoderOutput::WaitForRepair => panic!("it was repaired at once"),
            }
        }
        to.disk.serve(&mut to.dictionary);
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        let segments = self.received.iter();
        segments
            .flat_map(|segment| segment.bytes.iter().copied())
            .collect()
    }

    pub(crate) fn received_bytes(&self) -> usize {
        self.received
            .iter()
            .map(|segment| segment.bytes.len())
            .sum()
    }
}

/// Random bytes.
pub(crate) fn noise(seed: u64, length: usize) -> Bytes {
    let mut data = vec![0; length];
    SeededRandom::from_seed(seed).fill(&mut data);
    data.into()
}

/// Something like text: words of a small vocabulary, unevenly likely.
pub(crate) fn text(seed: u64, length: usize) -> Bytes {
    let mut random = SeededRandom::from_seed(seed);
    let words: Vec<Vec<u8>> = (0..2000)
        .map(|_| {
            (0..2 + random.below(8))
                .map(|_| b'a' + random.below(26) as u8)
                .collect()
        })
        .collect();
    let mut data = Vec::with_capacity(length + 16);
    while data.len() < length {
        let rank = random.below(2000) * random.below(2000) / 2000;
        data.extend_from_slice(&words[rank as usize]);
        data.push(b' ');
    }
    data.truncate(length);
    data.into()
}
