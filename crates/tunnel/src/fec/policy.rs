//! Repair policy: when to send repair symbols, how many, and over which run of source symbols.
//!
//! A bulk flow needs none: lost data is sent again while other data keeps the path full. A round
//! trip is lost where the sender has no more data, because nothing follows the last packets and the
//! loss is noticed only by the peer's answer: at the *tail* of an exchange or a transfer. So `Auto`
//! waits until the sender has no more data, and a moment longer, and then sends enough to make
//! another round trip unlikely.
//!
//! ```text
//!            sent()                     no more for RTT / 32, or 1 ms
//!  Talking ◄──────── Dry(since) ───────────────────────────► plan: run, count, spacing
//!     └── paused(Dry) ──►▲                                     └► poll_repair() each when due
//! ```
//!
//! The number follows from the measured losses ([`LossEstimate`]). It is bounded by a credit that
//! source symbols earn: a few times the loss rate, between 1 in 16 and 1 in 4, and two more for
//! each round trip. Where losses come in runs, repair symbols are spread over time, so that one run
//! does not take them along. While the queue builds up they are limited to 1 in 16. `On` also sends
//! some at all times, for users that cannot wait in the middle of a flow. Repair symbols are not
//! counted as load here; the transport counts them like any packet.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use vocab::Time;

use super::margin::{LossModel, repairs_needed};
use super::{LossEstimate, SYMBOLS_KEPT, WINDOW_LIMIT};

/// Share of tails that may need a round trip in spite of repair symbols: a fifth of what a 99th
/// percentile bears, so that it shows the path and not its losses.
const TAIL_FAILURE: f64 = 0.002;

/// Share of windows that may stay incomplete under `On`, between tails.
const CONTINUOUS_FAILURE: f64 = 0.01;

/// Credit that a source symbol earns, at least and at most: with little loss 6 % at a tail are
/// spent and not more, and with any loss no more than one for four source symbols.
const LEAST_SHARE: f64 = 1.0 / 16.0;
const MOST_SHARE: f64 = 1.0 / 4.0;

/// Credit per share of packets lost, times the mean run of losses: an exchange of 50 packets needs
/// about three times the losses it expects, longer ones less; and as losses gather in runs, the
/// same share of them hits fewer exchanges harder.
const SHARE_PER_LOSS: f64 = 4.0;

/// Credit that each round trip brings, and that the first tail has: a single packet may be sent
/// twice, and once more where losses are many.
const ALLOWANCE: f64 = 2.0;

/// Source symbols after which `On` looks at its losses again.
const RATIO_REFRESH: u64 = 64;

/// The share of a round trip for which a dry sender is given time to say more: 3 ms of 100 ms.
/// Longer would show in what an exchange takes, shorter would take each pause of an application
/// for its end.
const HOLD_SHARE: u32 = 32;

/// On no path is it given less, since a busy host leaves as much between two pieces of one transfer.
/// On a LAN, where a 32nd of a round trip is some microseconds, each of them would be a tail.
const HOLD_MIN: Duration = Duration::from_millis(1);

/// The part of a round trip over which repair symbols are spread at most.
const SPREAD_SHARE: u32 = 4;

/// Mean run of losses from which on repair symbols are spread.
const RUNS_SPREAD: f64 = 1.5;

/// Repair symbols that wait for their time, at most: those of all symbols that the encoder keeps, at
/// the greatest share.
const DUE_LIMIT: usize = SYMBOLS_KEPT / 4 + 2;

/// Operator's setting for repair symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepairMode {
    /// No repair symbols.
    Off,
    /// Repair symbols all the time, as many as the losses ask for.
    On,
    /// Repair symbols where a loss would cost a round trip.
    #[default]
    Auto,
}

/// Reason for a pause in sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseReason {
    /// No flow has anything to send.
    Dry,
    /// A flow has sent all its data, in the last source symbols; other flows continue.
    Exchange {
        /// Distance to its first packet, in source symbols.
        sources: u64,
    },
}

/// Trend of the path's queue according to the congestion controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueTrend {
    /// Short, or of unknown length.
    #[default]
    Short,
    /// It builds up: the sending rate exceeds the path's.
    Building,
}

/// The path as the transport knows it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathState {
    /// Smoothed round-trip time.
    pub round_trip: Duration,
    /// The time between packets at the rate they are paced with.
    pub packet_interval: Duration,
    /// Trend of the queue according to the congestion controller.
    pub queue: QueueTrend,
}

/// Decides about the repair symbols of one direction of a path.
#[derive(Debug)]
pub struct RepairPolicy {
    mode: RepairMode,
    path: PathState,
    losses: LossEstimate,
    credit: f64,
    credited_at: Option<Time>,
    /// End of the hold after the sender ran out of data.
    tail_at: Option<Time>,
    /// The first source symbol that no tail's plan covers.
    unprotected: u64,
    next: u64,
    due: VecDeque<(Time, Range<u64>)>,
    /// Runs of repair symbols that were planned, newest last; at most [`DUE_LIMIT`].
    planned: VecDeque<Range<u64>>,
    ratio: RepairRatio,
}

/// The steady stream of repair symbols under [`RepairMode::On`].
#[derive(Debug, Default)]
struct RepairRatio {
    per_source: f64,
    owed: f64,
    sources_until_refresh: u64,
}

impl RepairPolicy {
    /// A policy for a path that nothing is known of yet.
    #[must_use]
    pub fn new(mode: RepairMode) -> Self {
        Self {
            mode,
            path: PathState::default(),
            losses: LossEstimate::new(),
            credit: ALLOWANCE,
            credited_at: None,
            tail_at: None,
            unprotected: 0,
            next: 0,
            due: VecDeque::new(),
            planned: VecDeque::new(),
            ratio: RepairRatio::default(),
        }
    }

    /// Returns the operator's setting.
    #[must_use]
    pub fn mode(&self) -> RepairMode {
        self.mode
    }

    /// Sets the operator's mode. Repair symbols that are due are still sent unless it is
    /// [`RepairMode::Off`].
    pub fn set_mode(&mut self, mode: RepairMode) {
        self.mode = mode;
        match mode {
            RepairMode::Off => {
                self.due.clear();
                self.tail_at = None;
            }
            RepairMode::On | RepairMode::Auto => {}
        }
    }

    /// Takes the path's present state; wanted whenever it has changed notably.
    pub fn set_path(&mut self, path: PathState) {
        self.path = path;
    }

    /// Returns the estimate of the path's losses; recovery reports losses to it.
    pub fn losses(&mut self) -> &mut LossEstimate {
        &mut self.losses
    }

    /// Notes that the source symbol `number` was sent.
    pub fn sent(&mut self, now: Time, number: u64) {
        self.next = self.next.max(number.saturating_add(1));
        self.tail_at = None;
        self.earn(now, 1.0);
        match self.mode {
            RepairMode::Off | RepairMode::Auto => {}
            RepairMode::On => self.keep_ratio(now),
        }
    }

    /// Notes that nothing more is sent for now, whatever the reason.
    ///
    /// `outstanding` is the encoder's run of symbols that the peer may lack.
    pub fn paused(&mut self, now: Time, pause: PauseReason, outstanding: Range<u64>) {
        match self.mode {
            RepairMode::Off => return,
            RepairMode::On | RepairMode::Auto => {}
        }
        match pause {
            PauseReason::Dry => {
                let has_new = self.unprotected.max(outstanding.start) < outstanding.end;
                if has_new && self.tail_at.is_none() {
                    let hold = (self.path.round_trip / HOLD_SHARE).max(HOLD_MIN);
                    self.tail_at = Some(now + hold);
                }
            }
            // Others go on sending, so there is no silence to wait for.
            PauseReason::Exchange { sources } => {
                let first = outstanding.end.saturating_sub(sources);
                self.plan(now, outstanding.start.max(first)..outstanding.end);
            }
        }
    }

    /// The run for the next repair symbol, when one is due: give it to the encoder, which may find
    /// that nothing of it is outstanding any more.
    pub fn poll_repair(&mut self, now: Time, outstanding: Range<u64>) -> Option<Range<u64>> {
        if self.tail_at.is_some_and(|at| at <= now) {
            self.tail_at = None;
            self.plan(now, outstanding);
        }
        if self.due.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        self.due.pop_front().map(|(_, run)| run)
    }

    /// Returns the time at which [`poll_repair`](Self::poll_repair) has a repair symbol, if nothing
    /// else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.due.front().map(|(at, _)| *at);
        [due, self.tail_at].into_iter().flatten().min()
    }

    /// Plans repair symbols for the part of `outstanding` that is in no plan yet, over that part
    /// and the outstanding symbols before it.
    fn plan(&mut self, now: Time, outstanding: Range<u64>) {
        self.earn(now, 0.0);
        let oldest = outstanding
            .start
            .max(outstanding.end.saturating_sub(SYMBOLS_KEPT as u64));
        let mut from = self.unprotected.max(oldest);
        while from < outstanding.end {
            let end = outstanding.end.min(from + WINDOW_LIMIT);
            let window = oldest.max(end.saturating_sub(WINDOW_LIMIT))..end;
            let count = self.count(end - from, &window);
            self.schedule(now, count, window);
            from = end;
        }
        self.unprotected = self.unprotected.max(outstanding.end);
    }

    /// Number of repair symbols for a window whose last `fresh` symbols are in no plan yet.
    fn count(&self, fresh: u64, window: &Range<u64>) -> usize {
        let length = window.end - window.start;
        let affordable = self.affordable(length);
        let needed = |sources| {
            let most = (sources / 4 + 2) as usize;
            repairs_needed(sources, self.loss_model(), TAIL_FAILURE, most)
        };
        // Earlier plans help with the older part of the window, and not with the newer.
        let earlier = self.planned.iter().filter(|run| run.end > window.start);
        let missing = needed(length).saturating_sub(earlier.count());
        needed(fresh).max(missing).min(affordable)
    }

    fn affordable(&self, length: u64) -> usize {
        let credit = self.credit.max(0.0);
        match self.path.queue {
            QueueTrend::Short => credit as usize,
            QueueTrend::Building => credit.min(length as f64 * LEAST_SHARE) as usize,
        }
    }

    fn schedule(&mut self, now: Time, count: usize, window: Range<u64>) {
        let spacing = self.spacing(count);
        let mut at = now;
        for _ in 0..count {
            if self.due.len() == DUE_LIMIT {
                return;
            }
            let place = self.due.partition_point(|(other, _)| *other <= at);
            self.due.insert(place, (at, window.clone()));
            if self.planned.len() == DUE_LIMIT {
                self.planned.pop_front();
            }
            self.planned.push_back(window.clone());
            self.credit -= 1.0;
            at += spacing;
        }
    }

    /// The time between repair symbols: none, or so much that a run of losses, twice as long as the
    /// mean one, does not take all of them.
    fn spacing(&self, count: usize) -> Duration {
        let run = self.losses.mean_run();
        if run < RUNS_SPREAD || count < 2 {
            return Duration::ZERO;
        }
        let spread = self
            .path
            .packet_interval
            .mul_f64(2.0 * run)
            .min(self.path.round_trip / SPREAD_SHARE);
        spread / (count as u32 - 1)
    }

    fn earn(&mut self, now: Time, sources: f64) {
        let share = self.share();
        let waited = self.credited_at.map_or(Duration::ZERO, |at| now.since(at));
        self.credited_at = Some(now);
        let allowance = if self.path.round_trip.is_zero() {
            0.0
        } else {
            ALLOWANCE * waited.as_secs_f64() / self.path.round_trip.as_secs_f64()
        };
        let most = ALLOWANCE + share * SYMBOLS_KEPT as f64;
        self.credit = (self.credit + sources * share + allowance).min(most);
    }

    fn share(&self) -> f64 {
        let losses = self.losses.probability() * self.losses.mean_run();
        (SHARE_PER_LOSS * losses).clamp(LEAST_SHARE, MOST_SHARE)
    }

    fn loss_model(&self) -> LossModel {
        LossModel {
            probability: self.losses.probability(),
            mean_run: self.losses.mean_run(),
        }
    }

    /// One more source symbol under [`RepairMode::On`].
    fn keep_ratio(&mut self, now: Time) {
        if self.ratio.sources_until_refresh == 0 {
            self.ratio.sources_until_refresh = RATIO_REFRESH;
            let most = (WINDOW_LIMIT / 4) as usize;
            let losses = self.loss_model();
            let count = repairs_needed(WINDOW_LIMIT, losses, CONTINUOUS_FAILURE, most).max(1);
            self.ratio.per_source = count as f64 / WINDOW_LIMIT as f64;
        }
        self.ratio.sources_until_refresh -= 1;
        match self.path.queue {
            QueueTrend::Short => self.ratio.owed += self.ratio.per_source,
            QueueTrend::Building => self.ratio.owed = 0.0,
        }
        if self.ratio.owed >= 1.0 && self.due.len() < DUE_LIMIT {
            self.ratio.owed -= 1.0;
            let run = self.next.saturating_sub(WINDOW_LIMIT)..self.next;
            let place = self.due.partition_point(|(other, _)| *other <= now);
            self.due.insert(place, (now, run));
        }
    }
}
