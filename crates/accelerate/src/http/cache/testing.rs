//! Helpers for tests of other crates: they read any bytes as a record of the index's log, and as stored heads.

use bytes::Bytes;

use super::key::{CacheKey, UrlScheme};
use super::stored::{RequestConditions, StoredResponse, head_to_store, updated_head};
use super::{CacheIndex, LookUp, WallTime, log};
use crate::http::shared::SharedContent;
use crate::http::wire::{FIELDS_MAX, RequestHead, ResponseHead};

/// Moments at which what was read is used: the beginning and the end of all time, and today.
const MOMENTS: [WallTime; 3] = [WallTime(0), WallTime(1_767_225_600_000), WallTime(u64::MAX)];

/// A stored response, then a zero byte and the 304 that confirms it, as [`stored_heads`] reads them.
pub const HEADS: &[u8] =
    b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"1\"\r\n\
    Cache-Control: max-age=60, stale-if-error=9\r\nConnection: x\r\nX: y\r\n\r\n\0\
    HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nAge: 5\r\nX: z\r\n\r\n";

/// Reads the bytes as a record of the log, and uses the stored response that it has.
///
/// # Panics
/// When a record is not read as it is written.
pub fn stored_record(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let _ = log::parse_removed(&body);
    let Some((id, key, stored)) = log::parse_stored::<SharedContent>(&body) else {
        return;
    };
    let written = log::emit_stored(id, &key, &stored);
    let read = log::parse_stored::<SharedContent>(&written);
    let (other, other_key, other_stored) = read.expect("it was written by us");
    assert_eq!((id, &key), (other, &other_key));
    assert_eq!(log::emit_stored(other, &other_key, &other_stored), written);
    for now in MOMENTS {
        use_response(now, &key, &stored);
        let mut index = CacheIndex::<SharedContent>::new(1 << 20, 1);
        index.begin_recovery();
        index.recover(now, log::STORED, &body);
        index.end_recovery(false);
        assert!(index.len() <= 1);
        if let Some(request) = request_for(&key) {
            if let LookUp::Stale(found) = index.look_up(now, &key, &request) {
                let conditions = RequestConditions::Stored(found.validators());
                let exchange = (&request, &found.head);
                index.freshen(now, now, &key, exchange, &conditions);
            }
            let content = (SharedContent::default(), 0);
            let _ = index.store(now, now, &key, (&request, &stored.head), content);
        }
        index.purge(b"http");
        assert_eq!((index.len(), index.held()), (0, 0));
    }
}

/// Reads the bytes as the head of a response and, behind a zero byte, as that of a 304 that confirms it.
///
/// # Panics
/// When a head that is stored or updated is not well-formed.
pub fn stored_heads(bytes: &[u8]) {
    let mut heads = bytes.splitn(2, |byte| *byte == 0);
    let mut head = || ResponseHead::parse(Bytes::copy_from_slice(heads.next()?)).ok();
    let Some(stored) = head().map(|head| head_to_store(&head)) else {
        return;
    };
    let Some(update) = head() else {
        return;
    };
    let Some(mut updated) = updated_head(&stored, &update) else {
        return;
    };
    // The same again changes nothing, however often it comes.
    for _ in 0..2 {
        let again = updated_head(&updated, &update).expect("it is no longer than before");
        assert_eq!(again.fields.iter().count(), updated.fields.iter().count());
        updated = again;
    }
    assert!(updated.fields.iter().count() <= FIELDS_MAX);
}

/// Sends a response in all ways.
fn use_response(now: WallTime, key: &CacheKey, stored: &StoredResponse<SharedContent>) {
    let heads = [
        stored.head_to_send(now, true),
        stored.not_modified_to_send(now, false),
    ];
    for head in heads {
        // Some fields are added, beside as many as a head may have.
        let is_full = stored.head.fields.iter().count() + 4 > FIELDS_MAX;
        assert!(is_full || ResponseHead::parse(head).is_ok());
    }
    if let Some(request) = request_for(key) {
        stored.is_not_modified(&request, now);
        stored.may_replace_error(&request, now);
    }
}

/// A request for the URL of a key.
fn request_for(key: &CacheKey) -> Option<RequestHead> {
    let scheme = match key.url.starts_with(b"https") {
        true => UrlScheme::Https,
        false => UrlScheme::Http,
    };
    let host = key.url.windows(3).position(|part| part == b"://")? + 3;
    let path = host + key.url[host..].iter().position(|byte| *byte == b'/')?;
    let (host, path) = (&key.url[host..path], &key.url[path..]);
    let text = [b"GET ", path, b" HTTP/1.1\r\nHost: ", host, b"\r\n\r\n"].concat();
    let request = RequestHead::parse(text.into()).ok()?;
    let own = CacheKey::of(key.server, scheme, &request)?;
    (own == *key).then_some(request)
}

/// The record of a stored response.
///
/// # Panics
/// Never: the sample is well-formed.
#[must_use]
pub fn sample_record() -> Vec<u8> {
    let server = std::net::SocketAddr::from(([198, 18, 2, 2], 80));
    let request = "GET /a?b HTTP/1.1\r\nHost: a.example\r\nAccept-Language: de\r\n\r\n";
    let request = RequestHead::parse(Bytes::from(request)).expect("it is a head");
    let response = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nVary: Accept-Language\r\nETag: \"1\"\r\n\r\n";
    let response = ResponseHead::parse(Bytes::from(response)).expect("it is a head");
    let key = CacheKey::of(server, UrlScheme::Http, &request).expect("the URL has one reading");
    let mut index = CacheIndex::new(1 << 20, 1);
    let content = crate::ContentHandle::from_bytes(Bytes::from_static(b"handle"));
    let content = SharedContent {
        handle: Some(content),
    };
    let now = MOMENTS[1];
    let stored = index.store(now, now, &key, (&request, &response), (content, 6));
    stored.expect("it may be stored");
    let record = index.after(None).and_then(|id| index.record(id));
    record.expect("it was stored").to_vec()
}

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;

    use super::*;

    #[test]
    fn bent_records_and_heads_are_read_or_refused() {
        let mut random = SeededRandom::from_seed(28);
        for _ in 0..5_000 {
            let (mut record, mut heads) = (sample_record(), HEADS.to_vec());
            for bent in [&mut record, &mut heads] {
                for _ in 0..random.below(4) {
                    let at = random.below(bent.len() as u64) as usize;
                    let byte = random.below(256) as u8;
                    match random.below(3) {
                        0 => bent[at] = byte,
                        1 => bent.insert(at, byte),
                        _ => drop(bent.remove(at)),
                    }
                }
            }
            stored_record(&record);
            stored_heads(&heads);
        }
    }

    #[test]
    fn update_that_makes_a_head_too_long_is_refused() {
        let fields = |from: usize| (from..from + 200).map(|n| format!("X-{n}: y\r\n"));
        let head =
            |fields: String| ResponseHead::parse(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into());
        let stored = head(fields(0).collect()).unwrap();
        assert!(updated_head(&stored, &head(fields(0).collect()).unwrap()).is_some());
        assert!(updated_head(&stored, &head(fields(200).collect()).unwrap()).is_none());
        let long = head(format!("X: {}\r\n", "y".repeat(60_000))).unwrap();
        let other = head(format!("Y: {}\r\n", "y".repeat(60_000))).unwrap();
        assert!(updated_head(&long, &other).is_none());
    }
}
