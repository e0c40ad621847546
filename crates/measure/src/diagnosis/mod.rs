//! Causes that limit a transfer, found in a measurement, each with its evidence.
//!
//! ```text
//!  two-ended: stages of a stateless stream ─► stream ─┐
//!             TCP_INFO series, size probes ───────────┴─► two_ended ─┐
//!                                                                    ├─► Vec<Finding>
//!  one-ended: segments of a capture ─► passage ─► one_ended ─────────┘
//! ```
//!
//! With two ends, every packet's fate and delay is known, and the bottleneck follows directly:
//! waiting packets raise the delay, packets dropped at the delay of an empty path were policed, and
//! the first bytes of a bucket arrive faster than the rest. With one end, the same is derived from
//! segments and acknowledgements, blurred by the sender's congestion control.
//!
//! Several causes can hold at once. [`DiagnosisCause::None`] and [`DiagnosisCause::Unknown`] stand alone: the first says
//! that nothing held the transfer back, the second that the measurement cannot tell.
//! [`diagnose_test`] diagnoses a whole turn-up test, and keeps its own hosts' limits apart from the path's.
//! docs/guides/diagnosis.md has the definitions, and how often the answers are right.

mod bucket;
mod edge;
mod finding;
mod interruption;
mod line;
mod observation;
mod one_ended;
mod passage;
mod score;
mod segment;
mod statistics;
mod stream;
mod turn_up;
mod two_ended;

pub use finding::{CauseParameters, DiagnosisCause, DiagnosisFinding};
pub use interruption::{PathInterruption, interruptions};
pub use observation::{LoadStage, SizeProbe, StreamPacket, TcpRun, TcpSample, TwoEnded};
pub use one_ended::{TransferDiagnosis, diagnose_capture};
pub use passage::CapturePlace;
pub use score::{BucketTruth, DiagnosisScore, JudgedFinding, ScoreShare};
pub use segment::{TcpOptions, TcpSegment};
pub use turn_up::{diagnose_test, found_no_room, interrupted, without_room};
pub use two_ended::diagnose;
