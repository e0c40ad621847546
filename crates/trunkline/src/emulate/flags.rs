//! Flags for a link's settings, one for each setting, so that `run` and `set` take the same
//! settings as files and presets do.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use emulator::link::InvalidRequest;
use emulator::link::settings::{LinkSettings, SettingDirection, SettingKey, SettingName};

/// Settings named by flags.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingFlags {
    file: Option<PathBuf>,
    /// Names and their unparsed values. [`SettingFlags::settings`] parses them, so that an error
    /// reads the same for flags and for files.
    named: Vec<(&'static str, String)>,
}

/// Name of the flag for a settings file.
const CONFIG: &str = "config";
/// Name of the flag for a preset.
const PRESET: &str = "preset";
/// Name of the flag for the seed of all random numbers.
const SEED: &str = "seed";

/// Heading of the flags in the help.
const HEADING: &str =
    "Settings of the link (the same option with -back applies only to the direction B to A)";

impl SettingFlags {
    /// Settings of the file, overridden by the flags. File names become absolute.
    ///
    /// # Errors
    /// Fails when a setting is invalid ([`InvalidRequest`]), or a file cannot be read.
    pub(super) fn settings(self) -> Result<LinkSettings> {
        let mut settings = match &self.file {
            Some(file) => LinkSettings::from_file(file).map_err(InvalidRequest::because)?,
            None => LinkSettings::default(),
        };
        let mut named = LinkSettings::default();
        for (name, value) in &self.named {
            named
                .set_by_name(name, value)
                .map_err(InvalidRequest::because)?;
        }
        settings.overlay(named);
        let here = env::current_dir().context("cannot find out the current directory")?;
        settings.anchor(&here);
        Ok(settings)
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let first = [
            Arg::new(PRESET)
                .long(PRESET)
                .value_name("NAME")
                .help("Uses the settings of this preset, such as \"lte\"; other options override single \
                       settings. On a running link, a preset replaces all earlier settings (see `trunkline \
                       emulate presets`)"),
            Arg::new(CONFIG)
                .long(CONFIG)
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Reads settings from this TOML file, under [forward] and [back]; other options \
                       override single settings"),
            Arg::new(SEED)
                .long(SEED)
                .value_name("NUMBER")
                .help("Sets the seed of all random decisions; with the same seed, the same packets are lost \
                       [default: 1]"),
        ];
        let all = first.into_iter().chain(SettingName::all().map(argument));
        command.args(all.map(|argument| argument.help_heading(HEADING)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(name: SettingName) -> Arg {
    let argument = Arg::new(name.text())
        .long(name.text())
        .value_name(name.key.value_name())
        .allow_hyphen_values(false)
        .action(if name.key == SettingKey::Outage {
            ArgAction::Append
        } else {
            ArgAction::Set
        });
    match name.way {
        SettingDirection::Forward => argument.help(name.key.help()),
        SettingDirection::Back => argument
            .help(format!(
                "Sets the same for the direction B to A [default: the value of the preset, or the value of --{}]",
                name.key.name()
            ))
            .hide_short_help(true),
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self {
            file: matches.get_one::<PathBuf>(CONFIG).cloned(),
            named: Vec::new(),
        };
        for name in [PRESET, SEED]
            .into_iter()
            .chain(SettingName::all().map(SettingName::text))
        {
            let Some(values) = matches.get_many::<String>(name) else {
                continue;
            };
            let values: Vec<&str> = values.map(String::as_str).collect();
            flags.named.push((name, values.join(";")));
        }
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
