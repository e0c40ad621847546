#!/usr/bin/env python3
"""Writes every vector beside this file: `python3 make_vectors.py`, or with --check compares.

The same bytes come out each time. It fails when a model has a branch that no vector takes.
"""

import random
import sys
import tempfile
from pathlib import Path

# Nothing but vectors is left behind in this folder.
sys.dont_write_bytecode = True

from bottleneck import Packet, paced, run, traffic, write
from codel import CoDel
from pie import Pie
from policer import Bucket, police
from red import Red
from shaper import shape

MS = 1_000_000
SECOND = 1_000_000_000
FULL_SIZE = [1500]
# What a full-size packet counts as on a line whose overhead is an Ethernet header.
FULL_FRAME = [1514]
MIXED_FRAMES = [78, 590, 1514, range(78, 1515)]
MIXED = [64, 576, 1500, range(64, 1501)]
# A prime: no packet takes a whole number of nanoseconds.
ODD_RATE = 3_999_971


def codel_cases():
    slow, slower = 10_000_000, 4_000_000
    waves = [(500 * MS, 15_000_000), (300 * MS, 5_000_000)] * 3
    hard = [(700 * MS, 6_000_000), (500 * MS, 1_000_000), (900 * MS, 5_000_000)]
    swell = [(400 * MS, 6_500_000), (250 * MS, 1_500_000)] * 4
    ties = paced(16, 1_800, 3 * MS // 4, 1500, ect_every=2, pause=(450, 300 * MS))
    settings = {"target": 5 * MS, "interval": 100 * MS, "maxpacket": 1500, "ecn": False}
    ecn = {**settings, "ecn": True}
    fast = {"target": 2 * MS, "interval": 20 * MS, "maxpacket": 1500, "ecn": True}
    framed = {**settings, "maxpacket": 1514}
    framed_ecn = {**ecn, "maxpacket": 1514}
    steady = [(2 * SECOND, 8_000_000)]
    over = [(2_500 * MS, 11_000_000)]
    # So slow a line that one packet behind another is above the target.
    crawl = [(2 * SECOND, 1_200_000), (1_500 * MS, 900_000), (1_200 * MS, 1_000_000)] * 2
    # Dropping stops after the third drop, and begins again soon.
    returns = [
        phase
        for length in range(200, 320, 20)
        for phase in ((length * MS, 13_000_000), (260 * MS, 2_000_000))
    ]
    return [
        ("codel_light", slow, 150_000, settings, traffic(11, steady, FULL_SIZE)),
        ("codel_overload", slow, 150_000, settings, traffic(12, over, FULL_SIZE)),
        ("codel_bursts", slow, 400_000, settings, traffic(13, waves, FULL_SIZE)),
        ("codel_mixed", slower, 300_000, settings, traffic(14, hard, MIXED, together=0.1)),
        ("codel_ecn", slower, 300_000, ecn, traffic(15, hard, MIXED, ect_share=0.5)),
        ("codel_ecn_fast", slower, 200_000, fast, traffic(17, swell, MIXED, ect_share=0.3)),
        ("codel_ties", 12_000_000, 400_000, ecn, ties),
        ("codel_returns", slow, 400_000, settings, traffic(18, returns, FULL_SIZE)),
        ("codel_overhead", 1_000_000, 100_000, framed, traffic(10, crawl, FULL_FRAME)),
        ("codel_overhead_mixed", slower, 300_000, framed_ecn, traffic(9, hard, MIXED_FRAMES, 0.5)),
        ("codel_odd_rate", ODD_RATE, 200_000, ecn, traffic(19, hard, MIXED, ect_share=0.3)),
    ]


def unlucky(packets):
    """The same packets with uniforms near 1, for which chance alone hardly ever drops."""
    for packet in packets:
        packet.uniform = 1.0 - (1.0 - packet.uniform) / 64.0
    return packets


def eager(packets):
    """The same packets with uniforms near 0: a packet is dropped as soon as chance may decide."""
    for packet in packets:
        packet.uniform /= 64.0
    return packets


def standing(seed, line_time):
    """A queue that stands at 40 packets, then at 10, then at 60, while one packet comes for each
    that the line takes away."""
    uniforms = random.Random(seed)
    arrivals = []
    now = 0
    for count, packets in ((40, 200), (-30, 300), (50, 400)):
        arrivals += [now] * max(0, count)
        now += max(0, -count) * line_time
        for _ in range(packets):
            now += line_time
            arrivals.append(now)
    return [
        Packet(index, arrival, 1500, False, uniforms.random())
        for index, arrival in enumerate(arrivals)
    ]


def pie_cases():
    slow, slower = 10_000_000, 4_000_000
    waves = [(700 * MS, 14_000_000), (600 * MS, 3_000_000)] * 2
    climb = [(900 * MS, 6_000_000), (600 * MS, 1_500_000), (700 * MS, 5_500_000)]
    flood = [(600 * MS, 12_000_000), (300 * MS, 500_000)]
    gentle = [(1_700 * MS, 10_500_000), (200 * MS, 5_000_000), (900 * MS, 10_500_000)]
    ties = paced(26, 2_000, 3 * MS // 4, 1500, ect_every=3, pause=(900, 450 * MS))
    settings = {
        "target": 15 * MS,
        "update": 15 * MS,
        "max_burst": 150 * MS,
        "mean_packet": 1500,
        "ecn": False,
        "mark_ecnth": 0.1,
    }
    ecn = {**settings, "ecn": True}
    slowly = {**settings, "target": 400 * MS}
    generous = {**settings, "update": 5 * MS}
    often = {**ecn, "update": 5 * MS, "target": 5 * MS, "max_burst": 30 * MS}
    framed = {**settings, "mean_packet": 1514}
    steady = [(2 * SECOND, 8_000_000)]
    over = [(3 * SECOND, 11_000_000)]
    crawl = [(2 * SECOND, 1_300_000), (1_500 * MS, 900_000), (1_200 * MS, 1_000_000)] * 2
    return [
        ("pie_light", slow, 150_000, settings, traffic(21, steady, FULL_SIZE)),
        ("pie_overload", slow, 300_000, ecn, traffic(22, over, FULL_SIZE, ect_share=0.5)),
        ("pie_bursts", slow, 400_000, settings, traffic(23, waves, FULL_SIZE)),
        ("pie_mixed", slower, 100_000, settings, traffic(24, climb, MIXED, together=0.1)),
        ("pie_ecn", slow, 400_000, ecn, traffic(25, gentle, FULL_SIZE, ect_share=0.6)),
        ("pie_often", slower, 90_000, often, traffic(27, climb, MIXED, ect_share=0.5)),
        ("pie_flood", slower, 60_000, settings, traffic(28, flood, MIXED)),
        ("pie_unlucky", slow, 400_000, settings, unlucky(traffic(29, over, FULL_SIZE))),
        ("pie_ties", 12_000_000, 400_000, ecn, ties),
        ("pie_standing", 12_000_000, 400_000, settings, eager(standing(51, MS))),
        ("pie_eager", slower, 90_000, generous, eager(traffic(52, climb, MIXED))),
        # A packet takes exactly twelve updates, and one comes after each eleven.
        ("pie_slow", 64_000, 60_000, slowly, paced(53, 900, 165 * MS, 1440)),
        ("pie_overhead", 1_000_000, 100_000, framed, traffic(20, crawl, FULL_FRAME)),
        ("pie_odd_rate", ODD_RATE, 90_000, ecn, traffic(54, climb, MIXED, 0.5)),
    ]


def red_cases():
    slow, slower = 10_000_000, 4_000_000
    waves = [(300 * MS, 13_000_000), (250 * MS, 3_000_000)] * 4
    swell = [(300 * MS, 6_000_000), (250 * MS, 1_000_000)] * 4
    gaps = [(150 * MS, 6_000_000), (120 * MS, 0)] * 6
    ties = paced(36, 2_000, 3 * MS // 4, 1500, ect_every=3, pause=(400, 250 * MS))
    settings = {
        "min_th": 15_000,
        "max_th": 45_000,
        "max_p": 0.02,
        "w_q": 0.002,
        "packet_time": 1_200_000,
        "gentle": False,
        "ecn": False,
    }
    quick = {**settings, "w_q": 0.02, "max_p": 0.1}
    quick_ecn = {**quick, "ecn": True}
    gentle = {**quick, "gentle": True}
    gentle_ecn = {**gentle, "ecn": True}
    # No average at all: from below min_th one packet leads to between 1.5 and 2 max_th.
    steep = {**gentle, "w_q": 1.0, "min_th": 1_600, "max_th": 1_900}
    flood = [(200 * MS, 20_000_000), (200 * MS, 50_000_000), (100 * MS, 150_000_000)]
    steady = [(2 * SECOND, 8_500_000)]
    over = [(2 * SECOND, 13_000_000)]
    return [
        ("red_light", slow, 120_000, settings, traffic(31, steady, FULL_SIZE)),
        ("red_overload", slow, 120_000, settings, traffic(32, over, FULL_SIZE)),
        ("red_bursts", slow, 120_000, quick, traffic(33, waves, FULL_SIZE)),
        ("red_mixed", slower, 90_000, quick, traffic(34, gaps, MIXED, together=0.1)),
        ("red_gentle", slow, 150_000, gentle, traffic(35, over, FULL_SIZE)),
        ("red_gentle_ecn", slower, 90_000, gentle_ecn, traffic(37, swell, MIXED, 0.5)),
        ("red_ecn", slower, 90_000, quick_ecn, traffic(38, gaps, MIXED, 0.7)),
        ("red_ties", 12_000_000, 90_000, quick_ecn, ties),
        ("red_flood", slow, 150_000, gentle, traffic(55, flood, FULL_SIZE)),
        ("red_steep", slow, 90_000, steep, traffic(57, over, FULL_SIZE, together=0.3)),
        ("red_odd_rate", ODD_RATE, 90_000, quick_ecn, traffic(56, swell, MIXED, 0.5)),
    ]


BUCKET_CASES = {
    # Name: (rate, burst, peak rate, peak burst); 0 is no peak.
    "rate": (10_000_000, 15_000, 0, 0),
    # Has no factor in common with the units: tokens come in odd pieces.
    "odd_rate": (7_777_777, 6_001, 0, 0),
    "peak": (5_000_000, 30_000, 13_000_000, 1_500),
    # A peak bucket below some packets: those never pass.
    "small_peak": (5_000_000, 20_000, 9_000_001, 1_200),
}


# Ties are for the even rate; through the small peak bucket no full-size packet passes.
LEFT_OUT = [
    ("odd_rate", "ties"),
    ("peak", "ties"),
    ("small_peak", "ties"),
    ("small_peak", "bursts"),
]


def bucket_traffic(seed, rate):
    waves = [(400 * MS, rate * 2), (300 * MS, rate // 3), (200 * MS, 0)]
    waves += [(500 * MS, rate * 11 // 10), (200 * MS, rate * 9 // 10)]
    return [
        ("bursts", traffic(seed, waves, FULL_SIZE, together=0.1)),
        ("mixed", traffic(seed + 1, waves, MIXED, together=0.1)),
        # At 10 Mbit/s the bucket gains 1500 bytes in 1.2 ms: tokens are there to the nanosecond.
        ("ties", paced(seed + 2, 600, 1_200_000 // 2, 1500, pause=(40, 12 * MS))),
    ]


def buckets_of(rate, burst, peak_rate, peak_burst):
    buckets = [Bucket(rate, burst)]
    if peak_rate:
        buckets.append(Bucket(peak_rate, peak_burst))
    return buckets


def make(folder):
    taken = {}

    def finish(name, parameters, packets):
        model = name.split("_")[0]
        by_chance = model in ("pie", "red")
        write(folder / f"{name}.csv", {"model": model, **parameters}, packets, by_chance)

    for model, cases in ((CoDel, codel_cases()), (Pie, pie_cases()), (Red, red_cases())):
        seen = taken.setdefault(model, {})
        for name, rate, limit, settings, packets in cases:
            instance = model(**settings)
            run(packets, rate, limit, instance)
            for branch, times in instance.taken.items():
                seen[branch] = seen.get(branch, 0) + times
            finish(name, {"rate": rate, "limit": limit, **settings}, packets)
        missing = [branch for branch in model.branches if branch not in seen]
        print(model.__name__, seen)
        assert not missing, f"no vector of {model.__name__} takes {missing}"

    for number, (case, bucket) in enumerate(BUCKET_CASES.items()):
        names = ("rate", "burst", "peak_rate", "peak_burst")
        parameters = dict(zip(names, bucket))
        for load, packets in bucket_traffic(41 + 10 * number, bucket[0]):
            if (case, load) in LEFT_OUT:
                continue
            police(packets, buckets_of(*bucket))
            finish(f"policer_{case}_{load}", parameters, packets)
        for load, packets in bucket_traffic(81 + 10 * number, bucket[0]):
            if (case, load) in LEFT_OUT:
                continue
            limit = 40_000
            shape(packets, buckets_of(*bucket), limit)
            finish(f"shaper_{case}_{load}", {**parameters, "limit": limit}, packets)


def check(folder):
    """Makes all vectors anew and compares them with those that lie here."""
    with tempfile.TemporaryDirectory() as fresh:
        make(Path(fresh))
        made = {path.name: path.read_bytes() for path in Path(fresh).glob("*.csv")}
    kept = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    different = sorted(
        name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name)
    )
    if different:
        sys.exit(f"not what the scripts make: {', '.join(different)}")


if __name__ == "__main__":
    here = Path(__file__).parent
    if sys.argv[1:] == ["--check"]:
        check(here)
    else:
        make(here)
