//! For tests: PDUs as a client and a server write them.

use crate::rpc::bind::NDR;
use crate::rpc::pdu::{HEADER, PduHeader, PduKind, pfc};
use crate::rpc::splitter::SecurityTrailer;

/// A PDU of one fragment with this content behind its header, and a token behind that.
fn pdu(
    kind: PduKind,
    call_id: u32,
    body: &[u8],
    token: Option<(SecurityTrailer, &[u8])>,
) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend(body);
    let mut auth_length = 0;
    if let Some((trailer, token)) = token {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(trailer.emit());
        bytes.extend(token);
        auth_length = token.len() as u16;
    }
    let header = PduHeader {
        minor: 0,
        kind,
        flags: pfc::FIRST | pfc::LAST,
        fragment_length: bytes.len() as u16,
        auth_length,
        call_id,
    };
    bytes[..HEADER].copy_from_slice(&header.emit());
    bytes
}

/// A request in presentation context 0.
#[must_use]
pub fn request(call_id: u32, opnum: u16, stub: &[u8]) -> Vec<u8> {
    let body = [
        &(stub.len() as u32).to_le_bytes()[..],
        &[0, 0],
        &opnum.to_le_bytes(),
        stub,
    ];
    pdu(PduKind::Request, call_id, &body.concat(), None)
}

/// A response in presentation context 0.
#[must_use]
pub fn response(call_id: u32, stub: &[u8]) -> Vec<u8> {
    let body = [&(stub.len() as u32).to_le_bytes()[..], &[0; 4], stub];
    pdu(PduKind::Response, call_id, &body.concat(), None)
}

/// A bind that proposes these presentation contexts.
#[must_use]
pub fn bind(
    call_id: u32,
    contexts: &[(u16, [u8; 16])],
    token: Option<(SecurityTrailer, &[u8])>,
) -> Vec<u8> {
    let mut body = vec![
        0xb8,
        0x10,
        0xb8,
        0x10,
        0,
        0,
        0,
        0,
        contexts.len() as u8,
        0,
        0,
        0,
    ];
    for (id, interface) in contexts {
        body.extend(id.to_le_bytes());
        body.extend([1, 0]);
        body.extend(interface);
        body.extend([0, 0, 81, 0]);
        body.extend(NDR);
    }
    pdu(PduKind::Bind, call_id, &body, token)
}

/// A bind_ack with these results.
#[must_use]
pub fn bind_ack(
    call_id: u32,
    address: &str,
    results: &[u16],
    token: Option<(SecurityTrailer, &[u8])>,
) -> Vec<u8> {
    let mut body = vec![0xb8, 0x10, 0xb8, 0x10, 9, 0, 0, 0];
    body.extend((address.len() as u16).to_le_bytes());
    body.extend(address.as_bytes());
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend([results.len() as u8, 0, 0, 0]);
    for result in results {
        body.extend(result.to_le_bytes());
        body.extend([0, 0]);
        body.extend(if *result == 0 { NDR } else { [0; 20] });
    }
    pdu(PduKind::BindAck, call_id, &body, token)
}

/// The client's last token.
#[must_use]
pub fn auth3(call_id: u32, token: (SecurityTrailer, &[u8])) -> Vec<u8> {
    pdu(PduKind::Auth3, call_id, &[0; 4], Some(token))
}

/// The stub of an answer to ept_map with these interfaces and ports, at 198.18.0.2.
#[must_use]
pub fn map_answer(offers: &[([u8; 16], u16)]) -> Vec<u8> {
    let count = (offers.len() as u32).to_le_bytes();
    let mut stub = vec![0; 20];
    stub.extend(count);
    stub.extend(count);
    stub.extend([0; 4]);
    stub.extend(count);
    for referent in 1..=offers.len() as u32 {
        stub.extend(referent.to_le_bytes());
    }
    for (interface, port) in offers {
        let floor = |left: &[u8], right: &[u8]| {
            let mut floor = (left.len() as u16).to_le_bytes().to_vec();
            floor.extend(left);
            floor.extend((right.len() as u16).to_le_bytes());
            floor.extend(right);
            floor
        };
        let tower = [
            vec![5, 0],
            floor(&[&[0x0d][..], interface, &[0, 0]].concat(), &[0, 0]),
            floor(&[&[0x0d][..], &NDR[..16], &[2, 0]].concat(), &[0, 0]),
            floor(&[0x0b], &[0, 0]),
            floor(&[0x07], &port.to_be_bytes()),
            floor(&[0x09], &[198, 18, 0, 2]),
        ]
        .concat();
        stub.extend((tower.len() as u32).to_le_bytes());
        stub.extend((tower.len() as u32).to_le_bytes());
        stub.extend(&tower);
        stub.resize(stub.len().next_multiple_of(4), 0);
    }
    stub.extend([0; 4]);
    stub
}
