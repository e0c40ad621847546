//! Loss floor: the path's own loss, above which loss means congestion.
//!
//! The draft treats more than 2 % of loss as a full queue. A radio link or a bad line always loses
//! more than that, and a sender that backs off from it wastes the path. The two differ in that
//! congestion answers to slowing down and random loss does not. So every packet is counted by its
//! sending pace, and the floor is the loss among packets that were sent slowly:
//!
//! ```text
//!  slow   Drain, ProbeBW_DOWN, ProbeRTT         loss here cannot be a queue that we fill, nor a
//!                                               policer that we exceed, for long
//!  level  ProbeBW_CRUISE                        the same, where the model is right
//!  fast   Startup, REFILL, UP                   not counted
//! ```
//!
//! Before any of them are known, the losses of start-up while the rate still doubled are the floor
//! for some rounds. By then there are slow packets, but in a queue that other senders keep full. A
//! new sender doubles there as well by displacing them, and its losses then come from the queue.
//!
//! The floor is the loss of all slow and level packets, or of the slow ones alone if they lost less
//! by more than chance explains. Past a policer whose rate was overestimated, slow packets lose
//! less, and the reaction slows the level ones down until they lose nothing either. Random loss
//! stays the same.
//!
//! Only packets that met no queue are counted, and only while the last probe built a queue of its
//! own, or where no queue is seen at all and slowing down has not helped. In a queue that others
//! keep full no sender ends the losses by slowing down alone; but there a probe meets more losses
//! instead of a longer queue.
//!
//! Congestion only adds to a path's losses. So whatever the pace and the queue, a series of packets
//! that lost less than the floor, by more than chance explains, proves that the floor is too high,
//! and replaces it. Otherwise a sender that has learnt the losses of a full queue would keep them
//! forever, since nothing is learnt while the queue is full.
//!
//! Losses exceed the floor when they are above it by the draft's 2 % of packets, and when there are
//! more bursts than chance explains. A slightly overfilled queue or policer drops single packets; a
//! burst counts as one event of any length (docs/decisions/0017).

/// Losses above the floor that mean congestion (draft-ietf-ccwg-bbr, BBR.LossThresh).
const LOSS_THRESHOLD: f64 = 0.02;

/// Standard deviations by which the bursts must exceed the expected number: chance alone exceeds it
/// in 0.1 % of rounds.
const DEVIATIONS: f64 = 3.0;

/// Bursts beyond the expected ones that make congestion: one is bad luck, with however few packets
/// in flight. So of many flows in a full queue those with a small share, who meet one loss in a
/// round where others meet many, keep growing.
const RUNS_MIN: f64 = 2.0;
/// Upper limit of the excess bursts for many packets; the draft requires six in start-up.
const RUNS_MAX: f64 = 3.0;

/// Standard deviations by which bursts must be fewer to exclude chance.
const FEWER: f64 = 3.0;

/// Packets that a pool remembers, about: enough to know a floor of 10 % within 0.7 %, little
/// enough to forget a weather of a quarter of a minute at 1 Mbit/s.
const POOL_PACKETS: f64 = 2000.0;

/// Rounds after the last doubling of the rate in which start-up's losses are used as the floor: the
/// end of start-up, a drain, and a probe's beginning and end take that long.
const STARTUP_ROUNDS: u64 = 12;

/// Packets of a stretch by which a floor may be found too high: some seconds of the slowest flows.
const STRETCH_PACKETS: f64 = 500.0;

/// Packets that a pool needs before it is used.
const EVIDENCE_PACKETS: f64 = 50.0;

/// No floor is believed above this: on worse paths the controller slows down.
pub(super) const FLOOR_MAX: f64 = 0.3;

/// Epochs whose packets may still be in flight: a cycle has four, and a round trip seldom spans
/// one. Older packets are not counted.
const EPOCHS: usize = 16;

/// Sending pace of an epoch's packets relative to the path's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendingPace {
    /// Below it.
    Slow,
    /// At it.
    Level,
    /// Above it, or unknown.
    Fast,
}

/// Counts packets by the pace at which they went out.
#[derive(Clone, Debug)]
pub(super) struct LossFloor {
    /// Start-up's, while the rate doubled, and the round of the last of them.
    startup: LossCounts,
    startup_round: u64,
    slow: LossCounts,
    level: LossCounts,
    /// All since the present stretch began, at whatever pace.
    stretch: LossCounts,
    epochs: [SendingPace; EPOCHS],
    epoch: u32,
    /// The packet that was last declared lost.
    last_lost: Option<u64>,
}

/// Packets, and how many of them were lost in how many bursts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossCounts {
    pub(super) packets: f64,
    pub(super) lost: f64,
    pub(super) runs: f64,
}

impl LossFloor {
    pub(super) fn new() -> Self {
        Self {
            startup: LossCounts::default(),
            startup_round: 0,
            slow: LossCounts::default(),
            level: LossCounts::default(),
            stretch: LossCounts::default(),
            epochs: [SendingPace::Fast; EPOCHS],
            epoch: 0,
            last_lost: None,
        }
    }

    /// Begins another epoch; packets that go out from now on carry its number.
    pub(super) fn begin(&mut self, pace: SendingPace) {
        self.epoch = self.epoch.wrapping_add(1);
        self.epochs[self.epoch as usize % EPOCHS] = pace;
    }

    /// The epoch now.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(super) fn acked(&mut self, epoch: u32, counts: bool) {
        self.stretch.add(1.0, 0.0, 0.0);
        if let Some(pool) = self.pool(epoch, counts) {
            pool.add(1.0, 0.0, 0.0);
        }
    }

    /// Records a loss. Returns `true` if it begins a burst.
    pub(super) fn lost(&mut self, epoch: u32, number: u64, counts: bool) -> bool {
        let continues = self
            .last_lost
            .is_some_and(|last| number == last.wrapping_add(1));
        self.last_lost = Some(number);
        let runs = if continues { 0.0 } else { 1.0 };
        self.stretch.add(1.0, 1.0, runs);
        if let Some(pool) = self.pool(epoch, counts) {
            pool.add(1.0, 1.0, runs);
        }
        !continues
    }

    pub(super) fn spurious(&mut self, epoch: u32) {
        if let Some(pool) = self.pool(epoch, true) {
            pool.lost = (pool.lost - 1.0).max(0.0);
            pool.runs = (pool.runs - 1.0).max(0.0);
        }
    }

    /// Takes in a round of start-up in which the rate still grew, so that no queue of our own was
    /// full.
    pub(super) fn grew(&mut self, count: u64, round: LossCounts) {
        self.startup_round = count;
        self.startup.add(round.packets, round.lost, round.runs);
    }

    /// Another round begins.
    pub(super) fn begin_round(&mut self, count: u64) {
        if count > self.startup_round + STARTUP_ROUNDS {
            self.startup = LossCounts::default();
        }
        let known = self.pool_of_floor().unwrap_or_default();
        if self.stretch.is_better_than(known) {
            self.forget();
            self.level = std::mem::take(&mut self.stretch);
        } else if self.stretch.packets >= STRETCH_PACKETS {
            self.stretch = LossCounts::default();
        }
    }

    /// Drops the floor after a probe met losses and no queue: a policer may have caused the floor.
    pub(super) fn doubt(&mut self) {
        for pool in [&mut self.startup, &mut self.slow, &mut self.level] {
            pool.lost /= 2.0;
            pool.runs /= 2.0;
        }
    }

    /// Drops all pools. Start-up ended without a queue of its own, so other senders may have caused
    /// its losses.
    pub(super) fn forget(&mut self) {
        self.startup = LossCounts::default();
        self.slow = LossCounts::default();
        self.level = LossCounts::default();
    }

    /// The share of packets that is lost whatever is sent.
    pub(super) fn floor(&self) -> f64 {
        self.pool_of_floor()
            .map_or(0.0, |pool| pool.lost / pool.packets)
            .min(FLOOR_MAX)
    }

    /// Returns `true` if these losses alone indicate congestion.
    pub(super) fn is_exceeded_by(&self, losses: LossCounts) -> bool {
        let few = (losses.packets * LOSS_THRESHOLD).clamp(RUNS_MIN, RUNS_MAX);
        losses.lost > losses.packets * self.threshold() && self.has_more_runs(losses, few)
    }

    /// Returns `true` if these losses exceed the path's own loss by more than chance explains.
    /// Together with a queue that indicates congestion.
    pub(super) fn is_exceeded_beyond_chance(&self, losses: LossCounts) -> bool {
        // Half a burst, as counts are whole and what is expected is not.
        let mut losses = losses;
        losses.runs += 0.5;
        self.has_more_runs(losses, 1.0)
    }

    /// Returns `true` if there are at least `few` bursts more than expected, and more than chance
    /// explains.
    fn has_more_runs(&self, losses: LossCounts, few: f64) -> bool {
        let pool = self.pool_of_floor().unwrap_or_default();
        let known = pool.packets.max(EVIDENCE_PACKETS);
        let expected = losses.packets * pool.runs / known;
        let deviation = (expected * (1.0 + losses.packets / known)).sqrt();
        losses.runs >= expected + few.max(DEVIATIONS * deviation)
    }

    /// The share of packets above which losses mean congestion.
    pub(super) fn threshold(&self) -> f64 {
        self.floor() + LOSS_THRESHOLD
    }

    /// The packets by which the floor is known.
    fn pool_of_floor(&self) -> Option<LossCounts> {
        let known = |pool: &LossCounts| pool.packets >= EVIDENCE_PACKETS;
        match (
            Some(self.slow).filter(known),
            Some(self.level).filter(known),
        ) {
            (Some(slow), Some(level)) => {
                if slow.is_better_than(level) {
                    return Some(slow);
                }
                Some(LossCounts {
                    packets: slow.packets + level.packets,
                    lost: slow.lost + level.lost,
                    runs: slow.runs + level.runs,
                })
            }
            (one, other) => one.or(other).or(Some(self.startup).filter(known)),
        }
    }

    fn pool(&mut self, epoch: u32, counts: bool) -> Option<&mut LossCounts> {
        if !counts || self.epoch.wrapping_sub(epoch) as usize >= EPOCHS {
            return None;
        }
        match self.epochs[epoch as usize % EPOCHS] {
            SendingPace::Slow => Some(&mut self.slow),
            SendingPace::Level => Some(&mut self.level),
            SendingPace::Fast => None,
        }
    }
}

impl LossCounts {
    pub(super) fn add(&mut self, packets: f64, lost: f64, runs: f64) {
        self.packets += packets;
        self.lost += lost;
        self.runs += runs;
        if self.packets > POOL_PACKETS {
            self.shrink_to(POOL_PACKETS * 0.75);
        }
    }

    /// Returns `true` if there are fewer bursts than among `those`, by more than chance explains.
    fn is_better_than(&self, those: LossCounts) -> bool {
        let expected = those.runs / those.packets.max(1.0) * self.packets;
        self.runs < expected - FEWER * expected.sqrt()
    }

    fn shrink_to(&mut self, packets: f64) {
        if self.packets > packets {
            let share = packets / self.packets;
            self.lost *= share;
            self.runs *= share;
            self.packets = packets;
        }
    }
}

#[cfg(test)]
mod tests {
    use vocab::{Probability, SeededRandom};

    use super::*;

    /// Puts `count` packets through an epoch, each lost with the same chance.
    fn pass(floor: &mut LossFloor, pace: SendingPace, count: u64, loss: f64, first: u64) {
        let mut random = SeededRandom::from_seed(first);
        let loss = Probability::from_fraction(loss).unwrap();
        floor.begin(pace);
        let epoch = floor.epoch();
        for number in first..first + count {
            if random.happens(loss) {
                floor.lost(epoch, number, true);
            } else {
                floor.acked(epoch, true);
            }
        }
    }

    fn losses(packets: f64, lost: f64, runs: f64) -> LossCounts {
        LossCounts {
            packets,
            lost,
            runs,
        }
    }

    #[test]
    fn loss_at_every_pace_is_the_floor() {
        let mut floor = LossFloor::new();
        pass(&mut floor, SendingPace::Slow, 1000, 0.1, 0);
        pass(&mut floor, SendingPace::Level, 3000, 0.1, 1000);
        assert!((floor.floor() - 0.1).abs() < 0.025, "{}", floor.floor());
        assert!(!floor.is_exceeded_by(losses(200.0, 25.0, 22.0)));
        assert!(floor.is_exceeded_by(losses(200.0, 50.0, 40.0)));
    }

    #[test]
    fn loss_that_slowing_down_ends_is_congestion() {
        let mut floor = LossFloor::new();
        pass(&mut floor, SendingPace::Slow, 500, 0.0, 0);
        pass(&mut floor, SendingPace::Level, 3000, 0.1, 1000);
        assert_eq!(floor.floor(), 0.0);
        assert!(floor.is_exceeded_by(losses(100.0, 4.0, 4.0)));
        assert!(!floor.is_exceeded_by(losses(100.0, 2.0, 2.0)), "2 %");
    }

    #[test]
    fn fast_or_queued_packets_do_not_measure_floor() {
        let mut floor = LossFloor::new();
        pass(&mut floor, SendingPace::Slow, 500, 0.0, 0);
        pass(&mut floor, SendingPace::Fast, 5000, 0.3, 1000);
        floor.begin(SendingPace::Slow);
        for number in 0..1000 {
            floor.lost(floor.epoch(), 2 * number, false);
        }
        assert_eq!(floor.floor(), 0.0);
    }

    #[test]
    fn lower_loss_lowers_the_floor() {
        let mut floor = LossFloor::new();
        pass(&mut floor, SendingPace::Level, 1000, 0.1, 0);
        for round in 1..100 {
            pass(&mut floor, SendingPace::Fast, 100, 0.1, 1000 * round);
            floor.begin_round(round);
        }
        assert!(floor.floor() > 0.07, "not by chance: {}", floor.floor());
        for round in 100..105 {
            pass(&mut floor, SendingPace::Fast, 100, 0.02, 1000 * round);
            floor.begin_round(round);
        }
        assert!(floor.floor() < 0.05, "{}", floor.floor());
    }

    #[test]
    fn one_burst_is_tolerated_and_many_are_congestion() {
        let floor = LossFloor::new();
        assert!(!floor.is_exceeded_by(losses(200.0, 30.0, 1.0)));
        assert!(floor.is_exceeded_by(losses(200.0, 30.0, 10.0)));
        assert!(!floor.is_exceeded_by(losses(10.0, 1.0, 1.0)));
        assert!(floor.is_exceeded_by(losses(10.0, 2.0, 2.0)));
    }
}
