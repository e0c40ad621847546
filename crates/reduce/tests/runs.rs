//! References that stand for runs of chunks, and two sides whose links differ.

mod sides;

use std::time::Duration;

use bytes::Bytes;
use reduce::{BULK, TAIL_HOLD};
use sides::{TestFlow, TestSide, noise};
use vocab::{FlowSegment, NodeId, Time};

/// Sends a file without the check that repairs were not needed; returns the flow and its bytes.
fn send(near: &mut TestSide, far: &mut TestSide, file: &Bytes) -> (TestFlow, usize) {
    let mut flow = TestFlow::new();
    flow.encoder
        .push(Time::ZERO, FlowSegment::payload(file.clone()));
    flow.encoder.finish();
    let wire = flow.exchange(Time::ZERO, near, far, 1 << 16);
    assert!(flow.payload() == *file, "the file arrived changed");
    (flow, wire)
}

#[test]
fn warm_file_costs_dozens_of_bytes_per_record() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(3, 4 << 20);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let warm = TestFlow::new().transfer(&mut near, &mut far, &file);
    assert!(warm <= 600, "{warm}");
    let back = TestFlow::new().transfer(&mut far, &mut near, &file);
    assert!(back <= 600, "{back}");
}

#[test]
fn links_changed_by_third_node_cost_only_keys() {
    let (mut near, mut far, mut third) = (TestSide::new(1), TestSide::new(2), TestSide::new(3));
    let file = noise(4, 1_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    // From elsewhere the far side learns that other chunks follow these.
    let halves = [file.slice(500_000..), file.slice(..500_000)];
    for half in [&halves[0], &halves[1], &halves[0], &halves[1]] {
        let mut swapped = half.slice(..100_000).to_vec();
        swapped.extend_from_slice(&half[200_000..300_000]);
        TestFlow::new().transfer(&mut third, &mut far, &swapped.into());
    }
    let (flow, wire) = send(&mut near, &mut far, &file);
    assert!(flow.repairs > 0);
    // The keys, and a chunk at each place where the links just end: it might have been lost.
    assert!(flow.repair_bytes < 20_000, "{}", flow.repair_bytes);
    assert!(wire < 1_000, "{wire}");
    // What was told is remembered.
    let (flow, wire) = send(&mut near, &mut far, &file);
    assert_eq!(flow.repairs, 0);
    assert!(wire < 500, "{wire}");
}

#[test]
fn losses_in_a_run_cost_two_round_trips() {
    let (mut near, mut far, mut other) = (TestSide::new(1), TestSide::new(2), TestSide::new(3));
    let file = noise(5, 400_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    // A far side whose links end where its chunks do.
    TestFlow::new().transfer(&mut near, &mut other, &file.slice(..150_000));
    let (flow, _) = send(&mut near, &mut other, &file);
    assert!(flow.repairs > 0, "it lacked chunks");
    assert!(flow.repairs <= 2, "{}", flow.repairs);
    let (flow, _) = send(&mut near, &mut other, &file);
    assert_eq!(flow.repairs, 0);
}

#[test]
fn bulk_references_wait_three_milliseconds_at_most() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(6, 4 << 20);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    let mut flow = TestFlow::new();
    let mut now = Time::from_nanos(9_000_000_000);
    let mut sent = 0;
    // Below the limit everything leaves at once; above it, three milliseconds later at most.
    while sent < 2 * BULK {
        let piece = file.slice(sent..sent + 32_768);
        sent += piece.len();
        flow.encoder.push(now, FlowSegment::payload(piece));
        flow.exchange(now, &mut near, &mut far, 1 << 16);
        if sent < BULK {
            assert_eq!(flow.received_bytes(), sent);
            assert_eq!(flow.encoder.poll_timeout(), None);
        } else {
            let due = flow.encoder.poll_timeout().expect("a timer runs");
            assert!(due > now && due.since(now) <= TAIL_HOLD);
            assert!(flow.encoder.pending() > 0);
        }
        now += Duration::from_micros(100);
    }
    assert!(flow.received_bytes() < sent);
    while let Some(due) = flow.encoder.poll_timeout() {
        assert!(due.since(now) <= TAIL_HOLD);
        flow.exchange(due, &mut near, &mut far, 1 << 16);
    }
    assert_eq!(flow.received_bytes(), sent);
    assert_eq!(flow.encoder.pending(), 0);
    // Without room the timer stops all the same, and the end of the flow waits for nothing.
    flow.encoder
        .push(now, FlowSegment::payload(file.slice(..2 * BULK)));
    flow.exchange(now, &mut near, &mut far, 1 << 16);
    let due = flow.encoder.poll_timeout().expect("a timer runs");
    assert!(
        flow.encoder
            .poll_encoded(due, &mut near.dictionary, 0)
            .is_none()
    );
    assert_eq!(flow.encoder.poll_timeout(), None);
    assert!(flow.encoder.pending() > 0);
    flow.encoder.finish();
    flow.exchange(due, &mut near, &mut far, 1 << 16);
    assert_eq!(flow.received_bytes(), sent + 2 * BULK);
    assert_eq!(flow.encoder.pending(), 0);
}

#[test]
fn every_chunk_missing_behind_a_run_is_repaired() {
    let (mut near, mut far) = (TestSide::new(1), TestSide::new(2));
    let file = noise(7, 3_000_000);
    TestFlow::new().transfer(&mut near, &mut far, &file);
    far.dictionary.clear(None);
    let (flow, _) = send(&mut near, &mut far, &file);
    assert!(flow.repairs > 0);
    let slot = near.dictionary.peer(NodeId([7; 32]));
    near.dictionary.forget_peer(slot);
    let (again, wire) = send(&mut near, &mut far, &file);
    assert_eq!(again.repairs, 0);
    assert!(wire > 3_000_000);
}
