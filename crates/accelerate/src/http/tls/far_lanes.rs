//! Beside the origin, the lanes of an HTTP/2 client. A lane has a TLS connection while it has a request.
//!
//! ```text
//!  lane 0 ─ request ─► link 0 ══TLS══► origin        up to LINKS_MAX links
//!  lane 1 ─ request ─► link 1 ══TLS══►
//!  lane 7 ─ request ─► waits here, one local round trip from the origin, until a link is idle
//! ```
//! So all requests of a page cross the WAN at once, and the origin sees no more connections than from a browser without HTTP/2.
//!
//! Lanes fetch ahead by other connections, whose numbers are above those of links (`further.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::far::{HANDSHAKE_WITHIN, STREAM_OVERHEAD};
use super::frames::TlsFrame;
use super::further::{FurtherOutput, FurtherStreams};
use super::lanes::{LANE_CREDIT, LANES_MAX, LINKS_MAX};
use super::origin::{OriginFault, OriginStream, OriginTrust};
use crate::http::far::HttpFarHalf;
use crate::http::parts::FarHalfParts;
use crate::http::reasons;
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ServerCommand, ServerConnection,
    ServerEvent, ServerFailure,
};

/// Bytes on the wire that the operating system may have to take, below [`ServerConnection::UNTAKEN_MAX`].
const UNTAKEN_MAX: usize = 128 * 1024;
/// Bytes of a request that are encrypted at once.
const PIECE: usize = 16 * 1024;
/// Bytes of responses that clients have not taken, over all lanes, from which on no waiting lane gets a link.
const UNCREDITED_MAX: i64 = 12 << 20;

/// All lanes of one client's connection.
pub(super) struct OriginLanes {
    trust: Arc<OriginTrust>,
    name: String,
    may_store: bool,
    /// Parts of the lanes' halves.
    parts: FarHalfParts,
    lanes: BTreeMap<u8, OriginLane>,
    /// Connections by which lanes fetch ahead, with the lane and its own number for each.
    fetching: BTreeMap<ServerConnection, (u8, ServerConnection)>,
    further: FurtherStreams,
    /// Lanes with a request that wait for a link, the first in front.
    waiting: VecDeque<u8>,
    heard: Option<u8>,
    said: Option<u8>,
    /// The origin's certificate is not valid any more.
    fault: Option<OriginFault>,
    outputs: VecDeque<AcceleratorOutput>,
}

struct OriginLane {
    link: Option<OriginLink>,
    far: HttpFarHalf,
    /// Bytes that wait for the origin.
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Bytes that may still be sent to the client, less than none while reading pauses.
    credit: i64,
    is_paused: bool,
    /// The near half knows that nothing follows.
    is_ended: bool,
}

/// A connection to the origin.
struct OriginLink {
    connection: ServerConnection,
    stream: OriginStream,
    is_connected: bool,
    untaken: usize,
    /// When the handshake is given up.
    deadline: Option<Time>,
}

impl OriginLane {
    /// True if its link is of use to another lane.
    fn is_idle(&self) -> bool {
        let is_open = self
            .link
            .as_ref()
            .is_some_and(|link| link.stream.is_verified());
        is_open && !self.is_paused && self.queue.is_empty() && self.far.is_idle()
    }
}

impl OriginLanes {
    /// No lane is open.
    pub(super) fn new(
        trust: Arc<OriginTrust>,
        name: String,
        may_store: bool,
        parts: FarHalfParts,
    ) -> Self {
        Self {
            trust,
            name,
            may_store,
            parts,
            lanes: BTreeMap::new(),
            fetching: BTreeMap::new(),
            further: FurtherStreams::default(),
            waiting: VecDeque::new(),
            heard: None,
            said: None,
            fault: None,
            outputs: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub(super) fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    /// The fault of the origin that ends interception, if it has one now.
    pub(super) fn take_fault(&mut self) -> Option<OriginFault> {
        self.fault.take()
    }

    fn send_frame(&mut self, frame: &TlsFrame) {
        self.outputs
            .push_back(AcceleratorOutput::ToWan(frame.to_segment()));
    }

    fn command(&mut self, connection: ServerConnection, command: ServerCommand) {
        self.outputs
            .push_back(AcceleratorOutput::Server(connection, command));
    }

    /// Does something with the link of a lane, if it has one.
    fn command_link(&mut self, number: u8, command: ServerCommand) {
        let lane = self.lanes.get(&number);
        if let Some(link) = lane.and_then(|lane| lane.link.as_ref()) {
            self.command(link.connection, command);
        }
    }

    /// Takes a frame of the near half; false if it is none that the near half sends.
    pub(super) fn hear_frame(&mut self, now: Time, frame: &TlsFrame) -> bool {
        match *frame {
            TlsFrame::Lane(number) if number < LANES_MAX => {
                self.heard = Some(number);
                self.open(now, number);
            }
            TlsFrame::Reset(number) if number < LANES_MAX => {
                self.waiting.retain(|waiting| *waiting != number);
                let lane = self.lanes.remove(&number);
                self.end_fetches(number);
                if let Some(link) = lane.and_then(|lane| lane.link) {
                    self.command(link.connection, ServerCommand::Reset);
                }
                self.serve_waiting(now);
                // Segments that follow say anew whose they are, and so do ours.
                self.heard = self.heard.filter(|heard| *heard != number);
                self.send_frame(&TlsFrame::ResetDone(number));
            }
            TlsFrame::Credit(number, bytes) => {
                if let Some(lane) = self.lanes.get_mut(&number) {
                    lane.credit = (lane.credit + i64::from(bytes)).min(i64::from(LANE_CREDIT));
                    if lane.is_paused && lane.credit > 0 {
                        lane.is_paused = false;
                        self.command_link(number, ServerCommand::ResumeReading);
                    }
                }
                self.serve_waiting(now);
            }
            _ => return false,
        }
        true
    }

    /// Begins a lane that is not there.
    fn open(&mut self, now: Time, number: u8) {
        if self.lanes.contains_key(&number) {
            return;
        }
        let lane = OriginLane {
            link: None,
            far: self.parts.build_inside(self.may_store),
            queue: VecDeque::new(),
            queued: 0,
            credit: i64::from(LANE_CREDIT),
            is_paused: false,
            is_ended: false,
        };
        self.lanes.insert(number, lane);
        self.tell(now, number, AcceleratorInput::Start);
    }

    /// Gives a lane with a request a link: that of an idle lane, or a new one; otherwise it waits.
    fn find_link(&mut self, now: Time, number: u8) {
        let lane = self.lanes.get(&number);
        if lane.is_none_or(|lane| lane.link.is_some() || lane.is_ended) {
            return;
        }
        if !self.waiting.contains(&number) {
            self.waiting.push_back(number);
        }
        self.serve_waiting(now);
    }

    /// Gives links to lanes that wait, as long as there are any.
    fn serve_waiting(&mut self, now: Time) {
        while let Some(&number) = self.waiting.front() {
            let uncredited = self
                .lanes
                .values()
                .map(|lane| i64::from(LANE_CREDIT) - lane.credit);
            if uncredited.sum::<i64>() >= UNCREDITED_MAX {
                return;
            }
            let idle = self.lanes.values_mut().find(|lane| lane.is_idle());
            let link = match idle.and_then(|lane| lane.link.take()) {
                Some(link) => link,
                None => match self.new_link(now) {
                    Some(link) => link,
                    None => return,
                },
            };
            self.waiting.pop_front();
            if let Some(lane) = self.lanes.get_mut(&number) {
                lane.link = Some(link);
                self.write(number);
            }
        }
    }

    /// Opens a further connection, unless there are enough.
    fn new_link(&mut self, now: Time) -> Option<OriginLink> {
        let links = self.lanes.values().filter_map(|lane| lane.link.as_ref());
        let used: Vec<ServerConnection> = links.map(|link| link.connection).collect();
        let mut numbers = (0..LINKS_MAX).map(ServerConnection);
        let connection = numbers.find(|number| !used.contains(number))?;
        match OriginStream::new(&self.trust, &self.name) {
            Ok(stream) => {
                self.command(connection, ServerCommand::Open);
                Some(OriginLink {
                    connection,
                    stream,
                    is_connected: false,
                    untaken: 0,
                    deadline: Some(now + HANDSHAKE_WITHIN),
                })
            }
            Err(fault) => {
                self.fault = Some(fault);
                None
            }
        }
    }

    /// Takes a segment of the near half.
    pub(super) fn hear_near(&mut self, now: Time, segment: FlowSegment) {
        if let Some(number) = self.heard {
            // A number whose connection was reset is opened again by what its next user sends.
            self.open(now, number);
            self.tell(now, number, AcceleratorInput::Wan(segment));
        }
    }

    /// Tells a lane's half what happened, and does what it wants.
    fn tell(&mut self, now: Time, number: u8, input: AcceleratorInput) {
        let Some(lane) = self.lanes.get_mut(&number).filter(|lane| !lane.is_ended) else {
            return;
        };
        lane.far.handle(now, input);
        self.drain_lane(now, number);
    }

    /// Does what a lane's half wants.
    fn drain_lane(&mut self, now: Time, number: u8) {
        while let Some(lane) = self.lanes.get_mut(&number)
            && let Some(output) = lane.far.poll_output()
        {
            match output {
                AcceleratorOutput::ToLan(bytes) => {
                    lane.queued += bytes.len();
                    lane.queue.push_back(bytes);
                    match lane.link {
                        Some(_) => self.write(number),
                        None => self.find_link(now, number),
                    }
                }
                AcceleratorOutput::ToWan(segment) if segment.kind == SegmentKind::Frame => {
                    self.say(number);
                    self.outputs.push_back(AcceleratorOutput::ToWan(segment));
                }
                AcceleratorOutput::ToWan(mut segment) => {
                    if segment.kind == SegmentKind::Payload && !self.may_store {
                        segment.kind = SegmentKind::Control;
                    }
                    lane.credit -= segment.bytes.len() as i64;
                    if lane.credit <= 0 && !std::mem::replace(&mut lane.is_paused, true) {
                        self.command_link(number, ServerCommand::PauseReading);
                    }
                    self.say(number);
                    self.outputs.push_back(AcceleratorOutput::ToWan(segment));
                }
                AcceleratorOutput::EndBody if self.may_store => {
                    self.outputs.push_back(AcceleratorOutput::EndBody);
                }
                AcceleratorOutput::FinishWan => self.end(number, true),
                AcceleratorOutput::Server(which, command) => {
                    self.fetch_command(now, number, which, command);
                }
                AcceleratorOutput::EndBody
                | AcceleratorOutput::FinishLan
                | AcceleratorOutput::OpenServer
                | AcceleratorOutput::OpenFlow
                | AcceleratorOutput::AnsweredHere(_)
                | AcceleratorOutput::Claim(_)
                | AcceleratorOutput::ClaimReleased
                | AcceleratorOutput::Content(_) => {}
                AcceleratorOutput::LettingGo(_) => self.end(number, false),
            }
        }
    }

    /// A lane wants something of a connection by which it fetches ahead.
    fn fetch_command(
        &mut self,
        now: Time,
        number: u8,
        own: ServerConnection,
        command: ServerCommand,
    ) {
        let mut fetching = self.fetching.iter();
        let known = fetching.find(|(_, of)| **of == (number, own));
        let known = known.map(|(connection, _)| *connection);
        let connection = match (known, &command) {
            (None, ServerCommand::Open) => self.free_connection(),
            (known, _) => known,
        };
        let Some(connection) = connection else {
            if command == ServerCommand::Open {
                let failed = ServerEvent::ConnectFailed(ServerFailure::Limit);
                self.tell_fetch(now, number, own, failed);
            }
            return;
        };
        match command {
            ServerCommand::Open => drop(self.fetching.insert(connection, (number, own))),
            ServerCommand::Reset => drop(self.fetching.remove(&connection)),
            _ => {}
        }
        let (trust, name) = (&self.trust, &self.name);
        let open = || OriginStream::new(trust, name);
        self.further.command(connection, command, open);
        self.pass_further(now);
    }

    /// A connection beside the links that no lane uses. One is left to the probe, which may not be closed yet.
    fn free_connection(&self) -> Option<ServerConnection> {
        let end = u8::try_from(ServerConnection::MAX_PER_FLOW - 1).unwrap_or(u8::MAX);
        let mut numbers = (LINKS_MAX..end).map(ServerConnection);
        numbers.find(|number| !self.fetching.contains_key(number))
    }

    /// Carries what follows at the connections by which lanes fetch ahead. It is called while the lane is being drained.
    fn pass_further(&mut self, now: Time) {
        while let Some(output) = self.further.poll_output() {
            match output {
                FurtherOutput::Command(connection, command) => self.command(connection, command),
                FurtherOutput::Event(connection, event) => {
                    let is_over = matches!(
                        event,
                        ServerEvent::ConnectFailed(_) | ServerEvent::Closed | ServerEvent::Failed
                    );
                    let of = match is_over {
                        true => self.fetching.remove(&connection),
                        false => self.fetching.get(&connection).copied(),
                    };
                    if let Some((number, own)) = of {
                        self.tell_fetch(now, number, own, event);
                    }
                }
            }
        }
    }

    fn tell_fetch(&mut self, now: Time, number: u8, own: ServerConnection, event: ServerEvent) {
        if let Some(lane) = self.lanes.get_mut(&number) {
            let input = AcceleratorInput::Server(own, event);
            lane.far.handle(now, input);
        }
    }

    /// A lane fetches nothing ahead any more.
    fn end_fetches(&mut self, number: u8) {
        let of_lane = |(connection, (lane, _)): (&ServerConnection, &(u8, ServerConnection))| {
            (*lane == number).then_some(*connection)
        };
        let connections: Vec<ServerConnection> = self.fetching.iter().filter_map(of_lane).collect();
        for connection in connections {
            self.fetching.remove(&connection);
            let refuse = || Err(OriginFault::plain(reasons::TLS_OFF));
            let reset = ServerCommand::Reset;
            self.further.command(connection, reset, refuse);
        }
        while let Some(output) = self.further.poll_output() {
            if let FurtherOutput::Command(connection, command) = output {
                self.command(connection, command);
            }
        }
    }

    fn say(&mut self, number: u8) {
        if self.said != Some(number) {
            self.said = Some(number);
            self.send_frame(&TlsFrame::Lane(number));
        }
    }

    /// The connection of a number is over; the near half says when the number is free.
    fn end(&mut self, number: u8, is_clean: bool) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        if !std::mem::replace(&mut lane.is_ended, true) {
            lane.queue.clear();
            lane.queued = 0;
            if let Some(link) = lane.link.take() {
                self.command(link.connection, ServerCommand::Reset);
            }
            self.waiting.retain(|waiting| *waiting != number);
            self.end_fetches(number);
            self.send_frame(&TlsFrame::LaneEnded(number, is_clean));
        }
    }

    /// Sends what the origin's connection takes now.
    fn write(&mut self, number: u8) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        let Some(link) = &mut lane.link else {
            return;
        };
        let mut gone = 0;
        while link.stream.is_verified()
            && link.untaken < UNTAKEN_MAX
            && let Some(first) = lane.queue.front_mut()
        {
            let piece = first.split_to(first.len().min(PIECE));
            if first.is_empty() {
                lane.queue.pop_front();
            }
            lane.queued -= piece.len();
            gone += piece.len();
            link.stream.send(&piece);
            let output = link.stream.take_output();
            link.untaken += output.len();
            let write = ServerCommand::Write(output);
            let write = AcceleratorOutput::Server(link.connection, write);
            self.outputs.push_back(write);
        }
        if gone > 0 {
            self.send_frame(&TlsFrame::Taken(number, gone as u32));
        }
    }

    fn flush(&mut self, number: u8) {
        let lane = self.lanes.get_mut(&number);
        let Some(link) = lane.and_then(|lane| lane.link.as_mut()) else {
            return;
        };
        let output = link.stream.take_output();
        if !output.is_empty() && link.is_connected {
            link.untaken += output.len();
            let connection = link.connection;
            self.command(connection, ServerCommand::Write(output));
        }
    }

    /// Takes what happened to a connection.
    pub(super) fn server_event(&mut self, now: Time, which: ServerConnection, event: ServerEvent) {
        if let Some((number, _)) = self.fetching.get(&which).copied() {
            self.further.event(which, event);
            self.pass_further(now);
            return self.drain_lane(now, number);
        }
        let is_of = |lane: &OriginLane| {
            let link = lane.link.as_ref();
            link.is_some_and(|link| link.connection == which)
        };
        let mut lanes = self.lanes.iter();
        let found = lanes
            .find(|(_, lane)| is_of(lane))
            .map(|(number, _)| *number);
        if let Some(number) = found {
            self.link_event(now, number, event);
            self.drop_closing_link(number);
            self.serve_waiting(now);
        }
    }

    /// The origin ends a connection behind a response; the lane takes another one with its next request.
    fn drop_closing_link(&mut self, number: u8) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        if !lane.is_ended
            && lane.far.take_closing()
            && let Some(link) = lane.link.take()
        {
            self.command(link.connection, ServerCommand::Reset);
        }
    }

    fn link_event(&mut self, now: Time, number: u8, event: ServerEvent) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        let Some(link) = &mut lane.link else {
            return;
        };
        match event {
            ServerEvent::Connected => {
                link.is_connected = true;
                self.flush(number);
            }
            ServerEvent::Received(bytes) => {
                let received = link.stream.receive(&bytes);
                let was_verified = link.stream.is_verified();
                if was_verified {
                    link.deadline = None;
                }
                self.flush(number);
                if !received.plain.is_empty() {
                    self.tell(now, number, AcceleratorInput::Lan(received.plain));
                }
                match received.fault {
                    Some(_) if was_verified => self.link_ended(now, number, false),
                    Some(fault) => {
                        self.end(number, false);
                        self.fault = Some(fault);
                    }
                    None => {
                        self.write(number);
                        if received.is_finished {
                            self.link_ended(now, number, true);
                        }
                    }
                }
            }
            ServerEvent::Taken(bytes) => {
                link.untaken = link.untaken.saturating_sub(bytes);
                self.write(number);
            }
            // RFC 8446 §6.1 (Closure Alerts): without one, somebody else may have cut the response.
            ServerEvent::Finished => {
                let is_clean = lane.far.is_between_responses();
                self.link_ended(now, number, is_clean);
            }
            ServerEvent::ConnectFailed(_) | ServerEvent::Closed | ServerEvent::Failed => {
                self.link_ended(now, number, false);
            }
        }
    }

    /// The link of a lane has ended. A lane without a request takes another one with its next.
    fn link_ended(&mut self, now: Time, number: u8, is_clean: bool) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        match (lane.is_idle(), is_clean) {
            (true, _) => {
                if let Some(link) = lane.link.take() {
                    self.command(link.connection, ServerCommand::Reset);
                }
            }
            (false, true) => self.tell(now, number, AcceleratorInput::LanFinished),
            (false, false) => self.end(number, false),
        }
    }

    /// When the half of a lane wants to be told.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let lanes = self.lanes.values().filter(|lane| !lane.is_ended);
        lanes
            .flat_map(|lane| {
                let deadline = lane.link.as_ref().and_then(|link| link.deadline);
                [deadline, lane.far.poll_timeout()]
            })
            .flatten()
            .min()
    }

    /// Gives up handshakes that last too long.
    pub(super) fn timed_out(&mut self, now: Time) {
        let is_late = |lane: &OriginLane| {
            let deadline = lane.link.as_ref().and_then(|link| link.deadline);
            deadline.is_some_and(|at| at <= now)
        };
        let lanes = self.lanes.iter().filter(|(_, lane)| !lane.is_ended);
        let late: Vec<u8> = lanes
            .filter(|(_, lane)| is_late(lane))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            self.end(number, false);
        }
        self.serve_waiting(now);
        self.tell_all(now, &AcceleratorInput::Timeout);
    }

    /// Tells all lanes.
    pub(super) fn tell_all(&mut self, now: Time, input: &AcceleratorInput) {
        let numbers: Vec<u8> = self.lanes.keys().copied().collect();
        for number in numbers {
            self.tell(now, number, input.clone());
        }
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        let lanes = self.lanes.values();
        lanes
            .map(|lane| {
                let link = lane.link.as_ref().map_or(0, |_| STREAM_OVERHEAD);
                lane.queued + lane.far.buffered() + link + 512
            })
            .sum::<usize>()
            + self.further.held()
    }
}
