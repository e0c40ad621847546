//! Tests with interfaces that have no kernel behind them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use emulate::{LinkFraming, PacketDelivery};
use host::packets::device::{LinkDevice, ReceivedPacket};
use host::packets::system::ThreadWaker;

use super::{DeviceCommand, DeviceDriver};

/// An interface with frames that have come before the test.
struct FullInterface {
    is_readable: ThreadWaker,
    frames: VecDeque<ReceivedPacket>,
    sent: mpsc::Sender<Bytes>,
}

impl FullInterface {
    fn boxed(frames: Vec<ReceivedPacket>, sent: &mpsc::Sender<Bytes>) -> Box<dyn LinkDevice> {
        let is_readable = ThreadWaker::new().unwrap();
        if !frames.is_empty() {
            is_readable.wake();
        }
        Box::new(Self {
            is_readable,
            frames: frames.into(),
            sent: sent.clone(),
        })
    }
}

impl LinkDevice for FullInterface {
    fn name(&self) -> &str {
        "full"
    }

    fn framing(&self) -> LinkFraming {
        LinkFraming::Ethernet
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.is_readable.as_fd()
    }

    fn receive(&mut self, max: usize, into: &mut Vec<ReceivedPacket>) -> Result<()> {
        let count = max.min(self.frames.len());
        into.extend(self.frames.drain(..count));
        if self.frames.is_empty() {
            self.is_readable.clear();
        }
        Ok(())
    }

    fn send(&mut self, delivery: PacketDelivery) {
        // The test has ended where nobody listens.
        let _ = self.sent.send(delivery.packet);
    }

    fn flush(&mut self) -> u64 {
        0
    }

    fn unread_packets(&mut self) -> u64 {
        0
    }
}

/// A frame between these addresses, with a number of 4 bytes behind its header.
fn frame(to: u8, from: u8, number: u32) -> Bytes {
    let mut frame = vec![to; 6];
    frame.extend([from; 6]);
    frame.extend([0x08, 0x00]);
    frame.extend(number.to_be_bytes());
    frame.extend([0; 60]);
    Bytes::from(frame)
}

#[test]
fn frames_of_a_port_that_lags_enter_before_later_frames_of_others() {
    const SPAN: u32 = 2_000;
    let model = toml::from_str(
        r#"
        ports = 3
        transit = [{ size = "64B", time = "30us" }]
        [output]
        rate = "1Gbit"
        queue = { packets = 1000 }
        "#,
    )
    .unwrap();
    let start = Instant::now();
    thread::sleep(Duration::from_micros(SPAN.into()));
    let (sent, out) = mpsc::channel();
    // Numbers are arrival times in us. Port 0 has several batches, port 1 one; port 2 makes its address
    // known.
    let came = |micros: u32| Some(start + Duration::from_micros(micros.into()));
    let frames = |from: u8, times: &mut dyn Iterator<Item = u32>| -> Vec<ReceivedPacket> {
        times
            .map(|micros| ReceivedPacket {
                packet: frame(6, from, micros),
                came: came(micros),
            })
            .collect()
    };
    let many = frames(2, &mut (10..SPAN).step_by(10));
    let few = frames(4, &mut (55..SPAN).step_by(50));
    let known = ReceivedPacket {
        packet: frame(2, 6, 0),
        came: came(0),
    };
    let mut expected: Vec<u32> = (10..SPAN)
        .step_by(10)
        .chain((55..SPAN).step_by(50))
        .collect();
    expected.sort_unstable();
    let interfaces = vec![
        FullInterface::boxed(many, &mpsc::channel().0),
        FullInterface::boxed(few, &mpsc::channel().0),
        FullInterface::boxed(vec![known], &sent),
    ];
    let (commands, receiver) = mpsc::channel();
    let waker = ThreadWaker::new().unwrap();
    let driver = DeviceDriver::new(
        interfaces,
        (model, 1),
        receiver,
        waker.try_clone().unwrap(),
        start,
    );
    let thread = thread::spawn(move || driver.run());
    let left: Vec<u32> = (0..expected.len())
        .map(|_| {
            let frame = out.recv_timeout(Duration::from_secs(20)).unwrap();
            u32::from_be_bytes(frame[14..18].try_into().unwrap())
        })
        .collect();
    commands.send(DeviceCommand::Stop).unwrap();
    waker.wake();
    let report = thread.join().unwrap().unwrap();
    assert_eq!(left, expected);
    assert_eq!(report.dropped_by_output_queue_packets, 0);
}
