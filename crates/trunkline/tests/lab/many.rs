//! Tests of many connections at once, and of servers that refuse connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lab::servers::ServerKind;
use lab::site::WithNodes;
use lab::topology::LabSite;

use crate::setting::{FAST, HttpClient, ask, publish, receive, shared_turn, standing, web};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn five_hundred_parallel_connections_deliver_the_right_bytes() {
    let Some(_turn) = shared_turn("500 connections", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(FAST, WithNodes::Yes, &[LabSite::Near, LabSite::Far]);
    // Of 60 kB each: more than what lies in buffers on the way, so that they really are at once.
    let contents: Vec<Vec<u8>> = (0..20)
        .map(|index| {
            publish(
                &mut lab,
                &format!("file{index}"),
                60_000 + index,
                index as u64,
            )
        })
        .collect();
    let client = HttpClient::of(&lab);
    let mut streams = Vec::new();
    for index in 0..500 {
        let stream = client.connect(web(LabSite::Far), PATIENCE);
        streams.push(stream.unwrap_or_else(|error| panic!("connection {index}: {error}")));
    }
    for (index, stream) in streams.iter_mut().enumerate() {
        ask(stream, &format!("file{}", index % 20)).expect("it can be asked");
    }
    for (index, stream) in streams.into_iter().enumerate() {
        let body = receive(stream, |_| ())
            .unwrap_or_else(|failure| panic!("connection {index}: {failure}"));
        assert!(body == contents[index % 20], "connection {index}");
    }
    let status = lab.nodes().expect("they run").status(LabSite::Near);
    assert_eq!(status.expect("it answers")["flows_total"], 500);
}

#[test]
fn browser_connections_behave_as_without_nodes() {
    let Some(_turn) = shared_turn("30 connections", &[ServerKind::Http]) else {
        return;
    };
    let mut lab = standing(FAST, WithNodes::Yes, &[LabSite::Near, LabSite::Far]);
    let contents: Vec<Vec<u8>> = (0..30)
        .map(|index| {
            publish(
                &mut lab,
                &format!("file{index}"),
                20_000 * (index + 1),
                index as u64,
            )
        })
        .collect();
    let client = HttpClient::of(&lab);
    std::thread::scope(|scope| {
        let client = &client;
        for (index, content) in contents.iter().enumerate() {
            scope.spawn(move || {
                let body = client.fetch(web(LabSite::Far), &format!("file{index}"), PATIENCE);
                assert!(body.expect("it arrives") == *content, "file{index}");
            });
        }
    });
    let nobody = SocketAddr::new(web(LabSite::Far).ip(), 81);
    // The near node cannot know yet that nobody listens: the first try may be reset instead.
    let first = client.fetch(nobody, "file", PATIENCE);
    assert!(first.is_err());
    // The reset came only once the node's rule was in: the next try meets the server itself.
    let again = client.connect(nobody, PATIENCE);
    assert_eq!(
        again.expect_err("nobody listens there").kind(),
        io::ErrorKind::ConnectionRefused
    );
}
