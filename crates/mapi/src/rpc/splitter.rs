//! Cuts the bytes of one direction into PDUs, and a PDU into its parts.
//!
//! A PDU has at most 64 KiB, because its length is a field of 16 bits; that is all that a splitter
//! holds.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::pdu::{HEADER, PduError, PduHeader, PduKind, TRAILER};

/// The levels of protection ([MS-RPCE] §2.2.1.1.8, Authentication Levels).
pub mod level {
    /// Calls carry no protection.
    pub const CONNECT: u8 = 2;
    /// The least level at which each PDU is signed.
    pub const PACKET: u8 = 4;
    /// Each PDU is signed.
    pub const INTEGRITY: u8 = 5;
    /// Stubs are encrypted as well.
    pub const PRIVACY: u8 = 6;
}

/// A security trailer ([MS-RPCE] §2.2.2.11, sec_trailer Structure).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityTrailer {
    /// The mechanism ([MS-RPCE] §2.2.1.1.7, Security Providers).
    pub mechanism: u8,
    /// The level of protection.
    pub level: u8,
    /// Bytes of padding before the trailer.
    pub padding: u8,
    /// The number of the security context.
    pub context: u32,
}

impl SecurityTrailer {
    /// Reads a trailer.
    #[must_use]
    pub fn parse(bytes: [u8; TRAILER]) -> Self {
        let [mechanism, level, padding, _, a, b, c, d] = bytes;
        Self {
            mechanism,
            level,
            padding,
            context: u32::from_le_bytes([a, b, c, d]),
        }
    }

    /// Writes a trailer.
    #[must_use]
    pub fn emit(&self) -> [u8; TRAILER] {
        let [a, b, c, d] = self.context.to_le_bytes();
        [self.mechanism, self.level, self.padding, 0, a, b, c, d]
    }

    /// True if the PDUs of the security context are signed, or signed and encrypted.
    #[must_use]
    pub fn protects(&self) -> bool {
        self.level >= level::PACKET
    }
}

/// A whole PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPdu {
    /// Its header.
    pub header: PduHeader,
    /// All of its bytes.
    pub bytes: Bytes,
}

impl RawPdu {
    /// Takes one PDU apart.
    ///
    /// # Errors
    /// When the bytes are not exactly one PDU.
    pub fn parse(bytes: Bytes) -> Result<Self, PduError> {
        let header = PduHeader::parse(&bytes)?;
        let pdu = Self { header, bytes };
        let is_whole = pdu.bytes.len() == usize::from(header.fragment_length);
        match is_whole && header.stub_offset() <= pdu.trailer_offset() {
            true => Ok(pdu),
            false => Err(PduError::Length),
        }
    }

    fn trailer_offset(&self) -> usize {
        match self.header.auth_length {
            0 => self.bytes.len(),
            length => self.bytes.len() - TRAILER - usize::from(length),
        }
    }

    /// The bytes of the stub, its padding included.
    #[must_use]
    pub fn stub(&self) -> Range<usize> {
        self.header.stub_offset()..self.trailer_offset()
    }

    /// The bytes of the stub without the padding before the security trailer.
    #[must_use]
    pub fn unpadded_stub(&self) -> Range<usize> {
        let stub = self.stub();
        let padding = self.trailer().map_or(0, |trailer| trailer.padding.into());
        stub.start..stub.end.saturating_sub(padding).max(stub.start)
    }

    /// The security trailer, if there is one.
    #[must_use]
    pub fn trailer(&self) -> Option<SecurityTrailer> {
        let bytes = self.bytes.get(self.trailer_offset()..)?;
        Some(SecurityTrailer::parse(*bytes.first_chunk()?))
    }

    /// The authentication value: a token, or a signature. Empty without a security trailer.
    #[must_use]
    pub fn auth_value(&self) -> &[u8] {
        let at = self.trailer_offset() + TRAILER;
        self.bytes.get(at..).unwrap_or_default()
    }

    /// True if it is one of those that a security context protects, and not one that sets it up.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.header.kind.is_of_call() && self.trailer().is_some_and(|of| of.protects())
    }

    /// The presentation context of a request or a response.
    #[must_use]
    pub fn context_id(&self) -> Option<u16> {
        self.call_field(20)
    }

    /// The number of the call's operation in its interface; of requests.
    #[must_use]
    pub fn opnum(&self) -> Option<u16> {
        self.call_field(22)
            .filter(|_| self.header.kind == PduKind::Request)
    }

    fn call_field(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes.get(at..)?.first_chunk()?;
        match self.header.kind {
            PduKind::Request | PduKind::Response | PduKind::Fault => {
                Some(u16::from_le_bytes(*bytes))
            }
            PduKind::Bind
            | PduKind::BindAck
            | PduKind::BindNak
            | PduKind::AlterContext
            | PduKind::AlterContextResponse
            | PduKind::Auth3
            | PduKind::Shutdown
            | PduKind::Cancel
            | PduKind::Orphaned => None,
        }
    }
}

/// Cuts a stream of bytes into PDUs.
#[derive(Debug, Default)]
pub struct PduSplitter {
    held: BytesMut,
}

impl PduSplitter {
    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next whole PDU, if it is there.
    ///
    /// # Errors
    /// When the next bytes are no PDU. These bytes stay in the splitter.
    pub fn next_pdu(&mut self) -> Result<Option<RawPdu>, PduError> {
        let header = match PduHeader::parse(&self.held) {
            Ok(header) => header,
            Err(PduError::Truncated) if self.held.len() < HEADER => {
                return self.refuse_other_versions().map(|()| None);
            }
            Err(error) => return Err(error),
        };
        let length = usize::from(header.fragment_length);
        if self.held.len() < length {
            return Ok(None);
        }
        let candidate = RawPdu {
            header,
            bytes: Bytes::copy_from_slice(&self.held[..length]),
        };
        let pdu = RawPdu::parse(candidate.bytes)?;
        let _ = self.held.split_to(length);
        Ok(Some(pdu))
    }

    /// So that a protocol whose messages are shorter than a header is not waited for.
    fn refuse_other_versions(&self) -> Result<(), PduError> {
        match self.held.first() {
            None | Some(5) => Ok(()),
            Some(_) => Err(PduError::Version),
        }
    }

    /// The bytes that no PDU was made of. Nothing is held afterwards.
    pub fn give_back(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// The number of bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::pdu::pfc;
    use crate::testing::request;

    #[test]
    fn pdus_come_out_whole_however_bytes_arrive() {
        let pdus = [request(1, 11, b"first stub"), request(2, 11, b"second")];
        let stream = pdus.concat();
        for step in 1..stream.len() {
            let mut splitter = PduSplitter::default();
            let mut out = Vec::new();
            for piece in stream.chunks(step) {
                splitter.push(piece);
                while let Some(pdu) = splitter.next_pdu().unwrap() {
                    out.push(pdu.bytes.to_vec());
                }
            }
            assert_eq!(out, pdus);
            assert_eq!(splitter.held(), 0);
        }
    }

    #[test]
    fn parts_of_a_pdu_stand_between_header_and_trailer() {
        let mut bytes = request(1, 11, b"stub....");
        let trailer = SecurityTrailer {
            mechanism: 10,
            level: level::PRIVACY,
            padding: 4,
            context: 7,
        };
        bytes.extend(trailer.emit());
        bytes.extend([9; 16]);
        let length = bytes.len() as u16;
        bytes[8..10].copy_from_slice(&length.to_le_bytes());
        bytes[10] = 16;
        let pdu = RawPdu::parse(bytes.into()).unwrap();
        assert_eq!(&pdu.bytes[pdu.stub()], b"stub....");
        assert_eq!(&pdu.bytes[pdu.unpadded_stub()], b"stub");
        assert_eq!(pdu.trailer(), Some(trailer));
        assert_eq!(pdu.auth_value(), [9; 16]);
        assert_eq!((pdu.context_id(), pdu.opnum()), (Some(0), Some(11)));
        assert!(pdu.is_protected());
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let mut bytes = request(1, 11, b"stub");
        // The trailer would begin inside of the fields of the request.
        bytes[10] = 8;
        let mut splitter = PduSplitter::default();
        splitter.push(&bytes);
        assert_eq!(splitter.next_pdu(), Err(PduError::Length));
        assert_eq!(splitter.give_back(), bytes);
        let mut other = PduSplitter::default();
        other.push(b"GET");
        assert_eq!(other.next_pdu(), Err(PduError::Version));
        let mut short = request(1, 11, b"");
        short[3] |= pfc::OBJECT;
        assert_eq!(RawPdu::parse(short.into()), Err(PduError::Length));
    }
}
