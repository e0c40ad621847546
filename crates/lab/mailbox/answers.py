"""The client's side of ROPs: requests as bytes, and answers split into fields."""

import struct

import properties as p


class AnswerError(Exception):
    """An answer that cannot be read, or that refuses what must not be refused."""


def logon(name):
    return struct.pack("<BBBBIIH", 0xFE, 0, 0, 1, 0x0100000C, 0, len(name) + 1) + name + b"\0"


def request(number, layout, *values):
    return struct.pack("<BB" + layout, number, 0, *values)


def tags(columns):
    return struct.pack(f"<{len(columns)}I", *columns)


def set_columns(index, columns):
    return request(0x12, "BBH", index, 0, len(columns)) + tags(columns)


def get_properties(index, columns):
    return request(0x07, "BHHH", index, 0, 1, len(columns)) + tags(columns)


def set_properties(index, values):
    body = b"".join(p.encode_tagged(tag, value) for tag, value in values)
    return request(0x0A, "BHH", index, len(body) + 2, len(values)) + body


def recipients(index, rows):
    """ModifyRecipients with one-off SMTP recipients and no columns."""
    body = b""
    for number, (name, mail) in enumerate(rows):
        row = struct.pack("<H", 0x3 | 0x8 | 0x10 | 0x200)
        row += b"".join(each.encode("utf-16-le") + b"\0\0" for each in (mail, name)) + struct.pack("<HB", 0, 0)
        body += struct.pack("<IBH", number, 1, len(row)) + row
    return request(0x0E, "BHH", index, 0, len(rows)) + body


class Answer:
    """One ROP's answer."""

    def __init__(self, number, index, code):
        self.number = number
        self.index = index
        self.code = code
        self.fields = {}

    def __getitem__(self, name):
        return self.fields[name]

    def check(self):
        if self.code:
            raise AnswerError(f"ROP {self.number:#04x} is refused with {self.code:#x}")
        return self


class AnswerReader:
    """Splits the ROPs of an answer. `columns` are those of tables by handle index, for QueryRows and
    GetPropertiesSpecific, in the order of the requests."""

    def __init__(self, data, columns):
        self.data = data
        self.columns = list(columns)
        self.at = 0
        self.answers = []
        self.notifications = []
        self.is_too_small = False

    def take(self, layout):
        size = struct.calcsize("<" + layout)
        if self.at + size > len(self.data):
            raise AnswerError("an answer ends early")
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += size
        return values

    def raw(self, size):
        if self.at + size > len(self.data):
            raise AnswerError("an answer ends early")
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece

    def read(self):
        while self.at < len(self.data):
            start = self.at
            number = self.data[self.at]
            if number == 0x2A:
                self.notification()
                self.notifications.append(bytes(self.data[start : self.at]))
            elif number == 0x6E:
                self.take("BH")
            elif number == 0xFF:
                # The rest is the requests that were not answered.
                self.is_too_small = True
                self.at = len(self.data)
                refusal = Answer(number, 0, 0x47D)
                refusal.raw = bytes(self.data[start:])
                self.answers.append(refusal)
            else:
                answer = Answer(*self.take("BBI"))
                if answer.code == 0:
                    method = FIELDS.get(number)
                    if method is None:
                        raise AnswerError(f"an answer to ROP {number:#04x}")
                    answer.fields = method(self)
                elif number in (0x07, 0x15):
                    self.columns.pop(0)
                answer.raw = bytes(self.data[start : self.at])
                self.answers.append(answer)
        return self

    def notification(self):
        _, _, _, flags = self.take("BIBH")
        if not flags & 0x8000:
            raise AnswerError(f"a notification {flags:#x}")
        self.take("QQ")
        if flags & 0x14:
            (count,) = self.take("H")
            self.take(f"{count}I")

    def structure(self, layout, *names):
        return dict(zip(names, self.take(layout)))

    def rows(self):
        origin, count = self.take("BH")
        columns, rows = self.columns.pop(0), []
        for _ in range(count):
            values, self.at = p.decode_row(columns, self.data, self.at)
            rows.append(values)
        return {"origin": origin, "rows": rows, "columns": columns}

    def row(self):
        values, self.at = p.decode_row(self.columns.pop(0), self.data, self.at)
        return {"values": values}

    def all_properties(self):
        (count,), values = self.take("H"), []
        for _ in range(count):
            tag, value, self.at = p.decode_tagged(self.data, self.at)
            values.append((tag, value))
        return {"values": values}

    def message(self):
        self.take("B")
        for _ in range(2):
            (kind,) = self.take("B")
            if kind == 4:
                _, self.at = p.decode(p.STRING, self.data, self.at)
            elif kind in (2, 3):
                _, self.at = p.decode(p.STRING8, self.data, self.at)
        count, columns, rows = self.take("HHB")[0], 0, 0
        rows = self.data[self.at - 1]
        for _ in range(rows):
            size = self.take("BHHH")[3]
            self.raw(size)
        return {"recipients": count}

    def counted(self, layout):
        (size,) = self.take(layout)
        return {"data": self.raw(size)}

    def transfer(self):
        status, step, steps, _ = self.take("HHHB")
        return {"status": status, "step": step, "steps": steps, **self.counted("H")}

    def folder(self):
        _, ghosted = self.take("BB")
        if ghosted:
            raise AnswerError("a ghosted folder")
        return {}

    def created_folder(self):
        identifier, exists = self.take("QB")
        if exists:
            self.folder()
        return {"folder": identifier}

    def receive_folder(self):
        (identifier,) = self.take("Q")
        _, self.at = p.decode(p.STRING8, self.data, self.at)
        return {"folder": identifier}

    def store_logon(self):
        self.take("B")
        folders = self.take("13Q")
        self.raw(1 + 16 + 2 + 16 + 8 + 8 + 4)
        return {"folders": folders}

    def created_message(self):
        (has_identifier,) = self.take("B")
        return {"message": self.take("Q")[0] if has_identifier else None}

    def problems(self):
        (count,) = self.take("H")
        self.raw(10 * count)
        return {"problems": count}

    def tag_list(self):
        (count,) = self.take("H")
        return {"tags": self.take(f"{count}I")}

    def recipient_rows(self):
        (count,) = self.take("B")
        for _ in range(count):
            self.raw(self.take("IBHHH")[4])
        return {"count": count}

    def address_types(self):
        self.take("H")
        return self.counted("H")


def layout(text, *names):
    return lambda reader: reader.structure(text, *names)


FIELDS = {
    0xFE: AnswerReader.store_logon, 0x02: AnswerReader.folder, 0x1C: AnswerReader.created_folder,
    0x27: AnswerReader.receive_folder, 0x04: layout("I", "count"), 0x05: layout("I", "count"), 0x21: layout(""),
    0x12: layout("B", "status"), 0x13: layout("B", "status"), 0x14: layout("B", "status"), 0x15: AnswerReader.rows,
    0x16: layout("B", "status"), 0x17: layout("II", "at", "of"), 0x18: layout("Bi", "less", "moved"),
    0x81: layout(""), 0x37: AnswerReader.tag_list, 0x07: AnswerReader.row, 0x08: AnswerReader.all_properties,
    0x09: AnswerReader.tag_list, 0x0A: AnswerReader.problems, 0x0B: AnswerReader.problems,
    0x03: AnswerReader.message, 0x06: AnswerReader.created_message, 0x0D: layout(""), 0x0E: layout(""),
    0x0F: AnswerReader.recipient_rows, 0x11: layout("B", "changed"), 0x0C: layout("BQ", "index", "message"),
    0x32: layout(""), 0x22: layout(""), 0x23: layout("I", "number"), 0x24: layout(""), 0x25: layout(""),
    0x2B: layout("I", "size"), 0x2C: lambda reader: reader.counted("H"), 0x2D: layout("H", "written"),
    0x90: layout("H", "written"), 0xA3: layout("I", "written"), 0x2E: layout("Q", "at"), 0x2F: layout(""),
    0x5E: layout("I", "size"), 0x5D: layout(""), 0x3B: layout(""), 0x70: layout(""), 0x75: layout(""),
    0x76: layout(""), 0x77: layout(""), 0x4D: layout(""), 0x4E: AnswerReader.transfer, 0x53: layout(""),
    0x54: layout("HHHBH", "status", "step", "steps", "reserved", "used"),
    0x9D: layout("HIIBH", "status", "step", "steps", "reserved", "used"), 0x29: layout(""),
    0x1E: layout("B", "partial"), 0x43: lambda reader: {"long": reader.raw(24)}, 0x44: layout("Q", "identifier"),
    0x49: AnswerReader.address_types, 0x6D: layout("Q", "folder"), 0x7B: layout("I", "state"), 0x47: layout(""),
}
