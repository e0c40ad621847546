//! The mail client.

use std::net::IpAddr;

use bytes::{BufMut, Bytes, BytesMut};
use mapi::emsmdb::connect::{ConnectAuxiliary, ConnectRequest, ConnectResponse, ContextStub};
use mapi::emsmdb::rpc::{
    AUXILIARY_MAX, CHAIN, NO_COMPRESSION, RequestEnvelope, RpcRequest, RpcResponse,
};
use mapi::emsmdb::{ContextHandle, ExtendedFlags, PlainBuffer, opnum};
use mapi::rop::buffer::{NO_HANDLE, RopBuffer};
use mapi::rop::id;
use mapi::rpc::pdu::PduKind;
use tcp::ConnectionNumber;

use super::MailGeneration;
use super::call::{self, MessageReader, RpcMessage};
use crate::host::{HostSockets, SocketEvent};
use crate::scripts::{ClientScript, MAILBOX_PORT};

/// Bytes that one RopReadStream asks for; the rest of the answer is for headers.
const READ_BYTES: u16 = 0x7f00;
/// The size that stands for the whole answer ([MS-OXCROPS] §2.2.9.3, MaximumByteCount).
const WHOLE_ANSWER: u16 = 0xbabe;
/// Bytes that each generation takes in an answer ([MS-OXCRPC] §4.3).
const XP_ROOM: u16 = 0x7fff;
const PLAIN_ROOM: u32 = 0x8008;
const OPTIMISED_ROOM: u32 = 0x1_8008;
const USER: &[u8] = b"/o=Lab/ou=First Administrative Group/cn=Recipients/cn=reader\0";
/// PidTagAttachDataBinary, as RopOpenStream names it.
const ATTACHMENT_DATA: u32 = 0x3701_0102;

/// The step whose answer the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MailStep {
    Bind,
    Connect,
    LogOn,
    OpenMessage,
    OpenAttachment,
    OpenStream,
    Read,
    Disconnect,
}

/// The client.
pub(in super::super) struct MailClientScript {
    generation: MailGeneration,
    /// Attachments to save.
    count: usize,
    server: Option<IpAddr>,
    current: usize,
    socket: Option<ConnectionNumber>,
    messages: MessageReader,
    call_id: u32,
    step: MailStep,
    context: ContextHandle,
    /// Handle of the object that the last step opened.
    handle: u32,
    size: usize,
    received: BytesMut,
    arrivals: Vec<Option<Bytes>>,
    failure: Option<String>,
}

impl MailClientScript {
    pub(in super::super) fn new(files: &[(String, Bytes)], generation: MailGeneration) -> Self {
        Self {
            generation,
            count: files.len(),
            server: None,
            current: 0,
            socket: None,
            messages: MessageReader::default(),
            call_id: 1,
            step: MailStep::Bind,
            context: ContextHandle([0; 20]),
            handle: NO_HANDLE,
            size: 0,
            received: BytesMut::new(),
            arrivals: vec![None; files.len()],
            failure: None,
        }
    }

    fn open(&mut self, sockets: &mut HostSockets) {
        let Some(server) = self.server.filter(|_| self.current < self.count) else {
            return;
        };
        self.messages = MessageReader::default();
        self.call_id = 1;
        self.step = MailStep::Bind;
        self.received.clear();
        self.socket = sockets.open((server, MAILBOX_PORT).into());
    }

    fn call(&mut self, sockets: &mut HostSockets, step: MailStep, opnum: u16, stub: &[u8]) {
        self.step = step;
        self.call_id += 1;
        if let Some(socket) = self.socket {
            let bytes = call::fragments(self.call_id, Some(opnum), stub);
            sockets.send(socket, bytes);
        }
    }

    /// Sends one remote operation with these handles.
    fn operate(
        &mut self,
        sockets: &mut HostSockets,
        step: MailStep,
        rop: Vec<u8>,
        handles: &[u32],
    ) {
        let buffer = RopBuffer {
            rops: rop.into(),
            handles: handles.to_vec(),
        };
        let request = RpcRequest {
            context: self.context,
            envelope: self.envelope(),
            buffers: vec![PlainBuffer {
                flags: ExtendedFlags(ExtendedFlags::XOR_MAGIC | ExtendedFlags::LAST),
                bytes: buffer.write(),
            }],
        };
        let opnum = request.envelope.opnum();
        self.call(sockets, step, opnum, &request.write());
    }

    fn envelope(&self) -> RequestEnvelope {
        let (flags, out_max) = match self.generation {
            MailGeneration::Xp => {
                return RequestEnvelope::Xp {
                    most: u32::from(XP_ROOM),
                    out_max: XP_ROOM,
                };
            }
            MailGeneration::Plain2003 => (NO_COMPRESSION, PLAIN_ROOM),
            MailGeneration::Optimised2003 => (CHAIN, OPTIMISED_ROOM),
        };
        RequestEnvelope::Extended {
            flags,
            out_max,
            auxiliary: Bytes::new(),
            auxiliary_max: AUXILIARY_MAX,
        }
    }

    fn connect(&mut self, sockets: &mut HostSockets) {
        let (opnum, version, auxiliary) = match self.generation {
            MailGeneration::Xp => (opnum::CONNECT, [10, 2627, 1], None),
            MailGeneration::Plain2003 | MailGeneration::Optimised2003 => {
                let auxiliary = ConnectAuxiliary {
                    bytes: Bytes::new(),
                    most: AUXILIARY_MAX,
                };
                (opnum::CONNECT_EX, [11, 5604, 0], Some(auxiliary))
            }
        };
        let request = ConnectRequest {
            user: Bytes::from_static(USER),
            settings: [0, 0, 0, 1252, 0x409, 0x409, u32::MAX],
            can_convert: 1,
            version,
            time_stamp: 0,
            auxiliary,
        };
        self.call(sockets, MailStep::Connect, opnum, &request.write());
    }

    fn read(&mut self, sockets: &mut HostSockets) {
        let mut rop = vec![id::READ_STREAM, 0, 0];
        match self.generation {
            MailGeneration::Xp | MailGeneration::Plain2003 => rop.put_u16_le(READ_BYTES),
            MailGeneration::Optimised2003 => {
                rop.put_u16_le(WHOLE_ANSWER);
                rop.put_u32_le(OPTIMISED_ROOM);
            }
        }
        let handle = self.handle;
        self.operate(sockets, MailStep::Read, rop, &[handle]);
    }

    fn disconnect(&mut self, sockets: &mut HostSockets) {
        let stub = ContextStub {
            context: self.context,
            number: None,
        };
        self.call(
            sockets,
            MailStep::Disconnect,
            opnum::DISCONNECT,
            &stub.write(),
        );
    }

    /// Opens the next object below the one that was opened last.
    fn open_next(&mut self, sockets: &mut HostSockets) {
        let mut rop = Vec::new();
        let step = match self.step {
            MailStep::LogOn => {
                rop.put_slice(&[id::OPEN_MESSAGE, 0, 0, 1]);
                rop.put_bytes(0, 11);
                rop.put_u64_le(self.current as u64);
                MailStep::OpenMessage
            }
            MailStep::OpenMessage => {
                rop.put_slice(&[id::OPEN_ATTACHMENT, 0, 0, 1, 0]);
                rop.put_u32_le(0);
                MailStep::OpenAttachment
            }
            _ => {
                rop.put_slice(&[id::OPEN_STREAM, 0, 0, 1]);
                rop.put_u32_le(ATTACHMENT_DATA);
                rop.put_u8(0);
                MailStep::OpenStream
            }
        };
        let handle = self.handle;
        self.operate(sockets, step, rop, &[handle, NO_HANDLE]);
    }

    fn take_message(
        &mut self,
        sockets: &mut HostSockets,
        message: RpcMessage,
    ) -> Result<(), String> {
        let call = match (message, self.step) {
            (RpcMessage::Bind, MailStep::Bind) => {
                self.connect(sockets);
                return Ok(());
            }
            (RpcMessage::Call(call), step) if step != MailStep::Bind => call,
            (_, step) => return Err(format!("an answer does not fit the step {step:?}")),
        };
        match self.step {
            MailStep::Connect => {
                let opnum = match self.generation {
                    MailGeneration::Xp => opnum::CONNECT,
                    MailGeneration::Plain2003 | MailGeneration::Optimised2003 => opnum::CONNECT_EX,
                };
                let answer = ConnectResponse::read(opnum, &call.stub);
                self.context = answer.map_err(|error| error.to_string())?.context;
                let mut rop = vec![id::LOGON, 0, 0, 1];
                rop.put_bytes(0, 8);
                rop.put_u16_le(USER.len() as u16);
                rop.put_slice(USER);
                self.operate(sockets, MailStep::LogOn, rop, &[NO_HANDLE]);
            }
            MailStep::Disconnect => self.next_attachment(sockets),
            MailStep::Bind
            | MailStep::LogOn
            | MailStep::OpenMessage
            | MailStep::OpenAttachment
            | MailStep::OpenStream
            | MailStep::Read => self.take_answer(sockets, &call.stub)?,
        }
        Ok(())
    }

    /// Takes the answer to a remote operation.
    fn take_answer(&mut self, sockets: &mut HostSockets, stub: &Bytes) -> Result<(), String> {
        let opnum = self.envelope().opnum();
        let answer = RpcResponse::read(opnum, stub).map_err(|error| error.to_string())?;
        let mut is_over = true;
        for buffer in &answer.buffers {
            let buffer = RopBuffer::read(&buffer.bytes).map_err(|error| error.to_string())?;
            let fields = fields_of(&buffer.rops)
                .ok_or_else(|| format!("the server refused the step {:?}", self.step))?;
            match self.step {
                MailStep::Read => {
                    let data = fields.get(2..).filter(|data| !data.is_empty());
                    is_over &= data.is_none();
                    self.received.extend_from_slice(data.unwrap_or_default());
                }
                MailStep::LogOn => self.handle = buffer.handle(0).unwrap_or(NO_HANDLE),
                _ => self.handle = buffer.handle(1).unwrap_or(NO_HANDLE),
            }
            if let (MailStep::OpenStream, Some(size)) = (self.step, fields.first_chunk()) {
                self.size = u32::from_le_bytes(*size) as usize;
            }
        }
        match self.step {
            MailStep::Read if is_over || self.received.len() >= self.size => {
                self.disconnect(sockets);
            }
            MailStep::Read | MailStep::OpenStream => self.read(sockets),
            _ => self.open_next(sockets),
        }
        Ok(())
    }

    fn next_attachment(&mut self, sockets: &mut HostSockets) {
        let whole = self.received.split().freeze();
        self.arrivals[self.current] = (whole.len() == self.size).then_some(whole);
        self.current += 1;
        if let Some(socket) = self.socket {
            sockets.finish(socket);
        }
        self.open(sockets);
    }

    fn take(&mut self, sockets: &mut HostSockets, bytes: &[u8]) -> Result<(), String> {
        self.messages.push(bytes);
        while let Some(message) = self.messages.next_message()? {
            self.take_message(sockets, message)?;
        }
        Ok(())
    }
}

/// Fields of the first answer in a list, if it reports success: number, index and result stand before.
fn fields_of(rops: &[u8]) -> Option<&[u8]> {
    let (head, fields) = rops.split_first_chunk::<6>()?;
    (head[2..] == [0; 4]).then_some(fields)
}

impl ClientScript for MailClientScript {
    fn start(&mut self, sockets: &mut HostSockets, server: IpAddr) {
        self.server = Some(server);
        self.open(sockets);
    }

    fn handle(&mut self, sockets: &mut HostSockets, socket: ConnectionNumber, event: SocketEvent) {
        if self.socket != Some(socket) || self.is_done() {
            return;
        }
        match event {
            SocketEvent::Opened => sockets.send(socket, call::bind(PduKind::Bind)),
            SocketEvent::Received(bytes) => self.failure = self.take(sockets, &bytes).err(),
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                self.failure = Some("the server ended the connection".to_owned());
            }
            SocketEvent::Accepted => {}
        }
    }

    fn is_done(&self) -> bool {
        self.failure.is_some() || self.current == self.count
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn arrivals(&mut self) -> Vec<Option<Bytes>> {
        std::mem::take(&mut self.arrivals)
    }
}
