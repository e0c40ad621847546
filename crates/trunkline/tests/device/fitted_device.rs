//! Devices in real time are measured, fitted and compared with the truth.

use std::time::Duration;

use host::progress::SilentProgress;
use profiler::foreign_devices::{self, RouterLimit};
use profiler::{CalibratedRuns, ModelFamily, RecordDirectory, known_devices};
use vocab::{Bitrate, DeviceModel, DeviceQueueLimit};

use crate::stand::{DeviceStand, lab};

/// A device so slow that the noise of a busy machine is small beside it.
const SLOW: &str = r#"
    name = "slow"
    ports = 4
    transit = [{ size = "100B", time = "9ms" }, { size = "1400B", time = "22ms" }]
    [servers]
    count = 2
    service = [{ size = "100B", time = "3ms" }]
    [output]
    rate = "1Mbit"
    overhead = "24B"
    queue = { packets = 20 }
"#;

const PLAN: &str = r#"
    name = "slow"
    ports = 4
    loss_after = "600ms"

    [[experiment]]
    name = "transit"
    purpose = "transit"
    subjects = ["cable", "device"]
    for_each_size = ["100B", "500B", "900B", "1400B"]
    traffic = [{ from = [1], to = [0], packets = 40,
        pattern = { kind = "constant", packets_per_second = 25.0 } }]

    [[experiment]]
    name = "contention"
    purpose = "contention"
    for_each_size = ["100B", "500B"]
    traffic = [{ from = [0, 1, 2, 3], to = [1, 2, 3, 0], packets = 80,
        pattern = { kind = "bursts", packets_per_burst = 4, period = "50ms" } }]

    [[experiment]]
    name = "overload"
    purpose = "overload"
    for_each_size = ["500B", "900B", "1400B"]
    traffic = [{ from = [1, 2, 3], to = [0], packets = 400,
        pattern = { kind = "constant", packets_per_second = 600.0 } }]
"#;

#[test]
#[ignore = "needs a quiet machine"]
fn slow_device_is_found_again() {
    let Some(stand) = DeviceStand::new("slow_device_is_found_again", 4) else {
        return;
    };
    let device = stand.start(SLOW);
    let records = stand.run.directory().join("records");
    let result = stand.measure(PLAN, Some(&records)).unwrap();
    assert_eq!(result.failure, None);
    let counters = device.stop().unwrap();
    let records = RecordDirectory::open(&records).unwrap();
    let runs = CalibratedRuns::read(&records).unwrap();
    let fit = runs.fit("fitted", ModelFamily::Full).unwrap();
    let about = format!("{fit:#?}\n{counters:#?}");
    let model = &fit.model;
    let rate = model.output.rate.map(Bitrate::bits_per_second).unwrap() as f64;
    assert!((rate / 1e6 - 1.0).abs() <= 0.01, "{about}");
    let DeviceQueueLimit::Packets(limit) = model.output.queue else {
        panic!("{about}");
    };
    assert!(limit.abs_diff(20) <= 1, "{about}");
    let servers = model.servers.as_ref().unwrap();
    assert_eq!(servers.count, 2, "{about}");
    let truth: DeviceModel = toml(SLOW);
    for size in [100, 500, 900, 1_400] {
        let (true_time, time) = (truth.transit.at(size), model.transit.at(size));
        let tolerance = (true_time / 20).max(runs.resolution() + Duration::from_micros(2));
        assert!(time.abs_diff(true_time) <= tolerance, "{size}: {about}");
    }
}

fn toml(text: &str) -> DeviceModel {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.toml");
    std::fs::write(&path, text).unwrap();
    emulator::device::read_model(&path).unwrap()
}

#[test]
#[ignore = "long: two minutes, and a quiet machine"]
fn drawn_devices_are_found_in_real_time() {
    let Some(_stand) = DeviceStand::new("drawn_devices_are_found_in_real_time", 0) else {
        return;
    };
    let lab = lab(env!("CARGO_BIN_EXE_trunkline"));
    let figures =
        known_devices::in_real_time(&lab, (2_000..2_003, None), &SilentProgress, &mut |_| ())
            .unwrap();
    assert_eq!(figures.draws, 3);
    assert_eq!(figures.unfitted, [""; 0]);
    assert!(figures.rate_error_p95_percent <= 1.0, "{figures:?}");
}

#[test]
#[ignore = "long: two minutes, and a quiet machine"]
fn fitted_model_reproduces_its_router() {
    let Some(_stand) = DeviceStand::new("fitted_model_reproduces_its_router", 0) else {
        return;
    };
    let lab = lab(env!("CARGO_BIN_EXE_trunkline"));
    let limit = RouterLimit::Tbf {
        rate: 20,
        burst: 5_000,
        limit: 60_000,
    };
    let result = foreign_devices::kernel_router(&lab, limit, &SilentProgress).unwrap();
    assert_eq!(result.reproductions.len(), 2);
    for reproduction in &result.reproductions {
        assert!(reproduction.is_near(), "{result:#?}");
    }
}
