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
    /// Explain the handling of one flow.
    Why {
        /// Its number in `flows`.
        flow: u64,
    },
    /// Read the configuration and the pins again.
    Reload {
        /// True if the configuration may remove peers that have flows, or lose them with its end.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        remove_peers: bool,
        /// True if the configuration may lose settings that restrict interception, serving or
        /// storage.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        remove_restrictions: bool,
    },
    /// Forget everything in the dictionary, in memory and on disk.
    ClearDictionary,
    /// Remove the content of an accelerator, in memory and on disk.
    Purge {
        /// The accelerator's name.
        accelerator: String,
        /// The prefix of the names to remove. An empty prefix removes everything.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
    },
}

/// The reason why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// No node listens.
    #[error("no node is running with this administration socket ({}: {cause}); start it with `trunkline \
             node run`, or name its configuration file with --config", socket.display())]
    NotRunning {
        /// The path where it would listen.
        socket: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The socket belongs to another user.
    #[error("{} belongs to another user; run this command as the user of the node (for example with `sudo`)", .0.display())]
    NotPermitted(PathBuf),
    /// It did not answer.
    #[error("the node does not answer ({0}); it may hang, so look at its log")]
    NoAnswer(io::Error),
    /// The answer cannot be read.
    #[error(
        "this command cannot read the node's answer; check that the node and this command have the same version"
    )]
    InvalidMessage(#[from] serde_json::Error),
    /// The node refuses the request.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to the node of this administration socket.
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
