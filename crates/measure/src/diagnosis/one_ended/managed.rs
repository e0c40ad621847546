//! Test for active queue management: a queue that drops before it is full.

use super::super::passage::PacketFate;
use super::super::statistics::quantile;
use super::{FASTER_LINE, PassageObservation};

impl PassageObservation {
    /// Tells whether a queue drops before it is full: packets are dropped while others wait much
    /// longer, and hardly any where none waits. A full queue lets no packet wait longer than the
    /// neighbours of those that it drops, and random loss also hits packets that do not wait.
    pub(super) fn drops_early(&self) -> bool {
        /// Least number of loss episodes for a diagnosis.
        const LEAST_EPISODES: usize = 4;
        /// The share of them that come below ...
        const EARLY: f64 = 0.3;
        /// ... this share of the long wait.
        const BELOW_TOP: f64 = 0.7;
        /// Ratio of longer waits to the usual wait at losses, and their least share.
        const LONGER: f64 = 1.4;
        const LONGER_PACKETS: f64 = 3.0;
        const MANY: f64 = 0.05;
        /// Ratio of short waits to the usual wait at losses, and the share of all losses that
        /// occurs there.
        const SHORT: f64 = 0.3;
        const SPARED: f64 = 0.25;
        /// Least number of random losses expected among those.
        const EXPECTED: f64 = 3.0;
        let Some(rate) = self.waiting_rate else {
            return false;
        };
        // Packets that leave faster waited for a line that is not what drops.
        if self
            .fastest_rate
            .is_some_and(|line| line > FASTER_LINE * rate)
        {
            return false;
        }
        let mut at_losses = self.waits_at_losses();
        let all = at_losses.len();
        let top = BELOW_TOP * self.long_wait;
        let early = at_losses.iter().filter(|wait| **wait < top).count();
        let Some(usual) = quantile(&mut at_losses, 0.5).filter(|_| all >= LEAST_EPISODES) else {
            return false;
        };
        if (early as f64) < EARLY * all as f64 {
            return false;
        }
        let long = LONGER * usual + LONGER_PACKETS * self.packet / rate + 2.0 * self.noise;
        let (mut all, mut longer, mut short, mut lost_short) = (0.0, 0.0, 0.0, 0.0);
        for (passage, wait) in self.passages.iter().zip(&self.waits) {
            let Some(wait) = *wait else {
                continue;
            };
            all += 1.0;
            longer += f64::from(u8::from(wait > long));
            if wait < SHORT * usual {
                short += 1.0;
                lost_short += f64::from(u8::from(passage.fate == PacketFate::Lost));
            }
        }
        longer > MANY * all
            && short * self.loss() > EXPECTED
            && lost_short < SPARED * short * self.loss()
    }
}
