//! Asking a running node.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A node that does not answer within this hangs.
const TIMEOUT: Duration = Duration::from_secs(5);
/// An answer about the greatest number of flows stays below it.
const LONGEST_ANSWER: u64 = 64 << 20;

/// A question or an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AdminRequest {
    /// The node's state.
    Status,
    /// Its flows.
    Flows,
    /// What was done with one flow.
    Why {
        /// Its number in `flows`.
        flow: u64,
    },
    /// Read the configuration and the pins again.
    Reload {
        /// Whether the configuration may take away peers that have flows, or lose them with its end.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        remove_peers: bool,
        /// Whether it may lose settings without which more is intercepted, served or stored.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        remove_restrictions: bool,
    },
    /// Forget everything in the dictionary, in memory and on disk.
    ClearDictionary,
    /// Remove what an accelerator keeps, in memory and on disk.
    Purge {
        /// The accelerator's name.
        accelerator: String,
        /// What is to go: everything if empty, else what is kept under names that begin so.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
    },
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// No node listens.
    #[error("no node is running here ({}: {cause}); start it with `trunkline node run`, or give its configuration with --config", socket.display())]
    NotRunning {
        /// Where it would listen.
        socket: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The socket belongs to somebody else.
    #[error("{} belongs to another user; run this as the user of the node (`sudo`)", .0.display())]
    NotPermitted(PathBuf),
    /// It did not answer.
    #[error("the node does not answer ({0}); is it hung? its log says more")]
    NoAnswer(io::Error),
    /// The answer cannot be read.
    #[error("the node's answer cannot be read; are node and command of the same version?")]
    InvalidMessage(#[from] serde_json::Error),
    /// The node says no.
    #[error("{0}")]
    Refused(String),
}

/// Asks the node whose administration socket this is.
///
/// # Errors
/// When it is not running, does not answer or refuses.
pub fn ask(socket: &Path, request: AdminRequest) -> Result<serde_json::Value, AskError> {
    let mut stream = UnixStream::connect(socket).map_err(|cause| match cause.kind() {
        io::ErrorKind::PermissionDenied => AskError::NotPermitted(socket.to_owned()),
        _ => AskError::NotRunning {
            socket: socket.to_owned(),
            cause,
        },
    })?;
    let exchange = || {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut answer)?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    };
    let answer = exchange().map_err(AskError::NoAnswer)?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    match answer.get("error").and_then(serde_json::Value::as_str) {
        Some(error) => Err(AskError::Refused(error.to_owned())),
        None => Ok(answer),
    }
}
