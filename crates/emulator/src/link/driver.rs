//! The link's thread: reads, models, writes, waits.
//!
//! ```text
//!   ┌► wait for a packet, a command, or the next due moment (not at all shortly before it)
//!   │  read what has come, at most a batch from each device
//!   └─ deliver what is due, at most some batches each way
//! ```
//!
//! Batches keep each side from starving the other: under load a packet waits for at most one batch
//! of reads and one of writes before it is handled. The arrival time of a packet is the kernel's
//! stamp; without a stamp, the clock is read once per batch, right after it. A written packet's
//! lateness is measured when all of its batch was written.
//!
//! While packets are in flight the thread sleeps until shortly before the next is due (`pace.rs`)
//! and checks once a second whether the link keeps its settings (`watch.rs`).

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use emulate::{Link, LinkConfig, LinkDirection};
use vocab::Time;

use super::pace::{GATHER, ThreadPriority, WakeupEstimator};
use super::processor::ThreadPlacement;
use super::record::{LinkRecord, PacketDirection, RecordSink};
use super::report::{DirectionReport, LinkReport};
use super::watch::{LinkWatch, WatchCounters};
use crate::lateness::DeliveryLateness;
use host::packets::device::{LinkDevice, ReceivedPacket};
use host::packets::system::{self, ThreadWaker};

/// Packets read from one device, or written to one, before the other side has its turn: some
/// 0.1 ms of system calls.
const BATCH_PACKETS: usize = 64;

/// Batches delivered in one direction before the other has its turn: more packets than a batch of
/// reads brings, whose last may be a run of some 130, so that due packets never accumulate in the
/// model just because reading goes first.
const DELIVERIES_MAX: usize = 4;

/// The longest single wait while a packet is under way. The kernel rounds a wait up by a
/// thousandth of it, so that one wait of 250 ms would end 250 µs late; waits of this length
/// end within 5 µs.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// Time beyond the end after which a packet that is still held stays so in the log: one behind a
/// line that stands still.
const HELD_AT_MOST: Duration = Duration::from_secs(3_600);

/// Request of the handle to the thread.
pub(super) enum DriverCommand {
    Configure(Box<LinkConfig>),
    Report(mpsc::Sender<LinkReport>),
    Stop,
}

/// State of the thread.
pub(super) struct LinkDriver {
    link: Link,
    relays: [DirectionRelay; 2],
    /// Devices: at end A, where the forward packets come from, and at end B.
    devices: [Box<dyn LinkDevice>; 2],
    commands: mpsc::Receiver<DriverCommand>,
    waker: ThreadWaker,
    start: Instant,
    records: Option<Box<dyn RecordSink>>,
    /// Time of the next check of the link; `None` while no packets pass.
    watch_at: Option<Time>,
}

/// State of one direction beside the model.
struct DirectionRelay {
    heading: PacketDirection,
    lateness: DeliveryLateness,
    failed_writes: u64,
    unread: u64,
    unrecorded: u64,
    watch: LinkWatch,
}

enum LoopControl {
    Continue,
    Stop,
}

/// Waiting mode until the next packet is due.
#[derive(Clone, Copy)]
enum WaitMode {
    /// Stay awake and only poll for packets.
    Awake,
    /// Look after a moment, whatever comes.
    Gathering,
    Asleep(Duration),
    /// Sleep until a packet comes, or until the next check of the link.
    Idle(Option<Duration>),
}

impl LinkDriver {
    /// `start` is the moment that the link's time counts from.
    pub(super) fn new(
        devices: [Box<dyn LinkDevice>; 2],
        config: LinkConfig,
        commands: mpsc::Receiver<DriverCommand>,
        waker: ThreadWaker,
        start: Instant,
    ) -> Self {
        Self {
            link: Link::new(framed(config, &devices)),
            relays: [PacketDirection::Forward, PacketDirection::Back].map(DirectionRelay::new),
            devices,
            commands,
            waker,
            start,
            records: None,
            watch_at: None,
        }
    }

    /// Hands the record of every packet, from the first on, to this sink.
    pub(super) fn record(&mut self, sink: Option<Box<dyn RecordSink>>) {
        self.link.forward.keep_records(sink.is_some());
        self.link.back.keep_records(sink.is_some());
        self.records = sink;
    }

    /// Relays until it is stopped or a device is deleted.
    pub(super) fn run(mut self) -> Result<LinkReport> {
        let report = self.relay();
        let now = self.now();
        self.record_the_rest(now);
        report
    }

    fn relay(&mut self) -> Result<LinkReport> {
        system::sharpen_timers();
        let priority = match system::raise_priority() {
            Ok(()) => ThreadPriority::Raised,
            Err(error) => {
                tracing::debug!(%error, "link runs at ordinary priority; packets are later beside other work");
                ThreadPriority::Ordinary
            }
        };
        if let Err(error) = system::raise_session() {
            tracing::debug!(%error, "link's session runs at ordinary priority");
        }
        let mut processor = ThreadPlacement::new();
        let [a, b] = &self.devices;
        tracing::debug!(a = a.name(), b = b.name(), "link relays");
        let mut pace = WakeupEstimator::new(priority);
        let mut received = Vec::with_capacity(2 * BATCH_PACKETS);
        let mut now = self.now();
        loop {
            let rest = self.rest(now, &mut pace);
            let [from_a, from_b, commanded] = self.wait(rest)?;
            let before = now;
            now = self.now();
            match rest {
                WaitMode::Awake => pace.looked(now, now.since(before)),
                WaitMode::Asleep(span) if !(from_a || from_b || commanded) => {
                    pace.record_wakeup(now.since(before + span));
                }
                WaitMode::Asleep(_) | WaitMode::Idle(_) | WaitMode::Gathering => {}
            }
            for (index, has_come) in [from_a, from_b].into_iter().enumerate() {
                if has_come {
                    let packets;
                    (packets, now) = self.take_in(index, &mut received)?;
                    pace.came(now, packets);
                    processor.came(now, packets);
                }
            }
            if commanded && matches!(self.handle_commands(now), LoopControl::Stop) {
                self.look_last();
                return Ok(self.report());
            }
            now = self.deliver_due(0, now);
            now = self.deliver_due(1, now);
            if self.watch_at.is_some_and(|at| at <= now) {
                self.check_directions(now);
                processor.came(now, 0);
                if processor.is_settled() {
                    self.watch_at = Some(now + LinkWatch::INTERVAL);
                }
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_epoch(self.start.elapsed())
    }

    fn rest(&self, now: Time, pace: &mut WakeupEstimator) -> WaitMode {
        let prefer_many = self.devices.iter().any(|device| device.prefers_many());
        if prefer_many && pace.gathers(now) {
            return WaitMode::Gathering;
        }
        let rest = match self.link.poll_timeout() {
            Some(due) => {
                WaitMode::Asleep(due.since(now).saturating_sub(pace.margin()).min(WAIT_MAX))
            }
            None => WaitMode::Idle(self.watch_at.map(|at| at.since(now))),
        };
        match rest {
            WaitMode::Asleep(Duration::ZERO) => WaitMode::Awake,
            _ if pace.lingers(now) => WaitMode::Awake,
            rest => rest,
        }
    }

    fn wait(&self, rest: WaitMode) -> Result<[bool; 3]> {
        let span = match rest {
            WaitMode::Awake => Some(Duration::ZERO),
            WaitMode::Gathering => {
                thread::sleep(GATHER);
                Some(Duration::ZERO)
            }
            WaitMode::Asleep(span) => Some(span),
            WaitMode::Idle(span) => span,
        };
        let [a, b] = &self.devices;
        system::wait_readable([a.file(), b.file(), self.waker.as_fd()], span)
            .context("cannot wait for packets")
    }

    /// Hands received packets of the device at this end to the model; returns their number and the
    /// time at which this was done.
    fn take_in(
        &mut self,
        index: usize,
        received: &mut Vec<ReceivedPacket>,
    ) -> Result<(usize, Time)> {
        self.devices[index].receive(BATCH_PACKETS, received)?;
        let now = self.now();
        let packets = received.len();
        if packets == 0 {
            return Ok((0, now));
        }
        let direction = direction(&mut self.link, index);
        for ReceivedPacket { packet, came } in received.drain(..) {
            let arrived = came.map_or(now, |came| {
                now.min(Time::from_epoch(came.saturating_duration_since(self.start)))
            });
            direction.handle(arrived, packet);
        }
        self.watch_at.get_or_insert(now + LinkWatch::INTERVAL);
        self.hand_out_records(index);
        Ok((packets, now))
    }

    /// Delivers batches as long as they are full; returns when that was done.
    fn deliver_due(&mut self, index: usize, mut now: Time) -> Time {
        for _ in 0..DELIVERIES_MAX {
            let count;
            (count, now) = self.deliver(index, now);
            if count < BATCH_PACKETS {
                break;
            }
        }
        now
    }

    /// Writes packets that have arrived in the model to the device at their end, at most a batch;
    /// returns their number and the time at which this was done.
    fn deliver(&mut self, index: usize, now: Time) -> (usize, Time) {
        let direction = direction(&mut self.link, index);
        let to = &mut self.devices[1 - index];
        let mut dues = [Time::ZERO; BATCH_PACKETS];
        let mut count = 0;
        while count < BATCH_PACKETS {
            let Some(delivery) = direction.poll_output(now) else {
                break;
            };
            dues[count] = delivery.due;
            count += 1;
            to.send(delivery);
        }
        if count == 0 {
            // What became of lost packets is certain all the same.
            self.hand_out_records(index);
            return (0, now);
        }
        let relay = &mut self.relays[index];
        let refused = to.flush();
        let written = Time::from_epoch(self.start.elapsed());
        for due in &dues[..count] {
            relay.lateness.add(written.since(*due));
        }
        if refused > 0 && relay.failed_writes == 0 {
            tracing::warn!(
                device = to.name(),
                "the kernel does not take packets; is the device up?"
            );
        }
        relay.failed_writes += refused;
        self.watch_at.get_or_insert(written + LinkWatch::INTERVAL);
        self.hand_out_records(index);
        (count, written)
    }

    fn hand_out_records(&mut self, index: usize) {
        let Some(sink) = &mut self.records else {
            return;
        };
        let relay = &mut self.relays[index];
        let direction = direction(&mut self.link, index);
        while let Some(record) = direction.poll_record() {
            let heading = relay.heading;
            if !sink.offer(LinkRecord { heading, record }) {
                relay.unrecorded += 1;
            }
        }
    }

    fn handle_commands(&mut self, now: Time) -> LoopControl {
        self.waker.clear();
        loop {
            match self.commands.try_recv() {
                Ok(DriverCommand::Configure(config)) => self.configure(now, *config),
                // Whoever asked may have given up waiting.
                Ok(DriverCommand::Report(sender)) => drop(sender.send(self.report())),
                Ok(DriverCommand::Stop) | Err(mpsc::TryRecvError::Disconnected) => {
                    return LoopControl::Stop;
                }
                Err(mpsc::TryRecvError::Empty) => return LoopControl::Continue,
            }
        }
    }

    fn configure(&mut self, now: Time, config: LinkConfig) {
        let config = framed(config, &self.devices);
        self.link.set_config(now, config);
        for index in [0, 1] {
            self.hand_out_records(index);
        }
        let next = [&self.link.forward, &self.link.back]
            .map(|direction| direction.counters().offered.packets);
        if let Some(sink) = &mut self.records {
            sink.changed(now, next);
        }
    }

    /// Records the fate of packets that are still held, as if the link had continued, so that the
    /// log has every packet: without one, the fates of others could not be replayed.
    fn record_the_rest(&mut self, now: Time) {
        if self.records.is_none() {
            return;
        }
        let until = now + HELD_AT_MOST;
        for index in [0, 1] {
            while let Some(at) = direction(&mut self.link, index)
                .poll_timeout()
                .filter(|at| *at < until)
            {
                self.record_until(index, at);
            }
            // What is lost at the line's end has its fate then, and the time to wait for is that
            // at which it would have arrived.
            self.record_until(index, until);
            direction(&mut self.link, index).record_held(until);
            self.record_until(index, until);
        }
    }

    fn record_until(&mut self, index: usize, at: Time) {
        let Some(sink) = &mut self.records else {
            return;
        };
        let heading = self.relays[index].heading;
        let direction = direction(&mut self.link, index);
        while direction.poll_output(at).is_some() {}
        while let Some(record) = direction.poll_record() {
            sink.offer_last(LinkRecord { heading, record });
        }
    }

    /// Compares each direction with its settings since the last check.
    fn check_directions(&mut self, now: Time) {
        self.watch_at = None;
        for index in [0, 1] {
            let observed = self.observe(index);
            let relay = &mut self.relays[index];
            relay.watch.look(now, observed, self.devices[index].name());
        }
    }

    /// Compares each direction with its settings for the rest of the last second.
    fn look_last(&mut self) {
        for index in [0, 1] {
            let observed = self.observe(index);
            self.relays[index].watch.look_last(observed);
        }
    }

    fn observe(&mut self, index: usize) -> WatchCounters {
        let counters = direction(&mut self.link, index).counters();
        let relay = &mut self.relays[index];
        relay.unread = self.devices[index].unread_packets();
        WatchCounters {
            departures: relay.lateness.count(),
            late_departures: relay.lateness.over_200us(),
            unread: relay.unread,
            refused: relay.failed_writes,
            over_memory: (counters.dropped_by_limit + counters.dropped_untaken).packets,
        }
    }

    fn report(&mut self) -> LinkReport {
        let [forward, back] = [0, 1].map(|index| {
            let observed = self.observe(index);
            let relay = &self.relays[index];
            let counters = direction(&mut self.link, index).counters();
            DirectionReport {
                unrecorded_packets: relay.unrecorded,
                not_held: relay.watch.reason().map(str::to_owned),
                not_held_seconds: relay.watch.seconds(),
                ..DirectionReport::new(&counters, &relay.lateness, &observed)
            }
        });
        LinkReport {
            forward,
            back,
            forced: None,
        }
    }
}

impl DirectionRelay {
    fn new(heading: PacketDirection) -> Self {
        Self {
            heading,
            lateness: DeliveryLateness::new(),
            failed_writes: 0,
            unread: 0,
            unrecorded: 0,
            watch: LinkWatch::default(),
        }
    }
}

/// The direction of packets from the device with this index.
fn direction(link: &mut Link, index: usize) -> &mut LinkDirection {
    match index {
        0 => &mut link.forward,
        _ => &mut link.back,
    }
}

/// The settings as they are for the packets of these devices.
fn framed(mut config: LinkConfig, devices: &[Box<dyn LinkDevice>; 2]) -> LinkConfig {
    config.forward.framing = devices[0].framing();
    config.back.framing = devices[1].framing();
    config
}

#[cfg(test)]
mod tests;
