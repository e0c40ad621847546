//! Detection of the directions of a transfer that a capture holds.

use super::{ConnectionDirection, EventContent, MOST_MISSING};

/// Acknowledged bytes without any data from which on a transfer is missing; less is a request or two.
const LEAST_ACKNOWLEDGED: u64 = 1 << 16;

/// Directions of a transfer that a capture holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum CapturedDirections {
    /// Data and acknowledgements.
    Both,
    /// Hardly any acknowledgement of the data was captured.
    DataAlone,
    /// Acknowledgements of so many bytes were captured, of which hardly one was captured itself.
    AcknowledgementsAlone(u64),
}

impl CapturedDirections {
    /// Combines the directions that several connections between two hosts show.
    pub(super) fn of(halves: &[ConnectionDirection]) -> Self {
        let payload: u64 = halves.iter().map(|half| half.payload_bytes).sum();
        let unseen: u64 = halves.iter().map(ConnectionDirection::unseen).sum();
        let unanswered: u64 = halves
            .iter()
            .filter(|half| !half.is_answered())
            .map(|half| half.payload_bytes)
            .sum();
        if unseen > payload {
            Self::AcknowledgementsAlone(unseen)
        } else if 2 * unanswered > payload {
            Self::DataAlone
        } else {
            Self::Both
        }
    }
}

impl ConnectionDirection {
    fn is_answered(&self) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event.what, EventContent::Ack { .. }))
    }

    /// Bytes that were acknowledged where no data was captured; zero where some was, or where they are few.
    pub(super) fn unseen(&self) -> u64 {
        if self.payload_bytes > 0 {
            return 0;
        }
        let (mut highest, mut bytes) = (None, 0);
        for event in &self.events {
            if let EventContent::Ack { next, .. } = &event.what {
                let before = highest.unwrap_or(*next);
                if let step @ 1..=MOST_MISSING = next - before {
                    bytes += step as u64;
                }
                highest = Some(before.max(*next));
            }
        }
        match bytes {
            0..LEAST_ACKNOWLEDGED => 0,
            _ => bytes,
        }
    }
}
