//! Ports of the profiler: interfaces through which one host sends and receives all packets.
//!
//! ```text
//!             ┌─ sender ──► queueing discipline ──► driver ──► device
//!   interface ┤                        └─ ring of sent frames, with the kernel's stamps
//!             └─ ring of received frames, with the kernel's stamps ◄── driver ◄── device
//! ```
//! All rings of a host use one clock, CLOCK_REALTIME. The emulated hosts of a port share an Ethernet
//! address that the interface itself does not have, so this host's network stack ignores their
//! packets. Frames that a ring had no room for, and frames that the kernel did not take for sending,
//! are counted apart from the losses of the device.

use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use host::packets::interface::{ClaimedInterface, in_namespace};
use host::packets::interface_system::OffloadFeature;
use host::packets::namespace::NetworkNamespace;
use host::packets::packet_system::{
    FrameRing, FrameSender, RingDirection, RingShape, is_transient,
};
use profile::{AddressFamily, device_address, emulated_endpoints, is_emulated};

use crate::neighbours::{self, NeighbourMessage};
use crate::probe::{self, ETHERNET_HEADER, IDENTIFYING_BYTES, MacAddress, MeasuredFrame};

/// Memory for received frames of a port: 0.26 s of short packets at 1,000,000 per second, and 32,768
/// packets of 1,500 bytes.
const RECEIVED_RING_BYTES: usize = 64 * 1_024 * 1_024;
/// Memory for the beginnings of sent frames: 262,144 packets.
const SENT_RING_BYTES: usize = 64 * 1_024 * 1_024;
/// Room for two VLAN tags.
const TAGS: usize = 8;

/// Offloads that would join packets.
const JOINING: [OffloadFeature; 2] = [OffloadFeature::LargeReceive, OffloadFeature::GenericReceive];

/// Requests for an Ethernet address, and the time to wait for each reply.
const REQUESTS_MAX: u32 = 3;
const REPLY_WITHIN: Duration = Duration::from_millis(700);
/// Pause between two looks at the rings while a reply is expected.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// First bytes of the Ethernet addresses of emulated hosts: locally administered, "TLP".
const MAC_PREFIX: [u8; 4] = [0x02, 0x54, 0x4c, 0x50];

/// Place of a port: an interface, and its network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLocation {
    /// Name of the interface.
    pub interface: String,
    /// Network namespace of the interface; `None` is that of the calling thread.
    pub namespace: Option<NetworkNamespace>,
}

impl PortLocation {
    /// Reads `INTERFACE` or `INTERFACE@NAMESPACE`.
    ///
    /// # Errors
    /// When a part is empty.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (interface, namespace) = match text.split_once('@') {
            Some((interface, namespace)) => (interface, Some(namespace)),
            None => (text, None),
        };
        if interface.is_empty() || namespace == Some("") {
            return Err(format!(
                "`{text}` names no port; write INTERFACE or INTERFACE@NAMESPACE, such as eth1 or eth1@lab"
            ));
        }
        Ok(Self {
            interface: interface.to_owned(),
            namespace: namespace.map(NetworkNamespace::new),
        })
    }
}

/// Rings of a port, which one thread reads.
#[derive(Debug)]
pub(crate) struct PortRings {
    /// Frames that the kernel has handed to the device.
    pub(crate) sent: FrameRing,
    /// Frames that came from the device.
    pub(crate) received: FrameRing,
}

/// A port in use; dropping it puts the interface back as it was.
#[derive(Debug)]
pub(crate) struct MeasurementPort {
    number: u16,
    mac: MacAddress,
    sender: FrameSender,
    rings: PortRings,
    namespace: Option<NetworkNamespace>,
    // Last, so that it is put back once the sockets are closed.
    interface: ClaimedInterface,
}

impl MeasurementPort {
    /// Takes an interface as port `number`, for IP packets of up to `packet_bytes`.
    ///
    /// # Errors
    /// When the interface is missing, used by this host or by another run, too small for the
    /// packets, or the user may not.
    pub(crate) fn open(location: &PortLocation, number: u16, packet_bytes: usize) -> Result<Self> {
        let namespace = location.namespace.clone();
        let mut interface = ClaimedInterface::find(&location.interface, namespace.as_ref())
            .with_context(|| format!("port {number}"))?;
        if packet_bytes > interface.mtu() {
            bail!(
                "port {number}: {} has an MTU of {}, and the plan has packets of {packet_bytes} bytes; raise the MTU of the interface and of the device, or remove the size from the plan",
                interface.name(),
                interface.mtu()
            );
        }
        interface
            .take_visible(namespace.as_ref(), &JOINING)
            .with_context(|| format!("port {number}: {}", interface.name()))?;
        let index = interface.index();
        let received = RingShape {
            direction: RingDirection::Received,
            kept_bytes: ETHERNET_HEADER + TAGS + packet_bytes,
            ring_bytes: RECEIVED_RING_BYTES,
        };
        let sent = RingShape {
            direction: RingDirection::Sent,
            kept_bytes: IDENTIFYING_BYTES,
            ring_bytes: SENT_RING_BYTES,
        };
        let (sender, rings) = in_namespace(namespace.as_ref(), || {
            let rings = PortRings {
                sent: FrameRing::open_measuring(index, sent)?,
                received: FrameRing::open_measuring(index, received)?,
            };
            Ok((FrameSender::open_observable(index)?, rings))
        })
        .with_context(|| {
            format!(
                "cannot open packet sockets on {}; it takes CAP_NET_RAW: run as root",
                interface.name()
            )
        })?;
        let [.., a, b] = index.to_be_bytes();
        let [c, d, e, f] = MAC_PREFIX;
        Ok(Self {
            number,
            mac: [c, d, e, f ^ (number as u8), a, b],
            sender,
            rings,
            namespace,
            interface,
        })
    }

    /// Ethernet address of its emulated hosts.
    #[must_use]
    pub(crate) fn mac(&self) -> MacAddress {
        self.mac
    }

    /// Name of its interface.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        self.interface.name()
    }

    /// Separates the parts that different threads use.
    pub(crate) fn split(&mut self) -> (&FrameSender, &mut PortRings) {
        (&self.sender, &mut self.rings)
    }

    /// Frames that the driver has dropped in either direction so far, as the interface counts them.
    ///
    /// # Errors
    /// When the kernel does not list the interface.
    pub(crate) fn driver_drops(&self) -> Result<u64> {
        let text = in_namespace(self.namespace.as_ref(), || {
            std::fs::read_to_string("/proc/thread-self/net/dev")
                .context("/proc/thread-self/net/dev")
        })?;
        drops_of(&text, self.interface.name()).with_context(|| {
            format!(
                "the kernel does not list the interface {}; it was deleted or moved",
                self.interface.name()
            )
        })
    }

    /// Discards all frames in the rings.
    pub(crate) fn discard_waiting(&mut self) {
        while self.rings.sent.take(|_| ()) {}
        while self.rings.received.take(|_| ()) {}
    }
}

/// Finds the drops of an interface in the text of /proc/net/dev.
fn drops_of(text: &str, interface: &str) -> Option<u64> {
    /// Columns of /proc/net/dev after the name: received and sent packets that were dropped.
    const DROPPED: [usize; 2] = [3, 11];
    let line = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let columns: Vec<u64> = line
        .split_whitespace()
        .map(|value| value.parse().unwrap_or_default())
        .collect();
    Some(DROPPED.iter().filter_map(|at| columns.get(*at)).sum())
}

/// Replies to requests for emulated hosts. A port emulates every host of its subnets except the
/// device itself.
///
/// # Errors
/// When the kernel does not take the reply.
pub(crate) fn answer_neighbour(
    frame: &[u8],
    port: (u16, MacAddress),
    sender: &FrameSender,
) -> io::Result<()> {
    match neighbour_reply(frame, port) {
        Some(reply) => sender.send(&[reply]).map(|_| ()),
        None => Ok(()),
    }
}

/// Reply of port `number` to a frame with a request for one of its hosts; `None` to any other frame.
fn neighbour_reply(frame: &[u8], (number, mac): (u16, MacAddress)) -> Option<Vec<u8>> {
    let message = neighbours::parse(frame)?;
    match message {
        NeighbourMessage::Request { target, .. } if is_emulated(target, number) => {
            neighbours::reply(&message, mac)
        }
        NeighbourMessage::Request { .. } | NeighbourMessage::Reply { .. } => None,
    }
}

/// Reads a frame as port 1 does, for tests with hostile bytes: returns the port's reply, if the frame
/// asks for the Ethernet address of an emulated host.
#[must_use]
pub fn reply_to_frame(frame: &[u8]) -> Option<Vec<u8>> {
    match probe::parse(frame) {
        MeasuredFrame::Neighbour => neighbour_reply(frame, (1, [2, 0, 0, 0, 0, 1])),
        MeasuredFrame::Probe(probe) => {
            let _ = (probe.is_intact(), probe.ip_bytes());
            None
        }
        MeasuredFrame::Segment(segment) => {
            let _ = (segment.is_intact(), segment.destination());
            None
        }
        MeasuredFrame::Icmp(..) | MeasuredFrame::Fragment | MeasuredFrame::Foreign => None,
    }
}

/// Finds the Ethernet address to which port `number` sends packets for `destination`: that of the
/// device if it routes, or that of the emulated host behind a device that bridges.
///
/// # Errors
/// When nobody replies.
pub(crate) fn resolve_next_hop(
    ports: &mut [MeasurementPort],
    number: u16,
    (family, destination): (AddressFamily, IpAddr),
) -> Result<MacAddress> {
    let device = device_address(family, number);
    let source = emulated_endpoints(family, 0, number, number).source.ip();
    // Both at once: behind a bridge, nobody has the device's address.
    let targets = [device, destination];
    for _ in 0..REQUESTS_MAX {
        if let Some(mac) = ask_once(ports, number, &targets, source)? {
            return Ok(mac);
        }
    }
    let name = ports[usize::from(number)].name();
    let prefix = match family {
        AddressFamily::Ipv4 => 24,
        AddressFamily::Ipv6 => 64,
    };
    bail!(
        "no device answers on port {number} ({name}): neither {device}, the address that a router has there, nor {destination} through a bridge. Give the device {device}/{prefix} on this port, or check the cable"
    )
}

/// Sends a request for each target and waits for the first reply; meanwhile all ports reply to
/// requests.
fn ask_once(
    ports: &mut [MeasurementPort],
    number: u16,
    targets: &[IpAddr],
    source: IpAddr,
) -> Result<Option<MacAddress>> {
    let port = &ports[usize::from(number)];
    let requests = targets
        .iter()
        .map(|target| neighbours::request(*target, source, port.mac))
        .collect::<Option<Vec<_>>>()
        .context("source and target are of one family")?;
    match port.sender.send(&requests) {
        // An interface without a carrier takes nothing; nobody will reply then.
        Err(error) if !is_transient(&error) => {
            return Err(error)
                .with_context(|| format!("port {number} ({}) does not send", port.name()));
        }
        Ok(_) | Err(_) => {}
    }
    let until = Instant::now() + REPLY_WITHIN;
    let mut found = None;
    while found.is_none() && Instant::now() < until {
        for port in &mut *ports {
            let (sender, mac, here) = (&port.sender, port.mac, port.number);
            let mut failure = None;
            while port.rings.received.take(|frame| {
                if !matches!(probe::parse(frame.bytes), MeasuredFrame::Neighbour) {
                    return;
                }
                if let Some(NeighbourMessage::Reply { address, mac }) =
                    neighbours::parse(frame.bytes)
                    && here == number
                    && targets.contains(&address)
                {
                    found = Some(mac);
                }
                failure = answer_neighbour(frame.bytes, (here, mac), sender).err();
            }) {}
            if let Some(error) = failure {
                return Err(error).with_context(|| format!("port {here} does not send"));
            }
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_has_interface_and_namespace() {
        let port = PortLocation::parse("eth1@lab").unwrap();
        assert_eq!(port.interface, "eth1");
        assert_eq!(port.namespace, Some(NetworkNamespace::new("lab")));
        assert_eq!(PortLocation::parse("eth1").unwrap().namespace, None);
        assert!(PortLocation::parse("@lab").is_err());
        assert!(PortLocation::parse("eth1@").is_err());
    }

    #[test]
    fn drops_of_both_directions_are_summed() {
        let text = "Inter-|   Receive\n face |bytes packets errs drop\n  eth1: 10 2 0 3 0 0 0 0 20 4 0 5 0 0 0 0\n eth10: 1 1 1 9 1 1 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(drops_of(text, "eth1"), Some(8));
        assert_eq!(drops_of(text, "eth2"), None);
    }

    #[test]
    fn port_answers_for_its_hosts_in_both_families() {
        let theirs = [2, 0, 0, 0, 0, 2];
        for (target, sender, is_answered) in [
            ("198.18.1.2", "198.18.1.1", true),
            ("198.18.1.1", "198.18.1.9", false),
            ("198.18.2.2", "198.18.1.1", false),
            ("2001:2:0:1::2", "2001:2:0:1::1", true),
            ("2001:2:0:1::fb", "fe80::1", true),
            ("2001:2:0:1::1", "fe80::1", false),
            ("2001:2:0:2::2", "fe80::1", false),
        ] {
            let [asked, from] = [target, sender].map(|one| one.parse().unwrap());
            let request = neighbours::request(asked, from, theirs).unwrap();
            let reply = reply_to_frame(&request);
            assert_eq!(reply.is_some(), is_answered, "{target}");
            // A reply gets no reply.
            assert_eq!(reply.and_then(|reply| reply_to_frame(&reply)), None);
        }
    }
}
