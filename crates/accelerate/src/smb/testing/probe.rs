//! Reads any bytes as every structure there is, and checks what must hold whatever they are.

use bytes::Bytes;

use crate::smb::frames::Frame;
use crate::smb::wire::create::{CreateAnswer, CreateRequest};
use crate::smb::wire::directory::{QueryDirectoryRequest, entries};
use crate::smb::wire::header::{Header, LENGTH};
use crate::smb::wire::oplock::OplockBreak;
use crate::smb::wire::set_up::{NegotiateAnswer, SessionSetupAnswer, TreeConnectAnswer};
use crate::smb::wire::split::{Piece, Splitter};
use crate::smb::wire::target::touch;
use crate::smb::wire::transfer::{ReadRequest, WriteRequest, written};

/// Takes any bytes.
///
/// # Panics
/// When a reader panics, a stream does not come out as it went in, or what was understood is not
/// read again equal.
pub fn structures(bytes: &[u8]) {
    if let Ok(header) = Header::parse(bytes) {
        assert_eq!(header.emit()[..], bytes[..LENGTH]);
        let _ = touch(&header, &bytes[LENGTH..], None);
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
    }
    let _ = written(bytes);
    let _ = CreateAnswer::parse(bytes);
    let _ = NegotiateAnswer::parse(bytes);
    let _ = SessionSetupAnswer::parse(bytes);
    let _ = TreeConnectAnswer::parse(bytes);
    if let Ok(Some(frame)) = Frame::parse(bytes) {
        assert_eq!(Frame::parse(&frame.emit().bytes), Ok(Some(frame)));
    }
    stream(bytes);
}

/// A stream in two parts, cut where its first byte says.
fn stream(bytes: &[u8]) {
    let cut = bytes.first().map_or(0, |first| usize::from(*first));
    let mut splitter = Splitter::new();
    let mut out = Vec::new();
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    for part in [first, second] {
        splitter.push(Bytes::copy_from_slice(part));
        loop {
            match splitter.next() {
                Ok(Some(Piece::Head(head))) => out.extend_from_slice(&head.bytes),
                Ok(Some(Piece::Rest(_, bytes))) => out.extend_from_slice(&bytes),
                Ok(Some(Piece::End)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }
    out.extend_from_slice(&splitter.give_back());
    assert_eq!(out, bytes);
}
