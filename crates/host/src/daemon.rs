//! System calls of a daemon that the standard library has no safe form of: sessions, capabilities, limits,
//! timers, files in a directory, some options of sockets.
//!
//! Each block passes plain values to the kernel or a structure of the kernel's own layout that lives until
//! the call returns.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use socket2::SockAddr;

/// May change nftables rules, policy routing and transparent sockets.
pub const CAP_NET_ADMIN: u32 = 12;
/// May use transparent sockets.
pub const CAP_NET_RAW: u32 = 13;
/// May bind ports below 1024, as NFS clients' ports are.
pub const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_SETPCAP: u32 = 8;
/// `_LINUX_CAPABILITY_VERSION_3`: 64 capabilities in two words.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Header argument of the kernel's capget and capset.
#[repr(C)]
struct UserCapabilityHeader {
    version: u32,
    process: i32,
}

/// One half (32 capabilities) of what they take second.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The calling thread's permitted capabilities, one bit each.
///
/// # Errors
/// What the kernel says.
pub fn permitted_capabilities() -> io::Result<u64> {
    let words = read_capabilities()?;
    Ok(u64::from(words[0].permitted) | u64::from(words[1].permitted) << 32)
}

/// Returns `true` if the calling thread holds a capability.
pub fn has_capability(capability: u32) -> bool {
    permitted_capabilities().is_ok_and(|held| held & (1 << capability) != 0)
}

/// Gives up every capability of the calling thread that is not in `keep`, for good: from the
/// bounding set (so that not even a program run as root has them back), and of what remains all
/// is inheritable and ambient, so that nft and ip have it too. Sets no_new_privs.
///
/// Threads started later inherit the result; those that run already are not changed, so call
/// this before any is started.
///
/// # Errors
/// What the kernel says. Some capabilities may have been given up by then.
pub fn keep_only_capabilities(keep: &[u32]) -> io::Result<()> {
    let keep = keep
        .iter()
        .fold(0_u64, |bits, capability| bits | 1 << capability);
    let held = permitted_capabilities()?;
    if held & (1 << CAP_SETPCAP) != 0 {
        for capability in 0..64 {
            if keep & (1 << capability) == 0 {
                drop_from_bounding_set(capability)?;
            }
        }
    }
    let kept = held & keep;
    write_capabilities(kept)?;
    for capability in 0..64 {
        if kept & (1 << capability) != 0 {
            prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong,
                capability,
            )?;
        }
    }
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)
}

/// The program that runs now, or the one that has been installed in its place since.
///
/// # Errors
/// What the system says.
pub fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // The kernel marks the path of a file that was replaced, as an upgrade does.
    match path
        .to_str()
        .and_then(|text| text.strip_suffix(" (deleted)"))
    {
        Some(replaced) if !path.exists() => Ok(replaced.into()),
        Some(_) | None => Ok(path),
    }
}

/// Sets the socket's buffers to this many bytes each way, beyond the system's limits where
/// CAP_NET_ADMIN allows that. Returns the smaller of the two resulting sizes.
///
/// # Errors
/// Errors of the kernel.
pub fn enlarge_buffers(socket: &std::net::UdpSocket, bytes: usize) -> io::Result<usize> {
    let descriptor = socket.as_raw_fd();
    let size = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    for (forced, asked) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        if set_option(descriptor, libc::SOL_SOCKET, forced, size).is_err() {
            set_option(descriptor, libc::SOL_SOCKET, asked, size)?;
        }
    }
    let receive = get_option(descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    let send = get_option(descriptor, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
    // The kernel counts its own structures as well and says twice what was asked for (socket(7)).
    Ok(usize::try_from(receive.min(send)).unwrap_or(0) / 2)
}

/// Returns the address to which a packet socket sends packets of this kind (as in an Ethernet
/// header) so that they arrive on the loopback device.
///
/// # Errors
/// When there is no loopback device.
pub fn loopback_packet_address(ethertype: u16) -> io::Result<SockAddr> {
    // SAFETY: the name ends in a zero byte and the kernel only reads it.
    let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
    let index = libc::c_int::try_from(index).unwrap_or(0);
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the storage is zeroed and larger than a sockaddr_ll, for which zero is valid, and its
    // length is set to that of what was written.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let address = storage.cast::<libc::sockaddr_ll>();
            (*address).sll_family = libc::AF_PACKET as libc::sa_family_t;
            (*address).sll_protocol = ethertype.to_be();
            (*address).sll_ifindex = index;
            (*address).sll_halen = 6;
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }?;
    Ok(address)
}

/// Returns the largest packet, headers included, that the kernel expects a connection's path to
/// carry.
///
/// # Errors
/// Errors of the kernel.
pub fn connection_mtu(connection: &impl AsRawFd) -> io::Result<usize> {
    let descriptor = connection.as_raw_fd();
    let mtu = get_option(descriptor, libc::IPPROTO_IP, libc::IP_MTU)
        .or_else(|_| get_option(descriptor, libc::IPPROTO_IPV6, libc::IPV6_MTU))?;
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// The kernel's number of the network interface with this name, if there is one.
pub fn interface_index(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: the kernel reads the string up to its end, and it outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// Has a netlink socket receive what the kernel says to a group.
///
/// # Errors
/// What the kernel says.
pub fn join_netlink_group(socket: &impl AsRawFd, group: u32) -> io::Result<()> {
    let group = libc::c_int::try_from(group).unwrap_or(libc::c_int::MAX);
    let join = libc::NETLINK_ADD_MEMBERSHIP;
    set_option(socket.as_raw_fd(), libc::SOL_NETLINK, join, group)
}

/// Bytes that the kernel has taken for a TCP connection and its host has not acknowledged; a FIN counts as one.
///
/// # Errors
/// What the kernel says.
pub fn unacknowledged_bytes(connection: &impl AsRawFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SIOCOUTQ of tcp(7) has the number of TIOCOUTQ.
    // SAFETY: the kernel writes an int, which outlives the call.
    check(unsafe { libc::ioctl(connection.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(u32::try_from(bytes).unwrap_or(0))
}

/// A timer that becomes readable when it is due, to the precision of the kernel's clock.
///
/// # Errors
/// What the kernel says.
pub fn timer() -> io::Result<OwnedFd> {
    let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
    // SAFETY: timerfd_create takes numbers only.
    let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Has the timer become readable once, after this time.
///
/// # Errors
/// What the kernel says.
pub fn set_timer(timer: &OwnedFd, after: Duration) -> io::Result<()> {
    // A timer of zero is none at all.
    let after = after.max(Duration::from_nanos(1));
    let value = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: libc::timespec {
            tv_sec: libc::time_t::try_from(after.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: after.subsec_nanos().into(),
        },
    };
    // SAFETY: the kernel reads `value`, which outlives the call, and writes nothing.
    check(unsafe {
        libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const value, std::ptr::null_mut())
    })
}

/// Makes a timer that was due unreadable until it is due again.
pub fn silence_timer(timer: &OwnedFd) {
    let mut times = [0_u8; 8];
    // SAFETY: the kernel writes eight bytes at most into `times`. That it was silent is no error.
    unsafe { libc::read(timer.as_raw_fd(), times.as_mut_ptr().cast(), times.len()) };
}

/// Sends one Ethernet frame on a device, past the packet filter.
///
/// # Errors
/// When there is no such device, or what the kernel says. Needs CAP_NET_RAW.
pub fn send_frame(device: &str, frame: &[u8]) -> io::Result<()> {
    let name = CString::new(device)?;
    // SAFETY: the name ends in a zero and lives through the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let index = libc::c_int::try_from(index).unwrap_or(0);
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: socket takes numbers only. Protocol 0: nothing is ever received.
    let descriptor =
        unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // The kernel takes the protocol from here, as the frame has it behind its two addresses.
    let protocol = frame.get(12..14).and_then(|bytes| bytes.first_chunk());
    let protocol = u16::from_ne_bytes(*protocol.unwrap_or(&[0; 2]));
    let to = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::sa_family_t,
        sll_protocol: protocol,
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads the frame and the address, whose sizes are given and which outlive the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The number of the user that this process acts as.
pub fn user() -> u32 {
    // SAFETY: geteuid takes nothing, touches no memory of ours and cannot fail.
    unsafe { libc::geteuid() }
}

/// Leaves the terminal's process group, so that Ctrl-C there does not reach this process.
pub fn start_session() {
    // SAFETY: setsid takes nothing and touches no memory of ours. It fails only for a group
    // leader, which then has a group of its own already.
    unsafe { libc::setsid() };
}

/// A process, to be asked later how it ended.
pub struct ProcessHandle(OwnedFd);

/// Structure that `PIDFD_GET_INFO` of pidfd_open(2) fills in, in its first version.
#[repr(C)]
#[derive(Default)]
struct ProcessInfo {
    mask: u64,
    control_group: u64,
    /// Process and user ids.
    numbers: [u32; 11],
    /// As of wait(2).
    status: i32,
}

/// `_IOWR(0xff, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;
const PIDFD_INFO_EXIT: u64 = 1 << 3;

impl ProcessHandle {
    /// The one that started this one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn parent() -> io::Result<Self> {
        // SAFETY: plain values; the descriptor that it returns is nobody else's.
        unsafe {
            let descriptor = libc::syscall(libc::SYS_pidfd_open, libc::getppid(), 0);
            match RawFd::try_from(descriptor) {
                Ok(descriptor) if descriptor >= 0 => Ok(Self(OwnedFd::from_raw_fd(descriptor))),
                Ok(_) | Err(_) => Err(io::Error::last_os_error()),
            }
        }
    }

    /// Returns how a process ended that was not this one's child, once its own parent has collected
    /// it. Requires Linux 6.15 or later.
    pub fn end(&self) -> Option<ExitStatus> {
        let mut info = ProcessInfo {
            mask: PIDFD_INFO_EXIT,
            ..ProcessInfo::default()
        };
        // SAFETY: the kernel writes as many bytes at most into `info` as the request's number says, which is its size.
        let asked = unsafe { libc::ioctl(self.0.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
        (asked == 0 && info.mask & PIDFD_INFO_EXIT != 0).then(|| ExitStatus::from_raw(info.status))
    }
}

/// Raises the limit of open descriptors as far as is allowed without privileges, and returns it.
///
/// # Errors
/// What the kernel says.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit that outlives the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above; the kernel only reads it.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// Keeps this process's memory out of core dumps and away from other processes of the same user, for
/// good: no core file, no anonymous memory in one that root's debugger writes, no tracing by the user.
///
/// # Errors
/// What the kernel says. What came before the failed step holds.
pub fn forbid_core_dumps() -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit that outlives the call; the kernel only reads it.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) })?;
    // Before the next step, which gives files in /proc to root. A kernel without core dumps has none.
    match std::fs::write("/proc/self/coredump_filter", "0") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    prctl(libc::PR_SET_DUMPABLE, 0, 0)
}

/// Opens a directory that is no symbolic link.
///
/// # Errors
/// What the kernel says.
pub fn open_directory(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(path)
}

/// Opens a file of a directory by its name.
///
/// # Errors
/// What the kernel says.
pub fn open_at(directory: &File, name: &CStr, flags: libc::c_int, mode: u32) -> io::Result<File> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: `name` is a string that ends in zero and outlives the call.
    let descriptor = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, mode) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Makes a directory in a directory.
///
/// # Errors
/// What the kernel says.
pub fn make_directory_at(directory: &File, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: `name` is a string that ends in zero and outlives the call.
    check(unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), mode) })
}

/// Renames a file within a directory.
///
/// # Errors
/// What the kernel says.
pub fn rename_at(directory: &File, from: &CStr, to: &CStr) -> io::Result<()> {
    let descriptor = directory.as_raw_fd();
    // SAFETY: the names are strings that end in zero and outlive the call.
    check(unsafe { libc::renameat(descriptor, from.as_ptr(), descriptor, to.as_ptr()) })
}

/// Removes a file from a directory.
///
/// # Errors
/// What the kernel says.
pub fn remove_at(directory: &File, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is a string that ends in zero and outlives the call.
    check(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) })
}

fn set_option(
    descriptor: RawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads an int, which outlives the call.
    check(unsafe { libc::setsockopt(descriptor, level, option, (&raw const value).cast(), length) })
}

fn get_option(
    descriptor: RawFd,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, an int, which outlives the call.
    check(unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(descriptor, level, option, value, &raw mut length)
    })?;
    Ok(value)
}

fn read_capabilities() -> io::Result<[CapabilityWord; 2]> {
    let mut header = UserCapabilityHeader {
        version: CAPABILITY_VERSION_3,
        process: 0,
    };
    let mut words = [CapabilityWord::default(); 2];
    // SAFETY: both structures have the kernel's layout for version 3 and outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
    check(result as libc::c_int)?;
    Ok(words)
}

/// Makes `kept` the permitted, effective and inheritable set.
fn write_capabilities(kept: u64) -> io::Result<()> {
    let mut header = UserCapabilityHeader {
        version: CAPABILITY_VERSION_3,
        process: 0,
    };
    let word = |bits: u32| CapabilityWord {
        effective: bits,
        permitted: bits,
        inheritable: bits,
    };
    let words = [word(kept as u32), word((kept >> 32) as u32)];
    // SAFETY: both structures have the kernel's layout for version 3 and outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) };
    check(result as libc::c_int)
}

fn drop_from_bounding_set(capability: libc::c_ulong) -> io::Result<()> {
    match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
        // Beyond the last capability that this kernel knows.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        dropped => dropped,
    }
}

fn prctl(option: libc::c_int, second: libc::c_ulong, third: libc::c_ulong) -> io::Result<()> {
    let zero: libc::c_ulong = 0;
    // SAFETY: the options used here take numbers only, no pointers.
    check(unsafe { libc::prctl(option, second, third, zero, zero) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_capabilities_are_gone_and_kept_remain() {
        // In a thread of its own: capabilities belong to threads.
        let held = std::thread::spawn(|| {
            let before = permitted_capabilities().unwrap();
            keep_only_capabilities(&[CAP_NET_ADMIN, CAP_NET_RAW]).unwrap();
            (before, permitted_capabilities().unwrap())
        });
        let (before, after) = held.join().unwrap();
        assert_eq!(after, before & (1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW));
    }

    #[test]
    fn child_has_only_the_kept_capabilities() {
        let status = std::thread::spawn(|| {
            let before = permitted_capabilities().unwrap();
            keep_only_capabilities(&[CAP_NET_ADMIN]).unwrap();
            let output = std::process::Command::new("cat")
                .arg("/proc/self/status")
                .output()
                .unwrap();
            (before, String::from_utf8(output.stdout).unwrap())
        });
        let (before, status) = status.join().unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("CapPrm:"))
            .unwrap();
        let child = u64::from_str_radix(line.trim(), 16).unwrap();
        assert_eq!(child, before & (1 << CAP_NET_ADMIN));
    }

    #[test]
    fn descriptor_limit_rises_to_the_hard_limit() {
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(raise_descriptor_limit().unwrap(), raised);
        assert!(raised >= 256);
    }
}
