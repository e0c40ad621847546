//! The tables of the accelerators, each named after its entry in the registry.
//!
//! What a key means is the accelerator's matter. Here a table is taken out of the file with the places
//! of its keys and values, handed to its entry, and what the entry refuses is shown at its line.

use std::ops::Range;
use std::sync::Arc;

use accelerate::registry::{Entry, PASSTHROUGH, Registry};
use accelerate::settings::{AcceleratorSettings, Located, Setting, SettingError, Table, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::located::{ConfigError, Locator};
use super::sections::{KEYS, SECTIONS};

/// Takes the accelerators' tables out of the file and gives each to its entry. What is left are the
/// node's own sections, and nothing else.
///
/// # Errors
/// When a table is refused, or a section is unknown.
pub(super) fn take_accelerators(
    file: &mut DeTable<'_>,
    located: &Locator<'_>,
) -> Result<Registry, ConfigError> {
    let mut registry = Registry::default();
    let configurable = registry.iter().map(|registered| registered.entry);
    let entries: Vec<&'static Entry> = configurable
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
    entry: &Entry,
    file: &DeTable<'_>,
    located: &Locator<'_>,
) -> Result<(), ConfigError> {
    for moved in entry.moved_keys {
        let section = file.get(moved.from).map(Spanned::get_ref);
        let Some(DeValue::Table(section)) = section else {
            continue;
        };
        if let Some(key) = section.keys().find(|key| key.get_ref() == moved.was) {
            let message = format!(
                "`{}` under [{}] has moved; write `{}` under [{}]",
                moved.was, moved.from, moved.is, moved.to
            );
            return Err(located.at(key.span(), &message));
        }
    }
    Ok(())
}

fn parse(
    entry: &Entry,
    section: &Spanned<DeValue<'_>>,
    located: &Locator<'_>,
) -> Result<Arc<dyn AcceleratorSettings>, ConfigError> {
    let DeValue::Table(section) = section.get_ref() else {
        let message = format!("[{}] is a table; write its keys below it", entry.name);
        return Err(located.at(section.span(), &message));
    };
    let settings = section.iter().map(|(key, value)| Setting {
        key: key.get_ref().to_string(),
        key_span: key.span(),
        value: located_value(value),
    });
    let table = Table {
        settings: settings.collect(),
    };
    (entry.parse)(&table).map_err(|error| match &error {
        SettingError::UnknownKey { span, key, known } => {
            located.unknown_key(span.clone(), key, known, KEYS)
        }
        SettingError::WrongValue { span, message } => located.at(span.clone(), message),
    })
}

fn located_value(value: &Spanned<DeValue<'_>>) -> Located {
    let span: Range<usize> = value.span();
    let value = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Value::Number(number),
            Err(_) => Value::Other("a number beyond 64 bits"),
        },
        DeValue::Boolean(is_on) => Value::Switch(*is_on),
        DeValue::Array(values) => Value::List(values.iter().map(located_value).collect()),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(_) => Value::Other("a table"),
    };
    Located { value, span }
}
