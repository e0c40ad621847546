//! `trunkline emulate presets`: the links that have a name, with their numbers and sources.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use emulator::link::Refused;
use emulator::link::presets::{self, COLUMNS, PRESETS, Preset};
use emulator::link::settings::{Key, Way};
use host::terminal::write_hanging;
use serde_json::{Map, Value, json};

use crate::output::Output;

/// What `trunkline emulate presets` is told.
#[derive(Debug, Args)]
pub(super) struct Presets {
    /// Only this one, with where each of its numbers comes from.
    name: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

impl Presets {
    pub(super) fn run(self) -> Result<()> {
        let mut out = Output::new();
        let chosen: Vec<&Preset> = match &self.name {
            Some(name) => vec![presets::find(name).map_err(Refused::because)?],
            None => PRESETS.iter().collect(),
        };
        if self.json {
            let all: Vec<Value> = chosen.into_iter().map(as_json).collect();
            serde_json::to_writer_pretty(&mut out, &json!({ "presets": all }))?;
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

/// One word of a preset; without one for the queue it is the default.
fn cell(preset: &Preset, way: Way, key: Key) -> &'static str {
    match (preset.word(way, key), key) {
        (Some(word), _) => word,
        (None, Key::Queue) => "rate x RTT",
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
        for (name, label, way) in [(preset.name, "up", Way::Forward), ("", "down", Way::Back)] {
            // The tables' other columns are in the order of `COLUMNS`; a long distribution is cut
            // to its name here, and whole in `presets NAME`.
            let [rate, delay, jitter, loss, queue] = COLUMNS.map(|(_, key)| cell(preset, way, key));
            let jitter = jitter.split(",sigma").next().unwrap_or(jitter);
            row(out, [name, label, rate, delay, jitter, loss, queue])?;
        }
    }
    writeln!(
        out,
        "\nup is forward (A to B), down is back. `trunkline emulate presets NAME` says\nwhere each number comes from; `trunkline emulate run --preset NAME` sets it."
    )?;
    Ok(())
}

fn print_one(out: &mut impl Write, preset: &Preset) -> Result<()> {
    writeln!(out, "{}: {}", preset.name, preset.title)?;
    for key in Key::ALL {
        let (up, down) = (preset.word(Way::Forward, key), preset.word(Way::Back, key));
        if let Some(down) = down {
            let up = up.unwrap_or("-");
            if up == down {
                writeln!(out, "  {:<10}{up}", key.name())?;
            } else {
                writeln!(out, "  {:<10}{up} up, {down} down", key.name())?;
            }
        }
    }
    writeln!(out, "where the numbers come from:")?;
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

fn as_json(preset: &Preset) -> Value {
    let words = |way| -> Map<String, Value> {
        Key::ALL
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
        "forward": words(Way::Forward),
        "back": words(Way::Back),
        "sources": sources,
    })
}
