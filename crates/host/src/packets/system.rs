//! The system calls that the link needs and std does not have; the only unsafe code of the link.
//!
//! Each wrapper checks what the kernel returns and passes only memory that it owns. The kernel's
//! side is described in tun(4), netdevice(7), ppoll(2), setns(2) and prctl(2).
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use std::io::{IsTerminal, Read, Write};

/// `TUNGETDEVNETNS` of linux/if_tun.h, `_IO('T', 227)`: opens the namespace the device is in.
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
/// `TUNSETIFF`, `_IOW('T', 202, int)`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca as libc::Ioctl;
/// `TUNSETOFFLOAD`, `_IOW('T', 208, unsigned int)`.
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0 as libc::Ioctl;
/// `TUNGETIFF`, `_IOR('T', 210, unsigned int)`.
const TUNGETIFF: libc::Ioctl = 0x8004_54d2 as libc::Ioctl;

/// The longest device name, without the zero at its end.
pub const DEVICE_NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// An `ifreq` with this name and nothing else in it.
pub fn request(device: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request
        .ifr_name
        .iter_mut()
        .zip(device.bytes().take(DEVICE_NAME_MAX))
    {
        *to = from as libc::c_char;
    }
    request
}

/// Turns the result of a system call into a value or the error that the kernel set.
///
/// # Errors
/// When the result is negative: `errno`.
pub fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An ioctl whose argument is an `ifreq`.
pub fn ioctl(
    file: BorrowedFd<'_>,
    number: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: the numbers used in this file take a pointer to an ifreq, which lives through the
    // call; the kernel reads and writes no more than its size.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), number, ptr::from_mut(request)) }).map(|_| ())
}

/// Makes `file`, which is an open /dev/net/tun, a new TUN device of this name, without packet
/// information, with a `virtio_net_hdr` before each packet, and without offloads so far.
pub fn attach_tun(file: &File, device: &str) -> io::Result<()> {
    let mut request = request(device);
    // Exclusive: one that somebody has kept ready is not ours to change and to read.
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(file.as_fd(), TUNSETIFF, &mut request)
}

/// Packets that a TUN device accepts without segmentation or checksum: `TUN_F_…` of linux/if_tun.h.
pub mod unfinished {
    /// Without check sum.
    pub const CHECKSUM: u32 = 0x01;
    /// Runs of TCP segments, over IPv4 and IPv6.
    pub const TCP: u32 = 0x02 | 0x04;
    /// Runs of UDP datagrams, over IPv4 and IPv6; Linux 6.2 and later.
    pub const UDP: u32 = 0x20 | 0x40;
}

/// Says which unfinished packets this TUN device takes; the kernel finishes the others before.
///
/// # Errors
/// When the kernel knows one of them not.
pub fn set_tun_offload(file: &File, kinds: u32) -> io::Result<()> {
    // SAFETY: this ioctl takes a number and no pointer.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, libc::c_ulong::from(kinds)) })
        .map(|_| ())
}

/// The name that a TUN device has now; it may have been renamed.
pub fn tun_name(file: &File) -> io::Result<String> {
    let mut request = request("");
    ioctl(file.as_fd(), TUNGETIFF, &mut request)?;
    let name: Vec<u8> = request
        .ifr_name
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| *byte as u8)
        .collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// The namespace that a TUN device is in now; it may have been moved.
pub fn tun_namespace(file: &File) -> io::Result<OwnedFd> {
    // SAFETY: this ioctl takes no argument and returns a new descriptor, which is ours alone.
    unsafe {
        let descriptor = checked(libc::ioctl(file.as_raw_fd(), TUNGETDEVNETNS))?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Sets MTU and transmit queue of a device in this namespace and brings it up.
pub fn bring_up(device: &str, mtu: u16, queue_packets: u16) -> io::Result<()> {
    // SAFETY: no pointers are passed; a new descriptor is ours alone.
    let socket = unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_INET, kind, 0))?)
    };
    let mut values = request(device);
    values.ifr_ifru.ifru_mtu = i32::from(mtu);
    ioctl(socket.as_fd(), libc::SIOCSIFMTU as libc::Ioctl, &mut values)?;
    // The queue's length is ifr_qlen, which shares the union's int with the metric.
    values.ifr_ifru.ifru_metric = i32::from(queue_packets);
    match ioctl(
        socket.as_fd(),
        libc::SIOCSIFTXQLEN as libc::Ioctl,
        &mut values,
    ) {
        // The kernel keeps this one for the host's root; in a user namespace the device has its
        // default of 500 packets, and what that loses is counted as unread.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        other => other?,
    }
    ioctl(
        socket.as_fd(),
        libc::SIOCGIFFLAGS as libc::Ioctl,
        &mut values,
    )?;
    // SAFETY: SIOCGIFFLAGS has just written this member of the union.
    let flags = unsafe { values.ifr_ifru.ifru_flags };
    values.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(
        socket.as_fd(),
        libc::SIOCSIFFLAGS as libc::Ioctl,
        &mut values,
    )
}

/// Moves the calling thread into a network namespace.
pub fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers are passed; the descriptor is open through the call.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(|_| ())
}

/// Lets the kernel wake this thread at the nanosecond asked for and not up to 50 µs later, as it
/// may by default to save wake-ups.
pub fn sharpen_timers() {
    // SAFETY: no pointers are passed. It cannot fail for the calling thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64);
    }
}

/// Raises this thread above ordinary ones: nice −20, and time slices of 0.1 ms, after which Linux
/// 6.12 and later choose again (earlier ones ignore that).
///
/// On two busy cores the default is to wait for up to a slice of each other thread, several
/// milliseconds. A real-time class would be stopped for 50 ms in each second under load.
pub fn raise_priority() -> io::Result<()> {
    // SAFETY: sched_attr is plain data, for which all zeros is a value.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    attributes.size = mem::size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_nice = -20;
    attributes.sched_runtime = 100_000;
    let none: libc::c_long = 0;
    // SAFETY: the structure says its own size and lives through the call; 0 is this thread, and
    // no flags are set.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setattr, none, &raw const attributes, none) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// The processors that this thread may run on.
pub fn allowed_processors() -> io::Result<Vec<usize>> {
    // SAFETY: cpu_set_t is plain data, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes no more than the size that it is told; 0 is this thread.
    checked(unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) })?;
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: the numbers are below the size of the set.
    Ok(all
        .filter(|number| unsafe { libc::CPU_ISSET(*number, &set) })
        .collect())
}

/// Lets this thread run on these of [`allowed_processors`] only.
pub fn run_on(processors: &[usize]) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain data, for which all zeros is a value; the numbers of
    // `allowed_processors` are below its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        for number in processors {
            libc::CPU_SET(*number, &mut set);
        }
        set
    };
    // SAFETY: the kernel reads no more than the size that it is told; 0 is this thread.
    checked(unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &raw const set) })
        .map(|_| ())
}

/// Returns the processor on which this thread runs now.
pub fn this_processor() -> Option<usize> {
    // SAFETY: no pointers are passed.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Puts this process into a session of its own, unless a terminal's keys are meant for it, now or
/// once a shell puts it into the foreground.
///
/// Where Linux shares out processors by session (`sched_autogroup_enabled`), a thread's priority
/// counts inside its session only: a link in the session of a busy program shares that one's
/// part. Says whether this process now leads a session.
pub fn start_own_session() -> bool {
    if leads_its_session() {
        return true;
    }
    // SAFETY: these take and return numbers; each may fail, which is looked at or harmless.
    unsafe {
        let group = libc::getpgrp();
        let listens_to_terminal = io::stdin().is_terminal()
            || File::open("/dev/tty")
                .is_ok_and(|terminal| libc::tcgetpgrp(terminal.as_raw_fd()) == group);
        if listens_to_terminal {
            return false;
        }
        if group == libc::getpid() {
            // The leader of a group cannot leave its session; one of its parent's group can.
            libc::setpgid(0, libc::getpgid(libc::getppid()));
        }
        libc::setsid() >= 0
    }
}

/// Returns `true` if all other processes in this one's session were started by it.
fn leads_its_session() -> bool {
    // SAFETY: these take and return numbers, and do not fail for the calling process.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Puts this process's session before others, if it is its own and sessions are what processors
/// are shared out by.
pub fn raise_session() -> io::Result<()> {
    let path = "/proc/self/autogroup";
    if leads_its_session() && std::path::Path::new(path).exists() {
        std::fs::write(path, "-20")
    } else {
        Ok(())
    }
}

/// Waits until one of the files can be read or is in error, up to `span`; says which.
///
/// The kernel rounds the span up by a thousandth of it, so a caller who wants microseconds
/// asks for milliseconds and asks again.
pub fn wait_readable<const N: usize>(
    files: [BorrowedFd<'_>; N],
    span: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut entries = files.map(readable_entry);
    wait_for_entries(&mut entries, span)?;
    Ok(entries.map(|entry| entry.revents != 0))
}

/// The same for any number of files.
pub fn wait_readable_of(files: &[BorrowedFd<'_>], span: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut entries: Vec<_> = files.iter().copied().map(readable_entry).collect();
    wait_for_entries(&mut entries, span)?;
    Ok(entries.iter().map(|entry| entry.revents != 0).collect())
}

fn readable_entry(file: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

fn wait_for_entries(entries: &mut [libc::pollfd], span: Option<Duration>) -> io::Result<()> {
    let timeout = span.map(timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the array and the timeout live through the call, and the count is the array's.
    let result = checked(unsafe {
        libc::ppoll(
            entries.as_mut_ptr(),
            entries.len() as libc::nfds_t,
            timeout,
            ptr::null(),
        )
    });
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            for entry in entries {
                entry.revents = 0;
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in those it starts.
pub fn block_stop_signals() -> io::Result<()> {
    let signals = stop_signals();
    // SAFETY: the set is initialised and lives through the call; the old set is not asked for.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, ptr::null_mut()) };
    if error == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(error))
    }
}

/// Fetches one of the blocked signals within `span`; says whether one came.
pub fn wait_for_stop_signal(span: Duration) -> bool {
    let signals = stop_signals();
    let timeout = timespec(span);
    // SAFETY: set and timeout live through the call; no information about the signal is asked for.
    unsafe { libc::sigtimedwait(&signals, ptr::null_mut(), &timeout) > 0 }
}

fn stop_signals() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data that sigemptyset initialises; the signals exist.
    unsafe {
        let mut signals: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGTERM);
        libc::sigaddset(&mut signals, libc::SIGINT);
        libc::sigaddset(&mut signals, libc::SIGHUP);
        signals
    }
}

fn timespec(span: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(span.subsec_nanos() as i32),
    }
}

/// Wakes a thread out of [`wait_readable`]: an eventfd.
#[derive(Debug)]
pub struct ThreadWaker(File);

impl ThreadWaker {
    /// Opens a new eventfd.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed; a new descriptor is ours alone.
        let file = unsafe {
            let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
            OwnedFd::from_raw_fd(checked(libc::eventfd(0, flags))?)
        };
        Ok(Self(File::from(file)))
    }

    /// Returns a second handle that wakes the same thread.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Makes it readable. The only failure is a counter already at its maximum: readable.
    pub fn wake(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Makes it unreadable again. The only failure is that it is so already.
    pub fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for ThreadWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waker_ends_waits_until_cleared() {
        let waker = ThreadWaker::new().unwrap();
        assert_eq!(
            wait_readable([waker.as_fd()], Some(Duration::ZERO)).unwrap(),
            [false]
        );
        waker.wake();
        assert_eq!(wait_readable([waker.as_fd()], None).unwrap(), [true]);
        waker.clear();
        assert_eq!(
            wait_readable([waker.as_fd()], Some(Duration::ZERO)).unwrap(),
            [false]
        );
    }
}
