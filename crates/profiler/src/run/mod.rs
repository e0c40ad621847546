//! One run: two threads send, receive and record the traffic of a plan's run.
//!
//! ```text
//!                    ┌──────────── traffic machine (one lock) ───────────┐
//!   sender thread ───┤ due packets                  stamps, arrivals     ├─── ring thread
//!     builds, sends  └───────────────────────────────────────────────────┘    reads all rings,
//!          │                                                       ▲          answers ARP,
//!          └─► ports ─► device or cable ─► ports ─► rings ─────────┘          takes records out
//! ```
//! The sender holds the lock while it takes out a batch, the ring thread while it enters one; neither
//! calls the kernel meanwhile. A packet's time of sending is the kernel's stamp from the ring of sent
//! frames. Where that stamp is lost, the time at which the sender took the packet out stays, and the
//! packet is counted.

mod arrivals;
mod sending;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use host::packets::packet_system::FrameSender;
use profile::{
    MeasurementSubject, OWN_LOSS_MAX, RunPlan, TrafficMachine, TrafficPattern, TrafficPlan,
    TrafficSummary, emulated_endpoints,
};
use serde::Serialize;

use crate::clock::RunClock;
use crate::figures::DelaySamples;
use crate::port::{MeasurementPort, PortRings, resolve_next_hop};
use crate::probe::MacAddress;
use crate::records::RecordWriter;
use arrivals::RingReader;

pub use arrivals::{ArrivalCounts, IcmpCount};

/// Time without an arrival, while packets are sent, after which the device is taken for dead.
const SILENCE: Duration = Duration::from_secs(5);
/// Packets that have to be sent in that time, so that a slow pattern is no silence.
const SILENCE_PACKETS: u64 = 100;
/// Arrivals beyond what was sent that show a loop; a device that duplicates doubles at most.
const LOOP_ARRIVALS_MIN: u64 = 10_000;
const LOOP_FACTOR: u64 = 4;
/// Time between two looks at clocks, silence and signals.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// State that both threads of a run use.
#[derive(Debug)]
struct RunShared {
    machine: Mutex<TrafficMachine>,
    clock: RunClock,
    /// Tells the sender to stop.
    stop: AtomicBool,
    /// The sender has sent its last packet.
    sender_ended: AtomicBool,
    /// The sender has ended because a port does not send any more.
    sender_failed: AtomicBool,
    /// Packets that the sender has taken out.
    made: AtomicU64,
    /// Packets that the kernel did not take.
    refused: AtomicU64,
    /// Largest time that a packet was sent after it was due, ns.
    latest_ns: AtomicU64,
}

impl RunShared {
    /// Locks the machine, also behind a panic: the run then ends with an error anyway.
    fn machine(&self) -> MutexGuard<'_, TrafficMachine> {
        self.machine
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Reason why a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum RunEnd {
    /// The plan's traffic was sent and its time to arrive is over.
    Complete,
    /// The user stopped it.
    Interrupted,
    /// Nothing arrived for a long time although packets were sent.
    DeviceSilent,
    /// Many more packets arrived than were sent.
    Loop,
    /// The sender or a ring failed.
    PortFailed {
        /// Description of the failure.
        error: String,
    },
}

impl RunEnd {
    /// Name in records.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            RunEnd::Complete => "complete",
            RunEnd::Interrupted => "interrupted",
            RunEnd::DeviceSilent => "device_silent",
            RunEnd::Loop => "loop",
            RunEnd::PortFailed { .. } => "port_failed",
        }
    }
}

/// Counts of what our own ports and the device did beside forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortCounts {
    /// Packets that the kernel did not take for sending.
    pub refused: u64,
    /// Received frames that found no room in a ring.
    pub ring_drops: u64,
    /// Stamps of sending that found no room in a ring.
    pub lost_stamps: u64,
    /// Frames that the interfaces' drivers dropped.
    pub driver_drops: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The run.
    pub plan: RunPlan,
    /// Reason of its end.
    pub end: RunEnd,
    /// Fates of its packets.
    pub summary: TrafficSummary,
    /// Losses of our own.
    pub ports: PortCounts,
    /// Other arrivals.
    pub arrivals: ArrivalCounts,
    /// Delays of the packets that were forwarded.
    pub delays: DelaySamples,
    /// Packets per second that the kernel handed to devices, over the time of sending.
    pub sent_pps: f64,
    /// Packets per second that arrived, over the time of arriving.
    pub received_pps: f64,
    /// Step of the system's clock during the run.
    pub clock_step: Option<Duration>,
    /// Largest time that a packet was sent after it was due.
    pub latest_sent: Duration,
    /// Largest time from user space's stamp of a packet to the kernel's: the error that stamps in
    /// user space would have.
    pub stamp_lag_max: Duration,
}

impl RunOutcome {
    /// Packets that our own ports may have lost or not recorded. The counters name different packets: a
    /// frame that the driver drops comes to no ring, and a packet that the kernel refuses to neither.
    #[must_use]
    pub fn own_losses(&self) -> u64 {
        let ports = &self.ports;
        let refused = ports.refused.max(self.summary.lost_at_port);
        ports
            .ring_drops
            .saturating_add(ports.driver_drops)
            .saturating_add(refused)
            .saturating_add(ports.lost_stamps)
    }

    /// Share of the packets that our own ports lost or have not recorded. On a cable, every loss is
    /// our own.
    #[must_use]
    pub fn own_loss(&self) -> f64 {
        let mut lost = self.own_losses();
        if self.plan.subject == MeasurementSubject::Cable {
            let missing = self.summary.lost + self.summary.lost_at_port + self.ports.lost_stamps;
            lost = lost.max(missing);
        }
        match self.summary.sent {
            0 => 0.0,
            sent => lost as f64 / sent as f64,
        }
    }

    /// Tells whether the run says nothing about the device: own losses above the limit, a step of the
    /// clock by which its packets are stamped, or an end before its time, at which packets were on
    /// their way.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.own_loss() > OWN_LOSS_MAX || self.clock_step.is_some() || self.end != RunEnd::Complete
    }
}

/// Observer of a run.
pub(crate) trait RunObserver {
    /// Takes the number of packets sent so far, about ten times a second. Returns `false` to stop the
    /// run.
    fn sent(&self, packets: u64) -> bool;
}

/// Sends and records the traffic of a run through `ports`, which are numbered from 0 without gaps.
///
/// # Errors
/// When a port of the plan is missing, or no device answers.
pub(crate) fn execute(
    ports: &mut [MeasurementPort],
    plan: &RunPlan,
    records: Option<&mut RecordWriter>,
    observer: &dyn RunObserver,
) -> Result<RunOutcome> {
    let next_hops = find_next_hops(ports, plan)?;
    for port in &mut *ports {
        port.discard_waiting();
        // The counts start at zero after each reading of the socket; the ring keeps their sum.
        port.split().1.received.dropped();
    }
    let before = OwnDrops::read(ports)?;
    let clock = RunClock::start();
    let shared = RunShared {
        machine: Mutex::new(TrafficMachine::new(
            clock.now() + sending::PREPARATION,
            plan,
        )),
        clock,
        stop: AtomicBool::new(false),
        sender_ended: AtomicBool::new(false),
        sender_failed: AtomicBool::new(false),
        made: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        latest_ns: AtomicU64::new(0),
    };
    let is_closed_loop = plan
        .traffic
        .iter()
        .any(|traffic| matches!(traffic.pattern, TrafficPattern::Tcp { .. }));
    let macs: Vec<MacAddress> = ports.iter().map(MeasurementPort::mac).collect();
    let (senders, rings): (Vec<&FrameSender>, Vec<&mut PortRings>) =
        ports.iter_mut().map(MeasurementPort::split).unzip();
    let mut reader = RingReader::new(&shared, plan, &macs, &senders, rings, records);
    let (end, clock_step) = thread::scope(|scope| {
        let sending = sending::SenderTask {
            shared: &shared,
            senders: &senders,
            macs: &macs,
            next_hops: &next_hops,
            run: plan.number as u16,
            family: plan.family,
            is_closed_loop,
        };
        let sender = thread::Builder::new()
            .name("profile sender".to_owned())
            .spawn_scoped(scope, move || sending.run());
        let sender = match sender {
            Ok(sender) => sender,
            Err(error) => {
                return (
                    RunEnd::PortFailed {
                        error: error.to_string(),
                    },
                    None,
                );
            }
        };
        let (end, step) = {
            let _stop = StopAtEnd(&shared.stop);
            read_until_end(&shared, &mut reader, observer, is_closed_loop)
        };
        let sent = sender.join();
        match (end, sent) {
            (RunEnd::Complete, Ok(Err(error))) => (
                RunEnd::PortFailed {
                    error: format!("{error:#}"),
                },
                step,
            ),
            (RunEnd::Complete, Err(_)) => (
                RunEnd::PortFailed {
                    error: "the sender panicked".to_owned(),
                },
                step,
            ),
            (end, _) => (end, step),
        }
    });
    let finished = reader.finish();
    let after = OwnDrops::read(ports)?;
    let summary = shared.machine().summary();
    let counts = PortCounts {
        refused: shared.refused.load(Ordering::Relaxed),
        ring_drops: after.received - before.received,
        lost_stamps: after.sent - before.sent,
        driver_drops: after.driver.saturating_sub(before.driver),
    };
    Ok(RunOutcome {
        plan: plan.clone(),
        end,
        summary,
        ports: counts,
        arrivals: finished.arrivals,
        delays: finished.delays,
        sent_pps: finished.sent_pps,
        received_pps: finished.received_pps,
        clock_step,
        stamp_lag_max: finished.stamp_lag_max,
        latest_sent: Duration::from_nanos(shared.latest_ns.load(Ordering::Relaxed)),
    })
}

/// Stops the sender when the reader ends, also by a panic: the scope waits for the sender.
#[derive(Debug)]
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads the rings until the run is over; returns its end and a step of the clock.
fn read_until_end(
    shared: &RunShared,
    reader: &mut RingReader<'_>,
    observer: &dyn RunObserver,
    is_closed_loop: bool,
) -> (RunEnd, Option<Duration>) {
    /// Pause while no frame waits. It is far below the time that a ring holds.
    const PAUSE: Duration = Duration::from_micros(200);
    /// Pause for traffic that waits for its acknowledgements.
    const SHORT_PAUSE: Duration = Duration::from_micros(20);
    host::packets::system::sharpen_timers();
    let _ = host::packets::system::raise_priority();
    let pause = if is_closed_loop { SHORT_PAUSE } else { PAUSE };
    let mut check_at = Instant::now() + CHECK_EVERY;
    let mut silence = SilenceWatch::default();
    let mut step = None;
    loop {
        let found = match reader.read() {
            Ok(found) => found,
            Err(error) => {
                reader.stop_traffic();
                let error = format!("{error:#}");
                return (RunEnd::PortFailed { error }, step);
            }
        };
        if shared.sender_ended.load(Ordering::Acquire) {
            // A sender that has failed leaves packets unsent, so the traffic has no end of its own.
            if shared.sender_failed.load(Ordering::Acquire) {
                reader.stop_traffic();
            }
            if reader.is_finished() {
                return (RunEnd::Complete, step);
            }
        }
        if Instant::now() >= check_at {
            check_at = Instant::now() + CHECK_EVERY;
            step = step.or_else(|| shared.clock.step());
            let made = shared.made.load(Ordering::Relaxed);
            let arrived = reader.arrived();
            let end = if !observer.sent(made) {
                Some(RunEnd::Interrupted)
            } else if shows_loop(made, arrived) {
                Some(RunEnd::Loop)
            } else if silence.is_over(made, arrived) {
                Some(RunEnd::DeviceSilent)
            } else {
                None
            };
            if let Some(end) = end {
                reader.stop_traffic();
                return (end, step);
            }
        }
        if !found {
            thread::sleep(pause);
        }
    }
}

/// Tells whether so many packets arrived that a device sends them round in a loop.
fn shows_loop(made: u64, arrived: u64) -> bool {
    arrived > LOOP_ARRIVALS_MIN && arrived > LOOP_FACTOR * made
}

/// Watches for a time in which packets are sent and none arrives.
#[derive(Debug)]
struct SilenceWatch {
    since: Instant,
    made: u64,
    arrived: u64,
}

impl Default for SilenceWatch {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            made: 0,
            arrived: 0,
        }
    }
}

impl SilenceWatch {
    fn is_over(&mut self, made: u64, arrived: u64) -> bool {
        if arrived != self.arrived {
            *self = Self {
                since: Instant::now(),
                made,
                arrived,
            };
        }
        self.since.elapsed() >= SILENCE && made - self.made >= SILENCE_PACKETS
    }
}

/// Drops of our own at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct OwnDrops {
    received: u64,
    sent: u64,
    driver: u64,
}

impl OwnDrops {
    fn read(ports: &mut [MeasurementPort]) -> Result<Self> {
        let mut drops = Self::default();
        for port in ports {
            drops.driver += port.driver_drops()?;
            let (_, rings) = port.split();
            drops.received += rings.received.dropped();
            drops.sent += rings.sent.dropped();
        }
        Ok(drops)
    }
}

/// Ethernet addresses to which the ports send, by input and output port.
type NextHops = Vec<Vec<Option<MacAddress>>>;

fn find_next_hops(ports: &mut [MeasurementPort], plan: &RunPlan) -> Result<NextHops> {
    let count = ports.len();
    let mut hops: NextHops = vec![vec![None; count]; count];
    for traffic in &plan.traffic {
        let is_tcp = matches!(traffic.pattern, TrafficPattern::Tcp { .. });
        for (from, to) in port_pairs(traffic) {
            // Acknowledgements take the way back.
            let ways = [(from, to), (to, from)];
            for (from, to) in ways.into_iter().take(if is_tcp { 2 } else { 1 }) {
                let (input, output) = (usize::from(from), usize::from(to));
                if input >= count || output >= count {
                    bail!(
                        "the plan uses port {}, and only {count} ports are given; add --port for each port of the device",
                        input.max(output)
                    );
                }
                if hops[input][output].is_some() {
                    continue;
                }
                let hop = match plan.subject {
                    MeasurementSubject::Cable => ports[output].mac(),
                    MeasurementSubject::Device => {
                        let there = emulated_endpoints(plan.family, 0, from, to).destination;
                        resolve_next_hop(ports, from, (plan.family, there.ip()))?
                    }
                };
                hops[input][output] = Some(hop);
            }
        }
    }
    Ok(hops)
}

/// Inputs and outputs of the packets of a pattern, each pair at least once: packet n enters the nth
/// input and leaves the nth output, each list again from its beginning.
fn port_pairs(traffic: &TrafficPlan) -> impl Iterator<Item = (u16, u16)> {
    let period = traffic.from.len() * traffic.to.len();
    let inputs = traffic.from.iter().cycle();
    let outputs = traffic.to.iter().cycle();
    inputs
        .zip(outputs)
        .map(|(from, to)| (*from, *to))
        .take(period)
}

#[cfg(test)]
mod tests {
    use profile::MeasurementPlan;

    use super::*;

    /// A run of 100,000 packets that all arrived.
    fn outcome() -> RunOutcome {
        let plan = MeasurementPlan::from_toml(
            r#"
            name = "test"
            ports = 2
            [[experiment]]
            name = "only"
            purpose = "report"
            subjects = ["device"]
            traffic = [{ from = [0], to = [1], packets = 100000, sizes = [{ size = "100B" }],
                pattern = { kind = "constant", packets_per_second = 1000.0 } }]
            "#,
        )
        .unwrap();
        RunOutcome {
            plan: plan.runs().remove(0),
            end: RunEnd::Complete,
            summary: TrafficSummary {
                sent: 100_000,
                delivered: 100_000,
                ..TrafficSummary::default()
            },
            ports: PortCounts::default(),
            arrivals: ArrivalCounts::default(),
            delays: DelaySamples::default(),
            sent_pps: 0.0,
            received_pps: 0.0,
            clock_step: None,
            latest_sent: Duration::ZERO,
            stamp_lag_max: Duration::ZERO,
        }
    }

    #[test]
    fn port_that_drops_voids_the_run() {
        let with = |ports| RunOutcome { ports, ..outcome() };
        let drops = |count| PortCounts {
            ring_drops: count,
            ..PortCounts::default()
        };
        assert!(!with(drops(10)).is_void());
        assert!(with(drops(11)).is_void());
        let of_driver = PortCounts {
            driver_drops: 11,
            ..PortCounts::default()
        };
        assert!(with(of_driver).is_void());
        let stamps = PortCounts {
            lost_stamps: 11,
            ..PortCounts::default()
        };
        assert!(with(stamps).is_void());
        // A device may lose what it likes; a cable loses nothing.
        let mut lossy = outcome();
        lossy.summary.lost = 5_000;
        assert!(!lossy.is_void());
        lossy.plan.subject = MeasurementSubject::Cable;
        assert!(lossy.is_void());
    }

    #[test]
    fn step_of_the_clock_voids_the_run() {
        let stepped = RunOutcome {
            clock_step: Some(Duration::from_millis(2)),
            ..outcome()
        };
        assert!(stepped.is_void());
        assert!(!outcome().is_void());
    }

    #[test]
    fn loop_is_more_than_a_device_that_duplicates() {
        assert!(!shows_loop(100, 10_000));
        assert!(!shows_loop(50_000, 200_000));
        assert!(shows_loop(50_000, 200_001));
        assert!(shows_loop(100, 10_001));
    }

    #[test]
    fn run_that_ended_early_is_void() {
        assert!(!outcome().is_void());
        let error = String::new();
        for end in [
            RunEnd::Interrupted,
            RunEnd::DeviceSilent,
            RunEnd::Loop,
            RunEnd::PortFailed { error },
        ] {
            let early = RunOutcome { end, ..outcome() };
            assert!(early.is_void(), "{:?}", early.end);
        }
    }

    #[test]
    fn sender_stops_when_the_reader_panics() {
        let stop = AtomicBool::new(false);
        let reader = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _stop = StopAtEnd(&stop);
            panic!("a bug of the reader");
        }));
        assert!(reader.is_err() && stop.load(Ordering::Relaxed));
    }

    #[test]
    fn losses_of_different_counters_add_up() {
        let ports = PortCounts {
            refused: 4,
            ring_drops: 4,
            lost_stamps: 0,
            driver_drops: 4,
        };
        let mut lossy = RunOutcome { ports, ..outcome() };
        // The records name the refused packets as lost at the port.
        lossy.summary.lost_at_port = 4;
        assert_eq!(lossy.own_losses(), 12);
        assert!(lossy.is_void());
    }
}
