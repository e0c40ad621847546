//! Two TCP hosts at the ends of an emulated link, in virtual time.
//!
//! The link carries whole IP packets, so lengths, check sums and corruption are those of a real path.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use emulate::{Link, LinkDirection};
use tcp::{ConnectionConfig, ConnectionNumber, TcpHost, emit_packet, parse_packet};
use vocab::{SeededRandom, Time};

use crate::pair::RunOutcome;
use crate::schedule::{VirtualClock, earliest};

/// A client's host and a server's host with a link between them.
#[derive(Debug)]
pub struct TcpHostPair {
    /// Host at end A of the link.
    pub client: TcpHost,
    /// Host at end B of the link.
    pub server: TcpHost,
    /// The link.
    pub link: Link,
    /// Clock of both hosts.
    pub clock: VirtualClock,
    next_port: u16,
    pauses: VecDeque<(Time, Time)>,
}

/// Address of the server.
const SERVER: &str = "198.51.100.1:5201";
/// Address of the client; its port is the first one in use.
const CLIENT: &str = "192.0.2.1:10000";

impl TcpHostPair {
    /// Two hosts without connections; `seed` fixes their sequence numbers.
    #[must_use]
    pub fn new(link: Link, seed: u64) -> Self {
        Self {
            client: TcpHost::new(SeededRandom::for_stream(seed, 1)),
            server: TcpHost::new(SeededRandom::for_stream(seed, 2)),
            link,
            clock: VirtualClock::new(),
            next_port: address(CLIENT).port(),
            pauses: VecDeque::new(),
        }
    }

    /// Stops hosts and link between two times, as a machine does that has other work. What is due in between
    /// happens at the end. Pauses come in the order of their times.
    pub fn pause_at(&mut self, start: Time, end: Time) {
        self.pauses.push_back((start, end));
    }

    /// Time at which work that is due at `next` is done.
    fn behind_pauses(&mut self, next: Time) -> Time {
        while let Some((start, end)) = self.pauses.front().copied() {
            if next < start {
                return next;
            }
            if next < end {
                return end;
            }
            self.pauses.pop_front();
        }
        next
    }

    /// Opens a connection from the client's host to the listening server.
    ///
    /// # Panics
    /// When all ports are in use.
    pub fn connect(&mut self, config: ConnectionConfig) -> ConnectionNumber {
        let mut local = address(CLIENT);
        local.set_port(self.next_port);
        self.next_port = self.next_port.checked_add(1).expect("a port is left");
        self.client
            .connect(local, address(SERVER), config)
            .expect("the addresses are new")
    }

    /// Lets the server accept connections.
    pub fn listen(&mut self, config: ConnectionConfig) {
        self.server.listen(address(SERVER).port(), config);
    }

    /// Runs until `reached` says so, or for `at_most` of virtual time.
    pub fn run_until(
        &mut self,
        at_most: Duration,
        mut reached: impl FnMut(&mut Self) -> bool,
    ) -> RunOutcome {
        let end = self.clock.now() + at_most;
        loop {
            self.settle();
            if reached(self) {
                self.settle();
                return RunOutcome::Reached;
            }
            let timers = [
                self.client.poll_timeout(),
                self.server.poll_timeout(),
                self.link.poll_timeout(),
            ];
            let Some(next) = earliest(timers) else {
                self.clock.jump_to(end);
                return RunOutcome::Idle;
            };
            if next > end {
                self.clock.jump_to(end);
                return RunOutcome::TimedOut;
            }
            let next = self.behind_pauses(next);
            self.clock.jump_to(next);
        }
    }

    /// Runs for `span`, whatever happens.
    pub fn run_for(&mut self, span: Duration) {
        let _ = self.run_until(span, |_| false);
    }

    /// Does all that can be done at this moment.
    fn settle(&mut self) {
        let now = self.clock.now();
        self.client.handle_timeout(now);
        self.server.handle_timeout(now);
        loop {
            let mut moved = transmit(now, &mut self.client, &mut self.link.forward);
            moved |= receive(now, &mut self.server, &mut self.link.forward);
            moved |= transmit(now, &mut self.server, &mut self.link.back);
            moved |= receive(now, &mut self.client, &mut self.link.back);
            if !moved {
                return;
            }
        }
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("the address is well formed")
}

fn transmit(now: Time, host: &mut TcpHost, direction: &mut LinkDirection) -> bool {
    let mut moved = false;
    while let Some((addresses, segment)) = host.poll_output(now) {
        // A packet that the queue drops is what the test is about.
        let _ = direction.handle(now, emit_packet(&addresses, &segment));
        moved = true;
    }
    moved
}

fn receive(now: Time, host: &mut TcpHost, direction: &mut LinkDirection) -> bool {
    let mut moved = false;
    while let Some(delivery) = direction.poll_output(now) {
        // A corrupted packet is lost.
        if let Ok((addresses, segment)) = parse_packet(&delivery.packet) {
            host.handle(now, addresses, &segment);
        }
        moved = true;
    }
    moved
}
