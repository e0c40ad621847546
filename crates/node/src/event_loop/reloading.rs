//! A configuration that was read again, and the check of its removals before it becomes active.
//!
//! A truncated file (a full disk, a crashed editor, an interrupted copy) may still be valid, and
//! contain no peers. So a configuration that removes something that flows rely on is refused as a
//! whole, until an operator confirms it. The same holds for one that has lost settings that
//! restrict interception, serving or storing. Pins differ: `peer remove` is an order, and is
//! effective whatever the configuration says.

use std::collections::BTreeMap;

use engine::{EngineInput, LinkId};
use vocab::{NodeId, Time};

use super::{EventLoop, PairedPeers, engine_config, log_damaged_pins};
use crate::config::NodeConfig;
use crate::pairing::{IdentityPin, LoadedPins};
use crate::rereading::{ConfigChanges, ConfirmedRemovals};

/// A section or prefix that a flow relies on and that a new configuration lacks.
enum ConfigLoss {
    Section,
    Prefixes,
}

fn in_words((name, flows, loss): (&str, usize, ConfigLoss)) -> String {
    let what = match loss {
        ConfigLoss::Section => "its [[peer]] section is missing",
        ConfigLoss::Prefixes => "its prefixes are missing",
    };
    match flows {
        1 => format!("{name} (1 flow; {what})"),
        flows => format!("{name} ({flows} flows; {what})"),
    }
}

fn doubt_of_restrictions(config: &NodeConfig, lost: &[String]) -> String {
    format!(
        "{} does not contain these restrictions any more: {}; without them, the node would intercept, serve \
         or store more",
        config.file.display(),
        lost.join(", ")
    )
}

impl EventLoop {
    /// Makes this configuration and the pins hold.
    ///
    /// # Errors
    /// When the configuration does not have peers that are in use, or restrictions that the old one had, and that is
    /// not confirmed, or when the pins cannot be read. The old configuration holds then; in the former case with the new pins.
    pub(super) fn reload(
        &mut self,
        now: Time,
        config: NodeConfig,
        confirmed: ConfirmedRemovals,
    ) -> Result<ConfigChanges, String> {
        // What cannot be read revokes nobody, nor does a directory that is not mounted: a pin is revoked by its
        // confirmed.
        let LoadedPins { mut pins, damaged } = match self.parts.pins.load_all() {
            Ok(_) if !self.peers.is_empty() && !self.parts.pins.exists() => {
                let error = "the directory of pins is missing; the node keeps all its peers";
                tracing::error!("{error}");
                return Err(error.to_owned());
            }
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::error!(%error, "the node did not reload the configuration; it continues with the old one");
                return Err(error.to_string());
            }
        };
        for name in damaged.keys() {
            if let Some(pin) = self.pins.get(name) {
                pins.insert(name.clone(), pin.clone());
            }
        }
        self.damaged_pins = log_damaged_pins(damaged);
        let (_, peers, _) = engine_config(&config, &self.parts.identity, &pins);
        let removed = self.unlisted(&peers, &pins);
        let lost = config.restrictions_lost_from(&self.parts.config);
        let doubts = [
            (!confirmed.peers)
                .then(|| self.doubt(&config, &peers, &removed))
                .flatten()
                .map(|doubt| (doubt, "--remove-peers")),
            (!confirmed.restrictions && !lost.is_empty()).then(|| {
                (
                    doubt_of_restrictions(&config, &lost),
                    "--remove-restrictions",
                )
            }),
        ];
        let (doubts, mut flags): (Vec<String>, Vec<&str>) = doubts.into_iter().flatten().unzip();
        if !doubts.is_empty() {
            // What was confirmed this time has to be confirmed again.
            if confirmed.peers {
                flags.push("--remove-peers");
            }
            if confirmed.restrictions {
                flags.push("--remove-restrictions");
            }
            let (doubt, flags) = (doubts.join("; "), flags.join(" "));
            let old = self.parts.config.clone();
            self.take_configuration(now, old, pins);
            tracing::warn!(
                doubt,
                "the node refused the new configuration and continues with the old one; to accept the new \
                 one, run `trunkline node reload {flags}`"
            );
            return Err(format!(
                "{doubt}. If this change is intended, run `trunkline node reload {flags}`"
            ));
        }
        for restriction in &lost {
            tracing::warn!(restriction, "the new configuration removed a restriction");
        }
        for (name, flows) in &removed {
            tracing::warn!(
                peer = name,
                flows,
                "peer removed: the configuration has no [[peer]] section for it any more"
            );
        }
        let is_beginning = config.is_cut_from(&self.parts.config);
        if is_beginning {
            tracing::warn!(
                "the new configuration file contains only the beginning of the old one; check \
                            that it is not truncated"
            );
        }
        self.take_configuration(now, config, pins);
        tracing::info!("the node reloaded its configuration");
        Ok(ConfigChanges {
            is_beginning,
            removed_restrictions: lost,
            removed_peers: removed.into_keys().collect(),
        })
    }

    /// Peers that are paired and that no section names any more, with their flows.
    fn unlisted(
        &self,
        peers: &PairedPeers,
        pins: &BTreeMap<String, IdentityPin>,
    ) -> BTreeMap<String, usize> {
        let is_pinned = |node: &NodeId| pins.values().any(|pin| pin.node == *node);
        let unlisted = self.peers.iter().filter(|(node, _)| {
            // Who is not pinned any more was removed by `peer remove`.
            !peers.contains_key(node) && is_pinned(node)
        });
        unlisted
            .map(|(node, slot)| (slot.name.clone(), self.engine.flows_of(*node)))
            .collect()
    }

    /// Returns the reason why this configuration may not be what its author meant.
    fn doubt(
        &self,
        config: &NodeConfig,
        peers: &PairedPeers,
        removed: &BTreeMap<String, usize>,
    ) -> Option<String> {
        let mut losses: Vec<(&str, usize, ConfigLoss)> = removed
            .iter()
            .map(|(name, flows)| (name.as_str(), *flows, ConfigLoss::Section))
            .collect();
        for (node, slot) in &self.peers {
            let prefixes = |config: &NodeConfig| {
                let peer = config.peers.iter().find(|peer| peer.name == slot.name);
                peer.map_or(0, |peer| peer.prefixes.len())
            };
            let had_prefixes = prefixes(&self.parts.config) > 0;
            if peers.contains_key(node) && had_prefixes && prefixes(config) == 0 {
                let flows = self.engine.flows_of(*node);
                losses.push((&slot.name, flows, ConfigLoss::Prefixes));
            }
        }
        let is_cut = config.is_cut_from(&self.parts.config);
        let is_used = losses.iter().any(|(_, flows, _)| *flows > 0);
        if losses.is_empty() || !is_cut && !is_used {
            return None;
        }
        let losses: Vec<String> = losses.into_iter().map(in_words).collect();
        let losses = losses.join(", ");
        let file = config.file.display();
        Some(match is_cut {
            true => format!(
                "{file} contains only the beginning of the old configuration, so it may be truncated, and \
                 it removes peers: {losses}"
            ),
            false => format!("{file} removes peers that have flows: {losses}"),
        })
    }

    fn take_configuration(
        &mut self,
        now: Time,
        config: NodeConfig,
        pins: BTreeMap<String, IdentityPin>,
    ) {
        let (engine_config, peers, unpaired) = engine_config(&config, &self.parts.identity, &pins);
        self.pins = pins;
        let (watch, interfaces) = (&self.parts.surroundings, config.lan_interfaces.clone());
        let watch = watch.clone();
        self.parts
            .runtime
            .spawn_blocking(move || watch.set_lan_interfaces(interfaces));
        for peer in &unpaired {
            super::warn_of_unpaired(peer);
        }
        self.parts.config = config;
        self.unpaired = unpaired;
        self.set_peers(peers);
        self.engine
            .handle(now, EngineInput::Configure(Box::new(engine_config)));
        self.drain();
        let revoked: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, slot)| !self.peers.contains_key(&slot.peer))
            .map(|(link, _)| *link)
            .collect();
        for link in revoked {
            tracing::info!(link = link.0, "closed a link, because its peer was removed");
            self.close_link(link);
        }
    }
}
