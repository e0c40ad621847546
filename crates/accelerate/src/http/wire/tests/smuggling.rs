//! Shapes by which one message is made to look like two, or two like one. None of them may be
//! understood: the stream has to end in a fault, before or in the message that is ambiguous.

use super::*;

/// (what it is, the stream, the fault).
const SHAPES: &[(&str, &[u8], FramingFault)] = &[
    (
        "CL.TE",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
        FramingFault::TwoLengths,
    ),
    (
        "TE.CL",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n12\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n",
        FramingFault::TwoLengths,
    ),
    (
        "TE.TE with a coding that is no coding",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
        FramingFault::TransferEncoding,
    ),
    (
        "TE: xchunked",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        FramingFault::TransferEncoding,
    ),
    (
        "TE: chunked, identity",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        FramingFault::TransferEncoding,
    ),
    (
        "TE: chunked in quotes",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        FramingFault::TransferEncoding,
    ),
    (
        "TE with a vertical tab",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        FramingFault::FieldValue,
    ),
    (
        "TE in HTTP/1.0",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        FramingFault::TransferEncoding,
    ),
    (
        "an empty TE",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n",
        FramingFault::TransferEncoding,
    ),
    (
        "whitespace before the colon",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        FramingFault::FieldName,
    ),
    (
        "whitespace before the name",
        b"POST / HTTP/1.1\r\n Transfer-Encoding: chunked\r\nHost: a\r\n\r\n",
        FramingFault::Folded,
    ),
    (
        "obs-fold",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        FramingFault::Folded,
    ),
    (
        "a line without a colon",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length\r\n\r\n",
        FramingFault::FieldName,
    ),
    (
        "an empty name",
        b"GET / HTTP/1.1\r\nHost: a\r\n: 5\r\n\r\n",
        FramingFault::FieldName,
    ),
    (
        "a name with NUL",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent\0-Length: 5\r\n\r\nhello",
        FramingFault::FieldName,
    ),
    (
        "Content-Length twice, different",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        FramingFault::ContentLength,
    ),
    (
        "Content-Length twice, equal",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        FramingFault::ContentLength,
    ),
    (
        "Content-Length as a list",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello",
        FramingFault::ContentLength,
    ),
    (
        "Content-Length with a sign",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
        FramingFault::ContentLength,
    ),
    (
        "Content-Length in hexadecimal",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello",
        FramingFault::ContentLength,
    ),
    (
        "Content-Length past 64 bits",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551621\r\n\r\nhello",
        FramingFault::ContentLength,
    ),
    (
        "an empty Content-Length",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\nhello",
        FramingFault::ContentLength,
    ),
    (
        "a bare LF behind the request line",
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        FramingFault::BareLineFeed,
    ),
    (
        "a bare LF behind a field",
        b"GET / HTTP/1.1\r\nHost: a\nContent-Length: 5\r\n\r\n",
        FramingFault::BareLineFeed,
    ),
    (
        "a bare LF as the empty line",
        b"GET / HTTP/1.1\r\nHost: a\r\n\nGET /b HTTP/1.1\r\n\r\n",
        FramingFault::BareLineFeed,
    ),
    (
        "a bare CR in a value",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: b\rContent-Length: 5\r\n\r\n",
        FramingFault::BareCarriageReturn,
    ),
    (
        "a bare CR in the request line",
        b"GET / HTTP/1.1\rX: a\r\nHost: a\r\n\r\n",
        FramingFault::BareCarriageReturn,
    ),
    (
        "NUL in a value",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n",
        FramingFault::FieldValue,
    ),
    (
        "two spaces in the request line",
        b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        FramingFault::RequestLine,
    ),
    (
        "a tab in the request line",
        b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
        FramingFault::RequestLine,
    ),
    (
        "a space in the target",
        b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        FramingFault::RequestLine,
    ),
    ("HTTP/0.9", b"GET /\r\n\r\n", FramingFault::RequestLine),
    (
        "an unknown version",
        b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
        FramingFault::RequestLine,
    ),
    (
        "the preface of HTTP/2",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        FramingFault::RequestLine,
    ),
    ("no Host", b"GET / HTTP/1.1\r\n\r\n", FramingFault::Host),
    (
        "two Hosts",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        FramingFault::Host,
    ),
    (
        "two Hosts in one",
        b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        FramingFault::Host,
    ),
    (
        "Host with a user",
        b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
        FramingFault::Host,
    ),
    (
        "a chunk's size with 0x",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        FramingFault::ChunkSize,
    ),
    (
        "a chunk's size with a sign",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
        FramingFault::ChunkSize,
    ),
    (
        "a chunk's size that wraps",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
        FramingFault::ChunkSize,
    ),
    (
        "no chunk size",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
        FramingFault::ChunkSize,
    ),
    (
        "whitespace behind a chunk's size",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
        FramingFault::ChunkSize,
    ),
    (
        "a chunk extension that ends in a bare LF",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;\nhello\r\n0\r\n\r\n",
        FramingFault::BareLineFeed,
    ),
    (
        "a chunk extension with a bare CR",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
        FramingFault::ChunkSize,
    ),
    (
        "a chunk that is longer than its size",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
        FramingFault::ChunkEnd,
    ),
    (
        "a chunk that ends in a bare LF",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
        FramingFault::ChunkEnd,
    ),
    (
        "folded trailers",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n X: y\r\n\r\n",
        FramingFault::Folded,
    ),
    (
        "trailers with a bare LF",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n",
        FramingFault::BareLineFeed,
    ),
];

#[test]
fn shapes_that_smuggle_end_in_a_fault_whatever_the_pieces() {
    let mut random = SeededRandom::from_seed(1);
    for (name, stream, fault) in SHAPES {
        let found = follow_requests(&[stream]);
        assert_eq!(found.fault, Some(*fault), "{name}");
        assert_eq!(found.ends, 0, "{name}: a message was taken for whole");
        for _ in 0..20 {
            assert_eq!(
                follow_requests(&pieces(stream, &mut random)),
                found,
                "{name}"
            );
        }
    }
}

#[test]
fn chunk_extensions_do_not_last_for_ever() {
    let extension = format!("1;{}\r\na\r\n", "x".repeat(CHUNK_LINE_MAX - 10)).repeat(100);
    let stream =
        format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{extension}");
    let found = follow_requests(&[stream.as_bytes()]);
    assert_eq!(found.fault, Some(FramingFault::Limit));
    assert!(found.payloads[0].len() < 100);
}

/// Responses: the same rules hold, and a response that is ambiguous is never kept.
#[test]
fn responses_that_are_ambiguous_end_in_a_fault() {
    let shapes: &[(&[u8], FramingFault)] = &[
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            FramingFault::TwoLengths,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            FramingFault::ContentLength,
        ),
        (
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            FramingFault::TransferEncoding,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            FramingFault::TransferEncoding,
        ),
        (
            b"HTTP/1.1 200 OK\nContent-Length: 1\r\n\r\n",
            FramingFault::BareLineFeed,
        ),
        (
            b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            FramingFault::Folded,
        ),
        (b"HTTP/1.1 099 OK\r\n\r\n", FramingFault::StatusLine),
        (b"HTTP/2 200\r\n\r\n", FramingFault::StatusLine),
        (b"\r\nHTTP/1.1 200 OK\r\n\r\n", FramingFault::StatusLine),
        (b"ICY 200 OK\r\n\r\n", FramingFault::StatusLine),
    ];
    for (stream, fault) in shapes {
        let found = follow_responses(&[stream], &[BodyExpectation::Usual]);
        assert_eq!(found.fault, Some(*fault), "{stream:?}");
        assert_eq!(found.ends, 0);
    }
}
