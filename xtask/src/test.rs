//! Runs every test and ends with one line of totals, `N passed, N failed`.
//!
//! The output of `cargo test` goes through unchanged. Every test program runs even when one before
//! it has failed, and the tests of the laboratory, which share the machine's network, one by one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::check::cargo;
use crate::totals::Totals;

/// Runs `cargo test` for the workspace, or with the arguments given.
///
/// # Errors
/// When a test failed or none could be built.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let mut command = cargo(root);
    command.arg("test").arg("--locked");
    if arguments.is_empty() {
        command.args(["--workspace", "--no-fail-fast"]);
    } else {
        command.args(arguments);
    }
    let mut totals = Totals::default();
    let succeeded = pass_through(&mut command, &mut totals)?;
    if totals.ignored > 0 {
        println!("{} ignored", totals.ignored);
    }
    println!("{totals}");
    if !succeeded {
        bail!("tests failed or could not be built");
    }
    Ok(())
}

/// Prints the command's output line by line while it runs, and counts the results in it.
fn pass_through(command: &mut Command, totals: &mut Totals) -> Result<bool> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo cannot be started")?;
    let output = child.stdout.take().expect("the pipe was asked for above");
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("the output of cargo test broke off")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        totals.read_line(&line);
    }
    let status = child.wait().context("cargo test cannot be waited for")?;
    Ok(status.success())
}
