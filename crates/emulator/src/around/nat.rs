//! Connection from the link to a host's network: forwarding and address translation.
//!
//! Everything is in one nftables table, named after the link's device on the host's side, and in
//! kernel settings that enable forwarding. Forwarding is enabled for single devices, not for the
//! whole host, and on these devices the table accepts only packets that a link sent or waits for,
//! so the host does not become a router for its neighbours.
//!
//! Each changed setting is noted in the table itself before the change, as comments of the rules of
//! a chain that nothing uses: "forwarding of eth0 was 0". [`NatRules::remove`] restores it. When a
//! process is killed its device disappears but the table stays; the next start finds a table
//! without its device, takes over its changed settings, and removes it. The last of several links
//! to end restores the setting that the first one changed. The notes are in the network namespace
//! that they describe, so they are never applied to another one.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};

use super::addresses::LinkAddresses;
use host::command;

/// Prefix of all table names; the device's name follows.
const TABLE: &str = "trunkline_emulate_";

/// Prefix of the names of the host's ends of all links.
pub(super) const DEVICE: &str = "tlw-";

/// Held while tables and settings are looked at and changed.
const LOCK: &str = "/run/trunkline-emulate.lock";

/// Keeps other links from changing the host until it is dropped.
#[derive(Debug)]
pub(super) struct HostLock(Option<File>);

impl HostLock {
    /// Waits until no other link is being set up or removed.
    pub(super) fn wait() -> Self {
        let lock = || {
            // Whoever can open it can hold everybody up.
            let mut options = File::options();
            let file = options.write(true).create(true).mode(0o600).open(LOCK)?;
            file.lock()?;
            Ok::<_, std::io::Error>(file)
        };
        match lock() {
            Ok(file) => Self(Some(file)),
            Err(error) => {
                // A /run that cannot be written to keeps nobody from running a single link.
                tracing::debug!(path = LOCK, %error, "no lock");
                Self(None)
            }
        }
    }
}

impl Drop for HostLock {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Closing it has the same effect.
            let _ = file.unlock();
        }
    }
}

/// A kernel setting that was changed for a device, with its former value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SavedSysctl {
    /// "ipv4" or "ipv6".
    family: String,
    /// The device, or "all".
    device: String,
    /// "forwarding" and its like.
    setting: String,
    was: String,
}

impl SavedSysctl {
    fn path(&self) -> PathBuf {
        setting(SETTINGS, &self.family, &self.device, &self.setting)
    }

    /// Tells whether the whole host was made a router since then. The device's setting then belongs
    /// to whoever did that.
    fn is_obsolete(&self) -> bool {
        self.setting == "forwarding"
            && self.device != "all"
            && read(&setting(SETTINGS, &self.family, "all", "forwarding")).as_deref() == Some("1")
    }
}

impl fmt::Display for SavedSysctl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            device,
            setting,
            was,
        } = self;
        write!(out, "{family} {device} {setting} was {was}")
    }
}

impl FromStr for SavedSysctl {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split(' ').collect::<Vec<_>>().as_slice() {
            // A table may have been made by somebody else: nothing but the settings that are
            // changed here is ever written back, and no word of it may lead elsewhere.
            [
                family @ ("ipv4" | "ipv6"),
                device,
                setting @ ("forwarding" | "force_forwarding" | "accept_ra"),
                "was",
                was @ ("0" | "1"),
            ] if is_device_name(device) => Ok(Self {
                family: (*family).to_owned(),
                device: (*device).to_owned(),
                setting: (*setting).to_owned(),
                was: (*was).to_owned(),
            }),
            _ => Err(()),
        }
    }
}

/// Directory of the network settings of this thread's network namespace.
const SETTINGS: &str = "/proc/sys/net";

fn setting(root: &str, family: &str, device: &str, name: &str) -> PathBuf {
    [root, family, "conf", device, name].iter().collect()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Services that the gateway's own address answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GatewayServices {
    /// Address that receives TCP and UDP to the gateway's address.
    pub(super) v4: Option<std::net::Ipv4Addr>,
    /// Set if DNS queries stay at the gateway.
    pub(super) names: bool,
}

/// One link's rules and changed settings.
#[derive(Debug)]
pub(super) struct NatRules {
    device: String,
}

impl NatRules {
    /// Makes rules for packets from `device` of this thread's network namespace.
    pub(super) fn set_up(
        turn: &HostLock,
        device: &str,
        addresses: &LinkAddresses,
        services: &GatewayServices,
    ) -> Result<Self> {
        let nat = Self {
            device: device.to_owned(),
        };
        let done = nat.make(addresses, services);
        done.inspect_err(|_| nat.remove(turn)).map(|()| nat)
    }

    fn make(&self, addresses: &LinkAddresses, services: &GatewayServices) -> Result<()> {
        let device = &self.device;
        let tables = all_tables()?;
        let mut debts: BTreeSet<SavedSysctl> =
            tables.into_iter().flat_map(|table| table.debts).collect();
        let changes = changes(SETTINGS);
        debts.extend(changes.iter().map(|(debt, _)| debt.clone()));
        nft(&rules(device, addresses, services, &debts)).map_err(|error| {
            anyhow!("{error:#}; translating addresses takes nftables with NAT: load nft_masq (modprobe nft_masq), or use --gateway user")
        })?;
        for (debt, value) in changes {
            let path = debt.path();
            fs::write(&path, value).with_context(|| {
                format!(
                    "cannot set {} to {value}; forwarding takes root in the host's network namespace, and in a container a writable /proc/sys: use --gateway user",
                    path.display()
                )
            })?;
        }
        // The link's own device takes its settings with it when it goes.
        let mut own = vec![("ipv4", "forwarding"), ("ipv6", "force_forwarding")];
        if services.v4.is_some_and(|address| address.is_loopback()) {
            own.push(("ipv4", "route_localnet"));
        }
        for (family, name) in own {
            let path = setting(SETTINGS, family, device, name);
            if path.exists() {
                fs::write(&path, "1").with_context(|| format!("cannot set {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Undoes all changes in this thread's network namespace.
    pub(super) fn remove(&self, _turn: &HostLock) {
        if let Err(error) = settle(|table| table.device == self.device) {
            tracing::warn!(
                table = format!("{TABLE}{}", self.device),
                error = format!("{error:#}"),
                "the link's rules could not be removed"
            );
        }
    }
}

/// Removes the tables and settings that killed processes have left in this thread's network
/// namespace.
pub(super) fn sweep(_turn: &HostLock) -> Result<()> {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let exists = |device: &str| {
        devices
            .lines()
            .filter_map(|line| line.split_once(':'))
            .any(|(name, _)| name.trim() == device)
    };
    settle(|table| !exists(&table.device))
}

/// Removes the chosen tables, and restores the settings that no other table still needs.
fn settle(is_chosen: impl Fn(&NatTable) -> bool) -> Result<()> {
    let (chosen, others): (Vec<NatTable>, Vec<NatTable>) =
        all_tables()?.into_iter().partition(is_chosen);
    for table in &chosen {
        for debt in &table.debts {
            let is_needed = others.iter().any(|other| other.debts.contains(debt));
            if is_needed || debt.is_obsolete() {
                continue;
            }
            if let Err(error) = fs::write(debt.path(), &debt.was) {
                // A device that has gone has taken its settings along.
                tracing::debug!(%debt, %error, "not put back");
            }
        }
        nft(&format!("delete table inet {TABLE}{}\n", table.device))?;
    }
    Ok(())
}

/// A table of a link, this one's or another's.
#[derive(Debug)]
struct NatTable {
    device: String,
    debts: BTreeSet<SavedSysctl>,
}

/// The tables of all links in this network namespace.
fn all_tables() -> Result<Vec<NatTable>> {
    let list = command::run("nft", ["--json", "list", "tables", "inet"])?;
    let mut tables = Vec::new();
    for device in parse_tables(&list)? {
        let name = format!("{TABLE}{device}");
        let chain = command::run("nft", ["--json", "list", "chain", "inet", &name, "debts"]);
        // Without that chain it is not complete, and nothing had been changed yet.
        let debts =
            chain.map_or_else(|_| Ok(BTreeSet::new()), |text| parse_saved_sysctls(&text))?;
        tables.push(NatTable { device, debts });
    }
    Ok(tables)
}

fn parse_tables(json: &str) -> Result<Vec<String>> {
    let list: serde_json::Value = serde_json::from_str(json).context("nft's list of tables")?;
    let items = list["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(items
        .iter()
        .filter_map(|item| item["table"]["name"].as_str()?.strip_prefix(TABLE))
        .map(str::to_owned)
        .collect())
}

fn parse_saved_sysctls(json: &str) -> Result<BTreeSet<SavedSysctl>> {
    let list: serde_json::Value = serde_json::from_str(json).context("nft's list of rules")?;
    let items = list["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(items
        .iter()
        .filter_map(|item| item["rule"]["comment"].as_str()?.parse().ok())
        .collect())
}

fn nft(rules: &str) -> Result<()> {
    command::run_with_input("nft", ["-f", "-"], rules).map(drop)
}

/// Settings that must change for this namespace to forward, with their new values, in the order of
/// the changes. A host that is already a router is not changed.
fn changes(root: &str) -> Vec<(SavedSysctl, &'static str)> {
    let mut changes = Vec::new();
    for family in ["ipv4", "ipv6"] {
        if read(&setting(root, family, "all", "forwarding")).as_deref() != Some("0") {
            continue;
        }
        let mut want = |device: &str, name: &str, from: &str, to| {
            if read(&setting(root, family, device, name)).as_deref() == Some(from) {
                let debt = SavedSysctl {
                    family: family.to_owned(),
                    device: device.to_owned(),
                    setting: name.to_owned(),
                    was: from.to_owned(),
                };
                changes.push((debt, to));
            }
        };
        let devices = devices(root, family);
        if family == "ipv4" {
            for device in &devices {
                want(device, "forwarding", "0", "1");
            }
        } else if setting(root, family, "lo", "force_forwarding").exists() {
            for device in &devices {
                want(device, "force_forwarding", "0", "1");
            }
        } else {
            // Before Linux 6.17 IPv6 is forwarded by the whole host or not at all. And a host that
            // forwards stops listening to its router's advertisements, and loses the routes it has
            // from them, unless it is told to go on.
            for device in &devices {
                want(device, "accept_ra", "1", "2");
            }
            want("all", "forwarding", "0", "1");
        }
    }
    changes
}

/// The devices of this namespace, loopback, ends of links and oddly named ones apart.
fn devices(root: &str, family: &str) -> Vec<String> {
    let directory: PathBuf = [root, family, "conf"].iter().collect();
    let mut devices: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !["all", "default", "lo"].contains(&name.as_str()))
        .filter(|name| is_plain(name) && !name.starts_with(DEVICE))
        .collect();
    devices.sort();
    devices
}

/// Tells whether this can be a settings directory: a device's name, or `all`.
fn is_device_name(name: &str) -> bool {
    (1..=DEVICE_NAME_MAX).contains(&name.len()) && is_plain(name) && name != "." && name != ".."
}

/// The longest name that the kernel gives a device.
const DEVICE_NAME_MAX: usize = 15;

/// Tells whether a device's name can stand unquoted in a rule.
fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte))
}

/// The text of a link's table.
fn rules(
    device: &str,
    addresses: &LinkAddresses,
    services: &GatewayServices,
    debts: &BTreeSet<SavedSysctl>,
) -> String {
    let LinkAddresses {
        gateway,
        command,
        command_v6,
        ..
    } = addresses;
    let mut notes = String::new();
    for debt in debts {
        notes += &format!("    counter comment \"{debt}\"\n");
    }
    let mut destinations = String::new();
    if services.names {
        destinations += &format!(
            "    iifname \"{device}\" ip daddr {gateway} meta l4proto {{ tcp, udp }} th dport 53 accept\n"
        );
    }
    if let Some(address) = services.v4 {
        destinations += &format!(
            "    iifname \"{device}\" ip daddr {gateway} meta l4proto {{ tcp, udp }} dnat ip to {address}\n"
        );
    }
    let mut strangers = String::new();
    for family in ["ipv4", "ipv6"] {
        let switched: Vec<&str> = debts
            .iter()
            .filter(|debt| debt.family == family && debt.setting.ends_with("forwarding"))
            .map(|debt| debt.device.as_str())
            .collect();
        let from = if switched.contains(&"all") {
            format!("iifname != \"{DEVICE}*\"")
        } else if switched.is_empty() {
            continue;
        } else {
            format!("iifname {{ \"{}\" }}", switched.join("\", \""))
        };
        strangers += &format!("    meta nfproto {family} {from} oifname != \"{DEVICE}*\" drop\n");
    }
    format!(
        "table inet {TABLE}{device} {{\n\
         \x20 chain debts {{\n{notes}  }}\n\
         \x20 chain destinations {{\n\
         \x20   type nat hook prerouting priority -100;\n{destinations}  }}\n\
         \x20 chain sources {{\n\
         \x20   type nat hook postrouting priority 100;\n\
         \x20   ip saddr {command} oifname != \"{device}\" masquerade\n\
         \x20   ip6 saddr {command_v6} oifname != \"{device}\" masquerade\n  }}\n\
         \x20 chain forwarding {{\n\
         \x20   type filter hook forward priority -10;\n\
         \x20   iifname \"{device}\" ip saddr != {command} drop\n\
         \x20   iifname \"{device}\" ip6 saddr != {command_v6} drop\n\
         \x20   oifname \"{device}\" ct state != {{ established, related }} drop\n{strangers}  }}\n\
         \x20 chain neighbours {{\n\
         \x20   type filter hook input priority -10;\n\
         \x20   iifname != {{ \"lo\", \"{device}\" }} ip daddr {gateway} drop\n  }}\n}}\n"
    )
}

/// Text about each firewall setting of the host that may block the link; empty if nothing was
/// found.
pub(super) fn obstacles() -> Vec<String> {
    let Ok(text) = command::run("nft", ["--json", "list", "chains"]) else {
        return Vec::new();
    };
    parse_obstacles(&text)
}

fn parse_obstacles(json: &str) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let items = list["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    items
        .iter()
        .map(|item| &item["chain"])
        .filter(|chain| chain["policy"] == "drop" && chain["hook"] == "forward")
        .filter_map(|chain| {
            let word = |key: &str| chain[key].as_str();
            Some(format!(
                "{} {} {}",
                word("family")?,
                word("table")?,
                word("name")?
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debt(text: &str) -> SavedSysctl {
        text.parse().unwrap()
    }

    #[test]
    fn a_debt_reads_back_as_it_was_written() {
        for text in [
            "ipv4 eth0 forwarding was 0",
            "ipv6 eth0.10 force_forwarding was 0",
            "ipv6 all forwarding was 0",
        ] {
            assert_eq!(debt(text).to_string(), text);
        }
        for text in [
            "somebody else's comment",
            "ipv4 /etc ld.so.preload was 0",
            "ipv4 /etc forwarding was 0",
            "ipv4 .. forwarding was 0",
            "ipv4 eth0 forwarding was /tmp/x",
            "ipv4 eth0 ../forwarding was 0",
            "ipv4 a-name-too-long-for-any forwarding was 0",
        ] {
            assert!(text.parse::<SavedSysctl>().is_err(), "{text}");
        }
        assert_eq!(
            debt("ipv6 eth0.10 accept_ra was 1").path(),
            PathBuf::from("/proc/sys/net/ipv6/conf/eth0.10/accept_ra")
        );
    }

    #[test]
    fn a_newly_switched_device_forwards_for_links_alone() {
        let addresses = LinkAddresses::choose("").unwrap();
        let debts = BTreeSet::from([
            debt("ipv4 eth0 forwarding was 0"),
            debt("ipv4 wlan0 forwarding was 0"),
        ]);
        let text = rules("tlw-7", &addresses, &GatewayServices::default(), &debts);
        assert!(text.contains(
            "meta nfproto ipv4 iifname { \"eth0\", \"wlan0\" } oifname != \"tlw-*\" drop"
        ));
        assert!(!text.contains("nfproto ipv6"));
        assert!(text.contains("counter comment \"ipv4 eth0 forwarding was 0\""));
    }

    /// A directory like /proc/sys/net, with these files in it.
    fn settings(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        directory
    }

    fn changes_in(files: &[(&str, &str)]) -> Vec<String> {
        let directory = settings(files);
        changes(directory.path().to_str().unwrap())
            .into_iter()
            .map(|(debt, to)| format!("{debt}, becomes {to}"))
            .collect()
    }

    #[test]
    fn devices_forward_one_by_one_where_supported() {
        let changed = changes_in(&[
            ("ipv4/conf/all/forwarding", "0"),
            ("ipv4/conf/lo/forwarding", "0"),
            ("ipv4/conf/eth0/forwarding", "0"),
            ("ipv4/conf/virbr0/forwarding", "1"),
            ("ipv4/conf/tlw-7/forwarding", "0"),
            ("ipv6/conf/all/forwarding", "0"),
            ("ipv6/conf/lo/force_forwarding", "0"),
            ("ipv6/conf/eth0/force_forwarding", "0"),
            ("ipv6/conf/eth0/accept_ra", "1"),
        ]);
        assert_eq!(
            changed,
            [
                "ipv4 eth0 forwarding was 0, becomes 1",
                "ipv6 eth0 force_forwarding was 0, becomes 1"
            ]
        );
    }

    #[test]
    fn an_older_kernel_keeps_listening_to_its_router() {
        let changed = changes_in(&[
            ("ipv6/conf/all/forwarding", "0"),
            ("ipv6/conf/all/accept_ra", "1"),
            ("ipv6/conf/lo/forwarding", "0"),
            ("ipv6/conf/eth0/accept_ra", "1"),
            ("ipv6/conf/eth1/accept_ra", "0"),
        ]);
        assert_eq!(
            changed,
            [
                "ipv6 eth0 accept_ra was 1, becomes 2",
                "ipv6 all forwarding was 0, becomes 1"
            ]
        );
    }

    #[test]
    fn a_router_stays_as_it_is() {
        let files = [
            ("ipv4/conf/all/forwarding", "1"),
            ("ipv4/conf/eth0/forwarding", "0"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/eth0/accept_ra", "1"),
        ];
        assert!(changes_in(&files).is_empty());
    }

    #[test]
    fn chains_that_drop_what_is_forwarded_are_named() {
        let json = r#"{"nftables":[{"metainfo":{}},
            {"chain":{"family":"ip","table":"filter","name":"FORWARD","hook":"forward","policy":"drop"}},
            {"chain":{"family":"ip","table":"filter","name":"INPUT","hook":"input","policy":"drop"}},
            {"chain":{"family":"inet","table":"x","name":"y","hook":"forward","policy":"accept"}}]}"#;
        assert_eq!(parse_obstacles(json), ["ip filter FORWARD"]);
        assert!(parse_obstacles("not json").is_empty());
    }

    #[test]
    fn only_tables_of_links_are_seen() {
        let json = r#"{"nftables":[{"table":{"family":"inet","name":"trunkline_emulate_tlw-9"}},
            {"table":{"family":"inet","name":"trunkline"}}]}"#;
        assert_eq!(parse_tables(json).unwrap(), ["tlw-9"]);
        let json =
            r#"{"nftables":[{"rule":{"comment":"ipv4 eth0 forwarding was 0"}},{"rule":{}}]}"#;
        assert_eq!(
            parse_saved_sysctls(json).unwrap(),
            BTreeSet::from([debt("ipv4 eth0 forwarding was 0")])
        );
    }
}
