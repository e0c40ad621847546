"""A client that sends random valid ROPs, and notes a hash of each answer.

The calls depend on the seed, on the place and on nothing else, so that two runs against two fresh folders can be
compared: direct and through the nodes. Each run makes a folder of its own, whose identifiers the server derives from
its name. Answers are hashed without their notifications, which may arrive with one answer or with the next; the
notifications are hashed on their own, in their order. A handle is hashed as the count of handles that the client got
before it, because the nodes may open objects that the client never asks for.
"""

import hashlib
import itertools
import random
import struct

import answers
import properties as p
import session as sessions
from answers import request

NO = sessions.NO_HANDLE
TABLE_COLUMNS = (
    p.MESSAGE_ID, p.SUBJECT, p.SENDER_NAME, p.MESSAGE_FLAGS, p.MESSAGE_SIZE, p.HAS_ATTACH, p.IMPORTANCE, p.BODY,
)
ATTACHMENT_COLUMNS = (p.ATTACH_NUMBER, p.ATTACH_LONG_NAME, p.ATTACH_SIZE, p.ATTACH_METHOD, p.COMMENT)
PROPERTIES = (p.SUBJECT, p.BODY, p.IMPORTANCE, p.HAS_ATTACH, p.MESSAGE_SIZE, p.DISPLAY_TO, p.COMMENT, p.SENDER_NAME)
# Handles that a client keeps open.
MAX_OPEN = 24


class Handle:
    """An open server object."""

    def __init__(self, kind, value, **facts):
        self.kind = kind
        self.value = value
        self.facts = facts


class RandomClient:
    """The state of a run: what is open, and what the folder holds."""

    def __init__(self, outlook, options):
        self.outlook = outlook
        self.session = outlook.session
        self.random = random.Random(f"{options.seed} {options.place}")
        self.options = options
        self.handles = []
        self.messages = []
        self.hashes = []
        # Handles by their order; a handle that is not new keeps its number.
        self.numbers = {NO: NO}
        self.errors = {}
        self.rops = 0

    def run(self):
        self.outlook.log_on()
        name = f"random-{self.session.client}-{self.options.seed}-{self.options.place}".encode()
        found = self.session.execute(
            "RopCreateFolder",
            [
                request(0x02, "BBQB", 0, 1, self.outlook.inbox_id, 0),
                request(0x1C, "BBBBBB", 1, 2, 1, 0, 1, 0) + name + b"\0\0",
            ],
            [self.outlook.logon_handle, NO, NO],
        )
        self.folder_id = found[1]["folder"]
        self.logon = Handle("logon", self.outlook.logon_handle)
        self.folder = Handle("folder", self.session.handles[2])
        self.session.execute(
            "RopRegisterNotification",
            [request(0x29, "BBHBQQ", 0, 1, 0x1C, 0, self.folder_id, 0)],
            [self.outlook.logon_handle, NO],
        )
        for _ in range(3):
            self.make_message()
        for _ in range(self.options.calls):
            self.call()
        # A last call fetches the notifications that wait.
        self.session.execute("RopGetStoreState", [request(0x7B, "B", 0)], [self.outlook.logon_handle])
        digest = hashlib.sha256()
        for each in self.session.notifications:
            digest.update(each)
        if self.options.transcript:
            with open(self.options.transcript, "w") as file:
                file.writelines(f"{each}\n" for each in self.hashes)
        return {
            "seed": self.options.seed,
            "place": self.options.place,
            "rops": self.rops,
            "errors": self.errors,
            "bytes": sum(each["received"] for each in self.session.recorder.steps.values()),
            "sha256": hashlib.sha256("\n".join(self.hashes).encode()).hexdigest(),
            "notifications_sha256": digest.hexdigest(),
        }

    def exchange(self, step, requests, handles, columns=()):
        """A call whose answers are hashed."""
        found = self.session.execute(step, requests, handles, columns, may_fail=True)
        digest = hashlib.sha256()
        for each in found:
            digest.update(each.raw)
            if each.code:
                self.errors[f"{each.code:#x}"] = self.errors.get(f"{each.code:#x}", 0) + 1
        for asked, answered in itertools.zip_longest(handles, self.session.handles):
            if answered is not None and answered != NO and answered != asked:
                self.numbers[answered] = len(self.numbers)
            digest.update(struct.pack("<I", self.numbers.get(answered, 0) if answered is not None else 0))
        names = " ".join(f"{each[0]:02x}" for each in requests)
        self.hashes.append(f"{len(self.hashes)} {names}: {digest.hexdigest()}")
        self.rops += len(requests)
        return found

    def blob(self, most):
        """Bytes, compressible or not."""
        size = self.random.randrange(most + 1)
        if self.random.random() < 0.5:
            return self.random.randbytes(size)
        word = self.random.randbytes(self.random.randrange(1, 20))
        return (word * (size // len(word) + 1))[:size]

    def make_message(self):
        """A message with an attachment, saved."""
        rng = self.random
        self.exchange(
            "make",
            [
                request(0x06, "BBHQB", 0, 1, 0x0FFF, self.folder_id, 0),
                answers.set_properties(1, [
                    (p.SUBJECT, f"subject {rng.randrange(1000)}"), (p.BODY, "text " * rng.randrange(400)),
                    (p.IMPORTANCE, rng.randrange(3)),
                ]),
                answers.recipients(1, [("Reader", "reader@lab.test")]),
            ],
            [self.logon.value, NO],
        )
        message = self.session.handles[1]
        self.exchange("make", [
            request(0x23, "BB", 0, 1),
            answers.set_properties(1, [(p.ATTACH_LONG_NAME, "random.bin")]),
            request(0x2B, "BBIB", 1, 2, p.ATTACH_DATA, 2),
        ], [message, NO, NO])
        attachment, stream = self.session.handles[1:]
        for _ in range(rng.randrange(1, 6)):
            data = self.blob(30000)
            self.exchange("make", [request(0x2D, "BH", 0, len(data)) + data], [stream])
        found = self.exchange("make", [
            request(0x5D, "B", 2),
            request(0x25, "BBB", 1, 1, 2),
            request(0x0C, "BBB", 0, 0, 0x0A),
            request(0x01, "B", 2),
            request(0x01, "B", 1),
        ], [message, attachment, stream])
        self.messages.append(found[-1]["message"])
        self.handles.append(Handle("message", message, writes=True))

    def call(self):
        """One call with one to four ROPs."""
        table = Table()
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 4))):
            self.add_rop(table)
        found = self.exchange("random", table.requests, table.handles, table.columns)
        new = self.session.handles
        for index, kind, facts in table.opened:
            if index < len(new) and new[index] not in (0, NO):
                self.handles.append(Handle(kind, new[index], **facts))
        self.handles = [each for each in self.handles if each not in table.released]
        if found and found[-1].number == 0xFF:
            # Not every SetColumns was carried out.
            self.handles = [each for each in self.handles if each.kind != "table"]
        for answer in found:
            if answer.number == 0x0C and not answer.code and answer["message"] not in self.messages:
                self.messages.append(answer["message"])
        del self.handles[: max(0, len(self.handles) - MAX_OPEN)]

    def pick(self, *kinds):
        found = [each for each in self.handles if each.kind in kinds]
        return self.random.choice(found) if found else None

    def add_rop(self, table):
        rng = self.random
        choice = rng.random()
        if choice < 0.16 or not self.handles:
            return self.open_something(table)
        if choice < 0.20:
            return self.create_something(table)
        if choice < 0.23:
            thing = rng.choice(self.handles)
            index = table.index(thing)
            table.requests.append(request(0x01, "B", index))
            table.released.append(thing)
            return None
        if choice < 0.25:
            # A handle that was never opened.
            index = table.raw(0x7FFFFF00 + rng.randrange(16))
            return table.requests.append(request(0x2C, "BH", index, 100))
        thing = rng.choice(self.handles)
        return getattr(self, f"use_{thing.kind}")(table, thing, table.index(thing))

    def open_something(self, table):
        rng = self.random
        kind = rng.randrange(6)
        if kind == 0:
            folder = table.index(self.folder)
            table.open("table", columns=TABLE_COLUMNS, is_set=False)
            table.requests.append(request(0x05, "BBB", folder, table.last, 0))
        elif kind in (1, 2):
            logon = table.index(self.logon)
            mode = rng.randrange(2)
            identifier = rng.choice(self.messages) if rng.random() < 0.95 else 0x0100
            table.open("message", writes=mode == 1)
            table.requests.append(request(0x03, "BBHQBQ", logon, table.last, 0x0FFF, self.folder_id, mode, identifier))
        elif kind == 3 and (message := self.pick("message")):
            index = table.index(message)
            table.open("attachment", writes=message.facts["writes"])
            table.requests.append(request(0x22, "BBBI", index, table.last, message.facts["writes"], rng.randrange(2)))
        elif kind == 4 and (owner := self.pick("attachment", "message")):
            index = table.index(owner)
            mode = rng.randrange(2) if owner.facts["writes"] else 0
            tag = p.ATTACH_DATA if owner.kind == "attachment" else p.BODY
            table.open("stream", writes=mode == 1)
            table.requests.append(request(0x2B, "BBIB", index, table.last, tag, mode))
        elif message := self.pick("message"):
            index = table.index(message)
            if rng.random() < 0.5:
                table.open("table", columns=ATTACHMENT_COLUMNS, is_set=False)
                table.requests.append(request(0x21, "BBB", index, table.last, 0))
            else:
                table.open("source")
                table.requests.append(request(0x4D, "BBBIBH", index, table.last, 0, 0, 1, 0))

    def create_something(self, table):
        rng = self.random
        message = self.pick("message")
        if rng.random() < 0.3 or message is None:
            logon = table.index(self.logon)
            table.open("message", writes=True)
            table.requests.append(request(0x06, "BBHQB", logon, table.last, 0x0FFF, self.folder_id, 0))
        elif rng.random() < 0.5:
            index = table.index(message)
            table.open("attachment", writes=True)
            table.requests.append(request(0x23, "BB", index, table.last))
        else:
            folder = table.index(self.folder)
            table.open("source")
            table.requests.append(request(0x70, "BBBBHHIH", folder, table.last, 1, 1, 0x0520, 0, 0, 0))

    def use_table(self, table, thing, index):
        rng = self.random
        choice = rng.randrange(6)
        if choice == 0 or not thing.facts["is_set"]:
            columns = tuple(rng.sample(thing.facts["columns"], rng.randrange(1, 5)))
            thing.facts.update(current=columns, is_set=True)
            table.requests.append(answers.set_columns(index, columns))
        elif choice < 4:
            table.columns.append(thing.facts["current"])
            table.requests.append(request(0x15, "BBBH", index, rng.randrange(2), rng.random() < 0.8, rng.randrange(1, 9)))
        elif choice == 4:
            table.requests.append(request(0x18, "BBiB", index, rng.randrange(3), rng.randrange(-4, 5), 1))
        else:
            table.requests.append(request(0x17, "B", index))

    def use_message(self, table, thing, index):
        rng = self.random
        choice = rng.randrange(7)
        if choice < 3:
            columns = tuple(rng.sample(PROPERTIES, rng.randrange(1, 6)))
            table.columns.append(columns)
            table.requests.append(answers.get_properties(index, columns))
        elif choice == 3:
            table.requests.append(request(0x08, "BHH", index, 0, 1))
        elif choice == 4:
            table.requests.append(answers.set_properties(index, [
                (p.SUBJECT, f"changed {rng.randrange(1000)}"), (p.IMPORTANCE, rng.randrange(3)),
            ]))
        elif choice == 5:
            table.requests.append(request(0x0B, "BH", index, 1) + answers.tags((p.COMMENT,)))
        else:
            table.requests.append(request(0x0C, "BBB", index, index, 0x0A))

    def use_attachment(self, table, thing, index):
        rng = self.random
        if rng.random() < 0.6:
            columns = tuple(rng.sample(ATTACHMENT_COLUMNS, rng.randrange(1, 5)))
            table.columns.append(columns)
            table.requests.append(answers.get_properties(index, columns))
        else:
            table.requests.append(request(0x25, "BBB", index, index, 0x0A))

    def use_stream(self, table, thing, index):
        rng = self.random
        choice = rng.randrange(12)
        if choice < 6:
            if rng.random() < 0.2 and not self.session.is_xp:
                table.requests.append(request(0x2C, "BHI", index, 0xBABE, rng.randrange(1, 40000)))
            else:
                table.requests.append(request(0x2C, "BH", index, rng.choice((0, 1, 100, 4096, 8192, 0x6000, 0x7C00))))
        elif choice == 6:
            origin = rng.randrange(3)
            offset = rng.randrange(-200, 20000) if origin == 0 else rng.randrange(-5000, 3000)
            table.requests.append(request(0x2E, "BBq", index, origin, offset))
        elif choice == 7:
            table.requests.append(request(0x5E, "B", index))
        elif choice == 8:
            data = self.blob(6000)
            table.requests.append(request(0x2D, "BH", index, len(data)) + data)
        elif choice == 9:
            table.requests.append(request(0x2F, "BQ", index, rng.randrange(60000)))
        elif choice == 10:
            table.requests.append(request(0x5D, "B", index))
        else:
            table.open("stream", writes=thing.facts["writes"])
            table.requests.append(request(0x3B, "BB", index, table.last))

    def use_source(self, table, thing, index):
        table.requests.append(request(0x4E, "BH", index, self.random.choice((64, 1000, 8000, 0x7000))))


class Table:
    """The requests of one call, and their handle table."""

    def __init__(self):
        self.requests = []
        self.handles = []
        self.columns = []
        self.opened = []
        self.released = []
        self.last = 0

    def index(self, thing):
        return self.raw(thing.value)

    def raw(self, value):
        self.handles.append(value)
        return len(self.handles) - 1

    def open(self, kind, **facts):
        self.last = self.raw(NO)
        self.opened.append((self.last, kind, facts))


def run(outlook, options):
    return RandomClient(outlook, options).run()
