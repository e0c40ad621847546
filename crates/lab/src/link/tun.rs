//! A TUN device: created, brought up, read and written, and gone with its file descriptor.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use emulate::Delivery;

use super::device::{Device, Received};
use super::namespace::within;
use super::{Endpoint, system};

/// What Ethernet's users expect of a WAN link.
const MTU: u16 = 1_500;

/// What the kernel holds for us while the driver's thread is not running: 10,000 full-size
/// packets are 120 ms at 1 Gbit/s. Packets in it have not met the model yet.
const QUEUE_PACKETS: u16 = 10_000;

/// The longest IP packet.
const PACKET_MAX: usize = 65_535;

const DEVICE_NODE: &str = "/dev/net/tun";

/// An open TUN device.
#[derive(Debug)]
pub(super) struct Tun {
    file: File,
    name: String,
    buffer: Vec<u8>,
    not_taken: u64,
    complained: bool,
}

impl Tun {
    /// Creates the device where the endpoint says and brings it up without an address.
    pub(super) fn create(endpoint: &Endpoint) -> Result<Self> {
        check_name(&endpoint.device)?;
        let namespace = match &endpoint.namespace {
            Some(namespace) => Some(namespace.open()?),
            None => None,
        };
        let namespace = namespace.as_ref().map(AsFd::as_fd);
        within(namespace, || Self::create_here(&endpoint.device))
            .with_context(|| format!("cannot create the device {}", endpoint.device))
    }

    fn create_here(name: &str) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(DEVICE_NODE)
            .map_err(explain_open)?;
        system::attach_tun(&file, name).map_err(|error| explain_attach(name, error))?;
        keep_quiet(name);
        system::bring_up(name, MTU, QUEUE_PACKETS).context("cannot bring it up")?;
        Ok(Self {
            file,
            name: name.to_owned(),
            buffer: vec![0; PACKET_MAX],
            not_taken: 0,
            complained: false,
        })
    }

    /// Reads one packet; `None` when there is none now.
    fn read(&mut self) -> Result<Option<Bytes>> {
        match (&self.file).read(&mut self.buffer) {
            Ok(length) => Ok(Some(Bytes::copy_from_slice(&self.buffer[..length]))),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(None)
            }
            Err(error) => Err(anyhow!(
                "the device {} is gone ({error}); something deleted it or its namespace",
                self.name
            )),
        }
    }
}

impl Device for Tun {
    fn name(&self) -> &str {
        &self.name
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn receive(&mut self, max: usize, into: &mut Vec<Received>) -> Result<()> {
        for _ in 0..max {
            let Some(packet) = self.read()? else {
                return Ok(());
            };
            let age = Duration::ZERO;
            into.push(Received { packet, age });
        }
        Ok(())
    }

    fn send(&mut self, delivery: Delivery) {
        if let Err(error) = (&self.file).write(&delivery.packet) {
            if !self.complained {
                tracing::warn!(device = self.name, %error, "the kernel does not take packets; is the device up?");
                self.complained = true;
            }
            self.not_taken += 1;
        }
    }

    fn flush(&mut self) -> u64 {
        std::mem::take(&mut self.not_taken)
    }

    /// Wherever the device is now; zero if it cannot be told because the device is gone.
    fn unread_packets(&mut self) -> u64 {
        let read = || -> Result<u64> {
            let name = system::tun_name(&self.file)?;
            let namespace = system::tun_namespace(&self.file)?;
            within(Some(namespace.as_fd()), || {
                let table = fs::read_to_string("/proc/thread-self/net/dev")?;
                dropped_in_transmission(&table, &name).context("not in /proc/net/dev")
            })
        };
        read().unwrap_or_else(|error| {
            tracing::debug!(
                device = self.name,
                error = format!("{error:#}"),
                "no drop count"
            );
            0
        })
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
        Some(libc::EBUSY) => "the name is taken by another program's device: choose another name",
        Some(libc::EINVAL) => "the name is taken by a device of another kind: choose another name",
        _ => "the kernel refused",
    };
    anyhow!("cannot make {name} a TUN device: {error}; {advice}")
}

/// Keeps the kernel from giving the device an IPv6 link-local address and announcing it, so that
/// only the packets of those who use the link are in its counters.
fn keep_quiet(name: &str) {
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
    use super::*;

    #[test]
    fn finds_what_was_not_read_in_time() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n  \
            tun1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n    \
            tun:  1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16\n";
        assert_eq!(dropped_in_transmission(table, "tun1"), Some(12));
        assert_eq!(dropped_in_transmission(table, "tun"), Some(99));
        assert_eq!(dropped_in_transmission(table, "eth0"), None);
    }

    #[test]
    fn names_that_the_kernel_would_change_are_refused() {
        for name in ["", "sixteen-letters-", "a b", "tun%d", "a/b", ".."] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("wan-a").is_ok());
    }
}
