//! Doing something inside a network namespace, on a thread of its own.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, anyhow};

use super::system;

/// A network namespace: a name as `ip netns` knows it, or a path such as `/proc/1234/ns/net`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkNamespace(String);

impl NetworkNamespace {
    /// The namespace of this name, or at this path if there is a slash in it.
    #[must_use]
    pub fn new(name_or_path: impl Into<String>) -> Self {
        Self(name_or_path.into())
    }

    fn path(&self) -> PathBuf {
        if self.0.contains('/') {
            PathBuf::from(&self.0)
        } else {
            PathBuf::from("/run/netns").join(&self.0)
        }
    }

    /// Opens it.
    pub fn open(&self) -> Result<File> {
        let path = self.path();
        File::open(&path).with_context(|| {
            format!(
                "cannot open the network namespace {self} at {}; `ip netns list` shows those there are",
                path.display()
            )
        })
    }
}

impl fmt::Display for NetworkNamespace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Runs `work` inside the namespace behind `file`, or in the caller's own if there is none.
///
/// A thread enters a namespace for good, so this one is started for `work` and ends with it.
pub fn within<T: Send>(
    file: Option<BorrowedFd<'_>>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(file) = file else {
        return work();
    };
    thread::scope(|scope| {
        scope
            .spawn(move || {
                system::enter_network_namespace(file.as_fd()).context(
                    "cannot enter the network namespace; it takes CAP_SYS_ADMIN: run as root",
                )?;
                work()
            })
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the namespace's thread panicked")))
    })
}
