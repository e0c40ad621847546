//! A client that reads messages by their lengths: what a browser would only blur.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use host::kernel;
use lab::servers::HTTP_PORT;
use lab::topology::LabSite;

/// How long a client waits for anything: a thousand clients share one line.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where clients run, and the server that they ask.
#[derive(Clone, Debug)]
pub(super) struct ClientPlace {
    namespace: PathBuf,
    server: SocketAddr,
}

/// A connection to the server.
#[derive(Debug)]
pub(super) struct WebConnection {
    reader: BufReader<TcpStream>,
}

impl ClientPlace {
    pub(super) fn new(namespace: PathBuf) -> Self {
        let server = SocketAddr::from((LabSite::Far.host_address(), HTTP_PORT));
        Self { namespace, server }
    }

    /// Opens so many connections.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub(super) fn connect(&self, count: usize) -> Result<Vec<WebConnection>> {
        let open = || -> std::io::Result<Vec<TcpStream>> {
            (0..count)
                .map(|_| {
                    let stream = TcpStream::connect_timeout(&self.server, PATIENCE)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                })
                .collect()
        };
        let streams = kernel::in_network_namespace(&self.namespace, open)
            .with_context(|| format!("connecting to {}", self.server))?;
        let connections = streams.into_iter().map(|stream| WebConnection {
            reader: BufReader::new(stream),
        });
        Ok(connections.collect())
    }

    /// Fetches a resource over a connection of its own, and compares it.
    ///
    /// # Errors
    /// When it does not arrive as it should be.
    pub(super) fn fetch(&self, path: &str, expected: &[u8]) -> Result<()> {
        let mut connections = self.connect(1)?;
        let connection = connections.first_mut().context("one was opened")?;
        connection.ask(path)?;
        connection.read(expected).with_context(|| path.to_owned())
    }

    /// The file of the namespace.
    pub(super) fn namespace(&self) -> &Path {
        &self.namespace
    }
}

impl WebConnection {
    /// Sends a request.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(super) fn ask(&mut self, path: &str) -> Result<()> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: www.corp.example\r\n\r\n");
        let stream = self.reader.get_mut();
        stream.write_all(request.as_bytes()).context("asking")
    }

    /// Reads a response and compares its content.
    ///
    /// # Errors
    /// When it is not a success with this content.
    pub(super) fn read(&mut self, expected: &[u8]) -> Result<()> {
        let length = self.read_head()?;
        ensure!(
            length == expected.len(),
            "the length is {length} in place of {}",
            expected.len()
        );
        let mut room = [0; 64 << 10];
        let mut left = expected;
        while !left.is_empty() {
            let most = room.len().min(left.len());
            let count = self.reader.read(&mut room[..most]).context("the content")?;
            ensure!(count > 0, "it ended {} bytes too early", left.len());
            if room[..count] != left[..count] {
                bail!(
                    "the content differs at byte {}",
                    expected.len() - left.len()
                );
            }
            left = &left[count..];
        }
        Ok(())
    }

    /// Reads a response and gives its content.
    ///
    /// # Errors
    /// When it is not a success, or has no length.
    pub(super) fn receive(&mut self) -> Result<Vec<u8>> {
        let mut content = vec![0; self.read_head()?];
        self.reader
            .read_exact(&mut content)
            .context("the content")?;
        Ok(content)
    }

    /// Reads the head of a success; gives the content's length.
    fn read_head(&mut self) -> Result<usize> {
        let (mut line, mut length) = (String::new(), None);
        self.reader
            .read_line(&mut line)
            .context("the status line")?;
        ensure!(line.starts_with("HTTP/1.1 200 "), "the answer is {line:?}");
        loop {
            line.clear();
            self.reader.read_line(&mut line).context("the head")?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok();
            }
        }
        length.context("the content has no length")
    }
}
