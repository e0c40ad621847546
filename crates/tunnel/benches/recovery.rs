//! Cost of loss recovery for each packet on a long fat path.
//!
//! 65,536 packets are in flight (more than 1 Gbit/s with 500 ms of delay needs in full packets),
//! one in fifty is lost, and every 32 packets are acknowledged.
//!
//! Time advances by a packet's time on the line. A lost packet is declared lost and forgotten; its
//! number is not used again. The receiver is the real one and chooses the length of its
//! acknowledgements.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use path::RttEstimator;
use tunnel::packet::PacketAck;
use tunnel::recovery::{
    AckRequest, EcnMarking, OutgoingPacket, PacketKind, ReceivedPacket, ReceivedPackets,
    SentPackets,
};
use vocab::{SeededRandom, Time};

/// Content that a transport keeps with each packet.
type BenchContent = [u64; 16];

const LOSS: f64 = 0.02;
const INTERVAL: Duration = Duration::from_micros(8);

struct BenchPath {
    now: Time,
    sender: SentPackets<BenchContent>,
    receiver: ReceivedPackets,
    /// Packets on the way there and acknowledgements on the way back, by the time they arrive.
    there: VecDeque<(Time, u64)>,
    back: VecDeque<(Time, PacketAck)>,
    one_way: Duration,
    next: u64,
    random: SeededRandom,
}

impl BenchPath {
    fn new(under_way: u64) -> Self {
        let now = Time::ZERO;
        let one_way = INTERVAL * u32::try_from(under_way / 2).unwrap_or(u32::MAX);
        let mut ends = Self {
            now,
            sender: SentPackets::new(now, RttEstimator::new(one_way * 2)),
            receiver: ReceivedPackets::new(now, one_way * 2),
            there: VecDeque::new(),
            back: VecDeque::new(),
            one_way,
            next: 0,
            random: SeededRandom::from_seed(1),
        };
        for _ in 0..under_way * 3 {
            ends.step();
        }
        ends
    }

    /// One packet goes out, and whatever arrives meanwhile is handled.
    fn step(&mut self) {
        self.now += INTERVAL;
        let now = self.now;
        self.sender.sent(
            now,
            OutgoingPacket {
                number: self.next,
                bytes: 1_500,
                kind: PacketKind::Eliciting,
                is_marked: false,
                symbol: None,
                content: [self.next; 16],
            },
        );
        if self.random.next_f64() >= LOSS {
            self.there.push_back((now + self.one_way, self.next));
        }
        self.next += 1;
        while self.there.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, number)) = self.there.pop_front() else {
                break;
            };
            let arrival = ReceivedPacket {
                number,
                asks: AckRequest::Acknowledgement,
                codepoint: EcnMarking::NotEct,
            };
            self.receiver.on_packet(now, arrival);
        }
        if self.receiver.poll_timeout().is_some_and(|due| due <= now)
            && let Some(telling) = self.receiver.pending_ack(now, 256)
        {
            self.receiver.on_ack_sent(now, &telling);
            let acknowledgement = telling.acknowledgement;
            self.back.push_back((now + self.one_way, acknowledgement));
        }
        while self.back.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, acknowledgement)) = self.back.pop_front() else {
                break;
            };
            black_box(self.sender.on_acknowledgement(now, &acknowledgement)).ok();
        }
        if self.sender.poll_timeout().is_some_and(|due| due <= now) {
            black_box(self.sender.handle_timeout(now));
        }
    }
}

fn sent_and_acknowledged(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("recovery");
    group.throughput(Throughput::Elements(1));
    for under_way in [64, 4_096, 65_536] {
        let mut ends = BenchPath::new(under_way);
        assert!(
            ends.sender.statistics().spurious == 0,
            "nothing is reordered"
        );
        let id = BenchmarkId::new("sent_received_acknowledged", under_way);
        group.bench_function(id, |bencher| bencher.iter(|| ends.step()));
    }
    group.finish();
}

criterion_group!(benches, sent_and_acknowledged);
criterion_main!(benches);
