//! `trunkline completions SHELL`: what a shell needs to complete the command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::Output;

/// Prints a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "For bash:  trunkline completions bash > \
    ~/.local/share/bash-completion/completions/trunkline")]
pub(crate) struct Completions {
    /// The shell to complete for.
    shell: Shell,
}

impl Completions {
    /// Prints the script on standard output.
    ///
    /// # Errors
    /// None today; every subcommand returns a result.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut command = crate::Arguments::command();
        clap_complete::generate(self.shell, &mut command, "trunkline", &mut Output::new());
        Ok(())
    }
}
