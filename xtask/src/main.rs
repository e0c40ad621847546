//! The project's own commands, started as `cargo xtask NAME`.
//!
//! - `check`: formatting, lints, documentation, the rules of [`tidy`], licences ([`check`]).
//! - `tidy`: only those rules, which need no compiler and end within a second.
//! - `test`: every test, with one line of totals at the end ([`totals`]).
//!
//! They use what a checkout and a Rust toolchain offer; what is missing and optional (cargo-deny)
//! is named and left out.

#![forbid(unsafe_code)]

mod check;
mod test;
mod tidy;
mod totals;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask check | tidy | test [ARGUMENTS OF cargo test]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let outcome = match command.as_deref() {
        Some("check") if rest.is_empty() => check::run(&root()),
        Some("tidy") if rest.is_empty() => tidy::run(&root()),
        Some("test") => test::run(&root(), &rest),
        Some(_) | None => Err(anyhow::anyhow!("{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace, wherever the command was started.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies directly below the workspace")
        .to_owned()
}
