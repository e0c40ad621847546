//! Trial of the Linux kernel's client: what works directly must work in the same way through nodes.
//!
//! ```text
//!  for each mount:   directly ── all actions ──┐
//!                    through  ── all actions ──┴─► outcomes side by side
//!                    through  ── records with fsync, while each node is killed with -9
//! ```
//! The client's view and the server's files are compared with what was written; the random
//! operations are compared with the same on bytes in memory, in the machine.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::super::fixed_link;
use super::cells::{KernelDialect, KernelProtection, mount_options};
use super::exchange::{ACTION_DIRECTORY, ShareMount};
use super::{AccelerationMode, KernelBench};
use crate::reasons::AccelerationReason;
use host::progress::SilentProgress;
use host::{ProgramEnvironment, rootless, wait};
use lab::machine::MachineImage;
use lab::topology::LabSite;

/// Random operations of one trial.
const MODEL_STEPS: usize = 120;
/// Records that are written while a node is killed, and their size.
const RECORDS: usize = 40;
/// See above.
const RECORD_BYTES: usize = 5_000;
/// The node is killed when this many records are at the server.
const RECORDS_BEFORE_KILL: usize = 10;
/// Time limit for one record: a lost oplock makes an open wait for 35 s.
const RECORD_LIMIT: Duration = Duration::from_secs(240);

/// Duration of the outage of the link.
const OUTAGE: Duration = Duration::from_secs(5);

/// Most rounds of records until the node must have a surviving mount's connection, and the pause behind each: twice
/// what the node waits for.
const SURVIVING_ROUNDS: usize = 10;
/// See above.
const SURVIVING_PAUSE: Duration = Duration::from_secs(10);

/// Actions of a trial.
const ACTIONS: [&str; 7] = [
    "tree up",
    "tree down",
    "walk",
    "model",
    "locks of two mounts",
    "outage",
    "remove",
];

/// Outcome of one action.
#[derive(Clone, Debug)]
pub struct TrialOutcome {
    /// The mount and the mode: `3.1.1/on/application`.
    pub mount: String,
    /// The action.
    pub action: String,
    /// Fault, as a sentence.
    pub fault: Option<String>,
}

/// Outcomes of one mount.
#[derive(Clone, Debug)]
pub struct MountTrial {
    /// Outcomes without nodes.
    pub direct: Vec<TrialOutcome>,
    /// The same actions through nodes.
    pub through: Vec<TrialOutcome>,
    /// Outcomes while a node was killed.
    pub killed: Vec<TrialOutcome>,
    /// Accelerate stage of the near node for the flow of the actions.
    pub accelerate: AccelerationReason,
}

/// Carries out the trial for each mount.
///
/// # Errors
/// Fails when the lab or the machine does not work.
pub fn run(
    environment: &ProgramEnvironment,
    cache: &Path,
    mounts: &[(KernelDialect, KernelProtection)],
) -> Result<Vec<MountTrial>> {
    rootless::obtain(environment)?;
    let image = MachineImage::prepare(cache, &SilentProgress)?;
    let mut bench = KernelBench::create(environment, &image, None)?;
    let mut trials = Vec::new();
    let mut directs = Vec::new();
    for mount in mounts {
        directs.push(actions(&mut bench, *mount, AccelerationMode::Baseline)?);
    }
    for (mount, direct) in mounts.iter().zip(directs) {
        let through = actions(&mut bench, *mount, AccelerationMode::Application)?;
        let accelerate = bench.lane.why()?;
        let mut killed = Vec::new();
        for site in [LabSite::Near, LabSite::Far] {
            let records = records(&mut bench, *mount, site);
            // An action that failed may have left its mount.
            killed.push(records.with_context(|| faults_of(&through))?);
        }
        trials.push(MountTrial {
            direct,
            through,
            killed,
            accelerate,
        });
    }
    Ok(trials)
}

/// Outcome of a mount that is older than the near node, with `[intercept.reset_surviving]`.
#[derive(Clone, Debug)]
pub struct SurvivingTrial {
    /// Rounds of records, each with a pause behind it, until the node had the mount's connection.
    pub rounds: usize,
    /// Fault, as a sentence.
    pub fault: Option<String>,
    /// Accelerate stage of the near node for each of the mount's new connections.
    pub accelerate: Vec<AccelerationReason>,
}

/// Mounts the share while the near node does not run, and starts the node, which resets the mount's connection once it
/// is idle. All records that fsync confirmed must be at the server. `further` are arguments of `trunkline emulate run`,
/// for example for loss.
///
/// # Errors
/// Fails when the lab or the machine does not work, or the node does not get the connection.
pub fn surviving_mount(
    environment: &ProgramEnvironment,
    cache: &Path,
    (dialect, protection): (KernelDialect, KernelProtection),
    further: &[&str],
) -> Result<SurvivingTrial> {
    rootless::obtain(environment)?;
    let image = MachineImage::prepare(cache, &SilentProgress)?;
    let mut bench = KernelBench::create(environment, &image, None)?;
    fixed_link::set_link_with(&mut bench.lane, further)?;
    bench.lane.reset_surviving();
    bench.set_mode(AccelerationMode::Application)?;
    bench.lane.stop_node(LabSite::Near)?;
    bench.files.empty_action_directory()?;
    let mut mount = ShareMount::mount(&mut bench.machine, &mount_options(dialect, protection))?;
    let mut digests = Vec::new();
    let mut write = |mount: &mut ShareMount<'_>, round: usize| -> Result<()> {
        let name = format!("{ACTION_DIRECTORY}/round-{round}.bin");
        let fields = json!({
            "seed": 5 + round, "records": 3, "record_bytes": RECORD_BYTES,
            "limit_s": RECORD_LIMIT.as_secs(),
        });
        digests.push(mount.request("records", &name, fields)?);
        Ok(())
    };
    write(&mut mount, 0)?;
    bench.lane.start_node(LabSite::Near)?;
    let mut rounds = 0;
    // The mount's packets show its connection to the node, and the pause behind them lets the node reset it.
    while bench.lane.flow_count()? == 0 {
        rounds += 1;
        ensure!(
            rounds <= SURVIVING_ROUNDS,
            "the connection still bypasses the node"
        );
        write(&mut mount, rounds)?;
        std::thread::sleep(SURVIVING_PAUSE);
    }
    write(&mut mount, rounds + 1)?;
    mount.unmount()?;
    let mut fault = None;
    for outcome in &digests {
        if !bench.files.has_digests(ACTION_DIRECTORY, outcome)? {
            fault = Some("a record that fsync confirmed is not at the server".to_owned());
        }
    }
    Ok(SurvivingTrial {
        rounds,
        fault,
        accelerate: bench.lane.all_whys()?,
    })
}

/// Describes the actions that failed, for the error of a later one.
fn faults_of(outcomes: &[TrialOutcome]) -> String {
    let failed = outcomes.iter().filter_map(|outcome| {
        let fault = outcome.fault.as_ref()?;
        Some(format!("{}, {}: {fault}", outcome.mount, outcome.action))
    });
    let failed: Vec<String> = failed.collect();
    match failed.is_empty() {
        true => "no action failed before".to_owned(),
        false => format!("these actions failed before: {}", failed.join("; ")),
    }
}

/// Carries out all actions on a new mount.
fn actions(
    bench: &mut KernelBench,
    (dialect, protection): (KernelDialect, KernelProtection),
    mode: AccelerationMode,
) -> Result<Vec<TrialOutcome>> {
    bench.set_mode(mode)?;
    let options = mount_options(dialect, protection);
    let name = format!(
        "{}/{}/{}",
        dialect.name(),
        protection.signing(),
        mode.name()
    );
    bench.files.empty_action_directory()?;
    ShareMount::mount_second(&mut bench.machine, &options)?;
    let mut outcomes = Vec::new();
    for action in ACTIONS {
        let fault = act(bench, &options, action).err();
        outcomes.push(TrialOutcome {
            mount: name.clone(),
            action: action.to_owned(),
            fault: fault.map(|error| format!("{error:#}")),
        });
    }
    ShareMount::unmount_second(&mut bench.machine)?;
    bench.lane.check()?;
    Ok(outcomes)
}

/// Carries out one action on a mount of its own, and compares.
fn act(bench: &mut KernelBench, options: &str, action: &str) -> Result<()> {
    let directory = |name: &str| format!("{ACTION_DIRECTORY}/{name}");
    if action == "remove" {
        let mount = ShareMount::mount(&mut bench.machine, options)?;
        mount.remove(&directory("tree"))?;
        ensure!(
            !bench.files.exists(&directory("tree")),
            "the tree is still at the server"
        );
        return Ok(());
    }
    let mut mount = ShareMount::mount(&mut bench.machine, options)?;
    let (name, outcome) = match action {
        "tree up" => {
            let fields = json!({ "seed": 1, "branches": 3, "files": 6 });
            let name = directory("tree");
            let outcome = mount.request("make-tree", &name, fields)?;
            (name, outcome)
        }
        "tree down" => {
            let name = directory("tree");
            let outcome = mount.request("read-tree", &name, json!({}))?;
            (name, outcome)
        }
        "walk" => {
            let name = directory("tree");
            let outcome = mount.request("walk", &name, json!({}))?;
            mount.unmount()?;
            ensure!(
                bench.files.has_sizes(&name, &outcome)?,
                "the client's names and sizes are not the server's"
            );
            return Ok(());
        }
        "model" => {
            let name = directory("model");
            mount.make_directory(&name)?;
            let fields = json!({ "seed": 2, "steps": MODEL_STEPS });
            let outcome = mount.request("model", &name, fields)?;
            (name, outcome)
        }
        "locks of two mounts" => {
            let name = directory("locked.bin");
            mount.locks(&name)?;
            return mount.unmount();
        }
        _ => {
            let fields = json!({
                "seed": 3, "records": RECORDS / 2, "record_bytes": RECORD_BYTES,
                "limit_s": RECORD_LIMIT.as_secs(),
            });
            let name = directory("outage.bin");
            let file = bench.files.path(&name);
            let emulator = &bench.lane;
            let outcome = with_disturbance(
                || mount.request("records", &name, fields),
                |may_go_on| {
                    wait_for_length(&file, RECORDS_BEFORE_KILL / 2, may_go_on)?;
                    emulator.interrupt_link(OUTAGE)
                },
            )?;
            (ACTION_DIRECTORY.to_owned(), outcome)
        }
    };
    mount.unmount()?;
    ensure!(
        bench.files.has_digests(&name, &outcome)?,
        "the client's content is not the server's"
    );
    Ok(())
}

/// Writes records while the node of a site is killed, and waits until the node is back.
fn records(
    bench: &mut KernelBench,
    (dialect, protection): (KernelDialect, KernelProtection),
    site: LabSite,
) -> Result<TrialOutcome> {
    let options = mount_options(dialect, protection);
    bench.files.empty_action_directory()?;
    let name = format!("{ACTION_DIRECTORY}/killed-{}.bin", site.node());
    let file = bench.files.path(&name);
    let fields = json!({
        "seed": 4, "records": RECORDS, "record_bytes": RECORD_BYTES,
        "limit_s": RECORD_LIMIT.as_secs(),
    });
    let mut mount = ShareMount::mount(&mut bench.machine, &options)?;
    let lane = &mut bench.lane;
    let outcome = with_disturbance(
        || mount.request("records", &name, fields),
        |may_go_on| {
            wait_for_length(&file, RECORDS_BEFORE_KILL, may_go_on)?;
            lane.kill_node(site)
        },
    );
    let fault = match outcome {
        Ok(outcome) => {
            mount.unmount()?;
            let is_there = bench.files.has_digests(ACTION_DIRECTORY, &outcome)?;
            (!is_there).then(|| "a record that fsync confirmed is not at the server".to_owned())
        }
        Err(error) => Some(format!("{error:#}")),
    };
    bench.lane.wait_for_nodes(site)?;
    Ok(TrialOutcome {
        mount: format!("{}/{}", dialect.name(), protection.signing()),
        action: format!("kill -9 of the {} node", site.node()),
        fault,
    })
}

/// Runs `work`, and `disturb` beside it. `disturb` gets a condition that ends with the work.
fn with_disturbance<T: Send>(
    work: impl FnOnce() -> Result<T> + Send,
    disturb: impl FnOnce(&dyn Fn() -> bool) -> Result<()>,
) -> Result<T> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let outcome = work();
            is_over.store(true, Ordering::SeqCst);
            outcome
        });
        let disturbed = disturb(&|| !is_over.load(Ordering::SeqCst));
        let outcome = worker.join();
        let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        disturbed.context("disturbing the client")?;
        Ok(outcome)
    })
}

/// Waits until a file at the server has so many records.
fn wait_for_length(file: &Path, records: usize, may_go_on: &dyn Fn() -> bool) -> Result<()> {
    wait::until(RECORD_LIMIT, "records at the server", || {
        ensure!(may_go_on(), "the client ended before it was disturbed");
        let length = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        Ok((length >= (records * RECORD_BYTES) as u64).then_some(()))
    })
}
