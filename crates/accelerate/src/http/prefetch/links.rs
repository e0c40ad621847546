//! Subresources that a response's head names: `Link` with `rel=preload` (RFC 8288; HTML §4.6.8), in a final response or in
//! 103 Early Hints (RFC 8297).

use super::document::NamedSubresource;
use super::reference::{DocumentUrl, ReferenceBase};
use super::subresource::SubresourceKind;
use crate::http::wire::FieldSection;

/// The subresources on the same server that a head names.
pub(super) fn named_by(url: &DocumentUrl, fields: &FieldSection) -> Vec<NamedSubresource> {
    let base = ReferenceBase::new(url.clone());
    let links = fields.list("link");
    let named = links.filter_map(|link| {
        let (reference, kind) = parse(link)?;
        let target = base.resolve(reference)?;
        Some(NamedSubresource { kind, target })
    });
    named.collect()
}

/// The reference of one link and the kind of what it names, if a browser fetches that at once.
fn parse(link: &[u8]) -> Option<(&[u8], SubresourceKind)> {
    let rest = link.strip_prefix(b"<")?;
    let end = rest.iter().position(|byte| *byte == b'>')?;
    let (reference, parameters) = (&rest[..end], &rest[end + 1..]);
    let mut relation = None;
    let mut destination = None;
    for parameter in parameters.split(|byte| *byte == b';') {
        let equals = parameter.iter().position(|byte| *byte == b'=');
        let (name, value) = parameter.split_at(equals.unwrap_or(parameter.len()));
        let value = unquoted(value.get(1..).unwrap_or_default());
        match &name.trim_ascii().to_ascii_lowercase()[..] {
            b"rel" => relation = relation.or(Some(value)),
            b"as" => destination = destination.or(Some(value)),
            // The server has asked that nobody sends it ahead, or the browser chooses by its screen.
            b"nopush" | b"media" | b"imagesrcset" => return None,
            _ => {}
        }
    }
    let mut relations = relation?.split(u8::is_ascii_whitespace);
    let kind = relations.find_map(|relation| match &relation.to_ascii_lowercase()[..] {
        b"preload" => destination.and_then(SubresourceKind::of_destination),
        b"modulepreload" => Some(SubresourceKind::Script),
        b"stylesheet" => Some(SubresourceKind::Style),
        _ => None,
    })?;
    Some((reference, kind))
}

fn unquoted(value: &[u8]) -> &[u8] {
    let value = value.trim_ascii();
    let inner = value.strip_prefix(b"\"");
    inner
        .and_then(|inner| inner.strip_suffix(b"\""))
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::wire::ResponseHead;
    use bytes::Bytes;

    fn named(links: &[&str]) -> Vec<(SubresourceKind, String)> {
        let fields = links.iter().map(|link| format!("Link: {link}\r\n"));
        let head = format!("HTTP/1.1 103 x\r\n{}\r\n", fields.collect::<String>());
        let head = ResponseHead::parse(Bytes::from(head)).unwrap();
        let url = DocumentUrl::parse(b"http://a/d/").unwrap();
        let named = named_by(&url, &head.fields).into_iter();
        named
            .map(|named| (named.kind, String::from_utf8(named.target).unwrap()))
            .collect()
    }

    #[test]
    fn preloads_are_named() {
        use SubresourceKind::{Font, Image, Script, Style};
        let links = [
            "</a.css>; rel=preload; as=style, <b.js>;REL=\"Preload\" ; as=\"script\"",
            "<http://a/c.woff2>; rel=\"x preload\"; as=font; crossorigin",
            "<d.png>; as=image; rel=preload",
            "<e.mjs>; rel=modulepreload, <f.css>; rel=stylesheet",
        ];
        let expected = [
            (Style, "/a.css"),
            (Script, "/d/b.js"),
            (Font, "/c.woff2"),
            (Image, "/d/d.png"),
            (Script, "/d/e.mjs"),
            (Style, "/d/f.css"),
        ];
        let expected = expected.map(|(kind, target)| (kind, target.to_owned()));
        assert_eq!(named(&links), expected);
    }

    #[test]
    fn other_links_name_nothing() {
        for link in [
            "</a.css>; rel=preload",
            "</a.json>; rel=preload; as=fetch",
            "</a.css>; rel=preload; as=style; nopush",
            "</a.png>; rel=preload; as=image; imagesrcset=\"b 2x\"",
            "</a>; rel=next",
            "</a.css>",
            "</a.css; rel=stylesheet",
            "http://b/a.css",
            "<//b/a.css>; rel=stylesheet",
        ] {
            assert_eq!(named(&[link]), [], "{link}");
        }
    }
}
