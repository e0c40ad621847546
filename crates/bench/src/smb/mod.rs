//! Benchmark of SMB over the emulated WAN: serial and stock clients, with and without Trunkline.
//!
//! ```text
//!  lane ── one link, real smbd, both nodes or none ──┐
//!  lane ── ...                                       ├─► Report, beside the published figures
//!  lane ── ...                                       ┘
//! ```
//! [`SmbCell`] says what is measured, `schedule` in which order and what beside what, `stand` is one
//! lane's place, `server` its smbd with the account and the audit that prove whom the server saw,
//! `clients` runs the client programs (`smb_clients.py`), `freshness` judges what they were told while
//! another changed it, [`protected`] tries every protection, [`torture`] holds the same pair of nodes
//! to smbtorture, [`kerberos`] to a client that logs in by a ticket, and [`nt1`] to one that speaks SMB 1. [`kernel`] measures
//! the client of the Linux kernel, in a virtual machine, and [`office`] the requests of office programs and file
//! managers, both over the link of [`fixed_link`].
//!
//! A lane carries one flow at a time. Lanes whose flows cost next to no processor time (a T1, or a
//! serial client that waits for a long path) run beside each other; the others run alone.

mod capture;
mod cells;
mod clients;
pub mod fixed_link;
mod freshness;
pub mod kerberos;
pub mod kernel;
pub mod nt1;
pub mod office;
pub mod protected;
mod published;
mod schedule;
mod server;
mod stand;
pub mod torture;

pub use cells::{AccelerationMode, SmbCell, SmbClientKind, SmbProtection};
pub use clients::ClientPython;
pub use freshness::FreshnessResult;
pub use lab::report::published::{PublishedDocument, documents};
pub use published::{PublishedRate, rates};
pub use schedule::{SmbReport, SmbSelection, measure};
pub use stand::{DocumentTimes, OfficeDocument, SmbCellResult};
