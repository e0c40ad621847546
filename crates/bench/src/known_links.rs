//! Benchmark of the turn-up tester on links with known figures: `trunkline bench turn-up`.
//!
//! ```text
//!  rates        sending ─veth─ middle (tbf) ─veth─ receiving      measure run, measure server
//!  the others   sending ═TUN═╡ emulator     ╞═TUN═ receiving
//! ```
//! Rates stand behind the kernel's tbf, which nobody here wrote: of its rate IP packets of 1,500 bytes get
//! 1500/1514, for it counts an Ethernet header with each. Round trips, windows and buffers stand behind the
//! emulator, for few kernels have netem; its own figures are certified by `trunkline emulate calibrate`. The
//! two case studies are the published ones of RFC 6349 testers: 100 Mbit/s of Ethernet and 20 ms with windows
//! of 32 to 256 kB, and 300 Mbit/s and 50 ms with 30 connections through a buffer of some packets.
//!
//! It judges nothing: configured and measured values stand side by side.

use std::fs;
use std::slice;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use measure::metrics;
use measure::procedure::UDP_HEADERS_IPV4;
use measure::wire::DATAGRAM_HEADER;
use serde::Serialize;
use serde_json::Value;
use vocab::{Bitrate, ByteCount};

use crate::peers::{HostLosses, LimiterOwner, MeasuringNamespaces};
use host::process::RunningProcess;
use host::stamped_sockets::{bound_to, processors};
use host::{ProgramEnvironment, command};
use lab::topology::HOST_CONGESTION_CONTROL;

/// Time limit for a program to start.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Bytes that tbf counts for an IP packet of 1,500 bytes.
const TBF_BYTES: u64 = 1_514;
const PACKET_BYTES: u64 = 1_500;
/// Size of tbf's bucket: the bytes of its rate while a timer is late, and three frames. Tokens that
/// do not fit are lost for good: with room for one frame 10 Mbit/s came out 0.7 % low on a host
/// that had just been busy.
const TBF_LATENESS: Duration = Duration::from_millis(4);
const TBF_BURST_MIN: u64 = 3 * TBF_BYTES;
/// tbf's queue.
const TBF_QUEUE: Duration = Duration::from_millis(20);
const TBF_QUEUE_MIN: u64 = 30_000;

/// Published windows of the first case study, with the throughput of RFC 6349 §3.3.1's formula, in
/// Mbit/s. The last is the payload rate of 100 Mbit/s Ethernet (§4.1.1); the published 100 exceed
/// it.
pub const CASE_WINDOWS: [(u64, f64); 4] = [
    (32_000, 12.8),
    (64_000, 25.6),
    (128_000, 51.2),
    (256_000, 94.9),
];
/// The second case study: the line, its round trip, connections and the window of each.
const CASE_RATE: u64 = 300_000_000;
const CASE_DELAY: &str = "25ms";
const CASE_RTT: Duration = Duration::from_millis(50);
const CASE_CONNECTIONS: u32 = 30;
const CASE_WINDOW: &str = "64kB";

/// Number of attempts for a run over a buffer that the host spoilt.
const BUFFER_ATTEMPTS: u32 = 3;
/// Streams that are shorter only look for the rate.
const STREAM_LEAST_S: f64 = 1.0;

/// A configured rate, and the rate that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateFound {
    /// tbf's own rate.
    pub set_bit_s: u64,
    /// Expected rate of IP packets of 1,500 bytes, out of that.
    pub expected_bit_s: f64,
    /// Rate that the tester found.
    pub found_bit_s: Option<f64>,
    /// Error in percent of the expected value.
    pub error_percent: Option<f64>,
    /// True if two seconds agreed to 0.1 %.
    pub is_steady: Option<bool>,
    /// Limit that the tester named: `path`, `max-rate` or `sender`.
    pub limited_by: Option<String>,
}

/// A round trip that was set, and the baseline RTT that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundTripFound {
    /// The line's rate, both ways.
    pub rate_bit_s: u64,
    /// The emulator's delay, each way.
    pub delay_ms: f64,
    /// Both delays, and the time that a probe takes on both lines.
    pub expected_ms: f64,
    /// Round trip that the tester found.
    pub found_ms: Option<f64>,
}

/// A window of the first case study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowFound {
    /// Requested window.
    pub window_bytes: u64,
    /// Window as the sender's kernel saw it.
    pub effective_window_bytes: Option<u64>,
    /// RFC 6349's formula.
    pub formula_mbit_s: f64,
    /// Throughput that the tester found.
    pub found_mbit_s: Option<f64>,
}

/// The first case study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowsFound {
    /// Each window.
    pub windows: Vec<WindowFound>,
    /// Causes that were named.
    pub causes: Vec<String>,
}

/// A buffer of the second case study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BufferFound {
    /// Configured queue, the packet on the line included.
    pub queue_bytes: u64,
    /// Size of the queue that the tester found.
    pub found_queue_bytes: Option<f64>,
    /// Payload of all connections.
    pub found_mbit_s: Option<f64>,
    /// Payload that the line carries, with timestamps in each segment.
    pub carried_mbit_s: f64,
    /// The streams that were read: above the line's rate, and below it.
    pub streams: Vec<StreamFound>,
    /// Causes that were named.
    pub causes: Vec<String>,
    /// Host losses of each earlier attempt that was discarded because of them.
    pub spoilt: Vec<HostLosses>,
    /// Remarks of the tester.
    pub remarks: Vec<String>,
}

/// Arrivals of a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamFound {
    /// Requested rate of IP packets.
    pub offered_mbit_s: f64,
    /// Rate of IP packets over the whole stream.
    pub arrived_mbit_s: f64,
    /// Packets that did not arrive.
    pub lost_packets: u64,
}

/// Measures a rate behind tbf for the given time.
///
/// # Errors
/// Fails when the link cannot be built, or the tester fails.
pub fn rate(
    environment: &ProgramEnvironment,
    rate: Bitrate,
    duration: Duration,
) -> Result<RateFound> {
    let bits = rate.bits_per_second();
    let bytes_in = |span: Duration| (bits as f64 / 8.0 * span.as_secs_f64()) as u64;
    let burst = bytes_in(TBF_LATENESS).max(TBF_BURST_MIN);
    let limit = bytes_in(TBF_QUEUE).max(TBF_QUEUE_MIN);
    let room = MeasuringNamespaces::create(environment, LimiterOwner::Kernel)?;
    room.replace_discipline(&format!("tbf rate {bits}bit burst {burst} limit {limit}"))?;
    let most = format!("--max-rate={}bit", bits.saturating_mul(2));
    let found = run(&room, duration, &["--walk=0", "--connections=1", &most])?;
    let up = &found["directions"]["up"];
    let expected_bit_s = bits as f64 * PACKET_BYTES as f64 / TBF_BYTES as f64;
    let found_bit_s = up["bottleneck_bit_s"].as_f64();
    Ok(RateFound {
        set_bit_s: bits,
        expected_bit_s,
        found_bit_s,
        error_percent: found_bit_s.map(|found| (found / expected_bit_s - 1.0) * 100.0),
        is_steady: up["bottleneck_is_steady"].as_bool(),
        limited_by: up["bottleneck_limited_by"].as_str().map(str::to_owned),
    })
}

/// Measures the baseline RTT of a line with this delay each way.
///
/// # Errors
/// As [`rate`].
pub fn round_trip(
    environment: &ProgramEnvironment,
    rate: Bitrate,
    delay: Duration,
) -> Result<RoundTripFound> {
    let mut room = MeasuringNamespaces::create(environment, LimiterOwner::Trunkline)?;
    let bits = rate.bits_per_second();
    let delay_ms = delay.as_secs_f64() * 1e3;
    let link: [&str; 3] = [
        &format!("--rate={bits}bit"),
        &format!("--delay={delay_ms}ms"),
        "--queue=100ms",
    ];
    // Nothing but the round trip is of interest.
    let brief = ["--walk=0", "--connections=1", "--max-rate=256kbit"];
    let found = run_emulated(
        &mut room,
        |room| room.emulate(&link),
        Duration::from_secs(2),
        &brief,
    )?;
    let probe = ByteCount::new(DATAGRAM_HEADER as u64 + u64::from(UDP_HEADERS_IPV4));
    let on_lines = rate.time_for(probe) * 2;
    Ok(RoundTripFound {
        rate_bit_s: bits,
        delay_ms,
        expected_ms: (delay * 2 + on_lines).as_secs_f64() * 1e3,
        found_ms: found["baseline_rtt_ms"].as_f64(),
    })
}

/// Measures the first case study.
///
/// # Errors
/// As [`rate`].
pub fn windows(environment: &ProgramEnvironment, duration: Duration) -> Result<WindowsFound> {
    let mut room = MeasuringNamespaces::create(environment, LimiterOwner::Trunkline)?;
    let link = [
        "--rate=100Mbit",
        "--overhead=38",
        "--delay=10ms",
        "--queue=400kB",
    ];
    let found = run_emulated(
        &mut room,
        |room| room.emulate(&link),
        duration,
        &[
            "--walk=0",
            "--window=32kB,64kB,128kB,256kB",
            "--connections=1",
            "--max-rate=200Mbit",
        ],
    )?;
    let runs = found["directions"]["up"]["runs"].as_array();
    let of = |window: u64| {
        let mut runs = runs.into_iter().flatten();
        runs.find(|run| run["window_bytes"].as_u64() == Some(window))
    };
    let windows = CASE_WINDOWS.map(|(window_bytes, formula_mbit_s)| {
        let run = of(window_bytes);
        WindowFound {
            window_bytes,
            effective_window_bytes: run.and_then(|run| run["effective_window_bytes"].as_u64()),
            formula_mbit_s,
            found_mbit_s: run
                .and_then(|run| run["throughput_bit_s"].as_f64())
                .map(|bits| bits / 1e6),
        }
    });
    Ok(WindowsFound {
        windows: windows.to_vec(),
        causes: causes(&found),
    })
}

/// One BDP of the second case study.
#[must_use]
pub fn case_bdp() -> ByteCount {
    metrics::minimum_window(Bitrate::from_bits_per_second(CASE_RATE), CASE_RTT)
}

/// Measures the second case study with a buffer of so many bytes. Packets that the host lost
/// outside the model would count as the link's losses, so a run with such losses is repeated.
///
/// # Errors
/// Fails as [`rate`] does, and when the host lost packets in each attempt.
pub fn buffer(
    environment: &ProgramEnvironment,
    queue: ByteCount,
    duration: Duration,
) -> Result<BufferFound> {
    let mut spoilt = Vec::new();
    for _ in 0..BUFFER_ATTEMPTS {
        let (found, lost) = try_buffer(environment, queue, duration)?;
        if lost.packets() == 0 {
            return Ok(BufferFound { spoilt, ..found });
        }
        spoilt.push(lost);
    }
    let packets: Vec<String> = spoilt
        .iter()
        .map(|lost| lost.packets().to_string())
        .collect();
    bail!(
        "each of {BUFFER_ATTEMPTS} runs lost packets of this host's own ({}), which are not the link's: it is too busy; run this again with nothing else to do",
        packets.join(", ")
    )
}

fn try_buffer(
    environment: &ProgramEnvironment,
    queue: ByteCount,
    duration: Duration,
) -> Result<(BufferFound, HostLosses)> {
    let mut room = MeasuringNamespaces::create(environment, LimiterOwner::Trunkline)?;
    let queue_bytes = queue.bytes();
    let link: [&str; 3] = [
        &format!("--rate={CASE_RATE}bit"),
        &format!("--delay={CASE_DELAY}"),
        &format!("--queue={queue_bytes}B"),
    ];
    let found = run_emulated(
        &mut room,
        |room| room.bridge(&link),
        duration,
        &[
            "--walk=0",
            &format!("--connections={CASE_CONNECTIONS}"),
            &format!("--connection-window={CASE_WINDOW}"),
            "--max-rate=450Mbit",
        ],
    )?;
    let up = &found["directions"]["up"];
    let findings = found["diagnosis"].as_array();
    let found_queue_bytes = findings
        .into_iter()
        .flatten()
        .find_map(|finding| finding["parameters"]["queue_bytes"].as_f64());
    /// TCP's payload as a share of an IP packet of 1,500 bytes, with 40 bytes of headers and 12 of
    /// timestamps.
    const PAYLOAD: f64 = 1_448.0 / 1_500.0;
    let found = BufferFound {
        queue_bytes,
        found_queue_bytes,
        found_mbit_s: up["runs"][0]["throughput_bit_s"]
            .as_f64()
            .map(|bits| bits / 1e6),
        carried_mbit_s: CASE_RATE as f64 * PAYLOAD / 1e6,
        streams: streams(up),
        causes: causes(&found),
        spoilt: Vec::new(),
        remarks: words(&found["remarks"]),
    };
    Ok((found, room.lost_outside()?))
}

/// The streams that are long enough for a rate.
fn streams(direction: &Value) -> Vec<StreamFound> {
    let streams = direction["streams"].as_array().into_iter().flatten();
    let of = |stream: &Value| {
        let seconds = stream["duration_s"].as_f64()?;
        let sent = stream["sent_packets"].as_u64()?;
        let arrived = stream["arrived_packets"].as_u64()?;
        let bits = 8.0 * stream["packet_bytes"].as_f64()?;
        (seconds >= STREAM_LEAST_S).then(|| StreamFound {
            offered_mbit_s: stream["offered_bit_s"].as_f64().unwrap_or_default() / 1e6,
            arrived_mbit_s: arrived as f64 * bits / seconds / 1e6,
            lost_packets: sent.saturating_sub(arrived),
        })
    };
    streams.filter_map(of).collect()
}

fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words
        .filter_map(|word| word.as_str().map(str::to_owned))
        .collect()
}

fn causes(found: &Value) -> Vec<String> {
    let findings = found["diagnosis"].as_array().into_iter().flatten();
    findings
        .filter_map(|finding| finding["cause"].as_str())
        .map(str::to_owned)
        .collect()
}

/// Starts the emulator on a processor of its own and tests across it, up, on the others. The
/// emulator has priority on its processor and hardly ever sleeps: an end on the same processor
/// would lose arrivals meanwhile, half a second of 300 Mbit/s where there are two processors.
fn run_emulated(
    room: &mut MeasuringNamespaces,
    emulate: impl FnOnce(&mut MeasuringNamespaces) -> Result<()>,
    duration: Duration,
    more: &[&str],
) -> Result<Value> {
    let all = processors().context("asking for this process's processors")?;
    let (emulators, ends) = match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => (slice::from_ref(last), rest),
        _ => (&all[..], &all[..]),
    };
    bound_to(emulators, || emulate(room)).context("binding the emulator to a processor")??;
    bound_to(ends, || run(room, duration, more)).context("keeping the ends off the emulator's")?
}

/// Starts a server at the receiving end and tests against it, up.
fn run(room: &MeasuringNamespaces, duration: Duration, more: &[&str]) -> Result<Value> {
    let key = room.directory().join("key");
    fs::write(&key, "a bench on known links\n").context("writing the key")?;
    let key = format!("--key-file={}", key.display());
    let mut server = room.start_receiving("measure-server", &["measure", "server", &key])?;
    wait_ready(&mut server)?;
    let mut client = room.sending_program()?;
    client
        .args(["measure", "run", "--json", "--direction=up", &key])
        .arg(format!("--duration={}ms", duration.as_millis()))
        .arg(format!("--congestion={HOST_CONGESTION_CONTROL}"))
        .args(more)
        .arg(room.receiving_address().to_string());
    let text = command::finish("trunkline measure run", &mut client, None)?;
    serde_json::from_str(&text).context("what the tester printed")
}

fn wait_ready(server: &mut RunningProcess) -> Result<()> {
    let log = server.log().to_owned();
    server.wait_ready(START_LIMIT, "to print \"ready\"", || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        Ok(text.lines().any(|line| line.trim_end() == "ready"))
    })
}
