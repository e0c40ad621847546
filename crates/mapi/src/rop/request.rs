//! Requests: the ROPs of a list, their lengths and the objects that they name ([MS-OXCROPS] §2.2).
//!
//! ```text
//!  RopId u8 │ LogonId u8 │ index u8 │ fields as LAYOUTS has them
//! ```
//! A ROP without a layout cannot be stepped over, so nothing behind it is known. [`read_requests`]
//! then refuses the whole list.

use super::buffer::RopBuffer;
use super::values::FieldReader;
use super::{RopError, id};

/// The value of ByteCount or BufferSize that announces a larger size behind it.
const LARGE_SIZE: u16 = 0xbabe;

/// A second index of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondIndex {
    /// The server puts a new object there.
    Output(u8),
    /// The ROP uses this object as well, or in place of the first.
    Input(u8),
}

/// One ROP of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRop {
    /// See [`id`].
    pub id: u8,
    /// The logon that it belongs to.
    pub logon: u8,
    /// The first index.
    pub index: u8,
    /// The second index.
    pub second: Option<SecondIndex>,
    /// Its place among the ROPs of the buffer.
    pub start: usize,
    /// The end of its place.
    pub end: usize,
    /// Its meaning where a tactic needs it.
    pub detail: RequestDetail,
}

/// The fields that tactics use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestDetail {
    /// Any other ROP.
    Plain,
    /// RopOpenStream.
    OpenStream {
        /// The property.
        tag: u32,
        /// 0 for reading only.
        mode: u8,
    },
    /// RopReadStream, with the size that it asks for.
    ReadStream {
        /// ByteCount or MaximumByteCount.
        size: u32,
    },
    /// RopWriteStream and RopFastTransferDestinationPutBuffer.
    Data {
        /// The place of the data among the ROPs.
        start: usize,
        /// Its length.
        length: usize,
    },
    /// RopQueryRows.
    QueryRows {
        /// True if it advances the cursor forwards.
        advances: bool,
        /// The rows that it asks for.
        count: u16,
    },
    /// RopSetColumns and RopGetPropertiesSpecific.
    Tags(Vec<u32>),
    /// RopFastTransferSourceGetBuffer, with the size that it asks for.
    GetBuffer {
        /// BufferSize, or MaximumBufferSize.
        size: u16,
    },
}

impl RequestRop {
    /// The indexes of the objects that it uses.
    pub fn inputs(&self) -> impl Iterator<Item = u8> + use<> {
        let first = match (self.id, self.second) {
            (id::LOGON, _) => None,
            (id::SAVE_CHANGES_MESSAGE | id::SAVE_CHANGES_ATTACHMENT, _) => None,
            _ => Some(self.index),
        };
        let second = match self.second {
            Some(SecondIndex::Input(index)) => Some(index),
            Some(SecondIndex::Output(_)) | None => None,
        };
        first.into_iter().chain(second)
    }

    /// The index of the object that it creates.
    #[must_use]
    pub fn output(&self) -> Option<u8> {
        match (self.id, self.second) {
            (id::LOGON, _) => Some(self.index),
            (_, Some(SecondIndex::Output(index))) => Some(index),
            _ => None,
        }
    }

    /// The index that its response has.
    #[must_use]
    pub fn response_index(&self) -> u8 {
        self.output().unwrap_or(self.index)
    }
}

/// A field of a request behind its first three bytes.
enum RequestField {
    /// Bytes of no interest.
    Skip(usize),
    Output,
    Input,
    /// A 16-bit length and so many bytes.
    Sized16,
    /// A 32-bit length and so many bytes.
    Sized32,
    /// A 16-bit count and so many items of this size.
    Items(usize),
    /// An 8-bit text that ends with a zero.
    Text,
}

use RequestField::{Input, Items, Output, Sized16, Sized32, Skip, Text};

/// The layouts of requests that can be stepped over, without those that have code of their own.
fn layout(id: u8) -> Option<&'static [RequestField]> {
    Some(match id {
        id::RELEASE
        | id::GET_PROPERTIES_LIST
        | id::GET_STATUS
        | id::QUERY_POSITION
        | id::QUERY_COLUMNS_ALL
        | id::TRANSPORT_SEND
        | id::GET_VALID_ATTACHMENTS
        | id::COMMIT_STREAM
        | id::GET_STREAM_SIZE
        | id::GET_RECEIVE_FOLDER_TABLE
        | id::GET_STORE_STATE
        | id::RESET_TABLE
        | 0x1b
        | 0x38
        | 0x47
        | 0x49
        | 0x6d
        | 0x77 => &[],
        id::OPEN_FOLDER => &[Output, Skip(9)],
        id::OPEN_MESSAGE => &[Output, Skip(2 + 8 + 1 + 8)],
        id::GET_HIERARCHY_TABLE
        | id::GET_CONTENTS_TABLE
        | id::GET_ATTACHMENT_TABLE
        | id::GET_PERMISSIONS_TABLE
        | id::GET_RULES_TABLE => &[Output, Skip(1)],
        id::CREATE_MESSAGE => &[Output, Skip(2 + 8 + 1)],
        id::GET_PROPERTIES_ALL => &[Skip(4)],
        id::SET_PROPERTIES | 0x79 => &[Sized16],
        id::DELETE_PROPERTIES | 0x7a => &[Items(4)],
        id::SAVE_CHANGES_MESSAGE | id::SAVE_CHANGES_ATTACHMENT => &[Input, Skip(1)],
        0x0d => &[Skip(4)],
        id::READ_RECIPIENTS => &[Skip(6)],
        id::RELOAD_CACHED_INFORMATION => &[Skip(2)],
        id::RESTRICT => &[Skip(1), Sized16],
        id::SEEK_ROW => &[Skip(6)],
        0x19 => &[Sized16, Skip(5)],
        0x1a => &[Skip(8)],
        0x1d => &[Skip(9)],
        0x1e | 0x91 => &[Skip(2), Items(8)],
        0x1f => &[Skip(8)],
        0x20 => &[Skip(16)],
        id::OPEN_ATTACHMENT => &[Output, Skip(5)],
        id::CREATE_ATTACHMENT | id::CLONE_STREAM | id::SYNC_GET_TRANSFER_STATE => &[Output],
        0x24 => &[Skip(4)],
        id::GET_RECEIVE_FOLDER => &[Text],
        id::SEEK_STREAM => &[Skip(9)],
        id::SET_STREAM_SIZE => &[Skip(8)],
        0x31 => &[Skip(3)],
        id::SUBMIT_MESSAGE | 0x50 => &[Skip(1)],
        0x33 => &[Input, Items(8), Skip(2)],
        0x34 => &[Skip(16)],
        id::COPY_TO => &[Input, Skip(3), Items(4)],
        id::COPY_TO_STREAM => &[Input, Skip(8)],
        id::LONG_TERM_ID_FROM_ID => &[Skip(8)],
        id::ID_FROM_LONG_TERM_ID => &[Skip(24)],
        id::OPEN_EMBEDDED_MESSAGE => &[Output, Skip(3)],
        0x48 => &[Skip(9)],
        id::SOURCE_COPY_MESSAGES => &[Output, Items(8), Skip(2)],
        id::SOURCE_COPY_FOLDER => &[Output, Skip(2)],
        id::SOURCE_COPY_TO => &[Output, Skip(6), Items(4)],
        id::SOURCE_COPY_PROPERTIES => &[Output, Skip(3), Items(4)],
        0x4f => &[Skip(1), Sized16, Skip(1), Sized16],
        id::DESTINATION_CONFIGURE => &[Output, Skip(2)],
        id::GET_NAMES_FROM_IDS => &[Items(2)],
        0x58 | 0x92 => &[Skip(2)],
        0x59 => &[Skip(10)],
        0x5a => &[Skip(8)],
        0x5b | 0x5c => &[Skip(20)],
        0x66 => &[Skip(2), Items(8)],
        0x67 => &[Input, Skip(2), Items(4)],
        0x6b => &[Skip(12)],
        0x6c | 0x80 | 0x89 | 0x93 => &[Sized16],
        id::SYNC_CONFIGURE => &[Output, Skip(4), Sized16, Skip(4), Items(4)],
        0x75 => &[Skip(8)],
        0x76 => &[Sized32],
        id::SYNC_OPEN_COLLECTOR => &[Output, Skip(1)],
        0x7f => &[Skip(4)],
        0x86 => &[Skip(6)],
        0x90 | 0xa3 => &[Sized16],
        id::LOGON => &[Skip(9), Sized16],
        _ => return None,
    })
}

/// Reads all ROPs of a request.
///
/// # Errors
/// [`RopError`] when one of them is not known, or the list ends in the middle of one.
pub fn read_requests(buffer: &RopBuffer) -> Result<Vec<RequestRop>, RopError> {
    let mut requests = Vec::new();
    let mut reader = FieldReader::new(&buffer.rops, 0);
    while reader.at() < buffer.rops.len() {
        requests.push(read_request(&mut reader)?);
    }
    Ok(requests)
}

fn read_request(reader: &mut FieldReader<'_>) -> Result<RequestRop, RopError> {
    let start = reader.at();
    let [id, logon, index] = reader.array()?;
    let mut second = None;
    let mut detail = RequestDetail::Plain;
    match id {
        id::OPEN_STREAM => {
            second = Some(SecondIndex::Output(reader.u8()?));
            detail = RequestDetail::OpenStream {
                tag: reader.u32()?,
                mode: reader.u8()?,
            };
        }
        id::READ_STREAM => {
            let size = match reader.u16()? {
                LARGE_SIZE => reader.u32()?,
                size => u32::from(size),
            };
            detail = RequestDetail::ReadStream { size };
        }
        id::SOURCE_GET_BUFFER => {
            let size = match reader.u16()? {
                LARGE_SIZE => reader.u16()?,
                size => size,
            };
            detail = RequestDetail::GetBuffer { size };
        }
        id::WRITE_STREAM | id::DESTINATION_PUT_BUFFER => {
            let length = usize::from(reader.u16()?);
            detail = RequestDetail::Data {
                start: reader.at(),
                length,
            };
            reader.skip(length)?;
        }
        id::QUERY_ROWS => {
            let (flags, forward) = (reader.u8()?, reader.u8()?);
            detail = RequestDetail::QueryRows {
                advances: flags & 1 == 0 && forward != 0,
                count: reader.u16()?,
            };
        }
        id::SET_COLUMNS | id::GET_PROPERTIES_SPECIFIC => {
            reader.skip(if id == id::SET_COLUMNS { 1 } else { 4 })?;
            let count = reader.u16()?;
            let tags: Result<Vec<u32>, RopError> = (0..count).map(|_| reader.u32()).collect();
            detail = RequestDetail::Tags(tags?);
        }
        id::SORT_TABLE => {
            reader.skip(1)?;
            let count = reader.u16()?;
            reader.skip(4)?;
            reader.skip_items(usize::from(count), 5)?;
        }
        0x0e => {
            let columns = reader.u16()?;
            reader.skip_items(usize::from(columns), 4)?;
            for _ in 0..reader.u16()? {
                reader.skip(5)?;
                let length = reader.u16()?;
                reader.skip(usize::from(length))?;
            }
        }
        0x1c => {
            second = Some(SecondIndex::Output(reader.u8()?));
            let [_, is_unicode, _, _] = reader.array()?;
            let unit = if is_unicode == 0 { 1 } else { 2 };
            reader.skip_text(unit)?;
            reader.skip_text(unit)?;
        }
        id::REGISTER_NOTIFICATION => {
            second = Some(SecondIndex::Output(reader.u8()?));
            reader.skip(2)?;
            if reader.u8()? == 0 {
                reader.skip(16)?;
            }
        }
        id::GET_IDS_FROM_NAMES => {
            reader.skip(1)?;
            for _ in 0..reader.u16()? {
                let kind = reader.u8()?;
                reader.skip(16)?;
                match kind {
                    0 => reader.skip(4)?,
                    1 => {
                        let length = reader.u8()?;
                        reader.skip(usize::from(length))?;
                    }
                    0xff => {}
                    _ => return Err(RopError::Unknown),
                }
            }
        }
        _ => {
            for field in layout(id).ok_or(RopError::Unknown)? {
                match field {
                    Skip(count) => reader.skip(*count)?,
                    Output => second = Some(SecondIndex::Output(reader.u8()?)),
                    Input => second = Some(SecondIndex::Input(reader.u8()?)),
                    Sized16 => {
                        let length = reader.u16()?;
                        reader.skip(usize::from(length))?;
                    }
                    Sized32 => {
                        let length = reader.u32()?;
                        reader.skip(length as usize)?;
                    }
                    Items(size) => {
                        let count = reader.u16()?;
                        reader.skip_items(usize::from(count), *size)?;
                    }
                    Text => reader.skip_text(1)?,
                }
            }
        }
    }
    Ok(RequestRop {
        id,
        logon,
        index,
        second,
        start,
        end: reader.at(),
        detail,
    })
}
