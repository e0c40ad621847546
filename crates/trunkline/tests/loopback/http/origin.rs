//! A web server beside the far node, and a client that reads messages as RFC 9112 frames them.
//!
//! The server records its requests, so that a test can tell a stored answer from a forwarded one.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use vocab::SeededRandom;

use crate::sites::{PATIENCE, TestSites, connect};

/// The port that nodes take for HTTP.
const PORT: u16 = 80;

/// A server with a few resources; it ends with the test's process.
pub(super) struct WebOrigin {
    address: Ipv4Addr,
    asked: Arc<Mutex<Vec<String>>>,
    /// Sender that lets the server continue in the middle of a response.
    gate: Sender<()>,
}

/// State shared by the server's connections.
struct OriginState {
    asked: Arc<Mutex<Vec<String>>>,
    gate: Mutex<Receiver<()>>,
}

/// A message as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HttpMessage {
    /// The request line or the status line.
    pub(super) start: String,
    /// Field names in lower case.
    pub(super) fields: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl HttpMessage {
    /// The status code of a response.
    pub(super) fn status(&self) -> u16 {
        let code = self.start.split(' ').nth(1);
        code.and_then(|code| code.parse().ok()).unwrap_or(0)
    }
}

/// The body of a resource.
pub(super) fn content(name: &str, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    let seed = name.bytes().map(u64::from).sum::<u64>();
    SeededRandom::for_stream(seed, name.len() as u64).fill(&mut content);
    content
}

impl WebOrigin {
    /// Serves at the far site; `None` where this test may not listen at the port for HTTP.
    pub(super) fn start(sites: &TestSites) -> Option<Self> {
        let address = sites.far();
        let listener = match TcpListener::bind((address, PORT)) {
            Ok(listener) => listener,
            Err(error) => {
                let said = format!("skipped a test of HTTP: port {PORT}: {error}\n");
                let _ = io::stderr().write_all(said.as_bytes());
                return None;
            }
        };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (gate, opened) = mpsc::channel();
        let site = Arc::new(OriginState {
            asked: Arc::clone(&asked),
            gate: Mutex::new(opened),
        });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let site = Arc::clone(&site);
                // Whatever breaks shows at the client.
                thread::spawn(move || serve(stream, &site));
            }
        });
        Some(Self {
            address,
            asked,
            gate,
        })
    }

    /// The requests since the last call: method, target and, if it has conditions, `if-none-match`.
    pub(super) fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Lets one response continue.
    pub(super) fn open_gate(&self) {
        self.gate.send(()).unwrap();
    }

    /// A client behind the near node.
    pub(super) fn client(&self, sites: &TestSites) -> WebClient {
        self.connect(sites).unwrap()
    }

    /// The same where the near node may not run.
    pub(super) fn connect(&self, sites: &TestSites) -> io::Result<WebClient> {
        let stream = connect(sites.socks(), self.address, PORT)?;
        Ok(WebClient::over(stream))
    }
}

/// A client's connection.
pub(super) struct WebClient {
    pub(super) reader: BufReader<TcpStream>,
}

impl WebClient {
    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(stream);
        Self { reader }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// The client's own address, as the near node lists it.
    pub(super) fn address(&self) -> SocketAddr {
        self.reader.get_ref().local_addr().unwrap()
    }

    /// Sends a request without a body; `fields` are lines.
    pub(super) fn ask(&mut self, method: &str, target: &str, fields: &str) {
        self.ask_with(method, target, fields, "");
    }

    fn ask_with(&mut self, method: &str, target: &str, fields: &str, body: &str) {
        let request =
            format!("{method} {target} HTTP/1.1\r\nHost: origin.example\r\n{fields}\r\n{body}");
        self.send(request.as_bytes());
    }

    /// A response's head.
    pub(super) fn head(&mut self) -> io::Result<HttpMessage> {
        read_head(&mut self.reader)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// A whole response to a request that may have a body.
    pub(super) fn response(&mut self) -> io::Result<HttpMessage> {
        let mut message = self.head()?;
        read_body(&mut self.reader, &mut message)?;
        Ok(message)
    }

    /// Sends a body and reads the response.
    pub(super) fn send_body(&mut self, method: &str, target: &str, body: &str) -> HttpMessage {
        let length = format!("Content-Length: {}\r\n", body.len());
        self.ask_with(method, target, &length, body);
        self.response().unwrap()
    }

    pub(super) fn get(&mut self, target: &str) -> HttpMessage {
        self.get_with(target, "")
    }

    pub(super) fn get_with(&mut self, target: &str, fields: &str) -> HttpMessage {
        self.ask("GET", target, fields);
        self.response().unwrap()
    }
}

/// The next head; `None` at a clean end in front of it.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<HttpMessage>> {
    let mut message = HttpMessage::default();
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    message.start = line.trim_end().to_owned();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Ok(Some(message));
        };
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
        message.fields.insert(name, value);
    }
}

/// A body with a length or in chunks (RFC 9112 §6.3, HttpMessage Body Length).
fn read_body(reader: &mut impl BufRead, message: &mut HttpMessage) -> io::Result<()> {
    if message.fields.contains_key("transfer-encoding") {
        loop {
            let chunk = read_chunk(reader)?;
            message.body.extend_from_slice(&chunk);
            if chunk.is_empty() {
                return Ok(());
            }
        }
    }
    let length = message.fields.get("content-length");
    let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    message.body = vec![0; length];
    reader.read_exact(&mut message.body)
}

/// The next chunk of a body; an empty one ends it (RFC 9112 §7.1, Chunked Transfer Coding).
pub(super) fn read_chunk(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let size = usize::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok(chunk)
}

/// Answers the requests of one connection.
fn serve(stream: TcpStream, site: &OriginState) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(mut request) = read_head(&mut reader)? {
        read_body(&mut reader, &mut request)?;
        let condition = request.fields.get("if-none-match").cloned();
        let mut words = request.start.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let mut asked = format!("{method} {target}");
        if let Some(tag) = &condition {
            asked += &format!(" if-none-match {tag}");
        }
        site.asked.lock().unwrap().push(asked);
        let path = target.split('?').next().unwrap_or(target);
        match (method, path) {
            ("GET", "/checked") if condition.as_deref() == Some("\"one\"") => {
                let head =
                    "HTTP/1.1 304 Not Modified\r\nETag: \"one\"\r\nCache-Control: no-cache\r\n\r\n";
                stream.write_all(head.as_bytes())?;
            }
            ("GET", "/checked") => {
                let fields = "ETag: \"one\"\r\nCache-Control: no-cache\r\n";
                answer(&mut stream, "200 OK", fields, &content(path, 30_000))?;
            }
            ("GET", "/big") => {
                let fields = "Cache-Control: max-age=3600\r\n";
                answer(&mut stream, "200 OK", fields, &content(path, BIG))?;
            }
            ("GET", "/socket") => {
                let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                stream.write_all(head.as_bytes())?;
                io::copy(&mut reader, &mut stream)?;
                return Ok(());
            }
            ("GET", "/events") => {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes())?;
                for event in ["data: one\n\n", "data: two\n\n", ""] {
                    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                    stream.write_all(chunk.as_bytes())?;
                    wait_at_gate(site);
                }
            }
            // As MAPI over HTTP does: the head and a part at once, the rest when there is news.
            ("POST", "/mapi") => {
                let head = "HTTP/1.1 200 OK\r\nX-ResponseCode: 0\r\nTransfer-Encoding: chunked\r\n\r\nC\r\nPROCESSING\r\n\r\n";
                stream.write_all(head.as_bytes())?;
                wait_at_gate(site);
                stream.write_all(b"6\r\nDONE\r\n\r\n0\r\n\r\n")?;
            }
            ("GET", "/poll") => {
                wait_at_gate(site);
                answer(
                    &mut stream,
                    "200 OK",
                    "Cache-Control: no-cache\r\n",
                    b"news",
                )?;
            }
            ("PROPFIND", _) => {
                let fields = "Content-Type: application/xml\r\n";
                answer(&mut stream, "207 Multi-Status", fields, &request.body)?;
            }
            ("POST", _) => {
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
            }
            ("GET", _) => {
                let fields = "ETag: \"one\"\r\nCache-Control: max-age=3600\r\n";
                answer(&mut stream, "200 OK", fields, &content(path, 30_000))?;
            }
            _ => answer(&mut stream, "405 Method Not Allowed", "", b"")?,
        }
    }
    Ok(())
}

/// Bytes of the large resource.
pub(super) const BIG: usize = 10_000_000;

fn wait_at_gate(site: &OriginState) {
    // The test has ended if nobody opens it any more.
    let _ = site.gate.lock().unwrap().recv_timeout(PATIENCE);
}

fn answer(stream: &mut TcpStream, status: &str, fields: &str, body: &[u8]) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())
}
