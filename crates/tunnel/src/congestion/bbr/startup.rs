//! Start-up: the search for the path's rate, its end, the queue it leaves, and a start from memory
//! (draft-ietf-ccwg-bbr, "Startup", "Drain").
//!
//! Start-up ends when the delivery rate has stopped growing: for three rounds, for two in which a
//! queue builds, or for one in which losses or marks signal a full queue (then less than a doubling
//! is no growth). Rounds in which the sender lacked data or credit do not count, unless a queue of half a
//! round-trip time stands. Loss alone does not end it, unlike in the draft: while the rate still doubles,
//! the losses are not caused by a queue.
//!
//! A start from memory sends at the remembered rate from the first round on, paced. It accepts the
//! memory when a round has come back without contradiction, and then probes for more. A longer
//! round-trip time or losses halve the rate at once. The measured rate then counts as the path's
//! rate where a queue exists; otherwise start-up continues from it, since the losses may be the
//! path's own.

use std::time::Duration;

use vocab::Time;

use super::super::RememberedPath;
use super::super::event::DeliveryEvent;
use super::super::sample::RateSample;
use super::loss_floor::FLOOR_MAX;
use super::round_trips::FLOOR_QUEUE;
use super::{BbrController, BbrState};

/// Packets with which start-up begins when the round-trip time is known, over which it spreads them.
/// RFC 6928's ten are meant to leave at once. As many as other senders spread so (Chromium's QUIC
/// begins with 32); a path that they are too many for has less than 4 Mbit/s at 100 ms.
const STARTUP_WINDOW_PACKETS: u64 = 32;

/// Growth in a round below which the rate counts as no longer growing.
const GROWTH: f64 = 1.25;

/// Growth in a round of start-up that an empty path gives. A sender that pushes others aside in a
/// queue that is full grows too, but less, and its losses are the queue's.
const DOUBLING: f64 = 1.6;

/// Rounds without growth that end a search (draft, "Exiting Acceleration Based on Bandwidth
/// Plateau").
const PLATEAU_ROUNDS: u32 = 3;

/// As many where a queue has built meanwhile, half a round-trip time long.
const PLATEAU_ROUNDS_WITH_QUEUE: u32 = 2;

/// Rounds without growth from which on losses end start-up where packets overtake each other: a rate is
/// taken over several rounds there, and one of them shows little of a doubling.
const SLOWING_ROUNDS_REORDERING: u32 = 2;

/// Rounds after losses ended start-up in which it is resumed when packets turn out to be reordered.
/// Before reordering is known, three later packets declare a packet lost.
const DOUBTED_ROUNDS: u64 = 8;

/// A queue this long, as a share of the round-trip time, is start-up's doing.
const STARTUP_QUEUE: f64 = 0.5;

/// Bursts of loss in a round before they can end start-up (BBRStartupFullLossCnt).
const STARTUP_RUNS: f64 = 6.0;

/// Gain with which the rate can double each round (BBR.StartupPacingGain).
pub(super) const STARTUP_GAIN: f64 = 2.77;

/// The share of the remembered rate with which a session resumes: a little below, so that a path
/// that has stayed the same has no queue.
const RESUME_SHARE: f64 = 0.95;

/// Data in flight while resuming, as a multiple of the remembered rate × RTT.
const RESUME_WINDOW: f64 = 1.25;

/// A round-trip time this much longer than the remembered one contradicts the memory.
const RESUME_RTT_GROWTH: f64 = 1.25;

/// A path so much shorter than the remembered one is another path.
const RESUME_RTT_SHRINK: f64 = 0.5;

/// Losses in the first round above this share contradict the memory: a path may lose as much by
/// itself, and nothing is known of that yet.
const RESUME_LOSS: f64 = 0.15;

/// Packets acknowledged or lost before losses are judged while resuming.
const RESUME_EVIDENCE: f64 = 20.0;

/// A memory that was not tested for so long, for want of data, is not one of this path any more.
const MEMORY_TESTED_WITHIN: Duration = Duration::from_secs(30);

/// The search for the rate beyond which the path does not deliver more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullPipe {
    /// True once the full bandwidth was ever found (BBR.full_bw_reached).
    pub(super) is_reached: bool,
    /// True if the present search has found the full bandwidth (BBR.full_bw_now).
    pub(super) is_now: bool,
    baseline: f64,
    rounds: u32,
    /// True if the last round grew by less than start-up's doubling.
    is_slowing: bool,
}

impl FullPipe {
    /// Begins another search ("ResetFullBW").
    pub(super) fn restart(&mut self, baseline: f64) {
        self.is_now = false;
        self.baseline = baseline;
        self.rounds = 0;
    }

    /// Rounds since the rate last grew.
    pub(super) fn rounds_without_growth(&self) -> u32 {
        self.rounds
    }
}

/// A start from memory that has not been confirmed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CarefulResume {
    remembered: RememberedPath,
    /// Bytes per second, halved at each contradiction.
    rate: f64,
    contradiction: Option<ResumeContradiction>,
    started_at: Time,
}

/// Signal that contradicted the remembered rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResumeContradiction {
    /// A longer round-trip time: what comes back now is what the path carries.
    Queue,
    /// Losses, which may be the path's own.
    Loss,
}

impl BbrController {
    /// Begins the search with the first window spread over a round-trip time.
    pub(super) fn begin_startup(&mut self, rtt: Duration) {
        if self.resume.is_none() {
            let window = STARTUP_WINDOW_PACKETS * self.config.packet_bytes;
            self.window = self.window.max(window);
            self.pacing_rate = window as f64 / rtt.as_secs_f64().max(1e-6);
        }
    }

    /// The least rate of start-up: its window is to leave within a round-trip time. A rate is
    /// measured a round later than the window grows.
    pub(super) fn startup_rate(&self) -> f64 {
        match (self.state, self.round_trips.base()) {
            (BbrState::Startup, Some(base)) => self.window as f64 / base.as_secs_f64().max(1e-6),
            _ => 0.0,
        }
    }

    /// Sends from the start as this peer's path took it before.
    pub(super) fn resume_from(&mut self, now: Time, remembered: RememberedPath) {
        let rate = remembered.rate.bits_per_second() as f64 / 8.0 * RESUME_SHARE;
        let in_flight = rate * remembered.rtt.as_secs_f64() * RESUME_WINDOW;
        if in_flight <= self.window as f64 {
            return;
        }
        self.resume = Some(CarefulResume {
            remembered,
            rate,
            contradiction: None,
            started_at: now,
        });
        self.pacing_rate = rate;
        self.window = in_flight as u64;
    }

    /// "CheckFullBWReached".
    pub(super) fn check_full_pipe(&mut self, sample: &RateSample) {
        // A sender that the peer's credit limits counts as one without data. Where its packets stand in a long
        // queue all the same, the path does not carry more.
        let is_unknown = sample.is_application_limited && self.round_trips.queue() <= STARTUP_QUEUE;
        if self.full_pipe.is_now || !self.rounds.is_start || is_unknown {
            return;
        }
        let Some(rate) = sample.rate else { return };
        if rate >= self.full_pipe.baseline * GROWTH {
            let doubles = rate >= self.full_pipe.baseline * DOUBLING;
            let is_alone = doubles || self.round_trips.is_reordering();
            if is_alone && self.state == BbrState::Startup && self.resume.is_none() {
                self.floor.grew(self.rounds.count, self.loss_round.losses());
            }
            self.full_pipe.restart(rate);
            self.full_pipe.is_slowing = !is_alone;
            return;
        }
        self.full_pipe.rounds += 1;
        let slowing = if self.round_trips.is_spread_wide() {
            SLOWING_ROUNDS_REORDERING
        } else {
            1
        };
        self.full_pipe.is_slowing |= self.full_pipe.rounds >= slowing;
        if self.full_pipe.rounds >= PLATEAU_ROUNDS {
            self.full_pipe.is_now = true;
            self.full_pipe.is_reached = true;
        }
    }

    /// "CheckStartupDone".
    pub(super) fn check_startup(&mut self, now: Time, event: &DeliveryEvent<'_>) {
        if self.state != BbrState::Startup {
            return;
        }
        if self.resume.is_some() {
            self.check_resume(now, event);
            return;
        }
        let rounds = self.full_pipe.rounds_without_growth();
        let has_queue =
            rounds >= PLATEAU_ROUNDS_WITH_QUEUE && self.round_trips.queue() > STARTUP_QUEUE;
        let losses = self.loss_round.losses();
        // Nothing is said about growth while the sender lacks data; what it resends may be more
        // than the path carries all the same.
        let is_slowing = self.full_pipe.is_slowing
            || (self.sampler.is_application_limited() && losses.lost > losses.packets * FLOOR_MAX);
        let loses = is_slowing && self.loss_round.was_excessive() && losses.runs >= STARTUP_RUNS;
        if loses {
            // "Exiting Startup Based on Packet Loss".
            self.saved.state = Some(BbrState::Startup);
            self.startup_lost_in_round = Some(self.rounds.count);
            let delivered = self.loss_round.in_flight_latest;
            self.in_flight_long_term = self.bdp(1.0, self.rate_max()).max(delivered);
        }
        if has_queue || loses {
            self.full_pipe.is_reached = true;
        }
        if self.full_pipe.is_reached {
            if !loses {
                self.startup_lost_in_round = None;
            }
            self.cycle.built_queue =
                self.round_trips.queue() > FLOOR_QUEUE || self.round_trips.is_reordering();
            if !self.cycle.built_queue {
                self.floor.forget();
            }
            self.enter_drain();
        }
    }

    /// Resumes start-up after reordering was found. The losses that ended start-up a few rounds ago
    /// may have been late packets. It happens once in a connection, as some paths reorder only at
    /// times.
    pub(super) fn resume_startup(&mut self) {
        let ended = self.startup_lost_in_round.take();
        if self.is_startup_doubted
            || ended.is_none_or(|round| self.rounds.count > round + DOUBTED_ROUNDS)
            || matches!(self.state, BbrState::ProbeRtt { .. })
        {
            return;
        }
        self.is_startup_doubted = true;
        self.cycle.is_probe_sample = false;
        self.full_pipe = FullPipe::default();
        self.reset_short_term();
        self.in_flight_long_term = u64::MAX;
        self.floor.forget();
        self.enter(BbrState::Startup);
    }

    /// "Drain".
    pub(super) fn check_drain(&mut self, now: Time, in_flight: u64) {
        let BbrState::Drain { since_round } = self.state else {
            return;
        };
        if in_flight <= self.in_flight_for(1.0, self.rate()) || self.rounds.count > since_round + 3
        {
            self.start_down(now);
        }
    }

    fn enter_drain(&mut self) {
        self.enter(BbrState::Drain {
            since_round: self.rounds.count,
        });
    }

    fn check_resume(&mut self, now: Time, event: &DeliveryEvent<'_>) {
        let Some(mut resume) = self.resume else {
            return;
        };
        let remembered_rtt = resume.remembered.rtt.as_secs_f64();
        // Not by the first packets: where some overtake others these are the fastest.
        if self.rounds.count > 0
            && let Some(base) = self.round_trips.base()
            && base.as_secs_f64() < remembered_rtt * RESUME_RTT_SHRINK
        {
            // What is in flight suits a longer path; what is measured from here on suits this one.
            self.forget_resume();
            return;
        }
        let grown = self
            .round_trips
            .recent()
            .is_some_and(|rtt| rtt.as_secs_f64() > remembered_rtt * RESUME_RTT_GROWTH);
        let losses = self.loss_round.losses_so_far();
        let loses = losses.packets >= RESUME_EVIDENCE && losses.lost > losses.packets * RESUME_LOSS;
        if (grown || loses) && resume.contradiction.is_none() && event.reordering.is_none() {
            resume.contradiction = Some(if grown {
                ResumeContradiction::Queue
            } else {
                ResumeContradiction::Loss
            });
            resume.rate /= 2.0;
            self.resume = Some(resume);
            self.pacing_rate = resume.rate;
            self.window = (resume.rate * remembered_rtt * RESUME_WINDOW) as u64;
            self.window = self.window.max(self.window_min());
        }
        // One round counts from the first acknowledgement: by then all that it brings back was
        // sent at the remembered rate.
        if self.rounds.count < 2 || !self.rounds.is_start {
            return;
        }
        if self.sampler.is_application_limited() && resume.contradiction.is_none() {
            return;
        }
        let measured = self.rate_max();
        self.resume = None;
        match resume.contradiction {
            Some(ResumeContradiction::Queue) => {
                self.full_pipe.is_reached = true;
                self.enter_drain();
            }
            // The rate is sought from here on as by a start-up that has come so far.
            Some(ResumeContradiction::Loss) => self.full_pipe.restart(measured),
            None => {
                let is_confirmed = measured >= resume.rate * 0.5;
                if is_confirmed && now.since(resume.started_at) < MEMORY_TESTED_WITHIN {
                    self.full_pipe.is_reached = true;
                    self.floor.grew(self.rounds.count, self.loss_round.losses());
                    self.cycle.built_queue = true;
                    self.start_down(now);
                    self.start_refill();
                }
            }
        }
    }

    fn forget_resume(&mut self) {
        self.resume = None;
        self.window = self.window_min();
        if let Some(rtt) = self.round_trips.minimum() {
            self.begin_startup(rtt);
        }
    }

    /// The window while a memory is tested.
    pub(super) fn resume_window(&self) -> Option<u64> {
        self.resume.map(|resume| {
            let rtt = resume.remembered.rtt.as_secs_f64();
            (resume.rate * rtt * RESUME_WINDOW) as u64
        })
    }
}
