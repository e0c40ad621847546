//! What tests need: the first message of a client, and an authority with certificates.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::stream::TlsStream;

/// A ClientHello in one record, as the TLS library writes it.
pub(crate) fn hello(name: &str, protocols: &[&str]) -> Vec<u8> {
    let mut config = client_config(RootCertStore::empty());
    config.alpn_protocols = protocols
        .iter()
        .map(|one| one.as_bytes().to_vec())
        .collect();
    let name = ServerName::try_from(name.to_owned()).expect("a test names a host");
    let connection = ClientConnection::new(Arc::new(config), name);
    let connection = connection.expect("the settings are the library's own");
    TlsStream::new(connection).take_output().to_vec()
}

/// The settings of a client that trusts these roots.
pub(crate) fn client_config(roots: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clock = super::clock::WallClock::default();
    clock.set_calendar(
        vocab::Time::ZERO,
        std::time::Duration::from_secs(1_767_225_600),
    );
    ClientConfig::builder_with_details(provider, Arc::new(clock))
        .with_safe_default_protocol_versions()
        .expect("the provider has both versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Where the length of the extensions stands in a ClientHello that is one record.
pub(crate) fn extensions_at(bytes: &[u8]) -> usize {
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(bytes[at]);
    at += 2 + usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    at + 1 + usize::from(bytes[at])
}
