//! Tests of a bridge between two namespaces, with handmade frames; as root only.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use emulate::LinkConfig;

use host::packets::{frame, interface_system, system};

use super::super::{LinkDevices, LinkHandle};
use super::*;
use host::kernel;
use host::packets::interface::in_namespace;
use host::packets::packet_system::{FrameRing, FrameSender};

/// Time limit for a frame, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Two hosts and the place of the bridge between them.
struct BridgedHosts([String; 3]);

/// A host's interface, to be spoken and listened at as a wire would.
struct HostInterface {
    sender: FrameSender,
    ring: FrameRing,
}

impl BridgedHosts {
    /// Makes the hosts; `None` where namespaces cannot be made, with the reason on standard error.
    fn new(test: &str) -> Option<Self> {
        if kernel::effective_user() != 0 {
            let _ = writeln!(io::stderr(), "skipped {test}: it needs root");
            return None;
        }
        let prefix = format!(
            "tlfr{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let prefix: String = prefix.chars().filter(char::is_ascii_alphanumeric).collect();
        let hosts = Self(["a", "b", "m"].map(|name| format!("{prefix}{name}")));
        let [a, b, middle] = &hosts.0;
        for namespace in &hosts.0 {
            ip(&format!("netns add {namespace}"));
            // So that the hosts send nothing by themselves.
            ip(&format!(
                "netns exec {namespace} sysctl -q -e net.ipv6.conf.default.disable_ipv6=1"
            ));
        }
        for (host, inner) in [(a, "inner-a"), (b, "inner-b")] {
            ip(&format!(
                "-n {host} link add host type veth peer name inner"
            ));
            ip(&format!(
                "-n {host} link set inner netns {middle} name {inner}"
            ));
            ip(&format!("-n {host} link set host up"));
        }
        Some(hosts)
    }

    fn bridge(&self, io: BridgeIo) -> LinkHandle {
        let end = |interface: &str| BridgeEnd {
            interface: interface.to_owned(),
            namespace: Some(NetworkNamespace::new(&self.0[2])),
        };
        let devices = LinkDevices::Bridge {
            a: end("inner-a"),
            b: end("inner-b"),
            io,
        };
        LinkHandle::start(&devices, LinkConfig::default()).unwrap()
    }

    fn wire(&self, host: usize) -> HostInterface {
        in_namespace(Some(&NetworkNamespace::new(&self.0[host])), || {
            let index = interface_system::index(&interface_system::question_socket()?, "host")?;
            Ok(HostInterface {
                sender: FrameSender::open(index)?,
                ring: FrameRing::open(index, 1_518)?,
            })
        })
        .unwrap()
    }
}

impl Drop for BridgedHosts {
    fn drop(&mut self) {
        for namespace in &self.0 {
            // One of them may never have been made.
            let _ = Command::new("ip")
                .args(["netns", "del", namespace])
                .status();
        }
    }
}

impl HostInterface {
    fn say(&self, frames: &[Bytes]) {
        assert_eq!(self.sender.send(frames).unwrap(), frames.len());
    }

    /// Listens until `is_enough`.
    fn listen(&mut self, is_enough: impl Fn(&[Bytes]) -> bool) -> Vec<Bytes> {
        let deadline = Instant::now() + LIMIT;
        let mut heard = Vec::new();
        while !is_enough(&heard) {
            assert!(Instant::now() < deadline, "only these came: {heard:02x?}");
            self.hear(&mut heard, LIMIT);
        }
        heard
    }

    /// Waits for frames, no longer than `span`, and adds those there are.
    fn hear(&mut self, heard: &mut Vec<Bytes>, span: Duration) {
        system::wait_readable([self.ring.as_fd()], Some(span)).unwrap();
        while self.ring.take(|shown| {
            assert!(frame::make_real(
                shown.offload,
                shown.tag,
                shown.bytes,
                |real| heard.push(real)
            ));
        }) {}
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A frame to `to`, whose `rest` begins with tags or the type, at least 60 bytes long.
fn frame_to(to: [u8; 6], rest: &[u8], length: usize) -> Bytes {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0xaa]);
    frame.extend(rest);
    frame.resize(length.max(60), 0x5a);
    Bytes::from(frame)
}

/// A question for the hardware address of 198.18.0.`of`.
fn question(of: u8) -> Bytes {
    let mut rest = vec![0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0xaa];
    rest.extend([198, 18, 0, 9, 0, 0, 0, 0, 0, 0, 198, 18, 0, of]);
    frame_to([0xff; 6], &rest, 60)
}

fn is_answer_of(frame: &[u8], of: u8) -> bool {
    frame[12..14] == [0x08, 0x06] && frame[20..22] == [0, 2] && frame[28..32] == [198, 18, 0, of]
}

#[test]
fn every_kind_of_frame_passes_unchanged_in_order() {
    let Some(hosts) = BridgedHosts::new("every_kind_of_frame_passes_unchanged_in_order") else {
        return;
    };
    let somebody = [2, 0, 0, 0, 0, 0xbb];
    let frames = [
        // Spanning tree, which is never forwarded by a bridge of IEEE 802.1D, and LLDP.
        frame_to([1, 0x80, 0xc2, 0, 0, 0], &[0, 38, 0x42, 0x42, 3], 60),
        frame_to([1, 0x80, 0xc2, 0, 0, 0x0e], &[0x88, 0xcc, 2, 7, 4], 60),
        question(77),
        // IEEE 802.1Q, with priority and number; 802.1ad around it; the number zero.
        frame_to(somebody, &[0x81, 0x00, 0xe0, 0x07, 0x88, 0xb5], 64),
        frame_to(
            somebody,
            &[0x88, 0xa8, 0x0f, 0xff, 0x81, 0x00, 0x00, 0x02, 0x88, 0xb5],
            68,
        ),
        frame_to(somebody, &[0x81, 0x00, 0x00, 0x00, 0x88, 0xb5], 64),
        // The longest, without a tag and with one.
        frame_to(somebody, &[0x88, 0xb5], 1_514),
        frame_to(somebody, &[0x81, 0x00, 0x00, 0x05, 0x88, 0xb5], 1_518),
        // IP whose lengths and check sums are wrong: nobody's business on the way.
        frame_to(somebody, &[0x08, 0x00, 0x45, 0, 0xff, 0xff], 60),
        frame_to(somebody, &[0x86, 0xdd, 0x6f, 0xff], 60),
    ];
    for io in [BridgeIo::Packet, BridgeIo::Xdp] {
        let link = hosts.bridge(io);
        for (from, to) in [(0, 1), (1, 0)] {
            let (speaker, mut listener) = (hosts.wire(from), hosts.wire(to));
            speaker.say(&frames);
            let heard = listener.listen(|heard| heard.len() >= frames.len());
            assert_eq!(heard, frames, "{io:?}");
        }
        let report = link.stop().unwrap();
        assert_eq!(report.forward.delivered_packets, frames.len() as u64);
        assert_eq!(report.back.delivered_packets, frames.len() as u64);
    }
}

#[test]
fn the_host_of_the_bridge_answers_for_nobody() {
    let Some(hosts) = BridgedHosts::new("the_host_of_the_bridge_answers_for_nobody") else {
        return;
    };
    let [_, b, middle] = &hosts.0;
    ip(&format!("-n {middle} link set lo up"));
    ip(&format!("-n {middle} address add 198.18.0.3/32 dev lo"));
    ip(&format!("-n {b} address add 198.18.0.2/24 dev host"));
    // A host that keeps strictly to its addresses' interfaces would not answer anyway.
    ip(&format!(
        "netns exec {middle} sysctl -q -e net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0"
    ));
    let middle = File::open(format!("/run/netns/{middle}")).unwrap();
    let is_kept_out = host::packets::namespace::within(Some(middle.as_fd()), || {
        let index = interface_system::index(&interface_system::question_socket()?, "inner-a")?;
        Ok(
            host::packets::bpf::attach_drop_filter(index, host::packets::bpf::FilterDirection::In)
                .is_ok(),
        )
    });
    if !is_kept_out.unwrap() {
        let _ = writeln!(io::stderr(), "skipped: this kernel keeps no host out (TCX)");
        return;
    }
    for io in [BridgeIo::Packet, BridgeIo::Xdp] {
        let link = hosts.bridge(io);
        let mut wire = hosts.wire(0);
        let mut heard: Vec<Bytes> = Vec::new();
        let deadline = Instant::now() + LIMIT;
        while !heard.iter().any(|frame| is_answer_of(frame, 2)) {
            assert!(Instant::now() < deadline, "only these came: {heard:02x?}");
            // An interface that has only just come up may drop its host's first answer.
            wire.say(&[question(3), question(2)]);
            wire.hear(&mut heard, Duration::from_millis(100));
        }
        assert!(!heard.iter().any(|frame| is_answer_of(frame, 3)), "{io:?}");
        link.stop().unwrap();
    }
}
