//! The receiver's equations, kept solved as far as they go.
//!
//! Each equation says that a sum of missing symbols, each times a coefficient, has known bytes.
//! They are held in reduced row echelon form: an equation's *pivot* is its oldest missing symbol,
//! has the coefficient 1, and occurs in no other equation. So an equation that has only its pivot
//! left *is* that symbol, and an equation whose pivot grows too old can be dropped together with
//! everything older, since nothing else mentions it.
//!
//! ```text
//!            missing:   a    b    c    d
//!  equation 1           1    0    x    0   = bytes
//!  equation 2                1    x    0   = bytes
//!  equation 3                          1   = bytes     solved: this is d
//! ```
//!
//! Work per equation is bounded: at most [`EQUATION_LIMIT`] others, each as long as a symbol and a
//! row of coefficients.

use simd::gf256::{Gf256Kernel, inverse};

use super::SYMBOLS_KEPT;

/// Equations that wait for more, at most: one epoch of repair symbols. Beyond it the oldest is
/// dropped. 64 equations take 0.13 MB, and a new one is reduced by all in some microseconds.
pub(super) const EQUATION_LIMIT: usize = 64;

/// An equation over missing symbols.
#[derive(Debug)]
pub(super) struct SymbolEquation {
    /// Coefficients by number modulo [`SYMBOLS_KEPT`]; 0 for symbols that are not in it.
    coefficients: [u8; SYMBOLS_KEPT],
    /// Behind the newest symbol that may have a coefficient.
    end: u64,
    /// The oldest symbol with a coefficient; of no meaning before the equation is placed.
    pivot: u64,
    sum: Vec<u8>,
}

impl SymbolEquation {
    /// An equation without unknowns yet, about symbols from `first` up to before `end`.
    pub(super) fn new(first: u64, end: u64, sum: Vec<u8>) -> Self {
        Self {
            coefficients: [0; SYMBOLS_KEPT],
            end,
            pivot: first,
            sum,
        }
    }

    /// Adds the missing symbol `number` with its coefficient.
    pub(super) fn set(&mut self, number: u64, coefficient: u8) {
        self.coefficients[place(number)] = coefficient;
    }

    fn of(&self, number: u64) -> u8 {
        self.coefficients[place(number)]
    }

    /// Adds `factor` times another equation, whose pivot is not older than this one's.
    fn add(&mut self, kernel: Gf256Kernel, other: &SymbolEquation, factor: u8) {
        kernel.mul_add(&mut self.coefficients, &other.coefficients, factor);
        self.end = self.end.max(other.end);
        self.add_to_sum(kernel, &other.sum, factor);
    }

    fn add_to_sum(&mut self, kernel: Gf256Kernel, bytes: &[u8], factor: u8) {
        // Both stand for themselves and zeros behind.
        if self.sum.len() < bytes.len() {
            self.sum.resize(bytes.len(), 0);
        }
        kernel.mul_add(&mut self.sum[..bytes.len()], bytes, factor);
    }

    /// Finds the oldest symbol in it, from `pivot` on; `None` when there is none.
    fn leading(&self) -> Option<u64> {
        (self.pivot..self.end).find(|number| self.coefficients[place(*number)] != 0)
    }

    /// Returns `true` if the pivot is the only symbol left in the equation.
    fn is_solved(&self) -> bool {
        let mut others = self.coefficients;
        others[place(self.pivot)] = 0;
        // Eight at a time, and no further than the first that is left: asked of every equation.
        let (words, _) = others.as_chunks::<8>();
        words.iter().all(|word| u64::from_ne_bytes(*word) == 0)
    }
}

/// Result of adding an equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EquationResult {
    /// It is independent of the others.
    New,
    /// It follows from the others.
    Redundant,
    /// It contradicts the others: the peer encodes differently.
    Contradiction,
}

/// The equations that wait for more.
#[derive(Debug)]
pub(super) struct EquationSystem {
    kernel: Gf256Kernel,
    rows: Vec<SymbolEquation>,
}

impl EquationSystem {
    pub(super) fn new(kernel: Gf256Kernel) -> Self {
        Self {
            kernel,
            rows: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes an equation all of whose symbols are missing.
    pub(super) fn insert(&mut self, mut equation: SymbolEquation) -> EquationResult {
        for row in &self.rows {
            let factor = equation.of(row.pivot);
            if factor != 0 {
                equation.add(self.kernel, row, factor);
            }
        }
        self.place(equation)
    }

    /// Notes that the symbol `number`, of these bytes, is missing no longer.
    pub(super) fn known(&mut self, number: u64, symbol: &[u8]) {
        let mut without_pivot = None;
        let mut at = 0;
        while at < self.rows.len() {
            let row = &mut self.rows[at];
            let factor = row.of(number);
            if factor != 0 {
                row.add_to_sum(self.kernel, symbol, factor);
                row.coefficients[place(number)] = 0;
                if row.pivot == number {
                    without_pivot = Some(self.rows.swap_remove(at));
                    continue;
                }
            }
            at += 1;
        }
        if let Some(equation) = without_pivot {
            // No other equation's pivot occurs in it, so it needs a pivot and nothing else.
            self.place(equation);
        }
    }

    /// Drops what mentions symbols before `oldest`; their places are about to mean newer ones.
    pub(super) fn forget_before(&mut self, oldest: u64) {
        // An equation mentions nothing that is older than its pivot.
        self.rows.retain(|row| row.pivot >= oldest);
    }

    /// Takes out a symbol that has been solved: its number and bytes.
    pub(super) fn take_solved(&mut self) -> Option<(u64, Vec<u8>)> {
        let at = self.rows.iter().position(SymbolEquation::is_solved)?;
        let row = self.rows.swap_remove(at);
        Some((row.pivot, row.sum))
    }

    pub(super) fn clear(&mut self) {
        self.rows = Vec::new();
    }

    /// Gives an equation that is reduced by all others its pivot, and reduces them by it.
    fn place(&mut self, mut equation: SymbolEquation) -> EquationResult {
        let Some(pivot) = equation.leading() else {
            // All unknowns cancelled each other; what is left says 0 = sum.
            if equation.sum.iter().all(|byte| *byte == 0) {
                return EquationResult::Redundant;
            }
            return EquationResult::Contradiction;
        };
        equation.pivot = pivot;
        let factor = inverse(equation.of(pivot));
        self.kernel.scale(&mut equation.coefficients, factor);
        self.kernel.scale(&mut equation.sum, factor);
        for row in &mut self.rows {
            let factor = row.of(pivot);
            if factor != 0 {
                row.add(self.kernel, &equation, factor);
            }
        }
        self.rows.push(equation);
        if self.rows.len() > EQUATION_LIMIT {
            let oldest = (0..self.rows.len())
                .min_by_key(|at| self.rows[*at].pivot)
                .expect("there is one more than the limit");
            self.rows.swap_remove(oldest);
        }
        EquationResult::New
    }
}

fn place(number: u64) -> usize {
    (number % SYMBOLS_KEPT as u64) as usize
}
