//! The few kernels that need intrinsics, each checked against a slow reference.
//!
//! A kernel is a loop over bytes that the processor has instructions for and the compiler does not
//! find by itself. It is offered as safe functions that take slices; which instructions do the work
//! is found out once, when the program runs, so one binary serves old and new processors. What is
//! here now is [`gf256`], the arithmetic of forward error correction, [`blake3`], the hash of many short
//! inputs at once, [`places`], the choice of positions by content, [`words`], the positions where words
//! begin, [`repeats`], where what stands at some places stood before, and [`agreement`], how many bytes agree
//! at two places. [`sequences`] writes blocks in zstd's format, and reaches the part of zstd that codes literals by
//! pointers.
//!
//! ```text
//!  Kernel::detect() ─► GFNI + AVX-512 │ AVX2 │ NEON │ portable      same results, byte for byte
//! ```
//!
//! This is the one core with unsafe code. It is allowed in the files of single instruction sets
//! (`x86.rs`, `neon.rs`) and where those are called, and in `sequences`. Each file of instructions is
//! tested with every constant, and with every length and alignment up to several of its vectors,
//! against the portable code and against a bitwise definition. Nothing here asks the system or knows
//! a protocol.

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
