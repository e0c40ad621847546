//! Scripted hosts on both sides of the checks.

use super::super::segment::SegmentTimestamps;
use super::*;

const IDLE: Duration = Duration::from_secs(15);
const AFTER: Duration = Duration::from_secs(120);

/// A connection whose hosts answer questions as TCP does.
struct ScriptedConnection {
    flows: SurvivingFlows,
    now: Instant,
    client: SocketAddr,
    server: SocketAddr,
    /// The next number that the client sends, and the one that the server has received up to.
    sent: u32,
    received: u32,
    /// The next number that the server sends, and the one that the client has received up to.
    answered: u32,
    taken: u32,
    /// Windows that the client and the server announce.
    windows: [u16; 2],
    resets: Vec<IpAddr>,
    questions: usize,
}

impl ScriptedConnection {
    fn new(is_ipv4: bool) -> Self {
        let (client, server) = match is_ipv4 {
            true => ("198.18.1.2:40000", "198.18.2.2:445"),
            false => ("[2001:2:0:1::2]:40000", "[2001:2:0:2::2]:445"),
        };
        let mut flows = SurvivingFlows::default();
        flows.configure(Some(SurvivingResets {
            ports: vec!["445".parse().unwrap()],
            idle: IDLE,
            after: AFTER,
        }));
        Self {
            flows,
            now: Instant::now(),
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
            sent: 1_000,
            received: 1_000,
            answered: 9_000,
            taken: 9_000,
            windows: [500; 2],
            resets: Vec::new(),
            questions: 0,
        }
    }

    fn segment(&self, sender: SegmentSender, payload: u32) -> TcpSegment {
        let (source, destination, sequence, acknowledged) = match sender {
            SegmentSender::Client => (self.client, self.server, self.sent, self.taken),
            SegmentSender::Server => (self.server, self.client, self.answered, self.received),
        };
        TcpSegment {
            source,
            destination,
            sequence,
            acknowledged,
            payload,
            kind: SegmentKind::Open,
            window: self.windows[usize::from(sender == SegmentSender::Server)],
            timestamps: None,
        }
    }

    /// Sends a request that its receiver gets and confirms.
    fn request(&mut self) {
        let request = self.segment(SegmentSender::Client, 100);
        self.sent += 100;
        self.received = self.sent;
        self.flows
            .observe(self.now, SegmentSender::Client, &request);
        let answer = self.segment(SegmentSender::Server, 0);
        self.flows.observe(self.now, SegmentSender::Server, &answer);
    }

    /// Lets time pass in steps of a quarter of a second. The hosts answer the questions.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(250);
            self.flows.tick(self.now);
            self.answer();
        }
    }

    fn answer(&mut self) {
        while let Some(output) = self.flows.poll_output() {
            let SurvivingOutput::Send { to, packet } = output else {
                continue;
            };
            let segment = TcpSegment::parse(&packet).unwrap();
            let sender = match segment.destination == self.client {
                true => SegmentSender::Client,
                false => SegmentSender::Server,
            };
            let expected = match sender {
                SegmentSender::Client => self.taken,
                SegmentSender::Server => self.received,
            };
            assert_eq!(to, segment.destination.ip());
            if segment.kind == SegmentKind::Ending {
                assert_eq!(segment.sequence, expected, "a reset has the exact number");
                self.resets.push(to);
                continue;
            }
            self.questions += 1;
            // A host answers what lies in front of its window and says nothing to what it expects.
            if segment.sequence.wrapping_sub(expected) as i32 >= 0 {
                continue;
            }
            let answer = self.segment(sender, 0);
            self.flows.observe(self.now, sender, &answer);
        }
    }
}

#[test]
fn an_idle_connection_is_reset_once_at_both_hosts() {
    for is_ipv4 in [true, false] {
        let mut connection = ScriptedConnection::new(is_ipv4);
        connection.request();
        connection.pass(AFTER - Duration::from_secs(1));
        assert_eq!(connection.questions, 0, "it is watched first");
        connection.pass(Duration::from_secs(5));
        let hosts = [connection.client.ip(), connection.server.ip()];
        assert_eq!(connection.resets, hosts);
        assert_eq!(connection.questions, 3);
        // The client comes back, and passes by again.
        connection.client.set_port(40_001);
        for _ in 0..100 {
            connection.request();
            connection.pass(IDLE * 4);
        }
        assert_eq!(connection.resets, hosts, "never twice");
        let report = connection.flows.report();
        assert_eq!((report.reset, report.passing), (1, 0));
    }
}

#[test]
fn a_busy_connection_is_never_asked() {
    let mut connection = ScriptedConnection::new(true);
    for _ in 0..100 {
        connection.request();
        connection.pass(IDLE - Duration::from_secs(1));
    }
    assert_eq!(connection.questions, 0);
    assert_eq!(connection.flows.report().passing, 1);
}

#[test]
fn unconfirmed_data_of_either_host_prevents_the_reset() {
    for sender in [SegmentSender::Client, SegmentSender::Server] {
        let mut connection = ScriptedConnection::new(true);
        connection.request();
        match sender {
            SegmentSender::Client => connection.sent += 10,
            SegmentSender::Server => connection.answered += 10,
        }
        connection.pass(AFTER * 10);
        assert!(connection.questions > 2);
        assert!(connection.resets.is_empty(), "{sender:?}");
    }
}

#[test]
fn a_closed_window_of_either_host_prevents_the_reset() {
    for windows in [[0, 500], [500, 0]] {
        let mut connection = ScriptedConnection::new(true);
        connection.request();
        connection.windows = windows;
        connection.pass(AFTER * 10);
        assert!(connection.questions > 2);
        assert!(connection.resets.is_empty(), "{windows:?}");
    }
}

#[test]
fn silent_connections_do_not_delay_the_check_of_others() {
    let mut connection = ScriptedConnection::new(true);
    for port in 0..200 {
        connection.client.set_port(30_000 + port);
        connection.request();
    }
    let is_asked = |connection: &mut ScriptedConnection, time: Duration| {
        let end = connection.now + time;
        let mut is_asked = false;
        while connection.now < end {
            connection.now += Duration::from_millis(250);
            connection.flows.tick(connection.now);
            while let Some(output) = connection.flows.poll_output() {
                if let SurvivingOutput::Send { packet, .. } = output {
                    let question = TcpSegment::parse(&packet).unwrap();
                    is_asked |= question.destination.port() == 40_000;
                }
            }
        }
        is_asked
    };
    // At every time, some of them may be asked again.
    is_asked(&mut connection, Duration::from_secs(300));
    connection.client.set_port(40_000);
    connection.request();
    assert!(!is_asked(&mut connection, AFTER - CHECK_EVERY));
    assert!(is_asked(&mut connection, RETRY_AFTER));
}

#[test]
fn packets_during_the_check_end_it() {
    for (sender, payload) in [
        (SegmentSender::Client, 0),
        (SegmentSender::Client, 10),
        (SegmentSender::Server, 10),
    ] {
        let mut connection = ScriptedConnection::new(true);
        connection.request();
        connection.pass(AFTER);
        // The client has answered, and so has the server.
        assert_eq!(connection.questions, 2);
        let other = connection.segment(sender, payload);
        connection.flows.observe(connection.now, sender, &other);
        connection.pass(IDLE - Duration::from_secs(1));
        assert_eq!(connection.questions, 2);
        assert!(connection.resets.is_empty());
        assert_eq!(connection.flows.report().in_use, 1);
        connection.pass(Duration::from_secs(5));
        assert_eq!(connection.resets.len(), 2);
    }
}

#[test]
fn numbers_that_moved_unseen_prevent_the_reset() {
    let mut connection = ScriptedConnection::new(true);
    connection.request();
    connection.pass(AFTER);
    assert_eq!(connection.questions, 2);
    // No log told about this request.
    connection.sent += 100;
    connection.received += 100;
    connection.pass(Duration::from_secs(3));
    assert_eq!(connection.questions, 3);
    assert!(connection.resets.is_empty());
    assert_eq!(connection.flows.report().in_use, 1);
}

#[test]
fn questions_have_a_later_timestamp_than_the_server() {
    for (echo, value, latest) in [(100, 5_000, 5_000), (5_000, 100, 5_000), (u32::MAX, 9, 9)] {
        let mut connection = ScriptedConnection::new(true);
        let stamped = |segment: TcpSegment, value, echo| TcpSegment {
            timestamps: Some(SegmentTimestamps { value, echo }),
            ..segment
        };
        for (sender, value, echo) in [
            (SegmentSender::Client, 70, echo),
            (SegmentSender::Server, value, 70),
        ] {
            let segment = stamped(connection.segment(sender, 0), value, echo);
            connection.flows.observe(connection.now, sender, &segment);
        }
        connection.flows.tick(connection.now + AFTER);
        let Some(SurvivingOutput::Send { packet, .. }) = connection.flows.poll_output() else {
            panic!("no question");
        };
        let stamps = TcpSegment::parse(&packet).unwrap().timestamps.unwrap();
        assert_eq!(stamps.value, latest + TIMESTAMP_MARGIN);
        assert_eq!(stamps.echo, 70);
    }
}

#[test]
fn silent_hosts_are_asked_rarely() {
    let mut connection = ScriptedConnection::new(true);
    connection.request();
    // Its questions go nowhere.
    let end = connection.now + AFTER + RETRY_AFTER * 3;
    while connection.now < end {
        connection.now += Duration::from_millis(250);
        connection.flows.tick(connection.now);
        while connection.flows.poll_output().is_some() {
            connection.questions += 1;
        }
    }
    assert_eq!(connection.questions, 3);
    assert_eq!(connection.flows.report().unanswered, 3);
}

#[test]
fn checks_begin_one_by_one() {
    let mut connection = ScriptedConnection::new(true);
    for port in 0..40 {
        connection.client.set_port(30_000 + port);
        connection.request();
    }
    connection.now += AFTER;
    for seconds in 1..=40 {
        let mut questions = 0;
        for _ in 0..4 {
            connection.flows.tick(connection.now);
            connection.now += CHECK_EVERY / 4;
            while connection.flows.poll_output().is_some() {
                questions += 1;
            }
        }
        assert_eq!(questions, 1, "second {seconds}");
    }
}

#[test]
fn settings_without_the_port_forget_its_connections() {
    let mut connection = ScriptedConnection::new(true);
    connection.request();
    connection.flows.configure(None);
    connection.pass(AFTER * 2);
    assert_eq!(connection.questions, 0);
    assert_eq!(connection.flows.report().passing, 0);
}

#[test]
fn ended_and_excess_connections_are_not_watched() {
    let mut connection = ScriptedConnection::new(true);
    for number in 0..FLOWS_MAX as u16 + 5 {
        connection.client.set_port(number);
        connection.request();
    }
    assert_eq!(connection.flows.report().passing, FLOWS_MAX);
    connection.client.set_port(1);
    let end = TcpSegment {
        kind: SegmentKind::Ending,
        ..connection.segment(SegmentSender::Server, 0)
    };
    connection
        .flows
        .observe(connection.now, SegmentSender::Server, &end);
    assert_eq!(connection.flows.report().passing, FLOWS_MAX - 1);
    connection.now += FORGOTTEN_AFTER;
    connection.flows.tick(connection.now);
    assert_eq!(connection.flows.report().passing, 0);
}
