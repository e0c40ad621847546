//! The lab's mailbox tests itself: its server and both clients on loopback, and tshark beside them.

use std::path::PathBuf;
use std::process::Command;

use lab::mailbox::MailboxPrograms;

/// The Python that scripts/install.sh makes, if it is there.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("TRUNKLINE_MAILBOX_PYTHON").map(PathBuf::from);
    let cache = std::env::var_os("TRUNKLINE_CACHE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/trunkline")));
    let python = named.or_else(|| Some(cache?.join("mailbox/bin/python3")))?;
    python.exists().then_some(python)
}

#[test]
fn mailbox_and_its_clients_pass_their_tests() {
    let Some(python) = python() else {
        eprintln!("not run: no Python with impacket (scripts/install.sh test)");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let programs =
        MailboxPrograms::install(&python, directory.path()).expect("the programs are there");
    let output = Command::new(programs.python())
        .arg(programs.self_test())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("the Python starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    eprintln!("{said}");
    assert!(output.status.success(), "{said}{errors}");
    assert!(
        said.contains("every_action_under_every_protection: ok"),
        "{said}"
    );
}
