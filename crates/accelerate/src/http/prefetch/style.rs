//! URLs in a style sheet: `url(...)` and `@import` (CSS Syntax Level 3 §4, Tokenization).
//!
//! ```text
//!   Between ──"url("──► Url ──")"──► found      Between ──quote──► Text ──quote──► found, behind @import
//!      └────"/*"──────► Comment ──"*/"──► Between
//! ```
//! The sheet comes in pieces. What is kept of it is one word or one URL. A URL with an escape, or one that is too long,
//! is left out. Of the fonts in one declaration only the first is found: a browser takes the first that it can read.

use super::URL_MAX;
use super::document::FoundReference;
use super::subresource::SubresourceKind;

/// The longest word that is kept; `@namespace` has ten letters.
const WORD_MAX: usize = 16;

/// Finds URLs in a style sheet.
#[derive(Debug, Default)]
pub(super) struct StyleScanner {
    state: StyleState,
    /// The word that has begun, in lower case.
    word: Vec<u8>,
    /// The URL that has begun.
    url: Vec<u8>,
    /// The URL is left out.
    is_spoilt: bool,
    rule: StyleRule,
    /// The declaration has named a font.
    has_font: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StyleState {
    #[default]
    Between,
    /// Behind a slash.
    Slash,
    /// In a comment; `true` behind an asterisk.
    Comment(bool),
    /// Behind a backslash.
    Escape,
    /// In a string that this quote ends; `true` behind a backslash.
    Text(u8, bool),
    /// In `url(`, before the URL.
    BeforeUrl,
    /// In `url(`, in a string that this quote ends; `true` behind a backslash.
    QuotedUrl(u8, bool),
    /// In `url(`, without quotes.
    BareUrl,
    /// Before the parenthesis behind a URL.
    BehindUrl,
}

/// The rule that the next URL belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StyleRule {
    #[default]
    Other,
    Import,
    Namespace,
}

impl StyleScanner {
    /// Takes the next piece.
    pub(super) fn scan(&mut self, piece: &[u8], found: &mut Vec<FoundReference>) {
        for byte in piece {
            self.byte(*byte, found);
        }
    }

    fn byte(&mut self, byte: u8, found: &mut Vec<FoundReference>) {
        match self.state {
            StyleState::Between => self.between(byte),
            StyleState::Slash => {
                self.state = StyleState::Between;
                match byte {
                    b'*' => self.state = StyleState::Comment(false),
                    _ => self.between(byte),
                }
            }
            StyleState::Comment(true) if byte == b'/' => self.state = StyleState::Between,
            StyleState::Comment(_) => self.state = StyleState::Comment(byte == b'*'),
            StyleState::Escape => self.state = StyleState::Between,
            StyleState::Text(quote, is_escaped) => self.text(byte, quote, is_escaped, found),
            StyleState::BeforeUrl => match byte {
                b'"' | b'\'' => self.state = StyleState::QuotedUrl(byte, false),
                _ if byte.is_ascii_whitespace() => {}
                b')' => self.state = StyleState::Between,
                _ => {
                    self.state = StyleState::BareUrl;
                    self.keep(byte);
                }
            },
            StyleState::QuotedUrl(_, true) => {
                self.is_spoilt = true;
                self.state = match self.state {
                    StyleState::QuotedUrl(quote, _) => StyleState::QuotedUrl(quote, false),
                    other => other,
                };
            }
            StyleState::QuotedUrl(quote, false) => match byte {
                _ if byte == quote => self.state = StyleState::BehindUrl,
                b'\\' => self.state = StyleState::QuotedUrl(quote, true),
                b'\n' => self.state = StyleState::Between,
                _ => self.keep(byte),
            },
            StyleState::BareUrl => match byte {
                b')' => self.end_url(found),
                b'\\' | b'"' | b'\'' | b'(' => self.is_spoilt = true,
                _ if byte.is_ascii_whitespace() => self.state = StyleState::BehindUrl,
                _ => self.keep(byte),
            },
            StyleState::BehindUrl => match byte {
                b')' => self.end_url(found),
                _ if byte.is_ascii_whitespace() => {}
                _ => self.is_spoilt = true,
            },
        }
    }

    fn between(&mut self, byte: u8) {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'@') {
            if self.word.len() < WORD_MAX {
                self.word.push(byte.to_ascii_lowercase());
            }
            return;
        }
        let word = std::mem::take(&mut self.word);
        match &word[..] {
            b"@import" => self.rule = StyleRule::Import,
            b"@namespace" => self.rule = StyleRule::Namespace,
            _ => {}
        }
        match byte {
            b'(' if word == b"url" => self.begin(StyleState::BeforeUrl),
            b'"' | b'\'' => self.begin(StyleState::Text(byte, false)),
            b'/' => self.state = StyleState::Slash,
            b'\\' => self.state = StyleState::Escape,
            b';' | b'{' | b'}' => {
                self.rule = StyleRule::Other;
                self.has_font = false;
            }
            _ => {}
        }
    }

    fn begin(&mut self, state: StyleState) {
        self.state = state;
        self.url.clear();
        self.is_spoilt = false;
    }

    fn text(&mut self, byte: u8, quote: u8, is_escaped: bool, found: &mut Vec<FoundReference>) {
        self.state = match byte {
            _ if is_escaped => StyleState::Text(quote, false),
            b'\\' => {
                self.is_spoilt = true;
                StyleState::Text(quote, true)
            }
            // An unescaped line end ends a string that is malformed.
            b'\n' => StyleState::Between,
            _ if byte == quote => {
                if self.rule == StyleRule::Import {
                    self.end_url(found);
                }
                StyleState::Between
            }
            _ => {
                self.keep(byte);
                StyleState::Text(quote, false)
            }
        };
    }

    fn keep(&mut self, byte: u8) {
        match self.url.len() < URL_MAX {
            true => self.url.push(byte),
            false => self.is_spoilt = true,
        }
    }

    fn end_url(&mut self, found: &mut Vec<FoundReference>) {
        self.state = StyleState::Between;
        let reference = std::mem::take(&mut self.url);
        let kind = match self.rule {
            StyleRule::Import => SubresourceKind::Style,
            StyleRule::Namespace => return,
            StyleRule::Other => match SubresourceKind::of_ending(&reference) {
                Some(SubresourceKind::Font) => SubresourceKind::Font,
                _ => SubresourceKind::Image,
            },
        };
        // What follows in an @import are its conditions.
        self.rule = StyleRule::Other;
        let is_further_font = kind == SubresourceKind::Font && self.has_font;
        if self.is_spoilt || reference.is_empty() || is_further_font {
            return;
        }
        self.has_font |= kind == SubresourceKind::Font;
        found.push(FoundReference { kind, reference });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SubresourceKind::{Font, Image, Style};

    fn scanned(sheet: &str) -> Vec<(SubresourceKind, String)> {
        let mut found = Vec::new();
        StyleScanner::default().scan(sheet.as_bytes(), &mut found);
        let mut in_pieces = Vec::new();
        let mut scanner = StyleScanner::default();
        for byte in sheet.as_bytes() {
            scanner.scan(&[*byte], &mut in_pieces);
        }
        assert_eq!(found, in_pieces);
        let text = |found: FoundReference| String::from_utf8(found.reference).unwrap();
        let named = |found: FoundReference| (found.kind, text(found));
        found.into_iter().map(named).collect()
    }

    #[test]
    fn urls_and_imports_are_found() {
        let sheet = "@charset \"utf-8\"; @import 'a.css' screen; @IMPORT url( b.css ); @import \"c.css\";\
            a { background: URL(d.png), url(\"e.png\") } b { cursor: url( 'f.png' ), auto; }";
        let expected = [
            (Style, "a.css"),
            (Style, "b.css"),
            (Style, "c.css"),
            (Image, "d.png"),
            (Image, "e.png"),
            (Image, "f.png"),
        ];
        let expected = expected.map(|(kind, url)| (kind, url.to_owned()));
        assert_eq!(scanned(sheet), expected);
    }

    #[test]
    fn first_font_of_declaration_is_found() {
        let sheet = "@font-face { src: url(a.eot); src: url(a.eot?#x) format(\"x\"), url(a.woff2) format('woff2'),\
            url(a.woff) } @font-face { src: url(b.ttf) }";
        let fonts: Vec<_> = scanned(sheet)
            .into_iter()
            .filter(|(kind, _)| *kind == Font)
            .collect();
        assert_eq!(fonts, [(Font, "a.woff2".into()), (Font, "b.ttf".into())]);
    }

    #[test]
    fn what_is_no_reference_is_not_found() {
        let long = format!("a {{ b: url({}) }}", "x".repeat(URL_MAX + 1));
        for sheet in [
            "/* url(a.png) */",
            "a::after { content: \"url(a.png)\" }",
            "@namespace url(http://www.w3.org/1999/xhtml);",
            "a { b: curl(a.png) }",
            "a { b: url(a\\.png) } c { d: url('a\\'b.png') }",
            "a { b: url() } c { d: url('') }",
            "a { b: url(a b.png) }",
            "a { b: url(a.png",
            &long,
        ] {
            assert_eq!(scanned(sheet), [], "{sheet}");
        }
        // A comment or a malformed string ends where it ends.
        assert_eq!(scanned("/* ** / **/ a { b: 'x\n; c: url(d.png) }").len(), 1);
    }
}
