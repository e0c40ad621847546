//! Every frame reads back as it was written, and noise is refused without a panic.

use proptest::prelude::*;
use vocab::{FlowId, NodeId};

use super::*;
use crate::packet::{CipherSuite, ConnectionId};
use crate::{ConnectFailure, OpenAnswer, OpenRequest, ResetReason};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, 0..1_u64 << 32, 0..1_u64 << 60]
}

fn payload() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 1..300).prop_map(Bytes::from)
}

fn seen() -> impl Strategy<Value = ReceiptState> {
    prop_oneof![Just(ReceiptState::NotYet), Just(ReceiptState::Seen)]
}

fn ack() -> impl Strategy<Value = FlowAck> {
    (number(), number(), number(), number(), seen()).prop_map(
        |(flow, consumed, unconsumed, credit, finish)| FlowAck {
            flow: FlowId(flow),
            received: consumed + unconsumed,
            consumed,
            limit: consumed + unconsumed + credit,
            finish,
        },
    )
}

fn open() -> impl Strategy<Value = OpenRequest> {
    (
        any::<[u8; 16]>(),
        any::<[u8; 4]>(),
        any::<[u16; 2]>(),
        any::<(u8, u8, bool, bool)>(),
    )
        .prop_map(
            |(six, four, [client, server], (accelerator, dscp, keep_client_address, may_store))| {
                OpenRequest {
                    client: (six, client).into(),
                    server: (four, server).into(),
                    accelerator,
                    keep_client_address,
                    may_store,
                    dscp,
                }
            },
        )
}

fn hello() -> impl Strategy<Value = HelloFrame> {
    let ids = (any::<[u8; 32]>(), any::<[u8; 32]>());
    let lives = (any::<[u8; 16]>(), any::<[u8; 16]>());
    (
        any::<(u16, u16)>(),
        ids,
        lives,
        number(),
        number(),
        payload(),
    )
        .prop_map(
            |(versions, ids, lives, flow_window, total_window, blob)| HelloFrame {
                version: versions.0,
                least_version: versions.1,
                sender: NodeId(ids.0),
                receiver: NodeId(ids.1),
                incarnation: lives.0,
                known_incarnation: lives.1,
                flow_window,
                total_window,
                blob,
            },
        )
}

fn resume() -> impl Strategy<Value = ResumeFrame> {
    let positions = prop::collection::vec((ack(), seen()), 0..20);
    let series = prop_oneof![
        Just(ResumeContinuation::More),
        Just(ResumeContinuation::Last)
    ];
    (series, number(), number(), positions).prop_map(
        |(series, flows_seen_below, next_message, positions)| ResumeFrame {
            series,
            flows_seen_below,
            next_message,
            positions: positions
                .into_iter()
                .map(|(ack, answer)| ResumePosition { ack, answer })
                .collect(),
        },
    )
}

fn answer() -> impl Strategy<Value = OpenAnswer> {
    prop_oneof![
        Just(OpenAnswer::Connected),
        Just(OpenAnswer::Failed(ConnectFailure::Refused)),
        Just(OpenAnswer::Failed(ConnectFailure::TimedOut)),
        Just(OpenAnswer::Failed(ConnectFailure::Unreachable)),
        Just(OpenAnswer::Failed(ConnectFailure::NotPermitted)),
        Just(OpenAnswer::Failed(ConnectFailure::Exhausted)),
        Just(OpenAnswer::Failed(ConnectFailure::Filtered)),
        Just(OpenAnswer::Failed(ConnectFailure::AnswersElsewhere)),
        Just(OpenAnswer::Failed(ConnectFailure::Other)),
    ]
}

fn reason() -> impl Strategy<Value = ResetReason> {
    prop_oneof![
        Just(ResetReason::Gone),
        Just(ResetReason::HostReset),
        Just(ResetReason::HostLost),
        Just(ResetReason::Accelerator),
        Just(ResetReason::Reduction),
        Just(ResetReason::Stopping),
        Just(ResetReason::Limit),
        Just(ResetReason::Policy),
        Just(ResetReason::PeerLost),
        Just(ResetReason::PeerRestarted),
        Just(ResetReason::PeerRemoved),
        (11..=255_u8).prop_map(ResetReason::Unknown),
    ]
}

fn message() -> impl Strategy<Value = MessageFrame> {
    let piece = prop_oneof![
        Just(MessageContinuation::Part),
        Just(MessageContinuation::Last)
    ];
    (number(), any::<u8>(), piece, number(), payload()).prop_map(
        |(flow, kind, piece, sequence, bytes)| MessageFrame {
            flow: FlowId(flow),
            kind,
            piece,
            sequence,
            bytes,
        },
    )
}

fn datagram_offer() -> impl Strategy<Value = DatagramOffer> {
    let suite = prop_oneof![
        Just(CipherSuite::Aes256Gcm),
        Just(CipherSuite::ChaCha20Poly1305)
    ];
    (1_u16.., suite, any::<[u8; 8]>(), any::<[u8; 16]>(), 1_u16..).prop_map(
        |(version, suite, connection_id, nonce, port)| DatagramOffer {
            version,
            suite,
            connection_id: ConnectionId(connection_id),
            nonce,
            port,
        },
    )
}

fn frame() -> impl Strategy<Value = SessionFrame> {
    let flow = || number().prop_map(FlowId);
    prop_oneof![
        hello().prop_map(SessionFrame::Hello),
        resume().prop_map(SessionFrame::Resume),
        any::<u32>().prop_map(|stamp_us| SessionFrame::Ping(PingFrame { stamp_us })),
        any::<u32>().prop_map(|stamp_us| SessionFrame::Pong(PongFrame { stamp_us })),
        Just(SessionFrame::GoAway(GoAway)),
        datagram_offer().prop_map(SessionFrame::DatagramOffer),
        (flow(), open()).prop_map(|(flow, open)| SessionFrame::Open(OpenFrame { flow, open })),
        (flow(), answer())
            .prop_map(|(flow, answer)| SessionFrame::Answer(AnswerFrame { flow, answer })),
        (flow(), number(), payload()).prop_map(|(flow, offset, bytes)| SessionFrame::Data(
            DataFrame {
                flow,
                offset,
                bytes
            }
        )),
        (flow(), number()).prop_map(|(flow, final_offset)| SessionFrame::Finish(FinishFrame {
            flow,
            final_offset
        })),
        (flow(), reason())
            .prop_map(|(flow, reason)| SessionFrame::Reset(ResetFrame { flow, reason })),
        ack().prop_map(SessionFrame::Ack),
        number().prop_map(|window| SessionFrame::TotalCredit(TotalCredit { window })),
        message().prop_map(SessionFrame::Message),
        number().prop_map(|next| SessionFrame::MessageAck(MessageAck { next })),
    ]
}

proptest! {
    #[test]
    fn frames_read_back_across_any_split(
        frames in prop::collection::vec(frame(), 1..8),
        cut in 1..200_usize,
    ) {
        let mut out = ByteWriter::new();
        for frame in &frames {
            frame.emit(&mut out);
        }
        let mut incoming = BytesMut::new();
        let mut read = Vec::new();
        for piece in out.finish().chunks(cut) {
            incoming.extend_from_slice(piece);
            while let Some(frame) = split_frame(&mut incoming).unwrap() {
                read.push(SessionFrame::parse(&frame).unwrap());
            }
        }
        prop_assert!(incoming.is_empty());
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn noise_is_refused_or_rewritable(
        kind in 0..0x1a_u8,
        mut noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        noise.insert(0, kind);
        if let Ok(frame) = SessionFrame::parse(&noise.into()) {
            let mut out = ByteWriter::new();
            frame.emit(&mut out);
            let mut written = BytesMut::from(&out.finish()[..]);
            let body = split_frame(&mut written).unwrap().unwrap();
            prop_assert_eq!(SessionFrame::parse(&body).unwrap(), frame);
        }
    }
}

#[test]
fn frame_with_invalid_length_is_refused() {
    assert!(split_frame(&mut BytesMut::from(&[0][..])).is_err());
    assert!(split_frame(&mut BytesMut::from(&[0x80, 1, 0, 1][..])).is_err());
    assert_eq!(split_frame(&mut BytesMut::from(&[0x80, 1][..])), Ok(None));
}

#[test]
fn an_acknowledgement_is_short() {
    let mut out = ByteWriter::new();
    SessionFrame::Ack(FlowAck {
        flow: FlowId(40),
        received: 5_000_000,
        consumed: 4_995_000,
        limit: 6_000_000,
        finish: ReceiptState::NotYet,
    })
    .emit(&mut out);
    assert_eq!(out.len(), 13);
}
