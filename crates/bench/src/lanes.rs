//! Groups of jobs on several lanes at once.
//!
//! ```text
//!  stages of groups ─► lanes of the stage ─► for each group:  lane made ready ─► job, job, … ─► outcomes
//! ```
//! A lane is a network of its own. The first group that needs a lane builds it, and the next groups use it.
//! A job that fails is reported with its reason, its lane is built anew, and the rest goes on.

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use anyhow::Result;
use serde::Serialize;

use host::kernel;
use host::progress::ProgressReporter;

/// A cell that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedCell {
    /// Its name.
    pub cell: String,
    /// Why.
    pub reason: String,
}

/// Work of a benchmark on its lanes.
pub(crate) trait LaneWork: Sync {
    /// Jobs that share a link and nodes.
    type Group: Send;
    /// One thing to measure.
    type Job;
    /// A network with its server.
    type Lane;
    /// Result of a job.
    type Outcome: Send;

    /// Jobs of a group, in order.
    fn jobs<'g>(&self, group: &'g Self::Group) -> &'g [Self::Job];

    /// Name of a job.
    fn name(&self, job: &Self::Job) -> String;

    /// Approximate duration of a job, in seconds.
    fn seconds(&self, group: &Self::Group, job: &Self::Job) -> f64;

    /// Builds a lane.
    ///
    /// # Errors
    /// Fails when a requirement is missing.
    fn create_lane(&self) -> Result<Self::Lane>;

    /// Brings a lane into the state that the group's jobs need. `is_ready` is true if it has been in that
    /// state since the group's first job.
    ///
    /// # Errors
    /// Fails when a program of the lane does not start.
    fn prepare(
        &self,
        group: &Self::Group,
        job: &Self::Job,
        lane: &mut Self::Lane,
        is_ready: bool,
    ) -> Result<()>;

    /// Measures on a lane that is ready.
    ///
    /// # Errors
    /// Fails when a client or another program of the lane fails.
    fn run(
        &self,
        group: &Self::Group,
        job: &Self::Job,
        lane: &mut Self::Lane,
    ) -> Result<Self::Outcome>;
}

enum LaneEvent<Outcome> {
    Begins(String),
    Ended(Result<Outcome, FailedCell>),
    Behind(f64),
}

/// Runs the groups of each stage, at most as many at a time as it has lanes, and passes the outcomes of jobs
/// to `take`. An interruption ends it behind the jobs that run.
pub(crate) fn run_on_lanes<Work: LaneWork>(
    work: &Work,
    stages: Vec<(Vec<Work::Group>, usize)>,
    progress: &dyn ProgressReporter,
    mut take: impl FnMut(Result<Work::Outcome, FailedCell>),
) {
    let seconds = |group: &Work::Group| -> f64 {
        let jobs = work.jobs(group).iter();
        jobs.map(|job| work.seconds(group, job)).sum()
    };
    let whole: f64 = stages
        .iter()
        .flat_map(|(groups, _)| groups)
        .map(seconds)
        .sum();
    let mut behind = 0.0;
    for (mut groups, lanes) in stages {
        groups.reverse();
        let lanes = lanes.min(groups.len());
        let left = Mutex::new(groups);
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            for _ in 0..lanes {
                let (tell, left) = (tell.clone(), &left);
                scope.spawn(move || {
                    let mut lane = None;
                    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    while let Some(group) = next() {
                        run_group(work, &group, &mut lane, &tell);
                    }
                });
            }
            drop(tell);
            for event in told {
                match event {
                    LaneEvent::Begins(name) => progress.step(behind / whole, &name),
                    LaneEvent::Behind(seconds) => behind += seconds,
                    LaneEvent::Ended(outcome) => take(outcome),
                }
            }
        });
    }
}

fn run_group<Work: LaneWork>(
    work: &Work,
    group: &Work::Group,
    lane: &mut Option<Work::Lane>,
    tell: &mpsc::Sender<LaneEvent<Work::Outcome>>,
) {
    // Nobody listens any more only when the listener has panicked.
    let say = |event| drop(tell.send(event));
    let mut is_ready = false;
    for job in work.jobs(group) {
        if kernel::interrupted() {
            return;
        }
        say(LaneEvent::Begins(work.name(job)));
        let outcome = run_job(work, group, job, lane, is_ready);
        is_ready = outcome.is_ok();
        match outcome {
            Ok(outcome) => say(LaneEvent::Ended(Ok(outcome))),
            Err(_) if kernel::interrupted() => return,
            Err(error) => {
                say(LaneEvent::Ended(Err(FailedCell {
                    cell: work.name(job),
                    reason: format!("{error:#}"),
                })));
                // A broken lane must not spoil the next job.
                *lane = None;
            }
        }
        say(LaneEvent::Behind(work.seconds(group, job)));
    }
}

fn run_job<Work: LaneWork>(
    work: &Work,
    group: &Work::Group,
    job: &Work::Job,
    lane: &mut Option<Work::Lane>,
    is_ready: bool,
) -> Result<Work::Outcome> {
    let lane = match lane {
        Some(lane) => lane,
        None => lane.insert(work.create_lane()?),
    };
    work.prepare(group, job, lane, is_ready)?;
    work.run(group, job, lane)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;
    use host::progress::SilentProgress;

    /// Jobs are numbers, and odd ones fail.
    #[derive(Default)]
    struct CountedWork {
        lanes: AtomicUsize,
        preparations: AtomicUsize,
    }

    impl LaneWork for CountedWork {
        type Group = Vec<u32>;
        type Job = u32;
        type Lane = ();
        type Outcome = u32;

        fn jobs<'g>(&self, group: &'g Vec<u32>) -> &'g [u32] {
            group
        }

        fn name(&self, job: &u32) -> String {
            job.to_string()
        }

        fn seconds(&self, _group: &Vec<u32>, _job: &u32) -> f64 {
            1.0
        }

        fn create_lane(&self) -> Result<()> {
            self.lanes.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn prepare(&self, _: &Vec<u32>, _: &u32, _: &mut (), is_ready: bool) -> Result<()> {
            if !is_ready {
                self.preparations.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        }

        fn run(&self, _group: &Vec<u32>, job: &u32, _lane: &mut ()) -> Result<u32> {
            if job % 2 == 1 {
                bail!("odd");
            }
            Ok(*job)
        }
    }

    #[test]
    fn failed_job_gets_the_next_a_fresh_lane() {
        let work = CountedWork::default();
        let mut outcomes = Vec::new();
        let stages = vec![(vec![vec![2, 4], vec![6, 7, 8]], 1)];
        run_on_lanes(&work, stages, &SilentProgress, |outcome| {
            outcomes.push(outcome.map_err(|failed| failed.cell));
        });
        let failed = Err("7".to_owned());
        assert_eq!(outcomes, [Ok(2), Ok(4), Ok(6), failed, Ok(8)]);
        assert_eq!(work.lanes.into_inner(), 2);
        assert_eq!(work.preparations.into_inner(), 3);
    }
}
