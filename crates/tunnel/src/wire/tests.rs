//! Every frame reads back as it was written, and noise is refused without a panic.

use proptest::prelude::*;
use vocab::{FlowId, NodeId};

use super::*;
use crate::packet::{ConnectionId, Suite};
use crate::{Answer, ConnectFailure, Open, ResetReason};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, 0..1_u64 << 32, 0..1_u64 << 60]
}

fn payload() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 1..300).prop_map(Bytes::from)
}

fn seen() -> impl Strategy<Value = Seen> {
    prop_oneof![Just(Seen::NotYet), Just(Seen::Seen)]
}

fn ack() -> impl Strategy<Value = Ack> {
    (number(), number(), number(), number(), seen()).prop_map(
        |(flow, consumed, unconsumed, credit, finish)| Ack {
            flow: FlowId(flow),
            received: consumed + unconsumed,
            consumed,
            limit: consumed + unconsumed + credit,
            finish,
        },
    )
}

fn open() -> impl Strategy<Value = Open> {
    (
        any::<[u8; 16]>(),
        any::<[u8; 4]>(),
        any::<[u16; 2]>(),
        any::<(u8, u8, bool, bool)>(),
    )
        .prop_map(
            |(six, four, [client, server], (accelerator, dscp, keep_client_address, may_store))| {
                Open {
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

fn hello() -> impl Strategy<Value = Hello> {
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
            |(versions, ids, lives, flow_window, total_window, blob)| Hello {
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

fn resume() -> impl Strategy<Value = Resume> {
    let positions = prop::collection::vec((ack(), seen()), 0..20);
    let series = prop_oneof![Just(Series::More), Just(Series::Last)];
    (series, number(), number(), positions).prop_map(
        |(series, flows_seen_below, next_message, positions)| Resume {
            series,
            flows_seen_below,
            next_message,
            positions: positions
                .into_iter()
                .map(|(ack, answer)| Position { ack, answer })
                .collect(),
        },
    )
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Connected),
        Just(Answer::Failed(ConnectFailure::Refused)),
        Just(Answer::Failed(ConnectFailure::TimedOut)),
        Just(Answer::Failed(ConnectFailure::Unreachable)),
        Just(Answer::Failed(ConnectFailure::NotPermitted)),
        Just(Answer::Failed(ConnectFailure::Exhausted)),
        Just(Answer::Failed(ConnectFailure::Filtered)),
        Just(Answer::Failed(ConnectFailure::AnswersElsewhere)),
        Just(Answer::Failed(ConnectFailure::Other)),
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
        (10..=255_u8).prop_map(ResetReason::Unknown),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let piece = prop_oneof![Just(Piece::Part), Just(Piece::Last)];
    (number(), any::<u8>(), piece, number(), payload()).prop_map(
        |(flow, kind, piece, sequence, bytes)| Message {
            flow: FlowId(flow),
            kind,
            piece,
            sequence,
            bytes,
        },
    )
}

fn datagram_offer() -> impl Strategy<Value = DatagramOffer> {
    let suite = prop_oneof![Just(Suite::Aes256Gcm), Just(Suite::ChaCha20Poly1305)];
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

fn frame() -> impl Strategy<Value = Frame> {
    let flow = || number().prop_map(FlowId);
    prop_oneof![
        hello().prop_map(Frame::Hello),
        resume().prop_map(Frame::Resume),
        any::<u32>().prop_map(|stamp_us| Frame::Ping(Ping { stamp_us })),
        any::<u32>().prop_map(|stamp_us| Frame::Pong(Pong { stamp_us })),
        Just(Frame::GoAway(GoAway)),
        datagram_offer().prop_map(Frame::DatagramOffer),
        (flow(), open()).prop_map(|(flow, open)| Frame::Open(OpenFrame { flow, open })),
        (flow(), answer()).prop_map(|(flow, answer)| Frame::Answer(AnswerFrame { flow, answer })),
        (flow(), number(), payload()).prop_map(|(flow, offset, bytes)| Frame::Data(Data {
            flow,
            offset,
            bytes
        })),
        (flow(), number())
            .prop_map(|(flow, final_offset)| Frame::Finish(Finish { flow, final_offset })),
        (flow(), reason()).prop_map(|(flow, reason)| Frame::Reset(Reset { flow, reason })),
        ack().prop_map(Frame::Ack),
        number().prop_map(|window| Frame::TotalCredit(TotalCredit { window })),
        message().prop_map(Frame::Message),
        number().prop_map(|next| Frame::MessageAck(MessageAck { next })),
    ]
}

proptest! {
    #[test]
    fn frames_read_back_as_written_however_the_link_cuts_them(
        frames in prop::collection::vec(frame(), 1..8),
        cut in 1..200_usize,
    ) {
        let mut out = Writer::new();
        for frame in &frames {
            frame.emit(&mut out);
        }
        let mut incoming = BytesMut::new();
        let mut read = Vec::new();
        for piece in out.finish().chunks(cut) {
            incoming.extend_from_slice(piece);
            while let Some(frame) = split_frame(&mut incoming).unwrap() {
                read.push(Frame::parse(&frame).unwrap());
            }
        }
        prop_assert!(incoming.is_empty());
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn noise_is_refused_and_what_is_taken_can_be_written(
        kind in 0..0x1a_u8,
        mut noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        noise.insert(0, kind);
        if let Ok(frame) = Frame::parse(&noise.into()) {
            let mut out = Writer::new();
            frame.emit(&mut out);
            let mut written = BytesMut::from(&out.finish()[..]);
            let body = split_frame(&mut written).unwrap().unwrap();
            prop_assert_eq!(Frame::parse(&body).unwrap(), frame);
        }
    }
}

#[test]
fn a_frame_of_no_length_or_too_much_is_refused() {
    assert!(split_frame(&mut BytesMut::from(&[0][..])).is_err());
    assert!(split_frame(&mut BytesMut::from(&[0x80, 1, 0, 1][..])).is_err());
    assert_eq!(split_frame(&mut BytesMut::from(&[0x80, 1][..])), Ok(None));
}

#[test]
fn an_acknowledgement_is_short() {
    let mut out = Writer::new();
    Frame::Ack(Ack {
        flow: FlowId(40),
        received: 5_000_000,
        consumed: 4_995_000,
        limit: 6_000_000,
        finish: Seen::NotYet,
    })
    .emit(&mut out);
    assert_eq!(out.len(), 13);
}
