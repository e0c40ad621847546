//! The near half by itself, told what no far half says in the world of the other tests.

use bytes::Bytes;
use vocab::{Segment, Time};

use crate::smb::nt1::frames::{Frame, Licence, VERSION};
use crate::smb::nt1::near::Near;
use crate::smb::nt1::testing::{framed, read};
use crate::{Accelerator, Input, Output};

fn tell(near: &mut Near, frame: &Frame) {
    near.handle(Time::ZERO, Input::Wan(frame.emit()));
}

/// What is sent to the client.
fn said(near: &mut Near) -> Vec<u8> {
    let outputs = std::iter::from_fn(|| near.poll_output());
    let bytes = outputs.filter_map(|output| match output {
        Output::ToLan(bytes) => Some(bytes),
        _ => None,
    });
    bytes.collect::<Vec<_>>().concat()
}

/// A block of file 5 comes ahead of its READ, which was asked before or behind a second open with that id.
fn said_with_a_second_open(is_asked_before: bool) -> Vec<u8> {
    let mut near = Near::new();
    tell(&mut near, &Frame::Engaged { version: VERSION });
    let licence = Frame::Licence(Licence {
        file: 5,
        user: 0,
        tree: 0,
        may_read: true,
        may_write: false,
        longest: 1_000,
    });
    tell(&mut near, &licence);
    let ask = |near: &mut Near| {
        let message = framed(&read(5, 0, 4));
        near.handle(Time::ZERO, Input::Lan(message.into()));
    };
    if is_asked_before {
        ask(&mut near);
    }
    tell(&mut near, &licence);
    if !is_asked_before {
        ask(&mut near);
    }
    tell(&mut near, &Frame::Heard { number: 1 });
    let ahead = Frame::Ahead {
        file: 5,
        position: 9,
        offset: 0,
        length: 4,
    };
    tell(&mut near, &ahead);
    let data = Segment::payload(Bytes::from_static(b"data"));
    near.handle(Time::ZERO, Input::Wan(data));
    said(&mut near)
}

#[test]
fn a_read_of_one_file_is_not_answered_by_another_with_its_id() {
    assert_eq!(said_with_a_second_open(true), b"");
    assert!(said_with_a_second_open(false).ends_with(b"data"));
}
