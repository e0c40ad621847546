//! Tests of a link around one command, in two namespaces: a host, and a network behind it.
//!
//! ```text
//!   command ═ link ═ host ──203.0.113.0/24, 2001:db8:1::/64── network, with 192.0.2.80 on it
//! ```

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use host::kernel::{self, ProcessSignal};
use host::run::namespace_path;
use host::{command, wait};
use serde_json::Value;
use vocab::SeededRandom;

use crate::setting::{TestTurn, turn};

const PATIENCE: Duration = Duration::from_secs(60);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const SERVER_V6: &str = "2001:db8:80::80";
/// The host's address towards the network.
const HOST: &str = "203.0.113.2";
const HOST_V6: &str = "2001:db8:1::2";
/// An ordinary user of every system.
const NOBODY: &str = "65534";

/// Two namespaces, gone when dropped.
struct HostNetworks {
    host: String,
    network: String,
    _turn: TestTurn,
}

impl HostNetworks {
    /// Waits for the test's turn; `None` where it cannot run.
    fn new(test: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let turn = turn(test, &[])?;
        let id = format!(
            "{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let world = Self {
            host: format!("around-{id}-host"),
            network: format!("around-{id}-network"),
            _turn: turn,
        };
        let (host, network) = (&world.host, &world.network);
        for line in [
            format!("netns add {host}"),
            format!("netns add {network}"),
            format!("-n {host} link set lo up"),
            format!("-n {network} link set lo up"),
            format!("-n {host} link add uplink type veth peer name downlink netns {network}"),
            // Link-local addresses would come by themselves, but a moment later.
            format!("-n {host} link set uplink addrgenmode none"),
            format!("-n {network} link set downlink addrgenmode none"),
            format!("-n {host} address add {HOST}/24 dev uplink"),
            format!("-n {host} address add {HOST_V6}/64 dev uplink nodad"),
            format!("-n {network} address add 203.0.113.1/24 dev downlink"),
            format!("-n {network} address add 2001:db8:1::1/64 dev downlink nodad"),
            format!("-n {network} address add {SERVER}/32 dev lo"),
            format!("-n {network} address add {SERVER_V6}/128 dev lo nodad"),
            format!("-n {host} address add fe80::2/64 dev uplink nodad"),
            format!("-n {network} address add fe80::1/64 dev downlink nodad"),
            format!("-n {host} link set uplink up"),
            format!("-n {network} link set downlink up"),
            format!("-n {host} route add default via 203.0.113.1"),
            format!("-n {host} -6 route add default via 2001:db8:1::1"),
        ] {
            command::run("ip", line.split_whitespace()).expect("the world can be made");
        }
        Some(world)
    }

    fn host(&self) -> PathBuf {
        namespace_path(&self.host)
    }

    /// The program on the host, with a link of these settings around `words`.
    fn link(&self, settings: &str, words: &[&str]) -> Command {
        let mut command = self.on_host(Path::new(env!("CARGO_BIN_EXE_trunkline")));
        command.args(["emulate", "run"]);
        command.args(settings.split_whitespace()).arg("--");
        command.args(words);
        command
    }

    fn on_host(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        kernel::prepare_child(&mut command, Some(&self.host())).expect("the namespace is there");
        command
    }

    /// Everything on the host that a link changes.
    fn state_of_host(&self) -> String {
        let show = "nft list ruleset; ip -brief link; ip route; ip -6 route; \
                    for i in /proc/sys/net/ipv4/conf/*/forwarding \
                    /proc/sys/net/ipv6/conf/*/*forwarding /proc/sys/net/ipv6/conf/*/accept_ra; \
                    do echo $i $(cat $i); done";
        let output = self
            .on_host(Path::new("/bin/sh"))
            .args(["-c", show])
            .output()
            .expect("a shell runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Serves `content` by HTTP in the network, and records the clients' addresses.
    fn serve(&self, content: &[u8]) -> HostServer {
        self.serve_at(&namespace_path(&self.network), "[::]:0", content)
    }

    fn serve_at(&self, namespace: &Path, address: &str, content: &[u8]) -> HostServer {
        let listener = kernel::in_network_namespace(namespace, || TcpListener::bind(address))
            .expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let clients = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&clients);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            content.len()
        );
        let answer = [head.as_bytes(), content].concat();
        // It ends with the test's process; nobody reaches it once the namespaces are gone.
        thread::spawn(move || {
            while let Ok((mut stream, client)) = listener.accept() {
                seen.lock()
                    .expect("nobody panics with it")
                    .push(client.ip().to_canonical());
                let mut line = String::new();
                let mut reader = BufReader::new(&stream);
                while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                    line.clear();
                }
                // A client that has gone away has failed its test already.
                let _ = stream.write_all(&answer);
            }
        });
        HostServer { port, clients }
    }
}

impl Drop for HostNetworks {
    fn drop(&mut self) {
        for namespace in [&self.host, &self.network] {
            // What was not made cannot be removed.
            let _ = command::run("ip", ["netns", "delete", namespace]);
        }
    }
}

struct HostServer {
    port: u16,
    clients: Arc<Mutex<Vec<IpAddr>>>,
}

impl HostServer {
    fn clients(&self) -> Vec<IpAddr> {
        self.clients.lock().expect("nobody panics with it").clone()
    }
}

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    SeededRandom::from_seed(seed).fill(&mut content);
    content
}

/// The report that `--json` has written to standard error, which holds other lines as well.
fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.starts_with("{\"forward\""));
    let line = line.unwrap_or_else(|| panic!("there is no report in:\n{text}"));
    serde_json::from_str(line).expect("the report is JSON")
}

fn count(report: &Value, way: &str, key: &str) -> u64 {
    report[way][key].as_u64().expect("the report has it")
}

/// Asserts the command's success and returns its output.
#[track_caller]
fn printed(output: Output) -> Vec<u8> {
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

#[test]
fn streams_and_exit_codes_pass_through() {
    let Some(world) = HostNetworks::new("streams through a link") else {
        return;
    };
    let mut child = world
        .link("", &["sh", "-c", "cat; echo aside >&2; exit 42"])
        .env("AROUND", "kept")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let sent = content(1, 100_000);
    let mut input = child.stdin.take().expect("it was asked for");
    let to_send = sent.clone();
    let writer = thread::spawn(move || input.write_all(&to_send));
    let output = child.wait_with_output().expect("it ends");
    writer
        .join()
        .expect("no panic")
        .expect("everything is taken");
    assert_eq!(output.status.code(), Some(42));
    assert!(
        output.stdout == sent,
        "standard output is not standard input"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("aside\n"));

    for (words, code) in [
        (&["sh", "-c", "kill -KILL $$"][..], 128 + 9),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["/nonexistent/program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = world.link("", words).output().expect("the program runs");
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn unwritable_report_keeps_the_exit_code() {
    let Some(world) = HostNetworks::new("unwritable_report_keeps_the_exit_code") else {
        return;
    };
    let ends_with_3 = ["sh", "-c", "exit 3"];
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let full = world
        .link("--report-to /dev/full", &ends_with_3)
        .output()
        .expect("the program runs");
    assert_eq!(full.status.code(), Some(3), "{}", said(&full));
    assert!(said(&full).contains("/dev/full"), "{}", said(&full));

    // Nobody reads standard error any more.
    let mut unread = world
        .link("--report", &ends_with_3)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(unread.stderr.take());
    let status = unread.wait().expect("it ends");
    assert_eq!(status.code(), Some(3));

    // What cannot be opened is said before the command is run.
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mark = folder.path().join("ran");
    let unopened = world
        .link(
            "--report-to /nowhere/account",
            &["touch", &mark.display().to_string()],
        )
        .output()
        .expect("the program runs");
    assert_eq!(unopened.status.code(), Some(125), "{}", said(&unopened));
    assert!(said(&unopened).contains("/nowhere/account"));
    assert!(!mark.exists());

    // A longer account from before leaves nothing behind.
    let account = folder.path().join("account");
    fs::write(&account, "x".repeat(100_000)).expect("the folder takes it");
    let words = format!("--json --report-to {}", account.display());
    printed(world.link(&words, &["true"]).output().expect("it runs"));
    let text = fs::read(&account).expect("the account is there");
    serde_json::from_slice::<Value>(&text).expect("the account is JSON");
}

#[test]
fn bytes_arrive_as_they_were_over_both_families() {
    let Some(world) = HostNetworks::new("bytes through a link around a command") else {
        return;
    };
    let before = world.state_of_host();
    let body = content(2, 1_000_000);
    let server = world.serve(&body);
    for (server_name, host) in [
        (SERVER.to_string(), HOST),
        (format!("[{SERVER_V6}]"), HOST_V6),
    ] {
        let url = format!("http://{server_name}:{}/", server.port);
        let output = world
            .link(
                "--delay 5ms --rate 100Mbit --json",
                &["curl", "-sS", "--max-time", "60", &url],
            )
            .output()
            .expect("the program runs");
        let report = report(&output);
        assert!(printed(output) == body, "not the same bytes from {url}");
        assert!(count(&report, "back", "delivered_bytes") > body.len() as u64);
        assert!(count(&report, "forward", "delivered_packets") > 2);
        let host: IpAddr = host.parse().expect("an address");
        assert_eq!(server.clients().pop(), Some(host));
    }
    assert_eq!(world.state_of_host(), before);
}

#[test]
fn nothing_passes_beside_the_link() {
    let Some(world) = HostNetworks::new("no way but the link") else {
        return;
    };
    let server = world.serve(b"never");
    let url = format!("http://{SERVER}:{}/", server.port);
    let output = world
        .link(
            "--loss 100% --json",
            &["curl", "-sS", "--max-time", "2", &url],
        )
        .output()
        .expect("the program runs");
    // curl's own code for a time that ran out.
    assert_eq!(output.status.code(), Some(28));
    let report = report(&output);
    assert!(count(&report, "forward", "dropped_by_outage_packets") > 0);
    assert_eq!(count(&report, "forward", "delivered_packets"), 0);
    assert_eq!(count(&report, "back", "offered_packets"), 0);
    assert!(server.clients().is_empty());
}

#[test]
fn rate_and_queue_apply_to_the_command() {
    const DATAGRAMS: u64 = 20;
    let Some(world) = HostNetworks::new("the rate of a link around a command") else {
        return;
    };
    let socket = kernel::in_network_namespace(&namespace_path(&world.network), || {
        UdpSocket::bind((SERVER, 0))
    })
    .expect("a port is free");
    let port = socket.local_addr().expect("it is bound").port();
    let directory = tempfile::tempdir().expect("a directory can be made");
    let done = directory.path().join("sent");
    let marker = done.clone();
    let server = thread::spawn(move || {
        let (_, asker) = socket.recv_from(&mut [0; 16]).expect("the command asks");
        for _ in 0..DATAGRAMS {
            socket.send_to(&[7; 1_000], asker).expect("it is sent");
        }
        fs::write(marker, "").expect("the marker can be made");
    });
    // At 8 kbit/s each packet takes longer than a second, so that twenty find the queue full
    // however slowly they are sent.
    let script = format!(
        "exec 3<>/dev/udp/{SERVER}/{port}; echo please >&3; \
         until [ -e {} ]; do sleep 0.01; done",
        done.display()
    );
    let output = world
        .link(
            "--rate-back 8kbit --queue-back 3kB --json",
            &["bash", "-c", &script],
        )
        .output()
        .expect("the program runs");
    server.join().expect("the server did its part");
    let report = report(&output);
    printed(output);
    let back = |key| count(&report, "back", key);
    assert!(back("dropped_by_queue_packets") > 0, "{report}");
    assert!(back("delivered_packets") < DATAGRAMS, "{report}");
    assert_eq!(
        back("offered_packets"),
        back("delivered_packets") + back("dropped_by_queue_packets") + back("held_packets"),
        "{report}"
    );
    assert_eq!(count(&report, "forward", "dropped_by_queue_packets"), 0);
}

#[test]
fn the_gateway_is_the_host_with_its_loopback() {
    let Some(world) = HostNetworks::new("the host's services through a link") else {
        return;
    };
    let server = world.serve_at(&world.host(), "127.0.0.1:0", b"from the host");
    let script = format!(
        "curl -sS --max-time 60 http://$(ip route | sed -n 's/^default via \\([0-9.]*\\).*/\\1/p'):{}/",
        server.port
    );
    let output = world
        .link("--json", &["sh", "-c", &script])
        .output()
        .expect("the program runs");
    let report = report(&output);
    assert_eq!(printed(output), b"from the host");
    assert!(count(&report, "forward", "delivered_packets") > 2);
}

#[test]
fn names_are_resolved_by_the_hosts_own_resolver() {
    let Some(world) = HostNetworks::new("names through a link") else {
        return;
    };
    let server = world.serve(b"found");
    let resolver = kernel::in_network_namespace(&world.host(), || {
        UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 53), 53))
    })
    .expect("the port is free in a new namespace");
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, asker)) = resolver.recv_from(&mut question) {
            answer(&resolver, &question[..length], asker);
        }
    });
    let directory = tempfile::tempdir().expect("a directory can be made");
    let resolv_conf = directory.path().join("resolv.conf");
    fs::write(&resolv_conf, "nameserver 127.0.0.53\n").expect("it can be written");
    // A mount namespace keeps the test's resolv.conf from everybody else.
    let script = format!(
        "mount --bind {} /etc/resolv.conf && exec \"$@\"",
        resolv_conf.display()
    );
    let url = format!("http://around.test:{}/", server.port);
    let output = world
        .on_host(Path::new("/usr/bin/unshare"))
        .args(["--mount", "sh", "-c", &script, "sh"])
        .args([
            env!("CARGO_BIN_EXE_trunkline"),
            "emulate",
            "run",
            "--json",
            "--",
        ])
        .args(["curl", "-sS", "--max-time", "60", "-4", &url])
        .output()
        .expect("the program runs");
    assert_eq!(printed(output), b"found");
}

/// Answers any question for an IPv4 address with the server's, and others with nothing.
fn answer(resolver: &UdpSocket, question: &[u8], asker: SocketAddr) {
    // RFC 1035 §4.1: twelve bytes of header, the name, then type and class.
    let name = question[12..].iter().position(|byte| *byte == 0);
    let Some(end) = name.map(|length| 12 + length + 5) else {
        return;
    };
    let is_address = question[end - 3] == 1;
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    answer.extend(&question[12..end]);
    if is_address {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(SERVER.octets());
    }
    // An asker that has gone away asks no more.
    let _ = resolver.send_to(&answer, asker);
}

/// A command behind a link that says "ready" and waits.
struct WaitingCommand {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl WaitingCommand {
    fn start(mut link: Command) -> Self {
        let mut child = link
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut output = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it speaks");
        assert_eq!(line, "ready\n");
        Self { child, output }
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("it is text");
        let status = self.child.wait().expect("it ends");
        (status.code(), rest)
    }
}

#[test]
fn signals_reach_the_command() {
    let Some(world) = HostNetworks::new("signals through a link") else {
        return;
    };
    let before = world.state_of_host();
    for (signal, name) in [
        (ProcessSignal::Terminate, "TERM"),
        (ProcessSignal::Interrupt, "INT"),
        (ProcessSignal::Reload, "HUP"),
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 33' {name}; echo ready; while :; do sleep 0.02; done"
        );
        // A shell cannot trap what it was started to ignore, as under nohup.
        let command = ["env", "--default-signal", "bash", "-c", &script];
        let waiting = WaitingCommand::start(world.link("", &command));
        kernel::send_signal(waiting.child.id(), signal).expect("it runs");
        assert_eq!(waiting.end(), (Some(33), format!("got {name}\n")));
    }
    assert_eq!(world.state_of_host(), before);
}

#[test]
fn killed_link_ends_its_command_and_is_cleaned() {
    let Some(world) = HostNetworks::new("kill -9 of a link") else {
        return;
    };
    let before = world.state_of_host();
    // A duration that no other process sleeps for, so that this one is told from all others.
    let duration = format!("86399.{}", std::process::id());
    let script = format!("sleep {duration} & echo ready; wait");
    // A killed process cannot remove its socket: it is to go with a directory.
    let directory = tempfile::tempdir().expect("a directory can be made");
    let control = format!("--control {}/control", directory.path().display());
    let mut killed = WaitingCommand::start(world.link(&control, &["sh", "-c", &script]));
    let other =
        WaitingCommand::start(world.link("", &["sh", "-c", "echo ready; exec sleep 86400"]));
    kernel::send_signal(killed.child.id(), ProcessSignal::Kill).expect("it runs");
    killed.child.wait().expect("it ends");
    wait::until(PATIENCE, "the command and its child to end", || {
        Ok((!somebody_runs_with(&duration)).then_some(()))
    })
    .expect("nothing of the command outlives its link");
    let table = format!("tlw-{}", killed.child.id());
    assert!(world.state_of_host().contains(&table));

    let output = world.link("", &["true"]).output().expect("it runs");
    printed(output);
    let now = world.state_of_host();
    assert!(!now.contains(&table), "{now}");
    // The other link still needs what the killed one had switched on.
    assert!(now.contains("/ipv4/conf/uplink/forwarding 1"), "{now}");
    kernel::send_signal(other.child.id(), ProcessSignal::Terminate).expect("it runs");
    assert_eq!(other.end().0, Some(128 + 15));
    assert_eq!(world.state_of_host(), before);
}

fn somebody_runs_with(argument: &str) -> bool {
    fs::read_dir("/proc")
        .expect("/proc is there")
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .any(|words| {
            words
                .split(|byte| *byte == 0)
                .any(|word| word == argument.as_bytes())
        })
}

/// A way for an ordinary user to run the program on a host: a copy that everybody may read, and
/// a mount namespace in which /dev/net/tun is open to all, as it is on most systems.
struct UnprivilegedUser {
    directory: tempfile::TempDir,
}

impl UnprivilegedUser {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let readable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), readable).expect("it is ours");
        fs::copy(
            env!("CARGO_BIN_EXE_trunkline"),
            directory.path().join("trunkline"),
        )
        .expect("the program can be copied");
        Self { directory }
    }

    /// Command that runs `words` behind a link as an unprivileged user, after `preparation` as
    /// root.
    fn link(
        &self,
        world: &HostNetworks,
        preparation: &str,
        settings: &str,
        words: &[&str],
    ) -> Command {
        let directory = self.directory.path().display();
        let script = format!(
            "mknod -m 666 {directory}/tun c 10 200 && mount --bind {directory}/tun /dev/net/tun && \
             {preparation} exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \
             --inh-caps=-all {directory}/trunkline emulate run {settings} -- \"$@\""
        );
        let mut command = world.on_host(Path::new("/usr/bin/unshare"));
        command.args(["--mount", "sh", "-c", &script, "sh"]);
        command.args(words).current_dir("/");
        command
    }
}

impl Drop for UnprivilegedUser {
    fn drop(&mut self) {
        // Each command makes it anew; the directory goes by itself.
        let _ = fs::remove_file(self.directory.path().join("tun"));
    }
}

/// Tells whether an unprivileged user can make a user namespace here; otherwise prints a remark.
fn user_namespaces_work(test: &str) -> bool {
    let arguments = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
    let works = Command::new("setpriv")
        .args(arguments)
        .args(["unshare", "--user", "--net", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        skipped(test, "an ordinary user cannot make user namespaces here");
    }
    works
}

fn skipped(test: &str, reason: &str) {
    // Past the test harness, which hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "skipped {test}: {reason}");
}

#[test]
fn unprivileged_user_reaches_network_through_gateway_program() {
    let test = "a link around a command without root";
    let Some(world) = HostNetworks::new(test) else {
        return;
    };
    if !user_namespaces_work(test) {
        return;
    }
    if command::find("pasta").is_none() {
        skipped(test, "pasta is not installed (package passt)");
        return;
    }
    let before = world.state_of_host();
    let body = content(3, 200_000);
    let server = world.serve(&body);
    for (server_name, host) in [
        (SERVER.to_string(), HOST),
        (format!("[{SERVER_V6}]"), HOST_V6),
    ] {
        let script = format!(
            "[ $(id -u) = {NOBODY} ] && grep -q '^CapEff:.0*$' /proc/self/status && \
             curl -sS --max-time 60 http://{server_name}:{}/ && exit 17",
            server.port
        );
        let ordinary = UnprivilegedUser::new();
        let output = ordinary
            .link(&world, "", "--delay 2ms --json", &["sh", "-c", &script])
            .output()
            .expect("the program runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(17), "{text}");
        assert!(output.stdout == body, "not the same bytes: {text}");
        let report = report(&output);
        assert!(count(&report, "back", "delivered_bytes") > body.len() as u64);
        let host: IpAddr = host.parse().expect("an address");
        assert_eq!(server.clients().pop(), Some(host));
    }
    assert_eq!(world.state_of_host(), before);
}

#[test]
fn without_a_gateway_program_the_fix_is_named() {
    let test = "a missing gateway program";
    let Some(world) = HostNetworks::new(test) else {
        return;
    };
    if !user_namespaces_work(test) {
        return;
    }
    let hidden: String = ["pasta", "slirp4netns"]
        .into_iter()
        .filter_map(command::find)
        .map(|program| format!("mount --bind /dev/null {} && ", program.display()))
        .collect();
    let ordinary = UnprivilegedUser::new();
    let output = ordinary
        .link(&world, &hidden, "", &["true"])
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("apt-get install passt"), "{text}");
}
