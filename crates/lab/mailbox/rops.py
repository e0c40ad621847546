"""The server's remote operations ([MS-OXCROPS]): every ROP that the clients use, and a correct refusal of the others.

`RopProcessor.execute` runs the ROPs of one buffer. A ROP that is not in the table of formats makes the buffer
unreadable (ecRpcFormat), as [MS-OXCROPS] §3.2.5.1 says; one that is in it and has no method here is answered with
ecNotSupported, and the buffer goes on.
"""

import struct

import properties as p
import store
import transfer

NULL_OBJECT, NOT_SUPPORTED, NOT_FOUND, ACCESS_DENIED = 0x4B9, 0x80040102, 0x8004010F, 0x80070005
INVALID_PARAMETER, RPC_FORMAT, SEEK_ERROR, STREAM_TOO_LARGE = 0x80070057, 0x4B6, 0x80030019, 0x80040305
WRITE_FAULT, STREAM_READ_ONLY, SUBMIT_NO_RECIPIENTS = 0x8003001D, 0x80030005, 0x4D8
NO_HANDLE = 0xFFFFFFFF
# A stream longer than this is refused: more than twice what OC-1 carries in 30 s.
MAX_STREAM = 1 << 29
# Handles of one session.
MAX_HANDLES = 4096
# Rows of strings are cut to this count of characters ([MS-OXCTABL] §2.2.1.1).
MAX_ROW_CHARACTERS = 255
# Notifications that wait for a session; older ones are dropped.
MAX_NOTIFICATIONS = 1024
BUFFER_TOO_SMALL, NOTIFY, PENDING = 0xFF, 0x2A, 0x6E
READ_STREAM, QUERY_ROWS, TRANSFER_GET = 0x2C, 0x15, 0x4E
CHAINED = (READ_STREAM, QUERY_ROWS, TRANSFER_GET)


class RopError(Exception):
    """The ROP is answered with this return value."""

    def __init__(self, code):
        super().__init__(hex(code))
        self.code = code


class RopFormatError(ValueError):
    """The buffer cannot be read (ecRpcFormat)."""


class Logon:
    """The logon object."""

    def __init__(self, mailbox):
        self.mailbox = mailbox

    def properties(self):
        return {
            p.same_id(p.DISPLAY_NAME): "Mailbox - Reader",
            p.same_id(p.MAILBOX_OWNER): "Reader",
            p.same_id(p.STORE_SUPPORT_MASK): 0x0003FFFD,
            p.same_id(p.MESSAGE_SIZE): 0,
        }


class FolderObject:
    """An open folder."""

    def __init__(self, folder):
        self.folder = folder

    def properties(self):
        return self.folder.properties()

    def values(self):
        return self.folder.values


class MessageObject:
    """An open message: a copy that SaveChangesMessage stores."""

    def __init__(self, message, may_write):
        self.message = message
        self.may_write = may_write

    def properties(self):
        return self.message.properties()

    def values(self):
        return self.message.values


class AttachmentObject:
    """An open attachment: a copy that SaveChangesAttachment puts into its message."""

    def __init__(self, owner, attachment, may_write):
        self.owner = owner
        self.attachment = attachment
        self.may_write = may_write

    def properties(self):
        return self.attachment.properties()

    def values(self):
        return self.attachment.values


class StreamObject:
    """An open stream with its position."""

    def __init__(self, owner, tag, data, may_write):
        self.owner = owner
        self.tag = tag
        self.data = data
        self.may_write = may_write
        self.position = 0

    def commit(self):
        """Puts what was written into the object the stream belongs to."""
        if not self.may_write:
            return
        if isinstance(self.owner, AttachmentObject) and p.same_id(self.tag) == p.same_id(p.ATTACH_DATA):
            self.owner.attachment.data = self.data
            return
        kind, data = self.tag & 0xFFFF, bytes(self.data)
        if kind == p.STRING:
            data = data.decode("utf-16-le", "replace").split("\0")[0]
        elif kind == p.STRING8:
            data = data.decode("cp1252", "replace").split("\0")[0]
        self.owner.values()[p.same_id(self.tag)] = data


class TableObject:
    """A table: rows as they were when it was opened."""

    def __init__(self, rows):
        self.rows = rows
        self.columns = None
        self.position = 0


class Subscription:
    """A registration for notifications."""

    def __init__(self, kinds, folder, message):
        self.kinds = kinds
        self.folder = folder
        self.message = message


class RopReader:
    """Fields of ROP requests."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def unpack(self, layout):
        size = struct.calcsize("<" + layout)
        if self.at + size > len(self.data):
            raise RopFormatError(f"a ROP ends early at {self.at}")
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += size
        return values

    def one(self, layout):
        return self.unpack(layout)[0]

    def raw(self, size):
        if self.at + size > len(self.data):
            raise RopFormatError(f"{size} bytes at {self.at}")
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece

    def text(self):
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise RopFormatError("a string without an end")
        piece = self.data[self.at : end]
        self.at = end + 1
        return bytes(piece)

    def tagged(self, count):
        values = []
        for _ in range(count):
            try:
                tag, value, self.at = p.decode_tagged(self.data, self.at)
            except ValueError as error:
                raise RopFormatError(str(error)) from None
            values.append((tag, value))
        return values


# ROP number: layout after RopId and LogonId, place of the handle index that the answer bears, method.
ROPS = {}


def rop(number, layout, answers=0):
    """Registers a method. A layout that ends with * hands the reader to the method for the rest."""

    def register(method):
        ROPS[number] = (layout.rstrip("*"), layout.endswith("*"), answers, method)
        return method

    return register


def refused(number, layout, answers=0):
    """Registers a ROP of a known format that this server does not have. `layout` may name counted parts: H: is a
    two-byte count of bytes, I: a four-byte one, T: a two-byte count of property tags, Q: one of identifiers, W: one of property numbers, Z a string."""

    def method(processor, *_):
        reader = processor.reader
        for part in tail:
            if part == "H:":
                reader.raw(reader.one("H"))
            elif part == "I:":
                reader.raw(reader.one("I"))
            elif part == "T:":
                reader.raw(4 * reader.one("H"))
            elif part == "Q:":
                reader.raw(8 * reader.one("H"))
            elif part == "W:":
                reader.raw(2 * reader.one("H"))
            elif part == "Z":
                reader.text()
            else:
                reader.unpack(part)
        raise RopError(NOT_SUPPORTED)

    head, *tail = layout.split()
    ROPS[number] = (head, False, answers, method)


class RopProcessor:
    """Runs ROP buffers for one session."""

    def __init__(self, mailbox, log):
        self.mailbox = mailbox
        self.log = log
        self.objects = {}
        self.next_handle = 1
        self.notifications = []
        self.on_notification = lambda: None
        self.reader = None
        self.handles = []
        self.room = 0
        self.again = None
        mailbox.listeners.append(self.notice)

    def close(self):
        if self.notice in self.mailbox.listeners:
            self.mailbox.listeners.remove(self.notice)
        self.objects.clear()

    def execute(self, request, handles, room):
        """The response ROPs and the handle table. `again` afterwards says how to continue the last ROP, if it may
        be chained and there is more."""
        self.reader = RopReader(request)
        self.handles = list(handles)
        self.again = None
        room -= 2 + 4 * len(handles)
        answers = bytearray()
        with self.mailbox.lock:
            while self.reader.at < len(request):
                start = self.reader.at
                self.room = room - len(answers)
                self.again = None
                answer = self.run_one()
                if len(answer) > self.room:
                    rest = request[start:]
                    answers += struct.pack("<BH", BUFFER_TOO_SMALL, min(len(answer), 0xFFFF)) + rest
                    self.again = None
                    break
                answers += answer
            self.append_notifications(answers, room)
        return bytes(answers), self.handles

    def continue_last(self, room):
        """The answer to the last ROP sent once more, for chaining."""
        number, index, repeat = self.again
        self.room = room - 2 - 4 * len(self.handles)
        self.again = None
        with self.mailbox.lock:
            body = repeat()
        if self.again:
            self.again = (number, index, self.again)
        return struct.pack("<BBI", number, index, 0) + body

    def run_one(self):
        number, _ = self.reader.unpack("BB")
        entry = ROPS.get(number)
        if entry is None:
            raise RopFormatError(f"ROP {number:#04x}")
        layout, takes_reader, answers, method = entry
        values = self.reader.unpack(layout)
        if takes_reader:
            values += (self.reader,)
        return self.answer(number, values, answers, method)

    def answer(self, number, values, answers, method):
        index = values[answers]
        try:
            body = method(self, *values)
        except RopError as error:
            return struct.pack("<BBI", number, index, error.code)
        if body is None:
            return b""
        if self.again:
            self.again = (number, index, self.again)
        return struct.pack("<BBI", number, index, 0) + body

    def get(self, index, *kinds):
        """The object behind a handle index."""
        if index >= len(self.handles):
            raise RopError(NULL_OBJECT)
        found = self.objects.get(self.handles[index])
        if found is None:
            raise RopError(NULL_OBJECT)
        if kinds and not isinstance(found, kinds):
            raise RopError(NOT_SUPPORTED)
        return found

    def put(self, index, thing):
        if index >= len(self.handles):
            raise RopError(INVALID_PARAMETER)
        if len(self.objects) >= MAX_HANDLES:
            raise RopError(0x3F0)
        self.objects[self.next_handle] = thing
        self.handles[index] = self.next_handle
        self.next_handle += 1

    def notice(self, event, folder, message):
        """Called for every change of the mailbox."""
        bit = {"created": 4, "deleted": 8, "modified": 0x10}[event]
        for handle, thing in self.objects.items():
            if not isinstance(thing, Subscription) or not thing.kinds & bit:
                continue
            if thing.folder not in (None, folder.identifier) or thing.message not in (None, 0, message):
                continue
            data = struct.pack("<HQQ", 0x8000 | bit, folder.identifier, message)
            if bit != 8:
                data += struct.pack("<H", 0)
            self.notifications.append(struct.pack("<BIB", NOTIFY, handle, 0) + data)
            del self.notifications[:-MAX_NOTIFICATIONS]
            self.on_notification()

    def append_notifications(self, answers, room):
        while self.notifications and len(answers) + len(self.notifications[0]) + 3 <= room:
            answers += self.notifications.pop(0)
        if self.notifications and len(answers) + 3 <= room:
            answers += struct.pack("<BH", PENDING, 0)

    # Logon, release, notifications.

    @rop(0xFE, "BBIIH*")
    def logon(self, index, flags, open_flags, state, size, reader):
        reader.raw(size)
        if not flags & 1:
            raise RopError(NOT_SUPPORTED)
        self.put(index, Logon(self.mailbox))
        folders = b"".join(struct.pack("<Q", each.identifier) for each in self.mailbox.special)
        time = struct.pack("<6BH", 0, 0, 12, 1, 1, 0, 2006)
        return (
            struct.pack("<B", flags) + folders + struct.pack("<B", 7) + store.MAILBOX_GUID + store.REPLICA
            + store.REPLICA_GUID + time + struct.pack("<QI", store.BEGIN, 0)
        )

    @rop(0x01, "B")
    def release(self, index):
        if index < len(self.handles):
            thing = self.objects.pop(self.handles[index], None)
            if isinstance(thing, StreamObject):
                thing.commit()
            self.handles[index] = NO_HANDLE
        return None

    @rop(0x29, "BBHB*", 1)
    def register_notification(self, index, output, kinds, whole, reader):
        folder, message = (None, None) if whole else reader.unpack("QQ")
        self.get(index)
        self.put(output, Subscription(kinds, folder, message))
        return b""

    # Folders and tables.

    @rop(0x02, "BBQB", 1)
    def open_folder(self, index, output, identifier, flags):
        self.get(index)
        folder = self.mailbox.folders.get(identifier)
        if folder is None:
            raise RopError(NOT_FOUND)
        self.put(output, FolderObject(folder))
        return b"\0\0"

    @rop(0x1C, "BBBBBB*", 1)
    def create_folder(self, index, output, kind, unicode, open_existing, reserved, reader):
        names = [reader.text().decode("cp1252") if not unicode else self.wide_text() for _ in range(2)]
        parent = self.get(index, FolderObject).folder
        folder = next((each for each in parent.children if each.name == names[0]), None)
        if folder is not None and not open_existing:
            raise RopError(0x80040604)
        exists = folder is not None
        folder = folder or self.mailbox.create_folder(names[0], parent)
        self.put(output, FolderObject(folder))
        return struct.pack("<QB", folder.identifier, exists) + (b"\0\0" if exists else b"")

    def wide_text(self):
        data = bytearray()
        while (pair := self.reader.raw(2)) != b"\0\0":
            data += pair
        return data.decode("utf-16-le", "replace")

    @rop(0x1E, "BBBH*")
    def delete_messages(self, index, is_async, notify, count, reader):
        identifiers = reader.unpack(f"{count}Q")
        folder = self.get(index, FolderObject).folder
        partial = 0
        for identifier in identifiers:
            if folder.messages.pop(identifier, None) is None:
                partial = 1
            else:
                folder.next_change += 1
                for listener in list(self.mailbox.listeners):
                    listener("deleted", folder, identifier)
        return struct.pack("<B", partial)

    @rop(0x27, "B*")
    def get_receive_folder(self, index, reader):
        reader.text()
        self.get(index, Logon)
        return struct.pack("<Q", self.mailbox.special[4].identifier) + b"IPM\0"

    @rop(0x04, "BBB", 1)
    def get_hierarchy_table(self, index, output, flags):
        folder = self.get(index, FolderObject).folder
        folders, rows = list(folder.children), []
        while folders:
            each = folders.pop(0)
            rows.append(each.properties())
            if flags & 4:
                folders[:0] = each.children
        self.put(output, TableObject(rows))
        return struct.pack("<I", len(rows))

    @rop(0x05, "BBB", 1)
    def get_contents_table(self, index, output, flags):
        folder = self.get(index, FolderObject).folder
        rows = [] if flags & 2 else [each.properties() for each in folder.messages.values()]
        self.put(output, TableObject(rows))
        return struct.pack("<I", len(rows))

    @rop(0x21, "BBB", 1)
    def get_attachment_table(self, index, output, flags):
        message = self.get(index, MessageObject).message
        self.put(output, TableObject([each.properties() for each in message.attachments.values()]))
        return b""

    @rop(0x12, "BBH*")
    def set_columns(self, index, flags, count, reader):
        columns = reader.unpack(f"{count}I")
        table = self.get(index, TableObject)
        if not columns:
            raise RopError(INVALID_PARAMETER)
        table.columns = columns
        return b"\0"

    @rop(0x13, "BBHHH*")
    def sort_table(self, index, flags, count, categories, expanded, reader):
        orders = [reader.unpack("IB") for _ in range(count)]
        table = self.get(index, TableObject)
        if categories:
            raise RopError(NOT_SUPPORTED)
        for tag, order in reversed(orders):
            key = p.same_id(tag)
            table.rows.sort(key=lambda row, key=key: sort_key(row.get(key)), reverse=order == 1)
        table.position = 0
        return b"\0"

    @rop(0x14, "BBH*")
    def restrict(self, index, flags, size, reader):
        reader.raw(size)
        self.get(index, TableObject)
        if size:
            raise RopError(NOT_SUPPORTED)
        return b"\0"

    @rop(0x15, "BBBH")
    def query_rows(self, index, flags, forward, count):
        return self.rows(self.get(index, TableObject), flags, forward, count)

    def rows(self, table, flags, forward, count):
        if table.columns is None:
            raise RopError(NULL_OBJECT)
        room = self.room - 9
        rows, size, at = [], 0, table.position
        step = 1 if forward else -1
        while len(rows) < count and 0 <= (at if forward else at - 1) < len(table.rows):
            row = p.encode_row(table.columns, short(table.rows[at if forward else at - 1]))
            if size + len(row) > room:
                break
            rows.append(row)
            size += len(row)
            at += step
        if not flags & 1:
            table.position = at
        origin = 0 if at == 0 else 2 if at >= len(table.rows) else 1
        if rows and forward and origin == 1 and not flags & 1:
            self.again = lambda: self.rows(table, flags, forward, count)
        return struct.pack("<BH", origin, len(rows)) + b"".join(rows)

    @rop(0x16, "B")
    def get_status(self, index):
        self.get(index, TableObject)
        return b"\0"

    @rop(0x17, "B")
    def query_position(self, index):
        table = self.get(index, TableObject)
        return struct.pack("<II", table.position, len(table.rows))

    @rop(0x18, "BBiB")
    def seek_row(self, index, origin, count, wants_moved):
        table = self.get(index, TableObject)
        if origin > 2:
            raise RopError(INVALID_PARAMETER)
        base = (0, table.position, len(table.rows))[origin]
        target = max(0, min(len(table.rows), base + count))
        table.position = target
        return struct.pack("<Bi", target != base + count, target - base)

    @rop(0x81, "B")
    def reset_table(self, index):
        table = self.get(index, TableObject)
        table.columns, table.position = None, 0
        return b""

    @rop(0x37, "B")
    def query_columns_all(self, index):
        table = self.get(index, TableObject)
        columns = table.columns or ()
        return struct.pack(f"<H{len(columns)}I", len(columns), *columns)

    # Properties.

    @rop(0x07, "BHHH*")
    def get_properties_specific(self, index, limit, unicode, count, reader):
        tags = reader.unpack(f"{count}I")
        thing = self.get_with_properties(index)
        return p.encode_row(tags, thing.properties(), min(limit or 0x1FFF, 0x1FFF))

    @rop(0x08, "BHH")
    def get_properties_all(self, index, limit, unicode):
        values = self.tagged_values(self.get_with_properties(index))
        kept = b""
        count = 0
        for tag, value in values:
            if tag & 0xFFFF in (p.STRING, p.STRING8, p.BINARY) and len(value) > min(limit or 0x1FFF, 0x1FFF):
                tag, value = tag & ~0xFFFF | p.ERROR, p.NOT_ENOUGH_MEMORY
            kept += p.encode_tagged(tag, value)
            count += 1
        return struct.pack("<H", count) + kept

    @rop(0x09, "B")
    def get_properties_list(self, index):
        tags = [tag for tag, _ in self.tagged_values(self.get_with_properties(index))]
        return struct.pack(f"<H{len(tags)}I", len(tags), *tags)

    @staticmethod
    def tagged_values(thing):
        values = thing.properties()
        return [(TAGS[number], values[number]) for number in sorted(values) if number in TAGS]

    def get_with_properties(self, index):
        return self.get(index, Logon, FolderObject, MessageObject, AttachmentObject)

    @rop(0x0A, "BHH*")
    def set_properties(self, index, size, count, reader):
        values = reader.tagged(count)
        thing = self.get(index, FolderObject, MessageObject, AttachmentObject)
        self.must_write(thing)
        for tag, value in values:
            remember(tag)
            if p.same_id(tag) == p.same_id(p.ATTACH_DATA) and isinstance(thing, AttachmentObject):
                thing.attachment.data = value
            elif p.same_id(tag) == p.same_id(p.DISPLAY_NAME) and isinstance(thing, FolderObject):
                thing.folder.name = value
            else:
                thing.values()[p.same_id(tag)] = value
        return b"\0\0"

    @rop(0x0B, "BH*")
    def delete_properties(self, index, count, reader):
        tags = reader.unpack(f"{count}I")
        thing = self.get(index, FolderObject, MessageObject, AttachmentObject)
        self.must_write(thing)
        for tag in tags:
            thing.values().pop(p.same_id(tag), None)
        return b"\0\0"

    @staticmethod
    def must_write(thing):
        if not getattr(thing, "may_write", True):
            raise RopError(ACCESS_DENIED)

    # Messages.

    @rop(0x03, "BBHQBQ", 1)
    def open_message(self, index, output, page, folder_id, mode, identifier):
        self.get(index, Logon, FolderObject)
        folder = self.mailbox.folders.get(folder_id)
        message = folder and folder.messages.get(identifier)
        if message is None:
            raise RopError(NOT_FOUND)
        self.put(output, MessageObject(message.copy(), mode & 3 != 0))
        subject = message.values.get(p.same_id(p.SUBJECT), "").encode("utf-16-le") + b"\0\0"
        rows = b"".join(recipient_row(*each) for each in message.recipients)
        return (
            b"\0" + b"\1" + b"\4" + subject + struct.pack("<HHB", len(message.recipients), 0, len(message.recipients))
            + rows
        )

    @rop(0x06, "BBHQB", 1)
    def create_message(self, index, output, page, folder_id, associated):
        self.get(index, Logon, FolderObject)
        folder = self.mailbox.folders.get(folder_id)
        if folder is None:
            raise RopError(NOT_FOUND)
        message = folder.new_message()
        message.is_associated = bool(associated)
        message.values[p.same_id(p.MESSAGE_CLASS)] = "IPM.Note"
        self.put(output, MessageObject(message, True))
        return b"\0"

    @rop(0x0D, "BI")
    def remove_all_recipients(self, index, reserved):
        thing = self.get(index, MessageObject)
        thing.message.recipients = []
        return b""

    @rop(0x0E, "BH*")
    def modify_recipients(self, index, columns, reader):
        tags = reader.unpack(f"{columns}I")
        recipients = []
        for _ in range(reader.one("H")):
            row, kind, size = reader.unpack("IBH")
            recipients.append((kind, *read_recipient(reader.raw(size), tags)))
        thing = self.get(index, MessageObject)
        self.must_write(thing)
        thing.message.recipients += recipients
        return b""

    @rop(0x0F, "BIH")
    def read_recipients(self, index, row, reserved):
        recipients = self.get(index, MessageObject).message.recipients[row : row + 255]
        if not recipients:
            raise RopError(NOT_FOUND)
        rows = b"".join(
            struct.pack("<IBHHH", row + i, kind, 0x4E4, 0, len(body)) + body
            for i, (kind, body) in enumerate((kind, recipient_body(name, mail)) for kind, name, mail in recipients)
        )
        return struct.pack("<B", len(recipients)) + rows

    @rop(0x11, "BBB")
    def set_read_flag(self, answer, index, flags):
        thing = self.get(index, MessageObject)
        old = thing.message.values.get(p.same_id(p.MESSAGE_FLAGS), 0)
        new = old & ~1 if flags & 4 else old | 1
        thing.message.values[p.same_id(p.MESSAGE_FLAGS)] = new
        stored = thing.message.folder.messages.get(thing.message.identifier)
        if stored:
            stored.values[p.same_id(p.MESSAGE_FLAGS)] = new
        return struct.pack("<B", new != old)

    @rop(0x0C, "BBB")
    def save_changes_message(self, answer, index, flags):
        thing = self.get(index, MessageObject)
        self.must_write(thing)
        self.mailbox.store(thing.message)
        self.mailbox.write_journal("save", thing.message)
        if not flags & 2:
            thing.may_write = flags & 4 != 0 or flags & 0xA != 0
        return struct.pack("<BQ", index, thing.message.identifier)

    @rop(0x32, "BB")
    def submit_message(self, index, flags):
        thing = self.get(index, MessageObject)
        if not thing.message.recipients:
            raise RopError(SUBMIT_NO_RECIPIENTS)
        self.mailbox.write_journal("submit", thing.message)
        self.mailbox.submit(thing.message)
        return b""

    # Attachments.

    @rop(0x22, "BBBI", 1)
    def open_attachment(self, index, output, flags, number):
        owner = self.get(index, MessageObject)
        attachment = owner.message.attachments.get(number)
        if attachment is None:
            raise RopError(NOT_FOUND)
        self.put(output, AttachmentObject(owner, attachment.copy(), flags & 3 != 0))
        return b""

    @rop(0x23, "BB", 1)
    def create_attachment(self, index, output):
        owner = self.get(index, MessageObject)
        self.must_write(owner)
        number = owner.message.next_attachment
        owner.message.next_attachment += 1
        self.put(output, AttachmentObject(owner, store.Attachment(number), True))
        return struct.pack("<I", number)

    @rop(0x24, "BI")
    def delete_attachment(self, index, number):
        owner = self.get(index, MessageObject)
        self.must_write(owner)
        if owner.message.attachments.pop(number, None) is None:
            raise RopError(NOT_FOUND)
        return b""

    @rop(0x25, "BBB")
    def save_changes_attachment(self, answer, index, flags):
        thing = self.get(index, AttachmentObject)
        self.must_write(thing)
        for stream in self.objects.values():
            if isinstance(stream, StreamObject) and stream.owner is thing:
                stream.commit()
        thing.owner.message.attachments[thing.attachment.number] = thing.attachment.copy()
        return b""

    # Streams.

    @rop(0x2B, "BBIB", 1)
    def open_stream(self, index, output, tag, mode):
        owner = self.get(index, FolderObject, MessageObject, AttachmentObject)
        if mode > 3 or tag & 0xFFFF not in (p.BINARY, p.STRING, p.STRING8, p.OBJECT):
            raise RopError(INVALID_PARAMETER)
        may_write = getattr(owner, "may_write", True)
        if mode in (1, 2) and not may_write:
            raise RopError(ACCESS_DENIED)
        may_write = may_write and mode != 0
        value = owner.properties().get(p.same_id(tag))
        if value is None or mode == 2:
            if mode != 2:
                raise RopError(NOT_FOUND)
            value = b""
        if isinstance(value, str):
            value = value.encode("utf-16-le" if tag & 0xFFFF == p.STRING else "cp1252", "replace")
        elif not isinstance(value, (bytes, bytearray)):
            raise RopError(NOT_FOUND)
        remember(tag)
        stream = StreamObject(owner, tag, bytearray(value) if may_write else value, may_write)
        self.put(output, stream)
        return struct.pack("<I", len(stream.data))

    @rop(0x2C, "BH*")
    def read_stream(self, index, count, reader):
        if count == 0xBABE:
            count = reader.one("I")
        return self.read(self.get(index, StreamObject), count)

    def read(self, stream, count):
        size = min(count, self.room - 8, 0xFFFF, len(stream.data) - stream.position)
        data = bytes(stream.data[stream.position : stream.position + max(size, 0)])
        stream.position += len(data)
        if data and stream.position < len(stream.data):
            self.again = lambda: self.read(stream, count)
        return struct.pack("<H", len(data)) + data

    @rop(0x2D, "BH*")
    def write_stream(self, index, size, reader):
        data = reader.raw(size)
        return struct.pack("<H", self.write(index, data))

    @rop(0x90, "BH*")
    def write_and_commit_stream(self, index, size, reader):
        data = reader.raw(size)
        written = self.write(index, data)
        self.get(index, StreamObject).commit()
        return struct.pack("<H", written)

    @rop(0xA3, "BH*")
    def write_stream_extended(self, index, size, reader):
        data = reader.raw(size)
        return struct.pack("<I", self.write(index, data))

    def write(self, index, data):
        stream = self.get(index, StreamObject)
        if not stream.may_write:
            raise RopError(STREAM_READ_ONLY)
        end = stream.position + len(data)
        if end > MAX_STREAM:
            raise RopError(STREAM_TOO_LARGE)
        if stream.position > len(stream.data):
            stream.data += bytes(stream.position - len(stream.data))
        stream.data[stream.position : end] = data
        stream.position = end
        return len(data)

    @rop(0x2E, "BBq")
    def seek_stream(self, index, origin, offset):
        stream = self.get(index, StreamObject)
        if origin > 2:
            raise RopError(INVALID_PARAMETER)
        target = (0, stream.position, len(stream.data))[origin] + offset
        if not 0 <= target <= MAX_STREAM:
            raise RopError(SEEK_ERROR)
        stream.position = target
        return struct.pack("<Q", target)

    @rop(0x2F, "BQ")
    def set_stream_size(self, index, size):
        stream = self.get(index, StreamObject)
        if not stream.may_write:
            raise RopError(STREAM_READ_ONLY)
        if size > MAX_STREAM:
            raise RopError(STREAM_TOO_LARGE)
        if size < len(stream.data):
            del stream.data[size:]
        else:
            stream.data += bytes(size - len(stream.data))
        return b""

    @rop(0x5E, "B")
    def get_stream_size(self, index):
        return struct.pack("<I", len(self.get(index, StreamObject).data))

    @rop(0x5D, "B")
    def commit_stream(self, index):
        self.get(index, StreamObject).commit()
        return b""

    @rop(0x3B, "BB", 1)
    def clone_stream(self, index, output):
        stream = self.get(index, StreamObject)
        other = StreamObject(stream.owner, stream.tag, stream.data, stream.may_write)
        other.position = stream.position
        self.put(output, other)
        return b""

    # Fast transfer and synchronisation.

    @rop(0x70, "BBBBHH*", 1)
    def synchronization_configure(self, index, output, kind, options, flags, size, reader):
        reader.raw(size)
        _, count = reader.unpack("IH")
        reader.unpack(f"{count}I")
        folder = self.get(index, FolderObject).folder
        if kind != 1:
            raise RopError(NOT_SUPPORTED)
        self.put(output, transfer.ContentsSource(folder, is_unicode=bool(options & 1)))
        return b""

    @rop(0x75, "BII")
    def upload_state_begin(self, index, tag, size):
        self.get(index, transfer.ContentsSource).begin_state(tag, size)
        return b""

    @rop(0x76, "BI*")
    def upload_state_continue(self, index, size, reader):
        data = reader.raw(size)
        self.get(index, transfer.ContentsSource).continue_state(bytes(data))
        return b""

    @rop(0x77, "B")
    def upload_state_end(self, index):
        self.get(index, transfer.ContentsSource).end_state()
        return b""

    @rop(0x4D, "BBBIBH*", 1)
    def source_copy_to(self, index, output, level, flags, options, count, reader):
        excluded = reader.unpack(f"{count}I")
        thing = self.get(index, MessageObject, AttachmentObject)
        self.put(output, transfer.CopySource(thing, excluded))
        return b""

    @rop(0x4E, "BH*")
    def source_get_buffer(self, index, size, reader):
        if size == 0xBABE:
            size = reader.one("H")
        return self.get_buffer(self.get(index, transfer.TransferSource), size)

    def get_buffer(self, source, size):
        data, status, step, steps = source.read(max(0, min(size, self.room - 15)))
        if status == transfer.PARTIAL:
            self.again = lambda: self.get_buffer(source, size)
        return struct.pack("<HHHBH", status, step, steps, 0, len(data)) + data

    @rop(0x53, "BBBB", 1)
    def destination_configure(self, index, output, operation, flags):
        thing = self.get(index, MessageObject, AttachmentObject)
        self.must_write(thing)
        self.put(output, transfer.TransferDestination(thing, remember))
        return b""

    @rop(0x54, "BH*")
    def destination_put_buffer(self, index, size, reader):
        data = reader.raw(size)
        self.put_buffer(index, data)
        return struct.pack("<HHHBH", 0, 0, 1, 0, size)

    @rop(0x9D, "BH*")
    def destination_put_buffer_extended(self, index, size, reader):
        data = reader.raw(size)
        self.put_buffer(index, data)
        return struct.pack("<HIIBH", 0, 0, 1, 0, size)

    def put_buffer(self, index, data):
        destination = self.get(index, transfer.TransferDestination)
        try:
            destination.write(bytes(data))
        except ValueError as error:
            self.log(f"fast transfer: {error}")
            raise RopError(0x80040115) from None

    # Identifiers and small things.

    @rop(0x43, "BQ")
    def long_term_id(self, index, identifier):
        self.get(index, Logon)
        raw = identifier.to_bytes(8, "little")
        if raw[:2] != store.REPLICA:
            raise RopError(NOT_FOUND)
        return store.REPLICA_GUID + raw[2:] + b"\0\0"

    @rop(0x44, "B16s6sH")
    def id_from_long_term_id(self, index, guid, counter, padding):
        self.get(index, Logon)
        if guid != store.REPLICA_GUID:
            raise RopError(NOT_FOUND)
        return store.REPLICA + counter

    @rop(0x49, "B")
    def get_address_types(self, index):
        self.get(index, Logon)
        return struct.pack("<HH", 2, 8) + b"EX\0SMTP\0"

    @rop(0x6D, "B")
    def get_transport_folder(self, index):
        self.get(index, Logon)
        return struct.pack("<Q", self.mailbox.special[5].identifier)

    @rop(0x7B, "B")
    def get_store_state(self, index):
        self.get(index, Logon)
        return struct.pack("<I", 0)

    @rop(0x47, "B")
    def set_spooler(self, index):
        self.get(index, Logon)
        return b""

    @rop(0x34, "BQQ")
    def abort_submit(self, index, folder, message):
        self.get(index, Logon)
        raise RopError(NOT_FOUND)


refused(0x10, "BH")
refused(0x19, "B H: iB")
refused(0x1A, "BII")
refused(0x1B, "B")
refused(0x1D, "BBQ")
refused(0x1F, "BQ")
refused(0x20, "BQII")
refused(0x26, "BQ Z")
refused(0x30, "B H: H")
refused(0x31, "BBBB")
refused(0x33, "BB Q: BB")
refused(0x38, "B")
refused(0x39, "BBBBB T:")
refused(0x3A, "BBQ")
refused(0x3E, "BBB", 1)
refused(0x3F, "BBB", 1)
refused(0x42, "BQ")
refused(0x45, "BQ")
refused(0x46, "BBHB", 1)
refused(0x48, "BQB")
refused(0x4A, "B")
refused(0x4F, "BB H: B H:")
refused(0x50, "BB")
refused(0x52, "B")
refused(0x55, "B W:")
refused(0x58, "BBB")
refused(0x59, "BHQ")
refused(0x5A, "BQ")
refused(0x5B, "BQQI")
refused(0x5C, "BQQI")
refused(0x66, "BBB Q:")
refused(0x67, "BBBB T:")
refused(0x68, "B")
refused(0x6B, "BQI")
refused(0x6C, "B H:")
refused(0x6F, "B Z B")
refused(0x79, "B H:")
refused(0x7A, "B T:")
refused(0x7E, "BBB", 1)
refused(0x7F, "BI")
refused(0x82, "BB", 1)
refused(0x86, "B6s")
refused(0x88, "B16s")
refused(0x89, "B H:")
refused(0x91, "BBB Q:")
refused(0x92, "BBB")

# Tags of properties by number, for the ROPs that list them.
TAGS = {}


def remember(tag):
    kind = tag & 0xFFFF
    if kind == p.STRING8:
        tag = tag & ~0xFFFF | p.STRING
    if kind != p.OBJECT:
        TAGS.setdefault(p.same_id(tag), tag)


for name, tag in list(vars(p).items()):
    if name.isupper() and isinstance(tag, int) and 0xFFFF < tag < 0x80000000:
        remember(tag)


def sort_key(value):
    if value is None:
        return (0, 0)
    return (1, value.lower() if isinstance(value, str) else value)


def short(values):
    """Values of a row, with long strings cut."""
    body = p.same_id(p.BODY)
    if len(values.get(body, "")) > MAX_ROW_CHARACTERS:
        values = {**values, body: values[body][:MAX_ROW_CHARACTERS]}
    return values


def recipient_body(name, mail):
    """A recipient row without columns ([MS-OXCDATA] §2.8.3.2): SMTP address and display name in Unicode, a count of
    columns, and a property row without values, which still has its flag."""
    flags = 0x3 | 0x8 | 0x10 | 0x200
    texts = b"".join(each.encode("utf-16-le") + b"\0\0" for each in (mail, name))
    return struct.pack("<H", flags) + texts + struct.pack("<HB", 0, 0)


def recipient_row(kind, name, mail):
    body = recipient_body(name, mail)
    return struct.pack("<BHHH", kind, 0x4E4, 0, len(body)) + body


def read_recipient(data, columns):
    """Name and address of a recipient row; unknown kinds of rows give empty ones."""
    (flags,) = struct.unpack_from("<H", data)
    at, texts = 2, []
    if flags & 7 == 1:
        at += 2
        end = data.find(b"\0", at)
        texts.append(bytes(data[at:end]).decode("cp1252"))
        at = end + 1
    kind = p.STRING if flags & 0x200 else p.STRING8
    for bit in (0x8, 0x10, 0x400, 0x20):
        if flags & bit:
            text, at = p.decode(kind, data, at)
            texts.append(text)
    mail = texts[0] if texts else ""
    return (texts[1] if len(texts) > 1 else mail), mail
