//! The codes of the reasons why an accelerator does not help, or has stopped.
//!
//! A reason consists of an accelerator and a code. Both nodes know the flow's accelerator from the
//! open, so only the code travels, as the second byte of a
//! [`FrameKind::Released`](crate::FrameKind) frame (docs/formats/accelerator-frames.md has the
//! table). A code is never reused.
//!
//! ```text
//!   0 ..= 63   common codes: the same meaning for every accelerator, defined here
//!              (10 and 14 are older than this rule and belong to accelerator 1)
//!  64 ..= 255  codes of the accelerator that the flow has, defined in its folder
//! ```
//! An accelerator explains its own codes through its entry in the [`registry`](crate::registry),
//! and common codes for which it has a better text. All other codes are explained here
//! ([`ReasonCode::common_explanation`]).

use std::borrow::Cow;
use std::fmt;

/// The code of a reason. It has a meaning only together with an accelerator, unless it is a common one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReasonCode(u8);

impl ReasonCode {
    /// No accelerator serves the flow: none is registered for its port, or it is switched off.
    pub const NO_ACCELERATOR: Self = Self(0);
    /// The content is encrypted and no key was delegated.
    pub const ENCRYPTED: Self = Self(1);
    /// The content is signed and no key was delegated.
    pub const SIGNED: Self = Self(2);
    /// The hosts use a version, command or extension that the accelerator does not know.
    pub const UNSUPPORTED: Self = Self(3);
    /// The hosts break the protocol's rules.
    pub const VIOLATION: Self = Self(4);
    /// A limit of the accelerator was reached.
    pub const LIMIT: Self = Self(5);
    /// The operator's policy forbids it.
    pub const POLICY: Self = Self(6);
    /// The content is signed or encrypted, and its account was not delegated.
    pub const UNKNOWN_ACCOUNT: Self = Self(7);
    /// The content is signed or encrypted, and the delegated secret does not fit.
    pub const WRONG_KEY: Self = Self(8);
    /// The content is signed or encrypted, and the accelerator does not follow the way its key was agreed.
    pub const MECHANISM: Self = Self(9);
    /// A signature or an encrypted message is not valid.
    pub const FORGED: Self = Self(11);
    /// The content is signed or encrypted by a Kerberos session, and no keytab was delegated.
    pub const NO_KEYTAB: Self = Self(12);
    /// The content is signed or encrypted by a Kerberos session, and no key of the keytab opens the ticket.
    pub const UNKNOWN_TICKET: Self = Self(13);
    /// The server did not execute in time the requests that were answered in its place, and another
    /// connection waits for that.
    pub const UNCONFIRMED: Self = Self(15);

    /// Every common code of this release.
    pub const COMMON: &[Self] = &[
        Self::NO_ACCELERATOR,
        Self::ENCRYPTED,
        Self::SIGNED,
        Self::UNSUPPORTED,
        Self::VIOLATION,
        Self::LIMIT,
        Self::POLICY,
        Self::UNKNOWN_ACCOUNT,
        Self::WRONG_KEY,
        Self::MECHANISM,
        Self::FORGED,
        Self::NO_KEYTAB,
        Self::UNKNOWN_TICKET,
        Self::UNCONFIRMED,
    ];

    /// The code with this number. Every number is one; a later release may have given it a meaning.
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// The byte that stands for it between nodes.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        self.0
    }

    /// The meaning of a common code, in words that hold for every protocol; `None` for any other code.
    #[must_use]
    pub fn common_explanation(self) -> Option<ReasonExplanation> {
        let explanation = match self {
            Self::NO_ACCELERATOR => {
                ReasonExplanation::new("no accelerator knows this protocol; the nodes carry its bytes unchanged")
            }
            Self::ENCRYPTED => ReasonExplanation::new("the content is encrypted, and the far node has no \
                key for it in [credentials]")
                .with_remedy(DELEGATE)
                .recurring(),
            Self::SIGNED => ReasonExplanation::new("the content is signed, and the far node has no key for \
                it in [credentials]")
                .with_remedy(DELEGATE)
                .recurring(),
            Self::UNSUPPORTED => {
                ReasonExplanation::new("the hosts use a dialect or a command that the accelerator does not know")
                    .with_remedy("upgrade both nodes, if a later release knows this dialect or command")
            }
            Self::VIOLATION => ReasonExplanation::new("a host sent a message that breaks the rules of its protocol"),
            Self::LIMIT => ReasonExplanation::new("the flow reached a limit of the accelerator")
                .with_remedy("raise the limit that the log names"),
            Self::POLICY => ReasonExplanation::new("the policy forbids acceleration of this flow")
                .with_remedy("change the section [policy] in the configuration of this node or of the peer"),
            Self::UNKNOWN_ACCOUNT => ReasonExplanation::new(
                "the content is signed or encrypted, and the account file of the far node does not list the \
                 user's account",
            )
            .with_remedy(
                "add the account to the account file of the far node (accounts in [credentials])",
            )
            .recurring(),
            Self::WRONG_KEY => ReasonExplanation::new(
                "the content is signed or encrypted, and the far node's secret for this account is out of date",
            )
            .with_remedy(
                "on the far node, write the account's present secret into the account file (accounts in \
                 [credentials]), or the service's present key into the keytab",
            )
            .recurring(),
            Self::MECHANISM => ReasonExplanation::new(
                "the content is signed or encrypted, and the accelerator does not know the login method of \
                 this session",
            )
            .with_remedy(
                "have the client log in by Kerberos (with AES or RC4 keys) or by NTLM version 2; the \
                 accelerator knows these methods",
            )
            .recurring(),
            Self::FORGED => ReasonExplanation::new(
                "a signature or an encrypted message is not valid; the accelerator did not use this message",
            )
            .with_remedy("find the device on one of the LANs that changes messages"),
            Self::NO_KEYTAB => ReasonExplanation::new(
                "a Kerberos session signs or encrypts the content, and the far node has no keytab",
            )
            .with_remedy(
                "write keytab = \"FILE\" in [credentials] of the far node; FILE is the keytab of the service",
            )
            .recurring(),
            Self::UNKNOWN_TICKET => ReasonExplanation::new(
                "a Kerberos session signs or encrypts the content, and no key in the far node's keytab \
                 decrypts its ticket",
            )
            .with_remedy(
                "add the service's present key to the keytab of the far node (keytab in [credentials])",
            )
            .recurring(),
            Self::UNCONFIRMED => ReasonExplanation::new(
                "the accelerator answered the client before the server, and the server has not confirmed \
                 this answer yet; a new connection of the client had to wait for the confirmation",
            )
            .with_remedy("find out why the server, or its LAN, does not answer"),
            Self(_) => return None,
        };
        Some(explanation)
    }
}

/// The remedy for a key that is missing: the operator delegates it.
const DELEGATE: &str = "in [credentials] of the far node, write accounts = \"FILE\" (an account file), or \
                        for Kerberos keytab = \"FILE\" (the service's keytab)";

/// The meaning of a reason, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonExplanation {
    /// The event, as a clause.
    pub text: Cow<'static, str>,
    /// The operator's action that would change it; `None` where nothing would.
    pub remedy: Option<Cow<'static, str>>,
    /// True if the next flow between the same hosts meets the same reason: for example, a missing
    /// key or an unsupported login method. After a close for such a reason the engine passes those
    /// flows without acceleration.
    pub recurs: bool,
}

impl ReasonExplanation {
    /// An explanation without a remedy, of a reason that does not recur.
    #[must_use]
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            text: text.into(),
            remedy: None,
            recurs: false,
        }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same, of a reason that recurs.
    #[must_use]
    pub fn recurring(mut self) -> Self {
        self.recurs = true;
        self
    }
}

/// The node whose half gave a reason, seen from the node that explains it. Shown as people call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonSource<'a> {
    /// The node that explains it.
    ThisNode,
    /// The peer with this name.
    Peer(&'a str),
}

impl fmt::Display for ReasonSource<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisNode => out.write_str("this node"),
            Self::Peer(name) => write!(out, "the peer {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_codes_keep_their_numbers() {
        let numbers: Vec<u8> = ReasonCode::COMMON
            .iter()
            .map(|code| code.to_byte())
            .collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15]);
        let documented = include_str!("../../../../docs/formats/accelerator-frames.md");
        for number in numbers {
            let row = format!("\n| {number} | every |");
            assert!(documented.contains(&row), "no row for the code {number}");
        }
    }

    #[test]
    fn contract_explains_exactly_the_common_codes() {
        for number in 0..=u8::MAX {
            let code = ReasonCode::new(number);
            let is_common = ReasonCode::COMMON.contains(&code);
            assert_eq!(code.common_explanation().is_some(), is_common, "{number}");
        }
    }

    #[test]
    fn only_lasting_reasons_recur() {
        let recurs = |code: &ReasonCode| code.common_explanation().unwrap().recurs;
        let recurring: Vec<u8> = ReasonCode::COMMON
            .iter()
            .filter(|code| recurs(code))
            .map(|code| code.to_byte())
            .collect();
        assert_eq!(recurring, [1, 2, 7, 8, 9, 12, 13]);
    }
}
