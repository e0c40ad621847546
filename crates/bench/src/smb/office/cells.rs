//! Cells of the benchmark of office programs: a pattern, a protection and a mode.

use serde::ser::{Serialize, Serializer};

use super::super::cells::AccelerationMode;
use super::super::fixed_link::{self, FixedLinkCell};

/// One figure of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfficeCell {
    /// The user's action.
    pub pattern: OfficePattern,
    /// Protection of the session.
    pub protection: OfficeProtection,
    /// Mode of Trunkline.
    pub mode: AccelerationMode,
}

/// One action of a user, by its requests (`smb_patterns.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfficePattern {
    /// Word opens and reads a document.
    WordOpen,
    /// Word saves a document under another name, and exchanges the names.
    WordSave,
    /// Excel saves a workbook under another name, deletes the old one, and renames the new one.
    ExcelSave,
    /// PowerPoint saves a presentation in place.
    PowerPointSave,
    /// Explorer opens a folder with pictures.
    ExplorerBrowse,
    /// Finder opens a folder with pictures.
    FinderBrowse,
}

/// Protection of the session, which speaks SMB 3.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfficeProtection {
    /// Only the TREE_CONNECT is signed.
    Off,
    /// Every message is signed by AES-GMAC.
    Signed,
    /// Every message is encrypted.
    Encrypted,
}

impl OfficePattern {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WordOpen,
        Self::WordSave,
        Self::ExcelSave,
        Self::PowerPointSave,
        Self::ExplorerBrowse,
        Self::FinderBrowse,
    ];

    /// The name in results and in `smb_patterns.py`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WordOpen => "word-open",
            Self::WordSave => "word-save",
            Self::ExcelSave => "excel-save",
            Self::PowerPointSave => "powerpoint-save",
            Self::ExplorerBrowse => "explorer-browse",
            Self::FinderBrowse => "finder-browse",
        }
    }

    /// Tells whether it works on a folder, and not on one document.
    pub(super) const fn browses(self) -> bool {
        match self {
            Self::ExplorerBrowse | Self::FinderBrowse => true,
            Self::WordOpen | Self::WordSave | Self::ExcelSave | Self::PowerPointSave => false,
        }
    }
}

impl OfficeProtection {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Off, Self::Signed, Self::Encrypted];

    /// `off`, `on` or `encrypted`, as in the other cells of the bench.
    #[must_use]
    pub const fn signing(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Signed => "on",
            Self::Encrypted => "encrypted",
        }
    }

    /// The name that `smb_clients.py` knows it by.
    pub(super) const fn client_name(self) -> &'static str {
        match self {
            Self::Off => "plain",
            Self::Signed => "gmac",
            Self::Encrypted => "encrypted",
        }
    }
}

impl OfficeCell {
    /// All cells.
    #[must_use]
    pub fn every() -> Vec<Self> {
        let mut cells = Vec::new();
        for protection in OfficeProtection::ALL {
            for pattern in OfficePattern::ALL {
                for mode in [AccelerationMode::Baseline, AccelerationMode::Application] {
                    cells.push(Self {
                        pattern,
                        protection,
                        mode,
                    });
                }
            }
        }
        cells
    }
}

impl FixedLinkCell for OfficeCell {
    /// The name, as `word-save/on/application`.
    fn name(&self) -> String {
        format!(
            "{}/{}/{}",
            self.pattern.name(),
            self.protection.signing(),
            self.mode.name()
        )
    }

    fn mode(&self) -> AccelerationMode {
        self.mode
    }
}

impl Serialize for OfficeCell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = (self.pattern.name(), "3.1.1", self.protection.signing());
        fixed_link::serialize_cell(serializer, self.mode, fields)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn office_cell_names_are_unique() {
        let every = OfficeCell::every();
        let names: BTreeSet<String> = every.iter().map(OfficeCell::name).collect();
        assert_eq!(names.len(), every.len());
        // Six patterns, three protections, two modes.
        assert_eq!(every.len(), 36);
        let chosen = every
            .iter()
            .filter(|cell| cell.is_chosen_by("word+on/baseline"));
        assert_eq!(chosen.count(), 2);
    }

    #[test]
    fn every_pattern_is_in_the_clients_script() {
        for pattern in OfficePattern::ALL {
            let entry = format!("    \"{}\": ", pattern.name());
            assert!(lab::workload::SMB_PATTERNS.contains(&entry), "{entry}");
        }
    }
}
