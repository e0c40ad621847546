//! The halves of the passthrough accelerator, alone and back to back.

use bytes::Bytes;
use vocab::{FlowSegment, Time};

use super::Passthrough;
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, WanEnd};

fn outputs(half: &mut Passthrough, input: AcceleratorInput) -> Vec<AcceleratorOutput> {
    half.handle(Time::ZERO, input);
    std::iter::from_fn(|| half.poll_output()).collect()
}

#[test]
fn only_the_far_half_opens_the_server() {
    assert_eq!(
        outputs(&mut Passthrough::new(WanEnd::Near), AcceleratorInput::Start),
        []
    );
    assert_eq!(
        outputs(&mut Passthrough::new(WanEnd::Far), AcceleratorInput::Start),
        [AcceleratorOutput::OpenServer]
    );
}

#[test]
fn bytes_are_unchanged_and_directions_end_separately() {
    let mut near = Passthrough::new(WanEnd::Near);
    let mut far = Passthrough::new(WanEnd::Far);
    let request = Bytes::from_static(b"GET / HTTP/1.0\r\n\r\n");
    let sent = outputs(&mut near, AcceleratorInput::Lan(request.clone()));
    let [AcceleratorOutput::ToWan(segment)] = &sent[..] else {
        panic!("one segment, not {sent:?}");
    };
    assert_eq!(
        outputs(&mut far, AcceleratorInput::Wan(segment.clone())),
        [AcceleratorOutput::ToLan(request)]
    );
    assert_eq!(
        outputs(&mut near, AcceleratorInput::LanFinished),
        [AcceleratorOutput::FinishWan]
    );
    assert_eq!(
        outputs(&mut far, AcceleratorInput::WanFinished),
        [AcceleratorOutput::FinishLan]
    );
    let answer = FlowSegment::payload(Bytes::from_static(b"still open this way"));
    assert_eq!(
        outputs(&mut near, AcceleratorInput::Wan(answer.clone())),
        [AcceleratorOutput::ToLan(answer.bytes)]
    );
}

#[test]
fn frames_are_never_shown_to_a_host() {
    let mut near = Passthrough::new(WanEnd::Near);
    let frame = FlowSegment::frame(Bytes::from_static(&[7, 1, 2]));
    assert_eq!(outputs(&mut near, AcceleratorInput::Wan(frame)), []);
}
