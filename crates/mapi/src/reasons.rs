//! The meaning of common reasons for MAPI.

use accelerate::{ReasonCode, ReasonExplanation, ReasonSource};

/// The connection on a port of MAPI over HTTP is one of HTTPS.
pub(crate) const TLS: ReasonCode = ReasonCode::new(64);

/// The meaning of a code for MAPI; `None` where the common explanation holds, or there is none.
pub(crate) fn explain(code: ReasonCode, source: ReasonSource<'_>) -> Option<ReasonExplanation> {
    let explanation = match code {
        ReasonCode::NO_ACCELERATOR | ReasonCode::POLICY => ReasonExplanation::new(format!(
            "acceleration of MAPI is switched off on {source} (mode in [mapi])"
        ))
        .with_remedy("set mode = \"on\" in [mapi] of both nodes"),
        ReasonCode::UNSUPPORTED => ReasonExplanation::new(
            "the connection carries neither DCE/RPC version 5 in little-endian representation nor, on a port \
             in http_ports of [mapi], HTTP/1.1 without TLS; the node forwards its bytes unchanged",
        ),
        TLS => ReasonExplanation::new(
            "the connection is encrypted by TLS, and the ports in http_ports of [mapi] are those of MAPI over HTTP \
             without TLS; the node forwards its bytes unchanged",
        )
        .with_remedy(
            "decrypt HTTPS at port 443: write mode = \"on\" in [http] and the section [http.tls] on both nodes, list \
             the mail server's name in intercept there, and remove the port from http_ports",
        ),
        ReasonCode::MECHANISM => ReasonExplanation::new(
            "the content is signed or encrypted, and the nodes do not know the login method of this session, or \
             how it protects calls",
        )
        .with_remedy(
            "have the client log in by Kerberos with AES keys, or by NTLM version 2 with extended session security",
        )
        .recurring(),
        _ => return None,
    };
    Some(explanation)
}
