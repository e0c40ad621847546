//! A file share between two engines. Its accelerators answer for each other as long as the link is
//! heard, and a write that was answered and then lost with a node is reported.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use accelerate::smb;
use accelerate::smb::testing::{ClientStep, FileClient, FileServer};
use engine::{ConnectionId, EngineEvent, FlowPolicy};
use vocab::Bitrate;

use super::world::{FAR, NEAR, ServerScript, TestPath, TwoNodeWorld, WorldSettings};
use super::{PATIENCE, random_bytes};

const LENGTH: usize = 300_000;
const BLOCK: u32 = 1_000;

/// A client with a file of the server's open.
struct FileShare {
    world: TwoNodeWorld,
    setting: WorldSettings,
    server: Rc<RefCell<FileServer>>,
    client: FileClient,
    connection: ConnectionId,
    /// Bytes that the client has taken.
    heard: usize,
    /// Blocks that it has read.
    read: u64,
}

impl FileShare {
    fn new() -> Self {
        Self::opened_by(ClientStep::Open)
    }

    fn opened_by(question: ClientStep) -> Self {
        Self::over(TestPath::default(), LENGTH, question)
    }

    /// The same over this path, with a file of this length.
    fn over(path: TestPath, length: usize, question: ClientStep) -> Self {
        let mut policy = FlowPolicy::default();
        let settings = Arc::new(smb::SmbSettings::STRICT);
        policy.accelerators.set(&smb::ENTRY, settings);
        let setting = WorldSettings {
            path,
            policy: policy.clone(),
            far_policy: policy,
            ..WorldSettings::default()
        };
        let contents = random_bytes(17, length).to_vec();
        let server = Rc::new(RefCell::new(FileServer::new(contents)));
        let mut world = TwoNodeWorld::new(setting.clone());
        world
            .servers
            .insert(445, ServerScript::Files(Rc::clone(&server)));
        let connection = world.accept(445);
        let mut share = Self {
            world,
            setting,
            server,
            client: FileClient::default(),
            connection,
            heard: 0,
            read: 0,
        };
        share.set_up(question);
        share
    }

    fn set_up(&mut self, opens: ClientStep) {
        for question in [
            ClientStep::Negotiate,
            ClientStep::SetUp,
            ClientStep::Connect,
        ] {
            self.ask(question);
        }
        self.ask(opens);
    }

    /// Connects the client once more, as if to a restarted server.
    fn connect_again(&mut self) {
        let contents = self.server.borrow().contents().to_vec();
        self.server = Rc::new(RefCell::new(FileServer::new(contents)));
        let script = ServerScript::Files(Rc::clone(&self.server));
        self.world.servers.insert(445, script);
        self.client = FileClient::default();
        self.connection = self.world.accept(445);
        (self.heard, self.read) = (0, 0);
        self.set_up(ClientStep::Open);
    }

    /// The reasons that both nodes give for not accelerating the last flow.
    fn whys_not(&self) -> [Option<String>; 2] {
        [NEAR, FAR].map(|own| {
            let engine = &self.world.nodes[own].engine;
            let last = engine
                .flows(self.world.now)
                .iter()
                .map(|flow| flow.flow)
                .max();
            let why = engine.why(self.world.now, last?)?;
            let mut stages = why.stages.into_iter();
            stages.find(|stage| stage.stage == "accelerate")?.why_not
        })
    }

    /// Returns the answer, if it takes no time.
    fn ask_at_once(&mut self, question: ClientStep) -> Option<Vec<u8>> {
        let bytes = self.client.ask(question);
        self.world.send(self.connection, &bytes, false);
        self.hear()
    }

    fn ask(&mut self, question: ClientStep) -> Vec<u8> {
        match self.ask_at_once(question) {
            Some(answer) => answer,
            None => self.wait(),
        }
    }

    /// The next answer that has arrived.
    fn hear(&mut self) -> Option<Vec<u8>> {
        let host = self.world.client_host(self.connection);
        let bytes = host.received[self.heard..].to_vec();
        self.heard += bytes.len();
        self.client.hear(&bytes)
    }

    fn wait(&mut self) -> Vec<u8> {
        loop {
            let (connection, heard) = (self.connection, self.heard);
            let comes = |world: &TwoNodeWorld| world.client_host(connection).received.len() > heard;
            self.world.run_until(comes, PATIENCE);
            if let Some(answer) = self.hear() {
                return answer;
            }
        }
    }

    fn next_block(&mut self) -> ClientStep {
        let offset = self.read * u64::from(BLOCK);
        self.read += 1;
        ClientStep::Read {
            offset,
            length: BLOCK,
        }
    }

    fn last_block(&self) -> Vec<u8> {
        let end = self.read as usize * BLOCK as usize;
        self.server.borrow().contents()[end - BLOCK as usize..end].to_vec()
    }

    /// Reads until it is answered at once, and finds that it is so again and again.
    fn settle(&mut self) {
        for _ in 0..3 {
            let question = self.next_block();
            assert!(self.ask(question) == self.last_block());
            self.world.run_for(Duration::from_secs(1));
        }
        assert!(self.reads_at_once());
    }

    fn reads_at_once(&mut self) -> bool {
        let question = self.next_block();
        let answer = self.ask_at_once(question);
        let expected = self.last_block();
        answer.is_some_and(|answer| answer == expected)
    }
}

fn is_silent(event: &EngineEvent) -> bool {
    matches!(event, EngineEvent::PeerSilent { .. })
}

#[test]
fn broken_server_link_stops_local_answers() {
    let mut share = FileShare::new();
    share.settle();
    // Its client's node hears of it; the server's does not, or is gone.
    share.world.lose_link(NEAR);
    assert!(!share.reads_at_once());
    share.world.run_for(Duration::from_secs(1));
    assert!(share.hear().is_none());
    share.world.connect();
    assert!(share.wait() == share.last_block());
    share.settle();
}

#[test]
fn silent_server_link_stops_local_answers() {
    let mut share = FileShare::new();
    share.settle();
    share.world.set_blocked(true);
    share.world.run_for(Duration::from_secs(1));
    assert!(share.reads_at_once());
    // Sooner than after the ten seconds for which what it heard last would do.
    let falls_silent = |world: &TwoNodeWorld| world.nodes[NEAR].events.iter().any(is_silent);
    share.world.run_until(falls_silent, Duration::from_secs(5));
    assert!(!share.reads_at_once());
    share.world.run_for(Duration::from_secs(1));
    assert!(share.hear().is_none());
    share.world.cut();
    share.world.connect();
    assert!(share.wait() == share.last_block());
    share.settle();
}

#[test]
fn lost_answered_write_resets_the_client() {
    let mut share = FileShare::new();
    share.settle();
    let before = share.server.borrow().contents().to_vec();
    let write = |offset, byte| ClientStep::Write {
        offset,
        data: vec![byte; 1_000],
    };
    share.ask(write(0, 1));
    share.ask(ClientStep::Flush);
    assert!(share.ask_at_once(write(1_000, 2)).is_some());
    let setting = share.setting.clone();
    share.world.restart(FAR, &setting);
    share.server.borrow_mut().disconnect();
    share.world.connect();
    let connection = share.connection;
    let is_reset = |world: &TwoNodeWorld| world.client_host(connection).was_reset;
    share.world.run_until(is_reset, PATIENCE);
    // No end that could be taken for a good one.
    assert!(!share.world.client_host(connection).peer_finished);
    let server = share.server.borrow();
    assert_eq!(server.contents()[..1_000], [1; 1_000]);
    assert!(server.contents()[1_000..] == before[1_000..]);
}

#[test]
fn flushed_data_outlives_the_clients_node() {
    let mut share = FileShare::new();
    share.settle();
    for (offset, byte) in [(0, 1), (1_000, 2)] {
        let data = vec![byte; 1_000];
        assert!(
            share
                .ask_at_once(ClientStep::Write { offset, data })
                .is_some()
        );
    }
    share.ask(ClientStep::Flush);
    let setting = share.setting.clone();
    share.world.restart(NEAR, &setting);
    share.world.connect();
    share.world.run_for(Duration::from_secs(1));
    let server = share.server.borrow();
    assert_eq!(server.open_count(), 0);
    assert_eq!(server.contents()[..1_000], [1; 1_000]);
    assert_eq!(server.contents()[1_000..2_000], [2; 1_000]);
}

/// A signed request on an unsigned session without a key.
#[test]
fn flow_closed_for_missing_key_makes_hosts_pass() {
    let mut share = FileShare::new();
    share.settle();
    assert_eq!(share.whys_not(), [None, None]);
    let mut signed = share.client.ask(ClientStep::Flush);
    signed[4 + 16] |= 8;
    share.world.send(share.connection, &signed, false);
    let connection = share.connection;
    let is_reset = |world: &TwoNodeWorld| world.client_host(connection).was_reset;
    share.world.run_until(is_reset, PATIENCE);
    share.connect_again();
    for _ in 0..10 {
        let question = share.next_block();
        assert!(share.ask_at_once(question).is_none());
        assert!(share.wait() == share.last_block());
    }
    for why_not in share.whys_not() {
        let why_not = why_not.expect("it says why");
        assert!(why_not.contains("no key for it"), "{why_not}");
    }
    let [_, of_far] = share.whys_not();
    assert!(of_far.unwrap().contains("for 5 minutes"));
    // Then it is tried again, and at once where the configuration has changed.
    share.world.run_for(Duration::from_secs(301));
    share.connect_again();
    share.settle();
}

/// A change that the client makes over another connection breaks none of its leases, and the server
/// may report over that connection another client's open.
#[test]
fn second_connection_ends_work_under_leases() {
    let mut share = FileShare::opened_by(ClientStep::OpenLeased);
    share.settle();
    let write = |byte| ClientStep::Write {
        offset: 0,
        data: vec![byte; 1_000],
    };
    assert!(share.ask_at_once(write(1)).is_some());
    let server = Rc::clone(&share.server);
    let first = std::mem::take(&mut share.client);
    let place = (share.connection, share.heard, share.read);
    share.connect_again();
    // By now what was answered on the first is with the server.
    assert_eq!(server.borrow().contents()[..1_000], [1; 1_000]);
    share.client = first;
    (share.connection, share.heard, share.read) = place;
    assert!(share.ask_at_once(write(2)).is_none());
    share.wait();
    assert_eq!(server.borrow().contents()[..1_000], [2; 1_000]);
}

/// A far half knows of a slow path only by the output that waits in its node.
#[test]
fn slow_link_bounds_data_read_ahead() {
    const READ: u32 = 60_000;
    const WINDOW_BYTES: u64 = 256 << 10;
    const UNSENT_BYTES: u64 = 128 << 10;
    const RATE: u64 = 1_000_000;
    let path = TestPath {
        rate: Bitrate::from_bits_per_second(RATE),
        ..TestPath::default()
    };
    let mut share = FileShare::over(path, 6_000_000, ClientStep::Open);
    let mut ahead_most = 0;
    for block in 0..30 {
        let offset = block * u64::from(READ);
        let read = ClientStep::Read {
            offset,
            length: READ,
        };
        share.ask(read);
        let answered = share.server.borrow().answered_bytes();
        ahead_most = ahead_most.max(answered - share.heard as u64);
    }
    let limit = WINDOW_BYTES + UNSENT_BYTES + u64::from(READ);
    assert!(ahead_most > u64::from(READ), "{ahead_most}");
    assert!(ahead_most <= limit, "{ahead_most}");
    // Another request waits for what the server has sent ahead, and not for the rest of the file.
    let asked_at = share.world.now;
    share.ask(ClientStep::Flush);
    let waited = share.world.now.since(asked_at);
    let line = Duration::from_secs_f64((limit * 8) as f64 / RATE as f64);
    assert!(waited <= line + Duration::from_millis(100), "{waited:?}");
}
