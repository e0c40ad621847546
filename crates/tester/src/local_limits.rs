//! Limits of this host, reported before a test so that they are not mistaken for the circuit's.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use socket2::SockRef;
use vocab::ByteCount;

use host::kernel;

/// Sets the congestion control of a socket; an empty name leaves it unchanged.
///
/// # Errors
/// Fails when it is not available; the message names the available ones.
pub(super) fn set_congestion_control(
    socket: &(impl std::os::fd::AsFd + AsRawFd),
    name: &str,
) -> Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    let set = SockRef::from(socket).set_tcp_congestion(name.as_bytes());
    set.with_context(|| {
        let allowed = read("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        format!("this host does not permit the congestion control `{name}`; it permits: {allowed}")
    })?;
    // The kernel may take a name and use another.
    let used = kernel::congestion_control(socket)?;
    anyhow::ensure!(
        used == name,
        "the kernel uses {used}, although {name} was requested"
    );
    Ok(())
}

/// Largest window that this host offers: the application limit or the kernel's automatic limit,
/// whichever is greater.
#[must_use]
pub(super) fn window_max() -> Option<ByteCount> {
    let asked: u64 = read("/proc/sys/net/core/rmem_max").parse().ok()?;
    let given: u64 = last("/proc/sys/net/ipv4/tcp_rmem")?;
    let most = match kernel::effective_user() {
        // Root may ask for more than the limit.
        0 => u64::from(i32::MAX as u32) / 2,
        // What is asked for is doubled.
        _ => (2 * asked).max(given),
    };
    // A window takes up to four times its bytes of buffer.
    Some(ByteCount::new(most / 4))
}

/// Remarks about this host that a person should read before the test.
pub(super) fn remarks() -> Vec<String> {
    let mut remarks = Vec::new();
    if read("/proc/sys/net/ipv4/tcp_window_scaling") == "0" {
        remarks.push(
            "net.ipv4.tcp_window_scaling is off, so windows are at most 64 kB; set it to 1"
                .to_owned(),
        );
    }
    if read("/proc/sys/net/ipv4/tcp_sack") == "0" {
        remarks.push(
            "net.ipv4.tcp_sack is off, so TCP repairs losses more slowly; set it to 1".to_owned(),
        );
    }
    if let Some(most) = window_max() {
        let wanted = ByteCount::mebibytes(4);
        if most < wanted {
            remarks.push(format!(
                "this host limits windows to {most}, because net.core.rmem_max is {} and the last value of \
                 net.ipv4.tcp_rmem is {}; raise both values",
                read("/proc/sys/net/core/rmem_max"),
                last("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default(),
            ));
        }
    }
    remarks
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn last(path: &str) -> Option<u64> {
    read(path).split_whitespace().last()?.parse().ok()
}

/// Processor load of this host over a time span.
pub(super) struct ProcessorUsage {
    began: Option<(u64, u64)>,
}

impl ProcessorUsage {
    /// Starts measuring now.
    pub(super) fn begin() -> Self {
        Self {
            began: processor_time(),
        }
    }

    /// The share of their time that processors were busy, in parts of a thousand; zero where the system
    /// does not say.
    pub(super) fn permille(&self) -> u16 {
        let (Some(before), Some(after)) = (self.began, processor_time()) else {
            return 0;
        };
        let busy = after.0.saturating_sub(before.0);
        let all = after.1.saturating_sub(before.1).max(1);
        u16::try_from(busy * 1_000 / all).unwrap_or(1_000)
    }
}

/// Busy, and all of it, in ticks.
fn processor_time() -> Option<(u64, u64)> {
    let text = read("/proc/stat");
    let ticks: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let all: u64 = ticks.iter().take(8).sum();
    // The fourth is idle, the fifth waits for a disk.
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all.saturating_sub(idle), all))
}
