//! Random impairments of packets, by packet number: loss, corruption, duplication and late
//! delivery.
//!
//! Everything here follows from the seed and from the packet's number in its direction. A packet
//! that a queue drops takes its number along, so that the packets behind it meet the same fate in
//! an idle link and in a full one. Only the Gilbert–Elliott model has a state, and it moves by one
//! step per number.

use bytes::Bytes;
use vocab::{IndexedRandom, Probability};

use crate::config::{DirectionConfig, GilbertElliott, LossModel, ReorderingConfig};
use crate::packet::{DropReason, PacketImpairments};

/// Random streams of a direction. A new stream takes the next number, so that a seed always gives
/// the same result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RandomStream {
    Loss = 0,
    LossState = 1,
    Corruption = 2,
    CorruptedBit = 3,
    Duplication = 4,
    Reordering = 5,
    Jitter = 6,
    JitterAngle = 7,
    JitterOfCopy = 8,
    JitterAngleOfCopy = 9,
    Discipline = 10,
}

impl RandomStream {
    /// Random generator of this stream.
    pub(crate) fn random(self, seed: u64) -> IndexedRandom {
        IndexedRandom::for_stream(seed, self as u64)
    }
}

/// Model that draws the impairments of each packet behind the line.
#[derive(Debug)]
pub(crate) struct ImpairmentModel {
    loss: LossModel,
    corruption: Probability,
    duplication: Probability,
    lateness: Probability,
    /// State of the Gilbert–Elliott model; `None` until its first packet.
    state: Option<GilbertElliottState>,
    loss_random: IndexedRandom,
    state_random: IndexedRandom,
    corruption_random: IndexedRandom,
    bit_random: IndexedRandom,
    duplication_random: IndexedRandom,
    reordering_random: IndexedRandom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GilbertElliottState {
    Good,
    Bad,
}

impl ImpairmentModel {
    pub(crate) fn new(config: &DirectionConfig, seed: u64) -> Self {
        let mut impairments = Self {
            loss: LossModel::None,
            corruption: Probability::ZERO,
            duplication: Probability::ZERO,
            lateness: Probability::ZERO,
            state: None,
            loss_random: RandomStream::Loss.random(seed),
            state_random: RandomStream::LossState.random(seed),
            corruption_random: RandomStream::Corruption.random(seed),
            bit_random: RandomStream::CorruptedBit.random(seed),
            duplication_random: RandomStream::Duplication.random(seed),
            reordering_random: RandomStream::Reordering.random(seed),
        };
        impairments.set(config);
        impairments
    }

    /// Takes other settings, for the packets that are handed in from now on.
    pub(crate) fn set(&mut self, config: &DirectionConfig) {
        self.set_loss(&config.loss);
        self.corruption = config.corruption;
        self.duplication = config.duplication;
        self.lateness = config.reordering.map_or(
            Probability::ZERO,
            |ReorderingConfig { probability, .. }| probability,
        );
    }

    pub(crate) fn set_loss(&mut self, loss: &LossModel) {
        self.loss = loss.clone();
        if !matches!(self.loss, LossModel::GilbertElliott(_)) {
            self.state = None;
        }
    }

    /// Draws the impairments of the packet of this number; called once for each packet, in order.
    pub(crate) fn of(&mut self, number: u64) -> PacketImpairments {
        PacketImpairments {
            lost: self.loses(number).then(|| self.reason()),
            corrupted: self.corruption > Probability::ZERO
                && self.corruption_random.happens(number, self.corruption),
            duplicated: self.duplication > Probability::ZERO
                && self.duplication_random.happens(number, self.duplication),
            late: self.lateness > Probability::ZERO
                && self.reordering_random.happens(number, self.lateness),
        }
    }

    /// The packet with one of its bits flipped.
    pub(crate) fn corrupt(&self, number: u64, packet: &Bytes) -> Bytes {
        let mut packet = packet.to_vec();
        let bit = self.bit_random.below(number, packet.len() as u64 * 8);
        if let Some(byte) = packet.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
        packet.into()
    }

    /// Reason of a loss; a certain loss counts as an outage.
    fn reason(&self) -> DropReason {
        match self.loss {
            LossModel::Random(probability) if probability.as_fraction() >= 1.0 => {
                DropReason::Outage
            }
            LossModel::Random(_)
            | LossModel::None
            | LossModel::List(_)
            | LossModel::GilbertElliott(_) => DropReason::Lost,
        }
    }

    fn loses(&mut self, number: u64) -> bool {
        match &self.loss {
            LossModel::None => false,
            LossModel::Random(probability) => self.loss_random.happens(number, *probability),
            LossModel::List(list) => list.contains(number),
            LossModel::GilbertElliott(model) => {
                let uniform = self.state_random.fraction(number);
                let state = next_state(model, self.state, uniform);
                self.state = Some(state);
                let probability = match state {
                    GilbertElliottState::Good => model.loss_good,
                    GilbertElliottState::Bad => model.loss_bad,
                };
                self.loss_random.happens(number, probability)
            }
        }
    }
}

/// The state in which a packet finds the line. The first packet finds each state as often as it
/// is there in the long run, so that short runs lose no less than long ones.
fn next_state(
    model: &GilbertElliott,
    before: Option<GilbertElliottState>,
    uniform: f64,
) -> GilbertElliottState {
    let (to_bad, to_good) = (model.to_bad.as_fraction(), model.to_good.as_fraction());
    let bad = match before {
        None if to_bad + to_good > 0.0 => to_bad / (to_bad + to_good),
        None => 0.0,
        Some(GilbertElliottState::Good) => to_bad,
        Some(GilbertElliottState::Bad) => 1.0 - to_good,
    };
    if uniform < bad {
        GilbertElliottState::Bad
    } else {
        GilbertElliottState::Good
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::LossList;

    fn losses(loss: LossModel, seed: u64, count: u64) -> Vec<bool> {
        let config = DirectionConfig {
            loss,
            ..DirectionConfig::default()
        };
        let mut impairments = ImpairmentModel::new(&config, seed);
        (0..count)
            .map(|number| impairments.of(number).lost.is_some())
            .collect()
    }

    fn probability(fraction: f64) -> Probability {
        Probability::from_fraction(fraction).unwrap()
    }

    #[test]
    fn random_loss_matches_the_configured_share() {
        let lost = losses(LossModel::Random(probability(0.01)), 1, 1_000_000);
        let lost = lost.into_iter().filter(|lost| *lost).count();
        // 99.9 % of all seeds are within 3.29 standard deviations of 99.5 packets.
        assert!((9_672..=10_328).contains(&lost), "{lost} of 1,000,000");
    }

    #[test]
    fn certain_loss_and_none_are_exact() {
        assert!(
            losses(LossModel::Random(probability(1.0)), 1, 1_000)
                .iter()
                .all(|lost| *lost)
        );
        assert!(
            losses(LossModel::Random(probability(0.0)), 1, 1_000)
                .iter()
                .all(|lost| !*lost)
        );
    }

    #[test]
    fn certain_loss_counts_as_outage() {
        let reason = |loss| {
            let config = DirectionConfig {
                loss,
                ..DirectionConfig::default()
            };
            let mut impairments = ImpairmentModel::new(&config, 1);
            (0..100).find_map(|number| impairments.of(number).lost)
        };
        let almost = reason(LossModel::Random(probability(0.999)));
        assert_eq!(almost, Some(DropReason::Lost));
        let certain = reason(LossModel::Random(probability(1.0)));
        assert_eq!(certain, Some(DropReason::Outage));
        let list = LossList::new(vec![0], Some(1)).unwrap();
        let listed = reason(LossModel::List(Arc::new(list)));
        assert_eq!(listed, Some(DropReason::Lost));
    }

    #[test]
    fn bursts_have_their_mean_length_and_rate() {
        let model = GilbertElliott::from_rate_and_burst(probability(0.02), 4.0).unwrap();
        assert!((model.loss_rate() - 0.02).abs() < 1e-12);
        let lost = losses(LossModel::GilbertElliott(model), 3, 2_000_000);
        let total = lost.iter().filter(|lost| **lost).count() as f64;
        let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        // 10,000 runs, whose lengths have a standard deviation of sqrt(12): the mean's is 0.035.
        assert!((total / runs - 4.0).abs() < 0.12, "{}", total / runs);
        assert!((total / 2e6 - 0.02).abs() < 0.001, "{total}");
    }

    #[test]
    fn bursts_that_cannot_be_are_refused() {
        assert!(GilbertElliott::from_rate_and_burst(probability(0.01), 0.5).is_err());
        assert!(GilbertElliott::from_rate_and_burst(probability(0.01), f64::NAN).is_err());
        assert!(GilbertElliott::from_rate_and_burst(probability(0.9), 2.0).is_err());
        assert!(GilbertElliott::from_rate_and_burst(probability(1.0), 2.0).is_err());
        assert!(GilbertElliott::from_rate_and_burst(probability(0.66), 2.0).is_ok());
    }

    #[test]
    fn a_list_loses_its_packets_and_no_other() {
        let list = LossList::new(vec![3, 1, 3], Some(5)).unwrap();
        let lost = losses(LossModel::List(Arc::new(list)), 1, 10);
        let numbers: Vec<usize> = (0..10).filter(|number| lost[*number]).collect();
        assert_eq!(numbers, [1, 3, 6, 8]);
        assert!(LossList::new(vec![5], Some(5)).is_err());
    }

    #[test]
    fn one_bit_is_flipped() {
        let impairments = ImpairmentModel::new(&DirectionConfig::default(), 1);
        let packet = Bytes::from(vec![0; 100]);
        for number in 0..100 {
            let flipped = impairments.corrupt(number, &packet);
            let ones: u32 = flipped.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!((flipped.len(), ones), (100, 1));
        }
        assert!(impairments.corrupt(0, &Bytes::new()).is_empty());
    }
}
