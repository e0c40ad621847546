//! The part of ASN.1 that Kerberos and SPNEGO use (ITU-T X.690, DER): elements by their tags, and
//! the fields of a SEQUENCE, each under a tag of its own (RFC 4120 §5.1, Specific Compatibility
//! Notes on ASN.1).

use der::asn1::{AnyRef, GeneralizedTime};
use der::{Decode, Reader, SliceReader, Tag, TagNumber};

/// Fields of the longest SEQUENCE that is read, the encrypted part of a ticket, are numbered below this.
const FIELDS: usize = 12;

/// A tag of the kind `[APPLICATION n]`.
pub(crate) fn application(number: u32) -> Tag {
    TagNumber(number).application(true)
}

/// A tag of the kind `[n]`.
pub(crate) fn context(number: u32) -> Tag {
    TagNumber(number).context_specific(true)
}

/// Returns the first element of these bytes, and the rest.
pub(crate) fn first(bytes: &[u8]) -> Option<(Tag, &[u8], &[u8])> {
    let mut reader = SliceReader::new(bytes).ok()?;
    let element = AnyRef::decode(&mut reader).ok()?;
    let end = usize::try_from(reader.position()).ok()?;
    let tag = der::Tagged::tag(&element);
    Some((tag, element.value(), bytes.get(end..)?))
}

/// Returns the content of the first element of these bytes, if it has this tag.
pub(crate) fn inside(bytes: &[u8], tag: Tag) -> Option<&[u8]> {
    let (found, value, _) = first(bytes)?;
    (found == tag).then_some(value)
}

/// The fields of a SEQUENCE. Fields that later versions may add are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceFields<'a> {
    fields: [Option<&'a [u8]>; FIELDS],
}

impl<'a> SequenceFields<'a> {
    /// Parses the fields of the SEQUENCE at the beginning of these bytes.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = inside(bytes, Tag::Sequence)?;
        let mut fields = [None; FIELDS];
        while !rest.is_empty() {
            let (tag, value, behind) = first(rest)?;
            if let Tag::ContextSpecific { number, .. } = tag
                && let Some(field) = fields.get_mut(number.0 as usize)
            {
                *field = Some(value);
            }
            rest = behind;
        }
        Some(Self { fields })
    }

    /// The bytes of a field, with the tag of its type.
    pub(crate) fn get(&self, number: usize) -> Option<&'a [u8]> {
        *self.fields.get(number)?
    }

    /// An OCTET STRING.
    pub(crate) fn octets(&self, number: usize) -> Option<&'a [u8]> {
        inside(self.get(number)?, Tag::OctetString)
    }

    /// An INTEGER of up to 64 bits.
    pub(crate) fn integer(&self, number: usize) -> Option<i64> {
        let bytes = inside(self.get(number)?, Tag::Integer)?;
        let sign = (*bytes.first()? as i8) >> 7;
        let mut whole = [sign as u8; 8];
        let start = whole.len().checked_sub(bytes.len())?;
        whole[start..].copy_from_slice(bytes);
        Some(i64::from_be_bytes(whole))
    }

    /// A KerberosTime (RFC 4120 §5.2.3): seconds since 1970.
    pub(crate) fn time(&self, number: usize) -> Option<u64> {
        let time = GeneralizedTime::from_der(self.get(number)?).ok()?;
        Some(time.to_unix_duration().as_secs())
    }

    /// A KerberosString (RFC 4120 §5.2.1): ASCII by the letter, UTF-8 as it is used.
    pub(crate) fn text(&self, number: usize) -> Option<String> {
        let bytes = inside(self.get(number)?, TEXT)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// GeneralString, which a KerberosString is.
const TEXT: Tag = Tag::GeneralString;

/// The strings of a SEQUENCE OF KerberosString.
pub(crate) fn texts(bytes: &[u8]) -> Option<Vec<String>> {
    let mut rest = inside(bytes, Tag::Sequence)?;
    let mut texts = Vec::new();
    while !rest.is_empty() {
        let (tag, value, behind) = first(rest)?;
        if tag == TEXT {
            texts.push(String::from_utf8_lossy(value).into_owned());
        }
        rest = behind;
    }
    Some(texts)
}
