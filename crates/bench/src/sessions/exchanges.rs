//! Waiting times of short flows in virtual time: for a first byte, for an answer where packets are
//! lost, and beside bulk flows of the same session.
//!
//! All of it on the plain path of 20 Mbit/s and 100 ms. Hosts answer at once and are at no distance
//! from their nodes.

use std::time::Duration;

use serde::Serialize;
use tunnel::fec::RepairMode;
use vocab::{FlowId, Time};

use super::cells::{PLAIN, PathCell};
use super::transfers::share_of_sent;
use super::work::FlowScript;
use super::world::SessionSimulation;
use super::{FAR, NEAR, quantile};

const QUESTION: u64 = 100;
const ANSWER: u64 = 64 << 10;

/// An answer that fits a packet.
pub(super) const SHORT_ANSWER: u64 = 100;

/// Bytes that make a path known: its rate is found and its start-up over.
const WARM_UP: u64 = 16 << 20;

/// Time limit; an answer that is not there by then counts as having taken this long.
const LIMIT: Duration = Duration::from_secs(60);

/// Exchanges of one seed.
pub(super) const EXCHANGES: usize = 2_000;

/// Waiting times of hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyQuantiles {
    /// Times.
    pub count: usize,
    /// Half of them were no longer.
    pub median_ms: f64,
    /// 90 of 100.
    pub p90_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// 999 of 1,000.
    pub p99_9_ms: f64,
    /// All of them.
    pub longest_ms: f64,
}

impl LatencyQuantiles {
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        let mut at = |share: f64| quantile(&mut times, share).as_secs_f64() * 1e3;
        Self {
            median_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p99_9_ms: at(0.999),
            longest_ms: at(1.0),
            count: times.len(),
        }
    }
}

/// Time until the first byte of a flow's answer, in baseline RTT since the client opened the flow
/// with its question, over a session that is up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FirstByte {
    /// The longest of all opens.
    pub longest_rtt: f64,
    /// The median.
    pub median_rtt: f64,
    /// The first flow of a session, right after it has met its peer.
    pub new_session_rtt: f64,
    /// A flow after silence.
    pub after_silence_rtt: f64,
    /// Longest time of flows whose whole answer is 100 bytes. The others are of 64 KiB, of which
    /// nodes deliver the first byte when its record has arrived.
    pub short_answer_rtt: f64,
    /// Opens.
    pub opens: usize,
}

/// Measures first bytes.
pub(super) fn first_byte(seed: u64) -> FirstByte {
    const OPENS: usize = 20;
    let mut world = SessionSimulation::new(PLAIN.plan(seed, RepairMode::Auto, None));
    let new_session_rtt = in_rtt(one(&mut world, 1));
    let mut times = Vec::new();
    let mut of_short_answers = Duration::ZERO;
    for _ in 0..OPENS {
        world.run(Duration::from_millis(500));
        times.push(one(&mut world, 1));
        let short = exchange(&mut world, SHORT_ANSWER, 1);
        of_short_answers = of_short_answers.max(short);
    }
    world.run(Duration::from_secs(60));
    let after_silence_rtt = in_rtt(one(&mut world, 1));
    FirstByte {
        median_rtt: in_rtt(quantile(&mut times, 0.5)),
        longest_rtt: in_rtt(quantile(&mut times, 1.0)).max(after_silence_rtt.max(new_session_rtt)),
        new_session_rtt,
        after_silence_rtt,
        short_answer_rtt: in_rtt(of_short_answers),
        opens: 2 * OPENS + 2,
    }
}

fn in_rtt(span: Duration) -> f64 {
    span.as_secs_f64() / PLAIN.rtt().as_secs_f64()
}

/// Times of exchanges, one after the other in one flow, and the share of packets that were repairs.
pub(super) fn exchanges(loss: f64, fec: RepairMode, seed: u64) -> (Vec<Duration>, f64) {
    let cell = PathCell { loss, ..PLAIN };
    let mut world = SessionSimulation::new(cell.plan(seed, fec, None));
    let before = world.status(FAR);
    let flow = world.start(FlowScript::Exchanges {
        question: QUESTION,
        answer: ANSWER,
        count: EXCHANGES,
    });
    let end = world.now() + LIMIT * EXCHANGES as u32;
    world.run_until(end, |world| {
        world.transfer(flow).exchanges.len() == EXCHANGES
    });
    let mut times = world.transfer(flow).exchanges.clone();
    times.resize(EXCHANGES, LIMIT);
    let repairs = share_of_sent(before.as_ref(), world.status(FAR).as_ref(), |status| {
        status.sent_repairs
    });
    (times, repairs)
}

/// Times of exchanges, by the mode of correction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangeTimes {
    /// `"off"`, `"on"` or `"auto"`.
    pub fec: &'static str,
    /// The share of packets lost, each way.
    pub loss: f64,
    /// Their times.
    #[serde(flatten)]
    pub latencies: LatencyQuantiles,
    /// The far side's packets that were repairs.
    pub repair_share: f64,
}

/// Wait of a new flow for its first 64 KiB, alone and beside sixteen bulk flows of its session; the
/// path is known, and earlier flows are over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SmallFlow {
    /// Alone.
    pub alone: LatencyQuantiles,
    /// Waits beside them.
    pub beside_bulk: LatencyQuantiles,
}

/// Measures small flows.
pub(super) fn small_flow(seed: u64) -> [Vec<Duration>; 2] {
    const FLOWS: usize = 20;
    const BULK: usize = 16;
    let pause = Duration::from_millis(730);
    let mut world = SessionSimulation::new(PLAIN.plan(seed, RepairMode::Auto, None));
    let warm_up = world.start(FlowScript::Download(Some(WARM_UP)));
    wait(&mut world, warm_up, WARM_UP);
    let alone = (0..FLOWS)
        .map(|_| {
            world.run(pause);
            one(&mut world, ANSWER)
        })
        .collect();
    for _ in 0..BULK {
        world.start(FlowScript::Download(None));
    }
    world.run(Duration::from_secs(5));
    let beside = (0..FLOWS)
        .map(|_| {
            world.run(pause);
            one(&mut world, ANSWER)
        })
        .collect();
    [alone, beside]
}

/// Opens a flow and waits for the first bytes of its answer of 64 KiB.
fn one(world: &mut SessionSimulation, bytes: u64) -> Duration {
    exchange(world, ANSWER, bytes)
}

/// Opens a flow and waits for all of its answer; gives how long the first bytes took.
fn exchange(world: &mut SessionSimulation, answer: u64, bytes: u64) -> Duration {
    let flow = world.start(FlowScript::Exchanges {
        question: QUESTION,
        answer,
        count: 1,
    });
    let took = wait(world, flow, bytes);
    wait(world, flow, answer);
    took
}

/// Waits until so many bytes of a flow have arrived; returns the time since it was opened.
fn wait(world: &mut SessionSimulation, flow: FlowId, bytes: u64) -> Duration {
    let opened = world.transfer(flow).opened_at;
    let end: Time = world.now() + LIMIT;
    world.run_until(end, |world| world.transfer(flow).received(NEAR) >= bytes);
    world.now().since(opened)
}
