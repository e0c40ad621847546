"""ROP buffers on the wire: obfuscation, RPC_HEADER_EXT, and the split of a buffer into ROPs and handles.

The older generation (EcDoRpc) sends one ROP buffer, every byte of it XORed with 0xA5. The newer one (EcDoRpcExt2)
sends one or several extended buffers, each with an RPC_HEADER_EXT ([MS-OXCRPC] §2.2.2.1).
"""

import struct

import lz77

# [MS-OXCRPC] §2.2.2.1, Flags.
COMPRESSED, XOR_MAGIC, LAST = 1, 2, 4
# [MS-OXCRPC] §3.1.4.2, pulFlags.
NO_COMPRESSION, NO_XOR_MAGIC, CHAIN = 1, 2, 4
# An extended buffer carries at most this payload.
MAX_PAYLOAD = 0x7FFF
# Buffers below this size are not compressed.
MIN_COMPRESSED = 1025

OBFUSCATION = bytes(value ^ 0xA5 for value in range(256))


class BufferFormatError(ValueError):
    """The buffer is not valid (ecRpcFormat)."""


def obfuscate(data):
    """Adds or takes away the obfuscation."""
    return data.translate(OBFUSCATION)


def pack_rops(rops, handles):
    """A ROP buffer: its size, the ROPs, and the handle table."""
    return struct.pack("<H", len(rops) + 2) + rops + struct.pack(f"<{len(handles)}I", *handles)


def unpack_rops(buffer):
    """ROPs and handles of a ROP buffer."""
    if len(buffer) < 2:
        raise BufferFormatError("a ROP buffer without a size")
    (size,) = struct.unpack_from("<H", buffer)
    if size < 2 or size > len(buffer) or (len(buffer) - size) % 4:
        raise BufferFormatError(f"a ROP buffer of {len(buffer)} bytes says {size}")
    count = (len(buffer) - size) // 4
    return buffer[2:size], list(struct.unpack_from(f"<{count}I", buffer, size))


def pack_extended(payload, flags, may_compress, may_obfuscate):
    """An extended buffer; `flags` is LAST or 0."""
    body = payload
    if may_compress and len(payload) >= MIN_COMPRESSED and lz77.is_compressible(payload):
        smaller = lz77.compress(payload)
        if len(smaller) < len(payload):
            body, flags = smaller, flags | COMPRESSED
    if may_obfuscate:
        body, flags = obfuscate(body), flags | XOR_MAGIC
    return struct.pack("<4H", 0, flags, len(body), len(payload)) + body


def unpack_extended(data):
    """Payloads of all extended buffers in `data`."""
    payloads, at = [], 0
    while True:
        if len(data) - at < 8:
            raise BufferFormatError("an extended buffer ends within its header")
        version, flags, size, actual = struct.unpack_from("<4H", data, at)
        at += 8
        if version != 0 or size > len(data) - at:
            raise BufferFormatError(f"version {version}, {size} bytes of {len(data) - at}")
        body = data[at : at + size]
        at += size
        if flags & XOR_MAGIC:
            body = obfuscate(body)
        if flags & COMPRESSED:
            try:
                body = lz77.decompress(body, actual)
            except lz77.DataError as error:
                raise BufferFormatError(str(error)) from None
        elif size != actual:
            raise BufferFormatError(f"{size} bytes are announced as {actual}")
        payloads.append(body)
        if flags & LAST:
            break
    if at != len(data):
        raise BufferFormatError(f"{len(data) - at} bytes after the last extended buffer")
    return payloads
