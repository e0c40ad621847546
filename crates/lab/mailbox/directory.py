"""The endpoint mapper, RFR and NSPI: as much as a client needs to find its mailbox.

Their stubs are built and read with impacket's classes, which other programs use against real servers.
"""

import socket
import struct
import uuid

from impacket.dcerpc.v5 import epm, nspi, oxabref

import emsmdb
from ndr import NdrReader, NdrWriter
from rpc_server import UNKNOWN_OPNUM, RpcFault

MAPPER = uuid.UUID("e1af8308-5d1f-11c9-91a4-08002b14a0fa").bytes_le + struct.pack("<HH", 3, 0)
NSPI = uuid.UUID("f5cc5a18-4264-101a-8c59-08002b2f8426").bytes_le + struct.pack("<HH", 56, 0)
RFR = uuid.UUID("1544f5e0-613c-11d1-93df-00c04fd7bd09").bytes_le + struct.pack("<HH", 1, 0)
NOT_REGISTERED = 0x16C9A0D6
SERVER_GUID = uuid.UUID("b0b5e0a4-0e5d-4d0f-9a3e-7a1c10d0a0c1").bytes_le
MAIL_USER = 0x10
NSPI_NOT_SUPPORTED = 0x80040102


class EndpointMapper:
    """ept_map for the interfaces that are registered with their ports."""

    def __init__(self):
        self.ports = {}

    def __call__(self, call, opnum, stub):
        if opnum != 3:
            raise RpcFault(UNKNOWN_OPNUM)
        reader = NdrReader(stub)
        if reader.u32():
            reader.raw(16)
        if not reader.u32():
            return self.reply([])
        reader.u32()
        tower = bytes(reader.raw(reader.u32()))
        interface = self.interface(tower)
        port = self.ports.get(interface)
        if port is None:
            return self.reply([])
        address = socket.inet_aton(call.connection.sock.getsockname()[0].rpartition(":")[2])
        return self.reply([self.tower(interface, port, address)])

    @staticmethod
    def interface(tower):
        """UUID and version of the first floor."""
        floors = epm.EPMTower(tower)
        first = floors["Floors"][0]
        return bytes(first["InterfaceUUID"]) + struct.pack("<HH", first["MajorVersion"], first["MinorVersion"])

    @staticmethod
    def tower(interface, port, address):
        def floor(left, right):
            return struct.pack("<H", len(left)) + left + struct.pack("<H", len(right)) + right

        ndr = uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860").bytes_le
        return struct.pack("<H", 5) + b"".join((
            floor(b"\x0d" + interface[:18], interface[18:]),
            floor(b"\x0d" + ndr + struct.pack("<H", 2), struct.pack("<H", 0)),
            floor(b"\x0b", struct.pack("<H", 0)),
            floor(b"\x07", struct.pack(">H", port)),
            floor(b"\x09", address),
        ))

    @staticmethod
    def reply(towers):
        writer = NdrWriter().context(bytes(20)).u32(len(towers)).u32(4, 0, len(towers))
        for number in range(len(towers)):
            writer.u32(3 + number)
        for tower in towers:
            writer.u32(len(tower), len(tower)).raw(tower)
        return writer.u32(0 if towers else NOT_REGISTERED).bytes()




def rfr(call, opnum, stub):
    """RfrGetNewDSA and RfrGetFQDNFromServerDN: this server is the answer to both."""
    name = call.connection.credentials.host.encode()
    if opnum == 0:
        writer = NdrWriter()
        # Two unique pointers to unique pointers; the first one is unused.
        writer.u32(0).u32(0x20000).pointed_string(name, 0x20004)
        return writer.u32(0).bytes()
    if opnum == 1:
        return NdrWriter().pointed_string(name, 0x20000).u32(0).bytes()
    raise RpcFault(UNKNOWN_OPNUM)


class AddressBook:
    """NSPI: bind, unbind, names to identifiers, and the properties of the one user."""

    def __init__(self):
        self.handles = set()

    def __call__(self, call, opnum, stub):
        reader = NdrReader(stub)
        if opnum == 0:
            handle = bytes(4) + uuid.uuid4().bytes
            self.handles.add(handle)
            return NdrWriter().u32(0x20000).raw(SERVER_GUID).context(handle).u32(0).bytes()
        if opnum == 1:
            self.handles.discard(reader.context())
            # NspiUnbind returns 1 ("UnbindSuccess").
            return NdrWriter().context(bytes(20)).u32(1).bytes()
        if reader.context() not in self.handles:
            raise RpcFault(0x1C00001A)
        if opnum == 7:
            return self.names_to_identifiers(stub)
        if opnum == 9:
            return self.properties(stub)
        if opnum <= 20:
            return self.refusal(opnum)
        raise RpcFault(UNKNOWN_OPNUM)

    @staticmethod
    def names_to_identifiers(stub):
        count = len(nspi.NspiDNToMId(stub)["pNames"]["Strings"])
        answer = NdrWriter().u32(0x20000)
        # PropertyTagArray_r: a count, and a conformant varying array of count + 1 elements.
        answer.u32(count + 1, count, 0, count)
        return answer.u32(*([MAIL_USER] * count)).u32(0).bytes()

    @staticmethod
    def properties(stub):
        """Display name and address of the user; other properties are errors."""
        request = nspi.NspiGetProps(stub)
        tags = request["pPropTags"]["aulPropTag"] if request["pPropTags"] else []
        wanted = [int(each["Data"]) if hasattr(each, "fields") else int(each) for each in tags]
        known = {0x3001: b"Reader", 0x3003: b"/o=Lab/ou=First/cn=Recipients/cn=reader", 0x39FE: b"reader@lab.test"}
        answer = NdrWriter().u32(0x20000).u32(0, len(wanted), 0x20004).u32(len(wanted))
        strings, referent = [], 0x20008
        for tag in wanted:
            value = known.get(tag >> 16)
            if value is None or tag & 0xFFFF != 0x1E:
                answer.u32(tag & 0xFFFF0000 | 0x0A, 0, 0x0A, 0x8004010F)
            else:
                answer.u32(tag, 0, 0x1E, referent)
                strings.append(value)
                referent += 4
        for value in strings:
            answer.string(value)
        status = 0 if len(strings) == len(wanted) else 0x00040380
        return answer.u32(status).bytes()

    @staticmethod
    def refusal(opnum):
        """A failure without results: as many null pointers as the method has results."""
        if opnum in (2, 4, 5, 6):
            raise RpcFault(UNKNOWN_OPNUM)
        return NdrWriter().u32(*([0] * {3: 1, 8: 1, 10: 1, 16: 1, 19: 2, 20: 2}.get(opnum, 1))).u32(
            NSPI_NOT_SUPPORTED
        ).bytes()


def interfaces(service):
    """Interfaces by the sockets they belong to: the mailbox's and the directory's."""
    mailbox = {emsmdb.EMSMDB: service, emsmdb.ASYNC_EMSMDB: service.async_interface}
    return mailbox, {NSPI: AddressBook(), RFR: rfr}
