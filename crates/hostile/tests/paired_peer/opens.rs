//! The hostile peer opens flows to where it may not go, and more of them than there may be.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tunnel::{OpenAnswer, ResetReason};

use crate::site::{FLOW_LIMIT, HOSTILE, SERVER, TestSite};

/// Destinations that are not served: this machine, its neighbours, and invalid hosts.
const NOT_SERVED: &[&str] = &[
    "127.0.0.1",
    "127.255.255.254",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "0.0.0.0",
    "::",
    "10.0.0.1",
    "198.18.2.1",
    "198.18.10.1",
    "169.254.169.254",
    "fe80::1",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
    "203.0.113.7",
    "2001:db8::1",
];

#[test]
fn unserved_destinations_are_not_connected() {
    let mut site = TestSite::new();
    let mut flows = Vec::new();
    for address in NOT_SERVED {
        let address: IpAddr = address.parse().unwrap();
        for port in [22, 80, 445] {
            let open = TestSite::open_to(HOSTILE, SocketAddr::new(address, port));
            let session = &mut site.peers[HOSTILE].session;
            flows.push((address, session.open(site.now, open).unwrap()));
            site.exchange();
        }
    }
    // The answer comes when that of a server out of reach would.
    assert!(site.peers[HOSTILE].answers.is_empty());
    site.wait(Duration::from_secs(4));
    let mut answers = Vec::new();
    for (address, flow) in flows {
        let answer = site.peers[HOSTILE].answers.get(&flow);
        let is_refused = matches!(answer, Some(OpenAnswer::Failed(_)));
        assert!(is_refused, "{address}: {answer:?}");
        answers.extend(answer.copied());
    }
    assert_eq!(site.connects, []);
    // It learns nothing of what is where.
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    site.honest_peer_is_served();
}

#[test]
fn excess_flows_are_refused_without_residue() {
    let mut site = TestSite::new();
    let mut flows = Vec::new();
    for port in 0..3 * FLOW_LIMIT as u16 {
        let mut open = TestSite::open_to(HOSTILE, SERVER.into());
        open.client.set_port(1024 + port);
        let session = &mut site.peers[HOSTILE].session;
        flows.push(session.open(site.now, open).unwrap());
        if port % 50 == 0 {
            site.exchange();
        }
        site.check_limits();
    }
    site.exchange();
    let answers = &site.peers[HOSTILE].answers;
    let connected = answers
        .values()
        .filter(|answer| **answer == OpenAnswer::Connected);
    assert!(connected.count() <= FLOW_LIMIT);
    assert!(site.connects.len() <= FLOW_LIMIT);
    // All of them are answered, and when they are gone there is room again.
    assert!(flows.iter().all(|flow| answers.contains_key(flow)));
    for flow in flows {
        site.peers[HOSTILE]
            .session
            .reset(flow, ResetReason::HostReset);
    }
    site.exchange();
    assert_eq!(site.engine.status().flows, 0);
    assert!(site.connections.is_empty());
    site.honest_peer_is_served();
}
