//! The Python environments that the project's installation makes for clients and servers of the lab.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The Python of an environment: the one that the variable names, or the one in this directory of
/// the project's cache.
///
/// # Errors
/// Fails when no variable says where the cache is.
pub(crate) fn installed_python(variable: &str, directory: &str) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(variable) {
        return Ok(named.into());
    }
    let cache = cache_directory().with_context(|| format!("{variable} is not set either"))?;
    Ok(cache.join(directory).join("bin/python3"))
}

/// The project's cache directory, which need not exist.
///
/// # Errors
/// Fails when no variable says where it is.
pub(crate) fn cache_directory() -> Result<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    path("TRUNKLINE_CACHE")
        .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("trunkline")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/trunkline")))
        .context("HOME is not set, and TRUNKLINE_CACHE names no cache directory")
}
