//! Sending of datagram streams over a socket, the same at both ends.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use measure::procedure::{DepartureSchedule, StreamPlan};
use measure::wire::{DatagramHeader, DatagramKind, SessionKey, SessionRole};

use host::stamped_sockets::sharpen_timers;
use host::tester_sockets::{TesterClock, is_icmp_error};

/// Interval of the checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Sender of a stream, and its session.
pub(super) struct StreamSender<'a> {
    /// Connected, or with `to`.
    pub(super) socket: &'a UdpSocket,
    /// Destination, if the socket is not connected.
    pub(super) to: Option<SocketAddr>,
    /// Whose tag.
    pub(super) role: SessionRole,
    /// The session's.
    pub(super) key: &'a SessionKey,
    /// The session.
    pub(super) session: u64,
    /// The order.
    pub(super) order: u32,
}

impl StreamSender<'_> {
    /// Sends a stream, each packet at its time, and hands its stamp to `note`; returns how many went out.
    /// `headers` are those of IP and UDP, which the plan counts.
    ///
    /// # Errors
    /// When the socket fails for good.
    pub(super) fn send(
        &self,
        plan: StreamPlan,
        headers: u16,
        clock: TesterClock,
        is_over: &dyn Fn() -> bool,
        note: &mut dyn FnMut(u64),
    ) -> io::Result<u64> {
        let length = usize::from(plan.ip_bytes.saturating_sub(headers));
        let mut bytes = Vec::new();
        pace(plan, clock, is_over, &mut |number, stamp| {
            let head = DatagramHeader {
                kind: DatagramKind::Data,
                session: self.session,
                order: self.order,
                number,
                stamp,
                extra: 0,
            };
            head.emit(self.key, self.role, length, &mut bytes);
            note(stamp);
            put(self.socket, self.to, &bytes)
        })
    }
}

/// Calls `each` with the number and the stamp of each packet of a stream at its time, until
/// `is_over`; returns the number of packets.
///
/// # Errors
/// Fails when `each` fails.
pub(super) fn pace(
    plan: StreamPlan,
    clock: TesterClock,
    is_over: &dyn Fn() -> bool,
    each: &mut dyn FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<u64> {
    sharpen_timers();
    let mut departures = DepartureSchedule::new(clock.now(), plan);
    let mut looked = clock.now();
    while let Some(due) = departures.poll_timeout() {
        let now = clock.now();
        if due > now {
            std::thread::sleep(due.since(now).min(LOOK_EVERY));
        }
        while let Some((number, stamp)) = departures.poll_transmit(clock.now()) {
            each(number, stamp)?;
        }
        if clock.now().since(looked) >= LOOK_EVERY {
            looked = clock.now();
            if is_over() {
                break;
            }
        }
    }
    Ok(departures.sent())
}

/// Sends a datagram, over a connected socket or to an address; one that finds no room in the host itself is
/// lost like any other.
///
/// # Errors
/// When the socket fails for good.
pub(super) fn put(socket: &UdpSocket, to: Option<SocketAddr>, bytes: &[u8]) -> io::Result<()> {
    let sent = match to {
        Some(to) => socket.send_to(bytes, to),
        None => socket.send(bytes),
    };
    match sent {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
        Err(error) if is_icmp_error(&error) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}
