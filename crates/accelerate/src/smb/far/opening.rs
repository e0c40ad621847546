//! The handling of a CREATE: the decision whether its open may be served, and the requests in the
//! client's place.

use super::connection::OplockRequester;
use super::leases::RequestedLease;
use super::message::GatheredMessage;
use super::{FarState, RequestPurpose, Smb2FarHalf};
use crate::smb::config::OPENS_MAX;
use crate::smb::wire::create::{CreateRequest, oplock_level};
use crate::smb::wire::header::{Smb2Header, command};

impl Smb2FarHalf {
    /// Returns the purpose of a CREATE alone in its frame, if its open may be served.
    pub(super) fn judge_create(&mut self, message: &GatheredMessage) -> Option<RequestPurpose> {
        let header = message.single()?.header;
        if header.command != command::CREATE || self.opens.len() >= OPENS_MAX {
            return None;
        }
        if !self.may_answer(&header) {
            return None;
        }
        let joined = message.joined()?;
        let request = CreateRequest::parse(&joined).ok()?;
        let is_keyed = self.sessions.is_keyed(header.session);
        let asking = self.connection.judge(&header, &request, is_keyed);
        if asking == OplockRequester::NotServed {
            return None;
        }
        let lease = match request.oplock_level {
            oplock_level::LEASE => Some(self.judge_lease(&request)?),
            _ => None,
        };
        self.engage();
        if asking == OplockRequester::ForNobody && self.staleness().is_some() {
            self.opens_ahead.opening(header.message_id, &joined);
        }
        Some(RequestPurpose::Create {
            is_ours: asking == OplockRequester::ForUs,
            may_read: request.may_read(),
            may_write: request.may_write(),
            is_bare: asking == OplockRequester::ForNobody,
            tree: header.tree,
            lease,
            is_durable: request.is_durable(),
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
