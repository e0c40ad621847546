//! HTTPS by consent: connections to names that the operator lists are decrypted at the near node, travel as HTTP inside
//! the tunnel between the nodes, and are encrypted again at the far node.
//!
//! ```text
//!  client ══TLS══► near: leaf of the operator's authority ──HTTP halves──► far: verifies ══TLS══► origin
//! ```
//! The near half reads the ClientHello and answers it only when the far half has verified the origin's certificate for
//! that name, now or a short time ago (`facts.rs`). Until then it can let go, and the client speaks with the origin itself.
//!
//! | state of the near half | holds | leads to |
//! | --- | --- | --- |
//! | reading | the ClientHello so far | asked, intercepting, let go |
//! | asked | the ClientHello | intercepting; let go, if the far half refuses or does not answer |
//! | intercepting | what the HTTP half inside holds | ended, closed |
//! | ended | nothing | |
//!
//! | state of the far half | leads to |
//! | --- | --- |
//! | waiting: bytes of the server pass as they are | probing, open |
//! | probing: a further connection finds out whether the origin can be intercepted | waiting |
//! | open: the server's connection is TLS, and the HTTP half inside works on its content | |
//!
//! What passes untouched, with the reason in `why`: no TLS, no name, a name that is not listed or that the authority
//! may not sign for, application protocols other than HTTP, an origin whose certificate is not valid or that asks for
//! clients' certificates, and clients that refused our certificate for that name before, or ended several handshakes. A ClientHello with the extension
//! of Encrypted Client Hello whose outer name is listed is intercepted: browsers send it as grease, and a client that
//! means it answers with the alert `ech_required` and is left alone from then on.
//!
//! It does not look up revocation, resume sessions, or take early data.
//! Specifications: RFC 8446 (TLS 1.3), RFC 5246 (TLS 1.2), RFC 6066 §3 (SNI), RFC 7301 (ALPN), RFC 5280 (certificates).

pub mod authority;
pub(super) mod client_hello;
mod clock;
pub(super) mod config;
mod facts;
mod far;
mod far_lanes;
pub(super) mod frames;
mod further;
mod lanes;
mod near;
mod open_transfers;
mod origin;
mod relay;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use vocab::Time;

use clock::WallClock;
use config::TlsSettings;
use facts::Knowledge;
use origin::OriginTrust;

use super::parts::{FarHalfParts, NearHalfParts};
use super::shared::SharedCache;
use crate::shared::SharedHandle;

pub(super) use facts::ProvedOrigin;
pub(super) use far::FarTls;
pub(super) use near::NearTls;

/// State that the intercepted connections of one engine share.
#[derive(Clone, Debug)]
pub(super) struct TlsState {
    /// `None` where the configuration has no `[http.tls]`.
    settings: Option<Arc<TlsSettings>>,
    clock: Arc<WallClock>,
    provider: Arc<CryptoProvider>,
    known: SharedHandle<Knowledge>,
    trust: Option<Arc<OriginTrust>>,
}

impl TlsState {
    /// Nothing is known yet.
    pub(super) fn new(settings: Option<Arc<TlsSettings>>) -> Self {
        let mut state = Self {
            settings: None,
            clock: Arc::default(),
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            known: SharedHandle::new(Knowledge::default()),
            trust: None,
        };
        state.configure(settings);
        state
    }

    /// Takes other settings, for flows that begin from here on.
    pub(super) fn configure(&mut self, settings: Option<Arc<TlsSettings>>) {
        let trusted = settings.as_ref().and_then(|tls| tls.trusted.as_ref());
        let trust = trusted.map(|trusted| OriginTrust::new(trusted, &self.provider, &self.clock));
        self.trust = trust.and_then(Result::ok).map(Arc::new);
        self.settings = settings;
        // Flows that began before keep what they know to themselves: they sign by the settings that they began with.
        self.known = SharedHandle::new(Knowledge::default());
    }

    /// Takes the time on the calendar.
    pub(super) fn set_calendar(&self, now: Time, since_1970: Duration) {
        self.clock.set_calendar(now, since_1970);
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        self.known.with(|known| known.held())
    }

    /// Builds the half beside a client.
    pub(super) fn near(
        &self,
        server: SocketAddr,
        cache: Option<SharedCache>,
        parts: NearHalfParts,
    ) -> NearTls {
        NearTls::new(self.clone(), server, cache, parts)
    }

    /// Builds the half beside a server.
    pub(super) fn far(&self, parts: FarHalfParts) -> FarTls {
        FarTls::new(self.clone(), parts)
    }
}
