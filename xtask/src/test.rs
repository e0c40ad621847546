//! Runs the tests of one profile and ends with one line of totals, `N passed, N failed`.
//!
//! The ordinary profile leaves out the tests that are marked `#[ignore]`, because they take
//! minutes. `--profile long` runs these and no others.
//!
//! The output of `cargo test` goes through unchanged. Every test program runs even when one before
//! it has failed, and the tests of the laboratory, which share the machine's network, one by one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::check::cargo;
use crate::totals::Totals;

/// Runs `cargo test` for the workspace, or with the arguments given. `--profile long` in front of
/// them selects the long tests.
///
/// # Errors
/// When a test failed, none could be built, or the profile is unknown.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let mut command = cargo(root);
    command.arg("test").args(cargo_arguments(arguments)?);
    let mut totals = Totals::default();
    let succeeded = pass_through(&mut command, &mut totals)?;
    if totals.ignored > 0 {
        println!(
            "{} skipped: long tests, which `cargo xtask test --profile long` runs",
            totals.ignored
        );
    }
    println!("{totals}");
    if !succeeded {
        bail!("tests failed or could not be built");
    }
    Ok(())
}

/// Builds the arguments of `cargo test` from those of `cargo xtask test`.
fn cargo_arguments(arguments: &[String]) -> Result<Vec<String>> {
    let (is_long, rest) = match arguments {
        [option, profile, rest @ ..] if option == "--profile" => match profile.as_str() {
            "long" => (true, rest),
            other => bail!("there is no test profile `{other}`; the only one is `long`"),
        },
        rest => (false, rest),
    };
    let mut built = vec!["--locked".to_owned()];
    if rest.is_empty() {
        built.extend(["--workspace", "--no-fail-fast"].map(str::to_owned));
    }
    built.extend_from_slice(rest);
    if is_long {
        if !rest.iter().any(|argument| argument == "--") {
            built.push("--".to_owned());
        }
        built.push("--ignored".to_owned());
    }
    Ok(built)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn built(arguments: &[&str]) -> Vec<String> {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        cargo_arguments(&arguments).expect("the arguments are valid")
    }

    #[test]
    fn ordinary_profile_runs_whole_workspace() {
        assert_eq!(built(&[]), ["--locked", "--workspace", "--no-fail-fast"]);
        assert_eq!(built(&["-p", "reduce"]), ["--locked", "-p", "reduce"]);
    }

    #[test]
    fn long_profile_runs_ignored_tests_only() {
        let whole = [
            "--locked",
            "--workspace",
            "--no-fail-fast",
            "--",
            "--ignored",
        ];
        assert_eq!(built(&["--profile", "long"]), whole);
        let chosen = ["--locked", "-p", "node", "--", "close", "--ignored"];
        assert_eq!(
            built(&["--profile", "long", "-p", "node", "--", "close"]),
            chosen
        );
    }

    #[test]
    fn unknown_profile_is_refused() {
        let arguments = ["--profile".to_owned(), "slow".to_owned()];
        assert!(cargo_arguments(&arguments).is_err());
    }
}
