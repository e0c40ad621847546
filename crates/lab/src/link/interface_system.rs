//! The system calls by which an interface that exists already is asked about and set up.
//!
//! All of them go through a socket that was opened in the interface's namespace: it stays there
//! whichever thread uses it. The kernel's side is described in netdevice(7) and linux/ethtool.h.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::system::{checked, ioctl, request};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `ETHTOOL_GDRVINFO`.
const DRIVER_INFO: u32 = 0x03;
/// `ETHTOOL_GCHANNELS`.
const GET_CHANNELS: u32 = 0x3c;

/// What a device may do to packets on its own, as ETHTOOL_G… and ETHTOOL_S… of linux/ethtool.h
/// name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Joins received TCP packets in a way that cannot be undone.
    LargeReceive,
    /// Joins received packets in a way that can.
    GenericReceive,
    /// Splits large TCP packets.
    TcpSegmentation,
}

/// `ETH_FLAG_LRO`: large receive offload stands among the flags of ETHTOOL_GFLAGS.
const LARGE_RECEIVE_FLAG: u32 = 1 << 15;

impl Feature {
    /// The commands that read and set it, and its bits in the value they carry.
    const fn commands(self) -> (u32, u32, u32) {
        match self {
            Feature::LargeReceive => (0x25, 0x26, LARGE_RECEIVE_FLAG),
            Feature::GenericReceive => (0x2b, 0x2c, 1),
            Feature::TcpSegmentation => (0x1e, 0x1f, 1),
        }
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    rom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// `struct ethtool_channels`: four maxima, then what there is of receive, transmit, other and
/// combined queues.
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// A socket of this namespace that carries nothing and answers questions about its devices.
pub(super) fn question_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; a new descriptor is ours alone.
    unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        Ok(OwnedFd::from_raw_fd(checked(libc::socket(
            libc::AF_INET,
            kind,
            0,
        ))?))
    }
}

/// The number of a device.
pub(super) fn index(socket: &OwnedFd, device: &str) -> io::Result<i32> {
    let mut values = request(device);
    ioctl(
        socket.as_fd(),
        libc::SIOCGIFINDEX as libc::Ioctl,
        &mut values,
    )?;
    // SAFETY: SIOCGIFINDEX has just written this member of the union.
    Ok(unsafe { values.ifr_ifru.ifru_ifindex })
}

/// Whether there still is a device of this number in the socket's namespace.
pub(super) fn exists(socket: &OwnedFd, index: i32) -> bool {
    let mut values = request("");
    values.ifr_ifru.ifru_ifindex = index;
    ioctl(
        socket.as_fd(),
        libc::SIOCGIFNAME as libc::Ioctl,
        &mut values,
    )
    .is_ok()
}

/// The flags of a device, `IFF_…` of netdevice(7).
pub(super) fn flags(socket: &OwnedFd, device: &str) -> io::Result<i32> {
    let mut values = request(device);
    ioctl(
        socket.as_fd(),
        libc::SIOCGIFFLAGS as libc::Ioctl,
        &mut values,
    )?;
    // SAFETY: SIOCGIFFLAGS has just written this member of the union.
    Ok(i32::from(unsafe { values.ifr_ifru.ifru_flags }))
}

/// Brings a device up, or down.
pub(super) fn set_up(socket: &OwnedFd, device: &str, up: bool) -> io::Result<()> {
    let mut flags = flags(socket, device)?;
    if up {
        flags |= libc::IFF_UP;
    } else {
        flags &= !libc::IFF_UP;
    }
    let mut values = request(device);
    values.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(
        socket.as_fd(),
        libc::SIOCSIFFLAGS as libc::Ioctl,
        &mut values,
    )
}

/// The longest payload of a frame.
pub(super) fn mtu(socket: &OwnedFd, device: &str) -> io::Result<usize> {
    let mut values = request(device);
    ioctl(socket.as_fd(), libc::SIOCGIFMTU as libc::Ioctl, &mut values)?;
    // SAFETY: SIOCGIFMTU has just written this member of the union.
    Ok(usize::try_from(unsafe { values.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// What kind of hardware it is, or acts as: `ARPHRD_…` of linux/if_arp.h.
pub(super) fn hardware(socket: &OwnedFd, device: &str) -> io::Result<u16> {
    let mut values = request(device);
    ioctl(
        socket.as_fd(),
        libc::SIOCGIFHWADDR as libc::Ioctl,
        &mut values,
    )?;
    // SAFETY: SIOCGIFHWADDR has just written this member of the union.
    Ok(unsafe { values.ifr_ifru.ifru_hwaddr.sa_family })
}

/// An ethtool command whose structure is `T`; the kernel writes its answer into it.
fn ethtool<T>(socket: BorrowedFd<'_>, device: &str, structure: &mut T) -> io::Result<()> {
    let mut values = request(device);
    values.ifr_ifru.ifru_data = ptr::from_mut(structure).cast();
    ioctl(socket, SIOCETHTOOL, &mut values)
}

/// The name of the device's driver, such as `veth`.
pub(super) fn driver(socket: &OwnedFd, device: &str) -> io::Result<String> {
    // SAFETY: the structure is plain data, for which all zeros is a value.
    let mut info: DriverInfo = unsafe { mem::zeroed() };
    info.command = DRIVER_INFO;
    ethtool(socket.as_fd(), device, &mut info)?;
    let name: Vec<u8> = info
        .driver
        .iter()
        .copied()
        .take_while(|byte| *byte != 0)
        .collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// How many receive queues a device has in use.
pub(super) fn receive_queues(socket: &OwnedFd, device: &str) -> io::Result<u32> {
    // SAFETY: the structure is plain data, for which all zeros is a value.
    let mut channels: Channels = unsafe { mem::zeroed() };
    channels.command = GET_CHANNELS;
    ethtool(socket.as_fd(), device, &mut channels)?;
    Ok(channels.receive + channels.combined)
}

/// Whether a feature is switched on.
pub(super) fn feature(socket: &OwnedFd, device: &str, feature: Feature) -> io::Result<bool> {
    let (get, _, bits) = feature.commands();
    Ok(value(socket, device, get)? & bits != 0)
}

/// Switches a feature on or off.
pub(super) fn set_feature(
    socket: &OwnedFd,
    device: &str,
    feature: Feature,
    on: bool,
) -> io::Result<()> {
    let (get, set, bits) = feature.commands();
    let others = value(socket, device, get)? & !bits;
    let mut value = Value {
        command: set,
        data: others | if on { bits } else { 0 },
    };
    ethtool(socket.as_fd(), device, &mut value)
}

fn value(socket: &OwnedFd, device: &str, command: u32) -> io::Result<u32> {
    let mut value = Value { command, data: 0 };
    ethtool(socket.as_fd(), device, &mut value)?;
    Ok(value.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_answers() {
        let socket = question_socket().unwrap();
        assert!(index(&socket, "lo").unwrap() > 0);
        assert_ne!(flags(&socket, "lo").unwrap() & libc::IFF_LOOPBACK, 0);
        assert_eq!(hardware(&socket, "lo").unwrap(), libc::ARPHRD_LOOPBACK);
        assert!(mtu(&socket, "lo").unwrap() > 0);
        assert_eq!(
            index(&socket, "no-such-device").unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
    }
}
