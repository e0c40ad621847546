//! The mailbox server: messages with one attachment each, whose number is the message's identifier.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use mapi::emsmdb::connect::{ConnectResponse, ContextStub};
use mapi::emsmdb::rpc::{RpcRequest, RpcResponse};
use mapi::emsmdb::{ContextHandle, MAX_BUFFERS, PlainBuffer, opnum};
use mapi::rop::buffer::{NO_HANDLE, RopBuffer};
use mapi::rop::id;
use mapi::rop::request::{RequestDetail, RequestRop, read_requests};
use mapi::rpc::calls::GatheredCall;
use mapi::rpc::pdu::PduKind;
use tcp::ConnectionNumber;

use super::call::{self, MessageReader, RpcMessage};
use crate::host::{HostSockets, SocketEvent};

/// The error of an object that does not exist or has another type ([MS-OXCDATA] §2.4).
const NULL_OBJECT: u32 = 0x0000_04b9;
/// Most bytes of one ROP buffer in an answer ([MS-OXCRPC] §3.1.4.2.1.2.2).
const BUFFER_MOST: usize = 0x7fff;
/// A chain has another buffer while so much room is left ([MS-OXCRPC] §3.1.4.2.1.2.2).
const CHAIN_ROOM: usize = 8_192;
/// Bytes around the data of a RopReadStream in its buffer: RPC_HEADER_EXT, size of the list, number, index,
/// result, size of the data, and one handle.
const AROUND_DATA: usize = 8 + 2 + 1 + 1 + 4 + 2 + 4;
/// Bytes of RopLogon's answer behind its flags ([MS-OXCROPS] §2.2.3.1.2): folders, response flags, GUIDs, replica,
/// time and store state.
const LOGON_FIELDS: usize = 13 * 8 + 1 + 16 + 2 + 16 + 8 + 8 + 4;

#[derive(Clone, Copy, Debug)]
enum MailObject {
    Store,
    Message(usize),
    Attachment(usize),
    Stream { file: usize, position: usize },
}

/// The server.
pub(in super::super) struct MailboxServer {
    files: Vec<Bytes>,
    connections: BTreeMap<ConnectionNumber, MailConnection>,
    sessions: u64,
}

struct MailConnection {
    /// The handle of its one session.
    session: ContextHandle,
    messages: MessageReader,
    objects: BTreeMap<u32, MailObject>,
}

impl MailboxServer {
    pub(in super::super) fn new(files: &[(String, Bytes)]) -> Self {
        Self {
            files: files.iter().map(|(_, content)| content.clone()).collect(),
            connections: BTreeMap::new(),
            sessions: 0,
        }
    }

    /// Takes an event of a connection.
    ///
    /// # Errors
    /// Fails when the client sends something that is no call of a mailbox.
    pub(in super::super) fn handle(
        &mut self,
        sockets: &mut HostSockets,
        socket: ConnectionNumber,
        event: SocketEvent,
    ) -> Result<(), String> {
        match event {
            SocketEvent::Accepted => {
                self.sessions += 1;
                let mut session = [0; 20];
                session[4..12].copy_from_slice(&self.sessions.to_le_bytes());
                let connection = MailConnection {
                    session: ContextHandle(session),
                    messages: MessageReader::default(),
                    objects: BTreeMap::new(),
                };
                self.connections.insert(socket, connection);
            }
            SocketEvent::Received(bytes) => {
                let Some(connection) = self.connections.get_mut(&socket) else {
                    return Ok(());
                };
                connection.messages.push(&bytes);
                while let Some(message) = connection.messages.next_message()? {
                    let answer = match message {
                        RpcMessage::Bind => call::bind(PduKind::BindAck),
                        RpcMessage::Call(call) => {
                            let stub = connection.answer(&self.files, &call)?;
                            call::fragments(call.call_id, None, &stub)
                        }
                    };
                    sockets.send(socket, answer);
                }
            }
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                self.connections.remove(&socket);
                sockets.finish(socket);
            }
            SocketEvent::Opened => {}
        }
        Ok(())
    }
}

impl MailConnection {
    fn answer(&mut self, files: &[Bytes], call: &GatheredCall) -> Result<Bytes, String> {
        match call.opnum {
            Some(opnum @ (opnum::CONNECT | opnum::CONNECT_EX)) => {
                Ok(connect_answer(self.session, opnum == opnum::CONNECT_EX).write())
            }
            Some(opnum @ (opnum::RPC | opnum::RPC_EXT2)) => self.operate(files, opnum, &call.stub),
            Some(opnum::DISCONNECT) => Ok(ContextStub {
                context: ContextHandle([0; 20]),
                number: Some(0),
            }
            .write()),
            other => Err(format!("the mailbox server has no method {other:?}")),
        }
    }

    fn operate(&mut self, files: &[Bytes], opnum: u16, stub: &Bytes) -> Result<Bytes, String> {
        let request = RpcRequest::read(opnum, stub).map_err(|error| error.to_string())?;
        let buffer = request.buffers.first().ok_or("a call has no ROP buffer")?;
        let asked = RopBuffer::read(&buffer.bytes).map_err(|error| error.to_string())?;
        let requests = read_requests(&asked).map_err(|error| error.to_string())?;
        let mut handles = asked.handles.clone();
        let mut left = request.envelope.out_max();
        let mut lists = vec![BytesMut::new()];
        for one in &requests {
            let room = left.min(BUFFER_MOST).saturating_sub(lists[0].len());
            let answer = self.rop(files, one, &asked, &mut handles, room);
            lists[0].put_slice(&answer);
        }
        if let Some(last) = requests.last().filter(|last| last.id == id::READ_STREAM)
            && request.envelope.takes_chain()
        {
            left = left.saturating_sub(lists[0].len() + AROUND_DATA);
            while left >= CHAIN_ROOM
                && lists.len() < MAX_BUFFERS
                && self.has_more(files, last, &handles)
            {
                let list = self.rop(files, last, &asked, &mut handles, left.min(BUFFER_MOST));
                left = left.saturating_sub(list.len() + AROUND_DATA);
                lists.push(list);
            }
        }
        let flags = request.envelope.answer_flags();
        let buffers = lists.into_iter().map(|rops| PlainBuffer {
            flags,
            bytes: RopBuffer {
                rops: rops.freeze(),
                handles: handles.clone(),
            }
            .write(),
        });
        Ok(RpcResponse::answering(&request, buffers.collect()).write())
    }

    /// Tells whether the stream of a read has not ended.
    fn has_more(&self, files: &[Bytes], one: &RequestRop, handles: &[u32]) -> bool {
        let handle = handles.get(usize::from(one.index));
        match handle.and_then(|handle| self.objects.get(handle)) {
            Some(MailObject::Stream { file, position }) => *position < files[*file].len(),
            Some(MailObject::Store | MailObject::Message(_) | MailObject::Attachment(_)) | None => {
                false
            }
        }
    }

    /// Answer to one remote operation within so much room.
    fn rop(
        &mut self,
        files: &[Bytes],
        one: &RequestRop,
        asked: &RopBuffer,
        handles: &mut [u32],
        room: usize,
    ) -> BytesMut {
        let mut out = BytesMut::new();
        let handle = handles
            .get(usize::from(one.index))
            .copied()
            .unwrap_or(NO_HANDLE);
        if one.id == id::RELEASE {
            self.objects.remove(&handle);
            return out;
        }
        out.put_slice(&[one.id, one.response_index()]);
        let found = self.objects.get(&handle).copied();
        match (one.id, found) {
            (id::LOGON, _) => {
                self.open(handles, one, MailObject::Store);
                out.put_u32_le(0);
                out.put_u8(1);
                out.put_bytes(0, LOGON_FIELDS);
            }
            (id::OPEN_MESSAGE, Some(MailObject::Store)) => {
                let identifier = asked.rops[..one.end]
                    .last_chunk()
                    .map_or(0, |last| u64::from_le_bytes(*last));
                let message = usize::try_from(identifier).unwrap_or(usize::MAX);
                if message >= files.len() {
                    out.put_u32_le(NULL_OBJECT);
                    return out;
                }
                self.open(handles, one, MailObject::Message(message));
                out.put_u32_le(0);
                // No named properties, two empty subjects, no recipients and no columns.
                out.put_slice(&[0, 1, 1, 0, 0, 0, 0, 0]);
            }
            (id::OPEN_ATTACHMENT, Some(MailObject::Message(file))) => {
                self.open(handles, one, MailObject::Attachment(file));
                out.put_u32_le(0);
            }
            (id::OPEN_STREAM, Some(MailObject::Attachment(file))) => {
                self.open(handles, one, MailObject::Stream { file, position: 0 });
                out.put_u32_le(0);
                out.put_u32_le(u32::try_from(files[file].len()).unwrap_or(u32::MAX));
            }
            (id::SEEK_STREAM, Some(MailObject::Stream { file, position })) => {
                let fields = &asked.rops[one.start..one.end];
                let origin = fields.get(3).copied().unwrap_or(0);
                let offset = fields
                    .last_chunk()
                    .map_or(0, |last| i64::from_le_bytes(*last));
                let base = match origin {
                    0 => 0,
                    1 => position as i64,
                    _ => files[file].len() as i64,
                };
                let position = usize::try_from(base.saturating_add(offset)).unwrap_or(0);
                self.objects
                    .insert(handle, MailObject::Stream { file, position });
                out.put_u32_le(0);
                out.put_u64_le(position as u64);
            }
            (id::GET_STREAM_SIZE, Some(MailObject::Stream { file, .. })) => {
                out.put_u32_le(0);
                out.put_u32_le(u32::try_from(files[file].len()).unwrap_or(u32::MAX));
            }
            (id::READ_STREAM, Some(MailObject::Stream { file, position })) => {
                let size = match one.detail {
                    RequestDetail::ReadStream { size } => size as usize,
                    _ => 0,
                };
                let rest = files[file].get(position..).unwrap_or_default();
                let most = size.min(room.saturating_sub(AROUND_DATA)).min(rest.len());
                out.put_u32_le(0);
                out.put_u16_le(most as u16);
                out.put_slice(&rest[..most]);
                let position = position + most;
                self.objects
                    .insert(handle, MailObject::Stream { file, position });
            }
            (id::READ_STREAM, _) => {
                out.put_u32_le(NULL_OBJECT);
                out.put_u16_le(0);
            }
            _ => out.put_u32_le(NULL_OBJECT),
        }
        out
    }

    /// Gives a new object a handle.
    fn open(&mut self, handles: &mut [u32], one: &RequestRop, object: MailObject) {
        let handle = self
            .objects
            .last_key_value()
            .map_or(100, |(last, _)| last + 1);
        let place = one.output().map(usize::from);
        if let Some(place) = place.and_then(|place| handles.get_mut(place)) {
            *place = handle;
            self.objects.insert(handle, object);
        }
    }
}

fn connect_answer(context: ContextHandle, is_extended: bool) -> ConnectResponse {
    ConnectResponse {
        context,
        polling: [60_000, 6, 10_000],
        session_index: 1,
        name_prefix: None,
        display_name: None,
        server_version: [6, 7_654, 0],
        best_version: is_extended.then_some([6, 7_654, 0]),
        time_stamp: 1,
        auxiliary: is_extended.then(Bytes::new),
        result: 0,
    }
}
