//! Follows one direction of a connection from message to message.

use std::collections::VecDeque;

use bytes::Bytes;

use super::chunked::{ChunkedReader, ChunkedRun, take_line};
use super::{
    BodyFraming, EMPTY_LINES_MAX, FramingFault, HEAD_MAX, RequestHead, ResponseHead, START_LINE_MAX,
};

/// Follows what a client sends.
pub type Requests = MessageReader<RequestHead>;
/// Follows what a server sends; [`MessageReader::expect`] says to what.
pub type Responses = MessageReader<ResponseHead>;

/// The request's part in whether a response has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyExpectation {
    /// Its head says.
    Usual,
    /// It has none: the request was a HEAD.
    NoBody,
}

/// Kind of a run of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePart<H> {
    /// Part of a head that is not whole yet. Its bytes are in [`MessageReader::held`].
    PartOfHead,
    /// The rest of a head; the head's own bytes are all of it. A message without a body ends here.
    Head(Box<H>, BodyFraming),
    /// Sizes of chunks, or trailers.
    Control,
    /// Content of the message.
    Payload,
    /// Bytes that are no longer HTTP/1.1.
    Opaque,
}

impl MessagePart<ResponseHead> {
    /// True for the head of a response that another one to the same request follows.
    pub fn is_interim(&self) -> bool {
        matches!(self, Self::Head(head, _) if head.is_interim())
    }
}

impl BodyExpectation {
    /// Returns the expectation for the response to this request.
    pub fn of(head: &RequestHead) -> Self {
        match head.method() {
            b"HEAD" => Self::NoBody,
            _ => Self::Usual,
        }
    }
}

/// A run of bytes that was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderStep<H> {
    /// Number of bytes, from the beginning of what was handed in.
    pub length: usize,
    /// Their kind.
    pub what: MessagePart<H>,
    /// The message ends with them. Interim responses are messages of their own.
    pub is_end: bool,
}

/// A kind of head: its beginning, its parser, and the body that follows it.
pub trait MessageHead: Sized {
    /// Empty lines that may precede it.
    const EMPTY_LINES: usize;
    /// Reads a whole head, and says what follows it.
    fn read(
        bytes: Bytes,
        expected: &mut VecDeque<BodyExpectation>,
    ) -> Result<(Self, BodyFraming), FramingFault>;
    /// Fails if these bytes, which end behind their first line at the latest, do not begin a head.
    fn check_begin(bytes: &[u8]) -> Result<(), FramingFault>;
    /// True if a head may begin now.
    fn may_begin(expected: &VecDeque<BodyExpectation>) -> bool;
}

impl MessageHead for RequestHead {
    const EMPTY_LINES: usize = EMPTY_LINES_MAX;

    fn read(
        bytes: Bytes,
        _: &mut VecDeque<BodyExpectation>,
    ) -> Result<(Self, BodyFraming), FramingFault> {
        let head = Self::parse(bytes)?;
        let body = BodyFraming::of_request(&head)?;
        Ok((head, body))
    }

    fn check_begin(bytes: &[u8]) -> Result<(), FramingFault> {
        Self::check_begin(bytes)
    }

    fn may_begin(_: &VecDeque<BodyExpectation>) -> bool {
        true
    }
}

impl MessageHead for ResponseHead {
    const EMPTY_LINES: usize = 0;

    fn read(
        bytes: Bytes,
        expected: &mut VecDeque<BodyExpectation>,
    ) -> Result<(Self, BodyFraming), FramingFault> {
        let head = Self::parse(bytes)?;
        let expectation = *expected.front().ok_or(FramingFault::Unsolicited)?;
        let body = BodyFraming::of_response(&head, expectation)?;
        if !head.is_interim() {
            expected.pop_front();
        }
        Ok((head, body))
    }

    fn check_begin(bytes: &[u8]) -> Result<(), FramingFault> {
        Self::check_begin(bytes)
    }

    fn may_begin(expected: &VecDeque<BodyExpectation>) -> bool {
        !expected.is_empty()
    }
}

/// Follows one direction of a connection.
#[derive(Debug)]
pub struct MessageReader<H> {
    state: ReaderState,
    held: Vec<u8>,
    /// The first line of what is held is whole.
    has_first_line: bool,
    expected: VecDeque<BodyExpectation>,
    kind: std::marker::PhantomData<fn() -> H>,
}

#[derive(Debug)]
enum ReaderState {
    Head,
    Fixed(u64),
    Chunked(ChunkedReader),
    UntilClose,
    Opaque,
}

impl<H: MessageHead> Default for MessageReader<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: MessageHead> MessageReader<H> {
    /// A reader at the beginning of a connection.
    pub fn new() -> Self {
        Self {
            state: ReaderState::Head,
            held: Vec::new(),
            has_first_line: false,
            expected: VecDeque::new(),
            kind: std::marker::PhantomData,
        }
    }

    /// One more response is to come.
    pub fn expect(&mut self, expectation: BodyExpectation) {
        self.expected.push_back(expectation);
    }

    /// The bytes of a head that is not whole yet.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Takes the bytes of a head that is not whole yet out of it, to pass them as they are.
    pub fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// True if a message has begun, or one is to come.
    pub fn expects_more(&self) -> bool {
        !self.is_between_messages() || !self.expected.is_empty()
    }

    /// True between two messages.
    pub fn is_between_messages(&self) -> bool {
        matches!(self.state, ReaderState::Head) && self.held.is_empty()
    }

    /// Names a prefix of `input`, which is not empty.
    ///
    /// # Errors
    /// When the stream cannot be followed from here on. What was held stays in [`Self::held`] and
    /// nothing of `input` counts as taken.
    pub fn step(&mut self, input: &[u8]) -> Result<ReaderStep<H>, FramingFault> {
        match &mut self.state {
            ReaderState::Head => self.head(input),
            ReaderState::Fixed(left) => {
                let length =
                    usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= length as u64;
                let is_end = *left == 0;
                Ok(self.named(length, MessagePart::Payload, is_end))
            }
            ReaderState::Chunked(chunked) => match chunked.next(input)? {
                ChunkedRun::Payload(length) => Ok(self.named(length, MessagePart::Payload, false)),
                ChunkedRun::Control { length, is_last } => {
                    Ok(self.named(length, MessagePart::Control, is_last))
                }
            },
            ReaderState::UntilClose => Ok(self.named(input.len(), MessagePart::Payload, false)),
            ReaderState::Opaque => Ok(self.named(input.len(), MessagePart::Opaque, false)),
        }
    }

    fn named(&mut self, length: usize, what: MessagePart<H>, is_end: bool) -> ReaderStep<H> {
        if is_end {
            self.state = ReaderState::Head;
        }
        ReaderStep {
            length,
            what,
            is_end,
        }
    }

    fn head(&mut self, input: &[u8]) -> Result<ReaderStep<H>, FramingFault> {
        if !H::may_begin(&self.expected) {
            return Err(FramingFault::Unsolicited);
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
                    break Err(FramingFault::Limit);
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
            Ok(None) => Ok(ReaderStep {
                length,
                what: MessagePart::PartOfHead,
                is_end: false,
            }),
            Ok(Some((head, body))) => {
                self.held.clear();
                self.has_first_line = false;
                self.state = match body {
                    BodyFraming::Empty => ReaderState::Head,
                    BodyFraming::Fixed(length) => ReaderState::Fixed(length),
                    BodyFraming::Chunked => ReaderState::Chunked(ChunkedReader::default()),
                    BodyFraming::UntilClose => ReaderState::UntilClose,
                    BodyFraming::Opaque => ReaderState::Opaque,
                };
                let is_end = body == BodyFraming::Empty;
                Ok(ReaderStep {
                    length,
                    what: MessagePart::Head(Box::new(head), body),
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
