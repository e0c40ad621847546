//! `trunkline measure`: turn-up tests of circuits by RFC 6349, between two hosts that run it.
//!
//! Exit codes of `run`: 0 every stated threshold was met (or none was stated), 1 one was missed, 2
//! it could not be measured. The other results are reported all the same.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::measure::metrics::WALK_PERCENT;
use ::measure::turn_up::{TestProfile, TestThresholds, TurnUpVerdict};
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use host::kernel;
use tester::{self, PORT, RunOptions, ServerEvent, ServerOptions, TestServer, default_limits};
use vocab::{Bitrate, ByteCount, parse_duration};

use crate::measure_arguments::{DirectionOption, dscp, far_end, percent, percent_of_whole};
use crate::measure_diagnose::DiagnoseArguments;
use crate::measure_key::{key, needed_key};
use crate::measure_steps::{ServiceTest, ThroughputTest};
use crate::output::StandardOutput;
use crate::page_file::PageFile;
use crate::progress::progress;

/// Length below which a key gives a warning, because it can be guessed.
const KEY_LENGTH: usize = 16;

/// Default port of iperf3 servers.
const IPERF3_PORT: u16 = 5201;

/// Greatest rest; no relevant bucket takes longer to fill up again.
const REST_MAX: Duration = Duration::from_secs(60);

/// Measures a circuit by RFC 6349, between its two ends.
#[derive(Debug, Args)]
pub(crate) struct MeasureArguments {
    #[command(subcommand)]
    action: MeasureAction,
}

#[derive(Debug, Subcommand)]
enum MeasureAction {
    /// Runs the far end of a test.
    ///
    /// The server listens on one port number, for TCP and UDP. It serves one client at a time, and
    /// this client must know the key. It sends nothing to other hosts, and stops sending 5 s after
    /// the client's last message.
    Server(ServeArguments),
    /// Tests the circuit to a server: measures path MTU, baseline RTT, bottleneck rate, and TCP
    /// with several windows.
    ///
    /// The exit code is 0 if all given thresholds were met, 1 if a threshold was missed, and 2 if
    /// the test could not measure.
    Run(Box<MeasureRunArguments>),
    // Their own texts say more.
    Service(Box<ServiceTest>),
    Throughput(Box<ThroughputTest>),
    // Its own text says more.
    Diagnose(DiagnoseArguments),
}

impl MeasureArguments {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// Fails when the action fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            MeasureAction::Server(serve) => serve.run(),
            MeasureAction::Run(run) => run.run(),
            MeasureAction::Service(test) => test.run(),
            MeasureAction::Throughput(test) => test.run(),
            MeasureAction::Diagnose(diagnose) => diagnose.run(),
        }
    }
}

/// Arguments of `trunkline measure server`.
#[derive(Debug, Args)]
struct ServeArguments {
    /// Accepts tests only at this local address [default: all addresses].
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Sets the port at which the server accepts tests, for TCP and UDP.
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Reads the key from this file, or from standard input if the name is `-`. The key is any text
    /// that both ends of the test know [default: the environment variable TRUNKLINE_MEASURE_KEY, or
    /// a new key, which is printed].
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Limits the rate of each UDP stream of a test.
    #[arg(long, value_name = "RATE", default_value = "1Gbit")]
    max_rate: Bitrate,
    /// Limits the duration of each UDP stream and of each TCP test run.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    max_duration: Duration,
    /// Limits the duration of a whole test.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30min")]
    max_test: Duration,
}

impl ServeArguments {
    fn run(self) -> Result<()> {
        let given = key(self.key_file.as_deref())?;
        // Only now: who types the key, or waits for it at a pipe, must be able to stop.
        kernel::catch_interruptions();
        let words = match given {
            Some(words) => words,
            None => {
                let words = fresh_key()?;
                say!("key: {words}");
                words
            }
        };
        warn_of_short(&words);
        let mut limits = default_limits();
        limits.rate = self.max_rate;
        limits.order = self.max_duration;
        limits.session = self.max_test;
        let server = TestServer::bind(&ServerOptions {
            bind: self.bind,
            port: self.port,
            words,
            limits,
        })?;
        say!(
            "listening at port {} (TCP and UDP); the limits are {} for a stream and {} s for a test run",
            server.port()?,
            limits.rate,
            limits.order.as_secs()
        );
        say!("ready");
        server.serve(&kernel::interrupted, &|event| match event {
            ServerEvent::Began(from) => say!("{from}: a test begins"),
            ServerEvent::Ended(from, how) => say!("{from}: the test is over: {how}"),
            ServerEvent::Refused(from, why) => say!("{from}: refused: {why}"),
        })
    }
}

/// Arguments of `trunkline measure run`.
#[derive(Debug, Args)]
struct MeasureRunArguments {
    /// Names the server: its name or address, or HOST:PORT, or [ADDRESS]:PORT.
    host: String,
    /// Sets the server's port for TCP and UDP [default: 6349].
    #[arg(long)]
    port: Option<u16>,
    /// Tests against an ordinary iperf3 server (`iperf3 -s`) at this TCP and UDP port. Use this
    /// option if you can run iperf3 at the far end, but not Trunkline. A test against iperf3 needs
    /// no key. The report names the values that a test against iperf3 cannot measure.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "5201", conflicts_with_all = ["port", "key_file"])]
    iperf3: Option<u16>,
    /// Reads the key that client and server share from this file, or from standard input if the
    /// name is `-` [default: the key in the environment variable TRUNKLINE_MEASURE_KEY].
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Sends the packets of the test from this local address.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Uses only IPv6, even if the server also has an IPv4 address.
    #[arg(short = '6', long = "ipv6")]
    only_v6: bool,
    /// Sets the DSCP of all packets of the test, in both directions: 0 to 63, or a name such as EF
    /// or AF41.
    #[arg(long, value_name = "CLASS", default_value_t = 0, value_parser = dscp)]
    dscp: u8,
    /// Limits the rate of each UDP stream [default: the server's limit].
    #[arg(
        long,
        value_name = "RATE",
        default_value = "10Gbit",
        hide_default_value = true
    )]
    max_rate: Bitrate,
    /// Sets the duration of each TCP test run and of each UDP stream.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    duration: Duration,
    /// Selects the direction to test. With `both`, the test also runs TCP in both directions
    /// simultaneously.
    #[arg(long, value_enum, default_value_t = DirectionOption::Both)]
    direction: DirectionOption,
    /// Tests TCP with these window sizes, in percent of the bandwidth-delay product (BDP). The
    /// value 0 switches off the TCP test runs with windows in percent.
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_values_t = WALK_PERCENT)]
    walk: Vec<u64>,
    /// Also tests TCP with these window sizes, each with one connection. Use the window sizes of the
    /// hosts that will use the circuit.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    window: Vec<ByteCount>,
    /// Sets the number of TCP connections of the parallel test run. The value 1 omits the parallel
    /// test run. The test uses fewer connections if the window of each connection would be less
    /// than ten segments.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Sets the window of each TCP connection of the parallel test run [default: an equal part of
    /// the BDP].
    #[arg(long, value_name = "SIZE")]
    connection_window: Option<ByteCount>,
    /// Sets the TCP congestion control of the senders at both ends [default: the default of each
    /// system].
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    congestion: String,
    /// Sends nothing for this time before each stream that overloads the path, so that the token
    /// bucket of a policer or shaper fills again. The test measures the full burst only if this
    /// time is at least bucket size / rate.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    rest: Duration,
    /// Computes how much loss the path may have at this TCP rate (the loss budget) [default: nine
    /// tenths of the measured rate].
    #[arg(long, value_name = "RATE")]
    target: Option<Bitrate>,
    /// Prints one JSON object with the results and the raw samples of the test.
    #[arg(long)]
    json: bool,
    /// Writes an HTML report with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    // Last: what follows stands below its heading.
    #[command(flatten)]
    limits: ThresholdArguments,
}

/// Thresholds that must be met to pass. RFC 6349 defines no thresholds; a threshold that is not
/// given is not judged.
#[derive(Debug, Args)]
#[command(next_help_heading = "Thresholds")]
struct ThresholdArguments {
    /// Sets the least bottleneck rate of IP packets with which the test passes.
    #[arg(long, value_name = "RATE")]
    min_rate: Option<Bitrate>,
    /// Sets the greatest TCP transfer time ratio with which the test passes. The ratio comes from
    /// the best test run whose window fills the path.
    #[arg(long, value_name = "RATIO", value_parser = threshold)]
    max_transfer_time_ratio: Option<f64>,
    /// Sets the least TCP efficiency in percent (98 or 98%) with which the test passes. Every test
    /// run must reach this TCP efficiency.
    #[arg(long, value_name = "PERCENT", value_parser = percent_of_whole)]
    min_efficiency: Option<f64>,
    /// Sets the greatest buffer delay in percent with which the test passes. The limit for the
    /// buffer delay applies to each test run whose window is not larger than the bandwidth-delay
    /// product (BDP).
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    max_buffer_delay: Option<f64>,
    /// Sets the greatest baseline RTT with which the test passes.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_rtt: Option<Duration>,
    /// Sets the least path MTU in bytes with which the test passes.
    #[arg(long, value_name = "BYTES")]
    min_path_mtu: Option<u16>,
}

/// Parses a threshold. It refuses NaN, with which every comparison would silently fail.
fn threshold(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| "a threshold must be a number that is not negative".to_owned())
}

impl MeasureRunArguments {
    fn run(self) -> Result<()> {
        let code = match self.measure() {
            Ok(code) => code,
            Err(error) => {
                remark!("trunkline: {error:#}");
                2
            }
        };
        std::process::exit(code)
    }

    fn measure(&self) -> Result<i32> {
        let words = match self.iperf3 {
            Some(_) => String::new(),
            None => needed_key(self.key_file.as_deref())?,
        };
        // Only now: who types the key, or waits for it at a pipe, must be able to stop.
        kernel::catch_interruptions();
        ensure!(
            self.duration >= Duration::from_secs(2),
            "--duration {} s is too short, because the tester compares the rates of two seconds; use 2s or more",
            self.duration.as_secs_f64()
        );
        let (host, port) = self.far_end()?;
        let profile = self.profile();
        if let Some(least) = self.limits.min_rate {
            ensure!(
                profile.thresholds.are_within(self.max_rate),
                "--max-rate {} is too low to test --min-rate {least}: use at least 1.5 times the minimum \
                 rate, or remove --max-rate",
                self.max_rate
            );
        }
        let options = RunOptions {
            host,
            port,
            words,
            bind: self.bind,
            only_v6: self.only_v6,
            dscp: self.dscp,
            congestion_control: self.congestion.clone(),
            rest: self.rest.min(REST_MAX),
        };
        let page = self.html.as_deref().map(PageFile::open).transpose()?;
        let display = progress();
        let test = match self.iperf3 {
            Some(_) => tester::run_against_iperf3,
            None => tester::run,
        };
        let finished = test(&options, profile, &kernel::interrupted, &display);
        display.finish();
        let finished = finished?;
        let mut out = StandardOutput::new();
        match self.json {
            true => writeln!(out, "{}", tester::json(&finished))?,
            false => write!(out, "{}", tester::text(&finished))?,
        }
        out.flush()?;
        // Behind the report: a disk that is full must not take the result with it.
        if let Some(page) = page {
            page.write(&tester::html(&finished)?)?;
        }
        Ok(match finished.turn_up.verdict() {
            TurnUpVerdict::Passed(_) => 0,
            TurnUpVerdict::Failed(_) => 1,
            TurnUpVerdict::NotMeasured(_) => 2,
        })
    }

    /// Host and port of the server.
    fn far_end(&self) -> Result<(String, u16)> {
        match self.iperf3 {
            // No port was named but in HOST, if there.
            Some(IPERF3_PORT) => far_end(&self.host, None, IPERF3_PORT),
            Some(port) => far_end(&self.host, Some(port), port),
            None => far_end(&self.host, self.port, PORT),
        }
    }

    fn profile(&self) -> TestProfile {
        TestProfile {
            directions: self.direction.each(),
            walk_percent: self.walk.iter().copied().filter(|one| *one > 0).collect(),
            windows: self.window.clone(),
            connections: self.connections,
            connection_window: self.connection_window,
            duration: self.duration,
            max_rate: self.max_rate,
            // By the server's address, once it is known.
            tcp_headers: ::measure::metrics::HEADERS_IPV4,
            target: self.target,
            thresholds: TestThresholds {
                rate_min: self.limits.min_rate,
                transfer_time_ratio_max: self.limits.max_transfer_time_ratio,
                efficiency_percent_min: self.limits.min_efficiency,
                buffer_delay_percent_max: self.limits.max_buffer_delay,
                baseline_rtt_max: self.limits.max_rtt,
                path_mtu_min: self.limits.min_path_mtu,
            },
        }
    }
}

/// 128 random bits, as 32 letters and digits.
fn fresh_key() -> Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("reading /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn warn_of_short(words: &str) {
    if words.len() < KEY_LENGTH {
        remark!(
            "the key has only {} characters, so somebody who records a test can guess it; without \
             --key-file, the server creates and prints a safe key",
            words.len()
        );
    }
}
