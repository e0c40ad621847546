//! The daemon around an engine: interception, WAN links, disk, configuration, administration.
//!
//! ```text
//!   intercept/ proxy/ ─► lan/ ◄──────┐         ┌──────► wan/ ─► peers
//!                                    ▼         ▼
//!                            event_loop: the engine's thread ◄──► disk
//!                                    │
//!                                    ▼
//!               intercept/ (rules) · admin/ · metrics · watchdog/
//! ```
//!
//! It decides nothing about protocols, which belong to the engine and the cores. It provides a
//! clock, sockets and a disk.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accelerator_files;
pub mod admin;
mod clock;
pub mod config;
mod connections;
pub mod credentials;
mod descriptors;
pub mod dictionary_key;
mod disk;
mod event_loop;
pub mod identity;
pub mod intercept;
mod lan;
mod mailbox;
mod metrics;
pub mod pairing;
mod path_memory;
mod places;
pub mod preflight;
pub mod private_directory;
pub mod private_file;
pub mod proxy;
mod repeats;
mod rereading;
mod run;
mod run_error;
mod service_manager;
mod surroundings;
mod sys;
pub mod tls;
mod wan;
mod watchdog;

/// The authority of HTTPS interception, for whoever makes one.
pub mod http_authority {
    pub use accelerate::http::tls::authority::{AUTHORITY_LIFE_MAX, AuthorityError, NewAuthority};
}

pub use disk::{DiskError, SegmentFiles, StateLock};
pub use run::{RunOptions, WatchdogArguments, run};
pub use run_error::RunError;
pub use service_manager::restarts_us;
pub use wan::known_congestion_controls;
pub use watchdog::{WatchdogOptions, watch};
