//! A Kerberos realm of a run's own: a KDC at the far site, users, a service and its keytabs.
//!
//! Its database and its configuration (`KRB5_CONFIG`) are files of the run; nothing of the machine's
//! Kerberos is read or written.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::{command, kernel};
use lab::topology::{LabSite, LabTopology};

/// The realm's name.
pub(crate) const REALM: &str = "LAB.TEST";
/// The KDC's port (RFC 4120 §7.2.1).
const KDC_PORT: u16 = 88;
/// Time limit for a server to accept connections.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A user of the realm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RealmUser {
    pub(crate) name: &'static str,
    pub(crate) password: &'static str,
    /// The longest life of its tickets, as kadmin writes it; `None` for the realm's.
    pub(crate) ticket_life: Option<&'static str>,
}

/// The running realm. Dropping it ends its KDC.
#[derive(Debug)]
pub(crate) struct KerberosRealm {
    _kdc: RunningProcess,
    environment: Vec<(&'static str, PathBuf)>,
    home: PathBuf,
    service: &'static str,
}

impl KerberosRealm {
    /// Makes a realm in a directory, with users and one service, whose keys are in
    /// [`service_keytab`](Self::service_keytab), and starts its KDC.
    ///
    /// # Errors
    /// Fails when the realm's programs fail.
    pub(crate) fn create(
        run: &LabRun,
        topology: &LabTopology,
        logs: &Path,
        home: &Path,
        users: &[RealmUser],
        service: &'static str,
    ) -> Result<Self> {
        let environment = configure(home)?;
        let mut create = command::new("kdb5_util");
        create
            .args(["create", "-s", "-r", REALM, "-P", "of-no-use"])
            .envs(environment.iter().map(|(name, value)| (name, value)));
        command::finish("kdb5_util", &mut create, None)?;
        for user in users {
            let life = user.ticket_life;
            let life = life.map_or(String::new(), |life| format!("-maxlife {life} "));
            let (name, password) = (user.name, user.password);
            kadmin(
                &environment,
                &format!("addprinc {life}-pw {password} {name}"),
            )?;
        }
        kadmin(&environment, &format!("addprinc -randkey {service}"))?;
        let launch = LaunchConfig {
            name: "krb5kdc",
            namespace: &topology.namespace(LabSite::Far.host()),
            program: Path::new("krb5kdc"),
            logs,
        };
        let mut kdc = start(run, &launch, &environment, ["-n", "-r", REALM])?;
        wait_for_port(topology, &mut kdc, KDC_PORT)?;
        let realm = Self {
            _kdc: kdc,
            environment,
            home: home.to_owned(),
            service,
        };
        realm.renew_keys(None)?;
        Ok(realm)
    }

    /// Gives the service new keys, which are in its keytab beside the older ones. They are of this
    /// encryption, as kadmin writes it, or of the realm's.
    ///
    /// # Errors
    /// Fails when kadmin fails.
    pub(crate) fn renew_keys(&self, encryption: Option<&str>) -> Result<()> {
        let keytab = self.service_keytab().display().to_string();
        let encryption = encryption.map_or(String::new(), |name| format!("-e {name} "));
        let service = self.service;
        let query = format!("ktadd -k {keytab} {encryption}{service}");
        kadmin(&self.environment, &query)
    }

    /// The service's keytab.
    pub(crate) fn service_keytab(&self) -> PathBuf {
        self.home.join("service.keytab")
    }

    /// A keytab for a node. It is empty until the service's keys were [delegated](Self::delegate).
    pub(crate) fn node_keytab(&self) -> PathBuf {
        self.home.join("node.keytab")
    }

    /// Copies the service's keytab to the node's, atomically, and never readable by others.
    ///
    /// # Errors
    /// Fails when a file cannot be read or written.
    pub(crate) fn delegate(&self) -> Result<()> {
        let keys = fs::read(self.service_keytab())?;
        let new = self.home.join("node.keytab.new");
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?
            .write_all(&keys)?;
        fs::rename(&new, self.node_keytab())?;
        Ok(())
    }

    /// Environment variables of the realm's programs, its clients and its servers.
    pub(crate) fn environment(&self) -> &[(&'static str, PathBuf)] {
        &self.environment
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
        kdc = {kdc}:{KDC_PORT}
    }}
[domain_realm]
    .lab.test = {REALM}
"
    );
    // Without a PAC smbd looks for a user of the principal's name.
    let realm = format!(
        "[kdcdefaults]
    kdc_listen = {kdc}:{KDC_PORT}
    kdc_tcp_listen = {kdc}:{KDC_PORT}
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

/// Starts a program with a realm's environment.
///
/// # Errors
/// Fails when there is no such program, or it does not start.
pub(crate) fn start<A: AsRef<OsStr>>(
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

/// Waits until a process at the far site accepts connections.
///
/// # Errors
/// Fails when it ends, or does not accept connections in time.
pub(crate) fn wait_for_port(
    topology: &LabTopology,
    process: &mut RunningProcess,
    port: u16,
) -> Result<()> {
    let address = SocketAddr::from((LabSite::Far.host_address(), port));
    let namespace = topology.namespace_file(LabSite::Far.host());
    process.wait_ready(START_LIMIT, "to accept connections", || {
        Ok(kernel::in_network_namespace(&namespace, || {
            std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop)
        })
        .is_ok())
    })
}
