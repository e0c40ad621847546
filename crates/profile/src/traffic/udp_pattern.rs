//! UDP patterns: constant rate, Poisson, bursts, each with a mix of sizes.

use std::time::Duration;

use vocab::{SeededRandom, Time};

use super::{PacketContent, SourcePacket};
use crate::plan::{TrafficPattern, TrafficPlan};

#[derive(Debug)]
pub(super) struct UdpPattern {
    pattern: TrafficPattern,
    from: Vec<u16>,
    to: Vec<u16>,
    flows: u32,
    first_flow: u32,
    /// Sizes with their cumulative share, up to 1.
    sizes: Vec<(u32, f64)>,
    start: Time,
    end: Time,
    packets: u64,
    index: u64,
    next: Time,
    random: SeededRandom,
}

impl UdpPattern {
    pub(super) fn new(
        now: Time,
        plan: &TrafficPlan,
        first_flow: u32,
        random: SeededRandom,
    ) -> Self {
        let whole: f64 = plan.sizes.iter().map(|entry| entry.share).sum();
        let mut sum = 0.0;
        let sizes = plan
            .sizes
            .iter()
            .map(|entry| {
                sum += entry.share / whole;
                (u32::try_from(entry.size.bytes()).unwrap_or(u32::MAX), sum)
            })
            .collect();
        let start = now + plan.start;
        let mut pattern = Self {
            pattern: plan.pattern,
            from: plan.from.clone(),
            to: plan.to.clone(),
            flows: plan.flows.max(1),
            first_flow,
            sizes,
            start,
            end: plan.duration.map_or(Time::NEVER, |span| start + span),
            packets: plan.packets.unwrap_or(u64::MAX),
            index: 0,
            next: start,
            random,
        };
        if let TrafficPattern::Poisson { packets_per_second } = plan.pattern {
            pattern.next = start + pattern.exponential(packets_per_second);
        }
        pattern
    }

    /// Time of the next packet; `None` at the end of the pattern.
    pub(super) fn due(&self) -> Option<Time> {
        (self.index < self.packets && self.next < self.end && !self.from.is_empty())
            .then_some(self.next)
    }

    pub(super) fn take(&mut self) -> Option<SourcePacket> {
        let due = self.due()?;
        let index = self.index;
        self.index += 1;
        self.next = self.time_after(due);
        Some(SourcePacket {
            flow: self.first_flow + (index % u64::from(self.flows)) as u32,
            size: self.size(),
            input: *nth(&self.from, index)?,
            output: *nth(&self.to, index)?,
            due,
            content: PacketContent::Datagram,
        })
    }

    /// Time of the packet of number `index`, which follows the one at `last`.
    fn time_after(&mut self, last: Time) -> Time {
        match self.pattern {
            // From the start, so that roundings do not add up.
            TrafficPattern::Constant { packets_per_second } => {
                self.start + seconds(self.index as f64 / packets_per_second)
            }
            TrafficPattern::Poisson { packets_per_second } => {
                last + self.exponential(packets_per_second)
            }
            TrafficPattern::Bursts {
                packets_per_burst,
                gap,
                period,
            } => {
                let burst = u64::from(packets_per_burst.max(1));
                let whole = times(period, self.index / burst);
                let rest = times(gap, self.index % burst);
                self.start + whole + rest
            }
            TrafficPattern::Tcp { .. } => Time::NEVER,
        }
    }

    fn exponential(&mut self, per_second: f64) -> Duration {
        // 1 - x is above zero.
        seconds(-libm::log(1.0 - self.random.next_f64()) / per_second)
    }

    fn size(&mut self) -> u32 {
        let [.., (last, _)] = self.sizes.as_slice() else {
            return 0;
        };
        if self.sizes.len() == 1 {
            return *last;
        }
        let drawn = self.random.next_f64();
        self.sizes
            .iter()
            .find(|(_, up_to)| drawn < *up_to)
            .map_or(*last, |(size, _)| *size)
    }
}

fn nth(ports: &[u16], index: u64) -> Option<&u16> {
    let count = ports.len().max(1) as u64;
    ports.get((index % count) as usize)
}

fn times(span: Duration, count: u64) -> Duration {
    let nanoseconds = span.as_nanos() * u128::from(count);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

fn seconds(span: f64) -> Duration {
    Duration::from_nanos((span * 1e9).round() as u64)
}
