//! Sockets of one host: a [`TcpHost`] with the data that waits for its connections.
//!
//! A user opens, sends and finishes, and takes events one after the other ([`HostSockets::poll_event`]).
//! Data is read only within the credit of a socket. Each change is followed by
//! [`HostSockets::flush`], which hands waiting data to TCP.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};
use tcp::{
    ConnectionConfig, ConnectionNumber, ConnectionState, FlowAddresses, TcpHost, TcpSegment,
};
use vocab::{SeededRandom, Time};

/// Most bytes of one event.
const READ_MOST: usize = 64 << 10;
/// The first port of a host's own connections.
const FIRST_PORT: u16 = 40_000;

/// Event of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketEvent {
    /// A client has opened a connection to a listening port.
    Accepted,
    /// An own connection is open.
    Opened,
    /// Data arrived.
    Received(Bytes),
    /// The peer sends no more.
    PeerFinished,
    /// The connection was refused, reset or given up.
    Lost,
}

/// Sockets of a host.
#[derive(Debug)]
pub(crate) struct HostSockets {
    tcp: TcpHost,
    address: IpAddr,
    config: ConnectionConfig,
    sockets: BTreeMap<ConnectionNumber, HostSocket>,
    next_port: u16,
    /// Credit of a new socket.
    credit: usize,
}

#[derive(Debug)]
struct HostSocket {
    unsent: VecDeque<Bytes>,
    /// Bytes that TCP has taken since the last report.
    taken: usize,
    /// Data that TCP has delivered beyond the credit.
    unread: Bytes,
    read_total: u64,
    credit: usize,
    /// The own direction ends behind the data.
    finishes: bool,
    has_finished: bool,
    is_accepted: bool,
    was_opened: bool,
    had_end: bool,
}

impl HostSockets {
    /// A host whose sockets read as much as arrives.
    pub(crate) fn new(address: IpAddr, config: ConnectionConfig, random: SeededRandom) -> Self {
        Self {
            tcp: TcpHost::new(random),
            address,
            config,
            sockets: BTreeMap::new(),
            next_port: FIRST_PORT,
            credit: usize::MAX,
        }
    }

    /// A host whose sockets read nothing before they are given credit.
    pub(crate) fn without_credit(mut self) -> Self {
        self.credit = 0;
        self
    }

    pub(crate) fn listen(&mut self, port: u16) {
        self.tcp.listen(port, self.config);
    }

    /// Opens a connection from a fresh port of this host.
    pub(crate) fn open(&mut self, remote: SocketAddr) -> Option<ConnectionNumber> {
        let local = SocketAddr::new(self.address, self.next_port);
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        self.open_from(local, remote)
    }

    /// Opens a connection from this address.
    pub(crate) fn open_from(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<ConnectionNumber> {
        let number = self.tcp.connect(local, remote, self.config)?;
        self.sockets.insert(number, self.socket(false));
        Some(number)
    }

    fn socket(&self, is_accepted: bool) -> HostSocket {
        HostSocket {
            unsent: VecDeque::new(),
            taken: 0,
            unread: Bytes::new(),
            read_total: 0,
            credit: self.credit,
            finishes: false,
            has_finished: false,
            is_accepted,
            was_opened: false,
            had_end: false,
        }
    }

    /// Ends of a connection, this host's as the local one.
    pub(crate) fn addresses(&self, number: ConnectionNumber) -> Option<FlowAddresses> {
        Some(self.tcp.connection(number)?.addresses())
    }

    /// Queues data.
    pub(crate) fn send(&mut self, number: ConnectionNumber, bytes: Bytes) {
        if let Some(socket) = self.sockets.get_mut(&number)
            && !bytes.is_empty()
        {
            socket.unsent.push_back(bytes);
        }
    }

    /// Ends the own direction behind the queued data.
    pub(crate) fn finish(&mut self, number: ConnectionNumber) {
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.finishes = true;
        }
    }

    /// Resets a connection.
    pub(crate) fn abort(&mut self, number: ConnectionNumber) {
        self.tcp.with_connection(number, tcp::TcpConnection::abort);
        self.sockets.remove(&number);
    }

    /// Lets a socket read so many bytes more.
    pub(crate) fn add_credit(&mut self, number: ConnectionNumber, bytes: usize) {
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.credit = socket.credit.saturating_add(bytes);
        }
    }

    /// Bytes that TCP has taken since the last call.
    pub(crate) fn taken(&mut self, number: ConnectionNumber) -> usize {
        let socket = self.sockets.get_mut(&number);
        socket.map_or(0, |socket| std::mem::take(&mut socket.taken))
    }

    /// Data that waits for transmission, in this host and in TCP; data on its way does not count.
    pub(crate) fn unsent_bytes(&self, now: Time, number: ConnectionNumber) -> u64 {
        let waiting = self.sockets.get(&number).map_or(0, |socket| {
            socket.unsent.iter().map(Bytes::len).sum::<usize>()
        });
        let inside = self.tcp.connection(number).map_or(0, |connection| {
            let held = self.config.send_buffer.bytes() - connection.writable().bytes();
            let info = connection.info(now);
            held.saturating_sub(u64::from(info.unacknowledged) * u64::from(info.segment_bytes))
        });
        waiting as u64 + inside
    }

    /// Numbers of the sockets whose connections are not over.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Takes a segment; `addresses` are those of this host as the local end.
    pub(crate) fn handle(&mut self, now: Time, addresses: FlowAddresses, segment: &TcpSegment) {
        self.tcp.handle(now, addresses, segment);
    }

    /// The next segment to send, with this host as the local end.
    pub(crate) fn poll_segment(&mut self, now: Time) -> Option<(FlowAddresses, TcpSegment)> {
        self.tcp.poll_output(now)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.tcp.poll_timeout()
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.tcp.handle_timeout(now);
    }

    /// Hands waiting data to TCP. Returns true if something moved.
    pub(crate) fn flush(&mut self, now: Time) -> bool {
        let mut moved = false;
        for (number, socket) in &mut self.sockets {
            if socket.unsent.is_empty() && (!socket.finishes || socket.has_finished) {
                continue;
            }
            let written = self.tcp.with_connection(*number, |connection| {
                let mut written = 0;
                while let Some(front) = socket.unsent.front_mut() {
                    let count = connection.write(now, front);
                    written += count;
                    if count < front.len() {
                        let _ = front.split_to(count);
                        break;
                    }
                    socket.unsent.pop_front();
                }
                if socket.finishes && !socket.has_finished && socket.unsent.is_empty() {
                    socket.has_finished = true;
                    connection.close();
                    moved = true;
                }
                written
            });
            socket.taken += written.unwrap_or(0);
            moved |= written.is_some_and(|written| written > 0);
        }
        moved
    }

    /// The next event of any socket.
    pub(crate) fn poll_event(&mut self) -> Option<(ConnectionNumber, SocketEvent)> {
        if let Some(number) = self.tcp.accept() {
            self.sockets.insert(number, self.socket(true));
            return Some((number, SocketEvent::Accepted));
        }
        let mut over = None;
        for (number, socket) in &mut self.sockets {
            let Some(connection) = self.tcp.connection(*number) else {
                over = Some((*number, false));
                break;
            };
            if !socket.is_accepted && !socket.was_opened && connection.is_established() {
                socket.was_opened = true;
                return Some((*number, SocketEvent::Opened));
            }
            let arrived = connection.bytes_received().bytes() - socket.read_total;
            if socket.credit > 0 && (arrived > 0 || !socket.unread.is_empty()) {
                let number = *number;
                let bytes = socket.read(&mut self.tcp, number);
                return Some((number, SocketEvent::Received(bytes)));
            }
            let state = connection.state();
            if arrived == 0
                && socket.unread.is_empty()
                && connection.is_peer_finished()
                && !socket.had_end
            {
                socket.had_end = true;
                return Some((*number, SocketEvent::PeerFinished));
            }
            if matches!(state, ConnectionState::Closed | ConnectionState::TimeWait) {
                over = Some((*number, !(socket.had_end && socket.has_finished)));
                break;
            }
        }
        let (number, is_lost) = over?;
        self.sockets.remove(&number);
        let connection = self.tcp.connection(number);
        if connection.is_some_and(|connection| connection.state() == ConnectionState::Closed) {
            self.tcp.remove(number);
        }
        if is_lost {
            return Some((number, SocketEvent::Lost));
        }
        self.poll_event()
    }
}

impl HostSocket {
    fn read(&mut self, host: &mut TcpHost, number: ConnectionNumber) -> Bytes {
        let most = self.credit.min(READ_MOST);
        let mut out = BytesMut::new();
        let mut first = Bytes::new();
        let mut length = 0;
        while length < most {
            if self.unread.is_empty() {
                let next = host.with_connection(number, tcp::TcpConnection::read);
                let Some(next) = next.flatten() else { break };
                self.read_total += next.len() as u64;
                self.unread = next;
            }
            let count = self.unread.len().min(most - length);
            let part = self.unread.split_to(count);
            // Mostly there is one part, which needs no copy.
            match length {
                0 => first = part,
                _ => {
                    if out.is_empty() {
                        out.extend_from_slice(&first);
                    }
                    out.extend_from_slice(&part);
                }
            }
            length += count;
        }
        self.credit -= length;
        match out.is_empty() {
            true => first,
            false => out.freeze(),
        }
    }
}
