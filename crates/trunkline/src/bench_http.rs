//! `trunkline bench http`: what HTTP clients get over the emulated WAN, without Trunkline and with it.
//!
//! Each cell can be run alone. A figure that was not measured is null, and the result says why.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use bench::http::{self, FIGURES, HttpCell, HttpChoice, HttpReport};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use host::machine::MachineInfo;
use serde_json::{Value, json};

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Measures HTTP clients over the emulated WAN, without Trunkline and with it: a page load in a
/// browser, the WAN bytes of stored objects, a thousand clients in parallel, a large download, idle
/// connections, and public test suites.
#[derive(Debug, Args)]
pub(crate) struct BenchHttp {
    /// Runs only the measurements with these names.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = cell())]
    cells: Vec<HttpCell>,
    /// Sets how many times the benchmark loads the page in each state, and how many pairs of
    /// downloads it runs. The benchmark prints the medians.
    #[arg(long, value_name = "N", default_value_t = http::REPEATS)]
    repeats: usize,
    /// Sets how many clients request one object in parallel. The result in the documentation is for
    /// 1,000 clients.
    #[arg(long, value_name = "N", default_value_t = http::CLIENTS)]
    clients: usize,
    /// Sets for how many objects of each kind the benchmark counts the WAN bytes.
    #[arg(long, value_name = "N", default_value_t = http::OBJECTS)]
    objects: usize,
    /// Sets how many idle HTTP connections the benchmark opens.
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    connections: usize,
    /// Names the directory of the test suite cache-tests (commit b55b8bda). Before you use this
    /// option, run `npm install --omit=dev --ignore-scripts` in the directory of cache-tests.
    #[arg(long, value_name = "DIR")]
    cache_tests: Option<PathBuf>,
    /// Names the directory that contains cache-tests.sh and h2spec.sh.
    #[arg(long, value_name = "DIR", default_value = "scripts")]
    scripts: PathBuf,
    /// Prints the results of the benchmark as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Takes the name of a cell; the help lists all names.
fn cell() -> impl TypedValueParser<Value = HttpCell> {
    PossibleValuesParser::new(HttpCell::ALL.map(HttpCell::name)).map(|name| {
        let mut cells = HttpCell::ALL.into_iter();
        let cell = cells.find(|cell| cell.name() == name);
        cell.expect("the parser takes names of cells only")
    })
}

impl BenchHttp {
    /// Measures and prints.
    ///
    /// # Errors
    /// When a program is missing that every cell needs, or the result cannot be written.
    pub(crate) fn run(self) -> Result<()> {
        host::kernel::catch_interruptions();
        let choice = HttpChoice {
            cells: match self.cells.is_empty() {
                true => HttpCell::ALL.to_vec(),
                false => self.cells,
            },
            repeats: self.repeats.max(1),
            clients: self.clients.max(1),
            objects: self.objects.max(1),
            connections: self.connections.max(1),
            scripts: self.scripts,
            cache_tests: self.cache_tests,
        };
        let display = progress();
        let began = Instant::now();
        let report = http::measure(&environment()?, &choice, &display)?;
        display.finish();
        let took = began.elapsed().as_secs_f64();
        let mut out = StandardOutput::new();
        if self.json {
            let mut document = document(&report);
            document["repeats"] = json!(choice.repeats);
            document["build"] = json!(build());
            document["took_s"] = json!(took);
            document["machine"] = json!(MachineInfo::describe(&["nginx", "chromium"]));
            document["certificate"] = json!(crate::emulate::calibrate::citation());
            writeln!(out, "{document}")?;
        } else {
            writeln!(out, "{}\n{took:.0} s, {} build.", table(&report), build())?;
        }
        Ok(())
    }
}

/// Nodes of a debug build are several times slower, and figures of throughput are of them.
fn build() -> &'static str {
    match cfg!(debug_assertions) {
        true => "debug",
        false => "release",
    }
}

fn document(report: &HttpReport) -> Value {
    json!({
        "bench": "http",
        "figures": report.figures,
        "not_measured": report.not_measured,
        "faults": report.faults,
        "is_interrupted": report.is_interrupted,
        "raw": report.raw,
    })
}

fn table(report: &HttpReport) -> String {
    let mut text = String::new();
    let number = |value: &Value| {
        let number = value.as_f64();
        number.map_or("-".to_owned(), |number| format!("{number:.3}"))
    };
    for cell in HttpCell::ALL {
        let figures = FIGURES.iter().filter(|(_, of)| *of == cell);
        for (name, _) in figures {
            let Some(value) = report.figures.get(*name).filter(|value| !value.is_null()) else {
                continue;
            };
            let ends = report.figures.get(&format!("{name}_interval"));
            let ends = ends
                .and_then(Value::as_array)
                .map_or(String::new(), |ends| {
                    let ends: Vec<String> = ends.iter().map(number).collect();
                    ends.join(" to ")
                });
            let _ = writeln!(text, "{name:<36}{:>12}  {ends}", number(value));
        }
    }
    for fault in &report.faults {
        let _ = writeln!(text, "fault: {fault}");
    }
    for missing in &report.not_measured {
        let _ = writeln!(text, "not measured: {}: {}", missing.figure, missing.reason);
    }
    if report.is_interrupted {
        text += "The benchmark was interrupted; these are the results so far.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct BenchLine {
        #[command(flatten)]
        bench: BenchHttp,
    }

    fn parse(words: &[&str]) -> Result<BenchHttp, clap::Error> {
        let words = ["it"].iter().chain(words);
        <BenchLine as clap::Parser>::try_parse_from(words).map(|line| line.bench)
    }

    #[test]
    fn cells_are_chosen_by_name() {
        assert_eq!(
            parse(&["--cells", "page,objects"]).unwrap().cells,
            [HttpCell::Page, HttpCell::Objects]
        );
        assert!(parse(&["--cells", "pages"]).is_err());
        assert_eq!(parse(&[]).unwrap().repeats, 15);
    }

    #[test]
    fn a_report_is_shown_with_its_reasons() {
        let mut report = HttpReport::default();
        report.figures.insert("lan_load_s".to_owned(), json!(0.5));
        let ends = json!([0.4, 0.6]);
        report
            .figures
            .insert("lan_load_s_interval".to_owned(), ends);
        report.not_measured.push(http::MissingFigure {
            figure: "h2spec_passed".to_owned(),
            reason: "scripts/h2spec.sh is not there".to_owned(),
        });
        let text = table(&report);
        assert!(text.contains("0.500  0.400 to 0.600"), "{text}");
        assert!(
            text.contains("not measured: h2spec_passed: scripts"),
            "{text}"
        );
        assert_eq!(document(&report)["bench"], "http");
    }
}
