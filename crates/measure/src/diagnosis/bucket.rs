//! Token bucket that explains losses, with its level followed from one loss to the next.
//!
//! ```text
//!  room ▲ full ──╮                       ╭──
//!       │        ╰─╮    ╭─╮   ╭╮         │      passes take, the rate gives back
//!       0 ─────────┴────x─┴───xx─────────┴──    x: a loss, where there is no room
//! ```
//! Whether a bucket drops what finds it empty (policer) or a queue behind it what finds it full (shaper,
//! plain line), a loss tells where the level is: there is no room for a packet. So each loss, and each
//! packet that passes although there should be no room, sets the level right by a packet at most. A small
//! error of the rate, or losses that the bucket has not made, then do not add up over a transfer, as they do
//! when the level is reckoned from the beginning alone (Flach et al., SIGCOMM 2016, §3).
//!
//! A bucket drops packets when it is empty (policer), or a queue behind it does when it is full
//! (shaper, plain line). In both cases a loss shows the level: there is no room for a packet. So
//! each loss, and each packet that passes although there should be no room, corrects the level by a
//! packet at most. A small error of the rate, or losses with other causes, then do not add up over
//! a transfer, as they do when the level is computed from the beginning alone (Flach et al.,
//! SIGCOMM 2016, §3).

use super::passage::{PacketFate, PacketPassage};
#[cfg(test)]
use super::statistics::looks;

/// Losses from which the room of the full bucket is learned.
const EARLY_LOSSES: usize = 40;
/// Greatest correction of the level by one loss or one pass, in packets.
const SET_RIGHT_PACKETS: f64 = 1.0;
/// Least number of packets between losses that determines a rate.
const LEAST_SERVED_PACKETS: f64 = 25.0;

/// Fit of a token bucket of one rate to the losses.
#[derive(Clone, Debug)]
pub(super) struct BucketFit {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Youden's J of the best threshold that separates losses from passes, 0 to 1.
    pub(super) explained: f64,
    /// The deficit at which packets are lost, in bytes.
    pub(super) deficit: f64,
    /// Room in bytes that each passage finds; below zero there should be none.
    pub(super) rooms: Vec<f64>,
    /// Bytes per second that passed between losses while the bucket was never full.
    pub(super) served: Option<f64>,
}

impl BucketFit {
    /// Reckons the level from the beginning alone: right for a bucket that was seen full, and a rate that
    /// is known well.
    pub(super) fn from_start(passages: &[PacketPassage], rate: f64, line: Option<f64>) -> Self {
        let deficits = deficits(passages, rate, line);
        let (explained, deficit) = split(passages, &deficits);
        Self {
            rate,
            explained,
            deficit,
            rooms: deficits.iter().map(|found| deficit - found).collect(),
            served: None,
        }
    }

    /// Follows the level of a bucket of a rate behind a line. `packet` is a usual packet's length.
    pub(super) fn followed(
        passages: &[PacketPassage],
        rate: f64,
        line: Option<f64>,
        packet: f64,
    ) -> Self {
        let deficits = deficits(passages, rate, line);
        let lost = |passage: &PacketPassage| passage.fate == PacketFate::Lost;
        let early = passages
            .iter()
            .enumerate()
            .filter(|(_, passage)| lost(passage))
            .nth(EARLY_LOSSES)
            .map_or(passages.len(), |(index, _)| index);
        let (_, full) = split(&passages[..early], &deficits[..early]);
        let (mut room, mut at, mut free) = (full, 0.0, 0.0_f64);
        let mut sums = LossFreeSums::default();
        let mut rooms = Vec::with_capacity(passages.len());
        let most = SET_RIGHT_PACKETS * packet;
        for passage in passages {
            let reached = passage.sent.max(free);
            let filled = room + rate * (reached - at);
            if filled > full {
                sums.full();
            }
            room = filled.min(full);
            at = reached;
            free = line.map_or(0.0, |line| reached + passage.bytes / line);
            rooms.push(room);
            match passage.fate {
                PacketFate::Lost => {
                    // There was some, but not for a packet.
                    room -= (room - passage.bytes).clamp(0.0, most);
                    room += (-room).clamp(0.0, most);
                    sums.lost(reached);
                }
                PacketFate::Passed(_) => {
                    room -= passage.bytes;
                    room += (-room).clamp(0.0, most);
                    sums.passed(passage.bytes);
                }
            }
        }
        let lacking: Vec<f64> = rooms.iter().map(|room| -room).collect();
        let (explained, _) = split(passages, &lacking);
        Self {
            rate,
            explained,
            deficit: full,
            rooms,
            served: sums.rate(LEAST_SERVED_PACKETS * packet),
        }
    }
}

/// Bytes and seconds that passed between losses, without times at which the bucket was full.
#[derive(Debug, Default)]
struct LossFreeSums {
    /// Time of the last loss, and the bytes that passed since; `None` since the bucket was full.
    open: Option<(f64, f64)>,
    bytes: f64,
    seconds: f64,
}

impl LossFreeSums {
    fn full(&mut self) {
        self.open = None;
    }

    fn lost(&mut self, at: f64) {
        if let Some((from, bytes)) = self.open {
            self.bytes += bytes;
            self.seconds += at - from;
        }
        self.open = Some((at, 0.0));
    }

    fn passed(&mut self, bytes: f64) {
        if let Some((_, passed)) = &mut self.open {
            *passed += bytes;
        }
    }

    fn rate(&self, least: f64) -> Option<f64> {
        let rate = self.bytes / self.seconds;
        (self.bytes >= least && rate.is_finite() && rate > 0.0).then_some(rate)
    }
}

/// Rate whose bucket best separates losses from passes, with its fit. `scale` is the RTT and a
/// usual packet's length.
pub(super) fn best_account(
    passages: &[PacketPassage],
    waiting_rate: Option<f64>,
    farthest: i32,
    scale: (f64, f64),
    account: &dyn Fn(f64) -> BucketFit,
) -> Option<BucketFit> {
    /// Amount by which a measured rate may explain less than a rate that was tried.
    const MEASURED_EXPLAINS_LESS: f64 = 0.08;
    let (rtt, packet) = scale;
    let goodput = goodput(passages)?;
    // A sender that pauses leaves some of the rate unused; it never gets more.
    let exact = [goodput]
        .into_iter()
        .chain(waiting_rate.filter(|rate| *rate < 4.0 * goodput));
    let near = (-6..=24).map(|step| goodput * (1.0 + 0.005 * f64::from(step)));
    let beyond = (1..18).map(|step| goodput * 1.12 * 1.03_f64.powi(step));
    let far = (1..=farthest).map(|step| goodput * 1.8 * 1.5_f64.powi(step));
    let rates = exact.chain(near).chain(beyond).chain(far);
    // An account is as long as the passages: only one is kept.
    let all: Vec<(f64, f64)> = rates.map(|rate| (rate, account(rate).explained)).collect();
    let most = all
        .iter()
        .map(|(_, explained)| *explained)
        .fold(0.0, f64::max);
    // Of rates that explain alike the lowest: a higher one only forgets more.
    let (rate, _) = all
        .into_iter()
        .find(|(_, explained)| *explained >= most - 0.01)?;
    let mut best = account(rate);
    // Reckoned from the beginning, no rate but the best explains anything.
    let measured = best
        .served
        .and_then(|_| rate_at_losses(passages, rtt.max(0.001), packet))
        .filter(|rate| *rate > 0.9 * goodput)
        .map(account);
    if let Some(measured) = measured
        && measured.explained >= best.explained - MEASURED_EXPLAINS_LESS
    {
        best = measured;
    }
    if best.served.is_none() {
        // A small error of the rate adds up.
        let fine = (-8..=8).map(|step| account(best.rate * (1.0 + 0.000_6 * f64::from(step))));
        if let Some(finer) = fine.max_by(|a, b| a.explained.total_cmp(&b.explained))
            && finer.explained > best.explained
        {
            best = finer;
        }
    }
    for _ in 0..2 {
        let refined = best.served.map(account);
        match refined {
            Some(refined) if refined.explained >= best.explained - 0.03 => best = refined,
            _ => break,
        }
    }
    Some(best)
}

/// Bytes per second that passed between the first loss and the last.
pub(super) fn goodput(passages: &[PacketPassage]) -> Option<f64> {
    let is_lost = |passage: &&PacketPassage| passage.fate == PacketFate::Lost;
    let first = passages.iter().position(|passage| is_lost(&passage))?;
    let last = passages.iter().rposition(|passage| is_lost(&passage))?;
    let span = passages[last].sent - passages[first].sent;
    let passed: f64 = passages[first..last]
        .iter()
        .filter(|passage| !is_lost(passage))
        .map(|passage| passage.bytes)
        .sum();
    let goodput = passed / span;
    (goodput.is_finite() && goodput > 0.0).then_some(goodput)
}

/// Bytes per second that passed between losses that follow each other within `within`: while the
/// bucket was empty or the queue full, independent of the sender's activity at other times.
fn rate_at_losses(passages: &[PacketPassage], within: f64, packet: f64) -> Option<f64> {
    let mut sums = LossFreeSums::default();
    let mut last = f64::NEG_INFINITY;
    for passage in passages {
        match passage.fate {
            PacketFate::Lost => {
                if passage.sent - last > within {
                    sums.full();
                }
                last = passage.sent;
                sums.lost(passage.sent);
            }
            PacketFate::Passed(_) => sums.passed(passage.bytes),
        }
    }
    sums.rate(LEAST_SERVED_PACKETS * packet)
}

/// The deficit that each packet finds in a bucket of a rate behind a line, reckoned from the beginning.
pub(super) fn deficits(passages: &[PacketPassage], rate: f64, line: Option<f64>) -> Vec<f64> {
    #[cfg(test)]
    looks::add(passages.len());
    let (mut deficit, mut at, mut free) = (0.0_f64, 0.0, 0.0_f64);
    passages
        .iter()
        .map(|passage| {
            let reached = passage.sent.max(free);
            deficit = (deficit - rate * (reached - at)).max(0.0);
            at = reached;
            free = line.map_or(0.0, |line| reached + passage.bytes / line);
            let found = deficit;
            if passage.fate != PacketFate::Lost {
                deficit += passage.bytes;
            }
            found
        })
        .collect()
}

/// Youden's J of the best threshold of a value between losses and passes, and the usual value at
/// the losses above it.
pub(super) fn split(passages: &[PacketPassage], values: &[f64]) -> (f64, f64) {
    #[cfg(test)]
    looks::add(passages.len());
    let of = |lost: bool| {
        let both = values.iter().zip(passages);
        both.filter(move |(_, passage)| (passage.fate == PacketFate::Lost) == lost)
            .map(|(value, _)| *value)
    };
    let mut losses: Vec<f64> = of(true).collect();
    losses.sort_unstable_by(|a, b| b.total_cmp(a));
    let Some(lowest) = losses.last().copied() else {
        return (0.0, 0.0);
    };
    // Passes by how many losses are higher: only a loss's own height is worth trying.
    let mut below = vec![0_u32; losses.len() + 1];
    for value in of(false) {
        let higher = match value < lowest {
            true => losses.len(),
            false => losses.partition_point(|loss| *loss > value),
        };
        below[higher] += 1;
    }
    let (lost, passed) = (losses.len() as f64, (values.len() - losses.len()) as f64);
    let (mut passed_above, mut best) = (0.0, 0.0);
    for (index, passes) in below[..losses.len()].iter().enumerate() {
        passed_above += f64::from(*passes);
        let missed = if passed > 0.0 {
            passed_above / passed
        } else {
            0.0
        };
        best = f64::max(best, (index + 1) as f64 / lost - missed);
    }
    (best, losses[losses.len() / 2])
}
