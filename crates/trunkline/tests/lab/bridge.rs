//! Tests of a bridge between two interfaces, each connected to a host in a namespace of its own.
//!
//! ```text
//!   host A ─veth─ inner A ══ link ══ inner B ─veth─ host B
//! ```
//! The hosts know nothing of it: they find each other by ARP and neighbour discovery through the
//! link, which is what shows that those pass.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use emulator::link::{
    BridgeEnd, BridgeIo, LinkConfig, LinkDevices, LinkHandle, LossModel, NetworkNamespace,
};
use host::kernel;
use vocab::{Probability, SeededRandom};

use crate::setting::turn;

/// Time limit for an answer, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

const BOTH: [BridgeIo; 2] = [BridgeIo::Packet, BridgeIo::Xdp];

/// The hosts' addresses, A's and B's.
const IPV4: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)),
];
const IPV6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
];

/// Three namespaces, removed when it is dropped.
struct BridgeHosts {
    /// Host A's, host B's, and the one where the bridge is.
    namespaces: [String; 3],
}

const A: usize = 0;
const B: usize = 1;
const MIDDLE: usize = 2;

impl BridgeHosts {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("tlbr{}-{number}", std::process::id());
        let hosts = Self {
            namespaces: ["a", "b", "m"].map(|name| format!("{prefix}{name}")),
        };
        for namespace in &hosts.namespaces {
            ip(&["netns", "add", namespace]);
        }
        for (host, inner) in [(A, "inner-a"), (B, "inner-b")] {
            let middle = &hosts.namespaces[MIDDLE];
            hosts.ip(host, "link add host type veth peer name inner");
            hosts.ip(host, "link set lo up");
            hosts.ip(host, &format!("link set inner netns {middle} name {inner}"));
            hosts.ip(host, "link set host up");
            hosts.ip(host, &format!("address add {}/24 dev host", IPV4[host]));
            // Nobody else has it, and a second of asking would be waited for.
            hosts.ip(
                host,
                &format!("address add {}/64 dev host nodad", IPV6[host]),
            );
        }
        hosts
    }

    fn ip(&self, namespace: usize, arguments: &str) -> String {
        let mut all = vec!["-n", &self.namespaces[namespace]];
        all.extend(arguments.split(' '));
        ip(&all)
    }

    /// Makes an interface in the middle; `false` where this kernel does not support its kind, with
    /// a remark on standard error.
    fn makes(&self, arguments: &str) -> bool {
        let output = Command::new("ip")
            .args(["-n", &self.namespaces[MIDDLE]])
            .args(arguments.split(' '))
            .output()
            .expect("ip is installed");
        let error = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            assert!(error.contains("Unknown device type"), "{error}");
            // Past the test harness, which hides what passing tests print.
            let _ = writeln!(std::io::stderr(), "skipped `ip {arguments}`: {error}");
        }
        output.status.success()
    }

    fn file(&self, namespace: usize) -> PathBuf {
        Path::new("/run/netns").join(&self.namespaces[namespace])
    }

    fn at<T: Send>(&self, host: usize, work: impl FnOnce() -> std::io::Result<T> + Send) -> T {
        kernel::in_network_namespace(&self.file(host), work).expect("the host can do it")
    }

    fn end(&self, interface: &str) -> BridgeEnd {
        BridgeEnd {
            interface: interface.to_owned(),
            namespace: Some(NetworkNamespace::new(&self.namespaces[MIDDLE])),
        }
    }

    fn devices(&self, io: BridgeIo) -> LinkDevices {
        LinkDevices::Bridge {
            a: self.end("inner-a"),
            b: self.end("inner-b"),
            io,
        }
    }

    fn bridge(&self, io: BridgeIo, config: LinkConfig) -> LinkHandle {
        LinkHandle::start(&self.devices(io), config).expect("the bridge starts")
    }

    fn refusal(&self, a: BridgeEnd, b: BridgeEnd) -> String {
        let devices = LinkDevices::Bridge {
            a,
            b,
            io: BridgeIo::Packet,
        };
        let error =
            LinkHandle::start(&devices, LinkConfig::default()).expect_err("this cannot be bridged");
        format!("{error:#}")
    }

    /// A datagram socket at a host.
    fn datagrams(&self, host: usize, address: IpAddr) -> UdpSocket {
        let socket = self.at(host, || UdpSocket::bind((address, 0)));
        socket
            .set_read_timeout(Some(LIMIT))
            .expect("a limit can be set");
        socket
    }
}

impl Drop for BridgeHosts {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            // One of them may never have been made.
            let _ = Command::new("ip")
                .args(["netns", "del", namespace])
                .status();
        }
    }
}

/// Runs `ip`, which must succeed.
fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .expect("`ip` is there");
    assert!(
        output.status.success(),
        "ip {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn random(bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    SeededRandom::from_seed(seed).fill(&mut content);
    content
}

#[test]
fn hosts_resolve_each_other_and_exchange_datagrams() {
    let Some(_turn) = turn("hosts_resolve_each_other_and_exchange_datagrams", &[]) else {
        return;
    };
    for io in BOTH {
        let hosts = BridgeHosts::new();
        let link = hosts.bridge(io, LinkConfig::default());
        for addresses in [IPV4, IPV6] {
            let [a, b] = [A, B].map(|host| hosts.datagrams(host, addresses[host]));
            for length in [0, 1, 17, 1_452] {
                let question = random(length, 1);
                a.send_to(&question, b.local_addr().unwrap()).unwrap();
                let mut buffer = [0; 2_000];
                let (count, from) = b.recv_from(&mut buffer).expect("the question arrives");
                assert_eq!(buffer[..count], question, "{io:?}");
                assert_eq!(from, a.local_addr().unwrap());
                let answer = random(length, 2);
                b.send_to(&answer, from).unwrap();
                let count = a.recv(&mut buffer).expect("the answer arrives");
                assert_eq!(buffer[..count], answer, "{io:?}");
            }
        }
        let report = link.stop().expect("it ran to the end");
        assert_eq!(report.lost_outside_the_model(), 0, "{io:?}");
    }
}

#[test]
fn tcp_with_offloads_on_arrives_byte_for_byte() {
    let Some(_turn) = turn("tcp_with_offloads_on_arrives_byte_for_byte", &[]) else {
        return;
    };
    const BYTES: usize = 8_000_000;
    for io in BOTH {
        let hosts = BridgeHosts::new();
        let link = hosts.bridge(io, LinkConfig::default());
        for (addresses, from, to) in [(IPV4, A, B), (IPV6, B, A)] {
            let listener = hosts.at(to, || TcpListener::bind((addresses[to], 0)));
            let server: SocketAddr = listener.local_addr().unwrap();
            let sent = random(BYTES, 3);
            let received = thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_read_timeout(Some(LIMIT)).unwrap();
                    let mut content = Vec::new();
                    stream.read_to_end(&mut content).expect("all of it arrives");
                    content
                });
                let mut stream = hosts.at(from, || TcpStream::connect_timeout(&server, LIMIT));
                stream.set_write_timeout(Some(LIMIT)).unwrap();
                stream.write_all(&sent).unwrap();
                drop(stream);
                receiver.join().unwrap()
            });
            // Not assert_eq: eight megabytes say nothing to a reader.
            assert!(received == sent, "{io:?}: {} bytes", received.len());
        }
        let report = link.stop().expect("it ran to the end");
        // The model saw real packets and not the large ones that the hosts hand to their devices:
        // 1,448 bytes of TCP's payload in each at most.
        assert!(report.forward.offered_packets >= (BYTES / 1_448) as u64);
        assert!(report.back.offered_packets >= (BYTES / 1_448) as u64);
        assert!(report.forward.offered_bytes <= report.forward.offered_packets * 1_500);
    }
}

#[test]
fn a_link_that_loses_all_lets_nothing_pass() {
    let Some(_turn) = turn("a_link_that_loses_all_lets_nothing_pass", &[]) else {
        return;
    };
    const COUNT: u64 = 500;
    for io in BOTH {
        let hosts = BridgeHosts::new();
        // Nobody could be found through this link.
        let address = hosts.ip(B, "-br link show host");
        let address = address
            .split_whitespace()
            .nth(2)
            .expect("it has an address");
        let neighbour = format!("neigh add {} lladdr {address} dev host", IPV4[B]);
        hosts.ip(A, &neighbour);
        let mut config = LinkConfig::default();
        config.forward.loss = LossModel::Random("100%".parse::<Probability>().unwrap());
        let link = hosts.bridge(io, config);
        let [a, b] = [A, B].map(|host| hosts.datagrams(host, IPV4[host]));
        // An interface that has only just come up may drop what is sent first.
        let report = loop {
            a.send_to(b"lost", b.local_addr().unwrap()).unwrap();
            let report = link.report().expect("the link runs");
            if report.forward.offered_packets >= COUNT {
                break report;
            }
        };
        assert_eq!(
            report.forward.dropped_by_outage_packets,
            report.forward.offered_packets
        );
        assert_eq!(report.forward.delivered_packets, 0);
        b.set_nonblocking(true).unwrap();
        assert!(b.recv(&mut [0; 100]).is_err(), "{io:?}");
        link.stop().expect("it ran to the end");
    }
}

#[test]
fn vanished_interface_ends_the_link_with_the_reason() {
    let Some(_turn) = turn("vanished_interface_ends_the_link_with_the_reason", &[]) else {
        return;
    };
    for io in BOTH {
        for (host, name) in [(A, "inner-a"), (B, "inner-b")] {
            let hosts = BridgeHosts::new();
            let link = hosts.bridge(io, LinkConfig::default());
            hosts.ip(host, "link del host");
            while link.is_running() {
                thread::yield_now();
            }
            let error = format!("{:#}", link.stop().expect_err("its end was no clean one"));
            assert!(error.contains(name) && error.contains("gone"), "{error}");
        }
    }
}

#[test]
fn interfaces_are_put_back_as_they_were() {
    let Some(_turn) = turn("interfaces_are_put_back_as_they_were", &[]) else {
        return;
    };
    for io in BOTH {
        let hosts = BridgeHosts::new();
        hosts.ip(MIDDLE, "link set inner-b up");
        let look = || {
            ["inner-a", "inner-b"].map(|name| {
                // Flags, queueing, and programs; the state of the carrier follows a moment later.
                let text = hosts.ip(MIDDLE, &format!("-d -o link show {name}"));
                let flags = text.split(['<', '>']).nth(1).unwrap_or_default();
                (
                    flags.contains("UP,") || flags.ends_with("UP"),
                    text.contains("promiscuity 0"),
                    text.contains("xdp"),
                )
            })
        };
        assert_eq!(look(), [(false, true, false), (true, true, false)]);
        let link = hosts.bridge(io, LinkConfig::default());
        let is_express = io == BridgeIo::Xdp;
        assert_eq!(look(), [(true, false, is_express); 2]);
        link.stop().expect("it ran to the end");
        assert_eq!(look(), [(false, true, false), (true, true, false)]);
    }
}

#[test]
fn invalid_bridge_is_refused() {
    let Some(_turn) = turn("invalid_bridge_is_refused", &[]) else {
        return;
    };
    let hosts = BridgeHosts::new();
    let twice = hosts.refusal(hosts.end("inner-a"), hosts.end("inner-a"));
    assert!(twice.contains("two different interfaces"), "{twice}");
    let missing = hosts.refusal(hosts.end("inner-a"), hosts.end("inner-c"));
    assert!(missing.contains("no such interface"), "{missing}");

    let loopback = hosts.refusal(hosts.end("lo"), hosts.end("inner-b"));
    assert!(loopback.contains("loopback"), "{loopback}");
    hosts.ip(MIDDLE, "tuntap add dev tunnel mode tun");
    let tunnel = hosts.refusal(hosts.end("inner-a"), hosts.end("tunnel"));
    assert!(tunnel.contains("no Ethernet frames"), "{tunnel}");

    hosts.ip(MIDDLE, "link set inner-b mtu 1400");
    let unequal = hosts.refusal(hosts.end("inner-a"), hosts.end("inner-b"));
    assert!(
        unequal.contains("ip link set inner-a mtu 1400"),
        "{unequal}"
    );
    hosts.ip(MIDDLE, "link set inner-b mtu 1500");

    let first = LinkHandle::start(
        &LinkDevices::Bridge {
            a: hosts.end("inner-a"),
            b: hosts.end("inner-b"),
            io: BridgeIo::Packet,
        },
        LinkConfig::default(),
    )
    .expect("nothing is in the way");
    let second = hosts.refusal(hosts.end("inner-a"), hosts.end("inner-b"));
    assert!(second.contains("another link"), "{second}");
    first.stop().expect("it ran");

    let refused = |words: [&str; 2]| {
        let text = hosts.refusal(hosts.end("inner-a"), hosts.end("inner-b"));
        assert!(words.iter().all(|words| text.contains(words)), "{text}");
    };
    if hosts.makes("link add ports type bridge") {
        hosts.ip(MIDDLE, "link set inner-b master ports");
        refused(["a port of the bridge ports", "ip link set inner-b nomaster"]);
        hosts.ip(MIDDLE, "link set inner-b nomaster");
    }
    if hosts.makes("link add stacked link inner-b type macvlan") {
        refused(["macvlan interface stacked", "ip link del stacked"]);
        hosts.ip(MIDDLE, "link del stacked");
    }

    hosts.ip(MIDDLE, "link set inner-b up");
    hosts.ip(MIDDLE, "route add 198.18.2.0/24 dev inner-b");
    refused(["198.18.2.0/24", "ip route del 198.18.2.0/24 dev inner-b"]);
    hosts.ip(MIDDLE, "route del 198.18.2.0/24 dev inner-b");
    hosts.ip(MIDDLE, "address add 2001:db8:1::1/64 dev inner-b nodad");
    refused([
        "2001:db8:1::1/64",
        "ip address del 2001:db8:1::1/64 dev inner-b",
    ]);
    hosts.ip(MIDDLE, "address del 2001:db8:1::1/64 dev inner-b");
    hosts.ip(MIDDLE, "address add 198.18.1.1/24 dev inner-b");
    refused(["198.18.1.1/24", "ip address del 198.18.1.1/24 dev inner-b"]);
    hosts.ip(MIDDLE, "route add default via 198.18.1.2");
    let main = hosts.refusal(hosts.end("inner-a"), hosts.end("inner-b"));
    assert!(main.contains("default route"), "{main}");

    // What was looked at first has not been changed.
    let text = hosts.ip(MIDDLE, "-o link show inner-a");
    assert!(!text.contains("UP"), "{text}");
}
