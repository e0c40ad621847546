//! `trunkline emulate`: a WAN link between two devices of this machine, a file for each action.

mod run;

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
    /// Relays packets between two new TUN devices as a WAN link would, until it is told to stop.
    ///
    /// Route traffic into one device and it comes out of the other, after the queue, the rate,
    /// the loss and the delay that were asked for. Both devices are up and have no address; give
    /// them addresses, or put them into namespaces of their own.
    Run(Box<run::Run>),
}

impl Emulate {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// When the action fails; the message says what to do.
    pub(crate) fn run(self) -> Result<()> {
        match self.action {
            Action::Run(run) => run.run(),
        }
    }
}
