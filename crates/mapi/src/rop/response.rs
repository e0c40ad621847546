//! Responses: read beside the requests that they answer, up to the first one that is not known.
//!
//! ```text
//!  RopId u8 │ index u8 │ ReturnValue u32 │ fields          … events: RopNotify, RopPending
//! ```
//! Release has no response. RopBufferTooSmall stands for all that the answer has no room for. A server appends events ([MS-OXCRPC] §3.1.4.2, notifications) behind the
//! last response of a buffer. Rows can be read where their columns are known.

use super::buffer::RopBuffer;
use super::request::{RequestDetail, RequestRop};
use super::values::FieldReader;
use super::{RopError, id};

/// ReturnValue of a ROP whose destination is missing; its response has another form.
const NULL_DESTINATION: u32 = 0x503;
/// ReturnValue of RopFastTransferSourceGetBuffer with a wait behind it (ecServerBusy).
const SERVER_BUSY: u32 = 0x480;

/// One response of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseRop {
    /// The request's place in its list.
    pub request: usize,
    /// ReturnValue: zero is success.
    pub result: u32,
    /// Its place among the ROPs of the buffer.
    pub start: usize,
    /// The end of its place.
    pub end: usize,
    /// Its meaning where a tactic needs it.
    pub detail: ResponseDetail,
}

/// The fields that tactics use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseDetail {
    /// Any other response.
    Plain,
    /// RopReadStream: the place of the data.
    Data {
        /// Offset of its first byte among the ROPs.
        start: usize,
        /// Its length.
        length: usize,
    },
    /// RopFastTransferSourceGetBuffer.
    Transfer {
        /// TransferStatus: 0 error, 1 partial, 2 no room, 3 done.
        status: u16,
        /// Offset of the first byte of data among the ROPs.
        start: usize,
        /// Its length.
        length: usize,
    },
    /// RopWriteStream and RopFastTransferDestinationPutBuffer: the bytes that were taken.
    Written {
        /// WrittenSize or BufferUsedSize.
        size: u16,
    },
    /// RopQueryRows.
    Rows {
        /// The number of rows.
        count: u16,
    },
    /// RopSeekStream.
    Position(u64),
    /// RopOpenStream.
    StreamSize(u32),
}

/// The responses of one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseList {
    /// The responses that could be read.
    pub responses: Vec<ResponseRop>,
    /// The place of the first request that the server did not execute, by RopBufferTooSmall behind
    /// the responses.
    pub unexecuted: Option<usize>,
    /// The bytes behind the last of them.
    pub tail: ResponseTail,
}

/// The bytes behind the last response that could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseTail {
    /// There are none.
    Nothing,
    /// Events begin here.
    Events(usize),
    /// Something that is not known begins here.
    Unknown(usize),
}

/// Reads the responses to `requests`; `columns` names the columns of a table by its handle's index.
pub fn read_responses(
    requests: &[RequestRop],
    buffer: &RopBuffer,
    mut columns: impl FnMut(usize) -> Option<Vec<u32>>,
) -> ResponseList {
    let mut responses = Vec::new();
    let mut at = 0;
    let mut answered = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| request.id != id::RELEASE);
    let mut unexecuted = None;
    let mut tail = ResponseTail::Nothing;
    while at < buffer.rops.len() {
        if matches!(buffer.rops[at], id::NOTIFY | id::PENDING) {
            tail = ResponseTail::Events(at);
            break;
        }
        let mut reader = FieldReader::new(&buffer.rops, at);
        let next = answered.next().filter(|_| unexecuted.is_none());
        let read = match next {
            Some((place, _)) if buffer.rops[at] == id::BUFFER_TOO_SMALL => {
                unexecuted = Some(place);
                skip_too_small(&mut reader, &requests[place..]).map(|()| None)
            }
            Some((place, request)) => {
                read_response(&mut reader, place, request, &mut columns).map(Some)
            }
            None => Err(RopError::Unknown),
        };
        match read {
            Ok(response) => {
                at = reader.at();
                responses.extend(response);
            }
            Err(_) => {
                tail = ResponseTail::Unknown(at);
                break;
            }
        }
    }
    ResponseList {
        responses,
        unexecuted,
        tail,
    }
}

/// RopBufferTooSmall ([MS-OXCROPS] §2.2.15.1), with the ROPs that the server did not execute.
fn skip_too_small(reader: &mut FieldReader<'_>, rest: &[RequestRop]) -> Result<(), RopError> {
    let length = match (rest.first(), rest.last()) {
        (Some(first), Some(last)) => last.end - first.start,
        _ => 0,
    };
    reader.skip(1 + 2 + length)
}

fn read_response(
    reader: &mut FieldReader<'_>,
    place: usize,
    request: &RequestRop,
    columns: &mut impl FnMut(usize) -> Option<Vec<u32>>,
) -> Result<ResponseRop, RopError> {
    let start = reader.at();
    let [id, index] = reader.array()?;
    if id != request.id || index != request.response_index() {
        return Err(RopError::Unknown);
    }
    let result = reader.u32()?;
    let detail = match (id, result) {
        (_, NULL_DESTINATION) => return Err(RopError::Unknown),
        (id::READ_STREAM, _) => {
            let length = usize::from(reader.u16()?);
            let start = reader.at();
            reader.skip(length)?;
            ResponseDetail::Data { start, length }
        }
        (id::SOURCE_GET_BUFFER, _) => {
            let status = reader.u16()?;
            reader.skip(2 + 2 + 1)?;
            let length = usize::from(reader.u16()?);
            let start = reader.at();
            reader.skip(length)?;
            if result == SERVER_BUSY {
                reader.skip(4)?;
            }
            ResponseDetail::Transfer {
                status,
                start,
                length,
            }
        }
        (id::WRITE_STREAM | 0x90 | 0xa3, _) => ResponseDetail::Written {
            size: reader.u16()?,
        },
        (id::DESTINATION_PUT_BUFFER, _) => {
            reader.skip(2 + 2 + 2 + 1)?;
            ResponseDetail::Written {
                size: reader.u16()?,
            }
        }
        (id::COPY_TO_STREAM, _) => {
            reader.skip(16)?;
            ResponseDetail::Plain
        }
        (_, 0) => read_success(reader, place, request, columns)?,
        _ => ResponseDetail::Plain,
    };
    Ok(ResponseRop {
        request: place,
        result,
        start,
        end: reader.at(),
        detail,
    })
}

fn read_success(
    reader: &mut FieldReader<'_>,
    place: usize,
    request: &RequestRop,
    columns: &mut impl FnMut(usize) -> Option<Vec<u32>>,
) -> Result<ResponseDetail, RopError> {
    match request.id {
        0x0d
        | 0x0e
        | 0x24
        | 0x30
        | 0x38
        | 0x47
        | 0x48
        | 0x5b
        | 0x5c
        | 0x75..=0x77
        | 0x80
        | 0x81
        | 0x86
        | 0x89
        | 0x93
        | id::GET_ATTACHMENT_TABLE
        | id::OPEN_ATTACHMENT
        | id::SAVE_CHANGES_ATTACHMENT
        | id::REGISTER_NOTIFICATION
        | id::SET_STREAM_SIZE
        | id::SUBMIT_MESSAGE
        | id::CLONE_STREAM
        | id::GET_PERMISSIONS_TABLE
        | id::GET_RULES_TABLE
        | id::SOURCE_COPY_MESSAGES
        | id::SOURCE_COPY_FOLDER
        | id::SOURCE_COPY_TO
        | id::SOURCE_COPY_PROPERTIES
        | id::SYNC_CONFIGURE
        | id::SYNC_OPEN_COLLECTOR
        | id::SYNC_GET_TRANSFER_STATE
        | id::DESTINATION_CONFIGURE
        | id::COMMIT_STREAM => {}
        id::OPEN_FOLDER => {
            let [_, is_ghosted] = reader.array()?;
            if is_ghosted != 0 {
                return Err(RopError::Unknown);
            }
        }
        id::OPEN_MESSAGE | id::RELOAD_CACHED_INFORMATION => skip_message(reader)?,
        id::OPEN_EMBEDDED_MESSAGE => {
            reader.skip(9)?;
            skip_message(reader)?;
        }
        id::GET_HIERARCHY_TABLE
        | id::GET_CONTENTS_TABLE
        | id::CREATE_ATTACHMENT
        | id::GET_STREAM_SIZE
        | id::GET_STORE_STATE => reader.skip(4)?,
        id::CREATE_MESSAGE => {
            if reader.u8()? != 0 {
                reader.skip(8)?;
            }
        }
        id::GET_PROPERTIES_SPECIFIC => {
            let RequestDetail::Tags(tags) = &request.detail else {
                return Err(RopError::Unknown);
            };
            reader.skip_row(tags)?;
        }
        id::GET_PROPERTIES_ALL => {
            for _ in 0..reader.u16()? {
                let tag = reader.u32()?;
                reader.skip_value(tag as u16)?;
            }
        }
        id::GET_PROPERTIES_LIST | id::QUERY_COLUMNS_ALL | id::GET_VALID_ATTACHMENTS => {
            let count = reader.u16()?;
            reader.skip_items(usize::from(count), 4)?;
        }
        id::GET_IDS_FROM_NAMES => {
            let count = reader.u16()?;
            reader.skip_items(usize::from(count), 2)?;
        }
        id::SET_PROPERTIES | id::DELETE_PROPERTIES | 0x79 | 0x7a | id::COPY_TO | 0x67 => {
            let count = reader.u16()?;
            reader.skip_items(usize::from(count), 10)?;
        }
        id::SAVE_CHANGES_MESSAGE => reader.skip(9)?,
        id::READ_RECIPIENTS => {
            for _ in 0..reader.u8()? {
                reader.skip(4)?;
                skip_recipient(reader)?;
            }
        }
        id::SET_COLUMNS
        | id::SORT_TABLE
        | id::RESTRICT
        | id::GET_STATUS
        | 0x1d
        | 0x1e
        | 0x58
        | 0x66
        | 0x91
        | 0x92 => reader.skip(1)?,
        id::QUERY_ROWS => {
            reader.skip(1)?;
            let count = reader.u16()?;
            let columns = columns(place).ok_or(RopError::Unknown)?;
            for _ in 0..count {
                reader.skip_row(&columns)?;
            }
            return Ok(ResponseDetail::Rows { count });
        }
        id::QUERY_POSITION | id::ID_FROM_LONG_TERM_ID => reader.skip(8)?,
        id::SEEK_ROW => reader.skip(5)?,
        id::LONG_TERM_ID_FROM_ID => reader.skip(24)?,
        id::GET_RECEIVE_FOLDER => {
            reader.skip(8)?;
            reader.skip_text(1)?;
        }
        id::OPEN_STREAM => return Ok(ResponseDetail::StreamSize(reader.u32()?)),
        id::SEEK_STREAM => return Ok(ResponseDetail::Position(reader.u64()?)),
        id::LOGON => {
            let is_private = reader.u8()? & 1 != 0;
            reader.skip(13 * 8)?;
            reader.skip(if is_private {
                1 + 16 + 2 + 16 + 8 + 8 + 4
            } else {
                2 + 16 + 16
            })?;
        }
        _ => return Err(RopError::Unknown),
    }
    Ok(ResponseDetail::Plain)
}

/// The fields of a message that was opened ([MS-OXCROPS] §2.2.6.1.2).
fn skip_message(reader: &mut FieldReader<'_>) -> Result<(), RopError> {
    reader.skip(1)?;
    reader.skip_typed_text()?;
    reader.skip_typed_text()?;
    reader.skip(2)?;
    let columns = reader.u16()?;
    reader.skip_items(usize::from(columns), 4)?;
    for _ in 0..reader.u8()? {
        skip_recipient(reader)?;
    }
    Ok(())
}

fn skip_recipient(reader: &mut FieldReader<'_>) -> Result<(), RopError> {
    reader.skip(1 + 2 + 2)?;
    let length = reader.u16()?;
    reader.skip(usize::from(length))
}
