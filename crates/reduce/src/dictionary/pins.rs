//! Pinned bodies: those that are being read, and those that an index wants to keep.
//!
//! ```text
//! ContentPin (one for each who holds it) ─► PinnedBody: handle, how far it is pinned ─► pins in the index
//!      the last one is dropped            ─► its chunks are unpinned, a step at a time
//! ```
//! A pin protects stored chunks from eviction. It is no guarantee: the dictionary's limits hold in
//! any case. At most one part in [`PINNED_MEMORY_PART`] of the memory is pinned, and one part in
//! [`PINNED_DISK_PART`] of the disk, counted in whole segments, because a segment is dropped as a
//! whole. Bodies kept for an index may use half of that, so that there is room for readers. Where
//! there is no room, the rest of the body stays unpinned. If nothing else can be evicted, pinned
//! chunks are.
//!
//! Readers of the same part of the same body share one entry here, so a thousand readers of a body
//! pin it once. A damaged chunk that is removed while pinned loses its pins. If it returns and is
//! pinned again, the first reader that releases it takes the new pin. That can fail a read, but
//! never delivers a wrong byte.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Dictionary, DiskLocation};
use crate::config::{MAX_PINNED_BODIES, PIN_STEP, PINNED_DISK_PART, PINNED_MEMORY_PART};
use crate::content::{BodyReference, ContentHandle};

/// Purpose of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PinPurpose {
    /// The body is being read.
    Reading,
    /// An index wants it kept. It may have half of what readers may have.
    Keeping,
}

/// Progress of pinning a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinState {
    /// [`Dictionary::pin_more`] is to be called again.
    Unfinished,
    /// The whole body is stored and pinned.
    Pinned,
    /// The limit was reached; the rest of the body may be evicted.
    NoRoom,
    /// A chunk of it is not here.
    Missing,
}

/// Holds a body's chunks in the dictionary until it and all its clones are dropped.
#[derive(Clone, Debug)]
pub struct ContentPin(Arc<PinName>);

/// Name of a pin: the body, the part of it, and the purpose.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PinName {
    check: [u8; 32],
    /// The numbers of the first reference and of the one behind the last.
    first: usize,
    end: usize,
    purpose: PinPurpose,
}

/// Pinned bodies by name.
#[derive(Debug, Default)]
pub(super) struct PinnedBodies(BTreeMap<PinName, PinnedBody>);

#[derive(Debug)]
struct PinnedBody {
    name: Arc<PinName>,
    handle: ContentHandle,
    /// The first reference that is not pinned.
    next: usize,
    state: PinState,
}

impl PinnedBodies {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Dictionary {
    /// Starts to pin a whole body for an index; [`Self::pin_more`] continues it.
    #[must_use]
    pub fn pin(&mut self, handle: &ContentHandle) -> ContentPin {
        self.pin_references(handle, 0..handle.count(), PinPurpose::Keeping)
    }

    /// Begins to pin these references of a body.
    pub(crate) fn pin_references(
        &mut self,
        handle: &ContentHandle,
        references: Range<usize>,
        purpose: PinPurpose,
    ) -> ContentPin {
        self.release_pins();
        let name = PinName {
            check: handle.check(),
            first: references.start,
            end: references.end,
            purpose,
        };
        if let Some(body) = self.pinned_bodies.0.get(&name) {
            return ContentPin(Arc::clone(&body.name));
        }
        let shared = Arc::new(name.clone());
        if self.pinned_bodies.0.len() < MAX_PINNED_BODIES {
            let body = PinnedBody {
                name: Arc::clone(&shared),
                handle: handle.clone(),
                next: references.start,
                state: PinState::Unfinished,
            };
            self.pinned_bodies.0.insert(name, body);
        }
        ContentPin(shared)
    }

    /// Pins up to [`PIN_STEP`] more chunks of the body, which bounds the work of a call.
    pub fn pin_more(&mut self, pin: &ContentPin) -> PinState {
        let Some(mut body) = self.pinned_bodies.0.remove(&*pin.0) else {
            // There are too many, or the dictionary was cleared meanwhile.
            return PinState::NoRoom;
        };
        if Arc::ptr_eq(&body.name, &pin.0) && body.state == PinState::Unfinished {
            body.state = self.pin_step(&mut body);
        }
        let state = body.state;
        self.pinned_bodies.0.insert((*body.name).clone(), body);
        state
    }

    fn pin_step(&mut self, body: &mut PinnedBody) -> PinState {
        let end = body.name.end.min(body.next + PIN_STEP);
        let handle = body.handle.clone();
        for reference in handle.references(body.next).take(end - body.next) {
            match self.pin_chunk(&reference, body.name.purpose) {
                PinState::Pinned | PinState::Unfinished => body.next += 1,
                other => return other,
            }
        }
        match body.next < body.name.end {
            true => PinState::Unfinished,
            false => PinState::Pinned,
        }
    }

    fn pin_chunk(&mut self, reference: &BodyReference, purpose: PinPurpose) -> PinState {
        let fingerprint = &reference.fingerprint;
        let known = self.index.get(fingerprint.key());
        let known = known
            .filter(|known| known.check == fingerprint.check() && known.length == reference.length);
        let Some(known) = known else {
            return PinState::Missing;
        };
        let has_room = known.is_pinned || self.has_room_for_pin(known.place, known.length, purpose);
        match has_room && self.index.pin(known.slot) {
            true => PinState::Pinned,
            false => PinState::NoRoom,
        }
    }

    fn has_room_for_pin(&self, place: DiskLocation, length: usize, purpose: PinPurpose) -> bool {
        let part = match purpose {
            PinPurpose::Reading => 1,
            PinPurpose::Keeping => 2,
        };
        let pinned = self.index.pinned();
        let more_segments = match place {
            DiskLocation::At { segment, .. } => usize::from(!self.index.is_segment_pinned(segment)),
            // It is going to be in the segment that is appended to, or in the next one.
            DiskLocation::Queued | DiskLocation::Writing => 1,
            DiskLocation::Nowhere => {
                let most = self.memory_cap() as u64 / (PINNED_MEMORY_PART * part);
                return pinned.memory_bytes + length as u64 <= most;
            }
        };
        let bytes = (pinned.segments + more_segments) as u64 * self.log.segment_size();
        bytes <= self.log.cap / (PINNED_DISK_PART * part)
    }

    /// Unpins chunks of bodies without holders, up to [`PIN_STEP`] of each.
    pub(super) fn release_pins(&mut self) {
        let unused = |body: &PinnedBody| Arc::strong_count(&body.name) == 1;
        if !self.pinned_bodies.0.values().any(unused) {
            return;
        }
        let mut bodies = std::mem::take(&mut self.pinned_bodies.0);
        for body in bodies.values_mut().filter(|body| unused(body)) {
            let from = body.name.first.max(body.next.saturating_sub(PIN_STEP));
            for reference in body.handle.references(from).take(body.next - from) {
                let fingerprint = &reference.fingerprint;
                let known = self.index.get(fingerprint.key());
                if let Some(known) = known.filter(|known| known.check == fingerprint.check()) {
                    self.index.unpin(known.slot);
                }
            }
            body.next = from;
            body.state = PinState::Unfinished;
        }
        bodies.retain(|name, body| !unused(body) || body.next > name.first);
        self.pinned_bodies.0 = bodies;
    }

    /// Bytes that are pinned in memory.
    #[cfg(test)]
    pub(crate) fn pinned_memory_bytes(&self) -> u64 {
        self.index.pinned().memory_bytes
    }

    /// Segments that hold a pinned chunk.
    #[cfg(test)]
    pub(crate) fn pinned_segments(&self) -> usize {
        self.index.pinned().segments
    }
}
