//! Cost of the flow layer: bulk data through two sessions in memory, and small exchanges.

#![allow(missing_docs, clippy::unwrap_used)]

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tunnel::{LinkId, OpenAnswer, OpenRequest, Session, SessionConfig, SessionEvent};
use vocab::{FlowId, NodeId, SeededRandom, Time};

const LINK: LinkId = LinkId(0);

fn pair() -> [Session; 2] {
    let ids = [NodeId([1; 32]), NodeId([2; 32])];
    let session = |side: usize| {
        let random = SeededRandom::from_seed(side as u64);
        Session::new(
            SessionConfig::default(),
            ids[side],
            ids[1 - side],
            random,
            Time::ZERO,
        )
    };
    let mut pair = [session(0), session(1)];
    for (side, session) in pair.iter_mut().enumerate() {
        session.link_up(Time::ZERO, LINK, side == 0);
    }
    while carry(&mut pair) {}
    for session in &mut pair {
        while session.poll_event().is_some() {}
    }
    pair
}

/// Moves what waits from each side to the other; `false` when nothing did.
fn carry(pair: &mut [Session; 2]) -> bool {
    let mut moved = false;
    for side in [0, 1] {
        if pair[side].wants_transmit().is_none() {
            continue;
        }
        if let Some(bytes) = pair[side].poll_transmit(Time::ZERO, LINK, 64 << 10) {
            pair[1 - side].handle(Time::ZERO, LINK, &bytes).unwrap();
            moved = true;
        }
    }
    moved
}

fn open(session: &mut Session) -> FlowId {
    let open = OpenRequest {
        client: "198.18.1.2:40000".parse().unwrap(),
        server: "198.18.2.2:80".parse().unwrap(),
        accelerator: 0,
        keep_client_address: true,
        may_store: true,
        dscp: 0,
    };
    session.open(Time::ZERO, open).unwrap()
}

fn bulk(pair: &mut [Session; 2], flows: &[FlowId], block: &Bytes, total: usize) {
    let mut left = total;
    while left > 0 {
        for flow in flows {
            if pair[0].writable(*flow) >= block.len() {
                pair[0].write(*flow, block.clone());
                left = left.saturating_sub(block.len());
            }
        }
        carry(pair);
        while let Some(event) = pair[1].poll_event() {
            if let SessionEvent::Readable { flow } = event {
                while pair[1].read(flow, usize::MAX).is_some() {}
                let received = pair[1].flow_statistics(flow).unwrap().received_bytes;
                pair[1].consumed(flow, received);
            }
        }
        while pair[0].poll_event().is_some() {}
    }
}

fn exchange(pair: &mut [Session; 2]) {
    let flow = open(&mut pair[0]);
    pair[0].write(flow, Bytes::from_static(&[7; 100]));
    pair[0].finish(flow);
    let mut closed = 0;
    while closed < 2 {
        if !carry(pair) {
            for session in pair.iter_mut() {
                if let Some(at) = session.poll_timeout() {
                    session.handle_timeout(at);
                }
            }
        }
        for side in [0, 1] {
            while let Some(event) = pair[side].poll_event() {
                match event {
                    SessionEvent::Opened { flow, .. } => {
                        pair[side].answer(flow, OpenAnswer::Connected);
                        pair[side].write(flow, Bytes::from_static(&[8; 1000]));
                        pair[side].finish(flow);
                    }
                    SessionEvent::Readable { flow } => {
                        while pair[side].read(flow, usize::MAX).is_some() {}
                        let received = pair[side].flow_statistics(flow).unwrap().received_bytes;
                        pair[side].consumed(flow, received);
                    }
                    SessionEvent::Closed { .. } => closed += 1,
                    _ => {}
                }
            }
        }
    }
}

fn benches(criterion: &mut Criterion) {
    const TOTAL: usize = 64 << 20;
    let block = Bytes::from(vec![5; 16 << 10]);
    let mut group = criterion.benchmark_group("session");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(TOTAL as u64));
    for count in [1, 100] {
        group.bench_function(format!("bulk/{count}_flows"), |bencher| {
            bencher.iter_batched_ref(
                || {
                    let mut pair = pair();
                    let flows: Vec<FlowId> = (0..count).map(|_| open(&mut pair[0])).collect();
                    (pair, flows)
                },
                |(pair, flows)| bulk(pair, flows, &block, TOTAL),
                BatchSize::PerIteration,
            );
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("exchange_100B_1000B", |bencher| {
        let mut pair = pair();
        bencher.iter(|| exchange(&mut pair));
    });
    group.finish();
}

criterion_group!(session, benches);
criterion_main!(session);
