//! Runs on the test bed, one function for each kind.

use std::time::Duration;

use anyhow::{Result, ensure};
use tunnel::fec::RepairMode;

use super::super::cells::{PLAIN, PathCell};
use super::super::exchanges::{FirstByte, SHORT_ANSWER};
use super::super::report::FlowCost;
use super::super::series::{FlowPair, FlowStep, STEP};
use super::super::shares::{FROM as SHARE_FROM, RivalController, SPAN as SHARE_SPAN};
use super::super::transfers::{PathCellResult, WHOLE, mbit};
use super::super::{mode_name, quantile};
use super::hosts::BulkDownload;
use super::stand::{FlowMode, SessionTestBed};
use host::machine::ProcessorTime;
use lab::topology::LabSite;

/// Exchanges in real time; those of the figures are counted in virtual time.
const EXCHANGES: usize = 100;
const QUESTION: u64 = 100;
const ANSWER: u64 = 64 << 10;

/// Time between the starts of two flows.
const STAGGER: Duration = Duration::from_millis(100);

/// One run without an emulator: its beginning does not count for the rate.
pub(super) const CPU_FROM: Duration = Duration::from_secs(2);
pub(super) const CPU_SPAN: Duration = Duration::from_secs(8);

/// Whose a flow is.
#[derive(Clone, Copy, Debug)]
enum FlowOwner {
    Ours,
    Kernel(RivalController),
}

impl SessionTestBed {
    /// One path with one mode and seed.
    pub(super) fn cell(
        &mut self,
        cell: &PathCell,
        fec: RepairMode,
        seed: u64,
    ) -> Result<PathCellResult> {
        self.set_link(cell, cell.queue_bdp(), seed)?;
        self.start_nodes(fec)?;
        let whole = self.whole_transfer()?;
        let (from, to) = cell.steady();
        let bulk = self.connect(FlowMode::Carried)?.take_all(QUESTION)?;
        self.pause_until(&bulk, from)?;
        let (before, line_before) = (bulk.received()?, self.offered_and_dropped()?);
        let (began, busy) = (bulk.age(), ProcessorTime::now()?);
        self.pause_until(&bulk, to)?;
        let (received, line) = (bulk.received()? - before, self.offered_and_dropped()?);
        let span = bulk.age().saturating_sub(began);
        let idle = 1.0 - ProcessorTime::now()?.busy_since(busy);
        let path = self.path()?;
        let udp = self.status(LabSite::Far)?["peers"][0]["path"]["udp"].clone();
        drop(bulk);
        // Only the plain path tells it: a second start of a node on each would take too long.
        let remembered = match *cell == PLAIN {
            true => {
                self.restart_near_node()?;
                Some(self.whole_transfer()?)
            }
            false => None,
        };
        let offered = line.0.saturating_sub(line_before.0);
        let dropped = line.1.saturating_sub(line_before.1);
        Ok(PathCellResult {
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
        let client = self.connect(FlowMode::Carried)?;
        let (_, last) = client.first_and_last_byte(QUESTION, WHOLE)?;
        Ok(mbit(WHOLE) / last.as_secs_f64())
    }

    fn pause_until(&mut self, bulk: &BulkDownload, age: Duration) -> Result<()> {
        self.pause(age.saturating_sub(bulk.age()))
    }

    /// Measures the times of first bytes.
    pub(super) fn first_byte(&mut self, seed: u64) -> Result<FirstByte> {
        const OPENS: usize = 20;
        self.set_link(&PLAIN, PLAIN.queue_bdp(), seed)?;
        self.start_nodes(RepairMode::Auto)?;
        let new_session = self.first_byte_of(ANSWER)?;
        let mut times = Vec::new();
        let mut of_short_answers = Duration::ZERO;
        for _ in 0..OPENS {
            self.pause(Duration::from_millis(300))?;
            times.push(self.first_byte_of(ANSWER)?);
            let short = self.first_byte_of(SHORT_ANSWER)?;
            of_short_answers = of_short_answers.max(short);
        }
        self.pause(Duration::from_secs(10))?;
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
        let client = self.connect(FlowMode::Carried)?;
        let (first, _) = client.first_and_last_byte(QUESTION, answer)?;
        Ok(first)
    }

    /// Waiting times of exchanges, and the share of repair symbols.
    pub(super) fn exchanges(&mut self, loss: f64, seed: u64) -> Result<(Vec<Duration>, f64)> {
        let cell = PathCell { loss, ..PLAIN };
        self.set_link(&cell, cell.queue_bdp(), seed)?;
        self.start_nodes(RepairMode::Auto)?;
        let client = self.connect(FlowMode::Carried)?;
        let times = client.exchanges(QUESTION, ANSWER, EXCHANGES)?;
        let udp = self.status(LabSite::Far)?["peers"][0]["path"]["udp"].clone();
        let repairs = udp["repair_percent"].as_f64().unwrap_or_default() / 100.0;
        Ok((times, repairs))
    }

    /// A flow of ours, and a kernel's that passes by both nodes.
    pub(super) fn run_beside_rival(
        &mut self,
        rival: RivalController,
        queue_bdp: f64,
        seed: u64,
    ) -> Result<FlowPair> {
        self.set_link(&PLAIN, queue_bdp, seed)?;
        self.start_nodes(RepairMode::Auto)?;
        let ours = self.connect(FlowMode::Carried)?.take_all(QUESTION)?;
        self.pause(STAGGER)?;
        let theirs = self.connect_rival(rival.name())?.take_all(QUESTION)?;
        self.watch([(ours, FlowOwner::Ours), (theirs, FlowOwner::Kernel(rival))])
    }

    /// A kernel's CUBIC and its BBR, both past the nodes.
    pub(super) fn rivals_alone(&mut self, queue_bdp: f64, seed: u64) -> Result<FlowPair> {
        self.set_link(&PLAIN, queue_bdp, seed)?;
        self.start_nodes(RepairMode::Auto)?;
        let [first, second] = [RivalController::Cubic, RivalController::Bbr];
        let cubic = self.connect_rival(first.name())?.take_all(QUESTION)?;
        self.pause(STAGGER)?;
        let bbr = self.connect_rival(second.name())?.take_all(QUESTION)?;
        self.watch([
            (cubic, FlowOwner::Kernel(first)),
            (bbr, FlowOwner::Kernel(second)),
        ])
    }

    /// Both until the end, and how they were after each step.
    fn watch(&mut self, flows: [(BulkDownload, FlowOwner); 2]) -> Result<FlowPair> {
        let received =
            || -> Result<[u64; 2]> { Ok([flows[0].0.received()?, flows[1].0.received()?]) };
        let mut run = FlowPair::default();
        let dropped_before = self.dropped_by_queue()?;
        let mut before = [0; 2];
        let mut at = Duration::ZERO;
        while at < SHARE_FROM + SHARE_SPAN {
            at += STEP;
            self.pause_until(&flows[0].0, at)?;
            let (now, age) = (received()?, flows[0].0.age());
            if at == SHARE_FROM {
                before = now;
            }
            run.bytes = [now[0] - before[0], now[1] - before[1]];
            let dropped = self.dropped_by_queue()?.saturating_sub(dropped_before);
            let mut states = [FlowStep::default(), FlowStep::default()];
            for (state, (bulk, who)) in states.iter_mut().zip(&flows) {
                *state = match who {
                    FlowOwner::Ours => FlowStep::of_node(&self.status(LabSite::Far)?),
                    FlowOwner::Kernel(rival) => {
                        let socket = self.rival_socket(bulk.port()?)?;
                        FlowStep::of_socket(&socket, rival.name())
                    }
                };
            }
            run.add(age, now, dropped, states);
        }
        Ok(run)
    }

    /// Cost of a flow without an emulator between the nodes.
    pub(super) fn cost(&mut self, flow: FlowMode) -> Result<FlowCost> {
        self.join_directly()?;
        self.start_nodes(RepairMode::Auto)?;
        let sites = [LabSite::Near, LabSite::Far];
        let mut nodes_before = [Duration::ZERO; 2];
        for (time, site) in nodes_before.iter_mut().zip(sites) {
            *time = self.processor_time(site)?;
        }
        let server_before = self.server_processor_time(flow);
        let bulk = self.connect(flow)?.take_all(QUESTION)?;
        self.pause_until(&bulk, CPU_FROM)?;
        let (before, began, busy) = (bulk.received()?, bulk.age(), ProcessorTime::now()?);
        self.pause_until(&bulk, CPU_FROM + CPU_SPAN)?;
        let received = bulk.received()? - before;
        let span = bulk.age().saturating_sub(began);
        let idle = 1.0 - ProcessorTime::now()?.busy_since(busy);
        let path = self.path()?;
        let (all, client) = bulk.finish();
        ensure!(all > 0, "nothing came through the nodes");
        // The server's thread ends when it hears that the client hung up.
        self.pause(Duration::from_secs(1))?;
        let server = self.server_processor_time(flow) - server_before;
        let mut nodes = [Duration::ZERO; 2];
        for ((time, site), before) in nodes.iter_mut().zip(sites).zip(nodes_before) {
            *time = self.processor_time(site)?.saturating_sub(before);
        }
        let per_gb = |time: Duration| time.as_secs_f64() / (all as f64 / 1e9);
        Ok(FlowCost {
            is_reduced: flow == FlowMode::Reduced,
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
