//! One node without its input and output: flows, stages, policy, budgets, reasons.
//!
//! ```text
//!           Input ──►┌────────────────────── Engine ──────────────────────┐──► Output
//!  sockets, links,   │ flow: accelerator ─► encoder ─►┐                   │   writes, connects,
//!  disk, time        │                                session (one a peer)│   disk, interception
//!                    │ flow: accelerator ◄─ decoder ◄─┘                   │
//!                    └────────────── dictionary (one for all) ────────────┘
//! ```
//!
//! A shell (`node`) joins an engine to sockets, disk and clock; a test joins two of them to an
//! emulated path, and that is the whole product in virtual time.

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accelerator_states;
mod accelerators;
mod asymmetric_routes;
mod bounds;
mod config;
mod connecting;
mod direct;
mod engine;

mod flow;
mod io;
mod kept_contents;
mod memory;
mod passthrough_pairs;
mod peer;
mod reached_servers;
mod report;
mod shares;
mod unreachable_servers;
mod violations;
mod why;

pub use accelerators::{ACCELERATORS, default_registry};
pub use bounds::{NetworkRoute, NetworkSurroundings, RouteSide};
pub use config::{
    AcceptMode, AcceptRule, EngineConfig, EngineLimits, FlowPolicy, IpPrefix, ParsePrefixError,
    PeerConfig, ServeAction, ServeRule,
};
pub use engine::Engine;
pub use io::{
    ArrivalMethod, ConnectFailure, ConnectionId, ConnectionOwner, EngineEvent, EngineInput,
    EngineOutput, LinkEnd, LinkId,
};
pub use report::{
    AcceleratorStatus, DictionaryStatus, FlowExplanation, FlowReport, NodeStatus, PeerStatus,
    ServerStatus, StageReport,
};
pub use shares::source_of;
