//! Tests of the emulated link between two real devices: packets come out, or are lost, as
//! configured.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use emulator::link::{
    DirectionConfig, LinkConfig, LinkDevices, LinkEndpoint, LinkHandle, LinkReport,
    NetworkNamespace, OffloadSetting,
};
use host::run::{LabRun, namespace_path};
use host::{command, kernel, wait};
use vocab::{Probability, SeededRandom};

use crate::setting::{environment, turn};

const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes sent in each direction of a TCP connection: some hundreds of runs of segments.
const STREAM_BYTES: usize = 8 << 20;
/// The payload of a full-size segment with time stamps, over IPv4.
const SEGMENT_BYTES: u64 = 1_448;

const ADDRESSES: [[IpAddr; 2]; 2] = [
    [
        IpAddr::V4(Ipv4Addr::new(198, 18, 7, 1)),
        IpAddr::V4(Ipv4Addr::new(198, 18, 7, 2)),
    ],
    [
        IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 7, 0, 0, 0, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 7, 0, 0, 0, 2)),
    ],
];

/// Two namespaces and a link between them.
struct NamespacePair {
    link: LinkHandle,
    /// The namespace of each end.
    ends: [PathBuf; 2],
    /// Removes the namespaces.
    _run: LabRun,
}

impl NamespacePair {
    fn up(config: LinkConfig, offloads: OffloadSetting) -> Self {
        let run = LabRun::create(&environment()).expect("the run directory can be made");
        let names = ["end-a", "end-b"].map(|role| run.make_namespace(role).expect("as root"));
        let [a, b] = ["a", "b"].map(|name| format!("emu-{name}"));
        let endpoint = |device: &str, namespace: &str| LinkEndpoint {
            device: device.to_owned(),
            namespace: Some(NetworkNamespace::new(namespace)),
        };
        let devices = LinkDevices::Tun {
            a: endpoint(&a, &names[0]),
            b: endpoint(&b, &names[1]),
            offloads,
        };
        let link = LinkHandle::start(&devices, config).expect("the link starts");
        for [near, far] in ADDRESSES {
            for (name, device, own, other) in
                [(&names[0], &a, near, far), (&names[1], &b, far, near)]
            {
                let (own, other) = (own.to_string(), other.to_string());
                let ip = |arguments: &[&str]| {
                    let arguments = [&["-n", name], arguments].concat();
                    command::run("ip", arguments).expect("ip does as it is told");
                };
                let nodad: &[&str] = if near.is_ipv6() { &["nodad"] } else { &[] };
                let peer = ["address", "add", &own, "peer", &other, "dev", device];
                ip(&[&peer, nodad].concat());
            }
        }
        Self {
            link,
            ends: names.map(|name| namespace_path(&name)),
            _run: run,
        }
    }

    /// A socket at each end that sends to the other.
    fn sockets(&self, [near, far]: [IpAddr; 2]) -> [UdpSocket; 2] {
        let bind = |end: &PathBuf, address| {
            kernel::in_network_namespace(end, || UdpSocket::bind(SocketAddr::new(address, 0)))
                .expect("the address is the device's")
        };
        let (one, other) = (bind(&self.ends[0], near), bind(&self.ends[1], far));
        let address = |socket: &UdpSocket| socket.local_addr().expect("it is bound");
        one.connect(address(&other)).expect("there is a route");
        other.connect(address(&one)).expect("there is a route");
        [one, other]
    }

    /// Waits until the account is as wanted.
    fn wait_for(&self, what: &str, mut wanted: impl FnMut(&LinkReport) -> bool) {
        wait::until(PATIENCE, what, || {
            let report = self.link.report()?;
            Ok(wanted(&report).then_some(()))
        })
        .expect("the link's account becomes so");
    }

    /// Every packet that was offered has become something, and nothing was lost outside the model.
    fn settle(self) -> LinkReport {
        self.wait_for("nothing to be held", |report| {
            report.forward.held_packets + report.back.held_packets == 0
        });
        let report = self.link.stop().expect("the link ran to the end");
        for way in [&report.forward, &report.back] {
            let ended = way.delivered_packets
                + way.dropped_by_queue_packets
                + way.dropped_by_loss_packets
                + way.dropped_by_outage_packets
                + way.held_packets;
            assert_eq!(way.offered_packets + way.duplicated_packets, ended);
            assert_eq!(way.failed_writes_packets, 0);
            assert_eq!(way.unread_packets, 0);
        }
        report
    }
}

fn config(forward: DirectionConfig) -> LinkConfig {
    LinkConfig {
        forward,
        back: DirectionConfig::default(),
        seed: 7,
    }
}

fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; count];
    SeededRandom::from_seed(seed).fill(&mut bytes);
    bytes
}

/// Sends everything and then reads to the end.
fn exchange(mut stream: TcpStream, out: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
    let mut back = stream.try_clone().expect("a second handle");
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut all = Vec::new();
            back.read_to_end(&mut all).expect("no reset");
            all
        });
        stream.write_all(out).expect("no reset");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("it is connected");
        reader.join().expect("the reader does not panic")
    })
}

fn streams_arrive(pair: &NamespacePair, [near, far]: [IpAddr; 2]) {
    let listener =
        kernel::in_network_namespace(&pair.ends[1], || TcpListener::bind(SocketAddr::new(far, 0)))
            .expect("the address is the device's");
    let server = listener.local_addr().expect("it is bound");
    let (there, back) = (random_bytes(STREAM_BYTES, 1), random_bytes(STREAM_BYTES, 2));
    let arrived = thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let (stream, from) = listener.accept().expect("one connects");
            assert_eq!(from.ip(), near);
            exchange(stream, &back)
        });
        let stream = kernel::in_network_namespace(&pair.ends[0], || {
            TcpStream::connect_timeout(&server, PATIENCE)
        })
        .expect("the server listens");
        let came_back = exchange(stream, &there);
        assert!(came_back == back, "what came back differs");
        accepted.join().expect("the server does not panic")
    });
    assert!(arrived == there, "what arrived differs");
}

fn datagrams_arrive(pair: &NamespacePair, addresses: [IpAddr; 2]) {
    let [one, other] = pair.sockets(addresses);
    other.set_read_timeout(Some(PATIENCE)).expect("not zero");
    let mut random = SeededRandom::from_seed(3);
    let mut buffer = [0; 2_048];
    for round in 0..60 {
        // So few that the receiver's buffer holds them all; every third round in equal lengths.
        let equal = 1 + random.below(1_400) as usize;
        let sent: Vec<Vec<u8>> = (0..32)
            .map(|index| {
                let length = match round % 3 {
                    0 => equal,
                    1 => 1 + random.below(1_400) as usize,
                    _ => 1_400 * (index % 2) + 9,
                };
                random_bytes(length, random.next_u64())
            })
            .collect();
        for datagram in &sent {
            one.send(datagram).expect("the device is up");
        }
        for datagram in &sent {
            let length = other.recv(&mut buffer).expect("none is lost");
            assert_eq!(&buffer[..length], datagram);
        }
    }
}

fn everything_arrives(test: &str, offloads: OffloadSetting) {
    let Some(_turn) = turn(test, &[]) else {
        return;
    };
    let delayed = DirectionConfig {
        delay: Duration::from_millis(2),
        ..DirectionConfig::default()
    };
    let pair = NamespacePair::up(config(delayed), offloads);
    for addresses in ADDRESSES {
        streams_arrive(&pair, addresses);
        datagrams_arrive(&pair, addresses);
    }
    let report = pair.settle();
    // The model saw the packets of a wire, however they came.
    for way in [&report.forward, &report.back] {
        assert!(way.offered_packets >= 2 * STREAM_BYTES as u64 / SEGMENT_BYTES);
        assert!(way.offered_bytes <= way.offered_packets * 1_500);
    }
}

#[test]
fn streams_and_datagrams_pass_unchanged_in_runs() {
    everything_arrives("the emulator with offloads", OffloadSetting::On);
}

#[test]
fn streams_and_datagrams_pass_unchanged_one_by_one() {
    everything_arrives("the emulator without offloads", OffloadSetting::Off);
}

#[test]
fn certain_loss_loses_everything() {
    let Some(_turn) = turn("certain loss", &[]) else {
        return;
    };
    let lossy = DirectionConfig {
        loss: Probability::from_fraction(1.0).expect("a share").into(),
        ..DirectionConfig::default()
    };
    let pair = NamespacePair::up(config(lossy), OffloadSetting::On);
    let [one, other] = pair.sockets(ADDRESSES[0]);
    for _ in 0..100 {
        one.send(&[7; 500]).expect("the device is up");
    }
    pair.wait_for("all of them to be lost", |report| {
        report.forward.dropped_by_outage_packets >= 100
    });
    other.set_nonblocking(true).expect("it is a socket");
    let nothing = other.recv(&mut [0; 2_048]).expect_err("all are lost");
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    let report = pair.settle();
    assert_eq!(report.forward.delivered_packets, 0);
    assert_eq!(
        report.forward.dropped_by_outage_packets,
        report.forward.offered_packets
    );
}

#[test]
fn damage_is_never_hidden() {
    let Some(_turn) = turn("damage", &[]) else {
        return;
    };
    let damaging = DirectionConfig {
        corruption: Probability::from_fraction(0.5).expect("a share"),
        // All of them become due while the first are written, so that they go out in runs.
        delay: Duration::from_millis(20),
        ..DirectionConfig::default()
    };
    let pair = NamespacePair::up(config(damaging), OffloadSetting::On);
    let [one, other] = pair.sockets(ADDRESSES[0]);
    other.set_nonblocking(true).expect("it is a socket");
    let mut all_sent = HashSet::new();
    let mut arrived = 0;
    for round in 0..20 {
        for index in 0..64 {
            let datagram = random_bytes(1_000, round * 64 + index);
            one.send(&datagram).expect("the device is up");
            all_sent.insert(datagram);
        }
        pair.wait_for("most of them to be delivered", |report| {
            report.forward.delivered_packets >= all_sent.len() as u64
        });
        let mut buffer = [0; 2_048];
        while let Ok(length) = other.recv(&mut buffer) {
            // A flipped bit of the header, too, spoils a check sum.
            assert!(all_sent.contains(&buffer[..length]));
            arrived += 1;
        }
    }
    let report = pair.settle();
    let (delivered, corrupted) = (
        report.forward.delivered_packets,
        report.forward.corrupted_packets,
    );
    assert!(corrupted > 400, "{corrupted} of {delivered} damaged");
    assert!(arrived > 400, "{arrived} of {delivered} arrived");
    // A check sum of one bit that is flipped to zero says "none" (RFC 768), and the rest is whole.
    assert!(arrived <= delivered - corrupted + 2);
}

#[test]
fn devices_are_gone_with_the_link() {
    let Some(_turn) = turn("the end of a link", &[]) else {
        return;
    };
    let pair = NamespacePair::up(config(DirectionConfig::default()), OffloadSetting::On);
    let devices = |pair: &[PathBuf; 2]| {
        pair.iter()
            .map(|end| {
                kernel::in_network_namespace(end, || {
                    std::fs::read_to_string("/proc/thread-self/net/dev")
                })
                .expect("the namespace is there")
            })
            .filter(|table| table.contains("emu-"))
            .count()
    };
    assert_eq!(devices(&pair.ends), 2);
    let NamespacePair { link, ends, _run } = pair;
    link.stop().expect("it ran until now");
    assert_eq!(devices(&ends), 0);
}
