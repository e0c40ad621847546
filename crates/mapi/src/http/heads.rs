//! The fields of HTTP around a call: which session it belongs to, and what the machines may do with it.
//!
//! A session is named by a cookie ([MS-OXCMAPIHTTP] §3.1.5.1, Creating a Session Context), whose name
//! is the server's choice. The names of Exchange and of grommunio are known ([`SESSION_COOKIES`]); a
//! request without exactly one of them passes as any other request of HTTP.

use accelerate::http::wire::{
    BodyFraming, FieldSection, HttpVersion, RequestHead, ResponseHead, has_option,
};
use bytes::{BufMut, Bytes, BytesMut};
use md5::{Digest, Md5};

use crate::emsmdb::ContextHandle;
use crate::emsmdb::execute::{EXECUTE_MAX, REQUEST_ID_MAX};

/// The path of mailboxes ([MS-OXCMAPIHTTP] §2.2.1).
const MAILBOX_PATH: &[u8] = b"/mapi/emsmdb";
/// The media type of the bodies.
const MEDIA_TYPE: &[u8] = b"application/mapi-http";
/// Cookies that name a session, each with the cookie beside it that the server renews.
static SESSION_COOKIES: [(&[u8], &[u8]); 2] =
    [(b"MapiContext", b"MapiSequence"), (b"sid", b"sequence")];
/// Bytes of a head whose call the machines take. Those of clients have one or two thousand.
pub(super) const HEAD_MAX: usize = 16 * 1024;
/// The value that a counter has in a template.
const NO_COUNT: &[u8] = b"0";

/// The session that the cookies of a request name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CookieSession {
    pub(super) context: ContextHandle,
    /// The name of the cookie that the server renews.
    renewed: &'static [u8],
}

impl CookieSession {
    fn of(head: &RequestHead) -> Option<Self> {
        let mut found = None;
        for (name, value) in cookies(&head.fields) {
            let Some((_, renewed)) = SESSION_COOKIES.iter().find(|known| known.0 == name) else {
                continue;
            };
            if found.is_some() || value.is_empty() {
                return None;
            }
            let host = head.fields.single("host")?;
            let mut digest = Md5::new();
            for part in [host, b"\0", name, b"=", value] {
                digest.update(part);
            }
            let mut context = *b"HTTP................";
            context[4..].copy_from_slice(&digest.finalize());
            found = Some(Self {
                context: ContextHandle(context),
                renewed,
            });
        }
        found
    }
}

/// An Execute request that the machines may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExecuteHead {
    pub(super) context: ContextHandle,
    /// The identity of the request.
    pub(super) request_id: Bytes,
    /// The head without the values that differ from request to request.
    pub(super) template: Bytes,
    /// The value of the cookie that the server renews.
    pub(super) sequence: Bytes,
    /// Bytes of its body.
    pub(super) length: usize,
}

/// The meaning of a request for the machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestUse {
    /// A call that the machines take.
    Execute(Box<ExecuteHead>),
    /// A call of this session that is not read.
    Unread(ContextHandle),
    /// The end of this session: a Disconnect, or a Connect that replaces it ([MS-OXCMAPIHTTP]
    /// §3.2.5.6).
    Disconnect(ContextHandle),
    /// A request that changes no session. It may wait at the server for minutes.
    Outside(Option<ContextHandle>),
    /// A change of protocol: the bytes after this request need not be HTTP/1.1.
    Upgrade,
}

impl RequestUse {
    pub(super) fn of(head: &RequestHead, body: BodyFraming) -> Self {
        if head.method() == b"CONNECT" || head.fields.has("upgrade") {
            return Self::Upgrade;
        }
        let target = head.target();
        let is_for_mailbox = head.method() == b"POST"
            && target
                .get(..MAILBOX_PATH.len())
                .is_some_and(|path| path.eq_ignore_ascii_case(MAILBOX_PATH));
        let session = CookieSession::of(head).filter(|_| is_for_mailbox);
        let Some(session) = session else {
            return Self::Outside(None);
        };
        let kind = head.fields.single("x-requesttype").unwrap_or_default();
        let is_kind = |name: &[u8]| kind.eq_ignore_ascii_case(name);
        if is_kind(b"Execute") {
            return match execute(head, body, &session) {
                Some(execute) => Self::Execute(Box::new(execute)),
                None => Self::Unread(session.context),
            };
        }
        if is_kind(b"Disconnect") || is_kind(b"Connect") {
            return Self::Disconnect(session.context);
        }
        match is_kind(b"NotificationWait") || is_kind(b"PING") {
            true => Self::Outside(Some(session.context)),
            false => Self::Unread(session.context),
        }
    }
}

/// The head of an Execute request, if it has nothing but what is known.
fn execute(head: &RequestHead, body: BodyFraming, session: &CookieSession) -> Option<ExecuteHead> {
    let BodyFraming::Fixed(length) = body else {
        return None;
    };
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= EXECUTE_MAX)?;
    let fields = &head.fields;
    let is_plain = !fields.has("expect")
        && !fields.has("content-encoding")
        && !fields.all("authorization").any(is_of_connection)
        && !has_option(fields, "connection", "close")
        && head.version == HttpVersion::Http11
        && head.bytes.len() <= HEAD_MAX;
    if !is_plain || !is_media_type(fields) {
        return None;
    }
    let request_id = fields.single("x-requestid")?;
    let guid = guid_of(request_id)?;
    let renewed = cookies(fields).find(|(name, _)| *name == session.renewed);
    let sequence = renewed.map_or(&b""[..], |(_, value)| value);
    let template = rewrite(&head.bytes, |name, value| {
        if name.eq_ignore_ascii_case(b"x-requestid") {
            return FieldChange::Value([guid, b":", NO_COUNT].concat());
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            return FieldChange::Value(NO_COUNT.to_vec());
        }
        with_cookie(name, value, session.renewed, b"")
    });
    Some(ExecuteHead {
        context: session.context,
        request_id: Bytes::copy_from_slice(request_id),
        template,
        sequence: Bytes::copy_from_slice(sequence),
        length,
    })
}

/// True if a value of Authorization logs the whole connection in (RFC 4559 §4). Such a token is valid
/// once.
fn is_of_connection(value: &[u8]) -> bool {
    let scheme = value.split(|byte| *byte == b' ').next().unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"ntlm") || scheme.eq_ignore_ascii_case(b"negotiate")
}

fn is_media_type(fields: &FieldSection) -> bool {
    let value = fields.single("content-type").unwrap_or_default();
    let value = value.split(|byte| *byte == b';').next().unwrap_or_default();
    value.trim_ascii().eq_ignore_ascii_case(MEDIA_TYPE)
}

/// The GUID, with its braces if it has any, of an X-RequestId ([MS-OXCMAPIHTTP] §2.2.3.3.2).
fn guid_of(request_id: &[u8]) -> Option<&[u8]> {
    let colon = request_id.iter().position(|byte| *byte == b':')?;
    let (guid, count) = (&request_id[..colon], &request_id[colon + 1..]);
    let bare = match guid.strip_prefix(b"{") {
        Some(rest) => rest.strip_suffix(b"}")?,
        None => guid,
    };
    let is_guid = bare.len() == 36
        && bare.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    let is_count = !count.is_empty() && count.iter().all(u8::is_ascii_digit);
    (is_guid && is_count && request_id.len() <= REQUEST_ID_MAX).then_some(guid)
}

/// An X-RequestId of the far half's own: the client's GUID with eight digits that are complemented
/// and eight that name the flow, so that no client has it.
pub(super) fn own_request_id(template: &[u8], flow: u64, count: u32) -> Option<Bytes> {
    let mut guid = None;
    rewrite(template, |name, value| {
        if name.eq_ignore_ascii_case(b"x-requestid") {
            guid = guid_of(value).map(<[u8]>::to_vec);
        }
        FieldChange::None
    });
    let mut guid = guid?;
    let start = usize::from(guid.first() == Some(&b'{'));
    for byte in &mut guid[start..start + 8] {
        let digit = (*byte as char).to_digit(16)?;
        *byte = format!("{:X}", 15 - digit).as_bytes()[0];
    }
    let low = format!("{:08X}", flow & 0xffff_ffff);
    guid[start + 28..start + 36].copy_from_slice(low.as_bytes());
    guid.extend_from_slice(format!(":{count}").as_bytes());
    Some(guid.into())
}

/// The head of an Execute request, from its template.
pub(super) fn execute_head(
    template: &[u8],
    request_id: &[u8],
    length: usize,
    sequence: Option<&[u8]>,
) -> Bytes {
    rewrite(template, |name, value| {
        if name.eq_ignore_ascii_case(b"x-requestid") {
            return FieldChange::Value(request_id.to_vec());
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            return FieldChange::Value(length.to_string().into_bytes());
        }
        renewed(name, value, sequence)
    })
}

/// A head with the present value of the cookie that the server renews.
pub(super) fn with_sequence(head: &[u8], sequence: &[u8]) -> Bytes {
    rewrite(head, |name, value| renewed(name, value, Some(sequence)))
}

fn renewed(name: &[u8], value: &[u8], sequence: Option<&[u8]>) -> FieldChange {
    let Some(sequence) = sequence else {
        return FieldChange::None;
    };
    let names: Vec<&[u8]> = value
        .split(|byte| *byte == b';')
        .filter_map(|pair| Some(split_pair(pair)?.0))
        .collect();
    let known = SESSION_COOKIES
        .iter()
        .find(|known| names.contains(&known.0));
    if let Some((_, cookie)) = known {
        return with_cookie(name, value, cookie, sequence);
    }
    FieldChange::None
}

/// The value of the cookie that a response renews.
pub(super) fn renewed_sequence(fields: &FieldSection) -> Option<&[u8]> {
    let mut values = fields.all("set-cookie").filter_map(|value| {
        let pair = value.split(|byte| *byte == b';').next()?;
        let (name, value) = split_pair(pair)?;
        let mut known = SESSION_COOKIES.iter();
        known.any(|(_, renewed)| *renewed == name).then_some(value)
    });
    values.next_back()
}

/// True if the server says that it has not carried out the request.
pub(super) fn is_refusal(head: &ResponseHead) -> bool {
    let code = head.fields.single("x-responsecode");
    (400..500).contains(&head.status) || code.is_some_and(|code| code != b"0")
}

/// True if this is the head of an answer to Execute that may be read.
pub(super) fn may_be_read(head: &ResponseHead, body: BodyFraming) -> bool {
    let fields = &head.fields;
    let is_zero = fields.single("x-responsecode") == Some(b"0");
    let kind = fields.single("x-requesttype").unwrap_or_default();
    head.status == 200
        && head.version == HttpVersion::Http11
        && head.bytes.len() <= HEAD_MAX
        && is_media_type(fields)
        && is_zero
        && kind.eq_ignore_ascii_case(b"Execute")
        && !fields.has("content-encoding")
        && !has_option(fields, "connection", "close")
        && matches!(body, BodyFraming::Fixed(_) | BodyFraming::Chunked)
}

/// The response to an Execute request, without its response body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnswerHead {
    /// The head as the server sent it.
    pub(super) head: Bytes,
    /// The lines in front of the response body.
    pub(super) meta: Bytes,
}

impl Default for AnswerHead {
    /// The fields that clients need, for an answer in front of every answer of the server.
    fn default() -> Self {
        Self {
            head: Bytes::from_static(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/mapi-http\r\nX-RequestType: Execute\r\n\
                  X-RequestId: \r\nX-ResponseCode: 0\r\nContent-Length: 0\r\n\r\n",
            ),
            meta: Bytes::from_static(b"PROCESSING\r\nDONE\r\nX-ElapsedTime: 0\r\n\r\n"),
        }
    }
}

impl AnswerHead {
    /// The head of an answer that the server has not made: with this identity, and without cookies.
    pub(super) fn for_other_request(&self, request_id: &[u8]) -> Self {
        let head = rewrite(&self.head, |name, _| {
            if name.eq_ignore_ascii_case(b"x-requestid") {
                return FieldChange::Value(request_id.to_vec());
            }
            match name.eq_ignore_ascii_case(b"set-cookie") {
                true => FieldChange::Absent,
                false => FieldChange::None,
            }
        });
        let meta = self.meta.clone();
        Self { head, meta }
    }

    /// The whole response with this body, in the framing of its head.
    pub(super) fn with_body(&self, body: &[u8]) -> Bytes {
        let length = self.meta.len() + body.len();
        let mut is_chunked = false;
        let head = rewrite(&self.head, |name, _| {
            is_chunked |= name.eq_ignore_ascii_case(b"transfer-encoding");
            match name.eq_ignore_ascii_case(b"content-length") {
                true => FieldChange::Value(length.to_string().into_bytes()),
                false => FieldChange::None,
            }
        });
        let mut response = BytesMut::with_capacity(head.len() + length + 32);
        response.put_slice(&head);
        if is_chunked {
            response.put_slice(format!("{length:x}\r\n").as_bytes());
        }
        response.put_slice(&self.meta);
        response.put_slice(body);
        if is_chunked {
            response.put_slice(b"\r\n0\r\n\r\n");
        }
        response.freeze()
    }
}

/// The cookies of a request, in their order.
fn cookies(fields: &FieldSection) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = fields
        .all("cookie")
        .flat_map(|value| value.split(|byte| *byte == b';'));
    pairs.filter_map(split_pair)
}

fn split_pair(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    Some((pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii()))
}

/// Gives a cookie another value, if this is a line of cookies with it.
fn with_cookie(name: &[u8], value: &[u8], cookie: &[u8], new: &[u8]) -> FieldChange {
    if !name.eq_ignore_ascii_case(b"cookie") {
        return FieldChange::None;
    }
    let mut is_there = false;
    let pairs = value.split(|byte| *byte == b';').map(|pair| {
        match split_pair(pair).filter(|(name, _)| *name == cookie) {
            Some((name, _)) => {
                is_there = true;
                let space: &[u8] = if pair.starts_with(b" ") { b" " } else { b"" };
                [space, name, b"=", new].concat()
            }
            None => pair.to_vec(),
        }
    });
    let joined = pairs.collect::<Vec<_>>().join(&b';');
    match is_there {
        true => FieldChange::Value(joined),
        false => FieldChange::None,
    }
}

/// A change of a field line.
enum FieldChange {
    None,
    Value(Vec<u8>),
    Absent,
}

/// Writes a head again, with changes in its field lines. The head was read, so its lines end in CRLF.
fn rewrite(head: &[u8], mut change: impl FnMut(&[u8], &[u8]) -> FieldChange) -> Bytes {
    let mut out = BytesMut::with_capacity(head.len() + 64);
    let mut is_field = false;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let colon = line.iter().position(|byte| *byte == b':');
        let is_empty = line == b"\r\n";
        match colon.filter(|_| is_field && !is_empty) {
            None => out.put_slice(line),
            Some(colon) => {
                let name = &line[..colon];
                match change(name, line[colon + 1..].trim_ascii()) {
                    FieldChange::None => out.put_slice(line),
                    FieldChange::Value(value) => {
                        out.put_slice(name);
                        out.put_slice(b": ");
                        out.put_slice(&value);
                        out.put_slice(b"\r\n");
                    }
                    FieldChange::Absent => {}
                }
            }
        }
        is_field |= !is_empty;
    }
    out.freeze()
}
