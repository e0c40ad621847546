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

/// The operator has excluded the server's name.
pub(crate) const TLS_EXCLUDED: ReasonCode = ReasonCode::new(78);

/// The near node intercepts no HTTPS.
pub(crate) const TLS_NOT_INTERCEPTED: ReasonCode = ReasonCode::new(79);

/// The meaning of a code for HTTP; `None` where the common explanation holds, or there is none.
pub(crate) fn explain(code: ReasonCode, source: ReasonSource<'_>) -> Option<ReasonExplanation> {
    let explanation = match code {
        UPGRADED => ReasonExplanation::new(
            "after a CONNECT or an upgrade, the hosts use another protocol on this connection",
        ),
        CONTENT_GONE => ReasonExplanation::new(
            "the dictionary lost the content of a stored response while the node was sending it to the client",
        ),
        TLS_MISSING => ReasonExplanation::new("the connection does not begin with a TLS handshake"),
        TLS_NO_NAME => ReasonExplanation::new(
            "the client's first message contains no server name (SNI), so the node cannot compare it with \
             the names in [http.tls]",
        ),
        TLS_NOT_LISTED => ReasonExplanation::new("intercept in [http.tls] does not list the server's name")
            .with_remedy("add the server's name to intercept in [http.tls] of the near node"),
        TLS_EXCLUDED => ReasonExplanation::new(
            "exclude in [http.tls] of the near node lists the server's name, so the node does not decrypt its connections",
        ),
        TLS_NOT_INTERCEPTED => ReasonExplanation::new(
            "the near node does not decrypt HTTPS, because intercept in [http.tls] lists no names; it forwards HTTPS, \
             and MAPI over HTTPS, without acceleration",
        )
        .with_remedy(
            "write mode = \"on\" in [http] and the section [http.tls] on both nodes, and list the server's name in \
             intercept of the near node",
        ),
        TLS_ENCRYPTED_NAME => ReasonExplanation::new(
            "the client encrypts the server's name (Encrypted Client Hello), so the node cannot read it",
        ),
        TLS_PROTOCOL => ReasonExplanation::new(
            "inside TLS, the client offers neither HTTP/1.1 nor HTTP/2, or the origin does not offer HTTP/1.1",
        ),
        TLS_PINNED => ReasonExplanation::new(
            "the client refused the certificate that the near node made for this name; for an hour the node \
             does not decrypt its connections to this name",
        )
        .with_remedy("install the CA certificate (ca_certificate) on the client; an application \
                      that pins its server's certificate cannot be intercepted"),
        ORIGIN_CERTIFICATE => ReasonExplanation::new(
            "the far node found the origin's certificate invalid, so it left the check of the certificate \
             to the client",
        )
        .with_remedy("renew the origin's certificate, or add the authority that signed it to roots in \
                      [http.tls] of the far node"),
        CLIENT_CERTIFICATE => ReasonExplanation::new("the origin requires a certificate from the client"),
        ORIGIN_TLS => ReasonExplanation::new(
            "the TLS handshake (TLS 1.2 or 1.3) between the far node and the origin failed, or the origin \
             did not answer in time",
        ),
        TLS_OFF => ReasonExplanation::new(
            "the far node has no [http.tls], or no root certificates with which it can verify the origin",
        )
        .with_remedy("write [http.tls] in the configuration of the far node"),
        TLS_AUTHORITY => ReasonExplanation::new(
            "the authority's certificate (ca_certificate) is not valid now, or its name constraints exclude \
             the server's name",
        )
        .with_remedy("create a new certificate authority with `trunkline http ca`"),
        TLS_HANDSHAKE => ReasonExplanation::new(
            "the client ended several TLS handshakes with the near node without a reason, as applications do \
             that pin their server's certificate; for an hour the node does not decrypt its connections to this name",
        )
        .with_remedy("install the CA certificate (ca_certificate) on the client; an application \
                      that pins its server's certificate cannot be intercepted"),
        ReasonCode::VIOLATION => ReasonExplanation::new(
            "a message is ambiguous, or is not HTTP/1; the node forwards its bytes unchanged",
        ),
        ReasonCode::UNSUPPORTED => {
            ReasonExplanation::new("a message has a transfer coding other than chunked; the node forwards \
                                    its bytes unchanged")
        }
        ReasonCode::LIMIT => ReasonExplanation::new(
            "a message head has more than 64 KiB or 256 fields, or more than 1,024 requests or 1 MiB of \
             requests wait for their responses",
        ),
        ReasonCode::NO_ACCELERATOR | ReasonCode::POLICY => {
            ReasonExplanation::new(format!("acceleration of HTTP is switched off on {source} (mode in [http])"))
        }
        _ => return None,
    };
    Some(explanation)
}
