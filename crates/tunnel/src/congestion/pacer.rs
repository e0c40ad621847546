//! Pacer: a token bucket that the controller's rate fills.
//!
//! A sender with credit sends until it is used up and then waits until a quantum has accumulated,
//! so that wake-ups are limited to about one per millisecond. Credit accumulates while nothing is
//! sent, but only up to a bounded burst, so that an idle sender does not start with a burst of
//! packets.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, Time};

/// Delay of a late wake-up that the sender may catch up with at once. A busy host wakes up 1–5 ms
/// late, and without the allowance that time would be lost to the flow.
const CATCH_UP: Duration = Duration::from_millis(5);

/// Spaces packets by a rate that may change at any time.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Bitrate,
    quantum: u64,
    /// Time of the last credit update.
    updated_at: Time,
    /// Bytes that may be sent at `updated_at`, less those sent beyond them.
    credit: i64,
    /// Remainder of rounding to whole bytes, in billionths of a bit.
    remainder: u128,
}

impl Pacer {
    /// A pacer whose first quantum may leave at once.
    #[must_use]
    pub fn new(now: Time, rate: Bitrate, quantum: u64) -> Self {
        Self {
            rate,
            quantum,
            updated_at: now,
            credit: signed(quantum),
            remainder: 0,
        }
    }

    /// Takes another rate and quantum from `now` on; the credit so far was earned at the old one.
    pub fn set(&mut self, now: Time, rate: Bitrate, quantum: u64) {
        self.update(now);
        self.rate = rate;
        self.quantum = quantum;
        self.credit = self.credit.min(self.burst());
    }

    /// Returns the time at which the next packet may be sent: `None` means now. A packet may be
    /// sent whole while any credit is left, and the debt is repaid before the next.
    pub fn delay(&mut self, now: Time) -> Option<Time> {
        self.update(now);
        if self.credit > 0 {
            return None;
        }
        let wanted = signed(self.quantum.max(1)).saturating_sub(self.credit);
        let wait = self.rate.time_for(ByteCount::new(wanted.unsigned_abs()));
        Some(now + wait.max(Duration::from_nanos(1)))
    }

    /// Takes note of a packet that left at `now`.
    pub fn sent(&mut self, now: Time, bytes: u64) {
        self.update(now);
        self.credit = self.credit.saturating_sub(signed(bytes));
    }

    /// The most credit that gathers: a quantum, and what a late wake-up has missed.
    fn burst(&self) -> i64 {
        signed(
            self.quantum
                .saturating_add(self.rate.bytes_in(CATCH_UP).bytes()),
        )
    }

    fn update(&mut self, now: Time) {
        let passed = now.since(self.updated_at);
        if passed.is_zero() {
            return;
        }
        self.updated_at = now;
        let earned = u128::from(self.rate.bits_per_second()) * passed.as_nanos() + self.remainder;
        let bytes = earned / 8_000_000_000;
        self.remainder = earned % 8_000_000_000;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(bytes).min(self.burst());
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Bitrate = Bitrate::from_bits_per_second(12_000_000);

    /// Sends 1500-byte packets whenever it may, for `span`, and says how many bytes left.
    fn send_for(pacer: &mut Pacer, mut now: Time, span: Duration) -> u64 {
        let end = now + span;
        let mut sent = 0;
        loop {
            match pacer.delay(now) {
                None => {
                    pacer.sent(now, 1500);
                    sent += 1500;
                }
                Some(at) => now = at,
            }
            if now >= end {
                return sent;
            }
        }
    }

    #[test]
    fn the_rate_is_kept_to_a_quantum() {
        let mut pacer = Pacer::new(Time::ZERO, RATE, 3000);
        let sent = send_for(&mut pacer, Time::ZERO, Duration::from_secs(10));
        let ideal = 15_000_000;
        assert!(sent.abs_diff(ideal) <= 4500, "{sent} of {ideal}");
    }

    #[test]
    fn a_wake_up_is_worth_a_quantum() {
        let mut pacer = Pacer::new(Time::ZERO, RATE, 6000);
        let (mut now, mut wake_ups) = (Time::ZERO, 0);
        while now < Time::ZERO + Duration::from_secs(1) {
            match pacer.delay(now) {
                None => pacer.sent(now, 1500),
                Some(at) => {
                    assert!(at > now);
                    now = at;
                    wake_ups += 1;
                }
            }
        }
        // 1.5 MB in a second, 6 kB each time.
        assert!((240..=260).contains(&wake_ups), "{wake_ups}");
    }

    #[test]
    fn an_idle_sender_starts_with_a_bounded_burst() {
        let mut pacer = Pacer::new(Time::ZERO, RATE, 3000);
        let later = Time::ZERO + Duration::from_secs(60);
        let mut burst = 0;
        while pacer.delay(later).is_none() {
            pacer.sent(later, 1500);
            burst += 1500;
        }
        // A quantum, 5 ms of the rate, and the packet that takes the credit below zero.
        assert!((3000..=3000 + 7500 + 1500).contains(&burst), "{burst}");
    }

    #[test]
    fn a_new_rate_holds_from_its_moment_on() {
        let mut pacer = Pacer::new(Time::ZERO, RATE, 1500);
        let half = Duration::from_secs(1);
        send_for(&mut pacer, Time::ZERO, half);
        let slow = Bitrate::from_bits_per_second(1_200_000);
        pacer.set(Time::ZERO + half, slow, 1500);
        let sent = send_for(&mut pacer, Time::ZERO + half, Duration::from_secs(10));
        assert!(sent.abs_diff(1_500_000) <= 4500, "{sent}");
    }

    #[test]
    fn zero_rate_stops_without_division() {
        let mut pacer = Pacer::new(Time::ZERO, Bitrate::from_bits_per_second(0), 1500);
        assert_eq!(pacer.delay(Time::ZERO), None);
        pacer.sent(Time::ZERO, 1500);
        assert_eq!(pacer.delay(Time::ZERO), Some(Time::NEVER));
    }
}
