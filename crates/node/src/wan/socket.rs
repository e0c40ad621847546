//! The settings of a link's TCP socket.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::config::WanConfig;
use crate::repeats;

/// The time-out of unacknowledged data. The session pings each second and notices silence itself;
/// this only frees the socket of an unused link.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Sets a link's socket options. An option that cannot be set is logged and is no failure.
pub(super) fn prepare(stream: &TcpStream, wan: &WanConfig) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL);
    let unsent = u32::try_from(wan.unsent.bytes()).unwrap_or(u32::MAX);
    report("TCP_NODELAY", socket.set_tcp_nodelay(true));
    report("SO_KEEPALIVE", socket.set_tcp_keepalive(&keepalive));
    report(
        "TCP_USER_TIMEOUT",
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT)),
    );
    report("TCP_NOTSENT_LOWAT", socket.set_tcp_notsent_lowat(unsent));
    if let Some(name) = &wan.congestion_control {
        report("TCP_CONGESTION", socket.set_tcp_congestion(name.as_bytes()));
    }
}

fn report(option: &'static str, result: io::Result<()>) {
    if let Err(error) = result {
        repeats::NO_OPTION.tell(None, || {
            tracing::warn!(option, %error, "a link's socket option could not be set");
        });
    }
}

/// The congestion controls that the running kernel offers to all users, and all that it knows.
#[must_use]
pub fn known_congestion_controls() -> Vec<String> {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}
