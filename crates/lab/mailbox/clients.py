"""Outlook's calls to a mailbox, one action per process.

    clients.py outlook-xp save-attachment --server 10.20.0.2 --account account.json --protection ntlm-privacy
    clients.py outlook-2003 send-attachment --server 10.20.0.2 --bytes 10485760 --exchange-optimisation on
    clients.py random --server 10.20.0.2 --seed 7 --client outlook-xp

Prints one JSON line. `seconds` runs from the first request of the action's own step (the first RopReadStream, the
first RopWriteStream, the first RopQueryRows, ...) to its last answer: for `send-attachment` that of
RopSaveChangesMessage. `steps` has the calls by step, in the order of the first one.

account: {"user": "reader", "password": "...", "domain": "LAB"}; for Kerberos also "realm", "kdc" and "host".
"""

import argparse
import hashlib
import json
import struct
import sys
import time

import answers
import http_client
import properties as p
import random_calls
import rpc_client
import session as sessions
import store
import transfer
from answers import request

# One RopReadStream of Outlook asks for as much as its buffer takes; the rest of the buffer is for headers.
XP_READ, SMALL_READ = 0x7F00, 0x7F00
XP_WRITE, WRITE = 0x7E00, 0x7E00
# Rows that Outlook asks for at once.
XP_ROWS, ROWS = 50, 0x0FFF
# At least so many calls before a limit of time ends a transfer.
MIN_CALLS = 20

LIST_COLUMNS = (
    p.MESSAGE_ID, p.SUBJECT, p.SENDER_NAME, p.DELIVERY_TIME, p.MESSAGE_FLAGS, p.IMPORTANCE, p.MESSAGE_SIZE,
    p.HAS_ATTACH,
)
ATTACHMENT_COLUMNS = (p.ATTACH_NUMBER, p.ATTACH_NAME, p.ATTACH_LONG_NAME, p.ATTACH_SIZE, p.ATTACH_METHOD)
MESSAGE_PROPERTIES = (p.SUBJECT, p.SENDER_NAME, p.SENDER_EMAIL, p.DISPLAY_TO, p.DELIVERY_TIME, p.BODY, p.HAS_ATTACH)
NO = sessions.NO_HANDLE


class Outlook:
    """The actions of both Outlooks. Handles are kept by name and put into each call's table."""

    def __init__(self, session, options):
        self.session = session
        self.options = options
        self.is_xp = session.is_xp
        self.logon_handle = NO
        self.folders = ()

    def execute(self, *arguments, **more):
        return self.session.execute(*arguments, **more)

    def log_on(self):
        """Directory, session, logon, receive folder, notifications."""
        session = self.session
        if not self.options.skip_directory:
            session.ask_directory()
        session.connect()
        logon = self.execute("RopLogon", [answers.logon(sessions.USER_DN)], [NO])[0]
        self.folders = logon["folders"]
        self.logon_handle = session.handles[0]
        columns = (p.DISPLAY_NAME, p.MAILBOX_OWNER, p.STORE_SUPPORT_MASK)
        found = self.execute(
            "RopGetReceiveFolder",
            [request(0x27, "B", 0) + b"IPM.Note\0", answers.get_properties(0, columns)],
            [self.logon_handle],
            [columns],
        )
        self.inbox_id = found[0]["folder"]
        self.execute(
            "RopRegisterNotification",
            [request(0x29, "BBHBQQ", 0, 1, 0x1E, 0, self.inbox_id, 0)],
            [self.logon_handle, NO],
        )
        if not self.is_xp and self.options.notifications:
            session.connect_notifications()

    def open_folder(self, name):
        """The handle and the identifier of a folder."""
        if name == "Inbox":
            identifier = self.inbox_id
        else:
            identifier = self.find_folder(name)
        self.execute("RopOpenFolder", [request(0x02, "BBQB", 0, 1, identifier, 0)], [self.logon_handle, NO])
        return self.session.handles[1], identifier

    def find_folder(self, name):
        columns = (p.FOLDER_ID, p.DISPLAY_NAME)
        found = self.execute(
            "RopGetHierarchyTable",
            [
                request(0x02, "BBQB", 0, 1, self.folders[0], 0),
                request(0x04, "BBB", 1, 2, 4),
                answers.set_columns(2, columns),
                request(0x15, "BBBH", 2, 0, 1, 100),
            ],
            [self.logon_handle, NO, NO],
            [columns],
        )
        handles = self.session.handles
        rows = [row for each in found if each.number == 0x15 for row in each["rows"]]
        self.release(handles[2], handles[1])
        for identifier, label in rows:
            if label == name:
                return identifier & 0xFFFFFFFFFFFFFFFF
        raise LookupError(f"there is no folder {name}")

    def release(self, *handles):
        """RopRelease goes ahead of the next call's ROPs, as Outlook sends it."""
        self.session.released += handles

    def open_table(self, folder, step="RopGetContentsTable"):
        """A table of a folder's messages, newest first, and its count of rows."""
        found = self.execute(
            step,
            [
                request(0x05, "BBB", 0, 1, 0),
                answers.set_columns(1, LIST_COLUMNS),
                request(0x13, "BBHHHIB", 1, 0, 1, 0, 0, p.DELIVERY_TIME, 1),
            ],
            [folder, NO],
        )
        return self.session.handles[1], found[0]["count"]

    def query_rows(self, table, count):
        """All rows of a table."""
        rows = []
        while len(rows) < count:
            found = self.execute(
                "RopQueryRows",
                [request(0x15, "BBBH", 0, 0, 1, XP_ROWS if self.is_xp else ROWS)],
                [table],
                [LIST_COLUMNS],
            )
            new = [row for each in found for row in each["rows"]]
            if not new:
                break
            rows += new
        return rows

    def list(self):
        self.log_on()
        folder, _ = self.open_folder(self.options.folder)
        table, count = self.open_table(folder)
        rows = self.query_rows(table, count)
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        return {
            "messages": len(rows),
            "bytes": self.session.recorder.steps["RopQueryRows"]["received"] if rows else 0,
            "sha256": digest,
            "is_complete": len(rows) == count,
        }, ("RopOpenFolder", "RopQueryRows")

    def find_message(self, folder, subject):
        """The identifier of the message with this subject."""
        table, count = self.open_table(folder)
        rows = self.query_rows(table, count)
        self.release(table)
        for row in rows:
            if row[1] == subject:
                return row[0] & 0xFFFFFFFFFFFFFFFF
        raise LookupError(f"there is no message {subject!r}")

    def open_message(self, subject):
        """The handles of a message and of its attachment table, and the rows of the latter."""
        folder, folder_id = self.open_folder(self.options.folder)
        identifier = self.find_message(folder, subject)
        opening = request(0x03, "BBHQBQ", 0, 1, 0x0FFF, folder_id, 0, identifier)
        if self.is_xp:
            self.execute("RopOpenMessage", [opening], [self.logon_handle, NO])
            message = self.session.handles[1]
            found = self.execute(
                "RopGetPropertiesSpecific", [answers.get_properties(0, MESSAGE_PROPERTIES)], [message],
                [MESSAGE_PROPERTIES],
            )
        else:
            found = self.execute(
                "RopOpenMessage", [opening, answers.get_properties(1, MESSAGE_PROPERTIES)], [self.logon_handle, NO],
                [MESSAGE_PROPERTIES],
            )
            message = self.session.handles[1]
        values = found[-1]["values"]
        opening = request(0x21, "BBB", 0, 1, 0)
        reading = [answers.set_columns(1, ATTACHMENT_COLUMNS), request(0x15, "BBBH", 1, 0, 1, 50)]
        if self.is_xp:
            self.execute("RopGetAttachmentTable", [opening], [message, NO])
            table = self.session.handles[1]
            found = self.execute("RopQueryRows attachments", reading, [message, table], [ATTACHMENT_COLUMNS])
        else:
            found = self.execute(
                "RopQueryRows attachments", [opening, *reading], [message, NO], [ATTACHMENT_COLUMNS]
            )
            table = self.session.handles[1]
        return message, table, found[-1]["rows"], values

    def open(self):
        self.log_on()
        message, table, rows, values = self.open_message(self.options.subject)
        self.release(table)
        return {
            "attachments": [{"name": row[2], "bytes": row[3]} for row in rows],
            "bytes": self.session.recorder.received_between("RopOpenMessage", "RopQueryRows attachments"),
            "sha256": hashlib.sha256(repr((values, rows)).encode()).hexdigest(),
        }, ("RopOpenMessage", "RopQueryRows attachments")

    def save_attachment(self):
        self.log_on()
        message, table, rows, _ = self.open_message(self.options.subject)
        self.release(table)
        if not rows:
            raise LookupError("the message has no attachment")
        self.execute(
            "RopOpenAttachment",
            [
                request(0x22, "BBBI", 0, 1, 0, rows[0][0]),
                answers.get_properties(1, ATTACHMENT_COLUMNS),
            ],
            [message, NO],
            [ATTACHMENT_COLUMNS],
        )
        attachment = self.session.handles[1]
        size = self.execute("RopOpenStream", [request(0x2B, "BBIB", 0, 1, p.ATTACH_DATA, 0)], [attachment, NO])[0]["size"]
        stream = self.session.handles[1]
        pieces, got = self.read_stream(stream, size)
        self.release(stream, attachment, message)
        if self.options.save:
            with open(self.options.save, "wb") as file:
                file.writelines(pieces)
        return self.digest(pieces, got, size), ("RopReadStream", "RopReadStream")

    def read_stream(self, stream, size):
        """Serial RopReadStream until the stream ends."""
        if self.is_xp:
            ask = request(0x2C, "BH", 0, XP_READ)
        elif self.session.is_optimised:
            # The sentinel hands over as much as the answer takes.
            ask = request(0x2C, "BHI", 0, 0xBABE, self.session.room)
        else:
            ask = request(0x2C, "BH", 0, SMALL_READ)
        pieces, got = [], 0
        began, calls = time.monotonic(), 0
        while got < size:
            found = self.execute("RopReadStream", [ask], [stream])
            new = [bytes(each["data"]) for each in found]
            count = sum(map(len, new))
            if not count:
                break
            pieces += new
            got += count
            calls += 1
            if self.is_over(began, calls):
                break
        return pieces, got

    def is_over(self, began, calls):
        if calls == MIN_CALLS:
            time.sleep(self.options.pause)
        limit = self.options.limit_seconds
        return limit is not None and calls >= MIN_CALLS and time.monotonic() - began > limit

    @staticmethod
    def digest(pieces, got, size):
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        return {"bytes": got, "sha256": digest.hexdigest(), "is_complete": got == size}

    def content(self):
        if self.options.file:
            with open(self.options.file, "rb") as file:
                return file.read()
        return store.generated(self.options.seed, self.options.bytes)

    def send_attachment(self):
        data = self.content()
        self.log_on()
        outbox = self.folders[5]
        self.execute(
            "RopCreateMessage", [request(0x06, "BBHQB", 0, 1, 0x0FFF, outbox, 0)], [self.logon_handle, NO]
        )
        message = self.session.handles[1]
        self.execute(
            "RopSetProperties",
            [
                answers.set_properties(0, [
                    (p.MESSAGE_CLASS, "IPM.Note"), (p.SUBJECT, self.options.subject), (p.BODY, "Attached."),
                    (p.IMPORTANCE, 1), (p.MESSAGE_FLAGS, 9),
                ]),
                answers.recipients(0, [("Reader", "reader@lab.test")]),
            ],
            [message],
        )
        self.execute("RopCreateAttachment", [request(0x23, "BB", 0, 1)], [message, NO])
        attachment = self.session.handles[1]
        self.execute(
            "RopSetProperties",
            [answers.set_properties(0, [
                (p.ATTACH_METHOD, 1), (p.ATTACH_LONG_NAME, "sent.bin"), (p.ATTACH_NAME, "sent.bin"),
                (p.RENDERING_POSITION, -1),
            ])],
            [attachment],
        )
        if self.options.upload == "transfer":
            sent, first = self.put_buffers(attachment, data), "RopFastTransferDestinationPutBuffer"
        else:
            sent, first = self.write_stream(attachment, data), "RopWriteStream"
        is_complete = sent == len(data)
        result = {"bytes": sent, "sha256": hashlib.sha256(memoryview(data)[:sent]).hexdigest()}
        result["is_complete"] = is_complete
        if not is_complete:
            # The time was up: nothing is saved.
            return result, (first, first)
        self.execute("RopSaveChangesAttachment", [request(0x25, "BBB", 0, 1, 2)], [attachment, attachment])
        self.execute("RopSaveChangesMessage", [request(0x0C, "BBB", 0, 1, 0x0A)], [message, message])
        self.execute("RopSubmitMessage", [request(0x32, "BB", 0, 0)], [message])
        submit = self.session.recorder.steps["RopSubmitMessage"]
        result["submit_seconds"] = round(submit["seconds"], 6)
        return result, (first, "RopSaveChangesMessage")

    def write_stream(self, attachment, data):
        self.execute(
            "RopOpenStream",
            [request(0x2B, "BBIB", 0, 1, p.ATTACH_DATA, 2), request(0x2F, "BQ", 1, len(data))],
            [attachment, NO],
        )
        stream = self.session.handles[1]
        if self.options.upload == "packed":
            sent = self.write_packed(stream, data)
        else:
            sent = self.write_serial(stream, data)
        if sent == len(data):
            self.execute("RopCommitStream", [request(0x5D, "B", 0)], [stream])
        self.release(stream)
        return sent

    def write_serial(self, stream, data):
        step = XP_WRITE if self.is_xp else WRITE
        began, at, calls = time.monotonic(), 0, 0
        while at < len(data):
            piece = data[at : at + step]
            written = self.execute("RopWriteStream", [request(0x2D, "BH", 0, len(piece)) + piece], [stream])[0]["written"]
            if written != len(piece):
                raise answers.AnswerError(f"{written} bytes of {len(piece)} written")
            at += written
            calls += 1
            if self.is_over(began, calls):
                break
        return at

    def write_packed(self, stream, data):
        """RopWriteStreamExtended, several extended buffers in a request ([MS-OXCRPC] §3.1.4.2.1.2.1)."""
        session = self.session
        at, calls, started = 0, 0, time.monotonic()
        while at < len(data):
            payloads, size = [], 0
            while at < len(data) and len(payloads) < 7:
                piece = data[at : at + WRITE]
                rops = request(0xA3, "BH", 0, len(piece)) + piece
                payloads.append(sessions.buffers.pack_rops(rops, [stream]))
                at += len(piece)
                size += len(piece)
            began = time.monotonic()
            parts, sent, received = session.call_packed(payloads)
            session.recorder.record("RopWriteStream", began, time.monotonic(), sent, received)
            for part in parts:
                found = answers.AnswerReader(sessions.buffers.unpack_rops(part)[0], []).read()
                for answer in found.answers:
                    answer.check()
            calls += 1
            if self.is_over(started, calls):
                break
        return at

    def put_buffers(self, attachment, data):
        """The attachment's data as a fast-transfer stream."""
        self.execute(
            "RopFastTransferDestinationConfigure", [request(0x53, "BBBB", 0, 1, 1, 0)], [attachment, NO]
        )
        destination = self.session.handles[1]
        at, began, calls = -8, time.monotonic(), 0
        head = struct.pack("<II", p.ATTACH_DATA, len(data))
        while at < len(data):
            piece = head + data[: WRITE - 8] if at < 0 else data[at : at + WRITE]
            self.execute(
                "RopFastTransferDestinationPutBuffer",
                [request(0x54, "BH", 0, len(piece)) + piece],
                [destination],
            )
            at += len(piece)
            calls += 1
            if self.is_over(began, calls):
                break
        self.release(destination)
        return at

    def synchronise(self):
        self.log_on()
        folder, _ = self.open_folder(self.options.folder)
        requests = [request(0x70, "BBBBHHIH", 0, 1, 1, 1, 0x0520, 0, 0, 0)]
        for tag in (
            transfer.ID_SET_GIVEN, transfer.CHANGES_SEEN, transfer.CHANGES_SEEN_ASSOCIATED, transfer.CHANGES_READ,
        ):
            requests += [request(0x75, "BII", 1, tag, 0), request(0x77, "B", 1)]
        self.execute("RopSynchronizationConfigure", requests, [folder, NO])
        source = self.session.handles[1]
        ask = request(0x4E, "BH", 0, 0x7B00) if self.is_xp else request(0x4E, "BHH", 0, 0xBABE, 0x7BC0)
        collected = Collector()
        parser, digest, got = transfer.StreamParser(collected), hashlib.sha256(), 0
        while True:
            found = self.execute("RopFastTransferSourceGetBuffer", [ask], [source])
            for each in found:
                data = bytes(each["data"])
                digest.update(data)
                got += len(data)
                parser.write(data)
            if found[-1]["status"] == transfer.DONE:
                break
            if found[-1]["status"] != transfer.PARTIAL:
                raise answers.AnswerError(f"transfer status {found[-1]['status']}")
        self.release(source)
        return {
            "bytes": got,
            "sha256": digest.hexdigest(),
            "messages": collected.messages,
            "is_complete": parser.is_complete() and collected.has_state,
        }, ("RopSynchronizationConfigure", "RopFastTransferSourceGetBuffer")

    def log_on_only(self):
        self.log_on()
        return {"bytes": 0, "sha256": hashlib.sha256(repr(self.folders).encode()).hexdigest()}, None


class Collector:
    """Counts the messages of a synchronisation."""

    def __init__(self):
        self.messages = 0
        self.has_state = False

    def on_marker(self, tag):
        self.messages += tag == transfer.CHANGE_MESSAGE
        self.has_state = self.has_state or tag == transfer.STATE_END

    def on_value(self, tag, value):
        pass

    def on_piece(self, tag, length, data):
        pass


ACTIONS = {
    "log-on": Outlook.log_on_only, "list": Outlook.list, "open": Outlook.open,
    "save-attachment": Outlook.save_attachment, "send-attachment": Outlook.send_attachment,
    "synchronise": Outlook.synchronise,
}


def seeds(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)


def parse(arguments):
    parser = argparse.ArgumentParser(description="Outlook's calls to a mailbox.")
    parser.add_argument("client", choices=("outlook-xp", "outlook-2003", "outlook-2013", "random"))
    parser.add_argument("action", nargs="?", choices=sorted(ACTIONS))
    parser.add_argument("--server", required=True)
    parser.add_argument("--account", help="a JSON file; not needed without protection")
    parser.add_argument("--protection", choices=sorted(rpc_client.LEVELS), default="none")
    parser.add_argument("--exchange-optimisation", choices=("on", "off"), default="on")
    parser.add_argument("--room", type=lambda text: int(text, 0), help="bytes for an answer, instead of Outlook's")
    parser.add_argument("--upload", choices=("write", "packed", "transfer"), default="write")
    parser.add_argument("--endpoint-mapper-port", type=int, default=135)
    parser.add_argument("--mailbox-port", type=int, default=0, help="instead of the endpoint mapper's")
    parser.add_argument("--http-port", type=int, help="the port of MAPI over HTTP, for outlook-2013")
    parser.add_argument("--tls-authority", help="the certificate of an authority: outlook-2013 uses TLS and trusts it")
    parser.add_argument("--tls-name", default="mail.lab.test", help="the server's name in TLS")
    parser.add_argument("--directory-port", type=int, default=0, help="instead of the endpoint mapper's")
    parser.add_argument("--skip-directory", action="store_true", help="does not ask RFR and NSPI")
    parser.add_argument("--notifications", action="store_true", help="EcDoAsyncConnectEx as well")
    parser.add_argument("--ticket-age", type=float, default=0, help="waits so many seconds before it uses its ticket")
    parser.add_argument("--pause", type=float, default=0, help="waits so many seconds in the middle of a transfer")
    parser.add_argument("--folder", help="Inbox, or Sync for synchronise")
    parser.add_argument("--subject", default="attachment")
    parser.add_argument("--bytes", type=int, default=10485760)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", help="content to send, instead of generated bytes")
    parser.add_argument("--save", help="a file for the attachment of save-attachment")
    parser.add_argument("--limit-seconds", type=float, help="ends a transfer after so long, and 20 calls")
    parser.add_argument("--stock-rpc", action="store_true", help="impacket's own sending and receiving")
    parser.add_argument("--calls", type=int, default=60, help="calls of a random client")
    parser.add_argument("--client", dest="as_client", choices=("outlook-xp", "outlook-2003", "outlook-2013"), default="outlook-2003")
    parser.add_argument("--place", type=int, default=0, help="the folder of a random client: 0, 1, ...")
    parser.add_argument("--seeds", type=seeds, help="FIRST-LAST: a random client for each of them, one by one")
    parser.add_argument("--transcript", help="a file that gets every answer's hash")
    options = parser.parse_args(arguments)
    if options.client != "random" and options.action is None:
        parser.error("an action is needed")
    if "outlook-2013" in (options.client, options.as_client):
        if not options.http_port:
            parser.error("outlook-2013 needs --http-port")
        if options.protection != "none":
            parser.error("outlook-2013 has no --protection")
    if options.protection != "none" and not options.account:
        parser.error("--protection needs --account")
    if options.folder is None:
        options.folder = "Sync" if options.action == "synchronise" else "Inbox"
    return options


def run(options):
    """Carries out the action of parsed options; returns what is printed."""
    account = {}
    if options.account:
        with open(options.account) as file:
            account = json.load(file)
    dialer = rpc_client.Dialer(options.server, account, options.protection, options.stock_rpc)
    client = options.as_client if options.client == "random" else options.client
    by_http = client == "outlook-2013"
    session_class = http_client.HttpMailSession if by_http else sessions.MailSession
    session = session_class(dialer, client, options)
    outlook = Outlook(session, options)
    if dialer.is_kerberos:
        # A user of Windows has tickets since the log-on.
        dialer.service_ticket()
        time.sleep(options.ticket_age)
    start = time.monotonic()
    if options.client == "random":
        result = random_calls.run(outlook, options)
        steps = None
    else:
        result, steps = ACTIONS[options.action](outlook)
    total = time.monotonic() - start
    session.log_off()
    recorder = session.recorder
    return {
        "client": client,
        "action": options.action or "random",
        "protection": options.protection,
        "exchange_optimisation": session.is_optimised,
        **result,
        "seconds": round(recorder.between(*steps) if steps else total, 6),
        "total_seconds": round(total, 6),
        "calls": recorder.calls_between(*steps) if steps else recorder.calls,
        "all_calls": recorder.calls,
        "notifications": len(session.notifications),
        "steps": recorder.report(start),
    }


def main():
    options = parse(sys.argv[1:])
    for seed in options.seeds or [options.seed]:
        options.seed = seed
        print(json.dumps(run(options)), flush=True)


if __name__ == "__main__":
    main()
