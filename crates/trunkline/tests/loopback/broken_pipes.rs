//! Tests of commands whose output was closed, as behind `| head`: they end quietly, with their
//! usual exit code.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};

/// Answers every question at this socket as a node with 2,000 flows would: more than a pipe holds.
fn answer_as_a_node(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            let question: Value = serde_json::from_str(&question).unwrap();
            let flow = json!({ "flow": 1, "state": "open", "client": "a", "server": "b" });
            let answer = match question["ask"].as_str().unwrap() {
                "flows" => json!({ "flows": vec![flow; 2_000] }),
                "why" => json!({ "flow": flow, "stages": [] }),
                _ => json!({}),
            };
            writeln!(stream, "{answer}").unwrap();
        }
    });
}

#[test]
fn no_command_fails_when_its_output_closes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (socket, config, data) = (path("node.sock"), path("node.toml"), path("data"));
    answer_as_a_node(Path::new(&socket));
    let state = path("state");
    std::fs::create_dir(&state).unwrap();
    let text = format!(
        "[node]\nname = \"far\"\nstate_directory = {state:?}\n[wan]\nlisten = \"127.0.0.1:0\"\n\
         [[peer]]\nname = \"near\"\n"
    );
    std::fs::write(&config, text).unwrap();
    std::fs::write(&data, vec![b'x'; 100_000]).unwrap();
    let commands: &[&[&str]] = &[
        &["--help"],
        &["completions", "bash"],
        &["emulate", "presets"],
        &["estimate", &data],
        &["estimate", "--json", &data],
        &["node", "check", &config],
        &["node", "status", "--socket", &socket],
        &["node", "flows", "--socket", &socket],
        &["node", "flows", "--json", "--socket", &socket],
        &["node", "why", "1", "--socket", &socket],
        &["node", "reload", "--json", "--socket", &socket],
        &["node", "purge", "--json", "--socket", &socket],
        &["peer", "list", "--config", &config],
    ];
    for words in commands {
        let run = |stdout: Stdio| {
            Command::new(env!("CARGO_BIN_EXE_trunkline"))
                .args(*words)
                .stdin(Stdio::null())
                .stdout(stdout)
                .stderr(Stdio::piped())
                .output()
                .unwrap()
        };
        let read = run(Stdio::null());
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let unread = run(writer.into());
        let said = String::from_utf8_lossy(&unread.stderr);
        assert!(!said.contains("panicked"), "{words:?}: {said}");
        assert_eq!(
            unread.status.code(),
            read.status.code(),
            "{words:?}: {said}"
        );
    }
}
