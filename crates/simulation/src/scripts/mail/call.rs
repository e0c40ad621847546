//! Calls over DCE/RPC, in both directions: a stub in fragments, and fragments gathered into a stub.

use bytes::{BufMut, Bytes, BytesMut};
use mapi::emsmdb::EMSMDB;
use mapi::rpc::bind::NDR;
use mapi::rpc::calls::{CallGatherer, GatheredCall, GatheredFragment};
use mapi::rpc::fragments::{CallFrame, unprotected};
use mapi::rpc::pdu::{PduHeader, PduKind, pfc};
use mapi::rpc::splitter::PduSplitter;

/// Bytes of the largest fragment, as Outlook and Exchange have it.
const FRAGMENT: u16 = 5_840;
/// Presentation context of the mailbox interface.
const CONTEXT: u16 = 0;

/// Message of one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RpcMessage {
    /// The client begins the association, or the server accepts it.
    Bind,
    /// A call, or the answer to one.
    Call(GatheredCall),
}

/// Bytes of one direction, gathered into messages.
#[derive(Debug, Default)]
pub(super) struct MessageReader {
    pdus: PduSplitter,
    calls: CallGatherer,
}

impl MessageReader {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pdus.push(bytes);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// Fails when the bytes are no DCE/RPC, or the call failed.
    pub(super) fn next_message(&mut self) -> Result<Option<RpcMessage>, String> {
        loop {
            let next = self.pdus.next_pdu().map_err(|error| error.to_string())?;
            let Some(pdu) = next else { return Ok(None) };
            match pdu.header.kind {
                PduKind::Bind | PduKind::BindAck => return Ok(Some(RpcMessage::Bind)),
                PduKind::Request | PduKind::Response => match self.calls.fragment(pdu) {
                    GatheredFragment::Whole(call) => return Ok(Some(RpcMessage::Call(call))),
                    GatheredFragment::Partial => {}
                    GatheredFragment::Refused(_) => {
                        return Err("the fragments of a call do not fit together".to_owned());
                    }
                },
                other => return Err(format!("a PDU of the kind {other:?} arrived")),
            }
        }
    }
}

/// The PDU that begins an association, or that accepts it.
pub(super) fn bind(kind: PduKind) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u16_le(FRAGMENT);
    body.put_u16_le(FRAGMENT);
    body.put_u32_le(u32::from(kind == PduKind::BindAck));
    match kind {
        PduKind::BindAck => {
            // The secondary address `6001`, padding, and one accepted context.
            body.put_slice(&[5, 0, b'6', b'0', b'0', b'1', 0, 0]);
            body.put_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
            body.put_slice(&NDR);
        }
        _ => {
            body.put_slice(&[1, 0, 0, 0]);
            body.put_u16_le(CONTEXT);
            body.put_slice(&[1, 0]);
            body.put_slice(&EMSMDB);
            body.put_slice(&[0, 0, 81, 0]);
            body.put_slice(&NDR);
        }
    }
    let header = PduHeader {
        minor: 0,
        kind,
        flags: pfc::FIRST | pfc::LAST,
        fragment_length: (mapi::rpc::pdu::HEADER + body.len()) as u16,
        auth_length: 0,
        call_id: 1,
    };
    let mut bytes = BytesMut::from(&header.emit()[..]);
    bytes.put_slice(&body);
    bytes.freeze()
}

/// The fragments of a call; `opnum` is `None` in an answer.
pub(super) fn fragments(call_id: u32, opnum: Option<u16>, stub: &[u8]) -> Bytes {
    let frame = CallFrame {
        kind: match opnum {
            Some(_) => PduKind::Request,
            None => PduKind::Response,
        },
        call_id,
        context_id: CONTEXT,
        opnum: opnum.unwrap_or(0),
        protection: None,
        fragment_max: FRAGMENT,
    };
    let mut bytes = BytesMut::with_capacity(stub.len() + stub.len() / 100 + 64);
    for fragment in frame.fragments(stub) {
        bytes.put_slice(&unprotected(fragment));
    }
    bytes.freeze()
}
