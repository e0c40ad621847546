//! What others know of this accelerator: its entry in the registry, and its table `[http]`.

use std::sync::Arc;

use super::config::Settings;
use super::shared::HttpState;
use crate::Opening;
use crate::registry::Entry;
use crate::settings::{AcceleratorSettings, Parsed, Table, TableReader};
use crate::shared::{SharedState, StartContext};

/// The accelerator in the registry.
pub static ENTRY: Entry = Entry {
    number: 2,
    name: "http",
    ports: &[80],
    parse,
    moved_keys: &[],
    uses_delegated: false,
    switch_on: Some("mode = \"on\""),
    explain: super::reasons::explain,
};

const MODES: &[(&str, bool)] = &[("off", false), ("on", true)];

fn parse(table: &Table) -> Parsed {
    let mut reader = TableReader::new(table);
    let is_on = reader.choice("mode", MODES)?.unwrap_or(false);
    let caches = reader.switch("cache")?.unwrap_or(true);
    reader.finish()?;
    Ok(Arc::new(Settings { is_on, caches }))
}

impl AcceleratorSettings for Settings {
    fn is_on(&self) -> bool {
        self.is_on
    }

    fn opening(&self) -> Opening {
        // What is answered here opens no flow.
        match self.caches {
            true => Opening::ByNearHalf,
            false => Opening::AtOnce,
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mode = if self.is_on { "on" } else { "off" };
        vec![
            ("mode", format!("{mode:?}")),
            ("cache", self.caches.to_string()),
        ]
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(HttpState::new(*self))
    }
}
