//! Counts frames that cost this end work and carry nothing: floods of RFC 9113 §10.5 (Denial-of-Service Considerations).
//!
//! The crate bounds headers, CONTINUATION frames and streams that are reset while they wait. It answers every PING and
//! every SETTINGS, and takes any number of resets and priorities; here they are counted by the second.

use std::time::Duration;

use vocab::Time;

/// Frames that a client may send at once. A browser that leaves a page resets a hundred streams.
const BURST: u32 = 1_000;
/// How long it takes until one more is allowed.
const REFILL: Duration = Duration::from_millis(10);
/// The client's first bytes (RFC 9113 §3.4, Connection Preface), which are no frame.
const PREFACE: usize = 24;
/// The header of a frame (RFC 9113 §4.1, Frame Format).
const HEADER: usize = 9;

const DATA: u8 = 0;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct FrameMeter {
    /// Bytes to pass over before the next header.
    skip: usize,
    header: Vec<u8>,
    spent: u32,
    refilled: Time,
}

impl Default for FrameMeter {
    fn default() -> Self {
        Self {
            skip: PREFACE,
            header: Vec::new(),
            spent: 0,
            refilled: Time::ZERO,
        }
    }
}

impl FrameMeter {
    /// Looks at what a client sends; false if it floods.
    pub(super) fn count(&mut self, now: Time, mut bytes: &[u8]) -> bool {
        let elapsed = now.since(self.refilled);
        let refills = elapsed.as_millis() / REFILL.as_millis();
        if refills > 0 {
            let refills = u32::try_from(refills).unwrap_or(u32::MAX);
            self.spent = self.spent.saturating_sub(refills);
            self.refilled = now;
        }
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let wanted = (HEADER - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..wanted]);
            bytes = &bytes[wanted..];
            if let [a, b, c, kind, ..] = self.header[..]
                && self.header.len() == HEADER
            {
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                let is_empty_data = kind == DATA && self.skip == 0;
                if is_empty_data || matches!(kind, PRIORITY | RST_STREAM | SETTINGS | PING) {
                    self.spent += 1;
                }
                self.header.clear();
            }
        }
        self.spent <= BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(kind: u8, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..count {
            bytes.extend_from_slice(&[0, 0, 4, kind, 0, 0, 0, 0, 1, 9, 9, 9, 9]);
        }
        bytes
    }

    #[test]
    fn floods_are_noticed_in_any_pieces() {
        for piece in [1, 7, 10_000] {
            let mut meter = FrameMeter::default();
            assert!(meter.count(Time::ZERO, &[0; PREFACE]));
            let most = frames(RST_STREAM, BURST as usize);
            assert!(
                most.chunks(piece)
                    .all(|piece| meter.count(Time::ZERO, piece))
            );
            assert!(!meter.count(Time::ZERO, &frames(PING, 1)));
        }
    }

    #[test]
    fn ordinary_frames_are_not_counted() {
        let mut meter = FrameMeter::default();
        meter.count(Time::ZERO, &[0; PREFACE]);
        assert!(meter.count(Time::ZERO, &frames(1, 5_000)));
        assert!(meter.count(Time::ZERO, &frames(8, 5_000)));
    }

    #[test]
    fn time_allows_more() {
        let mut meter = FrameMeter::default();
        meter.count(Time::ZERO, &[0; PREFACE]);
        assert!(meter.count(Time::ZERO, &frames(PING, BURST as usize)));
        let later = Time::ZERO + Duration::from_secs(1);
        assert!(meter.count(later, &frames(PING, 100)));
        assert!(!meter.count(later, &frames(PING, 1)));
    }
}
