//! Places for connections that have not shown their purpose yet, shared among their sources.
//!
//! ```text
//!   connection ──► enter ──► a place is free ──────────────► in
//!                     ├────► its source has its share ─────► its own oldest goes, if that had time
//!                     └────► all are taken ────────────────► somebody else's goes, or it is refused
//! ```
//!
//! A connection that must give up its place when all are taken is chosen so: for a newcomer from a
//! known good address, the oldest from an unknown one; else the oldest of the source with most
//! places, if the newcomer's source has fewer; else the oldest, if it had enough time to finish. So
//! neither one source nor a few exclude others, and no number of strangers excludes a known source.
//!
//! A source is an IPv4 address, or the /64 that an IPv6 host can fill by itself.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::source_of;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The limits of the places, in total and for each source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceLimits {
    /// Places in all.
    pub(crate) places: usize,
    /// Places that one source may have.
    pub(crate) per_source: usize,
    /// The longest time that an honest connection needs its place, on an ordinary path. A
    /// connection that keeps a place longer may lose it to another of equal rank.
    pub(crate) time_to_finish: Duration,
}

/// The trust in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceStanding {
    Unknown,
    /// An authorised peer has connected from there.
    Known,
}

/// The places; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PlacePool {
    sharing: PlaceLimits,
    taken: Arc<Mutex<PlaceTable>>,
}

#[derive(Debug, Default)]
struct PlaceTable {
    next: u64,
    /// The occupants in the order of their arrival.
    occupants: BTreeMap<u64, PlaceOccupant>,
    by_source: BTreeMap<IpAddr, usize>,
}

#[derive(Debug)]
struct PlaceOccupant {
    source: IpAddr,
    standing: SourceStanding,
    since: Instant,
    leave: Arc<Notify>,
}

/// One place; given back when dropped.
#[derive(Debug)]
pub(crate) struct TakenPlace {
    taken: Arc<Mutex<PlaceTable>>,
    number: u64,
    leave: Arc<Notify>,
}

/// The error for a connection whose place was given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CrowdedOut;

impl PlacePool {
    pub(crate) fn new(sharing: PlaceLimits) -> Self {
        Self {
            sharing,
            taken: Arc::default(),
        }
    }

    /// Returns a place for a connection from this address, if one is free or another connection
    /// must give it up.
    pub(crate) fn enter(&self, address: IpAddr, standing: SourceStanding) -> Option<TakenPlace> {
        self.enter_at(Instant::now(), address, standing)
    }

    fn enter_at(
        &self,
        now: Instant,
        address: IpAddr,
        standing: SourceStanding,
    ) -> Option<TakenPlace> {
        let source = source_of(address);
        let mut taken = lock(&self.taken);
        if taken.count(source) >= self.sharing.per_source {
            let had_time = |occupant: &PlaceOccupant| self.had_time(now, occupant);
            let own = taken.oldest(|occupant| occupant.source == source && had_time(occupant))?;
            taken.evict(own);
        } else if taken.occupants.len() >= self.sharing.places {
            let leaves = self.who_leaves(now, &taken, source, standing)?;
            taken.evict(leaves);
        }
        let leave = Arc::new(Notify::new());
        let number = taken.next;
        taken.next += 1;
        *taken.by_source.entry(source).or_default() += 1;
        let occupant = PlaceOccupant {
            source,
            standing,
            since: now,
            leave: Arc::clone(&leave),
        };
        taken.occupants.insert(number, occupant);
        Some(TakenPlace {
            taken: Arc::clone(&self.taken),
            number,
            leave,
        })
    }

    fn who_leaves(
        &self,
        now: Instant,
        taken: &PlaceTable,
        source: IpAddr,
        standing: SourceStanding,
    ) -> Option<u64> {
        let is_unknown = |occupant: &PlaceOccupant| occupant.standing == SourceStanding::Unknown;
        if standing == SourceStanding::Known
            && let Some(unknown) = taken.oldest(is_unknown)
        {
            return Some(unknown);
        }
        // A stranger never takes the place of somebody who is known.
        let is_equal =
            |occupant: &PlaceOccupant| standing == SourceStanding::Known || is_unknown(occupant);
        let most = taken
            .occupants
            .values()
            .filter(|occupant| is_equal(occupant))
            .map(|occupant| (taken.count(occupant.source), occupant.source))
            .max();
        if let Some((count, greedy)) = most
            && count > taken.count(source) + 1
        {
            return taken.oldest(|occupant| occupant.source == greedy && is_equal(occupant));
        }
        taken.oldest(|occupant| is_equal(occupant) && self.had_time(now, occupant))
    }

    fn had_time(&self, now: Instant, occupant: &PlaceOccupant) -> bool {
        now.duration_since(occupant.since) >= self.sharing.time_to_finish
    }
}

impl PlaceTable {
    fn count(&self, source: IpAddr) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    fn oldest(&self, fits: impl Fn(&PlaceOccupant) -> bool) -> Option<u64> {
        let mut occupants = self.occupants.iter();
        let found = occupants.find(|(_, occupant)| fits(occupant));
        found.map(|(number, _)| *number)
    }

    fn evict(&mut self, number: u64) {
        if let Some(occupant) = self.remove(number) {
            occupant.leave.notify_one();
        }
    }

    fn remove(&mut self, number: u64) -> Option<PlaceOccupant> {
        let occupant = self.occupants.remove(&number)?;
        if let Some(count) = self.by_source.get_mut(&occupant.source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&occupant.source);
            }
        }
        Some(occupant)
    }
}

impl TakenPlace {
    /// Waits for `work`, unless the place is given to another connection before.
    pub(crate) async fn hold<T>(&self, work: impl Future<Output = T>) -> Result<T, CrowdedOut> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.leave.notified() => Err(CrowdedOut),
        }
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        lock(&self.taken).remove(self.number);
    }
}

fn lock(taken: &Mutex<PlaceTable>) -> MutexGuard<'_, PlaceTable> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARING: PlaceLimits = PlaceLimits {
        places: 256,
        per_source: 16,
        time_to_finish: Duration::from_secs(2),
    };

    fn address(number: usize) -> IpAddr {
        IpAddr::from([127, 0, (number >> 8) as u8, number as u8])
    }

    fn was_evicted(place: &TakenPlace) -> bool {
        !lock(&place.taken).occupants.contains_key(&place.number)
    }

    /// Enters strangers: each source once, then each a second time, and so on.
    fn crowd(places: &PlacePool, now: Instant, sources: usize, rounds: usize) -> Vec<TakenPlace> {
        let all = (0..rounds).flat_map(|_| 1..=sources);
        all.filter_map(|number| places.enter_at(now, address(number), SourceStanding::Unknown))
            .collect()
    }

    #[test]
    fn source_at_its_share_gives_up_its_oldest() {
        let places = PlacePool::new(SHARING);
        let begun = Instant::now();
        let held = crowd(&places, begun, 1, 20);
        assert_eq!(held.len(), SHARING.per_source);
        assert!(
            places
                .enter_at(begun, address(2), SourceStanding::Unknown)
                .is_some()
        );
        let later = begun + SHARING.time_to_finish;
        let newcomer = places.enter_at(later, address(1), SourceStanding::Unknown);
        assert!(newcomer.is_some() && was_evicted(&held[0]) && !was_evicted(&held[1]));
        drop((held, newcomer));
        assert!(lock(&places.taken).occupants.is_empty());
        assert!(lock(&places.taken).by_source.is_empty());
    }

    #[test]
    fn two_hundred_sources_keep_nobody_out() {
        let places = PlacePool::new(SHARING);
        let begun = Instant::now();
        let held = crowd(&places, begun, 200, 16);
        let inside = held.iter().filter(|place| !was_evicted(place)).count();
        assert_eq!(inside, SHARING.places);
        // One that was never seen has a place at once, and keeps it while they go on.
        let peer = places
            .enter_at(begun, address(900), SourceStanding::Unknown)
            .unwrap();
        let more = crowd(&places, begun, 200, 16);
        assert!(!was_evicted(&peer));
        drop((held, more));
    }

    #[test]
    fn known_source_has_a_place_among_strangers() {
        let places = PlacePool::new(SHARING);
        let begun = Instant::now();
        let held = crowd(&places, begun, 5_000, 1);
        assert_eq!(held.len(), SHARING.places);
        assert!(
            places
                .enter_at(begun, address(6_000), SourceStanding::Unknown)
                .is_none()
        );
        let peer = places
            .enter_at(begun, address(7_000), SourceStanding::Known)
            .unwrap();
        assert!(was_evicted(&held[0]) && !was_evicted(&held[1]));
        // Strangers take each other's places when these had time, and never the peer's.
        let later = begun + SHARING.time_to_finish;
        let more = crowd(&places, later, 5_000, 1);
        assert!(!more.is_empty() && !was_evicted(&peer));
        drop((held, more));
    }

    #[test]
    fn ipv6_network_is_one_source() {
        let places = PlacePool::new(SHARING);
        let begun = Instant::now();
        let enter = |host: u16| {
            let address = format!("2001:2::{host:x}").parse().unwrap();
            places.enter_at(begun, address, SourceStanding::Unknown)
        };
        let held: Vec<TakenPlace> = (0..20).filter_map(enter).collect();
        assert_eq!(held.len(), SHARING.per_source);
    }

    #[tokio::test]
    async fn work_ends_when_its_place_is_needed() {
        let places = PlacePool::new(PlaceLimits {
            places: 1,
            per_source: 1,
            time_to_finish: Duration::ZERO,
        });
        let first = places.enter(address(1), SourceStanding::Unknown).unwrap();
        assert_eq!(first.hold(async { 7 }).await, Ok(7));
        let second = places.enter(address(2), SourceStanding::Unknown).unwrap();
        let never = std::future::pending::<()>();
        assert_eq!(first.hold(never).await, Err(CrowdedOut));
        drop(first);
        assert!(!was_evicted(&second));
    }
}
