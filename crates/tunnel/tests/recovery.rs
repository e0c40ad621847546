//! Two ends of recovery over an emulated path, in virtual time: every packet that arrives is
//! acknowledged in the end, every other one is declared lost in time, and few verdicts are wrong,
//! whatever the path loses, repeats and reorders.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use emulate::{
    DirectionConfig, GilbertElliott, JitterConfig, JitterDistribution, LinkDirection, LossModel,
    PacketOrder,
};
use path::RttEstimator;
use proptest::prelude::*;
use tunnel::fec::{LossCause, LossEstimate};
use tunnel::packet::PacketAck;
use tunnel::recovery::{
    AckOutcome, AckRequest, EcnMarking, OutgoingPacket, PacketKind, ReceivedPacket,
    ReceivedPackets, RecoveryTimeout, SentPacket, SentPackets,
};
use vocab::{Probability, Time};

const PACKET: u64 = 1_500;

/// Traffic of one direction and its outcomes.
struct RecoverySimulation {
    now: Time,
    sender: SentPackets<u64>,
    receiver: ReceivedPackets,
    there: LinkDirection,
    back: LinkDirection,
    acknowledgements: Vec<PacketAck>,
    /// Acknowledgements that ask for confirmation, and the newest one that arrived.
    asking: BTreeSet<u64>,
    to_confirm: Option<u64>,
    next: u64,
    sent_at: Vec<Time>,
    arrived: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    /// Time at which each was declared lost.
    lost: BTreeMap<u64, Time>,
    spurious: BTreeSet<u64>,
    tracked_max: usize,
    probes: u32,
    /// Loss estimate, as a transport reports losses to it.
    losses: LossEstimate,
}

/// Result of a run.
struct RecoveryReport {
    sent: u64,
    arrived: BTreeSet<u64>,
    /// Delay from sending to the declared loss of lost packets.
    verdicts: Vec<(u64, Duration)>,
    spurious: BTreeSet<u64>,
    tracked_max: usize,
    losses: LossEstimate,
    window: Duration,
    spread: Option<Duration>,
    /// Acknowledgements for each packet sent.
    acknowledged_by: f64,
}

impl RecoverySimulation {
    fn new(there: DirectionConfig, back: DirectionConfig, seed: u64) -> Self {
        let now = Time::ZERO;
        let guess = there.delay + back.delay;
        Self {
            now,
            sender: SentPackets::new(now, RttEstimator::new(guess)),
            receiver: ReceivedPackets::new(now, guess),
            there: LinkDirection::new(there, seed),
            back: LinkDirection::new(back, seed ^ 1),
            acknowledgements: Vec::new(),
            asking: BTreeSet::new(),
            to_confirm: None,
            next: 0,
            sent_at: Vec::new(),
            arrived: BTreeSet::new(),
            acked: BTreeSet::new(),
            lost: BTreeMap::new(),
            spurious: BTreeSet::new(),
            tracked_max: 0,
            probes: 0,
            losses: LossEstimate::new(),
        }
    }

    fn send(&mut self) {
        self.sender.sent(
            self.now,
            OutgoingPacket {
                number: self.next,
                bytes: PACKET,
                kind: PacketKind::Eliciting,
                is_marked: false,
                symbol: None,
                content: self.next,
            },
        );
        let confirms = self.to_confirm.take().unwrap_or(u64::MAX);
        let packet = [self.next.to_be_bytes(), confirms.to_be_bytes()].concat();
        self.there.handle(self.now, packet.into());
        self.sent_at.push(self.now);
        self.next += 1;
        self.tracked_max = self.tracked_max.max(self.sender.tracked());
    }

    fn declare(&mut self, mut lost: Vec<SentPacket<u64>>) {
        lost.sort_unstable_by_key(|packet| packet.number);
        for packet in lost {
            self.losses.lost(packet.number, LossCause::Unknown);
            assert!(
                !self.acked.contains(&packet.number),
                "acknowledged, then lost"
            );
            let before = self.lost.insert(packet.number, self.now);
            assert!(before.is_none(), "declared lost twice");
        }
    }

    fn take_in(&mut self, outcome: AckOutcome<u64>) {
        for packet in outcome.acked {
            self.losses.delivered(1);
            assert_eq!(packet.number, packet.content);
            assert!(self.arrived.contains(&packet.number), "it never arrived");
            assert!(!self.lost.contains_key(&packet.number), "it is spurious");
            assert!(self.acked.insert(packet.number), "acknowledged twice");
        }
        for packet in outcome.spurious {
            self.losses.spurious();
            assert!(self.lost.contains_key(&packet.number), "it was not lost");
            assert!(self.acked.insert(packet.number), "acknowledged twice");
            self.spurious.insert(packet.number);
        }
        self.declare(outcome.lost);
    }

    /// Handles the timers that are due now.
    fn settle(&mut self) {
        let now = self.now;
        while let Some(delivery) = self.there.poll_output(now) {
            let number = u64::from_be_bytes(delivery.packet[..8].try_into().unwrap());
            self.arrived.insert(number);
            let arrival = ReceivedPacket {
                number,
                asks: AckRequest::Acknowledgement,
                codepoint: EcnMarking::NotEct,
            };
            self.receiver.on_packet(now, arrival);
            let confirmed = u64::from_be_bytes(delivery.packet[8..].try_into().unwrap());
            if let Some(acknowledgement) = self.acknowledgements.get(confirmed as usize) {
                self.receiver.confirmed(now, acknowledgement);
            }
        }
        if self.receiver.poll_timeout().is_some_and(|due| due <= now) {
            let telling = self.receiver.pending_ack(now, 256).unwrap();
            self.receiver.on_ack_sent(now, &telling);
            let acknowledgement = telling.acknowledgement;
            let index = self.acknowledgements.len() as u64;
            self.acknowledgements.push(acknowledgement);
            if self.receiver.wants_confirmation(now, 0) {
                self.receiver.on_confirmation_requested(now);
                self.asking.insert(index);
            }
            self.back
                .handle(now, Bytes::copy_from_slice(&index.to_be_bytes()));
        }
        while let Some(delivery) = self.back.poll_output(now) {
            let index = u64::from_be_bytes(delivery.packet[..8].try_into().unwrap());
            if self.asking.contains(&index) {
                self.to_confirm = Some(index);
            }
            let acknowledgement = self.acknowledgements[index as usize].clone();
            let outcome = self.sender.on_acknowledgement(now, &acknowledgement);
            self.take_in(outcome.unwrap());
            // The transport tells the receiver of its end; here the sender's end knows best.
            self.receiver.set_rtt(self.sender.typical_rtt());
        }
        if self.sender.poll_timeout().is_some_and(|due| due <= now) {
            while let Some(timeout) = self.sender.handle_timeout(now) {
                match timeout {
                    RecoveryTimeout::Lost(lost) => self.declare(lost),
                    RecoveryTimeout::Probe { .. } => {
                        self.probes += 1;
                        self.send();
                    }
                }
            }
            let next = self.sender.poll_timeout();
            assert!(next.is_none_or(|due| due > now), "it stays due");
        }
    }

    fn next_due(&self) -> Option<Time> {
        [
            self.there.poll_timeout(),
            self.back.poll_timeout(),
            self.receiver.poll_timeout(),
            self.sender.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Sends a packet every `interval` for `span`, then some more that let the peer detect the loss
    /// of the last ones, then probes until all are settled.
    fn send_until(&mut self, end: Time, interval: Duration) {
        let mut next_send = self.now;
        while next_send < end {
            while let Some(due) = self.next_due()
                && due < next_send
            {
                self.now = self.now.max(due);
                self.settle();
            }
            self.now = next_send;
            self.send();
            self.settle();
            next_send += interval;
        }
    }

    /// Sends a packet every `interval` for `span`, then some more, by which the peer can tell what
    /// came of the last ones, then probes until all is settled.
    fn run(mut self, interval: Duration, span: Duration) -> RecoveryReport {
        self.send_until(Time::ZERO + span, interval);
        let sent = self.next;
        let more = interval.min(ms(1));
        self.send_until(self.now + more * 500, more);
        self.probes = 0;
        while self.sender.bytes_in_flight() > 0 && self.probes < 500 {
            let due = self.next_due().expect("something is in flight");
            self.now = self.now.max(due);
            self.settle();
        }
        assert!(self.probes < 500, "probes are not answered");
        // What is on its way still arrives, and is answered.
        while let Some(due) = self.next_due() {
            self.now = self.now.max(due);
            self.settle();
        }
        let unsettled: Vec<_> = (0..self.next)
            .filter(|number| !self.acked.contains(number) && !self.lost.contains_key(number))
            .collect();
        assert!(
            unsettled.is_empty(),
            "neither acknowledged nor lost: {unsettled:?}"
        );
        let unheard: Vec<_> = (self.arrived.iter())
            .filter(|number| !self.acked.contains(number))
            .collect();
        assert!(unheard.iter().all(|number| **number >= sent), "{unheard:?}");
        let verdicts = self.lost.iter();
        let verdicts = verdicts
            .filter(|(number, _)| **number < sent)
            .map(|(number, at)| (*number, at.since(self.sent_at[*number as usize])))
            .collect();
        RecoveryReport {
            sent,
            acknowledged_by: self.acknowledgements.len() as f64 / self.next as f64,
            arrived: self.arrived,
            verdicts,
            spurious: self.spurious,
            tracked_max: self.tracked_max,
            losses: self.losses,
            window: self.sender.reordering_window(),
            spread: self.sender.reordering(),
        }
    }
}

impl RecoveryReport {
    /// Wrong verdicts among packets sent after `warm_up`, as a share of them.
    fn wrong(&self, warm_up: u64) -> f64 {
        let wrong = self.verdicts.iter();
        let wrong = wrong
            .filter(|(number, _)| *number >= warm_up && self.arrived.contains(number))
            .count();
        wrong as f64 / (self.sent - warm_up) as f64
    }

    /// The longest that a packet which did not arrive was waited for, tail left out.
    fn slowest_verdict(&self, tail: u64) -> Duration {
        let true_losses = self.verdicts.iter();
        let true_losses = true_losses
            .filter(|(number, _)| *number < self.sent - tail && !self.arrived.contains(number));
        true_losses.map(|(_, took)| *took).max().unwrap_or_default()
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn loss(fraction: f64) -> LossModel {
    Probability::from_fraction(fraction).unwrap().into()
}

fn way(delay: Duration, loss: LossModel) -> DirectionConfig {
    DirectionConfig {
        delay,
        loss,
        ..DirectionConfig::default()
    }
}

fn jitter(spread: Duration) -> Option<JitterConfig> {
    Some(JitterConfig {
        distribution: JitterDistribution::Uniform { spread },
        order: PacketOrder::Free,
    })
}

/// 20 Mbit/s in full packets.
const INTERVAL: Duration = Duration::from_micros(600);
/// Packets in four seconds of that.
const WARM_UP: u64 = 6_666;

#[test]
fn ordered_path_detects_losses_quickly_and_correctly() {
    for (seed, rate) in [(1, 0.001), (2, 0.01), (3, 0.1)] {
        let way = way(ms(50), loss(rate));
        let report = RecoverySimulation::new(way.clone(), way, seed).run(INTERVAL, ms(20_000));
        assert_eq!(report.wrong(0), 0.0, "{rate}");
        assert!(report.spurious.is_empty());
        // A round trip, what the receiver waits, acknowledgements that are lost in a row, and no
        // more than a quarter of the round trip for the verdict.
        let slowest = report.slowest_verdict(WARM_UP / 8);
        assert!(slowest <= ms(100 + 25 + 25), "{slowest:?} at {rate}");
        assert_eq!(report.spread, None);
        assert!(report.tracked_max < 4_000, "{}", report.tracked_max);
    }
}

#[test]
fn jitter_that_reorders_gives_few_wrong_verdicts() {
    for (seed, rate) in [(1, 0.0), (2, 0.01), (3, 0.05)] {
        let way = DirectionConfig {
            jitter: jitter(ms(50)),
            ..way(ms(50), loss(rate))
        };
        let report = RecoverySimulation::new(way.clone(), way, seed).run(INTERVAL, ms(30_000));
        let wrong = report.wrong(WARM_UP);
        assert!(wrong < 0.005, "{wrong} at {rate}");
        // Each way takes up to 100 ms, and the window is what all but one in 500 keep to.
        let slowest = report.slowest_verdict(WARM_UP / 4);
        assert!(slowest <= ms(200 + 200 + 25), "{slowest:?} at {rate}");
        assert!(report.window <= ms(200), "{:?}", report.window);
        let share = report.acknowledged_by;
        assert!(share < 0.2, "order is no news here: {share}");
        let spread = report.spread.expect("it reorders");
        assert!((ms(40)..=ms(200)).contains(&spread), "{spread:?}");
        // A wrong verdict is noticed for every packet that came.
        let came = report.verdicts.iter();
        let came = came.filter(|(number, _)| report.arrived.contains(number));
        assert!(came.count() <= report.spurious.len() + 64);
    }
}

#[test]
fn bursts_are_told_by_their_length() {
    let model = GilbertElliott::from_rate_and_burst(Probability::from_fraction(0.02).unwrap(), 8.0);
    let there = way(ms(50), LossModel::GilbertElliott(model.unwrap()));
    let report =
        RecoverySimulation::new(there, way(ms(50), LossModel::None), 5).run(INTERVAL, ms(60_000));
    let losses = &report.losses;
    let rate = losses.probability();
    assert!((0.01..0.03).contains(&rate), "{rate}");
    assert!((5.0..11.0).contains(&losses.mean_run()), "{losses:?}");
    assert_eq!(report.wrong(0), 0.0);
}

#[test]
fn random_losses_are_told_from_bursts() {
    let there = way(ms(50), loss(0.05));
    let report =
        RecoverySimulation::new(there, way(ms(50), LossModel::None), 5).run(INTERVAL, ms(60_000));
    let rate = report.losses.probability();
    assert!((0.04..0.06).contains(&rate), "{rate}");
    assert!(report.losses.mean_run() < 1.2, "{:?}", report.losses);
}

/// RFC 9000 §13.2.2: the way back is spared where packets are many.
#[test]
fn acknowledgements_are_few_beside_packets() {
    let clean = || way(ms(50), LossModel::None);
    let report = RecoverySimulation::new(clean(), clean(), 1).run(INTERVAL, ms(10_000));
    let share = report.acknowledged_by;
    assert!((0.05..0.15).contains(&share), "{share}");
    // 40 packets/s: two, or an eighth of the round trip later.
    let report = RecoverySimulation::new(clean(), clean(), 1).run(ms(25), ms(10_000));
    let share = report.acknowledged_by;
    assert!(share <= 1.0, "{share}");
}

#[test]
fn a_long_fat_path_stays_within_its_memory() {
    // 100,000 packets a second over 250 ms each way, for two seconds.
    let way = way(ms(250), loss(0.02));
    let report =
        RecoverySimulation::new(way.clone(), way, 1).run(Duration::from_micros(10), ms(2_000));
    assert_eq!(report.wrong(0), 0.0);
    // A round trip and a half under way, and those remembered that were lost in the last seconds.
    assert!(report.tracked_max <= 210_000, "{}", report.tracked_max);
    let slowest = report.slowest_verdict(10_000);
    assert!(slowest <= ms(500 + 25 + 125), "{slowest:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_packet_is_settled_on_any_path(
        seed: u64,
        delay in 1_u64..150,
        spread in 0_u64..100,
        rate in 0.0_f64..0.3,
        back_rate in 0.0_f64..0.3,
        burst in 1.0_f64..20.0,
        copies in 0.0_f64..0.2,
        late in 0.0_f64..0.1,
        interval in 200_u64..20_000,
    ) {
        let model = GilbertElliott::from_rate_and_burst(
            Probability::from_fraction(rate).unwrap(),
            burst,
        );
        let duplication = Probability::from_fraction(copies).unwrap();
        let there = DirectionConfig {
            duplication,
            jitter: (spread > 0).then(|| jitter(ms(spread)).unwrap()),
            reordering: Some(emulate::ReorderingConfig {
                probability: Probability::from_fraction(late).unwrap(),
                late_by: ms(delay),
            }),
            ..way(ms(delay), LossModel::GilbertElliott(model.unwrap()))
        };
        let back = DirectionConfig {
            duplication,
            jitter: (spread > 0).then(|| jitter(ms(spread)).unwrap()),
            ..way(ms(delay), loss(back_rate))
        };
        let span = Duration::from_micros(interval) * 3_000;
        let report = RecoverySimulation::new(there, back, seed).run(Duration::from_micros(interval), span);
        // What a packet may take, what it may be late by, probes in between for a path with few
        // packets, of which some are lost on the way: ten probe timeouts.
        let round_trip = ms(2 * delay + 2 * spread + 2 * delay);
        let bound = (round_trip * 3 + ms(100)) * 10 + Duration::from_micros(interval) * 200;
        // The state of a bursty loss changes with packets, not with time, so probes alone may take
        // their time to end it.
        let slowest = report.slowest_verdict(300);
        prop_assert!(slowest <= bound, "{slowest:?} of {bound:?}");
        prop_assert!(report.tracked_max <= 12_000, "{}", report.tracked_max);
    }
}
