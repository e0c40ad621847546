//! Reasons for letting go that only HTTP has, and what common reasons mean for it.

use crate::{ReasonCode, ReasonExplanation, ReasonSource};

/// The connection no longer carries HTTP/1: CONNECT, or an upgrade such as to WebSocket.
pub(crate) const UPGRADED: ReasonCode = ReasonCode::new(64);

/// The content of a stored response was lost while it was being sent.
pub(crate) const CONTENT_GONE: ReasonCode = ReasonCode::new(65);

/// The first bytes of a connection are not those of TLS.
pub(crate) const TLS_MISSING: ReasonCode = ReasonCode::new(66);
/// The client names no server, so that it is not known whose connection it is.
pub(crate) const TLS_NO_NAME: ReasonCode = ReasonCode::new(67);
/// The server's name is not listed.
pub(crate) const TLS_NOT_LISTED: ReasonCode = ReasonCode::new(68);
/// The server's name is encrypted.
pub(crate) const TLS_ENCRYPTED_NAME: ReasonCode = ReasonCode::new(69);
/// The client, or the origin, speaks no version of HTTP that is followed.
pub(crate) const TLS_PROTOCOL: ReasonCode = ReasonCode::new(70);
/// The client refused our certificate before.
pub(crate) const TLS_PINNED: ReasonCode = ReasonCode::new(71);
/// The origin's certificate is not valid.
pub(crate) const ORIGIN_CERTIFICATE: ReasonCode = ReasonCode::new(72);
/// The origin asks for a certificate of the client.
pub(crate) const CLIENT_CERTIFICATE: ReasonCode = ReasonCode::new(73);
/// The far node cannot speak TLS with the origin.
pub(crate) const ORIGIN_TLS: ReasonCode = ReasonCode::new(74);
/// The far node takes no part in interception.
pub(crate) const TLS_OFF: ReasonCode = ReasonCode::new(75);
/// The operator's authority cannot sign for the name now.
pub(crate) const TLS_AUTHORITY: ReasonCode = ReasonCode::new(76);
/// Several handshakes between the client and this node failed.
pub(crate) const TLS_HANDSHAKE: ReasonCode = ReasonCode::new(77);

/// The meaning of a code for HTTP; `None` where the common explanation holds, or there is none.
pub(crate) fn explain(code: ReasonCode, source: ReasonSource<'_>) -> Option<ReasonExplanation> {
    let explanation = match code {
        UPGRADED => ReasonExplanation::new(
            "the hosts speak another protocol on this connection since a CONNECT or an upgrade",
        ),
        CONTENT_GONE => ReasonExplanation::new(
            "the dictionary lost the content of a stored response while it was being sent",
        ),
        TLS_MISSING => ReasonExplanation::new("the connection does not begin with TLS"),
        TLS_NO_NAME => ReasonExplanation::new(
            "the client names no server in its first message (SNI), so the connection is not known to be listed",
        ),
        TLS_NOT_LISTED => ReasonExplanation::new("the server's name is not listed in [http.tls]")
            .with_remedy("add it to intercept in [http.tls] of the node beside the client"),
        TLS_ENCRYPTED_NAME => ReasonExplanation::new(
            "the client encrypts the server's name (Encrypted Client Hello)",
        ),
        TLS_PROTOCOL => ReasonExplanation::new(
            "the client or the origin speaks neither HTTP/1.1 nor, towards the client, HTTP/2 inside TLS",
        ),
        TLS_PINNED => ReasonExplanation::new(
            "the client refused the operator's certificate for this name, and is left alone with it for an hour",
        )
        .with_remedy("install the authority's certificate at the client; applications that pin their server's certificate stay as they are"),
        ORIGIN_CERTIFICATE => ReasonExplanation::new(
            "the origin's certificate is not valid for the node beside it, so the client judges it itself",
        )
        .with_remedy("renew the origin's certificate, or name its authority in roots in [http.tls] of the node beside it"),
        CLIENT_CERTIFICATE => ReasonExplanation::new("the origin asks for a certificate of the client"),
        ORIGIN_TLS => ReasonExplanation::new(
            "the node beside the origin cannot speak TLS 1.2 or 1.3 with it, or got no answer in time",
        ),
        TLS_OFF => ReasonExplanation::new(
            "the node beside the origin has no [http.tls], or no roots to verify the origin with",
        )
        .with_remedy("write [http.tls] in the configuration of the node beside the origin"),
        TLS_AUTHORITY => ReasonExplanation::new(
            "the authority's certificate is not valid now, or its name constraints exclude the server's name",
        )
        .with_remedy("make another authority with `trunkline http ca`"),
        TLS_HANDSHAKE => ReasonExplanation::new(
            "the client ended several TLS handshakes with this node without a reason, as applications do that pin their server's certificate; it is left alone with this name for an hour",
        )
        .with_remedy("install the authority's certificate at the client; applications that pin their server's certificate stay as they are"),
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
