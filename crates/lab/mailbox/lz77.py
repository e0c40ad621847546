"""Plain LZ77 of [MS-XCA] §2.3 and §2.4, the compression of extended ROP buffers ([MS-OXCRPC] §3.1.4.1.1.2).

`compress` and `decompress` are pure Python. `compress` asks zlib first whether the data has any redundancy, because
a pure Python encoder spends milliseconds on a buffer that cannot shrink.
"""

import struct
import zlib

# Matches reach back at most 8 KiB: 13 bits of offset.
MAX_OFFSET = 8192
MIN_MATCH = 3
# Positions with the same three bytes that the encoder tries.
MAX_CANDIDATES = 4


class DataError(ValueError):
    """The compressed data is not valid."""


def is_compressible(data):
    """Whether zlib saves at least a twentieth of the data."""
    return len(zlib.compress(data, 1)) < len(data) * 19 // 20


def compress(data):
    """Compresses `data`; the result may be longer than the input."""
    output = bytearray(4)
    flags_at, flags, flag_count = 0, 0, 0
    nibble_at = None
    recent = {}
    at, end = 0, len(data)
    while at < end:
        length, offset = 0, 0
        key = data[at : at + 3]
        if len(key) == 3:
            places = recent.get(key)
            if places is None:
                recent[key] = [at]
            else:
                for place in reversed(places):
                    if at - place > MAX_OFFSET:
                        break
                    found = match_length(data, place, at, end)
                    if found > length:
                        length, offset = found, at - place
                places.append(at)
                if len(places) > MAX_CANDIDATES:
                    del places[0]
        if length < MIN_MATCH:
            output.append(data[at])
            at += 1
            flags <<= 1
        else:
            nibble_at = emit_match(output, nibble_at, length - MIN_MATCH, offset)
            at += length
            flags = flags << 1 | 1
        flag_count += 1
        if flag_count == 32:
            struct.pack_into("<I", output, flags_at, flags)
            flags_at, flags, flag_count = len(output), 0, 0
            output += b"\0\0\0\0"
    # The flags that are left over are ones; the decoder stops at the end of the input.
    flags = flags << (32 - flag_count) | (1 << (32 - flag_count)) - 1
    struct.pack_into("<I", output, flags_at, flags & 0xFFFFFFFF)
    return bytes(output)


def match_length(data, place, at, end):
    """Count of equal bytes from `place` and from `at` on."""
    length, step = 0, 64
    while at + length < end:
        if step > 1 and data[place + length : place + length + step] == data[at + length : at + length + step]:
            length += min(step, end - at - length)
        elif step > 1:
            step //= 4
        elif data[place + length] == data[at + length]:
            length += 1
        else:
            break
    return length


def emit_match(output, nibble_at, length, offset):
    """Appends a match whose length is already less by three, and returns the place of a half-used nibble."""
    output += struct.pack("<H", (offset - 1) << 3 | min(length, 7))
    if length < 7:
        return nibble_at
    length -= 7
    if nibble_at is None:
        nibble_at = len(output)
        output.append(min(length, 15))
    else:
        output[nibble_at] |= min(length, 15) << 4
        nibble_at = None
    if length < 15:
        return nibble_at
    length -= 15
    if length < 255:
        output.append(length)
        return nibble_at
    output.append(255)
    length += 7 + 15
    if length < 1 << 16:
        output += struct.pack("<H", length)
    else:
        output += struct.pack("<HI", 0, length)
    return nibble_at


def decompress(data, size):
    """Decompresses `data` to exactly `size` bytes."""
    output = bytearray()
    at, end = 0, len(data)
    flags, flag_count = 0, 0
    nibble_at = None
    try:
        while True:
            if flag_count == 0:
                flags = int.from_bytes(data[at : at + 4], "little")
                at += 4
                flag_count = 32
            flag_count -= 1
            if not flags >> flag_count & 1:
                if at >= end:
                    break
                output.append(data[at])
                at += 1
                continue
            if at >= end:
                break
            pair = data[at] | data[at + 1] << 8
            at += 2
            length, offset = pair & 7, (pair >> 3) + 1
            if length == 7:
                if nibble_at is None:
                    length = data[at] & 15
                    nibble_at = at
                    at += 1
                else:
                    length = data[nibble_at] >> 4
                    nibble_at = None
                if length == 15:
                    length = data[at]
                    at += 1
                    if length == 255:
                        length = data[at] | data[at + 1] << 8
                        at += 2
                        if length == 0:
                            length = int.from_bytes(data[at : at + 4], "little")
                            at += 4
                        if length < 15 + 7:
                            raise DataError("a long match is shorter than its prefix says")
                        length -= 15 + 7
                    length += 15
                length += 7
            length += MIN_MATCH
            if offset > len(output):
                raise DataError("a match begins before the data")
            if len(output) + length > size:
                raise DataError("the data is longer than announced")
            copy(output, offset, length)
            if len(output) > size:
                raise DataError("the data is longer than announced")
    except IndexError:
        raise DataError("the data ends within a match") from None
    if len(output) != size:
        raise DataError(f"{len(output)} bytes instead of {size}")
    return bytes(output)


def copy(output, offset, length):
    """Repeats the last `offset` bytes until `length` bytes are appended."""
    start = len(output) - offset
    if length <= offset:
        output += output[start : start + length]
    else:
        piece = bytes(output[start:])
        output += (piece * (length // offset + 1))[:length]
