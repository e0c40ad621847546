//! DCE/RPC over a connection (C706 chapters 9, 12 and 13, with the extensions of [MS-RPCE]).
//!
//! ```text
//!  bytes ─► splitter ─► PDU ─┬─ bind, alter_context ─► association: interfaces, fragment sizes
//!                            ├─ tokens ─► security: the key of the session
//!                            └─ requests, responses ─► protection: stubs in the clear ─► calls
//! ```
//! | file | content |
//! | --- | --- |
//! | `pdu.rs` | the header that every PDU begins with |
//! | `splitter.rs` | cuts a direction's bytes into PDUs, and a PDU into its parts |
//! | `cutter.rs` | separates stubs from the bytes around them while they pass |
//! | `bind.rs` | presentation contexts: which interface a call is for |
//! | `association.rs` | what a connection has agreed on |
//! | `calls.rs` | gathers the fragments of calls |
//! | `fragments.rs` | writes calls and answers of a half's own |
//! | `protector.rs` | signs and seals PDUs by the mechanism of their session |
//! | `ntlm.rs`, `kerberos.rs` | the two mechanisms |
//! | `security.rs` | derives a session's key from the tokens of both hosts |

pub mod association;
pub mod bind;
pub mod calls;
pub mod cutter;
pub mod fragments;
pub mod kerberos;
pub mod ntlm;
pub mod pdu;
pub mod protector;
pub mod security;
pub mod splitter;
