//! The guard in virtual time, with a model of the kernel: clients, rules and a packet filter that begins to drop.

use super::super::probe::ProbeOutcome;
use super::*;

/// Within this time after the first connection that was dropped, new connections work directly.
const DIRECT_WITHIN: Duration = Duration::from_secs(5);
/// The time that remains for `nft` to change the rules, on a busy machine.
const CHANGE_OF_RULES: Duration = Duration::from_millis(500);
/// The delay of readings behind their due time.
const LATE: Duration = Duration::from_millis(40);
const STEP: Duration = Duration::from_millis(10);
/// Linux repeats a SYN after these times (tcp(7), `tcp_syn_retries`: 1 s, doubled).
const REPEATED_AFTER: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(3),
];

/// The finding of the probe of a suspicion, and the time that it takes; `None` for never.
#[derive(Clone, Copy, Debug)]
struct ScriptedProbe {
    takes: Option<Duration>,
    outcome: Option<ProbeOutcome>,
}

/// The kernel's part: which SYNs it counts and where.
#[derive(Debug)]
struct KernelModel {
    way: PacketDirection,
    /// The times at which clients send SYNs after the filter has begun to drop, the last first;
    /// true for a client's first SYN.
    syns: Vec<(Duration, bool)>,
    counts: PacketCounts,
}

impl KernelModel {
    /// Clients that send their first SYNs at these times.
    fn new(way: PacketDirection, clients: &[Duration]) -> Self {
        let repeated =
            |first: &Duration| REPEATED_AFTER.map(|after| (*first + after, after.is_zero()));
        let mut syns: Vec<_> = clients.iter().flat_map(repeated).collect();
        syns.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        Self {
            way,
            syns,
            counts: PacketCounts::new(),
        }
    }

    /// Counts the packets until then. Where the filter drops SYNs at `input`, a repeated one is not
    /// intercepted again, and only counted (`syns_lost`); where it drops answers, each SYN is
    /// answered again.
    fn advance(&mut self, until: Duration) {
        let mut add = |name: &str, packets: u64| {
            *self.counts.entry(name.to_owned()).or_default() += packets;
        };
        while let Some((_, is_first)) = self.syns.pop_if(|(at, _)| *at < until) {
            match (self.way, is_first) {
                (PacketDirection::ClientToNode, true) => add("syns_taken4", 1),
                (PacketDirection::ClientToNode, false) => add("syns_lost4", 1),
                _ => {
                    add("syns_taken4", u64::from(is_first));
                    add("syns_arrived4", u64::from(is_first));
                    add("answers_made4", 1);
                }
            }
        }
    }
}

fn findings(outcome: Option<ProbeOutcome>) -> io::Result<Vec<ProbeFinding>> {
    let Some(outcome) = outcome else {
        return Err(io::Error::other("tc is not installed"));
    };
    Ok(vec![ProbeFinding {
        interface: "lan0".to_owned(),
        client: "198.18.1.254".parse().unwrap(),
        server: "198.18.2.1:445".parse().unwrap(),
        outcome,
    }])
}

/// Returns the time of withdrawal of interception after the first dropped SYN; `None` if it takes
/// more than ten seconds. The first reading comes `phase` after that SYN.
fn withdrawn_after(
    mut kernel: KernelModel,
    phase: Duration,
    probe: ScriptedProbe,
) -> Option<Duration> {
    let start = Instant::now();
    let mut guard = FirewallGuard::default();
    // What passed before.
    for name in [
        "syns_taken4",
        "syns_arrived4",
        "answers_made4",
        "answers_left4",
    ] {
        kernel.counts.insert(name.to_owned(), 1_000);
    }
    guard.look(start - LOOK, &kernel.counts);
    let mut next_look = phase;
    let mut probe_ends = None;
    let mut elapsed = Duration::ZERO;
    while elapsed < Duration::from_secs(10) {
        elapsed += STEP;
        kernel.advance(elapsed);
        let now = start + elapsed;
        let mut decisions = Vec::new();
        if elapsed >= next_look {
            next_look = elapsed + LOOK + LATE;
            decisions = guard.look(now, &kernel.counts).decisions;
        }
        if probe_ends.is_some_and(|ends| elapsed >= ends) {
            probe_ends = None;
            decisions.extend(guard.probed(now, &findings(probe.outcome)));
        }
        for (family, decision) in decisions {
            assert_eq!(family, AddressFamily::Ipv4);
            match decision {
                WithdrawalDecision::Probe => probe_ends = probe.takes.map(|takes| elapsed + takes),
                WithdrawalDecision::Withdraw(way) => {
                    assert_eq!(way, kernel.way);
                    assert_eq!(guard.withdrawn(AddressFamily::Ipv4), Some(way));
                    return Some(elapsed);
                }
                WithdrawalDecision::Nothing
                | WithdrawalDecision::Restore
                | WithdrawalDecision::Partial(_) => return None,
            }
        }
    }
    None
}

fn kernels(way: PacketDirection) -> Vec<KernelModel> {
    let clients = |milliseconds: &[u64]| {
        let clients = milliseconds.iter().copied().map(Duration::from_millis);
        clients.collect::<Vec<_>>()
    };
    let every = |milliseconds: u64| {
        let count = 10_000 / milliseconds;
        (0..count).map(move |number| Duration::from_millis(number * milliseconds))
    };
    [
        // One client, that of a quiet network; two; a busy gateway.
        clients(&[0]),
        clients(&[0, 1_900]),
        every(70).collect(),
        every(10).collect(),
    ]
    .map(|clients| KernelModel::new(way, &clients))
    .into()
}

fn phases() -> impl Iterator<Item = Duration> {
    (0..50).map(|number| STEP * number)
}

#[test]
fn blocked_direction_goes_direct_within_five_seconds() {
    let lost = Some(ProbeOutcome::Lost(PacketDirection::ClientToNode));
    let milliseconds = |takes| Some(Duration::from_millis(takes));
    let probes = [
        (milliseconds(600), lost),
        (milliseconds(1_400), lost),
        // Its tools take long, or hang.
        (milliseconds(4_000), lost),
        (None, None),
        // It cannot be sent.
        (milliseconds(20), None),
    ];
    for way in [PacketDirection::ClientToNode, PacketDirection::NodeToClient] {
        for phase in phases() {
            for (takes, outcome) in probes {
                for kernel in kernels(way) {
                    let probe = ScriptedProbe { takes, outcome };
                    let told = format!("{way:?}, {phase:?}, {probe:?}, {}", kernel.syns.len());
                    let after = withdrawn_after(kernel, phase, probe);
                    let after = after.unwrap_or_else(|| panic!("never withdrawn: {told}"));
                    assert!(
                        after + CHANGE_OF_RULES <= DIRECT_WITHIN,
                        "{after:?}: {told}"
                    );
                    // For two seconds it may be a client that vanished.
                    assert!(after >= Duration::from_secs(2), "{after:?}: {told}");
                }
            }
        }
    }
}

#[test]
fn a_probe_that_passes_in_time_withdraws_nothing() {
    for phase in phases() {
        for kernel in kernels(PacketDirection::ClientToNode) {
            let probe = ScriptedProbe {
                takes: Some(Duration::from_millis(1_000)),
                outcome: Some(ProbeOutcome::Passed),
            };
            assert_eq!(withdrawn_after(kernel, phase, probe), None);
        }
    }
}

#[test]
fn late_probe_success_restores_interception() {
    let mut guard = FirewallGuard::default();
    let mut now = Instant::now();
    let mut counts = PacketCounts::new();
    counts.insert("syns_taken4".to_owned(), 1);
    guard.look(now, &counts);
    counts.insert("syns_taken4".to_owned(), 3);
    let mut last = Vec::new();
    for _ in 0..10 {
        now += LOOK;
        last.extend(guard.look(now, &counts).decisions);
    }
    let withdrawn = WithdrawalDecision::Withdraw(PacketDirection::ClientToNode);
    let v4 = AddressFamily::Ipv4;
    assert_eq!(last, [(v4, WithdrawalDecision::Probe), (v4, withdrawn)]);
    let late = guard.probed(now, &findings(Some(ProbeOutcome::Passed)));
    assert_eq!(late, [(v4, WithdrawalDecision::Restore)]);
    assert_eq!(guard.withdrawn(v4), None);
}

#[test]
fn reload_during_a_lost_probe_sends_another() {
    let start = Instant::now();
    let lost = findings(Some(ProbeOutcome::Lost(PacketDirection::NodeToClient)));
    let mut guard = FirewallGuard::default();
    let probe = vec![(AddressFamily::Ipv4, WithdrawalDecision::Probe)];
    guard
        .withdrawals
        .blocked(start, AddressFamily::Ipv4, PacketDirection::NodeToClient);
    guard.probed(start, &lost);
    let counts = PacketCounts::new();
    let due = start + Duration::from_secs(10);
    assert_eq!(guard.look(due, &counts).decisions, probe);
    // The operator cures the filter and reloads while it is under way.
    guard.try_now(due);
    assert_eq!(guard.probed(due + STEP, &lost), []);
    let next = due + LOOK;
    assert_eq!(guard.look(next, &counts).decisions, probe);
    let passed = findings(Some(ProbeOutcome::Passed));
    let restored = [(AddressFamily::Ipv4, WithdrawalDecision::Restore)];
    assert_eq!(guard.probed(next, &passed), restored);
}
