//! Self-contained HTML file: figures, plots, and the method of measurement.

use std::fmt::Write;

use anyhow::Result;
use host::html::{STYLE, escape};

use super::plots::{BarGroup, bars};
use super::published::{self, PublishedTest};
use super::rows::{ResultRow, rows, sums};
use crate::campaign::{CampaignResults, PassKind, TestResults};

/// The whole report.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn html(results: &CampaignResults) -> Result<String> {
    let mut out = String::new();
    let title = escape(&results.title);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p>Trunkline {}, {}, {:.0} s in all, {}.</p>\n",
        escape(&results.machine.trunkline),
        escape(&results.started),
        results.took_s,
        match results.repeats {
            1 => "each figure measured once".to_owned(),
            repeats => format!("each figure the median of {repeats}"),
        }
    )?;
    write_notes(&mut out, results)?;
    for (index, test) in results.tests.iter().enumerate() {
        write_test(&mut out, index, test, results.tests.len())?;
    }
    write_published(&mut out, results)?;
    write_method(&mut out, results)?;
    out += "</body></html>\n";
    Ok(out)
}

fn write_notes(out: &mut String, results: &CampaignResults) -> Result<()> {
    let faults = results.faults();
    if faults.is_empty() {
        *out += "<p>Every file arrived identical, by its BLAKE3 hash, in every pass.</p>\n";
    }
    for fault in faults {
        writeln!(
            out,
            "<p class=\"note bad\">Not identical: {}</p>",
            escape(&fault)
        )?;
    }
    for note in &results.notes {
        writeln!(out, "<p class=\"note\">{}</p>", escape(note))?;
    }
    Ok(())
}

fn write_test(out: &mut String, index: usize, test: &TestResults, tests: usize) -> Result<()> {
    let rows = rows(test);
    let sums = sums(&rows);
    let heading = match tests {
        1 => "Results".to_owned(),
        _ => format!("Test {}", index + 1),
    };
    write!(
        out,
        "<h2>{heading}</h2>\n<p>Link: <code>{}</code></p>\n",
        escape(&test.link.to_string())
    )?;
    let series = PassKind::ALL.map(PassKind::name);
    for (title, unit, figure) in [
        (
            "Time from the first request for the data to the last acknowledgement, all files",
            "seconds",
            (|figures| figures.elapsed_s) as fn(&super::TransferFigures) -> f64,
        ),
        ("Bytes over the WAN, all files", "megabytes", |figures| {
            figures.wan_bytes / 1e6
        }),
    ] {
        *out += &bars(
            title,
            unit,
            &series,
            &groups(&sums, |sum| &sum.workload, figure),
        )?;
        out.push('\n');
    }
    for sum in &sums {
        let own: Vec<ResultRow> = rows
            .iter()
            .filter(|row| row.workload == sum.workload)
            .cloned()
            .collect();
        writeln!(out, "<h3>{}</h3>", escape(&sum.workload))?;
        *out += &bars(
            &format!("{}, seconds per file", sum.workload),
            "seconds",
            &series,
            &groups(&own, |row| &row.file, |figures| figures.elapsed_s),
        )?;
        write_table(out, sum, &own)?;
    }
    Ok(())
}

fn groups<'a>(
    rows: &'a [ResultRow],
    name: impl Fn(&'a ResultRow) -> &'a String,
    figure: fn(&super::TransferFigures) -> f64,
) -> Vec<BarGroup> {
    rows.iter()
        .map(|row| BarGroup {
            name: name(row).clone(),
            values: PassKind::ALL
                .iter()
                .map(|pass| row.figures.get(pass).map(figure))
                .collect(),
        })
        .collect()
}

fn write_table(out: &mut String, sum: &ResultRow, rows: &[ResultRow]) -> Result<()> {
    let sessions = !sum.workload.starts_with("http");
    *out += "<table><thead><tr><th>file</th><th>bytes</th>";
    for pass in PassKind::ALL {
        write!(out, "<th>{} s</th>", pass.name())?;
    }
    if sessions {
        for pass in PassKind::ALL {
            write!(out, "<th>{} session s</th>", pass.name())?;
        }
    }
    for pass in PassKind::ALL {
        write!(out, "<th>{} WAN bytes</th>", pass.name())?;
    }
    *out += "</tr></thead><tbody>\n";
    for (class, row) in
        std::iter::once((" class=\"sum\"", sum)).chain(rows.iter().map(|row| ("", row)))
    {
        write!(
            out,
            "<tr{class}><td>{}</td><td>{}</td>",
            escape(&row.file),
            row.bytes
        )?;
        let mut cells = |figure: fn(&super::TransferFigures) -> String| -> Result<()> {
            for pass in PassKind::ALL {
                let text = row.figures.get(&pass).map_or("–".to_owned(), figure);
                write!(out, "<td>{text}</td>")?;
            }
            Ok(())
        };
        cells(|figures| format!("{:.3}", figures.elapsed_s))?;
        if sessions {
            cells(|figures| format!("{:.3}", figures.window_s))?;
        }
        cells(|figures| format!("{:.0}", figures.wan_bytes))?;
        *out += "</tr>\n";
    }
    *out += "</tbody></table>\n";
    Ok(())
}

/// The published figures beside ours: by how much each divides its own baseline.
fn write_published(out: &mut String, results: &CampaignResults) -> Result<()> {
    *out += "<h2>Beside the published figures</h2>\n\
        <p>\u{201c}Cisco Wide Area Application Services: Optimizing Third-Generation Wireless \
        Networks\u{201d} (Cisco Systems, 2009), tables 2 to 4: the same file names and sizes over \
        a real 3G link with round-trip times of 146 to 156 ms. The contents are not the same \
        (theirs are not published) and neither is the link, so what compares is the factor: \
        baseline time divided by accelerated time. Their HTTP times are whole seconds. Our times \
        are those of the first test with that workload.</p>\n";
    for test in published::tests() {
        let ours: Vec<ResultRow> = results
            .tests
            .iter()
            .map(rows)
            .find(|rows| rows.iter().any(|row| row.workload == test.workload))
            .unwrap_or_default();
        if !ours.is_empty() {
            write_beside(out, &test, &ours)?;
        }
    }
    Ok(())
}

fn write_beside(out: &mut String, test: &PublishedTest, ours: &[ResultRow]) -> Result<()> {
    write!(
        out,
        "<h3>{} (published at RTT {} ms)</h3>\n<table><thead><tr><th>file</th>\
         <th>WAAS baseline s</th><th>WAAS cold s</th><th>WAAS warm s</th>\
         <th>our baseline s</th><th>our cold s</th><th>our warm s</th>\
         <th>WAAS cold ×</th><th>our cold ×</th><th>WAAS warm ×</th><th>our warm ×</th>\
         </tr></thead><tbody>\n",
        test.title, test.rtt_ms
    )?;
    let factor = |baseline: f64, accelerated: f64| format!("{:.1}", baseline / accelerated);
    for time in &test.times {
        let Some(row) = ours
            .iter()
            .find(|row| row.workload == test.workload && row.file == time.file)
        else {
            continue;
        };
        let seconds = |pass| row.figures.get(&pass).map(|figures| figures.elapsed_s);
        let shown = |pass| seconds(pass).map_or("–".to_owned(), |value| format!("{value:.3}"));
        let our_factor = |pass| match (seconds(PassKind::Baseline), seconds(pass)) {
            (Some(baseline), Some(accelerated)) => factor(baseline, accelerated),
            _ => "–".to_owned(),
        };
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&time.file),
            time.baseline_s,
            time.cold_s,
            time.warm_s,
            shown(PassKind::Baseline),
            shown(PassKind::Cold),
            shown(PassKind::Warm),
            factor(time.baseline_s, time.cold_s),
            our_factor(PassKind::Cold),
            factor(time.baseline_s, time.warm_s),
            our_factor(PassKind::Warm),
        )?;
    }
    *out += "</tbody></table>\n";
    Ok(())
}

fn write_method(out: &mut String, results: &CampaignResults) -> Result<()> {
    let machine = &results.machine;
    *out += "<h2>How it was measured</h2>\n<table><tbody>\n";
    let mut line =
        |name: &str, text: &str| writeln!(out, "<tr><td>{name}</td><td>{}</td></tr>", escape(text));
    line("date", &results.started)?;
    line("system", &machine.system)?;
    line("kernel", &machine.kernel)?;
    line(
        "processors",
        &format!("{} × {}", machine.processors, machine.processor_model),
    )?;
    line("privileges", &machine.privileges)?;
    line(
        "congestion control, hosts",
        &machine.hosts_congestion_control,
    )?;
    line(
        "congestion control, nodes' WAN connection",
        machine
            .nodes_congestion_control
            .as_deref()
            .unwrap_or("no node ran"),
    )?;
    line("offloads", &machine.offloads)?;
    line(
        "seeds",
        &format!(
            "files {}, edits {} (from the clock), link {}",
            results.seeds.files, results.seeds.edits, results.seeds.link
        ),
    )?;
    for (name, version) in &machine.programs {
        line(name, version)?;
    }
    *out += "</tbody></table>\n\
        <p>Client, near node, WAN, far node and server are network namespaces of one machine; \
        the nodes are processes of their own that reach each other only through the emulated \
        link. <b>baseline</b>: no node runs. <b>cold</b>: both dictionaries emptied before each \
        workload. <b>warm</b>: the same files again. <b>edited</b>: 1 % of each file's bytes \
        overwritten, in runs of 64 to 512 random bytes.</p>\n\
        <p>Times are read from a capture on the client's interface: from the first request for \
        the data (HTTP GET; FTP RETR or STOR; the first SMB READ or WRITE) to the last \
        acknowledgement of it. For an upload through Trunkline that acknowledgement is the near \
        node's; the session's time includes the server's own answer. HTTP opens a connection per \
        file, FTP and SMB use one session for all files of a workload; <b>session</b> is the \
        file's part of it, from its first packet to its last. <b>WAN bytes</b> are whole IP \
        packets, IP and TCP headers included, link-layer framing not, in both directions, seen \
        at the emulator&rsquo;s near device from the file&rsquo;s first packet to the next \
        file&rsquo;s, so that nothing in between is left out.</p>\n";
    for (index, test) in results.tests.iter().enumerate() {
        if !test.emulator.is_null() {
            writeln!(
                out,
                "<details><summary>What the emulator counted, test {}</summary><pre>{}</pre></details>",
                index + 1,
                escape(&serde_json::to_string_pretty(&test.emulator)?)
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::json::tests::sample_results;
    use super::*;

    #[test]
    fn the_report_stands_alone() {
        let page = html(&sample_results()).unwrap();
        assert!(page.contains("A &lt;test&gt;"));
        assert!(page.contains("<svg"));
        assert!(page.contains("WAAS baseline s"));
        for outside in ["http://", "https://", "<script", "<link", "url("] {
            let own = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains(outside), "{outside}");
        }
    }
}
