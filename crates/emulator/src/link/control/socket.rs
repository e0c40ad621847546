//! Control socket of a link, and the search for links.
//!
//! Only its owner can use the socket from the first moment on: it is made in a directory that
//! nobody else may enter, is given mode 0600 and listens there, and only then appears under its
//! name. The name of a running link is refused; the name of a killed link's socket is free, because
//! nothing listens on it. A link removes only sockets that it has made itself.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use serde_json::{Value, json};

use super::{ControlRequest, ControlTarget};
use host::invalid_request::InvalidRequest;

/// A request is one line; the longest names a few files.
const LONGEST_REQUEST: u64 = 64 << 10;
/// A status has some kilobytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// Time limit for a whole exchange.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Greatest number of clients at a time.
const CLIENTS_MAX: usize = 16;
/// Number of attempts when another process takes a name between the check and its use.
const ATTEMPTS_MAX: u32 = 5;

/// The socket of a link; dropping it removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// Identity of its file, so that another link's file under the same name is not removed.
    identity: FileIdentity,
    /// The directory, if it was made for this socket.
    made: Option<PathBuf>,
    /// The listener, through which it is woken out of its wait.
    waker: UnixStream,
    listener: Option<thread::JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl ControlSocket {
    /// Listens at this path for its owner alone.
    ///
    /// # Errors
    /// When another link listens there, or the socket cannot be made, as where there is no such
    /// directory.
    pub fn listen(path: &Path, link: Arc<dyn ControlTarget>) -> Result<Self> {
        let about = || format!("cannot listen at the control socket {}", path.display());
        let (listener, identity) = bind(path).with_context(about)?;
        let waker = listener.try_clone().with_context(about)?;
        link.is_asked_at(path);
        let is_over = Arc::new(AtomicBool::new(false));
        let listener = thread::Builder::new()
            .name("control".to_owned())
            .spawn({
                let is_over = Arc::clone(&is_over);
                move || serve(&listener, &link, &is_over)
            })
            .context("cannot start the control socket's thread")?;
        Ok(Self {
            path: path.to_owned(),
            identity,
            made: None,
            waker: UnixStream::from(OwnedFd::from(waker)),
            listener: Some(listener),
            is_over,
        })
    }

    /// Listens in the first of these directories that accepts a socket, under the link's name, or
    /// under its name and process number where another link has the name; `None` if no directory
    /// does. A directory that does not exist is created in its place.
    #[must_use]
    pub fn listen_in(
        directories: &[PathBuf],
        name: &str,
        link: &Arc<dyn ControlTarget>,
    ) -> Option<Self> {
        let with_process = format!("{name}-{}", std::process::id());
        for directory in directories {
            for name in [name, &with_process] {
                let made = fs::DirBuilder::new().mode(0o700).create(directory);
                match Self::listen(&socket_in(directory, name), Arc::clone(link)) {
                    Ok(mut socket) => {
                        socket.made = made.is_ok().then(|| directory.clone());
                        return Some(socket);
                    }
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::debug!(error, "no control socket here");
                    }
                }
            }
        }
        None
    }

    /// The name under which the link is found, if it is where links are looked for.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        name_at(&self.path)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // It can be gone only because somebody removed it.
        let _ = remove(&self.path, self.identity);
        if let Some(made) = &self.made {
            // It stays where another link has its socket in it by now.
            let _ = fs::remove_dir(made);
        }
        // A socket that is shut down ends the wait of its listener.
        let woken = self.waker.shutdown(Shutdown::Both);
        if woken.is_ok()
            && let Some(listener) = self.listener.take()
        {
            // A panic in there has been printed; the link goes on without it.
            let _ = listener.join();
        }
    }
}

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity(u64, u64);

/// Holder of a socket's name.
enum SocketHolder {
    Nothing,
    /// One that can be asked.
    Link,
    /// A link of another user, or one that does not answer.
    Others,
    /// No process, because its link was killed.
    Nobody(FileIdentity),
    /// Not a socket.
    File,
}

fn holder(path: &Path) -> io::Result<SocketHolder> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SocketHolder::Nothing),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Ok(SocketHolder::File);
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(SocketHolder::Nobody(FileIdentity(found.dev(), found.ino())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SocketHolder::Nothing),
        Err(_) => Ok(SocketHolder::Others),
        Ok(_) => Ok(SocketHolder::Link),
    }
}

/// Removes a socket, unless another has its name by now.
fn remove(path: &Path, identity: FileIdentity) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if FileIdentity(found.dev(), found.ino()) == identity {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Makes a socket that listens and is the owner's alone before anybody can find it, and gives it
/// its name.
fn bind(path: &Path) -> Result<(UnixListener, FileIdentity)> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        bail!(
            "the directory {} does not exist; create it, or choose another path with --control",
            parent.display()
        );
    }
    let private = private_directory(parent)?;
    let made = bind_in(&private, path);
    let removed = fs::remove_dir_all(&private);
    let made = made?;
    removed?;
    Ok(made)
}

/// A new directory that nobody else may enter. Its name is short, because the path of a socket has
/// 107 bytes at most.
fn private_directory(parent: &Path) -> io::Result<PathBuf> {
    let mut attempt = 0;
    loop {
        let private = parent.join(format!(".{:x}-{attempt}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&private) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS_MAX =>
            {
                attempt += 1;
            }
            made => return made.map(|()| private),
        }
    }
}

fn bind_in(private: &Path, path: &Path) -> Result<(UnixListener, FileIdentity)> {
    let unnamed = private.join("s");
    let listener = UnixListener::bind(&unnamed)?;
    fs::set_permissions(&unnamed, fs::Permissions::from_mode(0o600))?;
    let made = fs::symlink_metadata(&unnamed)?;
    for _ in 0..ATTEMPTS_MAX {
        match fs::hard_link(&unnamed, path) {
            Ok(()) => return Ok((listener, FileIdentity(made.dev(), made.ino()))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        match holder(path)? {
            SocketHolder::Nothing => {}
            SocketHolder::Nobody(left) => {
                tracing::debug!(path = %path.display(), "a killed link has left its control socket");
                remove(path, left)?;
            }
            SocketHolder::Link | SocketHolder::Others => {
                bail!("another link listens there; choose another path with --control")
            }
            SocketHolder::File => {
                bail!(
                    "a file with this name exists and is not a socket; choose another path with --control"
                )
            }
        }
    }
    bail!("other programs create this file again and again; choose another path with --control")
}

fn serve(listener: &UnixListener, link: &Arc<dyn ControlTarget>, is_over: &AtomicBool) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, for instance; it may pass.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (link, served) = (Arc::clone(link), Arc::clone(&clients));
        let started = thread::Builder::new().spawn(move || {
            if let Err(error) = exchange(&stream, &*link) {
                tracing::debug!(%error, "a control request was given up");
            }
            served.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn exchange(stream: &UnixStream, link: &dyn ControlTarget) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_REQUEST)).read_until(b'\n', &mut line)?;
    let answer = if line.len() as u64 == LONGEST_REQUEST {
        json!({
            "error": format!("a request is one line of less than {LONGEST_REQUEST} bytes"),
            "refused": true,
        })
    } else {
        link.answer(&String::from_utf8_lossy(&line))
    };
    let mut writer = stream;
    writer.write_all(format!("{answer}\n").as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    // What is left of too long a request is read, because closing before would take the answer
    // back from the asker.
    io::copy(&mut stream.take(LONGEST_ANSWER), &mut io::sink()).map(drop)
}

/// Sends a request to the link that listens at this path. A killed link's socket is removed.
///
/// # Errors
/// Fails when no link listens there, when it does not answer, or when it refuses the request
/// ([`InvalidRequest`]), with the reason.
pub fn ask(path: &Path, request: &ControlRequest) -> Result<Value> {
    let mut stream = UnixStream::connect(path).map_err(|error| nobody(path, error))?;
    let about = || format!("the link at {} does not answer", path.display());
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let line = serde_json::to_string(request)?;
    stream
        .write_all(format!("{line}\n").as_bytes())
        .with_context(about)?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER))
        .read_line(&mut answer)
        .with_context(about)?;
    let answer: Value = serde_json::from_str(&answer).with_context(about)?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) if answer["refused"] == true => {
            Err(InvalidRequest::because(anyhow!("{error}")))
        }
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}

/// Error for a path at which no link answers.
fn nobody(path: &Path, error: io::Error) -> Error {
    let place = path.display();
    match holder(path) {
        Ok(SocketHolder::Nobody(left)) => match remove(path, left) {
            Ok(()) => anyhow!(
                "no link listens at {place}, because the link was killed; its socket was removed"
            ),
            Err(error) => anyhow!(
                "no link listens at {place}, because the link was killed; its \
                 socket cannot be removed: {error}"
            ),
        },
        Ok(SocketHolder::File) => anyhow!("{place} is not the control socket of a link"),
        _ => Error::new(error).context(format!(
            "no link listens at {place}; `trunkline emulate status` lists the running links"
        )),
    }
}

/// Prefix of the names of sockets in their directories.
const PREFIX: &str = "emulate-";
const SUFFIX: &str = ".sock";

/// The socket of the link of this name.
#[must_use]
pub fn socket_in(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{PREFIX}{name}{SUFFIX}"))
}

/// The name of the link whose socket this is, if it is named as links are.
#[must_use]
pub fn name_at(socket: &Path) -> Option<&str> {
    let file = socket.file_name()?.to_str()?;
    file.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)
}

/// The links of some directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundLinks {
    /// The names of those that listen, with their sockets, sorted.
    pub running: Vec<(String, PathBuf)>,
    /// The names of those that were killed, sorted; their sockets are removed, or would be if this
    /// user could.
    pub killed: Vec<String>,
}

/// Looks for links in these directories, and removes the sockets of killed ones.
#[must_use]
pub fn look_for_links(directories: &[PathBuf]) -> FoundLinks {
    let mut found = FoundLinks::default();
    let entries = directories
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .filter_map(Result::ok);
    for entry in entries {
        let path = entry.path();
        let Some(name) = name_at(&path).map(str::to_owned) else {
            continue;
        };
        match holder(&path) {
            Ok(SocketHolder::Nobody(left)) => {
                if let Err(error) = remove(&path, left) {
                    tracing::debug!(%error, name, "a killed link's socket stays");
                }
                found.killed.push(name);
            }
            Ok(SocketHolder::Link) => found.running.push((name, path)),
            Ok(SocketHolder::Nothing | SocketHolder::Others | SocketHolder::File) | Err(_) => {}
        }
    }
    found.running.sort();
    found.killed.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket whose listener is gone.
    fn left_behind(path: &Path) -> FileIdentity {
        drop(UnixListener::bind(path).unwrap());
        identity(path)
    }

    fn identity(path: &Path) -> FileIdentity {
        let found = fs::symlink_metadata(path).unwrap();
        FileIdentity(found.dev(), found.ino())
    }

    #[test]
    fn socket_is_private_and_leaves_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("link.sock");
        let (_listener, made) = bind(&path).unwrap();
        assert_eq!(identity(&path), made);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        let parent = path.parent().unwrap();
        assert_eq!(fs::read_dir(parent).unwrap().count(), 1);
    }

    #[test]
    fn no_directory_is_made_for_a_socket() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("new");
        let refused = format!("{:#}", bind(&missing.join("link.sock")).unwrap_err());
        assert!(refused.contains("does not exist"), "{refused}");
        assert!(!missing.exists());
    }

    #[test]
    fn killed_links_socket_is_replaced_unlike_live_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("link.sock");
        let left = left_behind(&path);
        let (_listener, made) = bind(&path).unwrap();
        assert_ne!(left, made);
        let refused = format!("{:#}", bind(&path).unwrap_err());
        assert!(refused.contains("another link listens"), "{refused}");
        assert_eq!(identity(&path), made);
        let file = directory.path().join("file");
        fs::write(&file, "precious").unwrap();
        let refused = format!("{:#}", bind(&file).unwrap_err());
        assert!(refused.contains("not a socket"), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }

    #[test]
    fn another_links_socket_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("link.sock");
        let first = left_behind(&path);
        let kept = directory.path().join("kept.sock");
        fs::rename(&path, kept).unwrap();
        let second = left_behind(&path);
        remove(&path, first).unwrap();
        assert_eq!(identity(&path), second);
        remove(&path, second).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn killed_links_are_named_and_their_sockets_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| socket_in(directory.path(), name);
        left_behind(&at("gone"));
        let _listener = UnixListener::bind(at("here")).unwrap();
        fs::write(at("file"), "").unwrap();
        let found = look_for_links(&[directory.path().to_owned()]);
        assert_eq!(found.running, [("here".to_owned(), at("here"))]);
        assert_eq!(found.killed, ["gone"]);
        assert!(!at("gone").exists());
        assert!(at("file").exists());

        left_behind(&at("gone"));
        let error = format!(
            "{:#}",
            ask(&at("gone"), &ControlRequest::Status).unwrap_err()
        );
        assert!(error.contains("was killed"), "{error}");
        assert!(!at("gone").exists());
    }
}
