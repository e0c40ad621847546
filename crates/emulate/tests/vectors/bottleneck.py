"""One FIFO in front of a line of fixed rate, and the traffic that is offered to it.

The semantics are written out in README.md beside this file; the models (codel.py, pie.py, red.py)
only decide about packets, this file owns the queue, the line, and the order of events.
"""

import random

# Fates of a packet, as the vectors spell them.
DELIVERED = "delivered"
MARKED = "marked"
DROPPED_ENQUEUE = "dropped_enqueue"
DROPPED_DEQUEUE = "dropped_dequeue"
DROPPED_FULL = "dropped_full"

NANOSECONDS = 1_000_000_000

# A full-size packet at the IP layer; what a line counts for it is more where it has an overhead.
IP_PACKET = 1500


class Packet:
    """What one row of a vector says."""

    def __init__(self, index, arrival, length, ect, uniform):
        self.index = index
        self.arrival = arrival
        self.length = length
        self.ect = ect
        self.uniform = uniform
        self.marked = False
        self.fate = None
        self.time = None

    def ends(self, fate, time):
        assert self.fate is None
        self.fate = fate
        self.time = time


class Queue:
    """The packets that wait; the packet on the line is no longer in here."""

    def __init__(self):
        self.packets = []
        self.bytes = 0

    def push(self, packet):
        self.packets.append(packet)
        self.bytes += packet.length

    def pop(self):
        if not self.packets:
            return None
        packet = self.packets.pop(0)
        self.bytes -= packet.length
        return packet


class Model:
    """What a model may decide; this one, on its own, is drop-tail."""

    # Nanoseconds between periodic updates, the first of them one period after time 0.
    period = None

    def __init__(self):
        # How often each branch of the model was taken; make_vectors.py looks for forgotten ones.
        self.taken = {}

    def note(self, branch):
        self.taken[branch] = self.taken.get(branch, 0) + 1

    def enqueue(self, now, occupancy, packet):
        """Says "pass", "mark" or "drop"; `occupancy` includes the packet on the line."""
        return "pass"

    def full(self):
        """A packet that the model let pass did not fit."""

    def dequeue(self, now, queue):
        """Takes the next packet for the line, or None, and ends those that it drops."""
        return queue.pop()

    def idle(self, now):
        """The last bit has left and nothing waits."""

    def update(self):
        """Called each `period`."""


def ceil_div(numerator, denominator):
    return -(-numerator // denominator)


def run(packets, rate, limit, model):
    """Gives every packet its fate. `rate` in bit/s, `limit` in bytes."""
    queue = Queue()
    on_line = None
    line_end = None
    # The busy period: when it began, and the bits of all its packets so far.
    start = 0
    bits = 0
    next_update = model.period

    def put_on_line(packet):
        nonlocal on_line, line_end, bits
        on_line = packet
        bits += packet.length * 8
        line_end = start + ceil_div(bits * NANOSECONDS, rate)

    def end_of_packet():
        nonlocal on_line, line_end
        now = line_end
        on_line.ends(MARKED if on_line.marked else DELIVERED, now)
        on_line, line_end = None, None
        following = model.dequeue(now, queue)
        if following is None:
            model.idle(now)
        else:
            put_on_line(following)

    def advance(until):
        """Every end of a packet and every update up to and including `until`."""
        nonlocal next_update
        while True:
            due_end = line_end is not None and line_end <= until
            due_update = next_update is not None and next_update <= until
            # At one and the same nanosecond the end of a packet comes first.
            if due_end and (not due_update or line_end <= next_update):
                end_of_packet()
            elif due_update:
                model.update()
                next_update += model.period
            else:
                return

    for packet in packets:
        now = packet.arrival
        advance(now)
        occupancy = queue.bytes + (on_line.length if on_line else 0)
        verdict = model.enqueue(now, occupancy, packet)
        if verdict == "drop":
            packet.ends(DROPPED_ENQUEUE, now)
            continue
        if occupancy + packet.length > limit:
            packet.ends(DROPPED_FULL, now)
            model.full()
            continue
        packet.marked = verdict == "mark"
        queue.push(packet)
        if on_line is None:
            start, bits = now, 0
            following = model.dequeue(now, queue)
            assert following is not None, "a packet that did not wait is never dropped here"
            put_on_line(following)

    while line_end is not None:
        advance(line_end)


def traffic(seed, phases, sizes, ect_share=0.0, together=0.0):
    """Packets of an open loop.

    `phases` is a list of (nanoseconds, bit/s), `sizes` a list of lengths, or of ranges, one of
    which is picked for each packet. `ect_share` of the packets are ECN-capable. A packet comes
    with the share `together` in the same nanosecond as the one before it.

    Only Random.random() is used: its sequence is the same in every release of Python 3.
    """
    chance = random.Random(seed)
    uniforms = random.Random(seed + 1_000_000)
    packets = []
    now = 0
    begin = 0
    for duration, load in phases:
        now = max(now, begin)
        begin += duration
        while now < begin and load > 0:
            size = sizes[int(chance.random() * len(sizes))]
            if isinstance(size, range):
                size = size.start + int(chance.random() * len(size))
            ect = chance.random() < ect_share
            packets.append(Packet(len(packets), now, size, ect, uniforms.random()))
            gap = int(2.0 * chance.random() * (size * 8 * NANOSECONDS / load))
            if chance.random() >= together:
                now += gap
    return packets


def paced(seed, count, gap, length, ect_every=0, pause=None):
    """`count` packets of one length, exactly `gap` ns apart: their arrivals fall together with
    ends of packets and with updates. `pause` is (after how many packets, how long)."""
    uniforms = random.Random(seed + 1_000_000)
    packets = []
    now = 0
    for index in range(count):
        ect = ect_every > 0 and index % ect_every == 0
        packets.append(Packet(index, now, length, ect, uniforms.random()))
        now += gap
        if pause and (index + 1) % pause[0] == 0:
            now += pause[1]
    return packets


def write(path, parameters, packets, by_chance):
    """The vector: one line of parameters, one of column names, a row for each packet. The
    uniforms are left out (0.0) where the model asks for none."""
    lines = ["# " + " ".join(f"{name}={value}" for name, value in parameters.items())]
    lines.append("index,arrival_ns,length,ect,u,fate,time_ns")
    for packet in packets:
        assert packet.fate is not None
        lines.append(
            f"{packet.index},{packet.arrival},{packet.length},{int(packet.ect)},"
            f"{packet.uniform if by_chance else 0.0!r},{packet.fate},{packet.time}"
        )
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
