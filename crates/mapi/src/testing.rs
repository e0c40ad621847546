//! For tests and fuzzing: PDUs as a client and a server write them, and readers of any bytes.

pub use crate::http::testing::{http_halves, http_samples};

use accelerate::credentials::DelegatedKeys;
use accelerate::credentials::kerberos::{KerberosKey, MessageSecret};
use bytes::Bytes;
use zeroize::Zeroizing;

use crate::emsmdb::{ContextHandle, EMSMDB};
use crate::epm::{EPT, mapped_ports};
use crate::frames::HalfFrame;
use crate::rpc::association::RpcAssociation;
use crate::rpc::bind::{BindAnswer, BindProposal, NDR};
use crate::rpc::calls::{self, CallGatherer};
use crate::rpc::cutter::PduCutter;
use crate::rpc::kerberos::KerberosSecret;
use crate::rpc::ntlm::NtlmSecret;
use crate::rpc::pdu::{HEADER, PduHeader, PduKind, pfc};
use crate::rpc::protector::{MessageOrigin, SessionSecret};
use crate::rpc::security::{OpenedPdu, SecuritySetUp};
use crate::rpc::splitter::{PduSplitter, SecurityTrailer, level};

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

/// Reads any bytes as every structure of DCE/RPC and of the halves.
///
/// # Panics
/// When a reader is wrong: bytes get lost, or a frame is not read back equal.
pub fn structures(bytes: &[u8]) {
    let _ = BindProposal::parse(bytes);
    let _ = BindAnswer::parse(bytes);
    let _ = mapped_ports(bytes);
    if let Some(frame) = HalfFrame::parse(bytes) {
        assert_eq!(HalfFrame::parse(&frame.emit()), Some(frame));
    }
    split(bytes);
    pass(bytes);
}

/// Splits bytes in one piece and one by one, and gathers the calls among them.
fn split(bytes: &[u8]) {
    let mut at_once = PduSplitter::default();
    at_once.push(bytes);
    let mut slowly = PduSplitter::default();
    let mut rest = bytes.iter();
    let secret = SessionSecret::Ntlm(NtlmSecret {
        key: Zeroizing::new([7; 16]),
        flags: 0xe28a_8233,
        first_sequence: 0,
    });
    let mut protector = secret.protector(MessageOrigin::Client);
    let mut calls = CallGatherer::default();
    let mut association = RpcAssociation::default();
    let mut set_up = SecuritySetUp::new(DelegatedKeys::default());
    while let Ok(Some(pdu)) = at_once.next_pdu() {
        let same = loop {
            match slowly.next_pdu() {
                Ok(Some(pdu)) => break pdu,
                Ok(None) => slowly.push(&[*rest.next().expect("the PDU is not whole yet")]),
                Err(error) => panic!("in pieces: {error}"),
            }
        };
        assert_eq!(pdu, same);
        association.client_sent(&pdu);
        association.server_sent(&pdu);
        set_up.client_token(pdu.auth_value());
        set_up.server_token(pdu.auth_value());
        assert!(
            protector.open(&pdu).is_none(),
            "a signature that nobody made is valid"
        );
        let _ = calls.fragment(pdu);
        assert!(calls.held() <= calls::GATHERED_MAX);
    }
}

/// Cuts bytes as they pass, in pieces; none is lost.
fn pass(bytes: &[u8]) {
    let mut cutter = PduCutter::default();
    let mut passed = Vec::new();
    for piece in bytes.chunks(7) {
        match cutter.cut(&Bytes::copy_from_slice(piece), false) {
            Ok(cut) => cut
                .pieces
                .iter()
                .for_each(|(_, piece)| passed.extend(piece)),
            Err(_) => break,
        }
        assert!(bytes.starts_with(&passed));
    }
}

/// Good inputs for [`structures`], with their names.
#[must_use]
pub fn conversation() -> Vec<(&'static str, Vec<u8>)> {
    let trailer = SecurityTrailer {
        mechanism: 10,
        level: level::PRIVACY,
        padding: 0,
        context: 79_231,
    };
    let mut opened = OpenedPdu {
        head: request(3, 11, &[5; 48])[..24].to_vec(),
        stub: vec![5; 48],
        trailer,
    };
    opened.head[10] = 16;
    let secret = SessionSecret::Ntlm(NtlmSecret {
        key: Zeroizing::new([9; 16]),
        flags: 0xe28a_8233,
        first_sequence: 0,
    });
    let keys = HalfFrame::Keys {
        protection: trailer,
        secret,
        may_store: true,
    };
    let key = KerberosKey::of(18, &[9; 32]).expect("a key of this type has 32 bytes");
    let messages = MessageSecret::new(key, true, [1, 2]).expect("the key is one of AES");
    let kerberos_keys = HalfFrame::Keys {
        protection: trailer,
        secret: SessionSecret::Kerberos(KerberosSecret {
            messages,
            signs_headers: true,
        }),
        may_store: true,
    };
    let announced = HalfFrame::Opened {
        head: opened.head.clone(),
        trailer,
        stub_length: 48,
    };
    let mailbox = HalfFrame::Mailbox {
        context_id: 1,
        fragment_max: 5_840,
    };
    let http_head = HalfFrame::HttpHead {
        context: ContextHandle([7; 20]),
        sequence: Bytes::from_static(b"1"),
        template: Bytes::from_static(b"POST / HTTP/1.1\r\n\r\n"),
    };
    let http_answer = HalfFrame::HttpAnswer {
        head: Bytes::from_static(b"HTTP/1.1 200 OK\r\n\r\n"),
        meta: Bytes::from_static(b"DONE\r\n\r\n"),
    };
    let interfaces = [(0, EPT), (1, EMSMDB)];
    let mut sealed = opened.to_bytes();
    let length = sealed.len() as u16;
    sealed[8..10].copy_from_slice(&length.to_le_bytes());
    vec![
        (
            "bind",
            bind(1, &interfaces, Some((trailer, b"NTLMSSP\0\x01\0\0\0"))),
        ),
        ("bind-ack", bind_ack(1, "135", &[0, 2], None)),
        ("auth3", auth3(1, (trailer, &[3; 24]))),
        (
            "calls",
            [request(2, 3, b"stub"), response(2, b"answer")].concat(),
        ),
        ("sealed", sealed),
        ("map-answer", map_answer(&[(EMSMDB, 6001), (OTHER, 6002)])),
        ("frame-keys", keys.emit().to_vec()),
        ("frame-kerberos-keys", kerberos_keys.emit().to_vec()),
        ("frame-opened", announced.emit().to_vec()),
        ("frame-mailbox", mailbox.emit().to_vec()),
        ("frame-http-head", http_head.emit().to_vec()),
        ("frame-http-answer", http_answer.emit().to_vec()),
    ]
}

/// An interface that is not followed.
const OTHER: [u8; 16] = [9; 16];
