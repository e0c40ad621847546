//! Kernels that need intrinsics, each checked against a slow reference.
//!
//! A kernel is a loop over bytes that the processor has instructions for and the compiler does not
//! find by itself. It is offered as safe functions over slices. The instruction set is selected
//! once, when the program runs, so one binary serves old and new processors. [`gf256`] is the
//! arithmetic of forward error correction, [`blake3`] hashes many short inputs at once, [`places`]
//! selects positions by content, [`words`] finds word beginnings, [`repeats`] finds earlier
//! occurrences of the bytes at some places, and [`agreement`] counts equal bytes at two places.
//! [`sequences`] writes blocks in zstd's format, and calls the part of zstd that codes literals
//! through pointers.
//!
//! ```text
//!  detect() ─► GFNI + AVX-512 │ AVX2 │ NEON │ portable      same results, byte for byte
//! ```
//!
//! This is the only core with unsafe code. It is allowed in the files of single instruction sets
//! (`x86.rs`, `neon.rs`) and where those are called, and in `sequences`. Each file of instructions
//! is tested with every constant, and with every length and alignment up to several of its vectors,
//! against the portable code and against a bitwise definition. Nothing here calls the system or
//! knows a protocol.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agreement;
pub mod blake3;
pub mod gf256;
pub mod places;
pub mod repeats;
#[allow(unsafe_code)]
pub mod sequences;
mod vectors;
pub mod words;
