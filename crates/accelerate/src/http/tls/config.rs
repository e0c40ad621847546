//! The table `[http.tls]`: whose HTTPS is intercepted, and with which keys.
//!
//! The near node needs the names and the authority's certificate and key, the far node the roots that it verifies
//! origins with. Each node has its own table; a node without one takes no part, whatever its peer wants.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use super::authority::LeafAuthority;
use crate::settings::{FileSource, SettingError, SettingFile, SettingsTable, TableReader};

/// Names that one list may hold. A company has some dozens of domains; each name of a new connection is compared
/// with all of them.
const NAMES_MAX: usize = 1_024;
/// Bytes of a file with certificates: the roots of common systems have 250 kB.
const FILE_MAX: u64 = 8 << 20;
/// The port of HTTPS (RFC 9110 §4.2.2, https URI Scheme).
pub(crate) const PORT: u16 = 443;

/// The operator's settings for HTTPS.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// Names whose connections are intercepted.
    pub intercept: Vec<NamePattern>,
    /// Names that are left alone although `intercept` lists them.
    pub exclude: Vec<NamePattern>,
    /// The path of the authority's certificate.
    pub ca_certificate: Option<String>,
    /// The path of the authority's private key.
    pub ca_key: Option<String>,
    /// The path of the certificates that origins are verified with; `None` for those of the system.
    pub roots: Option<String>,
    /// True if clients are kept from reaching intercepted servers by QUIC.
    pub blocks_quic: bool,
    /// True if decrypted content may be in the dictionary and the cache.
    pub may_store_decrypted: bool,
    /// The authority that signs leaf certificates, once its files are read.
    pub(crate) authority: Option<Arc<LeafAuthority>>,
    /// The certificates that origins are verified with, once they are read.
    pub(crate) trusted: Option<Arc<RootCertStore>>,
}

impl TlsSettings {
    /// Reads the table.
    ///
    /// # Errors
    /// When a key is unknown, a value is wrong, or a key is missing that another one needs.
    pub(crate) fn parse(table: &SettingsTable) -> Result<Self, SettingError> {
        let mut reader = TableReader::new(table);
        let pattern = NamePattern::from_str;
        let settings = Self {
            intercept: reader.texts("intercept", pattern)?.unwrap_or_default(),
            exclude: reader.texts("exclude", pattern)?.unwrap_or_default(),
            ca_certificate: path(&mut reader, "ca_certificate")?,
            ca_key: path(&mut reader, "ca_key")?,
            roots: path(&mut reader, "roots")?,
            blocks_quic: reader.switch("block_quic")?.unwrap_or(false),
            may_store_decrypted: reader.switch("store_decrypted")?.unwrap_or(false),
            authority: None,
            trusted: None,
        };
        for (key, names) in [
            ("intercept", &settings.intercept),
            ("exclude", &settings.exclude),
        ] {
            if names.len() > NAMES_MAX {
                let message = format!(
                    "`{key}` lists more than {NAMES_MAX} names; use patterns such as \
                                       \"*.corp.example\""
                );
                return Err(reader.wrong(key, message));
            }
        }
        for (key, file) in [
            ("ca_certificate", &settings.ca_certificate),
            ("ca_key", &settings.ca_key),
        ] {
            if settings.intercepts() && file.is_none() {
                let message = format!(
                    "`intercept` needs `{key}`, which is missing; `trunkline http ca` creates the files of \
                     an authority"
                );
                return Err(reader.wrong("intercept", message));
            }
        }
        reader.finish()?;
        Ok(settings)
    }

    /// True if this node intercepts connections of its clients.
    pub(crate) fn intercepts(&self) -> bool {
        !self.intercept.is_empty()
    }

    /// True if connections to this name are intercepted.
    pub(crate) fn lists(&self, name: &str) -> bool {
        let matches = |names: &[NamePattern]| names.iter().any(|one| one.matches(name));
        matches(&self.intercept) && !matches(&self.exclude)
    }

    /// True if the operator has excluded this name from those that are intercepted.
    pub(crate) fn excludes(&self, name: &str) -> bool {
        self.exclude.iter().any(|one| one.matches(name))
    }

    /// True if connections to this name are intercepted, and the authority may sign for it.
    pub(crate) fn may_sign_for(&self, name: &str) -> bool {
        let authority = self.authority.as_ref();
        self.lists(name) && authority.is_some_and(|authority| authority.permits(name))
    }

    /// The settings with their values as they are written in the table.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let list = |names: &[NamePattern]| {
            let names: Vec<String> = names.iter().map(|name| format!("{:?}", name.0)).collect();
            format!("[{}]", names.join(", "))
        };
        let mut lines = vec![("tls.intercept", list(&self.intercept))];
        if !self.exclude.is_empty() {
            lines.push(("tls.exclude", list(&self.exclude)));
        }
        for (key, path) in [
            ("tls.ca_certificate", &self.ca_certificate),
            ("tls.ca_key", &self.ca_key),
            ("tls.roots", &self.roots),
        ] {
            lines.extend(path.as_ref().map(|path| (key, format!("{path:?}"))));
        }
        lines.push(("tls.block_quic", self.blocks_quic.to_string()));
        lines.push(("tls.store_decrypted", self.may_store_decrypted.to_string()));
        lines
    }

    /// Remarks for the operator.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.intercepts() && !self.may_store_decrypted {
            remarks.push(
                "tls.intercept decrypts connections, but the node can neither cache nor deduplicate their \
                 content; write tls.store_decrypted = true on both nodes".to_owned(),
            );
        }
        for pattern in &self.intercept {
            let domain = pattern.0.strip_prefix("*.").unwrap_or(&pattern.0);
            let authority = self.authority.as_ref();
            if authority.is_some_and(|authority| !authority.permits(domain)) {
                remarks.push(format!(
                    "tls.intercept lists \"{pattern}\", but the name constraints of tls.ca_certificate do not \
                     permit all of these names, and the node does not decrypt those that they exclude; remove the \
                     name, or create an authority with `trunkline http ca --permit {domain}`"
                ));
            }
        }
        for (key, is_set) in [
            ("exclude", !self.exclude.is_empty()),
            ("ca_certificate", self.ca_certificate.is_some()),
            ("ca_key", self.ca_key.is_some()),
            ("block_quic", self.blocks_quic),
        ] {
            if is_set && !self.intercepts() {
                remarks.push(format!(
                    "tls.{key} has no effect, because tls.intercept is missing; write \
                                      tls.intercept, or remove tls.{key}"
                ));
            }
        }
        remarks
    }

    /// The files that the table names.
    pub(crate) fn files(&self) -> Vec<SettingFile> {
        let mut files = Vec::new();
        if let (true, Some(certificate), Some(key)) =
            (self.intercepts(), &self.ca_certificate, &self.ca_key)
        {
            for (setting, path, is_secret) in [
                ("ca_certificate under [http.tls]", certificate, false),
                ("ca_key under [http.tls]", key, true),
            ] {
                files.push(SettingFile {
                    key: setting,
                    source: FileSource::Path(path.clone()),
                    bytes_max: FILE_MAX,
                    is_secret,
                });
            }
        }
        files.push(SettingFile {
            key: "roots under [http.tls]",
            source: match &self.roots {
                Some(path) => FileSource::Path(path.clone()),
                None => FileSource::SystemRoots,
            },
            bytes_max: FILE_MAX,
            is_secret: false,
        });
        files
    }

    /// The same settings with the contents of [`Self::files`].
    ///
    /// # Errors
    /// When a file holds something else than it should.
    pub(crate) fn with_files(&self, contents: &[Zeroizing<Vec<u8>>]) -> Result<Self, String> {
        let mut loaded = self.clone();
        let mut contents = contents.iter();
        if self.intercepts() {
            let (Some(certificate), Some(key)) = (contents.next(), contents.next()) else {
                return Err(
                    "the configuration does not name the files of the authority; write \
                            ca_certificate and ca_key"
                        .to_owned(),
                );
            };
            let authority = LeafAuthority::parse(certificate, key).map_err(|error| {
                let path = |path: &Option<String>| path.clone().unwrap_or_default();
                let (certificate, key) = (path(&self.ca_certificate), path(&self.ca_key));
                format!(
                    "{certificate} and {key} cannot be used as the authority of [http.tls]: {error}"
                )
            })?;
            loaded.authority = Some(Arc::new(authority));
        }
        let roots = contents.next().map_or(&[][..], |roots| roots);
        let (roots, bad) = read_roots(roots);
        if self.roots.is_some() && (roots.is_empty() || bad > 0) {
            let path = self.roots.clone().unwrap_or_default();
            return Err(format!(
                "{path} (roots under [http.tls]) contains {} readable certificates and {bad} unreadable \
                 ones; write a bundle of PEM certificates into it",
                roots.len()
            ));
        }
        loaded.trusted = (!roots.is_empty()).then(|| Arc::new(roots));
        Ok(loaded)
    }
}

/// The roots of a PEM bundle, and the number of certificates that cannot be used.
fn read_roots(pem: &[u8]) -> (RootCertStore, usize) {
    let mut roots = RootCertStore::empty();
    let mut bad = 0;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let added = certificate.ok().map(|one| roots.add(one).is_ok());
        bad += usize::from(added != Some(true));
    }
    (roots, bad)
}

fn path(reader: &mut TableReader<'_>, key: &'static str) -> Result<Option<String>, SettingError> {
    let path = reader.text(key)?;
    match path {
        Some("") => Err(reader.wrong(
            key,
            format!("`{key}` is not the path of a file; write a path in quotes"),
        )),
        _ => Ok(path.map(str::to_owned)),
    }
}

/// A name, or `*.` and a domain for all names below it, at any depth and without the domain itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// True if the pattern covers this name, which is in lower case.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_prefix('*') {
            // What is left begins with a dot.
            Some(domain) => name.len() > domain.len() && name.ends_with(domain),
            None => name == self.0,
        }
    }
}

impl FromStr for NamePattern {
    type Err = InvalidNamePattern;

    fn from_str(text: &str) -> Result<Self, InvalidNamePattern> {
        let lower = text.to_ascii_lowercase();
        let domain = lower.strip_prefix("*.").unwrap_or(&lower);
        let is_address = domain.parse::<std::net::IpAddr>().is_ok();
        match is_host_name(domain) && !is_address {
            true => Ok(Self(lower)),
            false => Err(InvalidNamePattern(text.to_owned())),
        }
    }
}

/// A text is no [`NamePattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid name here; write a host's name, or a pattern for all hosts of a domain such as \
     \"*.corp.example\""
)]
pub struct InvalidNamePattern(String);

/// True if the text is a host's name: labels of letters, digits, hyphens and underscores (RFC 1035 §2.3.1, Preferred
/// name syntax, and what is in use beside it), 253 characters at most.
pub(crate) fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(is_plain) && !label.starts_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

impl fmt::Display for NamePattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.0)
    }
}

impl PartialEq for TlsSettings {
    /// The same as they would be written down.
    fn eq(&self, other: &Self) -> bool {
        self.lines() == other.lines()
    }
}

impl Eq for TlsSettings {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::testing::{table, text};
    use crate::settings::{LocatedValue, SettingValue};

    fn list(names: &[&str]) -> SettingValue {
        let located = |name: &&str| LocatedValue {
            value: SettingValue::Text((*name).to_owned()),
            span: 7..8,
        };
        SettingValue::List(names.iter().map(located).collect())
    }

    #[test]
    fn patterns_cover_names_below_a_domain() {
        let wide: NamePattern = "*.Corp.example".parse().unwrap();
        for (name, is_covered) in [
            ("a.corp.example", true),
            ("b.a.corp.example", true),
            ("corp.example", false),
            ("acorp.example", false),
            (".corp.example", false),
            ("a.corp.example.net", false),
        ] {
            assert_eq!(
                wide.matches(name) && is_host_name(name),
                is_covered,
                "{name}"
            );
        }
        let one: NamePattern = "corp.example".parse().unwrap();
        assert!(one.matches("corp.example") && !one.matches("a.corp.example"));
    }

    #[test]
    fn wrong_patterns_are_refused_where_they_stand() {
        for name in [
            "*", "*.", "", "a..b", "*.*.b", "a/b", "10.0.0.1", "-a.b", "a b",
        ] {
            let error = TlsSettings::parse(&table(&[("intercept", list(&[name]))])).unwrap_err();
            assert_eq!(error.span(), 7..8, "{name}");
            assert!(error.to_string().contains("not a valid name"), "{error}");
        }
    }

    #[test]
    fn interception_needs_both_files_of_an_authority() {
        let names = ("intercept", list(&["*.corp.example"]));
        let certificate = ("ca_certificate", text("/ca.pem"));
        let key = ("ca_key", text("/ca.key"));
        let error = TlsSettings::parse(&table(std::slice::from_ref(&names))).unwrap_err();
        assert!(
            error.to_string().contains("needs `ca_certificate`"),
            "{error}"
        );
        let error = TlsSettings::parse(&table(&[names.clone(), certificate.clone()])).unwrap_err();
        assert!(error.to_string().contains("needs `ca_key`"), "{error}");
        let settings = TlsSettings::parse(&table(&[names, certificate, key])).unwrap();
        assert!(settings.lists("a.corp.example"));
        let files = settings.files();
        let secrets: Vec<bool> = files.iter().map(|file| file.is_secret).collect();
        assert_eq!(secrets, [false, true, false]);
    }

    #[test]
    fn excluded_names_are_left_alone() {
        let settings = TlsSettings {
            intercept: vec!["*.corp.example".parse().unwrap()],
            exclude: vec!["*.hr.corp.example".parse().unwrap()],
            ..TlsSettings::default()
        };
        assert!(settings.lists("wiki.corp.example"));
        assert!(!settings.lists("pay.hr.corp.example"));
        assert!(!settings.lists("bank.example"));
    }

    #[test]
    fn settings_without_effect_are_remarked_upon() {
        let settings = TlsSettings {
            ca_key: Some("/ca.key".to_owned()),
            blocks_quic: true,
            ..TlsSettings::default()
        };
        let remarks = settings.remarks();
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        assert!(
            remarks[0].contains("tls.ca_key has no effect"),
            "{remarks:?}"
        );
    }

    #[test]
    fn names_outside_the_constraint_are_remarked_upon() {
        let new = crate::http::tls::authority::NewAuthority {
            name: "Corp".to_owned(),
            permitted: vec!["corp.example".to_owned()],
            now: 1_767_225_600,
            life: std::time::Duration::from_secs(86_400),
        };
        let (certificate, key) = new.make().unwrap();
        let authority = LeafAuthority::parse(certificate.as_bytes(), key.as_bytes()).unwrap();
        let names = [
            "*.corp.example",
            "a.corp.example",
            "*.example",
            "bank.example",
        ];
        let settings = TlsSettings {
            intercept: names.iter().map(|name| name.parse().unwrap()).collect(),
            may_store_decrypted: true,
            authority: Some(Arc::new(authority)),
            ..TlsSettings::default()
        };
        let remarks = settings.remarks();
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        assert!(remarks[0].contains("\"*.example\""), "{remarks:?}");
        assert!(remarks[1].contains("\"bank.example\""), "{remarks:?}");
    }

    #[test]
    fn a_bundle_without_certificates_is_refused() {
        let settings = TlsSettings {
            roots: Some("/roots.pem".to_owned()),
            ..TlsSettings::default()
        };
        for bundle in [
            "",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let contents = [Zeroizing::new(bundle.as_bytes().to_vec())];
            let error = settings.with_files(&contents).unwrap_err();
            assert!(error.contains("/roots.pem"), "{error}");
        }
    }
}
