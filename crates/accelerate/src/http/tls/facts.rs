//! What is known of origins and of clients, so that a connection waits for nothing that an earlier one found out.
//!
//! | known | of | for |
//! | --- | --- | --- |
//! | the origin's certificate was verified, with these names and this validity | server and name | [`FACTS_LAST`] |
//! | the origin's connections are left alone, and why | server and name | [`REFUSAL_LASTS`] |
//! | the client refuses the operator's certificates | client and name | [`PINNED_LASTS`] |
//!
//! The server's address is part of the key: what one server proved of a name says nothing of another that a client
//! calls by the same name.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use vocab::Time;

use crate::ReasonCode;

/// For how long a verified origin is believed without being asked. The far node verifies every connection that it opens
/// all the same.
const FACTS_LAST: Duration = Duration::from_secs(3_600);
/// For how long an origin is left alone before it is tried again: a person who has renewed a certificate waits no
/// longer.
const REFUSAL_LASTS: Duration = Duration::from_secs(300);
/// For how long a client that refuses our certificates for a name is left alone with it.
const PINNED_LASTS: Duration = Duration::from_secs(3_600);
/// Origins that are remembered: more than the intranet of a company has. Each takes some 2 kB with its leaf.
const ORIGINS_MAX: usize = 2_048;
/// Pairs of clients and names that are remembered, some 100 bytes each.
const PINNED_MAX: usize = 4_096;
/// Names of one certificate that are looked at. Certificates of content networks have a hundred.
pub(crate) const CERTIFICATE_NAMES_MAX: usize = 128;

/// Facts of the origin's certificate, verified by the far node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OriginFacts {
    /// The names in it, in lower case, `*.` in front where it covers the names below.
    pub(crate) names: Vec<String>,
    /// Seconds since 1970 from which on it is valid.
    pub(crate) not_before: i64,
    /// Seconds since 1970 until which it is valid.
    pub(crate) not_after: i64,
    /// True if the far node lets decrypted content into the dictionary.
    pub(crate) may_store: bool,
}

impl OriginFacts {
    /// True if the certificate covers the name.
    pub(crate) fn covers(&self, name: &str) -> bool {
        self.names.iter().any(|pattern| covers(pattern, name))
    }
}

/// True if a certificate's name covers a host's (RFC 9525 §6.3, Matching the DNS Domain Name Portion).
pub(crate) fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(domain) => name
            .split_once('.')
            .is_some_and(|(label, rest)| !label.is_empty() && rest == domain),
        None => pattern == name,
    }
}

/// An origin that is known to be interceptable.
#[derive(Clone, Debug)]
pub(crate) struct KnownOrigin {
    pub(crate) facts: Arc<OriginFacts>,
    /// The leaf's configuration, once a client has needed it.
    pub(crate) leaf: Option<Arc<ServerConfig>>,
}

/// Result of an earlier connection.
#[derive(Clone, Debug)]
pub(crate) enum OriginKnowledge {
    /// It can be intercepted.
    Verified(KnownOrigin),
    /// It is left alone.
    LeftAlone(ReasonCode),
}

/// Everything that is known, for one engine.
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    origins: BTreeMap<(SocketAddr, String), (Time, OriginKnowledge)>,
    pinned: BTreeMap<(IpAddr, String), Time>,
}

impl Knowledge {
    /// Returns the knowledge of an origin, if it is still valid.
    pub(crate) fn origin(
        &self,
        now: Time,
        server: SocketAddr,
        name: &str,
    ) -> Option<&OriginKnowledge> {
        let (until, known) = self.origins.get(&(server, name.to_owned()))?;
        (now < *until).then_some(known)
    }

    /// An origin's certificate was verified. `valid_for` is the rest of its validity.
    pub(crate) fn verified(
        &mut self,
        now: Time,
        server: SocketAddr,
        name: &str,
        known: KnownOrigin,
        valid_for: Duration,
    ) {
        let until = now + FACTS_LAST.min(valid_for);
        self.insert(
            now,
            (server, name.to_owned()),
            until,
            OriginKnowledge::Verified(known),
        );
    }

    /// An origin is to be left alone.
    pub(crate) fn leave_alone(
        &mut self,
        now: Time,
        server: SocketAddr,
        name: &str,
        reason: ReasonCode,
    ) {
        let known = OriginKnowledge::LeftAlone(reason);
        self.insert(now, (server, name.to_owned()), now + REFUSAL_LASTS, known);
    }

    /// Keeps the leaf of an origin that is known.
    pub(crate) fn keep_leaf(&mut self, server: SocketAddr, name: &str, leaf: &Arc<ServerConfig>) {
        if let Some((_, OriginKnowledge::Verified(known))) =
            self.origins.get_mut(&(server, name.to_owned()))
        {
            known.leaf = Some(Arc::clone(leaf));
        }
    }

    fn insert(
        &mut self,
        now: Time,
        key: (SocketAddr, String),
        until: Time,
        known: OriginKnowledge,
    ) {
        if self.origins.len() >= ORIGINS_MAX && !self.origins.contains_key(&key) {
            self.origins.retain(|_, (until, _)| now < *until);
            let oldest = self.origins.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone())
                && self.origins.len() >= ORIGINS_MAX
            {
                self.origins.remove(&oldest);
            }
        }
        self.origins.insert(key, (until, known));
    }

    /// A client refuses our certificate for a name.
    pub(crate) fn pin(&mut self, now: Time, client: IpAddr, name: &str) {
        if self.pinned.len() >= PINNED_MAX {
            self.pinned.retain(|_, until| now < *until);
            let oldest = self.pinned.iter().min_by_key(|(_, until)| **until);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone())
                && self.pinned.len() >= PINNED_MAX
            {
                self.pinned.remove(&oldest);
            }
        }
        self.pinned
            .insert((client, name.to_owned()), now + PINNED_LASTS);
    }

    /// True if the client has refused our certificate for this name.
    pub(crate) fn is_pinned(&self, now: Time, client: IpAddr, name: &str) -> bool {
        let until = self.pinned.get(&(client, name.to_owned()));
        until.is_some_and(|until| now < *until)
    }

    /// Forgets all: another authority signs from now on, or other names are listed.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes of memory, about.
    pub(crate) fn held(&self) -> usize {
        self.origins.len() * 2_048 + self.pinned.len() * 128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 443))
    }

    fn known() -> KnownOrigin {
        let facts = OriginFacts {
            names: vec!["*.corp.example".to_owned()],
            not_before: 0,
            not_after: 1,
            may_store: false,
        };
        KnownOrigin {
            facts: Arc::new(facts),
            leaf: None,
        }
    }

    #[test]
    fn wildcards_cover_one_label() {
        let facts = known().facts;
        assert!(facts.covers("a.corp.example"));
        assert!(!facts.covers("b.a.corp.example"));
        assert!(!facts.covers("corp.example"));
        assert!(!facts.covers(".corp.example"));
    }

    #[test]
    fn one_servers_proof_says_nothing_of_another() {
        let mut knowledge = Knowledge::default();
        let now = Time::ZERO;
        let valid_for = Duration::from_secs(60);
        knowledge.verified(now, server(1), "a.corp.example", known(), valid_for);
        assert!(knowledge.origin(now, server(1), "a.corp.example").is_some());
        assert!(knowledge.origin(now, server(2), "a.corp.example").is_none());
        let later = now + Duration::from_secs(60);
        assert!(
            knowledge
                .origin(later, server(1), "a.corp.example")
                .is_none()
        );
    }

    #[test]
    fn what_is_known_is_bounded_and_ends() {
        let mut knowledge = Knowledge::default();
        let mut now = Time::ZERO;
        for number in 0..PINNED_MAX + 10 {
            let client = IpAddr::from([10, 1, (number >> 8) as u8, number as u8]);
            knowledge.pin(now, client, "a.example");
            let reason = ReasonCode::VIOLATION;
            knowledge.leave_alone(now, server(1), &number.to_string(), reason);
            now += Duration::from_millis(1);
        }
        assert_eq!(knowledge.pinned.len(), PINNED_MAX);
        assert_eq!(knowledge.origins.len(), ORIGINS_MAX);
        let last = IpAddr::from([10, 1, ((PINNED_MAX + 9) >> 8) as u8, (PINNED_MAX + 9) as u8]);
        assert!(knowledge.is_pinned(now, last, "a.example"));
        assert!(!knowledge.is_pinned(now, last, "b.example"));
        assert!(!knowledge.is_pinned(now + PINNED_LASTS, last, "a.example"));
    }
}
