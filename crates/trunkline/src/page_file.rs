//! File for a report, opened before the test, so that three minutes of measuring do not end with an
//! unwritable file. An existing file keeps its content until the new page is written; a new file is
//! removed if the test gave no result.

use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A file that can be written.
#[derive(Debug)]
pub(crate) struct PageFile {
    path: PathBuf,
    file: File,
    /// Set if this run created the file and has not written to it yet.
    is_blank: bool,
}

impl PageFile {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let is_blank = !path.exists();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_blank,
        })
    }

    /// Replaces the file's content with the page.
    ///
    /// # Errors
    /// Fails when the file cannot be written, for example because the disk is full.
    pub(crate) fn write(mut self, page: &str) -> Result<()> {
        self.is_blank = false;
        self.replace(page)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn replace(&mut self, page: &str) -> std::io::Result<()> {
        // A pipe or a terminal has no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
            self.file.rewind()?;
        }
        self.file.write_all(page.as_bytes())
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if self.is_blank {
            // It stays, empty, where even that fails.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_replaces_older_one_or_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("page-file-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("report.html");
        drop(PageFile::open(&path).unwrap());
        assert!(!path.exists());
        PageFile::open(&path).unwrap().write("a long page").unwrap();
        drop(PageFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a long page");
        PageFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        let error = PageFile::open(&folder.join("none/report.html")).unwrap_err();
        assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
