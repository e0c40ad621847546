//! Tests that captures of any length, damaged or not, are judged in bounded work.

use std::net::SocketAddr;

use vocab::{SeededRandom, Time};

use super::super::segment::TcpOptions;
use super::super::statistics::looks;
use super::*;

const MOST: PacketLimits = PacketLimits {
    of_stream: 20_000,
    of_all: 30_000,
};
/// Greatest number of times that a packet is looked at, in all searches together.
const LOOKS: u64 = 3_000;

/// Segments of a transfer, of which a share has a damaged field, or whole stretches are missing.
fn bent(segments: u32, share: f64, random: &mut SeededRandom) -> Vec<TcpSegment> {
    let address =
        |host: u64, port: u64| SocketAddr::from(([10, 0, 0, host as u8], 1_000 + port as u16));
    let mut sequence = 0_u32;
    let segment = |place: u32| {
        let is_answer = place % 3 == 2;
        let is_again = place.is_multiple_of(30) && place > 60;
        let is_bent = random.next_f64() < share;
        let any = random.next_u64() as u32;
        let field = if is_bent { random.below(8) } else { 8 };
        let host = if field == 0 { random.below(9) } else { 1 };
        let port = if field == 1 { random.below(900) } else { 0 };
        let (here, there) = (address(host, port), address(20, 0));
        let blocks = [(0, 1), (1, 2), (2, 3), (3, 4)];
        let segment = TcpSegment {
            at: Time::from_nanos(match field {
                2 => u64::from(any) * 1_000,
                _ => u64::from(place) * 100_000,
            }),
            source: if is_answer { there } else { here },
            destination: if is_answer { here } else { there },
            sequence: match field {
                3 => any,
                // A hole of up to the largest window.
                4 => sequence.wrapping_add(any >> 6),
                _ if is_again => sequence.wrapping_sub(14_480),
                _ => sequence,
            },
            acknowledgement: is_answer
                .then(|| sequence.wrapping_sub(if field == 5 { any } else { 28_960 })),
            opens: place == 0,
            ends: false,
            window: 0xffff,
            payload_bytes: match (is_answer, field) {
                (true, _) => 0,
                (false, 6) => any >> (any % 32),
                (false, _) => 1_448,
            },
            header_bytes: 52,
            options: TcpOptions {
                segment_bytes: (place == 0).then_some(1_460),
                window_scale: Some(7),
                stamps: Some((place / 10, place / 10)),
                blocks: match field {
                    7 => {
                        blocks.map(|(from, to)| Some((any.rotate_left(from), any.rotate_left(to))))
                    }
                    _ => [None; 4],
                },
            },
        };
        if !is_answer && !is_again {
            sequence = match field {
                4 => segment.sequence.wrapping_add(1_448),
                _ => sequence.wrapping_add(1_448),
            };
        }
        segment
    };
    (0..segments).map(segment).collect()
}

#[test]
fn damaged_capture_is_judged_within_a_work_limit() {
    let mut random = SeededRandom::from_seed(5);
    for share in [0.0, 0.001, 0.3, 1.0] {
        let segments = bent(200_000, share, &mut random);
        looks::take();
        let transfers = diagnose_within(&segments, MOST);
        let looked = looks::take();
        assert!(looked < LOOKS * MOST.of_all as u64, "{share}: {looked}");
        // One hole may be all that is looked at.
        let least = if share > 0.0 {
            1
        } else {
            100 * MOST.of_stream as u64
        };
        assert!(looked > least, "{share}: {looked}");
        assert!(transfers[0].left_out.bytes() > 0, "{share}");
        assert!(
            transfers
                .iter()
                .all(|transfer| !transfer.findings.is_empty())
        );
    }
}

#[test]
fn omitted_packets_do_not_change_the_diagnosis() {
    let segments = bent(60_000, 0.0, &mut SeededRandom::from_seed(6));
    let most = |of_stream: usize| PacketLimits { of_stream, ..MOST };
    let cut = diagnose_within(&segments, most(10_000)).remove(0);
    let short = diagnose_within(&segments[..15_000], most(20_000)).remove(0);
    assert_eq!(short.left_out, ByteCount::new(0));
    assert_eq!(cut.payload, short.payload);
    assert_eq!(cut.payload.bytes() + cut.left_out.bytes(), 40_000 * 1_448);
    assert_eq!(cut.findings, short.findings);
}
