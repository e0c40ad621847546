//! Plan of a campaign in TOML (docs/guides/campaigns.md).
//!
//! ```toml
//! title = "My sites"
//!
//! [[link]]
//! name = "branch"
//! settings = "rate=10Mbit,delay=20ms"
//! document = "10MB"
//!
//! [[group]]
//! protocol = "HTTP"
//! workload = "http-download"
//! links = ["branch"]
//! modes = ["baseline", "transport", "application"]
//! ```
//! An error names the line, the key and the remedy.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml::Spanned;
use vocab::{ByteCount, Probability, duration_text, parse_duration};

use crate::campaign::LabLink;
use crate::report::published;
use crate::workload::WorkloadKind;

/// The greatest number of repeats; a hundred repeats of a small plan take days.
const REPEATS_MOST: u32 = 100;
/// The greatest number of links, and of groups.
const ENTRIES_MOST: usize = 200;
/// The greatest number of cells of a plan.
pub(super) const CELLS_MOST: usize = 20_000;
/// The largest document; a random file of it is in memory while its cell runs.
const DOCUMENT_MOST: u64 = 1 << 30;
/// Bounds of the time that a cell transfers.
const SPAN_BOUNDS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3600));
/// The longest warm-up.
const WARM_UP_MOST: Duration = Duration::from_secs(60);
/// The longest one-way delay that the emulator is certified for, with room.
const DELAY_MOST: Duration = Duration::from_secs(5);

/// Problem of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanProblem {
    /// The file is not TOML, or has unknown keys or impossible values.
    #[error("{0}")]
    Syntax(String),
    /// The file is TOML but contradicts itself.
    #[error("line {line}: `{key}`: {what}")]
    Value {
        /// Line in the file, from 1.
        line: usize,
        /// Key whose value is wrong.
        key: String,
        /// Description of the problem, and the remedy.
        what: String,
    },
}

/// Acceleration of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CellMode {
    /// No node runs.
    Baseline,
    /// Both nodes: transport and data reduction, no accelerator.
    Transport,
    /// Both nodes with the accelerators of the protocol.
    Application,
    /// The acceleration of the server itself (Exchange 2003 with Outlook 2003); no node runs.
    Exchange,
}

/// State of the caches when a cell begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheState {
    /// There are no caches: no node runs.
    None,
    /// Dictionaries and caches are empty.
    Cold,
    /// The same files have just been transferred.
    Warm,
    /// 1 % of each file changed since it was transferred.
    Edited,
    /// Random data that no cell has used before.
    RandomOnce,
}

/// Forward error correction of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FecSetting {
    /// Never.
    Off,
    /// As the node decides.
    Auto,
}

/// A whole plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellPlan {
    /// Title of the report.
    pub title: String,
    /// Published evaluation that the plan repeats; its figures stand beside ours.
    #[serde(default)]
    pub published: Option<PublishedEvaluation>,
    /// Seed of the order, the contents and the links.
    #[serde(default = "one_seed")]
    pub seed: u64,
    /// Number of times that every cell is measured.
    #[serde(default = "one")]
    pub repeats: Spanned<u32>,
    /// Time that a cell transfers at its expected rate, unless its document is smaller.
    #[serde(default = "default_span", deserialize_with = "spanned_duration")]
    pub span: Spanned<Duration>,
    /// Time that nodes carry other data over the link before a cell, beside some round trips of the link;
    /// none if it is 0.
    #[serde(default = "no_warm_up", deserialize_with = "spanned_duration")]
    pub warm_up: Spanned<Duration>,
    /// True if the emulated link is measured before the first cell.
    #[serde(default)]
    pub calibrate: bool,
    /// Links.
    #[serde(default, rename = "link")]
    pub links: Vec<PlanLink>,
    /// Groups of cells.
    #[serde(default, rename = "group")]
    pub groups: Vec<PlanGroup>,
}

/// Published evaluation whose figures stand beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PublishedEvaluation {
    /// Van Helmond and Smeets, 2006.
    #[serde(rename = "wx-2006")]
    Wx2006,
    /// Cisco WAAS over 3G, 2009.
    #[serde(rename = "waas-3g")]
    Waas3g,
}

/// A link of a plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanLink {
    /// Name that groups use.
    pub name: Spanned<String>,
    /// Settings, as `trunkline demo --link` takes them. Without `queue` the queue holds one
    /// bandwidth-delay product, and at least 64 KiB.
    pub settings: Spanned<String>,
    /// Size of the random file that is transferred over this link.
    #[serde(default, deserialize_with = "byte_count")]
    pub document: Option<Spanned<ByteCount>>,
}

/// A group of cells: all combinations of its lists.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanGroup {
    /// Protocol as tables name it.
    pub protocol: Spanned<String>,
    /// Name of the workload.
    pub workload: Spanned<WorkloadText>,
    /// Names of links.
    pub links: Vec<Spanned<String>>,
    /// One-way delays; those of the links when empty.
    #[serde(default)]
    pub one_way_delays: Vec<Spanned<DelayText>>,
    /// Chances of loss, in each direction; those of the links when empty.
    #[serde(default)]
    pub losses: Vec<Spanned<LossText>>,
    /// Modes.
    pub modes: Vec<CellMode>,
    /// Forward error correction, where nodes run.
    #[serde(default = "fec_auto")]
    pub fec: Vec<FecSetting>,
    /// Cache states, where nodes run. `random-once` transfers the link's document, all others the
    /// published file set.
    #[serde(default = "random_once")]
    pub caches: Vec<CacheState>,
    /// Files of the published set; all when empty.
    #[serde(default)]
    pub files: Vec<Spanned<String>>,
}

/// A workload by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadText(pub WorkloadKind);

/// A delay as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayText(pub Duration);

/// A chance of loss as text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossText(pub Probability);

impl CellMode {
    /// The letter of the 2006 report.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Baseline => "B",
            Self::Transport => "T",
            Self::Application => "A",
            Self::Exchange => "E",
        }
    }

    /// Tells whether nodes run.
    #[must_use]
    pub const fn has_nodes(self) -> bool {
        match self {
            Self::Baseline | Self::Exchange => false,
            Self::Transport | Self::Application => true,
        }
    }
}

impl CacheState {
    /// The name in plans, names of cells and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Edited => "edited",
            Self::RandomOnce => "random-once",
        }
    }
}

impl FecSetting {
    /// The name in plans and in a node's configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
        }
    }
}

impl<'de> Deserialize<'de> for WorkloadText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for DelayText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        duration_text::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for LossText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

fn spanned_duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Spanned<Duration>, D::Error> {
    let text = Spanned::<String>::deserialize(deserializer)?;
    let span = text.span();
    parse_duration(text.get_ref())
        .map(|found| Spanned::new(span, found))
        .map_err(serde::de::Error::custom)
}

fn byte_count<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Spanned<ByteCount>>, D::Error> {
    let text = Spanned::<String>::deserialize(deserializer)?;
    let span = text.span();
    let found: Result<ByteCount, _> = text.get_ref().parse();
    found
        .map(|bytes| Some(Spanned::new(span, bytes)))
        .map_err(serde::de::Error::custom)
}

fn one_seed() -> u64 {
    1
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn default_span() -> Spanned<Duration> {
    Spanned::new(0..0, Duration::from_secs(60))
}

fn no_warm_up() -> Spanned<Duration> {
    Spanned::new(0..0, Duration::ZERO)
}

fn fec_auto() -> Vec<FecSetting> {
    vec![FecSetting::Auto]
}

fn random_once() -> Vec<CacheState> {
    vec![CacheState::RandomOnce]
}

impl CellPlan {
    /// Reads a plan file and returns it with its text.
    ///
    /// # Errors
    /// Fails when the file cannot be read or the plan is wrong; the message names the file and the
    /// line.
    pub fn read(path: &Path) -> anyhow::Result<(Self, String)> {
        use anyhow::Context;
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the plan {}", path.display()))?;
        let plan = Self::parse(&text).with_context(|| format!("in the plan {}", path.display()))?;
        Ok((plan, text))
    }

    /// Parses and checks a plan.
    ///
    /// # Errors
    /// Fails when the plan is wrong; the message names the line.
    pub fn parse(text: &str) -> Result<Self, PlanProblem> {
        let plan: Self =
            toml::from_str(text).map_err(|error| PlanProblem::Syntax(error.to_string()))?;
        plan.check(text)?;
        Ok(plan)
    }

    fn check(&self, text: &str) -> Result<(), PlanProblem> {
        let problem = |at: usize, key: &str, what: String| PlanProblem::Value {
            line: line_of(text, at),
            key: key.to_owned(),
            what,
        };
        let repeats = *self.repeats.get_ref();
        if !(1..=REPEATS_MOST).contains(&repeats) {
            let what = format!("{repeats} is not within 1 to {REPEATS_MOST}");
            return Err(problem(self.repeats.span().start, "repeats", what));
        }
        let span = *self.span.get_ref();
        if span < SPAN_BOUNDS.0 || span > SPAN_BOUNDS.1 {
            let what = "write a time of 5s to 1h: a shorter transfer is not reliable".to_owned();
            return Err(problem(self.span.span().start, "span", what));
        }
        if *self.warm_up.get_ref() > WARM_UP_MOST {
            let what = "write a time of up to 60s".to_owned();
            return Err(problem(self.warm_up.span().start, "warm_up", what));
        }
        for (key, count) in [("link", self.links.len()), ("group", self.groups.len())] {
            if !(1..=ENTRIES_MOST).contains(&count) {
                let what =
                    format!("the plan has {count} sections [[{key}]]; write 1 to {ENTRIES_MOST}");
                return Err(problem(0, key, what));
            }
        }
        for (index, link) in self.links.iter().enumerate() {
            let name = link.name.get_ref();
            let is_word = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            if name.is_empty() || !name.chars().all(is_word) {
                let what = "use only letters, digits and `-`, `_`, `.`".to_owned();
                return Err(problem(link.name.span().start, "name", what));
            }
            if self.links[..index]
                .iter()
                .any(|other| other.name.get_ref() == name)
            {
                let what =
                    format!("another link has the name `{name}`; give this link a different name");
                return Err(problem(link.name.span().start, "name", what));
            }
            let settings: anyhow::Result<LabLink> = link.settings.get_ref().parse();
            if let Err(error) = settings.and_then(|settings| settings.check()) {
                return Err(problem(
                    link.settings.span().start,
                    "settings",
                    format!("{error:#}"),
                ));
            }
            if let Some(document) = &link.document
                && !(1..=DOCUMENT_MOST).contains(&document.get_ref().bytes())
            {
                let what = "write a size of 1B to 1GiB".to_owned();
                return Err(problem(document.span().start, "document", what));
            }
        }
        // The check of a group makes all its links.
        let cells = super::expansion::count(self);
        if cells > CELLS_MOST {
            let what = format!("the plan has {cells} cells; shorten its lists to {CELLS_MOST}");
            return Err(problem(0, "group", what));
        }
        for group in &self.groups {
            self.check_group(group, &problem)?;
        }
        self.check_names(&problem)
    }

    /// Refuses cells that have the name of another one: results are kept by name.
    fn check_names(
        &self,
        problem: &dyn Fn(usize, &str, String) -> PlanProblem,
    ) -> Result<(), PlanProblem> {
        let mut keys = BTreeSet::new();
        for group in &self.groups {
            let mut cells = Vec::new();
            super::expansion::expand_group(self, group, &mut cells);
            for cell in cells {
                if !keys.insert(cell.key()) {
                    let what = format!(
                        "the plan contains the cell {} twice; remove one of the two groups, or give one \
                         group another protocol name",
                        cell.name()
                    );
                    return Err(problem(group.protocol.span().start, "group", what));
                }
            }
        }
        Ok(())
    }

    fn check_group(
        &self,
        group: &PlanGroup,
        problem: &dyn Fn(usize, &str, String) -> PlanProblem,
    ) -> Result<(), PlanProblem> {
        let at = group.protocol.span().start;
        let protocol = group.protocol.get_ref();
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if protocol.is_empty() || !protocol.chars().all(is_word) {
            let what = "use only letters, digits and `-`, `_`, `.`".to_owned();
            return Err(problem(at, "protocol", what));
        }
        let is_for_exchange = group.workload.get_ref().0 == WorkloadKind::Mapi2003;
        if group.modes.contains(&CellMode::Exchange) && !is_for_exchange {
            let what = "`exchange` applies only to the workload `mapi-2003`; remove it".to_owned();
            return Err(problem(at, "modes", what));
        }
        for (key, is_empty) in [
            ("links", group.links.is_empty()),
            ("modes", group.modes.is_empty()),
            ("fec", group.fec.is_empty()),
            ("caches", group.caches.is_empty()),
        ] {
            if is_empty {
                return Err(problem(
                    at,
                    key,
                    "the list is empty; write at least one value".to_owned(),
                ));
            }
        }
        let once = group.caches.contains(&CacheState::RandomOnce);
        if group.caches.contains(&CacheState::None) {
            let what = "`none` applies only to cells without nodes; remove it".to_owned();
            return Err(problem(at, "caches", what));
        }
        if once && group.caches.len() > 1 {
            let what = "`random-once` transfers a document, and the other states transfer files; \
                        write two groups";
            return Err(problem(at, "caches", what.to_owned()));
        }
        for name in &group.links {
            let Some(link) = self.link(name.get_ref()) else {
                let names: Vec<&str> = self
                    .links
                    .iter()
                    .map(|link| link.name.get_ref().as_str())
                    .collect();
                let what = format!(
                    "the plan has no link `{}`; its links are {}",
                    name.get_ref(),
                    names.join(", ")
                );
                return Err(problem(name.span().start, "links", what));
            };
            let variants = super::expansion::variants_of(group, link);
            if let Some(error) = variants.iter().find_map(|each| each.settings.check().err()) {
                let what = format!(
                    "the link `{}` cannot have these delays and losses: {error:#}",
                    name.get_ref()
                );
                return Err(problem(name.span().start, "links", what));
            }
            if once && link.document.is_none() {
                let what = format!(
                    "the link `{}` has no `document`; add a document such as document = \"10MB\"",
                    name.get_ref()
                );
                return Err(problem(name.span().start, "links", what));
            }
        }
        for delay in &group.one_way_delays {
            if delay.get_ref().0 > DELAY_MOST {
                let what = "write a time of up to 5s".to_owned();
                return Err(problem(delay.span().start, "one_way_delays", what));
            }
        }
        if once && !group.files.is_empty() {
            let what = "`random-once` transfers the link's document; remove `files`".to_owned();
            return Err(problem(group.files[0].span().start, "files", what));
        }
        let is_office = group.workload.get_ref().0 == WorkloadKind::SmbOffice;
        if is_office && once {
            let what =
                "`smb-office` opens documents; write caches = [\"cold\", \"warm\"]".to_owned();
            return Err(problem(at, "caches", what));
        }
        let known: Vec<String> = match is_office {
            true => published::documents()
                .into_iter()
                .map(|each| each.file)
                .collect(),
            false => published::files()
                .into_iter()
                .map(|each| each.name)
                .collect(),
        };
        for file in &group.files {
            if !known.contains(file.get_ref()) {
                let names = &known;
                let what = format!(
                    "the file set has no file `{}`; its files are {}",
                    file.get_ref(),
                    names.join(", ")
                );
                return Err(problem(file.span().start, "files", what));
            }
        }
        Ok(())
    }

    /// The link of this name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&PlanLink> {
        self.links.iter().find(|link| link.name.get_ref() == name)
    }
}

/// Line of a byte of the text, from 1.
fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str) -> CellPlan {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        CellPlan::read(&directory.join(name)).unwrap().0
    }

    #[test]
    fn shipped_plans_are_valid() {
        assert_eq!(scenario("wx-2006.toml").links.len(), 2);
        assert_eq!(
            scenario("waas-3g.toml").published,
            Some(PublishedEvaluation::Waas3g)
        );
        assert_eq!(scenario("access-lines.toml").groups.len(), 1);
    }

    #[test]
    fn problems_name_line_key_and_remedy() {
        let good = "title = 'x'\n[[link]]\nname = 'a'\nsettings = 'rate=1Mbit'\ndocument = '1MB'\n\
                    [[group]]\nprotocol = 'HTTP'\nworkload = 'http-download'\nlinks = ['a']\n\
                    modes = ['baseline']\n";
        CellPlan::parse(good).unwrap();
        for (from, to, parts) in [
            (
                "rate=1Mbit",
                "rate=fast",
                ["line 4", "settings", "not a rate"],
            ),
            (
                "rate=1Mbit",
                "rate=1Mbit,shaper=rate=1Mbit,burst=3kB",
                ["line 4", "settings", "shaper"],
            ),
            (
                "links = ['a']",
                "links = ['b']",
                ["line 9", "links", "its links are a"],
            ),
            (
                "http-download",
                "gopher",
                ["line 8", "workload", "there are http-download"],
            ),
            ("'baseline'", "'fast'", ["line 10", "modes", "baseline"]),
            (
                "document = '1MB'\n",
                "",
                ["line 8", "links", "add a document"],
            ),
            (
                "title = 'x'",
                "titel = 'x'",
                ["line 1", "titel", "expected"],
            ),
            (
                "'baseline'",
                "'exchange'",
                ["line 7", "modes", "only to the workload `mapi-2003`"],
            ),
            (
                "modes = ['baseline']",
                "modes = []",
                ["line 7", "modes", "at least one"],
            ),
            (
                "links = ['a']",
                "links = ['a', 'a']",
                ["line 7", "group", "contains the cell"],
            ),
            (
                "title = 'x'",
                "repeats = 0\ntitle = 'x'",
                ["line 1", "repeats", "1 to 100"],
            ),
        ] {
            let text = good.replace(from, to);
            let problem = CellPlan::parse(&text).unwrap_err().to_string();
            for part in parts {
                assert!(problem.contains(part), "{part:?} is missing: {problem}");
            }
        }
    }
}
