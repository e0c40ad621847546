"""CoDel, from the pseudocode of RFC 8289 section 5, and marking beside it.

Section 5 is followed line by line; names in comments are its own. What it leaves open:

* `INTERVAL / sqrt(count)` is computed in IEEE double precision and cut to whole nanoseconds.
* `maxpacket` is a parameter (section 5.3 says that it should be the interface's MTU): a full-size
  packet as the line counts it.
* `bytes()` are the packets that still wait once the packet in question has been taken out.
* The pseudocode only drops. With ECN, an ECT packet is marked where it would be dropped, goes on
  to the line, and ends the loop; all else stays as it is. That is how Linux does it
  (include/net/codel_impl.h).
"""

import math

from bottleneck import DROPPED_DEQUEUE, IP_PACKET, Model


class CoDel(Model):
    branches = [
        "below_target",
        "below_maxpacket",
        "below_by_overhead",
        "just_above",
        "still_above",
        "empty",
        "enter",
        "enter_with_count",
        "enter_with_two",
        "leave_at_once",
        "leave_in_loop",
        "drop_in_loop",
        "drop_again_in_loop",
        "mark_on_entry",
        "mark_in_loop",
    ]

    def __init__(self, target, interval, maxpacket, ecn):
        super().__init__()
        self.target = target
        self.interval = interval
        self.maxpacket = maxpacket
        self.ecn = ecn
        # Section 5.2 (Per-Queue State).
        self.first_above_time = 0
        self.drop_next = 0
        self.count = 0
        self.lastcount = 0
        self.dropping = False

    def control_law(self, t, count):
        """Section 5.6 (Helper Routines)."""
        return t + int(self.interval / math.sqrt(count))

    def dodequeue(self, now, queue):
        """Section 5.6 (Helper Routines), dodequeue(): the next packet, and whether it is ok to drop it."""
        packet = queue.pop()
        ok_to_drop = False
        if packet is None:
            self.note("empty")
            self.first_above_time = 0
            return packet, ok_to_drop
        sojourn = now - packet.arrival
        if sojourn < self.target or queue.bytes <= self.maxpacket:
            if sojourn < self.target:
                self.note("below_target")
            else:
                overhead_counts = queue.bytes > IP_PACKET
                self.note("below_by_overhead" if overhead_counts else "below_maxpacket")
            # Went below: stay below for at least INTERVAL.
            self.first_above_time = 0
        elif self.first_above_time == 0:
            self.note("just_above")
            self.first_above_time = now + self.interval
        elif now >= self.first_above_time:
            self.note("still_above")
            ok_to_drop = True
        return packet, ok_to_drop

    def dequeue(self, now, queue):
        """Section 5.5 (Dequeue Routine), dequeue()."""
        packet, ok_to_drop = self.dodequeue(now, queue)
        if self.dropping:
            if not ok_to_drop:
                # Sojourn time below TARGET: leave the drop state.
                self.note("leave_at_once")
                self.dropping = False
            dropped = 0
            while now >= self.drop_next and self.dropping:
                self.count += 1
                if self.ecn and packet.ect:
                    self.note("mark_in_loop")
                    packet.marked = True
                    self.drop_next = self.control_law(self.drop_next, self.count)
                    return packet
                packet.ends(DROPPED_DEQUEUE, now)
                dropped += 1
                self.note("drop_in_loop" if dropped == 1 else "drop_again_in_loop")
                packet, ok_to_drop = self.dodequeue(now, queue)
                if not ok_to_drop:
                    self.note("leave_in_loop")
                    self.dropping = False
                else:
                    self.drop_next = self.control_law(self.drop_next, self.count)
        elif ok_to_drop:
            if self.ecn and packet.ect:
                self.note("mark_on_entry")
                packet.marked = True
            else:
                packet.ends(DROPPED_DEQUEUE, now)
                packet, ok_to_drop = self.dodequeue(now, queue)
            self.dropping = True
            # If min went above TARGET close to when it last went below, the drop rate that
            # controlled the queue on the last cycle is a good starting point.
            delta = self.count - self.lastcount
            self.count = 1
            if delta > 1 and now - self.drop_next < 16 * self.interval:
                self.note("enter_with_two" if delta == 2 else "enter_with_count")
                self.count = delta
            else:
                self.note("enter")
            self.drop_next = self.control_law(now, self.count)
            self.lastcount = self.count
        return packet
