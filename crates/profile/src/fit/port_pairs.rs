//! Minimum transit by pair of ports, where pairs differ: a device may have several switching chips or
//! line cards. The model has one transit for all pairs, so the report names those that are slower.

use std::collections::BTreeMap;
use std::time::Duration;

use super::runs_for;
use crate::plan::ExperimentPurpose;
use crate::record::MeasuredRun;

/// Lone packets of a pair and size whose least delay counts.
const PACKETS_LEAST: usize = 10;
/// Share of the delays up to which a least delay may lie by chance, as for the transit of all pairs.
const UPPER_SHARE: f64 = 0.25;

/// Transit of lone packets from one port to another that is longer than between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortTransit {
    /// Size of the packets.
    pub size: u32,
    /// Port that they enter.
    pub input: u16,
    /// Port that they leave.
    pub output: u16,
    /// Number of the packets.
    pub packets: usize,
    /// Least delay.
    pub least: Duration,
    /// Least delay of the fastest pair.
    pub fastest: Duration,
}

/// Finds the pairs of ports that are slower than the fastest pair of the same size, by their lone packets:
/// the interval of the pair lies above that of the fastest one. `resolution` is the uncertainty of a delay.
#[must_use]
pub fn slower_port_pairs(runs: &[MeasuredRun], resolution: Duration) -> Vec<PortTransit> {
    let mut by_size: BTreeMap<u32, BTreeMap<(u16, u16), Vec<Duration>>> = BTreeMap::new();
    let records = runs_for(runs, ExperimentPurpose::Transit).flat_map(|run| &run.records);
    for record in records {
        if let Some(delay) = record.delay() {
            let pairs = by_size.entry(record.size).or_default();
            let pair = (record.input, record.output);
            pairs.entry(pair).or_default().push(delay);
        }
    }
    let mut slower = Vec::new();
    for (size, mut pairs) in by_size {
        pairs.retain(|_, delays| delays.len() >= PACKETS_LEAST);
        for delays in pairs.values_mut() {
            delays.sort_unstable();
        }
        let Some(fastest) = pairs.values().min_by_key(|delays| delays[0]) else {
            continue;
        };
        let (fastest, upper) = (fastest[0], fastest[upper_index(fastest.len())] + resolution);
        slower.extend(
            pairs
                .iter()
                .filter(|(_, delays)| delays[0].saturating_sub(resolution) > upper)
                .map(|((input, output), delays)| PortTransit {
                    size,
                    input: *input,
                    output: *output,
                    packets: delays.len(),
                    least: delays[0],
                    fastest,
                }),
        );
    }
    slower
}

fn upper_index(count: usize) -> usize {
    ((count - 1) as f64 * UPPER_SHARE) as usize
}

#[cfg(test)]
mod tests {
    use vocab::{SeededRandom, Time};

    use super::*;
    use crate::plan::{AddressFamily, MeasurementSubject, RunPlan};
    use crate::record::{PacketFate, PacketRecord};

    /// Lone packets between three pairs of ports, of which the last takes `more` longer, with noise of up to
    /// a microsecond.
    fn run(more: u64, packets: u64) -> MeasuredRun {
        let mut random = SeededRandom::from_seed(3);
        let pairs = [(0_u16, 1_u16), (1, 0), (2, 1)];
        let record = |sequence: u64| {
            let (input, output) = pairs[(sequence % 3) as usize];
            let sent = Time::from_nanos(sequence * 1_000_000);
            let slow = if input == 2 { more } else { 0 };
            let delay = 20_000 + slow + random.below(1_000);
            PacketRecord {
                sequence,
                flow: 0,
                size: 64,
                input,
                output,
                sent,
                received: Some(sent + Duration::from_nanos(delay)),
                fate: PacketFate::Delivered,
            }
        };
        MeasuredRun {
            records: (0..packets).map(record).collect(),
            plan: RunPlan {
                number: 0,
                experiment: "test".to_owned(),
                purpose: ExperimentPurpose::Transit,
                subject: MeasurementSubject::Device,
                repetition: 0,
                size: None,
                traffic: Vec::new(),
                family: AddressFamily::Ipv4,
                loss_after: Duration::from_secs(1),
                pause: Duration::ZERO,
                seed: 1,
            },
        }
    }

    const RESOLUTION: Duration = Duration::from_micros(1);

    #[test]
    fn slower_pair_is_named() {
        let slower = slower_port_pairs(&[run(8_000, 300)], RESOLUTION);
        let [pair] = slower.as_slice() else {
            panic!("{slower:?}");
        };
        assert_eq!((pair.input, pair.output, pair.packets), (2, 1, 100));
        let more = pair.least - pair.fastest;
        assert!(
            more.abs_diff(Duration::from_micros(8)) < RESOLUTION,
            "{more:?}"
        );
    }

    #[test]
    fn difference_within_the_noise_is_none() {
        assert_eq!(slower_port_pairs(&[run(1_500, 300)], RESOLUTION), []);
        assert_eq!(slower_port_pairs(&[run(0, 300)], RESOLUTION), []);
        // Few packets tell nothing.
        assert_eq!(slower_port_pairs(&[run(8_000, 27)], RESOLUTION), []);
    }
}
