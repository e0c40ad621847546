//! One further connection to the server, and the response that it fetches.
//!
//! ```text
//!   Idle ──ask──► Asking ──head──► Receiving ──whole──► (sent to the near half) ──► Idle
//!     └─ nothing to fetch ─► Closing           └─ anything else ─► the connection is reset
//! ```
//! A response is held until it is whole, so that its content crosses in one piece and is recognised when it crosses
//! again. One that is longer than [`STREAMED_FROM`](super::STREAMED_FROM) is sent as it comes.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::Time;

use super::document::ScannedDocument;
use super::memory::FetchFailure;
use super::queue::FetchCandidate;
use super::{OBJECT_MAX, RESPONSE_HEAD_MAX, STREAMED_FROM};
use crate::http::wire::{
    BodyExpectation, BodyFraming, HttpVersion, MessagePart, ResponseHead, Responses, has_option,
};

/// A further connection.
#[derive(Debug)]
pub(super) struct FetchConnection {
    responses: Responses,
    /// Fetch in progress on it; `None` while it is idle.
    pub(super) current: Option<FetchedResponse>,
    /// It has brought a response before, so the server may close it at any time.
    pub(super) was_used: bool,
    /// It takes no further request.
    pub(super) is_closing: bool,
    /// It has ended, and what it brought is still to be sent.
    pub(super) is_gone: bool,
    /// When it is given up unless something comes, or closed unless there is something to fetch.
    pub(super) until: Time,
}

/// A response that is being fetched.
#[derive(Debug)]
pub(super) struct FetchedResponse {
    pub(super) candidate: FetchCandidate,
    /// `None` until it has come.
    pub(super) head: Option<ResponseHead>,
    /// The near half has the head.
    pub(super) is_begun: bool,
    /// Content that was not sent to the near half.
    pub(super) held: VecDeque<Bytes>,
    pub(super) held_bytes: usize,
    /// Content that has come.
    pub(super) length: u64,
    pub(super) is_whole: bool,
    /// The connection can be used again.
    pub(super) keeps_alive: bool,
    /// No more is read for now.
    pub(super) is_paused: bool,
    /// A style sheet that is scanned as it comes.
    pub(super) document: Option<ScannedDocument>,
}

impl FetchConnection {
    /// A connection on which this is asked for.
    pub(super) fn new(until: Time) -> Self {
        Self {
            responses: Responses::new(),
            current: None,
            was_used: false,
            is_closing: false,
            is_gone: false,
            until,
        }
    }

    /// Notes that a candidate is asked for.
    pub(super) fn ask(&mut self, until: Time, candidate: FetchCandidate) {
        self.responses.expect(BodyExpectation::Usual);
        self.until = until;
        self.current = Some(FetchedResponse {
            candidate,
            head: None,
            is_begun: false,
            held: VecDeque::new(),
            held_bytes: 0,
            length: 0,
            is_whole: false,
            keeps_alive: true,
            is_paused: false,
            document: None,
        });
    }

    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && !self.is_closing
    }

    /// True if a response has come to its end and was not sent to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| current.is_whole)
    }

    /// True if content waits to be sent.
    pub(super) fn has_held(&self) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|current| current.is_whole || current.held_bytes >= STREAMED_FROM)
    }

    /// Nothing of a response has come on a connection that was used before.
    pub(super) fn may_have_been_closed(&self) -> bool {
        let is_unanswered = |fetched: &FetchedResponse| fetched.head.is_none();
        self.was_used && self.current.as_ref().is_some_and(is_unanswered)
    }

    /// Takes what the server sends. The head of a final response is handed to `begin`, which says what is scanned, and
    /// content to `scan`.
    pub(super) fn receive(
        &mut self,
        mut bytes: Bytes,
        begin: impl FnOnce(&FetchCandidate, &ResponseHead) -> Option<ScannedDocument>,
        mut scan: impl FnMut(&FetchCandidate, &mut ScannedDocument, &[u8]),
    ) -> Result<(), FetchFailure> {
        let mut begin = Some(begin);
        while !bytes.is_empty() {
            let current = self.current.as_mut().ok_or(FetchFailure::Failed)?;
            let step = self
                .responses
                .step(&bytes)
                .map_err(|_| FetchFailure::Failed)?;
            let run = bytes.split_to(step.length);
            match step.what {
                MessagePart::PartOfHead | MessagePart::Control => {}
                MessagePart::Head(head, _) if head.is_interim() => continue,
                MessagePart::Head(head, body) => {
                    judge(&head, body)?;
                    current.keeps_alive = head.version == HttpVersion::Http11
                        && !has_option(&head.fields, "connection", "close");
                    let begin = begin.take();
                    current.document = begin.and_then(|begin| begin(&current.candidate, &head));
                    current.head = Some(*head);
                }
                MessagePart::Payload => {
                    current.length += run.len() as u64;
                    if current.length > OBJECT_MAX {
                        return Err(FetchFailure::Failed);
                    }
                    if let Some(document) = &mut current.document {
                        scan(&current.candidate, document, &run);
                    }
                    current.held_bytes += run.len();
                    current.held.push_back(run);
                }
                MessagePart::Opaque => return Err(FetchFailure::Failed),
            }
            if step.is_end {
                current.is_whole = true;
                self.was_used = true;
                // Whatever follows answers nothing that was asked.
                return match bytes.is_empty() {
                    true => Ok(()),
                    false => Err(FetchFailure::Failed),
                };
            }
        }
        Ok(())
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        let current = self.current.as_ref();
        let content = current.map_or(0, |fetched| fetched.held_bytes);
        let head = current.and_then(|fetched| fetched.head.as_ref());
        self.responses.held().len() + content + head.map_or(0, |head| head.bytes.len()) + 512
    }
}

/// Only a whole response that any server would send again is sent ahead.
fn judge(head: &ResponseHead, body: BodyFraming) -> Result<(), FetchFailure> {
    let fields = &head.fields;
    let has_end = match body {
        BodyFraming::Empty | BodyFraming::Chunked => true,
        BodyFraming::Fixed(length) => length <= OBJECT_MAX,
        // Whether it is whole is not known at its end.
        BodyFraming::UntilClose | BodyFraming::Opaque => false,
    };
    // A page in the place of a file asks to log in, or says that there is none.
    let content_type = fields.single("content-type").unwrap_or_default();
    let is_page = content_type.to_ascii_lowercase().starts_with(b"text/html");
    let sets_cookie = fields.has("set-cookie") || fields.has("set-cookie2");
    let is_fit = head.status == 200
        && has_end
        && !is_page
        && !sets_cookie
        && !fields.has("content-range")
        && head.bytes.len() <= RESPONSE_HEAD_MAX;
    match (is_fit, head.status) {
        (true, _) => Ok(()),
        (false, 401 | 407 | 429 | 503) => Err(FetchFailure::Refused),
        (false, _) => Err(FetchFailure::Failed),
    }
}
