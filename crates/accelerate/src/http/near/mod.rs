//! The half beside the client: frames requests and the responses to them, and answers what is stored.
//!
//! `exchange.rs` says what is kept of a request, `caching.rs` what is answered here and what is stored.
//! Only this half lets go. It holds the begin of a head at most, and puts that out first.

mod caching;
mod exchange;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::account::FlowAccount;
use super::collapse::{CollapseFollower, CollapseLead, CollapseOutcome};
use super::config::{HELD_MAX, OPEN_AFTER, PIPELINED_MAX};
use super::prefetch::NearPrefetch;
use super::reasons;
use super::recall::RecallFrame;
use super::shared::SharedCache;
use super::wire::{
    BodyExpectation, BodyFraming, FieldSection, FramingFault, MessagePart, RequestHead, Requests,
    Responses, has_option,
};
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ContentId, LettingGo, ReasonCode,
};
use exchange::{EndedExchange, LocalAnswer, OwedResponse, ReceivedRemainder};

/// The near half.
#[derive(Debug)]
pub(super) struct HttpNearHalf {
    state: HttpNearState,
    requests: Requests,
    responses: Responses,
    owed: VecDeque<OwedResponse>,
    /// The answer that is being read.
    answering: Option<LocalAnswer>,
    /// A request that is answered here as soon as the client is due nothing else.
    postponed: Option<RequestHead>,
    /// The response to another client that it waits for, rather than that this client is due something.
    following: Option<CollapseFollower>,
    /// Others wait for the response to the request that is about to be sent.
    lead: Option<CollapseLead>,
    /// What came behind it or behind the request that is being answered, and its length.
    held_client: VecDeque<Bytes>,
    held_server: VecDeque<Bytes>,
    held: usize,
    client_finished: bool,
    server_finished: bool,
    /// Responses that wait for the dictionary to take their content.
    ended: BTreeMap<ContentId, EndedExchange>,
    /// Numbers of contents that were given out.
    contents: u64,
    /// Something was put out for the far half, so that the flow is open there.
    is_opened: bool,
    /// When the flow is opened unless the client has spoken: its server may be one that speaks first.
    open_at: Option<Time>,
    cache: Option<SharedCache>,
    prefetch: Option<NearPrefetch>,
    answered: u64,
    validated: u64,
    account: FlowAccount,
    /// The client logs in for the whole connection (NTLM, Negotiate): later requests do not show whose they are.
    has_connection_login: bool,
    now: Time,
    /// The far half's tag for the response that comes next, and the site that it is valid for.
    tag: Option<(u64, u64)>,
    outputs: VecDeque<AcceleratorOutput>,
}

/// See the table in the head of `http/mod.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpNearState {
    Following,
    /// What the client sends passes untouched, and the responses that are due are still followed.
    Draining(ReasonCode),
    /// The server sends no more. What the client sends passes untouched.
    ServerEnded,
    /// The connection to the client ends behind what was answered; nothing that comes is of use.
    Ended,
    /// Everything passes, but for what comes ahead until the far half has stopped.
    Parting(ReasonCode),
    LetGo,
}

/// True if a request logs its connection in by a scheme that authenticates connections (RFC 4559 §4, [MS-NTHT]).
pub(super) fn asks_connection_login(fields: &FieldSection) -> bool {
    fields.all("authorization").any(is_connection_scheme)
}

/// True if a response offers or confirms such a login.
pub(super) fn offers_connection_login(fields: &FieldSection) -> bool {
    fields.has("persistent-auth") || fields.all("www-authenticate").any(is_connection_scheme)
}

/// True if a value of Authorization or WWW-Authenticate names NTLM or Negotiate, alone or in a list.
fn is_connection_scheme(value: &[u8]) -> bool {
    let mut members = value.split(|byte| *byte == b',');
    members.any(|member| {
        let mut words = member.split(|byte| matches!(byte, b' ' | b'\t'));
        let scheme = words.find(|word| !word.is_empty()).unwrap_or_default();
        scheme.eq_ignore_ascii_case(b"ntlm") || scheme.eq_ignore_ascii_case(b"negotiate")
    })
}

impl HttpNearHalf {
    /// A half that has not started; without a cache it answers nothing itself.
    pub(super) fn new(cache: Option<SharedCache>) -> Self {
        Self {
            state: HttpNearState::Following,
            requests: Requests::new(),
            responses: Responses::new(),
            owed: VecDeque::new(),
            answering: None,
            postponed: None,
            following: None,
            lead: None,
            held_client: VecDeque::new(),
            held_server: VecDeque::new(),
            held: 0,
            client_finished: false,
            server_finished: false,
            ended: BTreeMap::new(),
            contents: 0,
            is_opened: false,
            open_at: None,
            cache,
            prefetch: None,
            answered: 0,
            validated: 0,
            account: FlowAccount::default(),
            has_connection_login: false,
            now: Time::ZERO,
            tag: None,
            outputs: VecDeque::new(),
        }
    }

    /// True if the half owes nothing to anybody, so that another one can go on in its place.
    pub(super) fn is_idle(&self) -> bool {
        let owes = !self.owed.is_empty() || !self.ended.is_empty();
        let waits = self.answering.is_some() || self.postponed.is_some() || self.held > 0;
        let is_between = self.requests.is_between_messages();
        self.state == HttpNearState::Following && !owes && !waits && is_between
    }

    /// True if something that the far half has promised to send ahead has not come.
    pub(super) fn expects_ahead(&self) -> bool {
        self.prefetch.as_ref().is_some_and(NearPrefetch::expects)
    }

    /// Nothing comes any more, and nothing is put out.
    pub(super) fn abandon(&mut self) {
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.abandon();
        }
    }

    /// The same half, whose requests are counted in the totals of this account.
    pub(super) fn with_account(mut self, account: FlowAccount) -> Self {
        self.account = account;
        self
    }

    /// The same half, which takes what the far half fetches ahead.
    pub(super) fn with_prefetch(mut self, prefetch: NearPrefetch) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Works on the prefetches, if there are any, and puts out what they want.
    fn prefetch<R>(&mut self, work: impl FnOnce(&mut NearPrefetch) -> R) -> Option<R> {
        let prefetch = self.prefetch.as_mut()?;
        let result = work(prefetch);
        while let Some(output) = prefetch.poll_output() {
            self.is_opened |= matches!(output, AcceleratorOutput::ToWan(_));
            self.outputs.push_back(output);
        }
        Some(result)
    }

    /// Takes a segment of the far half: of the server's stream, or ahead of it.
    fn hear_far(&mut self, segment: FlowSegment) {
        let now = self.now;
        let mut bytes = segment.bytes;
        match segment.kind {
            SegmentKind::Frame => {
                let (Some(cache), Some(prefetch)) = (&self.cache, &mut self.prefetch) else {
                    return;
                };
                match RecallFrame::parse(&bytes) {
                    Some(Ok(frame)) => return self.hear_recall(frame),
                    Some(Err(_)) => return self.close(ReasonCode::VIOLATION),
                    None => {}
                }
                let heard = prefetch.hear(now, cache, &bytes);
                self.prefetch(|_| ());
                if heard.is_err() {
                    return self.close(ReasonCode::VIOLATION);
                }
                self.let_go_when_parted();
            }
            SegmentKind::Payload => {
                self.prefetch(|prefetch| prefetch.take_content(now, &mut bytes));
                self.hear_far_stream(bytes);
            }
            SegmentKind::Control => self.hear_far_stream(bytes),
        }
    }

    fn hear_far_stream(&mut self, bytes: Bytes) {
        match self.state {
            HttpNearState::Parting(_) => self.write_lan(bytes),
            _ => self.hear_server(bytes),
        }
    }

    fn let_go_when_parted(&mut self) {
        if let HttpNearState::Parting(reason) = self.state
            && !self.prefetch.as_ref().is_some_and(NearPrefetch::may_come)
        {
            self.state = HttpNearState::LetGo;
            let letting_go = LettingGo::LetGo { reason };
            self.outputs
                .push_back(AcceleratorOutput::LettingGo(letting_go));
        }
    }

    /// Takes what the client sends.
    fn hear_client(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.held += bytes.len();
            self.held_client.push_back(bytes);
        }
        self.take_client_bytes();
        self.close_when_too_much_waits();
    }

    /// Takes what the client has sent, up to what has to wait.
    fn take_client_bytes(&mut self) {
        while !self.client_waits()
            && let Some(mut bytes) = self.held_client.pop_front()
        {
            self.held -= bytes.len();
            match self.state {
                HttpNearState::Following => {}
                HttpNearState::Ended | HttpNearState::LetGo => continue,
                HttpNearState::Draining(_)
                | HttpNearState::ServerEnded
                | HttpNearState::Parting(_) => {
                    self.send_wan(FlowSegment::payload(bytes));
                    continue;
                }
            }
            if self.awaits_upgrade() {
                self.drain(reasons::UPGRADED);
                self.put_back_client(bytes);
                continue;
            }
            let step = match self.requests.step(&bytes) {
                Ok(step) => step,
                Err(fault) => {
                    let held = self.requests.take_held();
                    self.send_wan(FlowSegment::payload(held.into()));
                    self.drain(reason(fault));
                    self.put_back_client(bytes);
                    continue;
                }
            };
            let run = bytes.split_to(step.length);
            // What comes behind a request may have to wait for it.
            self.put_back_client(bytes);
            match step.what {
                MessagePart::PartOfHead => {}
                MessagePart::Head(head, body) => self.request(*head, body),
                MessagePart::Control => self.send_wan(FlowSegment::control(run)),
                MessagePart::Payload | MessagePart::Opaque => {
                    self.send_wan(FlowSegment::payload(run))
                }
            }
        }
        self.let_go_when_drained();
    }

    fn put_back_client(&mut self, rest: Bytes) {
        if !rest.is_empty() {
            self.held += rest.len();
            self.held_client.push_front(rest);
        }
    }

    /// Whether what the client sends next has to wait: behind an answer of our own, and while it is not known
    /// whether the server has to be asked once more for the one before.
    fn client_waits(&self) -> bool {
        let validates = self.owed.iter().any(OwedResponse::is_validating);
        self.answering.is_some() || self.postponed.is_some() || validates
    }

    /// True if what the server sends next is for the client, and has to wait for an answer of our own. What this half asked
    /// for by itself is stored meanwhile, whatever its length.
    fn server_waits(&self) -> bool {
        let is_own = |owed: &OwedResponse| {
            !owed.is_for_client || matches!(owed.rest, ReceivedRemainder::Drop)
        };
        self.answering.is_some() && !self.owed.front().is_some_and(is_own)
    }

    /// True if the server owes a response that the client gets.
    fn owes_client(&self) -> bool {
        self.owed.iter().any(|owed| owed.is_for_client)
    }

    fn close_when_too_much_waits(&mut self) {
        let is_over = matches!(self.state, HttpNearState::LetGo | HttpNearState::Ended);
        if self.held > HELD_MAX && !is_over {
            self.close(ReasonCode::LIMIT);
        }
    }

    /// Goes on with what had to wait.
    fn resume(&mut self) {
        if self.answering.is_none() {
            self.take_server_bytes();
        }
        if self.answering.is_none()
            && self.held_server.is_empty()
            && self.server_finished
            && self.state != HttpNearState::ServerEnded
        {
            self.hear_end_of_server();
        }
        if !self.owes_client()
            && self.answering.is_none()
            && self.state == HttpNearState::Following
            && self.following.is_none()
            && let Some(head) = self.postponed.take()
        {
            self.request(head, BodyFraming::Empty);
        }
        self.take_client_bytes();
        let goes_on = !matches!(
            self.state,
            HttpNearState::Ended | HttpNearState::Parting(_) | HttpNearState::LetGo
        );
        if goes_on && !self.client_waits() && self.client_finished {
            self.client_finished = false;
            self.finish_wan();
        }
    }

    /// The client has ended its stream. A flow that is not open at the far node ends here.
    fn finish_wan(&mut self) {
        if !self.is_opened && self.requests.is_between_messages() && self.cache.is_some() {
            return self.end();
        }
        let held = self.requests.take_held();
        self.send_wan(FlowSegment::control(held.into()));
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }

    /// True if the client's next bytes have a meaning only after a response has come.
    fn awaits_upgrade(&self) -> bool {
        self.requests.is_between_messages() && self.owed.iter().any(|owed| owed.asks_upgrade)
    }

    fn request(&mut self, head: RequestHead, body: BodyFraming) {
        self.has_connection_login |= asks_connection_login(&head.fields);
        if head.method() == b"CONNECT" {
            self.send_wan(FlowSegment::control(head.bytes));
            return self.drain(reasons::UPGRADED);
        }
        if !head.is_safe() {
            let key = self.cache.as_ref().and_then(|cache| cache.key(&head));
            if let (Some(cache), Some(key)) = (&self.cache, &key) {
                cache.with(|shared| shared.index.note_unsafe(key));
            }
            self.prefetch(|prefetch| prefetch.note_unsafe(key.as_ref()));
        }
        let head = match body {
            BodyFraming::Empty
                if self.cache.is_some() && self.state == HttpNearState::Following =>
            {
                match self.answer(head, true) {
                    Some(head) => head,
                    None => return,
                }
            }
            _ => head,
        };
        self.send_request(head);
    }

    /// Sends a request as it came.
    fn send_request(&mut self, head: RequestHead) {
        let asks_upgrade = has_option(&head.fields, "connection", "upgrade");
        let bytes = head.bytes.clone();
        let expectation = BodyExpectation::of(&head);
        let mut cached = self.cached(head);
        let lead = self.lead.take();
        if let Some(cached) = &mut cached {
            cached.lead = lead;
        }
        self.forward(
            bytes,
            expectation,
            OwedResponse {
                asks_upgrade,
                is_for_client: true,
                cached,
                rest: ReceivedRemainder::Pass,
            },
        );
    }

    /// The response that a request waits for has come or does not come, or the wait is over.
    fn end_wait(&mut self) {
        let Some(following) = &self.following else {
            return;
        };
        let outcome = following.outcome();
        if outcome.is_none() && following.until() > self.now {
            return;
        }
        if outcome.is_none() {
            following.note_late(self.now);
        }
        self.following = None;
        let Some(head) = self.postponed.take() else {
            return;
        };
        let may_join = outcome == Some(CollapseOutcome::BrokenOff);
        if let Some(head) = self.answer(head, may_join) {
            self.send_request(head);
        }
        self.resume();
    }

    /// Sends a request to the server.
    fn forward(&mut self, bytes: Bytes, expectation: BodyExpectation, mut owed: OwedResponse) {
        if let Some(cached) = owed.cached.as_ref().filter(|_| !self.has_connection_login) {
            let (key, request) = (cached.key.clone(), cached.request.clone());
            self.prefetch(|prefetch| prefetch.before_request(&key, &request));
        }
        self.responses.expect(expectation);
        let site = self.prefetch.as_ref().and_then(NearPrefetch::site);
        if let Some(cached) = &mut owed.cached {
            cached
                .recall
                .take_if(|pending| Some(pending.tag.site()) != site);
        }
        let recall = owed
            .cached
            .as_ref()
            .and_then(|cached| cached.recall.as_ref());
        self.send_wan(match recall {
            Some(pending) => RecallFrame::Recall(pending.tag.tag()).to_segment(),
            None => FlowSegment::control(bytes),
        });
        self.owed.push_back(owed);
        if self.owed.len() > PIPELINED_MAX {
            self.drain(ReasonCode::LIMIT);
        }
    }

    /// Takes what the server answers.
    pub(super) fn hear_server(&mut self, bytes: Bytes) {
        // All of a piece may have come ahead.
        if !bytes.is_empty() {
            self.held += bytes.len();
            self.held_server.push_back(bytes);
        }
        self.take_server_bytes();
        self.close_when_too_much_waits();
    }

    /// Takes what the server has sent, up to what has to wait. The end of a response may bring it here again, so what is
    /// left stays in its place.
    fn take_server_bytes(&mut self) {
        while !self.server_waits()
            && !matches!(self.state, HttpNearState::LetGo | HttpNearState::Ended)
            && let Some(mut bytes) = self.held_server.pop_front()
        {
            self.held -= bytes.len();
            let step = match self.responses.step(&bytes) {
                Ok(step) => step,
                Err(fault) => {
                    self.put_back_server(bytes);
                    return self.give_up(reason(fault));
                }
            };
            let run = bytes.split_to(step.length);
            self.put_back_server(bytes);
            match step.what {
                MessagePart::PartOfHead => continue,
                MessagePart::Head(head, BodyFraming::Opaque) => {
                    self.write_lan(head.bytes);
                    return self.give_up(reasons::UPGRADED);
                }
                MessagePart::Head(head, _) if head.is_interim() => {
                    if self.owed.front().is_some_and(|owed| owed.is_for_client) {
                        self.write_lan(head.bytes);
                    }
                    continue;
                }
                MessagePart::Head(head, body) => self.response(*head, body),
                MessagePart::Control => self.content(run, false),
                MessagePart::Payload | MessagePart::Opaque => self.content(run, true),
            }
            if step.is_end {
                self.end_response();
            }
        }
        self.let_go_when_drained();
    }

    fn put_back_server(&mut self, rest: Bytes) {
        if !rest.is_empty() {
            self.held += rest.len();
            self.held_server.push_front(rest);
        }
    }

    /// The server has ended its stream, or the way to it has.
    fn hear_end_of_server(&mut self) {
        self.server_finished = true;
        self.replace_missing_response();
        if self.answering.is_some() || self.state == HttpNearState::Ended {
            return;
        }
        if self.owed.front().is_none_or(OwedResponse::is_untouched) {
            let held = self.responses.take_held();
            self.write_lan(held.into());
        }
        self.outputs.push_back(AcceleratorOutput::FinishLan);
        self.state = HttpNearState::ServerEnded;
        // What the client has sent since goes to the server, as far as it still goes anywhere.
        self.owed.clear();
        self.send_postponed();
        let held = self.requests.take_held();
        self.send_wan(FlowSegment::control(held.into()));
        self.resume();
    }

    fn send_postponed(&mut self) {
        self.following = None;
        if let Some(head) = self.postponed.take() {
            self.send_wan(FlowSegment::control(head.bytes));
        }
    }

    /// The response that was owed has ended.
    fn end_response(&mut self) {
        if let Some(owed) = self.owed.pop_front() {
            self.keep(owed);
        }
        if self.answering.is_none() && !self.owes_client() {
            self.resume();
        }
    }

    /// Ends the connection to the client behind what was written.
    fn end(&mut self) {
        self.state = HttpNearState::Ended;
        self.held_client.clear();
        self.held_server.clear();
        self.held = 0;
        self.prefetch(NearPrefetch::abandon);
        self.outputs.push_back(AcceleratorOutput::FinishLan);
        self.outputs.push_back(AcceleratorOutput::FinishWan);
    }

    /// A request of the client's was answered here to the end.
    fn note_answered(&mut self, request: &Bytes) {
        if !self.is_opened {
            let answered = AcceleratorOutput::AnsweredHere(request.len());
            self.outputs.push_back(answered);
        }
    }

    fn drain(&mut self, reason: ReasonCode) {
        if self.state == HttpNearState::Following {
            self.state = HttpNearState::Draining(reason);
        }
    }

    fn let_go_when_drained(&mut self) {
        if let HttpNearState::Draining(reason) = self.state
            && self.owed.is_empty()
            && self.answering.is_none()
        {
            self.let_go(reason);
        }
    }

    /// The responses cannot be followed from here on: they pass as they come where they answer what the
    /// client sent, and nothing of ours is to be put among them.
    fn give_up(&mut self, reason: ReasonCode) {
        if !self.owed.iter().all(OwedResponse::is_untouched) {
            return self.close(reason);
        }
        let held = self.responses.take_held();
        self.write_lan(held.into());
        for bytes in std::mem::take(&mut self.held_server) {
            self.held -= bytes.len();
            self.write_lan(bytes);
        }
        self.let_go(reason);
    }

    /// Puts out what is held, and lets go.
    fn let_go(&mut self, reason: ReasonCode) {
        self.send_postponed();
        let held = self.requests.take_held();
        self.send_wan(FlowSegment::control(held.into()));
        for bytes in std::mem::take(&mut self.held_client) {
            self.held -= bytes.len();
            self.send_wan(FlowSegment::payload(bytes));
        }
        if self.client_finished {
            self.outputs.push_back(AcceleratorOutput::FinishWan);
        }
        let held = self.responses.take_held();
        self.write_lan(held.into());
        self.state = HttpNearState::Parting(reason);
        if self.prefetch.as_ref().is_some_and(NearPrefetch::may_come) {
            self.prefetch(NearPrefetch::stop);
        }
        self.let_go_when_parted();
    }

    fn send_wan(&mut self, segment: FlowSegment) {
        if !segment.bytes.is_empty() {
            self.is_opened = true;
            self.outputs.push_back(AcceleratorOutput::ToWan(segment));
        }
    }

    fn write_lan(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.outputs.push_back(AcceleratorOutput::ToLan(bytes));
        }
    }
}

impl AcceleratorHalf for HttpNearHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.now = now;
        if matches!(
            input,
            AcceleratorInput::Lan(_)
                | AcceleratorInput::LanFinished
                | AcceleratorInput::WanFinished
        ) || self.is_opened
        {
            self.open_at = None;
        }
        match input {
            // Nothing is of use any more to a client that was told that its connection ends.
            _ if matches!(self.state, HttpNearState::LetGo | HttpNearState::Ended) => {
                if input == AcceleratorInput::LanFinished && self.state == HttpNearState::Ended {
                    self.outputs.push_back(AcceleratorOutput::FinishWan);
                }
            }
            AcceleratorInput::Start => self.open_at = self.cache.as_ref().map(|_| now + OPEN_AFTER),
            AcceleratorInput::Lan(bytes) if matches!(self.state, HttpNearState::Parting(_)) => {
                self.send_wan(FlowSegment::payload(bytes));
            }
            AcceleratorInput::LanFinished if matches!(self.state, HttpNearState::Parting(_)) => {
                self.outputs.push_back(AcceleratorOutput::FinishWan);
            }
            AcceleratorInput::WanFinished if matches!(self.state, HttpNearState::Parting(_)) => {
                self.outputs.push_back(AcceleratorOutput::FinishLan);
            }
            AcceleratorInput::Timeout if self.open_at.is_some_and(|at| at <= now) => {
                self.open_at = None;
                self.is_opened = true;
                self.outputs.push_back(AcceleratorOutput::OpenFlow);
            }
            AcceleratorInput::Lan(bytes) => self.hear_client(bytes),
            AcceleratorInput::LanFinished if self.client_waits() => self.client_finished = true,
            AcceleratorInput::LanFinished => self.finish_wan(),
            AcceleratorInput::Wan(segment) => self.hear_far(segment),
            AcceleratorInput::WanFinished if self.answering.is_some() => {
                self.server_finished = true
            }
            AcceleratorInput::WanFinished => self.hear_end_of_server(),
            AcceleratorInput::Content(report) => self.content_report(report),
            AcceleratorInput::Woken => {
                self.prefetch(NearPrefetch::woken);
                self.end_wait();
                self.resume();
            }
            // A request has waited long enough for another one, or for what comes ahead.
            AcceleratorInput::Timeout => {
                self.prefetch(|prefetch| prefetch.timeout(now));
                self.end_wait();
                self.resume();
            }
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied => {}
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let following = self.following.as_ref().map(CollapseFollower::until);
        let prefetch = self.prefetch.as_ref();
        let waits = prefetch.and_then(NearPrefetch::poll_timeout);
        let ends = following.into_iter().chain(waits);
        self.open_at.into_iter().chain(ends).min()
    }

    fn waiting_host_bytes(&self) -> usize {
        self.held_client.iter().map(Bytes::len).sum()
    }

    fn buffered(&self) -> usize {
        let owed: usize = self.owed.iter().map(OwedResponse::held).sum();
        let ended = self.ended.values();
        let ended: usize = ended
            .map(|ended| ended.keeping.head.bytes.len() + 1_024)
            .sum();
        let queues = self.owed.capacity() * size_of::<OwedResponse>();
        let heads = self.requests.held().len() + self.responses.held().len();
        let prefetch = self.prefetch.as_ref().map_or(0, NearPrefetch::held);
        heads + self.held + ended + owed + queues + prefetch
    }

    fn answered(&self) -> u64 {
        self.answered
    }

    fn note(&self) -> Option<String> {
        let validated = self.validated;
        let validated = match validated {
            0 => None,
            1 => Some("the server confirmed 1 stored response".to_owned()),
            _ => Some(format!("the server confirmed {validated} stored responses")),
        };
        let ahead = self.prefetch.as_ref().and_then(NearPrefetch::note);
        let notes = validated.into_iter().chain(ahead);
        let notes: Vec<String> = notes.chain(self.account.note()).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// Why a message that cannot be followed is let go, for the operator.
fn reason(fault: FramingFault) -> ReasonCode {
    match fault {
        FramingFault::Limit => ReasonCode::LIMIT,
        FramingFault::TransferEncoding => ReasonCode::UNSUPPORTED,
        FramingFault::BareLineFeed
        | FramingFault::BareCarriageReturn
        | FramingFault::RequestLine
        | FramingFault::StatusLine
        | FramingFault::FieldName
        | FramingFault::FieldValue
        | FramingFault::Folded
        | FramingFault::ContentLength
        | FramingFault::TwoLengths
        | FramingFault::ChunkSize
        | FramingFault::ChunkEnd
        | FramingFault::Host
        | FramingFault::Unsolicited => ReasonCode::VIOLATION,
    }
}
