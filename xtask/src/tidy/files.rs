//! The files of the checkout as the rules see them.
//!
//! Asked of git (tracked, or new and not ignored), so that build output is never looked at; where
//! there is no git, as in an unpacked archive, the folders are walked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Folders that hold nothing of ours, for when git cannot be asked.
const NOT_OURS: [&str; 3] = [".git", "target", "artifacts"];

/// A text file and where it lies.
pub(crate) struct TextFile {
    /// Its path below the workspace, with forward slashes.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
}

impl TextFile {
    /// Whether its name ends in one of `endings`.
    pub(crate) fn ends_in(&self, endings: &[&str]) -> bool {
        endings.iter().any(|ending| self.path.ends_with(ending))
    }
}

/// Everything that belongs to the project.
pub(crate) struct Checkout {
    /// The workspace's folder.
    pub(crate) root: PathBuf,
    /// Files that are text; pictures, captures and corpora are left out.
    pub(crate) files: Vec<TextFile>,
}

impl Checkout {
    /// Reads the files below `root`.
    ///
    /// # Errors
    /// When a folder or a file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => walked(root, root)?,
        };
        let mut files = Vec::new();
        for path in paths {
            let whole = root.join(&path);
            // A file that git still lists and that has just been removed is no file of ours.
            let Ok(bytes) = fs::read(&whole) else {
                continue;
            };
            if path.starts_with("fuzz/corpus/") {
                continue;
            }
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(TextFile { path, text });
            }
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self {
            root: root.to_owned(),
            files,
        })
    }

    /// Rust source files.
    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &TextFile> {
        self.files.iter().filter(|file| file.ends_in(&[".rs"]))
    }

    /// The file at `path`, if it is there.
    pub(crate) fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Names of the crates below `crates/`.
    pub(crate) fn crates(&self) -> Vec<&str> {
        self.files
            .iter()
            .filter_map(|file| {
                file.path
                    .strip_prefix("crates/")?
                    .strip_suffix("/Cargo.toml")
            })
            .filter(|name| !name.contains('/'))
            .collect()
    }

    /// Whether a file or folder lies at `path` below the root.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let listing = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = listing
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    (!paths.is_empty()).then_some(paths)
}

fn walked(root: &Path, folder: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if NOT_OURS.iter().any(|other| name == *other) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            paths.extend(walked(root, &entry.path())?);
        } else if let Ok(path) = entry.path().strip_prefix(root) {
            paths.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(paths)
}
