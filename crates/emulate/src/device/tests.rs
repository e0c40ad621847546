//! Tests of the device against times and drops worked out by hand.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, PolicerModel, SharedServers, SizeTimeTable};

use super::*;

fn at(microseconds: u64) -> Time {
    Time::from_nanos(microseconds * 1_000)
}

/// 8 Mbit/s: a byte takes a microsecond. No overhead, transit 2000 µs for all sizes up to 1500.
fn model(queue: DeviceQueueLimit) -> DeviceModel {
    DeviceModel {
        name: "test".to_owned(),
        ports: 4,
        transit: SizeTimeTable::constant(Duration::from_micros(2_000)),
        input_queue: None,
        servers: None,
        output: OutputModel {
            rate: Some(Bitrate::from_bits_per_second(8_000_000)),
            burst: None,
            overhead: ByteCount::new(0),
            queue,
            aqm: None,
            policer: None,
        },
        port_outputs: Vec::new(),
    }
}

fn send(device: &mut EmulatedDevice, when: Time, ports: (u16, u16), size: usize) {
    device.handle(when, ports, Bytes::from(vec![0; size]));
}

/// Numbers and times of all deliveries, in µs.
fn deliveries(device: &mut EmulatedDevice) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    while let Some(next) = device.poll_timeout() {
        while let Some(delivery) = device.poll_output(next) {
            found.push((delivery.index, delivery.at.as_nanos() / 1_000));
        }
    }
    found
}

#[test]
fn lone_packet_takes_the_transit() {
    for servers in [
        None,
        Some(SharedServers {
            count: 2,
            service: SizeTimeTable::constant(Duration::from_micros(50)),
        }),
    ] {
        let mut device = EmulatedDevice::new(
            DeviceModel {
                servers,
                ..model(DeviceQueueLimit::Packets(10))
            },
            1,
        );
        send(&mut device, at(100), (0, 1), 1_000);
        assert_eq!(deliveries(&mut device), [(0, 2_100)]);
    }
}

#[test]
fn queue_counts_packets_bytes_or_slots() {
    // Ten packets of 300 bytes at once.
    for (queue, accepted) in [
        (DeviceQueueLimit::Packets(5), 5),
        (DeviceQueueLimit::Bytes(ByteCount::new(2_099)), 6),
        (
            DeviceQueueLimit::Slots {
                count: 9,
                slot: ByteCount::new(128),
            },
            3,
        ),
    ] {
        let mut device = EmulatedDevice::new(model(queue), 1);
        for _ in 0..10 {
            send(&mut device, at(0), (0, 1), 300);
        }
        let times: Vec<u64> = deliveries(&mut device).iter().map(|end| end.1).collect();
        let expected: Vec<u64> = (0..accepted).map(|n| 2_000 + 300 * n).collect();
        assert_eq!(times, expected);
        let counters = device.counters();
        assert_eq!(counters.dropped_by_output.packets, 10 - accepted);
        assert_eq!(counters.held, TrafficCount::default());
    }
}

#[test]
fn inputs_share_the_servers() {
    let mut device = EmulatedDevice::new(
        DeviceModel {
            servers: Some(SharedServers {
                count: 2,
                service: SizeTimeTable::constant(Duration::from_micros(50)),
            }),
            ..model(DeviceQueueLimit::Packets(10))
        },
        1,
    );
    // Each input has an output of its own, so that only the servers are shared.
    for port in 0..4 {
        send(&mut device, at(0), (port, 3 - port), 100);
    }
    let times: Vec<u64> = deliveries(&mut device).iter().map(|end| end.1).collect();
    assert_eq!(times, [2_000, 2_000, 2_050, 2_050]);
}

#[test]
fn full_input_queue_drops_its_own_packets() {
    let mut device = EmulatedDevice::new(
        DeviceModel {
            servers: Some(SharedServers {
                count: 1,
                service: SizeTimeTable::constant(Duration::from_micros(50)),
            }),
            input_queue: Some(DeviceQueueLimit::Packets(3)),
            ..model(DeviceQueueLimit::Packets(100))
        },
        1,
    );
    for _ in 0..10 {
        send(&mut device, at(0), (0, 1), 100);
    }
    send(&mut device, at(0), (2, 3), 100);
    // One in service and three waiting of input 0, and the one of input 2.
    let mut passed: Vec<u64> = deliveries(&mut device).iter().map(|end| end.0).collect();
    passed.sort_unstable();
    assert_eq!(passed, [0, 1, 2, 3, 10]);
    assert_eq!(device.counters().dropped_by_input.packets, 6);
}

#[test]
fn policer_drops_above_its_rate() {
    let mut policed = model(DeviceQueueLimit::Packets(1_000));
    policed.output.policer = Some(PolicerModel {
        rate: Bitrate::from_bits_per_second(800_000),
        burst: ByteCount::new(2_000),
    });
    let mut device = EmulatedDevice::new(policed, 1);
    // 1000 bytes each 2 ms are 4 Mbit/s; 100 bytes come into the bucket each millisecond.
    for number in 0..100 {
        send(&mut device, at(number * 2_000), (0, 1), 1_000);
    }
    let passed = deliveries(&mut device).len();
    // 2000 bytes of the bucket and 100 bytes/ms over 198 ms.
    assert_eq!(passed, 21);
    assert_eq!(device.counters().dropped_by_policer.packets, 79);
}

#[test]
fn unknown_port_is_counted_and_harmless() {
    let mut device = EmulatedDevice::new(model(DeviceQueueLimit::Packets(5)), 1);
    send(&mut device, at(0), (0, 4), 100);
    send(&mut device, at(0), (9, 1), 100);
    assert_eq!(deliveries(&mut device), []);
    assert_eq!(device.counters().dropped_no_port.packets, 2);
    let reasons: Vec<_> = std::iter::from_fn(|| device.poll_drop())
        .map(|drop| drop.reason)
        .collect();
    assert_eq!(reasons, [DeviceDropReason::NoSuchPort; 2]);
}

#[test]
fn polling_often_changes_nothing() {
    let devices = |step: u64| {
        let mut device = EmulatedDevice::new(
            DeviceModel {
                servers: Some(SharedServers {
                    count: 3,
                    service: SizeTimeTable::constant(Duration::from_micros(70)),
                }),
                input_queue: Some(DeviceQueueLimit::Packets(4)),
                ..model(DeviceQueueLimit::Bytes(ByteCount::new(5_000)))
            },
            1,
        );
        let mut found = Vec::new();
        let mut now = 0;
        for number in 0_u64..300 {
            let ports = ((number % 3) as u16, (number % 4) as u16);
            let arrives = number * 37 / 4;
            while now < arrives {
                now = (now + step).min(arrives);
                found.extend(std::iter::from_fn(|| device.poll_output(at(now))));
            }
            send(
                &mut device,
                at(arrives),
                ports,
                60 + (number * 131 % 1_400) as usize,
            );
        }
        found.extend(std::iter::from_fn(|| device.poll_output(at(10_000_000))));
        (found, device.counters())
    };
    assert_eq!(devices(1), devices(1_000));
    assert!(devices(1).1.dropped_by_input.packets > 0);
    assert!(devices(1).1.dropped_by_output.packets > 0);
}

#[test]
fn ethernet_header_counts_for_nothing() {
    let mut device = EmulatedDevice::with_framing(
        model(DeviceQueueLimit::Bytes(ByteCount::new(1_500))),
        1,
        LinkFraming::Ethernet,
    );
    // Three frames of 500-byte packets fill the queue; a byte more would refuse the third.
    for _ in 0..4 {
        send(&mut device, at(0), (0, 1), 514);
    }
    let times: Vec<u64> = deliveries(&mut device).iter().map(|end| end.1).collect();
    assert_eq!(times, [2_000, 2_500, 3_000]);
    let counters = device.counters();
    assert_eq!(
        counters.offered,
        TrafficCount {
            packets: 4,
            bytes: 2_000
        }
    );
    assert_eq!(counters.delivered.bytes, 1_500);
    assert_eq!(counters.held, TrafficCount::default());
}
