//! Raw samples: a CSV file for each cell, from which every figure of a certificate can be computed
//! again. docs/formats/certificate.md describes the columns.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Writer of raw samples.
#[derive(Debug)]
pub(super) struct RawSampleWriter {
    directory: PathBuf,
    files: u32,
    has_failed: bool,
}

impl RawSampleWriter {
    /// Into this directory, which is made, and from which the raw samples of an earlier
    /// certificate are removed.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn into(directory: &Path) -> Result<Self> {
        let make = || -> Result<()> {
            fs::create_dir_all(directory)?;
            for entry in fs::read_dir(directory)? {
                let path = entry?.path();
                if is_ours(&path) {
                    fs::remove_file(&path)?;
                }
            }
            Ok(())
        };
        make().with_context(|| format!("preparing {} for raw samples", directory.display()))?;
        Ok(Self {
            directory: directory.to_owned(),
            files: 0,
            has_failed: false,
        })
    }

    /// Tells whether samples could not be written, so that no later cell could be traced to its
    /// own.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Writes one cell's samples, all or none, and returns the file's name.
    ///
    /// # Errors
    /// Fails when the disk is full or the directory was removed.
    pub(super) fn write<R: Display>(
        &mut self,
        what: &str,
        columns: &str,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<String> {
        self.files += 1;
        let plain: String = what
            .chars()
            .map(|letter| match letter {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '.' => letter,
                _ => '-',
            })
            .collect();
        let name = format!("{:03}-{plain}.csv", self.files);
        let path = self.directory.join(&name);
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(File::create(&path)?);
            writeln!(file, "{columns}")?;
            for row in rows {
                writeln!(file, "{row}")?;
            }
            file.flush()
        };
        if let Err(error) = write() {
            self.has_failed = true;
            // A part of them would look like all of them.
            let _ = fs::remove_file(&path);
            return Err(error).with_context(|| {
                format!(
                    "cannot write raw samples to {}; make room there, name another place with --raw, or keep none with --no-raw",
                    path.display()
                )
            });
        }
        Ok(name)
    }
}

/// Tells whether [`RawSampleWriter::write`] gives such a name.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digits = name.chars().take_while(char::is_ascii_digit).count();
    digits >= 3 && name[digits..].starts_with('-') && name.ends_with(".csv")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let mut raw = RawSampleWriter::into(folder.path()).unwrap();
        raw.write("queue", "a", ["1"]).unwrap();
        assert!(!raw.has_failed());
        // What stands in the file's place is as good as a full disk.
        std::os::unix::fs::symlink("/dev/full", folder.path().join("002-queue.csv")).unwrap();
        let error = raw.write("queue", "a", ["1"]).unwrap_err();
        assert!(format!("{error:#}").contains("No space left"), "{error:#}");
        assert!(raw.has_failed());
        assert!(!folder.path().join("002-queue.csv").exists());
    }

    #[test]
    fn old_samples_are_removed_and_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mut raw = RawSampleWriter::into(folder.path()).unwrap();
        let name = raw.write("rate 64 kbit/s", "a,b", ["1,2", "3,4"]).unwrap();
        assert_eq!(name, "001-rate-64-kbit-s.csv");
        let path = folder.path().join(name);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a,b\n1,2\n3,4\n");
        fs::write(folder.path().join("notes.csv"), "mine").unwrap();
        RawSampleWriter::into(folder.path()).unwrap();
        assert!(!path.exists());
        assert!(folder.path().join("notes.csv").exists());
    }
}
