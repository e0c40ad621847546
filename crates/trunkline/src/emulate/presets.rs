//! `trunkline emulate presets`: lists the link presets, with their numbers and sources, and the device
//! models.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use emulator::device::presets::{self as device_presets, DEVICE_PRESETS, DevicePreset};
use emulator::link::InvalidRequest;
use emulator::link::presets::{self, COLUMNS, LinkPreset, PRESETS};
use emulator::link::settings::{SettingDirection, SettingKey};
use host::terminal::write_hanging;
use serde_json::{Map, Value, json};

use crate::output::StandardOutput;

/// Arguments of `trunkline emulate presets`.
#[derive(Debug, Args)]
pub(super) struct PresetsArguments {
    /// Shows only this preset, with the source of each of its numbers. For a device model, prints the
    /// model file.
    name: Option<String>,
    /// Prints the presets as JSON.
    #[arg(long)]
    json: bool,
}

impl PresetsArguments {
    pub(super) fn run(self) -> Result<()> {
        let mut out = StandardOutput::new();
        let device = self.name.as_deref().and_then(device_presets::find);
        if let Some(device) = device {
            if self.json {
                let devices = [device_as_json(device)?];
                writeln!(out, "{}", json!({ "devices": devices }))?;
            } else {
                write!(out, "{}", device.text)?;
            }
            return Ok(());
        }
        let chosen: Vec<&LinkPreset> = match &self.name {
            Some(name) => vec![presets::find(name).map_err(InvalidRequest::because)?],
            None => PRESETS.iter().collect(),
        };
        if self.json {
            let all: Vec<Value> = chosen.into_iter().map(as_json).collect();
            let devices = match self.name {
                Some(_) => Vec::new(),
                None => DEVICE_PRESETS
                    .iter()
                    .map(device_as_json)
                    .collect::<Result<_>>()?,
            };
            let presets = json!({ "presets": all, "devices": devices });
            serde_json::to_writer_pretty(&mut out, &presets)?;
            writeln!(out)?;
        } else if self.name.is_some() {
            for preset in chosen {
                print_one(&mut out, preset)?;
            }
        } else {
            print_all(&mut out)?;
        }
        Ok(())
    }
}

/// One setting of a preset; a queue that the preset does not set has the default.
fn cell(preset: &LinkPreset, way: SettingDirection, key: SettingKey) -> &'static str {
    match (preset.word(way, key), key) {
        (Some(word), _) => word,
        (None, SettingKey::Queue) => "rate x RTT",
        (None, _) => "-",
    }
}

fn print_all(out: &mut impl Write) -> Result<()> {
    let row = |out: &mut dyn Write, cells: [&str; 7]| {
        let [name, way, rate, delay, jitter, loss, queue] = cells;
        writeln!(
            out,
            "{name:<14}{way:<5}{rate:>11} {delay:>7} {jitter:<18} {loss:<13} {queue}"
        )
    };
    row(
        out,
        ["preset", "way", "rate", "delay", "jitter", "loss", "queue"],
    )?;
    for preset in &PRESETS {
        for (name, label, way) in [
            (preset.name, "up", SettingDirection::Forward),
            ("", "down", SettingDirection::Back),
        ] {
            // The tables' other columns are in the order of `COLUMNS`; a long distribution is cut
            // to its name here, and whole in `presets NAME`.
            let [rate, delay, jitter, loss, queue] = COLUMNS.map(|(_, key)| cell(preset, way, key));
            let jitter = jitter.split(",sigma").next().unwrap_or(jitter);
            row(out, [name, label, rate, delay, jitter, loss, queue])?;
        }
    }
    writeln!(
        out,
        "\nup is forward (A to B), down is back. `trunkline emulate presets NAME` shows\nthe source of each \
         number; `trunkline emulate run --preset NAME` uses a preset."
    )?;
    writeln!(
        out,
        "\ndevice models, for `trunkline emulate run --device NAME`:"
    )?;
    for preset in &DEVICE_PRESETS {
        writeln!(out, "{:<14} {}", preset.name, preset.title)?;
    }
    Ok(())
}

fn print_one(out: &mut impl Write, preset: &LinkPreset) -> Result<()> {
    writeln!(out, "{}: {}", preset.name, preset.title)?;
    for key in SettingKey::ALL {
        let (up, down) = (
            preset.word(SettingDirection::Forward, key),
            preset.word(SettingDirection::Back, key),
        );
        if let Some(down) = down {
            let up = up.unwrap_or("-");
            if up == down {
                writeln!(out, "  {:<10}{up}", key.name())?;
            } else {
                writeln!(out, "  {:<10}{up} up, {down} down", key.name())?;
            }
        }
    }
    writeln!(out, "sources of the numbers:")?;
    for source in preset.sources {
        let mut text = String::new();
        write_hanging(
            &mut text,
            &format!("  {}: ", source.of),
            4,
            source.from.split_whitespace(),
        );
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn device_as_json(preset: &DevicePreset) -> Result<Value> {
    Ok(json!({
        "name": preset.name,
        "title": preset.title,
        "model": preset.model()?,
        "text": preset.text,
    }))
}

fn as_json(preset: &LinkPreset) -> Value {
    let words = |way| -> Map<String, Value> {
        SettingKey::ALL
            .into_iter()
            .filter_map(|key| Some((key.name().to_owned(), preset.word(way, key)?.into())))
            .collect()
    };
    let sources: Map<String, Value> = preset
        .sources
        .iter()
        .map(|source| (source.of.to_owned(), source.from.into()))
        .collect();
    json!({
        "name": preset.name,
        "title": preset.title,
        "forward": words(SettingDirection::Forward),
        "back": words(SettingDirection::Back),
        "sources": sources,
    })
}
