//! The known accelerators, by number and by port.
//!
//! An [`AcceleratorEntry`] is the public description of an accelerator. An [`AcceleratorRegistry`]
//! contains the accelerators of one node with their settings: a value in the engine's
//! configuration, so that a test can add its own. The engine lists the accelerators of the release,
//! because some have a crate of their own, which uses this one.
//!
//! The number travels in a flow's open, so it is part of the wire format: numbers are never reused.
//! A node that does not know a peer's number refuses the open; the client sees a reset, and its
//! next attempt bypasses the node.

use std::fmt;
use std::sync::Arc;

use crate::credentials::DelegatedKeys;
use crate::detect::ProtocolDetection;
use crate::passthrough;
use crate::settings::{AcceleratorSettings, ParsedSettings, SettingsTable};
use crate::{FlowOpening, ReasonCode, ReasonExplanation, ReasonSource};

/// The number of the accelerator that every node has.
pub const PASSTHROUGH: u8 = 0;

/// One registered accelerator.
pub struct AcceleratorEntry {
    /// Its number on the wire.
    pub number: u8,
    /// Its name in `why` and `node check`, and of its table in the configuration.
    pub name: &'static str,
    /// The server ports that it serves unless the policy names others.
    pub ports: &'static [u16],
    /// The tests that recognise its protocol. They name it to people and choose nothing.
    pub detection: Option<ProtocolDetection>,
    /// Makes its settings of its table. An empty table gives the defaults and is never an error.
    pub parse: fn(&SettingsTable) -> ParsedSettings,
    /// Keys that earlier releases read from another section.
    pub moved_keys: &'static [MovedKey],
    /// True if it can use delegated keys.
    pub uses_delegated: bool,
    /// The setting that switches it on, as it is written in its table; `None` for one that is always on.
    pub switch_on: Option<&'static str>,
    /// Explains the accelerator's own reasons, and common ones for which it has better words;
    /// `None` for all others.
    pub explain: fn(ReasonCode, ReasonSource<'_>) -> Option<ReasonExplanation>,
}

/// The reason why a flow is not accelerated: an accelerator, and a code that it explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceleratorReason {
    /// The accelerator.
    pub accelerator: &'static AcceleratorEntry,
    /// Its code.
    pub code: ReasonCode,
}

impl AcceleratorReason {
    /// Explains the reason to the operator: in the accelerator's words, else in common ones. A
    /// reason of a later release is shown by its number.
    #[must_use]
    pub fn explanation(self, source: ReasonSource<'_>) -> ReasonExplanation {
        (self.accelerator.explain)(self.code, source)
            .or_else(|| self.code.common_explanation())
            .unwrap_or_else(|| self.unknown(source))
    }

    fn unknown(self, source: ReasonSource<'_>) -> ReasonExplanation {
        let accelerator = self.accelerator.name;
        let code = self.code.to_byte();
        ReasonExplanation::new(format!(
            "{source} reported a reason that this release does not know (code {code} of the accelerator {accelerator})"
        ))
        .with_remedy("upgrade this node to the peer's release, which knows the reason")
    }
}

impl PartialEq for AcceleratorEntry {
    /// The same number: it is given once.
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for AcceleratorEntry {}

/// A key that has moved to another section: the accelerator's own, or one that several share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedKey {
    /// The section that it stood in.
    pub from: &'static str,
    /// The key's name there.
    pub was: &'static str,
    /// The section that contains it now.
    pub to: &'static str,
    /// The key's name there.
    pub is: &'static str,
}

impl fmt::Debug for AcceleratorEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.name, self.number)
    }
}

/// The accelerators of one node, with their settings.
#[derive(Clone, Debug)]
pub struct AcceleratorRegistry {
    registered: Vec<RegisteredAccelerator>,
    /// The keys that the operator has delegated to this node, for any accelerator.
    pub delegated: DelegatedKeys,
}

/// An accelerator and its settings.
#[derive(Clone, Debug)]
pub struct RegisteredAccelerator {
    /// The accelerator.
    pub entry: &'static AcceleratorEntry,
    /// Its settings.
    pub settings: Arc<dyn AcceleratorSettings>,
}

impl RegisteredAccelerator {
    fn has_port(&self, port: u16) -> bool {
        self.entry.ports.contains(&port) || self.settings.further_ports().contains(&port)
    }
}

impl AcceleratorRegistry {
    /// Registers these accelerators with their default settings.
    #[must_use]
    pub fn new(entries: &[&'static AcceleratorEntry]) -> Self {
        let mut registry = Self {
            registered: Vec::new(),
            delegated: DelegatedKeys::default(),
        };
        for entry in entries {
            let settings = (entry.parse)(&SettingsTable::default());
            registry.set(entry, settings.expect("an empty table gives the defaults"));
        }
        registry
    }

    /// Registers an accelerator with these settings, or gives one that is registered other settings.
    pub fn set(
        &mut self,
        entry: &'static AcceleratorEntry,
        settings: Arc<dyn AcceleratorSettings>,
    ) {
        let mut known = self.registered.iter_mut();
        match known.find(|known| known.entry.number == entry.number) {
            Some(known) => known.settings = settings,
            None => self
                .registered
                .push(RegisteredAccelerator { entry, settings }),
        }
    }

    /// The accelerators, in the order in which they were registered.
    pub fn iter(&self) -> impl Iterator<Item = &RegisteredAccelerator> {
        self.registered.iter()
    }

    /// The accelerator for flows to this server port; passthrough where none is registered, or it is
    /// switched off.
    #[must_use]
    pub fn for_port(&self, port: u16) -> &'static AcceleratorEntry {
        let mut registered = self.registered.iter();
        let serves = |one: &&RegisteredAccelerator| one.has_port(port) && one.settings.is_on();
        registered
            .find(serves)
            .map_or(&passthrough::ENTRY, |one| one.entry)
    }

    /// The reason why no accelerator serves a flow to this server port: that of the accelerator which
    /// is registered for the port or could serve it, or the reason that there is none.
    #[must_use]
    pub fn reason_unserved(&self, port: u16) -> AcceleratorReason {
        let reason = |accelerator, code| AcceleratorReason { accelerator, code };
        let of = |one: &RegisteredAccelerator| match one.settings.reason_unserved(port) {
            Some(code) => Some(reason(one.entry, code)),
            None if one.has_port(port) => Some(reason(one.entry, ReasonCode::NO_ACCELERATOR)),
            None => None,
        };
        let found = self.registered.iter().find_map(of);
        found.unwrap_or_else(|| reason(&passthrough::ENTRY, ReasonCode::NO_ACCELERATOR))
    }

    /// The side that decides when flows of this accelerator are opened at the far node.
    #[must_use]
    pub fn opening_of(&self, entry: &AcceleratorEntry) -> FlowOpening {
        let mut registered = self.registered.iter();
        let one = registered.find(|one| one.entry.number == entry.number);
        one.map_or(FlowOpening::AtOnce, |one| one.settings.opening())
    }

    /// The accelerator with this number, if this node has it.
    #[must_use]
    pub fn by_number(&self, number: u8) -> Option<&'static AcceleratorEntry> {
        let mut registered = self.registered.iter();
        let one = registered.find(|one| one.entry.number == number)?;
        Some(one.entry)
    }
}

impl PartialEq for AcceleratorRegistry {
    /// The same accelerators with the same settings, as they would be written down.
    fn eq(&self, other: &Self) -> bool {
        let written = |one: &RegisteredAccelerator| (one.entry.number, one.settings.lines());
        self.delegated == other.delegated && self.iter().map(written).eq(other.iter().map(written))
    }
}

impl Eq for AcceleratorRegistry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb;

    fn registry() -> AcceleratorRegistry {
        AcceleratorRegistry::new(&[&passthrough::ENTRY, &smb::ENTRY])
    }

    #[test]
    fn unknown_port_passes_and_unknown_number_fails() {
        let registry = registry();
        assert_eq!(registry.for_port(65_000).number, PASSTHROUGH);
        assert!(registry.by_number(255).is_none());
    }

    #[test]
    fn switched_off_accelerator_serves_no_port() {
        let mut registry = registry();
        assert_eq!(registry.for_port(445).number, PASSTHROUGH);
        registry.set(&smb::ENTRY, Arc::new(smb::SmbSettings::STRICT));
        assert_eq!(registry.for_port(445).name, "smb");
    }

    #[test]
    fn a_registry_with_other_settings_is_another_one() {
        let mut changed = registry();
        changed.set(&smb::ENTRY, Arc::new(smb::SmbSettings::STRICT));
        assert_ne!(changed, registry());
        changed.set(&smb::ENTRY, Arc::new(smb::SmbSettings::default()));
        assert_eq!(changed, registry());
    }
}
