//! The lab's mail server: one account, a mailbox with folders and attachments, and a journal of what
//! was sent.
//!
//! A server is started anew for each measurement, so that every list and every synchronisation finds
//! the same mailbox. It takes any free ports; clients and nodes learn them from its endpoint mapper.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::MailboxPrograms;
use crate::topology::{LabSite, LabTopology};
use host::kernel::ProcessSignal;
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::wait;

/// The account that clients use.
pub const ACCOUNT: MailAccount = MailAccount {
    user: "reader",
    domain: "LAB",
    password: "correct-horse-3",
};

/// The server's port of MAPI over HTTP. No endpoint mapper names it, so nodes and clients have to know
/// it before the server starts.
pub const HTTP_PORT: u16 = 6080;

/// Time limit for the server to be ready, with a mailbox of some hundred megabytes.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for the server to hash what was sent.
const JOURNAL_LIMIT: Duration = Duration::from_secs(30);

/// A user of the mail server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailAccount {
    /// Name.
    pub user: &'static str,
    /// Domain.
    pub domain: &'static str,
    /// Password.
    pub password: &'static str,
}

/// The server's port of MAPI over HTTP beside web servers.
pub const WEB_PORT: u16 = 80;
/// The server's port of MAPI over HTTP inside TLS.
pub const TLS_PORT: u16 = 443;
/// The server's name in its certificate.
pub const MAIL_NAME: &str = "mail.lab.test";

/// Service whose tickets a server takes.
#[derive(Clone, Copy, Debug)]
pub struct TicketService<'a> {
    /// Its keys.
    pub keytab: &'a Path,
    /// The server refuses the calls of a session whose ticket has expired.
    pub ends_with_ticket: bool,
}

/// Proofs of a server's identity.
#[derive(Clone, Copy, Debug, Default)]
pub struct MailServerProofs<'a> {
    /// Its service; without one it takes no tickets.
    pub tickets: Option<TicketService<'a>>,
    /// The directory of `leaf.pem` and `leaf.key`; without it the server leaves [`WEB_PORT`] and [`TLS_PORT`] to
    /// other servers.
    pub certificates: Option<&'a Path>,
}

/// Content of a mailbox when its server starts.
#[derive(Clone, Debug, Default)]
pub struct MailboxDescription {
    folders: Vec<Value>,
    attachments: Vec<Value>,
}

/// The running server.
#[derive(Debug)]
pub struct MailServer {
    process: RunningProcess,
    journal: PathBuf,
    ports: Value,
}

impl MailboxDescription {
    /// Adds a folder with messages whose bodies have this size; `None` lets the server choose it.
    #[must_use]
    pub fn with_folder(mut self, name: &str, messages: usize, body_bytes: Option<usize>) -> Self {
        let mut folder = json!({"name": name, "messages": messages});
        if let Some(bytes) = body_bytes {
            folder["body_bytes"] = bytes.into();
        }
        self.folders.push(folder);
        self
    }

    /// Adds a message with this subject to the inbox; the file is its attachment.
    #[must_use]
    pub fn with_attachment(mut self, subject: &str, file: &Path) -> Self {
        self.attachments
            .push(json!({"subject": subject, "file": file}));
        self
    }
}

impl MailServer {
    /// Starts a server at the far site, for clients by IPv4 and by IPv6.
    ///
    /// # Errors
    /// Fails when it does not come up; the message shows the end of its log.
    pub fn start(
        run: &LabRun,
        topology: &LabTopology,
        logs: &Path,
        programs: &MailboxPrograms,
        content: &MailboxDescription,
        proofs: MailServerProofs<'_>,
    ) -> Result<Self> {
        let home = run.subdirectory("mail-server")?;
        let (accounts, mailbox) = (home.join("accounts.json"), home.join("mailbox.json"));
        let journal = home.join("journal.jsonl");
        let MailAccount {
            user,
            domain,
            password,
        } = ACCOUNT;
        let account = json!([{"user": user, "password": password, "domain": domain}]);
        fs::write(&accounts, account.to_string())?;
        let description = json!({
            "folders": content.folders,
            "attachments": content.attachments,
        });
        fs::write(&mailbox, description.to_string())?;
        fs::write(&journal, "")?;
        let launch = LaunchConfig {
            name: "mail-server",
            namespace: &topology.namespace(LabSite::Far.host()),
            program: programs.python(),
            logs,
        };
        let mut arguments = vec![
            "-B".to_owned(),
            programs.server().display().to_string(),
            "--listen".to_owned(),
            "::".to_owned(),
            "--accounts".to_owned(),
            accounts.display().to_string(),
            "--mailbox".to_owned(),
            mailbox.display().to_string(),
            "--journal".to_owned(),
            journal.display().to_string(),
            "--http-port".to_owned(),
            HTTP_PORT.to_string(),
            "--ignore-input".to_owned(),
        ];
        if let Some(certificates) = proofs.certificates {
            let file = |name: &str| certificates.join(name).display().to_string();
            arguments.extend(["--http-port".to_owned(), WEB_PORT.to_string()]);
            arguments.extend(["--https-port".to_owned(), TLS_PORT.to_string()]);
            arguments.extend(["--certificate".to_owned(), file("leaf.pem")]);
            arguments.extend(["--certificate-key".to_owned(), file("leaf.key")]);
        }
        if let Some(tickets) = proofs.tickets {
            let keytab = tickets.keytab.display().to_string();
            arguments.extend(["--keytab".to_owned(), keytab]);
            if tickets.ends_with_ticket {
                arguments.push("--end-with-ticket".to_owned());
            }
        }
        let log = logs.join("mail-server.log");
        let mark = fs::metadata(&log).map_or(0, |known| known.len() as usize);
        let mut process = RunningProcess::start(run, &launch, arguments)?;
        let mut ports = Value::Null;
        process.wait_ready(START_LIMIT, "to name its ports", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let said = text.get(mark..).unwrap_or_default();
            let ready = said
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .find(|line| line["ready"] == true);
            Ok(ready.is_some_and(|line| {
                ports = line["ports"].clone();
                true
            }))
        })?;
        Ok(Self {
            process,
            journal,
            ports,
        })
    }

    /// Port of the mailbox interface.
    ///
    /// # Errors
    /// Fails when the server has not named it.
    pub fn mailbox_port(&self) -> Result<u16> {
        let port = self.ports["mailbox"].as_u64();
        port.and_then(|port| u16::try_from(port).ok())
            .with_context(|| format!("the mail server named these ports: {}", self.ports))
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// Fails when it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Stops it.
    ///
    /// # Errors
    /// Fails when its end cannot be waited for.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop(ProcessSignal::Terminate).map(drop)
    }

    /// The SHA-256 of the attachment that was saved with a message of this subject.
    ///
    /// # Errors
    /// Fails when the journal does not name one in time.
    pub fn sent(&self, subject: &str) -> Result<String> {
        wait::until(JOURNAL_LIMIT, "the journal of the mail server", || {
            self.saved(subject)
        })
    }

    /// The same, if a message of this subject was saved by now.
    ///
    /// # Errors
    /// Fails when the journal cannot be read.
    pub fn saved(&self, subject: &str) -> Result<Option<String>> {
        let text = fs::read_to_string(&self.journal)?;
        Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["subject"] == subject)
            .find_map(|line| Some(line["attachments"][0]["sha256"].as_str()?.to_owned())))
    }
}
