//! The one task that changes rules. It knows the wanted state and establishes it.
//!
//! Waiting changes are made together. When nft refuses one (a flushed ruleset, or a table that the
//! watchdog removed), the whole table is installed again.
//!
//! It also reads the table's counters twice a second. When the packet filter of this machine drops
//! intercepted connections, the manager takes the family concerned out of the rules until a probe
//! passes ([`super::guard`] decides).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::{EngineInput, IpPrefix};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::counters::{CounterReader, PacketCounts};
use super::firewall_watch::{AddressFamily, PacketDirection};
use super::guard::{FirewallGuard, LOOK};
use super::held::{HeldSyns, HoldPorts};
use super::operator_rules::DroppingChain;
use super::probe::{self, ProbeFinding, ProbePlan};
use super::routes::PolicyRoute;
use super::rules::{FILTERED_FOR, InterceptRuleset, TableContents, rule_counter};
use super::surviving_flows::SurvivingReport;
use super::withdrawal::WithdrawalDecision;
use super::{operator_rules, remedy, remove_table, run_nft, table_name, tables_in_place};
use crate::config::{NodeConfig, SurvivingResets};
use crate::mailbox::LoopMailbox;

/// The interval at which missing rules are installed again: after a failure, or when another
/// program flushed them.
const RETRY: Duration = Duration::from_secs(5);
/// The time for which new connections with a client's address are not tried after they were found
/// to be dropped here; their peers get the failure at once.
const UNTRIED_FOR: Duration = Duration::from_secs(30);

/// In this time a suspicion that connections with a client's address are dropped is decided: the 2 s for which
/// the counters are watched, and two looks.
const JUDGED_WITHIN: Duration = Duration::from_secs(3);

/// A change of the interception.
#[derive(Debug)]
pub(crate) enum InterceptChange {
    /// Take connections to these and no others.
    Destinations(Vec<IpPrefix>),
    /// Bypass a server for a while. The engine bounds how many there are.
    Avoid {
        server: SocketAddr,
        lasting: Duration,
    },
    /// End the bypass of a server.
    Readmit { server: SocketAddr },
    /// Accept clients of a server before it answers, where the policy allows learning.
    AcceptAtOnce {
        server: SocketAddr,
        lasting: Duration,
    },
    /// Accept clients of a server after it has answered.
    AcceptAfterServer { server: SocketAddr },
    /// Bypass connections between these networks, and no others: clients' and servers'.
    BypassRoutes(Vec<(IpPrefix, IpPrefix)>),
    /// Never take connections to these: they are peers' own addresses.
    PeerAddresses(BTreeSet<IpAddr>),
    /// Leave these clients alone for a while.
    PassBy {
        clients: IpPrefix,
        lasting: Duration,
    },
    /// The configuration was read again.
    Configure(Box<NodeConfig>),
    /// The watchdog removed the table and requests its installation.
    Reinstall,
    /// Take everything away for good, then answer.
    Remove(oneshot::Sender<()>),
}

/// The state of the interception, for `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct InterceptReport {
    /// `off`, `starting`, `in place`, `failed: ...` or `removed`.
    pub(crate) state: String,
    /// The destinations that are intercepted now.
    pub(crate) destinations: Vec<String>,
    /// The number of servers that are bypassed now.
    pub(crate) avoided: usize,
    /// Networks between which connections are bypassed, because the servers' answers take another route.
    pub(crate) bypassed_routes: Vec<String>,
    /// The traffic that the packet filter of this machine drops now.
    pub(crate) blocked: Vec<BlockedTraffic>,
    /// 1 if a family is not intercepted because of that, else 0.
    pub(crate) withdrawn: u8,
    /// The families in which the packet filter has dropped the connections of some clients within
    /// the last minutes.
    pub(crate) partly_dropped: Vec<&'static str>,
    /// Connections handed to the listener since the rules were last put in place.
    pub(crate) syns_taken: u64,
    /// The number of those that the packet filter dropped and whose client repeated the SYN.
    pub(crate) syns_lost: u64,
    /// The operator's rules, in order.
    pub(crate) rules: Vec<RuleReport>,
    /// Connections that pass by until they are reset; `None` where none is.
    pub(crate) surviving: Option<SurvivingReport>,
}

/// Something that the packet filter of this machine drops.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct BlockedTraffic {
    /// `IPv4` or `IPv6`.
    pub(crate) family: &'static str,
    /// `input` or `output`.
    pub(crate) hook: &'static str,
    /// The blocked traffic.
    pub(crate) what: &'static str,
    /// The chains there that drop or reject.
    pub(crate) chains: Vec<String>,
    /// Alternative commands that would let it through.
    pub(crate) cures: Vec<String>,
}

/// One `[[intercept.rule]]`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct RuleReport {
    /// As in the configuration, counted from 1.
    pub(crate) rule: usize,
    /// `accept` or `bypass`.
    pub(crate) action: &'static str,
    /// SYNs that it decided about since the rules were last put in place.
    pub(crate) syns: u64,
}

/// The families for which connections with a client's address are dropped here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpoofedBlocked {
    ipv4: SpoofedFamily,
    ipv6: SpoofedFamily,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SpoofedFamily {
    /// They are known to be, and are not tried until then.
    until: Option<Instant>,
    /// Some have not got through so far, and none has.
    is_suspected: bool,
}

impl SpoofedBlocked {
    fn of(&self, client: SocketAddr) -> &SpoofedFamily {
        match client.ip().to_canonical() {
            IpAddr::V4(_) => &self.ipv4,
            IpAddr::V6(_) => &self.ipv6,
        }
    }

    fn family(&mut self, family: AddressFamily) -> &mut SpoofedFamily {
        match family {
            AddressFamily::Ipv4 => &mut self.ipv4,
            AddressFamily::Ipv6 => &mut self.ipv6,
        }
    }
}

impl InterceptReport {
    /// The report of a node that does not intercept.
    pub(crate) fn off() -> Self {
        Self {
            state: "off".to_owned(),
            ..Self::default()
        }
    }
}

/// Returns when connections that are opened with this client's address are dropped here.
pub(crate) async fn until_blocked(
    mut blocked: watch::Receiver<SpoofedBlocked>,
    client: SocketAddr,
) {
    let now = Instant::now();
    let is_blocked = |blocked: &SpoofedBlocked| {
        let until = blocked.of(client).until;
        until.is_some_and(|until| now < until)
    };
    if blocked.wait_for(is_blocked).await.is_err() {
        // Nobody looks any more, so nobody says that they are.
        std::future::pending().await
    }
}

/// Waits until it is known whether connections opened with this client's address are dropped here;
/// returns at once where nothing suggests it. A caller checks this before it blames a server or a
/// route. By then, more than two seconds after the first packet, several readings have seen its
/// result.
pub(crate) async fn until_judged(mut blocked: watch::Receiver<SpoofedBlocked>, client: SocketAddr) {
    let is_judged = |blocked: &SpoofedBlocked| !blocked.of(client).is_suspected;
    // Nobody looks any more, or the packets that would decide it do not come.
    let _ = tokio::time::timeout(JUDGED_WITHIN, blocked.wait_for(is_judged)).await;
}

struct InterceptManager {
    node: String,
    ruleset: InterceptRuleset,
    delivery: PolicyRoute,
    destinations: Vec<IpPrefix>,
    bypassed_routes: Vec<(IpPrefix, IpPrefix)>,
    peer_addresses: BTreeSet<IpAddr>,
    avoided: BTreeMap<SocketAddr, Instant>,
    reached: BTreeMap<SocketAddr, Instant>,
    hold: Option<HoldPorts>,
    in_place: bool,
    /// The last reported state of the rules.
    state: String,
    report: watch::Sender<InterceptReport>,
    plan: ProbePlan,
    held: HeldSyns,
    counters: Option<CounterReader>,
    counts: PacketCounts,
    guard: FirewallGuard,
    /// Ways of connections that this node opens with a client's address.
    blocked_opens: BTreeSet<(AddressFamily, PacketDirection)>,
    /// The advice about directions that are blocked.
    advice: BTreeMap<(AddressFamily, PacketDirection), FirewallAdvice>,
    /// The time at which connections of some clients were last found to be dropped.
    partly_dropped: BTreeMap<AddressFamily, Instant>,
    spoofed_blocked: watch::Sender<SpoofedBlocked>,
    probing: Option<ProbeTask>,
    /// The connections that pass by and are to be reset.
    resets: Option<SurvivingResets>,
}

/// The chains that drop packets, and the remedies.
#[derive(Clone, Debug, Default)]
struct FirewallAdvice {
    chains: Vec<String>,
    cures: Vec<String>,
}

/// A probe in progress.
type ProbeTask = JoinHandle<std::io::Result<Vec<ProbeFinding>>>;

/// Maintains the rules until they are removed or no sender is left.
pub(crate) async fn manage(
    config: NodeConfig,
    (hold, held): (Option<HoldPorts>, HeldSyns),
    mut changes: mpsc::UnboundedReceiver<InterceptChange>,
    report: watch::Sender<InterceptReport>,
    spoofed_blocked: watch::Sender<SpoofedBlocked>,
    mailbox: LoopMailbox,
) {
    let mut manager = InterceptManager::new(config, (hold, held), report, spoofed_blocked);
    manager.install().await;
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looked_at_rules = Instant::now();
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            findings = probed(&mut manager.probing) => {
                manager.judge(&findings).await;
                continue;
            }
            _ = look.tick() => {
                if looked_at_rules.elapsed() >= RETRY {
                    looked_at_rules = Instant::now();
                    if !manager.is_complete().await {
                        manager.install().await;
                    }
                }
                manager.look().await;
                continue;
            }
        };
        let Some(change) = change else { break };
        let mut waiting = vec![change];
        while let Ok(change) = changes.try_recv() {
            waiting.push(change);
        }
        let avoided = servers_to_avoid(&waiting);
        let removal = manager.apply(waiting).await;
        for server in avoided {
            // A loop that has ended waits for no answer.
            let _ = mailbox.input(EngineInput::Avoided { server }).await;
        }
        if let Some(done) = removal {
            manager.remove().await;
            let _ = done.send(());
            return;
        }
    }
    manager.remove().await;
}

/// Waits for the probe in progress, for ever if there is none.
async fn probed(probing: &mut Option<ProbeTask>) -> std::io::Result<Vec<ProbeFinding>> {
    let Some(task) = probing else {
        return std::future::pending().await;
    };
    let findings = task
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)));
    *probing = None;
    findings
}

fn servers_to_avoid(changes: &[InterceptChange]) -> Vec<SocketAddr> {
    let server = |change: &InterceptChange| match change {
        InterceptChange::Avoid { server, .. } => Some(*server),
        InterceptChange::Destinations(_)
        | InterceptChange::Readmit { .. }
        | InterceptChange::AcceptAtOnce { .. }
        | InterceptChange::AcceptAfterServer { .. }
        | InterceptChange::BypassRoutes(_)
        | InterceptChange::PeerAddresses(_)
        | InterceptChange::PassBy { .. }
        | InterceptChange::Configure(_)
        | InterceptChange::Reinstall
        | InterceptChange::Remove(_) => None,
    };
    changes.iter().filter_map(server).collect()
}

impl InterceptManager {
    fn new(
        config: NodeConfig,
        (hold, held): (Option<HoldPorts>, HeldSyns),
        report: watch::Sender<InterceptReport>,
        spoofed_blocked: watch::Sender<SpoofedBlocked>,
    ) -> Self {
        let ruleset = InterceptRuleset::new(&config, hold);
        let delivery = PolicyRoute::new(&config);
        let resets = config.intercept.reset_surviving.clone();
        held.surviving.configure(resets.clone());
        Self {
            delivery,
            resets,
            plan: ProbePlan::new(&config),
            node: config.name,
            ruleset,
            destinations: Vec::new(),
            bypassed_routes: Vec::new(),
            peer_addresses: BTreeSet::new(),
            avoided: BTreeMap::new(),
            reached: BTreeMap::new(),
            hold,
            held,
            in_place: false,
            state: "starting".to_owned(),
            report,
            counters: CounterReader::open()
                .inspect_err(|error| tracing::warn!(%error, "the counters of the interception rules cannot be read"))
                .ok(),
            counts: PacketCounts::new(),
            guard: FirewallGuard::default(),
            blocked_opens: BTreeSet::new(),
            advice: BTreeMap::new(),
            partly_dropped: BTreeMap::new(),
            spoofed_blocked,
            probing: None,
        }
    }

    /// Makes the changes. Returns the requester of the removal, if that is among them.
    async fn apply(&mut self, changes: Vec<InterceptChange>) -> Option<oneshot::Sender<()>> {
        let mut script = String::new();
        let mut whole = !self.in_place;
        for change in changes {
            match change {
                InterceptChange::Destinations(destinations) => {
                    if destinations != self.destinations {
                        self.destinations = destinations;
                        script.push_str(&self.ruleset.set_destinations(&self.effective()));
                    }
                }
                InterceptChange::Avoid { server, lasting } => {
                    let now = Instant::now();
                    self.avoided.retain(|_, until| *until > now);
                    self.avoided.insert(server, now + lasting);
                    script.push_str(&self.ruleset.avoid(server, lasting));
                }
                InterceptChange::Readmit { server } => {
                    if self.avoided.remove(&server).is_some() {
                        script.push_str(&self.ruleset.readmit(server));
                    }
                }
                InterceptChange::AcceptAtOnce { server, lasting } => {
                    let now = Instant::now();
                    self.reached.retain(|_, until| *until > now);
                    self.reached.insert(server, now + lasting);
                    script.push_str(&self.ruleset.accept_at_once(server, lasting));
                }
                InterceptChange::AcceptAfterServer { server } => {
                    if self.reached.remove(&server).is_some() {
                        script.push_str(&self.ruleset.accept_after_server(server));
                    }
                }
                InterceptChange::BypassRoutes(routes) => {
                    script.push_str(&self.ruleset.set_bypassed_routes(&routes));
                    self.bypassed_routes = routes;
                }
                InterceptChange::PeerAddresses(addresses) => {
                    if addresses != self.peer_addresses {
                        script.push_str(&self.ruleset.set_peer_addresses(&addresses));
                        self.peer_addresses = addresses;
                    }
                }
                // Forgotten when the table is put in place anew: the engine asks again.
                InterceptChange::PassBy { clients, lasting } => {
                    script.push_str(&self.ruleset.pass_by(clients, lasting));
                }
                InterceptChange::Configure(config) => {
                    let ruleset = InterceptRuleset::new(&config, self.hold);
                    whole |= ruleset != self.ruleset;
                    self.ruleset = ruleset;
                    self.plan = ProbePlan::new(&config);
                    self.resets.clone_from(&config.intercept.reset_surviving);
                    self.held.surviving.configure(self.resets.clone());
                    self.guard.try_now(Instant::now());
                    script.push_str(&self.ruleset.forget_filtered());
                    self.spoofed_blocked.send_replace(SpoofedBlocked::default());
                }
                InterceptChange::Reinstall => whole = true,
                InterceptChange::Remove(done) => return Some(done),
            }
        }
        if !whole && script.is_empty() {
            return None;
        }
        if !whole {
            match nft(script).await {
                Ok(()) => {
                    self.say("in place".to_owned());
                    return None;
                }
                Err(_) if self.is_removed().await => {
                    tracing::info!(
                        "the interception rules are missing, as after a time in which this node hung; the \
                         node installs all rules again"
                    );
                }
                Err(error) => {
                    tracing::warn!(%error, "an interception rule could not be changed; the node installs \
                                            all rules again");
                }
            }
        }
        self.install().await;
        None
    }

    /// Returns true if the table is known to be gone: the watchdog removes it while this node
    /// hangs.
    async fn is_removed(&self) -> bool {
        let table = table_name(&self.node);
        let tables = blocking(tables_in_place).await;
        tables.is_ok_and(|tables| !tables.contains(&table))
    }

    /// Returns true if the table, the rule and the route are still present.
    async fn is_complete(&self) -> bool {
        if !self.in_place {
            return false;
        }
        let (delivery, table) = (self.delivery, table_name(&self.node));
        let looked =
            blocking(move || Ok(tables_in_place()?.contains(&table) && delivery.is_in_place()))
                .await;
        match looked {
            Ok(true) => true,
            Ok(false) => {
                tracing::warn!(
                    "another program removed interception rules; the node installs them again"
                );
                false
            }
            Err(error) => {
                tracing::debug!(%error, "the interception rules could not be checked");
                true
            }
        }
    }

    async fn install(&mut self) {
        let now = Instant::now();
        let remaining = |servers: &BTreeMap<SocketAddr, Instant>| {
            let servers = servers.iter().filter(|(_, until)| **until > now);
            let servers = servers.map(|(server, until)| (*server, *until - now));
            servers.collect::<BTreeMap<_, _>>()
        };
        let script = self.ruleset.install(&TableContents {
            destinations: &self.effective(),
            bypassed_routes: &self.bypassed_routes,
            peer_addresses: self.peer_addresses.clone(),
            avoided: remaining(&self.avoided),
            reached: remaining(&self.reached),
        });
        let delivery = self.delivery;
        let installed = blocking(move || {
            delivery.set_up()?;
            run_nft(&script)
        })
        .await;
        match installed {
            Ok(()) => {
                if !self.in_place {
                    tracing::info!("the interception rules are installed");
                }
                self.in_place = true;
                self.say("in place".to_owned());
            }
            Err(error) => {
                tracing::error!(%error, "the interception rules cannot be installed; the node bypasses all connections");
                self.in_place = false;
                self.say(format!("failed: {error}"));
            }
        }
    }

    async fn remove(&mut self) {
        let (delivery, node) = (self.delivery, self.node.clone());
        let removed = blocking(move || {
            remove_table(&node)?;
            // Another node here may deliver by the same mark: its rule and route are these.
            if tables_in_place()?.is_empty() {
                delivery.remove();
            }
            Ok(())
        })
        .await;
        if let Err(error) = removed {
            tracing::error!(%error, "the interception rules could not be removed");
        }
        self.destinations.clear();
        self.say("removed".to_owned());
    }

    /// The destinations without those of a family that is withdrawn.
    fn effective(&self) -> Vec<IpPrefix> {
        let is_taken = |prefix: &&IpPrefix| {
            let family = match prefix.address().is_ipv4() {
                true => AddressFamily::Ipv4,
                false => AddressFamily::Ipv6,
            };
            self.guard.withdrawn(family).is_none()
        };
        self.destinations.iter().filter(is_taken).copied().collect()
    }

    /// Reads the kernel's counters.
    async fn look(&mut self) {
        let now = Instant::now();
        let table = table_name(&self.node);
        if self.in_place
            && let Some(counters) = &mut self.counters
        {
            match counters.read(&table) {
                Ok(counts) => self.counts = counts,
                Err(error) => {
                    tracing::debug!(%error, "the counters of the interception rules could not be read")
                }
            }
        }
        let looked = self.guard.look(now, &self.counts);
        for (family, decision) in looked.decisions {
            self.decided(family, decision).await;
        }
        for (family, way) in looked.blocked_opens {
            self.opens_blocked(now, family, way).await;
        }
        // After what was found above: nobody sees a suspicion end before its verdict.
        self.spoofed_blocked.send_if_modified(|blocked| {
            let before = *blocked;
            for family in AddressFamily::ALL {
                let of_opens = [PacketDirection::NodeToServer, PacketDirection::ServerToNode]
                    .map(|way| (family, way));
                let mut suspected = looked.suspected.iter();
                blocked.family(family).is_suspected = suspected.any(|way| of_opens.contains(way));
            }
            *blocked != before
        });
        for way in looked.passing {
            if self.blocked_opens.remove(&way) {
                tracing::info!(
                    family = way.0.name(),
                    "the packet filter of this machine allows connections from clients' addresses again"
                );
            }
        }
        self.tell();
    }

    async fn judge(&mut self, findings: &std::io::Result<Vec<ProbeFinding>>) {
        if let Err(error) = findings {
            tracing::debug!(%error, "no probe could be sent through the packet filter");
        }
        for (family, decision) in self.guard.probed(Instant::now(), findings) {
            self.decided(family, decision).await;
        }
        self.tell();
    }

    async fn decided(&mut self, family: AddressFamily, decision: WithdrawalDecision) {
        match decision {
            WithdrawalDecision::Nothing => {}
            WithdrawalDecision::Probe => {
                if self.probing.is_none() {
                    let plan = self.plan.clone();
                    self.probing = Some(tokio::task::spawn_blocking(move || probe::probe(&plan)));
                }
            }
            WithdrawalDecision::Withdraw(way) => {
                self.set_destinations().await;
                self.held.withdraw(family);
                self.complain(
                    family,
                    way,
                    "the packet filter of this machine drops intercepted connections; the node does not \
                     intercept connections until the packet filter allows them",
                )
                .await;
            }
            WithdrawalDecision::Restore => {
                self.held.restore(family);
                self.set_destinations().await;
                tracing::info!(
                    family = family.name(),
                    "the packet filter of this machine allows intercepted connections; the node intercepts \
                     connections again"
                );
            }
            WithdrawalDecision::Partial(way) => {
                self.partly_dropped.insert(family, Instant::now());
                tracing::warn!(
                    family = family.name(),
                    hook = way.hook(),
                    "the packet filter of this machine drops intercepted connections of some clients; the \
                     node bypasses these clients for five minutes"
                );
            }
        }
    }

    /// Connections that this node opens with a client's address are dropped.
    async fn opens_blocked(&mut self, now: Instant, family: AddressFamily, way: PacketDirection) {
        let until = Some(now + UNTRIED_FOR);
        self.spoofed_blocked
            .send_modify(|blocked| blocked.family(family).until = until);
        if self.blocked_opens.insert((family, way)) {
            self.complain(
                family,
                way,
                "the packet filter of this machine drops connections that the node opens from a client's \
                 address; the node reports this failure to its peers",
            )
            .await;
        }
    }

    /// Logs the dropped traffic, the hook, and the remedy.
    async fn complain(&mut self, family: AddressFamily, way: PacketDirection, what: &'static str) {
        let chains = blocking(move || Ok(operator_rules::dropping_chains(way.hook())))
            .await
            .unwrap_or_default();
        let names: Vec<String> = chains.iter().map(ToString::to_string).collect();
        tracing::error!(
            family = family.name(),
            hook = way.hook(),
            chains = names.join(", "),
            "{what}"
        );
        let places: Vec<String> = chains.iter().filter_map(DroppingChain::nft_place).collect();
        let destinations = &self.plan.destinations;
        let commands = remedy::commands(way, family, self.ruleset.mark(), destinations, &places);
        for command in &commands {
            tracing::error!(
                family = family.name(),
                command,
                "this command allows the connections"
            );
        }
        let advice = FirewallAdvice {
            chains: names,
            cures: commands,
        };
        self.advice.insert((family, way), advice);
    }

    async fn set_destinations(&mut self) {
        let mut script = self.ruleset.set_destinations(&self.effective());
        script.push_str(&self.ruleset.forget_filtered());
        if self.in_place && nft(script).await.is_err() {
            self.install().await;
        }
    }

    fn say(&mut self, state: String) {
        self.state = state;
        self.tell();
    }

    /// Publishes the state for `status`.
    fn tell(&self) {
        let report = self.reported();
        self.report.send_if_modified(|shown| {
            let is_news = *shown != report;
            *shown = report;
            is_news
        });
    }

    fn reported(&self) -> InterceptReport {
        let now = Instant::now();
        let mut blocked = Vec::new();
        let mut withdrawn = 0;
        let mut state = self.state.clone();
        for family in AddressFamily::ALL {
            if let Some(way) = self.guard.withdrawn(family) {
                blocked.push((family, way));
                withdrawn = 1;
                if state == "in place" {
                    state = "withdrawn".to_owned();
                }
                let _ = write!(
                    state,
                    "; the packet filter drops {} at hook {}",
                    family.name(),
                    way.hook()
                );
            }
        }
        blocked.extend(self.blocked_opens.iter().copied());
        let count = |name: &str| self.counts.get(name).copied().unwrap_or(0);
        let both = |name: &str| count(&format!("{name}4")) + count(&format!("{name}6"));
        InterceptReport {
            state,
            destinations: self.effective().iter().map(ToString::to_string).collect(),
            avoided: self.avoided.values().filter(|until| **until > now).count(),
            bypassed_routes: self
                .bypassed_routes
                .iter()
                .map(|(clients, servers)| format!("{clients} to {servers}"))
                .collect(),
            blocked: blocked
                .into_iter()
                .map(|(family, way)| {
                    let advice = self.advice.get(&(family, way)).cloned();
                    let FirewallAdvice { chains, cures } = advice.unwrap_or_default();
                    BlockedTraffic {
                        family: family.name(),
                        hook: way.hook(),
                        what: way.what(),
                        chains,
                        cures,
                    }
                })
                .collect(),
            withdrawn,
            partly_dropped: self
                .partly_dropped
                .iter()
                .filter(|(_, seen)| seen.elapsed() < FILTERED_FOR)
                .map(|(family, _)| family.name())
                .collect(),
            syns_taken: both("syns_taken"),
            syns_lost: both("syns_lost"),
            rules: self
                .ruleset
                .rules()
                .iter()
                .enumerate()
                .map(|(index, rule)| RuleReport {
                    rule: index + 1,
                    action: rule.action.name(),
                    syns: count(&rule_counter(index + 1)),
                })
                .collect(),
            surviving: (self.resets.as_ref()).map(|_| self.held.surviving.report()),
        }
    }
}

async fn nft(script: String) -> std::io::Result<()> {
    blocking(move || run_nft(&script)).await
}

/// Runs tools on a thread where waiting delays no other work.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
