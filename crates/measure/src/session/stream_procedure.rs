//! Steps of a test that is made of streams ([`StreamTest`]): service activation by Y.1564, and
//! throughput by RFC 2544.
//!
//! The baseline RTT comes first, and the test itself is made with it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use super::client::{ClientStep, StepOutcome};
use super::procedure::ClientProcedure;
use super::udp_blocked;
use crate::diagnosis::without_room;
use crate::steps::{FRAME_OVERHEAD, StreamTest};
use crate::wire::TestDirection;

/// Pause before each stream, in which queues become empty.
const REST: Duration = Duration::from_millis(200);

/// Frames that the interface cannot send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this interface cannot send frames of {frame} bytes, because its MTU is {interface_mtu}; use at \
     most {most}"
)]
pub struct OversizedFrame {
    frame: u16,
    interface_mtu: u16,
    most: u16,
}

/// Checks that an interface with this MTU can send frames of these sizes.
///
/// # Errors
/// Fails for the first size that is too large.
pub fn check_frames(frames: &[u16], interface_mtu: u16) -> Result<(), OversizedFrame> {
    let most = interface_mtu.saturating_add(FRAME_OVERHEAD);
    match frames.iter().find(|frame| **frame > most) {
        Some(frame) => Err(OversizedFrame {
            frame: *frame,
            interface_mtu,
            most,
        }),
        None => Ok(()),
    }
}

/// Test of streams under way.
pub struct StreamProcedure<T> {
    server: SocketAddr,
    /// Rest of the path before each stream, so that a bucket is full.
    rest: Duration,
    stage: StreamStage<T>,
    /// Packets without room, up and down.
    no_room: [u64; 2],
}

type TestMaker<T> = Box<dyn FnOnce(Option<Duration>) -> T>;

enum StreamStage<T> {
    Opening(TestMaker<T>),
    Baseline(TestMaker<T>),
    Streams(T),
    /// The test did not begin, and why.
    Failed(String),
}

impl<T> fmt::Debug for StreamProcedure<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StreamProcedure")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl<T: StreamTest> StreamProcedure<T> {
    /// A test that `make` makes once the baseline RTT is known; `rest` is the pause before each
    /// stream.
    #[must_use]
    pub fn new(
        server: SocketAddr,
        rest: Duration,
        make: impl FnOnce(Option<Duration>) -> T + 'static,
    ) -> Self {
        Self {
            server,
            rest,
            stage: StreamStage::Opening(Box::new(make)),
            no_room: [0; 2],
        }
    }

    /// Result of the test.
    ///
    /// # Errors
    /// Fails with the reason when the test did not begin.
    pub fn finish(self) -> Result<T, String> {
        match self.stage {
            StreamStage::Streams(test) => Ok(test),
            StreamStage::Failed(why) => Err(why),
            StreamStage::Opening(_) | StreamStage::Baseline(_) => {
                Err("the test did not begin".to_owned())
            }
        }
    }

    /// Remarks about packets that the hosts had no room for.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let both = TestDirection::BOTH.into_iter().zip(self.no_room);
        both.filter(|(_, packets)| *packets > 0)
            .map(|(direction, packets)| {
                format!(
                    "{}: {}. These frames do not count as lost by the path; a burst with such frames does not count",
                    direction.name(),
                    without_room(direction, packets)
                )
            })
            .collect()
    }
}

impl<T: StreamTest> ClientProcedure for StreamProcedure<T> {
    fn next_step(&mut self) -> Option<ClientStep> {
        match &self.stage {
            StreamStage::Opening(_) => Some(ClientStep::OpenUdp),
            StreamStage::Baseline(_) => Some(ClientStep::BaselineRtt),
            StreamStage::Streams(test) => {
                let (direction, plan) = test.next_stream()?;
                Some(ClientStep::Stream {
                    direction,
                    plan,
                    rest: REST + self.rest,
                })
            }
            StreamStage::Failed(_) => None,
        }
    }

    fn handle(&mut self, outcome: StepOutcome) {
        let failed = StreamStage::Failed(String::new());
        let stage = std::mem::replace(&mut self.stage, failed);
        self.stage = match (stage, outcome) {
            (StreamStage::Opening(make), StepOutcome::UdpOpened(true)) => {
                StreamStage::Baseline(make)
            }
            (StreamStage::Opening(_), StepOutcome::UdpOpened(false)) => {
                StreamStage::Failed(udp_blocked(self.server))
            }
            (StreamStage::Baseline(make), StepOutcome::BaselineRtt(found)) => {
                StreamStage::Streams(make(found.baseline()))
            }
            (StreamStage::Streams(mut test), StepOutcome::Stream(record)) => {
                if let Some((direction, _)) = test.next_stream() {
                    self.no_room[direction as usize] += record.no_room;
                }
                test.handle(&record);
                StreamStage::Streams(test)
            }
            (stage, _) => stage,
        };
    }

    fn give_up(&mut self, why: String) {
        match &mut self.stage {
            StreamStage::Streams(test) => test.give_up(why),
            StreamStage::Opening(_) | StreamStage::Baseline(_) => {
                self.stage = StreamStage::Failed(why);
            }
            StreamStage::Failed(_) => {}
        }
    }

    fn progress(&self) -> (f64, String) {
        match &self.stage {
            StreamStage::Opening(_) | StreamStage::Failed(_) => (0.0, "connecting".to_owned()),
            StreamStage::Baseline(_) => (0.0, "baseline RTT".to_owned()),
            StreamStage::Streams(test) => (test.progress(), test.describe()),
        }
    }

    fn poll_remark(&mut self) -> Option<String> {
        None
    }
}
