//! Whole turn-up tests in virtual time: both machines of `measure::session`, simulated hosts, and an
//! emulated circuit between them.
//!
//! The report has the type of a real test's. The two published case studies run here as
//! `trunkline bench turn-up` runs them over sockets; the tests state how far the figures are apart.

mod case_studies;
mod circuit;
mod client_end;
#[path = "../common/kernel_counters.rs"]
mod kernel_counters;
mod messages;
mod server_end;
mod transfer;
mod whole;

use std::time::Duration;

use emulate::{Link, LinkConfig};
use measure::turn_up::{FinishedTest, TestProfile, TestThresholds};
use measure::wire::TestDirection;
use tcp::ConnectionConfig;
use testkit::{VirtualClock, earliest};
use vocab::{Bitrate, ByteCount, Time};

use crate::circuit::{CircuitPacket, EmulatedCircuit, PacketDirection};
use crate::client_end::ClientEnd;
use crate::server_end::ServerEnd;

/// Address of the server, TCP and UDP.
const SERVER: &str = "198.51.100.1:6349";
/// Address of the client; its port is the first one in use, and that of UDP.
const CLIENT: &str = "192.0.2.1:10000";
/// Words of the key.
const WORDS: &str = "an onyx cat sleeps";
/// Name of the congestion control of simulated hosts.
const SIMULATED_CONTROL: &str = "cubic";
/// Time limit of a test.
const TEST_MAX: Duration = Duration::from_secs(600);

/// Settings of a run's connections; the tester switches Nagle's algorithm off.
fn connection_config() -> ConnectionConfig {
    ConnectionConfig {
        nagle: false,
        receive_buffer: ByteCount::mebibytes(4),
        send_buffer: ByteCount::mebibytes(8),
        ..ConnectionConfig::default()
    }
}

/// Two ends of a test and the circuit between them.
struct VirtualTest {
    clock: VirtualClock,
    circuit: EmulatedCircuit,
    client: ClientEnd,
    server: ServerEnd,
}

impl VirtualTest {
    fn new(link: LinkConfig, carried_max: [u16; 2], profile: TestProfile) -> Self {
        let seed = link.seed;
        Self {
            clock: VirtualClock::new(),
            circuit: EmulatedCircuit::new(Link::new(link), carried_max),
            client: ClientEnd::new(profile, seed),
            server: ServerEnd::new(seed),
        }
    }

    /// A firewall drops all UDP packets.
    fn without_udp(mut self) -> Self {
        self.circuit.drop_udp();
        self
    }

    /// Runs until the client's test is over.
    fn run(mut self) -> FinishedTest {
        let end = Time::ZERO + TEST_MAX;
        self.settle();
        while !self.client.is_over() {
            self.next();
            assert!(self.clock.now() < end, "the test ends");
        }
        let took = self.clock.now().since(Time::ZERO);
        // The goodbye arrives.
        while self.server.ended.is_none() {
            self.next();
        }
        assert_eq!(self.server.ended, Some(Ok(())));
        self.client.finish(took)
    }

    fn next(&mut self) {
        let timers = [
            self.client.poll_timeout(),
            self.server.poll_timeout(),
            self.circuit.poll_timeout(),
        ];
        self.clock
            .jump_to(earliest(timers).expect("somebody waits for something"));
        self.settle();
    }

    /// Does all that can be done at this moment.
    fn settle(&mut self) {
        let now = self.clock.now();
        self.client.host.handle_timeout(now);
        self.server.host.handle_timeout(now);
        loop {
            self.client.step(now, &mut self.circuit);
            self.server.step(now, &mut self.circuit);
            let (client, server) = (&mut self.client.host, &mut self.server.host);
            let circuit = &mut self.circuit;
            let mut moved = circuit.send_segments(now, PacketDirection::ToServer, client);
            moved |= circuit.send_segments(now, PacketDirection::ToClient, server);
            moved |= self.receive(now);
            if !moved {
                return;
            }
        }
    }

    fn receive(&mut self, now: Time) -> bool {
        let mut moved = false;
        while let Some(packet) = self.circuit.poll(now, PacketDirection::ToServer) {
            moved = true;
            match packet {
                CircuitPacket::Tcp(addresses, segment) => {
                    let addresses = addresses.reversed();
                    self.server.host.handle(now, addresses, &segment);
                }
                CircuitPacket::Udp { from, bytes } => {
                    self.server.handle_datagram(now, from, &bytes);
                }
            }
        }
        while let Some(packet) = self.circuit.poll(now, PacketDirection::ToClient) {
            moved = true;
            match packet {
                CircuitPacket::Tcp(addresses, segment) => {
                    let addresses = addresses.reversed();
                    self.client.host.handle(now, addresses, &segment);
                }
                CircuitPacket::Udp { bytes, .. } => self.client.handle_datagram(now, &bytes),
            }
        }
        moved
    }
}

/// Profile of a test in these directions.
fn profile(directions: &[TestDirection], duration: Duration, max_rate: u64) -> TestProfile {
    TestProfile {
        directions: directions.to_vec(),
        walk_percent: Vec::new(),
        windows: Vec::new(),
        connections: 1,
        connection_window: None,
        duration,
        max_rate: Bitrate::from_bits_per_second(max_rate),
        tcp_headers: 40,
        target: None,
        thresholds: TestThresholds::default(),
    }
}
