//! Windows: zstd's history of a flow's literals from one record to the next, within a budget.
//!
//! ```text
//!  flow 7 ──► slot { owner: window 12, context, last used }      a slot unused for a while is
//!  flow 9 ──► slot { owner: window 31, context, last used }      given to the next that asks
//! ```
//!
//! A window is a zstd context with its history. It belongs to one direction of one flow, so no flow
//! waits for another's bytes. The number of windows is limited for all flows of a node. A flow that
//! gets none continues without, and one whose window was given away begins another. The stream says
//! which records need which window (`docs/formats/reduced-stream.md`).

/// Number of rounds over all slots after which an unused slot may be taken from its owner: flows
/// that are all busy keep their windows.
const PATIENCE: u64 = 8;

/// Names one window of one pool; never used twice there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowId(u64);

/// The windows of one kind.
pub(crate) struct WindowPool<T> {
    slots: Vec<WindowSlot<T>>,
    most: usize,
    given: u64,
    uses: u64,
}

struct WindowSlot<T> {
    owner: Option<WindowId>,
    used: u64,
    context: T,
}

impl<T> WindowPool<T> {
    /// A pool that makes `most` contexts at most, each when it is first needed.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            slots: Vec::new(),
            most,
            given: 0,
            uses: 0,
        }
    }

    /// The context of this window, if it still has one.
    pub(crate) fn find(&mut self, id: WindowId) -> Option<&mut T> {
        self.uses += 1;
        let uses = self.uses;
        let owned = |slot: &&mut WindowSlot<T>| slot.owner == Some(id);
        let slot = self.slots.iter_mut().find(owned)?;
        slot.used = uses;
        Some(&mut slot.context)
    }

    /// A context for a new window, with whatever its last owner left in it; `None` when all of
    /// them are busy.
    pub(crate) fn begin(&mut self, make: impl FnOnce() -> T) -> Option<(WindowId, &mut T)> {
        self.uses += 1;
        self.given += 1;
        let id = WindowId(self.given);
        let patience = PATIENCE * self.slots.len() as u64;
        let stale = |slot: &WindowSlot<T>| slot.owner.is_none() || slot.used + patience < self.uses;
        let oldest = self.slots.iter().enumerate();
        let oldest = oldest
            .filter(|(_, slot)| slot.owner.is_none() || self.slots.len() == self.most)
            .filter(|(_, slot)| stale(slot))
            .min_by_key(|(_, slot)| (slot.owner.is_some(), slot.used));
        let index = match oldest {
            Some((index, _)) => index,
            None if self.slots.len() < self.most => {
                self.slots.push(WindowSlot {
                    owner: None,
                    used: 0,
                    context: make(),
                });
                self.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index];
        slot.owner = Some(id);
        slot.used = self.uses;
        Some((id, &mut slot.context))
    }

    /// Gives a window's context back.
    pub(crate) fn end(&mut self, id: WindowId) {
        for slot in &mut self.slots {
            if slot.owner == Some(id) {
                slot.owner = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_windows_are_reused_and_busy_ones_kept() {
        let mut windows = WindowPool::new(2);
        let (one, _) = windows.begin(|| 'a').unwrap();
        let (two, _) = windows.begin(|| 'b').unwrap();
        for _ in 0..100 {
            assert!(windows.begin(|| 'c').is_none());
            assert_eq!(windows.find(one), Some(&mut 'a'));
            assert_eq!(windows.find(two), Some(&mut 'b'));
        }
        while windows.begin(|| 'c').is_none() {
            assert_eq!(windows.find(two), Some(&mut 'b'));
        }
        assert_eq!(windows.find(one), None);
        assert_eq!(windows.find(two), Some(&mut 'b'));
    }

    #[test]
    fn returned_windows_are_used_before_new_ones() {
        let mut windows = WindowPool::new(9);
        let (one, _) = windows.begin(|| 'a').unwrap();
        windows.end(one);
        assert_eq!(windows.find(one), None);
        let (two, context) = windows.begin(|| 'b').unwrap();
        assert_eq!(context, &mut 'a');
        assert_ne!(one, two);
    }
}
