//! The remote operations (ROPs) inside the calls of EMSMDB ([MS-OXCROPS]).
//!
//! `buffer.rs` splits a ROP buffer, `request.rs` and `response.rs` read the lists, `values.rs` the
//! fields, and `id.rs` has the numbers. A list with a ROP that is not known is not read any
//! further, and nothing is guessed about it.

pub mod buffer;
pub mod id;
pub mod request;
pub mod response;
pub mod tactics;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod values;

use thiserror::Error;

/// A ROP buffer that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RopError {
    /// It ends in the middle of a field.
    #[error("the ROPs end in the middle of a field")]
    Truncated,
    /// Its size contradicts its bytes.
    #[error("the size of the ROP buffer contradicts its bytes")]
    Size,
    /// It has a ROP or a value that is not known.
    #[error("a ROP or a value is not known")]
    Unknown,
}
