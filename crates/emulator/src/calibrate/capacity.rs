//! Measurement of the emulator's capacity on this machine, with sender and receiver running beside
//! it.
//!
//! There are two measurements. [`carried`] keeps a window of packets in flight, so no packet is
//! lost and the rate that comes through is the capacity; it takes seconds and is part of the
//! certificate. The search of [`highest_load`] is the result of `trunkline bench emulator`: the
//! highest even load with a loss of at most 0.01 %, over a link configured without loss, found by
//! steps and bisection and confirmed by a longer trial. Loss is the number of packets sent less
//! those received.

use std::time::Duration;

use anyhow::{Result, bail};
use emulate::{DirectionConfig, LineConfig, LinkConfig, RATE_MAX};
use serde::Serialize;
use vocab::{Bitrate, ByteCount};

use super::certificate::HostCapacity;
use super::stand::{CellDirection, StampMode, TestBed};
use super::tcp;
use super::traffic::{self, LoadOutcome, ReceiverRecording, SendMode, SendingPace, TrafficLoad};

/// Full-size packets and the shortest that are usual, in IP bytes.
pub(super) const FULL: u16 = 1_500;
pub(super) const SMALL: u16 = 64;

/// Packets lost outside the model, at most, for a load to count as carried.
const LOST_SHARE_MAX: f64 = 0.000_1;

/// Duration of a trial, and of the last one.
const TRIAL: Duration = Duration::from_secs(2);
const CONFIRMATION: Duration = Duration::from_secs(5);

/// Ratio down to which loads are distinguished.
const RESOLUTION: f64 = 1.05;

/// The most steps up, down and between, each: 1.25^16 spans a factor of 35.
const STEPS_MAX: u32 = 16;

/// A sender that does not reach this share of its load has stayed behind.
const SENDER_REACHES: f64 = 0.98;

/// A sender that stays behind is the limit itself if it was on a processor for this share of the
/// time.
const SENDER_BUSY: f64 = 0.9;

/// Packets that a sender which was held up makes up for at once: some 40 ms at 100,000 a second, for
/// as long as which another thread may have its processor, and fewer than the kernel keeps for the
/// emulator (10,000 at a TUN device, 8,192 in a packet socket's ring).
const DEBT_MAX: u64 = 4_000;

/// Pauses of the sender at high load: as short as a timer is punctual.
const PAUSES_PER_SECOND: f64 = 8_000.0;

/// Duration of a quick look with each way of sending.
const LOOK: Duration = Duration::from_millis(200);

/// Packets under way with a window; see the cells of loss.
const WINDOW: u64 = 400;

/// Time after which no more packets are expected.
const PATIENCE: Duration = Duration::from_millis(300);

/// A load and its outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadTrial {
    /// Load that the trial aimed at.
    pub aimed_packets_per_second: f64,
    /// Load that the sender reached.
    pub sent_packets_per_second: f64,
    /// Packets that were sent.
    pub sent_packets: u64,
    /// Packets that the receiver did not get.
    pub lost_packets: u64,
    /// Those lost packets that the receiver's own socket had no room for.
    pub receiver_dropped_packets: u64,
    /// Limit where the sender did not reach its aim.
    pub limited_by: Option<LimitedBy>,
}

/// Why a sender stays behind its aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitedBy {
    /// The sender had a processor all the time and is not faster: the emulator might carry more.
    Sender,
    /// The emulator and the receiver took the processors that it would have needed.
    Processors,
}

impl LoadTrial {
    fn of(aimed: f64, outcome: &LoadOutcome) -> Self {
        let reached = outcome.sent as f64 / outcome.sending_took.as_secs_f64().max(1e-9);
        Self {
            aimed_packets_per_second: aimed,
            sent_packets_per_second: reached,
            sent_packets: outcome.sent,
            lost_packets: outcome.sent.saturating_sub(outcome.received),
            receiver_dropped_packets: outcome.receiver_dropped,
            limited_by: (reached < aimed * SENDER_REACHES).then_some(
                if outcome.sender_busy >= SENDER_BUSY {
                    LimitedBy::Sender
                } else {
                    LimitedBy::Processors
                },
            ),
        }
    }

    fn carried(&self) -> bool {
        self.lost_packets as f64 <= self.sent_packets as f64 * LOST_SHARE_MAX
    }
}

/// Result of a capacity search.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CapacitySearch {
    /// The highest load carried, as it was confirmed.
    pub packets_per_second: f64,
    /// The IP length of its packets.
    pub ip_length: u16,
    /// Reason why no more could be offered; `None` where more was offered, and lost.
    pub limited_by: Option<LimitedBy>,
    /// Every trial, in order.
    pub trials: Vec<LoadTrial>,
}

impl CapacitySearch {
    /// Rate in bits of IP packets.
    #[must_use]
    pub fn gbit_s(&self) -> f64 {
        gbit_s(self.packets_per_second, self.ip_length)
    }
}

fn gbit_s(packets_per_second: f64, ip_length: u16) -> f64 {
    packets_per_second * f64::from(ip_length) * 8.0 / 1e9
}

/// Finds the highest even load that the running emulator carries.
///
/// # Errors
/// Fails when a socket fails, or no load is carried.
pub(super) fn highest_load(
    stand: &TestBed,
    ip_length: u16,
    sending: SendMode,
) -> Result<CapacitySearch> {
    let (sender, receiver) = stand.sockets(CellDirection::Forward, StampMode::Nothing)?;
    let mut trials = Vec::new();
    let start = window_rate(stand, ip_length, sending, Duration::from_millis(300))?;
    let found = search(start, |per_second, span| {
        let load = TrafficLoad {
            packets: (per_second * span.as_secs_f64()) as u64,
            ip_length,
            pace: SendingPace::Even {
                per_second,
                head_start: 1,
                debt_max: DEBT_MAX,
                together: (per_second / PAUSES_PER_SECOND).ceil() as u64,
            },
            sending,
        };
        let outcome = traffic::run(
            &sender,
            &receiver,
            &load,
            ReceiverRecording::Numbers,
            PATIENCE,
        )?;
        let trial = LoadTrial::of(per_second, &outcome);
        trials.push(trial);
        Ok(trial)
    })?;
    Ok(CapacitySearch {
        packets_per_second: found.sent_packets_per_second,
        ip_length,
        limited_by: found.limited_by,
        trials,
    })
}

/// Steps from `start` to a load that is carried and one that is not, halves between them, and
/// confirms; returns the confirmed trial.
fn search(
    start: f64,
    mut attempt: impl FnMut(f64, Duration) -> Result<LoadTrial>,
) -> Result<LoadTrial> {
    // A load that fails, or a sender that stays behind, may have met a hiccup of the host; it has to
    // happen twice.
    let mut twice = |load: f64, span: Duration| -> Result<LoadTrial> {
        let first = attempt(load, span)?;
        if first.carried() && first.limited_by.is_none() {
            return Ok(first);
        }
        let second = attempt(load, span)?;
        let merit = |trial: &LoadTrial| (trial.carried(), trial.sent_packets);
        Ok(if merit(&second) >= merit(&first) {
            second
        } else {
            first
        })
    };
    let mut load = start;
    let mut good: Option<f64> = None;
    let mut bad: Option<f64> = None;
    let mut limited_by = None;
    for _ in 0..STEPS_MAX {
        let trial = twice(load, TRIAL)?;
        if trial.carried() {
            let reached = trial.sent_packets_per_second.min(load);
            good = Some(good.map_or(reached, |good: f64| good.max(reached)));
        }
        if !trial.carried() || trial.limited_by.is_some() {
            bad = Some(load);
            limited_by = trial.limited_by.filter(|_| trial.carried());
        }
        load = match (good, bad) {
            (Some(_), None) => load * 1.25,
            (None, _) => load * 0.8,
            (Some(good), Some(bad)) if bad / good > RESOLUTION => (good * bad).sqrt(),
            (Some(_), Some(_)) => break,
        };
    }
    let Some(mut load) = good else {
        bail!("no load is carried with at most 0.01 % lost; this host is too busy to tell");
    };
    for _ in 0..STEPS_MAX {
        let mut trial = twice(load, CONFIRMATION)?;
        if trial.carried() {
            trial.limited_by = trial.limited_by.or(limited_by);
            return Ok(trial);
        }
        load *= 0.97;
    }
    bail!("no load was carried for {CONFIRMATION:?}; this host is too busy to tell")
}

/// Packets in a second with a window under way.
fn window_rate(stand: &TestBed, ip_length: u16, sending: SendMode, span: Duration) -> Result<f64> {
    let (sender, receiver) = stand.sockets(CellDirection::Forward, StampMode::Nothing)?;
    let mut load = TrafficLoad {
        packets: 2_000,
        ip_length,
        pace: SendingPace::Window(WINDOW),
        sending,
    };
    let mut rate = 0.0;
    // The first go tells how many packets the second one needs to take as long as it should.
    for _ in 0..2 {
        let outcome = traffic::run(
            &sender,
            &receiver,
            &load,
            ReceiverRecording::Numbers,
            PATIENCE,
        )?;
        rate = outcome.received as f64 / outcome.receiving_took.as_secs_f64().max(1e-6);
        if outcome.received == 0 {
            bail!("nothing came through the emulator");
        }
        load.packets = (rate * span.as_secs_f64()) as u64 + 1_000;
    }
    Ok(rate)
}

/// Measures the load that comes through with a window, for `span` with each way of sending.
///
/// # Errors
/// When nothing does.
pub(super) fn carried(stand: &mut TestBed, span: Duration) -> Result<HostCapacity> {
    stand.start(&[])?;
    let rate = |ip_length, sending| window_rate(stand, ip_length, sending, span);
    let capacity = HostCapacity {
        gbit_s: gbit_s(rate(FULL, SendMode::Plain)?, FULL),
        kpps: rate(SMALL, SendMode::Plain)? / 1e3,
        gbit_s_offloaded: gbit_s(rate(FULL, SendMode::Offloaded)?, FULL),
        kpps_offloaded: rate(SMALL, SendMode::Offloaded)? / 1e3,
        tcp_gbit_s: tcp::rate(stand, span)? / 1e9,
        line_gbit_s: 0.0,
    };
    stand.stop()?;
    Ok(HostCapacity {
        line_gbit_s: through_any_line(stand)? / 1e9,
        ..capacity
    })
}

/// The fastest line that is kept full here, in bits per second.
///
/// # Errors
/// When nothing comes through.
fn through_any_line(stand: &mut TestBed) -> Result<f64> {
    // On a line of more than any host carries packets are due in crowds, which go on together for
    // less than they cost one by one; so what comes through is only where the search begins.
    let mut line = through_a_line(stand, RATE_MAX)?;
    for _ in 0..LINES_MAX {
        let rate = Bitrate::from_bits_per_second(line as u64);
        let came = through_a_line(stand, rate)?;
        if is_kept(rate, came) {
            return Ok(line);
        }
        line = came * 0.95;
    }
    Ok(line)
}

/// Tells whether a line of this rate counts as kept when so many bits per second came through.
pub(super) fn is_kept(line: Bitrate, came: f64) -> bool {
    came >= 0.99 * line.bits_per_second() as f64
}

/// Number of line rates that are tried before the last figure is accepted.
const LINES_MAX: usize = 4;

/// Measures in less than a second how many bits per second of full-size packets come through a line
/// of this rate.
///
/// # Errors
/// When nothing does.
pub(super) fn through_a_line(stand: &mut TestBed, rate: Bitrate) -> Result<f64> {
    let direction = DirectionConfig {
        line: LineConfig::Rate(rate),
        queue: ByteCount::mebibytes(64).into(),
        ..DirectionConfig::default()
    };
    let mut best: f64 = 0.0;
    for sending in [SendMode::Plain, SendMode::Offloaded] {
        // Each look ends before a link that is driven to its limit would complain, after a second.
        stand.start_within(LinkConfig::symmetric(direction.clone(), 1))?;
        best = best.max(window_rate(stand, FULL, sending, LOOK)?);
        stand.stop()?;
    }
    Ok(gbit_s(best, FULL) * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that carries `capacity` and loses all above, with a sender that reaches `reach`.
    fn link(capacity: f64, reach: f64) -> impl FnMut(f64, Duration) -> Result<LoadTrial> {
        move |load, span| {
            let reached = load.min(reach);
            let sent = (reached * span.as_secs_f64()) as u64;
            let lost = ((reached - capacity).max(0.0) * span.as_secs_f64()) as u64;
            Ok(LoadTrial {
                aimed_packets_per_second: load,
                sent_packets_per_second: reached,
                sent_packets: sent,
                lost_packets: lost,
                receiver_dropped_packets: 0,
                limited_by: (reached < load * SENDER_REACHES).then_some(LimitedBy::Sender),
            })
        }
    }

    #[test]
    fn search_finds_the_capacity_from_both_sides() {
        for start in [10_000.0, 100_000.0, 900_000.0] {
            let found = search(start, link(100_000.0, f64::INFINITY)).unwrap();
            let load = found.sent_packets_per_second;
            assert!((94_000.0..=100_011.0).contains(&load), "{start}: {load}");
            assert_eq!(found.limited_by, None);
        }
    }

    #[test]
    fn a_slow_sender_is_named_as_the_limit() {
        let found = search(10_000.0, link(100_000.0, 50_000.0)).unwrap();
        assert!(found.sent_packets_per_second <= 50_000.0);
        assert!(found.sent_packets_per_second > 47_000.0);
        assert_eq!(found.limited_by, Some(LimitedBy::Sender));
    }

    #[test]
    fn one_hiccup_does_not_spoil_a_load() {
        let mut steady = link(100_000.0, f64::INFINITY);
        let mut count = 0;
        let found = search(90_000.0, |load, span| {
            count += 1;
            let mut trial = steady(load, span)?;
            trial.lost_packets += if count % 3 == 1 { 1_000 } else { 0 };
            Ok(trial)
        });
        assert!(found.unwrap().sent_packets_per_second > 94_000.0);
    }

    #[test]
    fn a_link_that_carries_nothing_is_an_error() {
        assert!(search(1_000.0, link(0.0, f64::INFINITY)).is_err());
    }
}
