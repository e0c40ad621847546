//! The near half by itself, with frames that no far half sends in the world of the other tests.

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use crate::smb::nt1::frames::{Smb1HalfFrame, Smb1OpenLicence, VERSION};
use crate::smb::nt1::near::Smb1NearHalf;
use crate::smb::nt1::testing::{framed, read, write};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput};

fn tell(near: &mut Smb1NearHalf, frame: &Smb1HalfFrame) {
    near.handle(Time::ZERO, AcceleratorInput::Wan(frame.emit()));
}

/// The bytes for the client.
fn said(near: &mut Smb1NearHalf) -> Vec<u8> {
    let outputs = std::iter::from_fn(|| near.poll_output());
    let bytes = outputs.filter_map(|output| match output {
        AcceleratorOutput::ToLan(bytes) => Some(bytes),
        _ => None,
    });
    bytes.collect::<Vec<_>>().concat()
}

/// Sends a block of file 5 ahead of its READ, which was sent before or behind a second open with
/// that id.
fn said_with_a_second_open(is_asked_before: bool) -> Vec<u8> {
    let mut near = Smb1NearHalf::new();
    tell(&mut near, &Smb1HalfFrame::Engaged { version: VERSION });
    let licence = Smb1HalfFrame::Licence(Smb1OpenLicence {
        file: 5,
        user: 0,
        tree: 0,
        may_read: true,
        may_write: false,
        may_close: false,
        longest: 1_000,
    });
    tell(&mut near, &licence);
    let ask = |near: &mut Smb1NearHalf| {
        let message = framed(&read(5, 0, 4));
        near.handle(Time::ZERO, AcceleratorInput::Lan(message.into()));
    };
    if is_asked_before {
        ask(&mut near);
    }
    tell(&mut near, &licence);
    if !is_asked_before {
        ask(&mut near);
    }
    tell(&mut near, &Smb1HalfFrame::Heard { number: 1 });
    let ahead = Smb1HalfFrame::Ahead {
        file: 5,
        position: 9,
        offset: 0,
        length: 4,
    };
    tell(&mut near, &ahead);
    let data = FlowSegment::payload(Bytes::from_static(b"data"));
    near.handle(Time::ZERO, AcceleratorInput::Wan(data));
    said(&mut near)
}

#[test]
fn reused_file_id_is_not_answered_by_another() {
    assert_eq!(said_with_a_second_open(true), b"");
    assert!(said_with_a_second_open(false).ends_with(b"data"));
}

/// The outputs to both sides: bytes for the client, and frames for the far half.
fn heard(near: &mut Smb1NearHalf) -> (Vec<u8>, Vec<Smb1HalfFrame>) {
    let (mut said, mut frames) = (Vec::new(), Vec::new());
    while let Some(output) = near.poll_output() {
        match output {
            AcceleratorOutput::ToLan(bytes) => said.extend(bytes),
            AcceleratorOutput::ToWan(segment) if segment.kind == SegmentKind::Frame => {
                let frame = Smb1HalfFrame::parse(&segment.bytes).expect("it is whole");
                frames.extend(frame);
            }
            AcceleratorOutput::LettingGo(letting_go) => panic!("{letting_go:?}"),
            _ => {}
        }
    }
    (said, frames)
}

/// Its far half counts on all of its READs, and does not state their longest length.
#[test]
fn first_version_far_half_is_asked_again() {
    let mut near = Smb1NearHalf::new();
    tell(&mut near, &Smb1HalfFrame::Engaged { version: 1 });
    let licence = Smb1HalfFrame::Licence(Smb1OpenLicence {
        file: 5,
        user: 0,
        tree: 0,
        may_read: true,
        may_write: true,
        may_close: false,
        longest: 0,
    });
    let licence = licence.emit().bytes;
    let first = licence.slice(..licence.len() - 4);
    near.handle(Time::ZERO, AcceleratorInput::Wan(FlowSegment::frame(first)));
    let asked = read(5, 0, 4);
    near.handle(Time::ZERO, AcceleratorInput::Lan(framed(&asked).into()));
    tell(&mut near, &Smb1HalfFrame::Heard { number: 1 });
    let (position, offset) = (2, 0);
    let ahead = Smb1HalfFrame::Ahead {
        file: 5,
        position,
        offset,
        length: 4,
    };
    tell(&mut near, &ahead);
    let data = FlowSegment::payload(Bytes::from_static(b"data"));
    near.handle(Time::ZERO, AcceleratorInput::Wan(data));
    tell(&mut near, &Smb1HalfFrame::Settled { position });
    let (said, frames) = heard(&mut near);
    assert_eq!(said, b"");
    let message = asked.into();
    assert_eq!(
        frames.last(),
        Some(&Smb1HalfFrame::Again { position, message })
    );
    // WRITEs are what they were.
    let written = framed(&write(5, 0, b"data").0);
    near.handle(Time::ZERO, AcceleratorInput::Lan(written.into()));
    assert_ne!(heard(&mut near).0, b"");
}
