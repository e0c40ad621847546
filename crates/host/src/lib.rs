//! The parts of the operating system that several shells use.
//!
//! | module | holds |
//! | --- | --- |
//! | [`process`], [`command`], [`run`], [`wait`] | child processes, tools, and the removal of all that a run made |
//! | [`rootless`], [`first_process`] | user, mount and process namespaces |
//! | [`kernel`] | system calls that std lacks |
//! | [`daemon`] | the same for a daemon: capabilities, limits, timers, files in a directory |
//! | [`packets`] | packet sockets, AF_XDP, TUN devices, eBPF programs |
//! | [`stamped_sockets`], [`tester_sockets`] | UDP and TCP sockets with kernel stamps and counters |
//! | [`machine`] | processor, kernel and load of this machine |
//! | [`progress`], [`terminal`], [`drawing`], [`html`] | output for people |
//!
//! Unsafe code of the shells is in this crate, in few files. Nothing here knows a protocol of
//! Trunkline or decides what a program does.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod command;
pub mod daemon;
pub mod drawing;
pub mod first_process;
pub mod html;
pub mod invalid_request;
pub mod kernel;
pub mod machine;
pub mod median;
pub mod packets;
pub mod process;
pub mod progress;
pub mod rootless;
pub mod run;
pub mod stamped_sockets;
pub mod terminal;
pub mod tester_sockets;
pub mod wait;

pub use rootless::ProgramEnvironment;
