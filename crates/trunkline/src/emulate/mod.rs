//! `trunkline emulate`: a WAN link between two devices of this machine, with one file for each
//! action.

mod account;
mod around;
pub(crate) mod calibrate;
mod device;
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
    /// Relays packets between two devices like a WAN link, until you stop it.
    ///
    /// A packet that is routed into one device leaves the other device, after the configured queue,
    /// rate, loss and delay. The two new TUN devices are up and have no address. Give each device
    /// an address, or move each device into its own network namespace. With --bridge, the emulated
    /// link joins two existing interfaces, and creates no devices. With --device, a router or switch
    /// is emulated between existing interfaces.
    Run(Box<run::EmulateRunArguments>),
    /// Shows a running emulated link: its settings, its counters, and whether this host is fast
    /// enough for it.
    Status(status::StatusArguments),
    /// Changes settings of a running emulated link; no packet is lost.
    ///
    /// Only the named settings change. The option --preset replaces all settings of the emulated
    /// link: each setting that the command line does not name takes the preset's value, or becomes
    /// unset.
    Set(Box<set::SetArguments>),
    /// Lists the link presets with their numbers and the sources of these numbers.
    Presets(presets::PresetsArguments),
    /// Replays a packet log in virtual time, and compares the fate of every packet with the log.
    Replay(replay::ReplayArguments),
    /// Measures with sockets outside the emulator how exactly the emulator works on this machine,
    /// and writes a certificate with the results.
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
