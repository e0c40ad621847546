//! Values of arguments of `trunkline measure`: a far end, a share in percent, a class of service,
//! directions. A value that can mean two things is refused, and the error names both.

use ::measure::wire::TestDirection;
use anyhow::{Result, bail, ensure};
use clap::ValueEnum;

/// A share in percent: `98` or `98%`. A plain number of 1 or less is refused, because it may be
/// meant as a fraction of one.
///
/// # Errors
/// Fails when the text is no share, or is ambiguous.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').map(str::trim_end);
    let is_marked = number.is_some();
    let value: f64 = number
        .unwrap_or(text)
        .parse()
        .map_err(|_| "write a number of percent, such as 98 or 98%".to_owned())?;
    if !value.is_finite() || value < 0.0 {
        return Err("a number of percent must not be negative".to_owned());
    }
    if value > 0.0 && value <= 1.0 && !is_marked {
        let times = (value * 1e4).round() / 100.0;
        return Err(format!(
            "{text} can mean {text}% or {times}%; write the percent sign"
        ));
    }
    Ok(value)
}

/// A share of a whole in percent.
///
/// # Errors
/// Fails as [`percent`] does, and for values above 100.
pub(crate) fn percent_of_whole(text: &str) -> Result<f64, String> {
    match percent(text)? {
        value if value <= 100.0 => Ok(value),
        _ => Err("a share cannot be above 100%".to_owned()),
    }
}

/// A DSCP by its number or its name (RFC 2474 §4.2.2, RFC 2597 §6, RFC 3246 §2.7, RFC 5865 §2, RFC
/// 8622 §2).
///
/// # Errors
/// Fails when there is no such code point.
pub(crate) fn dscp(text: &str) -> Result<u8, String> {
    /// Greatest value of six bits.
    const MOST: u8 = 63;
    let name = text.to_ascii_uppercase();
    let digits = |head: &str| {
        let digits = name.strip_prefix(head)?.bytes();
        digits
            .map(|byte| byte.is_ascii_digit().then(|| byte - b'0'))
            .collect::<Option<Vec<u8>>>()
    };
    let named = match name.as_str() {
        "DF" | "BE" => Some(0),
        "LE" => Some(1),
        "VA" | "VOICE-ADMIT" => Some(44),
        "EF" => Some(46),
        _ => None,
    };
    let class = || match digits("CS")?[..] {
        [class] if class <= 7 => Some(8 * class),
        _ => None,
    };
    let assured = || match digits("AF")?[..] {
        [class @ 1..=4, drop @ 1..=3] => Some(8 * class + 2 * drop),
        _ => None,
    };
    let number = || text.parse().ok().filter(|number| *number <= MOST);
    named
        .or_else(class)
        .or_else(assured)
        .or_else(number)
        .ok_or_else(|| {
            format!(
                "a DSCP must be a number from 0 to {MOST}, or a name such as EF, AF41, CS5 or LE"
            )
        })
}

/// The host and the port of a far end: `name`, `192.0.2.1`, `2001:db8::1`, `[2001:db8::1]`, and any
/// of them but the third with `:port`. A port in `host` must not contradict the option `port`; the
/// default is `usual`.
///
/// # Errors
/// Fails when the text is no host, or two different ports are given.
pub(crate) fn far_end(host: &str, port: Option<u16>, usual: u16) -> Result<(String, u16)> {
    let number = |text: &str| match text.parse::<u16>() {
        Ok(number) if number > 0 => Ok(number),
        _ => bail!("`{text}` in {host} is not a port from 1 to 65535"),
    };
    let (name, own) = match (host.strip_prefix('['), host.split_once(':')) {
        (Some(rest), _) => match rest.split_once(']') {
            Some((name, "")) => (name, None),
            Some((name, rest)) if rest.starts_with(':') => (name, Some(number(&rest[1..])?)),
            Some(_) | None => {
                bail!("{host}: write an address in brackets as [ADDRESS] or [ADDRESS]:PORT")
            }
        },
        // More than one colon is an IPv6 address.
        (None, Some((name, rest))) if !rest.contains(':') => (name, Some(number(rest)?)),
        (None, _) => (host, None),
    };
    ensure!(!name.is_empty(), "`{host}` does not name a host");
    if let (Some(own), Some(port)) = (own, port) {
        ensure!(
            own == port,
            "{host} contains port {own}, but the option names port {port}; write only one of them"
        );
    }
    Ok((name.to_owned(), own.or(port).unwrap_or(usual)))
}

/// Directions that are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectionOption {
    /// Tests the direction up first, and then down.
    Both,
    /// Tests the direction from this host to the server.
    Up,
    /// Tests the direction from the server to this host.
    Down,
}

impl DirectionOption {
    /// The directions, one at a time.
    pub(crate) fn each(self) -> Vec<TestDirection> {
        match self {
            DirectionOption::Both => TestDirection::BOTH.to_vec(),
            DirectionOption::Up => vec![TestDirection::Up],
            DirectionOption::Down => vec![TestDirection::Down],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_share_is_refused() {
        for (text, value) in [
            ("98", 98.0),
            ("98%", 98.0),
            ("0.5%", 0.5),
            ("0", 0.0),
            ("1.5", 1.5),
        ] {
            assert_eq!(percent(text), Ok(value), "{text}");
        }
        assert!(percent("0.98").unwrap_err().contains("0.98% or 98%"));
        for text in ["1", "-3%", "nan%", "inf", "%", "much"] {
            assert!(percent(text).is_err(), "{text}");
        }
        assert_eq!(percent("250"), Ok(250.0));
        assert!(percent_of_whole("101").is_err() && percent_of_whole("100").is_ok());
    }

    /// The names of the IANA registry (Differentiated Services Field Codepoints).
    #[test]
    fn class_is_known_by_number_and_name() {
        for (text, value) in [
            ("0", 0),
            ("63", 63),
            ("EF", 46),
            ("af11", 10),
            ("AF41", 34),
            ("AF43", 38),
            ("CS0", 0),
            ("CS7", 56),
            ("LE", 1),
        ] {
            assert_eq!(dscp(text), Ok(value), "{text}");
        }
        for text in ["64", "99", "AF14", "AF51", "AF4", "CS8", "-1", "", "gold"] {
            let why = dscp(text).unwrap_err();
            assert!(why.contains("0 to 63"), "{text}: {why}");
        }
    }

    #[test]
    fn far_end_is_accepted_as_printed() {
        const PORT: u16 = 6_349;
        let at = |host: &str, port| far_end(host, port, PORT).map_err(|error| error.to_string());
        let is = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(at("far.example", None), is("far.example", PORT));
        assert_eq!(at("far.example", Some(7)), is("far.example", 7));
        assert_eq!(at("10.77.2.2:6350", None), is("10.77.2.2", 6_350));
        assert_eq!(at("fd77:2::2", None), is("fd77:2::2", PORT));
        assert_eq!(at("[fd77:2::2]", Some(8)), is("fd77:2::2", 8));
        assert_eq!(at("[fd77:2::2]:9", None), is("fd77:2::2", 9));
        assert_eq!(at("far.example:9", Some(9)), is("far.example", 9));
        assert!(
            at("far.example:9", Some(10))
                .unwrap_err()
                .contains("write only one of them")
        );
        for wrong in [
            "",
            ":9",
            "[]:9",
            "[::1",
            "[::1]9",
            "far:",
            "far:0",
            "far:x",
            "far:70000",
        ] {
            assert!(at(wrong, None).is_err(), "{wrong}");
        }
    }
}
