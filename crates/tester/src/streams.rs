//! Sending of datagram streams over a socket, the same at both ends.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use measure::procedure::{DepartureSchedule, StreamPlan};
use measure::session::{OutgoingStream, SentDatagrams};

use host::stamped_sockets::sharpen_timers;
use host::tester_sockets::{TesterClock, is_icmp_error};

/// Interval of the checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Sends a stream over a socket, connected or to an address; each packet leaves at its time.
///
/// # Errors
/// When the socket fails for good.
pub(super) fn send_stream(
    socket: &UdpSocket,
    to: Option<SocketAddr>,
    mut stream: OutgoingStream,
    clock: TesterClock,
    is_over: &dyn Fn() -> bool,
) -> Result<SentDatagrams, String> {
    let mut bytes = Vec::new();
    let sent = pace(stream.plan, clock, is_over, &mut |number, stamp| {
        stream.emit(number, stamp, &mut bytes);
        put(socket, to, &bytes)
    });
    match sent {
        Ok(datagrams) => Ok(stream.finish(datagrams)),
        Err(error) => Err(format!("sending the stream: {error}")),
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
