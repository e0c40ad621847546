"""The few NDR types that EMSMDB, the endpoint mapper, RFR and NSPI use, as a reader and a writer with alignment."""

import struct


class StubError(ValueError):
    """The stub data is not what the method expects."""


class NdrReader:
    """Reads stub data from the start on."""

    def __init__(self, data, at=0):
        self.data = data
        self.at = at

    def align(self, size):
        self.at = -(-self.at // size) * size

    def raw(self, size):
        piece = self.data[self.at : self.at + size]
        if len(piece) != size:
            raise StubError(f"{size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return piece

    def u16(self):
        self.align(2)
        return int.from_bytes(self.raw(2), "little")

    def u32(self):
        self.align(4)
        return int.from_bytes(self.raw(4), "little")

    def context(self):
        """A context handle: attributes and a UUID."""
        self.align(4)
        return bytes(self.raw(20))

    def string(self):
        """A conformant varying string without its terminator."""
        self.u32()
        offset, count = self.u32(), self.u32()
        if offset != 0:
            raise StubError("a string with an offset")
        return bytes(self.raw(count)).rstrip(b"\0")

    def array(self):
        """A conformant array of bytes."""
        return self.raw(self.u32())

    def varying(self):
        """A conformant varying array of bytes."""
        self.u32()
        offset, count = self.u32(), self.u32()
        if offset != 0:
            raise StubError("an array with an offset")
        return self.raw(count)


class NdrWriter:
    """Appends stub data."""

    def __init__(self):
        self.data = bytearray()

    def align(self, size):
        self.data += bytes(-len(self.data) % size)
        return self

    def raw(self, data):
        self.data += data
        return self

    def u16(self, *values):
        self.align(2).raw(struct.pack(f"<{len(values)}H", *values))
        return self

    def u32(self, *values):
        self.align(4).raw(struct.pack(f"<{len(values)}I", *values))
        return self

    def context(self, handle):
        return self.align(4).raw(handle)

    def string(self, text):
        """A conformant varying string; the terminator is added."""
        text += b"\0"
        return self.u32(len(text), 0, len(text)).raw(text)

    def pointed_string(self, text, referent):
        """A unique pointer and the string it points to."""
        return self.u32(referent).string(text)

    def array(self, data):
        return self.u32(len(data)).raw(data)

    def varying(self, data, size=None):
        return self.u32(len(data) if size is None else size, 0, len(data)).raw(data)

    def bytes(self):
        return bytes(self.data)
