//! Labelled cases: a path drawn from a seed, what two ends measure of it, and the causes in it.
//!
//! Even seeds are the tuning half, odd ones are held out. The halves share no rate and no RTT (both
//! are drawn from bands that alternate), and their devices differ: queues limited in bytes against
//! packets, CoDel and PIE as their RFCs advise against other targets and RED, single losses against
//! bursts, CUBIC against NewReno, and a further line behind the bottleneck.

use std::collections::BTreeSet;
use std::time::Duration;

use emulate::{
    CoDelConfig, DirectionConfig, Discipline, Ecn, GilbertElliott, Line, Loss, PieConfig, Queue,
    QueueLimit, RedConfig, TokenBucket,
};
use measure::diagnosis::{Cause, Segment, SizeProbe, TwoEnded};
use vocab::{Bitrate, ByteCount, Probability, Random, Time};

use crate::capture::{self, Taking};
use crate::tcp::{Control, Settings};
use crate::transfer::{self, Tap};
use crate::world::{Clocks, Cross, Plan, Way, stage};

/// The share of the RTT that lies before the bottleneck, each way.
const BEFORE: f64 = 0.15;

/// Which half a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Tuning,
    HeldOut,
}

/// How much a case may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// For every run of the tests: at most some ten thousand packets.
    Quick,
    /// For the figures.
    Full,
}

/// What a path's bottleneck is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) half: Half,
    pub(crate) kind: Kind,
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
    /// How many times as fast a further line behind the bottleneck is, if there is one.
    pub(crate) further: Option<f64>,
    pub(crate) effort: Effort,
    random: Random,
}

impl Case {
    pub(crate) fn draw(seed: u64, effort: Effort) -> Self {
        let mut random = Random::for_stream(seed, 0xd1a9);
        let half = match seed % 2 {
            0 => Half::Tuning,
            _ => Half::HeldOut,
        };
        let fastest = match effort {
            Effort::Quick => 40e6,
            Effort::Full => 500e6,
        };
        let rate = banded(&mut random, half, 512e3, fastest) as u64;
        let rtt = banded(&mut random, half, 0.005, 0.3);
        let kind = match random.below(100) {
            0..27 => Kind::Policer,
            27..52 => Kind::Shaper,
            52..76 => Kind::Queue,
            76..86 => Kind::ActiveQueue,
            86..91 => Kind::Open,
            91..96 => Kind::Slow,
            _ => Kind::Dead,
        };
        let mut one_in = |number: u64| random.below(number) == 0;
        let has_bottleneck = !matches!(kind, Kind::Open | Kind::Slow | Kind::Dead);
        let lossy = one_in(4) && !matches!(kind, Kind::Slow | Kind::Dead);
        let cross = has_bottleneck && !lossy && one_in(8);
        let asymmetric = has_bottleneck && one_in(8);
        let is_deep = one_in(2);
        let serialisation = 12_000.0 / rate as f64;
        // What a window or a nearer answer does must be there to see: a path that a few packets fill
        // is held back by no window, and one whose RTT is serialisation has no nearer half.
        let window_limited = matches!(kind, Kind::Queue | Kind::Shaper)
            && (is_deep && !lossy && !cross)
            && rtt > 30.0 * serialisation
            && one_in(4);
        let middlebox = has_bottleneck
            && kind != Kind::ActiveQueue
            && !window_limited
            && rtt > (4.0 * serialisation).max(0.01)
            && one_in(10);
        let black_hole = one_in(14);
        let packet = match half {
            Half::Tuning => 1500,
            Half::HeldOut => 1500 - random.below(3) * 100,
        };
        let bdp = rate as f64 / 8.0 * rtt;
        let share = match is_deep {
            // What is managed may by default hold many times what it lets stand.
            _ if kind == Kind::ActiveQueue => f64::max(2.0, 0.1 / rtt) * (1.0 + random.next_f64()),
            true => 0.55 + 2.0 * random.next_f64(),
            false => 0.45 * random.next_f64(),
        };
        let floor = match kind {
            Kind::ActiveQueue => 40,
            _ => 3,
        };
        let queue = ((share * bdp) as u64).clamp(floor * packet, 30_000_000);
        let mtu = 600 + random.below(1_390 - 600);
        let lost = match kind {
            Kind::ActiveQueue => 0.003,
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
            further: (half == Half::HeldOut).then_some(12.0),
            effort,
            random,
        }
    }

    /// The causes that are in this path, as the documentation defines them.
    pub(crate) fn causes(&self) -> BTreeSet<Cause> {
        let mut causes = BTreeSet::new();
        let bdp = self.rate.bits_per_second() as f64 / 8.0 * self.rtt.as_secs_f64();
        let is_shallow = (self.queue_limit() as f64) < 0.5 * bdp;
        match self.kind {
            Kind::Policer => {
                causes.insert(Cause::Policer);
            }
            Kind::Shaper => {
                causes.insert(Cause::Shaper);
                if is_shallow {
                    causes.insert(Cause::ShallowBuffer);
                }
            }
            Kind::Queue => {
                causes.insert(if is_shallow {
                    Cause::ShallowBuffer
                } else {
                    Cause::DropTailQueue
                });
            }
            Kind::ActiveQueue => {
                causes.insert(Cause::Aqm);
            }
            Kind::Slow => {
                causes.insert(Cause::TestHostLimited);
            }
            Kind::Open | Kind::Dead => {}
        }
        let extra = [
            (self.loss > 0.0, Cause::RandomLoss),
            (self.cross, Cause::CrossTraffic),
            (self.asymmetric, Cause::AsymmetricPath),
            (self.window_limited, Cause::HostWindow),
            (self.black_hole.is_some(), Cause::MtuBlackHole),
            (self.middlebox, Cause::Middlebox),
        ];
        causes.extend(
            extra
                .into_iter()
                .filter(|(is, _)| *is)
                .map(|(_, cause)| cause),
        );
        match self.kind {
            Kind::Dead => {
                causes.insert(Cause::Unknown);
            }
            Kind::Open if causes.is_empty() => {
                causes.insert(Cause::None);
            }
            _ => {}
        }
        causes
    }

    /// What the queue really holds: whole packets.
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
            Half::Tuning => QueueLimit::bytes(ByteCount::new(self.queue)),
            Half::HeldOut => QueueLimit::packets(self.queue / self.packet),
        };
        let mut config = DirectionConfig {
            queue: Queue::from(limit),
            ..DirectionConfig::default()
        };
        match self.kind {
            Kind::Policer => config.policer = Some(bucket),
            Kind::Shaper => config.line = Line::Shaper(bucket),
            Kind::Queue => config.line = Line::Rate(self.rate),
            Kind::ActiveQueue => {
                config.line = Line::Rate(self.rate);
                config.queue.discipline = self.discipline();
            }
            Kind::Open | Kind::Slow | Kind::Dead => {
                // Faster than anything that is offered.
                config.line = Line::Rate(times(self.rate, 8.0));
                config.queue = QueueLimit::packets(5_000).into();
            }
        }
        if self.loss > 0.0 {
            let loss = Probability::from_fraction(self.loss).expect("below one");
            config.loss = match (self.half, self.seed % 3) {
                (Half::HeldOut, 0) => Loss::GilbertElliott(
                    GilbertElliott::from_rate_and_burst(loss, 2.0).expect("rare"),
                ),
                _ => loss.into(),
            };
        }
        config
    }

    fn discipline(&self) -> Discipline {
        let milliseconds = Duration::from_millis;
        match (self.half, self.seed / 2 % 3) {
            (Half::Tuning, 0 | 1) => Discipline::CoDel(CoDelConfig::default()),
            (Half::Tuning, _) => Discipline::Pie(PieConfig::default()),
            (Half::HeldOut, 0) => Discipline::CoDel(CoDelConfig {
                target: milliseconds(10),
                interval: milliseconds(150),
                ecn: Ecn::Drop,
            }),
            (Half::HeldOut, 1) => Discipline::Pie(PieConfig {
                target: milliseconds(25),
                ..PieConfig::default()
            }),
            (Half::HeldOut, _) => Discipline::Red(RedConfig {
                minimum: ByteCount::new(self.queue / 12),
                maximum: ByteCount::new(self.queue / 4),
                probability: Probability::from_fraction(0.1).expect("below one"),
                weight: 0.002,
                packet_time: self.rate.time_for(ByteCount::new(self.packet)),
                gentle: true,
                ecn: Ecn::Drop,
            }),
        }
    }

    /// The whole way there.
    pub(crate) fn forward(&self, delay_share: f64) -> Way {
        let mut random = self.random.clone();
        let access = DirectionConfig {
            line: Line::Rate(times(self.rate, 6.0 + 20.0 * random.next_f64())),
            queue: QueueLimit::packets(500_000).into(),
            delay: self.rtt.mul_f64(BEFORE * delay_share),
            ..DirectionConfig::default()
        };
        let mut bottleneck = self.bottleneck();
        bottleneck.delay = self.rtt.mul_f64((0.5 - BEFORE) * delay_share);
        let mut hops = vec![access, bottleneck];
        if let Some(further) = self.further {
            hops.push(DirectionConfig {
                line: Line::Rate(times(self.rate, further)),
                queue: QueueLimit::packets(100_000).into(),
                ..DirectionConfig::default()
            });
        }
        let cross = self.cross.then(|| Cross {
            hop: 1,
            rate: times(self.rate, 0.15 + 0.2 * random.next_f64()),
            packet: 1_000,
            on: Duration::from_millis(200 + random.below(600)),
            off: Duration::from_millis(200 + random.below(600)),
            random: random.clone(),
            next: Time::ZERO,
            until: Time::ZERO,
        });
        Way::new(hops, self.seed, cross)
    }

    /// The whole way back.
    pub(crate) fn reverse(&self, delay_share: f64) -> Way {
        let line = DirectionConfig {
            line: Line::Rate(self.reverse_rate()),
            queue: QueueLimit::packets(2_000).into(),
            delay: self.rtt.mul_f64((0.5 - BEFORE) * delay_share),
            ..DirectionConfig::default()
        };
        let rest = DirectionConfig {
            delay: self.rtt.mul_f64(BEFORE * delay_share),
            ..DirectionConfig::default()
        };
        Way::new(vec![line, rest], self.seed ^ 1, None)
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

    /// What two ends measure: a stage below the rate, two above it, and TCP.
    pub(crate) fn measure(&self) -> TwoEnded {
        let mut random = self.random.clone();
        let mut clocks = Clocks {
            ahead: Duration::from_millis(random.below(1 << 30)),
            lateness: Duration::from_micros([0, 3, 10][random.below(3) as usize]),
            random: random.clone(),
        };
        let mut way = self.forward(1.0);
        let refill = Duration::from_secs_f64(
            self.burst as f64 * 8.0 / self.rate.bits_per_second() as f64 + 1.0,
        );
        let plan = |times_rate: f64, count: usize| Plan {
            offered: times(self.rate, times_rate),
            packet: ByteCount::new(self.packet),
            count,
            host: match self.kind {
                Kind::Slow => times(self.rate, 0.5),
                _ => times(self.rate, 100.0),
            },
        };
        let below = match self.effort {
            Effort::Quick => 2_500,
            Effort::Full => 5_000,
        };
        let low = 0.4 + 0.15 * random.next_f64();
        let (quiet, mut now) = stage(&mut way, &mut clocks, Time::ZERO + refill, plan(low, below));
        let mut stages = vec![quiet];
        let first = 1.5 + 0.5 * random.next_f64();
        for times_rate in [first, first * 1.6] {
            let plan = plan(times_rate, self.packets_of(times_rate));
            let (mut overload, end) = stage(&mut way, &mut clocks, now + refill, plan);
            if self.kind == Kind::Dead {
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
                Kind::Dead => Vec::new(),
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
            Effort::Quick => 800.0,
            Effort::Full => f64::max(2_000.0, half_second),
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
        tap: Option<transfer::Tap>,
    ) -> (measure::diagnosis::TcpRun, Vec<transfer::Seen>, u64) {
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
            Effort::Quick if self.kind == Kind::ActiveQueue => 30_000.0,
            Effort::Quick => 6_000.0,
            Effort::Full => 80_000.0,
        };
        let seconds = (most / packets_per_second)
            .clamp(0.0, 10.0)
            .max(30.0 * self.rtt.as_secs_f64());
        let plan = transfer::Plan {
            settings: Settings {
                control: match self.half {
                    Half::Tuning => Control::Cubic,
                    Half::HeldOut => [Control::Cubic, Control::Reno][(self.seed / 2 % 2) as usize],
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
    pub(crate) fn capture(&self) -> (Tap, Taking, u64, Vec<Segment>) {
        let mut random = Random::for_stream(self.seed, 0xca97);
        let tap =
            [Tap::Sender, Tap::Sender, Tap::Receiver, Tap::Behind(0)][random.below(4) as usize];
        let taking = Taking {
            offloaded: random.below(2) == 0,
            begins_late: match random.below(10) {
                0 => 0.1,
                _ => 0.0,
            },
            window: self.window(),
        };
        let (_, seen, dropped) = self.transfer(Some(tap));
        let segments = capture::segments(&seen, self.packet, taking);
        (tap, taking, dropped, segments)
    }

    /// Whether chance or others blur what the bottleneck does.
    pub(crate) fn is_mixed(&self) -> bool {
        self.loss > 0.0 || self.cross
    }

    /// Whether the transfer of a capture ever meets the bottleneck.
    pub(crate) fn is_for_captures(&self) -> bool {
        !(self.window_limited || self.middlebox || self.asymmetric)
            && matches!(
                self.kind,
                Kind::Policer | Kind::Shaper | Kind::Queue | Kind::ActiveQueue
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

fn log_uniform(random: &mut Random, least: f64, most: f64) -> f64 {
    least * (most / least).powf(random.next_f64())
}

/// One of 16 bands between the two, every second one for each half.
fn banded(random: &mut Random, half: Half, least: f64, most: f64) -> f64 {
    let band = 2 * random.below(8) + u64::from(half == Half::HeldOut);
    let place = (band as f64 + random.next_f64()) / 16.0;
    least * (most / least).powf(place)
}
