//! What tests of other crates need: a conversation, and the framing under any bytes.

pub use super::cache::testing::{HEADS, sample_record, stored_heads, stored_record};
pub use super::prefetch::testing::{DOCUMENTS, documents};
use super::prefetch::testing::{frame as prefetch_frame, sample_frames as prefetch_frames};

use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, SeededRandom, Time};

use super::config::{HttpSettings, INDEX_MAX};
use super::recall::RecallFrame;
use super::shared::HttpState;
use super::tls::frames::TlsFrame;
use super::wire::{BodyExpectation, MessagePart, MessageReader, Requests, Responses};
use crate::AcceleratorInput;
use crate::shared::memory_files::MemoryFiles;
use crate::shared::{SharedInput, SharedOutput, SharedState, StartContext, StateKey};

/// What a client sends on one connection: pipelined requests, one with a body in chunks.
pub const REQUESTS: &[u8] =
    b"GET /a?b=c HTTP/1.1\r\nHost: a.example\r\nAccept: text/html , */*\r\n\r\n\
    HEAD /a HTTP/1.1\r\nHost: a.example\r\n\r\n\
    PUT /q HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n\
    4;x=\"y\"\r\nwiki\r\n0A\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n\
    POST /p HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello";

/// Responses of its server.
pub const RESPONSES: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n\
    HTTP/1.1 200 OK\r\nContent-Length: 3\r\nCache-Control: max-age=60\r\n\r\nabc\
    HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\
    HTTP/1.1 204 No Content\r\n\r\n\
    HTTP/1.1 100 Continue\r\n\r\n\
    HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";

/// Bytes that each half receives in that conversation.
#[must_use]
pub fn conversation() -> [Vec<AcceleratorInput>; 2] {
    let (asked, answered) = (Bytes::from_static(REQUESTS), Bytes::from_static(RESPONSES));
    let near = vec![
        AcceleratorInput::Lan(asked.clone()),
        AcceleratorInput::Wan(FlowSegment::control(answered.clone())),
        AcceleratorInput::WanFinished,
    ];
    let far = vec![
        AcceleratorInput::Wan(FlowSegment::control(asked)),
        AcceleratorInput::Lan(answered),
        AcceleratorInput::LanFinished,
    ];
    [near, far]
}

/// The files of an index on disk that names `count` pages, `http://web/0` and so on, stored at this moment and fresh for a
/// day; for tests of what reads it back.
#[must_use]
pub fn index_files(key: StateKey, since_1970: Duration, count: usize) -> MemoryFiles {
    let mut files = MemoryFiles::default();
    let settings = HttpSettings {
        is_on: true,
        ..HttpSettings::default()
    };
    let mut state = HttpState::new(
        settings,
        StartContext {
            memory_max: INDEX_MAX,
            random: SeededRandom::from_seed(count as u64),
            key: Some(key),
        },
    );
    let now = Time::ZERO;
    state.handle(now, SharedInput::Start);
    state.set_calendar(now, since_1970);
    let mut drain = |state: &mut HttpState| {
        while let Some(output) = state.poll_output() {
            if let SharedOutput::File(request) = output {
                let completion = files.complete(request);
                state.handle(now, SharedInput::File(completion));
            }
        }
    };
    drain(&mut state);
    for number in 0..count {
        state.store_page(&format!("/{number}"));
    }
    drain(&mut state);
    files
}

/// Frames these bytes as requests and as responses, in one piece and in many.
///
/// # Panics
/// When the pieces change what is found, or a head is kept beyond its limit.
pub fn framing(bytes: &[u8]) {
    let requests = |pieces: &[&[u8]]| follow(Requests::new(), pieces);
    let responses = |pieces: &[&[u8]]| {
        let mut reader = Responses::new();
        for expectation in [
            BodyExpectation::Usual,
            BodyExpectation::NoBody,
            BodyExpectation::Usual,
        ] {
            reader.expect(expectation);
        }
        follow(reader, pieces)
    };
    let mut random = SeededRandom::from_seed(bytes.len() as u64);
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(1 + random.below(rest.len().min(99) as u64) as usize);
        pieces.push(piece);
        rest = behind;
    }
    assert_eq!(requests(&[bytes]), requests(&pieces));
    assert_eq!(responses(&[bytes]), responses(&pieces));
}

/// The bytes of each kind: heads, payload; and the fault.
fn follow<H: super::wire::MessageHead>(
    mut reader: MessageReader<H>,
    pieces: &[&[u8]],
) -> (usize, Vec<u8>, Option<String>) {
    let (mut heads, mut payload) = (0, Vec::new());
    for piece in pieces {
        let mut piece = *piece;
        while !piece.is_empty() {
            let step = match reader.step(piece) {
                Ok(step) => step,
                Err(fault) => return (heads, payload, Some(fault.to_string())),
            };
            assert!(reader.held().len() <= super::wire::HEAD_MAX);
            let (run, rest) = piece.split_at(step.length);
            piece = rest;
            match step.what {
                MessagePart::Head(..) => heads += 1,
                MessagePart::Payload | MessagePart::Opaque => payload.extend_from_slice(run),
                MessagePart::PartOfHead | MessagePart::Control => {}
            }
        }
    }
    (heads, payload, None)
}

/// Reads the bytes as each kind of frame between two halves.
///
/// # Panics
/// When a frame is not read as it is written, or two parsers claim it.
pub fn frames(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let recall = RecallFrame::parse(&bytes);
    if let Some(Ok(frame)) = recall {
        let written = frame.to_segment().bytes;
        assert_eq!(RecallFrame::parse(&written), Some(Ok(frame)));
    }
    let tls = TlsFrame::parse(&bytes);
    if let Ok(Some(frame)) = &tls {
        let written = frame.to_segment().bytes;
        assert_eq!(TlsFrame::parse(&written).as_ref(), Ok(&Some(frame.clone())));
    }
    let is_of_prefetch = prefetch_frame(&bytes);
    let is_of_tls = matches!(tls, Ok(Some(_)));
    let readers = [recall.is_some(), is_of_tls, is_of_prefetch];
    let readers = readers.iter().filter(|reads| **reads).count();
    assert!(readers <= 1, "a frame has one meaning");
}

/// Frames as the halves write them, with names.
#[must_use]
pub fn sample_frames() -> Vec<(&'static str, Bytes)> {
    let recall = [
        ("recall", RecallFrame::Recall(1)),
        ("tagged", RecallFrame::Tagged(u64::MAX)),
        ("confirmed", RecallFrame::Confirmed(1_767_225_600)),
        ("unknown", RecallFrame::Unknown(3)),
    ];
    let recall = recall.map(|(name, frame)| (name, frame.to_segment().bytes));
    let tls = super::tls::frames::samples().into_iter();
    let tls = tls.map(|(name, frame)| (name, frame.to_segment().bytes));
    recall
        .into_iter()
        .chain(tls)
        .chain(prefetch_frames())
        .collect()
}

/// Reads the bytes as the first message of a TLS client, in one piece and byte by byte.
///
/// # Panics
/// When the pieces change what is found, or more than the limit is looked at.
pub fn client_hello(bytes: &[u8]) {
    super::tls::client_hello::read_in_pieces(bytes);
}

/// Takes the bytes as those of an HTTP/2 client behind its preface.
///
/// # Panics
/// When a limit does not hold.
pub fn http2_client(bytes: &[u8]) {
    super::h2::any_client(bytes);
}

/// What a client of HTTP/2 sends behind its preface: SETTINGS, and a GET of `https://a.example/` on stream 1.
pub const HTTP2_REQUEST: &[u8] =
    b"\0\0\0\x04\0\0\0\0\0\0\0\x0e\x01\x05\0\0\0\x01\x82\x87\x84\x41\x09a.example";

/// A ClientHello that names `a.example` and offers h2 and http/1.1.
#[must_use]
pub fn sample_hello() -> Vec<u8> {
    let name = b"a.example";
    let mut extensions = vec![0, 0, 0, 14, 0, 12, 0, 0, 9];
    extensions.extend_from_slice(name);
    extensions.extend_from_slice(b"\0\x10\0\x0e\0\x0c\x02h2\x08http/1.1");
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    // No session, one cipher suite, and no compression.
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(&extensions);
    let mut message = vec![1, 0];
    message.extend_from_slice(&(body.len() as u16).to_be_bytes());
    message.extend_from_slice(&body);
    let mut record = vec![22, 3, 1];
    record.extend_from_slice(&(message.len() as u16).to_be_bytes());
    record.extend_from_slice(&message);
    record
}
