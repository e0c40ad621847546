//! Order in which kernel modules are loaded, from the dependencies that each module names itself.
//!
//! The package of a kernel has no modules.dep, which depmod(8) makes at its installation. It is made
//! from the same `depends=` entries of the modules' `.modinfo` sections.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Entry of a module's `.modinfo` section that names the modules it needs, separated by commas.
const DEPENDS: &[u8] = b"\0depends=";

/// Paths of the modules below a directory, by name; a name has underscores in place of hyphens.
pub(super) fn modules_below(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let entries =
            fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ko")
                && let Some(name) = path.file_stem().and_then(|name| name.to_str())
            {
                found.insert(name.replace('-', "_"), path);
            }
        }
    }
    Ok(found)
}

/// The modules with all that they depend on, each after those that it needs.
///
/// # Errors
/// Fails when a module is missing or cannot be read.
pub(super) fn load_order(
    wanted: &[&str],
    modules: &BTreeMap<String, PathBuf>,
) -> Result<Vec<String>> {
    let mut order = Vec::new();
    for name in wanted {
        add(name, modules, &mut order)?;
    }
    Ok(order)
}

fn add(name: &str, modules: &BTreeMap<String, PathBuf>, order: &mut Vec<String>) -> Result<()> {
    if order.iter().any(|known| known == name) {
        return Ok(());
    }
    let path = modules
        .get(name)
        .with_context(|| format!("the kernel's package has no module {name}"))?;
    let content = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    for needed in dependencies(&content) {
        add(&needed, modules, order)?;
    }
    order.push(name.to_owned());
    Ok(())
}

/// Modules that a module's content names as its dependencies.
fn dependencies(content: &[u8]) -> Vec<String> {
    let entry = content
        .windows(DEPENDS.len())
        .position(|window| window == DEPENDS)
        .map(|at| &content[at + DEPENDS.len()..]);
    let names = entry.and_then(|rest| rest.split(|byte| *byte == 0).next());
    String::from_utf8_lossy(names.unwrap_or_default())
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("fs");
        fs::create_dir(&inner).unwrap();
        for (name, depends) in [
            ("client", "netfs,the-hash"),
            ("netfs", "the-hash"),
            ("the-hash", ""),
            ("other", ""),
        ] {
            let content = format!("\u{7f}ELF\0license=GPL\0depends={depends}\0name={name}\0");
            fs::write(inner.join(format!("{name}.ko")), content).unwrap();
        }
        let modules = modules_below(directory.path()).unwrap();
        let order = load_order(&["client", "netfs"], &modules).unwrap();
        assert_eq!(order, ["the_hash", "netfs", "client"]);
        let error = load_order(&["absent"], &modules).unwrap_err();
        assert!(error.to_string().contains("absent"));
    }
}
