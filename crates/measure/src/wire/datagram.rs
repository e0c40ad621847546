//! UDP datagrams of a test: a header with a tag, and padding up to the requested size.
//!
//! ```text
//!  0    1        2     3     4          12      16       24      32      40    56
//!  'T'  version  kind  zero  session    order   number   stamp   extra   tag   filling
//! ```
//! The tag covers the head and the role of the sender, not the filling, which is never looked at; so
//! its cost does not grow with the packet.

use thiserror::Error;
use vocab::{ByteReader, ByteWriter, TruncatedInput};

use super::control::VERSION;
use super::key::{SessionKey, SessionRole, TAG_BYTES};

/// Bytes of a datagram without filling, and thus of the smallest.
pub const DATAGRAM_HEADER: usize = HEAD + TAG_BYTES;
const HEAD: usize = 40;
const MAGIC: u8 = b'T';

/// Why a datagram was not one of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DatagramError {
    /// The datagram belongs to another protocol or version.
    #[error("not a datagram of this protocol and version")]
    Foreign,
    /// Its kind is not known.
    #[error("a datagram of an unknown kind")]
    UnknownKind,
    /// The tag is not that of this session.
    #[error("a datagram with a wrong tag")]
    WrongTag,
}

impl From<TruncatedInput> for DatagramError {
    fn from(_: TruncatedInput) -> Self {
        DatagramError::Foreign
    }
}

/// Purpose of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// The client's first; asks for a cookie.
    Open,
    /// The server's cookie, in `extra`.
    Cookie,
    /// The cookie again, from the address it was sent to.
    Confirm,
    /// The address is believed.
    Confirmed,
    /// Asks for [`DatagramKind::Echoed`].
    Echo,
    /// The answer: number and stamp as asked, in `extra` the nanoseconds it took to answer.
    Echoed,
    /// A packet of a size to be tried towards the server.
    Probe,
    /// The probe arrived; `extra` is its size.
    Probed,
    /// Asks for a packet of `extra` bytes to be tried towards the client.
    ProbeWanted,
    /// A probe of the size that was asked for.
    ProbeBack,
    /// A packet of a stream: number from 0, stamp in nanoseconds since the stream began.
    Data,
}

impl DatagramKind {
    /// Every kind, in the order of their numbers on the wire.
    pub const ALL: [DatagramKind; 11] = [
        DatagramKind::Open,
        DatagramKind::Cookie,
        DatagramKind::Confirm,
        DatagramKind::Confirmed,
        DatagramKind::Echo,
        DatagramKind::Echoed,
        DatagramKind::Probe,
        DatagramKind::Probed,
        DatagramKind::ProbeWanted,
        DatagramKind::ProbeBack,
        DatagramKind::Data,
    ];
}

/// The head of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The purpose.
    pub kind: DatagramKind,
    /// The session it belongs to.
    pub session: u64,
    /// The order it belongs to; zero outside of one.
    pub order: u32,
    /// Its number.
    pub number: u64,
    /// Nanoseconds on the sender's clock.
    pub stamp: u64,
    /// Value that depends on the kind.
    pub extra: u64,
}

impl DatagramHeader {
    /// The session that bytes claim to belong to, to find its key by; nothing is verified.
    #[must_use]
    pub fn session_of(bytes: &[u8]) -> Option<u64> {
        let mut reader = ByteReader::new(bytes);
        (reader.u8().ok()? == MAGIC).then_some(())?;
        reader.bytes(3).ok()?;
        reader.u64().ok()
    }

    /// Parses and verifies a datagram that `sender` sent.
    ///
    /// # Errors
    /// Fails when it does not belong to this session; it must not be answered then.
    pub fn parse(
        bytes: &[u8],
        key: &SessionKey,
        sender: SessionRole,
    ) -> Result<Self, DatagramError> {
        let mut reader = ByteReader::new(bytes);
        let head = ByteReader::new(bytes).bytes(HEAD)?;
        if reader.u8()? != MAGIC || u16::from(reader.u8()?) != VERSION {
            return Err(DatagramError::Foreign);
        }
        let kind = usize::from(reader.u8()?);
        let _reserved = reader.u8()?;
        let datagram = Self {
            kind: *DatagramKind::ALL
                .get(kind)
                .ok_or(DatagramError::UnknownKind)?,
            session: reader.u64()?,
            order: reader.u32()?,
            number: reader.u64()?,
            stamp: reader.u64()?,
            extra: reader.u64()?,
        };
        if !key.is_tag(sender, head, &reader.array()?) {
            return Err(DatagramError::WrongTag);
        }
        Ok(datagram)
    }

    /// Writes it, filled up with zeros to `length` bytes, into `out`, whose old content goes.
    pub fn emit(&self, key: &SessionKey, sender: SessionRole, length: usize, out: &mut Vec<u8>) {
        let kind = DatagramKind::ALL.iter().position(|kind| *kind == self.kind);
        let mut head = ByteWriter::with_capacity(HEAD);
        head.u8(MAGIC)
            .u8(VERSION as u8)
            .u8(kind.expect("every kind is in the list") as u8)
            .u8(0)
            .u64(self.session)
            .u32(self.order)
            .u64(self.number)
            .u64(self.stamp)
            .u64(self.extra);
        out.clear();
        out.extend_from_slice(head.as_slice());
        out.extend_from_slice(&key.tag(sender, head.as_slice()));
        out.resize(length.max(DATAGRAM_HEADER), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::SharedKey;
    use super::*;

    fn key() -> SessionKey {
        SharedKey::from_words("words").session(&[1; 32], &[2; 32])
    }

    const SAMPLE: DatagramHeader = DatagramHeader {
        kind: DatagramKind::ProbeBack,
        session: 0x0102_0304_0506_0708,
        order: 9,
        number: 1 << 40,
        stamp: 5,
        extra: u64::MAX,
    };

    #[test]
    fn datagrams_round_trip_at_any_length() {
        let mut bytes = Vec::new();
        for length in [0, DATAGRAM_HEADER, 1_472] {
            SAMPLE.emit(&key(), SessionRole::Server, length, &mut bytes);
            assert_eq!(bytes.len(), length.max(DATAGRAM_HEADER));
            assert_eq!(DatagramHeader::session_of(&bytes), Some(SAMPLE.session));
            assert_eq!(
                DatagramHeader::parse(&bytes, &key(), SessionRole::Server),
                Ok(SAMPLE)
            );
        }
    }

    #[test]
    fn altered_header_or_foreign_session_is_refused() {
        let mut bytes = Vec::new();
        SAMPLE.emit(&key(), SessionRole::Server, 0, &mut bytes);
        let wrong = Err(DatagramError::WrongTag);
        assert_eq!(
            DatagramHeader::parse(&bytes, &key(), SessionRole::Client),
            wrong
        );
        let other = SharedKey::from_words("words").session(&[1; 32], &[3; 32]);
        assert_eq!(
            DatagramHeader::parse(&bytes, &other, SessionRole::Server),
            wrong
        );
        for at in 3..DATAGRAM_HEADER {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(
                DatagramHeader::parse(&changed, &key(), SessionRole::Server),
                wrong
            );
        }
        let cut = &bytes[..DATAGRAM_HEADER - 1];
        let foreign = Err(DatagramError::Foreign);
        assert_eq!(
            DatagramHeader::parse(cut, &key(), SessionRole::Server),
            foreign
        );
        assert_eq!(DatagramHeader::session_of(b"GET / HTTP/1.1\r\n\r\n"), None);
    }
}
