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
pub(crate) struct Emulate {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Relays packets between two devices as a WAN link would, until it is told to stop.
    ///
    /// Route traffic into one device and it comes out of the other, after the queue, the rate,
    /// the loss and the delay that were asked for. Two new TUN devices are up and have no address;
    /// give them addresses, or put them into namespaces of their own. With --bridge the link is
    /// between two interfaces that are there already.
    Run(Box<run::Run>),
    /// Shows how a running link is: what it is set to, what it counted, whether this host holds it.
    Status(status::Status),
    /// Changes settings of a running link, without losing a packet.
    ///
    /// Only what is named changes. A --preset is a whole link: all that was set before, and is not
    /// named beside it, is from then on as the preset has it, or not set.
    Set(Box<set::Set>),
    /// Lists links that have a name, with their numbers and where these come from.
    Presets(presets::Presets),
    /// Has every fate of a packet log again, in virtual time, and compares.
    Replay(replay::Replay),
    /// Measures the emulator on this machine from outside, and writes its certificate.
    Calibrate(calibrate::Calibrate),
}

impl Emulate {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// When the action fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            Action::Run(run) => run.run(),
            Action::Status(status) => status.run(),
            Action::Set(set) => set.run(),
            Action::Presets(presets) => presets.run(),
            Action::Replay(replay) => replay.run(),
            Action::Calibrate(calibrate) => calibrate.run(),
        }
    }
}
