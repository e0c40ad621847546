//! Adds up what the test programs of a `cargo test` report.
//!
//! Each ends with a line such as
//! `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s`.

use std::fmt;

/// Tests of all programs read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that were compiled and not asked for.
    pub(crate) ignored: u64,
}

impl Totals {
    /// Takes one line of output; lines of any other form change nothing.
    pub(crate) fn read_line(&mut self, line: &str) {
        let Some(result) = line.trim().strip_prefix("test result: ") else {
            return;
        };
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _other_counts => {}
            }
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_add_up() {
        let mut totals = Totals::default();
        for line in [
            "running 13 tests",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.10s",
            "test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s",
        ] {
            totals.read_line(line);
        }
        assert_eq!(
            totals,
            Totals {
                passed: 14,
                failed: 5,
                ignored: 1
            }
        );
        assert_eq!(totals.to_string(), "14 passed, 5 failed");
    }

    #[test]
    fn what_a_test_prints_is_not_counted() {
        let mut totals = Totals::default();
        totals.read_line("the peer said: 3 failed; 2 passed");
        totals.read_line("test result: ");
        assert_eq!(totals, Totals::default());
    }
}
