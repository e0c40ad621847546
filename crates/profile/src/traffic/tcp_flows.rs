//! Closed-loop TCP flows between emulated hosts, by the crate `tcp`.
//!
//! One [`TcpHost`] holds both ends of every flow: the client's behind the input port, the server's
//! behind the output port. A segment enters the device at the port of its source and leaves it at
//! the port of its destination, so acknowledgements pass the device as well.

use std::net::SocketAddr;
use std::time::Duration;

use tcp::{ConnectionConfig, ConnectionNumber, FlowAddresses, TcpHost, TcpSegment, emit_packet};
use vocab::{ByteCount, SeededRandom, Time};

use super::addresses::{
    FIRST_HOST, FIRST_SOURCE_PORT, HOSTS_PER_PORT, host_address, host_number, source_port,
    subnet_port,
};
use super::{PacketContent, SourcePacket};
use crate::plan::check::PATTERNS_MAX;
use crate::plan::{AddressFamily, TrafficPlan};

/// First port of the servers; the number of the pattern is added, so that two patterns differ.
const SERVER_PORT: u16 = 5201;
// No server port is that of a client.
const _: () = assert!(SERVER_PORT as usize + PATTERNS_MAX <= FIRST_SOURCE_PORT as usize);
/// Time over which the flows of a pattern start, so that they are not in step.
const START_SPREAD: Duration = Duration::from_millis(100);
/// Bytes of a flow without end; no run lasts long enough to send them.
const ENDLESS: ByteCount = ByteCount::new(1 << 50);

#[derive(Debug)]
pub(super) struct TcpFlows {
    host: TcpHost,
    config: ConnectionConfig,
    family: AddressFamily,
    /// Flows that have not started, the next one last.
    waiting: Vec<(Time, u32)>,
    from: Vec<u16>,
    to: Vec<u16>,
    bytes: ByteCount,
    flows: u32,
    first_flow: u32,
    server_port: u16,
    end: Time,
}

impl TcpFlows {
    pub(super) fn new(
        now: Time,
        (family, plan): (AddressFamily, &TrafficPlan),
        (segment, bytes): (ByteCount, Option<ByteCount>),
        (pattern, first_flow): (u16, u32),
        mut random: SeededRandom,
    ) -> Self {
        let config = ConnectionConfig {
            mss: u16::try_from(segment.bytes()).unwrap_or(u16::MAX),
            ..ConnectionConfig::pattern()
        };
        let start = now + plan.start;
        let spread = u64::try_from(START_SPREAD.as_nanos()).unwrap_or(u64::MAX);
        let mut waiting: Vec<(Time, u32)> = (0..plan.flows)
            .map(|flow| (start + Duration::from_nanos(random.below(spread)), flow))
            .collect();
        waiting.sort_unstable();
        waiting.reverse();
        let server_port = SERVER_PORT.saturating_add(pattern);
        let mut host = TcpHost::new(random);
        host.listen(server_port, config);
        Self {
            host,
            config,
            family,
            waiting,
            from: plan.from.clone(),
            to: plan.to.clone(),
            bytes: bytes.unwrap_or(ENDLESS),
            flows: plan.flows,
            first_flow,
            server_port,
            end: plan.duration.map_or(Time::NEVER, |span| start + span),
        }
    }

    /// Time at which [`TcpFlows::poll_output`] has work; `None` at the end of the pattern.
    pub(super) fn due(&self) -> Option<Time> {
        let start = self.waiting.last().map(|(at, _)| *at);
        let timer = self.host.poll_timeout();
        let due = match (start, timer) {
            (Some(start), Some(timer)) => start.min(timer),
            (one, other) => one.or(other)?,
        };
        (due < self.end).then_some(due)
    }

    pub(super) fn poll_output(&mut self, now: Time) -> Option<SourcePacket> {
        if now >= self.end {
            self.host = TcpHost::new(SeededRandom::from_seed(0));
            self.waiting.clear();
            return None;
        }
        while let Some((at, flow)) = self.waiting.pop() {
            if at > now {
                self.waiting.push((at, flow));
                break;
            }
            self.open(now, flow);
        }
        self.host.handle_timeout(now);
        let (addresses, segment) = self.host.poll_output(now)?;
        let content = emit_packet(&addresses, &segment);
        Some(SourcePacket {
            flow: self.flow_of(addresses),
            size: u32::try_from(content.len()).unwrap_or(u32::MAX),
            // Segments without such addresses are of no flow of ours, and the host makes none.
            input: subnet_port(addresses.local.ip()).unwrap_or_default(),
            output: subnet_port(addresses.remote.ip()).unwrap_or_default(),
            due: now,
            content: PacketContent::Tcp(content),
        })
    }

    /// Takes a segment; tells whether it belongs to one of these flows.
    pub(super) fn handle(
        &mut self,
        now: Time,
        addresses: FlowAddresses,
        segment: &TcpSegment,
    ) -> bool {
        let ports = [addresses.local.port(), addresses.remote.port()];
        if !ports.contains(&self.server_port) {
            return false;
        }
        if now < self.end {
            self.host.handle(now, addresses, segment);
        }
        true
    }

    /// Addresses of the packets of the flow with this number as their receiver sees them; `None` if it is
    /// not one of these flows.
    pub(super) fn addresses_of(&self, number: u32) -> Option<FlowAddresses> {
        let place = number.checked_sub(self.first_flow)?;
        let flow = place / 2;
        if flow >= self.flows {
            return None;
        }
        let at_server = self.client_addresses(flow).reversed();
        let is_data = place.is_multiple_of(2);
        Some(if is_data {
            at_server
        } else {
            at_server.reversed()
        })
    }

    /// Addresses of the flow as its client sees them.
    fn client_addresses(&self, flow: u32) -> FlowAddresses {
        let nth = |ports: &[u16]| ports[flow as usize % ports.len()];
        let local = host_address(self.family, flow, nth(&self.from));
        let remote = host_address(self.family, flow, nth(&self.to));
        FlowAddresses {
            local: SocketAddr::new(local, source_port(flow)),
            remote: SocketAddr::new(remote, self.server_port),
        }
    }

    fn open(&mut self, now: Time, flow: u32) {
        let FlowAddresses { local, remote } = self.client_addresses(flow);
        let bytes = self.bytes;
        let number: Option<ConnectionNumber> = self.host.connect(local, remote, self.config);
        if let Some(number) = number {
            self.host
                .with_connection(number, |connection| connection.write_pattern(now, bytes));
        }
    }

    /// Number of the flow, one more for the direction of the acknowledgements.
    fn flow_of(&self, addresses: FlowAddresses) -> u32 {
        let is_data = addresses.remote.port() == self.server_port;
        let client = if is_data {
            addresses.local
        } else {
            addresses.remote
        };
        let host = host_number(client.ip());
        let round = u32::from(client.port().saturating_sub(FIRST_SOURCE_PORT));
        let flow = round * HOSTS_PER_PORT + host.saturating_sub(FIRST_HOST);
        self.first_flow
            .saturating_add(2 * flow)
            .saturating_add(u32::from(!is_data))
    }
}
