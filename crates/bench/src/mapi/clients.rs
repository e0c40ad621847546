//! Runner of the mail clients: `clients.py`, in the namespace of a host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;

use super::cells::{MailAction, MailClient, MailProtection};
use crate::realm::REALM;
use host::{command, kernel, wait};
use lab::mailbox::{
    ACCOUNT, HTTP_PORT, MAIL_NAME, MailAccount, MailboxPrograms, TLS_PORT, WEB_PORT,
};
use lab::servers::certificates;
use lab::topology::{LabSite, LabTopology};

/// Subject of the message whose attachment is measured.
pub(super) const SUBJECT: &str = "measured";
/// Subject of the message whose attachment makes a path known.
pub(super) const WARM_UP_SUBJECT: &str = "warm-up";

/// The user whose tickets expire at once.
pub(super) const BRIEF_USER: &str = "brief";
/// The user whose tickets outlive a log-on, and no transfer with a pause.
pub(super) const SHORT_USER: &str = "short";
/// Life of the tickets of [`SHORT_USER`], as kadmin writes it: a log-on takes some seconds on a busy
/// machine.
pub(super) const SHORT_LIFE: &str = "20s";
/// Pause in a transfer of [`SHORT_USER`], in seconds. The server compares whole seconds.
const PAUSE_SECONDS: f64 = 22.0;
/// The server's name in the realm.
const HOST: &str = "mail.lab.test";
/// The principal of the server's service.
pub(super) const SERVICE: &str = "exchangeMDB/mail.lab.test";

/// A client that takes longer than this for one action hangs: listing 500 messages at the longest
/// delay without Trunkline takes some seconds, and transfers have limits of their own.
const LIMIT: Duration = Duration::from_secs(600);

/// The time at which a client's ticket expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TicketExpiry {
    /// After the action.
    Later,
    /// Before the client logs in.
    BeforeLogOn,
    /// In the middle of the transfer of an attachment.
    InTransfer,
}

/// The way from a client to the mail server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MailRoute {
    /// True for the server's IPv6 address.
    pub(super) is_ipv6: bool,
    /// The port of a client that uses MAPI over HTTP.
    pub(super) port: HttpMailPort,
}

/// A port of MAPI over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpMailPort {
    /// A port of its own, which the accelerator of MAPI serves.
    Own,
    /// Port 80, which the accelerator of HTTP serves.
    Web,
    /// Port 443, with TLS that the nodes intercept.
    Tls,
}

impl HttpMailPort {
    /// The port's number.
    pub(super) const fn number(self) -> u16 {
        match self {
            Self::Own => HTTP_PORT,
            Self::Web => WEB_PORT,
            Self::Tls => TLS_PORT,
        }
    }
}

/// Authorities that clients trust.
#[derive(Clone, Debug)]
pub(super) struct MailAuthorities {
    /// The directory of the server's certificate.
    pub(super) home: PathBuf,
    /// The certificate of the server's authority.
    pub(super) origin: PathBuf,
    /// The directory of the operator's authority.
    pub(super) operator: PathBuf,
}

impl MailAuthorities {
    /// Makes both authorities, and a certificate of the server.
    ///
    /// # Errors
    /// Fails when a program fails.
    pub(super) fn make(program: &Path, home: PathBuf) -> Result<Self> {
        let origin = certificates::make(&home, MAIL_NAME)?;
        let operator = home.join("operator");
        let mut make = command::new(program);
        make.args([
            "http", "ca", "--name", "bench", "--permit", "lab.test", "--out",
        ])
        .arg(&operator);
        command::finish("trunkline http ca", &mut make, None)?;
        Ok(Self {
            home,
            origin,
            operator,
        })
    }

    /// Lines of a node's configuration that make it intercept TLS of the server.
    pub(super) fn tables(&self) -> Vec<String> {
        vec![
            "[http.tls]".to_owned(),
            format!("intercept = [\"{MAIL_NAME}\"]"),
            format!("ca_certificate = {:?}", self.operator.join("ca.pem")),
            format!("ca_key = {:?}", self.operator.join("ca.key")),
            format!("roots = {:?}", self.origin),
            "store_decrypted = true".to_owned(),
        ]
    }

    /// The authority that a client at a site trusts: beside the server, no node is on its way.
    fn trusted(&self, site: LabSite) -> PathBuf {
        match site {
            LabSite::Far => self.origin.clone(),
            LabSite::Near | LabSite::Third => self.operator.join("ca.pem"),
        }
    }
}

/// One action of a client.
#[derive(Clone, Debug)]
pub(super) struct ClientOrder<'a> {
    pub(super) client: MailClient,
    pub(super) action: MailAction,
    pub(super) protection: MailProtection,
    /// The client compresses and chains its calls.
    pub(super) is_optimised: bool,
    pub(super) subject: &'a str,
    /// The content that it sends.
    pub(super) file: Option<&'a Path>,
    /// A transfer ends after so many seconds, and not before 20 calls.
    pub(super) limit_seconds: Option<f64>,
    /// The time at which the client's ticket expires.
    pub(super) expiry: TicketExpiry,
    pub(super) route: MailRoute,
}

impl ClientOrder<'_> {
    /// An action on the measured message, by a client without optimisation.
    pub(super) const fn new(
        client: MailClient,
        action: MailAction,
        protection: MailProtection,
    ) -> Self {
        Self {
            client,
            action,
            protection,
            is_optimised: false,
            subject: SUBJECT,
            file: None,
            limit_seconds: None,
            expiry: TicketExpiry::Later,
            route: MailRoute {
                is_ipv6: false,
                port: HttpMailPort::Own,
            },
        }
    }

    /// The account that the client uses.
    fn identity(&self) -> serde_json::Value {
        let MailAccount {
            user,
            domain,
            password,
        } = ACCOUNT;
        match self.protection {
            MailProtection::None | MailProtection::NtlmPrivacy => {
                json!({"user": user, "password": password, "domain": domain})
            }
            MailProtection::KerberosPrivacy => {
                let user = match self.expiry {
                    TicketExpiry::Later => user,
                    TicketExpiry::BeforeLogOn => BRIEF_USER,
                    TicketExpiry::InTransfer => SHORT_USER,
                };
                let kdc = LabSite::Far.host_address().to_string();
                json!({
                    "user": user, "password": password, "domain": REALM, "realm": REALM,
                    "kdc": kdc, "host": HOST,
                })
            }
        }
    }
}

/// Time after which a ticket of the user [`BRIEF_USER`] has expired, in seconds: its life is a second,
/// and the server compares whole seconds.
const EXPIRY_SECONDS: f64 = 3.0;

/// Outcome that a client reports.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ClientOutcome {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) sha256: String,
    /// False if a limit of time ended the transfer.
    #[serde(default = "yes")]
    pub(super) is_complete: bool,
    /// Calls of the timed part.
    pub(super) calls: u64,
    /// Calls of the client, log-on and log-off included.
    pub(super) all_calls: u64,
    /// Time of RopSubmitMessage.
    #[serde(default)]
    pub(super) submit_seconds: Option<f64>,
}

const fn yes() -> bool {
    true
}

/// Place in which clients run.
#[derive(Clone, Copy, Debug)]
pub(super) struct MailClientPlace<'a> {
    pub(super) topology: &'a LabTopology,
    pub(super) programs: &'a MailboxPrograms,
    pub(super) directory: &'a Path,
    pub(super) authorities: Option<&'a MailAuthorities>,
}

impl MailClientPlace<'_> {
    /// Carries out an action at a site.
    ///
    /// # Errors
    /// Fails when the client fails; the message has the end of its output.
    pub(super) fn run(&self, site: LabSite, order: &ClientOrder<'_>) -> Result<ClientOutcome> {
        self.start(site, order)?.finish()
    }

    /// Begins an action at a site.
    ///
    /// # Errors
    /// Fails when the client does not start.
    pub(super) fn start(
        &self,
        site: LabSite,
        order: &ClientOrder<'_>,
    ) -> Result<RunningMailClient> {
        let name = format!("{} {}", order.client.name(), order.action.name());
        let account = self.directory.join("account.json");
        let identity = order.identity();
        fs::write(&account, identity.to_string())?;
        let (output, log) = (
            self.directory.join(format!("{}.out", site.host())),
            self.directory.join(format!("{}.log", site.host())),
        );
        let server = match order.route.is_ipv6 {
            true => LabSite::Far.host_address_v6().to_string(),
            false => LabSite::Far.host_address().to_string(),
        };
        let mut command = command::new(self.programs.python());
        command
            .arg("-B")
            .arg(self.programs.clients())
            .args([order.client.name(), order.action.name()])
            .args(["--server", &server])
            .args(["--protection", order.protection.name()])
            .args(["--exchange-optimisation", on_or_off(order.is_optimised)])
            .args(["--subject", order.subject])
            .stdin(Stdio::null())
            .stdout(fs::File::create(&output)?)
            .stderr(fs::File::create(&log)?);
        if order.protection != MailProtection::None {
            command.arg("--account").arg(&account);
        }
        if order.client == MailClient::Outlook2013 {
            let port = order.route.port;
            command.args(["--http-port", &port.number().to_string()]);
            if let (HttpMailPort::Tls, Some(authorities)) = (port, self.authorities) {
                command.args(["--tls-name", MAIL_NAME, "--tls-authority"]);
                command.arg(authorities.trusted(site));
            }
        }
        match order.expiry {
            TicketExpiry::Later => {}
            TicketExpiry::BeforeLogOn => {
                command.args(["--ticket-age", &EXPIRY_SECONDS.to_string()]);
            }
            TicketExpiry::InTransfer => {
                command.args(["--pause", &PAUSE_SECONDS.to_string()]);
            }
        }
        if let Some(file) = order.file {
            command.arg("--file").arg(file);
        }
        if let Some(limit) = order.limit_seconds {
            command.args(["--limit-seconds", &limit.to_string()]);
        }
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let namespace = self.topology.namespace_file(site.host());
        kernel::prepare_child(&mut command, Some(&namespace))?;
        let child = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(RunningMailClient {
            child,
            name,
            output,
            log,
        })
    }
}

const fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// A client at work; dropping it ends it.
#[derive(Debug)]
pub(super) struct RunningMailClient {
    child: Child,
    name: String,
    output: PathBuf,
    log: PathBuf,
}

impl RunningMailClient {
    /// Waits for the end of the action.
    ///
    /// # Errors
    /// Fails when the client fails; the message has the end of its output.
    pub(super) fn finish(mut self) -> Result<ClientOutcome> {
        let name = &self.name;
        let status = wait::until(LIMIT, name, || Ok(self.child.try_wait()?))?;
        if !status.success() {
            let errors = fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<&str> = errors.lines().rev().take(3).collect();
            bail!("{name} failed ({status}): {}", last.join(" < "));
        }
        let said = fs::read_to_string(&self.output)?;
        serde_json::from_str(&said).with_context(|| format!("{name} said: {said}"))
    }
}

impl Drop for RunningMailClient {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
