//! DatagramOffer: where and how a node takes packets of a datagram path, beside this link.

use vocab::{ByteReader, ByteWriter};

use crate::SessionError;
use crate::packet::{CipherSuite, ConnectionId};

/// The version of the datagram path that this code speaks.
pub const DATAGRAM_VERSION: u16 = 1;

/// Parameters for packets to the sender of this frame, and for the keys of both nodes.
///
/// Later versions may append fields; bytes after the known ones are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramOffer {
    /// The newest version of the datagram path that the sender speaks.
    pub version: u16,
    /// The suite that its processor is better at. AES is taken when both are.
    pub suite: CipherSuite,
    /// Connection id at the start of packets to the sender; random.
    pub connection_id: ConnectionId,
    /// Random, and new with each offer: it goes into the keys.
    pub nonce: [u8; 16],
    /// The UDP port at the address of the link.
    pub port: u16,
}

impl DatagramOffer {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let offer = Self {
            version: reader.u16()?,
            // A suite that is not known here can only be refused by taking the one all know.
            suite: CipherSuite::from_number(reader.u16()?).unwrap_or(CipherSuite::ChaCha20Poly1305),
            connection_id: ConnectionId(reader.array()?),
            nonce: reader.array()?,
            port: reader.u16()?,
        };
        if offer.version == 0 || offer.port == 0 {
            return Err(SessionError::InvalidMessage(
                "an offer of no version or port",
            ));
        }
        reader.bytes(reader.remaining())?;
        Ok(offer)
    }

    pub(super) fn emit(&self, out: &mut ByteWriter) {
        out.u16(self.version)
            .u16(self.suite.number())
            .bytes(&self.connection_id.0)
            .bytes(&self.nonce)
            .u16(self.port);
    }
}
