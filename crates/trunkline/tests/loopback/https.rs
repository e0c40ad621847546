//! Two nodes that intercept HTTPS: what curl gets of a TLS server, by both versions of HTTP.
//!
//! ```text
//!  curl ═TLS═ SOCKS ── near node (leaf of our authority) ══ far node ═TLS═ server at port 443
//! ```

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use vocab::SeededRandom;

use crate::sites::{PATIENCE, TestSites};

const NAME: &str = "wiki.corp.example";
const PORT: u16 = 443;

/// Validity of the server's certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CertificateValidity {
    Valid,
    Expired,
}

/// Two nodes, a server, and what curl needs.
struct HttpsSites {
    sites: TestSites,
    address: Ipv4Addr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl HttpsSites {
    /// `None` where this test may not listen at the port for HTTPS.
    fn start(test: u8, validity: CertificateValidity) -> Option<Self> {
        let sites = TestSites::new(test, "400Mbit");
        let address = sites.far();
        let listener = match TcpListener::bind((address, PORT)) {
            Ok(listener) => listener,
            Err(error) => {
                let said = format!("skipped a test of HTTPS: port {PORT}: {error}\n");
                let _ = io::stderr().write_all(said.as_bytes());
                return None;
            }
        };
        let (config, authority) = server_config(validity);
        fs::write(sites.path_of("origin.pem"), &authority).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, log) = (Arc::clone(&config), Arc::clone(&log));
                // Whatever breaks shows at the client.
                thread::spawn(move || serve(stream, config, &log));
            }
        });
        let out = sites.path_of("authority");
        let mut make = Command::new(env!("CARGO_BIN_EXE_trunkline"));
        make.args([
            "http",
            "ca",
            "--name",
            "Corp",
            "--permit",
            "corp.example",
            "--out",
        ]);
        let made = make.arg(&out).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let near = format!(
            "\n[http]\nmode = \"on\"\n[http.tls]\nintercept = [\"*.corp.example\"]\n\
             ca_certificate = \"{0}/ca.pem\"\nca_key = \"{0}/ca.key\"\nstore_decrypted = true\n",
            out.display()
        );
        let far = format!(
            "\n[http]\nmode = \"on\"\n[http.tls]\nroots = \"{}\"\nstore_decrypted = true\n",
            sites.path_of("origin.pem").display()
        );
        for (node, text) in [("near", near), ("far", far)] {
            sites.configure(node, &text);
            sites.ask(node, &["node", "reload"], "");
        }
        let both = [
            fs::read(out.join("ca.pem")).unwrap(),
            authority.into_bytes(),
        ]
        .concat();
        fs::write(sites.path_of("both.pem"), both).unwrap();
        sites.wait_for("near", |path| path["carries"] == "udp");
        Some(Self {
            sites,
            address,
            asked,
        })
    }

    /// Runs curl with these roots and arguments.
    fn curl(&self, roots: &str, arguments: &[&str]) -> Output {
        let socks = self.sites.socks().to_string();
        let resolve = format!("{NAME}:{PORT}:{}", self.address);
        let limit = PATIENCE.as_secs().to_string();
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "--max-time",
            &limit,
            "--socks5",
            &socks,
            "--resolve",
            &resolve,
        ]);
        curl.arg("--cacert").arg(self.sites.path_of(roots));
        curl.args(arguments).output().unwrap()
    }

    fn ours(&self) -> &'static str {
        "authority/ca.pem"
    }

    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Returns the output of `why` for the near node's last flow.
    fn why(&self) -> String {
        let flows = self.sites.ask("near", &["node", "flows", "--json"], "");
        let flows: serde_json::Value = serde_json::from_str(&flows).unwrap();
        let flows = flows["flows"].as_array().unwrap();
        let newest = flows
            .iter()
            .max_by_key(|flow| flow["flow"].as_u64())
            .unwrap();
        let number = newest["flow"].to_string();
        let why = self.sites.ask("near", &["node", "why", &number], "");
        // It is wrapped for a terminal.
        why.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// A server's configuration, and its authority's certificate.
fn server_config(validity: CertificateValidity) -> (Arc<ServerConfig>, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate for self-signed if it has its issuer's name.
    let named = &mut authority.distinguished_name;
    named.push(DnType::CommonName, "Origin authority");
    let certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    if validity == CertificateValidity::Expired {
        leaf.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let chain = vec![CertificateDer::from(leaf.der().to_vec())];
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    (Arc::new(config), certificate.pem())
}

/// The body of a resource: its name ends in its length.
fn content(target: &str) -> Vec<u8> {
    let digits = target.trim_start_matches(|c: char| !c.is_ascii_digit());
    let mut content = vec![0; digits.parse().unwrap()];
    SeededRandom::from_seed(target.len() as u64).fill(&mut content);
    content
}

/// Answers the requests of one connection.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, log: &Mutex<Vec<String>>) -> Option<()> {
    let connection = ServerConnection::new(config).ok()?;
    let mut reader = BufReader::new(StreamOwned::new(connection, stream));
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            (reader.read_line(&mut line).ok()? > 0).then_some(())?;
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let target = lines.first()?.split(' ').nth(1)?.to_owned();
        let length = lines
            .iter()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap_or(0))];
        io::Read::read_exact(&mut reader, &mut body).ok()?;
        log.lock().unwrap().push(target.clone());
        let answer = match body.is_empty() {
            true => content(&target),
            false => body,
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nCache-Control: max-age=600\r\n\r\n",
            answer.len()
        );
        let out = reader.get_mut();
        out.write_all(head.as_bytes()).ok()?;
        out.write_all(&answer).ok()?;
        out.flush().ok()?;
    }
}

fn saved(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

#[test]
fn curl_gets_identical_bytes_by_both_versions() {
    let Some(https) = HttpsSites::start(30, CertificateValidity::Valid) else {
        return;
    };
    let file = https.sites.path_of("got");
    let file_name = file.display().to_string();
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        for target in ["/page-30000", "/big-3000000"] {
            let url = format!("https://{NAME}{target}");
            let arguments = [
                flag,
                "-w",
                "%{http_version} %{http_code}",
                "-o",
                &file_name,
                &url,
            ];
            let output = https.curl(https.ours(), &arguments);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(
                said,
                format!("{version} 200"),
                "{output:?} {}",
                https.sites.log("near")
            );
            assert!(saved(&file) == content(target), "{target} by {version}");
        }
    }
    // The second version was answered out of the cache that the first one filled.
    assert_eq!(https.take_asked(), ["/page-30000", "/big-3000000"]);
    let why = https.why();
    assert!(
        why.contains("decrypted TLS for wiki.corp.example (h2"),
        "{why}"
    );
}

#[test]
fn many_streams_of_one_client_are_whole() {
    let Some(https) = HttpsSites::start(25, CertificateValidity::Valid) else {
        return;
    };
    let mut arguments = vec![
        "--http2".to_owned(),
        "-Z".to_owned(),
        "--no-progress-meter".to_owned(),
    ];
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for number in 0..40 {
        let target = format!("/part-{}", 10_000 + 7_919 * number);
        let file = https.sites.path_of(&format!("part{number}"));
        arguments.extend(["-o".to_owned(), file.display().to_string()]);
        arguments.push(format!("https://{NAME}{target}"));
        files.push((file, target));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = https.curl(https.ours(), &arguments);
    assert!(output.status.success(), "{output:?}");
    for (file, target) in files {
        assert!(saved(&file) == content(&target), "{target}");
    }
}

#[test]
fn uploads_pass_by_both_versions() {
    let Some(https) = HttpsSites::start(26, CertificateValidity::Valid) else {
        return;
    };
    let upload = https.sites.path_of("upload");
    let body = content("/upload-2000000");
    fs::write(&upload, &body).unwrap();
    let data = format!("@{}", upload.display());
    let file = https.sites.path_of("got");
    let file_name = file.display().to_string();
    let url = format!("https://{NAME}/echo");
    for flag in ["--http1.1", "--http2"] {
        let arguments = [
            flag,
            "-H",
            "Expect:",
            "-H",
            "content-length: 2000000",
            "--data-binary",
            &data,
            "-o",
            &file_name,
            &url,
        ];
        let output = https.curl(https.ours(), &arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(saved(&file) == body, "{flag}");
    }
}

/// Exit code 60 of curl: the peer's certificate cannot be verified.
#[test]
fn an_expired_origin_stays_expired_for_curl() {
    let Some(https) = HttpsSites::start(27, CertificateValidity::Expired) else {
        return;
    };
    for _ in 0..2 {
        let output = https.curl("both.pem", &[&format!("https://{NAME}/page-10")]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(60), "{said}");
        assert!(said.contains("expired"), "{said}");
        let why = https.why();
        assert!(why.contains("certificate invalid"), "{why}");
    }
    assert_eq!(https.take_asked(), [""; 0]);
}

#[test]
fn a_pinned_client_is_left_alone_after_its_alert() {
    let Some(https) = HttpsSites::start(28, CertificateValidity::Valid) else {
        return;
    };
    let url = format!("https://{NAME}/page-30000");
    let file = https.sites.path_of("got");
    let file_name = file.display().to_string();
    let refused = https.curl("origin.pem", &[&url]);
    assert_eq!(refused.status.code(), Some(60), "{refused:?}");
    let why = https.why();
    assert!(why.contains("refused the certificate"), "{why}");
    let output = https.curl("origin.pem", &["-o", &file_name, &url]);
    assert!(output.status.success(), "{output:?}");
    assert!(saved(&file) == content("/page-30000"));
    let why = https.why();
    assert!(why.contains("does not decrypt"), "{why}");
}

#[test]
fn names_that_are_not_listed_pass_untouched() {
    let Some(https) = HttpsSites::start(29, CertificateValidity::Valid) else {
        return;
    };
    let resolve = format!("bank.example:{PORT}:{}", https.address);
    let arguments = ["-k", "--resolve", &resolve, "https://bank.example/page-10"];
    let output = https.curl(https.ours(), &arguments);
    assert_eq!(output.stdout, content("/page-10"), "{output:?}");
    let why = https.why();
    assert!(why.contains("does not list"), "{why}");
}
