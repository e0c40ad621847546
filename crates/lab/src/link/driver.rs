//! The link's thread: reads, models, writes, waits.
//!
//! ```text
//!   ┌► deliver what is due, at most a batch each way
//!   │  wait for a packet, a command, or the next due moment (not at all if one is due)
//!   └─ read what has come, at most a batch from each device
//! ```
//!
//! Batches keep each side from starving the other: under load a packet waits for at most one
//! batch of reads and one of writes before it is looked at.

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use emulate::{Direction, Link, LinkConfig};
use vocab::Time;

use super::device::{Device, Received};
use super::report::{DirectionReport, Lateness, LinkReport};
use super::system::{self, Waker};

/// Packets read from one device, or written to one, before the other side has its turn: some
/// 0.1 ms of system calls.
const BATCH_PACKETS: usize = 64;

/// The longest single wait while a packet is under way. The kernel rounds a wait up by a
/// thousandth of it, so that one wait of 250 ms would end 250 µs late; waits of this length
/// end within 5 µs.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// What the handle asks of the thread.
pub(super) enum Command {
    Configure(Box<LinkConfig>),
    Report(mpsc::Sender<LinkReport>),
    Stop,
}

/// All that the thread owns.
pub(super) struct Driver {
    link: Link,
    forward: Relay,
    back: Relay,
    commands: mpsc::Receiver<Command>,
    waker: Waker,
    device_a: Box<dyn Device>,
    device_b: Box<dyn Device>,
    start: Instant,
}

/// What one direction counts beside the model.
struct Relay {
    lateness: Lateness,
    failed_writes: u64,
}

enum Flow {
    Continue,
    Stop,
}

impl Driver {
    pub(super) fn new(
        device_a: Box<dyn Device>,
        device_b: Box<dyn Device>,
        config: LinkConfig,
        commands: mpsc::Receiver<Command>,
        waker: Waker,
    ) -> Self {
        Self {
            link: Link::new(config),
            forward: Relay::new(),
            back: Relay::new(),
            commands,
            waker,
            device_a,
            device_b,
            start: Instant::now(),
        }
    }

    /// Relays until it is told to stop or a device is gone.
    pub(super) fn run(mut self) -> Result<LinkReport> {
        system::sharpen_timers();
        if let Err(error) = system::raise_priority() {
            tracing::info!(%error, "link runs at ordinary priority; packets are later beside other work");
        }
        tracing::debug!(
            a = self.device_a.name(),
            b = self.device_b.name(),
            "link relays"
        );
        let mut received = Vec::with_capacity(BATCH_PACKETS);
        loop {
            let start = self.start;
            let now = move || Time::from_epoch(start.elapsed());
            self.forward
                .deliver(&mut self.link.forward, self.device_b.as_mut(), now);
            self.back
                .deliver(&mut self.link.back, self.device_a.as_mut(), now);

            let span = self
                .link
                .poll_timeout()
                .map(|due| due.since(now()).min(WAIT_MAX));
            let files = [
                self.device_a.file(),
                self.device_b.file(),
                self.waker.as_fd(),
            ];
            let [from_a, from_b, commanded] =
                system::wait_readable(files, span).context("cannot wait for packets")?;
            if from_a {
                take_in(
                    &mut self.link.forward,
                    self.device_a.as_mut(),
                    &mut received,
                    now,
                )?;
            }
            if from_b {
                take_in(
                    &mut self.link.back,
                    self.device_b.as_mut(),
                    &mut received,
                    now,
                )?;
            }
            if commanded && matches!(self.obey(now()), Flow::Stop) {
                return Ok(self.report());
            }
        }
    }

    fn obey(&mut self, now: Time) -> Flow {
        self.waker.clear();
        loop {
            match self.commands.try_recv() {
                Ok(Command::Configure(config)) => self.link.set_config(now, *config),
                // Whoever asked may have given up waiting.
                Ok(Command::Report(sender)) => drop(sender.send(self.report())),
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return Flow::Stop,
                Err(mpsc::TryRecvError::Empty) => return Flow::Continue,
            }
        }
    }

    fn report(&mut self) -> LinkReport {
        let direction = |direction: &Direction, relay: &Relay, from: &mut dyn Device| {
            DirectionReport::new(
                &direction.counters(),
                &relay.lateness,
                from.unread_packets(),
                relay.failed_writes,
            )
        };
        LinkReport {
            forward: direction(&self.link.forward, &self.forward, self.device_a.as_mut()),
            back: direction(&self.link.back, &self.back, self.device_b.as_mut()),
        }
    }
}

impl Relay {
    fn new() -> Self {
        Self {
            lateness: Lateness::new(),
            failed_writes: 0,
        }
    }

    /// Writes what has arrived in the model to the device at its end.
    fn deliver(&mut self, direction: &mut Direction, to: &mut dyn Device, now: impl Fn() -> Time) {
        for _ in 0..BATCH_PACKETS {
            let moment = now();
            let Some(delivery) = direction.poll_output(moment) else {
                break;
            };
            self.lateness.add(moment.since(delivery.due));
            to.send(delivery);
        }
        self.failed_writes += to.flush();
    }
}

/// Hands to the model what the kernel has routed into a device.
fn take_in(
    direction: &mut Direction,
    from: &mut dyn Device,
    received: &mut Vec<Received>,
    now: impl Fn() -> Time,
) -> Result<()> {
    from.receive(BATCH_PACKETS, received)?;
    for Received { packet, age } in received.drain(..) {
        let arrived = now().as_nanos().saturating_sub(age.as_nanos() as u64);
        direction.handle(Time::from_nanos(arrived), packet);
    }
    Ok(())
}
