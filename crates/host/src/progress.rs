//! Progress reports of the lab; the binary decides how to show them.

/// Receives what a person who waits wants to know.
pub trait ProgressReporter {
    /// Something has begun; `done` of 0 to 1 of the whole is behind it.
    fn step(&self, done: f64, text: &str);
    /// Something worth keeping on the screen.
    fn note(&self, text: &str);
}

/// Progress receiver that reports nothing.
#[derive(Clone, Copy, Debug)]
pub struct SilentProgress;

impl ProgressReporter for SilentProgress {
    fn step(&self, _done: f64, _text: &str) {}
    fn note(&self, _text: &str) {}
}
