"""PIE, from the pseudocode of RFC 8033: appendix A, with the options of section 5 named below.

* Appendix A (The Basic PIE Pseudocode) gives enque, drop_early, deque and calculate_drop_prob.
  Latency is taken from time stamps, as there and in section 4.3.
* Section 5.1 (ECN Support): a packet that would be dropped is marked while drop_prob is below
  mark_ecnth and the packet is ECT.
* Section 5.4 (Derandomization), as in appendix B: accu_prob.
* Section 5.5 (Cap Drop Adjustment), as in appendix B.

Not taken, all of it optional:

* Section 5.2 (rate estimation): time stamps are there.
* Section 5.3 (turning PIE on and off). It does change fates: there, PIE is inactive until the
  queue is longer than a third of TAIL_DROP, and what passes before is no part of a burst. Here
  PIE is always active, as in appendix A.
* Scaling alpha and beta with QDELAY_REF (section 4.2, for references that are smaller by orders
  of magnitude): they are what appendix A sets, whatever the target.
* Scaling the probability by the packet's length.

What the text leaves open:

* A queue in which nothing waits once a packet has been taken out has a delay of 0, as by Little's
  law in section 4.3; otherwise the stamp of the last packet before a pause would count for ever.
* Section 4.2 and appendix A decay the probability when both delays are 0, appendix B when both are
  below QDELAY_REF/2; section 4.2 and appendix A are followed, as in Linux and FreeBSD.
* `queue_.byte_length()` includes the packet on the line.
* MEAN_PKTSIZE is a parameter: a full-size packet as the line counts it.
* burst_allowance is asked first (appendix A): a packet that it covers adds nothing to accu_prob.
* accu_prob goes back to 0 with every packet that is dropped or marked by the model, and with
  every packet that found the queue full (appendix B).
* Delays are doubles in seconds (nanoseconds / 1e9); burst_allowance is in whole nanoseconds.
* Updates come each T_UPDATE from time 0 on, busy or idle. For another T_UPDATE than 15 ms,
  section 4.2 says what to do when it is halved: alpha is halved and beta grows by a quarter of
  the former alpha. In general: alpha in proportion, and beta + alpha/2 kept.
"""

from bottleneck import IP_PACKET, Model

# Appendix A: in 1/s, for a T_UPDATE of 15 ms.
ALPHA = 0.125
BETA = 1.25
T_UPDATE = 15_000_000
# Appendix B: bounds of accu_prob between which chance decides.
ACCU_LOW = 0.85
ACCU_HIGH = 8.5


class Pie(Model):
    branches = [
        "burst_renewed",
        "burst_covers",
        "safe_by_delay",
        "safe_by_length",
        "safe_by_overhead",
        "accu_forgotten",
        "accu_low",
        "accu_high",
        "spared",
        "drop",
        "mark",
        "drop_above_ecnth",
        "scale_2048",
        "scale_512",
        "scale_128",
        "scale_32",
        "scale_8",
        "scale_2",
        "scale_1",
        "capped",
        "decayed",
        "short_undecayed",
        "bounded_low",
        "bounded_high",
        "full",
    ]

    def __init__(self, target, update, max_burst, mean_packet, ecn, mark_ecnth):
        super().__init__()
        self.period = update
        self.alpha = ALPHA * (update / T_UPDATE)
        self.beta = BETA + (ALPHA - self.alpha) / 2.0
        self.qdelay_ref = target / 1e9
        self.max_burst = max_burst
        self.mean_packet = mean_packet
        self.ecn = ecn
        self.mark_ecnth = mark_ecnth
        self.burst_allowance = 0
        self.drop_prob = 0.0
        self.accu_prob = 0.0
        self.current_qdelay = 0.0
        self.qdelay_old = 0.0

    def enqueue(self, now, occupancy, packet):
        """Appendix A, enque()."""
        if (
            self.drop_prob == 0
            and self.current_qdelay < self.qdelay_ref / 2
            and self.qdelay_old < self.qdelay_ref / 2
        ):
            self.note("burst_renewed")
            self.burst_allowance = self.max_burst
        if self.burst_allowance > 0:
            self.note("burst_covers")
            return "pass"
        if not self.drop_early(occupancy, packet.uniform):
            return "pass"
        self.accu_prob = 0.0
        if self.ecn and packet.ect:
            if self.drop_prob < self.mark_ecnth:
                self.note("mark")
                return "mark"
            self.note("drop_above_ecnth")
        self.note("drop")
        return "drop"

    def drop_early(self, occupancy, uniform):
        """Appendix A, drop_early(), with section 5.4 as in appendix B."""
        if self.qdelay_old < self.qdelay_ref / 2 and self.drop_prob < 0.2:
            self.note("safe_by_delay")
            return False
        if occupancy <= 2 * self.mean_packet:
            self.note("safe_by_overhead" if occupancy > 2 * IP_PACKET else "safe_by_length")
            return False
        if self.drop_prob == 0:
            if self.accu_prob > 0:
                self.note("accu_forgotten")
            self.accu_prob = 0.0
        self.accu_prob += self.drop_prob
        if self.accu_prob < ACCU_LOW:
            self.note("accu_low")
            return False
        if self.accu_prob >= ACCU_HIGH:
            self.note("accu_high")
            return True
        if uniform < self.drop_prob:
            return True
        self.note("spared")
        return False

    def full(self):
        self.note("full")
        self.accu_prob = 0.0

    def dequeue(self, now, queue):
        """Appendix A, deque()."""
        packet = queue.pop()
        if packet is not None:
            waits = len(queue.packets) > 0
            self.current_qdelay = (now - packet.arrival) / 1e9 if waits else 0.0
        return packet

    def update(self):
        """Appendix A, calculate_drop_prob(), with section 5.5 as in appendix B."""
        p = self.alpha * (self.current_qdelay - self.qdelay_ref) + self.beta * (
            self.current_qdelay - self.qdelay_old
        )
        scale = 1
        for bound, divisor in [
            (0.000001, 2048),
            (0.00001, 512),
            (0.0001, 128),
            (0.001, 32),
            (0.01, 8),
            (0.1, 2),
        ]:
            if self.drop_prob < bound:
                scale = divisor
                break
        self.note(f"scale_{scale}")
        p /= scale
        if self.drop_prob >= 0.1 and p > 0.02:
            self.note("capped")
            p = 0.02
        self.drop_prob += p
        if self.current_qdelay == 0 and self.qdelay_old == 0:
            if self.drop_prob > 0:
                self.note("decayed")
            self.drop_prob *= 0.98
        elif (
            self.current_qdelay < self.qdelay_ref / 2
            and self.qdelay_old < self.qdelay_ref / 2
            and self.drop_prob > 0
        ):
            self.note("short_undecayed")
        if self.drop_prob < 0:
            self.note("bounded_low")
            self.drop_prob = 0.0
        if self.drop_prob > 1:
            self.note("bounded_high")
            self.drop_prob = 1.0
        self.qdelay_old = self.current_qdelay
        self.burst_allowance = max(0, self.burst_allowance - self.period)
