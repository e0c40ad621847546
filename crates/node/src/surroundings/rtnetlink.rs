//! The kernel's routes, as rtnetlink(7) lists them.
//!
//! ```text
//!   RTM_GETROUTE, both families ──► messages ──► of each network the routes of the best metric
//!                                        │
//!                                        └─────► this machine's own addresses (type local)
//! ```
//!
//! All tables are read. Routes to the machine itself are those of table `local`, and host routes of
//! that type in other tables (a VRF has them there). Routes that deliver packets to a local
//! program, such as this node's own, cover whole networks and are left out.
//!
//! It does not read the rules that choose a table: the engine weighs the differences between two
//! tables.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use engine::{IpPrefix, NetworkRoute, NetworkSurroundings, RouteSide};
use socket2::{Domain, Protocol, Socket, Type};

use crate::sys;

/// Routes read at most. The LAN of a node has a few hundred; a machine with a full table of the
/// Internet has a million, which would cost 50 MB and a second of processor time each second.
pub(super) const ROUTES_MAX: usize = 100_000;
/// The kernel answers a listing at once, or is not going to.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A listing that changes while it is read is read again so often.
const ATTEMPTS: usize = 5;
/// The buffer size that the kernel fills at most at a time (rtnetlink's largest skb).
const READ_BYTES: usize = 64 * 1024;
/// The bytes of notes that may wait: a change of some hundred routes. The kernel reports lost ones
/// as ENOBUFS.
const NOTES_BYTES: usize = 256 * 1024;

/// Groups of notes (RTNLGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE).
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

const HEADER_BYTES: usize = 16;
/// The length of a `struct rtmsg`, and of a `struct rtnexthop` after its own length.
const ROUTE_BYTES: usize = 12;
const NEXT_HOP_BYTES: usize = 8;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
/// NLM_F_REQUEST and NLM_F_DUMP.
const LIST: u16 = 0x301;
const NLM_F_DUMP_INTR: u16 = 0x10;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;

const TABLE_LOCAL: u32 = 255;

/// The relevant actions of a route on a packet (`rtm_type`).
const TYPE_UNICAST: u8 = 1;
const TYPE_LOCAL: u8 = 2;
const TYPE_BROADCAST: u8 = 3;
const TYPE_ANYCAST: u8 = 4;
const TYPE_MULTICAST: u8 = 5;
const TYPE_THROW: u8 = 9;

/// A socket on which notes of changes arrive.
///
/// # Errors
/// What the kernel says.
pub(super) fn subscribe() -> io::Result<Socket> {
    let socket = open()?;
    socket.set_recv_buffer_size(NOTES_BYTES)?;
    // The kernel gives a socket an address when it first sends, and tells nothing to one without.
    socket.send(&message(NLMSG_NOOP, 0, &[]))?;
    for group in GROUPS {
        sys::join_netlink_group(&socket, group)?;
    }
    Ok(socket)
}

/// Lists the routes that there are now.
///
/// # Errors
/// What the kernel says, or that there are more than [`ROUTES_MAX`].
pub(super) fn list(lan_interfaces: &[String]) -> io::Result<NetworkSurroundings> {
    let lan: Vec<u32> = lan_interfaces
        .iter()
        .filter_map(|name| sys::interface_index(name))
        .collect();
    for _ in 0..ATTEMPTS {
        let mut listing = RouteListing::new(lan.clone());
        let whole = [libc::AF_INET, libc::AF_INET6]
            .iter()
            .map(|family| list_family(*family as u8, &mut listing))
            .collect::<io::Result<Vec<bool>>>()?;
        if whole.iter().all(|whole| *whole) {
            return Ok(listing.surroundings());
        }
    }
    Err(io::Error::other(
        "the routes change faster than they can be read",
    ))
}

fn open() -> io::Result<Socket> {
    let route = Protocol::from(libc::NETLINK_ROUTE);
    Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(route))
}

/// Reads one family; returns false if it changed meanwhile.
fn list_family(family: u8, listing: &mut RouteListing) -> io::Result<bool> {
    let socket = open()?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket.send(&request(family))?;
    let mut buffer = vec![0; READ_BYTES];
    let mut whole = true;
    loop {
        let length = (&socket).read(&mut buffer)?;
        let mut rest = &buffer[..length];
        while let Some((message, after)) = RtnetlinkMessage::split(rest) {
            rest = after;
            whole &= message.flags & NLM_F_DUMP_INTR == 0;
            match message.kind {
                NLMSG_DONE => return Ok(whole),
                NLMSG_ERROR => return error(message.body).map(|()| whole),
                RTM_NEWROUTE => listing.add(message.body)?,
                _ => {}
            }
        }
    }
}

fn request(family: u8) -> Vec<u8> {
    let mut body = [0; ROUTE_BYTES];
    body[0] = family;
    message(RTM_GETROUTE, LIST, &body)
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = HEADER_BYTES + body.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&(length as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.resize(HEADER_BYTES, 0);
    bytes.extend_from_slice(body);
    bytes
}

/// A family that the kernel does not have is one without routes.
fn error(body: &[u8]) -> io::Result<()> {
    let code = body
        .first_chunk()
        .map_or(0, |code| i32::from_ne_bytes(*code));
    match -code {
        0 | libc::EAFNOSUPPORT | libc::EOPNOTSUPP => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

struct RtnetlinkMessage<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

impl<'a> RtnetlinkMessage<'a> {
    /// Splits off the first message; returns it and the rest.
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let message = Self {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            body: bytes.get(HEADER_BYTES..length)?,
        };
        Some((message, bytes.get(aligned(length)..).unwrap_or_default()))
    }
}

/// Messages and attributes begin at multiples of four bytes.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The attributes of a message: their kinds and contents.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        let body = bytes.get(4..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The interfaces of a route with several paths.
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let hop = bytes.first_chunk::<NEXT_HOP_BYTES>()?;
        let length = usize::from(u16::from_ne_bytes([hop[0], hop[1]]));
        let index = u32::from_ne_bytes([hop[4], hop[5], hop[6], hop[7]]);
        bytes = bytes
            .get(aligned(length.max(NEXT_HOP_BYTES))..)
            .unwrap_or_default();
        Some(index)
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The routes and addresses known from the messages so far.
struct RouteListing {
    /// The indices of the LAN interfaces.
    lan: Vec<u32>,
    /// The best metric of each network in each table, and the side on which all of that metric are.
    best: BTreeMap<(u32, IpPrefix), (u32, RouteSide)>,
    own: Vec<IpPrefix>,
}

impl RouteListing {
    fn new(lan: Vec<u32>) -> Self {
        Self {
            lan,
            best: BTreeMap::new(),
            own: Vec::new(),
        }
    }

    /// Takes one message; one that cannot be understood is left out.
    fn add(&mut self, body: &[u8]) -> io::Result<()> {
        if self.best.len() + self.own.len() >= ROUTES_MAX {
            return Err(io::Error::other(format!(
                "there are more than {ROUTES_MAX} routes"
            )));
        }
        let Some((header, rest)) = body.split_first_chunk::<ROUTE_BYTES>() else {
            return Ok(());
        };
        let [family, length, _, _, table, _, _, kind, ..] = *header;
        let mut address: IpAddr = match i32::from(family) {
            libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return Ok(()),
        };
        let (mut table, mut metric) = (u32::from(table), 0);
        let mut interfaces = Vec::new();
        for (kind, value) in attributes(rest) {
            match kind {
                RTA_DST => {
                    address = match value.len() {
                        4 => value.first_chunk::<4>().map_or(address, |v| (*v).into()),
                        16 => value.first_chunk::<16>().map_or(address, |v| (*v).into()),
                        _ => return Ok(()),
                    }
                }
                RTA_OIF => interfaces.extend(number(value)),
                RTA_MULTIPATH => interfaces.extend(next_hops(value)),
                RTA_PRIORITY => metric = number(value).unwrap_or(metric),
                RTA_TABLE => table = number(value).unwrap_or(table),
                _ => {}
            }
        }
        let Some(to) = IpPrefix::around(address, length) else {
            return Ok(());
        };
        match kind {
            TYPE_LOCAL | TYPE_BROADCAST | TYPE_ANYCAST => {
                let is_host = length == if address.is_ipv4() { 32 } else { 128 };
                if table == TABLE_LOCAL || is_host {
                    self.own.push(to);
                }
            }
            TYPE_MULTICAST | TYPE_THROW => {}
            _ if table == TABLE_LOCAL => {}
            // Also those that forbid, drop or translate: not the LAN side.
            kind => {
                let is_lan = kind == TYPE_UNICAST
                    && !interfaces.is_empty()
                    && interfaces.iter().all(|index| self.lan.contains(index));
                let side = if is_lan {
                    RouteSide::Lan
                } else {
                    RouteSide::Other
                };
                self.note(table, to, metric, side);
            }
        }
        Ok(())
    }

    fn note(&mut self, table: u32, to: IpPrefix, metric: u32, side: RouteSide) {
        let best = self.best.entry((table, to)).or_insert((metric, side));
        if metric < best.0 {
            *best = (metric, side);
        } else if metric == best.0 && side == RouteSide::Other {
            best.1 = RouteSide::Other;
        }
    }

    fn surroundings(self) -> NetworkSurroundings {
        let mut own = self.own;
        own.sort_unstable();
        own.dedup();
        let routes = self.best.into_iter();
        NetworkSurroundings {
            routes: routes
                .map(|((_, to), (_, side))| NetworkRoute { to, side })
                .collect(),
            own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> IpPrefix {
        text.parse().unwrap()
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from((4 + value.len() as u16).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    /// A message's body as the kernel writes it.
    fn route(to: &str, table: u32, kind: u8, metric: u32, interfaces: &[u32]) -> Vec<u8> {
        let to = prefix(to);
        let (family, address) = match to.address() {
            IpAddr::V4(address) => (libc::AF_INET as u8, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets().to_vec()),
        };
        let short = u8::try_from(table).unwrap_or(252);
        let mut body = vec![family, to.length(), 0, 0, short, 4, 0, kind, 0, 0, 0, 0];
        if to.length() > 0 {
            body.extend(attribute(RTA_DST, &address));
        }
        body.extend(attribute(RTA_TABLE, &table.to_ne_bytes()));
        body.extend(attribute(RTA_PRIORITY, &metric.to_ne_bytes()));
        match interfaces {
            [one] => body.extend(attribute(RTA_OIF, &one.to_ne_bytes())),
            several => {
                let hops = several.iter().flat_map(|index| {
                    let mut hop = Vec::from(8_u16.to_ne_bytes());
                    hop.extend([0, 0]);
                    hop.extend(index.to_ne_bytes());
                    hop
                });
                let hops: Vec<u8> = hops.collect();
                body.extend(attribute(RTA_MULTIPATH, &hops));
            }
        }
        body
    }

    fn listed(messages: &[Vec<u8>]) -> NetworkSurroundings {
        // Interface 2 is the LAN's, 3 another one of the LAN's, 9 the WAN's.
        let mut listing = RouteListing::new(vec![2, 3]);
        for message in messages {
            listing.add(message).unwrap();
        }
        listing.surroundings()
    }

    fn side(surroundings: &NetworkSurroundings, to: &str) -> RouteSide {
        let mut routes = surroundings.routes.iter();
        routes.find(|route| route.to == prefix(to)).unwrap().side
    }

    #[test]
    fn route_belongs_to_its_interfaces_side() {
        let found = listed(&[
            route("10.20.0.0/16", 254, TYPE_UNICAST, 0, &[2]),
            route("10.30.0.0/16", 1000, TYPE_UNICAST, 20, &[3]),
            route("2001:2:0:2::/64", 254, TYPE_UNICAST, 256, &[2]),
            route("0.0.0.0/0", 254, TYPE_UNICAST, 0, &[9]),
            route("10.40.0.0/16", 254, 7, 0, &[2]),
        ]);
        assert_eq!(side(&found, "10.20.0.0/16"), RouteSide::Lan);
        assert_eq!(side(&found, "10.30.0.0/16"), RouteSide::Lan);
        assert_eq!(side(&found, "2001:2:0:2::/64"), RouteSide::Lan);
        assert_eq!(side(&found, "0.0.0.0/0"), RouteSide::Other);
        assert_eq!(
            side(&found, "10.40.0.0/16"),
            RouteSide::Other,
            "unreachable"
        );
        assert_eq!(found.own, []);
    }

    #[test]
    fn multipath_route_is_lan_if_all_paths_are() {
        let found = listed(&[
            route("10.20.0.0/16", 254, TYPE_UNICAST, 0, &[2, 3]),
            route("10.30.0.0/16", 254, TYPE_UNICAST, 0, &[2, 9]),
            route("10.40.0.0/16", 254, TYPE_UNICAST, 0, &[]),
        ]);
        assert_eq!(side(&found, "10.20.0.0/16"), RouteSide::Lan);
        assert_eq!(side(&found, "10.30.0.0/16"), RouteSide::Other);
        assert_eq!(side(&found, "10.40.0.0/16"), RouteSide::Other);
    }

    #[test]
    fn the_route_of_the_best_metric_counts() {
        let lan = route("10.20.0.0/16", 254, TYPE_UNICAST, 100, &[2]);
        let spare = route("10.20.0.0/16", 254, TYPE_UNICAST, 200, &[9]);
        let equal = route("10.20.0.0/16", 254, TYPE_UNICAST, 100, &[9]);
        for order in [[&lan, &spare], [&spare, &lan]] {
            let found = listed(&order.map(Clone::clone));
            assert_eq!(side(&found, "10.20.0.0/16"), RouteSide::Lan);
        }
        for order in [[&lan, &equal], [&equal, &lan]] {
            let found = listed(&order.map(Clone::clone));
            assert_eq!(side(&found, "10.20.0.0/16"), RouteSide::Other);
        }
    }

    #[test]
    fn own_addresses_come_from_local_tables() {
        let found = listed(&[
            route("127.0.0.0/8", 255, TYPE_LOCAL, 0, &[1]),
            route("10.20.0.1/32", 255, TYPE_LOCAL, 0, &[2]),
            route("10.20.255.255/32", 255, TYPE_BROADCAST, 0, &[2]),
            route("2001:2:0:2::/128", 255, TYPE_ANYCAST, 0, &[2]),
            route("10.50.0.1/32", 10, TYPE_LOCAL, 0, &[4]),
            // What hands packets to this node, or to another program.
            route("0.0.0.0/0", 7443, TYPE_LOCAL, 0, &[1]),
            route("10.0.0.0/8", 100, TYPE_LOCAL, 0, &[1]),
        ]);
        let own = ["10.20.0.1", "10.20.255.255", "10.50.0.1", "127.0.0.0/8"];
        let mut own: Vec<IpPrefix> = own.iter().map(|text| prefix(text)).collect();
        own.push(prefix("2001:2:0:2::"));
        assert_eq!(found.own, own);
        assert_eq!(found.routes, []);
    }

    #[test]
    fn messages_that_are_cut_off_do_no_harm() {
        let whole = route("10.20.0.0/16", 254, TYPE_UNICAST, 0, &[2, 3]);
        for length in 0..whole.len() {
            let _ = listed(&[whole[..length].to_vec()]);
        }
        assert!(RtnetlinkMessage::split(&[0xff; 40]).is_none());
    }

    #[test]
    fn this_machine_knows_its_own_loopback_address() {
        let found = list(&[]).unwrap();
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(
            found.own.iter().any(|own| own.contains(loopback)),
            "{found:?}"
        );
        assert!(
            found
                .routes
                .iter()
                .all(|route| route.side == RouteSide::Other)
        );
        drop(subscribe().unwrap());
    }
}
