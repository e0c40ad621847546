//! The tables of the accelerators, each named after its entry in the registry.
//!
//! The accelerator defines the meaning of a key. The node takes a table out of the file with the
//! positions of its keys and values, hands it to the accelerator's entry, and shows the entry's
//! errors at their lines.

use std::ops::Range;
use std::sync::Arc;

use accelerate::registry::{AcceleratorEntry, AcceleratorRegistry, PASSTHROUGH};
use accelerate::settings::{
    AcceleratorSettings, LocatedValue, SettingError, SettingValue, SettingsTable, TableSetting,
};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::located::{ConfigError, SourceText};
use super::sections::{KEYS, SECTIONS};

/// Takes the accelerators' tables out of the file and gives each to its entry. Only the node's own
/// sections remain.
///
/// # Errors
/// When a table is refused, or a section is unknown.
pub(super) fn take_accelerators(
    file: &mut DeTable<'_>,
    located: &SourceText<'_>,
) -> Result<AcceleratorRegistry, ConfigError> {
    let mut registry = engine::default_registry();
    let configurable = registry.iter().map(|registered| registered.entry);
    let entries: Vec<&'static AcceleratorEntry> = configurable
        .filter(|entry| entry.number != PASSTHROUGH)
        .collect();
    for entry in &entries {
        refuse_moved_keys(entry, file, located)?;
        if let Some(section) = file.remove(entry.name) {
            let settings = parse(entry, &section, located)?;
            registry.set(entry, settings);
        }
    }
    let sections = SECTIONS.iter().copied();
    let known: Vec<&str> = sections
        .chain(entries.iter().map(|entry| entry.name))
        .collect();
    match file
        .keys()
        .find(|key| !known.contains(&key.get_ref().as_ref()))
    {
        None => Ok(registry),
        Some(unknown) => Err(located.unknown_key(unknown.span(), unknown.get_ref(), &known, KEYS)),
    }
}

/// A key that an earlier release read from another section would silently do nothing; it is refused.
fn refuse_moved_keys(
    entry: &AcceleratorEntry,
    file: &DeTable<'_>,
    located: &SourceText<'_>,
) -> Result<(), ConfigError> {
    for moved in entry.moved_keys {
        let section = file.get(moved.from).map(Spanned::get_ref);
        let Some(DeValue::Table(section)) = section else {
            continue;
        };
        if let Some(key) = section.keys().find(|key| key.get_ref() == moved.was) {
            let message = format!(
                "`{}` is not a key of [{}] any more; write `{}` under [{}] instead",
                moved.was, moved.from, moved.is, moved.to
            );
            return Err(located.at(key.span(), &message));
        }
    }
    Ok(())
}

fn parse(
    entry: &AcceleratorEntry,
    section: &Spanned<DeValue<'_>>,
    located: &SourceText<'_>,
) -> Result<Arc<dyn AcceleratorSettings>, ConfigError> {
    let DeValue::Table(section) = section.get_ref() else {
        let message = format!(
            "[{}] must be a table; write its keys below its name in brackets",
            entry.name
        );
        return Err(located.at(section.span(), &message));
    };
    let table = located_table(section);
    (entry.parse)(&table).map_err(|error| match &error {
        SettingError::UnknownKey { span, key, known } => {
            located.unknown_key(span.clone(), key, known, KEYS)
        }
        SettingError::WrongValue { span, message } => located.at(span.clone(), message),
    })
}

fn located_table(table: &DeTable<'_>) -> SettingsTable {
    let settings = table.iter().map(|(key, value)| TableSetting {
        key: key.get_ref().to_string(),
        key_span: key.span(),
        value: located_value(value),
    });
    SettingsTable {
        settings: settings.collect(),
    }
}

fn located_value(value: &Spanned<DeValue<'_>>) -> LocatedValue {
    let span: Range<usize> = value.span();
    let value = match value.get_ref() {
        DeValue::String(text) => SettingValue::Text(text.to_string()),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => SettingValue::Number(number),
            Err(_) => SettingValue::Other("a number of more than 64 bits"),
        },
        DeValue::Boolean(is_on) => SettingValue::Switch(*is_on),
        DeValue::Array(values) => SettingValue::List(values.iter().map(located_value).collect()),
        DeValue::Float(_) => SettingValue::Other("a number that is not whole"),
        DeValue::Datetime(_) => SettingValue::Other("a date"),
        DeValue::Table(table) => SettingValue::Table(located_table(table)),
    };
    LocatedValue { value, span }
}
