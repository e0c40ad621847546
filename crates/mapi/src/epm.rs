//! The endpoint mapper (C706 Appendix O, ept_map; [MS-RPCE] §3.1.2.5): at which ports a server
//! offers which interfaces.
//!
//! ```text
//!  client ──ept_map(interface)──► server:135
//!  client ◄──towers: interface, NDR, DCE/RPC, TCP port, IP address── server
//! ```
//! An answer's tower names its interface, so the question is not needed. Only towers of the
//! mailbox interfaces over TCP count, and only for the server that answers: a server cannot send
//! another's clients anywhere.

use vocab::{ByteReader, TruncatedInput};

use crate::emsmdb;
use crate::rpc::bind::NDR;

/// The interface ept, as it stands in a bind (C706 Appendix O).
pub const EPT: [u8; 16] = [
    0x08, 0x83, 0xaf, 0xe1, 0x1f, 0x5d, 0xc9, 0x11, 0x91, 0xa4, 0x08, 0x00, 0x2b, 0x14, 0xa0, 0xfa,
];

/// The interface of the address book, NSPI ([MS-OXNSPI] §1.9).
const NSPI: [u8; 16] = [
    0x18, 0x5a, 0xcc, 0xf5, 0x64, 0x42, 0x1a, 0x10, 0x8c, 0x59, 0x08, 0x00, 0x2b, 0x2f, 0x84, 0x26,
];
/// The interface that names a client's server, RFR ([MS-OXABREF] §1.9).
const RFR: [u8; 16] = [
    0xe0, 0xf5, 0x44, 0x15, 0x3c, 0x61, 0xd1, 0x11, 0x93, 0xdf, 0x00, 0xc0, 0x4f, 0xd7, 0xbd, 0x09,
];

/// The interfaces whose ports are learnt.
const INTERFACES: [[u8; 16]; 3] = [emsmdb::EMSMDB, NSPI, RFR];

/// Bytes of ept_map's context handle (C706 Appendix O, ept_lookup_handle_t).
const HANDLE: usize = 20;
/// Towers of one answer that are read. Clients ask for four.
const TOWERS_MAX: u32 = 64;
/// Bytes of one tower. One with an interface, a port and an address has 75.
const TOWER_MAX: u32 = 512;

/// A port at which a server offers an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MappedPort {
    /// The interface, by its place in the list of those that are learnt.
    pub interface: u8,
    /// The TCP port.
    pub port: u16,
}

/// Reads the stub of an answer to ept_map. Towers that are of no interest are left out.
#[must_use]
pub fn mapped_ports(stub: &[u8]) -> Vec<MappedPort> {
    let mut ports = Vec::new();
    // Where the stub ends too early, the towers that were read still count.
    let _ = read_towers(stub, &mut ports);
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn read_towers(stub: &[u8], ports: &mut Vec<MappedPort>) -> Result<(), TruncatedInput> {
    let mut reader = ByteReader::new(stub);
    reader.bytes(HANDLE)?;
    // num_towers; then the array's maximum, offset and actual count, and a pointer for each.
    let _count = u32_of(&mut reader)?;
    let (_maximum, _offset) = (u32_of(&mut reader)?, u32_of(&mut reader)?);
    let actual = u32_of(&mut reader)?.min(TOWERS_MAX);
    let mut present = 0;
    for _ in 0..actual {
        present += usize::from(u32_of(&mut reader)? != 0);
    }
    for _ in 0..present {
        let length = u32_of(&mut reader)?;
        let same = u32_of(&mut reader)?;
        if length != same || length > TOWER_MAX {
            return Err(TruncatedInput);
        }
        let tower = reader.bytes(length as usize)?;
        reader.bytes((length as usize).wrapping_neg() % 4)?;
        ports.extend(mapped_port(tower));
    }
    Ok(())
}

/// C706 Appendix L (Protocol Tower Encoding): floors of two parts, each behind its length. All
/// integers of the encoding are little-endian; the port in a floor is big-endian.
fn mapped_port(tower: &[u8]) -> Option<MappedPort> {
    /// Identifiers of protocols (C706 Appendix I).
    const UUID: u8 = 0x0d;
    const CONNECTION_ORIENTED: u8 = 0x0b;
    const TCP: u8 = 0x07;
    let mut reader = ByteReader::new(tower);
    let floors = reader.array().map(u16::from_le_bytes).ok()?;
    let mut interface = None;
    let mut is_ndr = false;
    let mut is_rpc = false;
    for floor in 0..floors.min(8) {
        let left = prefixed(&mut reader)?;
        let right = prefixed(&mut reader)?;
        match (floor, left.split_first()?) {
            (0, (&UUID, syntax)) => {
                let uuid = syntax.get(..16)?;
                interface = INTERFACES.iter().position(|known| known == uuid);
            }
            (1, (&UUID, syntax)) => is_ndr = syntax.get(..16)? == &NDR[..16],
            (2, (&CONNECTION_ORIENTED, _)) => is_rpc = true,
            (3, (&TCP, _)) if is_ndr && is_rpc => {
                let port = u16::from_be_bytes(*right.first_chunk()?);
                return (port != 0).then_some(MappedPort {
                    interface: interface? as u8,
                    port,
                });
            }
            _ => {}
        }
    }
    None
}

fn prefixed<'a>(reader: &mut ByteReader<'a>) -> Option<&'a [u8]> {
    let length = reader.array().map(u16::from_le_bytes).ok()?;
    reader.bytes(usize::from(length)).ok()
}

fn u32_of(reader: &mut ByteReader<'_>) -> Result<u32, TruncatedInput> {
    reader.array().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::map_answer;

    #[test]
    fn ports_of_mailbox_interfaces_are_read() {
        let stub = map_answer(&[(emsmdb::EMSMDB, 6001), ([9; 16], 4000), (RFR, 6002)]);
        let port = |interface, port| MappedPort { interface, port };
        assert_eq!(mapped_ports(&stub), [port(0, 6001), port(2, 6002)]);
        for cut in 0..stub.len() {
            assert!(mapped_ports(&stub[..cut]).len() <= 2, "{cut}");
        }
    }

    #[test]
    fn other_transports_name_no_port() {
        let mut stub = map_answer(&[(emsmdb::EMSMDB, 6001)]);
        let tcp = stub.windows(5).rposition(|bytes| bytes == [1, 0, 7, 2, 0]);
        stub[tcp.unwrap() + 2] = 0x08;
        assert_eq!(mapped_ports(&stub), []);
    }
}
