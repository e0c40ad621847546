//! Simulation of a receiving host that is too slow for a stream.

use vocab::{Bitrate, ByteCount};

use super::StreamRecord;

/// Simulates a host that takes in packets of a stream no faster than a rate, with room for so many
/// waiting packets.
pub(crate) fn taken_in(mut record: StreamRecord, rate: Bitrate, room: u64) -> StreamRecord {
    let bytes = ByteCount::new(u64::from(record.plan.ip_bytes));
    let each = rate.time_for(bytes).as_nanos() as u64;
    let before = record.arrivals.len();
    // When all that waits is taken in.
    let mut done = 0_u64;
    record.arrivals.retain(|arrival| {
        let has_room = done.saturating_sub(arrival.arrived_ns) / each < room;
        if has_room {
            done = done.max(arrival.arrived_ns) + each;
        }
        has_room
    });
    record.no_room += (before - record.arrivals.len()) as u64;
    record
}
