//! The receiving side: keeps the last source symbols and computes those that did not come.
//!
//! ```text
//!  base ──────────────────────── next         the last SYMBOLS_KEPT numbers
//!   k  k  ?  k  k  k  ?  ?  k  k              k: known, received or recovered
//!         └ repair symbol ┘                   ?: unknown in an equation
//! ```
//!
//! A repair symbol without an unknown costs a look at its window. One with unknowns has the known
//! symbols subtracted and becomes an equation. A source symbol that comes late is put into the
//! equations, and may make them solvable as well. Nothing here waits: what cannot be solved is
//! dropped when its window has passed.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use simd::gf256::Gf256Kernel;

use super::coefficients::coefficient;
use super::equations::{EquationResult, EquationSystem, SymbolEquation};
use super::{LENGTH_PREFIX, PAYLOAD_LIMIT, RepairSymbol, SYMBOLS_KEPT};

/// Result of a source symbol that the decoder received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceSymbolResult {
    /// It had been missing until now.
    New,
    /// It was received or recovered before: its payload has been handed on already.
    Repeated,
    /// It is older than anything that is kept; it may have been received before.
    TooOld,
    /// No encoder makes such a number or length.
    Malformed,
}

/// Result of a repair symbol that the decoder received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairSymbolResult {
    /// It became an equation; ask [`FecDecoder::poll_recovered`].
    Used,
    /// All that it could tell is known.
    Redundant,
    /// A symbol in it is older than anything that is kept.
    TooOld,
    /// No encoder makes such fields, or it contradicts what else was received.
    Malformed,
}

/// Counters of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStatistics {
    /// Symbols that were computed.
    pub recovered: u64,
    /// Repair symbols that became equations.
    pub used: u64,
    /// Repair symbols that told nothing new.
    pub redundant: u64,
    /// Repair symbols that came too late.
    pub too_old: u64,
    /// Repair and source symbols that no encoder makes, and computed symbols that no payload is.
    pub malformed: u64,
}

/// Computes payloads that did not arrive.
#[derive(Debug)]
pub struct FecDecoder {
    kernel: Gf256Kernel,
    /// Slots by number modulo [`SYMBOLS_KEPT`]; made with the first symbol.
    slots: Vec<DecoderSlot>,
    next: u64,
    /// Number before which nothing is kept, because memory was released there.
    released: u64,
    equations: EquationSystem,
    /// Not yet polled; at most [`SYMBOLS_KEPT`], beyond which the oldest is dropped.
    recovered: VecDeque<(u64, Bytes)>,
    statistics: DecoderStatistics,
}

#[derive(Clone, Debug, Default)]
struct DecoderSlot {
    /// Length prefix, payload, and zeros up to the longest repair symbol that it was needed in.
    symbol: Vec<u8>,
    length: usize,
    is_known: bool,
}

impl Default for FecDecoder {
    fn default() -> Self {
        Self::new(Gf256Kernel::detect())
    }
}

impl FecDecoder {
    /// A decoder that has seen nothing yet.
    #[must_use]
    pub fn new(kernel: Gf256Kernel) -> Self {
        Self {
            kernel,
            slots: Vec::new(),
            next: 0,
            released: 0,
            equations: EquationSystem::new(kernel),
            recovered: VecDeque::new(),
            statistics: DecoderStatistics::default(),
        }
    }

    /// Takes the payload that was received as source symbol `number`.
    ///
    /// Drain [`poll_recovered`](Self::poll_recovered) afterwards: a late symbol may solve others.
    pub fn source(&mut self, number: u64, payload: &[u8]) -> SourceSymbolResult {
        let Some(end) = number.checked_add(1) else {
            self.statistics.malformed += 1;
            return SourceSymbolResult::Malformed;
        };
        if payload.len() > PAYLOAD_LIMIT {
            self.statistics.malformed += 1;
            return SourceSymbolResult::Malformed;
        }
        self.advance(end);
        if number < self.base() {
            return SourceSymbolResult::TooOld;
        }
        let slot = &mut self.slots[place(number)];
        if slot.is_known {
            return SourceSymbolResult::Repeated;
        }
        let length = payload.len() as u16;
        slot.symbol.clear();
        slot.symbol.extend_from_slice(&length.to_be_bytes());
        slot.symbol.extend_from_slice(payload);
        slot.length = slot.symbol.len();
        slot.is_known = true;
        if !self.equations.is_empty() {
            let symbol = &self.slots[place(number)].symbol;
            self.equations.known(number, symbol);
            self.collect_solved();
        }
        SourceSymbolResult::New
    }

    /// Takes a repair symbol, whatever its fields say.
    ///
    /// Drain [`poll_recovered`](Self::poll_recovered) afterwards.
    pub fn repair(&mut self, repair: &RepairSymbol) -> RepairSymbolResult {
        let verdict = self.judge(repair);
        let counter = match verdict {
            RepairSymbolResult::Used => &mut self.statistics.used,
            RepairSymbolResult::Redundant => &mut self.statistics.redundant,
            RepairSymbolResult::TooOld => &mut self.statistics.too_old,
            RepairSymbolResult::Malformed => &mut self.statistics.malformed,
        };
        *counter += 1;
        verdict
    }

    /// The next payload that was computed, with the number of its source symbol. Each number is
    /// given once, and never one whose symbol was received before.
    pub fn poll_recovered(&mut self) -> Option<(u64, Bytes)> {
        self.recovered.pop_front()
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn statistics(&self) -> DecoderStatistics {
        self.statistics
    }

    /// Gives memory back; for when nothing has been received for a while. Symbols from before can
    /// then not be used for recovering others, and those that come late count as too old.
    pub fn release_memory(&mut self) {
        self.released = self.next;
        self.slots = Vec::new();
        self.equations.clear();
    }

    fn judge(&mut self, repair: &RepairSymbol) -> RepairSymbolResult {
        let Some(window) = repair.window() else {
            return RepairSymbolResult::Malformed;
        };
        self.advance(window.end);
        if window.start < self.base() {
            return RepairSymbolResult::TooOld;
        }
        let Some(equation) = self.equation(repair, window) else {
            return RepairSymbolResult::Malformed;
        };
        let Some(equation) = equation else {
            return RepairSymbolResult::Redundant;
        };
        match self.equations.insert(equation) {
            EquationResult::New => {
                self.collect_solved();
                RepairSymbolResult::Used
            }
            EquationResult::Redundant => RepairSymbolResult::Redundant,
            EquationResult::Contradiction => RepairSymbolResult::Malformed,
        }
    }

    /// Builds the equation over the missing symbols in a repair symbol's window. `Some(None)` means
    /// that none is missing. `None` means that a known symbol is longer than the sum that it should
    /// be part of.
    fn equation(
        &mut self,
        repair: &RepairSymbol,
        window: Range<u64>,
    ) -> Option<Option<SymbolEquation>> {
        let length = repair.bytes.len();
        let mut missing = 0;
        for number in window.clone() {
            let slot = &self.slots[place(number)];
            if !slot.is_known {
                missing += 1;
            } else if slot.length > length {
                return None;
            }
        }
        if missing == 0 {
            return Some(None);
        }
        for number in window.clone() {
            let slot = &mut self.slots[place(number)];
            if slot.is_known && slot.symbol.len() < length {
                slot.symbol.resize(length, 0);
            }
        }
        let mut sum = repair.bytes.to_vec();
        let terms: Vec<(&[u8], u8)> = window
            .clone()
            .map(|number| (number, &self.slots[place(number)]))
            .filter(|(_, slot)| slot.is_known)
            .map(|(number, slot)| (&slot.symbol[..length], coefficient(repair.key, number)))
            .collect();
        self.kernel.mul_add_many(&mut sum, &terms);
        let mut equation = SymbolEquation::new(window.start, window.end, sum);
        for number in window {
            if !self.slots[place(number)].is_known {
                equation.set(number, coefficient(repair.key, number));
            }
        }
        Some(Some(equation))
    }

    fn collect_solved(&mut self) {
        while let Some((number, symbol)) = self.equations.take_solved() {
            let Some(payload) = payload(&symbol) else {
                self.statistics.malformed += 1;
                continue;
            };
            let payload = Bytes::copy_from_slice(payload);
            let slot = &mut self.slots[place(number)];
            slot.length = LENGTH_PREFIX + payload.len();
            slot.symbol = symbol;
            slot.is_known = true;
            self.statistics.recovered += 1;
            if self.recovered.len() == SYMBOLS_KEPT {
                self.recovered.pop_front();
            }
            self.recovered.push_back((number, payload));
        }
    }

    /// The oldest number that is kept.
    fn base(&self) -> u64 {
        self.released
            .max(self.next.saturating_sub(SYMBOLS_KEPT as u64))
    }

    /// Moves the window on so that it ends at `end`, if that is ahead.
    fn advance(&mut self, end: u64) {
        if self.slots.is_empty() {
            self.slots = vec![DecoderSlot::default(); SYMBOLS_KEPT];
        }
        if end <= self.next {
            return;
        }
        // A jump past the whole window clears every place once.
        for number in self.next.max(end.saturating_sub(SYMBOLS_KEPT as u64))..end {
            self.slots[place(number)].is_known = false;
        }
        self.next = end;
        if !self.equations.is_empty() {
            let base = self.base();
            self.equations.forget_before(base);
        }
    }
}

/// Returns the payload in a symbol; `None` when its length is invalid, or its padding is not zero.
fn payload(symbol: &[u8]) -> Option<&[u8]> {
    let (prefix, rest) = symbol.split_first_chunk::<LENGTH_PREFIX>()?;
    let length = usize::from(u16::from_be_bytes(*prefix));
    let (payload, padding) = rest.split_at_checked(length)?;
    let is_padding = padding.iter().all(|byte| *byte == 0);
    (length <= PAYLOAD_LIMIT && is_padding).then_some(payload)
}

fn place(number: u64) -> usize {
    (number % SYMBOLS_KEPT as u64) as usize
}
