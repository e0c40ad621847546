"""Plain LZ77 of [MS-XCA] §2.3 and §2.4, the compression of extended ROP buffers ([MS-OXCRPC] §3.1.4.1.1.2).

`compress` and `decompress` are pure Python. `is_compressible` asks zlib whether samples of the data shrink, because a
pure Python encoder spends milliseconds on a buffer that cannot.
"""

import struct
import zlib

# Matches reach back at most 8 KiB: 13 bits of offset.
MAX_OFFSET = 8192
MIN_MATCH = 3
# Size of a sample.
SAMPLE_BYTES = 1536
# Matches begin with at least so many equal bytes here.
KEY_BYTES = 4


class DataError(ValueError):
    """The compressed data is not valid."""


def is_compressible(data):
    """Whether zlib saves at least a twentieth of samples of the data: its start, its middle and its end."""
    if len(data) > 3 * SAMPLE_BYTES:
        middle = len(data) // 2
        data = data[:SAMPLE_BYTES] + data[middle : middle + SAMPLE_BYTES] + data[-SAMPLE_BYTES:]
    return len(zlib.compress(data, 1)) < len(data) * 19 // 20


def compress(data):
    """Compresses `data`; the result may be longer than the input.

    Only the last place of each four bytes at which a token began is remembered: this finds fewer matches than a
    thorough search and takes a tenth of its time.
    """
    tokens, bits = [], []
    last = {}
    half_used = None
    at, end = 0, len(data)
    while at < end:
        key = data[at : at + KEY_BYTES]
        place = last.get(key, -MAX_OFFSET - 1)
        last[key] = at
        if at - place > MAX_OFFSET or at + KEY_BYTES > end:
            tokens.append(LITERALS[data[at]])
            bits.append("0")
            at += 1
            continue
        length = match_length(data, place, at, end)
        token = (at - place - 1) << 3
        at += length
        length -= MIN_MATCH
        if length < 7:
            tokens.append((token | length).to_bytes(2, "little"))
        else:
            length -= 7
            nibble = min(length, 15)
            rest = long_length(length) if nibble == 15 else b""
            if half_used is None:
                half_used = len(tokens)
                tokens.append((token | 7).to_bytes(2, "little") + LITERALS[nibble] + rest)
            else:
                # The nibble shares a byte with that of the match before.
                other = tokens[half_used]
                tokens[half_used] = other[:2] + LITERALS[other[2] | nibble << 4] + other[3:]
                half_used = None
                tokens.append((token | 7).to_bytes(2, "little") + rest)
        bits.append("1")
    # The flags that are left over are ones; the decoder stops at the end of the input.
    bits.append("1" * (32 - len(bits) % 32))
    flags = "".join(bits)
    output = []
    for group in range(0, len(flags), 32):
        output.append(int(flags[group : group + 32], 2).to_bytes(4, "little"))
        output += tokens[group : group + 32]
    return b"".join(output)


LITERALS = [bytes([value]) for value in range(256)]


def match_length(data, place, at, end):
    """Count of equal bytes from `place` and from `at` on, of which the first four are known."""
    length = KEY_BYTES
    while True:
        differences = int.from_bytes(data[place + length : place + length + 32], "little") ^ int.from_bytes(
            data[at + length : at + length + 32], "little"
        )
        if differences:
            length += (differences & -differences).bit_length() - 1 >> 3
            return min(length, end - at)
        length += 32
        if at + length >= end:
            return end - at


def long_length(length):
    """What follows a nibble of 15; `length` is less by MIN_MATCH and 7."""
    if length < 15 + 255:
        return bytes([length - 15])
    length += 7
    if length < 1 << 16:
        return b"\xff" + struct.pack("<H", length)
    return b"\xff" + struct.pack("<HI", 0, length)


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
