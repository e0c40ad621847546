//! Opens that the far half has made ahead, and the CREATEs that they answer (docs/decisions/0042 and
//! 0086).
//!
//! This half's clock alone bounds the age of an offer: the open was made behind the frame of the
//! client's that it names, and so after that frame passed here. An offer under a lease answers a
//! CREATE that follows at once, or one that has passed shortly before the offer arrived. The far
//! half waits for this half's word about every such CREATE.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use vocab::Time;

use super::{PendingRequest, Smb2NearHalf};
use crate::ReasonCode;
use crate::smb::config::{LEASED_OFFER_WAITS, OPENS_AHEAD_MAX, OUTSTANDING_MAX};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::create::{answered_lease_key_at, lease_key_at, without_drawn_numbers};
use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::header::{self, Smb2Header, status};
use crate::smb::wire::lease::LeaseKey;
use crate::smb::wire::{FileId, array};

/// The number of frames whose time is remembered: three for each file that is opened while offers
/// are usable.
const FRAMES_MAX: usize = 1_024;
const FRAMES_KEPT: Duration = Duration::from_secs(10);

/// The CREATEs that have passed unanswered, and that a later offer may answer: more than a client
/// sends within the server's time for an open.
const PASSED_OPENS_MAX: usize = 64;

/// The limit of an offer's age.
#[derive(Clone, Copy, Debug)]
enum OfferLimit {
    /// For so long after it was made.
    Age(Duration),
    /// It is under a lease, and arrived then.
    Arrival(Time),
}

#[derive(Debug)]
struct OfferedOpen {
    position: u64,
    limit: OfferLimit,
    request: Bytes,
    answer: Bytes,
}

/// A CREATE that has passed unanswered.
#[derive(Debug)]
struct PassedOpen {
    /// Its frame.
    position: u64,
    header: Smb2Header,
    body: Vec<u8>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct OpenOffers {
    offers: HashMap<FileId, OfferedOpen>,
    opens: VecDeque<PassedOpen>,
    /// The times at which the client's last frames passed, by their numbers.
    passed: VecDeque<(u64, Time)>,
    /// Opens from before this frame of the client's are no longer offered.
    dropped_at: u64,
}

impl OpenOffers {
    pub(super) fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    /// A frame of the client's has passed.
    pub(super) fn passed(&mut self, now: Time, position: u64) {
        let is_old = |(_, at): &mut (u64, Time)| now.since(*at) > FRAMES_KEPT;
        while self.passed.len() >= FRAMES_MAX || self.passed.front_mut().is_some_and(is_old) {
            self.passed.pop_front();
        }
        self.passed.push_back((position, now));
    }

    /// A frame that ends all offers passes.
    pub(super) fn drop_before(&mut self, position: u64) {
        self.dropped_at = position;
    }

    /// The greatest age of an operation that was done behind this frame.
    fn age(&self, now: Time, position: u64) -> Option<Duration> {
        let first = self.passed.front()?.0;
        let (_, at) = self.passed.get(position.checked_sub(first)? as usize)?;
        Some(now.since(*at))
    }

    /// Keeps the offers of these opens.
    pub(super) fn retain(&mut self, is_kept: impl Fn(FileId) -> bool) {
        self.offers.retain(|file, _| is_kept(*file));
    }

    /// Takes an offer back; whether it was there.
    pub(super) fn remove(&mut self, file: FileId) -> bool {
        self.offers.remove(&file).is_some()
    }
}

impl Smb2NearHalf {
    /// Stores the licence of a file that the far half has opened ahead.
    pub(super) fn offered(
        &mut self,
        file: FileId,
        position: u64,
        staleness: Duration,
        request: Bytes,
        answer: Bytes,
    ) {
        if self.offers.offers.len() > 2 * OPENS_AHEAD_MAX || !self.opens.contains_key(&file) {
            return self.close(ReasonCode::VIOLATION);
        }
        let offer = OfferedOpen {
            position,
            limit: OfferLimit::Age(staleness),
            request,
            answer,
        };
        self.offers.offers.insert(file, offer);
    }

    /// Stores a file that the far half has opened under a lease, or gives it to a CREATE that has
    /// passed meanwhile.
    pub(super) fn offered_under_lease(
        &mut self,
        now: Time,
        file: FileId,
        position: u64,
        request: Bytes,
        answer: Bytes,
    ) {
        let Some(open) = self.opens.get(&file) else {
            return self.close(ReasonCode::VIOLATION);
        };
        if self.offers.offers.len() > 2 * OPENS_AHEAD_MAX {
            return self.close(ReasonCode::VIOLATION);
        }
        let licence = open.licence;
        let passed = self.offers.opens.iter().position(|passed| {
            let header = &passed.header;
            passed.position > position
                && (licence.session, licence.tree) == (header.session, header.tree)
                && licence.guard == header.guard()
                && without_drawn_numbers(&passed.body) == request
        });
        let offer = OfferedOpen {
            position,
            limit: OfferLimit::Arrival(now),
            request,
            answer,
        };
        self.offers.offers.insert(file, offer);
        if let Some(passed) = passed.and_then(|index| self.offers.opens.remove(index)) {
            self.give_or_refuse(now, file, &passed.header, &passed.body);
        }
    }

    /// Answers a CREATE that has passed, if it was made ahead.
    pub(super) fn answer_open(&mut self, now: Time, header: &Smb2Header, body: &[u8]) {
        let request = without_drawn_numbers(body);
        let is_meant = |(file, offer): (&FileId, &OfferedOpen)| {
            let licence = self.opens.get(file).map(|open| open.licence);
            let is_its = licence.is_some_and(|licence| {
                (licence.session, licence.tree) == (header.session, header.tree)
            });
            let is_meant = match offer.limit {
                OfferLimit::Age(_) => self.is_usable(now, *file, offer, header),
                // The far half waits for the word about each that could be.
                OfferLimit::Arrival(_) => licence.is_some_and(|of| of.guard == header.guard()),
            };
            (is_its && is_meant && offer.request == request).then_some(*file)
        };
        let meant = self.offers.offers.iter().find_map(is_meant);
        match meant {
            Some(file) => self.give_or_refuse(now, file, header, body),
            None => {
                if self.offers.opens.len() == PASSED_OPENS_MAX {
                    self.offers.opens.pop_front();
                }
                self.offers.opens.push_back(PassedOpen {
                    position: self.position,
                    header: *header,
                    body: body.to_vec(),
                });
            }
        }
    }

    /// Returns true if an offer answers a CREATE of its kind now.
    fn is_usable(&self, now: Time, file: FileId, offer: &OfferedOpen, header: &Smb2Header) -> bool {
        let is_young = match offer.limit {
            OfferLimit::Age(staleness) => {
                let age = self.offers.age(now, offer.position);
                age.is_some_and(|age| age <= staleness)
            }
            OfferLimit::Arrival(at) => now.since(at) <= LEASED_OFFER_WAITS,
        };
        is_young
            && offer.position >= self.offers.dropped_at
            && self.pending.len() < OUTSTANDING_MAX
            && self.serves(now, file, header).is_some()
    }

    /// Answers a CREATE with an open that was made ahead, or gives the open back.
    fn give_or_refuse(&mut self, now: Time, file: FileId, header: &Smb2Header, body: &[u8]) {
        let Some(offer) = self.offers.offers.remove(&file) else {
            return;
        };
        let key = client_key(&offer, body);
        let is_keyed = key.is_some() || matches!(offer.limit, OfferLimit::Age(_));
        if !is_keyed || !self.is_usable(now, file, &offer, header) {
            self.opens.remove(&file);
            return self.tell_far(HalfFrame::Revoked { file });
        }
        self.pending
            .insert(header.message_id, PendingRequest::Opens);
        self.answered += 1;
        let mut answer = frame_header(header::LENGTH + offer.answer.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend_from_slice(&offer.answer);
        if let Some((key, at)) = key {
            answer[FRAME_HEADER + at..FRAME_HEADER + at + key.0.len()].copy_from_slice(&key.0);
            // An open without caching belongs to no lease.
            if self
                .opens
                .get(&file)
                .is_some_and(|open| open.lease.is_some())
            {
                self.is_of_lease(file, key);
            }
        }
        self.give(header, answer, Vec::new());
        self.tell_far(HalfFrame::Took { file });
    }
}

/// Returns the client's key of a lease that is offered, and its place in the answer.
fn client_key(offer: &OfferedOpen, body: &[u8]) -> Option<(LeaseKey, usize)> {
    let whole = |body: &[u8]| [&[0; header::LENGTH][..], body].concat();
    let (request, answer) = (whole(body), whole(&offer.answer));
    let key = array(&request, lease_key_at(&request)?).ok()?;
    Some((LeaseKey(key), answered_lease_key_at(&answer)?))
}
