//! Bytes read as a series of steps against a machine.
//!
//! A fuzzer changes bytes, so every series of bytes has to mean something: a step is one byte, and
//! its arguments are the bytes after it, or zero where they have run out.

/// Limit for the steps of a script, so that one input ends in finite time.
const MOST_STEPS: usize = 2_000;

/// Reads steps and their arguments from any bytes.
pub struct ByteScript<'a> {
    rest: &'a [u8],
    steps_left: usize,
}

impl<'a> ByteScript<'a> {
    /// A script that begins at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            steps_left: MOST_STEPS,
        }
    }

    /// The number of the next step, or `None` at the end.
    pub fn step(&mut self) -> Option<u8> {
        self.steps_left = self.steps_left.checked_sub(1)?;
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// An argument of one byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        *first
    }

    /// An argument of two bytes, big-endian.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Bytes with a length of two bytes before them; shorter when the script ends first.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.short()).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    /// All that is left.
    pub fn remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}
