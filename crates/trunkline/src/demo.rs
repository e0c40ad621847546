//! `trunkline demo`: two sites, an emulated WAN, real servers, one table with and without
//! Trunkline.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bench::http::{DownloadDemo, PageDemo};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use lab::campaign::{
    self, CampaignOptions, CampaignPlan, CampaignResults, CampaignSeeds, LabLink, PassKind,
    PlanTest, WorkloadName,
};
use lab::report;
use lab::workload::WorkloadKind;
use serde_json::{Value, json};

use crate::environment::environment;
use crate::progress::progress;
use crate::{demo_download, demo_page};

/// Compares HTTP, FTP and file shares over an emulated WAN with and without Trunkline.
///
/// Two sites are built of network namespaces, with real servers (nginx, vsftpd, Samba) and their
/// usual clients. The published file set of a 2009 WAAS report is transferred four times: without
/// Trunkline, with empty dictionaries, once more, and with 1 % of each file changed. Everything
/// that was created is removed at the end. It needs root, or unprivileged user namespaces.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Changes settings of the emulated link. The default settings of the link are
    /// rate=10Mbit,delay=15ms,queue=125kB,loss=0%. A setting whose name ends in _back (such as
    /// rate_back=) applies only to the direction from server to client.
    #[arg(
        long,
        value_name = "LINK",
        default_value = "",
        hide_default_value = true
    )]
    link: LabLink,
    /// Sets the seed of the files' contents and of the emulated link [default: a seed from the
    /// clock].
    #[arg(long)]
    seed: Option<u64>,
    /// Repeats every measurement this many times. The printed table shows the medians.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Runs only these workloads, for example http-download.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = workload())]
    workload: Vec<DemoWorkload>,
    /// Transfers only these files of the demo, for example 2M.doc and 50K.xls.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    files: Vec<String>,
    /// Measures only in these states: baseline (without nodes), cold (empty dictionaries), warm
    /// (the dictionaries contain the files), edited (1 % of each file is changed).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = pass)]
    passes: Vec<PassKind>,
    #[command(flatten)]
    output: OutputArguments,
}

/// Destinations of the results.
#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Writes the results as JSON to FILE. Without FILE, the demo prints the results as JSON on
    /// standard output instead of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Writes the HTML report of the demo to this file.
    #[arg(long, value_name = "FILE", default_value = "trunkline-demo.html")]
    pub(crate) report: PathBuf,
    /// Saves packet captures, server logs, hashes and raw results in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// A workload of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoWorkload {
    /// Transfers of the published file set.
    Files(WorkloadKind),
    /// The load of a web page.
    PageLoad,
    /// A download by HTTPS that the nodes decrypt.
    HttpsDownload,
}

/// Results beside those of the published file set; `None` where a workload was not chosen.
#[derive(Debug, Default)]
pub(crate) struct WebResults {
    page: Option<PageDemo>,
    download: Option<DownloadDemo>,
}

/// Parser for the name of a workload; the help lists all names.
fn workload() -> impl TypedValueParser<Value = DemoWorkload> {
    let files = WorkloadKind::ALL.map(WorkloadKind::name);
    let web = [demo_page::PAGE_LOAD, demo_download::HTTPS_DOWNLOAD];
    let names = files.into_iter().chain(web);
    PossibleValuesParser::new(names).map(|name| match name.as_str() {
        demo_page::PAGE_LOAD => DemoWorkload::PageLoad,
        demo_download::HTTPS_DOWNLOAD => DemoWorkload::HttpsDownload,
        name => DemoWorkload::Files(name.parse().expect("every name is parsed back")),
    })
}

fn pass(text: &str) -> Result<PassKind> {
    let Some(pass) = PassKind::ALL.into_iter().find(|pass| pass.name() == text) else {
        bail!("`{text}` is not a pass; the passes are baseline, cold, warm and edited");
    };
    Ok(pass)
}

impl DemoArguments {
    /// Runs the demo.
    ///
    /// # Errors
    /// Fails when a requirement is missing, a step fails, or a file did not arrive identical.
    pub(crate) fn run(self) -> Result<()> {
        host::kernel::catch_interruptions();
        let is_chosen = |workload| self.workload.is_empty() || self.workload.contains(&workload);
        let workloads: Vec<WorkloadKind> = WorkloadKind::ALL
            .into_iter()
            .filter(|kind| is_chosen(DemoWorkload::Files(*kind)))
            .collect();
        let mut web = WebResults::default();
        if is_chosen(DemoWorkload::PageLoad) {
            web.page = Some(demo_page::load(&self.link, self.repeat)?);
        }
        if is_chosen(DemoWorkload::HttpsDownload) {
            web.download = Some(demo_download::download(&self.link, self.repeat)?);
        }
        if workloads.is_empty() {
            return write_web(&web, &self.output);
        }
        let plan = CampaignPlan {
            title: "Two sites over an emulated WAN, with and without Trunkline".to_owned(),
            repeats: self.repeat,
            passes: match self.passes.is_empty() {
                true => PassKind::ALL.to_vec(),
                false => PassKind::ALL
                    .into_iter()
                    .filter(|pass| self.passes.contains(pass))
                    .collect(),
            },
            tests: vec![PlanTest {
                link: self.link,
                workloads: workloads.into_iter().map(WorkloadName).collect(),
                files: self.files,
            }],
        };
        measure(&plan, self.seed, &web, &self.output)
    }
}

/// Runs a plan and writes its results to their destinations.
fn measure(
    plan: &CampaignPlan,
    seed: Option<u64>,
    web: &WebResults,
    output: &OutputArguments,
) -> Result<()> {
    host::kernel::catch_interruptions();
    let clock = clock();
    let seeds = CampaignSeeds {
        files: seed.unwrap_or(clock),
        edits: clock,
        link: seed.unwrap_or(clock),
    };
    let progress = progress();
    let options = CampaignOptions {
        seeds,
        keep: output.keep.clone(),
        certificate: crate::emulate::calibrate::citation(),
    };
    let result = campaign::execute(&environment()?, plan, &options, &progress);
    progress.finish();
    let results = result?;
    write(&results, web, output)?;
    let faults = results.faults();
    if !faults.is_empty() {
        bail!(
            "{} transfers delivered content that differs from the original",
            faults.len()
        );
    }
    Ok(())
}

/// Writes JSON to its destination; true if that is standard output, where no table is to be then.
fn write_json(document: &Value, output: &OutputArguments) -> Result<bool> {
    let Some(path) = &output.json else {
        return Ok(false);
    };
    let text = serde_json::to_string_pretty(document)?;
    if path == Path::new("-") {
        say!("{text}");
        return Ok(true);
    }
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(false)
}

impl WebResults {
    fn add_to(&self, document: &mut Value) {
        if let Some(page) = &self.page {
            document["page_load"] = demo_page::json(page);
        }
        if let Some(download) = &self.download {
            document["https_download"] = demo_download::json(download);
        }
    }

    fn tables(&self) -> Vec<String> {
        let page = self.page.as_ref().map(demo_page::table);
        let download = self.download.as_ref().map(demo_download::table);
        page.into_iter().chain(download).collect()
    }
}

/// Writes the page load and the HTTPS download alone.
fn write_web(web: &WebResults, output: &OutputArguments) -> Result<()> {
    let mut document = json!({});
    web.add_to(&mut document);
    if !write_json(&document, output)? {
        show!("{}", web.tables().join("\n"));
    }
    Ok(())
}

/// Writes table, JSON and HTML.
pub(crate) fn write(
    results: &CampaignResults,
    web: &WebResults,
    output: &OutputArguments,
) -> Result<()> {
    let mut document = report::json(results);
    web.add_to(&mut document);
    let to_standard_output = write_json(&document, output)?;
    fs::write(&output.report, report::html(results)?)
        .with_context(|| format!("writing {}", output.report.display()))?;
    if !to_standard_output {
        show!("{}", report::table(results));
        for table in web.tables() {
            show!("\n{table}");
        }
        say!(
            "seed {}, edits {} (from the clock), {:.0} s in all",
            results.seeds.files,
            results.seeds.edits,
            results.took_s
        );
        say!("report: {}", output.report.display());
        if let Some(directory) = &output.keep {
            say!("kept: {}", directory.display());
        }
    }
    Ok(())
}

/// A seed that no other run has: microseconds since the Unix epoch.
fn clock() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or_default()
}
