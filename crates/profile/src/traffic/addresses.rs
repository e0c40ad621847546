//! Addresses of emulated hosts and of the device, in both families.
//!
//! | | subnet of port p | device | emulated hosts |
//! | --- | --- | --- | --- |
//! | IPv4 | 198.18.p.0/24 (RFC 2544 appendix C.2.2) | .1 | .2 to .251 |
//! | IPv6 | 2001:2:0:p::/64 (RFC 5180 §8) | ::1 | ::2 to ::fb |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::plan::AddressFamily;

/// Addresses of a flow of emulated hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowEndpoints {
    /// Address behind the input port.
    pub source: SocketAddr,
    /// Address behind the output port.
    pub destination: SocketAddr,
}

/// Hosts that are emulated behind each port; each flow takes the next one.
pub(super) const HOSTS_PER_PORT: u32 = 250;
/// Number of the device in each subnet.
const DEVICE: u8 = 1;
/// Number of the first host.
pub(super) const FIRST_HOST: u32 = 2;
/// Number of the last host of a subnet of IPv4; the next one is the broadcast address.
const LAST_HOST: u8 = 254;
/// First source port of the flows.
pub(super) const FIRST_SOURCE_PORT: u16 = 10_000;
/// Flows of a run that have source ports of their own.
pub(crate) const RUN_FLOWS_MAX: u32 = (u16::MAX - FIRST_SOURCE_PORT) as u32 * HOSTS_PER_PORT;
/// Destination port of UDP flows: discard, RFC 863.
const DISCARD_PORT: u16 = 9;

/// First octets of IPv4 subnets, and first groups of IPv6 subnets.
const IPV4_PREFIX: [u8; 2] = [198, 18];
const IPV6_PREFIX: [u16; 3] = [0x2001, 2, 0];

/// Addresses of UDP flow number `flow` from port `input` to port `output`. A plan that has been checked
/// has no more flows than addresses; the number of a packet that arrived may be any.
#[must_use]
pub fn emulated_endpoints(
    family: AddressFamily,
    flow: u32,
    input: u16,
    output: u16,
) -> FlowEndpoints {
    FlowEndpoints {
        source: SocketAddr::new(host_address(family, flow, input), source_port(flow)),
        destination: SocketAddr::new(host_address(family, flow, output), DISCARD_PORT),
    }
}

/// Address of the device on the subnet of port `port`.
#[must_use]
pub fn device_address(family: AddressFamily, port: u16) -> IpAddr {
    address(family, port, DEVICE)
}

/// Port whose subnet has this address, whether a host has it or not; `None` outside of all subnets.
#[must_use]
pub fn subnet_port(address: IpAddr) -> Option<u16> {
    match address {
        IpAddr::V4(address) => {
            let [a, b, port, _] = address.octets();
            ([a, b] == IPV4_PREFIX).then_some(u16::from(port))
        }
        IpAddr::V6(address) => {
            let [a, b, c, port, rest @ ..] = address.segments();
            ([a, b, c] == IPV6_PREFIX && rest[..3] == [0; 3]).then_some(port)
        }
    }
}

/// Tells whether the profiler answers for this address behind port `port`: it is in the port's subnet,
/// and is neither the device's nor the broadcast address.
#[must_use]
pub fn is_emulated(address: IpAddr, port: u16) -> bool {
    let hosts = FIRST_HOST..=u32::from(LAST_HOST);
    subnet_port(address) == Some(port) && hosts.contains(&host_number(address))
}

pub(super) fn host_address(family: AddressFamily, flow: u32, port: u16) -> IpAddr {
    let host = FIRST_HOST + flow % HOSTS_PER_PORT;
    address(family, port, host.to_be_bytes()[3])
}

fn address(family: AddressFamily, port: u16, host: u8) -> IpAddr {
    match family {
        AddressFamily::Ipv4 => {
            let [a, b] = IPV4_PREFIX;
            Ipv4Addr::new(a, b, port.to_be_bytes()[1], host).into()
        }
        AddressFamily::Ipv6 => {
            let [a, b, c] = IPV6_PREFIX;
            Ipv6Addr::new(a, b, c, port, 0, 0, 0, u16::from(host)).into()
        }
    }
}

/// Number of a host in its subnet.
pub(super) fn host_number(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => u32::from(address.octets()[3]),
        IpAddr::V6(address) => u32::from(address.segments()[7]),
    }
}

pub(super) fn source_port(flow: u32) -> u16 {
    let round = u16::try_from(flow / HOSTS_PER_PORT).unwrap_or(u16::MAX);
    FIRST_SOURCE_PORT.saturating_add(round)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [AddressFamily; 2] = [AddressFamily::Ipv4, AddressFamily::Ipv6];

    #[test]
    fn any_flow_number_has_endpoints() {
        // The number comes out of a packet that arrived, so it may be any.
        for family in FAMILIES {
            for flow in [0, RUN_FLOWS_MAX - 1, RUN_FLOWS_MAX, 14_000_000, u32::MAX] {
                let endpoints = emulated_endpoints(family, flow, 0, 1);
                assert!(endpoints.source.port() >= FIRST_SOURCE_PORT);
                assert!(is_emulated(endpoints.source.ip(), 0));
                assert!(is_emulated(endpoints.destination.ip(), 1));
            }
        }
    }

    #[test]
    fn device_and_other_subnets_are_not_emulated() {
        for (address, emulated) in [
            ("198.18.1.2", true),
            ("198.18.1.251", true),
            ("198.18.1.1", false),
            ("198.18.1.255", false),
            ("198.18.2.2", false),
            ("198.19.1.2", false),
            ("2001:2:0:1::2", true),
            ("2001:2:0:1::fb", true),
            ("2001:2:0:1::1", false),
            ("2001:2:0:1::1:2", false),
            ("2001:2:0:2::2", false),
            ("2001:2:1:1::2", false),
            ("fe80::2", false),
        ] {
            assert_eq!(
                is_emulated(address.parse().unwrap(), 1),
                emulated,
                "{address}"
            );
        }
        for family in FAMILIES {
            assert!(!is_emulated(device_address(family, 1), 1));
            assert_eq!(subnet_port(device_address(family, 63)), Some(63));
        }
    }
}
