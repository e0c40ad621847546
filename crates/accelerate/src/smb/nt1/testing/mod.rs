//! For tests: messages of SMB 1, a small server that speaks it, and a client behind the pair of halves.

// Each of the crates that use this uses some of it.
#![cfg_attr(not(test), allow(dead_code))]

mod messages;
pub(crate) mod server;
pub(crate) mod world;

use std::time::Duration;

use super::wire::create::{CreateAnswer, CreateRequest, opened_file};
use super::wire::header::Header;
use super::wire::negotiate::NegotiateAnswer;
use super::wire::oplock::{Locking, broken};
use super::wire::position::{Seek, position_set, sought};
use super::wire::set_up::{Takes, connected};
use super::wire::split::{Frame, Passing, Splitter};
use super::wire::target::{answers, touch};
use super::wire::transaction::Progress;
use super::wire::transfer::{ReadRequest, WriteRequest, read_data, written};
use crate::Input;
use bytes::Bytes;
pub(crate) use messages::*;
use world::World;

/// Reads bytes as every structure of SMB 1: as a stream of frames, and as one message.
///
/// # Panics
/// When something is read from outside of them, or reads back other than it was.
pub(crate) fn structures(bytes: &[u8]) {
    let mut splitter = Splitter::default();
    splitter.push(bytes);
    let (mut whole, mut count) = (0, 0);
    while let Ok(Some(frame)) = splitter.next() {
        let frame = match frame {
            Frame::Message(header, frame) => {
                assert_eq!(Header::parse(&header.emit()), Ok(header));
                message(&frame[4..]);
                count += 1;
                frame
            }
            Frame::KeepAlive(frame) => frame,
        };
        whole += frame.len();
    }
    assert_eq!(whole + splitter.give_back().len(), bytes.len());
    // What passes is seen alike however it comes.
    let mut passing = Passing::default();
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
    let _ = super::frames::Frame::parse(bytes);
}

fn message(bytes: &[u8]) {
    let _ = NegotiateAnswer::parse(bytes).map(|answer| answer.read_max(Takes::ALL));
    let _ = CreateRequest::parse(bytes);
    let _ = CreateAnswer::parse(bytes);
    let _ = Locking::parse(bytes);
    let _ = written(bytes);
    if let Ok((at, length)) = read_data(bytes) {
        assert!(length == 0 || at + length <= bytes.len());
    }
    if let Ok(request) = WriteRequest::parse(bytes)
        && request.is_plain(bytes.len())
    {
        assert!(request.data_at + request.length as usize <= bytes.len());
    }
    let Ok(header) = Header::parse(bytes) else {
        return;
    };
    if let Ok(request) = ReadRequest::parse(bytes) {
        let again = request.emit(&header);
        assert_eq!(ReadRequest::parse(&again), Ok(request));
    }
    let _ = (touch(&header, bytes), answers(&header, bytes));
    let _ = (broken(&header, bytes), Takes::parse(&header, bytes));
    let _ = (connected(&header, bytes), opened_file(bytes));
    let _ = (position_set(bytes), sought(bytes));
    if let Ok(seek) = Seek::parse(bytes) {
        assert_eq!(Seek::parse(&seek.emit(&header)), Ok(seek));
    }
    let _ = Progress::default().is_last(&header, bytes);
}

/// What the near and the far half are told while a client of SMB 1 opens a file, reads and writes it, and
/// another client beside the server opens it too: good inputs to start from.
pub(crate) fn conversation() -> [Vec<Input>; 2] {
    let mut world = World::new(Duration::from_millis(10));
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
    world.ask(0, &chained(&read(file, 0, 100)));
    world.ask(0, &close(file));
    world.told.take().expect("it was to be kept")
}
