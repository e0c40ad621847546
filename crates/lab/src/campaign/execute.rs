//! Runs a plan.
//!
//! ```text
//! for each test:  start the emulator
//!   for each workload:  baseline                                   no node runs
//!   start and pair both nodes
//!   for each workload:  empty both dictionaries, then cold, warm, edited
//!   stop both nodes
//! ```
//! The order keeps "cold" cold: dictionaries are emptied before each workload, so nothing one
//! workload has sent helps the next. Before each run the server's and client's directories hold
//! exactly the run's files.
//!
//! Everything is kept in the run directory and copied to `keep` at the end, also after a failure.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::plan::{CampaignPlan, PassKind, PlanTest};
use super::results::{
    CampaignResults, CampaignSeeds, FORMAT_VERSION, FileSample, TestResults, WorkloadRun,
};
use crate::nodes::LabNodes;
use crate::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use crate::recording::{self, MarkerEdge, MarkerPath, PacketRecorder};
use crate::servers::{HTTP_PORT, ServerKind, SiteServers};
use crate::topology::{LabSite, LabTopology};
use crate::workload::{FileSet, TransferDirection, WorkloadEnvironment, WorkloadKind};
use host::kernel::ProcessSignal;
use host::machine::{MachineInfo, ProcessorTime};
use host::progress::ProgressReporter;
use host::run::LabRun;
use host::{ProgramEnvironment, rootless, wait};

/// Options of a campaign that its plan does not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CampaignOptions {
    /// Seeds of all random numbers.
    pub seeds: CampaignSeeds,
    /// Directory for captures, logs and results.
    pub keep: Option<PathBuf>,
    /// Sentence that names the certificate of the emulator on this machine.
    pub certificate: Option<String>,
}

/// Runs `plan` and returns the results.
///
/// # Errors
/// Fails when a requirement is missing, a program does not start, or the lab is interrupted. A file
/// that arrives damaged is no error here: [`CampaignResults::faults`] names it.
pub fn execute(
    environment: &ProgramEnvironment,
    plan: &CampaignPlan,
    options: &CampaignOptions,
    progress: &dyn ProgressReporter,
) -> Result<CampaignResults> {
    plan.check()?;
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = needs(plan);
    preflight::check(&needs, privileges)?;
    let run = LabRun::create(environment)?;
    let mut machine = MachineInfo::describe(&preflight::programs_of(&needs));
    machine.privileges = privileges.explain().to_owned();
    let result = RunningCampaign::prepare(&run, plan, options, progress, machine, &needs)
        .and_then(RunningCampaign::measure);
    if let Some(directory) = &options.keep {
        keep(&run, directory, result.as_ref().ok())?;
    }
    result
}

fn needs(plan: &CampaignPlan) -> LabRequirements {
    let workloads = plan.workloads();
    // nginx is always there: the congestion control is checked on a connection to it.
    let mut servers: Vec<ServerKind> = workloads.iter().map(|each| each.server()).collect();
    servers.push(ServerKind::Http);
    servers.sort_unstable();
    servers.dedup();
    let mut clients: Vec<&'static str> = workloads.iter().map(|each| each.client()).collect();
    clients.sort_unstable();
    clients.dedup();
    LabRequirements {
        servers,
        clients,
        interception: if plan.needs_nodes() {
            InterceptionMode::Transparent
        } else {
            InterceptionMode::None
        },
        captures: CaptureMode::Taken,
    }
}

struct RunningCampaign<'a> {
    run: &'a LabRun,
    plan: &'a CampaignPlan,
    seeds: CampaignSeeds,
    progress: &'a dyn ProgressReporter,
    began: Instant,
    results: CampaignResults,
    topology: LabTopology,
    markers: MarkerPath,
    servers: SiteServers,
    logs: PathBuf,
    captures: PathBuf,
    client_directory: PathBuf,
    /// Runs of a workload done and to do, for the progress.
    done: f64,
    all: f64,
}

/// Contents transferred in one test: originals and edited ones, for each direction.
struct TestContents {
    download: FileSet,
    download_edited: FileSet,
    upload: FileSet,
    upload_edited: FileSet,
}

impl TestContents {
    fn of(&self, workload: WorkloadKind, pass: PassKind) -> &FileSet {
        match (workload.way(), pass) {
            (TransferDirection::Download, PassKind::Edited) => &self.download_edited,
            (TransferDirection::Download, PassKind::Baseline | PassKind::Cold | PassKind::Warm) => {
                &self.download
            }
            (TransferDirection::Upload, PassKind::Edited) => &self.upload_edited,
            (TransferDirection::Upload, PassKind::Baseline | PassKind::Cold | PassKind::Warm) => {
                &self.upload
            }
        }
    }
}

impl<'a> RunningCampaign<'a> {
    fn prepare(
        run: &'a LabRun,
        plan: &'a CampaignPlan,
        options: &CampaignOptions,
        progress: &'a dyn ProgressReporter,
        machine: MachineInfo,
        needs: &LabRequirements,
    ) -> Result<Self> {
        let began = Instant::now();
        let logs = run.subdirectory("logs")?;
        let captures = run.subdirectory("captures")?;
        let client_directory = run.subdirectory("client")?;
        progress.step(0.0, "building the network");
        let topology = LabTopology::create(run, &[LabSite::Near, LabSite::Far])?;
        progress.step(0.0, "starting the servers");
        let servers = SiteServers::start(run, &topology, LabSite::Far, &logs, &needs.servers)?;
        let runs: usize = plan.tests.iter().map(|test| test.workloads.len()).sum();
        let all = runs as f64 * plan.passes.len() as f64 * f64::from(plan.repeats);
        Ok(Self {
            run,
            plan,
            seeds: options.seeds,
            progress,
            began,
            results: CampaignResults {
                format_version: FORMAT_VERSION,
                title: plan.title.clone(),
                started: jiff::Zoned::now()
                    .strftime("%Y-%m-%dT%H:%M:%S%:z")
                    .to_string(),
                took_s: 0.0,
                machine,
                seeds: options.seeds,
                repeats: plan.repeats,
                passes: plan.passes.clone(),
                tests: Vec::new(),
                notes: options
                    .certificate
                    .iter()
                    .map(|sentence| format!("Emulator certificate: {sentence}"))
                    .collect(),
            },
            markers: MarkerPath::open(&topology)?,
            topology,
            servers,
            logs,
            captures,
            client_directory,
            done: 0.0,
            all,
        })
    }

    fn measure(mut self) -> Result<CampaignResults> {
        for (index, test) in self.plan.tests.iter().enumerate() {
            let results = self
                .measure_test(index, test)
                .with_context(|| format!("in test {} over {}", index + 1, test.link))?;
            for limit in results.host_limits() {
                self.progress.note(&limit);
                self.results.notes.push(limit);
            }
            self.results.tests.push(results);
        }
        self.results.took_s = self.began.elapsed().as_secs_f64();
        Ok(self.results)
    }

    fn measure_test(&mut self, index: usize, test: &PlanTest) -> Result<TestResults> {
        let contents = self.contents(test)?;
        let mut emulator = self.topology.start_emulator(
            self.run,
            &self.logs,
            &test.link.arguments(self.seeds.link),
        )?;
        let (client, server) = self.topology.verify_congestion_control(HTTP_PORT)?;
        self.results.machine.hosts_congestion_control =
            format!("client {client}, server {server} (route attribute congctl, read back)");
        let mut results = TestResults {
            link: test.link.clone(),
            nodes: None,
            emulator: serde_json::Value::Null,
            runs: Vec::new(),
            samples: Vec::new(),
        };
        let workloads: Vec<WorkloadKind> = test.workloads.iter().map(|name| name.0).collect();
        let accelerated: Vec<PassKind> = self
            .plan
            .passes
            .iter()
            .copied()
            .filter(|pass| *pass != PassKind::Baseline)
            .collect();
        for repeat in 1..=self.plan.repeats {
            if self.plan.passes.contains(&PassKind::Baseline) {
                for workload in &workloads {
                    let name = format!("t{index}-baseline-{workload}-{repeat}");
                    let scene = WorkloadTurn {
                        name: &name,
                        workload: *workload,
                        repeat,
                    };
                    self.measure_passes(&scene, &[PassKind::Baseline], &contents, &mut results)?;
                }
            }
            if accelerated.is_empty() {
                continue;
            }
            self.progress
                .step(self.done / self.all, "starting and pairing the nodes");
            let mut nodes = LabNodes::prepare(self.run, &self.topology, &self.logs)?;
            nodes.start(self.run)?;
            self.results.machine.nodes_congestion_control =
                Some(nodes.congestion_control(&self.topology)?);
            for workload in &workloads {
                nodes.empty_dictionaries()?;
                let name = format!("t{index}-trunkline-{workload}-{repeat}");
                let scene = WorkloadTurn {
                    name: &name,
                    workload: *workload,
                    repeat,
                };
                self.measure_passes(&scene, &accelerated, &contents, &mut results)?;
                nodes.check()?;
            }
            nodes.stop()?;
        }
        emulator.stop(ProcessSignal::Terminate)?;
        results.emulator = last_json(emulator.log());
        Ok(results)
    }

    fn contents(&self, test: &PlanTest) -> Result<TestContents> {
        self.progress
            .step(self.done / self.all, "generating the files");
        let download = FileSet::generate(self.seeds.files, &test.files)?;
        // Uploads share nothing with downloads, so that an upload is as cold as it is called.
        let upload = FileSet::generate(self.seeds.files.wrapping_add(1), &test.files)?;
        Ok(TestContents {
            download_edited: download.edited(self.seeds.edits),
            upload_edited: upload.edited(self.seeds.edits.wrapping_add(1)),
            download,
            upload,
        })
    }

    /// Runs one workload in `passes`, under one pair of captures, and reads them out.
    fn measure_passes(
        &mut self,
        scene: &WorkloadTurn<'_>,
        passes: &[PassKind],
        contents: &TestContents,
        results: &mut TestResults,
    ) -> Result<()> {
        let WorkloadTurn {
            name,
            workload,
            repeat,
        } = *scene;
        let mut recorder =
            PacketRecorder::start(self.run, &self.topology, &self.captures, &self.logs, name)?;
        let mut outcomes = Vec::new();
        for pass in passes {
            wait::not_interrupted()?;
            self.progress.step(
                self.done / self.all,
                &format!("{workload}: {}", pass.name()),
            );
            let files = contents.of(workload, *pass);
            if workload.way() == TransferDirection::Download {
                files.write_to(self.servers.files())?;
            }
            let label = format!("{name}-{}", pass.name());
            recorder.mark(&self.markers, MarkerEdge::Begin, &label)?;
            let before = ProcessorTime::now()?;
            let bench = WorkloadEnvironment {
                topology: &self.topology,
                server_files: self.servers.files(),
                client_directory: &self.client_directory,
                logs: &self.logs,
                python: None,
                mail: None,
            };
            let outcome = bench.run(workload, files, &label)?;
            let cpu_busy = ProcessorTime::now()?.busy_since(before);
            recorder.mark(&self.markers, MarkerEdge::End, &label)?;
            self.servers.check()?;
            self.done += 1.0;
            results.runs.push(WorkloadRun {
                pass: *pass,
                workload: workload.name().to_owned(),
                repeat,
                label: label.clone(),
                cpu_busy,
                failure: outcome.failure.clone(),
            });
            outcomes.push((*pass, label, outcome));
        }
        let captures = recorder.finish()?;
        let client = capture::read(&captures.client)?;
        let wan = capture::read(&captures.wan)?;
        for (pass, label, outcome) in outcomes {
            let files = contents.of(workload, pass);
            let measured =
                recording::measured_files(&client, &wan, workload, &label, files, &outcome)?;
            results
                .samples
                .extend(measured.into_iter().map(|measured| FileSample {
                    pass,
                    workload: workload.name().to_owned(),
                    repeat,
                    measured,
                }));
        }
        Ok(())
    }
}

/// One workload's turn.
struct WorkloadTurn<'a> {
    name: &'a str,
    workload: WorkloadKind,
    repeat: u32,
}

/// Last JSON object in a log: the emulator prints its account when it stops.
pub(crate) fn last_json(log: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.rfind("\n{")
        .map(|index| index + 1)
        .or_else(|| text.starts_with('{').then_some(0))
        .and_then(|start| {
            serde_json::Deserializer::from_str(&text[start..])
                .into_iter()
                .next()?
                .ok()
        })
        .unwrap_or_default()
}

/// Copies captures, logs and results to where the user wants them.
fn keep(run: &LabRun, directory: &Path, results: Option<&CampaignResults>) -> Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("making {}", directory.display()))?;
    for name in ["captures", "logs"] {
        let target = directory.join(name);
        std::fs::create_dir_all(&target)?;
        let Ok(entries) = std::fs::read_dir(run.directory().join(name)) else {
            continue;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if let Some(file_name) = path.file_name().filter(|_| path.is_file()) {
                std::fs::copy(&path, target.join(file_name))
                    .with_context(|| format!("keeping {}", path.display()))?;
            }
        }
    }
    let Some(results) = results else {
        return Ok(());
    };
    results.write(&directory.join("results.json"))?;
    let mut hashes = "label,file,expected_blake3,found_blake3\n".to_owned();
    let mut samples = "label,pass,workload,file,bytes,elapsed_s,wan_bytes\n".to_owned();
    for test in &results.tests {
        for sample in &test.samples {
            let run = test.runs.iter().find(|run| {
                run.pass == sample.pass
                    && run.workload == sample.workload
                    && run.repeat == sample.repeat
            });
            let label = run.map_or("", |run| run.label.as_str());
            hashes += &format!(
                "{label},{},{},{}\n",
                sample.measured.file,
                sample.measured.expected_hash,
                sample.measured.found_hash.as_deref().unwrap_or_default()
            );
            samples += &format!(
                "{label},{},{},{},{},{:.6},{}\n",
                sample.pass.name(),
                sample.workload,
                sample.measured.file,
                sample.measured.bytes,
                sample.measured.elapsed_s,
                sample.measured.wan_bytes
            );
        }
    }
    // What scripts/recompute-rows.sh compares with what tshark finds in the captures.
    std::fs::write(directory.join("samples.csv"), samples)?;
    std::fs::write(directory.join("hashes.csv"), hashes)?;
    Ok(())
}
