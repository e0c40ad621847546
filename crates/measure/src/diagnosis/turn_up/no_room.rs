//! Report about packets that reached the receiving host and found no room in the tester's socket.

use vocab::Bitrate;

use super::is_kept;
use crate::diagnosis::{CauseParameters, DiagnosisCause, DiagnosisFinding};
use crate::procedure::{LimitedBy, StreamRecord};
use crate::turn_up::FinishedTest;
use crate::wire::TestDirection;

/// Finding that the receiving host had no room for packets; [`None`] where it took in a stream that
/// was as fast.
pub(super) fn receiver_limited(
    finished: &FinishedTest,
    direction: TestDirection,
) -> Option<DiagnosisFinding> {
    /// The kernel counted them.
    const SURE: f64 = 0.9;
    let known = finished.turn_up.known(direction);
    let found = known.bottleneck.as_ref();
    let is_limit = found.is_some_and(|found| found.limited_by == LimitedBy::Receiver);
    let streams = || known.streams.iter();
    let taken_in = streams()
        .filter(|record| is_kept(record) && !record.is_overrun())
        .map(|record| record.plan.rate)
        .max();
    let counts = |record: &&StreamRecord| match is_limit {
        true => record.no_room > 0,
        false => record.is_overrun() && taken_in.is_none_or(|rate| record.plan.rate > rate),
    };
    let seen = streams()
        .filter(counts)
        .map(|record| (record.plan.rate, record.no_room));
    let counted = known.counted.iter().filter(|_| is_limit);
    let counted = counted.filter_map(|stream| Some((stream.plan.rate, stream.no_room?)));
    let evidence: Vec<String> = seen
        .chain(counted.filter(|(_, no_room)| *no_room > 0))
        .map(|(rate, no_room)| {
            format!(
                "{}, of a stream of {rate}",
                without_room(direction, no_room)
            )
        })
        .collect();
    (!evidence.is_empty()).then(|| DiagnosisFinding {
        cause: DiagnosisCause::TestHostLimited,
        confidence: SURE,
        evidence,
        parameters: CauseParameters {
            rate: found.filter(|_| is_limit).map(|found| found.rate),
            ..CauseParameters::default()
        },
        instead: None,
    })
}

/// Text with the number of packets that one of the tester's hosts had no room for, and the host.
#[must_use]
pub fn without_room(direction: TestDirection, packets: u64) -> String {
    let host = match direction {
        TestDirection::Up => "the server's host",
        TestDirection::Down => "this host",
    };
    format!(
        "{} packets came to the receiving host ({host}) and found no room in the tester's socket",
        grouped(packets)
    )
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Remark about packets of a stream that one of the tester's hosts had no room for.
#[must_use]
pub fn found_no_room(direction: TestDirection, rate: Bitrate, packets: u64) -> Option<String> {
    (packets > 0).then(|| {
        format!(
            "{}, at {rate}: {}. They do not count as lost by the path",
            direction.name(),
            without_room(direction, packets)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_without_room_are_remarked_on() {
        let rate = Bitrate::from_bits_per_second(300_000_000);
        assert_eq!(found_no_room(TestDirection::Down, rate, 0), None);
        let said = found_no_room(TestDirection::Down, rate, 1_234).unwrap();
        assert!(
            said.contains("1,234 packets came to the receiving host (this host)"),
            "{said}"
        );
        let grouped = [0, 999, 61_234, 1_000_000].map(grouped);
        assert_eq!(grouped, ["0", "999", "61,234", "1,000,000"]);
    }
}
