//! Connections that began while the near node was stopped: idle ones are reset once and come back through the node,
//! busy ones are left alone.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{InterceptionLab, firewall, signal, stop, text, within};

/// The time within which an idle connection is reset: several pauses of its client, and more on a busy machine.
const RESET_WITHIN: Duration = Duration::from_secs(90);
/// The pause of a client that is idle for longer than the configured 4 s, and the pause of a busy one.
const IDLE_PAUSE_MS: &str = "10000";
const BUSY_PAUSE_MS: &str = "200";
const SETTINGS: &str =
    "[intercept.reset_surviving]\nports = [\"8088-8089\"]\nidle = \"4s\"\nafter = \"1s\"\n";

/// Returns every byte to its sender.
pub(super) fn echo(port: u16) {
    let listener = TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, port)).unwrap();
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        std::thread::spawn(move || {
            let mut bytes = [0; 100];
            while let Ok(length @ 1..) = stream.read(&mut bytes) {
                if stream.write_all(&bytes[..length]).is_err() {
                    break;
                }
            }
        });
    }
}

/// Sends a byte after each pause, waits for its echo, and connects again when the connection fails, as the clients of
/// file servers do.
pub(super) fn mount(server: SocketAddr, pause: Duration) {
    loop {
        let Ok(mut stream) = TcpStream::connect_timeout(&server, Duration::from_secs(5)) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let mut exchange = || {
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])
        };
        while exchange().is_ok() {
            std::thread::sleep(pause);
        }
    }
}

pub(super) fn idle_connections(lab: &mut InterceptionLab) {
    for port in ["8088", "8089"] {
        lab.start("server", &["echo", port]);
    }
    firewall::with_intercept(lab, "near", SETTINGS);
    stop(lab, "near");
    let mut clients = Vec::new();
    for (server, pause) in [
        ("198.18.2.2:8088", IDLE_PAUSE_MS),
        ("[2001:2:0:2::2]:8088", IDLE_PAUSE_MS),
        ("198.18.2.2:8089", BUSY_PAUSE_MS),
    ] {
        lab.start("client", &["mount", server, pause]);
        clients.push(u64::from(lab.children.last().unwrap().id()));
    }
    within(RESET_WITHIN, || {
        ports(lab, "8088").len() == 2 && ports(lab, "8089").len() == 1
    });
    let (idle, busy) = (ports(lab, "8088"), ports(lab, "8089"));
    let config = lab.config("near");
    lab.start("near", &["node", "run", config.to_str().unwrap()]);
    lab.wait_for_session();

    until(lab, "both idle connections were reset", || {
        surviving(lab, "reset") == 2
    });
    until(lab, "their clients came back through the node", || {
        let now = ports(lab, "8088");
        now.len() == 2 && now.is_disjoint(&idle) && lab.flows_total("near") >= 2
    });
    assert_eq!(
        ports(lab, "8089"),
        busy,
        "the busy client kept its connection"
    );
    assert_eq!(surviving(lab, "passing"), 1);
    assert_eq!(surviving(lab, "reset"), 2);

    for client in clients {
        signal(client, "KILL");
    }
    within(RESET_WITHIN, || {
        ports(lab, "8088").is_empty() && ports(lab, "8089").is_empty()
    });
    firewall::with_intercept(lab, "near", "");
    within(RESET_WITHIN, || {
        let status = lab.status("near").unwrap();
        status["interception"]["surviving"].is_null()
    });
}

/// Waits for a condition, and tells the near node's counts and all sockets if it does not come.
fn until(lab: &InterceptionLab, what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > RESET_WITHIN {
            let status = lab.status("near").unwrap_or_default();
            let sockets = ["client", "near", "far", "server"].map(|site| {
                let list = lab.inside(site, &["ss", "-Htnoi"]);
                format!("{site}:\n{}", text(&list))
            });
            panic!(
                "it did not happen within {RESET_WITHIN:?} that {what}: {:#}\n{}",
                status["interception"],
                sockets.concat()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The client's ports of its open connections to this port.
fn ports(lab: &InterceptionLab, server_port: &str) -> BTreeSet<String> {
    let list = ["ss", "-Htn", "state", "established", "dport", server_port];
    let listed = text(&lab.inside("client", &list));
    let local = |line: &str| line.split_whitespace().nth(2).map(str::to_owned);
    listed.lines().filter_map(local).collect()
}

fn surviving(lab: &InterceptionLab, count: &str) -> u64 {
    let status = lab.status("near").unwrap_or_default();
    let counts = &status["interception"]["surviving"];
    counts[count].as_u64().unwrap_or(0)
}
