//! Pace of the link's thread: the times at which it sleeps and those at which it stays awake.
//!
//! ```text
//!   packets came ─► lingers ─► asleep ──────────────────► margin: awake ─► due
//! ```
//! A sleeper is woken late, by how much depends on the machine and on what else it does. The
//! **margin** is what nearly all of the last wake-ups would have needed: a late one raises it by a
//! step, one in time lowers it by a fraction of that, so that it settles where one of fifty is
//! late. Where packets are so few that being awake for longer costs next to nothing, it is one of
//! five hundred. A link on which nothing is due sleeps all the time, whatever the margin.
//!
//! Falling asleep and being woken costs as much as carrying a packet or two, half of it the sender.
//! So the link **lingers** for a moment where packets follow each other closely, and stops trying,
//! for longer each time, where they do not, or where lingering itself keeps the sender from its
//! processor.
//!
//! Where many packets come one or two at a time, each look costs more than handling the packets
//! that it finds, and so does each packet that the link hands on alone. Then the link **gathers**:
//! it sleeps for a moment without interruption, so that no sender spends its time on waking it, and
//! carries the packets that have come by then. That delays packets by up to this moment, and only
//! at rates above those of a line of 1 Gbit/s with full-size packets.
//!
//! Staying awake helps only as long as the scheduler leaves the thread its processor. Where it does
//! not, staying awake makes the thread wait, and the margin is halved.

use std::time::Duration;

use vocab::Time;

/// Growth of the margin after a late wake-up; it shrinks by a share of this after one in time.
const STEP: Duration = Duration::from_micros(5);
const STEPS_BACK: u32 = 50;
const STEPS_BACK_FRUGAL: u32 = 500;

/// The longest margin while less than [`FRUGAL_PERCENT`] of the time is spent awake: as late as a
/// host wakes a sleeper that it has put aside.
const MARGIN_MAX_FRUGAL: Duration = Duration::from_millis(1);
const FRUGAL_PERCENT: u32 = 5;
const FRUGAL_SPAN: Duration = Duration::from_millis(100);

const MARGIN_AT_FIRST: Duration = Duration::from_micros(50);
const MARGIN_MIN: Duration = Duration::from_micros(5);

/// Gap between two looks that proves an interruption. A look at all devices takes a microsecond;
/// after a hundred times that, something else ran.
const INTERRUPTED_AFTER: Duration = Duration::from_micros(100);

/// Time to look for the next packet before sleeping: several times the cost of a sleep, and shorter
/// than the gaps of 10,000 packets per second.
const LINGER: Duration = Duration::from_micros(20);

/// Greatest number of immediate sleeps before lingering is tried again.
const SLEEPS_MAX: u32 = 1_023;

/// Time for gathering packets. With the 50 µs by which a host wakes late, it is half of the
/// promised 0.2 ms. At 300,000 packets per second each look finds some 30 packets and costs a
/// microsecond per packet; with 20 µs it cost two microseconds, and without gathering two and a
/// half.
pub(crate) const GATHER: Duration = Duration::from_micros(50);

/// Measuring span for gathering, which begins where so many packets come in it, 150,000 per second,
/// with fewer than so many at a look, and ends where they become fewer. 1 Gbit/s of full-size
/// packets is 83,000 per second.
const GATHER_SPAN: Duration = Duration::from_millis(2);
const GATHER_PACKETS: usize = 300;
const GATHER_PACKETS_LEAST: usize = 200;
const FEW_AT_A_LOOK: usize = 8;

/// Scheduling priority of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadPriority {
    /// The thread has priority, and may stay awake as long as it helps.
    Raised,
    /// The thread has no priority: processor time that it uses while awake delays it later.
    Ordinary,
}

/// Estimator of this machine's wake-up lateness.
#[derive(Debug)]
pub(crate) struct WakeupEstimator {
    margin: Duration,
    most: Duration,
    /// Start of the present accounting of time awake, that time, and whether it was little before.
    counted_from: Time,
    awake: Duration,
    is_frugal: bool,
    linger_until: Option<Time>,
    /// Time for which the thread stays awake after each packet, whatever it costs.
    busy_poll: Duration,
    awake_until: Time,
    /// Number of sleeps until lingering is tried again, and the number of the last time.
    sleeps_left: u32,
    sleeps: u32,
    gathering: GatheringState,
}

/// Packets that came since a time, and whether gathering more of them pays off.
#[derive(Debug, Default)]
struct GatheringState {
    from: Time,
    packets: usize,
    looks: usize,
    is_on: bool,
}

impl WakeupEstimator {
    pub(crate) fn new(priority: ThreadPriority) -> Self {
        Self {
            margin: MARGIN_AT_FIRST,
            most: match priority {
                ThreadPriority::Raised => Duration::from_micros(150),
                ThreadPriority::Ordinary => MARGIN_AT_FIRST,
            },
            counted_from: Time::ZERO,
            awake: Duration::ZERO,
            is_frugal: false,
            linger_until: None,
            busy_poll: Duration::ZERO,
            awake_until: Time::ZERO,
            sleeps_left: 0,
            sleeps: 0,
            gathering: GatheringState::default(),
        }
    }

    /// Stays awake for `span` after each packet.
    pub(crate) fn with_busy_poll(mut self, span: Duration) -> Self {
        self.busy_poll = span;
        self
    }

    /// Time before a due moment from which to be awake.
    pub(crate) fn margin(&self) -> Duration {
        self.margin
    }

    /// Takes in how late a sleep ended that nothing cut short.
    pub(crate) fn record_wakeup(&mut self, late: Duration) {
        let (most, steps_back) = if self.is_frugal {
            (MARGIN_MAX_FRUGAL, STEPS_BACK_FRUGAL)
        } else {
            (self.most, STEPS_BACK)
        };
        self.margin = if late > self.margin {
            self.margin + STEP
        } else {
            self.margin
                .saturating_sub(STEP / steps_back)
                .max(MARGIN_MIN)
        };
        self.margin = self.margin.min(most);
    }

    /// Tells whether to let packets gather for [`GATHER`] before the next look.
    pub(crate) fn gathers(&mut self, now: Time) -> bool {
        self.gathering.look(now);
        self.gathering.is_on
    }

    /// Records that so many packets have come at one look.
    pub(crate) fn came(&mut self, now: Time, packets: usize) {
        self.gathering.packets += packets;
        self.gathering.looks += 1;
        self.awake_until = now + self.busy_poll;
        if self.linger_until.is_some() {
            self.sleeps = 0;
        }
        self.linger_until = match self.sleeps_left.checked_sub(1) {
            Some(left) => {
                self.sleeps_left = left;
                None
            }
            None => Some(now + LINGER),
        };
    }

    /// Tells whether to look for more packets before sleeping.
    pub(crate) fn lingers(&mut self, now: Time) -> bool {
        if now < self.awake_until {
            return true;
        }
        let Some(until) = self.linger_until else {
            return false;
        };
        if now < until {
            return true;
        }
        self.linger_until = None;
        self.sleeps = (self.sleeps * 2 + 1).min(SLEEPS_MAX);
        self.sleeps_left = self.sleeps;
        false
    }

    /// Takes in how long one look at the devices took without sleeping.
    pub(crate) fn looked(&mut self, now: Time, took: Duration) {
        self.awake += took;
        let span = now.since(self.counted_from);
        if span >= FRUGAL_SPAN {
            self.is_frugal = self.awake * 100 < span * FRUGAL_PERCENT;
            (self.counted_from, self.awake) = (now, Duration::ZERO);
        }
        if took > INTERRUPTED_AFTER {
            self.margin = (self.margin / 2).max(MARGIN_MIN);
        }
    }
}

impl GatheringState {
    fn look(&mut self, now: Time) {
        let span = now.since(self.from);
        if span < GATHER_SPAN {
            return;
        }
        // A span that took longer, because nothing came or the thread had no processor, counts as
        // what it was.
        let packets = self.packets as u128 * GATHER_SPAN.as_nanos() / span.as_nanos();
        self.is_on = if self.is_on {
            packets >= GATHER_PACKETS_LEAST as u128
        } else {
            packets >= GATHER_PACKETS as u128 && self.packets < self.looks * FEW_AT_A_LOOK
        };
        (self.from, self.packets, self.looks) = (now, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;

    use super::*;

    #[test]
    fn the_margin_settles_where_few_wake_late() {
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised);
        let mut random = SeededRandom::from_seed(1);
        for _ in 0..100_000 {
            // Nine of ten wake-ups are up to 30 µs late, every tenth up to 100 µs.
            let most = if random.below(10) == 0 { 100 } else { 30 };
            pace.record_wakeup(Duration::from_micros(random.below(most)));
        }
        // One of fifty is later than 80 µs.
        let margin = pace.margin().as_micros();
        assert!((60..=100).contains(&margin), "{margin} us");
    }

    /// Number of times that a link lingers in vain while packets come with this gap.
    fn lingered_in_vain(gap: Duration, packets: u32) -> u32 {
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised);
        let mut now = Time::ZERO;
        let mut in_vain = 0;
        for _ in 0..packets {
            pace.came(now, 1);
            let started = pace.lingers(now);
            now += gap;
            in_vain += u32::from(started && !pace.lingers(now));
        }
        in_vain
    }

    #[test]
    fn lingers_only_where_packets_follow_closely() {
        assert_eq!(lingered_in_vain(Duration::from_micros(10), 100_000), 0);
        let in_vain = lingered_in_vain(Duration::from_micros(100), 100_000);
        assert!((10..=200).contains(&in_vain), "{in_vain}");
    }

    #[test]
    fn lingers_again_once_it_pays() {
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised);
        let mut now = Time::ZERO;
        for _ in 0..10_000 {
            pace.came(now, 1);
            now += Duration::from_millis(1);
            pace.lingers(now);
        }
        for _ in 0..=SLEEPS_MAX {
            pace.came(now, 1);
            now += Duration::from_micros(5);
        }
        assert!(pace.lingers(now));
    }

    #[test]
    fn busy_poll_stays_awake_between_packets() {
        let span = Duration::from_micros(300);
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised).with_busy_poll(span);
        let mut now = Time::ZERO;
        for _ in 0..1_000 {
            pace.came(now, 1);
            assert!(pace.lingers(now + span - Duration::from_nanos(1)));
            now += Duration::from_micros(250);
        }
        assert!(!pace.lingers(now + span));
    }

    /// Share of 100 ms, in ms, that a link gathers while so many packets come at a look, with this
    /// gap.
    fn gathered(
        pace: &mut WakeupEstimator,
        now: &mut Time,
        packets: usize,
        gap: Duration,
    ) -> usize {
        let looks = (Duration::from_millis(100).as_nanos() / gap.as_nanos()) as usize;
        let gathered = (0..looks).filter(|_| {
            *now += gap;
            pace.came(*now, packets);
            pace.gathers(*now)
        });
        gathered.count() * 100 / looks
    }

    #[test]
    fn gathers_when_many_packets_come_in_small_groups() {
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised);
        let mut now = Time::ZERO;
        let mut gathered =
            |packets, micros| gathered(&mut pace, &mut now, packets, Duration::from_micros(micros));
        // 100,000 in a second, and a million that come as runs.
        assert_eq!(gathered(1, 10), 0);
        assert_eq!(gathered(45, 45), 0);
        // 200,000, then as they come once they gather, then fewer.
        assert!(gathered(1, 5) >= 95);
        assert_eq!(gathered(12, 60), 100);
        assert!(gathered(5, 60) <= 5);
    }

    #[test]
    fn gathers_no_longer_once_nothing_comes() {
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised);
        let mut now = Time::ZERO;
        gathered(&mut pace, &mut now, 1, Duration::from_micros(5));
        assert!(pace.gathers(now));
        assert!(!pace.gathers(now + 2 * GATHER_SPAN));
    }

    #[test]
    fn link_with_few_packets_may_linger_longer() {
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised);
        let mut now = Time::ZERO;
        let mut cycle = |pace: &mut WakeupEstimator, gap: Duration| {
            for _ in 0..3_000 {
                now += gap;
                pace.record_wakeup(Duration::from_millis(10));
                pace.looked(now, Duration::from_micros(90));
            }
            pace.margin()
        };
        assert_eq!(
            cycle(&mut pace, Duration::from_millis(10)),
            MARGIN_MAX_FRUGAL
        );
        let margin = cycle(&mut pace, Duration::from_micros(100));
        assert_eq!(margin, Duration::from_micros(150));
    }

    #[test]
    fn the_margin_is_bounded() {
        let mut pace = WakeupEstimator::new(ThreadPriority::Raised);
        for _ in 0..1_000 {
            pace.record_wakeup(Duration::from_millis(10));
        }
        assert_eq!(pace.margin(), Duration::from_micros(150));
        for _ in 0..1_000 {
            pace.looked(Time::ZERO, Duration::from_millis(10));
        }
        assert_eq!(pace.margin(), MARGIN_MIN);
        let mut pace = WakeupEstimator::new(ThreadPriority::Ordinary);
        for _ in 0..1_000 {
            pace.record_wakeup(Duration::from_millis(10));
        }
        assert_eq!(pace.margin(), MARGIN_AT_FIRST);
    }
}
