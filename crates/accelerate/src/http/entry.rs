//! The entry of HTTP in the registry, and its table `[http]`.

use std::sync::Arc;

use super::config::Settings;
use super::shared::HttpState;
use crate::FlowOpening;
use crate::detect::{DetectedProtocol, ProtocolDetection};
use crate::registry::AcceleratorEntry;
use crate::settings::{AcceleratorSettings, ParsedSettings, SettingsTable, TableReader};
use crate::shared::{SharedState, StartContext};

/// The accelerator in the registry.
pub static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: 2,
    name: "http",
    ports: &[80],
    detection: Some(ProtocolDetection {
        by_port: DetectedProtocol::HTTP,
        by_first_bytes: detect,
    }),
    parse,
    moved_keys: &[],
    uses_delegated: false,
    switch_on: Some("mode = \"on\""),
    explain: super::reasons::explain,
};

const MODES: &[(&str, bool)] = &[("off", false), ("on", true)];

/// A request line's method, or a response's version.
fn detect(bytes: &[u8]) -> Option<DetectedProtocol> {
    const BEGINNINGS: [&[u8]; 9] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"TRACE ",
        b"HTTP/1.",
    ];
    let mut beginnings = BEGINNINGS.iter();
    let is_http = beginnings.any(|beginning| bytes.starts_with(beginning));
    is_http.then_some(DetectedProtocol::HTTP)
}

fn parse(table: &SettingsTable) -> ParsedSettings {
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

    fn opening(&self) -> FlowOpening {
        // What is answered here opens no flow.
        match self.caches {
            true => FlowOpening::ByNearHalf,
            false => FlowOpening::AtOnce,
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mode = if self.is_on { "on" } else { "off" };
        vec![
            ("mode", format!("{mode:?}")),
            ("cache", self.caches.to_string()),
        ]
    }

    fn start(&self, context: StartContext) -> Box<dyn SharedState> {
        Box::new(HttpState::new(*self, &context))
    }
}
