//! HTTPS that the nodes decrypt: a client behind the intercepting node, and one that uses it as a proxy (CONNECT).
//!
//! ```text
//!  curl ──TLS── near (leaf of the operator's authority) ══ link ══ far ──TLS── nginx at port 443
//! ```

use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use host::kernel;
use host::process::{LaunchConfig, RunningProcess};
use lab::nodes::{ExtraConfiguration, LabNodes};
use lab::servers::{ServerKind, certificates};
use lab::site::{Lab, WithNodes};
use lab::topology::LabSite;

use crate::setting::{publish, shared_turn, standing};

const NAME: &str = "wiki.corp.example";
const TLS_PORT: u16 = 443;
const PROXY_PORT: u16 = 3128;
const START_LIMIT: Duration = Duration::from_secs(20);
const LINK: &str = "rate=100Mbit,delay=5ms,queue=1MB";
/// Exit code of curl: the certificate is not of a trusted authority.
const UNTRUSTED: Option<i32> = Some(60);

/// Sites with nginx at port 443, and nodes that intercept it. Dropping it ends the processes first.
struct HttpsLab {
    nodes: LabNodes,
    _server: RunningProcess,
    /// Certificates of the server's authority and of the operator's.
    origin_authority: PathBuf,
    authority: PathBuf,
    lab: Lab,
}

impl HttpsLab {
    fn start() -> Self {
        let mut lab = standing(LINK, WithNodes::No, &[LabSite::Near, LabSite::Far]);
        let home = lab.run().subdirectory("tls").expect("a directory");
        let origin_authority = certificates::make(&home, NAME).expect("openssl makes certificates");
        let authority = home.join("authority");
        let made = Command::new(env!("CARGO_BIN_EXE_trunkline"))
            .args(["http", "ca", "--name", "Corp", "--permit", "corp.example"])
            .arg("--out")
            .arg(&authority)
            .output()
            .expect("the program starts");
        assert!(made.status.success(), "{made:?}");
        let server = start_nginx(&mut lab, &home);
        let mut nodes =
            LabNodes::prepare(lab.run(), lab.topology(), lab.logs()).expect("they are configured");
        let lines = [
            "[proxy]".to_owned(),
            format!("http_connect = \"0.0.0.0:{PROXY_PORT}\""),
            "[http]".to_owned(),
            "mode = \"on\"".to_owned(),
            "[http.tls]".to_owned(),
            "intercept = [\"*.corp.example\"]".to_owned(),
            format!("ca_certificate = {:?}", authority.join("ca.pem")),
            format!("ca_key = {:?}", authority.join("ca.key")),
            format!("roots = {origin_authority:?}"),
            "store_decrypted = true".to_owned(),
        ];
        let extras = ExtraConfiguration {
            // Flows that have just ended do not keep nodes waiting that stop.
            node: vec!["grace = \"1s\"".to_owned()],
            accelerators: lines.to_vec(),
            ..ExtraConfiguration::default()
        };
        nodes
            .configure(lab.topology(), &extras)
            .expect("their files can be written");
        nodes.start(lab.run()).expect("they start");
        Self {
            nodes,
            _server: server,
            origin_authority,
            authority: authority.join("ca.pem"),
            lab,
        }
    }

    /// Runs curl at the client with one trusted authority.
    fn curl(&self, authority: &Path, words: &[&str]) -> Output {
        let mut curl = Command::new("curl");
        curl.args(["--disable", "--silent", "--show-error", "--max-time", "20"])
            .arg("--cacert")
            .arg(authority)
            .args(words);
        let namespace = self.lab.topology().namespace_file("client");
        kernel::prepare_child(&mut curl, Some(&namespace)).expect("the namespace is there");
        curl.output().expect("curl starts")
    }

    /// Why the near node's newest flow was treated as it was.
    fn why(&self) -> String {
        let flows = self.nodes.flows(LabSite::Near).expect("the node answers");
        let numbers = flows.iter().filter_map(|flow| flow["flow"].as_u64());
        let newest = numbers.max().expect("there was a flow");
        let why = self.nodes.why(LabSite::Near, newest);
        why.expect("the node answers").to_string()
    }
}

/// nginx with TLS in the place of the far site's server.
fn start_nginx(lab: &mut Lab, home: &Path) -> RunningProcess {
    let files = lab.servers().files().to_owned();
    let configuration = home.join("nginx.conf");
    let (shown, files) = (home.display(), files.display());
    let text = format!(
        "user root;\ndaemon off;\nmaster_process off;\npid {shown}/pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 256; }}\nhttp {{\naccess_log off;\n\
         client_body_temp_path {shown}/body;\nproxy_temp_path {shown}/proxy;\n\
         fastcgi_temp_path {shown}/fastcgi;\nuwsgi_temp_path {shown}/uwsgi;\n\
         scgi_temp_path {shown}/scgi;\nserver {{\nlisten {TLS_PORT} ssl http2;\n\
         server_name {NAME};\nssl_certificate {shown}/leaf.pem;\n\
         ssl_certificate_key {shown}/leaf.key;\nroot {files};\n\
         add_header Cache-Control no-store;\n}}\n}}\n"
    );
    fs::write(&configuration, text).expect("the run's directory can be written");
    let role = LabSite::Far.host();
    let launch = LaunchConfig {
        name: "https",
        namespace: &lab.topology().namespace(role),
        program: Path::new("nginx"),
        logs: lab.logs(),
    };
    let arguments = [
        OsStr::new("-c"),
        configuration.as_os_str(),
        OsStr::new("-p"),
        home.as_os_str(),
        OsStr::new("-e"),
        OsStr::new("stderr"),
    ];
    let mut process = RunningProcess::start(lab.run(), &launch, arguments).expect("nginx is there");
    let address = SocketAddr::from((LabSite::Far.host_address(), TLS_PORT));
    let namespace = lab.topology().namespace_file(role);
    let is_ready = || {
        let connect = || TcpStream::connect_timeout(&address, START_LIMIT).map(drop);
        Ok(kernel::in_network_namespace(&namespace, connect).is_ok())
    };
    process
        .wait_ready(START_LIMIT, "to accept connections", is_ready)
        .expect("nginx comes up");
    process
}

#[test]
fn https_is_decrypted_transparently_and_by_connect() {
    let Some(_turn) = shared_turn("intercepted HTTPS", &[ServerKind::Http]) else {
        return;
    };
    let mut https = HttpsLab::start();
    let content = publish(&mut https.lab, "file", 500_000, 28);
    let got = https.lab.logs().join("got");
    let target = got.display().to_string();
    let address = LabSite::Far.host_address();
    let resolve = format!("{NAME}:{TLS_PORT}:{address}");
    let connect_to = format!("{NAME}:{TLS_PORT}:{address}:{TLS_PORT}");
    let proxy = format!("http://{}:{PROXY_PORT}", LabSite::Near.gateway());
    let url = format!("https://{NAME}/file");
    let transparent = ["--noproxy", "*", "--resolve", &resolve];
    let explicit = ["--proxy", &proxy, "--connect-to", &connect_to];
    for way in [&transparent[..], &explicit] {
        for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let request = [
                flag,
                "-o",
                &target,
                "-w",
                "%{http_version} %{http_code}",
                &url,
            ];
            let output = https.curl(&https.authority, &[way, &request].concat());
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said, format!("{version} 200"), "{way:?} {output:?}");
            assert!(
                fs::read(&got).expect("it was written") == content,
                "{way:?}"
            );
            let why = https.why();
            assert!(why.contains("decrypted TLS for wiki.corp.example"), "{why}");
            fs::remove_file(&got).expect("it was written");
        }
    }
    // Nodes that have just begun leave no client alone.
    for way in [&transparent[..], &explicit] {
        https.nodes.stop().expect("they stop");
        https.nodes.start(https.lab.run()).expect("they start");
        // The client does not see the certificate of the server.
        let output = https.curl(&https.origin_authority, &[way, &[url.as_str()]].concat());
        assert_eq!(output.status.code(), UNTRUSTED, "{way:?} {output:?}");
        // A client that has refused the node's certificate speaks with the server itself.
        let request = ["-o", &target, &url];
        let output = https.curl(&https.origin_authority, &[way, &request].concat());
        assert!(output.status.success(), "{way:?} {output:?}");
        assert!(
            fs::read(&got).expect("it was written") == content,
            "{way:?}"
        );
    }
}
