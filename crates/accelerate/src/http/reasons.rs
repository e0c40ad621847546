//! Reasons for letting go that only HTTP has, and what common reasons mean for it.

use crate::{ReasonCode, ReasonExplanation, ReasonSource};

/// The connection no longer carries HTTP/1: CONNECT, or an upgrade such as to WebSocket.
pub(crate) const UPGRADED: ReasonCode = ReasonCode::new(64);

/// The content of a stored response was lost while it was being sent.
pub(crate) const CONTENT_GONE: ReasonCode = ReasonCode::new(65);

/// The meaning of a code for HTTP; `None` where the common explanation holds, or there is none.
pub(crate) fn explain(code: ReasonCode, source: ReasonSource<'_>) -> Option<ReasonExplanation> {
    let explanation = match code {
        UPGRADED => ReasonExplanation::new(
            "the hosts speak another protocol on this connection since a CONNECT or an upgrade",
        ),
        CONTENT_GONE => ReasonExplanation::new(
            "the dictionary lost the content of a stored response while it was being sent",
        ),
        ReasonCode::VIOLATION => ReasonExplanation::new(
            "a message that can be understood in two ways, or that is not HTTP/1; it passes as it is",
        ),
        ReasonCode::UNSUPPORTED => {
            ReasonExplanation::new("a transfer coding other than chunked; it passes as it is")
        }
        ReasonCode::LIMIT => ReasonExplanation::new(
            "a head of more than 64 KiB or 256 fields, more than 1,024 requests under way, or a mebibyte sent without waiting for answers",
        ),
        ReasonCode::NO_ACCELERATOR | ReasonCode::POLICY => {
            ReasonExplanation::new(format!("acceleration of HTTP is switched off on {source}"))
        }
        _ => return None,
    };
    Some(explanation)
}
