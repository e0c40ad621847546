//! Rules for what people read: links, decision notes, the map of crates, the fuzz targets.

use std::path::Path;

use anyhow::Result;

use super::files::Checkout;

/// What every decision note answers.
const DECISION_HEADINGS: [&str; 4] = [
    "## Context",
    "## Decision",
    "## Alternatives",
    "## Consequences",
];

/// Relative links in Markdown lead to a file, and to a heading in it where they name one.
pub(crate) fn links_lead_somewhere(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in checkout.files.iter().filter(|file| file.ends_in(&[".md"])) {
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        for (at, line) in file.text.lines().enumerate() {
            for link in links(line) {
                if link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                let (target, heading) = link.split_once('#').unwrap_or((link, ""));
                let path = if target.is_empty() {
                    file.path.clone()
                } else {
                    flattened(&folder.join(target))
                };
                if !checkout.exists(&path) {
                    complaints.push(format!("{}:{}: {link} leads nowhere", file.path, at + 1));
                    continue;
                }
                let lost = !heading.is_empty()
                    && checkout
                        .file(&path)
                        .is_some_and(|page| !headings(&page.text).any(|name| name == heading));
                if lost {
                    complaints.push(format!(
                        "{}:{}: {path} has no heading #{heading}",
                        file.path,
                        at + 1
                    ));
                }
            }
        }
    }
    Ok(complaints)
}

/// Decision notes are numbered once each and say context, choice, alternatives and cost.
pub(crate) fn decisions_are_complete(checkout: &Checkout) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for file in &checkout.files {
        let Some(name) = file.path.strip_prefix("docs/decisions/") else {
            continue;
        };
        let number = name.get(..4).unwrap_or("");
        if number.len() != 4 || !number.chars().all(|digit| digit.is_ascii_digit()) {
            complaints.push(format!("{}: its name begins with four digits", file.path));
            continue;
        }
        if seen.contains(&number) {
            complaints.push(format!(
                "{}: another decision has the number {number}",
                file.path
            ));
        }
        seen.push(number);
        // The files come in order.
        if number.parse() != Ok(seen.len()) {
            complaints.push(format!(
                "{}: the decision before it does not have the number before; leave no hole",
                file.path
            ));
        }
        for heading in DECISION_HEADINGS {
            if !file.text.lines().any(|line| line.starts_with(heading)) {
                complaints.push(format!("{}: has no heading `{heading}`", file.path));
            }
        }
    }
    Ok(complaints)
}

/// ARCHITECTURE.md's map has a place for every crate, and for none that does not exist.
pub(crate) fn the_map_names_every_crate(checkout: &Checkout) -> Result<Vec<String>> {
    let Some(map) = checkout.file("ARCHITECTURE.md") else {
        return Ok(vec!["ARCHITECTURE.md: missing".to_owned()]);
    };
    let mapped: Vec<&str> = map
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("### `crates/")?.strip_suffix('`'))
        .collect();
    let crates = checkout.crates();
    let unmapped = crates
        .iter()
        .filter(|name| !mapped.contains(name))
        .map(|name| format!("ARCHITECTURE.md: no section \"### `crates/{name}`\""));
    let gone = mapped
        .iter()
        .filter(|name| !crates.contains(name))
        .map(|name| format!("ARCHITECTURE.md: crates/{name} does not exist"));
    Ok(unmapped.chain(gone).collect())
}

/// Each fuzz target has a corpus that the ordinary tests replay.
pub(crate) fn fuzz_targets_have_a_corpus(checkout: &Checkout) -> Result<Vec<String>> {
    Ok(checkout
        .files
        .iter()
        .filter_map(|file| {
            file.path
                .strip_prefix("fuzz/fuzz_targets/")?
                .strip_suffix(".rs")
        })
        .filter(|name| !checkout.exists(&format!("fuzz/corpus/{name}")))
        .map(|name| format!("fuzz/corpus/{name}: missing; a target starts from good messages"))
        .collect())
}

/// Targets of `[text](target)` in a line; code in backquotes is not looked at.
fn links(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    // Every second piece between backquotes is code; a link whose text is code still has its
    // brackets outside of it.
    for prose in line.split('`').step_by(2) {
        let mut rest = prose;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, behind)) = after.split_once(')') else {
                break;
            };
            found.push(target);
            rest = behind;
        }
    }
    found
}

/// Anchors of the headings in a page, as GitHub makes them.
fn headings(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .chars()
                .filter_map(|character| match character {
                    ' ' => Some('-'),
                    '-' | '_' => Some(character),
                    other if other.is_alphanumeric() => Some(other.to_ascii_lowercase()),
                    _punctuation => None,
                })
                .collect()
        })
}

/// The path with its `.` and `..` worked out.
fn flattened(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|part| part.to_str()) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::files::TextFile;
    use super::*;

    fn page(path: &str, text: &str) -> Checkout {
        Checkout {
            root: "/nonexistent".into(),
            files: vec![TextFile {
                path: path.to_owned(),
                text: text.to_owned(),
            }],
        }
    }

    #[test]
    fn links_are_found_in_prose_and_not_in_code() {
        assert_eq!(links("see [a](b.md) and [c](d.md#e)"), ["b.md", "d.md#e"]);
        assert_eq!(links("[`vocab`](crates/vocab)"), ["crates/vocab"]);
        assert!(links("`links[0](x)`").is_empty());
    }

    #[test]
    fn a_link_to_nothing_is_named_with_its_line() {
        let complaints =
            links_lead_somewhere(&page("docs/a.md", "\n[b](../b.md)\n")).expect("no reading");
        assert_eq!(complaints, ["docs/a.md:2: ../b.md leads nowhere"]);
    }

    #[test]
    fn anchors_are_those_of_the_rendered_page() {
        let text = "# Way of a byte\n## What *must* hold?\n";
        let anchors: Vec<String> = headings(text).collect();
        assert_eq!(anchors, ["way-of-a-byte", "what-must-hold"]);
    }

    #[test]
    fn a_decision_without_its_cost_is_named() {
        let text = "# x\n## Context\n## Decision\n## Alternatives\n";
        let complaints =
            decisions_are_complete(&page("docs/decisions/0001-x.md", text)).expect("no reading");
        assert_eq!(
            complaints,
            ["docs/decisions/0001-x.md: has no heading `## Consequences`"]
        );
    }

    #[test]
    fn the_map_and_the_crates_must_agree() {
        let complaints =
            the_map_names_every_crate(&page("ARCHITECTURE.md", "### `crates/ghost`\n"))
                .expect("no reading");
        assert_eq!(complaints, ["ARCHITECTURE.md: crates/ghost does not exist"]);
    }
}
