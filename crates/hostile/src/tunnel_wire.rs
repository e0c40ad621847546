//! Entries of `tunnel`: frames, and a session with everything it remembers.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tunnel::wire::{
    Ack, AnswerFrame, Data, Finish, Frame, GoAway, Hello, Message, MessageAck, OpenFrame, Piece,
    Ping, Pong, Position, Reset, Resume, Seen, Series, TotalCredit, split_frame,
};
use tunnel::{Answer, ConnectFailure, Open, ResetReason};
use vocab::{FlowId, NodeId, Writer};

use crate::seed::{Seed, seed};

/// Bytes as a link delivers them: cut into frames, each read, written and read again equal.
pub(crate) fn frame(bytes: &[u8]) {
    let mut incoming = BytesMut::from(bytes);
    loop {
        let before = incoming.len();
        let Ok(Some(body)) = split_frame(&mut incoming) else {
            break;
        };
        assert!(
            incoming.len() + body.len() < before,
            "a frame took no bytes"
        );
        reads_back(&body);
    }
    // A frame that its length does not describe, too.
    reads_back(&Bytes::copy_from_slice(bytes));
}

fn reads_back(body: &Bytes) {
    let Ok(frame) = Frame::parse(body) else {
        return;
    };
    let mut writer = Writer::new();
    frame.emit(&mut writer);
    let mut written = BytesMut::from(&writer.finish()[..]);
    let again = split_frame(&mut written)
        .expect("what is written is within the limits")
        .expect("what is written is whole");
    assert!(written.is_empty(), "a frame was written in two");
    assert_eq!(
        Frame::parse(&again).expect("what is written can be read"),
        frame
    );
}

/// Good inputs for [`frame`]: one of each kind, and all of them behind one another.
pub(crate) fn frame_seeds() -> Vec<Seed> {
    let flow = FlowId(6);
    let open = Open {
        client: SocketAddr::from(([198, 18, 1, 2], 40_000)),
        server: SocketAddr::from(([0x2001, 2, 0, 2, 0, 0, 0, 1], 445)),
        accelerator: 0,
        keep_client_address: true,
        may_store: false,
        dscp: 10,
    };
    let hello = Hello {
        version: 1,
        least_version: 1,
        sender: NodeId([1; 32]),
        receiver: NodeId([2; 32]),
        incarnation: [3; 16],
        known_incarnation: [0; 16],
        flow_window: 1 << 20,
        total_window: 64 << 20,
        blob: Bytes::from_static(b"generation"),
    };
    let ack = Ack {
        flow,
        received: 70_000,
        consumed: 65_536,
        limit: 1 << 20,
        finish: Seen::NotYet,
    };
    let resume = Resume {
        series: Series::Last,
        flows_seen_below: 9,
        next_message: 3,
        positions: vec![
            Position {
                ack,
                answer: Seen::Seen,
            },
            Position {
                ack: Ack {
                    flow: FlowId(8),
                    finish: Seen::Seen,
                    ..ack
                },
                answer: Seen::NotYet,
            },
        ],
    };
    let bytes = Bytes::from_static(b"some bytes of a flow");
    let frames = [
        ("hello", Frame::Hello(hello)),
        ("resume", Frame::Resume(resume)),
        ("ping", Frame::Ping(Ping { stamp_us: 7 })),
        ("pong", Frame::Pong(Pong { stamp_us: 7 })),
        ("go-away", Frame::GoAway(GoAway)),
        ("open", Frame::Open(OpenFrame { flow, open })),
        (
            "answer",
            Frame::Answer(AnswerFrame {
                flow,
                answer: Answer::Failed(ConnectFailure::Refused),
            }),
        ),
        (
            "data",
            Frame::Data(Data {
                flow,
                offset: 65_536,
                bytes: bytes.clone(),
            }),
        ),
        (
            "finish",
            Frame::Finish(Finish {
                flow,
                final_offset: 65_556,
            }),
        ),
        (
            "reset",
            Frame::Reset(Reset {
                flow,
                reason: ResetReason::HostReset,
            }),
        ),
        ("ack", Frame::Ack(ack)),
        (
            "total-credit",
            Frame::TotalCredit(TotalCredit { window: 64 << 20 }),
        ),
        (
            "message",
            Frame::Message(Message {
                flow,
                kind: 1,
                piece: Piece::Last,
                sequence: 2,
                bytes,
            }),
        ),
        ("message-ack", Frame::MessageAck(MessageAck { next: 3 })),
    ];
    let mut seeds = Vec::new();
    let mut all = Writer::new();
    for (name, frame) in frames {
        let mut one = Writer::new();
        frame.emit(&mut one);
        frame.emit(&mut all);
        seeds.push(seed(name, one.finish()));
    }
    seeds.push(seed("all", all.finish()));
    seeds
}
