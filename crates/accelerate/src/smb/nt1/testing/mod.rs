//! For tests: messages of SMB 1, a small server that speaks it, and a client behind the pair of halves.

// Each of the crates that use this uses some of it.
#![cfg_attr(not(test), allow(dead_code))]

mod messages;
pub(crate) mod server;
pub(crate) mod world;

use std::time::Duration;

use super::wire::create::{NtCreateRequest, NtCreateResponse, UnixOpenRequest, opened_file};
use super::wire::header::Smb1Header;
use super::wire::negotiate::Smb1NegotiateResponse;
use super::wire::oplock::{LockingRequest, broken};
use super::wire::position::{SeekRequest, position_set, sought};
use super::wire::set_up::{ClientCapabilities, connected};
use super::wire::split::{PassingFrame, Smb1Frame, Smb1Splitter};
use super::wire::target::{answers, touch};
use super::wire::transaction::TransactionProgress;
use super::wire::transfer::{ReadAndxRequest, WriteAndxRequest, read_data, written};
use crate::AcceleratorInput;
use bytes::Bytes;
pub(crate) use messages::*;
use world::Smb1World;

/// Reads bytes as every structure of SMB 1: as a stream of frames, and as one message.
///
/// # Panics
/// When something is read from outside of them, or reads back other than it was.
pub(crate) fn structures(bytes: &[u8]) {
    let mut splitter = Smb1Splitter::default();
    splitter.push(bytes);
    let (mut whole, mut count) = (0, 0);
    while let Ok(Some(frame)) = splitter.next() {
        let frame = match frame {
            Smb1Frame::Message(header, frame) => {
                assert_eq!(Smb1Header::parse(&header.emit()), Ok(header));
                message(&frame[4..]);
                count += 1;
                frame
            }
            Smb1Frame::KeepAlive(frame) => frame,
        };
        whole += frame.len();
    }
    assert_eq!(whole + splitter.give_back().len(), bytes.len());
    // What passes is seen alike however it comes.
    let mut passing = PassingFrame::default();
    let (mut passed, mut is_followed) = (0, true);
    for piece in bytes.chunks(7) {
        match passing.push(Bytes::copy_from_slice(piece)) {
            Ok((runs, messages)) => {
                let total: usize = runs.iter().map(|(_, bytes)| bytes.len()).sum();
                assert_eq!(total, piece.len());
                passed += messages.len();
            }
            // What was complete in the same piece is not told any more.
            Err(_) => {
                is_followed = false;
                break;
            }
        }
    }
    assert!(passed <= count && (!is_followed || passed == count));
    message(bytes);
    let _ = super::frames::Smb1HalfFrame::parse(bytes);
}

fn message(bytes: &[u8]) {
    let _ =
        Smb1NegotiateResponse::parse(bytes).map(|answer| answer.read_max(ClientCapabilities::ALL));
    let _ = NtCreateRequest::parse(bytes);
    let _ = NtCreateResponse::parse(bytes);
    let _ = UnixOpenRequest::parse(bytes).map(|open| open.is_served());
    let _ = NtCreateResponse::parse_unix(bytes);
    let _ = LockingRequest::parse(bytes);
    let _ = written(bytes);
    if let Ok((at, length)) = read_data(bytes) {
        assert!(length == 0 || at + length <= bytes.len());
    }
    if let Ok(request) = WriteAndxRequest::parse(bytes)
        && request.is_plain(bytes.len())
    {
        assert!(request.data_at + request.length as usize <= bytes.len());
    }
    let Ok(header) = Smb1Header::parse(bytes) else {
        return;
    };
    if let Ok(request) = ReadAndxRequest::parse(bytes) {
        let again = request.emit(&header);
        assert_eq!(ReadAndxRequest::parse(&again), Ok(request));
    }
    let _ = (touch(&header, bytes), answers(&header, bytes));
    let _ = (
        broken(&header, bytes),
        ClientCapabilities::parse(&header, bytes),
    );
    let _ = (connected(&header, bytes), opened_file(bytes));
    let _ = (position_set(bytes), sought(bytes));
    if let Ok(seek) = SeekRequest::parse(bytes) {
        assert_eq!(SeekRequest::parse(&seek.emit(&header)), Ok(seek));
    }
    let _ = TransactionProgress::default().is_last(&header, bytes);
}

/// Records the inputs of the near and the far half while an SMB 1 client opens a file, reads and
/// writes it, and another client beside the server opens it too. Fuzzing starts from them.
pub(crate) fn conversation() -> [Vec<AcceleratorInput>; 2] {
    let mut world = Smb1World::new(Duration::from_millis(10));
    world.told = Some([Vec::new(), Vec::new()]);
    world.server.files.insert("a".to_owned(), vec![7; 3_000]);
    world.set_up(0);
    let file = world.open(0, "a");
    for offset in [0, 1_000, 2_000] {
        world.ask(0, &read(file, offset, 1_000));
    }
    world.ask(0, &write(file, 500, b"written").0);
    world.ask(0, &flush(file));
    world.ask(0, &query_file(file, 1_014));
    let other = world.beside();
    let theirs = world.open(other, "a");
    world.ask(other, &close(theirs));
    world.ask(0, &read(file, 0, 1_000));
    let opened = world.ask(0, &unix_open_with("b", 2, 1));
    let by_unix = opened_file(&opened.message).expect("it opens");
    world.ask(0, &read(by_unix, 0, 100));
    world.ask(0, &close(by_unix));
    world.ask(0, &chained(&read(file, 0, 100)));
    world.ask(0, &close(file));
    world.told.take().expect("it was to be kept")
}
