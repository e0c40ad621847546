//! The lab's mailbox: a mail server and two clients in Python, a stand-in for Exchange and Outlook.
//!
//! The programs are part of this crate, so that a built binary needs no source tree: they are written
//! to a directory of the run and started with a Python that has impacket (`scripts/install.sh test`
//! makes one). They share no code with the accelerator. What they do is in `docs/guides/mailbox.md`.
//!
//! Nothing here speaks the protocol.

mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub use server::{
    ACCOUNT, HTTP_PORT, MAIL_NAME, MailAccount, MailServer, MailServerProofs, MailboxDescription,
    TLS_PORT, TicketService, WEB_PORT,
};

/// The programs and their modules, by file name.
const FILES: [(&str, &str); 20] = [
    ("answers.py", include_str!("../../mailbox/answers.py")),
    ("buffers.py", include_str!("../../mailbox/buffers.py")),
    ("clients.py", include_str!("../../mailbox/clients.py")),
    ("directory.py", include_str!("../../mailbox/directory.py")),
    ("emsmdb.py", include_str!("../../mailbox/emsmdb.py")),
    (
        "http_client.py",
        include_str!("../../mailbox/http_client.py"),
    ),
    (
        "http_server.py",
        include_str!("../../mailbox/http_server.py"),
    ),
    ("lz77.py", include_str!("../../mailbox/lz77.py")),
    ("ndr.py", include_str!("../../mailbox/ndr.py")),
    ("properties.py", include_str!("../../mailbox/properties.py")),
    (
        "random_calls.py",
        include_str!("../../mailbox/random_calls.py"),
    ),
    ("rops.py", include_str!("../../mailbox/rops.py")),
    ("rpc_client.py", include_str!("../../mailbox/rpc_client.py")),
    ("rpc_server.py", include_str!("../../mailbox/rpc_server.py")),
    ("security.py", include_str!("../../mailbox/security.py")),
    ("self_test.py", include_str!("../../mailbox/self_test.py")),
    ("server.py", include_str!("../../mailbox/server.py")),
    ("session.py", include_str!("../../mailbox/session.py")),
    ("store.py", include_str!("../../mailbox/store.py")),
    ("transfer.py", include_str!("../../mailbox/transfer.py")),
];

/// The programs in a directory, and the Python that runs them.
#[derive(Clone, Debug)]
pub struct MailboxPrograms {
    python: PathBuf,
    directory: PathBuf,
}

impl MailboxPrograms {
    /// Writes the programs to `directory` and checks that `python` has what they need.
    ///
    /// # Errors
    /// Fails when a file cannot be written, or the Python has no impacket; the message says how to get it.
    pub fn install(python: &Path, directory: &Path) -> Result<Self> {
        let found = Command::new(python)
            .args(["-c", "import impacket, Cryptodome"])
            .output()
            .is_ok_and(|output| output.status.success());
        ensure!(
            found,
            "{} is no Python with impacket, which the lab's mailbox needs; scripts/install.sh test makes one",
            python.display()
        );
        fs::create_dir_all(directory)?;
        for (name, text) in FILES {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(Self {
            python: python.to_owned(),
            directory: directory.to_owned(),
        })
    }

    /// The Python that runs the programs.
    #[must_use]
    pub fn python(&self) -> &Path {
        &self.python
    }

    /// The mail server's program.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.directory.join("server.py")
    }

    /// The clients' program.
    #[must_use]
    pub fn clients(&self) -> PathBuf {
        self.directory.join("clients.py")
    }

    /// The program that tests all of them on loopback.
    #[must_use]
    pub fn self_test(&self) -> PathBuf {
        self.directory.join("self_test.py")
    }
}
