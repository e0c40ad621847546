//! Line before the dropping hop, for example the sender's own: packets wait for it first.
//!
//! ```text
//!  sent ──► line, as fast as it is: all of them wait ──► bucket or queue: some are dropped
//! ```
//! What drops is judged by when packets reach it and how long they wait there. A capture at the sender sees
//! neither, but both follow once the line's rate is known: from the time before the first loss, when nothing
//! but the line lets packets wait. A queue that drops is such a line too; but what it drops, nothing waits
//! for.

use super::bucket::goodput;
use super::passage::{CapturePlace, HostStream, PacketFate, PacketPassage};
#[cfg(test)]
use super::statistics::looks;
use super::statistics::quantile;

/// Least rate of a line, as a multiple of the traffic between losses.
const FASTER: f64 = 1.8;
/// Least number of losses for a diagnosis.
const LEAST_LOSSES: usize = 5;

/// Side of the dropping hop on which a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineSide {
    /// Before the dropping hop: for example the sender's own line.
    Before,
    /// Behind the dropping hop, or the line itself drops.
    Behind,
}

/// Line whose queue explains the waits before the first loss. A bucket lets these packets pass;
/// those that wait do so for another line, for example the sender's own or one behind the bucket,
/// and for the same line later on.
pub(super) fn early_line(stream: &HostStream, noise: f64) -> Option<(f64, LineSide)> {
    /// Least number of waits for a diagnosis.
    const LEAST_WAITS: usize = 20;
    /// Shares of the usual wait that may remain: for a line before the dropping hop, and for a line
    /// behind it, which a queue of about the same rate may resemble.
    const LEFT: f64 = 0.25;
    const LEFT_BEHIND: f64 = 0.1;
    /// Steps by a tenth: from near to a hundred times the rate.
    const STEPS: i32 = 48;
    let passages = &stream.passages;
    let is_lost = |passage: &&PacketPassage| passage.fate == PacketFate::Lost;
    if stream.place == CapturePlace::Receiver
        || passages.iter().filter(is_lost).count() < LEAST_LOSSES
    {
        return None;
    }
    let first = passages.iter().position(|passage| is_lost(&passage))?;
    let early = &passages[..first];
    let least = 2.0 * noise;
    let known = |passage: &PacketPassage| match passage.fate {
        PacketFate::Passed(Some(wait)) if wait > least => Some(wait),
        PacketFate::Passed(_) | PacketFate::Lost => None,
    };
    let mut usual: Vec<f64> = early.iter().filter_map(known).collect();
    let count = usual.len();
    let usual = quantile(&mut usual, 0.5).filter(|_| count >= LEAST_WAITS)?;
    let left = |line: f64| {
        let waits = line_waits(early, Some(line));
        let both = early.iter().zip(waits);
        let mut left: Vec<f64> = both
            .filter_map(|(passage, waits)| Some((known(passage)? - waits).abs()))
            .collect();
        quantile(&mut left, 0.5).unwrap_or(f64::INFINITY)
    };
    let goodput = goodput(passages)?;
    let steps = (0..STEPS).map(|step| FASTER * goodput * 1.1_f64.powi(step));
    let best = |lines: &mut dyn Iterator<Item = f64>| {
        lines
            .map(|line| (left(line), line))
            .min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (_, near) = best(&mut steps.into_iter())?;
    // Between the steps.
    let mut fine = (-50..=50).map(|step| near * (1.0 + 0.002 * f64::from(step)));
    let (least, line) = best(&mut fine)?;
    let side = side(passages, line, noise)?;
    let most_left = match side {
        LineSide::Before => LEFT,
        LineSide::Behind => LEFT_BEHIND,
    };
    (least < most_left * usual).then_some((line, side))
}

/// Side of the dropping hop on which a line is. Packets that are dropped behind the line have used
/// their time on it, so later packets wait for them, too; no packet waits for those that are
/// dropped before it, or by its own queue.
fn side(passages: &[PacketPassage], line: f64, noise: f64) -> Option<LineSide> {
    /// Least number of waits for a diagnosis.
    const LEAST_WAITS: usize = 10;
    /// Least number, and least share, of waits that are too short for dropped packets to have used
    /// the line; other causes only lengthen waits.
    const LEAST_SHORT: usize = 3;
    const MANY_SHORT: f64 = 0.25;
    /// Differences between two backlogs that are not equally steady: as a share, and in packets.
    const STEADIER: f64 = 0.5;
    const STEADIER_PACKETS: f64 = 1.0;
    let passed: Vec<PacketPassage> = passages
        .iter()
        .filter(|passage| passage.fate != PacketFate::Lost)
        .copied()
        .collect();
    let of_passed = line_waits(&passed, Some(line));
    let all_waits = line_waits(passages, Some(line));
    let mut of_all = all_waits.clone();
    let mut fates = passages.iter().map(|passage| passage.fate);
    of_all.retain(|_| fates.next() != Some(PacketFate::Lost));
    let differ = 2.0 * noise;
    let (mut all, mut exact, mut short) = (0, 0, 0);
    for ((passage, with), without) in passed.iter().zip(of_all).zip(of_passed) {
        if let PacketFate::Passed(Some(wait)) = passage.fate
            && with - without > differ
        {
            all += 1;
            let half = 0.5 * (with - without);
            short += usize::from(wait < with - half);
            exact += usize::from((wait - with).abs() < half);
        }
    }
    if short >= LEAST_SHORT && short as f64 >= MANY_SHORT * all as f64 {
        return Some(LineSide::Behind);
    }
    if all < LEAST_WAITS {
        return None;
    }
    // What is full when it drops holds as much at each loss, reckoned from when packets reach it.
    let packet = passages.last()?.bytes / line;
    let before = unevenness(passages, &all_waits)?;
    let behind = unevenness(passages, &vec![0.0; passages.len()])?;
    match behind + STEADIER_PACKETS * packet < STEADIER * before && 2 * exact < all {
        true => Some(LineSide::Behind),
        false => Some(LineSide::Before),
    }
}

/// Variation from loss to loss of the remaining wait of the last packet that passed, where packets
/// are reached this much later than they were sent.
fn unevenness(passages: &[PacketPassage], later: &[f64]) -> Option<f64> {
    let mut last = None;
    let mut backlogs = Vec::new();
    for (passage, later) in passages.iter().zip(later) {
        match passage.fate {
            PacketFate::Lost => backlogs.extend(last.map(|left: f64| left - passage.sent - later)),
            PacketFate::Passed(wait) => last = wait.map(|wait| passage.sent + wait),
        }
    }
    Some(quantile(&mut backlogs, 0.75)? - quantile(&mut backlogs, 0.25)?)
}

/// Passages as they reach the hop behind a line, with their waits there.
pub(super) fn behind(passages: &[PacketPassage], line: Option<f64>) -> Vec<PacketPassage> {
    let shifted = |(passage, wait): (&PacketPassage, f64)| PacketPassage {
        sent: passage.sent + wait,
        fate: match passage.fate {
            PacketFate::Passed(Some(all)) => PacketFate::Passed(Some((all - wait).max(0.0))),
            other => other,
        },
        ..*passage
    };
    let waits = line_waits(passages, line);
    passages.iter().zip(waits).map(shifted).collect()
}

/// Wait of each packet for a line that also carries the packets dropped behind it.
pub(super) fn line_waits(passages: &[PacketPassage], line: Option<f64>) -> Vec<f64> {
    #[cfg(test)]
    looks::add(passages.len());
    let mut free = 0.0_f64;
    let wait = |passage: &PacketPassage| {
        let reached = passage.sent.max(free);
        free = line.map_or(0.0, |line| reached + passage.bytes / line);
        reached - passage.sent
    };
    passages.iter().map(wait).collect()
}

#[cfg(test)]
mod tests {
    use super::super::passage::{CapturedDirections, WindowLimit};
    use super::*;

    /// Fifty packets at once, five times, through a line of 10 Mbit/s; from the second time on every other
    /// of the last thirty is dropped, behind the line or before it.
    fn passages(is_behind: bool) -> Vec<PacketPassage> {
        let mut free = 0.0_f64;
        let passage = |place: u32| {
            let sent = f64::from(place / 50);
            let is_lost = place >= 50 && place % 50 >= 20 && place.is_multiple_of(2);
            let reached = sent.max(free);
            if is_behind || !is_lost {
                free = reached + 1_500.0 / 1.25e6;
            }
            PacketPassage {
                sent,
                seen: sent,
                bytes: 1_500.0,
                fate: match is_lost {
                    true => PacketFate::Lost,
                    false => PacketFate::Passed(Some(reached - sent)),
                },
            }
        };
        (0..250).map(passage).collect()
    }

    fn found(passages: Vec<PacketPassage>) -> Option<f64> {
        let stream = HostStream {
            source: "192.0.2.1".parse().expect("an address"),
            destination: "192.0.2.2".parse().expect("an address"),
            connections: 1,
            begun_before: 0,
            payload_bytes: 0,
            ways: CapturedDirections::Both,
            left_out: 0,
            place: CapturePlace::Sender,
            passages,
            least_rtt: Some(0.05),
            window: WindowLimit::default(),
        };
        early_line(&stream, 0.000_05)
            .filter(|(_, side)| *side == LineSide::Before)
            .map(|(line, _)| line)
    }

    #[test]
    fn line_is_found_only_if_dropped_packets_cross() {
        let line = found(passages(true)).expect("packets wait for it");
        assert!((line / 1.25e6 - 1.0).abs() < 0.01, "{line}");
        assert_eq!(found(passages(false)), None);
    }

    #[test]
    fn no_packet_waits_behind_the_line() {
        let passages = passages(true);
        let left = behind(&passages, Some(1.25e6));
        let waits = |passage: &PacketPassage| match passage.fate {
            PacketFate::Passed(wait) => wait,
            PacketFate::Lost => None,
        };
        assert!(left.iter().filter_map(waits).all(|wait| wait < 1e-9));
        assert!((left[49].sent - 49.0 * 0.001_2).abs() < 1e-9);
    }
}
