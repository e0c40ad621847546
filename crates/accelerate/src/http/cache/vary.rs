//! The request fields that select among the responses of one URL (RFC 9111 §4.1).
//!
//! Values are compared after what the grammar of lists allows to change: lines are joined, whitespace
//! around commas goes, and language tags and content codings are taken in any case.

use crate::http::wire::FieldSection;

/// Names of fields, in lower case and sorted, with the values that the request had for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VarySelection {
    /// (name, normalised value); no value where the request had no such field.
    pub(crate) fields: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl VarySelection {
    /// What a response's Vary selects of its request; `None` where it can select no later request.
    pub(super) fn of(response: &FieldSection, request: &FieldSection) -> Option<Self> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in response.list("vary") {
            if name == b"*" {
                return None;
            }
            names.push(name.to_ascii_lowercase());
        }
        names.sort();
        names.dedup();
        let mut fields = Vec::new();
        for name in names {
            let value = normalised(&name, request);
            fields.push((name, value));
        }
        Some(Self { fields })
    }

    /// True if a request has the same values.
    pub(super) fn selects(&self, request: &FieldSection) -> bool {
        self.fields
            .iter()
            .all(|(name, value)| normalised(name, request) == *value)
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        let of_one = |(name, value): &(Vec<u8>, Option<Vec<u8>>)| {
            name.len() + value.as_ref().map_or(0, Vec::len)
        };
        self.fields.iter().map(|field| of_one(field) + 48).sum()
    }
}

fn normalised(name: &[u8], request: &FieldSection) -> Option<Vec<u8>> {
    let name = std::str::from_utf8(name).ok()?;
    if !request.has(name) {
        return None;
    }
    let members: Vec<&[u8]> = request.list(name).collect();
    let mut value = members.join(&b","[..]);
    if matches!(name, "accept-language" | "accept-encoding" | "accept") {
        value.retain(|byte| *byte != b' ' && *byte != b'\t');
        value.make_ascii_lowercase();
    }
    Some(value)
}
