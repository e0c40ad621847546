//! An accelerator for tests: its flows share a small store, which is kept in a log.
//!
//! ```text
//!   client: SET name value    near half: OK once the log is synced, FULL where the disk takes no more
//!           GET name                     the value, or NONE
//!           WAIT name                    the value, as soon as any flow has set it
//! ```
//! The near half answers every line itself. The far half connects to the server and passes the
//! client's end on. A record of the log is a line, `name value`; one without its end was truncated
//! by a crash. The log is replaced as a whole when it is longer than its valid content, or when
//! content is purged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use accelerate::registry::AcceleratorEntry;
use accelerate::settings::{AcceleratorSettings, TableReader};
use accelerate::shared::{
    FileAnswer, FileCompletion, FileFault, FileName, FileOperation, FileRequest, HalfContext,
    PurgeCount, READ_MAX, SharedHandle, SharedInput, SharedOutput, SharedState, StartContext,
};
use accelerate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, WanEnd};
use bytes::Bytes;
use vocab::Time;

/// The server port of the accelerator's flows.
pub(crate) const PORT: u16 = 7_000;

/// The accelerator. Its number is one that no release uses.
pub(crate) static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: 250,
    name: "store",
    ports: &[PORT],
    detection: None,
    parse: |table| {
        TableReader::new(table).finish()?;
        Ok(Arc::new(StoreSettings))
    },
    moved_keys: &[],
    uses_delegated: false,
    switch_on: None,
    explain: |_, _| None,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreSettings;

impl AcceleratorSettings for StoreSettings {
    fn is_on(&self) -> bool {
        true
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, context: StartContext) -> Box<dyn SharedState> {
        let store = ValueStore {
            memory_max: context.memory_max,
            ..ValueStore::default()
        };
        Box::new(SharedStore(SharedHandle::new(store)))
    }
}

/// The handle that the engine has, and each near half.
#[derive(Clone)]
struct SharedStore(SharedHandle<ValueStore>);

impl SharedState for SharedStore {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        let _: &StoreSettings = settings.expect();
    }

    fn build(&mut self, half: WanEnd, context: HalfContext) -> Box<dyn AcceleratorHalf> {
        let flow = context.flow;
        match half {
            WanEnd::Near => Box::new(StoreNearHalf {
                shared: self.clone(),
                flow,
                line: Vec::new(),
                waits_for: None,
                outputs: VecDeque::new(),
            }),
            WanEnd::Far => Box::new(StoreFarHalf::default()),
        }
    }

    fn handle(&mut self, _: Time, input: SharedInput) {
        self.0.with(|store| store.handle(input));
    }

    fn poll_output(&mut self) -> Option<SharedOutput> {
        self.0.with(|store| store.outputs.pop_front())
    }

    fn buffered(&self) -> usize {
        self.0.with(|store| store.held)
    }

    fn keeps_content(&self) -> bool {
        true
    }
}

/// The purpose of a request for the log.
enum LogRequestPurpose {
    Load,
    Append {
        length: u64,
    },
    Sync {
        flow: u64,
        name: String,
    },
    Repair,
    Replace {
        length: u64,
        purge: Option<(u64, PurgeCount)>,
    },
}

/// The state that the flows share.
#[derive(Default)]
struct ValueStore {
    values: BTreeMap<String, String>,
    /// The names in the order in which they were set; the first is removed first.
    order: VecDeque<String>,
    /// The values that flows have set and the disk has not confirmed.
    unconfirmed: BTreeMap<(u64, String), String>,
    outcomes: BTreeMap<u64, &'static str>,
    /// Flows that wait for a name.
    waiting: BTreeMap<String, Vec<u64>>,
    /// Bytes of names and values.
    held: usize,
    memory_max: usize,
    /// The log's length, pending writes included.
    length: u64,
    loaded: Vec<u8>,
    requests: BTreeMap<u64, LogRequestPurpose>,
    next_request: u64,
    outputs: VecDeque<SharedOutput>,
}

fn log() -> FileName {
    "store.log".parse().expect("it is a file's name")
}

impl ValueStore {
    fn handle(&mut self, input: SharedInput) {
        match input {
            SharedInput::Start => self.load(),
            SharedInput::File(FileCompletion { id, result }) => {
                if let Some(purpose) = self.requests.remove(&id) {
                    self.completed(purpose, result);
                }
            }
            SharedInput::Timeout => {}
            SharedInput::FlowEnded(flow) => {
                for flows in self.waiting.values_mut() {
                    flows.retain(|waiting| *waiting != flow);
                }
                self.outcomes.remove(&flow);
            }
            SharedInput::Shrink { to } => {
                self.forget_oldest(to);
                self.replace(None);
            }
            SharedInput::Purge { id, prefix } => {
                let goes = |name: &String| name.starts_with(&prefix);
                let names: Vec<String> = self
                    .values
                    .keys()
                    .filter(|name| goes(name))
                    .cloned()
                    .collect();
                let before = self.held;
                for name in &names {
                    self.forget(name);
                }
                let purged = PurgeCount {
                    entries: names.len() as u64,
                    bytes: (before - self.held) as u64,
                };
                self.replace(Some((id, purged)));
            }
            SharedInput::ContentCleared { .. } | SharedInput::Stop => {}
        }
    }

    fn ask(&mut self, purpose: LogRequestPurpose, operation: FileOperation) {
        self.next_request += 1;
        let id = self.next_request;
        self.requests.insert(id, purpose);
        let request = FileRequest { id, operation };
        self.outputs.push_back(SharedOutput::File(request));
    }

    fn load(&mut self) {
        let read = FileOperation::Read {
            file: log(),
            offset: self.loaded.len() as u64,
            length: READ_MAX,
        };
        self.ask(LogRequestPurpose::Load, read);
    }

    fn completed(&mut self, purpose: LogRequestPurpose, result: Result<FileAnswer, FileFault>) {
        match (purpose, result) {
            (LogRequestPurpose::Load, Ok(FileAnswer::Bytes(bytes))) => {
                self.loaded.extend_from_slice(&bytes);
                match bytes.len() == READ_MAX as usize {
                    true => self.load(),
                    false => self.take_loaded(),
                }
            }
            (LogRequestPurpose::Sync { flow, name }, Ok(_)) => {
                if let Some(value) = self.unconfirmed.remove(&(flow, name.clone())) {
                    self.set(&name, value);
                    self.forget_oldest(self.memory_max);
                    self.decide(flow, "OK");
                    for waiting in self.waiting.remove(&name).unwrap_or_default() {
                        self.outputs.push_back(SharedOutput::Wake(waiting));
                    }
                }
            }
            (LogRequestPurpose::Sync { flow, name }, Err(_)) => {
                self.unconfirmed.remove(&(flow, name));
                self.decide(flow, "FULL");
            }
            // A part may be there; what follows is written in its place.
            (LogRequestPurpose::Append { length }, Err(_)) => {
                self.length = length;
                let repair = FileOperation::Truncate {
                    file: log(),
                    length,
                };
                self.ask(LogRequestPurpose::Repair, repair);
                for (flow, _) in std::mem::take(&mut self.unconfirmed).into_keys() {
                    self.decide(flow, "FULL");
                }
            }
            (LogRequestPurpose::Replace { length, purge }, result) => {
                let result = match result {
                    Ok(_) => {
                        self.length = length;
                        Ok(purge)
                    }
                    Err(fault) => Err((purge, fault.to_string())),
                };
                let (id, result) = match result {
                    Ok(Some((id, purged))) => (id, Ok(purged)),
                    Err((Some((id, _)), error)) => (id, Err(error)),
                    Ok(None) | Err((None, _)) => return,
                };
                self.outputs.push_back(SharedOutput::Purged { id, result });
            }
            (
                LogRequestPurpose::Load
                | LogRequestPurpose::Append { .. }
                | LogRequestPurpose::Repair,
                _,
            ) => {}
        }
    }

    fn take_loaded(&mut self) {
        let loaded = std::mem::take(&mut self.loaded);
        let whole = loaded
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in String::from_utf8_lossy(&loaded[..whole]).lines() {
            if let Some((name, value)) = line.split_once(' ') {
                self.set(name, value.to_owned());
            }
        }
        self.length = whole as u64;
        if whole < loaded.len() {
            let cut = FileOperation::Truncate {
                file: log(),
                length: self.length,
            };
            self.ask(LogRequestPurpose::Repair, cut);
        }
        self.forget_oldest(self.memory_max);
    }

    /// A flow sets a name.
    fn put(&mut self, flow: u64, name: &str, value: &str) {
        let record = format!("{name} {value}\n");
        let append = FileOperation::Append {
            file: log(),
            offset: self.length,
            bytes: Bytes::from(record.clone()),
        };
        let length = self.length;
        self.length += record.len() as u64;
        self.ask(LogRequestPurpose::Append { length }, append);
        self.unconfirmed
            .insert((flow, name.to_owned()), value.to_owned());
        let name = name.to_owned();
        let sync = FileOperation::Sync { file: log() };
        self.ask(LogRequestPurpose::Sync { flow, name }, sync);
    }

    fn decide(&mut self, flow: u64, outcome: &'static str) {
        self.outcomes.insert(flow, outcome);
        self.outputs.push_back(SharedOutput::Wake(flow));
    }

    fn set(&mut self, name: &str, value: String) {
        self.forget(name);
        self.held += name.len() + value.len();
        self.values.insert(name.to_owned(), value);
        self.order.push_back(name.to_owned());
    }

    fn forget(&mut self, name: &str) {
        if let Some(value) = self.values.remove(name) {
            self.held -= name.len() + value.len();
            self.order.retain(|other| other != name);
        }
    }

    fn forget_oldest(&mut self, most: usize) {
        while self.held > most
            && let Some(oldest) = self.order.front().cloned()
        {
            self.forget(&oldest);
        }
    }

    /// Replaces the log with the present content.
    fn replace(&mut self, purge: Option<(u64, PurgeCount)>) {
        let values = self.order.iter().map(|name| (name, &self.values[name]));
        let content: String = values
            .map(|(name, value)| format!("{name} {value}\n"))
            .collect();
        let length = content.len() as u64;
        let bytes = Bytes::from(content);
        let replace = FileOperation::Replace { file: log(), bytes };
        self.ask(LogRequestPurpose::Replace { length, purge }, replace);
    }
}

/// Answers the client from the store.
struct StoreNearHalf {
    shared: SharedStore,
    flow: u64,
    line: Vec<u8>,
    /// A name, or the outcome of a set value.
    waits_for: Option<StoreWait>,
    outputs: VecDeque<AcceleratorOutput>,
}

enum StoreWait {
    Name(String),
    Outcome,
}

impl StoreNearHalf {
    fn obey(&mut self, line: &str) {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("SET"), Some(name), Some(value)) => {
                let flow = self.flow;
                self.shared.0.with(|store| store.put(flow, name, value));
                self.waits_for = Some(StoreWait::Outcome);
            }
            (Some("GET"), Some(name), None) => {
                let value = self.shared.0.with(|store| store.values.get(name).cloned());
                self.say(value.as_deref().unwrap_or("NONE"));
            }
            (Some("WAIT"), Some(name), None) => {
                self.waits_for = Some(StoreWait::Name(name.to_owned()));
                self.look();
            }
            _ => self.say("WHAT"),
        }
    }

    /// Checks the condition that the flow waits for.
    fn look(&mut self) {
        let flow = self.flow;
        let answer = self.shared.0.with(|store| match &self.waits_for {
            None => None,
            Some(StoreWait::Outcome) => store.outcomes.remove(&flow).map(str::to_owned),
            Some(StoreWait::Name(name)) => {
                let value = store.values.get(name).cloned();
                if value.is_none() {
                    store.waiting.entry(name.clone()).or_default().push(flow);
                }
                value
            }
        });
        if let Some(answer) = answer {
            self.waits_for = None;
            self.say(&answer);
        }
    }

    fn say(&mut self, line: &str) {
        let line = Bytes::from(format!("{line}\n"));
        self.outputs.push_back(AcceleratorOutput::ToLan(line));
    }
}

impl AcceleratorHalf for StoreNearHalf {
    fn handle(&mut self, _: Time, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Lan(bytes) => {
                for byte in bytes {
                    match byte {
                        b'\n' => {
                            let line = std::mem::take(&mut self.line);
                            self.obey(&String::from_utf8_lossy(&line));
                        }
                        byte => self.line.push(byte),
                    }
                }
            }
            AcceleratorInput::LanFinished => self.outputs.push_back(AcceleratorOutput::FinishWan),
            AcceleratorInput::WanFinished => self.outputs.push_back(AcceleratorOutput::FinishLan),
            AcceleratorInput::Woken => self.look(),
            _ => {}
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }
}

/// Connects to the server and sends nothing to it.
#[derive(Default)]
struct StoreFarHalf {
    outputs: VecDeque<AcceleratorOutput>,
}

impl AcceleratorHalf for StoreFarHalf {
    fn handle(&mut self, _: Time, input: AcceleratorInput) {
        self.outputs.extend(match input {
            AcceleratorInput::Start => Some(AcceleratorOutput::OpenServer),
            AcceleratorInput::LanFinished => Some(AcceleratorOutput::FinishWan),
            AcceleratorInput::WanFinished => Some(AcceleratorOutput::FinishLan),
            _ => None,
        });
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }
}
