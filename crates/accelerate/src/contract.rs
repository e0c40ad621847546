//! The contract between an accelerator and the engine that runs it.
//!
//! The engine calls [`Accelerator::handle`] and then drains [`Accelerator::poll_output`] to
//! `None` before it calls `handle` again. Order is kept: what a half puts out is delivered to
//! the other half, or to its host, in that order and exactly once.
//!
//! ## Letting go
//!
//! An accelerator that meets what it does not understand stops helping; it never guesses. There
//! are three ways, and a half's state table says which holds where:
//!
//! ```text
//!             ┌───────────── transparent: bytes pass as they came ─────────────┐
//!             │ LetGo: the engine drops both halves, bytes are never touched    │
//!             └─────────────────────────────────────────────────────────────────┘
//!   renumbered or rewritten ── Translate: fixed fields only, no tactic any more
//!   neither is safe         ── Close: both ends see a reset, with the reason on record
//! ```
//!
//! `LetGo` works from either half. The half that lets go has put out everything it held before
//! it says so. The engine drops it, tells the other side with a [`FrameKind::Released`] frame in
//! its place in the order, and the engine there does the same with the other half. The frame's
//! second byte, which releases before 0.2 did not send, says why ([`LetGoReason::to_byte`]).

use std::time::Duration;

use bytes::Bytes;
use vocab::{Segment, Time};

use crate::claims::ClaimKey;

/// Which end of the WAN a half stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// Beside the client, which thinks it talks to the server.
    Near,
    /// Beside the server, which thinks it talks to the client.
    Far,
}

/// What an accelerator half is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The flow begins. The first input of every half; for a far half the server's connection is
    /// not open yet.
    Start,
    /// The host on this half's LAN side sent bytes.
    Lan(Bytes),
    /// That host will send no more.
    LanFinished,
    /// The other half sent a segment.
    Wan(Segment),
    /// The other half will send no more.
    WanFinished,
    /// The WAN has been silent for this long: what depends on the other half being reachable
    /// (a lease it holds, say) may no longer be relied on.
    WanSilent(Duration),
    /// The moment that [`Accelerator::poll_timeout`] named has come.
    Timeout,
    /// The flow holds the claim that it made by [`Output::Claim`].
    ClaimGranted,
    /// Another flow claims the same key. The half stops what it did under the claim, and then says
    /// [`Output::ClaimReleased`].
    ClaimRevoked,
    /// The flow's claim is not granted, because another flow claims the same key.
    ClaimDenied,
}

/// What an accelerator half wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Open the connection to the server. Far halves only, once.
    OpenServer,
    /// Write to the host on this half's LAN side.
    ToLan(Bytes),
    /// End the stream towards that host cleanly, after all that was put out before.
    FinishLan,
    /// Send a segment to the other half.
    ToWan(Segment),
    /// End the stream towards the other half, after all that was put out before.
    FinishWan,
    /// Claim this key for the flow alone; [`Input::ClaimGranted`] or [`Input::ClaimDenied`] follows.
    /// At most once.
    Claim(ClaimKey),
    /// After [`Input::ClaimRevoked`]: the half no longer relies on its claim.
    ClaimReleased,
    /// Stop helping.
    LettingGo(LettingGo),
}

/// The three forms of letting go (see the head of this file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LettingGo {
    /// Bytes pass untouched from here on, in both directions and for ever.
    LetGo {
        /// Why, for the operator.
        reason: LetGoReason,
    },
    /// The half stays to translate what it has renumbered or rewritten, and does nothing more.
    Translate {
        /// Why, for the operator.
        reason: LetGoReason,
    },
    /// The flow cannot go on safely and is reset at both ends.
    Close {
        /// Why, for the operator.
        reason: LetGoReason,
    },
}

/// Why an accelerator does not help, or no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LetGoReason {
    /// No accelerator is registered for this protocol.
    NoAccelerator,
    /// The content is encrypted and no key was delegated.
    Encrypted,
    /// The content is signed and no key was delegated.
    Signed,
    /// A dialect, command or extension that the accelerator does not know.
    Unsupported,
    /// The peers break the protocol's rules.
    Violation,
    /// A limit of the accelerator was reached.
    Limit,
    /// The operator's policy says so.
    Policy,
    /// The content is signed or encrypted, and the account whose it is was not delegated.
    UnknownAccount,
    /// The content is signed or encrypted, and not with what was delegated.
    WrongKey,
    /// The content is signed or encrypted with a key that is agreed in a way which is not followed here.
    Mechanism,
    /// The content is signed in a way that the policy does not allow to renew.
    Gmac,
    /// A signature, or what encrypts a message, is not what it should be.
    Forged,
    /// The content is signed or encrypted by a session of Kerberos, and no keytab was delegated.
    NoKeytab,
    /// The same, and no key of the keytab opens the client's ticket.
    UnknownTicket,
    /// The connection is signed as SMB 1 does it.
    SignedBySmb1,
    /// The server did not take in time what was answered in its place, and another connection waits for that.
    Unconfirmed,
}

impl LetGoReason {
    /// Every reason, in the order of its byte.
    const ALL: [Self; 16] = [
        Self::NoAccelerator,
        Self::Encrypted,
        Self::Signed,
        Self::Unsupported,
        Self::Violation,
        Self::Limit,
        Self::Policy,
        Self::UnknownAccount,
        Self::WrongKey,
        Self::Mechanism,
        Self::Gmac,
        Self::Forged,
        Self::NoKeytab,
        Self::UnknownTicket,
        Self::SignedBySmb1,
        Self::Unconfirmed,
    ];

    /// The byte that stands for it between nodes.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        let place = Self::ALL.iter().position(|reason| *reason == self);
        place.map_or(0, |place| place as u8)
    }

    /// The reason that a byte stands for; `None` for one of a later release.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Whether the next flow between the same hosts would meet it as well: a key that is not there, or a way of
    /// logging in that is not followed.
    #[must_use]
    pub fn recurs(self) -> bool {
        match self {
            Self::Encrypted
            | Self::Signed
            | Self::UnknownAccount
            | Self::WrongKey
            | Self::Mechanism
            | Self::Gmac
            | Self::NoKeytab
            | Self::UnknownTicket
            | Self::SignedBySmb1 => true,
            Self::NoAccelerator
            | Self::Unsupported
            | Self::Violation
            | Self::Limit
            | Self::Policy
            | Self::Forged
            | Self::Unconfirmed => false,
        }
    }

    /// What happened, as a clause for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::NoAccelerator => "no accelerator for this protocol; bytes pass as they are",
            Self::Encrypted => "the content is encrypted and no key was delegated",
            Self::Signed => "the content is signed and no key was delegated",
            Self::Unsupported => "a dialect or command the accelerator does not know",
            Self::Violation => "the hosts broke the protocol's rules",
            Self::Limit => "a limit of the accelerator was reached",
            Self::Policy => "the policy says not to",
            Self::UnknownAccount => {
                "the content is signed or encrypted, and its account was not delegated"
            }
            Self::WrongKey => {
                "the content is signed or encrypted, and not with the secret that was delegated"
            }
            Self::Mechanism => {
                "the content is signed or encrypted, and its key was agreed in a way that is not followed"
            }
            Self::Gmac => "the content is signed by AES-GMAC, which the policy keeps from renewing",
            Self::Forged => {
                "a signature or an encrypted message is not valid; it was not acted upon"
            }
            Self::NoKeytab => {
                "the content is signed or encrypted by a Kerberos session, and no keytab was delegated"
            }
            Self::UnknownTicket => {
                "the content is signed or encrypted by a Kerberos session, whose ticket no key of the keytab opens"
            }
            Self::SignedBySmb1 => {
                "the content is signed by SMB 1, whose signatures leave no room for further messages"
            }
            Self::Unconfirmed => {
                "the server did not take what was answered in its place, and the client's next connection waited for that"
            }
        }
    }

    /// What would change that, if anything would.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::NoAccelerator | Self::Violation => None,
            Self::Encrypted => Some(
                "name an account file as smb_accounts, or for Kerberos the service's keytab as smb_keytab, in [policy] of the node beside the server; or leave encryption off for this share",
            ),
            Self::Signed => Some(
                "name an account file as smb_accounts, or for Kerberos the service's keytab as smb_keytab, in [policy] of the node beside the server",
            ),
            Self::UnknownAccount => Some(
                "add the account to the file that smb_accounts names on the node beside the server",
            ),
            Self::WrongKey => Some(
                "renew the account's secret in the file that smb_accounts names, or the service's in that of smb_keytab, on the node beside the server",
            ),
            Self::Mechanism => Some(
                "log in by Kerberos, with keys for AES or RC4, or by NTLM version 2; these are followed",
            ),
            Self::Gmac => Some(
                "sign by AES-CMAC, or set smb_resign_gmac in [policy] of the node beside the server and accept what it risks",
            ),
            Self::Forged => Some("look for what alters messages on one of the LANs"),
            Self::NoKeytab => Some(
                "name the service's keytab as smb_keytab in [policy] of the node beside the server",
            ),
            Self::UnknownTicket => Some(
                "add the service's present key to the keytab that smb_keytab names on the node beside the server",
            ),
            Self::SignedBySmb1 => Some(
                "speak SMB 2 or 3 on both hosts, or let neither of them demand signatures of SMB 1",
            ),
            Self::Unconfirmed => Some("look for what keeps the server, or its LAN, from answering"),
            Self::Unsupported => Some("a release that knows it"),
            Self::Limit => Some("raise the limit that the log names"),
            Self::Policy => Some("change [policy] in the configuration"),
        }
    }
}

/// The first byte of a frame segment.
///
/// Zero belongs to the contract itself; an accelerator numbers its own from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The sending half has let go; the receiver's engine drops the other half.
    Released,
    /// A frame of the accelerator's own.
    Own(u8),
}

impl FrameKind {
    /// The kind of a frame segment, or `None` when it is empty.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Self> {
        match frame.first()? {
            0 => Some(Self::Released),
            own => Some(Self::Own(*own)),
        }
    }

    /// The byte that stands for it.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Released => 0,
            Self::Own(own) => own,
        }
    }
}

/// One half of an accelerator, for one flow.
pub trait Accelerator: Send {
    /// Takes what happened; never fails: what it cannot understand it lets go.
    fn handle(&mut self, now: Time, input: Input);

    /// The next thing to do, or `None` when there is nothing until the next input.
    fn poll_output(&mut self) -> Option<Output>;

    /// When the half wants [`Input::Timeout`]; not later than `now` while output waits.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Bytes that the half holds in memory, for the node's account.
    fn buffered(&self) -> usize {
        0
    }

    /// Requests of its host that the half has answered itself, for the operator.
    fn answered(&self) -> u64 {
        0
    }

    /// What the operator should know beside that, in a clause: for whom it works, or, when it has let
    /// go, whom it could not work for.
    fn note(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_read_back_from_their_bytes() {
        for reason in LetGoReason::ALL {
            assert_eq!(LetGoReason::from_byte(reason.to_byte()), Some(reason));
        }
        assert_eq!(LetGoReason::from_byte(200), None);
    }
}
