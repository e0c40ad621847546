//! Cells of the kernel client's benchmark: an action, a dialect, a protection and a mode.

use serde::ser::{Serialize, Serializer};

use super::super::cells::AccelerationMode;
use super::super::fixed_link::{self, FixedLinkCell};

/// One figure of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCell {
    /// The client's action.
    pub client: KernelClientKind,
    /// Version of SMB.
    pub dialect: KernelDialect,
    /// Protection of the session.
    pub protection: KernelProtection,
    /// Mode of Trunkline.
    pub mode: AccelerationMode,
}

/// Action of the kernel's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelClientKind {
    /// Reads files of 10 kB by their names.
    SmallRead,
    /// Writes new files of 10 kB.
    SmallWrite,
    /// Lists a tree of 1,000 names and asks for the status of each.
    Walk,
    /// Reads a file in blocks of 64 KiB, with `cache=none`.
    BlockRead,
    /// Writes a file in blocks of 64 KiB, with `cache=none`.
    BlockWrite,
}

/// Version of SMB, as the option `vers` of mount.cifs(8) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelDialect {
    /// SMB 1, with its UNIX extensions.
    Smb1,
    /// SMB 2.1.
    Smb21,
    /// SMB 3.0.
    Smb30,
    /// SMB 3.1.1.
    Smb311,
}

/// Protection of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelProtection {
    /// No option: messages are not signed.
    Off,
    /// `sec=ntlmsspi`: every message is signed.
    Signed,
    /// `seal`: every message is encrypted.
    Encrypted,
}

impl KernelClientKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::SmallRead,
        Self::SmallWrite,
        Self::Walk,
        Self::BlockRead,
        Self::BlockWrite,
    ];

    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmallRead => "kernel-small-read",
            Self::SmallWrite => "kernel-small-write",
            Self::Walk => "kernel-walk",
            Self::BlockRead => "kernel-64k-read",
            Self::BlockWrite => "kernel-64k-write",
        }
    }

    /// Name of one item.
    #[must_use]
    pub const fn item(self) -> &'static str {
        match self {
            Self::SmallRead | Self::SmallWrite => "file",
            Self::Walk => "directory",
            Self::BlockRead | Self::BlockWrite => "block",
        }
    }

    /// Option of the mount for the client's own cache; empty for its default.
    const fn cache_option(self) -> &'static str {
        match self {
            Self::SmallRead | Self::SmallWrite | Self::Walk => "",
            Self::BlockRead | Self::BlockWrite => ",cache=none",
        }
    }
}

impl KernelDialect {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Smb1, Self::Smb21, Self::Smb30, Self::Smb311];

    /// The name in results and in the mount's options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smb1 => "1.0",
            Self::Smb21 => "2.1",
            Self::Smb30 => "3.0",
            Self::Smb311 => "3.1.1",
        }
    }

    /// Tells whether the dialect can encrypt messages.
    const fn encrypts(self) -> bool {
        match self {
            Self::Smb1 | Self::Smb21 => false,
            Self::Smb30 | Self::Smb311 => true,
        }
    }
}

impl KernelProtection {
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

    /// Options of the mount.
    const fn options(self) -> &'static str {
        match self {
            Self::Off => "sec=ntlmssp",
            Self::Signed => "sec=ntlmsspi",
            Self::Encrypted => "sec=ntlmssp,seal",
        }
    }
}

impl KernelCell {
    /// Cells of a run without options: every protection of SMB 3.1.1, and SMB 1.
    #[must_use]
    pub fn of_default() -> Vec<Self> {
        let is_chosen = |cell: &Self| match cell.dialect {
            KernelDialect::Smb311 => true,
            KernelDialect::Smb1 => cell.protection == KernelProtection::Off,
            KernelDialect::Smb21 | KernelDialect::Smb30 => false,
        };
        Self::every().into_iter().filter(is_chosen).collect()
    }

    /// All cells.
    #[must_use]
    pub fn every() -> Vec<Self> {
        let mut cells = Vec::new();
        for dialect in KernelDialect::ALL.into_iter().rev() {
            for protection in KernelProtection::ALL {
                if protection == KernelProtection::Encrypted && !dialect.encrypts() {
                    continue;
                }
                for client in KernelClientKind::ALL {
                    for mode in [AccelerationMode::Baseline, AccelerationMode::Application] {
                        cells.push(Self {
                            client,
                            dialect,
                            protection,
                            mode,
                        });
                    }
                }
            }
        }
        cells
    }

    /// Cell whose mount carries the data that make a path known.
    pub(super) const fn warm_up() -> Self {
        Self {
            client: KernelClientKind::SmallRead,
            dialect: KernelDialect::Smb311,
            protection: KernelProtection::Off,
            mode: AccelerationMode::Application,
        }
    }

    /// Options of the mount, except for the server and the account.
    pub(super) fn mount_options(&self) -> String {
        mount_options(self.dialect, self.protection) + self.client.cache_option()
    }
}

/// Options of a mount that chooses dialect and protection.
pub(super) fn mount_options(dialect: KernelDialect, protection: KernelProtection) -> String {
    format!("vers={},{}", dialect.name(), protection.options())
}

impl FixedLinkCell for KernelCell {
    /// The name, as `kernel-walk/3.1.1/on/application`.
    fn name(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.client.name(),
            self.dialect.name(),
            self.protection.signing(),
            self.mode.name()
        )
    }

    fn mode(&self) -> AccelerationMode {
        self.mode
    }
}

impl Serialize for KernelCell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = (
            self.client.name(),
            self.dialect.name(),
            self.protection.signing(),
        );
        fixed_link::serialize_cell(serializer, self.mode, fields)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_old_dialects_unencrypted() {
        let every = KernelCell::every();
        let names: BTreeSet<String> = every.iter().map(KernelCell::name).collect();
        assert_eq!(names.len(), every.len());
        // 3 + 3 + 2 + 2 protections, five actions, two modes.
        assert_eq!(every.len(), 100);
        assert!(!names.contains("kernel-walk/2.1/encrypted/baseline"));
        assert_eq!(KernelCell::of_default().len(), 40);
    }

    #[test]
    fn cell_fields_and_mount_options_match() {
        let cell = KernelCell {
            client: KernelClientKind::BlockWrite,
            dialect: KernelDialect::Smb30,
            protection: KernelProtection::Encrypted,
            mode: AccelerationMode::Application,
        };
        assert_eq!(cell.mount_options(), "vers=3.0,sec=ntlmssp,seal,cache=none");
        let value = serde_json::to_value(cell).expect("a cell is plain data");
        assert_eq!(value["client"], "kernel-64k-write");
        assert_eq!(value["dialect"], "3.0");
        assert_eq!(value["signing"], "encrypted");
        assert_eq!(value["mode"], "application");
        assert!(cell.is_chosen_by("64k-write+3.0"));
        assert!(!cell.is_chosen_by("64k-write+baseline"));
    }
}
