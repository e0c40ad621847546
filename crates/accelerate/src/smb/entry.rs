//! The accelerator's public description: its entry in the registry, and its table `[smb]`.

use std::sync::Arc;
use std::time::Duration;

use super::build;
use super::config::{ChannelPolicy, ConsistencyMode, DurablePolicy, SmbSettings};
use crate::detect::{DetectedProtocol, ProtocolDetection};
use crate::registry::{AcceleratorEntry, MovedKey};
use crate::settings::{AcceleratorSettings, ParsedSettings, SettingsTable, TableReader};
use crate::shared::{SharedState, StartContext, UnsharedState};

/// The longest allowed staleness: the time for which licences are used without confirmation from
/// the far node.
const GREATEST_STALENESS: Duration = Duration::from_secs(10);

/// SMB 2 or 3 ([MS-SMB2]).
const SMB2: DetectedProtocol = DetectedProtocol::clear("smb2");
/// SMB 1 ([MS-CIFS]).
const SMB1: DetectedProtocol = DetectedProtocol::clear("smb1");
/// SMB 3 encrypted ([MS-SMB2] §2.2.41, SMB2 TRANSFORM_HEADER).
const ENCRYPTED: DetectedProtocol = DetectedProtocol::encrypted("smb3-encrypted");

/// The accelerator in the registry.
pub static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: 1,
    name: "smb",
    ports: &[445],
    detection: Some(ProtocolDetection {
        by_port: SMB2,
        by_first_bytes: detect,
    }),
    parse,
    moved_keys: &[
        moved("smb", "smb", "mode"),
        moved("smb_relaxed_staleness", "smb", "relaxed_staleness"),
        moved("smb_channels", "smb", "channels"),
        moved("smb_store_decrypted", "smb", "store_decrypted"),
        moved("smb_resign_gmac", "smb", "resign_gmac"),
        moved("smb_accounts", "credentials", "accounts"),
        moved("smb_keytab", "credentials", "keytab"),
    ],
    uses_delegated: true,
    switch_on: Some("mode = \"strict\""),
    explain: super::reasons::explain,
};

const fn moved(was: &'static str, to: &'static str, is: &'static str) -> MovedKey {
    MovedKey {
        from: "policy",
        was,
        to,
        is,
    }
}

/// The values of `mode`.
#[derive(Clone, Copy)]
enum ModeSetting {
    Off,
    Strict,
    Relaxed,
}

const MODES: &[(&str, ModeSetting)] = &[
    ("off", ModeSetting::Off),
    ("strict", ModeSetting::Strict),
    ("relaxed", ModeSetting::Relaxed),
];

const CHANNELS: &[(&str, ChannelPolicy)] = &[
    ("several", ChannelPolicy::Several),
    ("one", ChannelPolicy::One),
];

const DURABLE: &[(&str, DurablePolicy)] = &[
    ("decline", DurablePolicy::Decline),
    ("keep", DurablePolicy::Keep),
];

/// Direct TCP transport: a zero byte and three of length ([MS-SMB2] §2.1, Transport).
fn detect(bytes: &[u8]) -> Option<DetectedProtocol> {
    match bytes {
        [0, _, _, _, 0xfe, b'S', b'M', b'B', ..] => Some(SMB2),
        [0, _, _, _, 0xff, b'S', b'M', b'B', ..] => Some(SMB1),
        [0, _, _, _, 0xfd, b'S', b'M', b'B', ..] => Some(ENCRYPTED),
        _ => None,
    }
}

fn parse(table: &SettingsTable) -> ParsedSettings {
    let mut reader = TableReader::new(table);
    let mode = reader.choice("mode", MODES)?.unwrap_or(ModeSetting::Off);
    let staleness = reader.duration(
        "relaxed_staleness",
        GREATEST_STALENESS,
        "the longest permitted value is 10 s, because clients receive attributes of this age without a \
         check at the server",
    )?;
    let settings = SmbSettings {
        consistency: match mode {
            ModeSetting::Off => ConsistencyMode::Off,
            ModeSetting::Strict => ConsistencyMode::Strict,
            ModeSetting::Relaxed => ConsistencyMode::Relaxed {
                staleness: staleness.unwrap_or(ConsistencyMode::STALENESS),
            },
        },
        accounts: None,
        keytab: None,
        may_resign_gmac: reader.switch("resign_gmac")?.unwrap_or(false),
        may_store_decrypted: reader.switch("store_decrypted")?.unwrap_or(false),
        channels: reader.choice("channels", CHANNELS)?.unwrap_or_default(),
        durable: reader.choice("durable", DURABLE)?.unwrap_or_default(),
        path_bytes: 0,
    };
    reader.finish()?;
    Ok(Arc::new(settings))
}

impl AcceleratorSettings for SmbSettings {
    fn is_on(&self) -> bool {
        self.consistency != ConsistencyMode::Off
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mode = match self.consistency {
            ConsistencyMode::Off => "off",
            ConsistencyMode::Strict => "strict",
            ConsistencyMode::Relaxed { .. } => "relaxed",
        };
        let mut lines = vec![("mode", format!("{mode:?}"))];
        if let ConsistencyMode::Relaxed { staleness } = self.consistency {
            let staleness = vocab::format_duration(staleness);
            lines.push(("relaxed_staleness", format!("{staleness:?}")));
        }
        let channels = match self.channels {
            ChannelPolicy::Several => "several",
            ChannelPolicy::One => "one",
        };
        lines.push(("channels", format!("{channels:?}")));
        let durable = match self.durable {
            DurablePolicy::Decline => "decline",
            DurablePolicy::Keep => "keep",
        };
        lines.push(("durable", format!("{durable:?}")));
        lines.push(("store_decrypted", self.may_store_decrypted.to_string()));
        lines.push(("resign_gmac", self.may_resign_gmac.to_string()));
        lines
    }

    fn remarks(&self, delegates: bool) -> Vec<String> {
        if self.channels != ChannelPolicy::One {
            return Vec::new();
        }
        let needs = match (self.is_on(), delegates) {
            (false, _) => "mode = \"strict\"",
            (true, false) => {
                "accounts or keytab in [credentials], because the node can do this only in sessions whose key it knows"
            }
            (true, true) => return Vec::new(),
        };
        vec![format!("channels = \"one\" has no effect without {needs}")]
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        let build: crate::shared::BuildHalf<Self> = |settings, half, context| {
            let settings = Self {
                accounts: context.delegated.accounts,
                keytab: context.delegated.keytab,
                path_bytes: context.path_bytes,
                ..settings.clone()
            };
            build(half, settings, context.random)
        };
        Box::new(UnsharedState::new(self.clone(), build))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingValue;
    use crate::settings::testing::{table, text};

    fn parsed(settings: &[(&str, SettingValue)]) -> ParsedSettings {
        parse(&table(settings))
    }

    #[test]
    fn first_bytes_tell_the_version_and_encryption() {
        let by_first_bytes = |bytes: &[u8]| crate::detect::by_first_bytes(&[&ENTRY], bytes);
        assert_eq!(by_first_bytes(b"\0\0\x01\x00\xfeSMB@\0"), Some(SMB2));
        assert_eq!(by_first_bytes(b"\0\0\x01\x00\xffSMBr\0"), Some(SMB1));
        let encrypted = by_first_bytes(b"\0\0\x01\x00\xfdSMB@\0");
        assert!(encrypted.is_some_and(|protocol| protocol.is_encrypted));
        assert_eq!(crate::detect::by_port(&[&ENTRY], 445), SMB2);
    }

    #[test]
    fn settings_are_printed_as_they_are_written() {
        let settings = parsed(&[
            ("mode", text("relaxed")),
            ("relaxed_staleness", text("250ms")),
            ("channels", text("one")),
            ("durable", text("keep")),
            ("store_decrypted", SettingValue::Switch(true)),
        ]);
        let settings = settings.unwrap();
        let lines = settings.lines();
        let lines: Vec<String> = lines
            .iter()
            .map(|(key, value)| format!("{key} = {value}"))
            .collect();
        assert_eq!(
            lines,
            [
                "mode = \"relaxed\"",
                "relaxed_staleness = \"250ms\"",
                "channels = \"one\"",
                "durable = \"keep\"",
                "store_decrypted = true",
                "resign_gmac = false",
            ]
        );
        let staleness = Duration::from_millis(250);
        let expected = SmbSettings {
            consistency: ConsistencyMode::Relaxed { staleness },
            channels: ChannelPolicy::One,
            durable: DurablePolicy::Keep,
            may_store_decrypted: true,
            ..SmbSettings::default()
        };
        assert_eq!(settings.expect::<SmbSettings>(), &expected);
    }

    #[test]
    fn an_empty_table_gives_the_defaults() {
        let settings = parsed(&[]).unwrap();
        assert_eq!(settings.expect::<SmbSettings>(), &SmbSettings::default());
        assert!(!settings.is_on());
    }

    #[test]
    fn a_staleness_beyond_what_licences_hold_is_refused() {
        let error = parsed(&[("relaxed_staleness", text("11s"))]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("write \"10s\" or less"), "{error}");
    }

    #[test]
    fn useless_channel_setting_is_remarked() {
        let one = ("channels", text("one"));
        let on = ("mode", text("strict"));
        for (settings, delegates, remarks) in [
            (vec![one.clone()], true, 1),
            (vec![on.clone(), one.clone()], false, 1),
            (vec![on.clone(), one], true, 0),
            (vec![on], false, 0),
        ] {
            let settings = parsed(&settings).unwrap();
            assert_eq!(settings.remarks(delegates).len(), remarks, "{settings:?}");
        }
    }
}
