//! A real browser without a window: Chromium, driven by its DevTools protocol.
//!
//! ```text
//!  lab ──fd 3: commands──► chromium --remote-debugging-pipe      messages are JSON and end with a zero byte
//!      ◄─fd 4: answers and events──
//! ```
//! A [`HeadlessBrowser`] has a fresh profile: it knows no page, no connection and no TLS session. [`HeadlessBrowser::load`] opens one
//! page and says when its last object had come, by the browser's own clock, and what each object held.
//!
//! It resolves one name, to the given address, and makes no other request.

mod base64;
mod devtools;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use devtools::{DevToolsMessage, DevToolsPipe};
use host::command;

/// The names under which distributions install Chromium.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Time limit for a page: many times what the slowest link of the lab needs for a megabyte.
const LOAD_LIMIT: Duration = Duration::from_secs(120);

/// Time limit for the browser's answer to a command, beside a page's own time.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Chromium's own traffic, first-run pages and helpers, which would be measured with the page. HTTPS upgrades
/// would ask port 443 first.
const OPTIONS: [&str; 15] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,OptimizationHints,MediaRouter",
    "--window-size=1280,1024",
    "--remote-debugging-pipe",
];

/// Place in which a browser runs, and the addresses that it may reach.
#[derive(Clone, Copy, Debug)]
pub struct BrowserPlace<'a> {
    /// The network namespace's file.
    pub namespace: &'a Path,
    /// A directory for profiles and messages.
    pub directory: &'a Path,
    /// The one name that resolves, and its address.
    pub site: (&'a str, Ipv4Addr),
    /// Takes any certificate; [`LoadedPage::issuers`] says whose they were.
    pub takes_any_certificate: bool,
}

/// A browser with a fresh profile; dropping it ends it and removes the profile.
#[derive(Debug)]
pub struct HeadlessBrowser {
    tools: DevToolsPipe,
    session: String,
    profile: PathBuf,
}

/// An object as the browser received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedObject {
    /// The status of its response.
    pub status: u64,
    /// The protocol of its connection, as ALPN names it.
    pub protocol: String,
    /// Its content without content codings.
    pub body: Vec<u8>,
}

/// A page that was loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedPage {
    /// Seconds from the navigation's request to the end of the load, or of the last object if that came later.
    pub seconds: f64,
    /// Objects by their URLs' paths.
    pub objects: BTreeMap<String, LoadedObject>,
    /// Objects that failed, with the browser's reasons.
    pub failures: Vec<String>,
    /// Issuers of the certificates; empty without TLS.
    pub issuers: Vec<String>,
    /// A picture of the page, as PNG.
    pub screenshot: Vec<u8>,
}

/// Chromium, if it is installed.
#[must_use]
pub fn find() -> Option<PathBuf> {
    PROGRAMS.iter().find_map(|program| command::find(program))
}

impl HeadlessBrowser {
    /// Starts a browser with a fresh profile.
    ///
    /// # Errors
    /// When there is no Chromium, or it does not answer.
    pub fn start(place: &BrowserPlace<'_>, name: &str) -> Result<Self> {
        let program = find().context("there is no Chromium (apt-get install chromium)")?;
        let profile = place.directory.join(format!("profile-{name}"));
        let log = place.directory.join("chromium.log");
        let (host, address) = place.site;
        let mut options: Vec<String> = OPTIONS.map(str::to_owned).to_vec();
        options.push(format!("--user-data-dir={}", profile.display()));
        options.push(format!(
            "--host-resolver-rules=MAP {host} {address}, MAP * ~NOTFOUND"
        ));
        if place.takes_any_certificate {
            options.push("--ignore-certificate-errors".to_owned());
        }
        options.push("about:blank".to_owned());
        let mut tools = DevToolsPipe::start(&program, &options, place.namespace, &log)?;
        let mut target = tools.ask(
            None,
            "Target.createTarget",
            &json!({ "url": "about:blank" }),
            ANSWER_LIMIT,
        )?;
        let attach = json!({ "targetId": target["targetId"].take(), "flatten": true });
        let attached = tools.ask(None, "Target.attachToTarget", &attach, ANSWER_LIMIT)?;
        let session = attached["sessionId"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let mut browser = Self {
            tools,
            session,
            profile,
        };
        let buffers =
            json!({ "maxTotalBufferSize": 100_000_000, "maxResourceBufferSize": 50_000_000 });
        browser.ask("Network.enable", &buffers)?;
        browser.ask("Page.enable", &json!({}))?;
        Ok(browser)
    }

    /// Loads a page of so many objects.
    ///
    /// # Errors
    /// When the browser fails, or the page is not there within two minutes.
    pub fn load(&mut self, url: &str, objects: usize) -> Result<LoadedPage> {
        let mut watch = PageWatch::default();
        self.tools
            .tell(Some(&self.session), "Page.navigate", &json!({ "url": url }))?;
        let until = Instant::now() + LOAD_LIMIT;
        while !watch.is_complete(objects) {
            match self.tools.next_message(until)? {
                DevToolsMessage::Event { method, parameters } => watch.handle(&method, &parameters),
                DevToolsMessage::Answer { result, .. } => {
                    if let Some(error) = result["errorText"].as_str() {
                        bail!("{url}: {error}");
                    }
                }
            }
        }
        self.collect(watch)
    }

    fn collect(&mut self, watch: PageWatch) -> Result<LoadedPage> {
        let mut objects = BTreeMap::new();
        for (id, request) in &watch.requests {
            if !request.is_finished {
                continue;
            }
            let asked = json!({ "requestId": id });
            let answer = self.ask("Network.getResponseBody", &asked)?;
            let text = answer["body"].as_str().unwrap_or_default();
            let body = match answer["base64Encoded"].as_bool() {
                Some(true) => base64::decode(text).context("a body that is no base64")?,
                _ => text.as_bytes().to_vec(),
            };
            let object = LoadedObject {
                status: request.status,
                protocol: request.protocol.clone(),
                body,
            };
            objects.insert(request.path.clone(), object);
        }
        let picture = self.ask("Page.captureScreenshot", &json!({ "format": "png" }))?;
        let picture = picture["data"].as_str().unwrap_or_default();
        Ok(LoadedPage {
            seconds: watch.seconds().context("the page has no begin or no end")?,
            objects,
            failures: watch.failures,
            issuers: watch.issuers,
            screenshot: base64::decode(picture).context("a picture that is no base64")?,
        })
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.tools
            .ask(Some(&self.session), method, parameters, ANSWER_LIMIT)
    }
}

impl Drop for HeadlessBrowser {
    fn drop(&mut self) {
        self.tools.end();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Events of a page so far.
#[derive(Debug, Default)]
struct PageWatch {
    /// Requests by the browser's ids.
    requests: BTreeMap<String, PageRequest>,
    failures: Vec<String>,
    issuers: Vec<String>,
    /// Time at which the page's own request was sent, by the browser's clock, in seconds.
    began: Option<f64>,
    /// Time of the load event.
    loaded: Option<f64>,
    /// Time at which the last object arrived.
    last: f64,
    ended: usize,
}

#[derive(Debug, Default)]
struct PageRequest {
    path: String,
    status: u64,
    protocol: String,
    is_finished: bool,
}

impl PageWatch {
    fn handle(&mut self, method: &str, event: &Value) {
        let id = event["requestId"].as_str().unwrap_or_default().to_owned();
        let at = event["timestamp"].as_f64().unwrap_or_default();
        match method {
            "Network.requestWillBeSent" => {
                let url = event["request"]["url"].as_str().unwrap_or_default();
                // What is in the page itself asks nobody.
                let Some(path) = path_of(url) else {
                    return;
                };
                self.began.get_or_insert(at);
                let request = self.requests.entry(id).or_default();
                path.clone_into(&mut request.path);
            }
            "Network.responseReceived" => {
                let response = &event["response"];
                if let Some(request) = self.requests.get_mut(&id) {
                    request.status = response["status"].as_u64().unwrap_or_default();
                    let protocol = response["protocol"].as_str().unwrap_or_default();
                    protocol.clone_into(&mut request.protocol);
                }
                let issuer = response["securityDetails"]["issuer"].as_str();
                let issuer = issuer.map(str::to_owned);
                self.issuers
                    .extend(issuer.filter(|issuer| !self.issuers.contains(issuer)));
            }
            "Network.loadingFinished" | "Network.loadingFailed" => {
                let Some(request) = self.requests.get_mut(&id) else {
                    return;
                };
                self.ended += 1;
                self.last = self.last.max(at);
                if method == "Network.loadingFinished" {
                    request.is_finished = true;
                } else {
                    let reason = event["errorText"].as_str().unwrap_or("no reason");
                    self.failures.push(format!("{}: {reason}", request.path));
                }
            }
            "Page.loadEventFired" => self.loaded = Some(at),
            _ => {}
        }
    }

    /// Tells whether the page and so many objects have arrived, and no request is in progress.
    fn is_complete(&self, objects: usize) -> bool {
        let is_quiet = self.ended == self.requests.len();
        self.loaded.is_some() && is_quiet && self.ended >= objects
    }

    fn seconds(&self) -> Option<f64> {
        Some(self.loaded?.max(self.last) - self.began?)
    }
}

/// The path of an http or https URL.
fn path_of(url: &str) -> Option<&str> {
    let behind = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))?;
    Some(behind.find('/').map_or("/", |at| &behind[at..]))
}

impl LoadedPage {
    /// Compares the received content with the server's, by path.
    ///
    /// # Errors
    /// When an object is missing, differs or failed, or one came that the page does not have.
    pub fn compare(&self, expected: &BTreeMap<String, Vec<u8>>) -> Result<()> {
        ensure!(
            self.failures.is_empty(),
            "failed: {}",
            self.failures.join(", ")
        );
        for (path, content) in expected {
            let object = self.objects.get(path);
            let object = object.with_context(|| format!("{path} was not loaded"))?;
            ensure!(object.status == 200, "{path}: status {}", object.status);
            ensure!(object.body == *content, "{path} is not what the server has");
        }
        let stranger = self
            .objects
            .keys()
            .find(|path| !expected.contains_key(*path));
        ensure!(stranger.is_none(), "{stranger:?} is not of the page");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(body: &[u8]) -> LoadedObject {
        LoadedObject {
            status: 200,
            protocol: "http/1.1".to_owned(),
            body: body.to_vec(),
        }
    }

    fn watch(events: &[(&str, Value)]) -> PageWatch {
        let mut watch = PageWatch::default();
        for (method, event) in events {
            watch.handle(method, event);
        }
        watch
    }

    #[test]
    fn a_page_ends_with_its_last_object() {
        let request = |id: &str, url: &str, at: f64| {
            let event = json!({ "requestId": id, "request": { "url": url }, "timestamp": at });
            ("Network.requestWillBeSent", event)
        };
        let finished = |id: &str, at: f64| {
            let event = json!({ "requestId": id, "timestamp": at });
            ("Network.loadingFinished", event)
        };
        let mut events = vec![
            request("1", "http://a/", 10.0),
            request("2", "http://a/b.css", 10.2),
            request("3", "data:,", 10.2),
            finished("1", 10.1),
            ("Page.loadEventFired", json!({ "timestamp": 10.3 })),
        ];
        assert!(!watch(&events).is_complete(2));
        events.push(finished("2", 10.5));
        let watch = watch(&events);
        assert!(watch.is_complete(2) && !watch.is_complete(3));
        assert!((watch.seconds().unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn differing_objects_are_named() {
        let page = |objects: &[(&str, &[u8])]| LoadedPage {
            seconds: 1.0,
            objects: objects
                .iter()
                .map(|(path, body)| ((*path).to_owned(), object(body)))
                .collect(),
            failures: Vec::new(),
            issuers: Vec::new(),
            screenshot: Vec::new(),
        };
        let expected = BTreeMap::from([("/".to_owned(), b"a".to_vec())]);
        assert!(page(&[("/", b"a")]).compare(&expected).is_ok());
        for other in [
            page(&[]),
            page(&[("/", b"b")]),
            page(&[("/", b"a"), ("/more", b"c")]),
        ] {
            assert!(other.compare(&expected).is_err(), "{other:?}");
        }
    }

    #[test]
    fn paths_are_those_of_web_addresses() {
        assert_eq!(path_of("http://a.example/b?c"), Some("/b?c"));
        assert_eq!(path_of("https://a.example"), Some("/"));
        assert_eq!(path_of("data:image/png,"), None);
    }
}
