"""A client's session with a mailbox, in either generation, and the record of its calls."""

import struct
import time

import answers
import buffers
import directory
import emsmdb
from ndr import NdrReader, NdrWriter

USER_DN = b"/o=Lab/ou=First Administrative Group/cn=Recipients/cn=reader"
# Outlook XP (10.0.2627.1) and Outlook 2003 (11.0.5604.0).
VERSIONS = {"outlook-xp": (10, 2627, 1), "outlook-2003": (11, 5604, 0)}
NO_HANDLE = 0xFFFFFFFF
# What a client says of its session in auxiliary blocks.
SESSION_NUMBER, SESSION_GUID = 1, bytes(range(16))

# EcDoRpc's sizes have 16 bits; Outlook XP offers this for the answer.
XP_ROOM = 0x7FFF
# The answers that Outlook 2003 makes room for, without and with Exchange's optimisation ([MS-OXCRPC] §4.3).
SMALL_ROOM, LARGE_ROOM = 0x8008, 0x18008


# What a report leaves out of a step.
HIDDEN = ("began", "ended", "first_call", "last_call")


class Recorder:
    """Times of calls, by step."""

    def __init__(self):
        self.steps = {}
        self.calls = 0
        self.first = None
        self.last = None

    def record(self, step, began, ended, sent, received):
        entry = self.steps.setdefault(
            step,
            {
                "step": step, "calls": 0, "seconds": 0.0, "longest": 0.0, "sent": 0, "received": 0,
                "began": began, "first_call": self.calls,
            },
        )
        entry["calls"] += 1
        entry["seconds"] += ended - began
        entry["longest"] = max(entry["longest"], ended - began)
        entry["sent"] += sent
        entry["received"] += received
        entry["ended"] = ended
        self.calls += 1
        entry["last_call"] = self.calls

    def between(self, first, last):
        """Seconds from the first request of one step to the last answer of another."""
        return self.steps[last]["ended"] - self.steps[first]["began"]

    def calls_between(self, first, last):
        return self.steps[last]["last_call"] - self.steps[first]["first_call"]

    def received_between(self, first, last):
        """Bytes of the answers to all steps that began within these."""
        began, ended = self.steps[first]["began"], self.steps[last]["ended"]
        return sum(each["received"] for each in self.steps.values() if began <= each["began"] <= ended)

    def report(self, start):
        return [
            {
                **{key: value for key, value in each.items() if key not in HIDDEN},
                "seconds": round(each["seconds"], 6),
                "longest": round(each["longest"], 6),
                "at": round(each["began"] - start, 6),
            }
            for each in self.steps.values()
        ]


class MailSession:
    """Log-on, ROPs and log-off. `execute` sends ROPs and returns their answers."""

    def __init__(self, dialer, client, options):
        self.dialer = dialer
        self.client = client
        self.options = options
        self.is_xp = client == "outlook-xp"
        self.is_optimised = not self.is_xp and options.exchange_optimisation == "on"
        self.recorder = Recorder()
        self.notifications = []
        self.handles = [NO_HANDLE]
        # Handles that the next call releases first.
        self.released = []
        self.rpc = None
        if self.is_xp:
            self.room = XP_ROOM
        else:
            self.room = options.room or (LARGE_ROOM if self.is_optimised else SMALL_ROOM)
            is_sealed = options.protection.endswith("privacy")
            self.flags = (
                (0 if self.is_optimised else buffers.NO_COMPRESSION)
                | (buffers.CHAIN if self.is_optimised else 0)
                | (buffers.NO_XOR_MAGIC if is_sealed else 0)
            )
            self.may_obfuscate = not is_sealed

    def timed(self, step, function, *arguments):
        began = time.monotonic()
        result = function(*arguments)
        self.recorder.record(step, began, time.monotonic(), 0, 0)
        return result

    # Finding the mailbox.

    def find_port(self, interface):
        """The port that the endpoint mapper knows for an interface."""
        rpc, _ = self.dialer.open(self.options.endpoint_mapper_port, directory.MAPPER, is_protected=False)
        tower = directory.EndpointMapper.tower(interface, 0, bytes(4))
        stub = NdrWriter().u32(1).raw(bytes(16)).u32(2, len(tower), len(tower)).raw(tower).align(4)
        answer = NdrReader(rpc.invoke(3, stub.context(bytes(20)).u32(4).bytes()))
        rpc.close()
        answer.context()
        count = answer.u32()
        if not count:
            raise LookupError("the endpoint mapper does not know the interface")
        answer.raw(12)
        for _ in range(count):
            answer.u32()
        tower = answer.raw(max(answer.u32(), answer.u32()))
        at = 2
        for _ in range(4):
            for _ in range(2):
                at += 2 + int.from_bytes(tower[at : at + 2], "little")
        # The port's floor is the fourth: 07, and two bytes in network order.
        at -= 4
        return int.from_bytes(tower[at + 2 : at + 4], "big")

    def ask_directory(self):
        """RfrGetNewDSA, then NspiBind, NspiDNToMId, NspiGetProps and NspiUnbind."""
        port = self.options.directory_port or self.timed("ept_map RFR", self.find_port, directory.RFR)
        rpc, _ = self.timed("bind RFR", self.dialer.open, port, directory.RFR)
        stub = NdrWriter().u32(0).string(USER_DN).align(4).u32(0).u32(1).u32(0)
        self.timed("RfrGetNewDSA", rpc.invoke, 0, stub.bytes())
        rpc.close()
        port = self.options.directory_port or self.timed("ept_map NSPI", self.find_port, directory.NSPI)
        rpc, _ = self.timed("bind NSPI", self.dialer.open, port, directory.NSPI)
        stat = (0, 0, 0, 0, 0, 0, 1252, 0x409, 0x409)
        reader = NdrReader(self.timed("NspiBind", rpc.invoke, 0, NdrWriter().u32(0, *stat, 0).bytes()))
        if reader.u32():
            reader.raw(16)
        handle = reader.context()
        name = USER_DN + b"\0"
        stub = NdrWriter().context(handle).u32(0).u32(1, 1, 0x20000).u32(len(name), 0, len(name)).raw(name)
        identifiers = NdrReader(self.timed("NspiDNToMId", rpc.invoke, 7, stub.bytes()))
        if not identifiers.u32():
            raise LookupError("the directory does not know the user")
        tags = (0x3001001E, 0x3003001E)
        stub = NdrWriter().context(handle).u32(0, *stat[:2], 0x10, *stat[3:], 1)
        stub.u32(len(tags) + 1, len(tags), 0, len(tags), *tags)
        self.timed("NspiGetProps", rpc.invoke, 9, stub.bytes())
        self.timed("NspiUnbind", rpc.invoke, 1, NdrWriter().context(handle).u32(0).bytes())
        rpc.close()

    def connect(self):
        port = self.options.mailbox_port or self.timed("ept_map EMSMDB", self.find_port, emsmdb.EMSMDB)
        self.port = port
        self.rpc, self.group = self.timed("bind EMSMDB", self.dialer.open, port, emsmdb.EMSMDB)
        writer = NdrWriter().string(USER_DN).u32(0, 0, 0, 1252, 0x409, 0x409, 0xFFFFFFFF).u16(1)
        writer.u16(*VERSIONS[self.client]).u32(0)
        if self.is_xp:
            reader = NdrReader(self.timed("EcDoConnect", self.rpc.invoke, 0, writer.bytes()))
        else:
            session = struct.pack("<HH", SESSION_NUMBER, 0) + SESSION_GUID
            auxiliary = emsmdb.auxiliary_block(emsmdb.PERF_SESSION, session, self.may_obfuscate)
            writer.array(auxiliary).u32(len(auxiliary), emsmdb.MAX_AUXILIARY)
            reader = NdrReader(self.timed("EcDoConnectEx", self.rpc.invoke, 10, writer.bytes()))
        self.handle = reader.context()
        status = int.from_bytes(reader.data[-4:], "little")
        if status:
            raise answers.AnswerError(f"the session is refused with {status:#x}")
        if not self.is_xp:
            self.read_connect_auxiliary(reader)

    def read_connect_auxiliary(self, reader):
        """Goes to the end of an answer to EcDoConnectEx, whose auxiliary blocks must be readable."""
        for _ in range(3):
            reader.u32()
        reader.u16()
        for _ in range(2):
            if reader.u32():
                reader.string()
        for _ in range(6):
            reader.u16()
        reader.u32()
        auxiliary = reader.varying()
        if reader.u32() != len(auxiliary):
            raise answers.AnswerError("the auxiliary buffer has another size than announced")
        buffers.unpack_extended(auxiliary)

    def connect_notifications(self):
        """EcDoAsyncConnectEx, and AsyncEMSMDB on a connection of the same association group."""
        reader = NdrReader(
            self.timed("EcDoAsyncConnectEx", self.rpc.invoke, 14, NdrWriter().context(self.handle).bytes())
        )
        self.waiting = reader.context()
        self.async_rpc, _ = self.timed(
            "bind AsyncEMSMDB", self.dialer.open, self.port, emsmdb.ASYNC_EMSMDB, True, self.group
        )

    def wait(self):
        """EcDoAsyncWaitEx; returns its flags."""
        stub = NdrWriter().context(self.waiting).u32(0).bytes()
        reader = NdrReader(self.timed("EcDoAsyncWaitEx", self.async_rpc.invoke, 0, stub))
        return reader.u32()

    def log_off(self):
        if self.rpc is None:
            return
        self.timed("EcDoDisconnect", self.rpc.invoke, 1, NdrWriter().context(self.handle).bytes())
        self.rpc.close()

    # ROPs.

    def execute(self, step, requests, handles, columns=(), may_fail=False):
        """Sends ROPs in one call. `handles` is the handle table; the new one is left in `self.handles`. Returns the
        answers, those of chained buffers after each other."""
        released, self.released = self.released, []
        rops = b"".join(answers.request(0x01, "B", len(handles) + each) for each in range(len(released)))
        payload = buffers.pack_rops(rops + b"".join(requests), [*handles, *released])
        began = time.monotonic()
        parts, sent, received = self.call_xp(payload) if self.is_xp else self.call_extended(payload)
        ended = time.monotonic()
        self.recorder.record(step, began, ended, sent, received)
        found = []
        for number, part in enumerate(parts):
            data, table = buffers.unpack_rops(part)
            # A chained buffer repeats the last ROP, with its columns.
            reader = answers.AnswerReader(data, columns if number == 0 else columns[-1:]).read()
            self.notifications += reader.notifications
            if reader.is_too_small and not may_fail:
                raise answers.AnswerError("the answer does not fit")
            found += reader.answers
            self.handles = table
        if not may_fail:
            for answer in found:
                answer.check()
        return found

    def call_xp(self, payload):
        data = buffers.obfuscate(payload)
        stub = NdrWriter().context(self.handle).varying(data).u16(len(data), self.room).bytes()
        reader = NdrReader(self.rpc.invoke(2, stub))
        reader.context()
        answer = reader.varying()
        size = reader.u16()
        status = reader.u32()
        if status or size != len(answer):
            raise answers.AnswerError(f"EcDoRpc returns {status:#x}")
        return [buffers.obfuscate(answer)], len(data), len(answer)

    def call_extended(self, payload):
        return self.call_packed([payload])

    def call_packed(self, payloads):
        """Several ROP buffers in one request; only uploads may do so."""
        may_compress = not self.flags & buffers.NO_COMPRESSION
        last = len(payloads) - 1
        data = b"".join(
            buffers.pack_extended(each, buffers.LAST if number == last else 0, may_compress, self.may_obfuscate)
            for number, each in enumerate(payloads)
        )
        request = struct.pack("<HH", SESSION_NUMBER, self.recorder.calls & 0xFFFF)
        auxiliary = emsmdb.auxiliary_block(emsmdb.PERF_REQUEST, request, self.may_obfuscate)
        writer = NdrWriter().context(self.handle).u32(self.flags).array(data).u32(len(data), self.room)
        stub = writer.array(auxiliary).u32(len(auxiliary), emsmdb.MAX_AUXILIARY).bytes()
        reader = NdrReader(self.rpc.invoke(11, stub))
        reader.context()
        reader.u32()
        answer = reader.varying()
        size = reader.u32()
        reader.varying()
        reader.u32()
        reader.u32()
        status = reader.u32()
        if status or size != len(answer):
            raise answers.AnswerError(f"EcDoRpcExt2 returns {status:#x}")
        return buffers.unpack_extended(answer), len(data), len(answer)
