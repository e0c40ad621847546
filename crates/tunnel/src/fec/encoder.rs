//! The sending side: keeps the last source symbols and sums them into repair symbols.
//!
//! ```text
//!   dropped │ oldest ─────────────────────────── next       numbers
//!           │   a   ·   a   ·   ·   a   ·   ·              a: the peer has it
//!                   └────── a repair symbol's run ──┘
//! ```
//!
//! Symbols lie in a ring by their numbers. What the peer has is dropped from the front, and stays
//! while something before it is still needed, since a repair symbol is over a run without gaps.
//! Costs one copy of each payload; a repair symbol reads every symbol of its run once.

use std::ops::Range;

use bytes::Bytes;
use simd::gf256::Gf256Kernel;

use super::coefficients::coefficient;
use super::{LENGTH_PREFIX, PAYLOAD_LIMIT, RepairSymbol, SYMBOLS_KEPT, WINDOW_LIMIT};

/// Makes repair symbols of the payloads it has been shown.
#[derive(Debug)]
pub struct FecEncoder {
    kernel: Gf256Kernel,
    /// Slots by number modulo [`SYMBOLS_KEPT`]; grows to that many with the first symbols.
    slots: Vec<EncoderSlot>,
    oldest: u64,
    next: u64,
    next_key: u16,
}

#[derive(Debug, Default)]
struct EncoderSlot {
    /// Length prefix, payload, and zeros up to the longest repair symbol that it was needed in.
    symbol: Vec<u8>,
    length: usize,
    is_acknowledged: bool,
}

impl Default for FecEncoder {
    fn default() -> Self {
        Self::new(Gf256Kernel::detect())
    }
}

impl FecEncoder {
    /// An encoder that has seen nothing yet; its first symbol has the number 0.
    #[must_use]
    pub fn new(kernel: Gf256Kernel) -> Self {
        Self {
            kernel,
            slots: Vec::new(),
            oldest: 0,
            next: 0,
            next_key: 0,
        }
    }

    /// Takes the payload of a packet as the next source symbol and returns its number.
    ///
    /// Beyond [`SYMBOLS_KEPT`] the oldest symbol is dropped: it is no longer protected.
    ///
    /// # Panics
    /// When the payload is longer than [`PAYLOAD_LIMIT`].
    pub fn source(&mut self, payload: &[u8]) -> u64 {
        assert!(payload.len() <= PAYLOAD_LIMIT, "a packet is no longer");
        let number = self.next;
        self.next += 1;
        let kept = SYMBOLS_KEPT as u64;
        self.oldest = self.oldest.max(self.next.saturating_sub(kept));
        let at = place(number);
        if at == self.slots.len() {
            self.slots.push(EncoderSlot::default());
        }
        let slot = &mut self.slots[at];
        slot.symbol.clear();
        let length = payload.len() as u16;
        slot.symbol.extend_from_slice(&length.to_be_bytes());
        slot.symbol.extend_from_slice(payload);
        slot.length = LENGTH_PREFIX + payload.len();
        slot.is_acknowledged = false;
        number
    }

    /// The run from the oldest symbol that the peer may lack to the newest; empty when it has all.
    #[must_use]
    pub fn outstanding(&self) -> Range<u64> {
        self.oldest..self.next
    }

    /// Notes that the peer has these symbols, received or recovered, or that they are of no more
    /// use to it since their data has been sent again. Numbers that are not kept are ignored.
    pub fn acknowledged(&mut self, numbers: Range<u64>) {
        for number in numbers.start.max(self.oldest)..numbers.end.min(self.next) {
            self.slots[place(number)].is_acknowledged = true;
        }
        while self.oldest < self.next && self.slots[place(self.oldest)].is_acknowledged {
            self.oldest += 1;
        }
    }

    /// Sums up the symbols of `window` that are still outstanding, the newest [`WINDOW_LIMIT`] of
    /// them; `None` when there is none.
    pub fn repair(&mut self, window: Range<u64>) -> Option<RepairSymbol> {
        let mut end = window.end.min(self.next);
        let first = window.start.max(self.oldest);
        while first < end && self.slots[place(end - 1)].is_acknowledged {
            end -= 1;
        }
        let first = first.max(end.saturating_sub(WINDOW_LIMIT));
        if first >= end {
            return None;
        }
        let key = self.next_key;
        self.next_key = self.next_key.wrapping_add(1);
        let length = (first..end)
            .map(|number| self.slots[place(number)].length)
            .max()
            .expect("the run is not empty");
        for number in first..end {
            let symbol = &mut self.slots[place(number)].symbol;
            if symbol.len() < length {
                symbol.resize(length, 0);
            }
        }
        let terms: Vec<(&[u8], u8)> = (first..end)
            .map(|number| {
                let symbol = &self.slots[place(number)].symbol[..length];
                (symbol, coefficient(key, number))
            })
            .collect();
        let mut sum = vec![0; length];
        self.kernel.mul_add_many(&mut sum, &terms);
        Some(RepairSymbol {
            first,
            count: (end - first) as u8,
            key,
            bytes: Bytes::from(sum),
        })
    }

    /// The key of the next repair symbol.
    #[cfg(test)]
    pub(super) fn next_key(&self) -> u16 {
        self.next_key
    }

    /// Skips to another key, as if that many repair symbols had been made.
    #[cfg(test)]
    pub(super) fn skip_to_key(&mut self, key: u16) {
        self.next_key = key;
    }

    /// Releases memory after a pause in sending. Outstanding symbols are no longer protected.
    pub fn release_memory(&mut self) {
        self.oldest = self.next;
        for slot in &mut self.slots {
            slot.symbol = Vec::new();
        }
    }
}

fn place(number: u64) -> usize {
    (number % SYMBOLS_KEPT as u64) as usize
}
