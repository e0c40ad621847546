//! `trunkline man DIR`: writes the manual pages, made from the same text as `--help`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};

/// Writes the manual pages, one for each subcommand.
#[derive(Debug, Args)]
#[command(after_help = "To read a page without installing it:  man -l DIR/trunkline-node.1")]
pub(crate) struct ManArguments {
    /// Directory to write into; it is created if it does not exist.
    folder: PathBuf,
}

impl ManArguments {
    /// Writes `trunkline.1`, `trunkline-node.1` and so on.
    ///
    /// # Errors
    /// Fails when the directory cannot be made or a page cannot be written.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let folder = self.folder.display();
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot create the directory {folder}"))?;
        clap_mangen::generate_to(crate::ProgramArguments::command(), &self.folder)
            .with_context(|| format!("cannot write the manual pages to {folder}"))
    }
}
