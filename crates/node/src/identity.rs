//! The node's identity: a key made on the first run, and the certificate that carries it.
//!
//! An id is the hash of a key ([`vocab::NodeId`]: BLAKE3 of the SubjectPublicKeyInfo), so only the
//! key of a certificate matters: names and dates are ignored, and there is no authority.
//! `identity.key` and `identity.crt` (PEM, the key with mode 0600) are in the state directory. A
//! node whose key is lost is a new node and must be paired again.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use thiserror::Error;
use vocab::NodeId;

use crate::private_directory::{make_private_directory, write_durably};

/// The reason why there is no identity.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file or directory could not be used.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// `read`, `create`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The content of the files is not a key and its certificate.
    #[error("{} is damaged ({reason}); restore the file from a backup, or remove identity.key and \
             identity.crt, start the node with a new identity, and pair it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The mismatch.
        reason: String,
    },
    /// Others can read the key.
    #[error("other users can read {} (mode {mode:o}); run `chmod 600` on this file; if someone may have \
             copied it, remove it and pair the node again", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// No key could be made.
    #[error("cannot make a key: {0}")]
    Generation(String),
}

/// A node's key and certificate.
#[derive(Debug)]
pub struct NodeIdentity {
    node: NodeId,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl NodeIdentity {
    /// Reads the identity in `state_directory`, or makes one there (and the directory itself,
    /// for its owner alone).
    ///
    /// # Errors
    /// When files cannot be read or written, are damaged, or the key is open to others.
    pub fn load_or_create(state_directory: &Path) -> Result<Self, IdentityError> {
        make_private_directory(state_directory).map_err(at("create", state_directory))?;
        match Self::load(state_directory) {
            // Only a node without a key is a new one: a lost certificate must not cost the key,
            // and with it every pairing.
            Err(IdentityError::Io { path, cause, .. })
                if cause.kind() == io::ErrorKind::NotFound && path.ends_with("identity.key") =>
            {
                create(state_directory)?;
                Self::load(state_directory)
            }
            loaded => loaded,
        }
    }

    /// Reads the identity in `state_directory`.
    ///
    /// # Errors
    /// When files cannot be read, are damaged, or the key is open to others.
    pub fn load(state_directory: &Path) -> Result<Self, IdentityError> {
        let key_path = state_directory.join("identity.key");
        let certificate_path = state_directory.join("identity.crt");
        let key_pem = read(&key_path)?;
        let metadata = fs::metadata(&key_path).map_err(at("look at", &key_path))?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::Exposed {
                path: key_path,
                mode,
            });
        }
        let certificate_pem = read(&certificate_path)?;

        let damaged = |path: &Path, reason: String| IdentityError::Damaged {
            path: path.to_owned(),
            reason,
        };
        let key = PrivateKeyDer::from_pem_slice(&key_pem)
            .map_err(|error| damaged(&key_path, error.to_string()))?;
        let certificate = CertificateDer::from_pem_slice(&certificate_pem)
            .map_err(|error| damaged(&certificate_path, error.to_string()))?;
        let node = node_id(&certificate)
            .ok_or_else(|| damaged(&certificate_path, "no certificate".to_owned()))?;
        // rustls refuses a pair that does not match; asking it here gives the error its place.
        let signing = rustls::crypto::ring::sign::any_ecdsa_type(&key)
            .map_err(|error| damaged(&key_path, error.to_string()))?;
        rustls::sign::CertifiedKey::new(vec![certificate.clone()], signing)
            .keys_match()
            .map_err(|_| {
                damaged(
                    &certificate_path,
                    "the certificate belongs to another key".to_owned(),
                )
            })?;
        Ok(Self {
            node,
            certificate,
            key,
        })
    }

    /// The node's id.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The certificate, as it is shown to peers.
    #[must_use]
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// The private key, for rustls alone.
    #[must_use]
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

/// Returns the id of the key in this certificate; `None` if it is not a certificate.
///
/// That the other end does hold the key is for the handshake's signature to show.
#[must_use]
pub fn node_id(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let key = parsed.subject_public_key_info();
    Some(NodeId(*blake3::hash(key.as_ref()).as_bytes()))
}

fn create(state_directory: &Path) -> Result<(), IdentityError> {
    let failed = |error: rcgen::Error| IdentityError::Generation(error.to_string());
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut parameters =
        rcgen::CertificateParams::new(vec!["trunkline".to_owned()]).map_err(failed)?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let certificate = parameters.self_signed(&key).map_err(failed)?;

    // The certificate first: a key without one would look damaged, a certificate without a key
    // looks like a first run that was cut off, and is made again.
    let certificate_path = state_directory.join("identity.crt");
    write_durably(&certificate_path, certificate.pem().as_bytes())
        .map_err(at("write", &certificate_path))?;
    let key_path = state_directory.join("identity.key");
    write_durably(&key_path, key.serialize_pem().as_bytes()).map_err(at("write", &key_path))
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(at("read", path))
}

fn at<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> IdentityError + 'a {
    move |cause| IdentityError::Io {
        action,
        path: path.to_owned(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_made_once_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("a/b");
        let first = NodeIdentity::load_or_create(&state).unwrap();
        let second = NodeIdentity::load_or_create(&state).unwrap();
        assert_eq!(first.node(), second.node());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state.join("identity.key")), 0o600);
        assert_eq!(mode(&state), 0o700);
    }

    #[test]
    fn two_nodes_differ() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = NodeIdentity::load_or_create(one.path()).unwrap();
        let two = NodeIdentity::load_or_create(two.path()).unwrap();
        assert_ne!(one.node(), two.node());
    }

    #[test]
    fn a_key_open_to_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        NodeIdentity::load_or_create(directory.path()).unwrap();
        let key = directory.path().join("identity.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let error = NodeIdentity::load_or_create(directory.path()).unwrap_err();
        assert!(error.to_string().contains("mode 644"), "{error}");
    }

    #[test]
    fn damaged_and_foreign_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        NodeIdentity::load_or_create(directory.path()).unwrap();
        NodeIdentity::load_or_create(other.path()).unwrap();
        fs::copy(
            other.path().join("identity.crt"),
            directory.path().join("identity.crt"),
        )
        .unwrap();
        let error = NodeIdentity::load_or_create(directory.path()).unwrap_err();
        assert!(
            error.to_string().contains("belongs to another key"),
            "{error}"
        );
        fs::write(directory.path().join("identity.key"), b"noise").unwrap();
        let error = NodeIdentity::load_or_create(directory.path()).unwrap_err();
        assert!(
            error.to_string().contains("identity.key is damaged"),
            "{error}"
        );
    }
}
