//! Detects from the kernel's counters that the rules of this machine drop intercepted packets.
//!
//! ```text
//!   Healthy ── packets enter, none passes ──► Suspected { since }
//!      ▲                                          │ one passes ──► Healthy
//!      │                                          │ for 2 s none, and a sender has repeated
//!      │                                          ▼ its packet
//!      └──────── forget() after a trial ────── fault
//! ```
//!
//! Each direction through the machine has two counters, one before the rules of others and one
//! behind them. Only those rules and the routing decision lie between the two, so a SYN flood, a
//! client that vanishes and a full backlog look the same to both. A direction is at fault only when
//! *nothing* passes: rules that drop single hosts are no fault of the direction.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::counters::PacketCounts;

/// For so long nothing passes before a way counts as blocked.
const BLOCKED_FOR: Duration = Duration::from_secs(2);
/// A packet that was lost this long ago, and was never repeated, is no sign of anything.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// A way of packets through this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PacketDirection {
    /// A client's SYN from the LAN side to the listener: hook `input`.
    ClientToNode,
    /// The listener's SYN-ACK to the client: hook `output`.
    NodeToClient,
    /// The SYN that this node sends to a server with the client's address: hook `output`.
    NodeToServer,
    /// The server's SYN-ACK to the client's address: hook `input`.
    ServerToNode,
}

impl PacketDirection {
    const ALL: [Self; 4] = [
        Self::ClientToNode,
        Self::NodeToClient,
        Self::NodeToServer,
        Self::ServerToNode,
    ];

    /// The names of the counters before and behind the rules, and of the one that counts repeated
    /// packets where the one before does not.
    fn counters(self) -> (&'static str, &'static str, Option<&'static str>) {
        match self {
            Self::ClientToNode => ("syns_taken", "syns_arrived", Some("syns_lost")),
            Self::NodeToClient => ("answers_made", "answers_left", None),
            Self::NodeToServer => ("opens_made", "opens_left", None),
            Self::ServerToNode => ("replies_came", "replies_arrived", None),
        }
    }

    /// The hook whose rules these packets go through.
    pub(crate) fn hook(self) -> &'static str {
        match self {
            Self::ClientToNode | Self::ServerToNode => "input",
            Self::NodeToClient | Self::NodeToServer => "output",
        }
    }

    /// The blocked traffic, as text for the log and `status`.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::ClientToNode => "intercepted connections do not reach the node",
            Self::NodeToClient => "the node's answers do not reach the clients",
            Self::NodeToServer => "connections from a client's address do not reach the servers",
            Self::ServerToNode => {
                "servers' answers to connections from a client's address do not reach the node"
            }
        }
    }
}

/// An address family of a table of family inet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AddressFamily {
    Ipv4,
    Ipv6,
}

impl AddressFamily {
    pub(crate) const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// The family of a packet that has this address.
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Self::Ipv4 => 4,
            Self::Ipv6 => 6,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }
}

/// The counts of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct DirectionCounts {
    entered: u64,
    passed: u64,
    repeated: u64,
    suspected: Option<BlockSuspicion>,
}

#[derive(Clone, Copy, Debug)]
struct BlockSuspicion {
    since: Instant,
    entered: u64,
    repeated: u64,
}

impl DirectionCounts {
    /// Takes the counters' new values.
    fn observe(
        &mut self,
        now: Instant,
        entered: u64,
        passed: u64,
        repeated: u64,
    ) -> DirectionVerdict {
        let started_anew = entered < self.entered || passed < self.passed;
        let news = entered > self.entered || repeated > self.repeated;
        let passes = !started_anew && passed > self.passed;
        if started_anew || passes {
            self.suspected = None;
        } else if news && self.suspected.is_none() {
            self.suspected = Some(BlockSuspicion {
                since: now,
                entered: self.entered,
                repeated: self.repeated,
            });
        }
        (self.entered, self.passed, self.repeated) = (entered, passed, repeated);
        let Some(suspicion) = self.suspected else {
            return match passes {
                true => DirectionVerdict::Passes,
                false => DirectionVerdict::Unknown,
            };
        };
        let was_repeated = repeated > suspicion.repeated || entered >= suspicion.entered + 2;
        let elapsed = now.duration_since(suspicion.since);
        if elapsed >= FORGOTTEN_AFTER && !was_repeated {
            self.suspected = None;
        }
        match was_repeated && elapsed >= BLOCKED_FOR {
            true => DirectionVerdict::Blocked,
            false => DirectionVerdict::Unknown,
        }
    }
}

/// The verdict on one direction after one reading of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectionVerdict {
    Passes,
    Unknown,
    Blocked,
}

/// The findings of one reading of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CounterObservation {
    /// Ways on which nothing has passed for a while.
    pub(super) blocked: Vec<(AddressFamily, PacketDirection)>,
    /// Ways on which nothing has passed since packets entered, not yet for long enough.
    pub(super) suspected: Vec<(AddressFamily, PacketDirection)>,
    /// Ways on which something has passed since the last look.
    pub(super) passing: Vec<(AddressFamily, PacketDirection)>,
}

/// All ways of both families.
#[derive(Debug, Default)]
pub(super) struct FirewallWatch {
    passages: [[DirectionCounts; 4]; 2],
}

impl FirewallWatch {
    /// Takes counters. A way stays blocked until something passes or it is forgotten.
    pub(super) fn observe(&mut self, now: Instant, counts: &PacketCounts) -> CounterObservation {
        let mut observation = CounterObservation::default();
        for (family, passages) in AddressFamily::ALL.into_iter().zip(&mut self.passages) {
            let count = |name: &str| {
                let name = format!("{name}{}", family.number());
                counts.get(&name).copied().unwrap_or(0)
            };
            for (way, passage) in PacketDirection::ALL.into_iter().zip(passages) {
                let (entered, passed, repeated) = way.counters();
                let repeated = repeated.map_or(0, count);
                match passage.observe(now, count(entered), count(passed), repeated) {
                    DirectionVerdict::Passes => observation.passing.push((family, way)),
                    DirectionVerdict::Unknown if passage.suspected.is_some() => {
                        observation.suspected.push((family, way));
                    }
                    DirectionVerdict::Unknown => {}
                    DirectionVerdict::Blocked => observation.blocked.push((family, way)),
                }
            }
        }
        observation
    }

    /// Restarts the watch of one direction after a change.
    pub(super) fn forget(&mut self, family: AddressFamily, way: PacketDirection) {
        let family = AddressFamily::ALL.iter().position(|one| *one == family);
        let way = PacketDirection::ALL.iter().position(|one| *one == way);
        if let (Some(family), Some(way)) = (family, way) {
            self.passages[family][way].suspected = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of IPv4 at milliseconds; when the way is first found blocked.
    fn first_blocked(way: PacketDirection, steps: &[(u64, u64, u64, u64)]) -> Option<u64> {
        let start = Instant::now();
        let mut watch = FirewallWatch::default();
        let (entered, passed, repeated) = way.counters();
        for &(ms, in_count, out_count, again) in steps {
            let mut counts = PacketCounts::new();
            counts.insert(format!("{entered}4"), in_count);
            counts.insert(format!("{passed}4"), out_count);
            if let Some(repeated) = repeated {
                counts.insert(format!("{repeated}4"), again);
            }
            let now = start + Duration::from_millis(ms);
            let blocked = watch.observe(now, &counts).blocked;
            if !blocked.is_empty() {
                assert_eq!(blocked, [(AddressFamily::Ipv4, way)]);
                return Some(ms);
            }
        }
        None
    }

    const SYNS: PacketDirection = PacketDirection::ClientToNode;

    #[test]
    fn no_arrival_for_two_seconds_is_a_fault() {
        let steps = [
            (0, 5, 5, 0),
            (500, 6, 5, 0),
            (1_500, 6, 5, 1),
            (2_000, 6, 5, 1),
            (2_500, 6, 5, 1),
        ];
        assert_eq!(first_blocked(SYNS, &steps), Some(2_500));
    }

    #[test]
    fn suspicion_begins_with_the_first_blocked_packet() {
        let start = Instant::now();
        let mut watch = FirewallWatch::default();
        let mut suspected = |ms: u64, came: u64, arrived: u64| {
            let counts = [("replies_came4", came), ("replies_arrived4", arrived)];
            let counts = counts.map(|(name, count)| (name.to_owned(), count));
            let now = start + Duration::from_millis(ms);
            let observation = watch.observe(now, &PacketCounts::from(counts));
            !observation.suspected.is_empty()
        };
        assert!(!suspected(0, 3, 3));
        assert!(suspected(500, 4, 3));
        assert!(suspected(1_000, 5, 3));
        assert!(!suspected(1_500, 6, 4));
        assert!(!suspected(2_000, 6, 4));
    }

    #[test]
    fn a_client_that_vanishes_is_no_fault() {
        let steps: Vec<_> = (0..300).map(|step| (step * 500, 1, 0, 0)).collect();
        assert_eq!(first_blocked(SYNS, &steps), None);
    }

    #[test]
    fn two_vanishing_clients_are_no_fault() {
        let steps: Vec<_> = (0..300)
            .map(|step| (step * 500, 1 + step / 125, 0, 0))
            .collect();
        assert_eq!(first_blocked(SYNS, &steps), None);
    }

    #[test]
    fn a_flood_whose_syns_arrive_is_no_fault() {
        let steps: Vec<_> = (0..40)
            .map(|step| (step * 500, step * 9_000, step * 9_000, 0))
            .collect();
        assert_eq!(first_blocked(SYNS, &steps), None);
    }

    #[test]
    fn rules_for_some_clients_are_no_fault() {
        let steps: Vec<_> = (0..40)
            .map(|step| (step * 500, step * 10, step, step * 5))
            .collect();
        assert_eq!(first_blocked(SYNS, &steps), None);
    }

    #[test]
    fn counters_that_begin_anew_clear_a_suspicion() {
        let steps = [
            (0, 5, 5, 0),
            (500, 9, 5, 3),
            (1_500, 0, 0, 0),
            (4_000, 0, 0, 0),
        ];
        assert_eq!(first_blocked(SYNS, &steps), None);
    }

    #[test]
    fn answers_that_never_leave_are_a_fault() {
        let way = PacketDirection::NodeToClient;
        let steps = [
            (0, 0, 0, 0),
            (500, 1, 0, 0),
            (1_500, 2, 0, 0),
            (2_500, 2, 0, 0),
        ];
        assert_eq!(first_blocked(way, &steps), Some(2_500));
    }
}
