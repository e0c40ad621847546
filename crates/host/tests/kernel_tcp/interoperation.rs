//! Bytes between the kernel's TCP and the crate `tcp`, in both roles, over a path that loses and reorders.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emulate::{DirectionConfig, LineConfig, LinkConfig, ReorderingConfig};
use tcp::{
    ClosedReason, CongestionAlgorithm, ConnectionConfig, ConnectionNumber, TcpHost, is_pattern,
    write_pattern,
};
use vocab::{Bitrate, ByteCount, Probability, SeededRandom, Time};

use crate::real_time::{BEHIND_LINK, FarSide, KERNEL, PORT, RealTimeLink, in_own_namespace};

const BYTES: usize = 2_000_000;
/// Time after which a transfer counts as stuck; it takes two seconds.
const LONGEST: Duration = Duration::from_secs(60);

/// 20 Mbit/s, 10 ms, and what a WAN does to packets.
fn rough_path(seed: u64) -> LinkConfig {
    let direction = DirectionConfig {
        line: LineConfig::Rate(Bitrate::from_bits_per_second(20_000_000)),
        delay: Duration::from_millis(5),
        queue: ByteCount::kibibytes(64).into(),
        loss: Probability::from_fraction(0.01).unwrap().into(),
        duplication: Probability::from_fraction(0.005).unwrap(),
        reordering: Some(ReorderingConfig {
            probability: Probability::from_fraction(0.02).unwrap(),
            late_by: Duration::from_millis(3),
        }),
        ..DirectionConfig::default()
    };
    LinkConfig::symmetric(direction, seed)
}

fn pattern(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    write_pattern(0, &mut bytes);
    bytes
}

fn config(congestion: CongestionAlgorithm) -> ConnectionConfig {
    ConnectionConfig {
        congestion,
        ..ConnectionConfig::pattern()
    }
}

#[test]
fn kernel_uploads_to_a_listening_host() {
    in_own_namespace(|device| {
        let mut host = TcpHost::new(SeededRandom::from_seed(1));
        host.listen(PORT, config(CongestionAlgorithm::Cubic));
        let mut link = RealTimeLink::new(device, rough_path(1));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = TcpStream::connect((BEHIND_LINK, PORT)).unwrap();
                stream.write_all(&pattern(BYTES)).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                // The host closes as well: an orderly end.
                assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
                ended.store(true, Ordering::Release);
            });
            let mut accepted: Option<ConnectionNumber> = None;
            link.run(FarSide::Host(&mut host), |now, far| {
                let FarSide::Host(host) = far else {
                    return true;
                };
                accepted = accepted.or_else(|| host.accept());
                let is_closed = accepted.is_some_and(|number| {
                    host.with_connection(number, |connection| {
                        if connection.is_peer_finished() {
                            connection.close();
                        }
                        connection.closed_reason().is_some()
                    })
                    .unwrap_or(true)
                });
                (is_closed && ended.load(Ordering::Acquire)) || is_late(now)
            });
            let connection = host.connection(accepted.unwrap()).unwrap();
            let info = connection.info(link.now());
            assert_eq!(info.bytes_received, ByteCount::new(BYTES as u64));
            assert_eq!(info.bytes_damaged, ByteCount::new(0));
            assert_eq!(connection.closed_reason(), Some(ClosedReason::Finished));
        });
    });
}

#[test]
fn host_uploads_to_the_kernel() {
    for (seed, congestion) in [
        (2, CongestionAlgorithm::Cubic),
        (3, CongestionAlgorithm::NewReno),
    ] {
        in_own_namespace(move |device| {
            let listener = TcpListener::bind((KERNEL, PORT)).unwrap();
            let mut host = TcpHost::new(SeededRandom::from_seed(seed));
            let local = format!("{BEHIND_LINK}:40000").parse().unwrap();
            let remote = format!("{KERNEL}:{PORT}").parse().unwrap();
            let number = host.connect(local, remote, config(congestion)).unwrap();
            host.with_connection(number, |connection| {
                connection.write_pattern(Time::ZERO, ByteCount::new(BYTES as u64));
                connection.close();
            });
            let mut link = RealTimeLink::new(device, rough_path(seed));
            std::thread::scope(|scope| {
                let reader = scope.spawn(move || {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes).unwrap();
                    bytes
                });
                link.run(FarSide::Host(&mut host), |now, far| {
                    let FarSide::Host(host) = far else {
                        return true;
                    };
                    let connection = host.connection(number).unwrap();
                    connection.is_peer_finished() || is_late(now)
                });
                let bytes = reader.join().unwrap();
                assert_eq!(bytes.len(), BYTES);
                assert!(is_pattern(0, &bytes));
            });
            let info = host.connection(number).unwrap().info(link.now());
            assert_eq!(info.bytes_acknowledged, ByteCount::new(BYTES as u64));
            assert!(info.segments_retransmitted > 0, "{info:?}");
        });
    }
}

#[test]
fn closed_port_of_the_kernel_refuses() {
    in_own_namespace(|device| {
        let mut host = TcpHost::new(SeededRandom::from_seed(4));
        let local = format!("{BEHIND_LINK}:40000").parse().unwrap();
        let remote = format!("{KERNEL}:{PORT}").parse().unwrap();
        let number = host
            .connect(local, remote, ConnectionConfig::default())
            .unwrap();
        let mut link = RealTimeLink::new(device, rough_path(4));
        link.run(FarSide::Host(&mut host), |now, far| {
            let FarSide::Host(host) = far else {
                return true;
            };
            let connection = host.connection(number).unwrap();
            connection.closed_reason().is_some() || is_late(now)
        });
        let reason = host.connection(number).unwrap().closed_reason();
        assert_eq!(reason, Some(ClosedReason::Refused));
    });
}

fn is_late(now: Time) -> bool {
    now > Time::ZERO + LONGEST
}
