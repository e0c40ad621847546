//! Goodput and retransmissions of the crate `tcp` beside the kernel's own, over the same emulated paths.
//!
//! ```text
//! cargo test -p host --test kernel_tcp -- --ignored --nocapture goodput
//! COMPARISON_SEEDS=6 COMPARISON_ROWS="Policer Cubic" TEST_BINARY --ignored --nocapture goodput
//! ```
//!
//! A run is a bulk transfer of ten seconds, its start included. The runs of one seed are a pair: the link drops
//! the packets with the same numbers for both sides, and the simulated link pauses when the machine let the
//! kernel's link wait. Packets that were late come in bursts, which a shallow buffer drops. Figures are medians
//! over the seeds: the goodput, and the retransmitted share of all bytes sent. The interval of a difference is a
//! bootstrap over the pairs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use emulate::{
    DirectionConfig, JitterConfig, JitterDistribution, LineConfig, Link, LinkConfig, PacketOrder,
    TokenBucket,
};
use host::tester_sockets::tcp_info;
use socket2::{Domain, Socket, Type};
use tcp::{CongestionAlgorithm, ConnectionConfig};
use testkit::TcpHostPair;
use vocab::{Bitrate, ByteCount, Probability, SeededRandom, Time};

use crate::real_time::{BEHIND_LINK, FarSide, KERNEL, PORT, RealTimeLink, in_own_namespace};

const SPAN: Duration = Duration::from_secs(10);
const SEEDS: u64 = 30;
/// Kernel transfers at the same time; each has a namespace and a link of its own.
const AT_ONCE: usize = 6;
/// Differences that are allowed, as parts of the kernel's figure.
const GOODPUT_TOLERANCE: f64 = 0.05;
const RETRANSMISSION_TOLERANCE: f64 = 0.10;
/// Samples of the bootstrap, and the share of them outside a 95 % interval on each side.
const RESAMPLES: usize = 2_000;
const OUTSIDE: f64 = 0.025;
/// Jitter of the acknowledgements where the times of the packets decide which of them are dropped, and the part
/// of the policer's bucket that depends on the seed: each seed has other times.
const ACK_JITTER: Duration = Duration::from_millis(1);
const BUCKET_LEAST: u64 = 100_000;
const BUCKET_SPREAD: u64 = 50_000;

/// Figures of one transfer.
#[derive(Clone, Copy, Debug)]
struct TransferFigures {
    megabits: f64,
    retransmitted: f64,
    /// Share of the link's turns that were late, in real time.
    late: f64,
}

impl std::fmt::Display for TransferFigures {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let resent = self.retransmitted * 100.0;
        write!(formatter, "{:.3} Mbit/s {resent:.3} %", self.megabits)
    }
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

    /// The times of the packets, not their numbers, decide which of them are dropped.
    fn drops_by_time(self) -> bool {
        matches!(self, Self::Policer | Self::ShallowBuffer)
    }

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
                    burst: ByteCount::new(
                        BUCKET_LEAST + SeededRandom::from_seed(seed).below(BUCKET_SPREAD),
                    ),
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
        let mut back = plain;
        if self.drops_by_time() {
            back.jitter = Some(JitterConfig {
                distribution: JitterDistribution::Uniform { spread: ACK_JITTER },
                order: PacketOrder::Kept,
            });
        }
        LinkConfig {
            forward,
            back,
            seed,
        }
    }
}

/// Moves data between the kernel's sockets.
fn kernel_transfer(
    path: ComparedPath,
    congestion: CongestionAlgorithm,
    seed: u64,
) -> Option<(TransferFigures, Vec<(Time, Time)>)> {
    in_own_namespace(|device| {
        let mut link = RealTimeLink::new(device, path.link(seed));
        let listener = TcpListener::bind((KERNEL, PORT)).unwrap();
        let ended = AtomicBool::new(false);
        let figures = std::thread::scope(|scope| {
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
        });
        (figures, link.into_pauses())
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

/// Moves data between hosts of `tcp`, in virtual time. It stops where the machine stopped the kernel's link.
fn simulated_transfer(
    path: ComparedPath,
    congestion: CongestionAlgorithm,
    seed: u64,
    pauses: &[(Time, Time)],
) -> TransferFigures {
    let config = ConnectionConfig {
        congestion,
        // The kernel offers a half of its buffer of 16 MB at first, and then the part that packets of this
        // size leave for payload.
        receive_buffer: ByteCount::new(10_000_000),
        receive_window_initial: ByteCount::new(8_000_000),
        send_buffer: ByteCount::new(16_000_000),
        ..ConnectionConfig::pattern()
    };
    let mut pair = TcpHostPair::new(Link::new(path.link(seed)), seed);
    for (start, end) in pauses {
        pair.pause_at(*start, *end);
    }
    pair.listen(config);
    let client = pair.connect(config);
    let start = pair.clock.now();
    // The kernel's sender writes when it is connected, so that its handshake ends with a segment of its own.
    let _ = pair.run_until(SPAN, |pair| {
        let connection = pair.client.connection(client);
        connection.is_some_and(tcp::TcpConnection::is_established)
    });
    let now = pair.clock.now();
    pair.client.with_connection(client, |connection| {
        connection.write_pattern(now, ByteCount::new(1 << 40));
    });
    pair.run_for(SPAN - now.since(start));
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
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) && middle > 0 {
        return f64::midpoint(values[middle - 1], values[middle]);
    }
    values[middle]
}

/// Transfers over one link with the same seed.
#[derive(Clone, Copy, Debug)]
struct TransferPair {
    kernel: TransferFigures,
    simulated: TransferFigures,
}

/// Medians of both sides, and the interval of their difference.
struct ComparedFigure {
    kernel: f64,
    simulated: f64,
    /// Difference as a part of the kernel's median, and its 95 % interval.
    differs: f64,
    interval: (f64, f64),
}

impl ComparedFigure {
    fn new(pairs: &[TransferPair], figure: impl Fn(&TransferFigures) -> f64) -> Self {
        let difference = |sample: &[TransferPair]| {
            let kernel = median(sample.iter().map(|pair| figure(&pair.kernel)).collect());
            let simulated = median(sample.iter().map(|pair| figure(&pair.simulated)).collect());
            let least = f64::MIN_POSITIVE;
            let differs = if (kernel - simulated).abs() < 1e-5 {
                0.0
            } else {
                simulated / kernel.max(least) - 1.0
            };
            (kernel, simulated, differs)
        };
        let (kernel, simulated, differs) = difference(pairs);
        let mut random = SeededRandom::from_seed(1);
        let mut resampled: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let sample: Vec<TransferPair> = (0..pairs.len())
                    .map(|_| pairs[random.below(pairs.len() as u64) as usize])
                    .collect();
                difference(&sample).2
            })
            .collect();
        resampled.sort_by(f64::total_cmp);
        let at = |share: f64| resampled[(share * (RESAMPLES - 1) as f64) as usize];
        Self {
            kernel,
            simulated,
            differs,
            interval: (at(OUTSIDE), at(1.0 - OUTSIDE)),
        }
    }

    fn row(&self, scale: f64) -> String {
        format!(
            "{:>8.3} {:>8.3} {:>+7.1}% [{:>+7.1}, {:>+7.1}]",
            self.kernel * scale,
            self.simulated * scale,
            self.differs * 100.0,
            self.interval.0 * 100.0,
            self.interval.1 * 100.0,
        )
    }
}

#[test]
#[ignore = "long: 300 transfers of ten seconds by the kernel, ten minutes"]
fn goodput_and_retransmissions_match_the_kernel() {
    let seeds = std::env::var("COMPARISON_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(SEEDS);
    let rows = std::env::var("COMPARISON_ROWS").unwrap_or_default();
    let mut differences = Vec::new();
    print(&format!(
        "{:<22} {:^45} {:^45} late turns pairs\n{:<22} {:^45} {:^45}\n",
        "path, control",
        "goodput Mbit/s",
        "resent %",
        "",
        "kernel      tcp  differs 95 % interval",
        "kernel      tcp  differs 95 % interval",
    ));
    for path in ComparedPath::ALL {
        for congestion in [CongestionAlgorithm::NewReno, CongestionAlgorithm::Cubic] {
            let name = format!("{path:?} {congestion:?}");
            if !name.contains(&rows) {
                continue;
            }
            let pairs = paired_runs(path, congestion, seeds);
            if pairs.is_empty() {
                print(&format!("{name:<22} no transfer\n"));
                continue;
            }
            let goodput = ComparedFigure::new(&pairs, |run| run.megabits);
            let resent = ComparedFigure::new(&pairs, |run| run.retransmitted);
            print(&format!(
                "{name:<22} {} {} {:>9.2}% {:>5}\n",
                goodput.row(1.0),
                resent.row(100.0),
                median(pairs.iter().map(|pair| pair.kernel.late).collect()) * 100.0,
                pairs.len(),
            ));
            if goodput.differs.abs() > GOODPUT_TOLERANCE
                || resent.differs.abs() > RETRANSMISSION_TOLERANCE
            {
                differences.push(name);
            }
        }
    }
    assert!(differences.is_empty(), "differ: {differences:?}");
}

fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Transfers of all seeds, some of the kernel's at the same time; none where namespaces are not allowed.
fn paired_runs(
    path: ComparedPath,
    congestion: CongestionAlgorithm,
    seeds: u64,
) -> Vec<TransferPair> {
    let seeds: Vec<u64> = (0..seeds).collect();
    let mut pairs = Vec::new();
    for batch in seeds.chunks(AT_ONCE) {
        let kernel: Vec<_> = std::thread::scope(|scope| {
            let runs: Vec<_> = batch
                .iter()
                .map(|seed| scope.spawn(move || kernel_transfer(path, congestion, *seed)))
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for (seed, kernel) in batch.iter().zip(kernel) {
            let Some((kernel, pauses)) = kernel else {
                continue;
            };
            let simulated = simulated_transfer(path, congestion, *seed, &pauses);
            if std::env::var_os("COMPARISON_PAIRS").is_some() {
                let undisturbed = simulated_transfer(path, congestion, *seed, &[]);
                print(&format!(
                    "  seed {seed}: kernel {kernel}, late {:.2} %; tcp {simulated}; without pauses {undisturbed}\n",
                    kernel.late * 100.0,
                ));
            }
            pairs.push(TransferPair { kernel, simulated });
        }
    }
    pairs
}
