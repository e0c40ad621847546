//! A small script language in the manner of packetdrill: one connection, and a peer that is the script.
//!
//! ```text
//!   0.000 > S 0:0                             a segment that the connection must send then
//!   0.100 < S. 0:0 ack 1 win 65535 <mss 1012,sack>
//!   0.100 write 5000                          the application acts: write N, close, abort
//!   0.150 < . 1:1 ack 1 win 100 <sack 2001:3001>
//! ```
//!
//! Numbers are stream positions: the SYN is 0, the first byte 1. A time is exact to a millisecond. A segment
//! that the script does not expect fails the test.

use std::collections::VecDeque;
use std::time::Duration;

use tcp::{
    ConnectionConfig, FlowAddresses, SegmentFlags, SegmentOptions, SegmentPayload, TcpConnection,
    TcpSegment, TimestampOption,
};
use vocab::{ByteCount, SeededRandom, Time};

/// Sequence number of the script's SYN, near the end of the number space.
const PEER_FIRST: u32 = 0xffff_fe00;

/// A connection under a script.
pub(crate) struct ScriptRunner {
    connection: TcpConnection,
    now: Time,
    /// Sequence number of the connection's SYN, once seen.
    first: Option<u32>,
    sent: VecDeque<(Time, TcpSegment)>,
    line: String,
}

fn addresses() -> FlowAddresses {
    FlowAddresses {
        local: "192.0.2.1:1000".parse().unwrap(),
        remote: "192.0.2.2:2000".parse().unwrap(),
    }
}

/// Runs `script` on a connection that opens actively.
pub(crate) fn run_client(config: ConnectionConfig, script: &str) -> TcpConnection {
    let mut random = SeededRandom::from_seed(1);
    let connection = TcpConnection::connect(addresses(), config, &mut random);
    run(connection, Time::ZERO, script)
}

/// Runs `script` on a connection that answers the SYN in its first line.
pub(crate) fn run_server(config: ConnectionConfig, script: &str) -> TcpConnection {
    let mut random = SeededRandom::from_seed(2);
    let (first, rest) = script.trim().split_once('\n').unwrap();
    let words: Vec<&str> = first.split_whitespace().collect();
    let syn = incoming(&words[2..], 0);
    let now = time(words[0]);
    let connection = TcpConnection::accept(now, addresses(), config, &syn, &mut random).unwrap();
    run(connection, now, rest)
}

fn run(connection: TcpConnection, now: Time, script: &str) -> TcpConnection {
    let mut runner = ScriptRunner {
        connection,
        now,
        first: None,
        sent: VecDeque::new(),
        line: String::new(),
    };
    for line in script.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if !line.is_empty() {
            runner.line = line.to_owned();
            runner.step(line);
        }
    }
    runner.drain();
    runner.expect_silence();
    runner.connection
}

impl ScriptRunner {
    fn step(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = time(words[0]);
        self.advance(at);
        match words[1] {
            ">" => {
                self.expect(at, &words[2..]);
                return;
            }
            "quiet" => {
                self.expect_silence();
                return;
            }
            _ => self.expect_silence(),
        }
        match words[1] {
            "<" => {
                let segment = incoming(&words[2..], self.first.unwrap_or(0));
                self.connection.handle_segment(at, &segment);
            }
            "write" => {
                let count = ByteCount::new(words[2].parse().unwrap());
                self.connection.write_pattern(at, count);
            }
            "close" => self.connection.close(),
            "abort" => self.connection.abort(),
            "read" => while self.connection.read().is_some() {},
            other => panic!("{}: there is no step {other}", self.line),
        }
        self.drain();
    }

    /// Lets timers expire until `at`.
    fn advance(&mut self, at: Time) {
        self.drain();
        while let Some(due) = self.connection.poll_timeout()
            && due <= at
        {
            self.now = self.now.max(due);
            self.connection.handle_timeout(self.now);
            self.drain();
        }
        self.now = self.now.max(at);
    }

    fn drain(&mut self) {
        while let Some(segment) = self.connection.poll_output(self.now) {
            if segment.flags.contain(SegmentFlags::SYN) {
                self.first = Some(segment.sequence);
            }
            self.sent.push_back((self.now, segment));
        }
    }

    fn expect_silence(&self) {
        let sent: Vec<String> = self.sent.iter().map(|sent| self.describe(sent)).collect();
        assert!(
            sent.is_empty(),
            "before `{}`: unexpected {sent:?}",
            self.line
        );
    }

    fn expect(&mut self, at: Time, words: &[&str]) {
        let Some(sent) = self.sent.pop_front() else {
            panic!("`{}`: nothing was sent", self.line);
        };
        let said = self.describe(&sent);
        let late = at.since(sent.0).max(sent.0.since(at));
        assert!(
            late <= Duration::from_millis(1),
            "`{}`: {said} was sent at another time",
            self.line
        );
        let wanted = words.join(" ");
        assert!(
            said.split_once(' ').unwrap().1.starts_with(&wanted),
            "`{}`: {said} was sent",
            self.line
        );
    }

    /// A sent segment as the script writes it.
    fn describe(&self, (at, segment): &(Time, TcpSegment)) -> String {
        let first = self.first.unwrap_or(0);
        let position = segment.sequence.wrapping_sub(first);
        let mut flags = String::new();
        for (flag, letter) in [
            (SegmentFlags::SYN, 'S'),
            (SegmentFlags::FIN, 'F'),
            (SegmentFlags::RST, 'R'),
            (SegmentFlags::PSH, 'P'),
            (SegmentFlags::ACK, '.'),
        ] {
            if segment.flags.contain(flag) {
                flags.push(letter);
            }
        }
        let end = position.wrapping_add(segment.payload.len() as u32);
        let mut said = format!("{at} {flags} {position}:{end}");
        if segment.flags.contain(SegmentFlags::ACK) {
            let acknowledged = segment.acknowledgement.wrapping_sub(PEER_FIRST);
            said += &format!(" ack {acknowledged}");
        }
        for (start, end) in segment.options.sack.as_slice() {
            let (start, end) = (start.wrapping_sub(PEER_FIRST), end.wrapping_sub(PEER_FIRST));
            said += &format!(" sack {start}:{end}");
        }
        said
    }
}

fn time(text: &str) -> Time {
    Time::from_epoch(Duration::from_secs_f64(text.parse().unwrap()))
}

/// A segment of the script: `FLAGS START:END [ack N] [win N] [<options>]`.
fn incoming(words: &[&str], first: u32) -> TcpSegment {
    let mut flags = SegmentFlags::NONE;
    for letter in words[0].chars() {
        flags = flags
            | match letter {
                'S' => SegmentFlags::SYN,
                'F' => SegmentFlags::FIN,
                'R' => SegmentFlags::RST,
                'P' => SegmentFlags::PSH,
                '.' => SegmentFlags::ACK,
                other => panic!("there is no flag {other}"),
            };
    }
    let range = |text: &str| -> (u32, u32) {
        let (start, end) = text.split_once(':').unwrap();
        (start.parse().unwrap(), end.parse().unwrap())
    };
    let (start, end) = range(words[1]);
    let mut segment = TcpSegment {
        sequence: PEER_FIRST.wrapping_add(start),
        flags,
        window: 65_535,
        ..TcpSegment::default()
    };
    if end > start {
        segment.payload = SegmentPayload::Pattern {
            offset: u64::from(start) - 1,
            length: end - start,
        };
    }
    let mut rest = words[2..].iter();
    while let Some(word) = rest.next() {
        match *word {
            "ack" => {
                let position: u32 = rest.next().unwrap().parse().unwrap();
                segment.acknowledgement = first.wrapping_add(position);
            }
            "win" => segment.window = rest.next().unwrap().parse().unwrap(),
            options => segment.options = parse_options(options, first),
        }
    }
    segment
}

/// Options without spaces: `<mss:1012,sackok,scale:7,ts:5:3,sack:1:2>`.
fn parse_options(text: &str, first: u32) -> SegmentOptions {
    let mut options = SegmentOptions::default();
    for option in text.trim_matches(['<', '>']).split(',') {
        let parts: Vec<&str> = option.split(':').collect();
        let number = |index: usize| -> u32 { parts[index].parse().unwrap() };
        match parts[0] {
            "mss" => options.mss = Some(number(1) as u16),
            "sackok" => options.sack_permitted = true,
            "scale" => options.window_scale = Some(number(1) as u8),
            "ts" => {
                options.timestamps = Some(TimestampOption {
                    value: number(1),
                    echo: number(2),
                });
            }
            "sack" => {
                let (start, end) = (number(1), number(2));
                options
                    .sack
                    .push(first.wrapping_add(start), first.wrapping_add(end));
            }
            other => panic!("there is no option {other}"),
        }
    }
    options
}
