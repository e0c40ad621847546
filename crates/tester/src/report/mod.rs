//! Reports of results, for a terminal, for a browser and for programs.

mod capture;
mod html;
mod json;
mod plots;
mod steps;
mod steps_html;
mod text;

pub use capture::transfers_text;
pub use html::html;
pub use json::json;
pub use steps::{service_json, service_text, throughput_json, throughput_text};
pub use steps_html::{service_html, throughput_html};
pub use text::{headline, text};

use measure::procedure::MtuOutcome;
use measure::turn_up::{RunPlan, RunPurpose, TurnUp};
use measure::wire::TestDirection;

/// Short description of a run's purpose.
fn purpose(turn_up: &TurnUp, plan: &RunPlan, direction: TestDirection) -> String {
    match plan.purpose {
        RunPurpose::Walk(percent) if turn_up.bdp(direction).is_none() => {
            format!("{percent} % of reached")
        }
        RunPurpose::Walk(percent) => format!("{percent} % of BDP"),
        RunPurpose::Listed => "listed window".to_owned(),
        RunPurpose::Many => "many connections".to_owned(),
        RunPurpose::Together => "both directions".to_owned(),
        RunPurpose::RoundTrip => "least RTT".to_owned(),
        RunPurpose::Open => "hosts' own windows".to_owned(),
    }
}

/// The path MTU of a direction in bytes, where it is known.
fn path_mtu(turn_up: &TurnUp, direction: TestDirection) -> Option<u16> {
    match turn_up.known(direction).path_mtu {
        Some(MtuOutcome::Found { mtu, .. }) => Some(mtu),
        Some(MtuOutcome::Between { .. } | MtuOutcome::TooSmall { .. } | MtuOutcome::NoAnswer)
        | None => None,
    }
}

#[cfg(test)]
mod tests;
