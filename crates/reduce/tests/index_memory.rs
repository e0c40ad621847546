//! Memory of the index: every byte that a reopened dictionary keeps allocated, counted by the
//! allocator. Chunk bytes are not included; they are read again when needed.
#![allow(
    unsafe_code,
    reason = "an allocator that counts can only be made of the system's"
)]

mod sides;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use reduce::testing::MemoryDisk;
use reduce::{Dictionary, DictionaryConfig};
use sides::{TestFlow, TestSide, key, noise};
use vocab::{ByteCount, SeededRandom};

struct CountingAllocator;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

/// Bytes of memory for each GiB on disk at most.
const MOST_FOR_A_GIB: usize = 6 << 20;

#[test]
fn stored_gibibyte_needs_at_most_six_mebibytes() {
    let config = DictionaryConfig {
        memory: ByteCount::mebibytes(32),
        disk: ByteCount::mebibytes(256),
        segment: ByteCount::mebibytes(4),
    };
    let mut far = TestSide::with(2, config, MemoryDisk::new());
    for seed in 0..12 {
        TestFlow::new().transfer(&mut TestSide::new(1), &mut far, &noise(seed, 4 << 20));
    }
    let mut disk = far.disk;
    drop(far.dictionary);
    let stored = disk.bytes() as usize;

    let mut again = Dictionary::with_key(config, key(), SeededRandom::from_seed(3));
    let before = ALLOCATED.load(Ordering::Relaxed);
    again.open();
    disk.serve(&mut again);
    let index = ALLOCATED.load(Ordering::Relaxed) - before;
    let statistics = again.statistics();
    assert!(statistics.chunks as usize * 64 * 1024 > stored);
    let for_a_gib = (index as u64 * (1 << 30) / stored as u64) as usize;
    assert!(for_a_gib <= MOST_FOR_A_GIB, "{for_a_gib} bytes");

    // And what the dictionary says of itself is what the allocator counts.
    let said = statistics.index_bytes as usize;
    assert!(
        said.abs_diff(index) <= index / 50,
        "{said} said, {index} counted"
    );
}
