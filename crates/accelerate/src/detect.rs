//! Names the protocol of a flow from its port and first bytes, for people to read.
//!
//! Detection only looks: it holds no byte back, so protocols whose server speaks first (FTP,
//! SMTP, SSH) cannot be stalled by it, and it looks at the first [`LOOK_LIMIT`] bytes of each
//! direction only. What it cannot name stays [`DetectedProtocol::UNKNOWN`].

use std::fmt;

use crate::registry::ENTRIES;

/// How many bytes of a direction are looked at: enough for a TLS record header, a request line's method,
/// or a message's header behind its length.
pub const LOOK_LIMIT: usize = 16;

/// A protocol that a flow can be seen to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectedProtocol {
    /// What it is called in tables.
    pub name: &'static str,
    /// Whether the hosts encrypt all that follows, so that nothing of it repeats.
    pub is_encrypted: bool,
}

/// How an accelerator recognises its protocol.
#[derive(Clone, Copy)]
pub struct ProtocolDetection {
    /// What the accelerator's ports alone suggest.
    pub by_port: DetectedProtocol,
    /// What the first bytes of either direction show, of which [`LOOK_LIMIT`] are looked at.
    pub by_first_bytes: fn(&[u8]) -> Option<DetectedProtocol>,
}

impl DetectedProtocol {
    /// Not recognised (yet).
    pub const UNKNOWN: Self = Self::clear("unknown");
    /// HTTP/1.x in clear (RFC 9112).
    pub const HTTP: Self = Self::clear("http");
    /// TLS, whatever is inside (RFC 8446).
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

/// What the server's port alone suggests.
#[must_use]
pub fn by_port(port: u16) -> DetectedProtocol {
    let mut entries = ENTRIES.iter().filter(|entry| entry.ports.contains(&port));
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

/// What the first bytes of either direction show, or `None` when they show nothing.
///
/// Shorter input than [`LOOK_LIMIT`] is judged by what is there.
#[must_use]
pub fn by_first_bytes(bytes: &[u8]) -> Option<DetectedProtocol> {
    let bytes = &bytes[..bytes.len().min(LOOK_LIMIT)];
    match bytes {
        // A TLS handshake record: type 22, legacy version 3.x (RFC 8446 §5.1, Record Layer).
        [22, 3, 0..=4, ..] => Some(DetectedProtocol::TLS),
        [b'S', b'S', b'H', b'-', ..] => Some(DetectedProtocol::SSH),
        _ => {
            let mut detections = ENTRIES.iter().filter_map(|entry| entry.detection);
            detections.find_map(|detection| (detection.by_first_bytes)(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_name_the_protocol() {
        assert_eq!(
            by_first_bytes(b"GET /a HTTP/1.1\r\n"),
            Some(DetectedProtocol::HTTP)
        );
        assert_eq!(
            by_first_bytes(&[22, 3, 1, 2, 0, 1]),
            Some(DetectedProtocol::TLS)
        );
        assert_eq!(by_first_bytes(b"SSH-2.0-x"), Some(DetectedProtocol::SSH));
    }

    #[test]
    fn too_little_or_other_bytes_name_nothing() {
        assert_eq!(by_first_bytes(b""), None);
        assert_eq!(by_first_bytes(b"GE"), None);
        assert_eq!(by_first_bytes(b"220 ready\r\n"), None);
    }
}
