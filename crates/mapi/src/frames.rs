//! The frames between the two halves (docs/formats/mapi-frames.md).
//!
//! Bytes of PDUs cross as control and payload segments. A frame stands before those that the
//! sending half has opened, so that the receiving half protects them again.

use accelerate::FrameKind;
use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, TruncatedInput};
use zeroize::Zeroizing;

use crate::rpc::association::FRAGMENT_MIN;
use crate::rpc::pdu::{CALL_HEADER, HEADER};
use crate::rpc::security::SessionSecret;
use crate::rpc::splitter::SecurityTrailer;

/// The longest head of a PDU: that of a request with an object.
const HEAD_MAX: usize = CALL_HEADER + 16;

mod kind {
    pub(super) const BLIND: u8 = 1;
    pub(super) const MAY_STORE: u8 = 2;
    pub(super) const KEYS: u8 = 3;
    pub(super) const OPENED: u8 = 4;
    pub(super) const MAILBOX: u8 = 5;
}

/// A message from one half to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HalfFrame {
    /// From the near half: it does not understand the client. All of the client's bytes pass from
    /// here on as they are.
    Blind,
    /// From the near half: its node lets decrypted content into the dictionary.
    MayStore,
    /// From the far half: the keys of a security context. The near half opens the client's PDUs
    /// from here on, and the far half those of the server.
    Keys {
        /// Its mechanism, level and number.
        protection: SecurityTrailer,
        /// Its secret.
        secret: SessionSecret,
        /// True if the far node lets decrypted content into the dictionary.
        may_store: bool,
    },
    /// From the far half: the machines of the mailbox take the client's calls from here on.
    Mailbox {
        /// The presentation context of the mailbox interface.
        context_id: u16,
        /// Bytes of the largest fragment that the client takes.
        fragment_max: u16,
    },
    /// The next bytes of control or payload are the stub of a PDU that was opened.
    Opened {
        /// The bytes before the stub.
        head: Vec<u8>,
        /// The security trailer.
        trailer: SecurityTrailer,
        /// Bytes of the stub, with its padding.
        stub_length: u16,
    },
}

impl HalfFrame {
    pub(crate) fn emit(&self) -> Bytes {
        let mut out = ByteWriter::new();
        let mut begin = |kind| {
            out.u8(FrameKind::Own(kind).to_byte());
        };
        match self {
            Self::Blind => begin(kind::BLIND),
            Self::MayStore => begin(kind::MAY_STORE),
            Self::Keys {
                protection,
                secret,
                may_store,
            } => {
                begin(kind::KEYS);
                out.bytes(&protection.emit());
                out.bytes(&*secret.key).u32(secret.flags);
                out.u32(secret.first_sequence).u8(u8::from(*may_store));
            }
            Self::Mailbox {
                context_id,
                fragment_max,
            } => {
                begin(kind::MAILBOX);
                out.u16(*context_id).u16(*fragment_max);
            }
            Self::Opened {
                head,
                trailer,
                stub_length,
            } => {
                begin(kind::OPENED);
                out.u16(*stub_length).bytes(&trailer.emit()).prefixed(head);
            }
        }
        out.finish()
    }

    /// Reads a frame; `None` where it is none of these.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(bytes);
        let frame = Self::read(&mut reader).ok()??;
        reader.is_empty().then_some(frame)
    }

    fn read(reader: &mut ByteReader<'_>) -> Result<Option<Self>, TruncatedInput> {
        Ok(Some(match reader.u8()? {
            kind::BLIND => Self::Blind,
            kind::MAY_STORE => Self::MayStore,
            kind::KEYS => Self::Keys {
                protection: SecurityTrailer::parse(reader.array()?),
                secret: SessionSecret {
                    key: Zeroizing::new(reader.array()?),
                    flags: reader.u32()?,
                    first_sequence: reader.u32()?,
                },
                may_store: reader.u8()? != 0,
            },
            kind::MAILBOX => Self::Mailbox {
                context_id: reader.u16()?,
                fragment_max: reader.u16()?.max(FRAGMENT_MIN),
            },
            kind::OPENED => {
                let stub_length = reader.u16()?;
                let trailer = SecurityTrailer::parse(reader.array()?);
                let head = reader.prefixed()?;
                if !(HEADER..=HEAD_MAX).contains(&head.len()) {
                    return Ok(None);
                }
                Self::Opened {
                    head: head.to_vec(),
                    trailer,
                    stub_length,
                }
            }
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_written_and_read_back_equal() {
        let secret = SessionSecret {
            key: Zeroizing::new([3; 16]),
            flags: 0xe28a_8233,
            first_sequence: 1,
        };
        let frames = [
            HalfFrame::Blind,
            HalfFrame::MayStore,
            HalfFrame::Keys {
                protection: SecurityTrailer::parse([10, 6, 0, 0, 1, 2, 3, 4]),
                secret,
                may_store: true,
            },
            HalfFrame::Mailbox {
                context_id: 1,
                fragment_max: 5_840,
            },
            HalfFrame::Opened {
                head: vec![5; 24],
                trailer: SecurityTrailer::parse([10, 6, 4, 0, 1, 2, 3, 4]),
                stub_length: 4_000,
            },
        ];
        for frame in frames {
            let bytes = frame.emit();
            assert_eq!(HalfFrame::parse(&bytes), Some(frame));
            for cut in 0..bytes.len() {
                assert_eq!(HalfFrame::parse(&bytes[..cut]), None);
            }
        }
    }
}
