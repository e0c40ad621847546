//! Pinned identities: `peers/NAME.json` in the state directory, one file each.
//!
//! Removing the file revokes the peer; a running node drops its session when it reloads.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vocab::NodeId;

use super::token::unix_seconds;
use crate::private_directory::{make_private_directory, remove_durably, write_durably};

/// The reason why a pin could not be read or written.
#[derive(Debug, Error)]
pub enum PinError {
    /// A file could not be used.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// `read`, `write` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The content of the file is not a pin.
    #[error("the pin {} is damaged ({reason}); remove the pin with `trunkline peer remove`, and pair again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The name belongs to another identity.
    #[error("the name `{name}` is already paired with another node ({}); if that node is out of use, run \
             `trunkline peer remove {name}` first", node.short())]
    Taken {
        /// The name.
        name: String,
        /// The identity that already has the pin.
        node: NodeId,
    },
    /// The identity has another name.
    #[error(
        "this node is already paired under the name `{name}`; use this name, or run `trunkline peer remove \
         {name}` first"
    )]
    KnownAs {
        /// The name it has.
        name: String,
    },
    /// The peer is unknown.
    #[error("no paired peer has the name `{name}`; `trunkline peer list` shows the paired peers")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// Not a name.
    #[error(
        "`{name}` is not a valid name for a peer; use 1 to 32 lower-case letters, digits and `-`, starting \
         with a letter"
    )]
    Name {
        /// The text.
        name: String,
    },
}

/// One pinned identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityPin {
    /// The name of the `[[peer]]` section it belongs to.
    pub name: String,
    /// The identity.
    pub node: NodeId,
    /// The time of pairing, in seconds since the Unix epoch.
    pub paired_unix_s: u64,
}

/// The content of the directory of pins.
#[derive(Debug, Default)]
pub struct LoadedPins {
    /// The pins, by name.
    pub pins: BTreeMap<String, IdentityPin>,
    /// The errors of unreadable pin files, by the names of the peers that cannot be trusted.
    pub damaged: BTreeMap<String, PinError>,
}

/// The directory of pins.
#[derive(Clone, Debug)]
pub struct PinDirectory {
    directory: PathBuf,
}

impl PinDirectory {
    /// The pins of the node whose state directory this is.
    #[must_use]
    pub fn new(state_directory: &Path) -> Self {
        Self {
            directory: state_directory.join("peers"),
        }
    }

    /// All pins by name, without those whose files cannot be read.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn load(&self) -> Result<BTreeMap<String, IdentityPin>, PinError> {
        Ok(self.load_all()?.pins)
    }

    /// Loads all pins by name, and the errors of the others. One damaged file costs one peer, and
    /// not all of them.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn load_all(&self) -> Result<LoadedPins, PinError> {
        let mut loaded = LoadedPins::default();
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(loaded),
            Err(cause) => {
                return Err(PinError::Io {
                    action: "read",
                    path: self.directory.clone(),
                    cause,
                });
            }
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                match read(&path) {
                    Ok(pin) => {
                        loaded.pins.insert(pin.name.clone(), pin);
                    }
                    Err(error) => {
                        let name = path.file_stem().unwrap_or_default();
                        let name = vocab::printable(&name.to_string_lossy());
                        loaded.damaged.insert(name, error);
                    }
                }
            }
        }
        Ok(loaded)
    }

    /// Returns true if the directory of pins exists, even if it is empty.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.directory.exists()
    }

    /// Checks that `node` may be pinned as `name`.
    ///
    /// # Errors
    /// When the name or the identity is pinned otherwise.
    pub fn check(&self, name: &str, node: Option<NodeId>) -> Result<(), PinError> {
        if !crate::config::is_name(name) {
            return Err(PinError::Name {
                name: name.to_owned(),
            });
        }
        for pin in self.load()?.into_values() {
            match (pin.name == name, Some(pin.node) == node) {
                (true, true) | (false, false) => {}
                (true, false) => {
                    return Err(PinError::Taken {
                        name: pin.name,
                        node: pin.node,
                    });
                }
                (false, true) => return Err(PinError::KnownAs { name: pin.name }),
            }
        }
        Ok(())
    }

    /// Pins `node` as `name`, durably.
    ///
    /// # Errors
    /// When the name or the identity is pinned otherwise, or the file cannot be written.
    pub fn add(&self, name: &str, node: NodeId) -> Result<IdentityPin, PinError> {
        self.check(name, Some(node))?;
        make_private_directory(&self.directory).map_err(|error| PinError::Io {
            action: "write",
            path: self.directory.clone(),
            cause: error,
        })?;
        let pin = IdentityPin {
            name: name.to_owned(),
            node,
            paired_unix_s: unix_seconds(SystemTime::now()),
        };
        let text = serde_json::to_string_pretty(&pin).expect("a pin is plain data");
        let path = self.path(name);
        write_durably(&path, text.as_bytes()).map_err(|cause| PinError::Io {
            action: "write",
            path,
            cause,
        })?;
        Ok(pin)
    }

    /// Removes a pin, durably.
    ///
    /// # Errors
    /// When there is none of that name, or the file cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), PinError> {
        if !crate::config::is_name(name) {
            return Err(PinError::Name {
                name: name.to_owned(),
            });
        }
        let path = self.path(name);
        match remove_durably(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(PinError::Unknown {
                name: name.to_owned(),
            }),
            Err(cause) => Err(PinError::Io {
                action: "remove",
                path,
                cause,
            }),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }
}

fn read(path: &Path) -> Result<IdentityPin, PinError> {
    let text = fs::read_to_string(path).map_err(|cause| PinError::Io {
        action: "read",
        path: path.to_owned(),
        cause,
    })?;
    let damaged = |reason: String| PinError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let pin: IdentityPin =
        serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    if path.file_stem().and_then(|stem| stem.to_str()) != Some(pin.name.as_str()) {
        return Err(damaged(format!("it names `{}`", pin.name)));
    }
    Ok(pin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_kept_until_it_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let pins = PinDirectory::new(state.path());
        assert!(pins.load().unwrap().is_empty());
        pins.add("far", NodeId([1; 32])).unwrap();
        pins.add("far", NodeId([1; 32])).unwrap();
        assert_eq!(pins.load().unwrap()["far"].node, NodeId([1; 32]));
        pins.remove("far").unwrap();
        assert!(matches!(pins.remove("far"), Err(PinError::Unknown { .. })));
    }

    #[test]
    fn names_and_identities_belong_together() {
        let state = tempfile::tempdir().unwrap();
        let pins = PinDirectory::new(state.path());
        pins.add("far", NodeId([1; 32])).unwrap();
        let taken = pins.add("far", NodeId([2; 32]));
        assert!(matches!(taken, Err(PinError::Taken { .. })));
        let known = pins.add("other", NodeId([1; 32]));
        assert!(matches!(known, Err(PinError::KnownAs { .. })));
        let outside = pins.add("../far", NodeId([3; 32]));
        assert!(matches!(outside, Err(PinError::Name { .. })));
    }

    #[test]
    fn damaged_pin_is_named_beside_valid_ones() {
        let state = tempfile::tempdir().unwrap();
        let pins = PinDirectory::new(state.path());
        pins.add("far", NodeId([1; 32])).unwrap();
        fs::write(state.path().join("peers/far.json"), "{").unwrap();
        pins.add("other", NodeId([2; 32])).unwrap();
        let loaded = pins.load_all().unwrap();
        assert_eq!(loaded.pins.keys().collect::<Vec<_>>(), ["other"]);
        let error = loaded.damaged["far"].to_string();
        assert!(error.contains("peers/far.json is damaged"), "{error}");
        assert_eq!(pins.load().unwrap(), loaded.pins);
        pins.remove("far").unwrap();
        assert!(pins.load_all().unwrap().damaged.is_empty());
    }
}
