//! A transparent bridge: the link joins two existing interfaces.
//!
//! ```text
//!   host ── interface A ══ emulated link ══ interface B ── host
//! ```
//! Whatever comes into one goes out of the other as it is, addresses and tags and all: ARP,
//! neighbour discovery, multicast, spanning tree. The hosts on both sides need no setting at all.
//! While the link runs, both interfaces are up and belong to it alone (`interface.rs`); when the
//! process ends, however it does, they bridge nothing.
//!
//! Frames are received and sent by packet sockets (`packet_socket.rs`), which work everywhere, or
//! by AF_XDP (`xdp.rs`), before the kernel has processed them.

use anyhow::{Result, anyhow, bail};

use host::invalid_request::InvalidRequest;
use host::packets::device::LinkDevice;
use host::packets::interface::ClaimedInterface;
use host::packets::interface_system::OffloadFeature;
use host::packets::namespace::NetworkNamespace;
use host::packets::packet_socket::PacketSocket;
use host::packets::xdp::XdpSocket;

/// One end of a bridge: an interface that is there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeEnd {
    /// The interface's name.
    pub interface: String,
    /// Network namespace of the interface; `None` is that of the calling thread.
    pub namespace: Option<NetworkNamespace>,
}

impl BridgeEnd {
    /// An interface in the namespace of the calling thread.
    #[must_use]
    pub fn here(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            namespace: None,
        }
    }
}

/// Packet interface of the bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BridgeIo {
    /// Packet sockets (AF_PACKET): works with every interface, and with large offloaded packets.
    #[default]
    Packet,
    /// AF_XDP: before the kernel's network stack, for interfaces with an MTU of about 3,800 bytes
    /// at most.
    Xdp,
}

/// Takes both interfaces.
///
/// # Errors
/// When one cannot be bridged; nothing has been changed then, or it has been put back.
pub(super) fn open(a: &BridgeEnd, b: &BridgeEnd, io: BridgeIo) -> Result<[Box<dyn LinkDevice>; 2]> {
    let find = |end: &BridgeEnd| ClaimedInterface::find(&end.interface, end.namespace.as_ref());
    let (first, second) = (find(a)?, find(b)?);
    if first.is_same_as(&second) {
        return Err(InvalidRequest::because(anyhow!(
            "both ends of the bridge are {}; name two different interfaces",
            first.name()
        )));
    }
    if first.mtu() != second.mtu() {
        bail!(
            "{} has an MTU of {} and {} one of {}, and longer frames would not pass; make them equal: ip link set {} mtu {}",
            first.name(),
            first.mtu(),
            second.name(),
            second.mtu(),
            if first.mtu() > second.mtu() {
                first.name()
            } else {
                second.name()
            },
            first.mtu().min(second.mtu())
        );
    }
    let open = |interface, end: &BridgeEnd| open_one(interface, end.namespace.as_ref(), io);
    Ok([open(first, a)?, open(second, b)?])
}

fn open_one(
    mut interface: ClaimedInterface,
    namespace: Option<&NetworkNamespace>,
    io: BridgeIo,
) -> Result<Box<dyn LinkDevice>> {
    match io {
        BridgeIo::Packet => {
            interface.take(namespace, &[OffloadFeature::LargeReceive])?;
            Ok(Box::new(PacketSocket::open(interface, namespace)?))
        }
        BridgeIo::Xdp => {
            interface.take(
                namespace,
                &[OffloadFeature::LargeReceive, OffloadFeature::GenericReceive],
            )?;
            Ok(Box::new(XdpSocket::open(interface, namespace)?))
        }
    }
}

#[cfg(test)]
mod tests;
