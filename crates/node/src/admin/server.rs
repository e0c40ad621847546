//! Answering operators.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use vocab::NodeId;

use super::AdminRequest;
use super::purge::DictionaryPurge;

use crate::config::{InterceptMode, NodeConfig};
use crate::intercept;
use crate::mailbox::{LoopMailbox, OperatorQuestion};
use crate::places::{PlaceLimits, PlacePool, SourceStanding};
use crate::preflight;
use crate::rereading::{ConfigChanges, ConfirmedRemovals, ReloadRequester};

/// A request is one short line.
const LONGEST_REQUEST: u64 = 4096;
/// For a whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time for reading a configuration: less than clients wait for an answer.
const READING: Duration = Duration::from_secs(3);
/// The time in which an accelerator removes content and the disk confirms it: less than clients
/// wait for an answer.
const PURGING: Duration = Duration::from_secs(4);
/// The limit of simultaneous operators and scripts. A connection that has sent nothing for a
/// second, or waits longer than a query of the engine takes, may lose its place to the next.
const SHARING: PlaceLimits = PlaceLimits {
    places: 16,
    per_source: 16,
    time_to_finish: Duration::from_secs(1),
};
/// The source of all users of the socket, who count as one.
const OPERATORS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The sources of the answers to operators' questions.
pub(crate) struct AdminContext {
    pub(crate) config: NodeConfig,
    pub(crate) identity: NodeId,
    pub(crate) mailbox: LoopMailbox,
    pub(crate) interception: watch::Receiver<intercept::InterceptReport>,
    pub(crate) purge: DictionaryPurge,
    pub(crate) reload: mpsc::UnboundedSender<ReloadRequester>,
    pub(crate) started: tokio::time::Instant,
}

/// The error for a file under the socket's name that is not a socket; the node does not remove it.
pub(crate) const NO_SOCKET: &str = "a file with this name exists and is not a socket; remove the file, or \
                                    write another admin_socket under [node]";

/// Binds the socket for its owner alone. The state directory's lock is held, so an existing socket
/// belongs to a dead node. Nothing else is removed.
///
/// # Errors
/// What the system says.
pub(crate) fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, NO_SOCKET)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers until dropped.
pub(crate) async fn listen(listener: UnixListener, asked: Arc<AdminContext>) {
    let places = PlacePool::new(SHARING);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(place) = places.enter(OPERATORS, SourceStanding::Unknown) else {
            continue;
        };
        let asked = Arc::clone(&asked);
        tokio::spawn(async move {
            let timely = tokio::time::timeout(TIMEOUT, serve(stream, &asked));
            let _ = place.hold(timely).await;
        });
    }
}

async fn serve(stream: UnixStream, asked: &AdminContext) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    BufReader::new(reader.take(LONGEST_REQUEST))
        .read_line(&mut line)
        .await?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => asked.answer(request).await,
        Err(error) => json!({ "error": format!("the request cannot be read: {error}") }),
    };
    let mut text = answer.to_string();
    text.push('\n');
    writer.write_all(text.as_bytes()).await?;
    writer.shutdown().await
}

impl AdminContext {
    async fn answer(&self, request: AdminRequest) -> Value {
        let answered = match request {
            AdminRequest::Status => return self.status().await,
            AdminRequest::Flows => self
                .mailbox
                .ask(OperatorQuestion::Flows)
                .await
                .map(|flows| json!({ "flows": flows })),
            AdminRequest::Why { flow } => match self.mailbox.ask(OperatorQuestion::Why(flow)).await
            {
                Some(Value::Null) => {
                    return json!({ "error": format!("the node does not know flow {flow}, or has forgotten \
                        it; `trunkline node flows` lists the flows that it knows") });
                }
                answered => answered,
            },
            AdminRequest::ClearDictionary => self.purge.run(&self.mailbox).await,
            AdminRequest::Purge {
                accelerator,
                prefix,
            } => {
                let purge = self.mailbox.purge_accelerator(accelerator, prefix);
                match tokio::time::timeout(PURGING, purge).await {
                    Ok(answered) => answered,
                    Err(_) => Some(json!({ "error": format!(
                        "the disk has not confirmed the removal after {} s; until it confirms, a crash can \
                         restore the content",
                        PURGING.as_secs()
                    ) })),
                }
            }
            AdminRequest::Reload {
                remove_peers: peers,
                remove_restrictions: restrictions,
            } => {
                let confirmed = ConfirmedRemovals {
                    peers,
                    restrictions,
                };
                reload(&self.reload, confirmed, READING).await
            }
        };
        answered.unwrap_or_else(|| json!({ "error": "the node is stopping" }))
    }

    /// The engine's state and the shell's around it.
    pub(crate) async fn status(&self) -> Value {
        let Some(mut status) = self.mailbox.ask(OperatorQuestion::Status).await else {
            return json!({ "error": "the node is stopping" });
        };
        let mode = match self.config.intercept.mode {
            InterceptMode::Transparent => "transparent",
            InterceptMode::Off => "off",
        };
        if let Some(fields) = status.as_object_mut() {
            fields.insert("name".to_owned(), json!(self.config.name));
            fields.insert("node".to_owned(), json!(self.identity.to_string()));
            fields.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
            fields.insert("process".to_owned(), json!(std::process::id()));
            fields.insert(
                "uptime_s".to_owned(),
                json!(self.started.elapsed().as_secs()),
            );
            fields.insert("mode".to_owned(), json!(mode));
            let listeners = preflight::listeners(&self.config);
            let listeners = listeners.iter().map(|(_, address)| address.to_string());
            fields.insert("listeners".to_owned(), listeners.collect());
            fields.insert(
                "interception".to_owned(),
                json!(*self.interception.borrow()),
            );
        }
        status
    }
}

/// Reloads the configuration and returns the result; `None` when the node is stopping.
async fn reload(
    reload: &mpsc::UnboundedSender<ReloadRequester>,
    confirmed: ConfirmedRemovals,
    within: Duration,
) -> Option<Value> {
    let (asker, told) = oneshot::channel();
    let asker = ReloadRequester {
        reply: asker,
        confirmed,
    };
    reload.send(asker).ok()?;
    match tokio::time::timeout(within, told).await {
        Ok(told) => Some(match told.ok()? {
            Ok(ConfigChanges {
                removed_peers,
                removed_restrictions,
                is_beginning,
            }) => json!({
                "removed_peers": removed_peers,
                "removed_restrictions": removed_restrictions,
                "is_beginning": is_beginning,
            }),
            Err(error) => {
                json!({ "error": format!("the node refused the new configuration and continues with the old \
                                          one: {error}") })
            }
        }),
        Err(_) => Some(json!({ "error": format!(
            "after {} s the node is still reading the new configuration or a file that it names; it \
             continues with the old configuration, and its log will contain the result",
            within.as_secs()
        ) })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_socket_is_removed_for_a_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        drop(bind(&path).unwrap());
        drop(bind(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "somebody's").unwrap();
        let error = bind(&path).unwrap_err().to_string();
        assert!(
            error.contains("not a socket") && error.contains("admin_socket"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
        // Nor is a link followed, or removed.
        let link = directory.path().join("link.sock");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(bind(&link).is_err());
        assert!(link.is_symlink());
    }

    #[tokio::test]
    async fn reload_is_answered_with_its_result() {
        let (ask, mut asked) = mpsc::unbounded_channel::<ReloadRequester>();
        for (outcome, said) in [
            (Ok(ConfigChanges::default()), None),
            (
                Err("accounts is open to others".to_owned()),
                Some("accounts is open to others"),
            ),
        ] {
            let reader = async { asked.recv().await.unwrap().reply.send(outcome).unwrap() };
            let unconfirmed = ConfirmedRemovals::NOTHING;
            let (answer, ()) = tokio::join!(reload(&ask, unconfirmed, Duration::MAX), reader);
            let answer = answer.unwrap();
            match (answer["error"].as_str(), said) {
                (None, None) => {}
                (Some(error), Some(said)) => {
                    assert!(error.contains(said) && error.contains("the old"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
        // A disk that does not answer.
        let answer = reload(&ask, ConfirmedRemovals::EVERYTHING, Duration::ZERO)
            .await
            .unwrap();
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains("still reading"), "{error}");
        drop(asked);
        assert_eq!(
            reload(&ask, ConfirmedRemovals::EVERYTHING, READING).await,
            None
        );
    }
}
