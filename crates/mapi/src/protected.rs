//! Opened PDUs on their way to the half that protects them again.
//!
//! ```text
//!  Opened{head, trailer, length}, stub … ─► gathered ─► sealed for the host
//!  other control and payload ─────────────────────────► as it came
//! ```

use bytes::{Buf, Bytes, BytesMut};
use vocab::{FlowSegment, SegmentKind};

use crate::frames::HalfFrame;
use crate::rpc::cutter::PAYLOAD_MIN;
use crate::rpc::fragments::CallProtection;
use crate::rpc::protector::{MessageOrigin, PduProtector, SessionSecret};
use crate::rpc::security::OpenedPdu;
use crate::rpc::splitter::{SecurityTrailer, level};

/// A security context whose secret is known, at one end of the WAN.
#[derive(Debug)]
pub(crate) struct OpenSession {
    /// Its mechanism, level and number.
    pub(crate) protection: SecurityTrailer,
    /// Verifies and opens what the host sends.
    pub(crate) from_host: PduProtector,
    /// Protects what the host gets.
    pub(crate) to_host: PduProtector,
}

impl OpenSession {
    /// Begins with the first PDU of both directions. The host is the one of this origin.
    pub(crate) fn new(
        protection: SecurityTrailer,
        secret: &SessionSecret,
        host: MessageOrigin,
    ) -> Self {
        let other = match host {
            MessageOrigin::Client => MessageOrigin::Server,
            MessageOrigin::Server => MessageOrigin::Client,
        };
        Self {
            protection: SecurityTrailer {
                padding: 0,
                ..protection
            },
            from_host: secret.protector(host),
            to_host: secret.protector(other),
        }
    }
}

impl OpenSession {
    /// True if PDUs with this trailer belong to it.
    pub(crate) fn protects(&self, trailer: Option<SecurityTrailer>) -> bool {
        trailer.is_some_and(|trailer| trailer.context == self.protection.context)
    }

    /// The protection of this half's own PDUs to the host.
    pub(crate) fn call_protection(&self) -> CallProtection {
        CallProtection {
            trailer: self.protection,
            signature_length: self.to_host.signature_length(self.protection.level),
        }
    }

    /// True if its stubs are encrypted.
    pub(crate) fn is_private(&self) -> bool {
        self.protection.level == level::PRIVACY
    }
}

/// The segments of an opened PDU.
pub(crate) fn segments(pdu: OpenedPdu, may_store: bool) -> [FlowSegment; 2] {
    let frame = HalfFrame::Opened {
        head: pdu.head,
        trailer: pdu.trailer,
        stub_length: pdu.stub.len() as u16,
    };
    let is_remembered =
        pdu.stub.len() >= PAYLOAD_MIN && (may_store || pdu.trailer.level < level::PRIVACY);
    let stub = Bytes::from(pdu.stub);
    let stub = match is_remembered {
        true => FlowSegment::payload(stub),
        // No dictionary keeps control.
        false => FlowSegment::control(stub),
    };
    [FlowSegment::frame(frame.emit()), stub]
}

/// Gathers the stub of the opened PDU that the other half sends.
#[derive(Debug, Default)]
pub(crate) struct OpenedGatherer {
    announced: Option<AnnouncedPdu>,
}

#[derive(Debug)]
struct AnnouncedPdu {
    head: Vec<u8>,
    trailer: SecurityTrailer,
    length: usize,
    stub: BytesMut,
}

/// The meaning of a segment of bytes for the protected connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GatheredBytes {
    /// An opened PDU is whole.
    Opened(OpenedPdu),
    /// These pass as they are.
    Raw(Bytes),
}

impl OpenedGatherer {
    /// Begins a PDU. Returns its whole, if its stub is empty; `Err` where another one is not whole.
    pub(crate) fn announce(
        &mut self,
        head: Vec<u8>,
        trailer: SecurityTrailer,
        length: u16,
    ) -> Result<Option<OpenedPdu>, ()> {
        if self.announced.is_some() {
            return Err(());
        }
        if length == 0 {
            return Ok(Some(OpenedPdu {
                head,
                stub: Vec::new(),
                trailer,
            }));
        }
        self.announced = Some(AnnouncedPdu {
            head,
            trailer,
            length: usize::from(length),
            stub: BytesMut::new(),
        });
        Ok(None)
    }

    /// Takes bytes of a segment until something is whole; repeats until nothing is left.
    pub(crate) fn take(&mut self, bytes: &mut Bytes) -> Option<GatheredBytes> {
        if bytes.is_empty() {
            return None;
        }
        let Some(announced) = &mut self.announced else {
            return Some(GatheredBytes::Raw(std::mem::take(bytes)));
        };
        let wanted = announced.length - announced.stub.len();
        let taken = wanted.min(bytes.len());
        announced.stub.extend_from_slice(&bytes[..taken]);
        bytes.advance(taken);
        if announced.stub.len() < announced.length {
            return None;
        }
        let whole = self.announced.take()?;
        Some(GatheredBytes::Opened(OpenedPdu {
            head: whole.head,
            stub: whole.stub.to_vec(),
            trailer: whole.trailer,
        }))
    }

    /// The number of bytes that are held.
    pub(crate) fn held(&self) -> usize {
        let announced = self.announced.as_ref();
        announced.map_or(0, |announced| announced.stub.len())
    }

    /// True if a PDU was announced and is not whole.
    pub(crate) fn is_waiting(&self) -> bool {
        self.announced.is_some()
    }
}

/// The kind of bytes that no half has opened.
pub(crate) fn is_bytes(segment: &FlowSegment) -> bool {
    matches!(segment.kind, SegmentKind::Payload | SegmentKind::Control)
}
