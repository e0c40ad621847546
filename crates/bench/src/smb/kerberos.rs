//! Kerberos through a pair of nodes: a KDC, an smbd with a keytab, a stock smbclient with a ticket, and the node
//! beside the server with a keytab of its own.
//!
//! ```text
//!  smbclient ── near ══ link ══ far ── smbd, krb5kdc
//!     ticket, AP-REQ          keytab    keytab
//! ```
//! Everything is the run's own, the realm as well.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use vocab::SeededRandom;

use crate::realm::{self, KerberosRealm, REALM, RealmUser};
use crate::reasons::{AccelerationReason, newest_why};
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::{ProgramEnvironment, command, kernel, wait};
use lab::nodes::{ExtraConfiguration, LabNodes};
use lab::servers::{SMB_PORT, smbd};
use lab::topology::{LabSite, LabTopology, LinkArguments, OffloadMode};

/// The server's name in the realm.
const HOST: &str = "srv.lab.test";
/// Principal of smbd. The nodes decrypt tickets for it.
const SERVICE: &str = "cifs/srv.lab.test";
/// User that logs in: one that every Debian has, because smbd looks for a user with the principal's
/// name.
const USER: &str = "daemon";
const PASSWORD: &str = "correct-horse-2";
/// The share.
const SHARE: &str = "files";
/// Files that the client gets and puts.
const GOT: &str = "got.bin";
const PUT: &str = "put.bin";
const BYTES: usize = 500_000;

/// A link on which a transfer takes half a second.
const LINK: [&str; 6] = ["--rate", "100Mbit", "--delay", "5ms", "--queue", "250kB"];

/// Time limit for the node to notice a new keytab: several times its own interval.
const REREAD_LIMIT: Duration = Duration::from_secs(30);

/// Protection of the client of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct KerberosProtection {
    /// Name for people.
    pub name: &'static str,
    /// Options of smbclient.
    pub options: &'static [&'static str],
}

/// Signed by every algorithm, and encrypted with a key of either length.
pub const PROTECTIONS: [KerberosProtection; 4] = [
    KerberosProtection {
        name: "signed by HMAC-SHA256",
        options: &["--max-protocol=SMB2_10", "--client-protection=sign"],
    },
    KerberosProtection {
        name: "signed by AES-CMAC",
        options: &[
            "--client-protection=sign",
            "--option=clientsmb3signingalgorithms=AES-128-CMAC",
        ],
    },
    KerberosProtection {
        name: "encrypted by AES-256-GCM",
        options: &[
            "--client-protection=encrypt",
            "--option=clientsmb3encryptionalgorithms=AES-256-GCM",
        ],
    },
    KerberosProtection {
        name: "encrypted by AES-128-GCM",
        options: &["--client-protection=encrypt"],
    },
];

/// Result of a file's transfer there and back.
#[derive(Clone, Debug)]
pub struct KerberosTransfer {
    /// True if the client and the server received the bytes that were sent.
    pub is_identical: bool,
    /// Accelerate stage of the near node for the flow.
    pub accelerate: AccelerationReason,
}

/// A realm with a file server in it, at the far site, and a pair of nodes.
pub struct KerberosTestBed {
    // In the order in which they have to go.
    nodes: LabNodes,
    _emulator: RunningProcess,
    _smbd: RunningProcess,
    realm: KerberosRealm,
    topology: LabTopology,
    logs: PathBuf,
    home: PathBuf,
    files: PathBuf,
    random: SeededRandom,
    _run: LabRun,
}

impl KerberosTestBed {
    /// Starts all of it. The node beside the server gets the service's first keys.
    ///
    /// # Errors
    /// When something does not come up; the message shows the end of its log.
    pub fn create(environment: &ProgramEnvironment) -> Result<Self> {
        let run = LabRun::create(environment)?;
        let logs = run.subdirectory("logs")?;
        let home = run.subdirectory("realm")?;
        let topology =
            LabTopology::create_with(&run, &[LabSite::Near, LabSite::Far], OffloadMode::Kept)?;
        let user = RealmUser {
            name: USER,
            password: PASSWORD,
            ticket_life: None,
        };
        let realm = KerberosRealm::create(&run, &topology, &logs, &home, &[user], SERVICE)?;
        fs::write(home.join("client.conf"), "[global]\n")?;
        let files = home.join(SHARE);
        fs::create_dir_all(&files)?;
        fs::set_permissions(&files, fs::Permissions::from_mode(0o777))?;
        let smbd = start_smbd(&run, &topology, &logs, &home, &realm)?;
        let words = LinkArguments(LINK.map(str::to_owned).to_vec());
        let emulator = topology.start_emulator(&run, &logs, &words)?;
        let mut nodes = LabNodes::prepare(&run, &topology, &logs)?;
        let keytab = realm.node_keytab();
        realm.delegate()?;
        let extras = ExtraConfiguration {
            node: vec!["grace = \"1s\"".to_owned()],
            credentials: vec![format!("keytab = \"{}\"", keytab.display())],
            accelerators: vec!["[smb]".to_owned(), "mode = \"strict\"".to_owned()],
            ..ExtraConfiguration::default()
        };
        nodes.configure(&topology, &extras)?;
        nodes.start(&run)?;
        Ok(Self {
            nodes,
            _emulator: emulator,
            _smbd: smbd,
            realm,
            topology,
            logs,
            home,
            files,
            random: SeededRandom::from_seed(u64::from(std::process::id())),
            _run: run,
        })
    }

    /// Gets a file of random bytes and puts another one, by a client that logs in by Kerberos and nothing else.
    ///
    /// # Errors
    /// When the client fails, or the node knows no such flow.
    pub fn transfer(&mut self, protection: KerberosProtection) -> Result<KerberosTransfer> {
        let local = self.home.join("client");
        fs::create_dir_all(&local)?;
        let published = random_file(&mut self.random, &self.files.join(GOT))?;
        let sent = random_file(&mut self.random, &local.join(PUT))?;
        let mut client = command::new("smbclient");
        client
            .arg(format!("//{HOST}/{SHARE}"))
            .args(["-I", &LabSite::Far.host_address().to_string()])
            .args(["-U", &format!("{USER}@{REALM}%{PASSWORD}")])
            .arg("--use-kerberos=required")
            // Nothing of the machine's own configuration.
            .arg(format!(
                "--configfile={}",
                self.home.join("client.conf").display()
            ))
            .args(protection.options)
            .args(["-c", &format!("get {GOT}; put {PUT}; ls")])
            .current_dir(&local)
            .envs(
                self.realm
                    .environment()
                    .iter()
                    .map(|(name, value)| (name, value)),
            );
        let namespace = self.topology.namespace_file(LabSite::Near.host());
        kernel::prepare_child(&mut client, Some(&namespace))?;
        command::finish("smbclient", &mut client, None).with_context(|| {
            format!(
                "{}; the logs are in {}",
                protection.name,
                self.logs.display()
            )
        })?;
        let is_identical =
            fs::read(local.join(GOT))? == published && fs::read(self.files.join(PUT))? == sent;
        fs::remove_file(self.files.join(PUT))?;
        Ok(KerberosTransfer {
            is_identical,
            accelerate: newest_why(&self.nodes, SMB_PORT)?,
        })
    }

    /// Gives the service new keys, of AES with HMAC-SHA2, which its own keytab has at once.
    ///
    /// # Errors
    /// Fails when the realm's programs fail.
    pub fn renew_keys(&self) -> Result<()> {
        self.realm
            .renew_keys(Some("aes256-cts-hmac-sha384-192:normal"))
    }

    /// Gives the service's present keys to the node beside it, and waits until the node has read
    /// them.
    ///
    /// # Errors
    /// Fails when the node does not.
    pub fn delegate_again(&mut self) -> Result<()> {
        let log = self.nodes.process(LabSite::Far)?.log().to_owned();
        self.realm.delegate()?;
        wait::until(REREAD_LIMIT, "the node to read its keytab again", || {
            let text = fs::read_to_string(&log)?;
            Ok(text.contains("read the keytab again").then_some(()))
        })
    }

    /// Logs of the nodes.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn node_logs(&mut self) -> Result<String> {
        let mut logs = String::new();
        for site in [LabSite::Near, LabSite::Far] {
            logs += &fs::read_to_string(self.nodes.process(site)?.log())?;
        }
        Ok(logs)
    }
}

fn start_smbd(
    run: &LabRun,
    topology: &LabTopology,
    logs: &Path,
    home: &Path,
    realm: &KerberosRealm,
) -> Result<RunningProcess> {
    let site = LabSite::Far;
    // READs of 64 KiB, of which there are many; and no guests, so that a session which was stripped of its identity is
    // seen.
    let configuration = format!(
        "{global}    realm = {REALM}
    kerberos method = dedicated keytab
    dedicated keytab file = {keytab}
    map to guest = Never
    smb2 max read = 65536
    smb2 max write = 65536
    server signing = mandatory
    log level = 1
[{SHARE}]
    path = {files}
    read only = no
",
        global = smbd::global_section(&home.join("state"), site)?,
        keytab = realm.service_keytab().display(),
        files = home.join(SHARE).display(),
    );
    let path = home.join("smb.conf");
    fs::write(&path, configuration).with_context(|| format!("writing {}", path.display()))?;
    let launch = LaunchConfig {
        name: "smbd",
        namespace: &topology.namespace(site.host()),
        program: Path::new("smbd"),
        logs,
    };
    let arguments = smbd::arguments(&path);
    let mut process = realm::start(run, &launch, realm.environment(), arguments)?;
    realm::wait_for_port(topology, &mut process, SMB_PORT)?;
    Ok(process)
}

fn random_file(random: &mut SeededRandom, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = vec![0; BYTES];
    random.fill(&mut bytes);
    fs::write(path, &bytes).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(bytes)
}
