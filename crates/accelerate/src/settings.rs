//! The settings of one accelerator, from its own table of the node's configuration.
//!
//! ```text
//!   [name]                         node: finds the table by the entry's name
//!   mode = "strict"    ─► Table ─► entry: TableReader ─► AcceleratorSettings
//!                          │                 │
//!                          └ spans of text   └ SettingError with the span of the wrong key or value
//! ```
//! The node knows the file format, and the accelerator the meaning of a key. A [`SettingsTable`]
//! stands between the two: keys and values with their position in the file, so that an error can
//! point at the line. [`TableReader`] takes the keys out one by one and refuses the rest.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::shared::{SharedState, StartContext};
use crate::{FlowOpening, ReasonCode};

/// The settings of one accelerator as its entry parsed them. The engine and the node pass them on;
/// only the accelerator knows their content.
pub trait AcceleratorSettings: Any + fmt::Debug + Send + Sync {
    /// True if flows to the accelerator's ports are given to it.
    fn is_on(&self) -> bool;

    /// The side that decides when a flow of the accelerator is opened at the far node.
    fn opening(&self) -> FlowOpening {
        FlowOpening::AtOnce
    }

    /// Every setting with its value as they would be written in the table.
    fn lines(&self) -> Vec<(&'static str, String)>;

    /// Returns remarks on these settings for the operator, such as one about a setting that has no
    /// effect without another. `delegates` is true if the configuration names delegated keys.
    fn remarks(&self, delegates: bool) -> Vec<String> {
        let _ = delegates;
        Vec::new()
    }

    /// Server ports whose flows the accelerator serves beside those of its entry.
    fn further_ports(&self) -> &[u16] {
        &[]
    }

    /// The reason why these settings serve no flow to this server port although the accelerator can, in its own
    /// words; `None` for ports of other protocols.
    fn reason_unserved(&self, port: u16) -> Option<ReasonCode> {
        let _ = port;
        None
    }

    /// UDP ports that clients shall not reach at intercepted servers, so that they come by TCP.
    fn blocked_udp_ports(&self) -> &[u16] {
        &[]
    }

    /// The files that these settings name. The shell reads them and hands their contents to
    /// [`Self::with_files`].
    fn files(&self) -> Vec<SettingFile> {
        Vec::new()
    }

    /// The same settings with the contents of [`Self::files`], in that order.
    ///
    /// # Errors
    /// A description of the content that cannot be used. It names the file and holds no secret.
    fn with_files(
        &self,
        contents: &[Zeroizing<Vec<u8>>],
    ) -> Result<Arc<dyn AcceleratorSettings>, String> {
        let _ = contents;
        Err("these settings do not name any files".to_owned())
    }

    /// Starts the state that one engine keeps of the accelerator.
    fn start(&self, context: StartContext) -> Box<dyn SharedState>;
}

/// A file that settings name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingFile {
    /// The setting that names it, for messages.
    pub key: &'static str,
    /// The place of its content.
    pub source: FileSource,
    /// Bytes that it has at most.
    pub bytes_max: u64,
    /// True if it is refused when others than the node's user can read it.
    pub is_secret: bool,
}

/// The place of a setting file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// A file with this path.
    Path(String),
    /// The certificates of the authorities that the operating system trusts, as PEM.
    SystemRoots,
}

impl dyn AcceleratorSettings {
    /// The accelerator's own type behind these settings.
    ///
    /// # Panics
    /// When the settings are another accelerator's: the registry gives each accelerator its own.
    #[must_use]
    pub fn expect<S: AcceleratorSettings>(&self) -> &S {
        let any: &dyn Any = self;
        any.downcast_ref()
            .expect("the registry gives an accelerator its own settings")
    }
}

/// The settings that an entry reads from its table, or the first error.
pub type ParsedSettings = Result<Arc<dyn AcceleratorSettings>, SettingError>;

/// An error in an accelerator's table.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingError {
    /// The accelerator has no such key.
    #[error("the key `{key}` does not exist in this section (its keys are: {})", known.join(", "))]
    UnknownKey {
        /// The position of the key in the file, in bytes.
        span: Range<usize>,
        /// The key.
        key: String,
        /// The known keys.
        known: Vec<&'static str>,
    },
    /// A value has the wrong type or is out of range.
    #[error("{message}")]
    WrongValue {
        /// The position of the value in the file, in bytes.
        span: Range<usize>,
        /// The error, and the value to write instead.
        message: String,
    },
}

impl SettingError {
    /// Returns its position in the file, in bytes.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        match self {
            Self::UnknownKey { span, .. } | Self::WrongValue { span, .. } => span.clone(),
        }
    }
}

/// A value in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// A string.
    Text(String),
    /// An integer.
    Number(i64),
    /// `true` or `false`.
    Switch(bool),
    /// A list.
    List(Vec<LocatedValue>),
    /// A table below the accelerator's own.
    Table(SettingsTable),
    /// A value of a type that no setting has; the type's name.
    Other(&'static str),
}

/// A value and its position in the file, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedValue {
    /// The value.
    pub value: SettingValue,
    /// Its place.
    pub span: Range<usize>,
}

impl LocatedValue {
    fn wrong(&self, message: String) -> SettingError {
        SettingError::WrongValue {
            span: self.span.clone(),
            message,
        }
    }
}

/// One key of a table with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSetting {
    /// The key.
    pub key: String,
    /// The position of the key in the file, in bytes.
    pub key_span: Range<usize>,
    /// The value of the setting.
    pub value: LocatedValue,
}

/// A table of the configuration. The default is an empty one, for a section that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsTable {
    /// Its keys, in any order.
    pub settings: Vec<TableSetting>,
}

/// Takes settings out of a table by their keys.
#[derive(Debug)]
pub struct TableReader<'a> {
    table: &'a SettingsTable,
    known: Vec<&'static str>,
}

impl<'a> TableReader<'a> {
    /// Begins with no key taken.
    #[must_use]
    pub fn new(table: &'a SettingsTable) -> Self {
        Self {
            table,
            known: Vec::new(),
        }
    }

    /// The value of a key, if it is set.
    pub fn value(&mut self, key: &'static str) -> Option<&'a LocatedValue> {
        self.known.push(key);
        let mut settings = self.table.settings.iter();
        let setting = settings.find(|setting| setting.key == key);
        setting.map(|setting| &setting.value)
    }

    /// A string, if the key is set.
    ///
    /// # Errors
    /// When it is set to something else.
    pub fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, SettingError> {
        let Some(located) = self.value(key) else {
            return Ok(None);
        };
        match &located.value {
            SettingValue::Text(text) => Ok(Some(text)),
            SettingValue::Number(_)
            | SettingValue::Switch(_)
            | SettingValue::List(_)
            | SettingValue::Table(_)
            | SettingValue::Other(_) => Err(located.wrong(format!(
                "`{key}` must be a string; write its value in quotes"
            ))),
        }
    }

    /// `true` or `false`, if the key is set.
    ///
    /// # Errors
    /// When it is set to something else.
    pub fn switch(&mut self, key: &'static str) -> Result<Option<bool>, SettingError> {
        let Some(located) = self.value(key) else {
            return Ok(None);
        };
        match located.value {
            SettingValue::Switch(is_on) => Ok(Some(is_on)),
            SettingValue::Text(_)
            | SettingValue::Number(_)
            | SettingValue::List(_)
            | SettingValue::Table(_)
            | SettingValue::Other(_) => {
                Err(located.wrong(format!("`{key}` must be true or false")))
            }
        }
    }

    /// A whole number within a range, if the key is set.
    ///
    /// # Errors
    /// When it is set to something else.
    pub fn number(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, SettingError> {
        let Some(located) = self.value(key) else {
            return Ok(None);
        };
        match located.value {
            SettingValue::Number(number) if range.contains(&number) => Ok(Some(number)),
            SettingValue::Number(_)
            | SettingValue::Text(_)
            | SettingValue::Switch(_)
            | SettingValue::List(_)
            | SettingValue::Table(_)
            | SettingValue::Other(_) => Err(located.wrong(format!(
                "`{key}` must be a whole number from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    /// One of several words, if the key is set.
    ///
    /// # Errors
    /// When it is set to something else.
    pub fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, SettingError> {
        let Some(located) = self.value(key) else {
            return Ok(None);
        };
        let written = match &located.value {
            SettingValue::Text(text) => Some(text),
            SettingValue::Number(_)
            | SettingValue::Switch(_)
            | SettingValue::List(_)
            | SettingValue::Table(_)
            | SettingValue::Other(_) => None,
        };
        let chosen = words
            .iter()
            .find(|(word, _)| written.is_some_and(|written| written == word));
        match chosen {
            Some((_, chosen)) => Ok(Some(*chosen)),
            None => {
                let words: Vec<String> =
                    words.iter().map(|(word, _)| format!("{word:?}")).collect();
                Err(located.wrong(format!("`{key}` must be one of {}", words.join(", "))))
            }
        }
    }

    /// A list of strings that another type parses, if the key is set. An error points at the wrong one.
    ///
    /// # Errors
    /// When it is set to something else.
    pub fn texts<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<Vec<T>>, SettingError> {
        let Some(located) = self.value(key) else {
            return Ok(None);
        };
        let SettingValue::List(values) = &located.value else {
            return Err(located.wrong(format!("`{key}` must be a list; write [\"...\"]")));
        };
        let mut parsed = Vec::new();
        for one in values {
            let SettingValue::Text(text) = &one.value else {
                let message = format!("`{key}` must list strings; write each value in quotes");
                return Err(one.wrong(message));
            };
            parsed.push(parse(text).map_err(|error| one.wrong(error.to_string()))?);
        }
        Ok(Some(parsed))
    }

    /// A table below this one, if it is there.
    ///
    /// # Errors
    /// When the key is set to something else.
    pub fn table(&mut self, key: &'static str) -> Result<Option<&'a SettingsTable>, SettingError> {
        let Some(located) = self.value(key) else {
            return Ok(None);
        };
        match &located.value {
            SettingValue::Table(table) => Ok(Some(table)),
            SettingValue::Text(_)
            | SettingValue::Number(_)
            | SettingValue::Switch(_)
            | SettingValue::List(_)
            | SettingValue::Other(_) => Err(located.wrong(format!(
                "`{key}` must be a table; write its keys below its name in brackets"
            ))),
        }
    }

    /// A string that another type parses, if the key is set: a span of time, a number of bytes.
    ///
    /// # Errors
    /// When it is set to something else.
    pub fn parsed<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, SettingError> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        match parse(text) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(error) => Err(self.wrong(key, error.to_string())),
        }
    }

    /// A list of strings that another type parses, if the key is set.
    ///
    /// # Errors
    /// When it is set to something else; the error points at the member.
    pub fn list<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<Vec<T>>, SettingError> {
        let Some(located) = self.value(key) else {
            return Ok(None);
        };
        let SettingValue::List(members) = &located.value else {
            return Err(located.wrong(format!("`{key}` must be a list of strings in brackets")));
        };
        let parsed = members.iter().map(|member| match &member.value {
            SettingValue::Text(text) => {
                parse(text).map_err(|error| member.wrong(error.to_string()))
            }
            SettingValue::Number(_)
            | SettingValue::Switch(_)
            | SettingValue::List(_)
            | SettingValue::Table(_)
            | SettingValue::Other(_) => Err(member.wrong(format!(
                "`{key}` must be a list of strings; write each string in quotes"
            ))),
        });
        parsed.collect::<Result<Vec<T>, _>>().map(Some)
    }

    /// Returns a duration no longer than `longest`, if the key is set; `why` explains the limit in
    /// the error.
    ///
    /// # Errors
    /// When it is set to something else.
    pub fn duration(
        &mut self,
        key: &'static str,
        longest: Duration,
        why: &str,
    ) -> Result<Option<Duration>, SettingError> {
        let span = self.parsed(key, vocab::parse_duration)?;
        match span.filter(|span| *span > longest) {
            None => Ok(span),
            Some(_) => {
                let longest = vocab::format_duration(longest);
                Err(self.wrong(key, format!("{why}; write \"{longest}\" or less")))
            }
        }
    }

    /// An error at the value of a key that is set.
    #[must_use]
    pub fn wrong(&self, key: &str, message: String) -> SettingError {
        let mut settings = self.table.settings.iter();
        let span = settings.find(|setting| setting.key == key);
        SettingError::WrongValue {
            span: span.map_or(0..0, |setting| setting.value.span.clone()),
            message,
        }
    }

    /// Ends the table.
    ///
    /// # Errors
    /// When it has a key that was not taken.
    pub fn finish(self) -> Result<(), SettingError> {
        let mut settings = self.table.settings.iter();
        match settings.find(|setting| !self.known.contains(&setting.key.as_str())) {
            None => Ok(()),
            Some(unknown) => Err(SettingError::UnknownKey {
                span: unknown.key_span.clone(),
                key: unknown.key.clone(),
                known: self.known,
            }),
        }
    }
}

/// Tables of the configuration for tests of accelerators.
#[cfg(test)]
pub(crate) mod testing {
    use super::{LocatedValue, SettingValue, SettingsTable, TableSetting};

    /// A table with these settings. The keys stand at the bytes 10, 20 and so on, and each value two bytes behind.
    pub(crate) fn table(settings: &[(&str, SettingValue)]) -> SettingsTable {
        let mut place = 10;
        let mut settings_at = Vec::new();
        for (key, value) in settings {
            settings_at.push(TableSetting {
                key: (*key).to_owned(),
                key_span: place..place + 1,
                value: LocatedValue {
                    value: value.clone(),
                    span: place + 2..place + 3,
                },
            });
            place += 10;
        }
        SettingsTable {
            settings: settings_at,
        }
    }

    /// A value that is a text.
    pub(crate) fn text(text: &str) -> SettingValue {
        SettingValue::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{table, text};
    use super::*;

    #[test]
    fn settings_are_read_by_type() {
        let table = table(&[
            ("mode", text("strict")),
            ("age", text("250ms")),
            ("entries", SettingValue::Number(7)),
            ("shared", SettingValue::Switch(true)),
        ]);
        let mut reader = TableReader::new(&table);
        let modes = [("off", 0), ("strict", 1)];
        assert_eq!(reader.choice("mode", &modes), Ok(Some(1)));
        let age = reader.duration("age", Duration::from_secs(1), "no");
        assert_eq!(age, Ok(Some(Duration::from_millis(250))));
        assert_eq!(reader.number("entries", 1..=9), Ok(Some(7)));
        assert_eq!(reader.switch("shared"), Ok(Some(true)));
        assert_eq!(reader.switch("absent"), Ok(None));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn lists_are_read_by_member() {
        let member = |text: &str, at| LocatedValue {
            value: SettingValue::Text(text.to_owned()),
            span: at..at + 1,
        };
        let members = vec![member("1s", 20), member("x", 25)];
        let table = table(&[("spans", SettingValue::List(members)), ("one", text("1s"))]);
        let mut reader = TableReader::new(&table);
        let error = reader.list("spans", vocab::parse_duration).unwrap_err();
        assert_eq!(error.span(), 25..26);
        let words = reader.list("spans", |text| Ok::<_, String>(text.to_owned()));
        assert_eq!(words.unwrap().unwrap(), ["1s", "x"]);
        assert_eq!(reader.list("absent", vocab::parse_duration), Ok(None));
        assert!(reader.list("one", vocab::parse_duration).is_err());
    }

    #[test]
    fn errors_locate_the_value_and_its_correction() {
        let table = table(&[("mode", text("fast")), ("age", text("2s"))]);
        let mut reader = TableReader::new(&table);
        let error = reader.choice("mode", &[("off", 0), ("on", 1)]).unwrap_err();
        assert_eq!(error.span(), 12..13);
        assert!(error.to_string().contains("\"off\", \"on\""), "{error}");
        let longest = Duration::from_secs(1);
        let error = reader.duration("age", longest, "too old").unwrap_err();
        assert_eq!(error.span(), 22..23);
        assert!(
            error.to_string().contains("write \"1s\" or less"),
            "{error}"
        );
    }

    #[test]
    fn keys_that_nobody_reads_are_refused() {
        let table = table(&[("mode", text("on")), ("moed", text("on"))]);
        let mut reader = TableReader::new(&table);
        reader.text("mode").unwrap();
        let error = reader.finish().unwrap_err();
        assert_eq!(error.span(), 20..21);
        assert!(error.to_string().contains("its keys are: mode"), "{error}");
    }
}
