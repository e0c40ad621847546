"""A session by MAPI over HTTP ([MS-OXCMAPIHTTP]), as Outlook 2013 and later have it."""

import socket
import ssl
import struct
import uuid

import answers
import buffers
import emsmdb
import session as sessions

MEDIA_TYPE = "application/mapi-http"


class HttpError(Exception):
    """The server refuses a request, or the answer cannot be right."""


class HttpTransport:
    """One connection. Cookies and the number of a request belong to the session."""

    def __init__(self, server, options, jar, identity):
        port = options.http_port
        self.sock = socket.create_connection((server, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = f"[{server}]:{port}" if ":" in server else f"{server}:{port}"
        if options.tls_authority:
            tls = ssl.create_default_context(cafile=options.tls_authority)
            tls.set_alpn_protocols(["http/1.1"])
            self.sock = tls.wrap_socket(self.sock, server_hostname=options.tls_name)
            self.host = options.tls_name
        self.file = self.sock.makefile("rb", 1 << 18)
        self.jar = jar
        self.identity = identity

    def invoke(self, kind, body):
        """A request, and the response body of its answer."""
        self.send(kind, body)
        return self.receive()

    def send(self, kind, body):
        self.identity[1] += 1
        self.sent = f"{{{self.identity[0]}}}:{self.identity[1]}"
        lines = [
            "POST /mapi/emsmdb/?MailboxId=reader@lab.test HTTP/1.1", f"Host: {self.host}", f"Content-Type: {MEDIA_TYPE}",
            "User-Agent: Microsoft Office/15.0 (Lab)", f"X-RequestType: {kind}", f"X-RequestId: {self.sent}",
            f"X-ClientInfo: {{{self.identity[0]}}}:1", "X-ClientApplication: Outlook/15.0.4420.1017",
        ]
        if self.jar:
            lines.append("Cookie: " + "; ".join(f"{name}={value}" for name, value in self.jar.items()))
        lines.append(f"Content-Length: {len(body)}")
        self.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise HttpError("the server closed the connection")
        return line[:-2]

    def receive(self):
        status = self.line()
        fields = {}
        while line := self.line():
            name, _, value = line.decode().partition(": ")
            if name.lower() == "set-cookie":
                key, _, cookie = value.partition(";")[0].partition("=")
                self.jar[key] = cookie
            fields[name.lower()] = value
        body = self.body(fields)
        code = fields.get("x-responsecode")
        if not status.startswith(b"HTTP/1.1 200 ") or code != "0":
            raise HttpError(f"{status.decode()}, X-ResponseCode {code}")
        if fields.get("x-requestid") != self.sent:
            raise HttpError(f"the answer is to the request {fields.get('x-requestid')}")
        at = 0
        is_done = False
        while True:
            end = body.index(b"\r\n", at)
            line, at = body[at:end], end + 2
            if not line:
                break
            if not is_done and line not in (b"PROCESSING", b"PENDING", b"DONE"):
                raise HttpError(f"a line {line!r:.40}")
            is_done = is_done or line == b"DONE"
        return body[at:]

    def body(self, fields):
        if "content-length" in fields:
            return self.exactly(int(fields["content-length"]))
        pieces = []
        while size := int(self.line(), 16):
            pieces.append(self.exactly(size))
            self.line()
        self.line()
        return b"".join(pieces)

    def exactly(self, size):
        data = self.file.read(size)
        if len(data) != size:
            raise HttpError("the server closed the connection")
        return data

    def close(self):
        self.file.close()
        self.sock.close()


class HttpMailSession(sessions.MailSession):
    """Log-on, ROPs and log-off in the requests of HTTP."""

    def ask_directory(self):
        """Outlook finds its mailbox by Autodiscover, which the lab does not have."""

    def connect(self):
        self.jar, self.identity = {}, [str(uuid.uuid4()).upper(), 0]
        self.rpc = self.open_connection()
        body = sessions.USER_DN + b"\0" + struct.pack("<5I", 0, 1252, 0x409, 0x409, 0)
        answer = self.timed("Connect", self.rpc.invoke, "Connect", body)
        status, result = struct.unpack_from("<II", answer)
        if status or result:
            raise answers.AnswerError(f"the session is refused with {status:#x}, {result:#x}")

    def open_connection(self):
        return HttpTransport(self.dialer.server, self.options, self.jar, self.identity)

    def connect_notifications(self):
        self.waiting = self.open_connection()

    def wait(self):
        """NotificationWait in a connection of its own; returns EventPending."""
        answer = self.timed("NotificationWait", self.waiting.invoke, "NotificationWait", bytes(8))
        status, result, pending, _ = struct.unpack("<4I", answer)
        if status or result:
            raise answers.AnswerError(f"NotificationWait returns {status:#x}, {result:#x}")
        return pending

    def log_off(self):
        if self.rpc is None:
            return
        self.timed("Disconnect", self.rpc.invoke, "Disconnect", bytes(4))
        self.rpc.close()

    def call_packed(self, payloads):
        may_compress = not self.flags & buffers.NO_COMPRESSION
        last = len(payloads) - 1
        data = b"".join(
            buffers.pack_extended(each, buffers.LAST if number == last else 0, may_compress, self.may_obfuscate)
            for number, each in enumerate(payloads)
        )
        request = struct.pack("<HH", sessions.SESSION_NUMBER, self.recorder.calls & 0xFFFF)
        auxiliary = emsmdb.auxiliary_block(emsmdb.PERF_REQUEST, request, self.may_obfuscate)
        body = struct.pack("<II", self.flags, len(data)) + data
        body += struct.pack("<II", self.room, len(auxiliary)) + auxiliary
        answer = self.rpc.invoke("Execute", body)
        status, result, _, size = struct.unpack_from("<4I", answer)
        (auxiliary_size,) = struct.unpack_from("<I", answer, 16 + size)
        if status or result or len(answer) != 20 + size + auxiliary_size:
            raise answers.AnswerError(f"Execute returns {status:#x}, {result:#x}")
        return buffers.unpack_extended(answer[16 : 16 + size]), len(data), size
