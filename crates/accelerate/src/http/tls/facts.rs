//! What is known of origins and of clients, so that a connection waits for nothing that an earlier one found out.
//!
//! | known | of | for |
//! | --- | --- | --- |
//! | the origin's certificate was verified, with these names and this validity | server and name | [`FACTS_LAST`] |
//! | the origin's connections are left alone, and why | server and name | [`REFUSAL_LASTS`] |
//! | the client refuses the operator's certificates, or its handshakes fail | client and name | [`PINNED_LASTS`] |
//!
//! The server's address is part of the key: what one server proved of a name says nothing of another that a client
//! calls by the same name.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use vocab::Time;

use super::config::TlsSettings;
use crate::ReasonCode;
use crate::http::reasons;

/// For how long a verified origin is believed without being asked. The far node verifies every connection that it opens
/// all the same.
const FACTS_LAST: Duration = Duration::from_secs(3_600);
/// For how long an origin is left alone before it is tried again: a person who has renewed a certificate waits no
/// longer.
const REFUSAL_LASTS: Duration = Duration::from_secs(300);
/// For how long a client that refuses our certificates for a name is left alone with it.
const PINNED_LASTS: Duration = Duration::from_secs(3_600);
/// Handshakes of a client for a name that may fail in a row without a word about the certificate. Some applications that
/// pin certificates only close the connection; one or two connections may break off for another reason.
pub(crate) const HANDSHAKE_FAILURES_MAX: u32 = 3;
/// For how long a failed handshake counts. Applications try again within seconds, or minutes.
const FAILURE_COUNTS: Duration = Duration::from_secs(600);
/// Origins that are remembered: more than the intranet of a company has. Each takes some 2 kB with its leaf.
const ORIGINS_MAX: usize = 2_048;
/// Pairs of clients and names that are remembered, some 100 bytes each.
const CLIENTS_MAX: usize = 4_096;
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
    /// When the facts have to be verified again.
    pub(crate) until: Time,
    /// The leaf's configuration, once a client has needed it.
    pub(crate) leaf: Option<Arc<ServerConfig>>,
}

/// The verified origin of one intercepted connection, with the settings that the connection began with.
#[derive(Debug)]
pub(crate) struct ProvedOrigin {
    /// The name that the client asked for.
    pub(crate) name: String,
    /// Facts of the origin's certificate.
    pub(crate) facts: Arc<OriginFacts>,
    /// From this moment on, stored responses need the origin's confirmation: the certificate was verified too long ago,
    /// or has expired.
    pub(crate) until: Time,
    /// The operator's settings.
    pub(crate) settings: Arc<TlsSettings>,
}

impl ProvedOrigin {
    /// True if the origin has proved to be this host, and the operator has the host's connections intercepted.
    pub(crate) fn answers_for(&self, host: &str) -> bool {
        let is_proved = host == self.name || self.facts.covers(host);
        is_proved && self.settings.may_sign_for(host)
    }

    /// True while stored responses may be used without the origin's confirmation.
    pub(crate) fn is_current(&self, now: Time) -> bool {
        now < self.until
    }
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
    clients: BTreeMap<(IpAddr, String), (Time, ClientKnowledge)>,
}

/// The results of a client's handshakes for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKnowledge {
    /// So many handshakes in a row have failed.
    Failed(u32),
    /// Its connections pass untouched.
    LeftAlone(ReasonCode),
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
        facts: Arc<OriginFacts>,
        valid_for: Duration,
    ) -> KnownOrigin {
        let until = now + FACTS_LAST.min(valid_for);
        let known = KnownOrigin {
            facts,
            until,
            leaf: None,
        };
        let verified = OriginKnowledge::Verified(known.clone());
        self.insert(now, (server, name.to_owned()), until, verified);
        known
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
        let known = ClientKnowledge::LeftAlone(reasons::TLS_PINNED);
        self.insert_client(now, (client, name.to_owned()), now + PINNED_LASTS, known);
    }

    /// A client has ended a handshake for a name without saying why. Returns how many in a row there are now; at
    /// [`HANDSHAKE_FAILURES_MAX`] its connections are left alone.
    pub(crate) fn note_failed_handshake(&mut self, now: Time, client: IpAddr, name: &str) -> u32 {
        let key = (client, name.to_owned());
        let failures = match self.clients.get(&key) {
            Some((until, ClientKnowledge::Failed(failures))) if now < *until => failures + 1,
            Some((until, ClientKnowledge::LeftAlone(_))) if now < *until => {
                return HANDSHAKE_FAILURES_MAX;
            }
            _ => 1,
        };
        let (until, known) = match failures >= HANDSHAKE_FAILURES_MAX {
            true => (
                now + PINNED_LASTS,
                ClientKnowledge::LeftAlone(reasons::TLS_HANDSHAKE),
            ),
            false => (now + FAILURE_COUNTS, ClientKnowledge::Failed(failures)),
        };
        self.insert_client(now, key, until, known);
        failures
    }

    /// A client has accepted our certificate for a name, so what failed before says nothing.
    pub(crate) fn note_handshake(&mut self, client: IpAddr, name: &str) {
        let key = (client, name.to_owned());
        if let Some((_, ClientKnowledge::Failed(_))) = self.clients.get(&key) {
            self.clients.remove(&key);
        }
    }

    fn insert_client(
        &mut self,
        now: Time,
        key: (IpAddr, String),
        until: Time,
        known: ClientKnowledge,
    ) {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&key) {
            self.clients.retain(|_, (until, _)| now < *until);
            let oldest = self.clients.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone())
                && self.clients.len() >= CLIENTS_MAX
            {
                self.clients.remove(&oldest);
            }
        }
        self.clients.insert(key, (until, known));
    }

    /// Why the connections of a client to a name pass untouched, if they do.
    pub(crate) fn left_alone(&self, now: Time, client: IpAddr, name: &str) -> Option<ReasonCode> {
        let (until, known) = self.clients.get(&(client, name.to_owned()))?;
        match known {
            ClientKnowledge::LeftAlone(reason) => (now < *until).then_some(*reason),
            ClientKnowledge::Failed(_) => None,
        }
    }

    /// Bytes of memory, about.
    pub(crate) fn held(&self) -> usize {
        self.origins.len() * 2_048 + self.clients.len() * 128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 443))
    }

    fn facts() -> Arc<OriginFacts> {
        Arc::new(OriginFacts {
            names: vec!["*.corp.example".to_owned()],
            not_before: 0,
            not_after: 1,
            may_store: false,
        })
    }

    #[test]
    fn wildcards_cover_one_label() {
        let facts = facts();
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
        knowledge.verified(now, server(1), "a.corp.example", facts(), valid_for);
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
        for number in 0..CLIENTS_MAX + 10 {
            let client = IpAddr::from([10, 1, (number >> 8) as u8, number as u8]);
            knowledge.pin(now, client, "a.example");
            let reason = ReasonCode::VIOLATION;
            knowledge.leave_alone(now, server(1), &number.to_string(), reason);
            now += Duration::from_millis(1);
        }
        assert_eq!(knowledge.clients.len(), CLIENTS_MAX);
        assert_eq!(knowledge.origins.len(), ORIGINS_MAX);
        let last = CLIENTS_MAX + 9;
        let last = IpAddr::from([10, 1, (last >> 8) as u8, last as u8]);
        let reason = |now, name: &str| knowledge.left_alone(now, last, name);
        assert_eq!(reason(now, "a.example"), Some(reasons::TLS_PINNED));
        assert_eq!(reason(now, "b.example"), None);
        assert_eq!(reason(now + PINNED_LASTS, "a.example"), None);
    }

    #[test]
    fn failed_handshakes_count_for_a_while() {
        let mut knowledge = Knowledge::default();
        let client = IpAddr::from([10, 1, 0, 5]);
        let mut now = Time::ZERO;
        let mut fail = |knowledge: &mut Knowledge, seconds| {
            now += Duration::from_secs(seconds);
            let failures = knowledge.note_failed_handshake(now, client, "a.example");
            (failures, knowledge.left_alone(now, client, "a.example"))
        };
        assert_eq!(fail(&mut knowledge, 0), (1, None));
        assert_eq!(fail(&mut knowledge, 599), (2, None));
        // The earlier ones are forgotten, by time and by a handshake that ends well.
        assert_eq!(fail(&mut knowledge, 600), (1, None));
        knowledge.note_handshake(client, "a.example");
        assert_eq!(fail(&mut knowledge, 1), (1, None));
        assert_eq!(fail(&mut knowledge, 1), (2, None));
        let reason = Some(reasons::TLS_HANDSHAKE);
        assert_eq!(fail(&mut knowledge, 1), (3, reason));
        // A connection that began before does not lift it.
        knowledge.note_handshake(client, "a.example");
        assert_eq!(fail(&mut knowledge, 1), (3, reason));
        assert_eq!(fail(&mut knowledge, 3_600), (1, None));
    }
}
