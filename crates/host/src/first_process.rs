//! The system calls that putting a command behind a link needs and std does not have; the only
//! unsafe code of it.
//!
//! Each wrapper checks what the kernel returns and passes only memory that it owns. The kernel's
//! side is described in unshare(2), mount(2), capabilities(7), pid_namespaces(7) and
//! sigtimedwait(2).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::time::Duration;

/// `NS_GET_USERNS` of linux/nsfs.h, `_IO(0xb7, 1)`: opens the user namespace that owns another.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// Returns `true` if a namespace belongs to this process's user namespace or to one below it.
pub fn is_owner(namespace: &File) -> io::Result<bool> {
    // SAFETY: this ioctl takes no argument and returns a new descriptor, which is ours alone.
    let owner = checked(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) });
    match owner {
        Ok(descriptor) => {
            // SAFETY: as above; dropping it closes it.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
            Ok(true)
        }
        // ioctl_ns(2): it is above or beside this one.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Namespaces that a process gets of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnshareScope {
    /// A network namespace.
    Network,
    /// A user namespace; only while the process has a single thread.
    User,
    /// A mount namespace, and a process namespace for the children to come.
    MountsAndProcesses,
}

/// Puts the calling thread into a namespace of its own.
pub fn unshare(what: UnshareScope) -> io::Result<()> {
    let flags = match what {
        UnshareScope::Network => libc::CLONE_NEWNET,
        UnshareScope::User => libc::CLONE_NEWUSER,
        UnshareScope::MountsAndProcesses => libc::CLONE_NEWNS | libc::CLONE_NEWPID,
    };
    // SAFETY: unshare(2) takes an integer and touches no memory of ours.
    checked(unsafe { libc::unshare(flags) }).map(drop)
}

/// The kernel's number of the calling thread, under which /proc knows it.
pub fn thread_id() -> u32 {
    // SAFETY: gettid(2) takes nothing and cannot fail.
    unsafe { libc::gettid() }.unsigned_abs()
}

/// The user and group that this process really is.
pub fn user_and_group() -> (u32, u32) {
    // SAFETY: getuid(2) and getgid(2) take nothing and cannot fail.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Kind of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountKind<'a> {
    /// Mounts made later in this mount namespace stay in it.
    KeepToOurselves,
    /// An empty file system in memory.
    Memory,
    /// A bind mount of this file.
    Bind(&'a OsStr),
}

/// Mounts on `target` in the calling thread's mount namespace.
pub fn mount(how: MountKind<'_>, target: &OsStr) -> io::Result<()> {
    let (source, kind, flags) = match how {
        MountKind::KeepToOurselves => (OsStr::new("none"), None, libc::MS_REC | libc::MS_SLAVE),
        MountKind::Memory => (OsStr::new("tmpfs"), Some(c"tmpfs"), 0),
        MountKind::Bind(source) => (source, None, libc::MS_BIND),
    };
    let source = CString::new(source.as_bytes())?;
    let target = CString::new(target.as_bytes())?;
    // SAFETY: the strings end in zero and live through the call; no data is passed.
    checked(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.map_or(ptr::null(), CStr::as_ptr),
            flags,
            ptr::null(),
        )
    })
    .map(drop)
}

/// Unmounts `target`; files in use stay until they are closed.
pub fn unmount(target: &OsStr) -> io::Result<()> {
    let target = CString::new(target.as_bytes())?;
    // SAFETY: the string ends in zero and lives through the call.
    checked(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

/// Lets others of the same user look at this process under /proc again, which entering a user
/// namespace has forbidden them.
pub fn make_dumpable() -> io::Result<()> {
    // SAFETY: prctl(2) with integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }).map(drop)
}

/// `struct __user_cap_header_struct` of linux/capability.h.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct` of linux/capability.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two words of each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// `CAP_NET_ADMIN`.
pub const CAP_NET_ADMIN: u32 = 12;
/// `CAP_SYS_ADMIN`.
pub const CAP_SYS_ADMIN: u32 = 21;

/// Lets the programs that this process starts from now on configure networks too. Without it only
/// a process of user 0 keeps its capabilities over execve.
pub fn pass_on_net_admin() -> io::Result<()> {
    change_inheritable(|set| set | 1 << CAP_NET_ADMIN)?;
    // SAFETY: prctl(2) with integers only.
    unsafe {
        checked(libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE,
            CAP_NET_ADMIN,
            0,
            0,
        ))
        .map(drop)
    }
}

/// Changes the first word of the inheritable capabilities. It may be called between fork and exec.
fn change_inheritable(change: impl Fn(u32) -> u32) -> io::Result<()> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    let mut data = [CapabilityData {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    }; 2];
    // SAFETY: version 3 has one header and two words of data; both live through the calls.
    unsafe {
        checked_long(libc::syscall(
            libc::SYS_capget,
            &raw mut header,
            data.as_mut_ptr(),
        ))?;
        data[0].inheritable = change(data[0].inheritable);
        checked_long(libc::syscall(
            libc::SYS_capset,
            &raw mut header,
            data.as_ptr(),
        ))
        .map(drop)
    }
}

/// Capabilities that programs inherit beside their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedCapabilities {
    /// Capabilities that this process was started with.
    AsFound,
    /// Capability that [`pass_on_net_admin`] has added.
    NetAdmin,
}

/// Returns `true` if this process has a capability in effect.
pub fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & (1 << number) != 0)
}

/// The signals that are passed on to the command.
const PASSED_ON: [libc::c_int; 6] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Blocks the signals that [`wait_for_signal`] fetches, in this thread and in those that it
/// starts later.
pub fn block_signals() -> io::Result<()> {
    // SAFETY: the set and the action are plain data that lives through the calls. A parent may
    // have left SIGCHLD ignored, which would make ends of children unknowable.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        checked(libc::sigaction(libc::SIGCHLD, &action, ptr::null_mut()))?;
        let set = fetched();
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn fetched() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data that sigemptyset initialises; the signals exist.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in PASSED_ON {
            libc::sigaddset(&mut set, signal);
        }
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// Event that [`wait_for_signal`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivedSignal {
    /// No signal within the time.
    Nothing,
    /// A child has ended or stopped.
    Child,
    /// A key on the terminal, or its end: every process of the group has had it.
    FromTerminal(libc::c_int),
    /// Another process sent it to us.
    FromProcess(libc::c_int),
}

/// Waits up to `span` for one of the blocked signals.
pub fn wait_for_signal(span: Duration) -> ArrivedSignal {
    let set = fetched();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(span.subsec_nanos() as i32),
    };
    // SAFETY: set, information and timeout live through the call, which fills the second.
    let (signal, code) = unsafe {
        let mut information: libc::siginfo_t = mem::zeroed();
        let signal = libc::sigtimedwait(&set, &mut information, &timeout);
        (signal, information.si_code)
    };
    match signal {
        ..=0 => ArrivedSignal::Nothing,
        libc::SIGCHLD => ArrivedSignal::Child,
        // sigaction(2): codes above zero are the kernel's own.
        signal if code > 0 => ArrivedSignal::FromTerminal(signal),
        signal => ArrivedSignal::FromProcess(signal),
    }
}

/// Sends a signal to the first process of the command's process namespace, which passes it on.
pub fn pass_on_signal(first: u32, signal: libc::c_int) -> io::Result<()> {
    let first = pid(first)?;
    let value = libc::sigval {
        sival_ptr: ptr::null_mut(),
    };
    // SAFETY: sigqueue(3) takes numbers only; the value is null.
    checked(unsafe { libc::sigqueue(first, signal, value) }).map(drop)
}

/// A descriptor that becomes readable when this process has ended.
pub fn watch_self() -> io::Result<OwnedFd> {
    watch(std::process::id())
}

/// A descriptor that becomes readable when the process has ended.
pub fn watch(process: u32) -> io::Result<OwnedFd> {
    let process = pid(process)?;
    // SAFETY: pidfd_open(2) takes two integers; the new descriptor is ours alone.
    unsafe {
        let descriptor = checked_long(libc::syscall(libc::SYS_pidfd_open, process, 0))?;
        Ok(OwnedFd::from_raw_fd(descriptor as libc::c_int))
    }
}

/// Waits until one of the files can be read, or its other end is gone; says which.
pub fn wait_readable<const N: usize>(
    files: [BorrowedFd<'_>; N],
    span: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = files.map(|file| libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let milliseconds = span.map_or(-1, |span| {
        libc::c_int::try_from(span.as_millis()).unwrap_or(libc::c_int::MAX)
    });
    // SAFETY: the array lives through the call and the count is its length.
    checked(unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, milliseconds) })?;
    Ok(polled.map(|file| file.revents != 0))
}

/// Makes the process that `command` starts the first one of its process namespace, and the
/// command a child of it; the caller's thread has already asked for that namespace.
///
/// The first process answers for the others: it collects those whose parent has ended, passes on
/// what [`pass_on_signal`] sends, ends with the command's exit code (128 and the signal's number
/// if one ended it), and the kernel then ends all that is left. A command cannot be the first
/// process itself, because that one is deaf to every signal it has no handler for.
pub fn start_behind_first_process(
    command: &mut Command,
    starter: OwnedFd,
    passed_on: PassedCapabilities,
) {
    let before_program = move || {
        // SAFETY: prctl, poll, mount, sigprocmask and fork are system calls that may be made
        // between fork and exec, and what they are given lives through them.
        unsafe {
            checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            let mut starter = libc::pollfd {
                fd: starter.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // Readable: it has died before the request was made, and nobody would tell us.
            if libc::poll(&mut starter, 1, 0) != 0 {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            // Without it /proc would show processes by other numbers than their own. Where the
            // kernel refuses (parts of /proc are covered in many containers) the old one stays.
            libc::mount(
                c"proc".as_ptr(),
                c"/proc".as_ptr(),
                c"proc".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
                ptr::null(),
            );
            let mut all: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&mut all);
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigprocmask(libc::SIG_BLOCK, &all, &mut before);
            match checked(libc::fork())? {
                0 => {
                    // The command gets the signals that this process keeps for itself.
                    for signal in PASSED_ON.into_iter().chain([libc::SIGCHLD]) {
                        libc::sigdelset(&mut before, signal);
                    }
                    libc::sigprocmask(libc::SIG_SETMASK, &before, ptr::null_mut());
                    // An ordinary user's command is as privileged as its caller was, and no more.
                    if passed_on == PassedCapabilities::NetAdmin {
                        change_inheritable(|set| set & !(1 << CAP_NET_ADMIN))?;
                    }
                    Ok(())
                }
                child => be_first_process(child, &all),
            }
        }
    };
    // SAFETY: the closure makes system calls only and allocates nothing.
    unsafe { command.pre_exec(before_program) };
}

/// The life of the first process, see [`start_behind_first_process`].
fn be_first_process(command: libc::pid_t, all: &libc::sigset_t) -> ! {
    // SAFETY: system calls with memory of this function only; this process has a single thread
    // and never returns into what it was forked from.
    unsafe {
        // What the command closes is closed for its readers, and std learns of its start.
        if libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) != 0 {
            for descriptor in 0..OLD_DESCRIPTORS {
                libc::close(descriptor);
            }
        }
        loop {
            let mut status = 0;
            match libc::waitpid(-1, &mut status, libc::WNOHANG) {
                ended if ended == command => libc::_exit(exit_code(status)),
                ended if ended > 0 => continue,
                _ => {}
            }
            let mut information: libc::siginfo_t = mem::zeroed();
            let signal = libc::sigwaitinfo(all, &mut information);
            // Numbered 0 is who has no number here: only the one that is outside. Signals to the
            // whole group reach the command without us and have another code.
            if signal > 0 && information.si_code == libc::SI_QUEUE && information.si_pid() == 0 {
                libc::kill(command, signal);
            }
        }
    }
}

/// Number of descriptors closed on kernels before 5.9, which have no close_range: the usual limit
/// of a process.
const OLD_DESCRIPTORS: libc::c_int = 1024;

/// Returns the exit code as a shell reports it.
fn exit_code(status: libc::c_int) -> libc::c_int {
    if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}

/// Side of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSide {
    /// The one that called; the new process has this number.
    Parent(u32),
    /// The new process.
    Child,
}

/// Makes a second process of this one, which must have a single thread.
pub fn fork() -> io::Result<ForkSide> {
    // SAFETY: with a single thread no lock can be held by another one in the copy.
    match checked(unsafe { libc::fork() })? {
        0 => Ok(ForkSide::Child),
        child => Ok(ForkSide::Parent(child.unsigned_abs())),
    }
}

/// Ends this process at once, without running what its parent has registered for its own end.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Returns `true` if the child has ended. It is then reaped.
pub fn has_ended(child: u32) -> bool {
    let Ok(child) = pid(child) else { return true };
    let mut status = 0;
    // SAFETY: the status lives through the call.
    unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) != 0 }
}

/// Waits for the end of a child.
pub fn wait_for_end(child: u32) {
    let Ok(child) = pid(child) else { return };
    let mut status = 0;
    // SAFETY: the status lives through the call.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// A file in memory, without a name.
pub fn memory_file() -> io::Result<File> {
    // SAFETY: the name ends in zero; the new descriptor is ours alone.
    unsafe {
        let descriptor = checked(libc::memfd_create(c"gateway".as_ptr(), libc::MFD_CLOEXEC))?;
        Ok(File::from_raw_fd(descriptor))
    }
}

/// The process group in the foreground of a terminal.
pub fn foreground(terminal: &File) -> Option<libc::pid_t> {
    // SAFETY: tcgetpgrp(3) takes a descriptor that is open through the call.
    let group = unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) };
    (group > 0).then_some(group)
}

/// Puts a process group into the foreground of a terminal.
pub fn set_foreground(terminal: &File, group: libc::pid_t) {
    // SAFETY: the set and the mask are plain data that lives through the calls; the descriptor is
    // open. SIGTTOU, which would stop a caller in the background, is blocked meanwhile.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTTOU);
        let mut before: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
        libc::tcsetpgrp(terminal.as_raw_fd(), group);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
    }
}

fn pid(number: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(number).map_err(|_| io::Error::from(io::ErrorKind::NotFound))
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn checked_long(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
