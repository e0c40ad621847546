"""Fast-transfer streams ([MS-OXCFXICS]): contents synchronisation, copies of a message, and their reception.

A stream is a list of pieces. A piece that may not be split (markers, tags, values of fixed size, lengths) stays in
one buffer; the bytes of a long value may be split anywhere (§2.2.4.1).
"""

import struct

import properties as p
import store

ERROR, PARTIAL, NO_ROOM, DONE = 0, 1, 2, 3

START_MESSAGE, END_MESSAGE, START_RECIPIENT, END_RECIPIENT = 0x400C0003, 0x400D0003, 0x40030003, 0x40040003
NEW_ATTACH, END_ATTACH, CHANGE, CHANGE_MESSAGE = 0x40000003, 0x400E0003, 0x40120003, 0x40150003
STATE_BEGIN, STATE_END, SYNC_END = 0x403A0003, 0x403B0003, 0x40140003
ID_SET_GIVEN, CHANGES_SEEN, CHANGES_SEEN_ASSOCIATED, CHANGES_READ = 0x40170003, 0x67960102, 0x67DA0102, 0x67D20102
MARKERS = {START_MESSAGE, END_MESSAGE, START_RECIPIENT, END_RECIPIENT, NEW_ATTACH, END_ATTACH}
# A state longer than this is refused.
MAX_STATE = 1 << 20


def marker(tag):
    return (struct.pack("<I", tag), False)


def id_set(counters):
    """A set of counters of the one replica: ranges only ([MS-OXCFXICS] §2.2.2.4 and §2.2.2.6)."""
    if not counters:
        return b""
    ranges = []
    for counter in sorted(counters):
        if ranges and ranges[-1][1] + 1 == counter:
            ranges[-1][1] = counter
        else:
            ranges.append([counter, counter])
    commands = b"".join(b"\x52" + low.to_bytes(6, "big") + high.to_bytes(6, "big") for low, high in ranges)
    return store.REPLICA_GUID + commands + b"\0"


def parse_id_set(data):
    """Ranges of counters; sets with other commands than ranges give none."""
    ranges, at = [], 16
    while at < len(data) and data[at] == 0x52:
        ranges.append((int.from_bytes(data[at + 1 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 13], "big")))
        at += 13
    return ranges


class TransferSource:
    """A stream that is read once, from the start to the end."""

    def __init__(self):
        self.pieces = None
        self.at = 0
        self.offset = 0

    def build(self):
        raise NotImplementedError

    def read(self, room):
        """Data of at most `room` bytes, the status, and the step of how many."""
        if self.pieces is None:
            self.pieces = self.build()
        parts, size = [], 0
        while self.at < len(self.pieces):
            data, may_split = self.pieces[self.at]
            left = len(data) - self.offset
            if left <= room - size:
                parts.append(data[self.offset :])
                size += left
                self.at, self.offset = self.at + 1, 0
                continue
            if may_split and room > size:
                parts.append(data[self.offset : self.offset + room - size])
                self.offset += room - size
            break
        steps = min(len(self.pieces), 0xFFFF)
        step = self.at * steps // max(1, len(self.pieces))
        if self.at == len(self.pieces):
            return b"".join(parts), DONE, steps, steps
        return b"".join(parts), PARTIAL if parts else NO_ROOM, step, steps


class ContentsSource(TransferSource):
    """Changes of a folder's messages that the uploaded state does not have."""

    def __init__(self, folder, is_unicode):
        super().__init__()
        self.folder = folder
        self.is_unicode = is_unicode
        self.state = {}
        self.uploading = None

    def begin_state(self, tag, size):
        if size > MAX_STATE:
            raise ValueError("a state of more than a megabyte")
        self.uploading = (tag, bytearray())

    def continue_state(self, data):
        if self.uploading is None or len(self.uploading[1]) + len(data) > MAX_STATE:
            raise ValueError("a piece of state without a beginning")
        self.uploading[1].extend(data)

    def end_state(self):
        if self.uploading is None:
            raise ValueError("the end of a state without a beginning")
        tag, data = self.uploading
        self.state[p.same_id(tag)] = parse_id_set(bytes(data))
        self.uploading = None

    def build(self):
        seen = self.state.get(p.same_id(CHANGES_SEEN), [])
        pieces = []
        for message in self.folder.messages.values():
            if not any(low <= message.change <= high for low, high in seen):
                pieces += self.change(message)
        pieces.append(marker(STATE_BEGIN))
        given = id_set(store.counter_of(each) for each in self.folder.messages)
        changes = id_set(each.change for each in self.folder.messages.values())
        for tag, value in (
            (ID_SET_GIVEN, given), (CHANGES_SEEN, changes), (CHANGES_SEEN_ASSOCIATED, b""), (CHANGES_READ, changes),
        ):
            pieces += [(struct.pack("<II", tag, len(value)), False), (value, True)]
        pieces += [marker(STATE_END), marker(SYNC_END)]
        return pieces

    def change(self, message):
        values = message.properties()
        pieces = [marker(CHANGE)]
        for tag in (p.SOURCE_KEY, p.MODIFICATION_TIME, p.CHANGE_KEY, p.PREDECESSORS, p.ASSOCIATED, p.MESSAGE_ID,
                    p.MESSAGE_SIZE, p.CHANGE_NUMBER):
            pieces += p.encode_transfer(tag, values[p.same_id(tag)])
        pieces.append(marker(CHANGE_MESSAGE))
        return pieces + content(message, HEADER)


HEADER = {p.same_id(tag) for tag in (
    p.SOURCE_KEY, p.MODIFICATION_TIME, p.CHANGE_KEY, p.PREDECESSORS, p.ASSOCIATED, p.MESSAGE_ID, p.MESSAGE_SIZE,
    p.CHANGE_NUMBER, p.FOLDER_ID, p.ATTACH_DATA, p.ATTACH_SIZE,
)}


def property_pieces(values, excluded):
    from rops import TAGS

    pieces = []
    for number in sorted(values):
        if number in TAGS and number not in excluded:
            pieces += p.encode_transfer(TAGS[number], values[number])
    return pieces


def content(message, excluded):
    """Properties, recipients and attachments of a message."""
    pieces = property_pieces(message.properties(), excluded)
    for kind, name, mail in message.recipients:
        pieces.append(marker(START_RECIPIENT))
        for tag, value in ((p.RECIPIENT_TYPE, kind), (p.DISPLAY_NAME, name), (p.ADDRESS_TYPE, "SMTP"),
                           (p.EMAIL_ADDRESS, mail)):
            pieces += p.encode_transfer(tag, value)
        pieces.append(marker(END_RECIPIENT))
    for attachment in message.attachments.values():
        pieces.append(marker(NEW_ATTACH))
        pieces += p.encode_transfer(p.ATTACH_NUMBER, attachment.number)
        number = p.same_id(p.ATTACH_NUMBER)
        pieces += property_pieces(attachment.properties(), HEADER | {number})
        pieces += [(struct.pack("<II", p.ATTACH_DATA, len(attachment.data)), False), (attachment.data, True)]
        pieces.append(marker(END_ATTACH))
    return pieces


class CopySource(TransferSource):
    """A copy of one open message or attachment."""

    def __init__(self, thing, excluded):
        super().__init__()
        self.thing = thing
        self.excluded = {p.same_id(tag) for tag in excluded}

    def build(self):
        message = getattr(self.thing, "message", None)
        if message is not None:
            return content(message, HEADER | self.excluded)
        attachment = self.thing.attachment
        pieces = property_pieces(attachment.properties(), HEADER | self.excluded)
        return pieces + [(struct.pack("<II", p.ATTACH_DATA, len(attachment.data)), False), (attachment.data, True)]


class StreamParser:
    """Splits a fast-transfer stream into markers and property values, however it is cut into buffers.

    Calls `on_marker(tag)`, `on_value(tag, value)` and, for binary values, `on_piece(tag, length, bytes)`.
    """

    def __init__(self, handler):
        self.handler = handler
        self.rest = b""
        self.long = None

    def write(self, data):
        data = self.rest + data if self.rest else data
        at = 0
        while at < len(data):
            if self.long:
                at = self.continue_long(data, at)
                continue
            used = self.element(data, at)
            if not used:
                break
            at += used
        self.rest = data[at:]

    def is_complete(self):
        return not self.rest and not self.long

    def element(self, data, at):
        """The size of the element at `at`, or 0 if it is not complete."""
        left = len(data) - at
        if left < 4:
            return 0
        (tag,) = struct.unpack_from("<I", data, at)
        kind = tag & 0xFFFF
        if tag != ID_SET_GIVEN and 0x4000 <= tag >> 16 <= 0x407F and kind == p.INT32:
            self.handler.on_marker(tag)
            return 4
        if kind == p.BOOLEAN:
            if left < 6:
                return 0
            self.handler.on_value(tag, data[at + 4] != 0)
            return 6
        if kind in p.FIXED and tag != ID_SET_GIVEN:
            size = 4 + struct.calcsize(p.FIXED[kind])
            if left < size:
                return 0
            self.handler.on_value(tag, struct.unpack_from(p.FIXED[kind], data, at + 4)[0])
            return size
        if kind not in (p.STRING, p.STRING8, p.BINARY) and tag != ID_SET_GIVEN:
            raise ValueError(f"a property of type {kind:#x} in a fast transfer")
        if left < 8:
            return 0
        (length,) = struct.unpack_from("<I", data, at + 4)
        self.long = [tag, length, length]
        if length == 0:
            self.finish(tag, b"")
        return 8

    def finish(self, tag, data):
        self.long = None
        self.handler.on_piece(tag, 0, data)

    def continue_long(self, data, at):
        tag, length, left = self.long
        piece = data[at : at + left]
        self.long[2] -= len(piece)
        self.handler.on_piece(tag, length, piece)
        if self.long[2] == 0:
            self.long = None
            self.handler.on_piece(tag, 0, b"")
        return at + len(piece)


class TransferDestination:
    """A message or attachment that a fast-transfer stream fills."""

    def __init__(self, thing, remember):
        self.thing = thing
        self.remember = remember
        self.parser = StreamParser(self)
        self.attachment = None
        self.recipient = None
        self.collected = bytearray()

    def write(self, data):
        self.parser.write(data)

    def on_marker(self, tag):
        message = getattr(self.thing, "message", None)
        if tag == NEW_ATTACH and message is not None:
            self.attachment = store.Attachment(message.next_attachment)
            message.next_attachment += 1
        elif tag == END_ATTACH and self.attachment is not None:
            message.attachments[self.attachment.number] = self.attachment
            self.attachment = None
        elif tag == START_RECIPIENT and message is not None:
            self.recipient = {}
        elif tag == END_RECIPIENT and self.recipient is not None:
            get = self.recipient.get
            message.recipients.append((
                get(p.same_id(p.RECIPIENT_TYPE), 1), get(p.same_id(p.DISPLAY_NAME), ""),
                get(p.same_id(p.EMAIL_ADDRESS), ""),
            ))
            self.recipient = None
        else:
            raise ValueError(f"the marker {tag:#x} does not belong here")

    def on_value(self, tag, value):
        number = p.same_id(tag)
        if self.recipient is not None:
            self.recipient[number] = value
        elif self.attachment is not None:
            if number != p.same_id(p.ATTACH_NUMBER):
                self.attachment.values[number] = value
        elif number == p.same_id(p.ATTACH_DATA) and hasattr(self.thing, "attachment"):
            self.thing.attachment.data = value
        else:
            self.thing.values()[number] = value
        self.remember(tag)

    def on_piece(self, tag, length, data):
        if length:
            self.collected += data
            return
        collected, self.collected = self.collected, bytearray()
        kind = tag & 0xFFFF
        if self.attachment is not None and p.same_id(tag) == p.same_id(p.ATTACH_DATA):
            self.attachment.data = collected
            return
        value = bytes(collected)
        if kind == p.STRING:
            value = value.decode("utf-16-le", "replace").split("\0")[0]
        elif kind == p.STRING8:
            value = value.decode("cp1252", "replace").split("\0")[0]
        self.on_value(tag, value)
