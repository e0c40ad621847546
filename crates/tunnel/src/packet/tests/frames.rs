//! Frame tests: written frames are read back equal, and bytes that are no frame are an error.

use bytes::Bytes;
use proptest::prelude::*;
use vocab::{ByteWriter, FlowId};

use super::*;
use crate::fec::RepairSymbol;
use crate::wire::{DataFrame, NUMBER_LIMIT, PingFrame, SessionFrame};

/// Ranges from pieces: newest first, apart by at least one number.
fn ranges(pieces: &[(u64, u64)], base: u64) -> Vec<(u64, u64)> {
    let mut next = base;
    let mut rising = Vec::new();
    for (gap, length) in pieces {
        let first = next + gap;
        rising.push((first, first + length));
        next = first + length + 2;
    }
    rising.reverse();
    rising
}

fn some_ranges(least: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let base = prop_oneof![0..10_u64, 0..NUMBER_LIMIT / 2];
    let pieces = prop::collection::vec((0..1_u64 << 20, 0..1_u64 << 20), least..=RANGE_LIMIT);
    (pieces, base).prop_map(|(pieces, base)| ranges(&pieces, base))
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..200_u64, 0..NUMBER_LIMIT, Just(NUMBER_LIMIT - 1)]
}

fn acknowledgement() -> impl Strategy<Value = PacketAck> {
    let ecn = prop::option::of((number(), number(), number()));
    (number(), some_ranges(1), ecn, some_ranges(0)).prop_map(
        |(delay_us, ranges, ecn, recovered)| PacketAck {
            delay_us,
            ranges,
            ecn: ecn.map(|(ect0, ect1, ce)| EcnCounts { ect0, ect1, ce }),
            recovered,
        },
    )
}

fn some_bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn close_code() -> impl Strategy<Value = CloseCode> {
    prop_oneof![
        Just(CloseCode::Finished),
        Just(CloseCode::Misbehaved),
        Just(CloseCode::ForgeryLimit),
        Just(CloseCode::KeyExhausted),
        (4..=u16::MAX).prop_map(CloseCode::Other),
    ]
}

fn frame() -> impl Strategy<Value = PacketFrame> {
    prop_oneof![
        (1..=u16::MAX).prop_map(|bytes| PacketFrame::Padding(PaddingFrame { bytes })),
        Just(PacketFrame::Probe(ProbeFrame)),
        acknowledgement().prop_map(PacketFrame::Acknowledgement),
        number().prop_map(|symbol| PacketFrame::Source(SourceSymbol { symbol })),
        (number(), 1..=u8::MAX, any::<u16>(), some_bytes()).prop_map(
            |(first, count, key, bytes)| PacketFrame::Repair(RepairSymbol {
                first: first.min(NUMBER_LIMIT - u64::from(count)),
                count,
                key,
                bytes,
            })
        ),
        any::<u64>().prop_map(|value| PacketFrame::PathChallenge(PathChallenge { value })),
        any::<u64>().prop_map(|value| PacketFrame::PathResponse(PathResponse { value })),
        (close_code(), "[ -~]{0,256}")
            .prop_map(|(code, reason)| PacketFrame::Close(CloseFrame { code, reason })),
        any::<u32>()
            .prop_map(|stamp_us| PacketFrame::Session(SessionFrame::Ping(PingFrame { stamp_us }))),
        (
            number(),
            0..NUMBER_LIMIT / 2,
            prop::collection::vec(any::<u8>(), 1..300)
        )
            .prop_map(
                |(flow, offset, bytes)| PacketFrame::Session(SessionFrame::Data(DataFrame {
                    flow: FlowId(flow),
                    offset,
                    bytes: bytes.into(),
                }))
            ),
    ]
}

fn written(frames: &[PacketFrame]) -> Bytes {
    let mut payload = BytesMut::new();
    for frame in frames {
        append(frame, &mut payload);
    }
    payload.freeze()
}

fn read(payload: &[u8]) -> Result<Vec<PacketFrame>, crate::SessionError> {
    super::super::frames(Bytes::copy_from_slice(payload)).collect()
}

proptest! {
    #[test]
    fn what_is_written_reads_back(frames in prop::collection::vec(frame(), 0..8)) {
        prop_assert_eq!(read(&written(&frames)), Ok(frames));
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(frames) = read(&payload) {
            prop_assert_eq!(read(&written(&frames)), Ok(frames));
        }
    }

    #[test]
    fn altered_frames_parse_or_fail(
        frames in prop::collection::vec(frame(), 1..4),
        bends in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6),
        cut in any::<usize>(),
    ) {
        let mut payload = written(&frames).to_vec();
        for (at, byte) in bends {
            let at = at % payload.len();
            payload[at] = byte;
        }
        payload.truncate(cut % payload.len() + 1);
        if let Ok(frames) = read(&payload) {
            prop_assert_eq!(read(&written(&frames)), Ok(frames));
        }
    }
}

#[test]
fn padding_fills_every_space_to_the_byte() {
    for bytes in (1..2_000).chain(16_300..16_500).chain(65_500..=u16::MAX) {
        let frame = PacketFrame::Padding(PaddingFrame { bytes });
        let payload = written(std::slice::from_ref(&frame));
        assert_eq!(payload.len(), usize::from(bytes));
        assert_eq!(read(&payload), Ok(vec![frame]));
    }
}

#[test]
fn acknowledgement_ranges_match_rfc_9000() {
    let frame = PacketFrame::Acknowledgement(PacketAck {
        delay_us: 37,
        ranges: vec![(20, 25), (10, 10), (0, 7)],
        ecn: Some(EcnCounts {
            ect0: 1,
            ect1: 2,
            ce: 3,
        }),
        recovered: vec![(5, 6)],
    });
    // Kind, flags, delay; largest, ranges behind the first, its length less one; then gaps and
    // lengths: 11 to 19 and 8 to 9 are missing, nine and two numbers. ECN; the recovered 5 and 6.
    let body = [0x42, 3, 37, 25, 2, 5, 8, 0, 1, 7, 1, 2, 3, 6, 0, 1];
    let payload = [&[body.len() as u8][..], &body].concat();
    assert_eq!(written(std::slice::from_ref(&frame)), payload);
    assert_eq!(read(&payload), Ok(vec![frame]));
}

#[test]
fn frames_have_the_kinds_that_are_written_down() {
    let frames = [
        (
            PacketFrame::Padding(PaddingFrame { bytes: 3 }),
            &[2, 0x40, 0][..],
        ),
        (PacketFrame::Padding(PaddingFrame { bytes: 1 }), &[0]),
        (PacketFrame::Probe(ProbeFrame), &[1, 0x41]),
        (
            PacketFrame::Source(SourceSymbol { symbol: 7 }),
            &[2, 0x43, 7],
        ),
        (
            PacketFrame::Repair(RepairSymbol {
                first: 5,
                count: 2,
                key: 0x0102,
                bytes: Bytes::from_static(b"xy"),
            }),
            &[7, 0x44, 5, 2, 1, 2, b'x', b'y'],
        ),
        (
            PacketFrame::PathChallenge(PathChallenge { value: 1 }),
            &[9, 0x45, 0, 0, 0, 0, 0, 0, 0, 1],
        ),
        (
            PacketFrame::PathResponse(PathResponse { value: 1 }),
            &[9, 0x46, 0, 0, 0, 0, 0, 0, 0, 1],
        ),
        (
            PacketFrame::Close(CloseFrame {
                code: CloseCode::ForgeryLimit,
                reason: "no".to_owned(),
            }),
            &[5, 0x47, 0, 2, b'n', b'o'],
        ),
    ];
    for (frame, bytes) in frames {
        assert_eq!(written(std::slice::from_ref(&frame)), bytes);
        assert_eq!(read(bytes), Ok(vec![frame]));
    }
}

#[test]
fn faults_are_invalid_messages() {
    let mut many = ByteWriter::new();
    many.u8(0x42).u8(0).varint(0);
    many.varint(1 << 20).varint(RANGE_LIMIT as u64).varint(0);
    for _ in 0..RANGE_LIMIT {
        many.varint(0).varint(0);
    }
    let long_reason = [&[0x47, 0, 0][..], &[b'x'; REASON_LIMIT + 1]].concat();
    let faults: [(&str, &[u8]); 14] = [
        ("a kind that is not known", &[0x48]),
        ("bytes behind a frame", &[0x41, 0]),
        ("a probe that is cut in its packet", &[]),
        ("unknown flags", &[0x42, 4, 0, 0, 0, 0]),
        ("a first range below zero", &[0x42, 0, 0, 3, 0, 4]),
        ("a gap below zero", &[0x42, 0, 0, 3, 1, 0, 2, 0]),
        ("a range below zero", &[0x42, 0, 0, 3, 1, 0, 1, 1]),
        ("a range that is missing", &[0x42, 0, 0, 3, 1, 0]),
        ("too many ranges", &many.finish()),
        ("a repair of nothing", &[0x44, 0, 0, 0, 0]),
        ("a repair without a key", &[0x44, 0, 1, 0]),
        (
            "a repair above all numbers",
            &[
                0x44, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0,
            ],
        ),
        ("a reason that is no text", &[0x47, 0, 0, 0xff]),
        ("a reason that is too long", &long_reason),
    ];
    for (fault, body) in faults {
        let mut payload = ByteWriter::new();
        if body.is_empty() {
            payload.u8(2).u8(0x41);
        } else {
            payload.prefixed(body);
        }
        let outcome = read(&payload.finish());
        assert!(
            matches!(outcome, Err(crate::SessionError::InvalidMessage(_))),
            "{fault}: {outcome:?}"
        );
    }
}

#[test]
fn only_what_must_arrive_elicits_an_acknowledgement() {
    let acknowledgement = PacketAck {
        delay_us: 0,
        ranges: vec![(0, 0)],
        ecn: None,
        recovered: Vec::new(),
    };
    let silent = [
        PacketFrame::Padding(PaddingFrame { bytes: 9 }),
        PacketFrame::Source(SourceSymbol { symbol: 0 }),
        PacketFrame::Acknowledgement(acknowledgement),
    ];
    assert!(silent.iter().all(|frame| !frame.elicits_acknowledgement()));
    let loud = [
        PacketFrame::Probe(ProbeFrame),
        PacketFrame::PathChallenge(PathChallenge { value: 0 }),
        PacketFrame::Session(SessionFrame::Ping(PingFrame { stamp_us: 0 })),
    ];
    assert!(loud.iter().all(PacketFrame::elicits_acknowledgement));
}
