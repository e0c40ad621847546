//! The bans in a core's `clippy.toml` bite: a crate that does what no core may is refused, for
//! each thing it does.
//!
//! A ban on a misspelt path is silently no ban, so the list is tried and not only compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Code that no core may hold, and what the lint must name.
const FORBIDDEN: [(&str, &str); 10] = [
    (
        "let _ = std::time::Instant::now();",
        "std::time::Instant::now",
    ),
    (
        "let _ = std::time::SystemTime::now();",
        "std::time::SystemTime::now",
    ),
    ("std::thread::spawn(|| {});", "std::thread::spawn"),
    (
        "std::thread::sleep(std::time::Duration::ZERO);",
        "std::thread::sleep",
    ),
    ("let _ = std::env::var(\"HOME\");", "std::env::var"),
    ("let _ = std::fs::read(\"file\");", "std::fs::read"),
    (
        "let _ = std::net::UdpSocket::bind(\"[::]:0\");",
        "std::net::UdpSocket",
    ),
    (
        "let _ = std::net::TcpStream::connect(\"[::]:0\");",
        "std::net::TcpStream",
    ),
    (
        "let _ = std::process::Command::new(\"true\");",
        "std::process::Command",
    ),
    ("println!();", "std::println"),
];

#[test]
fn what_no_core_may_do_is_refused() {
    if !is_there("clippy") {
        eprintln!("no clippy in this toolchain: the bans are not tried");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bans");
    let source = folder.join("src");
    fs::create_dir_all(&source).expect("the target folder is writable");
    fs::copy(
        workspace().join("crates/vocab/clippy.toml"),
        folder.join("clippy.toml"),
    )
    .expect("vocab has the list");
    fs::write(
        folder.join("Cargo.toml"),
        "[workspace]\n[package]\nname = \"bans\"\nedition = \"2024\"\n",
    )
    .expect("the target folder is writable");
    let statements: String = FORBIDDEN
        .iter()
        .map(|(statement, _)| format!("    {statement}\n"))
        .collect();
    fs::write(
        source.join("lib.rs"),
        format!("pub fn forbidden() {{\n{statements}}}\n"),
    )
    .expect("the target folder is writable");

    let output = Command::new("cargo")
        .current_dir(&folder)
        .args(["clippy", "--offline", "--quiet", "--", "-D", "warnings"])
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output()
        .expect("cargo can be started");

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "nothing was refused");
    for (statement, named) in FORBIDDEN {
        assert!(said.contains(named), "{statement} is not refused:\n{said}");
    }
}

fn workspace() -> PathBuf {
    // As cargo names it now: another checkout that shares the target folder may have built this.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo starts tests");
    Path::new(&package).join("..")
}

fn is_there(subcommand: &str) -> bool {
    Command::new("cargo")
        .args([subcommand, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}
