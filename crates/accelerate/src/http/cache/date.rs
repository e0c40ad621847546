//! Dates of HTTP (RFC 9110 §5.6.7, Date/Time Formats), as seconds since 1970.
//!
//! All three formats are read, names in any case. Nothing else is: a date that is not exactly in a
//! format is none, and an Expires with it is in the past (RFC 9111 §5.3).

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const LONG_DAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// Reads a date. `now` decides the century of a year of two digits.
pub(in crate::http) fn parse(value: &[u8], now: i64) -> Option<i64> {
    let text = std::str::from_utf8(value).ok()?.to_ascii_lowercase();
    if text.is_empty() {
        return None;
    }
    let (name, rest) = text.split_at_checked(text.find([',', ' '])?)?;
    if let Some(rest) = rest.strip_prefix(", ") {
        let rest = rest.strip_suffix(" gmt")?;
        return match rest.get(2..3)? {
            " " => fixdate(name, rest),
            "-" => rfc_850(name, rest, now),
            _ => None,
        };
    }
    asctime(name, rest.strip_prefix(' ')?)
}

/// `06 nov 1994 08:49:37`
fn fixdate(name: &str, rest: &str) -> Option<i64> {
    let parts: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time] = parts[..] else {
        return None;
    };
    is_day(name).then_some(())?;
    seconds(digits(year, 4)?, month, digits(day, 2)?, time)
}

/// `06-nov-94 08:49:37`
fn rfc_850(name: &str, rest: &str, now: i64) -> Option<i64> {
    LONG_DAYS.contains(&name).then_some(())?;
    let (date, time) = rest.split_once(' ')?;
    let parts: Vec<&str> = date.split('-').collect();
    let [day, month, year] = parts[..] else {
        return None;
    };
    let this_year = civil(now.div_euclid(86_400)).0;
    let mut year = this_year - this_year % 100 + digits(year, 2)?;
    // More than 50 years ahead: the last year in the past with these digits.
    if year > this_year + 50 {
        year -= 100;
    }
    seconds(year, month, digits(day, 2)?, time)
}

/// `nov  6 08:49:37 1994`
fn asctime(name: &str, rest: &str) -> Option<i64> {
    is_day(name).then_some(())?;
    let (month, rest) = rest.split_at_checked(3)?;
    let (day, rest) = rest.split_at_checked(4)?;
    let day = day.strip_prefix(' ')?.strip_suffix(' ')?;
    let day = match day.strip_prefix(' ') {
        Some(day) => digits(day, 1)?,
        None => digits(day, 2)?,
    };
    let (time, year) = rest.split_once(' ')?;
    seconds(digits(year, 4)?, month, day, time)
}

fn is_day(name: &str) -> bool {
    DAYS.iter().any(|day| day.eq_ignore_ascii_case(name))
}

fn digits(text: &str, count: usize) -> Option<i64> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn seconds(year: i64, month: &str, day: i64, time: &str) -> Option<i64> {
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let parts: Vec<&str> = time.split(':').collect();
    let [hour, minute, second] = parts[..] else {
        return None;
    };
    let (hour, minute, second) = (digits(hour, 2)?, digits(minute, 2)?, digits(second, 2)?);
    // A leap second is the next second here.
    let is_time = hour < 24 && minute < 60 && second <= 60;
    let is_date = (1..=31).contains(&day) && civil(days(year, month, day)) == (year, month, day);
    (is_time && is_date)
        .then(|| days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// Days since 1970 of a date of the Gregorian calendar (Howard Hinnant, "chrono-Compatible Low-Level
/// Date Algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The date of a day since 1970: year, month, day.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days - era * 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Writes a date as IMF-fixdate.
pub(in crate::http) fn format(seconds: i64) -> String {
    let day_number = seconds.div_euclid(86_400);
    let (year, month, day) = civil(day_number);
    let time = seconds.rem_euclid(86_400);
    // 1 January 1970 was a Thursday.
    let name = DAYS[(day_number + 3).rem_euclid(7) as usize];
    let month = MONTHS[month as usize - 1];
    let (initial, rest) = month.split_at(1);
    format!(
        "{name}, {day:02} {}{rest} {year:04} {:02}:{:02}:{:02} GMT",
        initial.to_ascii_uppercase(),
        time / 3_600,
        time / 60 % 60,
        time % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110 §5.6.7: the examples, all of the same moment.
    #[test]
    fn the_three_formats_are_read() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "SUN, 06 nOV 1994 08:49:37 gmt",
        ] {
            assert_eq!(
                parse(text.as_bytes(), 800_000_000),
                Some(784_111_777),
                "{text}"
            );
        }
        assert_eq!(format(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(format(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn a_year_of_two_digits_is_at_most_fifty_years_ahead() {
        let in_2026 = 1_790_000_000;
        let year = |text: &str| civil(parse(text.as_bytes(), in_2026).unwrap() / 86_400).0;
        assert_eq!(year("Friday, 06-Nov-76 08:49:37 GMT"), 2076);
        assert_eq!(year("Sunday, 06-Nov-77 08:49:37 GMT"), 1977);
    }

    #[test]
    fn what_is_in_no_format_is_no_date() {
        for text in [
            "0",
            "",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun 06 Nov 1994 08:49:37 GMT",
            "Sun, 06  Nov 1994 08:49:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08.49.37 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "\u{e9}, 06 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(text.as_bytes(), 0), None, "{text}");
        }
    }

    #[test]
    fn dates_read_back_as_written() {
        for seconds in (0..4_000_000_000).step_by(7_654_321) {
            assert_eq!(parse(format(seconds).as_bytes(), 0), Some(seconds));
        }
    }
}
