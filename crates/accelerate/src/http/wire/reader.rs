//! Follows one direction of a connection from message to message.

use std::collections::VecDeque;

use bytes::Bytes;

use super::chunked::{Chunked, Run, take_line};
use super::{Body, EMPTY_LINES_MAX, Fault, HEAD_MAX, RequestHead, ResponseHead, START_LINE_MAX};

/// Follows what a client sends.
pub(crate) type Requests = Reader<RequestHead>;
/// Follows what a server sends; [`Reader::expect`] says to what.
pub(crate) type Responses = Reader<ResponseHead>;

/// What decides whether a response has a body, beside its own head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// Its head says.
    Usual,
    /// It has none: the request was a HEAD.
    NoBody,
}

/// What a run of bytes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What<H> {
    /// Part of a head that is not whole yet. Its bytes are in [`Reader::held`].
    PartOfHead,
    /// The rest of a head; the head's own bytes are all of it. A message without a body ends here.
    Head(Box<H>, Body),
    /// Sizes of chunks, or trailers.
    Control,
    /// What the message carries.
    Payload,
    /// What no longer is HTTP/1.1.
    Opaque,
}

impl What<ResponseHead> {
    /// True for the head of a response that another one to the same request follows.
    pub(crate) fn is_interim(&self) -> bool {
        matches!(self, Self::Head(head, _) if head.is_interim())
    }
}

impl Expectation {
    /// Of the response to this request.
    pub(crate) fn of(head: &RequestHead) -> Self {
        match head.method() {
            b"HEAD" => Self::NoBody,
            _ => Self::Usual,
        }
    }
}

/// A run of bytes that was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step<H> {
    /// How many bytes, from the beginning of what was handed in.
    pub(crate) length: usize,
    /// What they are.
    pub(crate) what: What<H>,
    /// The message ends with them. Interim responses are messages of their own.
    pub(crate) is_end: bool,
}

/// What a reader of one kind of head knows about it.
pub(crate) trait Head: Sized {
    /// Empty lines that may precede it.
    const EMPTY_LINES: usize;
    /// Reads a whole head, and says what follows it.
    fn read(bytes: Bytes, expected: &mut VecDeque<Expectation>) -> Result<(Self, Body), Fault>;
    /// Whether these bytes, which end behind their first line at the latest, begin a head.
    fn check_begin(bytes: &[u8]) -> Result<(), Fault>;
    /// Whether a head may begin now.
    fn may_begin(expected: &VecDeque<Expectation>) -> bool;
}

impl Head for RequestHead {
    const EMPTY_LINES: usize = EMPTY_LINES_MAX;

    fn read(bytes: Bytes, _: &mut VecDeque<Expectation>) -> Result<(Self, Body), Fault> {
        let head = Self::parse(bytes)?;
        let body = Body::of_request(&head)?;
        Ok((head, body))
    }

    fn check_begin(bytes: &[u8]) -> Result<(), Fault> {
        Self::check_begin(bytes)
    }

    fn may_begin(_: &VecDeque<Expectation>) -> bool {
        true
    }
}

impl Head for ResponseHead {
    const EMPTY_LINES: usize = 0;

    fn read(bytes: Bytes, expected: &mut VecDeque<Expectation>) -> Result<(Self, Body), Fault> {
        let head = Self::parse(bytes)?;
        let expectation = *expected.front().ok_or(Fault::Unsolicited)?;
        let body = Body::of_response(&head, expectation)?;
        if !head.is_interim() {
            expected.pop_front();
        }
        Ok((head, body))
    }

    fn check_begin(bytes: &[u8]) -> Result<(), Fault> {
        Self::check_begin(bytes)
    }

    fn may_begin(expected: &VecDeque<Expectation>) -> bool {
        !expected.is_empty()
    }
}

/// Follows one direction of a connection.
#[derive(Debug)]
pub(crate) struct Reader<H> {
    state: State,
    held: Vec<u8>,
    /// The first line of what is held is whole.
    has_first_line: bool,
    expected: VecDeque<Expectation>,
    kind: std::marker::PhantomData<fn() -> H>,
}

#[derive(Debug)]
enum State {
    Head,
    Fixed(u64),
    Chunked(Chunked),
    UntilClose,
    Opaque,
}

impl<H: Head> Reader<H> {
    /// A reader at the beginning of a connection.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Head,
            held: Vec::new(),
            has_first_line: false,
            expected: VecDeque::new(),
            kind: std::marker::PhantomData,
        }
    }

    /// One more response is to come.
    pub(crate) fn expect(&mut self, expectation: Expectation) {
        self.expected.push_back(expectation);
    }

    /// The bytes of a head that is not whole yet.
    pub(crate) fn held(&self) -> &[u8] {
        &self.held
    }

    /// Takes the bytes of a head that is not whole yet out of it, to pass them as they are.
    pub(crate) fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Whether no message has begun and not ended.
    pub(crate) fn is_between_messages(&self) -> bool {
        matches!(self.state, State::Head) && self.held.is_empty()
    }

    /// Names a prefix of `input`, which is not empty.
    ///
    /// # Errors
    /// When the stream cannot be followed from here on. What was held stays in [`Self::held`] and
    /// nothing of `input` counts as taken.
    pub(crate) fn step(&mut self, input: &[u8]) -> Result<Step<H>, Fault> {
        match &mut self.state {
            State::Head => self.head(input),
            State::Fixed(left) => {
                let length =
                    usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= length as u64;
                let is_end = *left == 0;
                Ok(self.named(length, What::Payload, is_end))
            }
            State::Chunked(chunked) => match chunked.next(input)? {
                Run::Payload(length) => Ok(self.named(length, What::Payload, false)),
                Run::Control { length, is_last } => Ok(self.named(length, What::Control, is_last)),
            },
            State::UntilClose => Ok(self.named(input.len(), What::Payload, false)),
            State::Opaque => Ok(self.named(input.len(), What::Opaque, false)),
        }
    }

    fn named(&mut self, length: usize, what: What<H>, is_end: bool) -> Step<H> {
        if is_end {
            self.state = State::Head;
        }
        Step {
            length,
            what,
            is_end,
        }
    }

    fn head(&mut self, input: &[u8]) -> Result<Step<H>, Fault> {
        if !H::may_begin(&self.expected) {
            return Err(Fault::Unsolicited);
        }
        let mut length = 0;
        let before = self.held.len();
        let outcome = loop {
            if length == input.len() {
                break Ok(None);
            }
            let taken = take_line(&mut self.held, &input[length..], HEAD_MAX);
            if !self.has_first_line {
                // First, so that the fault does not depend on how much came together.
                if let Err(fault) = H::check_begin(&self.held) {
                    break Err(fault);
                }
                if !self.start_line_fits() {
                    break Err(Fault::Limit);
                }
            }
            match taken {
                Ok((more, is_whole)) => {
                    length += more;
                    self.has_first_line |= is_whole && self.held.len() > 2 * self.empty_lines();
                    if is_whole && self.is_whole_head() {
                        let bytes = Bytes::copy_from_slice(&self.held);
                        break H::read(bytes, &mut self.expected).map(Some);
                    }
                }
                Err(fault) => break Err(fault),
            }
        };
        match outcome {
            Ok(None) => Ok(Step {
                length,
                what: What::PartOfHead,
                is_end: false,
            }),
            Ok(Some((head, body))) => {
                self.held.clear();
                self.has_first_line = false;
                self.state = match body {
                    Body::Empty => State::Head,
                    Body::Fixed(length) => State::Fixed(length),
                    Body::Chunked => State::Chunked(Chunked::default()),
                    Body::UntilClose => State::UntilClose,
                    Body::Opaque => State::Opaque,
                };
                let is_end = body == Body::Empty;
                Ok(Step {
                    length,
                    what: What::Head(Box::new(head), body),
                    is_end,
                })
            }
            Err(fault) => {
                self.held.truncate(before);
                Err(fault)
            }
        }
    }

    /// Empty lines before the first that is not.
    fn empty_lines(&self) -> usize {
        let lines = self.held.chunks(2).take(H::EMPTY_LINES);
        lines.take_while(|line| line == b"\r\n").count()
    }

    /// Whether `held`, which ends in CRLF, ends in an empty line that is no leading one.
    fn is_whole_head(&self) -> bool {
        let rest = &self.held[2 * self.empty_lines()..];
        rest == b"\r\n" || rest.ends_with(b"\r\n\r\n")
    }

    fn start_line_fits(&self) -> bool {
        self.held.len() <= START_LINE_MAX + 2 * H::EMPTY_LINES + 2
    }
}
