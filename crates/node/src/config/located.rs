//! Errors that point at a line of the file, with a caret under the position and the correction.

use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The greatest edit distance at which another key is still suggested: two slips of a finger.
const NEAREST_DISTANCE: usize = 2;
/// The longest piece of a line that is shown; carets under longer ones would wrap.
const SHOWN_COLUMNS: usize = 120;

/// An error in a configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {}: {cause}; name another file with --config, or correct the cause", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// Something at one place.
    #[error("{}:{line}:{column}: {message}\n{excerpt}", file.display())]
    Located {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted in characters from 1.
        column: usize,
        /// The error and its correction.
        message: String,
        /// The line with a caret under the place.
        excerpt: String,
    },
    /// Something about the whole.
    #[error("{}: {message}", file.display())]
    Whole {
        /// The file.
        file: PathBuf,
        /// The error and its correction.
        message: String,
    },
}

/// A text and its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceText<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl SourceText<'_> {
    /// An error at this span of the text.
    pub(super) fn at(&self, span: Range<usize>, message: &str) -> ConfigError {
        let start = span.start.min(self.text.len());
        let before = &self.text[..self.text.floor_char_boundary(start)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let whole_line = self.text[line_start..].lines().next().unwrap_or("");
        let column = before[line_start..].chars().count() + 1;

        let shown: String = whole_line
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(SHOWN_COLUMNS)
            .collect();
        let rest = shown.chars().count().saturating_sub(column - 1);
        let carets = span.len().clamp(1, rest.max(1));
        let number = line.to_string();
        let gutter = " ".repeat(number.len());
        let mut excerpt = String::new();
        let _ = writeln!(excerpt, "{gutter} |");
        let _ = writeln!(excerpt, "{number} | {shown}");
        let _ = write!(
            excerpt,
            "{gutter} | {}{}",
            " ".repeat((column - 1).min(SHOWN_COLUMNS)),
            "^".repeat(carets)
        );
        ConfigError::Located {
            file: self.file.to_owned(),
            line,
            column,
            message: message.to_owned(),
            excerpt,
        }
    }

    /// The TOML reader's own error, with a suggestion where a key is unknown.
    pub(super) fn toml_error(&self, error: &toml::de::Error, keys: &[&str]) -> ConfigError {
        let message = self.plain(error.message(), keys);
        match error.span() {
            Some(span) => self.at(span, &message),
            None => ConfigError::Whole {
                file: self.file.to_owned(),
                message,
            },
        }
    }

    /// The error for an unknown key at this span, with the nearest of the keys that are known here,
    /// or else anywhere.
    pub(super) fn unknown_key(
        &self,
        span: Range<usize>,
        unknown: &str,
        here: &[&str],
        anywhere: &[&str],
    ) -> ConfigError {
        self.at(span, &unknown_key_text(unknown, here, anywhere))
    }

    /// Translates the messages of serde and the TOML reader into the operator's terms.
    fn plain(&self, message: &str, keys: &[&str]) -> String {
        let message = message.trim_end();
        let quoted = |text: &str| text.split('`').nth(1).map(str::to_owned);
        if message.starts_with("unknown field") {
            let unknown = quoted(message).unwrap_or_default();
            let expected: Vec<&str> = message
                .split_once("expected")
                .map_or("", |(_, list)| list)
                .split('`')
                .skip(1)
                .step_by(2)
                .collect();
            return unknown_key_text(&unknown, &expected, keys);
        }
        if message.starts_with("missing field") {
            let missing = quoted(message).unwrap_or_default();
            return format!(
                "the key `{missing}` is missing and has no default; write it in this section"
            );
        }
        if message.contains("invalid socket address") {
            return "this is not an address with a port; write an address such as \"127.0.0.1:9100\" or \"[::1]:9100\"".to_owned();
        }
        message.lines().collect::<Vec<_>>().join("; ")
    }
}

fn unknown_key_text(unknown: &str, expected: &[&str], keys: &[&str]) -> String {
    let here = nearest(unknown, expected).map(|key| format!("; did you mean `{key}`?"));
    let elsewhere = || {
        nearest(unknown, keys).map(|key| format!("; the key `{key}` belongs to another section"))
    };
    let hint = here.or_else(elsewhere).unwrap_or_default();
    format!(
        "the key `{unknown}` does not exist in this section{hint} (its keys are: {})",
        expected.join(", ")
    )
}

/// The nearest of `known`, if it is near enough to be a slip.
fn nearest<'a>(text: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|key| (distance(text, key), *key))
        .filter(|(distance, key)| *distance <= NEAREST_DISTANCE && *distance < key.len())
        .min()
        .map(|(_, key)| key)
}

/// Levenshtein's edit distance in characters.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}
