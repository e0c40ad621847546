//! Rules for Rust files, and for text that must not carry one machine's traces.

use anyhow::Result;

use super::files::{Checkout, TextFile};

/// Lint allowances in one file past which the lint or the file is wrong.
const MOST_ALLOWANCES: usize = 8;

/// Marks of unfinished work, put together here so that this file does not hold them.
const LEFT_OVER: [&str; 6] = [
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("TO", "DO:"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
];

/// Folders that exist on a developer's machine and on nobody else's.
const OWN_FOLDERS: [&str; 3] = ["/home/", "/root/", "/Users/"];

/// Where no accelerator's protocol may be named. What such code needs to know of a protocol, the
/// accelerator says through its registry entry.
const NEUTRAL_FOLDERS: [&str; 2] = ["crates/engine/src/", "crates/accelerate/src/contract/"];

/// The list of accelerators, which names them and nothing else.
const ACCELERATOR_LIST: &str = "crates/engine/src/accelerators.rs";

/// Names of protocols in lower case. HTTP is missing, because the engine knows the proxy's method
/// `CONNECT` by its name.
const PROTOCOL_NAMES: [&str; 4] = ["smb", "cifs", "mapi", "nfs"];

/// Every Rust file opens with `//!`: what it is for comes before how it does it.
pub(crate) fn files_open_with_their_purpose(checkout: &Checkout) -> Result<Vec<String>> {
    Ok(checkout
        .rust_files()
        .filter(|file| !file.text.starts_with("//!"))
        .map(|file| {
            format!(
                "{}:1: opens without `//!`; say what the file is for, how it works and what it does not do",
                file.path
            )
        })
        .collect())
}

/// No marks of unfinished work in code.
pub(crate) fn nothing_is_left_over(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in checkout.rust_files() {
        for (number, line) in numbered_lines(file) {
            for mark in LEFT_OVER.iter().filter(|mark| line.contains(**mark)) {
                complaints.push(format!(
                    "{}:{number}: {mark} is left over; finish it or open an issue",
                    file.path
                ));
            }
        }
    }
    Ok(complaints)
}

/// The engine and the contract of accelerators name no protocol.
pub(crate) fn neutral_code_names_no_protocol(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    let neutral = checkout.rust_files().filter(|file| {
        let path = file.path.as_str();
        NEUTRAL_FOLDERS
            .iter()
            .any(|folder| path.starts_with(folder))
            && path != ACCELERATOR_LIST
    });
    for file in neutral {
        for (number, line) in numbered_lines(file) {
            let line = line.to_lowercase();
            for name in PROTOCOL_NAMES.iter().filter(|name| line.contains(**name)) {
                complaints.push(format!(
                    "{}:{number}: names the protocol {name}; let its accelerator say this through its registry entry",
                    file.path
                ));
            }
        }
    }
    Ok(complaints)
}

/// No path that only one developer's machine has.
pub(crate) fn no_place_of_one_machine(checkout: &Checkout) -> Result<Vec<String>> {
    const ENDINGS: [&str; 8] = [
        ".rs", ".toml", ".md", ".sh", ".yml", ".service", "Makefile", "run",
    ];
    let mut complaints = Vec::new();
    for file in checkout.files.iter().filter(|file| file.ends_in(&ENDINGS)) {
        if file.path == "xtask/src/tidy/source.rs" {
            continue;
        }
        for (number, line) in numbered_lines(file) {
            if OWN_FOLDERS.iter().any(|folder| holds_path(line, folder)) {
                complaints.push(format!(
                    "{}:{number}: names a folder of one machine; take it from the environment or make it relative",
                    file.path
                ));
            }
        }
    }
    Ok(complaints)
}

/// `#[allow]` is an exception with a reason; many of them in one file are a habit.
pub(crate) fn long_lists_of_allowances_do_not_grow(checkout: &Checkout) -> Result<Vec<String>> {
    Ok(checkout
        .rust_files()
        .filter_map(|file| {
            let count = file
                .text
                .lines()
                .filter(|line| line.trim_start().starts_with("#[allow("))
                .count();
            (count > MOST_ALLOWANCES).then(|| {
                format!(
                    "{}: {count} lints are allowed in this file; mend the code or the lint",
                    file.path
                )
            })
        })
        .collect())
}

/// Whether `line` holds an absolute path that begins with `folder`.
fn holds_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        before.is_none_or(|character| !is_path_character(character))
            && after.is_some_and(is_path_character)
    })
}

fn is_path_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._-~$}{".contains(character)
}

fn numbered_lines(file: &TextFile) -> impl Iterator<Item = (usize, &str)> {
    file.text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout(path: &str, text: &str) -> Checkout {
        Checkout {
            root: ".".into(),
            files: vec![TextFile {
                path: path.to_owned(),
                text: text.to_owned(),
            }],
        }
    }

    #[test]
    fn a_file_without_a_head_is_named() {
        let bare = checkout("a.rs", "use std::fmt;\n");
        let complaints = files_open_with_their_purpose(&bare).expect("no reading");
        assert!(complaints[0].starts_with("a.rs:1:"), "{complaints:?}");
        let good = checkout("a.rs", "//! What for.\n");
        assert!(
            files_open_with_their_purpose(&good)
                .expect("no reading")
                .is_empty()
        );
    }

    #[test]
    fn left_over_marks_are_found_with_their_line() {
        let text = format!("//! Good.\n\nfn later() {{ {}) }}\n", LEFT_OVER[3]);
        let complaints = nothing_is_left_over(&checkout("a.rs", &text)).expect("no reading");
        assert!(complaints[0].starts_with("a.rs:3:"), "{complaints:?}");
    }

    #[test]
    fn a_protocol_is_named_in_its_own_folder_only() {
        let text = "//! Good.\n\nconst NAME: &str = \"SMB\";\n";
        let complaints = neutral_code_names_no_protocol(&checkout("crates/engine/src/a.rs", text));
        let complaints = complaints.expect("no reading");
        assert!(
            complaints[0].starts_with("crates/engine/src/a.rs:3:"),
            "{complaints:?}"
        );
        let own = checkout("crates/accelerate/src/smb/a.rs", text);
        let complaints = neutral_code_names_no_protocol(&own).expect("no reading");
        assert_eq!(complaints, Vec::<String>::new());
    }

    #[test]
    fn only_absolute_paths_count_as_places() {
        assert!(holds_path("cd /home/maria/trunkline", "/home/"));
        assert!(!holds_path("cd $HOME/home/maria", "/home/"));
        assert!(!holds_path("the /home/ folder", "/home/"));
    }
}
