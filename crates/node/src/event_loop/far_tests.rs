//! The loop as a far node: a peer's flow, whose accelerator has several connections to a real server.
//!
//! The peer is an engine in the test. The test hands the link's bytes between the two, as a link's
//! task would. The accelerator exists only in tests ([`accelerate::testing::fan`]).

use std::collections::BTreeMap;
use std::thread;

use accelerate::settings::SettingsTable;
use accelerate::testing::fan;
use engine::{ArrivalMethod, PeerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::tests::{PATIENCE, narrow_server, parts};
use super::*;
use crate::descriptors::DescriptorBudget;

const LINK: LinkId = LinkId(1);
const NEAR: NodeId = NodeId([1; 32]);
const CLIENT: ConnectionId = ConnectionId::Accepted(1);
/// Descriptors of the far node: for five connections at a time.
const POOL: usize = 5;
/// Bytes of a link's writer; more than the test sends at a time.
const LINK_ROOM: usize = 1024 * 1024;
const PIECE: usize = 16 * 1024;

/// The near node without its sockets.
struct NearNode {
    engine: Engine,
    clock: EngineClock,
    /// The bytes that its client has received.
    received: Vec<u8>,
    is_closed: bool,
    mailbox: LoopMailbox,
    orders: mpsc::UnboundedReceiver<LinkCommand>,
}

impl NearNode {
    /// Executes the engine's outputs, and waits for the far node until `done`.
    async fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        loop {
            self.drain().await;
            if done(self) {
                return;
            }
            let due = self.engine.poll_timeout();
            let due = due.and_then(|time| self.clock.instant(time));
            let due = due.unwrap_or_else(|| Instant::now() + PATIENCE);
            tokio::select! {
                order = self.orders.recv() => match order.unwrap() {
                    LinkCommand::Send(bytes) => {
                        let room = LoopMessage::LinkRoom { link: LINK, bytes: bytes.len() };
                        self.mailbox.send(room).await.unwrap();
                        let now = self.clock.now();
                        self.engine.handle(now, EngineInput::LinkReceived { link: LINK, bytes });
                    }
                    LinkCommand::Close => panic!("the far node closes the link"),
                },
                () = tokio::time::sleep_until(due) => self.engine.handle_timeout(self.clock.now()),
            }
        }
    }

    async fn drain(&mut self) {
        loop {
            while let Some(output) = self.engine.poll_output() {
                match output {
                    EngineOutput::Write { connection, bytes } => {
                        self.received.extend_from_slice(&bytes);
                        let bytes = bytes.len();
                        let written = EngineInput::Written { connection, bytes };
                        self.engine.handle(self.clock.now(), written);
                    }
                    EngineOutput::Close { connection: CLIENT } => self.is_closed = true,
                    EngineOutput::Reset { connection: CLIENT } => panic!("the client is reset"),
                    _ => {}
                }
            }
            let Some(bytes) = self.engine.transmit(self.clock.now(), LINK, PIECE) else {
                return;
            };
            let arrived = EngineInput::LinkReceived { link: LINK, bytes };
            self.mailbox.input(arrived).await.unwrap();
        }
    }

    async fn send(&mut self, line: &'static str) {
        let bytes = Bytes::from_static(line.as_bytes());
        let received = EngineInput::Received {
            connection: CLIENT,
            bytes,
        };
        self.engine.handle(self.clock.now(), received);
        self.drain().await;
    }

    async fn wait_for(&mut self, text: &str) {
        self.run_until(|near| near.received.ends_with(text.as_bytes()))
            .await;
    }
}

/// The configurations of both nodes, with the accelerator for servers on this port.
fn configs(
    far: &EventLoop,
    port: u16,
) -> (
    engine::EngineConfig,
    engine::EngineConfig,
    BTreeMap<NodeId, String>,
) {
    let entry = Box::leak(Box::new(fan::entry(Box::leak(Box::new([port])))));
    let (mut config, ..) = engine_config(&far.parts.config, &far.parts.identity, &BTreeMap::new());
    let settings = (entry.parse)(&SettingsTable::default()).unwrap();
    config.policy.accelerators.set(entry, settings);
    let peer = |node, name: &str, prefixes| PeerConfig {
        node,
        name: name.to_owned(),
        prefixes,
    };
    let near = engine::EngineConfig {
        local: NEAR,
        peers: vec![peer(
            config.local,
            "far",
            vec!["127.0.0.1/32".parse().unwrap()],
        )],
        ..config.clone()
    };
    config.peers = vec![peer(NEAR, "near", Vec::new())];
    let peers = BTreeMap::from([(NEAR, "near".to_owned())]);
    (near, config, peers)
}

async fn accept(server: &TcpListener) -> TcpStream {
    server.accept().await.unwrap().0
}

async fn fan_out() {
    let state = tempfile::tempdir().unwrap();
    let descriptors = DescriptorPool::new(DescriptorBudget {
        pool: POOL,
        flows: POOL,
        disk_files: 1,
        handshakes: 1,
        probes: 1,
    });
    let (mailbox, messages) = LoopMailbox::new();
    let mut parts = parts(state.path(), descriptors.clone(), mailbox.clone());
    parts.config.serve = Some(vec!["127.0.0.1/32".parse().unwrap()]);
    let mut far = EventLoop::new(parts).unwrap();

    let server = narrow_server("127.0.0.1:0");
    let address = server.local_addr().unwrap();
    let (near, config, peers) = configs(&far, address.port());
    let far_node = config.local;
    let configure = EngineInput::Configure(Box::new(config));
    far.engine.handle(far.clock.now(), configure);
    far.set_peers(peers);

    let (commands, orders) = mpsc::unbounded_channel();
    let clock = EngineClock::start();
    let mut near = NearNode {
        engine: Engine::new(near, clock.now(), SeededRandom::from_seed(2)),
        received: Vec::new(),
        is_closed: false,
        mailbox: mailbox.clone(),
        clock,
        orders,
    };
    let link_up = LoopMessage::LinkUp {
        link: LINK,
        peer: NEAR,
        dialed_by_us: false,
        addresses: LinkAddresses {
            local: address,
            remote: address,
            mtu: 1_500,
        },
        exporter: KeyExporter::without_link(),
        commands,
    };
    let room = LoopMessage::LinkRoom {
        link: LINK,
        bytes: LINK_ROOM,
    };
    let running = far.run(messages, PreciseAlarm::new().unwrap());
    let test = async {
        mailbox.send(link_up).await.unwrap();
        mailbox.send(room).await.unwrap();
        let up = EngineInput::LinkUp {
            link: LINK,
            peer: far_node,
            dialed_by_us: true,
            offer: None,
        };
        near.engine.handle(near.clock.now(), up);
        let is_up = |near: &NearNode| near.engine.status().peers[0].state == "up";
        near.run_until(is_up).await;
        let client = "127.0.0.1:40000".parse().unwrap();
        let accepted = EngineInput::Accepted {
            connection: CLIENT,
            client,
            server: address,
            via: ArrivalMethod::Socks5,
        };
        near.engine.handle(near.clock.now(), accepted);
        near.wait_for("welcome\n").await;
        let mut own = accept(&server).await;

        // One connection whose server reads nothing, and three that are answered in the reverse order.
        near.send("FILL\n").await;
        let accepting = accept(&server);
        let waiting = near.run_until(|_| false);
        let unread = tokio::select! {
            accepted = accepting => accepted,
            () = waiting => unreachable!("it waits for ever"),
        };
        near.send("FAN 3\n").await;
        let answering = async {
            let mut asked = Vec::new();
            for _ in 0..3 {
                let mut connection = accept(&server).await;
                let mut question = Vec::new();
                connection.read_to_end(&mut question).await.unwrap();
                asked.push((connection, question));
            }
            assert_eq!(descriptors.left(), 0, "each connection has its own");
            for (mut connection, question) in asked.into_iter().rev() {
                connection.write_all(&question).await.unwrap();
            }
            own.write_all(b"own\n").await.unwrap();
        };
        let has_all = |near: &NearNode| {
            let text = String::from_utf8_lossy(&near.received);
            text.contains("part 1\npart 2\npart 3\n") && text.contains("own\n")
        };
        tokio::join!(answering, near.run_until(has_all));

        // The flow ends, and with it the connection that stalled.
        let finished = EngineInput::Finished { connection: CLIENT };
        near.engine.handle(near.clock.now(), finished);
        let ending = async {
            let mut rest = Vec::new();
            own.read_to_end(&mut rest).await.unwrap();
            drop(own);
            drop(unread);
        };
        tokio::join!(ending, near.run_until(|near| near.is_closed));
        assert!(near.received.ends_with(b"late\n"));
        let all_closed = async {
            while mailbox.ask(OperatorQuestion::Status).await.unwrap()["connections"] != 0 {
                tokio::task::yield_now().await;
            }
            while descriptors.left() < POOL {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = all_closed => {}
            () = near.run_until(|_| false) => unreachable!("it goes on for ever"),
        }
    };
    tokio::select! {
        () = running => panic!("the loop has ended"),
        () = test => {}
    }
}

#[test]
fn far_half_opens_several_real_connections() {
    let test = || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(PATIENCE, fan_out()).await.unwrap();
        });
    };
    thread::spawn(test).join().unwrap();
}
