//! Numbered UDP datagrams from one socket to another, with the fate of each.
//!
//! ```text
//!   sender thread ──socket──► (the emulator, a process of its own) ──socket──► receiver thread
//!        ▲        stamps of leaving                           stamps of arriving    │
//!        └────────────── highest number that has arrived (window pace only) ────────┘
//! ```
//! The sender keeps a pace: an even one, or as many under way as a window allows, so that nothing
//! but the model can lose a packet. Nothing here asks the emulator anything.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use host::stamped_sockets::{
    self as system, ReceiveBatch, ReceivedDatagram, SendBatch, SystemClock,
};
use host::wait;

/// A UDP header, behind an IPv4 header without options, and behind an IPv6 header without any
/// others.
const HEADERS_V4: u16 = 20 + 8;
const HEADERS_V6: u16 = 40 + 8;

/// Length of the headers before the payload of this socket's datagrams.
///
/// # Errors
/// When the kernel does not say which protocol the socket is of.
pub(super) fn headers(socket: &UdpSocket) -> io::Result<u16> {
    Ok(match socket.local_addr()? {
        SocketAddr::V4(_) => HEADERS_V4,
        SocketAddr::V6(_) => HEADERS_V6,
    })
}

/// Time that a receiver waits in the kernel before it checks whether it is done.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// With a window: packets that have not arrived this long after the last sign of life are taken
/// as lost, all of them. Longer than any delay that a window is used with.
const WINDOW_STALL: Duration = Duration::from_millis(300);

/// With a window: how long the sender sleeps when it is full, about the time that 20 packets take.
const WINDOW_PAUSE: Duration = Duration::from_micros(100);

/// Sockets keep up to this while the receiver is not running: 64 MiB, half a second at 1 Gbit/s.
const SOCKET_BUFFER_BYTES: i32 = 64 << 20;

/// Packets to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TrafficLoad {
    /// Number of packets.
    pub(super) packets: u64,
    /// The length of each, from its first IP header byte.
    pub(super) ip_length: u16,
    /// Pace of the packets.
    pub(super) pace: SendingPace,
    /// Way of handing packets to the kernel.
    pub(super) sending: SendMode,
}

/// Pace at which packets are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SendingPace {
    /// `per_second`, `head_start` of them at once at the beginning. A sender that was held up
    /// makes up for at most `debt_max` packets.
    Even {
        /// Packets in a second.
        per_second: f64,
        /// Packets that are sent before the first pause.
        head_start: u64,
        /// The most that is sent late.
        debt_max: u64,
        /// Packets between two pauses.
        together: u64,
    },
    /// As fast as possible with at most so many packets in flight.
    Window(u64),
}

/// Time for which a receiver without stamps lets packets gather before it looks again: long enough
/// that the kernel wakes it once for some thirty packets and not for each, and short enough for its
/// socket's buffer.
const RECEIVER_NAP: Duration = Duration::from_micros(200);

/// Way of handing packets to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendMode {
    /// Each packet as a datagram of its own.
    Plain,
    /// Some 60 kB at once, which the kernel or device cuts into datagrams (segmentation offload).
    Offloaded,
}

impl SendMode {
    /// Datagrams handed over as one, at most 64 (`UDP_MAX_SEGMENTS` before Linux 6.9).
    fn segments(self, payload: usize) -> usize {
        match self {
            SendMode::Plain => 1,
            SendMode::Offloaded => (60_000 / payload).clamp(1, 64),
        }
    }
}

/// Information that the receiver keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverRecording {
    /// Every arrival with its stamp.
    Arrivals,
    /// Set of numbers that arrived; the kernel may hand over consecutive datagrams as one.
    Numbers,
}

/// Outcome of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadOutcome {
    /// Handed to the kernel.
    pub(super) sent: u64,
    /// Duration of the sending.
    pub(super) sending_took: Duration,
    /// The share of that for which the sender was on a processor.
    pub(super) sender_busy: f64,
    /// Departure time of each packet, by number, where the socket stamps; zero for those without a
    /// stamp.
    pub(super) left_ns: Vec<u64>,
    /// Arrivals in their order; only with [`ReceiverRecording::Arrivals`].
    pub(super) arrivals: Vec<ReceivedDatagram>,
    /// Set of numbers that arrived; only with [`ReceiverRecording::Numbers`].
    pub(super) numbers: NumberSet,
    /// Number of packets that arrived.
    pub(super) received: u64,
    /// Packets that the receiver's own socket had no room for.
    pub(super) receiver_dropped: u64,
    /// Time from the first arrival to the last, by the receiver's clock.
    pub(super) receiving_took: Duration,
    /// Length of the headers before the payload of each.
    pub(super) headers: u16,
}

/// A set of numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct NumberSet {
    words: Vec<u64>,
}

impl NumberSet {
    fn up_to(count: u64) -> Self {
        Self {
            words: vec![0; usize::try_from(count.div_ceil(64)).unwrap_or(usize::MAX)],
        }
    }

    fn insert(&mut self, number: u64) {
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        if let Some(word) = self.words.get_mut(word) {
            *word |= 1 << (number % 64);
        }
    }

    fn contains(&self, number: u64) -> bool {
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        self.words
            .get(word)
            .is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    /// Number of entries below `count`.
    pub(super) fn len_below(&self, count: u64) -> u64 {
        (0..count).filter(|number| self.contains(*number)).count() as u64
    }

    /// Runs of numbers below `count` that are not in it: first number and length of each.
    pub(super) fn missing_runs(&self, count: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for number in (0..count).filter(|number| !self.contains(*number)) {
            match runs.last_mut() {
                Some((first, length)) if *first + *length == number => *length += 1,
                _ => runs.push((number, 1)),
            }
        }
        runs
    }
}

/// Prepares both ends for a load.
///
/// # Errors
/// When the kernel has no such option.
pub(super) fn prepare(
    sender: &UdpSocket,
    receiver: &UdpSocket,
    load: &TrafficLoad,
    keep: ReceiverRecording,
) -> Result<()> {
    for socket in [sender, receiver] {
        system::enlarge_buffers(socket, SOCKET_BUFFER_BYTES).context("enlarging socket buffers")?;
    }
    if load.sending == SendMode::Offloaded {
        system::segment(sender, load.ip_length - headers(sender)?)
            .context("UDP segmentation offload (Linux 4.18)")?;
    }
    if is_coalesced(load, keep) {
        system::coalesce(receiver).context("UDP receive offload (Linux 5.0)")?;
    }
    receiver.set_read_timeout(Some(LOOK_AGAIN_AFTER))?;
    Ok(())
}

fn is_coalesced(load: &TrafficLoad, keep: ReceiverRecording) -> bool {
    load.sending == SendMode::Offloaded || keep == ReceiverRecording::Numbers
}

/// Sends a load and waits until all of it has come or nothing has for `patience`.
///
/// # Errors
/// When a socket fails, or the lab is interrupted.
pub(super) fn run(
    sender: &UdpSocket,
    receiver: &UdpSocket,
    load: &TrafficLoad,
    keep: ReceiverRecording,
    patience: Duration,
) -> Result<LoadOutcome> {
    prepare(sender, receiver, load, keep)?;
    let shared = TrafficProgress::default();
    let drops_before = system::receive_drops(receiver)?;
    let mut outcome = thread::scope(|scope| -> Result<LoadOutcome> {
        let receiving = scope.spawn(|| receive(receiver, load, keep, patience, &shared));
        let sending = scope.spawn(|| {
            let result = send(sender, load, &shared);
            shared.sent_all.store(true, Ordering::Release);
            result
        });
        let sent = join(sending)?;
        let mut outcome = join(receiving)?;
        outcome.sent = sent.sent;
        outcome.sending_took = sent.took;
        outcome.sender_busy = sent.busy;
        outcome.left_ns = sent.left_ns;
        outcome.headers = headers(receiver)?;
        Ok(outcome)
    })?;
    let dropped = system::receive_drops(receiver)?.wrapping_sub(drops_before);
    outcome.receiver_dropped = u64::from(dropped);
    Ok(outcome)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("a measuring thread panicked")))
}

#[derive(Default)]
struct TrafficProgress {
    /// One more than the highest number that has arrived.
    arrived: AtomicU64,
    sent: AtomicU64,
    sent_all: AtomicBool,
}

struct SendResult {
    sent: u64,
    took: Duration,
    busy: f64,
    left_ns: Vec<u64>,
}

fn send(socket: &UdpSocket, load: &TrafficLoad, shared: &TrafficProgress) -> Result<SendResult> {
    system::sharpen_timers();
    let payload = usize::from(load.ip_length - headers(socket)?);
    let mut batch = SendBatch::new(payload, load.sending.segments(payload));
    let mut stamps = DepartureStamps::new(load.packets);
    let start = Instant::now();
    let busy_before = system::clock_ns(SystemClock::Thread);
    let mut next = 0;
    let mut forgiven = 0;
    let mut sign_of_life = (0, start);
    while next < load.packets {
        wait::not_interrupted()?;
        let may = match load.pace {
            SendingPace::Even {
                per_second,
                head_start,
                debt_max,
                ..
            } => {
                let due = head_start + (start.elapsed().as_secs_f64() * per_second) as u64;
                let debt = due.saturating_sub(forgiven).saturating_sub(next);
                forgiven += debt.saturating_sub(debt_max.max(head_start));
                debt.min(debt_max.max(head_start))
            }
            SendingPace::Window(window) => {
                let arrived = shared.arrived.load(Ordering::Acquire);
                if arrived > sign_of_life.0 {
                    sign_of_life = (arrived, Instant::now());
                } else if sign_of_life.1.elapsed() > WINDOW_STALL {
                    sign_of_life = (next, Instant::now());
                }
                (sign_of_life.0.max(arrived) + window).saturating_sub(next)
            }
        };
        let mut left = may.min(load.packets - next);
        if left == 0 {
            stamps.collect(socket)?;
            pause(load.pace, start, next + 1 + forgiven);
            continue;
        }
        while left > 0 {
            let sent = batch
                .send(socket, next, left)
                .context("sending a measuring packet")?;
            next += sent;
            left -= sent;
            shared.sent.store(next, Ordering::Release);
        }
    }
    let took = start.elapsed();
    let busy_ns = system::clock_ns(SystemClock::Thread) - busy_before;
    stamps.collect_rest(socket, next)?;
    Ok(SendResult {
        sent: next,
        took,
        busy: busy_ns as f64 / (took.as_nanos() as f64).max(1.0),
        left_ns: stamps.left_ns,
    })
}

/// Sleeps until the packet with this count may be sent.
fn pause(pace: SendingPace, start: Instant, count: u64) {
    match pace {
        SendingPace::Even {
            per_second,
            head_start,
            together,
            ..
        } => {
            let last = (count + together).saturating_sub(1 + head_start);
            let due = Duration::from_secs_f64(last as f64 / per_second);
            if let Some(left) = due.checked_sub(start.elapsed()) {
                thread::sleep(left);
            }
        }
        SendingPace::Window(_) => thread::sleep(WINDOW_PAUSE),
    }
}

/// The moments at which packets left, as they come back.
struct DepartureStamps {
    batch: ReceiveBatch,
    left_ns: Vec<u64>,
    packets: u64,
    found: u64,
}

impl DepartureStamps {
    fn new(packets: u64) -> Self {
        Self {
            batch: ReceiveBatch::new(64),
            left_ns: Vec::new(),
            packets,
            found: 0,
        }
    }

    fn collect(&mut self, socket: &UdpSocket) -> Result<()> {
        let (left_ns, packets) = (&mut self.left_ns, self.packets as usize);
        let found = &mut self.found;
        self.batch
            .sent_stamps(socket, |place, stamp| {
                left_ns.resize(packets, 0);
                if let Some(left) = left_ns.get_mut(place as usize) {
                    *left = stamp;
                    *found += 1;
                }
            })
            .context("reading the stamps of sent packets")
    }

    /// Waits a little for those that are still with the device.
    fn collect_rest(&mut self, socket: &UdpSocket, sent: u64) -> Result<()> {
        let start = Instant::now();
        self.collect(socket)?;
        while self.found > 0 && self.found < sent && start.elapsed() < WINDOW_STALL {
            thread::sleep(Duration::from_millis(1));
            self.collect(socket)?;
        }
        Ok(())
    }
}

fn receive(
    socket: &UdpSocket,
    load: &TrafficLoad,
    keep: ReceiverRecording,
    patience: Duration,
    shared: &TrafficProgress,
) -> Result<LoadOutcome> {
    system::sharpen_timers();
    let mut batch = ReceiveBatch::new(if is_coalesced(load, keep) {
        65_536
    } else {
        2_048
    });
    let naps = keep == ReceiverRecording::Numbers && matches!(load.pace, SendingPace::Even { .. });
    let mut outcome = LoadOutcome::default();
    match keep {
        ReceiverRecording::Arrivals => outcome.arrivals.reserve(load.packets as usize),
        ReceiverRecording::Numbers => outcome.numbers = NumberSet::up_to(load.packets),
    }
    let mut highest = 0;
    let mut first = None;
    let mut last = None;
    let mut quiet_since = Instant::now();
    loop {
        let count = batch
            .receive(socket, |one| {
                highest = highest.max(one.number + 1);
                match keep {
                    ReceiverRecording::Arrivals => outcome.arrivals.push(one),
                    ReceiverRecording::Numbers => outcome.numbers.insert(one.number),
                }
            })
            .context("receiving measuring packets")?;
        let now = Instant::now();
        let sent_all = shared.sent_all.load(Ordering::Acquire);
        if count > 0 {
            first.get_or_insert(now);
            last = Some(now);
            outcome.received += count as u64;
            shared.arrived.store(highest, Ordering::Release);
        }
        // Patience begins with the last packet that was sent or has come.
        if count > 0 || !sent_all {
            quiet_since = now;
        }
        let complete = outcome.received >= shared.sent.load(Ordering::Acquire);
        if sent_all && (complete || quiet_since.elapsed() >= patience) {
            outcome.receiving_took = match (first, last) {
                (Some(first), Some(last)) => last - first,
                _ => Duration::ZERO,
            };
            return Ok(outcome);
        }
        wait::not_interrupted()?;
        if naps && count > 0 {
            thread::sleep(RECEIVER_NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UdpSocket, UdpSocket) {
        pair_at("127.0.0.1:0")
    }

    fn pair_at(address: &str) -> (UdpSocket, UdpSocket) {
        let receiver = UdpSocket::bind(address).unwrap();
        let sender = UdpSocket::bind(address).unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        (sender, receiver)
    }

    fn load(packets: u64, pace: SendingPace, sending: SendMode) -> TrafficLoad {
        TrafficLoad {
            packets,
            ip_length: 128,
            pace,
            sending,
        }
    }

    #[test]
    fn window_loses_no_packet_and_sees_every_number() {
        for sending in [SendMode::Plain, SendMode::Offloaded] {
            let (sender, receiver) = pair();
            let load = load(5_000, SendingPace::Window(500), sending);
            let patience = Duration::from_secs(5);
            let outcome = run(
                &sender,
                &receiver,
                &load,
                ReceiverRecording::Numbers,
                patience,
            )
            .unwrap();
            assert_eq!((outcome.sent, outcome.received), (5_000, 5_000));
            assert_eq!(outcome.numbers.len_below(5_000), 5_000);
            assert_eq!(outcome.numbers.missing_runs(5_002), [(5_000, 2)]);
        }
    }

    #[test]
    fn packet_length_is_right_over_ipv4_and_ipv6() {
        for (address, payload) in [("127.0.0.1:0", 100), ("[::1]:0", 80)] {
            let (sender, receiver) = pair_at(address);
            let load = load(10, SendingPace::Window(10), SendMode::Plain);
            let patience = Duration::from_secs(5);
            let outcome = run(
                &sender,
                &receiver,
                &load,
                ReceiverRecording::Arrivals,
                patience,
            )
            .unwrap();
            let lengths: Vec<u32> = outcome.arrivals.iter().map(|one| one.length).collect();
            assert_eq!(lengths, [payload; 10], "{address}");
            assert_eq!(payload + u32::from(outcome.headers), 128);
        }
    }

    #[test]
    fn even_pace_sends_all_and_stamps_both_ends() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            stamps_both_ends(pair_at(address));
        }
    }

    fn stamps_both_ends((sender, receiver): (UdpSocket, UdpSocket)) {
        let _stamping = system::begin_stamping().unwrap();
        system::stamp(&sender, system::StampedDirection::Sent).unwrap();
        system::stamp(&receiver, system::StampedDirection::Received).unwrap();
        let pace = SendingPace::Even {
            per_second: 2_000.0,
            head_start: 10,
            debt_max: 1_000,
            together: 1,
        };
        let load = load(200, pace, SendMode::Plain);
        let patience = Duration::from_secs(5);
        let outcome = run(
            &sender,
            &receiver,
            &load,
            ReceiverRecording::Arrivals,
            patience,
        )
        .unwrap();
        assert_eq!(outcome.received, 200);
        assert!(outcome.sending_took >= Duration::from_millis(90));
        for one in &outcome.arrivals {
            let left = outcome.left_ns[one.number as usize];
            assert!(0 < left && left <= one.stamp_ns);
        }
    }

    #[test]
    fn missing_numbers_are_runs() {
        let mut numbers = NumberSet::up_to(200);
        for number in (0..200).filter(|number| ![0, 63, 64, 65, 199].contains(number)) {
            numbers.insert(number);
        }
        assert_eq!(numbers.missing_runs(200), [(0, 1), (63, 3), (199, 1)]);
        assert_eq!(numbers.len_below(200), 195);
    }
}
