//! The watchdog's own life: plain blocking code that waits, and removes a table.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{BEAT, GOODBYE, REINSTALL};
use crate::intercept;
use crate::sys;

/// Six missed beats: a busy machine delays one or two. With the removal itself a hung node is
/// passed by within two seconds.
const HUNG_AFTER: Duration = Duration::from_millis(1500);
/// The interval between checks for missing beats.
const LOOK: Duration = Duration::from_millis(100);
/// Before a dead node is started again, so that its sockets are gone.
const RESTART_AFTER: Duration = Duration::from_millis(200);
/// For its parent to take note of its end, before which the kernel does not tell it.
const TOLD_WITHIN: Duration = Duration::from_millis(200);
/// The number of restarts that mark a node as broken; another restart would not help.
const RESTARTS: usize = 5;
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);

/// The options of a watchdog process.
#[derive(Clone, Debug)]
pub struct WatchdogOptions {
    /// The node's name; its table is named after it. `None`: there are no rules to remove.
    pub intercepting_node: Option<String>,
    /// The command that starts the node again; empty when another service does.
    pub restart: Vec<OsString>,
    /// The times of earlier restarts, in seconds since the Unix epoch.
    pub restarts: Vec<u64>,
    /// The option that carries `restarts` to the next one.
    pub restarts_option: &'static str,
}

/// Watches the node at the other end of standard input until it is gone.
///
/// # Errors
/// When the node cannot be started again.
pub fn watch(options: WatchdogOptions) -> io::Result<()> {
    sys::start_session();
    let node = sys::ProcessHandle::parent();
    keep_needed_capabilities();
    // Standard input is one end of the pair that the node made.
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.set_read_timeout(Some(LOOK))?;
    let said_goodbye = attend(&stream, options.intercepting_node.as_deref());
    drop(stream);
    if said_goodbye {
        return Ok(());
    }
    let end = node.ok().and_then(|node| wait_for_end(&node));
    restart(options, &describe(end))
}

fn wait_for_end(node: &sys::ProcessHandle) -> Option<ExitStatus> {
    let asked = Instant::now();
    loop {
        let end = node.end();
        if end.is_some() || asked.elapsed() >= TOLD_WITHIN {
            return end;
        }
        std::thread::sleep(TOLD_WITHIN / 20);
    }
}

fn describe(end: Option<ExitStatus>) -> String {
    match end.map(|end| (end.signal(), end.code())) {
        Some((Some(signal), _)) => format!("killed by signal {signal}"),
        Some((None, Some(code))) => format!("ended with exit code {code}"),
        Some((None, None)) | None => "for a reason that the kernel did not report".to_owned(),
    }
}

/// Watches the node until its end. Returns true if it said goodbye.
fn attend(mut stream: &UnixStream, node: Option<&str>) -> bool {
    let mut buffer = [0; 64];
    let mut heard = Instant::now();
    let mut removed = false;
    let mut goodbye = false;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                heard = Instant::now();
                goodbye |= buffer[..length].contains(&GOODBYE);
                if removed && buffer[..length].contains(&BEAT) {
                    tracing::warn!("the node answers again");
                    removed = stream.write_all(&[REINSTALL]).is_err();
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) =>
            {
                if !removed && !goodbye && heard.elapsed() >= HUNG_AFTER {
                    tracing::error!("the node hangs; the watchdog removes its interception rules");
                    remove(node);
                    removed = true;
                }
            }
            Err(_) => break,
        }
    }
    remove(node);
    goodbye
}

fn remove(node: Option<&str>) {
    if let Some(node) = node
        && let Err(error) = intercept::remove_table(node)
    {
        tracing::error!(%error, "the watchdog could not remove the interception rules of a dead or hung node");
    }
}

/// Becomes the node.
fn restart(options: WatchdogOptions, end: &str) -> io::Result<()> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let mut restarts: Vec<u64> = options
        .restarts
        .into_iter()
        .filter(|then| then + RESTARTS_WITHIN.as_secs() > now)
        .collect();
    if options.restart.is_empty() {
        tracing::error!(end, "the node's process ended");
        return Ok(());
    }
    if restarts.len() >= RESTARTS {
        tracing::error!(
            end,
            "the node's process ended; the watchdog does not start it again, because it ended too often"
        );
        return Ok(());
    }
    tracing::error!(
        end,
        "the node's process ended; the watchdog starts it again"
    );
    restarts.push(now);
    std::thread::sleep(RESTART_AFTER);
    let restarts: Vec<String> = restarts.iter().map(u64::to_string).collect();
    let error = Command::new(sys::own_program()?)
        .args(options.restart)
        .arg(format!(
            "{}={}",
            options.restarts_option,
            restarts.join(",")
        ))
        .stdin(std::process::Stdio::null())
        .exec();
    Err(error)
}

/// Keeps the capabilities that a restarted node needs, and drops all others.
fn keep_needed_capabilities() {
    let needed = [
        sys::CAP_NET_ADMIN,
        sys::CAP_NET_RAW,
        sys::CAP_NET_BIND_SERVICE,
    ];
    if let Err(error) = sys::keep_only_capabilities(&needed) {
        tracing::warn!(%error, "the watchdog keeps its capabilities");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_end_is_reported_by_signal_or_code() {
        let described = |status| describe(Some(ExitStatus::from_raw(status)));
        assert_eq!(described(9), "killed by signal 9");
        assert_eq!(described(128 | 11), "killed by signal 11");
        assert_eq!(described(1 << 8), "ended with exit code 1");
        assert_eq!(
            describe(None),
            "for a reason that the kernel did not report"
        );
    }
}
