//! Hostile peer that splits its data into the smallest pieces, and leaves it incomplete.

use bytes::Bytes;
use reduce::testing::{ForgedOperation, ForgedSources, forged_record};
use tunnel::wire::{FlowAck, ReceiptState, SessionFrame};
use vocab::SeededRandom;

use crate::site::{HOSTILE, TestSite};

fn noise(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes.into()
}

fn record_of(chunk: &Bytes) -> Bytes {
    let operation = ForgedOperation::NewChunk(chunk.clone());
    forged_record(
        ForgedSources::Listed(Vec::new()),
        &[operation],
        &[&chunk[..]],
    )
}

#[test]
fn a_record_in_frames_of_one_byte_arrives() {
    let mut site = TestSite::new();
    let flow = site.open(HOSTILE);
    let chunk = noise(1, 3_000);
    let record = record_of(&chunk);
    for at in 0..record.len() {
        let byte = record.slice(at..=at);
        assert_eq!(site.write(HOSTILE, flow, &byte), 1);
    }
    assert_eq!(site.written(), chunk);
    site.check_limits();
}

/// Each flow sends all of a long record but its last byte, a few bytes at a time.
#[test]
fn unfinished_records_stay_within_the_limits() {
    let mut site = TestSite::new();
    let record = record_of(&noise(2, 60_000));
    let unfinished = record.slice(..record.len() - 1);
    for _ in 0..60 {
        let flow = site.open(HOSTILE);
        for piece in unfinished.chunks(999) {
            site.write(HOSTILE, flow, &unfinished.slice_ref(piece));
        }
        site.check_limits();
    }
    assert!(site.written().is_empty());
    site.honest_peer_is_served();
}

/// The peer acknowledges data that was never sent to it.
#[test]
fn acknowledgement_of_unsent_data_ends_the_link() {
    for (received, consumed) in [(1 << 40, 0), (1 << 40, 1 << 40)] {
        let mut site = TestSite::new();
        let (connection, flow) = site.accept(HOSTILE);
        site.host_sends(connection, &noise(3, 10_000));
        let ack = FlowAck {
            flow,
            received,
            consumed,
            limit: 1 << 41,
            finish: ReceiptState::NotYet,
        };
        site.send_frame(HOSTILE, &SessionFrame::Ack(ack));
        assert_eq!(
            site.peers[HOSTILE].closed.len(),
            1,
            "{received}, {consumed}"
        );
        site.check_limits();
        site.honest_peer_is_served();
    }
}
