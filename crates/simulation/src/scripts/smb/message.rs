//! Messages of SMB 2.1 in their frames ([MS-SMB2] §2.1 and §2.2.1), as far as both scripts need them.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of the header of a message.
pub(super) const HEADER: usize = 64;
/// Bytes of the header of a frame.
const FRAME_HEADER: usize = 4;
const MAGIC: [u8; 4] = *b"\xfeSMB";

/// Commands ([MS-SMB2] §2.2.1.2).
pub(super) mod command {
    pub(in super::super) const NEGOTIATE: u16 = 0x00;
    pub(in super::super) const SESSION_SETUP: u16 = 0x01;
    pub(in super::super) const LOGOFF: u16 = 0x02;
    pub(in super::super) const TREE_CONNECT: u16 = 0x03;
    pub(in super::super) const TREE_DISCONNECT: u16 = 0x04;
    pub(in super::super) const CREATE: u16 = 0x05;
    pub(in super::super) const CLOSE: u16 = 0x06;
    pub(in super::super) const READ: u16 = 0x08;
    pub(in super::super) const CANCEL: u16 = 0x0c;
    pub(in super::super) const ECHO: u16 = 0x0d;
    pub(in super::super) const QUERY_INFO: u16 = 0x10;
}

/// Statuses ([MS-ERREF] §2.3.1).
pub(super) mod status {
    pub(in super::super) const SUCCESS: u32 = 0;
    pub(in super::super) const INVALID_PARAMETER: u32 = 0xc000_000d;
    pub(in super::super) const END_OF_FILE: u32 = 0xc000_0011;
    pub(in super::super) const OBJECT_NAME_NOT_FOUND: u32 = 0xc000_0034;
    pub(in super::super) const NOT_SUPPORTED: u32 = 0xc000_00bb;
    pub(in super::super) const FILE_CLOSED: u32 = 0xc000_0128;
}

/// Flags ([MS-SMB2] §2.2.1.2).
const FROM_SERVER: u32 = 0x1;
const RELATED: u32 = 0x4;

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SmbHeader {
    pub(super) charge: u16,
    pub(super) status: u32,
    pub(super) command: u16,
    /// Credits that are requested, or granted.
    pub(super) credits: u16,
    pub(super) flags: u32,
    /// Offset of the next message of a compound; 0 in the last one.
    pub(super) next: u32,
    pub(super) message_id: u64,
    pub(super) process: u32,
    pub(super) tree: u32,
    pub(super) session: u64,
}

impl SmbHeader {
    /// Header of a request.
    pub(super) fn request(command: u16, message_id: u64, session: u64, tree: u32) -> Self {
        Self {
            charge: 1,
            status: 0,
            command,
            credits: 64,
            flags: 0,
            next: 0,
            message_id,
            process: 0xfeff,
            tree,
            session,
        }
    }

    /// Header of the answer to this request.
    pub(super) fn answer(self, status: u32, credits: u16) -> Self {
        Self {
            status,
            credits,
            flags: FROM_SERVER | self.flags & RELATED,
            next: 0,
            ..self
        }
    }

    /// Tells whether the message is about the open of the message before it in its compound.
    pub(super) const fn is_related(&self) -> bool {
        self.flags & RELATED != 0
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.get(..4)? != MAGIC || u16_at(bytes, 4)? != HEADER as u16 {
            return None;
        }
        Some(Self {
            charge: u16_at(bytes, 6)?,
            status: u32_at(bytes, 8)?,
            command: u16_at(bytes, 12)?,
            credits: u16_at(bytes, 14)?,
            flags: u32_at(bytes, 16)?,
            next: u32_at(bytes, 20)?,
            message_id: u64_at(bytes, 24)?,
            process: u32_at(bytes, 32)?,
            tree: u32_at(bytes, 36)?,
            session: u64_at(bytes, 40)?,
        })
    }

    fn emit(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = HEADER as u8;
        bytes[6..8].copy_from_slice(&self.charge.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.status.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.command.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.credits.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.flags.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.next.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.message_id.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.process.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.tree.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.session.to_le_bytes());
        bytes
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SmbMessage {
    pub(super) header: SmbHeader,
    pub(super) body: Bytes,
}

impl SmbMessage {
    /// The message in a frame of its own.
    pub(super) fn frame(&self) -> Bytes {
        let length = HEADER + self.body.len();
        let mut bytes = BytesMut::with_capacity(FRAME_HEADER + length);
        // A zero and the length in 24 bits.
        bytes.extend_from_slice(&(length as u32).to_be_bytes());
        bytes.extend_from_slice(&self.header.emit());
        bytes.extend_from_slice(&self.body);
        bytes.freeze()
    }
}

/// Bytes of one direction, cut into frames.
#[derive(Debug, Default)]
pub(super) struct FrameSplitter(BytesMut);

impl FrameSplitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The messages of the next whole frame; empty for a keep-alive.
    ///
    /// # Errors
    /// Fails when the frame contains no SMB2 messages.
    pub(super) fn next_frame(&mut self) -> Option<Result<Vec<SmbMessage>, &'static str>> {
        let head: [u8; FRAME_HEADER] = *self.0.first_chunk()?;
        let length = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
        if self.0.len() < FRAME_HEADER + length {
            return None;
        }
        self.0.advance(FRAME_HEADER);
        let frame = self.0.split_to(length).freeze();
        Some(messages(&frame))
    }
}

fn messages(frame: &Bytes) -> Result<Vec<SmbMessage>, &'static str> {
    let mut messages = Vec::new();
    let mut rest = frame.clone();
    while !rest.is_empty() {
        let header = SmbHeader::parse(&rest).ok_or("a frame contains no SMB2 message")?;
        let length = match header.next as usize {
            0 => rest.len(),
            next => next,
        };
        if length < HEADER || length > rest.len() {
            return Err("the length of a message in a compound is wrong");
        }
        let message = rest.split_to(length);
        messages.push(SmbMessage {
            header,
            body: message.slice(HEADER..),
        });
    }
    Ok(messages)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*field))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*field))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(command: u16, body: &'static [u8]) -> SmbMessage {
        SmbMessage {
            header: SmbHeader::request(command, 7, 3, 5),
            body: Bytes::from_static(body),
        }
    }

    #[test]
    fn frames_are_cut_at_any_place() {
        let sent = [message(command::ECHO, b"1234"), message(command::READ, b"")];
        let bytes: Vec<u8> = sent.iter().flat_map(SmbMessage::frame).collect();
        let mut splitter = FrameSplitter::default();
        let mut found = Vec::new();
        for byte in bytes {
            splitter.push(&[byte]);
            while let Some(frame) = splitter.next_frame() {
                found.extend(frame.unwrap());
            }
        }
        assert_eq!(found, sent);
    }

    #[test]
    fn wrong_frames_are_errors() {
        let mut splitter = FrameSplitter::default();
        splitter.push(b"\0\0\0\x04HTTP");
        assert!(splitter.next_frame().unwrap().is_err());
        let mut short = message(command::ECHO, b"1234");
        short.header.next = 3;
        splitter.push(&short.frame());
        assert!(splitter.next_frame().unwrap().is_err());
        assert!(splitter.next_frame().is_none());
    }
}
