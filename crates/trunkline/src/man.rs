//! `trunkline man DIR`: the manual pages, made from the same words as `--help`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};

/// Writes the manual pages, one for each subcommand.
#[derive(Debug, Args)]
#[command(after_help = "To read one at once:  man -l DIR/trunkline-node.1")]
pub(crate) struct ManArguments {
    /// The folder to write into; it is made where it does not exist.
    folder: PathBuf,
}

impl ManArguments {
    /// Writes `trunkline.1`, `trunkline-node.1` and so on.
    ///
    /// # Errors
    /// When the folder cannot be made or a page cannot be written.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let folder = self.folder.display();
        fs::create_dir_all(&self.folder).with_context(|| format!("{folder} cannot be made"))?;
        clap_mangen::generate_to(crate::ProgramArguments::command(), &self.folder)
            .with_context(|| format!("the pages cannot be written to {folder}"))
    }
}
