//! Benchmark of MAPI over the emulated WAN: the lab's mail clients, with and without Trunkline.
//!
//! ```text
//!  lane ── one link, a mail server for each cell, both nodes or none ──┐
//!  lane ── ...                                                         ├─► Report, beside the published figures
//!  lane ── ...                                                         ┘
//! ```
//! [`MapiCell`] says what is measured, `schedule` in which order and what beside what, `stand` is one
//! lane's place with its mail server, `clients` runs the client programs. [`exchange`] and
//! [`exchange_by_kerberos`] try every client and protection without timing it, and [`exchange_by_http`]
//! a client of MAPI over HTTP at a port of [`HttpMailPort`].
//!
//! Server and clients are Python programs, so the rate of both alone is measured first.

mod cells;
mod clients;
mod exchanges;
mod schedule;
mod stand;

pub use cells::{ContentState, MailAction, MailClient, MailMode, MailProtection, MapiCell};
pub use clients::HttpMailPort;
pub use exchanges::{
    KerberosResults, TicketOutcomes, exchange, exchange_by_http, exchange_by_ipv6_with_loss,
    exchange_by_kerberos, interrupted_sends, known_attachments, tickets_that_expire,
};
pub use schedule::{MapiReport, measure};
pub use stand::{InterruptedSend, MapiCellResult, TicketOutcome};
