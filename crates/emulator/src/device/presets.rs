//! Named device models, which were fitted to real devices.
//!
//! A preset is the text of a model file, so it can be printed, changed and run. `trunkline profile fit`
//! wrote it; the comment at its head says when, where and to which device it was fitted.

use anyhow::{Result, anyhow};
use vocab::DeviceModel;

/// A device model with a name.
#[derive(Clone, Copy, Debug)]
pub struct DevicePreset {
    /// Name for commands.
    pub name: &'static str,
    /// Title for people.
    pub title: &'static str,
    /// Text of the model file.
    pub text: &'static str,
}

/// All device presets, by rising rate.
pub const DEVICE_PRESETS: [DevicePreset; 3] = [
    DevicePreset {
        name: "linux-tbf-5",
        title: "Linux router with tbf, 5 Mbit/s",
        text: include_str!("presets/linux-tbf-5.toml"),
    },
    DevicePreset {
        name: "linux-tbf-20",
        title: "Linux router with tbf, 20 Mbit/s",
        text: include_str!("presets/linux-tbf-20.toml"),
    },
    DevicePreset {
        name: "linux-tbf-50",
        title: "Linux router with tbf, 50 Mbit/s",
        text: include_str!("presets/linux-tbf-50.toml"),
    },
];

impl DevicePreset {
    /// The model.
    ///
    /// # Errors
    /// When the text is no usable model, which a test excludes.
    pub fn model(&self) -> Result<DeviceModel> {
        toml::from_str(self.text).map_err(|error| anyhow!("preset {}: {error}", self.name))
    }
}

/// The device preset of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static DevicePreset> {
    DEVICE_PRESETS.iter().find(|preset| preset.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_model_with_its_origin() {
        for preset in &DEVICE_PRESETS {
            preset.model().unwrap();
            let head = preset.text.lines().next().unwrap();
            assert!(
                head.starts_with("# Fitted on 20"),
                "{}: {head}",
                preset.name
            );
        }
    }
}
