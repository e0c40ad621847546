//! Limits on the part of a capture that is evaluated.

use super::{CaptureEvent, ConnectionDirection, EventContent, MOST_MISSING};

/// Limits on the number of packets that are evaluated; later ones are left out. Each packet is used
/// in every step of every search.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct PacketLimits {
    /// Limit for one stream: 380 MB in full-size Ethernet packets.
    pub(in super::super) of_stream: usize,
    /// Limit for all streams of a capture.
    pub(in super::super) of_all: usize,
}

impl Default for PacketLimits {
    fn default() -> Self {
        Self {
            of_stream: 1 << 18,
            of_all: 1 << 20,
        }
    }
}

/// Cuts directions off before the segment with which they come to more packets than `most`; how many they come
/// to then. `sizes` are their segments'.
pub(super) fn cut_off(halves: &mut [ConnectionDirection], sizes: &[i64], most: usize) -> usize {
    let both = halves.iter().zip(sizes);
    let mut packets: Vec<(usize, usize)> = both
        .flat_map(|(half, segment)| half.packets(*segment))
        .collect();
    packets.sort_unstable_by_key(|(order, _)| *order);
    let mut all = 0;
    for (end, packets) in packets {
        if all + packets > most {
            for half in halves {
                half.cut_off(end);
            }
            break;
        }
        all += packets;
    }
    all
}

impl ConnectionDirection {
    /// Place in the capture of each segment with data, and the number of packets of one size that
    /// it stands for, including those missing before it.
    fn packets(&self, segment: i64) -> impl Iterator<Item = (usize, usize)> {
        let mut highest: Option<i64> = None;
        let pieces = move |bytes: i64| ((bytes + segment - 1) / segment) as usize;
        self.events.iter().filter_map(move |event| {
            let EventContent::Data { start, end, .. } = &event.what else {
                return None;
            };
            let top = highest.unwrap_or(*start);
            let missing = match start - top {
                gap @ 1..=MOST_MISSING => pieces(gap),
                _ => 0,
            };
            highest = Some(top.max(*end));
            Some((event.order, missing + pieces(end - start)))
        })
    }

    /// Leaves out segments that were captured from a place on.
    fn cut_off(&mut self, end: usize) {
        let keep = self.events.partition_point(|event| event.order < end);
        self.events.truncate(keep);
        let payload = |event: &CaptureEvent| match event.what {
            EventContent::Data { start, end, .. } => (end - start) as u64,
            EventContent::Ack { .. } => 0,
        };
        self.payload_bytes = self.events.iter().map(payload).sum();
    }
}
