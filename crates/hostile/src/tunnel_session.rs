//! Fuzz entry of `tunnel`: two sessions, one of which gets forged input.
//!
//! The script moves bytes between the sessions through its own pipes, so a link may break with data
//! in flight. Without forged input every flow must deliver exactly the written data, in order, over
//! all changes of links. With forged input neither session may panic, loop forever, or hold more
//! flows than the limit.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tunnel::wire::{
    DataFrame, FinishFrame, FlowAck, MessageAck, ReceiptState, SessionFrame, TotalCredit,
};
use tunnel::{
    LinkEnd, LinkId, OpenAnswer, OpenRequest, ResetReason, Session, SessionConfig, SessionEvent,
};
use vocab::{ByteCount, ByteWriter, FlowId, NodeId, SeededRandom, Time};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed};

/// Events after one step past which a session is taken to be in a circle: each flow may have a
/// few, and a script opens no more than it has steps.
const MOST_EVENTS: usize = 50_000;

/// Flows that its peer may open in a session here; small, so that a script reaches it.
const FLOW_LIMIT: usize = 16;

/// One of the two sessions and what the script knows of it.
struct SessionSide {
    session: Session,
    /// Bytes it has sent and that have not arrived.
    pipe: Vec<u8>,
    /// State of each flow: bytes read, and its end.
    flows: BTreeMap<FlowId, SessionFlow>,
    /// Flows that it has opened itself so far.
    opened: usize,
}

#[derive(Default)]
struct SessionFlow {
    written: u64,
    read: u64,
    is_finished: bool,
}

/// Both sessions, the link between them, and whether all was honest so far.
struct SessionPair {
    now: Time,
    link: LinkId,
    sides: [SessionSide; 2],
    forged: bool,
}

/// Runs a script against the pair.
pub(crate) fn session(bytes: &[u8]) {
    run(bytes);
}

fn run(bytes: &[u8]) -> SessionPair {
    let mut script = ByteScript::new(bytes);
    let mut pair = SessionPair::new();
    while let Some(step) = script.step() {
        let side = usize::from(step >> 7);
        pair.take_step(step & 0x1f, side, &mut script);
        pair.drain();
    }
    pair.settle();
    pair
}

impl SessionPair {
    fn new() -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let side = |local: u8, peer: u8| {
            let config = SessionConfig {
                flow_window: ByteCount::kibibytes(4),
                flow_limit: FLOW_LIMIT,
                ..SessionConfig::default()
            };
            let (local, peer) = (NodeId([local; 32]), NodeId([peer; 32]));
            let random = SeededRandom::from_seed(u64::from(local.0[0]));
            SessionSide {
                session: Session::new(config, local, peer, random, now),
                pipe: Vec::new(),
                flows: BTreeMap::new(),
                opened: 0,
            }
        };
        let mut pair = Self {
            now,
            link: LinkId(0),
            sides: [side(1, 2), side(2, 1)],
            forged: false,
        };
        pair.replace_link();
        pair
    }

    fn take_step(&mut self, step: u8, side: usize, script: &mut ByteScript<'_>) {
        match step {
            0 | 1 => self.transmit(side, usize::from(script.short())),
            2 | 3 => {
                let length = usize::from(script.short());
                self.deliver(side, length);
            }
            4 => self.open(side, script.byte()),
            5 => self.write(side, script.byte(), usize::from(script.short())),
            6 => {
                if let Some(flow) = self.sides[side].pick(script.byte()) {
                    let known = self.sides[side].flows.entry(flow).or_default();
                    if !std::mem::replace(&mut known.is_finished, true) {
                        self.sides[side].session.finish(flow);
                    }
                }
            }
            7 => self.reset(side, script.byte()),
            8 => self.read(side, script.byte(), usize::from(script.short())),
            9 => {
                if let Some(flow) = self.sides[side].pick(script.byte()) {
                    self.sides[side].session.answer(flow, OpenAnswer::Connected);
                }
            }
            10 => self.replace_link(),
            11 => {
                self.sides[side]
                    .session
                    .link_down(self.now, self.link, LinkEnd::Lost);
                self.sides[side].pipe.clear();
            }
            12 => self.wait(Duration::from_millis(u64::from(script.short()))),
            13 => {
                let flow = self.sides[side].pick(script.byte()).unwrap_or(FlowId(0));
                let bytes = Bytes::copy_from_slice(script.bytes());
                self.sides[side].session.send_message(flow, 1, bytes);
            }
            14 => self.sides[side].session.goaway(self.now),
            15 => {
                self.forged = true;
                self.sides[side].pipe.extend_from_slice(script.bytes());
            }
            16 => {
                let at = usize::from(script.short());
                let flipped = script.byte();
                if let Some(byte) = self.sides[side].pipe.get_mut(at) {
                    *byte ^= flipped;
                    self.forged = true;
                }
            }
            17..=23 => self.forge(step, side, script),
            24 => {
                self.transmit(side, usize::from(u16::MAX));
                self.deliver(side, usize::MAX);
            }
            _ => self.settle(),
        }
    }

    /// Puts a frame into a pipe that its session never sent, about a flow that exists.
    fn forge(&mut self, kind: u8, side: usize, script: &mut ByteScript<'_>) {
        let flow = self.sides[side].pick(script.byte()).unwrap_or(FlowId(7));
        let large = u64::from(script.short()) << (script.byte() % 46);
        let frame = match kind {
            17 | 18 => SessionFrame::Ack(FlowAck {
                flow,
                received: large,
                consumed: large / 2,
                limit: large + u64::from(script.short()),
                finish: ReceiptState::Seen,
            }),
            19 | 20 => SessionFrame::Data(DataFrame {
                flow,
                offset: large,
                bytes: Bytes::from_static(b"forged"),
            }),
            21 => SessionFrame::Finish(FinishFrame {
                flow,
                final_offset: large,
            }),
            22 => SessionFrame::TotalCredit(TotalCredit { window: large }),
            _ => SessionFrame::MessageAck(MessageAck { next: large }),
        };
        let mut writer = ByteWriter::new();
        frame.emit(&mut writer);
        self.forged = true;
        self.sides[side].pipe.extend_from_slice(&writer.finish());
    }

    fn replace_link(&mut self) {
        for side in &mut self.sides {
            side.session.link_down(self.now, self.link, LinkEnd::Lost);
            side.pipe.clear();
        }
        self.link = LinkId(self.link.0 + 1);
        self.sides[0].session.link_up(self.now, self.link, true);
        self.sides[1].session.link_up(self.now, self.link, false);
    }

    /// Takes what a session wants to send into its pipe.
    fn transmit(&mut self, side: usize, max: usize) {
        let sender = &mut self.sides[side];
        if let Some(bytes) = sender.session.poll_transmit(self.now, self.link, max) {
            assert!(!bytes.is_empty(), "nothing was sent");
            sender.pipe.extend_from_slice(&bytes);
        }
    }

    /// Hands the front of a side's pipe to the other side; an error closes the link, as a shell
    /// does.
    fn deliver(&mut self, side: usize, length: usize) {
        let length = length.min(self.sides[side].pipe.len());
        let bytes: Vec<u8> = self.sides[side].pipe.drain(..length).collect();
        let receiver = &mut self.sides[1 - side];
        if let Err(error) = receiver.session.handle(self.now, self.link, &bytes) {
            assert!(self.forged, "an honest peer was refused: {error}");
            self.replace_link();
        }
    }

    fn open(&mut self, side: usize, port: u8) {
        let open = OpenRequest {
            client: SocketAddr::from(([198, 18, 1, 2], 40_000)),
            server: SocketAddr::from(([198, 18, 2, 2], u16::from(port))),
            accelerator: 0,
            keep_client_address: true,
            may_store: true,
            dscp: 0,
        };
        if let Ok(flow) = self.sides[side].session.open(self.now, open) {
            self.sides[side].opened += 1;
            let before = self.sides[side].flows.insert(flow, SessionFlow::default());
            assert!(before.is_none(), "flow {flow} was used before");
        }
    }

    fn write(&mut self, side: usize, which: u8, length: usize) {
        let Some(flow) = self.sides[side].pick(which) else {
            return;
        };
        let room = self.sides[side].session.writable(flow).min(length);
        let known = self.sides[side].flows.entry(flow).or_default();
        if room == 0 || known.is_finished {
            return;
        }
        let bytes: Vec<u8> = (known.written..).take(room).map(pattern).collect();
        known.written += room as u64;
        self.sides[side].session.write(flow, bytes.into());
    }

    fn read(&mut self, side: usize, which: u8, max: usize) {
        let Some(flow) = self.sides[side].pick(which) else {
            return;
        };
        let reader = &mut self.sides[side];
        let Some(bytes) = reader.session.read(flow, max.max(1)) else {
            return;
        };
        let known = reader.flows.entry(flow).or_default();
        if !self.forged {
            let expected = (known.read..).map(pattern);
            assert!(
                expected
                    .zip(&bytes)
                    .all(|(expected, byte)| expected == *byte),
                "flow {flow} differs after {} bytes",
                known.read
            );
        }
        known.read += bytes.len() as u64;
        let read = known.read;
        reader.session.consumed(flow, read);
    }

    fn reset(&mut self, side: usize, which: u8) {
        if let Some(flow) = self.sides[side].pick(which) {
            self.sides[side].session.reset(flow, ResetReason::HostReset);
            self.sides[side].flows.remove(&flow);
        }
    }

    fn wait(&mut self, span: Duration) {
        self.now += span;
        for side in &mut self.sides {
            if side.session.poll_timeout().is_some_and(|at| at <= self.now) {
                side.session.handle_timeout(self.now);
            }
        }
    }

    /// Takes all events, as the engine does after each input.
    fn drain(&mut self) {
        for side in &mut self.sides {
            let mut count = 0;
            while let Some(event) = side.session.poll_event() {
                side.note(&event);
                count += 1;
                assert!(count < MOST_EVENTS, "events without an end");
            }
            assert!(side.session.flow_count() <= side.opened + FLOW_LIMIT);
        }
    }

    /// Lets both sides send, read and wait until neither has anything left, or for a while.
    fn settle(&mut self) {
        let mut quiet_rounds = 0;
        for _ in 0..50 {
            quiet_rounds += 1;
            for side in [0, 1] {
                let before = self.sides[side].pipe.len();
                self.transmit(side, usize::from(u16::MAX));
                if before > 0 || !self.sides[side].pipe.is_empty() {
                    quiet_rounds = 0;
                }
                self.deliver(side, usize::MAX);
                self.drain();
                for which in 0..FLOW_LIMIT as u8 {
                    self.read(side, which, usize::from(u16::MAX));
                }
            }
            self.wait(Duration::from_millis(30));
            self.drain();
            // Acknowledgements wait 25 ms for company, so one quiet round is no end.
            if quiet_rounds > 2 {
                break;
            }
        }
    }
}

impl SessionSide {
    /// One of the flows that the script knows of.
    fn pick(&self, which: u8) -> Option<FlowId> {
        let count = self.flows.len();
        let at = usize::from(which).checked_rem(count)?;
        self.flows.keys().nth(at).copied()
    }

    fn note(&mut self, event: &SessionEvent) {
        match event {
            SessionEvent::Opened { flow, .. } => {
                self.flows.insert(*flow, SessionFlow::default());
            }
            SessionEvent::Reset { flow, .. } | SessionEvent::Closed { flow } => {
                self.flows.remove(flow);
            }
            SessionEvent::LinkAttached { .. }
            | SessionEvent::LinkReplaced { .. }
            | SessionEvent::LinkLost { .. }
            | SessionEvent::Hello { .. }
            | SessionEvent::Answered { .. }
            | SessionEvent::Readable { .. }
            | SessionEvent::Finished { .. }
            | SessionEvent::Writable { .. }
            | SessionEvent::Consumed { .. }
            | SessionEvent::Message { .. }
            | SessionEvent::Silent
            | SessionEvent::Heard
            | SessionEvent::PeerRestarted
            | SessionEvent::PeerLost { .. }
            | SessionEvent::GoAway
            | SessionEvent::DatagramsAgreed { .. }
            | SessionEvent::DatagramsUp
            | SessionEvent::DatagramsDown { .. }
            | SessionEvent::Drained => {}
        }
    }
}

/// The byte that an honest writer puts at this offset; its period is no power of two.
fn pattern(offset: u64) -> u8 {
    (offset % 251) as u8
}

/// Good inputs for [`session`].
pub(crate) fn session_seeds() -> Vec<CorpusSeed> {
    const FAR: u8 = 0x80;
    let flow: &[u8] = &[
        25,
        4,
        80,
        5,
        0,
        1,
        0,
        25,
        FAR | 9,
        0,
        FAR | 5,
        0,
        8,
        0,
        25,
        6,
        0,
    ];
    let end: &[u8] = &[FAR | 6, 0, 25];
    let broken: &[u8] = &[5, 0, 16, 0, 0, 4, 0, 2, 0, 100, 10, 25, 25];
    let lies: &[u8] = &[17, 0, 255, 255, 10, 0, 9, 2, 255, 255, 25];
    vec![
        seed("one-flow", [flow, end].concat()),
        seed("broken-link", [&flow[..10], broken, end].concat()),
        seed(
            "both-ways",
            [flow, &flow[1..], &[FAR | 4, 21, 25], end].concat(),
        ),
        seed(
            "outage",
            [&flow[..5], &[5, 0, 2, 0, 11, 12, 200, 0, 10], end].concat(),
        ),
        seed("given-up", [flow, &[11, 12, 255, 255, 10, 25]].concat()),
        seed("reset", [flow, &[7, 0, 25, FAR | 14, 4, 1, 25]].concat()),
        seed("message", [flow, &[13, 0, 0, 3, 1, 2, 3, 10, 25]].concat()),
        seed("forged-ack", [flow, lies].concat()),
        seed(
            "bent",
            [&flow[..9], &[0, 255, 255, 16, 0, 9, 4, 2, 255, 255, 25]].concat(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes written on one side and read on the other, of the flows that are still there.
    fn written_and_read(pair: &SessionPair, writer: usize) -> (u64, u64) {
        let written = pair.sides[writer].flows.values().map(|flow| flow.written);
        let read = pair.sides[1 - writer].flows.values().map(|flow| flow.read);
        (written.sum(), read.sum())
    }

    #[test]
    fn an_honest_script_moves_bytes_both_ways() {
        let open_write_answer = [
            25,
            4,
            80,
            5,
            0,
            1,
            0,
            25,
            0x80 | 9,
            0,
            0x80 | 5,
            0,
            8,
            0,
            25,
        ];
        let pair = run(&open_write_answer);
        assert!(!pair.forged);
        assert_eq!(written_and_read(&pair, 0), (256, 256));
        assert_eq!(written_and_read(&pair, 1), (2_048, 2_048));
    }

    #[test]
    fn bytes_lost_with_a_link_arrive_later() {
        // Written and sent into the pipe; half of it delivered; the link is replaced.
        let pair = run(&[25, 4, 80, 25, 5, 0, 8, 0, 0, 255, 255, 2, 0, 100, 10]);
        assert!(!pair.forged);
        assert_eq!(written_and_read(&pair, 0), (2_048, 2_048));
    }
}
