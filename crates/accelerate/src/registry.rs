//! The accelerators that exist, by number and by the port they serve.
//!
//! The number travels in a flow's open, so it is part of the wire format: numbers are never
//! used again. A node that does not know a peer's number cannot be that peer's other half and
//! refuses the open; the client sees a reset, and its next try goes past the node.

use vocab::Random;

use crate::passthrough::Passthrough;
use crate::smb::{self, Consistency};
use crate::{Accelerator, Explanation, Half, ReasonCode, ReasonSource, http};

/// The number of the accelerator that every node has.
pub const PASSTHROUGH: u8 = 0;

/// What the operator can set of accelerators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Of file shares.
    pub smb: smb::Settings,
    /// Of HTTP servers.
    pub http: http::Settings,
}

/// One registered accelerator.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its number on the wire.
    pub number: u8,
    /// Its name in tables and configuration.
    pub name: &'static str,
    /// The server ports that it serves unless the policy says otherwise.
    pub ports: &'static [u16],
    /// Whether it is switched on.
    pub is_on: fn(&Settings) -> bool,
    /// Makes one half for one flow, with chance that no other flow has.
    pub build: fn(Half, &Settings, Random) -> Box<dyn Accelerator>,
    /// Explains the accelerator's own reasons, and common ones for which it has better words;
    /// `None` for all others.
    pub explain: fn(ReasonCode, ReasonSource<'_>) -> Option<Explanation>,
}

/// Why a flow is not helped: an accelerator, and a code that it explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The accelerator's number.
    pub accelerator: u8,
    /// Its code.
    pub code: ReasonCode,
}

impl Reason {
    /// What it means to the operator: in the accelerator's words, else in common ones. A reason of a later
    /// release is shown by its numbers.
    #[must_use]
    pub fn explanation(self, source: ReasonSource<'_>) -> Explanation {
        let entry = by_number(self.accelerator);
        entry
            .and_then(|entry| (entry.explain)(self.code, source))
            .or_else(|| self.code.common_explanation())
            .unwrap_or_else(|| self.unknown(entry, source))
    }

    fn unknown(self, entry: Option<&Entry>, source: ReasonSource<'_>) -> Explanation {
        let accelerator = match entry {
            Some(entry) => entry.name.to_owned(),
            None => format!("number {}", self.accelerator),
        };
        let code = self.code.to_byte();
        Explanation::new(format!(
            "{source} gave a reason that this release does not know (code {code} of the accelerator {accelerator})"
        ))
        .with_remedy("bring both nodes to the later of their releases, which knows the reason")
    }
}

/// Every accelerator of this release. A new one is one line here.
pub const ENTRIES: &[Entry] = &[
    Entry {
        number: PASSTHROUGH,
        name: "passthrough",
        ports: &[],
        is_on: |_| true,
        build: |half, _, _| Box::new(Passthrough::new(half)),
        explain: |_, _| None,
    },
    Entry {
        number: 1,
        name: "smb",
        ports: &[445],
        is_on: |settings| settings.smb.consistency != Consistency::Off,
        build: |half, settings, chance| smb::build(half, settings.smb.clone(), chance),
        explain: smb::reasons::explain,
    },
    Entry {
        number: 2,
        name: "http",
        ports: &[80],
        is_on: |settings| settings.http.is_on,
        build: |half, settings, _| http::build(half, settings.http),
        explain: http::reasons::explain,
    },
];

/// The accelerator for flows to this server port; passthrough where none is registered, or it is
/// switched off.
#[must_use]
pub fn for_port(port: u16, settings: &Settings) -> &'static Entry {
    ENTRIES
        .iter()
        .find(|entry| entry.ports.contains(&port) && (entry.is_on)(settings))
        .unwrap_or(&ENTRIES[0])
}

/// The accelerator that is registered for flows to this server port, whether it is switched on or not.
#[must_use]
pub fn registered_for_port(port: u16) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.ports.contains(&port))
}

/// The accelerator with this number, if this release has it.
#[must_use]
pub fn by_number(number: u8) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ports_are_given_once_and_passthrough_comes_first() {
        assert_eq!(ENTRIES[0].number, PASSTHROUGH);
        for (index, entry) in ENTRIES.iter().enumerate() {
            for other in &ENTRIES[index + 1..] {
                assert_ne!(entry.number, other.number);
                assert!(entry.ports.iter().all(|port| !other.ports.contains(port)));
            }
        }
    }

    #[test]
    fn an_unknown_port_passes_and_an_unknown_number_is_nothing() {
        let settings = Settings::default();
        assert_eq!(for_port(65_000, &settings).number, PASSTHROUGH);
        assert!(by_number(255).is_none());
    }

    #[test]
    fn every_accelerator_has_an_explanation_for_every_common_code() {
        for entry in ENTRIES {
            for &code in ReasonCode::COMMON {
                let accelerator = entry.number;
                let reason = Reason { accelerator, code };
                let text = reason.explanation(ReasonSource::ThisNode).text;
                assert!(!text.contains("does not know (code"), "{text}");
            }
        }
    }

    #[test]
    fn an_unknown_reason_is_shown_by_its_numbers() {
        for (accelerator, named) in [
            (1, "smb"),
            (PASSTHROUGH, "passthrough"),
            (200, "number 200"),
        ] {
            let code = ReasonCode::new(250);
            let reason = Reason { accelerator, code };
            let explanation = reason.explanation(ReasonSource::Peer("east"));
            let wanted = format!("code 250 of the accelerator {named})");
            assert!(explanation.text.ends_with(&wanted), "{}", explanation.text);
            assert!(
                explanation.text.starts_with("the peer east"),
                "{}",
                explanation.text
            );
            assert!(!explanation.recurs);
        }
    }

    #[test]
    fn an_accelerator_that_is_switched_off_serves_no_port() {
        let mut settings = Settings::default();
        settings.smb.consistency = Consistency::Strict;
        assert_eq!(for_port(445, &settings).name, "smb");
        settings.smb.consistency = Consistency::Off;
        assert_eq!(for_port(445, &settings).number, PASSTHROUGH);
    }
}
