//! The frames between the halves for SMB 1, beside the hosts' messages
//! (docs/formats/smb-frames.md).
//!
//! ```text
//!  far ──► near   Engaged · Licence · Ahead + payload · EndOfFile · Settled · Revoke · Heard · Reply + message
//!  near ──► far   Speaks · Beat · Again · Dropped · Revoked
//! ```
//! A frame is the content of one frame segment. Its numbers are never reused, and differ from those
//! of SMB 2's frames, which another release may send on the same flow.

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, FlowSegment, TruncatedInput};

/// The version of these frames. In version 1 a [`Smb1HalfFrame::Licence`] may end before the length
/// of READs.
pub(crate) const VERSION: u8 = 2;

const SPEAKS: u8 = 64;
const ENGAGED: u8 = 65;
const LICENCE: u8 = 66;
const AHEAD: u8 = 67;
const END_OF_FILE: u8 = 68;
const SETTLED: u8 = 69;
const REVOKE: u8 = 70;
const HEARD: u8 = 71;
const BEAT: u8 = 72;
const AGAIN: u8 = 74;
const REVOKED: u8 = 75;
const REPLY: u8 = 76;
const DROPPED: u8 = 77;

/// The requests that the near half may answer for one open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Smb1OpenLicence {
    pub(crate) file: u16,
    pub(crate) user: u16,
    pub(crate) tree: u16,
    /// READs from data that was read ahead.
    pub(crate) may_read: bool,
    /// WRITEs before the server has.
    pub(crate) may_write: bool,
    /// A CLOSE before the server has, if nothing was changed through this open.
    pub(crate) may_close: bool,
    /// The longest READ that is answered: the server truncates longer ones. 0 where the far half
    /// does not say.
    pub(crate) longest: u32,
}

/// One frame. A position counts the client's messages since the flow began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Smb1HalfFrame {
    /// The near half has seen SMB 1 agreed upon, and follows it from the client's next message on.
    Speaks { version: u8 },
    /// The far half has begun to alter the hosts' messages and will never let go without closing.
    Engaged { version: u8 },
    /// An open may be served.
    Licence(Smb1OpenLicence),
    /// `length` bytes of payload follow: the file's contents from `offset` on.
    Ahead {
        file: u16,
        position: u64,
        offset: u64,
        length: u32,
    },
    /// The file ends here.
    EndOfFile {
        file: u16,
        position: u64,
        offset: u64,
    },
    /// The READ at this position is answered by data that was sent ahead.
    Settled { position: u64 },
    /// Nothing may be answered for this open any more.
    Revoke { file: u16 },
    /// All beats up to this [`Smb1HalfFrame::Beat`] have arrived.
    Heard { number: u64 },
    /// Numbered, so that the near half knows how fresh its licences are.
    Beat { number: u64 },
    /// The data for this READ is no longer available; the server must be asked. The READ's message
    /// is included.
    Again { position: u64, message: Bytes },
    /// The near half no longer has the blocks that begin in this range. It sends this before the client's next message,
    /// once the client has read elsewhere than in order. Far halves of earlier releases ignore it.
    Dropped { file: u16, from: u64, to: u64 },
    /// Nothing is answered for this open any more, and all answered requests precede this frame.
    Revoked { file: u16 },
    /// The server's next message answers the client's at this position.
    Reply { position: u64 },
}

impl Smb1HalfFrame {
    /// The frame as a segment.
    pub(crate) fn emit(&self) -> FlowSegment {
        let mut writer = ByteWriter::with_capacity(32);
        match self {
            Self::Speaks { version } => writer.u8(SPEAKS).u8(*version),
            Self::Engaged { version } => writer.u8(ENGAGED).u8(*version),
            Self::Licence(licence) => writer
                .u8(LICENCE)
                .u16(licence.file)
                .u16(licence.user)
                .u16(licence.tree)
                .u8(u8::from(licence.may_read)
                    | u8::from(licence.may_write) << 1
                    | u8::from(licence.may_close) << 2)
                .u32(licence.longest),
            Self::Ahead {
                file,
                position,
                offset,
                length,
            } => writer
                .u8(AHEAD)
                .u16(*file)
                .u64(*position)
                .u64(*offset)
                .u32(*length),
            Self::EndOfFile {
                file,
                position,
                offset,
            } => writer
                .u8(END_OF_FILE)
                .u16(*file)
                .u64(*position)
                .u64(*offset),
            Self::Settled { position } => writer.u8(SETTLED).u64(*position),
            Self::Revoke { file } => writer.u8(REVOKE).u16(*file),
            Self::Heard { number } => writer.u8(HEARD).u64(*number),
            Self::Beat { number } => writer.u8(BEAT).u64(*number),
            Self::Again { position, message } => writer
                .u8(AGAIN)
                .u64(*position)
                .u16(message.len() as u16)
                .bytes(message),
            Self::Dropped { file, from, to } => writer.u8(DROPPED).u16(*file).u64(*from).u64(*to),
            Self::Revoked { file } => writer.u8(REVOKED).u16(*file),
            Self::Reply { position } => writer.u8(REPLY).u64(*position),
        };
        FlowSegment::frame(writer.finish())
    }

    /// Reads a frame segment; `None` for a kind that this release does not know, or of SMB 2.
    ///
    /// # Errors
    /// When a known frame ends early.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, TruncatedInput> {
        let mut reader = ByteReader::new(bytes);
        Ok(Some(match reader.u8()? {
            SPEAKS => Self::Speaks {
                version: reader.u8()?,
            },
            ENGAGED => Self::Engaged {
                version: reader.u8()?,
            },
            LICENCE => {
                let (file, user, tree) = (reader.u16()?, reader.u16()?, reader.u16()?);
                let rights = reader.u8()?;
                let longest = match reader.is_empty() {
                    true => 0,
                    false => reader.u32()?,
                };
                Self::Licence(Smb1OpenLicence {
                    file,
                    user,
                    tree,
                    may_read: rights & 1 != 0,
                    may_write: rights & 2 != 0,
                    may_close: rights & 4 != 0,
                    longest,
                })
            }
            AHEAD => Self::Ahead {
                file: reader.u16()?,
                position: reader.u64()?,
                offset: reader.u64()?,
                length: reader.u32()?,
            },
            END_OF_FILE => Self::EndOfFile {
                file: reader.u16()?,
                position: reader.u64()?,
                offset: reader.u64()?,
            },
            SETTLED => Self::Settled {
                position: reader.u64()?,
            },
            REVOKE => Self::Revoke {
                file: reader.u16()?,
            },
            HEARD => Self::Heard {
                number: reader.u64()?,
            },
            BEAT => Self::Beat {
                number: reader.u64()?,
            },
            AGAIN => {
                let position = reader.u64()?;
                let length = usize::from(reader.u16()?);
                Self::Again {
                    position,
                    message: Bytes::copy_from_slice(reader.bytes(length)?),
                }
            }
            DROPPED => Self::Dropped {
                file: reader.u16()?,
                from: reader.u64()?,
                to: reader.u64()?,
            },
            REVOKED => Self::Revoked {
                file: reader.u16()?,
            },
            REPLY => Self::Reply {
                position: reader.u64()?,
            },
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_truncated_ones_fail() {
        let frames = [
            Smb1HalfFrame::Speaks { version: VERSION },
            Smb1HalfFrame::Engaged { version: VERSION },
            Smb1HalfFrame::Licence(Smb1OpenLicence {
                file: 0x4001,
                user: 100,
                tree: 7,
                may_read: true,
                may_write: false,
                may_close: true,
                longest: 4_296,
            }),
            Smb1HalfFrame::Ahead {
                file: 3,
                position: 9,
                offset: 1 << 40,
                length: 65_535,
            },
            Smb1HalfFrame::EndOfFile {
                file: 3,
                position: 9,
                offset: 1 << 40,
            },
            Smb1HalfFrame::Settled { position: 4 },
            Smb1HalfFrame::Revoke { file: 3 },
            Smb1HalfFrame::Heard { number: 5 },
            Smb1HalfFrame::Beat { number: 5 },
            Smb1HalfFrame::Again {
                position: 8,
                message: Bytes::from_static(b"read"),
            },
            Smb1HalfFrame::Dropped {
                file: 3,
                from: 8_192,
                to: 1 << 40,
            },
            Smb1HalfFrame::Revoked { file: 3 },
            Smb1HalfFrame::Reply { position: 8 },
        ];
        for frame in frames {
            let bytes = frame.emit().bytes;
            assert_eq!(Smb1HalfFrame::parse(&bytes), Ok(Some(frame)));
            for cut in 0..bytes.len() {
                let read = Smb1HalfFrame::parse(&bytes[..cut]);
                match read {
                    // As in the first version.
                    Ok(Some(Smb1HalfFrame::Licence(licence))) => {
                        assert_eq!((cut, licence.longest), (bytes.len() - 4, 0));
                    }
                    _ => assert_eq!(read, Err(TruncatedInput)),
                }
            }
        }
        assert_eq!(Smb1HalfFrame::parse(&[1, 1]), Ok(None));
    }
}
