//! The kinds of subresources, and the URLs that may be asked for ahead of the client.
//!
//! A prefetch is a request that no person made, so only URLs are asked for whose path looks like that of a file which
//! changes nothing: a known ending, no query, no word of an action. Others are asked for if a client of the site has
//! asked for the same URL before.

use super::URL_MAX;

/// The kind of a subresource, in the order in which a page needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SubresourceKind {
    /// A style sheet.
    Style,
    /// A script.
    Script,
    /// A font.
    Font,
    /// An image.
    Image,
}

impl SubresourceKind {
    /// The byte that stands for it in a frame.
    pub(super) const fn to_byte(self) -> u8 {
        match self {
            Self::Style => 0,
            Self::Script => 1,
            Self::Font => 2,
            Self::Image => 3,
        }
    }

    /// The kind that this byte stands for.
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Style),
            1 => Some(Self::Script),
            2 => Some(Self::Font),
            3 => Some(Self::Image),
            _ => None,
        }
    }

    /// The kind that HTML names so in `as` (HTML §4.6.8, Link types: preload).
    pub(super) fn of_destination(destination: &[u8]) -> Option<Self> {
        let is = |name: &str| destination.eq_ignore_ascii_case(name.as_bytes());
        match () {
            () if is("style") => Some(Self::Style),
            () if is("script") => Some(Self::Script),
            () if is("font") => Some(Self::Font),
            () if is("image") => Some(Self::Image),
            () => None,
        }
    }

    /// The kind by the ending of a URL's path, where it is a known one.
    pub(super) fn of_ending(url: &[u8]) -> Option<Self> {
        let path = &url[..end_of_path(url)];
        let file = path.rsplit(|byte| *byte == b'/').next()?;
        let dot = file.iter().rposition(|byte| *byte == b'.')?;
        let ending = file[dot + 1..].to_ascii_lowercase();
        match &ending[..] {
            b"css" => Some(Self::Style),
            b"js" | b"mjs" => Some(Self::Script),
            b"woff2" | b"woff" | b"ttf" | b"otf" => Some(Self::Font),
            b"png" | b"jpg" | b"jpeg" | b"gif" | b"webp" | b"avif" | b"svg" | b"ico" | b"bmp" => {
                Some(Self::Image)
            }
            _ => None,
        }
    }
}

/// Where the path of a URL ends: at its query, its fragment, or its end.
fn end_of_path(url: &[u8]) -> usize {
    let end = url.iter().position(|byte| matches!(byte, b'?' | b'#'));
    end.unwrap_or(url.len())
}

/// Parts of words that name an action, wherever they stand in a path.
const ACTIONS: [&str; 13] = [
    "logout",
    "logoff",
    "signout",
    "signoff",
    "delete",
    "remove",
    "destroy",
    "unsubscribe",
    "unregister",
    "purge",
    "revoke",
    "shutdown",
    "reboot",
];
/// Words that name an action or count visits, where they stand by themselves.
const ACTION_WORDS: [&str; 29] = [
    "login",
    "signin",
    "subscribe",
    "cancel",
    "confirm",
    "approve",
    "reject",
    "erase",
    "reset",
    "restart",
    "execute",
    "submit",
    "checkout",
    "purchase",
    "buy",
    "pay",
    "vote",
    "beacon",
    "track",
    "tracker",
    "tracking",
    "pixel",
    "collect",
    "analytics",
    "counter",
    "count",
    "hit",
    "ping",
    "cgi",
];

/// True if this target may be asked for ahead of its client. `was_asked` says whether a client has asked for it
/// before.
pub(super) fn is_prefetchable(target: &[u8], was_asked: impl FnOnce() -> bool) -> bool {
    if target.len() > URL_MAX || names_action(target) {
        return false;
    }
    let has_query = target.contains(&b'?');
    (!has_query && SubresourceKind::of_ending(target).is_some()) || was_asked()
}

/// True if a path or query has a word of an action in it.
fn names_action(target: &[u8]) -> bool {
    let Some(decoded) = percent_decoded(target) else {
        return true;
    };
    let text = decoded.to_ascii_lowercase();
    let is_separator = |byte: &u8| matches!(byte, b'-' | b'_' | b'.' | b' ' | b'+');
    let joined: Vec<u8> = text
        .iter()
        .copied()
        .filter(|byte| !is_separator(byte))
        .collect();
    let contains = |action: &&str| {
        let action = action.as_bytes();
        joined.windows(action.len()).any(|part| part == action)
    };
    let mut words = text.split(|byte| !byte.is_ascii_alphanumeric());
    ACTIONS.iter().any(contains)
        || words.any(|word| ACTION_WORDS.iter().any(|action| action.as_bytes() == word))
}

/// A target without its percent-encoding; `None` where that is malformed.
fn percent_decoded(target: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(target.len());
    let mut rest = target;
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            decoded.push(first);
            continue;
        }
        let (digits, behind) = behind.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        decoded.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        rest = behind;
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_first_prefetched(target: &str) -> bool {
        is_prefetchable(target.as_bytes(), || false)
    }

    #[test]
    fn files_are_prefetched_and_others_are_not() {
        for target in [
            "/a.css",
            "/js/app.min.js",
            "/x/y.WOFF2",
            "/logo.png",
            "/trackpad/soundtrack.svg",
        ] {
            assert!(is_first_prefetched(target), "{target}");
        }
        for target in [
            "/",
            "/image/12",
            "/a.css?v=1",
            "/a.png?",
            "/page.html",
            "/a.php",
            "/%zz.png",
        ] {
            assert!(!is_first_prefetched(target), "{target}");
        }
    }

    #[test]
    fn url_that_was_asked_for_is_prefetched() {
        for target in ["/image/12", "/a.css?v=1"] {
            assert!(is_prefetchable(target.as_bytes(), || true), "{target}");
        }
        let long = format!("/{}.png", "a".repeat(URL_MAX));
        assert!(!is_prefetchable(long.as_bytes(), || true));
    }

    #[test]
    fn actions_are_never_prefetched() {
        for target in [
            "/logout",
            "/logout.png",
            "/log-out.gif",
            "/user/doSignOut.js",
            "/items/7/delete.png",
            "/deleteItem.png",
            "/d%65lete.png",
            "/un_subscribe.gif",
            "/track/1.gif",
            "/pixel.gif",
            "/cgi-bin/x.png",
            "/a.png?action=remove",
        ] {
            assert!(!is_prefetchable(target.as_bytes(), || true), "{target}");
        }
    }
}
