//! Beside the origin, the lanes of an HTTP/2 client: a TLS connection for each number.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::far::{HANDSHAKE_WITHIN, STREAM_OVERHEAD};
use super::frames::TlsFrame;
use super::lanes::{LANE_CREDIT, LANES_MAX};
use super::origin::{OriginFault, OriginStream, OriginTrust};
use crate::http::far::HttpFarHalf;
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ServerCommand, ServerConnection,
    ServerEvent, ServerFailure,
};

/// Bytes on the wire that the operating system may have to take, below [`ServerConnection::UNTAKEN_MAX`].
const UNTAKEN_MAX: usize = 128 * 1024;
/// Bytes of a request that are encrypted at once.
const PIECE: usize = 16 * 1024;

/// All lanes of one client's connection.
pub(super) struct OriginLanes {
    trust: Arc<OriginTrust>,
    name: String,
    may_store: bool,
    lanes: BTreeMap<u8, OriginLane>,
    heard: Option<u8>,
    said: Option<u8>,
    /// The origin's certificate is not valid any more.
    fault: Option<OriginFault>,
    outputs: VecDeque<AcceleratorOutput>,
}

struct OriginLane {
    stream: OriginStream,
    far: HttpFarHalf,
    is_connected: bool,
    /// Bytes that wait for the origin.
    queue: VecDeque<Bytes>,
    queued: usize,
    untaken: usize,
    /// Bytes that may still be sent to the client, less than none while reading pauses.
    credit: i64,
    is_paused: bool,
    /// The near half knows that nothing follows.
    is_ended: bool,
    /// When the handshake is given up.
    deadline: Option<Time>,
}

impl OriginLanes {
    /// No lane is open.
    pub(super) fn new(trust: Arc<OriginTrust>, name: String, may_store: bool) -> Self {
        Self {
            trust,
            name,
            may_store,
            lanes: BTreeMap::new(),
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

    fn command(&mut self, number: u8, command: ServerCommand) {
        let command = AcceleratorOutput::Server(ServerConnection(number), command);
        self.outputs.push_back(command);
    }

    /// Takes a frame of the near half; false if it is none that the near half sends.
    pub(super) fn hear_frame(&mut self, now: Time, frame: &TlsFrame) -> bool {
        match *frame {
            TlsFrame::Lane(number) if number < LANES_MAX => {
                self.heard = Some(number);
                self.open(now, number);
            }
            TlsFrame::Reset(number) if number < LANES_MAX => {
                if let Some(lane) = self.lanes.remove(&number)
                    && !lane.is_ended
                {
                    self.command(number, ServerCommand::Reset);
                }
                // Segments that follow say anew whose they are, and so do ours.
                self.heard = self.heard.filter(|heard| *heard != number);
                self.send_frame(&TlsFrame::ResetDone(number));
            }
            TlsFrame::Credit(number, bytes) => {
                if let Some(lane) = self.lanes.get_mut(&number) {
                    lane.credit = (lane.credit + i64::from(bytes)).min(i64::from(LANE_CREDIT));
                    if lane.is_paused && lane.credit > 0 {
                        lane.is_paused = false;
                        self.command(number, ServerCommand::ResumeReading);
                    }
                }
            }
            _ => return false,
        }
        true
    }

    /// Opens the connection of a number that has none.
    fn open(&mut self, now: Time, number: u8) {
        if self.lanes.contains_key(&number) {
            return;
        }
        match OriginStream::new(&self.trust, &self.name) {
            Ok(stream) => {
                let lane = OriginLane {
                    stream,
                    far: HttpFarHalf::new(),
                    is_connected: false,
                    queue: VecDeque::new(),
                    queued: 0,
                    untaken: 0,
                    credit: i64::from(LANE_CREDIT),
                    is_paused: false,
                    is_ended: false,
                    deadline: Some(now + HANDSHAKE_WITHIN),
                };
                self.lanes.insert(number, lane);
                self.command(number, ServerCommand::Open);
                self.tell(now, number, AcceleratorInput::Start);
            }
            Err(fault) => self.fault = Some(fault),
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
        while let Some(lane) = self.lanes.get_mut(&number)
            && let Some(output) = lane.far.poll_output()
        {
            match output {
                AcceleratorOutput::ToLan(bytes) => {
                    lane.queued += bytes.len();
                    lane.queue.push_back(bytes);
                    self.write(number);
                }
                AcceleratorOutput::ToWan(mut segment) => {
                    if segment.kind == SegmentKind::Frame {
                        continue;
                    }
                    if segment.kind == SegmentKind::Payload && !self.may_store {
                        segment.kind = SegmentKind::Control;
                    }
                    lane.credit -= segment.bytes.len() as i64;
                    if lane.credit <= 0 && !std::mem::replace(&mut lane.is_paused, true) {
                        self.command(number, ServerCommand::PauseReading);
                    }
                    self.say(number);
                    self.outputs.push_back(AcceleratorOutput::ToWan(segment));
                }
                AcceleratorOutput::EndBody if self.may_store => {
                    self.outputs.push_back(AcceleratorOutput::EndBody);
                }
                AcceleratorOutput::FinishWan => self.end(number, true),
                // The lanes use the further connections themselves, so what a half fetches ahead is refused.
                AcceleratorOutput::Server(which, ServerCommand::Open) => {
                    let failed = ServerEvent::ConnectFailed(ServerFailure::Limit);
                    lane.far
                        .handle(now, AcceleratorInput::Server(which, failed));
                }
                AcceleratorOutput::EndBody
                | AcceleratorOutput::Server(..)
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
            self.command(number, ServerCommand::Reset);
            self.send_frame(&TlsFrame::LaneEnded(number, is_clean));
        }
    }

    /// Sends what the origin's connection takes now.
    fn write(&mut self, number: u8) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        let mut gone = 0;
        while lane.stream.is_verified()
            && lane.untaken < UNTAKEN_MAX
            && let Some(first) = lane.queue.front_mut()
        {
            let piece = first.split_to(first.len().min(PIECE));
            if first.is_empty() {
                lane.queue.pop_front();
            }
            lane.queued -= piece.len();
            gone += piece.len();
            lane.stream.send(&piece);
            let output = lane.stream.take_output();
            lane.untaken += output.len();
            let write = ServerCommand::Write(output);
            let write = AcceleratorOutput::Server(ServerConnection(number), write);
            self.outputs.push_back(write);
        }
        if gone > 0 {
            self.send_frame(&TlsFrame::Taken(number, gone as u32));
        }
    }

    fn flush(&mut self, number: u8) {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return;
        };
        let output = lane.stream.take_output();
        if !output.is_empty() && lane.is_connected {
            lane.untaken += output.len();
            self.command(number, ServerCommand::Write(output));
        }
    }

    /// Takes what happened to the connection of a number.
    pub(super) fn server_event(&mut self, now: Time, which: ServerConnection, event: ServerEvent) {
        let number = which.0;
        let Some(lane) = self.lanes.get_mut(&number).filter(|lane| !lane.is_ended) else {
            return;
        };
        match event {
            ServerEvent::Connected => {
                lane.is_connected = true;
                self.flush(number);
            }
            ServerEvent::Received(bytes) => {
                let received = lane.stream.receive(&bytes);
                let was_verified = lane.stream.is_verified();
                if was_verified {
                    lane.deadline = None;
                }
                self.flush(number);
                if !received.plain.is_empty() {
                    self.tell(now, number, AcceleratorInput::Lan(received.plain));
                }
                match received.fault {
                    Some(_) if was_verified => self.end(number, false),
                    Some(fault) => {
                        self.end(number, false);
                        self.fault = Some(fault);
                    }
                    None => {
                        self.write(number);
                        if received.is_finished {
                            self.tell(now, number, AcceleratorInput::LanFinished);
                        }
                    }
                }
            }
            ServerEvent::Taken(bytes) => {
                lane.untaken = lane.untaken.saturating_sub(bytes);
                self.write(number);
            }
            // RFC 8446 §6.1 (Closure Alerts): without one, somebody else may have cut the response.
            ServerEvent::Finished => match lane.far.is_between_responses() {
                true => self.tell(now, number, AcceleratorInput::LanFinished),
                false => self.end(number, false),
            },
            ServerEvent::ConnectFailed(_) | ServerEvent::Closed | ServerEvent::Failed => {
                self.end(number, false);
            }
        }
    }

    /// When the half of a lane wants to be told.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let lanes = self.lanes.values().filter(|lane| !lane.is_ended);
        lanes
            .flat_map(|lane| [lane.deadline, lane.far.poll_timeout()])
            .flatten()
            .min()
    }

    /// Gives up handshakes that last too long.
    pub(super) fn timed_out(&mut self, now: Time) {
        let is_late = |lane: &OriginLane| lane.deadline.is_some_and(|at| at <= now);
        let lanes = self.lanes.iter().filter(|(_, lane)| !lane.is_ended);
        let late: Vec<u8> = lanes
            .filter(|(_, lane)| is_late(lane))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            self.end(number, false);
        }
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
            .map(|lane| lane.queued + lane.far.buffered() + STREAM_OVERHEAD)
            .sum()
    }
}
