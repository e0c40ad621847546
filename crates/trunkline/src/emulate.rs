//! `trunkline emulate`: a WAN link between two devices of this machine.

use clap::{Args, Subcommand};

/// Emulates a WAN link.
#[derive(Debug, Args)]
pub(crate) struct Emulate {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Opens two TUN devices and relays packets between them until it is told to stop.
    Run(Run),
}

/// What `trunkline emulate run` is told.
#[derive(Debug, Args)]
struct Run {}

impl Emulate {
    /// Runs the chosen action.
    ///
    /// # Errors
    /// When the action fails; the message says what to do.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Run(_) => anyhow::bail!("the link driver is not in this build"),
        }
    }
}
