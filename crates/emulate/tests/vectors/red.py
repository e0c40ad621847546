"""RED, from figure 2 of Floyd and Jacobson, "Random Early Detection Gateways for Congestion
Avoidance", IEEE/ACM Transactions on Networking, August 1993; "gentle" from Floyd, "Recommendation
on using the 'gentle_' variant of RED", March 2000.

* The queue, its average and its thresholds are in bytes; the packet on the line belongs to the
  queue, so that the queue is empty exactly while the line is idle (q_time is the end of the last
  packet, and 0 before the first).
* The queue is measured in bytes and the chance is not scaled by the packet's length: figure 2 as
  it stands (the paper offers the scaling as an option in section IV), and what RFC 7141 advises
  for a line that is congested by bytes, sections 2.1 (Recommendation on Queue Measurement) and
  2.2 (Recommendation on Encoding Congestion Notification).
* m = f(time - q_time) is (time - q_time) / s with the typical time `s` of one packet, cut to a
  whole number. (1 - w_q)^m is computed by squaring, lowest bit of m first, so that it comes out
  the same wherever doubles do.
* q_time is set when the queue becomes empty, and not by a packet that comes to the empty queue
  and is dropped: the next one finds m counted from the same q_time again, and the average decays
  for that idle time twice. That is figure 2 to the letter.
* Where count * p_b reaches 1, p_a is 1: the paper's fraction has left its range there.
* gentle: from max_th to 2 max_th the chance p_b rises from max_p to 1 in a straight line, and
  count works on it as it does below max_th.
* "Mark the arriving packet" sets CE with ECN on an ECT packet, at any average, and drops it
  otherwise.
"""

from bottleneck import Model


def power(base, exponent):
    """base ** exponent by squaring, in doubles."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


class Red(Model):
    branches = [
        "idle_decay",
        "idle_decay_again",
        "below_min",
        "between",
        "between_hit",
        "certain",
        "gentle",
        "gentle_hit",
        "gentle_late",
        "above_max",
        "above_twice_max",
        "mark",
        "drop",
    ]

    def __init__(self, min_th, max_th, max_p, w_q, packet_time, gentle, ecn):
        super().__init__()
        self.min_th = min_th
        self.max_th = max_th
        self.max_p = max_p
        self.w_q = w_q
        self.packet_time = packet_time
        self.gentle = gentle
        self.ecn = ecn
        self.avg = 0.0
        self.count = -1
        self.q_time = 0
        # For the account of branches only: the q_time from which the average decayed last.
        self.decayed_from = None

    def enqueue(self, now, occupancy, packet):
        """Figure 2, "for each packet arrival"."""
        if occupancy > 0:
            self.avg = (1.0 - self.w_q) * self.avg + self.w_q * occupancy
        else:
            self.note("idle_decay_again" if self.q_time == self.decayed_from else "idle_decay")
            self.decayed_from = self.q_time
            m = (now - self.q_time) // self.packet_time
            self.avg = power(1.0 - self.w_q, m) * self.avg
        if self.avg < self.min_th:
            self.note("below_min")
            self.count = -1
            return "pass"
        if self.avg < self.max_th:
            self.note("between")
            p_b = self.max_p * (self.avg - self.min_th) / (self.max_th - self.min_th)
            hit = self.chance(p_b, packet.uniform)
            self.note("between_hit" if hit else "between_miss")
        elif self.gentle and self.avg < 2.0 * self.max_th:
            self.note("gentle" if self.avg < 1.5 * self.max_th else "gentle_late")
            p_b = self.max_p + (1.0 - self.max_p) * (self.avg - self.max_th) / self.max_th
            hit = self.chance(p_b, packet.uniform)
            self.note("gentle_hit" if hit else "gentle_miss")
        else:
            self.note("above_twice_max" if self.gentle else "above_max")
            hit = True
        if not hit:
            return "pass"
        self.count = 0
        if self.ecn and packet.ect:
            self.note("mark")
            return "mark"
        self.note("drop")
        return "drop"

    def chance(self, p_b, uniform):
        self.count += 1
        spread = self.count * p_b
        if spread >= 1.0:
            self.note("certain")
            p_a = 1.0
        else:
            p_a = p_b / (1.0 - spread)
        return uniform < p_a

    def idle(self, now):
        """Figure 2, "when queue becomes empty"."""
        self.q_time = now
