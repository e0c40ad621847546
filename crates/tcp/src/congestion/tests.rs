//! The window functions against the examples and formulas of their RFCs.

use super::*;

const RTT: Duration = Duration::from_millis(100);

fn window(congestion: CongestionAlgorithm, segments: u32) -> CongestionWindow {
    let config = ConnectionConfig {
        congestion,
        initial_window: segments,
        hystart: false,
        ..ConnectionConfig::default()
    };
    CongestionWindow::new(&config)
}

/// Acknowledges one window in each round trip, in pairs of segments, for `rounds`.
fn run_rounds(window: &mut CongestionWindow, from: Time, rounds: u32) -> Time {
    let mut now = from;
    for _ in 0..rounds {
        let segments = window.segments;
        window.on_rtt(now, RTT, 0, 0);
        for pair in 0..segments / 2 {
            let at = now + RTT * pair / segments.max(1) * 2;
            window.increase(at, 2);
        }
        now += RTT;
    }
    now
}

#[test]
fn slow_start_doubles_each_round() {
    let mut window = window(CongestionAlgorithm::NewReno, 10);
    run_rounds(&mut window, Time::ZERO, 3);
    assert_eq!(window.segments, 80);
}

#[test]
fn slow_start_ends_exactly_at_the_threshold() {
    let mut window = window(CongestionAlgorithm::NewReno, 10);
    window.threshold = 15;
    window.increase(Time::ZERO, 8);
    assert_eq!((window.segments, window.credit), (15, 3));
}

#[test]
fn new_reno_adds_one_segment_a_round() {
    // RFC 5681 §3.1: about one full-sized segment per RTT.
    let mut window = window(CongestionAlgorithm::NewReno, 100);
    window.threshold = window.reduced_threshold();
    assert_eq!(window.threshold, 50);
    window.segments = 50;
    run_rounds(&mut window, Time::ZERO, 10);
    assert!((59..=60).contains(&window.segments), "{}", window.segments);
}

#[test]
fn cubic_returns_to_its_plateau_after_k() {
    // RFC 9438 §4.2: K = cbrt((W_max - cwnd_epoch) / C) = cbrt(300 / 0.4) = 9.1 s for W_max 1000.
    let mut window = window(CongestionAlgorithm::Cubic, 1_000);
    window.threshold = window.reduced_threshold();
    assert_eq!(window.threshold, 700);
    window.segments = 700;
    let now = run_rounds(&mut window, Time::ZERO, 90);
    assert!(
        (980..=1_010).contains(&window.segments),
        "{}",
        window.segments
    );
    run_rounds(&mut window, now, 60);
    // 6 s behind the plateau: W_max + C * 6^3 = 1086.
    assert!(
        (1_060..=1_100).contains(&window.segments),
        "{}",
        window.segments
    );
}

#[test]
fn cubic_converges_fast_when_it_lost_early() {
    // RFC 9438 §4.7: W_max = cwnd * (1 + beta) / 2 when the window is below the former W_max.
    let mut cubic = CubicState::new(false);
    assert_eq!(cubic.reduce(1_000), 700);
    assert_eq!(cubic.reduce(800), 560);
    let mut plain = CubicState::new(false);
    plain.reduce(800);
    let later = Time::ZERO + Duration::from_secs(2);
    let [after, without] = [cubic, plain].map(|mut state| {
        state.segments_for_increase(Time::ZERO, 560, 1);
        state.segments_for_increase(later, 560, 1)
    });
    assert!(after > without, "{after} {without}");
}

#[test]
fn a_short_path_gets_renos_window() {
    // RFC 9438 §4.3: with an RTT of 10 ms the Reno-friendly window is the larger one.
    let mut cubic = CubicState::new(false);
    cubic.reduce(100);
    let mut window = 70;
    let mut credit = 0;
    for round in 0..40 {
        let in_round = window;
        for number in 0..in_round {
            let microseconds = 10_000 * (round * in_round + number) / in_round;
            let now = Time::ZERO + Duration::from_micros(u64::from(microseconds));
            let needed = cubic.segments_for_increase(now, window, 1);
            credit += 1;
            if credit >= needed {
                credit = 0;
                window += 1;
            }
        }
    }
    // 3 * (1 - beta) / (1 + beta) = 0.53 segments a round.
    assert!((88..=92).contains(&window), "{window}");
}

#[test]
fn a_time_out_starts_again_with_one_segment() {
    let mut window = window(CongestionAlgorithm::Cubic, 100);
    window.threshold = window.reduced_threshold();
    window.on_timeout(0);
    assert_eq!((window.segments, window.threshold), (1, 70));
}

#[test]
fn hystart_ends_slow_start_on_delay_growth() {
    let mut window = window(CongestionAlgorithm::Cubic, 32);
    window.cubic = Some(CubicState::new(true));
    let mut now = Time::ZERO;
    for sample in 0..20 {
        // 10 ms apart: no train.
        now += Duration::from_millis(10);
        window.on_rtt(now, RTT, sample, 100);
    }
    assert!(window.in_slow_start());
    for sample in 0..20 {
        now += Duration::from_millis(10);
        window.on_rtt(now, RTT + Duration::from_millis(13), 101 + sample, 300);
    }
    assert_eq!(window.threshold, 32);
}

#[test]
fn hystart_ends_slow_start_on_a_long_train() {
    let mut window = window(CongestionAlgorithm::Cubic, 32);
    window.cubic = Some(CubicState::new(true));
    let mut now = Time::ZERO;
    for sample in 0..50 {
        assert!(window.in_slow_start());
        now += Duration::from_millis(1);
        window.on_rtt(now, RTT, sample, 1_000);
    }
    now += Duration::from_millis(3);
    window.on_rtt(now, RTT, 50, 1_000);
    assert!(window.in_slow_start(), "a gap ends the train");
    let mut window = CongestionWindow {
        cubic: Some(CubicState::new(true)),
        ..window
    };
    for _ in 0..60 {
        now += Duration::from_millis(1);
        window.on_rtt(now, RTT, 50, 1_000);
    }
    assert_eq!(window.threshold, 32);
}

#[test]
fn reduction_ends_the_credit_for_a_larger_window() {
    let mut window = window(CongestionAlgorithm::NewReno, 10);
    window.threshold = 10;
    window.increase(Time::ZERO, 9);
    window.threshold = window.reduced_threshold();
    window.segments = window.threshold;
    window.increase(Time::ZERO, 4);
    assert_eq!(window.segments, 5);
    window.increase(Time::ZERO, 1);
    assert_eq!(window.segments, 6);
}

#[test]
fn growth_of_an_unchanged_window_stays_for_seven_ticks() {
    let mut cubic = CubicState::new(false);
    cubic.reduce(1_000);
    // W_cubic(4 s) = 1100 + 0.4 * 4^3 = 1125.6, and half a segment more 28 ms later.
    let mut needed = |milliseconds: u64| {
        cubic.segments_for_increase(Time::from_nanos(milliseconds * 1_000_000), 1_100, 1)
    };
    needed(0);
    assert_eq!(needed(4_000), 1_100 / 25);
    assert_eq!(needed(4_028), 1_100 / 25);
    assert_eq!(needed(4_032), 1_100 / 26);
}
