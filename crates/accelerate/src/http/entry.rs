//! The entry of HTTP in the registry, and its table `[http]`.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::config::HttpSettings;
use super::prefetch::PrefetchSettings;
use super::shared::HttpState;
use super::tls::{self, config::TlsSettings};
use crate::detect::{DetectedProtocol, ProtocolDetection};
use crate::registry::AcceleratorEntry;
use crate::settings::{
    AcceleratorSettings, ParsedSettings, SettingFile, SettingsTable, TableReader,
};
use crate::shared::{SharedState, StartContext};
use crate::{FlowOpening, ReasonCode};

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
    let tls = reader.table("tls")?.map(TlsSettings::parse).transpose()?;
    let prefetches = reader.choice("prefetch", MODES)?.unwrap_or(true);
    let excluded = reader.list("prefetch_exclude", str::parse)?;
    reader.finish()?;
    let prefetch = PrefetchSettings {
        is_on: prefetches,
        excluded: excluded.unwrap_or_default(),
    };
    Ok(Arc::new(HttpSettings {
        is_on,
        caches,
        tls: tls.map(Arc::new),
        prefetch,
    }))
}

impl AcceleratorSettings for HttpSettings {
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
        let word = |is_on| if is_on { "on" } else { "off" };
        let (mode, prefetch) = (word(self.is_on), word(self.prefetch.is_on));
        let excluded = self.prefetch.excluded.iter();
        let excluded: Vec<String> = excluded.map(ToString::to_string).collect();
        let mut lines = vec![
            ("mode", format!("{mode:?}")),
            ("cache", self.caches.to_string()),
            ("prefetch", format!("{prefetch:?}")),
            ("prefetch_exclude", format!("{excluded:?}")),
        ];
        lines.extend(self.tls.iter().flat_map(|tls| tls.lines()));
        lines
    }

    fn remarks(&self, _: bool) -> Vec<String> {
        let Some(tls) = &self.tls else {
            return Vec::new();
        };
        let mut remarks = tls.remarks();
        if !self.is_on {
            remarks.push(
                "[http.tls] has no effect, because mode is not \"on\" in [http]; write mode = \
                          \"on\" there, or remove [http.tls]"
                    .to_owned(),
            );
        }
        remarks
    }

    fn further_ports(&self) -> &[u16] {
        let tls = self.tls.as_ref();
        match tls.is_some_and(|tls| tls.intercepts()) {
            true => &[tls::config::PORT],
            false => &[],
        }
    }

    fn reason_unserved(&self, port: u16) -> Option<ReasonCode> {
        let tls = self.tls.as_ref();
        let intercepts = tls.is_some_and(|tls| tls.intercepts());
        (port == tls::config::PORT && !intercepts).then_some(super::reasons::TLS_NOT_INTERCEPTED)
    }

    fn blocked_udp_ports(&self) -> &[u16] {
        let tls = self.tls.as_ref();
        match tls.is_some_and(|tls| tls.intercepts() && tls.blocks_quic) && self.is_on {
            true => &[tls::config::PORT],
            false => &[],
        }
    }

    fn files(&self) -> Vec<SettingFile> {
        match (&self.tls, self.is_on) {
            (Some(tls), true) => tls.files(),
            _ => Vec::new(),
        }
    }

    fn with_files(
        &self,
        contents: &[Zeroizing<Vec<u8>>],
    ) -> Result<Arc<dyn AcceleratorSettings>, String> {
        let tls = self.tls.as_ref();
        let tls = tls.map(|tls| tls.with_files(contents)).transpose()?;
        Ok(Arc::new(Self {
            tls: tls.map(Arc::new),
            ..self.clone()
        }))
    }

    fn start(&self, context: StartContext) -> Box<dyn SharedState> {
        Box::new(HttpState::new(self.clone(), context))
    }
}
