//! `trunkline emulate`: a WAN link between two devices of this machine, a file for each action.

mod account;
mod around;
pub(crate) mod calibrate;
mod flags;
mod presets;
mod replay;
mod run;
mod set;
mod status;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Emulates a WAN link.
#[derive(Debug, Args)]
pub(crate) struct EmulateArguments {
    #[command(subcommand)]
    action: EmulateAction,
}

#[derive(Debug, Subcommand)]
enum EmulateAction {
    /// Relays packets between two devices as a WAN link would, until it is told to stop.
    ///
    /// Route traffic into one device and it comes out of the other, after the queue, the rate,
    /// the loss and the delay that were asked for. Two new TUN devices are up and have no address;
    /// give them addresses, or put them into namespaces of their own. With --bridge the link is
    /// between two interfaces that are there already.
    Run(Box<run::EmulateRunArguments>),
    /// Shows how a running link is: what it is set to, what it counted, whether this host holds it.
    Status(status::StatusArguments),
    /// Changes settings of a running link, without losing a packet.
    ///
    /// Only what is named changes. A --preset is a whole link: all that was set before, and is not
    /// named beside it, is from then on as the preset has it, or not set.
    Set(Box<set::SetArguments>),
    /// Lists links that have a name, with their numbers and where these come from.
    Presets(presets::PresetsArguments),
    /// Has every fate of a packet log again, in virtual time, and compares.
    Replay(replay::ReplayArguments),
    /// Measures the emulator on this machine from outside, and writes its certificate.
    Calibrate(calibrate::CalibrateArguments),
}

impl EmulateArguments {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// When the action fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            EmulateAction::Run(run) => run.run(),
            EmulateAction::Status(status) => status.run(),
            EmulateAction::Set(set) => set.run(),
            EmulateAction::Presets(presets) => presets.run(),
            EmulateAction::Replay(replay) => replay.run(),
            EmulateAction::Calibrate(calibrate) => calibrate.run(),
        }
    }
}
