//! Which checkout a command is for.
//!
//! It is found when the command runs and not when it was built: checkouts that share a target
//! folder share the program too, and each must be looked at by its own `cargo xtask`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The variable by which `cargo run` names the folder of the package that it runs.
pub(crate) const PACKAGE_FOLDER: &str = "CARGO_MANIFEST_DIR";

/// The workspace above `package_folder`, which cargo names; where it names none, or another
/// project's, the nearest one at or above `here`.
///
/// # Errors
/// When there is none.
pub(crate) fn find(package_folder: Option<&Path>, here: &Path) -> Result<PathBuf> {
    let named = package_folder
        .filter(|folder| folder.ends_with("xtask"))
        .and_then(Path::parent);
    let found = named
        .into_iter()
        .chain(here.ancestors())
        .find(|folder| is_workspace(folder));
    match found {
        Some(folder) => Ok(folder.to_owned()),
        None => bail!(
            "{} lies in no checkout of this project; go into one",
            here.display()
        ),
    }
}

/// Whether this is a workspace with commands of its own; `fuzz/` is a workspace without.
fn is_workspace(folder: &Path) -> bool {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    manifest.lines().any(|line| line.trim() == "[workspace]")
        && folder.join("xtask/Cargo.toml").is_file()
}
