"""Property tags and the encodings of property values: rows and tagged values of ROPs ([MS-OXCDATA] §2.8 and §2.11),
and values of fast-transfer streams ([MS-OXCFXICS] §2.2.4.1)."""

import struct

INT16, INT32, ERROR, BOOLEAN, OBJECT, INT64 = 0x02, 0x03, 0x0A, 0x0B, 0x0D, 0x14
STRING8, STRING, TIME, GUID, BINARY = 0x1E, 0x1F, 0x40, 0x48, 0x102
FIXED = {INT16: "<h", INT32: "<i", ERROR: "<I", BOOLEAN: "<?", INT64: "<q", TIME: "<q"}

NOT_FOUND, NOT_ENOUGH_MEMORY = 0x8004010F, 0x8007000E

MESSAGE_CLASS, SUBJECT, CLIENT_SUBMIT_TIME = 0x001A001F, 0x0037001F, 0x00390040
IMPORTANCE, SENDER_NAME, SENDER_EMAIL, DISPLAY_TO = 0x00170003, 0x0C1A001F, 0x0C1F001F, 0x0E04001F
DELIVERY_TIME, MESSAGE_FLAGS, MESSAGE_SIZE, HAS_ATTACH = 0x0E060040, 0x0E070003, 0x0E080003, 0x0E1B000B
BODY, HTML, CREATION_TIME, MODIFICATION_TIME = 0x1000001F, 0x10130102, 0x30070040, 0x30080040
DISPLAY_NAME, CONTENT_COUNT, UNREAD_COUNT, SUBFOLDERS = 0x3001001F, 0x36020003, 0x36030003, 0x360A000B
CONTAINER_CLASS, COMMENT, FOLDER_ID, MESSAGE_ID = 0x3613001F, 0x3004001F, 0x67480014, 0x674A0014
ATTACH_SIZE, ATTACH_NUMBER, ATTACH_DATA, ATTACH_NAME = 0x0E200003, 0x0E210003, 0x37010102, 0x3704001F
ATTACH_LONG_NAME, ATTACH_METHOD, RENDERING_POSITION = 0x3707001F, 0x37050003, 0x370B0003
SOURCE_KEY, CHANGE_KEY, PREDECESSORS, CHANGE_NUMBER = 0x65E00102, 0x65E20102, 0x65E30102, 0x67A40014
ASSOCIATED, MAILBOX_OWNER, STORE_SUPPORT_MASK = 0x67AA000B, 0x661C001F, 0x340D0003
RECIPIENT_TYPE, EMAIL_ADDRESS, ADDRESS_TYPE = 0x0C150003, 0x3003001F, 0x3002001F


class Truncated(ValueError):
    """A value ends early."""


def same_id(tag):
    """The key of a property: its number. The two kinds of strings are one property."""
    return tag >> 16


def encode(kind, value):
    """A value of a property row."""
    if kind in FIXED:
        return struct.pack(FIXED[kind], value)
    if kind == STRING:
        return text(value).encode("utf-16-le") + b"\0\0"
    if kind == STRING8:
        return text(value).encode("cp1252", "replace") + b"\0"
    if kind == BINARY:
        return struct.pack("<H", len(value)) + bytes(value)
    if kind == GUID:
        return value
    raise ValueError(f"property type {kind:#x}")


def text(value):
    return value if isinstance(value, str) else bytes(value).decode("cp1252")


def decode(kind, data, at):
    """A value of a property row and the place after it."""
    if kind in FIXED:
        size = struct.calcsize(FIXED[kind])
        if at + size > len(data):
            raise Truncated("a property value")
        return struct.unpack_from(FIXED[kind], data, at)[0], at + size
    if kind == STRING:
        end = at
        while data[end : end + 2] != b"\0\0":
            if end + 2 > len(data):
                raise Truncated("a string")
            end += 2
        return bytes(data[at:end]).decode("utf-16-le", "replace"), end + 2
    if kind == STRING8:
        end = bytes(data).find(b"\0", at)
        if end < 0:
            raise Truncated("a string")
        return bytes(data[at:end]).decode("cp1252", "replace"), end + 1
    if kind == BINARY:
        if at + 2 > len(data):
            raise Truncated("a count")
        (size,) = struct.unpack_from("<H", data, at)
        if at + 2 + size > len(data):
            raise Truncated("a binary value")
        return bytes(data[at + 2 : at + 2 + size]), at + 2 + size
    if kind == GUID:
        return bytes(data[at : at + 16]), at + 16
    raise ValueError(f"property type {kind:#x}")


def decode_tagged(data, at):
    """A tagged value: the tag, the value and the place after it."""
    if at + 4 > len(data):
        raise Truncated("a property tag")
    (tag,) = struct.unpack_from("<I", data, at)
    value, at = decode(tag & 0xFFFF, data, at + 4)
    return tag, value, at


def encode_tagged(tag, value):
    return struct.pack("<I", tag) + encode(tag & 0xFFFF, value)


def encode_row(columns, values, limit=None):
    """A property row; `values` is keyed by property number. Absent and overlong values become errors."""
    parts, has_errors = [], False
    for tag in columns:
        kind = tag & 0xFFFF
        value = values.get(same_id(tag))
        if value is None or kind == OBJECT:
            parts.append((NOT_FOUND, None))
            has_errors = True
            continue
        # A value that does not fit goes by a stream ([MS-OXCPRPT] §3.2.5.1).
        if kind in (STRING, STRING8, BINARY) and limit and len(value) > limit:
            parts.append((NOT_ENOUGH_MEMORY, None))
            has_errors = True
            continue
        parts.append((0, encode(kind, value)))
    if not has_errors:
        return b"\0" + b"".join(encoded for _, encoded in parts)
    row = [b"\1"]
    for error, encoded in parts:
        row.append(b"\0" + encoded if not error else b"\x0a" + struct.pack("<I", error))
    return b"".join(row)


def decode_row(columns, data, at):
    """Values of a property row (None where there is an error) and the place after it."""
    flag, at = data[at], at + 1
    values = []
    for tag in columns:
        mark = 0
        if flag:
            mark, at = data[at], at + 1
        if mark == 0:
            value, at = decode(tag & 0xFFFF, data, at)
            values.append(value)
        elif mark == 0x0A:
            values.append(None)
            at += 4
        else:
            values.append(None)
    return values, at


def encode_transfer(tag, value):
    """A property of a fast-transfer stream as pieces: what may not be split, and what may."""
    kind = tag & 0xFFFF
    if kind == BOOLEAN:
        return [(struct.pack("<IH", tag, value), False)]
    if kind in FIXED:
        return [(struct.pack("<I", tag) + struct.pack(FIXED[kind], value), False)]
    if kind == STRING:
        value = text(value).encode("utf-16-le") + b"\0\0"
    elif kind == STRING8:
        value = text(value).encode("cp1252", "replace") + b"\0"
    return [(struct.pack("<II", tag, len(value)), False), (value, True)]
