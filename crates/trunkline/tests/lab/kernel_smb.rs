//! Tests of the Linux kernel's SMB client (cifs.ko) in a virtual machine, through a pair of nodes and
//! directly. Their packages are downloaded once; without QEMU, Debian or network they are skipped.

use std::path::PathBuf;

use bench::smb::kernel::trial::{self, MountTrial, TrialOutcome};
use bench::smb::kernel::{KernelDialect, KernelProtection};
use host::command;
use host::progress::SilentProgress;
use lab::machine::{self, MachineImage};
use lab::servers::ServerKind;

use crate::setting::{environment, shared_turn};

/// The project's cache directory, as `scripts/install.sh` and the binary name it.
fn cache() -> PathBuf {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    path("TRUNKLINE_CACHE")
        .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("trunkline")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/trunkline")))
        .expect("HOME is set")
}

/// Tells whether a virtual machine can run here, and says why not.
fn has_machine() -> bool {
    if command::find(machine::PROGRAM).is_none() {
        eprintln!("not run: QEMU is missing (apt-get install qemu-system-x86)");
        return false;
    }
    if let Err(error) = MachineImage::prepare(&cache(), &SilentProgress) {
        eprintln!("not run: {error:#}");
        return false;
    }
    true
}

/// Everything that works directly works through nodes, and nothing that fsync confirmed is lost when a
/// node is killed.
fn pass_through(mounts: &[(KernelDialect, KernelProtection)]) {
    let Some(_turn) = shared_turn("the kernel's SMB client", &[ServerKind::Smb]) else {
        return;
    };
    if !has_machine() {
        return;
    }
    let trials = trial::run(&environment(), &cache(), mounts).expect("the lab stands");
    assert_eq!(trials.len(), mounts.len());
    for trial in &trials {
        check(trial);
    }
}

fn check(trial: &MountTrial) {
    assert_eq!(trial.accelerate.did, "smb", "{:?}", trial.accelerate);
    for outcomes in [&trial.direct, &trial.through, &trial.killed] {
        for TrialOutcome {
            mount,
            action,
            fault,
        } in outcomes
        {
            eprintln!(
                "{mount}, {action}: {}",
                fault.as_deref().unwrap_or("as written")
            );
        }
    }
    let worse: Vec<&TrialOutcome> = trial
        .direct
        .iter()
        .zip(&trial.through)
        .filter(|(direct, through)| direct.fault.is_none() && through.fault.is_some())
        .map(|(_, through)| through)
        .collect();
    assert!(worse.is_empty(), "these work directly alone: {worse:#?}");
    let works = trial.direct.iter().filter(|each| each.fault.is_none());
    assert!(
        works.count() > 4,
        "little works directly: {:#?}",
        trial.direct
    );
    let lost: Vec<&TrialOutcome> = trial
        .killed
        .iter()
        .filter(|each| each.fault.is_some())
        .collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
#[ignore = "takes some minutes"]
fn kernel_client_works_by_smb311() {
    pass_through(&[(KernelDialect::Smb311, KernelProtection::Off)]);
}

#[test]
#[ignore = "takes some minutes"]
fn kernel_client_works_signed_and_encrypted() {
    pass_through(&[
        (KernelDialect::Smb311, KernelProtection::Signed),
        (KernelDialect::Smb311, KernelProtection::Encrypted),
    ]);
}

#[test]
#[ignore = "takes ten minutes"]
fn kernel_client_works_by_older_dialects() {
    pass_through(&[
        (KernelDialect::Smb30, KernelProtection::Off),
        (KernelDialect::Smb21, KernelProtection::Off),
        (KernelDialect::Smb1, KernelProtection::Off),
    ]);
}

/// A mount that is older than the node comes to use it, and loses nothing that fsync confirmed: over a path of 50 ms
/// each way without loss and with it, by SMB 3.1.1 and SMB 1.
#[test]
#[ignore = "takes some minutes"]
fn surviving_mount_is_reset_once_and_loses_nothing() {
    let Some(_turn) = shared_turn("a surviving mount", &[ServerKind::Smb]) else {
        return;
    };
    if !has_machine() {
        return;
    }
    let loss: &[&str] = &["--loss", "1%"];
    for (dialect, further) in [
        (KernelDialect::Smb311, &[][..]),
        (KernelDialect::Smb311, loss),
        (KernelDialect::Smb1, loss),
    ] {
        let mount = (dialect, KernelProtection::Off);
        let trial = trial::surviving_mount(&environment(), &cache(), mount, further)
            .expect("the mount comes to use the node");
        eprintln!("{} {further:?}: {trial:?}", dialect.name());
        assert!(
            trial.rounds > 0,
            "the mount's connection was never beside the node"
        );
        assert_eq!(trial.fault, None);
        assert!(
            trial.accelerate.iter().all(|flow| flow.did == "smb"),
            "{:?}",
            trial.accelerate
        );
    }
}
