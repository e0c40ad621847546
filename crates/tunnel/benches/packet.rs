//! Cost of sealing on one core: packets of 1,400 bytes are sealed, opened, and both.

#![allow(missing_docs, clippy::unwrap_used)]

use std::convert::Infallible;
use std::hint::black_box;

use bytes::BytesMut;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tunnel::packet::{
    CipherSuite, ConnectionId, ConnectionIds, KeyContext, KeyLimits, OVERHEAD, PacketOpener,
    PacketSealer, PathSecret, TlsRole,
};
use vocab::{NodeId, Time};

/// A whole packet, as it is handed to a socket.
const PACKET: usize = 1_400;

/// Packets of one batch, as GSO takes them.
const BATCH: usize = 32;

fn end(suite: CipherSuite, role: TlsRole) -> (PacketSealer, PacketOpener) {
    let context = KeyContext {
        version: 1,
        suite,
        dialler: NodeId([1; 32]),
        listener: NodeId([2; 32]),
        dialler_nonce: [3; 16],
        listener_nonce: [4; 16],
    };
    let Ok(mut secret) = PathSecret::export(role, context, |room, _, _| {
        room.fill(5);
        Ok::<(), Infallible>(())
    });
    let connection_ids = ConnectionIds {
        ours: ConnectionId([7; 8]),
        theirs: ConnectionId([7; 8]),
    };
    secret
        .path(Time::ZERO, 0, connection_ids, KeyLimits::of(suite))
        .unwrap()
}

/// Fills and seals a batch of packets one behind the other.
fn seal(sealer: &mut PacketSealer, batch: &mut BytesMut) {
    batch.clear();
    for _ in 0..BATCH {
        let start = PacketSealer::begin(batch);
        batch.resize(batch.len() + PACKET - OVERHEAD, 0x5a);
        let number = sealer.seal(Time::ZERO, batch, start).unwrap();
        sealer.acknowledged(Time::ZERO, number);
    }
}

fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packet");
    group.throughput(Throughput::Elements(BATCH as u64));
    for suite in [CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305] {
        let name = format!("{suite:?}");
        let mut batch = BytesMut::with_capacity(BATCH * PACKET);
        let (mut sealer, _) = end(suite, TlsRole::Dialler);
        sealer.set_probe_timeout(std::time::Duration::ZERO);
        group.bench_function(BenchmarkId::new("seal", &name), |bencher| {
            bencher.iter(|| seal(&mut sealer, black_box(&mut batch)));
        });
        let (mut sealer, _) = end(suite, TlsRole::Dialler);
        sealer.set_probe_timeout(std::time::Duration::ZERO);
        let (_, mut opener) = end(suite, TlsRole::Listener);
        group.bench_function(BenchmarkId::new("seal_and_open", &name), |bencher| {
            bencher.iter(|| {
                seal(&mut sealer, &mut batch);
                for datagram in batch.chunks_mut(PACKET) {
                    black_box(opener.open(Time::ZERO, datagram).unwrap());
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
