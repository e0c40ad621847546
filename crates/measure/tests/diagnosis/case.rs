//! Labelled cases: a path drawn from a seed, the measurements of two ends on it, and its causes.
//!
//! Even seeds are the tuning half, odd ones are held out. The halves share no rate and no RTT (both
//! are drawn from bands that alternate), and their devices differ: queues limited in bytes against
//! packets, CoDel and PIE with the values that their RFCs advise against other targets and RED,
//! single losses against bursts, CUBIC against NewReno, and a further line behind the bottleneck.

use std::collections::BTreeSet;
use std::time::Duration;

use emulate::{
    CoDelConfig, DirectionConfig, EcnMode, GilbertElliott, LineConfig, LossModel, PieConfig,
    QueueConfig, QueueDiscipline, QueueLimit, RedConfig, TokenBucket,
};
use measure::diagnosis::{DiagnosisCause, SizeProbe, TcpSegment, TwoEnded};
use tcp::CongestionAlgorithm;
use vocab::{Bitrate, ByteCount, Probability, SeededRandom, Time};

use crate::capture::{self, CaptureSettings};
use crate::transfer::{self, ConnectionSettings, TapPoint};
use crate::world::{BackgroundTraffic, HopChain, HostClocks, StagePlan, stage};

/// The share of the RTT that lies before the bottleneck, each way.
const BEFORE: f64 = 0.15;

/// Half of the cases that a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaseSplit {
    Tuning,
    HeldOut,
}

/// Size of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaseEffort {
    /// For every run of the tests: at most some ten thousand packets.
    Quick,
    /// For the published figures.
    Full,
}

/// Kind of a path's bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BottleneckKind {
    Policer,
    Shaper,
    Queue,
    ActiveQueue,
    Open,
    Slow,
    Dead,
}

/// A drawn path.
#[derive(Clone, Debug)]
pub(crate) struct PathCase {
    pub(crate) seed: u64,
    pub(crate) half: CaseSplit,
    pub(crate) kind: BottleneckKind,
    pub(crate) rate: Bitrate,
    pub(crate) burst: u64,
    pub(crate) queue: u64,
    pub(crate) rtt: Duration,
    pub(crate) packet: u64,
    pub(crate) loss: f64,
    pub(crate) cross: bool,
    pub(crate) asymmetric: bool,
    pub(crate) window_limited: bool,
    pub(crate) black_hole: Option<u64>,
    pub(crate) middlebox: bool,
    pub(crate) connections: usize,
    /// Rate of a further line behind the bottleneck relative to it, if there is one.
    pub(crate) further: Option<f64>,
    pub(crate) effort: CaseEffort,
    random: SeededRandom,
}

impl PathCase {
    pub(crate) fn draw(seed: u64, effort: CaseEffort) -> Self {
        let mut random = SeededRandom::for_stream(seed, 0xd1a9);
        let half = match seed % 2 {
            0 => CaseSplit::Tuning,
            _ => CaseSplit::HeldOut,
        };
        let fastest = match effort {
            CaseEffort::Quick => 40e6,
            CaseEffort::Full => 500e6,
        };
        let rate = banded(&mut random, half, 512e3, fastest) as u64;
        let rtt = banded(&mut random, half, 0.005, 0.3);
        let kind = match random.below(100) {
            0..27 => BottleneckKind::Policer,
            27..52 => BottleneckKind::Shaper,
            52..76 => BottleneckKind::Queue,
            76..86 => BottleneckKind::ActiveQueue,
            86..91 => BottleneckKind::Open,
            91..96 => BottleneckKind::Slow,
            _ => BottleneckKind::Dead,
        };
        let mut one_in = |number: u64| random.below(number) == 0;
        let has_bottleneck = !matches!(
            kind,
            BottleneckKind::Open | BottleneckKind::Slow | BottleneckKind::Dead
        );
        let lossy = one_in(4) && !matches!(kind, BottleneckKind::Slow | BottleneckKind::Dead);
        let cross = has_bottleneck && !lossy && one_in(8);
        let asymmetric = has_bottleneck && one_in(8);
        let is_deep = one_in(2);
        let serialisation = 12_000.0 / rate as f64;
        // What a window or a nearer answer does must be there to see: a path that a few packets fill
        // is held back by no window, and one whose RTT is serialisation has no nearer half.
        let window_limited = matches!(kind, BottleneckKind::Queue | BottleneckKind::Shaper)
            && (is_deep && !lossy && !cross)
            && rtt > 30.0 * serialisation
            && one_in(4);
        let middlebox = has_bottleneck
            && kind != BottleneckKind::ActiveQueue
            && !window_limited
            && rtt > (4.0 * serialisation).max(0.01)
            && one_in(10);
        let black_hole = one_in(14);
        let packet = match half {
            CaseSplit::Tuning => 1500,
            CaseSplit::HeldOut => 1500 - random.below(3) * 100,
        };
        let bdp = rate as f64 / 8.0 * rtt;
        let share = match is_deep {
            // What is managed may by default hold many times what it lets stand.
            _ if kind == BottleneckKind::ActiveQueue => {
                f64::max(2.0, 0.1 / rtt) * (1.0 + random.next_f64())
            }
            true => 0.55 + 2.0 * random.next_f64(),
            false => 0.45 * random.next_f64(),
        };
        let floor = match kind {
            BottleneckKind::ActiveQueue => 40,
            _ => 3,
        };
        let queue = ((share * bdp) as u64).clamp(floor * packet, 30_000_000);
        let mtu = 600 + random.below(1_390 - 600);
        let lost = match kind {
            BottleneckKind::ActiveQueue => 0.003,
            _ => 0.004 + 0.03 * random.next_f64() * random.next_f64(),
        };
        Self {
            seed,
            half,
            kind,
            rate: Bitrate::from_bits_per_second(rate),
            burst: log_uniform(&mut random, 8e3, 2e6) as u64,
            queue,
            rtt: Duration::from_secs_f64(rtt),
            packet,
            loss: if lossy { lost } else { 0.0 },
            cross,
            asymmetric,
            window_limited,
            black_hole: black_hole.then_some(mtu),
            middlebox,
            connections: [1, 1, 1, 3, 8][random.below(5) as usize],
            further: (half == CaseSplit::HeldOut).then_some(12.0),
            effort,
            random,
        }
    }

    /// The causes that are in this path, as the documentation defines them.
    pub(crate) fn causes(&self) -> BTreeSet<DiagnosisCause> {
        let mut causes = BTreeSet::new();
        let bdp = self.rate.bits_per_second() as f64 / 8.0 * self.rtt.as_secs_f64();
        let is_shallow = (self.queue_limit() as f64) < 0.5 * bdp;
        match self.kind {
            BottleneckKind::Policer => {
                causes.insert(DiagnosisCause::Policer);
            }
            BottleneckKind::Shaper => {
                causes.insert(DiagnosisCause::Shaper);
                if is_shallow {
                    causes.insert(DiagnosisCause::ShallowBuffer);
                }
            }
            BottleneckKind::Queue => {
                causes.insert(if is_shallow {
                    DiagnosisCause::ShallowBuffer
                } else {
                    DiagnosisCause::DropTailQueue
                });
            }
            BottleneckKind::ActiveQueue => {
                causes.insert(DiagnosisCause::Aqm);
            }
            BottleneckKind::Slow => {
                causes.insert(DiagnosisCause::TestHostLimited);
            }
            BottleneckKind::Open | BottleneckKind::Dead => {}
        }
        let extra = [
            (self.loss > 0.0, DiagnosisCause::RandomLoss),
            (self.cross, DiagnosisCause::CrossTraffic),
            (self.asymmetric, DiagnosisCause::AsymmetricPath),
            (self.window_limited, DiagnosisCause::HostWindow),
            (self.black_hole.is_some(), DiagnosisCause::MtuBlackHole),
            (self.middlebox, DiagnosisCause::Middlebox),
        ];
        causes.extend(
            extra
                .into_iter()
                .filter(|(is, _)| *is)
                .map(|(_, cause)| cause),
        );
        match self.kind {
            BottleneckKind::Dead => {
                causes.insert(DiagnosisCause::Unknown);
            }
            BottleneckKind::Open if causes.is_empty() => {
                causes.insert(DiagnosisCause::None);
            }
            _ => {}
        }
        causes
    }

    /// Actual limit of the queue: whole packets.
    pub(crate) fn queue_limit(&self) -> u64 {
        self.queue / self.packet * self.packet
    }

    fn bottleneck(&self) -> DirectionConfig {
        let bucket = TokenBucket {
            rate: self.rate,
            burst: ByteCount::new(self.burst),
            peak: None,
        };
        let limit = match self.half {
            CaseSplit::Tuning => QueueLimit::bytes(ByteCount::new(self.queue)),
            CaseSplit::HeldOut => QueueLimit::packets(self.queue / self.packet),
        };
        let mut config = DirectionConfig {
            queue: QueueConfig::from(limit),
            ..DirectionConfig::default()
        };
        match self.kind {
            BottleneckKind::Policer => config.policer = Some(bucket),
            BottleneckKind::Shaper => config.line = LineConfig::Shaper(bucket),
            BottleneckKind::Queue => config.line = LineConfig::Rate(self.rate),
            BottleneckKind::ActiveQueue => {
                config.line = LineConfig::Rate(self.rate);
                config.queue.discipline = self.discipline();
            }
            BottleneckKind::Open | BottleneckKind::Slow | BottleneckKind::Dead => {
                // Faster than anything that is offered.
                config.line = LineConfig::Rate(times(self.rate, 8.0));
                config.queue = QueueLimit::packets(5_000).into();
            }
        }
        if self.loss > 0.0 {
            let loss = Probability::from_fraction(self.loss).expect("below one");
            config.loss = match (self.half, self.seed % 3) {
                (CaseSplit::HeldOut, 0) => LossModel::GilbertElliott(
                    GilbertElliott::from_rate_and_burst(loss, 2.0).expect("rare"),
                ),
                _ => loss.into(),
            };
        }
        config
    }

    fn discipline(&self) -> QueueDiscipline {
        let milliseconds = Duration::from_millis;
        match (self.half, self.seed / 2 % 3) {
            (CaseSplit::Tuning, 0 | 1) => QueueDiscipline::CoDel(CoDelConfig::default()),
            (CaseSplit::Tuning, _) => QueueDiscipline::Pie(PieConfig::default()),
            (CaseSplit::HeldOut, 0) => QueueDiscipline::CoDel(CoDelConfig {
                target: milliseconds(10),
                interval: milliseconds(150),
                ecn: EcnMode::Drop,
            }),
            (CaseSplit::HeldOut, 1) => QueueDiscipline::Pie(PieConfig {
                target: milliseconds(25),
                ..PieConfig::default()
            }),
            (CaseSplit::HeldOut, _) => QueueDiscipline::Red(RedConfig {
                minimum: ByteCount::new(self.queue / 12),
                maximum: ByteCount::new(self.queue / 4),
                probability: Probability::from_fraction(0.1).expect("below one"),
                weight: 0.002,
                packet_time: self.rate.time_for(ByteCount::new(self.packet)),
                gentle: true,
                ecn: EcnMode::Drop,
            }),
        }
    }

    /// The whole way there.
    pub(crate) fn forward(&self, delay_share: f64) -> HopChain {
        let mut random = self.random.clone();
        let access = DirectionConfig {
            line: LineConfig::Rate(times(self.rate, 6.0 + 20.0 * random.next_f64())),
            queue: QueueLimit::packets(500_000).into(),
            delay: self.rtt.mul_f64(BEFORE * delay_share),
            ..DirectionConfig::default()
        };
        let mut bottleneck = self.bottleneck();
        bottleneck.delay = self.rtt.mul_f64((0.5 - BEFORE) * delay_share);
        let mut hops = vec![access, bottleneck];
        if let Some(further) = self.further {
            hops.push(DirectionConfig {
                line: LineConfig::Rate(times(self.rate, further)),
                queue: QueueLimit::packets(100_000).into(),
                ..DirectionConfig::default()
            });
        }
        let cross = self.cross.then(|| BackgroundTraffic {
            hop: 1,
            rate: times(self.rate, 0.15 + 0.2 * random.next_f64()),
            packet: 1_000,
            on: Duration::from_millis(200 + random.below(600)),
            off: Duration::from_millis(200 + random.below(600)),
            random: random.clone(),
            next: Time::ZERO,
            until: Time::ZERO,
        });
        HopChain::new(hops, self.seed, cross)
    }

    /// The whole way back.
    pub(crate) fn reverse(&self, delay_share: f64) -> HopChain {
        let line = DirectionConfig {
            line: LineConfig::Rate(self.reverse_rate()),
            queue: QueueLimit::packets(2_000).into(),
            delay: self.rtt.mul_f64((0.5 - BEFORE) * delay_share),
            ..DirectionConfig::default()
        };
        let rest = DirectionConfig {
            delay: self.rtt.mul_f64(BEFORE * delay_share),
            ..DirectionConfig::default()
        };
        HopChain::new(vec![line, rest], self.seed ^ 1, None)
    }

    fn reverse_rate(&self) -> Bitrate {
        match self.asymmetric {
            true => times(
                self.rate,
                [0.15, 0.4, 0.7, 1.5, 8.0][(self.seed % 5) as usize],
            ),
            false => self.rate,
        }
    }

    /// Measurement of two ends: a stage below the rate, two above it, and TCP.
    pub(crate) fn measure(&self) -> TwoEnded {
        let mut random = self.random.clone();
        let mut clocks = HostClocks {
            ahead: Duration::from_millis(random.below(1 << 30)),
            lateness: Duration::from_micros([0, 3, 10][random.below(3) as usize]),
            random: random.clone(),
        };
        let mut way = self.forward(1.0);
        let refill = Duration::from_secs_f64(
            self.burst as f64 * 8.0 / self.rate.bits_per_second() as f64 + 1.0,
        );
        let plan = |times_rate: f64, count: usize| StagePlan {
            offered: times(self.rate, times_rate),
            packet: ByteCount::new(self.packet),
            count,
            host: match self.kind {
                BottleneckKind::Slow => times(self.rate, 0.5),
                _ => times(self.rate, 100.0),
            },
        };
        let below = match self.effort {
            CaseEffort::Quick => 2_500,
            CaseEffort::Full => 5_000,
        };
        let low = 0.4 + 0.15 * random.next_f64();
        let (quiet, mut now) = stage(&mut way, &mut clocks, Time::ZERO + refill, plan(low, below));
        let mut stages = vec![quiet];
        let first = 1.5 + 0.5 * random.next_f64();
        for times_rate in [first, first * 1.6] {
            let plan = plan(times_rate, self.packets_of(times_rate));
            let (mut overload, end) = stage(&mut way, &mut clocks, now + refill, plan);
            if self.kind == BottleneckKind::Dead {
                let dies = overload.packets.len() / 3;
                overload.packets[dies..]
                    .iter_mut()
                    .for_each(|packet| packet.received = None);
            }
            stages.push(overload);
            now = end;
        }
        TwoEnded {
            baseline_rtt: Some(self.baseline()),
            stages,
            // Over a path that died there is none.
            runs: match self.kind {
                BottleneckKind::Dead => Vec::new(),
                _ => vec![self.transfer(None).0],
            },
            reverse_rate: Some(self.reverse_rate()),
            size_probes: self.size_probes(),
        }
    }

    /// Packets that drain the bucket and fill the queue, twice over, and then show the rate.
    fn packets_of(&self, times_rate: f64) -> usize {
        let excess = 1.0 - 1.0 / times_rate;
        let fill = (self.burst + self.queue) as f64 / excess / self.packet as f64;
        let half_second =
            0.5 * times_rate * self.rate.bits_per_second() as f64 / 8.0 / self.packet as f64;
        let least = match self.effort {
            CaseEffort::Quick => 800.0,
            CaseEffort::Full => f64::max(2_000.0, half_second),
        };
        // Others come and go several times.
        let shared = match self.cross {
            true => {
                4.0 * times_rate * self.rate.bits_per_second() as f64 / 8.0 / self.packet as f64
            }
            false => 0.0,
        };
        (2.2 * fill + least.max(shared)) as usize
    }

    pub(crate) fn baseline(&self) -> Duration {
        self.rtt + self.rate.time_for(ByteCount::new(64)) * 2
    }

    /// TCP over the path: with windows of 4 BDP and more, unless the case is about the window.
    pub(crate) fn transfer(
        &self,
        tap: Option<transfer::TapPoint>,
    ) -> (
        measure::diagnosis::TcpRun,
        Vec<transfer::CapturedPacket>,
        u64,
    ) {
        let share = match self.middlebox {
            true => 0.1 + 0.4 * (self.seed % 7) as f64 / 7.0,
            false => 1.0,
        };
        let connections = if self.window_limited {
            1
        } else {
            self.connections
        };
        let packets_per_second = self.rate.bits_per_second() as f64 / 8.0 / self.packet as f64;
        let most: f64 = match self.effort {
            // Queue management shows once start-up is over.
            CaseEffort::Quick if self.kind == BottleneckKind::ActiveQueue => 30_000.0,
            CaseEffort::Quick => 6_000.0,
            CaseEffort::Full => 80_000.0,
        };
        let seconds = (most / packets_per_second)
            .clamp(0.0, 10.0)
            .max(30.0 * self.rtt.as_secs_f64());
        let plan = transfer::TransferPlan {
            settings: ConnectionSettings {
                control: match self.half {
                    CaseSplit::Tuning => CongestionAlgorithm::Cubic,
                    CaseSplit::HeldOut => {
                        [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno]
                            [(self.seed / 2 % 2) as usize]
                    }
                },
                packet: self.packet,
                window: ByteCount::new(self.window()),
                buffer: ByteCount::new(64 << 20),
                total: ByteCount::new(1 << 40),
            },
            connections,
            stagger: Duration::from_millis(30),
            duration: Duration::from_secs_f64(seconds),
            tap,
        };
        let mut forward = self.forward(share);
        let (run, seen, _) =
            transfer::run(&mut forward, &mut self.reverse(share), Time::ZERO, plan);
        (run, seen, forward.dropped(1))
    }

    /// The receiver's window of each connection.
    fn window(&self) -> u64 {
        let bdp = self.rate.bits_per_second() as f64 / 8.0 * self.rtt.as_secs_f64();
        let window = match self.window_limited {
            true => (0.1 + 0.5 * (self.seed % 11) as f64 / 11.0) * bdp,
            false => 60.0 * bdp + 4.0 * self.queue as f64 + 2e6,
        };
        window as u64
    }

    /// A capture of a transfer over the path: at the sender, at the receiver or in the middle, some
    /// offloaded, some begun late.
    pub(crate) fn capture(&self) -> (TapPoint, CaptureSettings, u64, Vec<TcpSegment>) {
        let mut random = SeededRandom::for_stream(self.seed, 0xca97);
        let tap = [
            TapPoint::Sender,
            TapPoint::Sender,
            TapPoint::Receiver,
            TapPoint::Behind(0),
        ][random.below(4) as usize];
        let taking = CaptureSettings {
            offloaded: random.below(2) == 0,
            begins_late: match random.below(10) {
                0 => 0.1,
                _ => 0.0,
            },
        };
        let (_, seen, dropped) = self.transfer(Some(tap));
        let segments = capture::segments(&seen, self.packet, taking);
        (tap, taking, dropped, segments)
    }

    /// Tells whether random loss or other traffic blurs the bottleneck's behaviour.
    pub(crate) fn is_mixed(&self) -> bool {
        self.loss > 0.0 || self.cross
    }

    /// Tells whether the transfer of a capture ever meets the bottleneck.
    pub(crate) fn is_for_captures(&self) -> bool {
        !(self.window_limited || self.middlebox || self.asymmetric)
            && matches!(
                self.kind,
                BottleneckKind::Policer
                    | BottleneckKind::Shaper
                    | BottleneckKind::Queue
                    | BottleneckKind::ActiveQueue
            )
    }

    fn size_probes(&self) -> Vec<SizeProbe> {
        let mut random = self.random.clone();
        let sizes = [1_200_u64, 1_280, 1_340, 1_380, 1_420, 1_460, 1_480, 1_500];
        let below = self.black_hole.into_iter();
        let mut sizes: Vec<u64> = below.chain(sizes).collect();
        sizes.sort_unstable();
        let probe = |size: u64| {
            let passes = self.black_hole.is_none_or(|most| size <= most);
            // A probe that is lost by chance is sent again, three times at most (RFC 8899).
            let mut sent = 0;
            let mut answered = 0;
            while sent < 3 && answered == 0 {
                sent += 1;
                answered += u32::from(passes && random.next_f64() >= self.loss);
            }
            SizeProbe {
                size: ByteCount::new(size),
                sent,
                answered,
                was_refused: false,
            }
        };
        sizes.into_iter().map(probe).collect()
    }
}

pub(crate) fn times(rate: Bitrate, factor: f64) -> Bitrate {
    Bitrate::from_bits_per_second((rate.bits_per_second() as f64 * factor) as u64)
}

fn log_uniform(random: &mut SeededRandom, least: f64, most: f64) -> f64 {
    least * (most / least).powf(random.next_f64())
}

/// One of 16 bands between the two, every second one for each half.
fn banded(random: &mut SeededRandom, half: CaseSplit, least: f64, most: f64) -> f64 {
    let band = 2 * random.below(8) + u64::from(half == CaseSplit::HeldOut);
    let place = (band as f64 + random.next_f64()) / 16.0;
    least * (most / least).powf(place)
}
