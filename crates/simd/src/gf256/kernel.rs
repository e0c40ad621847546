//! Selection of a kernel, and the safe interface to all of them.
//!
//! A [`Gf256Kernel`] can only be made by [`Gf256Kernel::detect`] or [`Gf256Kernel::available`],
//! which check the processor first, so every kernel is safe to call. It is a byte in size and is
//! copied freely.

use super::portable;

/// A way to multiply slices by constants; all give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gf256Kernel(Gf256Instructions);

/// Instruction set of the kernel. A variant exists only after the processor's support was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gf256Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    GfniAvx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Gf256Kernel {
    /// The fastest kernel that this processor has.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if has_gfni_avx512() {
                return Self(Gf256Instructions::GfniAvx512);
            }
            if is_x86_feature_detected!("avx2") {
                return Self(Gf256Instructions::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Self(Gf256Instructions::Neon);
        }
        Self(Gf256Instructions::Portable)
    }

    /// The kernel that every processor has.
    #[must_use]
    pub fn portable() -> Self {
        Self(Gf256Instructions::Portable)
    }

    /// Every kernel that this processor has, for tests and benchmarks.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut kernels = vec![Self::portable()];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                kernels.push(Self(Gf256Instructions::Avx2));
            }
            if has_gfni_avx512() {
                kernels.push(Self(Gf256Instructions::GfniAvx512));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            kernels.push(Self(Gf256Instructions::Neon));
        }
        kernels
    }

    /// Its name, for people: `"GFNI and AVX-512"`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Gf256Instructions::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Gf256Instructions::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Gf256Instructions::GfniAvx512 => "GFNI and AVX-512",
            #[cfg(target_arch = "aarch64")]
            Gf256Instructions::Neon => "NEON",
        }
    }

    /// Adds `constant · source` to `target`, element by element.
    ///
    /// # Panics
    /// When the slices differ in length.
    pub fn mul_add(self, target: &mut [u8], source: &[u8], constant: u8) {
        self.mul_add_many(target, &[(source, constant)]);
    }

    /// Adds `constant · source` to `target` for every pair of `terms`, element by element.
    ///
    /// Faster than one [`mul_add`](Self::mul_add) after the other, since a piece of the target stays
    /// in registers while all sources pass.
    ///
    /// # Panics
    /// When a source and the target differ in length.
    #[cfg_attr(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        allow(unsafe_code)
    )]
    pub fn mul_add_many(self, target: &mut [u8], terms: &[(&[u8], u8)]) {
        assert!(
            terms.iter().all(|(source, _)| source.len() == target.len()),
            "every source is as long as the target"
        );
        match self.0 {
            Gf256Instructions::Portable => {
                for (source, constant) in terms {
                    portable::mul_add(target, source, *constant);
                }
            }
            // SAFETY: the variant exists only where the processor has AVX2; lengths are equal.
            #[cfg(target_arch = "x86_64")]
            Gf256Instructions::Avx2 => unsafe { super::x86::mul_add_many_avx2(target, terms) },
            // SAFETY: the variant exists only where the processor has GFNI, AVX-512 F and BW;
            // lengths are equal.
            #[cfg(target_arch = "x86_64")]
            Gf256Instructions::GfniAvx512 => unsafe {
                super::x86::mul_add_many_gfni(target, terms);
            },
            // SAFETY: the variant exists only where the processor has NEON; lengths are equal.
            #[cfg(target_arch = "aarch64")]
            Gf256Instructions::Neon => unsafe { super::neon::mul_add_many(target, terms) },
        }
    }

    /// Multiplies every element of `target` by `constant`.
    #[cfg_attr(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        allow(unsafe_code)
    )]
    pub fn scale(self, target: &mut [u8], constant: u8) {
        match self.0 {
            Gf256Instructions::Portable => portable::scale(target, constant),
            // SAFETY: the variant exists only where the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            Gf256Instructions::Avx2 => unsafe { super::x86::scale_avx2(target, constant) },
            // SAFETY: the variant exists only where the processor has GFNI, AVX-512 F and BW.
            #[cfg(target_arch = "x86_64")]
            Gf256Instructions::GfniAvx512 => unsafe { super::x86::scale_gfni(target, constant) },
            // SAFETY: the variant exists only where the processor has NEON.
            #[cfg(target_arch = "aarch64")]
            Gf256Instructions::Neon => unsafe { super::neon::scale(target, constant) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_gfni_avx512() -> bool {
    is_x86_feature_detected!("gfni")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
}
