//! Subresources that wait to be fetched.

use std::time::Duration;

use vocab::Time;

use super::frames::{PageId, PrefetchId};
use super::subresource::SubresourceKind;

/// How long a promise holds. What was not asked of the server by then is cancelled: the client has left the page, or
/// the path is too slow for what was found.
pub(super) const PROMISED_FOR: Duration = Duration::from_secs(10);

/// A subresource that the near half was promised.
#[derive(Clone, Debug)]
pub(super) struct FetchCandidate {
    pub(super) id: PrefetchId,
    pub(super) page: PageId,
    pub(super) kind: SubresourceKind,
    pub(super) target: Vec<u8>,
    /// The page is the first level, what it names is the second.
    pub(super) level: u8,
    pub(super) promised: Time,
    /// A client waits for it.
    pub(super) is_wanted: bool,
    /// It was asked for on a connection that the server had closed.
    pub(super) was_retried: bool,
}

impl FetchCandidate {
    /// Its place: what a client waits for first, then by kind, then as the page names it.
    pub(super) fn rank(&self) -> (bool, SubresourceKind, PrefetchId) {
        (!self.is_wanted, self.kind, self.id)
    }
}

/// The candidates of one flow.
#[derive(Debug, Default)]
pub(super) struct FetchQueue {
    waiting: Vec<FetchCandidate>,
}

impl FetchQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn push(&mut self, candidate: FetchCandidate) {
        self.waiting.push(candidate);
    }

    /// Takes the one that is fetched next.
    pub(super) fn pop(&mut self) -> Option<FetchCandidate> {
        let ranked = self.waiting.iter().enumerate();
        let (first, _) = ranked.min_by_key(|(_, candidate)| candidate.rank())?;
        Some(self.waiting.remove(first))
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, id: PrefetchId) -> Option<FetchCandidate> {
        let mut waiting = self.waiting.iter();
        let at = waiting.position(|candidate| candidate.id == id)?;
        Some(self.waiting.remove(at))
    }

    /// Says that a client waits for one.
    pub(super) fn want(&mut self, id: PrefetchId) {
        let mut waiting = self.waiting.iter_mut();
        if let Some(candidate) = waiting.find(|candidate| candidate.id == id) {
            candidate.is_wanted = true;
        }
    }

    /// Takes out those that were promised too long ago.
    pub(super) fn expire(&mut self, now: Time) -> Vec<FetchCandidate> {
        let is_late = |candidate: &mut FetchCandidate| candidate.promised + PROMISED_FOR <= now;
        self.waiting.extract_if(.., is_late).collect()
    }

    /// When the first is too late.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let promised = self.waiting.iter().map(|candidate| candidate.promised);
        promised.min().map(|promised| promised + PROMISED_FOR)
    }

    /// Takes out all.
    pub(super) fn clear(&mut self) -> Vec<FetchCandidate> {
        std::mem::take(&mut self.waiting)
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        let targets = self.waiting.iter().map(|candidate| candidate.target.len());
        targets.sum::<usize>() + self.waiting.capacity() * size_of::<FetchCandidate>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SubresourceKind::{Image, Script, Style};

    fn queue() -> FetchQueue {
        let mut queue = FetchQueue::default();
        for (id, kind) in [(1, Image), (2, Script), (3, Style), (4, Image)] {
            queue.push(FetchCandidate {
                id: PrefetchId(id),
                page: PageId(1),
                kind,
                target: b"/a".to_vec(),
                level: 2,
                promised: Time::ZERO + Duration::from_secs(u64::from(id)),
                is_wanted: false,
                was_retried: false,
            });
        }
        queue
    }

    fn ids(mut queue: FetchQueue) -> Vec<u32> {
        let popped = std::iter::from_fn(|| queue.pop());
        popped.map(|candidate| candidate.id.0).collect()
    }

    #[test]
    fn what_a_client_waits_for_comes_first() {
        assert_eq!(ids(queue()), [3, 2, 1, 4]);
        let mut wanted = queue();
        wanted.want(PrefetchId(4));
        assert_eq!(ids(wanted), [4, 3, 2, 1]);
    }

    #[test]
    fn old_promises_expire() {
        let mut queue = queue();
        let first = Time::ZERO + Duration::from_secs(1) + PROMISED_FOR;
        assert_eq!(queue.poll_timeout(), Some(first));
        let expired = queue.expire(first + Duration::from_secs(1));
        assert_eq!(expired.len(), 2);
        assert_eq!(ids(queue), [3, 4]);
    }
}
