//! The keytab: the keys of the services whose Kerberos sessions may be signed for. Its format is MIT
//! Kerberos's ("Keytab file format" of its documentation), as Samba, Heimdal and `ktpass` write it.
//!
//! ```text
//!  5 · 2 · { length, i32 · entry }*          a negative length: so many bytes that are free
//!  entry: count u16 · realm · components · kind of name u32 · time u32 · version u8 ·
//!         encryption u16 · key · [ version u32 ]     all strings with a length of 16 bits before them
//! ```
//! Keys of unknown encryption types are left out. The kept keys are overwritten when they are
//! dropped, and no `Debug` shows them.

use std::fmt;

use super::encryption::{EncryptionType, KerberosKey};

/// Version 5.2, the only one with a byte order that does not hang on the machine.
const MAGIC: [u8; 2] = [5, 2];

/// Keys of one file: those of a few hundred services with all their versions.
const KEYS_MAX: usize = 10_000;

/// The number of different keys that are tried on one ticket: a file with more keys of one
/// encryption names its services, and those of the ticket's service come first. Each try costs a
/// pass over the ticket, which has at most 64 KiB.
const TRIES_MAX: usize = 16;

/// An error in a keytab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeytabError {
    /// It does not begin like one.
    #[error(
        "the file is not a keytab, because it does not begin with the bytes 5 and 2; create a keytab with \
         `ktutil` or `net ads keytab`"
    )]
    NoKeytab,
    /// An entry ends in the middle.
    #[error("entry {entry} is truncated or damaged; create the file again")]
    Damaged {
        /// Counted from 1.
        entry: usize,
    },
    /// More keys than are taken.
    #[error("the file has more than 10,000 keys; remove keys that are not needed")]
    TooMany,
    /// None of its keys can be used.
    #[error(
        "the file contains no key for AES or RC4; give the service an AES key, and create the file again"
    )]
    NoKey,
}

/// A key, whose it is, and which of theirs.
#[derive(Clone, PartialEq, Eq)]
struct KeytabEntry {
    /// `cifs/files.corp.example@CORP.EXAMPLE`.
    principal: String,
    version: u32,
    key: KerberosKey,
}

/// The keys with which the far half decrypts clients' messages to a service.
#[derive(Clone, PartialEq, Eq)]
pub struct Keytab {
    entries: Vec<KeytabEntry>,
}

impl fmt::Debug for Keytab {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Keytab({} keys, not shown)", self.entries.len())
    }
}

impl Keytab {
    /// Reads the bytes of a keytab.
    ///
    /// # Errors
    /// When they are none, are damaged, or hold no key that can be used.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeytabError> {
        let mut rest = bytes.strip_prefix(&MAGIC).ok_or(KeytabError::NoKeytab)?;
        let mut entries = Vec::new();
        let mut number = 0;
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = i32::from_be_bytes(*length);
            // Zeros fill up what was written before its time.
            if length == 0 {
                break;
            }
            number += 1;
            let damaged = KeytabError::Damaged { entry: number };
            let (entry, behind) = behind
                .split_at_checked(length.unsigned_abs() as usize)
                .ok_or(damaged)?;
            rest = behind;
            if length < 0 {
                continue;
            }
            entries.extend(EntryCursor(entry).entry().ok_or(damaged)?);
            if entries.len() > KEYS_MAX {
                return Err(KeytabError::TooMany);
            }
        }
        match entries.is_empty() {
            true => Err(KeytabError::NoKey),
            false => Ok(Self { entries }),
        }
    }

    /// The number of usable keys that it contains.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.entries.len()
    }

    /// The principals of the keys, each once.
    #[must_use]
    pub fn principals(&self) -> Vec<String> {
        let principals = self.entries.iter().map(|entry| &entry.principal);
        let mut principals: Vec<String> = principals.map(|name| vocab::printable(name)).collect();
        principals.sort_unstable();
        principals.dedup();
        principals
    }

    /// Keys that may open a ticket, each once and the likeliest first: those of the service that it names, then
    /// those of its host, and of each the version that it names. Others are tried as well, because a host has one
    /// key for all the names it is known by, and versions are written into keytabs by hand.
    pub(crate) fn find(
        &self,
        service: &str,
        version: Option<u32>,
        encryption: EncryptionType,
    ) -> impl Iterator<Item = &KerberosKey> {
        let mut fit: Vec<&KeytabEntry> = self
            .entries
            .iter()
            .filter(|entry| entry.key.encryption() == encryption)
            .collect();
        // Older keytabs have the lowest eight bits of a version alone.
        let is_version = |of: u32| version.is_some_and(|it| of == it || of == it & 0xff);
        fit.sort_by_cached_key(|entry| {
            let is_service = entry.principal.eq_ignore_ascii_case(service);
            let is_host = host(service)
                .zip(host(&entry.principal))
                .is_some_and(|(of, it)| of.eq_ignore_ascii_case(it));
            (
                !is_service,
                !is_host,
                !is_version(entry.version),
                u32::MAX - entry.version,
            )
        });
        let mut keys: Vec<&KerberosKey> = Vec::new();
        for KeytabEntry { key, .. } in fit {
            if keys.len() == TRIES_MAX {
                break;
            }
            // `net ads keytab` writes a host's one key under each of its names.
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.into_iter()
    }
}

/// The host of a service's principal: `files` of `cifs/files@CORP.EXAMPLE`.
fn host(principal: &str) -> Option<&str> {
    let (name, _realm) = principal.rsplit_once('@')?;
    name.split('/').nth(1)
}

/// The rest of an entry.
struct EntryCursor<'a>(&'a [u8]);

impl<'a> EntryCursor<'a> {
    /// The entry; nothing inside if its encryption is not known.
    fn entry(mut self) -> Option<Option<KeytabEntry>> {
        let count = self.u16()?;
        let realm = self.text()?;
        let components: Option<Vec<String>> = (0..count).map(|_| self.text()).collect();
        let principal = format!("{}@{realm}", components?.join("/"));
        let [_kind, _time] = [self.u32()?, self.u32()?];
        let [short_version] = *self.take::<1>()?;
        let encryption = i64::from(self.u16()?);
        let key = KerberosKey::of(encryption, self.string()?);
        if key.is_none() && EncryptionType::from_number(encryption).is_some() {
            return None;
        }
        // It is there if the entry is long enough for it, and then it counts, unless it is 0.
        let version = match self.u32() {
            None | Some(0) => u32::from(short_version),
            Some(version) => version,
        };
        Some(key.map(|key| KeytabEntry {
            principal,
            version,
            key,
        }))
    }

    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(|bytes| u16::from_be_bytes(*bytes))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_be_bytes(*bytes))
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.u16()?);
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.string()?).into_owned())
    }
}

/// For tests: an entry of a principal and realm, and the file that holds it.
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing {
    /// A keytab of such entries.
    pub(crate) fn keytab(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = super::MAGIC.to_vec();
        for entry in entries {
            bytes.extend((entry.len() as u32).to_be_bytes());
            bytes.extend(entry);
        }
        bytes
    }

    /// An entry with the whole version behind it.
    pub(crate) fn entry(
        components: &[&str],
        realm: &str,
        version: u32,
        encryption: i64,
        key: &[u8],
    ) -> Vec<u8> {
        let mut entry = Vec::new();
        let string = |bytes: &[u8]| {
            let length = (bytes.len() as u16).to_be_bytes();
            [&length[..], bytes].concat()
        };
        entry.extend((components.len() as u16).to_be_bytes());
        entry.extend(string(realm.as_bytes()));
        for component in components {
            entry.extend(string(component.as_bytes()));
        }
        entry.extend(1u32.to_be_bytes());
        entry.extend(1_700_000_000u32.to_be_bytes());
        entry.push(version as u8);
        entry.extend((encryption as u16).to_be_bytes());
        entry.extend(string(key));
        entry.extend(version.to_be_bytes());
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{entry, keytab};
    use super::*;

    const REALM: &str = "CORP.EXAMPLE";

    fn aes(components: &[&str], version: u32, byte: u8) -> Vec<u8> {
        entry(components, REALM, version, 18, &[byte; 32])
    }

    /// The first byte of each key that is tried.
    fn tried(keytab: &Keytab, service: &str, version: Option<u32>) -> Vec<u8> {
        let keys = keytab.find(service, version, EncryptionType::Aes256Sha1);
        keys.map(|key| key.bytes()[0]).collect()
    }

    #[test]
    fn ticket_selects_the_first_key_to_try() {
        let bytes = keytab(&[
            aes(&["host", "files"], 7, 1),
            aes(&["cifs", "files"], 6, 2),
            aes(&["cifs", "files"], 7, 3),
            aes(&["cifs", "files"], 0x107, 4),
            entry(&["cifs", "files"], REALM, 7, 23, &[5; 16]),
        ]);
        let keytab = Keytab::parse(&bytes).unwrap();
        let service = "CIFS/files@CORP.EXAMPLE";
        assert_eq!(tried(&keytab, service, Some(7)), [3, 4, 2, 1]);
        assert_eq!(tried(&keytab, service, Some(6)), [2, 4, 3, 1]);
        assert_eq!(tried(&keytab, service, None), [4, 3, 2, 1]);
        assert_eq!(tried(&keytab, "host/files@CORP.EXAMPLE", Some(6))[0], 1);
        let rc4 = keytab.find(service, Some(7), EncryptionType::Rc4);
        assert_eq!(rc4.count(), 1);
        assert_eq!(keytab.keys(), 5);
        let names = ["cifs/files@CORP.EXAMPLE", "host/files@CORP.EXAMPLE"];
        assert_eq!(keytab.principals(), names);
    }

    #[test]
    fn few_keys_are_tried_however_many_there_are() {
        let entries: Vec<Vec<u8>> = (0..200u8)
            .map(|at| aes(&["a"], u32::from(at), at))
            .collect();
        let keytab = Keytab::parse(&keytab(&entries)).unwrap();
        assert_eq!(tried(&keytab, "b@C", None).len(), TRIES_MAX);
    }

    #[test]
    fn key_with_many_names_is_tried_once() {
        let hosts = ["files1", "files2", "files3", "files4"];
        let of_host = |(at, host): (usize, &&str)| {
            let services = [
                "host",
                "RestrictedKrbHost",
                "HTTP",
                "nfs",
                "MSServerCluster",
            ];
            // The last host's versions are the lowest, so that by them alone it would come last.
            services.map(|service| aes(&[service, host], 9 - at as u32, at as u8 + 1))
        };
        let entries: Vec<Vec<u8>> = hosts.iter().enumerate().flat_map(of_host).collect();
        assert!(entries.len() > TRIES_MAX);
        let keytab = Keytab::parse(&keytab(&entries)).unwrap();
        let service = "cifs/FILES4@CORP.EXAMPLE";
        assert_eq!(tried(&keytab, service, Some(9)), [4, 1, 2, 3]);
        // By a name that the file has not.
        let service = "cifs/alias@CORP.EXAMPLE";
        assert_eq!(tried(&keytab, service, None), [1, 2, 3, 4]);
        // Principals without a host are not each other's.
        assert_eq!(tried(&keytab, "alias@CORP.EXAMPLE", None), [1, 2, 3, 4]);
    }

    #[test]
    fn free_space_and_foreign_encryptions_are_passed_over() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((-6i32).to_be_bytes());
        bytes.extend([0xff; 6]);
        bytes.extend(&keytab(&[entry(&["a"], REALM, 1, 3, &[1; 8]), aes(&["a"], 1, 2)])[2..]);
        bytes.extend([0; 10]);
        let keytab = Keytab::parse(&bytes).unwrap();
        assert_eq!(tried(&keytab, "a@CORP.EXAMPLE", Some(1)), [2]);
    }

    #[test]
    fn old_entry_has_an_eight_bit_version() {
        let mut old = aes(&["a"], 0x107, 2);
        old.truncate(old.len() - 4);
        let keytab = Keytab::parse(&keytab(&[aes(&["a"], 8, 1), old])).unwrap();
        assert_eq!(tried(&keytab, "a@CORP.EXAMPLE", Some(0x107)), [2, 1]);
    }

    #[test]
    fn invalid_or_truncated_keytab_is_refused() {
        assert_eq!(Keytab::parse(b""), Err(KeytabError::NoKeytab));
        assert_eq!(Keytab::parse(b"\x05\x01"), Err(KeytabError::NoKeytab));
        assert_eq!(Keytab::parse(&MAGIC), Err(KeytabError::NoKey));
        let foreign = keytab(&[entry(&["a"], REALM, 1, 3, &[1; 8])]);
        assert_eq!(Keytab::parse(&foreign), Err(KeytabError::NoKey));
        let short_key = keytab(&[entry(&["a"], REALM, 1, 18, &[1; 16])]);
        let damaged = |entry| Err(KeytabError::Damaged { entry });
        assert_eq!(Keytab::parse(&short_key), damaged(1));
        let whole = keytab(&[aes(&["cifs", "a"], 1, 1), aes(&["cifs", "a"], 2, 2)]);
        let second = whole.len() / 2 + 1;
        for cut in second + 4..whole.len() {
            assert_eq!(Keytab::parse(&whole[..cut]), damaged(2), "{cut}");
        }
    }

    #[test]
    fn nothing_shows_a_key() {
        let keytab = Keytab::parse(&keytab(&[aes(&["a"], 1, 0xab)])).unwrap();
        assert_eq!(format!("{keytab:?}"), "Keytab(1 keys, not shown)");
        let shown = format!("{:?}", keytab.entries[0].key);
        assert_eq!(shown, "Key(aes256-cts-hmac-sha1-96, not shown)");
    }
}
