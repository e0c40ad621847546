"""MAPI over HTTP ([MS-OXCMAPIHTTP]), the server's side: Connect, Execute, Disconnect, NotificationWait and PING.

A session is named by the cookie MapiContext. Each answer renews the cookie MapiSequence, and a request that takes part
in a session must have the value of the last answer (NotificationWait need not). A request whose X-RequestId came before
is refused. There is no login. A port can have TLS.
"""

import socket
import struct
import threading
import uuid

import emsmdb
import rops

PATH = "/mapi/emsmdb"
MEDIA_TYPE = "application/mapi-http"
# X-ResponseCode ([MS-OXCMAPIHTTP] §2.2.3.3.3).
SUCCESS, INVALID_PATH, INVALID_HEADER, INVALID_REQUEST_TYPE = 0, 3, 4, 5
CONTEXT_NOT_FOUND, INVALID_BODY, MISSING_COOKIE, INVALID_SEQUENCE = 10, 12, 13, 15
# A client waits for the next PENDING no longer than this (X-PendingPeriod).
PENDING_SECONDS = 15
MAX_HEAD, MAX_BODY = 1 << 16, 1 << 20
META = b"DONE\r\nX-ElapsedTime: 1\r\nX-StartTime: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"


class Refusal(Exception):
    """The request fails with this X-ResponseCode."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class HttpSession:
    """The session behind a cookie."""

    def __init__(self, session):
        self.session = session
        self.sequence = 0
        self.lock = threading.Lock()


class WaitingCall:
    """The place where a notification ends a long poll."""

    def __init__(self):
        self.ended = threading.Event()
        self.flags = 0

    def answer(self, stub):
        (self.flags,) = struct.unpack_from("<I", stub)
        self.ended.set()


def read_head(file):
    """Method, path and fields of the next request; None at the end of the connection."""
    line = file.readline(MAX_HEAD)
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    fields = {}
    while True:
        line = file.readline(MAX_HEAD)
        if line in (b"\r\n", b""):
            return method, target, fields
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip()


def cookies(fields):
    pairs = (pair.partition("=") for pair in fields.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


class HttpService:
    """The requests of all connections."""

    def __init__(self, service):
        self.service = service
        self.mailbox = service.mailbox
        self.log = service.log
        self.sessions = {}
        self.identities = set()
        self.lock = threading.Lock()

    def connection(self, sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock, sock.makefile("rb", 1 << 18) as file:
            try:
                while True:
                    head = read_head(file)
                    if head is None:
                        return
                    length = int(head[2].get("content-length", 0))
                    if length > MAX_BODY:
                        raise ValueError(f"a body of {length} bytes")
                    self.request(sock, *head, file.read(length))
            except (OSError, ValueError) as error:
                self.log(f"HTTP: {error!r}")

    def request(self, sock, method, target, fields, body):
        kind = fields.get("x-requesttype", "")
        answer = HttpAnswer(sock, kind, fields.get("x-requestid", ""))
        try:
            if method != "POST" or not target.startswith(PATH):
                raise Refusal(INVALID_PATH)
            if fields.get("content-type") != MEDIA_TYPE or not fields.get("x-requestid"):
                raise Refusal(INVALID_HEADER)
            with self.lock:
                if answer.identity in self.identities:
                    raise Refusal(INVALID_HEADER)
                self.identities.add(answer.identity)
            function = {
                "Connect": self.connect, "Execute": self.execute, "Disconnect": self.disconnect,
                "NotificationWait": self.wait, "PING": self.ping,
            }.get(kind)
            if function is None:
                raise Refusal(INVALID_REQUEST_TYPE)
            function(answer, cookies(fields), body)
        except Refusal as refusal:
            self.log(f"HTTP: {kind} is refused with {refusal.code}")
            answer.refuse(refusal.code)
        except emsmdb.FORMAT_ERRORS as error:
            self.log(f"HTTP: {kind}: {error!r}")
            answer.refuse(INVALID_BODY)

    def find(self, jar, in_sequence=True):
        name = jar.get("MapiContext")
        if name is None:
            raise Refusal(MISSING_COOKIE)
        found = self.sessions.get(name)
        if found is None:
            raise Refusal(CONTEXT_NOT_FOUND)
        if in_sequence:
            with found.lock:
                if jar.get("MapiSequence") != str(found.sequence):
                    raise Refusal(INVALID_SEQUENCE)
                found.sequence += 1
        return found

    def connect(self, answer, jar, body):
        name, rest = body.split(b"\0", 1)
        _, _, _, _, size = struct.unpack_from("<5I", rest)
        if size != len(rest) - 20:
            raise Refusal(INVALID_BODY)
        if not name.lower().startswith(b"/o="):
            raise Refusal(INVALID_BODY)
        handle = self.service.new_handle()
        session = emsmdb.Session(handle, None, None, rops.RopProcessor(self.mailbox, self.log))
        self.service.sessions[handle] = session
        cookie = uuid.uuid4().hex
        self.sessions[cookie] = HttpSession(session)
        answer.cookies = {"MapiContext": cookie, "MapiSequence": "0"}
        auxiliary = emsmdb.auxiliary_out()
        answer.send(
            struct.pack("<5I", 0, 0, emsmdb.POLL_MS, emsmdb.RETRIES, emsmdb.RETRY_DELAY_MS)
            + b"/o=Lab/ou=First Administrative Group\0" + "Reader\0".encode("utf-16-le")
            + struct.pack("<I", len(auxiliary)) + auxiliary
        )

    def execute(self, answer, jar, body):
        found = self.find(jar)
        answer.cookies = {"MapiSequence": str(found.sequence)}
        flags, size = struct.unpack_from("<II", body)
        data = body[8 : 8 + size]
        room, auxiliary_size = struct.unpack_from("<II", body, 8 + size)
        if len(data) != size or len(body) != 16 + size + auxiliary_size or size > emsmdb.MAX_INPUT:
            raise Refusal(INVALID_BODY)
        session = found.session
        result, chain = 0, b""
        if room < 8:
            result = emsmdb.INVALID_PARAMETER
        else:
            with session.lock:
                try:
                    room = min(room, emsmdb.MAX_INPUT)
                    chain = self.service.run_extended(session.processor, data, flags, room)
                except emsmdb.FORMAT_ERRORS as error:
                    self.log(f"Execute: {error!r}")
                    result = emsmdb.RPC_FORMAT
        answer.send(struct.pack("<4I", 0, result, 0, len(chain)) + chain + bytes(4))

    def disconnect(self, answer, jar, body):
        found = self.find(jar)
        del self.sessions[jar["MapiContext"]]
        self.service.close_session(found.session.handle)
        answer.send(bytes(12))

    def wait(self, answer, jar, body):
        """Answers when there is a notification, or after five minutes, with PENDING in between."""
        session = self.find(jar, in_sequence=False).session
        call = WaitingCall()
        with self.mailbox.lock:
            if session.processor.notifications:
                call.flags = emsmdb.NOTIFICATION_PENDING
                call.ended.set()
            else:
                session.waiter = call
        answer.begin()
        for _ in range(emsmdb.WAIT_SECONDS // PENDING_SECONDS):
            if call.ended.wait(PENDING_SECONDS):
                break
            answer.piece(b"PENDING\r\n")
        else:
            session.waiter = None
        answer.piece(META + struct.pack("<4I", 0, 0, call.flags, 0))
        answer.end()

    def ping(self, answer, jar, body):
        answer.send(b"")


class HttpAnswer:
    """A response in chunks."""

    def __init__(self, sock, kind, identity):
        self.sock = sock
        self.kind = kind
        self.identity = identity
        self.cookies = {}

    def head(self, code):
        lines = [
            "HTTP/1.1 200 OK", "Cache-Control: private", "Transfer-Encoding: chunked", f"Content-Type: {MEDIA_TYPE}",
            f"X-RequestType: {self.kind}", f"X-RequestId: {self.identity}", f"X-ResponseCode: {code}",
            f"X-PendingPeriod: {PENDING_SECONDS * 1000}", "X-ServerApplication: Lab/1.0",
        ]
        lines += [f"Set-Cookie: {name}={value}; path={PATH}" for name, value in self.cookies.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def begin(self):
        self.sock.sendall(self.head(SUCCESS))
        self.piece(b"PROCESSING\r\n")

    def piece(self, data):
        self.sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self):
        self.sock.sendall(b"0\r\n\r\n")

    def send(self, body):
        """A whole answer: the first lines and the rest in two chunks."""
        first, rest = b"PROCESSING\r\n", META + body
        chunks = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(first), first, len(rest), rest)
        self.sock.sendall(self.head(SUCCESS) + chunks)

    def refuse(self, code):
        self.sock.sendall(self.head(code) + b"0\r\n\r\n")


def serve(sock, service, tls=None):
    """Serves connections in threads of their own, inside TLS if there is a context for it."""

    def begin(connection):
        if tls is not None:
            try:
                connection = tls.wrap_socket(connection, server_side=True)
            except OSError as error:
                service.log(f"HTTPS: {error!r}")
                return
        service.connection(connection)

    def accept():
        while True:
            connection, _ = sock.accept()
            threading.Thread(target=begin, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
