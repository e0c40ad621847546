//! Groups of jobs on several lanes at once.

use std::sync::{Mutex, mpsc};
use std::thread;

use serde::Serialize;

/// A cell that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedCell {
    /// Its name.
    pub cell: String,
    /// Why.
    pub reason: String,
}

/// Runs groups, at most `lanes` of them at a time, and passes their events to `take`.
///
/// A lane is built by the first group that needs it, and is kept for the next group.
pub(crate) fn run_on_lanes<Group: Send, Lane, Event: Send>(
    mut groups: Vec<Group>,
    lanes: usize,
    run: impl Fn(&Group, &mut Option<Lane>, &mpsc::Sender<Event>) + Sync,
    take: impl FnMut(Event),
) {
    groups.reverse();
    let lanes = lanes.min(groups.len());
    let left = Mutex::new(groups);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..lanes {
            let (tell, left, run) = (tell.clone(), &left, &run);
            scope.spawn(move || {
                let mut lane = None;
                let next = || {
                    let mut left = left.lock().unwrap_or_else(|lock| lock.into_inner());
                    left.pop()
                };
                while let Some(group) = next() {
                    run(&group, &mut lane, &tell);
                }
            });
        }
        drop(tell);
        told.into_iter().for_each(take);
    });
}
