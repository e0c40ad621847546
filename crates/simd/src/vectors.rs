//! The vector instructions of this processor, for kernels that need no others than the plain ones.

/// Instruction set of a kernel. A variant exists only after the processor's support was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VectorInstructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F and BW.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl VectorInstructions {
    /// The widest that this processor has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512bw") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// All that this processor has, the widest last.
    pub(crate) fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut vectors = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                vectors.push(Self::Avx2);
            }
            if is_x86_feature_detected!("avx512bw") {
                vectors.push(Self::Avx512);
            }
        }
        vectors
    }
}
