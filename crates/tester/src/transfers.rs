//! The connections of a run at one end: some send, some receive, for a stated time.
//!
//! Senders write as fast as the kernel accepts; a sampler reads each connection's counters ten
//! times a second. When the time is up nothing more is written, data in flight is waited for, and
//! the last sample is of a connection at rest, so that its counters equal those of a capture.
//! Receivers read and discard, and set the window repeatedly (note 46 among the decisions).
//!
//! Where the window is bounded, data is written in small pieces that the kernel does not join
//! (MSG_EOR of send(2)). By default it joins the data that a millisecond's acknowledgements release
//! into one burst (tcp_tso_should_defer, tcp_tso_autosize): with a window of 88 segments, ten then
//! wait for each other at both ends and on the line, and the run shows the host's habit, 5 % of the
//! rate, and not the path's.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use measure::tcp_info::TcpInfo;
use measure::wire::RunSample;
use socket2::SockRef;
use vocab::ByteCount;

use host::stamped_sockets::reset_on_close;
use host::tester_sockets::{SocketBuffer, clamp_window, set_buffer, tcp_info};

/// Interval between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Time limit at the end for data in flight.
const DRAIN_MAX: Duration = Duration::from_secs(3);
/// Interval of the checks for data in flight.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Bytes of one write or read at most.
const CHUNK_BYTES: usize = 64 * 1024;
/// Share of a bounded window that is sent as one piece, which is also the share that bursts may
/// cost.
const PIECE_SHARE: f64 = 0.01;
/// ... or as much as the path carries in this time, where that is more: system calls are not free.
const PIECE_TIME: Duration = Duration::from_micros(50);
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
    /// Runs the transfers to their end, or until `is_over` returns true. `tick` receives the number
    /// of seconds that have passed.
    pub(super) fn run(
        self,
        is_over: &(dyn Fn() -> bool + Sync),
        tick: &mut dyn FnMut(f64),
    ) -> TransferResult {
        let began = Instant::now();
        let until = began + self.duration;
        let stop = AtomicBool::new(false);
        let read = AtomicU64::new(0);
        let mut done = TransferResult::default();
        std::thread::scope(|scope| {
            let writers: Vec<_> = self
                .sending
                .iter()
                .map(|(_, stream)| {
                    scope.spawn(|| write_until(stream, until, self.send_window, &stop))
                })
                .collect();
            let window = self.window;
            let readers: Vec<_> = self
                .receiving
                .iter()
                .map(|(_, stream)| {
                    let (stop, read) = (&stop, &read);
                    scope.spawn(move || read_to_end(stream, until + LATE_MAX, window, stop, read))
                })
                .collect();
            let mut next = began;
            while Instant::now() < until && !is_over() {
                let at = began.elapsed();
                sample(&self.sending, at, &mut done.samples);
                done.received
                    .push((at, ByteCount::new(read.load(Ordering::Relaxed))));
                tick(at.as_secs_f64());
                next += SAMPLE_EVERY;
                let wait = next.min(until).saturating_duration_since(Instant::now());
                std::thread::sleep(wait);
            }
            let was_stopped = Instant::now() < until;
            sample(&self.sending, began.elapsed(), &mut done.samples);
            stop.store(was_stopped, Ordering::Relaxed);
            let written: Vec<u64> = writers
                .into_iter()
                .map(|writer| writer.join().unwrap_or(0))
                .collect();
            drain(&self.sending, &written, is_over);
            sample(&self.sending, began.elapsed(), &mut done.samples);
            for (_, stream) in &self.sending {
                let _ = stream.shutdown(Shutdown::Write);
            }
            while readers.iter().any(|reader| !reader.is_finished()) {
                if is_over() {
                    stop.store(true, Ordering::Relaxed);
                }
                done.received.push((
                    began.elapsed(),
                    ByteCount::new(read.load(Ordering::Relaxed)),
                ));
                std::thread::sleep(LOOK_EVERY);
            }
        });
        for (_, stream) in &self.sending {
            // What is still unsent is of no use to anybody.
            let _ = reset_on_close(stream);
        }
        done
    }
}

fn sample(sending: &[(u16, TcpStream)], at: Duration, samples: &mut Vec<RunSample>) {
    for (connection, stream) in sending {
        // A connection that broke has no more counters; its last ones stand.
        if let Ok(info) = tcp_info(stream) {
            samples.push(RunSample {
                connection: *connection,
                at,
                info,
            });
        }
    }
}

/// Writes until the moment; returns the bytes that the kernel took.
fn write_until(stream: &TcpStream, until: Instant, window: ByteCount, stop: &AtomicBool) -> u64 {
    let _ = stream.set_write_timeout(Some(LOOK_EVERY));
    // Nothing on the way can make it smaller.
    let mut chunk = vec![0; CHUNK_BYTES];
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
        let sent = SockRef::from(stream).send_with_flags(&chunk[..length], piece.flags);
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

/// Bytes handed to the kernel at once, with the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SendPiece {
    bytes: usize,
    flags: libc::c_int,
}

impl Default for SendPiece {
    /// As much as the kernel takes, joined as it likes.
    fn default() -> Self {
        Self {
            bytes: CHUNK_BYTES,
            flags: libc::MSG_NOSIGNAL,
        }
    }
}

impl SendPiece {
    /// Few segments at once, so that their bursts do not matter, and enough pieces to fill the
    /// window: with whole segments alone, up to one would not fit.
    fn of(window: ByteCount, info: &TcpInfo) -> Self {
        let segment = info.segment_bytes.max(1) as usize;
        let round_trip = info.rtt_min.max(Duration::from_micros(1));
        let share = PIECE_SHARE.max(PIECE_TIME.as_secs_f64() / round_trip.as_secs_f64());
        let segments = (window.bytes() as f64 * share / segment as f64).max(1.0) as usize;
        let most = segments.saturating_mul(segment);
        if window.bytes() == 0 || most >= CHUNK_BYTES {
            return Self::default();
        }
        let count = window.bytes().div_ceil(most as u64);
        Self {
            bytes: (window.bytes() / count).max(1) as usize,
            flags: libc::MSG_NOSIGNAL | libc::MSG_EOR,
        }
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

/// Waits until everything written is sent and acknowledged.
fn drain(sending: &[(u16, TcpStream)], written: &[u64], is_over: &dyn Fn() -> bool) {
    let until = Instant::now() + DRAIN_MAX;
    let is_at_rest = |info: TcpInfo, written: u64| {
        let fresh = info.bytes_sent.bytes() - info.bytes_retransmitted.bytes();
        info.unacknowledged == 0 && fresh >= written
    };
    while Instant::now() < until && !is_over() {
        let all = sending.iter().zip(written).all(|((_, stream), written)| {
            tcp_info(stream).map_or(true, |info| is_at_rest(info, *written))
        });
        if all {
            return;
        }
        std::thread::sleep(DRAIN_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(segment_bytes: u32, rtt_min: Duration) -> TcpInfo {
        TcpInfo {
            segment_bytes,
            rtt_min,
            ..TcpInfo::default()
        }
    }

    #[test]
    fn bounded_window_is_sent_in_small_pieces() {
        let long = path(1_448, Duration::from_millis(20));
        let piece = |window, info: &TcpInfo| SendPiece::of(ByteCount::new(window), info);
        // 23 pieces of 1,391 bytes fill 32,000; 22 full segments would leave 144 over.
        assert_eq!(piece(32_000, &long).bytes, 1_391);
        assert_eq!(piece(128_000, &long).bytes, 1_438);
        assert_eq!(piece(1_000_000, &long).bytes, 8_620);
        assert_eq!(piece(1_000, &long).bytes, 1_000);
        assert_ne!(piece(1_000_000, &long).flags & libc::MSG_EOR, 0);
        assert_eq!(piece(0, &long), SendPiece::default());
        assert_eq!(piece(100_000_000, &long), SendPiece::default());
        // A short path: 50 us of 500 us are a tenth.
        let short = path(1_448, Duration::from_micros(500));
        assert_eq!(piece(100_000, &short).bytes, 8_333);
    }

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
