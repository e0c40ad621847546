//! Devices without a kernel behind them.

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

/// Much longer than the clock's steps, and than what a test may take off or add.
const READING: Duration = Duration::from_millis(30);

/// What a device says of a packet's arrival.
#[derive(Clone, Copy, Debug)]
enum ArrivalStamp {
    /// Before it was read, in truth.
    Exact,
    /// While it was read.
    Within,
    None,
    /// By a clock that is ahead.
    Ahead,
}

/// One packet, and a reading that takes its time.
struct SlowDevice {
    waiting: ThreadWaker,
    stamp: Option<ArrivalStamp>,
    /// Says when the packet came, and when it had been read.
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

/// What is recorded of a packet of `length` that came at once when both devices are deleted.
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
fn a_link_that_a_device_ends_has_a_record_of_what_it_held() {
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
fn a_loss_within_the_last_hour_is_recorded_though_it_would_have_arrived_later() {
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

/// When the model was told that the packet came; when it came, and when it had been read.
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
fn a_stamped_packet_arrives_when_its_stamp_says_however_long_the_reading_takes() {
    for stamp in [ArrivalStamp::Exact, ArrivalStamp::Within] {
        let (arrived, came, read) = arrival(stamp);
        assert_eq!(arrived, came, "{stamp:?}");
        assert!(arrived + READING / 3 < read);
    }
}

#[test]
fn a_packet_without_a_stamp_arrives_when_it_has_been_read() {
    let (arrived, _, read) = arrival(ArrivalStamp::None);
    assert!(arrived >= read);
}

#[test]
fn no_stamp_makes_a_packet_come_after_it_was_there() {
    let (arrived, came, _) = arrival(ArrivalStamp::Ahead);
    assert!(arrived < came);
}
