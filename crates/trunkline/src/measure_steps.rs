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
    /// Name or address of a host that runs `trunkline measure server`, or HOST:PORT, or
    /// [ADDRESS]:PORT.
    host: String,
    /// Server's port, TCP and UDP [default: 6349].
    #[arg(long)]
    port: Option<u16>,
    /// File with the server's key; - is standard input [default: the environment's
    /// TRUNKLINE_MEASURE_KEY].
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Address to send from.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Uses IPv6 only.
    #[arg(short = '6', long = "ipv6")]
    only_v6: bool,
    /// DSCP of all packets of the test, in both directions, which is the service's class: 0 to 63,
    /// or a name such as EF or AF41.
    #[arg(long, value_name = "CLASS", default_value_t = 0, value_parser = dscp)]
    dscp: u8,
    /// Direction to test; both are tested one after the other.
    #[arg(long, value_enum, default_value_t = DirectionOption::Both)]
    direction: DirectionOption,
    /// Rest of the path before each stream, so that buckets are full again: bucket / rate.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "500ms")]
    rest: Duration,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
    /// Writes a page with plots to this file.
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

/// Tests a service by ITU-T Y.1564: CIR in quarters, CIR + EIR, a quarter above; then performance.
///
/// Each step shows information rate, frame loss ratio, round trip and delay variation, one
/// direction at a time. The verdict depends only on the criteria given with --flr, --ftd, --fdv and
/// --policing. Rates count Ethernet frames from address to check sum. The clocks of the hosts need
/// not agree: no one-way delay is claimed.
///
/// Exit codes: 0 all given criteria were met, 1 one was missed, 2 it could not be measured.
#[derive(Debug, Args)]
pub(crate) struct ServiceTest {
    #[command(flatten)]
    way: FarEndArguments,
    /// Committed information rate.
    #[arg(long, value_name = "RATE")]
    cir: Bitrate,
    /// Excess information rate, above CIR.
    #[arg(long, value_name = "RATE", default_value = "0bit")]
    eir: Bitrate,
    /// Sizes of Ethernet frames, check sum included.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_values_t = [FRAME_FULL], value_parser = frame)]
    frame_sizes: Vec<u16>,
    /// Duration of each step.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    step: Duration,
    /// Duration of the performance test after a configuration test that passed; Y.1564 has 15min,
    /// 2h, 24h [default: no performance test].
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0", hide_default_value = true)]
    performance: Duration,
    /// Greatest frame loss ratio up to CIR.
    #[arg(long, value_name = "SHARE")]
    flr: Option<Probability>,
    /// Greatest frame transfer delay up to CIR, as a round trip.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    ftd: Option<Duration>,
    /// Greatest frame delay variation up to CIR.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    fdv: Option<Duration>,
    /// Requires that no more than CIR + EIR gets through.
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
            "--cir 0bit is no committed rate"
        );
        ensure!(
            self.step >= Duration::from_secs(1),
            "--step {} s is too short: a rate behind a bucket is read when two seconds agree; use 5s or more",
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

/// Measures throughput, frame loss and bursts for each frame size, after RFC 2544.
///
/// The search ends with two bounds: a load that meets the search goal (loss ratio, duration, share
/// of it that may exceed) and one that does not, as in MLRsearch. It then measures the frame loss
/// above the throughput, and the number of frames that come through back to back (RFC 9004). RFC
/// 2544 itself is for the laboratory (RFC 6815): on a circuit in use, --search-only disturbs least.
///
/// Exit codes: 0 it was measured, 2 it could not be.
#[derive(Debug, Args)]
pub(crate) struct ThroughputTest {
    #[command(flatten)]
    way: FarEndArguments,
    /// Sizes of Ethernet frames, check sum included.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_values_t = FRAMES, value_parser = frame)]
    frame_sizes: Vec<u16>,
    /// Greatest rate of a stream [default: the server's limit].
    #[arg(
        long,
        value_name = "RATE",
        default_value = "10Gbit",
        hide_default_value = true
    )]
    max_rate: Bitrate,
    /// Greatest loss ratio of a good trial.
    #[arg(long, value_name = "SHARE", default_value = "0")]
    loss_ratio: Probability,
    /// Duration of a trial; RFC 2544 has 60s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    trial: Duration,
    /// Total duration of the trials of a load.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "6s")]
    duration_sum: Duration,
    /// Greatest share of that time with bad trials; 0 is RFC 2544's.
    #[arg(long, value_name = "SHARE", default_value = "50%")]
    exceed_ratio: Probability,
    /// Greatest distance between the two bounds.
    #[arg(long, value_name = "SHARE", default_value = "0.5%")]
    width: Probability,
    /// Omits the tests that overload the path: frame loss and bursts.
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
            "--trial is 500ms or more, and --duration-sum no less than a trial"
        );
        ensure!(
            self.width.as_fraction() >= 0.0005,
            "--width is 0.05% or more: a trial of seconds does not tell loads that are closer"
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
        .map_err(|_| "a frame size is a number of bytes".to_owned())?;
    if size < FRAME_MIN {
        return Err(format!(
            "frames of less than {FRAME_MIN} bytes do not hold a tagged packet"
        ));
    }
    match size <= FRAME_MAX {
        true => Ok(size),
        false => Err(format!("the largest frame is {FRAME_MAX} bytes")),
    }
}
