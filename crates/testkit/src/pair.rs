//! Two machines and the path between them, run in virtual time.

use std::time::Duration;

use bytes::Bytes;
use emulate::Link;
use vocab::Time;

use crate::byte_pipe::{BytePipe, PipeConfig};
use crate::schedule::{VirtualClock, earliest};

/// One end: a core, as a test wraps it. The methods are the drain contract of every core.
pub trait TestMachine {
    /// Takes in what arrived: some bytes of a pipe, or one packet.
    fn receive(&mut self, now: Time, bytes: Bytes);
    /// Returns the next bytes to send, at most `max`; `None` when there are none.
    fn transmit(&mut self, now: Time, max: usize) -> Option<Bytes>;
    /// Returns the time at which to call [`TestMachine::handle_timeout`].
    fn poll_timeout(&self) -> Option<Time>;
    /// Handles expired timers.
    fn handle_timeout(&mut self, now: Time);
}

/// Path between two machines.
#[derive(Debug)]
pub enum MachinePath {
    /// A reliable byte pipe: from A to B and back.
    Bytes(Box<[BytePipe; 2]>),
    /// Packets, which may be lost. A is at the link's end A.
    Packets(Box<Link>),
}

impl MachinePath {
    /// Makes a path of equal byte pipes in both directions.
    #[must_use]
    pub fn bytes(config: PipeConfig) -> Self {
        MachinePath::Bytes(Box::new([BytePipe::new(config), BytePipe::new(config)]))
    }

    /// A packet link.
    #[must_use]
    pub fn packets(link: Link) -> Self {
        MachinePath::Packets(Box::new(link))
    }

    /// Returns the largest size of one write to the path: the send buffer's room, or one packet.
    fn room(&mut self, now: Time, way: usize) -> usize {
        match self {
            MachinePath::Bytes(pipes) => pipes[way].writable(now),
            MachinePath::Packets(_) => PACKET_BYTES,
        }
    }

    fn send(&mut self, now: Time, way: usize, bytes: Bytes) {
        match self {
            MachinePath::Bytes(pipes) => pipes[way].send(now, bytes),
            MachinePath::Packets(link) => {
                // A packet that the queue drops is what the test is about.
                let _ = direction(link, way).handle(now, bytes);
            }
        }
    }

    fn poll(&mut self, now: Time, way: usize) -> Option<Bytes> {
        match self {
            MachinePath::Bytes(pipes) => pipes[way].poll(now),
            MachinePath::Packets(link) => Some(direction(link, way).poll_output(now)?.packet),
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        match self {
            MachinePath::Bytes(pipes) => earliest(pipes.iter().map(BytePipe::poll_timeout)),
            MachinePath::Packets(link) => link.poll_timeout(),
        }
    }
}

fn direction(link: &mut Link, way: usize) -> &mut emulate::LinkDirection {
    if way == FORWARD {
        &mut link.forward
    } else {
        &mut link.back
    }
}

const FORWARD: usize = 0;
const BACK: usize = 1;

/// The longest packet that a machine is asked for: the MTU that the emulated devices have too.
const PACKET_BYTES: usize = 1_500;

/// Free bytes that a byte pipe must have before a machine is asked to send. A socket is not
/// reported writable for a single byte either.
const ROOM_MIN: usize = 1_448;

/// Two machines over a path.
#[derive(Debug)]
pub struct MachinePair<A, B> {
    /// One end.
    pub a: A,
    /// The other.
    pub b: B,
    /// Path between the machines; a test may block or kill its pipes between two runs.
    pub path: MachinePath,
    /// Clock of both machines.
    pub clock: VirtualClock,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RunOutcome {
    /// The awaited condition holds.
    Reached,
    /// The condition did not hold when the time was up.
    TimedOut,
    /// The condition does not hold, and nothing is due any more.
    Idle,
}

impl<A: TestMachine, B: TestMachine> MachinePair<A, B> {
    /// Both machines at the clock's epoch.
    pub fn new(a: A, b: B, path: MachinePath) -> Self {
        Self {
            a,
            b,
            path,
            clock: VirtualClock::new(),
        }
    }

    /// Runs until `reached` says so, or for `at_most` of virtual time.
    pub fn run_until(
        &mut self,
        at_most: Duration,
        mut reached: impl FnMut(&mut A, &mut B) -> bool,
    ) -> RunOutcome {
        let end = self.clock.now() + at_most;
        loop {
            self.settle();
            if reached(&mut self.a, &mut self.b) {
                return RunOutcome::Reached;
            }
            let timers = [
                self.a.poll_timeout(),
                self.b.poll_timeout(),
                self.path.poll_timeout(),
            ];
            let Some(next) = earliest(timers) else {
                self.clock.jump_to(end);
                return RunOutcome::Idle;
            };
            if next > end {
                self.clock.jump_to(end);
                return RunOutcome::TimedOut;
            }
            self.clock.jump_to(next);
        }
    }

    /// Runs for `span`, whatever happens.
    pub fn run_for(&mut self, span: Duration) {
        let _ = self.run_until(span, |_, _| false);
    }

    /// Does all that can be done at this moment.
    fn settle(&mut self) {
        let now = self.clock.now();
        if self.a.poll_timeout().is_some_and(|due| due <= now) {
            self.a.handle_timeout(now);
        }
        if self.b.poll_timeout().is_some_and(|due| due <= now) {
            self.b.handle_timeout(now);
        }
        loop {
            // Each in turn, so that with no delay a question and its answer share one moment.
            let mut moved = exchange(now, &mut self.a, &mut self.path, FORWARD, BACK);
            moved |= exchange(now, &mut self.b, &mut self.path, BACK, FORWARD);
            if !moved {
                return;
            }
        }
    }
}

/// Passes a machine the arrived data, then takes the data that it sends. Returns `true` if anything
/// moved.
fn exchange(
    now: Time,
    machine: &mut impl TestMachine,
    path: &mut MachinePath,
    out: usize,
    back: usize,
) -> bool {
    let mut moved = false;
    while let Some(bytes) = path.poll(now, back) {
        machine.receive(now, bytes);
        moved = true;
    }
    loop {
        let room = path.room(now, out);
        if room < ROOM_MIN {
            return moved;
        }
        let Some(bytes) = machine.transmit(now, room) else {
            return moved;
        };
        path.send(now, out, bytes);
        moved = true;
    }
}

#[cfg(test)]
mod tests {
    use emulate::{DirectionConfig, LineConfig, LinkConfig};
    use vocab::{Bitrate, ByteCount, Probability};

    use super::*;

    /// Sends a number of bytes, counts what comes.
    #[derive(Default)]
    struct ByteCounter {
        unsent: usize,
        received: usize,
        last: Time,
    }

    impl TestMachine for ByteCounter {
        fn receive(&mut self, now: Time, bytes: Bytes) {
            self.received += bytes.len();
            self.last = now;
        }

        fn transmit(&mut self, _now: Time, max: usize) -> Option<Bytes> {
            let length = self.unsent.min(max);
            self.unsent -= length;
            (length > 0).then(|| Bytes::from(vec![0; length]))
        }

        fn poll_timeout(&self) -> Option<Time> {
            None
        }

        fn handle_timeout(&mut self, _now: Time) {}
    }

    fn sender(bytes: usize) -> ByteCounter {
        ByteCounter {
            unsent: bytes,
            ..ByteCounter::default()
        }
    }

    #[test]
    fn byte_pipe_carries_a_megabyte_at_tcp_goodput() {
        let path = MachinePath::bytes(PipeConfig::default());
        let mut pair = MachinePair::new(sender(1_448_000), ByteCounter::default(), path);
        let outcome = pair.run_until(Duration::from_secs(60), |_, b| b.received == 1_448_000);
        assert_eq!(outcome, RunOutcome::Reached);
        // 1,000 full packets at 10 Mbit/s and the way of the last one. Where the send buffer's
        // edge cut a segment in two, one more header.
        let seconds = pair.clock.now().since(Time::ZERO).as_secs_f64();
        assert!((1.215..1.220).contains(&seconds), "{seconds}");
    }

    #[test]
    fn small_send_buffer_fills_a_long_path() {
        let path = MachinePath::bytes(PipeConfig {
            delay: Duration::from_millis(600),
            ..PipeConfig::default()
        });
        let mut pair = MachinePair::new(sender(1_448_000), ByteCounter::default(), path);
        let outcome = pair.run_until(Duration::from_secs(60), |_, b| b.received == 1_448_000);
        assert_eq!(outcome, RunOutcome::Reached);
        let seconds = pair.clock.now().since(Time::ZERO).as_secs_f64();
        assert!((1.8..1.805).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_packet_path_keeps_rate_and_loss() {
        let way = DirectionConfig {
            line: LineConfig::Rate(Bitrate::from_bits_per_second(10_000_000)),
            delay: Duration::from_millis(15),
            loss: Probability::from_fraction(0.1).unwrap().into(),
            queue: ByteCount::mebibytes(16).into(),
            ..DirectionConfig::default()
        };
        let path = MachinePath::packets(Link::new(LinkConfig::symmetric(way, 1)));
        let mut pair = MachinePair::new(sender(1_500_000), ByteCounter::default(), path);
        let outcome = pair.run_until(Duration::from_secs(60), |_, _| false);
        assert_eq!(outcome, RunOutcome::Idle);
        let packets = pair.b.received / 1_500;
        assert!((868..=932).contains(&packets), "{packets} of 1,000");
        assert!(pair.b.last <= Time::from_epoch(Duration::from_millis(1_215)));
    }

    #[test]
    fn time_passes_even_when_nothing_happens() {
        let path = MachinePath::bytes(PipeConfig::default());
        let mut pair = MachinePair::new(ByteCounter::default(), ByteCounter::default(), path);
        pair.run_for(Duration::from_secs(5));
        assert_eq!(pair.clock.now(), Time::from_epoch(Duration::from_secs(5)));
    }
}
