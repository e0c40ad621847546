//! Scripts of segments against one connection: handshake, loss recovery, timers, closing.
#![allow(clippy::unwrap_used, reason = "a test")]

mod runner;

use runner::{run_client, run_server};
use tcp::{
    ClosedReason, CongestionAlgorithm, ConnectionConfig, ConnectionState, ReceiveContent,
    RecoveryPhase, SendContent,
};
use vocab::{ByteCount, Time};

/// Segments of 1000 bytes, no time stamps.
fn config() -> ConnectionConfig {
    ConnectionConfig {
        congestion: CongestionAlgorithm::NewReno,
        mss: 1_000,
        timestamps: false,
        receive_buffer: ByteCount::new(60_000),
        send_content: SendContent::Pattern,
        receive_content: ReceiveContent::Pattern,
        ..ConnectionConfig::default()
    }
}

/// The handshake of a client whose RTT is 100 ms.
const OPEN: &str = "
    0.000 > S 0:0
    0.100 < S. 0:0 ack 1 win 65535 <mss:1000,sackok>
    0.100 > . 1:1 ack 1
";

fn client(script: &str) -> tcp::TcpConnection {
    run_client(config(), &format!("{OPEN}{script}"))
}

#[test]
fn client_opens_writes_and_closes() {
    let connection = client(
        "
        0.200 write 1500
        0.200 > . 1:1001 ack 1
        0.200 > P. 1001:1501 ack 1
        0.300 < . 1:1 ack 1501 win 65535
        0.300 close
        0.300 > F. 1501:1501 ack 1
        0.400 < F. 1:1 ack 1502 win 65535
        0.400 > . 1502:1502 ack 2
        60.399 quiet
        60.400 quiet
        ",
    );
    assert_eq!(connection.state(), ConnectionState::Closed);
    assert_eq!(connection.closed_reason(), Some(ClosedReason::Finished));
}

#[test]
fn server_answers_with_its_own_options() {
    let connection = run_server(
        config(),
        "
        0.000 < S 0:0 win 1000 <mss:500,sackok,scale:3>
        0.000 > S. 0:0 ack 1
        0.050 < . 1:1 ack 1 win 1000
        0.050 write 500
        0.050 > P. 1:501 ack 1
        0.100 < F. 1:1 ack 501 win 1000
        0.100 > . 501:501 ack 2
        0.100 close
        0.100 > F. 501:501 ack 2
        0.150 < . 2:2 ack 502 win 1000
        ",
    );
    assert_eq!(connection.state(), ConnectionState::Closed);
    assert_eq!(connection.info(Time::ZERO).segment_bytes, 500);
    assert_eq!(
        connection.info(Time::ZERO).peer_window,
        ByteCount::new(8_000)
    );
}

#[test]
fn lost_syn_is_sent_again_after_a_second() {
    let connection = run_client(
        config(),
        "
        0.000 > S 0:0
        1.000 > S 0:0
        3.000 > S 0:0
        7.000 > S 0:0
        15.000 > S 0:0
        31.000 > S 0:0
        63.000 quiet
        ",
    );
    assert_eq!(connection.closed_reason(), Some(ClosedReason::TimedOut));
}

#[test]
fn refused_connection_ends_at_once() {
    let connection = run_client(
        config(),
        "
        0.000 > S 0:0
        0.100 < R. 0:0 ack 1
        ",
    );
    assert_eq!(connection.closed_reason(), Some(ClosedReason::Refused));
}

#[test]
fn initial_window_is_ten_segments() {
    // RFC 6928 §2; slow start then sends two segments for each that arrived (RFC 5681 §3.1).
    client(
        "
        0.100 write 100000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > . 2001:3001
        0.100 > . 3001:4001
        0.100 > . 4001:5001
        0.100 > . 5001:6001
        0.100 > . 6001:7001
        0.100 > . 7001:8001
        0.100 > . 8001:9001
        0.100 > . 9001:10001
        0.200 < . 1:1 ack 2001 win 65535
        0.200 > . 10001:11001
        0.200 > . 11001:12001
        0.200 > . 12001:13001
        0.200 > . 13001:14001
        ",
    );
}

#[test]
fn three_segments_behind_a_gap_start_recovery() {
    // RFC 6675 §5: the loss is sent again at once; PRR then sends as data arrive (RFC 6937 §3).
    let connection = client(
        "
        0.100 write 10000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > . 2001:3001
        0.100 > . 3001:4001
        0.100 > . 4001:5001
        0.100 > . 5001:6001
        0.100 > . 6001:7001
        0.100 > . 7001:8001
        0.100 > . 8001:9001
        0.100 > P. 9001:10001
        0.200 < . 1:1 ack 1 win 65535 <sack:1001:2001>
        0.201 < . 1:1 ack 1 win 65535 <sack:1001:3001>
        0.202 < . 1:1 ack 1 win 65535 <sack:1001:4001>
        0.202 > . 1:1001
        0.210 < . 1:1 ack 1 win 65535 <sack:1001:10001>
        0.302 < . 1:1 ack 10001 win 65535
        ",
    );
    let info = connection.info(Time::ZERO);
    assert_eq!(info.recovery, RecoveryPhase::Open);
    assert_eq!((info.recoveries, info.timeouts), (1, 0));
    assert_eq!((info.congestion_window, info.slow_start_threshold), (5, 5));
    assert_eq!(info.bytes_retransmitted, ByteCount::new(1_000));
}

#[test]
fn two_segments_behind_a_gap_wait_for_reordering() {
    // RFC 8985 §6.2: a quarter of the least RTT after the RTT of the segment that arrived.
    let connection = client(
        "
        0.100 write 3000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > P. 2001:3001
        0.200 < . 1:1 ack 1 win 65535 <sack:1001:3001>
        0.227 > . 1:1001
        0.327 < . 1:1 ack 3001 win 65535
        ",
    );
    assert_eq!(connection.info(Time::ZERO).recoveries, 1);
}

#[test]
fn delayed_acknowledgement_before_a_gap_is_no_reordering() {
    let connection = client(
        "
        0.100 write 6000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > . 2001:3001
        0.100 > . 3001:4001
        0.100 > . 4001:5001
        0.100 > P. 5001:6001
        0.200 < . 1:1 ack 2001 win 65535 <sack:3001:4001>
        0.201 < . 1:1 ack 2001 win 65535 <sack:3001:6001>
        0.201 > . 2001:3001
        0.301 < . 1:1 ack 6001 win 65535
        ",
    );
    let info = connection.info(Time::ZERO);
    assert_eq!((info.recoveries, info.reorderings), (1, 0));
}

#[test]
fn retransmission_leaves_the_wait_for_others() {
    // After reordering, segments that were sent together with one that arrived have a quarter of an RTT.
    let connection = client(
        "
        0.100 write 3000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > P. 2001:3001
        0.200 < . 1:1 ack 1 win 65535 <sack:1001:3001>
        0.205 < . 1:1 ack 3001 win 65535
        0.300 write 1000
        0.300 > P. 3001:4001
        0.350 write 3000
        0.350 > . 4001:5001
        0.350 > . 5001:6001
        0.350 > P. 6001:7001
        0.450 < . 1:1 ack 3001 win 65535 <sack:6001:7001>
        0.450 > . 3001:4001
        0.477 > . 4001:5001
        0.477 > . 5001:6001
        0.577 < . 1:1 ack 7001 win 65535
        ",
    );
    assert_eq!(connection.info(Time::ZERO).timeouts, 0);
}

#[test]
fn reordered_segments_reduce_nothing() {
    let connection = client(
        "
        0.100 write 3000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > P. 2001:3001
        0.200 < . 1:1 ack 1 win 65535 <sack:1001:3001>
        0.205 < . 1:1 ack 3001 win 65535
        ",
    );
    let info = connection.info(Time::ZERO);
    assert_eq!((info.recoveries, info.reorderings), (0, 1));
    assert_eq!(info.recovery, RecoveryPhase::Open);
}

#[test]
fn silent_tail_is_probed_before_the_time_out() {
    // RFC 8985 §7.2: two RTTs; the SACK for the probe then shows the other losses.
    let connection = client(
        "
        0.100 write 4000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > . 2001:3001
        0.100 > P. 3001:4001
        0.308 > P. 3001:4001
        0.408 < . 1:1 ack 1 win 65535 <sack:3001:4001>
        0.408 > . 1:1001
        0.508 < . 1:1 ack 1001 win 65535 <sack:3001:4001>
        0.508 > . 1001:2001
        0.508 > . 2001:3001
        0.608 < . 1:1 ack 4001 win 65535
        ",
    );
    assert_eq!(connection.info(Time::ZERO).tail_probes, 1);
}

#[test]
fn silence_ends_in_time_outs_that_double() {
    // RFC 6298 §5.5; the handshake's RTT of 100 ms gives 300 ms.
    let connection = client(
        "
        0.100 write 1000
        0.100 > P. 1:1001
        0.400 > P. 1:1001    // the tail probe, at the time-out at the latest
        0.700 > P. 1:1001
        1.300 > P. 1:1001
        2.500 > P. 1:1001
        2.600 < . 1:1 ack 1001 win 65535
        ",
    );
    let info = connection.info(Time::ZERO);
    assert_eq!(info.timeouts, 3);
    assert_eq!(info.recovery, RecoveryPhase::Open);
}

#[test]
fn time_out_that_was_spurious_is_undone() {
    // RFC 5682 §3.1 with SACK: after the time-out, data that was sent once are acknowledged.
    let connection = client(
        "
        0.100 write 4000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > . 2001:3001
        0.100 > P. 3001:4001
        0.308 > P. 3001:4001
        0.608 > . 1:1001
        0.640 write 2000
        0.650 < . 1:1 ack 1001 win 65535
        0.650 > . 4001:5001     // new data instead of retransmissions
        0.650 > P. 5001:6001
        0.651 < . 1:1 ack 3001 win 65535
        0.700 < . 1:1 ack 6001 win 65535
        ",
    );
    let info = connection.info(Time::ZERO);
    assert_eq!((info.timeouts, info.undone_reductions), (1, 1));
    assert!(info.congestion_window >= 10, "{}", info.congestion_window);
}

#[test]
fn duplicate_reports_undo_a_reduction() {
    // RFC 3708: the only retransmission was needless.
    let connection = client(
        "
        0.100 write 5000
        0.100 > . 1:1001
        0.100 > . 1001:2001
        0.100 > . 2001:3001
        0.100 > . 3001:4001
        0.100 > P. 4001:5001
        0.200 < . 1:1 ack 1 win 65535 <sack:1001:4001>
        0.200 > . 1:1001
        0.210 < . 1:1 ack 5001 win 65535
        0.300 < . 1:1 ack 5001 win 65535 <sack:1:1001>
        ",
    );
    let info = connection.info(Time::ZERO);
    assert_eq!(info.undone_reductions, 1);
    assert_eq!(info.congestion_window, 10);
}

#[test]
fn receiver_acknowledges_every_second_segment() {
    // RFC 5681 §4.2. The first 16 acknowledgements of a flow go out at once, as with Linux.
    let mut script = String::new();
    for index in 0..16 {
        let (start, end) = (1 + index * 1_000, 1 + (index + 1) * 1_000);
        script += &format!("0.2 < . {start}:{end} ack 1\n0.2 > . 1:1 ack {end}\n");
    }
    script += "
        0.300 < . 16001:17001 ack 1
        0.301 < . 17001:18001 ack 1
        0.301 > . 1:1 ack 18001
        0.310 < . 18001:19001 ack 1
        0.350 > . 1:1 ack 19001
    ";
    client(&script);
}

#[test]
fn gaps_are_reported_latest_first() {
    // RFC 2018 §4: the first block has the segment that arrived last.
    client(
        "
        0.200 < . 1001:2001 ack 1
        0.200 > . 1:1 ack 1 sack 1001:2001
        0.200 < . 3001:4001 ack 1
        0.200 > . 1:1 ack 1 sack 3001:4001 sack 1001:2001
        0.200 < . 1:1001 ack 1
        0.200 > . 1:1 ack 2001 sack 3001:4001
        0.200 < . 3001:4001 ack 1      // a duplicate, RFC 2883 §4
        0.200 > . 1:1 ack 2001 sack 3001:4001 sack 3001:4001
        0.200 < . 2001:3001 ack 1
        0.200 > . 1:1 ack 4001
        ",
    );
}

#[test]
fn closed_window_is_probed() {
    // RFC 9293 §3.8.6.1: one time-out, then doubled.
    client(
        "
        0.200 < . 1:1 ack 1 win 1000
        0.200 write 3000
        0.200 > . 1:1001
        0.300 < . 1:1 ack 1001 win 0
        0.600 > . 1000:1000
        0.700 < . 1:1 ack 1001 win 0
        1.200 > . 1000:1000
        1.300 < . 1:1 ack 1001 win 65535
        1.300 > . 1001:2001
        1.300 > P. 2001:3001
        1.400 < . 1:1 ack 3001 win 65535
        ",
    );
}

#[test]
fn short_segments_wait_for_each_other() {
    // Nagle's algorithm: RFC 1122 §4.2.3.4.
    client(
        "
        0.200 write 100
        0.200 > P. 1:101
        0.210 write 100
        0.220 write 100
        0.300 < . 1:1 ack 101 win 65535
        0.300 > P. 101:301
        0.400 < . 1:1 ack 301 win 65535
        ",
    );
}

#[test]
fn only_an_exact_reset_ends_a_connection() {
    // RFC 5961 §3.2: another one inside the window is answered.
    let connection = client(
        "
        0.200 < R 500:500
        0.200 > . 1:1 ack 1
        0.300 < R 1:1
        ",
    );
    assert_eq!(connection.closed_reason(), Some(ClosedReason::Reset));
}

#[test]
fn old_time_stamps_are_refused() {
    // RFC 7323 §5.3 (PAWS): a segment from an earlier round of the number space.
    let config = ConnectionConfig {
        timestamps: true,
        ..config()
    };
    let connection = run_server(
        config,
        "
        0.000 < S 0:0 <mss:1000,sackok,ts:1000:0>
        0.000 > S. 0:0 ack 1
        0.050 < . 1:1 ack 1 <ts:1050:0>
        0.060 < . 1:101 ack 1 <ts:900:0>
        0.060 > . 1:1 ack 1
        0.070 < . 1:101 ack 1 <ts:1070:0>
        0.070 > . 1:1 ack 101
        ",
    );
    assert_eq!(connection.bytes_received(), ByteCount::new(100));
    assert_eq!(connection.info(Time::ZERO).bytes_damaged, ByteCount::new(0));
}

#[test]
fn aborted_connection_sends_a_reset() {
    let connection = client(
        "
        0.200 abort
        0.200 > R. 1:1 ack 1
        ",
    );
    assert_eq!(connection.closed_reason(), Some(ClosedReason::Aborted));
}

#[test]
fn both_ends_may_close_at_once() {
    // RFC 9293 §3.6, case 3.
    let connection = client(
        "
        0.200 close
        0.200 > F. 1:1 ack 1
        0.210 < F. 1:1 ack 1
        0.210 > . 2:2 ack 2
        0.300 < . 2:2 ack 2
        ",
    );
    assert_eq!(connection.state(), ConnectionState::TimeWait);
}
