//! Garbage from the peer ends a flow with an error; it never panics and never delivers.

mod sides;

use bytes::Bytes;
use proptest::prelude::*;
use reduce::{
    AnswerScope, DecoderConfig, DecoderOutput, FlowDecoder, MAX_RECORD_REPAIRS, ReductionError,
    RepairAnswer, RepairRequest, scan_segment,
};
use sides::{TestFlow, TestSide, key, noise};
use vocab::{FlowSegment, Time};

fn drain(decoder: &mut FlowDecoder, side: &mut TestSide) -> Result<usize, ReductionError> {
    let mut delivered = 0;
    loop {
        match decoder.poll(&mut side.dictionary)? {
            DecoderOutput::Segment(segment) => delivered += segment.bytes.len(),
            DecoderOutput::NeedMore
            | DecoderOutput::WaitForDisk
            | DecoderOutput::NeedRepair(_)
            | DecoderOutput::WaitForRepair => return Ok(delivered),
        }
    }
}

#[test]
fn a_wrong_repair_is_refused() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(3, 100_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    far.dictionary.clear(None);
    let mut flow = TestFlow::new();
    flow.encoder.push(Time::ZERO, FlowSegment::payload(file));
    flow.encoder.finish();
    let bytes = flow
        .encoder
        .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 17);
    flow.decoder.push(bytes.unwrap());
    let poll = |flow: &mut TestFlow, far: &mut TestSide| flow.decoder.poll(&mut far.dictionary);
    let Ok(DecoderOutput::NeedRepair(request)) = poll(&mut flow, &mut far) else {
        panic!("it asks for a repair");
    };
    assert_eq!(poll(&mut flow, &mut far), Ok(DecoderOutput::WaitForRepair));
    let forged = |answer: &[u8]| {
        let mut answer = RepairAnswer::parse(answer).unwrap();
        let mut piece = answer.pieces[0].to_vec();
        piece[0] ^= 1;
        answer.pieces[0] = piece.into();
        answer.emit(3)
    };
    // The pieces do not verify: in the end it asks for the whole record, and refuses a wrong one
    // for good.
    let mut answer = flow.encoder.repair(&request).unwrap();
    for partial in 0.. {
        flow.decoder.handle_repair(&forged(&answer)).unwrap();
        if RepairAnswer::parse(&answer).unwrap().scope == AnswerScope::All {
            assert!((1..=2).contains(&partial), "{partial}");
            break;
        }
        let Ok(DecoderOutput::NeedRepair(request)) = poll(&mut flow, &mut far) else {
            panic!("it asks for more");
        };
        answer = flow.encoder.repair(&request).unwrap();
    }
    assert!(matches!(
        poll(&mut flow, &mut far),
        Err(ReductionError::PeerMisbehaved(_))
    ));
    assert!(poll(&mut flow, &mut far).is_err());
}

#[test]
fn a_whole_repair_is_taken_and_remembered() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(3, 100_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut edited = file.to_vec();
    for byte in edited[50_000..52_000].iter_mut().step_by(12) {
        *byte ^= 1;
    }
    far.dictionary.clear(None);
    // Nothing of what it refers to is there: neither links nor chunks.
    let edited = Bytes::from(edited);
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, FlowSegment::payload(edited.clone()));
    flow.encoder.finish();
    flow.exchange(Time::ZERO, &mut near, &mut far, 1 << 17);
    assert!(flow.payload() == edited);
    assert!((1..=2).contains(&flow.repairs), "{}", flow.repairs);
    let warm = TestFlow::new().transfer(&mut near, &mut far, &edited);
    assert!(warm < 1_000, "{warm}");
}

#[test]
fn invalid_repair_request_is_an_error() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(1, 100_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut flow = TestFlow::new();
    let mut record = |bytes: Bytes| {
        let start = flow.encoder.statistics().encoded_bytes;
        flow.encoder.push(Time::ZERO, FlowSegment::payload(bytes));
        flow.encoder.finish();
        let record = flow
            .encoder
            .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16);
        assert!(record.is_some());
        start
    };
    let new = record(noise(2, 1000));
    let known = record(file);
    let ask = |record_start| RepairRequest {
        record_start,
        scope: reduce::RepairScope::All,
    };
    assert!(flow.encoder.repair(&ask(known + 1).emit()).is_err());
    assert!(flow.encoder.repair(&ask(known).emit()).is_ok());
    // Whoever has it can read it.
    assert!(flow.encoder.repair(&ask(new).emit()).is_err());
    let sent = flow.encoder.statistics().encoded_bytes;
    flow.encoder.acknowledged(sent, &mut near.dictionary);
    assert!(flow.encoder.repair(&ask(known).emit()).is_err());
    assert!(flow.decoder.handle_repair(&[2, 0, 0, 0, 0]).is_err());
}

/// A request of a dozen bytes costs the encoder half a mebibyte to compress and to send.
#[test]
fn one_record_is_not_repaired_again_and_again() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(1, 100_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut flow = TestFlow::new();
    flow.encoder.push(Time::ZERO, FlowSegment::payload(file));
    flow.encoder.finish();
    let encoded = flow
        .encoder
        .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16);
    assert!(encoded.is_some());
    let request = RepairRequest {
        record_start: 0,
        scope: reduce::RepairScope::All,
    };
    let asked = (0..100).map(|_| flow.encoder.repair(&request.emit()));
    let answered = asked.take_while(Result::is_ok).count();
    assert_eq!(answered, MAX_RECORD_REPAIRS);
    assert!(matches!(
        flow.encoder.repair(&request.emit()),
        Err(ReductionError::PeerMisbehaved(_))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut side = TestSide::new(1);
        let slot = side.peer();
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), slot);
        decoder.push(Bytes::from(bytes.clone()));
        prop_assert!(drain(&mut decoder, &mut side).is_err() || decoder.consumed() == 0);
        let _ = RepairRequest::parse(&bytes);
        let _ = RepairAnswer::parse(&bytes);
        let _ = decoder.handle_repair(&bytes);
        let _ = scan_segment(&key(), 1, &bytes);
    }

    #[test]
    fn a_flipped_bit_is_never_delivered(at: prop::sample::Index, bit in 0..8_u8) {
        let mut near = TestSide::new(1);
        let file = sides::text(2, 3_000);
        let mut flow = TestFlow::new();
        flow.encoder.push(Time::ZERO, FlowSegment::payload(file.clone()));
        flow.encoder.finish();
        let bytes = flow.encoder.poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16).unwrap();
        let mut damaged = bytes.to_vec();
        damaged[at.index(bytes.len())] ^= 1 << bit;
        let mut far = TestSide::new(3);
        let slot = far.peer();
        let mut decoder = FlowDecoder::new(DecoderConfig::default(), slot);
        decoder.push(damaged.into());
        while let Ok(DecoderOutput::Segment(segment)) = decoder.poll(&mut far.dictionary) {
            // Where a chunk ends is not under the check, the bytes and their order are.
            prop_assert!(file.starts_with(&segment.bytes));
        }
    }
}
