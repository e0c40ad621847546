//! Evaluation of one stage of a stateless stream for the properties of its bottleneck.
//!
//! ```text
//!  bytes served
//!    │            ╱ burst + rate × time: a backlogged bucket (a plain line: burst = one packet)
//!    │     ____.╱'
//!    │  .╱'   ↑ the bucket is empty: from here packets wait (shaper) or are dropped (policer)
//!    │╱ as fast as they were sent
//!    └──────────────────────────► departure = time sent + delay above the least
//! ```
//! Departures of a backlogged line lie on a straight line whose slope is the rate and whose height at
//! time zero is the burst (the two parameters of ShaperProbe's `σ + ρτ`, Kanuparthy and Dovrolis, IMC
//! 2011). With a policer nothing waits; its bucket holds less than a packet whenever one is dropped, so
//! the bytes passed by then give rate and burst. The delay at which packets are dropped, times the rate,
//! is what the queue holds.
//!
//! Clocks need not agree: delays are taken above the least of the stage.

use std::collections::VecDeque;

use self::service::{BottleneckService, QueueBacklog, rate_deviation};
use super::interruption::interruptions;
use super::observation::{LoadStage, StreamPacket};
use super::statistics::{LinearFit, quantile};

/// Packets that a stage must have delivered for anything to be read from it.
const LEAST_RECEIVED: usize = 30;
/// Share of the offered load below which a stage counts as overloaded.
const OVERLOADED: f64 = 0.97;
/// Packets over which a bucket's level is averaged, right behind the point where it ran empty.
const LEVEL_PACKETS: usize = 50;
/// Packets that follow each other faster than all of them by this share have others in between.
const MIXED: f64 = 0.1;
/// The share of packets that waits no longer than a full queue lets it.
const FULL: f64 = 0.95;
/// Share of packets that wait no longer than the longest lasting queue: a managed queue may be
/// longer for a while.
const LONG: f64 = 0.98;
/// Packets that come closer upon each other than this share of the time between two that are sent were held up
/// together.
const CLUMP_GAP: f64 = 0.3;
/// Rates that differ by more than this share are not the same.
pub(super) const SAME_RATE: f64 = 0.03;
/// The least loss that is reckoned with when a change of loss is looked for: one in a thousand.
const LOSS_FLOOR: f64 = 0.001;

/// A stage in seconds and bytes.
#[derive(Clone, Debug)]
pub(super) struct StageSeries {
    /// Bytes of each packet.
    pub(super) packet: f64,
    /// Sending times, since the first packet.
    pub(super) sent: Vec<f64>,
    /// Delay of each packet above the least; `None` for a lost one.
    pub(super) delay: Vec<Option<f64>>,
}

impl StageSeries {
    /// Makes the series; `None` when too little was received.
    pub(super) fn of(stage: &LoadStage) -> Option<Self> {
        let first = stage.packets.first()?.sent;
        let mut rows = interruptions(stage).into_iter().map(|row| row.packets);
        let mut row = rows.next().unwrap_or_default();
        // What an interruption took is as if it had not been sent: no bottleneck saw it.
        let mut counts = |place: usize| {
            while place >= row.end && !row.is_empty() {
                row = rows.next().unwrap_or_default();
            }
            !row.contains(&place)
        };
        let packets = stage.packets.iter().enumerate();
        let packets = packets.filter(|(place, _)| counts(*place));
        let seconds = |(_, packet): (usize, &StreamPacket)| {
            let sent = packet.sent.since(first).as_secs_f64();
            // The clocks' difference is in here, and goes with the least delay.
            let came = packet.received.map(|at| at.as_nanos() as i128);
            let took = came.map(|came| (came - packet.sent.as_nanos() as i128) as f64 / 1e9);
            (sent, took)
        };
        let (sent, took): (Vec<f64>, Vec<Option<f64>>) = packets.map(seconds).unzip();
        let received = took.iter().flatten().count();
        let least = took.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        (received >= LEAST_RECEIVED).then(|| Self {
            packet: stage.packet.bytes() as f64,
            sent,
            delay: took
                .into_iter()
                .map(|took| took.map(|took| took - least))
                .collect(),
        })
    }

    /// Bytes per second sent over the whole stage.
    pub(super) fn sent_rate(&self) -> f64 {
        let span = self.sent.last().copied().unwrap_or_default();
        (self.sent.len() - 1) as f64 * self.packet / span
    }

    pub(super) fn lost(&self) -> usize {
        self.delay.iter().filter(|delay| delay.is_none()).count()
    }

    /// Losses that no queue explains: not next to packets that waited about as long as any did, and not of
    /// packets that were held up and came all at once, which are more than a short queue or bucket takes.
    pub(super) fn unexplained_loss_count(&self) -> usize {
        self.unexplained_losses().len()
    }

    /// Those losses that found no other packet waiting before a line of a rate with so short a
    /// queue: a sender that catches up after a pause fills it at any rate, and so do packets that
    /// were held up and arrived later.
    pub(super) fn lost_beside_queue(&self, rate: f64, queue: f64) -> usize {
        let least = f64::max(queue - self.packet, 0.1 * self.packet);
        let mut anyhow = self.unexplained_losses().into_iter().peekable();
        let (mut level, mut before, mut count) = (0.0_f64, 0.0, 0);
        let mut on_the_way = VecDeque::new();
        for (index, (sent, delay)) in self.sent.iter().zip(&self.delay).enumerate() {
            level = (level - rate * (sent - before).max(0.0)).max(0.0);
            before = f64::max(before, *sent);
            while on_the_way.pop_front_if(|came| *came <= *sent).is_some() {}
            let held_up = on_the_way.len() as f64 * self.packet;
            if anyhow.next_if_eq(&index).is_some() && level.max(held_up) < least {
                count += 1;
            }
            if let Some(delay) = delay {
                level += self.packet;
                on_the_way.push_back(sent + delay);
            }
        }
        count
    }

    fn unexplained_losses(&self) -> Vec<usize> {
        let clumped = self.held_up_behind();
        let mut delays: Vec<f64> = self.delay.iter().flatten().copied().collect();
        let longest = quantile(&mut delays, 0.999).unwrap_or_default();
        let gap = self.packet / self.sent_rate();
        let lost = (0..self.delay.len()).filter(|index| self.delay[*index].is_none());
        if longest < f64::max(0.5 * gap, 20.0 * self.noise()) {
            return lost.collect();
        }
        let waited = |index: usize| self.delay.get(index).copied().flatten().unwrap_or_default();
        lost.filter(|index| !clumped[*index])
            .filter(|index| waited(index.wrapping_sub(1)).max(waited(index + 1)) < 0.5 * longest)
            .collect()
    }

    /// Marks each packet that was queued behind an earlier one that a host or a relay held up:
    /// packets that keep their order leave no sooner.
    fn held_up_behind(&self) -> Vec<bool> {
        /// Hold-up time from which a packet counts as held up: this many packets' time, and this
        /// many times the clocks' noise.
        const HELD_UP_PACKETS: f64 = 2.0;
        const HELD_UP_NOISE: f64 = 20.0;
        let gap = self.packet / self.sent_rate();
        let held_up = f64::max(HELD_UP_PACKETS * gap, HELD_UP_NOISE * self.noise());
        let mut latest = f64::NEG_INFINITY;
        let sent = self.sent.iter().zip(&self.delay);
        sent.map(|(sent, delay)| {
            let is_behind = latest > sent + held_up;
            latest = delay.map_or(latest, |delay| latest.max(sent + delay));
            is_behind
        })
        .collect()
    }

    /// Tells whether no packet arrived in the last fifth of the stage.
    pub(super) fn died(&self) -> bool {
        let from = self.delay.len() * 4 / 5;
        self.delay[from..].iter().all(Option::is_none)
    }

    /// Delay that all but a quarter of the packets exceed: the noise of clocks and hosts, as long
    /// as no packet waits in a queue.
    pub(super) fn noise(&self) -> f64 {
        let mut delays: Vec<f64> = self.delay.iter().flatten().copied().collect();
        quantile(&mut delays, 0.25).unwrap_or_default()
    }

    /// Noise without the waits, before a line of a rate, for other packets that were sent together
    /// with them.
    pub(super) fn noise_beside_backlog(&self, rate: f64) -> f64 {
        let backlogs = QueueBacklog::of(self, rate, 0.0);
        let both = self.delay.iter().zip(backlogs);
        let mut delays: Vec<f64> = both
            .filter_map(|(delay, backlog)| Some((delay.as_ref()? - backlog.level / rate).max(0.0)))
            .collect();
        quantile(&mut delays, 0.25).unwrap_or_default()
    }

    /// The series with departures that a bottleneck of a rate can have made: packets that come
    /// closer together were held up behind it by a host that stopped, and had left it before.
    fn without_hiccups(&self, rate: f64) -> Self {
        /// Least gap between two packets, as a share of the rate's own gap.
        const LEAST_GAP: f64 = 0.9;
        let gap = LEAST_GAP * self.packet / rate;
        let mut next = f64::INFINITY;
        let mut delay = self.delay.clone();
        for (delay, sent) in delay.iter_mut().zip(&self.sent).rev() {
            if let Some(delay) = delay {
                next = (sent + *delay).min(next - gap);
                *delay = (next - sent).max(0.0);
                // What did not wait was not held up by what came before it.
                next = next.max(*sent);
            }
        }
        Self {
            packet: self.packet,
            sent: self.sent.clone(),
            delay,
        }
    }

    /// Departures of the packets that got through, in order: index, departure, bytes served with
    /// it.
    fn departures(&self) -> impl Iterator<Item = PacketDeparture> + Clone + '_ {
        let mut served = 0.0;
        let received = self.delay.iter().enumerate();
        received
            .filter_map(|(index, delay)| Some((index, (*delay)?)))
            .map(move |(index, delay)| {
                served += self.packet;
                PacketDeparture {
                    index,
                    at: self.sent[index] + delay,
                    delay,
                    served,
                }
            })
    }

    /// Departures without another right behind them: a host or relay that stopped hands on packets
    /// together when it continues, and only the last of them shows its proper time.
    fn free_departures(&self) -> impl Iterator<Item = PacketDeparture> + Clone + '_ {
        let least = CLUMP_GAP * self.packet / self.sent_rate();
        let next = self.departures().skip(1).map(|next| next.at);
        let next = next.chain([f64::INFINITY]);
        self.departures()
            .zip(next)
            .filter(move |(this, next)| next - this.at > least)
            .map(|(this, _)| this)
    }
}

#[derive(Clone, Copy, Debug)]
struct PacketDeparture {
    index: usize,
    at: f64,
    delay: f64,
    served: f64,
}

/// Observations below the bottleneck's rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuietObservation {
    /// The loss there.
    pub(super) loss: f64,
    /// The spread of delay there, in seconds.
    pub(super) noise: f64,
}

/// Observations of an overloaded bottleneck.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverloadObservation {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Bytes that a bucket let through beyond the rate; one packet for a plain line.
    pub(super) burst: f64,
    /// Bytes that wait, or zero where nothing does.
    pub(super) queue: f64,
    /// The longest wait, in seconds.
    pub(super) longest_wait: f64,
    /// Packets dropped by the bottleneck or behind it.
    pub(super) lost: usize,
    /// Packets dropped although the queue was shorter than at other times, beyond the unexplained
    /// losses.
    pub(super) dropped_early: f64,
    /// Number of those that random loss can explain.
    pub(super) early_by_chance: f64,
    /// Deviation of the service from a straight line, in bytes, and the deviation that chance and
    /// the hosts explain.
    pub(super) straying: f64,
    pub(super) straying_by_chance: f64,
    /// Greatest relative error of the rate by hosts; `None` where it is unknown, because the line
    /// was surely busy for hardly any of the time.
    pub(super) rate_error: Option<f64>,
    /// Rate in bytes per second of packets that follow each other without other traffic in between,
    /// where it exceeds the average rate.
    pub(super) mixed_at: Option<f64>,
    /// Bytes per second that got through.
    pub(super) carried: f64,
    /// Bytes per second offered.
    pub(super) offered: f64,
    /// Duration in seconds.
    pub(super) lasted: f64,
}

/// Evaluates an overloaded stage; `None` when the offered load got through.
pub(super) fn overload(
    series: &StageSeries,
    quiet: QuietObservation,
) -> Option<OverloadObservation> {
    let packet = series.packet;
    let survives = 1.0 - quiet.loss;
    let last = *series.sent.last()?;
    let tail = || {
        series
            .free_departures()
            .filter(|d| series.sent[d.index] >= last / 2.0)
    };
    let line = LinearFit::of(tail().map(|d| (d.at, d.served)))?;
    let offered = series.sent_rate();
    if line.slope > OVERLOADED * offered * survives {
        return None;
    }
    let count = series
        .departures()
        .filter(|d| series.sent[d.index] >= last / 2.0);
    let count = count.count();
    let gap = packet / line.slope;
    let back_to_back = run_rate(series, last / 2.0, 1.0 + 150.0 * quiet.noise / gap)?;
    let steady = series.without_hiccups(line.slope.max(back_to_back));
    let wait = |d: PacketDeparture| steady.delay[d.index].unwrap_or_default();
    let mut delays: Vec<f64> = tail().map(wait).collect();
    let usual_wait = quantile(&mut delays, 0.5)?;
    // Of a queue that is kept full; the very longest waits are those that hosts add.
    let full_wait = quantile(&mut delays, FULL)?;
    let mut all: Vec<f64> = series.free_departures().map(wait).collect();
    let longest_wait = quantile(&mut all, 0.999)?;
    // ... and so it is with how long a queue is that is dropped from while it is shorter.
    let long_wait = quantile(&mut all, LONG)?;
    let waits = line.slope * usual_wait > 0.8 * packet + 3.0 * line.slope * quiet.noise;
    let best_rate = run_rate(series, last / 2.0, 40.0 + 400.0 * quiet.noise / gap);
    let fastest = best_rate.unwrap_or(line.slope).max(line.slope);
    let service = match waits {
        true => BottleneckService::of_queue(series, fastest, full_wait, quiet.noise)?,
        false => BottleneckService::of_bucket(series, fastest)?,
    };
    let BottleneckService {
        line, rate_error, ..
    } = service;
    let straying = rate_deviation(&service.served, packet)?;
    let by_chance = (count as f64 * quiet.loss * survives).sqrt();
    let straying_by_chance =
        packet * (2.0 + 2.5 * by_chance) + 12.0 * line.slope * quiet.noise + service.error;
    // Somebody else's share comes and goes; what is there without them is seen when they pause, or
    // between two packets that none of theirs has come between.
    let is_mixed =
        waits && rate_error.is_some() && back_to_back > (1.0 + MIXED) * line.slope / survives;
    let rate = match waits {
        _ if straying > straying_by_chance => {
            best_rate.unwrap_or(line.slope) / if waits { 1.0 } else { survives }
        }
        _ if is_mixed => back_to_back,
        true => {
            busy_rate(series, last / 2.0, quiet, &service.surely).unwrap_or(line.slope / survives)
        }
        false => line.slope / survives,
    };
    let burst = match waits {
        true => shaped_burst(&steady, rate, survives),
        false => policed_burst(series, rate, survives),
    };
    let (dropped_early, early_by_chance) = early_drops(&steady, rate, long_wait, quiet);
    Some(OverloadObservation {
        rate,
        burst,
        queue: match waits {
            true => rate * full_wait,
            false => 0.0,
        },
        longest_wait,
        lost: series.lost(),
        dropped_early,
        early_by_chance,
        straying,
        straying_by_chance,
        rate_error,
        mixed_at: is_mixed.then_some(back_to_back),
        carried: line.slope,
        offered,
        lasted: last,
    })
}

/// Rate of a line that is never idle, from packets that came right behind the one sent before them.
/// Unlike the count of arrivals, it is not biased by losses behind the line.
fn busy_rate(
    series: &StageSeries,
    from: f64,
    quiet: QuietObservation,
    surely: &[bool],
) -> Option<f64> {
    /// Pairs below which the count is the better measure.
    const LEAST_PAIRS: usize = 100;
    if quiet.loss < LOSS_FLOOR {
        return None;
    }
    let (mut pairs, mut span) = (0, 0.0);
    for (index, is_sure) in surely.iter().enumerate().skip(1) {
        if series.sent[index] < from || !is_sure {
            continue;
        }
        if let (Some(before), Some(this)) = (series.delay[index - 1], series.delay[index]) {
            pairs += 1;
            span += series.sent[index] + this - series.sent[index - 1] - before;
        }
    }
    (pairs >= LEAST_PAIRS).then(|| pairs as f64 * series.packet / span)
}

/// Rate that only the fastest tenth of all runs of so many packets exceeds.
fn run_rate(series: &StageSeries, from: f64, packets: f64) -> Option<f64> {
    let departures: Vec<PacketDeparture> = series
        .free_departures()
        .filter(|d| series.sent[d.index] >= from)
        .collect();
    let run = (packets as usize).clamp(1, (departures.len() / 4).max(1));
    let mut rates: Vec<f64> = departures
        .windows(run + 1)
        .step_by((run / 4).max(1))
        .map(|departures| {
            let (first, last) = (departures[0], departures[run]);
            (last.served - first.served) / (last.at - first.at)
        })
        .collect();
    quantile(&mut rates, 0.9)
}

/// Deficit that each packet finds in a bucket of a rate that was full at the beginning. A sender
/// that stops for a moment lets the bucket fill again, but not beyond its size.
fn deficits(series: &StageSeries, rate: f64, survives: f64) -> Vec<f64> {
    let (mut deficit, mut before) = (0.0_f64, 0.0);
    let packets = series.sent.iter().zip(&series.delay);
    packets
        .map(|(sent, delay)| {
            deficit = (deficit - rate * (sent - before)).max(0.0);
            before = *sent;
            let found = deficit;
            if delay.is_some() {
                deficit += series.packet / survives;
            }
            found
        })
        .collect()
}

/// Part of the deficit that does not wait: the deficit rises until the bucket is empty and then
/// stays.
fn shaped_burst(series: &StageSeries, rate: f64, survives: f64) -> f64 {
    let deficits = deficits(series, rate, survives);
    let levels: Vec<f64> = series
        .departures()
        .map(|d| deficits[d.index] + series.packet / survives - rate * d.delay)
        .collect();
    let mut steady = levels[levels.len() / 2..].to_vec();
    let Some(high) = quantile(&mut steady, 0.5) else {
        return 0.0;
    };
    let near = series.packet.max(0.03 * high);
    let found = match survives < 1.0 - LOSS_FLOOR {
        true => waits_from(series, rate),
        false => levels.iter().position(|level| *level >= high - near),
    };
    let Some(start) = found else {
        return high;
    };
    let end = levels.len().min(start + LEVEL_PACKETS);
    quantile(&mut levels[start..end].to_vec(), 0.5).unwrap_or(high)
}

/// The first departure from which on packets wait; with loss behind the line, whose count strays, the
/// level is best read there.
fn waits_from(series: &StageSeries, rate: f64) -> Option<usize> {
    /// Departures that must wait, half of them at least.
    const SUSTAINED: usize = 30;
    let waits: Vec<bool> = series
        .departures()
        .map(|d| rate * d.delay > 1.2 * series.packet)
        .collect();
    let mut windows = waits.windows(SUSTAINED);
    windows.position(|window| 10 * window.iter().filter(|waits| **waits).count() >= 9 * SUSTAINED)
}

/// Deficit that the first packet without tokens met.
///
/// That packet is where the loss changes from its base level to the excess over the rate, found as
/// the most likely change point.
fn policed_burst(series: &StageSeries, rate: f64, survives: f64) -> f64 {
    // Where most is lost at any rate no change of it says anything; half leaves room for one.
    let before = (1.0 - survives).clamp(LOSS_FLOOR, 0.49);
    let after = (1.0 - survives * rate / series.sent_rate()).clamp(2.0 * before, 0.999);
    let on_loss = (before / after).ln();
    let on_pass = ((1.0 - before) / (1.0 - after)).ln();
    let (mut score, mut best, mut change) = (0.0, 0.0, 0);
    for (index, delay) in series.delay.iter().enumerate() {
        score += if delay.is_none() { on_loss } else { on_pass };
        if score > best {
            (best, change) = (score, index + 1);
        }
    }
    let found = deficits(series, rate, survives).get(change).copied();
    // There were tokens, but less than for a packet: half of one on average.
    found.unwrap_or_default() + series.packet / 2.0
}

/// Number of packets lost while the queue was well below its longest, beyond the base loss; and the
/// number that random loss adds to that.
fn early_drops(
    series: &StageSeries,
    rate: f64,
    longest_wait: f64,
    quiet: QuietObservation,
) -> (f64, f64) {
    let margin = (0.1 * longest_wait).max(3.0 * series.packet / rate + 4.0 * quiet.noise);
    let full = longest_wait - margin;
    if full <= 0.0 {
        return (0.0, 0.0);
    }
    let (mut early, mut seen) = (0.0, 0.0);
    let mut before = 0.0;
    // The wait behind a lost packet: of the next one that came.
    let mut behind = vec![0.0; series.delay.len()];
    let mut next = longest_wait;
    for (index, delay) in series.delay.iter().enumerate().rev() {
        next = delay.unwrap_or(next);
        behind[index] = next;
    }
    for (delay, behind) in series.delay.iter().zip(behind) {
        let around: f64 = delay.unwrap_or(f64::max(before, behind));
        if around < full {
            seen += 1.0;
            early += f64::from(u8::from(delay.is_none()));
        }
        before = delay.unwrap_or(before);
    }
    let by_chance = 4.0 * (seen * quiet.loss).sqrt() + 4.0;
    (early - seen * quiet.loss, by_chance)
}

mod service;
#[cfg(test)]
mod tests;
