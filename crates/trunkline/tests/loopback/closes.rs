//! Comparison of two programs' sockets, direct and through two nodes: scripts of sends, reads,
//! urgent bytes, half-closes, closes and resets, from seeds.
//!
//! ```text
//!  client's script ── TCP ─────────────────────────────── server's script     direct, several times
//!  client's script ── SOCKS ── near node ══ far node ──── server's script     through the nodes
//! ```
//! A reset cuts off what the program did not read before, so that an outcome may depend on timing even on
//! one machine. The direct runs therefore pause at random points, and what the nodes give must be among
//! the outcomes that they have.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use vocab::SeededRandom;

use crate::sites::{self, PATIENCE, TestSites};

/// Direct runs of each script before and, where the nodes' outcome is not among theirs, after that.
const DIRECT_RUNS: u64 = 4;
const MORE_DIRECT_RUNS: u64 = 100;
/// Scripts that run direct at the same time; more would only wait for the two processors.
const DIRECT_AT_ONCE: usize = 32;
/// A pause between two steps of a direct run, at most.
const PAUSE_MS: u64 = 8;
/// Greatest number of bytes that are sent and not read at any time, outside of bulk: less than a
/// socket's first receive window.
const UNREAD_MOST: usize = 30_000;
/// More than all windows and queues between two hosts.
const BULK: usize = 1_500_000;

const CLIENT: usize = 0;
const SERVER: usize = 1;

#[derive(Clone, Copy, Debug)]
enum CloseStep {
    Send(usize),
    /// Waits for so many bytes, or for the end.
    Read(usize),
    /// One byte that the other side is to hear of at once (RFC 9293 §3.8.5, The Communication of Urgent
    /// Information).
    Urgent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseAction {
    Close,
    /// Close with a linger time of zero.
    Reset,
    ReadAll,
    /// Ends its own stream, then reads all.
    FinishAndReadAll,
}

#[derive(Clone, Debug)]
struct CloseScript {
    seed: u64,
    steps: [Vec<CloseStep>; 2],
    endings: [CloseAction; 2],
    /// Set if the kernel's buffers decide how much of this end's data arrives.
    cut_off: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StreamEnd {
    NotRead,
    Finished,
    Reset,
}

/// Bytes that each end has read (`None` where that depends on buffers), and the way it ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CloseOutcome([(Option<usize>, StreamEnd); 2]);

impl fmt::Debug for CloseOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [client, server] = self.0;
        write!(out, "client {client:?}, server {server:?}")
    }
}

impl CloseScript {
    fn from_seed(seed: u64) -> Self {
        let mut random = SeededRandom::for_stream(seed, 1);
        match random.below(8) {
            0 => Self::early_answer(seed, &mut random),
            1 => Self::bulk(seed, &mut random),
            _ => Self::conversation(seed, &mut random),
        }
    }

    /// Steps in an order in which no side waits for data that was not sent before.
    fn conversation(seed: u64, random: &mut SeededRandom) -> Self {
        let mut steps = [Vec::new(), Vec::new()];
        let mut unread = [0_usize; 2];
        for _ in 0..random.below(10) {
            let end = random.below(2) as usize;
            let other = 1 - end;
            let step = match random.below(8) {
                0 if unread[other] < UNREAD_MOST => CloseStep::Urgent,
                0..4 if unread[end] > 0 => {
                    CloseStep::Read(1 + random.below(unread[end] as u64) as usize)
                }
                _ => {
                    let room = UNREAD_MOST.saturating_sub(unread[other]);
                    let longest = [10, 2_000, 30_000][random.below(3) as usize];
                    match room.min(longest) {
                        0 => continue,
                        most => CloseStep::Send(1 + random.below(most as u64) as usize),
                    }
                }
            };
            match step {
                CloseStep::Send(bytes) => unread[other] += bytes,
                CloseStep::Urgent => unread[other] += 1,
                CloseStep::Read(bytes) => unread[end] -= bytes,
            }
            steps[end].push(step);
        }
        let all = [
            CloseAction::Close,
            CloseAction::Reset,
            CloseAction::FinishAndReadAll,
            CloseAction::ReadAll,
        ];
        let first = all[random.below(3) as usize];
        let second = all[random.below(4) as usize];
        let mut endings = [first, second];
        if random.below(2) == 0 {
            endings.swap(0, 1);
        }
        Self {
            seed,
            steps,
            endings,
            cut_off: None,
        }
    }

    /// A server answers and closes while the upload goes on, as with HTTP's 413.
    fn early_answer(seed: u64, random: &mut SeededRandom) -> Self {
        let (end, other) = either(random);
        let mut script = Self {
            seed,
            steps: [Vec::new(), Vec::new()],
            endings: [CloseAction::ReadAll; 2],
            cut_off: None,
        };
        let upload = [3_000, 100_000, BULK][random.below(3) as usize];
        script.steps[end] = vec![CloseStep::Send(upload)];
        let answer = 1 + random.below(20_000) as usize;
        script.steps[other] = vec![CloseStep::Read(100), CloseStep::Send(answer)];
        script.endings[other] = match random.below(4) {
            0 => CloseAction::Reset,
            _ => CloseAction::Close,
        };
        script
    }

    /// One end sends more than all buffers hold to one that reads all.
    fn bulk(seed: u64, random: &mut SeededRandom) -> Self {
        let (end, other) = either(random);
        let mut script = Self {
            seed,
            steps: [Vec::new(), Vec::new()],
            endings: [CloseAction::ReadAll; 2],
            cut_off: None,
        };
        script.steps[end] = vec![CloseStep::Send(BULK)];
        script.endings[end] = [
            CloseAction::Close,
            CloseAction::Reset,
            CloseAction::FinishAndReadAll,
        ][random.below(3) as usize];
        if script.endings[end] == CloseAction::Reset {
            script.cut_off = Some(end);
        }
        if script.endings[end] == CloseAction::FinishAndReadAll {
            script.steps[other] = vec![
                CloseStep::Read(BULK),
                CloseStep::Send(1 + random.below(9_999) as usize),
            ];
        }
        script
    }

    fn run(
        &self,
        accept: &TcpListener,
        connect: impl FnOnce() -> TcpStream,
        pauses: u64,
    ) -> CloseOutcome {
        let seen = thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (stream, _) = accept.accept().unwrap();
                self.play(SERVER, stream, SeededRandom::for_stream(pauses, 3))
            });
            let client = self.play(CLIENT, connect(), SeededRandom::for_stream(pauses, 2));
            [client, server.join().unwrap()]
        });
        let mut ends = seen.map(|(read, end)| (Some(read), end));
        if let Some(end) = self.cut_off {
            ends[1 - end].0 = None;
        }
        CloseOutcome(ends)
    }

    fn play(&self, own: usize, stream: TcpStream, mut pauses: SeededRandom) -> (usize, StreamEnd) {
        let socket = SockRef::from(&stream);
        // What Nagle's algorithm holds back is lost by a reset before it was on its way.
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut side = ProgramSide {
            stream: &stream,
            outgoing: 2 * self.seed + own as u64,
            incoming: 2 * self.seed + 1 - own as u64,
            sent: 0,
            read: 0,
            end: StreamEnd::NotRead,
            can_send: true,
            is_reset: false,
            name: (self.seed, own),
        };
        for step in &self.steps[own] {
            pause(&mut pauses);
            match *step {
                CloseStep::Send(bytes) => side.send(bytes),
                CloseStep::Urgent => side.send_urgent(),
                CloseStep::Read(bytes) => side.read(bytes),
            }
        }
        pause(&mut pauses);
        match self.endings[own] {
            CloseAction::Close => {}
            CloseAction::Reset => socket.set_linger(Some(Duration::ZERO)).unwrap(),
            CloseAction::ReadAll => side.read(usize::MAX),
            CloseAction::FinishAndReadAll => {
                // An error says that the connection is gone, as reading will.
                let _ = socket.shutdown(std::net::Shutdown::Write);
                side.read(usize::MAX);
            }
        }
        (side.read, side.end)
    }
}

fn either(random: &mut SeededRandom) -> (usize, usize) {
    let end = random.below(2) as usize;
    (end, 1 - end)
}

/// Different timing for each direct run; nothing waits for it.
fn pause(random: &mut SeededRandom) {
    if random.below(3) == 0 {
        thread::sleep(Duration::from_millis(random.below(PAUSE_MS)));
    }
}

/// Bytes of a stream from a place on: of no other stream, and of no other place nearby.
fn content(stream: u64, from: usize, length: usize) -> Vec<u8> {
    (from..from + length)
        .map(|place| {
            let mixed = (place as u64 ^ stream << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 40) as u8
        })
        .collect()
}

/// One program.
struct ProgramSide<'a> {
    stream: &'a TcpStream,
    /// Seed of the content that it sends, and of the content that it expects.
    outgoing: u64,
    incoming: u64,
    sent: usize,
    read: usize,
    end: StreamEnd,
    can_send: bool,
    /// Set after the kernel has reported a reset, which it does once, possibly to a write.
    is_reset: bool,
    name: (u64, usize),
}

impl ProgramSide<'_> {
    fn send(&mut self, bytes: usize) {
        let content = content(self.outgoing, self.sent, bytes);
        self.sent += bytes;
        if self.can_send {
            let sent = self.stream.write_all(&content);
            self.note_sent(sent);
        }
    }

    fn send_urgent(&mut self) {
        let byte = content(self.outgoing, self.sent, 1);
        self.sent += 1;
        if self.can_send {
            let sent = SockRef::from(self.stream).send_out_of_band(&byte);
            self.note_sent(sent.map(drop));
        }
    }

    fn note_sent(&mut self, sent: std::io::Result<()>) {
        let Err(error) = sent else { return };
        self.can_send = false;
        match error.kind() {
            ErrorKind::ConnectionReset => self.is_reset = true,
            // The other side had ended its stream before it reset.
            ErrorKind::BrokenPipe => {}
            _ => panic!("{:?}: {error}", self.name),
        }
    }

    fn read(&mut self, bytes: usize) {
        let mut left = bytes;
        let mut buffer = vec![0; 64 << 10];
        while left > 0 && self.end == StreamEnd::NotRead {
            let most = left.min(buffer.len());
            match self.stream.read(&mut buffer[..most]) {
                Ok(0) if self.is_reset => self.end = StreamEnd::Reset,
                Ok(0) => self.end = StreamEnd::Finished,
                Ok(length) => {
                    let expected = content(self.incoming, self.read, length);
                    assert!(buffer[..length] == expected, "{:?}: wrong bytes", self.name);
                    self.read += length;
                    left -= length;
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    self.end = StreamEnd::Reset
                }
                Err(error) => panic!("{:?}, {} bytes read: {error}", self.name, self.read),
            }
        }
    }
}

/// Urgent bytes are read in their place from the first on.
fn listen(at: Ipv4Addr) -> TcpListener {
    let listener = TcpListener::bind((at, 0)).unwrap();
    SockRef::from(&listener)
        .set_out_of_band_inline(true)
        .unwrap();
    listener
}

fn direct(script: &CloseScript, at: Ipv4Addr, run: u64) -> CloseOutcome {
    let listener = listen(at);
    let server = listener.local_addr().unwrap();
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_out_of_band_inline(true).unwrap();
        socket.connect(&server.into()).unwrap();
        socket.into()
    };
    script.run(&listener, connect, script.seed << 8 | run)
}

fn through(script: &CloseScript, at: Ipv4Addr, socks: SocketAddr) -> CloseOutcome {
    let listener = listen(at);
    let port = listener.local_addr().unwrap().port();
    let connect = || sites::connect(socks, at, port).unwrap();
    script.run(&listener, connect, script.seed)
}

/// Runs `work` for each element, so many at a time, and returns the results in order.
fn each<T: Sync, R: Send>(all: &[T], at_once: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut results = Vec::with_capacity(all.len());
    for some in all.chunks(at_once) {
        thread::scope(|scope| {
            let workers: Vec<_> = some.iter().map(|one| scope.spawn(|| work(one))).collect();
            results.extend(workers.into_iter().map(|worker| worker.join().unwrap()));
        });
    }
    results
}

/// Runs scripts direct, then all at once over one pair of nodes. The results through the nodes must
/// equal those of direct connections.
pub(super) fn compare(sites: &TestSites, seeds: std::ops::Range<u64>) {
    let (at, socks) = (sites.far(), sites.socks());
    let scripts: Vec<CloseScript> = seeds.map(CloseScript::from_seed).collect();
    let known: Vec<BTreeSet<CloseOutcome>> = each(&scripts, DIRECT_AT_ONCE, |script| {
        (0..DIRECT_RUNS)
            .map(|run| direct(script, at, run))
            .collect()
    });
    let seen = each(&scripts, scripts.len(), |script| through(script, at, socks));
    let uncertain = known.iter().filter(|known| known.len() > 1).count();
    println!(
        "{} scripts, {uncertain} of them with more than one outcome",
        scripts.len()
    );
    let mut wrong = Vec::new();
    for ((script, mut known), seen) in scripts.iter().zip(known).zip(seen) {
        let more = DIRECT_RUNS..DIRECT_RUNS + MORE_DIRECT_RUNS;
        let is_known = known.contains(&seen)
            || more.into_iter().any(|run| {
                let outcome = direct(script, at, run);
                known.insert(outcome);
                outcome == seen
            });
        if !is_known {
            wrong.push(format!(
                "{script:?}\n  nodes: {seen:?}\n  direct: {known:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
