//! Packets from and to network devices: TUN devices, packet sockets and AF_XDP.
//!
//! ```text
//!   TUN device ──────┐
//!   packet socket ───┼─► [`device::LinkDevice`] ─► the emulator's driver
//!   AF_XDP ──────────┘
//! ```
//! The files named `*_system.rs` and `bpf.rs` hold the system calls, each with its reason. The
//! others hold what follows from them.

pub mod bpf;
pub mod device;
pub mod frame;
pub mod interface;
pub mod interface_system;
pub mod interface_use;
pub mod namespace;
pub mod offload;
pub mod packet_socket;
pub mod packet_system;
pub mod system;
pub mod tun;
pub mod xdp;
pub mod xdp_system;

use namespace::NetworkNamespace;

/// One end of the link: a device that the link creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEndpoint {
    /// The device's name, 1 to 15 bytes.
    pub device: String,
    /// Namespace to create it in; `None` is that of the calling thread.
    pub namespace: Option<NetworkNamespace>,
}

impl LinkEndpoint {
    /// A device in the namespace of the calling thread.
    #[must_use]
    pub fn here(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            namespace: None,
        }
    }
}

/// Setting of the offloads: whether the kernel and a TUN device exchange runs of packets as one
/// packet. The model sees the real packets either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadSetting {
    /// The kernel may exchange runs, which saves most of the work.
    #[default]
    On,
    /// Each packet comes and goes alone, so that a capture at the device shows what a wire would
    /// carry.
    Off,
}
