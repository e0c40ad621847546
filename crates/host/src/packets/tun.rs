//! A TUN device: created, brought up, read and written, and gone with its file descriptor.
//!
//! With offloads the kernel hands over runs of packets as one and takes them as one (`offload`):
//! each of them is a system call instead of some forty, and is split before the model sees it.
//! Without, every packet comes and goes alone, for captures at the devices that must show what a
//! wire would carry.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, anyhow, bail};
use emulate::{LinkFraming, PacketDelivery};

use super::device::{LinkDevice, ReceivedPacket};
use super::namespace::within;
use super::offload::{
    self, HEADER_LENGTH, MergeOptions, PacketGroup, RunRefusals, VirtioNetHeader,
};
use super::system::unfinished;
use super::{LinkEndpoint, OffloadSetting, system};
use crate::invalid_request::InvalidRequest;

/// Default MTU of a WAN link, as Ethernet has it, in bytes.
const MTU: u16 = 1_500;

/// Length of the kernel's queue while the driver's thread is not running, in packets: 10,000
/// full-size packets are 120 ms at 1 Gbit/s. Packets in it have not met the model yet.
const QUEUE_PACKETS: u16 = 10_000;

/// The longest packet that a device hands over, with its header and room to spare.
const READ_MAX: usize = HEADER_LENGTH + 65_536 + 256;

const DEVICE_NODE: &str = "/dev/net/tun";

/// An open TUN device.
#[derive(Debug)]
pub struct TunDevice {
    file: File,
    name: String,
    buffer: Vec<u8>,
    /// Packets that are held until the group cannot grow or is flushed.
    group: PacketGroup,
    merging: MergeOptions,
    refusals: RunRefusals,
    not_taken: u64,
    unsplittable: u64,
    drops: DropCount,
}

impl TunDevice {
    /// Creates the device where the endpoint says and brings it up without an address.
    pub fn create(endpoint: &LinkEndpoint, offloads: OffloadSetting) -> Result<Self> {
        check_name(&endpoint.device).map_err(InvalidRequest::because)?;
        let namespace = match &endpoint.namespace {
            Some(namespace) => Some(namespace.open()?),
            None => None,
        };
        let namespace = namespace.as_ref().map(AsFd::as_fd);
        within(namespace, || Self::create_here(&endpoint.device, offloads))
            .with_context(|| format!("cannot create the device {}", endpoint.device))
    }

    fn create_here(name: &str, offloads: OffloadSetting) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(DEVICE_NODE)
            .map_err(explain_open)?;
        system::attach_tun(&file, name).map_err(|error| explain_attach(name, error))?;
        let merging = match offloads {
            OffloadSetting::On => take_unfinished(&file),
            OffloadSetting::Off => MergeOptions::NONE,
        };
        disable_link_local_address(name);
        system::bring_up(name, MTU, QUEUE_PACKETS).context("cannot bring it up")?;
        Ok(Self {
            file,
            name: name.to_owned(),
            buffer: vec![0; READ_MAX],
            group: PacketGroup::default(),
            merging,
            refusals: RunRefusals::default(),
            not_taken: 0,
            unsplittable: 0,
            drops: DropCount::default(),
        })
    }

    /// Reads one packet or run of packets and appends its packets. Returns `true` if there was one.
    fn read(&mut self, into: &mut Vec<ReceivedPacket>) -> Result<bool> {
        let length = match (&self.file).read(&mut self.buffer) {
            Ok(length) => length,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(false);
            }
            Err(error) => bail!(
                "the device {} is gone ({error}); something deleted it or its namespace",
                self.name
            ),
        };
        let Some((header, packet)) = self.buffer[..length].split_first_chunk::<HEADER_LENGTH>()
        else {
            return Ok(true);
        };
        let receive = |packet| into.push(ReceivedPacket { packet, came: None });
        if let Err(error) = offload::split(VirtioNetHeader::parse(*header), packet, receive) {
            if self.unsplittable == 0 {
                tracing::warn!(device = self.name, %error, "a run of packets cannot be told apart and is lost");
            }
            self.unsplittable += 1;
        }
        Ok(true)
    }

    /// Writes the held packets.
    fn write(&mut self) {
        if self.group.is_empty() {
            return;
        }
        let before = self.refusals.total();
        let lost = write_out(&mut self.group, &mut self.refusals, |group| {
            write_group(&self.file, group)
        });
        if let Some((count, error)) = lost {
            tracing::debug!(device = self.name, %error, "the kernel does not take packets; is the device up?");
            self.not_taken += count;
        }
        let refused_runs = self.refusals.total();
        if refused_runs > before && refused_runs.is_power_of_two() {
            tracing::debug!(
                device = self.name,
                refused_runs,
                "the kernel refuses runs of packets; their packets are written one by one"
            );
        }
    }
}

/// Writes a group and empties it: as one, or packet by packet if the kernel refuses it so; returns
/// how many packets it did not take, and its last reason.
fn write_out(
    group: &mut PacketGroup,
    refusals: &mut RunRefusals,
    mut write: impl FnMut(&PacketGroup) -> io::Result<()>,
) -> Option<(u64, io::Error)> {
    let count = group.packets().len() as u64;
    let mut lost = None;
    match write(group) {
        Ok(()) if count > 1 => refusals.taken(),
        Ok(()) => {}
        // Some kernels have refused runs that were in order (the first stable releases with
        // Linux's e269d79c7d35), and any kernel may refuse one for what is in it.
        Err(error) if count > 1 && error.kind() == ErrorKind::InvalidInput => {
            refusals.refused();
            for packet in group.drain() {
                if let Err(error) = write(&packet) {
                    let (count, _) = lost.unwrap_or((0, io::ErrorKind::Other.into()));
                    lost = Some((count + 1, error));
                }
            }
        }
        Err(error) => lost = Some((count, error)),
    }
    group.clear();
    lost
}

fn is_ip(packet: &[u8]) -> bool {
    packet
        .first()
        .is_some_and(|first| matches!(first >> 4, 4 | 6))
}

fn write_group(file: &File, group: &PacketGroup) -> io::Result<()> {
    let mut file = file;
    group
        .write(|pieces| file.write_vectored(pieces))
        .map(|_| ())
}

impl LinkDevice for TunDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn framing(&self) -> LinkFraming {
        LinkFraming::Ip
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn receive(&mut self, max: usize, into: &mut Vec<ReceivedPacket>) -> Result<()> {
        let end = into.len() + max;
        while into.len() < end && self.read(into)? {}
        Ok(())
    }

    fn send(&mut self, delivery: PacketDelivery) {
        let intact = !delivery.corrupted;
        if !intact && !is_ip(&delivery.packet) {
            // The kernel takes no packet whose version was damaged, and its receiver would drop it.
            return;
        }
        let merging = if self.refusals.keep_alone() {
            MergeOptions::NONE
        } else {
            self.merging
        };
        if let Err(packet) = self.group.extend(delivery.packet, intact) {
            self.write();
            self.group.begin(packet, intact, merging);
        }
    }

    fn flush(&mut self) -> u64 {
        self.write();
        mem::take(&mut self.not_taken)
    }

    /// Returns the packets that the kernel dropped because they were not read in time, in any
    /// namespace. A run of packets counts once.
    fn unread_packets(&mut self) -> u64 {
        self.drops.refresh(&self.file, &self.name);
        self.drops.packets + self.unsplittable
    }
}

/// Enables all receive offloads that this kernel has. Returns the packets that may be merged for
/// it.
fn take_unfinished(file: &File) -> MergeOptions {
    use unfinished::{CHECKSUM, TCP, UDP};
    let accepts = |kinds| system::set_tun_offload(file, kinds).is_ok();
    if accepts(CHECKSUM | TCP | UDP) {
        MergeOptions {
            tcp: true,
            udp: true,
        }
    } else if accepts(CHECKSUM | TCP) {
        MergeOptions {
            tcp: true,
            udp: false,
        }
    } else {
        tracing::debug!("this kernel's TUN devices have no offloads; packets pass one by one");
        MergeOptions::NONE
    }
}

/// Drop count of the device. Its table belongs to the namespace in which it was opened, whoever
/// reads it, so reading it again needs no thread and takes some microseconds.
#[derive(Debug, Default)]
struct DropCount {
    table: Option<File>,
    text: String,
    packets: u64,
}

impl DropCount {
    /// Reads the count again; the last count stays if the device is gone.
    fn refresh(&mut self, device: &File, name: &str) {
        if let Err(error) = self.read(device) {
            tracing::debug!(device = name, error = format!("{error:#}"), "no drop count");
        }
    }

    fn read(&mut self, device: &File) -> Result<()> {
        // It may have been renamed, and moved into another namespace.
        let name = system::tun_name(device)?;
        if let Some(packets) = self.look_up(&name) {
            self.packets = packets;
            return Ok(());
        }
        let namespace = system::tun_namespace(device)?;
        let table = within(Some(namespace.as_fd()), || {
            Ok(File::open("/proc/thread-self/net/dev")?)
        })?;
        self.table = Some(table);
        self.packets = self.look_up(&name).context("not in /proc/net/dev")?;
        Ok(())
    }

    fn look_up(&mut self, name: &str) -> Option<u64> {
        let table = self.table.as_mut()?;
        self.text.clear();
        table.rewind().ok()?;
        table.read_to_string(&mut self.text).ok()?;
        dropped_in_transmission(&self.text, name)
    }
}

/// The kernel's rules, and no `%`, which it would replace by a number.
fn check_name(name: &str) -> Result<()> {
    let fits = (1..=system::DEVICE_NAME_MAX).contains(&name.len());
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if !fits || !plain || name == "." || name == ".." {
        bail!(
            "`{name}` cannot name a network device: use 1 to {} letters, digits, dots, dashes or underscores",
            system::DEVICE_NAME_MAX
        );
    }
    Ok(())
}

fn explain_open(error: io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::NotFound => {
            "this system has no TUN driver: load it (modprobe tun), or in a container pass the device in (--device /dev/net/tun)"
        }
        ErrorKind::PermissionDenied => {
            "this user may not open it: run as root, or let others open it (chmod 0666 /dev/net/tun)"
        }
        _ => "the TUN driver did not answer as expected",
    };
    anyhow!("cannot open {DEVICE_NODE}: {error}; {advice}")
}

fn explain_attach(name: &str, error: io::Error) -> anyhow::Error {
    let advice = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "creating a network device takes CAP_NET_ADMIN: run as root, or in a namespace of your own (unshare --map-root-user --net)"
        }
        Some(libc::EBUSY) => {
            "the name is taken by another device, perhaps of another link: choose another name"
        }
        Some(libc::EINVAL) => "the name is taken by a device of another kind: choose another name",
        _ => "the kernel refused",
    };
    anyhow!("cannot make {name} a TUN device: {error}; {advice}")
}

/// Keeps the kernel from giving the device an IPv6 link-local address and announcing it, so that
/// only the packets of those who use the link are in its counters.
fn disable_link_local_address(name: &str) {
    const NO_GENERATED_ADDRESS: &str = "1";
    let path = format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode");
    if let Err(error) = fs::write(&path, NO_GENERATED_ADDRESS) {
        tracing::debug!(path, %error, "no IPv6, or its settings are read-only");
    }
}

/// The `drop` column on the transmit side of /proc/net/dev.
fn dropped_in_transmission(table: &str, name: &str) -> Option<u64> {
    const TRANSMIT_DROP: usize = 11;
    let row = table.lines().find_map(|line| {
        let (device, row) = line.split_once(':')?;
        (device.trim() == name).then_some(row)
    })?;
    row.split_whitespace().nth(TRANSMIT_DROP)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn unread_packets_are_counted() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n  \
            tun1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n    \
            tun:  1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16\n";
        assert_eq!(dropped_in_transmission(table, "tun1"), Some(12));
        assert_eq!(dropped_in_transmission(table, "tun"), Some(99));
        assert_eq!(dropped_in_transmission(table, "eth0"), None);
    }

    /// Makes datagrams of one flow; each continues the one before.
    fn datagrams(first: u8, count: u8) -> Vec<Bytes> {
        let words = |bytes: &[u8]| -> u32 {
            let pairs = bytes.as_chunks::<2>().0.iter();
            pairs.map(|pair| u32::from(u16::from_be_bytes(*pair))).sum()
        };
        let sum = |mut sum: u32| {
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            (!(sum as u16)).to_be_bytes()
        };
        let one = |number| {
            let mut packet = vec![0x45, 0, 0, 32, 0, number, 0x40, 0, 64, 17, 0, 0];
            packet.extend([198, 18, 0, 1, 198, 18, 0, 2]);
            packet.extend([0x10, 0, 0x20, 0, 0, 12, 0, 0, 1, 2, 3, number]);
            let header = sum(words(&packet[..20]));
            packet[10..12].copy_from_slice(&header);
            let part = sum(words(&packet[12..]) + 17 + 12);
            packet[26..28].copy_from_slice(&part);
            Bytes::from(packet)
        };
        (first..first + count).map(one).collect()
    }

    #[test]
    fn refused_run_is_sent_singly_and_runs_resume() {
        let mut refusals = RunRefusals::default();
        let both = MergeOptions {
            tcp: true,
            udp: true,
        };
        let run = |first| {
            let mut group = PacketGroup::default();
            let mut packets = datagrams(first, 3).into_iter();
            group.begin(packets.next().unwrap(), true, both);
            for packet in packets {
                group.extend(packet, true).expect("it continues the run");
            }
            group
        };
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let mut written = Vec::new();
        let mut refuses = true;
        for first in [0, 10] {
            let lost = write_out(&mut run(first), &mut refusals, |group| {
                let packets = group.packets();
                if packets.len() > 1 && refuses {
                    return Err(invalid());
                }
                written.push(packets.to_vec());
                Ok(())
            });
            assert!(lost.is_none());
            refuses = false;
        }
        let (alone, together) = written.split_at(3);
        assert_eq!(alone.concat(), datagrams(0, 3));
        assert_eq!(together, [datagrams(10, 3)]);
        assert_eq!(refusals.total(), 1);
        assert!(!refusals.keep_alone());

        // What is refused alone, too, is lost; a refusal for another reason is asked no second time.
        let mut asked = 0;
        let lost = write_out(&mut run(20), &mut refusals, |_| {
            asked += 1;
            Err(invalid())
        });
        assert_eq!((asked, lost.map(|(count, _)| count)), (4, Some(3)));
        let mut asked = 0;
        let lost = write_out(&mut run(30), &mut refusals, |_| {
            asked += 1;
            Err(io::Error::from_raw_os_error(libc::EIO))
        });
        assert_eq!((asked, lost.map(|(count, _)| count)), (1, Some(3)));
        assert_eq!(refusals.total(), 2);
    }

    #[test]
    fn names_that_the_kernel_would_change_are_refused() {
        for name in ["", "sixteen-letters-", "a b", "tun%d", "a/b", ".."] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("wan-a").is_ok());
    }
}
