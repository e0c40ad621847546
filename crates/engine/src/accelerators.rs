//! The accelerators of this release. A new one is one line here; no other code of the engine names
//! an accelerator.

use accelerate::registry::{AcceleratorEntry, AcceleratorRegistry};
use accelerate::{http, passthrough, smb};

/// Every accelerator of this release.
pub const ACCELERATORS: &[&AcceleratorEntry] =
    &[&passthrough::ENTRY, &smb::ENTRY, &http::ENTRY, &mapi::ENTRY];

/// Every accelerator of this release with its default settings.
#[must_use]
pub fn default_registry() -> AcceleratorRegistry {
    AcceleratorRegistry::new(ACCELERATORS)
}

#[cfg(test)]
mod tests {
    use accelerate::registry::{AcceleratorReason, PASSTHROUGH};
    use accelerate::{ReasonCode, ReasonSource};

    use super::ACCELERATORS;

    #[test]
    fn numbers_names_and_ports_are_unique() {
        assert_eq!(ACCELERATORS[0].number, PASSTHROUGH);
        for (index, entry) in ACCELERATORS.iter().enumerate() {
            for other in &ACCELERATORS[index + 1..] {
                assert_ne!(entry.number, other.number);
                assert_ne!(entry.name, other.name);
                assert!(entry.ports.iter().all(|port| !other.ports.contains(port)));
            }
        }
    }

    #[test]
    fn every_accelerator_explains_every_common_code() {
        for entry in ACCELERATORS {
            for &code in ReasonCode::COMMON {
                let accelerator = entry;
                let reason = AcceleratorReason { accelerator, code };
                let text = reason.explanation(ReasonSource::ThisNode).text;
                assert!(!text.contains("does not know (code"), "{text}");
            }
        }
    }

    #[test]
    fn every_reason_of_an_accelerators_own_is_documented() {
        let documented = include_str!("../../../docs/formats/accelerator-frames.md");
        for entry in ACCELERATORS {
            for code in (0..=u8::MAX).map(ReasonCode::new) {
                let is_own = (entry.explain)(code, ReasonSource::ThisNode).is_some()
                    && !ReasonCode::COMMON.contains(&code);
                let row = format!(
                    "\n| {} | {}, {} |",
                    code.to_byte(),
                    entry.number,
                    entry.name
                );
                assert_eq!(documented.contains(&row), is_own, "{row}");
            }
        }
    }

    #[test]
    fn an_unknown_reason_is_shown_by_its_number() {
        for accelerator in ACCELERATORS {
            let named = accelerator.name;
            let code = ReasonCode::new(250);
            let reason = AcceleratorReason { accelerator, code };
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
}
