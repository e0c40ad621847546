//! The hash of the index's maps: keys are already hashes, so mixing in a seed is enough to keep
//! a peer from filling one bucket on purpose, and the same seed gives the same map.

use std::hash::{BuildHasher, Hasher};

/// Makes hashers that share a seed.
#[derive(Clone, Copy)]
pub(super) struct SeededBuildHasher(pub(super) u64);

/// Folds one key into the seed.
pub(super) struct SeededHasher(u64);

impl BuildHasher for SeededBuildHasher {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

impl Hasher for SeededHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        // The product's high half depends on every bit of the key, which the map's use of both
        // ends of the hash needs.
        let product = u128::from(key ^ self.0) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
