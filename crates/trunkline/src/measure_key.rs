//! The key of a turn-up test, from a file, standard input or the environment.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Variable with the key at both ends, if no file is named.
const KEY_VARIABLE: &str = "TRUNKLINE_MEASURE_KEY";
/// Greatest length of a key; a device file would never end.
const KEY_BYTES_MAX: u64 = 64 * 1024;

/// Key of a client, which must have one.
pub(crate) fn needed_key(file: Option<&Path>) -> Result<String> {
    key(file)?.with_context(|| {
        format!("the server's key is missing; use --key-file FILE, or set {KEY_VARIABLE} in the environment")
    })
}

/// The key, from the file or from the environment.
pub(crate) fn key(file: Option<&Path>) -> Result<Option<String>> {
    let words = match file {
        Some(path) if path == Path::new("-") => {
            read_key(std::io::stdin()).context("reading the key from standard input")?
        }
        Some(path) => std::fs::File::open(path)
            .and_then(read_key)
            .with_context(|| format!("cannot read the key in {}", path.display()))?,
        None => match std::env::var(KEY_VARIABLE) {
            Ok(words) => words,
            Err(_) => return Ok(None),
        },
    };
    ensure!(!words.trim().is_empty(), "the key is empty");
    Ok(Some(words.trim().to_owned()))
}

fn read_key(input: impl Read) -> std::io::Result<String> {
    let mut words = String::new();
    input.take(KEY_BYTES_MAX + 1).read_to_string(&mut words)?;
    match words.len() as u64 <= KEY_BYTES_MAX {
        true => Ok(words),
        false => Err(std::io::Error::other(format!(
            "the key has more than {KEY_BYTES_MAX} bytes; use a few words"
        ))),
    }
}
