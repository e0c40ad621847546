//! Two sessions over a pipe in virtual time: what the rules promise, one by one.

use std::time::Duration;

use vocab::ByteCount;

use super::*;
use crate::{ConnectFailure, LinkEnd, LinkId, SessionError};

/// Two sessions and a link with a delay between them.
struct SessionPair {
    now: Time,
    sessions: [Session; 2],
    link: Option<LinkId>,
    next_link: u64,
    delay: Duration,
    /// Bytes under way to each side, with their time of arrival.
    under_way: [VecDeque<(Time, Bytes)>; 2],
    events: [Vec<SessionEvent>; 2],
}

const NEAR: usize = 0;
const FAR: usize = 1;

impl SessionPair {
    fn new(config: &SessionConfig) -> Self {
        let ids = [NodeId([1; 32]), NodeId([2; 32])];
        let session = |side: usize| {
            Session::new(
                config.clone(),
                ids[side],
                ids[1 - side],
                SeededRandom::from_seed(side as u64),
                Time::ZERO,
            )
        };
        Self {
            now: Time::ZERO,
            sessions: [session(NEAR), session(FAR)],
            link: None,
            next_link: 0,
            delay: Duration::from_millis(10),
            under_way: Default::default(),
            events: Default::default(),
        }
    }

    /// A pair that has met, with the events of that taken away.
    fn connected(config: &SessionConfig) -> Self {
        let mut pair = Self::new(config);
        pair.connect();
        pair.run(Duration::from_millis(100));
        assert!(pair.sessions.iter().all(Session::is_up));
        pair.events = Default::default();
        pair
    }

    fn connect(&mut self) {
        self.cut_wire();
        let link = LinkId(self.next_link);
        self.next_link += 1;
        self.link = Some(link);
        self.sessions[NEAR].link_up(self.now, link, true);
        self.sessions[FAR].link_up(self.now, link, false);
    }

    /// Loses the data in flight without notice to either side.
    fn cut_wire(&mut self) {
        self.link = None;
        self.under_way = Default::default();
    }

    fn disconnect(&mut self) {
        self.end_link(LinkEnd::Lost);
    }

    fn end_link(&mut self, end: LinkEnd) {
        if let Some(link) = self.link {
            self.sessions[NEAR].link_down(self.now, link, end);
            self.sessions[FAR].link_down(self.now, link, end);
        }
        self.cut_wire();
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            for side in [NEAR, FAR] {
                self.transmit(side);
                while let Some(event) = self.sessions[side].poll_event() {
                    self.events[side].push(event);
                }
            }
            let arrival = self
                .under_way
                .iter()
                .filter_map(|way| way.front())
                .map(|(at, _)| *at);
            let timers = self.sessions.iter().filter_map(Session::poll_timeout);
            let next = arrival.chain(timers).min().unwrap_or(Time::NEVER);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            for side in [NEAR, FAR] {
                while self.under_way[side]
                    .front()
                    .is_some_and(|(at, _)| *at <= self.now)
                {
                    let (_, bytes) = self.under_way[side].pop_front().unwrap();
                    let link = self.link.unwrap();
                    self.sessions[side].handle(self.now, link, &bytes).unwrap();
                }
                if self.sessions[side]
                    .poll_timeout()
                    .is_some_and(|at| at <= self.now)
                {
                    self.sessions[side].handle_timeout(self.now);
                }
            }
        }
    }

    fn transmit(&mut self, side: usize) {
        while let Some(link) = self.sessions[side].wants_transmit() {
            let Some(bytes) = self.sessions[side].poll_transmit(self.now, link, 64 << 10) else {
                break;
            };
            if Some(link) == self.link {
                self.under_way[1 - side].push_back((self.now + self.delay, bytes));
            }
        }
    }

    fn open(&mut self) -> FlowId {
        self.sessions[NEAR].open(self.now, open()).unwrap()
    }

    fn took(&self, side: usize, event: &SessionEvent) -> bool {
        self.events[side].contains(event)
    }

    /// Reads and consumes all there is.
    fn read(&mut self, side: usize, flow: FlowId) -> Vec<u8> {
        let mut all = Vec::new();
        let session = &mut self.sessions[side];
        while let Some(bytes) = session.read(flow, 10_000) {
            all.extend_from_slice(&bytes);
        }
        if let Some(statistics) = session.flow_statistics(flow) {
            session.consumed(flow, statistics.received_bytes);
        }
        all
    }
}

fn open() -> OpenRequest {
    OpenRequest {
        client: "198.18.1.2:40000".parse().unwrap(),
        server: "[2001:2:0:2::2]:80".parse().unwrap(),
        accelerator: 0,
        keep_client_address: true,
        may_store: true,
        dscp: 0,
    }
}

fn bytes(count: usize) -> Bytes {
    (0..count).map(|index| (index * index / 7) as u8).collect()
}

#[test]
fn first_bytes_travel_with_the_open() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.sessions[NEAR].write(flow, Bytes::from_static(b"GET /"));
    pair.run(Duration::from_millis(10));
    assert_eq!(flow, FlowId(0), "the lower node gives out even ids");
    assert!(pair.took(FAR, &SessionEvent::Opened { flow, open: open() }));
    assert!(pair.took(FAR, &SessionEvent::Readable { flow }));
    assert_eq!(pair.read(FAR, flow), b"GET /");
    pair.sessions[FAR].answer(flow, OpenAnswer::Connected);
    pair.sessions[FAR].write(flow, Bytes::from_static(b"200"));
    pair.run(Duration::from_millis(10));
    let answer = OpenAnswer::Connected;
    assert!(pair.took(NEAR, &SessionEvent::Answered { flow, answer }));
    assert_eq!(pair.read(NEAR, flow), b"200");
}

#[test]
fn flow_closes_when_both_decoders_are_done() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.sessions[NEAR].write(flow, bytes(5));
    pair.sessions[NEAR].finish(flow);
    pair.run(Duration::from_millis(50));
    assert!(
        !pair.took(FAR, &SessionEvent::Finished { flow }),
        "not before it is read"
    );
    assert_eq!(pair.sessions[FAR].read(flow, 100), Some(bytes(5)));
    pair.run(Duration::from_millis(50));
    assert!(pair.took(FAR, &SessionEvent::Finished { flow }));
    pair.sessions[FAR].finish(flow);
    pair.run(Duration::from_millis(100));
    assert!(pair.took(NEAR, &SessionEvent::Finished { flow }));
    assert!(
        !pair.took(NEAR, &SessionEvent::Closed { flow }),
        "the decoder is not through"
    );
    pair.sessions[FAR].consumed(flow, 5);
    pair.run(Duration::from_millis(100));
    assert!(pair.took(NEAR, &SessionEvent::Consumed { flow, offset: 5 }));
    for side in [NEAR, FAR] {
        assert!(pair.took(side, &SessionEvent::Closed { flow }));
        assert_eq!(pair.sessions[side].flow_count(), 0);
        assert_eq!(pair.sessions[side].statistics().outstanding_bytes, 0);
    }
}

#[test]
fn failed_open_ends_the_flow_on_both_sides() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.sessions[NEAR].write(flow, bytes(100_000));
    pair.run(Duration::from_millis(15));
    let answer = OpenAnswer::Failed(ConnectFailure::Refused);
    pair.sessions[FAR].answer(flow, answer);
    pair.sessions[FAR].reset(flow, ResetReason::HostLost);
    pair.run(Duration::from_millis(100));
    assert!(pair.took(NEAR, &SessionEvent::Answered { flow, answer }));
    for side in [NEAR, FAR] {
        assert!(pair.took(side, &SessionEvent::Closed { flow }));
        assert_eq!(pair.sessions[side].flow_count(), 0);
        assert_eq!(pair.sessions[side].statistics().unconsumed_bytes, 0);
    }
}

#[test]
fn lost_answer_is_repeated_without_reexecuting_the_open() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.run(Duration::from_millis(15));
    pair.sessions[FAR].answer(flow, OpenAnswer::Connected);
    pair.run(Duration::from_millis(5));
    pair.disconnect();
    pair.connect();
    pair.run(Duration::from_millis(100));
    let opened = |event: &&SessionEvent| matches!(event, SessionEvent::Opened { .. });
    assert_eq!(pair.events[FAR].iter().filter(opened).count(), 1);
    let answer = OpenAnswer::Connected;
    assert!(pair.took(NEAR, &SessionEvent::Answered { flow, answer }));
}

#[test]
fn open_lost_with_its_link_is_resent() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.sessions[NEAR].write(flow, bytes(50_000));
    pair.run(Duration::from_millis(5));
    pair.disconnect();
    assert_eq!(
        pair.open(),
        FlowId(2),
        "flows are opened without a link too"
    );
    pair.connect();
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.read(FAR, flow), bytes(50_000));
    assert_eq!(pair.sessions[FAR].flow_count(), 2);
    assert_eq!(pair.sessions[NEAR].statistics().retransmitted_bytes, 50_000);
    assert_eq!(pair.sessions[FAR].statistics().duplicate_bytes, 0);
}

#[test]
fn clean_end_survives_loss_of_last_acknowledgement() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.sessions[NEAR].write(flow, bytes(10));
    pair.sessions[NEAR].finish(flow);
    pair.run(Duration::from_millis(15));
    pair.read(FAR, flow);
    pair.sessions[FAR].finish(flow);
    // The far side's Finish and acknowledgement arrive and the near side is done; what it
    // says last does not arrive.
    while !pair.took(NEAR, &SessionEvent::Closed { flow }) {
        pair.run(Duration::from_millis(1));
        pair.read(NEAR, flow);
    }
    assert!(!pair.took(FAR, &SessionEvent::Closed { flow }));
    pair.disconnect();
    pair.connect();
    pair.run(Duration::from_millis(100));
    assert!(pair.took(FAR, &SessionEvent::Closed { flow }));
    let reset = |event: &SessionEvent| matches!(event, SessionEvent::Reset { .. });
    assert!(!pair.events[FAR].iter().any(reset));
}

#[test]
fn reset_during_an_outage_keeps_its_reason() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.run(Duration::from_millis(15));
    pair.disconnect();
    let reason = ResetReason::HostReset;
    pair.sessions[NEAR].reset(flow, reason);
    pair.connect();
    pair.run(Duration::from_millis(100));
    assert!(pair.took(FAR, &SessionEvent::Reset { flow, reason }));
}

#[test]
fn silent_link_is_replaced_after_five_seconds() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.sessions[NEAR].write(flow, bytes(1_000));
    pair.run(Duration::from_millis(5));
    pair.cut_wire();
    pair.run(Duration::from_millis(4_900));
    assert!(!pair.took(NEAR, &SessionEvent::Silent));
    pair.run(Duration::from_millis(200));
    assert!(pair.took(NEAR, &SessionEvent::Silent) && pair.sessions[NEAR].is_silent());
    pair.run(Duration::from_secs(25));
    pair.connect();
    pair.run(Duration::from_millis(100));
    let link = LinkId(0);
    assert!(pair.took(NEAR, &SessionEvent::LinkReplaced { link }));
    assert!(pair.took(NEAR, &SessionEvent::Heard));
    assert_eq!(pair.read(FAR, flow), bytes(1_000));
    assert_eq!(pair.sessions[NEAR].statistics().link_changes, 1);
}

#[test]
fn flows_are_reset_when_peer_stays_silent() {
    let config = SessionConfig::default();
    let mut pair = SessionPair::connected(&config);
    let flow = pair.open();
    pair.run(Duration::from_millis(15));
    pair.disconnect();
    pair.run(config.give_up_after);
    let reason = ResetReason::PeerLost;
    for side in [NEAR, FAR] {
        assert!(pair.took(side, &SessionEvent::Reset { flow, reason }));
    }
    assert_eq!(
        pair.sessions[NEAR].open(pair.now, open()),
        Err(OpenError::NotConnected)
    );
    pair.connect();
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.open(), FlowId(2), "ids are not used again");
}

#[test]
fn flows_wait_five_seconds_after_link_close() {
    for (away_ms, survives) in [(4_900, true), (5_000, false)] {
        let config = SessionConfig::default();
        let mut pair = SessionPair::connected(&config);
        let flow = pair.open();
        pair.run(Duration::from_millis(15));
        pair.end_link(LinkEnd::ClosedByPeer);
        pair.run(Duration::from_millis(away_ms));
        let reason = ResetReason::PeerLost;
        for side in [NEAR, FAR] {
            assert_eq!(
                pair.took(side, &SessionEvent::Reset { flow, reason }),
                !survives
            );
            assert_eq!(
                pair.took(side, &SessionEvent::PeerLost { flows: 1 }),
                !survives
            );
        }
        pair.connect();
        pair.run(Duration::from_secs(60));
        assert_eq!(pair.sessions[NEAR].flow_count(), usize::from(survives));
    }
}

/// A middlebox may reset a connection that it has forgotten in an outage.
#[test]
fn link_closed_after_silence_keeps_the_flows() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.run(Duration::from_millis(15));
    pair.under_way = Default::default();
    pair.delay = Duration::from_secs(3_600);
    pair.run(Duration::from_secs(6));
    assert!(pair.took(NEAR, &SessionEvent::Silent));
    pair.end_link(LinkEnd::ClosedByPeer);
    pair.run(Duration::from_secs(30));
    assert!(pair.sessions[NEAR].flow_statistics(flow).is_some());
}

#[test]
fn open_is_sent_once_a_link_takes_it() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    assert!(!pair.sessions[NEAR].is_open_sent(flow));
    pair.transmit(NEAR);
    assert!(pair.sessions[NEAR].is_open_sent(flow));
    // One that never left is never executed, whatever becomes of the link.
    let flow = pair.open();
    assert!(!pair.sessions[NEAR].is_open_sent(flow));
    pair.sessions[NEAR].reset(flow, ResetReason::PeerLost);
    pair.run(Duration::from_millis(50));
    pair.disconnect();
    pair.connect();
    pair.run(Duration::from_millis(50));
    assert!(!pair.took(FAR, &SessionEvent::Opened { flow, open: open() }));
}

#[test]
fn leaving_session_resets_the_peers_flows() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flows = [pair.open(), pair.open()];
    pair.run(Duration::from_millis(15));
    let reason = ResetReason::PeerRemoved;
    let last = pair.sessions[FAR].take_leave(pair.now, reason).unwrap();
    let link = pair.link.unwrap();
    pair.sessions[NEAR].handle(pair.now, link, &last).unwrap();
    pair.run(Duration::from_millis(5));
    for flow in flows {
        assert!(pair.took(NEAR, &SessionEvent::Reset { flow, reason }));
        assert!(!pair.took(FAR, &SessionEvent::Reset { flow, reason }));
    }
    pair.disconnect();
    assert_eq!(pair.sessions[FAR].take_leave(pair.now, reason), None);
}

#[test]
fn a_restarted_peer_takes_its_flows_with_it() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.run(Duration::from_millis(15));
    pair.disconnect();
    pair.sessions[FAR] = Session::new(
        SessionConfig::default(),
        NodeId([2; 32]),
        NodeId([1; 32]),
        SeededRandom::from_seed(77),
        pair.now,
    );
    pair.connect();
    pair.run(Duration::from_millis(100));
    let reason = ResetReason::PeerRestarted;
    assert!(pair.took(NEAR, &SessionEvent::PeerRestarted));
    assert!(pair.took(NEAR, &SessionEvent::Reset { flow, reason }));
    let flow = pair.open();
    pair.run(Duration::from_millis(15));
    assert!(pair.took(FAR, &SessionEvent::Opened { flow, open: open() }));
}

#[test]
fn restarted_peer_gets_no_old_acknowledgements() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.sessions[NEAR].finish(flow);
    pair.sessions[FAR].answer(flow, OpenAnswer::Connected);
    pair.run(Duration::from_millis(50));
    pair.sessions[FAR].write(flow, bytes(5));
    pair.sessions[FAR].finish(flow);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.sessions[NEAR].read(flow, 100), Some(bytes(5)));
    pair.run(Duration::from_millis(100));
    pair.disconnect();
    pair.sessions[FAR] = Session::new(
        SessionConfig::default(),
        NodeId([2; 32]),
        NodeId([1; 32]),
        SeededRandom::from_seed(77),
        pair.now,
    );
    pair.connect();
    // The last decoder gets through between the new link and the peer's hello.
    pair.sessions[NEAR].consumed(flow, 5);
    assert_eq!(pair.sessions[NEAR].flow_count(), 0);
    pair.run(Duration::from_millis(200));
    assert!(pair.took(NEAR, &SessionEvent::PeerRestarted));
    assert!(pair.sessions.iter().all(Session::is_up));
}

#[test]
fn simultaneous_dial_keeps_the_lower_nodes_link() {
    for order in [[LinkId(1), LinkId(2)], [LinkId(2), LinkId(1)]] {
        for side in [NEAR, FAR] {
            let mut pair = SessionPair::new(&SessionConfig::default());
            // Link 1 is dialled by the near node, which has the lower id.
            for link in order {
                let near_dialed = link == LinkId(1);
                pair.sessions[side].link_up(pair.now, link, near_dialed == (side == NEAR));
            }
            let link = LinkId(2);
            assert_eq!(
                pair.sessions[side].poll_event(),
                Some(SessionEvent::LinkReplaced { link })
            );
            assert_eq!(pair.sessions[side].wants_transmit(), Some(LinkId(1)));
        }
    }
}

#[test]
fn a_later_link_wins_whoever_dialled_it() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    pair.run(Duration::from_secs(4));
    let later = LinkId(9);
    pair.sessions[NEAR].link_up(pair.now, later, false);
    assert_eq!(pair.sessions[NEAR].wants_transmit(), Some(later));
    let link = LinkId(0);
    assert_eq!(
        pair.sessions[NEAR].poll_event(),
        Some(SessionEvent::LinkReplaced { link })
    );
}

#[test]
fn a_link_without_a_hello_is_given_back() {
    let mut pair = SessionPair::new(&SessionConfig::default());
    let link = LinkId(3);
    pair.sessions[NEAR].link_up(pair.now, link, true);
    pair.run(Duration::from_secs(6));
    assert!(pair.took(NEAR, &SessionEvent::LinkReplaced { link }));
}

#[test]
fn messages_need_no_credit_and_survive_link_changes() {
    let config = SessionConfig {
        flow_window: ByteCount::new(10),
        ..SessionConfig::default()
    };
    let mut pair = SessionPair::connected(&config);
    let flow = pair.open();
    pair.sessions[NEAR].write(flow, bytes(100));
    pair.sessions[NEAR].send_message(flow, 7, bytes(60_000));
    pair.run(Duration::from_millis(5));
    pair.disconnect();
    pair.connect();
    pair.run(Duration::from_millis(100));
    let whole = |event: &&SessionEvent| matches!(event, SessionEvent::Message { kind: 7, bytes: got, .. } if *got == bytes(60_000));
    assert_eq!(pair.events[FAR].iter().filter(whole).count(), 1);
    assert_eq!(pair.sessions[NEAR].statistics().message_backlog_bytes, 0);
}

#[test]
fn credit_limits_sending_and_returns_when_consumed() {
    let config = SessionConfig {
        flow_window: ByteCount::new(30_000),
        flow_window_limit: ByteCount::new(30_000),
        ..SessionConfig::default()
    };
    let mut pair = SessionPair::connected(&config);
    let flow = pair.open();
    assert_eq!(pair.sessions[NEAR].writable(flow), 30_000);
    pair.sessions[NEAR].write(flow, bytes(40_000));
    assert_eq!(pair.sessions[NEAR].writable(flow), 0);
    pair.run(Duration::from_millis(100));
    let statistics = pair.sessions[FAR].flow_statistics(flow).unwrap();
    assert_eq!(statistics.received_bytes, 30_000);
    pair.read(FAR, flow);
    pair.run(Duration::from_millis(100));
    assert!(pair.took(
        NEAR,
        &SessionEvent::Consumed {
            flow,
            offset: 30_000
        }
    ));
    assert!(pair.took(NEAR, &SessionEvent::Writable { flow }));
    assert_eq!(pair.sessions[NEAR].writable(flow), 20_000);
    let statistics = pair.sessions[NEAR].flow_statistics(flow).unwrap();
    assert!(statistics.credit_blocked >= Duration::from_millis(20));
}

#[test]
fn flow_takes_over_the_window_of_an_earlier_flow() {
    let config = SessionConfig {
        flow_window: ByteCount::new(100_000),
        ..SessionConfig::default()
    };
    let mut pair = SessionPair::connected(&config);
    let first = pair.open();
    for _ in 0..20 {
        let room = pair.sessions[NEAR].writable(first);
        pair.sessions[NEAR].write(first, bytes(room));
        pair.run(Duration::from_millis(20));
        pair.read(FAR, first);
    }
    let second = pair.open();
    assert_eq!(pair.sessions[NEAR].record_room(second), 100_000);
    pair.sessions[NEAR].write(second, bytes(1_000));
    pair.run(Duration::from_millis(100));
    // Nothing of it is consumed: the reader takes its time.
    let granted = pair.sessions[NEAR].record_room(second);
    assert!(granted > 300_000, "{granted}");
    assert!(granted <= KNOWN_WINDOW_LIMIT as usize, "{granted}");
}

#[test]
fn stalled_bulk_flows_leave_credit_for_small_ones() {
    let config = SessionConfig {
        total_window: ByteCount::mebibytes(2),
        ..SessionConfig::default()
    };
    let mut pair = SessionPair::connected(&config);
    let bulk: Vec<FlowId> = (0..200).map(|_| pair.open()).collect();
    for _ in 0..100 {
        for flow in &bulk {
            let room = pair.sessions[NEAR].writable(*flow);
            pair.sessions[NEAR].write(*flow, bytes(room));
        }
        pair.run(Duration::from_millis(20));
    }
    let statistics = pair.sessions[NEAR].statistics();
    assert_eq!(statistics.unsent_bytes, 0, "what was written was sent");
    let small = pair.open();
    let mut read = 0;
    for _ in 0..20 {
        let room = pair.sessions[NEAR].writable(small).min(50_000 - read);
        assert!(room > 0);
        pair.sessions[NEAR].write(small, bytes(room));
        pair.run(Duration::from_millis(15));
        let got = pair.read(FAR, small).len();
        assert_eq!(got, room);
        read += got;
        pair.run(Duration::from_millis(100));
        if read == 50_000 {
            return;
        }
    }
    panic!("50,000 bytes took 20 round trips");
}

#[test]
fn small_flow_precedes_a_queued_bulk_flow() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let bulk = pair.open();
    pair.sessions[NEAR].write(bulk, bytes(1 << 20));
    let link = pair.link.unwrap();
    let mut sent = Vec::new();
    for _ in 0..8 {
        sent.extend_from_slice(
            &pair.sessions[NEAR]
                .poll_transmit(pair.now, link, 16 << 10)
                .unwrap(),
        );
    }
    let small = pair.open();
    pair.sessions[NEAR].write(small, bytes(60_000));
    for _ in 0..6 {
        sent.extend_from_slice(
            &pair.sessions[NEAR]
                .poll_transmit(pair.now, link, 16 << 10)
                .unwrap(),
        );
    }
    pair.sessions[FAR].handle(pair.now, link, &sent).unwrap();
    assert_eq!(pair.read(FAR, small).len(), 60_000);
}

#[test]
fn leaving_waits_for_flows_and_refuses_new_ones() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    pair.run(Duration::from_millis(15));
    pair.sessions[FAR].goaway(pair.now);
    pair.run(Duration::from_millis(15));
    assert!(pair.took(NEAR, &SessionEvent::GoAway));
    assert_eq!(
        pair.sessions[NEAR].open(pair.now, open()),
        Err(OpenError::PeerLeaving)
    );
    assert_eq!(
        pair.sessions[FAR].open(pair.now, open()),
        Err(OpenError::Leaving)
    );
    assert!(!pair.took(FAR, &SessionEvent::Drained));
    pair.sessions[NEAR].reset(flow, ResetReason::HostReset);
    pair.run(Duration::from_millis(15));
    assert!(pair.took(FAR, &SessionEvent::Drained));
}

#[test]
fn hello_blob_is_sent_on_links_and_changes() {
    let mut pair = SessionPair::new(&SessionConfig::default());
    pair.sessions[NEAR].set_hello_blob(Bytes::from_static(b"one"));
    pair.connect();
    pair.run(Duration::from_millis(100));
    pair.sessions[NEAR].set_hello_blob(Bytes::from_static(b"two"));
    pair.run(Duration::from_millis(100));
    for text in ["one", "two"] {
        let blob = Bytes::from_static(text.as_bytes());
        assert!(pair.took(FAR, &SessionEvent::Hello { blob }));
    }
}

#[test]
fn idle_session_exchanges_one_ping_per_second() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let before: u64 = pair
        .sessions
        .iter()
        .map(|session| session.statistics().sent_bytes)
        .sum();
    pair.run(Duration::from_secs(100));
    let after: u64 = pair
        .sessions
        .iter()
        .map(|session| session.statistics().sent_bytes)
        .sum();
    let per_second = (after - before) / 100;
    assert!(
        (6..=20).contains(&per_second),
        "{per_second} bytes a second"
    );
    let round_trip = pair.sessions[NEAR].statistics().round_trip_smoothed;
    assert_eq!(round_trip, Some(Duration::from_millis(20)));
}

#[test]
fn acknowledgements_cost_little_beside_the_data() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flow = pair.open();
    let mut left = 8 << 20;
    while left > 0 {
        let room = pair.sessions[NEAR].writable(flow).min(left);
        pair.sessions[NEAR].write(flow, bytes(room));
        left -= room;
        pair.run(Duration::from_millis(1));
        pair.read(FAR, flow);
    }
    let sent = pair.sessions[FAR].statistics();
    assert!(
        sent.sent_acknowledgements < 100,
        "{}",
        sent.sent_acknowledgements
    );
    assert!(sent.sent_bytes < 2_000, "{}", sent.sent_bytes);
}

#[test]
fn protocol_violation_costs_only_the_link() {
    use crate::wire::{DataFrame, FinishFrame, MessageContinuation, MessageFrame, SessionFrame};
    let flow = FlowId(0);
    let data = |flow, offset, count| {
        SessionFrame::Data(DataFrame {
            flow,
            offset,
            bytes: bytes(count),
        })
    };
    let message = MessageFrame {
        flow,
        kind: 0,
        piece: MessageContinuation::Last,
        sequence: 1 << 40,
        bytes: Bytes::new(),
    };
    let finish = |final_offset| SessionFrame::Finish(FinishFrame { flow, final_offset });
    let cases = [
        vec![data(flow, 1 << 20, 5)],
        vec![data(flow, 7, 5), finish(8)],
        (0..20_000)
            .map(|piece| data(flow, 2 * piece + 1, 1))
            .collect(),
        vec![data(FlowId(2), 0, 5)],
        vec![data(FlowId(1), 0, 5)],
        vec![data(flow, 0, 5), finish(4)],
        vec![data(flow, 0, 5), finish(5), data(flow, 5, 1)],
        vec![data(flow, 0, 5), finish(5), finish(6)],
        vec![SessionFrame::Message(message)],
    ];
    let config = SessionConfig {
        total_window: ByteCount::mebibytes(2),
        ..SessionConfig::default()
    };
    for frames in cases {
        let mut pair = SessionPair::connected(&config);
        let link = pair.link.unwrap();
        assert_eq!(pair.open(), flow);
        pair.run(Duration::from_millis(15));
        let mut out = vocab::ByteWriter::new();
        for frame in &frames {
            frame.emit(&mut out);
        }
        let error = pair.sessions[FAR]
            .handle(pair.now, link, &out.finish())
            .unwrap_err();
        let fault = matches!(
            error,
            SessionError::PeerMisbehaved(_) | SessionError::PeerMisbehavedOnFlow { .. }
        );
        assert!(fault, "{frames:?}: {error}");
        assert!(!pair.sessions[FAR].is_up());
        assert_eq!(pair.sessions[FAR].flow_count(), 1);
    }
}

#[test]
fn another_version_and_another_node_are_told_apart() {
    use crate::wire::{HelloFrame, SessionFrame};
    let pair = SessionPair::new(&SessionConfig::default());
    let SessionFrame::Hello(hello) = pair.sessions[NEAR].hello() else {
        panic!("a hello");
    };
    let outcome = |hello: HelloFrame| {
        let mut pair = SessionPair::new(&SessionConfig::default());
        pair.connect();
        let mut out = vocab::ByteWriter::new();
        SessionFrame::Hello(hello).emit(&mut out);
        pair.sessions[FAR].handle(pair.now, LinkId(0), &out.finish())
    };
    let newer = HelloFrame {
        version: 9,
        least_version: 8,
        ..hello.clone()
    };
    assert!(matches!(
        outcome(newer),
        Err(SessionError::PeerIncompatible { least: 8, .. })
    ));
    let stranger = NodeId([5; 32]);
    let other = HelloFrame {
        sender: stranger,
        ..hello.clone()
    };
    assert_eq!(outcome(other), Err(SessionError::WrongNode(stranger)));
    assert_eq!(
        outcome(HelloFrame {
            version: 2,
            ..hello
        }),
        Ok(())
    );
}

#[test]
fn more_flows_than_the_limit_are_reset() {
    let config = SessionConfig {
        flow_limit: 1,
        ..SessionConfig::default()
    };
    let mut pair = SessionPair::connected(&config);
    pair.open();
    let flow = pair.open();
    pair.run(Duration::from_millis(30));
    let reason = ResetReason::Limit;
    assert!(pair.took(NEAR, &SessionEvent::Reset { flow, reason }));
}

#[test]
fn unread_resets_stay_bounded() {
    use crate::limits::RESETS_WAITING;
    use crate::wire::{OpenFrame, SessionFrame};
    let config = SessionConfig {
        flow_limit: 0,
        ..SessionConfig::default()
    };
    let mut pair = SessionPair::connected(&config);
    let link = pair.link.unwrap();
    let mut outcome = Ok(());
    for number in 0..RESETS_WAITING as u64 + 2 {
        let mut out = vocab::ByteWriter::new();
        let flow = FlowId(2 * number);
        SessionFrame::Open(OpenFrame { flow, open: open() }).emit(&mut out);
        outcome = pair.sessions[FAR].handle(pair.now, link, &out.finish());
    }
    assert!(matches!(outcome, Err(SessionError::PeerMisbehaved(_))));
    assert!(pair.sessions[FAR].control.resets.is_empty());
}

#[test]
fn reset_before_open_affects_no_other_flow() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let kept = pair.open();
    let dropped = pair.open();
    pair.sessions[NEAR].reset(dropped, ResetReason::HostReset);
    pair.run(Duration::from_millis(50));
    let opened = SessionEvent::Opened {
        flow: kept,
        open: open(),
    };
    assert!(pair.took(FAR, &opened));
    assert_eq!(pair.sessions[FAR].flow_count(), 1);
    assert_eq!(pair.sessions[NEAR].flow_count(), 1);
}

#[test]
fn thousands_of_flows_move_to_the_next_link() {
    let mut pair = SessionPair::connected(&SessionConfig::default());
    let flows: Vec<FlowId> = (0..3_000).map(|_| pair.open()).collect();
    pair.run(Duration::from_millis(50));
    for flow in &flows {
        pair.sessions[NEAR].write(*flow, bytes(100));
    }
    pair.run(Duration::from_millis(5));
    pair.disconnect();
    pair.connect();
    pair.run(Duration::from_millis(100));
    for flow in flows {
        assert_eq!(pair.read(FAR, flow), bytes(100));
    }
}

#[test]
fn idle_flow_uses_under_half_a_kibibyte() {
    // Its buffers are empty and its place in the tree is a few words more.
    assert!(
        size_of::<SessionFlow>() <= 512,
        "{}",
        size_of::<SessionFlow>()
    );
}
