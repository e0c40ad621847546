//! Errors of a turn-up test when the other end is faulty, over loopback.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use measure::wire::{ControlMessage, VERSION, frame};

pub(crate) const KEY: &str = "an onyx cat sleeps";

pub(crate) fn measure(arguments: &[&str], key: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command
        .arg("measure")
        .args(arguments)
        .env("TRUNKLINE_MEASURE_KEY", key)
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(port: u16, more: &[&str], key: &str) -> Output {
    let port = port.to_string();
    let arguments = [&["run", "127.0.0.1", "--port", &port][..], more].concat();
    measure(&arguments, key).output().unwrap()
}

/// A server at a port of the system's choice.
pub(crate) struct MeasureServer {
    pub(crate) child: Child,
    says: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl MeasureServer {
    fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(more: &[&str]) -> Self {
        let arguments = [&["server", "--bind=127.0.0.1", "--port=0"][..], more].concat();
        Self::of(&mut measure(&arguments, KEY))
    }

    /// One that this command starts.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut server = Self {
            child,
            says,
            port: 0,
        };
        let line = server.wait_for("listening at port ");
        let words = line.strip_prefix("listening at port ").unwrap();
        server.port = words.split(' ').next().unwrap().parse().unwrap();
        server
    }

    /// The next line with this in it.
    pub(crate) fn wait_for(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.says.read_line(&mut line).unwrap() > 0,
                "it ended before \"{words}\""
            );
            if line.contains(words) {
                return line.trim_end().to_owned();
            }
        }
    }
}

impl Drop for MeasureServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn assert_refused(output: &Output, words: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(words), "{errors}");
}

#[test]
fn missing_or_foreign_server_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let web = std::thread::spawn(move || {
        let (mut stream, _) = taken.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let mut rest = String::new();
        let _ = BufReader::new(stream).read_line(&mut rest);
    });
    assert_refused(&run(port, &[], KEY), "is not a `trunkline measure server`");
    web.join().unwrap();
    assert_refused(&run(port, &[], KEY), "refuses the connection");
    let none = run(port, &["--congestion=nonesuch"], KEY);
    assert_refused(&none, "does not permit the congestion control `nonesuch`");
}

#[test]
fn wrong_key_and_second_test_are_refused() {
    let mut server = MeasureServer::start();
    assert_refused(
        &run(server.port, &[], "a brass owl waits"),
        "the key is not this server's",
    );
    server.wait_for("refused: the key is not this server's");
    let port = server.port.to_string();
    let first = ["run", "127.0.0.1", "--port", &port, "--max-rate=2Mbit"];
    let more = [
        "--duration=2s",
        "--direction=up",
        "--walk=0",
        "--connections=1",
    ];
    let first = measure(&[&first[..], &more].concat(), KEY)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    server.wait_for("a test begins");
    assert_refused(&run(server.port, &[], KEY), "another test is running");
    let first = first.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&first.stdout);
    assert_eq!(first.status.code(), Some(0), "{text}");
    assert!(text.starts_with("MEASURED"), "{text}");
    assert!(text.contains("the most that was offered"), "{text}");
    // A loopback's packets are larger than any that is answered.
    assert!(!text.contains("vanish"), "{text}");
    server.wait_for("the test is over: done");
}

/// A client that dies in mid-test leaves nothing running, and the next one is served.
#[test]
fn dead_client_makes_room_for_the_next() {
    let mut server = MeasureServer::start();
    let port = server.port.to_string();
    let arguments = [
        "run",
        "127.0.0.1",
        "--port",
        &port,
        "--direction=down",
        "--max-rate=5Mbit",
    ];
    for _ in 0..2 {
        let mut client = measure(&arguments, KEY)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        server.wait_for("a test begins");
        client.kill().unwrap();
        client.wait().unwrap();
        server.wait_for("the test is over");
    }
}

/// A server of a later build, which no longer speaks our version.
#[test]
fn server_of_another_version_is_named_with_remedy() {
    let hello = frame(&ControlMessage::Hello {
        oldest: VERSION + 1,
        newest: VERSION + 2,
        nonce: Default::default(),
    });
    let (port, server) = says(hello.to_vec());
    assert_refused(&run(port, &[], KEY), "use the same release at both ends");
    server.join().unwrap();
}

/// Another program accepts the connection and closes it, as a proxy does that cannot reach the
/// server.
#[test]
fn far_end_that_closes_before_greeting_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let proxy = std::thread::spawn(move || drop(listener.accept()));
    assert_refused(&run(port, &[], KEY), "a proxy or firewall on the path");
    proxy.join().unwrap();
}

/// A server that sends this to each client, and reads one line.
fn says(words: impl Into<Vec<u8>>) -> (u16, std::thread::JoinHandle<()>) {
    let words = words.into();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(&words);
        let mut rest = Vec::new();
        let _ = BufReader::new(stream).read_until(0, &mut rest);
    });
    (port, server)
}

#[test]
fn invalid_busy_or_refusing_iperf3_server_is_named() {
    let cases: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no iperf3 server"),
        (b"\xff", "busy with another test"),
        (b"\xfe\0\0\0\x8e\0\0\0\0", "a user name and a password"),
        (b"", "closed the control connection"),
    ];
    for (words, expected) in cases {
        let (port, server) = says(words);
        let port = port.to_string();
        let arguments = ["run", "127.0.0.1", "--iperf3", &port];
        let output = measure(&arguments, "").output().unwrap();
        assert_refused(&output, expected);
        server.join().unwrap();
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    drop(taken);
    let arguments = ["run", "127.0.0.1", "--iperf3", &port];
    let output = measure(&arguments, "").output().unwrap();
    assert_refused(&output, "no iperf3 server listens at this port");
}

/// A service over loopback, in 80 columns, without criteria: it is measured and not judged. A frame
/// that does not hold a tag, or a rate above the server's limit, is reported before anything is
/// sent.
#[test]
fn service_without_criteria_is_not_judged() {
    let server = MeasureServer::start();
    let port = server.port.to_string();
    let common = ["service", "127.0.0.1", "--port", &port, "--direction=up"];
    let small = ["--cir=1Mbit", "--step=1s", "--rest=0", "--frame-sizes=512"];
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("service.html");
    let html = format!("--html={}", page.display());
    let arguments = [&common[..], &small, &[html.as_str()]].concat();
    let mut output = measure(&arguments, KEY).output().unwrap();
    // A host that is too busy to send at the asked rate says so, and measures nothing.
    for _ in 0..4 {
        if !String::from_utf8_lossy(&output.stdout).contains("the sending host kept to") {
            break;
        }
        output = measure(&arguments, KEY).output().unwrap();
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("MEASURED (nothing was stated"), "{text}");
    assert!(
        text.contains("75 % CIR") && text.contains("overshoot"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let written = std::fs::read_to_string(&page).expect("the page is written");
    assert!(written.contains("Information rate, up"), "{written}");
    let much = measure(&[&common[..], &["--cir=2Gbit"]].concat(), KEY);
    assert_refused(
        &{ much }.output().unwrap(),
        "start the server with --max-rate",
    );
    let tiny = measure(
        &[&common[..], &["--cir=1Mbit", "--frame-sizes=64"]].concat(),
        KEY,
    );
    assert_refused(
        &{ tiny }.output().unwrap(),
        "have no space for the tester's packet",
    );
}

/// A threshold that cannot be met is refused before a test of three minutes.
#[test]
fn threshold_above_the_offer_is_refused_first() {
    let server = MeasureServer::start();
    let here = run(server.port, &["--max-rate=5Mbit", "--min-rate=10Mbit"], KEY);
    assert_refused(&here, "is too low to test --min-rate");
    let there = run(server.port, &["--min-rate=2Gbit"], KEY);
    assert_refused(&there, "start the server with --max-rate 3");
}

#[test]
fn help_marks_only_thresholds_as_thresholds() {
    for action in ["run", "service", "throughput"] {
        let output = measure(&[action, "--help"], KEY).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        // An option's text ends at an empty line.
        for option in help.split("\n\n") {
            assert!(option.matches("[default:").count() < 2, "{option}");
        }
        let thresholds = help.split("Thresholds:").nth(1).unwrap_or_default();
        assert!(
            !thresholds.contains("--html") && !thresholds.contains("--json"),
            "{help}"
        );
        assert_eq!(thresholds.contains("--min-rate"), action == "run", "{help}");
    }
}
