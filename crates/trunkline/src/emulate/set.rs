//! `trunkline emulate set`: changes settings of a running link without losing a packet.

use anyhow::{Result, anyhow};
use clap::Args;
use emulator::link::InvalidRequest;
use emulator::link::control::{self, ControlRequest};

use super::flags::SettingFlags;
use super::run::ForceArguments;
use super::status::{LinkSelection, print_status};
use crate::output::StandardOutput;

/// Arguments of `trunkline emulate set`.
#[derive(Debug, Args)]
pub(super) struct SetArguments {
    #[command(flatten)]
    which: LinkSelection,
    #[command(flatten)]
    settings: SettingFlags,
    #[command(flatten)]
    force: ForceArguments,
    /// Prints the status of the emulated link as JSON.
    #[arg(long)]
    json: bool,
}

impl SetArguments {
    pub(super) fn run(self) -> Result<()> {
        let settings = self.settings.settings()?;
        if settings.is_empty() {
            return Err(InvalidRequest::because(anyhow!(
                "name a setting to change, as in `trunkline emulate set --rate 5Mbit`"
            )));
        }
        let socket = self.which.socket()?;
        let unheld = self.force.unheld();
        let status = control::ask(&socket, &ControlRequest::Set { settings, unheld })?;
        if self.json {
            say!("{status}");
            Ok(())
        } else {
            print_status(&mut StandardOutput::new(), &status)
        }
    }
}
