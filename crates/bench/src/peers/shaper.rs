//! A backlog through tbf and through `--shaper`: the burst, the rate, and each departure.
//!
//! tbf counts a packet with its Ethernet header, so the emulator is given `--overhead 14`. More
//! packets are sent at once than the bucket holds, and then twice the rate, so that from the first
//! packet on the bucket is never full again: packet `k` leaves when the bucket has gained the
//! tokens of packets 0 to `k`. A run in which the sender itself was so slow that the bucket may
//! have been full is repeated; a loss from noticing packets late is the side's own, and shows in
//! its burst. A side's departures are compared with those times, with the earliest of them taken as
//! punctual, which removes the transit time.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};

use super::room::{LimiterOwner, MeasuringNamespaces};
use super::traffic::{self, PacketLoad};
use super::{ComparisonRow, RawSamples};
use host::ProgramEnvironment;

const PEER: &str = "tbf";

const IP_LENGTH: u64 = 1_500;

/// With the Ethernet header that tbf sees.
const COUNTED: u64 = IP_LENGTH + 14;

/// Ratio of the initial burst to the bucket's depth, and of the load after it to the rate.
const AT_ONCE: u64 = 3;
const OVERLOAD: u64 = 2;

/// Time for which the line is busy.
const BUSY_S: u64 = 6;

/// Number of attempts for a run that lost a packet, or whose sender was held up.
const ATTEMPTS: u32 = 8;

/// Silence after which no packet is in flight any more.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) const SETTINGS: [ShaperSettings; 3] = [
    ShaperSettings {
        mbit_s: 1,
        burst: 5,
    },
    ShaperSettings {
        mbit_s: 10,
        burst: 10,
    },
    ShaperSettings {
        mbit_s: 50,
        burst: 100,
    },
];

/// Settings of a shaper; the burst in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShaperSettings {
    mbit_s: u64,
    burst: u64,
}

impl fmt::Display for ShaperSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} Mbit/s, burst {} B, packets of {IP_LENGTH} B",
            self.mbit_s,
            self.burst * COUNTED
        )
    }
}

impl ShaperSettings {
    fn bits_per_second(self) -> u64 {
        self.mbit_s * 1_000_000
    }

    fn packet_time_ns(self) -> f64 {
        (COUNTED * 8) as f64 * 1e9 / self.bits_per_second() as f64
    }

    fn packets(self) -> u64 {
        self.burst + self.bits_per_second() * BUSY_S / (COUNTED * 8)
    }

    /// Room for all of it.
    fn queue_bytes(self) -> u64 {
        self.packets() * COUNTED
    }

    fn discipline(self) -> String {
        format!(
            "tbf rate {}bit burst {} limit {}",
            self.bits_per_second(),
            self.burst * COUNTED,
            self.queue_bytes()
        )
    }

    fn words(self) -> [String; 6] {
        let shaper = format!(
            "rate={}bit,burst={}B",
            self.bits_per_second(),
            self.burst * COUNTED
        );
        let queue = format!("{}B", self.queue_bytes());
        let overhead = (COUNTED - IP_LENGTH).to_string();
        let [flag_s, flag_o, flag_q] = ["--shaper", "--overhead", "--queue"].map(str::to_owned);
        [flag_s, shaper, flag_o, overhead, flag_q, queue]
    }

    fn load(self) -> PacketLoad {
        let burst = self.burst * AT_ONCE;
        PacketLoad {
            ip_length: IP_LENGTH as usize,
            burst,
            paced: self.packets() - burst,
            per_second: OVERLOAD as f64 * 1e9 / self.packet_time_ns(),
            patience: PATIENCE,
        }
    }
}

/// Statistics of the timestamps of all packets, in the order of their numbers.
#[derive(Clone, Debug, PartialEq)]
struct DepartureStatistics {
    /// Greatest lead over the rate, counted from the first packet: the depth of the bucket, in
    /// packets, less the first one's lateness. Pauses within the burst, and tokens gained
    /// meanwhile, do not matter.
    burst: f64,
    /// Counted bits a second between the first packet after those sent at once and the last.
    rate: f64,
    /// Lateness of each packet after the initial burst, in microseconds.
    late_us: Vec<f64>,
}

impl DepartureStatistics {
    /// Computes the statistics; `None` for too few packets to have a rate.
    fn of(stamps_ns: &[u64], shaping: ShaperSettings) -> Option<Self> {
        let packet_time = shaping.packet_time_ns();
        let start = *stamps_ns.first()?;
        let ahead = (1_u32..)
            .zip(stamps_ns)
            .map(|(count, stamp)| f64::from(count) - (*stamp as f64 - start as f64) / packet_time);
        let burst = ahead.fold(0.0, f64::max);
        let shaped = stamps_ns.get((shaping.burst * AT_ONCE) as usize..)?;
        let (first, last) = (shaped.first()?, shaped.last()?);
        let bits = (shaped.len() - 1) as f64 * (COUNTED * 8) as f64;
        let behind: Vec<f64> = shaped
            .iter()
            .enumerate()
            .map(|(place, stamp)| (*stamp as f64 - *first as f64) - place as f64 * packet_time)
            .collect();
        let earliest = behind.iter().copied().fold(f64::INFINITY, f64::min);
        (last > first).then(|| Self {
            burst,
            rate: bits * 1e9 / (last - first) as f64,
            late_us: behind.iter().map(|one| (one - earliest) / 1e3).collect(),
        })
    }

    fn late(&self, share: f64) -> f64 {
        quantile(self.late_us.clone(), share)
    }
}

/// Value that `share` of the samples do not exceed; zero without samples.
fn quantile(mut samples: Vec<f64>, share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let rank = (samples.len() as f64 * share).ceil() as usize;
    let place = rank.saturating_sub(1);
    samples.get(place).copied().unwrap_or_default()
}

pub(super) fn compare(
    environment: &ProgramEnvironment,
    shaping: &ShaperSettings,
    raw: &RawSamples,
) -> Result<[ComparisonRow; 4]> {
    let kernel = measure(environment, LimiterOwner::Kernel, *shaping, raw)?;
    let trunkline = measure(environment, LimiterOwner::Trunkline, *shaping, raw)?;
    let setting = shaping.to_string();
    let packets = kernel.late_us.len();
    let row = |quantity, unit| ComparisonRow::new(PEER, quantity, &setting, unit);
    let apart: Vec<f64> = kernel
        .late_us
        .iter()
        .zip(&trunkline.late_us)
        .map(|(kernel, trunkline)| (trunkline - kernel).abs())
        .collect();
    let late = |quantity, share| {
        let mut row = row(quantity, "us after the model's instant").figures(
            kernel.late(share),
            trunkline.late(share),
            packets,
        );
        row.difference = quantile(apart.clone(), share);
        row
    };
    Ok([
        row("burst", "packets")
            .figures(kernel.burst, trunkline.burst, packets)
            .against(shaping.burst as f64),
        row("rate", "bit/s")
            .figures(kernel.rate, trunkline.rate, packets)
            .against(shaping.bits_per_second() as f64),
        late("departures_p50", 0.5),
        late("departures_p99", 0.99),
    ])
}

fn measure(
    environment: &ProgramEnvironment,
    side: LimiterOwner,
    shaping: ShaperSettings,
    raw: &RawSamples,
) -> Result<DepartureStatistics> {
    for _ in 0..ATTEMPTS {
        let Some(stamps_ns) = send_through(environment, side, shaping)? else {
            continue;
        };
        let rows: Vec<String> = stamps_ns
            .iter()
            .enumerate()
            .map(|(number, stamp)| format!("{number},{stamp}"))
            .collect();
        let name = format!("tbf-{}-{}", shaping.mbit_s, shaping.burst);
        raw.keep(&name, side, "number,received_ns", &rows)?;
        if let Some(departures) = DepartureStatistics::of(&stamps_ns, shaping) {
            return Ok(departures);
        }
    }
    bail!(
        "no {} shaper of {shaping} got its packets in time and passed each in {ATTEMPTS} attempts; this host is too busy",
        side.name()
    )
}

/// Kernel stamp of each packet by number; `None` when not all arrived, in order, or when the sender
/// was slower than the shaper.
fn send_through(
    environment: &ProgramEnvironment,
    side: LimiterOwner,
    shaping: ShaperSettings,
) -> Result<Option<Vec<u64>>> {
    let mut room = MeasuringNamespaces::create(environment, side)?;
    match side {
        LimiterOwner::Kernel => room.replace_discipline(&shaping.discipline())?,
        LimiterOwner::Trunkline => room.emulate(&shaping.words().each_ref().map(String::as_str))?,
    }
    let (sender, receiver) = room.sockets()?;
    let capture = room.capture()?;
    let outcome = traffic::run(&sender, &receiver, &shaping.load())?;
    room.check()?;
    let stamped = capture.finish(outcome.arrived.len(), IP_LENGTH as usize)?;
    let is_whole = (0..shaping.packets()).eq(stamped.iter().map(|one| one.number));
    let is_fed = outcome.slowest_pace.as_nanos() as f64 <= shaping.packet_time_ns();
    Ok((is_whole && is_fed).then(|| stamped.iter().map(|one| one.stamp_ns).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPING: ShaperSettings = ShaperSettings {
        mbit_s: 1,
        burst: 5,
    };

    /// Five 12.112 µs apart, ten that came to the queue 90 µs late, then one each 12.112 ms with
    /// these delays in µs.
    fn stamps(late_us: [u64; 6]) -> Vec<u64> {
        let bucket = (0..5).map(|place| 1_000_000_000 + place * 12_112);
        let shaped = (1..).zip([90; 10].into_iter().chain(late_us));
        bucket
            .chain(shaped.map(|(place, late)| 1_000_000_000 + place * 12_112_000 + late * 1_000))
            .collect()
    }

    #[test]
    fn departures_are_compared_with_the_earliest_bucket() {
        let departures =
            DepartureStatistics::of(&stamps([50, 70, 30, 40, 130, 50]), SHAPING).unwrap();
        // The third after the bucket's depth was the earliest, 30 µs after its instant.
        assert!((departures.burst - (5.0 - 30.0 / 12_112.0)).abs() < 1e-9);
        assert_eq!(departures.late_us, [20.0, 40.0, 0.0, 10.0, 100.0, 20.0]);
        assert!((departures.rate - 1e6).abs() < 1e-3, "{}", departures.rate);
        assert_eq!(departures.late(0.5), 20.0);
        assert_eq!(departures.late(0.99), 100.0);
    }

    #[test]
    fn too_few_packets_have_no_rate() {
        assert_eq!(
            DepartureStatistics::of(&stamps([0; 6])[..16], SHAPING),
            None
        );
        assert_eq!(DepartureStatistics::of(&[], SHAPING), None);
        assert_eq!(quantile(Vec::new(), 0.5), 0.0);
    }

    #[test]
    fn both_sides_are_set_to_the_same_bucket() {
        assert_eq!(
            SHAPING.discipline(),
            "tbf rate 1000000bit burst 7570 limit 757000"
        );
        assert_eq!(
            SHAPING.words().join(" "),
            "--shaper rate=1000000bit,burst=7570B --overhead 14 --queue 757000B"
        );
        assert_eq!(SHAPING.packets(), 500);
        let load = SHAPING.load();
        assert_eq!((load.burst, load.burst + load.paced), (15, 500));
    }
}
