//! `trunkline emulate run`: the link itself, between two devices of this machine.
//!
//! It prints `ready` on standard output when both devices are up, relays until SIGTERM, SIGINT or
//! SIGHUP, then prints what it counted. Both devices vanish with the process.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use lab::link::{
    Devices, DirectionConfig, DirectionReport, Endpoint, Line, LinkConfig, LinkHandle, LinkReport,
    Loss, Namespace, Offloads, StopSignals,
};
use vocab::{Bitrate, ByteCount, ParseUnitError, Probability, format_duration, parse_duration};

/// What `trunkline emulate run` is told. Everything `--…-back` is the same as forward if absent.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// Name of the device at end A.
    #[arg(long, value_name = "NAME", default_value = "wan-a")]
    device_a: String,
    /// Name of the device at end B.
    #[arg(long, value_name = "NAME", default_value = "wan-b")]
    device_b: String,
    /// Network namespace for device A, by name or path [default: this one].
    #[arg(long, value_name = "NAMESPACE")]
    namespace_a: Option<String>,
    /// Network namespace for device B, by name or path [default: this one].
    #[arg(long, value_name = "NAMESPACE")]
    namespace_b: Option<String>,
    /// Rate from A to B, counted on IP packets, as "10Mbit" [default: no limit].
    #[arg(long)]
    rate: Option<Bitrate>,
    /// Rate from B to A.
    #[arg(long, value_name = "RATE")]
    rate_back: Option<Bitrate>,
    /// One-way delay from A to B, as "15ms".
    #[arg(long, value_parser = duration, default_value = "0")]
    delay: Duration,
    /// One-way delay from B to A.
    #[arg(long, value_name = "DELAY", value_parser = duration)]
    delay_back: Option<Duration>,
    /// Random loss from A to B behind the queue, as "0.1%".
    #[arg(long, default_value = "0%")]
    loss: Probability,
    /// Random loss from B to A.
    #[arg(long, value_name = "LOSS")]
    loss_back: Option<Probability>,
    /// Queue from A to B, as "125kB", drop-tail [default: rate times round trip, at least 15 kB].
    #[arg(long)]
    queue: Option<ByteCount>,
    /// Queue from B to A [default: as --queue, or rate times round trip].
    #[arg(long, value_name = "QUEUE")]
    queue_back: Option<ByteCount>,
    /// Bytes added to each packet's IP length, both ways: 14 to state the rate as Ethernet's.
    #[arg(long, value_name = "BYTES", default_value = "0")]
    overhead: ByteCount,
    /// Seed of all chance; the same seed loses the same packets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints what was counted as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Run {
    pub(super) fn run(self) -> Result<()> {
        // Before any thread starts, so that all of them leave the signals to this one.
        let signals = StopSignals::block()?;
        let config = self.config()?;
        let a = endpoint(self.device_a, self.namespace_a);
        let b = endpoint(self.device_b, self.namespace_b);
        let link = LinkHandle::start(
            &Devices::Tun {
                a: a.clone(),
                b: b.clone(),
                offloads: Offloads::default(),
            },
            config.clone(),
        )?;
        let names = (a.device.as_str(), b.device.as_str());
        eprintln!("{}", describe(names, &config.forward));
        eprintln!("{}", describe((names.1, names.0), &config.back));
        let mut out = io::stdout();
        writeln!(out, "ready")?;
        out.flush()?;

        while link.is_running() && !signals.wait(LOOK_AGAIN_AFTER) {}
        let report = link.stop()?;
        if self.json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            print_report(&mut out, names, &report)?;
        }
        warn_of_losses(&report);
        Ok(())
    }

    fn config(&self) -> Result<LinkConfig> {
        let delay_back = self.delay_back.unwrap_or(self.delay);
        let round_trip = self.delay + delay_back;
        let direction = |rate: Option<Bitrate>, delay, loss, queue: Option<ByteCount>| {
            let mut direction = DirectionConfig {
                line: rate.map_or(Line::Unlimited, Line::Rate),
                delay,
                loss: Probability::into(loss),
                overhead: self.overhead,
                ..DirectionConfig::default()
            };
            direction.queue = queue
                .unwrap_or(direction.bandwidth_delay_product(round_trip).max(QUEUE_MIN))
                .into();
            direction
        };
        let config = LinkConfig {
            forward: direction(self.rate, self.delay, self.loss, self.queue),
            back: direction(
                self.rate_back.or(self.rate),
                delay_back,
                self.loss_back.unwrap_or(self.loss),
                self.queue_back.or(self.queue),
            ),
            seed: self.seed,
        };
        for queue in [&config.forward, &config.back] {
            let queue = queue.queue.limit.bytes.unwrap_or_default();
            let least = FULL_PACKET.bytes() + self.overhead.bytes();
            if queue.bytes() < least {
                bail!(
                    "a queue of {queue} lets no full-size packet pass, because the packet on the line counts too; make it {least}B or more"
                );
            }
        }
        for line in [&config.forward.line, &config.back.line] {
            if *line == Line::Rate(Bitrate::default()) {
                bail!("a rate of zero lets nothing pass; leave --rate out for no limit");
            }
        }
        Ok(config)
    }
}

/// How soon a link whose device was deleted is noticed. Signals are noticed at once.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The devices' MTU.
const FULL_PACKET: ByteCount = ByteCount::new(1_500);

/// Ten full-size packets: an initial window of TCP (RFC 6928) passes even a link without delay.
const QUEUE_MIN: ByteCount = ByteCount::new(15_000);

fn endpoint(device: String, namespace: Option<String>) -> Endpoint {
    Endpoint {
        device,
        namespace: namespace.map(Namespace::new),
    }
}

fn duration(text: &str) -> Result<Duration, ParseUnitError> {
    parse_duration(text)
}

fn describe((from, to): (&str, &str), direction: &DirectionConfig) -> String {
    let rate = direction
        .line
        .rate()
        .map_or("no rate limit".to_owned(), |rate| rate.to_string());
    format!(
        "{from} to {to}: {rate}, delay {}, loss {}, queue {}, overhead {}",
        format_duration(direction.delay),
        describe_loss(&direction.loss),
        direction.queue.limit.bytes.unwrap_or_default(),
        direction.overhead
    )
}

fn describe_loss(loss: &Loss) -> String {
    match loss {
        Loss::Random(probability) => probability.to_string(),
        other => format!("{other:?}"),
    }
}

fn print_report(out: &mut impl Write, (a, b): (&str, &str), report: &LinkReport) -> Result<()> {
    let forward = format!("{a} to {b}");
    let back = format!("{b} to {a}");
    writeln!(out, "{:<34}{forward:>24}{back:>24}", "")?;
    for (label, value) in ROWS {
        writeln!(
            out,
            "{label:<34}{:>24}{:>24}",
            value(&report.forward),
            value(&report.back)
        )?;
    }
    Ok(())
}

type Row = (&'static str, fn(&DirectionReport) -> u64);

const ROWS: [Row; 15] = [
    ("offered, packets", |way| way.offered_packets),
    ("offered, bytes", |way| way.offered_bytes),
    ("delivered, packets", |way| way.delivered_packets),
    ("delivered, bytes", |way| way.delivered_bytes),
    ("dropped by the queue, packets", |way| {
        way.dropped_by_queue_packets
    }),
    ("dropped by the queue, bytes", |way| {
        way.dropped_by_queue_bytes
    }),
    ("lost by chance, packets", |way| way.dropped_by_loss_packets),
    ("lost by chance, bytes", |way| way.dropped_by_loss_bytes),
    ("still held, packets", |way| way.held_packets),
    ("still held, bytes", |way| way.held_bytes),
    ("lost by this host, packets", |way| {
        way.lost_outside_the_model()
    }),
    ("over 1 ms late, packets", |way| way.late_packets),
    ("lateness, median, us", |way| way.lateness_p50_us),
    ("lateness, 99 of 100, us", |way| way.lateness_p99_us),
    ("lateness, largest, us", |way| way.lateness_max_us),
];

/// Says on standard error what makes a measurement over this run doubtful.
fn warn_of_losses(report: &LinkReport) {
    let lost = report.lost_outside_the_model();
    let offered = report.forward.offered_packets + report.back.offered_packets;
    if lost > 0 {
        eprintln!(
            "warning: this host lost {lost} packets beside {offered} that met the emulation; it was too slow or a device was down, and figures measured over this run are not the link's"
        );
    }
}
