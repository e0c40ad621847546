//! The system calls by which an interface that exists already is asked about and set up.
//!
//! All of them go through a socket that was opened in the interface's namespace: it stays there
//! whichever thread uses it. The kernel's side is described in netdevice(7), linux/ethtool.h and
//! rtnetlink(7).
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::system::{checked, ioctl, request};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `ETHTOOL_GDRVINFO`.
const DRIVER_INFO: u32 = 0x03;
/// `ETHTOOL_GCHANNELS`.
const GET_CHANNELS: u32 = 0x3c;

/// Offload feature of a device, as ETHTOOL_G… and ETHTOOL_S… of linux/ethtool.h name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadFeature {
    /// Joins received TCP packets in a way that cannot be undone.
    LargeReceive,
    /// Joins received packets in a way that can.
    GenericReceive,
    /// Splits large TCP packets.
    TcpSegmentation,
}

/// `ETH_FLAG_LRO`: large receive offload stands among the flags of ETHTOOL_GFLAGS.
const LARGE_RECEIVE_FLAG: u32 = 1 << 15;

impl OffloadFeature {
    /// The commands that read and set it, and its bits in the value they carry.
    const fn commands(self) -> (u32, u32, u32) {
        match self {
            OffloadFeature::LargeReceive => (0x25, 0x26, LARGE_RECEIVE_FLAG),
            OffloadFeature::GenericReceive => (0x2b, 0x2c, 1),
            OffloadFeature::TcpSegmentation => (0x1e, 0x1f, 1),
        }
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
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
struct EthtoolChannels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// A socket of this namespace that carries nothing and answers questions about its devices.
pub fn question_socket() -> io::Result<OwnedFd> {
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
pub fn index(socket: &OwnedFd, device: &str) -> io::Result<i32> {
    let mut values = request(device);
    ioctl(
        socket.as_fd(),
        libc::SIOCGIFINDEX as libc::Ioctl,
        &mut values,
    )?;
    // SAFETY: SIOCGIFINDEX has just written this member of the union.
    Ok(unsafe { values.ifr_ifru.ifru_ifindex })
}

/// Returns `true` if a device of this number still exists in the socket's namespace.
pub fn exists(socket: &OwnedFd, index: i32) -> bool {
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
pub fn flags(socket: &OwnedFd, device: &str) -> io::Result<i32> {
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
pub fn set_up(socket: &OwnedFd, device: &str, up: bool) -> io::Result<()> {
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
pub fn mtu(socket: &OwnedFd, device: &str) -> io::Result<usize> {
    let mut values = request(device);
    ioctl(socket.as_fd(), libc::SIOCGIFMTU as libc::Ioctl, &mut values)?;
    // SAFETY: SIOCGIFMTU has just written this member of the union.
    Ok(usize::try_from(unsafe { values.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// Returns the hardware type: `ARPHRD_…` of linux/if_arp.h.
pub fn hardware(socket: &OwnedFd, device: &str) -> io::Result<u16> {
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
pub fn driver(socket: &OwnedFd, device: &str) -> io::Result<String> {
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

/// Returns the number of receive queues that a device uses.
pub fn receive_queues(socket: &OwnedFd, device: &str) -> io::Result<u32> {
    // SAFETY: the structure is plain data, for which all zeros is a value.
    let mut channels: EthtoolChannels = unsafe { mem::zeroed() };
    channels.command = GET_CHANNELS;
    ethtool(socket.as_fd(), device, &mut channels)?;
    Ok(channels.receive + channels.combined)
}

/// Returns `true` if a feature is switched on.
pub fn feature(socket: &OwnedFd, device: &str, feature: OffloadFeature) -> io::Result<bool> {
    let (get, _, bits) = feature.commands();
    Ok(value(socket, device, get)? & bits != 0)
}

/// Switches a feature on or off.
pub fn set_feature(
    socket: &OwnedFd,
    device: &str,
    feature: OffloadFeature,
    on: bool,
) -> io::Result<()> {
    let (get, set, bits) = feature.commands();
    let others = value(socket, device, get)? & !bits;
    let mut value = EthtoolValue {
        command: set,
        data: others | if on { bits } else { 0 },
    };
    ethtool(socket.as_fd(), device, &mut value)
}

fn value(socket: &OwnedFd, device: &str, command: u32) -> io::Result<u32> {
    let mut value = EthtoolValue { command, data: 0 };
    ethtool(socket.as_fd(), device, &mut value)?;
    Ok(value.data)
}

/// Table that rtnetlink(7) can list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtnetlinkTable {
    /// Interfaces (RTM_GETLINK).
    Links,
    /// Addresses of interfaces (RTM_GETADDR).
    Addresses,
    /// Routes of all tables (RTM_GETROUTE).
    Routes,
}

/// The kernel sends at most this much at once to who asks for so much.
const DUMP_BYTES: usize = 32 * 1_024;

/// `struct nlmsghdr`: length, type, flags, sequence number, sender; each message begins at a
/// multiple of 4.
const MESSAGE_HEADER: usize = 16;

/// Passes each entry of a table of the calling thread's namespace to `each`: the bytes behind its
/// `nlmsghdr`.
///
/// # Errors
/// When the kernel does not list it.
pub fn dump(table: RtnetlinkTable, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    // SAFETY: no pointers are passed; a new descriptor is ours alone.
    let socket = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        OwnedFd::from_raw_fd(checked(libc::socket(
            libc::AF_NETLINK,
            kind,
            libc::NETLINK_ROUTE,
        ))?)
    };
    let kind = match table {
        RtnetlinkTable::Links => libc::RTM_GETLINK,
        RtnetlinkTable::Addresses => libc::RTM_GETADDR,
        RtnetlinkTable::Routes => libc::RTM_GETROUTE,
    };
    // Behind the header stands a family, of which 0 is all, in four bytes.
    let mut request = [0_u8; MESSAGE_HEADER + 4];
    request[..4].copy_from_slice(&(MESSAGE_HEADER as u32 + 4).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the request lives through the call, and its length is told; a socket that is bound
    // to nothing sends to the kernel.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            request.as_ptr().cast(),
            request.len(),
            0,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut buffer = vec![0_u8; DUMP_BYTES];
    loop {
        // SAFETY: the buffer lives through the call, and its length is told.
        let length = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
            )
        };
        let Ok(length) = usize::try_from(length) else {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        };
        if messages(&buffer[..length], &mut each)? {
            return Ok(());
        }
    }
}

/// Shows the entries in what the kernel sent at once; says whether they were the last.
fn messages(mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    let cut_short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    while let Some(header) = bytes.first_chunk::<MESSAGE_HEADER>() {
        let [a, b, c, d, e, f, ..] = *header;
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        let body = bytes.get(MESSAGE_HEADER..length).ok_or_else(cut_short)?;
        match libc::c_int::from(u16::from_ne_bytes([e, f])) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let number = body.first_chunk().ok_or_else(cut_short)?;
                // The kernel's error numbers are negative here.
                let number = i32::from_ne_bytes(*number).wrapping_neg();
                return Err(io::Error::from_raw_os_error(number));
            }
            _ => each(body),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
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

    #[test]
    fn the_loopback_device_is_listed() {
        let socket = question_socket().unwrap();
        let loopback = index(&socket, "lo").unwrap();
        let mut found = 0;
        dump(RtnetlinkTable::Links, |link| {
            found += u32::from(link[4..8] == loopback.to_ne_bytes());
        })
        .unwrap();
        assert_eq!(found, 1);
        for table in [RtnetlinkTable::Addresses, RtnetlinkTable::Routes] {
            dump(table, |entry| assert!(entry.len() >= 8)).unwrap();
        }
    }

    #[test]
    fn kernel_refusals_and_short_messages_are_errors() {
        let mut error = vec![20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        if cfg!(target_endian = "big") {
            error[..6].copy_from_slice(&[0, 0, 0, 20, 0, 2]);
        }
        error.extend((-libc::EPERM).to_ne_bytes());
        let refused = messages(&error, &mut |_| {}).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let cut = messages(&error[..18], &mut |_| {}).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
