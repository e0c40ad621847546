//! Tests that both ends keep each other's addresses, and that more than two sites reach each other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use host::kernel::ProcessSignal;
use lab::servers::{HTTP_PORT, ServerKind, SiteServers};
use lab::site::WithNodes;
use lab::topology::LabSite;

use crate::setting::{FAST, HttpClient, publish, shared_turn, standing, web};

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn server_sees_the_client_over_ipv4_and_ipv6() {
    let Some(_turn) = shared_turn("addresses", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(FAST, WithNodes::Yes, &[LabSite::Near, LabSite::Far]);
    let content = publish(&mut lab, "file", 300_000, 1);
    let client = HttpClient::of(&lab);
    let v6 = SocketAddr::new(IpAddr::V6(LabSite::Far.host_address_v6()), HTTP_PORT);
    for server in [web(LabSite::Far), v6] {
        let body = client.fetch(server, "file", PATIENCE);
        assert!(body.expect("it arrives") == content, "over {server}");
    }
    let status = lab.nodes().expect("they run").status(LabSite::Near);
    let status = status.expect("the near node answers");
    assert_eq!(status["flows_total"], 2, "{status}");
    let log = std::fs::read_to_string(lab.logs().join("server-nginx-access.log"));
    let log = log.expect("nginx logs");
    assert!(log.contains(" 198.18.1.2 "), "{log}");
    assert!(log.contains(" 2001:2:0:1::2 "), "{log}");
}

#[test]
fn nothing_arrives_without_the_emulator() {
    let Some(_turn) = shared_turn("emulator", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(FAST, WithNodes::No, &[LabSite::Near, LabSite::Far]);
    let content = publish(&mut lab, "file", 1000, 1);
    let client = HttpClient::of(&lab);
    let body = client.fetch(web(LabSite::Far), "file", PATIENCE);
    assert!(body.expect("it arrives") == content);
    lab.emulator()
        .stop(ProcessSignal::Terminate)
        .expect("it stops");
    let body = client.fetch(web(LabSite::Far), "file", Duration::from_secs(2));
    assert!(body.is_err());
}

#[test]
fn three_nodes_serve_two_prefixes() {
    let Some(_turn) = shared_turn("three nodes", &[ServerKind::Http]) else {
        return;
    };
    let sites = [LabSite::Near, LabSite::Far, LabSite::Third];
    let mut lab = standing(FAST, WithNodes::Yes, &sites);
    let logs = lab.logs().to_owned();
    let third = SiteServers::start(
        lab.run(),
        lab.topology(),
        LabSite::Third,
        &logs,
        &[ServerKind::Http],
    )
    .expect("the third site's server starts");
    let content = publish(&mut lab, "file", 300_000, 1);
    std::fs::write(third.files().join("file"), &content[..200_000]).expect("it can be written");
    let client = HttpClient::of(&lab);
    let body = client.fetch(web(LabSite::Far), "file", PATIENCE);
    assert!(body.expect("it arrives from the far site") == content);
    let body = client.fetch(web(LabSite::Third), "file", PATIENCE);
    assert!(body.expect("it arrives from the third site") == content[..200_000]);
    let nodes = lab.nodes().expect("they run");
    for site in [LabSite::Far, LabSite::Third] {
        let status = nodes.status(site).expect("the node answers");
        assert_eq!(status["flows_total"], 1, "{status}");
    }
}
