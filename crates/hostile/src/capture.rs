//! Fuzz entry of `measure` for an untrusted capture: each transfer in the file gets a diagnosis
//! with finite numbers.

use capture::CaptureReader;
use measure::diagnosis::{TcpSegment, diagnose_capture};
use vocab::Time;

use crate::seed::{CorpusSeed, seed};

/// Segments of one input that are judged; more only take longer.
const SEGMENTS_MAX: usize = 20_000;

/// A capture, read and diagnosed.
pub(crate) fn diagnosis(bytes: &[u8]) {
    let Ok(mut frames) = CaptureReader::open(bytes) else {
        return;
    };
    let mut segments = Vec::new();
    while let Ok(Some(frame)) = frames.next_frame() {
        let segment = frame.network().and_then(|(packet, wire_bytes)| {
            TcpSegment::parse(Time::from_epoch(frame.at), packet, wire_bytes)
        });
        segments.extend(segment);
        if segments.len() >= SEGMENTS_MAX {
            break;
        }
    }
    for transfer in diagnose_capture(&segments) {
        assert!(!transfer.findings.is_empty());
        for finding in transfer.findings {
            assert!((0.0..=1.0).contains(&finding.confidence));
            let numbers = finding.parameters.named();
            assert!(numbers.iter().all(|(_, number)| number.is_finite()));
        }
    }
}

/// Good inputs for [`diagnosis`]: a transfer with stamps and selective acknowledgements that loses one
/// packet in seven, and one without losses, offloaded and begun before.
pub(crate) fn diagnosis_seeds() -> Vec<CorpusSeed> {
    let mut lossy = CaptureFile::new();
    lossy.packet(0, CaptureDirection::There, 999, None, 0, 0x02);
    lossy.packet(20_000, CaptureDirection::Back, 0, None, 0, 0x12);
    let mut whole = CaptureFile::new();
    for index in 0..80_u32 {
        let sequence = 1_000 + 1_000 * index;
        let at = 21_000 + 500 * index;
        lossy.packet(at, CaptureDirection::There, sequence, None, 1_000, 0x10);
        whole.packet(
            at,
            CaptureDirection::There,
            sequence.wrapping_add(u32::MAX - 40_000),
            None,
            1_000,
            0x10,
        );
        let is_lost = index % 7 == 6;
        if !is_lost {
            let block = (index > 6).then_some((sequence, sequence + 1_000));
            let reached = sequence.min(7_000) + if index < 6 { 1_000 } else { 0 };
            lossy.packet(at + 200, CaptureDirection::Back, reached, block, 0, 0x10);
        }
        let reached = sequence.wrapping_add(u32::MAX - 39_000);
        whole.packet(at + 200, CaptureDirection::Back, reached, None, 0, 0x10);
    }
    for index in (6..80_u32).step_by(7) {
        lossy.packet(
            90_000 + index,
            CaptureDirection::There,
            1_000 + 1_000 * index,
            None,
            1_000,
            0x10,
        );
    }
    lossy.packet(120_000, CaptureDirection::Back, 81_000, None, 0, 0x10);
    vec![seed("lossy", lossy.bytes), seed("whole", whole.bytes)]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CaptureDirection {
    There,
    Back,
}

/// A pcap file of raw IPv4 packets, headers only.
struct CaptureFile {
    bytes: Vec<u8>,
}

impl CaptureFile {
    fn new() -> Self {
        let mut bytes = Vec::new();
        for field in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 96, 101] {
            bytes.extend(field.to_le_bytes());
        }
        Self { bytes }
    }

    /// Makes a segment at a time in microseconds. `number` is its sequence number, or its
    /// acknowledgement number on the way back.
    fn packet(
        &mut self,
        at: u32,
        way: CaptureDirection,
        number: u32,
        block: Option<(u32, u32)>,
        payload: u16,
        flags: u8,
    ) {
        let (client, server) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let (from, to, ports) = match way {
            CaptureDirection::There => (client, server, [40_000_u16, 443]),
            CaptureDirection::Back => (server, client, [443, 40_000]),
        };
        let mut options = vec![1, 1, 8, 10];
        options.extend((at / 1_000).to_be_bytes());
        options.extend((at / 1_000).saturating_sub(10).to_be_bytes());
        if let Some((start, end)) = block {
            options.extend([1, 1, 5, 10]);
            options.extend(start.to_be_bytes());
            options.extend(end.to_be_bytes());
        }
        let header = 40 + options.len() as u16;
        let mut packet = vec![0x45, 0];
        packet.extend((header + payload).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        packet.extend(from);
        packet.extend(to);
        packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        let (sequence, reached) = match way {
            CaptureDirection::There => (number, 1),
            CaptureDirection::Back => (1, number),
        };
        packet.extend(sequence.to_be_bytes());
        packet.extend(reached.to_be_bytes());
        packet.extend([
            ((20 + options.len() as u8) / 4) << 4,
            flags,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ]);
        packet.extend(options);
        for field in [0, at, packet.len() as u32, u32::from(header + payload)] {
            self.bytes.extend(field.to_le_bytes());
        }
        self.bytes.extend(packet);
    }
}
