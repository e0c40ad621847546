//! Reads the first message of a TLS client without answering it (RFC 8446 §4.1.2, Client Hello).
//!
//! The reader collects records until the message is whole, at most [`HELLO_MAX`] bytes, and keeps every byte as it came,
//! so that a connection that is not intercepted passes untouched.

use bytes::Bytes;
use vocab::ByteReader;

/// Bytes of a ClientHello with its record headers. One with post-quantum key shares has 2 kB, and TLS libraries refuse
/// 16 KiB and more.
pub(crate) const HELLO_MAX: usize = 16 * 1024;
/// Application protocols that are looked at; browsers offer two.
const PROTOCOLS_MAX: usize = 32;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const APPLICATION_PROTOCOLS: u16 = 16;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// Properties of the connection that a ClientHello asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientHello {
    /// The server's name in lower case (RFC 6066 §3, Server Name Indication).
    pub(crate) name: Option<String>,
    /// The application protocols in the client's order (RFC 7301); `None` where the client has not said.
    pub(crate) protocols: Option<Vec<Bytes>>,
    /// The client has sent the extension of Encrypted Client Hello, in earnest or as grease.
    pub(crate) has_encrypted: bool,
}

/// Knowledge of the first message so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelloStep {
    /// It is not whole yet.
    More,
    /// It is whole.
    Whole(ClientHello),
    /// It is none, or longer than the limit.
    NotTls,
}

/// Collects the first message of a client.
#[derive(Debug, Default)]
pub(crate) struct HelloReader {
    held: Vec<u8>,
}

impl HelloReader {
    /// Takes more of the client's bytes. After [`HelloStep::More`] it may be called again.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> HelloStep {
        self.held.extend_from_slice(bytes);
        let step = read(&self.held);
        match step {
            HelloStep::More if self.held.len() > HELLO_MAX => HelloStep::NotTls,
            _ => step,
        }
    }

    /// All bytes that came.
    pub(crate) fn held(&self) -> &[u8] {
        &self.held
    }

    /// Takes all bytes that came out of the reader.
    pub(crate) fn take_held(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }
}

/// Reads a ClientHello at the beginning of these bytes.
fn read(bytes: &[u8]) -> HelloStep {
    let mut message = Vec::new();
    let mut rest = &bytes[..bytes.len().min(HELLO_MAX)];
    loop {
        let is_record = rest.iter().zip([HANDSHAKE, 3]).all(|(a, b)| *a == b);
        if !is_record || rest.get(2).is_some_and(|minor| *minor > 4) {
            return HelloStep::NotTls;
        }
        let Some((header, behind)) = rest.split_at_checked(5) else {
            return HelloStep::More;
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        // RFC 8446 §5.1 (Record Layer): no empty handshake records, and 2^14 bytes at most.
        if length == 0 || length > 1 << 14 {
            return HelloStep::NotTls;
        }
        let has_all = behind.len() >= length;
        message.extend_from_slice(&behind[..behind.len().min(length)]);
        if let Some(step) = read_message(&message) {
            return step;
        }
        if !has_all {
            return HelloStep::More;
        }
        rest = &behind[length..];
    }
}

/// The step if the handshake message is whole, or is no ClientHello.
fn read_message(message: &[u8]) -> Option<HelloStep> {
    let (&kind, rest) = message.split_first()?;
    if kind != CLIENT_HELLO {
        return Some(HelloStep::NotTls);
    }
    let (length, rest) = rest.split_at_checked(3)?;
    let length =
        usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
    if length > HELLO_MAX {
        return Some(HelloStep::NotTls);
    }
    let body = rest.get(..length)?;
    Some(parse(body).map_or(HelloStep::NotTls, HelloStep::Whole))
}

fn parse(body: &[u8]) -> Option<ClientHello> {
    let mut reader = ByteReader::new(body);
    // The legacy version and the client's random.
    (reader.u16().ok()? >> 8 == 3).then_some(())?;
    reader.bytes(32).ok()?;
    // The session's id, the cipher suites, and the compression methods.
    vector8(&mut reader)?;
    vector16(&mut reader)?;
    vector8(&mut reader)?;
    let mut hello = ClientHello::default();
    if reader.is_empty() {
        return Some(hello);
    }
    let mut extensions = ByteReader::new(vector16(&mut reader)?);
    reader.is_empty().then_some(())?;
    let mut seen = Vec::new();
    while !extensions.is_empty() {
        let kind = extensions.u16().ok()?;
        let content = vector16(&mut extensions)?;
        if [SERVER_NAME, APPLICATION_PROTOCOLS].contains(&kind) {
            // RFC 8446 §4.2 (Extensions): none stands there twice.
            (!seen.contains(&kind)).then_some(())?;
            seen.push(kind);
        }
        match kind {
            SERVER_NAME => hello.name = server_name(content)?,
            APPLICATION_PROTOCOLS => hello.protocols = Some(protocols(content)?),
            ENCRYPTED_CLIENT_HELLO => hello.has_encrypted = true,
            _ => {}
        }
    }
    Some(hello)
}

/// The host's name; `None` inside where it is no name that could be listed.
fn server_name(content: &[u8]) -> Option<Option<String>> {
    let mut list = ByteReader::new(vector16(&mut ByteReader::new(content))?);
    let mut name = None;
    while !list.is_empty() {
        let kind = list.u8().ok()?;
        let text = vector16(&mut list)?;
        if kind == 0 && name.is_none() {
            let text = std::str::from_utf8(text).ok().map(str::to_ascii_lowercase);
            name = text.filter(|text| super::config::is_host_name(text));
        }
    }
    Some(name)
}

fn protocols(content: &[u8]) -> Option<Vec<Bytes>> {
    let mut list = ByteReader::new(vector16(&mut ByteReader::new(content))?);
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let protocol = vector8(&mut list)?;
        (!protocol.is_empty() && protocols.len() < PROTOCOLS_MAX).then_some(())?;
        protocols.push(Bytes::copy_from_slice(protocol));
    }
    Some(protocols)
}

/// Bytes behind their length in one byte.
fn vector8<'a>(reader: &mut ByteReader<'a>) -> Option<&'a [u8]> {
    let length = reader.u8().ok()?;
    reader.bytes(usize::from(length)).ok()
}

/// Bytes behind their length in two bytes.
fn vector16<'a>(reader: &mut ByteReader<'a>) -> Option<&'a [u8]> {
    let length = reader.u16().ok()?;
    reader.bytes(usize::from(length)).ok()
}

/// Reads the bytes in one piece and byte by byte, for fuzzing.
///
/// # Panics
/// When the pieces change what is found, or more than the limit is looked at.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn read_in_pieces(bytes: &[u8]) {
    let whole = HelloReader::default().push(bytes);
    let mut reader = HelloReader::default();
    for (at, byte) in bytes.iter().enumerate() {
        match reader.push(&[*byte]) {
            HelloStep::More => {}
            step => {
                assert_eq!(step, whole);
                assert_eq!(reader.held(), &bytes[..=at]);
                return;
            }
        }
    }
    let is_empty = bytes.is_empty();
    assert!(is_empty || whole == HelloStep::More, "{whole:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tls::testing::hello;

    #[test]
    fn names_and_protocols_are_read() {
        let bytes = hello("Wiki.Corp.example", &["h2", "http/1.1"]);
        let HelloStep::Whole(read) = HelloReader::default().push(&bytes) else {
            panic!("it is whole");
        };
        assert_eq!(read.name.as_deref(), Some("wiki.corp.example"));
        let protocols = read.protocols.unwrap();
        assert_eq!(protocols, [&b"h2"[..], b"http/1.1"]);
        assert!(!read.has_encrypted);
    }

    #[test]
    fn a_hello_in_many_records_is_the_same() {
        let bytes = hello("a.example", &["http/1.1"]);
        let whole = HelloReader::default().push(&bytes);
        assert!(matches!(whole, HelloStep::Whole(_)));
        let mut records = Vec::new();
        for piece in bytes[5..].chunks(7) {
            records.extend_from_slice(&[22, 3, 1, 0, piece.len() as u8]);
            records.extend_from_slice(piece);
        }
        assert_eq!(HelloReader::default().push(&records), whole);
        read_in_pieces(&records);
        read_in_pieces(&bytes);
    }

    #[test]
    fn every_cut_waits_for_more() {
        let bytes = hello("a.example", &["h2"]);
        for cut in 0..bytes.len() {
            let step = HelloReader::default().push(&bytes[..cut]);
            assert_eq!(step, HelloStep::More, "{cut}");
        }
    }

    #[test]
    fn what_is_no_tls_is_said_at_once() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0xff, 0xff],
            &[22, 3, 9],
            &[22, 3, 1, 0, 4, 2],
            &[22, 3, 1, 0, 4, 1, 0xff, 0, 0],
        ] {
            let step = HelloReader::default().push(bytes);
            assert_eq!(step, HelloStep::NotTls, "{bytes:?}");
        }
    }

    #[test]
    fn a_hello_without_end_is_given_up() {
        let mut reader = HelloReader::default();
        let mut record = vec![22, 3, 1, 0, 4, 1, 0, 0x3f, 0xff];
        let mut steps = 0;
        while reader.push(&record) == HelloStep::More {
            record = vec![22, 3, 1, 0, 1, 0];
            steps += 1;
            assert!(steps < HELLO_MAX);
        }
        assert!(reader.held().len() <= HELLO_MAX + 16);
    }

    #[test]
    fn encrypted_hellos_are_noticed() {
        let mut bytes = hello("a.example", &[]);
        // One more extension at the end, and the three lengths before it.
        bytes.extend_from_slice(&[0xfe, 0x0d, 0, 0]);
        let total = bytes.len();
        bytes[3..5].copy_from_slice(&((total - 5) as u16).to_be_bytes());
        bytes[7..9].copy_from_slice(&((total - 9) as u16).to_be_bytes());
        let at = crate::http::tls::testing::extensions_at(&bytes);
        let length = (total - at - 2) as u16;
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
        let HelloStep::Whole(read) = HelloReader::default().push(&bytes) else {
            panic!("it is whole");
        };
        assert!(read.has_encrypted);
    }
}
