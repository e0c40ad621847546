//! The account file: the accounts whose sessions may be signed for (docs/formats/accounts.md).
//!
//! ```text
//! # domain\user:kind:secret
//! CORP\anna:nt:8846f7eaee8fb117ad06bdd830b7586c
//! *\backup service:password:correct horse battery staple
//! ```
//! An account is kept as its NT hash, the MD4 of the password, which is all that NTLM uses. The
//! hash is overwritten when it is dropped, and no `Debug` shows it.

use std::collections::HashMap;
use std::fmt;

use md4::{Digest, Md4};
use zeroize::Zeroize;

/// Accounts of one file. A domain of this size has other ways to hand over its keys, and each takes
/// some hundred bytes.
const ACCOUNTS_MAX: usize = 100_000;

/// The hash that NTLM derives all keys from ([MS-NLMP] §3.3.2, NTOWFv2). It stays in its first
/// allocation, so that collections that move it leave no copy behind.
#[derive(Clone, PartialEq, Eq)]
pub struct NtHash(pub(crate) Box<[u8; 16]>);

impl Drop for NtHash {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl NtHash {
    /// The MD4 of the password in UTF-16.
    pub(crate) fn of_password(password: &str) -> Self {
        let mut digest = Md4::new();
        for unit in password.encode_utf16() {
            digest.update(unit.to_le_bytes());
        }
        let mut hash = Self(Box::default());
        digest.finalize_into((&mut *hash.0).into());
        hash
    }

    fn from_hexadecimal(text: &str) -> Option<Self> {
        let mut hash = Self(Box::default());
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return None;
        }
        for (byte, pair) in hash.0.iter_mut().zip(digits.chunks(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = (high << 4 | low) as u8;
        }
        Some(hash)
    }
}

impl fmt::Debug for NtHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("NtHash(not shown)")
    }
}

/// An error in an account file. No message repeats a line, which may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountsError {
    /// A line is none of the format's.
    #[error(
        "line {line} is not an account; write DOMAIN\\USER:nt:HASH (HASH is 32 hexadecimal digits), or \
         DOMAIN\\USER:password:TEXT"
    )]
    Line {
        /// Counted from 1.
        line: usize,
    },
    /// An account is listed twice.
    #[error("line {line} names the same account as an earlier line; remove one of the two lines")]
    Twice {
        /// The line of the second one, counted from 1.
        line: usize,
    },
    /// More accounts than are taken.
    #[error("the file has more than 100,000 accounts; remove accounts that are not needed")]
    TooMany,
}

/// Accounts whose sessions the far half can derive the keys of.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DelegatedAccounts {
    /// By the user's name in upper case: domains in upper case (`None` for any) and hashes.
    users: HashMap<String, Vec<(Option<String>, NtHash)>>,
}

impl fmt::Debug for DelegatedAccounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Accounts({} users, not shown)", self.users.len())
    }
}

impl DelegatedAccounts {
    /// Reads the text of an account file.
    ///
    /// # Errors
    /// When a line is no account, or one account is there twice; with the line's number.
    pub fn parse(text: &str) -> Result<Self, AccountsError> {
        let mut accounts = Self::default();
        let mut count = 0;
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let line_number = index + 1;
            let (domain, user, hash) =
                account(line).ok_or(AccountsError::Line { line: line_number })?;
            let entries = accounts.users.entry(user).or_default();
            if entries.iter().any(|(known, _)| *known == domain) {
                return Err(AccountsError::Twice { line: line_number });
            }
            entries.push((domain, hash));
            // The one that names its domain is tried before the one for any.
            entries.sort_by_key(|(domain, _)| domain.is_none());
            count += 1;
            if count > ACCOUNTS_MAX {
                return Err(AccountsError::TooMany);
            }
        }
        Ok(accounts)
    }

    /// The number of users that it names.
    #[must_use]
    pub fn users(&self) -> usize {
        self.users.len()
    }

    /// The hashes of a user, as they may fit.
    pub fn find(&self, domain: &str, user: &str) -> impl Iterator<Item = &NtHash> {
        let domain = upper(domain);
        self.users
            .get(&upper(user))
            .into_iter()
            .flatten()
            .filter(move |(of, _)| of.as_ref().is_none_or(|of| *of == domain))
            .map(|(_, hash)| hash)
    }
}

fn account(line: &str) -> Option<(Option<String>, String, NtHash)> {
    // Neither names nor domains hold a colon ([MS-SAMR] §3.1.1.6, Attribute Constraints).
    let mut fields = line.splitn(3, ':');
    let (domain, user) = fields.next()?.split_once('\\')?;
    if user.is_empty() {
        return None;
    }
    let hash = match (fields.next()?, fields.next()?) {
        ("nt", digits) => NtHash::from_hexadecimal(digits.trim_end())?,
        ("password", password) => NtHash::of_password(password),
        _ => return None,
    };
    let domain = (domain != "*").then(|| upper(domain));
    Some((domain, upper(user), hash))
}

/// Upper case as NTLM has it: one character for one ([MS-NLMP] §6, UpperCase).
pub(crate) fn upper(name: &str) -> String {
    name.chars().map(upper_character).collect()
}

pub(crate) fn upper_character(character: char) -> char {
    let mut uppers = character.to_uppercase();
    match (uppers.next(), uppers.next()) {
        (Some(upper), None) => upper,
        _ => character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_its_nt_hash() {
        // [MS-NLMP] §4.2.2.1.2, NTOWFv1: of "Password".
        let hash = NtHash::of_password("Password");
        let wanted = NtHash::from_hexadecimal("a4f49c406510bdcab6824ee7c30fd852");
        assert_eq!(Some(hash), wanted);
    }

    #[test]
    fn accounts_are_found_regardless_of_case() {
        let text = "# ours\n\nCORP\\Anna:nt:a4f49c406510bdcab6824ee7c30fd852\r\n\
                    *\\anna:password:other: one \n\\local user:password:x\n";
        let accounts = DelegatedAccounts::parse(text).unwrap();
        let found = |domain, user| accounts.find(domain, user).cloned().collect::<Vec<_>>();
        let (corp, any) = (
            NtHash::of_password("Password"),
            NtHash::of_password("other: one "),
        );
        assert_eq!(found("corp", "ANNA"), [corp, any.clone()]);
        assert_eq!(found("elsewhere", "anna"), [any]);
        assert_eq!(found("", "Local User").len(), 1);
        assert_eq!(found("corp", "local user"), []);
        assert_eq!(accounts.users(), 2);
    }

    #[test]
    fn invalid_account_is_refused_by_line_number() {
        let bad = [
            "anna:nt:a4f49c406510bdcab6824ee7c30fd852",
            "CORP\\:password:secret",
            "CORP\\anna:nt:a4f49c406510bdcab6824ee7c30fd85",
            "CORP\\anna:nt:a4f49c406510bdcab6824ee7c30fd8zz",
            "CORP\\anna:hash:secret",
            "CORP\\anna secret",
        ];
        for line in bad {
            let error = DelegatedAccounts::parse(&format!("#\n{line}")).unwrap_err();
            assert_eq!(error, AccountsError::Line { line: 2 });
            assert!(!error.to_string().contains("secret"));
        }
        let twice = "A\\b:password:1\na\\B:password:2";
        let error = AccountsError::Twice { line: 2 };
        assert_eq!(DelegatedAccounts::parse(twice), Err(error));
    }

    #[test]
    fn buffers_with_secrets_are_overwritten() {
        fn overwrites(_: &impl zeroize::ZeroizeOnDrop) {}
        overwrites(&Md4::new());
        overwrites(&<rc4::Rc4 as rc4::KeyInit>::new_from_slice(&[0; 16]).unwrap());
        let ends = <hmac::Hmac<sha2::Sha256> as hmac::KeyInit>::new_from_slice(&[0; 16]).unwrap();
        overwrites(&hmac::Mac::finalize(ends));
    }

    #[test]
    fn nothing_shows_a_hash() {
        let accounts =
            DelegatedAccounts::parse("A\\b:nt:000102030405060708090a0b0c0d0e0f").unwrap();
        assert_eq!(format!("{accounts:?}"), "Accounts(1 users, not shown)");
        let hash = accounts.find("A", "b").next();
        assert_eq!(format!("{hash:?}"), "Some(NtHash(not shown))");
    }
}
