//! The notifications to systemd by its own protocol (sd_notify(3)): a datagram to a socket that it
//! names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends a message such as `READY=1` to the service manager, if there is one.
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
        tracing::debug!(%error, "the node could not notify the service manager");
    }
}

/// The interval at which systemd expects `WATCHDOG=1`: half of its time-out.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    let microseconds: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (microseconds > 0).then(|| Duration::from_micros(microseconds / 2))
}

/// Returns true if a service manager restarts this node when it dies.
#[must_use]
pub fn restarts_us() -> bool {
    std::env::var_os("INVOCATION_ID").is_some()
}
