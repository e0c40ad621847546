//! The connections of a run at one end: some send, some receive, for a stated time.
//!
//! Senders write as fast as the kernel accepts, in pieces of the size that [`SendPiece`] says.
//! [`TransferMonitor`] says when counters are read and when writing stops. Receivers read and
//! discard, and set the window repeatedly (note 46 among the decisions).

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use measure::session::{PIECE_BYTES_MAX, SAMPLE_EVERY, SendPiece, TransferAction, TransferMonitor};
use measure::tcp_info::TcpInfo;
use measure::wire::RunSample;
use socket2::SockRef;
use vocab::ByteCount;

use host::kernel;
use host::stamped_sockets::reset_on_close;
use host::tester_sockets::{SocketBuffer, TesterClock, clamp_window, set_buffer, tcp_info};

/// Bytes of one read at most.
const CHUNK_BYTES: usize = 64 * 1024;
/// Interval of the checks for an interruption while waiting for the other end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time beyond the run's duration for which its receivers wait for its end.
const LATE_MAX: Duration = Duration::from_secs(8);

/// The connections of a run at this end.
#[derive(Debug, Default)]
pub(super) struct RunTransfers {
    /// Each with its number.
    pub(super) sending: Vec<(u16, TcpStream)>,
    /// Each with its number.
    pub(super) receiving: Vec<(u16, TcpStream)>,
    /// The window that receivers offer; zero leaves it to the kernel.
    pub(super) window: ByteCount,
    /// The window that the other end's receivers offer; zero where it is not bounded.
    pub(super) send_window: ByteCount,
    /// Duration of sending.
    pub(super) duration: Duration,
}

/// Result of the transfers at this end.
#[derive(Debug, Default)]
pub(super) struct TransferResult {
    /// Samples of the connections that sent.
    pub(super) samples: Vec<RunSample>,
    /// Bytes that all receivers had read, several times a second.
    pub(super) received: Vec<(Duration, ByteCount)>,
}

/// Prepares a socket that is to send with this window: its buffer does not hold the window back.
pub(super) fn prepare_sender(socket: &impl std::os::fd::AsFd, window: ByteCount) {
    if window.bytes() > 0 {
        // A kernel that gives less is seen in the counters (limited by the send buffer).
        let _ = set_buffer(
            socket,
            SocketBuffer::Send,
            window.bytes().saturating_mul(2).max(SEND_BUFFER_MIN),
        );
    }
}

/// Less than this holds two full segments of loopback devices back.
const SEND_BUFFER_MIN: u64 = 128 * 1024;

/// Prepares a socket that is to receive with this window, before it is connected or accepted.
pub(super) fn prepare_receiver(socket: &impl std::os::fd::AsFd, window: ByteCount) {
    if window.bytes() == 0 {
        return;
    }
    // Four times the window holds it whatever the packets' overhead is.
    let room = window.bytes().saturating_mul(4).max(SEND_BUFFER_MIN);
    let _ = set_buffer(socket, SocketBuffer::Receive, room);
    let _ = clamp_window(socket, scaled(window));
}

/// Bound of a socket's window until it is connected, from which the window scale follows. With a
/// scale of zero the kernel rounds a window to whole segments; with a scale of 1 or more it rounds
/// to multiples of two bytes or more, which is closer.
pub(super) fn scaled(window: ByteCount) -> u64 {
    const SCALE_OF_ONE: u64 = 2 * 65_535;
    window.bytes().max(SCALE_OF_ONE)
}

impl RunTransfers {
    /// Congestion control of the connections that send; empty where there are none.
    ///
    /// # Errors
    /// Fails when the kernel does not tell.
    pub(super) fn congestion_control(&self) -> Result<String, String> {
        let Some((_, stream)) = self.sending.first() else {
            return Ok(String::new());
        };
        kernel::congestion_control(stream).map_err(|error| error.to_string())
    }

    /// Runs the transfers to their end, or until `is_over` returns true.
    pub(super) fn run(self, is_over: &(dyn Fn() -> bool + Sync)) -> TransferResult {
        let clock = TesterClock::new();
        let (began, until) = (clock.now(), Instant::now() + self.duration);
        let mut monitor = TransferMonitor::new(began, self.duration);
        let stop = AtomicBool::new(false);
        let read = AtomicU64::new(0);
        let mut received = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = self
                .sending
                .iter()
                .map(|(_, stream)| {
                    scope.spawn(|| write_until(stream, until, self.send_window, &stop))
                })
                .collect();
            let mut writers = Some(writers);
            let window = self.window;
            let readers: Vec<_> = self
                .receiving
                .iter()
                .map(|(_, stream)| {
                    let (stop, read) = (&stop, &read);
                    scope.spawn(move || read_to_end(stream, until + LATE_MAX, window, stop, read))
                })
                .collect();
            let read_so_far = || {
                let at = clock.now().since(began);
                (at, ByteCount::new(read.load(Ordering::Relaxed)))
            };
            while !monitor.is_closed() {
                if is_over() {
                    monitor.stop();
                }
                let now = clock.now();
                match monitor.poll_action(now) {
                    Some(TransferAction::ReadCounters) => {
                        if monitor.is_writing() {
                            received.push(read_so_far());
                        }
                        monitor.counters(now, &counters(&self.sending));
                    }
                    Some(TransferAction::StopWriting) => {
                        stop.store(monitor.was_stopped(), Ordering::Relaxed);
                        let ended = writers.take().into_iter().flatten();
                        let written = ended.map(|writer| writer.join().unwrap_or(0)).collect();
                        monitor.written(clock.now(), written);
                    }
                    Some(TransferAction::CloseSending) => {
                        for (_, stream) in &self.sending {
                            let _ = stream.shutdown(Shutdown::Write);
                        }
                    }
                    None => {
                        let due = monitor.poll_timeout().unwrap_or(now);
                        std::thread::sleep(due.since(clock.now()));
                    }
                }
            }
            while readers.iter().any(|reader| !reader.is_finished()) {
                if is_over() {
                    stop.store(true, Ordering::Relaxed);
                }
                received.push(read_so_far());
                std::thread::sleep(LOOK_EVERY);
            }
        });
        for (_, stream) in &self.sending {
            // What is still unsent is of no use to anybody.
            let _ = reset_on_close(stream);
        }
        TransferResult {
            samples: monitor.into_samples(),
            received,
        }
    }
}

/// Counters of all connections; a connection that broke has no more.
fn counters(sending: &[(u16, TcpStream)]) -> Vec<(u16, Option<TcpInfo>)> {
    let each = sending.iter();
    each.map(|(connection, stream)| (*connection, tcp_info(stream).ok()))
        .collect()
}

/// Writes until the moment; returns the bytes that the kernel took.
fn write_until(stream: &TcpStream, until: Instant, window: ByteCount, stop: &AtomicBool) -> u64 {
    let _ = stream.set_write_timeout(Some(LOOK_EVERY));
    // Nothing on the way can make it smaller.
    let mut chunk = vec![0; PIECE_BYTES_MAX];
    vocab::SeededRandom::from_seed(0x7474).fill(&mut chunk);
    let mut written = 0;
    let mut piece = SendPiece::default();
    // What is left of a piece that the kernel took in part: the next ones begin at segments again.
    let mut rest = 0;
    let mut looked: Option<Instant> = None;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        // The path's segments and round trips are not known at once.
        if looked.is_none_or(|at| at.elapsed() >= SAMPLE_EVERY) {
            looked = Some(Instant::now());
            piece = tcp_info(stream).map_or(piece, |info| SendPiece::of(window, &info));
        }
        let length = if rest > 0 { rest } else { piece.bytes };
        let sent = SockRef::from(stream).send_with_flags(&chunk[..length], flags(piece));
        match sent {
            Ok(count) => {
                written += count as u64;
                rest = length.saturating_sub(count);
            }
            Err(error) if is_wait(&error) => {}
            Err(_) => break,
        }
    }
    written
}

/// Flags of send(2) for a piece.
fn flags(piece: SendPiece) -> libc::c_int {
    match piece.is_separate {
        true => libc::MSG_NOSIGNAL | libc::MSG_EOR,
        false => libc::MSG_NOSIGNAL,
    }
}

fn read_to_end(
    mut stream: &TcpStream,
    until: Instant,
    window: ByteCount,
    stop: &AtomicBool,
    read: &AtomicU64,
) {
    let _ = stream.set_read_timeout(Some(LOOK_EVERY));
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut clamped: Option<Instant> = None;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        if window.bytes() > 0 && clamped.is_none_or(|at| at.elapsed() >= SAMPLE_EVERY) {
            let _ = clamp_window(stream, window.bytes());
            clamped = Some(Instant::now());
        }
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(count) => {
                read.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) if is_wait(&error) => {}
            Err(_) => return,
        }
    }
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_written_in_pieces_arrives_whole() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            receiver.read_to_end(&mut all).unwrap();
            all
        });
        let until = Instant::now() + Duration::from_millis(200);
        let stop = AtomicBool::new(false);
        let written = write_until(&sender, until, ByteCount::new(200_000), &stop);
        drop(sender);
        let all = reader.join().unwrap();
        assert!(written > 0);
        assert_eq!(all.len() as u64, written);
    }
}
