//! The one task that changes rules: it knows what should be in place and makes it so.
//!
//! Changes that wait are made together. When nft refuses one (someone flushed the ruleset, or
//! the watchdog took it away), the whole table is put in place again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use engine::{Input, Prefix};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::held::HoldPorts;
use super::routes::Delivery;
use super::rules::{Contents, MARK_MASK, Ruleset};
use super::{remove_table, run_nft, table_name, tables_in_place};
use crate::config::NodeConfig;
use crate::mailbox::Mailbox;

/// Rules that are missing are put in place again this often: after a failure, or when somebody
/// else flushed them.
const RETRY: Duration = Duration::from_secs(5);

/// What is to be different.
#[derive(Debug)]
pub(crate) enum Change {
    /// Take connections to these and no others.
    Destinations(Vec<Prefix>),
    /// Bypass a server for a while. The engine bounds how many there are.
    Avoid {
        server: SocketAddr,
        lasting: Duration,
    },
    /// End the bypass of a server.
    Readmit { server: SocketAddr },
    /// Accept clients of a server before it is asked, where the policy says to learn.
    AcceptAtOnce {
        server: SocketAddr,
        lasting: Duration,
    },
    /// Accept clients of a server after it was asked.
    AcceptAfterServer { server: SocketAddr },
    /// Bypass connections between these networks, and no others: clients' and servers'.
    BypassRoutes(Vec<(Prefix, Prefix)>),
    /// Never take connections to these: they are peers' own addresses.
    PeerAddresses(BTreeSet<IpAddr>),
    /// Leave these clients alone for a while.
    PassBy { clients: Prefix, lasting: Duration },
    /// The configuration was read again.
    Configure(Box<NodeConfig>),
    /// The watchdog took the table away and asks for it again.
    Reinstall,
    /// Take everything away for good, then answer.
    Remove(oneshot::Sender<()>),
}

/// What is in place, for `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Report {
    /// `off`, `starting`, `in place`, `failed: ...` or `removed`.
    pub(crate) state: String,
    /// What is taken now.
    pub(crate) destinations: Vec<String>,
    /// How many servers are left alone now.
    pub(crate) avoided: usize,
    /// Networks between which connections are bypassed, because the servers' answers take another route.
    pub(crate) bypassed_routes: Vec<String>,
}

impl Report {
    /// Of a node that does not intercept.
    pub(crate) fn off() -> Self {
        Self {
            state: "off".to_owned(),
            ..Self::default()
        }
    }
}

struct Manager {
    node: String,
    ruleset: Ruleset,
    delivery: Delivery,
    destinations: Vec<Prefix>,
    bypassed_routes: Vec<(Prefix, Prefix)>,
    peer_addresses: BTreeSet<IpAddr>,
    avoided: BTreeMap<SocketAddr, Instant>,
    reached: BTreeMap<SocketAddr, Instant>,
    hold: Option<HoldPorts>,
    in_place: bool,
    report: watch::Sender<Report>,
}

/// Keeps the rules as they should be until they are removed or nobody can change them.
pub(crate) async fn manage(
    config: NodeConfig,
    hold: Option<HoldPorts>,
    mut changes: mpsc::UnboundedReceiver<Change>,
    report: watch::Sender<Report>,
    mailbox: Mailbox,
) {
    let ruleset = Ruleset::new(&config, hold);
    let mut manager = Manager {
        delivery: Delivery {
            mark: ruleset.mark(),
            mask: MARK_MASK,
            table: config.intercept.route_table,
        },
        node: config.name,
        ruleset,
        destinations: Vec::new(),
        bypassed_routes: Vec::new(),
        peer_addresses: BTreeSet::new(),
        avoided: BTreeMap::new(),
        reached: BTreeMap::new(),
        hold,
        in_place: false,
        report,
    };
    manager.install().await;
    loop {
        let change = match tokio::time::timeout(RETRY, changes.recv()).await {
            Ok(change) => change,
            Err(_) => {
                if !manager.is_complete().await {
                    manager.install().await;
                }
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
            let _ = mailbox.input(Input::Avoided { server }).await;
        }
        if let Some(done) = removal {
            manager.remove().await;
            let _ = done.send(());
            return;
        }
    }
    manager.remove().await;
}

fn servers_to_avoid(changes: &[Change]) -> Vec<SocketAddr> {
    let server = |change: &Change| match change {
        Change::Avoid { server, .. } => Some(*server),
        Change::Destinations(_)
        | Change::Readmit { .. }
        | Change::AcceptAtOnce { .. }
        | Change::AcceptAfterServer { .. }
        | Change::BypassRoutes(_)
        | Change::PeerAddresses(_)
        | Change::PassBy { .. }
        | Change::Configure(_)
        | Change::Reinstall
        | Change::Remove(_) => None,
    };
    changes.iter().filter_map(server).collect()
}

impl Manager {
    /// Makes the changes; returns who waits for the removal, if that is among them.
    async fn apply(&mut self, changes: Vec<Change>) -> Option<oneshot::Sender<()>> {
        let mut script = String::new();
        let mut whole = !self.in_place;
        for change in changes {
            match change {
                Change::Destinations(destinations) => {
                    if destinations != self.destinations {
                        script.push_str(&self.ruleset.set_destinations(&destinations));
                        self.destinations = destinations;
                    }
                }
                Change::Avoid { server, lasting } => {
                    let now = Instant::now();
                    self.avoided.retain(|_, until| *until > now);
                    self.avoided.insert(server, now + lasting);
                    script.push_str(&self.ruleset.avoid(server, lasting));
                }
                Change::Readmit { server } => {
                    if self.avoided.remove(&server).is_some() {
                        script.push_str(&self.ruleset.readmit(server));
                    }
                }
                Change::AcceptAtOnce { server, lasting } => {
                    let now = Instant::now();
                    self.reached.retain(|_, until| *until > now);
                    self.reached.insert(server, now + lasting);
                    script.push_str(&self.ruleset.accept_at_once(server, lasting));
                }
                Change::AcceptAfterServer { server } => {
                    if self.reached.remove(&server).is_some() {
                        script.push_str(&self.ruleset.accept_after_server(server));
                    }
                }
                Change::BypassRoutes(routes) => {
                    script.push_str(&self.ruleset.set_bypassed_routes(&routes));
                    self.bypassed_routes = routes;
                }
                Change::PeerAddresses(addresses) => {
                    if addresses != self.peer_addresses {
                        script.push_str(&self.ruleset.set_peer_addresses(&addresses));
                        self.peer_addresses = addresses;
                    }
                }
                // Forgotten when the table is put in place anew: the engine asks again.
                Change::PassBy { clients, lasting } => {
                    script.push_str(&self.ruleset.pass_by(clients, lasting));
                }
                Change::Configure(config) => {
                    let ruleset = Ruleset::new(&config, self.hold);
                    whole |= ruleset != self.ruleset;
                    self.ruleset = ruleset;
                }
                Change::Reinstall => whole = true,
                Change::Remove(done) => return Some(done),
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
                Err(error) => {
                    tracing::warn!(%error, "a rule could not be changed; all are put in place again");
                }
            }
        }
        self.install().await;
        None
    }

    /// Whether the table, the rule and the route are still there.
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
                tracing::warn!("somebody removed interception rules; they are put in place again");
                false
            }
            Err(error) => {
                tracing::debug!(%error, "interception rules could not be looked at");
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
        let script = self.ruleset.install(&Contents {
            destinations: &self.destinations,
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
                    tracing::info!("interception rules are in place");
                }
                self.in_place = true;
                self.say("in place".to_owned());
            }
            Err(error) => {
                tracing::error!(%error, "interception rules cannot be put in place; traffic passes by");
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
            tracing::error!(%error, "interception rules could not be removed");
        }
        self.destinations.clear();
        self.say("removed".to_owned());
    }

    fn say(&self, state: String) {
        self.report.send_replace(Report {
            state,
            destinations: self.destinations.iter().map(ToString::to_string).collect(),
            avoided: self.avoided.len(),
            bypassed_routes: self
                .bypassed_routes
                .iter()
                .map(|(clients, servers)| format!("{clients} to {servers}"))
                .collect(),
        });
    }
}

async fn nft(script: String) -> std::io::Result<()> {
    blocking(move || run_nft(&script)).await
}

/// Runs tools where waiting for them holds up nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
