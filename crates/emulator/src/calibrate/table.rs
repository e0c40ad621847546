//! Table of the certificate for a terminal of 80 columns, with the published figures for
//! comparison.

use std::fmt::Write;

use super::certificate::{CalibrationCertificate, CertificateCell, MeasuredQuantity};
use super::published;
use host::terminal::{WIDTH, write_wrapped};

/// The whole certificate as text of at most 80 columns.
#[must_use]
pub fn table(certificate: &CalibrationCertificate) -> String {
    let mut out = String::new();
    let host = &certificate.host;
    let timers = host.bare_timer_lateness_us;
    for line in [
        format!(
            "Emulator over {}, {} packets, {}, {:.0} s, seed {}",
            certificate.device,
            certificate.protocol,
            certificate.date,
            certificate.took_s,
            certificate.seed
        ),
        format!(
            "Linux {}, {} x {}, Trunkline {}",
            host.kernel, host.processors, host.processor_model, host.trunkline
        ),
        format!(
            "This host by itself: a sleep of 1 ms ends {:.0} us late (median), {:.0} us (p99), \
             {:.0} us (p99.9), {:.0} us (worst); stolen processor time {:.2} %, in use before \
             {:.1} %, clock steered by {:.1} ppm",
            timers.p50,
            timers.p99,
            timers.p99_9,
            timers.max,
            host.stolen_percent,
            host.busy_before_percent,
            host.clock_drift_ppm
        ),
    ] {
        write_wrapped(&mut out, &line);
    }
    for forced in &certificate.forced {
        write_wrapped(&mut out, &format!("FORCED: {forced}"));
    }
    if certificate.quick {
        out += "Short form: fewer cells, and shorter ones, than the full certificate.\n";
    }
    let _ = writeln!(
        out,
        "\n{:<26}{:>12}{:>10}{:>22}{:>10}",
        "set", "measured", "error %", "99.9 % interval", "2006 err%"
    );
    let mut heading = None;
    for quantity in MeasuredQuantity::ALL {
        for cell in certificate
            .cells
            .iter()
            .filter(|cell| cell.quantity == quantity)
        {
            if heading.replace((quantity, &cell.unit)) != Some((quantity, &cell.unit)) {
                let _ = writeln!(out, "{}\n{quantity}, {}", "-".repeat(WIDTH), cell.unit);
            }
            write_cell(&mut out, cell);
        }
    }
    let _ = writeln!(out, "{}", "-".repeat(WIDTH));
    out += "2006 err%: the calibration in the 2006 evaluation of the Juniper WX.\n";
    if let Some(capacity) = certificate.capacity {
        write_wrapped(
            &mut out,
            &format!(
                "Carried without a loss: {:.2} Gbit/s and {:.0} thousand packets/s of UDP \
                 ({:.2} and {:.0} by segmentation offload), {:.2} Gbit/s of one TCP connection; \
                 {:.2} Gbit/s through a line that spaces packets",
                capacity.gbit_s,
                capacity.kpps,
                capacity.gbit_s_offloaded,
                capacity.kpps_offloaded,
                capacity.tcp_gbit_s,
                capacity.line_gbit_s
            ),
        );
    }
    write_verdict(&mut out, certificate);
    out
}

fn write_cell(out: &mut String, cell: &CertificateCell) {
    let percent = |error: Option<f64>, digits: usize| {
        error.map_or("-".to_owned(), |error| match error.abs() {
            small if small < 1_000.0 => format!("{error:+.digits$}"),
            _ => format!("{error:+.0}"),
        })
    };
    let name = match cell.condition.as_str() {
        "" => number(cell.configured),
        condition => format!("{} {condition}", number(cell.configured)),
    };
    let mark = if cell.within_bars { ' ' } else { '!' };
    let beside = published::beside(cell).map_or(String::new(), |published| {
        percent(published.error_percent(), 2)
    });
    let [low, high] = cell.interval;
    let _ = writeln!(
        out,
        "{mark} {:<24.24}{:>12}{:>10}{:>22}{:>10}",
        name,
        number(cell.measured),
        percent(cell.error_percent, 4),
        format!("{} {}", number(low), number(high)),
        beside
    );
    let figure = |name: &str| cell.figures.get(name).copied();
    match cell.quantity {
        MeasuredQuantity::Rate => {
            if let (Some(share), Some(p99), Some(max)) = (
                figure("departures_within_200us_percent"),
                figure("departure_lateness_p99_us"),
                figure("departure_lateness_max_us"),
            ) {
                let _ = writeln!(
                    out,
                    "    departures: {share:.2} % within 200 us; p99 {p99:.0} us, worst {max:.0} us"
                );
            }
        }
        MeasuredQuantity::Delay => {
            let [p50, p99, p99_9, max] = [
                "excess_p50_us",
                "excess_p99_us",
                "excess_p99_9_us",
                "excess_max_us",
            ]
            .map(|name| figure(name).unwrap_or_default());
            let _ = writeln!(
                out,
                "    over it: median {p50:.0} us, p99 {p99:.0}, p99.9 {p99_9:.0}, worst {max:.0} us"
            );
        }
        MeasuredQuantity::Jitter
        | MeasuredQuantity::Loss
        | MeasuredQuantity::Burst
        | MeasuredQuantity::Queue
        | MeasuredQuantity::Seeds => {}
    }
    if let (Some(stolen), Some(attempts)) = (figure("stolen_percent"), figure("attempts"))
        && attempts > 1.0
    {
        let _ = writeln!(
            out,
            "    {stolen:.2} % of processor time was stolen, the least of {attempts:.0} tries"
        );
    }
}

fn write_verdict(out: &mut String, certificate: &CalibrationCertificate) {
    for cell in certificate.missed() {
        for bar in cell.bars.iter().filter(|bar| !bar.holds) {
            write_wrapped(out, &format!("! {}: not {}", cell.title(), bar.what));
        }
    }
    for failure in &certificate.failures {
        write_wrapped(out, &format!("! not measured: {failure}"));
    }
    let missed = certificate.missed().count();
    let count = certificate.cells.len();
    match (missed, &certificate.chance) {
        (0, _) => {
            let _ = writeln!(out, "All {count} cells are within their bars.");
        }
        (_, Some(verdict)) if certificate.within_bars => write_wrapped(
            out,
            &format!(
                "{missed} of {count} cells miss a bar, as chance alone explains: of {} tests the \
                 least likely happens to a right emulator with p = {:.2e}, and a certificate \
                 fails below {:.2e}. It stands.",
                verdict.tests,
                verdict.smallest_p,
                verdict.smallest_p_least()
            ),
        ),
        _ => {
            let _ = writeln!(out, "{missed} of {count} cells miss a bar.");
        }
    }
}

/// Six digits are more than any cell knows, and fit.
fn number(value: f64) -> String {
    let digits: usize = match value.abs() {
        size if size >= 100_000.0 => 0,
        size if size >= 1_000.0 => 2,
        size if size >= 10.0 => 4,
        _ => 5,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificate::CertificateVerdict;
    use super::super::certificate::tests::sample;
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut certificate = sample();
        certificate.host.processor_model = "A Processor With A Long Name (R) 9999".to_owned();
        certificate.failures.push("word ".repeat(40));
        let wide = CertificateCell::new(
            MeasuredQuantity::Rate,
            (999_999.125, "kbit/s"),
            123_456_789.123,
            [12_345_678.9, 123_456_789.9],
            1,
        )
        .under("a condition with very many words in it");
        certificate.cells.push(wide);
        for line in table(&certificate).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn misses_and_published_values_are_in_the_table() {
        let text = table(&sample());
        assert!(text.contains("! loss 0.05 percent, bursts of 5: not 0.05 inside"));
        assert!(text.contains("1 of 2 cells miss a bar."));
        // 59.56 kbit/s for 64.
        assert!(text.contains("-6.94"), "{text}");
    }

    #[test]
    fn excused_miss_is_named_and_the_certificate_stands() {
        let mut certificate = sample();
        let right = |at: u32| {
            let at = f64::from(at);
            CertificateCell::new(MeasuredQuantity::Loss, (at, "percent"), at, [at, at], 1)
                .must_by_chance("inside", true, 0.5)
        };
        certificate.cells = (1..50).map(right).collect();
        certificate.cells[0] = CertificateCell::new(
            MeasuredQuantity::Loss,
            (0.05, "percent"),
            0.06,
            [0.0, 0.1],
            1,
        )
        .must_by_chance("0.05 inside the 99.9 % interval", false, 0.000_9);
        let verdict = CertificateVerdict::of(&certificate.cells);
        certificate.within_bars = verdict.all_within(&certificate.cells);
        certificate.chance = Some(verdict);
        let text = table(&certificate);
        assert!(
            text.contains("! loss 0.05 percent: not 0.05 inside"),
            "{text}"
        );
        assert!(
            text.contains("1 of 49 cells miss a bar, as chance"),
            "{text}"
        );
        assert!(text.ends_with("It stands.\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn numbers_lose_their_trailing_zeros_only() {
        assert_eq!(number(100.0), "100");
        assert_eq!(number(0.05), "0.05");
        assert_eq!(number(155.52), "155.52");
        assert_eq!(number(1_000_000.0), "1000000");
    }
}
