//! As much of structured fields (RFC 8941) as targeted cache control needs: dictionaries, their keys, and
//! whether a value is an integer or true.

/// A member's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StructuredItem {
    /// An integer.
    Integer(i64),
    /// True: a key alone, or `?1`.
    True,
    /// A well-formed value of another type.
    Other,
}

/// Reads a dictionary (RFC 8941 §4.2.2); `None` where it is malformed. The last of equal keys counts.
pub(super) fn dictionary(text: &[u8]) -> Option<Vec<(Vec<u8>, StructuredItem)>> {
    let mut reader = StructuredReader(text.trim_ascii());
    let mut members: Vec<(Vec<u8>, StructuredItem)> = Vec::new();
    while !reader.0.is_empty() {
        let key = reader.key()?;
        let value = match reader.eat(b'=') {
            true if reader.0.first() == Some(&b'(') => reader.inner_list()?,
            true => reader.item()?,
            false => StructuredItem::True,
        };
        reader.parameters()?;
        members.retain(|(other, _)| *other != key);
        members.push((key, value));
        reader.space();
        if reader.0.is_empty() {
            break;
        }
        reader.eat(b',').then_some(())?;
        reader.space();
        if reader.0.is_empty() {
            return None;
        }
    }
    Some(members)
}

struct StructuredReader<'a>(&'a [u8]);

impl<'a> StructuredReader<'a> {
    fn eat(&mut self, byte: u8) -> bool {
        let rest = self.0.strip_prefix(&[byte]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn space(&mut self) {
        while self.eat(b' ') || self.eat(b'\t') {}
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !accept(*byte));
        let (taken, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        taken
    }

    fn key(&mut self) -> Option<Vec<u8>> {
        let begins = |byte: u8| byte.is_ascii_lowercase() || byte == b'*';
        self.0.first().filter(|byte| begins(**byte))?;
        let key =
            self.take_while(|byte| begins(byte) || byte.is_ascii_digit() || b"_-.".contains(&byte));
        Some(key.to_vec())
    }

    fn parameters(&mut self) -> Option<()> {
        while self.eat(b';') {
            self.space();
            self.key()?;
            if self.eat(b'=') {
                self.item()?;
            }
        }
        Some(())
    }

    fn inner_list(&mut self) -> Option<StructuredItem> {
        self.eat(b'(');
        loop {
            self.space();
            if self.eat(b')') {
                return Some(StructuredItem::Other);
            }
            self.item()?;
            self.parameters()?;
            matches!(self.0.first()?, b' ' | b')').then_some(())?;
        }
    }

    /// A bare item (RFC 8941 §4.2.3.1).
    fn item(&mut self) -> Option<StructuredItem> {
        match *self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => {
                self.0 = &self.0[1..];
                loop {
                    self.take_while(|byte| {
                        byte != b'"' && byte != b'\\' && matches!(byte, 0x20..=0x7e)
                    });
                    if self.eat(b'"') {
                        return Some(StructuredItem::Other);
                    }
                    self.eat(b'\\').then_some(())?;
                    (self.eat(b'"') || self.eat(b'\\')).then_some(())?;
                }
            }
            b'?' => match self.0.get(1)? {
                b'1' => {
                    self.0 = &self.0[2..];
                    Some(StructuredItem::True)
                }
                b'0' => {
                    self.0 = &self.0[2..];
                    Some(StructuredItem::Other)
                }
                _ => None,
            },
            b':' => {
                self.0 = &self.0[1..];
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.eat(b':').then_some(StructuredItem::Other)
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_part =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
                self.take_while(is_part);
                Some(StructuredItem::Other)
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<StructuredItem> {
        let is_negative = self.eat(b'-');
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if self.eat(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            let is_decimal = (1..=12).contains(&digits.len()) && (1..=3).contains(&fraction.len());
            return is_decimal.then_some(StructuredItem::Other);
        }
        (1..=15).contains(&digits.len()).then_some(())?;
        let number: i64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(StructuredItem::Integer(if is_negative {
            -number
        } else {
            number
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_read_or_refused_as_a_whole() {
        let read = |text: &str| dictionary(text.as_bytes());
        let members =
            read("max-age=60;x=\"a\\\"b\", private, b=?0, c=(1 a);d, e=1.5, f=:YQ==:").unwrap();
        assert_eq!(
            members[0],
            (b"max-age".to_vec(), StructuredItem::Integer(60))
        );
        assert_eq!(members[1], (b"private".to_vec(), StructuredItem::True));
        assert_eq!(members.len(), 6);
        assert_eq!(
            read("a=1, a=2").unwrap(),
            [(b"a".to_vec(), StructuredItem::Integer(2))]
        );
        assert_eq!(read(""), Some(vec![]));
        for bad in [
            "max-age=60,",
            "Max-Age=60",
            "max-age=$",
            "a=\"x",
            "a b",
            "a=1.2.3",
            "=1",
            "a;",
            "a=9999999999999999",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
