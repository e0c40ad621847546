//! Plausibility checks of reports from the other end. It holds the key but may be faulty: a number
//! beyond every order could take unlimited time to count through, or unlimited memory.

use std::time::Duration;

use thiserror::Error;

use super::transfer::SAMPLE_EVERY;
use crate::procedure::{ARRIVALS_MAX, StreamPlan};
use crate::turn_up::RunPlan;
use crate::wire::{DatagramArrival, RunSample, TestDirection};

/// Greatest delay of data beyond the order: a deep queue, and a host that stops.
const LATE_MAX: Duration = Duration::from_secs(60);

/// Figure of a server that cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImplausibleReport {
    /// More packets than a stream has.
    #[error(
        "the server says that it sent {datagrams} packets of a stream that has no more than {most}"
    )]
    Sent {
        /// Packets sent, as the server reports them.
        datagrams: u64,
        /// The most that can be true.
        most: u128,
    },
    /// Too many arrivals, or too late ones.
    #[error("the server reports packets that no stream of {} s has", .0.as_secs_f64())]
    Arrivals(Duration),
    /// More packets without room than are missing.
    #[error(
        "the server says that it had no room for {datagrams} packets of a stream of which {most} did not arrive"
    )]
    NoRoom {
        /// Packets without room, as the server reports them.
        datagrams: u64,
        /// The most that can be true.
        most: u64,
    },
    /// Samples from after the run.
    #[error("the server reports samples that no run of {} s has", .0.as_secs_f64())]
    Samples(Duration),
}

/// Datagrams that a server says it sent of a stream.
pub(super) fn sent(plan: StreamPlan, datagrams: u64) -> Result<u64, ImplausibleReport> {
    let bits = u128::from(plan.rate.bits_per_second()) * plan.duration.as_nanos() / 1_000_000_000;
    // The first leaves at once; and where a translator changes IPv6 to IPv4 the server's packets are smaller than
    // ours, and so more, by less than half.
    let most = 2 * (bits / (8 * u128::from(plan.ip_bytes.max(1))) + 1);
    if u128::from(datagrams) > most {
        return Err(ImplausibleReport::Sent { datagrams, most });
    }
    Ok(datagrams)
}

/// Checks further arrivals of a stream after `before` others.
pub(super) fn arrivals(
    plan: StreamPlan,
    before: usize,
    some: &[DatagramArrival],
) -> Result<(), ImplausibleReport> {
    let until = (plan.duration + LATE_MAX).as_nanos();
    let is_late = |arrival: &DatagramArrival| {
        u128::from(arrival.arrived_ns) > until || u128::from(arrival.sent_ns) > until
    };
    if before + some.len() > ARRIVALS_MAX || some.iter().any(is_late) {
        return Err(ImplausibleReport::Arrivals(plan.duration));
    }
    Ok(())
}

/// Checks the number of datagrams that found no room at the server, out of those that were sent and
/// arrived.
pub(super) fn no_room(sent: u64, arrived: usize, datagrams: u64) -> Result<u64, ImplausibleReport> {
    let most = sent.saturating_sub(arrived as u64);
    if datagrams > most {
        return Err(ImplausibleReport::NoRoom { datagrams, most });
    }
    Ok(datagrams)
}

/// Checks further samples of a run after `before` others.
pub(super) fn samples(
    plan: &RunPlan,
    before: usize,
    some: &[RunSample],
) -> Result<(), ImplausibleReport> {
    let until = plan.duration + LATE_MAX;
    let each = until.as_nanos() / SAMPLE_EVERY.as_nanos();
    let connections = plan.connections[TestDirection::Down as usize];
    let is_late = |sample: &RunSample| sample.at > until;
    if (before + some.len()) as u128 > each * u128::from(connections) || some.iter().any(is_late) {
        return Err(ImplausibleReport::Samples(plan.duration));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use vocab::{Bitrate, ByteCount};

    use super::*;
    use crate::tcp_info::TcpInfo;
    use crate::turn_up::RunPurpose;

    const PLAN: StreamPlan = StreamPlan {
        rate: Bitrate::from_bits_per_second(12_000_000),
        duration: Duration::from_secs(2),
        ip_bytes: 1_500,
    };

    #[test]
    fn no_more_is_sent_than_was_ordered() {
        assert_eq!(sent(PLAN, 2_001).unwrap(), 2_001);
        // As IPv4, of packets that are 1,500 bytes as IPv6.
        assert_eq!(sent(PLAN, 2_028).unwrap(), 2_028);
        for most in [4_003, 1_000_000_000, u64::MAX] {
            assert!(sent(PLAN, most).is_err());
        }
        let none = Bitrate::from_bits_per_second(0);
        assert_eq!(sent(StreamPlan { rate: none, ..PLAN }, 1).unwrap(), 1);
    }

    #[test]
    fn packets_without_room_never_exceed_missing_ones() {
        assert_eq!(no_room(2_000, 1_990, 10).unwrap(), 10);
        assert!(no_room(2_000, 1_990, 11).is_err());
        // A path may bring packets twice.
        assert_eq!(no_room(2_000, 2_001, 0).unwrap(), 0);
        assert!(no_room(2_000, 2_001, 1).is_err());
    }

    #[test]
    fn implausible_arrival_times_are_refused() {
        let arrival = |sent_ns, arrived_ns| DatagramArrival {
            number: 0,
            sent_ns,
            arrived_ns,
        };
        assert!(arrivals(PLAN, 0, &[arrival(2_000_000_000, 7_000_000_000)]).is_ok());
        assert!(arrivals(PLAN, 0, &[arrival(0, (1 << 62) - 1)]).is_err());
        assert!(arrivals(PLAN, 0, &[arrival((1 << 62) - 1, 0)]).is_err());
        assert!(arrivals(PLAN, ARRIVALS_MAX, &[arrival(0, 0)]).is_err());
        let sample = |at| RunSample {
            connection: 0,
            at,
            info: TcpInfo::default(),
        };
        let run = RunPlan {
            purpose: RunPurpose::Listed,
            connections: [0, 1],
            windows: [ByteCount::default(); 2],
            duration: Duration::from_secs(10),
        };
        let late = run.duration + Duration::from_secs(3);
        assert!(samples(&run, 0, &[sample(late)]).is_ok());
        assert!(samples(&run, 699, &[sample(late)]).is_ok());
        assert!(samples(&run, 700, &[sample(late)]).is_err());
        assert!(samples(&run, 0, &[sample(Duration::from_nanos((1 << 62) - 1))]).is_err());
    }
}
