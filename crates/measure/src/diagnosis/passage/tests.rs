//! Tests of finding the payload of one segment.

use super::*;

fn payloads(sizes: impl IntoIterator<Item = i64>) -> ConnectionDirection {
    let data = sizes.into_iter().map(|size| CaptureEvent {
        order: 0,
        at: 0.0,
        what: EventContent::Data {
            start: 0,
            end: size,
            header: 40,
            stamps: None,
        },
    });
    ConnectionDirection {
        events: data.collect(),
        ..ConnectionDirection::default()
    }
}

#[test]
fn sixty_thousand_sizes_are_reduced_to_few() {
    let counts: BTreeMap<u32, usize> = (1..=60_000).map(|size| (size, 1)).collect();
    let likely = likely_payloads(&counts);
    assert!((1..=96).contains(&likely.len()), "{}", likely.len());
    assert_eq!(payloads(1..=60_000).common_payload(), None);
}

#[test]
fn the_common_size_is_found_among_many_others() {
    // The last ones of messages, and one, two or three segments captured as one.
    let rest = (537..1_037).chain(5_001..5_501);
    let many = (0..12_000).map(|number| 1_400 * (1 + number % 3));
    assert_eq!(payloads(many.chain(rest)).common_payload(), Some(1_400));
    assert_eq!(payloads([2_800; 50]).common_payload(), Some(2_800));
    // Never captured by itself.
    let pairs = (0..60).map(|number| 1_400 * (2 + number % 2));
    assert_eq!(payloads(pairs).common_payload(), Some(1_400));
}
