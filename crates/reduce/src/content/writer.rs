//! Writer of a body that is stored while it is streamed.
//!
//! ```text
//! append ─► cut where its content says so ─► hash ─► is it in the dictionary? ─ yes ─► reference
//!                                                          └─ no ─► insert ─────────► reference
//! ```
//! Each body is cut from its own start, so that the same body has the same handle everywhere. A
//! body just decoded from the WAN was cut as part of its flow: its first chunks differ from the
//! flow's, but after some of them the cuts agree, so most chunks of a long body are already in the
//! dictionary. Complete chunks are used in place; only a chunk that continues in the next piece is
//! copied.

use thiserror::Error;

use super::handle::{ContentHandle, HandleBuilder};
use crate::chunker::Chunker;
use crate::dictionary::{Dictionary, InsertOutcome};
use crate::fingerprint::Fingerprint;

/// Reason why a body cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The body has more chunks than a handle may name.
    #[error("the body has more than {} chunks", crate::MAX_CONTENT_REFERENCES)]
    TooLong,
    /// A chunk of the body has the same key as another chunk.
    #[error("a chunk of the body has the key of another chunk in the dictionary")]
    Collides,
}

/// A body on its way into the dictionary.
///
/// Dropping it abandons the body. The chunks that it has put into the dictionary stay there, as any others,
/// until they are evicted.
#[derive(Debug)]
pub struct ContentWriter {
    chunker: Chunker,
    /// The chunk that has not ended.
    partial: Vec<u8>,
    builder: HandleBuilder,
    failed: Option<StoreError>,
}

impl Default for ContentWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ContentWriter {
    /// Makes a writer of a new body.
    ///
    /// The caller ensures that the body may be stored: do not pass content that a policy excludes
    /// from the dictionary.
    #[must_use]
    pub fn new() -> Self {
        Self {
            chunker: Chunker::default(),
            partial: Vec::new(),
            builder: HandleBuilder::new(),
            failed: None,
        }
    }

    /// Takes in the body's next bytes, cut anywhere.
    ///
    /// # Errors
    /// When the body cannot be stored; every later call fails too.
    pub fn append(&mut self, dictionary: &mut Dictionary, bytes: &[u8]) -> Result<(), StoreError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let stored = self.store(dictionary, bytes);
        if stored.is_err() {
            self.partial = Vec::new();
            self.failed = stored.err();
        }
        stored
    }

    /// Ends the body.
    ///
    /// # Errors
    /// When the body cannot be stored.
    pub fn finish(mut self, dictionary: &mut Dictionary) -> Result<ContentHandle, StoreError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.partial.is_empty() {
            let partial = std::mem::take(&mut self.partial);
            self.keep(dictionary, &[&partial])?;
        }
        Ok(self.builder.finish())
    }

    /// Bytes of memory that it holds: references, and the chunk that has not ended.
    #[must_use]
    pub fn held(&self) -> usize {
        self.partial.capacity() + self.builder.held()
    }

    fn store(&mut self, dictionary: &mut Dictionary, mut bytes: &[u8]) -> Result<(), StoreError> {
        if !self.partial.is_empty() {
            let Some(end) = self.chunker.cut(bytes) else {
                self.partial.extend_from_slice(bytes);
                return Ok(());
            };
            self.partial.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end..];
            let mut whole = std::mem::take(&mut self.partial);
            self.keep(dictionary, &[&whole])?;
            whole.clear();
            self.partial = whole;
        }
        let mut chunks = Vec::new();
        while let Some(end) = self.chunker.cut(bytes) {
            chunks.push(&bytes[..end]);
            bytes = &bytes[end..];
        }
        self.partial.extend_from_slice(bytes);
        self.keep(dictionary, &chunks)
    }

    /// Puts whole chunks into the dictionary and notes their references.
    fn keep(&mut self, dictionary: &mut Dictionary, chunks: &[&[u8]]) -> Result<(), StoreError> {
        for (chunk, fingerprint) in chunks.iter().zip(Fingerprint::of_each(chunks)) {
            if !self.builder.push(fingerprint, chunk.len()) {
                return Err(StoreError::TooLong);
            }
            match dictionary.keep(&fingerprint, chunk) {
                InsertOutcome::Here | InsertOutcome::Added => {}
                InsertOutcome::Refused => return Err(StoreError::Collides),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DictionaryConfig, MAX_CONTENT_REFERENCES};

    #[test]
    fn too_long_body_stays_refused() {
        let random = vocab::SeededRandom::from_seed(1);
        let mut dictionary = Dictionary::new(DictionaryConfig::default(), random);
        let mut writer = ContentWriter::new();
        for number in 0..MAX_CONTENT_REFERENCES {
            let fingerprint = Fingerprint::of(&number.to_be_bytes());
            assert!(writer.builder.push(fingerprint, 8_192));
        }
        let refused = writer.append(&mut dictionary, &[0; 70_000]);
        assert_eq!(refused, Err(StoreError::TooLong));
        let refused = writer.append(&mut dictionary, &[]);
        assert_eq!(refused, Err(StoreError::TooLong));
        assert_eq!(writer.finish(&mut dictionary), Err(StoreError::TooLong));
    }
}
