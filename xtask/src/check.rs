//! What must hold before a change is handed in, apart from the tests.
//!
//! Cheap steps come first, and every step runs even when one before it has failed, so that one
//! run shows all there is to mend. Lints are denied for the compiler that the project names; a
//! newer one brings lints that nobody has seen yet, and its warnings are shown and not denied.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tidy;

/// The release whose warnings are errors: `rust-version` in the workspace's Cargo.toml.
const PINNED_RELEASE: &str = "1.95.";

/// Runs every step and names those that failed.
///
/// # Errors
/// When any step failed, with their names.
pub(crate) fn run(root: &Path) -> Result<()> {
    let deny_warnings = is_pinned_release()?;
    if !deny_warnings {
        println!("check: this compiler is not {PINNED_RELEASE}x; its warnings are shown only");
    }
    let mut failed = Vec::new();
    let mut step = |name: &'static str, outcome: Result<()>| match outcome {
        Ok(()) => println!("check: {name}: good"),
        Err(error) => {
            eprintln!("check: {name}: {error:#}");
            failed.push(name);
        }
    };
    step("tidy", tidy::run(root));
    step("formatting", formatting(root));
    step("lints", lints(root, deny_warnings));
    step("documentation", documentation(root, deny_warnings));
    step("licences and sources", licences(root));
    if failed.is_empty() {
        return Ok(());
    }
    bail!("these checks failed: {}", failed.join(", "))
}

fn formatting(root: &Path) -> Result<()> {
    if !is_installed("fmt") {
        println!("check: no rustfmt in this toolchain: formatting is not checked");
        return Ok(());
    }
    execute(cargo(root).args(["fmt", "--all", "--check"]))
}

fn lints(root: &Path, deny_warnings: bool) -> Result<()> {
    if !is_installed("clippy") {
        println!("check: no clippy in this toolchain: lints are not checked");
        return Ok(());
    }
    let mut command = cargo(root);
    command.args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
        // One run shows what every crate has to mend.
        "--keep-going",
    ]);
    if deny_warnings {
        command.args(["--", "-D", "warnings"]);
    }
    execute(&mut command)
}

fn documentation(root: &Path, deny_warnings: bool) -> Result<()> {
    let mut command = cargo(root);
    // The doc comments of a binary are its help, where a bracket is a bracket and not a link.
    command.args(["doc", "--workspace", "--lib", "--no-deps"]);
    command.args(["--locked", "--quiet", "--keep-going"]);
    if deny_warnings {
        command.env("RUSTDOCFLAGS", "-D warnings");
    }
    execute(&mut command)
}

/// Checks bans, licences and sources; the list of advisories is not reachable from everywhere.
fn licences(root: &Path) -> Result<()> {
    let Some(program) = cargo_deny() else {
        println!("check: no cargo-deny (scripts/install-cargo-deny.sh): licences are not checked");
        return Ok(());
    };
    execute(
        Command::new(program)
            .current_dir(root)
            .args(["--locked", "--log-level", "error", "check"])
            .args(["--hide-inclusion-graph", "bans", "licenses", "sources"]),
    )
}

/// Where `scripts/install-cargo-deny.sh` puts it, or anywhere in PATH.
fn cargo_deny() -> Option<PathBuf> {
    let cache = std::env::var_os("TRUNKLINE_CACHE")
        .map(PathBuf::from)
        .or_else(|| {
            std::env::var_os("XDG_CACHE_HOME").map(|home| Path::new(&home).join("trunkline"))
        })
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/trunkline")));
    let ours = cache.map(|cache| cache.join("tools/bin/cargo-deny"));
    ours.into_iter()
        .chain([PathBuf::from("cargo-deny")])
        .find(|program| succeeds(Command::new(program).arg("--version")))
}

fn is_pinned_release() -> Result<bool> {
    let output = Command::new("rustc")
        .arg("--version")
        .output()
        .context("rustc cannot be started")?;
    let version = String::from_utf8_lossy(&output.stdout);
    Ok(version.starts_with(&format!("rustc {PINNED_RELEASE}")))
}

fn is_installed(subcommand: &str) -> bool {
    succeeds(Command::new("cargo").args([subcommand, "--version"]))
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// A `cargo` in the workspace's folder.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root);
    command
}

fn execute(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    let status = command
        .status()
        .with_context(|| format!("{shown} cannot be started"))?;
    if status.success() {
        return Ok(());
    }
    bail!("{shown} failed ({status})")
}
