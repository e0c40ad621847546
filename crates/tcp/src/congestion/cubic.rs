//! CUBIC, RFC 9438, with the parameters of Linux.
//!
//! ```text
//!  W_cubic(t) = C * (t - K)^3 + W_max,   K = cbrt((W_max - cwnd_epoch) / C)
//! ```
//!
//! Differences from the RFC, all as Linux behaves: targets are whole segments; the target is one
//! least RTT (not one smoothed RTT) ahead; before the first loss the window grows by at least 5 % in
//! each round trip; a retransmission time-out forgets W_max; and the window after a loss is
//! 717/1024 of the one before, not 0.7.

use std::time::Duration;

use vocab::Time;

use super::hystart::HystartDetector;

/// C in segments per second cubed, RFC 9438 §5.1; Linux's 41 * 10 / 1024.
const SCALE: f64 = 410.0 / 1_024.0;
/// The multiplicative decrease, RFC 9438 §4.6, in 1024ths.
const BETA: u32 = 717;
const BETA_UNIT: u32 = 1_024;
/// Slowest growth before the first loss: a segment for this many acknowledged ones.
const NEEDED_BEFORE_LOSS: u32 = 20;
/// Fastest growth: a segment for this many acknowledged ones, which is RFC 9438 §4.2's 1.5 * cwnd.
const NEEDED_LEAST: u32 = 2;
/// Time after the start of an epoch in which RTT samples are those of a queue that drains.
const SAMPLES_DISCARDED: Duration = Duration::from_secs(1);

/// A tick of Linux's timer at 250 Hz.
const TICK: Duration = Duration::from_millis(4);
/// Ticks for which the growth of an unchanged window stays as computed (HZ / 32).
const TICKS_KEPT: u64 = 7;

/// State of CUBIC between two losses.
#[derive(Clone, Debug)]
pub(crate) struct CubicState {
    /// W_max, the window before the last reduction; 0 before the first one.
    most: u32,
    epoch: Option<CubicEpoch>,
    least_delay: Option<Duration>,
    hystart: Option<HystartDetector>,
    /// The latest computation of the growth.
    growth: Option<GrowthRecord>,
}

/// Growth that was computed, with the window and the tick of the time.
#[derive(Clone, Copy, Debug)]
struct GrowthRecord {
    window: u32,
    tick: u64,
    needed: u32,
}

/// Time since the start of congestion avoidance after a reduction.
#[derive(Clone, Copy, Debug)]
struct CubicEpoch {
    start: Time,
    /// K in seconds.
    until_plateau: f64,
    plateau: u32,
    /// W_est and the acknowledged segments that count towards its next one, RFC 9438 §4.3.
    friendly: u32,
    friendly_credit: u32,
}

impl CubicState {
    pub(crate) fn new(hystart: bool) -> Self {
        Self {
            most: 0,
            epoch: None,
            least_delay: None,
            hystart: hystart.then(HystartDetector::default),
            growth: None,
        }
    }

    /// Acknowledged segments for which the window grows by one.
    pub(crate) fn segments_for_increase(
        &mut self,
        now: Time,
        window: u32,
        acknowledged: u32,
    ) -> u32 {
        let tick = tick_of(now);
        if let Some(epoch) = &mut self.epoch {
            epoch.friendly_credit += acknowledged;
        }
        let latest = self.growth;
        if let Some(latest) = latest
            && latest.window == window
            && tick - latest.tick <= TICKS_KEPT
        {
            return latest.needed;
        }
        let is_new_epoch = self.epoch.is_none();
        let most = self.most;
        let epoch = self.epoch.get_or_insert_with(|| {
            let below = most.saturating_sub(window);
            CubicEpoch {
                start: now,
                until_plateau: (f64::from(below) / SCALE).cbrt(),
                plateau: most.max(window),
                friendly: window,
                friendly_credit: acknowledged,
            }
        });
        let ahead = self.least_delay.unwrap_or_default();
        let same_tick = latest.filter(|latest| latest.tick == tick && !is_new_epoch);
        let mut needed = match same_tick {
            Some(latest) => latest.needed,
            None => epoch.needed(now, ahead, window, most),
        };
        let friendly = epoch.friendly_window(window);
        if friendly > window {
            needed = needed.min(window / (friendly - window));
        }
        needed = needed.max(NEEDED_LEAST);
        self.growth = Some(match same_tick {
            Some(latest) => GrowthRecord { needed, ..latest },
            None => GrowthRecord {
                window,
                tick,
                needed,
            },
        });
        needed
    }

    /// Threshold after a loss, with RFC 9438 §4.7 (Fast Convergence).
    pub(crate) fn reduce(&mut self, window: u32) -> u32 {
        self.epoch = None;
        self.most = if window < self.most {
            (u64::from(window) * u64::from(BETA_UNIT + BETA) / u64::from(2 * BETA_UNIT)) as u32
        } else {
            window
        };
        (u64::from(window) * u64::from(BETA) / u64::from(BETA_UNIT)) as u32
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.hystart.is_some());
    }

    /// Takes an RTT sample; `true` ends slow start.
    pub(crate) fn on_rtt(
        &mut self,
        now: Time,
        rtt: Duration,
        in_slow_start: bool,
        window: u32,
        (acknowledged, next): (u64, u64),
    ) -> bool {
        let is_draining = self
            .epoch
            .is_some_and(|epoch| now.since(epoch.start) < SAMPLES_DISCARDED);
        if is_draining {
            return false;
        }
        let least = self.least_delay.map_or(rtt, |least| least.min(rtt));
        self.least_delay = Some(least);
        match &mut self.hystart {
            Some(hystart) if in_slow_start => {
                hystart.ends_slow_start(now, rtt, least, window, (acknowledged, next))
            }
            _ => false,
        }
    }

    pub(crate) fn on_restart(&mut self, now: Time, idle_since: Time) {
        if let Some(epoch) = &mut self.epoch {
            let shifted = epoch.start + now.since(idle_since);
            epoch.start = shifted.min(now);
        }
    }
}

/// Number of the tick of Linux's timer, at 250 Hz.
fn tick_of(now: Time) -> u64 {
    now.as_nanos() / TICK.as_nanos() as u64
}

impl CubicEpoch {
    /// Acknowledged segments for a larger window by the cubic function alone.
    fn needed(&self, now: Time, ahead: Duration, window: u32, most: u32) -> u32 {
        let target = self.target(now.since(self.start) + ahead);
        // RFC 9438 §4.4 (Concave Region), §4.5 (Convex Region).
        let needed = match target.checked_sub(window) {
            Some(more) if more > 0 => window / more,
            _ => window.saturating_mul(100),
        };
        if most == 0 {
            return needed.min(NEEDED_BEFORE_LOSS);
        }
        needed
    }

    /// W_cubic in whole segments, RFC 9438 §4.2 (Window Increase Function).
    fn target(&self, elapsed: Duration) -> u32 {
        let from_plateau = elapsed.as_secs_f64() - self.until_plateau;
        let distance = (SCALE * from_plateau.abs().powi(3)) as u32;
        if from_plateau < 0.0 {
            self.plateau.saturating_sub(distance)
        } else {
            self.plateau.saturating_add(distance)
        }
    }

    /// W_est, RFC 9438 §4.3 (Reno-Friendly Region): one segment for every
    /// (1 + beta) / (3 * (1 - beta)) windows, which Linux rounds down to 15/8.
    fn friendly_window(&mut self, window: u32) -> u32 {
        let eighths = 8 * (BETA_UNIT + BETA) / 3 / (BETA_UNIT - BETA);
        let each = (u64::from(window) * u64::from(eighths) / 8).max(1) as u32;
        while self.friendly_credit > each {
            self.friendly_credit -= each;
            self.friendly += 1;
        }
        self.friendly
    }
}
