//! Simulation of pairs of sessions on the one path that their packets share, with its virtual time.

use std::time::Duration;

use bytes::Bytes;
use emulate::{Link, LinkConfig, LinkDirection, PacketDelivery};
use tunnel::transport::{PathSettings, TransportStatus};
use tunnel::{Session, SessionConfig};
use vocab::{Bitrate, FlowId, Time};

use super::pair::{DatagramFilter, DatagramSupport, HEADERS, PairPlan, SessionPair};
use super::work::{FlowScript, FlowTransfer};

/// Turns without time passing after which something is wrong.
const IDLE_ROUNDS_MAX: u32 = 10_000;

/// Time by which sessions that can connect have connected, and working datagram paths are known.
const MEETING: Duration = Duration::from_secs(2);

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationPlan {
    /// Link that carries packets; its seed is the simulation's. The overhead is the length of the
    /// IP and UDP headers.
    pub packets: LinkConfig,
    /// Rate and delay of each pair's link, each way.
    pub link: (Bitrate, Duration),
    /// Support of the nodes for datagrams.
    pub datagrams: DatagramSupport,
    /// Settings of the datagram path.
    pub transport: PathSettings,
    /// Configuration of both sessions.
    pub session: SessionConfig,
}

/// Pairs of sessions, and the path between them.
pub struct SessionSimulation {
    now: Time,
    packets: Link,
    /// Whose each packet is, by its number in its direction.
    owners: [Vec<u16>; 2],
    pairs: Vec<SessionPair>,
}

impl SessionSimulation {
    /// A world of one session that has met its peer, and whose datagram path carries if it can
    /// within two seconds.
    #[must_use]
    pub fn new(plan: SimulationPlan) -> Self {
        let transport = plan.transport;
        Self::shared(plan, &[transport])
    }

    /// A world of as many sessions as there are settings, whose packets share one path.
    #[must_use]
    pub fn shared(plan: SimulationPlan, transports: &[PathSettings]) -> Self {
        let seed = plan.packets.seed;
        let pair = |(index, transport): (u64, &PathSettings)| {
            SessionPair::new(PairPlan {
                link: plan.link,
                datagrams: plan.datagrams,
                transport: *transport,
                session: plan.session.clone(),
                seed: seed ^ (index << 32),
            })
        };
        let mut world = Self {
            now: Time::ZERO,
            packets: Link::new(with_headers(plan.packets.clone())),
            owners: [Vec::new(), Vec::new()],
            pairs: (0..).zip(transports).map(pair).collect(),
        };
        world.run_until(Time::ZERO + MEETING, |world| {
            world.pairs.iter().all(SessionPair::is_ready)
        });
        world
    }

    /// The time in this world.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// One of the sessions.
    #[must_use]
    pub fn pair(&self, index: usize) -> &SessionPair {
        &self.pairs[index]
    }

    /// Opens a flow at the near side of the first session.
    ///
    /// # Panics
    /// Panics when the session opens none.
    pub fn start(&mut self, work: FlowScript) -> FlowId {
        self.start_in(0, work)
    }

    /// Opens a flow at the near side of one session.
    ///
    /// # Panics
    /// Panics when the session opens none.
    pub fn start_in(&mut self, pair: usize, work: FlowScript) -> FlowId {
        self.pairs[pair].start(self.now, work)
    }

    /// State of a transfer of the first session.
    #[must_use]
    pub fn transfer(&self, flow: FlowId) -> &FlowTransfer {
        self.pairs[0].transfer(flow)
    }

    /// All flows of the first session so far.
    pub fn transfers(&self) -> impl Iterator<Item = (&FlowId, &FlowTransfer)> {
        self.pairs[0].transfers()
    }

    /// A side of the first session.
    #[must_use]
    pub fn session(&self, side: usize) -> &Session {
        self.pairs[0].session(side)
    }

    /// The first session's datagram path, as a side sees it.
    #[must_use]
    pub fn status(&self, side: usize) -> Option<TransportStatus> {
        self.pairs[0].status(side)
    }

    /// The model between the sides.
    #[must_use]
    pub fn packets(&self) -> &Link {
        &self.packets
    }

    /// Times at which each side's frames of the first session changed between link (`false`) and
    /// packets.
    #[must_use]
    pub fn changes(&self) -> &[(Time, usize, bool)] {
        self.pairs[0].changes()
    }

    /// Takes other settings of the packets' model from now on.
    pub fn set_packets(&mut self, config: LinkConfig) {
        self.packets.set_config(self.now, with_headers(config));
    }

    /// Lets only these datagrams of a side through from now on.
    pub fn set_passage(&mut self, side: usize, passage: DatagramFilter) {
        for pair in &mut self.pairs {
            pair.set_passage(side, passage);
        }
    }

    /// Stops the nodes of a side, as SIGSTOP does.
    pub fn suspend(&mut self, side: usize) {
        for pair in &mut self.pairs {
            pair.suspend(side);
        }
    }

    /// Continues the stopped nodes of a side.
    pub fn resume(&mut self, side: usize) {
        for pair in &mut self.pairs {
            pair.resume(self.now, side);
        }
    }

    /// Breaks every link; bytes on it are lost. There is no link until [`Self::dial`].
    pub fn break_links(&mut self) {
        for pair in &mut self.pairs {
            pair.break_link(self.now);
        }
    }

    /// Joins both sides by new links.
    pub fn dial(&mut self) {
        for pair in &mut self.pairs {
            pair.dial(self.now);
        }
    }

    /// Advances time by `span`.
    pub fn run(&mut self, span: Duration) {
        self.run_until(self.now + span, |_| false);
    }

    /// Advances time until `end`, or until `is_enough` returns true; returns whether it did.
    ///
    /// # Panics
    /// Panics when time stands still: a session reports a due event and does not handle it.
    pub fn run_until(&mut self, end: Time, is_enough: impl Fn(&SessionSimulation) -> bool) -> bool {
        let mut idle_rounds = 0;
        loop {
            self.settle();
            if is_enough(self) {
                return true;
            }
            let pairs = self.pairs.iter().map(SessionPair::due).min();
            let packets = self.packets.poll_timeout();
            let next = [pairs, packets].into_iter().flatten().min();
            let next = next.unwrap_or(Time::NEVER);
            if next > end {
                self.now = self.now.max(end);
                return false;
            }
            idle_rounds = if next > self.now { 0 } else { idle_rounds + 1 };
            assert!(
                idle_rounds < IDLE_ROUNDS_MAX,
                "time stands still at {}: near {:?}, far {:?}",
                self.now,
                self.status(0),
                self.status(1)
            );
            self.now = self.now.max(next);
            self.arrive();
            for pair in &mut self.pairs {
                pair.handle_due(self.now);
            }
        }
    }

    /// Packets that have arrived by now.
    fn arrive(&mut self) {
        for from in [0, 1] {
            while let Some(delivery) = direction(&mut self.packets, from).poll_output(self.now) {
                let PacketDelivery { index, packet, .. } = delivery;
                let owner = self.owners[from][index as usize];
                self.pairs[usize::from(owner)].handle_datagram(self.now, 1 - from, &packet);
            }
        }
    }

    /// Runs the hosts and the sessions until they have no more output.
    fn settle(&mut self) {
        for (index, pair) in (0..).zip(&mut self.pairs) {
            pair.settle(self.now, |from, packet: Bytes| {
                self.owners[from].push(index);
                direction(&mut self.packets, from).handle(self.now, packet);
            });
        }
    }
}

/// The way of packets that come from this side.
fn direction(packets: &mut Link, from: usize) -> &mut LinkDirection {
    match from {
        0 => &mut packets.forward,
        _ => &mut packets.back,
    }
}

fn with_headers(mut config: LinkConfig) -> LinkConfig {
    config.forward.overhead = HEADERS;
    config.back.overhead = HEADERS;
    config
}
