//! Properties of this process that shells need.

use anyhow::{Context, Result};
use host::ProgramEnvironment;
use host::rootless::{INSIDE_VARIABLE, UserNamespaceMembership};

/// Properties of this process that the lab needs.
pub(crate) fn environment() -> Result<ProgramEnvironment> {
    Ok(ProgramEnvironment {
        program: std::env::current_exe().context("finding this program")?,
        arguments: std::env::args_os().skip(1).collect(),
        user_namespace: match std::env::var_os(INSIDE_VARIABLE) {
            Some(_) => UserNamespaceMembership::Yes,
            None => UserNamespaceMembership::No,
        },
    })
}
