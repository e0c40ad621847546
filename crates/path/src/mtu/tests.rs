//! The search against paths that carry packets up to a size, lose some, and change.

use proptest::prelude::*;
use vocab::SeededRandom;

use super::*;

const RTT: Duration = Duration::from_millis(100);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Path that carries packets up to a size. Probes are answered after a round trip; lost ones are
/// reported after one and a half, or by the timer alone.
struct TestPath {
    now: Time,
    mtu: PathMtu,
    carries: u16,
    loss: f64,
    random: SeededRandom,
    verdicts: bool,
    probes: Vec<(Time, u16)>,
    next_id: u64,
}

impl TestPath {
    fn new(carries: u16, max: u16) -> Self {
        let config = MtuConfig {
            base: BASE_SIZE,
            max,
            grain: SEARCH_GRAIN,
        };
        Self {
            now: Time::ZERO,
            mtu: PathMtu::new(Time::ZERO, config),
            carries,
            loss: 0.0,
            random: SeededRandom::from_seed(1),
            verdicts: true,
            probes: Vec::new(),
            next_id: 0,
        }
    }

    /// Sends the probe that is due, if one is, and tells its fate; says whether there was one.
    fn probe(&mut self) -> bool {
        let Some(size) = self.mtu.poll_probe(self.now) else {
            return false;
        };
        let id = self.next_id;
        self.next_id += 1;
        self.probes.push((self.now, size));
        self.mtu.probe_sent(self.now, id, size, RTT * 3);
        assert_eq!(self.mtu.poll_probe(self.now), None, "one at a time");
        if size <= self.carries && self.random.next_f64() >= self.loss {
            self.now += RTT;
            self.mtu.probe_acked(self.now, size);
        } else if self.verdicts {
            self.now += RTT * 3 / 2;
            self.mtu.probe_lost(self.now, id);
        } else {
            self.now = self.mtu.poll_timeout().expect("a probe is under way");
            self.mtu.handle_timeout(self.now);
        }
        true
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            if !self.probe() {
                return;
            }
        }
        panic!("it probes for ever: {:?}", self.probes);
    }

    /// Full packets and small ones, a hundred of each.
    fn traffic(&mut self, small: bool) {
        for _ in 0..100 {
            self.now += ms(1);
            let size = self.mtu.size();
            if size <= self.carries && self.random.next_f64() >= self.loss {
                self.mtu.acked(self.now, size);
            } else {
                self.mtu.lost(self.now, self.now, size, ms(20));
            }
            if small {
                self.mtu.acked(self.now, 300);
            }
        }
    }
}

fn settled(carries: u16, max: u16) -> TestPath {
    let mut path = TestPath::new(carries, max);
    path.settle();
    path
}

/// RFC 8899 §5.2: BASE is left by an acknowledgement of that size.
#[test]
fn maximum_size_is_confirmed_in_two_round_trips() {
    let path = settled(1_472, 1_472);
    assert_eq!(
        (path.mtu.state(), path.mtu.size()),
        (MtuState::Complete, 1_472)
    );
    assert_eq!(path.now, Time::ZERO + RTT * 2);
    assert_eq!(path.mtu.poll_timeout(), None, "there is nothing to raise");
}

/// RFC 9000 §8.2.1 has path validation carry the base size; that is as good as a probe.
#[test]
fn any_packet_of_the_base_size_confirms_it() {
    let mut path = TestPath::new(1_472, 1_472);
    path.mtu.acked(path.now, 1_199);
    assert_eq!(path.mtu.state(), MtuState::Base);
    path.mtu.acked(path.now, 1_200);
    assert_eq!(path.mtu.state(), MtuState::Searching);
}

proptest! {
    /// RFC 8899 §5.3.1, §5.3.2: the search ends within a grain of the truth, never above it, and
    /// no packet but a probe is larger than what got through (RFC 8899 §3, rule 1).
    #[test]
    fn the_search_finds_the_path_mtu(
        carries in BASE_SIZE..9_000,
        max in BASE_SIZE..9_000_u16,
        verdicts: bool,
    ) {
        let mut path = TestPath::new(carries, max);
        path.verdicts = verdicts;
        while path.probe() {
            prop_assert!(path.mtu.size() <= carries);
        }
        let truth = carries.min(max);
        prop_assert_eq!(path.mtu.state(), MtuState::Complete);
        prop_assert!(path.mtu.size() + SEARCH_GRAIN > truth, "{} of {truth}", path.mtu.size());
        // Two that get through, and three for each halving of what is between.
        prop_assert!(path.probes.len() <= 2 + 3 * 11, "{:?}", path.probes);
    }

    /// Whatever a user says, in whatever order, the size stays within its bounds and the machine
    /// does not stay due once it was asked.
    #[test]
    fn any_event_order_keeps_invariants(
        steps in prop::collection::vec((0_u8..9, 0_u16..2_000, 0_u64..8, 0_u64..400_000), 1..120),
    ) {
        let config = MtuConfig {
            base: BASE_SIZE,
            max: 1_472,
            grain: SEARCH_GRAIN,
        };
        let mut now = Time::ZERO;
        let mut mtu = PathMtu::new(now, config);
        let mut max = 1_472;
        for (step, size, id, wait) in steps {
            now += ms(wait);
            match step {
                0 => mtu.probe_acked(now, size),
                1 => mtu.acked(now, size),
                2 => mtu.probe_lost(now, id),
                3 => mtu.lost(now, now, size, ms(wait / 100)),
                4 => mtu.refused(now, size),
                5 => { max = size.max(BASE_SIZE); mtu.set_max(now, size); }
                6 => mtu.handle_timeout(now),
                _ => {
                    mtu.handle_timeout(now);
                    if let Some(probe) = mtu.poll_probe(now) {
                        prop_assert!((BASE_SIZE..=max).contains(&probe), "{probe}");
                        mtu.probe_sent(now, id, probe, RTT);
                    }
                    prop_assert!(mtu.poll_timeout().is_none_or(|due| due > now));
                }
            }
            prop_assert!((BASE_SIZE..=max).contains(&mtu.size()), "{}", mtu.size());
        }
    }
}

/// RFC 8899 §5.1.2: a size is given up after MAX_PROBES losses, not after one.
#[test]
fn a_probe_lost_by_chance_is_sent_again() {
    let mut path = TestPath::new(1_472, 1_472);
    path.probe();
    for _ in 0..2 {
        let size = path.mtu.poll_probe(path.now).expect("one is due");
        path.mtu.probe_sent(path.now, 77, size, RTT);
        path.mtu.probe_lost(path.now + RTT, 77);
        path.now += RTT;
    }
    path.settle();
    assert_eq!(path.mtu.size(), 1_472);
}

/// RFC 8899 §5.1.1: PROBE_TIMER is at least a second, whatever the round trip.
#[test]
fn unanswered_probe_is_lost_after_the_timer() {
    let mut path = TestPath::new(1_200, 1_472);
    path.mtu.probe_sent(path.now, 0, BASE_SIZE, ms(20));
    assert_eq!(path.mtu.poll_timeout(), Some(path.now + PROBE_TIMER_MIN));
    path.mtu.handle_timeout(path.now + ms(999));
    assert_eq!(path.mtu.poll_probe(path.now + ms(999)), None);
    path.mtu.handle_timeout(path.now + PROBE_TIMER_MIN);
    assert!(path.mtu.poll_probe(path.now + PROBE_TIMER_MIN).is_some());
}

#[test]
fn a_verdict_on_another_probe_changes_nothing() {
    let mut path = TestPath::new(1_472, 1_472);
    path.mtu.probe_sent(path.now, 5, BASE_SIZE, RTT);
    for _ in 0..10 {
        path.mtu.probe_lost(path.now, 4);
    }
    assert_eq!(path.mtu.state(), MtuState::Base);
    assert_eq!(path.mtu.poll_probe(path.now), None);
}

/// RFC 8899 §4.3: a size that stops working is climbed down from within the time of three probes,
/// and the search finds the new one.
#[test]
fn a_black_hole_is_found_within_three_probes() {
    let mut path = settled(1_472, 1_472);
    path.carries = 1_400;
    path.traffic(true);
    assert_eq!(path.mtu.state(), MtuState::Confirming);
    let (began, before) = (path.now, path.probes.len());
    for _ in 0..3 {
        assert_eq!(path.mtu.state(), MtuState::Confirming);
        assert_eq!(
            path.mtu.size(),
            BASE_SIZE,
            "nothing longer is sent in doubt"
        );
        path.probe();
    }
    assert_eq!(path.mtu.state(), MtuState::Searching);
    assert_eq!(path.mtu.size(), BASE_SIZE);
    assert!(path.now.since(began) <= RTT * 3 / 2 * 3);
    assert!(path.probes[before..].iter().all(|(_, size)| *size == 1_472));
    path.settle();
    assert!(
        (1_393..=1_400).contains(&path.mtu.size()),
        "{}",
        path.mtu.size()
    );
    assert_eq!(path.mtu.black_holes(), 1);
}

/// Black hole detection by the timer alone, when the user reports no lost probes.
#[test]
fn timer_detects_a_black_hole() {
    let mut path = settled(1_472, 1_472);
    path.verdicts = false;
    path.carries = 1_400;
    path.traffic(true);
    let began = path.now;
    while path.mtu.state() == MtuState::Confirming {
        assert!(path.probe());
    }
    assert_eq!(path.mtu.size(), BASE_SIZE);
    assert_eq!(path.now.since(began), PROBE_TIMER_MIN * 3);
}

/// Random loss is no black hole: acknowledged full packets speak for the size.
#[test]
fn random_loss_does_not_make_packets_small() {
    let mut path = settled(1_472, 1_472);
    path.loss = 0.2;
    for _ in 0..1_000 {
        path.traffic(true);
        path.probe();
    }
    assert_eq!((path.mtu.size(), path.mtu.black_holes()), (1_472, 0));
}

/// An outage drops all packets of any size: once the path is back, its previous size is tried
/// first.
#[test]
fn old_size_returns_at_once_after_outage() {
    let mut path = settled(1_400, 1_472);
    let found = path.mtu.size();
    path.carries = 0;
    path.traffic(false);
    while path.mtu.state() != MtuState::Error {
        assert!(path.probe());
    }
    assert_eq!(path.mtu.size(), BASE_SIZE);
    path.carries = 1_400;
    path.now = path.mtu.poll_timeout().expect("it tries again");
    let before = path.probes.len();
    path.probe();
    path.probe();
    let sizes: Vec<_> = path.probes[before..]
        .iter()
        .map(|(_, size)| *size)
        .collect();
    assert_eq!(sizes, [BASE_SIZE, found]);
    assert_eq!(path.mtu.size(), found);
}

/// RFC 8899 §5.2: ERROR keeps trying the base size, and not all the time.
#[test]
fn dead_path_is_probed_occasionally() {
    let mut path = TestPath::new(0, 1_472);
    path.settle();
    assert_eq!(path.mtu.state(), MtuState::Error);
    for _ in 0..10 {
        let due = path.mtu.poll_timeout().expect("it tries again");
        assert!(due <= path.now + RETRY_AFTER);
        path.now = due;
        path.settle();
        assert_eq!(path.mtu.size(), BASE_SIZE);
    }
    let span = path.probes[path.probes.len() - 1].0.since(path.probes[2].0);
    assert!(span >= RETRY_AFTER * 9, "{span:?}");
}

/// RFC 8899 §5.1.1: PMTU_RAISE_TIMER.
#[test]
fn growing_path_is_noticed_after_raise_timer() {
    let mut path = settled(1_400, 1_472);
    path.carries = 1_472;
    let due = path.mtu.poll_timeout().expect("it is below the maximum");
    assert_eq!(due, path.now + RAISE_AFTER);
    assert_eq!(path.mtu.poll_probe(due - ms(1)), None);
    path.now = due;
    path.settle();
    assert_eq!(path.mtu.size(), 1_472);
}

/// RFC 8899 §5.1.1: CONFIRMATION_TIMER, for a path that only small packets use.
#[test]
fn unused_size_is_confirmed_occasionally() {
    let mut path = settled(1_472, 1_472);
    path.now += CONFIRM_AFTER;
    assert_eq!(path.mtu.poll_probe(path.now), None, "nobody uses the path");
    path.mtu.acked(path.now, 100);
    assert!(path.probe());
    assert_eq!(path.probes.last().map(|(_, size)| *size), Some(1_472));
    assert_eq!(path.mtu.state(), MtuState::Complete);
    assert_eq!(path.mtu.poll_probe(path.now), None);
}

/// RFC 8899 §5.3.3: a probe that was given up and arrives after all is believed.
#[test]
fn a_late_acknowledgement_of_a_probe_counts() {
    let mut path = settled(1_300, 1_472);
    assert!(path.mtu.size() < 1_472);
    path.mtu.probe_acked(path.now, 1_472);
    assert_eq!(
        (path.mtu.state(), path.mtu.size()),
        (MtuState::Complete, 1_472)
    );
}

#[test]
fn size_refused_by_host_is_not_retried() {
    let mut path = TestPath::new(9_000, 9_000);
    path.probe();
    assert_eq!(path.mtu.poll_probe(path.now), Some(9_000));
    path.mtu.refused(path.now, 9_000);
    let next = path.mtu.poll_probe(path.now).expect("a smaller one");
    assert!((BASE_SIZE..9_000).contains(&next));
    // A route to a smaller interface: even what was in use is refused.
    path.settle();
    path.carries = 1_472;
    path.mtu.refused(path.now, path.mtu.size());
    assert_eq!(path.mtu.size(), BASE_SIZE);
    path.settle();
    assert!((1_465..=1_472).contains(&path.mtu.size()));
}

#[test]
fn another_maximum_is_taken_at_once() {
    let mut path = settled(1_472, 1_472);
    path.mtu.set_max(path.now, 1_300);
    assert_eq!(
        (path.mtu.state(), path.mtu.size()),
        (MtuState::Complete, 1_300)
    );
    path.mtu.set_max(path.now, 1_472);
    assert_eq!(path.mtu.state(), MtuState::Searching);
    path.settle();
    assert_eq!(path.mtu.size(), 1_472);
}
