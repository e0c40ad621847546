//! Other programs, run to their end.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Directories of programs; an ordinary user's `PATH` omits the system's own.
const DIRECTORIES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Finds a program by its name.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|candidate| candidate.is_file())
}

/// A command for `program`: a path as it is, a bare name as [`find`] finds it.
#[must_use]
pub fn new(program: impl AsRef<Path>) -> Command {
    let program = program.as_ref();
    let found = program
        .to_str()
        .filter(|name| !name.contains('/'))
        .and_then(find);
    Command::new(found.unwrap_or_else(|| program.to_owned()))
}

/// Runs `program` and returns its output.
///
/// # Errors
/// When it cannot be started or fails; the message holds its standard error.
pub fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String> {
    let mut command = new(program);
    command.args(arguments);
    finish(program, &mut command, None)
}

/// Runs `program` with `input` on its standard input and returns its output.
///
/// # Errors
/// As [`run`].
pub fn run_with_input<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
    input: &str,
) -> Result<String> {
    let mut command = new(program);
    command.args(arguments);
    finish(program, &mut command, Some(input))
}

/// Runs a prepared command to its end and returns its output.
///
/// # Errors
/// As [`run`].
pub fn finish(name: &str, command: &mut Command, input: Option<&str>) -> Result<String> {
    command
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    if let (Some(mut pipe), Some(text)) = (child.stdin.take(), input) {
        pipe.write_all(text.as_bytes())
            .with_context(|| format!("writing to {name}"))?;
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("waiting for {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!(
            "`{name} {}` failed ({}): {}",
            arguments.join(" "),
            output.status,
            errors.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
