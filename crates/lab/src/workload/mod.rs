//! What is done in each pass: real clients fetch and store the file set.
//!
//! A workload runs in the client's namespace with clients that are fresh for each run: one curl
//! per file over HTTP (a new session each, as in the published test), one curl session for all
//! files over FTP, one smbclient session for all files over SMB. Whatever arrives, on either side,
//! is compared by hash.

mod clients;
mod files;

use std::fmt;
use std::str::FromStr;

use anyhow::bail;

use crate::servers::Kind;

pub use clients::{Arrival, Bench, Outcome};
pub use files::{EDITED_ONE_IN, FileSet, hash};

/// A protocol and a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
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
}

/// Which way the files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the server to the client.
    Download,
    /// From the client to the server.
    Upload,
}

impl Workload {
    /// All of them, in the published report's order.
    pub const ALL: [Workload; 5] = [
        Workload::HttpDownload,
        Workload::FtpDownload,
        Workload::FtpUpload,
        Workload::SmbDownload,
        Workload::SmbUpload,
    ];

    /// The name in tables, plans and result files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Workload::HttpDownload => "http-download",
            Workload::FtpDownload => "ftp-download",
            Workload::FtpUpload => "ftp-upload",
            Workload::SmbDownload => "smb-download",
            Workload::SmbUpload => "smb-upload",
        }
    }

    /// Which way its files go.
    #[must_use]
    pub const fn way(self) -> Way {
        match self {
            Workload::HttpDownload | Workload::FtpDownload | Workload::SmbDownload => Way::Download,
            Workload::FtpUpload | Workload::SmbUpload => Way::Upload,
        }
    }

    /// The server it needs.
    #[must_use]
    pub const fn server(self) -> Kind {
        match self {
            Workload::HttpDownload => Kind::Http,
            Workload::FtpDownload | Workload::FtpUpload => Kind::Ftp,
            Workload::SmbDownload | Workload::SmbUpload => Kind::Smb,
        }
    }

    /// The client program it needs.
    #[must_use]
    pub const fn client(self) -> &'static str {
        match self.server() {
            Kind::Http | Kind::Ftp => "curl",
            Kind::Smb => "smbclient",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(workload) = Self::ALL.into_iter().find(|each| each.name() == text) else {
            let names = Self::ALL.map(Workload::name).join(", ");
            bail!("`{text}` is not a workload; there are {names}");
        };
        Ok(workload)
    }
}
