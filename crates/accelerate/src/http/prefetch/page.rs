//! Subresources that an HTML page names (HTML §13.2.5, Tokenization).
//!
//! ```text
//!   Text ──'<'──► TagName ──► Attributes ──'>'──► Text
//!     │              └ script, style, title … ──► RawText ──its end tag──► Text
//!     └──"<!--"──► Comment ──"-->"──► Text
//! ```
//! The page comes in pieces. One tag's name and the attributes that matter are kept of it. Text of `<style>` and
//! attributes `style` go to a [`StyleScanner`].
//!
//! Only what every browser fetches is found: not what it chooses by the screen's size (`srcset`, `<picture>`), fetches
//! late or never (`loading=lazy`, `nomodule`, `<template>`, `<noscript>`), or follows when a person says so (`<a>`).

use super::URL_MAX;
use super::document::{FoundReference, ScanFinding};
use super::style::StyleScanner;
use super::subresource::SubresourceKind;

/// The longest name of an element or attribute that is kept. Those that matter have ten letters at most.
const NAME_MAX: usize = 16;

/// Elements whose content is text up to their own end tag.
const RAW_TEXT: [&[u8]; 9] = [
    b"script",
    b"style",
    b"title",
    b"textarea",
    b"noscript",
    b"iframe",
    b"noembed",
    b"noframes",
    b"xmp",
];

/// Finds subresources in an HTML page.
#[derive(Debug, Default)]
pub(super) struct PageScanner {
    state: PageState,
    tag: HtmlTag,
    /// The name and value of the attribute that has begun.
    name: Vec<u8>,
    value: Vec<u8>,
    /// The value is too long to be kept.
    is_spoilt: bool,
    /// The element whose text is passed over, and how much of its end tag has come.
    raw: Vec<u8>,
    raw_end: Vec<u8>,
    style: StyleScanner,
    /// `<template>` elements that are open: nothing in them is fetched.
    templates: u32,
    /// In a `<picture>`: the browser chooses among its sources.
    is_picture: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PageState {
    #[default]
    Text,
    /// Behind `<`.
    TagOpen,
    /// Behind `<!`, and behind so many dashes.
    Declaration(u8),
    /// In a comment, behind so many dashes.
    Comment(u8),
    /// In a declaration or an instruction, up to `>`.
    Bogus,
    TagName,
    BeforeAttribute,
    AttributeName,
    BehindAttributeName,
    BeforeValue,
    /// With this quote around it, if any.
    Value(Option<u8>),
    /// In the text of an element, before its end tag.
    RawText,
}

/// A tag that has begun.
#[derive(Debug, Default)]
struct HtmlTag {
    name: Vec<u8>,
    is_end: bool,
    /// The attributes that matter, by their names.
    attributes: Vec<(HtmlAttribute, Vec<u8>)>,
}

/// An attribute that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HtmlAttribute {
    As,
    Disabled,
    Href,
    Loading,
    Nomodule,
    Poster,
    Rel,
    Src,
    Srcset,
    Style,
    Type,
}

impl HtmlAttribute {
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"as" => Self::As,
            b"disabled" => Self::Disabled,
            b"href" => Self::Href,
            b"loading" => Self::Loading,
            b"nomodule" => Self::Nomodule,
            b"poster" => Self::Poster,
            b"rel" => Self::Rel,
            b"src" => Self::Src,
            b"srcset" | b"imagesrcset" => Self::Srcset,
            b"style" => Self::Style,
            b"type" => Self::Type,
            _ => return None,
        })
    }
}

impl HtmlTag {
    fn get(&self, attribute: HtmlAttribute) -> Option<&[u8]> {
        let mut attributes = self.attributes.iter();
        let found = attributes.find(|(other, _)| *other == attribute);
        found.map(|(_, value)| &value[..])
    }

    fn has(&self, attribute: HtmlAttribute) -> bool {
        self.get(attribute).is_some()
    }
}

impl PageScanner {
    /// Takes the next piece.
    pub(super) fn scan(&mut self, mut piece: &[u8], found: &mut Vec<ScanFinding>) {
        while !piece.is_empty() {
            let passed = match self.state {
                PageState::Text => self.pass_text(piece),
                PageState::RawText => self.pass_raw_text(piece, found),
                _ => {
                    self.byte(piece[0], found);
                    1
                }
            };
            piece = &piece[passed..];
        }
    }

    fn pass_text(&mut self, piece: &[u8]) -> usize {
        match piece.iter().position(|byte| *byte == b'<') {
            Some(at) => {
                self.state = PageState::TagOpen;
                at + 1
            }
            None => piece.len(),
        }
    }

    /// Passes over text up to a `<`, or takes one byte of what may be the end tag.
    fn pass_raw_text(&mut self, piece: &[u8], found: &mut Vec<ScanFinding>) -> usize {
        if self.raw_end.is_empty() {
            let length = piece.iter().position(|byte| *byte == b'<');
            let length = length.unwrap_or(piece.len());
            self.style_text(&piece[..length], found);
            if length == piece.len() {
                return length;
            }
            self.raw_end.push(b'<');
            return length + 1;
        }
        let byte = piece[0];
        let end = [b"</", &self.raw[..]].concat();
        if self.raw_end.len() == end.len() {
            let is_end = byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>');
            if is_end {
                self.raw_end.clear();
                self.begin_tag(true);
                self.tag.name = std::mem::take(&mut self.raw);
                self.state = PageState::BeforeAttribute;
                // The byte is the tag's.
                return 0;
            }
        } else if byte.to_ascii_lowercase() == end[self.raw_end.len()] {
            self.raw_end.push(byte.to_ascii_lowercase());
            return 1;
        }
        let text = std::mem::take(&mut self.raw_end);
        self.style_text(&text, found);
        0
    }

    fn style_text(&mut self, text: &[u8], found: &mut Vec<ScanFinding>) {
        if self.raw == b"style" && self.templates == 0 {
            let mut references = Vec::new();
            self.style.scan(text, &mut references);
            found.extend(references.into_iter().map(ScanFinding::Reference));
        }
    }

    fn byte(&mut self, byte: u8, found: &mut Vec<ScanFinding>) {
        match self.state {
            PageState::Text | PageState::RawText => {}
            PageState::TagOpen => match byte {
                b'!' => self.state = PageState::Declaration(0),
                b'?' => self.state = PageState::Bogus,
                b'/' if !self.tag.is_end => self.tag.is_end = true,
                _ if byte.is_ascii_alphabetic() => {
                    let is_end = std::mem::take(&mut self.tag.is_end);
                    self.begin_tag(is_end);
                    self.tag.name.push(byte.to_ascii_lowercase());
                    self.state = PageState::TagName;
                }
                _ => {
                    let is_end = std::mem::take(&mut self.tag.is_end);
                    self.state = match (is_end, byte) {
                        (true, b'>') => PageState::Text,
                        (true, _) => PageState::Bogus,
                        (false, b'<') => PageState::TagOpen,
                        (false, _) => PageState::Text,
                    };
                }
            },
            PageState::Declaration(dashes) => {
                self.state = match (byte, dashes) {
                    (b'-', 0) => PageState::Declaration(1),
                    (b'-', _) => PageState::Comment(0),
                    (b'>', _) => PageState::Text,
                    _ => PageState::Bogus,
                }
            }
            PageState::Comment(dashes) => {
                self.state = match byte {
                    b'-' => PageState::Comment((dashes + 1).min(2)),
                    b'>' if dashes == 2 => PageState::Text,
                    _ => PageState::Comment(0),
                }
            }
            PageState::Bogus => {
                if byte == b'>' {
                    self.state = PageState::Text;
                }
            }
            PageState::TagName => match byte {
                b'>' => self.end_tag(found),
                b'/' => self.state = PageState::BeforeAttribute,
                _ if byte.is_ascii_whitespace() => self.state = PageState::BeforeAttribute,
                _ => keep(&mut self.tag.name, byte.to_ascii_lowercase(), NAME_MAX),
            },
            PageState::BeforeAttribute => match byte {
                b'>' => self.end_tag(found),
                b'/' => {}
                _ if byte.is_ascii_whitespace() => {}
                _ => {
                    self.begin_attribute();
                    self.name.push(byte.to_ascii_lowercase());
                    self.state = PageState::AttributeName;
                }
            },
            PageState::AttributeName => match byte {
                b'=' => self.state = PageState::BeforeValue,
                b'>' | b'/' => self.end_attribute(byte, found),
                _ if byte.is_ascii_whitespace() => self.state = PageState::BehindAttributeName,
                _ => keep(&mut self.name, byte.to_ascii_lowercase(), NAME_MAX),
            },
            PageState::BehindAttributeName => match byte {
                b'=' => self.state = PageState::BeforeValue,
                b'>' | b'/' => self.end_attribute(byte, found),
                _ if byte.is_ascii_whitespace() => {}
                _ => {
                    self.end_attribute(b' ', found);
                    self.begin_attribute();
                    self.name.push(byte.to_ascii_lowercase());
                    self.state = PageState::AttributeName;
                }
            },
            PageState::BeforeValue => match byte {
                b'"' | b'\'' => self.state = PageState::Value(Some(byte)),
                b'>' => self.end_attribute(byte, found),
                _ if byte.is_ascii_whitespace() => {}
                _ => {
                    self.state = PageState::Value(None);
                    self.value.push(byte);
                }
            },
            PageState::Value(quote) => {
                let is_end = match quote {
                    Some(quote) => byte == quote,
                    None => byte == b'>' || byte.is_ascii_whitespace(),
                };
                match is_end {
                    true => self.end_attribute(byte, found),
                    false if self.value.len() < URL_MAX => self.value.push(byte),
                    false => self.is_spoilt = true,
                }
            }
        }
    }

    fn begin_tag(&mut self, is_end: bool) {
        self.tag = HtmlTag {
            is_end,
            ..HtmlTag::default()
        };
    }

    fn begin_attribute(&mut self) {
        self.name.clear();
        self.value.clear();
        self.is_spoilt = false;
    }

    /// An attribute ends, with this byte behind it.
    fn end_attribute(&mut self, byte: u8, found: &mut Vec<ScanFinding>) {
        let value = std::mem::take(&mut self.value);
        if let Some(attribute) = HtmlAttribute::of(&self.name)
            && !self.tag.has(attribute)
        {
            // A URL that was too long is none, but the attribute is there.
            let value = match std::mem::take(&mut self.is_spoilt) {
                true => Vec::new(),
                false => decoded(value),
            };
            self.tag.attributes.push((attribute, value));
        }
        self.state = PageState::BeforeAttribute;
        if byte == b'>' {
            self.end_tag(found);
        }
    }

    fn end_tag(&mut self, found: &mut Vec<ScanFinding>) {
        self.state = PageState::Text;
        let tag = std::mem::take(&mut self.tag);
        match (&tag.name[..], tag.is_end) {
            (b"template", false) => self.templates = self.templates.saturating_add(1),
            (b"template", true) => self.templates = self.templates.saturating_sub(1),
            (b"picture", is_end) => self.is_picture = !is_end,
            (name, false) if RAW_TEXT.contains(&name) => {
                self.raw = name.to_vec();
                self.style = StyleScanner::default();
                self.state = PageState::RawText;
            }
            _ => {}
        }
        if tag.is_end || self.templates > 0 {
            return;
        }
        if tag.name == b"base" {
            let href = tag.get(HtmlAttribute::Href);
            found.extend(href.map(|href| ScanFinding::Base(href.to_vec())));
        }
        let mut add = |kind: SubresourceKind, reference: Option<&[u8]>| {
            let reference = reference.filter(|reference| !reference.is_empty());
            found.extend(reference.map(|reference| {
                ScanFinding::Reference(FoundReference {
                    kind,
                    reference: reference.to_vec(),
                })
            }));
        };
        match &tag.name[..] {
            b"link" => {
                if let Some(kind) = kind_of_link(&tag) {
                    add(kind, tag.get(HtmlAttribute::Href));
                }
            }
            b"script" if is_script(&tag) => {
                add(SubresourceKind::Script, tag.get(HtmlAttribute::Src))
            }
            b"img" if !self.is_picture && is_fetched_at_once(&tag) => {
                add(SubresourceKind::Image, tag.get(HtmlAttribute::Src));
            }
            b"input" if has_word(tag.get(HtmlAttribute::Type), "image") => {
                add(SubresourceKind::Image, tag.get(HtmlAttribute::Src));
            }
            b"video" => add(SubresourceKind::Image, tag.get(HtmlAttribute::Poster)),
            _ => {}
        }
        if let Some(style) = tag.get(HtmlAttribute::Style) {
            let mut references = Vec::new();
            StyleScanner::default().scan(style, &mut references);
            found.extend(references.into_iter().map(ScanFinding::Reference));
        }
    }
}

/// The kind of what a `<link>` has fetched at once.
fn kind_of_link(tag: &HtmlTag) -> Option<SubresourceKind> {
    let rel = tag.get(HtmlAttribute::Rel);
    if tag.has(HtmlAttribute::Disabled) || has_word(rel, "alternate") {
        return None;
    }
    if has_word(rel, "stylesheet") {
        return Some(SubresourceKind::Style);
    }
    if has_word(rel, "modulepreload") {
        return Some(SubresourceKind::Script);
    }
    if has_word(rel, "preload") && !tag.has(HtmlAttribute::Srcset) {
        return tag
            .get(HtmlAttribute::As)
            .and_then(SubresourceKind::of_destination);
    }
    has_word(rel, "icon").then_some(SubresourceKind::Image)
}

/// True if the script is one that browsers with modules run.
fn is_script(tag: &HtmlTag) -> bool {
    let kind = tag.get(HtmlAttribute::Type).unwrap_or_default();
    let is_known = kind.is_empty()
        || ["module", "text/javascript", "application/javascript"]
            .iter()
            .any(|known| kind.eq_ignore_ascii_case(known.as_bytes()));
    is_known && !tag.has(HtmlAttribute::Nomodule)
}

fn is_fetched_at_once(tag: &HtmlTag) -> bool {
    !tag.has(HtmlAttribute::Srcset) && !has_word(tag.get(HtmlAttribute::Loading), "lazy")
}

/// True if a list of words has this one, in any case.
fn has_word(words: Option<&[u8]>, word: &str) -> bool {
    let words = words.unwrap_or_default();
    let mut words = words.split(u8::is_ascii_whitespace);
    words.any(|other| other.eq_ignore_ascii_case(word.as_bytes()))
}

fn keep(bytes: &mut Vec<u8>, byte: u8, max: usize) {
    // One more than fits makes the name another one.
    if bytes.len() <= max {
        bytes.push(byte);
    }
}

/// An attribute's value with `&amp;` decoded; empty where it has another character reference, which no URL needs.
fn decoded(value: Vec<u8>) -> Vec<u8> {
    if !value.contains(&b'&') {
        return value;
    }
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = &value[..];
    while let Some(at) = rest.iter().position(|byte| *byte == b'&') {
        decoded.extend_from_slice(&rest[..=at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix(b"amp;") {
            rest = behind;
            continue;
        }
        let name = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'#');
        if rest.get(name.count()) == Some(&b';') {
            return Vec::new();
        }
    }
    decoded.extend_from_slice(rest);
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use SubresourceKind::{Image, Script, Style};

    fn scanned(page: &str) -> Vec<ScanFinding> {
        let mut found = Vec::new();
        PageScanner::default().scan(page.as_bytes(), &mut found);
        let mut in_pieces = Vec::new();
        let mut scanner = PageScanner::default();
        for byte in page.as_bytes() {
            scanner.scan(&[*byte], &mut in_pieces);
        }
        assert_eq!(found, in_pieces, "{page}");
        found
    }

    fn reference(kind: SubresourceKind, reference: &str) -> ScanFinding {
        let reference = reference.as_bytes().to_vec();
        ScanFinding::Reference(FoundReference { kind, reference })
    }

    #[test]
    fn subresources_are_found_in_their_order() {
        let page = "<!DOCTYPE html><html><head><title><img src=0></title>\
            <LINK REL=stylesheet HREF=a.css><link rel='preload' as='script' href='b.js'/>\
            <link rel=\"shortcut icon\" href=\"c.ico\"><script src=d.js async></script>\
            <style>@import 'e.css'; p { background: url(f.png) }</style></head>\
            <body><p style=\"background: url('g.png')\"><img alt='>' src = 'h.png?a=1&amp;b=2' >\
            <input type=image src=i.png><video poster=j.jpg></video></body></html>";
        let expected = [
            reference(Style, "a.css"),
            reference(Script, "b.js"),
            reference(Image, "c.ico"),
            reference(Script, "d.js"),
            reference(Style, "e.css"),
            reference(Image, "f.png"),
            reference(Image, "g.png"),
            reference(Image, "h.png?a=1&b=2"),
            reference(Image, "i.png"),
            reference(Image, "j.jpg"),
        ];
        assert_eq!(scanned(page), expected);
    }

    #[test]
    fn what_browsers_may_not_fetch_is_not_found() {
        for page in [
            "<!-- <img src=a.png> -->",
            "<!--><!-- --><![CDATA[<]]>",
            "<a href=a.png>",
            "<script>document.write('<img src=a.png>')</script>",
            "<textarea><img src=a.png></textarea>",
            "<noscript><img src=a.png></noscript>",
            "<template><img src=a.png></template>",
            "<picture><source srcset=a.png><img src=a.png></picture>",
            "<img src=a.png srcset='b.png 2x'>",
            "<img src=a.png loading=lazy>",
            "<script nomodule src=a.js></script>",
            "<script type=text/template src=a.js></script>",
            "<link rel='alternate stylesheet' href=a.css>",
            "<link rel=stylesheet disabled href=a.css>",
            "<link rel=prefetch href=a.css>",
            "<link rel=preload as=fetch href=a.json>",
            "<iframe src=a.html></iframe><object data=a.png>",
            "<img src=''><img src><img>",
            "<img src='a.png?x=&lt;'>",
            "<imgx src=a.png></img src=a.png>",
            "< img src=a.png>",
            "<img src=a.png",
        ] {
            assert_eq!(scanned(page), [], "{page}");
        }
        let long = format!("<img src={}>", "a".repeat(URL_MAX + 1));
        assert_eq!(scanned(&long), []);
    }

    #[test]
    fn scanning_goes_on_behind_what_is_passed_over() {
        for before in [
            "<!-- -- -->",
            "<!-->-->",
            "<script>a < b </scrip </SCRIPT >",
            "<style>p { a: '</styl' }</style>",
            "<picture></picture>",
            "<template><template></template></template>",
            "<?xml version='1.0'?>",
            "a < b << c </> ",
            "<p a=1 a b = c d='e'f/>",
        ] {
            let page = format!("{before}<img src=a.png>");
            assert_eq!(scanned(&page), [reference(Image, "a.png")], "{page}");
        }
    }

    #[test]
    fn first_value_of_attribute_counts() {
        let page = "<base href=/a/><img src=a.png src=b.png>";
        let expected = [
            ScanFinding::Base(b"/a/".to_vec()),
            reference(Image, "a.png"),
        ];
        assert_eq!(scanned(page), expected);
    }
}
