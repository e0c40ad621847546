//! Goodput and retransmissions of the crate `tcp` beside the kernel's own, over the same emulated paths.
//!
//! ```text
//! cargo test -p host --test kernel_tcp -- --ignored --nocapture
//! ```
//!
//! A run is a bulk transfer of ten seconds, its start included. Figures are medians over the seeds: the
//! goodput, and the retransmitted share of all bytes sent.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emulate::{DirectionConfig, LineConfig, Link, LinkConfig, TokenBucket};
use host::tester_sockets::tcp_info;
use socket2::{Domain, Socket, Type};
use tcp::{CongestionAlgorithm, ConnectionConfig};
use testkit::TcpHostPair;
use vocab::{Bitrate, ByteCount, Probability};

use crate::real_time::{BEHIND_LINK, FarSide, KERNEL, PORT, RealTimeLink, in_own_namespace};

const SPAN: Duration = Duration::from_secs(10);
const SEEDS: u64 = 30;
/// Kernel transfers at the same time; each has a namespace and a link of its own.
const AT_ONCE: u64 = 6;
/// Differences that are allowed, as parts of the kernel's figure.
const GOODPUT_TOLERANCE: f64 = 0.05;
const RETRANSMISSION_TOLERANCE: f64 = 0.10;

/// Figures of one transfer.
#[derive(Clone, Copy, Debug)]
struct TransferFigures {
    megabits: f64,
    retransmitted: f64,
    /// Share of the link's turns that were late, in real time.
    late: f64,
}

/// Path of a comparison: 20 Mbit/s, 100 ms.
#[derive(Clone, Copy, Debug)]
enum ComparedPath {
    Loss(f64),
    Policer,
    ShallowBuffer,
}

impl ComparedPath {
    const ALL: [Self; 5] = [
        Self::Loss(0.0),
        Self::Loss(0.001),
        Self::Loss(0.01),
        Self::Policer,
        Self::ShallowBuffer,
    ];

    fn link(self, seed: u64) -> LinkConfig {
        let rate = Bitrate::from_bits_per_second(20_000_000);
        let plain = DirectionConfig {
            line: LineConfig::Rate(rate),
            delay: Duration::from_millis(50),
            // One bandwidth-delay product.
            queue: ByteCount::new(250_000).into(),
            ..DirectionConfig::default()
        };
        let forward = match self {
            ComparedPath::Loss(fraction) => DirectionConfig {
                loss: Probability::from_fraction(fraction).unwrap().into(),
                ..plain.clone()
            },
            ComparedPath::Policer => DirectionConfig {
                policer: Some(TokenBucket {
                    rate,
                    burst: ByteCount::new(125_000),
                    peak: None,
                }),
                line: LineConfig::Rate(Bitrate::from_bits_per_second(100_000_000)),
                ..plain.clone()
            },
            ComparedPath::ShallowBuffer => DirectionConfig {
                queue: ByteCount::new(30_000).into(),
                ..plain.clone()
            },
        };
        LinkConfig {
            forward,
            back: plain,
            seed,
        }
    }
}

/// Moves data between the kernel's sockets.
fn kernel_transfer(
    path: ComparedPath,
    congestion: CongestionAlgorithm,
    seed: u64,
) -> Option<TransferFigures> {
    in_own_namespace(|device| {
        let mut link = RealTimeLink::new(device, path.link(seed));
        let listener = TcpListener::bind((KERNEL, PORT)).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = vec![0; 1 << 18];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
            });
            let sender = scope.spawn(|| {
                let figures = kernel_sender(congestion);
                ended.store(true, Ordering::Release);
                figures
            });
            link.run(FarSide::Kernel, |_, _| ended.load(Ordering::Acquire));
            TransferFigures {
                late: link.late_share(),
                ..sender.join().unwrap()
            }
        })
    })
}

fn kernel_sender(congestion: CongestionAlgorithm) -> TransferFigures {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let name: &[u8] = match congestion {
        CongestionAlgorithm::NewReno => b"reno",
        CongestionAlgorithm::Cubic => b"cubic",
    };
    socket.set_tcp_congestion(name).unwrap();
    let target: std::net::SocketAddr = format!("{BEHIND_LINK}:{PORT}").parse().unwrap();
    let start = std::time::Instant::now();
    socket.connect(&target.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream
        .set_write_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let data = vec![0; 1 << 16];
    while start.elapsed() < SPAN {
        let _ = stream.write(&data);
    }
    let info = tcp_info(&stream).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    // A reset: nothing of what is queued is sent any more.
    host::stamped_sockets::reset_on_close(&stream).unwrap();
    drop(stream);
    std::thread::sleep(Duration::from_millis(200));
    figures(
        info.bytes_acknowledged,
        info.bytes_sent,
        info.bytes_retransmitted,
        seconds,
    )
}

/// Moves data between hosts of `tcp`, in virtual time.
fn simulated_transfer(
    path: ComparedPath,
    congestion: CongestionAlgorithm,
    seed: u64,
) -> TransferFigures {
    let config = ConnectionConfig {
        congestion,
        receive_buffer: ByteCount::new(16_000_000),
        send_buffer: ByteCount::new(16_000_000),
        ..ConnectionConfig::pattern()
    };
    let mut pair = TcpHostPair::new(Link::new(path.link(seed)), seed);
    pair.listen(config);
    let now = pair.clock.now();
    let client = pair.connect(config);
    pair.client.with_connection(client, |connection| {
        connection.write_pattern(now, ByteCount::new(1 << 40));
    });
    pair.run_for(SPAN);
    let info = pair
        .client
        .connection(client)
        .unwrap()
        .info(pair.clock.now());
    figures(
        info.bytes_acknowledged,
        info.bytes_sent,
        info.bytes_retransmitted,
        SPAN.as_secs_f64(),
    )
}

fn figures(
    acknowledged: ByteCount,
    sent: ByteCount,
    again: ByteCount,
    seconds: f64,
) -> TransferFigures {
    TransferFigures {
        megabits: acknowledged.bytes() as f64 * 8e-6 / seconds,
        retransmitted: again.bytes() as f64 / sent.bytes().max(1) as f64,
        late: 0.0,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn medians(runs: &[TransferFigures]) -> (f64, f64) {
    (
        median(runs.iter().map(|run| run.megabits).collect()),
        median(runs.iter().map(|run| run.retransmitted).collect()),
    )
}

#[test]
#[ignore = "long: 300 transfers of ten seconds by the kernel, ten minutes"]
fn goodput_and_retransmissions_match_the_kernel() {
    let seeds = std::env::var("COMPARISON_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(SEEDS);
    let mut differences = Vec::new();
    let mut table = String::from(
        "path          control    goodput Mbit/s: kernel    tcp  differ   resent %: kernel    tcp  differ  late turns\n",
    );
    for path in ComparedPath::ALL {
        for congestion in [CongestionAlgorithm::NewReno, CongestionAlgorithm::Cubic] {
            let simulated: Vec<TransferFigures> = (0..seeds)
                .map(|seed| simulated_transfer(path, congestion, seed))
                .collect();
            let kernel = kernel_runs(path, congestion, seeds);
            if kernel.is_empty() {
                return;
            }
            let (goodput, resent) = medians(&kernel);
            let (own_goodput, own_resent) = medians(&simulated);
            let goodput_differs = own_goodput / goodput - 1.0;
            let resent_differs = own_resent / resent.max(1e-9) - 1.0;
            table += &format!(
                "{:<13} {:<10} {goodput:>22.3} {own_goodput:>6.3} {:>6.1}% {:>17.3} {:>6.3} {:>6.1}% {:>10.2}%\n",
                format!("{path:?}"),
                format!("{congestion:?}"),
                goodput_differs * 100.0,
                resent * 100.0,
                own_resent * 100.0,
                resent_differs * 100.0,
                median(kernel.iter().map(|run| run.late).collect()) * 100.0,
            );
            let is_near = goodput_differs.abs() <= GOODPUT_TOLERANCE
                && ((own_resent - resent).abs() < 1e-5
                    || resent_differs.abs() <= RETRANSMISSION_TOLERANCE);
            if !is_near {
                differences.push(format!("{path:?} {congestion:?}"));
            }
        }
    }
    let _ = std::io::stdout().write_all(table.as_bytes());
    assert!(differences.is_empty(), "differ: {differences:?}\n{table}");
}

/// Kernel transfers of all seeds, some at the same time; none where namespaces are not allowed.
fn kernel_runs(
    path: ComparedPath,
    congestion: CongestionAlgorithm,
    seeds: u64,
) -> Vec<TransferFigures> {
    let mut runs = Vec::new();
    for first in (0..seeds).step_by(AT_ONCE as usize) {
        std::thread::scope(|scope| {
            let batch: Vec<_> = (first..(first + AT_ONCE).min(seeds))
                .map(|seed| scope.spawn(move || kernel_transfer(path, congestion, seed)))
                .collect();
            runs.extend(batch.into_iter().filter_map(|run| run.join().unwrap()));
        });
    }
    runs
}
