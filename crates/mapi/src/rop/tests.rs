//! Tests of the lists of ROPs.

use bytes::Bytes;
use proptest::prelude::*;

use super::buffer::{NO_HANDLE, RopBuffer};
use super::id;
use super::request::{RequestDetail, SecondIndex, read_requests};
use super::response::{ResponseDetail, ResponseTail, read_responses};

fn buffer(rops: &[u8]) -> RopBuffer {
    RopBuffer {
        rops: Bytes::copy_from_slice(rops),
        handles: vec![7, NO_HANDLE],
    }
}

#[test]
fn open_read_and_release_are_told_apart() {
    let mut rops = vec![id::OPEN_STREAM, 0, 0, 1, 2, 1, 1, 0x37, 0];
    rops.extend([id::READ_STREAM, 0, 1, 0xbe, 0xba, 0, 0, 1, 0]);
    rops.extend([id::RELEASE, 0, 1]);
    let requests = read_requests(&buffer(&rops)).unwrap();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].second, Some(SecondIndex::Output(1)));
    assert_eq!(
        requests[0].detail,
        RequestDetail::OpenStream {
            tag: 0x3701_0102,
            mode: 0
        }
    );
    assert_eq!(
        requests[1].detail,
        RequestDetail::ReadStream { size: 0x1_0000 }
    );
    assert_eq!(requests[2].end, rops.len());
}

#[test]
fn list_with_unknown_rop_is_refused() {
    assert!(read_requests(&buffer(&[id::RELEASE, 0, 0, 0x72, 0, 0])).is_err());
    assert!(read_requests(&buffer(&[id::RELEASE, 0])).is_err());
}

#[test]
fn rops_without_room_are_found_before_events() {
    let rops = [
        &[id::GET_STREAM_SIZE, 0, 0][..],
        &[id::READ_STREAM, 0, 0, 4, 0],
        &[id::RELEASE, 0, 0],
    ]
    .concat();
    let requests = read_requests(&buffer(&rops)).unwrap();
    let answer = [
        &[id::GET_STREAM_SIZE, 0, 0, 0, 0, 0, 9, 0, 0, 0][..],
        &[id::BUFFER_TOO_SMALL, 0, 16],
        &rops[3..],
        &[id::NOTIFY, 1],
    ]
    .concat();
    let list = read_responses(&requests, &buffer(&answer), |_| None);
    assert_eq!(list.responses.len(), 1);
    assert_eq!(list.unexecuted, Some(1));
    assert_eq!(list.tail, ResponseTail::Events(answer.len() - 2));
    // The rest is shorter than what was not executed.
    let list = read_responses(&requests, &buffer(&answer[..15]), |_| None);
    assert_eq!(list.tail, ResponseTail::Unknown(10));
}

#[test]
fn events_behind_responses_are_found() {
    let requests = read_requests(&buffer(&[
        id::READ_STREAM,
        0,
        0,
        4,
        0,
        id::RELEASE,
        0,
        0,
        id::GET_STREAM_SIZE,
        0,
        0,
    ]))
    .unwrap();
    let mut rops = vec![id::READ_STREAM, 0, 0, 0, 0, 0, 2, 0, 8, 9];
    rops.extend([id::GET_STREAM_SIZE, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    let events = rops.len();
    rops.extend([id::NOTIFY, 1, 2, 3]);
    let list = read_responses(&requests, &buffer(&rops), |_| None);
    assert_eq!(list.tail, ResponseTail::Events(events));
    assert_eq!(
        list.responses[0].detail,
        ResponseDetail::Data {
            start: 8,
            length: 2
        }
    );
    assert_eq!(list.responses[1].request, 2);
}

#[test]
fn rows_need_their_columns() {
    let requests = read_requests(&buffer(&[id::QUERY_ROWS, 0, 0, 0, 1, 9, 0])).unwrap();
    let mut rops = vec![id::QUERY_ROWS, 0, 0, 0, 0, 0, 2, 2, 0];
    rops.extend([0, 1, 0, 0, 0, b'a', 0, 1, 0, 5, 0, 0, 0, 1]);
    let buffer = buffer(&rops);
    let columns = |_| Some(vec![0x0e06_0003, 0x0037_001e]);
    let list = read_responses(&requests, &buffer, columns);
    assert_eq!(list.tail, ResponseTail::Nothing);
    assert_eq!(list.responses[0].detail, ResponseDetail::Rows { count: 2 });
    let list = read_responses(&requests, &buffer, |_| None);
    assert_eq!(list.tail, ResponseTail::Unknown(0));
}

#[test]
fn response_to_another_request_is_unknown() {
    let requests = read_requests(&buffer(&[id::GET_STREAM_SIZE, 0, 0])).unwrap();
    let wrong = buffer(&[id::COMMIT_STREAM, 0, 0, 0, 0, 0]);
    let list = read_responses(&requests, &wrong, |_| None);
    assert_eq!(list.tail, ResponseTail::Unknown(0));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(
        asked in proptest::collection::vec(any::<u8>(), 0..80),
        answered in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let requests = read_requests(&buffer(&asked)).unwrap_or_default();
        let list = read_responses(&requests, &buffer(&answered), |_| Some(vec![0x0102]));
        let end = list.responses.last().map_or(0, |last| last.end);
        prop_assert!(end <= answered.len());
    }
}
