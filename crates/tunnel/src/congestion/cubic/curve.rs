//! The window's way back: a cubic function of the time since the last congestion (RFC 9438 §4.2),
//! or what a Reno flow would have, where that is more (§4.3).

use std::time::Duration;

use vocab::Time;

/// Steepness of the curve, in packets per second cubed (RFC 9438 §5).
const C: f64 = 0.4;

/// Share of the window that remains after a congestion event (§4.6).
const BETA: f64 = super::BETA;

/// Position of the window on its curve.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CubicCurve {
    /// The window before the last reduction, bytes (W_max).
    before: f64,
    /// The window at the last reduction, bytes (cwnd_prior).
    reduced_from: f64,
    /// Start of the present stage of congestion avoidance, and the window then (cwnd_epoch).
    began_at: Option<Time>,
    began_with: f64,
    /// Seconds from there until the window is `before` again (K).
    back_after: f64,
    /// The window that Reno would have, bytes (W_est).
    reno: f64,
    /// Time at which the flow stopped using its window.
    paused_at: Option<Time>,
}

impl CubicCurve {
    /// Takes note of a reduction from `window` bytes.
    pub(super) fn congested(&mut self, window: f64) {
        // "Fast Convergence" (§4.7): a flow whose share shrinks leaves more to new ones.
        self.before = if window < self.before {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.reduced_from = window;
        self.began_at = None;
        self.paused_at = None;
    }

    /// Stops the curve's clock while the window is not used (§5.8).
    pub(super) fn pause(&mut self, now: Time) {
        self.paused_at.get_or_insert(now);
    }

    /// The window after `acked` more bytes.
    pub(super) fn grow(
        &mut self,
        now: Time,
        window: f64,
        acked: u64,
        rtt: Duration,
        packet: f64,
    ) -> f64 {
        if let (Some(paused_at), Some(began_at)) = (self.paused_at.take(), self.began_at) {
            self.began_at = Some(began_at + now.since(paused_at));
        }
        let began_at = *self.began_at.get_or_insert_with(|| {
            self.began_with = window;
            self.reno = window;
            self.before = self.before.max(window);
            self.back_after = cube_root((self.before - window) / packet / C);
            now
        });
        // "Reno-Friendly Region": its slope is such that losses at the same rate give the same
        // mean window, until it has grown past the old one and is Reno's own.
        let slope = if self.reno < self.reduced_from {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        self.reno += slope * acked as f64 / window * packet;
        let since = now.since(began_at).as_secs_f64();
        let current = self.at(since, packet);
        if current < self.reno {
            return self.reno.max(window);
        }
        // §4.2: at most half a window more in a round trip, and never less than now.
        let target = self
            .at(since + rtt.as_secs_f64(), packet)
            .clamp(window, window * 1.5);
        window + (target - window) * acked as f64 / window
    }

    /// Value of the curve, in bytes, `seconds` after its beginning (W_cubic).
    fn at(&self, seconds: f64, packet: f64) -> f64 {
        let offset = seconds - self.back_after;
        C * offset * offset * offset * packet + self.before
    }
}

/// The cube root by Newton's method, in operations whose results no platform's library changes.
fn cube_root(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let mut root = value.max(1.0);
    // Each step takes a third off until it is near, and then doubles the digits.
    for _ in 0..200 {
        let next = (2.0 * root + value / (root * root)) / 3.0;
        if (next - root).abs() <= root * 1e-12 {
            return next;
        }
        root = next;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_right() {
        for value in [1e-6_f64, 0.3, 1.0, 8.0, 27.0, 1e9, 1e18] {
            let root = cube_root(value);
            assert!((root * root * root / value - 1.0).abs() < 1e-9, "{value}");
        }
        assert_eq!(cube_root(0.0), 0.0);
        assert_eq!(cube_root(-1.0), 0.0);
    }

    #[test]
    fn window_recovers_after_k_as_in_rfc_9438() {
        // W_max 1000 packets, reduced to 700: K = cbrt(300 / 0.4) = 9.086 s.
        let mut curve = CubicCurve::default();
        curve.congested(1000.0 * 1500.0);
        let mut window = 700.0 * 1500.0;
        let rtt = Duration::from_millis(100);
        let mut crossed = None;
        for tick in 0..200 {
            let now = Time::ZERO + rtt * tick;
            window = curve.grow(now, window, window as u64, rtt, 1500.0);
            if window >= 995.0 * 1500.0 && crossed.is_none() {
                crossed = Some(f64::from(tick) / 10.0);
            }
        }
        let crossed = crossed.unwrap();
        // 5 packets below the top the curve is cbrt(5 / 0.4) = 2.32 s before K.
        assert!((crossed - (9.086 - 2.32)).abs() < 0.3, "{crossed}");
    }

    #[test]
    fn short_path_grows_at_least_like_reno() {
        // 20 packets and 10 ms: the cubic curve is flat here, Reno gains 0.53 packets a round.
        let mut curve = CubicCurve::default();
        curve.congested(20.0 * 1500.0);
        let mut window = 14.0 * 1500.0;
        let rtt = Duration::from_millis(10);
        for tick in 0..10 {
            let now = Time::ZERO + rtt * tick;
            window = curve.grow(now, window, window as u64, rtt, 1500.0);
        }
        let packets = window / 1500.0;
        assert!((packets - 19.3).abs() < 0.3, "{packets}");
    }

    #[test]
    fn time_without_use_does_not_count() {
        let mut curve = CubicCurve::default();
        curve.congested(1000.0 * 1500.0);
        let rtt = Duration::from_millis(100);
        let window = curve.grow(Time::ZERO, 1_050_000.0, 1500, rtt, 1500.0);
        let mut other = curve;
        curve.pause(Time::ZERO + rtt);
        let later = Time::ZERO + Duration::from_secs(60);
        let paused = curve.grow(later, window, 1500, rtt, 1500.0);
        let prompt = other.grow(Time::ZERO + rtt, window, 1500, rtt, 1500.0);
        assert!((paused - prompt).abs() < 1.0, "{paused} {prompt}");
    }
}
