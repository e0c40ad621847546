//! Running without root: the lab starts itself again inside user, network, mount and process
//! namespaces.
//!
//! ```text
//! trunkline demo ──unshare(1)──► trunkline demo     root and first process of namespaces of its
//!                                                   own, with a private /run
//! ```
//! Nothing inside can outlive it: when its first process ends, however it ends, the kernel ends the
//! others and the namespaces go, /run with the run directory among them.
//!
//! With newuidmap and a range in /etc/subuid the inner side has many user ids, else one. What
//! cannot be had without root is said once, before anything else happens.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{command, kernel};

/// The environment variable that tells the inner process that it is inside.
pub const INSIDE_VARIABLE: &str = "TRUNKLINE_LAB_INSIDE";

/// The place that a program runs in; the binary reads it from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramEnvironment {
    /// The `trunkline` program that emulator and nodes are started from.
    pub program: PathBuf,
    /// The arguments of this process, in case it has to be started again.
    pub arguments: Vec<OsString>,
    /// Membership of this process in a user namespace of its own, as its root.
    pub user_namespace: UserNamespaceMembership,
}

/// Membership of this process in the user namespace in which the lab started it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserNamespaceMembership {
    /// It is.
    Yes,
    /// The process was started by a user.
    No,
}

/// Source of the lab's privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivilegeSource {
    /// As the host's root.
    Root,
    /// As the root of a user namespace.
    UserNamespace,
}

impl PrivilegeSource {
    /// Describes the privileges in one sentence, and what is not available with them.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self {
            PrivilegeSource::Root => "running as root",
            PrivilegeSource::UserNamespace => {
                "running without root, in a user namespace (not available: real-time \
                 scheduling, socket buffers above the system's limits, AF_XDP)"
            }
        }
    }
}

/// Makes sure of the privileges that namespaces need: has them as root, or starts this program
/// again inside a user namespace (and then does not return).
///
/// # Errors
/// When neither is possible; the message says what to do.
pub fn obtain(environment: &ProgramEnvironment) -> Result<PrivilegeSource> {
    if environment.user_namespace == UserNamespaceMembership::Yes {
        prepare_inside()?;
        return Ok(PrivilegeSource::UserNamespace);
    }
    if kernel::effective_user() == 0 {
        return Ok(PrivilegeSource::Root);
    }
    let Some(unshare) = command::find("unshare") else {
        bail!("the lab needs root, or unshare(1) from util-linux to run without it");
    };
    if !can(&unshare, &NAMESPACES) {
        bail!(
            "this system does not allow unprivileged user namespaces; run as root, or allow them \
             (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces)"
        );
    }
    let mut again = std::process::Command::new(&unshare);
    again.args(NAMESPACES);
    // smbd and tcpdump change their user, which takes more than one to change to.
    if can(&unshare, &[&NAMESPACES[..], &["--map-auto"]].concat()) {
        again.arg("--map-auto");
    }
    again
        .arg(&environment.program)
        .args(&environment.arguments)
        .env(INSIDE_VARIABLE, "1");
    Err(kernel::become_program(&mut again)).context("starting again in a user namespace")
}

/// Arguments for unshare(1). It passes no signal on, but a terminal's Ctrl-C reaches the inner
/// process directly, and --kill-child ends it when unshare is killed.
const NAMESPACES: [&str; 8] = [
    "--user",
    "--map-root-user",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Returns `true` if unshare(1) can make these namespaces here.
fn can(unshare: &Path, arguments: &[&str]) -> bool {
    std::process::Command::new(unshare)
        .args(arguments)
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// The number of user ids that this process's user namespace maps.
#[must_use]
pub fn mapped_user_ids() -> u64 {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum()
}

/// Puts a private directory over /run, where named network namespaces live.
fn prepare_inside() -> Result<()> {
    if Path::new("/run/netns").is_dir() && std::fs::write("/run/netns/.trunkline", "").is_ok() {
        return Ok(());
    }
    command::run("mount", ["-t", "tmpfs", "tmpfs", "/run"])
        .context("covering /run in a mount namespace of the lab's own")?;
    std::fs::create_dir_all("/run/netns")?;
    std::fs::write("/run/netns/.trunkline", "")?;
    Ok(())
}
