//! DCE/RPC over a connection ([C706] chapters 9, 12 and 13, with the extensions of [MS-RPCE]).
//!
//! | file | content |
//! | --- | --- |
//! | `pdu.rs` | the header that every PDU begins with, and the parts of calls |

pub mod pdu;
