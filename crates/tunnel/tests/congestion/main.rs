//! The congestion controllers over emulated paths, in virtual time and with fixed seeds.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod cells;
mod simulation;
