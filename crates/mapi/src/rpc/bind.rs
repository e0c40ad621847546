//! Presentation contexts (C706 §12.6.4.3, The bind PDU; §12.6.4.4, The bind_ack PDU): the client
//! proposes numbers for interfaces, and the server accepts some of them.

use vocab::{ByteReader, TruncatedInput};

use super::pdu::HEADER;

/// The transfer syntax NDR, version 2.0 (C706 Appendix I), little-endian as in a bind.
pub const NDR: [u8; 20] = [
    0x04, 0x5d, 0x88, 0x8a, 0xeb, 0x1c, 0xc9, 0x11, 0x9f, 0xe8, 0x08, 0x00, 0x2b, 0x10, 0x48, 0x60,
    2, 0, 0, 0,
];

/// The result of a presentation context that the server has accepted.
const ACCEPTED: u16 = 0;

/// A client's proposal: the contents of a bind or alter_context PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindProposal {
    /// Bytes of the largest fragment that the client sends.
    pub max_transmit: u16,
    /// Bytes of the largest fragment that it receives.
    pub max_receive: u16,
    /// The contexts: their numbers and the interfaces' UUIDs.
    pub contexts: Vec<(u16, [u8; 16])>,
}

impl BindProposal {
    /// Reads a bind or an alter_context, from its first byte on.
    #[must_use]
    pub fn parse(pdu: &[u8]) -> Option<Self> {
        let mut reader = body(pdu)?;
        let read = |reader: &mut ByteReader<'_>| -> Result<Self, TruncatedInput> {
            let (max_transmit, max_receive) = (u16_of(reader)?, u16_of(reader)?);
            let [_, _, _, _, count, _, _, _] = reader.array()?;
            let mut contexts = Vec::new();
            for _ in 0..count {
                let [a, b, syntaxes, _] = reader.array()?;
                let interface = reader.array()?;
                reader.bytes(4 + NDR.len() * usize::from(syntaxes))?;
                contexts.push((u16::from_le_bytes([a, b]), interface));
            }
            Ok(Self {
                max_transmit,
                max_receive,
                contexts,
            })
        };
        read(&mut reader).ok()
    }
}

/// The server's answer: the contents of a bind_ack or alter_context_resp PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindAnswer {
    /// Bytes of the largest fragment that the server sends.
    pub max_transmit: u16,
    /// Bytes of the largest fragment that it receives.
    pub max_receive: u16,
    /// For each proposed context in its order: true if it was accepted with NDR 2.0.
    pub accepted: Vec<bool>,
}

impl BindAnswer {
    /// Reads a bind_ack or an alter_context_resp, from its first byte on.
    #[must_use]
    pub fn parse(pdu: &[u8]) -> Option<Self> {
        let mut reader = body(pdu)?;
        let read = |reader: &mut ByteReader<'_>| -> Result<Self, TruncatedInput> {
            let (max_transmit, max_receive) = (u16_of(reader)?, u16_of(reader)?);
            reader.bytes(4)?;
            // The secondary address and its padding: the results are aligned to four bytes.
            let address = usize::from(u16_of(reader)?);
            reader.bytes(address)?;
            reader.bytes((2 + address).wrapping_neg() % 4)?;
            let [count, ..] = reader.array::<4>()?;
            let mut accepted = Vec::new();
            for _ in 0..count {
                let result = u16_of(reader)?;
                reader.bytes(2)?;
                let syntax = reader.array::<20>()?;
                accepted.push(result == ACCEPTED && syntax == NDR);
            }
            Ok(Self {
                max_transmit,
                max_receive,
                accepted,
            })
        };
        read(&mut reader).ok()
    }
}

fn body(pdu: &[u8]) -> Option<ByteReader<'_>> {
    pdu.get(HEADER..).map(ByteReader::new)
}

fn u16_of(reader: &mut ByteReader<'_>) -> Result<u16, TruncatedInput> {
    reader.array().map(u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emsmdb::EMSMDB;
    use crate::testing::{bind, bind_ack};

    #[test]
    fn proposals_and_answers_are_read() {
        let proposal = BindProposal::parse(&bind(1, &[(3, EMSMDB)], None)).unwrap();
        assert_eq!(proposal.contexts, [(3, EMSMDB)]);
        assert_eq!((proposal.max_transmit, proposal.max_receive), (4280, 4280));
        for address in ["", "6", "60", "600", "6001"] {
            let answer = BindAnswer::parse(&bind_ack(1, address, &[0, 2], None)).unwrap();
            assert_eq!(answer.accepted, [true, false], "{address}");
        }
    }

    #[test]
    fn truncated_binds_are_refused() {
        let whole = bind(1, &[(3, EMSMDB)], None);
        for cut in 0..whole.len() {
            assert_eq!(BindProposal::parse(&whole[..cut]), None, "{cut}");
        }
        let whole = bind_ack(1, "6001", &[0], None);
        for cut in 0..whole.len() {
            assert_eq!(BindAnswer::parse(&whole[..cut]), None, "{cut}");
        }
    }
}
