//! Tests that distinguish a transfer limited by a host's window or buffer from one that its sender
//! paces.

use super::super::finding::DiagnosisCause;
use super::diagnose_capture;
use super::synthetic::{PAYLOAD, RTT_US, SyntheticTransfer};

/// The window that is named, if one is.
fn window_of(transfer: &SyntheticTransfer) -> Option<u64> {
    let found = diagnose_capture(&transfer.segments()).remove(0);
    let held = found
        .findings
        .into_iter()
        .find(|finding| finding.cause == DiagnosisCause::HostWindow)?;
    Some(held.parameters.window.expect("it is known").bytes())
}

const HELD: u64 = 24 * PAYLOAD as u64;

#[test]
fn window_full_at_every_acknowledgement_is_named() {
    for way_percent in [0, 50, 100] {
        let full = SyntheticTransfer {
            offered: |_| 36_200,
            way_percent,
            ..SyntheticTransfer::default()
        };
        let named = window_of(&full).unwrap_or_default();
        assert!(named.abs_diff(36_200) < 128, "{way_percent}: {named}");
    }
}

/// The window of a control connection is not part of the data's limit.
#[test]
fn control_connection_does_not_hide_the_window() {
    let mut segments = SyntheticTransfer {
        offered: |_| 36_200,
        ..SyntheticTransfer::default()
    }
    .segments();
    let control = SyntheticTransfer {
        packets: 4,
        port: 40_001,
        ..SyntheticTransfer::default()
    };
    segments.extend(control.segments());
    segments.sort_by_key(|segment| segment.at);
    let found = diagnose_capture(&segments).remove(0);
    assert_eq!(found.connections, 2);
    assert_eq!(
        found.findings[0].cause,
        DiagnosisCause::HostWindow,
        "{found:?}"
    );
}

/// The receiver varies its offered window, so that its usual window does not show the throughput.
#[test]
fn varying_window_is_named_as_well() {
    let moving = SyntheticTransfer {
        packets: 6_000,
        flight: 1_000,
        offered: |number| match number / 1_000 % 2 {
            0 => 20 * PAYLOAD,
            _ => 80 * PAYLOAD,
        },
        ..SyntheticTransfer::default()
    };
    assert!(window_of(&moving).is_some());
}

#[test]
fn send_buffer_shows_in_the_bytes_in_flight() {
    assert_eq!(window_of(&SyntheticTransfer::default()), Some(HELD));
}

#[test]
fn pacing_sender_is_not_window_limited() {
    let paced = SyntheticTransfer {
        flight: 1_000,
        // A packet every 833 us, which is no part of the round trip, and some of them late.
        leaves: |number, _| {
            RTT_US + 833 * u64::from(number) + u64::from(number.wrapping_mul(2_654_435_761) >> 24)
        },
        ..SyntheticTransfer::default()
    };
    assert_eq!(window_of(&paced), None);
}
