//! Cells of the benchmark: a client, a link, a delay, a protection and a mode.

use serde::Serialize;

use crate::lines::LinkKind;
use crate::references::DelayedCell;

/// One figure of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmbCell {
    /// The client.
    pub client: SmbClientKind,
    /// Over which line.
    pub link: LinkKind,
    /// Each way, in milliseconds.
    pub one_way_delay_ms: u32,
    /// Protection of the session.
    pub protection: SmbProtection,
    /// Mode of Trunkline.
    pub mode: AccelerationMode,
}

/// A client and its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmbClientKind {
    /// smbprotocol, one READ of 61,440 bytes after the other: as much as Windows XP's Explorer
    /// asks for at once.
    SerialGet,
    /// The same with WRITEs, and a CLOSE that counts.
    SerialPut,
    /// A stock smbclient's `get`.
    Smbclient,
    /// smbprotocol, one READ of 1 MiB after the other.
    Smbprotocol,
    /// smbnetfs, a mounted share read to the end.
    Smbnetfs,
    /// smbprotocol reads files of 10 kB that it has found in a listing.
    SmallRead,
    /// smbprotocol writes files of 10 kB.
    SmallWrite,
    /// A stock smbclient's `ls` of 1,000 names.
    Listing,
    /// A stock smbclient's `get` by NT1, serial because the server takes one request at a time.
    Nt1Get,
    /// The same with `put`.
    Nt1Put,
}

/// Protection of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmbProtection {
    /// No protection; smbprotocol uses SMB 2.1, stock clients 3.1.1, which signs only its
    /// TREE_CONNECT.
    Off,
    /// SMB 2.1, every message signed by HMAC-SHA256.
    Hmac,
    /// SMB 3.0.2, every message signed by AES-CMAC.
    Cmac,
    /// SMB 3.1.1, every message signed by AES-GMAC.
    Gmac,
    /// SMB 3.1.1, every message encrypted.
    Encrypted,
}

/// Mode of Trunkline in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccelerationMode {
    /// No node runs.
    Baseline,
    /// Both nodes, without an accelerator for SMB: transport and reduction.
    Tcp,
    /// Both nodes, with it, and with the account's key where the session is protected.
    Application,
    /// The same under the policy `relaxed` in place of `strict`.
    Relaxed,
}

/// The published report's delays, each way, in milliseconds.
pub(super) const DELAYS_MS: [u32; 4] = [0, 30, 100, 250];

/// Files that a listing names, and their size.
pub(super) const SMALL_FILES: usize = 1_000;
/// See above.
pub(super) const SMALL_FILE_BYTES: usize = 10_000;

/// Number of small files that are read and written unless every cell is requested: each costs three
/// round trips without Trunkline.
pub(super) const SMALL_FILES_OF_DEFAULT: usize = 100;

impl SmbClientKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::SerialGet,
        Self::SerialPut,
        Self::Smbclient,
        Self::Smbprotocol,
        Self::Smbnetfs,
        Self::SmallRead,
        Self::SmallWrite,
        Self::Listing,
        Self::Nt1Get,
        Self::Nt1Put,
    ];

    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SerialGet => "serial-64k",
            Self::SerialPut => "put-serial",
            Self::Smbclient => "smbclient",
            Self::Smbprotocol => "smbprotocol",
            Self::Smbnetfs => "smbnetfs",
            Self::SmallRead | Self::SmallWrite => "small-files",
            Self::Listing => "listing",
            Self::Nt1Get | Self::Nt1Put => "nt1",
        }
    }

    /// Operation on the share.
    #[must_use]
    pub const fn operation(self) -> &'static str {
        match self {
            Self::SerialGet
            | Self::Smbclient
            | Self::Smbprotocol
            | Self::Smbnetfs
            | Self::Nt1Get
            | Self::SmallRead => "read",
            Self::SerialPut | Self::Nt1Put | Self::SmallWrite => "write",
            Self::Listing => "list",
        }
    }

    /// Tells whether its figure is a rate over a long transfer.
    #[must_use]
    pub const fn is_bulk(self) -> bool {
        match self {
            Self::SerialGet
            | Self::SerialPut
            | Self::Smbclient
            | Self::Smbprotocol
            | Self::Smbnetfs
            | Self::Nt1Get
            | Self::Nt1Put => true,
            Self::SmallRead | Self::SmallWrite | Self::Listing => false,
        }
    }

    /// Tells whether it speaks SMB 1.
    pub(super) const fn is_of_nt1(self) -> bool {
        matches!(self, Self::Nt1Get | Self::Nt1Put)
    }

    /// Tells whether it waits for each answer before its next request, with few bytes per request.
    const fn is_serial(self) -> bool {
        match self {
            Self::SerialGet
            | Self::SerialPut
            | Self::Nt1Get
            | Self::Nt1Put
            | Self::SmallRead
            | Self::SmallWrite => true,
            Self::Smbclient | Self::Smbprotocol | Self::Smbnetfs | Self::Listing => false,
        }
    }
}

impl SmbProtection {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Off,
        Self::Hmac,
        Self::Cmac,
        Self::Gmac,
        Self::Encrypted,
    ];

    /// The name that `smb_clients.py` and cells know it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Hmac => "hmac",
            Self::Cmac => "cmac",
            Self::Gmac => "gmac",
            Self::Encrypted => "encrypted",
        }
    }

    /// Options with which Samba's own clients and smbtorture protect a session in this way.
    pub(super) const fn stock_options(self) -> &'static [&'static str] {
        match self {
            Self::Off => &["--client-protection=off"],
            Self::Hmac => &["--max-protocol=SMB2_10", "--client-protection=sign"],
            Self::Cmac => &["--max-protocol=SMB3_02", "--client-protection=sign"],
            Self::Gmac => &["--client-protection=sign"],
            Self::Encrypted => &["--client-protection=encrypt"],
        }
    }

    /// `off`, `on` or `encrypted`.
    #[must_use]
    pub const fn signing(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Hmac | Self::Cmac | Self::Gmac => "on",
            Self::Encrypted => "encrypted",
        }
    }
}

impl AccelerationMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Baseline, Self::Tcp, Self::Application, Self::Relaxed];

    /// The name in those of cells.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Tcp => "tcp",
            Self::Application => "application",
            Self::Relaxed => "relaxed",
        }
    }

    /// Name of Trunkline's part in the cell, for results.
    #[must_use]
    pub const fn stage(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Tcp => "tcp",
            Self::Application | Self::Relaxed => "application",
        }
    }

    /// The policy under which SMB is accelerated, if it is.
    #[must_use]
    pub const fn consistency(self) -> Option<&'static str> {
        match self {
            Self::Baseline | Self::Tcp => None,
            Self::Application => Some("strict"),
            Self::Relaxed => Some("relaxed"),
        }
    }
}

impl SmbCell {
    /// Cells of a run without options.
    #[must_use]
    pub fn of_default() -> Vec<Self> {
        Self::every()
            .into_iter()
            .filter(|cell| {
                let is_serial_bulk = matches!(
                    cell.client,
                    SmbClientKind::SerialGet | SmbClientKind::SerialPut
                );
                let is_there =
                    is_serial_bulk || (cell.link == LinkKind::Oc1 && cell.one_way_delay_ms == 100);
                is_there
                    && !cell.client.is_of_nt1()
                    && matches!(cell.protection, SmbProtection::Off | SmbProtection::Hmac)
                    && cell.mode != AccelerationMode::Tcp
            })
            .collect()
    }

    /// Every cell there is.
    #[must_use]
    pub fn every() -> Vec<Self> {
        let mut cells = Vec::new();
        for link in [LinkKind::T1, LinkKind::Oc1] {
            for one_way_delay_ms in DELAYS_MS {
                for mode in AccelerationMode::ALL {
                    for client in SmbClientKind::ALL {
                        for protection in SmbProtection::ALL {
                            let cell = Self {
                                client,
                                link,
                                one_way_delay_ms,
                                protection,
                                mode,
                            };
                            if cell.is_of_its_own() {
                                cells.push(cell);
                            }
                        }
                    }
                }
            }
        }
        cells
    }

    /// Tells whether it is distinct from all other cells: `relaxed` changes the handling of small
    /// files that are read in sessions without encryption, and sessions of SMB 1 are not protected.
    fn is_of_its_own(&self) -> bool {
        if self.client.is_of_nt1() && self.protection != SmbProtection::Off {
            return false;
        }
        self.mode != AccelerationMode::Relaxed
            || self.client == SmbClientKind::SmallRead
                && self.protection != SmbProtection::Encrypted
    }

    /// A name for a person and for `--cells`.
    #[must_use]
    pub fn name(&self) -> String {
        let client = match self.client {
            SmbClientKind::SmallRead
            | SmbClientKind::SmallWrite
            | SmbClientKind::Nt1Get
            | SmbClientKind::Nt1Put => {
                format!("{}-{}", self.client.name(), self.client.operation())
            }
            _ => self.client.name().to_owned(),
        };
        format!(
            "{client}/{}/{}ms/{}/{}",
            self.link.name(),
            self.one_way_delay_ms,
            self.protection.name(),
            self.mode.name()
        )
    }

    /// Tells whether a word of `--cells` selects it: its name must contain all parts of the word
    /// between `+`.
    #[must_use]
    pub fn is_chosen_by(&self, word: &str) -> bool {
        let name = format!("{}/", self.name());
        word.split('+').all(|part| name.contains(part))
    }

    /// Tells whether it needs so little processor time that other cells may run beside it.
    #[must_use]
    pub(super) fn is_light(&self) -> bool {
        match (self.link, self.mode) {
            (LinkKind::T1, _) => true,
            (LinkKind::Oc1, AccelerationMode::Baseline | AccelerationMode::Tcp) => {
                self.client.is_serial() && self.one_way_delay_ms >= 30
            }
            (LinkKind::Oc1, AccelerationMode::Application | AccelerationMode::Relaxed) => false,
        }
    }

    /// Action of a second client beside it: half of the cells, spread over all kinds, have one that
    /// writes.
    #[must_use]
    pub(super) fn beside(&self) -> SecondClientAction {
        if self.mode == AccelerationMode::Relaxed {
            return SecondClientAction::ChangesItsFiles;
        }
        let client = SmbClientKind::ALL
            .iter()
            .position(|each| *each == self.client);
        let delay = DELAYS_MS
            .iter()
            .position(|each| *each == self.one_way_delay_ms);
        let protection = SmbProtection::ALL
            .iter()
            .position(|each| *each == self.protection);
        let link = usize::from(self.link == LinkKind::Oc1);
        let sum = client.unwrap_or_default()
            + delay.unwrap_or_default()
            + protection.unwrap_or_default()
            + link;
        match sum % 2 {
            0 => SecondClientAction::Nobody,
            _ => SecondClientAction::Writes,
        }
    }
}

/// Action of a second client beside a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecondClientAction {
    Nobody,
    /// The second client writes files of its own.
    Writes,
    /// The second client changes files that the first is about to read.
    ChangesItsFiles,
}

impl Serialize for SmbCell {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Cell", 8)?;
        fields.serialize_field("client", self.client.name())?;
        fields.serialize_field("operation", self.client.operation())?;
        fields.serialize_field("link", self.link.name())?;
        fields.serialize_field("one_way_delay_ms", &self.one_way_delay_ms)?;
        fields.serialize_field("signing", self.protection.signing())?;
        fields.serialize_field("algorithm", self.protection.name())?;
        fields.serialize_field("mode", self.mode.stage())?;
        fields.serialize_field("consistency", &self.mode.consistency())?;
        fields.end()
    }
}

impl DelayedCell for SmbCell {
    fn one_way_delay_ms(&self) -> u32 {
        self.one_way_delay_ms
    }

    fn without_delay(&self) -> Self {
        Self {
            one_way_delay_ms: 0,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cell_names_are_unique_and_defaults_are_stable() {
        let every = SmbCell::every();
        let names: BTreeSet<String> = every.iter().map(SmbCell::name).collect();
        assert_eq!(names.len(), every.len());
        let default = SmbCell::of_default();
        let serial = default.iter().filter(|cell| {
            matches!(
                cell.client,
                SmbClientKind::SerialGet | SmbClientKind::SerialPut
            )
        });
        // Two clients, two links, four delays, two protections, two modes.
        assert_eq!(serial.count(), 64);
        assert!(default.iter().all(|cell| {
            cell.client.is_serial() && cell.client.is_bulk()
                || (cell.link == LinkKind::Oc1 && cell.one_way_delay_ms == 100)
        }));
    }

    #[test]
    fn half_of_each_clients_cells_have_a_writer() {
        for client in [SmbClientKind::SerialGet, SmbClientKind::SerialPut] {
            let cells: Vec<SmbCell> = SmbCell::of_default()
                .into_iter()
                .filter(|cell| cell.client == client)
                .collect();
            let beside = cells
                .iter()
                .filter(|cell| cell.beside() == SecondClientAction::Writes);
            assert_eq!(beside.count() * 2, cells.len());
        }
    }

    #[test]
    fn only_small_file_reads_use_both_policies() {
        let relaxed: Vec<SmbCell> = SmbCell::of_default()
            .into_iter()
            .filter(|cell| cell.mode == AccelerationMode::Relaxed)
            .collect();
        let names: Vec<String> = relaxed.iter().map(SmbCell::name).collect();
        assert_eq!(
            names,
            [
                "small-files-read/OC-1/100ms/off/relaxed",
                "small-files-read/OC-1/100ms/hmac/relaxed"
            ]
        );
        assert!(!relaxed[0].is_chosen_by("small-files-read+application"));
        let strict = SmbCell {
            mode: AccelerationMode::Application,
            ..relaxed[0]
        };
        let value = |cell: &SmbCell| serde_json::to_value(cell).expect("a cell is plain data");
        for (cell, consistency) in [(&relaxed[0], "relaxed"), (&strict, "strict")] {
            assert_eq!(value(cell)["mode"], "application");
            assert_eq!(value(cell)["consistency"], consistency);
        }
        let baseline = SmbCell {
            mode: AccelerationMode::Baseline,
            ..strict
        };
        assert!(value(&baseline)["consistency"].is_null());
    }

    #[test]
    fn words_choose_by_all_their_parts() {
        let cell = SmbCell {
            client: SmbClientKind::SerialGet,
            link: LinkKind::T1,
            one_way_delay_ms: 30,
            protection: SmbProtection::Hmac,
            mode: AccelerationMode::Tcp,
        };
        assert_eq!(cell.name(), "serial-64k/T1/30ms/hmac/tcp");
        assert!(cell.is_chosen_by("serial+T1/30ms+tcp"));
        assert!(!cell.is_chosen_by("serial+OC-1"));
        assert!(!cell.is_chosen_by("T1/0ms"));
    }
}
