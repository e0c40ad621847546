//! Failures in the middle of a measurement: each is named, what was measured is kept, and the ports
//! stop sending.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use emulator::device::DeviceHandle;
use host::command;
use profiler::report;

use crate::stand::{DeviceStand, ip};

const FAST: &str = r#"
    ports = 2
    transit = [{ size = "64B", time = "50us" }]
    [output]
    queue = { packets = 1000 }
"#;

/// A minute of packets from port 0 to port 1, unless something ends it.
fn long_plan(packets: u64) -> String {
    format!(
        r#"
        name = "long"
        ports = 2
        loss_after = "300ms"
        [[experiment]]
        name = "only"
        purpose = "report"
        subjects = ["device"]
        traffic = [{{ from = [0], to = [1], packets = {packets}, sizes = [{{ size = "100B" }}],
            pattern = {{ kind = "constant", packets_per_second = 1000.0 }} }}]
        "#
    )
}

/// Waits until packets pass.
fn wait_for_traffic(device: &DeviceHandle) {
    let until = Instant::now() + Duration::from_secs(60);
    while device.report().unwrap().delivered_packets < 300 {
        assert!(Instant::now() < until, "no packet passes");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn dead_device_ends_the_measurement() {
    let Some(stand) = DeviceStand::new("dead_device_ends_the_measurement", 2) else {
        return;
    };
    let device = stand.start(FAST);
    let records = stand.run.directory().join("records");
    let result = thread::scope(|scope| {
        let measured = scope.spawn(|| stand.measure(&long_plan(60_000), Some(&records)).unwrap());
        wait_for_traffic(&device);
        device.stop().unwrap();
        measured.join().unwrap()
    });
    let failure = result.failure.as_deref().unwrap();
    assert!(failure.contains("nothing has arrived for 5 s"), "{failure}");
    let document = report::document(&result);
    let summary = result.runs[0].outcome.summary;
    assert!(summary.delivered >= 250, "{document:#}");
    // It has not gone on for the whole minute.
    assert!(summary.sent < 50_000, "{document:#}");
    assert_eq!(result.records.unwrap().rows, summary.sent);
}

#[test]
fn port_that_goes_down_is_named() {
    let Some(stand) = DeviceStand::new("port_that_goes_down_is_named", 2) else {
        return;
    };
    let device = stand.start(FAST);
    let result = thread::scope(|scope| {
        let measured = scope.spawn(|| stand.measure(&long_plan(60_000), None).unwrap());
        wait_for_traffic(&device);
        ip(&format!("-n {} link set port0 down", stand.ports));
        measured.join().unwrap()
    });
    let failure = result.failure.as_deref().unwrap();
    assert!(failure.contains("port 0"), "{failure}");
    let summary = result.runs[0].outcome.summary;
    assert!(summary.delivered >= 250 && summary.sent < 50_000);
}

/// A small file system in memory; dropping it unmounts it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(place: &Path) -> Self {
        std::fs::create_dir(place).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
        let place_word = place.display().to_string();
        command::run("mount", words.into_iter().chain([place_word.as_str()])).unwrap();
        Self(place.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = command::run("umount", [self.0.display().to_string()]);
    }
}

#[test]
fn full_disk_costs_records_and_no_packets() {
    let Some(stand) = DeviceStand::new("full_disk_costs_records_and_no_packets", 2) else {
        return;
    };
    let disk = SmallDisk::mount(&stand.run.directory().join("disk"));
    let _device = stand.start(FAST);
    let plan = long_plan(40_000).replace("1000.0", "20000.0");
    let result = stand.measure(&plan, Some(&disk.0.join("records"))).unwrap();
    let document = report::document(&result);
    assert_eq!(result.failure, None);
    assert_eq!(result.runs[0].outcome.summary.sent, 40_000, "{document:#}");
    let records = result.records.as_ref().unwrap();
    assert!(records.missing_rows > 0, "{document:#}");
    assert_eq!(records.rows + records.missing_rows, 40_000, "{document:#}");
    let findings = document["findings"].to_string();
    assert!(findings.contains("free space on the disk"), "{findings}");
}

#[test]
fn second_run_on_a_port_is_refused() {
    let Some(stand) = DeviceStand::new("second_run_on_a_port_is_refused", 2) else {
        return;
    };
    let device = stand.start(FAST);
    let plan = long_plan(3_000);
    let first = thread::scope(|scope| {
        let measured = scope.spawn(|| stand.measure(&plan, None).unwrap());
        wait_for_traffic(&device);
        let error = stand.measure(&plan, None).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("port 0"), "{error}");
        assert!(error.contains("a profiler measures through it"), "{error}");
        measured.join().unwrap()
    });
    // The first is not disturbed.
    assert_eq!(first.failure, None);
    assert_eq!(first.runs[0].outcome.summary.delivered, 3_000);
}
