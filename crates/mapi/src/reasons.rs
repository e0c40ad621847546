//! The meaning of common reasons for MAPI.

use accelerate::{ReasonCode, ReasonExplanation, ReasonSource};

/// The meaning of a code for MAPI; `None` where the common explanation holds, or there is none.
pub(crate) fn explain(code: ReasonCode, source: ReasonSource<'_>) -> Option<ReasonExplanation> {
    let explanation = match code {
        ReasonCode::NO_ACCELERATOR | ReasonCode::POLICY => ReasonExplanation::new(format!(
            "acceleration of MAPI is switched off on {source} (mode in [mapi])"
        ))
        .with_remedy("set mode = \"on\" in [mapi] of both nodes"),
        ReasonCode::UNSUPPORTED => ReasonExplanation::new(
            "the connection does not carry DCE/RPC version 5 in little-endian representation; the node \
             forwards its bytes unchanged",
        ),
        _ => return None,
    };
    Some(explanation)
}
