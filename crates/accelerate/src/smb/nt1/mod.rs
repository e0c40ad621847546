//! SMB 1 in its dialect NT LM 0.12, for the clients that still speak it: READs ahead and WRITEs behind, by the
//! same rules as in SMB 2.
//!
//! ```text
//!  client ── near half ═════════ WAN ═════════ far half ── server
//!            answers READ      all of the        multiplex ids, oplocks,
//!            and WRITE under   client's          READs ahead
//!            a licence         messages
//! ```
//! Clients of its time request one block of 60 kB at most and wait for it. The licence is an
//! exclusive or batch oplock, the client's own or one that the far half requests in its
//! NT_CREATE_ANDX ([MS-CIFS] §2.2.4.64, docs/decisions/0029 and 0048). Only unsigned connections
//! are accelerated: signatures of SMB 1 are numbered through the connection ([MS-CIFS] §3.1.4.1),
//! and leave no room for additional requests or answers.
//!
//! [`choice`] detects the dialect of a flow: many clients of SMB 2 begin with a message of SMB 1.
//!
//! It does not support signatures, prefetched listings, opens ahead, early answers to CLOSE, files
//! opened by OPEN_ANDX, the older open commands or transactions, and the NetBIOS transport at port
//! 139.

pub(crate) mod choice;
mod far;
mod frames;
mod near;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wire;
