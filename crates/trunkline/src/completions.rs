//! `trunkline completions SHELL`: prints the script with which a shell completes the command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::StandardOutput;

/// Prints a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "For bash:  trunkline completions bash > \
    ~/.local/share/bash-completion/completions/trunkline")]
pub(crate) struct CompletionsArguments {
    /// The shell to complete for.
    shell: Shell,
}

impl CompletionsArguments {
    /// Prints the script on standard output.
    ///
    /// # Errors
    /// Never fails today; every subcommand returns a result.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut command = crate::ProgramArguments::command();
        clap_complete::generate(
            self.shell,
            &mut command,
            "trunkline",
            &mut StandardOutput::new(),
        );
        Ok(())
    }
}
