//! Paths that answer short packets and lose all that are as long as every path should carry.
//!
//! Larger packets are the business of the search for the path's size (`path::PathMtu`), which goes
//! back to the base size. Where that is too much as well, as behind a tunnel within a tunnel, signs of
//! life and acknowledgements still get through, so that the path looks alive and flows stand still.
//! Told from chance by how many are lost, over how long, with none of their size between them.

use std::time::Duration;

use vocab::Time;

/// Packets lost in a row, with none as long acknowledged: at 10 % random loss there is one such row
/// in a million packets; a run of losses is over within the time that is waited, too.
const LOSSES: u32 = 6;

/// Packets lost, and none as long has arrived since.
#[derive(Clone, Copy, Debug)]
struct LargePacketLosses {
    /// Time at which the first of them was sent.
    since: Time,
    /// The shortest.
    least: u16,
    count: u32,
}

/// Detector of a black hole: a path that drops packets of the minimum size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlackHoleDetector {
    row: Option<LargePacketLosses>,
}

impl BlackHoleDetector {
    /// A packet with a UDP payload of `size` bytes arrived.
    pub(super) fn acknowledged(&mut self, size: u16) {
        self.row = self.row.filter(|row| size < row.least);
    }

    /// One that is no probe of the path's size was lost.
    pub(super) fn lost(&mut self, sent_at: Time, size: u16) {
        if size > path::BASE_SIZE {
            return;
        }
        let row = self.row.get_or_insert(LargePacketLosses {
            since: sent_at,
            least: size,
            count: 0,
        });
        row.least = row.least.min(size);
        row.count = row.count.saturating_add(1);
    }

    /// Returns `true` if such losses have lasted for `wait`, which is too long for chance.
    pub(super) fn is_certain(&self, now: Time, wait: Duration) -> bool {
        let is_certain =
            |row: LargePacketLosses| row.count >= LOSSES && now.since(row.since) >= wait;
        self.row.is_some_and(is_certain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(1);

    fn after(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn lasting_losses_confirm_a_black_hole() {
        let mut narrowness = BlackHoleDetector::default();
        for packet in 0..LOSSES {
            assert!(!narrowness.is_certain(after(5_000), WAIT), "{packet}");
            narrowness.lost(Time::ZERO, 1_200);
            narrowness.acknowledged(100);
        }
        assert!(!narrowness.is_certain(after(999), WAIT));
        assert!(narrowness.is_certain(after(1_000), WAIT));
    }

    #[test]
    fn delivered_long_packet_clears_the_suspicion() {
        let mut narrowness = BlackHoleDetector::default();
        for packet in 0..20 {
            narrowness.lost(Time::ZERO, 1_000 + 10 * packet);
        }
        narrowness.acknowledged(999);
        assert!(narrowness.is_certain(after(1_000), WAIT));
        narrowness.acknowledged(1_000);
        assert!(!narrowness.is_certain(after(1_000), WAIT));
    }

    #[test]
    fn loss_of_longer_packets_is_ignored() {
        let mut narrowness = BlackHoleDetector::default();
        for _ in 0..20 {
            narrowness.lost(Time::ZERO, path::BASE_SIZE + 1);
        }
        assert!(!narrowness.is_certain(after(1_000), WAIT));
    }
}
