//! Settings file: TOML with `preset` and `seed` at the top, and the words of [`Key`] under
//! `[forward]` and `[back]`. A setting that is not under `[back]` is the same as forward.
//!
//! [`Key`]: super::SettingKey

use std::path::Path;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use super::resolve::bounded;
use super::{LinkSettings, PRESET, SEED, SettingDirection, SettingName};

/// Settings are a few lines; this keeps a wrong name from filling the memory.
const LONGEST_FILE: u64 = 1 << 20;

pub(super) fn read(path: &Path) -> Result<LinkSettings> {
    let about = || format!("cannot read the settings in {}", path.display());
    let content = bounded(path, LONGEST_FILE)
        .with_context(|| format!("{}; if the file is a trace, name it under `trace`", about()))?;
    let text = String::from_utf8(content).with_context(about)?;
    let mut settings = parse(&text).with_context(|| path.display().to_string())?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    settings.anchor(directory.unwrap_or_else(|| Path::new(".")));
    Ok(settings)
}

pub(super) fn parse(text: &str) -> Result<LinkSettings> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        anyhow::anyhow!("the file is not valid TOML: {}", error.message())
    })?;
    let mut settings = LinkSettings::default();
    for (name, value) in &table {
        match (name.as_str(), value) {
            ("forward", Value::Table(words)) => {
                read_way(&mut settings, SettingDirection::Forward, words)?
            }
            ("back", Value::Table(words)) => {
                read_way(&mut settings, SettingDirection::Back, words)?
            }
            (PRESET | SEED, value) => settings.set_by_name(name, &written(name, value)?)?,
            _ => bail!(
                "`{name}` is not allowed here; the file may contain `preset`, `seed`, and settings under \
                 [forward] and [back]"
            ),
        }
    }
    Ok(settings)
}

fn read_way(settings: &mut LinkSettings, way: SettingDirection, words: &Table) -> Result<()> {
    for (name, value) in words {
        let named: SettingName = name.parse()?;
        if named.way == SettingDirection::Back {
            bail!("`{name}`: write `{}` under [back]", named.key.name());
        }
        let key = named.key;
        settings.set(SettingName { key, way }, &written(name, value)?)?;
    }
    Ok(())
}

/// The value as a flag would have it.
fn written(name: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Array(parts) => {
            let parts: Result<Vec<String>> = parts.iter().map(|part| written(name, part)).collect();
            Ok(parts?.join(";"))
        }
        _ => bail!("`{name}` must be a text, as in {name} = \"…\""),
    }
}
