//! Entries of `tunnel`: frames, and a session with everything it remembers.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tunnel::wire::{
    AnswerFrame, DataFrame, FinishFrame, FlowAck, GoAway, HelloFrame, MessageAck,
    MessageContinuation, MessageFrame, OpenFrame, PingFrame, PongFrame, ReceiptState, ResetFrame,
    ResumeContinuation, ResumeFrame, ResumePosition, SessionFrame, TotalCredit, split_frame,
};
use tunnel::{ConnectFailure, OpenAnswer, OpenRequest, ResetReason};
use vocab::{ByteWriter, FlowId, NodeId};

use crate::seed::{CorpusSeed, seed};

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
    let Ok(frame) = SessionFrame::parse(body) else {
        return;
    };
    let mut writer = ByteWriter::new();
    frame.emit(&mut writer);
    let mut written = BytesMut::from(&writer.finish()[..]);
    let again = split_frame(&mut written)
        .expect("what is written is within the limits")
        .expect("what is written is whole");
    assert!(written.is_empty(), "a frame was written in two");
    assert_eq!(
        SessionFrame::parse(&again).expect("what is written can be read"),
        frame
    );
}

/// Good inputs for [`frame`]: one of each kind, and all of them behind one another.
pub(crate) fn frame_seeds() -> Vec<CorpusSeed> {
    let flow = FlowId(6);
    let open = OpenRequest {
        client: SocketAddr::from(([198, 18, 1, 2], 40_000)),
        server: SocketAddr::from(([0x2001, 2, 0, 2, 0, 0, 0, 1], 445)),
        accelerator: 0,
        keep_client_address: true,
        may_store: false,
        dscp: 10,
    };
    let hello = HelloFrame {
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
    let ack = FlowAck {
        flow,
        received: 70_000,
        consumed: 65_536,
        limit: 1 << 20,
        finish: ReceiptState::NotYet,
    };
    let resume = ResumeFrame {
        series: ResumeContinuation::Last,
        flows_seen_below: 9,
        next_message: 3,
        positions: vec![
            ResumePosition {
                ack,
                answer: ReceiptState::Seen,
            },
            ResumePosition {
                ack: FlowAck {
                    flow: FlowId(8),
                    finish: ReceiptState::Seen,
                    ..ack
                },
                answer: ReceiptState::NotYet,
            },
        ],
    };
    let bytes = Bytes::from_static(b"some bytes of a flow");
    let frames = [
        ("hello", SessionFrame::Hello(hello)),
        ("resume", SessionFrame::Resume(resume)),
        ("ping", SessionFrame::Ping(PingFrame { stamp_us: 7 })),
        ("pong", SessionFrame::Pong(PongFrame { stamp_us: 7 })),
        ("go-away", SessionFrame::GoAway(GoAway)),
        ("open", SessionFrame::Open(OpenFrame { flow, open })),
        (
            "answer",
            SessionFrame::Answer(AnswerFrame {
                flow,
                answer: OpenAnswer::Failed(ConnectFailure::Refused),
            }),
        ),
        (
            "data",
            SessionFrame::Data(DataFrame {
                flow,
                offset: 65_536,
                bytes: bytes.clone(),
            }),
        ),
        (
            "finish",
            SessionFrame::Finish(FinishFrame {
                flow,
                final_offset: 65_556,
            }),
        ),
        (
            "reset",
            SessionFrame::Reset(ResetFrame {
                flow,
                reason: ResetReason::HostReset,
            }),
        ),
        ("ack", SessionFrame::Ack(ack)),
        (
            "total-credit",
            SessionFrame::TotalCredit(TotalCredit { window: 64 << 20 }),
        ),
        (
            "message",
            SessionFrame::Message(MessageFrame {
                flow,
                kind: 1,
                piece: MessageContinuation::Last,
                sequence: 2,
                bytes,
            }),
        ),
        (
            "message-ack",
            SessionFrame::MessageAck(MessageAck { next: 3 }),
        ),
    ];
    let mut seeds = Vec::new();
    let mut all = ByteWriter::new();
    for (name, frame) in frames {
        let mut one = ByteWriter::new();
        frame.emit(&mut one);
        frame.emit(&mut all);
        seeds.push(seed(name, one.finish()));
    }
    seeds.push(seed("all", all.finish()));
    seeds
}
