//! Departure rate of packets while others wait.

use super::super::bucket::goodput;
use super::super::passage::PacketFate;
use super::super::statistics::quantile;
use super::PassageObservation;

/// Packets in a run that determines a rate, and in one of a queue that is never long enough for the
/// former.
const LONG_RUN: f64 = 20.0;
const SHORT_RUN: f64 = 3.0;

impl PassageObservation {
    /// Departure rate of packets that wait; the highest such rate; and the rate if lost packets
    /// count as well.
    pub(super) fn find_waiting_rates(&self) -> (Option<f64>, Option<f64>, Option<f64>) {
        let rates = self.waiting_rates_of(LONG_RUN);
        match rates.0.is_none() && self.waits_at_losses_are_clear() {
            // A short queue is soon empty again.
            true => self.waiting_rates_of(SHORT_RUN),
            false => rates,
        }
    }

    /// Tells whether packets wait around losses much longer than hosts and acknowledgements
    /// explain.
    fn waits_at_losses_are_clear(&self) -> bool {
        /// Ratio to the noise from which waits are clear.
        const CLEAR: f64 = 20.0;
        quantile(&mut self.waits_at_losses(), 0.5).is_some_and(|wait| wait > CLEAR * self.noise)
    }

    /// The rate at which packets leave while others wait: that at which most short runs agree, so that
    /// neither a pause in between nor others' packets count.
    fn waiting_rates_of(&self, run_packets: f64) -> (Option<f64>, Option<f64>, Option<f64>) {
        /// Number of runs without losses that suffice: packets lost behind the line have used it,
        /// those dropped before it have not.
        const CLEAN_RUNS: usize = 8;
        /// Least rate of departures, as a share of the traffic between losses.
        const LEAVES_LEAST: f64 = 0.9;
        // Where packets are lost, if they are: elsewhere they may wait for another line.
        let usual = quantile(&mut self.waits_at_losses(), 0.5)
            .map_or(0.25 * self.long_wait, |wait| 0.5 * wait);
        let threshold = usual.max(2.0 * self.noise);
        // Of what passed; and of that and what was lost, for a line before what drops carries both.
        let (mut clean, mut behind, mut before) = (Vec::new(), Vec::new(), Vec::new());
        // Where a run began, and what left since.
        let mut run: Option<(f64, f64, f64)> = None;
        for passage in &self.passages {
            if let Some((_, _, all)) = &mut run {
                *all += passage.bytes;
            }
            let PacketFate::Passed(wait) = passage.fate else {
                continue;
            };
            if let Some((_, served, _)) = &mut run {
                *served += passage.bytes;
            }
            let Some(wait) = wait else {
                continue;
            };
            let departure = passage.sent + wait;
            run = match run {
                _ if wait < threshold => None,
                Some((from, served, all))
                    if served > run_packets * self.packet && departure > from =>
                {
                    behind.push(served / (departure - from));
                    before.push(all / (departure - from));
                    if served >= all {
                        clean.push(served / (departure - from));
                    }
                    Some((departure, 0.0, 0.0))
                }
                Some(run) => Some(run),
                None => Some((departure, 0.0, 0.0)),
            };
        }
        if behind.len() < 2 {
            return (None, None, None);
        }
        let agreed = match clean.len() {
            0..CLEAN_RUNS => densest(&mut behind),
            _ => densest(&mut clean),
        };
        // No more passes between losses than leaves, unless a bucket's burst is among it.
        let quarter = (self.passages.len() / 4).max(1);
        let passes = self.passages.chunks(quarter).filter_map(goodput);
        let least = LEAVES_LEAST * passes.min_by(f64::total_cmp).unwrap_or_default();
        if agreed.is_none_or(|rate| rate < least) {
            return (None, None, None);
        }
        (
            agreed,
            quantile(&mut behind, 0.9),
            quantile(&mut before, 0.9),
        )
    }
}

/// The middle of the quarter of values that lie closest together.
pub(super) fn densest(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let many = (values.len() / 4).max(2).min(values.len());
    let spread = |some: &&[f64]| some[some.len() - 1] / some[0];
    values
        .windows(many.max(1))
        .min_by(|a, b| spread(a).total_cmp(&spread(b)))
        .map(|some| some[some.len() / 2])
}
