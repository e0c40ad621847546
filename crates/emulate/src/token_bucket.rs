//! Token buckets: the arithmetic of a policer, which drops packets without enough tokens, and of a
//! shaper, which delays them until there are enough.
//!
//! One bit is 10⁹ tokens, so that a bucket of `rate` bit/s gains `rate` tokens in a nanosecond:
//! whole numbers, nothing is rounded. A second bucket, if there is one, limits how fast a burst may
//! be; a packet needs its length in tokens of every bucket, and takes them from each (the two
//! buckets of RFC 2698, "green" passing and all else not, and of tbf(8)). A packet that does not
//! pass takes nothing, also not a "yellow" one, which takes its length out of the peak bucket in
//! RFC 2698 §3: it never reaches the line. Linux's `act_police` does the same.
//!
//! It holds no packets.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, Time};

use crate::config::{PeakBucket, TokenBucket};

/// The tokens of one byte.
const TOKENS_PER_BYTE: u128 = 8 * 1_000_000_000;

/// One or two buckets that must agree.
#[derive(Clone, Debug)]
pub(crate) struct TokenBuckets {
    main: BucketState,
    peak: Option<BucketState>,
}

impl TokenBuckets {
    /// Full buckets.
    pub(crate) fn new(config: TokenBucket, now: Time) -> Self {
        Self {
            main: BucketState::full(now, config.rate, config.burst),
            peak: config.peak.map(|peak| BucketState::of_peak(now, peak)),
        }
    }

    /// Takes other settings at `now`. Tokens that are there stay as far as the new bucket holds
    /// them; a second bucket that was not there comes full.
    pub(crate) fn set(&mut self, now: Time, config: TokenBucket) {
        self.main.set(now, config.rate, config.burst);
        self.peak = match (self.peak.take(), config.peak) {
            (Some(mut bucket), Some(peak)) => {
                bucket.set(now, peak.rate, peak.burst);
                Some(bucket)
            }
            (None, Some(peak)) => Some(BucketState::of_peak(now, peak)),
            (_, None) => None,
        };
    }

    /// Tells whether a packet of `length` bytes can ever pass; it must not be longer than any
    /// bucket.
    pub(crate) fn fits(&self, length: u64) -> bool {
        let fits = |bucket: &BucketState| tokens_of(length) <= bucket.depth;
        fits(&self.main) && self.peak.as_ref().is_none_or(fits)
    }

    /// Takes tokens for a packet of `length` bytes at `now`; returns `false` and takes none where
    /// there are too few.
    pub(crate) fn conforms(&mut self, now: Time, length: u64) -> bool {
        let conforms = self.ready_at(now, length) == Some(now);
        if conforms {
            self.take(now, length);
        }
        conforms
    }

    /// First nanosecond, not before `now`, at which every bucket holds `length` bytes. `None` if
    /// that never happens: the packet is longer than a bucket, or a bucket does not fill.
    pub(crate) fn ready_at(&self, now: Time, length: u64) -> Option<Time> {
        let main = self.main.ready_at(length)?;
        let peak = match &self.peak {
            Some(bucket) => bucket.ready_at(length)?,
            None => now,
        };
        Some(now.max(main).max(peak))
    }

    /// Long-term fill rate.
    pub(crate) fn rate(&self) -> Bitrate {
        Bitrate::from_bits_per_second(self.main.rate)
    }

    /// Takes the tokens of `length` bytes out of every bucket at `at`, when they are there.
    pub(crate) fn take(&mut self, at: Time, length: u64) {
        self.main.take(at, length);
        if let Some(bucket) = &mut self.peak {
            bucket.take(at, length);
        }
    }
}

/// One bucket.
#[derive(Clone, Debug)]
struct BucketState {
    /// Tokens per nanosecond.
    rate: u64,
    /// Size of the bucket.
    depth: u128,
    /// Tokens in the bucket at `at`.
    tokens: u128,
    at: Time,
}

impl BucketState {
    fn full(now: Time, rate: Bitrate, burst: ByteCount) -> Self {
        let depth = tokens_of(burst.bytes());
        Self {
            rate: rate.bits_per_second(),
            depth,
            tokens: depth,
            at: now,
        }
    }

    fn of_peak(now: Time, peak: PeakBucket) -> Self {
        Self::full(now, peak.rate, peak.burst)
    }

    fn set(&mut self, now: Time, rate: Bitrate, burst: ByteCount) {
        self.fill(now);
        self.rate = rate.bits_per_second();
        self.depth = tokens_of(burst.bytes());
        self.tokens = self.tokens.min(self.depth);
    }

    fn ready_at(&self, length: u64) -> Option<Time> {
        let need = tokens_of(length);
        if need > self.depth {
            return None;
        }
        let missing = need.saturating_sub(self.tokens);
        if missing == 0 {
            return Some(self.at);
        }
        if self.rate == 0 {
            return None;
        }
        let nanoseconds = missing.div_ceil(u128::from(self.rate));
        Some(self.at + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }

    fn take(&mut self, at: Time, length: u64) {
        self.fill(at);
        let need = tokens_of(length);
        assert!(need <= self.tokens, "tokens are taken when they are there");
        self.tokens -= need;
    }

    fn fill(&mut self, now: Time) {
        let gained = now.since(self.at).as_nanos() * u128::from(self.rate);
        self.tokens = (self.tokens + gained).min(self.depth);
        self.at = self.at.max(now);
    }
}

fn tokens_of(bytes: u64) -> u128 {
    u128::from(bytes) * TOKENS_PER_BYTE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rate: u64, burst: u64) -> TokenBucket {
        TokenBucket {
            rate: Bitrate::from_bits_per_second(rate),
            burst: ByteCount::new(burst),
            peak: None,
        }
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut bucket = TokenBuckets::new(config(8_000_000, 3_000), Time::ZERO);
        assert!(bucket.conforms(Time::ZERO, 1_500));
        assert!(bucket.conforms(Time::ZERO, 1_500));
        // 1,500 bytes at 8 Mbit/s take 1.5 ms, to the nanosecond.
        assert!(!bucket.conforms(Time::from_nanos(1_499_999), 1_500));
        assert!(bucket.conforms(Time::from_nanos(1_500_000), 1_500));
    }

    #[test]
    fn nonconforming_packet_takes_no_tokens() {
        let mut bucket = TokenBuckets::new(config(8_000_000, 1_500), Time::ZERO);
        assert!(bucket.conforms(Time::ZERO, 1_000));
        assert!(!bucket.conforms(Time::ZERO, 501));
        assert!(bucket.conforms(Time::ZERO, 500));
    }

    #[test]
    fn a_peak_spaces_the_packets_of_a_burst() {
        let peak = PeakBucket {
            rate: Bitrate::from_bits_per_second(12_000_000),
            burst: ByteCount::new(1_500),
        };
        let with_peak = TokenBucket {
            peak: Some(peak),
            ..config(1_000_000, 15_000)
        };
        let mut bucket = TokenBuckets::new(with_peak, Time::ZERO);
        let mut now = Time::ZERO;
        for index in 0..10 {
            now = bucket.ready_at(now, 1_500).unwrap();
            assert_eq!(now, Time::from_nanos(index * 1_000_000));
            bucket.take(now, 1_500);
        }
        // The burst is spent: what it gained in 9 ms at 1 Mbit/s is 1,125 bytes, 375 are missing.
        assert_eq!(
            bucket.ready_at(now, 1_500),
            Some(Time::from_nanos(12_000_000))
        );
        assert_eq!(bucket.ready_at(now, 1_501), None);
    }

    #[test]
    fn a_change_keeps_the_tokens_that_fit() {
        let mut bucket = TokenBuckets::new(config(8_000_000, 3_000), Time::ZERO);
        bucket.take(Time::ZERO, 2_000);
        bucket.set(Time::ZERO, config(8_000, 10_000));
        assert_eq!(
            bucket.ready_at(Time::ZERO, 2_000),
            Some(Time::from_nanos(1_000_000_000))
        );
        bucket.set(Time::ZERO, config(0, 500));
        assert!(bucket.conforms(Time::ZERO, 500));
        assert_eq!(bucket.ready_at(Time::ZERO, 500), None);
    }
}
