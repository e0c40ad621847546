//! Memory that a segment keeps allocated; a host may hold a segment for any length of time.

use bytes::Bytes;
use vocab::{FlowSegment, NodeId, SeededRandom, SegmentKind, Time};

use super::{DecoderOutput, FlowDecoder};
use crate::config::{DecoderConfig, DictionaryConfig, EncoderConfig, MAX_RECORD_RAW, TAIL_HOLD};
use crate::dictionary::Dictionary;
use crate::encoder::FlowEncoder;

/// Direction of one flow, from the segments that go in to those that come out.
struct FlowPipeline {
    now: Time,
    dictionaries: [Dictionary; 2],
    encoder: FlowEncoder,
    decoder: FlowDecoder,
}

impl FlowPipeline {
    fn new() -> Self {
        let dictionary =
            |seed| Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(seed));
        let mut dictionaries = [dictionary(1), dictionary(2)];
        let [near, far] = &mut dictionaries;
        Self {
            now: Time::from_nanos(1),
            encoder: FlowEncoder::new(EncoderConfig::default(), near.peer(NodeId([2; 32]))),
            decoder: FlowDecoder::new(DecoderConfig::default(), far.peer(NodeId([1; 32]))),
            dictionaries,
        }
    }

    fn encode(&mut self, segment: FlowSegment) -> Vec<u8> {
        self.encoder.push(self.now, segment);
        let mut stream = Vec::new();
        // The tail of a transfer is held for some milliseconds.
        for _ in 0..2 {
            let dictionary = &mut self.dictionaries[0];
            let room = 2 * MAX_RECORD_RAW;
            while let Some(bytes) = self.encoder.poll_encoded(self.now, dictionary, room) {
                stream.extend_from_slice(&bytes);
            }
            self.now += 2 * TAIL_HOLD;
        }
        stream
    }

    /// All segments that come of this, which is handed in as one piece.
    fn decode(&mut self, stream: Vec<u8>) -> Vec<FlowSegment> {
        self.decoder.push(stream.into());
        let mut segments = Vec::new();
        loop {
            match self.decoder.poll(&mut self.dictionaries[1]).unwrap() {
                DecoderOutput::Segment(segment) => segments.push(segment),
                DecoderOutput::NeedMore => return segments,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn noise(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes.into()
}

#[test]
fn segments_of_long_records_have_separate_buffers() {
    let mut direction = FlowPipeline::new();
    let content = noise(1, 1_000_000);
    let stream = direction.encode(FlowSegment::payload(content.clone()));
    direction.decode(stream);
    let stream = direction.encode(FlowSegment::payload(content.clone()));
    assert!(stream.len() < 10_000, "it is references: {}", stream.len());
    let segments = direction.decode(stream);
    let joined: Vec<&[u8]> = segments.iter().map(|segment| &segment.bytes[..]).collect();
    assert!(joined.concat() == content);
    assert!(segments.iter().all(|segment| segment.bytes.is_unique()));
}

#[test]
fn segments_of_joined_records_have_separate_buffers() {
    let mut direction = FlowPipeline::new();
    let records = (0..12).map(|number| FlowSegment::payload(noise(number, 5_000)));
    let streams: Vec<Vec<u8>> = records.map(|record| direction.encode(record)).collect();
    let segments = direction.decode(streams.concat());
    let length: usize = segments.iter().map(|segment| segment.bytes.len()).sum();
    assert_eq!(length, 12 * 5_000);
    assert!(segments.len() >= 12);
    assert!(segments.iter().all(|segment| segment.bytes.is_unique()));
}

#[test]
fn small_segments_of_several_kinds_share_no_buffer() {
    let mut direction = FlowPipeline::new();
    for number in 0..3 {
        for kind in [SegmentKind::Payload, SegmentKind::Control] {
            let bytes = noise(number, 9_000);
            direction
                .encoder
                .push(direction.now, FlowSegment { kind, bytes });
        }
    }
    let stream = direction.encode(FlowSegment::payload(noise(9, 9_000)));
    let segments = direction.decode(stream);
    assert!(segments.len() > 3, "{}", segments.len());
    assert!(segments.iter().all(|segment| segment.bytes.is_unique()));
}
