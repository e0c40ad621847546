//! The choice of a kernel, and the tree above the leaves.

use std::cmp::Reverse;

use super::{HASH, LEAF, LaneJob};

/// A way to hash many inputs; all give the same hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blake3Kernel(Blake3Instructions);

/// Instruction set of the kernel. A variant exists only after the processor's support was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blake3Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Blake3Kernel {
    /// The kernel for this processor; `None` where one input after the other is as fast.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return Some(Self(Blake3Instructions::Avx512));
        }
        None
    }

    /// The BLAKE3 hash of each input.
    #[must_use]
    pub fn hash_each(self, inputs: &[&[u8]]) -> Vec<[u8; HASH]> {
        let mut jobs = Vec::new();
        // How many results of the level at hand belong to each input.
        let mut widths = Vec::with_capacity(inputs.len());
        for input in inputs {
            let leaves = input.len().div_ceil(LEAF).max(1);
            widths.push(leaves);
            if leaves == 1 {
                jobs.push(LaneJob::leaf(input, 0, 1));
            } else {
                let pieces = input.chunks(LEAF).enumerate();
                jobs.extend(pieces.map(|(number, piece)| LaneJob::leaf(piece, number, leaves)));
            }
        }
        let mut level = vec![[0; HASH]; jobs.len()];
        self.run_leaves(jobs, &mut level);
        while widths.iter().any(|width| *width > 1) {
            level = self.next_level(&level, &mut widths);
        }
        level
    }

    /// Hashes leaves. Whole ones share their vectors with whole ones, which are nearly all of them, and
    /// shorter ones with those of about their length: lanes of different lengths need care with each
    /// block, and one that is through waits for the longest.
    fn run_leaves(self, jobs: Vec<LaneJob<'_>>, results: &mut [[u8; HASH]]) {
        let jobs = jobs.into_iter().enumerate();
        let (mut jobs, mut short): (Vec<_>, Vec<_>) =
            jobs.partition(|(_, job)| job.bytes.len() == LEAF);
        short.sort_unstable_by_key(|(_, job)| Reverse(job.bytes.len()));
        jobs.append(&mut short);
        let (places, jobs): (Vec<usize>, Vec<LaneJob<'_>>) = jobs.into_iter().unzip();
        let mut hashed = vec![[0; HASH]; jobs.len()];
        self.run(&jobs, &mut hashed);
        for (place, hash) in places.into_iter().zip(hashed) {
            results[place] = hash;
        }
    }

    /// Hashes the pairs of each input's results; one that is left over goes up as it is, which
    /// gives the tree of section 2.1: the left of two subtrees is the largest full one.
    fn next_level(self, level: &[[u8; HASH]], widths: &mut [usize]) -> Vec<[u8; HASH]> {
        let (mut jobs, mut odd) = (Vec::with_capacity(level.len() / 2), Vec::new());
        let (mut at, mut after) = (0, 0);
        for width in widths {
            let results = &level[at..at + *width];
            at += *width;
            let (pairs, rest) = results.as_chunks::<2>();
            jobs.extend(
                pairs
                    .iter()
                    .map(|pair| LaneJob::parent(pair.as_flattened(), *width)),
            );
            after += pairs.len();
            if let [last] = rest {
                odd.push((after, *last));
                after += 1;
            }
            *width = width.div_ceil(2);
        }
        let mut hashed = vec![[0; HASH]; jobs.len()];
        self.run(&jobs, &mut hashed);
        let mut hashed = hashed.into_iter();
        let mut next = Vec::with_capacity(after);
        for (place, last) in odd {
            next.extend(hashed.by_ref().take(place - next.len()));
            next.push(last);
        }
        next.extend(hashed);
        next
    }

    #[cfg_attr(target_arch = "x86_64", allow(unsafe_code))]
    fn run(self, jobs: &[LaneJob<'_>], results: &mut [[u8; HASH]]) {
        match self.0 {
            // SAFETY: the variant exists only where the processor has AVX-512 F.
            #[cfg(target_arch = "x86_64")]
            Blake3Instructions::Avx512 => unsafe { super::x86::run_avx512(jobs, results) },
        }
    }
}
