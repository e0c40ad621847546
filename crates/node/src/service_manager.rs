//! What systemd is told, by its own protocol (sd_notify(3)): a datagram to a socket it names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Says something like `READY=1`, if anyone wants to know.
pub(crate) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let bytes = path.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::debug!(%error, "the service manager could not be told");
    }
}

/// How often it wants to hear `WATCHDOG=1`: half of what it would wait.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    let microseconds: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (microseconds > 0).then(|| Duration::from_micros(microseconds / 2))
}

/// Whether a service manager starts this node again when it dies.
#[must_use]
pub fn restarts_us() -> bool {
    std::env::var_os("INVOCATION_ID").is_some()
}
