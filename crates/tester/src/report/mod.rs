//! What was found, for a terminal, for a browser and for programs.

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
use measure::turn_up::{Purpose, RunPlan, TurnUp};
use measure::wire::Direction;

/// Why a run was made, in a few words.
fn purpose(turn_up: &TurnUp, plan: &RunPlan, direction: Direction) -> String {
    match plan.purpose {
        Purpose::Walk(percent) if turn_up.bdp(direction).is_none() => {
            format!("{percent} % of reached")
        }
        Purpose::Walk(percent) => format!("{percent} % of BDP"),
        Purpose::Listed => "listed window".to_owned(),
        Purpose::Many => "many connections".to_owned(),
        Purpose::Together => "both directions".to_owned(),
        Purpose::RoundTrip => "least RTT".to_owned(),
        Purpose::Open => "hosts' own windows".to_owned(),
    }
}

/// The path MTU of a direction in bytes, where it is known.
fn path_mtu(turn_up: &TurnUp, direction: Direction) -> Option<u16> {
    match turn_up.known(direction).path_mtu {
        Some(MtuOutcome::Found { mtu, .. }) => Some(mtu),
        Some(MtuOutcome::Between { .. } | MtuOutcome::TooSmall { .. } | MtuOutcome::NoAnswer)
        | None => None,
    }
}

#[cfg(test)]
mod tests;
