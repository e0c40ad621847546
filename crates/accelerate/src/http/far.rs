//! The half beside the server: opens its connection, and tells heads from bodies in what it answers.
//!
//! It holds nothing back and alters nothing, so the other half can let go at any moment. Requests are
//! followed only to learn how their responses are framed, and what the client has asked for. Beside that it fetches
//! ahead what pages name (`prefetch/`).

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::prefetch::FarPrefetch;
use super::recall::{FarRecall, RecallFrame, RecallReply};
use super::wire::{
    BodyExpectation, FramingFault, HttpVersion, MessagePart, RequestHead, Requests, ResponseHead,
    Responses, has_option,
};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput};

/// The far half.
#[derive(Debug)]
pub(super) struct HttpFarHalf {
    requests: Requests,
    responses: Responses,
    /// From the first message on that cannot be followed, everything is payload.
    follows: bool,
    /// The server ends the connection behind the response that came last.
    closes: bool,
    /// The response has had payload.
    has_body: bool,
    prefetch: Option<FarPrefetch>,
    recall: Option<FarRecall>,
    outputs: VecDeque<AcceleratorOutput>,
}

impl HttpFarHalf {
    /// A half that has not started.
    pub(super) fn new() -> Self {
        Self {
            requests: Requests::new(),
            responses: Responses::new(),
            follows: true,
            closes: false,
            has_body: false,
            prefetch: None,
            recall: None,
            outputs: VecDeque::new(),
        }
    }

    /// True if no response has begun and not ended, as far as is known.
    pub(super) fn is_between_responses(&self) -> bool {
        self.follows && self.responses.is_between_messages()
    }

    /// True if no request has begun that has no whole response, so that its connection can serve another client's.
    pub(super) fn is_idle(&self) -> bool {
        let is_asked = !self.requests.is_between_messages();
        self.follows && !is_asked && !self.responses.expects_more() && !self.closes
    }

    /// True if the server has answered everything and ends the connection now; the half can go on with another one.
    pub(super) fn take_closing(&mut self) -> bool {
        let is_over = self.follows && self.closes && !self.responses.expects_more();
        is_over && std::mem::take(&mut self.closes)
    }

    /// The same half, which fetches ahead.
    pub(super) fn with_prefetch(mut self, prefetch: FarPrefetch) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// The same half, which tags responses and answers tags.
    pub(super) fn with_recall(mut self, recall: FarRecall) -> Self {
        self.recall = Some(recall);
        self
    }

    /// Sends a tagged request again, in its place among the client's.
    fn recall(&mut self, now: Time, tag: u64) {
        let site = self.prefetch.as_ref().and_then(FarPrefetch::site);
        let may_ask = self.follows && self.requests.is_between_messages();
        let recall = self.recall.as_mut().filter(|_| may_ask);
        let request = recall
            .zip(site)
            .and_then(|(recall, site)| recall.recall(site, tag));
        let Some(head) = request.and_then(|request| RequestHead::parse(request).ok()) else {
            let unknown = RecallFrame::Unknown(tag).to_segment();
            return self.outputs.push_back(AcceleratorOutput::ToWan(unknown));
        };
        self.responses.expect(BodyExpectation::of(&head));
        self.prefetch(|prefetch| prefetch.note_request(now, &head));
        self.outputs.push_back(AcceleratorOutput::ToLan(head.bytes));
    }

    /// The head of a final response, as the near half gets it.
    fn reply(&mut self, head: &ResponseHead, length: usize) -> RecallReply {
        let site = self.prefetch.as_ref().and_then(FarPrefetch::site);
        let is_whole = length == head.bytes.len();
        let recall = self.recall.as_mut();
        recall.map_or(RecallReply::Head, |recall| {
            recall.reply(site, head, is_whole)
        })
    }

    /// Works on the prefetches, if there are any, and puts out what they want.
    fn prefetch(&mut self, work: impl FnOnce(&mut FarPrefetch)) {
        if let Some(prefetch) = &mut self.prefetch {
            work(prefetch);
            self.outputs
                .extend(std::iter::from_fn(|| prefetch.poll_output()));
        }
    }

    /// Learns of the requests in what the client sends.
    fn follow_requests(&mut self, now: Time, mut bytes: &[u8]) -> Result<(), FramingFault> {
        while !bytes.is_empty() {
            let step = self.requests.step(bytes)?;
            bytes = &bytes[step.length..];
            if let MessagePart::Head(head, _) = step.what {
                self.responses.expect(BodyExpectation::of(&head));
                if let Some(recall) = &mut self.recall {
                    recall.note_request(&head);
                }
                self.prefetch(|prefetch| prefetch.note_request(now, &head));
            }
        }
        Ok(())
    }

    /// From here on everything passes as it comes, and what it names is not known.
    fn stop_following(&mut self, now: Time) {
        self.follows = false;
        self.prefetch(|prefetch| prefetch.end(now));
    }

    /// Sends what the server says, each run by its kind.
    fn send(&mut self, now: Time, mut bytes: Bytes) {
        while !bytes.is_empty() && self.follows {
            let Ok(step) = self.responses.step(&bytes) else {
                self.stop_following(now);
                break;
            };
            let run = bytes.split_to(step.length);
            let is_end = step.is_end && !step.what.is_interim();
            // What a piece names is promised before the piece passes.
            self.prefetch(|prefetch| match &step.what {
                MessagePart::Head(head, body) => prefetch.note_head(now, head, *body),
                MessagePart::Payload => prefetch.note_content(now, &run),
                MessagePart::PartOfHead | MessagePart::Control | MessagePart::Opaque => {}
            });
            let reply = match &step.what {
                MessagePart::Head(head, _) if !head.is_interim() => {
                    self.closes = head.version == HttpVersion::Http10
                        || has_option(&head.fields, "connection", "close");
                    self.reply(head, run.len())
                }
                _ => RecallReply::Head,
            };
            if let RecallReply::TaggedHead(tag) = reply {
                let tagged = RecallFrame::Tagged(tag).to_segment();
                self.outputs.push_back(AcceleratorOutput::ToWan(tagged));
            }
            self.has_body |= matches!(step.what, MessagePart::Payload);
            let segment = match step.what {
                MessagePart::PartOfHead | MessagePart::Head(..) | MessagePart::Control => {
                    FlowSegment::control(run)
                }
                MessagePart::Payload | MessagePart::Opaque => FlowSegment::payload(run),
            };
            let segment = match reply {
                RecallReply::Confirmed(date) => RecallFrame::Confirmed(date).to_segment(),
                RecallReply::Head | RecallReply::TaggedHead(_) => segment,
            };
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
            if step.is_end && std::mem::take(&mut self.has_body) {
                self.outputs.push_back(AcceleratorOutput::EndBody);
            }
            if is_end {
                if let Some(recall) = &mut self.recall {
                    recall.note_end();
                }
                self.prefetch(|prefetch| prefetch.note_end(now));
            }
        }
        if !bytes.is_empty() {
            self.outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(bytes)));
        }
    }
}

impl AcceleratorHalf for HttpFarHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Start => self.outputs.push_back(AcceleratorOutput::OpenServer),
            AcceleratorInput::Lan(bytes) => self.send(now, bytes),
            AcceleratorInput::LanFinished => {
                self.prefetch(|prefetch| prefetch.end(now));
                self.outputs.push_back(AcceleratorOutput::FinishWan);
            }
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => {
                    if self.follows && self.follow_requests(now, &segment.bytes).is_err() {
                        self.stop_following(now);
                    }
                    self.outputs
                        .push_back(AcceleratorOutput::ToLan(segment.bytes));
                }
                SegmentKind::Frame => match RecallFrame::parse(&segment.bytes) {
                    Some(Ok(RecallFrame::Recall(tag))) => self.recall(now, tag),
                    // Those that only this half sends, and one that cannot be read.
                    Some(_) => {}
                    None => self.prefetch(|prefetch| prefetch.hear(now, &segment.bytes)),
                },
            },
            AcceleratorInput::WanFinished => {
                self.prefetch(|prefetch| prefetch.end(now));
                self.outputs.push_back(AcceleratorOutput::FinishLan);
            }
            AcceleratorInput::Timeout => self.prefetch(|prefetch| prefetch.timeout(now)),
            AcceleratorInput::Server(connection, event) => {
                self.prefetch(|prefetch| prefetch.server_event(now, connection, event));
            }
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn buffered(&self) -> usize {
        let prefetch = self.prefetch.as_ref().map_or(0, FarPrefetch::held);
        let recall = self.recall.as_ref().map_or(0, FarRecall::held);
        self.requests.held().len() + self.responses.held().len() + prefetch + recall
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.prefetch.as_ref().and_then(FarPrefetch::poll_timeout)
    }

    fn note(&self) -> Option<String> {
        self.prefetch.as_ref().and_then(FarPrefetch::note)
    }
}
