//! Accelerators that exist in tests only, each for one thing that the contract promises.
//!
//! Both speak a line protocol. [`cache`] answers some lines at the near node; [`fan`] has its far
//! half ask the server over several connections.

pub mod cache;
pub mod fan;

use bytes::{Bytes, BytesMut};

/// The received bytes of an incomplete line.
#[derive(Default)]
struct LineBuffer(BytesMut);

impl LineBuffer {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole line with its end.
    fn next(&mut self) -> Option<Bytes> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        Some(self.0.split_to(end + 1).freeze())
    }

    fn rest(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

/// Returns the text after this word in a line.
fn after<'a>(line: &'a [u8], word: &str) -> Option<&'a str> {
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix(word).map(str::trim)
}
