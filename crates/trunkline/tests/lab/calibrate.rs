//! Tests of the certificate as a user makes it, and of the refusal of rates that no host holds.
//!
//! Only facts that a busy machine cannot change are asserted: a queue never takes less than its
//! size, and the certificate's figures follow from its raw samples.

use std::path::Path;
use std::process::{Command, Output};

use emulator::calibrate::{CalibrationCertificate, IpVersion, MeasuredQuantity};
use serde_json::Value;

use crate::setting::turn;

fn trunkline(state: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args(arguments)
        .env("XDG_STATE_HOME", state)
        .output()
        .expect("the program starts")
}

#[test]
fn certificate_follows_from_its_raw_samples() {
    let Some(_turn) = turn("certificate_follows_from_its_raw_samples", &[]) else {
        return;
    };
    for protocol in [IpVersion::V4, IpVersion::V6] {
        certificate_of_queues(protocol);
    }
}

fn certificate_of_queues(protocol: IpVersion) {
    let folder = tempfile::tempdir().expect("a directory for the certificate");
    let path = folder.path().join("certificate.json");
    let mut arguments = vec![
        "emulate",
        "calibrate",
        "--quick",
        "--only",
        "queue",
        "--seed",
        "7",
        "--json",
        "--output",
        path.to_str().expect("a path of plain letters"),
    ];
    if protocol == IpVersion::V6 {
        arguments.push("--ipv6");
    }
    let output = trunkline(folder.path(), &arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    // A busy machine may miss a bar (1), but it can measure (not 2).
    assert!(matches!(output.status.code(), Some(0 | 1)), "{errors}");
    assert!(errors.contains("seed 7;"), "{errors}");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let certificate = CalibrationCertificate::read(&path).expect("a certificate that reads back");
    assert_eq!(printed["cells"][0]["quantity"], "queue");
    assert_eq!((certificate.seed, certificate.protocol), (7, protocol));
    assert!(!certificate.cells.is_empty());
    for cell in &certificate.cells {
        assert_eq!(cell.quantity, MeasuredQuantity::Queue);
        let raw = cell.raw.as_ref().expect("raw samples are kept");
        let rows = std::fs::read_to_string(folder.path().join("certificate.raw").join(raw))
            .expect("the raw samples are where the certificate says")
            .lines()
            .count()
            - 1;
        let (passed, fitting) = (
            cell.figures["passed_packets"],
            cell.figures["fitting_packets"],
        );
        assert!((rows as f64 - passed).abs() < 0.5, "{rows} of {passed}");
        assert!(passed >= fitting, "{passed} of {fitting}");
        // The limit is in bytes from the IP header on, which over IPv6 is longer.
        let offered = &cell.emulator["forward"];
        let bytes = offered["offered_bytes"].as_u64();
        let length = if cell.unit == "bytes" { 750 } else { 1_500 };
        assert_eq!(bytes, Some(cell.samples * length), "{}", cell.emulator);
        assert!(
            cell.samples as f64 > passed,
            "all that was sent came through"
        );
    }
}

#[test]
fn unholdable_setting_is_refused_with_the_nearest() {
    let Some(_turn) = turn("unholdable_setting_is_refused_with_the_nearest", &[]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a directory for the probe's result");
    let refused = |settings: &[&str], nearest: &str| {
        let start = [
            "emulate",
            "run",
            "--device-a",
            "tlcal-a",
            "--device-b",
            "tlcal-b",
        ];
        let output = trunkline(folder.path(), &[&start[..], settings].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(nearest), "{errors}");
    };
    refused(&["--rate", "900Gbit"], "use --rate ");
    refused(&["--rate", "1Gbit", "--delay", "60s"], "use --delay ");
    assert!(
        folder
            .path()
            .join("trunkline/emulator-probe-tun.json")
            .exists(),
        "the probe is remembered"
    );
}
