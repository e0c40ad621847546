//! The few calls to the kernel that the standard library has no name for.
//!
//! Joining a network namespace, asking to die with the parent, signals, and the start time that
//! tells a process from a later one of the same number. Nothing here decides anything.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set by the handler of SIGINT, SIGTERM and SIGHUP, read by every wait of the lab.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A signal that the lab sends to a process it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSignal {
    /// Please stop (SIGTERM).
    Terminate,
    /// Stop now, without a chance to clean up (SIGKILL).
    Kill,
    /// Stand still (SIGSTOP).
    Freeze,
    /// Continue after [`ProcessSignal::Freeze`] (SIGCONT).
    Thaw,
    /// Reload, by convention (SIGHUP).
    Reload,
    /// Stop as if by Ctrl-C (SIGINT): tcpdump writes its counters out then.
    Interrupt,
}

impl ProcessSignal {
    fn number(self) -> libc::c_int {
        match self {
            ProcessSignal::Terminate => libc::SIGTERM,
            ProcessSignal::Kill => libc::SIGKILL,
            ProcessSignal::Freeze => libc::SIGSTOP,
            ProcessSignal::Thaw => libc::SIGCONT,
            ProcessSignal::Reload => libc::SIGHUP,
            ProcessSignal::Interrupt => libc::SIGINT,
        }
    }
}

/// Sends `signal` to the process `pid`.
///
/// # Errors
/// When there is no such process or it belongs to somebody else.
pub fn send_signal(pid: u32, signal: ProcessSignal) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
    // SAFETY: kill(2) takes two integers and touches no memory of ours.
    match unsafe { libc::kill(pid, signal.number()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the calling thread a member of the network namespace that `namespace` is open on.
fn join_network_namespace(namespace: i32) -> io::Result<()> {
    // SAFETY: setns(2) takes two integers; the descriptor is open for the whole call.
    match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs `work` on a thread of its own inside the network namespace at `namespace`.
///
/// # Errors
/// When the namespace is gone or may not be joined, or when `work` fails.
pub fn in_network_namespace<T: Send>(
    namespace: &Path,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let handle = File::open(namespace)?;
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                join_network_namespace(handle.as_raw_fd())?;
                work()
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Lets the child join the network namespace at `namespace` (where given) before it becomes its
/// program, and die when the thread that starts it dies.
///
/// # Errors
/// When the namespace cannot be opened.
pub fn prepare_child(command: &mut Command, namespace: Option<&Path>) -> io::Result<()> {
    let handle = namespace.map(File::open).transpose()?;
    let parent = std::process::id();
    let before_program = move || {
        if let Some(handle) = &handle {
            join_network_namespace(handle.as_raw_fd())?;
        }
        // SAFETY: prctl(2) with integers only.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the request was made; nobody would tell us then.
        // SAFETY: getppid(2) takes nothing and cannot fail.
        if u32::try_from(unsafe { libc::getppid() }) != Ok(parent) {
            return Err(io::Error::from(io::ErrorKind::Interrupted));
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls (setns, prctl, getppid), which are safe between
    // fork and exec, and allocates nothing.
    unsafe { command.pre_exec(before_program) };
    Ok(())
}

extern "C" fn remember_interruption(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Records SIGINT, SIGTERM and SIGHUP from now on instead of ending the process, so that the lab
/// can remove what it made; [`interrupted`] reports them.
pub fn catch_interruptions() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe; the structure
        // is plain data for which all zeros is a valid value.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember_interruption as *const () as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Returns `true` if the user or the system has asked the lab to stop.
#[must_use]
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// A file that may have no end, or no other end yet: waiting for its bytes stops when the lab is asked
/// to stop, which a plain read does not.
#[derive(Debug)]
pub struct InterruptibleFile(File);

/// Longest time until such a wait notices it.
const NOTICED_WITHIN: Duration = Duration::from_millis(200);

impl InterruptibleFile {
    /// Opens the file for reading. For a pipe without a writer, reading waits and opening does not.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        Ok(Self(file))
    }

    /// Returns standard input without the library's buffer, whose bytes would never arrive here.
    ///
    /// # Errors
    /// When the process has none.
    pub fn standard_input() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self(input.into()))
    }
}

impl Read for InterruptibleFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut entry = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        loop {
            if interrupted() {
                return Err(io::Error::other("interrupted"));
            }
            // SAFETY: the entry lives through the call, and there is one.
            match unsafe {
                libc::poll(&raw mut entry, 1, NOTICED_WITHIN.as_millis() as libc::c_int)
            } {
                0 => {}
                ready if ready > 0 => match self.0.read(buffer) {
                    // Somebody else has read what there was.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                },
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }
}

/// Returns the start time of process `pid`, in clock ticks since boot; `None` when it is gone.
///
/// Together with the number it identifies one process permanently: the kernel reuses numbers, but
/// not with the same start time.
#[must_use]
pub fn process_start(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; what follows the last one is fields 3 onwards
    // (proc_pid_stat(5): state is field 3, starttime field 22).
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Processor time that the calling thread has used since it began.
#[must_use]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is ours and lives through the call; the clock exists since Linux 2.6.12,
    // and where it should not the structure stays at zero.
    unsafe {
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
    }
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Drops the file from the kernel's page cache, as after a restart of the machine. Data not yet
/// written to the disk stays.
///
/// # Errors
/// When the kernel does not take the advice for this file.
pub fn forget_cached(file: &File) -> io::Result<()> {
    // SAFETY: posix_fadvise(2) takes integers only; the descriptor is open through the call.
    let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The effective user the lab runs as; 0 is root, also inside a user namespace.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Replaces this process by `command`; returns only if that fails.
pub fn become_program(command: &mut Command) -> io::Error {
    command.exec()
}

/// The congestion control that the kernel uses for the socket behind `socket`.
///
/// # Errors
/// When the descriptor is not a TCP socket.
pub fn congestion_control(socket: &impl AsRawFd) -> io::Result<String> {
    let mut name = [0_u8; 16];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: `name` and `length` live across the call and `length` says how long `name` is
    // (TCP_CA_NAME_MAX is 16).
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// A number from the two lines of UDP in /proc/net/snmp.
pub fn udp_counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split(' ').position(|word| word == name)?;
    values.split(' ').nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams RcvbufErrors MemErrors\nUdp: 70 12 0\n";
        assert_eq!(udp_counter(text, "RcvbufErrors"), Some(12));
        assert_eq!(udp_counter(text, "SndbufErrors"), None);
        assert_eq!(udp_counter("", "RcvbufErrors"), None);
    }

    #[test]
    fn process_is_identified_by_its_start_time() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = process_start(child.id());
        assert!(start.is_some());
        assert_eq!(start, process_start(child.id()));
        send_signal(child.id(), ProcessSignal::Kill).unwrap();
        child.wait().unwrap();
        assert_eq!(process_start(child.id()), None);
    }

    #[test]
    fn a_socket_tells_its_congestion_control() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!congestion_control(&listener).unwrap().is_empty());
    }
}
