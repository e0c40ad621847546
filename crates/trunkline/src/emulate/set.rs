//! `trunkline emulate set`: other settings for a running link, which loses no packet by it.

use anyhow::{Result, anyhow};
use clap::Args;
use emulator::link::Refused;
use emulator::link::control::{self, Request};

use super::flags::SettingFlags;
use super::run::Force;
use super::status::{Which, print_status};
use crate::output::Output;

/// What `trunkline emulate set` is told.
#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    settings: SettingFlags,
    #[command(flatten)]
    force: Force,
    /// Prints the link's status as JSON.
    #[arg(long)]
    json: bool,
}

impl Set {
    pub(super) fn run(self) -> Result<()> {
        let settings = self.settings.settings()?;
        if settings.is_empty() {
            return Err(Refused::because(anyhow!(
                "name what should be otherwise, as in `trunkline emulate set --rate 5Mbit`"
            )));
        }
        let socket = self.which.socket()?;
        let unheld = self.force.unheld();
        let status = control::ask(&socket, &Request::Set { settings, unheld })?;
        if self.json {
            say!("{status}");
            Ok(())
        } else {
            print_status(&mut Output::new(), &status)
        }
    }
}
