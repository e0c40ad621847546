//! A small mailbox server, which knows the ROPs of the tests and answers as [MS-OXCROPS] has it.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::super::buffer::{NO_HANDLE, RopBuffer};
use super::super::super::id;
use super::super::super::request::{RequestDetail, RequestRop, read_requests};
use crate::emsmdb::rpc::{RpcRequest, RpcResponse};
use crate::emsmdb::{MAX_BUFFERS, PlainBuffer};

/// The error of an object that does not exist or does not fit.
const NULL_OBJECT: u32 = 0x0000_04b9;
/// The error of a write that the server refuses.
pub(crate) const TOO_BIG: u32 = 0x8004_0305;
/// The bytes of an event: RopNotify, a handle, a logon, and its number.
pub(crate) const EVENT: usize = 10;
const EVENT_HEAD: [u8; 6] = [id::NOTIFY, 0xee, 0xee, 0xee, 0xee, 0];
/// The most bytes of data in one ROP buffer.
const CHUNK: usize = 32_000;
/// Rows of a table of attachments.
const ATTACHMENTS: usize = 2;
/// A chain goes on while so much room is left.
const CHAIN_ROOM: usize = 8_192;

#[derive(Clone, Debug)]
enum MailObject {
    Store,
    Message(u32),
    Attachment(u32),
    Stream {
        property: u32,
        position: usize,
        may_write: bool,
    },
    Table {
        row: usize,
        /// Its count of rows.
        rows: usize,
        columns: Vec<u32>,
    },
    Source {
        position: usize,
    },
}

/// See the module documentation.
pub(crate) struct MailServer {
    objects: BTreeMap<u32, MailObject>,
    next_message: u32,
    /// The contents of properties, by message or attachment.
    pub(crate) contents: BTreeMap<u32, Vec<u8>>,
    pub(crate) rows: usize,
    pub(crate) transfer: Vec<u8>,
    pub(crate) calls: u32,
    /// A call of so many has an event behind its answer.
    pub(crate) event_every: u32,
    /// The events behind such an answer.
    pub(crate) events_at_once: usize,
    events: u32,
    /// The ROPs of a call for whose responses there is room, by the call's number; all if it is not
    /// here.
    pub(crate) room_for: BTreeMap<u32, usize>,
    /// The most bytes of a stream.
    pub(crate) stream_max: usize,
    pub(crate) saved: u32,
    /// The contents of the attachment of messages that were saved.
    pub(crate) kept: BTreeMap<u32, Vec<u8>>,
}

impl MailServer {
    pub(crate) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            next_message: 100,
            contents: BTreeMap::new(),
            rows: 500,
            transfer: (0..300_000_u32).map(|at| ((at * 7) >> 3) as u8).collect(),
            calls: 0,
            event_every: 0,
            events_at_once: 1,
            events: 0,
            room_for: BTreeMap::new(),
            stream_max: usize::MAX,
            saved: 0,
            kept: BTreeMap::new(),
        }
    }

    /// The number of objects that clients have open.
    pub(crate) fn open_objects(&self) -> usize {
        self.objects.len()
    }

    /// Answers a call.
    pub(crate) fn call(&mut self, opnum: u16, stub: &Bytes) -> Bytes {
        self.calls += 1;
        let request = RpcRequest::read(opnum, stub).unwrap();
        let asked = RopBuffer::read(&request.buffers[0].bytes).unwrap();
        let requests = read_requests(&asked).unwrap();
        let room = request.envelope.out_max();
        let mut handles = asked.handles.clone();
        let mut rops = BytesMut::new();
        let room_for = self.room_for.get(&self.calls).copied();
        let fits = |place: usize| room_for.is_none_or(|count| place < count);
        for (place, one) in requests.iter().enumerate() {
            if !fits(place) {
                rops.put_slice(&[id::BUFFER_TOO_SMALL, 0, 16]);
                rops.put_slice(&asked.rops[one.start..]);
                break;
            }
            let left = room - 300 - rops.len();
            self.rop(one, &asked, &mut handles, left, &mut rops);
        }
        let mut buffers = vec![(rops, handles.clone())];
        let repeats = requests.last().is_some_and(|last| {
            matches!(
                last.id,
                id::READ_STREAM | id::QUERY_ROWS | id::SOURCE_GET_BUFFER
            )
        });
        let used = |buffers: &[(BytesMut, Vec<u32>)]| -> usize {
            buffers.iter().map(|(rops, _)| rops.len() + 40).sum()
        };
        while repeats
            && room_for.is_none()
            && request.envelope.takes_chain()
            && buffers.len() < MAX_BUFFERS
            && used(&buffers) + CHAIN_ROOM < room
        {
            let last = requests.last().unwrap();
            let mut more = BytesMut::new();
            let left = room - used(&buffers) - 100;
            self.rop(last, &asked, &mut handles, left, &mut more);
            let is_end = more[2..6] != [0; 4] || more.len() < 40;
            buffers.push((more, handles.clone()));
            if is_end {
                break;
            }
        }
        if self.event_every > 0 && self.calls.is_multiple_of(self.event_every) {
            let (rops, _) = buffers.last_mut().unwrap();
            for _ in 0..self.events_at_once {
                self.events += 1;
                rops.put_slice(&EVENT_HEAD);
                rops.put_u32_le(self.events);
            }
        }
        let buffers = buffers.into_iter().map(|(rops, handles)| PlainBuffer {
            flags: request.envelope.answer_flags(),
            bytes: RopBuffer {
                rops: rops.freeze(),
                handles,
            }
            .write(),
        });
        RpcResponse::answering(&request, buffers.collect()).write()
    }

    fn open(&mut self, handles: &mut [u32], index: u8, object: MailObject) {
        // A handle is used again as soon as it is free.
        let free = (100..).find(|handle| !self.objects.contains_key(handle));
        let handle = free.expect("there are fewer objects than numbers");
        handles[usize::from(index)] = handle;
        self.objects.insert(handle, object);
    }

    fn rop(
        &mut self,
        one: &RequestRop,
        asked: &RopBuffer,
        handles: &mut [u32],
        room: usize,
        out: &mut BytesMut,
    ) {
        let object = |index: u8| handles.get(usize::from(index)).copied();
        let handle = object(one.index).unwrap_or(NO_HANDLE);
        if one.id == id::RELEASE {
            self.objects.remove(&handle);
            return;
        }
        out.put_slice(&[one.id, one.response_index()]);
        let fields = &asked.rops[one.start + 3..one.end];
        let number = |at: usize| u32::from_le_bytes(fields[at..at + 4].try_into().unwrap());
        let found = self.objects.get(&handle).cloned();
        let output = one.output();
        match (one.id, found) {
            (id::LOGON, _) => {
                self.open(handles, one.index, MailObject::Store);
                out.put_u32_le(0);
                out.put_u8(1);
                out.put_bytes(7, 13 * 8 + 1 + 16 + 2 + 16 + 8 + 8 + 4);
            }
            (id::OPEN_MESSAGE, Some(MailObject::Store)) => {
                let message = number(fields.len() - 8);
                self.open(handles, output.unwrap(), MailObject::Message(message));
                out.put_u32_le(0);
                out.put_slice(&[0, 1, 1, 0, 0, 0, 0, 0]);
            }
            (id::CREATE_MESSAGE, Some(MailObject::Store)) => {
                let message = self.next_message;
                self.next_message += 1;
                self.open(handles, output.unwrap(), MailObject::Message(message));
                out.put_u32_le(0);
                out.put_u8(0);
            }
            (id::OPEN_ATTACHMENT, Some(MailObject::Message(message))) => {
                let attachment = message * 1000 + number(2);
                self.open(handles, output.unwrap(), MailObject::Attachment(attachment));
                out.put_u32_le(0);
            }
            (id::CREATE_ATTACHMENT, Some(MailObject::Message(message))) => {
                let attachment = message * 1000;
                self.open(handles, output.unwrap(), MailObject::Attachment(attachment));
                out.put_u32_le(0);
                out.put_u32_le(0);
            }
            (id::OPEN_STREAM, Some(MailObject::Attachment(property))) => {
                let mode = fields[5];
                if mode == 2 {
                    self.contents.insert(property, Vec::new());
                }
                let size = self.contents.entry(property).or_default().len();
                let stream = MailObject::Stream {
                    property,
                    position: 0,
                    may_write: mode != 0,
                };
                self.open(handles, output.unwrap(), stream);
                out.put_u32_le(0);
                out.put_u32_le(size as u32);
            }
            (
                id::READ_STREAM,
                Some(MailObject::Stream {
                    property, position, ..
                }),
            ) => {
                let RequestDetail::ReadStream { size } = one.detail else {
                    unreachable!("it is read as one")
                };
                let contents = &self.contents[&property];
                let start = position.min(contents.len());
                let end = contents
                    .len()
                    .min(start + (size as usize).min(CHUNK).min(room));
                out.put_u32_le(0);
                out.put_u16_le((end - start) as u16);
                out.put_slice(&contents[start..end]);
                self.move_stream(handle, end);
            }
            (
                id::WRITE_STREAM,
                Some(MailObject::Stream {
                    property,
                    position,
                    may_write: true,
                }),
            ) => {
                let RequestDetail::Data { start, length } = one.detail else {
                    unreachable!("it is read as one")
                };
                let contents = self.contents.get_mut(&property).unwrap();
                if position + length > self.stream_max {
                    out.put_u32_le(TOO_BIG);
                    out.put_u16_le(0);
                    return;
                }
                contents.resize(contents.len().max(position + length), 0);
                contents[position..position + length]
                    .copy_from_slice(&asked.rops[start..start + length]);
                self.move_stream(handle, position + length);
                out.put_u32_le(0);
                out.put_u16_le(length as u16);
            }
            (id::WRITE_STREAM, _) => {
                out.put_u32_le(NULL_OBJECT);
                out.put_u16_le(0);
            }
            (
                id::SEEK_STREAM,
                Some(MailObject::Stream {
                    property, position, ..
                }),
            ) => {
                let base = match fields[0] {
                    0 => 0,
                    1 => position as i64,
                    _ => self.contents[&property].len() as i64,
                };
                let offset = i64::from_le_bytes(fields[1..9].try_into().unwrap());
                let target = (base + offset).max(0);
                self.move_stream(handle, target as usize);
                out.put_u32_le(0);
                out.put_u64_le(target as u64);
            }
            (id::GET_STREAM_SIZE, Some(MailObject::Stream { property, .. })) => {
                out.put_u32_le(0);
                out.put_u32_le(self.contents[&property].len() as u32);
            }
            (id::COMMIT_STREAM, Some(MailObject::Stream { .. })) => out.put_u32_le(0),
            (id::SAVE_CHANGES_ATTACHMENT, _) => {
                self.saved += 1;
                out.put_u32_le(0);
            }
            (id::SAVE_CHANGES_MESSAGE, found) => {
                self.saved += 1;
                if let Some(MailObject::Message(message)) = found
                    && let Some(contents) = self.contents.get(&(message * 1000))
                {
                    self.kept.insert(message, contents.clone());
                }
                out.put_u32_le(0);
                out.put_u8(0);
                out.put_u64_le(1);
            }
            (id::GET_CONTENTS_TABLE | id::GET_ATTACHMENT_TABLE, Some(_)) => {
                let rows = match one.id {
                    id::GET_CONTENTS_TABLE => self.rows,
                    _ => ATTACHMENTS,
                };
                let table = MailObject::Table {
                    row: 0,
                    rows,
                    columns: Vec::new(),
                };
                self.open(handles, output.unwrap(), table);
                out.put_u32_le(0);
                if one.id == id::GET_CONTENTS_TABLE {
                    out.put_u32_le(rows as u32);
                }
            }
            (id::SET_COLUMNS, Some(MailObject::Table { row, rows, .. })) => {
                let RequestDetail::Tags(columns) = one.detail.clone() else {
                    unreachable!("it is read as one")
                };
                let table = MailObject::Table { row, rows, columns };
                self.objects.insert(handle, table);
                out.put_u32_le(0);
                out.put_u8(0);
            }
            (id::GET_PROPERTIES_SPECIFIC, Some(object)) => {
                let RequestDetail::Tags(tags) = &one.detail else {
                    unreachable!("it is read as one")
                };
                let value = match object {
                    MailObject::Message(number) | MailObject::Attachment(number) => number,
                    _ => 0,
                };
                out.put_u32_le(0);
                out.put_u8(0);
                for _ in tags {
                    out.put_u64_le(value.into());
                }
            }
            (id::QUERY_ROWS, Some(MailObject::Table { row, rows, columns })) => {
                let RequestDetail::QueryRows { count, .. } = one.detail else {
                    unreachable!("it is read as one")
                };
                let size = 1 + 8 * columns.len();
                let fits = (room / size).min(usize::from(count));
                let end = rows.min(row + fits);
                out.put_u32_le(0);
                out.put_u8(2);
                out.put_u16_le((end - row) as u16);
                for number in row..end {
                    out.put_u8(0);
                    for _ in &columns {
                        out.put_u64_le(number as u64);
                    }
                }
                let row = end;
                let table = MailObject::Table { row, rows, columns };
                self.objects.insert(handle, table);
            }
            (id::SEEK_ROW, Some(MailObject::Table { row, rows, columns })) => {
                let base = if fields[0] == 0 { 0 } else { row as i64 };
                let target = (base + i64::from(number(1) as i32)).clamp(0, rows as i64);
                out.put_u32_le(0);
                out.put_u8(0);
                out.put_i32_le((target - row as i64) as i32);
                let row = target as usize;
                let table = MailObject::Table { row, rows, columns };
                self.objects.insert(handle, table);
            }
            (id::SOURCE_COPY_MESSAGES, Some(MailObject::Store)) => {
                self.open(handles, output.unwrap(), MailObject::Source { position: 0 });
                out.put_u32_le(0);
            }
            (id::SOURCE_GET_BUFFER, Some(MailObject::Source { position })) => {
                let RequestDetail::GetBuffer { size } = one.detail else {
                    unreachable!("it is read as one")
                };
                let most = usize::from(size).min(CHUNK).min(room);
                let end = self.transfer.len().min(position + most);
                let is_done = end == self.transfer.len();
                out.put_u32_le(0);
                out.put_u16_le(if is_done { 3 } else { 1 });
                out.put_bytes(0, 5);
                out.put_u16_le((end - position) as u16);
                out.put_slice(&self.transfer[position..end]);
                self.objects
                    .insert(handle, MailObject::Source { position: end });
            }
            (id::READ_STREAM, _) => {
                out.put_u32_le(NULL_OBJECT);
                out.put_u16_le(0);
            }
            (id::SOURCE_GET_BUFFER, _) => {
                out.put_u32_le(NULL_OBJECT);
                out.put_bytes(0, 9);
            }
            _ => out.put_u32_le(NULL_OBJECT),
        }
    }

    fn move_stream(&mut self, handle: u32, to: usize) {
        if let Some(MailObject::Stream { position, .. }) = self.objects.get_mut(&handle) {
            *position = to;
        }
    }
}

/// Takes the events behind a list of responses, and returns their numbers.
pub(crate) fn strip_events(rops: &mut Bytes) -> Vec<u32> {
    let mut events = Vec::new();
    while let Some(at) = rops.len().checked_sub(EVENT)
        && rops[at..at + 6] == EVENT_HEAD
    {
        events.insert(0, u32::from_le_bytes(rops[at + 6..].try_into().unwrap()));
        rops.truncate(at);
    }
    events
}
