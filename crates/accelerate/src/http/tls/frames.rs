//! Frames between the halves of an intercepted connection (docs/formats/http-tls-frames.md).
//!
//! ```text
//!  near ──► far   Ask · Begin · Relay · Lane · Reset · Credit
//!  far ──► near   Facts · Refused · Failed · Relay · Lane · LaneEnded · ResetDone · Taken
//! ```
//! Kinds from [`FIRST`] on are these; those below belong to the HTTP halves inside.

use vocab::{ByteReader, ByteWriter, FlowSegment, TruncatedInput};

use super::facts::{CERTIFICATE_NAMES_MAX, OriginFacts};
use crate::ReasonCode;

/// The first kind of these frames.
pub(crate) const FIRST: u8 = 128;

const ASK: u8 = 128;
const BEGIN: u8 = 129;
const RELAY: u8 = 130;
const FACTS: u8 = 131;
const REFUSED: u8 = 132;
const FAILED: u8 = 133;
const LANE: u8 = 134;
const RESET: u8 = 135;
const RESET_DONE: u8 = 136;
const LANE_ENDED: u8 = 137;
const CREDIT: u8 = 138;
const TAKEN: u8 = 139;

const MAY_STORE: u8 = 1;

/// How the requests of an intercepted connection travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsCarriage {
    /// One after the other, over the flow's own connection to the origin.
    Single,
    /// In lanes, each with a further connection to the origin.
    Lanes,
}

/// Fault of an origin's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateFault {
    /// Another fault, or none of the certificate.
    Other,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// Nobody who is trusted has signed it.
    UnknownIssuer,
    /// It is another name's.
    OtherName,
    /// It was revoked.
    Revoked,
}

impl CertificateFault {
    const ALL: [Self; 6] = [
        Self::Other,
        Self::Expired,
        Self::NotYetValid,
        Self::UnknownIssuer,
        Self::OtherName,
        Self::Revoked,
    ];

    /// The fault with this number; one of a later release is another one.
    fn from_byte(byte: u8) -> Self {
        let known = Self::ALL.get(usize::from(byte));
        known.copied().unwrap_or(Self::Other)
    }

    fn to_byte(self) -> u8 {
        self as u8
    }

    /// A clause for the operator; `None` where there is nothing to add.
    pub(crate) fn text(self) -> Option<&'static str> {
        match self {
            Self::Other => None,
            Self::Expired => Some("the certificate has expired"),
            Self::NotYetValid => Some("the certificate is not valid yet"),
            Self::UnknownIssuer => Some("no trusted authority has signed the certificate"),
            Self::OtherName => Some("the certificate is for another name"),
            Self::Revoked => Some("the certificate was revoked"),
        }
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsFrame {
    /// The near half wants to know whether the origin can be intercepted.
    Ask {
        /// The origin's name.
        name: String,
    },
    /// The content of an intercepted connection follows.
    Begin {
        /// The origin's name.
        name: String,
        /// How requests travel.
        carriage: TlsCarriage,
        /// True if the near node lets decrypted content into the dictionary.
        may_store: bool,
    },
    /// The sender no longer follows messages; what comes is passed as it is inside TLS.
    Relay,
    /// The origin's certificate is valid.
    Facts(OriginFacts),
    /// The connection is to pass untouched.
    Refused(ReasonCode, CertificateFault),
    /// The origin cannot be connected to as before.
    Failed(ReasonCode, CertificateFault),
    /// Segments that follow belong to this lane.
    Lane(u8),
    /// The lane's connection is of no use any more.
    Reset(u8),
    /// The last segment of the lane before its reset was sent.
    ResetDone(u8),
    /// The lane's connection has ended; true if in good order. Without lanes: the origin has ended without a closure alert.
    LaneEnded(u8, bool),
    /// So many more bytes of the lane may be sent.
    Credit(u8, u32),
    /// So many more bytes of the lane have gone to the origin.
    Taken(u8, u32),
}

/// Why bytes are no frame of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent a malformed frame of an intercepted connection")]
pub(crate) struct MalformedFrame;

impl From<TruncatedInput> for MalformedFrame {
    fn from(_: TruncatedInput) -> Self {
        Self
    }
}

impl TlsFrame {
    /// The segment that carries it.
    pub(crate) fn to_segment(&self) -> FlowSegment {
        let mut writer = ByteWriter::new();
        match self {
            Self::Ask { name } => {
                writer.u8(ASK).prefixed(name.as_bytes());
            }
            Self::Begin {
                name,
                carriage,
                may_store,
            } => {
                writer.u8(BEGIN).u8(u8::from(*may_store) * MAY_STORE);
                writer.u8(match carriage {
                    TlsCarriage::Single => 1,
                    TlsCarriage::Lanes => 2,
                });
                writer.prefixed(name.as_bytes());
            }
            Self::Relay => {
                writer.u8(RELAY);
            }
            Self::Facts(facts) => {
                writer.u8(FACTS).u8(u8::from(facts.may_store) * MAY_STORE);
                writer.u64(facts.not_before.cast_unsigned());
                writer.u64(facts.not_after.cast_unsigned());
                let names = facts.names.iter().take(CERTIFICATE_NAMES_MAX);
                writer.varint(names.len() as u64);
                for name in names {
                    writer.prefixed(name.as_bytes());
                }
            }
            Self::Refused(reason, fault) => {
                writer.u8(REFUSED).u8(reason.to_byte()).u8(fault.to_byte());
            }
            Self::Failed(reason, fault) => {
                writer.u8(FAILED).u8(reason.to_byte()).u8(fault.to_byte());
            }
            Self::Lane(lane) => {
                writer.u8(LANE).u8(*lane);
            }
            Self::Reset(lane) => {
                writer.u8(RESET).u8(*lane);
            }
            Self::ResetDone(lane) => {
                writer.u8(RESET_DONE).u8(*lane);
            }
            Self::LaneEnded(lane, is_clean) => {
                writer.u8(LANE_ENDED).u8(*lane).u8(u8::from(*is_clean));
            }
            Self::Credit(lane, bytes) => {
                writer.u8(CREDIT).u8(*lane).u32(*bytes);
            }
            Self::Taken(lane, bytes) => {
                writer.u8(TAKEN).u8(*lane).u32(*bytes);
            }
        }
        FlowSegment::frame(writer.finish())
    }

    /// Reads a frame; `None` where it is one of the halves inside, or of a later release.
    ///
    /// # Errors
    /// When it is malformed.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, MalformedFrame> {
        let mut reader = ByteReader::new(bytes);
        let kind = reader.u8()?;
        if kind < FIRST {
            return Ok(None);
        }
        let frame = match kind {
            ASK => Self::Ask {
                name: name(&mut reader)?,
            },
            BEGIN => {
                let flags = reader.u8()?;
                let carriage = match reader.u8()? {
                    1 => TlsCarriage::Single,
                    2 => TlsCarriage::Lanes,
                    _ => return Err(MalformedFrame),
                };
                Self::Begin {
                    name: name(&mut reader)?,
                    carriage,
                    may_store: flags & MAY_STORE != 0,
                }
            }
            RELAY => Self::Relay,
            FACTS => {
                let flags = reader.u8()?;
                let not_before = reader.u64()?.cast_signed();
                let not_after = reader.u64()?.cast_signed();
                let count = reader.varint()?;
                if count > CERTIFICATE_NAMES_MAX as u64 {
                    return Err(MalformedFrame);
                }
                let names = (0..count).map(|_| certificate_name(&mut reader));
                Self::Facts(OriginFacts {
                    names: names.collect::<Result<_, _>>()?,
                    not_before,
                    not_after,
                    may_store: flags & MAY_STORE != 0,
                })
            }
            REFUSED | FAILED => {
                let reason = ReasonCode::new(reader.u8()?);
                let fault = CertificateFault::from_byte(reader.u8()?);
                match kind {
                    REFUSED => Self::Refused(reason, fault),
                    _ => Self::Failed(reason, fault),
                }
            }
            LANE => Self::Lane(reader.u8()?),
            RESET => Self::Reset(reader.u8()?),
            RESET_DONE => Self::ResetDone(reader.u8()?),
            LANE_ENDED => Self::LaneEnded(reader.u8()?, reader.u8()? == 1),
            CREDIT => Self::Credit(reader.u8()?, reader.u32()?),
            TAKEN => Self::Taken(reader.u8()?, reader.u32()?),
            _ => return Ok(None),
        };
        Ok(Some(frame))
    }
}

fn name(reader: &mut ByteReader<'_>) -> Result<String, MalformedFrame> {
    let text = std::str::from_utf8(reader.prefixed()?).map_err(|_| MalformedFrame)?;
    match super::config::is_host_name(text) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(MalformedFrame),
    }
}

fn certificate_name(reader: &mut ByteReader<'_>) -> Result<String, MalformedFrame> {
    let text = std::str::from_utf8(reader.prefixed()?).map_err(|_| MalformedFrame)?;
    match super::config::is_host_name(text.strip_prefix("*.").unwrap_or(text)) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(MalformedFrame),
    }
}

/// A frame of each kind, with its name.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn samples() -> Vec<(&'static str, TlsFrame)> {
    let name = || "a.corp.example".to_owned();
    let begin = |carriage, may_store| TlsFrame::Begin {
        name: name(),
        carriage,
        may_store,
    };
    let reason = ReasonCode::POLICY;
    vec![
        ("tls-ask", TlsFrame::Ask { name: name() }),
        ("tls-begin", begin(TlsCarriage::Single, true)),
        ("tls-begin-lanes", begin(TlsCarriage::Lanes, false)),
        ("tls-relay", TlsFrame::Relay),
        (
            "tls-facts",
            TlsFrame::Facts(OriginFacts {
                names: vec![name(), "*.corp.example".to_owned()],
                not_before: -5,
                not_after: i64::MAX,
                may_store: true,
            }),
        ),
        (
            "tls-refused",
            TlsFrame::Refused(reason, CertificateFault::Expired),
        ),
        (
            "tls-failed",
            TlsFrame::Failed(reason, CertificateFault::Other),
        ),
        ("tls-lane", TlsFrame::Lane(3)),
        ("tls-reset", TlsFrame::Reset(4)),
        ("tls-reset-done", TlsFrame::ResetDone(4)),
        ("tls-lane-ended", TlsFrame::LaneEnded(5, true)),
        ("tls-lane-cut", TlsFrame::LaneEnded(5, false)),
        ("tls-credit", TlsFrame::Credit(6, 70_000)),
        ("tls-taken", TlsFrame::Taken(6, 1)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_frame() -> impl Iterator<Item = TlsFrame> {
        samples().into_iter().map(|(_, frame)| frame)
    }

    #[test]
    fn frames_are_read_as_written() {
        for frame in every_frame() {
            let bytes = frame.to_segment().bytes;
            assert!(bytes[0] >= FIRST);
            assert_eq!(TlsFrame::parse(&bytes), Ok(Some(frame)));
        }
    }

    #[test]
    fn cut_frames_are_refused() {
        for frame in every_frame() {
            let bytes = frame.to_segment().bytes;
            for cut in 0..bytes.len() {
                assert_eq!(TlsFrame::parse(&bytes[..cut]), Err(MalformedFrame));
            }
        }
    }

    #[test]
    fn frames_of_others_are_left_to_them() {
        for kind in (0..FIRST).chain([200]) {
            assert_eq!(TlsFrame::parse(&[kind, 1, 2]), Ok(None));
        }
    }
}
