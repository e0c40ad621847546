//! The handling of a CREATE: the decision whether its open may be served, and the requests in the
//! client's place.

use super::connection::OplockRequester;
use super::leases::RequestedLease;
use super::message::{GatheredMessage, SAME_SESSION, SAME_TREE};
use super::query_ahead::QuestionTrigger;
use super::{FarState, RequestPurpose, Smb2FarHalf};
use crate::smb::config::{DurablePolicy, LISTING_BLOCK, OPENS_MAX};
use crate::smb::listing::DirectoryQuery;
use crate::smb::wire::create::{CreateRequest, decline_durable, oplock_level};
use crate::smb::wire::directory::QueryDirectoryRequest;
use crate::smb::wire::header::{Smb2Header, command, flag};

impl Smb2FarHalf {
    /// Returns the purpose of a CREATE alone in its frame, if its open may be served.
    pub(super) fn judge_create(&mut self, message: &mut GatheredMessage) -> Option<RequestPurpose> {
        let header = message.single()?.header;
        if header.command != command::CREATE || self.opens.len() >= OPENS_MAX {
            return None;
        }
        if !self.may_answer(&header) {
            return None;
        }
        let mut joined = message.joined()?;
        let request = CreateRequest::parse(&joined).ok()?;
        let is_keyed = self.sessions.is_keyed(header.session);
        let asking = self.connection.judge(&header, &request, is_keyed);
        if asking == OplockRequester::NotServed {
            return None;
        }
        let is_declined = self.declines(&request);
        let is_bare = asking == OplockRequester::ForNobody;
        let is_leased = is_bare && request.oplock_level == oplock_level::LEASE;
        // A durable open would outlive a CLOSE that was answered and lost.
        if is_leased && (!self.near_takes_office_requests || request.is_durable() && !is_declined) {
            return None;
        }
        let lease = match request.oplock_level {
            oplock_level::LEASE if !is_bare => Some(self.judge_lease(&request)?),
            _ => None,
        };
        self.engage();
        if is_bare && self.staleness().is_some() {
            self.opens_ahead.opening(header.message_id, &joined);
        }
        if (!is_bare || is_leased) && self.near_takes_leased_offers {
            self.stats.opening(&header, &joined);
        }
        let purpose = RequestPurpose::Create {
            is_ours: asking == OplockRequester::ForUs,
            may_read: request.may_read(),
            may_write: request.may_write(),
            may_set: request.may_set_attributes(),
            is_bare,
            tree: header.tree,
            lease,
            is_leased,
            form: QuestionTrigger::of(&request),
            is_durable: request.is_durable() && !is_declined,
        };
        if is_declined {
            decline_durable(&mut joined).ok()?;
            // Contexts that overlap may still say it; such a CREATE is the server's alone.
            let declined = CreateRequest::parse(&joined).ok()?;
            if declined.is_durable() || declined.context_names().is_err() {
                return None;
            }
            message.write_over(&joined);
        }
        Some(purpose)
    }

    /// Returns true if the open of a request is not to be durable, although its client asks for it.
    fn declines(&self, request: &CreateRequest<'_>) -> bool {
        self.settings.durable == DurablePolicy::Decline
            && request.is_durable()
            && !request.is_persistent()
    }

    /// Returns true if the request for a durable handle in this frame will be taken out of it.
    pub(super) fn will_decline(&self, message: &GatheredMessage) -> bool {
        let Some(header) = message.single().map(|head| head.header) else {
            return false;
        };
        if header.command != command::CREATE || !self.may_answer(&header) {
            return false;
        }
        let Some(joined) = message.joined() else {
            return false;
        };
        let is_keyed = self.sessions.is_keyed(header.session);
        CreateRequest::parse(&joined).is_ok_and(|request| {
            let is_served = match self.connection.judge(&header, &request, is_keyed) {
                OplockRequester::ForItself => {
                    request.oplock_level != oplock_level::LEASE
                        || self.judge_lease(&request).is_some()
                }
                OplockRequester::ForNobody => self.near_takes_office_requests,
                OplockRequester::ForUs | OplockRequester::NotServed => false,
            };
            is_served && self.declines(&request) && self.opens.len() < OPENS_MAX
        })
    }

    /// Returns the purpose of the CREATE of a compound that opens a directory and requests its first
    /// names ([MS-SMB2] §3.2.4.1.4, Sending Compounded Requests), if its listing may be served.
    pub(super) fn judge_listing(&mut self, message: &GatheredMessage) -> Option<RequestPurpose> {
        let mut heads = message.heads();
        let header = heads.next()?.header;
        if header.command != command::CREATE || header.next == 0 || self.opens.len() >= OPENS_MAX {
            return None;
        }
        let mut first = None;
        for head in heads {
            let other = &head.header;
            let is_of_it = other.command == command::QUERY_DIRECTORY
                && other.has(flag::RELATED)
                && [header.session, SAME_SESSION].contains(&other.session)
                && [header.tree, SAME_TREE].contains(&other.tree)
                && other.guard() == header.guard();
            if !is_of_it {
                return None;
            }
            let request = QueryDirectoryRequest::parse(head.body()).ok()?;
            first.get_or_insert(request);
        }
        let first = first?;
        let (_, create) = message.messages().next()?;
        let request = CreateRequest::parse(&create).ok()?;
        let is_keyed = self.sessions.is_keyed(header.session);
        if !self.may_answer(&header) || !self.connection.serves_listing(&header, &request, is_keyed)
        {
            return None;
        }
        self.engage();
        if self.staleness().is_some() {
            self.opens_ahead.opening(header.message_id, &create);
        }
        self.note_walk(message, first.length.min(LISTING_BLOCK));
        Some(RequestPurpose::OpensListing {
            tree: header.tree,
            query: DirectoryQuery::of(&first, self.least_length()),
            length: first.length.min(LISTING_BLOCK),
        })
    }

    /// Returns the lease that a CREATE requests, if it may be a licence.
    fn judge_lease(&self, request: &CreateRequest<'_>) -> Option<RequestedLease> {
        let key = request.lease().ok()??.key;
        let empties = request.empties();
        let has_kin = self.leases.has_kin(key);
        let mut opening = self.outstanding.values();
        let is_emptied = opening.any(|request| {
            matches!(request.purpose, RequestPurpose::Create { lease: Some(lease), .. }
                if lease.key == key && (lease.empties || empties))
        });
        // Who empties a file that it holds itself breaks nothing.
        let may_serve = self.near_takes_leases
            && !self.leases.is_shared(key)
            && !(is_emptied || has_kin && empties);
        may_serve.then_some(RequestedLease {
            key,
            empties,
            is_stale: false,
        })
    }

    /// Returns true if requests such as this one can be answered here, as far as the flow and the
    /// near half allow.
    pub(super) fn may_answer(&self, header: &Smb2Header) -> bool {
        let may_engage = self.state == FarState::Engaged
            || self.ids.is_without_gap() && self.answers.at_boundary();
        // What the near half answers must be signed there, or encrypted.
        let near_can = match header.is_sealed {
            true => self.near_takes_sealing && self.sessions.is_proved(header.session),
            false => !self.sessions.is_keyed(header.session) || self.near_takes_keys,
        };
        may_engage && near_can
    }
}
