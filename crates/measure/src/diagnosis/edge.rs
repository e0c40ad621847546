//! The edge of a bucket: between room for a packet and none lies one packet, wherever the losses are.
//!
//! ```text
//!  deficit ▲      (nothing comes here)
//!     full ┼ ─ ─ x ─ ─ ─ x x ─ ─ ─ ─ x ─ ─ ┐ a packet's length: what comes here is lost
//!          ┼ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┘
//!          │  . . .  . x . .  . . . . . .     passes; what is lost here, is lost by chance
//! ```
//! At the bucket's own rate all losses that it makes lie in that window; at any other they are strewn, for the
//! rate's error adds up since the bucket was last full. So the rate is the one at which a window one packet
//! high tells losses from passes best, by the likelihood ratio of two shares. It is found to a part of a
//! percent where the losses' distances differ, and a bucket is found among losses by chance that outnumber its
//! own, for which no threshold on the deficit tells most. Where the losses are met in flights that are all alike,
//! other rates tell them as well, and the edge says that it is not the only one.

use std::ops::Range;

use super::bucket::deficits;
use super::passage::{PacketFate, PacketPassage};

/// Bins of deficits in a packet.
const BINS_IN_PACKET: f64 = 8.0;
/// Bins at most: a bucket of 60 MB at 1,500 bytes a packet.
const MOST_BINS: usize = 320_000;
/// The first steps of the rate, and how many of the best are looked at closely.
const STEP: f64 = 0.02;
const PEAKS: usize = 3;
/// Refinement factor of each further step, and the number of steps.
const FINER: f64 = 8.0;
const TIMES_FINER: usize = 4;
/// Rates are looked for from this share of the least that passed between losses on ...
const SLOWEST: f64 = 0.9;
/// ... up to this many times the usual one: a sender may leave most of the rate unused.
const FASTEST: f64 = 128.0;
/// The height of the window in packets.
const WINDOW_PACKETS: f64 = 1.25;
/// Least size of a bucket, in packets: a smaller deficit shows only that packets came close
/// together.
const LEAST_PACKETS: f64 = 3.2;
/// Greatest relative distance of rates that count as the same.
const NEAR: f64 = 0.035;
/// Least additional evidence that distinguishes a rate from all others, in nats: as unlikely as one
/// in fifty.
const ONLY_BY: f64 = 4.0;

/// A bucket by its edge.
#[derive(Clone, Debug)]
pub(super) struct BucketEdge {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Deficit at which there is no room for a packet, in bytes.
    pub(super) full: f64,
    /// Losses in the window, and passes.
    pub(super) lost: usize,
    pub(super) passed: usize,
    /// Log-likelihood gain of two loss shares over one, in nats.
    pub(super) evidence: f64,
    /// Set if rates that are some percent away have less evidence; otherwise the capture does not
    /// determine the rate.
    pub(super) is_only: bool,
}

impl BucketEdge {
    /// Tells whether a deficit lies in the window in which packets are lost.
    pub(super) fn holds(&self, deficit: f64, packet: f64) -> bool {
        deficit <= self.full && deficit >= self.full - WINDOW_PACKETS * packet
    }
}

/// The bucket whose edge best separates losses from passes. `goodput` is the range of traffic
/// between them, from the least for some time to the usual; `likely` is a rate that is tried as
/// well. Passages are in the order in which they reach the bucket.
pub(super) fn edge(
    passages: &[PacketPassage],
    goodput: Range<f64>,
    likely: f64,
    packet: f64,
) -> Option<BucketEdge> {
    let best_first = |a: &BucketEdge, b: &BucketEdge| b.evidence.total_cmp(&a.evidence);
    let look = |rate: f64, step: f64| at_rate(passages, rate, packet, step);
    let slowest = SLOWEST * goodput.start;
    let steps = ((FASTEST * goodput.end / slowest).ln() / STEP) as i32;
    let rates = (0..steps).map(|step| slowest * (f64::from(step) * STEP).exp());
    let mut all: Vec<BucketEdge> = rates.filter_map(|rate| look(rate, STEP)).collect();
    all.extend(look(likely, STEP));
    let coarse: Vec<(f64, f64)> = all.iter().map(|edge| (edge.rate, edge.evidence)).collect();
    all.sort_by(best_first);
    let mut edges: Vec<BucketEdge> = Vec::new();
    for edge in all {
        // The neighbours of a peak are no peaks.
        let is_near = |peak: &BucketEdge| (peak.rate / edge.rate).ln().abs() < 1.5 * STEP;
        if edges.len() < PEAKS && !edges.iter().any(is_near) {
            edges.push(edge);
        }
    }
    edges.extend(look(likely, STEP / FINER));
    let mut step = STEP;
    for _ in 0..TIMES_FINER {
        let finer = step / FINER;
        // Each step's neighbours are looked at as well.
        let around = (-(FINER as i32)..=FINER as i32).map(|by| f64::from(by) * finer);
        let near = around.flat_map(|by| edges.iter().map(move |edge| edge.rate * (1.0 + by)));
        let near: Vec<BucketEdge> = near.filter_map(|rate| look(rate, finer)).collect();
        edges = near;
        edges.sort_by(best_first);
        edges.truncate(PEAKS + 1);
        step = finer;
    }
    let best = edges.into_iter().next()?;
    let most = |is_near: bool| {
        let some = coarse
            .iter()
            .filter(|(rate, _)| ((rate / best.rate).ln().abs() < NEAR) == is_near);
        some.map(|(_, evidence)| *evidence).fold(0.0, f64::max)
    };
    Some(BucketEdge {
        is_only: most(true) > most(false) + ONLY_BY,
        ..best
    })
}

/// The best window at a rate that is known to within a share `step`.
fn at_rate(passages: &[PacketPassage], rate: f64, packet: f64, step: f64) -> Option<BucketEdge> {
    let found = deficits(passages, rate, None);
    let highest = found.iter().copied().fold(0.0, f64::max);
    let bin = f64::max(packet / BINS_IN_PACKET, highest / MOST_BINS as f64);
    // Passes with a deficit of as many bins or more.
    let mut passes = vec![0_u32; (highest / bin) as usize + 2];
    let mut losses: Vec<f64> = Vec::new();
    for (passage, found) in passages.iter().zip(&found) {
        match passage.fate {
            PacketFate::Lost => losses.push(*found),
            PacketFate::Passed(_) => passes[(found / bin) as usize] += 1,
        }
    }
    for index in (1..passes.len()).rev() {
        passes[index - 1] += passes[index];
    }
    let all_passes = passes[0] as usize;
    let above = |deficit: f64| match deficit {
        ..0.0 => all_passes,
        _ => passes[((deficit / bin).round() as usize).min(passes.len() - 1)] as usize,
    };
    losses.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut best: Option<BucketEdge> = None;
    let mut end = 0;
    for (begin, full) in losses.iter().enumerate() {
        if *full < LEAST_PACKETS * packet {
            break;
        }
        // What is above one that was lost at the same deficit is in the same window.
        if begin > 0 && losses[begin - 1] == *full {
            continue;
        }
        let height = WINDOW_PACKETS * packet + step * full;
        let bottom = full - height;
        while losses.get(end).is_some_and(|deficit| *deficit >= bottom) {
            end += 1;
        }
        let lost = end - begin;
        let passed = above(bottom) - above(full + bin);
        let evidence = evidence(lost, passed, losses.len(), all_passes);
        if best.as_ref().is_none_or(|best| evidence > best.evidence) {
            best = Some(BucketEdge {
                rate,
                full: *full,
                lost,
                passed,
                evidence,
                is_only: false,
            });
        }
    }
    best
}

/// Log-likelihood gain of two loss shares, in the window and outside of it, over one share. It is
/// zero for a window in which fewer packets are lost than outside.
fn evidence(lost: usize, passed: usize, all_lost: usize, all_passed: usize) -> f64 {
    let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
    let term = |part: f64, share: f64| if part > 0.0 { part * share.ln() } else { 0.0 };
    let (lost, passed) = (lost as f64, passed as f64);
    let (all_lost, all_passed) = (all_lost as f64, all_passed as f64);
    let all = all_lost + all_passed;
    let (within, beyond) = (lost + passed, all - lost - passed);
    let inside = share(lost, within);
    let outside = share(all_lost - lost, beyond);
    if inside <= outside {
        return 0.0;
    }
    let likelihood =
        |lost: f64, passed: f64, share: f64| term(lost, share) + term(passed, 1.0 - share);
    likelihood(lost, passed, inside) + likelihood(all_lost - lost, all_passed - passed, outside)
        - likelihood(all_lost, all_passed, share(all_lost, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::SeededRandom;

    /// Packets in flights of random sizes at 100 Mbit/s, before a policer of 8 Mbit/s and 45 kB; a
    /// share of them is also lost at random.
    fn policed(chance: f64) -> Vec<PacketPassage> {
        let mut random = SeededRandom::from_seed(7);
        let (mut room, mut at) = (45_000.0_f64, 0.0);
        let mut passages = Vec::new();
        while passages.len() < 6_000 {
            at += 0.005 + 0.06 * random.next_f64();
            for _ in 0..random.below(60) {
                let gap = 1_500.0 / 12.5e6;
                at += gap;
                let last = passages
                    .last()
                    .map_or(0.0, |last: &PacketPassage| last.sent);
                room = (room + 1e6 * (at - last)).min(45_000.0);
                let is_lost = room < 1_500.0 || random.next_f64() < chance;
                if !is_lost {
                    room -= 1_500.0;
                }
                passages.push(PacketPassage {
                    sent: at,
                    seen: at,
                    bytes: 1_500.0,
                    fate: match is_lost {
                        true => PacketFate::Lost,
                        false => PacketFate::Passed(None),
                    },
                });
            }
        }
        passages
    }

    #[test]
    fn rate_is_found_within_half_a_percent() {
        let found = edge(&policed(0.0), 0.6e6..0.6e6, 0.6e6, 1_500.0).expect("losses");
        assert!((found.rate / 1e6 - 1.0).abs() < 0.005, "{found:?}");
        assert!((found.full / 45_000.0 - 1.0).abs() < 0.04, "{found:?}");
        assert!(10 * found.passed < found.lost, "{found:?}");
        assert!(found.is_only, "{found:?}");
    }

    /// A full bucket of 45 kB has room for the first thirty packets of each, at any rate.
    #[test]
    fn identical_flights_do_not_determine_the_rate() {
        let passage = |place: u32| {
            let at = f64::from(place / 40) + 0.000_01 * f64::from(place % 40);
            PacketPassage {
                sent: at,
                seen: at,
                bytes: 1_500.0,
                fate: match place % 40 {
                    0..30 => PacketFate::Passed(None),
                    _ => PacketFate::Lost,
                },
            }
        };
        let passages: Vec<PacketPassage> = (0..4_000).map(passage).collect();
        let found = edge(&passages, 45_000.0..45_000.0, 0.6e6, 1_500.0).expect("losses");
        assert!(!found.is_only, "{found:?}");
    }

    #[test]
    fn a_bucket_is_found_among_losses_by_chance() {
        let found = edge(&policed(0.3), 0.6e6..0.6e6, 0.6e6, 1_500.0).expect("losses");
        assert!((found.rate / 1e6 - 1.0).abs() < 0.01, "{found:?}");
    }

    /// The least that passed for some time may be far below the rate, and be no reason to look there alone.
    #[test]
    fn nearly_idle_period_hides_no_rate() {
        let found = edge(&policed(0.0), 0.04e6..0.6e6, 0.04e6, 1_500.0).expect("losses");
        assert!((found.rate / 1e6 - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn chance_alone_has_no_edge() {
        let mut random = SeededRandom::from_seed(8);
        let passages: Vec<PacketPassage> = policed(0.0)
            .into_iter()
            .map(|passage| PacketPassage {
                fate: match random.next_f64() < 0.02 {
                    true => PacketFate::Lost,
                    false => PacketFate::Passed(None),
                },
                ..passage
            })
            .collect();
        let found = edge(&passages, 0.6e6..0.6e6, 0.6e6, 1_500.0).expect("losses");
        assert!(found.evidence < 15.0, "{found:?}");
    }
}
