//! Sequence of runs, each of which may fail.
//!
//! ```text
//!  place ─► run ── a figure ──► the same place ─► the next run
//!              └── it failed ─► noted; the place is removed and made anew ─► the next run
//! ```
//!
//! Leftovers of a failed run, such as a node that has ended, must not affect the next one. After an
//! interruption no run is begun, and each remaining run is noted.

use anyhow::{Result, bail};

use super::super::report::FailedRun;
use host::progress::ProgressReporter;

/// Test bed of the runs, and the failures so far.
pub(super) struct RunAttempts<'a, Place> {
    place: Option<Place>,
    make: &'a dyn Fn() -> Result<Place>,
    is_interrupted: fn() -> bool,
    progress: &'a dyn ProgressReporter,
    failures: Vec<FailedRun>,
}

impl<'a, Place> RunAttempts<'a, Place> {
    pub(super) fn new(
        place: Place,
        make: &'a dyn Fn() -> Result<Place>,
        is_interrupted: fn() -> bool,
        progress: &'a dyn ProgressReporter,
    ) -> Self {
        Self {
            place: Some(place),
            make,
            is_interrupted,
            progress,
            failures: Vec::new(),
        }
    }

    /// Figure of a run; `None` when the run fails, which is noted.
    pub(super) fn run<Figure>(
        &mut self,
        measurement: &str,
        run: String,
        work: impl FnOnce(&mut Place) -> Result<Figure>,
    ) -> Option<Figure> {
        let error = match self.attempt(work) {
            Ok(figure) => return Some(figure),
            Err(error) => error,
        };
        self.place = None;
        // Whatever it was that an interruption made fail, that is the reason.
        let why = if (self.is_interrupted)() {
            FailedRun::INTERRUPTED.to_owned()
        } else {
            let why = format!("{error:#}");
            let note = format!("{measurement}, {run} was not measured: {why}");
            self.progress.note(&note);
            why
        };
        self.failures.push(FailedRun {
            measurement: measurement.to_owned(),
            run,
            why,
        });
        None
    }

    fn attempt<Figure>(
        &mut self,
        work: impl FnOnce(&mut Place) -> Result<Figure>,
    ) -> Result<Figure> {
        if (self.is_interrupted)() {
            bail!(FailedRun::INTERRUPTED);
        }
        let place = match &mut self.place {
            Some(place) => place,
            empty => empty.insert((self.make)()?),
        };
        work(place)
    }

    /// The runs that gave nothing.
    pub(super) fn into_failures(self) -> Vec<FailedRun> {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;

    use super::*;
    use host::progress::SilentProgress;

    #[test]
    fn run_after_a_failure_gets_a_new_place() {
        let made = Cell::new(1);
        let make = || {
            made.set(made.get() + 1);
            match made.get() {
                3 => Err(anyhow!("the kernel refuses")),
                number => Ok(number),
            }
        };
        let mut attempts = RunAttempts::new(1, &make, || false, &SilentProgress);
        let mut run = |name: &str, is_good: bool| {
            attempts.run(name, "seed 1".to_owned(), |place| match is_good {
                true => Ok(*place),
                false => Err(anyhow!("a node ended").context("starting")),
            })
        };
        assert_eq!(run("first", true), Some(1));
        assert_eq!(run("second", false), None);
        assert_eq!(run("third", true), Some(2));
        assert_eq!(run("fourth", false), None);
        assert_eq!(run("fifth", true), None, "it had no place");
        assert_eq!(run("sixth", true), Some(4));
        let failures = attempts.into_failures();
        let failures: Vec<(&str, &str)> = failures
            .iter()
            .map(|failure| (&failure.measurement[..], &failure.why[..]))
            .collect();
        let expected = [
            ("second", "starting: a node ended"),
            ("fourth", "starting: a node ended"),
            ("fifth", "the kernel refuses"),
        ];
        assert_eq!(failures, expected);
    }

    #[test]
    fn interruption_starts_no_job_and_notes_all() {
        thread_local!(static INTERRUPTED: Cell<bool> = const { Cell::new(false) });
        let make = || Ok(());
        let mut attempts = RunAttempts::new((), &make, || INTERRUPTED.get(), &SilentProgress);
        assert_eq!(attempts.run("a", String::new(), |()| Ok(7)), Some(7));
        let broken = attempts.run::<()>("b", String::new(), |()| {
            INTERRUPTED.set(true);
            Err(anyhow!("a read was interrupted"))
        });
        assert_eq!(broken, None);
        let begun = attempts.run::<()>("c", String::new(), |()| panic!("it was begun"));
        assert_eq!(begun, None);
        let failures = attempts.into_failures();
        let whys: Vec<&str> = failures.iter().map(|failure| &failure.why[..]).collect();
        assert_eq!(whys, [FailedRun::INTERRUPTED; 2]);
    }
}
