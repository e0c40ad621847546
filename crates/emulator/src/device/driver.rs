//! The thread of an emulated device: reads, forwards, models, writes, waits.
//!
//! ```text
//!   ┌► wait for a frame, a command, or the next due moment (not at all shortly before it)
//!   │  read what has come, at most a batch from each port
//!   └─ write what has left the model, in the order of its times
//! ```
//!
//! A packet enters the model at the kernel's stamp of its arrival, and packets of all ports enter in
//! the order of these stamps: what came behind the last frame of a port that was not read to its end
//! waits. A packet leaves at the model's time, or as soon after it as this thread runs; the
//! difference is its lateness. Frames are never gathered, as those of a link are: precision counts
//! more than rate.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use emulate::{EmulatedDevice, LinkFraming, PacketDelivery};
use host::packets::device::{LinkDevice, ReceivedPacket};
use host::packets::system::{self, ThreadWaker};
use vocab::{DeviceModel, Time};

use super::report::{DeviceReport, PortReport};
use super::switch::{FrameOutputs, FrameSwitch};
use crate::lateness::DeliveryLateness;
use crate::link::pace::{ThreadPriority, WakeupEstimator};
use crate::link::processor::ThreadPlacement;
use crate::link::watch::{LinkWatch, WatchCounters};

/// Frames read from one port, or written, before others have their turn.
const BATCH_FRAMES: usize = 64;

/// The longest single wait while a packet is in the device; the kernel rounds longer ones up by more.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// Request of the handle to the thread.
pub(super) enum DeviceCommand {
    Report(mpsc::Sender<DeviceReport>),
    Stop,
}

/// State of the thread.
pub(super) struct DeviceDriver {
    device: EmulatedDevice,
    switch: FrameSwitch,
    ports: Vec<DevicePort>,
    commands: mpsc::Receiver<DeviceCommand>,
    waker: ThreadWaker,
    start: Instant,
    lateness: DeliveryLateness,
    watch: LinkWatch,
    /// Time of the next check; `None` while no packets pass.
    watch_at: Option<Time>,
    over_flood_limit: u64,
    returned: u64,
    busy_poll: Duration,
}

/// A port and its counts.
struct DevicePort {
    interface: Box<dyn LinkDevice>,
    /// Frames that were read and have not entered the model, oldest first; at most a batch.
    waiting: VecDeque<(Time, Bytes)>,
    received: u64,
    sent: u64,
    unread: u64,
    failed_writes: u64,
    /// Set while frames of this turn wait for a flush.
    is_pending: bool,
}

/// End of the loop.
enum DriverControl {
    Continue,
    Stop,
}

impl DeviceDriver {
    /// `start` is the moment that the device's time counts from; there is an interface for each port.
    pub(super) fn new(
        interfaces: Vec<Box<dyn LinkDevice>>,
        (model, seed): (DeviceModel, u64),
        commands: mpsc::Receiver<DeviceCommand>,
        waker: ThreadWaker,
        start: Instant,
    ) -> Self {
        let ports = interfaces
            .into_iter()
            .map(|interface| DevicePort {
                interface,
                waiting: VecDeque::new(),
                received: 0,
                sent: 0,
                unread: 0,
                failed_writes: 0,
                is_pending: false,
            })
            .collect();
        Self {
            device: EmulatedDevice::with_framing(model, seed, LinkFraming::Ethernet),
            switch: FrameSwitch::default(),
            ports,
            commands,
            waker,
            start,
            lateness: DeliveryLateness::new(),
            watch: LinkWatch::default(),
            watch_at: None,
            over_flood_limit: 0,
            returned: 0,
            busy_poll: Duration::ZERO,
        }
    }

    /// Stays awake for this time after each packet.
    pub(super) fn with_busy_poll(mut self, span: Duration) -> Self {
        self.busy_poll = span;
        self
    }

    /// Forwards until it is stopped or an interface is deleted.
    pub(super) fn run(mut self) -> Result<DeviceReport> {
        system::sharpen_timers();
        let priority = match system::raise_priority() {
            Ok(()) => ThreadPriority::Raised,
            Err(error) => {
                tracing::debug!(%error, "device runs at ordinary priority; packets are later beside other work");
                ThreadPriority::Ordinary
            }
        };
        if let Err(error) = system::raise_session() {
            tracing::debug!(%error, "device's session runs at ordinary priority");
        }
        let mut processor = ThreadPlacement::new();
        let mut pace = WakeupEstimator::new(priority).with_busy_poll(self.busy_poll);
        let mut received = Vec::with_capacity(2 * BATCH_FRAMES);
        let mut now = self.now();
        loop {
            let rest = self.rest(now, &mut pace);
            let readable = self.wait(rest)?;
            let before = now;
            now = self.now();
            match rest {
                Some(Duration::ZERO) => pace.looked(now, now.since(before)),
                Some(span) if !readable.iter().any(|is_readable| *is_readable) => {
                    pace.record_wakeup(now.since(before + span));
                }
                Some(_) | None => {}
            }
            let (commanded, readable) = readable
                .split_last()
                .context("the waker is among the files")?;
            let mut known_until = now;
            if readable.contains(&true) || self.has_waiting() {
                let frames;
                (frames, known_until) = self.take_in(now, readable, &mut received)?;
                now = self.now();
                pace.came(now, frames);
                processor.came(now, frames);
            }
            if *commanded && matches!(self.handle_commands(), DriverControl::Stop) {
                let observed = self.observe();
                self.watch.look_last(observed);
                return Ok(self.report());
            }
            now = self.deliver_due(now, known_until);
            if self.watch_at.is_some_and(|at| at <= now) {
                self.watch_at = processor.is_settled().then_some(now + LinkWatch::INTERVAL);
                self.check(now);
                processor.came(now, 0);
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_epoch(self.start.elapsed())
    }

    /// Time to sleep: zero to stay awake, `None` until something comes.
    fn rest(&self, now: Time, pace: &mut WakeupEstimator) -> Option<Duration> {
        if self.has_waiting() || pace.lingers(now) {
            return Some(Duration::ZERO);
        }
        match self.device.poll_timeout() {
            Some(due) => Some(due.since(now).saturating_sub(pace.margin()).min(WAIT_MAX)),
            // A check is not late: it sleeps to its time, or a little longer.
            None => self.watch_at.map(|at| at.since(now).max(WAIT_MAX)),
        }
    }

    /// Waits for the ports, in order, and for a command, the last.
    fn wait(&self, span: Option<Duration>) -> Result<Vec<bool>> {
        let mut files: Vec<_> = self
            .ports
            .iter()
            .map(|port| port.interface.file())
            .collect();
        files.push(self.waker.as_fd());
        system::wait_readable_of(&files, span).context("cannot wait for frames")
    }

    /// Tells whether frames that were read have not entered the model.
    fn has_waiting(&self) -> bool {
        self.ports.iter().any(|port| !port.waiting.is_empty())
    }

    /// Reads the ports, and hands the frames that came until all ports are known to the model, in the
    /// order of their arrival. Returns the number of frames that were read, and the time until which
    /// all ports are known; the model must not go beyond it, or later frames would enter it late.
    fn take_in(
        &mut self,
        now: Time,
        readable: &[bool],
        received: &mut Vec<ReceivedPacket>,
    ) -> Result<(usize, Time)> {
        let start = self.start;
        let mut frames = 0;
        let mut known_until = now;
        for (port, is_readable) in self.ports.iter_mut().zip(readable) {
            // What waits is handed in before more is read.
            let is_known = port.waiting.is_empty();
            if is_known && *is_readable {
                port.interface.receive(BATCH_FRAMES, received)?;
                port.received += received.len() as u64;
                frames += received.len();
                // A clock that has been set stamps in the future.
                let latest = Time::from_epoch(start.elapsed());
                port.waiting.extend(received.drain(..).map(|frame| {
                    let arrived = frame.came.map_or(now, |came| {
                        Time::from_epoch(came.saturating_duration_since(start)).min(latest)
                    });
                    (arrived, frame.packet)
                }));
            }
            if (!is_known || port.waiting.len() >= BATCH_FRAMES)
                && let Some((last, _)) = port.waiting.back()
            {
                known_until = known_until.min(*last);
            }
        }
        let mut arrivals: Vec<(Time, u16, Bytes)> = Vec::new();
        for (input, port) in (0..).zip(&mut self.ports) {
            while let Some((arrived, frame)) = port
                .waiting
                .pop_front_if(|(arrived, _)| *arrived <= known_until)
            {
                arrivals.push((arrived, input, frame));
            }
        }
        arrivals.sort_by_key(|(arrived, ..)| *arrived);
        for (arrived, input, frame) in arrivals {
            self.forward(arrived, input, frame);
        }
        if frames > 0 {
            self.watch_at.get_or_insert(now + LinkWatch::INTERVAL);
        }
        Ok((frames, known_until))
    }

    fn forward(&mut self, arrived: Time, input: u16, frame: Bytes) {
        match self.switch.outputs(arrived, input, &frame) {
            FrameOutputs::One(output) => {
                self.device.handle(arrived, (input, output), frame);
            }
            FrameOutputs::Others => {
                let count = self.ports.len() as u16;
                for output in (0..count).filter(|output| *output != input) {
                    self.device.handle(arrived, (input, output), frame.clone());
                }
            }
            FrameOutputs::Nowhere => self.returned += 1,
            FrameOutputs::OverLimit => {
                if self.over_flood_limit == 0 {
                    tracing::warn!(
                        port = self.ports[usize::from(input)].interface.name(),
                        "too many frames go to all ports, and the device drops the rest; there is a loop between its ports"
                    );
                }
                self.over_flood_limit += 1;
            }
        }
        // The counters have them; nobody asks which they were.
        while self.device.poll_drop().is_some() {}
    }

    /// Writes what has left the model by `now` and not after `known_until`, as long as batches are
    /// full; returns when that was done.
    fn deliver_due(&mut self, mut now: Time, known_until: Time) -> Time {
        /// Batches in a row, so that ports are read in time under load.
        const BATCHES_MAX: u32 = 4;
        for _ in 0..BATCHES_MAX {
            let count;
            (count, now) = self.deliver(now, known_until);
            if count < BATCH_FRAMES {
                break;
            }
        }
        while self.device.poll_drop().is_some() {}
        now
    }

    fn deliver(&mut self, now: Time, known_until: Time) -> (usize, Time) {
        let until = now.min(known_until);
        let mut dues = [Time::ZERO; BATCH_FRAMES];
        let mut count = 0;
        while count < BATCH_FRAMES
            && let Some(delivery) = self.device.poll_output(until)
        {
            dues[count] = delivery.at;
            count += 1;
            let port = &mut self.ports[usize::from(delivery.output)];
            port.is_pending = true;
            port.sent += 1;
            port.interface.send(PacketDelivery {
                due: delivery.at,
                packet: delivery.packet,
                index: delivery.index,
                corrupted: false,
                marked: false,
                is_copy: false,
            });
        }
        if count == 0 {
            return (0, now);
        }
        for port in self.ports.iter_mut().filter(|port| port.is_pending) {
            port.is_pending = false;
            let refused = port.interface.flush();
            if refused > 0 && port.failed_writes == 0 {
                tracing::warn!(
                    interface = port.interface.name(),
                    "the kernel does not take frames; is the interface up?"
                );
            }
            port.failed_writes += refused;
            port.sent -= refused.min(port.sent);
        }
        let written = self.now();
        for due in &dues[..count] {
            self.lateness.add(written.since(*due));
        }
        self.watch_at.get_or_insert(written + LinkWatch::INTERVAL);
        (count, written)
    }

    fn handle_commands(&mut self) -> DriverControl {
        self.waker.clear();
        loop {
            match self.commands.try_recv() {
                // Whoever asked may have given up waiting.
                Ok(DeviceCommand::Report(sender)) => drop(sender.send(self.report())),
                Ok(DeviceCommand::Stop) | Err(mpsc::TryRecvError::Disconnected) => {
                    return DriverControl::Stop;
                }
                Err(mpsc::TryRecvError::Empty) => return DriverControl::Continue,
            }
        }
    }

    /// Compares what was done since the last check with the model.
    fn check(&mut self, now: Time) {
        let observed = self.observe();
        let name = self.device.model().name.clone();
        self.watch.look(now, observed, &name);
    }

    fn observe(&mut self) -> WatchCounters {
        let (mut unread, mut refused) = (0, 0);
        for port in &mut self.ports {
            port.unread = port.interface.unread_packets();
            unread += port.unread;
            refused += port.failed_writes;
        }
        WatchCounters {
            departures: self.lateness.count(),
            late_departures: self.lateness.over_200us(),
            unread,
            refused,
            over_memory: self.device.counters().dropped_by_limit.packets,
        }
    }

    fn report(&mut self) -> DeviceReport {
        self.observe();
        let ports = self.ports.iter().map(|port| PortReport {
            interface: port.interface.name().to_owned(),
            received_frames: port.received,
            sent_frames: port.sent,
            unread_packets: port.unread,
            failed_writes_packets: port.failed_writes,
        });
        DeviceReport {
            dropped_by_flood_limit_frames: self.over_flood_limit,
            returned_frames: self.returned,
            not_held: self.watch.reason().map(str::to_owned),
            not_held_seconds: self.watch.seconds(),
            ports: ports.collect(),
            ..DeviceReport::new(&self.device.counters(), &self.lateness)
        }
    }
}

#[cfg(test)]
mod tests;
