//! Expansion of a plan into cells, and of cells into series.
//!
//! The order of the expansion is that of the plan: groups, links, delays, losses, modes, FEC,
//! caches, repeats. Names and seeds of cells depend on nothing else, so they are the same on every
//! day and with every choice of cells.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use vocab::{Probability, SeededRandom, format_duration};

use super::plan::{CacheState, CellMode, CellPlan, FecSetting, PlanGroup, PlanLink};
use super::sizes::LinkFigures;
use crate::campaign::LabLink;
use crate::workload::WorkloadKind;

/// The smallest queue that a plan gives to a link without one.
const QUEUE_LEAST_BYTES: u64 = 64 << 10;

/// Content that a cell transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellLoad {
    /// One random file; the link's document, or less of it.
    Document {
        /// Size in the plan.
        bytes: u64,
    },
    /// Files of the published set; all when empty.
    Files(Vec<String>),
}

/// One cell of a campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCell {
    /// Place in the plan's expansion.
    pub index: usize,
    /// Protocol as tables name it.
    pub protocol: String,
    /// Workload.
    pub workload: WorkloadKind,
    /// Name of the link.
    pub link: String,
    /// The whole link, delay and loss included.
    pub settings: LabLink,
    /// Figures of the link.
    pub figures: LinkFigures,
    /// Mode.
    pub mode: CellMode,
    /// Forward error correction; `None` where no node runs.
    pub fec: Option<FecSetting>,
    /// State of the caches.
    pub cache: CacheState,
    /// Load.
    pub load: CellLoad,
    /// Repeat, from 1.
    pub repeat: u32,
    /// Seed of its contents and its link.
    pub seed: u64,
    /// True if a short campaign measures it.
    pub is_in_short: bool,
}

/// Selection of a plan's cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellSelection {
    /// Words that choose cells by their names; empty for all.
    pub words: Vec<String>,
    /// True for a short campaign: without words, each group is measured once, at the first and the middle
    /// one of its delays and at the middle one of its chances of loss.
    pub is_short: bool,
}

impl CellSelection {
    /// Tells whether the cell is selected.
    #[must_use]
    pub fn includes(&self, cell: &PlannedCell) -> bool {
        match self.words.is_empty() {
            true => !self.is_short || cell.is_in_short,
            false => self.words.iter().any(|word| cell.is_chosen_by(word)),
        }
    }

    /// Selected cells among all of a plan.
    ///
    /// # Errors
    /// Fails when a word chooses no cell, or the plan has none.
    pub fn choose(&self, all: &[PlannedCell]) -> Result<Vec<PlannedCell>> {
        let example = || all.first().map(PlannedCell::name).unwrap_or_default();
        for word in &self.words {
            ensure!(
                all.iter().any(|cell| cell.is_chosen_by(word)),
                "no cell has a name with `{word}` (case matters); a cell has a name such as {}",
                example()
            );
        }
        let chosen: Vec<PlannedCell> = all
            .iter()
            .filter(|cell| self.includes(cell))
            .cloned()
            .collect();
        ensure!(
            !chosen.is_empty(),
            "the plan has no cell; add a link and a workload to it"
        );
        Ok(chosen)
    }
}

/// Cells that run one after the other with the same nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct CellSeries {
    /// Key in the journal.
    pub key: String,
    /// Cells in the order in which they run.
    pub cells: Vec<PlannedCell>,
}

impl PlannedCell {
    /// Name of the cell without its repeat: `CIFS/OC-1/250ms/loss=1%/A/fec=auto/random-once`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.stem(), self.cache.name())
    }

    /// Key of the cell in the journal: its name and its repeat.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}#{}", self.name(), self.repeat)
    }

    /// Tells whether a cell of another plan measures the same: only contents and chance differ.
    pub(super) fn measures_the_same(&self, other: &Self) -> bool {
        self.name() == other.name()
            && self.workload == other.workload
            && self.settings == other.settings
            && self.load == other.load
    }

    fn stem(&self) -> String {
        let delay = format_duration(self.figures.one_way_delay);
        let loss = Probability::from_fraction(self.figures.loss).unwrap_or_default();
        let mode = self.mode.letter();
        let fec = self.fec.map_or("none", FecSetting::name);
        let (protocol, link) = (&self.protocol, &self.link);
        format!("{protocol}/{link}/{delay}/loss={loss}/{mode}/fec={fec}")
    }

    /// Tells whether a word of `--cells` selects it: its name must contain all parts of the word
    /// between `+`.
    #[must_use]
    pub fn is_chosen_by(&self, word: &str) -> bool {
        let name = format!("{}/", self.name());
        word.split('+').all(|part| name.contains(part))
    }
}

/// Number of cells of a plan, without making them.
pub(super) fn count(plan: &CellPlan) -> usize {
    let many = |length: usize| length.max(1);
    let of_group = |group: &PlanGroup| {
        many(group.one_way_delays.len())
            .saturating_mul(many(group.losses.len()))
            .saturating_mul(group.links.len())
            .saturating_mul(group.modes.len())
            .saturating_mul(group.fec.len())
            .saturating_mul(group.caches.len())
    };
    let repeats = *plan.repeats.get_ref() as usize;
    let cells = plan.groups.iter().map(of_group);
    cells
        .fold(0_usize, usize::saturating_add)
        .saturating_mul(repeats)
}

/// All cells of a plan.
#[must_use]
pub fn expand(plan: &CellPlan) -> Vec<PlannedCell> {
    let mut cells = Vec::new();
    for group in &plan.groups {
        expand_group(plan, group, &mut cells);
    }
    cells
}

/// Appends the cells of one group.
pub(super) fn expand_group(plan: &CellPlan, group: &PlanGroup, cells: &mut Vec<PlannedCell>) {
    for name in &group.links {
        // The plan's check has found the link.
        let Some(link) = plan.link(name.get_ref()) else {
            continue;
        };
        for variant in variants_of(group, link) {
            expand_modes(plan, group, link, &variant, cells);
        }
    }
}

/// The link with one delay and loss of a group.
pub(super) struct LinkVariant {
    pub(super) settings: LabLink,
    /// True if a short campaign measures over it.
    is_in_short: bool,
}

/// The link with each delay and loss of a group.
pub(super) fn variants_of(group: &PlanGroup, link: &PlanLink) -> Vec<LinkVariant> {
    let base: LabLink = link.settings.get_ref().parse().unwrap_or_default();
    let delays = options(group.one_way_delays.iter().map(|delay| delay.get_ref().0));
    let losses = options(group.losses.iter().map(|loss| loss.get_ref().0));
    let mut all = Vec::new();
    for (delay_index, delay) in delays.iter().enumerate() {
        for (loss_index, loss) in losses.iter().enumerate() {
            let settings = base.with_delay_and_loss(*delay, *loss);
            let text = link.settings.get_ref();
            all.push(LinkVariant {
                settings: match text.contains("queue") || text.contains("preset") {
                    true => settings,
                    false => settings.with_queue_of_bdp(QUEUE_LEAST_BYTES),
                },
                is_in_short: (delay_index == 0 || delay_index == delays.len() / 2)
                    && loss_index == losses.len() / 2,
            });
        }
    }
    all
}

/// `None` alone for an empty list.
fn options<T>(values: impl Iterator<Item = T>) -> Vec<Option<T>> {
    let all: Vec<Option<T>> = values.map(Some).collect();
    match all.is_empty() {
        true => vec![None],
        false => all,
    }
}

fn expand_modes(
    plan: &CellPlan,
    group: &PlanGroup,
    link: &PlanLink,
    variant: &LinkVariant,
    cells: &mut Vec<PlannedCell>,
) {
    let is_once = group.caches.contains(&CacheState::RandomOnce);
    let load = match (&link.document, is_once) {
        (Some(document), true) => CellLoad::Document {
            bytes: document.get_ref().bytes(),
        },
        _ => CellLoad::Files(
            group
                .files
                .iter()
                .map(|file| file.get_ref().clone())
                .collect(),
        ),
    };
    for mode in &group.modes {
        let (fecs, caches) = match (mode.has_nodes(), is_once) {
            (true, _) => (
                group.fec.iter().copied().map(Some).collect(),
                group.caches.clone(),
            ),
            (false, true) => (vec![None], vec![CacheState::RandomOnce]),
            (false, false) => (vec![None], vec![CacheState::None]),
        };
        for fec in fecs {
            for cache in &caches {
                for repeat in 1..=*plan.repeats.get_ref() {
                    let mut cell = PlannedCell {
                        index: cells.len(),
                        protocol: group.protocol.get_ref().clone(),
                        workload: group.workload.get_ref().0,
                        link: link.name.get_ref().clone(),
                        settings: variant.settings.clone(),
                        figures: LinkFigures::of(&variant.settings),
                        mode: *mode,
                        fec,
                        cache: *cache,
                        load: load.clone(),
                        repeat,
                        seed: 0,
                        is_in_short: variant.is_in_short && repeat == 1,
                    };
                    cell.seed = seed_of(plan.seed, &cell.key());
                    cells.push(cell);
                }
            }
        }
    }
}

/// Seed of a part of the campaign that has this name.
pub(super) fn seed_of(seed: u64, name: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(name.as_bytes());
    let bytes = hasher.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&bytes.as_bytes()[..8]);
    // Whole numbers of JSON readers end at 2^53.
    u64::from_le_bytes(first) >> 11
}

/// Series of these cells, in random order within each repeat.
///
/// A series in which a warm or an edited state is chosen contains the cold one, which fills the
/// caches, whether that is chosen or not.
#[must_use]
pub fn series(plan: &CellPlan, chosen: &[PlannedCell], all: &[PlannedCell]) -> Vec<CellSeries> {
    let mut found: Vec<CellSeries> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for cell in chosen {
        let key = format!("{}#{}", cell.stem(), cell.repeat);
        let place = *places.entry(key.clone()).or_insert(found.len());
        if place == found.len() {
            found.push(CellSeries {
                key,
                cells: Vec::new(),
            });
        }
        found[place].cells.push(cell.clone());
    }
    for series in &mut found {
        let needs_cold = series
            .cells
            .iter()
            .all(|cell| matches!(cell.cache, CacheState::Warm | CacheState::Edited));
        let stem = series.cells[0].stem();
        let repeat = series.cells[0].repeat;
        let cold = all.iter().find(|cell| {
            cell.cache == CacheState::Cold && cell.repeat == repeat && cell.stem() == stem
        });
        if let (true, Some(cold)) = (needs_cold, cold) {
            series.cells.push(cold.clone());
        }
        series.cells.sort_by_key(|cell| cell.cache);
    }
    let mut ordered = Vec::new();
    for repeat in 1..=*plan.repeats.get_ref() {
        let mut block: Vec<CellSeries> = found
            .iter()
            .filter(|series| series.cells[0].repeat == repeat)
            .cloned()
            .collect();
        let mut random = SeededRandom::from_seed(seed_of(plan.seed, &format!("order {repeat}")));
        for last in (1..block.len()).rev() {
            let other = random.below(last as u64 + 1) as usize;
            block.swap(last, other);
        }
        ordered.extend(block);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn scenario(name: &str) -> CellPlan {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        CellPlan::read(&directory.join(name)).unwrap().0
    }

    #[test]
    fn published_tests_are_80_and_30_with_loss() {
        let plan = scenario("wx-2006.toml");
        let cells = expand(&plan);
        assert_eq!(cells.len(), count(&plan));
        let (without, with): (Vec<_>, Vec<_>) =
            cells.iter().partition(|cell| cell.figures.loss == 0.0);
        assert_eq!((without.len(), with.len()), (80, 30));
        for (protocol, count) in [("CIFS", 24), ("MAPI-XP", 24), ("MAPI-2003", 32)] {
            let own = without.iter().filter(|cell| cell.protocol == protocol);
            assert_eq!(own.count(), count, "{protocol}");
        }
        let keys: BTreeSet<String> = cells.iter().map(PlannedCell::key).collect();
        let seeds: BTreeSet<u64> = cells.iter().map(|cell| cell.seed).collect();
        assert_eq!((keys.len(), seeds.len()), (110, 110));
    }

    #[test]
    fn short_campaign_measures_a_part_of_each_table() {
        let plan = scenario("wx-2006.toml");
        let all = expand(&plan);
        let short = CellSelection {
            is_short: true,
            ..CellSelection::default()
        };
        let chosen = short.choose(&all).unwrap();
        let (without, with): (Vec<_>, Vec<_>) =
            chosen.iter().partition(|cell| cell.figures.loss == 0.0);
        assert_eq!((without.len(), with.len()), (40, 6));
        let is_part =
            |cell: &&PlannedCell| [0, 100].contains(&cell.figures.one_way_delay.as_millis());
        assert!(without.iter().all(is_part));
        assert!(
            with.iter()
                .all(|cell| (cell.figures.loss - 0.01).abs() < 1e-6)
        );
        let named = CellSelection {
            words: vec!["30ms".to_owned()],
            ..short
        };
        let chosen = named.choose(&all).unwrap();
        assert_eq!(chosen.len(), 20);
    }

    #[test]
    fn queue_holds_one_bdp_unless_given() {
        let cells = expand(&scenario("wx-2006.toml"));
        let queue = |name: &str| {
            let cell = cells.iter().find(|cell| cell.name().starts_with(name));
            cell.map(|cell| cell.settings.to_string()).unwrap()
        };
        assert!(
            queue("CIFS/T1/0s").contains("queue=65536B"),
            "{}",
            queue("CIFS/T1/0s")
        );
        assert!(queue("CIFS/OC-1/250ms").contains("queue=3240000B"));
        let cells = expand(&scenario("waas-3g.toml"));
        assert!(cells[0].settings.to_string().contains("queue=14kB"));
    }

    #[test]
    fn warm_cells_bring_the_cold_one_along() {
        let plan = scenario("waas-3g.toml");
        let all = expand(&plan);
        let warm: Vec<PlannedCell> = all
            .iter()
            .filter(|cell| cell.is_chosen_by("HTTP+/A/+/warm/"))
            .cloned()
            .collect();
        assert_eq!(warm.len(), 1);
        let series = series(&plan, &warm, &all);
        let caches: Vec<CacheState> = series[0].cells.iter().map(|cell| cell.cache).collect();
        assert_eq!(caches, [CacheState::Cold, CacheState::Warm]);
    }

    #[test]
    fn order_is_random_and_repeatable() {
        let plan = scenario("wx-2006.toml");
        let cells = expand(&plan);
        let keys = |plan: &CellPlan| -> Vec<String> {
            let series = series(plan, &cells, &cells);
            series.into_iter().map(|series| series.key).collect()
        };
        let mut other = plan.clone();
        other.seed += 1;
        assert_eq!(keys(&plan), keys(&plan));
        assert_ne!(keys(&plan), keys(&other));
        assert_eq!(keys(&plan).len(), 110);
    }
}
