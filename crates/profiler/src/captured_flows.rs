//! Closed-loop TCP flows through a router of the kernel, beside captures at both of its interfaces.
//!
//! ```text
//!   port 1 ─► in1 ─ router ─ in0 (tbf) ─► port 0      data of all flows
//!              │              └─ tcpdump ─► packets that left ┐
//!              └─ tcpdump ──────────────► packets that came ──┴─► loss and goodput of each flow
//! ```
//! The captures are of another program, at other interfaces than the profiler's ports. So they judge
//! the profiler's own account of each flow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capture::TransportHeader;
use host::command;
use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::progress::ProgressReporter;
use host::run::LabRun;
use profile::{AddressFamily, MeasuredRun, MeasurementPlan, emulated_endpoints};
use serde::Serialize;

use crate::device_stand::DeviceStand;

/// Port of the emulated servers, by which the captures choose the data of the flows.
const SERVER_PORT: u16 = 5201;
/// Port at which the flows enter the router, and the one at which their data leaves it.
const INPUT: u16 = 1;
const OUTPUT: u16 = 0;
/// Queueing discipline of the router's output: a queue in which the flows lose packets.
const SHAPER: &str = "tbf rate 50mbit burst 16000 limit 100000";
/// Time for tcpdump to open its interface.
const CAPTURE_START: Duration = Duration::from_secs(10);
/// Time in which a capture's file does not grow once tcpdump has read all packets, and the longest time to
/// wait for it: on a busy machine tcpdump is seconds behind, and what it has not read at its end is lost.
const CAPTURE_IDLE: Duration = Duration::from_secs(1);
const CAPTURE_REST: Duration = Duration::from_secs(60);
/// Comparisons until the captures are complete.
const ATTEMPTS_MAX: u32 = 3;

/// Comparison of the profiler's account of TCP flows with captures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CapturedFlowFigures {
    /// Flows of the plan.
    pub flows: u32,
    /// Flows of which the captures have data.
    pub captured_flows: usize,
    /// Data packets that came to the router, by the captures.
    pub captured_packets: u64,
    /// Data packets that the profiler sent, by its records.
    pub recorded_packets: u64,
    /// Goodput of all flows, by the captures, bit/s of IP packets.
    pub goodput_bps: f64,
    /// Loss ratio of all flows, by the captures.
    pub loss_ratio: f64,
    /// Greatest error of a flow's goodput, in percent of that by the captures.
    pub flow_goodput_error_max_percent: f64,
    /// Greatest difference of a flow's loss ratios.
    pub flow_loss_error_max: f64,
    /// Packets that passed the captures' filters and are not in their files: those that found no room, and
    /// those that tcpdump had not read at its end.
    pub missed_by_captures: u64,
    /// Packets that our own ports lost behind the captures. A run may have a few of them.
    pub lost_by_own_ports: u64,
    /// Flows whose packets or bytes differ.
    pub differing_flows: usize,
    /// Reason why the captures judge nothing; the errors are worth nothing then.
    pub void: Option<String>,
    /// Comparisons that were made, this one and those before it that were void.
    pub comparisons: u32,
}

/// Packets and bytes of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FlowAccount {
    came: u64,
    left: u64,
    left_bytes: u64,
}

impl FlowAccount {
    fn loss_ratio(self) -> f64 {
        1.0 - self.left as f64 / self.came.max(1) as f64
    }
}

/// Packets that one side alone has seen, for reasons of this machine.
#[derive(Clone, Copy, Debug, Default)]
struct CaptureLosses {
    missed_by_captures: u64,
    lost_by_own_ports: u64,
}

impl CaptureLosses {
    /// Reason why a comparison of so many captured packets is void.
    fn reason(self, captured: u64) -> Option<String> {
        let CaptureLosses {
            missed_by_captures: missed,
            lost_by_own_ports: lost,
        } = self;
        if missed > 0 {
            let passed = captured + missed;
            Some(format!("tcpdump missed {missed} of {passed} packets"))
        } else if lost > 0 {
            Some(format!(
                "our own ports lost {lost} packets that left the router"
            ))
        } else {
            None
        }
    }
}

/// Accounts by the address of the client.
type FlowAccounts = BTreeMap<SocketAddr, FlowAccount>;

/// Sends `flows` TCP flows through the router for `duration`, and compares; again if the captures are
/// incomplete.
///
/// # Errors
/// When the router or tcpdump cannot be started, or the run is void.
pub fn compare(
    lab: &LabRun,
    flows: u32,
    duration: Duration,
    progress: &dyn ProgressReporter,
) -> Result<CapturedFlowFigures> {
    let mut figures = compare_once(lab, flows, duration, progress)?;
    for comparisons in 2..=ATTEMPTS_MAX {
        if figures.void.is_none() || kernel::interrupted() {
            break;
        }
        figures = compare_once(lab, flows, duration, progress)?;
        figures.comparisons = comparisons;
    }
    Ok(figures)
}

fn compare_once(
    lab: &LabRun,
    flows: u32,
    duration: Duration,
    progress: &dyn ProgressReporter,
) -> Result<CapturedFlowFigures> {
    let stand = DeviceStand::create(lab, "flows", 2)?;
    stand.route()?;
    stand.inside(&format!("tc qdisc add dev in{OUTPUT} root {SHAPER}"))?;
    let came = InterfaceCapture::start(lab, &stand.device, INPUT)?;
    let left = InterfaceCapture::start(lab, &stand.device, OUTPUT)?;
    let (runs, result) = stand.measure(&plan(flows, duration), progress)?;
    if let Some(failure) = &result.failure {
        bail!("{flows} TCP flows: {failure}");
    }
    let run = runs.first().with_context(|| {
        format!("{flows} TCP flows: our own ports lost packets, so the run is void")
    })?;
    let ((came, missed_coming), (left, missed_leaving)) = (came.finish()?, left.finish()?);
    let lost_by_own_ports = result
        .runs
        .iter()
        .map(|run| (run.outcome.own_loss() * run.outcome.summary.sent as f64).round() as u64)
        .sum();
    let losses = CaptureLosses {
        missed_by_captures: missed_coming + missed_leaving,
        lost_by_own_ports,
    };
    Ok(figures(
        flows,
        &accounts_of(run),
        &captured(&came, &left)?,
        (duration, losses),
    ))
}

fn plan(flows: u32, duration: Duration) -> MeasurementPlan {
    // A capture is complete two seconds after the last packet.
    MeasurementPlan::from_toml(&format!(
        r#"
        name = "flows"
        ports = 2
        loss_after = "2s"

        [[experiment]]
        name = "closed-loop TCP"
        purpose = "report"
        traffic = [{{ from = [{INPUT}], to = [{OUTPUT}], flows = {flows}, duration = "{}ms",
            pattern = {{ kind = "tcp", segment = "1448B" }} }}]
        "#,
        duration.as_millis()
    ))
    .expect("the plan is well formed")
}

/// The profiler's own account of the data of each flow.
fn accounts_of(run: &MeasuredRun) -> FlowAccounts {
    let mut accounts = FlowAccounts::new();
    for record in run.records.iter().filter(|record| record.input == INPUT) {
        // A flow has two numbers, the second one for its acknowledgements.
        let client = emulated_endpoints(AddressFamily::Ipv4, record.flow / 2, INPUT, OUTPUT).source;
        let account = accounts.entry(client).or_default();
        account.came += 1;
        if record.fate.is_forwarded() {
            account.left += 1;
            account.left_bytes += u64::from(record.size);
        }
    }
    accounts
}

fn captured(came: &Path, left: &Path) -> Result<FlowAccounts> {
    let mut accounts = FlowAccounts::new();
    for_each_data(came, |client, _| {
        accounts.entry(client).or_default().came += 1
    })?;
    for_each_data(left, |client, bytes| {
        let account = accounts.entry(client).or_default();
        account.left += 1;
        account.left_bytes += bytes;
    })?;
    Ok(accounts)
}

/// Calls `take` with client and IP length of each captured packet to a server.
fn for_each_data(file: &Path, mut take: impl FnMut(SocketAddr, u64)) -> Result<()> {
    for packet in capture::read(file).with_context(|| file.display().to_string())? {
        let is_tcp = matches!(packet.transport, TransportHeader::Tcp { .. });
        if is_tcp && packet.destination.port() == SERVER_PORT {
            take(packet.source, packet.ip_bytes);
        }
    }
    Ok(())
}

fn figures(
    flows: u32,
    ours: &FlowAccounts,
    captured: &FlowAccounts,
    (duration, losses): (Duration, CaptureLosses),
) -> CapturedFlowFigures {
    let sum = |accounts: &FlowAccounts, value: fn(&FlowAccount) -> u64| -> u64 {
        accounts.values().map(value).sum()
    };
    let (mut goodput_error, mut loss_error) = (0.0_f64, 0.0_f64);
    let clients: BTreeSet<&SocketAddr> = captured.keys().chain(ours.keys()).collect();
    let mut differing_flows = 0;
    for client in clients {
        let of = |accounts: &FlowAccounts| accounts.get(client).copied().unwrap_or_default();
        let (ours, truth) = (of(ours), of(captured));
        differing_flows += usize::from(ours != truth);
        let difference = ours.left_bytes.abs_diff(truth.left_bytes) as f64;
        goodput_error = goodput_error.max(100.0 * difference / truth.left_bytes.max(1) as f64);
        loss_error = loss_error.max((ours.loss_ratio() - truth.loss_ratio()).abs());
    }
    let left_bytes = sum(captured, |account| account.left_bytes);
    let came = sum(captured, |account| account.came);
    let left = sum(captured, |account| account.left);
    CapturedFlowFigures {
        flows,
        captured_flows: captured.len(),
        captured_packets: came,
        recorded_packets: sum(ours, |account| account.came),
        goodput_bps: left_bytes as f64 * 8.0 / duration.as_secs_f64(),
        loss_ratio: 1.0 - left as f64 / came.max(1) as f64,
        flow_goodput_error_max_percent: goodput_error,
        flow_loss_error_max: loss_error,
        missed_by_captures: losses.missed_by_captures,
        lost_by_own_ports: losses.lost_by_own_ports,
        differing_flows,
        void: losses.reason(came + left),
        comparisons: 1,
    }
}

/// A tcpdump at an interface of the device.
struct InterfaceCapture {
    process: RunningProcess,
    file: PathBuf,
}

impl InterfaceCapture {
    fn start(lab: &LabRun, namespace: &str, port: u16) -> Result<Self> {
        let program = command::find("tcpdump")
            .context("tcpdump is missing; install it, it captures beside the profiler")?;
        let name = format!("capture-{port}");
        let file = lab.directory().join(format!("{name}.pcap"));
        let log = lab.directory().join(format!("{name}.log"));
        // The word of an earlier process must not count.
        let _ = fs::remove_file(&log);
        let launch = LaunchConfig {
            name: &name,
            namespace,
            program: &program,
            logs: lab.directory(),
        };
        let interface = format!("in{port}");
        let filter = format!("tcp dst port {SERVER_PORT}");
        let path = file.display().to_string();
        let arguments = [
            "-i",
            &interface,
            "-Z",
            "root",
            "-n",
            "-s",
            "96",
            "-B",
            "65536",
            "--immediate-mode",
            "-U",
            "-w",
            &path,
            &filter,
        ];
        let mut process = RunningProcess::start(lab, &launch, arguments)?;
        process.wait_ready(CAPTURE_START, "to listen", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text.contains("listening on"))
        })?;
        Ok(Self { process, file })
    }

    /// Ends it once it has read all packets; returns its file, and the number of packets that it missed.
    fn finish(mut self) -> Result<(PathBuf, u64)> {
        self.wait_for_rest()?;
        self.process.stop(ProcessSignal::Terminate)?;
        let log = fs::read_to_string(self.process.log())
            .with_context(|| self.process.log().display().to_string())?;
        let missed = missed_packets(&log).with_context(|| {
            format!("tcpdump does not say how many packets it captured and missed: {log}")
        })?;
        Ok((self.file, missed))
    }

    /// Waits until the file does not grow any more.
    fn wait_for_rest(&self) -> Result<()> {
        let length = || {
            let found = fs::metadata(&self.file);
            Ok::<_, anyhow::Error>(
                found
                    .with_context(|| self.file.display().to_string())?
                    .len(),
            )
        };
        let started = Instant::now();
        let (mut last, mut since) = (length()?, started);
        while since.elapsed() < CAPTURE_IDLE && started.elapsed() < CAPTURE_REST {
            thread::sleep(CAPTURE_IDLE / 10);
            let now = length()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}

/// Number of packets that passed tcpdump's filter and that it did not write, by what it prints at its end.
fn missed_packets(log: &str) -> Option<u64> {
    let count = |what: &str| -> Option<u64> {
        let (number, _) = log.lines().find_map(|line| {
            let (number, rest) = line.split_once(' ')?;
            (rest
                .strip_prefix("packets ")
                .or_else(|| rest.strip_prefix("packet "))?
                == what)
                .then_some((number, rest))
        })?;
        number.parse().ok()
    };
    let captured = count("captured")?;
    let passed = count("received by filter")?;
    let dropped = count("dropped by kernel")?;
    // The kernel counts the packets that found no room among those that passed.
    Some(dropped.max(passed.saturating_sub(captured)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(left_bytes: [u64; 2]) -> FlowAccounts {
        let account = |left_bytes| FlowAccount {
            came: 10,
            left: left_bytes / 1_500,
            left_bytes,
        };
        (0..2)
            .map(|flow| emulated_endpoints(AddressFamily::Ipv4, flow, INPUT, OUTPUT).source)
            .zip(left_bytes.map(account))
            .collect()
    }

    #[test]
    fn greatest_error_of_a_flow_counts() {
        let (truth, ours) = (accounts([15_000, 12_000]), accounts([15_000, 10_500]));
        let figures = figures(
            2,
            &ours,
            &truth,
            (Duration::from_secs(1), CaptureLosses::default()),
        );
        assert!((figures.flow_goodput_error_max_percent - 12.5).abs() < 1e-9);
        assert!((figures.flow_loss_error_max - 0.1).abs() < 1e-9);
        assert!((figures.goodput_bps - 216_000.0).abs() < 1e-6);
        assert!((figures.loss_ratio - 0.1).abs() < 1e-9);
        assert_eq!(figures.differing_flows, 1);
        assert_eq!(figures.captured_packets, 20);
    }

    #[test]
    fn flow_of_one_side_alone_is_an_error() {
        let (truth, mut ours) = (accounts([15_000, 12_000]), accounts([15_000, 12_000]));
        ours.pop_last();
        let figures = figures(
            2,
            &ours,
            &truth,
            (Duration::from_secs(1), CaptureLosses::default()),
        );
        assert!((figures.flow_goodput_error_max_percent - 100.0).abs() < 1e-9);
    }

    #[test]
    fn missed_packets_are_read_from_tcpdump() {
        let log = |captured, passed, dropped| {
            format!(
                "listening on in0\n{captured} packets captured\n{passed} packets received by filter\n{dropped} \
                 packets dropped by kernel\n"
            )
        };
        assert_eq!(missed_packets(&log(7, 7, 0)), Some(0));
        assert_eq!(missed_packets(&log(7, 10, 3)), Some(3));
        // Ended before it had read all.
        assert_eq!(missed_packets(&log(7, 9, 0)), Some(2));
        assert_eq!(
            missed_packets(
                "1 packet captured\n1 packet received by filter\n0 packets dropped by kernel\n"
            ),
            Some(0)
        );
        assert_eq!(missed_packets("listening on in0\n"), None);
    }

    #[test]
    fn incomplete_captures_judge_nothing() {
        let truth = accounts([15_000, 12_000]);
        let void = |missed_by_captures, lost_by_own_ports| {
            let losses = CaptureLosses {
                missed_by_captures,
                lost_by_own_ports,
            };
            figures(2, &truth, &truth, (Duration::from_secs(1), losses)).void
        };
        assert_eq!(void(0, 0), None);
        assert!(void(4, 0).unwrap().contains("4 of 42 packets"));
        assert!(void(0, 1).unwrap().contains("own ports lost 1 packet"));
    }
}
