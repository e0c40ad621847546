//! The same in real time: two nodes as processes, the emulator between them, hosts at both ends.
//!
//! What is measured is whatever path the nodes take, and results name it. Where the machine is short
//! of processor time (`cpu_idle_percent`), virtual time decides.
//!
//! `stand.rs` is the place, `hosts.rs` the hosts; here is what is done there.

mod hosts;
mod stand;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use tunnel::fec::Mode;

use self::hosts::Bulk;
use self::stand::{Flow, Stand};
use super::bench::{Choice, Measurement, Report};
use super::cells::{Cell, PLAIN};
use super::exchanges::{Exchanges, FirstByte, Latencies, SHORT_ANSWER};
use super::shares::{QUEUES, Rival, Shares};
use super::transfers::{CellResult, WHOLE, mbit};
use super::{mode_name, quantile};
use crate::host::ProcessorTime;
use crate::median::median;
use crate::preflight::{self, Captures, Interception, Needs};
use crate::progress::Progress;
use crate::topology::Site;
use crate::{Environment, rootless};

/// Exchanges in real time; those of the figures are counted in virtual time.
const EXCHANGES: usize = 100;
const EXCHANGE_LOSS: f64 = 0.01;
const QUESTION: u64 = 100;
const ANSWER: u64 = 64 << 10;

/// A rival and a flow of ours share a queue for so long before bytes count, and then for so long.
const SHARE_FROM: Duration = Duration::from_secs(20);
const SHARE_SPAN: Duration = Duration::from_secs(60);
const STAGGER: Duration = Duration::from_millis(100);

/// One run without an emulator: its beginning does not count for the rate.
const CPU_FROM: Duration = Duration::from_secs(2);
const CPU_SPAN: Duration = Duration::from_secs(8);

/// What one flow costs, client and server on the same processors, with no emulator between.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Whether the flow was reduced.
    pub is_reduced: bool,
    /// Application bytes.
    pub gbit_s: f64,
    /// What frames travelled in.
    pub path: String,
    /// Processor seconds for 10⁹ bytes, of each process or thread.
    pub near_cpu_s_per_gb: f64,
    /// See above.
    pub far_cpu_s_per_gb: f64,
    /// See above.
    pub client_cpu_s_per_gb: f64,
    /// See above.
    pub server_cpu_s_per_gb: f64,
    /// Idle share of the processors.
    pub cpu_idle_percent: f64,
}

/// Measures all that can be in real time.
///
/// # Errors
/// When something is missing, does not start or breaks off, or the lab is interrupted.
pub fn measure(
    environment: &Environment,
    choice: &Choice,
    progress: &dyn Progress,
) -> Result<Report> {
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = Needs {
        servers: vec![],
        clients: vec![],
        interception: Interception::Transparent,
        captures: Captures::None,
    };
    preflight::check(&needs, privileges)?;
    let mut bench = Bench {
        stand: Stand::create(environment)?,
        choice,
        progress,
        report: Report::default(),
        behind: 0.0,
    };
    bench.run()?;
    bench.report.set_medians();
    Ok(bench.report)
}

struct Bench<'a> {
    stand: Stand,
    choice: &'a Choice,
    progress: &'a dyn Progress,
    report: Report,
    /// Seconds that are behind it, by the estimate.
    behind: f64,
}

impl Measurement {
    /// How long it takes in real time with one seed and mode, roughly; `None` when it is measured in
    /// virtual time alone.
    fn seconds(&self) -> Option<f64> {
        match self {
            Self::Cell(cell) => Some(cell.steady().1.as_secs_f64() + 14.0),
            Self::FirstByte | Self::Exchanges => Some(25.0),
            Self::Beside(_) => Some(2.0 * (SHARE_FROM + SHARE_SPAN).as_secs_f64() + 10.0),
            Self::Cpu => Some(2.0 * (CPU_FROM + CPU_SPAN).as_secs_f64() + 5.0),
            Self::SmallFlow | Self::Sessions => None,
        }
    }
}

impl Bench<'_> {
    fn run(&mut self) -> Result<()> {
        let choice = self.choice;
        let whole: f64 = choice
            .measurements
            .iter()
            .filter_map(Measurement::seconds)
            .sum();
        // Nodes that were joined directly stay so: what needs no link comes last.
        let (last, first): (Vec<&Measurement>, Vec<&Measurement>) = choice
            .measurements
            .iter()
            .partition(|measurement| **measurement == Measurement::Cpu);
        for measurement in first.into_iter().chain(last) {
            let Some(seconds) = measurement.seconds() else {
                continue;
            };
            self.progress.step(self.behind / whole, &measurement.name());
            self.measure_one(measurement)?;
            self.behind += seconds;
        }
        Ok(())
    }

    fn measure_one(&mut self, measurement: &Measurement) -> Result<()> {
        let seeds = self.choice.seed..self.choice.seed + self.choice.repeat;
        match measurement {
            Measurement::Cell(cell) => {
                for mode in &self.choice.modes {
                    for seed in seeds.clone() {
                        let result = self.cell(cell, *mode, seed)?;
                        self.report.runs.push(result);
                    }
                }
            }
            Measurement::FirstByte => {
                for seed in seeds {
                    let times = self.first_byte(seed)?;
                    self.report.take_first_byte(times);
                }
            }
            Measurement::Exchanges => {
                for loss in [0.0, EXCHANGE_LOSS] {
                    let exchanges = self.exchanges(loss, seeds.clone())?;
                    self.report.exchanges.push(exchanges);
                }
            }
            Measurement::Beside(rival) => {
                for queue_bdp in QUEUES {
                    let runs: Result<Vec<[u64; 2]>> = seeds
                        .clone()
                        .map(|seed| self.beside(*rival, queue_bdp, seed))
                        .collect();
                    let shares = Shares::of(rival.name(), queue_bdp, &runs?);
                    self.report.shares.push(shares);
                }
            }
            Measurement::Cpu => {
                self.stand.join_directly()?;
                for flow in [Flow::Carried, Flow::Reduced] {
                    for _ in seeds.clone() {
                        let cost = self.cost(flow)?;
                        self.report.costs.push(cost);
                    }
                }
            }
            Measurement::SmallFlow | Measurement::Sessions => {}
        }
        Ok(())
    }

    fn cell(&mut self, cell: &Cell, fec: Mode, seed: u64) -> Result<CellResult> {
        self.stand.set_link(cell, cell.queue_bdp(), seed)?;
        self.stand.start_nodes(fec)?;
        let whole = self.whole_transfer()?;
        let (from, to) = cell.steady();
        let bulk = self.stand.connect(Flow::Carried)?.take_all(QUESTION)?;
        self.pause_until(&bulk, from)?;
        let (before, line_before) = (bulk.received()?, self.stand.offered_and_dropped()?);
        let (began, busy) = (bulk.age(), ProcessorTime::now()?);
        self.pause_until(&bulk, to)?;
        let (received, line) = (bulk.received()? - before, self.stand.offered_and_dropped()?);
        let span = bulk.age().saturating_sub(began);
        let idle = 1.0 - ProcessorTime::now()?.busy_since(busy);
        let path = self.stand.path()?;
        let udp = self.stand.status(Site::Far)?["peers"][0]["path"]["udp"].clone();
        drop(bulk);
        // Only the plain path tells it: a second start of a node on each would take too long.
        let remembered = match *cell == PLAIN {
            true => {
                self.stand.restart_near_node()?;
                Some(self.whole_transfer()?)
            }
            false => None,
        };
        let offered = line.0.saturating_sub(line_before.0);
        let dropped = line.1.saturating_sub(line_before.1);
        Ok(CellResult {
            cell: *cell,
            fec: mode_name(fec),
            goodput_mbit_s: mbit(received) / span.as_secs_f64(),
            whole_transfer_mbit_s: whole,
            cpu_idle_percent: Some(idle * 100.0),
            r#virtual: false,
            whole_transfer_remembered_mbit_s: remembered,
            path,
            steady_from_s: from.as_secs_f64(),
            steady_to_s: to.as_secs_f64(),
            rate_integral_mbit: cell.rate_integral_mbit(),
            policed_mbit_s: cell.policed_mbit_s(),
            queueing_p95_ms: None,
            lost_share: dropped as f64 / offered.max(1) as f64,
            // Since the link came up, which is what a node tells.
            repair_share: udp["repair_percent"].as_f64().unwrap_or_default() / 100.0,
            spurious_share: None,
            goodput_over_off: None,
            whole_transfer_over_off: None,
            seeds: vec![seed],
        })
    }

    fn whole_transfer(&self) -> Result<f64> {
        let client = self.stand.connect(Flow::Carried)?;
        let (_, last) = client.first_and_last_byte(QUESTION, WHOLE)?;
        Ok(mbit(WHOLE) / last.as_secs_f64())
    }

    fn pause_until(&mut self, bulk: &Bulk, age: Duration) -> Result<()> {
        self.stand.pause(age.saturating_sub(bulk.age()))
    }

    fn first_byte(&mut self, seed: u64) -> Result<FirstByte> {
        const OPENS: usize = 20;
        self.stand.set_link(&PLAIN, PLAIN.queue_bdp(), seed)?;
        self.stand.start_nodes(Mode::Auto)?;
        let new_session = self.first_byte_of(ANSWER)?;
        let mut times = Vec::new();
        let mut of_short_answers = Duration::ZERO;
        for _ in 0..OPENS {
            self.stand.pause(Duration::from_millis(300))?;
            times.push(self.first_byte_of(ANSWER)?);
            let short = self.first_byte_of(SHORT_ANSWER)?;
            of_short_answers = of_short_answers.max(short);
        }
        self.stand.pause(Duration::from_secs(10))?;
        let after_silence = self.first_byte_of(ANSWER)?;
        let in_rtt = |span: Duration| span.as_secs_f64() / PLAIN.rtt().as_secs_f64();
        let longest = times.iter().copied().max().unwrap_or_default();
        Ok(FirstByte {
            longest_rtt: in_rtt(longest.max(new_session).max(after_silence)),
            median_rtt: in_rtt(quantile(&mut times, 0.5)),
            new_session_rtt: in_rtt(new_session),
            after_silence_rtt: in_rtt(after_silence),
            short_answer_rtt: in_rtt(of_short_answers),
            opens: 2 * OPENS + 2,
        })
    }

    fn first_byte_of(&self, answer: u64) -> Result<Duration> {
        let client = self.stand.connect(Flow::Carried)?;
        let (first, _) = client.first_and_last_byte(QUESTION, answer)?;
        Ok(first)
    }

    fn exchanges(&mut self, loss: f64, seeds: std::ops::Range<u64>) -> Result<Exchanges> {
        let cell = Cell { loss, ..PLAIN };
        let mut times = Vec::new();
        for seed in seeds {
            self.stand.set_link(&cell, cell.queue_bdp(), seed)?;
            self.stand.start_nodes(Mode::Auto)?;
            let client = self.stand.connect(Flow::Carried)?;
            times.extend(client.exchanges(QUESTION, ANSWER, EXCHANGES)?);
        }
        let udp = self.stand.status(Site::Far)?["peers"][0]["path"]["udp"].clone();
        Ok(Exchanges {
            fec: mode_name(Mode::Auto),
            loss,
            latencies: Latencies::of(times),
            repair_share: udp["repair_percent"].as_f64().unwrap_or_default() / 100.0,
        })
    }

    /// Bytes of ours and of a kernel's flow that passes by both nodes.
    fn beside(&mut self, rival: Rival, queue_bdp: f64, seed: u64) -> Result<[u64; 2]> {
        self.stand.set_link(&PLAIN, queue_bdp, seed)?;
        self.stand.start_nodes(Mode::Auto)?;
        let ours = self.stand.connect(Flow::Carried)?.take_all(QUESTION)?;
        self.stand.pause(STAGGER)?;
        let theirs = self.stand.connect_rival(rival.name())?.take_all(QUESTION)?;
        self.pause_until(&ours, SHARE_FROM)?;
        let before = [ours.received()?, theirs.received()?];
        self.pause_until(&ours, SHARE_FROM + SHARE_SPAN)?;
        let after = [ours.received()?, theirs.received()?];
        Ok([after[0] - before[0], after[1] - before[1]])
    }

    fn cost(&mut self, flow: Flow) -> Result<Cost> {
        self.stand.start_nodes(Mode::Auto)?;
        let sites = [Site::Near, Site::Far];
        let mut nodes_before = [Duration::ZERO; 2];
        for (time, site) in nodes_before.iter_mut().zip(sites) {
            *time = self.stand.processor_time(site)?;
        }
        let server_before = self.stand.server_processor_time(flow);
        let bulk = self.stand.connect(flow)?.take_all(QUESTION)?;
        self.pause_until(&bulk, CPU_FROM)?;
        let (before, began, busy) = (bulk.received()?, bulk.age(), ProcessorTime::now()?);
        self.pause_until(&bulk, CPU_FROM + CPU_SPAN)?;
        let received = bulk.received()? - before;
        let span = bulk.age().saturating_sub(began);
        let idle = 1.0 - ProcessorTime::now()?.busy_since(busy);
        let path = self.stand.path()?;
        let (all, client) = bulk.finish();
        ensure!(all > 0, "nothing came through the nodes");
        // The server's thread ends when it hears that the client hung up.
        self.stand.pause(Duration::from_secs(1))?;
        let server = self.stand.server_processor_time(flow) - server_before;
        let mut nodes = [Duration::ZERO; 2];
        for ((time, site), before) in nodes.iter_mut().zip(sites).zip(nodes_before) {
            *time = self.stand.processor_time(site)?.saturating_sub(before);
        }
        let per_gb = |time: Duration| time.as_secs_f64() / (all as f64 / 1e9);
        Ok(Cost {
            is_reduced: flow == Flow::Reduced,
            gbit_s: mbit(received) / 1e3 / span.as_secs_f64(),
            path,
            near_cpu_s_per_gb: per_gb(nodes[0]),
            far_cpu_s_per_gb: per_gb(nodes[1]),
            client_cpu_s_per_gb: per_gb(client),
            server_cpu_s_per_gb: per_gb(server),
            cpu_idle_percent: idle * 100.0,
        })
    }
}

/// The median rate of flows that were not reduced.
pub(super) fn cpu_gbit_s(costs: &[Cost]) -> Option<f64> {
    let costs = costs.iter().filter(|cost| !cost.is_reduced);
    median(costs.map(|cost| cost.gbit_s))
}
