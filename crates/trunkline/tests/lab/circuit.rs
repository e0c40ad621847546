//! A circuit under test: the lab's link with additional filters and queues, the far end of a
//! turn-up test, and the near end's report.
//!
//! ```text
//!  client ── near ══ the link ══ far ── server
//!  near end        filter, queue        far end: `measure server`, or iperf3's
//! ```

use std::fs::File;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use host::command;
use host::kernel;
use lab::recording::{CaptureFiles, MarkerEdge, MarkerPath, PacketRecorder};
use lab::servers::ServerKind;
use lab::site::{Lab, WithNodes};
use lab::topology::LabSite;
use serde_json::Value;

use crate::setting::{TestTurn, standing, turn};

const KEY: &str = "an onyx cat sleeps";
/// Prefix of the names of captures and their markers.
const CAPTURE: &str = "turn-up";

/// Rules that let no UDP through.
pub(crate) const NO_UDP: &str = "table ip closed {
    chain forward {
        type filter hook forward priority 0
        meta l4proto udp drop
    }
}
";

/// A link between two sites, and a test's far end. Fields are dropped in this order: processes
/// before the places that they run in.
pub(crate) struct TestCircuit {
    far_end: Option<FarEnd>,
    lab: Lab,
    server: IpAddr,
    _turn: TestTurn,
}

impl TestCircuit {
    /// Makes a circuit over this link, once it is the test's turn; [`None`] where the lab cannot
    /// run, with a remark on standard error.
    pub(crate) fn over(link: &str, test: &str) -> Option<Self> {
        let turn = turn(test, &[ServerKind::Http])?;
        Some(Self {
            far_end: None,
            lab: standing(link, WithNodes::No, &[LabSite::Near, LabSite::Far]),
            server: LabSite::Far.host_address().into(),
            _turn: turn,
        })
    }

    /// The same, tested over IPv6.
    pub(crate) fn by_ipv6(self) -> Self {
        Self {
            server: LabSite::Far.host_address_v6().into(),
            ..self
        }
    }

    /// Installs these nftables rules on a host of the path.
    pub(crate) fn filter(&self, host: &str, rules: &str) {
        let namespace = self.lab.topology().namespace(host);
        let nft = ["netns", "exec", &namespace, "nft", "-f", "-"];
        command::run_with_input("ip", nft, rules).expect("the rules are taken");
    }

    /// Installs this queueing discipline on a host of the path.
    pub(crate) fn queue(&self, host: &str, device: &str, discipline: &str) {
        let namespace = self.lab.topology().namespace(host);
        let mut tc = vec!["netns", "exec", &namespace];
        tc.extend(["tc", "qdisc", "replace", "dev", device, "root"]);
        tc.extend(discipline.split_whitespace());
        command::run("ip", tc).expect("the discipline is taken");
    }

    /// Starts this program's own far end.
    pub(crate) fn serve(&mut self) {
        let server = self.program("server", "server");
        self.start(server, "ready");
    }

    /// Starts iperf3's own server: a far end that is not ours.
    pub(crate) fn serve_iperf3(&mut self) {
        assert!(
            command::find("iperf3").is_some(),
            "iperf3 is missing: scripts/install.sh test installs it (package iperf3)"
        );
        let mut server = Command::new("iperf3");
        server.args(["--server", "--forceflush"]);
        let namespace = self.lab.topology().namespace_file("server");
        kernel::prepare_child(&mut server, Some(&namespace)).expect("the namespace is there");
        self.start(server, "Server listening");
    }

    fn start(&mut self, mut server: Command, ready: &str) {
        let log = self.far_log();
        let output = File::create(&log).expect("the log can be written");
        let errors = output.try_clone().expect("the log can be shared");
        let child = server.stdout(output).stderr(errors).stdin(Stdio::null());
        self.far_end = Some(FarEnd(child.spawn().expect("the program starts")));
        wait_for(&log, ready);
    }

    /// Log of the far end.
    pub(crate) fn far_log(&self) -> PathBuf {
        self.lab.logs().join("turn-up-server.log")
    }

    /// A file of the test's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.lab.logs().join(name)
    }

    /// Runs a test, `run --direction=up …`, to its end, which must be with this exit code.
    pub(crate) fn measure(&self, test: &str, code: i32) -> TestReport {
        let output = self.near_end(test).output().expect("the program starts");
        TestReport::of(&output, code)
    }

    /// Measures as [`Self::measure`] does, with captures at the near host and on the link.
    pub(crate) fn measure_captured(&self, test: &str, code: i32) -> (TestReport, CaptureFiles) {
        let (run, topology, logs) = (self.lab.run(), self.lab.topology(), self.lab.logs());
        let markers = MarkerPath::open(topology).expect("the markers' sockets open");
        let mut recorder =
            PacketRecorder::start(run, topology, logs, logs, CAPTURE).expect("the captures start");
        let mut mark = |edge| recorder.mark(&markers, edge, CAPTURE);
        mark(MarkerEdge::Begin).expect("the captures run");
        let report = self.measure(test, code);
        mark(MarkerEdge::End).expect("the captures run");
        (report, recorder.finish().expect("the captures end"))
    }

    /// The near end of a test, not yet started.
    pub(crate) fn near_end(&self, test: &str) -> Command {
        let mut near_end = self.program("client", test);
        near_end.arg("--json").arg(self.server.to_string());
        near_end
    }

    fn program(&self, host: &str, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        command
            .arg("measure")
            .args(arguments.split_whitespace())
            .env("TRUNKLINE_MEASURE_KEY", KEY);
        let namespace = self.lab.topology().namespace_file(host);
        kernel::prepare_child(&mut command, Some(&namespace)).expect("the namespace is there");
        command
    }

    /// The lab that it is in.
    pub(crate) fn lab(&mut self) -> &mut Lab {
        &mut self.lab
    }
}

/// A server, ended when dropped.
struct FarEnd(Child);

impl Drop for FarEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a log contains these words.
pub(crate) fn wait_for(log: &Path, words: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    let has = || std::fs::read_to_string(log).is_ok_and(|text| text.contains(words));
    while !has() {
        assert!(Instant::now() < until, "nobody said \"{words}\"");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Report of the near end; its fields by their names.
pub(crate) struct TestReport {
    document: Value,
    errors: String,
}

impl TestReport {
    /// Report printed by a process that ended with this exit code.
    pub(crate) fn of(output: &Output, code: i32) -> Self {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {errors}"));
        let reasons = &document["reasons"];
        assert_eq!(output.status.code(), Some(code), "{reasons}: {errors}");
        Self { document, errors }
    }

    /// Text on standard error.
    pub(crate) fn errors(&self) -> &str {
        &self.errors
    }

    /// All of a direction.
    pub(crate) fn way(&self, way: &str) -> &Value {
        &self["directions"][way]
    }

    /// The causes that are named.
    pub(crate) fn causes(&self) -> Vec<&str> {
        let findings = list(self, "diagnosis").iter();
        findings.map(|finding| text(finding, "cause")).collect()
    }

    /// Finding with this cause.
    pub(crate) fn finding(&self, cause: &str) -> Option<&Value> {
        let mut findings = list(self, "diagnosis").iter();
        findings.find(|finding| finding["cause"] == cause)
    }

    /// Why it ended as it did.
    pub(crate) fn reason(&self) -> &str {
        self["reasons"][0].as_str().expect("a reason")
    }

    /// Remarks for the reader.
    pub(crate) fn remarks(&self) -> Vec<&str> {
        let remarks = list(self, "remarks").iter();
        remarks.map(|one| one.as_str().expect("words")).collect()
    }

    /// The baseline RTT in milliseconds, over a link of that delay both ways.
    pub(crate) fn baseline_rtt_ms(&self, delay_ms: f64) -> f64 {
        let rtt = number(self, "baseline_rtt_ms");
        assert!(
            rtt >= 2.0 * delay_ms,
            "both delays are {delay_ms} ms: {rtt}"
        );
        rtt
    }
}

impl Deref for TestReport {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.document
    }
}

/// A number that must be there.
pub(crate) fn number(of: &Value, name: &str) -> f64 {
    let found = of[name].as_f64();
    found.unwrap_or_else(|| panic!("no number {name}: {of}"))
}

/// A count that must be there.
pub(crate) fn count(of: &Value, name: &str) -> u64 {
    let found = of[name].as_u64();
    found.unwrap_or_else(|| panic!("no count {name}: {of}"))
}

/// A list that must be there.
pub(crate) fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    let found = of[name].as_array();
    found.unwrap_or_else(|| panic!("no list {name}: {of}"))
}

/// Text value of a key that must exist.
pub(crate) fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    let found = of[name].as_str();
    found.unwrap_or_else(|| panic!("no words {name}: {of}"))
}

/// TCP efficiency as RFC 6349 §4.2 has it, of the bytes that the same run counted.
pub(crate) fn assert_efficiency(run: &Value) {
    let (sent, again) = (
        number(run, "sent_bytes"),
        number(run, "retransmitted_bytes"),
    );
    let efficiency = number(run, "tcp_efficiency_percent");
    assert!(
        (efficiency - (sent - again) / sent * 100.0).abs() < 1e-9,
        "{run}"
    );
}
