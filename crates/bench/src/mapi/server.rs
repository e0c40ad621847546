//! The lab's mail server in the benchmark: one account, a mailbox for each cell, and a journal of
//! what was sent.
//!
//! The server is started anew for each cell, so that every list and every synchronisation finds the
//! same mailbox. It takes any free ports; clients and nodes learn them from its endpoint mapper.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use host::kernel::ProcessSignal;
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::{command, wait};
use lab::mailbox::MailboxPrograms;
use lab::topology::{LabSite, LabTopology};

/// The account that clients use.
pub(super) const USER: &str = "reader";
/// Its domain.
pub(super) const DOMAIN: &str = "LAB";
/// Its password.
pub(super) const PASSWORD: &str = "correct-horse-3";

/// Subject of the message whose attachment is measured.
pub(super) const SUBJECT: &str = "measured";
/// Subject of the message whose attachment makes a path known.
pub(super) const WARM_UP_SUBJECT: &str = "warm-up";

/// Messages of the folder that is listed.
const INBOX_MESSAGES: usize = 500;
/// Messages of the folder that is synchronised.
const SYNC_MESSAGES: usize = 200;

/// Time limit for the server to be ready, with a mailbox of some hundred megabytes.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for the server to hash what was sent.
const JOURNAL_LIMIT: Duration = Duration::from_secs(30);

/// The files of a mailbox.
#[derive(Clone, Debug)]
pub(super) struct MailboxContent {
    /// The measured attachment.
    pub(super) attachment: PathBuf,
    /// The attachment of the message that makes a path known.
    pub(super) warm_up: PathBuf,
    /// Characters of a message's body in the folder that is synchronised.
    pub(super) sync_body: usize,
}

/// The running server.
#[derive(Debug)]
pub(super) struct MailServer {
    process: RunningProcess,
    journal: PathBuf,
    ports: Value,
}

impl MailServer {
    /// Starts a server at the far site.
    ///
    /// # Errors
    /// Fails when it does not come up; the message shows the end of its log.
    pub(super) fn start(
        run: &LabRun,
        topology: &LabTopology,
        logs: &Path,
        programs: &MailboxPrograms,
        content: &MailboxContent,
    ) -> Result<Self> {
        let home = run.subdirectory("mail-server")?;
        let (accounts, mailbox) = (home.join("accounts.json"), home.join("mailbox.json"));
        let journal = home.join("journal.jsonl");
        let account = json!([{"user": USER, "password": PASSWORD, "domain": DOMAIN}]);
        fs::write(&accounts, account.to_string())?;
        let description = json!({
            "folders": [
                {"name": "Inbox", "messages": INBOX_MESSAGES},
                {"name": "Sync", "messages": SYNC_MESSAGES, "body_bytes": content.sync_body},
            ],
            "attachments": [
                {"subject": SUBJECT, "file": content.attachment},
                {"subject": WARM_UP_SUBJECT, "file": content.warm_up},
            ],
        });
        fs::write(&mailbox, description.to_string())?;
        fs::write(&journal, "")?;
        let launch = LaunchConfig {
            name: "mail-server",
            namespace: &topology.namespace(LabSite::Far.host()),
            program: programs.python(),
            logs,
        };
        let arguments = [
            "-B".to_owned(),
            programs.server().display().to_string(),
            "--listen".to_owned(),
            LabSite::Far.host_address().to_string(),
            "--accounts".to_owned(),
            accounts.display().to_string(),
            "--mailbox".to_owned(),
            mailbox.display().to_string(),
            "--journal".to_owned(),
            journal.display().to_string(),
            "--ignore-input".to_owned(),
        ];
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
    pub(super) fn mailbox_port(&self) -> Result<u16> {
        let port = self.ports["mailbox"].as_u64();
        port.and_then(|port| u16::try_from(port).ok())
            .with_context(|| format!("the mail server named these ports: {}", self.ports))
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// Fails when it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Stops it.
    ///
    /// # Errors
    /// Fails when its end cannot be waited for.
    pub(super) fn stop(mut self) -> Result<()> {
        self.process.stop(ProcessSignal::Terminate).map(drop)
    }

    /// The SHA-256 of the attachment that was saved with a message of this subject.
    ///
    /// # Errors
    /// Fails when the journal does not name one in time.
    pub(super) fn sent(&self, subject: &str) -> Result<String> {
        wait::until(JOURNAL_LIMIT, "the journal of the mail server", || {
            let text = fs::read_to_string(&self.journal)?;
            Ok(text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .filter(|line| line["subject"] == subject)
                .find_map(|line| Some(line["attachments"][0]["sha256"].as_str()?.to_owned())))
        })
    }
}

/// The SHA-256 of the first bytes of a file.
///
/// # Errors
/// Fails when the file cannot be read.
pub(super) fn sha256_of(file: &Path, bytes: u64) -> Result<String> {
    let command = format!("head -c {bytes} '{}' | sha256sum", file.display());
    let said = command::run("sh", ["-c", &command])?;
    let hash = said.split_whitespace().next();
    Ok(hash.unwrap_or_default().to_owned())
}
