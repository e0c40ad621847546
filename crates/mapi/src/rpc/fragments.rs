//! Writes calls and answers of a half's own as fragments.
//!
//! A protected fragment's stub is padded to 16 bytes, as Windows does, so that any cipher fits.

use super::pdu::{CALL_HEADER, HEADER, PduHeader, PduKind, TRAILER, pfc};
use super::security::OpenedPdu;
use super::splitter::SecurityTrailer;

/// The multiple to which protected stubs are padded.
const ALIGNMENT: usize = 16;

/// The protection of a fragment.
#[derive(Clone, Copy, Debug)]
pub struct CallProtection {
    /// The mechanism, the level and the number of the security context.
    pub trailer: SecurityTrailer,
    /// Bytes of the signature.
    pub signature_length: usize,
}

/// The fields that are equal in all fragments of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallFrame {
    /// Request, response or fault.
    pub kind: PduKind,
    /// The number of the call.
    pub call_id: u32,
    /// Its presentation context.
    pub context_id: u16,
    /// The number of the operation in a request; 0 in a response or fault.
    pub opnum: u16,
    /// The security context that protects it.
    pub protection: Option<CallProtection>,
    /// Bytes of the largest fragment that the receiver takes.
    pub fragment_max: u16,
}

impl CallFrame {
    /// The fragments of a stub. Those without protection have a trailer of zeros, which
    /// [`unprotected`] leaves out.
    #[must_use]
    pub fn fragments(&self, stub: &[u8]) -> Vec<OpenedPdu> {
        let most = usize::from(self.fragment_max) - CALL_HEADER;
        let room = match self.protection {
            Some(protection) => {
                (most - TRAILER - protection.signature_length) / ALIGNMENT * ALIGNMENT
            }
            None => most,
        };
        let mut fragments = Vec::new();
        let mut rest = stub;
        loop {
            let (piece, behind) = rest.split_at(room.min(rest.len()));
            let mut flags = 0;
            if fragments.is_empty() {
                flags |= pfc::FIRST;
            }
            if behind.is_empty() {
                flags |= pfc::LAST;
            }
            fragments.push(self.fragment(flags, piece, rest.len()));
            rest = behind;
            if rest.is_empty() {
                return fragments;
            }
        }
    }

    fn fragment(&self, flags: u8, piece: &[u8], remaining: usize) -> OpenedPdu {
        let mut stub = piece.to_vec();
        let mut trailer = SecurityTrailer::parse([0; TRAILER]);
        let (mut auth_length, mut behind) = (0, 0);
        if let Some(protection) = self.protection {
            let padding = stub.len().next_multiple_of(ALIGNMENT) - stub.len();
            stub.resize(stub.len() + padding, 0);
            trailer = SecurityTrailer {
                padding: padding as u8,
                ..protection.trailer
            };
            auth_length = protection.signature_length as u16;
            behind = TRAILER + protection.signature_length;
        }
        let header = PduHeader {
            minor: 0,
            kind: self.kind,
            flags,
            fragment_length: (CALL_HEADER + stub.len() + behind) as u16,
            auth_length,
            call_id: self.call_id,
        };
        let mut head = Vec::with_capacity(CALL_HEADER);
        head.extend(header.emit());
        head.extend((remaining as u32).to_le_bytes());
        head.extend(self.context_id.to_le_bytes());
        head.extend(self.opnum.to_le_bytes());
        debug_assert_eq!(head.len(), HEADER + 8);
        OpenedPdu {
            head,
            stub,
            trailer,
        }
    }
}

/// The bytes of a fragment without protection.
#[must_use]
pub fn unprotected(mut fragment: OpenedPdu) -> Vec<u8> {
    fragment.head.append(&mut fragment.stub);
    fragment.head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::calls::{CallGatherer, GatheredFragment};
    use crate::rpc::splitter::{RawPdu, level};

    #[test]
    fn fragments_are_gathered_into_the_same_stub() {
        let protected = |signature_length| CallProtection {
            trailer: SecurityTrailer {
                mechanism: 10,
                level: level::PRIVACY,
                padding: 0,
                context: 9,
            },
            signature_length,
        };
        for protection in [None, Some(protected(16)), Some(protected(76))] {
            for length in [0, 1, 1_400, 1_408, 1_409, 40_000] {
                let stub: Vec<u8> = (0..length).map(|at: u32| at as u8).collect();
                let call = CallFrame {
                    kind: PduKind::Request,
                    call_id: 7,
                    context_id: 1,
                    opnum: 11,
                    protection,
                    fragment_max: 1_432,
                };
                let mut gatherer = CallGatherer::default();
                let mut whole = None;
                for fragment in call.fragments(&stub) {
                    let bytes = match protection {
                        None => unprotected(fragment),
                        Some(_) => fragment.to_bytes(),
                    };
                    assert!(bytes.len() <= 1_432);
                    let pdu = RawPdu::parse(bytes.into()).unwrap();
                    assert!(whole.is_none());
                    if let GatheredFragment::Whole(call) = gatherer.fragment(pdu) {
                        whole = Some(call);
                    }
                }
                let whole = whole.unwrap();
                assert_eq!((&whole.stub[..], whole.opnum), (&stub[..], Some(11)));
            }
        }
    }
}
