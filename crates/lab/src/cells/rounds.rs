//! Rounds of lanes that must not warm up while another one measures.
//!
//! ```text
//!  lane 1   start ─ warm-up ─ wait ─────────────┬─ measure ──────┬─ start ─ …
//!  lane 2   start ─── wait ── warm-up ─ wait ───┼─ measure ───┬──┼─ start ─ …
//!  lane 3   start ─────────── wait ── warm-up ──┴─ measure ─┬─┴──┴─ start ─ …
//! ```
//! The warm-up of a series may fill its link, and takes the processors that another series measures with. So
//! only one lane warms up at a time, while none measures, and all lanes begin to measure together. A lane without a
//! further series leaves, and the others wait for it no longer.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Rounds of the lanes of one group.
pub(super) struct LaneRounds {
    state: Mutex<RoundState>,
    changed: Condvar,
}

struct RoundState {
    /// Lanes that take part.
    lanes: usize,
    is_warming: bool,
    /// Lanes that wait for the others to begin to measure.
    ready: usize,
    measuring: usize,
    /// Number of rounds that have begun.
    round: u64,
}

/// A lane that takes part in rounds, until it is dropped.
pub(super) struct RoundMember<'a>(Option<&'a LaneRounds>);

/// A lane that warms up, until it is dropped.
pub(super) struct WarmingLane<'a>(Option<&'a LaneRounds>);

/// A lane that measures, until it is dropped.
pub(super) struct MeasuringLane<'a>(Option<&'a LaneRounds>);

impl LaneRounds {
    /// Rounds of so many lanes.
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            state: Mutex::new(RoundState {
                lanes,
                is_warming: false,
                ready: 0,
                measuring: 0,
                round: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Takes the part of one of the lanes.
    pub(super) fn join(&self) -> RoundMember<'_> {
        RoundMember(Some(self))
    }

    fn locked(&self) -> MutexGuard<'_, RoundState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, waits: impl Fn(&RoundState) -> bool) -> MutexGuard<'_, RoundState> {
        let waited = self.changed.wait_while(self.locked(), |state| waits(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut RoundState)) {
        change(&mut self.locked());
        self.changed.notify_all();
    }
}

impl RoundState {
    /// Begins a round if all lanes are ready for it.
    fn begin_if_ready(&mut self) {
        if self.ready > 0 && self.ready >= self.lanes {
            self.measuring = std::mem::take(&mut self.ready);
            self.round += 1;
        }
    }
}

impl<'a> RoundMember<'a> {
    /// A lane that waits for no others.
    pub(super) const fn alone() -> Self {
        Self(None)
    }

    /// Waits until no other lane warms up or measures.
    pub(super) fn warm_up(&self) -> WarmingLane<'a> {
        if let Some(rounds) = self.0 {
            let mut state = rounds.wait_while(|state| state.is_warming || state.measuring > 0);
            state.is_warming = true;
        }
        WarmingLane(self.0)
    }

    /// Waits until all lanes are ready to measure.
    pub(super) fn measure(&self) -> MeasuringLane<'a> {
        if let Some(rounds) = self.0 {
            let mut round = 0;
            rounds.change(|state| {
                round = state.round;
                state.ready += 1;
                state.begin_if_ready();
            });
            drop(rounds.wait_while(|state| state.round == round));
        }
        MeasuringLane(self.0)
    }
}

impl Drop for RoundMember<'_> {
    fn drop(&mut self) {
        if let Some(rounds) = self.0 {
            rounds.change(|state| {
                state.lanes -= 1;
                state.begin_if_ready();
            });
        }
    }
}

impl Drop for WarmingLane<'_> {
    fn drop(&mut self) {
        if let Some(rounds) = self.0 {
            rounds.change(|state| state.is_warming = false);
        }
    }
}

impl Drop for MeasuringLane<'_> {
    fn drop(&mut self) {
        if let Some(rounds) = self.0 {
            rounds.change(|state| state.measuring -= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const LANES: usize = 3;

    /// Runs a lane with so many series in each of [`LANES`] threads.
    fn run(series: [usize; LANES], lane: impl Fn(&RoundMember<'_>) + Sync) {
        let rounds = LaneRounds::new(LANES);
        thread::scope(|scope| {
            for count in series {
                let (rounds, lane) = (&rounds, &lane);
                scope.spawn(move || {
                    let member = rounds.join();
                    for _ in 0..count {
                        lane(&member);
                    }
                });
            }
        });
    }

    #[test]
    fn one_lane_warms_up_while_none_measures() {
        let (warming, measuring) = (AtomicUsize::new(0), AtomicUsize::new(0));
        run([4, 2, 3], |member| {
            let turn = member.warm_up();
            assert_eq!(warming.fetch_add(1, Ordering::SeqCst), 0);
            thread::yield_now();
            assert_eq!(measuring.load(Ordering::SeqCst), 0);
            warming.fetch_sub(1, Ordering::SeqCst);
            drop(turn);
            let turn = member.measure();
            measuring.fetch_add(1, Ordering::SeqCst);
            thread::yield_now();
            assert_eq!(warming.load(Ordering::SeqCst), 0);
            measuring.fetch_sub(1, Ordering::SeqCst);
            drop(turn);
        });
    }

    #[test]
    fn lanes_measure_together() {
        let warmed = AtomicUsize::new(0);
        run([1; LANES], |member| {
            drop(member.warm_up());
            warmed.fetch_add(1, Ordering::SeqCst);
            let _turn = member.measure();
            assert_eq!(warmed.load(Ordering::SeqCst), LANES);
        });
    }

    #[test]
    fn failed_series_keep_no_lane_waiting() {
        let number = AtomicUsize::new(0);
        run([2; LANES], |member| {
            let turn = member.warm_up();
            if number.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                // The nodes did not start.
                return;
            }
            drop(turn);
            drop(member.measure());
        });
    }
}
