//! One lane of the benchmark: two sites, one link at a time, a mail server for each cell, and nodes
//! or none.
//!
//! ```text
//!  client ── near ══ emulator ══ far ── server (and the client that measures the peers alone)
//! ```
//! For each link the nodes are started anew and carry some seconds of an attachment each way, so that
//! what is measured finds a path they know; before each cell their dictionaries are emptied.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::cells::{ContentState, MailAction, MailClient, MailMode, MailProtection, MapiCell};
use super::clients::{
    BRIEF_USER, ClientOrder, ClientOutcome, HttpMailPort, MailAuthorities, MailClientPlace,
    MailRoute, SERVICE, SHORT_LIFE, SHORT_USER, SUBJECT, TicketExpiry, WARM_UP_SUBJECT,
};
use crate::lines::LinkKind;
use crate::realm::{KerberosRealm, RealmUser};
use crate::reasons::{self, AccelerationReason, load_average};
use crate::references::DelayedResult;
use crate::site::{BenchSite, write_random};
use host::kernel::ProcessSignal;
use host::machine::ProcessorTime;
use host::{ProgramEnvironment, command, kernel, wait};
use lab::mailbox::{
    ACCOUNT, HTTP_PORT, MailServer, MailServerProofs, MailboxDescription, MailboxPrograms,
    TicketService,
};
use lab::servers::{SMB_SHARE, ServerKind, SiteServers};
use lab::topology::{LabSite, TUN_NEAR};

/// Duration of an attachment on its link, in seconds.
pub(super) const SPAN_SECONDS: u64 = 30;

/// Duration of the attachments that make a path known, in seconds.
const WARM_UP_SECONDS: u64 = 4;

/// Duration of the text of a synchronised folder on its link, in seconds.
const SYNC_SECONDS: u64 = 4;
/// The most characters of a message's body there: the server writes every body itself.
const SYNC_BODY_MAX: usize = 100_000;
/// Messages of that folder.
const SYNC_MESSAGES: u64 = 200;

/// Duration after which a transfer without acceleration is ended, in seconds. It has at least 20
/// calls.
pub(super) const BASELINE_LIMIT_SECONDS: f64 = 60.0;

/// Size of the attachment with which the peers alone are measured.
const PEER_BYTES: u64 = 20_000_000;

/// Time limit for half of an attachment to be on the link.
const SEND_LIMIT: Duration = Duration::from_secs(60);

/// Messages of the folder that is listed.
const INBOX_MESSAGES: usize = 500;

/// Content of the mailbox.
#[derive(Clone, Debug)]
struct MailboxContent {
    /// The measured attachment.
    attachment: PathBuf,
    /// The attachment of the message that makes a path known.
    warm_up: PathBuf,
    /// Characters of a message's body in the folder that is synchronised.
    sync_body: usize,
}

impl MailboxContent {
    fn description(&self) -> MailboxDescription {
        MailboxDescription::default()
            .with_folder("Inbox", INBOX_MESSAGES, None)
            .with_folder("Sync", SYNC_MESSAGES as usize, Some(self.sync_body))
            .with_attachment(SUBJECT, &self.attachment)
            .with_attachment(WARM_UP_SUBJECT, &self.warm_up)
    }
}

/// One lane.
pub(super) struct MapiLane {
    // In the order in which they have to go.
    server: Option<MailServer>,
    realm: Option<KerberosRealm>,
    authorities: Option<MailAuthorities>,
    route: MailRoute,
    programs: MailboxPrograms,
    content: MailboxContent,
    site: BenchSite,
}

/// Result of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct MapiCellResult {
    /// The cell.
    #[serde(flatten)]
    pub cell: MapiCell,
    /// Payload over time; 1 kB is 1,000 bytes.
    #[serde(rename = "goodput_kB_s")]
    pub goodput_kb_s: f64,
    /// The same for client and server alone, beside each other on one machine.
    #[serde(rename = "peer_limit_kB_s")]
    pub peer_limit_kb_s: Option<f64>,
    /// Goodput by the smaller one of the link's payload rate and the peers' limit.
    pub of_target_rate: Option<f64>,
    /// True if the peers alone are slower than the link.
    pub is_held_by_peer: bool,
    /// Time from the first request of the action to its last answer.
    pub seconds: f64,
    /// Time of RopSubmitMessage.
    pub submit_seconds: Option<f64>,
    /// Payload.
    pub bytes: u64,
    /// Calls of the client in this time.
    pub calls: u64,
    /// Calls of the client, log-on and log-off included.
    pub all_calls: u64,
    /// (Time − time for the same without delay) / RTT; `None` without delay.
    pub wan_round_trips: Option<f64>,
    /// Bytes of IP packets on the link, both ways, log-on and log-off of the client included.
    pub wan_bytes: u64,
    /// True if the content is that of the server, or of the client that sent it; `None` if a
    /// message was not sent to its end.
    pub identical: Option<bool>,
    /// False if a limit of time ended the transfer.
    pub is_complete: bool,
    /// Accelerate stage of the near node for the flow; `None` without nodes.
    pub accelerate: Option<AccelerationReason>,
    /// The share of time in which this machine's processors were busy, in percent.
    pub cpu_busy_percent: f64,
    /// Processes that waited for a processor, on average over the minute before.
    pub load_average: f64,
    /// Faults, as sentences.
    pub faults: Vec<String>,
}

/// Bytes and SHA-256 of a transfer in which the client's ticket expired, or the client's error.
pub type TicketOutcome = Result<(u64, String), String>;

/// Result of a message in the middle of which a node was killed.
#[derive(Clone, Debug)]
pub struct InterruptedSend {
    /// The client.
    pub client: MailClient,
    /// The node that was killed.
    pub site: &'static str,
    /// The client saw the end of its connection.
    pub is_cut: bool,
    /// The server had saved the message that was cut.
    pub is_saved_when_cut: bool,
    /// The server has the message that was acknowledged before.
    pub is_kept: bool,
    /// The client sent the message again, and the server has it.
    pub is_saved_again: bool,
}

impl MapiLane {
    /// Builds both sites; no server and no node runs yet.
    ///
    /// # Errors
    /// Fails when the kernel refuses, or the Python lacks a package.
    pub(super) fn create(environment: &ProgramEnvironment, python: &Path) -> Result<Self> {
        let site = BenchSite::create(environment, "mail-clients")?;
        let programs = MailboxPrograms::install(python, &site.run.subdirectory("mailbox")?)?;
        let content = MailboxContent {
            attachment: site.directory.join("attachment.bin"),
            warm_up: site.directory.join("warm-up.bin"),
            sync_body: 0,
        };
        Ok(Self {
            server: None,
            realm: None,
            authorities: None,
            route: MailRoute {
                is_ipv6: false,
                port: HttpMailPort::Own,
            },
            programs,
            content,
            site,
        })
    }

    /// Sends clients that start later this way. Servers and nodes that start later have what it needs.
    ///
    /// # Errors
    /// Fails when certificates cannot be made.
    pub(super) fn set_route(&mut self, route: MailRoute) -> Result<()> {
        self.route = route;
        if route.port != HttpMailPort::Own && self.authorities.is_none() {
            let home = self.site.run.subdirectory("mail-tls")?;
            let program = &self.site.run.environment().program;
            self.authorities = Some(MailAuthorities::make(program, home)?);
        }
        Ok(())
    }

    /// Creates the realm in which clients get tickets, if there is none. Servers and nodes that
    /// start later have the service's keys. Returns true if it was created.
    ///
    /// # Errors
    /// Fails when the realm's programs fail, or are missing.
    pub(super) fn create_realm(&mut self) -> Result<bool> {
        if self.realm.is_some() {
            return Ok(false);
        }
        let home = self.site.run.subdirectory("realm")?;
        let user = |name, ticket_life| RealmUser {
            name,
            password: ACCOUNT.password,
            ticket_life,
        };
        let users = [
            user(ACCOUNT.user, None),
            user(BRIEF_USER, Some("1s")),
            user(SHORT_USER, Some(SHORT_LIFE)),
        ];
        let (topology, logs) = (&self.site.topology, &self.site.logs);
        let realm =
            KerberosRealm::create(&self.site.run, topology, logs, &home, &users, SERVICE)
                .context("making a Kerberos realm (apt-get install krb5-kdc krb5-admin-server)")?;
        realm.delegate()?;
        self.realm = Some(realm);
        Ok(true)
    }

    /// Puts a link between the sites in place of the one before, removes the nodes, and makes new
    /// content.
    ///
    /// # Errors
    /// Fails when the emulator does not start, or files cannot be written.
    pub(super) fn set_link(&mut self, link: LinkKind, one_way_delay_ms: u32) -> Result<()> {
        self.set_words(link.words(one_way_delay_ms))?;
        let bytes_per_second = link.bits_per_second() / 8;
        let body = bytes_per_second * SYNC_SECONDS / SYNC_MESSAGES;
        self.set_content(
            bytes_per_second * SPAN_SECONDS,
            bytes_per_second * WARM_UP_SECONDS,
            usize::try_from(body).map_or(SYNC_BODY_MAX, |body| body.min(SYNC_BODY_MAX)),
        )
    }

    /// Makes a link with these arguments of `trunkline emulate run`.
    ///
    /// # Errors
    /// Fails when the emulator does not start.
    pub(super) fn set_words(&mut self, words: Vec<String>) -> Result<()> {
        self.site.set_words(words)
    }

    /// Makes new attachments of these sizes.
    ///
    /// # Errors
    /// Fails when they cannot be written.
    pub(super) fn set_content(
        &mut self,
        attachment: u64,
        warm_up: u64,
        sync_body: usize,
    ) -> Result<()> {
        write_random(&self.content.attachment, attachment, 1)?;
        write_random(&self.content.warm_up, warm_up, 2)?;
        self.content.sync_body = sync_body;
        Ok(())
    }

    /// Starts the nodes anew for this mode.
    ///
    /// # Errors
    /// Fails when they do not start.
    pub(super) fn start_nodes(&mut self, mode: MailMode) -> Result<()> {
        if !mode.has_nodes() {
            return self.site.nodes.stop();
        }
        let (mut credentials, mut accelerators) = (Vec::new(), Vec::new());
        if mode == MailMode::Application {
            credentials.push(self.site.account_file(ACCOUNT.user, ACCOUNT.password)?);
            if let Some(realm) = &self.realm {
                let keytab = realm.node_keytab();
                credentials.push(format!("keytab = \"{}\"", keytab.display()));
            }
            accelerators = vec![
                "[mapi]".to_owned(),
                "mode = \"on\"".to_owned(),
                "store_decrypted = true".to_owned(),
                format!("http_ports = [{HTTP_PORT}]"),
            ];
            if self.route.port != HttpMailPort::Own {
                accelerators.extend(["[http]".to_owned(), "mode = \"on\"".to_owned()]);
            }
            let authorities = self.authorities.iter();
            accelerators.extend(authorities.flat_map(MailAuthorities::tables));
        }
        self.site.start_nodes(credentials, accelerators)
    }

    /// Carries attachments each way, so that the nodes know the path.
    ///
    /// # Errors
    /// Fails when a client fails.
    pub(super) fn warm_up(&mut self) -> Result<()> {
        self.start_server()?;
        for action in [MailAction::SaveAttachment, MailAction::SendAttachment] {
            let mut order = ClientOrder::new(MailClient::OutlookXp, action, MailProtection::None);
            order.subject = WARM_UP_SUBJECT;
            order.file = Some(&self.content.warm_up);
            self.place()
                .run(LabSite::Near, &order)
                .context("making the path known")?;
        }
        Ok(())
    }

    /// Measures one cell on the link, with the nodes and the mail server that run.
    ///
    /// # Errors
    /// Fails when a client fails, something ends by itself, or the lab is interrupted.
    pub(super) fn measure(
        &mut self,
        cell: &MapiCell,
        limit_seconds: Option<f64>,
    ) -> Result<MapiCellResult> {
        if cell.mode.has_nodes() {
            // The bytes of the former attachment are in the dictionaries.
            self.site.nodes.empty_dictionaries()?;
        }
        if cell.state == ContentState::Again {
            let order = ClientOrder::new(
                cell.client.other(),
                MailAction::SaveAttachment,
                cell.protection,
            );
            self.place().run(LabSite::Near, &order)?;
        }
        self.measure_now(cell, limit_seconds)
    }

    /// Measures one cell with the dictionaries as they are.
    ///
    /// # Errors
    /// Fails when a client fails, something ends by itself, or the lab is interrupted.
    pub(super) fn measure_now(
        &mut self,
        cell: &MapiCell,
        limit_seconds: Option<f64>,
    ) -> Result<MapiCellResult> {
        let mut order = ClientOrder::new(cell.client, cell.action, cell.protection);
        order.is_optimised = cell.mode == MailMode::Exchange;
        order.limit_seconds = limit_seconds;
        order.route = self.route;
        let attachment = self.content.attachment.clone();
        order.file = Some(&attachment);
        let load_average = load_average();
        let before = ProcessorTime::now()?;
        let wan_before = self.wan_bytes()?;
        let outcome = self
            .place()
            .run(LabSite::Near, &order)
            .with_context(|| format!("in {}", cell.name()))?;
        let wan_bytes = self.wan_bytes()? - wan_before;
        let cpu_busy_percent = ProcessorTime::now()?.busy_since(before) * 100.0;
        self.check()?;
        let accelerate = match cell.mode.has_nodes() {
            true => Some(self.why(cell.client)?),
            false => None,
        };
        let identical = self.is_identical(&order, &outcome)?;
        let mut faults = Vec::new();
        if identical == Some(false) {
            faults.push("what arrived is not what was sent".to_owned());
        }
        let goodput_kb_s = outcome.bytes as f64 / 1e3 / outcome.seconds.max(1e-9);
        Ok(MapiCellResult {
            cell: *cell,
            goodput_kb_s,
            peer_limit_kb_s: None,
            of_target_rate: None,
            is_held_by_peer: false,
            seconds: outcome.seconds,
            submit_seconds: outcome.submit_seconds,
            bytes: outcome.bytes,
            calls: outcome.calls,
            all_calls: outcome.all_calls,
            wan_round_trips: None,
            wan_bytes,
            identical,
            is_complete: outcome.is_complete,
            accelerate,
            cpu_busy_percent,
            load_average,
            faults,
        })
    }

    /// Fetches the attachment from a file server at the far site, with empty dictionaries before.
    ///
    /// # Errors
    /// Fails when the file server or its client fails.
    pub(super) fn fetch_from_share(&mut self) -> Result<()> {
        self.site.nodes.empty_dictionaries()?;
        let kinds = [ServerKind::Smb];
        let BenchSite {
            topology,
            logs,
            run,
            ..
        } = &self.site;
        let mut servers = SiteServers::start(run, topology, LabSite::Far, logs, &kinds)?;
        fs::copy(&self.content.attachment, servers.files().join("report.bin"))?;
        let target = self.site.directory.join("report.bin");
        let share = format!("//{}/{SMB_SHARE}", LabSite::Far.host_address());
        let script = format!("get report.bin {}", target.display());
        let mut smbclient = command::new("smbclient");
        smbclient.args([&share, "-N", "-s", "/dev/null", "-c", &script]);
        let namespace = topology.namespace_file(LabSite::Near.host());
        kernel::prepare_child(&mut smbclient, Some(&namespace))?;
        command::finish("smbclient", &mut smbclient, None)?;
        let expected = fs::read(&self.content.attachment)?;
        ensure!(fs::read(&target)? == expected, "smbclient got another file");
        servers.stop()
    }

    /// Sends a message, and then another one in the middle of which the node of a site is killed.
    /// The node comes back, and the client sends the second message anew.
    ///
    /// # Errors
    /// Fails when a client fails at another time, or the node does not come back.
    pub(super) fn interrupt_send(
        &mut self,
        client: MailClient,
        site: LabSite,
    ) -> Result<InterruptedSend> {
        let attachment = self.content.attachment.clone();
        let whole = fs::metadata(&attachment)?.len();
        let hash = sha256_of(&attachment, whole)?;
        let mut order = ClientOrder::new(client, MailAction::SendAttachment, MailProtection::None);
        order.route = self.route;
        order.file = Some(&attachment);
        order.subject = "before the kill";
        self.place().run(LabSite::Near, &order)?;
        order.subject = "in the middle";
        // The dictionaries have the attachment now.
        self.site.nodes.empty_dictionaries()?;
        let before = self.wan_bytes()?;
        let sending = self.place().start(LabSite::Near, &order)?;
        wait::until(SEND_LIMIT, "half of the attachment on the link", || {
            Ok((self.wan_bytes()? - before > whole / 2).then_some(()))
        })?;
        let pid = self.site.nodes.process(site)?.pid();
        kernel::send_signal(pid, ProcessSignal::Kill)?;
        let is_cut = sending.finish().is_err();
        let saved_when_cut = self.server()?.saved(order.subject)?;
        let saved_before = self.server()?.saved("before the kill")?;
        self.site.nodes.forget_if_ended(site);
        self.site.nodes.wait_sessions()?;
        self.place().run(LabSite::Near, &order)?;
        let saved_again = self.server()?.sent(order.subject)?;
        Ok(InterruptedSend {
            client,
            site: site.node(),
            is_cut,
            is_saved_when_cut: saved_when_cut.is_some(),
            is_kept: saved_before.as_ref() == Some(&hash),
            is_saved_again: saved_again == hash,
        })
    }

    /// The error of a client at a site that logs in with an expired ticket.
    ///
    /// # Errors
    /// Fails when the client logs in nevertheless.
    pub(super) fn expired_log_on(&self, site: LabSite) -> Result<String> {
        let mut order = ClientOrder::new(
            MailClient::Outlook2003,
            MailAction::List,
            MailProtection::KerberosPrivacy,
        );
        order.expiry = TicketExpiry::BeforeLogOn;
        match self.place().run(site, &order) {
            Ok(outcome) => bail!("an expired ticket was accepted: {outcome:?}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }

    /// Outcomes of two clients whose tickets expire in the middle of a transfer, at the near site and
    /// at the far one.
    ///
    /// # Errors
    /// Fails when a client does not start.
    pub(super) fn expire_in_transfer(&self, action: MailAction) -> Result<[TicketOutcome; 2]> {
        let attachment = self.content.attachment.clone();
        let mut order = ClientOrder::new(
            MailClient::Outlook2003,
            action,
            MailProtection::KerberosPrivacy,
        );
        order.expiry = TicketExpiry::InTransfer;
        order.file = Some(&attachment);
        let start = |site| self.place().start(site, &order);
        // Both wait at the same time.
        let running = [start(LabSite::Near)?, start(LabSite::Far)?];
        Ok(running.map(|client| match client.finish() {
            Ok(outcome) => Ok((outcome.bytes, outcome.sha256)),
            Err(error) => Err(format!("{error:#}")),
        }))
    }

    /// Goodput of client and server alone, in kB/s: the client runs beside the server.
    ///
    /// # Errors
    /// Fails when a client fails.
    pub(super) fn measure_peers(&mut self, cell: &MapiCell) -> Result<f64> {
        self.start_server()?;
        let mut order = ClientOrder::new(cell.client, cell.action, cell.protection);
        order.is_optimised = cell.mode == MailMode::Exchange;
        order.file = Some(&self.content.attachment);
        let outcome = self
            .place()
            .run(LabSite::Far, &order)
            .with_context(|| format!("in {}, beside the server", cell.name()))?;
        Ok(outcome.bytes as f64 / 1e3 / outcome.seconds.max(1e-9))
    }

    /// Makes the content with which the peers alone are measured.
    ///
    /// # Errors
    /// Fails when it cannot be written.
    pub(super) fn set_peer_content(&mut self) -> Result<()> {
        self.set_content(PEER_BYTES, 1_000, SYNC_BODY_MAX)
    }

    /// Compares the content with that of the other end. What a client reads of a table or of a
    /// synchronisation is compared with what the same client reads beside the server.
    fn is_identical(
        &self,
        order: &ClientOrder<'_>,
        outcome: &ClientOutcome,
    ) -> Result<Option<bool>> {
        let attachment = &self.content.attachment;
        Ok(match order.action {
            MailAction::SaveAttachment => {
                Some(outcome.sha256 == sha256_of(attachment, outcome.bytes)?)
            }
            MailAction::SendAttachment if outcome.is_complete => {
                let whole = fs::metadata(attachment)?.len();
                let sent = self.server()?.sent(order.subject)?;
                Some(outcome.bytes == whole && sent == sha256_of(attachment, whole)?)
            }
            MailAction::SendAttachment => None,
            MailAction::Open | MailAction::List | MailAction::Synchronise => {
                let beside = self.place().run(LabSite::Far, order)?;
                Some(beside.is_complete && outcome.is_complete && beside.sha256 == outcome.sha256)
            }
        })
    }

    /// Accelerate stage of the near node for the newest flow of a client to its mailbox.
    ///
    /// # Errors
    /// Fails when the node does not answer or has seen no such flow.
    pub(super) fn why(&self, client: MailClient) -> Result<AccelerationReason> {
        let port = match client {
            MailClient::OutlookXp | MailClient::Outlook2003 => self.server()?.mailbox_port()?,
            MailClient::Outlook2013 => self.route.port.number(),
        };
        reasons::newest_why(&self.site.nodes, port)
    }

    /// Starts the mail server anew.
    ///
    /// # Errors
    /// Fails when it does not come up.
    pub(super) fn start_server(&mut self) -> Result<()> {
        self.start_server_with(false)
    }

    /// Starts the mail server anew. It refuses the calls of a session whose ticket has expired, if
    /// `ends_with_ticket`.
    ///
    /// # Errors
    /// Fails when it does not come up.
    pub(super) fn start_server_with(&mut self, ends_with_ticket: bool) -> Result<()> {
        if let Some(server) = self.server.take() {
            server.stop()?;
        }
        let keytab = self.realm.as_ref().map(KerberosRealm::service_keytab);
        let server = MailServer::start(
            &self.site.run,
            &self.site.topology,
            &self.site.logs,
            &self.programs,
            &self.content.description(),
            MailServerProofs {
                tickets: keytab.as_deref().map(|keytab| TicketService {
                    keytab,
                    ends_with_ticket,
                }),
                certificates: self.authorities.as_ref().map(|of| of.home.as_path()),
            },
        )?;
        self.server = Some(server);
        Ok(())
    }

    fn server(&self) -> Result<&MailServer> {
        self.server.as_ref().context("no mail server runs")
    }

    fn place(&self) -> MailClientPlace<'_> {
        MailClientPlace {
            topology: &self.site.topology,
            programs: &self.programs,
            directory: &self.site.directory,
            authorities: self.authorities.as_ref(),
        }
    }

    /// Bytes on the link so far, both ways, by the counters of the device that goes to the emulator
    /// on the near side.
    fn wan_bytes(&self) -> Result<u64> {
        let namespace = self.site.topology.namespace_file("wan");
        let text = kernel::in_network_namespace(&namespace, || {
            fs::read_to_string("/proc/thread-self/net/dev")
        })?;
        device_bytes(&text, TUN_NEAR).with_context(|| format!("{TUN_NEAR} is not there: {text}"))
    }

    /// Checks that everything still runs.
    ///
    /// # Errors
    /// Fails when a process has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(server) = &mut self.server {
            server.check()?;
        }
        self.site.check()
    }
}

impl DelayedResult for MapiCellResult {
    type Cell = MapiCell;

    fn cell(&self) -> &MapiCell {
        &self.cell
    }

    fn count_round_trips(&mut self, without_delay: &Self) {
        let rtt = 2.0 * f64::from(self.cell.one_way_delay_ms) / 1e3;
        if rtt == 0.0 {
            return;
        }
        let share = match self.cell.action.is_bulk() {
            true => self.bytes as f64 / without_delay.bytes.max(1) as f64,
            false => 1.0,
        };
        self.wan_round_trips = Some((self.seconds - without_delay.seconds * share) / rtt);
    }
}

impl MapiCellResult {
    /// Compares with the peers alone.
    pub(super) fn set_peer_limit(&mut self, peer_limit_kb_s: f64) {
        let link = self.cell.link.payload_kb_s();
        self.peer_limit_kb_s = Some(peer_limit_kb_s);
        self.is_held_by_peer = peer_limit_kb_s < link;
        if self.cell.action.is_bulk() || self.cell.action == MailAction::Synchronise {
            self.of_target_rate = Some(self.goodput_kb_s / link.min(peer_limit_kb_s));
        }
    }
}

/// The sum of received and sent bytes of a device in the text of /proc/net/dev.
fn device_bytes(text: &str, device: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let (name, fields) = line.split_once(':')?;
        (name.trim() == device).then_some(fields)
    })?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let field = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(field(0)? + field(8)?)
}

/// The SHA-256 of the first bytes of a file.
///
/// # Errors
/// Fails when the file cannot be read.
fn sha256_of(file: &Path, bytes: u64) -> Result<String> {
    let command = format!("head -c {bytes} '{}' | sha256sum", file.display());
    let said = command::run("sh", ["-c", &command])?;
    let hash = said.split_whitespace().next();
    Ok(hash.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_counters_are_read_by_their_name() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n  \
                    lo: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n \
                    tun-a: 1000 5 0 0 0 0 0 0 234 6 0 0 0 0 0 0\n";
        assert_eq!(device_bytes(text, TUN_NEAR), Some(1234));
        assert_eq!(device_bytes(text, "tun-b"), None);
    }
}
