//! Operation of a node beside traffic: access rights of its files, the effect of one damaged file,
//! leftovers of a killed node, and tools that root runs for a node of another user.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use crate::sites::{RATE, TestSites};

/// A user that is neither root nor anybody on a usual system.
const OTHER: u32 = 54_321;

fn owner(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().uid()
}

/// Tells whether this test may run the program as [`OTHER`]; if not, prints the reason on standard
/// error.
fn can_run_as_another() -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    let run = command.arg("--version").uid(OTHER).gid(OTHER).output();
    let is_run = run.is_ok_and(|output| output.status.success());
    if !is_run {
        let _ = io::Write::write_all(
            &mut io::stderr(),
            b"skipped a test with another user: it needs root, and a program that others may run\n",
        );
    }
    is_run
}

/// A core dump has none of a node's memory, and one damaged pin affects neither the node nor its
/// other peers.
#[test]
fn node_leaves_no_core_and_survives_damaged_pin() {
    let mut sites = TestSites::new(6, RATE);
    let process = format!("/proc/{}", sites.process("far"));
    let read = |name: &str| fs::read_to_string(format!("{process}/{name}")).unwrap();
    assert_eq!(read("coredump_filter").trim(), "00000000");
    let limits = read("limits");
    let limit = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let limit: Vec<_> = limit.unwrap().split_whitespace().skip(4).take(2).collect();
    assert_eq!(limit, ["0", "0"]);
    // The kernel gives what belongs to a process that may not be dumped to root.
    assert_eq!(owner(Path::new(&format!("{process}/environ"))), 0);
    let ended = sites.end_by("far", "-ABRT");
    assert_eq!(ended.signal(), Some(6));
    assert!(!ended.core_dumped());

    sites.configure("far", "[[peer]]\nname = \"other\"\n");
    fs::write(sites.state("far").join("peers/other.json"), "{").unwrap();
    sites.start("far");
    let status = sites.wait_for_status("far", |status| {
        let peers = status["peers"].as_array().unwrap();
        peers.len() == 1 && peers[0]["state"] == "up"
    });
    assert_eq!(status["damaged_pins"][0]["peer"], "other");
    let error = status["damaged_pins"][0]["error"].as_str().unwrap();
    assert!(error.contains("peers/other.json is damaged"), "{error}");
    assert!(sites.log("far").contains("peers/other.json is damaged"));
    let shown = sites.ask("far", &["node", "status"], "");
    assert!(shown.contains("damaged pin"), "{shown}");
    let (code, _) = sites.check("far");
    assert_eq!(code, Some(0));
    // What cannot be read any more at a reload revokes nobody.
    fs::write(sites.state("far").join("peers/near.json"), "{").unwrap();
    sites.ask("far", &["node", "reload"], "");
    let status = sites.status("far");
    assert_eq!(status["damaged_pins"].as_array().unwrap().len(), 2);
    assert_eq!(status["peers"][0]["state"], "up");
}

/// A state directory that others can write to, or own, is refused at the start and by the check before
/// it, with the command that cures it; so is an administration socket that is a file.
#[test]
fn foreign_state_directory_is_refused_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    fs::create_dir(&state).unwrap();
    let config = directory.path().join("node.toml");
    let text = format!(
        "[node]\nname = \"far\"\nstate_directory = {state:?}\n[intercept]\nmode = \"off\"\n\
         [wan]\nlisten = \"127.0.0.1:0\"\n[[peer]]\nname = \"near\"\n"
    );
    fs::write(&config, &text).unwrap();
    let refuses = |cure: &str| {
        let config = config.to_str().unwrap();
        for words in [
            ["node", "check", config].as_slice(),
            &["node", "run", "--config", config],
        ] {
            let mut command = Command::new("timeout");
            let output = command
                .args(["60", env!("CARGO_BIN_EXE_trunkline")])
                .args(words)
                .output()
                .unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
            assert!(error.contains(cure), "{words:?}: {error}");
        }
    };
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(&state, 0o775);
    refuses(&format!("chmod go-w {}", state.display()));
    mode(&state, 0o700);
    let peers = state.join("peers");
    fs::create_dir(&peers).unwrap();
    mode(&peers, 0o777);
    refuses(&format!("chmod go-w {}", peers.display()));
    mode(&peers, 0o700);
    if chown(&state, Some(OTHER), None).is_ok() {
        refuses(&format!("chown -R 0 {}", state.display()));
        chown(&state, Some(0), None).unwrap();
    }
    let socket = directory.path().join("precious");
    fs::write(&socket, "content").unwrap();
    let with_socket = text.replace(
        "[intercept]",
        &format!("admin_socket = {socket:?}\n[intercept]"),
    );
    fs::write(&config, with_socket).unwrap();
    refuses("not a socket");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "content");
}

/// As with the systemd unit: the nodes run as another user, and root pairs and operates them.
#[test]
fn root_operates_nodes_of_another_user() {
    if !can_run_as_another() {
        return;
    }
    // Root has paired them.
    let mut sites = TestSites::of_user(7, RATE, Some(OTHER));
    sites.wait_for_status("near", |status| status["peers"][0]["state"] == "up");
    for file in [
        "far/peers/near.json",
        "far/invitations",
        "near/identity.key",
        "near/peers",
        "near/peers/far.json",
    ] {
        assert_eq!(owner(&sites.path_of(file)), OTHER, "{file}");
    }
    assert_eq!(sites.check("near"), (Some(0), String::new()));
    // The near node reads the account file that root has given to it, and root's check agrees.
    let accounts = sites.state("near").join("accounts");
    fs::write(&accounts, "*\\backup:password:secret\n").unwrap();
    fs::set_permissions(&accounts, Permissions::from_mode(0o600)).unwrap();
    let policy = format!("[credentials]\naccounts = {accounts:?}\n[smb]\nmode = \"strict\"\n");
    sites.configure("near", &policy);
    let cure = format!("chown {OTHER} {}", accounts.display());
    for (code, error) in [sites.check("near"), sites.ends("near", &["node", "reload"])] {
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(&cure), "{error}");
    }
    chown(&accounts, Some(OTHER), None).unwrap();
    assert_eq!(sites.check("near"), (Some(0), String::new()));
    sites.ask("near", &["node", "reload"], "");

    // A removal is known when the node says so, and so is a new pairing.
    let (code, said) = sites.says("near", &["peer", "remove", "far"], "");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("The running node has applied this change."),
        "{said}"
    );
    sites.ask("far", &["peer", "remove", "near"], "");
    let reach = sites.reach();
    let invite = ["peer", "invite", "--name", "near", "--address", &reach];
    let token = sites.ask("far", &invite, "");
    // Under a name that the running node's configuration does not have.
    let (code, said) = sites.says("near", &["peer", "join", "--name", "hub"], &token);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("The running node has not applied this change"),
        "{said}"
    );
    assert!(said.contains("[[peer]] with the name `hub`"), "{said}");
    sites.ask("near", &["peer", "remove", "hub"], "");
    sites.ask("far", &["peer", "remove", "near"], "");
    let token = sites.ask("far", &invite, "");
    let (code, said) = sites.says("near", &["peer", "join", "--name", "far"], &token);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("The running node has applied this change."),
        "{said}"
    );
    sites.wait_for_status("near", |status| status["peers"][0]["state"] == "up");

    sites.stop("near");
    let (_, said) = sites.says("near", &["peer", "remove", "far"], "");
    assert!(said.contains("No node is running now"), "{said}");
}
