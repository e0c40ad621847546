//! The project's own commands, started as `cargo xtask NAME`.
//!
//! - `check`: formatting, lints, documentation, the rules of [`tidy`], licences ([`check`]).
//! - `tidy`: only those rules, which need no compiler and end within a second.
//! - `test`: the ordinary tests, or the long ones by `test --profile long`, with one line of totals
//!   at the end ([`totals`]).
//!
//! Each looks at the checkout that it was started for ([`workspace`]). They use what a checkout and
//! a Rust toolchain offer; what is missing and optional (cargo-deny) is named and left out.

#![forbid(unsafe_code)]

mod check;
mod test;
mod tidy;
mod totals;
mod workspace;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str =
    "usage: cargo xtask check | tidy | test [--profile long] [ARGUMENTS OF cargo test]";

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let command = arguments.next();
    let rest: Vec<String> = arguments.collect();
    match run(command.as_deref(), &rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Option<&str>, rest: &[String]) -> Result<()> {
    let here = env::current_dir().context("the working folder is gone")?;
    let named = env::var_os(workspace::PACKAGE_FOLDER).map(PathBuf::from);
    let root = || workspace::find(named.as_deref(), &here);
    match command {
        Some("check") if rest.is_empty() => check::run(&root()?),
        Some("tidy") if rest.is_empty() => tidy::run(&root()?),
        Some("test") => test::run(&root()?, rest),
        Some(_) | None => bail!("{USAGE}"),
    }
}
