//! Devices without a kernel behind them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use emulate::{Delivery, DirectionConfig, Ending, Framing, Line, LinkConfig, Loss};
use vocab::{Bitrate, Probability, Time};

use super::{Command, Driver};
use crate::link::record::{LinkRecord, RecordSink};
use crate::link::system::Waker;
use host::packets::device::{Device, Received};

/// Much longer than the clock's steps, and than what a test may take off or add.
const READING: Duration = Duration::from_millis(30);

/// What a device says of a packet's arrival.
#[derive(Clone, Copy, Debug)]
enum Stamp {
    /// Before it was read, in truth.
    Exact,
    /// While it was read.
    Within,
    None,
    /// By a clock that is ahead.
    Ahead,
}

/// One packet, and a reading that takes its time.
struct Slow {
    waiting: Waker,
    stamp: Option<Stamp>,
    /// Says when the packet came, and when it had been read.
    read: mpsc::Sender<[Instant; 2]>,
}

impl Device for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn framing(&self) -> Framing {
        Framing::Ip
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }

    fn receive(&mut self, _max: usize, into: &mut Vec<Received>) -> Result<()> {
        self.waiting.clear();
        let Some(stamp) = self.stamp.take() else {
            return Ok(());
        };
        let before = Instant::now();
        thread::sleep(READING);
        let (packet, after) = (Bytes::from_static(&[0x45; 40]), Instant::now());
        let came = match stamp {
            Stamp::Exact => Some(before),
            Stamp::Within => Some(before + READING / 2),
            Stamp::None => None,
            Stamp::Ahead => Some(after + Duration::from_secs(3_600)),
        };
        into.push(Received { packet, came });
        self.read.send([came.unwrap_or(after), after])?;
        Ok(())
    }

    fn send(&mut self, _delivery: Delivery) {}

    fn flush(&mut self) -> u64 {
        0
    }

    fn unread_packets(&mut self) -> u64 {
        0
    }
}

struct Sink(mpsc::Sender<LinkRecord>);

impl RecordSink for Sink {
    fn offer(&mut self, record: LinkRecord) -> bool {
        self.0.send(record).is_ok()
    }

    fn offer_last(&mut self, record: LinkRecord) -> bool {
        self.offer(record)
    }

    fn changed(&mut self, _at: Time, _next: [u64; 2]) {}
}

/// A device that is deleted.
struct Gone(Waker);

impl Device for Gone {
    fn name(&self) -> &str {
        "gone"
    }

    fn framing(&self) -> Framing {
        Framing::Ip
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn receive(&mut self, _max: usize, _into: &mut Vec<Received>) -> Result<()> {
        bail!("gone was deleted")
    }

    fn send(&mut self, _delivery: Delivery) {}

    fn flush(&mut self) -> u64 {
        0
    }

    fn unread_packets(&mut self) -> u64 {
        0
    }
}

/// What is recorded of a packet of `length` that came at once when both devices are deleted.
fn records_of_a_deleted_link(forward: DirectionConfig, length: usize) -> Vec<Ending> {
    let devices = [(); 2].map(|()| {
        let deleted = Waker::new().unwrap();
        deleted.wake();
        Box::new(Gone(deleted)) as Box<dyn Device>
    });
    let config = LinkConfig {
        forward,
        ..LinkConfig::default()
    };
    let (_commands, receiver) = mpsc::channel();
    let waker = Waker::new().unwrap();
    let mut driver = Driver::new(devices, config, receiver, waker, Instant::now());
    let (sink, records) = mpsc::channel();
    driver.record(Some(Box::new(Sink(sink))));
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
        matches!(records[..], [Ending::Delivered { .. }]),
        "{records:?}"
    );
}

#[test]
fn a_loss_within_the_last_hour_is_recorded_though_it_would_have_arrived_later() {
    // It leaves the line 20 s before the hour is over.
    let rate = Bitrate::from_bits_per_second(2);
    let forward = DirectionConfig {
        line: Line::Rate(rate),
        delay: Duration::from_secs(60),
        loss: Loss::Random(Probability::from_fraction(1.0).unwrap()),
        ..DirectionConfig::default()
    };
    let records = records_of_a_deleted_link(forward, 895);
    assert!(
        matches!(records[..], [Ending::Dropped { .. }]),
        "{records:?}"
    );
}

/// When the model was told that the packet came; when it came, and when it had been read.
fn arrival(stamp: Stamp) -> (Time, Time, Time) {
    let start = Instant::now();
    let (read, has_read) = mpsc::channel();
    let device = |stamp: Option<Stamp>| {
        let waiting = Waker::new().unwrap();
        if stamp.is_some() {
            waiting.wake();
        }
        let read = read.clone();
        Box::new(Slow {
            waiting,
            stamp,
            read,
        }) as Box<dyn Device>
    };
    let devices = [device(Some(stamp)), device(None)];
    let (commands, receiver) = mpsc::channel();
    let waker = Waker::new().unwrap();
    let mut driver = Driver::new(
        devices,
        LinkConfig::default(),
        receiver,
        waker.try_clone().unwrap(),
        start,
    );
    let (sink, records) = mpsc::channel();
    driver.record(Some(Box::new(Sink(sink))));
    let link = thread::spawn(move || driver.run());
    let [came, after] = has_read.recv().unwrap();
    let record = records.recv().unwrap().record;
    commands.send(Command::Stop).unwrap();
    waker.wake();
    link.join().unwrap().unwrap();
    let time = |instant: Instant| Time::from_epoch(instant - start);
    (record.arrived, time(came), time(after))
}

#[test]
fn a_stamped_packet_arrives_when_its_stamp_says_however_long_the_reading_takes() {
    for stamp in [Stamp::Exact, Stamp::Within] {
        let (arrived, came, read) = arrival(stamp);
        assert_eq!(arrived, came, "{stamp:?}");
        assert!(arrived + READING / 3 < read);
    }
}

#[test]
fn a_packet_without_a_stamp_arrives_when_it_has_been_read() {
    let (arrived, _, read) = arrival(Stamp::None);
    assert!(arrived >= read);
}

#[test]
fn no_stamp_makes_a_packet_come_after_it_was_there() {
    let (arrived, came, _) = arrival(Stamp::Ahead);
    assert!(arrived < came);
}
