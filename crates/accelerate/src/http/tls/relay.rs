//! Forwards all bytes of an intercepted TLS connection unchanged, once a half no longer follows its content.

use vocab::{FlowSegment, SegmentKind};

use crate::{AcceleratorInput, AcceleratorOutput};

/// The output for an input that passes; `None` where there is nothing to pass.
pub(super) fn relayed(input: AcceleratorInput) -> Option<AcceleratorOutput> {
    match input {
        AcceleratorInput::Lan(bytes) => Some(AcceleratorOutput::ToWan(FlowSegment::payload(bytes))),
        AcceleratorInput::LanFinished => Some(AcceleratorOutput::FinishWan),
        AcceleratorInput::Wan(segment) => match segment.kind {
            SegmentKind::Payload | SegmentKind::Control => {
                Some(AcceleratorOutput::ToLan(segment.bytes))
            }
            SegmentKind::Frame => None,
        },
        AcceleratorInput::WanFinished => Some(AcceleratorOutput::FinishLan),
        AcceleratorInput::Start
        | AcceleratorInput::WanSilent(_)
        | AcceleratorInput::Timeout
        | AcceleratorInput::Server(..)
        | AcceleratorInput::ClaimGranted
        | AcceleratorInput::ClaimRevoked
        | AcceleratorInput::ClaimDenied
        | AcceleratorInput::Content(_)
        | AcceleratorInput::Woken => None,
    }
}
