//! `trunkline emulate replay`: replays the packets of a log in virtual time.
//!
//! Exit codes: 0 every fate in the log was reproduced, except for packets that the log marks as
//! disturbed by the host; 1 one was not, or the log has gaps, or cannot be read.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use emulator::link::replay::{self, ReplayReport};

use crate::output::StandardOutput;

/// Arguments of `trunkline emulate replay`.
#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    /// Names the packet log, which `trunkline emulate run --log` wrote.
    log: PathBuf,
    /// Prints the result of the replay as JSON.
    #[arg(long)]
    json: bool,
}

impl ReplayArguments {
    pub(super) fn run(self) -> Result<()> {
        let report = replay::replay(&self.log)?;
        let mut out = StandardOutput::new();
        if self.json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            print(&mut out, &report)?;
        }
        out.flush()?;
        if !report.agrees() {
            bail!("the fates in the replay differ from those in the log");
        }
        if !report.is_whole() {
            bail!(
                "all compared packets have the same fate, but some packets could not be compared: {}",
                report.missing.join("; ")
            );
        }
        Ok(())
    }
}

fn print(out: &mut impl Write, report: &ReplayReport) -> io::Result<()> {
    for (way, account) in [("forward", report.forward), ("back", report.back)] {
        writeln!(
            out,
            "{way:<8} {} packets: {} fates the same, {} different, {} not compared",
            account.packets, account.agreeing, account.differing, account.not_compared
        )?;
    }
    let lines = [&report.left_out, &report.missing, &report.differences];
    for line in lines.into_iter().flatten() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
