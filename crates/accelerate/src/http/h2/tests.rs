//! Bytes of a client that means harm, and of one that does not.

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
const GOAWAY: u8 = 7;
const ENHANCE_YOUR_CALM: u8 = 11;

fn server() -> Http2Server {
    let mut server = Http2Server::new();
    server.receive(Time::ZERO, [PREFACE, SETTINGS].concat().into());
    assert!(!server.is_closed());
    drop(server.take_output());
    server
}

/// The code of a GOAWAY in what the server sends.
fn goaway(server: &mut Http2Server) -> Option<u8> {
    let output = server.take_output();
    let mut rest = &output[..];
    while rest.len() >= 9 {
        let length = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
        if rest[3] == GOAWAY {
            return Some(rest[9 + 7]);
        }
        rest = &rest[9 + length..];
    }
    None
}

fn flood(frame: &[u8], count: usize) -> Option<u8> {
    let mut server = server();
    for _ in 0..count {
        server.receive(Time::ZERO, Bytes::copy_from_slice(frame));
        if let Some(code) = goaway(&mut server) {
            return Some(code);
        }
    }
    None
}

/// HEADERS of a GET of `/` on this stream.
fn request(stream: u32) -> Vec<u8> {
    let mut frame = b"\0\0\x0e\x01\x05".to_vec();
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(b"\x82\x87\x84\x41\x09a.example");
    frame
}

#[test]
fn floods_of_frames_that_carry_nothing_end_the_connection() {
    for frame in [
        &b"\0\0\x08\x06\0\0\0\0\x0012345678"[..],
        SETTINGS,
        b"\0\0\x05\x02\0\0\0\0\x01\0\0\0\0\x10",
    ] {
        let code = flood(frame, 5_000);
        assert_eq!(code, Some(ENHANCE_YOUR_CALM), "{frame:?}");
    }
}

/// CVE-2023-44487: streams that are opened and reset at once.
#[test]
fn rapid_resets_end_the_connection() {
    let mut server = server();
    for number in 0..5_000_u32 {
        let stream = 2 * number + 1;
        let mut frames = request(stream);
        frames.extend_from_slice(b"\0\0\x04\x03\0");
        frames.extend_from_slice(&stream.to_be_bytes());
        frames.extend_from_slice(&8_u32.to_be_bytes());
        server.receive(Time::ZERO, frames.into());
        while server.poll_event().is_some() {}
        assert!(server.streams.len() <= STREAMS_MAX as usize);
        if goaway(&mut server).is_some() {
            return;
        }
    }
    panic!("5,000 streams were opened and reset");
}

/// CVE-2024-27316 and others: header fields without end.
#[test]
fn headers_without_end_are_given_up() {
    let mut server = server();
    // HEADERS without END_HEADERS, then CONTINUATION with a literal field of 1,000 bytes.
    server.receive(
        Time::ZERO,
        Bytes::from_static(b"\0\0\x01\x01\x01\0\0\0\x01\x82"),
    );
    let mut field = b"\0\0\0\x09\0\0\0\0\x01\x00\x01a\x7f\xe9\x06".to_vec();
    field.extend_from_slice(&[b'x'; 1_000]);
    let length = (field.len() - 9) as u32;
    field[..3].copy_from_slice(&length.to_be_bytes()[1..]);
    for _ in 0..1_000 {
        server.receive(Time::ZERO, field.clone().into());
        if goaway(&mut server).is_some() {
            return;
        }
    }
    panic!("a megabyte of header fields was taken");
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut server = server();
    let mut events = 0;
    for number in 0..300_u32 {
        server.receive(Time::ZERO, request(2 * number + 1).into());
        while let Some(event) = server.poll_event() {
            events += u32::from(matches!(event, Http2Event::Request { .. }));
        }
    }
    assert_eq!(events, STREAMS_MAX);
}

#[test]
fn a_request_becomes_a_head_of_the_older_version() {
    let mut server = server();
    server.receive(Time::ZERO, request(1).into());
    let Some(Http2Event::Request {
        head, host, body, ..
    }) = server.poll_event()
    else {
        panic!("a request has come");
    };
    assert_eq!(head, &b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n"[..]);
    assert_eq!((host.as_str(), body), ("a.example", RequestBody::Empty));
}

#[test]
fn what_is_no_http2_ends_the_connection() {
    let mut server = Http2Server::new();
    server.receive(
        Time::ZERO,
        Bytes::from_static(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    );
    assert!(server.is_closed());
}

/// The end of a body whose length was unknown comes behind all its bytes.
#[test]
fn late_end_of_body_is_written_at_once() {
    let mut server = server();
    server.receive(Time::ZERO, request(1).into());
    let head = Bytes::from_static(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    server.respond(1, &ResponseHead::parse(head).unwrap(), false);
    server.send_body(1, Bytes::from_static(b"text"));
    server.drive();
    assert!(server.take_output().ends_with(b"text"));
    server.finish_body(1);
    server.drive();
    // DATA without bytes, END_STREAM, stream 1.
    assert_eq!(
        server.take_output(),
        &b"\0\0\0\0\x01\0\0\0\x01"[..],
        "the end"
    );
    assert!(server.streams.is_empty());
}
