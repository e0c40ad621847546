//! Results of a campaign: the journal read against its plan.
//!
//! Each cell's figure comes from one attempt of its series: the clean one, or the one with the
//! least undesired traffic. The others stay in the journal and in the captures.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::expansion::{self, PlannedCell};
use super::journal::{CampaignJournal, CellPass, RealFigures, SeriesAttempt};
use super::plan::{CacheState, CellMode, CellPlan};
use super::runner::is_clean;
use super::simulated::is_simulated;
use super::sizes::CellSizes;
use crate::campaign::{
    CampaignResults, CampaignSeeds, FORMAT_VERSION, FileSample, PassKind, TestNodes, TestResults,
    WorkloadRun,
};
use crate::report::published::{self, PublishedThroughput};
use crate::report::statistics::{self, MedianEstimate};
use host::median::median;

/// Status of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CellStatus {
    /// All repeats are measured.
    Measured,
    /// The client's transfer failed in every repeat.
    Failed,
    /// A repeat has no figure: it did not run, or the lab failed.
    NotMeasured,
    /// The simulation has no script for it.
    NotSimulated,
}

/// Result of a cell over its repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct CellResult {
    /// The cell, with the number of its first repeat.
    pub cell: PlannedCell,
    /// Status.
    pub status: CellStatus,
    /// Throughput of each measured repeat, in kB/s; 0 where the client's transfer failed.
    pub throughputs_kb_s: Vec<f64>,
    /// Median throughput with its interval.
    pub throughput: Option<MedianEstimate>,
    /// Figure of the published evaluation.
    pub published: Option<PublishedThroughput>,
    /// Passes that the figures come from, one for each repeat.
    pub passes: Vec<CellPass>,
    /// Attempts in all repeats.
    pub attempts: u32,
    /// Repeats whose attempts left no figure, because the lab failed in each of them.
    pub repeats_without_figure: u32,
    /// Attempts in which a file arrived with other content than was sent.
    pub damaged_attempts: u32,
    /// Set if an attempt was repeated for foreign or retransmitted traffic.
    pub repeated_for_foreign_traffic: bool,
    /// Sentences about limits of the host.
    pub host_limits: Vec<String>,
    /// Sentences about failures.
    pub failures: Vec<String>,
    /// Set if it transfers less than its document.
    pub is_shortened: bool,
    /// Bytes that it transfers; of a file set that is not measured, 0.
    pub bytes: u64,
    /// Throughput of the real campaign beside a simulation, in kB/s.
    pub real_kb_s: Option<f64>,
}

/// A campaign's results.
#[derive(Debug)]
pub struct CampaignOutcome {
    /// The journal.
    pub journal: CampaignJournal,
    /// The plan.
    pub plan: CellPlan,
    /// All cells of the plan.
    pub cells: Vec<CellResult>,
}

impl CellStatus {
    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Failed => "failed",
            Self::NotMeasured => "not-measured",
            Self::NotSimulated => "not-simulated",
        }
    }
}

impl CellResult {
    /// Deviation of a simulated throughput from the real one, in percent of the real one.
    #[must_use]
    pub fn deviation_percent(&self) -> Option<f64> {
        let (own, real) = (self.throughput?.median, self.real_kb_s?);
        (real > 0.0).then(|| 100.0 * (own / real - 1.0))
    }

    /// Tells whether every file of every repeat arrived as it was sent, and no other attempt damaged one.
    #[must_use]
    pub fn is_identical(&self) -> bool {
        self.damaged_attempts == 0
            && !self.passes.is_empty()
            && self.passes.iter().all(CellPass::is_identical)
    }
}

impl CampaignOutcome {
    /// Reads the results of a campaign's directory.
    ///
    /// # Errors
    /// Fails when there is no journal, or it is damaged or of another version.
    pub fn read(directory: &Path) -> Result<Self> {
        let journal = CampaignJournal::read(directory)?;
        Self::of(journal)
    }

    /// Makes the results of a journal.
    ///
    /// # Errors
    /// Fails when the plan in the journal is not understood.
    pub fn of(mut journal: CampaignJournal) -> Result<Self> {
        if journal.header.is_simulation {
            // Series that run at the same time end in any order.
            let key = |attempt: &SeriesAttempt| (attempt.series.clone(), attempt.attempt);
            journal.attempts.sort_by_cached_key(key);
        }
        let plan = journal.header.plan()?;
        let all = expansion::expand(&plan);
        let chosen = best_attempts(&plan, &journal, &all);
        let mut cells: Vec<CellResult> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for cell in &all {
            let place = *places.entry(cell.name()).or_insert_with(|| {
                cells.push(CellResult::empty(&plan, cell, &journal));
                cells.len() - 1
            });
            if let Some(repeat) = chosen.get(&cell.key()) {
                cells[place].add(repeat);
            }
        }
        for cell in &mut cells {
            cell.finish(&plan);
        }
        Ok(Self {
            journal,
            plan,
            cells,
        })
    }

    /// Text for each transfer that ended and damaged a file, one line each, in whatever attempt.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for attempt in &self.journal.attempts {
            for pass in attempt.passes.iter().filter(|pass| pass.is_damaged()) {
                let (cell, number) = (&pass.cell, attempt.attempt);
                faults.push(format!(
                    "{cell}, attempt {number}: what arrived is not what was sent"
                ));
            }
        }
        faults
    }

    /// Number of cells that failed: the client's transfer in every repeat, or the lab in one of them.
    #[must_use]
    pub fn failed_cells(&self) -> usize {
        let is_failed = |cell: &&CellResult| {
            cell.status == CellStatus::Failed || cell.repeats_without_figure > 0
        };
        self.cells.iter().filter(is_failed).count()
    }

    /// Duration of all attempts, in seconds.
    #[must_use]
    pub fn took_s(&self) -> f64 {
        self.journal
            .attempts
            .iter()
            .map(|attempt| attempt.took_s)
            .sum()
    }

    /// Median of the absolute deviations of a simulation from the real campaign, in percent.
    #[must_use]
    pub fn median_deviation_percent(&self) -> Option<f64> {
        let deviations = self.cells.iter().filter_map(CellResult::deviation_percent);
        median(deviations.map(f64::abs))
    }

    /// The figures of this campaign for comparison with a simulation of a plan with these sizes. Cells that
    /// differ in the plans are left out.
    #[must_use]
    pub fn real_figures(&self, plan: &CellPlan, sizes: CellSizes) -> RealFigures {
        let own_sizes = self.journal.header.sizes();
        let same_warm_up = self.plan.warm_up.get_ref() == plan.warm_up.get_ref();
        let others = expansion::expand(plan);
        let cells = self.cells.iter().filter(|result| {
            let cell = &result.cell;
            result.status == CellStatus::Measured
                && sizes.bytes(cell) == own_sizes.bytes(cell)
                && sizes.files(cell) == own_sizes.files(cell)
                && (same_warm_up || !cell.mode.has_nodes())
                && others.iter().any(|other| other.measures_the_same(cell))
        });
        let throughputs =
            cells.filter_map(|cell| Some((cell.cell.name(), cell.throughput?.median)));
        RealFigures {
            started: self.journal.header.started.clone(),
            throughputs_kb_s: throughputs.collect(),
        }
    }

    /// Number of cells with this status.
    #[must_use]
    pub fn count(&self, status: CellStatus) -> usize {
        self.cells
            .iter()
            .filter(|cell| cell.status == status)
            .count()
    }

    /// Cells with file sets, as the demo has them: rows for each file in all passes; `None`
    /// without such cells.
    ///
    /// Each mode and FEC setting of the nodes is a test of its own, with the baseline of the same protocol and
    /// link.
    #[must_use]
    pub fn file_results(&self) -> Option<CampaignResults> {
        let mut sets: Vec<FileSetCells<'_>> = Vec::new();
        for cell in &self.cells {
            let Some(pass) = pass_kind(&cell.cell) else {
                continue;
            };
            let is_of = |set: &&mut FileSetCells<'_>| {
                set.first.protocol == cell.cell.protocol && set.first.settings == cell.cell.settings
            };
            match sets.iter_mut().find(is_of) {
                Some(set) => set.add(pass, cell),
                None => {
                    let mut set = FileSetCells::of(&cell.cell);
                    set.add(pass, cell);
                    sets.push(set);
                }
            }
        }
        let tests: Vec<TestResults> = sets.iter().flat_map(FileSetCells::tests).collect();
        (!tests.is_empty()).then(|| CampaignResults {
            format_version: FORMAT_VERSION,
            title: self.plan.title.clone(),
            started: self.journal.header.started.clone(),
            took_s: self.took_s(),
            machine: self.journal.header.machine.clone(),
            seeds: CampaignSeeds {
                files: self.plan.seed,
                edits: self.plan.seed,
                link: self.plan.seed,
            },
            repeats: *self.plan.repeats.get_ref(),
            passes: PassKind::ALL.to_vec(),
            tests,
            notes: Vec::new(),
        })
    }

    /// Writes `samples.csv` and `passes.csv`, which scripts/recompute-rows.sh compares with what tshark finds
    /// in the captures, and `hashes.csv`, with every attempt.
    ///
    /// # Errors
    /// Fails when they cannot be written.
    pub fn write_tables(&self, directory: &Path) -> Result<()> {
        let all = expansion::expand(&self.plan);
        let mut samples =
            "label,pass,workload,file,bytes,elapsed_s,wan_bytes,open_s,save_s\n".to_owned();
        let mut passes = "label,round_trip_s,packets,foreign_packets,retransmitted_packets,\
                          wan_bytes_up,wan_bytes_down,wan_round_trips\n"
            .to_owned();
        let mut hashes = "label,file,expected_blake3,found_blake3\n".to_owned();
        for pass in self
            .journal
            .attempts
            .iter()
            .flat_map(|attempt| &attempt.passes)
        {
            let Some(cell) = all.iter().find(|cell| cell.key() == pass.cell) else {
                continue;
            };
            passes += &format!(
                "{},{:.9},{},{},{},{},{},{}\n",
                pass.label,
                cell.figures.round_trip.as_secs_f64(),
                pass.packets,
                pass.foreign_packets,
                pass.retransmitted_packets,
                pass.wan_bytes_up,
                pass.wan_bytes_down,
                pass.wan_round_trips
            );
            for file in &pass.files {
                let [open_s, save_s] = [file.open_s, file.save_s]
                    .map(|time| time.map_or(String::new(), |time| format!("{time:.6}")));
                samples += &format!(
                    "{},{},{},{},{},{:.6},{},{open_s},{save_s}\n",
                    pass.label,
                    cell.cache.name(),
                    cell.workload.name(),
                    file.file,
                    file.bytes,
                    file.elapsed_s,
                    file.wan_bytes
                );
                let found = file.found_hash.as_deref().unwrap_or_default();
                hashes += &format!(
                    "{},{},{},{found}\n",
                    pass.label, file.file, file.expected_hash
                );
            }
        }
        for (name, text) in [
            ("samples.csv", samples),
            ("passes.csv", passes),
            ("hashes.csv", hashes),
        ] {
            let path = directory.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// Cells of a file set over one link.
struct FileSetCells<'a> {
    first: &'a PlannedCell,
    baseline: Vec<(PassKind, &'a CellResult)>,
    /// Cells with nodes, by mode and FEC.
    with_nodes: Vec<(TestNodes, Vec<(PassKind, &'a CellResult)>)>,
}

impl<'a> FileSetCells<'a> {
    const fn of(first: &'a PlannedCell) -> Self {
        Self {
            first,
            baseline: Vec::new(),
            with_nodes: Vec::new(),
        }
    }

    fn add(&mut self, pass: PassKind, result: &'a CellResult) {
        let Some(fec) = result.cell.fec else {
            self.baseline.push((pass, result));
            return;
        };
        let nodes = TestNodes {
            mode: result.cell.mode.letter().to_owned(),
            fec: fec.name().to_owned(),
        };
        match self
            .with_nodes
            .iter_mut()
            .find(|(other, _)| *other == nodes)
        {
            Some((_, cells)) => cells.push((pass, result)),
            None => self.with_nodes.push((nodes, vec![(pass, result)])),
        }
    }

    fn tests(&self) -> Vec<TestResults> {
        let test = |nodes: Option<&TestNodes>, cells: &[(PassKind, &CellResult)]| {
            let mut test = TestResults {
                link: self.first.settings.clone(),
                nodes: nodes.cloned(),
                emulator: serde_json::Value::Null,
                runs: Vec::new(),
                samples: Vec::new(),
            };
            for (pass, cell) in self.baseline.iter().chain(cells) {
                add_passes(&mut test, *pass, cell);
            }
            test
        };
        match self.with_nodes.is_empty() {
            true => vec![test(None, &[])],
            false => {
                let variants = self.with_nodes.iter();
                variants
                    .map(|(nodes, cells)| test(Some(nodes), cells))
                    .collect()
            }
        }
    }
}

/// Adds what a cell's repeats measured to a test.
fn add_passes(test: &mut TestResults, kind: PassKind, cell: &CellResult) {
    let workload = cell.cell.workload.name();
    for (index, pass) in cell.passes.iter().enumerate() {
        let repeat = index as u32 + 1;
        test.runs.push(WorkloadRun {
            pass: kind,
            workload: workload.to_owned(),
            repeat,
            label: pass.label.clone(),
            cpu_busy: pass.cpu_busy,
            failure: pass.failure.clone(),
        });
        let samples = pass.files.iter().map(|file| FileSample {
            pass: kind,
            workload: workload.to_owned(),
            repeat,
            measured: file.clone(),
        });
        test.samples.extend(samples);
    }
}

/// Pass of the demo that a cell of a file set is.
fn pass_kind(cell: &PlannedCell) -> Option<PassKind> {
    match (cell.cache, cell.mode) {
        (CacheState::RandomOnce, _) | (_, CellMode::Exchange) => None,
        (CacheState::None, _) => Some(PassKind::Baseline),
        (CacheState::Cold, _) => Some(PassKind::Cold),
        (CacheState::Warm, _) => Some(PassKind::Warm),
        (CacheState::Edited, _) => Some(PassKind::Edited),
    }
}

/// One repeat of a cell: its best attempt and what happened around it.
struct RepeatOutcome {
    pass: Option<CellPass>,
    attempts: u32,
    damaged: u32,
    is_repeated: bool,
    host_limits: Vec<String>,
    failures: Vec<String>,
}

fn best_attempts(
    plan: &CellPlan,
    journal: &CampaignJournal,
    all: &[PlannedCell],
) -> BTreeMap<String, RepeatOutcome> {
    let mut found = BTreeMap::new();
    for series in expansion::series(plan, all, all) {
        let attempts: Vec<&SeriesAttempt> = journal.attempts_of(&series.key).collect();
        for cell in &series.cells {
            let key = cell.key();
            let with = attempts.iter().filter_map(|attempt| {
                let has = |pass: &&CellPass| pass.cell == key && pass.throughput_kb_s().is_some();
                let pass = attempt.passes.iter().find(has)?;
                Some((*attempt, pass))
            });
            let undesired =
                |pass: &CellPass| pass.foreign_share() + pass.unexplained_retransmissions_share();
            // Whole transfers first, then identical ones, then clean ones, then the cleanest.
            let best = with.clone().min_by(|(_, one), (_, two)| {
                let rank = |pass: &CellPass| {
                    let is_failed = pass.failure.is_some();
                    (is_failed, !pass.is_identical(), !is_clean(pass, cell))
                };
                rank(one)
                    .cmp(&rank(two))
                    .then(undesired(one).total_cmp(&undesired(two)))
            });
            if attempts.is_empty() {
                continue;
            }
            let dirty = |pass: &CellPass| pass.failure.is_none() && !is_clean(pass, cell);
            let outcome = RepeatOutcome {
                pass: best.map(|(_, pass)| pass.clone()),
                attempts: attempts.len() as u32,
                damaged: with.clone().filter(|(_, pass)| pass.is_damaged()).count() as u32,
                is_repeated: attempts.len() > 1 && with.clone().any(|(_, pass)| dirty(pass)),
                host_limits: best
                    .map(|(of, _)| of.host_limits.clone())
                    .unwrap_or_default(),
                failures: attempts
                    .iter()
                    .filter_map(|attempt| attempt.failure.clone())
                    .chain(with.filter_map(|(_, pass)| pass.failure.clone()))
                    .collect(),
            };
            found.insert(key, outcome);
        }
    }
    found
}

impl CellResult {
    fn empty(plan: &CellPlan, cell: &PlannedCell, journal: &CampaignJournal) -> Self {
        let bytes = journal.header.sizes().bytes(cell);
        let has_program = !journal.header.is_simulation || is_simulated(cell);
        let real = journal.real.as_ref();
        Self {
            real_kb_s: real.and_then(|real| real.throughputs_kb_s.get(&cell.name()).copied()),
            status: match has_program {
                true => CellStatus::NotMeasured,
                false => CellStatus::NotSimulated,
            },
            throughputs_kb_s: Vec::new(),
            throughput: None,
            published: plan
                .published
                .and_then(|from| published::throughput(from, cell)),
            passes: Vec::new(),
            attempts: 0,
            repeats_without_figure: 0,
            damaged_attempts: 0,
            repeated_for_foreign_traffic: false,
            host_limits: Vec::new(),
            failures: Vec::new(),
            is_shortened: bytes < CellSizes::Document.bytes(cell)
                || journal.header.sizes().files(cell) != CellSizes::Document.files(cell),
            bytes,
            cell: cell.clone(),
        }
    }

    fn add(&mut self, repeat: &RepeatOutcome) {
        self.attempts += repeat.attempts;
        self.repeated_for_foreign_traffic |= repeat.is_repeated;
        self.host_limits.extend(repeat.host_limits.iter().cloned());
        self.failures.extend(repeat.failures.iter().cloned());
        self.damaged_attempts += repeat.damaged;
        match repeat.pass.as_ref().and_then(CellPass::throughput_kb_s) {
            Some(throughput) => self.throughputs_kb_s.push(throughput),
            None => self.repeats_without_figure += 1,
        }
        self.passes.extend(repeat.pass.clone());
    }

    fn finish(&mut self, plan: &CellPlan) {
        if let (0, Some(pass)) = (self.bytes, self.passes.first()) {
            self.bytes = pass.files.iter().map(|file| file.bytes).sum();
        }
        let repeats = *plan.repeats.get_ref() as usize;
        if self.status == CellStatus::NotSimulated || self.throughputs_kb_s.is_empty() {
            return;
        }
        self.throughput = statistics::estimate(&self.throughputs_kb_s, self.cell.seed);
        self.status = if self.throughputs_kb_s.iter().all(|value| *value == 0.0) {
            CellStatus::Failed
        } else if self.throughputs_kb_s.len() < repeats {
            CellStatus::NotMeasured
        } else {
            CellStatus::Measured
        };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::journal::tests::{attempt, pass};
    use super::super::journal::{CampaignHeader, CampaignJournal};
    use super::super::plan::PublishedEvaluation;
    use super::*;
    use host::machine::MachineInfo;

    /// Outcome of the shipped plan in which every cell has twice its published throughput,
    /// without the cells whose names start so.
    pub(crate) fn sample_outcome(repeats: u32, without: &str) -> CampaignOutcome {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/wx-2006.toml");
        let text = std::fs::read_to_string(path).unwrap();
        let text = text.replace("repeats = 1", &format!("repeats = {repeats}"));
        outcome_of(&text, |cell| {
            let published = published::throughput(PublishedEvaluation::Wx2006, cell).unwrap();
            let kb_s = (published.kb_s * 2.0).max(1.0) + f64::from(cell.repeat) / 10.0;
            (!cell.name().starts_with(without)).then_some(kb_s)
        })
    }

    /// Outcome of a plan in which every cell has this throughput; 0 is a failed transfer.
    pub(crate) fn outcome_of(
        text: &str,
        kb_s: impl Fn(&PlannedCell) -> Option<f64>,
    ) -> CampaignOutcome {
        let plan = CellPlan::parse(text).unwrap();
        let sizes = CellSizes::of(&plan, false, false);
        let header = CampaignHeader::new(text, sizes, MachineInfo::default(), None);
        let directory = tempfile::tempdir().unwrap();
        let mut journal = CampaignJournal::open(directory.path(), &header).unwrap();
        let all = expansion::expand(&plan);
        for series in expansion::series(&plan, &all, &all) {
            let measured = |cell: &PlannedCell| {
                let kb_s = kb_s(cell)?;
                let bytes = sizes.bytes(cell).max(1_000);
                let mut pass = pass(&cell.key(), bytes, kb_s.max(1.0));
                pass.failure = (kb_s == 0.0).then(|| "timed out".to_owned());
                Some(pass)
            };
            let passes: Vec<CellPass> = series.cells.iter().filter_map(measured).collect();
            if !passes.is_empty() {
                journal.add(attempt(&series.key, passes)).unwrap();
            }
        }
        CampaignOutcome::of(journal).unwrap()
    }

    fn find<'a>(outcome: &'a CampaignOutcome, name: &str) -> &'a CellResult {
        let cell = outcome
            .cells
            .iter()
            .find(|cell| cell.cell.name().starts_with(name));
        cell.unwrap()
    }

    #[test]
    fn cells_know_their_status_and_published_figure() {
        let outcome = sample_outcome(1, "CIFS/T1/30ms/loss=0%/A");
        assert_eq!(outcome.cells.len(), 110);
        assert_eq!(outcome.count(CellStatus::NotMeasured), 1);
        assert_eq!(outcome.count(CellStatus::Measured), 109);
        let cell = find(&outcome, "CIFS/OC-1/250ms/loss=0%/A");
        assert_eq!(cell.published, Some(PublishedThroughput { kb_s: 375.4 }));
        assert!((cell.throughput.unwrap().median - 750.9).abs() < 0.01);
        let cell = find(&outcome, "CIFS/OC-1/0s/loss=1%/T/fec=auto");
        assert_eq!(cell.published, Some(PublishedThroughput { kb_s: 1159.4 }));
        let cell = find(&outcome, "MAPI-2003/T1/0s/loss=0%/E");
        assert_eq!(cell.published, Some(PublishedThroughput { kb_s: 170.8 }));
        assert_eq!(cell.status, CellStatus::Measured);
        // Every cell of the plan has a published figure.
        assert!(outcome.cells.iter().all(|cell| cell.published.is_some()));
    }

    #[test]
    fn cleanest_attempt_counts_and_both_are_kept() {
        let mut outcome = sample_outcome(1, "CIFS/T1/0s/loss=0%/B");
        let name = "CIFS/T1/0s/loss=0%/B/fec=none/random-once#1";
        for (number, retransmitted, kb_s) in [(1, 50, 90.0), (2, 0, 100.0)] {
            let mut pass = pass(name, 1_000_000, kb_s);
            pass.retransmitted_packets = retransmitted;
            let mut attempt = attempt("CIFS/T1/0s/loss=0%/B/fec=none#1", vec![pass]);
            attempt.attempt = number;
            outcome.journal.attempts.push(attempt);
        }
        let outcome = CampaignOutcome::of(outcome.journal).unwrap();
        let cell = find(&outcome, "CIFS/T1/0s/loss=0%/B");
        assert!((cell.throughput.unwrap().median - 100.0).abs() < 1e-6);
        assert_eq!(cell.attempts, 2);
        assert!(cell.repeated_for_foreign_traffic);
    }

    #[test]
    fn failure_of_the_lab_is_no_figure() {
        let name = "CIFS/T1/0s/loss=0%/B";
        let mut outcome = sample_outcome(2, name);
        for (repeat, passes, failure) in [
            (1, vec![], Some("nginx has ended")),
            (
                2,
                vec![pass(
                    &format!("{name}/fec=none/random-once#2"),
                    1_000_000,
                    100.0,
                )],
                None,
            ),
        ] {
            let mut attempt = attempt(&format!("{name}/fec=none#{repeat}"), passes);
            attempt.failure = failure.map(str::to_owned);
            outcome.journal.attempts.push(attempt);
        }
        let outcome = CampaignOutcome::of(outcome.journal).unwrap();
        let cell = find(&outcome, name);
        assert_eq!(cell.status, CellStatus::NotMeasured);
        assert_eq!(cell.throughputs_kb_s.len(), 1);
        assert!((cell.throughput.unwrap().median - 100.0).abs() < 1e-6);
        assert_eq!(cell.failures, ["nginx has ended"]);
        assert_eq!(outcome.failed_cells(), 1);
        let whole = sample_outcome(1, "none");
        assert_eq!(whole.failed_cells(), 0);
    }

    #[test]
    fn failed_transfer_is_a_figure_of_0() {
        let name = "CIFS/T1/0s/loss=0%/B";
        let mut outcome = sample_outcome(1, name);
        let mut failed = pass(&format!("{name}/fec=none/random-once#1"), 1_000_000, 100.0);
        failed.failure = Some("timed out".to_owned());
        let series = format!("{name}/fec=none#1");
        outcome
            .journal
            .attempts
            .push(attempt(&series, vec![failed]));
        let outcome = CampaignOutcome::of(outcome.journal).unwrap();
        assert_eq!(find(&outcome, name).status, CellStatus::Failed);
        assert_eq!(find(&outcome, name).throughputs_kb_s, [0.0]);
        assert_eq!(outcome.failed_cells(), 1);
    }

    #[test]
    fn damaged_file_of_any_attempt_is_a_fault() {
        let name = "CIFS/T1/0s/loss=0%/B";
        // The damaged attempt is the cleaner one, or has foreign packets and is repeated.
        for foreign in [[0, 50], [50, 0]] {
            let mut outcome = sample_outcome(1, name);
            for (index, foreign) in foreign.into_iter().enumerate() {
                let cell = format!("{name}/fec=none/random-once#1");
                let mut pass = pass(&cell, 1_000_000, 100.0 + index as f64);
                pass.foreign_packets = foreign;
                if index == 0 {
                    pass.files[0].found_hash = Some("b".to_owned());
                }
                let mut attempt = attempt(&format!("{name}/fec=none#1"), vec![pass]);
                attempt.attempt = index as u32 + 1;
                outcome.journal.attempts.push(attempt);
            }
            let outcome = CampaignOutcome::of(outcome.journal).unwrap();
            let cell = find(&outcome, name);
            assert!((cell.throughput.unwrap().median - 101.0).abs() < 1e-6);
            assert!(!cell.is_identical());
            let [fault] = &outcome.faults()[..] else {
                panic!("{:?}", outcome.faults());
            };
            assert!(fault.contains("attempt 1"), "{fault}");
        }
    }

    #[test]
    fn repeats_give_an_interval() {
        let outcome = sample_outcome(6, "none");
        let cell = find(&outcome, "CIFS/OC-1/30ms/loss=0%/B");
        let estimate = cell.throughput.unwrap();
        assert_eq!(estimate.count, 6);
        let interval = estimate.interval.unwrap();
        assert!((interval.low - 850.9).abs() < 0.01 && (interval.high - 851.4).abs() < 0.01);
    }
}
