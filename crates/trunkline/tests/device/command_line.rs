//! The command `trunkline emulate run --device`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::stand::DeviceStand;
use serde_json::Value;

const MODEL: &str = r#"
    name = "small router"
    ports = 2
    transit = [{ size = "64B", time = "30us" }]
    [output]
    queue = { packets = 50 }
"#;

fn trunkline(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(words.split(' '));
    command
}

fn failure(words: &str) -> (i32, String) {
    let output = trunkline(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), text)
}

#[test]
fn device_runs_for_its_time_and_shows_its_status() {
    let Some(stand) = DeviceStand::new("device_runs_for_its_time_and_shows_its_status", 2) else {
        return;
    };
    let model = stand.write_model(MODEL);
    let (model, bridge) = (model.display(), stand.bridge());
    let socket = stand.run.directory().join("device.sock");
    let socket = socket.display();
    let mut device = trunkline(&format!(
        "emulate run --device {model} --bridge {bridge} --control {socket} --for 3s --json"
    ))
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(device.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let status = trunkline(&format!("emulate status --control {socket} --json"))
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["model"]["name"], "small router", "{status:#}");
    assert_eq!(status["device"]["ports"][1]["interface"], "in1");
    let text = trunkline(&format!("emulate status --control {socket}"))
        .output()
        .unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("device small router"), "{text}");
    let (code, error) = failure(&format!("emulate set --control {socket} --delay 5ms"));
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("do not change while it runs"), "{error}");
    let counters: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(counters["held_packets"], 0, "{counters:#}");
    assert!(device.wait().unwrap().success());
}

#[test]
fn unusable_device_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("model.toml");
    std::fs::write(&model, MODEL).unwrap();
    let model = model.display();
    for (words, reason) in [
        (
            format!("emulate run --device {model} --bridge a,b,c"),
            "2 ports and 3 interfaces",
        ),
        (
            format!("emulate run --device {model} --bridge a,b --delay 5ms"),
            "takes everything from its model",
        ),
        (
            format!("emulate run --device {model}.no --bridge a,b"),
            "cannot read the device model",
        ),
        (format!("emulate run --device {model}"), "--bridge"),
    ] {
        let (code, error) = failure(&words);
        assert_eq!(code, 2, "{words}: {error}");
        assert!(error.contains(reason), "{words}: {error}");
    }
}
