//! Rules for the names of types and for the first word of doc comments (docs/decisions/0065).
//!
//! A definition is found by its line: visibility, then `struct`, `enum`, `union`, `trait` or `type`, then
//! the name. An indented `type` is taken for an associated type, which has its name from its trait.

use std::collections::BTreeMap;

use anyhow::Result;

use super::files::{Checkout, TextFile};

/// Names that say nothing without the file around them, and the kind of name to use.
const REFUSED_NAMES: [(&str, &str); 14] = [
    ("Because", "a reason"),
    ("Chance", "a probability, or a source of random numbers"),
    ("Coming", "what is pending or incoming"),
    ("Doomed", "what failed"),
    ("LeftAlone", "what is bypassed"),
    ("Misfortune", "an impairment"),
    ("Misfortunes", "impairments"),
    ("Narrowness", "what is detected or limited"),
    ("Of", "a kind or a key"),
    ("Thing", "what it is"),
    ("Told", "a report, a reply or a setting"),
    ("Way", "a direction"),
    ("Ways", "a direction"),
    ("What", "a part or a kind"),
];

/// The share of a crate's type names that may be defined more than once, in percent.
const DEFINED_TWICE_MAX_PERCENT: usize = 5;

/// The share of a crate's type names that may be one word, in percent.
const ONE_WORD_MAX_PERCENT: usize = 30;

/// The share of a crate's doc comments that may begin with one of [`WEAK_FIRST_WORDS`], in percent.
const WEAK_DOC_COMMENTS_MAX_PERCENT: usize = 3;

/// First words of a doc comment that has no subject.
const WEAK_FIRST_WORDS: [&str; 5] = ["What", "Whether", "Of", "That", "Which"];

/// Refuses type names that are riddles.
pub(crate) fn type_names_say_their_role(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in checkout.rust_files() {
        for (number, name) in types_defined(file) {
            if let Some((_, hint)) = REFUSED_NAMES.iter().find(|(refused, _)| *refused == name) {
                complaints.push(format!(
                    "{}:{number}: `{name}` does not say what the type is; name {hint}, with its role",
                    file.path
                ));
            }
        }
    }
    Ok(complaints)
}

/// Limits how many type names of a crate are one word, or are defined more than once.
pub(crate) fn few_type_names_are_one_word_or_twice_defined(
    checkout: &Checkout,
) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for name in checkout.crates() {
        let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for file in files_of_crate(checkout, name) {
            for (number, defined) in types_defined(file) {
                let place = format!("{}:{number}", file.path);
                places.entry(defined).or_default().push(place);
            }
        }
        let twice: Vec<&str> = places
            .iter()
            .filter(|(_, places)| places.len() > 1)
            .map(|(name, _)| *name)
            .collect();
        if exceeds(twice.len(), places.len(), DEFINED_TWICE_MAX_PERCENT) {
            complaints.push(format!(
                "crates/{name}: {} of {} type names are defined more than once: {}",
                twice.len(),
                places.len(),
                twice.join(", ")
            ));
        }
        let one_word: Vec<&str> = places
            .keys()
            .copied()
            .filter(|name| is_one_word(name))
            .collect();
        if exceeds(one_word.len(), places.len(), ONE_WORD_MAX_PERCENT) {
            complaints.push(format!(
                "crates/{name}: {} of {} type names are one word, without their role: {}",
                one_word.len(),
                places.len(),
                one_word.join(", ")
            ));
        }
    }
    Ok(complaints)
}

/// Limits how many doc comments of a crate begin without their subject.
pub(crate) fn doc_comments_begin_with_their_subject(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for name in checkout.crates() {
        let mut count = 0;
        let mut weak = Vec::new();
        for file in files_of_crate(checkout, name) {
            for (number, first_line) in doc_comments(file) {
                count += 1;
                let first_word = first_line.split(|c: char| !c.is_alphanumeric()).next();
                if first_word.is_some_and(|word| WEAK_FIRST_WORDS.contains(&word)) {
                    weak.push(format!("{}:{number}", file.path));
                }
            }
        }
        if exceeds(weak.len(), count, WEAK_DOC_COMMENTS_MAX_PERCENT) {
            complaints.push(format!(
                "crates/{name}: {} of {count} doc comments begin with {}; begin with the subject. The first: {}",
                weak.len(),
                WEAK_FIRST_WORDS.join("/"),
                weak[0]
            ));
        }
    }
    Ok(complaints)
}

/// Whether `part` is more than `percent` of `whole`. A single one is always allowed.
fn exceeds(part: usize, whole: usize, percent: usize) -> bool {
    part > 1 && part * 100 > whole * percent
}

fn files_of_crate<'a>(checkout: &'a Checkout, name: &str) -> impl Iterator<Item = &'a TextFile> {
    let folder = format!("crates/{name}/");
    checkout
        .rust_files()
        .filter(move |file| file.path.starts_with(&folder))
}

/// Names of the types that a file defines, with their line numbers from 1.
fn types_defined(file: &TextFile) -> impl Iterator<Item = (usize, &str)> {
    let lines = file.text.lines().enumerate();
    lines.filter_map(|(index, line)| Some((index + 1, type_defined(line)?)))
}

/// The name of the type that a line defines.
fn type_defined(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(restricted) => restricted.split_once(')')?.1,
            None => after,
        }
        .trim_start();
    }
    let (keyword, after) = rest.split_once(' ')?;
    let is_associated = keyword == "type" && line.starts_with(' ');
    if is_associated || !["struct", "enum", "union", "trait", "type"].contains(&keyword) {
        return None;
    }
    let end = after
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(after.len());
    let name = &after[..end];
    name.starts_with(|c: char| c.is_ascii_uppercase())
        .then_some(name)
}

/// Whether a name in camel case is a single word. Digits after a letter begin no word.
fn is_one_word(name: &str) -> bool {
    let mut earlier = 'A';
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !earlier.is_ascii_uppercase() {
            return false;
        }
        earlier = letter;
    }
    true
}

/// The first line of each doc comment, without its slashes, with its line number from 1.
fn doc_comments(file: &TextFile) -> impl Iterator<Item = (usize, &str)> {
    let mut was_in_comment = false;
    file.text
        .lines()
        .enumerate()
        .filter_map(move |(index, line)| {
            let line = line.trim_start();
            let text = line
                .strip_prefix("///")
                .or_else(|| line.strip_prefix("//!"));
            let is_first = text.is_some() && !was_in_comment;
            was_in_comment = text.is_some();
            is_first.then(|| (index + 1, text.unwrap_or_default().trim_start()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> TextFile {
        TextFile {
            path: "crates/one/src/lib.rs".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn definitions_are_found_by_line() {
        let text = file(
            "//! A.\n/// B.\npub(crate) struct PendingListing<T> {\n    type Item = u8;\n}\nuse a::Way;\n",
        );
        let found: Vec<_> = types_defined(&text).collect();
        assert_eq!(found, [(3, "PendingListing")]);
    }

    #[test]
    fn one_word_names_are_told_from_others() {
        assert!(is_one_word("Told") && is_one_word("MTU") && is_one_word("Bmi2"));
        assert!(!is_one_word("PathState") && !is_one_word("MtuProbe") && !is_one_word("Smb2Frame"));
    }

    #[test]
    fn only_the_first_line_counts() {
        let text = file("//! A thing.\n//! What it does.\n\n/// What is sent.\nfn f() {}\n");
        let found: Vec<_> = doc_comments(&text).collect();
        assert_eq!(found, [(1, "A thing."), (4, "What is sent.")]);
    }

    #[test]
    fn refused_names_and_shares_are_reported() {
        let mut text = String::from(
            "//! A.\n\n/// What it is.\nstruct Way;\n/// Of it.\nstruct Told;\nstruct Told;\nstruct Way;\n",
        );
        text.push_str("/// It is fine.\nstruct FileState;\n");
        let checkout = Checkout {
            root: std::path::PathBuf::new(),
            files: vec![
                file(&text),
                TextFile {
                    path: "crates/one/Cargo.toml".to_owned(),
                    text: String::new(),
                },
            ],
        };
        assert_eq!(type_names_say_their_role(&checkout).unwrap().len(), 4);
        let shares = few_type_names_are_one_word_or_twice_defined(&checkout).unwrap();
        assert_eq!(shares.len(), 2, "{shares:?}");
        let comments = doc_comments_begin_with_their_subject(&checkout).unwrap();
        assert_eq!(comments.len(), 1, "{comments:?}");
    }
}
