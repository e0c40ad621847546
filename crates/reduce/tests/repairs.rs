//! Repair tests: the round trips that a flow waits after a loss, and their cost.

mod sides;

use bytes::Bytes;
use reduce::testing::MemoryDisk;
use reduce::{DecoderOutput, DictionaryConfig};
use sides::{TestFlow, TestSide, noise};
use vocab::{ByteCount, FlowSegment, Time};

/// Cost of a warm transfer of which everything is in flight before anything is answered.
struct RepairCost {
    round_trips: usize,
    requests: usize,
    answered_bytes: usize,
    /// The most that the decoder held.
    buffered: usize,
}

/// Sends a file that both sides once had, all of it before the first word comes back.
fn send_at_once(near: &mut TestSide, far: &mut TestSide, file: &Bytes) -> RepairCost {
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    loop {
        let encoded = flow
            .encoder
            .poll_encoded(Time::ZERO, &mut near.dictionary, 1 << 16);
        match encoded {
            Some(encoded) => flow.decoder.push(encoded),
            None if flow.encoder.waits_for_disk() => near.disk.serve(&mut near.dictionary),
            None => break,
        }
    }
    assert_eq!(flow.encoder.pending(), 0, "all of it is under way");
    let mut cost = RepairCost {
        round_trips: 0,
        requests: 0,
        answered_bytes: 0,
        buffered: 0,
    };
    loop {
        let requests = requests(&mut flow, far, &mut cost);
        if requests.is_empty() {
            break;
        }
        cost.round_trips += 1;
        cost.requests += requests.len();
        for request in requests {
            let answer = flow.encoder.repair(&request).expect("a repair");
            cost.answered_bytes += answer.len();
            flow.decoder.handle_repair(&answer).expect("an answer");
        }
    }
    assert!(flow.payload() == *file);
    assert!(flow.decoder.is_at_boundary());
    cost
}

/// Returns all requests of the decoder before it gets an answer.
fn requests(flow: &mut TestFlow, far: &mut TestSide, cost: &mut RepairCost) -> Vec<Bytes> {
    let mut requests = Vec::new();
    loop {
        let decoded = flow.decoder.poll(&mut far.dictionary);
        cost.buffered = cost.buffered.max(flow.decoder.buffered());
        match decoded.expect("a sound stream") {
            DecoderOutput::Segment(segment) => flow.received.push(segment),
            DecoderOutput::NeedRepair(request) => requests.push(request),
            DecoderOutput::WaitForDisk => {
                let before = far.disk.executed;
                far.disk.serve(&mut far.dictionary);
                assert!(far.disk.executed > before, "it waits for nothing");
            }
            DecoderOutput::NeedMore | DecoderOutput::WaitForRepair => return requests,
        }
    }
}

#[test]
fn total_loss_costs_two_round_trips() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(3, 6 << 20);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    far.dictionary.clear(None);
    let cost = send_at_once(&mut near, &mut far, &file);
    assert!(cost.requests > 10, "{}", cost.requests);
    // The keys of runs, and then what they name.
    assert!(cost.round_trips <= 2, "{}", cost.round_trips);
    assert!(cost.answered_bytes < (6 << 20) / 100 * 105);
    // Each record at what it is going to be.
    assert!(
        (6 << 20..9 << 20).contains(&cost.buffered),
        "{}",
        cost.buffered
    );
}

#[test]
fn scattered_losses_are_repaired_in_one_round_trip() {
    let config = DictionaryConfig {
        memory: ByteCount::mebibytes(1),
        disk: ByteCount::mebibytes(64),
        segment: ByteCount::mebibytes(4),
    };
    let mut near = TestSide::new(1);
    let mut far = TestSide::with(2, config, MemoryDisk::new());
    let file = noise(3, 4 << 20);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    // A byte in each of a dozen chunks of some eight KiB, all over what is not in memory.
    for number in far.disk.numbers() {
        let segment = far.disk.segment(number);
        for at in (150_000..segment.len().min(3_200_000)).step_by(250_000) {
            segment[at] ^= 1;
        }
    }
    let cost = send_at_once(&mut near, &mut far, &file);
    assert!(cost.requests >= 4, "{}", cost.requests);
    assert_eq!(cost.round_trips, 1);
    assert!(cost.answered_bytes < 400_000, "{}", cost.answered_bytes);
}
