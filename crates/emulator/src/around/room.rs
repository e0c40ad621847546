//! A network namespace without a name, and the thread that keeps it.
//!
//! A namespace lasts as long as a process or thread is in it. Here that is a thread of this
//! process, so the namespace disappears with the process, however it ends. Jobs for the namespace
//! are sent to the thread; programs that they start are in the namespace as well.

use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::link::NetworkNamespace;
use host::first_process::{self as kernel, UnshareScope};

type NamespaceJob = Box<dyn FnOnce() + Send>;

/// A namespace and its thread; dropping it ends both.
#[derive(Debug)]
pub(super) struct NamespaceThread {
    jobs: Option<mpsc::Sender<NamespaceJob>>,
    thread: Option<thread::JoinHandle<()>>,
    thread_id: u32,
}

impl NamespaceThread {
    /// Makes a namespace with nothing in it but a loopback device that is down.
    pub(super) fn open(name: &str) -> Result<Self> {
        let (jobs, inbox) = mpsc::channel::<NamespaceJob>();
        let (opened, opening) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let made = kernel::unshare(UnshareScope::Network).map(|()| kernel::thread_id());
                let is_made = made.is_ok();
                if opened.send(made).is_ok() && is_made {
                    for job in inbox {
                        job();
                    }
                }
            })
            .context("cannot start a namespace's thread")?;
        let thread_id = opening
            .recv()
            .context("a namespace's thread ended early")?
            .map_err(super::user_namespace::explain_refusal)
            .context("cannot make a network namespace")?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            thread_id,
        })
    }

    /// Runs a job in the namespace and returns its result.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answers) = mpsc::channel();
        let job: NamespaceJob = Box::new(move || {
            // Whoever asked waits for it.
            let _ = answer.send(work());
        });
        self.jobs
            .as_ref()
            .and_then(|jobs| jobs.send(job).ok())
            .context("a namespace's thread has ended")?;
        answers
            .recv()
            .unwrap_or_else(|_| Err(anyhow!("a namespace's thread panicked")))
    }

    /// Path of the namespace for other processes.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.thread_id)
    }

    /// The namespace as the link takes it.
    pub(super) fn namespace(&self) -> NetworkNamespace {
        NetworkNamespace::new(self.path())
    }
}

impl Drop for NamespaceThread {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it has been reported to whoever had asked.
            let _ = thread.join();
        }
    }
}
