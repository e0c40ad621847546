//! Names the protocol of a flow from its port and first bytes, for people to read.
//!
//! Detection only looks: it holds no byte back, so protocols whose server speaks first (FTP,
//! SMTP, SSH) cannot be stalled by it, and it looks at the first [`LOOK_LIMIT`] bytes of each
//! direction only. What it cannot name stays [`Protocol::Unknown`].

use std::fmt;

/// How many bytes of a direction are looked at: enough for a TLS record header, an SMB header
/// behind its length, or a request line's method.
pub const LOOK_LIMIT: usize = 16;

/// A protocol that a flow can be seen to speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Not recognised (yet).
    #[default]
    Unknown,
    /// HTTP/1.x in clear (RFC 9112).
    Http,
    /// TLS, whatever is inside (RFC 8446).
    Tls,
    /// The File Transfer Protocol's control connection (RFC 959).
    Ftp,
    /// SMB 2 or 3 ([MS-SMB2]).
    Smb2,
    /// SMB 1 ([MS-CIFS]).
    Smb1,
    /// SMB 3 encrypted ([MS-SMB2] §2.2.41, SMB2 TRANSFORM_HEADER).
    SmbEncrypted,
    /// Secure Shell (RFC 4253).
    Ssh,
    /// The Simple Mail Transfer Protocol (RFC 5321).
    Smtp,
}

impl Protocol {
    /// Whether the hosts encrypt all that follows, so that nothing of it repeats.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        match self {
            Self::Tls | Self::SmbEncrypted | Self::Ssh => true,
            Self::Unknown | Self::Http | Self::Ftp | Self::Smb2 | Self::Smb1 | Self::Smtp => false,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Unknown => "unknown",
            Self::Http => "http",
            Self::Tls => "tls",
            Self::Ftp => "ftp",
            Self::Smb2 => "smb2",
            Self::Smb1 => "smb1",
            Self::SmbEncrypted => "smb3-encrypted",
            Self::Ssh => "ssh",
            Self::Smtp => "smtp",
        })
    }
}

/// What the server's port alone suggests.
#[must_use]
pub fn by_port(port: u16) -> Protocol {
    match port {
        21 => Protocol::Ftp,
        22 => Protocol::Ssh,
        25 | 587 => Protocol::Smtp,
        80 | 8080 => Protocol::Http,
        443 | 465 | 993 | 995 => Protocol::Tls,
        445 => Protocol::Smb2,
        _ => Protocol::Unknown,
    }
}

/// What the first bytes of either direction show, or `None` when they show nothing.
///
/// Shorter input than [`LOOK_LIMIT`] is judged by what is there.
#[must_use]
pub fn by_first_bytes(bytes: &[u8]) -> Option<Protocol> {
    const METHODS: [&[u8]; 9] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"TRACE ",
        b"HTTP/1.",
    ];
    match bytes {
        // A TLS handshake record: type 22, legacy version 3.x (RFC 8446 §5.1, Record Layer).
        [22, 3, 0..=4, ..] => Some(Protocol::Tls),
        // Direct TCP transport: a zero byte and three of length ([MS-SMB2] §2.1, Transport).
        [0, _, _, _, 0xfe, b'S', b'M', b'B', ..] => Some(Protocol::Smb2),
        [0, _, _, _, 0xff, b'S', b'M', b'B', ..] => Some(Protocol::Smb1),
        [0, _, _, _, 0xfd, b'S', b'M', b'B', ..] => Some(Protocol::SmbEncrypted),
        [b'S', b'S', b'H', b'-', ..] => Some(Protocol::Ssh),
        _ if METHODS.iter().any(|method| bytes.starts_with(method)) => Some(Protocol::Http),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_name_the_protocol() {
        assert_eq!(by_first_bytes(b"GET /a HTTP/1.1\r\n"), Some(Protocol::Http));
        assert_eq!(by_first_bytes(&[22, 3, 1, 2, 0, 1]), Some(Protocol::Tls));
        assert_eq!(
            by_first_bytes(b"\0\0\x01\x00\xfeSMB@\0"),
            Some(Protocol::Smb2)
        );
        assert_eq!(
            by_first_bytes(b"\0\0\x01\x00\xfdSMB@\0"),
            Some(Protocol::SmbEncrypted)
        );
        assert_eq!(by_first_bytes(b"SSH-2.0-x"), Some(Protocol::Ssh));
    }

    #[test]
    fn too_little_or_other_bytes_name_nothing() {
        assert_eq!(by_first_bytes(b""), None);
        assert_eq!(by_first_bytes(b"GE"), None);
        assert_eq!(by_first_bytes(b"220 ready\r\n"), None);
    }
}
