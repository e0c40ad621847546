//! Test bed of the emulator: it runs alone in the middle, with sockets at both ends.
//!
//! ```text
//!   TUN      sending ═tc..a═╡ emulator ╞═tc..b═ receiving       (devices of the emulator's own)
//!   bridge   sending ─tc..a─── emulator ───tc..b─ receiving     (veth pairs, one end in the middle)
//! ```
//! Each side is a network namespace of its own. The emulator is a process of its own, this very
//! program; the measuring side has nothing of it but the sockets at both ends. Its own account is
//! read when it has ended and stands beside what was measured.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use emulate::LinkConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::link::{
    BridgeEnd, BridgeIo, LinkDevices, LinkEndpoint, LinkHandle, NetworkNamespace, OffloadSetting,
};
use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::run::{LabRun, namespace_path};
use host::stamped_sockets::{self as system, StampedDirection};
use host::{ProgramEnvironment, command, wait};

/// The ends' addresses, from the ranges for benchmarks (RFC 2544 appendix C.2.2, RFC 5180 §8).
const ENDS_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 21, 1), Ipv4Addr::new(198, 18, 21, 2)];
const ENDS_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 2, 0, 0x21, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 2, 0, 0x21, 0, 0, 0, 2),
];

/// No address is made, no router asked for and no duplicate looked for by itself…
const QUIET_V6: [(&str, &str); 4] = [
    ("addr_gen_mode", "1"),
    ("router_solicitations", "0"),
    ("accept_ra", "0"),
    ("accept_dad", "0"),
];
/// Rules that suppress the kernel's own IPv6 packets on the measured link (RFC 3810, Multicast
/// Listener Discovery).
const SILENCE_V6: &str = "table ip6 quiet {
    chain out {
        type filter hook output priority 0
        meta l4proto ipv6-icmp drop
    }
}
";

/// The Ethernet addresses of a bridge's ends, locally administered: fixed, so that the ends need
/// not ask over the measured link.
const SENDING_STATION: &str = "02:54:4c:00:00:01";
const RECEIVING_STATION: &str = "02:54:4c:00:00:02";

/// Time limit for the emulator to open its devices.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Attachment of the emulator to the two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Two TUN devices.
    #[default]
    Tun,
    /// A bridge by packet sockets.
    Packet,
    /// A bridge by AF_XDP.
    Xdp,
}

impl DeviceKind {
    /// Every one.
    pub const ALL: [DeviceKind; 3] = [DeviceKind::Tun, DeviceKind::Packet, DeviceKind::Xdp];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Tun => "tun",
            DeviceKind::Packet => "packet",
            DeviceKind::Xdp => "xdp",
        }
    }
}

/// The protocol of the packets that measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpVersion {
    /// IPv4.
    #[default]
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl fmt::Display for IpVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            IpVersion::V4 => "IPv4",
            IpVersion::V6 => "IPv6",
        })
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            DeviceKind::Tun => "TUN",
            DeviceKind::Packet => "AF_PACKET",
            DeviceKind::Xdp => "AF_XDP",
        })
    }
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|device| device.name() == text)
            .ok_or_else(|| format!("`{text}` is no device; use tun, packet or xdp"))
    }
}

/// The namespaces, and the emulator between them while it runs.
#[derive(Debug)]
pub(super) struct TestBed {
    // Before `run`, which deletes the namespaces: fields are dropped in this order.
    emulator: Option<RunningProcess>,
    within: Option<LinkHandle>,
    device: DeviceKind,
    protocol: IpVersion,
    sending: String,
    middle: String,
    receiving: String,
    logs: PathBuf,
    starts: u32,
    /// Makes the emulator set rates that this host was not seen to carry.
    pub(super) force: bool,
    /// Rates that were forced so far, as text.
    pub(super) forced: BTreeSet<String>,
    /// The kernel stamps packets only while some socket wants it, and takes its time to begin.
    _stamping: UdpSocket,
    run: LabRun,
}

impl TestBed {
    /// Makes the namespaces.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn create(
        environment: &ProgramEnvironment,
        device: DeviceKind,
        protocol: IpVersion,
    ) -> Result<Self> {
        let run = LabRun::create(environment)?;
        let [sending, middle, receiving] = [
            run.make_namespace("sending")?,
            run.make_namespace("middle")?,
            run.make_namespace("receiving")?,
        ];
        for name in [&sending, &middle, &receiving] {
            // Neighbour discovery would cross the measured link.
            let is_end = *name != middle;
            let settings = match protocol {
                IpVersion::V6 if is_end => &QUIET_V6[..],
                _ => &[("disable_ipv6", "1")],
            };
            kernel::in_network_namespace(&namespace_path(name), || {
                settings.iter().try_for_each(|(key, value)| {
                    std::fs::write(format!("/proc/sys/net/ipv6/conf/default/{key}"), value)
                })
            })
            .with_context(|| format!("keeping {name} quiet"))?;
            if protocol == IpVersion::V6 && is_end {
                let nft = ["netns", "exec", name, "nft", "-f", "-"];
                command::run_with_input("ip", nft, SILENCE_V6)
                    .with_context(|| format!("keeping {name} quiet"))?;
            }
            command::run("ip", ["-n", name, "link", "set", "lo", "up"])?;
        }
        // The caller's own loopback device may be down.
        let stamping = kernel::in_network_namespace(&namespace_path(&sending), || {
            system::begin_stamping().map_err(io::Error::other)
        })?;
        let stand = Self {
            emulator: None,
            within: None,
            device,
            protocol,
            sending,
            middle,
            receiving,
            logs: run.subdirectory("logs")?,
            starts: 0,
            force: false,
            forced: BTreeSet::new(),
            _stamping: stamping,
            run,
        };
        if device != DeviceKind::Tun {
            stand.connect_bridge()?;
        }
        Ok(stand)
    }

    /// Attachment of the emulator.
    pub(super) fn device(&self) -> DeviceKind {
        self.device
    }

    /// A device name that no other run has.
    fn device_name(&self, end: char) -> String {
        format!("tc{}{end}", self.run.id())
    }

    fn connect_bridge(&self) -> Result<()> {
        let ends = [
            ('a', &self.sending, SENDING_STATION),
            ('b', &self.receiving, RECEIVING_STATION),
        ];
        for (end, namespace, station) in ends {
            let (inner, outer) = (self.device_name(end), format!("{}0", self.device_name(end)));
            let middle = &self.middle;
            let batch = format!(
                "link add {inner} type veth peer name {outer} address {station} netns {namespace}\n\
                 link set {inner} up\n"
            );
            command::run_with_input("ip", ["-n", middle, "-batch", "-"], &batch)?;
            command::run(
                "ip",
                ["-n", namespace, "link", "set", &outer, "name", &inner],
            )?;
        }
        self.address_ends()?;
        let [sending, receiving] = self.addresses();
        let neighbours = [
            ('a', &self.sending, receiving, RECEIVING_STATION),
            ('b', &self.receiving, sending, SENDING_STATION),
        ];
        for (end, namespace, address, station) in neighbours {
            let batch = format!(
                "neigh replace {address} lladdr {station} dev {} nud permanent\n",
                self.device_name(end)
            );
            command::run_with_input("ip", ["-n", namespace, "-batch", "-"], &batch)?;
        }
        Ok(())
    }

    fn address_ends(&self) -> Result<()> {
        let [sending, receiving] = self.addresses();
        let ends = [
            ('a', &self.sending, sending),
            ('b', &self.receiving, receiving),
        ];
        let prefix = match self.protocol {
            IpVersion::V4 => "/30",
            IpVersion::V6 => "/64",
        };
        for (end, namespace, address) in ends {
            let name = self.device_name(end);
            let batch = format!("address add {address}{prefix} dev {name}\nlink set {name} up\n");
            command::run_with_input("ip", ["-n", namespace, "-batch", "-"], &batch)
                .with_context(|| format!("giving the measuring end {name} its address"))?;
        }
        Ok(())
    }

    /// Starts the emulator with these settings.
    ///
    /// # Errors
    /// Fails when it does not start; the message has its output.
    pub(super) fn start(&mut self, settings: &[String]) -> Result<()> {
        self.stop()?;
        self.starts += 1;
        let name = format!("emulator-{}", self.starts);
        let (a, b) = (self.device_name('a'), self.device_name('b'));
        let mut arguments: Vec<String> = ["emulate", "run", "--json"].map(str::to_owned).to_vec();
        match self.device {
            DeviceKind::Tun => {
                let ends = [
                    ("--device-a", a),
                    ("--namespace-a", self.sending.clone()),
                    ("--device-b", b),
                    ("--namespace-b", self.receiving.clone()),
                ];
                arguments.extend(
                    ends.into_iter()
                        .flat_map(|(key, end)| [key.to_owned(), end]),
                );
            }
            DeviceKind::Packet | DeviceKind::Xdp => {
                let io = self.device.name().to_owned();
                arguments.extend(["--bridge".to_owned(), format!("{a},{b}")]);
                arguments.extend(["--io".to_owned(), io]);
            }
        }
        arguments.extend(settings.iter().cloned());
        if self.force {
            arguments.push("--force".to_owned());
        }
        let launch = LaunchConfig {
            name: &name,
            namespace: &self.middle,
            program: &self.run.environment().program,
            logs: &self.logs,
        };
        let mut emulator = RunningProcess::start(&self.run, &launch, arguments)?;
        let log = emulator.log().to_owned();
        emulator.wait_ready(START_LIMIT, "to print \"ready\"", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            Ok(text.lines().any(|line| line.trim_end() == "ready"))
        })?;
        self.emulator = Some(emulator);
        if self.device == DeviceKind::Tun {
            self.address_ends()?;
        }
        Ok(())
    }

    /// Starts the emulator in this process, because a child process would itself check whether this
    /// host holds the settings. No cell is measured this way.
    ///
    /// # Errors
    /// Fails when it does not start.
    pub(super) fn start_within(&mut self, config: LinkConfig) -> Result<()> {
        self.stop()?;
        let (a, b) = (self.device_name('a'), self.device_name('b'));
        let devices = match self.device {
            DeviceKind::Tun => {
                let end = |device, namespace: &String| LinkEndpoint {
                    device,
                    namespace: Some(NetworkNamespace::new(namespace)),
                };
                LinkDevices::Tun {
                    a: end(a, &self.sending),
                    b: end(b, &self.receiving),
                    offloads: OffloadSetting::default(),
                }
            }
            DeviceKind::Packet | DeviceKind::Xdp => {
                let end = |interface| BridgeEnd {
                    interface,
                    namespace: Some(NetworkNamespace::new(&self.middle)),
                };
                let io = match self.device {
                    DeviceKind::Xdp => BridgeIo::Xdp,
                    DeviceKind::Tun | DeviceKind::Packet => BridgeIo::Packet,
                };
                LinkDevices::Bridge {
                    a: end(a),
                    b: end(b),
                    io,
                }
            }
        };
        self.within = Some(LinkHandle::start(&devices, config)?);
        if self.device == DeviceKind::Tun {
            self.address_ends()?;
        }
        Ok(())
    }

    /// Ends the emulator and returns its own account; null when it does not run.
    ///
    /// # Errors
    /// When it had ended by itself.
    pub(super) fn stop(&mut self) -> Result<Value> {
        if let Some(link) = self.within.take() {
            link.stop()?;
        }
        let Some(mut emulator) = self.emulator.take() else {
            return Ok(Value::Null);
        };
        emulator.check()?;
        emulator.stop(ProcessSignal::Terminate)?;
        let text = std::fs::read_to_string(emulator.log()).unwrap_or_default();
        let account = text
            .lines()
            .rev()
            .find(|line| line.starts_with('{'))
            .and_then(|line| serde_json::from_str(line).ok());
        let account: Value = account.unwrap_or_default();
        if let Some(forced) = account["forced"].as_str() {
            self.forced.insert(forced.to_owned());
        }
        Ok(account)
    }

    /// Makes two sockets, the first connected to the second, which stamp packets as `stamped` says.
    ///
    /// # Errors
    /// Fails when a socket cannot be made.
    pub(super) fn sockets(
        &self,
        way: CellDirection,
        stamped: StampMode,
    ) -> Result<(UdpSocket, UdpSocket)> {
        let ((from, from_address), (to, to_address)) = self.ends(way);
        let receiver =
            kernel::in_network_namespace(&namespace_path(to), || UdpSocket::bind((to_address, 0)))
                .context("opening the receiving socket")?;
        let address = receiver.local_addr()?;
        let sender = kernel::in_network_namespace(&namespace_path(from), || {
            let socket = UdpSocket::bind((from_address, 0))?;
            socket.connect(address)?;
            Ok(socket)
        })
        .context("opening the sending socket")?;
        if matches!(stamped, StampMode::Arrivals | StampMode::Both) {
            system::stamp(&receiver, StampedDirection::Received)
                .context("stamping what arrives")?;
        }
        if stamped == StampMode::Both {
            system::stamp(&sender, StampedDirection::Sent).context("stamping what leaves")?;
        }
        Ok((sender, receiver))
    }

    /// A TCP connection over the link: the sending end first.
    ///
    /// # Errors
    /// When it does not come about.
    pub(super) fn connection(&self, way: CellDirection) -> Result<(TcpStream, TcpStream)> {
        let ((from, _), (to, to_address)) = self.ends(way);
        let listener = kernel::in_network_namespace(&namespace_path(to), || {
            TcpListener::bind((to_address, 0))
        })?;
        let address: SocketAddr = listener.local_addr()?;
        let sender = kernel::in_network_namespace(&namespace_path(from), || {
            TcpStream::connect_timeout(&address, START_LIMIT)
        })
        .context("connecting over the link")?;
        listener.set_nonblocking(true)?;
        let receiver = wait::until(
            START_LIMIT,
            "the connection over the link",
            || match listener.accept() {
                Ok((receiver, _)) => Ok(Some(receiver)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error.into()),
            },
        )?;
        receiver.set_nonblocking(false)?;
        Ok((sender, receiver))
    }

    /// Addresses of the sending end and of the receiving end.
    fn addresses(&self) -> [IpAddr; 2] {
        match self.protocol {
            IpVersion::V4 => ENDS_V4.map(IpAddr::from),
            IpVersion::V6 => ENDS_V6.map(IpAddr::from),
        }
    }

    fn ends(&self, way: CellDirection) -> ((&str, IpAddr), (&str, IpAddr)) {
        let [sending, receiving] = self.addresses();
        let (a, b) = (
            (self.sending.as_str(), sending),
            (self.receiving.as_str(), receiving),
        );
        match way {
            CellDirection::Forward => (a, b),
            CellDirection::Back => (b, a),
        }
    }
}

/// A direction of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellDirection {
    /// Direction from end A to end B.
    Forward,
    /// Direction from end B to end A.
    Back,
}

/// Timestamps that the kernel takes; each timestamp costs processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StampMode {
    /// No timestamps.
    Nothing,
    /// Timestamps of arrivals.
    Arrivals,
    /// Timestamps of departures and arrivals.
    Both,
}
