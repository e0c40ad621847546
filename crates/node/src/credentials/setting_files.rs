//! The files that the accelerators' own tables name, such as the key of an authority.

use std::path::{Path, PathBuf};

use accelerate::registry::AcceleratorRegistry;
use accelerate::settings::{FileSource, SettingFile};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::private_file::{self, PrivateFileError};

/// Why the files of an accelerator's table cannot be used.
#[derive(Debug, Error)]
pub enum SettingFileError {
    /// A secret cannot be read, or others can.
    #[error(transparent)]
    Secret(#[from] PrivateFileError),
    /// A file cannot be read.
    #[error("cannot read {}: {cause}; write another file as {setting}, or remove this setting", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: &'static str,
        /// The cause.
        cause: std::io::Error,
    },
    /// A file is far too long.
    #[error("{} cannot be used, because it is not a regular file or is too long; write another file as {setting}", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: &'static str,
    },
    /// The content is wrong.
    #[error("{0}")]
    Content(String),
}

/// Reads the files that the settings of accelerators name, for a node that runs as this user.
///
/// # Errors
/// When a file cannot be read, a secret is open to others, or a file holds something else.
pub(super) fn load(registry: &mut AcceleratorRegistry, node: u32) -> Result<(), SettingFileError> {
    let registered: Vec<_> = registry.iter().cloned().collect();
    for one in registered {
        let files = one.settings.files();
        if files.is_empty() {
            continue;
        }
        let contents = files.iter().map(|file| read(file, node));
        let contents = contents.collect::<Result<Vec<_>, _>>()?;
        let loaded = one.settings.with_files(&contents);
        registry.set(one.entry, loaded.map_err(SettingFileError::Content)?);
    }
    Ok(())
}

fn read(file: &SettingFile, node: u32) -> Result<Zeroizing<Vec<u8>>, SettingFileError> {
    let path = match &file.source {
        FileSource::SystemRoots => return Ok(Zeroizing::new(system_roots())),
        FileSource::Path(path) => Path::new(path),
    };
    if file.is_secret {
        return Ok(private_file::read(path, file.key, file.bytes_max, node)?);
    }
    let failed = |cause| SettingFileError::Io {
        path: path.to_owned(),
        setting: file.key,
        cause,
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > file.bytes_max {
        return Err(SettingFileError::TooLong {
            path: path.to_owned(),
            setting: file.key,
        });
    }
    Ok(Zeroizing::new(std::fs::read(path).map_err(failed)?))
}

/// The certificates that the system trusts, as PEM. Those that cannot be read are left out; a system without any
/// gives none, and then no origin can be verified.
fn system_roots() -> Vec<u8> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's root certificates could not be read; the node does not use these");
    }
    let mut text = Vec::new();
    for certificate in found.certs {
        text.extend_from_slice(
            pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec())).as_bytes(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(path: &Path, is_secret: bool) -> SettingFile {
        SettingFile {
            key: "ca_key under [http.tls]",
            source: FileSource::Path(path.display().to_string()),
            bytes_max: 100,
            is_secret,
        }
    }

    #[test]
    fn secrets_that_others_may_read_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.key");
        fs::write(&path, "t0p content").unwrap();
        let node = crate::sys::user();
        for (mode, is_fine) in [(0o644, false), (0o640, false), (0o600, true)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&file(&path, true), node).is_ok(), is_fine, "{mode:o}");
            assert!(read(&file(&path, false), node).is_ok());
        }
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = read(&file(&path, true), node).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        assert!(!error.contains("t0p"), "{error}");
    }

    #[test]
    fn missing_and_long_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("roots.pem");
        let node = crate::sys::user();
        let error = read(&file(&path, false), node).unwrap_err().to_string();
        assert!(
            error.contains("roots.pem") && error.contains("[http.tls]"),
            "{error}"
        );
        fs::write(&path, "x".repeat(101)).unwrap();
        let error = read(&file(&path, false), node).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
