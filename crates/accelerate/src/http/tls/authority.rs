//! The operator's authority: makes the leaf certificates that clients of intercepted names see.
//!
//! ```text
//!  trunkline http ca ──► certificate (to every client), key (mode 0600, to the near node)
//!  origin's certificate, verified by the far node ──names, validity──► leaf ──► client
//! ```
//! A leaf names only what the origin's own certificate names and what the configuration lists, and is valid no longer
//! than that certificate. Name constraints in the authority's certificate (RFC 5280 §4.2.1.10, Name Constraints) keep a
//! stolen key from signing for other domains.
//!
//! Keys are made by ring's generator. They are in memory only and in no `Debug` form.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType, SerialNumber,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use super::config::is_host_name;
use super::facts::OriginFacts;

/// The longest life of an authority that [`NewAuthority::make`] makes: ten years, as corporate roots have.
pub const AUTHORITY_LIFE_MAX: Duration = Duration::from_secs(3_650 * 86_400);
/// The clock of a client may be behind by so much.
const CLOCK_SLACK: Duration = Duration::from_secs(86_400);
/// The longest life of a leaf. Browsers refuse certificates of more than 398 days from public authorities, and some
/// from all.
const LEAF_LIFE_MAX: Duration = Duration::from_secs(90 * 86_400);
/// Bytes of a serial number: RFC 5280 §4.1.2.2 (Serial Number) allows 20.
const SERIAL_BYTES: usize = 16;

/// Why files are no authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate's file is no PEM certificate.
    #[error("the certificate file is not in PEM format")]
    Certificate,
    /// The key's file is no PEM private key of a kind that is supported.
    #[error(
        "the key file is not a private key in PEM format (ECDSA P-256 or P-384, Ed25519, or RSA)"
    )]
    Key,
    /// The certificate has another key.
    #[error("the key does not belong to the certificate")]
    OtherKey,
    /// The certificate may not sign others.
    #[error("the certificate does not belong to an authority (it lacks basicConstraints CA:TRUE)")]
    NotAuthority,
    /// A name that the authority shall be limited to is none.
    #[error("{0:?} is not a domain name; write a domain such as corp.example")]
    Domain(String),
    /// The library refused.
    #[error("{0}")]
    Other(String),
}

/// The operator's authority, and the key of the leaf certificates.
pub(crate) struct LeafAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// Seconds since 1970 from which on, and until which, the authority is valid.
    validity: (i64, i64),
    /// The domains that the certificate's name constraints permit; `None` where there are none.
    permitted: Option<Vec<String>>,
    /// One key for all leaves: a leaf says nothing that its key would have to keep apart.
    leaf_key: KeyPair,
}

impl LeafAuthority {
    /// Reads the certificate and the key of an authority.
    ///
    /// # Errors
    /// When they are not, or do not belong together.
    pub(crate) fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, AuthorityError> {
        let certificate =
            CertificateDer::from_pem_slice(certificate).map_err(|_| AuthorityError::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| AuthorityError::Key)?;
        let key = KeyPair::try_from(&key).map_err(|_| AuthorityError::Key)?;
        let (_, parsed) =
            X509Certificate::from_der(&certificate).map_err(|_| AuthorityError::Certificate)?;
        if !parsed.is_ca() {
            return Err(AuthorityError::NotAuthority);
        }
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(AuthorityError::OtherKey);
        }
        let validity = parsed.validity();
        let validity = (
            validity.not_before.timestamp(),
            validity.not_after.timestamp(),
        );
        let permitted = permitted_domains(&parsed);
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|_| AuthorityError::Certificate)?;
        let leaf_key = KeyPair::generate().map_err(other)?;
        Ok(Self {
            issuer,
            certificate,
            validity,
            permitted,
            leaf_key,
        })
    }

    /// True if the authority's own certificate is valid at this moment, in seconds since 1970.
    pub(crate) fn is_valid(&self, since_1970: i64) -> bool {
        (self.validity.0..=self.validity.1).contains(&since_1970)
    }

    /// True if the name constraints of the authority allow a certificate for this name.
    pub(crate) fn permits(&self, name: &str) -> bool {
        let is_below = |domain: &String| {
            let before = name.strip_suffix(domain.as_str());
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let permitted = self.permitted.as_ref();
        permitted.is_none_or(|domains| domains.iter().any(is_below))
    }

    /// Makes the certificate for clients of a name, of which the far node has verified what the origin showed.
    /// `names` are those of the origin's names that are intercepted.
    pub(crate) fn sign_leaf(
        &self,
        provider: &CryptoProvider,
        now: i64,
        names: &[&str],
        facts: &OriginFacts,
    ) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        let first = names.first().copied().unwrap_or_default();
        // RFC 5280 Annex A: a common name has 64 characters at most.
        if first.len() <= 64 {
            subject.push(DnType::CommonName, first);
        }
        params.distinguished_name = subject;
        for name in names {
            let name = (*name).try_into().map_err(other)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let slack = CLOCK_SLACK.as_secs().cast_signed();
        let life = LEAF_LIFE_MAX.as_secs().cast_signed();
        let begins = facts.not_before.max(self.validity.0).max(now - slack);
        let ends = facts.not_after.min(self.validity.1).min(now + life);
        params.not_before = moment(begins)?;
        params.not_after = moment(ends)?;
        params.serial_number = Some(serial(provider)?);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params
            .signed_by(&self.leaf_key, &self.issuer)
            .map_err(other)?;
        let key = PrivateKeyDer::Pkcs8(self.leaf_key.serialize_der().into());
        let key = provider.key_provider.load_private_key(key);
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        Ok(Arc::new(CertifiedKey::new(chain, key.map_err(other)?)))
    }
}

/// The domains that a certificate's name constraints permit; a constraint that begins with a dot is for the names below.
fn permitted_domains(certificate: &X509Certificate<'_>) -> Option<Vec<String>> {
    let constraints = certificate.name_constraints().ok()??;
    let permitted = constraints.value.permitted_subtrees.as_ref()?;
    let domains = permitted.iter().filter_map(|subtree| match subtree.base {
        GeneralName::DNSName(name) => Some(name.trim_start_matches('.').to_ascii_lowercase()),
        _ => None,
    });
    let domains: Vec<String> = domains.collect();
    (!domains.is_empty()).then_some(domains)
}

impl fmt::Debug for LeafAuthority {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// An authority that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuthority {
    /// The name that clients show for it.
    pub name: String,
    /// The domains that it may sign for, with all names below them.
    pub permitted: Vec<String>,
    /// Seconds since 1970 at which its life begins.
    pub now: i64,
    /// The length of its life.
    pub life: Duration,
}

impl NewAuthority {
    /// Makes the certificate and the private key, both as PEM.
    ///
    /// # Errors
    /// When a domain is none, or the library refuses.
    pub fn make(&self) -> Result<(String, Zeroizing<String>), AuthorityError> {
        let mut permitted_subtrees = Vec::new();
        for domain in &self.permitted {
            let domain = domain.to_ascii_lowercase();
            let domain = domain.strip_prefix("*.").unwrap_or(&domain);
            if !is_host_name(domain) || domain.parse::<std::net::IpAddr>().is_ok() {
                return Err(AuthorityError::Domain(domain.to_owned()));
            }
            permitted_subtrees.push(GeneralSubtree::DnsName(domain.to_owned()));
        }
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, self.name.as_str());
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = (!permitted_subtrees.is_empty()).then_some(NameConstraints {
            permitted_subtrees,
            excluded_subtrees: Vec::new(),
        });
        let life = self.life.min(AUTHORITY_LIFE_MAX).as_secs().cast_signed();
        params.not_before = moment(self.now - CLOCK_SLACK.as_secs().cast_signed())?;
        params.not_after = moment(self.now + life)?;
        params.serial_number = Some(serial(&rustls::crypto::ring::default_provider())?);
        let key = KeyPair::generate().map_err(other)?;
        let certificate = params.self_signed(&key).map_err(other)?;
        Ok((certificate.pem(), Zeroizing::new(key.serialize_pem())))
    }
}

/// A serial number that no other certificate has. Clients refuse two certificates of one authority with the same.
fn serial(provider: &CryptoProvider) -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0; SERIAL_BYTES];
    let filled = provider.secure_random.fill(&mut bytes);
    filled.map_err(|_| AuthorityError::Other("no random numbers".to_owned()))?;
    // Positive, and of full length.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn moment(since_1970: i64) -> Result<OffsetDateTime, AuthorityError> {
    OffsetDateTime::from_unix_timestamp(since_1970).map_err(other)
}

fn other(error: impl fmt::Display) -> AuthorityError {
    AuthorityError::Other(error.to_string())
}

#[cfg(test)]
mod tests {
    use x509_parser::extensions::ParsedExtension;

    use super::*;

    const NOW: i64 = 1_767_225_600;

    fn new_authority() -> NewAuthority {
        NewAuthority {
            name: "Corp Interception".to_owned(),
            permitted: vec!["corp.example".to_owned()],
            now: NOW,
            life: Duration::from_secs(86_400 * 365),
        }
    }

    fn facts() -> OriginFacts {
        OriginFacts {
            names: vec!["wiki.corp.example".to_owned()],
            not_before: NOW - 10_000_000,
            not_after: NOW + 1_000,
            may_store: true,
        }
    }

    #[test]
    fn a_made_authority_is_limited_to_its_domains() {
        let (certificate, key) = new_authority().make().unwrap();
        let parsed = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let (_, parsed) = X509Certificate::from_der(&parsed).unwrap();
        assert!(parsed.is_ca());
        let constraints = parsed
            .extensions()
            .iter()
            .find_map(|one| match one.parsed_extension() {
                ParsedExtension::NameConstraints(constraints) => Some((one.critical, constraints)),
                _ => None,
            });
        let (is_critical, constraints) = constraints.unwrap();
        assert!(is_critical);
        let permitted = constraints.permitted_subtrees.as_ref().unwrap();
        assert_eq!(permitted.len(), 1);
        assert_eq!(permitted[0].base, GeneralName::DNSName("corp.example"));
        let authority = LeafAuthority::parse(certificate.as_bytes(), key.as_bytes()).unwrap();
        assert!(authority.permits("corp.example") && authority.permits("a.corp.example"));
        assert!(!authority.permits("xcorp.example") && !authority.permits("bank.example"));
    }

    #[test]
    fn leaves_have_the_origins_names_and_end() {
        let (certificate, key) = new_authority().make().unwrap();
        let authority = LeafAuthority::parse(certificate.as_bytes(), key.as_bytes()).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let names = ["wiki.corp.example", "*.corp.example"];
        let sign = || {
            authority
                .sign_leaf(&provider, NOW, &names, &facts())
                .unwrap()
        };
        let (one, other) = (sign(), sign());
        let (_, leaf) = X509Certificate::from_der(&one.cert[0]).unwrap();
        let (_, second) = X509Certificate::from_der(&other.cert[0]).unwrap();
        assert_ne!(leaf.raw_serial(), second.raw_serial());
        assert_eq!(leaf.validity().not_after.timestamp(), NOW + 1_000);
        assert_eq!(leaf.validity().not_before.timestamp(), NOW - 86_400);
        let alternative = leaf.subject_alternative_name().unwrap().unwrap();
        let expected = names.map(GeneralName::DNSName);
        assert_eq!(alternative.value.general_names, expected);
    }

    #[test]
    fn files_that_do_not_belong_together_are_refused() {
        let (certificate, key) = new_authority().make().unwrap();
        let (_, other_key) = new_authority().make().unwrap();
        let parse = |certificate: &str, key: &str| {
            LeafAuthority::parse(certificate.as_bytes(), key.as_bytes()).unwrap_err()
        };
        assert_eq!(parse(&certificate, &other_key), AuthorityError::OtherKey);
        assert_eq!(parse("", &key), AuthorityError::Certificate);
        assert_eq!(parse(&certificate, &certificate), AuthorityError::Key);
        let leaf = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        let certificate = params.self_signed(&leaf).unwrap().pem();
        let error = parse(&certificate, &leaf.serialize_pem());
        assert_eq!(error, AuthorityError::NotAuthority);
    }

    #[test]
    fn a_domain_that_is_none_is_not_permitted() {
        let new = NewAuthority {
            permitted: vec!["10.0.0.0".to_owned()],
            ..new_authority()
        };
        assert!(matches!(new.make(), Err(AuthorityError::Domain(_))));
    }

    #[test]
    fn keys_are_in_no_debug_form() {
        let (certificate, key) = new_authority().make().unwrap();
        let authority = LeafAuthority::parse(certificate.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(format!("{authority:?}"), "Authority { .. }");
    }
}
