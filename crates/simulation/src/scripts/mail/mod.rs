//! MAPI without protection: a mail client that saves attachments by one RopReadStream after the other,
//! and a mailbox server.
//!
//! ```text
//!  bind ─► EcDoConnect ─► RopLogon ─► RopOpenMessage ─► RopOpenAttachment ─► RopOpenStream
//!       ─► RopReadStream until the stream ends ─► EcDoDisconnect          a connection for each attachment
//! ```
//! The sizes of reads and answers are those of the lab's mail clients. Both scripts use the coding of
//! the crate `mapi`, so they test no coding. The client knows the mailbox's port, and asks no
//! directory: both lie before the timed part.

mod call;
mod client;
mod server;

pub(super) use client::MailClientScript;
pub(super) use server::MailboxServer;

/// Generation of a mail client, and its optimisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailGeneration {
    /// Outlook XP: EcDoRpc.
    Xp,
    /// Outlook 2003 without compression and chains: EcDoRpcExt2.
    Plain2003,
    /// Outlook 2003 with several buffers in an answer, as Exchange 2003 optimises it.
    Optimised2003,
}
