"""A token-bucket shaper, as the manual page tbf(8) describes it.

The head of the FIFO leaves whole at the first nanosecond at which every bucket holds its length,
and takes its length out of each. Buckets are full at time 0. A packet that comes at the instant
at which another leaves comes after it. One that is longer than a bucket can never leave and is
dropped as it comes; one that does not fit beside those that wait is dropped at the tail.
"""

from bottleneck import DELIVERED, DROPPED_ENQUEUE, DROPPED_FULL, ceil_div
from policer import BYTE


def shape(packets, buckets, limit):
    """Gives every packet its fate. `limit` in bytes, counting all that wait."""
    waiting = []
    waiting_bytes = 0
    # The head may not leave before it is the head.
    head_since = 0

    def leave_until(until):
        nonlocal waiting_bytes, head_since
        while waiting:
            head = waiting[0]
            need = head.length * BYTE
            at = head_since
            for bucket in buckets:
                missing = need - bucket.tokens
                if missing > 0:
                    at = max(at, bucket.at + ceil_div(missing, bucket.rate))
            if until is not None and at > until:
                return
            for bucket in buckets:
                bucket.fill(at)
                bucket.tokens -= need
                assert bucket.tokens >= 0
            waiting.pop(0)
            waiting_bytes -= head.length
            head.ends(DELIVERED, at)
            head_since = at

    for packet in packets:
        leave_until(packet.arrival)
        if any(packet.length * BYTE > bucket.depth for bucket in buckets):
            packet.ends(DROPPED_ENQUEUE, packet.arrival)
            continue
        if waiting_bytes + packet.length > limit:
            packet.ends(DROPPED_FULL, packet.arrival)
            continue
        if not waiting:
            head_since = packet.arrival
        waiting.append(packet)
        waiting_bytes += packet.length
        # It may find the buckets full enough and leave in the same nanosecond.
        leave_until(packet.arrival)
    leave_until(None)
