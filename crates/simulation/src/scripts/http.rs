//! HTTP/1.1: a GET for each connection, and a server of static files.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tcp::ConnectionNumber;
use vocab::Time;

use super::{ClientScript, HTTP_PORT};
use crate::host::{HostSockets, SocketEvent};

/// End of a head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// The client.
pub(crate) struct HttpClient {
    names: Vec<String>,
    server: Option<IpAddr>,
    /// The file that is being fetched, and its connection.
    current: usize,
    socket: Option<ConnectionNumber>,
    received: BytesMut,
    arrivals: Vec<Option<Bytes>>,
    failure: Option<String>,
}

impl HttpClient {
    pub(crate) fn new(files: &[(String, Bytes)]) -> Self {
        Self {
            names: files.iter().map(|(name, _)| name.clone()).collect(),
            server: None,
            current: 0,
            socket: None,
            received: BytesMut::new(),
            arrivals: vec![None; files.len()],
            failure: None,
        }
    }

    fn open(&mut self, sockets: &mut HostSockets) {
        if let Some(server) = self.server
            && self.current < self.names.len()
        {
            self.received.clear();
            self.socket = sockets.open((server, HTTP_PORT).into());
            if self.socket.is_none() {
                self.failure = Some("the client has no port left".to_owned());
            }
        }
    }

    /// Takes the body once it is whole.
    fn take_body(&mut self) -> Option<Bytes> {
        let end = position(&self.received, HEAD_END)? + HEAD_END.len();
        let head = std::str::from_utf8(&self.received[..end]).ok()?;
        if !head.starts_with("HTTP/1.1 200 ") {
            let line = head.lines().next().unwrap_or_default();
            self.failure = Some(format!("the server answered `{line}`"));
            return None;
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().ok())?
        })?;
        if self.received.len() < end + length {
            return None;
        }
        let whole = std::mem::take(&mut self.received).freeze();
        Some(whole.slice(end..end + length))
    }
}

impl ClientScript for HttpClient {
    fn start(&mut self, sockets: &mut HostSockets, server: IpAddr) {
        self.server = Some(server);
        self.open(sockets);
    }

    fn handle(&mut self, sockets: &mut HostSockets, socket: ConnectionNumber, event: SocketEvent) {
        match event {
            SocketEvent::Opened => {
                let (Some(name), Some(server)) = (self.names.get(self.current), self.server) else {
                    return;
                };
                let request = format!(
                    "GET /{name} HTTP/1.1\r\nHost: {server}\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n\r\n"
                );
                sockets.send(socket, request.into());
            }
            SocketEvent::Received(bytes) => {
                self.received.extend_from_slice(&bytes);
                if let Some(body) = self.take_body() {
                    self.arrivals[self.current] = Some(body);
                    self.current += 1;
                    sockets.finish(socket);
                    self.open(sockets);
                }
            }
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                if !self.is_done() && self.socket == Some(socket) {
                    self.failure = Some("the connection ended before the file".to_owned());
                }
            }
            SocketEvent::Accepted => {}
        }
    }

    fn is_done(&self) -> bool {
        self.failure.is_some() || self.current == self.names.len()
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn arrivals(&mut self) -> Vec<Option<Bytes>> {
        std::mem::take(&mut self.arrivals)
    }
}

/// The server.
#[derive(Default)]
pub(crate) struct HttpServer {
    files: BTreeMap<String, ServedFile>,
    requests: BTreeMap<ConnectionNumber, BytesMut>,
    calendar_start: Duration,
}

struct ServedFile {
    content: Bytes,
    tag: u64,
}

impl HttpServer {
    pub(crate) fn new(files: &[(String, Bytes)], calendar_start: Duration) -> Self {
        let files = files.iter().map(|(name, content)| {
            let mut hasher = DefaultHasher::new();
            content.hash(&mut hasher);
            let served = ServedFile {
                content: content.clone(),
                tag: hasher.finish(),
            };
            (name.clone(), served)
        });
        Self {
            files: files.collect(),
            requests: BTreeMap::new(),
            calendar_start,
        }
    }

    pub(crate) fn handle(
        &mut self,
        now: Time,
        sockets: &mut HostSockets,
        socket: ConnectionNumber,
        event: SocketEvent,
    ) {
        match event {
            SocketEvent::Received(bytes) => {
                let mut waiting = self.requests.remove(&socket).unwrap_or_default();
                waiting.extend_from_slice(&bytes);
                while let Some(end) = position(&waiting, HEAD_END) {
                    let head = waiting.split_to(end + HEAD_END.len());
                    self.answer(now, sockets, socket, &head);
                }
                self.requests.insert(socket, waiting);
            }
            SocketEvent::PeerFinished => sockets.finish(socket),
            SocketEvent::Lost => {
                self.requests.remove(&socket);
            }
            SocketEvent::Accepted | SocketEvent::Opened => {}
        }
    }

    fn answer(&self, now: Time, sockets: &mut HostSockets, socket: ConnectionNumber, head: &[u8]) {
        let head = String::from_utf8_lossy(head);
        let path = head
            .split(' ')
            .nth(1)
            .and_then(|path| path.strip_prefix('/'));
        let date = date(self.calendar_start + now.since(Time::ZERO));
        let Some(file) = path.and_then(|path| self.files.get(path)) else {
            let answer =
                format!("HTTP/1.1 404 Not Found\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n");
            return sockets.send(socket, answer.into());
        };
        let tag = format!("\"{:016x}\"", file.tag);
        let is_known = head.lines().any(|line| {
            let named = line.split_once(':');
            named.is_some_and(|(name, value)| {
                name.eq_ignore_ascii_case("if-none-match") && value.trim() == tag
            })
        });
        let length = file.content.len();
        let common = format!("Server: nginx/1.26.3\r\nDate: {date}\r\nETag: {tag}\r\n");
        if is_known {
            let answer = format!("HTTP/1.1 304 Not Modified\r\n{common}\r\n");
            return sockets.send(socket, answer.into());
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\n{common}Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\
             Last-Modified: Wed, 31 Dec 2025 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n\r\n"
        );
        sockets.send(socket, answer.into());
        if !head.starts_with("HEAD ") {
            sockets.send(socket, file.content.clone());
        }
    }
}

/// The date of a moment in January 2026, IMF-fixdate.
fn date(since_1970: Duration) -> String {
    // 2026-01-01 00:00 UTC, a Thursday.
    let seconds = since_1970.as_secs().saturating_sub(1_767_225_600);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(days % 7) as usize];
    let (hours, minutes) = (of_day / 3600, of_day / 60 % 60);
    let day = days % 31 + 1;
    format!(
        "{weekday}, {day:02} Jan 2026 {hours:02}:{minutes:02}:{:02} GMT",
        of_day % 60
    )
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_counts_from_new_year() {
        let start = Duration::from_secs(1_767_225_600);
        assert_eq!(date(start), "Thu, 01 Jan 2026 00:00:00 GMT");
        let later = start + Duration::from_secs(86_400 + 3_661);
        assert_eq!(date(later), "Fri, 02 Jan 2026 01:01:01 GMT");
    }
}
