//! In which order cells are measured, and what beside what.
//!
//! ```text
//!  cells ─► groups (link, delay, mode) ─► light ones, several lanes at once ─┐
//!                                     └─► heavy ones, one after the other ───┴─► Report
//! ```
//! A cell whose round trips are wanted needs the same one without delay; where that one was not
//! asked for it is measured for a third of the time and kept as a reference. A cell that fails is
//! named with its reason and the rest goes on; an interrupted run returns what it has.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::cells::{Cell, Client, LinkKind, Mode, Protection, SMALL_FILES, SMALL_FILES_OF_DEFAULT};
use super::clients::Clients;
use super::published;
use super::stand::{CellResult, Document, DocumentTimes, Lane};
use host::progress::Progress;
use host::{Environment, kernel, rootless};
use lab::preflight::{self, Captures, Interception, Needs};

/// How many light lanes run at once: six T1 take a twentieth of one processor's time.
const LIGHT_LANES: usize = 6;

/// Documents are opened and saved over this link and delay: the nearest of ours to the published
/// one, whose RTT was 146 to 156 ms.
const DOCUMENT_LINK: (LinkKind, u32) = (LinkKind::T1, 75);

/// The documents of a run without options.
const DEFAULT_DOCUMENTS: [&str; 3] = ["50K.doc", "500K.doc", "2M.doc"];

/// The signed cell that is measured once more without the key.
const WITHOUT_KEY: Cell = Cell {
    client: Client::SerialGet,
    link: LinkKind::Oc1,
    one_way_delay_ms: 100,
    protection: Protection::Hmac,
    mode: Mode::Application,
};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Which cells.
    pub cells: Vec<Cell>,
    /// Modes in which documents are opened and saved; empty for none.
    pub document_modes: Vec<Mode>,
    /// Every document and every small file, instead of some.
    pub is_full: bool,
    /// Whether the signed cell is measured without the key, too.
    pub with_withheld_key: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// In the order in which they were asked for.
    pub cells: Vec<CellResult>,
    /// Cells without delay that round trips were counted against.
    pub references: Vec<CellResult>,
    /// Documents opened and saved.
    pub documents: Vec<DocumentTimes>,
    /// The signed cell without the key.
    pub without_key: Option<CellResult>,
    /// What failed, and why.
    pub not_measured: Vec<NotMeasured>,
    /// Whether somebody ended it early.
    pub is_interrupted: bool,
}

/// A cell that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotMeasured {
    /// Its name.
    pub cell: String,
    /// Why.
    pub reason: String,
}

/// One thing to measure.
#[derive(Clone, Debug, PartialEq)]
enum Job {
    Cell(Cell),
    Reference(Cell),
    WithoutKey(Cell),
    Document(Document),
}

/// Jobs that share a link and nodes.
#[derive(Clone, Debug)]
struct Group {
    link: LinkKind,
    one_way_delay_ms: u32,
    mode: Mode,
    is_light: bool,
    has_key: bool,
    jobs: Vec<Job>,
}

/// What a lane tells.
enum Event {
    Begins(String),
    Measured(Job, Box<CellResult>),
    Opened(Vec<DocumentTimes>),
    Failed(String, String),
    Behind(f64),
}

/// Measures all that was chosen.
///
/// # Errors
/// When something is missing that all of it needs.
pub fn measure(
    environment: &Environment,
    clients: &Clients,
    choice: &Choice,
    progress: &dyn Progress,
) -> Result<Report> {
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = Needs {
        servers: vec![lab::servers::Kind::Smb],
        clients: programs(&choice.cells),
        interception: Interception::Transparent,
        captures: Captures::None,
    };
    preflight::check(&needs, privileges)?;
    ensure!(
        !choice.cells.is_empty() || !choice.document_modes.is_empty(),
        "nothing is to be measured"
    );
    let groups = groups(choice);
    let whole: f64 = groups
        .iter()
        .flat_map(|group| group.jobs.iter().map(|job| weight(job, choice, group)))
        .sum();
    let mut report = Report::default();
    let mut behind = 0.0;
    let (light, heavy): (Vec<Group>, Vec<Group>) =
        groups.into_iter().partition(|group| group.is_light);
    for (groups, lanes) in [(light, LIGHT_LANES), (heavy, 1)] {
        let bench = Bench {
            environment,
            clients,
            choice,
        };
        bench.run(groups, lanes, |event| match event {
            Event::Begins(name) => progress.step(behind / whole, &name),
            Event::Behind(weight) => behind += weight,
            event => report.take(event),
        });
    }
    report.is_interrupted = kernel::interrupted();
    report.finish(&choice.cells);
    Ok(report)
}

fn programs(cells: &[Cell]) -> Vec<&'static str> {
    // A path is made known by it.
    let mut programs = vec!["smbclient"];
    if cells.iter().any(|cell| cell.client == Client::Smbnetfs) {
        programs.push("smbnetfs");
    }
    programs
}

/// The jobs of a choice by link and nodes, those that take longest first.
fn groups(choice: &Choice) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut add = |link, one_way_delay_ms, mode, is_light, job| {
        let has_key = !matches!(job, Job::WithoutKey(_));
        let found = groups.iter_mut().find(|group| {
            (group.link, group.one_way_delay_ms) == (link, one_way_delay_ms)
                && (group.mode, group.is_light, group.has_key) == (mode, is_light, has_key)
        });
        match found {
            Some(group) => group.jobs.push(job),
            None => groups.push(Group {
                link,
                one_way_delay_ms,
                mode,
                is_light,
                has_key,
                jobs: vec![job],
            }),
        }
    };
    let mut add_cell = |cell: Cell, job| {
        add(
            cell.link,
            cell.one_way_delay_ms,
            cell.mode,
            cell.is_light(),
            job,
        );
    };
    for cell in &choice.cells {
        add_cell(*cell, Job::Cell(*cell));
    }
    let mut references: Vec<Cell> = Vec::new();
    for cell in &choice.cells {
        let reference = cell.without_delay();
        if !choice.cells.contains(&reference) && !references.contains(&reference) {
            references.push(reference);
            add_cell(reference, Job::Reference(reference));
        }
    }
    if choice.with_withheld_key {
        add_cell(WITHOUT_KEY, Job::WithoutKey(WITHOUT_KEY));
    }
    let (link, delay) = DOCUMENT_LINK;
    for mode in &choice.document_modes {
        for document in documents(choice.is_full) {
            add(link, delay, *mode, true, Job::Document(document));
        }
    }
    groups.sort_by(|a, b| {
        let seconds = |group: &Group| -> f64 {
            group
                .jobs
                .iter()
                .map(|job| weight(job, choice, group))
                .sum()
        };
        seconds(b).total_cmp(&seconds(a))
    });
    groups
}

fn documents(is_full: bool) -> Vec<Document> {
    published::documents()
        .into_iter()
        .filter(|document| is_full || DEFAULT_DOCUMENTS.contains(&document.file.as_str()))
        .map(|document| Document {
            file: document.file,
            bytes: (document.size_kb * 1e3) as u64,
        })
        .collect()
}

/// How long a transfer goes on, in seconds.
fn span(job: &Job, link: LinkKind) -> f64 {
    let whole = link.span().as_secs_f64();
    match job {
        Job::Cell(_) | Job::WithoutKey(_) | Job::Document(_) => whole,
        Job::Reference(_) => whole / 3.0,
    }
}

fn files(client: Client, is_full: bool) -> usize {
    match client {
        Client::SmallRead | Client::SmallWrite if !is_full => SMALL_FILES_OF_DEFAULT,
        _ => SMALL_FILES,
    }
}

/// How long a job takes, in seconds, roughly.
fn weight(job: &Job, choice: &Choice, group: &Group) -> f64 {
    let rtt = 2.0 * f64::from(group.one_way_delay_ms) / 1e3;
    match job {
        Job::Cell(cell) | Job::Reference(cell) | Job::WithoutKey(cell) => {
            let work = match cell.client {
                client if client.is_bulk() => span(job, cell.link),
                Client::Listing => 8.0 * rtt,
                client => {
                    // What the modes are held to is 0.2 and 2.1 at most.
                    let round_trips = match cell.mode {
                        Mode::Relaxed => 1.0,
                        Mode::Application => 2.2,
                        Mode::Baseline | Mode::Tcp => 3.0,
                    };
                    files(client, choice.is_full) as f64 * (round_trips * rtt + 0.01)
                }
            };
            work + 10.0 * rtt + 3.0
        }
        Job::Document(document) => 2.0 * document.bytes as f64 / 8_192.0 * rtt,
    }
}

impl Job {
    fn name(&self) -> String {
        match self {
            Self::Cell(cell) => cell.name(),
            Self::Reference(cell) => format!("{} (reference)", cell.name()),
            Self::WithoutKey(cell) => format!("{} (without key)", cell.name()),
            Self::Document(document) => format!("open and save {}", document.file),
        }
    }
}

struct Bench<'a> {
    environment: &'a Environment,
    clients: &'a Clients,
    choice: &'a Choice,
}

impl Bench<'_> {
    /// Runs groups on so many lanes at once, and hands on what they tell.
    fn run(&self, mut groups: Vec<Group>, lanes: usize, mut take: impl FnMut(Event)) {
        groups.reverse();
        let lanes = lanes.min(groups.len());
        let left = Arc::new(Mutex::new(groups));
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            for _ in 0..lanes {
                let (tell, left) = (tell.clone(), Arc::clone(&left));
                scope.spawn(move || {
                    let mut lane = None;
                    let next = || {
                        let mut left = left.lock().unwrap_or_else(|lock| lock.into_inner());
                        left.pop()
                    };
                    while let Some(group) = next() {
                        self.run_group(&group, &mut lane, &tell);
                    }
                });
            }
            drop(tell);
            for event in told {
                take(event);
            }
        });
    }

    fn run_group(&self, group: &Group, lane: &mut Option<Lane>, tell: &mpsc::Sender<Event>) {
        // Nobody listens any more only when the listener has panicked.
        let say = |event| drop(tell.send(event));
        let mut is_ready = false;
        for job in &group.jobs {
            if kernel::interrupted() {
                return;
            }
            say(Event::Begins(job.name()));
            let outcome = self
                .prepare(group, lane, &mut is_ready)
                .and_then(|lane| self.run_job(job, group, lane));
            match outcome {
                Ok(event) => say(event),
                Err(_) if kernel::interrupted() => return,
                Err(error) => {
                    say(Event::Failed(job.name(), format!("{error:#}")));
                    // Whatever broke shall not break the next.
                    *lane = None;
                    is_ready = false;
                }
            }
            say(Event::Behind(weight(job, self.choice, group)));
        }
    }

    /// Brings a lane into the state that the group's jobs need.
    fn prepare<'l>(
        &self,
        group: &Group,
        lane: &'l mut Option<Lane>,
        is_ready: &mut bool,
    ) -> Result<&'l mut Lane> {
        if lane.is_none() {
            *lane = Some(Lane::create(self.environment, Some(self.clients))?);
            *is_ready = false;
        }
        let lane = lane.as_mut().expect("it was made above");
        if !*is_ready {
            lane.set_link(group.link, group.one_way_delay_ms)?;
            if group.mode != Mode::Baseline {
                lane.delegate_key(group.has_key);
                lane.start_nodes(group.mode)?;
            }
            *is_ready = true;
        }
        Ok(lane)
    }

    fn run_job(&self, job: &Job, group: &Group, lane: &mut Lane) -> Result<Event> {
        match job {
            Job::Cell(cell) | Job::Reference(cell) | Job::WithoutKey(cell) => {
                let files = files(cell.client, self.choice.is_full);
                let result = lane.measure(cell, span(job, cell.link), files)?;
                Ok(Event::Measured(job.clone(), Box::new(result)))
            }
            Job::Document(document) => Ok(Event::Opened(lane.open_and_save(document, group.mode)?)),
        }
    }
}

impl Report {
    fn take(&mut self, event: Event) {
        match event {
            Event::Measured(Job::Reference(_), result) => self.references.push(*result),
            Event::Measured(Job::WithoutKey(_), result) => self.without_key = Some(*result),
            Event::Measured(Job::Cell(_) | Job::Document(_), result) => self.cells.push(*result),
            Event::Opened(times) => self.documents.extend(times),
            Event::Failed(cell, reason) => self.not_measured.push(NotMeasured { cell, reason }),
            Event::Begins(_) | Event::Behind(_) => {}
        }
    }

    /// Puts cells into the order in which they were asked for, and counts their round trips.
    fn finish(&mut self, asked: &[Cell]) {
        let place = |cell: &Cell| asked.iter().position(|each| each == cell);
        self.cells.sort_by_key(|result| place(&result.cell));
        let without_delay: Vec<CellResult> = self
            .cells
            .iter()
            .chain(&self.references)
            .filter(|result| result.cell.one_way_delay_ms == 0)
            .cloned()
            .collect();
        for result in self.cells.iter_mut().chain(&mut self.without_key) {
            let same = result.cell.without_delay();
            if let Some(reference) = without_delay.iter().find(|other| other.cell == same) {
                result.count_round_trips(reference);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::Outcome;
    use super::super::stand::result_of;
    use super::*;

    fn choice(cells: Vec<Cell>) -> Choice {
        Choice {
            cells,
            document_modes: vec![],
            is_full: false,
            with_withheld_key: false,
        }
    }

    /// A measured cell of so many seconds for a megabyte, or for so many files.
    fn result(cell: Cell, seconds: f64, files: usize) -> CellResult {
        let outcome = Outcome {
            bytes: 1_000_000,
            seconds,
            files,
            opens: 1,
            closes: 1,
            is_identical: true,
            open_seconds: 0.0,
            save_seconds: 0.0,
        };
        result_of(cell, &outcome)
    }

    #[test]
    fn the_default_run_fits_its_limit() {
        let mut choice = choice(Cell::of_default());
        choice.document_modes = vec![Mode::Baseline, Mode::Application];
        choice.with_withheld_key = true;
        let (mut light, mut heavy, mut starts) = (0.0, 0.0, 0.0);
        for group in groups(&choice) {
            let seconds: f64 = group
                .jobs
                .iter()
                .map(|job| weight(job, &choice, &group))
                .sum();
            match group.is_light {
                true => light += seconds,
                false => {
                    heavy += seconds;
                    // Nodes that find each other, and bulk data both ways.
                    starts += 15.0;
                }
            }
        }
        let minutes = (light / LIGHT_LANES as f64 + heavy + starts) / 60.0;
        assert!(minutes < 38.0, "{minutes} minutes");
    }

    #[test]
    fn what_has_no_counterpart_without_delay_gets_a_reference() {
        let with_delay = Cell {
            one_way_delay_ms: 100,
            ..WITHOUT_KEY
        };
        let jobs = |cells: Vec<Cell>| -> Vec<Job> {
            let groups = groups(&choice(cells));
            groups.into_iter().flat_map(|group| group.jobs).collect()
        };
        let alone = jobs(vec![with_delay]);
        assert!(alone.contains(&Job::Reference(with_delay.without_delay())));
        let both = jobs(vec![with_delay, with_delay.without_delay()]);
        assert!(both.iter().all(|job| matches!(job, Job::Cell(_))));
    }

    #[test]
    fn round_trips_are_what_delay_adds_by_the_rtt() {
        let cell = Cell {
            one_way_delay_ms: 100,
            ..WITHOUT_KEY
        };
        let small = Cell {
            client: Client::SmallRead,
            ..cell
        };
        let mut report = Report {
            cells: vec![result(cell, 5.0, 0), result(small, 62.0, 100)],
            references: vec![
                result(cell.without_delay(), 1.0, 0),
                result(small.without_delay(), 20.0, 1_000),
            ],
            ..Report::default()
        };
        report.finish(&[small, cell]);
        let [first, second] = &report.cells[..] else {
            panic!("two cells");
        };
        assert_eq!(first.cell, small);
        assert!((first.wan_round_trips.unwrap() - 300.0).abs() < 1e-6);
        assert!((first.wan_round_trips_per_file.unwrap() - 3.0).abs() < 1e-6);
        assert!((second.wan_round_trips.unwrap() - 20.0).abs() < 1e-6);
    }
}
