//! A node's loop, its engine and the thread of the accelerators' files in a process that is killed (SIGKILL), with an
//! accelerator that counts its starts on disk.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::UNIX_EPOCH;

use accelerate::passthrough::Passthrough;
use accelerate::registry::AcceleratorEntry;
use accelerate::settings::{AcceleratorSettings, TableReader};
use accelerate::shared::{
    FileAnswer, FileCompletion, FileFault, FileName, FileOperation, FileRequest, HalfContext,
    PurgeCount, SharedInput, SharedOutput, SharedState, StartContext,
};
use accelerate::{AcceleratorHalf, WanEnd};
use reduce::DictionaryKey;

use super::*;

/// Names the state directory to the test that runs as the node.
const STATE: &str = "TRUNKLINE_TEST_STATE";
/// The beginning of the node's line about its count.
const COUNTED: &str = "starts counted on disk: ";

/// The accelerator. Its number is one that no release uses.
static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: 251,
    name: "starts",
    ports: &[],
    detection: None,
    parse: |table| {
        TableReader::new(table).finish()?;
        Ok(Arc::new(StartCounterSettings))
    },
    moved_keys: &[],
    uses_delegated: false,
    switch_on: None,
    explain: |_, _| None,
};

#[derive(Clone, Copy, Debug)]
struct StartCounterSettings;

impl AcceleratorSettings for StartCounterSettings {
    fn is_on(&self) -> bool {
        true
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(StartCounter::default())
    }
}

/// Counts starts in a small file. A purge removes nothing and tells the count, once the disk has it.
#[derive(Default)]
struct StartCounter {
    count: u64,
    is_written: bool,
    purge: Option<u64>,
    outputs: VecDeque<SharedOutput>,
}

impl StartCounter {
    fn ask(&mut self, id: u64, operation: FileOperation) {
        let request = FileRequest { id, operation };
        self.outputs.push_back(SharedOutput::File(request));
    }

    fn answer(&mut self) {
        if self.is_written
            && let Some(id) = self.purge.take()
        {
            let (entries, bytes) = (0, self.count);
            let result = Ok(PurgeCount { entries, bytes });
            self.outputs.push_back(SharedOutput::Purged { id, result });
        }
    }
}

fn file() -> FileName {
    "starts".parse().unwrap()
}

impl SharedState for StartCounter {
    fn configure(&mut self, _: &Arc<dyn AcceleratorSettings>) {}

    fn build(&mut self, half: WanEnd, _: HalfContext) -> Box<dyn AcceleratorHalf> {
        Box::new(Passthrough::new(half))
    }

    fn handle(&mut self, _: Time, input: SharedInput) {
        match input {
            SharedInput::Start => {
                let (offset, length) = (0, 100);
                let file = file();
                let read = FileOperation::Read {
                    file,
                    offset,
                    length,
                };
                self.ask(1, read);
            }
            SharedInput::File(FileCompletion { id: 1, result }) => {
                let before = match result {
                    Err(FileFault::Missing) => 0,
                    Ok(FileAnswer::Bytes(bytes)) => {
                        String::from_utf8_lossy(&bytes).parse().unwrap()
                    }
                    other => panic!("{other:?}"),
                };
                self.count = before + 1;
                let bytes = Bytes::from(self.count.to_string());
                let file = file();
                self.ask(2, FileOperation::Replace { file, bytes });
            }
            SharedInput::File(FileCompletion { result, .. }) => {
                assert_eq!(result, Ok(FileAnswer::Done));
                self.is_written = true;
            }
            SharedInput::Purge { id, .. } => self.purge = Some(id),
            _ => {}
        }
        self.answer();
    }

    fn poll_output(&mut self) -> Option<SharedOutput> {
        self.outputs.pop_front()
    }

    fn keeps_content(&self) -> bool {
        true
    }
}

/// Runs a node's loop, prints the accelerator's content on disk, and continues until it is killed.
async fn run_node(state: &Path) {
    let descriptors = DescriptorPool::new(DescriptorBudget {
        pool: 2,
        flows: 1,
        disk_files: 1,
        handshakes: 1,
        probes: 1,
    });
    let (mailbox, messages) = LoopMailbox::new();
    let mut parts = parts(state, descriptors, mailbox.clone());
    let accelerators = &mut parts.config.policy.accelerators;
    accelerators.set(&ENTRY, Arc::new(StartCounterSettings));
    let event_loop = EventLoop::new(parts).unwrap();
    let running = event_loop.run(messages, PreciseAlarm::new().unwrap());
    let test = async {
        let unknown = mailbox.purge_accelerator("nothing".to_owned(), String::new());
        let unknown = unknown.await.unwrap();
        assert!(unknown["error"].as_str().unwrap().contains("starts"));
        let purge = mailbox.purge_accelerator("starts".to_owned(), String::new());
        println!("{COUNTED}{}", purge.await.unwrap()["bytes"]);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = running => panic!("the loop has ended"),
        () = test => {}
    }
}

fn dictionary_key() -> DictionaryKey {
    DictionaryKey::new([3; 32])
}

/// Pages in the index that the HTTP accelerator finds at its first start.
const PAGES: usize = 300;
/// What the node says before the count of pages that it has removed.
const REMOVED: &str = "pages removed: ";
/// Names the page to remove.
const PAGE: &str = "TRUNKLINE_TEST_PAGE";

/// Runs a node's loop with the HTTP accelerator, has it remove one page of its index, and goes on until it is killed.
async fn run_web_node(state: &Path, page: &str) {
    let descriptors = DescriptorPool::new(DescriptorBudget {
        pool: 2,
        flows: 1,
        disk_files: 1,
        handshakes: 1,
        probes: 1,
    });
    let (mailbox, messages) = LoopMailbox::new();
    let mut parts = parts(state, descriptors, mailbox.clone());
    parts.dictionary_key = Some(dictionary_key());
    let accelerators = &mut parts.config.policy.accelerators;
    let settings = accelerate::http::HttpSettings {
        is_on: true,
        ..accelerate::http::HttpSettings::default()
    };
    accelerators.set(&accelerate::http::ENTRY, Arc::new(settings));
    let event_loop = EventLoop::new(parts).unwrap();
    let running = event_loop.run(messages, PreciseAlarm::new().unwrap());
    let test = async {
        let purge = mailbox.purge_accelerator("http".to_owned(), format!("http://web/{page}"));
        println!("{REMOVED}{}", purge.await.unwrap()["entries"]);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = running => panic!("the loop has ended"),
        () = test => {}
    }
}

/// A process that is killed however the test ends.
struct KilledProcess(Child);

impl KilledProcess {
    /// Runs the test of this name as a node.
    fn start(name: &str, state: &Path, page: &str) -> Self {
        let node = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env(STATE, state)
            .env(PAGE, page)
            .stdout(Stdio::piped())
            .spawn();
        Self(node.unwrap())
    }

    /// The number that it says behind these words.
    fn number_behind(&mut self, words: &str) -> Option<u64> {
        let said = BufReader::new(self.0.stdout.take().unwrap());
        said.lines().find_map(|line| {
            let line = line.unwrap();
            let at = line.find(words)?;
            line[at + words.len()..].parse().ok()
        })
    }
}

impl Drop for KilledProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn accelerator_data_survives_a_killed_node() {
    let name = "event_loop::tests::killed_node::accelerator_data_survives_a_killed_node";
    if let Some(state) = env::var_os(STATE) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let node = run_node(Path::new(&state));
            tokio::time::timeout(PATIENCE, node).await.unwrap();
        });
        return;
    }
    let state = tempfile::tempdir().unwrap();
    for count in 1..=3 {
        let mut node = KilledProcess::start(name, state.path(), "");
        assert_eq!(node.number_behind(COUNTED), Some(count));
        drop(node);
        let file = state.path().join("accelerators/starts/starts");
        assert_eq!(std::fs::read_to_string(file).unwrap(), count.to_string());
    }
}

#[test]
fn index_of_pages_survives_a_killed_node() {
    let name = "event_loop::tests::killed_node::index_of_pages_survives_a_killed_node";
    if let Some(state) = env::var_os(STATE) {
        let page = env::var(PAGE).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let node = run_web_node(Path::new(&state), &page);
            tokio::time::timeout(PATIENCE, node).await.unwrap();
        });
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().join("accelerators/http");
    std::fs::create_dir_all(&directory).unwrap();
    let key = accelerate::shared::StateKey::new(dictionary_key().for_accelerator(2));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let files = accelerate::http::testing::index_files(key, now, PAGES);
    for file in files.names() {
        let content = files.content(&file).unwrap();
        std::fs::write(directory.join(&file), content).unwrap();
    }
    for round in 0..5_u64 {
        // KilledProcess wherever it happens to be: while it reads, or while it writes its own file.
        let node = KilledProcess::start(name, state.path(), "none");
        thread::sleep(Duration::from_millis(3 * round * round));
        drop(node);
        // The page is removed once, and stays so.
        for count in [1, 0] {
            let mut node = KilledProcess::start(name, state.path(), &format!("{}0", 11 + round));
            assert_eq!(node.number_behind(REMOVED), Some(count), "{round}");
        }
    }
    let mut node = KilledProcess::start(name, state.path(), "");
    assert_eq!(node.number_behind(REMOVED), Some(PAGES as u64 - 5));
    drop(node);
    let mut node = KilledProcess::start(name, state.path(), "");
    assert_eq!(node.number_behind(REMOVED), Some(0));
}
