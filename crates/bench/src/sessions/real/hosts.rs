//! Hosts at both ends in real time: a server that sends as many bytes as requested, and clients.
//!
//! ```text
//!  client ── answer's length, u64 · question's length, u64 · the rest of the question ─► server
//!         ◄─ the answer ─────────────────────────────────────────────────────────────────
//! ```
//! Again and again on one connection; an answer of [`ENDLESS`] has no end. Both are threads of this
//! process whose sockets belong to other network namespaces.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use vocab::SeededRandom;

use host::kernel;

/// The length of an answer that goes on until the client hangs up.
pub(super) const ENDLESS: u64 = u64::MAX;

/// Block size of reads and writes.
const BLOCK: usize = 256 << 10;

/// The least question: both lengths.
const HEADER: u64 = 16;

/// Time limit for connecting, and for a pause: longer than the longest outage that a flow must
/// survive.
const PATIENCE: Duration = Duration::from_secs(60);

/// Content of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerContent {
    /// One random block repeated, for flows that are not reduced.
    Repeated,
    /// Random bytes that differ in every run.
    Fresh,
}

/// Processor time that a thread has used since it began (proc(5), schedstat).
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next();
    Duration::from_nanos(
        nanoseconds
            .and_then(|word| word.parse().ok())
            .unwrap_or_default(),
    )
}

/// Does this in a network namespace, or in the caller's own.
fn within<T: Send>(
    namespace: Option<&Path>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    match namespace {
        Some(namespace) => kernel::in_network_namespace(namespace, work),
        None => work(),
    }
}

/// A server; dropping it ends it.
#[derive(Debug)]
pub(super) struct HostServer {
    namespace: Option<PathBuf>,
    port: u16,
    shared: Arc<ServerState>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ServerState {
    is_over: AtomicBool,
    /// Processor time of connections that have ended.
    processor_ns: AtomicU64,
}

impl HostServer {
    /// Listens in this namespace, at port 0 on any that is free.
    ///
    /// # Errors
    /// When the port is taken or the namespace is gone.
    pub(super) fn start(
        namespace: Option<&Path>,
        port: u16,
        content: AnswerContent,
    ) -> Result<Self> {
        let listener = within(namespace, || {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        })
        .with_context(|| format!("listening on port {port}"))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(ServerState::default());
        let of_listener = Arc::clone(&shared);
        let listener = thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().flatten()) {
                if of_listener.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&of_listener);
                thread::spawn(move || {
                    // A client that hangs up is the usual end.
                    let _ = serve(stream, content, number);
                    let used = thread_time().as_nanos();
                    let used = u64::try_from(used).unwrap_or_default();
                    shared.processor_ns.fetch_add(used, Ordering::Relaxed);
                });
            }
        });
        Ok(Self {
            namespace: namespace.map(Path::to_owned),
            port,
            shared,
            listener: Some(listener),
        })
    }

    /// Processor time of all connections that have ended.
    pub(super) fn processor_time(&self) -> Duration {
        Duration::from_nanos(self.shared.processor_ns.load(Ordering::Relaxed))
    }
}

impl Drop for HostServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let woken = within(self.namespace.as_deref(), || TcpStream::connect(address));
        if woken.is_ok()
            && let Some(listener) = self.listener.take()
        {
            // Its panic has been printed.
            let _ = listener.join();
        }
    }
}

fn serve(mut stream: TcpStream, content: AnswerContent, number: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut random = SeededRandom::for_stream(number, 7);
    let mut block = vec![0; BLOCK];
    random.fill(&mut block);
    loop {
        let mut header = [0; HEADER as usize];
        stream.read_exact(&mut header)?;
        let [answer, question] = [0, 8].map(|at| {
            let bytes = header[at..at + 8].try_into().expect("eight of sixteen");
            u64::from_be_bytes(bytes)
        });
        let rest = question.saturating_sub(HEADER);
        io::copy(&mut (&stream).take(rest), &mut io::sink())?;
        let mut left = answer;
        while left > 0 {
            if content == AnswerContent::Fresh {
                random.fill(&mut block);
            }
            let count = left.min(BLOCK as u64);
            stream.write_all(&block[..count as usize])?;
            left -= count;
        }
    }
}

/// A connection from a host.
#[derive(Debug)]
pub(super) struct HostClient {
    stream: TcpStream,
    began: Instant,
}

impl HostClient {
    /// Connects from this namespace; time counts from here on.
    ///
    /// # Errors
    /// Fails when there is no answer.
    pub(super) fn connect(namespace: Option<&Path>, server: SocketAddr) -> Result<Self> {
        let (stream, began) = within(namespace, || {
            let began = Instant::now();
            Ok((TcpStream::connect_timeout(&server, PATIENCE)?, began))
        })
        .with_context(|| format!("connecting to {server}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, began })
    }

    /// The port it has.
    ///
    /// # Errors
    /// When the socket is gone.
    pub(super) fn port(&self) -> Result<u16> {
        Ok(self.stream.local_addr()?.port())
    }

    /// Sends a question of so many bytes.
    fn ask(&mut self, question: u64, answer: u64) -> io::Result<()> {
        let mut bytes = vec![0; question.max(HEADER) as usize];
        bytes[..8].copy_from_slice(&answer.to_be_bytes());
        bytes[8..16].copy_from_slice(&question.to_be_bytes());
        self.stream.write_all(&bytes)
    }

    /// Times from the connection's start to the first byte of an answer, and to the last.
    ///
    /// # Errors
    /// Fails when the connection breaks.
    pub(super) fn first_and_last_byte(
        mut self,
        question: u64,
        answer: u64,
    ) -> Result<(Duration, Duration)> {
        self.ask(question, answer)?;
        let mut room = vec![0; BLOCK];
        let (mut left, mut first) = (answer, None);
        while left > 0 {
            let count = read_some(&mut self.stream, &mut room)?;
            first.get_or_insert_with(|| self.began.elapsed());
            left = left.saturating_sub(count);
        }
        let last = self.began.elapsed();
        Ok((first.unwrap_or(last), last))
    }

    /// Times of `count` exchanges, one after the other.
    ///
    /// # Errors
    /// Fails when the connection breaks.
    pub(super) fn exchanges(
        mut self,
        question: u64,
        answer: u64,
        count: usize,
    ) -> Result<Vec<Duration>> {
        let mut room = vec![0; answer as usize];
        (0..count)
            .map(|_| {
                let asked = Instant::now();
                self.ask(question, answer)?;
                self.stream.read_exact(&mut room)?;
                Ok(asked.elapsed())
            })
            .collect()
    }

    /// Takes an endless answer in, until it is dropped.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(super) fn take_all(mut self, question: u64) -> Result<BulkDownload> {
        self.ask(question, ENDLESS)?;
        let received = Arc::new(AtomicU64::new(0));
        let used = Arc::new(OnceLock::new());
        let mut stream = self.stream.try_clone()?;
        let (count_in, used_in) = (Arc::clone(&received), Arc::clone(&used));
        let reader = thread::spawn(move || {
            let mut room = vec![0; BLOCK];
            while let Ok(count) = read_some(&mut stream, &mut room) {
                count_in.fetch_add(count, Ordering::Relaxed);
            }
            let _ = used_in.set(thread_time());
        });
        Ok(BulkDownload {
            stream: self.stream,
            began: self.began,
            received,
            used,
            reader: Some(reader),
        })
    }
}

/// An endless answer on its way in; dropping it hangs up.
#[derive(Debug)]
pub(super) struct BulkDownload {
    stream: TcpStream,
    began: Instant,
    received: Arc<AtomicU64>,
    used: Arc<OnceLock<Duration>>,
    reader: Option<JoinHandle<()>>,
}

impl BulkDownload {
    /// Bytes so far.
    ///
    /// # Errors
    /// Fails when the connection has ended by itself.
    pub(super) fn received(&self) -> Result<u64> {
        match self.reader.as_ref().is_some_and(JoinHandle::is_finished) {
            true => Err(anyhow!("the bulk transfer broke off")),
            false => Ok(self.received.load(Ordering::Relaxed)),
        }
    }

    /// The client's port.
    ///
    /// # Errors
    /// When the socket is gone.
    pub(super) fn port(&self) -> Result<u16> {
        Ok(self.stream.local_addr()?.port())
    }

    /// Age of the connection.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Hangs up; gives all bytes, and the processor time that taking them in used.
    pub(super) fn finish(mut self) -> (u64, Duration) {
        self.hang_up();
        let used = self.used.get().copied().unwrap_or_default();
        (self.received.load(Ordering::Relaxed), used)
    }

    fn hang_up(&mut self) {
        // It may have broken already.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            // Its panic has been printed.
            let _ = reader.join();
        }
    }
}

impl Drop for BulkDownload {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// The next bytes of an answer.
fn read_some(stream: &mut TcpStream, room: &mut [u8]) -> io::Result<u64> {
    match stream.read(room)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        count => Ok(count as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(content: AnswerContent) -> (HostServer, SocketAddr) {
        let server = HostServer::start(None, 0, content).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port));
        (server, address)
    }

    fn client(address: SocketAddr) -> HostClient {
        HostClient::connect(None, address).unwrap()
    }

    #[test]
    fn a_server_gives_what_it_is_asked_for() {
        let (server, address) = server(AnswerContent::Fresh);
        let (first, last) = client(address).first_and_last_byte(100, 1 << 20).unwrap();
        assert!(first <= last);
        let times = client(address).exchanges(100, 70_000, 3).unwrap();
        assert_eq!(times.len(), 3);
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn endless_answer_continues_until_the_client_closes() {
        let (_server, address) = server(AnswerContent::Repeated);
        let bulk = client(address).take_all(16).unwrap();
        while bulk.received().unwrap() < 10 << 20 {
            thread::yield_now();
        }
        let (bytes, used) = bulk.finish();
        assert!(bytes >= 10 << 20 && !used.is_zero());
    }
}
