"""EMSMDB's methods on the server: the older generation (EcDoConnect, EcDoRpc) and the newer one (EcDoConnectEx,
EcDoRpcExt2, EcDoAsyncConnectEx), and AsyncEMSMDB's EcDoAsyncWaitEx ([MS-OXCRPC] §3.1.4, §3.3.4)."""

import itertools
import struct
import threading
import uuid

import buffers
import rops
from ndr import NdrReader, NdrWriter
from rpc_server import CONTEXT_MISMATCH, UNKNOWN_OPNUM, RpcFault, groups

EMSMDB = uuid.UUID("a4f1db00-ca47-1067-b31f-00dd010662da").bytes_le + struct.pack("<HH", 0, 81)
ASYNC_EMSMDB = uuid.UUID("5261574a-4572-206e-b268-6b199213b4e4").bytes_le + struct.pack("<HH", 0, 1)

# Exchange 2007: the first one with EcDoAsyncWaitEx, and with 0xBABE for RopReadStream ([MS-OXCRPC] §3.1.4.1.3).
SERVER_VERSION = (8, 0x8000 | 240, 5)
BEST_VERSION = (8, 0x8000 | 240, 5)
POLL_MS, RETRIES, RETRY_DELAY_MS = 60000, 6, 10000
MAX_INPUT, MAX_AUXILIARY = 0x40000, 0x1008
# [MS-OXCRPC] §3.1.4.2.1.2.2: at most so many extended buffers in an answer, none with less room than this.
MAX_CHAINED, MIN_CHAINED_ROOM = 96, 0x2000
# Upload packing allows these ROPs in every extended buffer of a request (§3.1.4.2.1.2.1).
PACKED = (0xA3, 0x9D)
# A long poll is answered after this many seconds without an event (§3.3.4.1).
WAIT_SECONDS = 300
RPC_FORMAT, RPC_FAILED, INVALID_PARAMETER = 0x4B6, 0x80040115, 0x80070057
LOGON_FAILED, UNKNOWN_USER, REJECTED = 0x80040111, 0x3EB, 0x7EE
NOTIFICATION_PENDING = 1
# Bytes that cannot be read end in one of these.
FORMAT_ERRORS = (ValueError, LookupError, struct.error)
# Types of auxiliary blocks ([MS-OXCRPC] §2.2.2.2).
PERF_REQUEST, PERF_SESSION, ORGANISATION = 0x01, 0x04, 0x17


class Session:
    """A session context: what a context handle stands for."""

    def __init__(self, handle, user, group, processor):
        self.handle = handle
        self.user = user
        self.group = group
        self.processor = processor
        self.lock = threading.Lock()
        self.waiter = None
        self.timer = None
        processor.on_notification = self.notify

    def notify(self):
        self.end_wait(NOTIFICATION_PENDING)

    def end_wait(self, flags, status=0):
        call, self.waiter = self.waiter, None
        if self.timer:
            self.timer.cancel()
        if call is None:
            return

        def answer():
            try:
                call.answer(NdrWriter().u32(flags, status).bytes())
            except OSError:
                pass

        # The mailbox is locked by whoever made the change.
        threading.Thread(target=answer, daemon=True).start()


class EmsmdbService:
    """Both interfaces."""

    def __init__(self, mailbox, log, requires_user):
        self.mailbox = mailbox
        self.log = log
        self.requires_user = requires_user
        self.sessions = {}
        self.waits = {}
        self.numbers = itertools.count(1)
        groups.run_down.append(self.run_down)
        self.methods = {
            0: self.connect, 1: self.disconnect, 2: self.rpc, 4: self.register_push, 6: self.dummy,
            10: self.connect_extended, 11: self.rpc_extended, 14: self.async_connect,
        }

    def __call__(self, call, opnum, stub):
        method = self.methods.get(opnum)
        if method is None:
            raise RpcFault(UNKNOWN_OPNUM)
        return method(call, NdrReader(stub))

    def new_handle(self):
        return bytes(4) + uuid.uuid4().bytes

    def session(self, call, handle):
        session = self.sessions.get(handle)
        if session is None or session.user != call.user:
            raise RpcFault(CONTEXT_MISMATCH)
        return session

    def open_session(self, call):
        handle = self.new_handle()
        self.sessions[handle] = Session(
            handle, call.user, call.connection.group, rops.RopProcessor(self.mailbox, self.log)
        )
        return handle

    def connect_status(self, call, name):
        if self.requires_user and call.user is None:
            return LOGON_FAILED
        return 0 if name.lower().startswith(b"/o=") else UNKNOWN_USER

    def connect(self, call, reader):
        name, _, version, stamp = self.connect_request(reader)
        status = self.connect_status(call, name)
        writer = self.connect_reply(self.open_session(call) if status == 0 else bytes(20))
        writer.u16(*SERVER_VERSION, *BEST_VERSION).u32(stamp, status)
        return writer.bytes()

    def connect_extended(self, call, reader):
        name, _, version, stamp = self.connect_request(reader)
        check_auxiliary(reader)
        limit = reader.u32()
        status = self.connect_status(call, name)
        writer = self.connect_reply(self.open_session(call) if status == 0 else bytes(20))
        writer.u16(*SERVER_VERSION, *BEST_VERSION).u32(stamp)
        auxiliary = auxiliary_out() if limit >= len(auxiliary_out()) and status == 0 else b""
        writer.varying(auxiliary).u32(len(auxiliary), status)
        return writer.bytes()

    def connect_request(self, reader):
        name = reader.string()
        flags = [reader.u32() for _ in range(7)]
        reader.u16()
        version = tuple(reader.u16() for _ in range(3))
        return name, flags, version, reader.u32()

    def connect_reply(self, handle):
        return (
            NdrWriter()
            .context(handle)
            .u32(POLL_MS, RETRIES, RETRY_DELAY_MS)
            .u16(next(self.numbers) & 0xFFFF)
            .pointed_string(b"/o=Lab/ou=First Administrative Group", 0x20000)
            .pointed_string(b"Reader", 0x20004)
        )

    def disconnect(self, call, reader):
        handle = reader.context()
        self.session(call, handle)
        self.close_session(handle)
        return NdrWriter().context(bytes(20)).u32(0).bytes()

    def close_session(self, handle):
        session = self.sessions.pop(handle)
        self.waits = {each: known for each, known in self.waits.items() if known is not session}
        session.end_wait(0, RPC_FAILED)
        with self.mailbox.lock:
            session.processor.close()

    def run_down(self, group):
        """Ends the sessions of a client whose connections are all closed."""
        for handle in [each.handle for each in self.sessions.values() if each.group == group]:
            self.log("a session ends with its client's last connection")
            self.close_session(handle)

    def register_push(self, call, reader):
        handle = reader.context()
        self.session(call, handle)
        return NdrWriter().context(handle).u32(0, 0x80040102).bytes()

    def dummy(self, call, reader):
        return NdrWriter().u32(0).bytes()

    def rpc(self, call, reader):
        """EcDoRpc: one ROP buffer, obfuscated; 16-bit sizes."""
        handle = reader.context()
        data = reader.varying()
        size, room = reader.u16(), reader.u16()
        session = self.session(call, handle)
        answer, status = b"", 0
        if size != len(data):
            status = RPC_FORMAT
        else:
            with session.lock:
                try:
                    request, handles = buffers.unpack_rops(buffers.obfuscate(data))
                    answers, handles = session.processor.execute(request, handles, room)
                    answer = buffers.obfuscate(buffers.pack_rops(answers, handles))
                except FORMAT_ERRORS as error:
                    self.log(f"EcDoRpc: {error!r}")
                    status = RPC_FORMAT
        return NdrWriter().context(handle).varying(answer, room).u16(len(answer)).u32(status).bytes()

    def rpc_extended(self, call, reader):
        """EcDoRpcExt2: extended buffers, chained where the client allows it."""
        handle = reader.context()
        flags = reader.u32()
        data = reader.array()
        size, room = reader.u32(), reader.u32()
        check_auxiliary(reader)
        reader.u32()
        session = self.session(call, handle)
        answer, status = b"", 0
        if size > MAX_INPUT or size != len(data):
            status = RPC_FORMAT
        elif room < 8:
            status = INVALID_PARAMETER
        else:
            with session.lock:
                try:
                    answer = self.run_extended(session.processor, data, flags, min(room, MAX_INPUT))
                except FORMAT_ERRORS as error:
                    self.log(f"EcDoRpcExt2: {error!r}")
                    status = RPC_FORMAT
        writer = NdrWriter().context(handle).u32(0)
        writer.varying(answer).u32(len(answer)).varying(b"").u32(0, 0, status)
        return writer.bytes()

    def run_extended(self, processor, data, flags, room):
        payloads = buffers.unpack_extended(data)
        answers = []
        for number, payload in enumerate(payloads):
            request, handles = buffers.unpack_rops(payload)
            if number > 0 and request[:1] not in (bytes([each]) for each in PACKED):
                raise buffers.BufferFormatError("a packed buffer begins with another ROP")
            left = min(room - sum(8 + len(each) for each in answers) - 8, buffers.MAX_PAYLOAD)
            answer, handles = processor.execute(request, handles, left)
            answers.append(buffers.pack_rops(answer, handles))
        while flags & buffers.CHAIN and processor.again and len(answers) < MAX_CHAINED:
            left = room - sum(8 + len(each) for each in answers) - 8
            if left < MIN_CHAINED_ROOM:
                break
            answer = processor.continue_last(min(left, buffers.MAX_PAYLOAD))
            answers.append(buffers.pack_rops(answer, processor.handles))
        may_compress = not flags & buffers.NO_COMPRESSION
        may_obfuscate = not flags & buffers.NO_XOR_MAGIC
        last = len(answers) - 1
        return b"".join(
            buffers.pack_extended(each, buffers.LAST if number == last else 0, may_compress, may_obfuscate)
            for number, each in enumerate(answers)
        )

    def async_connect(self, call, reader):
        handle = reader.context()
        session = self.session(call, handle)
        waiting = self.new_handle()
        self.waits[waiting] = session
        return NdrWriter().context(waiting).u32(0).bytes()

    def async_interface(self, call, opnum, stub):
        """EcDoAsyncWaitEx: answered when there is a notification, or after five minutes."""
        if opnum != 0:
            raise RpcFault(UNKNOWN_OPNUM)
        session = self.waits.get(NdrReader(stub).context())
        if session is None or session.handle not in self.sessions:
            raise RpcFault(CONTEXT_MISMATCH)
        with self.mailbox.lock:
            if session.waiter is not None:
                return NdrWriter().u32(0, REJECTED).bytes()
            if session.processor.notifications:
                return NdrWriter().u32(NOTIFICATION_PENDING, 0).bytes()
            session.waiter = call
            session.timer = threading.Timer(WAIT_SECONDS, session.end_wait, (0,))
            session.timer.daemon = True
            session.timer.start()
        return None


def check_auxiliary(reader):
    """Reads rgbAuxIn and its size, whose blocks must fill it."""
    data, size = reader.array(), reader.u32()
    if size != len(data) or size > MAX_AUXILIARY:
        raise ValueError(f"{size} auxiliary bytes, {len(data)} are there")
    for payload in buffers.unpack_extended(data) if data else ():
        at = 0
        while at < len(payload):
            (length,) = struct.unpack_from("<H", payload, at)
            if length < 4 or at + length > len(payload):
                raise ValueError(f"an auxiliary block of {length} bytes at {at} of {len(payload)}")
            at += length


def auxiliary_out():
    """AUX_EXORGINFO without public folders, in an extended buffer ([MS-OXCRPC] §2.2.2.2.17)."""
    return auxiliary_block(ORGANISATION, struct.pack("<I", 0))


def auxiliary_block(kind, body, may_obfuscate=False):
    """One block in an extended buffer."""
    block = struct.pack("<HBB", 4 + len(body), 1, kind) + body
    return buffers.pack_extended(block, buffers.LAST, False, may_obfuscate)
