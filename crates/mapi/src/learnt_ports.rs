//! Ports at which servers offer mailbox interfaces, as their endpoint mappers have answered.
//!
//! A port is known from an answer until the same server names another port for the interface, or
//! until it was neither named nor used for [`KNOWN_FOR`]. Without restarts servers keep their ports
//! for months, and each client asks as it starts. A port that has become another service's does no
//! harm: its flows let go at their first bytes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use vocab::Time;

use crate::epm::MappedPort;

/// A working day without a client.
const KNOWN_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Interfaces of servers that are remembered: three of some hundred servers.
const LEARNT_MAX: usize = 1_024;

/// The learnt ports (see the head of this file).
#[derive(Debug, Default)]
pub(crate) struct LearntPorts {
    ports: BTreeMap<(IpAddr, u8), LearntPort>,
}

#[derive(Clone, Copy, Debug)]
struct LearntPort {
    port: u16,
    until: Time,
}

impl LearntPorts {
    /// A server has answered that it offers these interfaces.
    pub(crate) fn learn(&mut self, now: Time, server: IpAddr, mapped: &[MappedPort]) {
        for mapped in mapped {
            let key = (server, mapped.interface);
            if self.ports.len() >= LEARNT_MAX && !self.ports.contains_key(&key) {
                self.forget_one(now);
            }
            let learnt = LearntPort {
                port: mapped.port,
                until: now + KNOWN_FOR,
            };
            self.ports.insert(key, learnt);
        }
    }

    /// Forgets what no longer holds, or else the port that holds for the shortest time.
    fn forget_one(&mut self, now: Time) {
        self.ports.retain(|_, learnt| learnt.until > now);
        if self.ports.len() >= LEARNT_MAX {
            let next = self.ports.iter().min_by_key(|(_, learnt)| learnt.until);
            if let Some(key) = next.map(|(key, _)| *key) {
                self.ports.remove(&key);
            }
        }
    }

    /// True if a client's connection to this address is for a mailbox interface.
    pub(crate) fn serve(&mut self, now: Time, server: SocketAddr) -> bool {
        let of_server = (server.ip(), u8::MIN)..=(server.ip(), u8::MAX);
        let mut is_known = false;
        for (_, learnt) in self.ports.range_mut(of_server) {
            if learnt.port == server.port() && learnt.until > now {
                learnt.until = now + KNOWN_FOR;
                is_known = true;
            }
        }
        is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(port: u16) -> [MappedPort; 1] {
        [MappedPort { interface: 0, port }]
    }

    #[test]
    fn ports_are_known_until_the_server_names_another() {
        let mut learnt = LearntPorts::default();
        let server: IpAddr = [198, 18, 0, 2].into();
        let at = |hours: u64| Time::ZERO + Duration::from_secs(hours * 3_600);
        learnt.learn(at(0), server, &mapped(6001));
        assert!(learnt.serve(at(23), (server, 6001).into()));
        assert!(learnt.serve(at(46), (server, 6001).into()), "it was used");
        assert!(!learnt.serve(at(46), (server, 6002).into()));
        let other: IpAddr = [198, 18, 0, 3].into();
        assert!(!learnt.serve(at(46), (other, 6001).into()));
        learnt.learn(at(47), server, &mapped(6002));
        assert!(!learnt.serve(at(47), (server, 6001).into()));
        assert!(learnt.serve(at(47), (server, 6002).into()));
        assert!(!learnt.serve(at(71), (server, 6002).into()));
    }

    #[test]
    fn learnt_ports_are_limited() {
        let mut learnt = LearntPorts::default();
        for host in 0..2_000u32 {
            let server = IpAddr::from(host.to_be_bytes());
            learnt.learn(
                Time::ZERO + Duration::from_secs(host.into()),
                server,
                &mapped(6001),
            );
        }
        assert_eq!(learnt.ports.len(), LEARNT_MAX);
        let last = IpAddr::from(1_999u32.to_be_bytes());
        assert!(learnt.serve(Time::ZERO, (last, 6001).into()));
    }
}
