//! The machine that a measurement was made on, and whether it kept up.

use std::collections::BTreeMap;
use std::io::Read;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::command;

/// Description of the machine for readers of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// The kernel's release.
    pub kernel: String,
    /// The system's name and version.
    pub system: String,
    /// Processors.
    pub processors: usize,
    /// The processors' model.
    pub processor_model: String,
    /// Trunkline's own version.
    pub trunkline: String,
    /// The versions of servers, clients and tools, by name.
    pub programs: BTreeMap<String, String>,
    /// Source of the lab's privileges.
    pub privileges: String,
    /// The congestion control of the client's and the server's connections, as read back.
    pub hosts_congestion_control: String,
    /// Congestion control of the nodes' WAN connection, as seen; none when no node ran.
    pub nodes_congestion_control: Option<String>,
    /// Setting of the offloads.
    pub offloads: String,
}

impl MachineInfo {
    /// Reads what the system says of itself.
    #[must_use]
    pub fn describe(programs: &[&str]) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let system = read("/etc/os-release")
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="))
            .map(|name| name.trim_matches('"').to_owned())
            .unwrap_or_default();
        let processor_model = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .and_then(|rest| rest.split_once(':'))
            .map(|(_, name)| name.trim().to_owned())
            .unwrap_or_default();
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            processor_model,
            trunkline: env!("CARGO_PKG_VERSION").to_owned(),
            programs: programs
                .iter()
                .map(|name| ((*name).to_owned(), version(name)))
                .collect(),
            privileges: String::new(),
            hosts_congestion_control: String::new(),
            nodes_congestion_control: None,
            offloads: "segmentation and receive offloads (tso, gso, gro) off on every device"
                .to_owned(),
        }
    }
}

/// A program's version, in its own words.
fn version(name: &str) -> String {
    let option = match name {
        "nginx" => "-v",
        "vsftpd" => "-v",
        "ip" => "-V",
        _ => "--version",
    };
    let Ok((mut reader, writer)) = std::io::pipe() else {
        return "unknown".to_owned();
    };
    let output = command::new(name)
        .arg(option)
        // vsftpd writes its version to the descriptor of its standard input.
        .stdin(writer)
        .output();
    let Ok(output) = output else {
        return "not found".to_owned();
    };
    let mut text = [output.stdout, output.stderr].concat();
    // The command is gone, and with it the last writer: this ends.
    let _ = reader.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let words = text
        .split_whitespace()
        .find(|word| word.contains('.') && word.contains(|letter: char| letter.is_ascii_digit()));
    words
        .unwrap_or("unknown")
        .trim_start_matches("iproute2-")
        .trim_start_matches(|letter: char| !letter.is_ascii_digit())
        .trim_end_matches(',')
        .to_owned()
}

/// The time all processors have spent so far, in ticks: busy, taken by the host below this one,
/// and in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    busy: u64,
    stolen: u64,
    total: u64,
}

impl ProcessorTime {
    /// Reads the counters.
    ///
    /// # Errors
    /// When /proc/stat is not there.
    pub fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        // proc_stat(5): user nice system idle iowait irq softirq steal guest guest_nice; the two
        // guest columns are counted in user and nice already.
        let fields: Vec<u64> = text
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))
            .unwrap_or_default()
            .split_whitespace()
            .take(8)
            .map(|field| field.parse().unwrap_or_default())
            .collect();
        let total: u64 = fields.iter().sum();
        let idle: u64 = fields.iter().skip(3).take(2).sum();
        Self {
            busy: total - idle,
            stolen: fields.get(7).copied().unwrap_or_default(),
            total,
        }
    }

    /// The share of time that was not idle since `earlier`, 0 to 1.
    #[must_use]
    pub fn busy_since(self, earlier: Self) -> f64 {
        self.share_since(earlier, |time| time.busy)
    }

    /// The share of time that the host below this one took since `earlier`, 0 to 1.
    #[must_use]
    pub fn stolen_since(self, earlier: Self) -> f64 {
        self.share_since(earlier, |time| time.stolen)
    }

    fn share_since(self, earlier: Self, part: impl Fn(Self) -> u64) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        let part = part(self).saturating_sub(part(earlier));
        if total == 0 {
            0.0
        } else {
            part as f64 / total as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_time_is_not_busy() {
        let before = ProcessorTime::parse("cpu  10 0 10 60 20 0 0 0 5 0\ncpu0 1 1 1 1\n");
        let after = ProcessorTime::parse("cpu  20 0 20 120 20 0 0 20 5 0\n");
        assert!((after.busy_since(before) - 0.4).abs() < 1e-9);
        assert!(before.busy_since(before).abs() < 1e-9);
    }

    #[test]
    fn stolen_time_is_told_from_busy_time() {
        let before = ProcessorTime::parse("cpu  10 0 10 60 20 0 0 0 5 0\n");
        let after = ProcessorTime::parse("cpu  20 0 20 120 20 0 0 20 5 0\n");
        assert!((after.stolen_since(before) - 0.2).abs() < 1e-9);
        assert!((after.busy_since(before) - 0.4).abs() < 1e-9);
    }
}
