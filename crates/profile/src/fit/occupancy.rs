//! Content of the output queue at each arrival, from the stamps at both ends of the device.
//!
//! A packet comes to the output queue when its server and the fixed delay have finished, which
//! follows from the stamps at the input and the parameters that are known by now. It leaves when
//! its stamp at the output says so, or earlier: a later packet has to take its time on the line behind
//! it, so a packet that left in time shows which of those before it were stamped late. A packet also
//! leaves no later than its time on the line after it came, or after the packet before it left: this
//! counts where the line was idle before the next packet came. What is between
//! arrival and departure is in the queue or on the line; noise makes this number a range. The content
//! of an input queue follows in the same way from the starts of service.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use vocab::{DeviceModel, Time};

use super::FitOptions;
use crate::record::{MeasuredRun, PacketFate, PacketRecord};

/// Departures within this time of an arrival may lie before or behind it: times are rounded to
/// nanoseconds at three places.
const ROUNDING: Duration = Duration::from_nanos(3);

/// Share of the serialisation time that is certain in spite of the rate's error, which adds up over many
/// packets.
const CERTAIN_SHARE: f64 = 0.999;

/// Drops of a run that count, and what comes before the last of them. The first drop shows the limit. Later
/// on, errors of the service time add up, and so does the lag of a device that does not keep up.
const DROPS_MAX: usize = 30;

/// Packets that came to one queue in one run.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueArrivals {
    /// Sizes of the packets that were accepted, in the order of arrival.
    pub(super) accepted: Vec<u32>,
    /// The packets that came up to a number of drops, each with a bound for the queue's content.
    pub(super) arrivals: Vec<QueueArrival>,
    /// Packets in the queue and on the line as the last packet came, if packets of one size came and the queue
    /// was full to the end. It is what left afterwards, so it does not depend on which packets were dropped.
    pub(super) last_content: Option<(u32, u64)>,
}

/// A packet that comes to a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueArrival {
    pub(super) size: u32,
    /// Range of the accepted packets that are in the queue or on the line. Noise makes some uncertain:
    /// an accepted packet has those that surely are there, as the queue held at least these; a dropped
    /// packet has those that may be there, as the queue does not hold one more.
    pub(super) queued: (usize, usize),
    pub(super) is_accepted: bool,
}

/// Times in ns at which `count` servers finish jobs, each given by arrival and service time, oldest
/// first.
pub(super) fn service_ends(
    jobs: impl Iterator<Item = (f64, f64)>,
    count: usize,
) -> impl Iterator<Item = f64> {
    let mut free: BinaryHeap<Reverse<OrderedNanos>> =
        (0..count).map(|_| Reverse(OrderedNanos(0.0))).collect();
    jobs.map(move |(arrival, service)| {
        let Reverse(OrderedNanos(idle_from)) = free.pop().unwrap_or(Reverse(OrderedNanos(0.0)));
        let end = arrival.max(idle_from) + service;
        free.push(Reverse(OrderedNanos(end)));
        end
    })
}

/// The arrivals at the output queues in runs of overload.
pub(super) fn at_arrivals(
    overloads: &[&MeasuredRun],
    model: &DeviceModel,
    options: &FitOptions,
) -> Vec<QueueArrivals> {
    overloads
        .iter()
        .flat_map(|run| arrivals_of_run(&run.records, model, options))
        .collect()
}

fn arrivals_of_run(
    records: &[PacketRecord],
    model: &DeviceModel,
    options: &FitOptions,
) -> Vec<QueueArrivals> {
    let packets = packets_at_device(records);
    let ends = forwarding_ends(&packets, model, InputDrops::AsMeasured);
    let mut by_output: BTreeMap<u16, Vec<(Time, &PacketRecord)>> = BTreeMap::new();
    for (record, end) in packets.into_iter().zip(ends) {
        // The input queue has dropped it.
        let Some(end) = end else {
            continue;
        };
        let delay = model.fixed_delay(record.output, u64::from(record.size));
        let list = by_output.entry(record.output).or_default();
        let earliest = list.last().map_or(Time::ZERO, |(at, _)| *at);
        let at = end + delay;
        list.push((at.max(earliest), record));
    }
    by_output
        .into_values()
        .map(|arrivals| arrivals_of_output(&arrivals, model, options))
        .collect()
}

/// The packets that came to the device, in the order of transmission: without those that our own port lost,
/// and without further copies.
pub(super) fn packets_at_device(records: &[PacketRecord]) -> Vec<&PacketRecord> {
    let mut packets: Vec<&PacketRecord> = records
        .iter()
        .filter(|record| !matches!(record.fate, PacketFate::LostAtPort | PacketFate::Duplicated))
        .collect();
    packets.sort_by_key(|record| (record.sent, record.sequence));
    packets
}

/// Packets that the input queues of a model drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputDrops {
    /// Those that find a full queue and did not arrive.
    AsMeasured,
    /// Those that find a full queue.
    AsModelled,
}

/// Times at which servers finish the packets, which are in the order of transmission; `None` for a
/// packet that its input queue drops.
pub(super) fn forwarding_ends(
    packets: &[&PacketRecord],
    model: &DeviceModel,
    drops: InputDrops,
) -> Vec<Option<Time>> {
    let Some(servers) = &model.servers else {
        return packets.iter().map(|record| Some(record.sent)).collect();
    };
    let mut free: BinaryHeap<Reverse<Time>> =
        (0..servers.count).map(|_| Reverse(Time::ZERO)).collect();
    let mut inputs: BTreeMap<u16, InputContent> = BTreeMap::new();
    let mut ends = Vec::with_capacity(packets.len());
    for record in packets {
        let idle_from = free.peek().map_or(Time::ZERO, |Reverse(at)| *at);
        let start = record.sent.max(idle_from);
        if let Some(limit) = model.input_queue
            && start > record.sent
        {
            let input = inputs.entry(record.input).or_default();
            let cost = limit.cost(u64::from(record.size));
            input.forget_started(record.sent);
            let may_drop = drops == InputDrops::AsModelled || record.received.is_none();
            if input.content + cost > limit.limit() && may_drop {
                ends.push(None);
                continue;
            }
            input.content += cost;
            input.waiting.push_back((start, cost));
        }
        let end = start + model.service_time(u64::from(record.size));
        free.pop();
        free.push(Reverse(end));
        ends.push(Some(end));
    }
    ends
}

/// Packets that wait in one input queue.
#[derive(Debug, Default)]
struct InputContent {
    /// Start of service and cost, oldest first.
    waiting: VecDeque<(Time, u64)>,
    content: u64,
}

impl InputContent {
    /// Takes out the packets whose service has begun by `now`.
    fn forget_started(&mut self, now: Time) {
        while let Some((start, cost)) = self.waiting.front().copied()
            && start <= now
        {
            self.waiting.pop_front();
            self.content -= cost;
        }
    }
}

/// The arrivals at the input queues in runs of input overload, if no output dropped packets: then
/// each packet that did not arrive was dropped by its input queue.
pub(super) fn at_inputs(runs: &[&MeasuredRun], model: &DeviceModel) -> Vec<QueueArrivals> {
    let Some(servers) = &model.servers else {
        return Vec::new();
    };
    runs.iter()
        .flat_map(|run| {
            let records = packets_at_device(&run.records);
            let mut free: BinaryHeap<Reverse<Time>> =
                (0..servers.count).map(|_| Reverse(Time::ZERO)).collect();
            let mut inputs: BTreeMap<u16, (QueueArrivals, Vec<Time>)> = BTreeMap::new();
            for record in records {
                let idle_from = free.peek().map_or(Time::ZERO, |Reverse(at)| *at);
                let start = record.sent.max(idle_from);
                let is_accepted = record.received.is_some();
                let (arrivals, starts) = inputs.entry(record.input).or_default();
                if start > record.sent {
                    arrivals.arrivals.push(QueueArrival {
                        size: record.size,
                        queued: (
                            starts.partition_point(|start| *start <= record.sent),
                            starts.len(),
                        ),
                        is_accepted,
                    });
                }
                if is_accepted {
                    // A packet that is served at once has never been in the queue.
                    starts.push(start);
                    arrivals.accepted.push(record.size);
                    free.pop();
                    free.push(Reverse(start + model.service_time(u64::from(record.size))));
                }
            }
            inputs.into_values().map(|(arrivals, _)| arrivals)
        })
        .collect()
}

fn arrivals_of_output(
    packets: &[(Time, &PacketRecord)],
    model: &DeviceModel,
    options: &FitOptions,
) -> QueueArrivals {
    let departures = departures_in_time(packets, model, options);
    let (mut gone_surely, mut gone_perhaps) = (0, 0);
    let mut accepted = Vec::new();
    let mut arrivals = Vec::new();
    let mut drops = 0;
    for (at, record) in packets {
        // Half a packet of uncertainty hides no packet.
        let half_packet = model.output.serialisation(u64::from(record.size)) / 2;
        let noise = match model.output.rate {
            Some(_) => options.resolution.min(half_packet),
            None => options.resolution,
        };
        let tolerance = ROUNDING + noise;
        while departures
            .get(gone_surely)
            .is_some_and(|departure| *departure + tolerance <= *at)
        {
            gone_surely += 1;
        }
        while departures
            .get(gone_perhaps)
            .is_some_and(|departure| *departure <= *at + tolerance)
        {
            gone_perhaps += 1;
        }
        let is_accepted = record.received.is_some();
        drops += usize::from(!is_accepted);
        if drops > DROPS_MAX {
            break;
        }
        let gone = if is_accepted {
            gone_perhaps.min(accepted.len())
        } else {
            gone_surely
        };
        if gone <= accepted.len() {
            arrivals.push(QueueArrival {
                size: record.size,
                queued: (gone, accepted.len()),
                is_accepted,
            });
        }
        if is_accepted {
            accepted.push(record.size);
        }
    }
    QueueArrivals {
        accepted,
        arrivals,
        last_content: last_content(packets, &departures),
    }
}

/// See [`QueueArrivals::last_content`].
fn last_content(packets: &[(Time, &PacketRecord)], departures: &[Time]) -> Option<(u32, u64)> {
    /// Share of the packets at the end of which one has to be dropped.
    const END_SHARE: f64 = 0.25;
    /// Packets before the last one: where servers run out of packets one by one, the queue drains a little.
    const LAST: usize = 8;
    let (_, first) = packets.first()?;
    if packets.iter().any(|(_, record)| record.size != first.size) {
        return None;
    }
    let end = (packets.len() as f64 * (1.0 - END_SHARE)) as usize;
    if packets[end..]
        .iter()
        .all(|(_, record)| record.received.is_some())
    {
        return None;
    }
    // Of the packets that left after a packet came, at most those that came later were not there yet.
    let contents = packets.iter().rev().take(LAST).enumerate();
    let contents = contents.map(|(later, (at, _))| {
        let gone = departures.partition_point(|departure| *departure <= *at + ROUNDING);
        (departures.len() - gone).saturating_sub(later)
    });
    Some((first.size, contents.max()? as u64))
}

/// Departures in their order, however late they were stamped. A packet left at least the serialisation time
/// of the next one before it, and at most its own after the line was free for it.
fn departures_in_time(
    packets: &[(Time, &PacketRecord)],
    model: &DeviceModel,
    options: &FitOptions,
) -> Vec<Time> {
    let mut departures: Vec<(Time, u32)> = packets
        .iter()
        .filter_map(|(_, record)| Some((record.received? - options.cable_delay, record.size)))
        .collect();
    departures.sort_unstable();
    // A bucket lets packets leave together.
    if model.output.burst.is_none() {
        let mut latest: Option<Time> = None;
        for (departure, size) in departures.iter_mut().rev() {
            *departure = latest.map_or(*departure, |latest| latest.min(*departure));
            let serialisation = model.output.serialisation(u64::from(*size));
            latest = Some(*departure - serialisation.mul_f64(CERTAIN_SHARE));
        }
        let mut free = Time::ZERO;
        let accepted = packets
            .iter()
            .filter(|(_, record)| record.received.is_some());
        for ((departure, _), (at, record)) in departures.iter_mut().zip(accepted) {
            let serialisation = model.output.serialisation(u64::from(record.size));
            let latest = (*at).max(free) + serialisation.div_f64(CERTAIN_SHARE) + ROUNDING;
            *departure = latest.min(*departure);
            free = *departure;
        }
    }
    departures
        .into_iter()
        .map(|(departure, _)| departure)
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct OrderedNanos(f64);

impl Eq for OrderedNanos {}

impl PartialOrd for OrderedNanos {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedNanos {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use vocab::{Bitrate, ByteCount, DeviceQueueLimit, OutputModel, SharedServers, SizeTimeTable};

    use super::*;
    use crate::fit::ModelFamily;
    use crate::plan::{ExperimentPurpose, MeasurementSubject, RunPlan};

    fn run(records: Vec<PacketRecord>) -> MeasuredRun {
        let plan = RunPlan {
            number: 0,
            experiment: "test".to_owned(),
            purpose: ExperimentPurpose::InputOverload,
            subject: MeasurementSubject::Device,
            repetition: 0,
            size: None,
            traffic: Vec::new(),
            family: crate::plan::AddressFamily::Ipv4,
            loss_after: Duration::from_secs(1),
            pause: Duration::ZERO,
            seed: 1,
        };
        MeasuredRun { plan, records }
    }

    fn record(sequence: u64, received: Option<u64>, fate: PacketFate) -> PacketRecord {
        PacketRecord {
            sequence,
            flow: 0,
            size: 1_000,
            input: 0,
            output: 1,
            sent: Time::ZERO,
            received: received.map(Time::from_nanos),
            fate,
        }
    }

    fn model(servers: Option<SharedServers>) -> DeviceModel {
        DeviceModel {
            name: "test".to_owned(),
            ports: 2,
            transit: SizeTimeTable::constant(Duration::from_micros(100)),
            input_queue: None,
            servers,
            output: OutputModel {
                // 80 us for a packet of 1000 bytes.
                rate: Some(Bitrate::from_bits_per_second(100_000_000)),
                burst: None,
                overhead: ByteCount::new(0),
                queue: DeviceQueueLimit::Packets(10),
                aqm: None,
                policer: None,
            },
            port_outputs: Vec::new(),
        }
    }

    #[test]
    fn own_losses_and_copies_are_no_packets_of_an_input_queue() {
        let servers = SharedServers {
            count: 1,
            service: SizeTimeTable::constant(Duration::from_micros(10)),
        };
        // Two packets that our port lost and a copy of the first stand between the others.
        let runs = [run(vec![
            record(0, Some(100_000), PacketFate::Delivered),
            record(0, Some(101_000), PacketFate::Duplicated),
            record(1, None, PacketFate::LostAtPort),
            record(2, Some(110_000), PacketFate::Delivered),
            record(3, None, PacketFate::LostAtPort),
            record(4, None, PacketFate::Lost),
        ])];
        let inputs = at_inputs(&runs.each_ref(), &model(Some(servers)));
        let [input] = inputs.as_slice() else {
            panic!("{inputs:?}");
        };
        let arrivals: Vec<_> = input
            .arrivals
            .iter()
            .map(|arrival| (arrival.queued, arrival.is_accepted))
            .collect();
        // The first packet is served at once; the second waits alone, and the last one is dropped behind it.
        assert_eq!(input.accepted, [1_000, 1_000]);
        assert_eq!(arrivals, [((1, 1), true), ((1, 2), false)]);
    }

    #[test]
    fn last_content_does_not_depend_on_which_packets_were_dropped() {
        let options = FitOptions {
            name: "test".to_owned(),
            ports: 2,
            resolution: Duration::from_nanos(10),
            cable_delay: Duration::ZERO,
            family: ModelFamily::Full,
        };
        // Packets come each 40 us and leave each 80 us; ten are in the queue as the last one comes.
        let last = |shift: u64| {
            let mut left = 0;
            let records = (0..200_u64).map(|sequence| {
                let sent = Time::from_nanos(40_000 * sequence);
                let is_accepted = sequence < 18 || (sequence + shift).is_multiple_of(2);
                left += u64::from(is_accepted);
                let received = is_accepted.then_some(20_000 + 80_000 * left);
                PacketRecord {
                    sent,
                    ..record(sequence, received, PacketFate::Delivered)
                }
            });
            let run = run(records.collect());
            let mut model = model(None);
            model.transit = SizeTimeTable::constant(Duration::from_micros(80));
            let found = at_arrivals(&[&run], &model, &options);
            found[0].last_content
        };
        let (one, other) = (last(0).unwrap(), last(1).unwrap());
        assert_eq!(one.0, 1_000);
        assert!(one.1.abs_diff(other.1) <= 1, "{one:?} {other:?}");
    }
}
