//! Whole transfers between two hosts over emulated paths: every byte arrives once, at the rate that the
//! path has.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use emulate::{DirectionConfig, LineConfig, Link, LinkConfig, ReorderingConfig};
use tcp::{
    ClosedReason, CongestionAlgorithm, ConnectionConfig, ConnectionInfo, ConnectionNumber,
    ConnectionState,
};
use testkit::{RunOutcome, TcpHostPair};
use vocab::{Bitrate, ByteCount, Probability};

const MEGABIT: u64 = 1_000_000;

fn direction(megabits: u64, delay: Duration, queue: ByteCount) -> DirectionConfig {
    DirectionConfig {
        line: LineConfig::Rate(Bitrate::from_bits_per_second(megabits * MEGABIT)),
        delay,
        queue: queue.into(),
        ..DirectionConfig::default()
    }
}

fn pair(forward: DirectionConfig, back: DirectionConfig, seed: u64) -> TcpHostPair {
    let config = LinkConfig {
        forward,
        back,
        seed,
    };
    config.check().unwrap();
    TcpHostPair::new(Link::new(config), seed)
}

fn symmetric(direction: DirectionConfig, seed: u64) -> TcpHostPair {
    pair(direction.clone(), direction, seed)
}

/// Sends `count` bytes of the pattern and closes at both ends. Returns the time and both infos.
fn transfer(
    pair: &mut TcpHostPair,
    config: ConnectionConfig,
    count: ByteCount,
) -> (Duration, ConnectionInfo, ConnectionInfo) {
    pair.listen(config);
    let start = pair.clock.now();
    let client = pair.connect(config);
    pair.client.with_connection(client, |connection| {
        connection.write_pattern(start, count);
        connection.close();
    });
    let mut server = None;
    let outcome = pair.run_until(Duration::from_secs(3_600), |pair| {
        server = server.or_else(|| pair.server.accept());
        server.is_some_and(|server| is_finished(pair, server))
    });
    assert_eq!(outcome, RunOutcome::Reached);
    let elapsed = pair.clock.now().since(start);
    let server = server.unwrap();
    pair.server
        .with_connection(server, tcp::TcpConnection::close);
    pair.run_for(Duration::from_secs(30));
    let now = pair.clock.now();
    let client = pair.client.connection(client).unwrap();
    let server = pair.server.connection(server).unwrap();
    assert_eq!(server.closed_reason(), Some(ClosedReason::Finished));
    assert_eq!(client.state(), ConnectionState::TimeWait);
    assert_eq!(server.bytes_received(), count);
    let (client, server) = (client.info(now), server.info(now));
    assert_eq!(server.bytes_damaged, ByteCount::new(0));
    assert_eq!(client.bytes_acknowledged, count);
    (elapsed, client, server)
}

fn is_finished(pair: &TcpHostPair, server: ConnectionNumber) -> bool {
    let connection = pair.server.connection(server).unwrap();
    connection.is_peer_finished()
}

fn goodput(count: ByteCount, elapsed: Duration) -> f64 {
    count.bytes() as f64 * 8.0 / elapsed.as_secs_f64() / MEGABIT as f64
}

#[test]
fn clean_path_is_filled() {
    for congestion in [CongestionAlgorithm::NewReno, CongestionAlgorithm::Cubic] {
        let config = ConnectionConfig {
            congestion,
            ..ConnectionConfig::pattern()
        };
        let path = direction(20, Duration::from_millis(10), ByteCount::kibibytes(100));
        let count = ByteCount::mebibytes(20);
        let (elapsed, client, _) = transfer(&mut symmetric(path, 1), config, count);
        // 1448 of 1500 bytes are payload: 19.3 Mbit/s.
        let rate = goodput(count, elapsed);
        assert!(
            (18.5..19.31).contains(&rate),
            "{congestion:?}: {rate} {client:?}"
        );
        assert_eq!(client.timeouts, 0, "{congestion:?}");
    }
}

#[test]
fn window_limits_the_rate() {
    // RFC 6349 §3.3.1: TCP throughput = RWND * 8 / RTT.
    let config = ConnectionConfig {
        receive_buffer: ByteCount::new(65_536),
        ..ConnectionConfig::pattern()
    };
    let path = direction(1_000, Duration::from_millis(50), ByteCount::mebibytes(1));
    let count = ByteCount::mebibytes(4);
    let (elapsed, client, _) = transfer(&mut symmetric(path, 1), config, count);
    let rate = goodput(count, elapsed);
    assert!((4.9..5.25).contains(&rate), "{rate}");
    assert!(
        client.receive_window_limited > client.busy / 2,
        "{client:?}"
    );
}

#[test]
fn send_buffer_limits_the_rate() {
    let config = ConnectionConfig {
        send_buffer: ByteCount::new(65_536),
        ..ConnectionConfig::pattern()
    };
    let path = direction(1_000, Duration::from_millis(50), ByteCount::mebibytes(1));
    let count = ByteCount::mebibytes(4);
    let (elapsed, client, _) = transfer(&mut symmetric(path, 1), config, count);
    assert!((4.9..5.25).contains(&goodput(count, elapsed)));
    assert!(client.send_buffer_limited > client.busy / 2, "{client:?}");
}

#[test]
fn random_loss_is_repaired_without_time_outs() {
    let mut timeouts = 0;
    for seed in 0..10 {
        let path = DirectionConfig {
            loss: Probability::from_fraction(0.01).unwrap().into(),
            ..direction(20, Duration::from_millis(50), ByteCount::kibibytes(256))
        };
        let count = ByteCount::mebibytes(2);
        let (_, client, _) = transfer(
            &mut symmetric(path, seed),
            ConnectionConfig::pattern(),
            count,
        );
        timeouts += client.timeouts;
        let ratio = client.bytes_retransmitted.bytes() as f64 / client.bytes_sent.bytes() as f64;
        assert!((0.003..0.025).contains(&ratio), "seed {seed}: {ratio}");
    }
    assert!(timeouts <= 5, "{timeouts}");
}

#[test]
fn hostile_path_loses_no_byte() {
    for seed in 0..20 {
        let path = DirectionConfig {
            loss: Probability::from_fraction(0.05).unwrap().into(),
            corruption: Probability::from_fraction(0.01).unwrap(),
            duplication: Probability::from_fraction(0.02).unwrap(),
            reordering: Some(ReorderingConfig {
                probability: Probability::from_fraction(0.05).unwrap(),
                late_by: Duration::from_millis(5),
            }),
            ..direction(10, Duration::from_millis(10), ByteCount::kibibytes(32))
        };
        let config = ConnectionConfig {
            sack: seed % 4 != 0,
            timestamps: seed % 3 != 0,
            congestion: if seed % 2 == 0 {
                CongestionAlgorithm::Cubic
            } else {
                CongestionAlgorithm::NewReno
            },
            ..ConnectionConfig::pattern()
        };
        transfer(
            &mut symmetric(path, seed),
            config,
            ByteCount::kibibytes(500),
        );
    }
}

#[test]
fn stored_bytes_arrive_in_order_both_ways() {
    let path = DirectionConfig {
        loss: Probability::from_fraction(0.03).unwrap().into(),
        ..direction(50, Duration::from_millis(5), ByteCount::kibibytes(64))
    };
    let config = ConnectionConfig {
        send_buffer: ByteCount::new(20_000),
        receive_buffer: ByteCount::new(30_000),
        ..ConnectionConfig::default()
    };
    let mut pair = symmetric(path, 3);
    pair.listen(config);
    let client = pair.connect(config);
    let mut server = None;
    let text: Vec<u8> = (0..300_000_u32)
        .map(|index| ((index * 7) >> 3) as u8)
        .collect();
    let (mut written, mut echoed, mut back) = (0, Vec::new(), Vec::new());
    let mut pending = Vec::new();
    let outcome = pair.run_until(Duration::from_secs(600), |pair| {
        let now = pair.clock.now();
        server = server.or_else(|| pair.server.accept());
        pair.client.with_connection(client, |connection| {
            written += connection.write(now, &text[written..]);
            while let Some(bytes) = connection.read() {
                back.extend_from_slice(&bytes);
            }
        });
        if let Some(server) = server {
            pair.server.with_connection(server, |connection| {
                while let Some(bytes) = connection.read() {
                    echoed.extend_from_slice(&bytes);
                    pending.extend_from_slice(&bytes);
                }
                let count = connection.write(now, &pending);
                pending.drain(..count);
            });
        }
        back.len() == text.len()
    });
    assert_eq!(outcome, RunOutcome::Reached);
    assert!(echoed == text && back == text);
}

#[test]
fn many_flows_share_a_line() {
    let path = direction(100, Duration::from_millis(10), ByteCount::kibibytes(256));
    let mut pair = symmetric(path, 5);
    let config = ConnectionConfig::pattern();
    pair.listen(config);
    let start = pair.clock.now();
    let clients: Vec<ConnectionNumber> = (0..200)
        .map(|_| {
            let client = pair.connect(config);
            pair.client.with_connection(client, |connection| {
                connection.write_pattern(start, ByteCount::kibibytes(100));
                connection.close();
            });
            client
        })
        .collect();
    let mut done = 0;
    let mut servers = Vec::new();
    let outcome = pair.run_until(Duration::from_secs(60), |pair| {
        while let Some(server) = pair.server.accept() {
            servers.push(server);
        }
        servers.retain(|server| {
            let finished = is_finished(pair, *server);
            if finished {
                done += 1;
                pair.server
                    .with_connection(*server, tcp::TcpConnection::close);
            }
            !finished
        });
        done == clients.len()
    });
    assert_eq!(outcome, RunOutcome::Reached);
    let rate = goodput(
        ByteCount::kibibytes(200 * 100),
        pair.clock.now().since(start),
    );
    assert!(rate > 70.0, "{rate}");
}

/// The virtual time of the measurement, after a second in which the flows open.
const MEASURED: Duration = Duration::from_secs(5);

#[test]
#[ignore = "long: prints how fast 2,000 flows over 1 Gbit/s run, half a minute"]
#[allow(clippy::disallowed_methods, reason = "a measurement prints its figure")]
fn two_thousand_flows_fill_a_gigabit() {
    let path = direction(1_000, Duration::from_millis(10), ByteCount::mebibytes(2));
    let mut pair = symmetric(path, 7);
    let config = ConnectionConfig::pattern();
    pair.listen(config);
    for _ in 0..2_000 {
        let now = pair.clock.now();
        let client = pair.connect(config);
        pair.client.with_connection(client, |connection| {
            connection.write_pattern(now, ByteCount::new(1 << 40));
        });
        pair.run_for(Duration::from_micros(500));
    }
    let carried = |pair: &TcpHostPair| pair.link.forward.counters().delivered.bytes;
    let before = carried(&pair);
    let began = processor_time();
    pair.run_for(MEASURED);
    let took = processor_time() - began;
    let rate = (carried(&pair) - before) as f64 * 8.0 / MEASURED.as_secs_f64() / MEGABIT as f64;
    let speed = MEASURED.as_secs_f64() / took.as_secs_f64();
    let mut out = std::io::stdout();
    let text =
        format!("2,000 flows, {rate:.0} Mbit/s of packets: {speed:.2} times real time on a core\n");
    let _ = std::io::Write::write_all(&mut out, text.as_bytes());
    assert!(rate > 950.0, "{rate}");
}

/// Processor time of this thread, which the load of other programs does not change.
#[allow(clippy::disallowed_methods, reason = "a measurement reads a clock")]
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = text.split_whitespace().next().unwrap().parse().unwrap();
    Duration::from_nanos(nanoseconds)
}
