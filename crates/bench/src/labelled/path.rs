//! Namespaces of a case, and the program that measures in them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::case::PathCase;
use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::{ProgramEnvironment, command};
use lab::topology::{HOST_CONGESTION_CONTROL, LabSite, LabTopology, LinkArguments};

/// Time limit for a program to start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Bytes of each packet that a capture keeps: the headers with their options.
const SNAPSHOT_BYTES: &str = "96";
/// Time after the last packet before tcpdump is ended, so that it has written everything; with a
/// shorter time, up to 7 % of a capture was missing.
const WRITE_DOWN: Duration = Duration::from_secs(2);

/// Documents that a case gave.
pub(super) struct CaseDocuments {
    /// The document of `trunkline measure run --json`.
    pub(super) test: Value,
    /// Document of `trunkline measure diagnose --json` on the capture of its TCP run.
    pub(super) capture: Value,
}

/// Path of a case while it exists. Fields are dropped in this order: processes before the places
/// that they run in.
pub(super) struct CasePath {
    _server: RunningProcess,
    _emulator: RunningProcess,
    topology: LabTopology,
    logs: PathBuf,
    key: PathBuf,
    run: LabRun,
}

impl CasePath {
    pub(super) fn build(environment: &ProgramEnvironment, case: &PathCase) -> Result<Self> {
        let run = LabRun::create(environment)?;
        let logs = run.subdirectory("logs")?;
        let topology = LabTopology::create(&run, &[LabSite::Near, LabSite::Far])?;
        let emulator = topology.start_emulator(&run, &logs, &link(case))?;
        let far = topology.namespace(LabSite::Far.node());
        if let Some(rule) = case.rule() {
            let ruleset = format!(
                "table inet labelled {{\nchain way {{\ntype filter hook forward priority filter;\n{rule}\n}}\n}}\n"
            );
            let arguments = ["netns", "exec", &far, "nft", "-f", "-"];
            command::run_with_input("ip", arguments, &ruleset)?;
        }
        if let Some(discipline) = case.discipline() {
            let way = ["netns", "exec", &far, "tc", "qdisc", "replace"];
            let device = ["dev", "lan0", "root"];
            let words = discipline.split_whitespace();
            command::run("ip", way.into_iter().chain(device).chain(words))?;
        }
        let key = run.directory().join("key");
        fs::write(&key, format!("case {} of {}\n", case.index, case.seed))?;
        let launch = LaunchConfig {
            name: "measure-server",
            namespace: &topology.namespace(LabSite::Far.host()),
            program: &run.environment().program,
            logs: &logs,
        };
        let arguments = ["measure", "server", "--key-file"].map(OsStr::new);
        let arguments = arguments.into_iter().chain([key.as_os_str()]);
        let mut server = RunningProcess::start(&run, &launch, arguments)?;
        let log = server.log().to_owned();
        server.wait_ready(START_LIMIT, "to print \"ready\"", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text.lines().any(|line| line.trim_end() == "ready"))
        })?;
        Ok(Self {
            _server: server,
            _emulator: emulator,
            topology,
            logs,
            key,
            run,
        })
    }

    /// Measures; the capture is kept as `keep`, where that is asked for.
    pub(super) fn measure(
        &self,
        case: &PathCase,
        keep: Option<&FilePath>,
    ) -> Result<CaseDocuments> {
        let file = self.run.directory().join("transfer.pcap");
        let mut capture = self.capture(&file)?;
        let key = self.key.display().to_string();
        let seconds = |span: Duration| format!("{}s", span.as_secs());
        let window = format!("{}B", case.window().bytes());
        let mut arguments = vec![
            "measure".to_owned(),
            "run".to_owned(),
            LabSite::Far.host_address().to_string(),
            "--json".to_owned(),
            "--direction=up".to_owned(),
            "--walk=0".to_owned(),
            format!("--congestion={HOST_CONGESTION_CONTROL}"),
            format!("--key-file={key}"),
            format!("--duration={}", seconds(case.measure_for())),
            format!("--rest={}", seconds(case.rest())),
            format!("--connections={}", case.connections),
        ];
        arguments.push(match case.connections {
            1 => format!("--window={window}"),
            _ => format!("--connection-window={window}"),
        });
        if let Some(rate) = case.max_rate() {
            arguments.push(format!("--max-rate={rate}bit"));
        }
        let mut client = command::new(&self.run.environment().program);
        client.args(&arguments);
        let namespace = self.topology.namespace_file(LabSite::Near.host());
        kernel::prepare_child(&mut client, Some(&namespace))?;
        let text = command::finish("trunkline measure run", &mut client, None)?;
        let test = serde_json::from_str(&text).context("what the tester printed")?;
        std::thread::sleep(WRITE_DOWN);
        capture.stop(ProcessSignal::Interrupt)?;
        if let Some(keep) = keep {
            fs::copy(&file, keep).with_context(|| format!("keeping {}", keep.display()))?;
        }
        let capture = diagnose(&self.run.environment().program, &file)?;
        Ok(CaseDocuments { test, capture })
    }

    /// Writes down the headers of TCP at the client.
    fn capture(&self, file: &FilePath) -> Result<RunningProcess> {
        let path = file.display().to_string();
        let launch = LaunchConfig {
            name: "tcpdump",
            namespace: &self.topology.namespace(LabSite::Near.host()),
            program: FilePath::new("tcpdump"),
            logs: &self.logs,
        };
        let arguments = [
            "-i",
            "lan0",
            "-n",
            "-U",
            "--immediate-mode",
            "-p",
            "-B",
            "16384",
            "-s",
            SNAPSHOT_BYTES,
            "-Z",
            "root",
            "--time-stamp-precision=nano",
            "-w",
            &path,
            "tcp",
        ];
        let mut process = RunningProcess::start(&self.run, &launch, arguments)?;
        let log = process.log().to_owned();
        process.wait_ready(START_LIMIT, "to listen", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok(text.contains("listening on"))
        })?;
        Ok(process)
    }
}

/// The document of `trunkline measure diagnose --json` on a capture.
pub(super) fn diagnose(program: &FilePath, capture: &FilePath) -> Result<Value> {
    let mut judge = command::new(program);
    judge.args(["measure", "diagnose", "--json"]).arg(capture);
    let text = command::finish("trunkline measure diagnose", &mut judge, None)?;
    serde_json::from_str(&text).context("what the diagnosis printed")
}

fn link(case: &PathCase) -> LinkArguments {
    let arguments = [
        format!("--delay={:.3}ms", case.rtt_ms / 2.0),
        format!("--loss={}%", case.loss_percent),
        "--loss-back=0%".to_owned(),
        format!("--seed={}", case.seed.wrapping_add(u64::from(case.index))),
        "--json".to_owned(),
    ];
    LinkArguments(arguments.to_vec())
}
