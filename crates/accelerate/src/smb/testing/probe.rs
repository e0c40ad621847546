//! Reads any bytes as every structure, and checks the properties that must always hold.

use bytes::Bytes;

use crate::credentials::Keytab;
use crate::credentials::kerberos::read_all as read_kerberos;
use crate::smb::frames::HalfFrame;
use crate::smb::keys::{EncryptionCipher, PendingSetUps, SealingKey, SetUpOutcome};
use crate::smb::sealed;
use crate::smb::wire::create::{
    CreateRequest, CreateResponse, answered_lease_key_at, contexts_offset, decline_durable,
    lease_key_at, name_of, renamed, without_drawn_numbers,
};
use crate::smb::wire::directory::{QueryDirectoryRequest, entries};
use crate::smb::wire::header::{LENGTH, Smb2Header, command, status};
use crate::smb::wire::lease::{LeaseBreak, LeaseContext};
use crate::smb::wire::oplock::OplockBreak;
use crate::smb::wire::set_info::{plain_change, position_set};
use crate::smb::wire::set_up::{NegotiateResponse, SessionSetupResponse, TreeConnectResponse};
use crate::smb::wire::split::{Smb2Splitter, SplitterPiece};
use crate::smb::wire::target::touch;
use crate::smb::wire::transfer::{ReadRequest, WriteRequest, written};
use crate::smb::wire::transform::{self, TransformHeader};

/// Takes any bytes.
///
/// # Panics
/// When a reader panics, a stream does not come out as it went in, or what was understood is not
/// read again equal.
pub fn structures(bytes: &[u8]) {
    if let Ok(header) = Smb2Header::parse(bytes) {
        assert_eq!(header.emit()[..], bytes[..LENGTH]);
        let _ = touch(&header, &bytes[LENGTH..]);
    }
    if let Ok(request) = ReadRequest::parse(bytes) {
        assert_eq!(ReadRequest::parse(&request.emit()), Ok(request));
        let _ = request.is_plain();
    }
    if let Ok(request) = QueryDirectoryRequest::parse(bytes) {
        let again = QueryDirectoryRequest::parse(&request.emit());
        assert_eq!(again, Ok(request));
    }
    let _ = entries(bytes);
    if let Ok(request) = WriteRequest::parse(bytes) {
        let _ = request.is_plain(bytes.len());
    }
    if let Ok(notice) = OplockBreak::parse(bytes) {
        assert_eq!(OplockBreak::parse(&notice.emit()), Ok(notice));
    }
    if let Ok(request) = CreateRequest::parse(bytes) {
        let _ = request.context_names();
        let _ = request.lease();
    }
    let _ = decline_durable(&mut bytes.to_vec());
    for at in [lease_key_at(bytes), answered_lease_key_at(bytes)] {
        assert!(at.is_none_or(|at| at + 16 <= bytes.len()));
    }
    assert_eq!(without_drawn_numbers(bytes).len(), bytes.len());
    if let (Some(name), Some(offset)) = (name_of(bytes), contexts_offset(bytes)) {
        let same = renamed(bytes, name, offset);
        assert!(same.is_none_or(|same| same == bytes));
    }
    let _ = plain_change(bytes);
    let _ = written(bytes);
    let _ = CreateResponse::parse(bytes);
    let _ = CreateResponse::lease(bytes);
    let _ = position_set(bytes);
    let _ = LeaseContext::parse(bytes);
    let _ = LeaseBreak::parse(bytes);
    let _ = NegotiateResponse::parse(bytes);
    let _ = SessionSetupResponse::parse(bytes);
    let _ = TreeConnectResponse::parse(bytes);
    if let Ok(Some(frame)) = HalfFrame::parse(bytes) {
        assert_eq!(HalfFrame::parse(&frame.emit().bytes), Ok(Some(frame)));
    }
    encrypted(bytes);
    set_up(bytes);
    read_kerberos(bytes);
    if let Ok(keytab) = Keytab::parse(bytes) {
        assert!(keytab.keys() > 0 && keytab.principals().len() <= keytab.keys());
    }
    stream(bytes);
}

/// Checks an encrypted message, which no other key decrypts, and its possible content.
fn encrypted(bytes: &[u8]) {
    if let Ok(transform) = TransformHeader::parse(bytes) {
        assert_eq!(transform.emit()[..], bytes[..transform::LENGTH]);
        for cipher in EncryptionCipher::ALL {
            assert_eq!(SealingKey::new(cipher, &[0x5a; 32]).open(bytes), None);
        }
    }
    let session = Smb2Header::parse(bytes).map_or(0, |header| header.session);
    let Some(pieces) = sealed::pieces(session, bytes) else {
        return;
    };
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            SplitterPiece::Head(head) => {
                assert!(head.header.is_sealed);
                out.extend_from_slice(&head.bytes);
            }
            SplitterPiece::Rest(_, bytes) => out.extend_from_slice(&bytes),
            SplitterPiece::End => {}
            SplitterPiece::Sealed(_) => panic!("encrypted once more"),
        }
    }
    assert_eq!(out[4..], *bytes);
}

/// Checks a whole message as each of those that may lead to a key; one message alone never does.
fn set_up(bytes: &[u8]) {
    let _ = NegotiateResponse::signing_algorithm(bytes);
    let _ = NegotiateResponse::cipher(bytes);
    let Ok(header) = Smb2Header::parse(bytes) else {
        return;
    };
    let mut set_ups = PendingSetUps::new(&super::settings());
    for command in [command::NEGOTIATE, command::SESSION_SETUP] {
        let status = [0, status::MORE_PROCESSING_REQUIRED, 0];
        for status in status {
            let header = Smb2Header {
                command,
                status,
                ..header
            };
            set_ups.request(&header, bytes);
            let outcome = set_ups.answer(&header, bytes, bytes);
            assert!(!matches!(outcome, Some(SetUpOutcome::Key { .. })));
        }
    }
}

/// Reads a stream in two parts, divided at the place that its first byte gives.
fn stream(bytes: &[u8]) {
    let cut = bytes.first().map_or(0, |first| usize::from(*first));
    let mut splitter = Smb2Splitter::taking_sealed();
    let mut out = Vec::new();
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    for part in [first, second] {
        splitter.push(Bytes::copy_from_slice(part));
        loop {
            match splitter.next() {
                Ok(Some(SplitterPiece::Head(head))) => out.extend_from_slice(&head.bytes),
                Ok(Some(SplitterPiece::Rest(_, bytes))) => out.extend_from_slice(&bytes),
                Ok(Some(SplitterPiece::End)) => {}
                Ok(Some(SplitterPiece::Sealed(frame))) => out.extend_from_slice(&frame),
                Ok(None) | Err(_) => break,
            }
        }
    }
    out.extend_from_slice(&splitter.give_back());
    assert_eq!(out, bytes);
}
