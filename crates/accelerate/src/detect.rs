//! Names the protocol of a flow from its port and first bytes, for people to read.
//!
//! Detection holds no byte back, so it cannot stall protocols whose server speaks first (FTP, SMTP,
//! SSH). It inspects only the first [`LOOK_LIMIT`] bytes of each direction. Other protocols stay
//! [`DetectedProtocol::UNKNOWN`].

use std::fmt;

use crate::registry::AcceleratorEntry;

/// The number of bytes of a direction that are inspected: enough for a TLS record header, a request
/// line's method, or a message's header behind its length.
pub const LOOK_LIMIT: usize = 16;

/// A protocol that a flow can be seen to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectedProtocol {
    /// The protocol's name in tables.
    pub name: &'static str,
    /// True if the hosts encrypt all following bytes, so that none of them repeat.
    pub is_encrypted: bool,
}

/// The rules by which an accelerator recognises its protocol.
#[derive(Clone, Copy)]
pub struct ProtocolDetection {
    /// The protocol that the accelerator's ports alone suggest.
    pub by_port: DetectedProtocol,
    /// The protocol that the first bytes of either direction show, at most [`LOOK_LIMIT`] of them.
    pub by_first_bytes: fn(&[u8]) -> Option<DetectedProtocol>,
}

impl DetectedProtocol {
    /// Not recognised (yet).
    pub const UNKNOWN: Self = Self::clear("unknown");
    /// HTTP/1.x in clear (RFC 9112).
    pub const HTTP: Self = Self::clear("http");
    /// TLS with any content (RFC 8446).
    pub const TLS: Self = Self::encrypted("tls");
    /// The File Transfer Protocol's control connection (RFC 959).
    pub const FTP: Self = Self::clear("ftp");
    /// Secure Shell (RFC 4253).
    pub const SSH: Self = Self::encrypted("ssh");
    /// The Simple Mail Transfer Protocol (RFC 5321).
    pub const SMTP: Self = Self::clear("smtp");

    /// A protocol whose content can be seen.
    #[must_use]
    pub const fn clear(name: &'static str) -> Self {
        Self {
            name,
            is_encrypted: false,
        }
    }

    /// A protocol whose content cannot be seen.
    #[must_use]
    pub const fn encrypted(name: &'static str) -> Self {
        Self {
            name,
            is_encrypted: true,
        }
    }
}

impl fmt::Display for DetectedProtocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name)
    }
}

/// Returns the protocol that the server's port alone suggests, by these accelerators.
#[must_use]
pub fn by_port(entries: &[&AcceleratorEntry], port: u16) -> DetectedProtocol {
    let mut entries = entries.iter().filter(|entry| entry.ports.contains(&port));
    let detection = entries.find_map(|entry| entry.detection);
    detection.map_or_else(|| by_well_known_port(port), |detection| detection.by_port)
}

/// The same for protocols without an accelerator, and for further ports of others.
fn by_well_known_port(port: u16) -> DetectedProtocol {
    match port {
        21 => DetectedProtocol::FTP,
        22 => DetectedProtocol::SSH,
        25 | 587 => DetectedProtocol::SMTP,
        8080 => DetectedProtocol::HTTP,
        443 | 465 | 993 | 995 => DetectedProtocol::TLS,
        _ => DetectedProtocol::UNKNOWN,
    }
}

/// Returns the protocol that the first bytes of either direction show to these accelerators; `None`
/// when they show none.
///
/// Input shorter than [`LOOK_LIMIT`] is judged by the available bytes.
#[must_use]
pub fn by_first_bytes(entries: &[&AcceleratorEntry], bytes: &[u8]) -> Option<DetectedProtocol> {
    let bytes = &bytes[..bytes.len().min(LOOK_LIMIT)];
    match bytes {
        // A TLS handshake record: type 22, legacy version 3.x (RFC 8446 §5.1, Record Layer).
        [22, 3, 0..=4, ..] => Some(DetectedProtocol::TLS),
        [b'S', b'S', b'H', b'-', ..] => Some(DetectedProtocol::SSH),
        _ => {
            let mut detections = entries.iter().filter_map(|entry| entry.detection);
            detections.find_map(|detection| (detection.by_first_bytes)(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{http, smb};

    const ENTRIES: &[&AcceleratorEntry] = &[&smb::ENTRY, &http::ENTRY];

    #[test]
    fn first_bytes_name_the_protocol() {
        assert_eq!(
            by_first_bytes(ENTRIES, b"GET /a HTTP/1.1\r\n"),
            Some(DetectedProtocol::HTTP)
        );
        assert_eq!(
            by_first_bytes(ENTRIES, &[22, 3, 1, 2, 0, 1]),
            Some(DetectedProtocol::TLS)
        );
        assert_eq!(
            by_first_bytes(ENTRIES, b"SSH-2.0-x"),
            Some(DetectedProtocol::SSH)
        );
    }

    #[test]
    fn too_little_or_other_bytes_name_nothing() {
        assert_eq!(by_first_bytes(ENTRIES, b""), None);
        assert_eq!(by_first_bytes(ENTRIES, b"GE"), None);
        assert_eq!(by_first_bytes(ENTRIES, b"220 ready\r\n"), None);
    }
}
