//! Tests of streams with known limits.

use super::service::made_up;
use super::*;

/// A bottleneck of a packet per millisecond, from which so many packets are missing at a time.
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
fn host_stalls_are_excused_unlike_cross_traffic() {
    // Every 400 ms nothing for 12 ms, of which a bucket of four packets gives back a third.
    let still = |ms: u32| ms % 400 < 12;
    let lost = |ms: u32| if still(ms) { 8.0 / 12.0 } else { 0.0 };
    let strays = rate_deviation(&served(lost, still), 1_500.0).unwrap();
    assert!(strays < 1_500.0, "{strays}");
    // Others take a quarter, 400 ms on and 400 ms off.
    let others = |ms: u32| if ms % 800 < 400 { 0.25 } else { 0.0 };
    let strays = rate_deviation(&served(others, |_| false), 1_500.0).unwrap();
    assert!(strays > 30_000.0, "{strays}");
}

#[test]
fn path_with_extreme_loss_never_panics() {
    let series = StageSeries {
        packet: 1_500.0,
        sent: (0..500).map(|place| f64::from(place) / 1e3).collect(),
        delay: (0..500)
            .map(|place| (place % 5 == 0).then_some(20e-6))
            .collect(),
    };
    for loss in [0.0, 0.3, 0.7, 0.99] {
        let quiet = QuietObservation { loss, noise: 20e-6 };
        let found = overload(&series, quiet);
        assert!(found.is_none_or(|found| found.burst.is_finite()), "{loss}");
    }
}

#[test]
fn arrivals_after_host_stall_are_no_random_loss() {
    // 1 ms apart, 20 µs late each; held up from 1 s to 1.1 s, of which ten are dropped. One is lost by
    // chance elsewhere.
    let delay = |place: u32| match place {
        300 | 1_080..1_090 => None,
        1_000..1_100 => Some(f64::from(1_100 - place) / 1e3),
        _ => Some(20e-6),
    };
    let series = StageSeries {
        packet: 1_500.0,
        sent: (0..2_000).map(|place| f64::from(place) / 1e3).collect(),
        delay: (0..2_000).map(delay).collect(),
    };
    assert_eq!((series.lost(), series.unexplained_loss_count()), (11, 1));
}

#[test]
fn stall_is_made_up_unlike_cross_traffic() {
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

#[test]
fn relay_stall_is_not_taken_for_cross_traffic() {
    // 300 Mbit/s before a queue of ten packets, offered half as much again. Every 100 ms a relay behind the line
    // stands still for 2 ms, and then hands on what came at four times the line's rate.
    let (gap, line, queue) = (1_500.0 / 56.25e6, 1_500.0 / 37.5e6, 10.0);
    let (mut free, mut out) = (0.0_f64, 0.0_f64);
    let (mut sent, mut delay) = (Vec::new(), Vec::new());
    for number in 0..100_000 {
        let at = f64::from(number) * gap;
        sent.push(at);
        if free - at > queue * line {
            delay.push(None);
            continue;
        }
        free = free.max(at) + line;
        let phase = free % 0.1;
        let relayed = if phase < 0.002 {
            free - phase + 0.002
        } else {
            free
        };
        out = relayed.max(out + line / 4.0);
        delay.push(Some(out - at - line));
    }
    let packet = 1_500.0;
    let series = StageSeries {
        packet,
        sent,
        delay,
    };
    let found = overload(&series, QuietObservation::default()).unwrap();
    assert!(
        found.straying <= found.straying_by_chance,
        "{} {}",
        found.straying,
        found.straying_by_chance
    );
    assert!((found.rate / 37.5e6 - 1.0).abs() < 5e-4, "{}", found.rate);
}

#[test]
fn short_queue_after_stall_is_no_random_loss() {
    // 50 us between packets of a line that takes 40; of three that were held up the third finds no room.
    let mut series = StageSeries {
        packet: 1_500.0,
        sent: (0..10_000)
            .map(|number| f64::from(number) * 50e-6)
            .collect(),
        delay: vec![Some(0.0); 10_000],
    };
    for first in [1_000, 4_000, 7_000] {
        series.delay[first] = Some(120e-6);
        series.delay[first + 1] = Some(90e-6);
        series.delay[first + 2] = None;
    }
    // Too few are held up for their delay to be what a full queue makes.
    let lost = |series: &StageSeries| series.lost_beside_queue(37.5e6, 1_500.0);
    assert_eq!(series.unexplained_loss_count(), 3);
    assert_eq!(lost(&series), 0);
    series.delay[2_000] = None;
    assert_eq!(lost(&series), 1);
}
