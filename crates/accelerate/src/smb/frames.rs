//! The frames between the halves, beside the hosts' messages (docs/formats/smb-frames.md).
//!
//! ```text
//!  far ──► near   Engaged · Licence · Ahead + payload · EndOfFile · Settled · Revoke · Heard
//!                 Listed + payload · Key · Sealing · Forget · Sealed + message · Offer · LeasedOffer
//!                 Lease · FileSystem · Information · Missing · ListingOffer · MayWrite · Speaks
//!  near ──► far   Speaks · Beat · Again · Dropped · Revoked · Forgot · Sealed + message · Took · Unwanted
//! ```
//! A frame is the content of one frame segment. Its numbers are never reused.

use std::time::Duration;

use bytes::Bytes;
use vocab::{ByteReader, ByteWriter, FlowSegment, TruncatedInput};
use zeroize::Zeroizing;

use super::keys::{
    EncryptionCipher, NONCE_SEED_LENGTH, SealingKey, SealingKeys, SigningAlgorithm, SigningKey,
};
use super::listing::DirectoryQuery;
use super::wire::FileId;
use super::wire::header::{self, MessageProtection, Smb2Header};
use super::wire::lease::LeaseKey;
use super::wire::query_info::InformationQuestion;
use super::wire::transfer::ReadRequest;

/// The version of these frames, sent once in [`HalfFrame::Engaged`].
pub(crate) const VERSION: u8 = 1;

const ENGAGED: u8 = 1;
const LICENCE: u8 = 2;
const AHEAD: u8 = 3;
const END_OF_FILE: u8 = 4;
const SETTLED: u8 = 5;
const REVOKE: u8 = 6;
const HEARD: u8 = 7;
const BEAT: u8 = 8;
const AGAIN: u8 = 10;
const REVOKED: u8 = 11;
const LISTED: u8 = 12;
const FORGOT: u8 = 13;
const SPEAKS: u8 = 16;
const KEY: u8 = 17;
const FORGET: u8 = 18;
const SEALING: u8 = 19;
const SEALED: u8 = 20;
const AGAIN_SEALED: u8 = 21;
const OFFER: u8 = 22;
const TOOK: u8 = 23;
const FILE_SYSTEM: u8 = 24;
const LEASE: u8 = 25;
const LEASED_OFFER: u8 = 26;
const INFORMATION: u8 = 27;
const MISSING: u8 = 28;
const UNWANTED: u8 = 29;
const LISTING_OFFER: u8 = 30;
const DROPPED: u8 = 31;
const MAY_WRITE: u8 = 32;

/// The version in [`HalfFrame::Speaks`] of a near half that accepts keys. A near half that sends
/// none accepts no keys.
pub(crate) const TAKES_KEYS: u8 = 2;
/// The version of a near half that also accepts keys for encryption.
pub(crate) const TAKES_SEALING: u8 = 3;

/// The version of a near half that also accepts opens made ahead.
pub(crate) const TAKES_OFFERS: u8 = 4;
/// The version of a near half that also accepts leases as licences.
pub(crate) const TAKES_LEASES: u8 = 5;
/// The version of halves that list directories ahead in answers of 8 KiB and more, and answer
/// SET_INFO of the length, or of times and attributes, early. They do so only if both send it: the far half sends its
/// own version before [`HalfFrame::Engaged`], and only to such a near half.
pub(crate) const COMPOUNDS: u8 = 6;
/// The version of halves that also know [`HalfFrame::LeasedOffer`].
pub(crate) const LEASED_OFFERS: u8 = 7;
/// The version of halves that also answer SET_INFO of the allocation early, and the CLOSE of an open for
/// attributes alone under a lease, behind changes of its name as well, and questions about a file that were asked ahead.
pub(crate) const OFFICE_REQUESTS: u8 = 8;
/// The version of halves that also know [`HalfFrame::Missing`] and [`HalfFrame::Unwanted`].
pub(crate) const LOOKS: u8 = 9;
/// The version of halves that also know [`HalfFrame::ListingOffer`].
pub(crate) const LISTING_OFFERS: u8 = 10;
/// The version of halves that also know [`HalfFrame::MayWrite`].
pub(crate) const LATE_WRITES: u8 = 11;

/// The requests that the near half may answer for one open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenLicence {
    pub(crate) file: FileId,
    pub(crate) session: u64,
    pub(crate) tree: u32,
    /// READs from data that was read ahead.
    pub(crate) may_read: bool,
    /// WRITEs before the server has.
    pub(crate) may_write: bool,
    /// A SET_INFO of times and attributes before the server has.
    pub(crate) may_set: bool,
    /// A CLOSE before the server has, if nothing was changed through this open.
    pub(crate) may_close: bool,
    /// The same, if the file was only renamed, and the server has confirmed that.
    pub(crate) may_close_renamed: bool,
    /// The protection of the CREATE request. A request with weaker protection does not belong to
    /// the open.
    pub(crate) guard: MessageProtection,
    /// The longest READ and WRITE that the server takes, in bytes.
    pub(crate) read_max: u32,
    pub(crate) write_max: u32,
}

/// One frame. A position counts the client's frames since the flow began: data is out of date
/// when it was read before a later message of the client's changed the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HalfFrame {
    /// The far half has begun to alter the hosts' messages and will never let go without closing.
    Engaged {
        /// See [`VERSION`].
        version: u8,
    },
    /// An open may be served.
    Licence(OpenLicence),
    /// `length` bytes of payload follow: the file's contents from `offset` on.
    Ahead {
        file: FileId,
        position: u64,
        offset: u64,
        length: u32,
    },
    /// The file ends here.
    EndOfFile {
        file: FileId,
        position: u64,
        offset: u64,
    },
    /// The READ with this message id is answered by data that was sent ahead.
    Settled { message_id: u64 },
    /// Nothing may be answered for this open any more.
    Revoke { file: FileId },
    /// All beats up to this [`HalfFrame::Beat`] have arrived.
    Heard { number: u64 },
    /// Numbered, so that the near half knows how fresh its licences are.
    Beat { number: u64 },
    /// The data for this READ is no longer available; the server must be asked.
    Again {
        /// The READ as the client sent it.
        header: Smb2Header,
        request: ReadRequest,
    },
    /// The near half no longer has the blocks that begin in this range. It sends this before the client's next message,
    /// once the client has read elsewhere than in order. Far halves of earlier releases ignore it.
    Dropped { file: FileId, from: u64, to: u64 },
    /// Nothing is answered for this open any more, and all answered requests precede this frame.
    Revoked { file: FileId },
    /// `length` bytes of entries follow, which answer the next request for names of this open; no
    /// bytes: there are no more names.
    Listed {
        file: FileId,
        position: u64,
        query: DirectoryQuery,
        /// They are the directory's first, read as it was opened.
        is_fresh: bool,
        length: u32,
    },
    /// The first entries that came with this open are no longer used.
    Forgot { file: FileId },
    /// The sender's capabilities.
    Speaks {
        /// See [`TAKES_KEYS`] and [`TAKES_SEALING`].
        version: u8,
    },
    /// Messages of this session are verified and signed with this key.
    Key { session: u64, key: SigningKey },
    /// The keys of this session's encrypted messages. The near half seals messages in the server's
    /// place with nonces from this seed.
    Sealing {
        session: u64,
        keys: SealingKeys,
        nonce_seed: [u8; NONCE_SEED_LENGTH],
        /// True if decrypted content may enter the dictionaries.
        may_store: bool,
    },
    /// The message that follows is this session's, and encrypted on the hosts' LANs.
    Sealed { session: u64 },
    /// The session has ended, and its keys with it.
    Forget { session: u64 },
    /// This open was made ahead: it answers a CREATE with this body, for as long.
    Offer {
        file: FileId,
        position: u64,
        staleness: Duration,
        request: Bytes,
        answer: Bytes,
    },
    /// This open was made ahead under a lease of the far half's own, in the client's name: it
    /// answers a CREATE with this body, the numbers apart that clients draw anew. The answer holds
    /// the far half's lease key, and the client gets its own in its place. The near half answers
    /// the next CREATE of this kind with [`HalfFrame::Took`], or refuses with
    /// [`HalfFrame::Revoked`].
    LeasedOffer {
        file: FileId,
        position: u64,
        request: Bytes,
        answer: Bytes,
    },
    /// This directory was opened ahead to be listed: with its first fresh [`HalfFrame::Listed`] it
    /// answers a compound of a CREATE with this body and one request for names. The near half answers
    /// the next such compound with [`HalfFrame::Took`], or refuses with [`HalfFrame::Revoked`].
    ListingOffer {
        file: FileId,
        position: u64,
        request: Bytes,
        answer: Bytes,
    },
    /// The client was given this open, with the frame before this.
    Took { file: FileId },
    /// The server's answer to a file system query of this class through this open: at most 255
    /// bytes.
    FileSystem {
        file: FileId,
        position: u64,
        class: u8,
        answer: Bytes,
    },
    /// The server's answer to a question that was asked ahead, behind this frame of the client's.
    Information {
        file: FileId,
        position: u64,
        question: InformationQuestion,
        answer: Bytes,
    },
    /// A CREATE of this form and name finds nothing, and these are the statuses of the requests behind it in its
    /// compound.
    Missing {
        session: u64,
        tree: u32,
        guard: MessageProtection,
        position: u64,
        form: Bytes,
        name: Bytes,
        rest: Vec<u32>,
    },
    /// The server has made this open for a CREATE that the client was told is answered by nothing.
    Unwanted {
        file: FileId,
        session: u64,
        tree: u32,
        guard: MessageProtection,
    },
    /// This open shares its file with all others of this lease: a change through one of them
    /// applies to each.
    Lease { file: FileId, key: LeaseKey },
    /// From here on WRITEs of this licensed open may be answered as well, as if its [`HalfFrame::Licence`] had
    /// said so.
    MayWrite { file: FileId, may_set: bool },
}

impl HalfFrame {
    /// The frame as a segment.
    pub(crate) fn emit(&self) -> FlowSegment {
        let mut writer = ByteWriter::with_capacity(48);
        match self.clone() {
            HalfFrame::Engaged { version } => writer.u8(ENGAGED).u8(version),
            HalfFrame::Licence(licence) => writer
                .u8(LICENCE)
                .bytes(&licence.file.0)
                .u64(licence.session)
                .u32(licence.tree)
                .u8(u8::from(licence.may_read)
                    | u8::from(licence.may_write) << 1
                    | u8::from(licence.may_close) << 2
                    | u8::from(licence.guard == MessageProtection::Signed) << 3
                    | u8::from(licence.guard == MessageProtection::Sealed) << 4
                    | u8::from(licence.may_set) << 5
                    | u8::from(licence.may_close_renamed) << 6)
                .u32(licence.read_max)
                .u32(licence.write_max),
            HalfFrame::Ahead {
                file,
                position,
                offset,
                length,
            } => writer
                .u8(AHEAD)
                .bytes(&file.0)
                .u64(position)
                .u64(offset)
                .u32(length),
            HalfFrame::EndOfFile {
                file,
                position,
                offset,
            } => writer
                .u8(END_OF_FILE)
                .bytes(&file.0)
                .u64(position)
                .u64(offset),
            HalfFrame::Settled { message_id } => writer.u8(SETTLED).u64(message_id),
            HalfFrame::Revoke { file } => writer.u8(REVOKE).bytes(&file.0),
            HalfFrame::Heard { number } => writer.u8(HEARD).u64(number),
            HalfFrame::Beat { number } => writer.u8(BEAT).u64(number),
            HalfFrame::Again { header, request } => writer
                .u8(match header.is_sealed {
                    true => AGAIN_SEALED,
                    false => AGAIN,
                })
                .bytes(&header.emit())
                .bytes(&request.emit()),
            HalfFrame::Dropped { file, from, to } => {
                writer.u8(DROPPED).bytes(&file.0).u64(from).u64(to)
            }
            HalfFrame::Revoked { file } => writer.u8(REVOKED).bytes(&file.0),
            HalfFrame::Listed {
                file,
                position,
                query,
                is_fresh,
                length,
            } => writer
                .u8(LISTED)
                .bytes(&file.0)
                .u64(position)
                .u8(u8::from(is_fresh))
                .u32(length)
                .u8(query.class)
                .u8(query.pattern().len() as u8)
                .bytes(query.pattern()),
            HalfFrame::Forgot { file } => writer.u8(FORGOT).bytes(&file.0),
            HalfFrame::Speaks { version } => writer.u8(SPEAKS).u8(version),
            HalfFrame::Key { session, key } => writer
                .u8(KEY)
                .u64(session)
                .u8(key.algorithm().number())
                .bytes(key.key()),
            HalfFrame::Sealing {
                session,
                keys,
                nonce_seed: chance,
                may_store,
            } => writer
                .u8(SEALING)
                .u64(session)
                .u8(keys.client.cipher().number())
                .bytes(keys.client.key())
                .bytes(keys.server.key())
                .bytes(&chance)
                .u8(u8::from(may_store)),
            HalfFrame::Sealed { session } => writer.u8(SEALED).u64(session),
            HalfFrame::Forget { session } => writer.u8(FORGET).u64(session),
            HalfFrame::Offer {
                file,
                position,
                staleness,
                request,
                answer,
            } => writer
                .u8(OFFER)
                .bytes(&file.0)
                .u64(position)
                .u32(u32::try_from(staleness.as_millis()).unwrap_or(u32::MAX))
                .u16(request.len() as u16)
                .bytes(&request)
                .u16(answer.len() as u16)
                .bytes(&answer),
            HalfFrame::LeasedOffer {
                file,
                position,
                request,
                answer,
            } => writer
                .u8(LEASED_OFFER)
                .bytes(&file.0)
                .u64(position)
                .u16(request.len() as u16)
                .bytes(&request)
                .u16(answer.len() as u16)
                .bytes(&answer),
            HalfFrame::ListingOffer {
                file,
                position,
                request,
                answer,
            } => writer
                .u8(LISTING_OFFER)
                .bytes(&file.0)
                .u64(position)
                .u16(request.len() as u16)
                .bytes(&request)
                .u16(answer.len() as u16)
                .bytes(&answer),
            HalfFrame::Took { file } => writer.u8(TOOK).bytes(&file.0),
            HalfFrame::FileSystem {
                file,
                position,
                class,
                answer,
            } => writer
                .u8(FILE_SYSTEM)
                .bytes(&file.0)
                .u64(position)
                .u8(class)
                .u8(answer.len() as u8)
                .bytes(&answer),
            HalfFrame::Information {
                file,
                position,
                question,
                answer,
            } => writer
                .u8(INFORMATION)
                .bytes(&file.0)
                .u64(position)
                .u8(question.kind)
                .u8(question.class)
                .u32(question.additional)
                .u16(answer.len() as u16)
                .bytes(&answer),
            HalfFrame::Missing {
                session,
                tree,
                guard,
                position,
                form,
                name,
                rest,
            } => {
                let writer = writer
                    .u8(MISSING)
                    .u64(session)
                    .u32(tree)
                    .u8(guard_number(guard))
                    .u64(position)
                    .u8(form.len() as u8)
                    .bytes(&form)
                    .u16(name.len() as u16)
                    .bytes(&name)
                    .u8(rest.len() as u8);
                rest.iter()
                    .fold(writer, |writer, status| writer.u32(*status))
            }
            HalfFrame::Unwanted {
                file,
                session,
                tree,
                guard,
            } => writer
                .u8(UNWANTED)
                .bytes(&file.0)
                .u64(session)
                .u32(tree)
                .u8(guard_number(guard)),
            HalfFrame::Lease { file, key } => writer.u8(LEASE).bytes(&file.0).bytes(&key.0),
            HalfFrame::MayWrite { file, may_set } => {
                writer.u8(MAY_WRITE).bytes(&file.0).u8(u8::from(may_set))
            }
        };
        FlowSegment::frame(writer.finish())
    }

    /// Reads a frame segment; `None` for a kind that this release does not know.
    ///
    /// # Errors
    /// When a known frame ends early.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, TruncatedInput> {
        let mut reader = ByteReader::new(bytes);
        let file = |reader: &mut ByteReader<'_>| reader.array().map(FileId);
        // Bytes behind their length, a 16-bit number.
        let short = |reader: &mut ByteReader<'_>| {
            let length = usize::from(reader.u16()?);
            reader.bytes(length).map(Bytes::copy_from_slice)
        };
        let frame = match reader.u8()? {
            ENGAGED => HalfFrame::Engaged {
                version: reader.u8()?,
            },
            LICENCE => {
                let (file, session, tree) = (file(&mut reader)?, reader.u64()?, reader.u32()?);
                let rights = reader.u8()?;
                HalfFrame::Licence(OpenLicence {
                    file,
                    session,
                    tree,
                    may_read: rights & 1 != 0,
                    may_write: rights & 2 != 0,
                    may_close: rights & 4 != 0,
                    may_set: rights & 32 != 0,
                    may_close_renamed: rights & 64 != 0,
                    guard: match rights & 24 {
                        0 => MessageProtection::Nothing,
                        8 => MessageProtection::Signed,
                        _ => MessageProtection::Sealed,
                    },
                    read_max: reader.u32()?,
                    write_max: reader.u32()?,
                })
            }
            AHEAD => HalfFrame::Ahead {
                file: file(&mut reader)?,
                position: reader.u64()?,
                offset: reader.u64()?,
                length: reader.u32()?,
            },
            END_OF_FILE => HalfFrame::EndOfFile {
                file: file(&mut reader)?,
                position: reader.u64()?,
                offset: reader.u64()?,
            },
            SETTLED => HalfFrame::Settled {
                message_id: reader.u64()?,
            },
            REVOKE => HalfFrame::Revoke {
                file: file(&mut reader)?,
            },
            HEARD => HalfFrame::Heard {
                number: reader.u64()?,
            },
            BEAT => HalfFrame::Beat {
                number: reader.u64()?,
            },
            kind @ (AGAIN | AGAIN_SEALED) => HalfFrame::Again {
                header: Smb2Header {
                    is_sealed: kind == AGAIN_SEALED,
                    ..Smb2Header::parse(reader.bytes(header::LENGTH)?)
                        .map_err(|_| TruncatedInput)?
                },
                request: ReadRequest::parse(reader.bytes(49)?).map_err(|_| TruncatedInput)?,
            },
            DROPPED => HalfFrame::Dropped {
                file: file(&mut reader)?,
                from: reader.u64()?,
                to: reader.u64()?,
            },
            REVOKED => HalfFrame::Revoked {
                file: file(&mut reader)?,
            },
            LISTED => {
                let (file, position) = (file(&mut reader)?, reader.u64()?);
                let (is_fresh, length) = (reader.u8()? != 0, reader.u32()?);
                let (class, pattern) = (reader.u8()?, usize::from(reader.u8()?));
                let query =
                    DirectoryQuery::new(class, reader.bytes(pattern)?).ok_or(TruncatedInput)?;
                HalfFrame::Listed {
                    file,
                    position,
                    query,
                    is_fresh,
                    length,
                }
            }
            FORGOT => HalfFrame::Forgot {
                file: file(&mut reader)?,
            },
            SPEAKS => HalfFrame::Speaks {
                version: reader.u8()?,
            },
            KEY => {
                let (session, number) = (reader.u64()?, reader.u8()?);
                let key = Zeroizing::new(reader.array()?);
                let algorithm =
                    SigningAlgorithm::from_number(number.into()).ok_or(TruncatedInput)?;
                let key = SigningKey::new(algorithm, &key);
                HalfFrame::Key { session, key }
            }
            SEALING => {
                let (session, number) = (reader.u64()?, reader.u8()?);
                let cipher = EncryptionCipher::from_number(number.into()).ok_or(TruncatedInput)?;
                let client = SealingKey::new(cipher, reader.bytes(cipher.key_length())?);
                let server = SealingKey::new(cipher, reader.bytes(cipher.key_length())?);
                HalfFrame::Sealing {
                    session,
                    keys: SealingKeys { client, server },
                    nonce_seed: reader.array()?,
                    may_store: reader.u8()? != 0,
                }
            }
            SEALED => HalfFrame::Sealed {
                session: reader.u64()?,
            },
            FORGET => HalfFrame::Forget {
                session: reader.u64()?,
            },
            OFFER => {
                let (file, position) = (file(&mut reader)?, reader.u64()?);
                let staleness = Duration::from_millis(reader.u32()?.into());
                let (request, answer) = (short(&mut reader)?, short(&mut reader)?);
                HalfFrame::Offer {
                    file,
                    position,
                    staleness,
                    request,
                    answer,
                }
            }
            LEASED_OFFER => {
                let (file, position) = (file(&mut reader)?, reader.u64()?);
                let (request, answer) = (short(&mut reader)?, short(&mut reader)?);
                HalfFrame::LeasedOffer {
                    file,
                    position,
                    request,
                    answer,
                }
            }
            LISTING_OFFER => {
                let (file, position) = (file(&mut reader)?, reader.u64()?);
                let (request, answer) = (short(&mut reader)?, short(&mut reader)?);
                HalfFrame::ListingOffer {
                    file,
                    position,
                    request,
                    answer,
                }
            }
            TOOK => HalfFrame::Took {
                file: file(&mut reader)?,
            },
            FILE_SYSTEM => {
                let (file, position) = (file(&mut reader)?, reader.u64()?);
                let (class, length) = (reader.u8()?, usize::from(reader.u8()?));
                HalfFrame::FileSystem {
                    file,
                    position,
                    class,
                    answer: Bytes::copy_from_slice(reader.bytes(length)?),
                }
            }
            INFORMATION => {
                let (file, position) = (file(&mut reader)?, reader.u64()?);
                let question = InformationQuestion {
                    kind: reader.u8()?,
                    class: reader.u8()?,
                    additional: reader.u32()?,
                };
                let length = usize::from(reader.u16()?);
                HalfFrame::Information {
                    file,
                    position,
                    question,
                    answer: Bytes::copy_from_slice(reader.bytes(length)?),
                }
            }
            LEASE => HalfFrame::Lease {
                file: file(&mut reader)?,
                key: LeaseKey(reader.array()?),
            },
            MISSING => {
                let (session, tree) = (reader.u64()?, reader.u32()?);
                let guard = guard_of(reader.u8()?);
                let position = reader.u64()?;
                let form = usize::from(reader.u8()?);
                let form = Bytes::copy_from_slice(reader.bytes(form)?);
                let name = usize::from(reader.u16()?);
                let name = Bytes::copy_from_slice(reader.bytes(name)?);
                let count = reader.u8()?;
                let rest = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
                HalfFrame::Missing {
                    session,
                    tree,
                    guard,
                    position,
                    form,
                    name,
                    rest,
                }
            }
            MAY_WRITE => HalfFrame::MayWrite {
                file: file(&mut reader)?,
                may_set: reader.u8()? != 0,
            },
            UNWANTED => HalfFrame::Unwanted {
                file: file(&mut reader)?,
                session: reader.u64()?,
                tree: reader.u32()?,
                guard: guard_of(reader.u8()?),
            },
            _ => return Ok(None),
        };
        Ok(Some(frame))
    }
}

/// The number of a protection on the wire.
fn guard_number(guard: MessageProtection) -> u8 {
    match guard {
        MessageProtection::Nothing => 0,
        MessageProtection::Signed => 1,
        MessageProtection::Sealed => 2,
    }
}

/// Its protection; an unknown one is the strongest, which fits no request.
fn guard_of(number: u8) -> MessageProtection {
    match number {
        0 => MessageProtection::Nothing,
        1 => MessageProtection::Signed,
        _ => MessageProtection::Sealed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::header::status;
    use super::*;

    fn every() -> Vec<HalfFrame> {
        let file = FileId([5; 16]);
        vec![
            HalfFrame::Took { file },
            HalfFrame::FileSystem {
                file,
                position: 4,
                class: 3,
                answer: Bytes::from_static(b"space"),
            },
            HalfFrame::Lease {
                file,
                key: LeaseKey([6; 16]),
            },
            HalfFrame::Missing {
                session: 3,
                tree: 4,
                guard: MessageProtection::Signed,
                position: 5,
                form: Bytes::from_static(b"form"),
                name: Bytes::from_static(b"name"),
                rest: vec![status::NOT_SUPPORTED, status::OBJECT_NAME_NOT_FOUND],
            },
            HalfFrame::Unwanted {
                file,
                session: 3,
                tree: 4,
                guard: MessageProtection::Sealed,
            },
            HalfFrame::Information {
                file,
                position: 4,
                question: InformationQuestion {
                    kind: 3,
                    class: 0,
                    additional: 7,
                },
                answer: Bytes::from_static(b"rights"),
            },
            HalfFrame::Offer {
                file,
                position: 3,
                staleness: Duration::from_millis(1_500),
                request: Bytes::from_static(b"create"),
                answer: Bytes::from_static(b"created"),
            },
            HalfFrame::LeasedOffer {
                file,
                position: 3,
                request: Bytes::from_static(b"create"),
                answer: Bytes::from_static(b"created"),
            },
            HalfFrame::ListingOffer {
                file,
                position: 3,
                request: Bytes::from_static(b"create"),
                answer: Bytes::from_static(b"created"),
            },
            HalfFrame::Engaged { version: VERSION },
            HalfFrame::Licence(OpenLicence {
                file,
                session: 7,
                tree: 3,
                may_read: false,
                may_write: true,
                may_set: true,
                may_close: true,
                may_close_renamed: true,
                guard: MessageProtection::Sealed,
                read_max: 65_536,
                write_max: 1 << 20,
            }),
            HalfFrame::Ahead {
                file,
                position: 9,
                offset: 1 << 33,
                length: 65_536,
            },
            HalfFrame::EndOfFile {
                file,
                position: 9,
                offset: 12,
            },
            HalfFrame::Settled { message_id: 4 },
            HalfFrame::Revoke { file },
            HalfFrame::Heard { number: 1 },
            HalfFrame::Beat { number: 2 },
            HalfFrame::Again {
                header: Smb2Header::request(header::command::READ, 5, 1, 1),
                request: ReadRequest {
                    flags: 0,
                    length: 10,
                    offset: 20,
                    file,
                    minimum: 0,
                    channel: 0,
                },
            },
            HalfFrame::Again {
                header: Smb2Header {
                    is_sealed: true,
                    ..Smb2Header::request(header::command::READ, 5, 1, 1)
                },
                request: ReadRequest {
                    flags: 0,
                    length: 10,
                    offset: 20,
                    file,
                    minimum: 0,
                    channel: 0,
                },
            },
            HalfFrame::Dropped {
                file,
                from: 8_192,
                to: 1 << 40,
            },
            HalfFrame::Revoked { file },
            HalfFrame::MayWrite {
                file,
                may_set: true,
            },
            HalfFrame::Listed {
                file,
                position: 9,
                query: DirectoryQuery::usual(),
                is_fresh: true,
                length: 1 << 16,
            },
            HalfFrame::Forgot { file },
            HalfFrame::Speaks {
                version: TAKES_KEYS,
            },
            HalfFrame::Key {
                session: 9,
                key: SigningKey::new(SigningAlgorithm::AesCmac, &[4; 16]),
            },
            HalfFrame::Sealing {
                session: 9,
                keys: SealingKeys {
                    client: SealingKey::new(EncryptionCipher::Aes256Gcm, &[5; 32]),
                    server: SealingKey::new(EncryptionCipher::Aes256Gcm, &[6; 32]),
                },
                nonce_seed: [7; NONCE_SEED_LENGTH],
                may_store: true,
            },
            HalfFrame::Sealed { session: 9 },
            HalfFrame::Forget { session: 9 },
        ]
    }

    #[test]
    fn frames_round_trip_and_truncated_ones_fail() {
        for frame in every() {
            let bytes = frame.emit().bytes;
            assert_eq!(HalfFrame::parse(&bytes), Ok(Some(frame)));
            for cut in 0..bytes.len() {
                assert_eq!(HalfFrame::parse(&bytes[..cut]), Err(TruncatedInput));
            }
        }
    }

    #[test]
    fn a_frame_of_a_later_release_is_nothing() {
        assert_eq!(HalfFrame::parse(&[200, 1, 2]), Ok(None));
    }
}
