//! Port of a virtual machine behind a site's host: a TAP device that the host routes to.
//!
//! ```text
//!  machine ──198.18.1.128/30── tap0 (client) lan0 ──198.18.1.0/24── lan0 (near)
//!     .130                      .129  answers ARP for .130
//! ```
//! The host's own device stays as it is. The node sees the machine's own address and the host's
//! Ethernet address.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use super::{LabSite, LabTopology};
use host::kernel;

/// Device of the host that the machine is connected to.
const DEVICE: &str = "tap0";
/// Host part of the addresses of the host's end and of the machine: a /30 inside the site's LAN.
const GATEWAY: u8 = 129;
/// See above.
const MACHINE: u8 = 130;

/// Port for one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachinePort {
    /// TAP device in the host's namespace.
    pub device: &'static str,
    /// Address for the machine, in a network of 30 bits.
    pub address: Ipv4Addr,
    /// Address of the host at this port.
    pub gateway: Ipv4Addr,
}

impl LabTopology {
    /// Makes a port for a virtual machine behind the host of a site; each host has one.
    ///
    /// # Errors
    /// Fails when the kernel refuses, for example because the host has a port already.
    pub fn attach_machine(&self, site: LabSite) -> Result<MachinePort> {
        let address = |last| Ipv4Addr::new(198, 18, site.number(), last);
        let port = MachinePort {
            device: DEVICE,
            address: address(MACHINE),
            gateway: address(GATEWAY),
        };
        self.ip(
            site.host(),
            &format!(
                "tuntap add dev {DEVICE} mode tap\naddress add {}/30 dev {DEVICE}\n\
                 link set {DEVICE} up\n",
                port.gateway
            ),
        )?;
        kernel::in_network_namespace(&self.namespace_file(site.host()), || {
            let set = |name: &str, value: &str| {
                std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value)
            };
            set("ip_forward", "1")?;
            set("conf/lan0/proxy_arp", "1")?;
            // Without it the first answer waits up to 0.8 s.
            set("neigh/lan0/proxy_delay", "0")
        })
        .with_context(|| format!("routing to a machine in the namespace {}", site.host()))?;
        Ok(port)
    }
}
