//! Count of equal bytes from two places on.
//!
//! ```text
//!  … s e l f . n e x t ( ) ;     one
//!  … s e l f . n e w ( ) ; }     other
//!              │ ahead ►         2 (of 32 at most)
//! ```
//!
//! The comparison always covers the longest possible result, without a data-dependent branch.

mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use portable::differing;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::differing;

/// Bytes that are compared together.
const LANES: usize = 16;
/// Bytes that [`ahead`] compares.
pub const AHEAD: usize = 2 * LANES;

/// Returns the number of equal bytes from these two places on, up to [`AHEAD`].
///
/// # Panics
/// When fewer than [`AHEAD`] bytes follow either place.
#[inline]
#[must_use]
pub fn ahead(bytes: &[u8], one: usize, other: usize) -> u32 {
    let [one, other]: [&[u8; AHEAD]; 2] = [one, other].map(|at| there(bytes, at));
    let ([one, one_more], _) = one.as_chunks() else {
        return 0;
    };
    let ([other, other_more], _) = other.as_chunks() else {
        return 0;
    };
    let low = differing(one, other);
    let high = differing(one_more, other_more);
    (u32::from(low) | u32::from(high) << LANES).trailing_zeros()
}

/// Has the processor fetch the bytes at this place, which are about to be read. Does nothing where they
/// are not, or on processors for which it is not written.
#[inline]
pub fn fetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(byte) = bytes.get(at) {
        x86::fetch(byte);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}

#[inline]
fn there<const LENGTH: usize>(bytes: &[u8], at: usize) -> &[u8; LENGTH] {
    let from = bytes.get(at..).unwrap_or_default();
    from.first_chunk().expect("as many bytes are there")
}
