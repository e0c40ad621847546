//! A router of the kernel with a token bucket filter or a limit of nft.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use anyhow::Result;
use host::command;
use host::progress::{ProgressReporter, SilentProgress};
use host::run::LabRun;
use profile::{MeasuredRun, MeasurementPlan};

use crate::device_stand::DeviceStand;
use crate::measurement::plan_time;

/// Ports of the router.
const PORTS: u16 = 3;
/// Rate of overload that a small machine sends: more than the fastest router forwards at any size.
const PACKETS_PER_SECOND_MAX: f64 = 150_000.0;

/// Limit of the router's output to port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterLimit {
    /// Queueing discipline tbf: `rate` in Mbit/s, `burst` and `limit` in bytes.
    Tbf {
        /// Rate, Mbit/s.
        rate: u32,
        /// Bucket, bytes.
        burst: u32,
        /// Queue, bytes.
        limit: u32,
    },
    /// Rule `limit rate over` of nft in the forward chain, in kbytes per second.
    Nft {
        /// Rate in units of 1024 bytes per second.
        rate: u32,
    },
}

/// Routers that are measured.
pub const KERNEL_ROUTERS: [RouterLimit; 6] = [
    RouterLimit::Tbf {
        rate: 5,
        burst: 3_100,
        limit: 30_000,
    },
    RouterLimit::Tbf {
        rate: 20,
        burst: 5_000,
        limit: 60_000,
    },
    RouterLimit::Tbf {
        rate: 50,
        burst: 16_000,
        limit: 100_000,
    },
    RouterLimit::Tbf {
        rate: 100,
        burst: 32_000,
        limit: 300_000,
    },
    RouterLimit::Nft { rate: 500 },
    RouterLimit::Nft { rate: 2_000 },
];

impl RouterLimit {
    /// Name of the device.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            RouterLimit::Tbf { rate, burst, limit } => {
                format!("kernel router, tbf {rate} Mbit/s, burst {burst} B, limit {limit} B")
            }
            RouterLimit::Nft { rate } => format!("kernel router, nft limit {rate} kbytes/s"),
        }
    }

    /// Rate in bits per second.
    fn bits_per_second(self) -> f64 {
        match self {
            RouterLimit::Tbf { rate, .. } => f64::from(rate) * 1e6,
            RouterLimit::Nft { rate } => f64::from(rate) * 8_192.0,
        }
    }

    /// Time between the packets of a held-out burst. Behind a policer nothing waits, so packets that come
    /// faster than an emulator forwards would measure the emulator.
    const fn burst_gap(self) -> &'static str {
        match self {
            RouterLimit::Tbf { .. } => "0s",
            RouterLimit::Nft { .. } => "20us",
        }
    }

    /// Bytes that bucket and queue hold.
    fn held_bytes(self) -> f64 {
        match self {
            RouterLimit::Tbf { burst, limit, .. } => f64::from(burst + limit),
            // The kernel's bucket holds a second of the rate, and its burst.
            RouterLimit::Nft { rate } => f64::from(rate) * 1_024.0 * 1.1,
        }
    }
}

/// Makes the router, and measures it.
pub(super) fn measure(
    lab: &LabRun,
    limit: RouterLimit,
    progress: &dyn ProgressReporter,
) -> Result<(MeasurementPlan, Vec<MeasuredRun>)> {
    let stand = DeviceStand::create(lab, "router", PORTS)?;
    stand.route()?;
    match limit {
        RouterLimit::Tbf { rate, burst, limit } => {
            stand.inside(&format!(
                "tc qdisc add dev in0 root tbf rate {rate}mbit burst {burst} limit {limit}"
            ))?;
        }
        RouterLimit::Nft { rate } => {
            let rules = lab.directory().join("router.nft");
            fs::write(
                &rules,
                format!(
                    "table ip router {{\nchain forward {{\ntype filter hook forward priority 0;\n\
                     oifname \"in0\" limit rate over {rate} kbytes/second drop\n}}\n}}\n"
                ),
            )?;
            let rules = rules.display().to_string();
            command::run("ip", ["netns", "exec", &stand.device, "nft", "-f", &rules])?;
        }
    }
    let plan = plan(limit);
    let (runs, result) = stand.measure(&plan, &SilentProgress)?;
    if let Some(failure) = &result.failure {
        progress.note(&format!("{}: {failure}", limit.name()));
    }
    Ok((plan, runs))
}

/// Time that the measurement takes, and its held-out and lone packets through the emulated model.
pub(super) fn measuring_time(limit: RouterLimit) -> Duration {
    plan_time(&plan(limit)) * 3 / 2
}

/// Lone packets over cable and router, overload by size, and held-out bursts and TCP.
fn plan(limit: RouterLimit) -> MeasurementPlan {
    let rate = limit.bits_per_second();
    // Five times what bucket and queue hold.
    let overload = 5.0 * limit.held_bytes();
    let drain = 1.2 * 8.0 * limit.held_bytes() / rate + 0.3;
    let mut text = format!(
        r#"
        name = "kernel router"
        ports = {PORTS}
        loss_after = "{}ms"

        [[experiment]]
        name = "transit"
        purpose = "transit"
        subjects = ["cable", "device"]
        for_each_size = ["64B", "300B", "700B", "1100B", "1500B"]
        traffic = [{{ from = [1], to = [0], packets = 100,
            pattern = {{ kind = "poisson", packets_per_second = 100.0 }} }}]
        "#,
        (drain * 1e3).ceil()
    );
    for size in [100_u32, 300, 700, 1_100, 1_500] {
        let packets = (overload / f64::from(size)).ceil().max(200.0);
        let per_second = (3.0 * rate / 8.0 / f64::from(size)).min(PACKETS_PER_SECOND_MAX);
        write!(
            text,
            r#"
            [[experiment]]
            name = "overload {size}"
            purpose = "overload"
            for_each_size = ["{size}B"]
            pause = "1500ms"
            traffic = [{{ from = [1, 2], to = [0], packets = {packets},
                pattern = {{ kind = "constant", packets_per_second = {per_second:.1} }} }}]
            "#
        )
        .expect("a string takes any text");
    }
    // Bursts at 90 % of the rate: each fills the queue and lets it drain.
    let burst = (1.3 * limit.held_bytes().min(400_000.0) / 597.0)
        .ceil()
        .max(20.0);
    let gap = limit.burst_gap();
    let period = 1e6 * burst * 597.0 * 8.0 / (0.9 * rate);
    write!(
        text,
        r#"
        [[experiment]]
        name = "mixed bursts"
        purpose = "held-out"
        traffic = [{{ from = [1, 2], to = [0], duration = "5s",
            sizes = [{{ size = "64B", share = 5 }}, {{ size = "576B", share = 2 }}, {{ size = "1500B", share = 3 }}],
            pattern = {{ kind = "bursts", packets_per_burst = {burst}, gap = "{gap}",
                period = "{period:.0}us" }} }}]

        [[experiment]]
        name = "closed-loop TCP"
        purpose = "held-out"
        traffic = [{{ from = [1, 2], to = [0], flows = 10, duration = "5s",
            pattern = {{ kind = "tcp", segment = "1448B" }} }}]
        "#
    )
    .expect("a string takes any text");
    MeasurementPlan::from_toml(&text).expect("the plan is well formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_router_has_a_plan() {
        for limit in KERNEL_ROUTERS {
            let plan = plan(limit);
            assert_eq!(plan.check(), Ok(()), "{}", limit.name());
        }
    }
}
