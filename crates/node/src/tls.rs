//! TLS 1.3 between nodes that know each other by their keys.
//!
//! Both ends show a certificate, and each checks two things in the other's handshake: that the key
//! hashes to a pinned [`NodeId`], and that the key signed the handshake. The rest of the
//! certificate is ignored. There is one version (1.3), no resumption, no tickets, no early data and
//! no key log, so every link starts from a fresh key exchange that both identities signed.
//!
//! Two application protocols share the port: [`SESSION`] for pinned peers alone, and [`PAIRING`],
//! where the listener does not know the joiner yet and the token must prove the joiner's right.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use vocab::NodeId;

use crate::identity::{NodeIdentity, node_id};
use crate::repeats;

/// The application protocol of a session's links.
pub const SESSION: &[u8] = b"trunkline/1";
/// The application protocol of pairing.
pub const PAIRING: &[u8] = b"trunkline-pair/1";

/// The identities that may have sessions with this node, by name; shared with the verifiers and
/// changed by pairing and reload.
#[derive(Clone, Debug, Default)]
pub struct TrustedIdentities {
    peers: Arc<RwLock<BTreeMap<NodeId, String>>>,
}

impl TrustedIdentities {
    /// Trusts these and no others.
    pub fn replace(&self, peers: BTreeMap<NodeId, String>) {
        *self.peers.write().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    /// The name under which this identity is pinned.
    #[must_use]
    pub fn name(&self, node: NodeId) -> Option<String> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.get(&node).cloned()
    }
}

/// For links that pinned peers open to us.
///
/// # Errors
/// When rustls refuses the identity.
pub fn session_server(
    identity: &NodeIdentity,
    trust: TrustedIdentities,
) -> Result<Arc<ServerConfig>, Error> {
    server(identity, AcceptedKeys::Pinned(trust), SESSION)
}

/// The server configuration for joiners; the pairing exchange verifies their token.
///
/// # Errors
/// When rustls refuses the identity.
pub fn pairing_server(identity: &NodeIdentity) -> Result<Arc<ServerConfig>, Error> {
    server(identity, AcceptedKeys::AnyKey, PAIRING)
}

/// For links that we open to `expected`, by the protocol [`SESSION`] or [`PAIRING`].
///
/// # Errors
/// When rustls refuses the identity.
pub fn client(
    identity: &NodeIdentity,
    expected: NodeId,
    protocol: &[u8],
) -> Result<Arc<ClientConfig>, Error> {
    let verifier = Arc::new(KeyVerifier::new(AcceptedKeys::One(expected)));
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(vec![identity.certificate()], identity.key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// The name that clients must give rustls; it is not sent and not checked.
#[must_use]
pub fn unchecked_name() -> ServerName<'static> {
    ServerName::try_from("trunkline").expect("a plain word is a valid DNS name")
}

fn server(
    identity: &NodeIdentity,
    accepts: AcceptedKeys,
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(KeyVerifier::new(accepts)))
        .with_single_cert(vec![identity.certificate()], identity.key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The keys that are accepted.
#[derive(Clone, Debug)]
enum AcceptedKeys {
    One(NodeId),
    Pinned(TrustedIdentities),
    AnyKey,
}

/// Checks that the key is an accepted one; rustls then has the signature checked with it.
#[derive(Debug)]
struct KeyVerifier {
    accepts: AcceptedKeys,
    provider: Arc<CryptoProvider>,
}

impl KeyVerifier {
    fn new(accepts: AcceptedKeys) -> Self {
        Self {
            accepts,
            provider: provider(),
        }
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let node = node_id(certificate).ok_or(CertificateError::BadEncoding)?;
        let accepted = match &self.accepts {
            AcceptedKeys::One(expected) => node == *expected,
            AcceptedKeys::Pinned(trust) => trust.name(node).is_some(),
            AcceptedKeys::AnyKey => true,
        };
        if accepted {
            return Ok(());
        }
        if matches!(self.accepts, AcceptedKeys::Pinned(_)) {
            repeats::REFUSED_IDENTITY.tell(None, || {
                tracing::warn!(
                    node = node.short(),
                    "refused a node that is not paired with this one"
                );
            });
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The error for rustls's calls for TLS 1.2, which is not offered.
fn not_offered() -> Error {
    rustls::PeerIncompatible::Tls13RequiredForQuic.into()
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_offered())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_offered())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_has_no_resumption_or_key_log() {
        let state = tempfile::tempdir().unwrap();
        let identity = NodeIdentity::load_or_create(state.path()).unwrap();
        let servers = [
            session_server(&identity, TrustedIdentities::default()).unwrap(),
            pairing_server(&identity).unwrap(),
        ];
        for server in servers {
            let limits = (server.max_early_data_size, server.send_tls13_tickets);
            assert_eq!(limits, (0, 0));
            assert!(!server.session_storage.can_cache());
            assert!(!server.key_log.will_log("EXPORTER_SECRET"));
        }
        let client = client(&identity, NodeId([1; 32]), SESSION).unwrap();
        assert!(!client.enable_early_data);
        assert!(!client.key_log.will_log("EXPORTER_SECRET"));
    }
}
