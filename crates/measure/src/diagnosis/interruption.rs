//! Interruptions: rows of losses that no queue, bucket or random loss causes.
//!
//! ```text
//!  sent     │││││││││││││││││││││││││││││││
//!  arrived  │  │  │  │  │           │  │  │    a full queue takes a packet whenever the line has sent one on
//!                        └── a row ──┘
//! ```
//! Whatever drops what is beyond a rate lets pass what the rate makes room for, a packet in each packet's
//! time. A row that was sent for many times that long was lost where nothing passed at all: a host or a relay
//! on the way stood still and had no room for what came meanwhile, or the path was cut. It says nothing of the
//! bottleneck, and is left out of what is read from a stage.

use std::ops::Range;
use std::time::Duration;

use super::observation::LoadStage;

/// Least length of a row, in packets and in the path's time for them.
const LEAST_PACKETS: usize = 20;
/// ... and its least duration: a radio link's retransmission, or a random burst, is shorter.
const LEAST: Duration = Duration::from_millis(10);

/// Consecutive packets that were lost over so long a time that nothing can have passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInterruption {
    /// Their places in the stage.
    pub packets: Range<usize>,
    /// Time between the sending of the first and of the last.
    pub lasted: Duration,
}

/// Interruptions of a stage, in order. Losses after the last packet that arrived are not one: a
/// dead path may stay dead.
#[must_use]
pub fn interruptions(stage: &LoadStage) -> Vec<PathInterruption> {
    let packets = &stage.packets;
    let arrived: Vec<usize> = (0..packets.len())
        .filter(|place| packets[*place].received.is_some())
        .collect();
    let (Some(first), Some(last)) = (arrived.first(), arrived.last()) else {
        return Vec::new();
    };
    let span = packets[*last].sent.since(packets[*first].sent);
    let carried = span / u32::try_from(arrived.len()).unwrap_or(u32::MAX);
    let least = LEAST.max(carried * LEAST_PACKETS as u32);
    let row = |pair: &[usize]| {
        let row = pair[0] + 1..pair[1];
        let lasted = match row.len() {
            0 => Duration::ZERO,
            _ => packets[row.end - 1].sent.since(packets[row.start].sent),
        };
        (row.len() >= LEAST_PACKETS && lasted >= least).then_some(PathInterruption {
            packets: row,
            lasted,
        })
    };
    arrived.windows(2).filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use vocab::{Bitrate, ByteCount, Time};

    use super::super::observation::StreamPacket;
    use super::*;

    /// A stage with a packet each 0.1 ms, of which those pass that `passes` selects.
    fn stage(passes: impl Fn(u64) -> bool) -> LoadStage {
        let packet = |place: u64| {
            let sent = Time::ZERO + Duration::from_micros(100 * place);
            StreamPacket {
                sent,
                received: passes(place).then(|| sent + Duration::from_millis(25)),
            }
        };
        LoadStage {
            offered: Bitrate::from_bits_per_second(120_000_000),
            packet: ByteCount::new(1_500),
            packets: (0..10_000).map(packet).collect(),
        }
    }

    #[test]
    fn a_row_while_nothing_passes_is_an_interruption() {
        let found = interruptions(&stage(|place| {
            place % 3 != 2 && !(2_000..2_400).contains(&place)
        }));
        let row = PathInterruption {
            packets: 2_000..2_400,
            lasted: Duration::from_micros(39_900),
        };
        assert_eq!(found, [row]);
    }

    #[test]
    fn policer_drops_and_dead_path_are_no_interruption() {
        // One of thirty passes: rows of 29, 2.8 ms each.
        assert_eq!(interruptions(&stage(|place| place % 30 == 0)), []);
        assert_eq!(interruptions(&stage(|place| place < 5_000)), []);
        assert_eq!(interruptions(&stage(|_| false)), []);
    }
}
