//! A cursor over the fields of ROPs, and the lengths of property values ([MS-OXCDATA] §2.11).

use super::RopError;

/// Reads fields, little-endian and without alignment.
#[derive(Clone, Debug)]
pub(super) struct FieldReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], RopError> {
        let rest = self.bytes.get(self.at..).ok_or(RopError::Truncated)?;
        let value = rest.first_chunk().ok_or(RopError::Truncated)?;
        self.at += N;
        Ok(*value)
    }

    pub(super) fn u8(&mut self) -> Result<u8, RopError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, RopError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, RopError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, RopError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn skip(&mut self, count: usize) -> Result<(), RopError> {
        let end = self.at.checked_add(count).ok_or(RopError::Truncated)?;
        if end > self.bytes.len() {
            return Err(RopError::Truncated);
        }
        self.at = end;
        Ok(())
    }

    /// Skips `count` items of `size` bytes.
    pub(super) fn skip_items(&mut self, count: usize, size: usize) -> Result<(), RopError> {
        self.skip(count.checked_mul(size).ok_or(RopError::Truncated)?)
    }

    /// Skips a text of units of `unit` bytes that ends with a zero unit.
    pub(super) fn skip_text(&mut self, unit: usize) -> Result<(), RopError> {
        loop {
            let start = self.at;
            self.skip(unit)?;
            if self.bytes[start..self.at].iter().all(|byte| *byte == 0) {
                return Ok(());
            }
        }
    }

    /// Skips a TypedString ([MS-OXCDATA] §2.11.7).
    pub(super) fn skip_typed_text(&mut self) -> Result<(), RopError> {
        match self.u8()? {
            0 | 1 => Ok(()),
            2 | 3 => self.skip_text(1),
            4 => self.skip_text(2),
            _ => Err(RopError::Unknown),
        }
    }

    /// Skips a PropertyRow ([MS-OXCDATA] §2.8.1) of these columns.
    pub(super) fn skip_row(&mut self, columns: &[u32]) -> Result<(), RopError> {
        let is_flagged = match self.u8()? {
            0 => false,
            1 => true,
            _ => return Err(RopError::Unknown),
        };
        for column in columns {
            let mut kind = *column as u16;
            if kind == 0 {
                kind = self.u16()?;
            }
            match is_flagged {
                false => self.skip_value(kind)?,
                true => match self.u8()? {
                    0 => self.skip_value(kind)?,
                    1 => {}
                    0x0a => self.skip(4)?,
                    _ => return Err(RopError::Unknown),
                },
            }
        }
        Ok(())
    }

    /// Skips a property value of this type.
    pub(super) fn skip_value(&mut self, kind: u16) -> Result<(), RopError> {
        if kind & 0x1000 != 0 {
            let count = self.u32()? as usize;
            let single = kind & !0x1000;
            if let Some(size) = fixed_size(single) {
                return self.skip_items(count, size);
            }
            for _ in 0..count {
                self.skip_value(single)?;
            }
            return Ok(());
        }
        match kind {
            0x001e => self.skip_text(1),
            0x001f => self.skip_text(2),
            0x0102 | 0x00fb => {
                let length = self.u16()?;
                self.skip(usize::from(length))
            }
            _ => self.skip(fixed_size(kind).ok_or(RopError::Unknown)?),
        }
    }
}

fn fixed_size(kind: u16) -> Option<usize> {
    Some(match kind {
        0x0002 => 2,
        0x0003 | 0x0004 | 0x000a => 4,
        0x0005..=0x0007 | 0x0014 | 0x0040 => 8,
        0x000b => 1,
        0x0048 => 16,
        _ => return None,
    })
}
