//! Check of all requirements at once, before anything is made.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::servers::ServerKind;
use host::rootless::{self, PrivilegeSource};
use host::{command, kernel};

/// Requirements of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabRequirements {
    /// Servers that will run.
    pub servers: Vec<ServerKind>,
    /// Client programs that will run.
    pub clients: Vec<&'static str>,
    /// Interception that the nodes need.
    pub interception: InterceptionMode,
    /// Packet capture that the lab needs.
    pub captures: CaptureMode,
}

/// Interception of traffic by nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterceptionMode {
    /// Transparent interception by nftables TPROXY.
    Transparent,
    /// No node will run.
    None,
}

/// Capture of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// On the client's and the WAN's interface.
    Taken,
    /// No packets are captured.
    None,
}

/// Debian's package for each program the lab may need.
const PACKAGES: [(&str, &str); 17] = [
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("tc", "iproute2"),
    ("ethtool", "ethtool"),
    ("nft", "nftables"),
    ("tcpdump", "tcpdump"),
    ("nginx", "nginx-light"),
    ("vsftpd", "vsftpd"),
    ("smbd", "samba"),
    ("smbclient", "smbclient"),
    ("smbnetfs", "smbnetfs"),
    ("smbtorture", "samba-testsuite"),
    ("curl", "curl"),
    ("python3", "python3"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
    ("qemu-system-x86_64", "qemu-system-x86"),
];

/// Checks programs, privileges, devices and the kernel.
///
/// # Errors
/// When something is missing: the message lists all of it, with the command that installs it.
pub fn check(needs: &LabRequirements, privileges: PrivilegeSource) -> Result<()> {
    let mut problems = Vec::new();
    let mut packages = BTreeSet::new();
    for program in programs(needs) {
        if command::find(program).is_none() {
            let package = PACKAGES
                .iter()
                .find(|(name, _)| *name == program)
                .map_or(program, |(_, package)| *package);
            problems.push(format!("the program {program} (package {package})"));
            packages.insert(package);
        }
    }
    if let Err(error) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        let remedy = match (error.kind(), privileges) {
            (std::io::ErrorKind::PermissionDenied, PrivilegeSource::UserNamespace) => {
                "let this user open it (as root: chmod 0666 /dev/net/tun), or run as root"
            }
            (std::io::ErrorKind::NotFound, _) => "load it (as root: modprobe tun)",
            _ => "run on a kernel that has the tun driver",
        };
        problems.push(format!("/dev/net/tun ({error}): {remedy}"));
    }
    if let Err(error) = namespaces_work() {
        problems.push(format!("network namespaces ({error}): run as root"));
    } else if needs.interception == InterceptionMode::Transparent
        && command::find("nft").is_some()
        && let Err(error) = tproxy_works()
    {
        problems.push(format!(
            "nftables' tproxy ({error}): run on a kernel with CONFIG_NFT_TPROXY, or load nft_tproxy"
        ));
    }
    if privileges == PrivilegeSource::UserNamespace && rootless::mapped_user_ids() < 2 {
        let mut wanting = Vec::new();
        if needs.captures == CaptureMode::Taken {
            wanting.push("tcpdump");
        }
        if needs.servers.contains(&ServerKind::Smb) {
            wanting.push("smbd");
        }
        if !wanting.is_empty() {
            problems.push(format!(
                "user ids for {}, which change their user: give this one a range in /etc/subuid and \
                 /etc/subgid (as root: usermod --add-subuids 100000-165535 --add-subgids \
                 100000-165535 NAME; package uidmap), or run as root",
                wanting.join(" and ")
            ));
            packages.insert("uidmap");
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    let mut text = format!("missing:\n  - {}", problems.join("\n  - "));
    if !packages.is_empty() {
        let packages: Vec<&str> = packages.into_iter().collect();
        text += &format!(
            "\nto install: apt-get install --no-install-recommends {}",
            packages.join(" ")
        );
    }
    bail!(text)
}

fn programs(needs: &LabRequirements) -> BTreeSet<&'static str> {
    let mut programs = BTreeSet::from(["ip", "ss", "ethtool"]);
    programs.extend(needs.servers.iter().map(|kind| kind.program()));
    programs.extend(needs.clients.iter().copied());
    if needs.interception == InterceptionMode::Transparent {
        programs.insert("nft");
    }
    if needs.captures == CaptureMode::Taken {
        programs.insert("tcpdump");
    }
    programs
}

/// Makes a namespace that is gone again when the probe ends.
fn namespaces_work() -> Result<()> {
    command::run("unshare", ["--net", "true"]).map(drop)
}

/// Loads a rule like the nodes' into a namespace that is gone again when the probe ends.
fn tproxy_works() -> Result<()> {
    let nft = command::find("nft").unwrap_or_default();
    let rules = "table inet probe {\n chain c {\n \
                 type filter hook prerouting priority mangle\n \
                 meta l4proto tcp tproxy ip to :1 accept\n }\n}\n";
    command::run_with_input(
        "unshare",
        ["--net", &nft.display().to_string(), "-f", "-"],
        rules,
    )
    .map(drop)
}

/// The version line of every program that took part, for the report.
#[must_use]
pub fn programs_of(needs: &LabRequirements) -> Vec<&'static str> {
    let mut list: Vec<&'static str> = programs(needs).into_iter().collect();
    list.retain(|name| *name != "ss");
    list
}

/// Tells whether this process has root's capabilities, in its own user namespace.
#[must_use]
pub fn is_root() -> bool {
    kernel::effective_user() == 0
}
