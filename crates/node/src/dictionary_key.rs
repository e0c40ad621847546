//! The key under which the dictionary lies on disk: made at the first start, in a file of its own.
//!
//! The file contains 64 hexadecimal digits and a newline, for its owner alone (mode 0600). It can
//! be kept on another volume than the state directory (`[dictionary] key_file`), so that a stolen
//! or discarded disk reveals nothing. Without its key the dictionary starts empty; it is a cache,
//! and nothing else is lost.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use reduce::DictionaryKey;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::private_directory::write_durably;
use crate::sys;

/// The reason why the dictionary has no key.
#[derive(Debug, Error)]
pub enum DictionaryKeyError {
    /// The file cannot be used.
    #[error("cannot {action} {}: {cause}; write another key_file under [dictionary], or disk = \"0B\" to \
             store nothing on disk", path.display())]
    Io {
        /// `read`, `make`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The file does not contain a key.
    #[error("{} does not contain a key of 64 hexadecimal digits; restore the file from a backup, or remove \
             it to start with an empty dictionary", .0.display())]
    Damaged(PathBuf),
    /// Others can read the key.
    #[error("other users can read {} (mode {mode:o}); run `chmod 600` on this file; if someone may have \
             copied it, remove it to start with an empty dictionary", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// The origin of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// It was there.
    Found,
    /// It is new: earlier sealed content is lost.
    Made,
}

/// Reads the key in this file, or makes one there.
///
/// # Errors
/// When the file cannot be read or written, holds something else, or is open to others.
pub fn load_or_make(path: &Path) -> Result<(DictionaryKey, KeyOrigin), DictionaryKeyError> {
    let failed = |action| {
        move |cause| DictionaryKeyError::Io {
            action,
            path: path.to_owned(),
            cause,
        }
    };
    let text = match fs::read(path) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok((make(path)?, KeyOrigin::Made));
        }
        Err(error) => return Err(failed("read")(error)),
    };
    let metadata = fs::metadata(path).map_err(failed("read"))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(DictionaryKeyError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let key = parse(&text).ok_or_else(|| DictionaryKeyError::Damaged(path.to_owned()))?;
    Ok((DictionaryKey::new(*key), KeyOrigin::Found))
}

/// Makes a key in this file durably, replacing the present one: content sealed with that one
/// becomes unreadable.
///
/// # Errors
/// When the file cannot be written; the old key then stays.
pub fn make(path: &Path) -> Result<DictionaryKey, DictionaryKeyError> {
    let failed = |cause| DictionaryKeyError::Io {
        action: "make",
        path: path.to_owned(),
        cause,
    };
    let mut key = Zeroizing::new([0; 32]);
    sys::fill_random(key.as_mut_slice()).map_err(failed)?;
    write_durably(path, &emit(&key)).map_err(failed)?;
    Ok(DictionaryKey::new(*key))
}

/// A seed for the salts of a dictionary, which may not be used again under the same key.
///
/// # Errors
/// When the system gives no random numbers.
pub fn fresh_seed() -> io::Result<u64> {
    let mut seed = [0; 8];
    sys::fill_random(&mut seed)?;
    Ok(u64::from_le_bytes(seed))
}

fn emit(key: &[u8; 32]) -> Zeroizing<Vec<u8>> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Zeroizing::new(Vec::with_capacity(65));
    for byte in key {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
    text.push(b'\n');
    text
}

fn parse(text: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let text = text.trim_ascii();
    if text.len() != 64 {
        return None;
    }
    let mut key = Zeroizing::new([0; 32]);
    for (byte, digits) in key.iter_mut().zip(text.chunks_exact(2)) {
        let high = char::from(digits[0]).to_digit(16)?;
        let low = char::from(digits[1]).to_digit(16)?;
        *byte = (high << 4 | low) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_made_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dictionary.key");
        let (_, origin) = load_or_make(&path).unwrap();
        assert_eq!(origin, KeyOrigin::Made);
        let text = fs::read(&path).unwrap();
        assert_eq!(emit(&parse(&text).unwrap()).as_slice(), text);
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let (_, origin) = load_or_make(&path).unwrap();
        assert_eq!(origin, KeyOrigin::Found);
        assert_eq!(fs::read(&path).unwrap(), text);
    }

    #[test]
    fn new_key_replaces_the_previous_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dictionary.key");
        load_or_make(&path).unwrap();
        let before = fs::read(&path).unwrap();
        make(&path).unwrap();
        let after = fs::read(&path).unwrap();
        assert_ne!(before, after);
        assert_eq!(load_or_make(&path).unwrap().1, KeyOrigin::Found);
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(make(&directory.path().join("none/dictionary.key")).is_err());
    }

    #[test]
    fn readable_or_invalid_key_is_refused_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dictionary.key");
        load_or_make(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = load_or_make(&path).unwrap_err();
        assert!(error.to_string().contains("mode 640"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for text in ["", "00", &"g".repeat(64)] {
            fs::write(&path, text).unwrap();
            let error = load_or_make(&path).unwrap_err();
            assert!(
                error.to_string().contains("does not contain a key"),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let nowhere = directory.path().join("none/dictionary.key");
        let error = load_or_make(&nowhere).unwrap_err();
        assert!(error.to_string().contains("key_file"), "{error}");
    }
}
