//! A TLS connection to an origin, whose certificate is verified.
//!
//! rustls verifies chain, names and validity with the operator's roots; nothing of that is relaxed. Revocation is not
//! looked up. An origin that asks for a client's certificate is not to be intercepted, since the client alone has one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Error, RootCertStore, SignatureScheme,
};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::clock::WallClock;
use super::facts::{CERTIFICATE_NAMES_MAX, OriginFacts};
use super::frames::CertificateFault;
use super::stream::TlsStream;
use crate::ReasonCode;
use crate::http::reasons;

/// The protocol that is spoken with origins.
const HTTP1: &[u8] = b"http/1.1";

/// Why an origin's connection cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginFault {
    pub(crate) reason: ReasonCode,
    pub(crate) certificate: CertificateFault,
}

impl OriginFault {
    /// A fault that is not one of the certificate.
    pub(crate) fn plain(reason: ReasonCode) -> Self {
        Self {
            reason,
            certificate: CertificateFault::Other,
        }
    }

    fn of(error: &Error) -> Self {
        let certificate = match error {
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    CertificateFault::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    CertificateFault::NotYetValid
                }
                CertificateError::UnknownIssuer => CertificateFault::UnknownIssuer,
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => CertificateFault::OtherName,
                CertificateError::Revoked => CertificateFault::Revoked,
                _ => CertificateFault::Other,
            },
            _ => return Self::plain(reasons::ORIGIN_TLS),
        };
        Self {
            reason: reasons::ORIGIN_CERTIFICATE,
            certificate,
        }
    }
}

/// How origins are connected to.
#[derive(Clone, Debug)]
pub(crate) struct OriginTrust {
    config: ClientConfig,
}

impl OriginTrust {
    /// Origins are verified with these roots.
    ///
    /// # Errors
    /// When the library refuses.
    pub(crate) fn new(
        trusted: &Arc<RootCertStore>,
        provider: &Arc<CryptoProvider>,
        clock: &Arc<WallClock>,
    ) -> Result<Self, Error> {
        let mut config = ClientConfig::builder_with_details(
            Arc::clone(provider),
            Arc::<WallClock>::clone(clock),
        )
        .with_safe_default_protocol_versions()?
        .with_root_certificates(Arc::clone(trusted))
        .with_no_client_auth();
        config.alpn_protocols = vec![HTTP1.to_vec()];
        // Each connection shows the certificate anew.
        config.resumption = Resumption::disabled();
        Ok(Self { config })
    }
}

/// Outcome of a connection to an origin.
#[derive(Debug)]
pub(crate) struct OriginReceived {
    /// Its bytes. There are none before the certificate is verified.
    pub(crate) plain: Bytes,
    /// The certificate was verified just now.
    pub(crate) is_verified_now: bool,
    /// It has ended its direction.
    pub(crate) is_finished: bool,
    /// The connection cannot be used.
    pub(crate) fault: Option<OriginFault>,
}

/// A TLS connection to an origin.
#[derive(Debug)]
pub(crate) struct OriginStream {
    stream: TlsStream,
    asks: Arc<AsksCertificate>,
    is_verified: bool,
    /// Bytes that wait until the origin is verified and is known to be usable. TLS would send them with the end of the
    /// handshake, before this is known.
    waiting: Vec<u8>,
    /// The direction towards the origin ends behind them.
    is_finishing: bool,
}

impl OriginStream {
    /// Begins a connection; [`Self::take_output`] has its first message.
    ///
    /// # Errors
    /// When the name cannot be asked for.
    pub(crate) fn new(trust: &OriginTrust, name: &str) -> Result<Self, OriginFault> {
        let unusable = || OriginFault::plain(reasons::ORIGIN_TLS);
        let asks = Arc::new(AsksCertificate::default());
        let mut config = trust.config.clone();
        config.client_auth_cert_resolver = Arc::<AsksCertificate>::clone(&asks);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| unusable())?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(|_| unusable())?;
        Ok(Self {
            stream: TlsStream::new(connection),
            asks,
            is_verified: false,
            waiting: Vec::new(),
            is_finishing: false,
        })
    }

    /// Takes bytes of the wire.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> OriginReceived {
        let received = self.stream.receive(bytes);
        let mut fault = received.error.as_ref().map(OriginFault::of);
        if self.asks.0.load(Ordering::Relaxed) {
            fault = Some(OriginFault::plain(reasons::CLIENT_CERTIFICATE));
        }
        let is_verified_now = fault.is_none() && !self.is_verified && !self.stream.is_handshaking();
        if is_verified_now {
            if self.stream.protocol().is_some_and(|other| other != HTTP1) {
                fault = Some(OriginFault::plain(reasons::TLS_PROTOCOL));
            }
            self.is_verified = fault.is_none();
        }
        if is_verified_now && self.is_verified {
            self.stream.send(&std::mem::take(&mut self.waiting));
            if self.is_finishing {
                self.stream.finish();
            }
        }
        let may_pass = self.is_verified && fault.is_none();
        OriginReceived {
            plain: match may_pass {
                true => received.plain,
                false => Bytes::new(),
            },
            is_verified_now: is_verified_now && self.is_verified,
            is_finished: received.is_finished,
            fault,
        }
    }

    /// True once the certificate was verified.
    pub(crate) fn is_verified(&self) -> bool {
        self.is_verified
    }

    /// Sends bytes; before the certificate is verified they wait.
    pub(crate) fn send(&mut self, plain: &[u8]) {
        match self.is_verified {
            true => self.stream.send(plain),
            false => self.waiting.extend_from_slice(plain),
        }
    }

    /// Ends the direction towards the origin.
    pub(crate) fn finish(&mut self) {
        match self.is_verified {
            true => self.stream.finish(),
            false => self.is_finishing = true,
        }
    }

    /// The bytes that are to go over the wire.
    pub(crate) fn take_output(&mut self) -> Bytes {
        self.stream.take_output()
    }

    /// Facts of the verified certificate.
    pub(crate) fn facts(&self, may_store: bool) -> Option<OriginFacts> {
        let certificate = self
            .stream
            .peer_certificate()
            .filter(|_| self.is_verified)?;
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let mut names = Vec::new();
        if let Ok(Some(alternative)) = certificate.subject_alternative_name() {
            for name in &alternative.value.general_names {
                let GeneralName::DNSName(name) = name else {
                    continue;
                };
                let name = name.to_ascii_lowercase();
                let is_name = super::config::is_host_name(name.strip_prefix("*.").unwrap_or(&name));
                if is_name && names.len() < CERTIFICATE_NAMES_MAX {
                    names.push(name);
                }
            }
        }
        let validity = certificate.validity();
        Some(OriginFacts {
            names,
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
            may_store,
        })
    }
}

/// Notices that an origin asks for a client's certificate, and has none.
#[derive(Debug, Default)]
struct AsksCertificate(AtomicBool);

impl ResolvesClientCert for AsksCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}
