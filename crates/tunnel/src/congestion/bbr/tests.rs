//! The machine's states on a line that loses nothing unless told to, packet by packet.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::{Bitrate, Time};

use super::super::{
    AckedPacket, CongestionController, ControllerConfig, DeliveryEvent, LostPacket, RememberedPath,
};
use super::{BbrController, SendState};

const PACKET: u64 = 1500;
const RTT: Duration = Duration::from_millis(100);

/// A sender on a line of one rate with an endless queue.
struct BottleneckSender {
    bbr: BbrController,
    now: Time,
    rate: Bitrate,
    idle_until: Time,
    sent: VecDeque<(u64, Time, SendState, Time)>,
    next_number: u64,
    may_send_at: Time,
    /// Bytes in flight that the peer's credit allows.
    credit: u64,
    states: Vec<&'static str>,
    marks_each: Option<u64>,
}

impl BottleneckSender {
    fn new(config: ControllerConfig, remembered: Option<RememberedPath>) -> Self {
        Self {
            bbr: BbrController::new(config, remembered, Time::ZERO),
            now: Time::ZERO,
            rate: Bitrate::from_bits_per_second(20_000_000),
            idle_until: Time::ZERO,
            sent: VecDeque::new(),
            next_number: 0,
            may_send_at: Time::ZERO,
            credit: u64::MAX,
            states: Vec::new(),
            marks_each: None,
        }
    }

    fn in_flight(&self) -> u64 {
        self.sent.len() as u64 * PACKET
    }

    /// Runs until `end`; `supply` returns whether the application has more data at that moment.
    fn run(&mut self, end: Time, supply: impl Fn(Time) -> bool) {
        let tick = Duration::from_micros(100);
        while self.now < end {
            while self.sent.front().is_some_and(|sent| sent.3 <= self.now) {
                self.acknowledge();
            }
            while self.may_send_at <= self.now && self.in_flight() + PACKET <= self.bbr.window() {
                if !supply(self.now) || self.in_flight() + PACKET > self.credit {
                    let in_flight = self.in_flight();
                    self.bbr.limited_by_application(self.now, in_flight);
                    break;
                }
                self.send();
            }
            self.now += tick;
        }
    }

    fn send(&mut self) {
        let state = self
            .bbr
            .sent(self.now, self.next_number, PACKET, self.in_flight());
        let packet = vocab::ByteCount::new(PACKET);
        self.idle_until = self.idle_until.max(self.now) + self.rate.time_for(packet);
        let back = self.idle_until + RTT;
        self.sent
            .push_back((self.next_number, self.now, state, back));
        self.next_number += 1;
        let gap = self.bbr.pacing_rate().time_for(packet);
        self.may_send_at = self.may_send_at.max(self.now - RTT / 100) + gap;
    }

    fn acknowledge(&mut self) {
        let (number, sent_at, state, _) = self.sent.pop_front().unwrap();
        let acked = [AckedPacket {
            number,
            bytes: PACKET,
            sent_at,
            state,
            recovered: false,
        }];
        let is_marked = self.marks_each.is_some_and(|each| number % each == 0);
        self.bbr.event(&DeliveryEvent {
            ce_marked: u64::from(is_marked),
            rtt: Some(self.now.since(sent_at)),
            ..event(self.now, &acked, &[], &[], self.in_flight())
        });
        let state = self.bbr.telemetry().state;
        if self.states.last() != Some(&state) {
            self.states.push(state);
        }
    }

    fn rate_mbit(&self) -> f64 {
        self.bbr.telemetry().bandwidth.bits_per_second() as f64 / 1e6
    }
}

fn event<'a>(
    now: Time,
    acked: &'a [AckedPacket],
    lost: &'a [LostPacket],
    spurious: &'a [LostPacket],
    in_flight: u64,
) -> DeliveryEvent<'a> {
    DeliveryEvent {
        now,
        acked,
        lost,
        spurious,
        rtt: None,
        ce_marked: 0,
        in_flight,
        reordering: None,
    }
}

fn at(milliseconds: u64) -> Time {
    Time::ZERO + Duration::from_millis(milliseconds)
}

fn always(_: Time) -> bool {
    true
}

#[test]
fn startup_ends_in_a_queue_although_credit_limits_the_sender() {
    // The path holds 250 kB.
    let states = |credit| {
        let mut line = BottleneckSender::new(ControllerConfig::default(), None);
        line.credit = credit;
        line.run(at(4_000), always);
        line.states
    };
    assert_eq!(states(450_000)[..3], ["startup", "drain", "down"]);
    // Without a queue nothing says that the path is full.
    assert_eq!(states(200_000), ["startup"]);
}

#[test]
fn states_follow_the_drafts_diagram() {
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(10_000), always);
    let expected = [
        "startup", "drain", "down", "cruise", "refill", "up", "down", "cruise", "refill", "up",
    ];
    assert_eq!(line.states[..expected.len()], expected);
    assert!(
        (line.rate_mbit() - 20.0).abs() < 0.5,
        "{}",
        line.rate_mbit()
    );
    assert!(!line.states.contains(&"probe rtt"), "the queue is empty");
}

#[test]
fn an_application_limited_flow_stays_in_startup() {
    // Draft, "Never Exiting PROBE_UP (or STARTUP) When Application-Limited With No Loss".
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    // A tenth of the time: about 2 Mbit/s in bursts of 10 ms.
    line.run(at(20_000), |now| now.as_nanos() / 1_000_000 % 100 < 3);
    assert_eq!(line.states, ["startup"]);
    assert!(line.rate_mbit() < 20.5, "{}", line.rate_mbit());
    assert_eq!(line.bbr.remembered(), None);
}

#[test]
fn a_pause_keeps_the_model() {
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(5_000), always);
    let before = line.rate_mbit();
    line.run(at(35_000), |_| false);
    line.run(at(35_300), always);
    assert!((line.rate_mbit() - before).abs() < 0.5);
    let pacing = line.bbr.pacing_rate().bits_per_second() as f64 / 1e6;
    assert!((15.0..26.0).contains(&pacing), "{pacing}");
    assert_ne!(line.states.last(), Some(&"probe rtt"));
}

#[test]
fn the_operators_cap_is_never_exceeded() {
    let cap = Bitrate::from_bits_per_second(5_000_000);
    let config = ControllerConfig {
        rate_max: Some(cap),
        ..ControllerConfig::default()
    };
    let remembered = RememberedPath {
        rate: Bitrate::from_bits_per_second(20_000_000),
        rtt: RTT,
    };
    for memory in [None, Some(remembered)] {
        let mut line = BottleneckSender::new(config, memory);
        for step in 1..50 {
            line.run(at(100 * step), always);
            assert!(line.bbr.pacing_rate() <= cap);
        }
        assert!(line.next_number * PACKET * 8 < 5 * 5_100_000);
    }
}

#[test]
fn a_rate_ten_times_higher_is_found() {
    // Draft, "Increasing Bandwidth 10x and Ensuring Full Bandwidth is Reached".
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(5_000), always);
    line.rate = Bitrate::from_bits_per_second(200_000_000);
    line.run(at(15_000), always);
    assert!(line.rate_mbit() > 180.0, "{}", line.rate_mbit());
}

#[test]
fn a_rate_ten_times_lower_is_followed() {
    // Draft, "Decreasing Bandwidth 10x and Ensuring Max Bandwidth Adapts Down".
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(5_000), always);
    line.rate = Bitrate::from_bits_per_second(2_000_000);
    line.run(at(40_000), always);
    assert!(line.rate_mbit() < 2.5, "{}", line.rate_mbit());
}

#[test]
fn marks_end_a_probe_as_losses_do() {
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(5_000), always);
    assert_eq!(line.bbr.telemetry().in_flight_bound, None);
    line.marks_each = Some(10);
    line.run(at(10_000), always);
    assert!(line.bbr.telemetry().in_flight_bound.is_some());
}

#[test]
fn spurious_losses_are_undone() {
    // Draft, "Handling Spurious Fast Recovery".
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(2_500), always);
    assert_eq!(line.states.last(), Some(&"cruise"));
    let before = line.bbr.telemetry();
    let packets: Vec<LostPacket> = line
        .sent
        .drain(..40)
        .step_by(2)
        .map(|(number, sent_at, state, _)| LostPacket {
            number,
            bytes: PACKET,
            sent_at,
            state,
        })
        .collect();
    let in_flight = line.in_flight();
    line.bbr
        .event(&event(line.now, &[], &packets, &[], in_flight));
    let rounds = Duration::from_millis(250);
    line.run(line.now + rounds, always);
    assert!(line.bbr.telemetry().in_flight_bound.is_some(), "it reacted");
    let in_flight = line.in_flight();
    line.bbr
        .event(&event(line.now, &[], &[], &packets, in_flight));
    line.run(line.now + rounds, always);
    assert!(line.bbr.telemetry().window >= before.window * 9 / 10);
    assert!(line.rate_mbit() > 19.0, "{}", line.rate_mbit());
}

#[test]
fn outage_closes_and_reopens_the_window() {
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(3_000), always);
    let before = line.bbr.telemetry().window;
    let packets: Vec<LostPacket> = line
        .sent
        .drain(..)
        .map(|(number, sent_at, state, _)| LostPacket {
            number,
            bytes: PACKET,
            sent_at,
            state,
        })
        .collect();
    line.now += Duration::from_secs(1);
    line.bbr.event(&event(line.now, &[], &packets, &[], 0));
    assert!(line.bbr.window() <= 4 * PACKET);
    line.run(line.now + Duration::from_secs(5), always);
    assert!(line.bbr.window() >= before / 2, "{}", line.bbr.window());
    assert!(line.rate_mbit() > 18.0, "{}", line.rate_mbit());
}

#[test]
fn a_memory_is_used_from_the_first_packet() {
    let remembered = RememberedPath {
        rate: Bitrate::from_bits_per_second(20_000_000),
        rtt: RTT,
    };
    let mut line = BottleneckSender::new(ControllerConfig::default(), Some(remembered));
    line.run(at(100), always);
    // 95 % of 250 kB in the first round-trip time.
    assert!(line.next_number * PACKET > 225_000, "{}", line.next_number);
    line.run(at(5_000), always);
    assert_eq!(line.states[0], "resume");
    assert!(!line.states.contains(&"startup"));
    let kept = line.bbr.remembered().unwrap();
    let rate = kept.rate.bits_per_second() as f64 / 20e6;
    assert!((0.97..1.03).contains(&rate), "{rate}");
    assert!(kept.rtt < RTT + Duration::from_millis(2));
}

#[test]
fn a_queue_that_stands_has_the_minimum_sought() {
    // Draft, "Entering and Exiting PROBE_RTT". Another sender takes half of the line, and its
    // queue never empties.
    let mut line = BottleneckSender::new(ControllerConfig::default(), None);
    line.run(at(3_000), always);
    line.idle_until += Duration::from_millis(60);
    let end = at(12_000);
    while line.now < end {
        line.run(line.now + Duration::from_millis(10), always);
        // The rival keeps 60 ms in the queue, whatever we send.
        line.idle_until = line.idle_until.max(line.now + Duration::from_millis(60));
    }
    assert!(line.states.contains(&"probe rtt"), "{:?}", line.states);
    assert_ne!(line.states.last(), Some(&"startup"));
}
