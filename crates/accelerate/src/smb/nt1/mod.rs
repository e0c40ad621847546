//! SMB 1 in its dialect NT LM 0.12, for the clients that still speak it: READs ahead and WRITEs behind, by the
//! same rules as in SMB 2.
//!
//! ```text
//!  client ── near half ═════════ WAN ═════════ far half ── server
//!            answers READ      all of the        multiplex ids, oplocks,
//!            and WRITE under   client's          READs ahead
//!            a licence         messages
//! ```
//! Clients of its time ask for one block of 60 kB at most and wait for it. The licence is an exclusive or batch
//! oplock, the client's own or one that the far half asks for in its NT_CREATE_ANDX ([MS-CIFS] §2.2.4.64,
//! docs/decisions/0044 and 0067). Only unsigned connections are helped: signatures of SMB 1 are numbered through
//! the connection ([MS-CIFS] §3.1.4.1), and leave no room for a request or an answer of ours.
//!
//! [`choice`] finds out which of the two a flow speaks: many clients of SMB 2 begin with a message of SMB 1.
//!
//! What it does not do: signatures, listings, opens ahead, early answers to CLOSE, files opened by
//! OPEN_ANDX, the commands before it or transactions, the transport of NetBIOS at port 139.

pub(crate) mod choice;
mod far;
mod frames;
mod near;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wire;
