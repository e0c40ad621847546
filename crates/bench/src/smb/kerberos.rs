//! Kerberos through a pair of nodes: a KDC, an smbd with a keytab, a stock smbclient with a ticket, and the node
//! beside the server with a keytab of its own.
//!
//! ```text
//!  smbclient ── near ══ link ══ far ── smbd, krb5kdc
//!     ticket, AP-REQ          keytab    keytab
//! ```
//! Everything is the run's own: the realm, its database and its configuration (`KRB5_CONFIG`); nothing of the
//! machine's Kerberos is read or written.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use vocab::SeededRandom;

use crate::reasons::{AccelerationReason, newest_why};
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::{ProgramEnvironment, command, kernel, wait};
use lab::nodes::{ExtraConfiguration, LabNodes};
use lab::servers::{SMB_PORT, smbd};
use lab::topology::{LabSite, LabTopology, LinkArguments, OffloadMode};

/// The realm, and the server's name in it.
const REALM: &str = "LAB.TEST";
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

/// Time limit for a server to accept connections.
const START_LIMIT: Duration = Duration::from_secs(20);
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
    _kdc: RunningProcess,
    topology: LabTopology,
    logs: PathBuf,
    /// Environment variables of the realm's programs and of smbd.
    environment: Vec<(&'static str, PathBuf)>,
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
        let environment = configure(&home)?;
        let kdc = start_kdc(&run, &topology, &logs, &home, &environment)?;
        let files = home.join(SHARE);
        fs::create_dir_all(&files)?;
        fs::set_permissions(&files, fs::Permissions::from_mode(0o777))?;
        let smbd = start_smbd(&run, &topology, &logs, &home, &environment)?;
        let words = LinkArguments(LINK.map(str::to_owned).to_vec());
        let emulator = topology.start_emulator(&run, &logs, &words)?;
        let mut nodes = LabNodes::prepare(&run, &topology, &logs)?;
        let keytab = home.join("node.keytab");
        delegate(&home)?;
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
            _kdc: kdc,
            topology,
            logs,
            environment,
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
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
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
        let keytab = self.home.join("smbd.keytab").display().to_string();
        let encryption = "aes256-cts-hmac-sha384-192:normal";
        let query = format!("ktadd -k {keytab} -e {encryption} {SERVICE}");
        kadmin(&self.environment, &query)
    }

    /// Gives the service's present keys to the node beside it, and waits until the node has read
    /// them.
    ///
    /// # Errors
    /// Fails when the node does not.
    pub fn delegate_again(&mut self) -> Result<()> {
        let log = self.nodes.process(LabSite::Far)?.log().to_owned();
        delegate(&self.home)?;
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

/// Writes the realm's configuration; returns the environment variables for it.
fn configure(home: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let kdc = LabSite::Far.host_address();
    let krb5 = format!(
        "[libdefaults]
    default_realm = {REALM}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
[realms]
    {REALM} = {{
        kdc = {kdc}:88
    }}
[domain_realm]
    .lab.test = {REALM}
"
    );
    // Without a PAC smbd looks for a user of the principal's name.
    let realm = format!(
        "[kdcdefaults]
    kdc_listen = {kdc}:88
    kdc_tcp_listen = {kdc}:88
[realms]
    {REALM} = {{
        database_name = {home}/principal
        key_stash_file = {home}/stash
        acl_file = {home}/acl
        disable_pac = true
        supported_enctypes = aes256-cts-hmac-sha1-96:normal
    }}
",
        home = home.display()
    );
    let paths = [home.join("krb5.conf"), home.join("kdc.conf")];
    for (path, text) in paths.iter().zip([krb5, realm]) {
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    fs::write(home.join("client.conf"), "[global]\n")?;
    let [krb5, kdc] = paths;
    Ok(vec![
        ("KRB5_CONFIG", krb5),
        ("KRB5_KDC_PROFILE", kdc),
        // Where smbd remembers requests that it has seen.
        ("KRB5RCACHEDIR", home.to_owned()),
    ])
}

fn kadmin(environment: &[(&'static str, PathBuf)], query: &str) -> Result<()> {
    let mut kadmin = command::new("kadmin.local");
    kadmin
        .args(["-r", REALM, "-q", query])
        .envs(environment.iter().map(|(name, value)| (name, value)));
    command::finish("kadmin.local", &mut kadmin, None).map(drop)
}

/// Starts a program of the realm's, with its environment.
fn start<A: AsRef<OsStr>>(
    run: &LabRun,
    launch: &LaunchConfig<'_>,
    environment: &[(&'static str, PathBuf)],
    arguments: impl IntoIterator<Item = A>,
) -> Result<RunningProcess> {
    let program = command::find(&launch.program.display().to_string())
        .with_context(|| format!("there is no {}", launch.program.display()))?;
    let variables = environment
        .iter()
        .map(|(name, value)| format!("{name}={}", value.display()).into());
    let arguments = arguments
        .into_iter()
        .map(|argument| argument.as_ref().to_owned());
    let all = variables.chain([program.into_os_string()]).chain(arguments);
    let launch = LaunchConfig {
        program: Path::new("env"),
        ..*launch
    };
    RunningProcess::start(run, &launch, all)
}

/// Makes the realm's database with both principals, and starts its KDC at the far site's host.
fn start_kdc(
    run: &LabRun,
    topology: &LabTopology,
    logs: &Path,
    home: &Path,
    environment: &[(&'static str, PathBuf)],
) -> Result<RunningProcess> {
    let mut create = command::new("kdb5_util");
    create
        .args(["create", "-s", "-r", REALM, "-P", "of-no-use"])
        .envs(environment.iter().map(|(name, value)| (name, value)));
    command::finish("kdb5_util", &mut create, None)?;
    kadmin(environment, &format!("addprinc -pw {PASSWORD} {USER}"))?;
    kadmin(environment, &format!("addprinc -randkey {SERVICE}"))?;
    let keytab = home.join("smbd.keytab").display().to_string();
    kadmin(environment, &format!("ktadd -k {keytab} {SERVICE}"))?;
    let launch = LaunchConfig {
        name: "krb5kdc",
        namespace: &topology.namespace(LabSite::Far.host()),
        program: Path::new("krb5kdc"),
        logs,
    };
    let mut process = start(run, &launch, environment, ["-n", "-r", REALM])?;
    wait_for_port(topology, &mut process, 88)?;
    Ok(process)
}

fn start_smbd(
    run: &LabRun,
    topology: &LabTopology,
    logs: &Path,
    home: &Path,
    environment: &[(&'static str, PathBuf)],
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
        keytab = home.join("smbd.keytab").display(),
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
    let mut process = start(run, &launch, environment, smbd::arguments(&path))?;
    wait_for_port(topology, &mut process, SMB_PORT)?;
    Ok(process)
}

fn wait_for_port(topology: &LabTopology, process: &mut RunningProcess, port: u16) -> Result<()> {
    let address = std::net::SocketAddr::from((LabSite::Far.host_address(), port));
    let namespace = topology.namespace_file(LabSite::Far.host());
    process.wait_ready(START_LIMIT, "to accept connections", || {
        Ok(kernel::in_network_namespace(&namespace, || {
            std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop)
        })
        .is_ok())
    })
}

fn random_file(random: &mut SeededRandom, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = vec![0; BYTES];
    random.fill(&mut bytes);
    fs::write(path, &bytes).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(bytes)
}

/// Copies smbd's keytab to the node's, atomically, and never readable by others.
fn delegate(home: &Path) -> Result<()> {
    let keys = fs::read(home.join("smbd.keytab"))?;
    let new = home.join("node.keytab.new");
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?
        .write_all(&keys)?;
    fs::rename(&new, home.join("node.keytab"))?;
    Ok(())
}
