//! What people write behind `trunkline measure`: a share in percent. What may mean two things is refused,
//! with both.

/// A share in percent: `98` or `98%`. A plain number of 1 or less may be meant as a share of one, and is
/// refused.
///
/// # Errors
/// When it is no share, or may be read in two ways.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').map(str::trim_end);
    let is_marked = number.is_some();
    let value: f64 = number
        .unwrap_or(text)
        .parse()
        .map_err(|_| "a number of percent is wanted, as in 98 or 98%".to_owned())?;
    if !value.is_finite() || value < 0.0 {
        return Err("a number of percent is 0 or more".to_owned());
    }
    if value > 0.0 && value <= 1.0 && !is_marked {
        let times = (value * 1e4).round() / 100.0;
        return Err(format!(
            "{text} may be {text}% or {times}%: write which, with the percent sign"
        ));
    }
    Ok(value)
}

/// The same, of a whole.
///
/// # Errors
/// As [`percent`], and above 100.
pub(crate) fn percent_of_whole(text: &str) -> Result<f64, String> {
    match percent(text)? {
        value if value <= 100.0 => Ok(value),
        _ => Err("no share of the whole is above 100%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_may_be_a_share_of_one_is_refused() {
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
}
