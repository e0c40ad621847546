//! Opens that the far half has made ahead, and the CREATEs that they answer (docs/decisions/0042).
//!
//! This half's clock alone bounds the age of an offer: the open was made behind the frame of the
//! client's that it names, and so after that frame passed here.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use vocab::Time;

use super::{PendingRequest, Smb2NearHalf};
use crate::ReasonCode;
use crate::smb::config::{OPENS_AHEAD_MAX, OUTSTANDING_MAX};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::FileId;
use crate::smb::wire::frame::frame_header;
use crate::smb::wire::header::{self, Smb2Header, status};

/// The number of frames whose time is remembered: three for each file that is opened while offers
/// are usable.
const FRAMES_MAX: usize = 1_024;
const FRAMES_KEPT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct OfferedOpen {
    position: u64,
    staleness: Duration,
    request: Bytes,
    answer: Bytes,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct OpenOffers {
    offers: HashMap<FileId, OfferedOpen>,
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
            staleness,
            request,
            answer,
        };
        self.offers.offers.insert(file, offer);
    }

    /// Answers a CREATE that has passed, if it was made ahead.
    pub(super) fn answer_open(&mut self, now: Time, header: &Smb2Header, body: &[u8]) {
        let is_given = |(file, offer): (&FileId, &OfferedOpen)| {
            let age = self.offers.age(now, offer.position);
            let is_meant = offer.request == body
                && offer.position >= self.offers.dropped_at
                && age.is_some_and(|age| age <= offer.staleness)
                && self.serves(now, *file, header).is_some();
            is_meant.then(|| (*file, offer.answer.clone()))
        };
        let Some((file, body)) = self.offers.offers.iter().find_map(is_given) else {
            return;
        };
        if self.pending.len() >= OUTSTANDING_MAX {
            return;
        }
        self.offers.offers.remove(&file);
        self.pending
            .insert(header.message_id, PendingRequest::Opens);
        self.answered += 1;
        let mut answer = frame_header(header::LENGTH + body.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend_from_slice(&body);
        self.give(header, answer, Vec::new());
        self.tell_far(HalfFrame::Took { file });
    }
}
