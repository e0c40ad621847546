//! Tests that no end of the lab leaves anything behind.

use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use host::kernel::{self, ProcessSignal};
use host::run::LabRun;
use host::wait;
use lab::servers::ServerKind;

use crate::setting::{environment, turn};

const PATIENCE: Duration = Duration::from_secs(60);

/// A lab in a process of its own, with its directory.
struct LabProcess {
    child: Child,
    directory: PathBuf,
    /// Kept open, or the lab's next line would end it.
    _output: Lines<BufReader<ChildStdout>>,
}

impl LabProcess {
    fn up() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_trunkline"))
            .args(["lab", "up", "--without-nodes"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let output = child.stdout.take().expect("it was asked for");
        let mut lines = BufReader::new(output).lines();
        let first = lines.next().expect("it says something").expect("in text");
        let (_, directory) = first.rsplit_once(' ').expect("it names its directory");
        Self {
            child,
            directory: PathBuf::from(directory),
            _output: lines,
        }
    }

    fn namespaces(&self) -> Vec<String> {
        let id = self.directory.file_name().expect("it has a name");
        let prefix = format!("tl{}-", id.to_string_lossy());
        std::fs::read_dir("/run/netns")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(&prefix))
            .collect()
    }
}

#[test]
fn an_interrupted_lab_removes_everything() {
    let Some(_turn) = turn(
        "Ctrl-C",
        &[ServerKind::Http, ServerKind::Ftp, ServerKind::Smb],
    ) else {
        return;
    };
    let mut standing = LabProcess::up();
    assert_eq!(standing.namespaces().len(), 5);
    kernel::send_signal(standing.child.id(), ProcessSignal::Interrupt).expect("it runs");
    let status = standing.child.wait().expect("it ends");
    assert!(status.success());
    assert!(standing.namespaces().is_empty());
    assert!(!standing.directory.exists());
}

#[test]
fn next_start_removes_a_killed_labs_leftovers() {
    let Some(_turn) = turn(
        "kill -9",
        &[ServerKind::Http, ServerKind::Ftp, ServerKind::Smb],
    ) else {
        return;
    };
    let mut standing = LabProcess::up();
    kernel::send_signal(standing.child.id(), ProcessSignal::Kill).expect("it runs");
    standing.child.wait().expect("it ends");
    assert_eq!(standing.namespaces().len(), 5);
    assert!(standing.directory.exists());
    let next = LabRun::create(&environment()).expect("a run can be made");
    assert!(standing.namespaces().is_empty());
    assert!(!standing.directory.exists());
    drop(next);
}

#[test]
fn servers_die_with_the_lab_that_started_them() {
    let Some(_turn) = turn(
        "orphans",
        &[ServerKind::Http, ServerKind::Ftp, ServerKind::Smb],
    ) else {
        return;
    };
    let mut standing = LabProcess::up();
    let namespaces = standing.namespaces();
    kernel::send_signal(standing.child.id(), ProcessSignal::Kill).expect("it runs");
    standing.child.wait().expect("it ends");
    wait::until(PATIENCE, "all processes to end", || {
        let rest: usize = namespaces
            .iter()
            .map(|name| host::run::processes_in(name).len())
            .sum();
        Ok((rest == 0).then_some(()))
    })
    .expect("no server outlives the lab");
    drop(LabRun::create(&environment()).expect("a run can be made"));
}
