//! Lines of the published report, over which benchmarks of applications run.

use std::time::Duration;

/// A line of the published report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// 1.544 Mbit/s.
    T1,
    /// 51.84 Mbit/s.
    Oc1,
}

impl LinkKind {
    /// Both lines.
    pub const ALL: [Self; 2] = [Self::T1, Self::Oc1];

    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::T1 => "T1",
            Self::Oc1 => "OC-1",
        }
    }

    /// Rate as in the published report.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        match self {
            Self::T1 => 1_544_000,
            Self::Oc1 => 51_840_000,
        }
    }

    /// Least duration of a transfer.
    #[must_use]
    pub const fn span(self) -> Duration {
        match self {
            Self::T1 => Duration::from_secs(60),
            Self::Oc1 => Duration::from_secs(30),
        }
    }

    /// Rate left for a TCP connection's payload, in kB/s: 1448 of 1500 bytes.
    #[must_use]
    pub fn payload_kb_s(self) -> f64 {
        self.bits_per_second() as f64 / 8e3 * 1448.0 / 1500.0
    }

    /// Link for the emulator, as arguments of `trunkline emulate run`.
    ///
    /// The queue holds one BDP, and at least 64 KiB.
    #[must_use]
    pub fn words(self, one_way_delay_ms: u32) -> Vec<String> {
        let rate = self.bits_per_second();
        let bdp = rate / 8 * 2 * u64::from(one_way_delay_ms) / 1_000;
        [
            ("--rate", format!("{rate}bit")),
            ("--delay", format!("{one_way_delay_ms}ms")),
            ("--queue", format!("{}B", bdp.max(64 << 10))),
            ("--seed", "1".to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, word)| [name.to_owned(), word])
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_rates_are_those_of_the_lines() {
        assert!((LinkKind::T1.payload_kb_s() - 186.3).abs() < 0.1);
        assert!((LinkKind::Oc1.payload_kb_s() - 6_255.4).abs() < 0.1);
    }
}
