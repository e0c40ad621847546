//! One lane of the benchmark: two sites, one link at a time, smbd with its audit, and nodes or
//! none.
//!
//! ```text
//!  client ── near ══ emulator ══ far ── server (smbd, and the second client that writes beside)
//! ```
//! For each link the nodes are started anew and carry a few seconds of bulk data both ways, so that
//! what is measured finds a path they know; before each cell their dictionaries are emptied.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use vocab::SeededRandom;

use super::capture::SmbCapture;
use super::cells::{
    AccelerationMode, SMALL_FILE_BYTES, SMALL_FILES, SecondClientAction, SmbCell, SmbClientKind,
    SmbProtection,
};
use super::clients::{ClientOutcome, ClientPlace, ClientPython, SecondClient};
use super::freshness::FreshnessResult;
use super::server::{OFFICE_SHARE, PASSWORD, RequestsAtOnce, SmbServer, USER, torture_shares};
use crate::lines::LinkKind;
use crate::reasons::{self, AccelerationReason, load_average};
use crate::references::DelayedResult;
use crate::site::{BenchSite, write_random};
use host::kernel::ProcessSignal;
use host::machine::ProcessorTime;
use host::{ProgramEnvironment, command, kernel};
use lab::machine::{MachineImage, VirtualMachine};
use lab::servers::SMB_PORT;
use lab::topology::LabSite;

/// Options that enable NT1 in smbclient, which is off by default.
pub(super) const NT1_OPTIONS: [&str; 4] = [
    "-m",
    "NT1",
    "--option=client min protocol = NT1",
    "--client-protection=off",
];

/// Size of one READ or WRITE of the serial clients: as in Windows XP's Explorer.
const SERIAL_BLOCK: usize = 61_440;
/// One READ of smbprotocol as it is recommended to be used.
const LARGE_BLOCK: usize = 1 << 20;

/// Duration of the bulk data that make a path known, in each direction.
const WARM_UP_SECONDS: u64 = 4;

/// Greatest age of a file's times at its open under the policy `relaxed`: the nodes' default.
const STALENESS_MS: u32 = 1_000;

/// Files of the share.
const BULK: &str = "bulk.bin";
const WARM_UP: &str = "warm-up.bin";
/// File that is put to make it known. Its bytes are its own, because files that were got are in the
/// dictionaries.
const WARM_UP_PUT: &str = "warm-up-put.bin";
const UPLOAD: &str = "upload.bin";
/// File that SMB 1 clients get and put: a third of the bulk size. They transfer all of it, which
/// takes ten minutes without nodes.
const NT1: &str = "nt1.bin";
const NT1_SHARE: u64 = 3;
pub(super) const SMALL: &str = "small";
pub(super) const SMALL_UPLOADS: &str = "small-uploads";
const DOCUMENTS: &str = "documents";

/// One lane.
pub(super) struct SmbLane {
    // In the order in which they have to go.
    server: SmbServer,
    site: BenchSite,
    clients: Option<ClientPython>,
    link: Option<LinkKind>,
    /// Nodes get the account's key, where they accelerate.
    is_key_delegated: bool,
    /// Clients with code of their own ask for a lease with each file.
    clients_hold_leases: bool,
    /// The nodes leave durable handles to the server.
    keeps_durable: bool,
    /// Nodes reset idle connections that are older than they are.
    resets_surviving: bool,
}

/// Result of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct SmbCellResult {
    /// The cell.
    #[serde(flatten)]
    pub cell: SmbCell,
    /// Payload over time; 1 kB is 1,000 bytes.
    #[serde(rename = "goodput_kB_s")]
    pub goodput_kb_s: f64,
    /// Time from the first READ or WRITE to the last byte, or to the last CLOSE that counts.
    pub seconds: f64,
    /// Payload.
    pub bytes: u64,
    /// Files read, written or listed, where there are many.
    pub files: usize,
    /// (Time − time for the same without delay) / RTT; `None` without delay.
    pub wan_round_trips: Option<f64>,
    /// The same for one file.
    pub wan_round_trips_per_file: Option<f64>,
    /// Goodput by rate × 1448/1500.
    pub of_payload_rate: f64,
    /// Opens that smbd saw from the client's own account and address.
    pub server_saw_opens: usize,
    /// Closes that it saw so.
    pub server_saw_closes: usize,
    /// Number of writes by a second client beside it.
    pub writes_beside: Option<u64>,
    /// Age of the client's information, where the second one changed its files.
    pub freshness: Option<FreshnessResult>,
    /// Accelerate stage of the near node for the flow; `None` without nodes.
    pub accelerate: Option<AccelerationReason>,
    /// The share of time in which this machine's processors were busy, in percent.
    pub cpu_busy_percent: f64,
    /// Processes that waited for a processor, on average over the minute before.
    pub load_average: f64,
    /// Faults, as sentences.
    pub faults: Vec<String>,
}

/// An office document: its published size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfficeDocument {
    /// Its name.
    pub file: String,
    /// Its size.
    pub bytes: u64,
}

/// Seconds that a document took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DocumentTimes {
    /// The document.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// Mode of Trunkline.
    pub mode: &'static str,
    /// State of the dictionaries: whether they held it already.
    pub cache: &'static str,
    /// Time to open it.
    pub open_seconds: f64,
    /// Time to save it.
    pub save_seconds: f64,
    /// Accelerate stage of the near node for the flow; `None` without nodes.
    pub accelerate: Option<AccelerationReason>,
}

impl SmbLane {
    /// Builds both sites and starts smbd; no node runs yet. Cells need clients.
    ///
    /// # Errors
    /// When the kernel refuses or smbd does not start.
    pub(super) fn create(
        environment: &ProgramEnvironment,
        clients: Option<&ClientPython>,
    ) -> Result<Self> {
        Self::create_serving(environment, clients, RequestsAtOnce::One)
    }

    /// Builds a lane as [`Self::create`] does, whose smbd takes this many requests at a time.
    ///
    /// # Errors
    /// Fails as [`Self::create`] does.
    pub(super) fn create_serving(
        environment: &ProgramEnvironment,
        clients: Option<&ClientPython>,
        requests: RequestsAtOnce,
    ) -> Result<Self> {
        let site = BenchSite::create(environment, "smb-clients")?;
        let server = SmbServer::start(&site.run, &site.topology, &site.logs, requests)?;
        let lane = Self {
            server,
            site,
            clients: clients.cloned(),
            link: None,
            is_key_delegated: false,
            clients_hold_leases: false,
            keeps_durable: false,
            resets_surviving: false,
        };
        for (name, mode) in [(SMALL, 0o755), (SMALL_UPLOADS, 0o777), (DOCUMENTS, 0o777)] {
            let path = lane.server.files().join(name);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        lane.publish_small()?;
        Ok(lane)
    }

    /// Fills the directory of small files, which the account may change.
    fn publish_small(&self) -> Result<()> {
        let mut random = SeededRandom::from_seed(u64::from(std::process::id()));
        let mut content = vec![0; SMALL_FILE_BYTES];
        for number in 0..SMALL_FILES {
            random.fill(&mut content);
            let name = format!("{SMALL}/file-{number:04}.bin");
            let path = self.server.files().join(name);
            fs::write(&path, &content)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        }
        Ok(())
    }

    /// Puts a link between the sites in place of the one before, and takes the nodes away.
    ///
    /// # Errors
    /// When the emulator does not start, or files cannot be written.
    pub(super) fn set_link(&mut self, link: LinkKind, one_way_delay_ms: u32) -> Result<()> {
        self.set_words(link.words(one_way_delay_ms))?;
        if self.link != Some(link) {
            let bytes_per_second = link.bits_per_second() / 8;
            // With headers the line takes longer than its span for so much: no file ends early.
            let bulk = bytes_per_second * link.span().as_secs();
            self.publish(BULK, bulk, 1)?;
            self.publish(NT1, bulk / NT1_SHARE, 5)?;
            self.publish_warm_up(bytes_per_second * WARM_UP_SECONDS)?;
            self.link = Some(link);
        }
        Ok(())
    }

    /// Makes a link with these arguments of `trunkline emulate run` between the sites, and removes
    /// the nodes.
    ///
    /// # Errors
    /// Fails when the emulator does not start.
    pub(super) fn set_words(&mut self, words: Vec<String>) -> Result<()> {
        self.site.set_words(words)
    }

    /// Starts the nodes anew for this mode, and carries bulk data both ways.
    ///
    /// # Errors
    /// When they do not start, or the bulk data do not arrive.
    pub(super) fn start_nodes(&mut self, mode: AccelerationMode) -> Result<()> {
        self.start_nodes_alone(mode)?;
        for doing in ["smbclient", "smbclient-put"] {
            self.warm_up(doing)?;
        }
        Ok(())
    }

    /// Sets whether nodes that start from now on get the account's key.
    pub(super) fn delegate_key(&mut self, is_delegated: bool) {
        self.is_key_delegated = is_delegated;
    }

    /// Lets clients have durable handles through nodes that start from now on.
    pub(super) fn keep_durable(&mut self) {
        self.keeps_durable = true;
    }

    /// Lets nodes that start from now on reset connections that bypass them, once they are idle for 4 s.
    pub(super) fn reset_surviving(&mut self) {
        self.resets_surviving = true;
    }

    /// Allows clients to request leases from now on.
    pub(super) fn hold_leases(&mut self) {
        self.clients_hold_leases = true;
    }

    /// Starts the nodes anew for this mode.
    ///
    /// # Errors
    /// When they do not start.
    pub(super) fn start_nodes_alone(&mut self, mode: AccelerationMode) -> Result<()> {
        let mut credentials = Vec::new();
        let mut accelerators = table(mode);
        if self.keeps_durable {
            accelerators.push("durable = \"keep\"".to_owned());
        }
        if self.is_key_delegated && mode.consistency().is_some() {
            credentials.push(self.site.account_file(USER, PASSWORD)?);
            accelerators.push("resign_gmac = true".to_owned());
        }
        if self.resets_surviving {
            accelerators.push(format!(
                "[intercept.reset_surviving]\nports = [{SMB_PORT}]\nidle = \"4s\"\nafter = \"1s\""
            ));
        }
        self.site.start_nodes(credentials, accelerators)
    }

    fn warm_up(&mut self, doing: &str) -> Result<()> {
        let local = self.site.directory.join("warm-up.bin");
        let path = match doing {
            "smbclient-put" => {
                fs::copy(self.server.files().join(WARM_UP_PUT), &local)?;
                UPLOAD
            }
            _ => WARM_UP,
        };
        let place = self.place(LabSite::Near);
        let mut order = place.order(doing, SmbProtection::Off.name(), path);
        order["local"] = json!(local);
        order["truth"] = json!(self.server.files().join(path));
        self.clients()?
            .run(&place, &order, |_| Ok(()))
            .context("making the path known")?;
        let _ = fs::remove_file(self.server.files().join(UPLOAD));
        Ok(())
    }

    /// Measures one cell on the link and with the nodes there are.
    ///
    /// # Errors
    /// When a client fails, something ends by itself, or the lab is interrupted.
    pub(super) fn measure(
        &mut self,
        cell: &SmbCell,
        seconds: f64,
        files: usize,
    ) -> Result<SmbCellResult> {
        if cell.mode != AccelerationMode::Baseline {
            self.site.nodes.empty_dictionaries()?;
        }
        let order = self.order(cell, seconds, files)?;
        let beside = self.start_beside(cell, files)?;
        let mark = self.server.mark();
        let load_average = load_average();
        let before = ProcessorTime::now()?;
        let (outcome, (cpu_busy_percent, witness)) = self
            .clients()?
            .run(&self.place(LabSite::Near), &order, |outcome| {
                let busy = ProcessorTime::now()?.busy_since(before) * 100.0;
                Ok((busy, self.server.account(mark, outcome.closes)?))
            })
            .with_context(|| format!("in {}", cell.name()))?;
        let writes_beside = beside.map(SecondClient::finish).transpose()?;
        self.check()?;
        let accelerate = match cell.mode {
            AccelerationMode::Baseline => None,
            AccelerationMode::Tcp | AccelerationMode::Application | AccelerationMode::Relaxed => {
                Some(self.why()?)
            }
        };
        let mut faults = Vec::new();
        let freshness = match cell.beside() {
            SecondClientAction::Nobody | SecondClientAction::Writes => None,
            SecondClientAction::ChangesItsFiles => Some(self.freshness()?),
        };
        faults.extend(freshness.iter().flat_map(FreshnessResult::faults));
        if !outcome.is_identical {
            faults.push("what arrived is not what was sent".to_owned());
        }
        if witness.others > 0 {
            faults.push("the server saw another account than the client's own".to_owned());
        }
        if witness.opens < outcome.opens {
            faults.push(format!(
                "the server saw {} opens by the client, which made {}",
                witness.opens, outcome.opens
            ));
        }
        if witness.closes < outcome.closes {
            faults.push(format!(
                "the server saw {} closes by the client, which had {} answered",
                witness.closes, outcome.closes
            ));
        }
        if writes_beside == Some(0) {
            faults.push("the second client wrote nothing".to_owned());
        }
        self.clear_uploads()?;
        let goodput_kb_s = outcome.bytes as f64 / 1e3 / outcome.seconds.max(1e-9);
        Ok(SmbCellResult {
            cell: *cell,
            goodput_kb_s,
            seconds: outcome.seconds,
            bytes: outcome.bytes,
            files: outcome.files,
            wan_round_trips: None,
            wan_round_trips_per_file: None,
            of_payload_rate: goodput_kb_s / cell.link.payload_kb_s(),
            server_saw_opens: witness.opens,
            server_saw_closes: witness.closes,
            writes_beside,
            freshness,
            accelerate,
            cpu_busy_percent,
            load_average,
            faults,
        })
    }

    /// Starts the second client of a cell, if it has one.
    fn start_beside(&self, cell: &SmbCell, files: usize) -> Result<Option<SecondClient>> {
        let place = self.place(LabSite::Far);
        let order = match cell.beside() {
            SecondClientAction::Nobody => return Ok(None),
            SecondClientAction::Writes => {
                place.order("beside", SmbProtection::Hmac.name(), "beside")
            }
            SecondClientAction::ChangesItsFiles => {
                let watch = self.watch();
                let _ = fs::remove_dir_all(&watch);
                fs::create_dir_all(&watch)?;
                let mut order = place.order("change", SmbProtection::Hmac.name(), SMALL);
                order["leases"] = json!(self.clients_hold_leases);
                order["files"] = json!(files);
                order["file_bytes"] = json!(SMALL_FILE_BYTES);
                order["watch"] = json!(watch);
                order
            }
        };
        Ok(Some(self.clients()?.write_beside(&place, &order)?))
    }

    /// Result of two clients that watched the same files. The files are unchanged afterwards.
    fn freshness(&self) -> Result<FreshnessResult> {
        let (changes, told) = (self.watch().join("changes"), self.watch().join("told"));
        let found = FreshnessResult::of(&changes, &told, f64::from(STALENESS_MS))?;
        self.publish_small()?;
        Ok(found)
    }

    /// Directory in which two clients log their operations on the same files.
    fn watch(&self) -> PathBuf {
        self.site.directory.join("watch")
    }

    /// Order for the client of a cell.
    fn order(&self, cell: &SmbCell, seconds: f64, files: usize) -> Result<Value> {
        let (doing, path) = match cell.client {
            SmbClientKind::SerialGet | SmbClientKind::Smbprotocol => ("serial-get", BULK),
            SmbClientKind::SerialPut => ("serial-put", UPLOAD),
            SmbClientKind::Smbclient => ("smbclient", BULK),
            SmbClientKind::Smbnetfs => ("smbnetfs", BULK),
            SmbClientKind::SmallRead => ("small-read", SMALL),
            SmbClientKind::SmallWrite => ("small-write", SMALL_UPLOADS),
            SmbClientKind::Listing => ("listing", SMALL),
            SmbClientKind::Nt1Get => ("smbclient", NT1),
            SmbClientKind::Nt1Put => ("smbclient-put", UPLOAD),
        };
        let place = self.place(LabSite::Near);
        let mut order = place.order(doing, cell.protection.name(), path);
        if cell.client.is_of_nt1() {
            order["options"] = json!(NT1_OPTIONS);
        }
        if cell.client == SmbClientKind::Nt1Put {
            let local = self.site.directory.join("fetched.bin");
            fs::copy(self.server.files().join(NT1), local)?;
        }
        order["block"] = json!(match cell.client {
            SmbClientKind::Smbprotocol => LARGE_BLOCK,
            _ => SERIAL_BLOCK,
        });
        order["seconds"] = json!(seconds);
        order["bytes"] = json!(cell.link.bits_per_second() / 8 * cell.link.span().as_secs());
        order["files"] = json!(files);
        order["file_bytes"] = json!(SMALL_FILE_BYTES);
        order["truth"] = json!(self.server.files().join(path));
        order["local"] = json!(self.site.directory.join("fetched.bin"));
        if cell.beside() == SecondClientAction::ChangesItsFiles {
            order["watch"] = json!(self.watch());
        }
        let home = self.site.directory.join("home");
        fs::create_dir_all(&home)?;
        order["home"] = json!(home);
        Ok(order)
    }

    /// Opens and saves a document as an office suite does, with empty dictionaries and again.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub(super) fn open_and_save(
        &mut self,
        document: &OfficeDocument,
        mode: AccelerationMode,
    ) -> Result<Vec<DocumentTimes>> {
        let path = format!("{DOCUMENTS}/{}", document.file);
        self.publish(&path, document.bytes, 3)?;
        if mode != AccelerationMode::Baseline {
            self.site.nodes.empty_dictionaries()?;
        }
        let caches: &[&'static str] = match mode {
            AccelerationMode::Baseline => &["none"],
            AccelerationMode::Tcp | AccelerationMode::Application | AccelerationMode::Relaxed => {
                &["cold", "warm"]
            }
        };
        let mut times = Vec::new();
        for cache in caches {
            let place = self.place(LabSite::Near);
            let mut order = place.order("office", SmbProtection::Off.name(), "");
            order["path"] = json!(path.replace('/', "\\"));
            order["truth"] = json!(self.server.files().join(&path));
            let (outcome, ()) = self
                .clients()?
                .run(&place, &order, |_| Ok(()))
                .with_context(|| format!("opening and saving {}", document.file))?;
            self.check()?;
            anyhow::ensure!(
                outcome.is_identical,
                "{} is not what was saved",
                document.file
            );
            let accelerate = match mode {
                AccelerationMode::Baseline => None,
                AccelerationMode::Tcp
                | AccelerationMode::Application
                | AccelerationMode::Relaxed => Some(self.why()?),
            };
            times.push(DocumentTimes {
                file: document.file.clone(),
                bytes: document.bytes,
                mode: mode.name(),
                cache,
                open_seconds: outcome.open_seconds,
                save_seconds: outcome.save_seconds,
                accelerate,
            });
        }
        Ok(times)
    }

    /// Writes the files whose transfer makes a path known, with so many bytes each.
    ///
    /// # Errors
    /// As [`Self::publish_bulk`].
    pub(super) fn publish_warm_up(&self, bytes: u64) -> Result<()> {
        for (name, seed) in [(WARM_UP, 2), (WARM_UP_PUT, 4)] {
            self.publish(name, bytes, seed)?;
        }
        Ok(())
    }

    /// Carries out a pattern of `smb_patterns.py` on paths of the share of office programs, one after the
    /// other.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub(super) fn run_pattern(
        &mut self,
        pattern: &str,
        protection: &str,
        paths: &[String],
    ) -> Result<ClientOutcome> {
        let place = self.place(LabSite::Near);
        let mut order = place.order("pattern", protection, "");
        order["share"] = json!(OFFICE_SHARE);
        order["pattern"] = json!(pattern);
        let paths = paths
            .iter()
            .map(|path| (path.replace('/', "\\"), self.office_files().join(path)));
        order["paths"] = json!(paths.collect::<Vec<_>>());
        let (outcome, ()) = self.clients()?.run(&place, &order, |_| Ok(()))?;
        self.check()?;
        Ok(outcome)
    }

    /// Directory of the share of office programs, on this machine's disk.
    pub(super) fn office_files(&self) -> &Path {
        self.server.office_files()
    }

    /// Accelerate stage of the near node for the newest flow to smbd.
    ///
    /// # Errors
    /// When the node does not answer or has seen no such flow: it passed by.
    pub(super) fn why(&self) -> Result<AccelerationReason> {
        reasons::newest_why(&self.site.nodes, SMB_PORT)
    }

    /// The same of all flows that the node still knows.
    ///
    /// # Errors
    /// When the node does not answer.
    pub(super) fn all_whys(&self) -> Result<Vec<AccelerationReason>> {
        let flows = reasons::flows_to_port(&self.site.nodes, SMB_PORT)?;
        let whys = flows
            .into_iter()
            .map(|flow| reasons::why_of(&self.site.nodes, flow));
        whys.collect()
    }

    /// Number of requests from these client ports that the near node has answered; `None` without
    /// nodes.
    pub(super) fn answered_for(&self, ports: &BTreeSet<u16>) -> Result<u64> {
        if !self.site.nodes.are_running() {
            return Ok(0);
        }
        let flows = self.site.nodes.flows(LabSite::Near)?;
        let flows = flows.iter().filter(|flow| {
            let client = flow["client"].as_str().unwrap_or_default();
            let port = client
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse().ok());
            port.is_some_and(|port| ports.contains(&port))
        });
        let mut answered = 0;
        for flow in flows.filter_map(|flow| flow["flow"].as_u64()) {
            answered += reasons::why_of(&self.site.nodes, flow)?.answered;
        }
        Ok(answered)
    }

    /// The arguments with which smbtorture finds shares that are made for it.
    pub(super) fn torture_arguments(lane: usize) -> [String; 2] {
        let [share, plain] = torture_shares(lane);
        [
            format!("//{}/{share}", LabSite::Far.host_address()),
            format!("--option=torture:share2={plain}"),
        ]
    }

    /// A program that will run in the client's namespace, in the clients' directory.
    ///
    /// # Errors
    /// Fails when the namespace cannot be entered.
    pub(super) fn at_the_client(&self, program: &str) -> Result<Command> {
        self.at(LabSite::Near, program)
    }

    /// The same in the namespace of a site's host.
    ///
    /// # Errors
    /// As [`Self::at_the_client`].
    pub(super) fn at(&self, site: LabSite, program: &str) -> Result<Command> {
        let mut command = command::new(program);
        command.current_dir(&self.site.directory);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let namespace = self.site.topology.namespace_file(site.host());
        kernel::prepare_child(&mut command, Some(&namespace))?;
        Ok(command)
    }

    /// The bench's share, on this machine's disk.
    pub(super) fn files(&self) -> &Path {
        self.server.files()
    }

    /// Directory of its processes' logs.
    pub(super) fn logs(&self) -> &Path {
        &self.site.logs
    }

    /// Directory for the clients' files.
    pub(super) fn directory(&self) -> &Path {
        &self.site.directory
    }

    /// Boots a virtual machine at the client's site.
    ///
    /// # Errors
    /// Fails when the machine does not boot.
    pub(super) fn boot_machine(&self, image: &MachineImage) -> Result<VirtualMachine> {
        VirtualMachine::boot(
            &self.site.run,
            &self.site.topology,
            LabSite::Near,
            image,
            &self.site.logs,
        )
    }

    /// Ends the node of a site as `kill -9` does.
    ///
    /// # Errors
    /// Fails when it does not run.
    pub(super) fn kill_node(&mut self, site: LabSite) -> Result<()> {
        self.site.nodes.process(site)?.signal(ProcessSignal::Kill)
    }

    /// Stops the node of one site: new connections bypass it.
    ///
    /// # Errors
    /// Fails when it cannot be stopped.
    pub(super) fn stop_node(&mut self, site: LabSite) -> Result<()> {
        self.site.nodes.stop_node(site)
    }

    /// Starts the node of one site again, and waits until it has its session and intercepts.
    ///
    /// # Errors
    /// Fails when it does not start.
    pub(super) fn start_node(&mut self, site: LabSite) -> Result<()> {
        self.site.nodes.start_node(&self.site.run, site)?;
        self.site.nodes.wait_sessions()
    }

    /// Number of SMB flows that the near node has.
    ///
    /// # Errors
    /// Fails when the node does not answer.
    pub(super) fn flow_count(&self) -> Result<usize> {
        Ok(reasons::flows_to_port(&self.site.nodes, SMB_PORT)?.len())
    }

    /// Waits until a node that was killed is back, and has its session.
    ///
    /// # Errors
    /// Fails when its watchdog does not start it again.
    pub(super) fn wait_for_nodes(&mut self, killed: LabSite) -> Result<()> {
        self.site.nodes.forget_if_ended(killed);
        self.site.nodes.wait_sessions()
    }

    /// Interrupts the link for a while.
    ///
    /// # Errors
    /// Fails when the emulator does not run.
    pub(super) fn interrupt_link(&self, span: Duration) -> Result<()> {
        let emulator = self.site.emulator.as_ref().context("no link is there")?;
        emulator.signal(ProcessSignal::Freeze)?;
        std::thread::sleep(span);
        emulator.signal(ProcessSignal::Thaw)
    }

    /// Empties the nodes' dictionaries.
    ///
    /// # Errors
    /// Fails when a node does not do so.
    pub(super) fn empty_dictionaries(&self) -> Result<()> {
        self.site.nodes.empty_dictionaries()
    }

    /// Starts captures of SMB at the client's and the server's host, into files of a directory whose
    /// names begin with `stem`.
    ///
    /// # Errors
    /// Fails when tcpdump does not start.
    pub(super) fn capture_smb(&self, directory: &Path, stem: &str) -> Result<Vec<SmbCapture>> {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        [LabSite::Near, LabSite::Far]
            .into_iter()
            .map(|site| {
                let file = directory.join(format!("{stem}_{}.pcap", site.host()));
                SmbCapture::start(
                    &self.site.run,
                    &self.site.topology,
                    &self.site.logs,
                    site,
                    file,
                )
            })
            .collect()
    }

    fn clients(&self) -> Result<&ClientPython> {
        self.clients.as_ref().context("this lane has no clients")
    }

    fn place(&self, site: LabSite) -> ClientPlace<'_> {
        ClientPlace {
            topology: &self.site.topology,
            host: site.host(),
            directory: &self.site.directory,
        }
    }

    /// Checks that everything still runs.
    ///
    /// # Errors
    /// Fails when a process has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.server.check()?;
        self.site.check()
    }

    /// Writes a file with so many random bytes for bulk clients.
    ///
    /// # Errors
    /// Fails when it cannot be written.
    pub(super) fn publish_bulk(&self, bytes: u64) -> Result<()> {
        self.publish(BULK, bytes, 1)
    }

    /// Puts random bytes into the share.
    ///
    /// # Errors
    /// As [`Self::publish_bulk`].
    pub(super) fn publish(&self, name: &str, bytes: u64, seed: u64) -> Result<()> {
        let path = self.server.files().join(name);
        write_random(&path, bytes, seed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        Ok(())
    }

    fn clear_uploads(&self) -> Result<()> {
        let files = self.server.files();
        let _ = fs::remove_file(files.join(UPLOAD));
        remove_files(&files.join(SMALL_UPLOADS))
    }
}

/// SMB settings of the nodes.
fn table(mode: AccelerationMode) -> Vec<String> {
    let mode_line = format!("mode = \"{}\"", mode.consistency().unwrap_or("off"));
    let mut lines = vec!["[smb]".to_owned(), mode_line];
    if mode == AccelerationMode::Relaxed {
        lines.push(format!("relaxed_staleness = \"{STALENESS_MS}ms\""));
    }
    lines
}

fn remove_files(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

impl DelayedResult for SmbCellResult {
    type Cell = SmbCell;

    fn cell(&self) -> &SmbCell {
        &self.cell
    }

    fn count_round_trips(&mut self, without_delay: &Self) {
        let rtt = 2.0 * f64::from(self.cell.one_way_delay_ms) / 1e3;
        if rtt == 0.0 {
            return;
        }
        let share = if self.files > 0 {
            self.files as f64 / without_delay.files.max(1) as f64
        } else {
            self.bytes as f64 / without_delay.bytes.max(1) as f64
        };
        let trips = (self.seconds - without_delay.seconds * share) / rtt;
        self.wan_round_trips = Some(trips);
        if self.files > 0 && self.cell.client != SmbClientKind::Listing {
            self.wan_round_trips_per_file = Some(trips / self.files as f64);
        }
    }
}

/// A result for tests.
#[cfg(test)]
pub(super) fn result_of(cell: SmbCell, outcome: &super::clients::ClientOutcome) -> SmbCellResult {
    let goodput_kb_s = outcome.bytes as f64 / 1e3 / outcome.seconds;
    SmbCellResult {
        cell,
        goodput_kb_s,
        seconds: outcome.seconds,
        bytes: outcome.bytes,
        files: outcome.files,
        wan_round_trips: None,
        wan_round_trips_per_file: None,
        of_payload_rate: goodput_kb_s / cell.link.payload_kb_s(),
        server_saw_opens: outcome.opens,
        server_saw_closes: outcome.closes,
        writes_beside: None,
        freshness: None,
        accelerate: None,
        cpu_busy_percent: 0.0,
        load_average: 0.0,
        faults: Vec::new(),
    }
}
