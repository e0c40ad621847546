//! Tables of a campaign's file sets, part of its HTML report: seconds for each file in each pass, beside the published
//! ones.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use host::html::escape;

use super::published;
use super::rows::{ResultRow, document_times, rows, sums};
use crate::campaign::{PassKind, TestNodes, TestResults};
use crate::cells::{CampaignOutcome, PublishedEvaluation};
use crate::workload::WorkloadKind;

/// Row of a table of file sets: seconds in each pass.
struct SecondsRow {
    name: String,
    own: BTreeMap<PassKind, f64>,
    published: BTreeMap<PassKind, f64>,
}

/// Tables of cells that transfer file sets.
pub(super) fn write_files(out: &mut String, outcome: &CampaignOutcome) -> Result<()> {
    let Some(results) = outcome.file_results() else {
        return Ok(());
    };
    let is_published = outcome.plan.published == Some(PublishedEvaluation::Waas3g);
    let published = published::tests();
    for test in &results.tests {
        let rows = rows(test);
        for sum in sums(&rows) {
            if sum.workload == WorkloadKind::SmbOffice.name() {
                continue;
            }
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
            let own = rows.iter().filter(|row| row.workload == sum.workload);
            let own: Vec<SecondsRow> = own.map(seconds).collect();
            let title = beside.map_or(sum.workload.as_str(), |test| test.title);
            write_seconds(out, title, test, &own)?;
            let warm = sum.figures.get(&PassKind::Warm);
            if let Some(share) = sum.share(PassKind::Warm, |figures| figures.wan_bytes)
                && let Some(warm) = warm
            {
                writeln!(
                    out,
                    "<p>Warm, all files together: {:.0} bytes over the WAN, {:.1} % of the baseline.</p>",
                    warm.wan_bytes,
                    share * 100.0
                )?;
            }
        }
        write_office(out, is_published, test)?;
    }
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
fn write_seconds(
    out: &mut String,
    title: &str,
    test: &TestResults,
    rows: &[SecondsRow],
) -> Result<()> {
    let nodes = test.nodes.as_ref().map(TestNodes::describe);
    writeln!(
        out,
        "<h2>{}</h2>\n<p>Link: <code>{}</code>{}</p>",
        escape(title),
        escape(&test.link.to_string()),
        nodes.map_or(String::new(), |nodes| format!("; nodes: {nodes}"))
    )?;
    let has_published = rows.iter().any(|row| !row.published.is_empty());
    if has_published {
        *out += "<p>Each entry: our seconds, those of WAAS, and ours ÷ those of WAAS.</p>\n";
    }
    let passes: Vec<PassKind> = PassKind::ALL
        .into_iter()
        .filter(|pass| {
            let mut rows = rows.iter();
            rows.any(|row| row.own.contains_key(pass) || row.published.contains_key(pass))
        })
        .collect();
    *out += "<table><thead><tr><th>file</th>";
    for pass in &passes {
        write!(out, "<th>{} s</th>", pass.name())?;
    }
    *out += "</tr></thead><tbody>\n";
    let sum = SecondsRow {
        name: format!("sum of {}", rows.len()),
        own: column_sums(rows, |row| &row.own),
        published: column_sums(rows, |row| &row.published),
    };
    for (class, row) in
        std::iter::once((" class=\"sum\"", &sum)).chain(rows.iter().map(|row| ("", row)))
    {
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

/// Tables of documents that are opened and saved.
fn write_office(out: &mut String, is_published: bool, test: &TestResults) -> Result<()> {
    let times = document_times(test);
    if times.is_empty() {
        return Ok(());
    }
    for (part, published_title, title) in [
        (0, "Test 5, CIFS file open", "Documents opened"),
        (1, "Test 6, CIFS file save", "Documents saved"),
    ] {
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
        let title = if is_published { published_title } else { title };
        write_seconds(out, title, test, &rows)?;
    }
    *out += "<p>A document is opened with a lock, its first piece, its end and the rest in READs of \
             8 KiB, and saved by way of a temporary file in WRITEs of 8 KiB, FLUSH, CLOSE and a \
             rename. Opening runs from its CREATE to the last answer before the temporary \
             file&rsquo;s CREATE, saving from there to the last answer before the client leaves. \
             Log-on and share mount lie before the timed span.</p>\n";
    Ok(())
}
