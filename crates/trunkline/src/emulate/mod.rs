//! `trunkline emulate`: a WAN link between two devices of this machine, with one file for each
//! action.

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
    /// Relays packets between two devices as a WAN link would, until it is stopped.
    ///
    /// Route traffic into one device and it comes out of the other, after the configured queue,
    /// rate, loss and delay. The two new TUN devices are up and have no address; give them
    /// addresses, or put them into namespaces of their own. With --bridge the link joins two
    /// existing interfaces.
    Run(Box<run::EmulateRunArguments>),
    /// Shows a running link: its settings, its counters, and whether this host keeps up.
    Status(status::StatusArguments),
    /// Changes settings of a running link, without losing a packet.
    ///
    /// Only the named settings change. A --preset replaces the whole link: every earlier setting
    /// that is not named beside it takes the preset's value, or is unset.
    Set(Box<set::SetArguments>),
    /// Lists the link presets, with their numbers and the sources of these.
    Presets(presets::PresetsArguments),
    /// Replays a packet log in virtual time and compares every packet's fate.
    Replay(replay::ReplayArguments),
    /// Measures the emulator on this machine from outside, and writes its certificate.
    Calibrate(calibrate::CalibrateArguments),
}

impl EmulateArguments {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// Fails when the action fails; the message says what to do.
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
