"""DCE/RPC over TCP, the server's side ([C706] chapter 12, [MS-RPCE] §2.2.2).

A `Connection` binds contexts, authenticates, reassembles requests, calls an interface and fragments the answer. An
interface is a callable `(call, opnum, stub) -> bytes or None`; with None the answer follows by `call.answer`, which
any thread may use. impacket's `DCERPCServer` is not used: it drops the client's authentication.
"""

import itertools
import socket
import struct
import threading
import uuid

from security import PACKET, PRIVACY, NtlmAcceptor, SecurityError
from security import NEGOTIATE, NTLM, KerberosAcceptor

REQUEST, RESPONSE, FAULT, BIND, BIND_ACK, BIND_NAK = 0, 2, 3, 11, 12, 13
ALTER_CONTEXT, ALTER_CONTEXT_RESPONSE, AUTH3, SHUTDOWN, CO_CANCEL, ORPHANED = 14, 15, 16, 17, 18, 19
FIRST, LAST, HEADER_SIGN, MULTIPLEX, DID_NOT_EXECUTE, OBJECT = 1, 2, 4, 0x10, 0x20, 0x80
NDR = uuid.UUID("8a885d04-1ceb-11c9-9fe8-08002b104860").bytes_le + struct.pack("<I", 2)
FEATURES = uuid.UUID("6cb71c2c-9812-4540-0000-000000000000").bytes_le[:8]

# The size that Windows offers.
MAX_FRAGMENT = 5840
# A request longer than this ends the connection: the longest one that EMSMDB knows is 0x40000 and its headers.
MAX_STUB = 1 << 20
# Calls of one connection that are not complete or not answered yet.
MAX_CALLS = 64

ACCESS_DENIED, BAD_STUB, CALL_FAILED = 5, 0x6F7, 0x6BE
UNKNOWN_OPNUM, UNKNOWN_INTERFACE, CONTEXT_MISMATCH = 0x1C010002, 0x1C010003, 0x1C00001A


class AssociationGroups:
    """Connections of one client belong together: context handles live until the last of them closes."""

    def __init__(self):
        self.numbers = itertools.count(0x1000)
        self.members = {}
        self.lock = threading.Lock()
        self.run_down = []

    def join(self, wanted):
        """The group that a bind asks for, or a new one."""
        with self.lock:
            group = wanted if wanted in self.members else next(self.numbers)
            self.members[group] = self.members.get(group, 0) + 1
            return group

    def leave(self, group):
        with self.lock:
            self.members[group] -= 1
            if self.members[group]:
                return
            del self.members[group]
        for function in self.run_down:
            function(group)


groups = AssociationGroups()


class RpcFault(Exception):
    """The call fails with this status."""

    def __init__(self, status):
        super().__init__(hex(status))
        self.status = status


class Call:
    """A request that is being answered."""

    def __init__(self, connection, call_id, context_id, security):
        self.connection = connection
        self.call_id = call_id
        self.context_id = context_id
        self.security = security

    @property
    def user(self):
        """The user who is authenticated, or None."""
        return self.security.acceptor.user if self.security else None

    def answer(self, stub):
        self.connection.respond(self, stub)


class SecurityState:
    """A security context of a connection."""

    def __init__(self, kind, level, context_id, acceptor):
        self.kind = kind
        self.level = level
        self.context_id = context_id
        self.acceptor = acceptor

    @property
    def protects(self):
        return self.level >= PACKET

    @property
    def is_private(self):
        return self.level == PRIVACY


class Connection:
    """One TCP connection; `run` serves it until the peer closes."""

    def __init__(self, sock, interfaces, credentials, log):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.input = sock.makefile("rb", 1 << 18)
        self.interfaces = interfaces
        self.credentials = credentials
        self.log = log
        self.group = None
        self.contexts = {}
        self.securities = {}
        self.partial = {}
        self.max_send = 1432
        self.lock = threading.Lock()

    def run(self):
        try:
            while self.read_pdu():
                pass
        except (SecurityError, ProtocolError, struct.error) as error:
            self.log(f"connection ended: {error}")
        except OSError:
            pass
        finally:
            self.input.close()
            self.sock.close()
            if self.group is not None:
                groups.leave(self.group)

    def read_pdu(self):
        header = self.input.read(16)
        if len(header) < 16:
            return False
        major, minor, kind, flags, representation, length, auth_length, call_id = struct.unpack("<4BIHHI", header)
        if major != 5 or minor > 1 or representation & 0xFF != 0x10 or not 16 <= length <= MAX_FRAGMENT:
            raise ProtocolError(f"no PDU: {header.hex()}")
        pdu = header + self.input.read(length - 16)
        if len(pdu) < length:
            return False
        trailer_at = length - auth_length - 8 if auth_length else length
        if trailer_at < 16:
            raise ProtocolError("the security trailer is longer than the PDU")
        if kind == REQUEST:
            self.take_request(pdu, flags, call_id, auth_length, trailer_at)
        elif kind in (BIND, ALTER_CONTEXT):
            self.take_bind(pdu, kind, flags, call_id, auth_length, trailer_at)
        elif kind == AUTH3:
            self.take_token(pdu, auth_length, trailer_at)
        elif kind == ORPHANED:
            self.partial.pop(call_id, None)
        elif kind != CO_CANCEL:
            raise ProtocolError(f"PDU type {kind}")
        return True

    def take_token(self, pdu, auth_length, trailer_at):
        """The security state and the answer to the token in a PDU, or None and no bytes."""
        if not auth_length:
            return None, b""
        kind, level, _, _, context_id = struct.unpack_from("<4BI", pdu, trailer_at)
        state = self.securities.get(context_id)
        if state is None:
            if kind == NTLM:
                acceptor = NtlmAcceptor(self.credentials.accounts, self.credentials.host)
            elif kind == NEGOTIATE and self.credentials.keytab:
                acceptor = KerberosAcceptor(self.credentials.keytab)
            else:
                raise SecurityError(f"authentication type {kind}")
            state = self.securities[context_id] = SecurityState(kind, level, context_id, acceptor)
        if state.acceptor.session is not None:
            return state, b""
        return state, state.acceptor.accept(pdu[trailer_at + 8 :])

    def take_bind(self, pdu, kind, flags, call_id, auth_length, trailer_at):
        max_send, max_receive, group, count = struct.unpack_from("<HHIB", pdu, 16)
        at, results = 28, b""
        for _ in range(count):
            if at + 24 > trailer_at:
                raise ProtocolError("a bind ends within its contexts")
            context_id, syntaxes = struct.unpack_from("<HB", pdu, at)
            abstract = pdu[at + 4 : at + 24]
            offered = [pdu[at + 24 + 20 * i : at + 44 + 20 * i] for i in range(syntaxes)]
            at += 24 + 20 * syntaxes
            results += self.bind_context(context_id, abstract, offered)
        if kind == BIND:
            self.max_send = max(1432, min(max_receive, MAX_FRAGMENT))
            if self.group is None:
                self.group = groups.join(group)
        try:
            state, token = self.take_token(pdu, auth_length, trailer_at)
        except SecurityError as error:
            self.log(f"bind refused: {error}")
            self.send_pdu(BIND_NAK, FIRST | LAST, call_id, struct.pack("<HB", 8, 0))
            raise
        address = f"{self.sock.getsockname()[1]}\0".encode() if kind == BIND else b""
        body = struct.pack("<HHIH", self.max_send, min(max_send, MAX_FRAGMENT), self.group or 0, len(address))
        body += address
        body += bytes(-(len(body) + 16) % 4)
        body += struct.pack("<I", count) + results
        answer = BIND_ACK if kind == BIND else ALTER_CONTEXT_RESPONSE
        tail = b""
        if token:
            tail = struct.pack("<4BI", state.kind, state.level, 0, 0, state.context_id)
        self.send_pdu(answer, FIRST | LAST | flags & (MULTIPLEX | HEADER_SIGN), call_id, body, tail, token)

    def bind_context(self, context_id, abstract, offered):
        """A result: accepted, rejected by the provider, or the features of a bind-time negotiation."""
        for syntax in offered:
            if syntax[:8] == FEATURES:
                return struct.pack("<HH20s", 3, 0, bytes(20))
        if abstract not in self.interfaces:
            return struct.pack("<HH20s", 2, 1, bytes(20))
        if NDR not in offered:
            return struct.pack("<HH20s", 2, 2, bytes(20))
        self.contexts[context_id] = self.interfaces[abstract]
        return struct.pack("<HH20s", 0, 0, NDR)

    def take_request(self, pdu, flags, call_id, auth_length, trailer_at):
        _, context_id, opnum = struct.unpack_from("<IHH", pdu, 16)
        body_at = 40 if flags & OBJECT else 24
        state = None
        if auth_length:
            kind, level, padding, _, security_id = struct.unpack_from("<4BI", pdu, trailer_at)
            state = self.securities.get(security_id)
            if state is None or state.acceptor.session is None or (kind, level) != (state.kind, state.level):
                raise SecurityError("a request with a security context that is not established")
            body = pdu[body_at:trailer_at]
            if state.protects:
                body = state.acceptor.session.unseal(
                    pdu[:body_at], body, pdu[trailer_at : trailer_at + 8], pdu[trailer_at + 8 :], state.is_private
                )
            if padding > len(body):
                raise ProtocolError("more padding than body")
            body = body[: len(body) - padding]
        else:
            body = pdu[body_at:]
            state = next(iter(self.securities.values()), None)
            if state is not None and state.protects:
                raise SecurityError("a request without a signature in a protected session")
        if flags & FIRST:
            if len(self.partial) >= MAX_CALLS or call_id in self.partial:
                raise ProtocolError(f"call {call_id} begins twice, or {MAX_CALLS} calls are not complete")
            if flags & LAST:
                return self.dispatch(call_id, context_id, opnum, body, state)
            self.partial[call_id] = (context_id, opnum, [body])
            return None
        if call_id not in self.partial:
            raise ProtocolError(f"call {call_id} continues and never began")
        context_id, opnum, pieces = self.partial[call_id]
        pieces.append(body)
        if len(pieces) * MAX_FRAGMENT > 2 * MAX_STUB:
            raise ProtocolError("a request is too long")
        if flags & LAST:
            del self.partial[call_id]
            return self.dispatch(call_id, context_id, opnum, b"".join(pieces), state)
        return None

    def dispatch(self, call_id, context_id, opnum, stub, security):
        call = Call(self, call_id, context_id, security)
        interface = self.contexts.get(context_id)
        try:
            if interface is None:
                raise RpcFault(UNKNOWN_INTERFACE)
            if security is not None and self.credentials.end_with_ticket and security.acceptor.has_expired():
                raise RpcFault(ACCESS_DENIED)
            answer = interface(call, opnum, stub)
        except RpcFault as fault:
            self.fault(call, fault.status)
        except (ValueError, LookupError, struct.error) as error:
            # Of the readers of stubs; the client is told so, and may go on.
            self.log(f"bad stub data for operation {opnum}: {error!r}")
            self.fault(call, BAD_STUB)
        else:
            if answer is not None:
                self.respond(call, answer)

    def respond(self, call, stub):
        """Sends an answer in fragments, all in one piece."""
        state = call.security if call.security and call.security.protects else None
        session = state.acceptor.session if state else None
        room = self.max_send - 24
        signature = 0
        if session:
            lengths = getattr(session, "signature_bytes", None)
            signature = lengths[state.is_private] if lengths else session.SIGNATURE_BYTES
            room = (room - 8 - signature) // 16 * 16
        pieces, at, total = [], 0, len(stub)
        with self.lock:
            while True:
                body = stub[at : at + room]
                flags = (FIRST if at == 0 else 0) | (LAST if at + room >= total else 0)
                padding = -len(body) % 16 if session else 0
                length = 24 + len(body) + padding + (8 + signature if session else 0)
                header = struct.pack(
                    "<4BIHHIIHBB", 5, 0, RESPONSE, flags, 0x10, length, signature, call.call_id, total - at,
                    call.context_id, 0, 0,
                )
                if session:
                    trailer = struct.pack("<4BI", state.kind, state.level, padding, 0, state.context_id)
                    body, value = session.seal(header, body + bytes(padding), trailer, state.is_private)
                    pieces += (header, body, trailer, value)
                else:
                    pieces += (header, body)
                at += room
                if at >= total:
                    break
            self.sock.sendall(b"".join(pieces))

    def fault(self, call, status):
        state = call.security if call.security and call.security.protects else None
        body = struct.pack("<IHBBII", 0x20, call.context_id, 0, 0, status, 0)
        with self.lock:
            if state is None:
                self.send_locked(FAULT, FIRST | LAST, call.call_id, body)
                return
            session = state.acceptor.session
            lengths = getattr(session, "signature_bytes", None)
            signature = lengths[state.is_private] if lengths else session.SIGNATURE_BYTES
            stub = body[8:]
            length = 24 + len(stub) + 8 + 8 + signature
            header = struct.pack("<4BIHHI", 5, 0, FAULT, FIRST | LAST, 0x10, length, signature, call.call_id) + body[:8]
            trailer = struct.pack("<4BI", state.kind, state.level, 8, 0, state.context_id)
            sealed, value = session.seal(header, stub + bytes(8), trailer, state.is_private)
            self.sock.sendall(header + sealed + trailer + value)

    def send_pdu(self, kind, flags, call_id, body, trailer=b"", token=b""):
        with self.lock:
            self.send_locked(kind, flags, call_id, body, trailer, token)

    def send_locked(self, kind, flags, call_id, body, trailer=b"", token=b""):
        length = 16 + len(body) + len(trailer) + len(token)
        header = struct.pack("<4BIHHI", 5, 0, kind, flags, 0x10, length, len(token), call_id)
        self.sock.sendall(header + body + trailer + token)


class ProtocolError(Exception):
    """The peer breaks the protocol; the connection ends."""


def listen(address, port):
    """A listening socket; port 0 takes any."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    if address == "::":
        # Clients come by IPv4 and by IPv6.
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(64)
    return sock


def serve(sock, interfaces, credentials, log):
    """Serves every connection of a listening socket in a thread of its own."""

    def accept():
        while True:
            try:
                peer, _ = sock.accept()
            except OSError:
                return
            connection = Connection(peer, interfaces, credentials, log)
            threading.Thread(target=connection.run, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
