//! Result of a whole test: its plan with every figure.

use std::net::SocketAddr;
use std::time::Duration;

use vocab::ByteCount;

use super::{RunPlan, TurnUp};
use crate::run::{self, IdealPath, ReadProgress, RunSecond};
use crate::wire::{RunSample, TestDirection};

/// A test that is over, or as far as it came.
#[derive(Debug)]
pub struct FinishedTest {
    /// Measured results.
    pub turn_up: TurnUp,
    /// Every run.
    pub runs: Vec<RawRun>,
    /// The server's address.
    pub server: SocketAddr,
    /// Our own.
    pub local: SocketAddr,
    /// Remarks about the two hosts that a person should read.
    pub hosts: Vec<String>,
    /// The MTU of the interface that the test went by.
    pub interface_mtu: u16,
    /// Duration of the test.
    pub took: Duration,
}

/// A run, with all its counts.
#[derive(Clone, Debug)]
pub struct RawRun {
    /// Plan of the run.
    pub plan: RunPlan,
    /// Direction of these samples.
    pub direction: TestDirection,
    /// The sender's counters; empty where the sender is not ours.
    pub samples: Vec<RunSample>,
    /// Reads of the receiver, where only the receiver is ours.
    pub reads: Vec<ReadProgress>,
    /// The run, second by second.
    pub seconds: Vec<RunSecond>,
    /// Congestion control of the sender's kernel.
    pub congestion_control: String,
    /// Segments that a sender which is not ours says it sent again.
    pub segments_retransmitted: Option<u64>,
    /// Processor load of the client's host and of the server's, in thousandths.
    pub busy_permille: [u16; 2],
}

impl RawRun {
    /// Its figures, all connections together.
    #[must_use]
    pub fn figures(&self, ideal: &IdealPath) -> Option<run::RunFigures> {
        let (plan, place) = (&self.plan, self.direction as usize);
        if self.reads.is_empty() {
            return run::figures(&self.samples, plan.duration, ideal);
        }
        let connections = plan.connections[place];
        let each = plan.windows[place].bytes();
        let all = ByteCount::new(each.saturating_mul(u64::from(connections)));
        let window = (each > 0).then_some(all);
        run::received_figures(&self.reads, connections, window, plan.duration, ideal)
    }
}
