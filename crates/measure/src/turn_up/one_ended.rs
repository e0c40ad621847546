//! Order of a test with only one end of ours, or in which only TCP gets through.
//!
//! The least RTT is TCP's own. Rates come from streams whose packets the far end counts; where none
//! gets through, TCP's throughput with the hosts' own windows takes their place, and nothing is
//! claimed about the path.

use path::BASE_SIZE;
use vocab::{Bitrate, ByteCount};

use super::{
    MANY_WINDOW_MIN, ROUND_TRIP_FOR, RunPlan, RunPurpose, TestCapabilities, TestProfile, TurnUp,
    TurnUpStage,
};
use crate::procedure::{CountedStream, MtuOutcome, SearchStep};
use crate::run::RunFigures;
use crate::wire::TestDirection;

impl TurnUp {
    /// A test in which nothing but TCP gets through, and why: neither path MTU, nor baseline RTT, nor
    /// bottleneck rate can be measured.
    ///
    /// # Panics
    /// As [`TurnUp::new`].
    #[must_use]
    pub fn of_tcp_alone(profile: TestProfile, why: impl Into<String>) -> Self {
        Self::by(TestCapabilities::TcpAlone, profile, why)
    }

    /// Makes a test against a far end that takes part in TCP and counts the packets of streams;
    /// `why` is the reason for values that cannot be measured this way. It measures neither path
    /// MTU nor baseline RTT by probes. Its rates are of packets of 1,500 bytes, or of the size set
    /// with [`TurnUp::assume_mtu`].
    ///
    /// # Panics
    /// Panics as [`TurnUp::new`] does.
    #[must_use]
    pub fn one_ended(profile: TestProfile, why: impl Into<String>) -> Self {
        Self::by(TestCapabilities::Counted, profile, why)
    }

    fn by(means: TestCapabilities, profile: TestProfile, why: impl Into<String>) -> Self {
        let mut test = Self {
            stage: TurnUpStage::RoundTripOfTcp,
            means,
            ..Self::new(profile)
        };
        test.remark(why);
        test
    }

    /// The same, with no run in both directions at once.
    #[must_use]
    pub fn without_both_at_once(mut self) -> Self {
        self.is_both_at_once = false;
        self
    }

    /// Tells whether only TCP is measured.
    #[must_use]
    pub fn is_tcp_alone(&self) -> bool {
        self.means == TestCapabilities::TcpAlone
    }

    /// Tells whether the far end only takes part in TCP and counts packets.
    #[must_use]
    pub fn is_one_ended(&self) -> bool {
        self.means == TestCapabilities::Counted
    }

    /// Throughput that TCP reached in a direction with the hosts' own windows, where only TCP is
    /// measured; the bottleneck's rate is at least that.
    #[must_use]
    pub fn reached(&self, direction: TestDirection) -> Option<Bitrate> {
        self.reached[direction as usize]
    }

    /// Hands in the counts of a stream.
    pub fn counted(&mut self, stream: CountedStream) {
        match &mut self.stage {
            TurnUpStage::CountedRate(at, search) => {
                let at = *at;
                let is_measuring = search.is_measuring();
                search.handle(&stream);
                let is_done = search.next_step() == SearchStep::Done;
                let outcome = search.outcome().cloned();
                let direction = self.profile.directions[at];
                if is_measuring || stream.received == 0 {
                    self.known[direction as usize].counted.push(stream);
                }
                if is_done {
                    self.rate_found(at, direction, outcome);
                }
            }
            TurnUpStage::Loss(at) => {
                let at = *at;
                self.loss_found(at, stream.plan, stream.sent, stream.lost());
                let direction = self.profile.directions[at];
                self.known[direction as usize].counted.push(stream);
            }
            TurnUpStage::PathMtu(_)
            | TurnUpStage::BaselineRtt
            | TurnUpStage::Rate(..)
            | TurnUpStage::RoundTripOfTcp
            | TurnUpStage::Reach(_)
            | TurnUpStage::Runs => {}
        }
    }

    /// The size of packets with which to look for the rate again, where of full ones not one came. Something
    /// of UDP gets through, or the streams would have been given up: it may be their size.
    pub(super) fn size_to_try(&self, direction: TestDirection) -> Option<u16> {
        let counted = &self.known(direction).counted;
        let is_silent = counted.iter().all(|stream| stream.received == 0);
        let least = counted.iter().map(|stream| stream.plan.ip_bytes).min()?;
        (is_silent && least > BASE_SIZE).then_some(BASE_SIZE)
    }

    /// Takes note that full-size packets are lost where smaller ones get through.
    pub(super) fn note_black_hole(&mut self, direction: TestDirection) {
        let counted = &self.known(direction).counted;
        let (through, silent): (Vec<_>, Vec<_>) =
            counted.iter().partition(|stream| stream.received > 0);
        let sizes =
            |streams: &[&CountedStream]| streams.iter().map(|stream| stream.plan.ip_bytes).max();
        let (Some(passes), Some(vanishes)) = (sizes(&through), sizes(&silent)) else {
            return;
        };
        if vanishes <= passes {
            return;
        }
        self.known[direction as usize].path_mtu = Some(MtuOutcome::Between { passes, vanishes });
        let name = direction.name();
        self.remark(format!(
            "one-ended: packets of {vanishes} bytes vanish on the way {name} without a word, and those of {passes} \
             get through (an MTU black hole): rate and TCP {name} are measured with packets of {passes} bytes, and \
             the path MTU itself is not found so; `trunkline measure server` at the far end finds it to the byte"
        ));
    }

    /// Takes note that TCP connected, but no data got through.
    pub(super) fn note_silence(&mut self, direction: TestDirection, found: Option<&RunFigures>) {
        if found.is_some_and(|found| found.throughput.bits_per_second() == 0) {
            let name = direction.name();
            self.remark(format!(
                "TCP connects, and nothing of what it then sends {name} gets through: packets as large as its \
                 segments vanish on the way (an MTU black hole), or something on the way holds them back"
            ));
        }
    }

    /// Takes note that no more streams are possible in a direction, and why: its rate is not
    /// measured.
    pub fn no_stream(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.remark(why.clone());
        self.no_rate.get_or_insert(why);
        match self.stage {
            TurnUpStage::CountedRate(at, _) => self.next_rate(at),
            TurnUpStage::Loss(at) => self.begin_loss(at + 1),
            TurnUpStage::PathMtu(_)
            | TurnUpStage::BaselineRtt
            | TurnUpStage::Rate(..)
            | TurnUpStage::RoundTripOfTcp
            | TurnUpStage::Reach(_)
            | TurnUpStage::Runs => {}
        }
    }

    /// Goes to the first direction from `at` on whose rate no stream has determined.
    pub(super) fn begin_reach(&mut self, at: usize) {
        let next = (at..self.profile.directions.len()).find(|at| {
            self.known(self.profile.directions[*at])
                .bottleneck
                .is_none()
        });
        match next {
            Some(at) => self.stage = TurnUpStage::Reach(at),
            None => self.plan_runs(),
        }
    }

    /// Run for the round trip, always up: this end's kernel reports it.
    pub(super) fn round_trip_run(&self) -> RunPlan {
        RunPlan {
            purpose: RunPurpose::RoundTrip,
            connections: [1, 0],
            windows: [ByteCount::new(MANY_WINDOW_MIN), ByteCount::default()],
            duration: ROUND_TRIP_FOR.min(self.profile.duration),
        }
    }

    pub(super) fn open_run(&self, direction: TestDirection) -> RunPlan {
        let mut connections = [0; 2];
        connections[direction as usize] = 1;
        RunPlan {
            purpose: RunPurpose::Open,
            connections,
            windows: [ByteCount::default(); 2],
            duration: self.profile.duration,
        }
    }
}
