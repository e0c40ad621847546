//! Framing: messages as they are, in any pieces; and shapes that smuggle.

mod smuggling;

use vocab::SeededRandom;

use super::*;

/// What a stream turned out to be: the heads, the payload of each message, and the fault.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FollowedMessages {
    heads: Vec<Vec<u8>>,
    payloads: Vec<Vec<u8>>,
    control_bytes: usize,
    opaque_bytes: usize,
    ends: usize,
    /// The fault; the bytes from its message's last piece of payload on then count as control, since the pieces
    /// decide how much of a bad line is seen.
    fault: Option<FramingFault>,
    unfinished: Vec<u8>,
}

pub(super) fn follow<H: reader::MessageHead>(
    reader: &mut MessageReader<H>,
    pieces: &[&[u8]],
    bytes_of: impl Fn(&H) -> Vec<u8>,
) -> FollowedMessages {
    let mut found = FollowedMessages::default();
    let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
    for piece in pieces {
        let mut piece = *piece;
        while !piece.is_empty() {
            let step = match reader.step(piece) {
                Ok(step) => step,
                Err(fault) => {
                    found.fault = Some(fault);
                    found.control_bytes += left + reader.held().len();
                    return found;
                }
            };
            assert!(step.length > 0 && step.length <= piece.len());
            let (bytes, rest) = piece.split_at(step.length);
            (piece, left) = (rest, left - step.length);
            match step.what {
                MessagePart::PartOfHead => assert!(!step.is_end),
                MessagePart::Head(head, _) => {
                    found.heads.push(bytes_of(&head));
                    found.payloads.push(Vec::new());
                }
                MessagePart::Control => found.control_bytes += bytes.len(),
                MessagePart::Payload => {
                    let payload = found.payloads.last_mut().expect("a head came first");
                    payload.extend_from_slice(bytes);
                }
                MessagePart::Opaque => found.opaque_bytes += bytes.len(),
            }
            found.ends += usize::from(step.is_end);
        }
    }
    found.unfinished = reader.held().to_vec();
    found
}

pub(super) fn follow_requests(pieces: &[&[u8]]) -> FollowedMessages {
    follow(&mut Requests::new(), pieces, |head| head.bytes.to_vec())
}

fn follow_responses(pieces: &[&[u8]], expected: &[BodyExpectation]) -> FollowedMessages {
    let mut reader = Responses::new();
    for expectation in expected {
        reader.expect(*expectation);
    }
    follow(&mut reader, pieces, |head| head.bytes.to_vec())
}

const REQUESTS: &[u8] = b"\r\nGET /a?b=c HTTP/1.1\r\nHost: a\r\nAccept:  x , y\t\r\n\r\n\
    POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\
    PUT /q HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
    4;x=\"y\"\r\nwiki\r\n0A\r\n0123456789\r\n000\r\nTrailer: 1\r\n\r\n\
    GET / HTTP/1.0\r\n\r\n";

const RESPONSES: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
    HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc\
    HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\
    HTTP/1.1 304\r\nContent-Length: 3\r\nETag: \"a\"\r\n\r\n\
    HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n\
    HTTP/1.1 204 No\r\n\r\n\
    HTTP/1.1 200 OK\r\n\r\nuntil the end";

fn expected() -> Vec<BodyExpectation> {
    use BodyExpectation::{NoBody, Usual};
    vec![Usual, NoBody, Usual, Usual, Usual, Usual]
}

#[test]
fn requests_are_told_apart_with_their_payload() {
    let found = follow_requests(&[REQUESTS]);
    assert_eq!(found.fault, None);
    assert_eq!((found.heads.len(), found.ends), (4, 4));
    let payloads: [&[u8]; 4] = [b"", b"hello", b"wiki0123456789", b""];
    assert_eq!(found.payloads, payloads);
}

#[test]
fn responses_are_framed_by_status_method_and_fields() {
    let found = follow_responses(&[RESPONSES], &expected());
    assert_eq!(found.fault, None);
    assert_eq!((found.heads.len(), found.ends), (7, 6));
    let payloads: [&[u8]; 7] = [b"", b"abc", b"", b"", b"ab", b"", b"until the end"];
    assert_eq!(found.payloads, payloads);
}

#[test]
fn a_switch_of_protocols_makes_the_rest_opaque() {
    let stream = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n\x81\x05hello";
    let found = follow_responses(&[stream], &[BodyExpectation::Usual]);
    assert_eq!((found.fault, found.opaque_bytes), (None, 7));
}

#[test]
fn bytes_without_a_request_are_no_response() {
    let found = follow_responses(&[b"HTTP/1.1 408 Timeout\r\n\r\n"], &[]);
    assert_eq!(found.fault, Some(FramingFault::Unsolicited));
}

#[test]
fn any_split_gives_the_same_messages() {
    let mut random = SeededRandom::from_seed(28);
    let whole = (
        follow_requests(&[REQUESTS]),
        follow_responses(&[RESPONSES], &expected()),
    );
    let bytewise = |bytes: &'static [u8]| bytes.chunks(1).collect::<Vec<_>>();
    assert_eq!(follow_requests(&bytewise(REQUESTS)), whole.0);
    assert_eq!(follow_responses(&bytewise(RESPONSES), &expected()), whole.1);
    for _ in 0..500 {
        assert_eq!(follow_requests(&pieces(REQUESTS, &mut random)), whole.0);
        assert_eq!(
            follow_responses(&pieces(RESPONSES, &mut random), &expected()),
            whole.1
        );
    }
}

/// Bent streams too: whatever is found in one piece is found in any pieces.
#[test]
fn any_split_of_a_bent_stream_ends_in_the_same_fault() {
    let mut random = SeededRandom::from_seed(9112);
    let mut faults = std::collections::BTreeSet::new();
    for _ in 0..3_000 {
        let mut bent = REQUESTS.to_vec();
        for _ in 0..1 + random.below(2) {
            let at = random.below(bent.len() as u64) as usize;
            let byte = b"\r\n \t:;,0\0a"[random.below(10) as usize];
            match random.below(3) {
                0 => bent[at] = byte,
                1 => bent.insert(at, byte),
                _ => drop(bent.remove(at)),
            }
        }
        let whole = follow_requests(&[&bent]);
        assert_eq!(
            follow_requests(&pieces(&bent, &mut random)),
            whole,
            "{bent:?}"
        );
        faults.extend(whole.fault.map(|fault| format!("{fault:?}")));
    }
    assert!(faults.len() >= 6, "{faults:?}");
}

pub(super) fn pieces<'a>(mut bytes: &'a [u8], random: &mut SeededRandom) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let most = bytes.len().min(40) as u64;
        let (piece, rest) = bytes.split_at(1 + random.below(most) as usize);
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

#[test]
fn heads_beyond_the_limits_are_faults_and_not_memory() {
    let long_line = [b"GET /", &vec![b'a'; START_LINE_MAX + 9][..]].concat();
    let long_head = [
        &b"GET / HTTP/1.1\r\nHost: a\r\nX: "[..],
        &vec![b'a'; HEAD_MAX],
    ]
    .concat();
    let many = "A: b\r\n".repeat(FIELDS_MAX + 1);
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").into_bytes();
    for bytes in [long_line, long_head, many] {
        let mut reader = Requests::new();
        let found = follow(&mut reader, &[&bytes], |head| head.bytes.to_vec());
        assert_eq!(found.fault, Some(FramingFault::Limit));
        assert!(reader.held().len() <= HEAD_MAX);
    }
}

#[test]
fn lists_are_split_outside_of_quotes() {
    let head = b"HTTP/1.1 200 OK\r\nCache-Control: a=\"x,\\\",y\", b\r\nCACHE-control: ,c\r\n\r\n";
    let head = ResponseHead::parse(bytes::Bytes::from_static(head)).unwrap();
    let members: Vec<&[u8]> = head.fields.list("cache-control").collect();
    assert_eq!(members, [&b"a=\"x,\\\",y\""[..], b"b", b"c"]);
}
