//! Workloads of a pass: real clients fetch and store the file set.
//!
//! A workload runs in the client's namespace with clients that are fresh for each run: one curl
//! per file over HTTP (a new session each, as in the published test), one curl session for all
//! files over FTP, one smbclient session for all files over SMB, one mail client per attachment. Whatever arrives, on either side,
//! is compared by hash.

mod clients;
mod files;
mod web_page;

use std::fmt;
use std::str::FromStr;

use anyhow::bail;

use crate::servers::ServerKind;

pub use clients::{
    FileArrival, MailClientSettings, SERIAL_BLOCK_BYTES, SMB_CLIENTS, SMB_PATTERNS,
    WorkloadEnvironment, WorkloadOutcome,
};
pub use files::{EDITED_ONE_IN, FileSet, hash};
pub use web_page::{PAGE_PATH, WebPage};

/// A protocol and a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkloadKind {
    /// curl fetches each file from nginx over a connection of its own.
    HttpDownload,
    /// curl fetches the files from vsftpd in one session.
    FtpDownload,
    /// curl stores the files to vsftpd in one session.
    FtpUpload,
    /// smbclient gets the files from smbd in one session.
    SmbDownload,
    /// smbclient puts the files to smbd in one session.
    SmbUpload,
    /// smbprotocol gets each file by one READ of 60 KiB after the other, as Windows XP does.
    SmbSerialDownload,
    /// smbprotocol opens and saves each document as an office suite does.
    SmbOffice,
    /// A mail client saves attachments as Outlook XP does, by one RopReadStream after the other.
    MapiXp,
    /// A mail client saves attachments as Outlook 2003 does.
    Mapi2003,
}

/// Direction of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// From the server to the client.
    Download,
    /// From the client to the server.
    Upload,
}

impl WorkloadKind {
    /// Transfers of the published file set, in the published report's order.
    pub const ALL: [WorkloadKind; 5] = [
        WorkloadKind::HttpDownload,
        WorkloadKind::FtpDownload,
        WorkloadKind::FtpUpload,
        WorkloadKind::SmbDownload,
        WorkloadKind::SmbUpload,
    ];

    /// All of them.
    pub const EVERY: [WorkloadKind; 9] = [
        WorkloadKind::HttpDownload,
        WorkloadKind::FtpDownload,
        WorkloadKind::FtpUpload,
        WorkloadKind::SmbDownload,
        WorkloadKind::SmbUpload,
        WorkloadKind::SmbSerialDownload,
        WorkloadKind::SmbOffice,
        WorkloadKind::MapiXp,
        WorkloadKind::Mapi2003,
    ];

    /// The name in tables, plans and result files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WorkloadKind::HttpDownload => "http-download",
            WorkloadKind::FtpDownload => "ftp-download",
            WorkloadKind::FtpUpload => "ftp-upload",
            WorkloadKind::SmbDownload => "smb-download",
            WorkloadKind::SmbUpload => "smb-upload",
            WorkloadKind::SmbSerialDownload => "smb-serial-download",
            WorkloadKind::SmbOffice => "smb-office",
            WorkloadKind::MapiXp => "mapi-xp",
            WorkloadKind::Mapi2003 => "mapi-2003",
        }
    }

    /// Direction of its files; documents that are saved come back.
    #[must_use]
    pub const fn way(self) -> TransferDirection {
        match self {
            WorkloadKind::HttpDownload
            | WorkloadKind::FtpDownload
            | WorkloadKind::SmbDownload
            | WorkloadKind::SmbSerialDownload
            | WorkloadKind::SmbOffice
            | WorkloadKind::MapiXp
            | WorkloadKind::Mapi2003 => TransferDirection::Download,
            WorkloadKind::FtpUpload | WorkloadKind::SmbUpload => TransferDirection::Upload,
        }
    }

    /// The server it needs.
    #[must_use]
    pub const fn server(self) -> ServerKind {
        match self {
            WorkloadKind::HttpDownload => ServerKind::Http,
            WorkloadKind::FtpDownload | WorkloadKind::FtpUpload => ServerKind::Ftp,
            WorkloadKind::SmbDownload
            | WorkloadKind::SmbUpload
            | WorkloadKind::SmbSerialDownload
            | WorkloadKind::SmbOffice => ServerKind::Smb,
            WorkloadKind::MapiXp | WorkloadKind::Mapi2003 => ServerKind::Mail,
        }
    }

    /// The client program it needs.
    #[must_use]
    pub const fn client(self) -> &'static str {
        match self {
            WorkloadKind::HttpDownload | WorkloadKind::FtpDownload | WorkloadKind::FtpUpload => {
                "curl"
            }
            WorkloadKind::SmbDownload | WorkloadKind::SmbUpload => "smbclient",
            WorkloadKind::SmbSerialDownload
            | WorkloadKind::SmbOffice
            | WorkloadKind::MapiXp
            | WorkloadKind::Mapi2003 => "python3",
        }
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for WorkloadKind {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(workload) = Self::EVERY.into_iter().find(|each| each.name() == text) else {
            let names = Self::EVERY.map(WorkloadKind::name).join(", ");
            bail!("`{text}` is not a workload; there are {names}");
        };
        Ok(workload)
    }
}
