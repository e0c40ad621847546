//! Operation without root: a user namespace in which this process may make a link around a command.
//!
//! User and group stay the same, with capabilities only over network namespaces made from here on;
//! the host's own network stays out of reach. The command is started without these capabilities, as
//! the unprivileged user.

use std::fs::{self, File};
use std::io;

use anyhow::{Context, Result, anyhow};

use host::first_process::{self as kernel, CAP_NET_ADMIN, CAP_SYS_ADMIN, UnshareScope};

/// Tells whether this process can make namespaces and configure its own network.
pub(super) fn is_privileged() -> bool {
    // The root of a user namespace may well be in a network namespace that is not its own.
    let is_own = File::open("/proc/thread-self/ns/net")
        .and_then(|network| kernel::is_owner(&network))
        .unwrap_or(false);
    kernel::has_capability(CAP_SYS_ADMIN) && kernel::has_capability(CAP_NET_ADMIN) && is_own
}

/// Moves this process, which must have a single thread, into a user namespace of its own.
pub(super) fn enter() -> Result<()> {
    let (user, group) = kernel::user_and_group();
    kernel::unshare(UnshareScope::User)
        .map_err(explain_refusal)
        .context("cannot make a user namespace, which a link without root takes")?;
    let map = |path: &str, text: &str| {
        fs::write(path, text).with_context(|| format!("cannot write {path}"))
    };
    map("/proc/self/uid_map", &format!("{user} {user} 1\n"))?;
    // Linux 3.19 and later: without root a group may be mapped only once none can be dropped.
    map("/proc/self/setgroups", "deny\n")?;
    map("/proc/self/gid_map", &format!("{group} {group} 1\n"))?;
    kernel::make_dumpable().context("cannot stay visible to the gateway program")?;
    kernel::pass_on_net_admin().map_err(explain_refusal)?;
    Ok(())
}

/// Adds the reason why a namespace was refused, and the remedy, to an error.
pub(super) fn explain_refusal(error: io::Error) -> anyhow::Error {
    let setting = |name: &str| {
        fs::read_to_string(format!("/proc/sys/{name}"))
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    let advice = if setting("kernel/apparmor_restrict_unprivileged_userns") == "1" {
        "this system lets AppArmor keep ordinary users from it: run as root, or allow it (sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
    } else if setting("kernel/unprivileged_userns_clone") == "0" {
        "this system keeps ordinary users from it: run as root, or allow it (sysctl kernel.unprivileged_userns_clone=1)"
    } else if setting("user/max_user_namespaces") == "0" {
        "this system allows no user namespaces: run as root, or allow them (sysctl user.max_user_namespaces=10000)"
    } else {
        match error.raw_os_error() {
            Some(libc::EPERM) => {
                "run as root; in a container give it --cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun"
            }
            Some(libc::ENOSPC) => {
                "this system's limit of namespaces is reached (sysctl user.max_net_namespaces, \
                 user.max_user_namespaces)"
            }
            Some(libc::EINVAL) => "this kernel was built without it",
            _ => "the kernel refused",
        }
    };
    anyhow!("{error}; {advice}")
}
