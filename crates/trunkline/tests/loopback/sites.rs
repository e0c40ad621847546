//! Two nodes as processes, paired as a user pairs them, with a server and a client.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use vocab::SeededRandom;

use crate::relay::NodeRelay;

const PORT: u16 = 4433;
const SOCKS_PORT: u16 = 1080;

/// Time after which a wait has failed, even on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Greatest sending rate of the far node, so that a transfer lasts long enough to be disturbed.
pub(super) const RATE: &str = "24Mbit";

/// A pair of nodes that are paired with each other.
pub(super) struct TestSites {
    directory: TempDir,
    nodes: Vec<(&'static str, Child)>,
    near: Ipv4Addr,
    /// User of the nodes, if it is another than this test's.
    user: Option<u32>,
    relay_address: Ipv4Addr,
    pub(super) relay: NodeRelay,
}

/// An address of this machine that no other test takes at the same time, of 32.
fn address(test: u8, host: u8) -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let of_test = test << 5 & 128 | !test << 3 & 64 | test << 2 & 12 | test >> 3 & 2;
    let second = of_test | host << 4 | high & 1;
    Ipv4Addr::new(127, second, middle, low)
}

impl TestSites {
    /// Both run, and have a link; the far one sends at this rate, at most.
    pub(super) fn new(test: u8, rate: &str) -> Self {
        Self::of_user(test, rate, None)
    }

    /// The same, with these lines about the WAN in the far node's configuration.
    pub(super) fn with_wan(test: u8, wan: &str) -> Self {
        Self::with(test, wan, None)
    }

    /// The same with nodes that run as this user; all else is done as this test's own, root.
    pub(super) fn of_user(test: u8, rate: &str, user: Option<u32>) -> Self {
        Self::with(test, &format!("rate_max = \"{rate}\""), user)
    }

    fn with(test: u8, wan: &str, user: Option<u32>) -> Self {
        let [near, far, relay] = [0, 1, 2].map(|host| address(test, host));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display().to_string();
        let config = |name: &str, rest: &str| {
            let text = format!(
                "[node]\nname = \"{name}\"\nstate_directory = \"{path}/{name}\"\ngrace = \"0s\"\n{rest}"
            );
            fs::write(directory.path().join(format!("{name}.toml")), text).unwrap();
        };
        config(
            "near",
            &format!(
                "[proxy]\nsocks5 = \"{near}:{SOCKS_PORT}\"\n\
                 [[peer]]\nname = \"far\"\naddress = \"{relay}:{PORT}\"\nprefixes = [\"{far}/32\"]\n"
            ),
        );
        config(
            "far",
            &format!(
                "[wan]\nlisten = \"{far}:{PORT}\"\n{wan}\n\
                 [policy]\nserve = [\"{far}/32\"]\n\
                 [[peer]]\nname = \"near\"\n"
            ),
        );
        let at = |host| SocketAddr::new(IpAddr::V4(host), PORT);
        let mut sites = Self {
            directory,
            nodes: Vec::new(),
            near,
            user,
            relay_address: relay,
            relay: NodeRelay::new(at(relay), at(far)),
        };
        if let Some(user) = user {
            for node in ["near", "far"] {
                fs::create_dir(sites.state(node)).unwrap();
                chown(sites.state(node), Some(user), Some(user)).unwrap();
            }
            let open = fs::Permissions::from_mode(0o755);
            fs::set_permissions(sites.directory.path(), open).unwrap();
        }
        sites.start("far");
        sites.pair();
        sites.start("near");
        sites
    }

    /// A file of the sites.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Address of the far node, through the relay.
    pub(super) fn reach(&self) -> String {
        format!("{}:{PORT}", self.relay_address)
    }

    /// Pairs the nodes; the far one runs.
    pub(super) fn pair(&self) {
        let reach = self.reach();
        let invite = ["peer", "invite", "--name", "near", "--address", &reach];
        let token = self.ask("far", &invite, "");
        self.ask("near", &["peer", "join", "--name", "far"], &token);
    }

    /// State directory of a node.
    pub(super) fn state(&self, node: &str) -> PathBuf {
        self.directory.path().join(node)
    }

    /// Starts a node and waits until it answers.
    pub(super) fn start(&mut self, node: &'static str) {
        self.spawn(node);
        let started = Instant::now();
        while !self
            .command(node, &["node", "status"])
            .output()
            .unwrap()
            .status
            .success()
        {
            assert!(started.elapsed() < PATIENCE, "{}", self.log(node));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a node.
    pub(super) fn spawn(&mut self, node: &'static str) {
        let log = fs::File::create(self.directory.path().join(format!("{node}.log"))).unwrap();
        let mut command = self.command(node, &["node", "run"]);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let child = command
            // A service manager starts it again, not its watchdog: this test.
            .env("INVOCATION_ID", "test")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.nodes.push((node, child));
    }

    /// The number of a node's process.
    pub(super) fn process(&self, node: &str) -> u32 {
        let child = self.nodes.iter().find(|(name, _)| *name == node);
        child.unwrap().1.id()
    }

    /// Sends a signal to a node, and says how it ended.
    pub(super) fn end_by(&mut self, node: &'static str, signal: &str) -> ExitStatus {
        let mut child = self.take(node);
        let id = child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
        child.wait().unwrap()
    }

    /// kill -9.
    pub(super) fn kill(&mut self, node: &'static str) {
        let mut child = self.take(node);
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "it ended by itself: {}", self.log(node));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends a signal to a node's process.
    pub(super) fn signal(&self, node: &str, signal: &str) {
        let (_, child) = self.nodes.iter().find(|(name, _)| *name == node).unwrap();
        let id = child.id().to_string();
        let kill = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(kill.unwrap().success());
    }

    fn take(&mut self, node: &str) -> Child {
        let index = self.nodes.iter().position(|(name, _)| *name == node);
        self.nodes.remove(index.unwrap()).1
    }

    /// Ends a node in good order.
    pub(super) fn stop(&mut self, node: &'static str) {
        let mut child = self.take(node);
        let id = child.id().to_string();
        let kill = Command::new("kill").arg(id).status().unwrap();
        assert!(kill.success());
        assert!(child.wait().unwrap().success(), "{}", self.log(node));
    }

    /// Status of a node.
    pub(super) fn status(&self, node: &str) -> Value {
        let text = self.ask(node, &["node", "status", "--json"], "");
        serde_json::from_str(&text).unwrap()
    }

    /// Status of a node's path to its peer.
    pub(super) fn path(&self, node: &str) -> Value {
        self.status(node)["peers"][0]["path"].clone()
    }

    /// Waits until a node says this of the path.
    pub(super) fn wait_for(&self, node: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let status = self.wait_for_status(node, |status| is_so(&status["peers"][0]["path"]));
        status["peers"][0]["path"].clone()
    }

    /// Waits until a node says this of itself.
    pub(super) fn wait_for_status(&self, node: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let status = self.status(node);
            if is_so(&status) {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "{status}\n{}", self.log(node));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a client behind the near node that requests so many bytes from a server beside the
    /// far one.
    pub(super) fn download(&self, bytes: usize) -> PendingDownload {
        let far = self.far();
        let listener = TcpListener::bind((far, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut expected = vec![0; bytes];
        SeededRandom::from_seed(bytes as u64).fill(&mut expected);
        let content = expected.clone();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.write_all(&content);
        });
        let stream = connect(self.socks(), far, port).unwrap();
        PendingDownload {
            stream,
            received: Vec::with_capacity(bytes),
            expected,
        }
    }

    /// Address for servers that the far node may reach.
    pub(super) fn far(&self) -> Ipv4Addr {
        match self.relay.far().ip() {
            IpAddr::V4(far) => far,
            IpAddr::V6(_) => unreachable!("the sites have IPv4 addresses"),
        }
    }

    /// Asks the proxy for a closed port at the far node's address.
    pub(super) fn connect_to_a_closed_port(&self) -> io::Result<TcpStream> {
        let listener = TcpListener::bind((self.far(), 0))?;
        let port = listener.local_addr()?.port();
        drop(listener);
        connect(self.socks(), self.far(), port)
    }

    /// Proxy address of the near node.
    pub(super) fn socks(&self) -> SocketAddr {
        SocketAddr::new(self.near.into(), SOCKS_PORT)
    }

    fn command(&self, node: &str, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        let config = self.directory.path().join(format!("{node}.toml"));
        command.args(words).arg("--config").arg(config);
        command
    }

    /// Runs a command to its end; returns its output.
    pub(super) fn ask(&self, node: &str, words: &[&str], input: &str) -> String {
        let mut child = self
            .command(node, words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{words:?}: {error}\n{}",
            self.log(node)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Writes a node's configuration with this behind it.
    pub(super) fn configure(&self, node: &str, more: &str) {
        let file = self.directory.path().join(format!("{node}.toml"));
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, format!("{text}{more}")).unwrap();
    }

    /// A node's configuration.
    pub(super) fn configuration(&self, node: &str) -> String {
        fs::read_to_string(self.directory.path().join(format!("{node}.toml"))).unwrap()
    }

    /// Replaces a node's configuration.
    pub(super) fn set_configuration(&self, node: &str, text: &str) {
        fs::write(self.directory.path().join(format!("{node}.toml")), text).unwrap();
    }

    /// Runs a command to its end; gives its exit code and its errors.
    pub(super) fn ends(&self, node: &str, words: &[&str]) -> (Option<i32>, String) {
        code_and_errors(&mut self.command(node, words))
    }

    /// The same of a command that finds the node by its administration socket, whatever its configuration is.
    pub(super) fn ends_by_socket(&self, node: &str, words: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        let socket = self.state(node).join("admin.sock");
        code_and_errors(command.args(words).arg("--socket").arg(socket))
    }

    /// Result of `node check` for a node's configuration.
    pub(super) fn check(&self, node: &str) -> (Option<i32>, String) {
        let config = self.directory.path().join(format!("{node}.toml"));
        let mut check = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        code_and_errors(check.args(["node", "check"]).arg(config))
    }

    /// Runs a command with this input to its end; returns its exit code and its text on standard
    /// error.
    pub(super) fn says(&self, node: &str, words: &[&str], input: &str) -> (Option<i32>, String) {
        let mut child = self
            .command(node, words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        { stdin }.write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    }

    /// Waits until a node, or its watchdog, has logged this.
    pub(super) fn wait_for_log(&self, node: &str, text: &str) {
        let started = Instant::now();
        while !self.log(node).contains(text) {
            assert!(started.elapsed() < PATIENCE, "{}", self.log(node));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Log of a node since it last started.
    pub(super) fn log(&self, node: &str) -> String {
        let log = self.directory.path().join(format!("{node}.log"));
        fs::read_to_string(log).unwrap_or_default()
    }
}

fn code_and_errors(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), error)
}

/// A connection to a server through a SOCKS proxy: RFC 1928 §3 and §4, no authentication, CONNECT to
/// an IPv4 address. Urgent bytes are read in their place.
pub(super) fn connect(socks: SocketAddr, server: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(socks)?;
    socket2::SockRef::from(&stream).set_out_of_band_inline(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[5, 1, 0])?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    let mut request = vec![5, 1, 0, 1];
    request.extend(server.octets());
    request.extend(port.to_be_bytes());
    stream.write_all(&request)?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    if answer[..2] != [5, 0] {
        return Err(io::Error::other(format!("the proxy answers {answer:?}")));
    }
    Ok(stream)
}

impl Drop for TestSites {
    fn drop(&mut self) {
        for (_, child) in &mut self.nodes {
            // The watchdog beside a node goes with it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A transfer under way.
pub(super) struct PendingDownload {
    stream: TcpStream,
    received: Vec<u8>,
    expected: Vec<u8>,
}

impl PendingDownload {
    /// Reads until so many bytes are there.
    pub(super) fn read_until(&mut self, bytes: usize) {
        let mut buffer = vec![0; 64 << 10];
        while self.received.len() < bytes {
            let most = buffer.len().min(bytes - self.received.len());
            let length = self.stream.read(&mut buffer[..most]).unwrap();
            assert!(length > 0, "it ended after {} bytes", self.received.len());
            self.received.extend_from_slice(&buffer[..length]);
        }
    }

    pub(super) fn is_right(&self) -> bool {
        self.received == self.expected
    }
}
