//! Network namespaces connected through the kernel or through the emulator.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::traffic;
use capture::{self, CapturedPacket};
use emulator::calibrate::lost_by_the_host;
use host::kernel::udp_counter;
use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::run::{LabRun, namespace_path};
use host::{ProgramEnvironment, command, wait};

/// The ends' addresses, from the range for benchmarks (RFC 2544 appendix C.2.2), and between them
/// those of the kernel that forwards.
const SENDING: Ipv4Addr = Ipv4Addr::new(198, 18, 22, 1);
const MIDDLE_NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 22, 2);
const MIDDLE_FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 22, 5);
const RECEIVING: Ipv4Addr = Ipv4Addr::new(198, 18, 22, 6);

/// Fixed, locally administered Ethernet addresses of the kernel's path, so that no address
/// resolution delays a burst.
const MIDDLE_NEAR_STATION: &str = "02:54:4c:00:01:02";
const SENDING_STATION: &str = "02:54:4c:00:01:01";
const RECEIVING_STATION: &str = "02:54:4c:00:01:06";

/// Time limit for a program to start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for a capture to write the packets that have arrived.
const WRITE_LIMIT: Duration = Duration::from_secs(20);

/// Owner of the policer or shaper on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimiterOwner {
    /// The kernel's.
    Kernel,
    /// The emulator's.
    Trunkline,
}

impl LimiterOwner {
    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LimiterOwner::Kernel => "kernel",
            LimiterOwner::Trunkline => "trunkline",
        }
    }
}

/// The namespaces of one measurement; dropping it removes them.
pub(crate) struct MeasuringNamespaces {
    // Before `run`, which deletes the namespaces: fields are dropped in this order.
    emulator: Option<RunningProcess>,
    side: LimiterOwner,
    sending: String,
    middle: String,
    receiving: String,
    logs: PathBuf,
    run: LabRun,
}

impl MeasuringNamespaces {
    /// Makes the namespaces; the kernel's way leads through at once, the emulator's once
    /// [`MeasuringNamespaces::emulate`] has been called.
    pub(crate) fn create(environment: &ProgramEnvironment, side: LimiterOwner) -> Result<Self> {
        let run = LabRun::create(environment)?;
        let room = Self {
            emulator: None,
            side,
            sending: run.make_namespace("sending")?,
            middle: run.make_namespace("middle")?,
            receiving: run.make_namespace("receiving")?,
            logs: run.subdirectory("logs")?,
            run,
        };
        for name in [&room.sending, &room.middle, &room.receiving] {
            // Neighbour discovery would be policed and shaped with the rest.
            in_namespace(name, || {
                fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
            })
            .with_context(|| format!("keeping {name} quiet"))?;
        }
        if side == LimiterOwner::Kernel {
            room.connect_through_kernel()?;
        }
        Ok(room)
    }

    fn connect_through_kernel(&self) -> Result<()> {
        let (sending, middle, receiving) = (&self.sending, &self.middle, &self.receiving);
        let batch = format!(
            "link add near address {MIDDLE_NEAR_STATION} type veth peer name end netns {sending}\n\
             link add far type veth peer name end address {RECEIVING_STATION} netns {receiving}\n\
             address add {MIDDLE_NEAR}/30 dev near\n\
             address add {MIDDLE_FAR}/30 dev far\n\
             link set near up\n\
             link set far up\n\
             neigh replace {RECEIVING} lladdr {RECEIVING_STATION} dev far nud permanent\n"
        );
        command::run_with_input("ip", ["-n", middle, "-batch", "-"], &batch)?;
        in_namespace(middle, || fs::write("/proc/sys/net/ipv4/ip_forward", "1"))
            .context("letting the kernel forward")?;
        let batch = format!(
            "address add {SENDING}/30 dev end\n\
             link set end up\n\
             neigh replace {MIDDLE_NEAR} lladdr {MIDDLE_NEAR_STATION} dev end nud permanent\n\
             route add default via {MIDDLE_NEAR}\n"
        );
        command::run_with_input("ip", ["-n", sending, "-batch", "-"], &batch)?;
        let batch = format!(
            "address add {RECEIVING}/30 dev end\n\
             link set end up\n\
             route add default via {MIDDLE_FAR}\n"
        );
        command::run_with_input("ip", ["-n", receiving, "-batch", "-"], &batch)?;
        Ok(())
    }

    /// Installs a rule for all packets that the kernel forwards.
    pub(super) fn filter(&self, rule: &str) -> Result<()> {
        let ruleset = format!(
            "table inet peer {{\nchain way {{\ntype filter hook forward priority filter;\n{rule}\n}}\n}}\n"
        );
        let arguments = ["netns", "exec", &self.middle, "nft", "-f", "-"];
        command::run_with_input("ip", arguments, &ruleset)?;
        Ok(())
    }

    /// Puts a queueing discipline in front of the kernel's way to the receiving end.
    pub(crate) fn replace_discipline(&self, discipline: &str) -> Result<()> {
        let mut arguments = vec![
            "netns",
            "exec",
            &self.middle,
            "tc",
            "qdisc",
            "replace",
            "dev",
            "far",
            "root",
        ];
        arguments.extend(discipline.split_whitespace());
        command::run("ip", arguments)?;
        Ok(())
    }

    /// Starts the emulator with these settings between TUN devices.
    pub(crate) fn emulate(&mut self, settings: &[&str]) -> Result<()> {
        let devices = [
            "--device-a",
            "end-a",
            "--namespace-a",
            &self.sending.clone(),
            "--device-b",
            "end-b",
            "--namespace-b",
            &self.receiving.clone(),
        ];
        self.start_emulator(&devices, settings)?;
        let ends = [
            ("end-a", &self.sending, SENDING, RECEIVING),
            ("end-b", &self.receiving, RECEIVING, SENDING),
        ];
        for (device, namespace, address, other) in ends {
            let batch =
                format!("address add {address} peer {other} dev {device}\nlink set {device} up\n");
            command::run_with_input("ip", ["-n", namespace, "-batch", "-"], &batch)?;
        }
        Ok(())
    }

    fn start_emulator(&mut self, devices: &[&str], settings: &[&str]) -> Result<()> {
        let launch = LaunchConfig {
            name: "emulator",
            namespace: &self.middle,
            program: &self.run.environment().program,
            logs: &self.logs,
        };
        let arguments = ["emulate", "run", "--json"];
        let arguments = arguments.iter().chain(devices).chain(settings);
        let mut emulator = RunningProcess::start(&self.run, &launch, arguments)?;
        let log = emulator.log().to_owned();
        emulator.wait_ready(START_LIMIT, "to print \"ready\"", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text.lines().any(|line| line.trim_end() == "ready"))
        })?;
        self.emulator = Some(emulator);
        Ok(())
    }

    /// Starts the emulator with these settings as a bridge between veth devices of the kernel,
    /// which stamp each packet's arrival: a packet that waits for the emulator's thread enters the
    /// model at its arrival time, so delayed packets do not become a burst. A TUN device has no
    /// such stamps.
    pub(crate) fn bridge(&mut self, settings: &[&str]) -> Result<()> {
        let (sending, middle, receiving) = (&self.sending, &self.middle, &self.receiving);
        let batch = format!(
            "link add near type veth peer name end address {SENDING_STATION} netns {sending}\n\
             link add far type veth peer name end address {RECEIVING_STATION} netns {receiving}\n"
        );
        command::run_with_input("ip", ["-n", middle, "-batch", "-"], &batch)?;
        let ends = [
            (sending, SENDING, RECEIVING, RECEIVING_STATION),
            (receiving, RECEIVING, SENDING, SENDING_STATION),
        ];
        for (namespace, address, other, station) in ends {
            let batch = format!(
                "address add {address} peer {other} dev end\n\
                 link set end up\n\
                 neigh replace {other} lladdr {station} dev end nud permanent\n"
            );
            command::run_with_input("ip", ["-n", namespace, "-batch", "-"], &batch)?;
        }
        self.start_emulator(&["--bridge", "near,far"], settings)
    }

    /// Stops the emulator; returns the packets that this host lost outside the model.
    pub(crate) fn lost_outside(&mut self) -> Result<HostLosses> {
        let mut lost = HostLosses {
            socket_packets: self.receiver_dropped()?,
            ..HostLosses::default()
        };
        for name in [&self.sending, &self.middle, &self.receiving] {
            let text = in_namespace(name, || fs::read_to_string("/proc/thread-self/net/dev"))?;
            lost.device_packets += dropped_by_devices(&text);
        }
        let Some(mut emulator) = self.emulator.take() else {
            return Ok(lost);
        };
        emulator.stop(ProcessSignal::Terminate)?;
        let log = fs::read_to_string(emulator.log()).context("reading the emulator's log")?;
        let account = log
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str::<Value>(line).ok());
        lost.emulator_packets = lost_by_the_host(&account.context("the emulator gave no account")?);
        Ok(lost)
    }

    /// Directory for files of this measurement; it is removed with it.
    pub(crate) fn directory(&self) -> &Path {
        self.run.directory()
    }

    /// The receiving end's address.
    pub(crate) fn receiving_address(&self) -> Ipv4Addr {
        RECEIVING
    }

    /// Starts this program with these arguments at the receiving end.
    pub(crate) fn start_receiving(&self, name: &str, arguments: &[&str]) -> Result<RunningProcess> {
        let launch = LaunchConfig {
            name,
            namespace: &self.receiving,
            program: &self.run.environment().program,
            logs: &self.logs,
        };
        RunningProcess::start(&self.run, &launch, arguments)
    }

    /// This program at the sending end, not yet started.
    pub(crate) fn sending_program(&self) -> Result<Command> {
        let mut command = command::new(&self.run.environment().program);
        kernel::prepare_child(&mut command, Some(&namespace_path(&self.sending)))?;
        Ok(command)
    }

    /// The emulator must still run.
    pub(super) fn check(&mut self) -> Result<()> {
        self.emulator.as_mut().map_or(Ok(()), RunningProcess::check)
    }

    /// Two sockets, the first connected to the second.
    pub(super) fn sockets(&self) -> Result<(UdpSocket, UdpSocket)> {
        let receiver = in_namespace(&self.receiving, || UdpSocket::bind((RECEIVING, 0)))
            .context("opening the receiving socket")?;
        let address = receiver.local_addr()?;
        let sender = in_namespace(&self.sending, || {
            let socket = UdpSocket::bind((SENDING, 0))?;
            socket.connect(address)?;
            Ok(socket)
        })
        .context("opening the sending socket")?;
        Ok((sender, receiver))
    }

    /// Packets that sockets of the receiving end had no room for.
    pub(super) fn receiver_dropped(&self) -> Result<u64> {
        let text = in_namespace(&self.receiving, || {
            fs::read_to_string("/proc/thread-self/net/snmp")
        })?;
        udp_counter(&text, "RcvbufErrors").context("/proc/net/snmp has no RcvbufErrors")
    }

    /// Starts capturing at the receiving end.
    pub(super) fn capture(&self) -> Result<PacketCapture> {
        let file = self.run.directory().join("arrivals.pcap");
        let path = file.display().to_string();
        let device = match self.side {
            LimiterOwner::Kernel => "end",
            LimiterOwner::Trunkline => "end-b",
        };
        let launch = LaunchConfig {
            name: "tcpdump",
            namespace: &self.receiving,
            program: Path::new("tcpdump"),
            logs: &self.logs,
        };
        // --immediate-mode: what waits in the kernel's block when tcpdump ends would be lost.
        let arguments = format!(
            "-i {device} -n -U --immediate-mode -p -Q in -B 16384 -s 64 -Z root \
             --time-stamp-precision=nano -w {path} udp"
        );
        let mut process = RunningProcess::start(&self.run, &launch, arguments.split_whitespace())?;
        let log = process.log().to_owned();
        process.wait_ready(START_LIMIT, "to listen", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text.contains("listening on"))
        })?;
        Ok(PacketCapture { process, file })
    }
}

fn in_namespace<T: Send>(name: &str, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    kernel::in_network_namespace(&namespace_path(name), work)
}

/// Packets that a host lost beside the emulated link; a measurement over it says something about the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostLosses {
    /// Packets lost by the emulator: not read in time, or not taken by the kernel.
    pub emulator_packets: u64,
    /// Packets lost by devices without room, before the emulator or behind it.
    pub device_packets: u64,
    /// Packets lost by sockets of the receiving end that were not read in time.
    pub socket_packets: u64,
}

impl HostLosses {
    /// All of them.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.emulator_packets + self.device_packets + self.socket_packets
    }
}

/// Packets that the devices in /proc/net/dev had no room for when sending.
fn dropped_by_devices(text: &str) -> u64 {
    /// Column of the sending drops after the device's name: eight receive columns, then bytes,
    /// packets, errors and drops.
    const SENDING_DROPS: usize = 11;
    let of_device = |line: &str| {
        let (_, columns) = line.split_once(':')?;
        columns
            .split_whitespace()
            .nth(SENDING_DROPS)?
            .parse::<u64>()
            .ok()
    };
    text.lines().filter_map(of_device).sum()
}

/// A capture that runs.
pub(super) struct PacketCapture {
    process: RunningProcess,
    file: PathBuf,
}

impl PacketCapture {
    /// Waits until so many datagrams of `ip_length` have been captured and returns them.
    pub(super) fn finish(
        mut self,
        datagrams: usize,
        ip_length: usize,
    ) -> Result<Vec<DatagramArrival>> {
        let mut all = Vec::new();
        let mut size = 0;
        let written = wait::until(WRITE_LIMIT, "the capture to be written", || {
            self.process.check()?;
            let length = fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
            if length > size {
                size = length;
                all = arrivals(&capture::read(&self.file)?, ip_length);
            }
            Ok((all.len() >= datagrams).then_some(()))
        });
        self.process.stop(ProcessSignal::Interrupt)?;
        written.with_context(|| {
            let log = self.process.log_end();
            format!(
                "the capture has {} of {datagrams} datagrams:\n{log}",
                all.len()
            )
        })?;
        Ok(all)
    }
}

/// A datagram at the receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramArrival {
    /// The kernel's stamp, since the Unix epoch.
    pub(super) stamp_ns: u64,
    pub(super) number: u64,
}

/// Numbered datagrams of a capture. A run that reached the device as one packet for the kernel to
/// segment (segmentation offload) counts as several of the same time, with consecutive numbers.
fn arrivals(packets: &[CapturedPacket], ip_length: usize) -> Vec<DatagramArrival> {
    let payload = (ip_length - traffic::HEADERS) as u64;
    packets
        .iter()
        .filter_map(|packet| Some((packet, traffic::number(&packet.payload)?)))
        .flat_map(|(packet, first)| {
            let stamp_ns = u64::try_from(packet.at.as_nanos()).unwrap_or(u64::MAX);
            let together = packet.ip_bytes.saturating_sub(traffic::HEADERS as u64) / payload;
            (first..first + together).map(move |number| DatagramArrival { stamp_ns, number })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use capture::TransportHeader;

    #[test]
    fn datagrams_that_came_as_one_are_several() {
        let packet = |milliseconds, number: u64, datagrams: u64| CapturedPacket {
            at: Duration::from_millis(milliseconds),
            source: ([198, 18, 22, 1], 1).into(),
            destination: ([198, 18, 22, 6], 2).into(),
            ip_bytes: 28 + 1_472 * datagrams,
            transport: TransportHeader::Udp,
            is_fragment: false,
            payload: number.to_be_bytes().to_vec(),
        };
        let mut packets = vec![packet(1, 0, 1), packet(2, 1, 3), packet(3, 4, 1)];
        // Someone else's.
        packets[2].payload.truncate(3);
        let arrived: Vec<(u64, u64)> = arrivals(&packets, 1_500)
            .iter()
            .map(|one| (one.stamp_ns / 1_000_000, one.number))
            .collect();
        assert_eq!(arrived, [(1, 0), (2, 1), (2, 2), (2, 3)]);
    }

    #[test]
    fn device_drops_count_sent_packets_only() {
        let text = "Inter-|   Receive                         |  Transmit\n \
                    face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop\n    \
                    lo:  10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n   \
                    end: 99 3 0 7 0 0 0 0 5151 35 0 12 0 0 0 0\n";
        assert_eq!(dropped_by_devices(text), 12);
    }
}
