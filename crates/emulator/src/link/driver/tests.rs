//! Tests with devices that have no kernel behind them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use emulate::{
    DirectionConfig, LineConfig, LinkConfig, LinkFraming, LossModel, PacketDelivery, PacketOutcome,
};
use vocab::{Bitrate, Probability, Time};

use super::{DriverCommand, LinkDriver};
use crate::link::record::{LinkRecord, RecordSink};
use crate::link::system::ThreadWaker;
use host::packets::device::{LinkDevice, ReceivedPacket};

/// Duration of a read, much longer than the clock's steps and than a test's own delays.
const READING: Duration = Duration::from_millis(30);

/// Arrival timestamp that a test device reports.
#[derive(Clone, Copy, Debug)]
enum ArrivalStamp {
    /// The stamp is correct: before the packet was read.
    Exact,
    /// While it was read.
    Within,
    None,
    /// The stamp is from a clock that is ahead.
    Ahead,
}

/// One packet, and a reading that takes its time.
struct SlowDevice {
    waiting: ThreadWaker,
    stamp: Option<ArrivalStamp>,
    /// Channel for the time at which the packet came and the time at which it had been read.
    read: mpsc::Sender<[Instant; 2]>,
}

impl LinkDevice for SlowDevice {
    fn name(&self) -> &str {
        "slow"
    }

    fn framing(&self) -> LinkFraming {
        LinkFraming::Ip
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }

    fn receive(&mut self, _max: usize, into: &mut Vec<ReceivedPacket>) -> Result<()> {
        self.waiting.clear();
        let Some(stamp) = self.stamp.take() else {
            return Ok(());
        };
        let before = Instant::now();
        thread::sleep(READING);
        let (packet, after) = (Bytes::from_static(&[0x45; 40]), Instant::now());
        let came = match stamp {
            ArrivalStamp::Exact => Some(before),
            ArrivalStamp::Within => Some(before + READING / 2),
            ArrivalStamp::None => None,
            ArrivalStamp::Ahead => Some(after + Duration::from_secs(3_600)),
        };
        into.push(ReceivedPacket { packet, came });
        self.read.send([came.unwrap_or(after), after])?;
        Ok(())
    }

    fn send(&mut self, _delivery: PacketDelivery) {}

    fn flush(&mut self) -> u64 {
        0
    }

    fn unread_packets(&mut self) -> u64 {
        0
    }
}

struct ChannelSink(mpsc::Sender<LinkRecord>);

impl RecordSink for ChannelSink {
    fn offer(&mut self, record: LinkRecord) -> bool {
        self.0.send(record).is_ok()
    }

    fn offer_last(&mut self, record: LinkRecord) -> bool {
        self.offer(record)
    }

    fn changed(&mut self, _at: Time, _next: [u64; 2]) {}
}

/// A device that is deleted.
struct DeletedDevice(ThreadWaker);

impl LinkDevice for DeletedDevice {
    fn name(&self) -> &str {
        "gone"
    }

    fn framing(&self) -> LinkFraming {
        LinkFraming::Ip
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn receive(&mut self, _max: usize, _into: &mut Vec<ReceivedPacket>) -> Result<()> {
        bail!("gone was deleted")
    }

    fn send(&mut self, _delivery: PacketDelivery) {}

    fn flush(&mut self) -> u64 {
        0
    }

    fn unread_packets(&mut self) -> u64 {
        0
    }
}

/// Outcomes recorded for a packet of `length` bytes that came just as both devices were deleted.
fn records_of_a_deleted_link(forward: DirectionConfig, length: usize) -> Vec<PacketOutcome> {
    let devices = [(); 2].map(|()| {
        let deleted = ThreadWaker::new().unwrap();
        deleted.wake();
        Box::new(DeletedDevice(deleted)) as Box<dyn LinkDevice>
    });
    let config = LinkConfig {
        forward,
        ..LinkConfig::default()
    };
    let (_commands, receiver) = mpsc::channel();
    let waker = ThreadWaker::new().unwrap();
    let mut driver = LinkDriver::new(devices, config, receiver, waker, Instant::now());
    let (sink, records) = mpsc::channel();
    driver.record(Some(Box::new(ChannelSink(sink))));
    driver
        .link
        .forward
        .handle(Time::ZERO, vec![0x45; length].into());
    let error = driver.run().unwrap_err();
    assert!(error.to_string().contains("was deleted"), "{error:#}");
    records.iter().map(|record| record.record.ending).collect()
}

#[test]
fn deleted_device_leaves_records_of_held_packets() {
    let forward = DirectionConfig {
        delay: Duration::from_secs(60),
        ..DirectionConfig::default()
    };
    let records = records_of_a_deleted_link(forward, 40);
    assert!(
        matches!(records[..], [PacketOutcome::Delivered { .. }]),
        "{records:?}"
    );
}

#[test]
fn late_loss_is_recorded_within_the_last_hour() {
    // It leaves the line 20 s before the hour is over.
    let rate = Bitrate::from_bits_per_second(2);
    let forward = DirectionConfig {
        line: LineConfig::Rate(rate),
        delay: Duration::from_secs(60),
        loss: LossModel::Random(Probability::from_fraction(1.0).unwrap()),
        ..DirectionConfig::default()
    };
    let records = records_of_a_deleted_link(forward, 895);
    assert!(
        matches!(records[..], [PacketOutcome::Dropped { .. }]),
        "{records:?}"
    );
}

/// Arrival time of the packet in the model, its true arrival time, and the time at which it had
/// been read.
fn arrival(stamp: ArrivalStamp) -> (Time, Time, Time) {
    let start = Instant::now();
    let (read, has_read) = mpsc::channel();
    let device = |stamp: Option<ArrivalStamp>| {
        let waiting = ThreadWaker::new().unwrap();
        if stamp.is_some() {
            waiting.wake();
        }
        let read = read.clone();
        Box::new(SlowDevice {
            waiting,
            stamp,
            read,
        }) as Box<dyn LinkDevice>
    };
    let devices = [device(Some(stamp)), device(None)];
    let (commands, receiver) = mpsc::channel();
    let waker = ThreadWaker::new().unwrap();
    let mut driver = LinkDriver::new(
        devices,
        LinkConfig::default(),
        receiver,
        waker.try_clone().unwrap(),
        start,
    );
    let (sink, records) = mpsc::channel();
    driver.record(Some(Box::new(ChannelSink(sink))));
    let link = thread::spawn(move || driver.run());
    let [came, after] = has_read.recv().unwrap();
    let record = records.recv().unwrap().record;
    commands.send(DriverCommand::Stop).unwrap();
    waker.wake();
    link.join().unwrap().unwrap();
    let time = |instant: Instant| Time::from_epoch(instant - start);
    (record.arrived, time(came), time(after))
}

#[test]
fn stamped_packet_arrives_at_its_stamp() {
    for stamp in [ArrivalStamp::Exact, ArrivalStamp::Within] {
        let (arrived, came, read) = arrival(stamp);
        assert_eq!(arrived, came, "{stamp:?}");
        assert!(arrived + READING / 3 < read);
    }
}

#[test]
fn unstamped_packet_arrives_when_it_was_read() {
    let (arrived, _, read) = arrival(ArrivalStamp::None);
    assert!(arrived >= read);
}

#[test]
fn stamp_never_delays_a_packet() {
    let (arrived, came, _) = arrival(ArrivalStamp::Ahead);
    assert!(arrived < came);
}
