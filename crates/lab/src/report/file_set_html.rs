//! Tables and figures of a campaign's file sets, part of its HTML report: seconds for each file in each pass, beside the
//! published ones.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use host::html::escape;

use super::horizontal_bars::{BarSeries, horizontal_bars};
use super::plots::BarGroup;
use super::published;
use super::rows::{ResultRow, document_times, rows, sums};
use crate::campaign::{PassKind, TestNodes, TestResults};
use crate::cells::{CampaignOutcome, PublishedEvaluation};
use crate::workload::{TransferDirection, WorkloadKind};

/// Row of a table of file sets: seconds in each pass.
struct SecondsRow {
    name: String,
    own: BTreeMap<PassKind, f64>,
    published: BTreeMap<PassKind, f64>,
}

/// A table of seconds with its figure.
struct SecondsTable<'a> {
    title: String,
    test: &'a TestResults,
    rows: Vec<SecondsRow>,
    /// Text below the figure, as HTML.
    note: String,
    /// True if the client sends the files.
    is_upload: bool,
}

/// Passes of the published figures.
const PUBLISHED_PASSES: [PassKind; 3] = [PassKind::Baseline, PassKind::Cold, PassKind::Warm];

/// Tables and figures of cells that transfer file sets.
pub(super) fn write_files(out: &mut String, outcome: &CampaignOutcome) -> Result<()> {
    let Some(results) = outcome.file_results() else {
        return Ok(());
    };
    let is_published = outcome.plan.published == Some(PublishedEvaluation::Waas3g);
    let tests = results.tests.iter();
    let tables: Vec<SecondsTable<'_>> = tests
        .flat_map(|test| {
            let mut tables = file_tables(is_published, test);
            tables.extend(document_tables(is_published, test));
            tables
        })
        .collect();
    write_overview(out, &tables)?;
    for table in &tables {
        write_seconds(out, table)?;
        write_figure(out, table)?;
        writeln!(out, "<p>{}</p>", table.note)?;
    }
    Ok(())
}

/// A table for each workload of a test that transfers whole files.
fn file_tables(is_published: bool, test: &TestResults) -> Vec<SecondsTable<'_>> {
    let rows = rows(test);
    let published = published::tests();
    let sums = sums(&rows).into_iter();
    let of_files = sums.filter(|sum| sum.workload != WorkloadKind::SmbOffice.name());
    let tables = of_files.map(|sum| {
        let beside = published
            .iter()
            .find(|test| is_published && test.workload == sum.workload);
        let seconds = |row: &ResultRow| SecondsRow {
            name: row.file.clone(),
            own: row
                .figures
                .iter()
                .map(|(pass, figures)| (*pass, figures.elapsed_s))
                .collect(),
            published: beside
                .and_then(|test| test.times.iter().find(|time| time.file == row.file))
                .map(|time| by_pass(time.baseline_s, time.cold_s, time.warm_s))
                .unwrap_or_default(),
        };
        let kind: Option<WorkloadKind> = sum.workload.parse().ok();
        let is_upload = kind.is_some_and(|kind| kind.way() == TransferDirection::Upload);
        let mut note = warm_text(&sum);
        if is_upload {
            note += &session_text(&sum);
        }
        let title = is_published.then(|| published::waas_title(&sum.workload));
        SecondsTable {
            title: title.flatten().unwrap_or(&sum.workload).to_owned(),
            test,
            rows: rows
                .iter()
                .filter(|row| row.workload == sum.workload)
                .map(seconds)
                .collect(),
            note,
            is_upload,
        }
    });
    tables.collect()
}

/// Sentence about the bytes of the warm pass, if there is one.
fn warm_text(sum: &ResultRow) -> String {
    let share = sum.share(PassKind::Warm, |figures| figures.wan_bytes);
    let warm = sum.figures.get(&PassKind::Warm).zip(share);
    warm.map_or(String::new(), |(warm, share)| {
        format!(
            "Warm, all files together: {:.0} bytes over the WAN, {:.1} % of the baseline. ",
            warm.wan_bytes,
            share * 100.0
        )
    })
}

/// Sentence about the sessions of an upload. A node confirms the data to the client before the data has crossed the link, so
/// only the end of the session shows that the server has it.
fn session_text(sum: &ResultRow) -> String {
    let sessions: Vec<String> = sum
        .figures
        .iter()
        .map(|(pass, figures)| format!("{} {:.2} s", pass.name(), figures.window_s))
        .collect();
    format!(
        "Nodes confirm data before it has crossed the link, so the seconds above end when the client has sent \
         everything. The server had everything at the end of the sessions, which took, all together: {}.",
        sessions.join(", ")
    )
}

/// Sums of all tables, and by how much nodes divide the time of the baseline.
fn write_overview(out: &mut String, tables: &[SecondsTable<'_>]) -> Result<()> {
    if tables.len() < 2 {
        return Ok(());
    }
    let has_published = tables.iter().any(SecondsTable::has_published);
    *out += "<h2>All files together</h2>\n";
    *out += match has_published {
        true => {
            "<p>Each entry: ours, that of WAAS, and ours ÷ that of WAAS. A speed-up is the time of the baseline \
             divided by that of the pass. The published link lost packets, so the speed-ups compare better than \
             the seconds.</p>\n"
        }
        false => "<p>A speed-up is the time of the baseline divided by that of the pass.</p>\n",
    };
    *out += "<table><thead><tr><th>test</th>";
    for pass in PUBLISHED_PASSES {
        write!(out, "<th>{} s</th>", pass.name())?;
    }
    *out += "<th>speed-up, cold</th><th>speed-up, warm</th></tr></thead><tbody>\n";
    for table in tables {
        let sum = table.sum();
        let is_one = tables
            .iter()
            .filter(|other| other.title == table.title)
            .count()
            == 1;
        let nodes = table.test.nodes.as_ref().filter(|_| !is_one);
        let nodes = nodes.map_or(String::new(), |nodes| format!("; {}", nodes.describe()));
        write!(out, "<tr><td>{}{nodes}</td>", escape(&table.title))?;
        for pass in &PUBLISHED_PASSES {
            let text = seconds_text(sum.own.get(pass), sum.published.get(pass));
            write!(out, "<td>{text}</td>")?;
        }
        for pass in [PassKind::Cold, PassKind::Warm] {
            let factor = |seconds: &BTreeMap<PassKind, f64>| {
                let with_nodes = seconds.get(&pass).filter(|value| **value > 0.0)?;
                Some(seconds.get(&PassKind::Baseline)? / with_nodes)
            };
            let text = seconds_text(factor(&sum.own).as_ref(), factor(&sum.published).as_ref());
            write!(out, "<td>{text}</td>")?;
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table>\n";
    if tables.iter().any(|table| table.is_upload) {
        *out += "<p>Of uploads, these are the times of the client: nodes confirm data before it has crossed the \
                 link. The text below the figures of uploads says when the server had everything.</p>\n";
    }
    Ok(())
}

impl SecondsTable<'_> {
    fn has_published(&self) -> bool {
        self.rows.iter().any(|row| !row.published.is_empty())
    }

    /// Sums over the rows.
    fn sum(&self) -> SecondsRow {
        SecondsRow {
            name: format!("sum of {}", self.rows.len()),
            own: column_sums(&self.rows, |row| &row.own),
            published: column_sums(&self.rows, |row| &row.published),
        }
    }

    /// Passes that a row has.
    fn passes(&self) -> Vec<PassKind> {
        let is_there = |pass: &PassKind| {
            let mut rows = self.rows.iter();
            rows.any(|row| row.own.contains_key(pass) || row.published.contains_key(pass))
        };
        PassKind::ALL.into_iter().filter(is_there).collect()
    }
}

/// The figure of a table: a bar for each entry.
fn write_figure(out: &mut String, table: &SecondsTable<'_>) -> Result<()> {
    let has_published = table.has_published();
    let mut columns: Vec<(usize, PassKind, bool)> = Vec::new();
    for (colour, pass) in table.passes().into_iter().enumerate() {
        columns.push((colour, pass, false));
        if has_published && PUBLISHED_PASSES.contains(&pass) {
            columns.push((colour, pass, true));
        }
    }
    let series: Vec<BarSeries> = columns
        .iter()
        .map(|(colour, pass, is_published)| BarSeries {
            name: match (has_published, is_published) {
                (false, _) => pass.name().to_owned(),
                (true, false) => format!("{}, ours", pass.name()),
                (true, true) => format!("{}, published", pass.name()),
            },
            colour: *colour,
            is_published: *is_published,
        })
        .collect();
    let groups: Vec<BarGroup> = table
        .rows
        .iter()
        .map(|row| BarGroup {
            name: row.name.clone(),
            values: columns
                .iter()
                .map(|(_, pass, is_published)| match is_published {
                    true => row.published.get(pass).copied(),
                    false => row.own.get(pass).copied(),
                })
                .collect(),
        })
        .collect();
    let drawing = horizontal_bars("seconds", &series, &groups)?;
    writeln!(out, "<figure>{drawing}</figure>")?;
    Ok(())
}

fn by_pass(baseline_s: f64, cold_s: f64, warm_s: f64) -> BTreeMap<PassKind, f64> {
    [
        (PassKind::Baseline, baseline_s),
        (PassKind::Cold, cold_s),
        (PassKind::Warm, warm_s),
    ]
    .into()
}

/// A table of seconds with the sums in its first row.
fn write_seconds(out: &mut String, table: &SecondsTable<'_>) -> Result<()> {
    let test = table.test;
    let nodes = test.nodes.as_ref().map(TestNodes::describe);
    writeln!(
        out,
        "<h2>{}</h2>\n<p>Link: <code>{}</code>{}</p>",
        escape(&table.title),
        escape(&test.link.to_string()),
        nodes.map_or(String::new(), |nodes| format!("; nodes: {nodes}"))
    )?;
    if table.has_published() {
        *out += "<p>Each entry: our seconds, those of WAAS, and ours ÷ those of WAAS.</p>\n";
    }
    let passes = table.passes();
    *out += "<table><thead><tr><th>file</th>";
    for pass in &passes {
        write!(out, "<th>{} s</th>", pass.name())?;
    }
    *out += "</tr></thead><tbody>\n";
    let sums = table.sum();
    let rows = table.rows.iter().map(|row| ("", row));
    for (class, row) in std::iter::once((" class=\"sum\"", &sums)).chain(rows) {
        write!(out, "<tr{class}><td>{}</td>", escape(&row.name))?;
        for pass in &passes {
            let text = seconds_text(row.own.get(pass), row.published.get(pass));
            write!(out, "<td>{text}</td>")?;
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table>\n";
    Ok(())
}

/// Sums of the passes that every row has.
fn column_sums(
    rows: &[SecondsRow],
    column: impl Fn(&SecondsRow) -> &BTreeMap<PassKind, f64>,
) -> BTreeMap<PassKind, f64> {
    let sum = |pass: PassKind| {
        let values: Option<Vec<f64>> = rows
            .iter()
            .map(|row| column(row).get(&pass).copied())
            .collect();
        values
            .filter(|values| !values.is_empty())
            .map(|values| (pass, values.iter().sum()))
    };
    PassKind::ALL.into_iter().filter_map(sum).collect()
}

/// Our seconds, and behind them the published ones with the ratio; a narrow page breaks between them.
fn seconds_text(own: Option<&f64>, published: Option<&f64>) -> String {
    let text = own.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let Some(published) = published else {
        return text;
    };
    let ratio = own.map_or("–".to_owned(), |own| format!("{:.2}", own / published));
    format!(
        "{text} <span class=\"quiet\">{published:.2}</span> <span class=\"quiet\">×{ratio}</span>"
    )
}

/// How documents are opened, and how they are saved.
const DOCUMENT_METHOD: [&str; 2] = [
    "A document is opened with a lock, its first piece, its end and the rest in READs of 8 KiB. Opening runs from its \
     CREATE to the last answer before the temporary file&rsquo;s CREATE. Log-on and share mount lie before the timed \
     span.",
    "A document is saved by way of a temporary file in WRITEs of 8 KiB, FLUSH, CLOSE and a rename. Saving runs from the \
     temporary file&rsquo;s CREATE to the last answer before the client leaves.",
];

/// Tables of documents that are opened and saved.
fn document_tables(is_published: bool, test: &TestResults) -> Vec<SecondsTable<'_>> {
    let times = document_times(test);
    if times.is_empty() {
        return Vec::new();
    }
    let parts = [
        (0, published::OPEN_TITLE, "Documents opened"),
        (1, published::SAVE_TITLE, "Documents saved"),
    ];
    let table = |(part, published_title, title): (usize, &str, &str)| {
        let mut rows = Vec::new();
        for document in published::documents() {
            let own: BTreeMap<PassKind, f64> = PassKind::ALL
                .into_iter()
                .filter_map(|pass| {
                    let time = times.get(&(document.file.clone(), pass))?;
                    Some((pass, [time.open_s, time.save_s][part]))
                })
                .collect();
            if own.is_empty() {
                continue;
            }
            let of_report = [document.baseline_s, document.cold_s, document.warm_s];
            let [baseline_s, cold_s, warm_s] = of_report.map(|times| times[part]);
            rows.push(SecondsRow {
                name: document.file,
                own,
                published: match is_published {
                    true => by_pass(baseline_s, cold_s, warm_s),
                    false => BTreeMap::new(),
                },
            });
        }
        SecondsTable {
            title: match is_published {
                true => published_title,
                false => title,
            }
            .to_owned(),
            test,
            rows,
            note: DOCUMENT_METHOD[part].to_owned(),
            is_upload: false,
        }
    };
    parts.map(table).into()
}
