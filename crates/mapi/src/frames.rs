//! The frames between the two halves (docs/formats/mapi-frames.md).
//!
//! Bytes of PDUs cross as control and payload segments. A frame stands before those that the
//! sending half has opened, so that the receiving half protects them again.

use accelerate::FrameKind;
use accelerate::credentials::kerberos::{KerberosKey, MessageSecret};
use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, TruncatedInput};
use zeroize::Zeroizing;

use crate::emsmdb::ContextHandle;
use crate::rpc::association::FRAGMENT_MIN;
use crate::rpc::kerberos::KerberosSecret;
use crate::rpc::ntlm::NtlmSecret;
use crate::rpc::pdu::{CALL_HEADER, HEADER};
use crate::rpc::protector::SessionSecret;
use crate::rpc::splitter::SecurityTrailer;

/// The longest head of a PDU: that of a request with an object.
const HEAD_MAX: usize = CALL_HEADER + 16;

mod kind {
    pub(super) const BLIND: u8 = 1;
    pub(super) const MAY_STORE: u8 = 2;
    pub(super) const KEYS: u8 = 3;
    pub(super) const OPENED: u8 = 4;
    pub(super) const MAILBOX: u8 = 5;
    pub(super) const KERBEROS_KEYS: u8 = 6;
    pub(super) const HTTP_READY: u8 = 7;
    pub(super) const HTTP_BEGIN: u8 = 8;
    pub(super) const HTTP_HEAD: u8 = 9;
    pub(super) const HTTP_ANSWER: u8 = 10;
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
    /// From the far half of MAPI over HTTP: it can take the client's requests.
    HttpReady,
    /// From the near half of MAPI over HTTP: the machines take the client's requests from here on.
    HttpBegin,
    /// From the near half of MAPI over HTTP: the fields around the calls of a session from here on.
    HttpHead {
        /// The session.
        context: ContextHandle,
        /// The client's value of the cookie that the server renews.
        sequence: Bytes,
        /// A request's head, without the values that differ from request to request.
        template: Bytes,
    },
    /// From the far half of MAPI over HTTP: the fields around the answer to the client's call, which
    /// follows.
    HttpAnswer {
        /// The head of the response.
        head: Bytes,
        /// The lines in front of the response body.
        meta: Bytes,
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
            Self::HttpReady => begin(kind::HTTP_READY),
            Self::HttpBegin => begin(kind::HTTP_BEGIN),
            Self::HttpHead {
                context,
                sequence,
                template,
            } => {
                begin(kind::HTTP_HEAD);
                out.bytes(&context.0).prefixed(sequence).prefixed(template);
            }
            Self::HttpAnswer { head, meta } => {
                begin(kind::HTTP_ANSWER);
                out.prefixed(head).prefixed(meta);
            }
            Self::Keys {
                protection,
                secret: SessionSecret::Ntlm(secret),
                may_store,
            } => {
                begin(kind::KEYS);
                out.bytes(&protection.emit());
                out.bytes(&*secret.key).u32(secret.flags);
                out.u32(secret.first_sequence).u8(u8::from(*may_store));
            }
            Self::Keys {
                protection,
                secret: SessionSecret::Kerberos(secret),
                may_store,
            } => {
                begin(kind::KERBEROS_KEYS);
                let messages = &secret.messages;
                let [initiator, acceptor] = messages.first_sequences();
                out.bytes(&protection.emit());
                // IANA's numbers of the encryption types in question are below 256.
                out.u8(messages.key().encryption().number() as u8);
                out.u8(u8::from(messages.is_of_acceptor()));
                out.u8(u8::from(secret.signs_headers));
                out.u32(initiator).u32(acceptor).u8(u8::from(*may_store));
                out.prefixed(messages.key().bytes());
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
            kind::HTTP_READY => Self::HttpReady,
            kind::HTTP_BEGIN => Self::HttpBegin,
            kind::HTTP_HEAD => Self::HttpHead {
                context: ContextHandle(reader.array()?),
                sequence: Bytes::copy_from_slice(reader.prefixed()?),
                template: Bytes::copy_from_slice(reader.prefixed()?),
            },
            kind::HTTP_ANSWER => Self::HttpAnswer {
                head: Bytes::copy_from_slice(reader.prefixed()?),
                meta: Bytes::copy_from_slice(reader.prefixed()?),
            },
            kind::KEYS => Self::Keys {
                protection: SecurityTrailer::parse(reader.array()?),
                secret: SessionSecret::Ntlm(NtlmSecret {
                    key: Zeroizing::new(reader.array()?),
                    flags: reader.u32()?,
                    first_sequence: reader.u32()?,
                }),
                may_store: reader.u8()? != 0,
            },
            kind::KERBEROS_KEYS => {
                let protection = SecurityTrailer::parse(reader.array()?);
                let encryption = reader.u8()?;
                let is_of_acceptor = reader.u8()? != 0;
                let signs_headers = reader.u8()? != 0;
                let first = [reader.u32()?, reader.u32()?];
                let may_store = reader.u8()? != 0;
                let key = KerberosKey::of(encryption.into(), reader.prefixed()?);
                let messages = key.and_then(|key| MessageSecret::new(key, is_of_acceptor, first));
                let Some(messages) = messages else {
                    return Ok(None);
                };
                Self::Keys {
                    protection,
                    secret: SessionSecret::Kerberos(KerberosSecret {
                        messages,
                        signs_headers,
                    }),
                    may_store,
                }
            }
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
        let secret = SessionSecret::Ntlm(NtlmSecret {
            key: Zeroizing::new([3; 16]),
            flags: 0xe28a_8233,
            first_sequence: 1,
        });
        let kerberos = [17, 18, 19, 20].map(|encryption| {
            let length = if encryption % 2 == 0 { 32 } else { 16 };
            let key = KerberosKey::of(encryption, &vec![9; length]).unwrap();
            HalfFrame::Keys {
                protection: SecurityTrailer::parse([9, 6, 0, 0, 1, 2, 3, 4]),
                secret: SessionSecret::Kerberos(KerberosSecret {
                    messages: MessageSecret::new(key, true, [7, u32::MAX]).unwrap(),
                    signs_headers: encryption == 17,
                }),
                may_store: false,
            }
        });
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
            HalfFrame::HttpReady,
            HalfFrame::HttpBegin,
            HalfFrame::HttpHead {
                context: ContextHandle([3; 20]),
                sequence: Bytes::from_static(b"1-2"),
                template: Bytes::from_static(b"POST /mapi/emsmdb/ HTTP/1.1\r\n\r\n"),
            },
            HalfFrame::HttpAnswer {
                head: Bytes::from_static(b"HTTP/1.1 200 OK\r\n\r\n"),
                meta: Bytes::from_static(b"DONE\r\n\r\n"),
            },
        ];
        for frame in frames.into_iter().chain(kerberos) {
            let bytes = frame.emit();
            assert_eq!(HalfFrame::parse(&bytes), Some(frame));
            for cut in 0..bytes.len() {
                assert_eq!(HalfFrame::parse(&bytes[..cut]), None);
            }
        }
    }
}
