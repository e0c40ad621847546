//! HTTP/2 towards clients (RFC 9113): frames in and out as bytes, requests and responses as HTTP/1.1 heads and bodies.
//!
//! ```text
//!  client ──bytes──► receive ─► the crate h2 ─► poll_event ──Request, Body, BodyEnded, Reset──► lanes
//!  client ◄─bytes─── take_output ◄─ the crate h2 ◄─ respond, send_body, finish_body ◄────────── lanes
//! ```
//! The crate `h2` does streams, flow control, HPACK and the errors of RFC 9113. It wants to be polled with a socket; here
//! the socket is two buffers in memory, and it is polled by hand until nothing more happens (docs/decisions/0068).
//!
//! Limits: [`STREAMS_MAX`] streams, [`STREAM_WINDOW`] bytes of a request's body on its way, 64 KiB of header fields, and
//! [`meter::FrameMeter`] for frames that cost work and carry nothing.

mod convert;
mod meter;
pub(super) mod pipe;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ::h2::server::{Builder, Connection, Handshake, SendResponse};
use ::h2::{Reason, RecvStream, SendStream};
use bytes::Bytes;
use vocab::Time;

use super::wire::ResponseHead;
use meter::FrameMeter;
use pipe::MemoryPipe;

/// Streams that a client may have open: what RFC 9113 §6.5.2 (Defined Settings) recommends at least.
const STREAMS_MAX: u32 = 100;
/// Bytes of one request's body that may be on their way to the origin.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same of all requests of a connection.
const CONNECTION_WINDOW: u32 = 2 << 20;
/// Bytes of header fields of a request, as in HTTP/1.1.
const HEADER_LIST_MAX: u32 = 64 * 1024;
/// Bytes that wait in the crate for a stream that may not send; the rest waits here.
const SEND_BUFFER: usize = 64 * 1024;

/// Something that a client did.
#[derive(Debug)]
pub(crate) enum Http2Event {
    /// It has sent the head of a request.
    Request {
        /// The stream.
        stream: u32,
        /// The request as a head of HTTP/1.1.
        head: Bytes,
        /// The authority that it asks, in lower case and without a port.
        host: String,
        /// A body follows; it has to be sent in chunks if `is_chunked`.
        body: RequestBody,
    },
    /// It has sent some of a request's body.
    Body {
        /// The stream.
        stream: u32,
        /// The bytes.
        bytes: Bytes,
    },
    /// The request's body has ended.
    BodyEnded {
        /// The stream.
        stream: u32,
    },
    /// It no longer wants the stream.
    Reset {
        /// The stream.
        stream: u32,
    },
}

/// The body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// There is none.
    Empty,
    /// The head says how long it is.
    Counted,
    /// It is to be sent in chunks.
    Chunked,
}

/// One end of an HTTP/2 connection: the server's.
pub(crate) struct Http2Server {
    pipe: MemoryPipe,
    phase: Http2Phase,
    streams: BTreeMap<u32, Http2Stream>,
    events: VecDeque<Http2Event>,
    meter: FrameMeter,
    /// Body bytes that were given to the crate since they were last asked for, by stream.
    sent: BTreeMap<u32, usize>,
}

enum Http2Phase {
    Handshake(Handshake<MemoryPipe, Bytes>),
    Open(Connection<MemoryPipe, Bytes>),
    Closed,
}

struct Http2Stream {
    request: Option<RecvStream>,
    respond: Option<SendResponse<Bytes>>,
    response: Option<SendStream<Bytes>>,
    /// Part of the body that the client's window has no room for.
    pending: VecDeque<Bytes>,
    is_finished: bool,
}

impl Http2Server {
    /// An end that has heard nothing yet.
    pub(crate) fn new() -> Self {
        let pipe = MemoryPipe::default();
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(STREAMS_MAX)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADER_LIST_MAX)
            .max_send_buffer_size(SEND_BUFFER);
        Self {
            phase: Http2Phase::Handshake(builder.handshake(pipe.clone())),
            pipe,
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            meter: FrameMeter::default(),
            sent: BTreeMap::new(),
        }
    }

    /// Takes what the client sends.
    pub(crate) fn receive(&mut self, now: Time, bytes: Bytes) {
        let is_fair = self.meter.count(now, &bytes);
        self.pipe.push(bytes);
        self.drive();
        if !is_fair && let Http2Phase::Open(connection) = &mut self.phase {
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            self.drive();
        }
    }

    /// The client sends no more.
    pub(crate) fn finish(&mut self) {
        self.pipe.finish();
        self.drive();
    }

    /// The next thing that the client did.
    pub(crate) fn poll_event(&mut self) -> Option<Http2Event> {
        self.events.pop_front()
    }

    /// True if the client did more.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Bytes of a stream that wait for the client's windows.
    pub(crate) fn pending(&self, stream: u32) -> usize {
        let stream = self.streams.get(&stream);
        stream.map_or(0, |stream| stream.pending.iter().map(Bytes::len).sum())
    }

    /// The bytes that are to go to the client.
    pub(crate) fn take_output(&mut self) -> Bytes {
        self.pipe.take_output()
    }

    /// True once the connection is of no more use.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase, Http2Phase::Closed)
    }

    /// Bytes that wait for a client.
    pub(crate) fn held(&self) -> usize {
        let pending = self.streams.values().flat_map(|stream| &stream.pending);
        let pending: usize = pending.map(Bytes::len).sum();
        pending + self.streams.len() * 1_024
    }

    /// Body bytes that the windows of the client have let go since this was last called, by stream.
    pub(crate) fn take_sent(&mut self) -> BTreeMap<u32, usize> {
        std::mem::take(&mut self.sent)
    }

    /// Sends the head of an interim response (RFC 9110 §15.2).
    pub(crate) fn inform(&mut self, stream: u32, head: &ResponseHead) {
        if let Some(one) = self.streams.get_mut(&stream)
            && let Some(respond) = &mut one.respond
            && let Some(response) = convert::response(head)
        {
            // An older client ignores it; one that is gone hears nothing.
            let _ = respond.send_informational(response);
        }
    }

    /// Sends the head of a response.
    pub(crate) fn respond(&mut self, stream: u32, head: &ResponseHead, is_end: bool) {
        let Some(response) = convert::response(head) else {
            return self.reset(stream, Reason::INTERNAL_ERROR);
        };
        let Some(one) = self.streams.get_mut(&stream) else {
            return;
        };
        let Some(mut respond) = one.respond.take() else {
            return;
        };
        match respond.send_response(response, is_end) {
            Ok(sending) if !is_end => one.response = Some(sending),
            Ok(_) => one.is_finished = true,
            Err(_) => one.is_finished = true,
        }
        self.forget_if_over(stream);
    }

    /// Sends some of a response's body, as the client's windows allow.
    pub(crate) fn send_body(&mut self, stream: u32, bytes: Bytes) {
        match self.streams.get_mut(&stream) {
            Some(one) if one.response.is_some() => one.pending.push_back(bytes),
            // Nobody waits for it.
            _ => {}
        }
    }

    /// The response's body has ended.
    pub(crate) fn finish_body(&mut self, stream: u32) {
        if let Some(one) = self.streams.get_mut(&stream) {
            one.is_finished = true;
        }
    }

    /// Gives up a stream.
    pub(crate) fn reset(&mut self, stream: u32, reason: Reason) {
        let Some(mut one) = self.streams.remove(&stream) else {
            return;
        };
        if let Some(respond) = &mut one.respond {
            respond.send_reset(reason);
        }
        if let Some(response) = &mut one.response {
            response.send_reset(reason);
        }
    }

    /// So many bytes of a request's body have gone to the origin.
    pub(crate) fn release(&mut self, stream: u32, bytes: usize) {
        if let Some(one) = self.streams.get_mut(&stream)
            && let Some(request) = &mut one.request
        {
            let flow = request.flow_control();
            let bytes = bytes.min(flow.used_capacity());
            let _ = flow.release_capacity(bytes);
        }
    }

    /// Has the crate do all that it can do now.
    pub(crate) fn drive(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let context = &mut context;
        loop {
            let before = self.pipe.moved();
            let mut has_moved = false;
            match &mut self.phase {
                Http2Phase::Handshake(handshake) => match Pin::new(handshake).poll(context) {
                    Poll::Ready(Ok(connection)) => {
                        self.phase = Http2Phase::Open(connection);
                        has_moved = true;
                    }
                    Poll::Ready(Err(_)) => self.phase = Http2Phase::Closed,
                    Poll::Pending => {}
                },
                Http2Phase::Open(connection) => match connection.poll_accept(context) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        self.accept(request, respond);
                        has_moved = true;
                    }
                    Poll::Ready(Some(Err(_)) | None) => self.close(),
                    Poll::Pending => {}
                },
                Http2Phase::Closed => return,
            }
            has_moved |= self.poll_streams(context);
            if !has_moved && self.pipe.moved() == before {
                return;
            }
        }
    }

    fn close(&mut self) {
        self.phase = Http2Phase::Closed;
        for stream in std::mem::take(&mut self.streams).into_keys() {
            self.events.push_back(Http2Event::Reset { stream });
        }
    }

    fn accept(&mut self, request: http::Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let stream = respond.stream_id().as_u32();
        match convert::request(&request) {
            Ok((head, host, body)) => {
                let one = Http2Stream {
                    request: (body != RequestBody::Empty).then(|| request.into_body()),
                    respond: Some(respond),
                    response: None,
                    pending: VecDeque::new(),
                    is_finished: false,
                };
                self.streams.insert(stream, one);
                let request = Http2Event::Request {
                    stream,
                    head,
                    host,
                    body,
                };
                self.events.push_back(request);
            }
            Err(refusal) => {
                let response = http::Response::builder().status(refusal.status());
                if let Ok(response) = response.body(()) {
                    let _ = respond.send_response(response, true);
                }
            }
        }
    }

    /// Moves what streams can move; true if any did.
    fn poll_streams(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        let mut over = Vec::new();
        for (&number, stream) in &mut self.streams {
            let reset = stream.poll_reset(context);
            if reset {
                self.events.push_back(Http2Event::Reset { stream: number });
                over.push(number);
                has_moved = true;
                continue;
            }
            while let Some(request) = &mut stream.request {
                match request.poll_data(context) {
                    Poll::Ready(Some(Ok(bytes))) => {
                        has_moved = true;
                        let stream = number;
                        self.events.push_back(Http2Event::Body { stream, bytes });
                    }
                    // Trailers of a request are of no use to HTTP/1.1 and are left out.
                    Poll::Ready(None) => {
                        has_moved = true;
                        stream.request = None;
                        self.events
                            .push_back(Http2Event::BodyEnded { stream: number });
                    }
                    Poll::Ready(Some(Err(_))) => {
                        has_moved = true;
                        stream.request = None;
                        self.events.push_back(Http2Event::Reset { stream: number });
                        over.push(number);
                    }
                    Poll::Pending => break,
                }
            }
            let was_open = stream.response.is_some();
            let sent = stream.send_pending(context);
            if sent > 0 {
                *self.sent.entry(number).or_default() += sent;
            }
            // An end without bytes is a frame as well: the crate writes it when it is polled again.
            has_moved |= sent > 0 || was_open && stream.response.is_none();
            if stream.is_over() {
                over.push(number);
            }
        }
        for number in over {
            self.streams.remove(&number);
        }
        has_moved
    }

    fn forget_if_over(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(Http2Stream::is_over) {
            self.streams.remove(&stream);
        }
    }
}

impl Http2Stream {
    /// True if the client has reset the stream.
    fn poll_reset(&mut self, context: &mut Context<'_>) -> bool {
        match (&mut self.respond, &mut self.response) {
            (Some(respond), _) => respond.poll_reset(context).is_ready(),
            (None, Some(response)) => response.poll_reset(context).is_ready(),
            (None, None) => false,
        }
    }

    /// Gives the crate as much as the client's windows allow.
    fn send_pending(&mut self, context: &mut Context<'_>) -> usize {
        let Some(response) = &mut self.response else {
            return 0;
        };
        let mut sent = 0;
        while let Some(first) = self.pending.front_mut() {
            response.reserve_capacity(first.len());
            let _ = response.poll_capacity(context);
            let room = response.capacity().min(first.len());
            if room == 0 {
                break;
            }
            let piece = first.split_to(room);
            if first.is_empty() {
                self.pending.pop_front();
            }
            let is_last = self.is_finished && self.pending.is_empty();
            sent += room;
            if response.send_data(piece, is_last).is_err() || is_last {
                self.response = None;
                self.pending.clear();
                return sent;
            }
        }
        if self.is_finished && self.pending.is_empty() {
            let _ = response.send_data(Bytes::new(), true);
            self.response = None;
        }
        sent
    }

    /// True if both directions have ended.
    fn is_over(&self) -> bool {
        self.is_finished && self.response.is_none() && self.request.is_none()
    }
}

#[cfg(any(test, feature = "testing"))]
/// Takes any bytes as those of a client, for fuzzing.
///
/// # Panics
/// When a limit does not hold.
pub(crate) fn any_client(bytes: &[u8]) {
    let mut server = Http2Server::new();
    let mut pieces = vec![&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..]];
    pieces.extend(bytes.chunks(61));
    for piece in pieces {
        server.receive(Time::ZERO, Bytes::copy_from_slice(piece));
        while let Some(event) = server.poll_event() {
            if let Http2Event::Request { stream, head, .. } = event {
                assert!(head.len() <= super::wire::HEAD_MAX);
                let text = Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
                let response = ResponseHead::parse(text).expect("it is a head");
                server.respond(stream, &response, false);
                server.send_body(stream, Bytes::from_static(b"ok"));
                server.finish_body(stream);
            }
        }
        server.drive();
        drop(server.take_output());
        assert!(server.streams.len() <= STREAMS_MAX as usize);
    }
}

#[cfg(test)]
mod tests;
