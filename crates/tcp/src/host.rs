//! A host with many connections: which connection a segment belongs to, and whose timer is next.
//!
//! ```text
//!   segment ─► by addresses ─► connection ─┐
//!              listening port ─► accept    ├─► ready ─► poll_output
//!              neither ─► reset            │
//!   timers (a heap of the earliest) ───────┘
//! ```
//!
//! The cost of a segment does not depend on the number of connections, except for the heap's
//! logarithm.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;

use vocab::{SeededRandom, Time};

use crate::config::ConnectionConfig;
use crate::connection::{TcpConnection, reset_for};
use crate::info::ConnectionState;
use crate::segment::{FlowAddresses, TcpSegment};

/// Connections that a host holds at most; further SYNs are dropped as if they were lost.
pub const CONNECTIONS_MOST: usize = 65_536;
/// Resets that wait for transmission; further ones are not sent (RFC 9293 does not require them).
const RESETS_MOST: usize = 256;

/// Number of a connection of a host. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionNumber(u64);

/// A host of connections.
#[derive(Debug)]
pub struct TcpHost {
    connections: HashMap<ConnectionNumber, HostedConnection>,
    by_flow: HashMap<FlowAddresses, ConnectionNumber>,
    listeners: BTreeMap<u16, ConnectionConfig>,
    timers: BinaryHeap<Reverse<(Time, ConnectionNumber)>>,
    ready: VecDeque<ConnectionNumber>,
    accepted: VecDeque<ConnectionNumber>,
    resets: VecDeque<(FlowAddresses, TcpSegment)>,
    next_number: u64,
    random: SeededRandom,
}

#[derive(Debug)]
struct HostedConnection {
    connection: TcpConnection,
    is_ready: bool,
    /// The earliest timer in the heap.
    timer: Option<Time>,
}

impl TcpHost {
    /// A host without connections; `random` gives sequence numbers and time stamp offsets.
    #[must_use]
    pub fn new(random: SeededRandom) -> Self {
        Self {
            connections: HashMap::new(),
            by_flow: HashMap::new(),
            listeners: BTreeMap::new(),
            timers: BinaryHeap::new(),
            ready: VecDeque::new(),
            accepted: VecDeque::new(),
            resets: VecDeque::new(),
            next_number: 0,
            random,
        }
    }

    /// Accepts connections to `port` of any address of the host.
    pub fn listen(&mut self, port: u16, config: ConnectionConfig) {
        self.listeners.insert(port, config);
    }

    /// Opens a connection; `None` if there is one with these addresses, or no room.
    pub fn connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        config: ConnectionConfig,
    ) -> Option<ConnectionNumber> {
        let addresses = FlowAddresses { local, remote };
        if self.by_flow.contains_key(&addresses) || self.connections.len() >= CONNECTIONS_MOST {
            return None;
        }
        let connection = TcpConnection::connect(addresses, config, &mut self.random);
        Some(self.insert(connection))
    }

    /// Takes a segment; `addresses` are those of this host as the local end.
    pub fn handle(&mut self, now: Time, addresses: FlowAddresses, segment: &TcpSegment) {
        if let Some(number) = self.by_flow.get(&addresses).copied() {
            if let Some(hosted) = self.connections.get_mut(&number) {
                hosted.connection.handle_segment(now, segment);
            }
            self.update(number);
            return;
        }
        if let Some(config) = self.listeners.get(&addresses.local.port())
            && self.connections.len() < CONNECTIONS_MOST
            && let Some(connection) =
                TcpConnection::accept(now, addresses, *config, segment, &mut self.random)
        {
            let number = self.insert(connection);
            self.accepted.push_back(number);
            return;
        }
        if let Some(reset) = reset_for(segment)
            && self.resets.len() < RESETS_MOST
        {
            self.resets.push_back((addresses, reset));
        }
    }

    /// The next segment to send, with this host as the local end.
    pub fn poll_output(&mut self, now: Time) -> Option<(FlowAddresses, TcpSegment)> {
        if let Some(reset) = self.resets.pop_front() {
            return Some(reset);
        }
        while let Some(number) = self.ready.front().copied() {
            if let Some(hosted) = self.connections.get_mut(&number) {
                if let Some(segment) = hosted.connection.poll_output(now) {
                    return Some((hosted.connection.addresses(), segment));
                }
                hosted.is_ready = false;
            }
            self.ready.pop_front();
            self.update(number);
        }
        None
    }

    /// Time at which [`TcpHost::handle_timeout`] has work, or the earliest time while output waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.ready.is_empty() || !self.resets.is_empty() {
            return Some(Time::ZERO);
        }
        self.timers.peek().map(|Reverse((due, _))| *due)
    }

    /// Handles the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(Reverse((due, number))) = self.timers.peek().copied() {
            if due > now {
                return;
            }
            self.timers.pop();
            let Some(hosted) = self.connections.get_mut(&number) else {
                continue;
            };
            if hosted.timer != Some(due) {
                continue;
            }
            hosted.timer = None;
            if hosted.connection.poll_timeout().is_some_and(|at| at <= now) {
                hosted.connection.handle_timeout(now);
            }
            self.update(number);
        }
    }

    /// The next connection that a client opened to a listening port.
    pub fn accept(&mut self) -> Option<ConnectionNumber> {
        self.accepted.pop_front()
    }

    /// A connection.
    #[must_use]
    pub fn connection(&self, number: ConnectionNumber) -> Option<&TcpConnection> {
        self.connections
            .get(&number)
            .map(|hosted| &hosted.connection)
    }

    /// Uses a connection: writes, reads or closes it.
    pub fn with_connection<T>(
        &mut self,
        number: ConnectionNumber,
        act: impl FnOnce(&mut TcpConnection) -> T,
    ) -> Option<T> {
        let hosted = self.connections.get_mut(&number)?;
        let result = act(&mut hosted.connection);
        self.update(number);
        Some(result)
    }

    /// Number of connections, closed ones included until they are removed.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Removes a connection; its peer hears no more of it. Returns its last state.
    pub fn remove(&mut self, number: ConnectionNumber) -> Option<ConnectionState> {
        let hosted = self.connections.remove(&number)?;
        self.by_flow.remove(&hosted.connection.addresses());
        Some(hosted.connection.state())
    }

    fn insert(&mut self, connection: TcpConnection) -> ConnectionNumber {
        let number = ConnectionNumber(self.next_number);
        self.next_number += 1;
        self.by_flow.insert(connection.addresses(), number);
        self.connections.insert(
            number,
            HostedConnection {
                connection,
                is_ready: false,
                timer: None,
            },
        );
        self.update(number);
        number
    }

    /// Queues a connection for output, or its timer.
    fn update(&mut self, number: ConnectionNumber) {
        let Some(hosted) = self.connections.get_mut(&number) else {
            return;
        };
        let Some(due) = hosted.connection.poll_timeout() else {
            return;
        };
        if due == Time::ZERO {
            if !hosted.is_ready {
                hosted.is_ready = true;
                self.ready.push_back(number);
            }
            return;
        }
        // A timer that moved to later is looked at when its old entry is due.
        if hosted.timer.is_none_or(|queued| due < queued) {
            hosted.timer = Some(due);
            self.timers.push(Reverse((due, number)));
        }
    }
}
