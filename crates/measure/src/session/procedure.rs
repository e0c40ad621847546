//! Steps of a client's test, and who says which is next.

use crate::procedure::StreamPlan;
use crate::turn_up::{RunPlan, RunPurpose};
use crate::wire::TestDirection;

use super::client::{ClientStep, StepOutcome};

/// Test of a client, as the steps that it needs.
pub trait ClientProcedure {
    /// The next step; [`None`] when the test is over. It is asked for once for each outcome.
    fn next_step(&mut self) -> Option<ClientStep>;
    /// Takes in the outcome of the step.
    fn handle(&mut self, outcome: StepOutcome);
    /// Ends the test here, and says why.
    fn give_up(&mut self, why: String);
    /// Share of the test that is done, from 0 to 1, and what is measured now.
    fn progress(&self) -> (f64, String);
    /// The next remark that the user must read at once.
    fn poll_remark(&mut self) -> Option<String>;
}

/// Short description of a stream, for the progress display.
#[must_use]
pub fn describe_stream(direction: TestDirection, plan: &StreamPlan) -> String {
    format!("rate {}: a stream of {}", direction.name(), plan.rate)
}

/// Short description of a run, for the progress display.
#[must_use]
pub fn describe_run(plan: &RunPlan) -> String {
    let [up, down] = plan.connections;
    let window = plan.windows[usize::from(up == 0)];
    let way = match (up, down) {
        (0, _) => "down",
        (_, 0) => "up",
        _ => return "both directions together".to_owned(),
    };
    match plan.purpose {
        RunPurpose::Walk(percent) => format!("window walk {way}: {percent} %, {window}"),
        RunPurpose::Listed => format!("window {window} {way}"),
        RunPurpose::RoundTrip => "least RTT of TCP".to_owned(),
        RunPurpose::Open => format!("TCP {way}, with the hosts' own windows"),
        RunPurpose::Many | RunPurpose::Together => {
            format!("{} connections {way}, {window} each", up.max(down))
        }
    }
}
