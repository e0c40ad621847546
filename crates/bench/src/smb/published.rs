//! Published figures for comparison: CIFS through Juniper's WX in van Helmond and Smeets, "Benefits
//! and tradeoffs of application-specific WAN acceleration" (University of Amsterdam, 2006), tables
//! 10 to 15.
//!
//! Their client was Windows XP, and their kilobyte is 1,000 or 1,024 bytes (not stated).

use serde::Serialize;

/// The published goodput of CIFS at one link and delay, in kB/s.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedRate {
    /// `T1` or `OC-1`.
    pub link: String,
    /// Each way.
    pub one_way_delay_ms: u32,
    /// Figure without acceleration.
    #[serde(rename = "baseline_kB_s")]
    pub baseline_kb_s: f64,
    /// With TCP acceleration.
    #[serde(rename = "tcp_kB_s")]
    pub tcp_kb_s: f64,
    /// With application acceleration.
    #[serde(rename = "application_kB_s")]
    pub application_kb_s: f64,
}

/// The published rates, in the published order.
#[must_use]
pub fn rates() -> Vec<PublishedRate> {
    rows(include_str!("published/wx_cifs.csv"))
        .map(|row| PublishedRate {
            link: row[0].to_owned(),
            one_way_delay_ms: number(row[2]) as u32,
            baseline_kb_s: number(row[3]),
            tcp_kb_s: number(row[4]),
            application_kb_s: number(row[5]),
        })
        .collect()
}

fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(|line| line.split(',').collect())
}

fn number(text: &str) -> f64 {
    text.parse().expect("the table in the source is numbers")
}

#[cfg(test)]
mod tests {
    use super::super::cells::DELAYS_MS;
    use super::*;
    use crate::lines::LinkKind;

    #[test]
    fn every_serial_client_cell_has_a_published_figure() {
        let rates = rates();
        assert_eq!(rates.len(), 8);
        for link in [LinkKind::T1, LinkKind::Oc1] {
            for delay in DELAYS_MS {
                let found = rates
                    .iter()
                    .find(|rate| rate.link == link.name() && rate.one_way_delay_ms == delay);
                assert!(found.is_some_and(|rate| rate.baseline_kb_s <= link.payload_kb_s()));
            }
        }
    }
}
