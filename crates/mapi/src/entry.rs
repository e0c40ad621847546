//! The entry of MAPI in the registry, and its table `[mapi]`.

use std::sync::Arc;

use accelerate::detect::{DetectedProtocol, ProtocolDetection};
use accelerate::registry::AcceleratorEntry;
use accelerate::settings::{
    AcceleratorSettings, LocatedValue, ParsedSettings, SettingError, SettingValue, SettingsTable,
    TableReader,
};
use accelerate::shared::{SharedState, StartContext};

use crate::config::{MapiSettings, PORTS_MAX};
use crate::rpc::pdu::PduHeader;
use crate::shared::MapiState;

/// The accelerator in the registry.
pub static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: 3,
    name: "mapi",
    ports: &[ENDPOINT_MAPPER],
    detection: Some(ProtocolDetection {
        by_port: DCE_RPC,
        by_first_bytes: detect,
    }),
    parse,
    moved_keys: &[],
    uses_delegated: true,
    switch_on: Some("mode = \"on\""),
    explain: crate::reasons::explain,
};

/// The port of the endpoint mapper ([MS-RPCE] §2.1.1.1, TCP/IP).
pub(crate) const ENDPOINT_MAPPER: u16 = 135;

/// The protocol below MAPI, which others use as well.
const DCE_RPC: DetectedProtocol = DetectedProtocol::clear("dcerpc");

const MODES: &[(&str, bool)] = &[("off", false), ("on", true)];

/// The first PDU of an association.
fn detect(bytes: &[u8]) -> Option<DetectedProtocol> {
    let header = PduHeader::parse(bytes).ok()?;
    header.opens_association().then_some(DCE_RPC)
}

fn parse(table: &SettingsTable) -> ParsedSettings {
    let mut reader = TableReader::new(table);
    let is_on = reader.choice("mode", MODES)?.unwrap_or(false);
    let ports = self::ports(&mut reader, "ports")?;
    let http_ports = self::ports(&mut reader, "http_ports")?;
    let may_store_decrypted = reader.switch("store_decrypted")?.unwrap_or(false);
    reader.finish()?;
    Ok(Arc::new(MapiSettings {
        is_on,
        ports,
        http_ports,
        may_store_decrypted,
    }))
}

/// The list of ports, if it is set.
fn ports(reader: &mut TableReader<'_>, key: &'static str) -> Result<Vec<u16>, SettingError> {
    let Some(located) = reader.value(key) else {
        return Ok(Vec::new());
    };
    let port = |member: &LocatedValue| match member.value {
        SettingValue::Number(number) => u16::try_from(number).ok().filter(|port| *port != 0),
        SettingValue::Text(_)
        | SettingValue::Switch(_)
        | SettingValue::List(_)
        | SettingValue::Table(_)
        | SettingValue::Other(_) => None,
    };
    let ports = match &located.value {
        SettingValue::List(members) if members.len() <= PORTS_MAX => {
            members.iter().map(port).collect()
        }
        SettingValue::List(_)
        | SettingValue::Text(_)
        | SettingValue::Number(_)
        | SettingValue::Switch(_)
        | SettingValue::Table(_)
        | SettingValue::Other(_) => None,
    };
    let message = || {
        format!(
            "`{key}` must be a list of at most {PORTS_MAX} port numbers; write a list such as [6001, 6002]"
        )
    };
    ports.ok_or_else(|| reader.wrong(key, message()))
}

impl AcceleratorSettings for MapiSettings {
    fn is_on(&self) -> bool {
        self.is_on
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mode = if self.is_on { "on" } else { "off" };
        vec![
            ("mode", format!("{mode:?}")),
            ("ports", format!("{:?}", self.ports)),
            ("http_ports", format!("{:?}", self.http_ports)),
            ("store_decrypted", self.may_store_decrypted.to_string()),
        ]
    }

    fn further_ports(&self) -> &[u16] {
        &self.ports
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(MapiState::new(self.clone()))
    }
}
