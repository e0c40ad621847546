//! Streams with what is known to hold them back.

use super::*;

/// A bottleneck of a packet each millisecond, from which so many packets are missing at a time.
fn served(missing: impl Fn(u32) -> f64, is_still: impl Fn(u32) -> bool) -> Vec<(f64, f64)> {
    let mut bytes = 0.0;
    let mut all = Vec::new();
    for ms in 0..4_000 {
        bytes += 1_500.0 * (1.0 - missing(ms));
        if !is_still(ms) {
            all.push((f64::from(ms) / 1e3, bytes));
        }
    }
    all
}

#[test]
fn service_that_a_still_host_keeps_from_a_full_bucket_is_excused_and_that_of_others_is_not() {
    // Every 400 ms nothing for 12 ms, of which a bucket of four packets gives back a third.
    let still = |ms: u32| ms % 400 < 12;
    let lost = |ms: u32| if still(ms) { 8.0 / 12.0 } else { 0.0 };
    let strays = straying(&served(lost, still), 1_500.0).unwrap();
    assert!(strays < 1_500.0, "{strays}");
    // Others take a quarter, 400 ms on and 400 ms off.
    let others = |ms: u32| if ms % 800 < 400 { 0.25 } else { 0.0 };
    let strays = straying(&served(others, |_| false), 1_500.0).unwrap();
    assert!(strays > 30_000.0, "{strays}");
}

#[test]
fn a_path_that_loses_most_of_everything_is_read_without_a_panic() {
    let series = Series {
        packet: 1_500.0,
        sent: (0..500).map(|place| f64::from(place) / 1e3).collect(),
        delay: (0..500)
            .map(|place| (place % 5 == 0).then_some(20e-6))
            .collect(),
    };
    for loss in [0.0, 0.3, 0.7, 0.99] {
        let quiet = Quiet { loss, noise: 20e-6 };
        let found = overload(&series, quiet);
        assert!(found.is_none_or(|found| found.burst.is_finite()), "{loss}");
    }
}

#[test]
fn what_comes_all_at_once_behind_a_still_host_is_no_random_loss() {
    // 1 ms apart, 20 µs late each; held up from 1 s to 1.1 s, of which ten are dropped. One is lost by
    // chance elsewhere.
    let delay = |place: u32| match place {
        300 | 1_080..1_090 => None,
        1_000..1_100 => Some(f64::from(1_100 - place) / 1e3),
        _ => Some(20e-6),
    };
    let series = Series {
        packet: 1_500.0,
        sent: (0..2_000).map(|place| f64::from(place) / 1e3).collect(),
        delay: (0..2_000).map(delay).collect(),
    };
    assert_eq!((series.lost(), series.lost_anyhow()), (11, 1));
}

#[test]
fn what_a_stall_holds_up_is_made_up_and_what_others_take_is_not() {
    // A point each millisecond; the service lags from 100 to 130 ms, and from 300 ms on.
    let lag = |ms: u32| match ms {
        100..130 => -f64::from(ms - 100),
        300.. => -20.0,
        _ => 0.0,
    };
    let beside: Vec<(f64, f64)> = (0..500).map(|ms| (f64::from(ms) / 1e3, lag(ms))).collect();
    let left = made_up(&beside);
    assert!(left[..300].iter().all(|value| *value == 0.0));
    assert!(left[300..].iter().all(|value| *value == -20.0));
}
