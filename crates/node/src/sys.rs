//! The node's access to the system: the functions of [`host::daemon`], and those that need the
//! node's own runtime or its source of random numbers.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use socket2::Socket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) use host::daemon::{
    CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_NET_RAW, ProcessHandle, connection_mtu,
    enlarge_buffers, forbid_core_dumps, has_capability, interface_index, join_netlink_group,
    keep_only_capabilities, loopback_packet_address, make_directory_at, open_at, open_directory,
    own_program, raise_descriptor_limit, remove_at, rename_at, send_frame, set_timer,
    silence_timer, start_session, unacknowledged_bytes, user,
};

/// Fills `room` from the system's generator of random numbers for secrets.
///
/// # Errors
/// When it gives none.
pub(crate) fn fill_random(room: &mut [u8]) -> io::Result<()> {
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(room)
        .map_err(|_| io::Error::other("the operating system returned no random numbers"))
}

/// A timer that becomes readable when it is due, to the precision of the kernel's clock; to be made
/// inside the runtime that waits for it.
///
/// # Errors
/// What the kernel says.
pub(crate) fn timer() -> io::Result<AsyncFd<OwnedFd>> {
    let timer = host::daemon::timer()?;
    // SAFETY: an OwnedFd names the same open file as long as it lives, and gives it to nobody.
    unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }.map_err(io::Error::from)
}

/// A socket that the runtime which this is called in waits for.
///
/// # Errors
/// When the runtime cannot wait for it.
pub(crate) fn waited_for(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: a Socket names the same open file as long as it lives, and nobody replaces it in the AsyncFd.
    unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }.map_err(io::Error::from)
}
