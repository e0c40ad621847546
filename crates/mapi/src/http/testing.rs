//! For fuzzing: both halves between bytes of a client and bytes of a server.

use std::time::Duration;

use accelerate::shared::SharedHandle;
use accelerate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput};
use bytes::Bytes;
use vocab::{FlowSegment, Time};

use super::{HttpMailFarHalf, HttpMailNearHalf, SequenceTable};
use crate::emsmdb::execute::HttpStub;
use crate::emsmdb::execute::{answer_body, split_stub};
use crate::frames::HalfFrame;
use crate::rop::tactics::{SessionPlace, SessionTable};

/// Outputs after one input past which the halves are taken to be in a circle.
const MOST_OUTPUTS: usize = 10_000;
/// The client's first request, after which the far half offers itself.
const FIRST: &[u8] = b"GET / HTTP/1.1\r\nHost: mail\r\n\r\n";
const FIRST_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

const CLIENT: u8 = 0;
const SERVER: u8 = 1;

/// The halves of one flow.
struct FuzzedFlow {
    near: HttpMailNearHalf,
    far: HttpMailFarHalf,
    now: Time,
}

impl FuzzedFlow {
    fn input(&mut self, step: u8, piece: Bytes) {
        let lan = |piece| AcceleratorInput::Lan(piece);
        let wan = |piece| AcceleratorInput::Wan(FlowSegment::frame(piece));
        match step % 8 {
            CLIENT if !piece.is_empty() => self.near.handle(self.now, lan(piece)),
            SERVER if !piece.is_empty() => self.far.handle(self.now, lan(piece)),
            2 => self.near.handle(self.now, wan(piece)),
            3 => self.far.handle(self.now, wan(piece)),
            4 => self.near.handle(self.now, AcceleratorInput::LanFinished),
            5 => self.far.handle(self.now, AcceleratorInput::LanFinished),
            6 => self.far.handle(self.now, AcceleratorInput::Woken),
            7 => {
                self.now += Duration::from_secs(20);
                self.near.handle(self.now, AcceleratorInput::Timeout);
            }
            _ => {}
        }
    }

    /// Handles the next output; false if there is none, or the flow has ended.
    fn drain(&mut self) -> bool {
        if let Some(output) = self.near.poll_output() {
            match output {
                AcceleratorOutput::ToWan(segment) => {
                    let input = AcceleratorInput::Wan(segment);
                    self.far.handle(self.now, input);
                }
                AcceleratorOutput::FinishWan => {
                    self.far.handle(self.now, AcceleratorInput::WanFinished);
                }
                AcceleratorOutput::LettingGo(_) => return false,
                _ => {}
            }
            return true;
        }
        match self.far.poll_output() {
            Some(AcceleratorOutput::ToWan(segment)) => {
                let input = AcceleratorInput::Wan(segment);
                self.near.handle(self.now, input);
            }
            Some(AcceleratorOutput::FinishWan) => {
                self.near.handle(self.now, AcceleratorInput::WanFinished);
            }
            None | Some(AcceleratorOutput::LettingGo(_)) => return false,
            Some(_) => {}
        }
        true
    }
}

/// Bytes as steps: bytes of the client and of the server, frames, ends and pauses.
///
/// # Panics
/// When the halves do not come to rest.
pub fn http_halves(bytes: &[u8]) {
    let (client, server) = ([198, 18, 1, 2].into(), [198, 18, 2, 2].into());
    let sessions = SharedHandle::new(SessionTable::default());
    let sequences = SharedHandle::new(SequenceTable::default());
    let place = SessionPlace::new(sessions, 0, client, server);
    let mut flow = FuzzedFlow {
        near: HttpMailNearHalf::new(true),
        far: HttpMailFarHalf::new(true, server, 0, place, sequences),
        now: Time::ZERO,
    };
    flow.near.handle(Time::ZERO, AcceleratorInput::Start);
    flow.far.handle(Time::ZERO, AcceleratorInput::Start);
    let mut rest = bytes;
    while let Some((head, more)) = rest.split_first_chunk::<3>() {
        let [step, high, low] = *head;
        let length = usize::from(u16::from_be_bytes([high, low])).min(more.len());
        let (piece, behind) = more.split_at(length);
        rest = behind;
        flow.input(step, Bytes::copy_from_slice(piece));
        let outputs = (0..MOST_OUTPUTS).take_while(|_| flow.drain()).count();
        assert!(outputs < MOST_OUTPUTS, "the halves do not come to rest");
    }
}

/// Good inputs for [`http_halves`]: a name, and the steps.
///
/// # Panics
/// When the sample of Execute has another form.
#[must_use]
pub fn http_samples() -> Vec<(&'static str, Vec<u8>)> {
    let sample = crate::rop::testing::samples()
        .into_iter()
        .next_back()
        .expect("there are samples");
    let (_, request, response) = sample;
    let Ok(HttpStub::Execute { body, .. }) = split_stub(&request) else {
        panic!("the last sample is Execute");
    };
    let answer = answer_body(&response);
    let begin = [steps(CLIENT, FIRST), steps(SERVER, FIRST_ANSWER)].concat();
    let execute = [
        steps(CLIENT, &http_request("Execute", 1, &body)),
        steps(
            SERVER,
            &http_answer(1, b"PROCESSING\r\nDONE\r\n\r\n", &answer),
        ),
    ]
    .concat();
    let wait = [
        steps(CLIENT, &http_request("NotificationWait", 2, &[0; 8])),
        steps(
            SERVER,
            &http_answer(2, b"PROCESSING\r\nPENDING\r\nDONE\r\n\r\n", &[0; 16]),
        ),
    ]
    .concat();
    let slow = [
        steps(CLIENT, &http_request("Execute", 3, &body)),
        steps(
            SERVER,
            &http_answer(3, b"PROCESSING\r\nPENDING\r\nDONE\r\n\r\n", &answer),
        ),
    ]
    .concat();
    let frames = [
        HalfFrame::HttpReady,
        HalfFrame::HttpBegin,
        HalfFrame::HttpHead {
            context: crate::emsmdb::ContextHandle([7; 20]),
            sequence: Bytes::from_static(b"1"),
            template: Bytes::from_static(b"POST / HTTP/1.1\r\n\r\n"),
        },
        HalfFrame::HttpAnswer {
            head: Bytes::from_static(FIRST_ANSWER),
            meta: Bytes::new(),
        },
        HalfFrame::Blind,
    ];
    let frames = frames.iter().flat_map(|frame| {
        let frame = frame.emit();
        [steps(2, &frame), steps(3, &frame)].concat()
    });
    let frames: Vec<u8> = frames.collect();
    vec![
        ("execute", [&begin[..], &execute, &execute].concat()),
        ("wait", [&begin[..], &execute, &wait, &execute].concat()),
        ("slow", [&begin[..], &slow, &execute].concat()),
        (
            "pause",
            [&begin[..], &execute, &steps(7, &[]), &execute].concat(),
        ),
        ("end", [&begin[..], &execute, &steps(4, &[])].concat()),
        ("frames", [&begin[..], &frames].concat()),
    ]
}

fn steps(step: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("good inputs are small");
    [&[step][..], &length.to_be_bytes(), bytes].concat()
}

fn http_request(kind: &str, number: u32, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /mapi/emsmdb/ HTTP/1.1\r\nHost: mail\r\nContent-Type: application/mapi-http\r\n\
         X-RequestType: {kind}\r\nX-RequestId: {{01234567-89AB-CDEF-0123-456789ABCDEF}}:{number}\r\n\
         Cookie: MapiContext=a; MapiSequence={number}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn http_answer(number: u32, meta: &[u8], body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/mapi-http\r\n\
         X-RequestType: Execute\r\nX-RequestId: {{01234567-89AB-CDEF-0123-456789ABCDEF}}:{number}\r\n\
         X-ResponseCode: 0\r\nSet-Cookie: MapiSequence={}; path=/\r\n\r\n{:x}\r\n",
        number + 1,
        meta.len() + body.len()
    );
    [head.as_bytes(), meta, body, b"\r\n0\r\n\r\n"].concat()
}
