//! The halves of the passthrough accelerator, alone and back to back.

use bytes::Bytes;
use vocab::{Segment, Time};

use super::Passthrough;
use crate::{Accelerator, Half, Input, Output};

fn outputs(half: &mut Passthrough, input: Input) -> Vec<Output> {
    half.handle(Time::ZERO, input);
    std::iter::from_fn(|| half.poll_output()).collect()
}

#[test]
fn only_the_far_half_opens_the_server() {
    assert_eq!(outputs(&mut Passthrough::new(Half::Near), Input::Start), []);
    assert_eq!(
        outputs(&mut Passthrough::new(Half::Far), Input::Start),
        [Output::OpenServer]
    );
}

#[test]
fn bytes_arrive_as_they_left_and_each_direction_ends_apart() {
    let mut near = Passthrough::new(Half::Near);
    let mut far = Passthrough::new(Half::Far);
    let request = Bytes::from_static(b"GET / HTTP/1.0\r\n\r\n");
    let sent = outputs(&mut near, Input::Lan(request.clone()));
    let [Output::ToWan(segment)] = &sent[..] else {
        panic!("one segment, not {sent:?}");
    };
    assert_eq!(
        outputs(&mut far, Input::Wan(segment.clone())),
        [Output::ToLan(request)]
    );
    assert_eq!(outputs(&mut near, Input::LanFinished), [Output::FinishWan]);
    assert_eq!(outputs(&mut far, Input::WanFinished), [Output::FinishLan]);
    let answer = Segment::payload(Bytes::from_static(b"still open this way"));
    assert_eq!(
        outputs(&mut near, Input::Wan(answer.clone())),
        [Output::ToLan(answer.bytes)]
    );
}

#[test]
fn frames_are_never_shown_to_a_host() {
    let mut near = Passthrough::new(Half::Near);
    let frame = Segment::frame(Bytes::from_static(&[7, 1, 2]));
    assert_eq!(outputs(&mut near, Input::Wan(frame)), []);
}
