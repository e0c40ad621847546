//! Streams of SMB2 messages, cut anywhere.

use bytes::Bytes;
use vocab::SegmentKind;

use super::super::frame::frame_header;
use super::super::header::{Smb2Header, command, flag};
use super::*;
use crate::smb::testing::messages::{echo, frame};

/// A READ answer with 100 bytes of data, two bytes of padding before and one behind it; then a
/// compound of ECHO and CLOSE.
fn stream() -> Vec<u8> {
    let mut answer = Smb2Header::request(command::READ, 5, 1, 1);
    answer.flags = flag::FROM_SERVER;
    let mut body = vec![17, 0, 82, 0];
    body.extend(100u32.to_le_bytes());
    body.extend([0; 8]);
    body.extend([0xee; 2]);
    body.extend([0xda; 100]);
    body.push(0xff);
    let mut bytes = frame_header(64 + body.len()).to_vec();
    bytes.extend(answer.emit());
    bytes.extend(body);

    let mut echo = Smb2Header::request(command::ECHO, 6, 1, 1);
    echo.next = 72;
    let close = Smb2Header::request(command::CLOSE, 7, 1, 1);
    bytes.extend(frame_header(72 + 64 + 24));
    bytes.extend(echo.emit());
    bytes.extend([4, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(close.emit());
    bytes.extend([24; 24]);
    bytes
}

fn pieces(splitter: &mut Smb2Splitter, bytes: &[u8]) -> Vec<SplitterPiece> {
    splitter.push(Bytes::copy_from_slice(bytes));
    std::iter::from_fn(|| splitter.next().unwrap()).collect()
}

/// The content of the pieces: every head, the joined bytes of each kind, and all bytes in order.
fn summary(pieces: &[SplitterPiece]) -> (Vec<u64>, Vec<u8>, Vec<u8>, usize) {
    let (mut ids, mut payload, mut all, mut ends) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for piece in pieces {
        match piece {
            SplitterPiece::Head(head) => {
                ids.push(head.header.message_id);
                all.extend_from_slice(&head.bytes);
            }
            SplitterPiece::Rest(kind, bytes) => {
                if *kind == SegmentKind::Payload {
                    payload.extend_from_slice(bytes);
                }
                all.extend_from_slice(bytes);
            }
            SplitterPiece::End => ends += 1,
            SplitterPiece::Sealed(_) => panic!("it takes none"),
        }
    }
    (ids, payload, all, ends)
}

#[test]
fn fragmentation_changes_neither_heads_nor_payload() {
    let stream = stream();
    for cut in 0..=stream.len() {
        let mut splitter = Smb2Splitter::new();
        let mut out = pieces(&mut splitter, &stream[..cut]);
        out.extend(pieces(&mut splitter, &stream[cut..]));
        let (ids, payload, all, ends) = summary(&out);
        assert_eq!(ids, [5, 6, 7], "cut at {cut}");
        assert_eq!(payload, vec![0xda; 100], "cut at {cut}");
        assert_eq!(all, stream, "cut at {cut}");
        assert_eq!(ends, 2);
        assert!(splitter.at_boundary());
    }
}

#[test]
fn one_byte_at_a_time_is_as_good() {
    let stream = stream();
    let mut splitter = Smb2Splitter::new();
    let mut out = Vec::new();
    for byte in &stream {
        out.extend(pieces(&mut splitter, &[*byte]));
    }
    let (ids, payload, all, _) = summary(&out);
    assert_eq!((ids, payload), (vec![5, 6, 7], vec![0xda; 100]));
    assert_eq!(all, stream);
}

#[test]
fn non_smb2_is_named_and_returned() {
    let cases: [(&[u8], ForeignFrame); 5] = [
        (b"\0\0\0\x60\xffSMBr", ForeignFrame::Smb1),
        (b"\0\0\0\x60\xfdSMB.", ForeignFrame::Encrypted),
        (b"\0\0\0\x60\xfcSMB.", ForeignFrame::Compressed),
        (b"\0\xff\xff\xff\xfeSMB", ForeignFrame::TooLong),
        (b"\x85\0\0\x01", ForeignFrame::Unknown),
    ];
    for (bytes, foreign) in cases {
        let mut splitter = Smb2Splitter::new();
        splitter.push(Bytes::copy_from_slice(bytes));
        assert_eq!(splitter.next(), Err(foreign));
        assert_eq!(&splitter.give_back()[..], bytes);
    }
}

#[test]
fn compound_with_invalid_offset_is_foreign() {
    for next in [8u32, 63, 65, 4_096] {
        let mut echo = Smb2Header::request(command::ECHO, 6, 1, 1);
        echo.next = next;
        let mut bytes = frame_header(64 + 200).to_vec();
        bytes.extend(echo.emit());
        bytes.extend([0; 200]);
        let mut splitter = Smb2Splitter::new();
        splitter.push(bytes.into());
        assert_eq!(splitter.next(), Err(ForeignFrame::Unknown), "next {next}");
    }
}

#[test]
fn an_smb1_negotiate_can_be_skipped() {
    let mut splitter = Smb2Splitter::new();
    let mut bytes = b"\0\0\0\x08\xffSMBr...".to_vec();
    bytes.extend(stream());
    splitter.push(Bytes::from(bytes.clone()));
    assert_eq!(splitter.next(), Err(ForeignFrame::Smb1));
    splitter.skip_frame();
    let out: Vec<SplitterPiece> = std::iter::from_fn(|| splitter.next().unwrap()).collect();
    let (ids, _, all, ends) = summary(&out);
    assert_eq!((ids, ends), (vec![5, 6, 7], 3));
    assert_eq!(all, bytes);
}

#[test]
fn a_keep_alive_passes_between_frames() {
    let mut bytes = b"\x85\0\0\0".to_vec();
    bytes.extend(stream());
    bytes.extend(b"\x85\0\0\0");
    for cut in 0..=bytes.len() {
        let mut splitter = Smb2Splitter::new();
        let mut out = pieces(&mut splitter, &bytes[..cut]);
        out.extend(pieces(&mut splitter, &bytes[cut..]));
        let (ids, payload, all, ends) = summary(&out);
        assert_eq!((ids, ends), (vec![5, 6, 7], 4));
        assert_eq!(payload, vec![0xda; 100]);
        assert_eq!(all, bytes);
    }
}

#[test]
fn encrypted_messages_are_gathered_where_they_are_taken() {
    let mut stream = b"\0\0\0\x08\xfdSMB1234".to_vec();
    stream.extend(frame(&[(echo().header(1, 2, 3), &echo().body)]));
    stream.extend(b"\0\0\0\x06\xfdSMB12");
    for piece in [1, 3, 5, 9, 100] {
        let mut splitter = Smb2Splitter::taking_sealed();
        let (mut sealed, mut ends) = (Vec::new(), 0);
        for bytes in stream.chunks(piece) {
            splitter.push(Bytes::copy_from_slice(bytes));
            while let Some(piece) = splitter.next().unwrap() {
                match piece {
                    SplitterPiece::Sealed(frame) => sealed.push(frame),
                    SplitterPiece::End => ends += 1,
                    SplitterPiece::Head(_) | SplitterPiece::Rest(..) => {}
                }
            }
        }
        assert_eq!(sealed.len(), 2);
        assert_eq!(sealed[0][..], stream[..12]);
        assert_eq!(sealed[1][..], stream[stream.len() - 10..]);
        assert_eq!(ends, 1);
        assert!(splitter.at_boundary());
    }
    let mut other = Smb2Splitter::new();
    other.push(stream.into());
    assert_eq!(other.next(), Err(ForeignFrame::Encrypted));
}
