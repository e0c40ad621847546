//! `trunkline measure service` and `trunkline measure throughput`: tests of a circuit with Ethernet
//! frames.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::measure::steps::{
    FRAME_MIN, SearchGoal, ServiceCriteria, ServicePlan, ServiceVerdict, ThroughputPlan,
};
use anyhow::{Result, ensure};
use clap::Args;
use host::kernel;
use tester::{self, PORT, RunOptions};
use vocab::{Bitrate, Probability, parse_duration};

use crate::measure_arguments::{DirectionOption, dscp, far_end};
use crate::measure_key::needed_key;
use crate::output::StandardOutput;
use crate::page_file::PageFile;
use crate::progress::progress;

/// Largest frame: a jumbo frame of 9,000 bytes of IP.
const FRAME_MAX: u16 = 9_018;
/// Default frame size of a Y.1564 service test: packets of 1,500 bytes.
const FRAME_FULL: u16 = 1_518;
/// RFC 2544 §9.1's sizes for Ethernet, without 64 bytes, which do not hold a tagged packet.
const FRAMES: [u16; 6] = [128, 256, 512, 1_024, 1_280, FRAME_FULL];

/// Options for the far end and the connection to it.
#[derive(Debug, Args)]
struct FarEndArguments {
    /// Names a host that runs `trunkline measure server`: its name or address, or HOST:PORT, or
    /// [ADDRESS]:PORT.
    host: String,
    /// Sets the server's port for TCP and UDP [default: 6349].
    #[arg(long)]
    port: Option<u16>,
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
    /// Sets the DSCP of all packets of the test, in both directions. Use the DSCP of the service's
    /// class: 0 to 63, or a name such as EF or AF41.
    #[arg(long, value_name = "CLASS", default_value_t = 0, value_parser = dscp)]
    dscp: u8,
    /// Selects the direction to test. With `both`, the test measures one direction after the other.
    #[arg(long, value_enum, default_value_t = DirectionOption::Both)]
    direction: DirectionOption,
    /// Sends nothing for this time before each stream, so that the token buckets of policers and
    /// shapers fill again. The time of --rest must be at least bucket size / rate.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "500ms")]
    rest: Duration,
    /// Prints the results as one JSON object.
    #[arg(long)]
    json: bool,
    /// Writes an HTML report with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl FarEndArguments {
    fn options(&self) -> Result<RunOptions> {
        let (host, port) = far_end(&self.host, self.port, PORT)?;
        Ok(RunOptions {
            host,
            port,
            words: needed_key(self.key_file.as_deref())?,
            bind: self.bind,
            only_v6: self.only_v6,
            dscp: self.dscp,
            congestion_control: String::new(),
            rest: self.rest,
        })
    }

    /// Opens the file for the page, if one was requested, before anything is measured.
    fn page(&self) -> Result<Option<PageFile>> {
        self.html.as_deref().map(PageFile::open).transpose()
    }
}

/// Tests a service by ITU-T Y.1564: first in steps (quarters of the CIR, then CIR + EIR, then a
/// quarter above CIR + EIR), then at the CIR for a longer time.
///
/// Each step shows information rate, frame loss ratio, round-trip time and delay variation, for one
/// direction at a time. The verdict depends only on the criteria that --flr, --ftd, --fdv and
/// --policing set. Rates count Ethernet frames from the first address to the check sum. The clocks
/// of the two hosts may differ, because the test does not measure one-way delay.
///
/// The exit code is 0 if all given criteria were met, 1 if a criterion was missed, and 2 if the
/// test could not measure.
#[derive(Debug, Args)]
pub(crate) struct ServiceTest {
    #[command(flatten)]
    way: FarEndArguments,
    /// Sets the committed information rate (CIR) of the service.
    #[arg(long, value_name = "RATE")]
    cir: Bitrate,
    /// Sets the excess information rate (EIR) of the service, which is added to the CIR.
    #[arg(long, value_name = "RATE", default_value = "0bit")]
    eir: Bitrate,
    /// Sets the sizes of the Ethernet frames of the test, including the check sum.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_values_t = [FRAME_FULL], value_parser = frame)]
    frame_sizes: Vec<u16>,
    /// Sets the duration of each step of the test.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    step: Duration,
    /// Sets the duration of the performance test, which follows if all steps passed. The
    /// recommendation Y.1564 uses 15min, 2h or 24h [default: no performance test].
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0", hide_default_value = true)]
    performance: Duration,
    /// Sets the greatest frame loss ratio with which the test passes, at rates up to the CIR.
    #[arg(long, value_name = "SHARE")]
    flr: Option<Probability>,
    /// Sets the greatest frame transfer delay with which the test passes, at rates up to the CIR.
    /// The test measures the frame transfer delay as a round-trip time.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    ftd: Option<Duration>,
    /// Sets the greatest frame delay variation with which the test passes, at rates up to the CIR.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    fdv: Option<Duration>,
    /// Tests that the service delivers no more than CIR + EIR. If the service delivers more than
    /// CIR + EIR, the test fails.
    #[arg(long)]
    policing: bool,
}

impl ServiceTest {
    /// Tests and prints; ends the process with the exit code.
    pub(crate) fn run(self) -> Result<()> {
        end(self.test())
    }

    fn test(&self) -> Result<i32> {
        ensure!(
            self.cir.bits_per_second() > 0,
            "--cir 0bit is not a valid committed rate; use a rate above zero"
        );
        ensure!(
            self.step >= Duration::from_secs(1),
            "--step {} s is too short, because the tester compares the rates of two seconds after a bucket \
             is empty; use 5s or more",
            self.step.as_secs_f64()
        );
        let plan = ServicePlan {
            directions: self.way.direction.each(),
            committed: self.cir,
            excess: self.eir,
            frames: self.frame_sizes.clone(),
            step: self.step,
            performance: self.performance,
            // By what the server gives, once it is known.
            stream_max: self.step,
            criteria: ServiceCriteria {
                loss_ratio_max: self.flr.map(Probability::as_fraction),
                round_trip_max: self.ftd,
                variation_max: self.fdv,
                is_policed: self.policing,
            },
        };
        let options = self.way.options()?;
        // Only now: who types the key must be able to stop.
        kernel::catch_interruptions();
        let page = self.way.page()?;
        let display = progress();
        let stepped = tester::service(&options, plan, &kernel::interrupted, &display);
        display.finish();
        let stepped = stepped?;
        print(match self.way.json {
            true => format!("{}\n", tester::service_json(&stepped)),
            false => tester::service_text(&stepped),
        })?;
        // Behind the report: a disk that is full must not take the result with it.
        if let Some(page) = page {
            page.write(&tester::service_html(&stepped)?)?;
        }
        Ok(match stepped.found.verdict() {
            ServiceVerdict::Passed(_) => 0,
            ServiceVerdict::Failed(_) => 1,
            ServiceVerdict::NotMeasured(_) => 2,
        })
    }
}

/// Measures throughput, frame loss and bursts for each frame size, following RFC 2544.
///
/// The search ends with two bounds, as in MLRsearch: a load that meets the search goal, and a
/// higher load that does not. The search goal is a loss ratio, a duration, and the part of this
/// duration that may have more loss. The command then measures the frame loss at higher loads, and
/// the number of frames that the path delivers back to back (RFC 9004). RFC 2544 tests are for a
/// laboratory (RFC 6815); on a circuit in use, --search-only disturbs other traffic least.
///
/// The exit code is 0 if the throughput was measured, and 2 if it could not be measured.
#[derive(Debug, Args)]
pub(crate) struct ThroughputTest {
    #[command(flatten)]
    way: FarEndArguments,
    /// Sets the sizes of the Ethernet frames of the test, including the check sum.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_values_t = FRAMES, value_parser = frame)]
    frame_sizes: Vec<u16>,
    /// Limits the rate of each stream [default: the server's limit].
    #[arg(
        long,
        value_name = "RATE",
        default_value = "10Gbit",
        hide_default_value = true
    )]
    max_rate: Bitrate,
    /// Sets the highest loss ratio with which a trial (one stream at one load) counts as good.
    #[arg(long, value_name = "SHARE", default_value = "0")]
    loss_ratio: Probability,
    /// Sets the duration of each trial (one stream at one load). RFC 2544 uses 60s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    trial: Duration,
    /// Sets the total duration of all trials of one load.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "6s")]
    duration_sum: Duration,
    /// Sets which part of --duration-sum may consist of bad trials. RFC 2544 uses 0.
    #[arg(long, value_name = "SHARE", default_value = "50%")]
    exceed_ratio: Probability,
    /// Sets the precision of the search. The search ends when the distance between the lower and
    /// the upper bound of the throughput is at most this value.
    #[arg(long, value_name = "SHARE", default_value = "0.5%")]
    width: Probability,
    /// Omits the tests of frame loss and bursts, which overload the path.
    #[arg(long)]
    search_only: bool,
}

impl ThroughputTest {
    /// Tests and prints; ends the process with the exit code.
    pub(crate) fn run(self) -> Result<()> {
        end(self.test())
    }

    fn test(&self) -> Result<i32> {
        ensure!(
            self.trial >= Duration::from_millis(500) && self.duration_sum >= self.trial,
            "--trial must be at least 500ms, and --duration-sum must not be shorter than a trial"
        );
        ensure!(
            self.width.as_fraction() >= 0.0005,
            "--width must be at least 0.05%, because trials of some seconds cannot distinguish smaller differences"
        );
        let plan = ThroughputPlan {
            directions: self.way.direction.each(),
            frames: self.frame_sizes.clone(),
            max_rate: self.max_rate,
            // By what the server gives, once it is known.
            stream_max: self.trial,
            goal: SearchGoal {
                loss_ratio: self.loss_ratio.as_fraction(),
                trial: self.trial,
                duration_sum: self.duration_sum,
                exceed_ratio: self.exceed_ratio.as_fraction(),
                width: self.width.as_fraction(),
            },
            is_whole: !self.search_only,
        };
        let options = self.way.options()?;
        // Only now: who types the key must be able to stop.
        kernel::catch_interruptions();
        let page = self.way.page()?;
        let display = progress();
        let stepped = tester::throughput(&options, plan, &kernel::interrupted, &display);
        display.finish();
        let stepped = stepped?;
        print(match self.way.json {
            true => format!("{}\n", tester::throughput_json(&stepped)),
            false => tester::throughput_text(&stepped),
        })?;
        // Behind the report: a disk that is full must not take the result with it.
        if let Some(page) = page {
            page.write(&tester::throughput_html(&stepped)?)?;
        }
        let test = &stepped.found;
        let is_found = test.done().iter().all(|(_, size)| size.lower.is_some());
        Ok(match is_found && test.given_up().is_none() {
            true => 0,
            false => 2,
        })
    }
}

fn print(text: String) -> Result<()> {
    let mut out = StandardOutput::new();
    write!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

fn end(code: Result<i32>) -> ! {
    let code = code.unwrap_or_else(|error| {
        remark!("trunkline: {error:#}");
        2
    });
    std::process::exit(code)
}

fn frame(text: &str) -> Result<u16, String> {
    let size: u16 = text
        .parse()
        .map_err(|_| "a frame size must be a number of bytes".to_owned())?;
    if size < FRAME_MIN {
        return Err(format!(
            "frames of less than {FRAME_MIN} bytes have no space for the tester's packet"
        ));
    }
    match size <= FRAME_MAX {
        true => Ok(size),
        false => Err(format!("the largest frame is {FRAME_MAX} bytes")),
    }
}
