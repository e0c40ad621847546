//! Stored responses as records of a log (docs/formats/http-cache-index.md).
//!
//! A record says all about one stored response, or that it is gone; both name it by its number, which it keeps for
//! ever. What a record says was decided when the response came: a later release reads it as it was decided.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter};

use super::key::CacheKey;
use super::policy::ResponseFreshness;
use super::stored::StoredResponse;
use super::vary::VarySelection;
use super::{Content, WallTime};
use crate::http::wire::ResponseHead;

/// The kind of a record of a stored response.
pub(crate) const STORED: u8 = 1;
/// The kind of a record of a response that is no longer stored.
pub(crate) const REMOVED: u8 = 2;

/// Numbers of responses are below this one, so that there always is a next one.
const IDS_END: u64 = 1 << 63;

const NO_CACHE: u8 = 1;
const MUST_REVALIDATE: u8 = 2;

/// Writes the record of a stored response.
pub(crate) fn emit_stored<H: Content>(
    id: u64,
    key: &CacheKey,
    stored: &StoredResponse<H>,
) -> Bytes {
    let mut writer = ByteWriter::new();
    writer.u64(id);
    match key.server {
        SocketAddr::V4(server) => writer.u8(4).bytes(&server.ip().octets()),
        SocketAddr::V6(server) => {
            let writer = writer.u8(6).bytes(&server.ip().octets());
            writer.u32(server.scope_id())
        }
    };
    writer.u16(key.server.port());
    writer.prefixed(&key.url).prefixed(&stored.head.bytes);
    writer.varint(stored.selection.fields.len() as u64);
    for (name, value) in &stored.selection.fields {
        writer.prefixed(name).u8(u8::from(value.is_some()));
        writer.prefixed(value.as_deref().unwrap_or_default());
    }
    let freshness = &stored.freshness;
    writer.u64(freshness.initial_age_ms);
    writer.u64(freshness.response_time.0);
    writer.u64(freshness.lifetime_ms);
    writer.u64(freshness.stale_while_revalidate_ms);
    writer.u64(freshness.stale_if_error_ms);
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    writer
        .u8(flag(freshness.no_cache, NO_CACHE) | flag(freshness.must_revalidate, MUST_REVALIDATE));
    writer.u64(stored.asked.0).u64(stored.length);
    writer.prefixed(&stored.content.to_bytes());
    writer.finish()
}

/// Reads the record of a stored response: its number, its key and all about it; `None` if it is none.
pub(crate) fn parse_stored<H: Content>(body: &Bytes) -> Option<(u64, CacheKey, StoredResponse<H>)> {
    let mut reader = ByteReader::new(body);
    let id = reader.u64().ok().filter(|id| *id < IDS_END)?;
    let (address, scope): (IpAddr, u32) = match reader.u8().ok()? {
        4 => (Ipv4Addr::from(reader.array::<4>().ok()?).into(), 0),
        6 => {
            let address = Ipv6Addr::from(reader.array::<16>().ok()?);
            (address.into(), reader.u32().ok()?)
        }
        _ => return None,
    };
    let port = reader.u16().ok()?;
    let server = match address {
        IpAddr::V4(address) => SocketAddr::from((address, port)),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, scope).into(),
    };
    let url = reader.prefixed().ok()?;
    let (http, https) = (url.strip_prefix(b"http://"), url.strip_prefix(b"https://"));
    let is_url = http.or(https).is_some_and(|rest| rest.contains(&b'/'));
    let head = ResponseHead::parse(Bytes::copy_from_slice(reader.prefixed().ok()?)).ok()?;
    if !is_url || head.status < 200 || !head.bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let selection = parse_selection(&mut reader)?;
    let freshness = ResponseFreshness {
        initial_age_ms: reader.u64().ok()?,
        response_time: WallTime(reader.u64().ok()?),
        lifetime_ms: reader.u64().ok()?,
        stale_while_revalidate_ms: reader.u64().ok()?,
        stale_if_error_ms: reader.u64().ok()?,
        no_cache: false,
        must_revalidate: false,
    };
    let flags = reader.u8().ok()?;
    let freshness = ResponseFreshness {
        no_cache: flags & NO_CACHE != 0,
        must_revalidate: flags & MUST_REVALIDATE != 0,
        ..freshness
    };
    let asked = WallTime(reader.u64().ok()?);
    let length = reader.u64().ok()?;
    let content = H::from_bytes(body.slice_ref(reader.prefixed().ok()?));
    if !reader.is_empty() || flags & !(NO_CACHE | MUST_REVALIDATE) != 0 {
        return None;
    }
    let url = Bytes::copy_from_slice(url);
    let stored = StoredResponse {
        head,
        selection,
        freshness,
        content,
        length,
        asked,
        recall: None,
    };
    Some((id, CacheKey { server, url }, stored))
}

fn parse_selection(reader: &mut ByteReader<'_>) -> Option<VarySelection> {
    let count = reader.varint().ok()?;
    let mut fields = Vec::new();
    for _ in 0..count {
        let name = reader.prefixed().ok()?;
        let is_there = reader.u8().ok()?;
        let value = reader.prefixed().ok()?;
        if is_there > 1 || is_there == 0 && !value.is_empty() {
            return None;
        }
        if name.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        fields.push((name.to_vec(), (is_there == 1).then(|| value.to_vec())));
    }
    Some(VarySelection { fields })
}

/// Writes the record of a response that is no longer stored.
pub(crate) fn emit_removed(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

/// Reads the record of a response that is no longer stored: its number.
pub(crate) fn parse_removed(body: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(body.try_into().ok()?))
}
