//! Bodies that the accelerators of this node want to keep in the dictionary: the pins of their
//! indexes.
//!
//! An index knows which of its bodies are most valuable. The dictionary protects those from
//! eviction, within the share of its memory and disk that is reserved for them (`reduce`,
//! `dictionary/pins.rs`). A pin is a request: a body beyond the share may be evicted like any
//! other. Pins end with the process.
//!
//! The handles of kept bodies use the node's memory. They take at most one part in [`KEPT_PART`] of
//! the flow memory; a request beyond that is not granted.

use std::collections::BTreeMap;

use reduce::{ContentHandle, ContentPin, Dictionary, PinState};

/// The divisor of the flow memory that handles of kept bodies may use: 8 MiB of 256 MiB, for 2 GB.
const KEPT_PART: usize = 32;

/// All kept bodies.
#[derive(Default)]
pub(crate) struct KeptContents {
    /// By the accelerator's number and the body's check.
    pins: BTreeMap<(u8, [u8; 32]), KeptContent>,
    held: usize,
}

struct KeptContent {
    pin: ContentPin,
    state: PinState,
    held: usize,
}

impl KeptContents {
    /// Bytes of memory that the handles take.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Begins to keep a body, if there is room for its handle in this much flow memory.
    pub(crate) fn keep(
        &mut self,
        dictionary: &mut Dictionary,
        accelerator: u8,
        handle: &ContentHandle,
        memory: usize,
    ) {
        let name = (accelerator, handle.check());
        let held = handle.held() + size_of::<KeptContent>() + size_of_val(&name);
        if self.pins.contains_key(&name) || self.held + held > memory / KEPT_PART {
            return;
        }
        let pin = dictionary.pin(handle);
        let state = dictionary.pin_more(&pin);
        if state != PinState::Missing {
            self.held += held;
            self.pins.insert(name, KeptContent { pin, state, held });
        }
    }

    /// The accelerator does not need the body any more.
    pub(crate) fn release(&mut self, accelerator: u8, handle: &ContentHandle) {
        if let Some(kept) = self.pins.remove(&(accelerator, handle.check())) {
            self.held -= kept.held;
        }
    }

    /// Continues with bodies that are too long to be pinned at once, one step each.
    pub(crate) fn pin_on(&mut self, dictionary: &mut Dictionary) {
        for kept in self.pins.values_mut() {
            if kept.state == PinState::Unfinished {
                kept.state = dictionary.pin_more(&kept.pin);
            }
        }
    }

    /// The dictionary is emptied.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reduce::{ContentWriter, DictionaryConfig};
    use vocab::SeededRandom;

    fn stored(dictionary: &mut Dictionary, seed: u64) -> ContentHandle {
        let mut body = vec![0; 50_000];
        SeededRandom::from_seed(seed).fill(&mut body);
        let mut writer = ContentWriter::new();
        writer.append(dictionary, &body).unwrap();
        writer.finish(dictionary).unwrap()
    }

    #[test]
    fn kept_body_handles_stay_within_their_limit() {
        let mut dictionary =
            Dictionary::new(DictionaryConfig::default(), SeededRandom::from_seed(1));
        let mut kept = KeptContents::default();
        let memory = 32 * 4_096;
        let handles: Vec<_> = (0..40).map(|seed| stored(&mut dictionary, seed)).collect();
        for handle in &handles {
            kept.keep(&mut dictionary, 2, handle, memory);
            kept.keep(&mut dictionary, 2, handle, memory);
            assert!(kept.held() <= 4_096);
        }
        let count = kept.pins.len();
        assert!(count > 5 && count < 40, "{count}");
        // Another accelerator's wish is its own.
        kept.release(3, &handles[0]);
        assert_eq!(kept.pins.len(), count);
        for handle in &handles {
            kept.release(2, handle);
        }
        assert_eq!((kept.pins.len(), kept.held()), (0, 0));
    }
}
