//! References of a document, resolved to targets on the document's own server (RFC 3986 §5, Reference Resolution).
//!
//! Only a reference that browsers read in one way gives a target: what they would encode or repair first is left to the
//! client.

/// The URL of a document: its origin, and its target on that server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentUrl {
    /// `scheme://authority`, in lower case and without the default port.
    origin: Vec<u8>,
    /// Path and query.
    target: Vec<u8>,
}

/// Base URL of a document's references.
#[derive(Clone, Debug)]
pub(super) struct ReferenceBase {
    document: DocumentUrl,
    /// The URL that `<base>` names; `None` if it is on another server.
    base: Option<DocumentUrl>,
    /// The document has named a base. Later ones count for nothing (HTML §4.2.3, The base element).
    is_named: bool,
}

impl DocumentUrl {
    /// Takes a URL apart that is absolute and in the form of a cache key.
    pub(super) fn parse(url: &[u8]) -> Option<Self> {
        let authority = find(url, b"://")? + 3;
        let path = authority + url[authority..].iter().position(|byte| *byte == b'/')?;
        Some(Self {
            origin: url[..path].to_vec(),
            target: url[path..].to_vec(),
        })
    }

    /// `scheme://authority`.
    pub(super) fn origin(&self) -> &[u8] {
        &self.origin
    }

    /// All of it.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        [&self.origin[..], &self.target].concat()
    }

    /// Another target on the same server.
    pub(super) fn with_target(&self, target: Vec<u8>) -> Self {
        let origin = self.origin.clone();
        Self { origin, target }
    }

    fn scheme(&self) -> &[u8] {
        let end = find(&self.origin, b"://").unwrap_or(0);
        &self.origin[..end]
    }

    fn path(&self) -> &[u8] {
        let end = self.target.iter().position(|byte| *byte == b'?');
        &self.target[..end.unwrap_or(self.target.len())]
    }
}

impl ReferenceBase {
    /// The base of a document that names none.
    pub(super) fn new(document: DocumentUrl) -> Self {
        Self {
            base: Some(document.clone()),
            document,
            is_named: false,
        }
    }

    /// Takes the document's `<base href>`.
    pub(super) fn set(&mut self, reference: &[u8]) {
        if !self.is_named {
            self.is_named = true;
            let target = self.resolve(reference);
            self.base = target.map(|target| self.document.with_target(target));
        }
    }

    /// The target that a reference names, if it is on the document's own server.
    pub(super) fn resolve(&self, reference: &[u8]) -> Option<Vec<u8>> {
        let reference = reference.trim_ascii();
        let end = reference.iter().position(|byte| *byte == b'#');
        let reference = &reference[..end.unwrap_or(reference.len())];
        let is_plain = |byte: &u8| matches!(byte, 0x21..=0x7e) && !b"\"<>\\^`{|}".contains(byte);
        if reference.is_empty() || !reference.iter().all(is_plain) {
            return None;
        }
        if let Some(scheme) = scheme_end(reference) {
            let is_same = reference[..scheme].eq_ignore_ascii_case(self.document.scheme());
            let rest = &reference[scheme + 1..];
            return is_same.then(|| self.of_network_path(rest)).flatten();
        }
        if reference.starts_with(b"//") {
            return self.of_network_path(reference);
        }
        let base = self.base.as_ref()?;
        let target = match reference[0] {
            b'/' => reference.to_vec(),
            b'?' => [base.path(), reference].concat(),
            _ => {
                let directory = base.path().iter().rposition(|byte| *byte == b'/')?;
                [&base.path()[..=directory], reference].concat()
            }
        };
        without_dots(&target)
    }

    /// The target of `//authority/path`, if the authority is the document's.
    fn of_network_path(&self, reference: &[u8]) -> Option<Vec<u8>> {
        let rest = reference.strip_prefix(b"//")?;
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
        let (authority, target) = rest.split_at(end.unwrap_or(rest.len()));
        let authority = authority.to_ascii_lowercase();
        let port: &[u8] = match self.document.scheme() {
            b"https" => b":443",
            _ => b":80",
        };
        let bare = authority.strip_suffix(port).unwrap_or(&authority);
        let bare = bare.strip_suffix(b":").unwrap_or(bare);
        let own = &self.document.origin[self.document.scheme().len() + 3..];
        if bare != own {
            return None;
        }
        match target.first() {
            Some(b'/') => without_dots(target),
            _ => without_dots(&[b"/", target].concat()),
        }
    }
}

/// Where the colon behind a scheme is, if the reference begins with one.
fn scheme_end(reference: &[u8]) -> Option<usize> {
    let is_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let end = reference.iter().position(|byte| !is_scheme(byte))?;
    (reference[end] == b':' && reference[0].is_ascii_alphabetic()).then_some(end)
}

/// A target without the segments `.` and `..` (RFC 3986 §5.2.4, Remove Dot Segments).
fn without_dots(target: &[u8]) -> Option<Vec<u8>> {
    let end = target.iter().position(|byte| *byte == b'?');
    let (path, query) = target.split_at(end.unwrap_or(target.len()));
    // Browsers take an encoded dot for a dot.
    if find(&path.to_ascii_lowercase(), b"%2e").is_some() {
        return None;
    }
    let segments: Vec<&[u8]> = path[1..].split(|byte| *byte == b'/').collect();
    let mut kept: Vec<&[u8]> = Vec::new();
    for (place, segment) in segments.iter().enumerate() {
        let is_last = place + 1 == segments.len();
        match *segment {
            b"." => {}
            b".." => drop(kept.pop()),
            segment => {
                kept.push(segment);
                continue;
            }
        }
        if is_last {
            kept.push(b"");
        }
    }
    let path = kept.join(&b'/');
    Some([&b"/"[..], &path, query].concat())
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> ReferenceBase {
        let url = DocumentUrl::parse(b"http://a.example/d/page?q=1").unwrap();
        ReferenceBase::new(url)
    }

    fn resolved(base: &ReferenceBase, reference: &str) -> Option<String> {
        let target = base.resolve(reference.as_bytes())?;
        Some(String::from_utf8(target).unwrap())
    }

    #[test]
    fn references_on_the_same_server_are_resolved() {
        for (reference, target) in [
            ("x.css", "/d/x.css"),
            (" ./x.css#a ", "/d/x.css"),
            ("../x.css", "/x.css"),
            ("../../../e/./f/../x.css", "/e/x.css"),
            ("..", "/"),
            ("e/.", "/d/e/"),
            ("/x.css?v=a/../b", "/x.css?v=a/../b"),
            ("?v", "/d/page?v"),
            ("//A.example/x.css", "/x.css"),
            ("//a.example:80?x", "/?x"),
            ("HTTP://a.example:/x.css", "/x.css"),
            ("http://a.example", "/"),
        ] {
            assert_eq!(
                resolved(&base(), reference).as_deref(),
                Some(target),
                "{reference}"
            );
        }
    }

    #[test]
    fn other_references_are_left_alone() {
        for reference in [
            "",
            "#a",
            "https://a.example/x.css",
            "http://b.example/x.css",
            "http://a.example:8080/x.css",
            "http://a.example@b.example/x.css",
            "http://u@a.example/x.css",
            "//b.example/x.css",
            "data:text/css,a",
            "javascript:x",
            "http:x.css",
            "a b.css",
            "\\x.css",
            "%2e%2E/x.css",
            "ä.css",
        ] {
            assert_eq!(resolved(&base(), reference), None, "{reference}");
        }
    }

    #[test]
    fn first_base_counts() {
        let mut based = base();
        based.set(b"/e/");
        based.set(b"/f/");
        assert_eq!(resolved(&based, "x.css").as_deref(), Some("/e/x.css"));
        let mut foreign = base();
        foreign.set(b"http://b.example/");
        assert_eq!(resolved(&foreign, "x.css"), None);
        assert_eq!(resolved(&foreign, "/x.css"), None);
        let absolute = resolved(&foreign, "http://a.example/x.css");
        assert_eq!(absolute.as_deref(), Some("/x.css"));
    }
}
