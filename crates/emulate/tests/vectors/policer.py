"""A token-bucket policer: RFC 2697's committed bucket, and RFC 2698's two with colours collapsed.

A packet conforms iff every bucket holds its length, and then takes its length out of each; one
that does not conform is dropped and takes nothing (RFC 2697 section 3 and RFC 2698 section 3 in
colour-blind mode, "green" passing and "yellow" and "red" being dropped). A yellow packet, being
dropped, leaves the peak bucket alone, where RFC 2698 would take its length out of it; Linux's
act_police does the same as is done here.

Tokens are whole numbers in units of a bit / 1e9: a bucket of `rate` bit/s gains `rate` units in
each nanosecond and holds `burst` bytes at most. Buckets are full at time 0.
"""

from bottleneck import DELIVERED, DROPPED_ENQUEUE, NANOSECONDS

BYTE = 8 * NANOSECONDS


class Bucket:
    """One bucket, in exact integers."""

    def __init__(self, rate, burst):
        self.rate = rate
        self.depth = burst * BYTE
        self.tokens = self.depth
        self.at = 0

    def fill(self, now):
        self.tokens = min(self.depth, self.tokens + self.rate * (now - self.at))
        self.at = now


def police(packets, buckets):
    """Gives every packet its fate, at the instant of its arrival."""
    for packet in packets:
        need = packet.length * BYTE
        for bucket in buckets:
            bucket.fill(packet.arrival)
        if all(bucket.tokens >= need for bucket in buckets):
            for bucket in buckets:
                bucket.tokens -= need
            packet.ends(DELIVERED, packet.arrival)
        else:
            packet.ends(DROPPED_ENQUEUE, packet.arrival)
