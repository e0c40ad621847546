//! Hostile peer that requests endless repairs, and data that it may not have.

use bytes::Bytes;
use reduce::{MAX_RECORD_REPAIRS, RepairRequest, RepairScope};
use vocab::SeededRandom;

use crate::site::{HOSTILE, REPAIR_REQUEST, TestSite};

/// Requests in one flood.
const FLOOD: usize = 5_000;

fn noise(length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    SeededRandom::from_seed(3).fill(&mut bytes);
    bytes.into()
}

fn all_of(record_start: u64) -> Bytes {
    let scope = RepairScope::All;
    RepairRequest {
        record_start,
        scope,
    }
    .emit()
}

/// A client sends the same file twice, so that the second time there are records to be repaired.
fn flow_with_references(site: &mut TestSite, file: &Bytes) -> vocab::FlowId {
    for _ in 0..2 {
        let (connection, flow) = site.accept(HOSTILE);
        assert_eq!(site.host_sends(connection, file), file.len());
        if site.connections.contains_key(&connection) {
            let sent = site.peers[HOSTILE].session.flow_statistics(flow);
            let received = sent.map_or(0, |statistics| statistics.received_bytes);
            site.peers[HOSTILE].session.consumed(flow, received);
            site.exchange();
        }
    }
    let (connection, flow) = site.accept(HOSTILE);
    assert_eq!(site.host_sends(connection, file), file.len());
    flow
}

#[test]
fn repair_request_flood_costs_only_its_flow() {
    let mut site = TestSite::new();
    let file = noise(400_000);
    let flow = flow_with_references(&mut site, &file);
    let before = site.peers[HOSTILE].link_bytes;
    for _ in 0..FLOOD {
        let peer = &mut site.peers[HOSTILE];
        if peer.resets.contains_key(&flow) {
            break;
        }
        peer.session.send_message(flow, REPAIR_REQUEST, all_of(0));
        site.exchange();
        site.check_limits();
    }
    assert!(site.peers[HOSTILE].resets.contains_key(&flow));
    let sent = site.peers[HOSTILE].link_bytes - before;
    let most = (MAX_RECORD_REPAIRS + 1) * file.len();
    assert!(sent <= most, "{sent} bytes were sent for it");
    assert_eq!(site.peers[HOSTILE].closed, Vec::<String>::new());
    site.honest_peer_is_served();
}

/// Requests for records that were never sent, that are not on their way any more, that are malformed,
/// and for a flow that does not exist.
#[test]
fn repair_of_unsent_record_is_refused() {
    let noise_request = noise(60);
    let requests = [
        all_of(u64::MAX >> 2),
        all_of(1),
        Bytes::from_static(&[]),
        Bytes::from_static(&[9, 0, 0]),
        noise_request,
        noise(10_000),
    ];
    for request in requests {
        let mut site = TestSite::new();
        let file = noise(100_000);
        let flow = flow_with_references(&mut site, &file);
        let (messages, before) = (
            site.peers[HOSTILE].messages.len(),
            site.peers[HOSTILE].link_bytes,
        );
        site.peers[HOSTILE]
            .session
            .send_message(flow, REPAIR_REQUEST, request);
        site.exchange();
        let peer = &site.peers[HOSTILE];
        assert!(peer.resets.contains_key(&flow));
        assert_eq!(peer.messages.len(), messages, "nothing is answered");
        assert!(peer.link_bytes - before < 1_000);
        site.honest_peer_is_served();
    }
}
