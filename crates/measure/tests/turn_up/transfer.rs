//! Connections of a run at one end, over simulated TCP.

use measure::session::{TransferAction, TransferMonitor};
use measure::wire::RunSample;
use std::time::Duration;
use tcp::{ConnectionNumber, TcpConnection, TcpHost};
use vocab::{ByteCount, Time};

use crate::kernel_counters::kernel_counters;

/// Buffer of a sender whose window is not bounded: Linux's greatest by itself (tcp_wmem).
const BUFFER_UNBOUNDED: u64 = 4 << 20;
/// The least buffer of a sender with a bounded window, as in the tester.
const BUFFER_MIN: u64 = 128 * 1024;
/// Time after which a receiver no longer waits for the end, as in the tester.
const LATE_MAX: Duration = Duration::from_secs(8);

/// Transfer of one end.
pub(crate) struct SimulatedTransfer {
    sending: Vec<SendingConnection>,
    receiving: Vec<ConnectionNumber>,
    /// Bytes that each sender has waiting for an acknowledgement at most.
    buffer: u64,
    monitor: TransferMonitor,
    receive_until: Time,
}

struct SendingConnection {
    number: u16,
    connection: ConnectionNumber,
    written: u64,
}

impl SimulatedTransfer {
    /// A transfer over connections with their numbers; `window` bounds that of the other end's
    /// receivers, and zero does not.
    pub(crate) fn new(
        now: Time,
        duration: Duration,
        sending: &[(u16, ConnectionNumber)],
        receiving: &[(u16, ConnectionNumber)],
        window: ByteCount,
    ) -> Self {
        Self {
            sending: sending
                .iter()
                .map(|(number, connection)| SendingConnection {
                    number: *number,
                    connection: *connection,
                    written: 0,
                })
                .collect(),
            receiving: receiving
                .iter()
                .map(|(_, connection)| *connection)
                .collect(),
            buffer: match window.bytes() {
                0 => BUFFER_UNBOUNDED,
                bytes => (2 * bytes).max(BUFFER_MIN),
            },
            monitor: TransferMonitor::new(now, duration),
            receive_until: now + duration + LATE_MAX,
        }
    }

    /// Does what can be done now; returns the samples when the transfer is over.
    pub(crate) fn step(&mut self, now: Time, host: &mut TcpHost) -> Option<Vec<RunSample>> {
        if self.monitor.is_writing() {
            for sender in &mut self.sending {
                sender.write(now, host, self.buffer);
            }
        }
        for receiver in &self.receiving {
            host.with_connection(*receiver, |connection| while connection.read().is_some() {});
        }
        while let Some(action) = self.monitor.poll_action(now) {
            match action {
                TransferAction::ReadCounters => {
                    let counters: Vec<_> = self
                        .sending
                        .iter()
                        .map(|sender| {
                            let connection = host.connection(sender.connection);
                            let info = connection.map(|one| kernel_counters(&one.info(now)));
                            (sender.number, info)
                        })
                        .collect();
                    self.monitor.counters(now, &counters);
                }
                TransferAction::StopWriting => {
                    let written = self.sending.iter().map(|sender| sender.written);
                    self.monitor.written(now, written.collect());
                }
                TransferAction::CloseSending => {
                    for sender in &self.sending {
                        host.with_connection(sender.connection, |connection| {
                            match connection.is_all_acknowledged() {
                                true => connection.close(),
                                false => connection.abort(),
                            }
                        });
                    }
                }
            }
        }
        let is_finished = |connection: &TcpConnection| {
            connection.is_peer_finished() || connection.closed_reason().is_some()
        };
        let mut receiving = self.receiving.iter();
        let is_read = receiving.all(|one| host.connection(*one).is_none_or(is_finished));
        if !self.monitor.is_closed() || (!is_read && now < self.receive_until) {
            return None;
        }
        for receiver in &self.receiving {
            host.with_connection(*receiver, TcpConnection::close);
        }
        let ended = TransferMonitor::new(now, Duration::ZERO);
        Some(std::mem::replace(&mut self.monitor, ended).into_samples())
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let receiving = (!self.receiving.is_empty()).then_some(self.receive_until);
        testkit::earliest([self.monitor.poll_timeout(), receiving])
    }
}

impl SendingConnection {
    /// Fills the buffer.
    fn write(&mut self, now: Time, host: &mut TcpHost, buffer: u64) {
        let written = self.written;
        let count = host.with_connection(self.connection, |connection| {
            if !connection.is_established() {
                return 0;
            }
            let waiting = written - connection.info(now).bytes_acknowledged.bytes().min(written);
            let room = buffer
                .saturating_sub(waiting)
                .min(connection.writable().bytes());
            if room > 0 {
                connection.write_pattern(now, ByteCount::new(room));
            }
            room
        });
        self.written += count.unwrap_or(0);
    }
}
